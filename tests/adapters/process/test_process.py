"""Programs are run to their end, get what they are given and no more, and cannot block or flood us."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attack.process_attack import SOURCE
from plait.adapters.process import start
from plait.adapters.process.output import FILE_AGE, MOST_FILES, StreamCapture
from plait.adapters.process.process import ProcessResult, call_process, run, run_shell
from plait.core.errors import InputError, ProcessError
from plait.template.shell.binding import BoundScript
from plait.tools.invocation import CallLimits, ProcessCall

PYTHON = [sys.executable, "-I", "-S", "-c"]
PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


ENDINGS = [
    # argv                                stdout     stderr     exit code  signal
    (["echo", "a b"],                     b"a b\n",  b"",       0,         None),
    (["printf", "%s|", "", "", "x"],      b"||x|",   b"",       0,         None),
    (sh("echo no >&2; exit 3"),           b"",       b"no\n",   3,         None),
    (sh("exit 255"),                      b"",       b"",       255,       None),
    (sh("kill -KILL $$"),                 b"",       b"",       137,       9),
    (sh("kill -TERM $$"),                 b"",       b"",       143,       15),
    (sh("exec >&- 2>&-; exit 4"),         b"",       b"",       4,         None),
    (sh("printf '\\377\\000x'"),          b"\xff\0x", b"",      0,         None),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "stdout", "stderr", "code", "number"), ENDINGS)
def test_a_program_ends_as_it_ends(
    argv: list[str], stdout: bytes, stderr: bytes, code: int, number: int | None
) -> None:
    finished = run(argv)
    assert (finished.stdout, finished.stderr) == (stdout, stderr)
    assert (finished.exit_code, finished.signal, finished.is_truncated) == (code, number, False)
    assert finished.duration > 0


# ── what it is given ─────────────────────────────────────────────────────


def test_the_environment_is_exactly_what_was_given() -> None:
    assert run(["/usr/bin/env"], env={"A": "b", "C": ""}).stdout == b"A=b\nC=\n"
    assert run(["/usr/bin/env"], env={}).stdout == b""


def test_the_environment_is_our_own_unless_one_is_given() -> None:
    ours = {name: value for name, value in os.environ.items() if "\n" not in value}
    lines = run(["env"]).stdout.decode("utf-8", "surrogateescape").splitlines()
    assert {f"{name}={value}" for name, value in ours.items()} <= set(lines)


def test_a_child_has_three_descriptors_and_its_files() -> None:
    assert run(["ls", "/proc/self/fd"]).stdout.split() == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]  # 3: the listing itself
    shown = run(sh('cat "$ONE" "$TWO"; ls /proc/$$/fd'), files=[("ONE", b"1\n"), ("TWO", b"2\n")])
    assert shown.stdout.split() == [b"1", b"2", b"0", b"1", b"2", b"64", b"65"]


def test_a_child_ignores_and_blocks_no_signal() -> None:
    status = run(["cat", "/proc/self/status"]).stdout.decode().splitlines()
    masks = {
        line.split(":")[0]: int(line.split()[1], 16)
        for line in status
        if line.startswith(("SigIgn", "SigBlk"))
    }
    of_the_c_library = 0b11 << 31  # 32 and 33, which no program can use
    assert {name: mask & ~of_the_c_library for name, mask in masks.items()} == {
        "SigBlk": 0,
        "SigIgn": 0,
    }


def test_a_child_leads_a_group_and_has_no_terminal() -> None:
    stat = run(sh("read _ _ _ _ group _ tty _ < /proc/$$/stat; echo $$ $group $tty")).stdout.split()
    assert stat[0] == stat[1]
    assert stat[2] == b"0"
    assert int(stat[1]) != os.getpgrp()


def test_the_directory_is_the_one_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    rows: list[tuple[Path | str | None, Path]] = [
        (tmp_path, tmp_path),
        ("here", tmp_path / "here"),
        (None, tmp_path),
    ]
    for cwd, shown in rows:
        assert run(["/bin/pwd", "-P"], cwd=cwd).stdout.decode().strip() == os.path.realpath(shown)


def test_a_program_is_looked_for_along_its_own_path(tmp_path: Path) -> None:
    tool = tmp_path / "mytool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert run(["mytool"], env={"PATH": f"/nowhere:{tmp_path}"}).stdout == b"found\n"
    assert run(["mytool"], cwd=tmp_path, env={"PATH": ":/bin"}).stdout == b"found\n"


@given(st.lists(st.binary(max_size=40).map(lambda word: word.replace(b"\0", b"")), max_size=5))
def test_an_argument_arrives_byte_for_byte(words: list[bytes]) -> None:
    argv = [word.decode("utf-8", "surrogateescape") for word in words]
    assert run(["printf", "%s\\0", *argv]).stdout == b"".join(
        word + b"\0" for word in words or [b""]
    )


# ── what cannot be started ───────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plain").write_text("text")
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bare").write_text("echo\n")
    for name in ("lost", "bare"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


REFUSED = [
    # argv                  code           message
    (["no-such-program"],   "no-program",  "the program 'no-such-program' was not found\nfix: install it, or correct its name; looked in /usr/local/bin:/usr/bin:/bin"),
    (["./none"],            "no-program",  "the program './none' cannot be started: No such file or directory\nfix: check that './none' exists and may be executed"),
    (["./plain"],           "no-program",  "the program './plain' cannot be started: Permission denied\nfix: check that './plain' exists and may be executed"),
    (["./lost"],            "no-program",  "the program './lost' cannot be started: the interpreter in its first line was not found\nfix: install the interpreter, or correct the line that begins with #!"),
    (["./bare"],            "no-program",  "the program './bare' cannot be started: it is neither a program nor says what runs it\nfix: let its first line name an interpreter, such as #!/bin/sh"),
    (["true", "a\0b"],      "not-started", "'true' cannot be started: an argument or variable holds NUL, or a variable's name '='\nfix: pass such data through a file or standard input"),
    (["true", "x" * 200_000], "too-large", "'true' cannot be started: its arguments and environment are too large for this system\nfix: pass large data through a file or standard input"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "code", "message"), REFUSED)
def test_what_cannot_be_started_says_why(
    folder: Path, argv: list[str], code: str, message: str
) -> None:
    with pytest.raises(ProcessError) as caught:
        run(argv, cwd=folder, env=PATH)
    assert (caught.value.code, str(caught.value)) == (code, message)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError) as caught:
        run(["true"], cwd=tmp_path / "none")
    assert str(caught.value) == (
        f"'true' cannot be started in '{tmp_path / 'none'}': there is no such directory\n"
        "fix: create the directory, or correct its name"
    )


def test_half_a_character_is_refused_and_not_shown() -> None:
    with pytest.raises(ProcessError) as caught:
        run(["true", "hush \ud800"])
    assert str(caught.value) == (
        "'true' cannot be started: an argument or variable holds half a character\n"
        "fix: pass such data through a file or standard input"
    )
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_a_variable_whose_name_is_none_is_refused(name: str) -> None:
    with pytest.raises(
        ProcessError, match="an argument or variable holds NUL, or a variable's name '='"
    ):
        run(["true"], env={name: "x"})


def test_a_program_must_be_named() -> None:
    with pytest.raises(InputError, match="there is no program to start"):
        run([])


def test_a_large_environment_arrives() -> None:
    env = {f"N{i}": "x" * 100_000 for i in range(12)} | PATH
    assert run(sh("echo ${#N0} ${#N11}"), env=env).stdout == b"100000 100000\n"


# ── input and output ─────────────────────────────────────────────────────


def test_much_goes_in_and_out_at_once() -> None:
    data = os.urandom(1 << 20) * 16
    finished = run(["tee", "/dev/stderr"], stdin=data, max_output=len(data))
    assert finished.stdout == data
    assert finished.stderr == data


def test_unread_input_does_no_harm() -> None:
    assert run(["true"], stdin=b"x" * 10_000_000).exit_code == 0
    with pytest.raises(ProcessError) as caught:
        run(["sleep", "60"], stdin=b"x" * 10_000_000, timeout=0.1)
    assert caught.value.code == "timeout"


def test_without_input_there_is_nothing_to_read() -> None:
    assert run(["cat"]).stdout == b""
    assert run(["cat"], stdin=None).stdout == b""


def test_output_beyond_the_limit_is_dropped() -> None:
    finished = run(sh("seq 100000; seq 3 >&2"), max_output=10)
    assert finished.stdout == b"1\n2\n3\n4\n5\n"
    assert finished.stderr == b"1\n2\n3\n"
    assert finished.is_truncated
    assert finished.stdout_file is None


def test_output_beyond_the_limit_goes_to_a_file_if_asked_for() -> None:
    finished = run(sh("seq 100000; seq 3 >&2"), max_output=10, overflow=True)
    assert finished.stdout == b"1\n2\n3\n4\n5\n"
    assert finished.stderr_file is None
    assert finished.stdout_file is not None
    file = Path(finished.stdout_file)
    try:
        assert file.read_bytes() == b"".join(b"%d\n" % number for number in range(1, 100001))
        assert file.stat().st_mode & 0o777 == 0o600
    finally:
        file.unlink()


FILES_THAT_ARE_CUT = [
    # bytes a file may have    room for all streams    what the file has    why it has no more
    (None,                     12,                     b"1\n2\n3\n4\n5\n6\n", "no more than 12 bytes are kept"),
    (None,                     14,                     b"1\n2\n3\n4\n5\n6\n7\n", ""),
    (8,                        1000,                   b"1\n2\n3\n4\n",     "it could not be written: File too large"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "room", "kept", "lost"), FILES_THAT_ARE_CUT)
def test_a_file_that_has_not_all_of_an_output_says_why(
    tmp_path: Path, limit: int | None, room: int, kept: bytes, lost: str
) -> None:
    printed = StreamCapture("stdout", 4, overflow=str(tmp_path), on_output=None, most_in_file=room)
    with largest_file(limit):
        for number in range(1, 8):
            printed.add(b"%d\n" % number)
        path = printed.close()  # so little is written only now
    assert path is not None
    assert (Path(path).read_bytes(), printed.lost) == (kept, lost)


def test_an_output_without_even_a_file_says_why(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    printed = StreamCapture("stdout", 4, overflow=str(tmp_path / "taken"), on_output=None)
    printed.add(b"12345")
    assert (printed.close(), printed.lost) == (None, "it could not be written: File exists")


def test_a_write_that_fails_long_before_the_end_is_reported_at_the_end(tmp_path: Path) -> None:
    with largest_file(100_000):
        finished = call_process(tool("seq 100000", max_output=4, overflow=str(tmp_path)))
    [file] = tmp_path.iterdir()
    assert file.stat().st_size <= 100_000
    assert finished.error == (
        f"it printed more than 4 bytes; its beginning is in {file} (it could not be written: File too large) "
        "(raise config.max_output, or let it print less)"
    )


@contextmanager
def largest_file(limit: int | None) -> Iterator[None]:
    """What a full disk does, on one that is not: no file of ours can be larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if limit is None else limit, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_file_of_a_call_that_fails_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cancel = threading.Event()
    flood = sh("yes | head -c 1000000; exec sleep 60")
    with pytest.raises(ProcessError, match="cancelled"):
        run(flood, max_output=4, overflow=True, cancel=cancel, on_output=lambda *_: cancel.set())
    seen = iter([b"", b"", None])

    def watch(*_: object) -> None:
        if next(seen) is None:
            assert len(list(tmp_path.iterdir())) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(flood, max_output=4, overflow=True, on_output=watch)
    assert list(tmp_path.iterdir()) == []


