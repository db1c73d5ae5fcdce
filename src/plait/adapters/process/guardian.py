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

    request socket   Plait → guardian   LANE and the descriptor of one; END_ALL; closing it ends
    everybody
    lane             Plait → guardian   an order: HEAD, argv, env, and descriptors: cwd, stdio,
    files
                                        COMMANDs, which are for the job that was ordered last
                     guardian → Plait   REPORTs of that job

A lane serves one job after the other; closing it ends the one that still runs.

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
    from collections.abc import Callable, Iterable, Sequence
    from typing import Final, TypeAlias

    from plait.adapters.process.warm import PrestartedShells

    MakeWarm: TypeAlias = Callable[[Sequence[int], Callable[[int], None]], PrestartedShells]
else:
    import _signal as signal
    import _socket as socket

REQUEST_FD: Final = 3
FIRST_FILE: Final = 64
"""The child's descriptor of its first file; far from 3, which scripts and make's job server like to
use.
"""
MAX_DESCRIPTORS: Final = 253
"""Linux passes no more at once."""
GIVE_UP: Final = 5.0
"""Seconds after the grace; who is left then cannot be killed: another user's, or stuck in the
kernel.
"""
MARK_BITS: Final = 32
"""Low bits of a mark, which count the jobs of one guardian."""
MOST_STOPS: Final = 100
"""How often a sweep looks for somebody new before it kills whom it has; only a fork bomb gets
there.
"""

HEAD: Final = struct.Struct("=cBxxIIIi")
"""JOB, how it is to be treated, bytes of argv, of env and of more env, process group (0: one of its
own).
"""
COMMAND: Final = struct.Struct("=cxxxid")
"""What, signal, seconds of grace."""
REPORT: Final = struct.Struct("=cxxxiiqdd")
"""What, errno or wait status, pid, peak memory in KiB, seconds of user and of system time."""

LANE, END_ALL = b"L", b"A"  # requests
JOB, END, SIGNAL = b"J", b"E", b"S"  # on a lane
NO_INPUT: Final = 1
"""Its standard input is /dev/null, for which no descriptor comes."""
HOLD_OUTPUT: Final = 2
"""Its output ends when it ends and not before: who waits for both is woken once."""
REFUSED, EXITED, OVER = b"F", b"X", b"O"  # reports

_LINUX = sys.platform == "linux"
_RLIMIT_LOCKS = 10
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Neither a terminal nor a service manager that signals everybody may end the guardian before the
# others.
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
_LOW = FIRST_FILE + MAX_DESCRIPTORS  # behind all places where a child has its descriptors
EXECUTED_FIRST: Final = 3
"""How many programs are executed before shells that wait are worth what they cost."""
MOST_LOWERED: Final = 12
"""Descriptors of one child that can be lowered: its streams, and more files than a script usually
has.
"""


def main(make_warm: MakeWarm | None = None) -> None:
    """Arguments: high bits of our marks, grace, `own` or `same` session; high bits of marks to
    sweep up.

    `make_warm`: imports `warm`, whose `PrestartedShells` it makes, when there is more than a little
    to start.
    """
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
        _tell_kernel()
    guardian = Guardian(int(marks) << MARK_BITS, float(grace), make_warm)
    guardian.sweep_up([int(mark) for mark in left_behind])
    guardian.serve()


def _tell_kernel() -> None:
    """Orphans below us are ours; and when Plait ends we are woken, should somebody have stopped
    us.
    """
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program, as for dlopen(3)
    prctl = _ctypes.dlsym(libc, "prctl")
    _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _ctypes.call_function(prctl, (_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0))


class JobChannel:
    """What orders come on, one after the other."""

    __slots__ = ("fd", "job", "socket")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self.job: Job | None = None  # the last one


