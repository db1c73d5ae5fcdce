"""Hooks and limits of files: what is wrong with them, real runs with them, and whose hooks are used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from lang.loading import load_file
from plait.app.runs import Options, RunObservers, plan_run, retry_flow, run_flow
from plait.app.toolbox import toolbox
from plait.core.errors import InputError, TrustError
from plait.engine.events import StepFinished
from plait.engine.hook_events import HOOK_EVENTS, NAMES
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Succeeded
from plait.lang.check import check_file
from plait.lang.findings import RULES
from plait.lang.hooks import load_hooks
from plait.schema.hook_tables import HOOKS_FILE
from plait.schema.json_schema import json_schema
from plait.schema.reference import render_reference
from program.fakes import new_run
from runs.stories import Place, new_place

NOTE = '''\
"""Writes down what it is told, and answers what it is to answer."""
import json

__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"


def execute(params, project_path):
    with open(project_path + "/noted.jsonl", "a") as file:
        file.write(json.dumps(params) + "\\n")
    if params.get("fail"):
        raise ValueError("no line")
    return params.get("answer")
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(tmp_path, monkeypatch)
    place.write(".ai/tools/note.py", NOTE)
    return place


def trust(place: Place) -> None:
    toolbox(str(place.root)).trust.trust_project(origin="test")


def noted(place: Place) -> list[Any]:
    path = place.root / "noted.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def user_hooks(place: Place, text: str) -> None:
    path = place.root.parent / "home" / ".ai" / "config" / "hooks.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


# ── what is wrong ────────────────────────────────────────────────────────

WRONG = [
    # a hook                                                     code             where    what, and what to do
    ("{id: a, event: step_fialed, verb: retry}",
     "wrong-type", "'event' must be one of", "did you mean 'step_failed'?"),
    ("{id: a, event: step_failed, verb: rety}",
     "wrong-type", "'verb' must be one of retry, fail, abort, continue, skip", "did you mean 'retry'?"),
    ("{id: a, event: step_started, verb: retry}",
     "hook-verb", "'retry' is not possible at step_started, where a step is about to begin",
     "use one of continue, skip, fail, abort"),
    ("{id: a, event: limit, verb: continue}",
     "hook-verb", "'continue' is not possible at limit, where a limit is reached", "use one of fail, abort"),
    ("{id: a, event: step_failed}",
     "missing-field", "a hook needs one of action, actions, verb", "write what it does"),
    ("{event: step_failed, verb: skip}",
     "missing-field", "a hook needs 'id': its name in paths and messages", "add id: …"),
    ("{id: a, event: step_failed, verb: skip, position: before}",
     "refused-field", "'position' does not exist here", "choose the event: …_started is before, …_finished after"),
    ("{id: a, event: step_failed, verb: skip, wrap: true}",
     "refused-field", "'wrap' does not exist here", "the result of a tool is data, and is not inserted anywhere"),
    ("{id: a, event: step_failed, verb: skip, maxretries: 3}",
     "unknown-field", "'maxretries' is not a field of a hook", "did you mean 'max_retries'?"),
    ("{id: a, event: step_failed, action: {tool: note, primary: fetch}}",
     "wrong-type", "'primary' must be one of execute", None),
    ("{id: a, event: step_failed, action: {tool: '${error.kind}'}}",
     "wrong-type", "'tool' must be the id of a tool, without placeholders", None),
    ("{id: a, event: step_failed, action: {tool: note, params: {m: '${eror.message}'}}}",
     "unknown-name", "unknown variable 'eror.message'", "did you mean 'error.message'?"),
    ("{id: a, event: step_failed, action: {tool: note, params: {m: '${error.mesage}'}}}",
     "unknown-name", "unknown variable 'error.mesage'", "did you mean 'error.message'?"),
    ("{id: a, event: step_started, action: {tool: note, params: {m: '${error.message}'}}}",
     "unknown-name", "unknown variable 'error.message'", "known in step_started: step, item, state, event, path"),
    ("{id: a, event: step_failed, condition: {path: error.kind, op: neq, value: 1}, verb: skip}",
     "condition", "there is no operator 'neq'", "did you mean 'ne'?"),
    ("{id: a, event: step_failed, condition: {path: error.kind, operator: gte, value: 1}, verb: skip}",
     "condition", "'operator' is not a field of a condition", None),
    ("{id: a, event: step_failed, condition: {all: [{path: eror.kind, value: 1}]}, verb: skip}",
     "unknown-name", "unknown variable 'eror.kind'", "did you mean 'error'?"),
    ("{id: a, event: step_failed, condition: {path: error.kid, value: 1}, verb: skip}",
     "unknown-name", "unknown variable 'error.kid'", "did you mean 'error.kind'?"),
    ("{id: a, event: step_failed, condition: '${eror.kind} == 1', verb: skip}",
     "unknown-name", "unknown variable 'eror.kind'", "did you mean 'error.kind'?"),
    ("{id: a, event: step_failed, condition: '${error.kind} ==', verb: skip}",
     "condition", "", None),
    ("{id: a, event: step_failed, verb: skip, layer: 0}",
     "hook-layer", "a hook of a flow cannot run before those of layer 1", "write layer: 1, or more"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("there", "here"), [("after_complete", "run_finished"), ("thread_started", "run_started")]
)
def test_an_event_of_rye_is_reported_by_its_name_here(place: Place, there: str, here: str) -> None:
    (finding,) = place.check(
        f"hooks: [{{id: a, event: {there}, verb: abort}}]\nsteps: [{{shell: ls}}]\n"
    )
    assert finding.problem.fix == f"did you mean '{here}'?"


@pytest.mark.parametrize(("hook", "code", "what", "fix"), WRONG)
def test_what_is_wrong_with_a_hook_is_found_before_anything_runs(
    place: Place, hook: str, code: str, what: str, fix: str | None
) -> None:
    flow = f"hooks:\n  - {hook}\nsteps:\n  - shell: touch ran\n"
    (finding,) = place.check(flow)
    assert (finding.code, finding.problem.what[: len(what)]) == (code, what)
    assert fix is None or fix in (finding.problem.fix or "")
    assert "flow.yaml:2:" in place.refusal(flow)
    assert code in RULES


def test_all_that_is_wrong_is_reported_together_also_in_a_file_of_hooks_alone(place: Place) -> None:
    text = "hooks:\n  - {id: a, event: stpe_failed, verb: skip}\n  - {id: b, event: error, verb: rety}\n  - {id: b, event: limit, verb: skip}\n"
    path = place.write(".ai/config/hooks.yaml", text)
    found = [(one.code, one.problem.place[1]) for one in check_file(str(path))]
    assert [code for code, _ in found] == ["wrong-type", "wrong-type", "duplicate-id", "hook-verb"]
    with pytest.raises(InputError) as caught:
        load_hooks(text, "hooks.yaml", space="user")
    assert len(caught.value.problems) == 4


LIMITS_WRONG = [
    ("{turn: 3}", "unknown-field"),
    ("{max_turns: 3}", "refused-field"),
    ("{max_tokens: 3}", "refused-field"),
    ("{spawns: 3}", "refused-field"),
    ("{steps: -1}", "wrong-type"),
    ("{seconds: soon}", "wrong-type"),
]


@pytest.mark.parametrize(("limits", "code"), LIMITS_WRONG)
def test_unknown_limits_are_refused(place: Place, limits: str, code: str) -> None:
    (finding,) = place.check(f"limits: {limits}\nsteps: [{{shell: 'true'}}]\n")
    assert finding.code == code


def test_a_number_that_is_too_small_is_reported_how_small_it_may_be(place: Place) -> None:
    (finding,) = place.check("limits: {steps: -1}\nsteps: [{shell: 'true'}]\n")
    assert finding.problem.what == "'steps' must be a whole number from 0"


def test_a_placeholder_in_what_a_hook_says_is_warned_of_as_nothing_fills_it(place: Place) -> None:
    (finding,) = place.check(
        "hooks: [{id: a, event: step_failed, verb: abort, why: 'no: ${error.message}'}]\nsteps: [{shell: ls}]\n"
    )
    assert (finding.severity, finding.code, finding.problem.what) == (
        "warning",
        "literal-placeholder",
        "'why' is not a template: 'error.message' stays as text",
    )
    assert finding.problem.fix == "remove it; the failure itself is shown beside it"
    (finding,) = place.check(
        "hooks: [{id: a, event: tool_call, verb: fail, why: 'no ${tool}'}]\nsteps: [{shell: ls}]\n"
    )
    assert finding.problem.fix == "remove it, or call a tool that reports it"
    assert (
        place.check(
            "hooks: [{id: a, event: step_failed, verb: abort, why: $5}]\nsteps: [{shell: ls}]\n"
        )
        == []
    )


GOOD = """\
hooks:
  - {id: a, event: step_failed, condition: {path: error.exit_code, value: 3}, verb: retry, max_retries: 2}
  - {id: b, event: error, layer: 3, action: {primary: execute, item_type: tool, item_id: "tool:note", params: {x: "${error}"}}}
  - {id: c, event: tool_call, gate: true, when: "${tool} == 'core/shell'", actions: [{tool: note}, {tool: note}]}
