"""Ensembles in files and in projects: loading, checking, running, resuming; what is left of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import plait
from lang.graph.graphs import graph_place, tool, trusted
from plait import Agent, Ensemble, EnsembleError, Manager, Secret, Task, TaskOutput
from plait.agents.messages import ModelRequest, ModelResponse, TokenUsage, ToolRequest
from plait.app.runs import flow_store
from plait.core.errors import InputError, TrustError
from plait.core.values import Json
from plait.engine.events import RunEnded
from plait.engine.outcome import Succeeded
from plait.lang.flow_text import FlowText
from plait.lang.languages import detect_language
from plait.program.tasks.model import PLAIN_AGENT
from plait.program.tasks.text import system_text
from plait.schema import ENSEMBLE
from plait.schema.reference import render_reference
from runs.stories import Place, new_place

FLOW = """\
name: report
inputs: {topic: string, files: {type: array, default: [a, b]}}
tasks:
  - {id: find, description: "Find {topic}", tool: demo/give, params: {value: "${inputs.topic}!"}}
  - id: look
    description: Look at {file} for {topic}
    context: find
    tool: demo/give
    params: {value: "${file_index}:${file} ${context.find.raw}"}
  - {id: sum, description: Put together, tool: demo/give, params: {value: {n: 2}}}
  - id: write
    description: Write
    tool: demo/give
    context: [sum, look]
    params: {value: "${context.sum.data.n} of ${context.look.data}"}
map: {items: files, as: file, task: look, reduce: sum}
"""
REPLAY = "family: replay\nfile: said.yaml\nmatch: order\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return graph_place(tmp_path, monkeypatch)


def write_answers(place: Place, *answers: Json) -> None:
    """A provider that plays these back."""
    place.write("said.yaml", [{"answer": answer} for answer in answers])
    place.write(".ai/config/providers/default.yaml", REPLAY)


def found(place: Place, flow: str) -> list[str]:
    return [
        f"{finding.problem.place[1]}:{finding.problem.place[2]} {finding.problem.what}"
        for finding in place.check(flow)
        if finding.severity == "error"
    ]


# ── files ────────────────────────────────────────────────────────────────


def test_an_ensemble_of_tools_runs_without_any_model(place: Place) -> None:
    ran = place.done(FLOW, inputs={"topic": "${x} {y}"})
    assert detect_language(FlowText.read(str(place.file))).kind == "ensemble"
    assert ran.value["output"] == '2 of ["0:a ${x} {y}!","1:b ${x} {y}!"]'
    assert list(ran.value["tasks"]) == ["find", "look", "sum", "write"]
    assert ran.value["tasks"]["sum"]["data"] == {"n": 2}
    assert ran.value["usage"]["input"] == 0
    assert set(ran.finished) == {
        "tasks", "tasks/task:find", "tasks/map:look", "tasks/map:look/0", "tasks/map:look/1",
        "tasks/map:look/reduce:1.1", "tasks/task:write",
    }  # fmt: skip
    again = place.resume(ran.result.run)
    assert (again.value, again.result.status) == (ran.value, "done")


def test_agents_of_a_file_are_asked_and_hear_contexts_before_the_task(place: Place) -> None:
    write_answers(
        place,
        {"text": "facts {topic}", "usage": {"input": 3, "output": 2, "cost": 0.5}},
        {"text": "page", "usage": {"input": 4, "output": 1}},
    )
    ran = place.done(
        """\
agents:
  researcher: {role: "a researcher of {topic}", goal: find, backstory: Old hand.}
tasks:
  find: {description: "Find {topic}", expected_output: facts, agent: researcher}
  write: {description: "Write", context: [find], agent: {role: a writer}}
""",
        inputs={"topic": "tides"},
    )
    assert ran.value["output"] == "page"
    assert ran.value["tasks"]["find"]["agent"] == "a researcher of tides"
    assert (ran.value["usage"]["input"], ran.value["usage"]["cost"]) == (7, 0.5)
    assert "tasks/task:find/turn:1" in ran.finished


def test_missing_variables_of_a_file_are_reported_with_places_and_there_is_no_run(
    place: Place,
) -> None:
    flow = """\
tasks:
  - {id: a, description: "About {topic}", expected_output: "{n} lines", tool: demo/give}
  - {id: b, description: "{item} {m}", tool: demo/give}
map: {items: [1], task: b}
"""
    place.write("flow.yaml", flow)
    with pytest.raises(plait.PromptTemplateError) as caught:
        place.run(inputs={"topik": 1})
    assert caught.value.missing_variables == ["topic", "n", "m"]
    assert str(caught.value).replace(f"{place.root}/", "") == (
        "flow.yaml:2:33: Missing template variables: [topic], in the description of task 'a'. "
        "Provide them in ensemble.run(inputs). Template: 'About {topic}'\n"
        '2 |   - {id: a, description: "About {topic}", expected_output: "{n} lines", tool: demo/give}\n'
        "  |                                 ^^^^^^^\n"
        "fix: did you mean 'topik'?\n"
        "flow.yaml:2:61: Missing template variables: [n], in the expected output of task 'a'. "
        "Provide them in ensemble.run(inputs). Template: '{n} lines'\n"
        '2 |   - {id: a, description: "About {topic}", expected_output: "{n} lines", tool: demo/give}\n'
        "  |                                                             ^^^\n"
        "fix: -i n=…\n"
        "flow.yaml:3:34: Missing template variables: [m], in the description of task 'b'. "
        "Provide them in ensemble.run(inputs). Template: '{item} {m}'\n"
        '3 |   - {id: b, description: "{item} {m}", tool: demo/give}\n'
        "  |                                  ^^^\n"
        "fix: -i m=…"
    )
    assert not list((place.root / ".ai" / "state").glob("runs/*"))


def test_an_item_without_a_field_is_named_by_its_place(place: Place) -> None:
    flow = """\
