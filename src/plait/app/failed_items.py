"""`plait retry`: which items it starts again, and what of them no longer counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.documents.limits import one_printable_line
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING
from plait.engine.events import RETRY_REASON, StepInvalidated
from plait.engine.journal import record_number
from plait.engine.outcome import Failed
from plait.engine.paths import is_item, last_name, name_key
from plait.engine.replay import items_selected_at

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.engine.journal import Journal
    from plait.program.map import Map


def find_waiting_items(map_step: Map | None, opened: OpenRun) -> list[str]:
    """Return the paths of items that an earlier retry invalidated and that have not ended since."""
    if map_step is None:
        return []
    journal = opened.journal
    end = journal.step(map_step.name)
    after = max(
        items_selected_at(journal, map_step.name, map_step.items.name),
        0 if end is None or isinstance(end.outcome, Failed) else record_number(end),
    )
    retried = journal.reader.retried_items(map_step.name, after)
    return [path for path in retried if journal.step(path) is None]


def list_failed_items(map_step: Map, journal: Journal) -> list[tuple[str, str]]:
    """Return the paths and titles of the failed items."""
    selected_at = items_selected_at(journal, map_step.name, map_step.items.name)
    return [
        known
        for known in journal.failure_titles(map_step.name, after=selected_at)
        if is_item(known[0])
    ]


def find_failed_items(
    map_step: Map, journal: Journal, wanted: Sequence[str], waiting: Sequence[str]
) -> list[str]:
    """Return the paths of the failed items, all or those that are wanted.

    `waiting`: the paths of items that an earlier retry did not run.
    """
    letters = list_failed_items(map_step, journal)
    letters += [(path, name_key(last_name(path))) for path in waiting]
    unknown = [one for one in wanted if not any(_is_called(known, one) for known in letters)]
    if unknown:
        guess = closest_name(unknown[0], [*map(_key, letters), *(title for _, title in letters)])
        raise InputError(
            f"no failed item is called {', '.join(map(repr, unknown))}",
            fix=f"did you mean '{one_printable_line(guess)}'?"
            if guess
            else "plait show lists the failed items",
            code="unknown-item",
        )
    return [
        known[0] for known in letters if not wanted or any(_is_called(known, one) for one in wanted)
    ]


def _key(letter: tuple[str, str]) -> str:
    return name_key(last_name(letter[0]))


def _is_called(letter: tuple[str, str], name: str) -> bool:
    """Is it a failed item with this path, key or title?"""
    return name in (_key(letter), *letter)


def invalidate_items(
    map_step: Map, items: Sequence[str], *, from_start: bool
) -> Iterator[StepInvalidated]:
    """Invalidate items, and their map."""
    yield StepInvalidated(map_step.name, "items are retried", below=False)
    for item in items:
        yield StepInvalidated(item, RETRY_REASON, below=from_start)
