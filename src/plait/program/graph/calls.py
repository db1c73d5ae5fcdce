"""The action of a node: a tool or shell text, once or for each of some items.

What a tool gave is unwrapped for `result`: a map is taken as it is, with every field of the
tool's own; anything else is `result.result`, and of text and numbers also `result.stdout`.
A parameter that is null is left away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.agents.permissions import DIRECTIVE
from plait.core.hints import TYPE_CHECKING, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json, copy_shared, deep_copy, json_text
from plait.engine.events import ItemsCounted
from plait.engine.outcome import Failed, Failure, Outcome, StepError, Succeeded
from plait.engine.perform import StepContext, act
from plait.engine.step import FunctionAction, LeafStep, Policy, Step
from plait.program.actions.shell import ShellAction
from plait.program.actions.tool import call_tool_step, fill_params, require_mapping
from plait.program.map import item_title
from plait.program.on_empty import check_not_empty
from plait.program.ports import Results, Tools
from plait.template.sinks import render_json_value, render_text
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.program.graph.node import NodeScope
    from plait.program.graph.walk import NodeForeach, NodeSpec

PREFIX = "tool:"
"""What other systems write before the id of a tool."""


def whole_id(written: str, is_directive: bool) -> str:
    """The id by which a tool, or a directive, is called."""
    return (
        f"{DIRECTIVE}{written.removeprefix(DIRECTIVE)}"
        if is_directive
        else written.removeprefix(PREFIX)
    )


@dataclass(frozen=True, slots=True)
class NodeCall:
    tool: str | Template
    params: Template | None = None
    """A map of them."""
    cached: bool = False
    """The same call of the same tool is made once in a project."""
    key: str = ""
    """What its author wrote: part of the key of what is cached."""
    fingerprint: str = ""
    """Of the call alone: what follows it may change, and it is not made again for that."""
    is_directive: bool = False
    """Whatever the id is filled in with, it is that of a directive."""

    def source_text(self) -> str:
        """As its author wrote it."""
        named = self.tool if isinstance(self.tool, str) else self.tool.leaf.source.text
        written = [leaf.source.text for leaf in self.params.leaves()] if self.params else []
        return " ".join([named, *written])


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Shell text instead of a tool: its values are bound, as in a step."""

    action: ShellAction
    fingerprint: str = ""

    def source_text(self) -> str:
        """As its author wrote it."""
        return self.action.script.leaf.source.text


Action: TypeAlias = NodeCall | ShellCall


def call_result(
    call: Action, ctx: StepContext, names: NodeScope, *, strict: bool
) -> dict[str, Json]:
    """What the action gave, unwrapped; StepError if it failed."""
    if isinstance(call, ShellCall):
        return unwrap_result(act(replace(call.action, strict=strict, values=names), ctx))
    tool_id = _tool_id(call, names, strict=strict)
    params = _params(call, tool_id, ctx, names, strict=strict)
    if not call.cached:
        return unwrap_result(call_tool_step(ctx, tool_id, params))
    return _once(call, ctx, tool_id, params)


def describe_call(call: Action, ctx: StepContext, names: NodeScope, *, strict: bool) -> str:
    """What would be called, with its parameters put in."""
    if isinstance(call, ShellCall):
        return replace(call.action, strict=strict).bind(names).shown
    tool_id = _tool_id(call, names, strict=strict)
    params = _params(call, tool_id, ctx, names, strict=strict)
    return f"{tool_id} {json_text(dict(params))}" if params else tool_id


def _tool_id(call: NodeCall, names: NodeScope, *, strict: bool) -> str:
    named = (
        call.tool if isinstance(call.tool, str) else render_text(call.tool, names, strict=strict)
    )
    return whole_id(named, call.is_directive)


def _params(
    call: NodeCall, tool_id: str, ctx: StepContext, names: NodeScope, *, strict: bool
) -> Mapping[str, Json]:
    if call.params is None:
        return {}
    return drop_nulls(
        require_mapping(tool_id, fill_params(ctx, tool_id, call.params, names, strict=strict))
    )


def drop_nulls(value: Mapping[str, Json]) -> dict[str, Json]:
    """Without the entries that are null, at any depth of maps; lists stay as long as they are."""
    return {
        name: drop_nulls(inner) if isinstance(inner, dict) else inner
        for name, inner in value.items()
        if inner is not None
    }


