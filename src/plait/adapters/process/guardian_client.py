"""Plait's end of the guardian: start it when it is needed, send orders, replace it if it dies.

A `Job` is one process and all that it starts. It has a channel to the guardian: closing the job, or
the death of Plait, ends it. A channel serves another job if the one before ended by itself. The
jobs of a `JobGroup` share one channel.

The guardian is the compiled one (guardian.c) where there is one and it works, and guardian.py
otherwise. A new guardian gets its first order when it has reported that it is ready: so one that
does not work is replaced before it could lose an order.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import WeakSet

from plait.adapters.process import guardian_protocol as wire
from plait.core.errors import GuardianError, InputError, MachineError, PlaitError, ProcessError
from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.os_errors import start_error
from plait.core.records import dataclass, field

if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal

    # Loading `socket` takes longer than running a process.
    import _socket as socket

FIRST_FILE: Final = wire.FIRST_FILE
"""The child's descriptor of the first of its `files`."""

CHECK: Final = 0.5
"""Seconds between two checks whether the guardian is stopped, while a job is awaited."""
WAS_STOPPED: Final = (
    "the guardian, through which Plait starts and ends processes, had been stopped (SIGSTOP) and "
    "was continued: meanwhile nothing could be started, and no timeout held"
)

NO_VARIABLES: Final[Mapping[str, str]] = {}

Stdio: TypeAlias = tuple[int | None, int, int]
"""A child's standard streams; None: nothing to read."""

_FOLDER = os.path.dirname(os.path.abspath(__file__))
COMPILED: Final = os.path.join(_FOLDER, f"plait-guardian-{wire.VERSION}")
"""The compiled guardian, if there is one; of another version, it has another name."""
LIBRARY: Final = os.path.join(_FOLDER, "libwarm.so")
"""What the compiled guardian prestarts shells with, if it is there."""
NO_COMPILED: Final = "PLAIT_PYTHON_GUARDIAN"
"""If this variable is set, guardian.py serves."""
NO_WARM: Final = "PLAIT_NO_WARM_SHELLS"
"""If this variable is set, no shell is prestarted."""
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian.main()"
_PATIENCE = 0.001
_START_PATIENCE: Final = 10.0
"""Seconds in which the compiled guardian, which needs a millisecond, has to be ready."""
_END_PATIENCE: Final = 100
"""Milliseconds: a guardian that ends closes its sockets one after the other."""
MOST_CHANGES: Final = 16
"""An environment with more changed variables than these is sent whole."""
# So that a dead guardian is an error that we handle, and SIGPIPE does not end us.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
# EBADF: another thread has noticed it first, and closed our end.
_GUARDIAN_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


@dataclass(frozen=True, slots=True)
class JobReport:
    """A report of the guardian about a job."""

    kind: bytes
    open_streams: int
    """1: output, 2: error output of a captured job; REFUSED: NO_DIRECTORY or 0."""
    id: int
    number: int
    """EXITED: the wait status. REFUSED: the errno. OVER: 1 if a process could not be killed."""
    pid: int
    peak_rss: int
    """KiB."""
    user_time: float
    system_time: float
    stdout: bytes = field(repr=False)
    """OUTPUT: what the job printed."""
    stderr: bytes = field(repr=False)