tasks: [{id: b, description: "{item_name} {m}", tool: demo/give, params: {value: "${item.size}"}}]
map: {items: [{name: x, size: 1}, {size: 2}, {name: y}], task: b}
"""
    place.write("flow.yaml", flow)
    with pytest.raises(plait.PromptTemplateError) as caught:
        place.run()
    assert [problem.fix for problem in caught.value.problems] == [
        "-i m=…; item 1 of 3, counted from 0, has no field 'name'",
        "item 2 of 3, counted from 0, has no field 'size'",
    ]


WRONG = [
    (
        "tasks: [{id: a, description: x, agent: wirter, context: [b, c]}, {id: b, description: y}]\n"
        "agents: {writer: {role: w}}\n",
        ["1:40 there is no agent 'wirter'", "1:61 there is no task 'c'"],
    ),
    (
        "tasks: [{id: a, description: x}, {id: a, description: y}]\n",
        ["1:35 two tasks have the id 'a'"],
    ),
    (
        "tasks: [{id: a, description: x, context: b}, {id: b, description: y, context: [a]}]\n",
        ["1:33 tasks need each other in a circle: 'a' → 'b' → 'a'"],
    ),
    (
        "tasks: [{description: x, expectd_output: y, handler: f}]\nworkflow: paralel\n",
        [
            "1:26 'expectd_output' is not a field of a task",
            "1:45 'handler' does not exist here",
            "2:11 'workflow' must be one of sequential, parallel, hierarchical",
        ],
    ),
    (
        "workflow: hierarchical\nmanager: {workers: [q]}\ntasks: [{description: x, tool: t}]\n",
        [
            "2:11 'workers' names an unknown worker: 'q'",
            "3:26 task 'task-1' has no agent, but a manager delegates to agents",
        ],
    ),
    (
        'tasks: [{id: a, description: x, tool: t, params: {p: "${contxt.a} ${inputs.q}"}}]\n'
        'loops: [{tasks: [a], until: "${iteraton} > 1"}]\n',
        ["1:55 unknown variable 'contxt.a'", "2:30 unknown variable 'iteraton'"],
    ),
    (
        "tasks: [{id: a, description: x, tool: t}]\nloops: [{tasks: a, until: {path: outpt.x, value: 1}}]\n",
        ["2:27 unknown variable 'outpt'"],
    ),
    (
        'inputs: {all: array}\ntasks: [{id: a, description: "{file} {file_x} {fil}"}]\n'
        "map: {items: all, as: file, task: a}\n",
        ["2:47 unknown input 'fil'"],
    ),
    (
        "inputs: {n: integer}\n"
        "tasks:\n"
        '  - {id: a, description: "A {reader}", tool: t, params: {x: "${inputs.tone} ${inputs.n}"}}\n'
        '  - {id: m, description: "M {item}", tool: t, params: {x: "${inputs.item_name} ${inputs.itm}"}}\n'
        "map: {items: things, task: m}\n",
        [
            "3:29 unknown input 'reader'",
            "3:62 unknown variable 'inputs.tone'",
            "4:80 unknown variable 'inputs.itm'",
            "5:14 unknown input 'things'",
        ],
    ),
    (
        "tasks:\n"
        "  - {id: a, description: A, tool: t}\n"
        "  - {id: m, description: M, tool: t}\n"
        '  - {id: r, description: R, tool: t, context: a, params: {w: "${context}", x: "${context.m.data} ${context.a.raw}",'
        ' y: "${context.m-1.raw}", z: "${context.b.raw} ${nobody || context.m-x.raw}"}}\n'
        "map: {items: [1, 2], task: m, reduce: r}\n",
        [
            "4:80 unknown variable 'context.m.data'",
            "4:146 unknown variable 'context.b.raw'",
            "4:163 unknown variable 'context.m-x.raw'",
        ],
    ),
]


@pytest.mark.parametrize(("flow", "problems"), WRONG)
def test_everything_that_is_wrong_with_a_file_is_reported_at_once(
    place: Place, flow: str, problems: list[str]
) -> None:
    assert found(place, flow) == problems
    with pytest.raises(InputError):
        place.run()


def test_what_a_reduce_is_given_is_named_in_the_fix(place: Place) -> None:
    flow = (
        "tasks:\n"
        "  - {id: m, description: M, tool: demo/give}\n"
        '  - {id: r, description: R, tool: demo/give, params: {value: "${context.m.data}"}}\n'
        "map: {items: [1, 2], task: m, reduce: r}\n"
    )
    assert place.refusal(flow).endswith(
        "fix: a reduce has the outputs of 'm' one by one: m-0, m-1, …; 'context' alone is all of them"
    )


def test_declared_inputs_are_checked_and_what_is_needed_has_to_be_given(place: Place) -> None:
    flow = "inputs: {n: integer, x: string}\ntasks: [{description: a, tool: demo/give, params: {value: 1}}]\n"
    assert "parameter 'n' must be a whole number" in place.refusal(
        flow, inputs={"n": "many", "x": "y"}
    )
    assert "parameter 'x' is missing" in place.refusal(flow, inputs={"n": "3"})
    assert "this flow has no parameter 'q'" in place.refusal(flow, inputs={"n": "3", "q": 1})


def test_a_secret_input_of_a_file_is_nowhere(place: Place) -> None:
    write_answers(place, "fine")
    place.done(
        "secrets: [key]\ntasks: [{description: 'use {key}'}]\n",
        inputs={"key": "s3cr3t-value-of-mine"},
    )
    assert b"s3cr3t-value-of-mine" not in place.state


def test_limits_and_hooks_of_a_file_hold(place: Place) -> None:
    write_answers(place, "one", "two")
    flow = "limits: {turns: 1}\ntasks: [{description: a}, {description: b}]\n"
    ran = place.run(flow)
    assert (ran.result.status, ran.result.failure and ran.result.failure.kind) == (
        "failed",
        "limit",
    )
    assert ran.result.failure is not None
    assert ran.result.failure.output["tasks"]["task-1"]["raw"] == "one"
    hook = "{id: no, event: step_started, condition: \"${step.name} == 'task:b'\", verb: fail, why: not b}"
    ran = place.run(
        f"hooks: [{hook}]\ntasks: [{{id: a, description: a, tool: demo/give, params: {{value: 1}}}}, "
        "{id: b, description: b, tool: demo/give}]\n"
    )
    assert "not b" in ran.message
    assert ran.result.failure is not None
    assert ran.result.failure.output["tasks"]["a"]["raw"] == "1"


def test_a_provider_that_is_missing_is_reported_before_the_first_task(place: Place) -> None:
    ran = place.run("tasks: [{description: a, tool: demo/give}, {id: b, description: b}]\n")
    assert ran.message.startswith("task 'b' needs a model, and no provider is configured")
    assert [path for path in ran.finished if path != "tasks"] == []


def test_a_hierarchical_ensemble_of_a_file_delegates(place: Place) -> None:
    use = {"name": "delegate", "arguments": {"worker": "writer", "task": "write {topic}"}}
    write_answers(place, {"text": "", "uses": [use]}, "the text", "all done")
    ran = place.done(
        "workflow: hierarchical\nmanager: {goal: lead, required: [writer]}\n"
        "tasks: [{description: 'a page on {topic}', agent: {role: writer}}]\n",
        inputs={"topic": "t"},
    )
    assert ran.value["output"] == "all done"
    assert ran.value["tasks"]["delegation-1"]["raw"] == "the text"
    assert ran.value["tasks"]["delegation-1"]["description"] == "write {topic}"


def test_workers_of_a_file_are_named_by_role_or_by_name_also_if_the_role_is_a_template(
    place: Place,
) -> None:
    write_answers(
        place,
        {"uses": [{"name": "delegate", "arguments": {"worker": "tides writer", "task": "go"}}]},
        "written",
        "all of it",
    )
    flow = (
        "inputs: {topic: string}\nworkflow: hierarchical\n"
        "agents: {writer: {role: '{topic} writer'}}\n"
        "tasks: [{description: part, agent: writer}]\n"
        "manager: {workers: %s, required: %s}\n"
    )
    assert (
        place.done(flow % ("writer", "'{topic} writer'"), inputs={"topic": "tides"}).value["output"]
        == "all of it"
    )
    assert found(place, flow % ("wirter", "writer"))[0].endswith(
        "'workers' names an unknown worker: 'wirter'"
    )


def test_an_ensemble_has_a_schema_that_accepts_its_files() -> None:
    import jsonschema_rs

    from plait.core.documents import parse
    from plait.schema.json_schema import json_schema

    schema = jsonschema_rs.validator_for(json_schema("ensemble"))
    assert schema.is_valid(parse(FLOW, "f.yaml").data())
    assert not schema.is_valid({"tasks": [{"descripton": "x"}]})


def test_the_page_has_the_tables_of_the_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ensembles.md").read_text("utf-8")
    tables = page.partition("## All maps and their fields\n\n")[2]
    wanted = {part.split("\n", 1)[0]: part for part in render_reference(ENSEMBLE).split("\n\n### ")}
    for name in (
        "ensemble",
        "member",
        "task",
        "ensemble_loop",
        "ensemble_map",
        "ensemble_items",
        "manager",
    ):
        assert wanted[name] in tables


# ── resuming ─────────────────────────────────────────────────────────────


def test_a_resumed_file_does_only_what_was_not_done(place: Place) -> None:
    flow = """\
