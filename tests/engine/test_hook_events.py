"""Each place that fires an event gives it the names and shapes of the table of events."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lang.graph.graphs import graph_place, graph_tool, trusted
from lang.loading import load_file
from plait.app.runs import flow_store, run_program
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.hook_events import ALWAYS, HOOK_EVENTS, NAMES, Hook
from plait.scope.expressions import Expression
from plait.views.progress import replay_events
from runs.stories import Place
from runs.test_subflows import script, use

WORKFLOW = """\
setup: [{shell: exit 3, continue_on_error: true}]
map:
  input: [a, b]
  steps: [{shell: "test ${item} = a"}]
  on_item_failure: skip
reduce:
  - tool: demo/walk
  - prompt: {prompt: go, tools: [demo/echo]}
  - shell: echo never
limits: {steps: 10}
"""
GRAPH = """\
start: a
state: {n: 1}
on_error: continue
nodes:
  a: {tool: demo/echo, assign: {n: 2}, next: each}
  each: {over: [1, 2], tool: demo/echo, next: b}
  b: {tool: demo/fail, next: c}
  c: {return: "${state.n}"}
"""
AROUND = {"item": "/item:", "state": "/nodes/"}
"""Names of what is around an event, and of which paths they are known."""
OF_A_LIMIT = frozenset({"step", "graph", "steps", "turn"})
"""Each name is given by the events that have it."""
SHAPES: dict[str, type | tuple[type, ...]] = {
    "event": str, "path": str, "run": dict, "inputs": dict, "limits": dict, "used": dict, "cost": dict,
    "directive": (str, type(None)), "model": (str, type(None)), "step": dict, "graph": str, "start": str,
    "node": str, "next": (str, type(None)), "steps": int, "attempt": int, "state": dict, "error": dict,
    "limit": dict, "turn": int, "tool": str, "params": dict,
}  # fmt: skip
"""Of the others nothing is promised."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = graph_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    graph_tool(made, "demo/walk", GRAPH)
    trusted(made)
    return made


class Reported:
    """A condition that never holds, and keeps what it is asked about."""

    def __init__(self) -> None:
        self.names: list[Mapping[str, Json]] = []

    def holds(self, subject: Any) -> bool:
        self.names.append(dict(subject.names))
        return False

    def of(self, event: str) -> list[Mapping[str, Json]]:
        return [names for names in self.names if names["event"] == event]


def reported_by(place: Place, text: str) -> Reported:
    path, reported = place.write("flow.yaml", text), Reported()
    condition: Expression = reported  # type: ignore[assignment]  # all that a hook asks of it
    hooks = tuple(Hook(event, event, verb="abort", condition=condition) for event in HOOK_EVENTS)
    loaded = load_file(str(path), project=str(place.root), environ=os.environ)
    loaded = replace(loaded, program=replace(loaded.program, hooks=hooks))
    run_program(loaded, {}, project=str(place.root))
    return reported


def test_every_event_has_the_names_and_shapes_of_its_table(place: Place) -> None:
    script(place, ("go", use("demo__echo", n=1)), (None, "done"))
    reported = reported_by(place, WORKFLOW)
    reported.names += reported_by(place, "steps: [{shell: echo one}]").names  # this one ends well
    script(place, ("hello", "hi"))
    reported.names += reported_by(place, "steps: [{prompt: hello}]").names
    assert {names["event"] for names in reported.names} == set(HOOK_EVENTS)
    for names in reported.names:
        moment = HOOK_EVENTS[str(names["event"])]
        promised = {*ALWAYS, *moment.names}
        path = f"{names['path']}/"
        free = {name for name, place_of in AROUND.items() if place_of not in path}
        free |= OF_A_LIMIT if moment.name == "limit" else set()
        assert promised - free <= names.keys(), (moment.name, path)
        assert names.keys() <= promised | AROUND.keys(), moment.name
        for name, value in names.items():
            assert isinstance(value, SHAPES.get(name, object)), (moment.name, name)
            fields = NAMES[name][1]
            assert not fields or set(names[name]) <= set(fields), (moment.name, name)


