"""Copies of verified files, so that the verified bytes are those that run.

A tool's file (with an anchor, every verified file below it) is copied into a folder of the user,
named by the digest of its contents. The original may change between check and start; the copy does
not. An existing folder is used again, so an unchanged tool costs one `stat`.

The cache is bounded. Making a copy removes those that were unused longest, but none that a running
process uses: each process holds a shared lock on one byte of the file `.lock` per copy, and only a
copy without a lock is removed. The system releases the locks of a process when it ends, in any way.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from plait.core.digests import sha256
from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.os_errors import raise_machine_limit
from plait.core.records import dataclass
from plait.tools.anchors import ActiveAnchor
from plait.tools.tool_file import ToolFile

INSTALLED: Final = "node_modules"
"""Installed packages are too many to copy: a link leads to them, as a PATH leads to programs."""


ABANDONED: Final = 3600.0
"""Seconds after which an unfinished copy counts as abandoned."""


@dataclass(frozen=True, slots=True)
class Placed:
    tool_path: str
    anchor_path: str
    """The folder of the copy."""
    copied_from: str


@dataclass(frozen=True, slots=True)
class Room:
    """How many unused copies are kept."""

    copies: int = 500
    size: int = 512 << 20
    """Bytes."""


class Snapshots:
    """A cache of verified files in a folder that only the user can write; safe to share between
    threads.
    """

    def __init__(
        self,
        root: str,
        *,
        room: Room = Room(),  # noqa: B008
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self._room = room
        self._now = now
        self._used: set[str] = set()
        self._locks = -1
        self._starting = allocate_lock()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A reference of its own: when the interpreter exits, `os` may already be gone.
        if self._locks >= 0:
            close(self._locks)

    def place(
        self,
        tool: ToolFile,
        anchored: ActiveAnchor | None,
        dependencies: Sequence[ToolFile],
        *,
        installed: bool = False,
    ) -> Placed:
        """Return where the copies are.

        `installed`: the packages beside the tool may be loaded without verification.
        """
        base, name = os.path.split(tool.path)
        above = anchored.path if anchored and not anchored.is_project else base
        if above != base and os.path.commonpath([above, base]) == above:
            base, name = above, os.path.relpath(tool.path, above)
        files = {name: tool, **{os.path.relpath(item.path, base): item for item in dependencies}}
        packages = os.path.join(base, INSTALLED) if anchored and installed else ""
        folder = self._folder(files, packages if os.path.isdir(packages) else "")
        return Placed(os.path.join(folder, name), folder, base)

    def place_library(self, folder: str, files: Sequence[ToolFile]) -> str:
        """Return where the copy of a runtime's library is."""
        return self._folder({os.path.relpath(item.path, folder): item for item in files}, "")

    def _folder(self, files: Mapping[str, ToolFile], packages: str) -> str:
        contents = [f"{path}\0{item.digest}" for path, item in sorted(files.items())]
        name = sha256("\0".join([*contents, packages]).encode("utf-8", "surrogateescape"))
        folder = os.path.join(self.root, name.hexdigest()[:40])
        if folder in self._used and os.path.isdir(folder):
            return folder
        try:
            try:
                self._place(folder, files, packages)
            except FileNotFoundError:  # the whole cache is being removed
                self._place(folder, files, packages)
        except OSError as error:
            raise_machine_limit(error)
            raise InputError(
                f"a verified copy cannot be written: {error.strerror}",
                self.root,
                "make room or permission there, or let USER_SPACE name another folder",
                code="no-snapshot",
            ) from None
        return folder

    def _place(self, folder: str, files: Mapping[str, ToolFile], packages: str) -> None:
        self._use(folder)
        if not os.path.isdir(folder):
            self._create(folder, files, packages)
            self._make_room()

    def _create(self, folder: str, files: Mapping[str, ToolFile], packages: str) -> None:
        import shutil  # slow to import, and a tool is copied once
        import tempfile

        made = tempfile.mkdtemp(prefix=".new-", dir=self.root)
        try:
            for relative, item in files.items():
                path = os.path.join(made, relative)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with open(path, "wb") as file:
                    file.write(item.data)
                os.chmod(path, 0o500)
            for relative in files:
                _sync(os.path.join(made, relative))
            if packages:
                os.symlink(packages, os.path.join(made, INSTALLED))
            os.rename(made, folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not os.path.isdir(folder):  # another process was first: its copy is the same
                raise

    # ── copies in use ────────────────────────────────────────────────────

    def _use(self, folder: str) -> None:
        """Keep this copy from being removed until this process ends."""
        with self._starting:
            try:
                self._open_locks()
            except OSError:
                if os.path.isdir(folder):
                    return  # if nothing can be written here, nothing can be removed
                raise
            _hold(self._locks, folder)
            self._used.add(folder)
        with suppress(OSError):
            os.utime(folder)  # the copy that was used last is removed last

    def _open_locks(self) -> None:
        """Open the lock file once, and again if the cache was removed: otherwise two processes
        would lock different files.
        """
        if self._locks >= 0:
            if _is_at(self._locks, _lock_path(self.root)):
                return
            locks, self._locks = self._locks, -1
            os.close(locks)
            self._used = set()
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        status = os.stat(self.root, follow_symlinks=False)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise InputError(
                f"{self.root} can be written by others",
                fix=f"chmod 700 {self.root}, or remove it",
                code="unsafe-cache",
            )
        self._locks = _lock_file(self.root)

    # ── room ─────────────────────────────────────────────────────────────

    def _make_room(self) -> None:
        """Remove unused copies beyond the limits, the oldest first."""
        import shutil

        copies = sorted(_find_copies(self.root))
        size = sum(copy.size for copy in copies)
        count = len(copies)
        # A file description of its own: locks of this process then count like those of any other.
        locks = _lock_file(self.root)
        try:
            for copy in copies:
                if count <= self._room.copies and size <= self._room.size:
                    break
                if self._set_aside(copy.folder, locks):
                    count, size = count - 1, size - copy.size
        finally:
            os.close(locks)
        for left in self._leftovers():
            shutil.rmtree(left, ignore_errors=True)

    def _set_aside(self, folder: str, locks: int) -> bool:
        """Rename a copy, unless it is in use. The next request for it makes a new one."""
        if not _try_lock(locks, folder):
            return False
        try:
            os.rename(folder, os.path.join(self.root, f".old-{os.path.basename(folder)}"))
        except OSError:
            return False  # another process was first
        finally:
            _let_go(locks, folder)
        return True

    def _leftovers(self) -> Iterator[str]:
        """Yield copies that were set aside, and unfinished copies of killed processes, to
        remove them.
        """
        for entry in os.scandir(self.root):
            if entry.name.startswith(".old-"):
                yield entry.path
            elif entry.name.startswith(".new-"):
                with suppress(FileNotFoundError):
                    if self._now() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED:
                        yield entry.path


@dataclass(frozen=True, slots=True)
class _Copy:
    used: int
    folder: str
    size: int

    def __lt__(self, other: _Copy) -> bool:
        return (self.used, self.folder) < (other.used, other.folder)


def _find_copies(root: str) -> Iterator[_Copy]:
    for entry in os.scandir(root):
        if not entry.name.startswith("."):
            with suppress(FileNotFoundError):  # another process is removing it
                size = sum(
                    os.lstat(os.path.join(inner, name)).st_size
                    for inner, _, files in os.walk(entry.path, followlinks=False)
                    for name in files
                )
                yield _Copy(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path, size)


# ── locks on single bytes ────────────────────────────────────────────────
# These locks belong to the open file, not to the process (`F_OFD_SETLK`): they stay when this
# process opens and closes another file, and one lock file is enough for any number of copies.
# Without such locks, no copy can be locked exclusively, and none is removed.

_SET: Final = getattr(fcntl, "F_OFD_SETLK", None)
_SET_OR_WAIT: Final = getattr(fcntl, "F_OFD_SETLKW", None)


def _lock_path(root: str) -> str:
    return os.path.join(root, ".lock")


def _lock_file(root: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(_lock_path(root), flags, 0o600)


def _is_at(handle: int, path: str) -> bool:
    """Is the open file still the one at this path?"""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _hold(locks: int, folder: str) -> None:
    """Take a shared lock on a copy; wait while it is being set aside, which takes no longer
    than a rename.
    """
    if _SET_OR_WAIT is not None:
        with suppress(OSError):
            fcntl.fcntl(locks, _SET_OR_WAIT, _byte(fcntl.F_RDLCK, folder))


def _try_lock(locks: int, folder: str) -> bool:
    """Lock a copy exclusively if no process uses it."""
    if _SET is None:
        return False
    try:
        fcntl.fcntl(locks, _SET, _byte(fcntl.F_WRLCK, folder))
    except OSError:
        return False
    return True


def _let_go(locks: int, folder: str) -> None:
    if _SET is not None:
        fcntl.fcntl(locks, _SET, _byte(fcntl.F_UNLCK, folder))


def _byte(kind: int, folder: str) -> bytes:
    """The `struct flock` for the byte of a copy."""
    from struct import pack

    return pack("hhqqi4x", kind, os.SEEK_SET, int(os.path.basename(folder)[:15], 16), 1, 0)


def _sync(path: str) -> None:
    """Sync a folder before it gets its name: otherwise, after a power cut, an incomplete one
    could count as complete.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
