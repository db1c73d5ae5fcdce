"""Where a run meets its file: input that cannot be read, conditions that a dry run cannot answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.engine.outcome import NO_TIME_LEFT, Failed
from plait.lang.analysis.names import NAMES
from plait.tools.invocation import DEFAULT_MAX_OUTPUT
from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


# ── input that cannot be read ────────────────────────────────────────────

INPUTS = [
    # input of the map                   exit code
    ("nowhere.json",                     2),
    ("half.json",                        2),
    ("/etc/hosts",                       2),
    ("'{file: rows.csv}'",               2),
    ("{command: 'exit 3'}",              1),   # a command failed; no file is wrong
    ("[1]",                              0),
]  # fmt: skip


@pytest.mark.parametrize(("source", "code"), INPUTS)
def test_an_input_that_is_missing_or_cannot_be_read_ends_like_any_other_bad_file(
    place: Place, source: str, code: int
) -> None:
    place.write("half.json", "[1, 2")
    ran = place.run(f"map: {{input: {source}, steps: [{{shell: 'true'}}]}}\n")
    assert ran.result.exit_code == code


# ── data that is nested too deeply ───────────────────────────────────────

DEEP = "[" * 330 + "]" * 330


def test_an_input_that_is_nested_too_deeply_is_refused(place: Place) -> None:
    flow = "parameters: {x: any}\nsteps: [{shell: 'echo ${x}'}]\n"
    value: object = []
    for _ in range(100):
        value = [value]
    first, *_, last = place.refusal(flow, inputs={"x": value}).splitlines()
    assert first == (
        "flow.yaml:1:14: parameter 'x' must be nested at most 100 levels deep, got a list"
    )
    assert last == "fix: pass flatter data with -i x=…"
    assert place.refusal(flow.replace("any", "array"), inputs={"x": DEEP}).splitlines()[0] == (
        f"flow.yaml:1:14: parameter 'x' must be a list: JSON such as [1, 2], got \"{'[' * 39}…\""
    )


@pytest.mark.parametrize("levels", [101, 450, 5000, 0])
def test_an_undeclared_input_is_refused_as_well(place: Place, levels: int) -> None:
    value: list[object] = []
    if levels:
        for _ in range(levels - 1):
            value = [value]
    else:
        value += [value, value]  # contains itself
    refusal = place.refusal("start: a\nnodes: {a: {type: return}}\n", inputs={"x": value})
    assert refusal == (
        "input 'x' must be nested at most 100 levels deep\nfix: pass flatter data with -i x=…"
    )


def test_output_that_is_nested_too_deeply_is_not_captured(place: Place) -> None:
    place.write("deep.json", DEEP)
    ran = place.run("steps: [{shell: cat deep.json, capture_output: x, capture_format: json}]\n")
    assert ran.message == "the output captured as 'x' is not JSON of at most 100 levels"


def test_data_that_steps_nest_without_end_fails_the_step(place: Place) -> None:
    ran = place.run(
        'start: a\nstate: {x: []}\nnodes: {a: {assign: {x: ["${state.x}"]}, next: a}}\n'
    )
    assert ran.result.exit_code == 1
    what = "gave what cannot be recorded: a value is nested too deeply, or contains itself"
    assert ran.message == f"node 'a': {what}"


def test_a_step_gives_nothing_that_could_not_be_read_from_the_journal(place: Place) -> None:
    """It may have 400 levels."""
    nodes = [f'n{n}: {{assign: {{x: ["${{state.x}}"]}}, next: n{n + 1}}}' for n in range(430)]
    flow = "start: n0\nmax_steps: 500\nstate: {x: []}\nnodes:\n  " + "\n  ".join(nodes)
    ran = place.run(f'{flow}\n  n430: {{type: return, output: "${{state.x}}"}}\n')
    assert ran.message.startswith("node 'n297': gave what cannot be recorded")
    assert place.resume(ran.result.run).message == ran.message


# ── a condition that is data, in a dry run ───────────────────────────────


def test_a_dry_run_shows_a_step_whose_condition_only_the_run_can_answer(place: Place) -> None:
    place.write(
        "flow.yaml",
        """\
