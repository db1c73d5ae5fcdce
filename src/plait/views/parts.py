"""The state of the parts of a run: their counts, their rate, their running steps, their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.engine.events import StepFinished, StepStarted, Usage
from plait.engine.limits import UsageSum
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.engine.paths import is_at_or_below, parent_path

MAP_KIND: Final = "map"
"""The kind of a part that has items."""
TURN: Final = "turn"
"""The kind of a step that is one model turn."""
ASKING: Final = frozenset({TURN, "prompt"})
"""Kinds of steps that send one model request."""
CALL: Final = "call"
"""The kind of a step that calls a tool for a model."""
ATTEMPT: Final = "attempt"
"""The kind of the action of a step, as a step of its own."""
HOOK: Final = "hook"
"""The kind of a step of a hook.  It is not part of the flow."""
SNAPSHOT: Final = "snapshot"
"""The kind of a step beside the parts that records what a run started with."""
ISOLATION: Final = "isolation"
"""The kind of a step of a map that concerns all its items and is not an item."""
AGENT: Final = "agent"
GRAPH: Final = "graph"
ENSEMBLE: Final = "ensemble"
LISTED: Final = frozenset({AGENT, GRAPH, ENSEMBLE})
"""Kinds of parts that show each of their steps as a row when it has ended."""
MOST_ROWS: Final = 20
"""Rows that a part keeps."""
MOST_TEXT: Final = 200
"""Characters that a running step keeps of the text of its model."""
MOST_PRINTED: Final = 4000
"""Characters that a running step keeps of its output."""
MOST_KEPT: Final = 50
"""Failures, and notes, that a run keeps.  All are counted."""
WINDOW: Final = 30.0
"""The rate counts the outcomes of so many seconds …"""
FEW: Final = 10
"""… or the last ones, if the seconds have fewer than this."""
MOST_BUCKETS: Final = 128
MOST_MARKED: Final = 1 << 24
"""Items from this index on are counted without a mark: one that ends twice counts twice."""

State: TypeAlias = Literal["waiting", "running", "done", "failed", "skipped"]
_MARKS: Final[tuple[State, ...]] = ("waiting", "done", "failed", "skipped")
_STATE_OF_MARK: Final = dict(enumerate(_MARKS))
_MARK_OF_STATE: Final = {state: mark for mark, state in enumerate(_MARKS)}


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A part, step or item that failed."""

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
    """The one of the lines that explains most."""


