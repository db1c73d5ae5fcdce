"""Flows inside flows: hooks, permissions, limits and resuming work as for outer flows, for every caller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lang.graph.graphs import graph_place, graph_tool, tool, trusted
from plait.app.runs import flow_runs
from plait.engine.events import StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.views.diagram.model import (
    Diagram,
    DiagramEdge,
    DiagramNode,
    Visit,
    graph_visits,
    mark_visits,
)
from runs.stories import Place, Ran

NOTIFY = "{tool: demo/ledger, params: {line: '%s'}}"
DEADLY = (
    "import os\n"
    "def execute(params, project_path):\n"
    "    with open(os.path.join(project_path, 'ledger'), 'a') as file:\n"
    "        file.write(params['line'] + '\\n')\n"
    "    if params['line'] == open(os.path.join(project_path, 'dies')).read():\n"
    "        os.kill(os.getpid(), 9)\n"
    "    return {'line': params['line']}\n"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A trusted project in which a model is played back."""
    made = graph_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    made.write("dies", "nothing")
    tool(made, "demo/mark", DEADLY)
    trusted(made)
    return made


def script(place: Place, *exchanges: tuple[str | None, Any]) -> None:
    place.write("replay.yaml", [{"ask": ask, "answer": answer} for ask, answer in exchanges])


def use(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "uses": [{"name": name, "arguments": arguments}],
        "usage": {"input": 10, "output": 2, "cost": 0.5},
    }


def directive(place: Place, name: str, head: str, prompt: str) -> None:
    place.write(f".ai/directives/{name}.md", f"---\n{head}\n---\n{prompt}\n")


def ledger(place: Place) -> list[str]:
    file = place.root / "ledger"
    return file.read_text().split("\n")[:-1] if file.exists() else []


# ── directives as actions of graphs ──────────────────────────────────────

ACTIONS = [
    "{action: {item_type: directive, item_id: team/inner}}",
    "{action: {item_type: directive, tool: 'directive:team/inner'}}",
    "{action: {item_type: directive, tool: 'team/${inputs.name}'}}",
    "{tool: 'directive:team/inner'}",
]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_node_calls_a_directive(place: Place, action: str) -> None:
    directive(place, "team/inner", "description: x", "Look.")
    trusted(place)
    script(place, ("Look.", "Seen."))
    ran = place.done(f"inputs: {{name: {{default: inner}}}}\nstart: a\nnodes:\n  a: {action}\n")
    assert ran.outputs["nodes/a/agent"] == "Seen."


def test_a_directive_that_is_not_there_is_reported_before_anything_runs(place: Place) -> None:
    directive(place, "team/inner", "description: x", "Look.")
    trusted(place)
    message = place.refusal(
        "start: a\nnodes:\n  a: {action: {item_type: directive, tool: team/iner}}\n"
    )
    assert message.startswith("flow.yaml:3:44: there is no directive 'team/iner'")


# ── hooks ────────────────────────────────────────────────────────────────


def test_hooks_of_a_directive_that_is_called_fire_for_its_own_events_alone(place: Place) -> None:
    hooks = ", ".join(
        f"{{id: {event}, event: {event}, action: {NOTIFY % event}}}"
        for event in (
            "run_started",
            "turn_started",
            "tool_call",
            "tool_result",
            "turn_finished",
            "run_finished",
        )
    )
    directive(place, "look", f"hooks: [{hooks}]\npermissions: [demo/add]", "Look.")
    directive(place, "other", "permissions: [demo/add]", "Other.")
    trusted(place)
    script(place, ("Look.", use("demo__add", n=1)), ('{"n":2}', "Seen."), ("Other.", "Nothing."))
    place.done(
        "steps:\n- {tool: 'directive:other'}\n- {tool: 'directive:look'}\n- {tool: 'directive:other'}\n"
    )
    assert ledger(place) == [
        "run_started", "turn_started", "turn_finished", "tool_call", "tool_result", "turn_started",
        "turn_finished", "run_finished",
    ]  # fmt: skip