def test_what_happens_inside_a_graph_is_reported_with_its_state_and_the_item(place: Place) -> None:
    reported = reported_by(place, GRAPH)
    began = {str(names["path"]): names["state"] for names in reported.of("step_started")}
    assert began == {
        "nodes/a": {"n": 1},
        "nodes/each": {"n": 2},
        "nodes/b": {"n": 2},
        "nodes/c": began["nodes/c"],
    }
    assert sorted(began["nodes/c"]) == ["_last_error", "n"]
    for event in ("item_started", "item_finished"):
        assert [(names["item"], names["state"]) for names in reported.of(event)] == [
            (1, {"n": 2}),
            (2, {"n": 2}),
        ]


def test_events_of_agents_name_the_turn_the_tool_and_its_parameters(place: Place) -> None:
    script(place, ("go", use("demo__echo", n=1)), (None, "done"))
    reported = reported_by(place, "steps: [{prompt: {prompt: go, tools: [demo/echo]}}]")
    assert [names["turn"] for names in reported.of("turn_started")] == [1, 2]
    assert [names["turn"] for names in reported.of("turn_finished")] == [1, 2]
    (call,), (result,) = reported.of("tool_call"), reported.of("tool_result")
    for names in (call, result):
        assert (names["turn"], names["tool"], names["params"]) == (1, "demo/echo", {"n": 1})
        assert names["step"] == reported.of("step_started")[-1]["step"]


def test_a_plain_prompt_is_one_question(place: Place) -> None:
    script(place, ("hello", "hi"))
    reported = reported_by(place, "steps: [{prompt: hello}]")
    (began,), (ended,) = reported.of("turn_started"), reported.of("turn_finished")
    assert (began["path"], began["turn"], ended["result"]["output"]) == ("steps/0/turn:1", 1, "hi")
    ran = place.done(
        "hooks: [{id: no, event: turn_started, verb: skip}]\nsteps: [{prompt: never}]\n"
    )
    assert ran.skipped == ["steps/0/turn:1", "steps/0"]


@pytest.mark.parametrize(("wanted", "calls"), [("demo/echo", False), ("demo/other", True)])
def test_a_gate_on_one_tool_stops_its_calls_and_no_others(
    place: Place, wanted: str, calls: bool
) -> None:
    script(place, ("go", use("demo__echo", n=1)), (None, "done"))
    ran = place.done(
        f"hooks: [{{id: t, event: tool_call, condition: {{path: tool, value: {wanted}}}, verb: fail}}]\n"
        "steps: [{prompt: {prompt: go, tools: [demo/echo]}}]\n"
    )
    (call,) = [
        end for path, end in ran.finished.items() if ".call:" in path and "hook:" not in path
    ]
    assert call.outcome.value["failed"] is not calls  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "condition", ["'${env.DAY} == \"Friday\"'", "{path: env.DAY, value: Friday}"]
)
@pytest.mark.parametrize(("day", "runs"), [("Friday", False), ("Monday", True)])
def test_a_condition_sees_the_environment_as_params_do(
    place: Place, monkeypatch: pytest.MonkeyPatch, condition: str, day: str, runs: bool
) -> None:
    monkeypatch.setenv("DAY", day)
    ran = place.run(
        f"hooks: [{{id: no-friday, event: run_started, condition: {condition}, verb: abort}}]\n"
        "steps: [{shell: echo done}]\n"
    )
    assert (ran.result.failure is None) is runs


FORBIDDING = "hooks: [{id: no, event: turn_started, condition: '${turn} > %d', verb: %s}]\n"


@pytest.mark.parametrize("verb", ["skip", "fail"])
@pytest.mark.parametrize(("turns", "took"), [(0, (0, 0, 0.0)), (1, (1, 12, 0.5))])
def test_what_an_agent_took_that_failed_is_counted_once_and_a_question_that_was_not_asked_not_at_all(
    place: Place, verb: str, turns: int, took: tuple[int, int, float]
) -> None:
    script(place, ("go", use("demo__echo", n=1)), (None, "done"))
    ran = place.run(
        FORBIDDING % (turns, verb) + "steps: [{prompt: {prompt: go, tools: [demo/echo]}}]\n"
    )
    assert ran.result.failure is not None
    with flow_store(str(place.root)).open(ran.result.run, write=False) as opened:
        asked = replay_events(opened.journal.events()).usage
    assert (asked.turns, asked.tokens, asked.cost) == took
