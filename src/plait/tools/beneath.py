"""Open a file below a directory, and never anywhere else.

The path is walked by the kernel (`openat2`) from a directory that is held open,
without following symbolic links, so nothing that happens to the tree meanwhile
can lead outside.  Where the kernel does not know `openat2`, each component is
opened by itself with `O_NOFOLLOW`.  What is returned are bytes, read once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from plait.errors import InputError, LimitError
from plait.hints import Final
from plait.records import dataclass

MAX_FILE: Final = 16 << 20

_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class OutsideError(InputError):
    """A path that leaves its directory, by `..`, an absolute name or a symbolic link."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells an unchanged file without reading it."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


def read_beneath(root: str, relative: str) -> tuple[bytes, Stamp] | None:
    """The bytes of a regular file below `root`, or None if there is none."""
    with _opened(root, relative) as handle:
        if handle is None:
            return None
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_FILE:
            raise _too_large(relative, root)
        return _read(handle, relative, root), _stamp(status)


def stamp_beneath(root: str, relative: str) -> Stamp | None:
    """The stamp of a regular file below `root`, without reading it."""
    with _opened(root, relative) as handle:
        if handle is None:
            return None
        status = os.fstat(handle)
        return _stamp(status) if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _opened(root: str, relative: str) -> Iterator[int | None]:
    _refuse_shape(root, relative)
    handle: int | None = None
    try:
        directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except OSError as error:
        raise _unreadable(relative, root, error) from None
    try:
        handle = _open_below(directory, relative)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            handle = None
        elif error.errno in (errno.ELOOP, errno.EXDEV):
            raise _outside(root, relative) from None
        else:
            raise _unreadable(relative, root, error) from None
    finally:
        os.close(directory)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _refuse_shape(root: str, relative: str) -> None:
    # ctypes would cut the path at a NUL, and a name after it would be believed.
    parts = relative.split("/")
    if "\0" in relative or relative.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise _outside(root, relative)


def _open_below(directory: int, relative: str) -> int:
    syscall = _syscall()
    if syscall is not None:
        how = (ctypes.c_uint64 * 3)(
            _FLAGS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
        )
        handle = syscall(_OPENAT2, directory, os.fsencode(relative), ctypes.byref(how), ctypes.sizeof(how))
        if handle >= 0:
            return int(handle)
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise OSError(number, os.strerror(number))
    return _walk_below(directory, relative)


def _walk_below(directory: int, relative: str) -> int:
    """Component by component, for kernels without `openat2`."""
    *folders, name = relative.split("/")
    held = os.dup(directory)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            os.close(held)
            held = inner
        return os.open(name, _FLAGS, dir_fd=held)
    finally:
        os.close(held)


@cache
def _syscall():  # type: ignore[no-untyped-def]  # ctypes functions have no useful type
    libc = ctypes.CDLL(None, use_errno=True)
    return getattr(libc, "syscall", None) if os.uname().sysname == "Linux" else None


def _read(handle: int, relative: str, root: str) -> bytes:
    # The size that `fstat` told is no limit: a file may grow while it is read.
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(handle, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_FILE:
            raise _too_large(relative, root)
    return b"".join(chunks)


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _too_large(relative: str, root: str) -> LimitError:
    return LimitError(
        f"{relative} is larger than {MAX_FILE:,} bytes",
        root,
        "keep large data outside the space",
        code="file-too-large",
    )


def _unreadable(relative: str, root: str, error: OSError) -> InputError:
    return InputError(
        f"{relative} cannot be read: {error.strerror}", root, "look at its permissions", code="unreadable"
    )


def _outside(root: str, relative: str) -> OutsideError:
    return OutsideError(
        f"'{relative}' leaves its space",
        root,
        "name a plain file below it; links and '..' are refused",
        code="outside-space",
    )
