"""Files become flows: what each field turns into, every mistake at once, and runs of the result with fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait import schema
from plait.core.documents import parse
from plait.core.errors import InputError, PlaitError
from plait.core.masking import Masker
from plait.engine.events import Note
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import StepError
from plait.engine.perform import StepContext
from plait.engine.step import Retry, iter_steps
from plait.lang.common import step_names
from plait.lang.findings import RULES
from plait.lang.flow_text import FlowText
from plait.lang.loaded import LoadedFlow, LoadOptions
from plait.lang.workflow.read import read_flow
from plait.program.action_step import ActionStep
from plait.program.actions.shell import ShellAction
from plait.program.phases import Phases
from program.fake_git import GitServices, git, new_repository
from program.fakes import FakeServices, Finished, new_run, printed
from share import examples


def load(folder: Path, text: str, *, inputs: Any = None, **options: Any) -> LoadedFlow:
    file = folder / "flow.yaml"
    file.write_text(text)
    source = FlowText.read(str(file))
    options = {"project": str(folder), **options}
    return read_flow(source, options["project"]).compile(inputs or {}, LoadOptions(**options))


def refusal(folder: Path, text: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, text, **options)
    return str(caught.value).replace(f"{folder}/", "")


def steps(loaded: LoadedFlow) -> dict[str, Any]:
    return {path: step for part in loaded.program.children for path, step in iter_steps(part)}


def phases(loaded: LoadedFlow) -> Phases:
    assert isinstance(loaded.program.body, Phases)
    return loaded.program.body


def one_step(folder: Path, text: str) -> ActionStep:
    listed = phases(load(folder, f"- {text}\n")).steps
    assert listed is not None
    [work] = listed.steps
    return work


def finished(loaded: LoadedFlow, folder: Path, fakes: FakeServices) -> Any:
    run = new_run(fakes, folder=str(folder))
    turn = StepContext(run, "", loaded.scope("r1"), directory=str(folder), env=loaded.process_env())
    try:
        return loaded.program.run(turn)
    finally:
        run.events.close()


def commands(fakes: FakeServices) -> list[str]:
    return [asked["shell"] for asked in fakes.asked if "shell" in asked]


# ── the jobs that people write ───────────────────────────────────────────

JOBS = {
    "measure, fix the worst in parallel, measure again, report": """\
name: debt
mode: mapreduce
setup:
  timeout: 10m
  commands:
    - shell: analyse --json > debt.json
    - shell: analyse --score
      capture_output: before
      capture_format: number
map:
  input: debt.json
  json_path: "$.items[*]"
  filter: "unified_score.final_score >= 5 OR debt_score >= 5"
  sort_by: "unified_score.final_score DESC NULLS LAST, debt_score DESC NULLS LAST"
  max_items: 10
  max_parallel: 5
  agent_template:
    - claude: "/plan ${item.location.file} ${item}"
      capture_output: plan
      validate:
        claude: /check-plan
        result_file: .plan.json
        threshold: 75
        on_incomplete: {claude: "/complete ${validation.gaps} ${validation.attempt_number}", max_attempts: 3}
      commit_required: true
    - shell: make test
      on_failure: {claude: "/fix ${shell.output} ${shell.stderr}", max_attempts: 5, fail_workflow: true}
    - shell: make lint
      on_failure: "make format"
reduce:
  - shell: analyse --score
    capture_output: after
    capture_format: number
  - write_file: {path: results.json, content: "${map.results}", format: json}
  - shell: "echo ${before} ${after} ${map.successful}/${map.total}"
  - shell: git commit -am 'debt ${before} to ${after}'
merge:
  - claude: /merge ${merge.source_branch}
""",
    "keep documentation in step with the code": """\
name: docs
env:
  PROJECT: plait
  DOCS: book/src
  MAX_PARALLEL: "4"
setup:
  - shell: "find ${DOCS} -name '*.md' | jq -R . | jq -s . > pages.json"
map:
  input: pages.json
  json_path: $[*]
  max_parallel: ${MAX_PARALLEL}
  agent_template:
    - claude: "/fix-page --json '${item}' --project ${PROJECT}"
      validate:
        claude: "/check-page '${item}'"
        on_incomplete: {claude: "/complete-page --gaps ${validation.gaps}", commit_required: true}
reduce:
  commands:
    - shell: mdbook build --strict ${DOCS}
      on_failure: {claude: "/fix-build ${shell.stderr}"}
error_policy:
  on_item_failure: dlq
  continue_on_failure: true
  max_failures: 3
  error_collection: aggregate
""",
    "implement a specification, complete the gaps": """\
parameters: [spec]
commands:
  - claude: /implement ${spec}
    commit_required: true
    validate:
      claude: /validate-spec ${spec} --output .result.json
      result_file: .result.json
      threshold: 100
      on_incomplete:
        commands:
          - claude: /complete ${validation.missing} ${validation.missing_count}
          - shell: make format
        max_attempts: 2
        fail_workflow: false
  - shell: make test
    on_failure: {claude: "/debug ${shell.output}", max_attempts: 3, fail_workflow: false, commit_required: true}
merge:
  commands:
    - shell: git fetch origin
    - claude: /merge ${merge.source_branch} ${merge.target_branch}
  timeout: 600
""",
    "find the weakest coverage and improve it": """\
- claude: /coverage --save
  id: coverage
  outputs: {spec: {file_pattern: "*-coverage-*.md"}}
- claude: /implement ${coverage.spec}
- shell: just test
  on_failure: {claude: "/fix ${shell.output}", max_attempts: 3}
""",
    "analyse drift by area and reduce to one report": """\
setup:
  - shell: |
      jq -n '[{"area": "cli"}, {"area": "docs"}]' > areas.json
map:
  input: {file: areas.json}
  steps:
    - {claude: "/drift ${item.area}", capture_output: drift}
