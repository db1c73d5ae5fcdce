"""The action of a graph node: a tool or shell text, once or for each item of a list.

The output of a tool becomes `result`: a map is used as it is; anything else is `result.result`, and
text and numbers are `result.stdout`, too. Like every name, the texts of `result.stdout` and
`result.stderr` have no newlines at their end. Null parameters are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.agents.permissions import DIRECTIVE
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json, copy_shared, deep_copy, json_text
from plait.engine.outcome import Failed, Failure, Outcome, StepError, Succeeded
from plait.engine.paths import item_name, name_key
from plait.engine.perform import StepContext, act
from plait.engine.step import FunctionAction, LeafStep, Policy, Step
from plait.program.actions.shell import ShellAction
from plait.program.actions.tool import call_tool_step, fill_params, require_mapping
from plait.program.capture import strip_newlines
from plait.program.item_list import item_title, perform_items
from plait.program.ports import Results, Tools
from plait.template.sinks import render_json_value, render_text
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.program.graph.node import NodeScope
    from plait.program.graph.spec import NodeForeach, NodeSpec

PREFIX = "tool:"
"""An optional prefix of tool ids, as in other systems."""


def full_tool_id(written: str, is_directive: bool) -> str:
    """The full id of a tool or directive."""
    return (
        f"{DIRECTIVE}{written.removeprefix(DIRECTIVE)}"
        if is_directive
        else written.removeprefix(PREFIX)
    )


@dataclass(frozen=True, slots=True)
class NodeCall:
    tool: str | Template
    params: Template | None = None
    """A map of parameters."""
    cached: bool = False
    """Cache the result in the project: an equal call of the same tool is not repeated."""
    key: str = ""
    """The text of the author: part of the cache key."""
    fingerprint: str = ""
    """Covers the call alone: a change of assign or edges does not repeat it."""
    is_directive: bool = False
    """The id is always that of a directive, whatever value fills it."""

    def source_text(self) -> str:
        """The text of the author."""
        named = self.tool if isinstance(self.tool, str) else self.tool.leaf.source.text
        written = [leaf.source.text for leaf in self.params.leaves()] if self.params else []
        return " ".join([named, *written])


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Shell text instead of a tool; its values are bound, like in a step."""

    action: ShellAction
    fingerprint: str = ""

    def source_text(self) -> str:
        """The text of the author."""
        return self.action.script.leaf.source.text


Action: TypeAlias = NodeCall | ShellCall


def call_result(
    call: Action, ctx: StepContext, names: NodeScope, *, strict: bool
) -> dict[str, Json]:
    """Execute the call and return `result`; raises StepError if it fails."""
    if isinstance(call, ShellCall):
        return unwrap_result(act(replace(call.action, strict=strict, values=names), ctx))
    tool_id = _tool_id(call, names, strict=strict)
    params = _params(call, tool_id, ctx, names, strict=strict)
    if not call.cached:
        return unwrap_result(call_tool_step(ctx, tool_id, params))
    return _once(call, ctx, tool_id, params)


def describe_call(call: Action, ctx: StepContext, names: NodeScope, *, strict: bool) -> str:
    """The call with its parameters filled in, for a plan."""
    if isinstance(call, ShellCall):
        return replace(call.action, strict=strict).bind(names).shown
    tool_id = _tool_id(call, names, strict=strict)
    params = _params(call, tool_id, ctx, names, strict=strict)
    return f"{tool_id} {json_text(dict(params))}" if params else tool_id


def _tool_id(call: NodeCall, names: NodeScope, *, strict: bool) -> str:
    named = (
        call.tool if isinstance(call.tool, str) else render_text(call.tool, names, strict=strict)
    )
    return full_tool_id(named, call.is_directive)


def _params(
    call: NodeCall, tool_id: str, ctx: StepContext, names: NodeScope, *, strict: bool
) -> Mapping[str, Json]:
    if call.params is None:
        return {}
    return drop_nulls(
        require_mapping(tool_id, fill_params(ctx, tool_id, call.params, names, strict=strict))
    )


def drop_nulls(value: Mapping[str, Json]) -> dict[str, Json]:
    """Remove null entries from nested maps; lists keep their length."""
    return {
        name: drop_nulls(inner) if isinstance(inner, dict) else inner
        for name, inner in value.items()
        if inner is not None
    }


