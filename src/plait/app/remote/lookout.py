"""A thread of a worker that stops errands which are wanted no longer: their run was stopped, or has died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from plait.core.hints import Final
from plait.engine.event_bus import Stop

LOOK: Final = 0.1
"""Seconds between two looks whether an errand is to stop."""
TIDY: Final = 5.0
"""Seconds between two looks whether anything can be put away."""


class Lookout:
    def __init__(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[Callable[[], bool], Stop]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="plait-lookout", daemon=True)
                self._thread.start()

    def add(self, is_unwanted: Callable[[], bool], stop: Stop) -> int:
        self.begin()
        with self._lock:
            self._number += 1
            self._watched[self._number] = (is_unwanted, stop)
            return self._number

    def remove(self, number: int) -> None:
        with self._lock:
            self._watched.pop(number, None)

    def _look(self) -> None:
        tidied = time.monotonic()
        while True:
            threading.Event().wait(LOOK)
            with self._lock:
                watched = list(self._watched.values())
            for is_unwanted, stop in watched:
                if not stop.is_set() and is_unwanted():
                    stop.ask("cancelled")
            if time.monotonic() - tidied > TIDY:
                tidied = time.monotonic()
                self._tidy()