reduce:
  - shell: |
      echo ${map.results} | jq --arg area x '.[] | select(.item.area == $area)' > report.json
    on_failure: true
""",
    "long shell scripts with their own variables": """\
- name: measure
  shell: |
    total=0
    for f in docs/*.md; do n=$(wc -l < "$f"); total=$((total + n)); done
    echo "${total:-0} $1 ${#total} ${total%0}"
  capture_output: lines
- name: gate
  when: "${lines} != ''"
  shell: test ${lines} != broken
""",
    "fix every file that a command lists": """\
map:
  input: {command: "find src -name '*.py'", format: text}
  filter: "path matches '[.]py$' && !ends_with(path, 'setup.py')"
  sort_by: path
  steps:
    - claude: /fix ${item}
    - shell: "awk '{print $2}' ${item.path:path}"
      continue_on_error: true
reduce:
  - shell: echo ${map.outputs}
""",
    "environment, secrets and profiles in all phases": """\
env: {REGION: eu, WORKERS: 3}
secrets: {API_KEY: TOKEN}
profiles:
  prod: {REGION: us, description: the real one}
map:
  input: [1, 2]
  max_parallel: ${WORKERS}
  steps: [{shell: 'deploy ${item} ${REGION}', env: {STAGE: "${REGION}"}}]
reduce:
  - {shell: "curl -H @- example.org", env: {KEY: "${API_KEY}"}}
""",
    "every way to capture": """\
map:
  input: [{path: a}]
  steps:
    - {shell: cat a, capture: info, capture_format: json, capture_streams: {stderr: true, duration: false}}
    - {shell: wc -l a, capture: count, capture_format: number}
    - {shell: ls, capture: files, capture_format: lines, capture_streams: both}
    - {shell: test -e a, capture: there, capture_format: boolean, on_failure: true}
    - {shell: "echo ${info.a.b} ${count} ${files[0]} ${there} ${count.exit_code} ${there.success}"}
""",
    "deploy or not, by what the tests say": """\
- {shell: make test, capture_output: tests, allow_failure: true}
- {shell: make deploy, when: "${tests.success} && ${tests.exit_code} == 0"}
- {shell: echo no, when: "!${tests.success} || ${deploy.exists}"}
- {shell: make, on_exit_code: {2: {claude: /fix}, 3: [echo three, {shell: ls}]}, on_success: echo done}
""",
}


@pytest.mark.parametrize("job", JOBS)
def test_a_real_job_loads(tmp_path: Path, job: str) -> None:
    given = {"spec": "12"} if "[spec]" in JOBS[job] else {}
    loaded = load(tmp_path, JOBS[job], inputs=given, environ={"TOKEN": "hunter2"})
    assert loaded.program.children


# ── what a field becomes ─────────────────────────────────────────────────


def test_a_shell_step_with_a_name_is_a_shell_step_of_that_name(tmp_path: Path) -> None:
    work = one_step(tmp_path, "{name: Run all tests!, shell: make test}")
    assert (work.name, work.kind, work.title) == ("0", "shell", "Run all tests!")
    assert isinstance(work.action, ShellAction)


NAMED = [
    # steps                                                         names
    ("[{shell: a}, {shell: b}]",                                    ["0", "1"]),
    ("[{shell: a, id: x}, {shell: b, name: X}]",                    ["x", "1"]),
    ("[{shell: a, name: '../../etc/passwd'}, /do]",                 ["0", "1"]),
    ("[{shell: a, id: '1'}, {shell: b}]",                           ["1", "step-1"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), NAMED)
def test_steps_are_called_by_id_or_number_and_no_two_alike(text: str, names: list[str]) -> None:
    document = parse(text, "f.yaml")
    assert step_names(document.items) == names  # type: ignore[union-attr]


RETRIES = [
    ("retry: 4",                                                       Retry(attempts=4)),
    ("retry: {attempts: 2, backoff: fixed, initial_delay: 500ms}",     Retry(2, "fixed", 0.5)),
    ("retry: {backoff: {linear: {increment: 2s}}}",                    Retry(3, "linear", increment=2.0)),
    ("retry: {backoff: {exponential: {base: 3}}, max_delay: 1m}",      Retry(3, "exponential", max_delay=60.0, base=3)),
    ("retry: {backoff: {fibonacci: }}",                                Retry(3, "fibonacci")),
    ("retry: {jitter: true}",                                          Retry(3, jitter=0.3)),
    ("retry: {jitter: 0.1, initial_delay: 0}",                         Retry(3, jitter=0.1, initial_delay=0.0)),
    ("retry: {retry_on: [timeout, network], retry_budget: 1h30m}",     Retry(3, retry_on=("timeout", "network"), budget=5400.0)),
    ("metadata: {retries: 2}",                                         Retry(attempts=3)),
]  # fmt: skip


@pytest.mark.parametrize(("field", "retry"), RETRIES)
def test_retry_counts_attempts_and_takes_every_way_to_wait(
    tmp_path: Path, field: str, retry: Retry
) -> None:
    assert one_step(tmp_path, f"{{shell: ls, {field}}}").policy.retry == retry


HANDLERS = [
    # on_failure                                                   commands          tried again   fails anyway
    ("true",                                                       [],               0,            False),
    ("make clean",                                                 ["make clean"],   0,            None),
    ("/fix",                                                       ["/fix"],         3,            None),    # an agent mends
    ("{claude: /fix}",                                             ["/fix"],         3,            None),
    ("{agent: fix it, fail_workflow: true}",                       ["fix it"],       3,            True),
    ("{claude: /fix, max_attempts: 0}",                            ["/fix"],         0,            None),
    ("{claude: /fix, retry_original: false}",                      ["/fix"],         0,            None),
    ("{shell: a, claude: /b}",                                     ["a", "/b"],      3,            None),
    ("{shell: a}",                                                 ["a"],            0,            None),
    ("{tool: team/mend}",                                          ["team/mend"],    0,            None),
    ("{steps: [/fix]}",                                            ["/fix"],         0,            None),    # steps are steps
    ("[make clean, /fix, {shell: ls}]",                            ["make clean", "/fix", "ls"], 0, None),
    ("{claude: /fix, max_attempts: 3}",                            ["/fix"],         3,            None),
    ("{shell: a, claude: /b, retry_original: true}",               ["a", "/b"],      1,            None),
    ("{commands: [{shell: a}], fail_workflow: true}",              ["a"],            0,            True),
    ("{steps: [a], max_retries: 2, fail_workflow: false}",         ["a"],            2,            False),
]  # fmt: skip


@pytest.mark.parametrize(("field", "titles", "attempts", "fails"), HANDLERS)
def test_on_failure_in_all_its_forms(
    tmp_path: Path, field: str, titles: list[str], attempts: int, fails: bool | None
) -> None:
    handler = one_step(tmp_path, f"{{shell: ls, on_failure: {field}}}").on_failure
    assert handler is not None
    assert [step.title for step in handler.steps.steps] == titles
    assert (handler.attempts, handler.fails_anyway) == (attempts, fails)


def test_on_failure_false_is_no_handler_and_test_is_shell_with_one(tmp_path: Path) -> None:
    assert one_step(tmp_path, "{shell: ls, on_failure: false}").on_failure is None
    work = one_step(
        tmp_path, "{test: {command: make test, timeout: 5, on_failure: {claude: /fix}}}"
    )
    assert work.kind == "shell"
    assert work.attempts is not None
    assert work.attempts.timeout == 5.0
    assert work.on_failure is not None


POLICIES = [
    # map fields, flow fields                                            what happens, at most, share
    ("", "",                                                             ("dlq", None, None)),
    ("on_item_failure: skip", "",                                        ("skip", None, None)),
    ("error_policy: {on_item_failure: stop, max_failures: 2}", "",       ("stop", 2, None)),
    ("", "error_policy: {failure_threshold: 0.5}",                       ("dlq", None, 0.5)),
    ("", "max_failures: 7",                                              ("dlq", 7, None)),
    ("", "continue_on_failure: false",                                   ("stop", None, None)),
    ("on_item_failure: retry", "on_item_failure: stop",                  ("retry", None, None)),
    ("retry: 2", "",                                                     ("retry", None, None)),
    ("retry: 2, on_item_failure: skip", "",                              ("skip", None, None)),
    ("retry: 2, continue_on_failure: false", "",                         ("stop", None, None)),
    ("on_item_failure: retry, continue_on_failure: false", "",           ("stop", None, None)),
    ("continue_on_failure: true", "on_item_failure: stop",               ("dlq", None, None)),
    ("on_item_failure: skip", "continue_on_failure: false",              ("skip", None, None)),
    ("max_failures: 3", "error_policy: {max_failures: 2}",               ("dlq", 3, None)),
    ("max_failures: 3, error_policy: {max_failures: 3}", "",             ("dlq", 3, None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of_map", "expected"),
    [
        ("on_item_failure: stop, max_failures: 2", ("dlq", None, None)),
        ("continue_on_failure: false, failure_threshold: 0.5", ("dlq", None, None)),
        ("on_item_failure: skip", ("skip", None, None)),
        ("on_item_failure: retry", ("retry", None, None)),
    ],
)
def test_keep_going_lets_no_failed_item_stop_the_others(
    tmp_path: Path, of_map: str, expected: tuple[Any, ...]
) -> None:
    flow = f"map: {{input: [1], steps: [{{shell: ls}}], {of_map}}}\n"
    map_step = load(tmp_path, flow, keep_going=True).program.map
    assert map_step is not None
    errors = map_step.errors
    assert (errors.on_item_failure, errors.max_failures, errors.failure_threshold) == expected


@pytest.mark.parametrize(("of_map", "of_flow", "expected"), POLICIES)
def test_an_error_policy_stands_in_the_map_or_the_flow(
    tmp_path: Path, of_map: str, of_flow: str, expected: tuple[Any, ...]
) -> None:
    map_step = load(
        tmp_path, f"{of_flow}\nmap: {{input: [1], steps: [{{shell: ls}}], {of_map}}}\n"
    ).program.map
    assert map_step is not None
    errors = map_step.errors
    assert (errors.on_item_failure, errors.max_failures, errors.failure_threshold) == expected


TRIES = [
    # map fields                                                         flow fields            attempts
    ("retry: 2",                                                         "",                    2),
    ("retry: 2, on_item_failure: dlq",                                   "",                    2),
    ("retry: 2, continue_on_failure: false",                             "",                    2),
    ("error_policy: {on_item_failure: skip, retry_config: {attempts: 4}}", "",                  4),
    ("on_item_failure: dlq",          "error_policy: {retry_config: {attempts: 4}}",            4),
    ("retry: 2",                      "error_policy: {retry_config: {attempts: 4}}",            2),
    ("on_item_failure: retry",                                           "",                    3),
    ("on_item_failure: dlq",                                             "",                    1),
]  # fmt: skip


@pytest.mark.parametrize(("of_map", "of_flow", "attempts"), TRIES)
def test_an_item_has_its_declared_number_of_attempts_whatever_its_failure_means(
    tmp_path: Path, of_map: str, of_flow: str, attempts: int
) -> None:
    map_step = load(
        tmp_path, f"{of_flow}\nmap: {{input: [1], steps: [{{shell: ls}}], {of_map}}}\n"
    ).program.map
    assert map_step is not None
    assert map_step.item_step("k", "t").policy.retry.attempts == attempts


TWICE = "has two different values, here and in error_policy"
CONTRADICTIONS = [
    # map fields                                                         what is reported
    ("max_failures: 1, error_policy: {max_failures: 2}",                 f"max_failures {TWICE}"),
    ("on_item_failure: dlq, error_policy: {on_item_failure: skip}",      f"on_item_failure {TWICE}"),
    ("retry: 2, error_policy: {retry_config: {attempts: 3}}",            "retry and retry_config contradict each other"),
    ("on_item_failure: dlq, continue_on_failure: false",
     "on_item_failure and continue_on_failure contradict each other"),
    ("on_item_failure: stop, error_policy: {continue_on_failure: true}",
     "on_item_failure and continue_on_failure contradict each other"),
]  # fmt: skip


@pytest.mark.parametrize(("of_map", "what"), CONTRADICTIONS)
def test_a_map_that_contradicts_itself_is_refused(tmp_path: Path, of_map: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, f"map: {{input: [1], steps: [{{shell: ls}}], {of_map}}}\n")
    assert [problem.what for problem in caught.value.problems] == [what]
    assert caught.value.where is not None


def test_the_command_line_has_the_last_word_on_parallel_items_and_strictness(
    tmp_path: Path,
) -> None:
    flow = "strict: true\nmap: {input: [1], max_parallel: 3, steps: [{shell: ls}, {shell: ls, strict: false}]}\n"
    loaded = load(tmp_path, flow)
    assert loaded.program.map is not None
    assert loaded.program.map.parallel == 3
    assert [step.strict for step in loaded.program.map.steps.steps] == [True, False]
    reported = load(tmp_path, flow, max_parallel=9, strict=False)
    assert reported.program.map is not None
    assert reported.program.map.parallel == 9
    assert [step.strict for step in reported.program.map.steps.steps] == [False, False]


MENTIONED = [
    ("${map.successful}",            set()),
    ("${map.results[0].output}",     {"results"}),
    ("${map.outputs}",               {"outputs"}),
    ("${json:a:from:map.results}",   {"results"}),
    ("${map}",                       {"results", "results_json", "outputs"}),
    ("${x:-${map.results_json}}",    {"results_json"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "lists"), MENTIONED)
def test_only_the_lists_of_a_map_that_are_mentioned_are_gathered(
    tmp_path: Path, text: str, lists: set[str]
) -> None:
    flow = f"map: {{input: [1], steps: [{{shell: ls}}]}}\nreduce: [{{claude: '{text}'}}]\n"
    assert phases(load(tmp_path, flow)).map_lists == lists


def test_a_condition_that_is_data_counts_as_a_mention(tmp_path: Path) -> None:
    flow = "map: {input: [1], steps: [{shell: ls}]}\nreduce: [{shell: ls, when: {path: map.results, op: exists}}]\n"
    assert phases(load(tmp_path, flow)).map_lists == {"results", "results_json", "outputs"}


TRACKED = [
    ("{shell: 'echo ${step.name} ${workflow.name}'}", set()),
    ("{shell: 'echo ${step.files_changed}'}",         {"step"}),
    ("{shell: 'echo ${workflow.commits}'}",           {"workflow"}),
    ("{shell: 'echo ${git.branch}'}",                 {"git"}),
    ("{shell: ls, commit_required: true}",            {"step"}),
]  # fmt: skip


@pytest.mark.parametrize(("step", "tracked"), TRACKED)
def test_changes_are_watched_only_in_a_flow_that_asks_for_them(
    tmp_path: Path, step: str, tracked: set[str]
) -> None:
    assert load(tmp_path, f"- {step}\n").program.tracks == tracked


def test_the_tools_that_a_flow_names_are_known_before_it_runs(tmp_path: Path) -> None:
    flow = "[{tool: team/a, params: {x: 1}}, {tool: '${last.output}'}, {agent: {prompt: p, tool: team/b}}, /do]"
    assert tuple(load(tmp_path, flow).tool_uses) == ("team/a", "team/b", "core/agents/claude")


# ── fingerprints ─────────────────────────────────────────────────────────

SAME = [
    ("{shell: ls}",                                     "{shell: ls, name: list, description: lists, id: x}"),
    ("{shell: ls, capture: a, timeout: 5}",             "{timeout: 5, capture_output: a, shell: ls}"),
    ("{shell: ls, on_failure: [{shell: a, name: b}]}",  "{shell: ls, on_failure: [{shell: a}]}"),
    ("{shell: ls} # why",                               '{"shell": "ls"}'),
]  # fmt: skip
DIFFERENT = [
    ("{shell: ls}",                              "{shell: ls -l}"),
    ("{shell: ls}",                              "{shell: ls, timeout: 5}"),
    ("{shell: ls}",                              "{shell: ls, env: {A: b}}"),
    ("{shell: ls}",                              "{shell: ls, strict: true}"),
    ("{tool: a, params: {name: x}}",             "{tool: a, params: {name: y}}"),
    ("{shell: ls, on_failure: [a]}",             "{shell: ls, on_failure: [b]}"),
]  # fmt: skip


def fingerprint(folder: Path, step: str, head: str = "") -> str:
    listed = phases(load(folder, f"{head}\nsteps:\n  - {step}\n")).steps
    assert listed is not None
    return listed.steps[0].fingerprint


@pytest.mark.parametrize(("one", "other"), SAME)
def test_an_edit_of_text_for_people_is_no_change(tmp_path: Path, one: str, other: str) -> None:
    assert fingerprint(tmp_path, one) == fingerprint(tmp_path, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_changes_a_step_changes_its_fingerprint(tmp_path: Path, one: str, other: str) -> None:
    assert fingerprint(tmp_path, one) != fingerprint(tmp_path, other)


def test_the_environment_and_strictness_of_the_flow_reach_every_fingerprint(tmp_path: Path) -> None:
    plain = fingerprint(tmp_path, "{shell: ls}")
    assert fingerprint(tmp_path, "{shell: ls}", "env: {A: b}") != plain
    assert fingerprint(tmp_path, "{shell: ls}", "strict: true") != plain
    assert fingerprint(tmp_path, "{shell: ls}", "description: b") == plain


# ── what is wrong ────────────────────────────────────────────────────────

BAD = [
    (
        "- {shell: ls, validate: {shell: a, expected_schema: {type: objct}}}\n",
        "flow.yaml:1:36: this is not JSON Schema\n"
        "1 | - {shell: ls, validate: {shell: a, expected_schema: {type: objct}}}\n"
        "  |                                    ^^^^^^^^^^^^^^^\n"
        "fix: every keyword has its form: type: object, required: [a]",
    ),
    (
        "steps: [{shell: ls, tmeout: 3}]\n",
        "flow.yaml:1:21: 'tmeout' is not a field of a step\n"
        "1 | steps: [{shell: ls, tmeout: 3}]\n"
        "  |                     ^^^^^^\n"
        "fix: did you mean 'timeout'?",
    ),
    (
        "map: {input: [1], steps: [{shell: ls}], max_parallel: 0}\n",
        "flow.yaml:1:55: 'max_parallel' must be a whole number from 1 to 4096\n"
        "1 | map: {input: [1], steps: [{shell: ls}], max_parallel: 0}\n"
        "  |                                                       ^",
    ),
    (
        "- {shell: ls, claude: /do}\n",
        "flow.yaml:1:15: a step has exactly one of shell, tool, agent, claude, prompt, http, foreach, write_file, "
        "use, workflow, test; this one has shell and claude\n"
        "1 | - {shell: ls, claude: /do}\n"
        "  |               ^^^^^^\n"
        "fix: split it, or remove all but one",
    ),
    (
        "steps: [make test]\n",
        "flow.yaml:1:9: a part of 'steps' must be a step, not text\n"
        "1 | steps: [make test]\n"
        "  |         ^^^^^^^^^\n"
        "fix: shell text is written shell: …; a command of an agent begins with '/'",
    ),
    (
        "steps: [{shell: ls}]\nmap: {input: [1], steps: [{shell: ls}]}\n",
        "flow.yaml:1:1: a flow has either steps or phases, but this one has steps and map\n"
        "1 | steps: [{shell: ls}]\n"
        "  | ^^^^^\n"
        "fix: move steps to setup or reduce",
    ),
    (
        "- {shell: ls, timeout: soon}\n",
        "flow.yaml:1:24: 'timeout' must be a duration: seconds, or 500ms, 90s, 5m, 1h30m, 2d\n"
        "1 | - {shell: ls, timeout: soon}\n"
        "  |                        ^^^^",
    ),
    (
        "- {shell: ls, capture_format: jsn, capture: a}\n",
        "flow.yaml:1:31: 'capture_format' must be one of string, json, lines, number, boolean\n"
        "1 | - {shell: ls, capture_format: jsn, capture: a}\n"
        "  |                               ^^^\n"
        "fix: did you mean 'json'?",
    ),
    (
        "map: {input: [1]}\n",
        "flow.yaml:1:7: a map needs 'steps': the steps for each item\n"
        "1 | map: {input: [1]}\n"
        "  |       ^^^^^\n"
        "fix: add steps: …",
    ),
    (
        "- {shell: ls, analyze: {}}\n",
        "flow.yaml:1:15: 'analyze' does not exist here\n"
        "1 | - {shell: ls, analyze: {}}\n"
        "  |               ^^^^^^^\n"
        "fix: run the analyser in a shell step",
    ),
    (
        "- {shell: ls, params: {a: 1}}\n",
        "flow.yaml:1:15: 'params' has no meaning in a step with shell: it belongs to tool\n"
        "1 | - {shell: ls, params: {a: 1}}\n"
        "  |               ^^^^^^\n"
        "fix: remove it, or use the other command",
    ),
    (
        "- {shell: a, id: x}\n- {shell: b, id: x}\n",
        "flow.yaml:2:18: two steps of this list have the id 'x'\n"
        "2 | - {shell: b, id: x}\n"
        "  |                  ^\n"
        "fix: give one of them another id",
    ),
    (
        "- shell: ls ${item.path}\n",
        "flow.yaml:1:13: unknown variable 'item.path'\n"
        "1 | - shell: ls ${item.path}\n"
        "  |             ^^^^^^^^^^^^\n"
        "fix: 'item' exists in map; known in flow: step, workflow, git, env, uuid",
    ),
    (
        "setup: {steps: [{shell: ls}], capture_outputs: {found: 3}}\nreduce: [{shell: 'echo ${found}'}]\n",
        "flow.yaml:1:56: 'found' is the output of step 3, but setup has 1 steps\n"
        "1 | setup: {steps: [{shell: ls}], capture_outputs: {found: 3}}\n"
        "  |                                                        ^\n"
        "fix: count from 0",
    ),
    ("steps: a\n", "flow.yaml:1:8: 'steps' must be a list of steps, not text\n1 | steps: a\n  |        ^\nfix: write a list: - shell: a"),
    ("", "flow.yaml:1:1: this file must be a map: flow, or a list of steps, not nothing\n1 | \n  | ^"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_reported_with_its_place_and_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(tmp_path, text) == message


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    text = """\
setup:
  - shell: eval ${x}
  - {shell: ls, when: "true > 3"}
map:
  input: [1]
  filter: "a >"
  sort_by: "a SIDEWAYS"
  steps: [{shell: ls, retry: {attempts: 0}}]
reduce:
  - shell: echo ${item.path}
"""
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    lines = [problem.place[1] for problem in caught.value.problems]
    assert sorted(set(lines)) == [2, 3, 6, 7, 8, 10]
    assert {problem.code for problem in caught.value.problems} <= RULES.keys()


def test_problems_of_given_inputs_and_missing_secrets_are_reported_at_once(tmp_path: Path) -> None:
    flow = "parameters: {a: integer}\nenv: {A: '${a}'}\nsecrets: {S: NOPE}\nsteps: [{shell: ls}]\n"
    with pytest.raises(InputError) as caught:
        load(tmp_path, flow, inputs={"b": 1}, profile="p")
    assert [problem.what for problem in caught.value.problems] == [
        "this flow has no parameter 'b'",
        "there is no profile 'p'",
        "parameter 'a' is missing",
        "the secret 'S' comes from the variable NOPE, which is not set",
    ]


def test_a_parameter_that_contradicts_itself_is_found_with_everything_else(tmp_path: Path) -> None:
    flow = "parameters: {a: {type: integer, default: x}}\nsteps: [{shell: ls, tmeout: 1}]\n"
    with pytest.raises(InputError) as caught:
        load(tmp_path, flow)
    assert [problem.code for problem in caught.value.problems] == ["parameter", "unknown-field"]


WARNED = [
    # step                                                   code
    ("{shell: ls, capture_output: item}",                    "shadowed-name"),
    ("{shell: ls, when: false}",                             "unreachable"),
    ("{shell: exit 3}\n- {shell: ls}",                       "unreachable"),
    ("{command: /fix}",                                      "deprecated-field"),
    ("{shell: ls, analysis: {force_refresh: true}}",         "no-effect"),
    ("{shell: 'ls ${last.output:raw}'}",                     "raw-value"),
    ("{shell: ls, retry: {retry_on: [exit, incomplete]}, validate: ls}", "no-effect"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "code"), WARNED)
def test_what_works_and_should_be_looked_at_is_a_warning(
    tmp_path: Path, step: str, code: str
) -> None:
    assert [
        finding.code for finding in load(tmp_path, f"- {{shell: ls}}\n- {step}\n").warnings
    ] == [code]


def test_an_id_that_all_items_share_is_a_warning(tmp_path: Path) -> None:
    flow = "map: {input: [1], id: ID, steps: [{shell: ls}]}\n"
    assert [one.code for one in load(tmp_path, flow.replace("ID", "id")).warnings] == ["no-effect"]
    assert not load(tmp_path, flow.replace("ID", "'${item}'")).warnings


FINE = [
    "{shell: ls, on_success: 'echo ${c}', on_exit_code: {0: {shell: ls, capture: c}}}",
    "{shell: ls, on_success: 'echo ${c} ${validation.missing}', validate: {shell: ls, on_incomplete: [{shell: ls, capture: c}]}}",
    "{foreach: [a], do: [{shell: ls, validate: ls}], retry: {retry_on: incomplete}, validate: ls}",
    "{shell: ls, retry: {retry_on: [exit]}, validate: ls}",
    "{shell: exit 3, on_failure: true}\n- {shell: ls}",
    "{shell: exit 0}\n- {shell: ls}",
    "{shell: ls, capture: a, on_success: 'echo ${a}', on_failure: 'echo ${a} ${error.message}'}",
    "{shell: ls, when: '${a.b.exists}'}",
    "{foreach: '${last.output}', do: [{shell: 'echo ${item} ${index}'}]}",
    "{foreach: ls, parallel: true, do: [{shell: 'echo ${item}'}]}",
    "{foreach: {items: [a, '${last.output}']}, max_items: 2, do: [{shell: 'echo ${item}'}]}",
]


@pytest.mark.parametrize("step", FINE)
def test_what_is_right_is_left_alone(tmp_path: Path, step: str) -> None:
    assert load(tmp_path, f"- {{shell: ls}}\n- {step}\n").warnings == ()


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.sampled_from(["ls", "/x", "${item}", "5m", "", "a.b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                sorted({n for f in schema.all_forms() for n in schema.fields_by_spelling(f.name)})
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(document=json_like)
def test_any_document_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    import json

    folder = tmp_path_factory.mktemp("any")
    exit_code = 0
    try:
        load(folder, json.dumps(document))
    except PlaitError as error:
        exit_code = error.exit_code
        str(error)  # can be written
    assert exit_code in (0, 2)


# ── runs ─────────────────────────────────────────────────────────────────


def test_what_setup_captured_reaches_items_and_reduce_and_results_come_in_order(
    tmp_path: Path,
) -> None:
    loaded = load(
        tmp_path,
        """\
setup:
  - {shell: git rev-parse HEAD, capture_output: base}
map:
  input: [{path: a}, {path: b}]
  max_parallel: 1
  steps:
    - {shell: "wc ${item.path} ${base} ${item_index}/${item_total}", capture_output: size}
    - shell: "echo ${size}"
reduce:
  - shell: "echo ${map.successful} ${base} ${map.outputs}"
""",
    )
    outputs = {
        "git rev-parse HEAD": "abc\n",
        "wc a abc 0/2": "1\n",
        "wc b abc 1/2": "2\n",
        "echo 1": "one",
        "echo 2": "two",
    }
    fakes = FakeServices(on_shell=lambda command: printed(outputs.get(command, "")))
    finished(loaded, tmp_path, fakes)
    assert commands(fakes)[-1] == "echo 2 abc one two"


def test_items_come_from_a_command_and_are_written_down(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "map:\n  input: {command: ls}\n  max_parallel: 1\n  steps: [{shell: 'cat ${item}'}]\nreduce: [{shell: 'echo ${map.total}'}]\n",
    )
    fakes = FakeServices(on_shell=lambda command: printed("a b\nc\n" if command == "ls" else ""))
    finished(loaded, tmp_path, fakes)
    assert commands(fakes) == ["cat 'a b'", "cat c", "echo 2"]
    assert (tmp_path / "items.jsonl").read_text().count("\n") == 2


def test_no_items_is_no_mistake_and_reduce_runs_with_zeros(tmp_path: Path) -> None:
    flow = "map: {input: [], steps: [{shell: ls}]}\nreduce: [{shell: 'echo ${map.total} ${map.results}'}]\n"
    fakes = FakeServices()
    finished(load(tmp_path, flow), tmp_path, fakes)
    assert commands(fakes) == ["echo 0 "]


def test_setup_may_name_parts_of_its_outputs_in_one_place(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """\
setup:
  commands: [{shell: version}, {shell: report}]
  capture_outputs:
    whole: 0
    major: {command_index: 0, pattern: "v([0-9]+)"}
    score: {command_index: 1, json_path: "a.b[0]"}
    none: {command_index: 1, json_path: x, default: 7}
reduce:
  - shell: "echo ${whole} ${major} ${score} ${none}"
""",
    )
    fakes = FakeServices(
        on_shell=lambda c: printed(
            {"version": "v12.3\n", "report": '{"a": {"b": [42]}}'}.get(c, "")
        )
    )
    finished(loaded, tmp_path, fakes)
    assert commands(fakes)[-1] == "echo v12.3 12 42 7"


def test_names_of_setup_have_the_facts_of_their_step_also_if_it_failed(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """\
setup:
  steps: [{shell: fine}, {shell: bad, continue_on_error: true}]
  capture_outputs:
    all: 0
    part: {command_index: 0, json_path: exit_code}
    none: {command_index: 1, pattern: "v([0-9]+)"}
reduce:
  - shell: "echo ${all.exit_code} ${all.success} ${all.duration} ${part} ${part.stderr}"
  - shell: "echo ${none:json} ${none.exit_code} ${none.success} ${none.stderr}"
""",
    )
    ends = {
        "fine": printed('{"exit_code": "own"}', stderr="careful"),
        "bad": printed("x", exit_code=3, stderr="no"),
    }
    fakes = FakeServices(on_shell=lambda command: ends.get(command, Finished()))
    finished(loaded, tmp_path, fakes)
    assert commands(fakes)[2:] == ["echo 0 true 0.25 own careful", "echo null 3 false no"]


def test_a_handler_map_runs_its_commands_in_order_and_the_step_is_tried_again(
    tmp_path: Path,
) -> None:
    loaded = load(
        tmp_path,
        "- shell: make\n  on_failure: {shell: 'log ${error.exit_code} ${shell.stderr}', max_attempts: 2}\n",
    )
    codes = iter([2, 0, 0])
    fakes = FakeServices(
        on_shell=lambda command: Finished(
            exit_code=next(codes), stderr=b"bad" if command == "make" else b""
        )
    )
    finished(loaded, tmp_path, fakes)
    assert commands(fakes) == ["make", "log 2 bad", "make"]


def test_a_validation_completes_the_gaps_and_checks_again(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """\
- shell: build
  validate:
    shell: check
    threshold: 90
    on_incomplete: {shell: "fill ${validation.missing}", max_attempts: 3}
""",
    )
    results = iter(
        ['{"completion_percentage": 50, "missing": ["a b"]}', '{"completion_percentage": 95}']
    )
    fakes = FakeServices(
        on_shell=lambda command: printed(next(results) if command == "check" else "")
    )
    finished(loaded, tmp_path, fakes)
    assert commands(fakes) == ["build", "check", "fill 'a b'", "check"]


def test_a_block_is_run_with_the_names_that_it_is_given_and_its_captures_are_known(
    tmp_path: Path,
) -> None:
    loaded = load(
        tmp_path,
        """\
blocks:
  count: {with: [folder], steps: [{shell: "ls ${folder} | wc -l", capture_output: n}]}
steps:
  - {use: count, with: {folder: "my docs"}}
  - shell: echo ${n}
""",
    )
    fakes = FakeServices(on_shell=lambda command: printed("3\n" if "wc" in command else ""))
    finished(loaded, tmp_path, fakes)
    assert commands(fakes) == ["ls 'my docs' | wc -l", "echo 3"]


def test_a_secret_reaches_processes_and_nothing_that_is_shown(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "secrets: {KEY: TOKEN}\nsteps: [{shell: 'use ${KEY}'}]\n",
        environ={"TOKEN": "hunter2"},
    )
    assert loaded.process_env() == {"KEY": "hunter2"}
    assert loaded.secret_texts() == ["hunter2"]
    assert "hunter2" not in repr(loaded)
    fakes = FakeServices()
    finished(loaded, tmp_path, fakes)
    assert commands(fakes) == ["use '***'"]


def test_files_that_a_step_produced_have_names(tmp_path: Path) -> None:
    project, state = new_repository(tmp_path / "p", old="x"), tmp_path / "state"
    state.mkdir()
    (project / "a-spec.md").write_text("was there before")
    flow = """\
- {id: cover, shell: write, outputs: {spec: {file_pattern: "*-spec.md"}, logs: {file_pattern: "*.log"}}}
- shell: cat ${cover.spec} ${cover.logs}
"""

    def shell(command: str) -> Finished:
        if command == "write":
            for name in ("new-spec.md", "a.log", "b.log", "other"):
                (project / name).write_text("x")
        return Finished()

    fakes = GitServices(on_shell=shell)
    run = new_run(fakes, folder=str(state))
    loaded = load(project, flow)
    loaded.program.run(StepContext(run, "", loaded.scope("r1"), directory=str(project)))
    run.events.close()
    assert commands(fakes)[-1] == "cat new-spec.md a.log b.log"


@pytest.mark.parametrize("commits", [True, False])
def test_a_step_that_has_to_leave_a_commit_fails_without_one(tmp_path: Path, commits: bool) -> None:
    project, state = new_repository(tmp_path / "p", old="x"), tmp_path / "state"
    state.mkdir()

    def shell(_: str) -> Finished:
        if commits:
            git(project, "commit", "-q", "--allow-empty", "-m", "done")
        return Finished()

    loaded = load(project, "- {shell: work, commit_required: true}\n")
    run = new_run(GitServices(on_shell=shell), folder=str(state))
    turn = StepContext(run, "", loaded.scope("r1"), directory=str(project))
    if commits:
        loaded.program.run(turn)
    else:
        with pytest.raises(StepError, match="the step made no commit, but commit_required is set"):
            loaded.program.run(turn)
    run.events.close()


def test_a_dry_run_starts_nothing_to_find_the_items(tmp_path: Path) -> None:
    loaded = load(tmp_path, "map: {input: {command: ls}, steps: [{shell: 'cat ${item}'}]}\n")
    fakes = FakeServices()
    run = new_run(fakes, folder=str(tmp_path), dry_run=True)
    loaded.program.run(StepContext(run, "", loaded.scope("r1"), directory=str(tmp_path)))
    run.events.close()
    assert run.plan_log is not None
    assert [(one.kind, one.shown) for one in run.plan_log.steps] == [
        ("items", "ls"),
        ("shell", "cat ${item}"),
    ]
    assert fakes.asked == []
    assert list(tmp_path.iterdir()) == [tmp_path / "flow.yaml"]


OPEN = """
parameters: {required: [p]}
setup:
  - {shell: count, capture: n}
  - {when: "${n} == 1", shell: hidden}
  - {when: "${n.exists} && ${p}", shell: both}
  - {when: "${p} == 'x'", shell: known}
  - {when: "${p} == 'y'", shell: never}
map: {input: {command: ls}, steps: [{shell: "cat ${item} ${item.a}"}, {when: "${item.b}", shell: maybe}]}
reduce: [{shell: "echo ${map.total}"}]
"""


def test_a_dry_run_shows_what_only_a_run_can_know_with_placeholders_and_conditions(
    tmp_path: Path,
) -> None:
    loaded = load(tmp_path, OPEN, inputs={"p": "x"})
    run = new_run(FakeServices(), folder=str(tmp_path), dry_run=True)
    loaded.program.run(StepContext(run, "", loaded.scope("r1"), directory=str(tmp_path)))
    run.events.close()
    assert run.plan_log is not None
    assert [(one.path, one.shown) for one in run.plan_log.steps if not one.skipped] == [
        ("setup/0", "count"),
        ("setup/1", "if ${n} == 1: hidden"),
        ("setup/2", "if ${n.exists} && ${p}: both"),
        ("setup/3", "known"),
        ("map/items", "ls"),
        ("map/item:*/0", "cat ${item} ${item.a}"),
        ("map/item:*/1", "if ${item.b}: maybe"),
        ("reduce/0", "echo ${map.total}"),
    ]


