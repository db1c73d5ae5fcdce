"""Which items of a fan count: those that ended behind the step that chose them.

Whoever edits what a fan goes through, and accepts that, has its items chosen anew.  What is
recorded of items of an older choice stays in the journal, and means nothing any more.
"""

from __future__ import annotations

from plait.core.hints import Final, Protocol
from plait.engine.journal import Recorded, number_of

CHOOSER: Final = "items"
"""The name, and the kind, of the step that chooses the items of a map."""


class Remembering(Protocol):
    def recorded(self, path: str) -> Recorded | None: ...


def chosen_at(journal: Remembering, fan: str, chooser: str = CHOOSER) -> int:
    """The event with which the items of a fan were chosen; 0 if nothing is known of that."""
    return number_of(journal.recorded(f"{fan}/{chooser}"))
