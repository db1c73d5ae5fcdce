"""A step that calls a tool: by the same road as everybody, with its trust and its limits.

A tool that may not run is no failed step but the end of the run: `TrustError`
passes through, no handler sees it, and nothing of the tool has run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from plait.core.errors import InputError, ProcessError, RequestError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Unknown, json_text, text
from plait.engine.outcome import (
    Failure,
    Interrupted,
    StepError,
    failure_kind_of_error,
    failure_kind_of_status,
    require_success,
)
from plait.engine.perform import StepContext, act, plans
from plait.engine.step import Policy, Step
from plait.engine.working_run import timeout_or_limit, working
from plait.program.ports import TIMEOUT_EXIT_CODE, Subflow, tools
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.scope import Scope
    from plait.template.sinks import Values
    from plait.tools.call import ToolResult


ONCE_CALL: Final = "call"
"""The place of a call that may be made only once, below the step that makes it."""


@dataclass(frozen=True, slots=True)
class ToolAction:
    """The action of a `tool:` step."""

    tool_id: str | Template
    params: Template | None = None
    """A map of them."""
    strict: bool = False
    retry_scope = "inner"
    """What is called may be a flow or an agent, which has recorded what it did."""

    @plans
    def run(self, ctx: StepContext) -> dict[str, Json]:
        scope, strict = ctx.scope, self.strict
        named = self.tool_id
        wanted = named if isinstance(named, str) else named.render_checked(scope, strict=strict)
        tool_id = text(wanted)
        params: Json = {}
        if self.params is not None:
            params = fill_params(ctx, tool_id, self.params, scope, strict=strict)
        if isinstance(wanted, Unknown) or isinstance(params, Unknown):
            return working(ctx.run).add_planned_step(ctx, "tool", f"{tool_id} {text(params)}")
        return call_tool_step(ctx, tool_id, require_mapping(tool_id, params))


def fill_params(
    ctx: StepContext, tool_id: str, params: Template, values: Values, *, strict: bool
) -> Json:
    """The parameters of a tool with their placeholders filled; those in code are bound or
    refused.
    """
    return working(ctx.run).hands.code(tool_id).fill(params, values, strict=strict)


def require_mapping(tool_id: str, params: Json) -> Mapping[str, Json]:
    if isinstance(params, Mapping):
        return params
    raise InputError(
        f"the parameters of '{tool_id}' are no map",
        fix="write params: {name: value}",
        code="wrong-type",
    )


@plans
def fill_and_call(
    ctx: StepContext, tool_id: str, params: Template | None, values: Scope
) -> dict[str, Json]:
    """Call a tool with parameters that are still to be filled."""
    filled: Json = {} if params is None else fill_params(ctx, tool_id, params, values, strict=False)
    return call_tool_step(ctx, tool_id, require_mapping(tool_id, filled))


def call_tool_step(
    ctx: StepContext, tool_id: str, params: Mapping[str, Json], *, as_text: bool = False
) -> dict[str, Json]:
    """How a call of a tool ended, as a step says it; its data is the output, or what it printed."""
    run = working(ctx.run)
    if run.rehearsal is not None:
        tools(ctx).require_valid_call(tool_id, params)
        return run.add_planned_step(ctx, "tool", f"{tool_id} {json_text(dict(params))}")
    program = run.hands.program(tool_id, params)
    if program is not None:
        return _from_inside(program, ctx)
    call = Called(tool_id, params, as_text=as_text)
    if not run.hands.is_once(tool_id):
        return _require_record(act(call, ctx))
    return _require_record(require_success(ctx.perform(call)))


def _require_record(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict), "it is how a call ended"
    return value


@dataclass(frozen=True, slots=True)
class Called:
    """The call of a tool; of one that may be made only once it is a step of its own."""

    tool_id: str
    params: Mapping[str, Json] = field(repr=False)
    as_text: bool = False
    name: str = ONCE_CALL
    kind: str = "tool"
    policy: Policy = Policy(at_most_once=True)
    inner: Sequence[Step] = ()
    fingerprint: str = ""
    """Whoever makes the call has one, which says all."""

    @property
    def title(self) -> str:
        return self.tool_id

    def run(self, ctx: StepContext) -> dict[str, Json]:
        run = working(ctx.run)
        try:
            result = tools(ctx).call(self.tool_id, self.params, timeout=run.time_left(ctx))
        except RequestError as error:
            raise StepError(
                timeout_or_limit(Failure(run.mask(str(error)), failure_kind_of_error(error)), ctx)
            ) from None
        except ProcessError as error:
            if error.code != "timeout":
                raise
            failure = Failure(run.mask(str(error)), "timeout", exit_code=TIMEOUT_EXIT_CODE)
            raise StepError(timeout_or_limit(failure, ctx)) from None
        if result.metadata.get("cancelled") and run.is_stopping():
            raise Interrupted
        if self.as_text and result.printed is not None:
            result = replace(result, data=result.printed)
        return _require_tool_success(result, ctx)


def _from_inside(program: Subflow, ctx: StepContext) -> dict[str, Json]:
    """How a flow ended that is called like a tool; its steps are below the step that calls it."""
    began = time.monotonic()
    value = act(program, ctx)
    output = value.get("output") if isinstance(value, dict) else value
    return {
        "output": output,
        "stderr": "",
        "exit_code": 0,
        "duration": round(time.monotonic() - began, 6),
    }


def _require_tool_success(result: ToolResult, ctx: StepContext) -> dict[str, Json]:
    mask, facts = ctx.run.mask, result.metadata
    code = facts.get("exit_code")
    # A tool that is no process ends like one: 0 is success.
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
    said = mask(result.error or "the tool says only that it failed")
    failure = Failure(f"{result.item_id}: {said}", _kind(facts), exit_code=code, output=record)
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
