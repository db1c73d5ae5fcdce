"""Every name that Plait sends to a collector: the one table.

The GenAI conventions are in development, so their names may change: change them here.
"""

from __future__ import annotations

from plait.core.hints import Final

SCOPE: Final = "plait"
"""The instrumentation scope of all signals."""
SERVICE: Final = "plait"
"""The service name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES gives one."""

# ── attributes of Plait ──────────────────────────────────────────────────

RUN_ID: Final = "plait.run.id"
RUN_FLOW: Final = "plait.run.flow"
RUN_FILE: Final = "plait.run.file"
RUN_STATUS: Final = "plait.run.status"
RUN_ATTEMPTS: Final = "plait.run.attempts"
STEP_PATH: Final = "plait.step.path"
STEP_KIND: Final = "plait.step.kind"
STEP_TITLE: Final = "plait.step.title"
STEP_STATUS: Final = "plait.step.status"
"""done, failed or skipped; of an attempt also retried."""
STEP_ATTEMPT: Final = "plait.step.attempt"
STEP_SKIPPED: Final = "plait.step.skipped"
"""Content: why a step was skipped."""
ITEMS: Final = "plait.items."
"""Before total, successful, failed, …"""
COST: Final = "plait.usage.cost"
"""US dollars; the conventions have no name for it."""
OUTPUT: Final = "plait.step.output"
"""Content: what a step printed or returned."""

# ── attributes of the conventions ────────────────────────────────────────

ERROR_TYPE: Final = "error.type"
EXIT_CODE: Final = "process.exit.code"
HTTP_STATUS: Final = "http.response.status_code"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
AGENT_NAME: Final = "gen_ai.agent.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
"""Content."""
TOOL_RESULT: Final = "gen_ai.tool.call.result"
"""Content."""
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
"""Content."""
INPUT_MESSAGES: Final = "gen_ai.input.messages"
"""Content."""
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
"""Content."""

CHAT, INVOKE_AGENT, EXECUTE_TOOL = "chat", "invoke_agent", "execute_tool"
"""Values of OPERATION."""
FINISHES: Final = {"end": "stop", "tools": "tool_call", "refused": "content_filter"}
"""Values of FINISH_REASONS, by the word that Plait records for why a response ended."""

# ── metrics ──────────────────────────────────────────────────────────────

RUN_DURATION: Final = "plait.run.duration"
STEP_DURATION: Final = "plait.step.duration"
FAILURES: Final = "plait.step.failures"
RETRIES: Final = "plait.step.retries"
QUEUE: Final = "plait.items.waiting"
MODEL_DURATION: Final = "gen_ai.client.operation.duration"
TOKENS: Final = "gen_ai.client.token.usage"
COST_SUM: Final = "plait.usage.cost"
