"""Read and remove folders of items, whatever their permissions.

Nothing here raises for the content of a folder: it returns what could not be read or removed.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress

from plait.core.records import dataclass, field
from plait.program.worktrees.ports import short_path

_O_PATH = getattr(os, "O_PATH", 0)


@dataclass(frozen=True, slots=True)
class NestedContent:
    """Folders in a worktree that git does not look into."""

    repositories: list[bytes] = field(default_factory=list)
    """Folders with a `.git`."""
    closed: dict[bytes, str] = field(default_factory=dict)
    """Folders that cannot be read, and why."""


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
            continue  # a process of the item is still removing files
        except OSError as error:
            found.closed[folder] = error.strerror or str(error)
    return found


def remove_tree(top: str) -> str | None:
    """Remove a folder; return why a part of it stays, otherwise None."""
    if _try_remove(top) is None:
        return None
    # Read-only folders (such as Go modules) first need write permission, which neither git nor
    # shutil sets.
    _make_tree_writable(top)
    with suppress(RecursionError):
        shutil.rmtree(top, ignore_errors=True)
    return _try_remove(top)


def _try_remove(top: str) -> str | None:
    try:
        # The path in the error depends on the Python version, so it is taken from the callback.
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
    """A path that could not be removed, and why."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(path)
        self.path = path
        self.error = error


def _stop(_: object, path: str | bytes, error: BaseException) -> None:
    raise _StoppedError(os.fsdecode(path), error) if isinstance(error, OSError) else error


def _make_tree_writable(top: str) -> None:
    """Set write permission for our own folders below a folder; links are not followed."""
    _make_writable(top, None)
    with suppress(OSError, RecursionError):
        for _, folders, _, inside in os.fwalk(top):
            for name in folders:
                _make_writable(name, inside)


def _make_writable(name: str, inside: int | None) -> None:
    with suppress(OSError):
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        mode = stat.S_IMODE(status.st_mode) | stat.S_IRWXU
        if os.chmod in os.supports_follow_symlinks:
            os.chmod(name, mode, dir_fd=inside, follow_symlinks=False)
            return
        # By descriptor: a process of the item could replace the name with a link.
        flags = _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
        found = os.open(name, flags, dir_fd=inside)
        try:
            os.chmod(f"/proc/self/fd/{found}", mode)
        finally:
            os.close(found)
