"""Flows on a real Dask cluster: they do what they do here."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from crash.cluster import ClusterScene, interrupt, is_installed
from crash.scene import wait_for
from plait.app.runs import (
    FlowResult,
    Options,
    RunObservers,
    flow_store,
    resume_flow,
    retry_flow,
    run_flow,
)
from plait.core.errors import InputError
from plait.core.values import Json
from plait.engine.events import EventRecord, Note
from plait.engine.outcome import to_record
from runs.stories import Place
from runs.test_guardian_lost import FLOW as STRUCK_FLOW
from runs.test_guardian_lost import STRUCK, WORK, live_through
from share import every

EXAMPLES = Path(__file__).parents[3] / "examples"
GRACE = 2.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


def ran(folder: Path, flow: str, backend: str, **files: str) -> tuple[FlowResult, Json]:
    """How a flow ended, and what its reduce wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"flow.yaml": flow, **files}.items():
        (folder / name).write_text(text)
    result = run_flow(str(folder / "flow.yaml"), Options(backend=backend))
    written = folder / "result.json"
    return result, json.loads(written.read_text()) if written.exists() else None


REPORT = """\
reduce: [{write_file: {path: result.json, format: json, content: "${map.results}"}}]
"""
RICH = (
    """\
name: rich
parameters: {greeting: {default: hello}}
env: {COLOUR: blue}
vars: {depth: 3}
setup:
  - {shell: 'printf "%s" one', capture_output: first}
map:
  input: {items: [{id: a, n: 1}, {id: b, n: 2}, {id: c, n: 3}, {id: 'd e', n: 4}]}
  id: ${item.id}
  max_parallel: 3
  on_item_failure: dlq
  steps:
    - {shell: 'echo ${greeting} ${item.n} ${first} $COLOUR ${depth} ${item_index} of ${item_total}', capture_output: said}
    - {shell: 'test ${item.n} -ne 2', on_failure: [{shell: 'echo handled ${error.message}'}], capture_output: tested}
    - foreach: [x, y]
      do: [{shell: 'echo ${item} ${said}'}]
      capture_output: each
    - {shell: 'exit 7', when: '${item.n} == 3'}
    - {shell: 'exit 1', continue_on_error: true}
    - {shell: 'echo last ${each}'}
"""
    + REPORT
)


def test_a_flow_gives_the_same_results_here_in_processes_of_this_host_and_on_a_cluster(
    tmp_path: Path, cluster: str
) -> None:
    results = {}
    for backend in ("local", "dask", cluster):
        result, written = ran(tmp_path / backend.replace("/", "_"), RICH, backend)
        results[backend] = (result.status, dict(result.counts), written)
    assert results["local"] == results["dask"] == results[cluster]
    assert results["local"][1]["failed"] == 1


def _maps() -> list[str]:
    """The examples with a map; the tools of an MCP server need an approval, which is tried elsewhere."""
    texts = {flow.parent.name: flow.read_text() for flow in EXAMPLES.glob("*/flow.yaml")}
    return sorted(
        name for name, text in texts.items() if "\nmap:\n" in text and name != "mcp-tools"
    )


