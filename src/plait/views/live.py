"""A run on a terminal: its parts, how far they are, what runs now; failures stay above.

The picture is drawn from `Progress` ten times a second and at most as large as the
terminal.  Nothing of it is kept but the last one; what is printed for good (failures,
notes, that the run stops) goes above it.  This module alone loads `rich`, and is itself
loaded for a terminal only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, RLock

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.engine.events import EventRecord
from plait.engine.limits import UsageTally
from plait.views.format import (
    clock,
    nth_attempt,
    one_line,
    pluralize,
    sign,
    state_colour,
    write_lines,
)
from plait.views.lines import (
    NOUNS,
    part_figures,
    row_state,
    stopping_line,
    usage_line,
    usage_words,
)
from plait.views.parts import AGENT, CALL, LISTED, TURN, FailedStep, NoteRow, Part, Row, RunningStep
from plait.views.progress import Progress, Update
from plait.views.summary import Result, summary_lines
from plait.views.text import LimitedOutput

FRAMES_PER_SECOND: Final = 10
WIDEST_BAR: Final = 30
NARROWEST_BAR: Final = 10
WIDEST_NAME: Final = 16
INDENT: Final = 6
ECHO: Final = "^C^C"
"""What a terminal shows of two Ctrl-C behind the last line: one that breaks is a row that nobody
erases.
"""
MOST_ROWS: Final = 10
"""Rows of an agent, a graph or an ensemble that are shown."""
BAR: Final = ("█", "░")
ASCII_BAR: Final = ("#", ".")


class LiveView:
    """Draws a run on a terminal, and leaves the terminal as it was."""

    def __init__(
        self, console: Console | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self.progress = Progress()
        self.console = console or Console(highlight=False, markup=False, emoji=False)
        self._ascii_only = not self.console.encoding.lower().startswith("utf")
        self._now = now
        # Only ever held to look at `progress`, never while something is printed: rich has a lock of
        # its own.
        self._lock = Lock()
        # Whoever begins, ends or prints; the thread that draws never needs it.
        self._printing = RLock()
        self._held: list[Text] | None = None
        """What is to be printed when the terminal is ours again."""
        self._limited = LimitedOutput()
        self._live: Live | None = None
        self._drawn_before: tuple[int, list[int]] = (0, [])
        """The columns of the terminal at the last picture, and those that its lines took."""

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def watch(self, record: EventRecord) -> None:
        with self._lock:
            updates = self.progress.add(record)
            lines = [line for update in updates for line in self._message_lines(update)]
        with self._printing:
            self._begin()
            self._print(lines)

    def stopping(self, *, at_once: bool) -> None:
        with self._lock:
            line = stopping_line(self.progress, at_once=at_once)
        self._print([Text(line, "yellow")])

    @contextmanager
    def aside(self) -> Iterator[None]:
        with self._printing:
            self._end()
            self._held = []
        try:
            yield
        finally:
            with self._printing:
                held, self._held = self._held, None
                self._begin()
                self._print(held)

    def finish(self, result: Result) -> None:
        self._end()
        write_lines(summary_lines(self.progress, result), sys.stdout)

    # ── the parts of those above ─────────────────────────────────────────

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
                self._live.refresh()  # what is above the picture is found by how it was drawn last
            for line in lines:
                self.console.print(line)

    def _begin(self) -> None:
        if self._live is None and self._held is None:
            self._live = Live(
                get_renderable=self._render_frame,
                console=self.console,
                refresh_per_second=FRAMES_PER_SECOND,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)

    def _end(self) -> None:
        with self._printing:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def _render_frame(self) -> Group:
        size = self.console.size
        self._mind_the_width(size.width)
        width = size.width - len(ECHO)
        with self._lock:
            lines = frame(
                self.progress,
                now=self._now(),
                width=width,
                height=size.height - 1,
                ascii_only=self._ascii_only,
            )
        self._drawn_before = (size.width, [line.cell_len for line in lines])
        return Group(*lines)

    def _mind_the_width(self, columns: int) -> None:
        """A terminal that became narrower has broken the lines of the last picture: more are to be
        erased.
        """
        before, taken = self._drawn_before
        if self._live is None or not 0 < columns < before:
            return
        rows = sum(max(1, -(-cells // columns)) for cells in taken)
        self._live._live_render._shape = (columns, rows)  # rich has no public name for it


# ── the picture ──────────────────────────────────────────────────────────


def frame(
    progress: Progress, *, now: float, width: int, height: int, ascii_only: bool = False
) -> list[Text]:
    """One line of the whole run, one of each part, and below those that run what runs in them."""
    picture = _Picture(progress, now, max(width - 1, 10), ascii_only)
    parts = list(progress.parts.values())
    lines = [picture.head()]
    room = height - 1 - len(parts)
    if room < 0:  # what is over makes room for what is not
        parts = [part for part in parts if part.state not in ("done", "skipped")][
            : max(height - 1, 1)
        ]
        room = height - 1 - len(parts)
    for part in parts:
        lines.append(picture.part(part))
        inner = list(picture.running(part, max(room, 0)))
        ended = list(picture.recent_rows(part, max(room - len(inner), 0)))
        room -= len(inner) + len(ended)
        lines += ended + inner
    return lines[: max(height, 1)]


@dataclass(frozen=True, slots=True)
class _Picture:
    progress: Progress
    now: float
    width: int
    ascii_only: bool

    def head(self) -> Text:
        progress = self.progress
        left = self._sign(progress.status)
        left.append(f" {one_line(progress.flow)}", "bold")
        left.append(f"  run {one_line(progress.run)}", "dim")
        return self._row(left, clock(progress.time(self.now)))

    def part(self, part: Part) -> Text:
        names = [cell_len(one_line(one, WIDEST_NAME)) for one in self.progress.parts]
        left = Text("  ").append_text(self._sign(self._state(part)))
        name = one_line(part.name, WIDEST_NAME)
        left.append(f" {name}{' ' * (max(names) - cell_len(name))}  ", "" if part.since else "dim")
        if part.group.is_map and not part.is_finding_items:
            time_spent = clock(part.duration) if part.duration is not None else ""
            return self._row(self._with_bar(left, part), time_spent)
        spent = part.time(self.now)
        left.append(self._steps(part), "dim")
        return self._row(left, "" if spent is None else clock(spent))

    def recent_rows(self, part: Part, room: int) -> Iterator[Text]:
        """The last steps of a part that lists them."""
        rows = list(part.rows)[-min(MOST_ROWS, room) :] if room else []
        yield from map(self._render_row, rows)

    def running(self, part: Part, room: int) -> Iterator[Text]:
        steps = self.progress.running(part)
        if room <= 0 or not steps or part.is_finding_items:
            return
        shown = steps if len(steps) <= room else steps[: room - 1]
        names = max((cell_len(one_line(step.title)) for step in shown), default=0)
        column = min(names, max(self.width // 3, 8))
        for step in shown:
            yield self._running(step, column)
        if len(shown) < len(steps):
            left = (
                " " * INDENT
                + f"{'...' if self.ascii_only else '…'} and {len(steps) - len(shown)} more"
            )
            yield self._row(Text(left, "dim"), "")

    # ── the parts of those above ─────────────────────────────────────────

    def _state(self, part: Part) -> str:
        stopped = self.progress.ended is not None and part.state == "running"
        return "interrupted" if stopped else part.state

    def _sign(self, state: str) -> Text:
        return Text(sign(state, ascii_only=self.ascii_only), state_colour(state))

    def _steps(self, part: Part) -> str:
        group = part.group
        total = group.total or group.outcome_count
        if part.is_finding_items:
            return "finding its items"
        if part.has_no_items_yet:
            return ""
        if part.kind == AGENT:
            return self._usage_text(part)
        noun = NOUNS.get(part.kind, "step")
        asked = f"   {usage_line(part.usage)}" if part.usage.turns and part.kind in LISTED else ""
        if part.replayed:
            return f"{pluralize(total, noun)}, replayed"
        if part.state == "running" and group.total:
            return f"{group.outcome_count} of {pluralize(total, noun)}{asked}"
        return pluralize(total, noun) + asked if total else ""

    def _usage_text(self, part: Part) -> str:
        """Of a part that is one agent: how far it is, and what it has taken."""
        if part.state != "running":
            return usage_line(part.usage) if part.usage.turns else ""
        top = next(iter(self.progress.running(part)), None)
        begun = 1 if top is not None and top.kind == TURN else 0
        return _turn_words(part.usage, part.usage.turns + begun)

    def _with_bar(self, left: Text, part: Part) -> Text:
        said = self._figures(part, self.width - left.cell_len)
        bar = min(WIDEST_BAR, self.width - left.cell_len - cell_len("   ".join(said)) - 10)
        if bar >= NARROWEST_BAR:
            left.append_text(self._bar(part, bar)).append("  ")
        for number, text in enumerate(said):
            left.append("   " if number else "")
            left.append(text, "red" if text.endswith("failed") else "")
        return left

    def _figures(self, part: Part, room: int) -> list[str]:
        """As many as fit; what matters least goes first."""
        said = list(part_figures(self.progress, part, self.now))
        for ending in ("/s", "/min", "/h", " running"):
            if cell_len("   ".join(said)) <= room:
                break
            said = [text for text in said if not text.endswith(ending)]
        return said

    def _bar(self, part: Part, cells: int) -> Text:
        group = part.group
        share = group.outcome_count / group.total if group.total else 1.0
        full = min(cells, int(cells * share))
        failed = min(full, -(-cells * group.failure_count // group.total)) if group.total else 0
        filled, empty = ASCII_BAR if self.ascii_only else BAR
        bar = Text(filled * (full - failed), "green")
        bar.append(filled * failed, "red")
        return bar.append(empty * (cells - full), "dim")

    def _render_row(self, row: Row) -> Text:
        left = Text(" " * (INDENT - 2)).append_text(self._sign(row.state))
        left.append(f" {one_line(row.title)}")
        said = [f"→ {one_line(row.next_node)}"] if row.next_node else []
        said += [row_state(row)] if row.state != "done" else []
        said += [usage_words(row.usage, turns=row.kind != TURN)] if row.usage is not None else []
        left.append("".join(f"   {one}" for one in said), "dim")
        return self._row(left, clock(row.duration))

    def _running(self, step: RunningStep, column: int) -> Text:
        title = Text(one_line(step.title))
        title.truncate(column, overflow="ellipsis", pad=True)
        left = Text(" " * INDENT).append_text(title)
        left.append(f"   {self._doing(step)}", "dim")
        return self._row(left, clock(self.now - step.since))

    def _doing(self, step: RunningStep) -> str:
        """What a step or item is at: the step inside it, how far its items are, or that it
        waits.
        """
        waiting = next((one for one in _active_steps(step) if one.retry_at is not None), None)
        if waiting is not None and waiting.retry_at is not None:
            wait = clock(max(0.0, waiting.retry_at - self.now))
            return f"{nth_attempt(waiting.attempt, waiting.of)} failed, retry in {wait}"
        fan = self.progress.map_inside(step)
        if fan is not None:
            return f"{fan.outcome_count}/{fan.total}" + (
                f"   {fan.failure_count} failed" if fan.failure_count else ""
            )
        current = step.current
        doing = step if current is None else current
        tried = next((one for one in _active_steps(step) if one.attempt > 1), None)
        again = "" if tried is None else f"{nth_attempt(tried.attempt, tried.of)}  "
        if doing.kind in (TURN, CALL):
            return again + self._agent_at(step, doing)
        title = (
            "" if current is None or current.title == step.title else one_line(current.title, None)
        )
        return f"{again}{one_line(doing.kind)}  {title}".rstrip()

    def _agent_at(self, step: RunningStep, doing: RunningStep) -> str:
        """What an agent is at: which turn it is, what it has taken, what it says or calls."""
        saying = (
            one_line(doing.text.rstrip("\n").rpartition("\n")[2], None)
            if doing.kind == TURN
            else ""
        )
        if doing is step:  # the agent is the part, which says the rest
            return saying
        agent = next(one for one in _active_steps(step) if doing.path in one.inner)
        begun = 1 if doing.kind == TURN else 0
        words = f"agent  {_turn_words(agent.usage, agent.usage.turns + begun)}"
        return f"{words}   {saying or (one_line(doing.title, None) if doing.kind == CALL else '')}".rstrip()

    def _row(self, left: Text, right: str) -> Text:
        """One line: what does not fit on the left is cut, the right one stands at the edge."""
        room = self.width - (cell_len(right) + 2 if right else 0)
        left.truncate(max(room, 0), overflow="ellipsis", pad=bool(right))
        left.append(f"  {right}" if right else "", "dim")
        left.no_wrap = True
        return left


def _turn_words(usage: UsageTally, number: int) -> str:
    """turn 3, 4.1k tokens, $0.02."""
    taken = f", {usage_words(usage, turns=False)}" if usage.turns else ""
    return f"turn {max(number, 1)}{taken}"


def _active_steps(step: RunningStep) -> Iterator[RunningStep]:
    """A step, the one begun last inside it, and so on."""
    yield step
    while step.inner:
        step = next(reversed(step.inner.values()))
        yield step
