"""What `plait logs` prints of a run: the output of its steps and the words of its agents, in order.

Output appears once, at the step that printed it: a step that contains others shows only why it
failed.  Nothing that is shown can drive a terminal; `--json` has every byte as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json, json_text
from plait.engine.events import (
    Event,
    EventRecord,
    RunStarted,
    StepFinished,
    StepOutput,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.journal import Journal
from plait.engine.live_output import MODEL
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded, to_record
from plait.engine.paths import (
    is_at_or_below,
    is_hook_name,
    last_name,
    name_key,
    parent_path,
    split_path,
)
from plait.views.format import (
    Line,
    clean_block,
    clock,
    describe_failure,
    first_line,
    nth_attempt,
    one_line,
)
from plait.views.lines import row_state, usage_words
from plait.views.parts import CALL, TURN
from plait.views.progress import make_row

FEW: Final = 50
"""So many steps of a long journal are searched for.  For more, all its events are read."""
OF_AGENTS: Final = frozenset({TURN, CALL})
TASK: Final = "task"
"""The kind of a task without a model: no other step shows its output."""
VISITS: Final = frozenset({"tool", "gate", "foreach", "return"})
VISIT_FIELDS: Final = frozenset({"assign", "next", "output", "error"})
"""The fields of the value of a visit."""
MOST_OF_A_VALUE: Final = 300
"""Characters of a value that a node assigns; `--json` has all of it."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The end of a step, or of one attempt that failed."""

    path: str
    kind: str
    title: str
    above: str
    """The title of the step that contains it, an item for example."""
    outcome: Outcome
    duration: float | None = None
    attempt: int = 1
    of: int = 0
    """How many attempts there could have been; 0 if that is not known."""
    contains_others: bool = False
    """Its output is what the steps inside it printed."""
    is_repeated: bool = False
    """Another attempt follows, by its policy or because of a hook."""
    used: Usage | None = None

    def record(self) -> dict[str, Json]:
        return {
            "path": self.path,
            "kind": self.kind,
            "title": self.title,
            "in": self.above,
            "duration": self.duration,
            "attempt": self.attempt,
            **to_record(self.outcome),
        }


# ── which steps ──────────────────────────────────────────────────────────


class JournalSearch(Protocol):
    """Finds steps in a long journal without reading all its events."""

    def is_long(self) -> bool: ...
    def find_steps(self, name: str) -> list[str]: ...
    def events_at(self, paths: Iterable[str]) -> Iterator[EventRecord]: ...


class SearchableJournal(Journal, Protocol):
    @property
    def reader(self) -> JournalSearch: ...


def read_log(journal: SearchableJournal, run: str, name: str | None) -> Iterator[LogEntry]:
    """The entries of a run; with `name`, those of the steps and items that it names."""
    # Reading the events of a million items takes minutes; finding those of one, a second.
    search = journal.reader if journal.reader.is_long() else None
    wanted = None if name is None else find_paths(journal, name, run, search=search)
    if search is not None and wanted is not None and len(wanted) <= FEW:
        return log_entries(search.events_at(wanted), wanted)
    return log_entries(journal.events(), wanted)


def find_paths(
    journal: Journal, name: str, run: str, *, search: JournalSearch | None = None
) -> list[str]:
    """The paths that a name means: a path, a key or a title; otherwise the start of a path or key."""
    if search is not None and (found := search.find_steps(name)):
        return _outermost(found)
    exact: dict[str, None] = {}
    prefixed: dict[str, None] = {}
    titles: dict[str, None] = {}
    for path, title in _step_titles(journal.events()):
        own = last_name(path)
        names = (path, own, name_key(own), title)
        titles[title] = None
        if name in names:
            exact[path] = None
        elif any(one.startswith(name) for one in names[:3]):
            prefixed[path] = None
    found = list(exact or prefixed)
    if not found:
        guess = closest_name(name, titles)
        raise InputError(
            f"run {run} has nothing called '{one_line(name)}'",
            fix=(f"did you mean '{one_line(guess)}'? " if guess else "")
            + f"plait show {run} lists its steps",
            code="unknown-item",
        )
    return _outermost(found)


def _outermost(paths: Sequence[str]) -> list[str]:
    known = set(paths)
    return [path for path in paths if not any(above in known for above in _above(path))]


def _above(path: str) -> Iterator[str]:
    while path := parent_path(path):
        yield path