"""


def test_the_forms_of_older_files_are_read() -> None:
    a, b, c = load_hooks(GOOD, "hooks.yaml", space="project")
    assert (a.verb, a.max_retries, a.gate, a.layer) == ("retry", 2, True, 3)
    assert ([call.tool for call in b.calls], b.gate, b.layer) == (["note"], False, 3)
    assert ([call.tool for call in c.calls], c.gate, c.condition is not None) == (
        ["note", "note"],
        True,
        True,
    )


def test_the_schema_knows_what_the_reader_knows() -> None:
    import yaml

    valid = jsonschema_rs.validator_for(json_schema("hooks")).is_valid
    assert valid(yaml.safe_load(GOOD))
    assert valid(yaml.safe_load(GOOD)["hooks"])
    assert not valid({"hooks": [{"id": "a", "event": "nothing", "verb": "skip"}]})
    assert not valid({"hooks": [{"id": "a", "event": "limit"}]})
    events = json_schema("hooks")["$defs"]["hook"]["properties"]["event"]["enum"]
    assert events == list(HOOK_EVENTS)


def test_the_schema_is_printed(place: Place) -> None:
    assert json.loads(place.plait("schema", "hooks").stdout)["title"] == "Plait hooks"


PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text("utf-8")


def test_the_page_has_the_tables_of_events_names_and_fields() -> None:
    def ticked(words: Iterable[str]) -> str:
        return " ".join(f"`{word}`" for word in words)

    rows = [
        *(
            f"| `{m.name}` | {m.what} | {ticked(m.verbs)} | {ticked(m.names)} |"
            for m in HOOK_EVENTS.values()
        ),
        *(f"| `{name}` | {what} | {ticked(fields)} |" for name, (what, fields) in NAMES.items()),
    ]
    assert [row for row in rows if row not in PAGE] == []
    assert PAGE.partition("## All maps and their fields\n\n")[2].rstrip() == render_reference(
        HOOKS_FILE
    )


# ── runs ─────────────────────────────────────────────────────────────────


def test_a_hook_retries_a_step_and_all_views_show_it(place: Place) -> None:
    trust(place)
    ran = place.done(
        """\