class Job:
    """A process and its channel, which is readable when there are reports."""

    __slots__ = ("_channel", "_exited", "_id", "_is_reusable")

    def __init__(self, channel: _Channel) -> None:
        self._channel: _Channel | None = channel  # until `close`: then another job may have it
        self._id = channel.last_id
        self._exited = False
        self._is_reusable = channel.is_shared

    def fileno(self) -> int:
        assert self._channel is not None
        return self._channel.socket.fileno()

    def reports(self) -> list[JobReport]:
        """The reports that have arrived; a GuardianError if the guardian died."""
        assert self._channel is not None
        reports = self._channel.receive()
        if reports is None:
            return [_no_channel(self._id)]
        reports = [report for report in reports if report.id == self._id]
        for report in reports:
            if report.kind in (wire.EXITED, wire.CLOSED):
                self._exited = not report.open_streams
        return reports

    def end(self, grace: float | None = None) -> None:
        """Ask every process of the job to end, and kill it after the grace; OVER is reported."""
        self._command(wire.END, 0, grace_seconds() if grace is None else grace)

    def signal(self, number: int) -> None:
        """Send a signal to the group of the process."""
        self._command(wire.SIGNAL, number, 0.0)

    def check_guardian(self) -> None:
        """Continue the guardian if it was stopped, and report that."""
        assert self._channel is not None
        self._channel.guardian.check()

    def close(self) -> None:
        """End the job if it still runs."""
        channel, self._channel = self._channel, None
        if channel is not None and self._exited and self._is_reusable:
            channel.give_back()
        elif channel is not None:
            channel.close()

    def _command(self, kind: bytes, number: int, grace: float) -> None:
        assert self._channel is not None
        self._is_reusable = False
        with contextlib.suppress(OSError):  # the guardian died: `reports` says so
            self._channel.send_all(wire.COMMAND.pack(kind, self._id, number, grace))


def start(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    more_env: Mapping[str, str] = NO_VARIABLES,
    stdio: Stdio | None = None,
    stdin: int | None = None,
    files: Sequence[int] = (),
    in_our_group: bool = False,
    spares: int = 0,
) -> Job:
    """Start a program. If it cannot be started, the report REFUSED follows.

    Its environment is `env` with `more_env`; it costs less if `env` is the same as before.
    Without `stdio` its output is captured: reports bring it, and its input is `stdin`, or nothing.
    The child gets only these descriptors. `in_our_group`: it shares our process group, so that a
    terminal treats both alike. `spares`: refuse to start it if fewer descriptors would be left.
    """
    captured = stdio is None
    given = [fd for fd in (stdio or (stdin,)) if fd is not None]
    flags = wire.NO_INPUT if len(given) < (1 if captured else 3) else 0
    order = _order(
        argv,
        env,
        more_env,
        flags | (wire.CAPTURE if captured else 0),
        os.getpgrp() if in_our_group else 0,
        1 + len(given) + len(files),
    )
    directory = open_directory(cwd, argv[0])
    descriptors = [directory, *given, *files]
    try:
        if spares and directory >= _CHECKED_FROM:
            _require_spare_descriptors(argv[0], max(descriptors), spares)
        for _ in range(2):
            guardian = _guardian(in_our_session=in_our_group)
            try:
                return Job(guardian.send(order, descriptors, shared=captured))
            except OSError as error:
                if error.errno not in _GUARDIAN_GONE:
                    raise no_room(argv[0], error) from None
                if not guardian.has_ended():  # it had no descriptor for the channel
                    raise no_room(argv[0], OSError(errno.EMFILE, "")) from None
                _replace(guardian)
    finally:
        os.close(directory)
    raise _guardian_lost()


