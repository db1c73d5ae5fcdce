"""Computed values: `env.X`, `file:`, `cmd:`, `date:`, `uuid`, and their cache.

The directory, the environment, the clock, a source of uuids and a function that runs bound shell
text are parameters, since templates may not touch them. A `Sources` belongs to one run. It caches
100 values of environment, files and commands by kind, argument and directory; `date` and `uuid` are
never cached.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy

from plait.core.errors import InputError, LimitError
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.os_errors import raise_machine_limit
from plait.core.records import dataclass
from plait.core.safe_files import OutsideError, open_below
from plait.core.source import Source
from plait.core.values import NOT_KNOWN, UNDEFINED, Secret
from plait.template.compiled import Answer, Piece, PlacedValue
from plait.template.filters import holds_secret

if TYPE_CHECKING:
    # Slow to import; only a run with dates or commands needs them.
    from datetime import datetime

    from plait.template.shell.binding import BoundScript

CAPACITY: Final = 100
MAX_FILE: Final = 4 << 20

Run: TypeAlias = "Callable[[BoundScript, str], str]"


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0


class Sources:
    """The sources of computed values for one run. Safe to share between threads."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str | Secret] | None = None,
        run: Run | None = None,
        clock: Callable[[], datetime] | None = None,
        new_uuid: Callable[[], str] | None = None,
        allow_outside: bool = False,
        capacity: int = CAPACITY,
        may_change: Callable[[], bool] | None = None,
    ) -> None:
        """`may_change` is for a dry run, which runs no commands: would a command have run
        by now?
        """
        self._root = self._directory = None if directory is None else os.path.abspath(directory)
        self._environ = {} if environ is None else environ
        self._run = run
        self._clock = clock or _now
        self._new_uuid = new_uuid or _new_uuid
        self._allow_outside = allow_outside
        self._cache = _Cache(capacity)
        self._may_change = may_change

    @property
    def may_change(self) -> bool:
        """Can files have other contents when a run reaches this place?"""
        return self._may_change is not None and self._may_change()

    @property
    def stats(self) -> CacheStats:
        return self._cache.stats

    def at(self, directory: str) -> Sources:
        """The same sources and cache, with files and commands seen from another directory of the
        project.
        """
        if self._directory is None:
            return self
        moved = copy(self)
        moved._directory = os.path.join(self._directory, directory)
        return moved

    def environment(self, name: str) -> Answer:
        return self._cache.get(("env", name, ""), lambda: self._environ.get(name, UNDEFINED))

    def file(self, path: str) -> Answer:
        """The text of a file below the directory; undefined if there is none."""
        if self._directory is None:
            return UNDEFINED
        directory = self._directory
        found = self._cache.get(("file", path, directory), lambda: self._read(path, directory))
        return NOT_KNOWN if found is UNDEFINED and self.may_change else found

    def command(self, pieces: list[Piece], source: Source) -> Answer:
        """The output of a command, without trailing newlines; its values are bound."""
        if self._may_change is not None:
            return NOT_KNOWN
        if self._run is None or self._directory is None:
            return UNDEFINED
        from plait.template.shell.script import bind_pieces

        run, directory = self._run, self._directory
        bound = bind_pieces(pieces, source, dialect="sh")
        key = ("cmd", repr((bound.script, sorted(bound.env.items()), bound.files)), directory)
        printed = self._cache.get(key, lambda: run(bound, directory).rstrip("\n"))
        # A command that gets a secret may print it, so its output is secret, too.
        secret = any(
            isinstance(piece, PlacedValue) and holds_secret(piece.value) for piece in pieces
        )
        return Secret(printed) if secret and isinstance(printed, str) else printed

    def date(self, form: str) -> Answer:
        """The current time; each use gets a new one."""
        try:
            return self._clock().strftime(form)
        except ValueError:
            raise InputError(
                "this is not a date format",
                fix="for example ${date:%Y-%m-%d}",
                code="bad-date-format",
            ) from None

    def fresh_uuid(self) -> Answer:
        return self._new_uuid()

    def _read(self, path: str, directory: str) -> Answer:
        # A path may contain values, so no error shows it.
        if "\0" in path:
            raise InputError(
                "the name of a file cannot hold NUL", fix="remove it", code="file-outside"
            )
        try:
            with open(self._open(path, directory), "rb") as file:
                data = file.read(MAX_FILE + 1)
        except OutsideError:
            raise _outside() from None
        except FileNotFoundError:
            if not self._allow_outside and self._leads_out(path, directory):
                raise _outside() from None
            return UNDEFINED
        except OSError as error:
            raise_machine_limit(error)
            raise InputError(
                f"this file cannot be read: {error.strerror}",
                fix="look at its permissions",
                code="file-unreadable",
            ) from None
        if len(data) > MAX_FILE:
            raise LimitError(
                f"this file is larger than {MAX_FILE:,} bytes",
                fix="pass its path to the command instead of its text",
                code="file-too-large",
            )
        return data.decode("utf-8", "surrogateescape")

    def _leads_out(self, path: str, directory: str) -> bool:
        """Does a path whose folders do not exist lead out of the project, by its text?"""
        root = os.path.realpath(self._root or directory)
        full = os.path.normpath(os.path.join(os.path.realpath(directory), path))
        return os.path.commonpath([root, full]) != root

    def _open(self, path: str, directory: str) -> int:
        """Open a regular file; no other process can redirect this outside of the directory."""
        if self._allow_outside:
            # Opening a pipe waits for its other end, forever if there is none.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(os.path.join(directory, path), flags)
        else:
            root = self._root or directory
            seen = (
                os.path.join(os.path.relpath(directory, root), path) if directory != root else path
            )
            handle = open_below(root, _below(seen, root), links="inside")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return handle


def _outside() -> InputError:
    return InputError(
        "this file is outside the project",
        fix="name a file below the project, or allow files outside in the flow",
        code="file-outside",
    )


def _below(path: str, directory: str) -> str:
    """A path relative to the directory, also if it names the directory itself."""
    for top in (directory, os.path.realpath(directory)):
        if path == top or path.startswith(f"{top.rstrip('/')}/"):
            return f"./{path[len(top) :].lstrip('/')}"
    return path


class _Cache:
    """A least recently used cache with one lock; a value is computed once, even if several
    threads need it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, str, str], _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = 0

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, self._evictions, len(self._entries))

    def get(self, key: tuple[str, str, str], make: Callable[[], Answer]) -> Answer:
        entry = self._entry(key)
        with entry.lock:
            if not entry.made:
                try:
                    entry.answer, entry.made = make(), True
                finally:
                    # Failures and missing values are not cached: the next lookup tries again.
                    if not entry.made or (key[0] == "file" and entry.answer is UNDEFINED):
                        with self._lock:
                            if self._entries.get(key) is entry:
                                del self._entries[key]
            return entry.answer

    def _entry(self, key: tuple[str, str, str]) -> _Entry:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._hits += 1
                self._entries.move_to_end(key)
                return entry
            self._misses += 1
            entry = self._entries[key] = _Entry()
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
                self._evictions += 1
            return entry


class _Entry:
    __slots__ = ("answer", "lock", "made")

    def __init__(self) -> None:
        self.answer: Answer = UNDEFINED
        self.made = False
        self.lock = threading.Lock()


def _now() -> datetime:
    from datetime import datetime

    return datetime.now()


def _new_uuid() -> str:
    import uuid  # slow to import, rarely used

    return str(uuid.uuid4())
