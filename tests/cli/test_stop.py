"""`plait stop` ends a run that another process works on, whatever started it, so that it can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plait.app.runs import flow_store
from plait.app.stop_run import is_signal_ignored
from plait.engine.events import RunEnded
from runs.stories import Place, new_place

WAIT = 30.0
FLOW = """\
steps:
  - shell: echo first >> ledger
  - shell: 'test -e go || { echo $$ > made; mv made waits; exec sleep 600; }'
  - shell: echo last >> ledger
"""
TERMINAL = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
STARTED_BY = [
    # words before the command                                       ignores Ctrl-C, exit code
    ([sys.executable, "-c", TERMINAL],                               False, 130),
    (["sh", "-c", '"$@" >/dev/null 2>&1 </dev/null & wait $!', "-"], True,  143),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "ignores", "code"), STARTED_BY, ids=["in the foreground", "with & by a script"]
)
def test_a_run_that_is_stopped_leaves_no_process_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[str], ignores: bool, code: int
) -> None:
    place = new_place(tmp_path, monkeypatch)
    place.write("flow.yaml", FLOW)
    command = [*before, sys.executable, "-m", "plait", "run", "flow.yaml"]
    with started(command, place) as process:
        wait_until((place.root / "waits").exists)
        store = flow_store(str(place.root))
        run = store.find()
        pid = store.holder(run)
        assert pid is not None
        assert is_signal_ignored(pid, signal.SIGINT) is ignores
        processes = descendants(pid)
        assert int(place.text("waits")) in processes

        stopped = place.plait("stop")
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert stopped.stdout == (
            f"run {run} is stopping (process {pid}). Continue it with:  plait resume {run}\n"
        )
        assert process.wait(WAIT) == code
    wait_until(lambda: not [one for one in processes if is_alive(one)])
    assert ends(place, run) == ["interrupted"]
    assert json.loads(place.plait("show", "--json").stdout)["status"] == "interrupted"
    again = place.plait("stop", run)
    assert (again.returncode, again.stdout, again.stderr) == (
        2,
        "",
        f"no process works on run {run}\nfix: plait show {run}\n",
    )

    place.write("go", "")
    assert place.plait("resume", run).returncode == 0
    assert place.text("ledger") == "first\nlast\n"
    assert ends(place, run) == ["interrupted", "done"]


@contextmanager
def started(command: list[str], place: Place) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command, cwd=place.root, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:  # the test has failed
                os.killpg(process.pid, signal.SIGKILL)


def ends(place: Place, run: str) -> list[str]:
    """How each attempt of a run ended, by its journal."""
    with flow_store(str(place.root)).open(run, write=False) as opened:
        events = [record.event for record in opened.journal.events()]
    return [event.status for event in events if isinstance(event, RunEnded)]


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(int(WAIT * 100)):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen in time")


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child, *descendants(child)}
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
