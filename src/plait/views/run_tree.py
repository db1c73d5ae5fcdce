"""The steps of a run as a tree, with their attempts and times: what a page shows of it.

Items of a map are not in the tree beyond a bound; `item_table` has them all.  It reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.engine.events import (
    EventRecord,
    ItemsCounted,
    RunEnded,
    RunStarted,
    StepFinished,
    StepInvalidated,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.outcome import Failed, Skipped
from plait.engine.paths import MAP, is_item, last_name, parent_path
from plait.views.format import describe_failure, first_line
from plait.views.item_table import ItemSpan
from plait.views.parts import SNAPSHOT, outcome_state

MOST_NODES: Final = 3000
MOST_ITEMS: Final = 60
"""Items of a map inside a part that are nodes of the tree."""
NodeState: TypeAlias = Literal[
    "waiting", "running", "retrying", "done", "failed", "skipped", "interrupted"
]


@dataclass(slots=True, eq=False)
class StepAttempt:
    """One attempt of a step."""

    number: int
    """Also those of earlier run attempts count."""
    began: float
    ended: float | None = None
    state: NodeState = "running"
    cause: str = ""
    delay: float = 0.0
    """Seconds until the next attempt."""


@dataclass(slots=True, eq=False)
class StepNode:
    path: str
    kind: str = ""
    title: str = ""
    order: int = 0
    state: NodeState = "waiting"
    duration: float | None = None
    cause: str = ""
    """Why it failed or was skipped: exit 2, timeout, …"""
    total: int | None = None
    """How many items it has, if it is a map."""
    planned: int | None = None
    """How many steps it will have, if that is known."""
    used: Usage | None = None
    attempts: list[StepAttempt] = field(default_factory=list)
    children: dict[str, StepNode] = field(default_factory=dict)
    left_out: int = 0
    """Children that the tree does not have."""

    @property
    def began(self) -> float | None:
        return self.attempts[0].began if self.attempts else None

    def time(self, now: float) -> float | None:
        """Its duration, or the seconds since its last start."""
        if self.state in ("running", "retrying") and self.attempts:
            return max(0.0, now - self.attempts[-1].began)
        return self.duration

    def begin_attempt(self, at: float) -> None:
        self.attempts.append(StepAttempt(len(self.attempts) + 1, at))

    def walk(self, depth: int = 0) -> Iterator[tuple[int, StepNode]]:
        yield depth, self
        for child in self.children.values():
            yield from child.walk(depth + 1)


class StepTree:
    """The steps of a run after the events that were added, in their order."""

    def __init__(self, top: str = "", known_attempts: Sequence[Sequence[float]] = ()) -> None:
        """`top`: only the steps at and below this path.

        `known_attempts`: the run attempts, if not all events of the run are added.
        """
        self.top = top
        self._known_attempts = known_attempts
        self.parts: dict[str, StepNode] = {}
        self.run_attempts: list[list[float]] = []
        """Start and last event of each run attempt."""
        self._nodes: dict[str, StepNode] = {}

    def get(self, path: str) -> StepNode | None:
        return self._nodes.get(path)

    def walk(self) -> Iterator[tuple[int, StepNode]]:
        for part in self.parts.values():
            yield from part.walk()

    def add(self, record: EventRecord) -> None:
        at, event = record.at, record.event
        if not isinstance(event, RunStarted | StepInvalidated):
            self._go_on_until(at)
        match event:
            case RunStarted():
                self.cut_short()
                known = self._known_attempts[len(self.run_attempts) :]
                self.run_attempts.append([at, max(at, known[0][1]) if known else at])
                for order, (name, steps) in enumerate(event.phases):
                    node = self._part(name, order)
                    node.planned = steps or None
            case StepStarted():
                self._start(event, at)
            case StepRetrying():
                self._retry(event, at)
            case StepFinished():
                self._end(event, at)
            case ItemsCounted(path, total):
                if (found := self._nodes.get(path)) is not None:
                    found.total = total
            case StepInvalidated():
                self._invalidate(event)
            case RunEnded():
                self.cut_short()

    def _part(self, name: str, order: int) -> StepNode:
        if name not in self.parts:
            node = StepNode(name, title=name, order=order)
            if not self.top:
                self.parts[name] = self._nodes[name] = node
            return node
        return self.parts[name]

    def _node(self, path: str, kind: str, order: int) -> StepNode | None:
        """The node at a path; None if the tree does not show it."""
        found = self._nodes.get(path)
        if found is not None:
            return found
        if kind == SNAPSHOT:
            return None
        above = "" if path == self.top else parent_path(path)
        if above:
            parent = self._nodes.get(above)
            if parent is None:
                if self.top and not path.startswith(f"{self.top}/"):
                    return None
                # The start of a list that ends with its last step is not recorded.
                parent = None if is_item(above) and not self.top else self._node(above, "", 0)
                if parent is None:
                    return None
            is_large = is_item(path) and (above == MAP or len(parent.children) >= MOST_ITEMS)
            if is_large or len(self._nodes) >= MOST_NODES:
                parent.left_out += 1
                return None
        elif self.top and path != self.top:
            return None
        node = StepNode(path, kind, last_name(path), order)
        self._nodes[path] = node
        (self.parts if not above else self._nodes[above].children)[path] = node
        return node

    def _start(self, event: StepStarted, at: float) -> None:
        node = self._node(event.path, event.kind, event.order)
        if node is None:
            return
        node.kind, node.title, node.order = event.kind, event.title or node.title, event.order
        node.state, node.duration, node.cause = "running", None, ""
        node.begin_attempt(at)

    def _retry(self, event: StepRetrying, at: float) -> None:
        node = self._nodes.get(event.path)
        if node is None:
            return
        cause = describe_failure(event.failure)[0]
        if not node.attempts or node.attempts[-1].ended is not None:
            node.begin_attempt(at)
        last = node.attempts[-1]
        last.ended, last.state = at, "failed"
        last.cause, last.delay = cause, event.delay
        node.state, node.cause = "retrying", cause

    def _end(self, event: StepFinished, at: float) -> None:
        node = self._node(event.path, event.kind, event.order)
        if node is None:
            return
        node.kind, node.title, node.order = event.kind, event.title or node.title, event.order
        node.state, node.duration, node.used = (
            outcome_state(event.outcome),
            event.duration,
            event.used,
        )
        node.cause = ""
        match event.outcome:
            case Failed(failure):
                node.cause = describe_failure(failure)[0]
            case Skipped(why):
                node.cause = first_line(why)
        if event.replayed:
            return
        if not node.attempts or node.attempts[-1].ended is not None:
            # Short steps have no recorded start.
            node.begin_attempt(at - event.duration)
        last = node.attempts[-1]
        last.ended, last.state, last.cause = at, node.state, node.cause

    def _invalidate(self, event: StepInvalidated) -> None:
        node = self._nodes.get(event.path)
        if node is None:
            return
        for _, one in node.walk() if event.below else [(0, node)]:
            one.state, one.duration, one.cause = "waiting", None, ""

    def _go_on_until(self, at: float) -> None:
        if self.run_attempts:
            self.run_attempts[-1][1] = max(at, self.run_attempts[-1][1])

    def cut_short(self, at: float = 0.0) -> None:
        """The last run attempt is over: what has no end was interrupted.

        `at`: a time at which it went on, beside those of its events.
        """
        self._go_on_until(at)
        until = self.run_attempts[-1][1] if self.run_attempts else 0.0
        for node in self._nodes.values():
            if node.state in ("running", "retrying"):
                node.state = "interrupted"
                if node.attempts and node.attempts[-1].ended is None:
                    node.attempts[-1].ended = until
                    node.attempts[-1].state = "interrupted"


# ── the timeline ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something ran, as seconds of the run."""

    start: float
    end: float
    state: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the timeline."""

    path: str
    title: str
    depth: int
    state: str
    spans: Sequence[Span]
    load: Sequence[int] = ()
    """Of a large map: how many items ran at the same time, in equal parts of the whole time."""


class RunClock:
    """Seconds of the run: the time between two run attempts is left out."""

    def __init__(self, run_attempts: Sequence[Sequence[float]], now: float, *, alive: bool) -> None:
        self._parts: list[tuple[float, float, float]] = []
        before = 0.0
        for number, (start, last) in enumerate(run_attempts):
            end = max(now, last) if alive and number == len(run_attempts) - 1 else last
            self._parts.append((start, end, before))
            before += end - start
        self.total = before
        self._latest_first = self._parts[::-1]
        self.starts = [before for _, _, before in self._parts]

    def seconds(self, at: float) -> float:
        for start, end, before in self._latest_first:
            if at >= start:
                return before + min(at, end) - start
        return 0.0

    def span(self, start: float, end: float | None) -> tuple[float, float]:
        """What began in a run attempt ended with it at the latest; None: its end is not recorded."""
        for begin, last, before in self._latest_first:
            if start >= begin:
                shift = before - begin
                if end is None or end > last:
                    end = last
                return (start + shift, end + shift) if start < end else (end + shift, end + shift)
        return 0.0, 0.0


def node_spans(node: StepNode, clock: RunClock, now: float) -> Iterator[Span]:
    """When a step ran, and when it waited for its next attempt."""
    for attempt in node.attempts:
        end = now if attempt.ended is None else attempt.ended
        label = f"attempt {attempt.number}" if len(node.attempts) > 1 else ""
        words = ", ".join(filter(None, (label, attempt.cause)))
        yield Span(clock.seconds(attempt.began), clock.seconds(end), attempt.state, words)
        if attempt.delay and attempt.ended is not None:
            later = clock.seconds(min(end + attempt.delay, max(now, end)))
            yield Span(clock.seconds(end), later, "retrying", f"waits {attempt.delay:g} s")


def item_spans(attempts: Sequence[ItemSpan], clock: RunClock) -> Iterator[Span]:
    """When an item ran, in all run attempts, and when it waited for its next attempt."""
    numbers = count(1)
    for start, end, state in attempts:
        first, last = clock.span(start, end)
        label = "waits" if state == "retrying" else f"attempt {next(numbers)}"
        yield Span(first, last, state, label if len(attempts) > 1 else "")