steps:
  - {shell: date, capture_output: n}
  - {shell: echo maybe, when: {path: n, op: eq, value: "3"}}
  - {shell: echo nested, when: {all: [{not: {path: n.x, op: exists}}, {path: workflow.name, value: flow}]}}
  - {shell: echo never, when: {path: workflow.name, value: other}}
  - {shell: echo always, when: {path: workflow.name, value: flow}}
""",
    )
    done = place.plait("run", "flow.yaml", "--dry-run")
    assert done.stdout.splitlines() == [
        "steps/0   shell   date",
        'steps/1   shell   if {"path":"n","op":"eq","value":"3"}: echo maybe',
        'steps/2   shell   if {"all":[{"not":{"path":"n.x","op":"exists"}},'
        '{"path":"workflow.name","value":"flow"}]}: echo nested',
        "steps/3   shell   echo never   (skipped: its condition does not hold)",
        "steps/4   shell   echo always",
    ], done.stderr


# ── what a failed step captured, where the flow goes on ──────────────────

PHASES = """\
setup:
  - {shell: "echo out; exit 3", capture_output: s, continue_on_error: true}
  - shell: exit 4
    continue_on_error: true
    on_failure: {steps: [{shell: echo handled, capture_output: h}], fail_workflow: true}
  - shell: test -e again || { touch again; exit 5; }
    on_failure: {steps: [{shell: "echo tried; exit 6", capture_output: t, continue_on_error: true}], max_attempts: 1}
map: {input: [1], steps: [{shell: "echo ${s} ${s.exit_code} ${h} ${t.exit_code}"}]}
reduce: [{shell: "echo ${s} ${s.exit_code} ${h} ${t.exit_code}; test -e go"}]
"""


def test_what_a_failed_step_captured_is_known_behind_its_list_if_the_flow_goes_on(
    place: Place,
) -> None:
    ran = place.run(PHASES)
    assert (ran.outputs["map/0/0"], ran.outputs["reduce/0"]) == (
        "out 3 handled 6",
        "out 3 handled 6",
    )
    place.write("go", "")
    again = place.resume(ran.result.run)
    assert (again.result.status, again.outputs["reduce/0"]) == ("done", "out 3 handled 6")


# ── what would fail, in a dry run ────────────────────────────────────────

WOULD_FAIL = [
    # flow, exit code, what is shown: a path, and whether it would fail
    ("steps: [{foreach: ['-x', ok], do: [{shell: 'cat ${item}'}]}, {shell: echo last}]\n", 1,
     [("steps/0/each/item:0/0", True), ("steps/0/each/item:1/0", False), ("steps/0/each", True), ("steps/1", False)]),
    ("steps: [{foreach: ['-x', ok], do: [{shell: 'cat ${item}'}], continue_on_error: true}, {shell: echo last}]\n", 0,
     [("steps/0/each/item:0/0", True), ("steps/0/each/item:1/0", False), ("steps/0", True), ("steps/1", False)]),
    ("map: {input: [{id: a, n: '-x'}, {id: b, n: ok}], id: '${item.id}', steps: [{shell: 'cat ${item.n}'}]}\n", 1,
     [("map/item:a/0", True), ("map/item:b/0", False)]),
    ("steps: [{shell: 'echo ${env.NOPE}', strict: true, continue_on_error: true}, {shell: echo last}]\n", 0,
     [("steps/0", True), ("steps/1", False)]),
    ("strict: true\n"
     "map: {input: [{id: a}, {id: b, q: {r: 1}}], id: '${item.id}', steps: [{shell: 'echo ${item.q.r}'}, {shell: echo}]}\n", 1,
     [("map/item:a/0", True), ("map/item:a/1", False), ("map/item:b/0", False), ("map/item:b/1", False)]),
    ("strict: true\n"
     "steps: [{shell: ls, capture: said, capture_format: json}, {foreach: '${said}', do: [{shell: 'echo ${item.q}'}]}]\n", 0,
     [("steps/0", False), ("steps/1/each/item:*/0", False)]),
    ("parameters: {n: {type: string, default: a}}\n"
     "steps: [{shell: echo w, when: '${n} > 3', continue_on_error: true}, {shell: echo last}]\n", 0,
     [("steps/0", True), ("steps/1", False)]),
    ("parameters: {n: {type: string, default: a}}\n"
     "steps: [{shell: echo w, when: '${n} > 3'}, {shell: echo last}]\n", 1,
     [("steps/0", True), ("steps/1", False)]),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "code", "shown"), WOULD_FAIL)
def test_a_dry_run_shows_what_would_fail_and_goes_on(
    place: Place, flow: str, code: int, shown: list[tuple[str, bool]]
) -> None:
    place.write("flow.yaml", flow)
    done = place.plait("run", "flow.yaml", "--dry-run")
    rows = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [(row.split("   ")[0], "   would fail: " in row) for row in rows] == shown, (
        done.stdout + done.stderr
    )
    assert done.returncode == code


# ── what a variable is ───────────────────────────────────────────────────


def test_a_variable_is_the_text_that_its_author_wrote(place: Place) -> None:
    ran = place.done(
        """\
