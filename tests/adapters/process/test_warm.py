"""A prestarted shell behaves exactly like one that was executed."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from plait.adapters.process import guardian, guardian_client, guardian_orders, guardian_process
from plait.core.grace import GRACE

LIMIT = 20.0
pytestmark = pytest.mark.skipif(
    not (os.path.exists(guardian_process.LIBRARY) and os.path.exists(guardian_process.COMPILED)),
    reason="the compiled parts are not there: they need a C compiler when Plait is installed (Debian: apt install gcc libc6-dev)",
)
COLD, WARM = False, True
MOST_BYTES, MOST_DESCRIPTORS = 64 * 1024, 40
"""Of an order to a prestarted shell."""
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "A": "b c", "EMPTY": "", "UMLAUT": "ü"}


class Keeper:
    """A guardian of its own, and what is started by it."""

    def __init__(self, is_warm: bool, *old_marks: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if not is_warm:
                patch.setenv(guardian_process.NO_WARM, "1")
            command = [guardian_process.COMPILED]
            self.keeper = guardian_process.start_guardian(False, *old_marks, command=command)
        for _ in range(3 if is_warm else 0):  # the first ones are always executed
            self.run("true")

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] = ENV,
        cwd: str = "/usr",
        files: Sequence[int] = (),
        has_input: bool = False,
    ) -> tuple[guardian_client.Job, int]:
        """A job, and what it prints."""
        read, write = os.pipe()
        directory = os.open(cwd, os.O_RDONLY)
        given = os.open("/etc/passwd", os.O_RDONLY)
        how = 0 if has_input else guardian.NO_INPUT
        streams = (given, write, write) if has_input else (write, write)
        lane = self.keeper.send(
            guardian_orders.encode_order(argv, env, {}, how, 0, 1 + len(streams) + len(files)),
            (directory, *streams, *files),
            shared=False,
        )
        for fd in (write, directory, given):
            os.close(fd)
        lane.socket.setblocking(True)
        return guardian_client.Job(lane), read

    def run(self, *argv: str, **how: object) -> tuple[bytes, guardian_process.JobReport]:
        job, printed = self.start(argv, **how)  # type: ignore[arg-type]
        output = all_of(printed)
        report = job.reports()[0]
        job.close()
        return output, report

    def waiting(self) -> list[int]:
        """The pids of shells that wait."""
        return [
            pid
            for pid in children(self.keeper.pid)
            if b"libwarm.so" in contents(f"/proc/{pid}/environ")
        ]

    def close(self) -> None:
        if not self.keeper.is_dead:
            self.keeper.close()
        os.waitpid(self.keeper.pid, 0)


def all_of(fd: int) -> bytes:
    data = b""
    while more := os.read(fd, 65536):
        data += more
    os.close(fd)
    return data


def contents(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    return [int(one) for one in contents(f"/proc/{pid}/task/{pid}/children").split()]


def is_gone(pid: int) -> bool:
    """Within the limit; a zombie is gone."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] in ([], [b"Z"]):
            return True
        os.sched_yield()
    return False


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper(WARM)
    yield keeper
    keeper.close()


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Keeper, Keeper]]:
    both = Keeper(COLD), Keeper(WARM)
    yield both
    for keeper in both:
        keeper.close()


