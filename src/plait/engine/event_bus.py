"""Who hears of events, and the signal that stops a run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from plait.core.hints import TYPE_CHECKING
from plait.engine.events import EventRecord

if TYPE_CHECKING:
    from plait.core.hints import Final


SYNC_PAUSE: Final = 0.02
"""Seconds between two syncs, while there is something to sync."""

Watch = Callable[[EventRecord], None]

Mask = Callable[[str], str]


class StopSignal:
    """The wish to stop: once is to begin nothing new and end what runs; twice is at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.at_once = False
        self.why = ""

    def ask(self, why: str = "interrupted") -> None:
        self.at_once = self._event.is_set()
        self.why = self.why or why
        self._event.set()

    def forget(self) -> None:
        """Go on: what was to end was one answer, and not the run."""
        self._event.clear()
        self.at_once, self.why = False, ""

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)
