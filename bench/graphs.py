"""A graph of many trivial steps: what one step costs, against LangGraph with and without its
checkpoints.

Each step puts two values into the state and leads on.  Plait writes each of them down before the
next one begins; what is compared is the walk alone, without reading or building the graph.
Plait walks a chain of as many nodes; LangGraph, which gets slower with the number of nodes, a loop
of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import process_time

from measure import Times, tree_times
from peers import PATIENCE, PYTHON
from tables import Plan, Row, Table, computing_cells, figures_of, shown, times_as

from plait.app.runs import RunObservers, run_flow
from plait.engine.events import EventRecord, RunEnded, RunStarted

STEPS = 1000
DURABLE, WITHOUT = "LangGraph, SQLite checkpoints", "LangGraph, no checkpoints"
BARS = {DURABLE: 8.0, WITHOUT: 2.0}
"""The factor by which a step of Plait must be faster."""
MOST_STEP = 40e-6
"""Seconds of computing time for a step of Plait."""

Span = tuple[float, float]
"""Seconds of wall time and of computing time."""

_LANGGRAPH = """\
import sys, time
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

steps, durable = int(sys.argv[1]), sys.argv[2] == "durable"

class State(TypedDict):
    x: int
    last: str

def step(state):
    return {"x": state["x"] + 1, "last": "step"}

def onward(state):
    return "step" if state["x"] < steps else END

# One node with an edge to itself: the cost of a step there grows with the number of nodes.
graph = StateGraph(State)
graph.add_node("step", step)
graph.add_edge(START, "step")
graph.add_conditional_edges("step", onward, ["step", END])

def walk(compiled, thread):
    config = {"recursion_limit": steps + 10, "configurable": {"thread_id": thread}}
    began, used = time.perf_counter(), time.process_time()
    state = compiled.invoke({"x": 0, "last": ""}, config)
    took = time.perf_counter() - began, time.process_time() - used
    assert state["x"] == steps
    return took

if durable:
    from langgraph.checkpoint.sqlite import SqliteSaver
    with SqliteSaver.from_conn_string("checkpoints.sqlite") as saver:
        print(*walk(graph.compile(checkpointer=saver), "one"))
else:
    print(*walk(graph.compile(), "one"))
"""


def graph_tables(*, rounds: int) -> Iterator[Plan]:
    yield Plan(f"A graph of {STEPS:,} trivial steps", partial(_measured, rounds))


def _measured(rounds: int, title: str) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        file = _graph_file(Path(folder))
        own: list[Span] = []
        others: dict[str, list[Span]] = {DURABLE: [], WITHOUT: []}
        reasons: dict[str, str] = {}
        for _ in range(rounds):  # in turn, so that a busy moment hits all contenders
            own.append(_by_plait(file))
            for name, took in others.items():
                found = _by_langgraph("durable" if name == DURABLE else "plain")
                if isinstance(found, str):
                    reasons[name] = found
                else:
                    took.append(found)
    times = {name: _times(took) for name, took in others.items() if took}
    return _table(title, _times(own), times, reasons)


def _times(seen: list[Span]) -> Times:
    return tree_times([(wall / STEPS, computing / STEPS) for wall, computing in seen])


def _table(title: str, own: Times, others: dict[str, Times], reasons: dict[str, str]) -> Table:
    figures = figures_of(own, own)
    cells = (shown(own.least), "1.00", "1.00", *computing_cells(figures))
    bar = f"computing ≤ {MOST_STEP * 1e6:g} µs"
    is_met = own.computing is not None and own.computing <= MOST_STEP
    rows = [Row("plait, each step written down", cells, bar, is_met, figures)]
    for name, most in BARS.items():
        if name not in others:
            rows.append(Row(name, (reasons.get(name, "not installed"),)))
            continue
        ratio = others[name].least / own.least
        by_medians = others[name].median / own.median
        figures = figures_of(others[name], own)
        cells = (shown(others[name].least), times_as(ratio), times_as(by_medians))
        cells += computing_cells(figures)
        rows.append(Row(name, cells, f"≥ {most:g}", ratio >= most, figures))
    return Table(
        title,
        "One step each: a node that assigns two values and leads on; of Plait a chain of nodes, of "
        "LangGraph "
        "a loop of one, which suits it best. Plait's journal is on; the checkpoints of LangGraph "
        "are in "
        "SQLite, in a file. Building and reading the graph is not counted. The bars: a step of "
        f"Plait takes at most {MOST_STEP * 1e6:g} µs of computing time; one of LangGraph "
        f"costs at least {BARS[DURABLE]:g} times as much with checkpoints, {BARS[WITHOUT]:g} times "
        "without.",
        ("", "a step", "× plait", "by medians", "computing", "× plait"),
        tuple(rows),
    )


def _graph_file(folder: Path) -> str:
    nodes = {
        f"n{at}": {"assign": {"x": "${state.x}", "last": f"n{at}"}, "next": f"n{at + 1}"}
        for at in range(STEPS - 1)
    }
    last = {f"n{STEPS - 1}": {"type": "return", "output": "${state.last}"}}
    (folder / ".ai").mkdir()
    file = folder / "graph.yaml"
    graph = {
        "start": "n0",
        "state": {"x": 1, "last": ""},
        "max_steps": STEPS,
        "nodes": {**nodes, **last},
    }
    file.write_text(json.dumps(graph))
    return str(file)


def _by_plait(file: str) -> Span:
    """Measure from the start of the run until its end is written."""
    times: dict[type, Span] = {}

    def watch(stamped: EventRecord) -> None:
        if isinstance(stamped.event, RunStarted | RunEnded):
            times[type(stamped.event)] = stamped.at, process_time()

    result = run_flow(file, observers=RunObservers([watch]))
    assert result.value["output"] == f"n{STEPS - 2}", result
    (began, used), (ended, used_then) = times[RunStarted], times[RunEnded]
    return ended - began, used_then - used


def _by_langgraph(how: str) -> Span | str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "walk.py").write_text(_LANGGRAPH)
        env = {**os.environ, "HOME": folder, "LANGSMITH_TRACING": "false"}
        command = [PYTHON, "walk.py", str(STEPS), how]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, check=False, timeout=PATIENCE
        )
    if done.returncode == 0:
        wall, computing = map(float, done.stdout.split()[-2:])
        return wall, computing
    errors = done.stderr.decode("utf-8", "replace")
    if "No module named" in errors:
        return "not installed"
    print(errors[-2000:], file=sys.stderr)
    return "failed"
