"""Turn errors of the system and of SQLite into errors that say what to do.

Whatever the fault, the file keeps its content: a record is complete in it, or missing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.errors import JournalError
from plait.core.hints import Final

RESUME: Final = "what was recorded is safe, and plait resume continues from there"
_WRITTEN_AT_ONCE: Final = 1 << 16
"""The approximate number of bytes that are written at once."""
_OPEN_AT_ONCE: Final = 4
"""Descriptors that SQLite needs: database, write-ahead log, its index, and their folder."""
NOT_BEGUN: Final = "no run was begun"

_MEANING: Final = {
    # code: problem, fix
    "disk-full": ("the disk is full", f"make room; {RESUME}"),
    "too-large": (
        "a file may not grow further",
        f"raise the limit on file sizes (ulimit -f); {RESUME}",
    ),
    "open-files": ("too many files are open", f"allow more (ulimit -n); {RESUME}"),
    "read-only": ("it may not be written", f"look at the permissions of its folder; {RESUME}"),
    "cannot-open": (
        "it cannot be opened",
        f"look at what is there, and at its permissions; {RESUME}",
    ),
    "damaged": (
        "it is damaged",
        "restore its folder from a backup, or remove it and run the flow again",
    ),
    "busy": ("another process keeps it locked", f"end that process; {RESUME}"),
    "input-output": ("the disk or file system reports an error", f"look at both; {RESUME}"),
}
_SYSTEM_CODES: Final = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "too-large",
    errno.EMFILE: "open-files",
    errno.ENFILE: "open-files",
    errno.EROFS: "read-only",
    errno.EACCES: "read-only",
    errno.EPERM: "read-only",
    errno.EISDIR: "cannot-open",
    errno.ENOTDIR: "cannot-open",
    errno.ENOENT: "cannot-open",
    errno.ELOOP: "cannot-open",
}
_SQLITE_CODES: Final = {
    sqlite3.SQLITE_FULL: "disk-full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot-open",
    sqlite3.SQLITE_PERM: "read-only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    # Our statements are right, so the file was not made by Plait.
    sqlite3.SQLITE_ERROR: "damaged",
    sqlite3.SQLITE_CONSTRAINT: "damaged",
    sqlite3.SQLITE_MISMATCH: "damaged",
    sqlite3.SQLITE_TOOBIG: "damaged",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
}


def to_journal_error(error: sqlite3.Error | OSError, where: str) -> JournalError:
    if isinstance(error, OSError):
        return fault(_SYSTEM_CODES.get(error.errno or 0, "input-output"), where)
    # The low byte is the kind of error. An error in decoding text has no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_IOERR and _is_at_limit(where):
        return fault("too-large", where)
    if code == sqlite3.SQLITE_CANTOPEN and not _can_open():
        return fault("open-files", where)
    return fault(_SQLITE_CODES.get(code, "input-output"), where)


def _is_at_limit(where: str) -> bool:
    """Is the journal nearly as large as `ulimit -f` allows? SQLite does not report this."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return False
    sizes = [os.path.getsize(file) for file in (where, f"{where}-wal") if os.path.exists(file)]
    return max(sizes, default=0) + _WRITTEN_AT_ONCE > limit


def _can_open() -> bool:
    """Can this process open more files? SQLite does not report why it could not open one."""
    opened: list[int] = []
    try:
        for _ in range(_OPEN_AT_ONCE):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for fd in opened:
            os.close(fd)
    return True


def fault(code: str, where: str) -> JournalError:
    what, fix = _MEANING[code]
    return JournalError(f"the journal cannot be used: {what}", where, fix, code=code)


@contextmanager
def not_begun() -> Iterator[None]:
    """Map errors while a run is made: there is no run to resume."""
    try:
        yield
    except JournalError as error:
        fix = error.fix.replace(RESUME, NOT_BEGUN) if error.fix else error.fix
        raise JournalError(error.what, error.where, fix, code=error.code) from error


def repeat_error(error: JournalError) -> JournalError:
    """Return a new error like this one, for another call that fails because of it."""
    return JournalError(error.what, error.where, error.fix, code=error.code)


@contextmanager
def map_storage_errors(where: str) -> Iterator[None]:
    """Turn errors of the system and of SQLite into a JournalError."""
    try:
        yield
    except UnicodeError as error:  # SQLite quotes damaged text in its message
        raise fault("damaged", where) from error
    except (sqlite3.Error, OSError) as error:
        raise to_journal_error(error, where) from error
