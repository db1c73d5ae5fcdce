"""Nobody of a run is left: after its time is up, it is cancelled, Plait is signalled, killed or simply done.

The whole, a hundred times each: tests/attack/process_attack.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack.process_attack import (
    FORMS,
    SOURCE,
    TREE,
    WAYS,
    attack,
    command_lines,
    engine_argv,
    line_of,
    tree_of,
    until,
)
from plait.errors import ProcessError
from plait.primitives import guardian, jobs
from plait.primitives.process import run

LIMIT = 15.0
"""Seconds for what takes two or three on a quiet machine."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


# Not SIGINT: where tests run in the background it is ignored from the start.  `make attack` sends it, too.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "SIGINT"])
def test_nobody_of_a_hostile_tree_is_left(way: str) -> None:
    done = attack(way, limit=LIMIT)
    assert (done.stood, done.survivors) == (True, 0)


def test_the_attack_would_find_survivors(token: str) -> None:
    tree = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TREE, token], stdout=subprocess.PIPE, start_new_session=True
    )
    assert b"ready" in line_of(tree)
    assert len(tree_of(token, tree.pid)) == FORMS
    os.killpg(tree.pid, signal.SIGKILL)
    tree.wait(LIMIT)
    left = tree_of(token, tree.pid)
    assert len(left) > 0
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert tree.stdout is not None
    tree.stdout.close()


@pytest.fixture
def token(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}-{os.urandom(8).hex()}"


def nobody_left(token: str) -> bool:
    until(lambda: not tree_of(token, 0), time.monotonic() + LIMIT)
    return not tree_of(token, 0)


def sleeper(token: str) -> str:
    """Shell text for a daemon that bears the token and holds nothing open."""
    return f"setsid sh -c 'while :; do sleep 60; done' {token} >/dev/null 2>&1 </dev/null &"


# ── one job among others ─────────────────────────────────────────────────


def test_only_the_job_whose_time_is_up_is_ended(token: str) -> None:
    other = f"{token}-other"
    assert run(["sh", "-c", sleeper(other)]).exit_code == 0
    with pytest.raises(ProcessError, match="took longer"):
        run(["sh", "-c", f"{sleeper(token)} exec sleep 60"], timeout=0.3)
    # Whoever bears the other's token bears the token as well.
    assert tree_of(token, 0) == tree_of(other, 0) != []
    for pid in tree_of(other, 0):
        os.kill(pid, signal.SIGKILL)


def test_an_orphan_is_ended_with_the_job_that_has_left_it(token: str) -> None:
    script = f"(setsid sh -c 'trap \"\" TERM; echo; while :; do sleep 60; done' {token} &) ; exit 3"
    finished = run(["sh", "-c", script], grace=0.1)
    assert finished.exit_code == 3
    assert tree_of(token, 0) == []


def test_a_job_that_is_let_go_is_ended(token: str) -> None:
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    script = "echo; while :; do sleep 60; done"
    job = jobs.start(["sh", "-c", script, token], cwd=None, env=os.environ, stdio=(nothing, write, nothing))
    assert os.read(read, 1) == b"\n"
    job.close()
    assert nobody_left(token)
    for fd in (read, write, nothing):
        os.close(fd)


def test_jobs_are_marked_and_the_guardian_keeps_the_mark_it_has() -> None:
    marks = {run(["sh", "-c", "grep locks /proc/$$/limits"]).stdout for _ in range(3)}
    assert len(marks) == 3
    assert guardian._mark(jobs._KEEPERS[False].pid) == guardian._mark(os.getpid())


def test_everybody_can_be_ended_at_once(token: str) -> None:
    code = f"""
import threading
from plait.primitives import process
started, signals = threading.Barrier(5), []
def one():
    finished = process.run(["sh", "-c", "echo; exec sleep 600", {token!r}], on_output=lambda *_: started.wait({LIMIT}))
    signals.append(finished.signal)
threads = [threading.Thread(target=one) for _ in range(4)]
for thread in threads: thread.start()
started.wait({LIMIT})
process.end_all()
for thread in threads: thread.join()
print(*signals)
print(process.run(["echo", "again"]).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.split() == [b"15"] * 4 + [b"b'again\\n'"]


# ── Plait ends ───────────────────────────────────────────────────────────


def test_what_a_program_has_left_in_the_background_ends_with_plait(token: str) -> None:
    code = f"""
from plait.primitives.process import run
run(["sh", "-c", {sleeper(token)!r}])
print(sum({token!r} in open(f"/proc/{{pid}}/cmdline").read() for pid in __import__("os").listdir("/proc") if pid.isdigit()))
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=True)
    assert int(done.stdout) >= 1
    assert nobody_left(token)


def test_a_plait_that_a_plait_runs_is_ended_with_all_its_processes(token: str) -> None:
    cancel = threading.Event()
    with pytest.raises(ProcessError, match="cancelled"):
        run(engine_argv("never", token), env=ENVIRONMENT, cancel=cancel, on_output=lambda *_: cancel.set())
    assert nobody_left(token)