SAME = [
    "true",
    "exit 7",
    "echo out; echo err >&2; exit 3",
    "kill -9 $$",
    "kill -TERM $$; echo still here",
    "kill -SEGV $$",
    'printf "%s|" "$0" "$@"',
    "env",
    "pwd; cd ..; pwd",
    "umask; umask 077; umask",
    "ulimit -a | grep -v locks",  # that is the mark of a job
    "trap",
    "cat",
    "readlink /proc/$$/exe; readlink /proc/$$/cwd; cat /proc/$$/comm",
    "tr '\\0' '|' </proc/$$/cmdline",
    "tr '\\0' '|' </proc/$$/environ",
    "ls /proc/$$/fd",
    "exec grep -E '^(Sig[^Q]|Shd|NoNew|Seccomp|Cap|Groups|Uid|Gid|Threads)' /proc/self/status",
    "for n in 1 2 3; do (exit $n) & wait $!; echo $?; done",
    "sleep 0 & wait; echo $?",
    "(trap 'echo heard' TERM; kill -TERM $(sh -c 'echo $PPID'); echo after)",
    "echo ${A} ${EMPTY} ${UMLAUT}; A=d; export A; sh -c 'echo $A'",
    "cat <<END\n$A\nEND",
    "echo 1 | { read n; echo $((n + 1)); }",
    "exec sh -c 'echo executed $1' sh x",
    "set -e; false; echo no",
    "nonsense_command",
    "if then",
    "cat <&64; cat <&65",
    "echo *",
    "type sh; command -v cat",
]


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
@pytest.mark.parametrize("script", SAME)
def test_what_a_script_sees_is_the_same(
    both: tuple[Keeper, Keeper], shell: str, script: str, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    seen = []
    for keeper in both:
        files = [os.open(name, os.O_RDONLY) for name in ("/etc/hostname", "/etc/passwd")]
        output, report = keeper.run(
            shell, "-c", script, "name", "x y", "", "ü\n", cwd=str(tmp_path), files=files
        )
        for fd in files:
            os.close(fd)
        seen.append((re.sub(rb"\b%d\b" % report.pid, b"PID", output), report.kind, report.number))
    assert seen[0] == seen[1]
    assert both[0].waiting() == []
    assert both[1].waiting()


ITSELF = "echo $$; echo $PPID; cut -d' ' -f5,6 /proc/$$/stat; grep 'Max file locks' /proc/$$/limits"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_is_itself(both: tuple[Keeper, Keeper], shell: str) -> None:
    for keeper in both:
        output, report = keeper.run(shell, "-c", ITSELF)
        pid, parent, numbers, mark = output.decode().splitlines()
        assert int(pid) == report.pid
        assert int(parent) == keeper.keeper.pid
        assert [int(number) for number in numbers.split()] == [report.pid, keeper.keeper.pid]
        assert int(mark.split()[3]) >> guardian.MARK_BITS == keeper.keeper.marks


def test_input_is_what_was_given(both: tuple[Keeper, Keeper]) -> None:
    seen = [keeper.run("sh", "-c", "head -1; pwd", has_input=True)[0] for keeper in both]
    assert seen[0] == seen[1]
    assert seen[0].startswith(b"root:")


def test_one_does_not_find_what_another_was_reported(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true", env={**ENV, "TOKEN": "s3cr" * 500})
    look = (
        "import re,sys\n"
        "for line in open(f'/proc/{sys.argv[1]}/maps'):\n"
        "    span, rights, *_ = line.split()\n"
        "    if rights[0] == 'r' and '[v' not in line:\n"
        "        start, end = (int(one, 16) for one in span.split('-'))\n"
        "        memory = open(f'/proc/{sys.argv[1]}/mem', 'rb', 0)\n"
        "        memory.seek(start)\n"
        "        try: found = memory.read(end - start)\n"
        "        except OSError: continue\n"
        "        print(found.count(b's3cr' * 3), end=' ')\n"
    )
    # In the memory of a later one, and of the one that waits.
    for pid in ("$$", str(keeper.waiting()[0])):
        output, _ = keeper.run("sh", "-c", f'"$1" -I -S -c "$2" {pid}', "sh", sys.executable, look)
        assert {*output.split()} == {b"0"}


COLD_ONES = [
    (["sh", "-c", "echo $LD_LIBRARY_PATH"], {**ENV, "LD_LIBRARY_PATH": "/nowhere"}, b"/nowhere\n"),
    (["sh", "-c", "echo $MALLOC_ARENA_MAX"], {**ENV, "MALLOC_ARENA_MAX": "1"}, b"1\n"),
    (["sh", "-c", "echo $GLIBC_TUNABLES"], {**ENV, "GLIBC_TUNABLES": ""}, b"\n"),
    (
        ["sh", "-c", "echo ${#LONG}"],
        {**ENV, "LONG": "x" * MOST_BYTES},
        b"%d\n" % MOST_BYTES,
    ),
    (["printf", "x"], ENV, b"x"),
]


@pytest.mark.parametrize(("argv", "env", "output"), COLD_ONES)
def test_what_the_loader_would_have_read_is_executed(
    keeper: Keeper, argv: list[str], env: dict[str, str], output: bytes
) -> None:
    assert keeper.run(*argv, env=env)[0] == output


def test_more_files_than_an_order_takes_are_no_obstacle(keeper: Keeper) -> None:
    files = [os.open("/etc/hostname", os.O_RDONLY) for _ in range(MOST_DESCRIPTORS)]
    output, _ = keeper.run(
        "sh",
        "-c",
        f"[ -e /proc/$$/fd/{guardian_client.FIRST_FILE + len(files) - 1} ] && echo yes",
        files=files,
    )
    assert output == b"yes\n"
    for fd in files:
        os.close(fd)


def test_a_low_limit_of_descriptors_takes_no_files() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 400))
from plait.adapters.process.process import run
for _ in range(5):
    print(run(["sh", "-c", 'cat "$F"'], files=[("F", b"content")]).stdout.decode())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout == b"content\n" * 5


def test_another_program_in_its_place_is_seen(keeper: Keeper, tmp_path: Path) -> None:
    for shell, code in (("/bin/dash", "0"), ("/bin/bash", "1"), ("/bin/dash", "0")):
        if not os.path.exists(shell):
            pytest.skip(f"{shell} is not installed")
        shutil.copy(shell, tmp_path / "new")
        os.replace(tmp_path / "new", tmp_path / "sh")
        output, _ = keeper.run(str(tmp_path / "sh"), "-c", "echo ${BASH_VERSION:+1}")
        assert output.strip().decode() == code.replace("0", "")


def test_a_shell_that_cannot_wait_is_executed(keeper: Keeper, tmp_path: Path) -> None:
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\necho mine\n")
    script.chmod(0o755)
    assert [keeper.run(str(script), "-c", "true")[0] for _ in range(2)] == [b"mine\n"] * 2


