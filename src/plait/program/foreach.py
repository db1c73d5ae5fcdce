"""`foreach`: a step that is a small map, over a list, a value that is one, or the lines of a command.

The items are found once and recorded with the run, so that a resumed run goes on
with the very same ones; each knows `item`, `index` and `total`.  The output is
the list of what each item gave, in order.  One item that fails makes it fail; with
`continue_on_error` the other items are done first, and the flow goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from plait.core.errors import PlaitError
from plait.core.hints import Final, Literal, TypeAlias
from plait.core.masking import masked
from plait.core.records import dataclass, replace
from plait.core.values import Json, Unknown, detached
from plait.engine.backend import ItemWork
from plait.engine.dry_run import NOT_KNOWN_END
from plait.engine.hands import working
from plait.engine.journal import has_mark
from plait.engine.outcome import Failed, Failure, Outcome, StepError, expect_done
from plait.engine.perform import Turn, act, plans
from plait.engine.step import PLAIN, Policy, Step
from plait.program.actions.shell import Shell
from plait.program.capture import expect_whole
from plait.program.map import ErrorPolicy, Fan, results
from plait.program.on_empty import OnEmpty, expect_items
from plait.program.step_list import Sequence as Steps
from plait.scope import Scope
from plait.template.template import Template

PARALLEL: Final = 10
"""What `parallel: true` means."""


@dataclass(frozen=True, slots=True)
class Values:
    """A list whose elements are templates, or one value that is a list; of a text, its lines."""

    template: Template
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """Shell text that prints one item a line."""

    script: Template
    shell: Literal["sh", "dash", "bash"] = "sh"
    strict: bool = False


Source: TypeAlias = Values | Command


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
) -> Foreach:
    """The action of a `foreach:` step; `items_fingerprint` is that of what gives the items."""
    if isinstance(parallel, bool):
        parallel = PARALLEL if parallel else 1
    return Foreach(
        Fan(
            name="each",
            items=Listed(source, items_fingerprint, max_items, on_empty),
            each=each,
            fingerprint=fingerprint,
            title=title,
            parallel=parallel,
            item_timeout=item_timeout,
            errors=ErrorPolicy(on_item_failure="dlq" if continue_on_error else "stop"),
        )
    )


@dataclass(frozen=True, slots=True)
class Foreach:
    fan: Fan

    @property
    def inner(self) -> Sequence[Step]:
        return (self.fan,)

    @plans
    def run(self, turn: Turn) -> dict[str, Json]:
        began = time.monotonic()
        outcome = turn.perform(self.fan)
        if working(turn.run).rehearsal is not None:
            return _rehearsed(outcome, turn)
        found = list(self._results(turn))
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
            raise StepError(_as_one(_some_failed(failed, len(found), turn), found, record))
        return record

    def _results(self, turn: Turn) -> Iterator[dict[str, Json]]:
        mine = turn.inner(self.fan)
        written = turn.run.journal.recorded(f"{mine.path}/{self.fan.items.name}")
        value = getattr(written.outcome, "value", None) if written is not None else None
        return results(mine, self.fan.items.read(value, mine))


def _rehearsed(outcome: Outcome, turn: Turn) -> dict[str, Json]:
    counts = expect_done(outcome)
    if isinstance(counts, dict) and counts.get("failed"):
        raise StepError(_some_failed(counts["failed"], counts["total"], turn))
    return dict(NOT_KNOWN_END)


def _some_failed(failed: int, total: int, turn: Turn) -> Failure:
    return Failure(f"{failed} of {total} items failed", path=turn.path)


def _as_one(failure: Failure, found: Sequence[dict[str, Json]], record: dict[str, Json]) -> Failure:
    """The failure of the whole: that of the item which failed first."""
    first = next((one for one in found if one["status"] == "failed"), None)
    message = failure.message if first is None else f"{failure.message}: {first['error']}"
    ended = {**record, "stderr": message, "exit_code": 1}
    return replace(failure, message=message, exit_code=1, output=ended)


@dataclass(frozen=True, slots=True)
class Listed:
    """The step that finds the items; they are its value."""

    source: Source
    fingerprint: str
    max_items: int | None = None
    on_empty: OnEmpty = "warn"
    name: str = "items"
    kind: str = "items"
    title: str = "the items"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    @plans
    def run(self, turn: Turn) -> Json:
        rehearsed = working(turn.run).rehearsal is not None
        match self.source:
            case Values(template, strict):
                found = template.render(turn.scope, strict=strict)
                if rehearsed and isinstance(found, str | Unknown) and _is_open(template, turn.scope):
                    return {"count": None}
                items = _as_list(found)
            case Command(script, shell, strict):
                items = _printed(Shell(script, shell, strict), turn)
                if rehearsed:
                    return {"count": None}  # only a run will know
        items = detached(masked(items[: self.max_items], turn.run.mask))
        expect_items(len(items), self.on_empty, turn, "foreach", self._why_empty())
        return {"count": len(items), "items": items}

    def _why_empty(self) -> str:
        return "the command prints no line" if isinstance(self.source, Command) else "the list is empty"

    def read(self, value: Json, turn: Turn, *, without: bytes = b"") -> Iterator[ItemWork]:  # noqa: ARG002 - the protocol's shape
        items = value.get("items") if isinstance(value, dict) else None
        for order, item in enumerate(items if isinstance(items, list) else ()):
            if not has_mark(without, order):
                yield ItemWork(order, str(order), item)


def _is_open(template: Template, scope: Scope) -> bool:
    """Is there something in a text that only a run can fill?"""
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
    raise StepError(
        Failure("foreach goes over a list or the lines of a text, and the value is neither", "refused")
    )


def _printed(command: Shell, turn: Turn) -> list[Json]:
    ended = act(command, turn)
    assert isinstance(ended, dict), "it is how an action ended"
    expect_whole(ended, "output", use="a list of items")
    output = ended.get("output")
    return _lines(output) if isinstance(output, str) else []


def _lines(text: str) -> list[Json]:
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
