"""`plait logs`: what the steps of a run printed, in the order in which they ended.

Nothing that is shown can drive a terminal; `--json` gives every byte as it was recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

from plait.cli.consent import add_project
from plait.cli.lines import Line, clean, clean_block, clock, first_line, json_line, write_lines
from plait.cli.run import expect_folder
from plait.engine.events import RunStarted, StepFinished, StepRetrying, StepStarted
from plait.engine.journal import Journal, Stamped, is_below
from plait.engine.outcome import Done, Failed, Failure, Outcome, Skipped, to_record
from plait.engine.progress import told
from plait.errors import InputError, nearest
from plait.hints import TYPE_CHECKING, Final
from plait.records import dataclass
from plait.values import Json, json_text

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait logs 7f3a",
    "plait logs 7f3a src/old.py",
)


def configure(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="the beginning of its id; otherwise the newest")
    parser.add_argument("item", metavar="ITEM", nargs="?", help="an item or step: its title, key or path")
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import flows

    expect_folder(options.project)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        wanted = None if options.item is None else chosen(opened.journal, options.item, name)
        logged = entries(opened.journal.events(), wanted)
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

    def record(self) -> dict[str, Json]:
        return {
            "path": self.path,
            "kind": self.kind,
            "title": self.title,
            "in": self.above,
            "duration": self.duration,
            **to_record(self.outcome),
        }


# ── which ────────────────────────────────────────────────────────────────


def chosen(journal: Journal, name: str, run: str) -> list[str]:
    """The paths that are meant: by path, key or title; by the beginning of a path or key if nothing else."""
    exact: dict[str, None] = {}
    begun: dict[str, None] = {}
    titles: dict[str, None] = {}
    for path, title in _begun(journal.events()):
        own = path.rpartition("/")[2]
        names = (path, own, own.partition(":")[2], title)
        titles[title] = None
        if name in names:
            exact[path] = None
        elif any(one.startswith(name) for one in names[:3]):
            begun[path] = None
    found = list(exact or begun)
    if not found:
        guess = nearest(name, titles)
        raise InputError(
            f"run {run} has nothing called '{clean(name)}'",
            fix=(f"did you mean '{clean(guess)}'? " if guess else "") + f"plait show {run} lists its steps",
            code="unknown-item",
        )
    return [path for path in found if not any(is_below(path, top) for top in found if top != path)]


def _begun(events: Iterable[Stamped]) -> Iterator[tuple[str, str]]:
    for stamped in events:
        if isinstance(stamped.event, StepStarted | StepFinished):
            yield stamped.event.path, stamped.event.title


def entries(events: Iterable[Stamped], wanted: Collection[str] | None) -> Iterator[Entry]:
    """What the steps printed; those that only hold others, and repeat what they said, are left out."""
    running: dict[str, StepStarted] = {}
    told_by: dict[str, Json] = {}
    for stamped in events:
        match stamped.event:
            case RunStarted():
                running.clear()
                told_by.clear()
            case StepStarted() as event:
                running[event.path] = event
            case StepRetrying(path, _, failure):
                begun = running.get(path)
                if begun is not None and _is_wanted(path, wanted) and failure.path in ("", path):
                    above = _title_above(path, running)
                    yield Entry(path, begun.kind, begun.title, above, Failed(failure))
            case StepFinished() as event:
                running.pop(event.path, None)
                inner = told_by.pop(event.path, None)
                if not _has_own_words(event, inner):
                    continue
                told_by[event.path.rpartition("/")[0]] = _said(event.outcome)
                if _is_wanted(event.path, wanted):
                    above = _title_above(event.path, running)
                    yield Entry(event.path, event.kind, event.title, above, event.outcome, event.duration)


def _is_wanted(path: str, wanted: Collection[str] | None) -> bool:
    return wanted is None or any(is_below(path, top) for top in wanted)


def _title_above(path: str, running: Mapping[str, StepStarted]) -> str:
    above = running.get(path.rpartition("/")[0])
    return "" if above is None else above.title


def _has_own_words(event: StepFinished, inner: Json) -> bool:
    match event.outcome:
        case Failed(failure):
            return failure.path in ("", event.path)
        case Done(dict(value)):
            return "exit_code" in value and (inner is None or _words(value) != inner)
        case Done():
            return False
        case Skipped():
            return True


def _said(outcome: Outcome) -> Json:
    match outcome:
        case Done(dict(value)) | Failed(Failure(output=dict(value))):
            return _words(value)
    return None


def _words(value: Mapping[str, Json]) -> list[Json]:
    return [value.get("output"), value.get("stderr")]


# ── for people ───────────────────────────────────────────────────────────


def lines(logged: Iterable[Entry]) -> Iterator[Line]:
    for entry in logged:
        how, colour = _how(entry.outcome)
        above = f"{clean(entry.above)} › " if entry.above else ""
        spent = "" if entry.duration is None else f"   {clock(entry.duration)}"
        yield f"── {clean(entry.path, None)}   {above}{clean(entry.title)}   {how}{spent}", colour
        for line in _printed(entry.outcome):
            yield line, ""


def _how(outcome: Outcome) -> tuple[str, str]:
    match outcome:
        case Done():
            return "done", "green"
        case Skipped(why):
            return f"skipped: {clean(first_line(why))}", "dim"
        case Failed(failure):
            return clean(told(failure)[0]), "red"


def _printed(outcome: Outcome) -> Iterator[str]:
    match outcome:
        case Done(dict(value)):
            yield from _blocks(value)
        case Failed(Failure(message=message, output=dict(value))):
            yield from _blocks(value)
            if value.get("exit_code") == 0:  # nothing that it printed says why it failed
                yield from clean_block(message).rstrip("\n").split("\n")
        case Failed(failure):
            yield from clean_block(failure.message).rstrip("\n").split("\n")


def _blocks(value: Mapping[str, Json]) -> Iterator[str]:
    output, errors = _text(value.get("output")), _text(value.get("stderr"))
    yield from output
    if errors:
        yield from (["stderr:"] if output else [])
        yield from errors
    for name in ("output_file", "stderr_file"):
        if isinstance(path := value.get(name), str):
            yield f"… the whole is in {clean(path, None)}"


def _text(said: Json) -> list[str]:
    if said is None or said == "":
        return []
    text = said if isinstance(said, str) else json_text(said)
    return clean_block(text).rstrip("\n").split("\n")
