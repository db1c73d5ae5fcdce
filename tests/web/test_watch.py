"""A run that is watched: the same facts as its report, with attempts and times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.adapters.store.reader import Reader
from plait.app.runs import flow_store, resume_flow, retry_flow
from plait.app.stop_run import stop_run
from plait.core.errors import InputError
from plait.engine.events import RETRY_REASON, EventRecord, StepInvalidated
from plait.views.report import read_report
from plait.views.run_watch import RunWatch
from plait.views.step_detail import read_step
from plait.web.export import export_run
from web.browse import Browser, run_text

FLOW = """
setup:
  - id: flaky
    shell: "test -e done || { touch done; echo first; exit 3; }"
    retry: {attempts: 2, initial_delay: 0s}
map:
  input: [one, two, three]
  steps:
    - shell: test ${item} != two
"""


def test_a_watched_run_has_the_counts_of_its_report(tmp_path: Path) -> None:
    result = run_text(tmp_path / "p", FLOW)
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, result.run).watch
    report = read_report(result.run, watch.journal, is_running=lambda: False, short=False)
    assert watch.progress.items == report.progress.items == (3, 3)
    assert watch.status == report.status == "done"
    table = watch.items("map")
    assert [table.count(state) for state in ("done", "failed", "waiting")] == [2, 1, 0]
    assert [row.title for row in table.window(0, 9, state="failed").rows] == ["two"]


def test_a_retried_step_has_its_attempts_and_their_output(tmp_path: Path) -> None:
    result = run_text(tmp_path / "p", FLOW)
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, result.run).watch
    node = watch.tree.get("setup/flaky")
    assert node is not None
    assert [(one.number, one.state, one.cause) for one in node.attempts] == [
        (1, "failed", "exit 3"),
        (2, "done", ""),
    ]
    detail = read_step(watch.journal.reader.events_at(["setup/flaky"]), "setup/flaky")
    assert detail is not None
    assert detail.exit_code == 0
    page = browser.run(result.run, step="setup/flaky").text
    assert "first" in page
    assert "Attempts" in page


RETRIED = """
map:
  input: [one, two]
  steps:
    - shell: test ${item} != two || { test -e seen || { touch seen; exit 3; } }
"""


def test_the_timeline_has_all_attempts_of_an_item_that_a_person_retried(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", RETRIED).run
    retry_flow(run, project=str(tmp_path / "p"))
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, run).watch
    lanes = {lane.title: lane for lane in watch.lanes(now=0.0)}
    assert [(one.state, one.label) for one in lanes["two"].spans] == [
        ("failed", "attempt 1"),
        ("done", "attempt 2"),
    ]
    first, second = lanes["two"].spans
    assert first.end <= watch.clock(0.0).starts[1] <= second.start
    assert [(row.title, row.attempts) for row in watch.items("map").window(0, 9).rows] == [
        ("one", 1),
        ("two", 2),
    ]
    assert " ×2" in browser.run(run, view="items").text
    page = browser.run(run, step=lanes["two"].path).text
    assert [number for number in ("<td>1</td>", "<td>2</td>") if number in page] == [
        "<td>1</td>",
        "<td>2</td>",
    ]


def test_what_no_process_works_on_cannot_be_stopped(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    with pytest.raises(InputError) as caught:
        stop_run(run, str(tmp_path / "p"))
    assert caught.value.what == f"no process works on run {run}"
    assert caught.value.fix == f"plait show {run}"


KILLED = """
steps:
  - id: quick
    shell: echo quick
  - id: long
    shell: echo begun; until test -e go; do sleep 0.05; done
