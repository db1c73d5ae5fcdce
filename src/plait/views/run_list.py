"""What `plait runs` prints: the runs of a project as a table."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from plait.core.hints import Final, Literal, Protocol, TextIO
from plait.core.values import Json
from plait.engine.events import Status
from plait.views.format import clock, one_line, state_colour
from plait.views.terminal import format_table, paint_for, width

FOREIGN: Final = "foreign"
UNREADABLE: Final = "unreadable"
HEAD: Final = ("RUN", "STATUS", "STARTED", "TIME", "ITEMS", "FAILED", "FLOW", "FILE")
NOTHING: Final = "—"


class RunSummary(Protocol):
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


def show_runs(runs: Sequence[RunSummary], stream: TextIO, *, now: float) -> None:
    if not runs:
        print("no runs yet: plait run FILE", file=stream)
        return
    paint = paint_for(stream)
    rows = [HEAD, *(_cells(run, now) for run in runs)]
    colours = ["bold", *(_colour(run) for run in runs)]
    for line, colour in zip(format_table(rows, width(stream)), colours, strict=True):
        print(paint(line, colour), file=stream)
    if any(run.foreign for run in runs):
        print(
            f"{FOREIGN}: these runs did not begin here; plait trust run RUN takes one over",
            file=stream,
        )


def run_json(run: RunSummary) -> dict[str, Json]:
    return {
        "id": run.id,
        "flow": run.flow,
        "file": run.file,
        "status": run.status,
        "started": run.start_time,
        "ended": run.end_time,
        "counts": dict(run.counts),
        **({"problem": run.problem} if run.problem else {}),
        **({FOREIGN: True} if run.foreign else {}),
    }


def _colour(run: RunSummary) -> str:
    return "red" if run.status == UNREADABLE else state_colour(run.status)


def _cells(run: RunSummary, now: float) -> tuple[str, ...]:
    until = run.end_time if run.end_time is not None else now if run.status == "running" else None
    failed = run.counts.get("failed", 0)
    return (
        one_line(run.id),
        f"{run.status}, {FOREIGN}" if run.foreign else run.status,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start_time)),
        NOTHING if until is None else clock(until - run.start_time),
        str(sum(run.counts.values())) if run.counts else NOTHING,
        str(failed) if failed else NOTHING,
        one_line(run.flow) or NOTHING,
        one_line(run.problem, None) if run.problem else _file(run.file),
    )


def _file(path: str) -> str:
    return os.path.relpath(path) if os.path.isabs(path) else path