class JobGroup:
    """Many jobs on one channel, for a thread that serves them all.

    Orders are sent together by `flush`. Closing the group ends the jobs that still run.
    """

    def __init__(self) -> None:
        self._channel: _Channel | None = None
        self._running: set[int] = set()
        self._unsent = bytearray()
        self._is_reusable = True
        self.is_full = False
        """The channel has no room: wait until it can be written, then `flush`."""

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        more_env: Mapping[str, str] = NO_VARIABLES,
        stdin: int | None = None,
        files: Sequence[int] = (),
    ) -> GroupJob:
        """Start a program with captured output. If it cannot be started, REFUSED is reported.

        The descriptors may be closed afterwards. They need room in the channel at once, so
        ChannelFull is raised if there is none.
        """
        given = [*files] if stdin is None else [stdin, *files]
        flags = wire.CAPTURE | (wire.NO_INPUT if stdin is None else 0)
        order = _order(argv, env, more_env, flags, 0, len(given), cwd)
        channel = self._open_channel(argv[0])
        order = _with_id(order, channel.last_id + 1)
        if given:
            self.flush()
            if self.is_full:
                raise ChannelFull
            try:
                sent = _send_with(channel.socket, order, given)
            except BlockingIOError:
                self.is_full = True
                raise ChannelFull from None
            except OSError as error:
                lost = error.errno in _GUARDIAN_GONE
                raise (_guardian_lost() if lost else no_room(argv[0], error)) from None
            if sent < len(order):
                self._unsent += order[sent:]
        else:
            self._unsent += order
        channel.last_id += 1
        self._running.add(channel.last_id)
        return GroupJob(self, channel.last_id)

    def _open_channel(self, program: str) -> _Channel:
        if (
            self._channel is not None
            and not self._running
            and self._channel.guardian.has_ended_now()
        ):
            _replace(self._channel.guardian)
            self._drop_channel()
        if self._channel is not None:
            return self._channel
        for _ in range(2):
            guardian = _guardian(in_our_session=False)
            try:
                self._channel = guardian.open_channel(shared=True)
            except OSError as error:
                if error.errno not in _GUARDIAN_GONE:
                    raise no_room(program, error) from None
                _replace(guardian)
            else:
                return self._channel
        raise _guardian_lost()

    def flush(self) -> None:
        """Send what there is room for; that the guardian is lost, `reports` says.

        It never waits: a guardian that is stopped reads nothing, and only we can continue it.
        """
        self.is_full = False
        while self._unsent and self._channel is not None:
            try:
                del self._unsent[: self._channel.socket.send(self._unsent, _NO_SIGNAL)]
            except BlockingIOError:
                self.is_full = True
                return
            except OSError:
                self._unsent.clear()

    def fileno(self) -> int:
        """Of the channel, which may become another one when a job starts; -1: there is none."""
        return -1 if self._channel is None else self._channel.socket.fileno()

    def reports(self) -> list[JobReport]:
        """The reports about jobs that have arrived; a GuardianError if the guardian died."""
        if self._channel is None:
            return []
        reports = self._channel.receive()
        if reports is None:
            self._drop_channel()
            reports = [_no_channel(id_) for id_ in sorted(self._running)]
        return [report for report in reports if report.id in self._running]

    def check_guardian(self) -> None:
        """Continue the guardian if it was stopped, and report that."""
        if self._channel is not None:
            self._channel.guardian.check()

    def command(self, id_: int, kind: bytes, number: int, grace: float) -> None:
        self._is_reusable = False
        if self._channel is not None:
            self._unsent += wire.COMMAND.pack(kind, id_, number, grace)
            self.flush()

    def remove(self, id_: int) -> None:
        """Forget a job that has ended."""
        self._running.discard(id_)

    def _drop_channel(self) -> _Channel | None:
        """Forget the channel, and what was to be sent on it."""
        channel, self._channel = self._channel, None
        self._unsent.clear()
        self.is_full = False
        return channel

    def close(self) -> None:
        is_reusable = self._is_reusable and not self._running and not self._unsent
        channel = self._drop_channel()
        if channel is None:
            return
        if is_reusable:
            channel.give_back()
        else:
            channel.close()


class GroupJob:
    """A process of a group."""

    __slots__ = ("_group", "id")

    def __init__(self, group: JobGroup, id_: int) -> None:
        self._group = group
        self.id = id_

    def end(self, grace: float | None = None) -> None:
        """Ask every process of the job to end, and kill it after the grace; OVER is reported."""
        self._group.command(self.id, wire.END, 0, grace_seconds() if grace is None else grace)

    def close(self) -> None:
        self._group.remove(self.id)


class ChannelFull(Exception):
    """The guardian has to read before the channel has room for an order."""


_CHECKED_FROM: Final = 100
"""Descriptors below this number do not make us check the limit."""


