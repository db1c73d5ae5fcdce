"""`plait logs`: what the steps of a run printed and its agents said, in the order in which they
ended.

What was printed is said once, where it was printed: a step that only holds others says no more than
why it failed.  Nothing that is shown can drive a terminal; `--json` gives every byte as it was
recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from plait.cli.run import require_folder
from plait.cli.trust_prompt import add_project
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json, json_text
from plait.engine.events import (
    Event,
    EventRecord,
    RunStarted,
    StepFinished,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.journal import Journal
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded, to_record
from plait.engine.paths import is_at_or_below
from plait.views.format import (
    Line,
    clean_block,
    clock,
    first_line,
    json_line,
    nth_attempt,
    one_line,
    write_lines,
)
from plait.views.parts import CALL, TURN
from plait.views.progress import describe_failure, make_row
from plait.views.text import row_state, usage_words

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait logs 7f3a",
    "plait logs 7f3a src/old.py",
)


FEW: Final = 50
"""Steps that are searched for at a time."""
OF_AGENTS: Final = frozenset({TURN, CALL})
"""Kinds of steps whose words are those of a model, or what it was told."""
TASK: Final = "task"
"""The kind of a task that asks no model: what it gave is said nowhere else."""
VISITS: Final = frozenset({"tool", "gate", "foreach", "return"})
OF_VISITS: Final = frozenset({"assign", "next", "output", "error"})
"""What is recorded of a visit of a node."""
MOST_OF_A_VALUE: Final = 300
"""Characters of what a node assigns; `--json` has all of it."""


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; otherwise the newest"
    )
    parser.add_argument(
        "item", metavar="ITEM", nargs="?", help="an item or step: its title, key or path"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows

    require_folder(options.project)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        journal = opened.journal
        # To go through the events of a million items takes minutes; to look for those of one, a
        # second.
        search = journal.reader if journal.reader.is_long() else None
        wanted = (
            None if options.item is None else find_paths(journal, options.item, name, search=search)
        )
        events = journal.events()
        if search is not None and wanted is not None and len(wanted) <= FEW:
            events = search.events_at(wanted)
        logged = entries(events, wanted)
        if options.json:
            for entry in logged:
                print(json_line(entry.record()))
        else:
            write_lines(lines(logged), sys.stdout)
    return 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One end of a step: of an attempt that failed, or of all."""

    path: str
    kind: str
    title: str
    above: str
    """The title of what it is inside of, an item for example."""
    outcome: Outcome
    duration: float | None = None
    attempt: int = 1
    of: int = 0
    """How many attempts there might have been, as far as that is known."""
    holds_others: bool = False
    """What it gave is what those inside it printed."""
    is_repeated: bool = False
    """Another attempt follows, by its own policy or because a hook said so."""
    used: Usage | None = None
    """What it has used up itself."""

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


# ── which ────────────────────────────────────────────────────────────────


class Search(Protocol):
    """Finds steps in a long journal without going through it."""

    def find_steps(self, name: str) -> list[str]: ...
    def events_at(self, paths: Iterable[str]) -> Iterator[EventRecord]: ...


def find_paths(journal: Journal, name: str, run: str, *, search: Search | None = None) -> list[str]:
    """The paths that are meant: by path, key or title; by the beginning of a path or key if nothing
    else.
    """
    if search is not None and (called := search.find_steps(name)):
        return _outermost(called)
    exact: dict[str, None] = {}
    begun: dict[str, None] = {}
    titles: dict[str, None] = {}
    for path, title in _step_titles(journal.events()):
        own = path.rpartition("/")[2]
        names = (path, own, own.partition(":")[2], title)
        titles[title] = None
        if name in names:
            exact[path] = None
        elif any(one.startswith(name) for one in names[:3]):
            begun[path] = None
    found = list(exact or begun)
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
    while path := path.rpartition("/")[0]:
        yield path


def _step_titles(events: Iterable[EventRecord]) -> Iterator[tuple[str, str]]:
    for stamped in events:
        if isinstance(stamped.event, StepStarted | StepFinished):
            yield stamped.event.path, stamped.event.title


def entries(events: Iterable[EventRecord], wanted: Collection[str] | None) -> Iterator[Entry]:
    """What the steps printed; those that only hold others, and repeat what they said, are left
    out.
    """
    reader = _Reader()
    wanted = None if wanted is None else frozenset(wanted)
    for event, following in _with_next(events):
        entry = reader.take(event, following)
        if entry is not None and _is_wanted(entry.path, wanted):
            yield entry


