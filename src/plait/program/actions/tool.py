"""The `tool:` action: call a tool, with the same trust checks and limits as everywhere.

A tool that may not run ends the run instead of the step: `TrustError` passes through, no handler
sees it, and nothing of the tool has run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from plait.core.errors import InputError, ProcessError, RequestError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Unknown, json_text, text
from plait.engine.budgets import timeout_or_limit
from plait.engine.outcome import (
    Failure,
    Interrupted,
    StepError,
    failure_kind_of_error,
    failure_kind_of_status,
    require_success,
)
from plait.engine.paths import CALL
from plait.engine.perform import StepContext, act
from plait.engine.step import FunctionAction, LeafStep, Plan, Policy
from plait.program.ports import TIMEOUT_EXIT_CODE, Subflow, ToolChecks, Tools, tools_at
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.engine.plan_log import PlanLog
    from plait.scope import Scope
    from plait.template.sinks import Values
    from plait.tools.call import ToolResult


ONCE_CALL: Final = CALL


@dataclass(frozen=True, slots=True)
class ToolAction:
    tool_id: str | Template
    params: Template | None = None
    """A map of parameters."""
    strict: bool = False
    retry_scope = "inner"
    """The tool may be a flow or an agent, which records its own steps."""

    def plan(self, ctx: StepContext) -> ToolPlan:
        scope, strict = ctx.scope, self.strict
        named = self.tool_id
        wanted = named if isinstance(named, str) else named.render_checked(scope, strict=strict)
        tool_id = text(wanted)
        params: Json = {}
        if self.params is not None:
            params = fill_params(ctx, tool_id, self.params, scope, strict=strict)
        if isinstance(wanted, Unknown) or isinstance(params, Unknown):
            return ToolPlan("tool", f"{tool_id} {text(params)}")
        return ToolCall(tool_id, require_mapping(tool_id, params)).plan(ctx)

    async def execute(self, plan: ToolPlan, ctx: StepContext) -> dict[str, Json]:
        return await _execute_call(plan.data, ctx)

    def is_plain_in(self, ctx: StepContext) -> bool:
        """Does it wait only for a process, as far as is known before the call?"""
        return isinstance(self.tool_id, str) and ctx.run.services.get(Tools).is_process(
            self.tool_id
        )


@dataclass(frozen=True, slots=True)
class ToolPlan(Plan):
    """Checks a call as far as possible without making it."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        if self.data is None:
            return log.add(ctx, self.kind, self.shown)  # only a run knows the call
        call: ToolCall = self.data
        checks = ctx.run.services.get(ToolChecks).at(ctx.directory, ctx.env)
        checks.require_valid_call(call.tool_id, call.params)
        return log.add(ctx, self.kind, f"{call.tool_id} {json_text(dict(call.params))}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call of a tool, with its parameters filled in."""

    tool_id: str
    params: Mapping[str, Json] = field(repr=False)
    as_text: bool = False
    """The output is the printed text, even if it is data."""

    def plan(self, ctx: StepContext) -> ToolPlan:  # noqa: ARG002 - the protocol's shape
        return ToolPlan("tool", self.tool_id, self)

    async def execute(self, plan: ToolPlan, ctx: StepContext) -> dict[str, Json]:  # noqa: ARG002 - the same
        return await _execute_call(self, ctx)


def fill_params(
    ctx: StepContext, tool_id: str, params: Template, values: Values, *, strict: bool
) -> Json:
    """Fill the placeholders in parameters; placeholders in code are bound or refused."""
    return ctx.run.services.get(ToolChecks).code(tool_id).fill(params, values, strict=strict)


def require_mapping(tool_id: str, params: Json) -> Mapping[str, Json]:
    if isinstance(params, Mapping):
        return params
    raise InputError(
        f"the parameters of '{tool_id}' must be a map",
        fix="write params: {name: value}",
        code="wrong-type",
    )


def make_tool_call(
    ctx: StepContext, tool_id: str, params: Template | None, values: Scope
) -> ToolCall:
    """Make a call from a template of its parameters."""
    filled: Json = {} if params is None else fill_params(ctx, tool_id, params, values, strict=False)
    return ToolCall(tool_id, require_mapping(tool_id, filled))


def call_tool_step(
    ctx: StepContext, tool_id: str, params: Mapping[str, Json], *, as_text: bool = False
) -> dict[str, Json]:
    """Call a tool and return the result as the value of a step. Its data is the output, or the
    printed text.
    """
    return _require_record(act(ToolCall(tool_id, params, as_text), ctx))


async def _execute_call(call: ToolCall, ctx: StepContext) -> dict[str, Json]:
    tools = ctx.run.services.get(Tools)
    program = tools.find_subflow(call.tool_id, call.params)
    if program is not None:
        return _run_subflow(program, ctx)
    if not tools.is_once(call.tool_id):
        return await _call_directly(call, ctx)
    action = FunctionAction(partial(_call_directly, call))
    # Its parent has a fingerprint that covers the call.
    step = LeafStep(CALL, "tool", call.tool_id, "", action, Policy(at_most_once=True))
    return _require_record(require_success(ctx.perform(step)))


def _require_record(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict), "a call returns a map"
    return value


async def _call_directly(call: ToolCall, ctx: StepContext) -> dict[str, Json]:
    """Call a tool that is not a flow."""
    run = ctx.run
    live = run.events.open_output(ctx.path, ctx.attempt)
    try:
        time_left = run.budgets.time_left(ctx)
        result = await tools_at(ctx).call(
            call.tool_id,
            call.params,
            timeout=time_left,
            on_output=None if live is None else live.write,
            trace=() if run.trace is None else run.trace.headers(ctx.path, ctx.retries),
        )
    except RequestError as error:
        failure = Failure(run.secrets.mask(str(error)), failure_kind_of_error(error))
        raise StepError(timeout_or_limit(failure, ctx)) from None
    except ProcessError as error:
        if error.code != "timeout":
            raise
        failure = Failure(run.secrets.mask(str(error)), "timeout", exit_code=TIMEOUT_EXIT_CODE)
        raise StepError(timeout_or_limit(failure, ctx)) from None
    finally:
        if live is not None:
            live.close()
    if result.metadata.get("cancelled") and run.stop.is_set():
        raise Interrupted
    if call.as_text and result.printed is not None:
        result = replace(result, data=result.printed)
    return _require_tool_success(result, ctx)


def _run_subflow(program: Subflow, ctx: StepContext) -> dict[str, Json]:
    """Run a flow that is called like a tool; its steps are recorded below the call."""
    began = time.monotonic()
    ctx.run.replay.require_known_steps(program.children, ctx)
    value = act(program, ctx)
    output = value.get("output") if isinstance(value, dict) else value
    return {
        "output": output,
        "stderr": "",
        "exit_code": 0,
        "duration": round(time.monotonic() - began, 6),
    }


def _require_tool_success(result: ToolResult, ctx: StepContext) -> dict[str, Json]:
    mask, facts = ctx.run.secrets.mask, result.metadata
    code = facts.get("exit_code")
    # A tool that is not a process also gets an exit code: 0 means success.
    code = (
        code if isinstance(code, int) and bool(code) != result.success else int(not result.success)
    )
    code = TIMEOUT_EXIT_CODE if facts.get("timed_out") else code
    record: dict[str, Json] = {
        "output": mask_value(result.data, mask),
        "stderr": mask(str(facts.get("stderr", ""))),
        "exit_code": code,
        "duration": round(_number(facts.get("duration_ms")) / 1000, 6),
    }
    if result.success:
        return record
    message = mask(result.error or "the tool failed without a message")
    failure = Failure(f"{result.item_id}: {message}", _kind(facts), exit_code=code, output=record)
    raise StepError(timeout_or_limit(failure, ctx))


def _kind(facts: Mapping[str, Json]) -> str:
    status = facts.get("status")
    if facts.get("timed_out"):
        return "timeout"
    if isinstance(status, int):
        return failure_kind_of_status(status)
    if facts.get("signal"):
        return "signal"
    return "exit" if facts.get("exit_code") else "failed"


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
