"""The state of a run, computed from its events.  Every view shows a run from it.

`Progress` reads paths, counts and outcomes.  A step with one name in its path is a part of the
flow.  A step below one that has counted its items is an item.  It knows few kinds: a map finds its
items before they are counted, and the number of steps of an agent, a graph or an ensemble is not
known beforehand, so their last steps are kept as rows.

It reads no clock: callers pass `now`.  Its size has a bound: it keeps what runs, one byte for each
outcome, the last failures, the last notes and the last rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.events import (
    RETRY_REASON,
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ItemsReplayed,
    ModelText,
    Note,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepInvalidated,
    StepOutput,
    StepRenamed,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import StepRecord
from plait.engine.limits import UsageSum
from plait.engine.outcome import Failed, Failure, Skipped, Succeeded
from plait.engine.paths import ITEMS, first_name, is_at_or_below, parent_path
from plait.views.format import describe_failure, short_failure
from plait.views.parts import (
    CALL,
    HOOK,
    LISTED,
    MOST_KEPT,
    SNAPSHOT,
    TURN,
    FailedStep,
    FailureList,
    NoteRow,
    Part,
    Row,
    RunningStep,
    RunningSteps,
    StepGroup,
    outcome_state,
)

Level: TypeAlias = Literal["run", "part", "step", "row", "item", "failure", "note"]


@dataclass(frozen=True, slots=True)
class Update:
    """A change that a view may show at once.

    | level   | event                                    | part | row          |
    |---------|------------------------------------------|------|--------------|
    | run     | RunStarted, RunEnded                     |      |              |
    | part    | StepStarted, ItemsCounted, StepFinished  | yes  |              |
    | step    | StepStarted, StepFinished: not an item   | yes  |              |
    | step    | StepRetrying: a step anywhere            |      | Row          |
    | row     | StepFinished: a turn, call, visit, task  | yes  | Row          |
    | item    | StepFinished: an item of a part          | yes  |              |
    | failure | StepFinished                             |      | FailedStep   |
    | note    | Note                                     |      | NoteRow      |
    """

    level: Level
    event: Event
    part: Part | None = None
    row: Row | FailedStep | NoteRow | None = None


NOTHING: Final[Sequence[Update]] = ()


class Progress:
    """The state of a run after the events that were added, in their order."""

    def __init__(self) -> None:
        self.run = self.flow = self.file = self.project = ""
        self.status: Status = "running"
        self.run_attempts = 0
        self.started: float | None = None
        """When the first run attempt started."""
        self.since: float | None = None
        """When the current run attempt started."""
        self.ended: float | None = None
        self.last_at = 0.0
        """When the last event of a run attempt happened."""
        self.earlier = 0.0
        """The seconds of the run attempts before the current one."""
        self.failure: Failure | None = None
        self.value: Json = None
        self.facts: Mapping[str, Json] = {}
        self.parts: dict[str, Part] = {}
        self.failures = FailureList()
        self.notes: deque[NoteRow] = deque(maxlen=MOST_KEPT)
        self.note_count = self.warning_count = 0
        self.retries = 0
        self.usage = UsageSum()
        self._running = RunningSteps()

    def add(self, record: EventRecord) -> Sequence[Update]:
        """Take one event in, and return the changes that a view may show."""
        at, before = record.at, self.last_at
        if not isinstance(record.event, StepInvalidated):  # it may precede a run attempt
            self.last_at = at
        self._add_usage(record.event)
        match record.event:
            case StepStarted() as event:
                return self._start_step(event, at)
            case StepFinished() as event:
                return self._finish_step(event, at)
            case StepRenamed(path, title):
                self._running.rename(path, title)
            case ModelText(path, text):
                self._running.add_text(path, text)
            case StepOutput(path=path, text=text):
                self._running.add_output(path, text)
            case ItemsCounted() as event:
                return self._count_items(event, at)
            case ItemsReplayed(path, done):
                if (group := self._group(path)) is not None:
                    group.replay(done)
            case StepRetrying() as event:
                return self._retry_step(event, at)
            case StepInvalidated() as event:
                self._invalidate(event)
            case Note() as event:
                return self._add_note(event)
            case RunStarted() as event:
                self.earlier = self.duration(before)
                return self._start_run(event, at)
            case RunEnded() as event:
                self.status, self.failure, self.value = event.status, event.failure, event.value
                self.facts, self.ended = event.facts, at
                for part in self.maps:
                    part.cut_short = len(self.running(part))
                self._running.clear()
                return (Update("run", event),)
        return NOTHING

    # ── questions ────────────────────────────────────────────────────────

    @property
    def maps(self) -> list[Part]:
        return [part for part in self.parts.values() if part.group.is_map]

    @property
    def items(self) -> tuple[int, int] | None:
        """Items that have ended, and all; None if no part has items."""
        groups = [part.group for part in self.maps]
        if not groups:
            return None
        ended = sum(group.outcome_count for group in groups)
        return ended, sum(group.total or 0 for group in groups)

    @property
    def shown_status(self) -> Status | Literal["partial"]:
        """Its status; `partial` if it ended although items or steps failed."""
        has_failures = any(part.group.failure_count for part in self.parts.values())
        return "partial" if self.status == "done" and has_failures else self.status

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of the parts without items that have ended, and all."""
        parts = [part for part in self.parts.values() if not part.has_no_items_yet]
        groups = [part.group for part in parts if not part.group.is_map]
        ended = sum(group.outcome_count for group in groups)
        return ended, max(ended, sum(group.total or 0 for group in groups))

    def running(self, part: Part) -> list[RunningStep]:
        """What runs directly below a part, the oldest first."""
        return self._running.below(part.name)

    def all_running(self) -> list[RunningStep]:
        """Every part and step that runs, an outer one before those inside it."""
        return list(self._running)

    @property
    def running_count(self) -> int:
        return sum(len(self._running.below(name)) for name in self.parts)

    def map_inside(self, step: RunningStep) -> StepGroup | None:
        """The items that a running step works on, if it has a map."""
        return self._running.map_inside(step)

    def time(self, now: float) -> float:
        """The seconds of the current run attempt, until it ended or until `now`."""
        until = now if self.ended is None else self.ended
        return 0.0 if self.since is None else max(0.0, until - self.since)

    def duration(self, now: float) -> float:
        """The seconds of all run attempts; what passed between them does not count."""
        return self.earlier + self.time(now)

    # ── the run ──────────────────────────────────────────────────────────

    def _start_run(self, event: RunStarted, at: float) -> Sequence[Update]:
        self.run, self.flow, self.file = event.run, event.flow, event.file
        self.project = event.project
        self.run_attempts += 1
        self.started = at if self.started is None else self.started
        self.since, self.ended, self.failure, self.status = at, None, None, "running"
        self._running.clear()
        known = self.parts
        self.parts = {name: known.get(name) or Part(name, steps) for name, steps in event.phases}
        self.parts |= {name: part for name, part in known.items() if name not in self.parts}
        for part in self.parts.values():
            if part.state in ("running", "failed"):
                part.reset()
        return (Update("run", event),)

    def _add_note(self, event: Note) -> Sequence[Update]:
        about = self._running.get(event.path) if event.path not in self.parts else None
        title = "" if about is None else about.title
        note = NoteRow(event.path, event.message, title, event.warning)
        self.notes.append(note)
        self.note_count += not event.warning
        self.warning_count += event.warning
        return (Update("note", event, row=note),)

    # ── steps ────────────────────────────────────────────────────────────

    def _start_step(self, event: StepStarted, at: float) -> Sequence[Update]:
        path = event.path
        step = self._running.get(path)
        if step is not None and event.attempt > 1:
            step.attempt, step.retry_at, step.printed = event.attempt, None, ""
            return NOTHING
        if event.kind == SNAPSHOT:
            return NOTHING
        self._running.start(event, at)
        parent = parent_path(path)
        if not parent:
            part = self._part(path)
            part.start(event, at)
            return (Update("part", event, part),)
        part_above = self.parts.get(parent)
        if part_above is None or event.kind == HOOK:
            return NOTHING
        group = part_above.group
        group.start(event)
        if group.is_map and self.run_attempts > 1:
            self.failures.remove(path)
        if group.is_open and not group.is_map:
            return (Update("step", event, part_above),)
        return NOTHING

    def _finish_step(self, event: StepFinished, at: float) -> Sequence[Update]:
        path, parent = event.path, parent_path(event.path)
        step = self._running.end(path)
        if self.run_attempts > 1 and not isinstance(event.outcome, Failed):
            self.failures.remove(path)  # it failed in an earlier run attempt
        if event.kind == ITEMS and not event.replayed:
            self._select_items(parent)
        if event.kind == SNAPSHOT:
            return NOTHING
        if not parent:
            part = self._part(path)
            part.end(event)
            is_reported = _is_own_failure(event) or part.has_no_items_yet
            failures = self._add_failure(event, at) if is_reported else NOTHING
            return (*failures, Update("part", event, part))
        part_above = self.parts.get(parent)
        if part_above is None:
            # A step that is not directly below a part.
            group = self._running.maps.get(parent_path(event.path))
            if group is None:
                return self._agent_rows(event) if event.kind in (TURN, CALL) else NOTHING
            group.finish(event, at)
            self._remove_causes(event)
            return self._add_failure(event, at)
        if event.kind == HOOK:
            return NOTHING
        part_above.group.finish(event, at)
        self._remove_causes(event)
        if not part_above.group.is_open:
            return NOTHING
        return (
            *self._add_failure(event, at),
            self._outcome_update(event, part_above, None if step is None else step.usage),
        )

    def _outcome_update(self, event: StepFinished, part: Part, usage: UsageSum | None) -> Update:
        if part.group.is_map:
            return Update("item", event, part)
        if part.kind not in LISTED:
            return Update("step", event, part)
        row = make_row(event, usage)
        part.rows.append(row)
        return Update("row", event, part, row)

    def _agent_rows(self, event: StepFinished) -> Sequence[Update]:
        """A turn or call of an agent inside a part.  Those inside items are too many to show."""
        above = parent_path(event.path)
        part = self.parts.get(first_name(above))
        if part is None or part.group.is_map or self._running.is_in_map(above):
            return NOTHING
        agent = self._running.get(above)
        if agent is None and event.replayed:
            return NOTHING  # the step that contains it is replayed as a whole
        row = replace(make_row(event), inside="" if agent is None else agent.title)
        return (Update("row", event, part, row),)

    def _select_items(self, path: str) -> None:
        """A map has selected its items: the outcomes of an older selection no longer count."""
        self.failures.remove_below(path, itself=False)
        if (group := self._group(path)) is not None:
            group.invalidate_all()
            group.total = None

    def _count_items(self, event: ItemsCounted, at: float) -> Sequence[Update]:
        part = self.parts.get(event.path)
        if part is None:
            group = self._running.maps.setdefault(event.path, StepGroup(event.path))
            group.count(event.total, at)
            return NOTHING
        part.group.count(event.total, at)
        return (Update("part", event, part),)

    def _retry_step(self, event: StepRetrying, at: float) -> Sequence[Update]:
        self.retries += 1
        step = self._running.get(event.path)
        if step is None:
            return NOTHING
        step.retry_at, step.of = at + event.delay, event.of
        cause = describe_failure(event.failure)[0]
        return (Update("step", event, row=Row(step.kind, step.title, "failed", 0.0, cause=cause)),)

    def _add_usage(self, event: Event) -> None:
        """Count the usage of a model turn for the run, its part and every step that contains it."""
        match event:
            case StepFinished(path=path, used=used) | StepRetrying(path=path, used=used):
                if used is None or "turns" not in used:
                    return
                if (part := self.parts.get(first_name(path))) is not None:
                    part.usage.count(event)
                replayed = isinstance(event, StepFinished) and event.replayed
                self._running.add_usage(path, used, replayed=replayed)
            case EarlierUsage(parts=parts):
                for name, part in self.parts.items():
                    part.usage.count(EarlierUsage({name: parts.get(name, {})}))
            case _:
                return
        self.usage.count(event)

    def _add_failure(self, event: StepFinished, at: float) -> Sequence[Update]:
        if not isinstance(event.outcome, Failed):
            return NOTHING
        cause, lines = describe_failure(event.outcome.failure)
        failed = FailedStep(
            event.path,
            event.kind,
            event.title,
            cause,
            lines,
            at,
            event.order,
            event.replayed,
            short_failure(event.outcome.failure),
        )
        self.failures.add(failed)
        return (Update("failure", event, row=failed),)

    def _remove_causes(self, event: StepFinished) -> None:
        if isinstance(event.outcome, Failed):
            self.failures.remove_causes(event.path, event.outcome.failure)

    def _invalidate(self, event: StepInvalidated) -> None:
        path = event.path
        self.retries += event.why == RETRY_REASON
        failed = self.failures.find(path)
        if event.below:
            self.failures.remove_below(path)
        self.failures.remove(path)
        part = self.parts.get(path)
        if part is not None:
            part.invalidate(below=event.below)
            # The parts after one that runs again run again, too.
            names = list(self.parts)
            for name in names[names.index(path) + 1 :]:
                self.parts[name].invalidate(below=True)
                self.failures.remove_below(name)
        elif (group := self._group(parent_path(path))) is not None:
            group.invalidate(path, None if failed is None else failed.order)

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            self.parts[name] = Part(name)
        return self.parts[name]

    def _group(self, path: str) -> StepGroup | None:
        part = self.parts.get(path)
        return part.group if part is not None else self._running.maps.get(path)


