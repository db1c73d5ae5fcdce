"""A run in plain lines, as JSON, or in silence: the views that need no terminal.

Every line is finished when it is written, and nothing in it can drive a terminal:
names and messages of a run come from files and programs, so control characters in
them are replaced.  What the last lines say is the same for every view, see `summary`.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from threading import Lock

from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Final, Protocol, TextIO
from plait.core.values import Json, json_text
from plait.engine.events import (
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ItemsReplayed,
    ModelText,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepInvalidated,
    StepRenamed,
    StepRetrying,
    StepStarted,
)
from plait.engine.events import (
    Note as Noted,
)
from plait.engine.limits import UsageTally
from plait.engine.outcome import (
    ABORTED,
    TOO_MANY,
    Failed,
    Failure,
    Outcome,
    Skipped,
    Succeeded,
    to_record,
)
from plait.engine.paths import is_at_or_below
from plait.views.format import (
    clock,
    first_line,
    json_line,
    money,
    nth_attempt,
    one_line,
    pluralize,
    short,
    speed,
    without_sequences,
    write_lines,
)
from plait.views.news import (
    ItemEnded,
    News,
    PartBegan,
    PartCounted,
    PartEnded,
    Retrying,
    RowEnded,
    RunBegan,
    RunOver,
    StepBegan,
    StepEnded,
)
from plait.views.parts import (
    AGENT,
    CALL,
    ENSEMBLE,
    GRAPH,
    HOOK,
    LISTED,
    TURN,
    FailedStep,
    Note,
    Part,
    Row,
)
from plait.views.progress import Progress

if TYPE_CHECKING:
    from plait.views.format import Line

PROGRESS_PAUSE: Final = 10.0
"""Seconds between two lines that say how far a part is."""
MOST_PRINTED: Final = 50
"""Failures, and notes, that are printed as they happen; all are counted."""
MOST_WARNINGS: Final = 5
"""Of so many warnings a run reminds at its end."""
MOST_IN_SUMMARY: Final = 10
MOST_OUTPUT: Final = 10
MOST_OF_A_LINE: Final = 500
"""Characters of one line of what a flow gave."""
AT_ONCE: Final = frozenset({TURN, CALL, "gate", "return"})
"""Kinds of steps of which only the end is told."""
NOUNS: Final = {GRAPH: "visit", ENSEMBLE: "task", AGENT: "step"}
"""What the steps of a part are called."""
LINE_OF_DATA: Final = 100
"""Characters of data that stand on one line; more is spread over several."""


class Result(Protocol):
    """What became of a run, as those who started it know."""

    @property
    def run(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def value(self) -> Json: ...
    @property
    def counts(self) -> Mapping[str, Json]: ...
    @property
    def has_seal(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...


class View(Protocol):
    """Shows a run.  `watch` is called by one thread at a time, `stopping` by any."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...

    def watch(self, stamped: EventRecord) -> None: ...

    def stopping(self, *, at_once: bool) -> None:
        """The user wants the run to stop."""

    def aside(self) -> AbstractContextManager[object]:
        """While somebody else uses the terminal, to ask a question."""

    def finish(self, result: Result) -> None:
        """The run is over."""


# ── plain lines ──────────────────────────────────────────────────────────