def test_a_gate_of_a_directive_that_is_called_holds(place: Place) -> None:
    gate = (
        "hooks: [{id: no, event: tool_call, verb: fail, why: not today}]\npermissions: [demo/mark]"
    )
    directive(place, "look", gate, "Look.")
    directive(
        place, "shut", "hooks: [{id: shut, event: run_started, verb: fail, why: closed}]", "Never."
    )
    trusted(place)
    reported = "refused: it was not called: the hook 'no' says fail: not today"
    script(place, ("Look.", use("demo__mark", line="x")), (reported, "Then not."))
    assert place.done("steps: [{tool: 'directive:look'}]").value is not None
    assert ledger(place) == []
    ran = place.run("steps: [{tool: 'directive:shut'}]")
    assert "the hook 'shut' says fail: closed" in ran.message


def test_one_id_in_a_run_and_in_flows_inside_it_is_a_step_for_each(place: Place) -> None:
    """Also in a flow that calls itself."""
    hook = "hooks: [{id: t, event: after_step, action: %s}]\n"
    graph_tool(
        place,
        "my/inner",
        hook % (NOTIFY % "inner ${inputs.n} ${node}") + "inputs: {n: integer}\nstart: a\nnodes:\n"
        "  a: {next: [{to: again, when: {path: inputs.n, op: gt, value: 0}}]}\n"
        "  again: {tool: my/inner, params: {n: 0}}\n",
    )
    trusted(place)
    flow = (
        hook % (NOTIFY % "outer ${node}")
        + "start: call\nnodes: {call: {tool: my/inner, params: {n: 1}}}\n"
    )
    ran = place.done(flow)
    deep = "nodes/call/call/nodes/again/call/nodes/a"
    hooks = [path for path in ran.finished if path.startswith(f"{deep}/hook:")]
    assert hooks == [f"{deep}/hook:t", f"{deep}/hook:inner.t", f"{deep}/hook:inner2.t"]
    assert ledger(place).count("outer call") == 1
    # What happens in the innermost flow is also inside the one around it; not the other way round.
    assert (ledger(place).count("inner 0 a"), ledger(place).count("inner 1 a")) == (2, 1)


def test_a_hook_that_aborts_behind_a_node_ends_the_run_and_the_node_stays_done(
    place: Place,
) -> None:
    flow = """\
start: a
hooks: [{id: stop, event: after_step, condition: {path: node, value: a}, verb: abort, why: enough}]
nodes: {a: {tool: demo/ledger, params: {line: a}, next: b}, b: {tool: demo/ledger, params: {line: b}}}
"""
    stopped = place.run(flow)
    assert (stopped.result.status, stopped.message) == (
        "failed",
        "the hook 'stop' says abort: enough",
    )
    assert ledger(place) == ["a"]
    assert place.resume(stopped.result.run).result.status == "done"
    assert ledger(place) == ["a", "b"]


@pytest.mark.parametrize("event", ["graph_started", "error", "graph_completed"])
def test_an_abort_at_an_event_of_a_graph_ends_the_run(event: str, place: Place) -> None:
    called = "demo/fail" if event == "error" else "demo/echo"
    flow = f"start: a\nhooks: [{{id: s, event: {event}, verb: abort}}]\nnodes: {{a: {{tool: {called}}}}}\n"
    assert place.run(flow).message == "the hook 's' says abort"


def test_a_graph_inside_that_fails_and_says_abort_ends_the_run_by_both(place: Place) -> None:
    hooks = "hooks: [{id: g, event: run_failed, verb: abort, why: because}]\n"
    graph_tool(place, "my/graph", hooks + "start: a\nnodes: {a: {tool: demo/fail}}\n")
    trusted(place)
    ran = place.run("steps: [{tool: my/graph, continue_on_error: true}, {shell: echo on}]\n")
    failure = ran.result.failure
    assert failure is not None
    first, *_, last = failure.message.splitlines()
    assert first.startswith("node 'a': ")
    assert (last, failure.kind) == ("the hook 'g' says abort: because", "failed")
    assert failure.output is not None, "what it had come to"
    assert "steps/1" not in ran.outputs, "no handler goes on"


