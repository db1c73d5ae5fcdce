"""Reads and writes files below a folder, and never outside it, whatever links say in the meantime.

The way to a file is walked component by component, each opened without
following links.  A file is put in place whole: written beside its place, synced
and renamed, so that whoever looks sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from plait.core.errors import InputError, LimitError
from plait.core.hints import Final
from plait.core.machine import raise_machine_limit

MAX_FILE: Final = 64 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_file(root: str, path: str, *, directory: str) -> bytes:
    """A file below `root`; a relative path starts at `directory`."""
    *folders, name = _steps_to(root, path, directory)
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
    """Put a whole file in place, at once or not at all; its full path."""
    *folders, name = _steps_to(root, path, directory)
    try:
        with _folder(root, folders, create=create_dirs) as folder:
            _put(folder, name, data, mode)
    except OSError as error:
        raise_machine_limit(error)
        raise _file_error(path, error, "written") from None
    return os.path.join(root, *folders, name)


def _steps_to(root: str, path: str, directory: str) -> list[str]:
    """The names between the root and a file."""
    if "\0" in path or not path:
        raise InputError(
            "the name of a file is not empty and holds no NUL", fix="name a file", code="file-name"
        )
    full = os.path.normpath(os.path.join(os.path.realpath(directory), path))
    top = os.path.realpath(root)
    steps = os.path.relpath(full, top).split(os.sep)
    if steps[0] in (os.pardir, os.curdir):
        raise InputError(
            "this file is outside the project",
            fix="name a file below the project",
            code="file-outside",
        )
    return steps


@contextlib.contextmanager
def _folder(root: str, steps: list[str], *, create: bool = False) -> Iterator[int]:
    held = os.open(os.path.realpath(root), _FOLDER)
    try:
        for step in steps:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, dir_fd=held)
            inner = os.open(step, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def _put(folder: int, name: str, data: bytes | memoryview, mode: int | None) -> None:
    beside = f".{name[:100]}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o666, dir_fd=folder)
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
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)


def _file_mode(folder: int, name: str) -> int | None:
    """A file that is replaced keeps its permissions."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
    except FileNotFoundError:
        return None


def _file_error(path: str, error: OSError, done: str) -> InputError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        why, fix = (
            "a link, or a file where a folder should be, is in the way",
            "name a plain file below it",
        )
    elif error.errno == errno.ENOENT and done == "written":
        why, fix = "its folder does not exist", "create it, or say create_dirs: true"
    else:
        why, fix = os.strerror(error.errno or 0), "look at the name and its permissions"
    return InputError(f"'{path}' cannot be {done}: {why}", fix=fix, code="file")
