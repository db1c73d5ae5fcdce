"""The guardian: a small process that starts every other one, and ends them all when Plait is gone.

It is a subreaper, so whatever its children start stays below it in the tree of
processes, even what daemonises; and it holds one end of a socket whose other
end lives in Plait, so it learns of Plait's death however that came about.  To
end a job it asks (SIGTERM), waits, then stops every process of the job, looks
again until nobody new is found, and kills them: what is stopped cannot fork.

Which job an orphan belongs to, its parents cannot tell any more.  So each job
is marked by a resource limit that Linux keeps, passes on to every descendant
and no longer uses for anything: the number of file locks.  It is in no
environment, costs nothing, and finds a job's processes even after the guardian
itself was killed: the next one sweeps up what bears its marks.

Where there is no /proc (macOS, BSD), a job is its process group and no more.

    request socket     Plait → guardian   a byte and descriptors: channel, cwd, stdin, stdout, stderr, files
    channel of a job   Plait → guardian   HEAD, argv, env; then COMMANDs; closing it ends what still runs
                       guardian → Plait   REPORTs

The program is imported alone, without Plait, and takes the C parts of `signal`
and `socket`: with all of them, and `ctypes` and `dataclasses`, it would take
twice as long to start.
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
    from collections.abc import Iterable
    from typing import Final
else:
    import _signal as signal
    import _socket as socket

REQUEST_FD: Final = 3
FIRST_FILE: Final = 64
"""The child's descriptor of its first file; far from 3, which scripts and make's job server like to use."""
MAX_DESCRIPTORS: Final = 253
"""Linux passes no more at once."""
GIVE_UP: Final = 5.0
"""Seconds after the grace; who is left then cannot be killed: another user's, or stuck in the kernel."""
MARK_BITS: Final = 32
"""Low bits of a mark, which count the jobs of one guardian."""
MOST_STOPS: Final = 100
"""How often a sweep looks for somebody new before it kills whom it has; only a fork bomb gets there."""

HEAD: Final = struct.Struct("=IIi")
"""Bytes of argv, bytes of env, process group (0: one of its own)."""
COMMAND: Final = struct.Struct("=cxxxid")
"""What, signal, seconds of grace."""
REPORT: Final = struct.Struct("=cxxxiiqdd")
"""What, errno or wait status, pid, peak memory in KiB, seconds of user and of system time."""

JOB, END_ALL = b"J", b"A"  # requests
END, SIGNAL = b"E", b"S"  # commands
REFUSED, EXITED, OVER = b"F", b"X", b"O"  # reports

_LINUX = sys.platform == "linux"
_RLIMIT_LOCKS = 10
_PR_SET_CHILD_SUBREAPER = 36
# Neither a terminal nor a service manager that signals everybody may end the guardian before the others.
_IGNORED = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE")
]
_DEFAULTS = [*_IGNORED, signal.SIGXFSZ, signal.SIGCHLD]
_MSG_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def main() -> None:
    """Arguments: high bits of our marks, grace, `own` or `same` session; high bits of marks to sweep up."""
    marks, grace, session, *left_behind = sys.argv[1:]
    if session == "own":
        os.setsid()
    else:
        os.setpgid(0, 0)
    os.set_inheritable(REQUEST_FD, False)
    # What Plait itself inherited is not for us to hold open, nor for those whom we start.
    os.closerange(REQUEST_FD + 1, os.sysconf("SC_OPEN_MAX"))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if _LINUX:
        _become_subreaper()
    guardian = Guardian(int(marks) << MARK_BITS, float(grace))
    guardian.sweep_up([int(mark) for mark in left_behind])
    guardian.serve()


def _become_subreaper() -> None:
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program, as for dlopen(3)
    prctl = _ctypes.dlsym(libc, "prctl")
    _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


class Job:
    """A process that Plait asked for, and all that it starts."""

    __slots__ = ("channel", "deadline", "grouped", "mark", "number", "pid")

    def __init__(self, channel: int, mark: int) -> None:
        self.channel: int | None = channel
        self.mark = mark
        self.pid: int | None = None  # until it is reaped
        self.number = 0  # its pid, for ever
        self.grouped = False  # has a process group of its own
        self.deadline: float | None = None  # it is being ended, and forced then


