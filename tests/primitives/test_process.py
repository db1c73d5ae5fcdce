"""Processes: what they are given, what comes back, and that they end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from plait.errors import ProcessError
from plait.primitives.process import MAX_ARGUMENT, run, run_shell
from plait.template.shell import BoundScript

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
PATH = {"PATH": "/usr/bin:/bin"}


def script(text: str) -> BoundScript:
    return BoundScript(text, {}, (), text)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    """Whether a process ends in time; every wait has a limit."""
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    return not is_alive(pid)


# ── what comes back ─────────────────────────────────────────────────────────


def test_what_a_program_prints_and_how_it_ends() -> None:
    finished = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (finished.exit_code, finished.signal, finished.stdout, finished.stderr, finished.truncated) == (
        3, None, b"out\n", b"err\n", False,
    )  # fmt: skip
    assert finished.duration >= 0


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    finished = run(["sh", "-c", "kill -KILL $$"])
    assert (finished.exit_code, finished.signal) == (137, signal.SIGKILL)


def test_large_input_and_output_flow_both_ways_at_once() -> None:
    data = os.urandom(3_000_000)
    assert run(["cat"], stdin=data).stdout == data


def test_a_program_need_not_read_its_input() -> None:
    assert run(["true"], stdin=b"x" * 1_000_000).exit_code == 0


def test_without_input_there_is_nothing_to_read() -> None:
    assert run(["cat"]).stdout == b""


def test_output_beyond_the_limit_is_dropped_and_said() -> None:
    finished = run(
        python("import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('end')"), max_output=1000
    )
    assert (finished.stdout, finished.stderr, finished.truncated) == (b"x" * 1000, b"end", True)
    assert finished.exit_code == 0


def test_output_up_to_the_limit_is_whole() -> None:
    finished = run(["printf", "x" * 1000], max_output=1000)
    assert (len(finished.stdout), finished.truncated) == (1000, False)


def test_a_child_left_in_the_background_is_not_waited_for() -> None:
    finished = run(["sh", "-c", "sleep 60 & echo $!"], timeout=30)
    pid = int(finished.stdout)
    os.kill(pid, signal.SIGKILL)
    assert finished.exit_code == 0


# ── what a program is given ─────────────────────────────────────────────────


def test_bytes_that_are_not_text_arrive_as_they_are() -> None:
    finished = run(["printf", "%s|", "\udcff\udc80é"], env={**PATH, "V": "\udcfe"})
    assert finished.stdout == b"\xff\x80\xc3\xa9|"
    assert run(["printenv", "V"], env={**PATH, "V": "\udcfe"}).stdout == b"\xfe\n"


def test_the_environment_is_exactly_the_given_one() -> None:
    assert run(["/usr/bin/env"], env={"A": "1"}).stdout == b"A=1\n"


def test_the_directory_is_the_given_one(tmp_path: Path) -> None:
    assert run(["pwd"], cwd=tmp_path, env=PATH).stdout == os.fsencode(tmp_path.resolve()) + b"\n"


def test_only_the_given_descriptors_are_inherited() -> None:
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    list_them = python("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
    try:
        assert run(list_them).stdout == b"[0, 1, 2]\n"
        inherited = run(list_them, files=[("F", b"x")]).stdout
    finally:
        os.close(kept)
    assert inherited.count(b",") == 3


def test_files_are_found_by_the_path_in_their_variable() -> None:
    finished = run(["sh", "-c", 'cat "$A" "$B" "$A"'], files=[("A", b"one\0"), ("B", b"\xff")], env=PATH)
    assert finished.stdout == b"one\0\xffone\0"


def test_a_child_leads_a_session_of_its_own() -> None:
    finished = run(python("import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))"))
    assert finished.stdout == b"True\n"


# ── what cannot be started ──────────────────────────────────────────────────


def test_a_missing_program_says_where_it_was_looked_for() -> None:
    with pytest.raises(ProcessError) as error:
        run(["no-such-program"], env={"PATH": "/usr/bin:/bin"})
    assert str(error.value) == (
        "the program 'no-such-program' was not found\n"
        "fix: install it, or correct its name; looked in /usr/bin:/bin"
    )


def test_a_file_that_is_no_program_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(ProcessError) as error:
        run([str(tmp_path / "data")])
    assert str(error.value) == (
        f"the program '{tmp_path}/data' cannot be started: Permission denied\n"
        f"fix: check that '{tmp_path}/data' exists and may be executed"
    )


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError) as error:
        run(["true"], cwd=tmp_path / "none")
    assert str(error.value) == (
        f"'true' cannot be started in '{tmp_path}/none': there is no such directory\n"
        "fix: create the directory, or correct its name"
    )


def test_arguments_too_large_for_the_system_say_so() -> None:
    with pytest.raises(ProcessError) as error:
        run(["true", "secret" * 100_000])
    assert error.value.code == "too-large"
    assert "secret" not in str(error.value)


def test_nul_cannot_be_passed() -> None:
    with pytest.raises(ProcessError) as error:
        run(["true", "secret\0"])
    assert (error.value.code, "secret" in str(error.value)) == ("not-started", False)


# ── what has to be ended ────────────────────────────────────────────────────


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(ProcessError) as error:
        run(["sh", "-c", f"sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"], timeout=1)
    assert str(error.value) == (
        "'sh' was ended: it took longer than 1 s\nfix: give it more time, or find out what it waits for"
    )
    assert all(gone_within(int(pid), 10) for pid in pids.read_text().split())


def test_a_program_that_ignores_the_polite_request_is_forced(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"trap '' TERM; sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; while :; do wait; done"
    with pytest.raises(ProcessError):
        run(["sh", "-c", code], timeout=1)
    assert all(gone_within(int(pid), 10) for pid in pids.read_text().split())


def test_a_program_that_prints_for_ever_ends_in_time_too() -> None:
    with pytest.raises(ProcessError) as error:
        run(["yes"], timeout=0.3, max_output=1000)
    assert error.value.code == "timeout"


def test_an_interrupt_ends_the_group_and_passes_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    # The child interrupts us once it runs, so nothing depends on speed.
    code = f"sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; kill -USR1 {os.getpid()}; wait"
    try:
        with pytest.raises(KeyboardInterrupt):
            run(["sh", "-c", code], timeout=30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all(gone_within(int(pid), 10) for pid in pids.read_text().split())


def test_threads_run_programs_at_the_same_time() -> None:
    answers: dict[int, bytes] = {}

    def one(number: int) -> None:
        answers[number] = run(["cat"], stdin=b"%d" % number * 100_000, timeout=30).stdout

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: b"%d" % number * 100_000 for number in range(8)}


# ── shells ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_runs_a_script_with_its_environment_and_files(shell: str) -> None:
    bound = BoundScript('cat "$F"; echo "$A$B"', {"A": "1"}, (("F", b"file\n"),), "")
    assert run_shell(bound, shell=shell, env={**PATH, "A": "0", "B": "2"}).stdout == b"file\n12\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_starts_with_a_dash_is_a_script(shell: str) -> None:
    finished = run_shell(script("-c 2>/dev/null; echo $?"), shell=shell)
    assert finished.stdout == b"127\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_too_large_for_the_command_line_runs_the_same(shell: str) -> None:
    text = "echo start\n" + ": some words of a long script é\n" * (MAX_ARGUMENT // 16)
    text += 'env | grep -c PLAIT_; nosuchcommand; echo "$0 $#"; cat'
    finished = run_shell(script(text), shell=shell, env=PATH, stdin=b"input")
    line = text.count("\n") + 1
    assert finished.stdout == b"start\n0\n%s 0\ninput" % shell.encode()
    assert f" {line}: ".encode() in finished.stderr
    assert b"nosuchcommand: " in finished.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_from_outside_runs_or_changes_the_shell(shell: str, tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("echo started\n")
    rc = str(tmp_path / "rc")
    env = {
        **PATH,
        **{
            "ENV": rc,
            "BASH_ENV": rc,
            "SHELLOPTS": "xtrace",
            "PS4": "+$(echo started)",
            "HOME": str(tmp_path),
        },
        **{"BASH_FUNC_echo%%": "() { printf stolen; }"},
    }
    finished = run_shell(script("echo hello; env"), shell=shell, env=env)
    assert finished.stderr == b""
    assert finished.stdout.startswith(b"hello\n")
    assert b"started" not in finished.stdout
    assert b"BASH_FUNC" not in finished.stdout