def test_the_guardian_ends_with_plait() -> None:
    code = "from plait.primitives import jobs; jobs.warm_up(); print(jobs._KEEPERS[False].pid)"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=True)
    pid = int(done.stdout)
    until(lambda: pid not in dict(command_lines()), time.monotonic() + LIMIT)
    assert pid not in dict(command_lines())


def test_a_fork_of_plait_does_not_keep_the_guardian(token: str) -> None:
    code = f"""
import os, time
from plait.primitives.process import run
run(["sh", "-c", {sleeper(token)!r}])
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
os._exit(0)
"""
    forked = subprocess.Popen([sys.executable, "-c", code, token], env=ENVIRONMENT, start_new_session=True)
    try:
        forked.wait(LIMIT)
        until(lambda: len(tree_of(token, 0)) == 1, time.monotonic() + LIMIT)
        assert len(tree_of(token, 0)) == 1  # the fork itself
    finally:
        os.killpg(forked.pid, signal.SIGKILL)


# ── the guardian ends ────────────────────────────────────────────────────


def test_a_guardian_that_is_killed_is_replaced_and_its_processes_are_ended(token: str) -> None:
    code = f"""
import os, signal
from plait.errors import ProcessError
from plait.primitives import jobs
from plait.primitives.process import run
def kill(*_):
    os.kill(jobs._KEEPERS[False].pid, signal.SIGKILL)
try:
    run(["sh", "-c", {sleeper(token)!r} + " echo; exec sleep 600", {token!r}], on_output=kill)
except ProcessError as error:
    print(error)
print(run(["echo", "again"]).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode() == (
        "the guardian, through which Plait starts processes, has ended, and with it whatever it ran\n"
        "fix: try again: a new guardian was started; look who killed the old one (lack of memory?)\n"
        "b'again\\n'\n"
    )
    assert nobody_left(token)


def test_a_guardian_that_died_between_two_calls_is_not_missed() -> None:
    code = """
import os, signal
from plait.primitives import jobs
from plait.primitives.process import run
run(["true"])
pid = jobs._KEEPERS[False].pid
os.kill(pid, signal.SIGKILL)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(run(["echo", "again"]).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"b'again\\n'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_guardian_is_not_asked_to_end(number: signal.Signals) -> None:
    jobs.warm_up()
    assert run(["true"]).exit_code == 0
    pid = jobs._KEEPERS[False].pid
    os.kill(pid, number)
    assert run(["true"]).exit_code == 0
    assert jobs._KEEPERS[False].pid == pid


# ── where there is no /proc ──────────────────────────────────────────────

WITHOUT_PROC = (
    "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian._LINUX = False; guardian.main()"
)


@pytest.fixture
def keeper() -> Iterator[jobs._Keeper]:
    keeper = jobs._started(False, boot=WITHOUT_PROC)
    yield keeper
    keeper.request.close()
    os.waitpid(keeper.pid, 0)


def start(keeper: jobs._Keeper, script: str) -> tuple[jobs.Job, int]:
    """A job, and what it prints."""
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    directory = os.open("/", os.O_RDONLY)
    order = jobs._order(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"}, 0)
    channel = keeper.send(order, (directory, nothing, write, nothing))
    for fd in (write, nothing, directory):
        os.close(fd)
    channel.setblocking(True)
    return jobs.Job(channel, keeper), read


def kinds(job: jobs.Job, last: bytes) -> list[bytes]:
    seen: list[bytes] = []
    while last not in seen:
        seen += [report.kind for report in job.reports()]
    return seen


def test_without_proc_a_group_is_ended(keeper: jobs._Keeper, token: str) -> None:
    deaf = f"sh -c 'trap \"\" TERM; echo; while :; do sleep 60; done' {token}"
    job, printed = start(keeper, f"{deaf} & {deaf} & wait")
    assert os.read(printed, 1) + os.read(printed, 1) == b"\n\n"
    job.end(0.1)
    assert kinds(job, guardian.OVER)[-2:] == [guardian.EXITED, guardian.OVER]
    assert tree_of(token, 0) == []
    job.close()
    os.close(printed)


def test_without_proc_a_group_ends_with_plait(keeper: jobs._Keeper, token: str) -> None:
    job, printed = start(keeper, f"sh -c 'echo; while :; do sleep 60; done' {token} & wait")
    assert os.read(printed, 1) == b"\n"
    keeper.request.close()
    assert nobody_left(token)
    job.close()
    os.close(printed)


def test_the_program_needs_nothing_that_is_slow_to_load() -> None:
    code = "import sys; sys.path.append(sys.argv[1]); import guardian; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(Path(guardian.__file__).parent)],
        capture_output=True,
        check=True,
    ).stdout.split()
    assert {b"enum", b"typing", b"dataclasses", b"ctypes", b"socket", b"signal", b"subprocess", b"plait"} & {
        *loaded
    } == set()