def _require_spare_descriptors(program: str, newest: int, spares: int) -> None:
    """New descriptors get the lowest free number, so the newest shows how many are in use."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and newest + spares >= soft:
        raise no_room(program, OSError(errno.EMFILE, ""))


def warm_up() -> None:
    """Start the guardian now, in parallel to other work: its start takes longer than a call."""
    _guardian(in_our_session=False)


def describe() -> str:
    """Which guardian serves, and why not the compiled one. It is started for this."""
    with listening(lambda _: None):
        for _ in range(2):
            guardian = _guardian(in_our_session=False)
            try:
                guardian.require_ready()
            except OSError:
                _replace(guardian)
                continue
            return _description(_command())
    raise _guardian_lost()


def _description(command: Sequence[str]) -> str:
    if command[0] == COMPILED:
        shells = "executes shells" if _library() == "" else "prestarts shells"
        return f"compiled, {shells} ({COMPILED})"
    if os.environ.get(NO_COMPILED):
        why = f"{NO_COMPILED} is set"
    elif _COMPILED_PROBLEM is not None:
        why = f"the compiled one does not work here ({_COMPILED_PROBLEM})"
    else:
        why = "this installation has no compiled one"
    return f"in Python, slower for maps: {why}"


def end_all() -> None:
    """Ask every process of this Plait to end, and kill it after the grace."""
    with _LOCK:
        for guardian in _GUARDIANS.values():
            with contextlib.suppress(OSError):
                guardian.request.send(wire.END_ALL, _NO_SIGNAL)


class NoDescriptors(MachineError):
    """Too many files are open; the end of another process helps."""


def no_room(program: str, error: OSError) -> PlaitError:
    """The error if a start fails for lack of descriptors or memory."""
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
    # Not the locale's encoding: bytes that are not UTF-8 came in as surrogates, and go out again.
    return text.encode("utf-8", "surrogateescape")


def _order(
    argv: Sequence[str],
    env: Mapping[str, str],
    more_env: Mapping[str, str],
    flags: int,
    group: int,
    descriptors: int,
    directory: str = "",
) -> bytes:
    """An order as bytes, without its id. Without a `directory`, its first descriptor is one."""
    if not argv:
        raise InputError("there is no program to start", fix="name one", code="no-program")
    try:
        words = _join_words(argv)
        pairs, more = _ENVIRONMENTS.pack_env(env if type(env) is dict else dict(env), more_env)
    except UnicodeEncodeError:
        raise _unsendable(argv[0], "an argument or variable holds half a character") from None
    except ValueError:
        raise _unsendable(
            argv[0], "an argument or variable holds NUL, or a variable's name '='"
        ) from None
    place = _join_words([directory]) if directory else b""
    sizes = len(words), len(pairs), len(more), len(place)
    head = wire.HEAD.pack(wire.JOB, flags, descriptors, 0, *sizes, group)
    return b"".join((head, words, pairs, more, place))


def _with_id(order: bytes, id_: int) -> bytes:
    return b"".join((order[:_ID_AT], _ID.pack(id_), order[_ID_AT + _ID.size :]))


class _Environments:
    """Environments as bytes. Most differ from the last one in a few variables only."""

    def __init__(self) -> None:
        # One object, so that threads need no lock.
        self._last: tuple[dict[str, str], bytes] = ({}, b"")

    def pack_env(self, env: dict[str, str], more: Mapping[str, str]) -> tuple[bytes, bytes]:
        """A whole environment, often an earlier one, and the variables that differ from it."""
        if len(more) > MOST_CHANGES:
            return _pack_variables({**env, **more}), b""
        last, packed = self._last
        if env != last:
            changed = {name: value for name, value in env.items() if last.get(name) != value}
            gone = len(last) + sum(name not in last for name in changed) - len(env)
            if gone or len(changed) > MOST_CHANGES:
                packed = _pack_variables(env)
                self._last = (dict(env), packed)
            else:
                more = {**changed, **more}
        return packed, _pack_variables(more)


_ENVIRONMENTS = _Environments()


def _pack_variables(env: Mapping[str, str]) -> bytes:
    if any("=" in name or not name for name in env):
        raise ValueError("a variable without a usable name")
    return _join_words([f"{name}={value}" for name, value in env.items()])


def _join_words(words: Sequence[str]) -> bytes:
    """Texts with NUL at the end of each."""
    joined = encode_text("\0".join((*words, "")))
    if joined.count(b"\0") != len(words):
        raise ValueError("NUL within a word")
    return joined


def _unsendable(program: str, why: str) -> ProcessError:
    return ProcessError(
        f"'{program}' cannot be started: {why}",
        fix="pass such data through a file or standard input",
        code="not-started",
    )


def open_directory(cwd: str | os.PathLike[str] | None, program: str) -> int:
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


class _Channel:
    """Our end of a channel to the guardian."""

    __slots__ = ("__weakref__", "_came", "_is_new", "guardian", "is_shared", "last_id", "socket")

    def __init__(self, socket: socket.socket, guardian: _Guardian, *, shared: bool) -> None:
        self.socket = socket
        self.guardian = guardian
        self.is_shared = shared
        self.last_id = 0
        """Of the last order."""
        self._came = b""
        """The beginning of a report."""
        self._is_new = True
        """The guardian may have had no descriptor for it."""

    def receive(self) -> list[JobReport] | None:
        """The reports that have arrived; a GuardianError if the guardian died.

        None: the guardian has no more descriptors, so it closed the channel before it used it.
        """
        try:
            data = self.socket.recv(_ROOM)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data and self._is_new and not self.guardian.has_ended():
            return None
        if not data:
            _replace(self.guardian)
            raise _guardian_lost()
        self._is_new = False
        reports, self._came = split_reports(self._came + data if self._came else data)
        return reports

    def send(self, order: bytes, descriptors: Sequence[int]) -> None:
        self.last_id += 1
        order = _with_id(order, self.last_id)
        sent = _send_with(self.socket, order, descriptors)
        if sent < len(order):
            self.send_all(order[sent:])

    def send_all(self, data: bytes) -> None:
        """Send all data; the guardian always reads on."""
        try:
            sent = self.socket.send(data, _NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.socket.setblocking(True)
            self.socket.sendall(data[sent:], _NO_SIGNAL)
            self.socket.setblocking(False)

    def give_back(self) -> None:
        self.guardian.idle.append(self)
        self.guardian.close_spare()

    def close(self) -> None:
        self.guardian.channels.discard(self)
        self.guardian.shared.discard(self)
        self.socket.close()


_ROOM = 4 * wire.PIECE
_ID, _ID_AT = struct.Struct("=I"), 4


def _no_channel(id_: int) -> JobReport:
    """The guardian lives and closed a channel that it never used: it has no more descriptors."""
    return JobReport(wire.REFUSED, 0, id_, errno.EMFILE, 0, 0, 0.0, 0.0, b"", b"")


def split_reports(data: bytes) -> tuple[list[JobReport], bytes]:
    """Complete reports, and the beginning of the next one."""
    reports, at, size = list[JobReport](), 0, wire.REPORT.size
    while len(data) - at >= size:
        kind, streams, id_, number, pid, peak, user, system, out, err = wire.REPORT.unpack_from(
            data, at
        )
        end = at + size + out + err
        if len(data) < end:
            break
        middle = at + size + out
        stdout, stderr = data[at + size : middle], data[middle:end]
        reports.append(
            JobReport(kind, streams, id_, number, pid, peak, user, system, stdout, stderr)
        )
        at = end
    return reports, data[at:]


@dataclass(slots=True, eq=False)
class _Guardian:
    """A guardian process, and the channels to it."""

    pid: int
    request: socket.socket
    marks: int
    in_our_session: bool
    channels: WeakSet[_Channel] = field(default_factory=WeakSet)
    """All open ones. Weak, so that one that is lost before its job exists is closed."""
    shared: WeakSet[_Channel] = field(default_factory=WeakSet)
    """Those that may serve several jobs, one after the other."""
    idle: list[_Channel] = field(default_factory=list)
    is_compiled: bool = False
    is_ready: bool = False
    is_dead: bool = False
    next_check: float = 0.0
    was_printed: bool = False
    """The warning was printed, because no listener was there."""

    def check(self) -> None:
        now = time.monotonic()
        if self.is_dead or now < self.next_check:
            return
        self.next_check = now + CHECK
        if not _is_stopped(self.pid):
            return
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
        if not _notify(WAS_STOPPED) and not self.was_printed:
            self.was_printed = True
            print(f"plait: {WAS_STOPPED}", file=sys.stderr)

    def require_ready(self) -> None:
        """Wait until it takes orders; an OSError as of a dead one if it never will."""
        if self.is_ready:
            return
        with _LOCK:
            if self.is_ready or self.is_dead:
                return
            start, poll = time.monotonic(), select.poll()
            poll.register(self.request, select.POLLIN)
            while not poll.poll(CHECK * 1000):
                self.check()
                if self.is_compiled and time.monotonic() - start > _START_PATIENCE:
                    _distrust_compiled("it does not answer")
                    with contextlib.suppress(OSError):
                        os.kill(self.pid, signal.SIGKILL)
            if self.request.recv(1) != wire.READY:
                raise OSError(errno.EPIPE, "")
            self.is_ready = True

    def has_ended(self) -> bool:
        """Whether it closed its end of the request socket, or does so in this moment."""
        if self.is_dead:
            return True
        return self._has_closed(_END_PATIENCE)

    def has_ended_now(self) -> bool:
        """Whether it is known to have ended."""
        return self.is_dead or self._has_closed(0)

    def _has_closed(self, patience: int) -> bool:
        """Whether it closes its end of the request socket within so many milliseconds."""
        poll = select.poll()
        try:
            poll.register(self.request, select.POLLIN)
        except ValueError:  # another thread has closed ours
            return True
        return bool(poll.poll(patience))

    def send(self, order: bytes, descriptors: Sequence[int], *, shared: bool) -> _Channel:
        """Send an order; returns the channel of its job."""
        channel = self.open_channel(shared=shared)
        try:
            channel.send(order, descriptors)
        except BaseException:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        """Keeps the channels of jobs open: by them their threads notice the guardian's end."""
        self.is_dead = True
        self.request.close()
        self.close_spare()

    def close_spare(self) -> None:
        """Keep at most one idle channel more than busy ones: after a map the others go."""
        try:
            while self.is_dead or 2 * len(self.idle) > len(self.shared) + 1:
                self.idle.pop().close()
        except IndexError:  # there was none, or another thread took it
            return

    def open_channel(self, *, shared: bool) -> _Channel:
        """Return an idle channel, or a new one."""
        if shared:
            try:
                return self.idle.pop()
            except IndexError:
                pass
        self.require_ready()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = _Channel(ours, self, shared=shared)
        self.channels.add(channel)
        if shared:
            self.shared.add(channel)
        try:
            ours.setblocking(False)
            _send_with(self.request, wire.CHANNEL, [theirs.fileno()])
        except BaseException:
            channel.close()
            raise
        finally:
            theirs.close()
        return channel


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(1024).rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:  # it has ended, or there is no /proc
        return False


