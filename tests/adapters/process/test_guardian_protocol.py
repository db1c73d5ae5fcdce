"""What comes to a guardian and what it answers: the compiled one and the one in Python alike."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from plait.adapters.process import guardian, guardian_process
from plait.adapters.process.guardian_process import JobReport, split_reports
from plait.core.grace import GRACE

LIMIT = 30.0
FOLDER = str(Path(guardian.__file__).parent)
GUARDIANS = {
    "compiled": [guardian_process.COMPILED],
    "compiled, without signalfd": [
        "/usr/bin/env",
        "PLAIT_NO_SIGNALFD=1",
        guardian_process.COMPILED,
    ],
    "Python": [sys.executable, "-I", "-S", "-c", guardian_process._BOOT, FOLDER],
}


class Channel:
    """A channel to a guardian, which this test serves by hand."""

    def __init__(self, keeper: guardian_process.Guardian) -> None:
        self.socket, theirs = socket.socketpair()
        socket.send_fds(keeper.request, [guardian.CHANNEL], [theirs.fileno()])
        theirs.close()
        self.socket.settimeout(LIMIT)
        self._came = b""

    def order(self, id_: int, *argv: str, directory: str = "/") -> None:
        self.socket.sendall(pack(id_, *argv, directory=directory))

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


def pack(
    id_: int,
    *argv: str,
    directory: str = "/",
    env: Sequence[str] = ("PATH=/usr/bin:/bin",),
    more: Sequence[str] = (),
    descriptors: int = 0,
) -> bytes:
    """An order of a captured job."""
    texts = [
        b"".join(os.fsencode(one) + b"\0" for one in part)
        for part in (argv, env, more, [directory])
    ]
    flags = guardian.NO_INPUT | guardian.CAPTURE
    sizes = map(len, texts)
    return guardian.HEAD.pack(guardian.JOB, flags, descriptors, id_, *sizes, 0) + b"".join(texts)


@pytest.fixture(params=GUARDIANS)
def keeper(request: pytest.FixtureRequest) -> Iterator[guardian_process.Guardian]:
    command = GUARDIANS[request.param]
    if not os.path.exists(command[-1]) and request.param != "Python":
        pytest.skip("the compiled guardian is not there: it needs a C compiler at installation")
    keeper = guardian_process.start_guardian(False, command=command)
    yield keeper
    keeper.request.close()
    assert os.waitpid(keeper.pid, 0) == (keeper.pid, 0)


@pytest.fixture
def channel(keeper: guardian_process.Guardian) -> Iterator[Channel]:
    channel = Channel(keeper)
    yield channel
    channel.close()


def is_gone(pid: int) -> bool:
    end = time.monotonic() + LIMIT
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        os.sched_yield()
    return not os.path.exists(f"/proc/{pid}")


def until(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true soon."""
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def count_descriptors(keeper: guardian_process.Guardian) -> int:
    return len(os.listdir(f"/proc/{keeper.pid}/fd"))


def count_at_rest(keeper: guardian_process.Guardian) -> int:
    """Descriptors of a guardian that has prestarted a shell and has no job."""
    channel = Channel(keeper)
    for number in range(5):
        channel.order(number, "sh", "-c", "true")
        channel.until(lambda reports: bool(ended(reports)))
    with_channel = count_descriptors(keeper)
    channel.close()
    # On a busy machine it takes a while until the guardian sees the end of the channel.
    assert until(lambda: count_descriptors(keeper) < with_channel)
    counts = []
    for _ in range(20):
        counts.append(count_descriptors(keeper))
        time.sleep(0.005)
    return min(counts)


def peak_memory(keeper: guardian_process.Guardian) -> int:
    """KiB."""
    status = Path(f"/proc/{keeper.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def require_service(keeper: guardian_process.Guardian) -> None:
    other = Channel(keeper)
    other.order(1, "echo", "a")
    assert printed(other.until(lambda reports: bool(ended(reports))), 1) == (b"a\n", b"")
    other.close()


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
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    size = 50_000_000
    channel.order(1, "head", "-c", str(size), "/dev/zero")
    channel.until(bool)  # it prints, and its output is not read any more
    other = Channel(keeper)
    for number in range(20):
        other.order(number, "echo", "a")
        other.until(lambda reports: bool(ended(reports)))
    assert peak_memory(keeper) < 40_000
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
    keeper: guardian_process.Guardian, channel: Channel, tmp_path: Path
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
    keeper: guardian_process.Guardian, channel: Channel
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
    keeper: guardian_process.Guardian, channel: Channel, message: bytes
) -> None:
    channel.order(1, "sh", "-c", "echo $$; exec sleep 60")
    [report] = channel.until(lambda reports: printed(reports, 1)[0].endswith(b"\n"))
    channel.socket.sendall(message)
    assert channel.is_closed()
    assert is_gone(int(report.stdout))
    require_service(keeper)


