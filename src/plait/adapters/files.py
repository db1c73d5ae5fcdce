"""Read and write files below a folder, and never outside it, even if links are made meanwhile.

Each component of a path is opened without following links. A file is written under another name,
synced and renamed, so that a reader sees the old content or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from plait.core.errors import InputError, LimitError
from plait.core.hints import Final
from plait.core.os_errors import raise_machine_limit

MAX_FILE: Final = 64 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_file(root: str, path: str, *, directory: str) -> bytes:
    """Return the content of a file below `root`; a relative path starts at `directory`."""
    *folders, name = _components(root, path, directory)
    try:
        with (
            _folder(root, folders) as folder,
            open(
                name,
                "rb",
                opener=lambda n, _: os.open(
                    n, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
                ),
            ) as file,
        ):
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise_machine_limit(error)
        raise _file_error(path, error, "read") from None
    if len(data) > MAX_FILE:
        raise LimitError(
            f"'{path}' is larger than {MAX_FILE:,} bytes",
            fix="let a command read it",
            code="file-too-large",
        )
    return data


def write_file(
    root: str,
    path: str,
    data: bytes | memoryview,
    *,
    directory: str,
    mode: int | None = None,
    create_dirs: bool = False,
) -> str:
    """Write a file, completely or not at all; return its full path."""
    *folders, name = _components(root, path, directory)
    try:
        with _folder(root, folders, create=create_dirs) as folder:
            _put(folder, name, data, mode)
    except OSError as error:
        raise_machine_limit(error)
        raise _file_error(path, error, "written") from None
    return os.path.join(root, *folders, name)


def _components(root: str, path: str, directory: str) -> list[str]:
    """The names between the root and a file."""
    if "\0" in path or not path:
        raise InputError(
            "the name of a file is not empty and holds no NUL", fix="name a file", code="file-name"
        )
    full = os.path.normpath(os.path.join(os.path.realpath(directory), path))
    top = os.path.realpath(root)
    names = os.path.relpath(full, top).split(os.sep)
    if names[0] in (os.pardir, os.curdir):
        raise InputError(
            "this file is outside the project",
            fix="name a file below the project",
            code="file-outside",
        )
    return names


@contextlib.contextmanager
def _folder(root: str, names: list[str], *, create: bool = False) -> Iterator[int]:
    folder = os.open(os.path.realpath(root), _FOLDER)
    try:
        for name in names:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _put(folder: int, name: str, data: bytes | memoryview, mode: int | None) -> None:
    temporary = f".{name[:100]}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o666, dir_fd=folder)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            if mode is None:
                mode = _file_mode(folder, name)
            if mode is not None:
                os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _file_mode(folder: int, name: str) -> int | None:
    """The permissions of the file that will be replaced."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
    except FileNotFoundError:
        return None


def _file_error(path: str, error: OSError, verb: str) -> InputError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        why, fix = (
            "a link, or a file where a folder should be, is in the way",
            "name a plain file below it",
        )
    elif error.errno == errno.ENOENT and verb == "written":
        why, fix = "its folder does not exist", "create it, or say create_dirs: true"
    else:
        why, fix = os.strerror(error.errno or 0), "look at the name and its permissions"
    return InputError(f"'{path}' cannot be {verb}: {why}", fix=fix, code="file")