@dataclass(frozen=True, slots=True)
class NoteRow:
    path: str
    message: str
    about: str = ""
    """The title of the item or step below a part that the note is about."""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A step that has ended, as one line shows it."""

    kind: str
    title: str
    state: State
    duration: float
    replayed: bool = False
    cause: str = ""
    """Why it failed or was skipped: refused, exit 2, …"""
    next_node: str = ""
    """Of a visit: the node that follows."""
    usage: UsageSum | None = None
    """Of a turn or an agent."""
    inside: str = ""
    """The title of the step that contains it; empty if that is the part."""


@dataclass(slots=True, eq=False)
class RunningStep:
    """A step that has started and not ended."""

    path: str
    kind: str
    title: str
    since: float
    attempt: int = 1
    of: int = 0
    """How many attempts there may be; 0 if that is not known."""
    retry_at: float | None = None
    """The attempt failed, and the next one starts at this time."""
    inner: dict[str, RunningStep] = field(default_factory=dict)
    usage: UsageSum = field(default_factory=UsageSum)
    """Of all steps inside it."""
    text: str = ""
    """The end of what its model has written until now."""
    printed: str = ""
    """The end of what it has printed until now."""

    @property
    def current(self) -> RunningStep | None:
        """The innermost step that started last; of two with the same title the outer one."""
        found: RunningStep | None = None
        step = self
        while step.inner:
            inner = next(reversed(step.inner.values()))
            if inner.title != step.title or found is None:
                found = inner
            step = inner
        return found


class RunningSteps:
    """The steps of a run that run now, each with those inside it, and the maps among them."""

    def __init__(self) -> None:
        self._steps: dict[str, RunningStep] = {}
        self.maps: dict[str, StepGroup] = {}
        """Maps below the parts.  A part has a group itself."""

    def __iter__(self) -> Iterator[RunningStep]:
        return iter(self._steps.values())

    def get(self, path: str) -> RunningStep | None:
        return self._steps.get(path)

    def below(self, path: str) -> list[RunningStep]:
        """The steps directly below one, the oldest first."""
        step = self._steps.get(path)
        return list(step.inner.values()) if step is not None else []

    def start(self, event: StepStarted, at: float) -> None:
        above = self._steps.get(parent_path(event.path))
        # The action of a step that has a check or a handler: people know it as the step.
        kind = above.kind if event.kind == ATTEMPT and above is not None else event.kind
        step = RunningStep(event.path, kind, event.title, at, event.attempt)
        self._steps[event.path] = step
        if above is not None:
            above.inner[event.path] = step

    def end(self, path: str) -> RunningStep | None:
        """Remove a step and all steps inside it."""
        step = self._steps.pop(path, None)
        self.maps.pop(path, None)
        if step is None:
            return None
        above = self._steps.get(parent_path(path))
        if above is not None:
            above.inner.pop(path, None)
        for inner in list(step.inner):
            self.end(inner)
        return step

    def rename(self, path: str, title: str) -> None:
        step, above = self._steps.get(path), self._steps.get(parent_path(path))
        if step is None:
            return
        if above is not None and above.title == step.title:  # a step and its action
            above.title = title
        step.title = title

    def add_text(self, path: str, text: str) -> None:
        if (step := self._steps.get(path)) is not None:
            step.text = (step.text + text)[-MOST_TEXT:]

    def add_output(self, path: str, text: str) -> None:
        if (step := self._steps.get(path)) is not None:
            printed = step.printed + text
            if len(printed) > MOST_PRINTED:
                # From the beginning of a line: a half control sequence would be shown.
                printed = printed[-MOST_PRINTED:].partition("\n")[2] or printed[-MOST_TEXT:]
            step.printed = printed

    def add_usage(self, path: str, used: Usage, *, replayed: bool) -> None:
        """Count usage for every step that contains the one at `path`."""
        while path := parent_path(path):
            if (step := self._steps.get(path)) is None:
                continue
            if step.attempt > 1 and replayed:
                return  # an earlier attempt has counted it, here and above
            step.usage.add(used)

    def map_inside(self, step: RunningStep) -> StepGroup | None:
        """The items that a running step works on, if it has a map."""
        while step.inner:
            if (group := self.maps.get(step.path)) is not None:
                return group
            step = next(reversed(step.inner.values()))
        return self.maps.get(step.path)

    def is_in_map(self, path: str) -> bool:
        while path:
            if path in self.maps:
                return True
            path = parent_path(path)
        return False

    def clear(self) -> None:
        self._steps.clear()
        self.maps.clear()


class FailureList:
    """The failures of a run that count: how many, and the last ones."""

    def __init__(self) -> None:
        self.last: deque[FailedStep] = deque(maxlen=MOST_KEPT)
        self.count = 0

    def add(self, failed: FailedStep) -> None:
        self.remove(failed.path)
        self.last.append(failed)
        self.count += 1

    def find(self, path: str) -> FailedStep | None:
        return next((failed for failed in self.last if failed.path == path), None)

    def remove(self, path: str) -> None:
        if (failed := self.find(path)) is not None:
            self.last.remove(failed)
            self.count -= 1

    def remove_below(self, path: str, *, itself: bool = True) -> None:
        for failed in list(self.last):
            if is_at_or_below(failed.path, path) and (itself or failed.path != path):
                self.remove(failed.path)

    def remove_causes(self, path: str, failure: Failure) -> None:
        """The step at `path` reports the failure of a step inside it: do not list that twice."""
        for failed in [one for one in self.last if is_at_or_below(one.path, path)]:
            cause = failure.path
            if is_at_or_below(failed.path, cause) or is_at_or_below(cause, failed.path):
                self.remove(failed.path)


class StepGroup:
    """The steps or items directly below one path: how many there are and how they ended."""

    def __init__(self, path: str, total: int | None = None) -> None:
        self.path = path
        self.total = total
        self.is_map = False
        """The step has counted its items: what is below it are items."""
        self.is_open = True
        """A step that starts below it now counts."""
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
        """Outcomes per second, recently; None as long as there are none."""
        return self._finishes.rate(now)

    def time_left(self, now: float) -> float | None:
        rate = self.rate(now)
        return self.pending_count / rate if rate and self.total is not None else None

    # ── changes ──────────────────────────────────────────────────────────

    def count(self, total: int, at: float) -> None:
        """It is a map, and has `total` items.  What was below it until now was not an item."""
        if not self.is_map or total < len(self._marks):
            self.invalidate_all()
        self.is_map = self.is_open = True
        self.total = total
        self._finishes = _Finishes(at)

    def start(self, event: StepStarted) -> None:
        """One of its items starts: an earlier outcome of it no longer counts."""
        if (
            self.is_map
            and self.is_open
            and event.kind != ISOLATION
            and event.order < len(self._marks)
        ):
            self._mark(event.order, "waiting")

    def finish(self, event: StepFinished, at: float) -> None:
        if not self.is_open or (self.is_map and event.kind == ISOLATION):
            return
        self._mark(event.order, outcome_state(event.outcome))
        if not self.is_map:
            self._orders[event.path] = event.order
        if event.replayed:
            self.replayed += 1
        else:
            self._finishes.add(at)

    def replay(self, done: bytes) -> None:
        """Count the items that an earlier run attempt completed."""
        count = done.count(1)
        self.replayed += count
        if not self._marks:
            self._marks.extend(done[:MOST_MARKED])  # 1 is the mark of done
            self.counts["done"] += count
            return
        for order, is_done in enumerate(done):
            if is_done:
                self._mark(order, "done")

    def invalidate(self, path: str, order: int | None) -> None:
        """One no longer counts.  Its order is known of steps, and of failures that are kept."""
        order = self._orders.pop(path, order)
        if order is not None:
            self._mark(order, "waiting")

    def invalidate_all(self) -> None:
        self.counts = dict.fromkeys(_MARKS, 0)
        self.replayed = 0
        self._marks.clear()
        self._orders.clear()

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Take the counts from the outcome of the map: its items may have been replayed with it."""
        self.is_map = True
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
    """How many outcomes each second had: enough for the current rate."""

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
        """Items that were running when the run ended."""
        self.group = StepGroup(name, steps)
        self.kind = ""
        self.usage = UsageSum()
        self.rows: deque[Row] = deque(maxlen=MOST_ROWS)
        """Its last steps that have ended, if it is of a kind in `LISTED`."""

    def start(self, event: StepStarted, at: float) -> None:
        self.title, self.kind = event.title or self.name, event.kind
        self.state, self.since, self.duration, self.replayed = "running", at, None, False
        self.cut_short = 0
        # In each run attempt, a map finds its items before it counts them.
        self.group.is_open = not (self.group.is_map or event.kind == MAP_KIND)

    @property
    def shown_state(self) -> State | Literal["partial"]:
        """Its state; `partial` if it ended although some of its items or steps failed, `failed` if
        all its items did.
        """
        group = self.group
        if self.state != "done" or not group.failure_count:
            return self.state
        return "failed" if group.is_map and group.failure_count == group.total else "partial"

    @property
    def has_no_items_yet(self) -> bool:
        """It is finding its items, or could not find them."""
        return not (self.group.is_open or self.group.is_map)

    @property
    def is_finding_items(self) -> bool:
        return self.state == "running" and not self.group.is_open

    def end(self, event: StepFinished) -> None:
        self.title, self.kind = event.title or self.name, event.kind
        self.state = outcome_state(event.outcome)
        self.duration, self.replayed = event.duration, event.replayed
        counts = _item_counts(event.outcome)
        # A failure of a map inside the part has counts, too, but not those of the part.
        if counts and (event.kind == MAP_KIND or self.group.is_map):
            self.group.set_counts(counts)
        elif self.state == "done" and not self.group.is_map and event.replayed:
            count = self.group.total or self.group.outcome_count or _visit_count(event)
            self.group.counts["done"] = count

    def reset(self) -> None:
        """It runs again.  The outcomes inside it still count."""
        self.state, self.since, self.duration, self.replayed = "waiting", None, None, False

    def invalidate(self, *, below: bool) -> None:
        self.reset()
        if below:
            self.group.invalidate_all()

    def time(self, now: float) -> float | None:
        """Its duration, or the seconds from its start to `now`."""
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


def _visit_count(event: StepFinished) -> int:
    """How many visits a replayed graph had: they are not replayed one by one."""
    match event.outcome:
        case Succeeded({"steps": int(count)}) if event.kind == GRAPH:
            return count
    return 0


_COUNTS: Final = ("total", "successful", "failed")


def _item_counts(outcome: Outcome) -> dict[str, int] | None:
    """How the items of a step ended, if its value says so."""
    match outcome:
        case Succeeded(dict(value)) | Failed(Failure(output=dict(value))):
            counts = {name: count for name, count in value.items() if type(count) is int}
            return counts if all(name in counts for name in _COUNTS) else None
    return None
