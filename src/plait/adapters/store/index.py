"""Which runs a project has, in the order in which they were made: one small database beside them.

It holds nothing that the folders of the runs do not say, and is made again when it is missing,
damaged, or older than the folder that holds them.  A row is a hint: who removes a run, or goes on
with one, asks its journal.  What is kept of a run for `plait runs` counts as long as its files are
those that it was read from.

Nothing is synced: after a power cut it may be damaged, and is made again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from plait.core.hints import Any, Final, TypeAlias
from plait.core.records import dataclass

BUSY_SECONDS: Final = 10.0
IN_MEMORY: Final = ":memory:"
MOST_NUMBER: Final = 1 << 60
"""No run has a greater one."""
LAST_TIME: Final = 1e11
"""Seconds: a moment that no clock shows, and that no calendar could write."""
_TABLES: Final = (
    "CREATE TABLE folder(stamp TEXT NOT NULL)",
    "CREATE TABLE runs(id TEXT PRIMARY KEY, place INTEGER NOT NULL, created REAL NOT NULL, "
    "ended INTEGER NOT NULL, read TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX runs_by_end ON runs(ended, place, created, id)",
    "CREATE INDEX runs_by_place ON runs(place, created, id)",
)
_NEWEST_FIRST: Final = "ORDER BY place DESC, created DESC, id DESC"
_OLDEST_FIRST: Final = "ORDER BY place, created, id"

Place: TypeAlias = tuple[int, float]
"""The number of a run, by the order in which they were made, and when that was."""


class DamagedIndex(Exception):
    """It has to be made again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the index."""

    id: str
    created: float
    read: str
    """What was read of it last, and from which files; empty if nothing was."""


class Index:
    """One connection; raises `sqlite3.Error` or DamagedIndex if the file is of no use."""

    def __init__(self, path: str, folder: str, place_of: Callable[[str], Place]) -> None:
        self._folder = folder
        self._place_of = place_of
        if path != IN_MEMORY and not _may_be_file(path):
            raise DamagedIndex
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> None:
        ask = self._connection.execute
        ask("PRAGMA trusted_schema=0")
        ask("PRAGMA synchronous=OFF")
        ask("PRAGMA journal_mode=TRUNCATE").fetchall()
        if not self._has_tables():
            with self._change():
                if not self._has_tables():
                    for statement in _TABLES:
                        ask(statement)
        if self._stamp_now() != self._stamp_then():
            self._catch_up()

    def _has_tables(self) -> bool:
        """Are they ours, and none other?  A file that came with a project must not run anything."""
        query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        found = tuple(text for (text,) in self._connection.execute(query))
        if found and found != _TABLES:
            raise DamagedIndex
        return bool(found)

    # ── what is there ────────────────────────────────────────────────────

    def newest(self, most: int | None = None) -> list[Entry]:
        """Newest first."""
        query = f"SELECT id, created, read FROM runs {_NEWEST_FIRST} LIMIT ?"
        return self._entries(query, -1 if most is None else most)

    def begin_with(self, prefix: str, most: int) -> list[str]:
        query = (
            f"SELECT id, created, read FROM runs WHERE id >= ? AND id < ? {_NEWEST_FIRST} LIMIT ?"
        )
        return [one.id for one in self._entries(query, prefix, f"{prefix}\U0010ffff", most)]

    def knows(self, run: str) -> bool:
        return bool(self._connection.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone())

    def oldest_ended(self, most: int) -> list[Entry]:
        """The oldest of which it is not known that they go on."""
        return self._entries(
            f"SELECT id, created, read FROM runs WHERE ended {_OLDEST_FIRST} LIMIT ?", most
        )

    def _entries(self, query: str, *values: object) -> list[Entry]:
        rows: Iterable[tuple[Any, Any, Any]] = self._connection.execute(query, values)
        return [Entry(_run_name(run), _time(created), str(read)) for run, created, read in rows]

    # ── what changes ─────────────────────────────────────────────────────

    def add(self, make: Callable[[int], str], created: float) -> None:
        """Make the folder of a new run, which gets its number; nobody else makes one at that
        moment.
        """
        with self._change():
            if self._stamp_now() != self._stamp_then():
                self._reconcile()
            (last,) = self._connection.execute(
                "SELECT coalesce(max(place), 0) FROM runs"
            ).fetchone()
            if not isinstance(last, int) or not 0 <= last < MOST_NUMBER:
                raise DamagedIndex
            run = make(last + 1)
            self._insert([(run, last + 1, created)], may_have_ended=False)
            self._keep_stamp()

    def remove(self, run: str, remove: Callable[[], bool]) -> bool:
        """Take a run out of its folder, if that is done."""
        with self._change():
            is_current = self._stamp_now() == self._stamp_then()
            if not remove():
                return False
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run,))
            if is_current:
                self._keep_stamp()
        return True

    def note(self, run: str, read: str, *, ended: bool) -> None:
        """What was read of a run, and whether it has ended."""
        self._connection.execute(
            "UPDATE runs SET read = ?, ended = ? WHERE id = ?", (read, ended, run)
        )

    def _insert(self, rows: Sequence[tuple[str, int, float]], *, may_have_ended: bool) -> None:
        statement = f"INSERT OR REPLACE INTO runs VALUES(?, ?, ?, {may_have_ended:d}, '')"
        self._connection.executemany(statement, rows)

    # ── the folder ───────────────────────────────────────────────────────

    def _catch_up(self) -> None:
        with self._change():
            self._reconcile()
            self._keep_stamp()

    def _reconcile(self) -> None:
        """Runs that came or went without us: of an older Plait, by hand, or by one that died."""
        there = set(run_names(self._folder))
        known = {run for (run,) in self._connection.execute("SELECT id FROM runs")}
        gone = [(run,) for run in known - there]
        self._connection.executemany("DELETE FROM runs WHERE id = ?", gone)
        # Nobody knows yet which of them have ended: whoever would remove one asks its journal.
        self._insert([(run, *self._place_of(run)) for run in there - known], may_have_ended=True)

    def _stamp_now(self) -> str:
        """Changes whenever something in the folder comes or goes."""
        try:
            status = os.stat(self._folder)
        except OSError:
            return ""
        return f"{status.st_dev} {status.st_ino} {status.st_mtime_ns} {status.st_nlink}"

    def _stamp_then(self) -> str:
        found = self._connection.execute("SELECT stamp FROM folder").fetchone()
        return "" if found is None else str(found[0])

    def _keep_stamp(self) -> None:
        self._connection.execute("DELETE FROM folder")
        self._connection.execute("INSERT INTO folder VALUES(?)", (self._stamp_now(),))

    @contextmanager
    def _change(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise


def run_names(folder: str) -> list[str]:
    """What may be runs among what a folder holds."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        name
        for name in names
        if not name.startswith(".") and not os.path.islink(os.path.join(folder, name))
    ]


