"""Folders and files beside a journal: their owner's alone, and whole or not there at all."""

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
    """A folder that nobody else can look into; one that is there must be ours, and no link to
    another.
    """
    with map_storage_errors(folder):
        _make_folder(folder, 0o700)
        status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise JournalError(
            "this is no folder of yours, or others could change what is in it",
            folder,
            f"look at it, then type: chmod 700 {shlex.quote(folder)}; or remove it",
            code="unsafe-store",
        )


def _make_folder(folder: str, mode: int) -> None:
    """A folder and those above it, unless they are there; a power cut does not take it away
    again.
    """
    above = os.path.dirname(folder)
    try:
        if not os.path.isdir(above):
            _make_folder(above, 0o777)
        os.mkdir(folder, mode)
    except FileExistsError:
        return
    sync_folder(above)


def write_whole(folder: str, name: str, data: bytes) -> None:
    """The file with all its data, or no file of that name, whatever happens meanwhile."""
    made = os.path.join(folder, f".new-{os.getpid()}-{get_ident()}")
    with map_storage_errors(folder):
        try:
            with open(made, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(made, os.path.join(folder, name))
        except OSError:
            with suppress(OSError):
                os.unlink(made)
            raise
        sync_folder(folder)


class Reserve:
    """Room on the disk that is given back when it is full, so that this itself can be recorded."""

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
        """Was there any room to give back?"""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True
