"""A run as plain lines, or without output: the views that need no terminal.

A line is complete when it is written.  Names and messages of a run come from files and programs,
so control characters in them are replaced: nothing can drive a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Lock

from plait.core.hints import Final, TextIO
from plait.engine.events import (
    EventRecord,
    ItemsCounted,
    RunStarted,
    StepFinished,
    StepRetrying,
    StepStarted,
)
from plait.views.format import nth_attempt, one_line, write_lines
from plait.views.lines import (
    failure_line,
    note_line,
    outcome_words,
    part_figures,
    part_summary,
    row_line,
    stopping_line,
)
from plait.views.parts import CALL, TURN, FailedStep, NoteRow, Part, Row
from plait.views.progress import Progress, Update
from plait.views.summary import Result, project_option, summary_lines
from plait.views.terminal import pluralize

PROGRESS_PAUSE: Final = 10.0
"""Seconds between two lines about the progress of a part."""
MOST_PRINTED: Final = 50
"""Failures, and notes, that are printed when they happen.  All are counted."""
WITHOUT_START: Final = frozenset({TURN, CALL, "gate", "return"})
"""Kinds of steps that print a line only when they end."""


class PlainView:
    """Starts and ends of parts and steps, failures, and the progress from time to time."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
        self._stream = stream
        self._lock = Lock()
        self._limited = LimitedOutput()
        self._shown_at: dict[str, float] = {}
        """By part: when its progress was printed last."""

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, record: EventRecord) -> None:
        with self._lock:
            for update in self.progress.add(record):
                for line in self._lines(update, record.at):
                    print(line, file=self._stream, flush=True)

    def stopping(self, *, at_once: bool) -> None:
        with self._lock:
            print(stopping_line(self.progress, at_once=at_once), file=self._stream, flush=True)

    def pause(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        write_lines(summary_lines(self.progress, result), self._stream)

    def _lines(self, update: Update, at: float) -> Iterator[str]:
        match update:
            case Update("item", part=Part() as part):
                if at - self._shown_at.get(part.name, at - PROGRESS_PAUSE) >= PROGRESS_PAUSE:
                    self._shown_at[part.name] = at
                    figures = "  ".join(part_figures(self.progress, part, at))
                    yield f"{one_line(part.name)}: {figures}"
            case Update(row=FailedStep() | NoteRow()):
                yield from self._limited.lines(update, self.progress)
            case _:
                if update.level == "part" and isinstance(update.event, StepStarted):
                    self._shown_at[update.event.path] = at
                yield from update_lines(update, self.progress)


def update_lines(update: Update, progress: Progress) -> Iterator[str]:
    """The lines of one update; an item and the end of a run have none."""
    name = "" if update.part is None else one_line(update.part.name)
    match update:
        case Update("run", RunStarted() as event):
            resumed = ", resumed" if event.resumed else ""
            run, file = one_line(progress.run), one_line(progress.file)
            yield f"{one_line(progress.flow)}: run {run}{resumed}, {file}"
        case Update("part", StepStarted()):
            yield f"{name}: started"
        case Update("part", ItemsCounted() as event):
            yield f"{name}: {pluralize(event.total, 'item')}"
        case Update("part", part=Part() as part):
            yield f"{name}: {part_summary(part)}"
        case Update("step", StepStarted() as event):
            if event.kind not in WITHOUT_START:
                yield f"{name}: {one_line(event.title)}: started"
        case Update("step", StepRetrying() as event, row=Row() as row):
            attempt = nth_attempt(event.attempt, event.of)
            cause = one_line(row.cause)
            yield f"{one_line(row.title)}: {attempt} failed ({cause}), retry in {event.delay:.3g} s"
        case Update("step", StepFinished() as event):
            yield f"{name}: {one_line(event.title)}: {outcome_words(event)}"
        case Update("row", row=Row() as row):
            inside = f"{one_line(row.inside)}: " if row.inside else ""
            yield f"{name}: {inside}{row_line(row)}"
        case Update("failure", row=FailedStep() as failed):
            yield failure_line(failed)
        case Update("note", row=NoteRow() as note):
            yield note_line(note)


class LimitedOutput:
    """The lines of failures and notes, until there are too many."""

    def __init__(self) -> None:
        self._printed = {"failure": 0, "note": 0}

    def lines(self, update: Update, progress: Progress) -> Iterator[str]:
        if isinstance(update.row, FailedStep) and update.row.replayed:
            return  # the run attempt in which it failed has shown it
        level = update.level
        self._printed[level] += 1
        if self._printed[level] <= MOST_PRINTED:
            yield from update_lines(update, progress)
        elif self._printed[level] == MOST_PRINTED + 1:
            command = f"plait show {one_line(progress.run)}{project_option(progress)}"
            yield f"more {level}s are counted and not printed: {command}"


class QuietView:
    """Nothing, unless the run fails; then the last lines."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
        self._stream = stream

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, record: EventRecord) -> None:
        self.progress.add(record)

    def stopping(self, *, at_once: bool) -> None:
        print(stopping_line(self.progress, at_once=at_once), file=self._stream, flush=True)

    def pause(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        if result.exit_code:
            write_lines(summary_lines(self.progress, result), self._stream)
