"""Plait's end of the guardian: it is started when first needed, told what to run, and replaced if
it dies.

A `Job` is one process and all that it starts.  It has a lane to the guardian, and
lives no longer than that: whoever drops a job, by closing it or by dying, ends it.
A lane serves another job if the one before was short work, and ended by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import WeakSet

from plait.adapters.process import guardian as wire
from plait.core.errors import GuardianError, InputError, MachineError, PlaitError, ProcessError
from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.machine import start_error
from plait.core.records import dataclass, field

if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal

    # what `socket` puts around it takes longer to load than a process to run
    import _socket as socket

FIRST_FILE: Final = wire.FIRST_FILE
"""The number by which a child knows the first of its `files`."""

LOOK: Final = 0.5
"""Seconds between two looks whether the guardian can do its work, while somebody waits for a job.
"""
WAS_STOPPED: Final = (
    "the guardian, through which Plait starts and ends processes, had been stopped (SIGSTOP) and "
    "was "
    "continued: meanwhile nothing could be started, and no timeout held"
)

Stdio: TypeAlias = tuple[int | None, int, int]
"""A child's standard streams; None: nothing to read."""

_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian.main({})"
_WITH_WARM = "lambda *given: __import__('warm').PrestartedShells(*given)"
_WARM = os.path.join(os.path.dirname(__file__), "libwarm.so")
NO_WARM: Final = "PLAIT_NO_WARM_SHELLS"
"""Whoever sets this variable has every shell executed."""
_PATIENCE = 0.001
MOST_CHANGES: Final = 16
"""Variables by which an environment may differ from the one before, and still be told by its
differences.
"""
# A guardian that died is an error to be handled, not a reason for SIGPIPE to end us.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
# EBADF: another thread has found out first, and closed our end.
_NOBODY_LISTENS = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the guardian says of a job."""

    kind: bytes
    number: int
    """EXITED: the wait status.  REFUSED: the errno.  OVER: whether somebody could not be killed."""
    pid: int
    peak_rss: int
    """KiB."""
    user_time: float
    system_time: float


class Job:
    """A process, and our end of its lane, which is readable when there are reports."""

    __slots__ = ("_exited", "_lane", "_undisturbed")

    def __init__(self, lane: _Lane) -> None:
        self._lane: _Lane | None = lane  # until it is closed: then the lane may be another's
        self._exited = False
        self._undisturbed = lane.is_shared

    def fileno(self) -> int:
        assert self._lane is not None
        return self._lane.socket.fileno()

    def reports(self) -> list[JobReport]:
        """Reports that have come in; a `GuardianError` if the guardian died, and none will ever
        come.
        """
        assert self._lane is not None
        try:
            data = self._lane.socket.recv(16 * wire.REPORT.size)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            _replace(self._lane.keeper)
            raise _guardian_lost()
        reports = [JobReport(*fields) for fields in wire.REPORT.iter_unpack(data)]
        for report in reports:
            if report.kind == wire.EXITED:
                self._exited = True
        return reports

    def end(self, grace: float | None = None) -> None:
        """Ask every process of the job to end, and force it after the grace; the report OVER
        follows.
        """
        self._command(wire.END, 0, grace_seconds() if grace is None else grace)

    def signal(self, number: int) -> None:
        """Send a signal to the group of the process."""
        self._command(wire.SIGNAL, number, 0.0)

    def look_after_guardian(self) -> None:
        """If the guardian was stopped, continue it and say so."""
        assert self._lane is not None
        self._lane.keeper.look()

    def close(self) -> None:
        """Let go of it; if it still runs, it is ended."""
        lane, self._lane = self._lane, None
        if lane is not None and self._exited and self._undisturbed:
            lane.give_back()
        elif lane is not None:
            lane.close()

    def _command(self, what: bytes, number: int, grace: float) -> None:
        assert self._lane is not None
        self._undisturbed = False
        with contextlib.suppress(OSError):  # the guardian died: `reports` says so
            self._lane.socket.send(wire.COMMAND.pack(what, number, grace), _NO_SIGNAL)


def start(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    stdio: Stdio,
    files: Sequence[int] = (),
    in_our_group: bool = False,
    awaited: bool = False,
) -> Job:
    """Start a program; that it could not be started comes as the report REFUSED.

    The child gets these descriptors and no others; no stdin: /dev/null.
    `in_our_group`: it shares our process group, so that a terminal treats both of
    us alike.  `awaited`: somebody waits for its exit, and is woken once for that and
    the end of its output, which does not come before.
    """
    given = [fd for fd in stdio if fd is not None]
    how = (wire.NO_INPUT if len(given) < 3 else 0) | (wire.HOLD_OUTPUT if awaited else 0)
    order = _order(argv, env, how, os.getpgrp() if in_our_group else 0)
    directory = _directory(cwd, argv[0])
    descriptors = [directory, *given, *files]
    try:
        for _ in range(2):
            keeper = _keeper(in_our_session=in_our_group)
            try:
                return Job(keeper.send(order, descriptors, shared=awaited))
            except OSError as error:
                if error.errno not in _NOBODY_LISTENS:
                    raise no_room(argv[0], error) from None
                _replace(keeper)
    finally:
        os.close(directory)
    raise _guardian_lost()


def warm_up() -> None:
    """Start the guardian now, while there is other work to do: its start takes longer than a
    call.
    """
    _keeper(in_our_session=False)


def end_all() -> None:
    """Ask every process of this Plait to end, and force it after the grace."""
    with _LOCK:
        for keeper in _KEEPERS.values():
            with contextlib.suppress(OSError):
                keeper.request.send(wire.END_ALL, _NO_SIGNAL)


class NoDescriptors(MachineError):
    """Too many files are open; when another process ends there will be fewer."""


def no_room(program: str, error: OSError) -> PlaitError:
    """For want of descriptors or memory, which the start of any process takes."""
    number = error.errno or 0
    limit = start_error(program, number)
    if limit is None:
        return ProcessError(
            f"'{program}' cannot be started: {os.strerror(number)}", code="not-started"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return NoDescriptors(limit.what, fix=limit.fix, code=limit.code)
    return limit


# ── an order ─────────────────────────────────────────────────────────────


def encode_text(text: str) -> bytes:
    # Not the locale's encoding: bytes that are not UTF-8 came in as surrogates and go out as they
    # were.
    return text.encode("utf-8", "surrogateescape")


def _order(argv: Sequence[str], env: Mapping[str, str], how: int, group: int) -> bytes:
    if not argv:
        raise InputError("there is no program to start", fix="name one", code="no-program")
    try:
        words = _join_words(argv)
        pairs, more = _ENVIRONMENTS.pack_env(env if type(env) is dict else dict(env))
    except UnicodeEncodeError:
        raise _no_words(argv[0], "an argument or variable holds half a character") from None
    except ValueError:
        raise _no_words(
            argv[0], "an argument or variable holds NUL, or a variable's name '='"
        ) from None
    head = wire.HEAD.pack(wire.JOB, how, len(words), len(pairs), len(more), group)
    return b"".join((head, words, pairs, more))


class _Environments:
    """Environments as bytes.  One is like the one before, but for a few variables."""

    def __init__(self) -> None:
        # One object, so that no thread sees half of a change.
        self._last: tuple[dict[str, str], bytes] = ({}, b"")

    def pack_env(self, env: dict[str, str]) -> tuple[bytes, bytes]:
        """An environment that may be the one of earlier, and the variables that have changed
        since.
        """
        last, packed = self._last
        changed = {name: value for name, value in env.items() if last.get(name) != value}
        gone = len(last) + sum(name not in last for name in changed) - len(env)
        if gone or len(changed) > MOST_CHANGES:
            packed, changed = _pack_variables(env), {}
            self._last = (dict(env), packed)
        return packed, _pack_variables(changed)


_ENVIRONMENTS = _Environments()


def _pack_variables(env: dict[str, str]) -> bytes:
    if any("=" in name or not name for name in env):
        raise ValueError("a variable without a name of its own")
    return _join_words([f"{name}={value}" for name, value in env.items()])


def _join_words(words: Sequence[str]) -> bytes:
    joined = encode_text("\0".join(words))
    if joined.count(b"\0") != max(len(words) - 1, 0):
        raise ValueError("NUL within a word")
    return joined


def _no_words(program: str, why: str) -> ProcessError:
    return ProcessError(
        f"'{program}' cannot be started: {why}",
        fix="pass such data through a file or standard input",
        code="not-started",
    )


def _directory(cwd: str | os.PathLike[str] | None, program: str) -> int:
    try:
        return os.open(
            cwd or ".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
        )
    except OSError as error:
        if error.errno not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EACCES,
            errno.ELOOP,
            errno.ENAMETOOLONG,
        ):
            raise no_room(program, error) from None
        raise ProcessError(
            f"'{program}' cannot be started in '{os.fspath(cwd or '.')}': there is no such "
            "directory",
            fix="create the directory, or correct its name",
            code="no-directory",
        ) from None


# ── the guardian process ─────────────────────────────────────────────────


class _Lane:
    """Our end of a lane to the guardian, which serves one job at a time."""

    __slots__ = ("__weakref__", "is_shared", "keeper", "socket")

    def __init__(self, socket: socket.socket, keeper: _Keeper, *, shared: bool) -> None:
        self.socket = socket
        self.keeper = keeper
        self.is_shared = shared

    def send(self, order: bytes, descriptors: Sequence[int]) -> None:
        sent = _send_with(self.socket, order, descriptors)
        if sent < len(order):
            self.socket.setblocking(True)
            self.socket.sendall(order[sent:], _NO_SIGNAL)
            self.socket.setblocking(False)

    def give_back(self) -> None:
        self.keeper.idle.append(self)
        self.keeper.close_spare()

    def close(self) -> None:
        self.keeper.lanes.discard(self)
        self.keeper.shared.discard(self)
        self.socket.close()


@dataclass(slots=True, eq=False)
class _Keeper:
    """A guardian that runs, as far as we know."""

    pid: int
    request: socket.socket
    marks: int
    in_our_session: bool
    lanes: WeakSet[_Lane] = field(default_factory=WeakSet)
    """All that are open.  Weak: one that is lost on the way to its job is closed, and so ends the
    job.
    """
    shared: WeakSet[_Lane] = field(default_factory=WeakSet)
    """Those that may serve one job after the other."""
    idle: list[_Lane] = field(default_factory=list)
    is_dead: bool = False
    next_look: float = 0.0
    is_told: bool = False
    """It was said, to nobody who listens, that it had been stopped."""

    def look(self) -> None:
        now = time.monotonic()
        if self.is_dead or now < self.next_look:
            return
        self.next_look = now + LOOK
        if not _is_stopped(self.pid):
            return
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
        if not _tell(WAS_STOPPED) and not self.is_told:
            self.is_told = True
            print(f"plait: {WAS_STOPPED}", file=sys.stderr)

    def send(self, order: bytes, descriptors: Sequence[int], *, shared: bool) -> _Lane:
        """Hand an order over; the lane on which its reports come."""
        lane = self._lane(shared=shared)
        try:
            lane.send(order, descriptors)
        except BaseException:
            lane.close()
            raise
        return lane

    def close(self) -> None:
        """Not the lanes of jobs, whose watchers learn by them that the guardian has ended."""
        self.is_dead = True
        self.request.close()
        self.close_spare()

    def close_spare(self) -> None:
        """Keep no more idle lanes than there are busy ones, and one: when a map ends, its lanes go,
        too.
        """
        try:
            while self.is_dead or 2 * len(self.idle) > len(self.shared) + 1:
                self.idle.pop().close()
        except IndexError:  # there was none, or another thread took it
            return

    def _lane(self, *, shared: bool) -> _Lane:
        if shared:
            try:
                return self.idle.pop()
            except IndexError:
                pass
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lane = _Lane(ours, self, shared=shared)
        self.lanes.add(lane)
        if shared:
            self.shared.add(lane)
        try:
            ours.setblocking(False)
            _send_with(self.request, wire.LANE, [theirs.fileno()])
        except BaseException:
            lane.close()
            raise
        finally:
            theirs.close()
        return lane


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(1024).rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:  # it has ended, or there is no /proc
        return False


_HEARERS: dict[object, tuple[Callable[[str], None], set[str]]] = {}
"""Those who listen, and what they were told."""


@contextlib.contextmanager
def listening(hear: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, `hear` is told what is wrong with the guardian, each thing once; without a
    listener it is printed."""
    listener = object()
    _HEARERS[listener] = hear, set()
    try:
        yield
    finally:
        del _HEARERS[listener]