_LISTENERS: dict[object, tuple[Callable[[str], None], set[str]]] = {}
"""Each with the messages that it has got."""


@contextlib.contextmanager
def listening(warn: Callable[[str], None]) -> Iterator[None]:
    """Within this, `warn` gets each problem of the guardian once. Otherwise they are printed."""
    key = object()
    _LISTENERS[key] = warn, set()
    try:
        yield
    finally:
        del _LISTENERS[key]


def _notify(message: str) -> bool:
    """False if there is no listener."""
    listeners = list(_LISTENERS.values())
    for warn, sent in listeners:
        if message not in sent:
            sent.add(message)
            warn(message)
    return bool(listeners)


def _send_with(socket_: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Send all descriptors, and as much data as fits; returns how much."""
    rights = struct.pack(f"={len(descriptors)}i", *descriptors)
    while True:
        try:
            return socket_.sendmsg(
                [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _NO_SIGNAL
            )
        except OSError as error:
            # Too many descriptors are in flight: wait until some have arrived.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(_PATIENCE)


_GUARDIANS: dict[bool, _Guardian] = {}
_LOCK = allocate_lock()


def _guardian(*, in_our_session: bool) -> _Guardian:
    guardian = _GUARDIANS.get(in_our_session)
    if guardian is not None:
        return guardian
    with _LOCK:
        if in_our_session not in _GUARDIANS:
            _GUARDIANS[in_our_session] = _start_guardian(in_our_session)
        return _GUARDIANS[in_our_session]


def _replace(dead: _Guardian) -> None:
    """Start another guardian, which first kills what the dead one left running."""
    with _LOCK:
        if _GUARDIANS.get(dead.in_our_session) is not dead:
            return
        dead.close()
        with contextlib.suppress(ChildProcessError):  # other code has waited for it
            why = _own_fault(_end_status(dead.pid))
            if dead.is_compiled and why:
                _distrust_compiled(why)
        _GUARDIANS[dead.in_our_session] = _start_guardian(dead.in_our_session, dead.marks)


def _end_status(pid: int) -> int:
    """The wait status of a guardian that ends now; one that does not is killed."""
    end = time.monotonic() + _END_PATIENCE / 1000
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(_PATIENCE)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _own_fault(status: int) -> str:
    """How a guardian ended; empty if something else killed it, as when there is no memory left."""
    if os.WIFEXITED(status):
        return f"it ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    return "" if number == signal.SIGKILL else f"it was ended by: {signal.strsignal(number)}"


def _start_guardian(
    in_our_session: bool, *old_marks: int, command: Sequence[str] = ()
) -> _Guardian:
    """`command`: the program that is the guardian, without its arguments; empty: choose one."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise no_room("the guardian", error) from None
    marks = int.from_bytes(os.urandom(4), "big") >> 2 | 1
    arguments = [
        *(command or _command()),
        str(wire.VERSION),
        str(marks),
        str(grace_seconds()),
        "same" if in_our_session else "own",
        _library(),
        *map(str, old_marks),
    ]
    try:
        # Not a low number: those are overwritten below.
        moved = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    except OSError:  # the limit is below 10
        raise no_room("the guardian", OSError(errno.EMFILE, "")) from None
    try:
        pid = os.posix_spawn(
            arguments[0],
            arguments,
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
        if arguments[0] == COMPILED and not command:
            _distrust_compiled(os.strerror(error.errno or 0))
            return _start_guardian(in_our_session, *old_marks)
        raise ProcessError(
            "no process can be started: the guardian did not start: "
            f"{os.strerror(error.errno or 0)}",
            fix=f"check that '{arguments[0]}' can be executed and that there is room for another process",
            code="guardian",
        ) from None
    finally:
        os.close(moved)
        theirs.close()
    return _Guardian(pid, ours, marks, in_our_session, is_compiled=arguments[0] == COMPILED)


def _command() -> list[str]:
    """The program that is the guardian. A compiled one that may not be executed is tried, too: then
    its start says so.
    """
    is_usable = _COMPILED_PROBLEM is None and not os.environ.get(NO_COMPILED)
    if is_usable and os.path.exists(COMPILED):
        return [COMPILED]
    return [sys.executable, "-I", "-S", "-c", _BOOT, _FOLDER]


def _library() -> str:
    """What prestarts shells; empty if none shall be, or it was not compiled."""
    return "" if os.environ.get(NO_WARM) or not os.path.exists(LIBRARY) else LIBRARY


_COMPILED_PROBLEM: str | None = None
"""Why the compiled guardian is not used any more."""


def _distrust_compiled(why: str) -> None:
    """Use guardian.py from now on."""
    global _COMPILED_PROBLEM
    if _COMPILED_PROBLEM is None:
        _COMPILED_PROBLEM = why
        message = (
            f"the compiled guardian does not work here ({why}): the slower one in Python serves"
        )
        if not _notify(message):
            print(f"plait: {message}", file=sys.stderr)


def _guardian_lost() -> GuardianError:
    cause = "find out what killed it (out of memory?), then"
    if _COMPILED_PROBLEM is not None:
        cause = (
            f"set {NO_COMPILED}=1, so that the guardian in Python serves from the beginning, then"
        )
    return GuardianError(
        "the guardian, through which Plait starts processes, has ended, and with it whatever it "
        "ran",
        fix=f"{cause} plait resume: what it ran was cut short and is done again",
        code="guardian",
    )


def _drop_guardians() -> None:
    """After a fork: only the parent may have sockets to its guardian."""
    global _LOCK
    for guardian in _GUARDIANS.values():
        guardian.close()
        for channel in list(guardian.channels):
            channel.close()
    _GUARDIANS.clear()
    _LOCK = allocate_lock()


os.register_at_fork(after_in_child=_drop_guardians)
