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
from pathlib import Path
from statistics import median

from measure import Times
from peers import PATIENCE, PYTHON
from tables import Row, Table, shown, times_as

from plait.app.runs import RunObservers, run_flow
from plait.engine.events import EventRecord, RunEnded, RunStarted

STEPS = 1000
DURABLE, WITHOUT = "LangGraph, SQLite checkpoints", "LangGraph, no checkpoints"
BARS = {DURABLE: 8.0, WITHOUT: 2.0}
"""So many times faster a step of Plait is to be."""

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

# One node that leads back to itself: what a step costs there grows with the number of nodes.
graph = StateGraph(State)
graph.add_node("step", step)
graph.add_edge(START, "step")
graph.add_conditional_edges("step", onward, ["step", END])

def walk(compiled, thread):
    config = {"recursion_limit": steps + 10, "configurable": {"thread_id": thread}}
    began = time.perf_counter()
    state = compiled.invoke({"x": 0, "last": ""}, config)
    took = time.perf_counter() - began
    assert state["x"] == steps
    return took

if durable:
    from langgraph.checkpoint.sqlite import SqliteSaver
    with SqliteSaver.from_conn_string("checkpoints.sqlite") as saver:
        print(walk(graph.compile(checkpointer=saver), "one"))
else:
    print(walk(graph.compile(), "one"))
"""


def graph_tables(*, rounds: int) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        file = _graph_file(Path(folder))
        own: list[float] = []
        others: dict[str, list[float]] = {DURABLE: [], WITHOUT: []}
        reasons: dict[str, str] = {}
        for _ in range(rounds):  # in turn, so that a busy moment hits everybody
            own.append(_by_plait(file) / STEPS)
            for name, took in others.items():
                found = _by_langgraph("durable" if name == DURABLE else "plain")
                if isinstance(found, float):
                    took.append(found / STEPS)
                else:
                    reasons[name] = found
    yield _table(
        _times(own), {name: _times(took) for name, took in others.items() if took}, reasons
    )


def _times(seen: list[float]) -> Times:
    return Times(min(seen), median(seen))


def _table(own: Times, others: dict[str, Times], reasons: dict[str, str]) -> Table:
    rows = [Row("plait, each step written down", (shown(own.least), "1.00", "1.00"))]
    for name, most in BARS.items():
        if name not in others:
            rows.append(Row(name, (reasons.get(name, "not installed"), "", "")))
            continue
        ratio = others[name].least / own.least
        by_medians = others[name].median / own.median
        cells = (shown(others[name].least), times_as(ratio), times_as(by_medians))
        rows.append(Row(name, cells, f"≥ {most:g}", ratio >= most))
    return Table(
        f"A graph of {STEPS:,} trivial steps",
        "One step each: a node that assigns two values and leads on; of Plait a chain of nodes, of "
        "LangGraph "
        "a loop of one, which suits it best. Plait's journal is on; the checkpoints of LangGraph "
        "are in "
        "SQLite, in a file. Building and reading the graph is not counted. The bars: a step of "
        "LangGraph "
        f"costs at least {BARS[DURABLE]:g} times as much with checkpoints, {BARS[WITHOUT]:g} times "
        "without.",
        ("", "a step", "× plait", "by medians"),
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


def _by_plait(file: str) -> float:
    """From the moment in which the run has begun to that in which its end is written."""
    times: dict[type, float] = {}

    def watch(stamped: EventRecord) -> None:
        if isinstance(stamped.event, RunStarted | RunEnded):
            times[type(stamped.event)] = stamped.at

    result = run_flow(file, observers=RunObservers([watch]))
    assert result.value["output"] == f"n{STEPS - 2}", result
    return times[RunEnded] - times[RunStarted]


def _by_langgraph(how: str) -> float | str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "walk.py").write_text(_LANGGRAPH)
        env = {**os.environ, "HOME": folder, "LANGSMITH_TRACING": "false"}
        command = [PYTHON, "walk.py", str(STEPS), how]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, check=False, timeout=PATIENCE
        )
    if done.returncode == 0:
        return float(done.stdout.split()[-1])
    said = done.stderr.decode("utf-8", "replace")
    if "No module named" in said:
        return "not installed"
    print(said[-2000:], file=sys.stderr)
    return "failed"