def _tell(what: str) -> bool:
    """Does somebody listen?"""
    hearers = list(_HEARERS.values())
    for hear, told in hearers:
        if what not in told:
            told.add(what)
            hear(what)
    return bool(hearers)


def _send_with(socket_: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Send what there is room for, and all descriptors."""
    rights = struct.pack(f"={len(descriptors)}i", *descriptors)
    while True:
        try:
            return socket_.sendmsg(
                [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _NO_SIGNAL
            )
        except OSError as error:
            # So many descriptors are on their way that the system lets no more through for now.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(_PATIENCE)


_KEEPERS: dict[bool, _Keeper] = {}
_LOCK = allocate_lock()


def _keeper(*, in_our_session: bool) -> _Keeper:
    keeper = _KEEPERS.get(in_our_session)
    if keeper is not None:
        return keeper
    with _LOCK:
        if in_our_session not in _KEEPERS:
            _KEEPERS[in_our_session] = _start_keeper(in_our_session)
        return _KEEPERS[in_our_session]


def _replace(dead: _Keeper) -> None:
    """Start another guardian, which begins by ending what the dead one has left behind."""
    with _LOCK:
        if _KEEPERS.get(dead.in_our_session) is not dead:
            return
        dead.close()
        with contextlib.suppress(ChildProcessError):  # somebody else has taken leave of it
            if os.waitpid(dead.pid, os.WNOHANG) == (0, 0):
                os.kill(dead.pid, signal.SIGKILL)
                os.waitpid(dead.pid, 0)
        _KEEPERS[dead.in_our_session] = _start_keeper(dead.in_our_session, dead.marks)


def _start_keeper(in_our_session: bool, *left_behind: int, boot: str | None = None) -> _Keeper:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise no_room("the guardian", error) from None
    marks = int.from_bytes(os.urandom(4), "big") >> 2 | 1
    arguments = [
        str(marks),
        str(grace_seconds()),
        "same" if in_our_session else "own",
        *map(str, left_behind),
    ]
    try:
        # Away from the low numbers, which are overwritten below.
        moved = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    except OSError:  # there is no number above those
        raise no_room("the guardian", OSError(errno.EMFILE, "")) from None
    try:
        pid = os.posix_spawn(
            sys.executable,
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                boot or _boot(),
                os.path.dirname(__file__),
                *arguments,
            ],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
                (os.POSIX_SPAWN_DUP2, moved, wire.REQUEST_FD),
            ],
            setsigmask=[],
        )
    except OSError as error:
        ours.close()
        if (limit := start_error("the guardian", error.errno or 0)) is not None:
            raise limit from None
        raise ProcessError(
            "no process can be started: the guardian did not start: "
            f"{os.strerror(error.errno or 0)}",
            fix=f"check that '{sys.executable}' can be executed and that there is room for another process",
            code="guardian",
        ) from None
    finally:
        os.close(moved)
        theirs.close()
    return _Keeper(pid, ours, marks, in_our_session)


def _boot() -> str:
    is_warm = os.path.exists(_WARM) and not os.environ.get(NO_WARM)
    return _BOOT.format(_WITH_WARM if is_warm else "")


def _guardian_lost() -> GuardianError:
    return GuardianError(
        "the guardian, through which Plait starts processes, has ended, and with it whatever it "
        "ran",
        fix="look who killed it (lack of memory?), then go on: what it ran was cut short and is done again",
        code="guardian",
    )


def _forget_keepers() -> None:
    """After a fork: the guardian is our parent's, who must be the only one to hold its sockets."""
    global _LOCK
    for keeper in _KEEPERS.values():
        keeper.close()
        for lane in list(keeper.lanes):
            lane.close()
    _KEEPERS.clear()
    _LOCK = allocate_lock()


os.register_at_fork(after_in_child=_forget_keepers)