def test_an_input_that_does_not_exist_is_never_run_as_a_command(tmp_path: Path) -> None:
    loaded = load(tmp_path, "map: {input: touch gone, steps: [{shell: ls}]}\n")
    fakes = FakeServices()
    with pytest.raises(StepError, match="there is no file 'touch gone'"):
        finished(loaded, tmp_path, fakes)
    assert fakes.asked == []


@pytest.mark.parametrize(("pin", "masked"), [
    ("12345", "wherever it occurs, even in other data"),
    ("1234",  "wherever it occurs, even in other data"),
    ("123",   "only where it stands alone, not inside words"),
])  # fmt: skip
def test_a_short_secret_is_warned_of_and_never_quoted(
    tmp_path: Path, pin: str, masked: str
) -> None:
    text = "secrets: {PIN: PIN, KEY: KEY}\nsteps: [{shell: pwd}]\n"
    (warning,) = load(tmp_path, text, environ={"PIN": pin, "KEY": "123456"}).warnings
    assert (warning.severity, warning.code) == ("warning", "short-secret")
    what = f"the secret 'PIN' has fewer than 6 characters: it is masked {masked}"
    assert warning.problem.what == what
    assert pin not in str(warning.problem)
    assert (Masker([pin]).mask(f"x{pin}x") == "x***x") == masked.startswith("wherever")