def test_the_time_of_a_graph_that_is_called_is_its_own(place: Place) -> None:
    tool(
        place, "demo/slow", "import time\ndef execute(params, project_path):\n    time.sleep(20)\n"
    )
    graph_tool(place, "my/slow", "timeout: 200ms\nstart: a\nnodes: {a: {tool: demo/slow}}\n")
    trusted(place)
    ran = place.run("steps: [{tool: my/slow}]")
    assert "took longer than 0.2 s" in ran.message


# ── who calls whom ───────────────────────────────────────────────────────

GRAPH = """\
inputs: {n: integer}
start: first
nodes:
  first: {tool: demo/mark, params: {line: graph-1}, next: ask}
  ask: {tool: "directive:inner", params: {n: "${inputs.n}"}, assign: {said: "${result.result}"}, next: last}
  last: {tool: demo/mark, params: {line: graph-2}, next: end}
  end: {return: "${state.said}"}
"""
EXCHANGES = [
    ("Inner 1.", use("demo__mark", line="inner")),
    ('{"line":"inner"}', "inner done"),
    ("Outer.", use("my__graph", n=1)),
    ("inner done", use("demo__mark", line="outer")),
    ('{"line":"outer"}', "outer done"),
]
LINES = ["graph-1", "inner", "graph-2", "outer"]


def nested(place: Place) -> None:
    """An agent that calls a graph that calls an agent."""
    graph_tool(place, "my/graph", GRAPH)
    directive(place, "inner", "inputs: {n: integer}\npermissions: [demo/*]", "Inner {input:n}.")
    directive(place, "outer", "permissions: [my/graph, demo/mark]", "Outer.")
    trusted(place)
    script(place, *EXCHANGES)


def test_an_agent_calls_a_graph_that_calls_an_agent_in_one_journal(place: Place) -> None:
    nested(place)
    ran = place.done("steps: [{tool: 'directive:outer'}]")
    assert ledger(place) == LINES
    call = "steps/0/agent/turn:1.call:1"
    assert f"{call}/nodes/ask/call/agent/turn:1.call:1" in ran.finished
    assert ran.outputs["steps/0"] == "outer done"


def test_a_workflow_calls_both(place: Place) -> None:
    nested(place)
    ran = place.done(
        "steps:\n- {tool: my/graph, params: {n: 1}, capture: said}\n- {tool: 'directive:outer'}\n"
    )
    assert (ran.outputs["steps/0"], ran.outputs["steps/1"]) == ("inner done", "outer done")
    assert ledger(place) == ["graph-1", "inner", "graph-2", *LINES]


@pytest.mark.parametrize("line", LINES)
def test_after_a_kill_inside_any_of_them_a_resumed_run_repeats_nothing_recorded(
    line: str, place: Place
) -> None:
    nested(place)
    place.write("flow.yaml", "steps: [{tool: 'directive:outer'}]")
    place.write("dies", line)
    assert place.plait("run", "flow.yaml").returncode == -9
    place.write("dies", "nothing")
    ran = place.resume(flow_runs(str(place.root))[0].id)
    assert (ran.result.status, ran.message) == ("done", "")
    answered = {"graph-1": 1, "inner": 2, "graph-2": 3, "outer": 4}[line]
    asked = [one for one in ran.finished.values() if one.kind == "turn" and not one.replayed]
    assert len(asked) == len(EXCHANGES) - answered
    assert ledger(place) == [*LINES[: LINES.index(line) + 1], *LINES[LINES.index(line) :]]


