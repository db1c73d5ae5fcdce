"""A shell that waits before its `main`, and begins as often as it is told: what `exec` costs is
paid once.

`libwarm.so`, made of `warm.c` where there is a C compiler, does the waiting; this is
the guardian's end.  Whoever is started so is a child of the guardian like any other:
nobody can tell the difference, or it is not done (see decision 23).

Like the guardian it is imported alone, without Plait.
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
"""Programs whose beginning is short besides what the loader does for them."""
MOST_DESCRIPTORS: Final = 40
"""That come with an order: the directory, streams and files; the same as in warm.c."""
MOST_BYTES: Final = 64 * 1024
"""Of an order; longer ones are rare, and `exec` has its own limits for them."""
PATIENCE: Final = 5.0
"""Seconds for an answer, which takes microseconds."""

VERSION: Final = 1
"""Of orders; a library that was made of an older warm.c says another."""
CONTROL: Final = 3
"""Its descriptor of the socket on which orders come."""
ORDER: Final = struct.Struct("=IIIIQQQQIxxxx")
"""Bytes of argv and of env, their counts, mark and its hard limit, descriptors and theirs, first
stream.
"""
ANSWER: Final = struct.Struct("=q")
"""Its pid, or the errno below zero."""
# The loader and the C library read these before `main`, which was done long ago.
_READ_BEFORE: Final = (b"\0LD_", b"\0MALLOC_", b"\0GLIBC_")


class Lost(OSError):
    """It was told to begin, and nobody knows whether it did."""


class _Gone(Exception):
    """It cannot be told anything any more; nothing was begun."""


class PrestartedShells:
    """Those that wait, by program."""

    Lost = Lost

    def __init__(self, default_signals: Sequence[int], mark: Callable[[int], None]) -> None:
        """`mark`: given the pid of a new one, makes it known as ours."""
        self._default_signals = default_signals
        self._mark = mark
        self._shells: dict[bytes, _Shell | None] = {}
        """None: this one cannot."""

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
        """The pid of a shell that has begun; None: this one has to be executed.

        `env`: variables with NUL between them.  The descriptors are those of its directory, of its
        streams from `first` on, and of its files.
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
        """One of the very program that stands there now."""
        identity = _identity(program)
        if program in self._shells:
            known = self._shells[program]
            if known is None or known.identity == identity:
                return known
            self._forget(program)
        try:
            made = self._shells[program] = _Shell(program, identity, self._default_signals)
        except (OSError, _Gone):
            self._shells[program] = None
            return None
        self._mark(made.pid)
        return made

    def _forget(self, program: bytes) -> None:
        shell = self._shells.pop(program, None)
        if shell is not None:
            shell.close()


class _Shell:
    """A process that waits, and the socket to it."""

    def __init__(self, program: bytes, identity: Identity, default_signals: Sequence[int]) -> None:
        """An OSError if it cannot be executed; `_Gone` if it does not say that it waits."""
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
        # What waits may be the interpreter of a script that has the name of a shell.
        if self._answer() != VERSION or _identity(b"/proc/%d/exe" % self.pid) != identity:
            self.close()
            raise _Gone

    def begin(self, order: bytes, descriptors: Sequence[int]) -> int:
        rights = struct.pack(f"={len(descriptors)}i", *descriptors)
        try:
            self._socket.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            raise _Gone from None
        pid = self._answer()
        if pid is None:
            raise Lost(errno.EIO, "it is not known what has begun")
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def close(self) -> None:
        """It ends by itself when nobody can tell it anything."""
        self._socket.close()

    def _answer(self) -> int | None:
        try:
            answer = self._socket.recv(ANSWER.size)
        except OSError:
            return None
        number: int | None = ANSWER.unpack(answer)[0] if len(answer) == ANSWER.size else None
        return number


Identity = tuple[int, int, int, int]


def _identity(program: bytes) -> Identity:
    seen = os.stat(program)
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _order(
    argv: Sequence[bytes],
    env: bytes,
    first: int,
    mark: tuple[int, int],
    files: tuple[int, int],
) -> bytes | None:
    """An order as bytes; None if such a process has to be executed."""
    arguments = b"\0".join((*argv, b""))
    # NUL behind each; and before each, where names are looked for.
    variables = b"\0" + env + b"\0" if env else b"\0"
    size = ORDER.size + len(arguments) + len(variables)
    if size > MOST_BYTES or any(name in variables for name in _READ_BEFORE):
        return None
    # As the kernel has limits: none is the largest number.
    limits = [number & 0xFFFF_FFFF_FFFF_FFFF for number in (*mark, *files)]
    count = variables.count(b"\0") - 1
    head = ORDER.pack(len(arguments), len(variables) - 1, len(argv), count, *limits, first)
    return b"".join((head, arguments, variables[1:]))
