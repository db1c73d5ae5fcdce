"""Plait's end of the guardian: it is started when first needed, told what to run, and replaced if it dies.

A `Job` is one process and all that it starts.  It lives no longer than its
channel: whoever drops a job, by closing it or by dying, ends it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from _thread import allocate_lock
from collections.abc import Mapping, Sequence

from plait.errors import InputError, ProcessError
from plait.hints import TYPE_CHECKING, Final
from plait.primitives import guardian as wire
from plait.records import dataclass

if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal
    import _socket as socket  # what `socket` puts around it takes longer to load than a process to run

GRACE: Final = 2.0
"""Seconds between asking processes to end and forcing them."""
FIRST_FILE: Final = wire.FIRST_FILE
"""The number by which a child knows the first of its `files`."""

_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian.main()"
_PATIENCE = 0.001
# A guardian that died is an error to be handled, not a reason for SIGPIPE to end us.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
# EBADF: another thread has found out first, and closed our end.
_NOBODY_LISTENS = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


@dataclass(frozen=True, slots=True)
class Report:
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
    """A process, and our end of its channel, which is readable when there are reports."""

    __slots__ = ("_channel", "_keeper")

    def __init__(self, channel: socket.socket, keeper: _Keeper) -> None:
        self._channel = channel
        self._keeper = keeper

    def fileno(self) -> int:
        return self._channel.fileno()

    def reports(self) -> list[Report]:
        """Reports that have come in; a `ProcessError` if the guardian died, and none will ever come."""
        try:
            data = self._channel.recv(16 * wire.REPORT.size)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            _replace(self._keeper)
            raise _guardian_lost()
        return [Report(*fields) for fields in wire.REPORT.iter_unpack(data)]

    def end(self, grace: float = GRACE) -> None:
        """Ask every process of the job to end, and force it after the grace; the report OVER follows."""
        self._command(wire.END, 0, grace)

    def signal(self, number: int) -> None:
        """Send a signal to the group of the process."""
        self._command(wire.SIGNAL, number, 0.0)

    def close(self) -> None:
        """Let go of it; if it still runs, it is ended."""
        self._channel.close()

    def _command(self, what: bytes, number: int, grace: float) -> None:
        with contextlib.suppress(OSError):  # the guardian died: `reports` says so
            self._channel.send(wire.COMMAND.pack(what, number, grace), _NO_SIGNAL)


def start(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    stdio: tuple[int, int, int],
    files: Sequence[int] = (),
    in_our_group: bool = False,
) -> Job:
    """Start a program; that it could not be started comes as the report REFUSED.

    The child gets these descriptors and no others.  `in_our_group`: it shares
    our process group, so that a terminal treats both of us alike.
    """
    order = _order(argv, env, os.getpgrp() if in_our_group else 0)
    directory = _directory(cwd, argv[0])
    try:
        for _ in range(2):
            keeper = _keeper(in_our_session=in_our_group)
            try:
                return Job(keeper.send(order, (directory, *stdio, *files)), keeper)
            except OSError as error:
                if error.errno not in _NOBODY_LISTENS:
                    raise no_room(argv[0], error) from None
                _replace(keeper)
    finally:
        os.close(directory)
    raise _guardian_lost()


def warm_up() -> None:
    """Start the guardian now, while there is other work to do: its start takes longer than a call."""
    _keeper(in_our_session=False)


def end_all() -> None:
    """Ask every process of this Plait to end, and force it after the grace."""
    with _LOCK:
        for keeper in _KEEPERS.values():
            with contextlib.suppress(OSError):
                keeper.request.send(wire.END_ALL, _NO_SIGNAL)


def no_room(program: str, error: OSError) -> ProcessError:
    """For want of descriptors or memory, which the start of any process takes."""
    return ProcessError(
        f"'{program}' cannot be started: {os.strerror(error.errno or 0)}",
        fix="run fewer at a time, or allow more open files (ulimit -n)",
        code="not-started",
    )


# ── an order ─────────────────────────────────────────────────────────────


def encoded(text: str) -> bytes:
    # Not the locale's encoding: bytes that are not UTF-8 came in as surrogates and go out as they were.
    return text.encode("utf-8", "surrogateescape")


def _order(argv: Sequence[str], env: Mapping[str, str], group: int) -> bytes:
    if not argv:
        raise InputError("there is no program to start", fix="name one", code="no-program")
    try:
        words = encoded("\0".join(argv))
        pairs = encoded("\0".join([f"{name}={value}" for name, value in env.items()]))
    except UnicodeEncodeError:
        raise _no_words(argv[0], "an argument or variable holds half a character") from None
    expected = len(argv) - 1 + max(len(env) - 1, 0)
    if words.count(b"\0") + pairs.count(b"\0") != expected or any("=" in name or not name for name in env):
        raise _no_words(argv[0], "an argument or variable holds NUL, or a variable's name '='")
    return wire.HEAD.pack(len(words), len(pairs), group) + words + pairs


def _no_words(program: str, why: str) -> ProcessError:
    return ProcessError(
        f"'{program}' cannot be started: {why}",
        fix="pass such data through a file or standard input",
        code="not-started",
    )


def _directory(cwd: str | os.PathLike[str] | None, program: str) -> int:
    try:
        return os.open(cwd or ".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise ProcessError(
            f"'{program}' cannot be started in '{os.fspath(cwd or '.')}': there is no such directory",
            fix="create the directory, or correct its name",
            code="no-directory",
        ) from None


# ── the guardian process ─────────────────────────────────────────────────


@dataclass(slots=True)
class _Keeper:
    """A guardian that runs, as far as we know."""

    pid: int
    request: socket.socket
    marks: int
    in_our_session: bool

    def send(self, order: bytes, descriptors: Sequence[int]) -> socket.socket:
        """Hand an order over; our end of its channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # First the order, or the guardian would have to wait for it; what does not fit follows.
            sent = ours.send(order, socket.MSG_DONTWAIT | _NO_SIGNAL)
            rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (theirs.fileno(), *descriptors))
            self._request([(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            if sent < len(order):
                ours.sendall(order[sent:], _NO_SIGNAL)
            ours.setblocking(False)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _request(self, rights: list[tuple[int, int, bytes]]) -> None:
        while True:
            try:
                self.request.sendmsg([wire.JOB], rights, _NO_SIGNAL)
                return
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
            _KEEPERS[in_our_session] = _started(in_our_session)
        return _KEEPERS[in_our_session]


def _replace(dead: _Keeper) -> None:
    """Start another guardian, which begins by ending what the dead one has left behind."""
    with _LOCK:
        if _KEEPERS.get(dead.in_our_session) is not dead:
            return
        dead.request.close()
        with contextlib.suppress(ChildProcessError):  # somebody else has taken leave of it
            if os.waitpid(dead.pid, os.WNOHANG) == (0, 0):
                os.kill(dead.pid, signal.SIGKILL)
                os.waitpid(dead.pid, 0)
        _KEEPERS[dead.in_our_session] = _started(dead.in_our_session, dead.marks)


def _started(in_our_session: bool, *left_behind: int, boot: str = _BOOT) -> _Keeper:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    marks = int.from_bytes(os.urandom(4), "big") >> 2 | 1
    arguments = [str(marks), str(GRACE), "same" if in_our_session else "own", *map(str, left_behind)]
    # Away from the low numbers, which are overwritten below.
    moved = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", boot, os.path.dirname(__file__), *arguments],
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
        raise ProcessError(
            f"no process can be started: the guardian did not start: {os.strerror(error.errno or 0)}",
            fix=f"check that '{sys.executable}' can be executed and that there is room for another process",
            code="guardian",
        ) from None
    finally:
        os.close(moved)
        theirs.close()
    return _Keeper(pid, ours, marks, in_our_session)


def _guardian_lost() -> ProcessError:
    return ProcessError(
        "the guardian, through which Plait starts processes, has ended, and with it whatever it ran",
        fix="try again: a new guardian was started; look who killed the old one (lack of memory?)",
        code="guardian",
    )


def _forget_keepers() -> None:
    """After a fork: the guardian is our parent's, who must be the only one to hold its socket."""
    global _LOCK
    for keeper in _KEEPERS.values():
        keeper.request.close()
    _KEEPERS.clear()
    _LOCK = allocate_lock()


os.register_at_fork(after_in_child=_forget_keepers)