def _may_be_file(path: str) -> bool:
    """Is it a plain file, or nothing yet?  A link would lead to a file of somebody else."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


def _time(created: object) -> float:
    if not isinstance(created, float) or not abs(created) < LAST_TIME:
        raise DamagedIndex
    return created


def _run_name(name: object) -> str:
    """A name that leads out of the folder is nobody's run."""
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name or "\0" in name:
        raise DamagedIndex
    return name


def remove_index(path: str) -> None:
    """So that it is made again: first what could be put back into a new one."""
    for file in (f"{path}-journal", path):
        with suppress(OSError):
            os.unlink(file)


def is_useless(error: Exception) -> bool:
    """Is it the file itself that is wrong, and not who has it locked, or the disk that it is on?"""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in _OF_THE_FILE


_OF_THE_FILE: Final = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
)


# ── what is kept of a run ────────────────────────────────────────────────

_SETTLED_NS: Final = 100_000_000
"""What was read so soon after a file was written may be older than that: its time says no more
exactly.
"""


def files_stamp(folder: str) -> tuple[str, int]:
    """Which files a run is read from, and when the last of them was written."""
    stamps: list[str] = []
    last = 0
    for name in ("journal.db", "journal.db-wal", "run.json"):
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            stamps.append("-")
            continue
        if not status.st_size:  # whoever reads a journal leaves an empty one behind
            stamps.append("-")
            continue
        stamps.append(f"{status.st_ino}.{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}")
        last = max(last, status.st_mtime_ns, status.st_ctime_ns)
    return " ".join(stamps), last


def dump_summary(stamp: str, at: int, said: Sequence[Any]) -> str:
    return json.dumps([stamp, at, list(said)])


def load_summary(kept: str, folder: str) -> Any:
    """What was read of the files as they are now; None if that is not known."""
    if not kept:
        return None
    try:
        stamp, at, said = json.loads(kept)
        now, last = files_stamp(folder)
        return said if stamp == now and at - last > _SETTLED_NS else None
    except (ValueError, TypeError, RecursionError):
        return None
