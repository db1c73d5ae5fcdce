"""One engine per run: a lock that the system releases when its holder dies.

The file is never removed, so that all processes lock the same one. The process id in it is for
people; only the lock matters.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress

from plait.adapters.store.faults import map_storage_errors
from plait.core.errors import InputError
from plait.core.hints import Final

_ATTEMPTS: Final = 1000
"""`is_held` takes a shared lock for a moment, so a failed attempt is repeated."""


class RunLock:
    """A lock that is held until `release` or the death of this process."""

    def __init__(self, path: str, handle: int) -> None:
        self._path = path
        self._handle: int | None = handle

    @classmethod
    def take(cls, path: str, run: str, *, now: float) -> RunLock:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with map_storage_errors(path):
            handle = os.open(path, flags, 0o600)
            try:
                if not _lock(handle):
                    raise _lock_error(run, os.pread(handle, 1000, 0))
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps({"pid": os.getpid(), "since": since}).encode(), 0)
            except BaseException:
                os.close(handle)
                raise
        return cls(path, handle)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def is_held(path: str) -> bool:
    """Does an engine hold this lock now?"""
    try:
        # NONBLOCK: opening a FIFO would wait.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def read_holder(path: str) -> int | None:
    """Return the process of the engine that holds this lock now; None if none does."""
    if not is_held(path):
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            pid = json.loads(os.pread(handle, 1000, 0))["pid"]
        finally:
            os.close(handle)
        return pid if type(pid) is int and pid > 1 else None
    return None


def _lock(handle: int) -> bool:
    """Take the exclusive lock; False if another engine has it."""
    for _ in range(_ATTEMPTS):
        if _try_lock(handle, fcntl.LOCK_EX):
            return True
        if not _try_lock(handle, fcntl.LOCK_SH):
            return False  # no reader in `is_held` has it, but an engine
        fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def _try_lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_error(run: str, text: bytes) -> InputError:
    what, fix = (
        f"another process began to work on run {run} a moment ago",
        "wait until it has ended",
    )
    with suppress(ValueError, KeyError, TypeError):
        holder = json.loads(text)
        pid, since = int(holder["pid"]), str(holder["since"])
        what = f"process {pid} has been working on run {run} since {since}"
        fix = f"wait until it has ended, or end it: kill {pid}"
    return InputError(what, fix=fix, code="run-locked")
