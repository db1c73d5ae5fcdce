"""The cost of live output: a map whose items print, with and without streaming.

Without it, the output of a step is seen when the step has ended: `open_output` gives no stream.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fanout import TASKS, Task, _env, _flow_file
from measure import all_cores, race_trees
from tables import Bar, Plan, Table, compared_by_computing

OFF, ON, PRINTED = "not streamed", "streamed", "streamed, and printed (-v)"
MOST = 1.05
PARALLEL = 8
PRINTS = TASKS[1]
SLOWLY = Task(
    "printing slowly",
    '{shell: "for n in 1 2 3; do echo item ${item.n}; sleep 0.1; done"}',
    "",
    prints=True,
)
PROGRAM = "from plait.cli import enter; enter()"
NOT_STREAMED = (
    "from plait.engine.event_bus import EventBus; "
    f"EventBus.open_output = lambda *_: None; {PROGRAM}"
)


def streaming_tables(*, items: int, rounds: int, slow_rounds: int) -> Iterator[Plan]:
    with all_cores():
        title = f"{items:,} printing items, {PARALLEL} at a time, streamed"
        yield Plan(title, partial(_table, PRINTS, items, PARALLEL, rounds))
        few = items // 10
        title = f"{few:,} slowly printing items, {5 * PARALLEL} at a time, streamed"
        yield Plan(title, partial(_table, SLOWLY, few, 5 * PARALLEL, slow_rounds))


def _table(task: Task, items: int, parallel: int, rounds: int, title: str) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        file = _flow_file(Path(folder), task, items, parallel)
        contenders: dict[str, Callable[[int], object]] = {
            OFF: lambda _: _run(NOT_STREAMED, file),
            ON: lambda _: _run(PROGRAM, file),
            PRINTED: lambda _: _run(PROGRAM, file, "-v"),
        }
        _run(PROGRAM, file)  # write bytecode and warm the caches
        times = race_trees(contenders, rounds=rounds)
    meaning = (
        "`plait run` of a map; its output goes to /dev/null. A short item ends before its output "
        "is due, so its lines come with its end. The bar is about computing time, of Plait and of "
        "all it starts."
        if task is PRINTS
        else "The same with items that print three lines, a tenth of a second apart: each line is "
        "masked, written to the folder of the run and reported by itself. No bar."
    )
    bars = {ON: Bar(MOST)} if task is PRINTS else {}
    return compared_by_computing(title, meaning, times, to=OFF, bars=bars)


def _run(program: str, file: str, *options: str) -> None:
    command = [sys.executable, "-c", program, "run", file, *options]
    env = {**_env(), "PLAIT_KEEP_RUNS": "3"}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
