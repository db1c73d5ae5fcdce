"""The journal's file: tables, settings, version, and how it is opened.

Rows are only added to the end of `records`, so a commit touches one page, however many records
there are. Readers find records by path with an index of their own (see `reader`).

Pages have 1 KiB: a commit writes whole pages, and most records are shorter than that.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress

from plait.adapters.store.faults import fault, map_storage_errors
from plait.adapters.store.ownership import require_plain_journal
from plait.adapters.store.rows import EVENT_NAMES, FINISHED, STATUS_NAMES
from plait.core.errors import JournalError
from plait.core.hints import Final

VERSION: Final = 1
EMPTY: Final = 0
"""The version of a file without tables: Plait was killed while it made the journal."""
BUSY_MILLISECONDS: Final = 10_000
CHECKPOINT_PAGES: Final = 8_000
"""Pages in the write-ahead log after which SQLite moves them into the database."""
WAL_BYTES: Final = 16 << 20
"""A longer write-ahead log is cut to this size when it is empty."""
CHECKED_BYTES: Final = 16 << 20
"""Up to this size, a journal that was not closed is checked when it is opened to write (50 ms).

A larger one would make the user wait. A crash can only tear the end of the write-ahead log, which
has checksums; other damage is found when its page is read.
"""

_SETTINGS: Final = (
    # name                  value as it is read back
    ("journal_mode",        "wal"),
    # NORMAL: after a commit the system has the data; `Writer.sync` puts it on the disk
    ("synchronous",         1),
    ("busy_timeout",        BUSY_MILLISECONDS),
    ("wal_autocheckpoint",  CHECKPOINT_PAGES),
    ("journal_size_limit",  WAL_BYTES),
    ("trusted_schema",      0),  # a file that came with a project must not call functions
    ("cell_size_check",     1),
)  # fmt: skip


def _cases(column: str, names: Sequence[str]) -> str:
    return (
        f"CASE {column} "
        + " ".join(f"WHEN {n} THEN '{name}'" for n, name in enumerate(names))
        + " END"
    )


TABLES: Final = ("properties", "strings", "records", "marks")
_CREATE: Final = (
    "CREATE TABLE properties(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE strings(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE records(number INTEGER PRIMARY KEY, at REAL NOT NULL, type INTEGER NOT NULL, "
    "parent TEXT, name TEXT, kind INTEGER, title TEXT, position INTEGER, attempt INTEGER, "
    "fingerprint INTEGER, duration REAL, status INTEGER, replayed INTEGER, usage TEXT, "
    "pending_hooks, body)",
    # An index of the few records that readers search for. An index on all records would make each a
    # third more expensive.
    "CREATE TABLE marks(type INTEGER, number INTEGER, PRIMARY KEY(type, number)) WITHOUT ROWID",
    # The views are for people and other programs. Plait does not read them.
    "CREATE VIEW events AS SELECT number, datetime(at, 'unixepoch') AS at, "
    f"{_cases('type', EVENT_NAMES)} AS event, parent || name AS path, strings.text AS kind, title, "
    f"{_cases('status', STATUS_NAMES)} AS status, duration, body AS json "
    "FROM records LEFT JOIN strings ON strings.id = records.kind",
    "CREATE VIEW steps AS SELECT parent || name AS path, title, position, "
    f"{_cases('status', STATUS_NAMES)} AS status, duration, body AS json, max(number) AS number "
    f"FROM records WHERE type = {FINISHED} GROUP BY parent, name",
    "INSERT INTO properties VALUES('epoch', 0)",
    f"PRAGMA user_version={VERSION}",
)


# ── opening ──────────────────────────────────────────────────────────────


def open_to_write(path: str, *, create: bool = False) -> sqlite3.Connection:
    """Return a connection with all settings; `create` makes the file and its tables."""
    require_plain_journal(path)
    with map_storage_errors(path):
        was_closed = not _exists_with_data(f"{path}-wal")
        connection = _connect(path, "rwc" if create else "rw")
        try:
            if create:
                connection.execute("PRAGMA page_size=1024")
            else:
                _require_version(connection, path)
            _set_all(connection, path)
            if not was_closed:
                _require_intact(connection, path)
            if create:
                _create_tables(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _CREATE:
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def open_to_read(path: str) -> sqlite3.Connection:
    """Return a read-only connection; it works while an engine writes, and on a read-only file
    system.
    """
    require_plain_journal(path)
    with map_storage_errors(path):
        connection = _readable(path)
        try:
            connection.execute("PRAGMA trusted_schema=0")
            _require_version(connection, path)
            _require_tables(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def checkpoint(path: str) -> None:
    """Move records from the write-ahead log into the database, while others write."""
    # If this fails, the next checkpoint does it, or the next process that opens the journal.
    with (
        suppress(sqlite3.Error, OSError, JournalError),
        closing(_connect(path, "rw")) as connection,
    ):
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _connect(path: str, mode: str, *, more: str = "") -> sqlite3.Connection:
    if os.path.isdir(path):
        raise fault("cannot-open", path)
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # The callers hold locks, so only one thread at a time uses it.
    return sqlite3.connect(
        f"file:{name}?mode={mode}{more}", uri=True, isolation_level=None, check_same_thread=False
    )


def _readable(path: str) -> sqlite3.Connection:
    """Connect for reading. SQLite creates a file beside the journal for that; where it cannot,
    we read without.
    """
    connection = _probe_connection(_connect(path, "ro"))
    if connection is not None:
        return connection
    if not _exists_with_data(f"{path}-wal"):
        return _connect(path, "ro", more="&immutable=1")
    return _copy_to_memory(path)


def _copy_to_memory(path: str) -> sqlite3.Connection:
    """Join database and write-ahead log in memory: some records are only in the log."""
    # Rare, and slow to import.
    from shutil import copyfile
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="plait-journal-") as folder:
        for end in ("", "-wal"):
            copyfile(path + end, os.path.join(folder, f"journal.db{end}"))
        source = _connect(os.path.join(folder, "journal.db"), "rw")
        target = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        source.backup(target)
        source.close()
    return target


def _require_tables(connection: sqlite3.Connection, path: str) -> None:
    """Require real tables: in a file that came with a project, a view could compute forever."""
    names = ", ".join(f"'{name}'" for name in TABLES)
    query = (
        f"SELECT count(*) FROM sqlite_schema WHERE name IN ({names}) "
        "AND type = 'table' AND sql LIKE 'CREATE TABLE %'"
    )
    if connection.execute(query).fetchone() != (len(TABLES),):
        raise fault("damaged", path)


def _probe_connection(connection: sqlite3.Connection) -> sqlite3.Connection | None:
    try:
        connection.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return None
        raise
    return connection


def _exists_with_data(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _set_all(connection: sqlite3.Connection, path: str) -> None:
    """Set all settings and read each back: SQLite refuses some without an error."""
    for name, value in _SETTINGS:
        connection.execute(f"PRAGMA {name}={value}").fetchall()
        if connection.execute(f"PRAGMA {name}").fetchone() != (value,):
            raise JournalError(
                f"SQLite does not accept the setting {name}={value}",
                path,
                "keep the project on a local file system; over a network its locks do not work",
                code="setting",
            )


def _require_intact(connection: sqlite3.Connection, path: str) -> None:
    if os.path.getsize(path) > CHECKED_BYTES:
        return
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise fault("damaged", path)


def _require_version(connection: sqlite3.Connection, path: str) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version == EMPTY:
        raise empty_journal(path)
    if version < EMPTY:
        raise fault("damaged", path)
    raise JournalError(
        f"the journal has version {version}, and this Plait reads version {VERSION}",
        path,
        "use the Plait that made it, or remove the folder of the run and run the flow again",
        code="journal-version",
    )


def empty_journal(path: str) -> JournalError:
    return JournalError(
        "the journal has no records and no tables: Plait was killed while it made the run",
        path,
        "plait run FILE begins a new run",
        code="empty-journal",
    )