"""


def shown_watch(project: Path, run: str) -> RunWatch:
    browser = Browser(project)
    return browser.projects.shown(browser.key, run).watch


def kill_run(project: Path, flow: str, printed: str) -> str:
    """A run whose process was killed when a step had printed this."""
    project.mkdir()
    (project / "flow.yaml").write_text(flow)
    words = [sys.executable, "-m", "plait", "run", "flow.yaml", "--json"]
    with subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run = str(json.loads(process.stdout.readline())["run"])
        watch = shown_watch(project, run)
        until = time.monotonic() + 60
        while not any(printed in step.streams.get("stdout", "") for step in watch.live.values()):
            assert time.monotonic() < until
            watch.update()
        process.kill()
    return run


@pytest.fixture
def killed(tmp_path: Path) -> str:
    """A run whose process was killed in the middle of a step."""
    return kill_run(tmp_path / "p", KILLED, "begun")


def test_nothing_runs_after_the_process_of_a_run_was_killed(tmp_path: Path, killed: str) -> None:
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, killed).watch
    assert watch.status == "interrupted"
    assert watch.clock(0.0).total == watch.progress.duration(watch.progress.last_at)
    lanes = {lane.path: lane for lane in watch.lanes(now=time.time())}
    assert {path: lane.state for path, lane in lanes.items()} == {
        "steps": "interrupted",
        "steps/quick": "done",
        "steps/long": "interrupted",
    }
    assert [one.state for one in lanes["steps/long"].spans] == ["interrupted"]
    for query in ({}, {"view": "timeline"}, {"view": "graph"}, {"step": "steps/long"}):
        page = browser.run(killed, **query).text
        main = page[page.index("<main") :]
        assert "data-since" not in main, query  # no clock goes on
        assert ("s-running" in main) is (query == {"view": "timeline"}), query  # its legend
    assert "begun" in main
    overview = browser.run(killed).text
    assert "The process of this run has ended. What is done stays recorded." in overview
    assert "it ended without a result" not in overview
    exported = export_run(watch, browser.projects.shown(browser.key, killed).facts, 0.0)
    assert "data-since" not in exported


def test_a_step_that_was_killed_has_the_time_that_it_ran(tmp_path: Path, killed: str) -> None:
    project = tmp_path / "p"
    (project / "go").touch()
    resume_flow(killed, project=str(project))
    browser = Browser(project)
    watch = browser.projects.shown(browser.key, killed).watch
    detail = watch.read_step("steps/long")
    assert detail is not None
    shown = watch.tree.get("steps/long")
    assert shown is not None
    of_step, of_run = (
        [(one.number, one.state, one.began, one.ended) for one in node.attempts]
        for node in (detail.node, shown)
    )
    assert of_step == of_run
    assert [one[:2] for one in of_step] == [(1, "interrupted"), (2, "done")]
    assert of_step[0][3] == watch.tree.run_attempts[0][1]


ITEMS = """
map:
  input: [one, two, three]
  max_parallel: 1
  steps:
    - shell: echo begun ${item}; test ${item} != three || until test -e go; do sleep 0.05; done
"""


def test_the_timeline_of_a_long_journal_has_the_times_of_its_run_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an outline of it is read, without the items that succeeded."""
    monkeypatch.setattr(Reader, "is_long", lambda _: True)
    project = tmp_path / "p"
    run = kill_run(project, ITEMS, "begun three")
    for is_resumed in (False, True):
        if is_resumed:
            (project / "go").touch()
            resume_flow(run, project=str(project))
        watch = shown_watch(project, run)
        total = watch.clock(0.0).total
        assert total == pytest.approx(watch.progress.duration(watch.progress.last_at), abs=1e-6)
        (first, *_) = watch.tree.run_attempts
        assert first[1] >= watch.journal.reader.run_attempts()[0][1]


def begin_run(project: Path, flow: str) -> tuple[RunWatch, subprocess.Popen[str]]:
    (project / "flow.yaml").write_text(flow)
    words = [sys.executable, "-m", "plait", "run", "flow.yaml", "--json"]
    process = subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return shown_watch(project, str(json.loads(process.stdout.readline())["run"])), process