def _with_next(events: Iterable[EventRecord]) -> Iterator[tuple[Event, Event | None]]:
    """Each event, and the one behind it."""
    before: Event | None = None
    for stamped in events:
        if before is not None:
            yield before, stamped.event
        before = stamped.event
    if before is not None:
        yield before, None


class _Reader:
    """Goes through the events of a run, and knows as much of what went before as each of them
    needs.
    """

    def __init__(self) -> None:
        self._running: dict[str, StepStarted] = {}
        self._retried: dict[str, StepRetrying] = {}
        """By path: the last attempt that failed, of steps that have not ended."""
        self._holding: set[str] = set()
        """Steps inside of which something was printed, in any life of the run; forgotten when they
        end.
        """

    def take(self, event: Event, following: Event | None) -> Entry | None:
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

    def _retry_entry(self, event: StepRetrying) -> Entry | None:
        path, failure = event.path, event.failure
        self._retried[path] = event
        begun = self._running.get(path)
        if begun is None or failure.path not in ("", path):
            return None
        above = self._title_above(path)
        ended = Failed(failure)
        return Entry(
            path,
            begun.kind,
            begun.title,
            above,
            ended,
            attempt=event.attempt,
            of=event.of,
            is_repeated=True,
        )

    def _step_entry(self, event: StepFinished, following: Event | None) -> Entry | None:
        if isinstance(following, StepFinished) and following.path not in self._running:
            # A list that ends with its last step: its start is not recorded.
            start = StepStarted(following.path, following.kind, following.title)
            self._running[following.path] = start
        path = event.path
        holds_others = path in self._holding
        has_words = _has_own_words(event, holds_others=holds_others)
        above, _, name = path.rpartition("/")
        if (has_words or holds_others) and not name.startswith("hook:"):
            # What a hook printed is not what the step gave that it is about.
            self._holding.add(above)
        attempt, of = self._attempt(path, following)
        title_above = self._title_above(path)
        self._holding.discard(path)
        self._running.pop(path, None)
        self._retried.pop(path, None)
        if not has_words:
            return None
        spent, again = (
            event.duration,
            isinstance(following, StepRetrying) and is_at_or_below(path, following.path),
        )
        return Entry(
            path,
            event.kind,
            event.title,
            title_above,
            event.outcome,
            spent,
            attempt,
            of,
            holds_others,
            again,
            event.used,
        )

    def _attempt(self, path: str, following: Event | None) -> tuple[int, int]:
        """Which attempt has ended, of this step or of what it is inside of, and of how many."""
        if isinstance(following, StepRetrying) and is_at_or_below(path, following.path):
            return following.attempt, following.of
        while path:
            before = self._retried.get(path)
            if before is not None:
                return before.attempt + 1, before.of
            path = path.rpartition("/")[0]
        return 1, 0

    def _title_above(self, path: str) -> str:
        above = self._running.get(path.rpartition("/")[0])
        return "" if above is None else above.title


def _is_wanted(path: str, wanted: Collection[str] | None) -> bool:
    return wanted is None or path in wanted or any(above in wanted for above in _above(path))


def _has_own_words(event: StepFinished, *, holds_others: bool) -> bool:
    match event.outcome:
        case Failed(failure):
            return failure.path in ("", event.path)
        case Succeeded(dict(value)) if _is_visit(event.kind, value):
            return bool(value.keys() - {"next"})
        case Succeeded(dict(value)):
            speaks = "exit_code" in value or event.kind in OF_AGENTS or event.kind == TASK
            return speaks and not holds_others
        case Succeeded():
            return False
        case Skipped():
            return True


def _is_visit(kind: str, value: Mapping[str, Json]) -> bool:
    return kind in VISITS and value.keys() <= OF_VISITS


# ── for people ───────────────────────────────────────────────────────────


def lines(logged: Iterable[Entry]) -> Iterator[Line]:
    for entry in logged:
        how, colour = _how(entry)
        above = f"{one_line(entry.above)} › " if entry.above else ""
        was_repeated = entry.of or entry.attempt > 1 or entry.is_repeated
        tried = f"   {nth_attempt(entry.attempt, entry.of)}" if was_repeated else ""
        spent = "" if entry.duration is None else f"   {clock(entry.duration)}"
        yield (
            f"── {one_line(entry.path, None)}   {above}{one_line(entry.title)}   "
            f"{how}{tried}{spent}",
            colour,
        )
        for line in _entry_lines(entry):
            yield line, ""


