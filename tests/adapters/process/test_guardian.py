"""No process of a run is left after a timeout, a cancel, a signal to Plait, its kill or its normal end.

The whole, a hundred times each: tests/attack/process_attack.py.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from plait.adapters.process import guardian, guardian_client, guardian_orders, guardian_process
from plait.adapters.process.process import run
from plait.core.errors import ProcessError

LIMIT = 15.0
"""Seconds for what takes two or three on a quiet machine."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


# Not SIGINT: where tests run in the background it is ignored from the start.  `make attack` sends it, too.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "SIGINT"])
def test_no_process_of_a_hostile_tree_is_left(way: str) -> None:
    done = attack(way, limit=LIMIT)
    assert (done.stood, done.survivors) == (True, 0)


def test_the_attack_would_find_survivors(token: str) -> None:
    tree = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TREE, token],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert b"ready" in line_of(tree)
    # A process that is just being replaced by another program has no command line for a moment.
    until(lambda: len(tree_of(token, tree.pid)) == FORMS, time.monotonic() + LIMIT)
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


def is_all_gone(token: str) -> bool:
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
    # A process with the other's token has the token as well.
    assert tree_of(token, 0) == tree_of(other, 0) != []
    for pid in tree_of(other, 0):
        os.kill(pid, signal.SIGKILL)


def test_an_orphan_is_ended_with_the_job_that_has_left_it(token: str) -> None:
    script = f"(setsid sh -c 'trap \"\" TERM; echo; while :; do sleep 60; done' {token} &) ; exit 3"
    finished = run(["sh", "-c", script], grace=0.1)
    assert finished.exit_code == 3
    assert tree_of(token, 0) == []


def endless(token: str) -> guardian_client.Job:
    """A job that runs, and would run for ever."""
    job, printed = started("echo; while :; do sleep 60; done", token)
    assert os.read(printed, 1) == b"\n"
    os.close(printed)
    return job


def started(script: str, token: str, **more_env: str) -> tuple[guardian_client.Job, int]:
    """A job, and what it prints."""
    read, write = os.pipe()
    env = {**os.environ, **more_env}
    job = guardian_client.start(
        ["sh", "-c", script, token], cwd=None, env=env, stdio=(None, write, write)
    )
    os.close(write)
    return job, read


def captured(script: str, token: str) -> guardian_client.Job:
    """A job whose output the guardian reads."""
    return guardian_client.start(["sh", "-c", script, token], cwd=None, env=os.environ)


def test_a_job_that_is_let_go_is_ended(token: str) -> None:
    job = endless(token)
    job.close()
    assert is_all_gone(token)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_job_that_is_lost_is_ended(token: str) -> None:
    job = endless(token)
    del job
    gc.collect()
    assert is_all_gone(token)


def test_jobs_are_marked_and_the_guardian_keeps_the_mark_it_has() -> None:
    marks = {run(["sh", "-c", "grep locks /proc/$$/limits"]).stdout for _ in range(3)}
    assert len(marks) == 3
    assert guardian._mark(guardian_process._GUARDIANS[False].pid) == guardian._mark(os.getpid())


# ── lanes ────────────────────────────────────────────────────────────────


def idle_lanes() -> list[guardian_process.Channel]:
    return list(guardian_process._GUARDIANS[False].idle)


def test_a_lane_serves_one_job_after_the_other() -> None:
    run(["true"])
    before = idle_lanes()
    assert [run(sh("exit 3")).exit_code, run(sh("kill -9 $$")).signal, run(["true"]).exit_code] == [
        3,
        9,
        0,
    ]
    assert idle_lanes() == before != []


def test_a_job_that_is_closed_twice_leaves_the_next_one_alone(token: str) -> None:
    job = captured("exit 0", token)
    until(
        lambda: [report.kind for report in job.reports()] == [guardian.EXITED],
        time.monotonic() + LIMIT,
    )
    job.close()
    assert run(sh("echo; exit 3"), on_output=lambda *_: job.close()).exit_code == 3


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def watcher(*_: object) -> None:
    raise ZeroDivisionError