def wait_for_items(watch: RunWatch, *running: str) -> None:
    until = time.monotonic() + 60
    while [row.title for row in watch.items("map").running()] != [*running]:
        assert time.monotonic() < until
        watch.update()


def test_items_that_were_seen_running_have_the_attempts_that_they_have_anyway(
    tmp_path: Path,
) -> None:
    watch, process = begin_run(tmp_path, ITEMS)
    with process:
        wait_for_items(watch, "three")
        process.kill()
        process.wait()
        watch.update()
        assert [row.title for row in watch.items("map").running()] == []
        words = [sys.executable, "-m", "plait", "resume", watch.run]
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) as resumed:
            wait_for_items(watch, "three")
            (tmp_path / "go").touch()
            assert resumed.wait() == 0
    watch.update()
    for seen in (watch, shown_watch(tmp_path, watch.run)):
        rows = [row for row, _ in seen.items("map").spans()]
        assert [(row.state, row.attempts) for row in rows] == [
            ("done", 1), ("done", 1), ("done", 2)
        ]  # fmt: skip


def test_a_retry_that_has_recorded_what_it_repeats_is_running(tmp_path: Path) -> None:
    """Its start is recorded a moment later."""
    run = run_text(tmp_path, "map: {input: [a, b], steps: [{shell: 'test ${item} = a'}]}").run
    watch = shown_watch(tmp_path, run)
    (failed,) = watch.items("map").window(0, 9, state="failed").rows
    states: list[str] = [watch.status]
    with flow_store(str(tmp_path)).open(run, write=True) as opened:
        opened.journal.append(StepInvalidated(failed.path, RETRY_REASON, below=False))
        opened.journal.sync()
        watch.update()
        states.append(watch.status)
    watch.update()
    assert [*states, watch.status] == ["done", "running", "done"]


NESTED = """
steps:
  - id: twice
    foreach: seq 60
    do:
      - shell: test ${item} != 70
  - id: few
    foreach: [a, b]
    do:
      - shell: echo ${item}
"""


def test_a_large_map_inside_a_step_is_one_line_of_the_timeline(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", NESTED).run
    watch = shown_watch(tmp_path / "p", run)
    lanes = list(watch.lanes(now=0.0))
    (large,) = (lane for lane in lanes if lane.path == "steps/twice/each")
    assert max(large.load) == 1
    below = [lane.path for lane in lanes if lane.path.startswith("steps/twice/each/")]
    assert below == ["steps/twice/each/items"]
    assert {"a", "b"} <= {lane.title for lane in lanes}


def test_a_timeline_says_that_it_does_not_draw_all_steps(tmp_path: Path) -> None:
    for count, is_whole in ((4, True), (320, False)):
        project = tmp_path / str(count)
        run = run_text(project, "steps:\n" + "  - shell: 'true'\n" * count).run
        page = Browser(project).run(run, view="timeline").text
        assert ("the steps after these are not drawn" not in page) is is_whole


def test_outputs_of_a_step_that_a_person_repeated_have_the_numbers_of_their_attempts(
    tmp_path: Path,
) -> None:
    shell = "echo from ${item}; [ ${item} != two ] || [ -e go ]"
    flow = f"map:\n  input: [one, two]\n  steps:\n    - name: test\n      shell: {shell}\n"
    run = run_text(tmp_path / "p", flow).run
    (tmp_path / "p" / "go").touch()
    retry_flow(run, project=str(tmp_path / "p"))
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, run).watch
    paths = {row.title: row.path for row in watch.items("map").window(0, 9).rows}
    for title, attempts in (("one", [1]), ("two", [1, 2])):
        detail = watch.read_step(paths[title])
        assert detail is not None
        assert [one.attempt for one in detail.entries] == attempts
        page = browser.run(run, step=f"{paths[title]}/0").text
        assert [" attempt 1" in page, " attempt 2" in page] == [len(attempts) > 1] * 2