env: {VERSION: 3.10, CODE: 007, LIMIT: 5, ON: true}
profiles: {slow: {RATE: 1.50}}
steps:
- {shell: 'echo $VERSION $CODE $LIMIT $ON $RATE $OWN ${env.VERSION}', env: {OWN: 2.0}, when: '${LIMIT} > 4'}
""",
        profile="slow",
    )
    assert ran.outputs["steps/0"] == "3.10 007 5 true 1.50 2.0 3.10"


# ── what a handler knows ─────────────────────────────────────────────────


@pytest.mark.parametrize("handler", ["on_failure", "on_exit_code"])
def test_steps_that_follow_a_failure_know_why_it_failed(place: Place, handler: str) -> None:
    reported = [{"shell": "echo ${error.exit_code} ${error.stderr} ${error.kind}"}]
    after = {3: reported} if handler == "on_exit_code" else reported
    flow = f"steps: [{{shell: 'echo bad >&2; exit 3', {handler}: {after}}}]\n"
    assert place.check(flow) == []
    assert "3 bad exit" in place.outputs(flow)


# ── outside a repository ─────────────────────────────────────────────────


def test_outside_a_repository_git_has_no_fields_and_a_default_holds(place: Place) -> None:
    assert place.outputs(
        "steps: [{shell: 'echo ${git.branch:-x} ${git.commit:-y} ${git.root:-z}'}]\n"
    ) == ["x y z"]


def test_the_items_of_a_map_are_found_with_the_names_of_the_run_and_its_repository(
    place: Place,
) -> None:
    flow = """\
strict: true
setup: [{shell: echo a > new.txt}]
map:
  input: {command: 'echo ${git.branch} ${workflow.files_added}'}
  env: {NTH: '${step.index} of ${total}', LEVEL: '${git.branch}'}
  id: '${git.branch}-${item}'
  steps: [{shell: 'echo ${item} $NTH $LEVEL'}]
"""
    place.repository()
    assert place.done(flow).outputs["map/0/0"] == "main new.txt 0 of 1 main"


def test_inside_a_repository_git_has_the_fields_that_are_known(place: Place) -> None:
    place.repository()
    fields = next(name.fields for name in NAMES if name.name == "git")
    assert fields
    reported = place.outputs(
        f"steps: [{{shell: 'echo {' '.join(f'${{git.{one}:-none}}' for one in fields)}'}}]\n"
    )
    assert reported == [f"main {place.git('rev-parse', 'HEAD')} {place.root}"]


# ── counts and reasons of a resumed run ──────────────────────────────────


def test_a_resumed_map_that_had_too_many_failures_counts_all_of_them(place: Place) -> None:
    flow = """\
map:
  input: [1, 2, 3]
  max_parallel: 2
  max_failures: 1
  steps: [{shell: 'touch begun${item}; until test -e begun1 -a -e begun2; do :; done; exit 1'}]
