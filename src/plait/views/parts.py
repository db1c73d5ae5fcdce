"""What is known of the parts of a run: what runs in them, what has ended, and how fast that
goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.engine.events import (
    StepFinished,
    StepStarted,
)
from plait.engine.limits import UsageTally
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded

FAN: Final = "map"
"""The kind of a part that has items."""
TURN: Final = "turn"
"""The kind of a step in which a model answers."""
ASKING: Final = frozenset({TURN, "prompt"})
"""Kinds of steps that ask a model, once."""
CALL: Final = "call"
"""The kind of a step in which a tool is called for a model."""
HOOK: Final = "hook"
"""The kind of a step that a hook takes: none of the flow."""
SNAPSHOT: Final = "snapshot"
"""The kind of a step beside the parts, which keeps what a run began with."""
ISOLATION: Final = "isolation"
"""The kind of a step that is about all items of a fan, and is none of them."""
AGENT: Final = "agent"
GRAPH: Final = "graph"
ENSEMBLE: Final = "ensemble"
LISTED: Final = frozenset({AGENT, GRAPH, ENSEMBLE})
"""Kinds of parts whose steps are shown one by one when they have ended."""
MOST_ROWS: Final = 20
"""Rows of such steps that are kept."""
MOST_SAID: Final = 200
"""Characters that are kept of what a model says at the moment."""
MOST_KEPT: Final = 50
"""Failures, and notes, that are kept; all are counted."""
WINDOW: Final = 30.0
"""Seconds whose finishes make the rate …"""
FEW: Final = 10
"""… unless there were fewer than this: then those before count, too."""
MOST_BUCKETS: Final = 128
MOST_MARKED: Final = 1 << 24
"""Items beyond this place are counted, but one that ends a second time counts twice."""

State: TypeAlias = Literal["waiting", "running", "done", "failed", "skipped"]
_MARKS: Final[tuple[State, ...]] = ("waiting", "done", "failed", "skipped")
_STATE_OF_MARK: Final = dict(enumerate(_MARKS))
_MARK_OF_STATE: Final = {state: mark for mark, state in enumerate(_MARKS)}


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A part, step or item that failed, and what it said last."""

    path: str
    kind: str
    title: str
    cause: str
    """exit 2, timeout, …"""
    lines: tuple[str, ...]
    at: float
    order: int = 0
    replayed: bool = False
    line: str = ""
    """That of the lines which says most, where there is room for one only."""


