"""Prestarted shells: a shell waits before its `main`, and each order forks a child that enters it.

So the cost of `exec` is paid once. `libwarm.so` (made from `warm.c` where there is a C compiler)
does the waiting; this module is the guardian's end. Such a child is a child of the guardian and
cannot be told from one that was executed; where that is impossible, the shell is executed (see
decision 23).

Like the guardian, this module is imported alone, without Plait.
"""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Final
else:
    import _socket as socket

LIBRARY: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libwarm.so")
SHELLS: Final = frozenset([b"sh", b"dash", b"bash"])
"""Programs whose start is short apart from the dynamic loader."""
MOST_DESCRIPTORS: Final = 40
"""In one order: directory, streams and files. The same number is in warm.c."""
MOST_BYTES: Final = 64 * 1024
"""Of one order; longer ones are rare, and are executed."""
PATIENCE: Final = 5.0
"""Seconds to wait for a reply, which takes microseconds."""

VERSION: Final = 1
"""Of orders; a library from another warm.c reports another one."""
CONTROL: Final = 3
"""The shell's descriptor of the socket for orders."""
ORDER: Final = struct.Struct("=IIIIQQQQIxxxx")
"""Bytes of argv and env, their counts, mark and hard limit, file limit and hard limit, stream."""
REPLY: Final = struct.Struct("=q")
"""The pid, or -errno."""
# The loader and the C library read these before `main`, so the program has to be executed.
_READ_BEFORE: Final = (b"\0LD_", b"\0MALLOC_", b"\0GLIBC_")


class Lost(OSError):
    """An order was sent, and it is unknown whether a process runs."""


class _Gone(Exception):
    """The shell has ended before it got the order: nothing runs."""


class PrestartedShells:
    """The waiting shells, by program."""

    Lost = Lost

    def __init__(self, default_signals: Sequence[int], mark: Callable[[int], None]) -> None:
        """`mark` gets the pid of each new shell, and marks it as ours."""
        self._default_signals = default_signals
        self._mark = mark
        self._shells: dict[bytes, _Shell | None] = {}
        """None: this program cannot be prestarted."""

    def begin(
        self,
        program: bytes,
        argv: Sequence[bytes],
        env: bytes,
        descriptors: Sequence[int],
        *,
        first: int,
        mark: tuple[int, int],
        files: tuple[int, int],
    ) -> int | None:
        """The pid of a new shell; None: the program has to be executed.

        `env`: variables with NUL between them. `descriptors`: the directory, the streams from
        `first` on, and the files.
        """
        if program.rpartition(b"/")[2] not in SHELLS or len(descriptors) > MOST_DESCRIPTORS:
            return None
        shell = self._find(program)
        if shell is None:
            return None
        order = _order(argv, env, first, mark, files)
        if order is None:
            return None
        try:
            return shell.begin(order, descriptors)
        except _Gone:
            self._forget(program)
            return None
        except Lost:
            self._forget(program)
            raise

    def close(self) -> None:
        for program in list(self._shells):
            self._forget(program)

    def _find(self, program: bytes) -> _Shell | None:
        """A shell of the file that is at this path now."""
        identity = _identity(program)
        if program in self._shells:
            shell = self._shells[program]
            if shell is None or shell.identity == identity:
                return shell
            self._forget(program)
        try:
            new = self._shells[program] = _Shell(program, identity, self._default_signals)
        except (OSError, _Gone):
            self._shells[program] = None
            return None
        self._mark(new.pid)
        return new

    def _forget(self, program: bytes) -> None:
        shell = self._shells.pop(program, None)
        if shell is not None:
            shell.close()


class _Shell:
    """A waiting shell, and the socket to it."""

    def __init__(self, program: bytes, identity: Identity, default_signals: Sequence[int]) -> None:
        """OSError if it cannot be executed; `_Gone` if it does not report that it waits."""
        self.identity = identity
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Its standard streams are those of the guardian: /dev/null.
            self.pid = os.posix_spawn(
                program,
                [os.path.basename(program)],
                {b"LD_PRELOAD": os.fsencode(LIBRARY)},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL)],
                setpgroup=0,
                setsigmask=[],
                setsigdef=default_signals,
            )
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()
        self._socket.settimeout(PATIENCE)
        # A script with the name of a shell would be run by its interpreter.
        if self._reply() != VERSION or _identity(b"/proc/%d/exe" % self.pid) != identity:
            self.close()
            raise _Gone

    def begin(self, order: bytes, descriptors: Sequence[int]) -> int:
        rights = struct.pack(f"={len(descriptors)}i", *descriptors)
        try:
            self._socket.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            raise _Gone from None
        pid = self._reply()
        if pid is None:
            raise Lost(errno.EIO, "it is unknown whether a process runs")
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def close(self) -> None:
        """The shell ends by itself when its socket is closed."""
        self._socket.close()

    def _reply(self) -> int | None:
        try:
            reply = self._socket.recv(REPLY.size)
        except OSError:
            return None
        number: int | None = REPLY.unpack(reply)[0] if len(reply) == REPLY.size else None
        return number


Identity = tuple[int, int, int, int]


def _identity(program: bytes) -> Identity:
    status = os.stat(program)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _order(
    argv: Sequence[bytes],
    env: bytes,
    first: int,
    mark: tuple[int, int],
    files: tuple[int, int],
) -> bytes | None:
    """An order as bytes; None if the program has to be executed."""
    arguments = b"\0".join((*argv, b""))
    # NUL after each variable, and before each, so that names can be found.
    variables = b"\0" + env + b"\0" if env else b"\0"
    size = ORDER.size + len(arguments) + len(variables)
    if size > MOST_BYTES or any(name in variables for name in _READ_BEFORE):
        return None
    # As in the kernel: no limit is the largest number.
    limits = [number & 0xFFFF_FFFF_FFFF_FFFF for number in (*mark, *files)]
    count = variables.count(b"\0") - 1
    head = ORDER.pack(len(arguments), len(variables) - 1, len(argv), count, *limits, first)
    return b"".join((head, arguments, variables[1:]))
