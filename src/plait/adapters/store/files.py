"""Folders and files beside a journal: private to the user, and complete or missing."""

from __future__ import annotations

import os
import shlex
import stat
from _thread import get_ident
from contextlib import suppress

from plait.adapters.store.faults import map_storage_errors
from plait.core.errors import JournalError
from plait.core.hints import Final
from plait.core.private_files import sync_folder

RESERVE_BYTES: Final = 1 << 20


def make_own_folder(folder: str) -> None:
    """Make a folder that only this user can read; JournalError if a foreign folder or a link is
    there.
    """
    with map_storage_errors(folder):
        _make_folder(folder, 0o700)
        status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise JournalError(
            "this is not a folder of yours, or others could change what is in it",
            folder,
            f"look at it, then type: chmod 700 {shlex.quote(folder)}; or remove it",
            code="unsafe-store",
        )


def _make_folder(folder: str, mode: int) -> None:
    """Make a folder and its parents, so that they survive a power cut."""
    parent = os.path.dirname(folder)
    try:
        if not os.path.isdir(parent):
            _make_folder(parent, 0o777)
        os.mkdir(folder, mode)
    except FileExistsError:
        return
    sync_folder(parent)


def write_whole(folder: str, name: str, data: bytes) -> None:
    """Write a file: after a crash it has all its data, or does not exist."""
    new = os.path.join(folder, f".new-{os.getpid()}-{get_ident()}")
    with map_storage_errors(folder):
        try:
            with open(new, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, os.path.join(folder, name))
        except OSError:
            with suppress(OSError):
                os.unlink(new)
            raise
        sync_folder(folder)


def list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_folder(path: str) -> None:
    from shutil import rmtree  # slow to import

    rmtree(path, ignore_errors=True)


class Reserve:
    """Space on the disk that is freed when the disk is full, so that this can be recorded."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "reserve")

    def fill(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with map_storage_errors(self._path):
            handle = os.open(self._path, flags, 0o600)
            try:
                os.posix_fallocate(handle, 0, RESERVE_BYTES)
            finally:
                os.close(handle)

    def spend(self) -> bool:
        """Free the space; False if it was already free."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True