@dataclass(frozen=True, slots=True)
class Note:
    path: str
    message: str
    about: str = ""
    """The title of the item or step inside a part that it is about."""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A step that has ended, in what one line has room for."""

    kind: str
    title: str
    state: State
    duration: float
    replayed: bool = False
    how: str = ""
    """Why it failed or was skipped, in a word or two: refused, exit 2, …"""
    to: str = ""
    """Of a node: the one to which it leads."""
    asked: UsageTally | None = None
    """Of a turn, or of an agent: what it took."""


@dataclass(slots=True, eq=False)
class RunningStep:
    """A step that was begun and has not ended."""

    path: str
    kind: str
    title: str
    since: float
    attempt: int = 1
    of: int = 0
    """How many attempts there may be in all, as far as that is known."""
    again_at: float | None = None
    """It failed, and is tried again at this time."""
    inner: dict[str, RunningStep] = field(default_factory=dict)
    asked: UsageTally = field(default_factory=UsageTally)
    """Of agents, all that is inside it included."""
    said: str = ""
    """The end of what a model says."""

    @property
    def current(self) -> RunningStep | None:
        """The innermost step that was begun last; of two with the same title the outer one."""
        found: RunningStep | None = None
        step = self
        while step.inner:
            inner = next(reversed(step.inner.values()))
            if inner.title != step.title or found is None:
                found = inner
            step = inner
        return found


class StepGroup:
    """The steps or items directly below one path: how many there are, and what became of them."""

    def __init__(self, path: str, total: int | None = None) -> None:
        self.path = path
        self.total = total
        self.is_fan = False
        """The total was told by the step itself: what is below it are items."""
        self.is_open = True
        """What begins below it now is one of those that are counted."""
        self.counts: dict[State, int] = dict.fromkeys(_MARKS, 0)
        self.replayed = 0
        self._marks = bytearray()
        self._orders: dict[str, int] = {}
        self._finishes = _Finishes()

    @property
    def success_count(self) -> int:
        return self.counts["done"]

    @property
    def failure_count(self) -> int:
        return self.counts["failed"]

    @property
    def skip_count(self) -> int:
        return self.counts["skipped"]

    @property
    def outcome_count(self) -> int:
        return self.success_count + self.failure_count + self.skip_count

    @property
    def pending_count(self) -> int:
        return max(0, (self.total or 0) - self.outcome_count)

    def rate(self, now: float) -> float | None:
        """Finishes per second, of late; None as long as there are none."""
        return self._finishes.rate(now)

    def time_left(self, now: float) -> float | None:
        rate = self.rate(now)
        return self.pending_count / rate if rate and self.total is not None else None

    # ── what changes it ──────────────────────────────────────────────────

    def count(self, total: int, at: float) -> None:
        """It is a fan, and knows its items; what was below it until now was no item."""
        if not self.is_fan or total < len(self._marks):
            self.forget_all()
        self.is_fan = self.is_open = True
        self.total = total
        self._finishes = _Finishes(at)

    def begin(self, event: StepStarted) -> None:
        """One of its items is worked on: however it ended before, that counts no more."""
        if (
            self.is_fan
            and self.is_open
            and event.kind != ISOLATION
            and event.order < len(self._marks)
        ):
            self._mark(event.order, "waiting")

    def finish(self, event: StepFinished, at: float) -> None:
        if not self.is_open or (self.is_fan and event.kind == ISOLATION):
            return
        self._mark(event.order, outcome_state(event.outcome))
        if not self.is_fan:
            self._orders[event.path] = event.order
        if event.replayed:
            self.replayed += 1
        else:
            self._finishes.add(at)

    def remember(self, done: bytes) -> None:
        """These are done since an earlier life of the run."""
        known = done.count(1)
        self.replayed += known
        if not self._marks:
            self._marks.extend(done[:MOST_MARKED])  # 1 is the mark of what is done
            self.counts["done"] += known
            return
        for order, is_done in enumerate(done):
            if is_done:
                self._mark(order, "done")

    def forget(self, path: str, order: int | None) -> None:
        """One is to be done again; where it stands is known of steps, and of failures that are
        kept.
        """
        order = self._orders.pop(path, order)
        if order is not None:
            self._mark(order, "waiting")

    def forget_all(self) -> None:
        self.counts = dict.fromkeys(_MARKS, 0)
        self.replayed = 0
        self._marks.clear()
        self._orders.clear()

    def settle(self, counts: Mapping[str, int]) -> None:
        """The step itself says how its items ended: it may have been remembered without them."""
        self.is_fan = True
        self.total = counts["total"]
        self.counts |= {
            "done": counts["successful"],
            "failed": counts["failed"],
            "skipped": counts.get("skipped", 0),
        }

    def _mark(self, order: int, state: State) -> None:
        if not 0 <= order < MOST_MARKED:
            self.counts[state] += 1
            return
        if order >= len(self._marks):
            self._marks.extend(bytes(order + 1 - len(self._marks)))
        before = self._marks[order]
        if before:
            self.counts[_STATE_OF_MARK[before]] -= 1
        mark = self._marks[order] = _MARK_OF_STATE[state]
        if mark:
            self.counts[state] += 1


class _Finishes:
    """When things ended, by the second: enough to say how fast it goes now."""

    def __init__(self, since: float | None = None) -> None:
        self._since = since
        self._seconds: deque[tuple[int, int]] = deque(maxlen=MOST_BUCKETS)
        self._complete = True

    def add(self, at: float) -> None:
        if self._since is None:
            self._since = at
        second = int(at)
        if self._seconds and self._seconds[-1][0] >= second:
            last, count = self._seconds[-1]
            self._seconds[-1] = (last, count + 1)
            return
        self._complete = self._complete and len(self._seconds) < MOST_BUCKETS
        self._seconds.append((second, 1))

    def rate(self, now: float) -> float | None:
        if self._since is None or not self._seconds:
            return None
        total, start = 0, self._since
        for second, count in reversed(self._seconds):
            if now - second > WINDOW and total >= FEW:
                break
            total += count
            start = float(second)
        else:
            start = self._since if self._complete else start
        return total / max(now - start, 1.0)


class Part:
    """A part of the flow: setup, map, reduce, … or one list of steps."""

    def __init__(self, name: str, steps: int | None = None) -> None:
        self.name = name
        self.title = name
        self.state: State = "waiting"
        self.since: float | None = None
        self.duration: float | None = None
        self.replayed = False
        self.cut_short = 0
        """Items that were under way when the run ended."""
        self.steps = steps
        self.group = StepGroup(name, steps)
        self.kind = ""
        self.asked = UsageTally()
        self.rows: deque[Row] = deque(maxlen=MOST_ROWS)
        """The last of its steps that have ended, if it is one of those that list them."""

    def begin(self, event: StepStarted, at: float) -> None:
        self.title, self.kind = event.title or self.name, event.kind
        self.state, self.since, self.duration, self.replayed = "running", at, None, False
        self.cut_short = 0
        # What finds the items comes before they are counted, in each life of the run.
        self.group.is_open = not (self.group.is_fan or event.kind == FAN)

    @property
    def has_no_items_yet(self) -> bool:
        """It looks for its items, or could not find them."""
        return not (self.group.is_open or self.group.is_fan)

    @property
    def is_looking(self) -> bool:
        """It looks for its items."""
        return self.state == "running" and not self.group.is_open

    def end(self, event: StepFinished) -> None:
        self.title, self.kind = event.title or self.name, event.kind
        self.state = outcome_state(event.outcome)
        self.duration, self.replayed = event.duration, event.replayed
        # The failure of a map inside it has counts of its own.
        if (counts := _item_counts(event.outcome)) and (event.kind == FAN or self.group.is_fan):
            self.group.settle(counts)
        elif self.state == "done" and not self.group.is_fan and event.replayed:
            self.group.counts["done"] = self.group.total or self.group.outcome_count

    def take_up(self) -> None:
        """It is to be worked on again; what is done in it stays done."""
        self.state, self.since, self.duration, self.replayed = "waiting", None, None, False

    def forget(self, *, below: bool) -> None:
        self.take_up()
        if below:
            self.group.forget_all()

    def time(self, now: float) -> float | None:
        """How long it took, or takes until now."""
        if self.duration is None and self.since is not None:
            return max(0.0, now - self.since)
        return self.duration


def outcome_state(outcome: Outcome) -> State:
    match outcome:
        case Succeeded():
            return "done"
        case Failed():
            return "failed"
        case _:
            return "skipped"


_COUNTS: Final = ("total", "successful", "failed")


def _item_counts(outcome: Outcome) -> dict[str, int] | None:
    """What became of a step's items, if that is its value."""
    match outcome:
        case Succeeded(dict(value)) | Failed(Failure(output=dict(value))):
            counts = {name: count for name, count in value.items() if type(count) is int}
            return counts if all(name in counts for name in _COUNTS) else None
    return None