hooks:
  - id: again
    event: step_failed
    condition: {path: error.exit_code, op: eq, value: 3}
    action:
      tool: note
      params: {answer: {action: retry, max_retries: 2, why: odd}, at: "${path}", error: "${error.kind} ${error.exit_code}"}
  - {id: over, event: run_finished, action: {tool: note, params: {result: "${result.output}", flow: "${run.flow}"}}}
steps:
  - shell: test -e flag || { touch flag; exit 3; }
  - shell: printf '%s' '$${run.flow}'
"""
    )
    assert noted(place) == [
        {
            "answer": {"action": "retry", "max_retries": 2, "why": "odd"},
            "at": "steps/0",
            "error": "exit 3",
        },
        {"result": "${run.flow}", "flow": "flow"},
    ]
    assert "steps/0/hook:again" in ran.finished


def test_what_a_command_prints_is_data_to_a_hook(place: Place) -> None:
    trust(place)
    place.done(
        """\
parameters: {secret: {default: hidden}}
hooks:
  - {id: t, event: step_finished, action: {tool: note, params: {r: "${result.output}", q: "<${result.output}>"}}}
steps:
  - shell: printf '%s' '$${inputs.secret} {input:secret} $${env.HOME}'
"""
    )
    printed = "${inputs.secret} {input:secret} ${env.HOME}"
    assert noted(place) == [{"r": printed, "q": f"<{printed}>"}]


def test_no_secret_is_left_behind_by_a_hook(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(place)
    monkeypatch.setenv("TOKEN", "tp-Zz81-secret")
    ran = place.run(
        """\
