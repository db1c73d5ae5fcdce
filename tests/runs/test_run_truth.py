"""What a run says of itself: finished only if it is, failed if nothing succeeded, time that it worked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from plait.adapters.store import Runs
from plait.adapters.store.open_run import make_summary
from plait.engine.events import Note, RunEnded, RunStarted, StepInvalidated
from plait.views.progress import replay_events
from plait.views.report import read_report, report_json
from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


ITEMS = "map: {input: [1, 2, 3], steps: [{shell: 'test ${item} -gt LEAST'}]}\nreduce: [{shell: echo over}]\n"


def result(place: Place, *command: str) -> dict[str, object]:
    last: dict[str, object] = json.loads(place.plait(*command, "--json").stdout.splitlines()[-1])
    return last


ENDS = [
    # failed  status    exit  the line at the end, without its time   in the list of runs
    (0, "done", 0, "✓ finished", "finished"),
    (1, "done", 1, "! finished, 1 of 3 items failed", "finished, 1 failed"),
    (3, "failed", 1, "✗ failed", "failed"),
]


@pytest.mark.parametrize(("failed", "status", "code", "line", "listed"), ENDS)
def test_a_run_says_how_many_of_its_items_failed(
    place: Place, failed: int, status: str, code: int, line: str, listed: str
) -> None:
    place.write("flow.yaml", ITEMS.replace("LEAST", str(failed)))
    ran = place.plait("run", "flow.yaml")
    end = next(line for line in ran.stdout.splitlines() if line.startswith(("✓ fi", "! ", "✗ fa")))
    sign, word, _, _, unit, *words = end.partition("   ")[0].split()
    assert unit.rstrip(",") == "s"
    comma = "," if words else ""
    assert f"{sign} {word}{comma} {' '.join(words)}".strip() == line
    assert ran.returncode == code
    assert "over" in ran.stdout  # the phases after the map ran
    shown = place.plait("show").stdout.splitlines()[0]
    assert shown.split("  ")[2] == line.partition(" ")[2]
    assert place.plait("runs").stdout.splitlines()[1].split("   ")[1] == listed
    last = result(place, "run", "flow.yaml")
    assert (last["status"], last["exit_code"]) == (status, code)


def test_a_run_whose_items_all_failed_is_retried_and_not_resumed(place: Place) -> None:
    place.write("flow.yaml", ITEMS.replace("LEAST", "9"))
    ran = place.plait("run", "flow.yaml").stdout.splitlines()
    assert "  all 3 items failed" in ran
    assert [line.split()[0] for line in ran[-2:]] == ["look", "retry"]
    failure = result(place, "run", "flow.yaml")["failure"]
    assert isinstance(failure, dict)
    assert (failure["message"], failure["kind"]) == ("all 3 items failed", "all_failed")
    run = str(json.loads(place.plait("show", "--json").stdout)["id"])
    before = place.plait("runs", "--json").stdout
    message = (
        f"run {run} has failed: nothing is left to resume\n"
        f"3 items failed: 1, 2, 3\nretry: plait retry {run} --failed\n"
    )
    for arguments in (["resume"], ["resume", run]):
        resumed = place.plait(*arguments)
        assert (resumed.stdout, resumed.stderr, resumed.returncode) == (message, "", 1)
    assert place.plait("runs", "--json").stdout == before  # left alone
    place.write("flow.yaml", ITEMS.replace("LEAST", "0"))
    assert "✓ finished" in place.plait("retry", "--failed").stdout


def test_time_between_run_attempts_does_not_count(tmp_path: Path) -> None:
    at = [100.0]
    runs = Runs(str(tmp_path), now=lambda: at[0])
    started = RunStarted(
        "x", "f", "flow.yaml", str(tmp_path), resumed=False, phases=(("steps", 1),)
    )
    with runs.create({"file": "flow.yaml", "flow": "f", "project": str(tmp_path)}) as opened:
        for now, event in (
            (100.0, started),
            (104.0, Note("", "the last record before a kill")),
            (400.0, StepInvalidated("steps/0", "retry", below=True)),
            (400.5, started),
            (402.0, RunEnded("interrupted")),
            (900.0, started),
            (900.5, RunEnded("done")),
        ):
            at[0] = now
            opened.journal.append(event)
        progress = replay_events(opened.journal.events())
        seconds, last_at = opened.journal.reader.work_time()
        attempts = opened.journal.reader.run_attempts()
    assert (seconds, last_at) == (6.0, 900.5)
    assert attempts == [(100.0, 104.0), (400.5, 402.0), (900.0, 900.5)]
    assert progress.duration(progress.last_at) == 6.0
    [summary] = runs.list()
    assert (summary.duration, summary.last_at) == (6.0, 900.5)


TRACES = [
    # lock at   last output at   seconds of the run
    (99.0,      None,            2.0),      # no step has printed anything
    (99.0,      105.5,           5.5),
    (99.0,      101.0,           2.0),      # an event is newer
    (100.0,     105.5,           5.5),
    (700.0,     700.0,           2.0),      # the times of a copy say nothing
]  # fmt: skip


@pytest.mark.parametrize(("locked", "printed", "seconds"), TRACES)
def test_a_run_that_was_killed_took_until_its_last_output(
    tmp_path: Path, locked: float, printed: float | None, seconds: float
) -> None:
    at = [100.0]
    runs = Runs(str(tmp_path), now=lambda: at[0])
    phases = (("steps", 1),)
    started = RunStarted("x", "f", "flow.yaml", str(tmp_path), resumed=False, phases=phases)
    with runs.create({"file": "flow.yaml", "flow": "f", "project": str(tmp_path)}) as opened:
        folder = Path(opened.folder)
        opened.journal.append(started)
        at[0] = 102.0
        opened.journal.append(Note("", "the last record before a kill"))
    if printed is not None:
        (folder / "live.jsonl").write_text("")
        os.utime(folder / "live.jsonl", (printed, printed))
    os.utime(folder / "lock", (locked, locked))
    with runs.open(opened.id, write=False) as again:
        report = read_report("x", again.journal, is_running=lambda: False, short=True)
        running = read_report("x", again.journal, is_running=lambda: True, short=True)
        summary = make_summary(again, is_running=False)
    assert report_json(report, now=0.0)["duration"] == seconds
    assert running.progress.last_at == 102.0
    assert summary is not None
    assert (summary.duration, summary.last_at) == (seconds, 100.0 + seconds)


FLOWS = {
    "done": "steps: [{shell: echo fine}]\n",
    "failed": "steps: [{shell: test -e ready}]\n",
    "items": ITEMS.replace("LEAST", "1"),
}
UNNAMED = [
    # runs, the oldest first    which one `plait resume` takes; None: it says that all have finished
    (["done"], None),
    (["items"], None),
    (["failed"], 0),
    (["failed", "done", "items"], 0),
    (["failed", "done", "failed", "done"], 2),
]


@pytest.mark.parametrize(("flows", "taken"), UNNAMED)
def test_resume_without_a_name_takes_the_newest_run_that_has_not_finished(
    place: Place, flows: list[str], taken: int | None
) -> None:
    runs = []
    for flow in flows:
        place.write(f"{flow}.yaml", FLOWS[flow])
        runs.append(result(place, "run", f"{flow}.yaml")["run"])
    place.write("ready", "")
    before = place.plait("runs", "--json").stdout
    planned = place.plait("resume", "--dry-run")
    resumed = place.plait("resume")
    if taken is None:
        message = "every run has finished: nothing to resume; plait runs lists them\n"
        assert (resumed.stdout, resumed.stderr, resumed.returncode) == (message, "", 0)
        assert planned.stdout == message
        assert place.plait("runs", "--json").stdout == before  # left alone
        assert place.plait("resume", "-q").stdout == ""
        assert json.loads(place.plait("resume", "--json").stdout)["event"] == "nothing_to_do"
        return
    assert resumed.stdout.splitlines()[0].startswith(f"failed: run {runs[taken]}, resumed")
    assert resumed.returncode == 0


def test_a_finished_run_with_failed_items_is_left_alone_if_it_is_to_be_resumed(
    place: Place,
) -> None:
    place.write("flow.yaml", FLOWS["items"])
    run = str(result(place, "run", "flow.yaml")["run"])
    before = place.plait("runs", "--json").stdout
    message = (
        f"run {run} has finished: nothing is left to resume\n"
        f"1 item failed: 1\nretry: plait retry {run} --failed"
    )
    for arguments in (["resume", run], ["resume", run[:4], "--dry-run"], ["resume", "last"]):
        resumed = place.plait(*arguments)
        assert (resumed.stdout, resumed.stderr, resumed.returncode) == (f"{message}\n", "", 1)
    assert place.plait("resume", run, "-q").stdout == ""
    record = {"event": "nothing_to_do", "message": message}
    assert json.loads(place.plait("resume", run, "--json").stdout) == record
    assert place.plait("runs", "--json").stdout == before
    place.write("flow.yaml", FLOWS["items"].replace("test", "test -n x &&  test"))
    assert "--accept-changes" in place.plait("resume", run).stderr  # what has changed comes first


def test_retry_with_nothing_to_do_says_so_and_exits_with_0(place: Place) -> None:
    place.write("flow.yaml", FLOWS["done"])
    run = result(place, "run", "flow.yaml")["run"]
    retried = place.plait("retry", "--failed")
    message = f"run {run} has no failed items: nothing to retry"
    assert (retried.stdout, retried.stderr, retried.returncode) == (f"{message}\n", "", 0)
    record = {"event": "nothing_to_do", "message": message}
    assert json.loads(place.plait("retry", "--failed", "--json").stdout) == record
    assert place.plait("retry", "last", "a.txt").returncode == 2  # an item that was named
