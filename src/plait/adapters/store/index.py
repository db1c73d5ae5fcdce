"""The index of a project's runs, in the order in which they were made: a small database.

It has nothing that the runs' folders do not have, and is made again when it is missing, damaged or
older than the folder `runs`. A row is a hint: code that removes or resumes a run checks its
journal. A stored summary is valid as long as the run's files have not changed.

Nothing is synced: a power cut may damage it, and then it is made again.
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
"""A limit that no number of a run exceeds."""
LAST_TIME: Final = 1e11
"""A time in seconds that is later than any clock shows and any calendar can print."""
_TABLES: Final = (
    "CREATE TABLE folder(stamp TEXT NOT NULL)",
    "CREATE TABLE runs(id TEXT PRIMARY KEY, number INTEGER NOT NULL, created REAL NOT NULL, "
    "ended INTEGER NOT NULL, summary TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX runs_by_end ON runs(ended, number, created, id)",
    "CREATE INDEX runs_by_number ON runs(number, created, id)",
)
_NEWEST_FIRST: Final = "ORDER BY number DESC, created DESC, id DESC"
_OLDEST_FIRST: Final = "ORDER BY number, created, id"

RunPosition: TypeAlias = tuple[int, float]
"""The number of a run, in the order in which they were made, and when it was made."""


class DamagedIndex(Exception):
    """Raised if the index must be made again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the index."""

    id: str
    created: float
    summary: str
    """Its last summary with the stamp of its files; empty if there is none."""


class Index:
    """One connection. Raises `sqlite3.Error` or DamagedIndex if the file cannot be used."""

    def __init__(self, path: str, folder: str, read_position: Callable[[str], RunPosition]) -> None:
        self._folder = folder
        self._read_position = read_position
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
        execute = self._connection.execute
        execute("PRAGMA trusted_schema=0")
        execute("PRAGMA synchronous=OFF")
        execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        if not self._has_tables():
            with self._change():
                if not self._has_tables():
                    for statement in _TABLES:
                        execute(statement)
        if self._current_stamp() != self._stored_stamp():
            self._catch_up()

    def _has_tables(self) -> bool:
        """Does it have tables? DamagedIndex if it has others: a foreign file must not run code."""
        query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        found = tuple(text for (text,) in self._connection.execute(query))
        if found and found != _TABLES:
            raise DamagedIndex
        return bool(found)

    # ── reading ──────────────────────────────────────────────────────────

    def newest(self, most: int | None = None) -> list[Entry]:
        query = f"SELECT id, created, summary FROM runs {_NEWEST_FIRST} LIMIT ?"
        return self._entries(query, -1 if most is None else most)

    def begin_with(self, prefix: str, most: int) -> list[str]:
        query = f"SELECT id, created, summary FROM runs WHERE id >= ? AND id < ? {_NEWEST_FIRST} LIMIT ?"
        return [one.id for one in self._entries(query, prefix, f"{prefix}\U0010ffff", most)]

    def knows(self, run: str) -> bool:
        return bool(self._connection.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone())

    def oldest_ended(self, most: int) -> list[Entry]:
        """Return the oldest runs that may have ended."""
        return self._entries(
            f"SELECT id, created, summary FROM runs WHERE ended {_OLDEST_FIRST} LIMIT ?", most
        )

    def _entries(self, query: str, *values: object) -> list[Entry]:
        rows: Iterable[tuple[Any, Any, Any]] = self._connection.execute(query, values)
        return [
            Entry(_run_name(run), _time(created), str(summary)) for run, created, summary in rows
        ]

    # ── writing ──────────────────────────────────────────────────────────

    def add(self, make: Callable[[int], str], created: float) -> None:
        """Call `make` with the number of a new run; it returns the run's id.

        The index is locked meanwhile, so no other process makes a run.
        """
        with self._change():
            if self._current_stamp() != self._stored_stamp():
                self._reconcile()
            (last,) = self._connection.execute(
                "SELECT coalesce(max(number), 0) FROM runs"
            ).fetchone()
            if not isinstance(last, int) or not 0 <= last < MOST_NUMBER:
                raise DamagedIndex
            run = make(last + 1)
            self._insert([(run, last + 1, created)], may_have_ended=False)
            self._keep_stamp()

    def remove(self, run: str, remove: Callable[[], bool]) -> bool:
        """Delete a run from the index if `remove` has removed its folder."""
        with self._change():
            is_current = self._current_stamp() == self._stored_stamp()
            if not remove():
                return False
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run,))
            if is_current:
                self._keep_stamp()
        return True

    def note(self, run: str, summary: str, *, ended: bool) -> None:
        """Store the summary of a run, and whether it has ended."""
        self._connection.execute(
            "UPDATE runs SET summary = ?, ended = ? WHERE id = ?", (summary, ended, run)
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
        """Add and delete runs that appeared or disappeared otherwise: by hand, or by a
        process that died.
        """
        there = set(run_names(self._folder))
        known = {run for (run,) in self._connection.execute("SELECT id FROM runs")}
        gone = [(run,) for run in known - there]
        self._connection.executemany("DELETE FROM runs WHERE id = ?", gone)
        # It is unknown which of them have ended. That is safe: a removal checks the journal first.
        self._insert(
            [(run, *self._read_position(run)) for run in there - known], may_have_ended=True
        )

    def _current_stamp(self) -> str:
        """Return a stamp that changes when an entry of the folder appears or disappears."""
        try:
            status = os.stat(self._folder)
        except OSError:
            return ""
        return f"{status.st_dev} {status.st_ino} {status.st_mtime_ns} {status.st_nlink}"

    def _stored_stamp(self) -> str:
        found = self._connection.execute("SELECT stamp FROM folder").fetchone()
        return "" if found is None else str(found[0])

    def _keep_stamp(self) -> None:
        self._connection.execute("DELETE FROM folder")
        self._connection.execute("INSERT INTO folder VALUES(?)", (self._current_stamp(),))

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
    """The entries of a folder that may be runs."""
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
    """Is it a plain file, or missing? A link would lead to another file."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