def test_an_agent_inside_has_at_most_what_the_one_around_it_has(place: Place) -> None:
    nested(place)
    directive(place, "outer", "permissions: [my/graph]", "Outer.")
    trusted(place)
    reported = "refused: there is no tool of this name that you may call; there are no tools"
    script(
        place,
        ("Outer.", use("my__graph", n=1)),
        ("Inner 1.", use("demo__mark", line="inner")),
        (reported, "I may not."),
        ("I may not.", "So be it."),
    )
    ran = place.done("steps: [{tool: 'directive:outer'}]")
    assert ran.outputs["steps/0"] == "So be it."
    assert ledger(place) == [
        "graph-1",
        "graph-2",
    ]  # what the graph calls is its author's word, and not a model's


DEPTHS = [
    # limit of the outer agent   how the graph ends for its model
    (2, "inner done"),
    (1, "limit: node 'ask': 'outer' has reached its limit of 1 depth (2 used)"),
    (0, "limit: 'outer' has reached its limit of 0 depth (1 used)"),
]


@pytest.mark.parametrize(("depth", "reported"), DEPTHS)
def test_flows_are_inside_one_another_as_deep_as_the_outermost_lets_them(
    depth: int, reported: str, place: Place
) -> None:
    nested(place)
    directive(
        place, "outer", f"permissions: [my/graph, demo/mark]\nlimits: {{depth: {depth}}}", "Outer."
    )
    trusted(place)
    ends = reported if depth == 2 else None
    script(place, *EXCHANGES[:3], *([(ends, "so")] if ends else [(None, "so")]))
    ran = place.done("steps: [{tool: 'directive:outer'}]")
    output = call_output(ran, "steps/0/agent/turn:1.call:1")
    assert output.startswith(reported)


def call_output(ran: Ran, path: str) -> str:
    value: Any = ran.outcome(path)
    return str(value.value["output"])


# ── limits ───────────────────────────────────────────────────────────────

SLOW = "import time\ndef execute(params, project_path):\n    time.sleep(30)\n"
BOUNDED = [
    # who calls a tool that takes half a minute           file        path of the owner of the limit
    (
        "graph 'flow'",
        "flow.yaml",
        "limits: {seconds: 1}\nstart: a\nnodes: {a: {tool: demo/slow}}\n",
    ),
    ("'slow'", "slow.md", "---\npermissions: [demo/slow]\nlimits: {seconds: 1}\n---\nWait.\n"),
    ("the run", "flow.yaml", "limits: {seconds: 1}\nsteps: [{tool: demo/slow}]\n"),
]


@pytest.mark.parametrize(("whose", "file", "text"), BOUNDED, ids=[row[0] for row in BOUNDED])
def test_a_call_may_take_what_is_left_of_the_seconds_and_no_more(
    whose: str, file: str, text: str, place: Place
) -> None:
    tool(place, "demo/slow", SLOW)
    trusted(place)
    place.write(file, text)
    script(place, ("Wait.", use("demo__slow")), (None, "never"))
    ended = place.plait("run", file)
    assert ended.returncode == 1
    what = "the run" if whose.startswith("graph") else whose
    assert f"{what} has reached its limit of 1 second" in ended.stderr + ended.stdout


# ── calls that may be made once ──────────────────────────────────────────

ONCE_HOSTS = [
    # who calls it      file       content                                                        path of the call
    ("agent", "once.md", "---\npermissions: [demo/pay]\n---\nPay.\n", "agent/turn:1.call:1/call"),
    ("graph", "flow.yaml", "start: a\nnodes: {a: {tool: demo/pay, params: {line: p}}}\n", "nodes/a/call"),
    ("foreach", "flow.yaml", "start: a\nnodes: {a: {over: [p], tool: demo/pay, params: {line: '${item}'}}}\n",
     "nodes/a/item:0/call"),
    ("a named tool", "flow.yaml",
     "state: {t: demo/pay}\nstart: a\nnodes: {a: {tool: '${state.t}', params: {line: p}}}\n", "nodes/a/call"),
    ("step", "flow.yaml", "steps: [{tool: demo/pay, params: {line: p}}]\n", "steps/0/call"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "file", "text", "path"), ONCE_HOSTS, ids=[row[0] for row in ONCE_HOSTS]
)
def test_a_tool_that_may_run_once_is_asked_about_after_a_kill_from_every_caller(
    host: str, file: str, text: str, path: str, place: Place
) -> None:
    tool(place, "demo/pay", f"__once__ = True\n{DEADLY}")
    trusted(place)
    place.write(file, text)
    place.write("dies", "p")
    script(place, ("Pay.", use("demo__pay", line="p")), (None, "Paid."))
    assert place.plait("run", file).returncode == -9
    place.write("dies", "nothing")
    run = flow_runs(str(place.root))[0].id
    asked = place.resume(run)
    assert f"--repeat {path}, or plait resume {asked.result.run} --done {path}" in asked.message, (
        host
    )
    assert ledger(place) == ["p"]
    done = place.resume(run, done=[path])
    assert (done.result.status, ledger(place)) == ("done", ["p"])