def test_output_is_handed_on_as_it_comes() -> None:
    pieces: list[tuple[str, bytes]] = []
    finished = run(
        [*PYTHON, "import os\nfor _ in range(3): os.write(1, b'x' * 100000)\nos.write(2, b'e')"],
        on_output=lambda stream, data: pieces.append((stream, data)),
        max_output=5,
    )
    assert b"".join(data for stream, data in pieces if stream == "stdout") == b"x" * 300000
    assert ("stderr", b"e") in pieces
    assert finished.stdout == b"xxxxx"


MUCH = 200 * 1024 * 1024
FLOOD = f"""
from plait.adapters.process.process import run
pieces = []
finished = run(["head", "-c", "{MUCH}", "/dev/zero"], on_output=lambda _, data: pieces.append(len(data)))
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(sum(pieces), len(finished.stdout), peak)
"""


def test_memory_does_not_grow_with_output() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", FLOOD],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        check=True,
    ).stdout
    total, kept, peak = map(int, printed.split())
    assert (total, kept) == (MUCH, 16 << 20)
    assert peak < 80 * 1024  # KiB


def test_peak_memory_is_measured() -> None:
    assert run([*PYTHON, "b = b'x' * 90_000_000"]).peak_rss > 85_000
    assert run(["true"]).peak_rss < 60_000


