"""The request that a run stops, as Ctrl-C makes it (cli/signals.py); steps and processes look at it."""

from __future__ import annotations

import threading

from plait.engine.outcome import Interrupted


class StopSignal:
    """A request to stop: once means start nothing new and end what runs; twice means at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.at_once = False
        self.why = ""

    def ask(self, why: str = "interrupted") -> None:
        self.at_once = self._event.is_set()
        self.why = self.why or why
        self._event.set()

    def forget(self) -> None:
        """Clear the request: only one model response was to stop, not the run."""
        self._event.clear()
        self.at_once, self.why = False, ""

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait; raises Interrupted as soon as the run is to stop."""
        if self._event.wait(seconds):
            raise Interrupted

    def require_unset(self) -> None:
        """Raises Interrupted if the run is to stop."""
        if self._event.is_set():
            raise Interrupted
