"""What a model says, told to those who watch while it says it; the journal keeps the whole answer."""

from __future__ import annotations

from plait.engine.context import Run
from plait.engine.events import Spoken


class Speaking:
    """The words of one answer."""

    def __init__(self, run: Run, path: str) -> None:
        self._run, self._path = run, path
        self._held = ""
        # A secret could come in two pieces, neither of which looks like one.
        self._by_line = run.mask is not str

    def hear(self, text: str) -> None:
        if self._by_line:
            whole, newline, self._held = (self._held + text).rpartition("\n")
            text = whole + newline
        self._tell(text)

    def finish(self) -> None:
        self._tell(self._held)
        self._held = ""

    def _tell(self, text: str) -> None:
        if text:
            self._run.tell(Spoken(self._path, self._run.mask(text)))