"""
    ran = place.run(flow)
    again = place.resume(ran.result.run)
    assert (ran.result.counts["failed"], again.result.counts["failed"]) == (2, 2)


def test_a_resumed_dry_run_says_of_every_kind_of_step_why_it_is_done_again(place: Place) -> None:
    flow = """\
steps:
  - {shell: echo one}
  - {write_file: {path: two.txt, content: x}}
  - {http: 'http://127.0.0.1:9/three'}
"""
    place.run(flow)
    place.write("flow.yaml", flow.replace("echo one", "echo other"))
    done = place.plait("resume", "--accept-changes", "--dry-run")
    assert [line.partition("   (")[2] for line in done.stdout.splitlines()] == [
        "again: its text has changed)",
        "again: a step before it is done again)",
        "again: it had failed)",
    ], done.stderr


def test_a_dry_run_says_of_an_action_whose_check_had_failed_why_it_is_done_again(
    place: Place,
) -> None:
    check = """printf '{"completion_percentage":50}'"""
    place.run(f"steps:\n  - shell: echo one\n    validate:\n      shell: {check}\n")
    first = place.plait("resume", "--dry-run").stdout.splitlines()[0]
    assert first.endswith("(again: the check of its step had failed)")


@pytest.mark.parametrize("into", ["", " > res.json\n      result_file: res.json"])
def test_a_dry_run_goes_the_way_of_checks_that_are_recorded(place: Place, into: str) -> None:
    check = (
        """n=$(cat gaps 2>/dev/null | wc -l); printf '{"completion_percentage":%d}' $((n * 50))"""
    )
    check += into
    flow = f"""\
steps:
  - id: do
    shell: echo one
    validate:
      shell: {check}
      on_incomplete: {{shell: 'echo gap >> gaps; test $(wc -l < gaps) != 2 || test -e ready', max_attempts: 3}}
  - {{id: then, shell: echo two}}
"""
    assert place.run(flow).result.status == "failed"
    shown = place.plait("resume", "--dry-run").stdout.splitlines()
    reported = [line.split()[0].removeprefix("steps/") for line in shown]
    assert reported[:5] == [
        "do/run",
        "do/check@1",
        "do/on_incomplete@1",
        "do/check@2",
        "do/on_incomplete@2/0",
    ]


# ── a timeout ────────────────────────────────────────────────────────────

TIMEOUTS = [
    # flow                                                                                    step           its message
    ("steps: [{shell: sleep 20, timeout: 0.3s}]",                                             "steps/0",     "took longer than 0.3 s"),
    ("steps: [{shell: sleep 20, timeout: 0.3s, on_success: 'true'}]",                         "steps/0/run", "took longer than 0.3 s"),
    ("map: {input: [1], timeout: 0.5s, steps: [{shell: 'true'}, {shell: sleep 20}]}",    "map/0",       "took longer than 0.5 s"),
    ("map: {input: [1], timeout: 0.5s, steps: [{shell: 'true'}, {shell: sleep 20}]}",    "map/0/1",     NO_TIME_LEFT),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "path", "message"), TIMEOUTS)
def test_a_timeout_names_the_limit_of_the_author(
    place: Place, flow: str, path: str, message: str
) -> None:
    outcome = place.run(flow).outcome(path)
    assert isinstance(outcome, Failed)
    assert outcome.failure.message == message


def test_what_a_command_printed_before_its_timeout_is_kept(place: Place) -> None:
    ran = place.run("""\
steps:
- id: hangs
  shell: echo at the door; echo knocking >&2; trap 'exit 0' TERM; sleep 20 & wait
  timeout: 0.5s
  capture: said
  on_failure:
    shell: echo "${shell.output}, ${error.output}, ${said.stderr}, ${said.exit_code}, ${said.success}, ${error.kind}"
    fail_workflow: true
