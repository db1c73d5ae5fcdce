"""Files of a project copied into a folder of their own, and whether anything came to them since."""

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


def copy_inputs(project: str, inputs: Sequence[str], place: str) -> None:
    """Copy what the patterns find below a project; links are followed nowhere."""
    for pattern in inputs:
        found = 0
        for name in _find_inputs(project, pattern):
            _copy_file(project, name, place)
            found += 1
        if not found:
            raise InputError(
                "one of the inputs of an item is no file of the project",
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
    # A name that is there is meant as it is, whatever signs it holds.
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


def _copy_file(project: str, name: str, place: str) -> None:
    target = os.path.join(place, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(open_below(project, name), "rb") as source, open(target, "wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
        os.fchmod(copy.fileno(), os.fstat(source.fileno()).st_mode & 0o777)


def folder_digest(place: str) -> str:
    """One digest of all that is in a folder: files by size and times, links by where they lead,
    folders.
    """
    return sha256_hex(json_text(_folder_entries(place)).encode("utf-8", "surrogatepass"))


def is_unchanged(place: str, before: str) -> bool:
    return folder_digest(place) == before


def _folder_entries(place: str) -> Mapping[str, Json]:
    found: dict[str, Json] = {}
    for folder, folders, files in os.walk(place):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, place)] = _about(path)
    return found


def _about(path: str) -> Json:
    try:
        return _facts(path, os.lstat(path))
    except OSError:
        return "cannot be looked at"  # as nothing that we have made ourselves


def _facts(path: str, about: os.stat_result) -> Json:
    if stat.S_ISDIR(about.st_mode):
        return about.st_mode
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(path)
    # Nobody can set the time of the last change of a file's content or facts.
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_mode]