def unwrap_result(ended: Mapping[str, Json]) -> dict[str, Json]:
    """The `result` of a call."""
    match ended.get("output"):
        case dict() as fields:
            return _drop_newlines(fields)
        case None:
            return {}
        case str() | int() | float() as output:
            printed = strip_newlines(output)
            facts = {name: ended[name] for name in ("stderr", "exit_code") if name in ended}
            return _drop_newlines({"result": printed, "stdout": printed, **facts})
        case other:
            return {"result": other}


def _drop_newlines(fields: dict[str, Json]) -> dict[str, Json]:
    """The fields of a result; what a process printed has no newlines at its end."""
    return {
        name: strip_newlines(value) if name in _STREAMS else value for name, value in fields.items()
    }


_STREAMS: Final = ("stdout", "stderr")

# ── cached calls ─────────────────────────────────────────────────────────


def _once(
    call: NodeCall, ctx: StepContext, tool_id: str, params: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the cached result of an equal call of the same tool in this project, or make the call."""
    run = ctx.run
    digest = run.services.get(Tools).digest(tool_id)
    if digest is None:
        return unwrap_result(call_tool_step(ctx, tool_id, params))
    from plait.core.digests import sha256_hex

    asked = json_text([call.key, tool_id, digest, dict(params)], reveal=True)
    key = sha256_hex(asked.encode("utf-8", "surrogatepass"))
    known = run.services.get(Results).recall(key)
    if isinstance(known, dict):
        return known
    result = unwrap_result(call_tool_step(ctx, tool_id, params))
    run.services.get(Results).keep(key, result)
    return result


# ── calls for each item ──────────────────────────────────────────────────


def call_for_each(
    loop: NodeForeach,
    call: Action,
    node: NodeSpec,
    ctx: StepContext,
    names: NodeScope,
    *,
    strict: bool,
) -> dict[str, Json]:
    """Return `{results, total, failed}`; raises StepError if an item failed, unless `keeps_going`."""
    # Rendered as JSON: a value that contains a secret is a secret.
    found = render_json_value(loop.over, names, strict=strict)
    if not isinstance(found, list):
        raise StepError(Failure("foreach needs a list, but 'over' is not a list", "refused"))
    items: list[Json] = list(copy_shared(found))
    policy = Policy(retry=node.policy.retry, keep_failure=loop.keeps_going)

    def item_step(order: int, item: Json) -> Step:
        # The item is also in `state`, as in other systems.
        state = {**names.names["state"], loop.name: item}
        seen = names.with_names(**{loop.name: item, "state": state})
        return ItemStep(
            item_name(order),
            "item",
            ctx.run.secrets.mask_title(item_title(item)),
            call.fingerprint,
            FunctionAction(lambda ctx: call_result(call, ctx, seen, strict=strict)),
            policy,
            retry_scope="inner",
        )

    # Calls read `names`; hooks read the scope.
    has_hooks = not ctx.run.hooks.is_empty
    outcomes, _ = perform_items(
        ctx,
        [item_step(order, item) for order, item in enumerate(items)],
        parallel=loop.parallel,
        keeps_going=loop.keeps_going,
        on_empty=loop.on_empty,
        what=f"node '{node.name}'",
        why="the list of 'over' is empty",
        scope=lambda at: ctx.scope.child(item=deep_copy(items[at])) if has_hooks else None,
    )
    failures = [
        (order, one.failure) for order, one in enumerate(outcomes) if isinstance(one, Failed)
    ]
    if failures:
        some = f"{len(failures)} of {len(items)} items failed"
        if not loop.keeps_going:
            order, first = failures[0]
            message = f"{some}; item {order}: {first.message}"
            raise StepError(replace(first, message=message, output=None))
        ctx.run.events.note(ctx.path, f"node '{node.name}': {some}")
    results = [_entry(order, one) for order, one in enumerate(outcomes)]
    return {"results": results, "total": len(items), "failed": len(failures)}


def _entry(order: int, outcome: Outcome) -> Json:
    match outcome:
        case Succeeded(value):
            return value
        case Failed(failure):
            return error_entry(failure, order)
    return None


def error_entry(failure: Failure, order: int) -> dict[str, Json]:
    return {"status": "error", "error": failure.message, "kind": failure.kind, "index": order}


class ItemStep(LeafStep):
    """A leaf with a result for the case that a hook ignores its failure."""

    __slots__ = ()

    def value_after_failure(self, failure: Failure) -> Json:
        """The same entry as in a loop that keeps going."""
        return error_entry(failure, int(name_key(self.name)))