class Job:
    """A process that Plait asked for, and all that it starts."""

    __slots__ = ("deadline", "grouped", "held", "lane", "mark", "number", "over_awaited", "pid")

    def __init__(self, lane: JobChannel, mark: int) -> None:
        self.lane: JobChannel | None = lane  # until it is closed
        self.mark = mark
        self.pid: int | None = None  # until it is reaped
        self.number = 0  # its pid, for ever
        self.grouped = False  # has a process group of its own
        self.held: Sequence[int] = ()  # its output, until it is reaped
        self.deadline: float | None = None  # it is being ended, and forced then
        self.over_awaited = (
            False  # by whom ended it; the lane of any other may serve the next job by then
        )


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
    """One loop: requests, commands, the ends of children, and the clock of those who have to
    end.
    """

    def __init__(self, first_mark: int, grace: float, make_warm: MakeWarm | None) -> None:
        self.next_mark = first_mark
        self.make_warm = make_warm
        self.warm: PrestartedShells | None = None
        self.executed = 0
        self.grace = grace
        self.request: socket.socket | None = socket.socket(fileno=REQUEST_FD)
        self.lanes: dict[int, JobChannel] = {}
        self.programs = Programs()
        self.environments = Environments()
        self.own_limit = resource.getrlimit(_RLIMIT_LOCKS) if _LINUX else (0, 0)
        self.files_of_children, self.own_files = self.take_all_descriptors()
        self.low: list[int] = self.keep_low_descriptors()
        self.leaders: dict[int, Job] = {}
        self.ending: set[Job] = set()
        self.unasked: list[Job] = []  # shall end, but nobody has told them yet
        self.all_by: float | None = None  # everybody is being ended, and forced then
        self.look_at: float | None = (
            None  # when we look next whether those who were asked have ended
        )
        self.pause = 0.0
        self.poll = select.poll()
        self.woken = self.wake_on_exits()
        self.poll.register(REQUEST_FD, select.POLLIN)

    def take_all_descriptors(self) -> tuple[int, int]:
        """How many we were given, and how many we have now."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # more than the kernel knows of
            return soft, soft
        return soft, hard

    def keep_low_descriptors(self) -> list[int]:
        """Places for the descriptors of a child: `posix_spawn` knows none beyond the child's
        limit.
        """
        if self.own_files == self.files_of_children:
            return []
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return [nothing, *(_duplicate_above(nothing, _LOW) for _ in range(MOST_LOWERED))]

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
                elif (lane := self.lanes.get(fd)) is not None:
                    self.hear(lane)
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

    # ── hearing ───────────────────────────────────────────────────────────

    def take_request(self) -> None:
        assert self.request is not None
        what, ancillary, _, _ = self.request.recvmsg(1, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC)
        if what == LANE:
            for fd in _descriptors(
                ancillary
            ):  # none, if there is no room: its other end sees it closed
                self.lanes[fd] = JobChannel(fd)
                self.poll.register(fd, select.POLLIN)
        elif what == END_ALL:
            self.begin_to_end_all()
        else:
            self.poll.unregister(REQUEST_FD)
            self.request.close()
            self.request = None
            self.begin_to_end_all()

    def hear(self, lane: JobChannel) -> None:
        try:
            heard, ancillary, flags, _ = lane.socket.recvmsg(
                _ORDER_ROOM, _CONTROL_ROOM, _MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            self.lose_caller(lane)
            return
        if not heard:
            self.lose_caller(lane)
        elif heard[:1] == JOB:
            self.start(lane, heard, _descriptors(ancillary), complete=not flags & socket.MSG_CTRUNC)
        elif lane.job is not None:
            self.obey(lane.job, heard)

    def obey(self, job: Job, commands: bytes) -> None:
        for what, number, grace in COMMAND.iter_unpack(commands):
            if what == END:
                job.over_awaited = True
                self.begin_to_end(job, grace)
            elif (
                what == SIGNAL
                and job.pid is not None
                and not (job.grouped and _to_group(job.pid, number))
            ):
                _kill(job.pid, number)  # also a shell that begins, and leads its group in a moment

    def lose_caller(self, lane: JobChannel) -> None:
        """Nobody waits for its job any more; if that still runs, nobody wants it either."""
        self.close_lane(lane)
        if lane.job is not None and lane.job.pid is not None and self.all_by is None:
            self.begin_to_end(lane.job, self.grace)

    def close_lane(self, lane: JobChannel) -> None:
        if self.lanes.pop(lane.fd, None) is not None:
            self.poll.unregister(lane.fd)
            lane.socket.close()
        if lane.job is not None:
            lane.job.lane = None

    # ── starting ──────────────────────────────────────────────────────────

    def start(
        self, lane: JobChannel, heard: bytes, descriptors: list[int], *, complete: bool
    ) -> None:
        job = lane.job = Job(lane, self.next_mark)
        self.next_mark += 1
        try:
            if self.request is None:
                raise OSError(errno.ECANCELED, "nobody is left who wants it")
            order = Order(lane.fd, heard)
            if not complete:
                raise OSError(errno.EMFILE, "no room for descriptors")
            job.pid = job.number = self.spawn(job, order, descriptors)
        except OSError as error:
            self.report(job, REFUSED, error.errno or errno.EIO)
            self.close_lane(lane)
        else:
            job.grouped = order.group == 0
            self.leaders[job.pid] = job
            if order.how & HOLD_OUTPUT:
                output = slice(2 - order.first, 4 - order.first)
                job.held = descriptors[output]
                del descriptors[output]
            self.obey(job, order.commands)
        finally:
            for fd in descriptors:
                os.close(fd)

    def spawn(self, job: Job, order: Order, descriptors: list[int]) -> int:
        os.fchdir(descriptors[0])
        try:
            env = self.environments.whole(order.env, order.more_env)
            program = self.programs.find(order.argv[0], env)
            pid = self.begin_warm(program, job, order, env, descriptors)
            return self.execute(program, job.mark, order, env, descriptors) if pid is None else pid
        finally:
            os.chdir("/")  # or the directory could not be unmounted

    def begin_warm(
        self, program: bytes, job: Job, order: Order, env: Environment, descriptors: list[int]
    ) -> int | None:
        """Let a shell begin that waits for it; None: the program has to be executed."""
        if self.make_warm is None or self.executed < EXECUTED_FIRST or order.group != 0:
            return None
        if self.all_by is not None:
            return None  # a shell that waits hears no signal, and would be there until it is forced
        if self.warm is None:
            self.warm = self.make_warm(_DEFAULTS, self.mark_other)
        mark, files = (job.mark, self.own_limit[1]), (self.files_of_children, self.own_files)
        variables = self.environments.join_packed(order.env, order.more_env, env)
        try:
            return self.warm.begin(
                program,
                order.argv,
                variables,
                descriptors,
                first=order.first,
                mark=mark,
                files=files,
            )
        except self.warm.Lost:
            self.begin_to_end(job, 0.0)  # it may run, and whatever bears its mark has to go
            raise

    def mark_other(self, pid: int) -> None:
        """A process that is ours and no job: who sweeps up after us finds it."""
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
        # A descriptor that stands where another shall be put would be overwritten before its turn.
        files = [_duplicate_above(fd, FIRST_FILE + len(given)) for fd in given[streams:]]
        places = [*enumerate(given[:streams], order.first), *enumerate(files, FIRST_FILE)]
        try:
            self.set_mark(mark)
            places = self.lower_descriptors(places)
            if all(fd < self.files_of_children for _, fd in places):
                self.limit_files(self.files_of_children)
            return os.posix_spawn(
                program,
                order.argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in places],
                setpgroup=order.group,
                setsigmask=[],
                setsigdef=_DEFAULTS,
            )
        finally:
            self.limit_files(self.own_files)
            self.raise_again(places)
            self.set_mark(None)
            for fd in files:
                os.close(fd)

    def set_mark(self, mark: int | None) -> None:
        """What is started from now on bears it; None: our own, by which a Plait that runs us knows
        us.
        """
        if _LINUX:
            soft, hard = self.own_limit
            try:
                resource.setrlimit(_RLIMIT_LOCKS, (soft if mark is None else mark, hard))
            except (ValueError, OSError):
                # we were given a limit that is lower: orphans of a job stay until all are ended
                return

    def lower_descriptors(self, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The same descriptors, by numbers that a child may have, as far as there are some."""
        free, lowered = self.low[1:], []
        for place, fd in places:
            is_high = fd >= self.files_of_children and free
            lowered.append((place, os.dup2(fd, free.pop(), inheritable=False) if is_high else fd))
        return lowered

    def raise_again(self, places: list[tuple[int, int]]) -> None:
        """Hold none of them for longer than its start takes."""
        if self.low:
            nothing, *lent = self.low
            for fd in {fd for _, fd in places}.intersection(lent):
                os.dup2(nothing, fd, inheritable=False)

    def limit_files(self, soft: int) -> None:
        """We hold the output of every job and need what we can get; jobs get what Plait was
        given.
        """
        if self.own_files != self.files_of_children:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self.own_files))

    # ── reporting ─────────────────────────────────────────────────────────

    def report(self, job: Job, what: bytes, number: int, usage: Usage = (0, 0.0, 0.0)) -> None:
        if job.lane is None:
            return
        try:
            os.write(job.lane.fd, REPORT.pack(what, number, job.number, *usage))
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
                # After the report: who wakes by it finds the output at its end a moment later.
                self.let_go_of_output(job)

    def let_go_of_output(self, job: Job) -> None:
        for fd in job.held:
            os.close(fd)
        job.held = ()

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
        if self.warm is not None:
            self.warm.close()
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
            if job.over_awaited:
                self.report(job, OVER, int(alive))
            self.ending.discard(job)
            self.let_go_of_output(job)
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
        """Stop all processes of a job, or of all jobs, until nobody new is found; then kill
        them.
        """
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
            found = [
                p for p in _census().values() if p.alive and _mark(p.pid) >> MARK_BITS in marks
            ]
            if not found:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    _send(process, number)

    def members(self, jobs: Iterable[Job]) -> dict[Job, list[Process]]:
        """The living processes of jobs: what is below their leaders, and orphans that bear their
        marks.
        """
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
    return [
        process for child in children.get(os.getpid(), ()) for process in _tree(child, children)
    ]


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


