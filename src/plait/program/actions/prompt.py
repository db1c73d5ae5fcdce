"""The `prompt:` action: ask a language model; its answer is the output.

Without tools, schema or limits it is one turn, a step below the prompt (`…/turn:1`). If the run
stops after the response, the response is recorded, and resume continues with it. Otherwise it is an
agent session (`…/agent`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from plait.agents.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    Provider,
    options_fingerprint,
)
from plait.agents.session import AgentStep
from plait.agents.turns import ModelTurn, find_provider, perform_turn
from plait.core.digests import json_digest
from plait.core.hints import Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.budgets import limit_error
from plait.engine.limits import NO_LIMITS, LimitReached, Limits
from plait.engine.outcome import (
    Failed,
    Failure,
    LimitExceeded,
    Skip,
    Skipped,
    StepError,
    require_success,
)
from plait.engine.paths import AGENT, last_name, turn_name
from plait.engine.perform import StepContext, act
from plait.engine.replay import replay_unless_failed
from plait.engine.step import Composite, FunctionAction, RetryScope
from plait.engine.unknown_results import UNKNOWN_RESULT
from plait.program.capture import ATTEMPT
from plait.template.sinks import render_text
from plait.template.template import Template

TURN_FACTS: Final = ("model", "usage", "provider")
"""The fields of a turn's record that the result of the prompt has as facts."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The additional options of a prompt with an agent session."""

    title: str
    tools: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    schema: Mapping[str, Json] | None = None
    limits: Limits = NO_LIMITS
    max_output_retries: int = 2


@dataclass(frozen=True, slots=True)
class PromptAction(Composite):
    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False
    session: SessionOptions | None = None
    """None: the prompt is one turn."""

    @property
    def retry_scope(self) -> RetryScope | None:
        return None if self.session is None else "inner"

    def run(self, ctx: StepContext) -> dict[str, Json]:
        text = render_text(self.text, ctx.scope, strict=self.strict)
        system = (
            "" if self.system is None else render_text(self.system, ctx.scope, strict=self.strict)
        )
        if self.session is not None:
            return self._run_session(self.session, text, system, ctx)
        mask = ctx.run.secrets.mask
        request = ModelRequest(
            (Message("user", mask(text)),), mask(system), self.model, options=self.options
        )
        action = FunctionAction(partial(self._run_turn, request), "prompt", mask(text))
        value = act(action, ctx)
        assert isinstance(value, dict), "a turn returns a map"
        return value

    def _run_turn(self, request: ModelRequest, ctx: StepContext) -> dict[str, Json]:
        provider = find_provider(self.provider, ctx.run)
        turn = ModelTurn(
            request,
            provider,
            partial(_hook_context, request, ctx),
            partial(_turn_record, ctx.attempt),
            _require_no_tools,
            can_skip=True,
        )
        # A response that could not be captured does not count: resume asks again.
        since = replay_unless_failed(
            ctx, turn_name(1), lambda _, failure: failure.kind == "capture"
        )
        began = time.monotonic()
        outcome, _ = perform_turn(
            turn,
            1,
            _fingerprint(request, provider),
            since,
            perform=since.perform,
            limit=partial(_limit, request, ctx),
        )
        match outcome:
            case Skipped(why):
                raise Skip(why)
            case Failed(failure):
                output = _failure_result(failure, time.monotonic() - began)
                raise StepError(replace(failure, output=output))
        record = dict(require_success(outcome))
        return {name: value for name, value in record.items() if name not in TURN_FACTS}

    def _run_session(
        self, session: SessionOptions, text: str, system: str, ctx: StepContext
    ) -> dict[str, Json]:
        began = time.monotonic()
        step = AgentStep(
            AGENT,
            session.title,
            text,
            system,
            self.provider,
            self.model,
            session.tools,
            session.schema,
            session.limits,
            self.options,
            once=session.once,
            max_output_retries=session.max_output_retries,
        )
        value = require_success(ctx.perform(step))
        if not isinstance(value, dict) or not value:
            return dict(UNKNOWN_RESULT)  # in a dry run
        facts = {name: value[name] for name in ("model", "usage", "turns")}
        return _result(value["output"], time.monotonic() - began, facts)


def _fingerprint(request: ModelRequest, provider: Provider) -> str:
    return json_digest(
        [
            provider.name,
            provider.fingerprint,
            request.model,
            request.system,
            [message.text for message in request.messages],
            options_fingerprint(request.options),
        ]
    )


def _hook_context(request: ModelRequest, ctx: StepContext) -> dict[str, Json]:
    """The variables of hooks. `step` is the prompt step that the author wrote."""
    name = last_name(ctx.path)
    step: Json = {"name": name, "kind": "prompt", "title": name, "attempt": ctx.attempt}
    return {"step": step, "model": request.model, "turn": 1}


def _turn_record(attempt: int, response: ModelResponse, seconds: float) -> dict[str, Json]:
    """The result of the prompt, so hooks see its output; and the usage, as in every turn."""
    model, usage = response.model, response.usage.record()
    number = {ATTEMPT: attempt} if attempt > 1 else {}
    facts = {"model": model, "usage": usage, "cost": usage["cost"]}
    return {**_result(response.text, seconds, facts), **number, "model": model, "usage": usage}


def _require_no_tools(response: ModelResponse) -> Failure | None:
    if response.ending != "tools":
        return None
    why = "the model called a tool instead of answering, but a prompt has no tools: use an agent"
    return Failure(why, "tools")


def _limit(
    request: ModelRequest, ctx: StepContext, reached: LimitReached, output: Json
) -> LimitExceeded:
    return limit_error(reached, ctx, _hook_context(request, ctx), partial=output)


def _failure_result(failure: Failure, seconds: float) -> dict[str, Json]:
    """The result of a prompt without a response that counts, with the part that arrived."""
    output = failure.output if isinstance(failure.output, Mapping) else {}
    text = next((output[name] for name in ("output", "text", "said") if name in output), "")
    usage = output.get("usage")
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    facts = {"model": output.get("model", ""), "usage": usage, "cost": cost}
    return {**_result(text, seconds, facts), "stderr": failure.message, "exit_code": 1}


def _result(output: Json, seconds: float, facts: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "output": output,
        "stderr": "",
        "exit_code": 0,
        "duration": round(seconds, 6),
        "facts": dict(facts),
    }
