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
    channel          Plait → guardian   an order: HEAD, argv, env, and descriptors (cwd, stdio,
                                        files); COMMANDs for the job that was ordered last
                     guardian → Plait   REPORTs of that job

A channel serves one job after the other. Closing it ends the job that still runs.

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
    from collections.abc import Callable, Iterable, Sequence
    from typing import Final, TypeAlias

    from plait.adapters.process.warm import PrestartedShells

    MakeWarm: TypeAlias = Callable[[Sequence[int], Callable[[int], None]], PrestartedShells]
else:
    import _signal as signal
    import _socket as socket

REQUEST_FD: Final = 3
FIRST_FILE: Final = 64
"""The child's descriptor of its first file; far from 3, which scripts and make often use."""
MAX_DESCRIPTORS: Final = 253
"""Linux passes no more in one message."""
GIVE_UP: Final = 5.0
"""Seconds after the grace. A process that is left cannot be killed: another user's, or stuck."""
MARK_BITS: Final = 32
"""Low bits of a mark: they count the jobs of one guardian."""
MOST_STOPS: Final = 100
"""How often a sweep looks for new processes before it kills; only a fork bomb reaches it."""

HEAD: Final = struct.Struct("=cBxxIIIi")
"""JOB, flags, bytes of argv, of env and of more env, process group (0: a new one)."""
COMMAND: Final = struct.Struct("=cxxxid")
"""Type, signal, seconds of grace."""
REPORT: Final = struct.Struct("=cxxxiiqdd")
"""Type, errno or wait status, pid, peak memory in KiB, seconds of user and of system time."""

CHANNEL, END_ALL = b"L", b"A"  # requests
JOB, END, SIGNAL = b"J", b"E", b"S"  # on a channel
NO_INPUT: Final = 1
"""Flag: standard input is /dev/null, and no descriptor comes for it."""
HOLD_OUTPUT: Final = 2
"""Flag: the guardian keeps the output open until the exit, so a waiting thread wakes once."""
REFUSED, EXITED, OVER = b"F", b"X", b"O"  # reports

_LINUX = sys.platform == "linux"
_RLIMIT_LOCKS = 10
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A terminal or a service manager signals all processes; the guardian has to end last.
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
_ORDER_ROOM = 32768
_CONTROL_ROOM = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
_LOW = FIRST_FILE + MAX_DESCRIPTORS  # above all numbers that a child uses
EXECUTED_FIRST: Final = 3
"""How many programs are executed before prestarted shells pay off."""
MOST_LOWERED: Final = 12
"""Descriptors of one child that can get a low number: its streams and several files."""


def main(make_warm: MakeWarm | None = None) -> None:
    """Arguments: high bits of our marks, grace, `own` or `same` session, high bits of old marks.

    `make_warm` imports `warm` and makes its `PrestartedShells`, once they pay off. Processes with
    old marks are those of a guardian that died: they are killed first.
    """
    marks, grace, session, *old_marks = sys.argv[1:]
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
    guardian = Guardian(int(marks) << MARK_BITS, float(grace), make_warm)
    guardian.kill_marked([int(mark) for mark in old_marks])
    guardian.serve()


def _set_kernel_options() -> None:
    """Orphans below us become our children; Plait's end continues us if we are stopped."""
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program, as for dlopen(3)
    prctl = _ctypes.dlsym(libc, "prctl")
    _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _ctypes.call_function(prctl, (_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0))


class JobChannel:
    """A socket on which orders come, one after the other."""

    __slots__ = ("fd", "job", "socket")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self.job: Job | None = None  # the last one


class Job:
    """A process that Plait ordered, and all that it starts."""

    __slots__ = ("channel", "deadline", "grouped", "mark", "number", "output", "pid", "wants_over")

    def __init__(self, channel: JobChannel, mark: int) -> None:
        self.channel: JobChannel | None = channel  # until it is closed
        self.mark = mark
        self.pid: int | None = None  # until it is reaped
        self.number = 0  # its pid, also after that
        self.grouped = False  # leads a process group
        self.output: Sequence[int] = ()  # kept open until it is reaped
        self.deadline: float | None = None  # it was asked to end, and is killed then
        # Plait waits for OVER; otherwise the channel may serve the next job by then.
        self.wants_over = False


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
    def alive(self) -> bool:
        return self.state not in (b"Z", b"X", b"x")


