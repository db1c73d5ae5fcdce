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
    def duration(self) -> float: ...
    @property
    def last_at(self) -> float | None: ...
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
        "duration": run.duration,
        "counts": dict(run.counts),
        **({"problem": run.problem} if run.problem else {}),
        **({FOREIGN: True} if run.foreign else {}),
    }


def _colour(run: RunSummary) -> str:
    if run.status == UNREADABLE:
        return "red"
    return state_colour("partial" if _is_partial(run) else run.status)


def _is_partial(run: RunSummary) -> bool:
    return run.status == "done" and bool(run.counts.get("failed"))


def _status(run: RunSummary) -> str:
    """finished; finished, 3 failed; failed, foreign."""
    status = "finished" if run.status == "done" else run.status
    failed = f", {run.counts['failed']} failed" if _is_partial(run) else ""
    return f"{status}{failed}{f', {FOREIGN}' if run.foreign else ''}"


def _cells(run: RunSummary, now: float) -> tuple[str, ...]:
    # What has happened since the last record counts only if the run goes on.
    since = now - run.last_at if run.status == "running" and run.last_at is not None else 0.0
    failed = run.counts.get("failed", 0)
    return (
        one_line(run.id),
        _status(run),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start_time)),
        NOTHING if run.last_at is None else clock(run.duration + since),
        str(sum(run.counts.values())) if run.counts else NOTHING,
        str(failed) if failed else NOTHING,
        one_line(run.flow) or NOTHING,
        one_line(run.problem, None) if run.problem else _file(run.file),
    )


def _file(path: str) -> str:
    return os.path.relpath(path) if os.path.isabs(path) else path