def replay_events(events: Iterable[EventRecord]) -> Progress:
    """The state of a run after all these events."""
    progress = Progress()
    for record in events:
        progress.add(record)
    return progress


def make_row(
    event: StepFinished | StepRecord, usage: UsageSum | None = None, kind: str = ""
) -> Row:
    """The row of a step that has ended.  `kind` is for a `StepRecord`, which has none."""
    kind = event.kind if isinstance(event, StepFinished) else kind
    replayed = isinstance(event, StepFinished) and event.replayed
    row = Row(kind, event.title, outcome_state(event.outcome), event.duration, replayed)
    if usage is not None and usage.turns:
        row = replace(row, usage=usage)
    match event.outcome:
        case Failed(failure):
            return replace(row, cause=describe_failure(failure)[0])
        case Skipped(why):
            return replace(row, cause=why.partition("\n")[0])
        case Succeeded({"failed": True, "kind": str(cause)}) if kind == CALL:
            return replace(row, state="failed", cause=cause)
        case Succeeded({"next": str(name)}):
            return replace(row, next_node=name)
    if kind == TURN and event.used:
        total = UsageSum()
        total.add(event.used)
        return replace(row, usage=total)
    return row


def _is_own_failure(event: StepFinished) -> bool:
    """Did this part fail itself, and not one of its steps, whose failure is shown already?"""
    if not isinstance(event.outcome, Failed):
        return False
    path = event.outcome.failure.path
    return path == event.path or not is_at_or_below(path, event.path)
