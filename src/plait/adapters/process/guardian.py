"""The guardian: a small process that starts all others, and ends them when Plait is gone.

It is a subreaper, so everything that its children start stays below it in the process tree, daemons
too. It has one end of a socket whose other end is in Plait, so it notices Plait's death in any
case. To end a job it sends SIGTERM, waits, then stops every process of the job, looks again until
it finds no new one, and kills them: a stopped process cannot fork.

The parent of an orphan no longer tells which job it belongs to. So each job is marked by a resource
limit that every descendant inherits and that Linux no longer uses: the number of file locks. The
mark needs no environment variable and costs nothing. It finds the processes of a job even after the
guardian was killed: the next guardian kills what has its marks.

Without /proc (macOS, BSD) a job is its process group, and no more.

    request socket   Plait → guardian   CHANNEL and the descriptor of one; END_ALL; closing it ends
                                        all jobs
                     guardian → Plait   READY, once: from now on it takes orders
    channel          Plait → guardian   orders: HEAD, argv, env, more env, directory, and descriptors;
                                        COMMANDs for jobs of this channel
                     guardian → Plait   REPORTs, each with what the job printed since

A channel has any number of jobs, each with an id that Plait chose. Closing it ends those that still
run. The guardian reads the output of a captured job and passes it on.

`guardian.c` does the same faster and serves where it could be compiled; both pass the same tests.
This one is as simple as it can be: it executes every program and prestarts no shell.

This program is imported alone, without Plait, and uses the C parts of `signal` and `socket`: with
the whole modules, `ctypes` and `dataclasses` it would start half as fast.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Iterable, Sequence
    from typing import Final
else:
    import _signal as signal
    import _socket as socket

if TYPE_CHECKING or __package__:
    from plait.adapters.process.guardian_protocol import (
        CAPTURE as CAPTURE,
    )
    from plait.adapters.process.guardian_protocol import (
        CHANNEL as CHANNEL,
    )
    from plait.adapters.process.guardian_protocol import (
        CLOSED as CLOSED,
    )
    from plait.adapters.process.guardian_protocol import (
        COMMAND as COMMAND,
    )
    from plait.adapters.process.guardian_protocol import (
        END as END,
    )
    from plait.adapters.process.guardian_protocol import (
        END_ALL as END_ALL,
    )
    from plait.adapters.process.guardian_protocol import (
        EXITED as EXITED,
    )
    from plait.adapters.process.guardian_protocol import (
        FIRST_FILE as FIRST_FILE,
    )
    from plait.adapters.process.guardian_protocol import (
        GIVE_UP as GIVE_UP,
    )
    from plait.adapters.process.guardian_protocol import (
        HEAD as HEAD,
    )
    from plait.adapters.process.guardian_protocol import (
        JOB as JOB,
    )
    from plait.adapters.process.guardian_protocol import (
        MAX_DESCRIPTORS as MAX_DESCRIPTORS,
    )
    from plait.adapters.process.guardian_protocol import (
        NO_DIRECTORY as NO_DIRECTORY,
    )
    from plait.adapters.process.guardian_protocol import (
        NO_INPUT as NO_INPUT,
    )
    from plait.adapters.process.guardian_protocol import (
        OUTPUT as OUTPUT,
    )
    from plait.adapters.process.guardian_protocol import (
        OVER as OVER,
    )
    from plait.adapters.process.guardian_protocol import (
        PIECE as PIECE,
    )
    from plait.adapters.process.guardian_protocol import (
        READY as READY,
    )
    from plait.adapters.process.guardian_protocol import (
        REFUSED as REFUSED,
    )
    from plait.adapters.process.guardian_protocol import (
        REPORT as REPORT,
    )
    from plait.adapters.process.guardian_protocol import (
        REQUEST_FD as REQUEST_FD,
    )
    from plait.adapters.process.guardian_protocol import (
        SIGNAL as SIGNAL,
    )
    from plait.adapters.process.guardian_protocol import (
        VERSION as VERSION,
    )
else:
    from guardian_protocol import *  # noqa: F403

MARK_BITS: Final = 32
"""The low bits of a mark, which count the jobs of one guardian."""
MOST_STOPS: Final = 100
"""How many times a sweep looks for new processes before it kills; only a fork bomb reaches this."""
LAST_READS: Final = 17
"""The number of reads of one piece; together they read more than a pipe holds."""
MOST_UNSENT: Final = 1 << 20
"""Bytes of unsent reports of a channel; beyond this limit, the output of its jobs is not read."""
MOST_REPORTS: Final = 1 << 18
"""Unsent reports of a channel; beyond this limit, its orders are not read. Thousands of jobs that
end while Plait still writes their orders stay below it: Plait does not read meanwhile, and must not
wait for the guardian.
"""

_LINUX = sys.platform == "linux"
_RLIMIT_LOCKS = 10
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A terminal or a service manager signals all processes; the guardian must end last.
_IGNORED = [
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
        "SIGQUIT",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGPIPE",
    )
]
_DEFAULTS = [*_IGNORED, signal.SIGXFSZ, signal.SIGCHLD]
_MSG_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_MOST_BYTES = 64 << 20  # the limit for one order: more than Linux executes
_MOST_TEXTS, _MOST_CHANGES = 1 << 20, 1 << 10  # also limits; Plait changes 16 variables
_CONTROL_ROOM = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY)
_LOW = FIRST_FILE + MAX_DESCRIPTORS  # above all numbers that a child uses
MOST_LOWERED: Final = 12
"""The number of descriptors of one child that can get a low number: its streams and several files.
"""


def main() -> None:
    """Run the guardian.

    Arguments: version, high bits of our marks, grace, `own` or `same` session, the library of
    prestarted shells (not used), high bits of old marks. Processes with old marks belong to a
    guardian that died: they are killed first.
    """
    _, marks, grace, session, _, *old_marks = sys.argv[1:]
    if session == "own":
        os.setsid()
    else:
        os.setpgid(0, 0)
    os.set_inheritable(REQUEST_FD, False)
    # Descriptors that Plait inherited must not stay open here or in our children.
    os.closerange(REQUEST_FD + 1, os.sysconf("SC_OPEN_MAX"))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if _LINUX:
        _set_kernel_options()
    guardian = Guardian(int(marks) << MARK_BITS, float(grace))
    guardian.kill_marked([int(mark) for mark in old_marks])
    guardian.serve()


def _set_kernel_options() -> None:
    """Make orphans below us our children; if Plait ends while we are stopped, the kernel
    continues us.
    """
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program, as for dlopen(3)
    prctl = _ctypes.dlsym(libc, "prctl")
    _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _ctypes.call_function(prctl, (_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0))


class JobChannel:
    """A socket that receives orders and commands, and sends reports."""

    __slots__ = (
        "data",
        "descriptors",
        "fd",
        "is_throttled",
        "jobs",
        "lost",
        "report_count",
        "socket",
        "unsent",
    )

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self.socket.setblocking(False)
        self.jobs: dict[int, Job] = {}
        self.data = bytearray()  # received, but not complete
        self.descriptors: list[int] = []  # received; they belong to the next orders
        self.lost = False  # some descriptors were dropped: there was no room for them here
        self.unsent = bytearray()
        self.report_count = 0  # the approximate number of reports in `unsent`
        self.is_throttled = False  # true if the output of its jobs is not read now


class Job:
    """A process that Plait ordered, and all processes that it starts."""

    __slots__ = (
        "channel", "deadline", "give_up_at", "grouped", "id", "mark", "number", "pid", "streams",
        "wants_over",
    )  # fmt: skip

    def __init__(self, channel: JobChannel, id_: int, mark: int) -> None:
        self.channel: JobChannel | None = channel  # None after it is closed
        self.id = id_
        self.mark = mark
        self.pid: int | None = None  # None after it is reaped
        self.number = 0  # its pid, also after it is reaped
        self.grouped = False  # true if it leads a process group
        self.streams: list[int] = []  # of a captured job: our ends of its pipes; -1 if closed
        self.deadline: float | None = None  # when it is killed after it was asked to end
        self.give_up_at = _NEVER  # some time after it is killed
        self.wants_over = False

    @property
    def open_streams(self) -> int:
        return sum(1 << number for number, fd in enumerate(self.streams) if fd >= 0)


class Process:
    """A process in /proc; pid and start time together identify it."""

    __slots__ = ("group", "parent", "pid", "start", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        fields = stat.rpartition(b")")[2].split()
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.start = int(fields[19])

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start

    @property
    def alive(self) -> bool:
        return self.state not in (b"Z", b"X", b"x")


class Guardian:
    """One loop for requests, commands, exits of children, and deadlines of jobs."""

    def __init__(self, first_mark: int, grace: float) -> None:
        self.starter = Starter(first_mark)
        self.grace = grace
        self.request: socket.socket | None = socket.socket(fileno=REQUEST_FD)
        self.channels: dict[int, JobChannel] = {}
        self.captured: dict[int, Job] = {}  # by our ends of their pipes
        self.leaders: dict[int, Job] = {}
        self.ending: set[Job] = set()
        self.unasked: list[Job] = []  # to be ended, but SIGTERM is not sent yet
        self.all_by: float | None = None  # when all are killed after they were asked to end
        self.give_up_all_at = _NEVER
        self.asked: set[tuple[int, int]] = set()  # asked by `end_all`, until it is over
        self.asked_groups: set[int] = set()
        self.check_at: float | None = None  # when we check next whether jobs have ended
        self.pause = 0.0
        self.poll = select.poll()
        self.wake_pipe = self.wake_on_exits()
        self.poll.register(REQUEST_FD, select.POLLIN)
        self.spares: list[int] = []
        self.keep_spares()

    def wake_on_exits(self) -> int:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(woken, select.POLLIN)
        return woken

    def serve(self) -> None:
        """Serve until Plait and all jobs are gone."""
        assert self.request is not None
        try:  # noqa: SIM105 - `contextlib` takes longer to load than this
            self.request.send(READY)
        except OSError:
            pass  # Plait is already gone
        while self.request is not None or self.all_by is not None:
            for fd, events in self.poll.poll(self.milliseconds_left()):
                if fd == self.wake_pipe:
                    self.reap()
                elif fd == REQUEST_FD:
                    self.take_request()
                elif (job := self.captured.get(fd)) is not None:
                    self.receive_output(job, fd)
                elif (channel := self.channels.get(fd)) is not None:
                    if events & select.POLLOUT:
                        self.send_reports(channel)
                    if events & ~select.POLLOUT:
                        self.receive(channel)
            if self.unasked:
                self.free_spares()
                self.ask_jobs()
            if self.check_at is not None and time.monotonic() >= self.check_at:
                self.free_spares()
                self.check_endings()
            self.keep_spares()

    def milliseconds_left(self) -> float | None:
        """Return the time until the next check; None if there is none."""
        if self.check_at is None:
            return None
        return max(self.check_at - time.monotonic(), 0) * 1000 + 1

    def check_in(self, pause: float) -> None:
        self.pause = pause
        self.check_at = time.monotonic() + pause

    # ── messages ──────────────────────────────────────────────────────────

    def take_request(self) -> None:
        assert self.request is not None
        try:
            request, ancillary, _, _ = self.request.recvmsg(1, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC)
        except OSError:  # Plait is gone and has not read READY
            request, ancillary = b"", []
        # Without room the descriptor does not arrive; Plait then sees the channel closed.
        for fd in _descriptors(ancillary):
            try:
                if request != CHANNEL:
                    raise OSError(errno.EBADMSG, "nobody expects it")
                self.channels[fd] = JobChannel(fd)
                self.poll.register(fd, select.POLLIN)
            except OSError:  # it may not be a socket
                os.close(fd)
        if request == END_ALL:
            self.end_all()
        elif not request:
            self.poll.unregister(REQUEST_FD)
            self.request.close()
            self.request = None
            self.end_all()

    def receive(self, channel: JobChannel) -> None:
        try:
            data, ancillary, flags, _ = channel.socket.recvmsg(
                PIECE, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:  # Plait has closed it, or it is not a socket
            data, ancillary, flags = b"", [], 0
        if not data:
            self.close_channel(channel)
            return
        channel.data += data
        channel.descriptors += _descriptors(ancillary)
        channel.lost = channel.lost or bool(flags & socket.MSG_CTRUNC)
        try:
            while self.handle_message(channel):
                pass
        except ValueError:  # the message breaks the protocol
            self.close_channel(channel)
        # More than one order needs: its descriptors did not arrive, or it does not use them.
        if len(channel.data) > _MOST_BYTES or len(channel.descriptors) > 2 * MAX_DESCRIPTORS:
            self.close_channel(channel)

    def handle_message(self, channel: JobChannel) -> bool:
        """Handle the first message of a channel; False if it is incomplete."""
        kind = bytes(channel.data[:1])
        if kind == JOB and len(channel.data) >= HEAD.size:
            order = Order(channel)
            if len(channel.data) < order.size:
                return False
            if not channel.lost and len(channel.descriptors) < order.descriptor_count:
                return False
            order.take(channel)
            self.start(channel, order)
            return not channel.lost
        if kind in (END, SIGNAL) and len(channel.data) >= COMMAND.size:
            _, id_, number, grace = COMMAND.unpack_from(channel.data)
            del channel.data[: COMMAND.size]
            self.handle_command(channel, kind, id_, number, grace)
            return True
        if kind not in (b"", JOB, END, SIGNAL):
            raise ValueError("not a message")
        return False

    def handle_command(
        self, channel: JobChannel, kind: bytes, id_: int, number: int, grace: float
    ) -> None:
        job = channel.jobs.get(id_)
        if job is None:
            if kind == END:  # it has ended meanwhile
                self.report(Job(channel, id_, 0), OVER, 0)
        elif kind == END:
            job.wants_over = True
            self.end_job(job, grace)
        elif job.pid is not None and not (job.grouped and _to_group(job.pid, number)):
            _kill(job.pid, number)

    def close_channel(self, channel: JobChannel) -> None:
        """End the jobs of a channel that Plait has closed, if they still run."""
        if self.channels.pop(channel.fd, None) is None:
            return
        self.poll.unregister(channel.fd)
        channel.socket.close()
        for fd in channel.descriptors:
            os.close(fd)
        for job in channel.jobs.values():
            self.close_streams(job)
            job.channel = None
            if job.pid is not None and self.all_by is None:
                self.end_job(job, self.grace)

    # ── starting ──────────────────────────────────────────────────────────

    def start(self, channel: JobChannel, order: Order) -> None:
        job = channel.jobs[order.id] = Job(channel, order.id, self.starter.take_mark())
        given, ends, reason = order.descriptors, list[int](), 0
        try:
            if self.request is None:
                raise OSError(errno.ECANCELED, "Plait is gone")
            if channel.lost:
                raise OSError(errno.EMFILE, "no room for descriptors")
            if order.directory:
                reason = NO_DIRECTORY
                given = [
                    os.open(order.directory, _DIRECTORY | os.O_DIRECTORY | os.O_CLOEXEC),
                    *given,
                ]
                ends.append(given[0])
            reason = NO_DIRECTORY
            os.fchdir(given[0])
            reason = 0
            if order.flags & CAPTURE:
                self.open_streams(job, ends)
                place = 2 - order.first
                given = [*given[:place], *ends[-2:], *given[place:]]
            job.pid = job.number = self.starter.execute(job.mark, order, given)
        except OSError as error:
            self.close_streams(job)
            self.report(job, REFUSED, error.errno or errno.EIO, flags=reason)
            channel.jobs.pop(order.id, None)
            if channel.lost:
                self.close_channel(channel)
        else:
            job.grouped = order.group == 0
            self.leaders[job.pid] = job
        finally:
            os.chdir("/")  # otherwise the old directory could not be unmounted
            for fd in (*ends, *order.descriptors):
                os.close(fd)

    def open_streams(self, job: Job, ends: list[int]) -> None:
        """Make the pipes of a captured job; `ends` gets the child's ends."""
        for _ in range(2):
            ours, theirs = os.pipe()
            ends.append(theirs)
            job.streams.append(ours)
            os.set_blocking(ours, False)
            self.captured[ours] = job
            if job.channel is not None and not job.channel.is_throttled:
                self.poll.register(ours, select.POLLIN)

    # ── output and reports ────────────────────────────────────────────────

    def receive_output(self, job: Job, fd: int) -> None:
        if job.channel is not None and len(job.channel.unsent) >= MOST_UNSENT:
            self.throttle(job.channel)  # Plait reads slowly, so the guardian reads slowly too
            return
        self.read_stream(job, job.streams.index(fd))
        if job.pid is None and fd not in job.streams:
            self.report(job, CLOSED, 0)
            self.release(job)

    def throttle(self, channel: JobChannel) -> None:
        if channel.is_throttled:
            return  # another stream was also ready and has done this
        channel.is_throttled = True
        for job in channel.jobs.values():
            for fd in job.streams:
                if fd >= 0:
                    self.poll.unregister(fd)

    def read_stream(self, job: Job, number: int) -> bool:
        """Read once into the reports; False if there is nothing to read now."""
        fd = job.streams[number]
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if not data:
            self.close_stream(job, number)
            return False
        self.report(job, OUTPUT, 0, output=(data, b"") if number == 0 else (b"", data))
        return True

    def read_available(self, job: Job) -> None:
        """Read the data that is in the pipes now, but no more: another process may print
        forever.
        """
        for number in range(len(job.streams)):
            for _ in range(LAST_READS):
                if job.streams[number] < 0 or not self.read_stream(job, number):
                    break

    def close_stream(self, job: Job, number: int) -> None:
        fd = job.streams[number]
        if fd >= 0:
            job.streams[number] = -1
            del self.captured[fd]
            if not (job.channel is not None and job.channel.is_throttled):
                self.poll.unregister(fd)
            os.close(fd)

    def close_streams(self, job: Job) -> None:
        for number in range(len(job.streams)):
            self.close_stream(job, number)

    def report(
        self,
        job: Job,
        kind: bytes,
        number: int,
        usage: Usage = (0, 0.0, 0.0),
        *,
        flags: int | None = None,
        output: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        channel = job.channel
        if channel is None:
            return
        flags = job.open_streams if flags is None else flags
        sizes = map(len, output)
        channel.report_count += 1
        channel.unsent += REPORT.pack(kind, flags, job.id, number, job.number, *usage, *sizes)
        channel.unsent += output[0] + output[1]
        self.send_reports(channel)

    def send_reports(self, channel: JobChannel) -> None:
        before = len(channel.unsent)
        try:
            del channel.unsent[: channel.socket.send(channel.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # Plait has closed it: `receive` notices that next
            channel.unsent.clear()
        channel.report_count = channel.report_count * len(channel.unsent) // max(before, 1)
        if channel.fd in self.channels:
            # If Plait does not read reports, its further orders wait.
            orders = select.POLLIN if channel.report_count < MOST_REPORTS else 0
            self.poll.modify(channel.fd, orders | (select.POLLOUT if channel.unsent else 0))
        if channel.is_throttled and len(channel.unsent) < MOST_UNSENT:
            channel.is_throttled = False
            for job in channel.jobs.values():
                for fd in job.streams:
                    if fd >= 0:
                        self.poll.register(fd, select.POLLIN)

    def reap(self) -> None:
        """Collect every child that has ended: leaders of jobs, and orphans."""
        _drain(self.wake_pipe)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.asked_groups.discard(pid)
            job = self.leaders.pop(pid, None)
            if job is not None:
                job.pid = None
                self.read_available(job)
                peak = usage.ru_maxrss if _LINUX else usage.ru_maxrss // 1024
                self.report(job, EXITED, status, (peak, usage.ru_utime, usage.ru_stime))
                self.release(job)

    def release(self, job: Job) -> None:
        """Forget a captured job that is over.

        Other jobs stay as long as their channel: Plait may still end the processes that
        they left running.
        """
        if job.channel is not None and job.streams and not job.open_streams:
            job.channel.jobs.pop(job.id, None)

    # ── ending ────────────────────────────────────────────────────────────

    # Reserve descriptors for reading /proc and for pidfds: if jobs use all others, no process could
    # be found and killed without them.

    def keep_spares(self) -> None:
        try:
            while len(self.spares) < 2:
                self.spares.append(os.dup(0))
        except OSError:  # the limit is already that low
            return

    def free_spares(self) -> None:
        while self.spares:
            os.close(self.spares.pop())

    def end_job(self, job: Job, grace: float) -> None:
        deadline = time.monotonic() + max(0.0, grace)
        if job.deadline is None:
            job.deadline = deadline
            self.unasked.append(job)
        job.deadline = min(job.deadline, deadline)

    def ask_jobs(self) -> None:
        jobs, self.unasked = self.unasked, []
        self.ending.update(jobs)
        self.check_in(_FIRST_PAUSE)
        members = self.members(jobs) if _LINUX else {}
        self.ask([process for job in jobs for process in members.get(job, ())], jobs)

    def ask(self, processes: Iterable[Process], jobs: Iterable[Job]) -> set[int]:
        """Send SIGTERM to each process once: a second one means "at once" to some programs.

        Returns the groups that were asked.
        """
        groups = {job.number for job in jobs if job.grouped and job.pid is not None}
        groups -= self.asked_groups
        left = [
            process
            for process in processes
            if process.group not in groups | self.asked_groups and process.key not in self.asked
        ]
        # SIGCONT, because a stopped process does not receive SIGTERM.
        for number in (signal.SIGTERM, signal.SIGCONT):
            for group in groups:
                _to_group(group, number)
            for process in left:
                _send(process, number)
        return groups

    def end_all(self) -> None:
        """Ask all processes to end, and kill those that are left after the grace, also new
        ones.

        If it is ordered again, it asks the new processes.
        """
        self.free_spares()
        if self.all_by is None:
            self.all_by = time.monotonic() + self.grace
        self.check_in(_FIRST_PAUSE)
        jobs = [job for job in self.leaders.values() if job not in self.ending]
        if not _LINUX:
            self.unasked += [job for job in jobs if job.deadline is None]
            for job in jobs:
                job.deadline = self.all_by
            return
        asked = {p.pid for members in self.members(self.ending).values() for p in members}
        self.ending.update(self.unasked)
        self.unasked.clear()
        found = _descendants()
        self.asked_groups |= self.ask([one for one in found if one.pid not in asked], jobs)
        self.asked.update(process.key for process in found)

    def check_endings(self) -> None:
        """Report jobs that are over, and kill those whose grace is over."""
        now = time.monotonic()
        members = self.members(self.ending) if _LINUX else {}
        self.reap()  # after `members`: a job that is reported as over must not leave a zombie
        for job in list(self.ending):
            alive = bool(members[job]) if _LINUX else _group_lives(job)
            self.check_ending(job, now, alive=alive or job.pid is not None)
        due = [job for job in self.ending if job.deadline is not None and now >= job.deadline]
        for job in due:
            # Not counted from the end of the grace: the guardian may have been stopped since.
            job.give_up_at = min(job.give_up_at, now + GIVE_UP)
        if due and _LINUX:
            self.sweep(due)  # all at once: each sweep looks at all processes
        for job in due if not _LINUX else ():
            _to_group(job.number, signal.SIGKILL)
        if self.all_by is not None:
            self.check_ending_all(self.all_by, now)
        if self.ending or self.all_by is not None:
            self.check_in(min(self.pause * 2, _LAST_PAUSE))
        else:
            self.check_at = None

    def check_ending(self, job: Job, now: float, *, alive: bool) -> None:
        if not alive or now >= job.give_up_at:
            self.read_available(job)
            self.close_streams(job)
            if job.wants_over:
                self.report(job, OVER, int(alive))
            self.ending.discard(job)
            job.deadline, job.give_up_at = None, _NEVER  # Plait may ask again
            self.release(job)

    def check_ending_all(self, deadline: float, now: float) -> None:
        alive = bool(_descendants()) if _LINUX else bool(self.ending)
        if not alive or now >= self.give_up_all_at:
            self.all_by, self.give_up_all_at = None, _NEVER
            self.asked.clear()
            self.asked_groups.clear()
        elif now >= deadline and _LINUX:
            self.give_up_all_at = min(self.give_up_all_at, now + GIVE_UP)
            self.sweep(None)

    def sweep(self, jobs: list[Job] | None) -> None:
        """Stop all processes of these jobs, or of all jobs, until there are no new ones;
        then kill them.
        """
        stopped: dict[tuple[int, int], Process] = {}
        for _ in range(MOST_STOPS):
            if jobs is None:
                found = _descendants()
            else:
                found = [process for one in self.members(jobs).values() for process in one]
            new = [process for process in found if process.key not in stopped]
            if not new:
                break
            for process in new:
                _send(process, signal.SIGSTOP)
                stopped[process.key] = process
        for process in stopped.values():
            _send(process, signal.SIGKILL)

    def kill_marked(self, marks: list[int]) -> None:
        """Kill the processes that a dead guardian left running, wherever they are in the
        process tree.
        """
        for _ in range(MOST_STOPS if _LINUX and marks else 0):
            found = [
                p for p in _census().values() if p.alive and _mark(p.pid) >> MARK_BITS in marks
            ]
            if not found:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    _send(process, number)

    def members(self, jobs: Iterable[Job]) -> dict[Job, list[Process]]:
        """The living processes of jobs: those below their leaders, and orphans with their marks."""
        by_mark = {job.mark: job for job in jobs}
        found: dict[Job, list[Process]] = {job: [] for job in by_mark.values()}
        if not found:
            return found
        children = _children(_census())
        for child in children.get(os.getpid(), ()):
            led = self.leaders.get(child.pid)
            job = by_mark.get(_mark(child.pid) if led is None else led.mark)
            if job is not None:
                found[job] += _tree(child, children)
        return found


Usage = tuple[int, float, float]
_NEVER = float("inf")
_FIRST_PAUSE = 0.002
_LAST_PAUSE = 0.05


# ── /proc ────────────────────────────────────────────────────────────────


def _census() -> dict[int, Process]:
    """All processes that we can see, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _process(int(name))) is not None:
            found[process.pid] = process
    return found


def _process(pid: int) -> Process | None:
    stat = _contents(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def _mark(pid: int) -> int:
    """The mark of a process; 0 if it has none."""
    for line in _contents(f"/proc/{pid}/limits").splitlines():
        if line.startswith(b"Max file locks"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else 0
    return 0


def _contents(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has just ended
        return b""
    try:
        return os.read(fd, 8192)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _children(census: dict[int, Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = {}
    for process in census.values():
        children.setdefault(process.parent, []).append(process)
    return children


def _tree(root: Process, children: dict[int, list[Process]]) -> list[Process]:
    """The living processes of a tree."""
    found = [root]
    for process in found:  # `found` grows during the loop
        found += children.get(process.pid, ())
    return [process for process in found if process.alive]


def _descendants() -> list[Process]:
    """All living processes below us."""
    children = _children(_census())
    return [
        process for child in children.get(os.getpid(), ()) for process in _tree(child, children)
    ]


# ── signals ──────────────────────────────────────────────────────────────


def _send(process: Process, number: int) -> None:
    """Signal this process, but never another one that has got its pid since."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            _kill(process.pid, number)
        return
    try:
        now = _process(process.pid)
        if now is not None and now.start == process.start:
            signal.pidfd_send_signal(fd, number)
    except OSError:  # it is gone, or belongs to another user
        return
    finally:
        os.close(fd)


def _drain(pipe: int) -> None:
    try:
        os.read(pipe, 4096)
    except BlockingIOError:
        return


def _to_group(group: int, number: int) -> bool:
    """Signal a group; False if there is none."""
    try:
        os.killpg(group, number)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def _group_lives(job: Job) -> bool:
    if not job.grouped:
        return False
    try:
        os.killpg(job.number, 0)
    except OSError:
        return False
    return True


# ── starting ─────────────────────────────────────────────────────────────


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])
    if not _MSG_CMSG_CLOEXEC:
        for fd in found:
            os.set_inheritable(fd, False)
    return found


class Starter:
    """Starts the processes of jobs, with their marks, descriptors and limits."""

    def __init__(self, first_mark: int) -> None:
        self.next_mark = first_mark
        self.programs = Programs()
        self.own_limit = resource.getrlimit(_RLIMIT_LOCKS) if _LINUX else (0, 0)
        self.files_of_children, self.own_files = self.raise_descriptor_limit()
        self.low: list[int] = self.reserve_low_descriptors()

    def take_mark(self) -> int:
        self.next_mark += 1
        return self.next_mark - 1

    def execute(self, mark: int, order: Order, descriptors: Sequence[int]) -> int:
        """Start a process and return its pid; `descriptors`: the directory, streams, files."""
        if (
            max(len(order.argv), order.env.count(b"\0") + 1) > _MOST_TEXTS
            or order.more_env.count(b"\0") + 1 > _MOST_CHANGES
        ):
            raise OSError(errno.E2BIG, "more than Linux executes")
        env = {**_unpack(order.env), **_unpack(order.more_env)}
        program = self.programs.find(order.argv[0], env)
        given = descriptors[1:]
        streams = 3 - order.first
        # First move the files up: a descriptor whose number another one needs would be overwritten.
        files = [_duplicate_above(fd, FIRST_FILE + len(given)) for fd in given[streams:]]
        targets = [*enumerate(given[:streams], order.first), *enumerate(files, FIRST_FILE)]
        try:
            self.set_mark(mark)
            targets = self.lower_descriptors(targets)
            if all(fd < self.files_of_children for _, fd in targets):
                self.limit_files(self.files_of_children)
            return os.posix_spawn(
                program,
                order.argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in targets],
                setpgroup=order.group,
                setsigmask=[],
                setsigdef=_DEFAULTS,
            )
        finally:
            self.limit_files(self.own_files)
            self.free_low_descriptors(targets)
            self.set_mark(None)
            for fd in files:
                os.close(fd)

    def set_mark(self, mark: int | None) -> None:
        """Set the mark that the next child inherits. None: our own mark, by which an outer
        Plait knows us.
        """
        if _LINUX:
            soft, hard = self.own_limit
            try:
                resource.setrlimit(_RLIMIT_LOCKS, (soft if mark is None else mark, hard))
            except (ValueError, OSError):
                # Our own limit is lower, so orphans of a job stay until all jobs are ended.
                return

    # `posix_spawn` accepts no descriptor beyond the child's limit, and the guardian may have a
    # higher limit than its children. So it copies high descriptors to low numbers for a start.

    def raise_descriptor_limit(self) -> tuple[int, int]:
        """Raise the limit; return the limit that we were given, and the present one."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # the kernel allows fewer
            return soft, soft
        return soft, hard

    def reserve_low_descriptors(self) -> list[int]:
        """Open /dev/null, and copy it to numbers that children may have."""
        if self.own_files == self.files_of_children:
            return []
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return [null, *(_duplicate_above(null, _LOW) for _ in range(MOST_LOWERED))]

    def lower_descriptors(self, targets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the descriptors with low numbers, as long as low numbers are free."""
        free, lowered = self.low[1:], []
        for target, fd in targets:
            is_high = fd >= self.files_of_children and free
            lowered.append((target, os.dup2(fd, free.pop(), inheritable=False) if is_high else fd))
        return lowered

    def free_low_descriptors(self, targets: list[tuple[int, int]]) -> None:
        if self.low:
            null, *lent = self.low
            for fd in {fd for _, fd in targets}.intersection(lent):
                os.dup2(null, fd, inheritable=False)

    def limit_files(self, soft: int) -> None:
        """Set the limit: the guardian keeps the output of every job open, but jobs get
        Plait's limit.
        """
        if self.own_files != self.files_of_children:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self.own_files))


