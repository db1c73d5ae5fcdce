"""Where the items of a fan run.

A backend takes items as it has room for them, so that what waits is never more
than what runs; each outcome is handed back as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plait.engine.outcome import Outcome
from plait.hints import Protocol
from plait.records import dataclass
from plait.values import Json


@dataclass(frozen=True, slots=True)
class ItemWork:
    """One item: all that has to travel to where it runs."""

    order: int
    key: str
    item: Json


Perform = Callable[[ItemWork], Outcome]
Finished = Callable[[ItemWork, Outcome], None]


class Backend(Protocol):
    def run_items(
        self, items: Iterator[ItemWork], perform: Perform, finished: Finished, *, parallel: int
    ) -> None:
        """Perform every item, `parallel` at a time; `items` ends early when no more are wanted.

        `items` is asked and `finished` is called by one thread at a time.  The first
        exception ends the asking; it is raised when everything that runs has ended.
        """
