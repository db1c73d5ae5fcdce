"""`plait events`: a run of the past, of another process, of one that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
LIMIT = 60
"""Seconds that no wait in a test may take."""
QUICK = "name: quick\nsteps: [{shell: echo one}, {shell: echo two}]\n"
WAITS = "name: waits\nsteps: [{shell: cat gate}, {shell: echo after}]\n"
"""It runs until somebody writes into the FIFO `gate`."""


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = home.parent / "project"
    project.mkdir()
    (project / "quick.yaml").write_text(QUICK)
    (project / "waits.yaml").write_text(WAITS)
    os.mkfifo(project / "gate")
    monkeypatch.chdir(project)
    return project


def events(capsys: Capsys, *arguments: str) -> list[dict[str, Any]]:
    assert main(["events", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@contextmanager
def plait(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "plait", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_event(process: subprocess.Popen[str], **fields: str) -> dict[str, Any]:
    """Read until an event with these fields comes."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if all(event.get(name) == value for name, value in fields.items()):
            return event
    raise AssertionError(f"no event {fields} came")


# ── a run of the past ────────────────────────────────────────────────────


def test_it_prints_the_events_of_a_run_and_its_result(project: Path, capsys: Capsys) -> None:
    assert main(["run", "quick.yaml", "--json"]) == 0
    live = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = events(capsys)
    # The start of a step that ends at once is not recorded.
    assert [one["event"] for one in found if one["event"] != "step_started"] == [
        "run_started",
        *["step_finished"] * 3,
        "run_ended",
        "result",
    ]
    assert found[-1] == live
    assert (project / "quick.yaml").samefile(found[0]["file"])


def test_a_reader_continues_after_the_last_number_that_it_has_seen(
    project: Path, capsys: Capsys
) -> None:
    assert project.exists()
    main(["run", "quick.yaml", "-q"])
    capsys.readouterr()
    everything = events(capsys)
    for seen in range(len(everything)):
        assert events(capsys, "--after", str(seen)) == everything[seen:]
        assert events(capsys, "--after", str(seen), "-f") == everything[seen:]
    assert events(capsys, "--after", "99999") == everything[-1:]


RESULTS = [
    # flow                                                    exit code and status
    ("steps: [{shell: exit 3}]",                              1, "failed"),
    ("map: {input: [1, 2], steps: [{shell: 'test ${item} = 1'}]}", 1, "done"),
    ("map: {input: nothing.json, steps: [{shell: echo}]}",    2, "failed"),
    ("steps: [{tool: team/none}]",                            2, None),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "code", "status"), RESULTS)
def test_the_result_is_what_the_run_itself_printed(
    project: Path, capsys: Capsys, flow: str, code: int, status: str | None
) -> None:
    (project / "flow.yaml").write_text(flow)
    assert main(["run", "flow.yaml", "--json"]) == code
    live = json.loads(capsys.readouterr().out.splitlines()[-1])
    if status is None:  # it never started, so there is nothing to read
        assert live["event"] == "error"
        return
    assert events(capsys)[-1] == live
    assert (live["exit_code"], live["status"]) == (code, status)


WRONG = [
    (["--after", "x"], "--after needs the number of an event\nfix: for example --after 120\n"),
    (["--after", "-1"], "--after needs the number of an event\nfix: for example --after 120\n"),
    (["--after", "9" * 30], "--after needs the number of an event\nfix: for example --after 120\n"),
    (["zzzz"], "there is no run 'zzzz'\nfix: plait runs lists those that there are\n"),
    (["\udcff"], "there is no run '\ufffd'\nfix: plait runs lists those that there are\n"),
]


@pytest.mark.parametrize(("arguments", "error"), WRONG)
def test_wrong_arguments_are_reported(
    project: Path, capsys: Capsys, arguments: list[str], error: str
) -> None:
    assert project.exists()
    main(["run", "quick.yaml", "-q"])
    capsys.readouterr()
    assert main(["events", *arguments]) == 2
    assert capsys.readouterr() == ("", error)


# ── a run of another process ─────────────────────────────────────────────


def test_it_follows_a_run_of_another_process_until_the_end(project: Path) -> None:
    with plait("run", "waits.yaml", "--json") as run:
        started = next_event(run, event="step_started", path="steps/0")
        with plait("events", "-f") as follower:
            assert next_event(follower, event="step_started", path="steps/0")["kind"] == "shell"
            assert started["title"] == "cat gate"
            (project / "gate").write_text("open\n")
            assert next_event(follower, event="run_ended")["status"] == "done"
            assert next_event(follower, event="result")["exit_code"] == 0
            assert follower.wait(LIMIT) == 0