""")
    assert ran.result.status == "failed"
    reported = "at the door, at the door, knocking, 124, false, timeout"
    assert ran.outputs["steps/hangs/on_failure/0"] == reported
    logs = place.plait("logs", ran.result.run, "hangs").stdout
    assert "at the door\nstderr:\nknocking\n" in logs


def test_what_was_too_long_to_be_kept_in_memory_is_kept_also_of_a_command_that_hung(
    place: Place,
) -> None:
    ran = place.run("steps: [{id: y, shell: 'yes | head -c 20000000; sleep 20', timeout: 3s}]\n")
    (kept,) = (place.root / ".ai/state/runs").glob("*/output/*")
    text = kept.read_bytes()  # all of it, if the machine is not busy
    assert DEFAULT_MAX_OUTPUT < len(text) <= 20_000_000
    assert text == (b"y\n" * len(text))[: len(text)]
    assert ran.message == "took longer than 3 s"


def test_secrets_are_masked_in_what_a_command_printed_before_its_timeout(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter-two")
    ran = place.run(
        "secrets: {T: TOKEN}\nsteps: [{shell: 'echo =$TOKEN=; sleep 20', timeout: 0.3s}]\n"
    )
    assert ran.outputs["steps/0"] == "=***="
    assert b"hunter-two" not in place.state


# ── output that only looks like JSON ─────────────────────────────────────

NO_JSON = ['{"n": 1e400}', "[NaN]", r'"\ud800"']


@pytest.mark.parametrize("printed", NO_JSON)
def test_an_item_that_prints_no_json_fails_alone(place: Place, printed: str) -> None:
    place.write("bad", printed)
    ran = place.run("""\
map:
  input: [1, 2, 3]
  max_parallel: 1
  steps:
    - {shell: 'echo ${item} >> seen; if [ ${item} = 2 ]; then cat bad; else echo 1; fi', capture: n, capture_format: json}
reduce:
  - {write_file: {path: out.json, content: '${map.results}', format: json}}
""")
    assert ran.failed == ["map/1/0", "map/1"]
    failed = ran.outcome("map/1")
    assert isinstance(failed, Failed)
    assert (failed.failure.kind, failed.failure.message) == (
        "capture",
        "the output captured as 'n' is not JSON",
    )
    assert place.text("seen") == "1\n2\n3\n"
    assert [one["status"] for one in json.loads(place.text("out.json"))] == [
        "success",
        "failed",
        "success",
    ]
    place.resume(ran.result.run)
    assert place.text("seen") == "1\n2\n3\n"


# ── checks and what stands beside them ───────────────────────────────────


def test_what_follows_success_follows_the_check(place: Place) -> None:
    flow = """\
steps:
- id: release
  shell: echo build >> seen
  validate:
    shell: 'echo check >> seen; echo "{\\"completion_percentage\\": PERCENT}"'
    on_incomplete: {shell: echo complete >> seen, max_attempts: 1}
  on_exit_code: {0: echo zero >> seen}
  on_success: {shell: 'echo deploy ${validation.completion} >> seen'}
"""
    assert place.run(flow.replace("PERCENT", "40")).result.status == "failed"
    assert place.text("seen").split("\n")[:-1] == ["build", "zero", "check", "complete", "check"]
    place.write("seen", "")
    place.done(flow.replace("PERCENT", "100"))
    assert place.text("seen").split("\n")[:-1] == ["build", "zero", "check", "deploy 100"]


def test_a_check_that_cannot_be_made_says_nothing(place: Place) -> None:
    ran = place.run("""\
steps:
- shell: echo act
  validate: {shell: sleep 20, timeout: 0.3s, on_incomplete: {shell: echo agent >> seen}}
""")
    assert ran.message == "the check could not run: took longer than 0.3 s"
    assert not (place.root / "seen").exists()


def test_the_exit_code_of_a_timeout_is_that_of_timeout(place: Place) -> None:
    place.done("""\
steps:
- {shell: sleep 20, timeout: 0.3s, on_failure: 'echo ${error.exit_code} ${shell.exit_code} > seen'}
- {shell: sleep 20, timeout: 0.3s, on_exit_code: {124: echo handled >> seen}}
""")
    assert place.text("seen") == "124 124\nhandled\n"