# ── a batch ──────────────────────────────────────────────────────────────

BATCH = 500


def test_a_batch_of_orders_that_is_read_slowly_loses_no_report(
    keeper: guardian_process.Guardian, channel: Channel, tmp_path: Path
) -> None:
    before = count_at_rest(keeper)
    folders = [tmp_path / f"{number}" for number in range(BATCH)]
    for folder in folders:
        folder.mkdir()
    refused = set(range(7, BATCH, 50))
    ended_early = set(range(3, BATCH, 50))
    orders = [
        pack(
            number,
            "/no/program" if number in refused else "sh",
            "-c",
            "pwd; exec sleep 60" if number in ended_early else "pwd; echo $1 >&2; exit $1",
            "sh",
            f"{number % 250}",
            directory=str(folder),
        )
        for number, folder in enumerate(folders)
    ]
    ends = [guardian.COMMAND.pack(guardian.END, number, 0, 9.0) for number in sorted(ended_early)]
    channel.socket.settimeout(LIMIT)
    channel.socket.sendall(b"".join([*orders, *ends]))
    came = b""
    while True:  # in small pieces
        piece = channel.socket.recv(1000)
        assert piece, "the guardian has closed the channel"
        came += piece
        if len(piece) == 1000:
            continue
        reports, _ = split_reports(came)
        over = {one.id for one in reports if one.kind == guardian.OVER}
        if len(ended(reports)) == BATCH - len(refused) and over == ended_early:
            break
    assert {one.id for one in reports if one.kind == guardian.REFUSED} == refused
    assert len([one for one in reports if one.kind == guardian.EXITED]) == BATCH - len(refused)
    for number, folder in enumerate(folders):
        if number not in refused | ended_early:
            code = number % 250
            assert os.waitstatus_to_exitcode(ended(reports)[number].number) == code
            assert printed(reports, number) == (b"%s\n" % bytes(folder), b"%d\n" % code)
    assert until(lambda: count_descriptors(keeper) <= before)