class Guardian:
    """One loop for requests, commands, the exits of children, and the deadlines of jobs."""

    def __init__(self, first_mark: int, grace: float, make_warm: MakeWarm | None) -> None:
        self.starter = Starter(first_mark, make_warm)
        self.grace = grace
        self.request: socket.socket | None = socket.socket(fileno=REQUEST_FD)
        self.channels: dict[int, JobChannel] = {}
        self.leaders: dict[int, Job] = {}
        self.ending: set[Job] = set()
        self.unasked: list[Job] = []  # shall end, but have no SIGTERM yet
        self.all_by: float | None = None  # all were asked to end, and are killed then
        self.check_at: float | None = None  # when we check next whether jobs have ended
        self.pause = 0.0
        self.poll = select.poll()
        self.wake_pipe = self.wake_on_exits()
        self.poll.register(REQUEST_FD, select.POLLIN)

    def wake_on_exits(self) -> int:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(woken, select.POLLIN)
        return woken

    def serve(self) -> None:
        """Until Plait and all jobs are gone."""
        while self.request is not None or self.all_by is not None:
            for fd, _ in self.poll.poll(self.milliseconds_left()):
                if fd == self.wake_pipe:
                    self.reap()
                elif fd == REQUEST_FD:
                    self.take_request()
                elif (channel := self.channels.get(fd)) is not None:
                    self.receive(channel)
            if self.unasked:
                self.ask_jobs()
            if self.check_at is not None and time.monotonic() >= self.check_at:
                self.check_endings()

    def milliseconds_left(self) -> float | None:
        """Until the next check; None if there is none."""
        if self.check_at is None:
            return None
        return max(self.check_at - time.monotonic(), 0) * 1000 + 1

    def check_in(self, pause: float) -> None:
        self.pause = pause
        self.check_at = time.monotonic() + pause

    # ── messages ──────────────────────────────────────────────────────────

    def take_request(self) -> None:
        assert self.request is not None
        request, ancillary, _, _ = self.request.recvmsg(1, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC)
        if request == CHANNEL:
            # No descriptor comes if there is no room; Plait then sees the channel closed.
            for fd in _descriptors(ancillary):
                self.channels[fd] = JobChannel(fd)
                self.poll.register(fd, select.POLLIN)
        elif request == END_ALL:
            self.end_all()
        else:
            self.poll.unregister(REQUEST_FD)
            self.request.close()
            self.request = None
            self.end_all()

    def receive(self, channel: JobChannel) -> None:
        try:
            message, ancillary, flags, _ = channel.socket.recvmsg(
                _ORDER_ROOM, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            self.caller_left(channel)
            return
        if not message:
            self.caller_left(channel)
        elif message[:1] == JOB:
            self.start(
                channel, message, _descriptors(ancillary), complete=not flags & socket.MSG_CTRUNC
            )
        elif channel.job is not None:
            self.handle_commands(channel.job, message)

    def handle_commands(self, job: Job, commands: bytes) -> None:
        for command, number, grace in COMMAND.iter_unpack(commands):
            if command == END:
                job.wants_over = True
                self.end_job(job, grace)
            elif (
                command == SIGNAL
                and job.pid is not None
                and not (job.grouped and _to_group(job.pid, number))
            ):
                _kill(job.pid, number)  # a prestarted shell has no group in its first moment

    def caller_left(self, channel: JobChannel) -> None:
        """Plait has closed the channel: its job is ended if it still runs."""
        self.close_channel(channel)
        if channel.job is not None and channel.job.pid is not None and self.all_by is None:
            self.end_job(channel.job, self.grace)

    def close_channel(self, channel: JobChannel) -> None:
        if self.channels.pop(channel.fd, None) is not None:
            self.poll.unregister(channel.fd)
            channel.socket.close()
        if channel.job is not None:
            channel.job.channel = None

    # ── starting ──────────────────────────────────────────────────────────

    def start(
        self, channel: JobChannel, message: bytes, descriptors: list[int], *, complete: bool
    ) -> None:
        job = channel.job = Job(channel, self.starter.take_mark())
        try:
            if self.request is None:
                raise OSError(errno.ECANCELED, "Plait is gone")
            order = Order(channel.fd, message)
            if not complete:
                raise OSError(errno.EMFILE, "no room for descriptors")
            # A prestarted shell ignores signals while it waits, so none is used while all jobs end.
            warm = self.all_by is None
            job.pid = job.number = self.starter.spawn(job.mark, order, descriptors, warm=warm)
        except OSError as error:
            if self.starter.is_lost(error):
                self.end_job(job, 0.0)  # it may run: all processes with its mark are killed
            self.report(job, REFUSED, error.errno or errno.EIO)
            self.close_channel(channel)
        else:
            job.grouped = order.group == 0
            self.leaders[job.pid] = job
            if order.flags & HOLD_OUTPUT:
                output = slice(2 - order.first, 4 - order.first)
                job.output = descriptors[output]
                del descriptors[output]
            self.handle_commands(job, order.commands)
        finally:
            for fd in descriptors:
                os.close(fd)

    # ── reporting ─────────────────────────────────────────────────────────

    def report(self, job: Job, kind: bytes, number: int, usage: Usage = (0, 0.0, 0.0)) -> None:
        if job.channel is None:
            return
        try:
            os.write(job.channel.fd, REPORT.pack(kind, number, job.number, *usage))
        except OSError:  # Plait has closed it: `receive` notices that next
            return

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
            job = self.leaders.pop(pid, None)
            if job is not None:
                job.pid = None
                peak = usage.ru_maxrss if _LINUX else usage.ru_maxrss // 1024
                self.report(job, EXITED, status, (peak, usage.ru_utime, usage.ru_stime))
                # After the report: the thread that it wakes finds the end of the output next.
                self.close_output(job)

    def close_output(self, job: Job) -> None:
        for fd in job.output:
            os.close(fd)
        job.output = ()

    # ── ending ────────────────────────────────────────────────────────────

    def end_job(self, job: Job, grace: float) -> None:
        deadline = time.monotonic() + grace
        if job.deadline is None:
            job.deadline = deadline
            self.unasked.append(job)
        job.deadline = min(job.deadline, deadline)

    def ask_jobs(self) -> None:
        jobs, self.unasked = self.unasked, []
        self.ending.update(jobs)
        self.check_in(_FIRST_PAUSE)
        members = self.members(jobs) if _LINUX else {}
        _ask([process for job in jobs for process in members.get(job, ())], jobs)

    def end_all(self) -> None:
        """Ask all processes to end; those that are left after the grace, old or new, are killed."""
        self.all_by = time.monotonic() + self.grace
        self.check_in(_FIRST_PAUSE)
        self.starter.close_shells()
        jobs = [job for job in self.leaders.values() if job not in self.ending]
        if not _LINUX:
            self.unasked += [job for job in jobs if job.deadline is None]
            for job in jobs:
                job.deadline = self.all_by
            return
        asked = {p.pid for members in self.members(self.ending).values() for p in members}
        self.ending.update(self.unasked)
        self.unasked.clear()
        _ask([process for process in _descendants() if process.pid not in asked], jobs)

    def check_endings(self) -> None:
        """Report jobs that are over, and kill those whose grace is over."""
        now = time.monotonic()
        members = self.members(self.ending) if _LINUX else {}
        self.reap()  # after `members`: a job that is reported as over has left no zombie
        for job in list(self.ending):
            alive = bool(members[job]) if _LINUX else _group_lives(job)
            self.check_ending(job, now, alive=alive or job.pid is not None)
        if self.all_by is not None:
            self.check_ending_all(self.all_by, now)
        if self.ending or self.all_by is not None:
            self.check_in(min(self.pause * 2, _LAST_PAUSE))
        else:
            self.check_at = None

    def check_ending(self, job: Job, now: float, *, alive: bool) -> None:
        assert job.deadline is not None
        if not alive or now >= job.deadline + GIVE_UP:
            if job.wants_over:
                self.report(job, OVER, int(alive))
            self.ending.discard(job)
            self.close_output(job)
        elif now >= job.deadline and _LINUX:
            self.sweep(job)
        elif now >= job.deadline:
            _to_group(job.number, signal.SIGKILL)

    def check_ending_all(self, deadline: float, now: float) -> None:
        alive = bool(_descendants()) if _LINUX else bool(self.ending)
        if not alive or now >= deadline + GIVE_UP:
            self.all_by = None
        elif now >= deadline and _LINUX:
            self.sweep(None)

    def sweep(self, job: Job | None) -> None:
        """Stop all processes of a job, or of all jobs, until there is no new one; then kill them."""
        stopped: dict[tuple[int, int], Process] = {}
        for _ in range(MOST_STOPS):
            found = _descendants() if job is None else self.members([job])[job]
            new = [process for process in found if (process.pid, process.start) not in stopped]
            if not new:
                break
            for process in new:
                _send(process, signal.SIGSTOP)
                stopped[process.pid, process.start] = process
        for process in stopped.values():
            _send(process, signal.SIGKILL)

    def kill_marked(self, marks: list[int]) -> None:
        """Kill what a dead guardian left running, wherever it is in the process tree."""
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


def _ask(processes: Iterable[Process], jobs: Iterable[Job]) -> None:
    """SIGTERM, to each process once: a second one means "at once" to some programs."""
    groups = {job.number for job in jobs if job.grouped and job.pid is not None}
    # SIGCONT, because a stopped process does not receive SIGTERM.
    for number in (signal.SIGTERM, signal.SIGCONT):
        for group in groups:
            _to_group(group, number)
        for process in processes:
            if process.group not in groups:
                _send(process, number)


Usage = tuple[int, float, float]
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
    for process in found:  # grows while we walk it
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
    """Signal this process, never another one that got its pid since."""
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
    except OSError:  # it is gone, or another user's
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

    def __init__(self, first_mark: int, make_warm: MakeWarm | None) -> None:
        self.next_mark = first_mark
        self.make_warm = make_warm
        self.warm: PrestartedShells | None = None
        self.executed = 0
        self.programs = Programs()
        self.environments = Environments()
        self.own_limit = resource.getrlimit(_RLIMIT_LOCKS) if _LINUX else (0, 0)
        self.files_of_children, self.own_files = self.raise_descriptor_limit()
        self.low: list[int] = self.reserve_low_descriptors()

    def take_mark(self) -> int:
        self.next_mark += 1
        return self.next_mark - 1

    def is_lost(self, error: OSError) -> bool:
        """Whether `spawn` raised it without knowing if the process runs."""
        return self.warm is not None and isinstance(error, self.warm.Lost)

    def close_shells(self) -> None:
        if self.warm is not None:
            self.warm.close()

    def spawn(self, mark: int, order: Order, descriptors: list[int], *, warm: bool) -> int:
        """The pid of the new process. `warm`: it may be a prestarted shell."""
        os.fchdir(descriptors[0])
        try:
            env = self.environments.whole(order.env, order.more_env)
            program = self.programs.find(order.argv[0], env)
            pid = self.start_warm(program, mark, order, env, descriptors) if warm else None
            return self.execute(program, mark, order, env, descriptors) if pid is None else pid
        finally:
            os.chdir("/")  # otherwise the directory could not be unmounted

    def start_warm(
        self, program: bytes, mark: int, order: Order, env: Environment, descriptors: list[int]
    ) -> int | None:
        """Use a prestarted shell; None: the program has to be executed."""
        if self.make_warm is None or self.executed < EXECUTED_FIRST or order.group != 0:
            return None
        if self.warm is None:
            self.warm = self.make_warm(_DEFAULTS, self.mark_other)
        return self.warm.begin(
            program,
            order.argv,
            self.environments.join_packed(order.env, order.more_env, env),
            descriptors,
            first=order.first,
            mark=(mark, self.own_limit[1]),
            files=(self.files_of_children, self.own_files),
        )

    def mark_other(self, pid: int) -> None:
        """Mark a process that is not a job, so that the next guardian finds it."""
        try:
            resource.prlimit(pid, _RLIMIT_LOCKS, (self.next_mark, self.own_limit[1]))
        except (ValueError, OSError):
            return
        self.next_mark += 1

    def execute(
        self, program: bytes, mark: int, order: Order, env: Environment, descriptors: list[int]
    ) -> int:
        self.executed += 1
        given = descriptors[1:]
        streams = 3 - order.first
        # Moved up first: a descriptor on a number that another needs would be overwritten.
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
        """The next child inherits it. None: our own again, by which an outer Plait knows us."""
        if _LINUX:
            soft, hard = self.own_limit
            try:
                resource.setrlimit(_RLIMIT_LOCKS, (soft if mark is None else mark, hard))
            except (ValueError, OSError):
                # Our own limit is lower: orphans of a job stay until all jobs are ended.
                return

    # `posix_spawn` accepts no descriptor beyond the child's limit, and the guardian may have a
    # higher limit than its children. So it copies high descriptors to low numbers for a start.

    def raise_descriptor_limit(self) -> tuple[int, int]:
        """The limit that we were given, and the one that we have now."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # the kernel allows fewer
            return soft, soft
        return soft, hard

    def reserve_low_descriptors(self) -> list[int]:
        """/dev/null, and copies of it on numbers that children may have."""
        if self.own_files == self.files_of_children:
            return []
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return [null, *(_duplicate_above(null, _LOW) for _ in range(MOST_LOWERED))]

    def lower_descriptors(self, targets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The same descriptors with low numbers, as long as there are some."""
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
        """The guardian keeps the output of every job open; jobs get the limit of Plait."""
        if self.own_files != self.files_of_children:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self.own_files))


