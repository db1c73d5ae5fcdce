"""Folders that items leave, looked through and removed, whatever they did to their permissions.

Nothing here raises because of what it finds: what cannot be read or removed is told to whoever
asked.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress

from plait.core.records import dataclass, field
from plait.program.worktrees.ports import short_path

_FINDS_WITHOUT_READING = getattr(os, "O_PATH", 0)


@dataclass(frozen=True, slots=True)
class NestedContent:
    """What there is below a folder that its own worktree knows nothing about."""

    repositories: list[bytes] = field(default_factory=list)
    """The folders that have a `.git` of their own, whatever it is."""
    closed: dict[bytes, str] = field(default_factory=dict)
    """The folders that cannot be read, and why."""


def nested_repositories(top: bytes) -> NestedContent:
    found, waiting = NestedContent(), [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name == b".git":
                        if folder != top:
                            found.repositories.append(folder)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue  # something that the item started still tidies up
        except OSError as error:
            found.closed[folder] = error.strerror or str(error)
    return found


def remove_tree(top: str) -> str | None:
    """Remove a folder and all in it; why something of it stays, if so."""
    if _try_remove(top) is None:
        return None
    # The owner of a folder may open it, but neither git nor shutil does: so Go's modules, say,
    # would stay.
    _open_up(top)
    with suppress(RecursionError):
        shutil.rmtree(top, ignore_errors=True)
    return _try_remove(top)


def _try_remove(top: str) -> str | None:
    try:
        # Not by the name in the error: which one that is depends on the version of Python.
        if sys.version_info >= (3, 12):
            shutil.rmtree(top, onexc=_stop)
        else:
            shutil.rmtree(
                top, onerror=lambda function, path, raised: _stop(function, path, raised[1])
            )
    except _StoppedError as stopped:
        if isinstance(stopped.error, FileNotFoundError):
            return f"something works in it: {top}" if os.path.lexists(top) else None
        return f"{stopped.error.strerror}: {short_path(stopped.path)}"
    except RecursionError:
        return "folders in it are nested too deep"
    return None


class _StoppedError(Exception):
    """Something could not be removed: what, and why."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(path)
        self.path = path
        self.error = error


def _stop(_: object, path: str | bytes, error: BaseException) -> None:
    raise _StoppedError(os.fsdecode(path), error) if isinstance(error, OSError) else error


def _open_up(top: str) -> None:
    """Let us write in all folders below one that are ours; links lead nowhere."""
    _open(top, None)
    with suppress(OSError, RecursionError):
        for _, folders, _, inside in os.fwalk(top):
            for name in folders:
                _open(name, inside)


def _open(name: str, inside: int | None) -> None:
    with suppress(OSError):
        about = os.stat(name, dir_fd=inside, follow_symlinks=False)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return
        mode = stat.S_IMODE(about.st_mode) | stat.S_IRWXU
        if os.chmod in os.supports_follow_symlinks:
            os.chmod(name, mode, dir_fd=inside, follow_symlinks=False)
            return
        # By what was found under the name, which a process of the item could have made a link by
        # now.
        flags = _FINDS_WITHOUT_READING | os.O_DIRECTORY | os.O_NOFOLLOW
        found = os.open(name, flags, dir_fd=inside)
        try:
            os.chmod(f"/proc/self/fd/{found}", mode)
        finally:
            os.close(found)