def test_a_call_that_may_be_made_once_is_repeated_if_somebody_says_so(place: Place) -> None:
    tool(place, "demo/pay", f"__once__ = True\n{DEADLY}")
    trusted(place)
    place.write("flow.yaml", "start: a\nnodes: {a: {tool: demo/pay, params: {line: p}}}\n")
    place.write("dies", "p")
    assert place.plait("run", "flow.yaml").returncode == -9
    place.write("dies", "nothing")
    run = flow_runs(str(place.root))[0].id
    assert place.resume(run, repeat=["nodes/a/call"]).result.status == "done"
    assert ledger(place) == ["p", "p"]


def test_once_in_a_header_is_true_or_false(place: Place) -> None:
    tool(place, "demo/pay", f"__once__ = 'yes'\n{DEADLY}")
    trusted(place)
    assert "'once' is true or false" in place.refusal("steps: [{tool: demo/pay}]")


# ── flows that were edited since they were called ────────────────────────

NODES = (
    "start: a\nnodes:\n  a: {tool: demo/pay, params: {line: p}, next: b}\n  b: {tool: demo/wait}\n"
)
VISITS = (
    "state: {n: 0}\nstart: a\nnodes:\n"
    "  a: {tool: demo/pay, params: {line: p}, next: c}\n"
    "  c: {tool: demo/add, params: {n: '${state.n}'}, assign: {n: '${result.n}'},\n"
    "      next: [{to: a, when: {path: state.n, op: lt, value: 2}}, {to: b}]}\n"
    "  b: {tool: demo/wait}\n"
)
TASKS = (
    "tasks:\n- {id: a, description: a, tool: demo/pay, params: {line: p}}\n"
    "- {id: b, description: b, tool: demo/wait}\n"
)
HOOKED = f"hooks: [{{id: h, event: run_started, action: {NOTIFY % 'h'}}}]\n{NODES}"
RENAMED = [("start: a", "start: z"), ("  a:", "  z:"), ("to: a", "to: z")]
EDITED = [
    # called flow  text                            edits                                     removed                  payments
    ("node",    f"tool_type: graph\n{NODES}",      RENAMED,                                  "nodes/a (a, removed)",      2),
    ("visits",  f"tool_type: graph\n{VISITS}",     RENAMED,                                  "nodes/a (a, removed)",      4),
    ("hooked",  f"tool_type: graph\n{HOOKED}",     RENAMED,                                  "nodes/a (a, removed)",      2),
    ("task",    f"tool_type: ensemble\n{TASKS}",   [("id: a", "id: z")],                     "tasks/task:a (a, removed)", 2),
    ("removed", f"tool_type: ensemble\n{TASKS}",   [(TASKS.splitlines(keepends=True)[1], "")], "tasks/task:a (a, removed)", 1),
]  # fmt: skip
CALLERS = [
    ("steps: [{tool: my/flow}, {id: last, shell: echo ONE}]\n", "steps/0"),
    ("start: call\nnodes: {call: {tool: my/flow, next: last}, last: {return: ONE}}\n", "nodes/call"),
]  # fmt: skip
WAIT = (
    "import os\ndef execute(params, project_path):\n"
    "    if not os.path.exists(os.path.join(project_path, 'ok')):\n        raise ValueError('not yet')\n"
)