class PlainView:
    """Starts and ends of parts and steps, failures, and now and then how far it is."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
        self._stream = stream
        self._lock = Lock()
        self._said = LimitedOutput()
        self._told_at: dict[str, float] = {}

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, stamped: EventRecord) -> None:
        with self._lock:
            for news in self.progress.add(stamped):
                for line in self._lines(news, stamped.at):
                    print(line, file=self._stream, flush=True)

    def stopping(self, *, at_once: bool) -> None:
        with self._lock:
            print(stopping_line(self.progress, at_once=at_once), file=self._stream, flush=True)

    def aside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        write_lines(summary(self.progress, result), self._stream)

    def _lines(self, news: News, at: float) -> Iterator[str]:
        match news:
            case ItemEnded(part):
                if at - self._told_at.get(part.name, at - PROGRESS_PAUSE) >= PROGRESS_PAUSE:
                    self._told_at[part.name] = at
                    yield f"{one_line(part.name)}: {'  '.join(part_figures(self.progress, part, at))}"
            case PartBegan(part):
                self._told_at[part.name] = at
                yield from plain_lines(news, self.progress)
            case FailedStep() | Note():
                yield from self._said.lines(news, self.progress)
            case _:
                yield from plain_lines(news, self.progress)


def plain_lines(news: News, progress: Progress) -> Iterator[str]:
    """What there is to say, one line each."""
    match news:
        case RunBegan(resumed):
            again = ", resumed" if resumed else ""
            yield f"{one_line(progress.flow)}: run {one_line(progress.run)}{again}, {one_line(progress.file)}"
        case PartBegan(part):
            yield f"{one_line(part.name)}: started"
        case PartCounted(part):
            yield f"{one_line(part.name)}: {pluralize(part.group.total or 0, 'item')}"
        case PartEnded(part):
            yield f"{one_line(part.name)}: {part_summary(part)}"
        case StepBegan(part, step):
            if step.kind not in AT_ONCE:
                yield f"{one_line(part.name)}: {one_line(step.title)}: started"
        case RowEnded(part, within, row):
            inside = f"{one_line(within)}: " if within else ""
            yield f"{one_line(part.name)}: {inside}{row_line(row)}"
        case StepEnded(part, title, outcome, duration, replayed):
            took = _took(duration, replayed=replayed)
            yield f"{one_line(part.name)}: {one_line(title)}: {_word(outcome)}{took}"
        case FailedStep() as failed:
            yield failure_line(failed)
        case Note():
            yield note_line(news)
        case Retrying(title, attempt, of, how, delay):
            tried = nth_attempt(attempt, of)
            yield f"{one_line(title)}: {tried} failed ({one_line(how)}), again in {delay:.3g} s"
        case ItemEnded() | RunOver():
            return


def row_line(row: Row) -> str:
    """turn 2: done, 0:04, 0.9k tokens, $0.02 — or: core/file/write …: refused, 0:00."""
    asked = f", {usage_words(row.asked, turns=row.kind != TURN)}" if row.asked is not None else ""
    leads = f" → {one_line(row.to)}" if row.to else ""
    return (
        f"{one_line(row.title)}: "
        f"{row_state(row)}{_took(row.duration, replayed=row.replayed)}{asked}{leads}"
    )


def row_state(row: Row) -> str:
    """How it ended; of a call that came to nothing, why."""
    if row.state == "skipped":
        return f"skipped ({one_line(row.how)})"
    if row.how in ("", row.state):
        return row.state
    return "refused" if row.how == "refused" else f"{row.state} ({one_line(row.how)})"


class LimitedOutput:
    """Failures and notes as they happen, until they are too many."""

    def __init__(self) -> None:
        self._printed = {FailedStep: 0, Note: 0}

    def lines(self, news: FailedStep | Note, progress: Progress) -> Iterator[str]:
        if isinstance(news, FailedStep) and news.replayed:
            return  # it failed in an earlier life of the run, and was told then
        kind = type(news)
        self._printed[kind] += 1
        if self._printed[kind] <= MOST_PRINTED:
            yield from plain_lines(news, progress)
        elif self._printed[kind] == MOST_PRINTED + 1:
            what = "failures" if kind is FailedStep else "notes"
            yield f"more {what} are counted and not printed: plait show {one_line(progress.run)}"


# ── JSON ─────────────────────────────────────────────────────────────────


class JsonView:
    """One object per event and line, and a last one with the result."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = Lock()
        self._asked = UsageTally()

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, stamped: EventRecord) -> None:
        self._asked.count(stamped.event)
        self._write(
            {"number": stamped.number, "at": round(stamped.at, 6), **event_json(stamped.event)}
        )

    def stopping(self, *, at_once: bool) -> None:
        self._write({"event": "stopping", "at_once": at_once})

    def aside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        asked: dict[str, Json] = {"asked": self._asked.record()} if self._asked.turns else {}
        self._write({"event": "result", **result_record(result), **asked})

    def _write(self, record: Mapping[str, Json]) -> None:
        with self._lock:
            print(json_line(record), file=self._stream, flush=True)