class Process:
    """What /proc says of a process; pid and start together name it for ever."""

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
    """One loop: requests, commands, the ends of children, and the clock of those who have to end."""

    def __init__(self, first_mark: int, grace: float) -> None:
        self.next_mark = first_mark
        self.grace = grace
        self.request: socket.socket | None = socket.socket(fileno=REQUEST_FD)
        self.channels: dict[int, Job] = {}
        self.leaders: dict[int, Job] = {}
        self.ending: set[Job] = set()
        self.unasked: list[Job] = []  # shall end, but nobody has told them yet
        self.all_by: float | None = None  # everybody is being ended, and forced then
        self.look_at: float | None = None  # when we look next whether those who were asked have ended
        self.pause = 0.0
        self.poll = select.poll()
        self.woken = self.wake_on_exits()
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
        """Until Plait is gone, and all the others."""
        while self.request is not None or self.all_by is not None:
            for fd, _ in self.poll.poll(self.patience()):
                if fd == self.woken:
                    self.reap()
                elif fd == REQUEST_FD:
                    self.take_request()
                elif (job := self.channels.get(fd)) is not None:
                    self.hear(job)
            if self.unasked:
                self.ask_jobs()
            if self.look_at is not None and time.monotonic() >= self.look_at:
                self.see_to_the_end()

    def patience(self) -> float | None:
        """Milliseconds until we look."""
        return None if self.look_at is None else max(self.look_at - time.monotonic(), 0) * 1000 + 1

    def look_in(self, pause: float) -> None:
        self.pause = pause
        self.look_at = time.monotonic() + pause

    # ── starting ──────────────────────────────────────────────────────────

    def take_request(self) -> None:
        assert self.request is not None
        room = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
        what, ancillary, flags, _ = self.request.recvmsg(1, room, _MSG_CMSG_CLOEXEC)
        if what == JOB:
            self.start(_descriptors(ancillary), complete=not flags & socket.MSG_CTRUNC)
        elif what == END_ALL:
            self.begin_to_end_all()
        else:
            self.poll.unregister(REQUEST_FD)
            self.request.close()
            self.request = None
            self.begin_to_end_all()

    def start(self, descriptors: list[int], *, complete: bool) -> None:
        if not descriptors:
            return  # not even the channel: its other end sees it closed
        job = Job(descriptors[0], self.next_mark)
        self.next_mark += 1
        try:
            if not complete:
                raise OSError(errno.EMFILE, "no room for descriptors")
            self.spawn(job, *descriptors)
        except OSError as error:
            self.report(job, REFUSED, error.errno or errno.EIO)
            self.close_channel(job)
        else:
            self.channels[descriptors[0]] = job
            self.leaders[job.number] = job
            self.poll.register(descriptors[0], select.POLLIN)
        finally:
            for fd in descriptors[1:]:
                os.close(fd)

    def spawn(self, job: Job, channel: int, cwd: int, *given: int) -> None:
        if not _MSG_CMSG_CLOEXEC:
            for fd in (channel, cwd, *given):
                os.set_inheritable(fd, False)
        argv, env, group = _read_order(channel)
        os.fchdir(cwd)
        # A descriptor that stands where another shall be put would be overwritten before its turn.
        files = [_moved_behind(fd, FIRST_FILE + len(given)) for fd in given[3:]]
        places = [*enumerate(given[:3]), *enumerate(files, FIRST_FILE)]
        try:
            program = _found(argv[0], env)
            with _Marked(job.mark):
                job.pid = job.number = os.posix_spawn(
                    program,
                    argv,
                    env,
                    file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in places],
                    setpgroup=group,
                    setsigmask=[],
                    setsigdef=_DEFAULTS,
                )
        finally:
            os.chdir("/")  # or the directory could not be unmounted
            for fd in files:
                os.close(fd)
        job.grouped = group == 0

    # ── hearing and reporting ─────────────────────────────────────────────

    def hear(self, job: Job) -> None:
        assert job.channel is not None
        try:
            heard = os.read(job.channel, COMMAND.size)
        except ConnectionError:
            heard = b""
        if len(heard) < COMMAND.size:
            self.lose_caller(job)
            return
        what, number, grace = COMMAND.unpack(heard)
        if what == END:
            self.begin_to_end(job, grace)
        elif what == SIGNAL and job.pid is not None:
            _to_group(job.pid, number) if job.grouped else _kill(job.pid, number)

    def lose_caller(self, job: Job) -> None:
        """Nobody waits for this job any more; if it still runs, nobody wants it either."""
        self.close_channel(job)
        if job.pid is not None and self.all_by is None:
            self.begin_to_end(job, self.grace)

    def close_channel(self, job: Job) -> None:
        if job.channel is not None:
            if self.channels.pop(job.channel, None) is not None:
                self.poll.unregister(job.channel)
            os.close(job.channel)
            job.channel = None

    def report(self, job: Job, what: bytes, number: int, usage: Usage = (0, 0.0, 0.0)) -> None:
        if job.channel is None:
            return
        try:
            os.write(job.channel, REPORT.pack(what, number, job.number, *usage))
        except OSError:  # Plait has closed it, and we shall hear of that in a moment
            return

    def reap(self) -> None:
        """Take leave of every child that has ended; one that was no job is an orphan of a job."""
        _drain(self.woken)
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

    # ── asking to end ─────────────────────────────────────────────────────

    def begin_to_end(self, job: Job, grace: float) -> None:
        deadline = time.monotonic() + grace
        if job.deadline is None:
            job.deadline = deadline
            self.unasked.append(job)
        job.deadline = min(job.deadline, deadline)

    def ask_jobs(self) -> None:
        jobs, self.unasked = self.unasked, []
        self.ending.update(jobs)
        self.look_in(_FIRST_PAUSE)
        members = self.members(jobs) if _LINUX else {}
        _ask([process for job in jobs for process in members.get(job, ())], jobs)

    def begin_to_end_all(self) -> None:
        """Ask everybody; whoever is still there after the grace, old or new, is forced."""
        self.all_by = time.monotonic() + self.grace
        self.look_in(_FIRST_PAUSE)
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

    # ── seeing to it ──────────────────────────────────────────────────────

    def see_to_the_end(self) -> None:
        """Who has ended? who has had time enough?"""
        now = time.monotonic()
        members = self.members(self.ending) if _LINUX else {}
        self.reap()  # after we looked: who is reported to be over has left no zombie either
        for job in list(self.ending):
            alive = bool(members[job]) if _LINUX else _group_lives(job)
            self.see_to(job, now, alive=alive or job.pid is not None)
        if self.all_by is not None:
            self.see_to_all(self.all_by, now)
        if self.ending or self.all_by is not None:
            self.look_in(min(self.pause * 2, _LAST_PAUSE))
        else:
            self.look_at = None

    def see_to(self, job: Job, now: float, *, alive: bool) -> None:
        assert job.deadline is not None
        if not alive or now >= job.deadline + GIVE_UP:
            self.report(job, OVER, int(alive))
            self.ending.discard(job)
            self.close_channel(job)
        elif now >= job.deadline and _LINUX:
            self.sweep(job)
        elif now >= job.deadline:
            _to_group(job.number, signal.SIGKILL)

    def see_to_all(self, deadline: float, now: float) -> None:
        alive = bool(_descendants()) if _LINUX else bool(self.ending)
        if not alive or now >= deadline + GIVE_UP:
            self.all_by = None
        elif now >= deadline and _LINUX:
            self.sweep(None)

    def sweep(self, job: Job | None) -> None:
        """Stop all processes of a job, or of all jobs, until nobody new is found; then kill them."""
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

    def sweep_up(self, marks: list[int]) -> None:
        """Kill what another guardian, now dead, has left behind, wherever it is in the tree."""
        for _ in range(MOST_STOPS if _LINUX and marks else 0):
            found = [p for p in _census().values() if p.alive and _mark(p.pid) >> MARK_BITS in marks]
            if not found:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    _send(process, number)

    def members(self, jobs: Iterable[Job]) -> dict[Job, list[Process]]:
        """The living processes of jobs: what is below their leaders, and orphans that bear their marks."""
        by_mark = {job.mark: job for job in jobs}
        found: dict[Job, list[Process]] = {job: [] for job in by_mark.values()}
        if not found:
            return found
        children = _children(_census())
        for child in children.get(os.getpid(), ()):
            leads = self.leaders.get(child.pid)
            job = by_mark.get(_mark(child.pid) if leads is None else leads.mark)
            if job is not None:
                found[job] += _tree(child, children)
        return found