@pytest.mark.parametrize(("caller", "call"), CALLERS, ids=["workflow", "graph"])
@pytest.mark.parametrize(
    ("text", "edits", "removed", "payments"),
    [row[1:] for row in EDITED],
    ids=[row[0] for row in EDITED],
)
def test_a_step_of_a_called_flow_that_was_done_and_has_another_name_now_does_not_run_unasked(
    text: str,
    edits: list[tuple[str, str]],
    removed: str,
    payments: int,
    caller: str,
    call: str,
    place: Place,
) -> None:
    called(place, text)
    run = place.run(caller).result.run
    before = ledger(place)
    for old, new in edits:
        text = text.replace(old, new)
    called(place, text)
    message = f"the file has changed since these steps were done: {call}/{removed}\n"
    assert place.resume(run).message.startswith(message)
    assert ledger(place) == before, "nothing has run, not even a hook"
    assert "not yet" in place.resume(run, accept_changes=True).message
    assert ledger(place).count("p") == payments
    # The user accepted it: after an edit of the caller, no question about it is repeated.
    place.write("flow.yaml", caller.replace("ONE", "TWO"))
    place.write("ok", "")
    assert place.resume(run).result.status == "done"
    assert ledger(place).count("p") == payments


def called(place: Place, text: str) -> None:
    tool(place, "demo/pay", f"__once__ = True\n{DEADLY}")
    tool(place, "demo/wait", WAIT)
    place.write(".ai/tools/my/flow.yaml", f"version: 1.0.0\n{text}")
    trusted(place)


def test_a_called_flow_that_kept_its_names_is_resumed_without_a_question(place: Place) -> None:
    called(place, f"tool_type: graph\n{VISITS}")
    run = place.run("steps: [{tool: my/flow}]\n").result.run
    called(place, f"tool_type: graph\n{VISITS}  new: {{return: 1}}\n")
    place.write("ok", "")
    assert place.resume(run).result.status == "done"
    assert ledger(place) == ["p", "p"]


# ── secrets ──────────────────────────────────────────────────────────────

SECRET = """\
inputs: {token: string, n: integer}
secrets: [token]
start: a
nodes:
  a: {tool: demo/flaky, params: {good: 2}, next: b}
  b: {tool: demo/echo, params: {t: "${inputs.token}"}, assign: {length: "${inputs.n}", back: "${result.got.t}"}}
"""


def test_resuming_a_run_with_secret_inputs_needs_them_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = place.run(SECRET, inputs={"token": "hunter2-hunter2", "n": 3})
    run = failed.result.run
    refused = place.plait("resume", run)
    assert refused.returncode == 2
    assert f"run {run} was given secrets, which are not kept with it: token" in refused.stderr
    assert f"fix: give them again: PLAIT_INPUT_token=… plait resume {run}" in refused.stderr
    with pytest.raises(Exception, match="has its inputs already: n"):
        place.resume(run, inputs={"token": "x", "n": 4})
    monkeypatch.setenv("PLAIT_INPUT_token", "hunter2-hunter2")
    assert place.resume(run).value["state"] == {"length": 3, "back": "***"}
    assert b"hunter2" not in place.state


def test_from_python_they_are_given_as_inputs(place: Place) -> None:
    import plait

    failed = place.run(SECRET, inputs={"token": "hunter2-hunter2", "n": 3})
    done = plait.run(
        resume=failed.result.run, inputs={"token": "hunter2-hunter2"}, project=place.root
    )
    assert (done.status, done.value["state"]["back"]) == ("done", "***")