def unwrap_result(ended: Mapping[str, Json]) -> dict[str, Json]:
    """`result`, of how a call ended."""
    match ended.get("output"):
        case dict() as fields:
            return fields
        case None:
            return {}
        case str() | int() | float() as printed:
            facts = {name: ended[name] for name in ("stderr", "exit_code") if name in ended}
            return {"result": printed, "stdout": printed, **facts}
        case other:
            return {"result": other}


# ── calls that are made once ─────────────────────────────────────────────


def _once(
    call: NodeCall, ctx: StepContext, tool_id: str, params: Mapping[str, Json]
) -> dict[str, Json]:
    """The result of an equal call of the very same tool, if there was one in this project."""
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


def performed_items(
    loop: NodeForeach,
    call: Action,
    node: NodeSpec,
    ctx: StepContext,
    names: NodeScope,
    *,
    strict: bool,
) -> dict[str, Json]:
    """`{results, total, failed}`; StepError if an item failed, unless the graph goes on from
    that.
    """
    items = _items(loop, names, strict=strict)
    ctx.run.events.emit(ItemsCounted(ctx.path, len(items)))
    check_not_empty(
        len(items), loop.on_empty, ctx, f"node '{node.name}'", "the list of 'over' is empty"
    )
    steps = [
        _item_step(order, item, loop, call, node, ctx, names, strict)
        for order, item in enumerate(items)
    ]
    # What a call is given it has from its names; hooks ask the scope.
    has_hooks = not ctx.run.hooks.is_empty
    outcomes, _ = ctx.perform_many(
        steps,
        parallel=loop.parallel,
        scope=lambda at: ctx.scope.child(item=deep_copy(items[at])) if has_hooks else None,
        stops=lambda outcome: not loop.keeps_going and isinstance(outcome, Failed),
    )
    ended = dict(enumerate(outcomes))
    failures = [
        (order, one.failure) for order, one in sorted(ended.items()) if isinstance(one, Failed)
    ]
    if failures and not loop.keeps_going:
        raise StepError(_as_one(failures, len(items)))
    if failures:
        ctx.run.events.note(
            ctx.path, f"node '{node.name}': {len(failures)} of {len(items)} items failed"
        )
    results = [_entry(order, ended[order]) for order in range(len(items))]
    return {"results": results, "total": len(items), "failed": len(failures)}


def _items(loop: NodeForeach, names: NodeScope, *, strict: bool) -> list[Json]:
    found = render_json_value(loop.over, names, strict=strict)  # what a secret is part of is one
    if isinstance(found, list):
        return list(copy_shared(found))
    raise StepError(
        Failure("foreach goes over a list, and what 'over' leads to is none", "refused")
    )


def _entry(order: int, outcome: Outcome) -> Json:
    match outcome:
        case Succeeded(value):
            return value
        case Failed(failure):
            return error_entry(failure, order)
    return None


def error_entry(failure: Failure, order: int) -> dict[str, Json]:
    return {"status": "error", "error": failure.message, "kind": failure.kind, "index": order}


def _as_one(failures: Sequence[tuple[int, Failure]], total: int) -> Failure:
    order, first = failures[0]
    message = f"{len(failures)} of {total} items failed; item {order}: {first.message}"
    return replace(first, message=message, output=None)


def _item_step(
    order: int,
    item: Json,
    loop: NodeForeach,
    call: Action,
    node: NodeSpec,
    ctx: StepContext,
    names: NodeScope,
    strict: bool,
) -> Step:
    """The action of a foreach for one of its items; its value is the result."""
    # By either name: other systems put the item into the state, and mean the item by that.
    state = {**names.names["state"], loop.name: item}
    seen = names.with_names(**{loop.name: item, "state": state})
    return ItemStep(
        f"item:{order}",
        "item",
        ctx.run.secrets.mask(item_title(item)),
        call.fingerprint,
        FunctionAction(lambda ctx: call_result(call, ctx, seen, strict=strict)),
        Policy(retry=node.policy.retry, keep_failure=loop.keeps_going),
        retry_scope="inner",
    )


class ItemStep(LeafStep):
    """A leaf that knows what it gives when a hook swallows its failure."""

    __slots__ = ()

    def value_after_failure(self, failure: Failure) -> Json:
        """The same as in a loop that keeps going."""
        return error_entry(failure, int(self.name.partition(":")[2]))