def _step_titles(events: Iterable[EventRecord]) -> Iterator[tuple[str, str]]:
    for record in events:
        if isinstance(record.event, StepStarted | StepFinished):
            yield record.event.path, record.event.title


@dataclass(frozen=True, slots=True)
class UnfinishedEntry:
    """A step that runs now, or was cut short, and what it has printed until now."""

    path: str
    kind: str
    title: str
    above: str
    since: float
    attempt: int
    output: str
    stderr: str
    is_running: bool

    def record(self) -> dict[str, Json]:
        return {
            "path": self.path,
            "kind": self.kind,
            "title": self.title,
            "in": self.above,
            "since": self.since,
            "attempt": self.attempt,
            "status": "running" if self.is_running else "interrupted",
            "output": self.output,
            "stderr": self.stderr,
        }


def unfinished_entries(
    search: JournalSearch,
    pieces: Iterable[tuple[StepOutput, int]],
    wanted: Collection[str] | None,
    *,
    is_running: bool,
) -> Iterator[UnfinishedEntry]:
    """The steps without an end, and what `pieces` have of their last attempt.

    With each piece comes how many characters of its stream were before it.
    """
    printed: dict[str, tuple[int, dict[str, str]]] = {}
    for piece, before in pieces:
        attempt, streams = printed.get(piece.path, (piece.attempt, {}))
        if piece.attempt > attempt:
            attempt, streams = piece.attempt, {}
        if piece.attempt == attempt:
            streams[piece.stream] = streams.get(piece.stream, "")[:before] + piece.text
        printed[piece.path] = attempt, streams
    paths = [path for path in printed if is_wanted(path, wanted)]
    started: dict[str, EventRecord] = {}
    for first in range(0, len(paths), FEW):
        for record in search.events_at(paths[first : first + FEW]):
            match record.event:
                case StepStarted(path=path):
                    started[path] = record
                case StepFinished(path=path):
                    started.pop(path, None)
    for path in paths:
        if path in started and isinstance(event := started[path].event, StepStarted):
            attempt, streams = printed[path]
            texts = streams.get("stdout", streams.get(MODEL, "")), streams.get("stderr", "")
            above = started.get(parent_path(path))
            yield UnfinishedEntry(
                path,
                event.kind,
                event.title,
                above.event.title if above and isinstance(above.event, StepStarted) else "",
                started[path].at,
                attempt,
                *texts,
                is_running,
            )


def unfinished_lines(entries: Iterable[UnfinishedEntry], now: float) -> Iterator[Line]:
    for entry in entries:
        state = f"running   {clock(now - entry.since)}" if entry.is_running else "interrupted"
        attempt = f"   {nth_attempt(entry.attempt, 0)}" if entry.attempt > 1 else ""
        above = f"{one_line(entry.above)} › " if entry.above else ""
        head = f"── {one_line(entry.path, None)}   {above}{one_line(entry.title)}"
        yield f"{head}   {state}{attempt}", "yellow"
        for line in _process_lines({"output": entry.output, "stderr": entry.stderr}):
            yield line, ""


def failed_entries(
    entries: Iterable[LogEntry], last_outcome: Callable[[str], Outcome | None]
) -> Iterator[LogEntry]:
    """The failures that count: not of a step that another attempt or a retry has repaired."""
    for entry in entries:
        if not entry.is_repeated and isinstance(entry.outcome, Failed):
            last = last_outcome(entry.path)
            if last is None or isinstance(last, Failed):
                yield entry


# ── the entries ──────────────────────────────────────────────────────────


def log_entries(
    events: Iterable[EventRecord], wanted: Collection[str] | None
) -> Iterator[LogEntry]:
    """The steps with output of their own, at the wanted paths and below them; None: all."""
    reader = EntryReader()
    wanted = None if wanted is None else frozenset(wanted)
    for event, following in _with_next(events):
        entry = reader.read(event, following)
        if entry is not None and is_wanted(entry.path, wanted):
            yield entry


def _with_next(events: Iterable[EventRecord]) -> Iterator[tuple[Event, Event | None]]:
    """Each event, and the one after it."""
    before: Event | None = None
    for record in events:
        if before is not None:
            yield before, record.event
        before = record.event
    if before is not None:
        yield before, None


