"""`plait runs`: the runs of a project, newest first."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence

from plait.cli.arguments import whole_number
from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final, Literal, Protocol, TextIO
from plait.core.values import Json
from plait.engine.events import Status
from plait.views.format import clock, one_line
from plait.views.terminal import format_table, paint_for, width, write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait runs --limit 5",
    "plait runs --json",
)
FOREIGN: Final = "foreign"
HEAD: Final = ("RUN", "STATUS", "STARTED", "TIME", "ITEMS", "FAILED", "FLOW", "FILE")
COLOURS: Final = {
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "interrupted": "yellow",
    "unreadable": "red",
}


class Summary(Protocol):
    """A run in one row."""

    @property
    def id(self) -> str: ...
    @property
    def flow(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def status(self) -> Status | Literal["unreadable"]: ...
    @property
    def start_time(self) -> float: ...
    @property
    def end_time(self) -> float | None: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def problem(self) -> str: ...
    @property
    def foreign(self) -> bool: ...


def configure(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", help="only the newest N")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.toolbox import project_root

    require_folder(options.project)
    summaries = flows.flow_runs(options.project, whole_number("--limit", options.limit))
    if options.json:
        write_json([record(one) for one in summaries])
    else:
        show(summaries, sys.stdout, now=time.time())
        if (
            not summaries
            and options.project is None
            and (above := flows.runs_above(project_root(None)))
        ):
            print(f"{above} has runs: plait runs --project {shlex.quote(above)}")
    return 0


def show(summaries: Sequence[Summary], stream: TextIO, *, now: float) -> None:
    if not summaries:
        print("no runs yet: plait run FILE", file=stream)
        return
    paint = paint_for(stream)
    rows = [HEAD, *(_cells(one, now) for one in summaries)]
    colours = ["bold", *(COLOURS[one.status] for one in summaries)]
    for line, colour in zip(format_table(rows, width(stream)), colours, strict=True):
        print(paint(line, colour), file=stream)
    if any(one.foreign for one in summaries):
        print(
            f"{FOREIGN}: these runs did not begin here; plait trust run RUN takes one over",
            file=stream,
        )


def record(one: Summary) -> dict[str, Json]:
    return {
        "id": one.id,
        "flow": one.flow,
        "file": one.file,
        "status": one.status,
        "started": one.start_time,
        "ended": one.end_time,
        "counts": dict(one.counts),
        **({"problem": one.problem} if one.problem else {}),
        **({FOREIGN: True} if one.foreign else {}),
    }


def _cells(one: Summary, now: float) -> tuple[str, ...]:
    until = one.end_time if one.end_time is not None else now if one.status == "running" else None
    failed = one.counts.get("failed", 0)
    return (
        one_line(one.id),
        f"{one.status}, {FOREIGN}" if one.foreign else one.status,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(one.start_time)),
        "—" if until is None else clock(until - one.start_time),
        str(sum(one.counts.values())) if one.counts else "—",
        str(failed) if failed else "—",
        one_line(one.flow) or "—",
        one_line(one.problem, None)
        if one.problem
        else os.path.relpath(one.file)
        if os.path.isabs(one.file)
        else one.file,
    )
