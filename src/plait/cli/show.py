"""`plait show`: what happened in a run: its parts and their steps, what failed, and what to type
next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping

from plait.cli.run import require_folder
from plait.cli.trust_prompt import add_project
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.values import Json
from plait.engine.events import Event, EventRecord, RunStarted, Status, StepFinished, StepRetrying
from plait.engine.journal import Journal, StepRecord
from plait.engine.outcome import Failed, Skipped, Succeeded
from plait.engine.paths import is_item
from plait.engine.replay import items_selected_at
from plait.views.format import Line, clock, first_line, json_line, one_line, pluralize, write_lines
from plait.views.parts import AGENT, ASKING, ENSEMBLE, GRAPH, LISTED, FailedStep, Part
from plait.views.progress import Progress, describe_failure
from plait.views.text import (
    end_reason,
    note_line,
    part_figures,
    part_summary,
    project_named,
    suggested_commands,
    usage_line,
)

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait show 7f3a",
    "plait show last --json",
)
MOST_FAILURES: Final = 50
MAP: Final = "map"
ATTEMPT: Final = "attempt"
"""The kind of what a step does, where it is a step of its own because something follows it."""
SIGNS: Final = {
    "waiting": ("○", "dim"),
    "running": ("●", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "interrupted": ("●", "yellow"),
}


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; otherwise the newest"
    )
    parser.add_argument(
        "--json", action="store_true", help="the same for programs, with every failure"
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.flow_source import CHAT

    require_folder(options.project)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        progress, tries = Progress(), AttemptCounts()
        journal = _Outline.of(opened.journal, short=not options.json)
        for stamped in journal.events():
            progress.add(stamped)
            tries.add(stamped.event)
        journal.settle(progress)
        status = progress.status
        if progress.ended is None:  # it runs, or whoever ran it died
            status = "running" if runs.is_running(name) else "interrupted"
        if options.json:
            shown = record(name, status, progress, journal, tries)
            print(json_line(shown if opened.is_own else {**shown, "foreign": True}))
        else:
            progress.project = (
                opened.project
            )  # not where it began: that may be another folder, of others
            goes_on = opened.facts.get("kind") != CHAT and opened.is_own
            said = lines(name, status, progress, journal, tries, now=time.time(), goes_on=goes_on)
            write_lines(said, sys.stdout)
            if not opened.is_own:
                command = f"plait trust run {one_line(name)}{project_named(progress)}"
                note = f"  foreign      {command} takes it over", "yellow"
                write_lines(iter([note]), sys.stdout)
            if (
                opened.facts.get("kind") == "graph" and opened.is_own
            ):  # else its journal names no file for us
                write_lines(_way(str(opened.facts.get("file", "")), opened.journal), sys.stdout)
    return 0


def _way(file: str, journal: Journal) -> Iterator[Line]:
    """The way through a graph, as long as its file can be read."""
    from plait.cli.graph import picture_of_run, text_lines
    from plait.core.errors import PlaitError

    try:
        picture = picture_of_run(file, journal)
    except PlaitError:
        return
    yield from (("  " + text, colour) for text, colour in text_lines(picture))


class Steps(Protocol):
    """What is asked of a journal here, once its events were told."""

    def step(self, path: str) -> StepRecord | None: ...
    def steps_in(self, path: str) -> Iterator[StepRecord]: ...


class Reading(Protocol):
    """What is known of a long journal without going through it."""

    def is_long(self) -> bool: ...
    def has_string(self, strings: Iterable[str]) -> bool: ...
    def outline(self) -> Iterator[EventRecord]: ...
    def short_outline(self, most: int) -> Iterator[EventRecord]: ...
    def retries(self) -> int: ...
    def final_counts(self, map: str) -> Mapping[str, int] | None: ...
    def count_failures(self, path: str, *, after: int = 0) -> int: ...
    def count_outcomes(self, fan: str) -> Mapping[str, int]: ...


class StoredJournal(Steps, Protocol):
    """A journal that was kept."""

    @property
    def reader(self) -> Reading: ...
    def events(self, after: int = 0) -> Iterator[EventRecord]: ...
    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]: ...
    def completed_items(self, path: str, fingerprint: str | None, *, after: int = 0) -> bytes: ...


class _Outline:
    """A long journal without what went well in its map: that is counted, and only failures are
    shown.

    To look through the events of a million items takes a minute, and to find the others a second.
    """

    def __init__(self, journal: StoredJournal, *, whole: bool, short: bool = False) -> None:
        self._journal = journal
        self._whole = whole
        self._short = short
        """Of failures no more is told than fits on a screen: there may be as many as items."""

    @classmethod
    def of(cls, journal: StoredJournal, *, short: bool) -> _Outline:
        reader = journal.reader
        return cls(journal, whole=not reader.is_long() or reader.has_string(ASKING), short=short)

    def events(self) -> Iterator[EventRecord]:
        if self._whole:
            yield from self._journal.events()
        elif self._short:
            yield from self._journal.reader.short_outline(MOST_FAILURES)
        else:
            yield from self._journal.reader.outline()

    def settle(self, progress: Progress) -> None:
        """Count the items of a map that has not said itself how they ended."""
        part = progress.parts.get(MAP)
        if self._whole:
            return
        progress.retries = self._journal.reader.retries()
        if part is not None and self._journal.reader.final_counts(MAP) is None:
            part.group.settle({"total": part.group.total or 0, **self._counts()})

    def _counts(self) -> dict[str, int]:
        """How many items ended how; one that ended in several lives of the run counts as it did
        last.
        """
        skipped, chosen = 0, items_selected_at(self._journal, MAP)
        if self._journal.reader.count_outcomes(MAP).get(
            "skipped"
        ):  # seldom, and then each has to be looked at
            items = current_items(self._journal, self._journal.steps_in(MAP))
            skipped = sum(isinstance(one.outcome, Skipped) for one in items)
        return {
            "successful": self._journal.completed_items(MAP, None, after=chosen).count(1),
            "failed": self._journal.reader.count_failures(MAP, after=chosen),
            "skipped": skipped,
        }

    def step(self, path: str) -> StepRecord | None:
        return self._journal.step(path)

    def steps_in(self, path: str) -> Iterator[StepRecord]:
        if self._whole or path != MAP:
            return self._journal.steps_in(path)
        return self._journal.failures_in(path)  # of a map nothing else is shown


def current_items(journal: Steps, ended: Iterable[StepRecord]) -> Iterator[StepRecord]:
    """Those of the steps directly below a map that are items, of its present choice."""
    chosen = items_selected_at(journal, MAP)
    return (one for one in ended if is_item(one.path) and one.number > chosen)


class AttemptCounts:
    """How many attempts each step took when it ended last; kept of those that took more than
    one.
    """

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        """By path: attempts that failed, of a step that has not ended."""
        self._inside: dict[str, int] = {}
        """By path: attempts of the actions of a step that has not ended."""

    def add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._failed.clear()
            case StepRetrying():
                self._failed[event.path] = event.attempt
            case StepFinished():
                tries = self._inside.pop(event.path, 0) or self._failed.pop(event.path, 0) + 1
                self._ended.pop(event.path, None)
                if tries > 1:
                    self._ended[event.path] = tries
                if event.kind == ATTEMPT:
                    step = event.path.rpartition("/")[0]
                    self._inside[step] = self._inside.get(step, 0) + tries

    def of(self, path: str) -> int:
        return self._ended.get(path, 1)


# ── for people ───────────────────────────────────────────────────────────


def lines(
    run: str,
    status: Status,
    progress: Progress,
    journal: Steps,
    tries: AttemptCounts,
    *,
    now: float,
    goes_on: bool = True,
) -> Iterator[Line]:
    """`goes_on`: it can be resumed or retried."""
    yield from _head(run, status, progress, now)
    for part in progress.parts.values():
        yield from _part(part, status, progress, now)
        yield from _steps(part, journal, tries)
    if progress.asked.turns and any(part.kind != AGENT for part in progress.parts.values()):
        yield f"  asked   {usage_line(progress.asked)}", "bold"
    for note in progress.notes:
        yield f"  {note_line(note)}", "yellow"
    yield from end_reason(progress.failure, _visible_failures(progress))
    resume = goes_on and status in ("interrupted", "failed")
    yield from suggested_commands(
        run, progress, retry=goes_on and status != "running", resume=resume
    )


def _visible_failures(progress: Progress) -> list[FailedStep]:
    """The failures that are said above; of a part that failed by itself no more is than its
    state.
    """
    own = progress.failure.path if progress.failure is not None else ""
    return [one for one in progress.failures if one.path != own or own not in progress.parts]


def _head(run: str, status: Status, progress: Progress, now: float) -> Iterator[Line]:
    sign, colour = SIGNS[status]
    started = now if progress.started is None else progress.started
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    until = now if progress.ended is None and status == "running" else progress.ended
    spent = "" if until is None else f", {clock(until - started)}"
    lives = f", resumed {pluralize(progress.lives - 1, 'time')}" if progress.lives > 1 else ""
    yield f"{sign} {one_line(progress.flow)}  run {one_line(run)}  {status}", colour
    yield f"  {one_line(progress.file, None)}   {began}{spent}{lives}", "dim"


def _part(part: Part, status: Status, progress: Progress, now: float) -> Iterator[Line]:
    state = status if part.state == "running" else part.state
    sign, colour = SIGNS[state]
    if part.state == "running":
        far = part_figures(progress, part, now, alive=status == "running")
        said = "  ".join(far) if part.group.is_fan else state
        yield f"  {sign} {one_line(part.name)}   {said}", colour
    elif part.state == "waiting" and not part.group.outcome_count:
        yield f"  {sign} {one_line(part.name)}   not begun", colour
    else:
        yield f"  {sign} {one_line(part.name)}   {part_summary(part)}", colour


def _steps(part: Part, journal: Steps, tries: AttemptCounts) -> Iterator[Line]:
    if part.state == "waiting" and not part.group.outcome_count:
        return  # what an earlier life did in it will be done again
    if part.kind in LISTED:
        from plait.views import show_rows

        yield from show_rows.lines(part.kind, list(journal.steps_in(part.name)), part.asked)
        return
    for shown, step in enumerate(_visible_steps(part, journal)):
        if shown >= MOST_FAILURES and part.group.is_fan:
            yield (
                f"      … and {part.group.failure_count - MOST_FAILURES} more: plait show --json",
                "dim",
            )
            return
        yield from _step(step, tries.of(step.path))


def _visible_steps(part: Part, journal: Steps) -> Iterator[StepRecord]:
    """The steps of a part; of one with items what failed in it, without items of an older
    choice.
    """
    if not part.group.is_fan:
        yield from journal.steps_in(part.name)
        return
    chosen = items_selected_at(journal, part.name)
    for step in journal.steps_in(part.name):
        if isinstance(step.outcome, Failed) and (step.number > chosen or not is_item(step.path)):
            yield step


def _step(step: StepRecord, tries: int) -> Iterator[Line]:
    title, time_spent = one_line(step.title), clock(step.duration)
    if tries > 1:
        time_spent = f"{pluralize(tries, 'attempt')}   {time_spent}"
    match step.outcome:
        case Succeeded():
            yield f"      ✓ {title}   {time_spent}", ""
        case Skipped(why):
            yield f"      – {title}   {one_line(first_line(why))}", "dim"
        case Failed(failure):
            how, said = describe_failure(failure)
            yield f"      ✗ {title}   {one_line(how)}   {time_spent}", "red"
            for line in said:
                yield f"          {one_line(line, None)}", ""


# ── for programs ─────────────────────────────────────────────────────────


def record(
    run: str, status: Status, progress: Progress, journal: Steps, tries: AttemptCounts
) -> dict[str, Json]:
    return {
        "id": run,
        "flow": progress.flow,
        "file": progress.file,
        "project": progress.project,
        "status": status,
        "started": progress.started,
        "ended": progress.ended,
        "lives": progress.lives,
        "retries": progress.retries,
        "asked": progress.asked.record(),
        "failure": progress.failure and progress.failure.record(),
        "phases": [_part_record(part, journal, tries) for part in progress.parts.values()],
        "notes": [
            {
                "path": note.path,
                "level": "warning" if note.warning else "note",
                "message": note.message,
            }
            for note in progress.notes
        ],
    }


def _part_record(part: Part, journal: Steps, tries: AttemptCounts) -> dict[str, Json]:
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
    found = _visible_steps(part, journal)
    if group.is_fan:
        return {**shared, "failures": [_record(one, tries) for one in found]}
    return {**shared, "steps": [{**_record(one, tries), **_facts(part, one)} for one in found]}


FACTS: Final = {
    AGENT: ("usage", "model", "tool", "failed", "kind"),
    GRAPH: ("next",),
    ENSEMBLE: ("agent", "usage", "model", "turns", "iterations"),
}
"""What is told of the value of a step, by the kind of the part that it is in."""


def _facts(part: Part, step: StepRecord) -> dict[str, Json]:
    value = step.outcome.value if isinstance(step.outcome, Succeeded) else None
    if not isinstance(value, dict):
        return {}
    return {name: value[name] for name in FACTS.get(part.kind, ()) if name in value}


def _record(step: StepRecord, tries: AttemptCounts) -> dict[str, Json]:
    shared: dict[str, Json] = {
        "path": step.path,
        "title": step.title,
        "duration": step.duration,
        "attempts": tries.of(step.path),
    }
    match step.outcome:
        case Succeeded():
            return {**shared, "status": "done"}
        case Skipped(why):
            return {**shared, "status": "skipped", "why": why}
        case Failed(failure):
            return {**shared, "status": "failed", "failure": failure.record()}