NO_SECOND_JOB = [
    # argv                                             how it is run                              how that ends
    (sh("exec sleep 60"),                              {"timeout": 0.05, "grace": 0.1},           ProcessError),
    (sh("echo; exec sleep 60"),                        {"on_output": watcher, "grace": 0.1},      ZeroDivisionError),
    (["/no/such/program"],                             {},                                        ProcessError),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "how", "ends"), NO_SECOND_JOB)
def test_a_lane_whose_job_did_not_end_by_itself_serves_no_other(
    argv: list[str], how: dict[str, Any], ends: type[Exception]
) -> None:
    run(["true"])
    before = idle_lanes()
    with pytest.raises(ends):
        run(argv, **how)
    assert [lane for lane in before if lane in idle_lanes()] == before[:-1]
    assert before[-1].socket.fileno() == -1
    assert run(["true"]).exit_code == 0


def test_an_order_that_is_larger_than_the_lane_does_not_block_it(token: str) -> None:
    large = {f"V{n}": "x" * 100_000 for n in range(10)}
    counted = [
        run(sh("env | wc -c"), env={**os.environ, **more}).stdout for more in (large, {}, large, {})
    ]
    assert counted[0] == counted[2]
    assert counted[1] == counted[3]
    assert int(counted[0]) - int(counted[1]) == sum(
        len(f"{n}={value}\n") for n, value in large.items()
    )
    job, printed = started("exec sleep 60", token, **large)
    assert job.reports() == []  # and does not wait for one
    job.close()
    os.close(printed)


def test_a_captured_job_that_closes_its_output_runs_on(token: str) -> None:
    script = "exec >&- 2>&-; exec sh -c 'while :; do sleep 60; done' \"$0-closed\""
    job = captured(script, token)
    until(lambda: tree_of(f"{token}-closed", 0) != [], time.monotonic() + LIMIT)
    assert job.reports() == []
    job.close()
    assert is_all_gone(token)


def test_a_fork_holds_no_lane(token: str) -> None:
    code = f"""
import os, time
from plait.adapters.process import guardian_client
read, write = os.pipe()
job = guardian_client.start(["sh", "-c", "echo; while :; do sleep 60; done", {token!r}], cwd=None, env=os.environ, stdio=(None, write, write))
os.read(read, 1)
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
job.close()
print("closed", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as forked:
        try:
            assert line_of(forked) == b"closed\n"
            until(lambda: len(tree_of(token, 0)) == 2, time.monotonic() + LIMIT)
            assert len(tree_of(token, 0)) == 2  # the fork and its parent
        finally:
            os.killpg(forked.pid, signal.SIGKILL)


# ── differences that are visible ─────────────────────────────────────────

names = st.text("AB_", min_size=1, max_size=2)
values = st.text("=x\udcff ä", max_size=3)
usual = st.sets(st.integers(0, 30)).map(
    lambda missing: {f"V{n}": "" for n in range(31) if n not in missing}
)
environments = st.lists(
    st.builds(lambda *parts: parts[0] | parts[1], usual, st.dictionaries(names, values))
)


@given(environments, st.booleans())
def test_each_environment_arrives_whatever_came_before(
    environments: list[dict[str, str]], is_split: bool
) -> None:
    ours = guardian_orders._Environments()
    base = environments[0] if environments else {}
    for env in environments:
        shared, own = (base, env) if is_split else (env, {})
        expected = {
            guardian_orders.encode_text(name): guardian_orders.encode_text(value)
            for name, value in {**shared, **own}.items()
        }
        whole, more = ours.pack_env(shared, own)
        assert guardian._unpack(whole[:-1]) | guardian._unpack(more[:-1]) == expected


CHANGING = [
    {"A": "1", "B": "2"},
    {"A": "1", "B": "3"},  # one is replaced
    {"A": "1", "B": "3", "C": "=\udcff"},  # one is new
    {"B": "3"},  # others are gone
    {},
    {"AB": "", "A": "", "B": ""},  # names that begin alike
]


def test_each_environment_arrives_in_its_process() -> None:
    for env in CHANGING:
        printed = run(["/usr/bin/env", "-0"], env=env).stdout
        arrived = dict(one.split(b"=", 1) for one in printed.split(b"\0") if one)
        assert arrived == {
            guardian_orders.encode_text(name): guardian_orders.encode_text(value)
            for name, value in env.items()
        }


def test_a_program_is_looked_for_anew_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    env = {"PATH": f"{first}:{second}"}

    def put(folder: Path, mode: int) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "who").write_text(f"#!/bin/sh\necho {folder.name}\n")
        (folder / "who").chmod(mode)

    def who() -> bytes:
        return run(["who"], env=env).stdout.strip()

    put(second, 0o755)
    assert who() == b"second"
    put(first, 0o755)
    assert who() == b"first"
    (first / "who").chmod(0o644)
    assert who() == b"second"
    (first / "who").unlink()
    (first / "who").mkdir()
    assert who() == b"second"
    (second / "who").unlink()
    with pytest.raises(ProcessError, match="'who' was not found"):
        who()


# ── all of them ──────────────────────────────────────────────────────────


def test_everybody_can_be_ended_at_once(token: str) -> None:
    code = f"""
