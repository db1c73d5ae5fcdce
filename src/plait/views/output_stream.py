"""The output of a run as it comes: whole lines, each with the item or step that printed it.

    a.txt  | 3 lines
    b.txt  | no such file

`plait run -v` and `plait logs -f` print it.  What a step printed last and no watcher has seen comes
with its end, so every line is printed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from plait.core.hints import Final, Protocol
from plait.core.values import Json
from plait.engine.events import (
    Event,
    ModelText,
    RunStarted,
    StepFinished,
    StepOutput,
    StepRetrying,
    StepStarted,
)
from plait.engine.live_output import MODEL
from plait.engine.outcome import Failed, Succeeded
from plait.engine.paths import is_at_or_below, is_item, parent_path
from plait.views.following import EventSource, follow_journal
from plait.views.format import Line, clean_block, one_line
from plait.views.log import EntryReader, LogEntry, entry_lines, entry_state, is_wanted, loss_lines
from plait.views.parts import TURN

WIDEST_PREFIX: Final = 24
LONGEST_LINE: Final = 1 << 16
"""Characters of a line without an end after which it is printed in parts."""
RECORDED: Final = {"stdout": "output", "stderr": "stderr", MODEL: "text"}
"""By stream: the field of the record that has all of it."""


class _Shown:
    """How much of a stream was seen, and the beginning of a line that has no end yet."""

    __slots__ = ("count", "held")

    def __init__(self) -> None:
        self.count = 0
        self.held = ""

    def add(self, text: str) -> list[str]:
        self.count += len(text)
        whole, newline, self.held = (self.held + text).rpartition("\n")
        if len(self.held) > LONGEST_LINE:
            whole, newline, self.held = whole + newline + self.held, "\n", ""
        return clean_block(whole).split("\n") if newline else []

    def finish(self) -> list[str]:
        text, self.held = self.held, ""
        return clean_block(text).split("\n") if text else []


class OutputStream:
    """Makes lines of the events of a run, in their order."""

    def __init__(self) -> None:
        self._reader = EntryReader()
        self._titles: dict[str, str] = {}
        """By path: of steps that run."""
        self._shown: dict[str, dict[str, _Shown]] = {}
        self._attempts: dict[str, int] = {}
        """By path: the attempt that runs, if it is not the first."""
        self._width = 0

    def is_running(self, path: str) -> bool:
        return path in self._titles

    def lines(self, event: Event) -> Iterator[Line]:
        match event:
            case RunStarted():
                for known in (self._titles, self._shown, self._attempts):
                    known.clear()
            case StepStarted(path=path, title=title):
                self._titles[path] = title
            case StepOutput(path, stream, text):
                yield from self._piece(path, stream, text)
            case ModelText(path, text):
                yield from self._piece(path, MODEL, text)
            case StepFinished():
                self.expect(event)
        entry = self._reader.read(event, None)
        if entry is not None:
            yield from self._rest(entry)
        match event:
            case StepRetrying(path=path, attempt=attempt):
                self._forget(path)
                self._attempts[path] = attempt + 1
            case StepFinished(path=path):
                self._forget(path)
                self._titles.pop(path, None)
                self._attempts.pop(path, None)

    def expect(self, following: Event) -> None:
        """The start of a list that ends with its last step is not recorded: its end has the title."""
        if isinstance(following, StepFinished):
            self._titles.setdefault(following.path, following.title)

    def piece_at(self, output: StepOutput, at: int) -> Iterator[Line]:
        """The lines of a piece that may have been seen; `at` characters came before it."""
        if output.attempt < self._attempts.get(output.path, 1):
            return
        shown = self._shown.get(output.path, {}).get(output.stream)
        seen = (0 if shown is None else shown.count) - at
        if seen < len(output.text):
            yield from self._piece(output.path, output.stream, output.text[max(seen, 0) :])

    def _piece(self, path: str, stream: str, text: str) -> Iterator[Line]:
        shown = self._shown.setdefault(path, {}).setdefault(stream, _Shown())
        yield from self._add_prefix(path, shown.add(text), "")

    def _rest(self, entry: LogEntry) -> Iterator[Line]:
        """What an attempt printed and nobody has seen, and why it failed."""
        path, shown = entry.path, self._shown.get(entry.path, {})
        value = _record(entry)
        if (shown or "exit_code" in value) and not entry.contains_others:
            is_turn = entry.kind == TURN  # what a prompt records as its output are the same words
            for stream in [MODEL] if is_turn else dict.fromkeys([*shown, "stdout", "stderr"]):
                text, one = value.get(RECORDED[stream]), shown.get(stream, _Shown())
                rest = text[one.count :] if isinstance(text, str) else ""
                yield from self._add_prefix(path, one.add(rest) + one.finish(), "")
            yield from self._add_prefix(path, loss_lines(value), "")
        else:
            yield from self._add_prefix(path, entry_lines(entry), "")
        if isinstance(entry.outcome, Failed):
            state, colour = entry_state(entry)
            yield from self._add_prefix(path, [state], colour)

    def _add_prefix(self, path: str, lines: Iterable[str], colour: str) -> Iterator[Line]:
        name = self._name(path)
        self._width = max(self._width, len(name))
        for line in lines:
            yield f"{name:{self._width}} | {line}".rstrip(), colour

    def _name(self, path: str) -> str:
        """The title of the item that a step belongs to, or of the step."""
        own = path
        while path:
            if is_item(path) and path in self._titles:
                return one_line(self._titles[path], WIDEST_PREFIX)
            path = parent_path(path)
        return one_line(self._titles.get(own, own), WIDEST_PREFIX)

    def _forget(self, path: str) -> None:
        for known in [one for one in self._shown if is_at_or_below(one, path)]:
            del self._shown[known]


def _record(entry: LogEntry) -> dict[str, Json]:
    match entry.outcome:
        case Succeeded(dict(value)):
            if entry.kind == TURN and "text" not in value:
                return {**value, "text": value.get("output")}
            return value
        case Failed(failure) if isinstance(failure.output, dict):
            return failure.output
        case _:
            return {}


# ── a run of another process ─────────────────────────────────────────────


class OutputSource(Protocol):
    """The file with the output of running steps."""

    def new_pieces(self) -> Iterator[tuple[StepOutput, int]]: ...


def follow(
    journal: EventSource,
    output: OutputSource,
    *,
    is_running: Callable[[], bool],
    wanted: Callable[[], list[str] | None],
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[Line]:
    """The output of a run until it ends; of `wanted` paths and those below them, None: of all."""
    stream = OutputStream()
    early: list[tuple[StepOutput, int]] = []
    for look in follow_journal(journal, is_running=is_running, pause=pause):
        paths: list[str] | None = None
        has_paths = False
        records = list(look)
        for record, following in zip_longest(records, records[1:]):
            if following is not None:
                stream.expect(following.event)
            if not has_paths:
                paths, has_paths = wanted(), True
            lines = list(stream.lines(record.event))
            if is_wanted(getattr(record.event, "path", ""), paths):
                yield from lines
        pieces, early = [*early, *output.new_pieces()], []
        for piece, at in pieces:
            if not has_paths:
                paths, has_paths = wanted(), True
            if not stream.is_running(piece.path):
                early.append((piece, at))  # its start may have been recorded just now
            elif is_wanted(piece.path, paths):
                yield from stream.piece_at(piece, at)
        early = early[-100:]
