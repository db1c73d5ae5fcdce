"""`foreach`: the same steps for the values of a list or for the lines of a command; a map inside a step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from plait.core.errors import PlaitError
from plait.core.hints import Final, Literal, TypeAlias
from plait.core.masking import mask_value
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, Json, Unknown, deep_copy
from plait.engine.backend import WorkItem
from plait.engine.journal import in_bitmap
from plait.engine.outcome import Failed, Failure, StepError, Succeeded
from plait.engine.paths import EACH, ITEMS, join_path
from plait.engine.perform import StepContext, act
from plait.engine.step import DEFAULT_POLICY, Composite, Policy, Step
from plait.engine.unknown_results import UNKNOWN_RESULT, is_unknown_result
from plait.program.actions.shell import ShellAction
from plait.program.capture import require_complete_output
from plait.program.item_list import OnEmpty, check_not_empty
from plait.program.map import ErrorPolicy, Map, item_results
from plait.program.map_progress import has_unknown_counts
from plait.program.step_list import StepList as Steps
from plait.scope import Scope
from plait.template.template import Template

PARALLEL: Final = 10
"""The number of parallel items for `parallel: true`."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A list of templates, or one template whose value is a list or text with one item per line."""

    template: Template
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CommandSource:
    """Shell text that prints one item per line."""

    script: Template
    shell: Literal["sh", "dash", "bash"] = "sh"
    strict: bool = False


Source: TypeAlias = ValueSource | CommandSource


def foreach(
    source: Source,
    each: Steps,
    *,
    fingerprint: str,
    items_fingerprint: str,
    title: str = "foreach",
    parallel: bool | int | Template = False,
    max_items: int | None = None,
    continue_on_error: bool = False,
    item_timeout: float | None = None,
    on_empty: OnEmpty = "warn",
) -> ForeachAction:
    """The action of a `foreach:` step; `items_fingerprint` covers the source of the items."""
    if isinstance(parallel, bool):
        parallel = PARALLEL if parallel else 1
    return ForeachAction(
        Map(
            name=EACH,
            items=ListItems(source, items_fingerprint, max_items, on_empty),
            steps=each,
            fingerprint=fingerprint,
            title=title,
            parallel=parallel,
            item_timeout=item_timeout,
            errors=ErrorPolicy(on_item_failure="dlq" if continue_on_error else "stop"),
        )
    )


@dataclass(frozen=True, slots=True)
class ForeachAction(Composite):
    map: Map

    @property
    def children(self) -> Sequence[Step]:
        return (self.map,)

    def run(self, ctx: StepContext) -> dict[str, Json]:
        began = time.monotonic()
        outcome = ctx.perform(self.map)
        if isinstance(outcome, Succeeded) and has_unknown_counts(outcome.value):
            return _plan_result(outcome.value, ctx)
        found = list(self._results(ctx))
        record: dict[str, Json] = {
            "output": [one["output"] for one in found],
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
        }
        if isinstance(outcome, Failed):
            raise StepError(_as_one(outcome.failure, found, record))
        failed = sum(one["status"] == "failed" for one in found)
        if failed:
            raise StepError(_as_one(_some_failed(failed, len(found), ctx), found, record))
        return record

    def _results(self, ctx: StepContext) -> Iterator[dict[str, Json]]:
        inner = ctx.child(self.map)
        written = ctx.run.journal.step(join_path(inner.path, self.map.items.name))
        value = getattr(written.outcome, "value", None) if written is not None else None
        return item_results(inner, self.map.items.read(value, inner))


def _plan_result(counts: dict[str, Json], ctx: StepContext) -> dict[str, Json]:
    if counts.get("failed"):
        raise StepError(_some_failed(counts["failed"], counts["total"], ctx))
    return dict(UNKNOWN_RESULT)


def _some_failed(failed: int, total: int, ctx: StepContext) -> Failure:
    return Failure(f"{failed} of {total} items failed", path=ctx.path)


def _as_one(failure: Failure, found: Sequence[dict[str, Json]], record: dict[str, Json]) -> Failure:
    """The failure of the foreach, with the error of the first failed item."""
    first = next((one for one in found if one["status"] == "failed"), None)
    message = failure.message if first is None else f"{failure.message}: {first['error']}"
    ended = {**record, "stderr": message, "exit_code": 1}
    return replace(failure, message=message, exit_code=1, output=ended)


@dataclass(frozen=True, slots=True)
class ListItems(Composite):
    """The step that finds the items of a foreach; they are its value."""

    source: Source
    fingerprint: str
    max_items: int | None = None
    on_empty: OnEmpty = "warn"
    name: str = ITEMS
    kind: str = ITEMS
    title: str = "the items"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> Json:
        match self.source:
            case ValueSource(template, strict):
                found = template.render(ctx.scope, strict=strict)
                # In a dry run, a text may contain placeholders that only a run can fill.
                is_open = ctx.run.is_dry_run and isinstance(found, str | Unknown)
                if is_open and _is_open(template, ctx.scope):
                    return NOT_KNOWN
                items = _as_list(found)
                why_empty = "the list is empty"
            case CommandSource(script, shell, strict):
                ended = act(ShellAction(script, shell, strict), ctx)
                if is_unknown_result(ended):
                    return NOT_KNOWN
                require_complete_output(ended, "output", use="a list of items")
                items = _lines(ended["output"]) if isinstance(ended.get("output"), str) else []
                why_empty = "the command prints no line"
        items = deep_copy(mask_value(items[: self.max_items], ctx.run.secrets.mask))
        check_not_empty(len(items), self.on_empty, ctx, "foreach", why_empty)
        return {"count": len(items), "items": items}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002 - the protocol's shape
        items = value.get("items") if isinstance(value, dict) else None
        for order, item in enumerate(items if isinstance(items, list) else ()):
            if not in_bitmap(without, order):
                yield WorkItem(order, str(order), item)


def _is_open(template: Template, scope: Scope) -> bool:
    """Whether a text contains placeholders that only a run can fill."""
    try:
        return isinstance(template.render(scope, strict=True), Unknown)
    except PlaitError:
        return True


def _as_list(found: Json) -> list[Json]:
    match found:
        case list():
            return found
        case str():
            return _lines(found)
    raise StepError(Failure("foreach needs a list or text, but the value is neither", "refused"))


def _lines(text: str) -> list[Json]:
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