def test_a_batch_whose_channel_closes_in_the_middle_leaves_no_process(
    keeper: guardian_process.Guardian,
) -> None:
    before = count_at_rest(keeper)
    token = f"PLAIT_TEST_BATCH={os.urandom(8).hex()}"
    deaf = "trap '' TERM; setsid sleep 60 & echo; exec sleep 60"
    orders = [
        pack(number, "sh", "-c", deaf, env=["PATH=/usr/bin:/bin", token])
        for number in range(BATCH // 5)
    ]
    closing = Channel(keeper)
    closing.socket.sendall(b"".join(orders))
    for number in range(10):
        closing.command(guardian.END, number, grace=60.0)
    closing.until(lambda reports: len({one.id for one in reports if one.stdout}) > BATCH // 10)
    closing.socket.sendall(pack(BATCH, "true")[:50])  # an order that is cut
    closing.close()
    assert until(lambda: not with_variable(token))
    assert until(lambda: count_descriptors(keeper) <= before)
    require_service(keeper)


def test_a_client_that_writes_all_its_orders_before_it_reads_need_not_wait(
    channel: Channel,
) -> None:
    count, size = 300, 60_000  # 18 MB of output, and more orders than a socket holds
    filler = [f"V{number}={'x' * 1000}" for number in range(4)]
    orders = [
        pack(id_, "head", "-c", str(size), "/dev/zero", env=["PATH=/usr/bin:/bin", *filler])
        for id_ in range(count)
    ]
    channel.socket.sendall(b"".join(orders))
    reports = channel.until(lambda reports: len(ended(reports)) == count)
    assert sum(len(one.stdout) for one in reports) == count * size


def with_variable(variable: str) -> list[int]:
    """Processes that have it in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if variable.encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
    return found


# ── too much, and too little ─────────────────────────────────────────────

NAMES = [f"V{number}=" for number in range(1025)]
TOO_MANY = {
    "arguments": lambda: pack(1, "true", *[""] * 2**20),
    "variables": lambda: pack(1, "true", env=[""] * (2**20 + 1)),
    "changes": lambda: pack(1, "true", env=NAMES * 900, more=NAMES),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_more_texts_than_linux_executes_are_refused(
    keeper: guardian_process.Guardian, channel: Channel, what: str
) -> None:
    channel.socket.sendall(TOO_MANY[what]())
    [report] = channel.until(bool)
    assert (report.kind, report.number) == (guardian.REFUSED, errno.E2BIG)
    require_service(keeper)


def test_reports_that_are_not_read_stop_the_orders_and_not_the_guardian(
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    before = peak_memory(keeper)
    commands = (
        guardian.COMMAND.pack(guardian.END, 7, 0, 0.0) * 50_000
    )  # 1 MB, and 2.4 MB of reports
    sent, all_ = 0, 50 * len(commands)
    channel.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while sent < all_:
            sent += channel.socket.send(commands[sent % len(commands) :])
    assert sent < all_
    require_service(keeper)
    assert peak_memory(keeper) - before < 80_000
    channel.socket.settimeout(LIMIT)
    answered = 0
    while answered < sent // guardian.COMMAND.size * guardian.REPORT.size:
        answered += len(channel.socket.recv(1 << 20))
    assert answered == sent // guardian.COMMAND.size * guardian.REPORT.size


def test_orders_whose_descriptors_do_not_come_are_not_collected_for_ever(
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    order = pack(1, "true", descriptors=1)
    orders = order * (100 * 2**20 // len(order))
    with pytest.raises(ConnectionError):
        channel.socket.sendall(orders)
    require_service(keeper)
    assert peak_memory(keeper) < 300_000


def test_descriptors_that_no_order_takes_are_not_collected_for_ever(
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    before = count_at_rest(keeper) - 1  # without this channel
    channel.socket.sendall(pack(1, "x" * 1000, descriptors=1)[:100])
    with contextlib.suppress(ConnectionError):
        for _ in range(10):
            socket.send_fds(channel.socket, [b"x"], [0] * guardian.MAX_DESCRIPTORS)
    with contextlib.suppress(ConnectionError):
        assert channel.is_closed()
    assert until(lambda: count_descriptors(keeper) <= before)


def test_what_is_no_channel_is_closed(keeper: guardian_process.Guardian, tmp_path: Path) -> None:
    before = count_at_rest(keeper)
    read, write = os.pipe()
    with (tmp_path / "file").open("wb") as file:
        socket.send_fds(keeper.request, [guardian.CHANNEL], [file.fileno(), read, write, 0])
        socket.send_fds(keeper.request, [b"?"], [file.fileno()])  # not a request at all
    os.close(read)
    os.close(write)
    require_service(keeper)
    assert until(lambda: count_descriptors(keeper) <= before)


def test_an_id_that_another_job_has_breaks_the_protocol(
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    channel.order(1, "sh", "-c", "echo $$; exec sleep 60")
    [report] = channel.until(lambda reports: printed(reports, 1)[0].endswith(b"\n"))
    channel.order(1, "sleep", "60")
    assert channel.is_closed()
    assert is_gone(int(report.stdout))
    require_service(keeper)


@pytest.mark.parametrize("grace", [-1e300, float("nan")])
def test_a_grace_that_is_none_ends_at_once(channel: Channel, grace: float) -> None:
    channel.order(1, "sh", "-c", "trap '' TERM; echo; sleep 60")
    channel.until(bool)
    channel.command(guardian.END, 1, grace=grace)
    reports = channel.until(is_over)
    assert [one.number for one in reports if one.kind == guardian.OVER] == [0]
    assert os.WTERMSIG(ended(reports)[1].number) == signal.SIGKILL


# ── the end of all ───────────────────────────────────────────────────────

COUNTS = """
import os, signal, sys, time
def count(*_):
    os.write(1, b"asked\\n")
    os.write(file, b"asked\\n")
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
signal.signal(signal.SIGTERM, count)
if len(sys.argv) > 2:
    os.setsid()
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("session", [[], ["own"]])
def test_the_end_of_all_asks_each_process_once(
    keeper: guardian_process.Guardian, channel: Channel, tmp_path: Path, session: list[str]
) -> None:
    file = tmp_path / "asked"
    script = f'{sys.executable} -I -S -c "$0" "$@" & sleep 60'
    channel.order(1, "sh", "-c", script, COUNTS, str(file), *session)
    channel.until(bool)
    keeper.request.send(guardian.END_ALL)
    reports = channel.until(lambda reports: b"asked\n" in printed(reports, 1)[0])
    keeper.request.send(guardian.END_ALL)
    channel.command(guardian.END, 1, grace=0.5)
    reports += channel.until(is_over)
    assert printed(reports, 1)[0] == b"asked\n"
    assert file.read_bytes() == b"asked\n"


def test_the_end_of_plait_after_the_end_of_all_sends_no_request(
    keeper: guardian_process.Guardian, channel: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "asked"
    channel.order(1, sys.executable, "-I", "-S", "-c", COUNTS, str(file))
    channel.until(bool)
    keeper.request.send(guardian.END_ALL)
    channel.until(lambda reports: b"asked\n" in printed(reports, 1)[0])
    keeper.request.shutdown(socket.SHUT_WR)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)  # it has killed the job
    assert file.read_bytes() == b"asked\n"


def test_a_job_that_begins_during_the_end_of_all_is_asked_by_the_next(
    keeper: guardian_process.Guardian, channel: Channel
) -> None:
    channel.order(1, "sh", "-c", "trap '' TERM; echo; sleep 60")
    channel.until(bool)
    keeper.request.send(guardian.END_ALL)
    channel.order(2, "sh", "-c", "echo; exec sleep 60")
    channel.until(lambda reports: any(one.id == 2 for one in reports))
    keeper.request.send(guardian.END_ALL)
    reports = channel.until(lambda reports: 2 in ended(reports))
    assert os.WTERMSIG(ended(reports)[2].number) == signal.SIGTERM


@pytest.mark.parametrize("is_all", [False, True])
def test_a_guardian_that_was_stopped_for_long_kills_before_it_gives_up(
    keeper: guardian_process.Guardian, channel: Channel, is_all: bool
) -> None:
    channel.order(1, "sh", "-c", "trap 'echo asked' TERM; echo $$; while :; do sleep 0.01; done")
    [report] = channel.until(lambda reports: printed(reports, 1)[0].endswith(b"\n"))
    if is_all:
        keeper.request.send(guardian.END_ALL)
    else:
        channel.command(guardian.END, 1, grace=1.0)
    channel.until(lambda reports: b"asked" in printed(reports, 1)[0])
    os.kill(keeper.pid, signal.SIGSTOP)
    time.sleep(GRACE + guardian.GIVE_UP + 0.1)
    os.kill(keeper.pid, signal.SIGCONT)
    assert is_gone(int(report.stdout))


# ── what the system refuses ──────────────────────────────────────────────

REFUSING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
int epoll_ctl(int poller, int what, int fd, struct epoll_event *event)
{
    int type;
    socklen_t size = sizeof type;
    if (what == EPOLL_CTL_ADD && fd > 7 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
        errno = ENOSPC;
        return -1;
    }
    int (*real)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
    return real(poller, what, fd, event);
}
"""


@pytest.fixture
def blind(tmp_path: Path) -> Iterator[guardian_process.Guardian]:
    """A compiled guardian for which the kernel watches no pipe."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not os.path.exists(guardian_process.COMPILED):
        pytest.skip("there is no C compiler (Debian: apt install gcc libc6-dev)")
    library, source = tmp_path / "refusing.so", tmp_path / "refusing.c"
    source.write_text(REFUSING)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    command = ["/usr/bin/env", f"LD_PRELOAD={library}", guardian_process.COMPILED]
    keeper = guardian_process.start_guardian(False, command=command)
    yield keeper
    keeper.request.close()
    assert os.waitpid(keeper.pid, 0) == (keeper.pid, 0)


def test_output_that_the_kernel_does_not_watch_arrives(blind: guardian_process.Guardian) -> None:
    channel = Channel(blind)
    before = count_at_rest(blind)
    size = 1_000_000
    channel.order(1, "sh", "-c", f"head -c {size} /dev/zero; sleep 0.1; echo end >&2")
    channel.order(2, "sh", "-c", "(sleep 0.3; echo later) & echo now")
    reports = channel.until(
        lambda reports: (
            1 in ended(reports)
            and any(one.kind == guardian.CLOSED and not one.open_streams for one in reports)
        )
    )
    assert [len(one) for one in printed(reports, 1)] == [size, 4]
    assert printed(reports, 2)[0] == b"now\nlater\n"
    assert until(lambda: count_descriptors(blind) <= before)
    channel.close()


def test_a_guardian_without_a_socket_ends(tmp_path: Path) -> None:
    if not os.path.exists(guardian_process.COMPILED):
        pytest.skip("the compiled guardian is not there: it needs a C compiler at installation")
    (tmp_path / "file").touch()
    for given in ("<file", "<&-"):
        command = f'exec "$0" {guardian.VERSION} 1 0.1 own "" 3{given}'
        done = subprocess.run(
            ["sh", "-c", command, guardian_process.COMPILED],
            cwd=tmp_path,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 70


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("kind", ["compiled", "Python"])
def test_without_room_for_a_mark_a_job_and_all_ends_are_the_same(kind: str) -> None:
    """The limit of file locks, by which a job is marked, is lower than the mark."""
    command = GUARDIANS[kind]
    if not os.path.exists(command[0]):
        pytest.skip("the compiled guardian is not there: it needs a C compiler at installation")
    give_up = ["--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else ["--clear-groups"]
    lower = [shutil.which("prlimit") or "prlimit", "--locks=1000:1000"]
    keeper = guardian_process.start_guardian(
        False, command=[*lower, shutil.which("setpriv") or "", *give_up, *command]
    )
    channel = Channel(keeper)
    deaf = "trap '' TERM; grep locks /proc/$$/limits; setsid sleep 60 & echo $!; exec sleep 60"
    channel.order(1, "sh", "-c", deaf)
    reports = channel.until(lambda reports: printed(reports, 1)[0].count(b"\n") == 2)
    limits, orphan = printed(reports, 1)[0].splitlines()
    assert limits.split()[3:5] == [b"1000", b"1000"]
    channel.command(guardian.END, 1)
    assert [one.number for one in channel.until(is_over) if one.kind == guardian.OVER] == [0]
    assert is_gone(int(orphan))  # it was below the leader
    channel.order(2, "sh", "-c", "setsid sleep 60 & echo $!")
    orphan = printed(channel.until(lambda reports: 2 in ended(reports)), 2)[0]
    channel.close()
    keeper.request.close()
    assert os.waitpid(keeper.pid, 0) == (keeper.pid, 0)
    assert is_gone(int(orphan))


# In a namespace of pids whose next one we choose.
REUSE = """
import os, socket, sys
sys.path[:0] = {paths!r}
from plait.adapters.process import guardian, guardian_process
from test_guardian_protocol import Channel, ended, is_over, until

def next_is(pid):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))

keeper = guardian_process.start_guardian(False, command={command!r})
channel = Channel(keeper)
read, write = os.pipe()
texts = b"sh\\0-c\\0setsid sleep 60 & true\\0", b"PATH=/usr/bin:/bin\\0", b"", b"/\\0"
head = guardian.HEAD.pack(guardian.JOB, guardian.NO_INPUT, 2, 1, *map(len, texts), 0)
next_is(1000)
socket.send_fds(channel.socket, [head + b"".join(texts)], [write, write])
first = ended(channel.until(lambda reports: 1 in ended(reports)))[1]
assert until(lambda: os.getpgid(1001) == 1001), "its orphan still has the number as its group"
next_is(1000)
channel.order(2, "sh", "-c", "echo; exec sleep 60")
second = channel.until(bool)[0]
assert first.pid == second.pid == 1000, (first, second)
channel.command(guardian.END, 1)
reports = channel.until(is_over)
assert not ended(reports), "the other job was ended"
assert not os.path.exists("/proc/1001"), "the orphan is left"
channel.command(guardian.END, 2)
reports = channel.until(is_over)
assert set(ended(reports)) == {{2}}
print("right")
"""


@pytest.mark.parametrize("kind", ["compiled", "Python"])
def test_a_pid_that_another_job_has_got_since_is_not_ended(kind: str) -> None:
    command = GUARDIANS[kind]
    if not os.path.exists(command[0]):
        pytest.skip("the compiled guardian is not there: it needs a C compiler at installation")
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may choose pids")
    paths = [str(Path(__file__).parent), str(Path(FOLDER).parents[2]), *sys.path]
    code = REUSE.format(paths=paths, command=command)
    done = subprocess.run(
        [*apart, sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr.decode()[-3000:]) == (b"right\n", "")


def test_a_guardian_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "guardian"
    broken.write_bytes(b"\x7fELF for another machine")
    broken.chmod(0o755)
    warnings: list[str] = []
    monkeypatch.setattr(guardian_process, "COMPILED", str(broken))
    monkeypatch.setattr(guardian_process, "_COMPILED_PROBLEM", None)
    monkeypatch.delenv(guardian_process.NO_COMPILED, raising=False)
    with guardian_process.listening(warnings.append):
        keeper = guardian_process.start_guardian(False)
    channel = Channel(keeper)
    channel.order(1, "echo", "a")
    assert printed(channel.until(lambda reports: bool(ended(reports))), 1) == (b"a\n", b"")
    assert warnings == [
        "the compiled guardian does not work here (Exec format error): the slower one in Python serves"
    ]
    channel.close()
    keeper.request.close()
    assert os.waitpid(keeper.pid, 0) == (keeper.pid, 0)