@pytest.mark.share
@pytest.mark.parametrize("name", _maps()[:: every(2)])
def test_an_example_gives_the_same_value_here_and_on_a_cluster(name: str, tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    values = {}
    for backend in ("local", "dask"):
        folder = tmp_path / backend
        shutil.copytree(EXAMPLES / name, folder)
        options, trusting = Options(backend=backend), RunObservers(ask=lambda _: True)
        result = run_flow(str(folder / "flow.yaml"), options, observers=trusting)
        assert result.status == "done", result.failure
        values[backend] = json.dumps(result.value).replace(str(folder), "")
    assert values["local"] == values["dask"]


# ── files ────────────────────────────────────────────────────────────────


def test_what_is_shipped_is_there_and_what_is_not_is_not(tmp_path: Path, cluster: str) -> None:
    flow = (
        "map:\n  input: {items: [1]}\n  ship: ['data/*', run.sh]\n"
        "  steps: [{shell: './run.sh; cat data/a.txt; ls; test \"$PWD\" = ${workflow.dir}'}]\n"
        + REPORT
    )
    folder = tmp_path / "p"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a.txt").write_text("shipped\n")
    (folder / "other.txt").write_text("stays\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho program\n")
    (folder / "run.sh").chmod(0o755)
    _, [result] = ran(folder, flow, cluster)
    assert result["status"] == "success", result
    assert result["output"] == "program\nshipped\ndata\nflow.yaml\nrun.sh"


def test_a_flow_of_several_files_is_put_together_there(tmp_path: Path, cluster: str) -> None:
    base = "blocks: {hail: [{shell: 'echo hail ${item}'}]}\n"
    flow = "imports: [base.yaml]\nmap: {input: {items: [1, 2]}, steps: [{use: hail}]}\n" + REPORT
    _, results = ran(tmp_path / "p", flow, cluster, **{"base.yaml": base})
    assert [result["output"] for result in results] == ["hail 1", "hail 2"]


# ── secrets ──────────────────────────────────────────────────────────────


def test_secrets_are_masked_on_workers_as_well_and_other_variables_are_not_sent(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    monkeypatch.setenv("MY_OTHER", "worker-only")
    flow = (
        "secrets: {TOKEN: MY_TOKEN, OTHER: MY_OTHER}\n"
        'map: {input: {items: [1]}, steps: [{shell: \'printf "%s " "$TOKEN" ${#TOKEN} "$UNNAMED"; env | grep -c ^OTH\'}]}\n'
        + REPORT
    ).replace("${#TOKEN}", '$(printf %s "$TOKEN" | wc -c)')
    _, [result] = ran(tmp_path / "p", flow, cluster)
    assert result["output"].split() == ["***", "11", "***", "1"]


MEETS = [
    # map steps, in which no secret is named                               what a secret is
    ("- {shell: cat known, capture: conf}\n    - {shell: 'printf %s ${conf} | rev; printf %s ${conf} | wc -c'}", "sesame-open"),
    ("- {shell: cat known, capture: conf}\n    - {shell: 'echo met', when: \"${conf} == 'token=sesame-open'\"}", "sesame-open"),
    ("- {shell: cat known, capture: conf}\n    - {write_file: {path: copy, content: '${conf}'}}\n    - {shell: 'wc -c < copy'}", "sesame-open"),
    ("- {shell: 'echo {\"pin\":1234}', capture: d, capture_format: json, continue_on_error: true}\n    - {shell: 'echo then'}", "1234"),
    ("- {shell: 'printf %s \"$(printenv TOKEN)\" | wc -c'}", "sesame-open"),
]  # fmt: skip


MADE = [
    # a map step that leaves what it makes of a secret in a file
    "- {shell: 'printf %s \"$AUTH\" > out-${item}.txt', env: {AUTH: 'pre-${TOKEN | upper}'}}",
    "- {shell: 'printf %s \"$AUTH\" > out-${item}.txt', env: {AUTH: '${item}-${TOKEN | upper}'}}",
    "- {shell: 'printf %s ${TOKEN | upper} > out-${item}.txt'}",
    "- {shell: 'printf %s ${cmd:printf %s ${TOKEN} | tr a-z n-za-m} > out-${item}.txt'}",
]  # fmt: skip


@pytest.mark.parametrize("step", MADE)
def test_what_an_item_makes_of_a_secret_is_one_for_the_run(
    step: str, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open-4711")
    flow = (
        "secrets: {TOKEN: MY_TOKEN}\n"
        f"map:\n  input: {{items: [a, b]}}\n  shared: true\n  steps:\n    {step}\n"
        "reduce:\n  - {shell: 'cat out-*.txt; cat out-*.txt | wc -c', capture_output: r}\n"
        "  - write_file: {path: result.json, format: json, content: {r: '${r}'}}\n"
    )
    here, there = (
        ran(tmp_path / name, flow, backend)[1]
        for name, backend in (("here", "local"), ("there", cluster))
    )
    assert there == here
    for file in (tmp_path / "there").rglob("*"):
        clear = (b"SESAME-OPEN", b"frfnzr-bcra")
        assert (
            file.name.startswith("out-")
            or not file.is_file()
            or not any(one in file.read_bytes() for one in clear)
        )


@pytest.mark.parametrize(("steps", "secret"), MEETS)
def test_a_secret_that_an_item_meets_by_itself_is_masked_before_its_next_step_sees_it(
    steps: str, secret: str, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", secret)
    flow = f"secrets: {{TOKEN: MY_TOKEN}}\nmap:\n  input: {{items: [1]}}\n  ship: [known]\n  steps:\n    {steps}\n{REPORT}"
    here, there = (
        ran(tmp_path / name, flow, backend, known=f"token={secret}")
        for name, backend in (("here", "local"), ("there", cluster))
    )
    assert there[1] == here[1]


def test_a_secret_that_no_step_names_is_masked_in_the_reason_of_a_skipped_item(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_OTHER", "sesame-open")
    flow = (
        "secrets: {OTHER: MY_OTHER}\n"
        "map:\n  input: {items: [0, 1]}\n  ship: [known]\n  on_item_failure: skip\n"
        "  steps: [{shell: 'cat known >&2; test ${item} = 0'}]\n" + REPORT
    )
    here, there = (
        ran(tmp_path / name, flow, backend, known="sesame-open")
        for name, backend in (("here", "local"), ("there", cluster))
    )
    assert there[1] == here[1]
    assert there[1][1]["error"] == "exit code 1: ***"
    for file in (tmp_path / "there").rglob("*"):
        assert file.name == "known" or not file.is_file() or b"sesame-open" not in file.read_bytes()


LIKE_NAMES = (
    """\
name: like-names
secrets: {UNUSED: MY_SECRET}
map:
  input: {items: [{id: test-a, n: 0}, {id: test-b, n: 1}, {id: test-c, n: 3}]}
  id: ${item.id}
  on_item_failure: dlq
  ship: ['data/*']
  steps:
    - {shell: 'cat data/test.json', capture_output: test_result, capture_format: json}
    - {shell: 'echo ok ${item.n}', capture_output: said}
    - foreach: [x, y]
      do: [{shell: 'echo ${item} ${said.exit_code}'}]
      capture_output: each
    - {shell: 'exit 7', continue_on_error: true, capture_output: seven}
    - {shell: 'echo bad test >&2; exit 3', when: '${item.n} == 3'}
    - {shell: 'echo last ${seven.exit_code} ${said.success}'}
"""
    + REPORT
)
SECRETS = [
    # keys
    "output", "captures", "test", "test_result", "test_key", "said", "exit_code", "stderr", "facts", "duration",
    # paths, kinds
    "map", "item", "test-a", "data/test.json", "shell", "steps", "like-names", "plait",
    # statuses, how a process ended
    "success", "failed", "done", "exit", "code", "exit code 3",
    # numbers
    "0", "1", "3", "7", "0.1", "3.1",
]  # fmt: skip


@pytest.mark.share
@pytest.mark.parametrize("uses", ["", "    - {shell: 'echo $UNUSED'}\n"], ids=["unnamed", "named"])
def test_a_secret_that_is_written_like_a_name_changes_nothing(
    uses: str, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = LIKE_NAMES.replace("reduce:", f"{uses}reduce:")
    others = []
    # Named ones are masked by the same code: some of them will do.
    some = SECRETS[:: 4 * every(2)] if uses else SECRETS[:: every(5)]
    for number, secret in enumerate(some):
        monkeypatch.setenv("MY_SECRET", secret)
        here, there = (
            items_of(tmp_path / f"{number}-{name}", flow, backend)
            for name, backend in (("here", "local"), ("there", cluster))
        )
        assert len(here) == 3
        others += [
            (secret, one, other) for one, other in zip(here, there, strict=True) if one != other
        ]
    assert others == []


def items_of(folder: Path, flow: str, backend: str) -> list[Json]:
    """How each item ended, as it is recorded, which reduce is given: what reduce writes is masked once more."""
    (folder / "data").mkdir(parents=True)
    (folder / "data/test.json").write_text('{"test_key": "a test", "n": [{"output": "x"}]}')
    (folder / "flow.yaml").write_text(flow)
    result = run_flow(str(folder / "flow.yaml"), Options(backend=backend))
    assert result.status == "done", result.failure
    with flow_store(str(folder)).open(result.run, write=False) as opened:
        recorded = [
            one for one in opened.journal.steps_in("map") if one.path.startswith("map/item:")
        ]
    return [[one.path, timeless(to_record(one.outcome))] for one in recorded]


def timeless(value: Json) -> Json:
    match value:
        case dict():
            return {name: timeless(one) for name, one in value.items() if name != "duration"}
        case list():
            return [timeless(one) for one in value]
    return value


# ── what fails ───────────────────────────────────────────────────────────


def test_a_failed_item_is_retried_from_the_step_that_failed(tmp_path: Path, cluster: str) -> None:
    folder = tmp_path / "p"
    flow = (
        "map:\n  shared: true\n  input: {items: [1]}\n"
        "  steps: [{shell: 'echo begun >> begun'}, {shell: test -e there}]\n"
    )
    result, _ = ran(folder, flow, cluster)
    assert result.counts["failed"] == 1
    (folder / "there").touch()
    again = retry_flow(result.run, project=str(folder))
    assert again.counts["failed"] == 0
    assert (folder / "begun").read_text() == "begun\n"


def test_a_name_that_no_item_has_is_noted_by_each_worker_once(tmp_path: Path, cluster: str) -> None:
    flow = (
        "map: {input: {items: [1, 2, 3, 4, 5, 6, 7, 8]}, steps: [{shell: \"echo '${item.gone}'\"}]}"
    )
    notes: list[str] = []

    def hear(reported: EventRecord) -> None:
        if isinstance(reported.event, Note):
            notes.append(reported.event.message)

    (tmp_path / "flow.yaml").write_text(flow)
    run_flow(str(tmp_path / "flow.yaml"), Options(backend=cluster), observers=RunObservers([hear]))
    assert 1 <= sum("stays unfilled" in note for note in notes) <= 2


def test_a_cluster_that_is_not_there_is_reported_soon(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    began = time.monotonic()
    flow = "map: {input: {items: [1]}, steps: [{shell: 'true'}]}"
    with pytest.raises(InputError) as raised:
        ran(tmp_path / "p", flow, "dask://127.0.0.1:9")
    assert time.monotonic() - began < 10
    first, fix = str(raised.value).splitlines()
    assert first.startswith("there is no Dask cluster at dask://127.0.0.1:9: ")
    assert (
        fix
        == "fix: look whether its scheduler runs, and can be reached from this host; or run elsewhere: --backend"
    )


@pytest.mark.parametrize("again", ["resume", "retry"])
def test_a_run_whose_cluster_is_gone_goes_on_elsewhere(tmp_path: Path, again: str) -> None:
    flow = "map: {input: [a, b], error_policy: {on_item_failure: stop}, steps: [{shell: 'test -e there'}]}"
    project = tmp_path / "p"
    run = ran(project, flow, "local")[0].run
    with flow_store(str(project)).open(run, write=True) as opened:
        opened.update_facts(
            options={**dict(opened.facts["options"]), "backend": "dask://127.0.0.1:9"}
        )
    go_on: Any = {"resume": resume_flow, "retry": retry_flow}[again]
    if is_installed():
        with pytest.raises(InputError, match="there is no Dask cluster"):
            go_on(run, project=str(project))
    assert go_on(run, project=str(project), backend="local").status == "failed"
    (project / "there").touch()
    assert go_on(run, project=str(project)).status == "done"


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    with pytest.raises(
        InputError, match=r"at dask://no\.invalid:8786: there is no host 'no\.invalid'"
    ):
        ran(tmp_path / "p", "map: {input: [1], steps: [{shell: 'true'}]}", "dask://no.invalid:8786")


def test_an_address_without_a_port_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    with pytest.raises(InputError) as raised:
        ran(
            tmp_path / "p",
            "map: {input: {items: [1]}, steps: [{shell: 'true'}]}",
            "dask://127.0.0.1",
        )
    assert (
        raised.value.fix
        == "write dask://HOST:PORT; a scheduler of Dask listens at port 8786 by default"
    )


def test_a_folder_that_is_not_shared_is_reported(tmp_path: Path, cluster: str) -> None:
    folder = tmp_path / "p"
    flow = "map: {shared: true, input: {command: 'rm flow.yaml; echo 1'}, steps: [{shell: 'true'}]}"
    result, _ = ran(folder, flow, cluster)
    assert result.failure is not None
    assert "flow.yaml" in result.failure.message


# ── stopping ─────────────────────────────────────────────────────────────


def test_an_interrupted_run_leaves_no_process_on_the_workers_and_goes_on_when_resumed(
    tmp_path: Path,
) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    scene = ClusterScene(tmp_path / "s", items=4, parallel=2)
    with scene.cluster():
        hold = scene.project / "hold-work"
        hold.touch()
        with scene.engine() as engine:
            scene.expect_lines(engine, 4)
            interrupt(engine)
            assert engine.ended().code == 130
        assert wait_for(lambda: not scene.processes(), GRACE + 1)
        hold.unlink()
        scene.note_death()
        scene.expect_code(scene.to_the_end(), 0)
        assert scene.violations((scene.project / "result.json").read_bytes()) == []


def test_the_death_of_the_engine_ends_what_it_had_on_the_workers(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("distributed is not installed")
    scene = ClusterScene(tmp_path / "s", items=4, parallel=2)
    with scene.cluster():
        (scene.project / "hold-work").touch()
        with scene.engine() as engine:
            scene.expect_lines(engine, 4)
            engine.kill()
        assert wait_for(lambda: not scene.processes(), GRACE + 1)


@pytest.mark.parametrize(("how", "message"), STRUCK)
def test_the_guardian_of_a_worker_is_killed_or_stopped(
    tmp_path: Path,
    cluster: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
    message: str,
) -> None:
    place = Place(tmp_path / "p")
    # Only `b` is held: whatever another guardian runs comes to its end.
    place.write("work.sh", WORK.replace("while [ $1 = KILL ]", "while [ $1$2 = KILLb ]"))
    monkeypatch.chdir(place.root)
    flow = STRUCK_FLOW.format(f"shell: exec sh work.sh {how} ${{item}}")
    place.write("flow.yaml", flow.replace("map:\n", "map:\n  shared: true\n"))
    reported = live_through(place, capsys, how, "--backend", cluster)
    worker, _, what = reported.partition(": ")
    assert (worker.split("tcp://")[0], what) == ("worker ", message)


def test_an_item_leaves_no_thread_local_behind(tmp_path: Path) -> None:
    """To free one takes a lock that the profiler of a worker holds while garbage is collected: it would hang."""
    import gc
    import threading

    from plait.app.services import LocalTools
    from plait.engine.stop import StopSignal

    fakes = LocalTools(str(tmp_path), str(tmp_path), StopSignal(), env={})
    assert not any(isinstance(one, threading.local) for one in gc.get_referents(fakes, vars(fakes)))