tasks:
  - {id: a, description: a, tool: demo/ledger, params: {line: a}}
  - {id: b, description: b, tool: demo/flaky, params: {good: 2}, context: a}
  - {id: c, description: c, tool: demo/ledger, params: {line: c}}
  - {id: d, description: d, tool: demo/ledger, params: {line: "d ${context.b.data.tries}"}, context: b}
on_error: continue_on_error
"""
    ran = place.run(flow)
    assert ran.result.status == "failed"
    assert sorted(place.text("ledger").split("\n")) == ["", "a", "c"]
    again = place.resume(ran.result.run)
    assert again.result.status == "done", again.message
    assert sorted(place.text("ledger").split("\n")) == ["", "a", "c", "d 2"]


DIES_ONCE = (
    "import os\n"
    "def execute(params, project_path):\n"
    "    with open(os.path.join(project_path, 'ledger'), 'a') as file:\n"
    "        file.write(params['line'] + '\\n')\n"
    "    mark = os.path.join(project_path, 'died')\n"
    "    if params['line'] == 'look 2' and not os.path.exists(mark):\n"
    "        open(mark, 'w').close()\n"
    "        os.kill(os.getpid(), 9)\n"
    "    return params['line']\n"
)


def test_after_a_kill_in_the_middle_of_a_map_nothing_that_was_recorded_is_done_again(
    place: Place,
) -> None:
    tool(place, "demo/dies", DIES_ONCE)
    place.write(
        "flow.yaml",
        """\