def test_without_follow_a_run_that_goes_on_has_no_result(project: Path, capsys: Capsys) -> None:
    with plait("run", "waits.yaml", "--json") as run:
        next_event(run, event="step_started", path="steps/0")
        assert "result" not in [one["event"] for one in events(capsys)]
        (project / "gate").write_text("open\n")
        assert run.communicate(timeout=LIMIT)[1] == ""
    assert events(capsys)[-1]["status"] == "done"


def test_the_log_that_follows_a_run_says_that_its_process_has_died(project: Path) -> None:
    assert project.exists()
    with plait("run", "waits.yaml", "--json") as run:
        name = next_event(run, event="run_started")["run"]
        next_event(run, event="step_started", path="steps/0")
        with plait("logs", name, "-f") as follower:
            run.send_signal(signal.SIGKILL)
            _, errors = follower.communicate(timeout=LIMIT)
    assert errors == f"the process of this run died; plait resume {name} continues it\n"
    assert follower.returncode == 0


def test_it_says_that_the_process_of_a_run_has_died(project: Path, capsys: Capsys) -> None:
    assert project.exists()
    with plait("run", "waits.yaml", "--json") as run, plait("runs"):
        name = next_event(run, event="run_started")["run"]
        next_event(run, event="step_started", path="steps/0")
        with plait("events", name, "-f") as follower:
            next_event(follower, event="step_started", path="steps/0")
            run.send_signal(signal.SIGKILL)
            last = next_event(follower, event="result")
            assert follower.wait(LIMIT) == 0
    assert last["status"] == "interrupted"
    assert last["failure"]["kind"] == "stopped"
    assert last["failure"]["message"] == (
        f"the process of this run died; plait resume {name} continues it"
    )
    assert last["counts"] == {}
    assert events(capsys)[-1] == last


def test_the_items_of_a_run_whose_process_has_died_are_counted_as_usual(
    project: Path, capsys: Capsys
) -> None:
    flow = "map: {input: [a, b, c], steps: [{shell: 'test ${item} != a'}, {shell: 'test ${item} = b || cat gate'}]}\n"
    (project / "flow.yaml").write_text(flow)
    with plait("run", "flow.yaml", "--json") as run:
        next_event(run, event="step_finished", kind="item", title="b")
        run.send_signal(signal.SIGKILL)
        run.wait(LIMIT)
    assert events(capsys)[-1]["counts"] == {
        "total": 3, "successful": 1, "failed": 1, "skipped": 0, "success_rate": 33.33,
    }  # fmt: skip


def test_ctrl_c_ends_it_and_leaves_the_run_alone(project: Path) -> None:
    with plait("run", "waits.yaml", "--json") as run:
        next_event(run, event="step_started", path="steps/0")
        with plait("events", "-f") as follower:
            next_event(follower, event="step_started", path="steps/0")
            follower.send_signal(signal.SIGINT)
            out, err = follower.communicate(timeout=LIMIT)
            assert (follower.returncode, err, "result" in out) == (130, "", False)
        (project / "gate").write_text("open\n")
        assert next_event(run, event="result")["status"] == "done"


@pytest.mark.parametrize("command", [["events", "-f"], ["logs", "-f"]])
def test_it_ends_when_its_reader_leaves_although_nothing_happens(
    project: Path, command: list[str]
) -> None:
    with plait("run", "waits.yaml", "--json") as run:
        next_event(run, event="step_started", path="steps/0")
        with plait(*command) as follower:
            assert follower.stdout is not None
            follower.stdout.close()
            assert follower.wait(LIMIT) == 141
        (project / "gate").write_text("open\n")
        assert next_event(run, event="result")["status"] == "done"


def test_a_run_that_is_removed_while_it_is_followed_ends(project: Path) -> None:
    with plait("run", "waits.yaml", "--json") as run:
        name = next_event(run, event="run_started")["run"]
        next_event(run, event="step_started", path="steps/0")
        with plait("events", "-f") as follower:
            next_event(follower, event="step_started", path="steps/0")
            shutil.rmtree(project / ".ai/state/runs" / name)
            out, err = follower.communicate(timeout=LIMIT)
    assert (
        err
        == f"run {name} was removed while it was read\nfix: plait runs lists those that there are\n"
    )
    assert '"event":"result"' not in out
    assert follower.returncode == 1