class Order:
    """A message that orders a process; `start` is its beginning, nearly always all of it."""

    __slots__ = ("argv", "commands", "env", "first", "flags", "group", "more_env")

    def __init__(self, channel: int, start: bytes) -> None:
        _, self.flags, argv_size, env_size, more_size, self.group = HEAD.unpack_from(start)
        # Number of the first stream that comes with it. Without input the child inherits ours.
        self.first = 1 if self.flags & NO_INPUT else 0
        env = HEAD.size + argv_size
        more = env + env_size
        end = more + more_size
        data = start + _read_exactly(channel, max(end - len(start), 0))
        self.argv = data[HEAD.size : env].split(b"\0")
        self.env = data[env:more]
        self.more_env = data[more:end]
        self.commands = data[end:]  # some systems return the next message, too


def _read_exactly(fd: int, size: int) -> bytes:
    data = os.read(fd, size) if size else b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            raise OSError(errno.ECONNRESET, "the order was cut short")
        data += more
    return data


def _duplicate_above(fd: int, place: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)


class Environments:
    """Environments as dictionaries. Most differ from the last one in a few variables only."""

    def __init__(self) -> None:
        self.packed = b""
        self.last: Environment = {}

    def whole(self, packed: bytes, more: bytes) -> Environment:
        if packed != self.packed:
            self.packed, self.last = packed, _unpack(packed)
        return {**self.last, **_unpack(more)} if more else self.last

    def join_packed(self, packed: bytes, more: bytes, whole: Environment) -> bytes:
        """`whole` in one text; nearly always the two parts joined."""
        parts = [part for part in (packed, more) if part]
        if len(whole) == sum(part.count(b"\0") + 1 for part in parts):  # none replaces another
            return b"\0".join(parts)
        return b"\0".join(map(b"=".join, whole.items()))


def _unpack(pairs: bytes) -> Environment:
    if not pairs:
        return {}
    return {name: value for name, _, value in [pair.partition(b"=") for pair in pairs.split(b"\0")]}


class Programs:
    """Finds programs like a shell, on the PATH that the program itself will get.

    The candidates of the last name are cached, but not which of them exists.
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
