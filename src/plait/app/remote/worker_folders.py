"""Folders of a worker for files that were sent to it; what workers left that were killed is removed.

A folder is in use as long as somebody holds the lock in it; the system takes it back when its holder dies.
The name of the host is in its name, since a lock may mean nothing on another one.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from functools import cache

from plait.core.hints import Final

PREFIX: Final = "plait-items-"
LOCK: Final = "lock"


def new_folder() -> str:
    """A new folder, which is gone with this process at the latest."""
    return tempfile.mkdtemp(dir=_own_folder(os.getpid()))


@cache
def _own_folder(_process: int) -> str:
    """Where this process has its folders; nothing is shared with the one that it was forked from."""
    place = tempfile.gettempdir()
    remove_left(place)
    folder, _ = claimed(place)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def claimed(place: str) -> tuple[str, int]:
    """A folder that is ours until we die, and the handle of its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_prefix(), dir=place)
        lock = os.path.join(folder, LOCK)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _is_locked(handle) and os.path.exists(lock):
            return folder, handle
        os.close(handle)  # somebody took it for one that was left, before it was locked


def _is_locked(handle: int) -> bool:
    with suppress(OSError):  # a file system without locks: nothing there is taken for one that was left
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove_left(place: str) -> None:
    """Remove the folders of those that died on this host; nobody else's."""
    with os.scandir(place) as found:
        ours = [one.path for one in found if one.name.startswith(_prefix()) and _is_own(one)]
    for folder in ours:
        with suppress(OSError):  # it is being made or removed just now, or is in use
            handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _is_own(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    return False


def _prefix() -> str:
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9.]', '_', os.uname().nodename)}-"
