"""One frame of a run on a terminal: a line for the run, one for each part, and what runs in it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.engine.kinds import step_kind
from plait.engine.limits import UsageSum
from plait.views.format import clean_block, clock, nth_attempt, one_line, sign, state_colour
from plait.views.lines import part_figures, row_state, usage_line, usage_words
from plait.views.parts import AGENT, CALL, LISTED, TURN, Part, Row, RunningStep
from plait.views.progress import Progress
from plait.views.terminal import pluralize

WIDEST_BAR: Final = 30
NARROWEST_BAR: Final = 10
WIDEST_NAME: Final = 16
INDENT: Final = 6
PANE: Final = 5
"""Lines of the output of a running step that are shown below it."""
MOST_ROWS: Final = 10
"""Rows of an agent, a graph or an ensemble that are shown."""
ROOM_FOR_BOTH: Final = 70
"""Columns beside the name of an item: with fewer, its output takes the place of its command."""
BAR: Final = ("█", "░")
ASCII_BAR: Final = ("#", ".")


def frame(
    progress: Progress, *, now: float, width: int, height: int, ascii_only: bool = False
) -> list[Text]:
    """The lines of a frame, at most `height`."""
    drawing = _Drawing(progress, now, max(width - 1, 10), ascii_only)
    parts = list(progress.parts.values())
    room = height - 1 - len(parts)
    if room < 0:  # hide the parts that have ended
        parts = [part for part in parts if part.state not in ("done", "skipped")]
        parts = parts[: max(height - 1, 1)]
        room = height - 1 - len(parts)
    lines = [drawing.head()]
    for part in parts:
        lines.append(drawing.part(part))
        running = list(drawing.running(part, max(room, 0)))
        rows = list(drawing.rows(part, max(room - len(running), 0)))
        room -= len(running) + len(rows)
        lines += rows + running
    return lines[: max(height, 1)]


@dataclass(frozen=True, slots=True)
class _Drawing:
    progress: Progress
    now: float
    width: int
    ascii_only: bool

    def head(self) -> Text:
        progress = self.progress
        left = self._sign(progress.shown_status)
        left.append(f" {one_line(progress.flow)}", "bold")
        left.append(f"  run {one_line(progress.run)}", "dim")
        return self._line(left, clock(progress.time(self.now)))

    def part(self, part: Part) -> Text:
        widest = max(cell_len(one_line(name, WIDEST_NAME)) for name in self.progress.parts)
        was_stopped = self.progress.ended is not None and part.state == "running"
        state = "interrupted" if was_stopped else part.shown_state
        left = Text("  ").append_text(self._sign(state))
        name = one_line(part.name, WIDEST_NAME)
        left.append(f" {name}{' ' * (widest - cell_len(name))}  ", "" if part.since else "dim")
        if part.group.is_map and not part.is_finding_items:
            duration = clock(part.duration) if part.duration is not None else ""
            return self._line(self._with_bar(left, part), duration)
        time = part.time(self.now)
        left.append(part_words(self.progress, part), "dim")
        return self._line(left, "" if time is None else clock(time))

    def rows(self, part: Part, room: int) -> Iterator[Text]:
        """The last steps of an agent, a graph or an ensemble."""
        for row in list(part.rows)[-min(MOST_ROWS, room) :] if room else []:
            left = Text(" " * (INDENT - 2)).append_text(self._sign(row.state))
            left.append(f" {one_line(row.title)}")
            left.append("".join(f"   {words}" for words in _row_words(row)), "dim")
            yield self._line(left, clock(row.duration))

    def running(self, part: Part, room: int) -> Iterator[Text]:
        steps = self.progress.running(part)
        if room <= 0 or not steps or part.is_finding_items:
            return
        shown = steps if len(steps) <= room else steps[: room - 1]
        is_map = part.group.is_map
        pane = min(PANE, (room - len(shown)) // len(shown)) if shown and not is_map else 0
        widest = max((cell_len(one_line(step.title)) for step in shown), default=0)
        column = min(widest, max(self.width // 3, 8))
        for step in shown:
            title = Text(one_line(step.title))
            title.truncate(column, overflow="ellipsis", pad=True)
            left = Text(" " * INDENT).append_text(title)
            words = step_words(self.progress, step, self.now, self.width - INDENT - column - 12)
            printed = printed_lines(step, 1) if is_map or not pane else []
            middle = Text(f"   {words}", "dim")
            if printed:  # what it prints says more than its command
                is_narrow = self.width - INDENT - column < ROOM_FOR_BOTH
                if is_narrow and all(one.attempt == 1 for one in _active_steps(step)):
                    middle = Text("", "dim")
                middle.truncate(max(self.width // 4, 12), overflow="ellipsis")
                middle.append(f"   {self._bar_sign} {printed[-1]}", "dim")
            left.append_text(middle)
            yield self._line(left, clock(self.now - step.since))
            for line in printed_lines(step, pane):
                yield self._line(Text(f"{' ' * INDENT}  {self._bar_sign} {line}", "dim"), "")
        if len(shown) < len(steps):
            dots = "..." if self.ascii_only else "…"
            more = f"{' ' * INDENT}{dots} and {len(steps) - len(shown)} more"
            yield self._line(Text(more, "dim"), "")

    @property
    def _bar_sign(self) -> str:
        return "|" if self.ascii_only else "│"

    def _sign(self, state: str) -> Text:
        return Text(sign(state, ascii_only=self.ascii_only), state_colour(state))

    def _with_bar(self, left: Text, part: Part) -> Text:
        figures = self._figures(part, self.width - left.cell_len)
        cells = min(WIDEST_BAR, self.width - left.cell_len - cell_len("   ".join(figures)) - 10)
        if cells >= NARROWEST_BAR:
            left.append_text(self._bar(part, cells)).append("  ")
        for number, text in enumerate(figures):
            left.append("   " if number else "")
            left.append(text, "red" if text.endswith("failed") else "")
        return left

    def _figures(self, part: Part, room: int) -> list[str]:
        """As many as fit: the rate goes first, then how many run."""
        figures = list(part_figures(self.progress, part, self.now))
        for ending in ("/s", "/min", "/h", " running"):
            if cell_len("   ".join(figures)) <= room:
                break
            figures = [text for text in figures if not text.endswith(ending)]
        return figures

    def _bar(self, part: Part, cells: int) -> Text:
        group = part.group
        share = group.outcome_count / group.total if group.total else 1.0
        full = min(cells, int(cells * share))
        failed = min(full, -(-cells * group.failure_count // group.total)) if group.total else 0
        filled, empty = ASCII_BAR if self.ascii_only else BAR
        bar = Text(filled * (full - failed), "green")
        bar.append(filled * failed, "red")
        return bar.append(empty * (cells - full), "dim")

    def _line(self, left: Text, right: str) -> Text:
        """`right` stands at the edge, and `left` is cut if it is too long."""
        room = self.width - (cell_len(right) + 2 if right else 0)
        left.truncate(max(room, 0), overflow="ellipsis", pad=bool(right))
        left.append(f"  {right}" if right else "", "dim")
        left.no_wrap = True
        return left


# ── words ────────────────────────────────────────────────────────────────


def part_words(progress: Progress, part: Part) -> str:
    """How many steps of a part have ended, or the usage of an agent."""
    group = part.group
    total = group.total or group.outcome_count
    if part.is_finding_items:
        return "finding its items"
    if part.has_no_items_yet:
        return ""
    if part.kind == AGENT:
        if part.state != "running":
            return usage_line(part.usage) if part.usage.turns else ""
        top = next(iter(progress.running(part)), None)
        current = 1 if top is not None and top.kind == TURN else 0
        return _turn_words(part.usage, part.usage.turns + current)
    noun = step_kind(part.kind).noun
    usage = f"   {usage_line(part.usage)}" if part.usage.turns and part.kind in LISTED else ""
    if part.replayed:
        return f"{pluralize(total, noun)}, replayed"
    if part.state == "running" and group.total:
        return f"{group.outcome_count} of {pluralize(total, noun)}{usage}"
    return pluralize(total, noun) + usage if total else ""


def _row_words(row: Row) -> Iterator[str]:
    if row.next_node:
        yield f"→ {one_line(row.next_node)}"
    if row.state != "done":
        yield row_state(row)
    if row.usage is not None:
        yield usage_words(row.usage, turns=row.kind != TURN)


def step_words(progress: Progress, step: RunningStep, now: float, room: int | None = None) -> str:
    """What a step or item does now: the step inside it, its items, or that it waits for a retry.

    `room`: of a model's text, as much of the end is shown as fits into so many columns.
    """
    waiting = next((one for one in _active_steps(step) if one.retry_at is not None), None)
    if waiting is not None and waiting.retry_at is not None:
        wait = clock(max(0.0, waiting.retry_at - now))
        return f"{nth_attempt(waiting.attempt, waiting.of)} failed, retry in {wait}"
    items = progress.map_inside(step)
    if items is not None:
        failed = f"   {items.failure_count} failed" if items.failure_count else ""
        return f"{items.outcome_count}/{items.total}{failed}"
    inner = step.current
    current = step if inner is None else inner
    retried = next((one for one in _active_steps(step) if one.attempt > 1), None)
    attempt = "" if retried is None else f"{nth_attempt(retried.attempt, retried.of)}  "
    if current.kind in (TURN, CALL):
        return attempt + _agent_words(step, current, room)
    title = "" if inner is None or inner.title == step.title else one_line(inner.title, None)
    return f"{attempt}{one_line(current.kind)}  {title}".rstrip()


def printed_lines(step: RunningStep, most: int) -> list[str]:
    """The last lines that a step, or the one inside it that runs now, has printed or written."""
    current = list(_active_steps(step))[-1]
    text = current.printed or (current.text if current.kind != TURN else "")
    lines = [line for line in clean_block(text).split("\n") if line.strip()]
    return [one_line(line, None) for line in lines[len(lines) - most :]] if most else []


def _agent_words(step: RunningStep, current: RunningStep, room: int | None) -> str:
    """The turn of an agent, its usage, and its text or tool call."""
    is_turn = current.kind == TURN
    text = one_line(current.text.rstrip("\n").rpartition("\n")[2], None) if is_turn else ""
    if current is step:  # the agent is the part, whose line has the rest
        return _text_end(text, room)
    agent = next(one for one in _active_steps(step) if current.path in one.inner)
    turn = _turn_words(agent.usage, agent.usage.turns + (1 if is_turn else 0))
    call = "" if is_turn else one_line(current.title, None)
    head = f"agent  {turn}   "
    shown = _text_end(text, None if room is None else room - len(head)) or call
    return f"{head}{shown}".rstrip()


def _text_end(text: str, room: int | None) -> str:
    """The words that came last, if not all of them fit."""
    if room is None or cell_len(text) <= room:
        return text
    while text and cell_len(text) > max(room - 1, 0):
        text = text[1:]
    return f"…{text}"


def _turn_words(usage: UsageSum, number: int) -> str:
    """turn 3, 4.1k tokens, $0.02."""
    used = f", {usage_words(usage, turns=False)}" if usage.turns else ""
    return f"turn {max(number, 1)}{used}"


def _active_steps(step: RunningStep) -> Iterator[RunningStep]:
    """A step, the one inside it that started last, and so on."""
    yield step
    while step.inner:
        step = next(reversed(step.inner.values()))
        yield step
