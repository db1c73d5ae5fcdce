"""Turn errors of the operating system into errors that say what to do.

This is the one place that knows which errors are limits of the machine and not bugs of ours: open
files, processes and threads, memory, disk space, file sizes, permissions, names. Steps, runs and
commands all use it, so such an error is never recorded as the outcome of a step, and the run can be
resumed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.errors import MachineError
from plait.core.hints import Final

REFUSALS: Final = (OSError, MemoryError, RuntimeError, ImportError)
"""The classes of such errors."""

FEWER: Final = "run fewer items at a time (--max-parallel)"
_OTHER_PLACE: Final = "give yourself the permission, or use another place"
_LIMITS: Final = {
    # errno: the code of the error, what it means, and what to do
    errno.EMFILE: (
        "open-files",
        "too many files are open",
        f"allow more open files (ulimit -n), or {FEWER}",
    ),
    errno.ENFILE: (
        "open-files",
        "the system has no room for an open file",
        f"end other programs, or {FEWER}",
    ),
    errno.ENOMEM: (
        "memory",
        "there is not enough memory",
        f"allow more of it (ulimit -v), or {FEWER}",
    ),
    errno.ENOSPC: ("disk-full", "the disk is full", "make room on it"),
    errno.EDQUOT: ("disk-full", "your quota of the disk is used up", "make room on it"),
    errno.EFBIG: (
        "file-size",
        "a file may not grow further",
        "raise the limit on file sizes (ulimit -f)",
    ),
    errno.EROFS: (
        "read-only",
        "the file system is read-only",
        "make it writable, or use another folder",
    ),
    errno.EACCES: ("permission", "permission denied", _OTHER_PLACE),
    errno.EPERM: ("permission", "operation not permitted", _OTHER_PLACE),
    errno.ENAMETOOLONG: (
        "name-too-long",
        "a path is too long for this system",
        "use shorter names",
    ),
    errno.ELOOP: (
        "links",
        "too many symbolic links in a path",
        "look for a link that leads to itself",
    ),
    errno.EIO: ("input-output", "the disk or file system reports an error", "look at both"),
}
_SHORT: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
)
"""Errors that no single file causes."""
_NO_PROCESS: Final = (
    "processes",
    "there is no room for another process or thread",
    f"allow more processes (ulimit -u) and memory (ulimit -v), end others, or {FEWER}",
)
_WHILE_LOADING: Final = {
    "failed to map segment": errno.ENOMEM,
    "annot allocate memory": errno.ENOMEM,
    "oo many open files": errno.EMFILE,
}
"""The text of an ImportError if there is no memory for a library; it has no error number."""
_NO_TEMPORARY: Final = (
    "no-temporary-folder",
    "no folder for temporary files can be written",
    "make /tmp writable, or name another folder in TMPDIR",
)


def machine_error(error: BaseException, *, run: str | None = None) -> MachineError | None:
    """Return an error for a limit of the machine; `run`: a run that can be resumed after that."""
    limit = _find_limit(error)
    if limit is None:
        return None
    code, what, fix = limit
    name = getattr(error, "filename", None)
    place = os.fsdecode(name) if isinstance(name, str | bytes) and name else None
    return MachineError(what, place, f"{fix}; then: plait resume {run}" if run else fix, code=code)


def raise_machine_limit(error: BaseException) -> None:
    """Raise an error if the machine reached a limit; call this before blaming a file."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if number in _SHORT:
        limit = machine_error(error)
        assert limit is not None
        raise limit from None


def start_error(program: str, number: int) -> MachineError | None:
    """Return the error if the machine has no room for a process; `number`: the system's error
    number.
    """
    limit = _NO_PROCESS if number == errno.EAGAIN else _LIMITS.get(number)
    if limit is None or number in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP):
        return None  # the program itself is the cause of these
    code, what, fix = limit
    return MachineError(f"'{program}' cannot be started: {what}", fix=fix, code=code)


@contextmanager
def map_machine_errors(run: str | None = None) -> Iterator[None]:
    """Turn limits of the machine into our errors; leave all other errors as they are."""
    try:
        yield
    except REFUSALS as error:
        limit = machine_error(error, run=run)
        if limit is None:
            raise
        raise limit from error


def _find_limit(error: BaseException) -> tuple[str, str, str] | None:
    match error:
        case MemoryError():
            return _LIMITS[errno.ENOMEM]
        case OSError():
            if error.errno == errno.ENOENT and "temporary directory" in str(error.strerror):
                return _NO_TEMPORARY
            return _LIMITS.get(error.errno or 0)
        case ImportError():
            found = (number for text, number in _WHILE_LOADING.items() if text in str(error))
            return _LIMITS.get(next(found, 0))
        case RuntimeError():
            return _NO_PROCESS if "start new thread" in str(error) else None
    return None