tasks:
  - {id: first, description: a, tool: demo/dies, params: {line: first}}
  - {id: look, description: "{item}", tool: demo/dies, params: {line: "look ${item}"}, context: first}
  - {id: all, description: b, tool: demo/dies, params: {line: all}}
map: {items: [0, 1, 2, 3], task: look, reduce: all}
max_parallel: 1
""",
    )
    assert place.plait("run", "flow.yaml").returncode != 0
    assert place.plait("resume").returncode == 0
    lines = ["first", "look 0", "look 1", "look 2", "look 2", "look 3", "all"]
    assert place.text("ledger").splitlines() == lines


def test_a_changed_or_renamed_task_is_not_taken_for_the_one_that_was_done(place: Place) -> None:
    flow = "tasks: [{id: a, description: a, tool: demo/give, params: {value: 1}}, {id: b, description: b, tool: demo/fail}]\n"
    ran = place.run(flow)
    place.write("flow.yaml", flow.replace("value: 1", "value: 2"))
    with pytest.raises(InputError) as caught:
        place.resume(ran.result.run)
    assert caught.value.code == "changed"
    place.write("flow.yaml", flow.replace("id: a", "id: z"))
    with pytest.raises(InputError) as caught:
        place.resume(ran.result.run)
    assert caught.value.what == (
        "the file has changed since these steps were done: tasks/task:a (a, removed)"
    )


# ── Python in a project ──────────────────────────────────────────────────


class Counted:
    """Handlers that count their calls, and fail as long as the test wants."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = True

    def do(self, task: Task, context: Sequence[TaskOutput]) -> Json:
        self.ran.append(str(task.description))
        if self.fails and task.name == "bad":
            raise RuntimeError("not yet")
        return f"{task.description}{len(context)}"


def test_a_run_in_python_is_recorded_shown_and_resumed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.root)
    counted = Counted()
    first = Task("first {x}", "", handler=counted.do, name="first")
    bad = Task("bad", "", handler=counted.do, name="bad", context=[first])
    ensemble = Ensemble([first, bad], name="counting")
    with pytest.raises(EnsembleError) as caught:
        ensemble.run({"x": 1})
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    run = output.run
    assert run is not None
    assert (
        caught.value.fix
        == f"fix it and continue: run(resume='{run}'); error.output has what was done until then"
    )
    runs = flow_store(str(place.root))
    with runs.open(run, write=False) as opened:
        ends = [one.event for one in opened.journal.events() if isinstance(one.event, RunEnded)]
        recorded = opened.journal.step("tasks/task:first")
    assert [end.status for end in ends] == ["failed"]
    assert recorded is not None
    assert isinstance(recorded.outcome, Succeeded)
    counted.fails = False
    done = ensemble.run(resume=run)
    assert (done.raw, done.run) == ("bad1", run)
    assert counted.ran == ["first 1", "bad", "bad"]
    assert done.trace["run_attempts"] == 2
    shown = place.plait("show", run)
    assert (shown.returncode, "counting" in shown.stdout) == (0, True)


def test_the_command_line_says_who_can_go_on_with_a_run_in_python(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.root)
    output = Ensemble([Task("a", "", handler=lambda *_: "x")]).run()
    with pytest.raises(InputError) as caught:
        place.resume(str(output.run))
    assert caught.value.fix == f"there: ensemble.run(resume='{output.run}')"


def test_other_inputs_are_another_task(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.root)
    ensemble = Ensemble([Task("a {x}", "", handler=lambda task, _: task.description)])
    run = ensemble.run({"x": 1}).run
    with pytest.raises(InputError) as caught:
        ensemble.run({"x": 2}, resume=run)
    assert caught.value.code == "changed"
    assert ensemble.run({"x": 2}, resume=run, accept_changes=True).raw == "a 2"


