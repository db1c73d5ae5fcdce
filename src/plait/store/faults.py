"""What the system says when a journal cannot be written or read, as an error that says what to do.

Whatever the fault, the file holds what it held before: a record is in it whole
or not at all.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from plait.errors import JournalError
from plait.hints import Final

RESUME: Final = "what was recorded is safe, and plait resume continues from there"
NOT_BEGUN: Final = "no run was begun"

_MEANING: Final = {
    # code        what it says                            what to do
    "disk-full": ("the disk is full", f"make room; {RESUME}"),
    "too-large": ("a file may not grow further", f"raise the limit on file sizes (ulimit -f); {RESUME}"),
    "read-only": ("it may not be written", f"look at the permissions of its folder; {RESUME}"),
    "damaged": ("it is damaged", "restore its folder from a backup, or remove it and run the flow again"),
    "busy": ("another process keeps it locked", f"end that process; {RESUME}"),
    "input-output": ("the disk or file system reports an error", f"look at both; {RESUME}"),
}
_OF_SYSTEM: Final = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "too-large",
    errno.EROFS: "read-only",
    errno.EACCES: "read-only",
    errno.EPERM: "read-only",
}
_OF_SQLITE: Final = {
    sqlite3.SQLITE_FULL: "disk-full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_CANTOPEN: "read-only",
    sqlite3.SQLITE_PERM: "read-only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
}


def fault_of(error: sqlite3.Error | OSError, where: str) -> JournalError:
    if isinstance(error, OSError):
        return fault(_OF_SYSTEM.get(error.errno or 0, "input-output"), where)
    # The low byte is the kind of error; the rest says more than a person needs.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
    return fault(_OF_SQLITE.get(code, "input-output"), where)


def fault(code: str, where: str) -> JournalError:
    what, fix = _MEANING[code]
    return JournalError(f"the journal cannot be used: {what}", where, fix, code=code)


def unbegun(error: JournalError) -> JournalError:
    """The error for a run that could not even be made, so that there is none to resume."""
    fix = error.fix.replace(RESUME, NOT_BEGUN) if error.fix else error.fix
    return JournalError(error.what, error.where, fix, code=error.code)


def same(error: JournalError) -> JournalError:
    """The error once more, for another call that meets it."""
    return JournalError(error.what, error.where, error.fix, code=error.code)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors of the system and of SQLite become ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise fault_of(error, where) from error