def test_a_field_that_items_lack_is_noted_once(tmp_path: Path) -> None:
    text = (
        "map:\n  input: [{a: 1}, {a: 2}, {b: 3}]\n  steps:\n"
        "    - shell: echo ${item.a} ${item.b:-} ${item.c}\n"
    )
    loaded, journal = load(tmp_path, text), MemoryJournal()
    run = new_run(FakeServices(), journal, folder=str(tmp_path))
    loaded.program.run(StepContext(run, "", loaded.scope("r1"), directory=str(tmp_path)))
    run.events.close()
    notes = [one.event.message for one in journal.events() if isinstance(one.event, Note)]
    assert sorted(note.replace(f"{tmp_path}/", "") for note in notes) == [
        "flow.yaml:4:19: '${item.a}' stays unfilled: an item has no such field",
        "flow.yaml:4:41: '${item.c}' stays unfilled: an item has no such field",
    ]


def test_the_tools_of_a_flow_have_places(tmp_path: Path) -> None:
    uses = load(
        tmp_path, "steps:\n  - tool: a/b\n  - tool: a/b\n  - agent: {prompt: x, tool: c/d}\n"
    ).tool_uses
    assert {name: span.position for name, span in uses.items()} == {"a/b": (2, 5), "c/d": (4, 24)}


def test_the_last_layer_of_variables_wins(tmp_path: Path) -> None:
    (tmp_path / "base.env").write_text("A=file\nB=file\nC=file\n")
    flow = """\
env_files: [base.env, gone.env?]
env: {B: block, C: block, N: 3}
profiles: {prod: {C: profile}}
steps: [{shell: ls, env: {D: "${C} ${N}"}}]
"""
    loaded = load(tmp_path, flow, profile="prod")
    assert loaded.process_env() == {"A": "file", "B": "block", "C": "profile", "N": "3"}
    fakes = FakeServices()
    finished(loaded, tmp_path, fakes)
    assert fakes.asked[0]["env"]["D"] == "profile 3"
