"""What `plait show` prints of a run: its parts, their steps, what failed, which command to type.

`read_report` reads a journal once; `report_lines` is for people and `report_json` for programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.events import (
    Event,
    EventRecord,
    RunStarted,
    Status,
    StepFinished,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import StepRecord
from plait.engine.outcome import Failed, Skipped, Succeeded
from plait.engine.paths import MAP, is_item, parent_path
from plait.engine.replay import items_selected_at
from plait.views.format import (
    Line,
    clock,
    describe_failure,
    first_line,
    one_line,
    sign,
    state_colour,
)
from plait.views.lines import note_line, part_figures, part_summary, usage_line
from plait.views.parts import (
    AGENT,
    ASKING,
    ATTEMPT,
    ENSEMBLE,
    GRAPH,
    LISTED,
    Part,
    RunningStep,
)
from plait.views.progress import Progress
from plait.views.report_rows import row_lines
from plait.views.summary import end_reason, failed_items, project_option, suggested_commands
from plait.views.terminal import pluralize

if TYPE_CHECKING:
    from plait.views.item_table import ItemEvent

MOST_FAILURES: Final = 50
MOST_RUNNING: Final = 20
"""Running steps of a part that are shown."""


class StepLookup(Protocol):
    """The recorded steps of a run."""

    def step(self, path: str) -> StepRecord | None: ...
    def steps_in(self, path: str) -> Iterator[StepRecord]: ...


class JournalReader(Protocol):
    """What a long journal answers without reading all its events."""

    def is_long(self) -> bool: ...
    def has_string(self, strings: Iterable[str]) -> bool: ...
    def outline(self) -> Iterator[EventRecord]: ...
    def short_outline(self, most: int) -> Iterator[EventRecord]: ...
    def retries(self) -> int: ...
    def work_time(self) -> tuple[float, float | None]: ...
    def last_output_at(self) -> float | None: ...
    def final_counts(self, path: str, /) -> Mapping[str, int] | None: ...
    def count_failures(self, path: str, *, after: int = 0) -> int: ...
    def count_outcomes(self, path: str, /) -> Mapping[str, int]: ...
    def last(self) -> int: ...
    def item_rows(self, path: str, after: int, until: int) -> Sequence[ItemEvent]: ...


class StoredJournal(StepLookup, Protocol):
    @property
    def reader(self) -> JournalReader: ...
    def events(self, after: int = 0) -> Iterator[EventRecord]: ...
    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]: ...
    def completed_items(
        self, path: str, fingerprints: Collection[str] | None, *, after: int = 0
    ) -> bytes: ...


@dataclass(slots=True, eq=False)
class Report:
    """A run as `plait show` knows it."""

    run: str
    status: Status
    progress: Progress
    steps: StepLookup
    attempts: AttemptCounts


def read_report(
    run: str,
    journal: StoredJournal,
    *,
    is_running: Callable[[], bool],
    short: bool,
    whole: bool | None = None,
    watch: Callable[[EventRecord], object] | None = None,
) -> Report:
    """Read the journal of a run.

    `short`: read no more failures than fit on a screen.  `whole`: read every event; None: leave
    the items that succeeded out if the journal is long.  `watch` gets each event that is read.
    """
    outline = _Outline(journal, whole=whole, short=short)
    progress, attempts = Progress(), AttemptCounts()
    for record in outline.events():
        progress.add(record)
        attempts.add(record.event)
        if watch is not None:
            watch(record)
    outline.complete(progress)
    status = progress.status
    if progress.ended is None:  # it runs now, or its process died
        status = "running" if is_running() else "interrupted"
    if status == "running":
        outline.add_running_items(progress)
    if status == "interrupted" and progress.ended is None and progress.since is not None:
        progress.last_at = max(progress.last_at, journal.reader.last_output_at() or 0.0)
    return Report(run, status, progress, outline, attempts)


class _Outline:
    """A long journal without the items that succeeded: they are counted, and failures are shown.

    Reading the events of a million items takes a minute, finding the others a second.
    """

    def __init__(self, journal: StoredJournal, *, whole: bool | None, short: bool) -> None:
        self._journal = journal
        if whole is None:
            whole = not journal.reader.is_long() or journal.reader.has_string(ASKING)
        self._whole = whole
        self._short = short
        self._attempt_began = 0
        """The number of the event that began the last run attempt."""

    def events(self) -> Iterator[EventRecord]:
        for record in self._events():
            if isinstance(record.event, RunStarted):
                self._attempt_began = record.number
            yield record

    def _events(self) -> Iterator[EventRecord]:
        if self._whole:
            return self._journal.events()
        if self._short:
            return self._journal.reader.short_outline(MOST_FAILURES)
        return self._journal.reader.outline()

    def add_running_items(self, progress: Progress) -> None:
        """Add the items that run now: the events of an outline do not have them."""
        if self._whole or MAP not in progress.parts:
            return
        from plait.views.item_table import ItemTable

        reader, last_at = self._journal.reader, progress.last_at
        last, table = reader.last(), ItemTable(MAP)
        table.add(reader.item_rows(MAP, self._attempt_began, last))
        for row in table.running():
            if row.since is not None:
                event = StepStarted(row.path, "item", row.title, order=row.order)
                progress.add(EventRecord(last, row.since, event))
        progress.last_at = last_at

    def complete(self, progress: Progress) -> None:
        """Add the counts that the events of an outline do not have."""
        if self._whole:
            return
        progress.retries = self._journal.reader.retries()
        seconds, last_at = self._journal.reader.work_time()
        if last_at is not None:
            progress.last_at = last_at
            progress.earlier = seconds - progress.time(last_at)
        part = progress.parts.get(MAP)
        if part is not None and self._journal.reader.final_counts(MAP) is None:
            part.group.set_counts({"total": part.group.total or 0, **self._item_counts()})

    def _item_counts(self) -> dict[str, int]:
        """How many items ended how; one that ended in several run attempts counts as it did last."""
        journal, selected_at = self._journal, items_selected_at(self._journal, MAP)
        skipped = 0
        if journal.reader.count_outcomes(MAP).get("skipped"):  # rare, and needs each item
            items = current_items(journal, journal.steps_in(MAP))
            skipped = sum(isinstance(one.outcome, Skipped) for one in items)
        return {
            "successful": journal.completed_items(MAP, None, after=selected_at).count(1),
            "failed": journal.reader.count_failures(MAP, after=selected_at),
            "skipped": skipped,
        }

    def step(self, path: str) -> StepRecord | None:
        return self._journal.step(path)

    def steps_in(self, path: str) -> Iterator[StepRecord]:
        if self._whole or path != MAP:
            return self._journal.steps_in(path)
        return self._journal.failures_in(path)  # nothing else of a map is shown


def current_items(journal: StepLookup, steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
    """The items of the current selection among the steps directly below a map."""
    selected_at = items_selected_at(journal, MAP)
    return (one for one in steps if is_item(one.path) and one.number > selected_at)


class AttemptCounts:
    """How many attempts each step took when it ended last.  Only counts above one are kept."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        """By path: failed attempts of a step that has not ended."""
        self._inside: dict[str, int] = {}
        """By path: attempts of the actions of a step that has not ended."""

    def add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._failed.clear()
            case StepRetrying():
                self._failed[event.path] = event.attempt
            case StepFinished():
                count = self._inside.pop(event.path, 0) or self._failed.pop(event.path, 0) + 1
                self._ended.pop(event.path, None)
                if count > 1:
                    self._ended[event.path] = count
                if event.kind == ATTEMPT:
                    step = parent_path(event.path)
                    self._inside[step] = self._inside.get(step, 0) + count

    def get(self, path: str) -> int:
        return self._ended.get(path, 1)


# ── for people ───────────────────────────────────────────────────────────


def report_lines(report: Report, *, now: float, can_resume: bool = True) -> Iterator[Line]:
    progress, status = report.progress, report.status
    yield from _head(report, now)
    for part in progress.parts.values():
        yield _part_line(part, report, now)
        yield from _step_lines(part, report)
        if status == "running":
            yield from _running_lines(part, report, now)
    if progress.usage.turns and any(part.kind != AGENT for part in progress.parts.values()):
        yield f"  usage   {usage_line(progress.usage)}", "bold"
    for note in progress.notes:
        yield f"  {note_line(note)}", "yellow"
    # The failures that the lines above explain: of a part that failed itself they say no more.
    own = progress.failure.path if progress.failure is not None else ""
    yield from end_reason(
        progress.failure,
        [one for one in progress.failures.last if one.path != own or own not in progress.parts],
    )
    yield from suggested_commands(
        report.run,
        progress,
        retry=can_resume and status != "running",
        resume=can_resume and status in ("interrupted", "failed"),
    )


def _head(report: Report, now: float) -> Iterator[Line]:
    progress, status = report.progress, report.status
    started = now if progress.started is None else progress.started
    seconds = progress.duration(now if status == "running" else progress.last_at)
    start_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    duration = "" if progress.since is None else f", {clock(seconds)}"
    later_attempts = progress.run_attempts - 1
    continued = f", continued {pluralize(later_attempts, 'time')}" if later_attempts > 0 else ""
    run = one_line(report.run)
    shown = progress.shown_status if status == "done" else status
    words = f"finished{failed_items(progress)}" if status == "done" else status
    yield f"{sign(shown)} {one_line(progress.flow)}  run {run}  {words}", state_colour(shown)
    yield f"  {one_line(progress.file, None)}   {start_time}{duration}{continued}", "dim"


def _part_line(part: Part, report: Report, now: float) -> Line:
    state = report.status if part.state == "running" else part.shown_state
    if part.state == "running":
        alive = report.status == "running"
        figures = part_figures(report.progress, part, now, alive=alive)
        words = "  ".join(figures) if part.group.is_map else state
    elif part.state == "waiting" and not part.group.outcome_count:
        words = "not started"
    else:
        words = part_summary(part)
    return f"  {sign(state)} {one_line(part.name)}   {words}", state_colour(state)


def _step_lines(part: Part, report: Report) -> Iterator[Line]:
    if part.state == "waiting" and not part.group.outcome_count:
        return  # the steps of an earlier run attempt run again
    if part.kind in LISTED:
        yield from row_lines(part.kind, list(report.steps.steps_in(part.name)), part.usage)
        return
    for shown, step in enumerate(_visible_steps(part, report.steps)):
        if shown >= MOST_FAILURES and part.group.is_map:
            more = part.group.failure_count - MOST_FAILURES
            command = f"plait show {one_line(report.run)} --json{project_option(report.progress)}"
            yield f"      … and {more} more: {command}", "dim"
            return
        yield from _step(step, report.attempts.get(step.path))


def _running_lines(part: Part, report: Report, now: float) -> Iterator[Line]:
    """The steps that run now, and since when."""
    steps = report.progress.running(part)
    for step in steps[:MOST_RUNNING]:
        since = time.strftime("%H:%M:%S", time.localtime(step.since))
        inner = step.current
        # The action of a step may be a step inside it, with the same title.
        title = step.title if inner is None else inner.title
        doing = "" if title == step.title else f"   {one_line(title)}"
        words = f"{one_line(step.title)}{doing}   since {since}, {clock(now - step.since)}"
        yield f"      {sign('running')} {words}", state_colour("running")
    if len(steps) > MOST_RUNNING:
        yield f"      … and {len(steps) - MOST_RUNNING} more", "dim"


def _visible_steps(part: Part, steps: StepLookup) -> Iterator[StepRecord]:
    """The steps of a part; of a map the failures, without items of an older selection."""
    if not part.group.is_map:
        yield from steps.steps_in(part.name)
        return
    selected_at = items_selected_at(steps, part.name)
    for step in steps.steps_in(part.name):
        is_current = step.number > selected_at or not is_item(step.path)
        if isinstance(step.outcome, Failed) and is_current:
            yield step


def _step(step: StepRecord, attempts: int) -> Iterator[Line]:
    title, duration = one_line(step.title), clock(step.duration)
    if attempts > 1:
        duration = f"{pluralize(attempts, 'attempt')}   {duration}"
    match step.outcome:
        case Succeeded():
            yield f"      {sign('done')} {title}   {duration}", ""
        case Skipped(why):
            yield f"      {sign('skipped')} {title}   {one_line(first_line(why))}", "dim"
        case Failed(failure):
            cause, lines = describe_failure(failure)
            yield f"      {sign('failed')} {title}   {one_line(cause)}   {duration}", "red"
            for line in lines:
                yield f"          {one_line(line, None)}", ""


# ── for programs ─────────────────────────────────────────────────────────


def report_json(report: Report, *, now: float) -> dict[str, Json]:
    progress = report.progress
    until = now if report.status == "running" else progress.last_at
    return {
        "id": report.run,
        "flow": progress.flow,
        "file": progress.file,
        "project": progress.project,
        "status": report.status,
        "started": progress.started,
        "ended": progress.ended,
        "duration": round(progress.duration(until), 6),
        "run_attempts": progress.run_attempts,
        "retries": progress.retries,
        "usage": progress.usage.record(),
        "failure": progress.failure and progress.failure.record(),
        "phases": [_part_json(part, report) for part in progress.parts.values()],
        "notes": [
            {
                "path": note.path,
                "level": "warning" if note.warning else "note",
                "message": note.message,
            }
            for note in progress.notes
        ],
    }


def _part_json(part: Part, report: Report) -> dict[str, Json]:
    group = part.group
    shared: dict[str, Json] = {
        "name": part.name,
        "kind": part.kind,
        "status": part.state,
        "duration": part.duration,
        "total": None if part.has_no_items_yet else group.total,
        "done": group.success_count,
        "failed": group.failure_count,
        "skipped": group.skip_count,
    }
    steps = [
        {**_step_json(step, report.attempts), **_step_facts(part, step)}
        for step in _visible_steps(part, report.steps)
    ]
    if report.status == "running":
        shared["running"] = [_running_json(step) for step in report.progress.running(part)]
    return {**shared, "failures" if group.is_map else "steps": steps}


def _running_json(step: RunningStep) -> dict[str, Json]:
    inner = step.current
    return {
        "path": step.path,
        "title": step.title,
        "since": step.since,
        "attempt": step.attempt,
        "inside": None if inner is None else {"path": inner.path, "title": inner.title},
    }


FACTS: Final = {
    AGENT: ("usage", "model", "tool", "failed", "kind"),
    GRAPH: ("next",),
    ENSEMBLE: ("agent", "usage", "model", "turns", "iterations"),
}
"""By the kind of a part: the fields of the values of its steps that `--json` has."""


def _step_facts(part: Part, step: StepRecord) -> dict[str, Json]:
    value = step.outcome.value if isinstance(step.outcome, Succeeded) else None
    if not isinstance(value, dict):
        return {}
    return {name: value[name] for name in FACTS.get(part.kind, ()) if name in value}


def _step_json(step: StepRecord, attempts: AttemptCounts) -> dict[str, Json]:
    shared: dict[str, Json] = {
        "path": step.path,
        "title": step.title,
        "duration": step.duration,
        "attempts": attempts.get(step.path),
    }
    match step.outcome:
        case Succeeded():
            return {**shared, "status": "done"}
        case Skipped(why):
            return {**shared, "status": "skipped", "why": why}
        case Failed(failure):
            return {**shared, "status": "failed", "failure": failure.record()}