def test_another_program_with_the_name_of_a_shell_does_not_stay(
    keeper: Keeper, tmp_path: Path
) -> None:
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\n[ $# = 0 ] && exec sleep 600 3<&-\necho mine\n")
    script.chmod(0o755)
    before = set(children(keeper.keeper.pid))
    assert keeper.run(str(script), "-c", "true")[0] == b"mine\n"
    for pid in set(children(keeper.keeper.pid)) - before:
        assert is_gone(pid)


def test_one_that_does_not_answer_starts_nothing_afterwards(keeper: Keeper, tmp_path: Path) -> None:
    file = tmp_path / "file"
    keeper.run("sh", "-c", "true")
    [pid] = keeper.waiting()
    os.kill(pid, signal.SIGSTOP)
    job, printed = keeper.start(["sh", "-c", f"echo >{file}"])
    [report] = job.reports()
    assert (report.kind, report.number) == (guardian.REFUSED, errno.EIO)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert is_gone(pid)
    assert all_of(printed) == b""
    assert not file.exists()
    job.close()
    assert keeper.run("sh", "-c", "echo a")[0] == b"a\n"


def test_one_that_was_killed_is_replaced(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true")
    for _ in range(3):
        [pid] = keeper.waiting()
        os.kill(pid, signal.SIGKILL)
        assert is_gone(pid)
        assert keeper.run("sh", "-c", "echo a")[0] == b"a\n"
        assert keeper.run("sh", "-c", "echo b")[0] == b"b\n"


def test_it_receives_no_signal_that_is_not_for_it(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true")
    [pid] = keeper.waiting()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(pid, number)
    assert keeper.run("sh", "-c", "echo a")[0] == b"a\n"
    assert keeper.waiting() == [pid]


def test_none_is_left_when_plait_ends(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true")
    keeper.run("bash", "-c", "true")
    waiting = keeper.waiting()
    assert len(waiting) == 2
    began = time.monotonic()
    keeper.close()
    assert all(map(is_gone, waiting))
    assert time.monotonic() - began < GRACE
    keeper.__init__(WARM)  # type: ignore[misc]


def test_none_is_started_for_an_order_that_comes_after_the_end_of_plait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLAIT_GRACE", "3600")  # a call that waits for a shell now waits too long
    keeper = Keeper(WARM)
    keeper.run("sh", "-c", "true")
    os.kill(keeper.keeper.pid, signal.SIGSTOP)
    job, printed = keeper.start(["bash", "-c", "echo begun; sleep 60"])
    keeper.keeper.close()
    os.kill(keeper.keeper.pid, signal.SIGCONT)
    assert is_gone(keeper.keeper.pid)
    assert all_of(printed) == b""
    job.close()
    os.waitpid(keeper.keeper.pid, 0)


def test_none_is_left_when_the_guardian_is_killed(keeper: Keeper) -> None:
    job, printed = keeper.start(["sh", "-c", "echo; sleep 60"])
    assert os.read(printed, 1) == b"\n"
    [waiting] = keeper.waiting()
    os.kill(keeper.keeper.pid, signal.SIGKILL)
    assert is_gone(waiting)
    job.close()
    other = Keeper(COLD, keeper.keeper.marks).keeper  # kills what is left
    assert os.read(printed, 1) == b""
    os.close(printed)
    other.close()
    os.waitpid(other.pid, 0)


def test_a_signal_that_comes_at_once_is_received(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true")
    for _ in range(200):
        # `exec`: while dash makes a child, it blocks signals, and the child may miss one.
        job, printed = keeper.start(["sh", "-c", "exec sleep 60"])
        job.signal(signal.SIGTERM)
        assert all_of(printed) == b""
        assert os.WTERMSIG(job.reports()[0].number) == signal.SIGTERM
        job.close()


def test_an_end_that_comes_at_once_ends_it(keeper: Keeper) -> None:
    keeper.run("sh", "-c", "true")
    for _ in range(50):
        job, printed = keeper.start(["sh", "-c", "sleep 60 & sleep 60"])
        job.end(0.5)
        assert all_of(printed) == b""
        kinds = [report.kind for report in job.reports()]
        while guardian.OVER not in kinds:
            kinds += [report.kind for report in job.reports()]
        job.close()


WITHOUT_POWERS = """
import sys
sys.path[:0] = {paths!r}
import test_warm
both = test_warm.Keeper(test_warm.COLD), test_warm.Keeper(test_warm.WARM)
script = "tr '\\\\0' '|' </proc/$$/cmdline; tr '\\\\0' '|' </proc/$$/environ; grep CapEff /proc/$$/status"
print(repr([keeper.run("sh", "-c", script)[0] for keeper in both]), len(both[1].waiting()), sep="\\n")
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_it_needs_no_powers() -> None:
    paths = [str(Path(__file__).parent), str(Path(guardian.__file__).parents[2]), *sys.path]
    give_up = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    command = [*give_up, sys.executable, "-c", WITHOUT_POWERS.format(paths=paths)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    seen, count = output.splitlines()
    cold, warm_one = ast.literal_eval(seen)
    assert cold == warm_one
    assert cold.endswith(b"0000000000000000\n")
    assert count == "1"