def _ask(processes: Iterable[Process], jobs: Iterable[Job]) -> None:
    """SIGTERM, to each process once: a second one means "at once" to some programs."""
    groups = {job.number for job in jobs if job.grouped and job.pid is not None}
    # SIGCONT, because who is stopped cannot hear the other.
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
    """Every process that can be seen."""
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
    except OSError:  # it ended while we looked
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
    """All that live below us."""
    children = _children(_census())
    return [process for child in children.get(os.getpid(), ()) for process in _tree(child, children)]


# ── signals ──────────────────────────────────────────────────────────────


def _send(process: Process, number: int) -> None:
    """Signal this very process, never another that has got its pid meanwhile."""
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
    except OSError:  # gone, or another user's, whom we may not signal
        return
    finally:
        os.close(fd)


def _drain(pipe: int) -> None:
    try:
        os.read(pipe, 4096)
    except BlockingIOError:
        return


def _to_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        return


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


class _Marked:
    """What is started meanwhile bears the mark; we keep our own, by which a Plait that runs us knows us."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def __enter__(self) -> None:
        if _LINUX:
            self.own = resource.getrlimit(_RLIMIT_LOCKS)
            try:
                resource.setrlimit(_RLIMIT_LOCKS, (self.mark, self.own[1]))
            except (ValueError, OSError):
                return  # we were given a limit that is lower: orphans of a job stay until all are ended

    def __exit__(self, *_: object) -> None:
        if _LINUX:
            resource.setrlimit(_RLIMIT_LOCKS, self.own)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])
    return found


def _read_order(channel: int) -> tuple[list[bytes], dict[bytes, bytes], int]:
    argv_size, env_size, group = HEAD.unpack(_read_exactly(channel, HEAD.size))
    body = _read_exactly(channel, argv_size + env_size)
    argv = body[:argv_size].split(b"\0")
    pairs = body[argv_size:].split(b"\0") if env_size else []
    return argv, {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}, group


def _read_exactly(fd: int, size: int) -> bytes:
    data = os.read(fd, size) if size else b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            raise OSError(errno.ECONNRESET, "the order was cut short")
        data += more
    return data


def _moved_behind(fd: int, place: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, place)


def _found(program: bytes, env: dict[bytes, bytes]) -> bytes:
    """The file to start, looked for as a shell would: along the PATH that the program itself will see."""
    if b"/" in program:
        return program
    refused = errno.ENOENT
    for folder in env.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        path = os.path.join(folder or b".", program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = errno.EACCES
    raise OSError(refused, "no program of this name")