import threading
from plait.adapters.process import process
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
from plait.adapters.process.process import run
run(["sh", "-c", {sleeper(token)!r}])
run(["true"])
print("done", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as plait:
        assert line_of(plait) == b"done\n"
        # A process that is just being replaced by another program has no command line for a moment.
        until(lambda: set(tree_of(token, 0)) - {plait.pid} != set(), time.monotonic() + LIMIT)
        assert set(tree_of(token, 0)) - {plait.pid} != set()
    assert is_all_gone(token)


def test_a_plait_that_a_plait_runs_is_ended_with_all_its_processes(token: str) -> None:
    cancel = threading.Event()
    with pytest.raises(ProcessError, match="cancelled"):
        run(
            engine_argv("never", token),
            env=ENVIRONMENT,
            cancel=cancel,
            on_output=lambda *_: cancel.set(),
        )
    assert is_all_gone(token)


def test_what_a_killed_plait_of_a_job_and_its_killed_guardian_left_ends_with_plait(
    token: str,
) -> None:
    inner = f"""
import os, signal
from plait.adapters.process import guardian_process
from plait.adapters.process.process import run
def die(*_):
    os.kill(guardian_process._GUARDIANS[False].pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
run(["sh", "-c", {sleeper(token)!r} + " echo; exec sleep 600", {token!r}], on_output=die)
"""
    outer = f"""
import sys
from plait.adapters.process.process import run
run([sys.executable, "-c", {inner!r}])
print("done", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", outer],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as plait:
        assert line_of(plait) == b"done\n"
        # A process that is just being replaced by another program has no command line for a moment.
        until(lambda: set(tree_of(token, 0)) - {plait.pid} != set(), time.monotonic() + LIMIT)
        assert set(tree_of(token, 0)) - {plait.pid} != set()
    assert is_all_gone(token)


def test_the_guardian_ends_with_plait() -> None:
    code = "from plait.adapters.process import guardian_process; guardian_process.warm_up(); print(guardian_process._GUARDIANS[False].pid)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=True
    )
    pid = int(done.stdout)
    until(lambda: pid not in dict(command_lines()), time.monotonic() + LIMIT)
    assert pid not in dict(command_lines())


def test_a_fork_of_plait_does_not_keep_the_guardian(token: str) -> None:
    code = f"""
import os, time
from plait.adapters.process.process import run
run(["sh", "-c", {sleeper(token)!r}])
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
os._exit(0)
"""
    forked = subprocess.Popen(
        [sys.executable, "-c", code, token], env=ENVIRONMENT, start_new_session=True
    )
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
from plait.core.errors import GuardianError
from plait.adapters.process import guardian_process
from plait.adapters.process.process import run
def kill(*_):
    os.kill(guardian_process._GUARDIANS[False].pid, signal.SIGKILL)
try:
    run(["sh", "-c", {sleeper(token)!r} + " echo; exec sleep 600", {token!r}], on_output=kill)
except GuardianError as error:
    print(error)
print(run(["echo", "again"]).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode() == (
        "the guardian, through which Plait starts processes, has ended, and with it whatever it ran\n"
        "fix: find out what killed it (out of memory?), then plait resume: what it ran was cut short and is done again\n"
        "b'again\\n'\n"
    )
    assert is_all_gone(token)


def test_a_guardian_that_is_stopped_when_plait_is_killed_still_ends(token: str) -> None:
    code = f"""
import os, signal
from plait.adapters.process import guardian_process
from plait.adapters.process.process import run
def die(*_):
    os.kill(guardian_process._GUARDIANS[False].pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
run(["sh", "-c", {sleeper(token)!r} + " echo; exec sleep 600", {token!r}], on_output=die)
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert is_all_gone(token)


def test_a_guardian_that_died_between_two_calls_is_not_missed() -> None:
    code = """
import os, signal
from plait.adapters.process import guardian_process
from plait.adapters.process.process import run
run(["true"])
pid = guardian_process._GUARDIANS[False].pid
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
    guardian_process.warm_up()
    assert run(["true"]).exit_code == 0
    pid = guardian_process._GUARDIANS[False].pid
    os.kill(pid, number)
    assert run(["true"]).exit_code == 0
    assert guardian_process._GUARDIANS[False].pid == pid


# ── where there is no /proc ──────────────────────────────────────────────

WITHOUT_PROC = (
    "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian._LINUX = False; "
    "guardian.main()"
)


@pytest.fixture
def keeper() -> Iterator[guardian_process.Guardian]:
    keeper = guardian_process.start_guardian(
        False,
        command=[
            sys.executable,
            "-I",
            "-S",
            "-c",
            WITHOUT_PROC,
            str(Path(guardian.__file__).parent),
        ],
    )
    yield keeper
    keeper.request.close()
    os.waitpid(keeper.pid, 0)


def start(
    keeper: guardian_process.Guardian, script: str, *, shared: bool = False
) -> tuple[guardian_client.Job, int]:
    """A job, and what it prints."""
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    directory = os.open("/", os.O_RDONLY)
    order = guardian_orders.encode_order(
        ["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"}, {}, 0, 0, 4
    )
    lane = keeper.send(order, (directory, nothing, write, nothing), shared=shared)
    for fd in (write, nothing, directory):
        os.close(fd)
    lane.socket.setblocking(True)
    return guardian_client.Job(lane), read


def kinds(job: guardian_client.Job, last: bytes) -> list[bytes]:
    seen: list[bytes] = []
    while last not in seen:
        seen += [report.kind for report in job.reports()]
    return seen


def test_without_proc_a_group_is_ended(keeper: guardian_process.Guardian, token: str) -> None:
    deaf = f"sh -c 'trap \"\" TERM; echo; while :; do sleep 60; done' {token}"
    job, printed = start(keeper, f"{deaf} & {deaf} & wait")
    assert os.read(printed, 1) + os.read(printed, 1) == b"\n\n"
    job.end(0.1)
    assert kinds(job, guardian.OVER)[-2:] == [guardian.EXITED, guardian.OVER]
    assert tree_of(token, 0) == []
    job.close()
    os.close(printed)


def test_without_proc_a_group_ends_with_plait(
    keeper: guardian_process.Guardian, token: str
) -> None:
    job, printed = start(keeper, f"sh -c 'echo; while :; do sleep 60; done' {token} & wait")
    assert os.read(printed, 1) == b"\n"
    keeper.request.close()
    assert is_all_gone(token)
    job.close()
    os.close(printed)


def test_without_proc_a_lane_may_be_used_after_everybody_was_ended(
    keeper: guardian_process.Guardian,
) -> None:
    job, printed = start(keeper, "echo; exec sleep 60", shared=True)
    assert os.read(printed, 1) == b"\n"
    os.close(printed)
    keeper.request.send(guardian.END_ALL)
    assert kinds(job, guardian.EXITED) == [guardian.EXITED]
    job.close()
    next_one, printed = start(
        keeper, "exec sleep 0.2", shared=True
    )  # longer than it takes to see who is left
    assert len(keeper.channels) == 1
    assert kinds(next_one, guardian.EXITED) == [guardian.EXITED]
    next_one.close()
    os.close(printed)
    keeper.close()


def test_the_program_needs_nothing_that_is_slow_to_load() -> None:
    code = "import sys; sys.path.append(sys.argv[1]); import guardian; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(Path(guardian.__file__).parent)],
        capture_output=True,
        check=True,
    ).stdout.split()
    assert {
        b"enum",
        b"typing",
        b"dataclasses",
        b"ctypes",
        b"socket",
        b"signal",
        b"subprocess",
        b"plait",
    } & {*loaded} == set()