WAITING = """
map:
  input: [one]
  steps:
    - name: flaky
      shell: echo try >> tries; [ $(wc -l < tries) -gt 1 ]
      retry: {attempts: 2, initial_delay: 100ms}
    - name: "<b>next"
      shell: echo next
"""


def test_the_page_of_an_item_has_the_times_of_the_steps_in_it(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", WAITING).run
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, run).watch
    (row,) = watch.items("map").window(0, 9).rows
    detail = watch.read_step(row.path)
    assert detail is not None
    lanes = list(watch.lanes_inside(detail.node, now=0.0))
    assert [(lane.title, [one.state for one in lane.spans]) for lane in lanes] == [
        ("one", ["done"]),
        ("flaky", ["failed", "retrying", "done"]),
        ("<b>next", ["done"]),
    ]
    page = browser.run(run, step=row.path).text
    assert 'id="inside"' in page
    assert "waits to retry from" in page
    assert "&lt;b&gt;next" in page
    assert "\u2026 and" not in page


def test_the_line_of_a_map_that_failed_is_not_that_of_one_that_succeeded(tmp_path: Path) -> None:
    for name, command, state in (("p", "exit 1", "failed"), ("q", "exit 0", "done")):
        flow = f"map: {{input: [a, b], steps: [{{shell: {command}}}]}}\n"
        run = run_text(tmp_path / name, flow).run
        lane = next(iter(shown_watch(tmp_path / name, run).lanes(now=0.0)))
        assert (lane.path, [one.state for one in lane.spans]) == ("map", [state])


def test_the_timeline_explains_the_load_of_a_large_map(tmp_path: Path) -> None:
    words = "how many items ran at the same time"
    for count, is_shown in ((3, False), (50, True)):
        project = tmp_path / str(count)
        flow = f"map:\n  input: {list(range(count))}\n  steps:\n    - shell: exit 1\n      when: 'false'\n"
        run = run_text(project, flow).run
        assert (words in Browser(project).run(run, view="timeline").text) is is_shown


def test_a_wait_does_not_hide_the_short_attempt_before_it(tmp_path: Path) -> None:
    """An attempt has a least width; what is drawn later lies on top."""
    run = run_text(tmp_path / "p", WAITING).run
    watch = shown_watch(tmp_path / "p", run)
    (row,) = watch.items("map").window(0, 9).rows
    page = Browser(tmp_path / "p").run(run, step=row.path).text
    flaky = page.partition(">flaky</bdi></a></th>")[2].partition("</svg>")[0]
    drawn = [word for word in ("f-retrying", "f-failed", "f-done") if word in flaky]
    assert sorted(drawn, key=flaky.index) == ["f-retrying", "f-failed", "f-done"]


LARGE = """
setup:
  - id: large
    foreach: {command: seq 1 1100}
    do:
      - shell: exit 1
        when: "false"
  - id: last
    shell: echo last
map:
  input: [a]
  steps:
    - shell: echo ${item}
"""


def test_a_step_with_a_large_map_inside_is_read_without_its_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 100,000 items took 15 seconds, for each update; they have a list of their own."""
    run = run_text(tmp_path / "p", LARGE).run
    monkeypatch.setattr(Reader, "is_long", lambda _: True)
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, run).watch
    read = list[EventRecord]()
    events_at = Reader.events_at

    def counted(reader: Reader, paths: list[str]) -> list[EventRecord]:
        found = list(events_at(reader, paths))
        read.extend(found)
        return found

    monkeypatch.setattr(Reader, "events_at", counted)
    detail = watch.read_step("setup")
    assert detail is not None
    assert [node.title for _, node in detail.node.walk()] == [
        "setup", "large", "foreach", "the items", "last",
    ]  # fmt: skip
    assert [one.title for one in detail.entries] == ["large", "last"]
    assert len(read) < 40
    for step in ("map", "setup/large/each"):
        page = browser.run(run, step=step).text
        assert 'id="item-list"' in page
        assert "Steps inside" not in page
    assert len(read) < 40