def event_json(event: Event) -> dict[str, Json]:
    """An event for programs: its name, and its fields."""
    match event:
        case RunStarted():
            return {
                "event": "run_started",
                **_fields(event, "run", "flow", "file", "project", "resumed"),
                "phases": [{"name": name, "steps": steps} for name, steps in event.phases],
            }
        case StepStarted():
            return {
                "event": "step_started",
                **_fields(event, "path", "kind", "title", "attempt", "order"),
            }
        case StepRetrying():
            return {
                "event": "step_retrying",
                **_fields(event, "path", "attempt", "of", "delay"),
                "failure": event.failure.record(),
                **_used(event),
            }
        case StepFinished():
            return {
                "event": "step_finished",
                **_fields(event, "path", "kind", "title", "order", "duration", "replayed"),
                **_used(event),
                **to_record(event.outcome),
            }
        case ModelText():
            return {"event": "spoken", **_fields(event, "path", "text")}
        case StepRenamed():
            return {"event": "step_titled", **_fields(event, "path", "title")}
        case ItemsCounted():
            return {"event": "step_counted", **_fields(event, "path", "total")}
        case ItemsReplayed():
            return {"event": "items_remembered", "path": event.path, "count": event.done.count(1)}
        case EarlierUsage():
            return {
                "event": "used_before",
                "parts": {name: dict(used) for name, used in event.parts.items()},
            }
        case StepInvalidated():
            return {"event": "step_forgotten", **_fields(event, "path", "why", "below")}
        case Noted():
            return {
                "event": "noted",
                "level": "warning" if event.warning else "note",
                **_fields(event, "path", "message"),
            }
        case RunEnded():
            return {
                "event": "run_ended",
                **_fields(event, "status", "facts"),
                "failure": event.failure and event.failure.record(),
            }


def _used(event: StepFinished | StepRetrying) -> dict[str, Json]:
    return {} if event.used is None else {"used": dict(event.used)}


def _fields(event: Event, *names: str) -> dict[str, Json]:
    return {name: getattr(event, name) for name in names}


def result_record(result: Result) -> dict[str, Json]:
    return {
        "run": result.run,
        "status": result.status,
        "exit_code": result.exit_code,
        "counts": dict(result.counts),
        "failure": result.failure and result.failure.record(),
        "value": result.value,
    }


# ── silence ──────────────────────────────────────────────────────────────