def _to_group(group: int, number: int) -> bool:
    """Is there such a group?"""
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


class Order:
    """What is to be started; `heard` is its beginning, and nearly always all of it."""

    __slots__ = ("argv", "commands", "env", "first", "group", "how", "more_env")

    def __init__(self, lane: int, heard: bytes) -> None:
        _, self.how, argv_size, env_size, more_size, self.group = HEAD.unpack_from(heard)
        # The place of the first stream that comes with it: our own input is /dev/null, and is
        # passed on.
        self.first = 1 if self.how & NO_INPUT else 0
        env = HEAD.size + argv_size
        more = env + env_size
        end = more + more_size
        heard += _read_exactly(lane, max(end - len(heard), 0))
        self.argv = heard[HEAD.size : env].split(b"\0")
        self.env = heard[env:more]
        self.more_env = heard[more:end]
        self.commands = heard[end:]  # some systems give what was sent next, too


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
    """Environments as dictionaries.  One is like the one before, but for a few variables."""

    def __init__(self) -> None:
        self.packed = b""
        self.last: Environment = {}

    def whole(self, packed: bytes, more: bytes) -> Environment:
        if packed != self.packed:
            self.packed, self.last = packed, _unpack(packed)
        return {**self.last, **_unpack(more)} if more else self.last

    def join_packed(self, packed: bytes, more: bytes, whole: Environment) -> bytes:
        """The same as `whole`, in one text; mostly that is what came."""
        parts = [part for part in (packed, more) if part]
        if len(whole) == sum(part.count(b"\0") + 1 for part in parts):  # none replaces another
            return b"\0".join(parts)
        return b"\0".join(map(b"=".join, whole.items()))


def _unpack(pairs: bytes) -> Environment:
    if not pairs:
        return {}
    return {name: value for name, _, value in [pair.partition(b"=") for pair in pairs.split(b"\0")]}


class Programs:
    """Finds the file to start as a shell would: along the PATH that the program itself will see.

    Where it might be is remembered for the name that was asked for last; where it is, never.
    """

    def __init__(self) -> None:
        self.asked: tuple[bytes, bytes] = (b"", b"")
        self.places: list[bytes] = []

    def find(self, program: bytes, env: Environment) -> bytes:
        if b"/" in program:
            return program
        asked = (program, env.get(b"PATH", _DEFAULT_PATH))
        if asked != self.asked:
            self.asked = asked
            self.places = [os.path.join(folder or b".", program) for folder in asked[1].split(b":")]
        for place in self.places:
            if os.access(place, os.X_OK) and os.path.isfile(place):
                return place
        is_there = any(os.path.isfile(place) for place in self.places)
        raise OSError(errno.EACCES if is_there else errno.ENOENT, "no program of this name")


Environment = dict[bytes, bytes]
_DEFAULT_PATH = os.fsencode(os.defpath)