def test_a_secret_input_of_a_graph_that_is_called_is_nowhere(place: Place) -> None:
    """The caller does not declare it."""
    graph_tool(place, "my/inner", SECRET.replace("{good: 2}", "{good: 0}"))
    trusted(place)
    place.write("said", "it was hunter2-hunter2")
    ran = place.done(
        "- {tool: my/inner, params: {token: hunter2-hunter2, n: 3}}\n- {shell: cat said, capture: said}\n"
    )
    assert "***" in json.dumps(ran.outputs["steps/0"])
    assert str(ran.outputs["steps/1"]).strip() == "it was ***"
    assert b"hunter2" not in place.state


# ── what other systems mean ──────────────────────────────────────────────


def test_the_item_of_a_foreach_is_known_in_the_state_as_well(place: Place) -> None:
    flow = """\
start: each
state: {file: shadowed, by: 10}
nodes:
  each:
    over: [1, 2]
    as: file
    tool: demo/add
    params: {n: "${state.file}", by: "${state.by}"}
    collect: sums
    next: end
  end: {return: {sums: "${state.sums}", file: "${state.file}"}}
"""
    assert [str(one.problem) for one in place.check(flow)] == []
    assert place.done(flow).value["output"] == {"sums": [{"n": 11}, {"n": 12}], "file": "shadowed"}
    assert (
        place.check(flow.replace("file: shadowed, ", "").replace(', file: "${state.file}"', ""))
        == []
    )


def test_which_of_two_edges_between_the_same_nodes_was_followed_is_recorded(place: Place) -> None:
    flow = json.dumps(
        {
            "start": "a",
            "state": {"n": 0},
            "nodes": {
                "a": {
                    "tool": "demo/add",
                    "params": {"n": "${state.n}"},
                    "assign": {"n": "${result.n}"},
                    "next": [
                        {"to": "b", "when": {"path": "state.n", "value": 1}},
                        {"to": "end", "when": {"path": "state.n", "value": 3}},
                        {"to": "b"},
                    ],
                },
                "b": {"next": "a"},
                "end": {},
            },
        }
    )
    ran = place.done(flow)
    values = [ran.outcome(path).value for path in ("nodes/a", "nodes/a@2", "nodes/a@3")]  # type: ignore[union-attr]
    assert [(one["next"], one.get("edge")) for one in values] == [("b", 1), ("b", 3), ("end", None)]


def test_the_drawing_of_a_run_counts_each_of_two_edges_and_the_way_of_an_error_for_itself() -> None:
    arrows = (
        DiagramEdge("a", "b", "n = 1"),
        DiagramEdge("a", "end"),
        DiagramEdge("a", "b"),
        DiagramEdge("a", "b", style="error"),
    )
    picture = Diagram(
        "g",
        (DiagramNode("a", "tool"), DiagramNode("b", "gate"), DiagramNode("end", "gate")),
        arrows,
    )
    way: list[Visit] = [
        ("a", False, 3),
        ("b", False),
        ("a", False, 1),
        ("b", False),
        ("a", False, 3),
        ("b", False),
    ]
    taken = [arrow.taken for arrow in mark_visits(picture, way).edges]
    assert taken == [1, 0, 2, 0]
    failing: list[Visit] = [("a", True), ("b", False), ("a", False), ("end", False)]
    assert [arrow.taken for arrow in mark_visits(picture, failing).edges] == [0, 1, 0, 1]


def test_the_edge_is_known_from_the_visits_of_a_journal() -> None:
    journal = MemoryJournal()
    ends: list[tuple[str, Outcome]] = [
        ("a", Succeeded({"next": "b", "edge": 3})),
        ("b", Succeeded({"next": "a"})),
    ]
    ends.append(("a@2", Failed(Failure("no"))))
    for order, (name, outcome) in enumerate(ends):
        journal.append(StepFinished(f"nodes/{name}", "tool", name, "", outcome, 0.0, order))
    journal.append(StepFinished("nodes/hook:x", "hook", "x", "", Succeeded({}), 0.0, 9))
    assert graph_visits(journal, "nodes") == [
        ("a", False, 3),
        ("b", False, None),
        ("a", True, None),
    ]
