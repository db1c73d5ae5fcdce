"""Copy project files for an item, and detect whether they have changed since."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from glob import glob

from plait.core.digests import sha256_hex
from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.safe_files import open_below
from plait.core.values import Json, json_text

STATE: Final = os.path.join(".ai", "state")


def copy_inputs(project: str, inputs: Sequence[str], folder: str) -> None:
    """Copy the files that the patterns match below a project; links are not followed."""
    for pattern in inputs:
        found = 0
        for name in _find_inputs(project, pattern):
            target = os.path.join(folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(open_below(project, name), "rb") as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                os.fchmod(copy.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
            found += 1
        if not found:
            raise InputError(
                "one of the inputs of an item is not a file of the project",
                fix="look at inputs: they are paths or globs below the project",
                code="no-input",
            )


def _find_inputs(project: str, pattern: str) -> Iterator[str]:
    path = os.path.normpath(pattern)
    if "\0" in pattern or os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
        raise InputError(
            "an input of an item is outside the project",
            fix="name files below the project",
            code="file-outside",
        )
    # A name that exists is not a pattern, whatever its characters.
    for name in (
        [path]
        if os.path.lexists(os.path.join(project, path))
        else sorted(glob(path, root_dir=project, recursive=True, include_hidden=True))
    ):
        yield from _files(project, name)


def _files(project: str, name: str) -> Iterator[str]:
    full = os.path.join(project, name)
    if os.path.isfile(full):
        yield os.path.normpath(name)
        return
    for folder, folders, files in os.walk(full):
        here = os.path.relpath(folder, project)
        folders[:] = [one for one in folders if one != ".git" and os.path.join(here, one) != STATE]
        yield from (os.path.normpath(os.path.join(here, one)) for one in sorted(files))


def folder_digest(folder: str) -> str:
    """A digest of a folder's entries: sizes and times of files, targets of links, folders."""
    return sha256_hex(json_text(_folder_entries(folder)).encode("utf-8", "surrogatepass"))


def is_unchanged(folder: str, before: str) -> bool:
    return folder_digest(folder) == before


def _folder_entries(top: str) -> Mapping[str, Json]:
    found: dict[str, Json] = {}
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = _entry(path)
    return found


def _entry(path: str) -> Json:
    try:
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            return status.st_mode
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(path)
        # A program cannot set the ctime.
        return [
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            status.st_mode,
        ]
    except OSError:
        return "cannot be looked at"  # the entry is not one that we made
