"""Open a file below a directory, and never outside it.

The path is walked from an open directory without following symbolic links, so changes to the tree
cannot lead outside. Either the kernel walks it (`openat2`), or each component is opened separately
with `O_NOFOLLOW`. The result is bytes, read once, or a handle.

`links="inside"` follows links and `..` as long as every step stays below the directory. An absolute
link leaves it.

Both ways give the same result. The kernel's way is faster, but needs `ctypes`, and loading that
costs more than opening some hundred files the other way; so it is used after that many files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

from plait.core.errors import InputError, LimitError
from plait.core.hints import Final, Literal, TypeAlias
from plait.core.os_errors import raise_machine_limit
from plait.core.records import dataclass

MAX_FILE: Final = 16 << 20

_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
_OPENED_BY_WALKING: Final = 200
"""The number of files opened before `ctypes` is loaded."""
_MOST_LINKS: Final = 40
"""The number of links that the kernel follows in one path."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class OutsideError(InputError):
    """A path that leaves its directory, by `..`, an absolute name or a symbolic link."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A stamp that shows, without reading a file, whether it has changed."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


Links: TypeAlias = Literal["refused", "inside"]

Opener: TypeAlias = Callable[[int, str, Links], int]
"""Turns a path below an open directory into a handle."""


def read_below(
    root: str, relative: str, *, way: Opener | None = None
) -> tuple[bytes, FileStamp] | None:
    """The bytes of a regular file below `root`, or None if there is none."""
    with _open_if_present(root, relative, way) as handle:
        if handle is None:
            return None
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_FILE:
            raise _too_large(relative, root)
        return _read(handle, relative, root), _stamp(status)


def stamp_below(root: str, relative: str) -> FileStamp | None:
    """The stamp of a regular file below `root`, without reading it."""
    with _open_if_present(root, relative, None) as handle:
        if handle is None:
            return None
        status = os.fstat(handle)
        return _stamp(status) if stat.S_ISREG(status.st_mode) else None


def open_below(
    root: str, relative: str, *, links: Links = "refused", way: Opener | None = None
) -> int:
    """Return a handle of the entry; raise OSError if it does not exist or may not be opened."""
    _refuse_shape(root, relative, links)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if way is None:
            # Loading ctypes takes longer than the first walks.
            few = next(_OPENED) < _OPENED_BY_WALKING
            way = open_by_walking if few else open_with_openat2
        return way(directory, relative, links)
    except OSError as error:
        # If links are followed, ELOOP means that there are too many.
        if error.errno == errno.EXDEV:
            raise _outside(root, relative) from None
        if error.errno == errno.ELOOP and links == "refused":
            raise _outside(root, relative, "is a link, or lies behind one") from None
        raise
    finally:
        os.close(directory)


@contextmanager
def _open_if_present(root: str, relative: str, way: Opener | None) -> Iterator[int | None]:
    try:
        handle = open_below(root, relative, way=way)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except OSError as error:
        raise_machine_limit(error)
        raise InputError(
            f"{relative} cannot be read: {error.strerror}",
            root,
            "look at its permissions",
            code="unreadable",
        ) from None
    try:
        yield handle
    finally:
        os.close(handle)


def _refuse_shape(root: str, relative: str, links: Links) -> None:
    # ctypes would cut the path at a NUL: a check of the whole name would then mean nothing.
    refused = ("", ".", "..") if links == "refused" else ()
    if (
        "\0" in relative
        or relative.startswith("/")
        or any(part in refused for part in relative.split("/"))
    ):
        raise _outside(root, relative)


_OPENED: Final = count()


def open_with_openat2(directory: int, relative: str, links: Links = "refused") -> int:
    """Walk the path in one system call, if the kernel has it."""
    if (openat2 := _openat2(links)) is not None:
        handle, number = openat2(directory, relative)
        if handle >= 0:
            return handle
        # EAGAIN: something was renamed meanwhile, and the kernel cannot tell where a `..` has led.
        if number not in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EAGAIN):
            raise OSError(number, os.strerror(number))
    return open_by_walking(directory, relative, links)


def open_by_walking(directory: int, relative: str, links: Links = "refused") -> int:
    """Walk the path component by component; each folder stays open until the next is open."""
    held = [os.dup(directory)]
    left = relative.split("/")[::-1]
    followed = 0
    try:
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                # Return to the folder that we came from: by now `..` may lead elsewhere.
                if len(held) == 1:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                os.close(held.pop())
            elif links == "inside" and (target := _link(name, held[-1])) is not None:
                followed += 1
                left += _link_parts(target, followed)
            elif left:
                held.append(_open_folder(name, held[-1]))
            else:
                return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=held[-1])
        return os.open(".", _FLAGS, dir_fd=held[-1])
    finally:
        for folder in held:
            os.close(folder)


def _link(name: str, held: int) -> str | None:
    """The target of a link; None if the entry is not a link."""
    try:
        return os.readlink(name, dir_fd=held)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _link_parts(target: str, followed: int) -> list[str]:
    """The steps of a link, the first one last."""
    if target.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    if followed > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target.split("/")[::-1]


def _open_folder(name: str, held: int) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=held, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@cache
def _openat2(links: Links) -> Callable[[int, str], tuple[int, int]] | None:
    """Make the system call; return a handle, or -1 and the error number."""
    if os.uname().sysname != "Linux":
        return None
    import ctypes

    syscall = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)
    if syscall is None:
        return None
    flags, resolve = _FLAGS, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
    if links == "refused":
        flags, resolve = flags | os.O_NOFOLLOW, resolve | _RESOLVE_NO_SYMLINKS
    how = (ctypes.c_uint64 * 3)(flags, 0, resolve)

    def openat2(directory: int, relative: str) -> tuple[int, int]:
        path = os.fsencode(relative)
        handle = syscall(_OPENAT2, directory, path, ctypes.byref(how), ctypes.sizeof(how))
        return int(handle), ctypes.get_errno()

    return openat2


def _read(handle: int, relative: str, root: str) -> bytes:
    # A file may grow while it is read, so the size of `fstat` is not enough.
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(handle, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_FILE:
            raise _too_large(relative, root)
    return b"".join(chunks)


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def _too_large(relative: str, root: str) -> LimitError:
    return LimitError(
        f"{relative} is larger than {MAX_FILE:,} bytes",
        root,
        "keep large data outside the space",
        code="file-too-large",
    )


def _outside(root: str, relative: str, why: str = "leaves its space") -> OutsideError:
    return OutsideError(
        f"'{relative}' {why}",
        root,
        "name a plain file below it; links and '..' are refused",
        code="outside-space",
    )


def open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe; for `open`."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def project_in_worktree(worktree: str, project: str) -> str:
    """The folder of a project in another worktree of its repository."""
    root = find_git_root(project)
    prefix = os.path.relpath(os.path.realpath(project), root) if root else os.curdir
    return os.path.normpath(os.path.join(worktree, prefix))


def find_git_root(directory: str) -> str | None:
    """The nearest folder above with a `.git`, which may be a file."""
    folder = os.path.realpath(directory)
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


GUARDED_FOLDERS: Final = (
    ".git", ".ai", ".venv", "venv", "node_modules", "site-packages", ".github", ".gitlab", ".husky",
    ".vscode", ".idea", ".devcontainer", ".claude", ".cursor",
)  # fmt: skip
"""Files in these folders start programs without being called."""


def find_guarded_folder(inside: str) -> str | None:
    """Return the guarded folder that a path is, or is in; some file systems ignore case."""
    return next((part for part in inside.casefold().split("/") if part in GUARDED_FOLDERS), None)
