"""A step that runs another workflow file: its phases, names, records, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.stories import Place, new_place

OTHER = """\
name: other
parameters: {n: {type: integer}, greeting: {default: hello}}
vars: {twice: "${n}${n}"}
env: {MODE: fast}
setup:
  - shell: echo ${greeting} ${base} ${twice} $MODE ${workflow.name}
    capture_output: s
map:
  input: {command: "seq ${n}"}
  steps: [{shell: "echo ${item} ${s}"}]
reduce: [{shell: "echo ${map.total} ${map.outputs}"}]
"""
MAIN = """\
steps:
  - {shell: echo base, capture_output: base}
  - {id: child, workflow: sub/other.yaml, params: {n: 2, greeting: "hi ${base}"}}
  - shell: echo "${last.output}" ${child.exit_code} [${MODE:-none}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def ledger(place: Place) -> list[str]:
    return place.text("ledger").split()


def test_a_workflow_has_its_phases_and_knows_the_names_of_its_caller(place: Place) -> None:
    place.write("sub/other.yaml", OTHER)
    assert place.check(MAIN) == []
    ran = place.done(MAIN)
    assert (
        ran.outputs["steps/2"]
        == "2 1 hi base base 22 fast other 2 hi base base 22 fast other 0 [none]"
    )
    assert {path for path in ran.finished if path.startswith("steps/child/")} == {
        "steps/child/setup/0",
        "steps/child/setup",
        "steps/child/map/items",
        "steps/child/map/0/0",
        "steps/child/map/0",
        "steps/child/map/1/0",
        "steps/child/map/1",
        "steps/child/map",
        "steps/child/reduce/0",
        "steps/child/reduce",
    }
    again = place.resume(ran.result.run)
    assert (again.result.status, again.value) == ("done", ran.value)


def test_what_it_captures_ends_with_it(place: Place) -> None:
    place.write("sub/other.yaml", OTHER)
    place.write("flow.yaml", MAIN.replace("[${MODE:-none}]", "${s}"))
    assert [one.code for one in place.check()] == ["unknown-name"]


def test_each_item_of_a_map_calls_it_for_itself(place: Place) -> None:
    place.write("each.yaml", "parameters: {x: {}}\nmap: {input: [1, 2], steps: [{shell: 'echo ${x}${item}'}]}\n"
                "reduce: [{shell: 'echo ${map.outputs}'}]\n")  # fmt: skip
    flow = "map: {input: [a, b, c], steps: [{workflow: each.yaml, params: {x: '${item}'}}]}\n"
    assert place.check(flow) == []
    ran = place.done(flow + "reduce: [{shell: 'echo ${map.outputs}'}]\n")
    assert ran.outputs["reduce/0"] == "a1 a2 b1 b2 c1 c2"


def test_items_that_fail_fail_the_step_and_are_tried_again_when_the_run_goes_on(
    place: Place,
) -> None:
    place.write("fail.yaml", "setup: [{shell: echo s >> ledger}]\n"
                "map: {input: [x, y, z], max_parallel: 1,"
                " steps: [{shell: 'echo ${item} >> ledger; test -e go || test ${item} != y'}]}\n"
                "reduce: [{shell: echo r >> ledger}]\n")  # fmt: skip
    ran = place.run(
        "steps: [{shell: echo 1 >> ledger}, {workflow: fail.yaml}, {shell: echo 2 >> ledger}]\n"
    )
    assert (ran.result.status, ran.message) == ("failed", "1 of 3 items failed")
    assert ledger(place) == ["1", "s", "x", "y", "z"]
    place.write("go", "")
    again = place.resume(ran.result.run)
    assert again.result.status == "done"
    assert ledger(place) == ["1", "s", "x", "y", "z", "y", "r", "2"]


def test_a_change_in_the_called_file_is_a_change(place: Place) -> None:
    place.write("other.yaml", "steps: [{shell: echo a}, {shell: 'test -e go'}]\n")
    ran = place.run("steps: [{workflow: other.yaml}]\n")
    place.write("other.yaml", "steps: [{shell: echo b}, {shell: 'test -e go'}]\n")
    place.write("go", "")
    with pytest.raises(
        Exception, match="the file has changed since these steps were done: steps/0/steps/0"
    ):
        place.resume(ran.result.run)
    assert place.resume(ran.result.run, accept_changes=True).result.status == "done"


def test_a_dry_run_shows_its_steps(place: Place) -> None:
    place.write("sub/other.yaml", OTHER)
    place.write("flow.yaml", MAIN)
    shown = place.plait("run", "--dry-run", "flow.yaml").stdout
    assert "steps/child/setup/0   shell   echo ${greeting} ${base} 22 fast other\n" in shown
    assert "steps/child/map/items   items   seq 2\n" in shown
    assert not (place.root / ".ai" / "state" / "runs").exists()
    assert "workflow: sub/other.yaml" in place.plait("graph", "flow.yaml").stdout


def test_its_failure_is_handled_like_any_other(place: Place) -> None:
    place.write("other.yaml", "timeout: 1h\nsteps: [{shell: exit 3}]\n")
    flow = (
        "steps: [{workflow: other.yaml, on_failure: {shell: 'echo mended ${error.exit_code}'}}]\n"
    )
    assert "mended 3" in place.done(flow).outputs.values()


REFUSED = [
    ("{workflow: nope.yaml}", "flow.yaml:1:20: there is no workflow 'nope.yaml'"),
    ("{workflow: ../x.yaml}", "flow.yaml:1:20: this workflow is outside the project"),
    ("{workflow: flow.yaml}", "flow.yaml:1:20: these workflows call each other without end"),
    (
        "{workflow: '${x}.yaml'}",
        "flow.yaml:1:20: the path of a called workflow cannot have placeholders",
    ),
    ("{workflow: graph.yaml}", "flow.yaml:1:20: 'graph.yaml' is not a workflow"),
    ("{workflow: needs.yaml}", "flow.yaml:1:10: that workflow needs the parameter 'n'"),
    (
        "{workflow: needs.yaml, params: {n: 1, m: 2}}",
        "flow.yaml:1:47: that workflow has no parameter 'm'",
    ),
    (
        "{workflow: needs.yaml, params: {n: x}}",
        "flow.yaml:1:41: parameter 'n' must be a whole number",
    ),
    ("{workflow: hooks.yaml}", "hooks.yaml:1:1: 'limits' counts for a whole run"),
    (
        "{workflow: apart.yaml}",
        "apart.yaml:1:19: only the map of the file that is run can isolate items",
    ),
    ("{workflow: wrong.yaml}", "wrong.yaml:1:15: unknown variable 'nope.a'"),
    ("{workflow: ping.yaml}", "pong.yaml:1:20: these workflows call each other without end"),
    (
        "{workflow: needs.yaml, params: [1]}",
        "flow.yaml:1:40: the params of a workflow must be a map",
    ),
    (
        "{workflow: away.yaml}",
        "away.yaml:1:19: 'backend' counts for the map of the file that is run",
    ),
]


@pytest.mark.parametrize(("step", "what"), REFUSED)
def test_what_cannot_be_called_is_refused_with_its_place(
    place: Place, step: str, what: str
) -> None:
    place.write("graph.yaml", "start: a\nnodes: {a: {type: return}}\n")
    place.write("needs.yaml", "parameters: {n: {type: integer}}\nsteps: [{shell: 'echo ${n}'}]\n")
    place.write("hooks.yaml", "limits: {steps: 3}\nsteps: [{shell: ls}]\n")
    place.write("apart.yaml", "map: {input: [a], isolation: worktree, steps: [{shell: ls}]}\n")
    place.write("wrong.yaml", "- shell: echo ${nope.a}\n")
    place.write("away.yaml", "map: {input: [a], backend: dask, steps: [{shell: ls}]}\n")
    place.write("ping.yaml", "steps: [{workflow: pong.yaml}]\n")
    place.write("pong.yaml", "steps: [{workflow: ping.yaml}]\n")
    flow = f"steps: [{step}]\n"
    found = [str(one.problem).replace(f"{place.root}/", "") for one in place.check(flow)]
    assert any(one.startswith(what) for one in found), found
    assert what in place.refusal(flow)


def test_calls_have_a_limit_before_anything_is_built(place: Place) -> None:
    for number in range(12):
        place.write(
            f"f{number}.yaml",
            f"steps: [{{workflow: f{number + 1}.yaml}}, {{workflow: f{number + 1}.yaml}}]\n",
        )
    place.write("f12.yaml", "steps: [{shell: ls}]\n")
    assert place.check("steps: [{workflow: f6.yaml}]\n") == []
    assert {one.code for one in place.check("steps: [{workflow: f0.yaml}]\n")} == {"too-many-steps"}
    assert "more than 1,000 times" in place.refusal("steps: [{workflow: f0.yaml}]\n")


def test_a_file_that_is_called_twice_has_each_problem_once(place: Place) -> None:
    place.write("wrong.yaml", "steps: [{shell: 'echo ${nope}'}]\n")
    found = place.check("steps: [{workflow: wrong.yaml}, {workflow: wrong.yaml}]\n")
    assert [one.code for one in found] == ["unknown-name"]


# ── whose values it is given ─────────────────────────────────────────────

TAKES = """\
parameters: {x: {type: string, default: .}}
vars: {v: "${x}"}
env: {E: "${v}"}
steps:
"""
FORMS = ["ls ${x}", "ls ${v}", "ls $E", "ls ${E}", "ls $x"]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_run_found_is_no_option_in_a_file_that_it_is_given_to(
    place: Place, form: str
) -> None:
    place.write("takes.yaml", TAKES + f"  - shell: {form}\n")
    call = "{workflow: takes.yaml, params: {x: '%s'}}"
    items = f"steps: [{{foreach: ['--version'], do: [{call % '${item}'}]}}]\n"
    assert "or say that it may be one: ${x:opt}" in place.run(items).message
    captured = f"steps: [{{shell: 'echo --version', capture: c}}, {call % '${c}'}]\n"
    assert "or say that it may be one: ${x:opt}" in place.run(captured).message
    assert place.run(f"steps: [{call % '--version'}]\n").result.status == "done"  # as it is written


def test_a_host_that_a_run_found_is_refused_in_a_file_that_it_is_given_to(place: Place) -> None:
    place.write(
        "ask.yaml", "parameters: {base: {}}\nvars: {u: '${base}/a'}\nsteps: [{http: '${u}'}]\n"
    )
    flow = "steps: [{shell: 'echo http://127.0.0.1:9', capture: c}, {workflow: ask.yaml, params: {base: '%s'}}]\n"
    assert "the scheme and host of a URL" in place.run(flow % "${c}").message
    assert (
        "refused" in place.run(flow % "http://127.0.0.1:9").message.lower()
    )  # no server listens there


def test_its_head_knows_the_names_of_its_caller(place: Place) -> None:
    place.write(
        "head.yaml",
        "vars: {n: 'n-${M}'}\nenv: {C: '${c}-${n}'}\nsteps: [{shell: 'echo $C ${n}'}]\n",
    )
    flow = "env: {M: dev}\nsteps: [{shell: echo cap, capture: c}, {id: h, workflow: head.yaml}]\n"
    assert place.check(flow) == []
    assert place.done(flow).outputs["steps/h/steps/0"] == "cap-n-dev n-dev"
    place.write("flow.yaml", flow)
    assert (
        "steps/h/steps/0   shell   echo $C n-dev\n"
        in place.plait("run", "--dry-run", "flow.yaml").stdout
    )


def test_its_secrets_are_masked_before_it_is_called_and_when_it_is_replayed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNER", "inner-secret-text")
    place.write("secret.yaml", "secrets: {S: INNER}\nsteps: [{shell: 'echo ${S | upper}'}]\n")
    flow = "steps: [{shell: printenv INNER}, {workflow: secret.yaml}, {shell: 'printenv INNER; test -e go'}]\n"
    ran = place.run(flow)
    assert ran.outputs["steps/0"] == "***"
    place.write("go", "")
    assert place.resume(ran.result.run).outputs["steps/2"] == "***"


def test_a_parameter_that_does_not_fit_is_reported_where_it_is_given(place: Place) -> None:
    place.write("needs.yaml", "parameters: {n: {type: integer}}\nsteps: [{shell: 'echo ${n}'}]\n")
    ran = place.run(
        "steps: [{shell: echo x, capture: c}, {workflow: needs.yaml, params: {n: '${c}'}}]\n"
    )
    assert "flow.yaml:1:" in ran.message
    assert "-i n" not in ran.message


def test_check_knows_the_tools_and_models_of_a_called_file(place: Place) -> None:
    place.write(
        "tools.yaml", "steps: [{tool: core/file/read, params: {pth: x}}, {prompt: hello}]\n"
    )
    place.write("flow.yaml", "steps: [{workflow: tools.yaml}]\n")
    reported = place.plait("check", "flow.yaml")
    assert (
        "tools.yaml:1:41: 'core/file/read': 'pth' is not a parameter"
        in reported.stdout + reported.stderr
    )
    assert "no model provider is configured" in reported.stdout + reported.stderr


def test_a_failed_item_of_a_called_file_is_not_offered_to_plait_retry(place: Place) -> None:
    place.write("fail.yaml", "map: {input: [x], steps: [{shell: exit 1}]}\n")
    place.write("flow.yaml", "steps: [{workflow: fail.yaml}]\n")
    reported = place.plait("run", "flow.yaml")
    assert "plait resume" in reported.stdout + reported.stderr
    assert "plait retry" not in reported.stdout + reported.stderr