def _time(created: object) -> float:
    if not isinstance(created, float) or not abs(created) < LAST_TIME:
        raise DamagedIndex
    return created


def _run_name(name: object) -> str:
    """Return the name of a run; DamagedIndex for a name that leads out of the folder."""
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name or "\0" in name:
        raise DamagedIndex
    return name


def remove_index(path: str) -> None:
    """Remove the index, first its rollback journal, which SQLite would apply to a new index."""
    for file in (f"{path}-journal", path):
        with suppress(OSError):
            os.unlink(file)


def is_useless(error: Exception) -> bool:
    """Is the file itself wrong, and not its lock or its disk?"""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in _WRONG_FILE


_WRONG_FILE: Final = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
)


# ── summaries ────────────────────────────────────────────────────────────

_SETTLED_NS: Final = 100_000_000
"""The precision of file times: a summary made so soon after a write may be older than the write."""


def files_stamp(folder: str) -> tuple[str, int]:
    """Return the state of the files from which a summary is read, and when the last one was
    written.
    """
    stamps: list[str] = []
    last = 0
    for name in ("journal.db", "journal.db-wal", "run.json"):
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            stamps.append("-")
            continue
        if not status.st_size:  # a reader leaves an empty write-ahead log
            stamps.append("-")
            continue
        stamps.append(f"{status.st_ino}.{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}")
        last = max(last, status.st_mtime_ns, status.st_ctime_ns)
    return " ".join(stamps), last


def dump_summary(stamp: str, at: int, fields: Sequence[Any]) -> str:
    return json.dumps([stamp, at, list(fields)])


def load_summary(text: str, folder: str) -> Any:
    """Return the fields of a stored summary; None if the files of the run have changed since."""
    if not text:
        return None
    try:
        stamp, at, fields = json.loads(text)
        now, last = files_stamp(folder)
        return fields if stamp == now and at - last > _SETTLED_NS else None
    except (ValueError, TypeError, RecursionError):
        return None