def test_a_secret_has_to_be_given_again_and_is_nowhere(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.root)
    ensemble = Ensemble([Task("a {key}", "", handler=lambda task, _: task.inputs["key"].reveal())])
    output = ensemble.run({"key": Secret("s3cr3t-value-of-mine")})
    assert output.raw == "***"
    assert b"s3cr3t-value-of-mine" not in place.state
    with pytest.raises(plait.PromptTemplateError):
        ensemble.run(resume=output.run)


def test_a_manager_that_goes_on_repeats_no_delegation_and_keeps_to_its_caps(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.root)
    worked: list[str] = []
    is_broken = True

    def worker(ask: ModelRequest) -> str:
        worked.append(ask.messages[-1].text)
        return "did it"

    def manager(ask: ModelRequest) -> ModelResponse:
        if len(ask.messages) == 1 or (len(ask.messages) == 3 and not is_broken):
            use = ToolRequest("u", "delegate", {"worker": "w", "task": f"part {len(ask.messages)}"})
            return ModelResponse("", (use,), TokenUsage(1, 1), "m", "tools")
        if is_broken:
            raise plait.core.errors.RequestError("the line is down", code="network")
        return ModelResponse(ask.messages[-1].text, usage=TokenUsage(1, 1))

    ensemble = Ensemble(
        [Task("all", "", agent=Agent("w", provider=worker))],
        workflow="hierarchical",
        manager=Manager("m", provider=manager, max_per_worker=1),
    )
    with pytest.raises(EnsembleError) as caught:
        ensemble.run()
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert output.task_outputs[0].raw == "did it"
    is_broken = False
    done = ensemble.run(resume=output.run)
    assert len(worked) == 1
    assert done.raw == "refused: the limit of 1 delegations to 'w' is reached"


def test_without_a_project_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    output = Ensemble([Task("a", "", handler=lambda *_: "x")]).run()
    assert (output.run, list(empty.iterdir())) == (None, [])
    with pytest.raises(InputError) as caught:
        Ensemble([Task("a", "", handler=lambda *_: "x")]).run(resume="r1")
    assert caught.value.what == "only a run of a project can be resumed"


def test_a_named_project_keeps_the_run(tmp_path: Path) -> None:
    output = Ensemble([Task("a", "", handler=lambda *_: {"b": 1})], project=tmp_path).run()
    assert json.loads(output.raw) == {"b": 1}
    assert (tmp_path / ".ai" / "state" / "runs" / str(output.run)).is_dir()


def test_a_dry_run_shows_what_would_be_done(place: Place) -> None:
    from plait.app.runs import Options, plan_run

    write_answers(place, "no")
    place.write(
        "flow.yaml",
        "tasks: [{id: a, description: 'A {x}'}, {id: b, description: b, tool: demo/give}]\n",
    )
    steps: list[Any] = plan_run(str(place.file), Options({"x": 1}))
    assert [(step.path, step.kind, step.shown) for step in steps] == [
        ("tasks/task:a", "system", system_text(PLAIN_AGENT)),
        ("tasks/task:a", "agent", "## Task\n\nA 1"),
        ("tasks/task:b", "tool", "demo/give\nb"),
    ]


# ── what is missing ──────────────────────────────────────────────────────


def test_everything_that_is_missing_is_reported_at_once_and_nothing_has_run(place: Place) -> None:
    flow = """\
inputs: {topic: string, n: integer, unused: string, by: {type: string, default: x}}
tasks:
  - {id: a, description: "About {topic}", tool: demo/ledger, params: {line: "${inputs.by}"}}
  - {id: b, description: b, tool: demo/ledger, params: {line: "${inputs.n}", more: ["${inputs.topic}"]}}
  - {id: c, description: c, tool: demo/ledger, params: {line: "${context.a.data.line}"}, context: a}
"""
    place.write("flow.yaml", flow)
    with pytest.raises(plait.PromptTemplateError) as caught:
        place.run(inputs={"extra": 1})
    assert [
        f"{one.place[1]}:{one.place[2]} {one.what.split('. ')[0]}" for one in caught.value.problems
    ] == [
        "3:33 Missing template variables: [topic], in the description of task 'a'",
        "4:64 Missing template variables: [n], in the params of task 'b'",
        "4:86 Missing template variables: [topic], in the params of task 'b'",
        "1:37 parameter 'unused' is missing",
        "0:0 this flow has no parameter 'extra'",
    ]
    assert caught.value.missing_variables == ["topic", "n"]
    assert not (place.root / "ledger").exists()
    with pytest.raises(InputError) as refused:
        place.run(inputs={"n": "many", "topic": "t"})
    assert [one.what for one in refused.value.problems] == [
        "parameter 'n' must be a whole number, got \"many\"",
        "parameter 'unused' is missing",
    ]


