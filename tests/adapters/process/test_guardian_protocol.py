"""What comes to a guardian and what it answers: the compiled one and the one in Python alike."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plait.adapters.process import guardian, guardian_client
from plait.adapters.process.guardian_client import JobReport, split_reports

LIMIT = 30.0
FOLDER = str(Path(guardian.__file__).parent)
GUARDIANS = {
    "compiled": [guardian_client.COMPILED],
    "Python": [sys.executable, "-I", "-S", "-c", guardian_client._BOOT, FOLDER],
}


class Channel:
    """A channel to a guardian, which this test serves by hand."""

    def __init__(self, keeper: guardian_client._Guardian) -> None:
        self.socket, theirs = socket.socketpair()
        socket.send_fds(keeper.request, [guardian.CHANNEL], [theirs.fileno()])
        theirs.close()
        self.socket.settimeout(LIMIT)
        self._came = b""

    def order(self, id_: int, *argv: str, directory: str = "/", flags: int = 0) -> None:
        texts = [
            b"".join(os.fsencode(one) + b"\0" for one in part)
            for part in (argv, ["PATH=/usr/bin:/bin"], [], [directory])
        ]
        flags |= guardian.NO_INPUT | guardian.CAPTURE
        head = guardian.HEAD.pack(guardian.JOB, flags, 0, id_, *map(len, texts), 0)
        self.socket.sendall(head + b"".join(texts))

    def command(self, kind: bytes, id_: int, number: int = 0, grace: float = 0.1) -> None:
        self.socket.sendall(guardian.COMMAND.pack(kind, id_, number, grace))

    def until(self, is_enough: Callable[[list[JobReport]], bool]) -> list[JobReport]:
        """The reports up to the one that is enough."""
        reports: list[JobReport] = []
        while not is_enough(reports):
            data = self.socket.recv(1 << 20)
            assert data, "the guardian has closed the channel"
            new, self._came = split_reports(self._came + data)
            reports += new
        return reports

    def is_closed(self) -> bool:
        while data := self.socket.recv(1 << 20):
            self._came += data
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(params=GUARDIANS)
def keeper(request: pytest.FixtureRequest) -> Iterator[guardian_client._Guardian]:
    command = GUARDIANS[request.param]
    if not os.path.exists(command[0]):
        pytest.skip("the compiled guardian is not there: it needs a C compiler at installation")
    keeper = guardian_client._start_guardian(False, command=command)
    yield keeper
    keeper.request.close()
    os.waitpid(keeper.pid, 0)


@pytest.fixture
def channel(keeper: guardian_client._Guardian) -> Iterator[Channel]:
    channel = Channel(keeper)
    yield channel
    channel.close()


def is_gone(pid: int) -> bool:
    end = time.monotonic() + LIMIT
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        os.sched_yield()
    return not os.path.exists(f"/proc/{pid}")


def is_over(reports: list[JobReport]) -> bool:
    return any(one.kind == guardian.OVER for one in reports)


def ended(reports: list[JobReport]) -> dict[int, JobReport]:
    return {one.id: one for one in reports if one.kind == guardian.EXITED}


def printed(reports: list[JobReport], id_: int) -> tuple[bytes, bytes]:
    ours = [one for one in reports if one.id == id_]
    return b"".join(one.stdout for one in ours), b"".join(one.stderr for one in ours)


def test_many_jobs_share_a_channel(channel: Channel) -> None:
    for number in range(40):
        channel.order(
            number, "sh", "-c", "echo out $1; echo err $1 >&2; exit $1", "sh", f"{number}"
        )
    reports = channel.until(lambda reports: len(ended(reports)) == 40)
    assert {id_: os.waitstatus_to_exitcode(one.number) for id_, one in ended(reports).items()} == {
        number: number for number in range(40)
    }
    for number in range(40):
        assert printed(reports, number) == (b"out %d\n" % number, b"err %d\n" % number)


def test_orders_that_come_in_pieces_or_together_are_the_same(channel: Channel) -> None:
    sent: list[bytes] = []
    whole, channel.socket = channel.socket, Recorder(sent)  # type: ignore[assignment]
    for number in range(3):
        channel.order(number, "printf", "%s", "x" * 3000)
    channel.socket = whole
    data = b"".join(sent)
    for at in range(0, len(data), 997):
        channel.socket.sendall(data[at : at + 997])
    reports = channel.until(lambda reports: len(ended(reports)) == 3)
    assert [printed(reports, number)[0] for number in range(3)] == [b"x" * 3000] * 3


class Recorder:
    """Keeps what is sent."""

    def __init__(self, sent: list[bytes]) -> None:
        self.sendall = sent.append


REFUSED = [
    # argv               directory          errno             because of the directory
    (["/no/program"],    "/",               errno.ENOENT,     False),
    (["no-program"],     "/",               errno.ENOENT,     False),
    (["/etc/passwd"],    "/",               errno.EACCES,     False),
    (["true"],           "/no/directory",   errno.ENOENT,     True),
    (["true"],           "/etc/passwd",     errno.ENOTDIR,    True),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "directory", "number", "is_directory"), REFUSED)
def test_what_cannot_be_started_is_refused_and_the_channel_goes_on(
    channel: Channel, argv: list[str], directory: str, number: int, is_directory: bool
) -> None:
    channel.order(1, *argv, directory=directory)
    [report] = channel.until(bool)
    assert (report.kind, report.number) == (guardian.REFUSED, number)
    assert bool(report.open_streams & guardian.NO_DIRECTORY) is is_directory
    channel.order(2, "echo", "a")
    reports = channel.until(lambda reports: 2 in ended(reports))
    assert printed(reports, 2) == (b"a\n", b"")


def test_output_that_another_process_keeps_open_is_reported(channel: Channel) -> None:
    channel.order(2, "sh", "-c", "(sleep 0.3; echo later; exec >&-; sleep 60) & echo now")
    reports = channel.until(lambda reports: 2 in ended(reports))
    assert ended(reports)[2].open_streams == 3
    reports += channel.until(lambda reports: b"later" in printed(reports, 2)[0])
    assert printed(reports, 2)[0] == b"now\nlater\n"
    channel.command(guardian.END, 2)
    reports = channel.until(is_over)
    assert [one.number for one in reports if one.kind == guardian.OVER] == [0]


def test_the_end_of_open_output_is_reported(channel: Channel) -> None:
    channel.order(1, "sh", "-c", "(sleep 0.2; echo later) & echo now")
    reports = channel.until(
        lambda reports: any(one.kind == guardian.CLOSED and not one.open_streams for one in reports)
    )
    assert printed(reports, 1)[0] == b"now\nlater\n"


def test_a_signal_and_an_end_reach_only_their_job(channel: Channel) -> None:
    for number in (1, 2, 3):
        channel.order(number, "sh", "-c", "echo; exec sleep 60")
    channel.until(lambda reports: sum(len(one.stdout) for one in reports) == 3)
    channel.command(guardian.SIGNAL, 1, signal.SIGUSR1)
    reports = channel.until(lambda reports: 1 in ended(reports))
    assert os.WTERMSIG(ended(reports)[1].number) == signal.SIGUSR1
    channel.command(guardian.END, 2)
    reports = channel.until(is_over)
    assert {*ended(reports)} == {2}
    channel.command(guardian.END, 77)  # there is no such job
    [report] = channel.until(bool)
    assert (report.kind, report.id) == (guardian.OVER, 77)


def test_a_slow_reader_slows_the_job_and_not_the_guardian(
    keeper: guardian_client._Guardian, channel: Channel
) -> None:
    size = 50_000_000
    channel.order(1, "head", "-c", str(size), "/dev/zero")
    channel.until(bool)  # it prints, and nobody reads on
    other = Channel(keeper)
    for number in range(20):
        other.order(number, "echo", "a")
        other.until(lambda reports: bool(ended(reports)))
    status = Path(f"/proc/{keeper.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 40_000
    other.close()
    seen = 0
    while True:
        reports = channel.until(bool)
        seen += sum(len(one.stdout) for one in reports)
        if ended(reports):
            break
    assert size - seen < (4 << 20)  # what the first reports brought


def test_a_slow_reader_of_both_streams_gets_all(channel: Channel) -> None:
    size = 5_000_000
    script = f"head -c {size} /dev/zero & head -c {size} /dev/zero >&2; wait"
    channel.order(1, "sh", "-c", script)
    time.sleep(1)  # both pipes are full, and so is the channel
    reports = channel.until(lambda reports: 1 in ended(reports))
    assert [len(one) for one in printed(reports, 1)] == [size, size]


def test_a_channel_that_a_report_finds_closed_ends_its_job(
    keeper: guardian_client._Guardian, channel: Channel, tmp_path: Path
) -> None:
    turn = 64  # events that the guardian handles before it sends reports
    fifos = [str(tmp_path / f"{number}") for number in range(turn)]
    for fifo in fifos:
        os.mkfifo(fifo)
    closing = Channel(keeper)
    closing.order(0, "sh", "-c", 'echo $$; read x <"$1"; echo; exec sleep 60', "sh", fifos[0])
    [report] = closing.until(bool)
    for number in range(1, turn):
        channel.order(number, "cat", fifos[number])
    writers = [os.open(fifo, os.O_WRONLY) for fifo in fifos]  # each waits for its reader
    time.sleep(0.1)  # until the output of all is watched
    os.kill(keeper.pid, signal.SIGSTOP)
    for writer in writers:
        os.write(writer, b"a\n")
    time.sleep(0.5)  # until all have printed
    closing.close()  # the event after those
    os.kill(keeper.pid, signal.SIGCONT)
    assert is_gone(int(report.stdout))
    for writer in writers:
        os.close(writer)


def test_a_job_can_be_ended_again(channel: Channel) -> None:
    read, write = os.pipe()
    texts = b"true\0", b"PATH=/usr/bin:/bin\0", b"", b"/\0"
    sizes = map(len, texts)
    head = guardian.HEAD.pack(guardian.JOB, guardian.NO_INPUT, 2, 1, *sizes, 0)  # not captured
    socket.send_fds(channel.socket, [head + b"".join(texts)], [write, write])
    channel.until(lambda reports: 1 in ended(reports))
    for _ in range(2):
        channel.command(guardian.END, 1)
        assert [one.number for one in channel.until(is_over)] == [0]
    os.close(read)
    os.close(write)


def test_a_job_is_ended_also_if_the_guardian_has_no_more_descriptors(
    keeper: guardian_client._Guardian, channel: Channel
) -> None:
    channel.order(1, "sh", "-c", "trap '' TERM; setsid sleep 60 & echo $!; exec sleep 60")
    [report] = channel.until(lambda reports: printed(reports, 1)[0].endswith(b"\n"))
    used = f"/proc/{keeper.pid}/fd"
    limit = 1 + max(map(int, os.listdir(used)))
    resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, (limit, limit))
    others = [Channel(keeper) for _ in range(limit)]
    end = time.monotonic() + LIMIT
    while len(os.listdir(used)) < limit and time.monotonic() < end:
        os.sched_yield()
    channel.command(guardian.END, 1)
    reports = channel.until(is_over)
    assert [one.number for one in reports if one.kind == guardian.OVER] == [0]
    assert is_gone(int(report.stdout))
    for other in others:
        other.close()


BAD = [
    b"?",
    b"\0" * 100,
    guardian.HEAD.pack(guardian.JOB, 3, 0, 1, 0, 0, 0, 2, 0) + b"/\0",  # no program
    guardian.HEAD.pack(guardian.JOB, 3, 0, 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, 0),
    guardian.HEAD.pack(guardian.JOB, 3, 0, 1, 5, 0, 0, 2, 0) + b"true!/\0",  # no NUL
    guardian.HEAD.pack(guardian.JOB, 0, 0, 1, 5, 0, 0, 2, 0) + b"true\0/\0",  # no descriptors
]


@pytest.mark.parametrize("message", BAD)
def test_a_channel_that_breaks_the_protocol_is_closed_and_its_jobs_end(
    keeper: guardian_client._Guardian, channel: Channel, message: bytes
) -> None:
    channel.order(1, "sh", "-c", "echo $$; exec sleep 60")
    [report] = channel.until(lambda reports: printed(reports, 1)[0].endswith(b"\n"))
    channel.socket.sendall(message)
    assert channel.is_closed()
    assert is_gone(int(report.stdout))
    other = Channel(keeper)
    other.order(1, "echo", "a")
    assert printed(other.until(lambda reports: bool(ended(reports))), 1) == (b"a\n", b"")
    other.close()


def test_a_guardian_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "guardian"
    broken.write_bytes(b"\x7fELF for another machine")
    broken.chmod(0o755)
    warnings: list[str] = []
    monkeypatch.setattr(guardian_client, "COMPILED", str(broken))
    monkeypatch.setattr(guardian_client, "_COMPILED_PROBLEM", None)
    monkeypatch.delenv(guardian_client.NO_COMPILED, raising=False)
    with guardian_client.listening(warnings.append):
        keeper = guardian_client._start_guardian(False)
    channel = Channel(keeper)
    channel.order(1, "echo", "a")
    assert printed(channel.until(lambda reports: bool(ended(reports))), 1) == (b"a\n", b"")
    assert warnings == [
        "the compiled guardian does not work here (Exec format error): the slower one in Python serves"
    ]
    channel.close()
    keeper.request.close()
    os.waitpid(keeper.pid, 0)
