"""The process of the guardian: start it when it is needed, and replace it if it dies.

The compiled guardian (guardian.c) is used if it exists and works, otherwise guardian.py. A new
guardian gets its first order only after it has reported that it is ready: so one that does not work
is replaced before it could lose an order.
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
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakSet

from plait.adapters.process import guardian_protocol as wire
from plait.adapters.process.guardian_orders import with_id
from plait.core.errors import GuardianError, MachineError, PlaitError, ProcessError
from plait.core.grace import grace_seconds
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.os_errors import start_error
from plait.core.records import dataclass, field

if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal

    # Loading `socket` takes longer than running a process.
    import _socket as socket

CHECK: Final = 0.5
"""Seconds between two checks whether the guardian is stopped, while a job is awaited."""
WAS_STOPPED: Final = (
    "the guardian, through which Plait starts and ends processes, had been stopped (SIGSTOP) and "
    "was continued: meanwhile nothing could be started, and no timeout held"
)
_FOLDER = os.path.dirname(os.path.abspath(__file__))
COMPILED: Final = os.path.join(_FOLDER, f"plait-guardian-{wire.VERSION}")
"""The path of the compiled guardian, which may be missing; each version has another name."""
LIBRARY: Final = os.path.join(_FOLDER, "libwarm.so")
"""The library with which the compiled guardian prestarts shells, if it exists."""
NO_COMPILED: Final = "PLAIT_PYTHON_GUARDIAN"
"""If this variable is set, guardian.py is used."""
NO_WARM: Final = "PLAIT_NO_WARM_SHELLS"
"""If this variable is set, no shells are prestarted."""
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); import guardian; guardian.main()"
_PATIENCE = 0.001
_START_PATIENCE: Final = 10.0
"""Seconds that the compiled guardian has to get ready; it needs a millisecond."""
_END_PATIENCE: Final = 100
"""Milliseconds: a guardian that ends closes its sockets one after the other."""
# A dead guardian must be an error that we handle; SIGPIPE must not end us.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
# EBADF: another thread noticed it first and closed our end.
GUARDIAN_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


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


def warm_up() -> None:
    """Start the guardian now, in parallel to other work: starting it takes longer than a call."""
    get_guardian(in_our_session=False)


def describe() -> str:
    """Which guardian is used, and why not the compiled one. This starts it."""
    with listening(lambda _: None):
        for _ in range(2):
            guardian = get_guardian(in_our_session=False)
            try:
                guardian.require_ready()
            except OSError:
                replace_guardian(guardian)
                continue
            return _description(_command())
    raise lost_guardian()


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
                guardian.request.send(wire.END_ALL, NO_SIGNAL)


class NoDescriptors(MachineError):
    """Too many files are open; the end of another process may help."""


def no_room(program: str, error: OSError) -> PlaitError:
    """Return the error for a start that failed for lack of descriptors or memory."""
    number = error.errno or 0
    limit = start_error(program, number)
    if limit is None:
        return ProcessError(
            f"'{program}' cannot be started: {os.strerror(number)}", code="not-started"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return NoDescriptors(limit.what, fix=limit.fix, code=limit.code)
    return limit


class Channel:
    """Our end of a channel to the guardian."""

    __slots__ = ("__weakref__", "_came", "_is_new", "guardian", "is_shared", "last_id", "socket")

    def __init__(self, socket: socket.socket, guardian: Guardian, *, shared: bool) -> None:
        self.socket = socket
        self.guardian = guardian
        self.is_shared = shared
        self.last_id = 0
        """The id of the last order."""
        self._came = b""
        """The beginning of an incomplete report."""
        self._is_new = True
        """Nothing has arrived yet: the guardian may have had no descriptor for the channel."""

    def receive(self) -> list[JobReport] | None:
        """Return the reports that have arrived; raise a GuardianError if the guardian died.

        None: the guardian has no more descriptors, so it closed the channel before it used
        it.
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
            replace_guardian(self.guardian)
            raise lost_guardian()
        self._is_new = False
        reports, self._came = split_reports(self._came + data if self._came else data)
        return reports

    def send(self, order: bytes, descriptors: Sequence[int]) -> None:
        self.last_id += 1
        order = with_id(order, self.last_id)
        sent = send_with(self.socket, order, descriptors)
        if sent < len(order):
            self.send_all(order[sent:])

    def send_all(self, data: bytes) -> None:
        """Send all data; the guardian never stops reading."""
        try:
            sent = self.socket.send(data, NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.socket.setblocking(True)
            self.socket.sendall(data[sent:], NO_SIGNAL)
            self.socket.setblocking(False)

    def give_back(self) -> None:
        self.guardian.idle.append(self)
        self.guardian.close_spare()

    def close(self) -> None:
        self.guardian.channels.discard(self)
        self.guardian.shared.discard(self)
        self.socket.close()


_ROOM = 4 * wire.PIECE


def refused_channel(id_: int) -> JobReport:
    """The report for a channel that a living guardian closed unused: it has no more descriptors."""
    return JobReport(wire.REFUSED, 0, id_, errno.EMFILE, 0, 0, 0.0, 0.0, b"", b"")


def split_reports(data: bytes) -> tuple[list[JobReport], bytes]:
    """Split data into complete reports and the beginning of the next one."""
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
class Guardian:
    """A guardian process, and the channels to it."""

    pid: int
    request: socket.socket
    marks: int
    in_our_session: bool
    channels: WeakSet[Channel] = field(default_factory=WeakSet)
    """All open channels. The references are weak, so that a channel that is lost before its job
    exists is closed.
    """
    shared: WeakSet[Channel] = field(default_factory=WeakSet)
    """Channels that may serve several jobs, one after the other."""
    idle: list[Channel] = field(default_factory=list)
    is_compiled: bool = False
    is_ready: bool = False
    is_dead: bool = False
    next_check: float = 0.0
    was_printed: bool = False
    """The warning was printed, because there was no listener."""

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
        """Wait until it accepts orders; raise an OSError as for a dead one if it never will."""
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
        """Has it closed its end of the request socket, or does it close it now?"""
        if self.is_dead:
            return True
        return self._has_closed(_END_PATIENCE)

    def has_ended_now(self) -> bool:
        """Is it known to have ended?"""
        return self.is_dead or self._has_closed(0)

    def _has_closed(self, patience: int) -> bool:
        """Does it close its end of the request socket within this number of milliseconds?"""
        poll = select.poll()
        try:
            poll.register(self.request, select.POLLIN)
        except ValueError:  # another thread has closed our end
            return True
        return bool(poll.poll(patience))

    def send(self, order: bytes, descriptors: Sequence[int], *, shared: bool) -> Channel:
        """Send an order; returns the channel of its job."""
        channel = self.open_channel(shared=shared)
        try:
            channel.send(order, descriptors)
        except BaseException:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        """Close it, but keep the channels of jobs open: through them their threads notice
        its end.
        """
        self.is_dead = True
        self.request.close()
        self.close_spare()

    def close_spare(self) -> None:
        """Keep at most one more idle channel than busy ones: after a map, the others are closed."""
        try:
            while self.is_dead or 2 * len(self.idle) > len(self.shared) + 1:
                self.idle.pop().close()
        except IndexError:  # there was none, or another thread took it
            return

    def open_channel(self, *, shared: bool) -> Channel:
        """Return an idle channel, or a new one."""
        if shared:
            try:
                return self.idle.pop()
            except IndexError:
                pass
        self.require_ready()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(ours, self, shared=shared)
        self.channels.add(channel)
        if shared:
            self.shared.add(channel)
        try:
            ours.setblocking(False)
            send_with(self.request, wire.CHANNEL, [theirs.fileno()])
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
"""The listeners, each with the messages that it has got."""


@contextlib.contextmanager
def listening(warn: Callable[[str], None]) -> Iterator[None]:
    """Inside this context, `warn` gets each problem of the guardian once. Otherwise they are
    printed.
    """
    key = object()
    _LISTENERS[key] = warn, set()
    try:
        yield
    finally:
        del _LISTENERS[key]


def _notify(message: str) -> bool:
    """Pass a message to the listeners; False if there are none."""
    listeners = list(_LISTENERS.values())
    for warn, sent in listeners:
        if message not in sent:
            sent.add(message)
            warn(message)
    return bool(listeners)


def send_with(socket_: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Send all descriptors, and as much data as fits; return how much was sent."""
    rights = struct.pack(f"={len(descriptors)}i", *descriptors)
    while True:
        try:
            return socket_.sendmsg(
                [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], NO_SIGNAL
            )
        except OSError as error:
            # Too many descriptors are on their way: wait until some have arrived.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(_PATIENCE)


_GUARDIANS: dict[bool, Guardian] = {}
_LOCK = allocate_lock()


def get_guardian(*, in_our_session: bool) -> Guardian:
    guardian = _GUARDIANS.get(in_our_session)
    if guardian is not None:
        return guardian
    with _LOCK:
        if in_our_session not in _GUARDIANS:
            _GUARDIANS[in_our_session] = start_guardian(in_our_session)
        return _GUARDIANS[in_our_session]


def replace_guardian(dead: Guardian) -> None:
    """Start another guardian, which first kills what the dead one left running."""
    with _LOCK:
        if _GUARDIANS.get(dead.in_our_session) is not dead:
            return
        dead.close()
        with contextlib.suppress(ChildProcessError):  # other code has collected its exit status
            why = _own_fault(_end_status(dead.pid))
            if dead.is_compiled and why:
                _distrust_compiled(why)
        _GUARDIANS[dead.in_our_session] = start_guardian(dead.in_our_session, dead.marks)


def _end_status(pid: int) -> int:
    """Return the wait status of a guardian that ends now; kill it if it does not end."""
    end = time.monotonic() + _END_PATIENCE / 1000
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(_PATIENCE)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _own_fault(status: int) -> str:
    """How a guardian ended; empty if something else killed it, for example when memory ran out."""
    if os.WIFEXITED(status):
        return f"it ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    return "" if number == signal.SIGKILL else f"it was ended by: {signal.strsignal(number)}"


def start_guardian(in_our_session: bool, *old_marks: int, command: Sequence[str] = ()) -> Guardian:
    """Start a guardian; `command`: its program, without arguments; empty: choose one."""
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
        # Not a low number: low numbers are overwritten below.
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
            return start_guardian(in_our_session, *old_marks)
        raise ProcessError(
            "no process can be started: the guardian did not start: "
            f"{os.strerror(error.errno or 0)}",
            fix=f"check that '{arguments[0]}' can be executed and that there is room for another process",
            code="guardian",
        ) from None
    finally:
        os.close(moved)
        theirs.close()
    return Guardian(pid, ours, marks, in_our_session, is_compiled=arguments[0] == COMPILED)


def _command() -> list[str]:
    """Return the guardian's program. A compiled one that must not be executed is tried too: its
    start then reports that.
    """
    is_usable = _COMPILED_PROBLEM is None and not os.environ.get(NO_COMPILED)
    if is_usable and os.path.exists(COMPILED):
        return [COMPILED]
    return [sys.executable, "-I", "-S", "-c", _BOOT, _FOLDER]


def _library() -> str:
    """Return the library that prestarts shells; empty if it is switched off or was not compiled."""
    return "" if os.environ.get(NO_WARM) or not os.path.exists(LIBRARY) else LIBRARY


_COMPILED_PROBLEM: str | None = None
"""Why the compiled guardian is no longer used."""


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


def lost_guardian() -> GuardianError:
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
    """Reset after a fork: only the parent may have sockets to its guardian."""
    global _LOCK
    for guardian in _GUARDIANS.values():
        guardian.close()
        for channel in list(guardian.channels):
            channel.close()
    _GUARDIANS.clear()
    _LOCK = allocate_lock()


os.register_at_fork(after_in_child=_drop_guardians)
