"""A run on a terminal: a frame that is drawn ten times a second, and failures and notes above it.

Only this module and `frame` load `rich`; they are loaded only for a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, RLock

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from plait.core.hints import Final
from plait.engine.events import EventRecord
from plait.views.format import write_lines
from plait.views.frame import frame
from plait.views.lines import stopping_line
from plait.views.parts import FailedStep, NoteRow
from plait.views.progress import Progress, Update
from plait.views.summary import Result, summary_lines
from plait.views.terminal import wants_colour
from plait.views.text import LimitedOutput

FRAMES_PER_SECOND: Final = 10
ECHO: Final = "^C^C"
"""A terminal writes this after the last line.  A line that wraps because of it is not erased."""


class LiveView:
    """Draws a run on a terminal, and leaves the terminal as it was."""

    def __init__(
        self, console: Console | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self.progress = Progress()
        self.console = console or Console(
            highlight=False, markup=False, emoji=False, no_color=not wants_colour(sys.stdout)
        )
        self._ascii_only = not self.console.encoding.lower().startswith("utf")
        self._now = now
        # Held to read `progress`, never to print: rich has its own lock.
        self._lock = Lock()
        # Held to start, stop or print; the thread that draws never takes it.
        self._printing = RLock()
        self._held: list[Text] | None = None
        """Lines to print after `pause`."""
        self._limited = LimitedOutput()
        self._live: Live | None = None
        self._last_frame: tuple[int, list[int]] = (0, [])
        """The columns of the terminal at the last frame, and the cells of its lines."""

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def watch(self, record: EventRecord) -> None:
        with self._lock:
            updates = self.progress.add(record)
            lines = [line for update in updates for line in self._message_lines(update)]
        with self._printing:
            self._start()
            self._print(lines)

    def stopping(self, *, at_once: bool) -> None:
        with self._lock:
            line = stopping_line(self.progress, at_once=at_once)
        self._print([Text(line, "yellow")])

    @contextmanager
    def pause(self) -> Iterator[None]:
        with self._printing:
            self._stop()
            self._held = []
        try:
            yield
        finally:
            with self._printing:
                held, self._held = self._held, None
                self._start()
                self._print(held)

    def finish(self, result: Result) -> None:
        self._stop()
        write_lines(summary_lines(self.progress, result), sys.stdout)

    def _message_lines(self, update: Update) -> Iterator[Text]:
        if isinstance(update.row, FailedStep | NoteRow):
            colour = "red" if update.level == "failure" else "yellow"
            for line in self._limited.lines(update, self.progress):
                yield Text(f"  {line}", colour, no_wrap=True, overflow="ellipsis")

    def _print(self, lines: Sequence[Text]) -> None:
        with self._printing:
            if self._held is not None:
                self._held.extend(lines)
                return
            if lines and self._live is not None:
                self._live.refresh()  # rich prints above the frame as it was drawn last
            for line in lines:
                self.console.print(line)

    def _start(self) -> None:
        if self._live is None and self._held is None:
            self._live = Live(
                get_renderable=self._render_frame,
                console=self.console,
                refresh_per_second=FRAMES_PER_SECOND,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)

    def _stop(self) -> None:
        with self._printing:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def _render_frame(self) -> Group:
        size = self.console.size
        self._adjust_to_width(size.width)
        with self._lock:
            lines = frame(
                self.progress,
                now=self._now(),
                width=size.width - len(ECHO),
                height=size.height - 1,
                ascii_only=self._ascii_only,
            )
        self._last_frame = (size.width, [line.cell_len for line in lines])
        return Group(*lines)

    def _adjust_to_width(self, columns: int) -> None:
        """A terminal that became narrower has wrapped the last frame: erase the additional lines."""
        before, cells_of_lines = self._last_frame
        if self._live is None or not 0 < columns < before:
            return
        rows = sum(max(1, -(-cells // columns)) for cells in cells_of_lines)
        self._live._live_render._shape = (columns, rows)  # rich has no public name for it