PARAMS = [
    # parameter, inputs, missing
    ("${inputs.x}", {}, ["x"]),
    ("${inputs.x} ${inputs.y}", {"x": 1}, ["y"]),
    ("${inputs.x.y}", {"x": {"z": 1}}, ["x.y"]),
    ("${inputs.x || inputs.y}", {}, ["x"]),
    ("${inputs.x || inputs.y}", {"y": 1}, []),
    ("${inputs.x:-none}", {}, []),
    ("${inputs.x | default('none')}", {}, []),
    ("{input:x}", {}, ["x"]),
    ("$${inputs.x}", {}, []),
]


@pytest.mark.parametrize(("written", "inputs", "missing"), PARAMS)
def test_what_parameters_of_tools_ask_for_has_to_be_given(
    place: Place, written: str, inputs: dict[str, Json], missing: list[str]
) -> None:
    place.write(
        "flow.yaml",
        {"tasks": [{"description": "a", "tool": "demo/give", "params": {"value": written}}]},
    )
    if not missing:
        assert place.run(inputs=inputs).result.status == "done"
        return
    with pytest.raises(plait.PromptTemplateError) as caught:
        place.run(inputs=inputs)
    assert caught.value.missing_variables == missing


# ── items that a task makes ──────────────────────────────────────────────

PLANNED = """\
tasks:
  - {id: plan, description: plan, tool: demo/give, params: {value: {points: [{name: "a {x}"}, {name: b}]}}}
  - {id: each, description: "{point_name} {topic}", tool: demo/ledger, params: {line: "${point.name} ${point_index}"}}
  - {id: all, description: all, tool: demo/give, params: {value: done}}
map: {items: {task: plan, path: points}, as: point, task: each, reduce: all}
max_parallel: 1
"""


def test_a_task_makes_the_items_of_a_map(place: Place) -> None:
    ran = place.done(PLANNED, inputs={"topic": "t"})
    assert place.text("ledger").splitlines() == ["a {x} 0", "b 1"]
    assert ran.value["tasks"]["each"]["data"] == [{"line": "a {x} 0"}, {"line": "b 1"}]
    again = place.resume(ran.result.run)
    assert (again.value, place.text("ledger").count("\n")) == (ran.value, 2)


def test_a_run_whose_items_were_made_goes_on_where_it_was_and_sees_changes(place: Place) -> None:
    broken = PLANNED.replace(
        "tool: demo/give, params: {value: done}", "tool: demo/flaky, params: {good: 2}"
    )
    ran = place.run(broken, inputs={"topic": "t"})
    assert ran.result.status == "failed"
    place.write("flow.yaml", broken.replace("{point_name} {topic}", "{point_name}: {topic}"))
    with pytest.raises(InputError) as caught:
        place.resume(ran.result.run)
    assert caught.value.what == (
        "the file has changed since these steps were done: tasks/map:each/item:* (each)"
    )
    place.write("flow.yaml", broken)
    assert place.resume(ran.result.run).result.status == "done"
    assert place.text("ledger").splitlines() == ["a {x} 0", "b 1"]


def test_items_that_are_no_list_or_lack_a_field_fail_the_map(place: Place) -> None:
    none = place.run(PLANNED.replace("path: points", "path: pointz"), inputs={"topic": "t"})
    assert (
        "the items of a map must be a list, but 'pointz' in its data is not: task 'plan'"
        in none.message
    )
    lacks = place.run(PLANNED.replace("{name: b}", "{nam: b}"), inputs={"topic": "t"})
    assert "item 1 of task 'each' has no 'point_name'" in lacks.message
    assert not (place.root / "ledger").exists()


ITEMS_WRONG = [
    (
        "{task: each}",
        ["4:7 the items of the map of task 'each' come from 'each', which is in it"],
    ),
    ("{task: plam}", ["4:21 there is no task 'plam'"]),
    ("{task: plan, path: 'a b'}", ["4:7 'a b' is not a path"]),
    (
        "{tsk: plan}",
        [
            "4:15 'tsk' is not a field of a source of items",
            "4:15 a source of items needs 'task': the task whose data is the list",
        ],
    ),
]


@pytest.mark.parametrize(("items", "problems"), ITEMS_WRONG)
def test_what_is_wrong_with_items_is_reported(
    place: Place, items: str, problems: list[str]
) -> None:
    flow = (
        "tasks:\n  - {id: plan, description: p, tool: t}\n  - {id: each, description: '{item}', tool: t}\n"
        f"map: {{items: {items}, task: each}}\n"
    )
    assert found(place, flow) == problems


# ── called as tools ──────────────────────────────────────────────────────

TEAM = """\
version: 1.0.0
tool_type: ensemble
description: Says something about a topic.
inputs: {topic: string, times: {type: integer, default: 2}}
tasks:
  - {id: find, description: "Find {topic}", tool: demo/ledger, params: {line: "${inputs.topic}"}}
  - {id: say, description: say, tool: demo/give, context: find, params: {value: {said: "${context.find.data.line}"}}}
"""


def team(place: Place, text: str = TEAM, name: str = "my/team") -> None:
    place.write(f".ai/tools/{name}.yaml", text)
    trusted(place)