class Order:
    """A message that orders a process."""

    __slots__ = (
        "argv", "descriptor_count", "descriptors", "directory", "env", "first", "flags", "group", "id",
        "more_env", "size", "sizes",
    )  # fmt: skip

    def __init__(self, channel: JobChannel) -> None:
        """Read the head; raise ValueError if it is not valid."""
        _, self.flags, self.descriptor_count, self.id, *self.sizes, self.group = HEAD.unpack_from(
            channel.data
        )
        # The number of the first stream in the message. Without input the child inherits ours.
        self.first = 1 if self.flags & NO_INPUT else 0
        self.size = HEAD.size + sum(self.sizes)
        needed = (not self.sizes[3]) + (0 if self.flags & CAPTURE else 2) + 1 - self.first
        if self.size > _MOST_BYTES or not self.sizes[0] or self.descriptor_count < needed:
            raise ValueError("not an order")
        if self.id in channel.jobs:
            raise ValueError("the id of another job")

    def take(self, channel: JobChannel) -> None:
        """Take the texts and descriptors out of the channel."""
        texts, at = list[bytes](), HEAD.size
        for size in self.sizes:
            texts.append(bytes(channel.data[at : at + size]))
            at += size
        if any(text and not text.endswith(b"\0") for text in texts):
            raise ValueError("not an order")
        del channel.data[: self.size]
        self.argv = texts[0][:-1].split(b"\0")
        self.env, self.more_env, self.directory = (text[:-1] for text in texts[1:])
        self.descriptors = channel.descriptors[: self.descriptor_count]
        del channel.descriptors[: self.descriptor_count]


def _duplicate_above(fd: int, place: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)


def _unpack(pairs: bytes) -> Environment:
    if not pairs:
        return {}
    return {name: value for name, _, value in [pair.partition(b"=") for pair in pairs.split(b"\0")]}


class Programs:
    """Finds programs as a shell does, on the PATH that the program itself will get.

    The candidates of the last name are cached, but not which of them exist.
    """

    def __init__(self) -> None:
        self.last: tuple[bytes, bytes] = (b"", b"")
        self.candidates: list[bytes] = []

    def find(self, program: bytes, env: Environment) -> bytes:
        if b"/" in program:
            return program
        path = env.get(b"PATH", _DEFAULT_PATH)
        if (program, path) != self.last:
            self.last = (program, path)
            self.candidates = [os.path.join(folder or b".", program) for folder in path.split(b":")]
        for file in self.candidates:
            if os.access(file, os.X_OK) and os.path.isfile(file):
                return file
        is_there = any(os.path.isfile(file) for file in self.candidates)
        raise OSError(errno.EACCES if is_there else errno.ENOENT, "no program of this name")


Environment = dict[bytes, bytes]
_DEFAULT_PATH = os.fsencode(os.defpath)