class QuietView:
    """Nothing, unless it fails; then why, on standard error."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
        self._stream = stream

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def watch(self, stamped: EventRecord) -> None:
        self.progress.add(stamped)

    def stopping(self, *, at_once: bool) -> None:
        print(stopping_line(self.progress, at_once=at_once), file=self._stream, flush=True)

    def aside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, result: Result) -> None:
        if result.exit_code:
            write_lines(summary(self.progress, result), self._stream)


# ── what every view says ─────────────────────────────────────────────────


def stopping_line(progress: Progress, *, at_once: bool) -> str:
    running = progress.running_count
    if at_once:
        return "stopping at once …"
    if not running:
        return "stopping …"
    kind = "item" if progress.maps else "step"
    gets = "gets" if running == 1 else "get"
    return (
        f"stopping: {pluralize(running, f'running {kind}')} {gets} {grace_seconds():g} s … (again: "
        "at once)"
    )


def summary(progress: Progress, result: Result) -> Iterator[Line]:
    """The last lines: how it ended, what was written, what failed and what to type next."""
    yield from _ending(progress, result)
    for note in islice((note for note in progress.notes if note.warning), MOST_WARNINGS):
        yield f"  {note_line(note)}", "yellow"
    yield from _output(progress, result)
    yield from _file_lines(progress)
    if result.status != "interrupted":
        yield from failures(progress, result)
    if result.status == "done" and not progress.failure_count and _lists(progress):
        run, where = one_line(result.run), project_named(progress)
        yield f"  look at it   plait show {run}{where}   plait logs {run}{where}", "dim"


def _lists(progress: Progress) -> bool:
    """Is there a part whose steps nobody could know before: an agent, a graph, an ensemble?"""
    return any(part.kind in LISTED for part in progress.parts.values())


def _ending(progress: Progress, result: Result) -> Iterator[Line]:
    if result.status == "interrupted":
        run, where = one_line(result.run), project_named(progress)
        again = f"{_before_all(result, where)}plait resume {run}{where}"
        yield f"stopped. {_progress_sentence(progress)} Continue with:  {again}", "yellow"
        return
    facts = "   ".join([*tallies(progress), *_cost(progress)])
    time = clock(progress.time(progress.last_at))
    if result.status == "done":
        yield f"✓ done in {time}   {facts}".rstrip(), _colour_of_done(progress)
        return
    yield f"✗ failed after {time}   {facts}".rstrip(), "red"
    yield from end_reason(result.failure, progress.failures)


def _colour_of_done(progress: Progress) -> str:
    return "yellow" if progress.failure_count or progress.warning_count else "green"


def _progress_sentence(progress: Progress) -> str:
    ended, total = progress.items or progress.steps
    kind = "item" if progress.items else "step"
    verb = "is" if total == 1 else "are"
    return f"{ended} of {pluralize(total, kind)} {verb} recorded."


def end_reason(failure: Failure | None, listed: Iterable[FailedStep]) -> Iterator[Line]:
    """Why a run ended, unless it is one of the failures that are listed beside it."""
    if failure is None or any(_is_covered_by(failure, failed) for failed in listed):
        return
    for line in failure.message.splitlines():
        yield f"  {one_line(line, None)}", "red"


def _is_covered_by(failure: Failure, failed: FailedStep) -> bool:
    """Is it this one, or inside of it?  That a hook ends all is no failure of the step that it is
    about.
    """
    return is_at_or_below(failure.path, failed.path) and (
        failure.kind != ABORTED or failed.kind == HOOK
    )


def tallies(progress: Progress) -> Iterator[str]:
    """How many items and steps there were, and what became of them."""
    for part in progress.maps:
        group = part.group
        parts = [f"{group.success_count} done"]
        parts += [f"{group.failure_count} failed"] if group.failure_count else []
        parts += [f"{group.skip_count} skipped"] if group.skip_count else []
        if progress.ended is None:
            parts += [f"{group.pending_count} left"] if group.pending_count else []
        else:
            parts += [f"{part.cut_short} cut short"] if part.cut_short else []
            waiting = group.pending_count - part.cut_short
            parts += [f"{waiting} not started"] if waiting > 0 else []
        yield f"{one_line(part.name)}: {pluralize(group.total or 0, 'item')}, {', '.join(parts)}"
    steps = progress.steps
    kinds = {part.kind for part in progress.parts.values()}
    if steps[1] and kinds != {AGENT}:  # what an agent did is said with what it took
        all_of_them = "" if steps[0] == steps[1] else f"{steps[0]} of "
        noun = NOUNS.get(kinds.pop(), "step") if len(kinds) == 1 else "step"
        yield f"{all_of_them}{pluralize(steps[1], noun)}{_went_on(progress)}"
    if progress.retries:
        yield pluralize(progress.retries, "retry", "retries")
    if progress.warning_count:
        yield pluralize(progress.warning_count, "warning")
    if progress.note_count:
        yield pluralize(progress.note_count, "note")


def _went_on(progress: Progress) -> str:
    """Of a run that is done: steps that failed, and were allowed to."""
    failed = sum(
        part.group.failure_count for part in progress.parts.values() if not part.group.is_fan
    )
    return f", {failed} failed and the run went on" if failed and progress.status == "done" else ""


def _cost(progress: Progress) -> Iterator[str]:
    cost = progress.facts.get("cost")
    if progress.asked.turns:
        yield usage_line(progress.asked)
    elif isinstance(cost, int | float) and not isinstance(cost, bool):
        yield f"${cost:.2f}"


def usage_line(asked: UsageTally) -> str:
    """What models took: 3 turns, 4.1k tokens, $0.02."""
    return usage_words(asked, turns=True)


def usage_words(asked: UsageTally, *, turns: bool) -> str:
    said = [pluralize(asked.turns, "turn")] if turns else []
    about = "about " if asked.estimated else ""
    said += [f"{about}{short(asked.tokens)} tokens", *([money(asked.cost)] if asked.cost else [])]
    return ", ".join(said)


def _output(progress: Progress, result: Result) -> Iterator[Line]:
    """What the flow gave: text, or the data of a graph or an ensemble."""
    output = _result_text(result.value, data=_lists(progress))
    if not output.strip():
        return
    lines = without_sequences(output).strip("\n").split("\n")
    shown = lines[:MOST_OUTPUT]
    for line in shown:
        yield f"  {_shorten_line(line)}", ""
    if len(lines) > MOST_OUTPUT:
        more = pluralize(len(lines) - MOST_OUTPUT, "more line")
        yield f"  … {more}: plait logs {one_line(result.run)}{project_named(progress)}", "dim"
    elif any(len(line) > MOST_OF_A_LINE for line in shown):
        yield f"  … whole lines: plait logs {one_line(result.run)}{project_named(progress)}", "dim"


def _shorten_line(line: str) -> str:
    # Cut before it is looked at sign by sign: it may have millions of them.
    return one_line(line[: MOST_OF_A_LINE + 1], MOST_OF_A_LINE)


def _result_text(value: Json, *, data: bool) -> str:
    value = value if isinstance(value, Mapping) else {}
    output, said = value.get("output"), value.get("text")
    if isinstance(output, str):
        return output
    if isinstance(said, str) and said and (output is None or _says_only(said, output)):
        return said  # of an agent: its answer, as it gave it
    if not data or output in (None, {}, []):
        return ""
    whole = json_text(output)
    return whole if len(whole) <= LINE_OF_DATA else json.dumps(output, indent=2, ensure_ascii=False)


def _says_only(text: str, data: Json) -> bool:
    """Is it the data, with nothing around it?"""
    try:
        return bool(json.loads(text) == data)
    except (ValueError, RecursionError):
        return False


def _file_lines(progress: Progress) -> Iterator[Line]:
    files = progress.facts.get("files")
    if isinstance(files, list):
        for path in files:
            yield f"  wrote  {one_line(str(path), None)}", ""


def failures(progress: Progress, result: Result) -> Iterator[Line]:
    """What failed, with its last lines, and the commands that look at it and do it again."""
    shown = list(progress.failures)[-MOST_IN_SUMMARY:]
    for failed in shown:
        yield f"  ✗ {one_line(failed.title)}   {one_line(failed.cause)}", "red"
        for line in failed.lines:
            yield f"      {one_line(line, None)}", ""
    show = f"plait show {one_line(result.run)}{project_named(progress)}"
    if more := progress.failure_count - len(shown):
        yield f"  … and {more} more that failed: {show}", "red"
    if not shown and _has_failed_items(
        progress
    ):  # in an earlier life, of which nothing was told in this one
        yield f"  look at it   {show}", "dim"
    # What failed behind the items is tried again without them.
    first = _before_all(result, project_named(progress))
    yield from suggested_commands(
        result.run, progress, retry=True, resume=result.status != "done", first=first
    )


def _before_all(result: Result, where: str) -> str:
    """A run without a seal has to be taken over before anybody goes on with it."""
    return "" if result.has_seal else f"plait trust run {one_line(result.run)}{where}; "


def suggested_commands(
    run: str, progress: Progress, *, retry: bool, resume: bool, first: str = ""
) -> Iterator[Line]:
    """What to type about failures: to look at the last one, and, if it makes sense, to do them
    again.

    `first`: what has to be typed before that.
    """
    run, where = one_line(run), project_named(progress)
    if progress.failures:
        yield (
            f"  look at it   plait logs {run} {step_argument(progress.failures[-1])}{where}",
            "dim",
        )
    if retry and _has_failed_items(progress):
        yield f"  try again    {first}plait retry {run} --failed{where}", "dim"
    if resume:
        yield (
            f"  go on        {_before_going_on(progress.failure)}{first}plait resume {run}{where}",
            "dim",
        )


def _has_failed_items(progress: Progress) -> bool:
    return any(part.group.failure_count for part in progress.maps)


def project_named(progress: Progress) -> str:
    """What stands at the end of a command about a run whose project is another one than where we
    are.
    """
    from plait.core.projects import current_project

    project = progress.project
    if not os.path.isdir(project) or os.path.realpath(project) == os.path.realpath(
        current_project()
    ):
        return ""
    return f" --project {shlex.quote(one_line(os.path.relpath(project), None))}"


def _before_going_on(failure: Failure | None) -> str:
    """A run does not go on by itself where too many items failed, since they stay failed."""
    return "allow more failures in the file, then " if failure and failure.kind == TOO_MANY else ""


def step_argument(failed: FailedStep) -> str:
    """What a person types for it: its title, or its path where the title cannot be typed."""
    title = failed.title
    typable = title.isprintable() and not title.endswith("…") and not title.startswith("-")
    return shlex.quote(title if title and typable else one_line(failed.path, None))


def failure_line(failed: FailedStep) -> str:
    # Where it is and what to do stand below the failure; in one line there is room for what is
    # wrong.
    said = f"  {one_line(failed.line, None)}" if failed.line else ""
    return f"✗ {one_line(failed.title)}   {one_line(failed.cause)}{said}"


def note_line(note: Note) -> str:
    about = f"{one_line(note.about)}: " if note.about else ""
    word = "warning" if note.warning else "note"
    return f"{word}: {about}{one_line(first_line(note.message), None)}"


def part_figures(
    progress: Progress, part: Part, now: float, *, alive: bool = True
) -> Iterator[str]:
    """How far the items of a part are; and, if somebody works on the run, how fast it goes."""
    group = part.group
    yield f"{group.outcome_count}/{group.total if group.total is not None else '?'}"
    if not alive or part.state != "running" or progress.ended is not None:
        if group.failure_count:
            yield f"{group.failure_count} failed"
        return
    if (rate := group.rate(now)) is not None:
        yield f"{speed(rate)}"
    if (left := group.time_left(now)) is not None and group.pending_count:
        yield f"~{clock(round(left))}"
    yield f"{len(progress.running(part))} running"
    if group.failure_count:
        yield f"{group.failure_count} failed"


def part_summary(part: Part) -> str:
    """How a part ended, how many there were, and how long it took."""
    group = part.group
    if part.has_no_items_yet:
        return part.state + _took(part.duration or 0.0, replayed=part.replayed)
    if part.kind == AGENT:
        how = f"{part.state}, {usage_line(part.asked)}" if part.asked.turns else part.state
        return how + _took(part.duration or 0.0, replayed=part.replayed)
    kind = "item" if group.is_fan else NOUNS.get(part.kind, "step")
    failed = f", {group.failure_count} failed" if group.failure_count else ""
    how = f"{part.state}, {pluralize(group.total or group.outcome_count, kind)}{failed}"
    return how + _took(part.duration or 0.0, replayed=part.replayed)


def _took(duration: float, *, replayed: bool) -> str:
    return ", remembered" if replayed else f", {clock(duration)}"


def _word(outcome: Outcome) -> str:
    match outcome:
        case Succeeded():
            return "done"
        case Failed():
            return "failed"
        case Skipped(why):
            return f"skipped ({one_line(first_line(why))})"


# ── words and numbers ────────────────────────────────────────────────────