secrets: {T: TOKEN}
hooks:
  - id: leaky
    event: step_finished
    action: {tool: note, params: {r: "${result.output}", answer: {verb: abort, why: "it is ${env.TOKEN}"}}}
steps: [{shell: 'printf %s "$T"', env: {T: "${T}"}}]
"""
    )
    assert ran.message == "the hook 'leaky' says abort: ***"
    assert b"tp-Zz81-secret" not in place.state


def test_a_gate_on_items_skips_some_and_fails_others(place: Place) -> None:
    ran = place.run(
        """\
hooks:
  - {id: small, event: item_started, condition: "${item} < 2", verb: skip}
  - {id: odd, event: item_started, condition: {path: item, op: in, value: [3]}, verb: fail, why: no threes}
map:
  input: [1, 2, 3, 4]
  steps:
    - shell: echo ${item}
"""
    )
    assert ran.result.counts["skipped"] == 1
    assert ran.result.counts["failed"] == 1
    assert ran.result.counts["successful"] == 2
    failed = ran.outcome("map/2")
    assert "the hook 'odd' says fail: no threes" in str(failed)


def test_an_abort_ends_the_run_whatever_the_flow_says_about_failures(place: Place) -> None:
    flow = """\
hooks:
  - {id: stop, event: step_failed, verb: abort, why: enough}
steps:
  - {shell: exit 7, continue_on_error: true}
  - shell: touch later
"""
    ran = place.run(flow)
    assert (ran.result.status, ran.result.exit_code) == ("failed", 1)
    assert ran.result.failure is not None
    assert (ran.result.failure.kind, ran.message) == (
        "aborted",
        "the hook 'stop' says abort: enough",
    )
    assert not (place.root / "later").exists()
    # The user has seen it, and goes on behind it.
    assert place.resume(ran.result.run).result.status == "done"
    assert (place.root / "later").exists()


def test_a_hook_swallows_a_failure(place: Place) -> None:
    ran = place.done(
        "hooks: [{id: on, event: step_failed, verb: continue}]\n"
        "steps: [{shell: 'echo half; exit 7', capture: x}, {shell: 'echo ${x}'}]\n"
    )
    assert ran.outputs["steps/1"] == "half"
    assert any(
        "'echo half; exit 7' failed, and the hook 'on' says continue" in note for note in ran.notes
    )


def test_a_run_notifies_hooks_of_each_failure_and_a_resumed_run_asks_a_gate_again(
    place: Place,
) -> None:
    trust(place)
    flow = """\
hooks:
  - {id: gate, event: run_started, gate: true, action: {tool: note, params: {fail: "${inputs.bad}"}}}
  - {id: t, event: run_failed, action: {tool: note, params: {why: "${error.kind}"}}}
parameters: {bad: {default: false}}
steps: [{shell: test -e flag}]
"""
    first = place.run(flow)
    second = place.resume(first.result.run)
    place.write("flag", "")
    third = place.resume(first.result.run)
    assert [one.result.status for one in (first, second, third)] == ["failed", "failed", "done"]
    assert noted(place) == [{"fail": False}, {"why": "exit"}, {"why": "exit"}]
    blocked = place.run(flow, inputs={"bad": True})
    assert blocked.message.startswith("the gate 'gate' could not answer: note: ")
    assert "no line" in blocked.message


ENDS = [
    # the flow after its hooks                                   exit code  event at the end
    ("steps: [{shell: 'true'}]",                                         0, "run_finished "),
    ("steps: [{shell: 'false'}]",                                        1, "run_failed exit"),
    ("map: {input: [0, 0], steps: [{shell: 'exit ${item}'}]}",           0, "run_finished "),
    ("map: {input: [0, 1, 0], steps: [{shell: 'exit ${item}'}]}",        1, "run_failed some_failed 1 of 3 items failed"),
    ("map: {input: [0, 1], steps: [{shell: 'exit ${item}'}]}\nreduce: [{shell: echo}]", 1, "run_failed some_failed 1 of 2 items failed"),
    ("map: {input: [1, 1], steps: [{shell: 'exit ${item}'}]}",           1, "run_failed all_failed all 2 items failed"),
    ("map: {input: [1], steps: [{shell: 'exit ${item}'}]}",              1, "run_failed all_failed the only item failed"),
    ("map: {input: missing.json, steps: [{shell: echo}]}",               2, "run_failed refused"),
    ("map: {input: [0, 1], steps: [{shell: 'exit ${item}', continue_on_error: true}]}", 0, "run_finished "),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "code", "message"), ENDS)
def test_a_run_fires_exactly_one_end_event_and_that_is_the_one_of_its_exit_code(
    flow: str, code: int, message: str, place: Place
) -> None:
    trust(place)
    hooks = """\