def test_an_ensemble_is_called_by_id_from_a_workflow_a_graph_python_and_the_command_line(
    place: Place,
) -> None:
    team(place)
    ran = place.done(
        "- tool: my/team\n  params: {topic: '{x} $${y}'}\n- shell: echo ${last.output.said}\n"
    )
    assert ran.outputs["steps/1"] == "{x} ${y}"
    assert "steps/0/tasks/task:find" in ran.finished
    graph = (
        "start: a\nnodes: {a: {tool: my/team, params: {topic: g}, assign: {s: '${result.said}'}}}\n"
    )
    ran = place.done(graph)
    assert (ran.value["output"], "nodes/a/call/tasks/task:say" in ran.finished) == (
        {"s": "g"},
        True,
    )
    ran = place.done(
        "tasks: [{description: a, tool: my/team, params: {topic: e}}, {description: b, tool: my/team, params: {topic: f}}]\n"
    )
    assert ran.value["output"] == {"said": "f"}
    assert "tasks/task:task-1/tasks/task:find" in ran.finished
    assert plait.call("my/team", {"topic": "p"}, project=place.root)["data"] == {"said": "p"}
    shown = place.plait("call", "my/team", "-p", "topic=c")
    assert (shown.returncode, json.loads(shown.stdout)) == (0, {"said": "c"})
    wrong = place.plait("call", "my/team", "-p", "times=x")
    assert (wrong.returncode, "Missing template variables: [topic]" in wrong.stderr) == (2, True)
    assert "parameter 'times' must be a whole number" in wrong.stderr


def test_an_agent_is_offered_an_ensemble_with_its_inputs_and_calls_it(place: Place) -> None:
    team(place)
    use = {"name": "my__team", "arguments": {"topic": "tides"}}
    write_answers(place, {"text": "", "uses": [use]}, "done")
    ran = place.done("tasks: [{description: ask, agent: {role: r, tools: my/team}}]\n")
    assert ran.value["output"] == "done"
    assert place.text("ledger") == "tides\n"
    from plait.app.tool_catalog import offers
    from plait.app.toolbox import toolbox

    [offer] = offers(toolbox(place.root), ["my/team"])
    assert (offer.description, list(offer.schema["properties"]), offer.schema["required"]) == (
        "Says something about a topic.", ["topic", "times"], ["topic"]
    )  # fmt: skip


def test_an_ensemble_of_a_project_that_is_not_trusted_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(tmp_path, monkeypatch)
    place.write(".ai/tools/my/team.yaml", TEAM)
    shown = place.plait("call", "my/team", "-p", "topic=c")
    assert (shown.returncode, "trust" in shown.stderr) == (3, True)


def test_an_ensemble_that_is_called_has_its_own_limits_and_hooks(place: Place) -> None:
    calling = "- tool: my/team\n  params: {topic: t}\n"
    hook = "hooks: [{id: no, event: step_started, condition: \"${step.name} == 'task:say'\", verb: fail, why: hush}]\n"
    team(place, TEAM + hook)
    assert "hush" in place.run(calling).message
    asking = "version: 1.0.0\ntool_type: ensemble\nlimits: {turns: 1}\ntasks: [{description: a}, {description: b}]\n"
    team(place, asking, "my/asks")
    write_answers(place, "one", "two", "three")
    two = "tasks: [{id: x, description: x, tool: my/asks}, {id: y, description: y}]\non_error: continue_on_error\n"
    ran = place.run(two)
    assert ran.result.failure is not None
    assert (ran.result.failure.kind, "limit of 1 turn" in ran.message) == ("limit", True)
    assert ran.result.failure.output["tasks"]["y"]["raw"] == "two"


def test_a_call_of_an_ensemble_goes_on_where_it_was(place: Place) -> None:
    team(place, TEAM.replace("tool: demo/give, context: find, params: {value: {said: \"${context.find.data.line}\"}}",
                             "tool: demo/flaky, context: find, params: {good: 2}"))  # fmt: skip
    ran = place.run("- tool: my/team\n  params: {topic: t}\n")
    assert ran.result.status == "failed"
    assert place.resume(ran.result.run).result.status == "done"
    assert place.text("ledger") == "t\n"


# ── what a hook skips ────────────────────────────────────────────────────


def skipping(name: str, event: str = "step_started") -> str:
    return f"hooks: [{{id: no, event: {event}, condition: \"${{step.name}} == '{name}'\", verb: skip, why: not now}}]\n"


@pytest.mark.parametrize("on_error", ["fail_fast", "continue_on_error"])
def test_a_task_that_a_hook_skips_is_skipped_and_so_is_what_needs_it(
    place: Place, on_error: str
) -> None:
    ran = place.done(
        skipping("task:b")
        + f"on_error: {on_error}\ntasks:\n"
        + "  - {id: d, description: d, tool: demo/ledger, params: {line: d}, context: c}\n"
        + "  - {id: a, description: a, tool: demo/give, params: {value: x}}\n"
        + "  - {id: b, description: b, tool: demo/ledger, params: {line: b}, context: a}\n"
        + "  - {id: c, description: c, tool: demo/ledger, params: {line: c}, context: b}\n"
    )
    reported = {
        name: (one["status"], one.get("why", "")) for name, one in ran.value["tasks"].items()
    }
    assert reported["a"] == ("done", "")
    assert reported["b"][0] == "skipped"
    assert "not now" in reported["b"][1]
    assert reported["c"] == ("skipped", "'b', which it needs, was skipped")
    assert reported["d"] == ("skipped", "'c', which it needs, was skipped")
    assert (ran.value["output"], (place.root / "ledger").exists()) == ("x", False)
    assert place.resume(ran.result.run).value == ran.value


