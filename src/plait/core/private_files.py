"""Read and write files that only their owner can change.

A file is opened first and checked through its handle, so the checked file is the one that is read.
It is written completely or not at all, even if the machine stops. An error of the operating system
becomes a `TrustError` that says what to do.
"""

from __future__ import annotations

import fcntl
import os
import stat
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from plait.core.errors import DocumentError, LimitError, TrustError
from plait.core.hints import Final, TypeVar
from plait.core.os_errors import raise_machine_limit
from plait.core.safe_files import FileStamp
from plait.core.values import Json

Result = TypeVar("Result")

ABSENT: Final = (FileNotFoundError, NotADirectoryError)
"""Raised if the file does not exist."""


# ── reading ──────────────────────────────────────────────────────────────


def file_stamp(path: str) -> FileStamp | None:
    """The stamp by which an unchanged file is recognised; None if there is no file."""
    try:
        status = with_os_errors(lambda: os.stat(path, follow_symlinks=False), path, passing=ABSENT)
    except ABSENT:
        return None
    return FileStamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def read_private(path: str, *, secret: bool = False) -> bytes:
    """The bytes of a regular file that others cannot write, nor read if it is secret."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = with_os_errors(lambda: os.open(path, flags), path, passing=ABSENT)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        exposed = _readable_by_others(status) if secret else _writable_by_others(status)
        if exposed or not stat.S_ISREG(status.st_mode):
            raise _unsafe(path, "600")
        return file.read()


def read_private_json(path: str, *, secret: bool = False) -> Json:
    return _parse_json(read_private(path, secret=secret), path)


def read_json_owned_by(owner: int, folder: str, name: str) -> Json:
    """Read a file that only its owner can change, in a folder that only its owner can change."""
    path = os.path.join(folder, name)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    above = with_os_errors(lambda: os.open(folder, flags | os.O_DIRECTORY), folder)
    try:
        handle = with_os_errors(lambda: os.open(name, flags, dir_fd=above), path)
        with open(handle, "rb") as file:
            for place, opened, is_kind in (
                (folder, above, stat.S_ISDIR),
                (path, handle, stat.S_ISREG),
            ):
                status = os.fstat(opened)
                if status.st_uid != owner or status.st_mode & 0o022 or not is_kind(status.st_mode):
                    raise _unsafe_of_others(place)
            return _parse_json(file.read(), path)
    finally:
        os.close(above)


def _parse_json(data: bytes, path: str) -> Json:
    from plait.core.documents import parse_json  # sync_folder alone needs no reader

    try:
        return parse_json(data.decode("utf-8", "replace"), path)
    except (DocumentError, LimitError):
        raise damaged_file_error(path) from None


def require_private_folder(folder: str) -> None:
    """Raise an error unless the folder is as `make_private_folder` makes it."""
    status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or _readable_by_others(status):
        raise _unsafe(folder, "700")


def writable_by_others(path: str, root: str) -> str | None:
    """Return the first of a file and its folders, up to the space, that others could change."""
    while True:
        try:
            status = os.stat(path)
        except OSError:
            return path
        if _writable_by_others(status):
            return path
        if path in (root, os.path.dirname(path)):
            return None
        path = os.path.dirname(path)


def _writable_by_others(status: os.stat_result) -> bool:
    return status.st_uid not in (os.getuid(), 0) or bool(status.st_mode & 0o022)


def _readable_by_others(status: os.stat_result) -> bool:
    return status.st_uid != os.getuid() or bool(status.st_mode & 0o077)


# ── writing ──────────────────────────────────────────────────────────────


@contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Hold the lock of a folder against all processes of this user.

    The lock file stays, so that every process locks the same file.
    """
    make_private_folder(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = with_os_errors(lambda: os.open(os.path.join(folder, "lock"), flags, 0o600), folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make_private_folder(folder: str) -> None:
    with_os_errors(lambda: os.makedirs(folder, mode=0o700, exist_ok=True), folder)
    require_private_folder(folder)


def write_atomic(folder: str, name: str, data: bytes) -> None:
    """Replace a file: it has either the old contents or the new, even after a crash."""
    made = os.path.join(folder, f".new-{os.getpid()}-{get_ident()}")
    with suppress(FileNotFoundError):
        os.unlink(made)  # left by a killed process with the same number
    write_new(made, data)
    with_os_errors(lambda: os.rename(made, os.path.join(folder, name)), folder)
    sync_folder(folder)


def write_new(path: str, data: bytes) -> None:
    """Create a new file, completely or not at all, that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = with_os_errors(lambda: os.open(path, flags, 0o600), path, passing=(FileExistsError,))

    def fill() -> None:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)

    try:
        with_os_errors(fill, path)
    except TrustError:
        os.unlink(path)
        raise


def sync_folder(folder: str) -> None:
    """Make new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── errors ───────────────────────────────────────────────────────────────


def with_os_errors(
    act: Callable[[], Result], where: str, *, passing: tuple[type[OSError], ...] = ()
) -> Result:
    """Return the result of `act`; turn an error of the system that is not in `passing` into one for
    the user.
    """
    try:
        return act()
    except passing:
        raise
    except OSError as error:
        raise_machine_limit(error)
        raise TrustError(
            f"{where} cannot be used: {error.strerror}",
            fix="look at its permissions",
            code="unusable-store",
        ) from None


def _unsafe(path: str, mode: str) -> TrustError:
    import shlex

    return TrustError(
        f"{path} could be read or changed by others, or is no plain file or folder of yours",
        fix=f"look at it, then type: chmod {mode} {shlex.quote(path)}",
        code="unsafe-store",
    )


def _unsafe_of_others(path: str) -> TrustError:
    import shlex

    quoted = shlex.quote(path)
    return TrustError(
        f"{path} could be changed by others than the administrator of this machine",
        fix=f"let the administrator look at it, then type: chown root {quoted} && chmod go-w {quoted}",
        code="unsafe-store",
    )


def damaged_file_error(path: str) -> TrustError:
    return TrustError(
        f"{path} is damaged",
        fix="restore it from a backup, or remove it and say again what you trust",
        code="damaged-store",
    )