hooks:
  - {id: f, event: run_finished, action: {tool: note, params: {end: "${event} "}}}
  - {id: t, event: run_failed, action: {tool: note, params: {end: "${event} ${error.kind} ${error.message}"}}}
"""
    ran = place.run(hooks + flow)
    assert ran.result.exit_code == code
    [one] = noted(place)
    assert one["end"].startswith(message)


def test_failed_items_fire_hooks_again_after_a_retry_and_success_when_they_are_done(
    place: Place,
) -> None:
    trust(place)
    first = place.run("""\
hooks:
  - {id: f, event: run_finished, action: {tool: note, params: {end: "${event}"}}}
  - {id: t, event: run_failed, verb: abort, why: because}
map: {input: [a, b], steps: [{shell: "test ${item} = a || test -e flag"}]}
""")
    assert (first.result.status, first.result.exit_code) == ("done", 1)
    assert "at run_failed: the hook 't' says abort: because" in first.notes
    place.write("flag", "")
    retry_flow(first.result.run, project=str(place.root))
    assert noted(place) == [{"end": "run_finished"}]


AT_THE_END = {
    "{id: g, event: run_failed, verb: abort, why: because}": "the hook 'g' says abort: because",
    "{id: g, event: run_failed, gate: true, action: {tool: note, params: {fail: true}}}": "the gate 'g' could not",
    "{id: g, event: run_failed, gate: true, condition: {path: error.kind, op: gt, value: 3}, action: {tool: note}}": "the gate 'g' could not",
    "{id: g, event: run_failed, action: {tool: note}}": "",
}  # fmt: skip
FAILING = [
    "limits: {steps: 1}\nsteps: [{shell: echo one}, {shell: echo two}]\n",
    "steps: [{shell: echo one}, {shell: echo half; exit 4}]\n",
    "timeout: 0.3\nsteps: [{shell: sleep 5}]\n",
]


@pytest.mark.parametrize("flow", FAILING)
@pytest.mark.parametrize("hook", AT_THE_END)
def test_a_run_fails_by_what_it_failed_by_and_a_hook_can_only_add_to_that(
    place: Place, hook: str, flow: str
) -> None:
    trust(place)
    alone = place.run(flow).result.failure
    ran = place.run(f"hooks: [{hook}]\n{flow}")
    failure = ran.result.failure
    assert alone is not None
    assert failure is not None
    assert (failure.message, failure.kind, failure.path) == (alone.message, alone.kind, alone.path)
    assert steady(failure.output) == steady(alone.output)
    words = AT_THE_END[hook]
    assert [note.startswith(f"at run_failed: {words}") for note in ran.notes] == (
        [True] if words else []
    )


def steady(output: Any) -> Any:
    return {**output, "duration": 0} if isinstance(output, dict) else output


def test_an_observer_that_fails_is_reported_once_and_the_run_goes_on(place: Place) -> None:
    trust(place)
    ran = place.done(
        "hooks: [{id: t, event: step_finished, action: {tool: note, params: {fail: true}}}]\n"
        "steps: [{shell: 'true'}, {shell: 'true'}, {shell: 'true'}]\n"
    )
    assert noted(place) == [{"fail": True}]
    assert [note.split(":")[0] for note in ran.notes] == [
        "the hook 't' failed and is left out from now on"
    ]


def test_a_tool_of_a_hook_that_does_not_exist_is_found_before_anything_runs(place: Place) -> None:
    trust(place)
    flow = "hooks: [{id: t, event: limit, action: {tool: ntoe}}]\nsteps: [{shell: touch ran}]\n"
    assert "flow.yaml:1:" in place.refusal(flow)


def test_a_dry_run_shows_what_hooks_would_do_and_does_nothing(place: Place) -> None:
    trust(place)
    place.write(
        "flow.yaml",
        "hooks: [{id: t, event: step_started, action: {tool: note, params: {s: '${step.title}'}}}]\n"
        "steps: [{shell: touch ran}]\n",
    )
    shown = plan_run(str(place.file), Options())
    assert [(one.path, one.shown) for one in shown] == [
        ("steps/0/hook:t", 'note {"s":"touch ran"}'),
        ("steps/0", "touch ran"),
    ]
    assert noted(place) == []


# ── layers, and whose word they are ──────────────────────────────────────

FLOW = """\
hooks: [{id: x, event: step_started, condition: "${step.title} != 'echo free'", verb: skip, why: flow}]
steps: [{shell: echo one}]
"""


def test_the_user_comes_before_the_flow_and_the_flow_before_the_project(place: Place) -> None:
    trust(place)
    place.write(
        ".ai/config/hooks.yaml", "hooks: [{id: x, event: step_started, verb: fail, why: project}]\n"
    )
    assert place.run(FLOW).skipped == ["steps/0"]
    assert place.run("steps: [{shell: echo one}]\n").message == "the hook 'x' says fail: project"
    user_hooks(place, "hooks: [{id: x, event: step_started, verb: continue}]\n")
    assert place.done(FLOW).outputs["steps/0"] == "one"
    user_hooks_file = place.root.parent / "home" / ".ai" / "config" / "hooks.yaml"
    user_hooks_file.write_text("[]")
    place.write(
        ".ai/config/hooks.yaml", "- {id: x, event: step_started, verb: abort, why: project}\n"
    )
    assert place.run(FLOW).message == "the hook 'x' says abort: project"


def test_hooks_of_an_untrusted_project_are_neither_read_nor_run(place: Place) -> None:
    place.write(
        ".ai/config/hooks.yaml", "hooks: [{id: x, event: run_started, action: {tool: note}}]\n"
    )
    place.write("flow.yaml", "steps: [{shell: touch ran}]\n")
    with pytest.raises(TrustError) as caught:
        place.run()
    assert "this project brings a file that nobody you trust has signed: " in str(caught.value)
    assert "hooks.yaml (it is not signed)" in str(caught.value)
    assert f"plait trust {place.root}" in (caught.value.fix or "")
    assert place.plait("run", "flow.yaml").returncode == 3
    assert not (place.root / "ran").exists()
    trust(place)
    place.done()
    assert noted(place) == [{}]


def test_a_user_is_asked_about_hooks_of_a_project_like_about_its_tools(place: Place) -> None:
    place.write(
        ".ai/config/hooks.yaml", "hooks: [{id: x, event: run_started, action: {tool: note}}]\n"
    )
    place.write("flow.yaml", "steps: [{shell: 'true'}]\n")
    asked: list[str] = []

    def ask(question: Any) -> bool:
        asked.append(str(question))
        return True

    result = run_flow(str(place.file), observers=RunObservers(ask=ask))
    assert result.status == "done"
    assert len(asked) == 1
    assert "1 file in .ai/config" in asked[0]
    assert noted(place) == [{}]


def test_hooks_with_a_trusted_signature_are_used(place: Place) -> None:
    place.write(".ai/config/hooks.yaml", "hooks: [{id: x, event: step_started, verb: skip}]\n")
    place.write("flow.yaml", "steps: [{shell: touch ran}]\n")
    assert place.plait("keys", "new").returncode == 0
    assert place.plait("sign", ".ai/config/hooks.yaml").returncode == 0
    assert place.run().skipped == ["steps/0"]
    with (place.root / ".ai" / "config" / "hooks.yaml").open("a") as file:
        file.write("# one more line\n")
    with pytest.raises(TrustError, match="its bytes are not those that were signed"):
        place.run()


def test_the_file_that_a_user_names_is_his_own_word(place: Place) -> None:
    ran = place.run(
        "hooks: [{id: x, event: step_started, verb: skip}]\nsteps: [{shell: touch ran}]\n"
    )
    assert ran.skipped == ["steps/0"]


def test_hooks_of_a_user_that_others_can_write_are_refused(place: Place) -> None:
    user_hooks(place, "hooks: [{id: x, event: step_started, verb: skip}]\n")
    (place.root.parent / "home" / ".ai" / "config" / "hooks.yaml").chmod(0o666)
    place.write("flow.yaml", "steps: [{shell: 'true'}]\n")
    with pytest.raises(TrustError, match="others can write"):
        place.run()


# ── limits ───────────────────────────────────────────────────────────────


def test_a_limit_ends_the_run_with_what_was_made_and_a_raised_one_lets_it_go_on(
    place: Place,
) -> None:
    flow = "limits: {steps: 2}\nsteps: [{shell: echo one, capture: a}, {shell: echo two}, {shell: echo three}]\n"
    ran = place.run(flow)
    failure = ran.result.failure
    assert failure is not None
    assert (failure.kind, failure.message) == (
        "limit",
        "the run has reached its limit of 2 steps (2 used)",
    )
    assert failure.output == {"output": "two", "captures": {"a": "one"}}
    assert place.resume(ran.result.run).result.status == "failed"  # replayed steps count
    resumed = place.plait("resume", ran.result.run)
    assert resumed.stdout.endswith(f"  resume       plait resume {ran.result.run}\n")
    shown = place.plait("show", ran.result.run)
    assert "the run has reached its limit of 2 steps (2 used)" in shown.stdout
    kept = json.loads(place.plait("show", ran.result.run, "--json").stdout)["failure"]
    assert (kept["kind"], kept["output"]) == ("limit", failure.output)
    place.write("flow.yaml", flow.replace("steps: 2", "steps: 3"))
    again = place.resume(ran.result.run)
    assert again.result.status == "done"
    assert again.outputs == {"steps/0": "one", "steps/1": "two", "steps/2": "three"}


def test_a_step_that_runs_when_the_time_of_the_run_is_over_is_ended(place: Place) -> None:
    ran = place.run("limits: {seconds: 0.5}\nsteps: [{shell: sleep 30}, {shell: touch late}]\n")
    failure = ran.result.failure
    assert failure is not None
    assert (failure.kind, failure.message.partition(" (")[0]) == (
        "limit",
        "the run has reached its limit of 0.5 seconds",
    )
    assert not (place.root / "late").exists()


def test_no_handler_goes_on_after_a_limit_and_no_item_is_lost_by_it(place: Place) -> None:
    flow = """\