def test_what_is_skipped_in_a_loop_is_not_taken_for_an_output(place: Place) -> None:
    flow = (
        skipping("task:a")
        + "tasks:\n"
        + "  - {id: a, description: a, tool: demo/give, params: {value: x}}\n"
        + "  - {id: b, description: b, tool: demo/ledger, params: {line: b}, context: a}\n"
        + "  - {id: c, description: c, tool: demo/ledger, params: {line: c}, context: b}\n"
        + "loops: [{tasks: [a, b], until: \"${output} == ''\", max_iterations: 2}]\n"
    )
    ran = place.done(flow)
    assert {name: one["status"] for name, one in ran.value["tasks"].items()} == dict.fromkeys(
        "abc", "skipped"
    )
    assert not (place.root / "ledger").exists()


def test_what_is_skipped_in_a_map_is_left_out_and_nothing_at_all_is_skipped(place: Place) -> None:
    flow = (
        "tasks:\n"
        "  - {id: a, description: '{item}', tool: demo/give, params: {value: '${item}'}}\n"
        "  - {id: b, description: b, tool: demo/ledger, params: {line: b}}\n"
        "map: {items: [1, 2], task: a, reduce: b}\n"
    )
    one = "hooks: [{id: no, event: item_started, condition: \"${step.name} == 'item:0'\", verb: skip, why: no}]\n"
    assert place.done(one + flow).value["tasks"]["a"]["data"] == [2]
    ran = place.done("hooks: [{id: no, event: item_started, verb: skip, why: no}]\n" + flow)
    assert {name: one["status"] for name, one in ran.value["tasks"].items()} == {
        "a": "skipped",
        "b": "skipped",
    }
    assert place.text("ledger") == "b\n"
    reduces = "hooks: [{id: no, event: step_started, condition: \"${step.name} == 'reduce:1.1'\", verb: skip, why: no}]\n"
    reported = place.done(reduces + flow).value["tasks"]
    assert (reported["a"]["status"], reported["b"]["status"]) == ("done", "skipped")


def test_a_dry_run_of_a_map_whose_items_are_made_shows_one_that_stands_for_all(
    place: Place,
) -> None:
    from plait.app.runs import Options, plan_run

    place.write("flow.yaml", PLANNED)
    steps = plan_run(str(place.file), Options({"topic": "t"}))
    assert [step.path for step in steps] == [
        "tasks/task:plan",
        "tasks/map:each/item:*",
        "tasks/map:each/reduce:1.1",
    ]
    assert steps[1].shown == "demo/ledger ${point.name} ${point_index}\n{point_name} t"


def test_a_tool_in_a_loop_receives_the_result_of_the_round_before(place: Place) -> None:
    ran = place.done(
        "tasks: [{id: a, description: go, tool: demo/give, params: {value: '${task.feedback}${task.iteration}'}}]\n"
        "loops: [{tasks: a, max_iterations: 3}]\n"
    )
    assert ran.value["output"] == "123"


def test_a_secret_input_of_an_ensemble_that_is_called_is_nowhere(place: Place) -> None:
    shows = "version: 1.0.0\ntool_type: ensemble\nsecrets: [key]\ninputs: {key: string}\n" + (
        "tasks: [{description: 'use {key}', tool: demo/give, params: {value: ['${inputs.key}', '${task.description}']}}]\n"
    )
    team(place, shows, "my/shows")
    ran = place.done("- tool: my/shows\n  params: {key: s3cr3t-value-of-mine}\n")
    assert ran.outputs["steps/0"] == ["***", "use ***"]
    assert b"s3cr3t-value-of-mine" not in place.state


# ── hooks of others ──────────────────────────────────────────────────────


def test_a_run_in_python_has_the_hooks_of_the_user_and_of_a_project_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(tmp_path, monkeypatch)
    monkeypatch.chdir(place.root)
    done: list[str] = []
    ensemble = Ensemble(
        [Task("one", "", handler=lambda task, _: done.append(str(task.description)))]
    )
    place.write(
        ".ai/config/hooks.yaml", "- {id: no, event: step_started, verb: fail, why: project}\n"
    )
    with pytest.raises(TrustError, match="nobody you trust has signed"):
        ensemble.run()
    trusted(place)
    with pytest.raises(EnsembleError, match="the hook 'no' says fail: project"):
        ensemble.run()
    (place.root / ".ai/config/hooks.yaml").unlink()
    user = tmp_path / "home" / ".ai" / "config" / "hooks.yaml"
    user.parent.mkdir(parents=True, exist_ok=True)
    user.write_text("- {id: mine, event: run_started, verb: abort, why: user}\n")
    with pytest.raises(EnsembleError, match="the hook 'mine' says abort: user"):
        ensemble.run()
    assert done == []