# ── ending ───────────────────────────────────────────────────────────────


def test_time_is_up_when_it_is_up() -> None:
    with pytest.raises(ProcessError) as caught:
        run(["sleep", "60"], timeout=0.1)
    assert (caught.value.code, str(caught.value)) == (
        "timeout",
        "'sleep' was ended: it took longer than 0.1 s\nfix: give it more time, or find out what it waits for",
    )


def test_a_program_that_is_asked_may_tidy_up(tmp_path: Path) -> None:
    script = "trap 'echo tidy > tidied; exit' TERM; echo; while :; do sleep 0.01; done"
    cancel = threading.Event()
    with pytest.raises(ProcessError):
        run(sh(script), cwd=tmp_path, cancel=cancel, on_output=lambda *_: cancel.set())
    assert (tmp_path / "tidied").read_text() == "tidy\n"


class SetAtTheEndOf:
    """Becomes set when the process whose number is in a file is gone."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.is_gone = False

    def is_set(self) -> bool:
        if self.is_gone:
            return True
        if self.file.exists() and (number := self.file.read_text().strip()):
            give_up = time.monotonic() + 10
            while os.path.exists(f"/proc/{number}") and time.monotonic() < give_up:
                os.sched_yield()
            self.is_gone = True  # and the next look finds out
        return False


def test_what_ended_before_its_call_was_cancelled_has_ended(tmp_path: Path) -> None:
    number = tmp_path / "number"
    script = 'sleep 60 & echo done; echo $$ > "$1"; exit 3'  # which keeps the output open
    finished = run([*sh(script), "sh", str(number)], cancel=SetAtTheEndOf(number))
    assert (finished.stdout, finished.exit_code) == (b"done\n", 3)


def test_a_call_can_be_cancelled() -> None:
    cancel = threading.Event()
    with pytest.raises(ProcessError) as caught:
        run(sh("echo; exec sleep 60"), cancel=cancel, on_output=lambda *_: cancel.set())
    assert (caught.value.code, str(caught.value)) == (
        "cancelled",
        "'/bin/sh' was ended: the call was cancelled",
    )


def test_what_holds_the_output_open_is_ended_after_the_program() -> None:
    finished = run(sh("sleep 600 & echo $!; exit 5"))
    assert finished.exit_code == 5
    assert not Path(f"/proc/{int(finished.stdout)}").exists()


def test_a_watcher_that_raises_ends_the_process() -> None:
    pids: list[int] = []

    def watch(_: str, data: bytes) -> None:
        pids.append(int(data))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(sh("echo $$; exec sleep 600"), on_output=watch)
    assert not Path(f"/proc/{pids[0]}").exists()


# ── many at once ─────────────────────────────────────────────────────────


def belongings() -> tuple[list[str], int]:
    gc.collect()
    # Without the numbers of pipes and sockets: one lane to the guardian is kept, and may be another.
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}").partition("[")[0]
        for fd in os.listdir("/proc/self/fd")
        if is_open(fd)
    ), threading.active_count()


def is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_two_hundred_at_once_leave_nothing_behind() -> None:
    run(["true"])
    before = belongings()
    gate = threading.Barrier(200)

    def one(number: int) -> ProcessResult:
        gate.wait(60)
        return run(sh("read x; sleep 0.2; echo $x"), stdin=b"%d\n" % number)

    with ThreadPoolExecutor(200) as pool:
        printed = [int(finished.stdout) for finished in pool.map(one, range(200))]
    assert printed == list(range(200))
    descriptors, threads = belongings()
    assert descriptors == before[0]
    assert threads <= before[1]  # one of an earlier test may have ended meanwhile


CROWD = """
import json, os, resource, sys
from concurrent.futures import ThreadPoolExecutor
from plait.core.errors import ProcessError
from plait.adapters.process.process import run