limits: {steps: 3}
map:
  input: [1, 2, 3, 4, 5]
  max_parallel: 1
  steps: [{shell: "echo ${item}", on_failure: {shell: touch handled}, continue_on_error: true}]
"""
    ran = place.run(flow)
    assert ran.result.failure is not None
    assert ran.result.failure.kind == "limit"
    assert not (place.root / "handled").exists()
    place.write("flow.yaml", flow.replace("steps: 3}", "steps: 9}"))
    again = place.resume(ran.result.run)
    assert (again.result.status, again.result.counts["successful"]) == ("done", 5)


def test_time_of_earlier_run_attempts_counts(place: Place) -> None:
    path = place.write("flow.yaml", "limits: {seconds: 1m}\nsteps: [{shell: 'true'}]\n")
    journal = MemoryJournal()
    journal.append(StepFinished("setup", "phase", "", "", Succeeded(None), 59.5))
    run = new_run(journal=journal.reopen(), loaded=load_file(str(path)))
    assert (run.budgets.total.available("seconds") or 60) <= 0.5
    run.events.close()


def test_a_run_without_hooks_and_limits_fires_nothing(place: Place) -> None:
    path = place.write("flow.yaml", "steps: [{shell: 'true'}]\n")
    run = new_run(loaded=load_file(str(path)))
    assert run.hooks.is_empty
    run.events.close()


def test_a_limit_of_no_steps_lets_nothing_run(place: Place) -> None:
    ran = place.run("limits: {steps: 0}\nsteps: [{shell: touch ran}]\n")
    assert ran.message == "the run has reached its limit of 0 steps (0 used)"
    assert not (place.root / "ran").exists()


def test_items_side_by_side_are_counted_once_each(place: Place) -> None:
    items = list(range(20))
    flow = (
        f"map: {{input: {items}, max_parallel: 8, steps: [{{shell: 'true'}}, {{shell: 'true'}}]}}\n"
    )
    assert place.done(f"limits: {{steps: 40}}\n{flow}").result.counts["successful"] == 20
    assert place.run(f"limits: {{steps: 39}}\n{flow}").message == (
        "the run has reached its limit of 39 steps (39 used)"
    )