class EntryReader:
    """Makes entries from the events of a run, in their order."""

    def __init__(self) -> None:
        self._running: dict[str, StepStarted] = {}
        self._retried: dict[str, StepRetrying] = {}
        """By path: the last failed attempt of a step that has not ended."""
        self._containing: set[str] = set()
        """Steps that have not ended and contain one with output, from any run attempt."""

    def read(self, event: Event, following: Event | None) -> LogEntry | None:
        match event:
            case RunStarted():
                self._running.clear()
                self._retried.clear()
            case StepStarted():
                self._running[event.path] = event
            case StepRetrying():
                return self._retry_entry(event)
            case StepFinished():
                return self._step_entry(event, following)
        return None

    def _retry_entry(self, event: StepRetrying) -> LogEntry | None:
        path, failure = event.path, event.failure
        self._retried[path] = event
        start = self._running.get(path)
        if start is None or failure.path not in ("", path):
            return None
        return LogEntry(
            path,
            start.kind,
            start.title,
            self._title_above(path),
            Failed(failure),
            attempt=event.attempt,
            of=event.of,
            is_repeated=True,
        )

    def _step_entry(self, event: StepFinished, following: Event | None) -> LogEntry | None:
        if isinstance(following, StepFinished) and following.path not in self._running:
            # The start of a list that ends with its last step is not recorded.
            start = StepStarted(following.path, following.kind, following.title)
            self._running[following.path] = start
        path = event.path
        contains_others = path in self._containing
        has_output = _has_own_output(event, contains_others=contains_others)
        above, name = split_path(path)
        # The output of a hook is not output of the step that the hook is about.
        if (has_output or contains_others) and not is_hook_name(name):
            self._containing.add(above)
        attempt, of = self._attempt(path, following)
        title_above = self._title_above(path)
        self._containing.discard(path)
        self._running.pop(path, None)
        self._retried.pop(path, None)
        if not has_output:
            return None
        return LogEntry(
            path,
            event.kind,
            event.title,
            title_above,
            event.outcome,
            event.duration,
            attempt,
            of,
            contains_others,
            isinstance(following, StepRetrying) and is_at_or_below(path, following.path),
            event.used,
        )

    def _attempt(self, path: str, following: Event | None) -> tuple[int, int]:
        """Which attempt has ended, of this step or of one that contains it, and of how many."""
        if isinstance(following, StepRetrying) and is_at_or_below(path, following.path):
            return following.attempt, following.of
        while path:
            before = self._retried.get(path)
            if before is not None:
                return before.attempt + 1, before.of
            path = parent_path(path)
        return 1, 0

    def _title_above(self, path: str) -> str:
        above = self._running.get(parent_path(path))
        return "" if above is None else above.title


def is_wanted(path: str, wanted: Collection[str] | None) -> bool:
    """Is the path one of these, or below one; None: all are wanted."""
    return wanted is None or path in wanted or any(above in wanted for above in _above(path))


def _has_own_output(event: StepFinished, *, contains_others: bool) -> bool:
    match event.outcome:
        case Failed(failure):
            return failure.path in ("", event.path)
        case Succeeded(dict(value)) if _is_visit(event.kind, value):
            return bool(value.keys() - {"next"})
        case Succeeded(dict(value)):
            prints = "exit_code" in value or event.kind in OF_AGENTS or event.kind == TASK
            return prints and not contains_others
        case Succeeded():
            return False
        case Skipped():
            return True


def _is_visit(kind: str, value: Mapping[str, Json]) -> bool:
    return kind in VISITS and value.keys() <= VISIT_FIELDS


# ── for people ───────────────────────────────────────────────────────────


def log_lines(entries: Iterable[LogEntry]) -> Iterator[Line]:
    for entry in entries:
        state, colour = entry_state(entry)
        above = f"{one_line(entry.above)} › " if entry.above else ""
        was_repeated = entry.of or entry.attempt > 1 or entry.is_repeated
        attempt = f"   {nth_attempt(entry.attempt, entry.of)}" if was_repeated else ""
        duration = "" if entry.duration is None else f"   {clock(entry.duration)}"
        head = f"── {one_line(entry.path, None)}   {above}{one_line(entry.title)}"
        yield f"{head}   {state}{attempt}{duration}", colour
        for line in entry_lines(entry):
            yield line, ""