def _how(entry: Entry) -> tuple[str, str]:
    match entry.outcome:
        case Succeeded() if entry.kind in OF_AGENTS:
            return _how_of_agent(entry)
        case Succeeded(dict(value)) if _is_visit(entry.kind, value) and "next" in value:
            return f"done → {one_line(str(value['next']))}", "green"
        case Succeeded():
            return "done", "green"
        case Skipped(why):
            return f"skipped: {one_line(first_line(why))}", "dim"
        case Failed(failure):
            return one_line(describe_failure(failure)[0]), "red"


def _how_of_agent(entry: Entry) -> tuple[str, str]:
    """What a turn took; whether a call was made, and came to something."""
    said = entry.path, entry.kind, entry.title
    row = make_row(StepFinished(*said, "", entry.outcome, entry.duration or 0.0, used=entry.used))
    if row.asked is not None:
        return usage_words(row.asked, turns=False), "green"
    return row_state(row), "red" if row.state == "failed" else "green"


def _entry_lines(entry: Entry) -> Iterator[str]:
    match entry.outcome:
        case Succeeded(dict(value)) if entry.kind == TURN:
            yield from _conversation(value)
        case Succeeded(dict(value)) if _is_visit(entry.kind, value):
            yield from _visit_lines(value)
        case Succeeded(dict(value)) if entry.kind == TASK:
            yield from _text(value.get("raw"))
        case Succeeded(dict(value)):
            yield from _blocks(value)
        case Failed(Failure(message, kind, output=dict(value))) if _is_of_talk(entry, value):
            yield from _conversation(value)
            yield from (
                () if kind == "stopped" else _text(message)
            )  # the person knows why it was stopped
        case Failed(Failure(message=message, output=dict(value))) if not entry.holds_others:
            yield from _blocks(value)
            if value.get("exit_code") == 0:  # nothing that it printed says why it failed
                yield from clean_block(message).rstrip("\n").split("\n")
        case Failed(failure):
            yield from clean_block(failure.message).rstrip("\n").split("\n")


def _is_of_talk(entry: Entry, value: Mapping[str, Json]) -> bool:
    """A turn; or all that a person said and heard at once."""
    return entry.kind == TURN or ("asked" in value and not entry.holds_others)


def _conversation(value: Mapping[str, Json]) -> Iterator[str]:
    """What a model was asked first, and what it said; the calls that it wants follow by
    themselves.
    """
    asked = value.get("asked")
    if not isinstance(asked, Mapping):
        # Of a plain prompt it is the output, of a server that gave no answer what it said instead.
        yield from _text(
            next((value[name] for name in ("text", "output", "said") if name in value), None)
        )
        return
    for name, said in {**asked, "model": value.get("text")}.items():
        if words := _text(said):
            yield f"{one_line(name)}:"
            yield from (f"  {line}".rstrip() for line in words)


def _visit_lines(value: Mapping[str, Json]) -> Iterator[str]:
    """What a node assigned, and what the graph gives if it ends there."""
    assigned, error = value.get("assign"), value.get("error")
    for name, one in assigned.items() if isinstance(assigned, Mapping) else ():
        yield f"{one_line(name)} = {one_line(json_text(one), MOST_OF_A_VALUE)}"
    if isinstance(error, Mapping):
        yield f"error: {one_line(str(error.get('error')), MOST_OF_A_VALUE)}"
    yield from _text(value.get("output"))


def _blocks(value: Mapping[str, Json]) -> Iterator[str]:
    output, errors = _text(value.get("output")), _text(value.get("stderr"))
    yield from output
    if errors:
        yield from (["stderr:"] if output else [])
        yield from errors
    for name in ("output", "stderr"):
        path, lost = value.get(f"{name}_file"), value.get(f"{name}_lost")
        if isinstance(path, str):
            how = (
                f"a longer part, not the whole ({one_line(str(lost), None)}),"
                if lost
                else "the whole"
            )
            yield f"… {how} is in {one_line(path, None)}"
    if value.get("truncated") and not ("output_file" in value or "stderr_file" in value):
        yield "… more was printed, and is not kept"


def _text(said: Json) -> list[str]:
    if said is None or said == "":
        return []
    text = said if isinstance(said, str) else json_text(said)
    return clean_block(text).rstrip("\n").split("\n")