soft, hard, used = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
used = [os.dup(0) for _ in range(used)]  # a process takes one of the others

def one(number):
    try:
        return run(["sh", "-c", "read x; sleep 0.3; echo $x; ulimit -n"], stdin=b"%d" % number).stdout.decode()
    except ProcessError as error:
        return error.what

with ThreadPoolExecutor(160) as pool:
    said = list(pool.map(one, range(160)))
print(json.dumps([said, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""

ROOMS = [
    # soft   hard   used   soft limit afterwards
    (400,    400,   300,   400),     # no more are available: calls without room wait
    (400,    400,   0,     400),     # we have room, but the guardian needs more than we do
    (400,    2000,  300,   2000),
    (2000,   3000,  300,   2000),    # enough for all
]  # fmt: skip


@pytest.mark.parametrize(("soft", "hard", "used", "afterwards"), ROOMS)
def test_a_process_for_which_there_are_no_descriptors_waits_for_them(
    soft: int, hard: int, used: int, afterwards: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CROWD, str(soft), str(hard), str(used)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    outputs, limits = json.loads(ended.stdout)
    # What we take for ourselves is not passed on: programs may take a high limit for an invitation.
    assert outputs == [f"{number}\n{soft}\n" for number in range(160)]
    assert limits == [afterwards, hard]


def test_a_call_does_not_wait_for_descriptors_that_cannot_become_free() -> None:
    code = """
import os, resource
from plait.core.errors import MachineError
from plait.adapters.process.process import run, warm_up
warm_up()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = [os.dup(0) for _ in range(150)]
print(run(["echo", "in the reserve"]).stdout.decode(), end="")
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
try:
    run(["true"])
except MachineError as error:
    print(error.what)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=True
    )
    assert (
        ended.stdout.decode()
        == "in the reserve\n'true' cannot be started: too many files are open\n"
    )


def test_a_fork_starts_processes_whatever_its_parent_was_just_starting() -> None:
    code = """
import os
from plait.adapters.process import process, start
for _ in range(start.MOST_STARTING):
    next(start._STARTING).acquire()
child = os.fork()
if child == 0:
    print(process.run(["echo", "started"]).stdout.decode(), end="", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == b"started\n"


def test_a_wait_for_descriptors_can_be_cancelled() -> None:
    running = start._Running()
    running.begin()
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(InterruptedError):
        running.wait_for_end(cancel)
    assert running.waiting == []
    running.end()
    assert not running.wait_for_end(None)


# ── tools ────────────────────────────────────────────────────────────────

TOOLS = [
    # script                                             success  data                               error
    ("echo '{\"a\": [1, null]}'",                        True,    {"a": [1, None]},                  None),
    ("echo '[1, 2]'",                                    True,    [1, 2],                            None),
    ("echo 3",                                           True,    3,                                 None),
    ("echo '\"text\"'",                                  True,    "text",                            None),
    ("echo null",                                        True,    None,                              None),
    ("echo hello",                                       True,    "hello\n",                         None),
    ("echo NaN",                                         True,    "NaN\n",                           None),
    ("echo '{\"n\": 1e400}'",                            True,    '{"n": 1e400}\n',                  None),
    ("printf '%s' '[\"\\ud800\"]'",                      True,    '["\\ud800"]',                     None),
    ("true",                                             True,    "",                                None),
    ("printf '\\377'",                                   True,    "\ufffd",                          None),
    ("echo warning >&2; echo 1",                         True,    1,                                 None),
    ("echo '{\"success\": false, \"error\": \"why\"}'",  False,   {"success": False, "error": "why"}, "why"),
    ("echo '{\"success\": false}'",                      False,   {"success": False},                "the tool reports that it failed"),
    ("echo '{\"success\": true, \"error\": \"x\"}'",     True,    {"success": True, "error": "x"},   None),
    ("echo '{\"success\": false, \"error\": \"why\"}'; exit 2", False, {"success": False, "error": "why"}, "why"),
    ("exit 3",                                           False,   "",                                "exit code 3"),
    ("echo 1; echo broken >&2; exit 3",                  False,   1,                                 "broken"),
    ("seq 5 20 >&2; exit 1",                             False,   "",                                "\n".join(map(str, range(9, 21)))),
    ("kill -SEGV $$",                                    False,   "",                                "ended by SIGSEGV"),
]  # fmt: skip


def tool(
    script: str, *, timeout: float = 60, max_output: int = 1 << 20, overflow: str = ""
) -> ProcessCall:
    return ProcessCall(
        tuple(sh(script)), "/", PATH, limits=CallLimits(timeout, max_output, overflow)
    )


@pytest.mark.parametrize(("script", "success", "data", "error"), TOOLS)
def test_what_a_tool_prints_is_its_data(
    script: str, success: bool, data: object, error: str | None
) -> None:
    returned = call_process(tool(script))
    assert (returned.success, returned.data, returned.error) == (success, data, error)


def test_a_tool_reads_its_parameters_and_works_where_it_is_reported(tmp_path: Path) -> None:
    returned = call_process(
        ProcessCall(("/bin/sh", "-c", "cat; pwd -P >&2"), str(tmp_path), {}, b'{"n": 1}')
    )
    assert returned.data == {"n": 1}
    assert returned.stderr == f"{os.path.realpath(tmp_path)}\n"
    assert (returned.exit_code, returned.signal) == (0, None)


def test_a_signal_is_named() -> None:
    returned = call_process(tool("kill -KILL $$"))
    assert (returned.exit_code, returned.signal) == (137, "SIGKILL")


def test_deep_json_is_text() -> None:
    assert call_process(tool("head -c 300000 /dev/zero | tr '\\0' '['")).data == "[" * 300000


def test_a_tool_that_takes_too_long_has_failed() -> None:
    returned = call_process(tool("echo so far; echo working >&2; exec sleep 60", timeout=0.5))
    assert not returned.success
    assert returned.error == (
        "'/bin/sh' was ended: it took longer than 0.5 s (give it more time, or find out what it waits for)"
    )
    assert returned.metadata["timed_out"] is True
    assert (returned.data, returned.stderr) == ("so far\n", "working\n")


@pytest.mark.parametrize("command", ["seq 100000", "echo 1; echo 22", "echo '[1, 2]'"])
def test_a_tool_that_prints_too_much_has_failed_and_says_where_all_of_it_is(
    tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "output"
    returned = call_process(tool(command, max_output=4, overflow=str(folder)))
    assert (returned.success, returned.data) == (False, None)
    [file] = folder.iterdir()
    assert returned.overflow == str(file)
    assert returned.error == (
        f"it printed more than 4 bytes; all of it is in {file} (raise config.max_output, or let it print less)"
    )
    assert file.read_bytes() == run(sh(command)).stdout
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_without_a_folder_what_is_too_much_is_dropped() -> None:
    returned = call_process(tool("seq 100000", max_output=4))
    assert (returned.success, returned.data, returned.overflow) == (False, None, None)
    assert returned.error is not None
    assert "what it printed was dropped" in returned.error


def test_a_tool_that_complains_much_has_not_failed(tmp_path: Path) -> None:
    returned = call_process(tool("echo 3; seq 100000 >&2", max_output=4, overflow=str(tmp_path)))
    assert (returned.success, returned.data) == (True, 3)
    assert returned.overflow is not None
    assert Path(returned.overflow).read_text().endswith("\n100000\n")


def test_old_outputs_make_room_for_new_ones(tmp_path: Path) -> None:
    now = time.time()
    for age in range(MOST_FILES + 5):
        file = tmp_path / f"plait-stdout-{age}"
        file.write_text("x")
        os.utime(file, (now - age, now - age))
    os.utime(tmp_path / "plait-stdout-0", (now - FILE_AGE - 60, now - FILE_AGE - 60))
    returned = call_process(tool("seq 100000", max_output=4, overflow=str(tmp_path)))
    left = {file.name for file in tmp_path.iterdir()}
    assert len(left) == MOST_FILES
    assert Path(returned.overflow or "").name in left
    assert "plait-stdout-0" not in left
    assert {f"plait-stdout-{age}" for age in range(1, MOST_FILES)} <= left


RESULTS = [
    # stdout                                          data                                what came before it
    ('log\n{"success": false, "error": "no paper"}',  {"success": False, "error": "no paper"}, "log"),
    ('a\nb\n{"success": true, "n": 1}\n\n',           {"success": True, "n": 1},           "a\nb"),
    ('log\n{"a": 1}',                                 'log\n{"a": 1}\n',                   None),
    ('{"a": 1}\n{"a": 2}',                            '{"a": 1}\n{"a": 2}\n',              None),
    ('log\n{"success": "yes"}',                       'log\n{"success": "yes"}\n',         None),
    ('log\n  {"success": true}',                      'log\n  {"success": true}\n',        None),
    ('{"success": false}\nlog',                       '{"success": false}\nlog\n',         None),
    ('log\n{"success": tru',                          'log\n{"success": tru\n',            None),
    ('{\n "success": true\n}',                        {"success": True},                   None),
]  # fmt: skip


@pytest.mark.parametrize(("stdout", "data", "log"), RESULTS)
def test_a_last_line_that_says_success_is_the_result(
    stdout: str, data: Any, log: str | None
) -> None:
    returned = call_process(ProcessCall(("printf", "%s\n", stdout), "/", os.environ))
    assert returned.data == data
    assert returned.metadata.get("log") == log
    assert returned.success == (not isinstance(data, dict) or data["success"])


# ── shells ───────────────────────────────────────────────────────────────


def script(text: str, **env: str) -> BoundScript:
    return BoundScript(text, env, (), text)


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_a_script_of_any_length_runs(shell: str) -> None:
    text = f': {"x" * 200_000}; echo $A; test -z "$PLAIT_SCRIPT"; echo $?'
    assert run_shell(script(text, A="b"), shell=shell).stdout == b"b\n0\n"
    assert run_shell(script("-x; echo $A", A="b"), shell=shell).stdout == b"b\n"


def test_a_shell_runs_no_start_files(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.write_text("echo started\n")
    env = {**PATH, "ENV": str(start), "BASH_ENV": str(start), "BASH_FUNC_ls%%": "() { echo ours; }"}
    for shell in ("sh", "bash"):
        assert run_shell(script("ls /dev/null"), shell=shell, env=env).stdout == b"/dev/null\n"


PASSED_THROUGH = """
import sys
from plait.adapters.process.process import run_shell
from plait.template.shell.binding import BoundScript
print("before")
finished = run_shell(BoundScript(sys.argv[1], {}, (), ""), passthrough=True)
print("after", finished.exit_code, finished.stdout, finished.stderr)
"""


def passed_through(script: str) -> list[str]:
    return [sys.executable, "-c", PASSED_THROUGH, script]


def test_our_streams_can_be_passed_on() -> None:
    done = subprocess.run(
        passed_through("cat; echo bad >&2; exit 6"),
        input=b"in\n",
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout == b"before\nin\nafter 6 b'' b''\n"
    assert done.stderr == b"bad\n"


def test_at_a_terminal_its_keys_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    script = "trap 'echo caught; exit 7' INT; test -t 0 && echo ready; while :; do sleep 0.05; done"
    argv = passed_through(script)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    try:
        shown = read_until(terminal, b"ready")
        os.write(terminal, b"\x03")
        shown += read_until(terminal, b"after")
        assert b"caught" in shown
        assert read_until(terminal, b"\n").strip() == b"7 b'' b''"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, word: bytes) -> bytes:
    shown = b""
    while word not in shown:
        shown += os.read(terminal, 1)
    return shown


def test_results_show_no_output_by_accident() -> None:
    assert "hush" not in repr(run(["echo", "hush"]))
    assert json.dumps(call_process(tool("echo 1")).data) == "1"
