"""A chat on two streams: the text of the model on one, everything else on the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.hints import Final, TextIO
from plait.engine.events import EventRecord, ModelText, Note, StepFinished, StepStarted
from plait.engine.limits import UsageSum
from plait.engine.outcome import Failure, Succeeded
from plait.views.format import clean_block, one_line, sign
from plait.views.lines import usage_line
from plait.views.parts import CALL
from plait.views.terminal import paint_for

PATIENCE: Final = 5.0
"""Seconds to wait for events that are not shown yet, before something else is written."""


class ChatView:
    """Writes text as the model sends it, and one line for each tool call, note and failure."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._out, self._err = stdout, stderr
        self._paint = paint_for(stderr)
        self._usage = UsageSum()
        self._shown = threading.Condition()
        self._answer_count = 0
        self._calls: set[str] = set()
        self._at_line_start = True
        self._writing = threading.Lock()
        self._is_asking = False
        self._held: list[tuple[str, str]] = []
        """Lines to write after a question."""
        self._failures: set[str] = set()

    def watch(self, record: EventRecord) -> None:
        """Called by one thread at a time."""
        self._usage.count(record.event)
        match record.event:
            case ModelText(text=""):
                with self._shown:
                    self._answer_count += 1
                    self._shown.notify_all()
            case ModelText(path=path, text=text) if path.count("/") == 1:
                self._write(clean_block(text))  # below are models that a hook or a call asks
            case StepStarted(kind=kind, title=title) if kind == CALL:
                self.line(f"· {one_line(title, None)}", "dim")
                with self._shown:
                    self._calls.add(title)
                    self._shown.notify_all()
            case StepFinished(
                kind=kind, outcome=Succeeded({"failed": True, "output": str(why)})
            ) if kind == CALL:
                self.line(f"  {one_line(why.splitlines()[0], None)}", "yellow")
            case Note(message=message):
                self.line(f"note: {one_line(message, None)}", "yellow")

    def wait_for_answer(self, number: int) -> None:
        """Wait until so many answers are shown."""
        with self._shown:
            self._shown.wait_for(lambda: self._answer_count >= number, PATIENCE)

    def wait_for_call(self, title: str) -> None:
        """Wait until a tool call is shown."""
        with self._shown:
            self._shown.wait_for(lambda: title in self._calls, PATIENCE)

    def line(self, text: str, colour: str) -> None:
        """Write a line that is not text of the model."""
        with self._writing:
            if self._is_asking:
                self._held.append((text, colour))
                return
            self.end_line()
            print(self._paint(text, colour), file=self._err, flush=True)

    def prompt(self, text: str) -> None:
        self._err.write(self._paint(text, "bold"))
        self._err.flush()

    def usage(self, after: str = "") -> None:
        self.line(f"{usage_line(self._usage)}{after}", "dim")

    def failure(self, failure: Failure) -> None:
        self._failures.add(failure.message)
        self.end_line()
        text = f"{sign('failed')} {clean_block(failure.message)}"
        print(self._paint(text, "red"), file=self._err, flush=True)

    def has_shown(self, failure: Failure) -> bool:
        return failure.message in self._failures

    @contextmanager
    def question(self) -> Iterator[None]:
        """Hold other lines back until the person has answered."""
        with self._writing:
            self._is_asking = True
        try:
            yield
        finally:
            with self._writing:
                self._is_asking = False
                held, self._held = self._held, []
            for text, colour in held:
                self.line(text, colour)

    def end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")