def entry_state(entry: LogEntry) -> tuple[str, str]:
    """How it ended, and the colour of that."""
    match entry.outcome:
        case Succeeded() if entry.kind in OF_AGENTS:
            return _agent_state(entry)
        case Succeeded(dict(value)) if _is_visit(entry.kind, value) and "next" in value:
            return f"done → {one_line(str(value['next']))}", "green"
        case Succeeded():
            return "done", "green"
        case Skipped(why):
            return f"skipped: {one_line(first_line(why))}", "dim"
        case Failed(failure):
            return one_line(describe_failure(failure)[0]), "red"


def _agent_state(entry: LogEntry) -> tuple[str, str]:
    """The usage of a turn; how a call ended."""
    end = StepFinished(
        entry.path,
        entry.kind,
        entry.title,
        "",
        entry.outcome,
        entry.duration or 0.0,
        used=entry.used,
    )
    row = make_row(end)
    if row.usage is not None:
        return usage_words(row.usage, turns=False), "green"
    return row_state(row), "red" if row.state == "failed" else "green"


def entry_lines(entry: LogEntry) -> Iterator[str]:
    """What a step or an attempt printed, or why it failed."""
    match entry.outcome:
        case Succeeded(dict(value)) if entry.kind == TURN:
            yield from _turn_lines(value)
        case Succeeded(dict(value)) if _is_visit(entry.kind, value):
            yield from _visit_lines(value)
        case Succeeded(dict(value)) if entry.kind == TASK:
            yield from _text_lines(value.get("raw"))
        case Succeeded(dict(value)):
            yield from _process_lines(value)
        case Failed(Failure(message, kind, output=dict(value))) if _is_of_session(entry, value):
            yield from _turn_lines(value)
            if kind != "stopped":  # the person has stopped it, and knows why
                yield from _text_lines(message)
        case Failed(Failure(message=message, output=dict(value))) if not entry.contains_others:
            yield from _process_lines(value)
            if value.get("exit_code") == 0:  # its output does not say why it failed
                yield from clean_block(message).rstrip("\n").split("\n")
        case Failed(failure):
            yield from clean_block(failure.message).rstrip("\n").split("\n")


def _is_of_session(entry: LogEntry, value: Mapping[str, Json]) -> bool:
    """Is it a turn, or a step of a chat with a question and its answer?"""
    return entry.kind == TURN or ("asked" in value and not entry.contains_others)


def _turn_lines(value: Mapping[str, Json]) -> Iterator[str]:
    """The request, if it is recorded, and the text of the model.  Tool calls are entries."""
    asked = value.get("asked")
    if not isinstance(asked, Mapping):
        # `output` is of a plain prompt, `said` of a server whose response was not an answer.
        names = (name for name in ("text", "output", "said") if name in value)
        yield from _text_lines(next((value[name] for name in names), None))
        return
    for name, text in {**asked, "model": value.get("text")}.items():
        if lines := _text_lines(text):
            yield f"{one_line(name)}:"
            yield from (f"  {line}".rstrip() for line in lines)


def _visit_lines(value: Mapping[str, Json]) -> Iterator[str]:
    """What a node assigned, and the output of the graph if it ends there."""
    assigned, error = value.get("assign"), value.get("error")
    for name, one in assigned.items() if isinstance(assigned, Mapping) else ():
        yield f"{one_line(name)} = {one_line(json_text(one), MOST_OF_A_VALUE)}"
    if isinstance(error, Mapping):
        yield f"error: {one_line(str(error.get('error')), MOST_OF_A_VALUE)}"
    yield from _text_lines(value.get("output"))


def _process_lines(value: Mapping[str, Json]) -> Iterator[str]:
    output, errors = _text_lines(value.get("output")), _text_lines(value.get("stderr"))
    yield from output
    if errors:
        yield from (["stderr:"] if output else [])
        yield from errors
    yield from loss_lines(value)


def loss_lines(value: Mapping[str, Json]) -> Iterator[str]:
    """Where the rest of long output is, or that it is lost."""
    for name in ("output", "stderr"):
        path, lost = value.get(f"{name}_file"), value.get(f"{name}_lost")
        if isinstance(path, str):
            what = "the whole"
            if lost:
                what = f"a longer part, not the whole ({one_line(str(lost), None)}),"
            yield f"… {what} is in {one_line(path, None)}"
    if value.get("truncated") and not ("output_file" in value or "stderr_file" in value):
        yield "… more was printed, and is not kept"


def _text_lines(value: Json) -> list[str]:
    if value is None or value == "":
        return []
    text = value if isinstance(value, str) else json_text(value)
    return clean_block(text).rstrip("\n").split("\n")
