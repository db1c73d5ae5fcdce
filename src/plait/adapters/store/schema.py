"""The file of a journal: its tables, its settings, its versions, and how it is opened.

`log` is the truth, and rows are only ever added at its end: so each record
touches one page of the file, however many there are, and what a reader looks
for by path it finds by an index of its own (see `reader`).

Pages are small (1 KiB): a commit writes whole pages, and most records are
shorter than that.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from plait.adapters.store.faults import fault, map_storage_errors
from plait.adapters.store.ownership import require_plain_journal
from plait.adapters.store.rows import EVENT_NAMES, FINISHED, IS_MARKED, STATUS_NAMES
from plait.core.errors import JournalError
from plait.core.hints import Final

BUSY_MILLISECONDS: Final = 10_000
CHECKPOINT_PAGES: Final = 8_000
"""When so much was written, it goes from the write-ahead log into the database."""
WAL_BYTES: Final = 16 << 20
"""What stays of a write-ahead log that had to grow further."""
CHECKED_BYTES: Final = 16 << 20
"""Up to this size a journal that was not closed is read once through before it is believed: some 50
ms. Beyond, that would keep a person waiting; what a crash can tear is the end of the write-ahead
log, which has checksums of its own, and damage to the rest is still found when the page is read."""

_SETTINGS: Final = (
    # name                  value as it is read back
    ("journal_mode",        "wal"),
    # NORMAL: a commit is in the hands of the system; `sync` does the rest
    ("synchronous",         1),
    ("busy_timeout",        BUSY_MILLISECONDS),
    ("wal_autocheckpoint",  CHECKPOINT_PAGES),
    ("journal_size_limit",  WAL_BYTES),
    ("trusted_schema",      0),      # a file that came with a project must not call functions
    ("cell_size_check",     1),
)  # fmt: skip


def _cases(column: str, names: Sequence[str]) -> str:
    return (
        f"CASE {column} "
        + " ".join(f"WHEN {n} THEN '{name}'" for n, name in enumerate(names))
        + " END"
    )


_VERSION_1: Final = (
    "CREATE TABLE about(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE words(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE log(number INTEGER PRIMARY KEY, at REAL NOT NULL, what INTEGER NOT NULL, parent "
    "TEXT, "
    "name TEXT, kind INTEGER, title TEXT, place INTEGER, attempt INTEGER, fingerprint INTEGER, "
    "duration REAL, status INTEGER, replayed INTEGER, body)",
    # Where the few events are that are looked for.  An index would cost every other record a third
    # more.
    "CREATE TABLE marks(what INTEGER, number INTEGER, PRIMARY KEY(what, number)) WITHOUT ROWID",
    # For people and programs that look into the file; nothing here reads them.
    "CREATE VIEW events AS SELECT number, datetime(at, 'unixepoch') AS at, "
    f"{_cases('what', EVENT_NAMES)} AS event, parent || name AS path, words.text AS kind, title, "
    f"{_cases('status', STATUS_NAMES)} AS status, duration, body AS json "
    "FROM log LEFT JOIN words ON words.id = log.kind",
    "CREATE VIEW steps AS SELECT parent || name AS path, title, place, "
    f"{_cases('status', STATUS_NAMES)} AS status, duration, body AS json, max(number) AS number "
    f"FROM log WHERE what = {FINISHED} GROUP BY parent, name",
    "INSERT INTO about VALUES('epoch', 0)",
)

_VERSION_2: Final = (f"INSERT OR IGNORE INTO marks SELECT what, number FROM log WHERE {IS_MARKED}",)

_VERSION_3: Final = ("ALTER TABLE log ADD COLUMN used TEXT",)

_VERSION_4: Final = ("ALTER TABLE log ADD COLUMN owed",)

Migration = Sequence[str] | Callable[[sqlite3.Connection], None]
MIGRATIONS: Final[Sequence[Migration]] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
"""What leads from each version to the next; a file that was only just made has version 0."""
UNMADE: Final = 0
TABLES: Final = ("about", "words", "log", "marks")
_ADDED: Final = {3: "used", 4: "owed"}
"""By version: the column that is new in it.  What an older one does not say nobody wrote down then.
"""


# ── opening ──────────────────────────────────────────────────────────────


def open_to_write(path: str, *, create: bool = False) -> sqlite3.Connection:
    """A connection with every setting in force, to a file of the current version."""
    require_plain_journal(path)
    with map_storage_errors(path):
        was_closed = not _exists_with_data(f"{path}-wal")
        connection = _connect(path, "rwc" if create else "rw")
        try:
            if create:
                connection.execute("PRAGMA page_size=1024")
            else:
                _require_version(_version(connection), path)
            _set_all(connection, path)
            if not was_closed:
                _require_intact(connection, path)
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: str) -> sqlite3.Connection:
    """A connection that changes nothing, also while an engine writes, also where nothing can be
    written.
    """
    require_plain_journal(path)
    with map_storage_errors(path):
        connection = _readable(path)
        try:
            connection.execute("PRAGMA trusted_schema=0")
            version = _version(connection)
            _require_version(version, path)
            _require_tables(connection, path)
            if lacking := [f"NULL AS {name}" for since, name in _ADDED.items() if version < since]:
                # Hides the table of the older version.
                connection.execute(
                    f"CREATE TEMP VIEW log AS SELECT *, {', '.join(lacking)} FROM main.log"
                )
        except BaseException:
            connection.close()
            raise
    return connection


def checkpoint(path: str) -> None:
    """Put what stands in the write-ahead log alone into the database, while others write."""
    # What cannot be done now is done by the next, or by whoever opens the journal again.
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
    # Which thread uses it when is settled by the locks of those who hold it.
    return sqlite3.connect(
        f"file:{name}?mode={mode}{more}", uri=True, isolation_level=None, check_same_thread=False
    )


def _readable(path: str) -> sqlite3.Connection:
    """SQLite needs a file for itself beside the journal; where it cannot have one, we read
    otherwise.
    """
    connection = _probe_connection(_connect(path, "ro"))
    if connection is not None:
        return connection
    if not _exists_with_data(f"{path}-wal"):
        return _connect(path, "ro", more="&immutable=1")
    return _put_together(path)


def _put_together(path: str) -> sqlite3.Connection:
    """Some records are in the write-ahead log alone: a copy of both, in memory."""
    from shutil import copyfile
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="plait-journal-") as aside:
        for end in ("", "-wal"):
            copyfile(path + end, os.path.join(aside, f"journal.db{end}"))
        copied = _connect(os.path.join(aside, "journal.db"), "rw")
        together = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        copied.backup(together)
        copied.close()
    return together


def _require_tables(connection: sqlite3.Connection, path: str) -> None:
    """Its tables are tables: a view in the place of one could compute for ever, in a file from
    elsewhere.
    """
    names = ", ".join(f"'{name}'" for name in TABLES)
    odd = f"name IN ({names}) AND (type <> 'table' OR sql NOT LIKE 'CREATE TABLE %')"
    if connection.execute(f"SELECT count(*) FROM sqlite_schema WHERE {odd}").fetchone() != (0,):
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
    """Every setting is read back: some are refused without an error."""
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


# ── versions ─────────────────────────────────────────────────────────────


def migrate(
    connection: sqlite3.Connection, path: str, *, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Bring the file to the current version: wholly, or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(migrations):
            raise _too_new(version, len(migrations), path)
        for number, migration in enumerate(migrations[version:], version + 1):
            if callable(migration):
                migration(connection)
            else:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def unmade(path: str) -> JournalError:
    return JournalError(
        "the journal has no records and no tables: Plait was ended while it made it",
        path,
        "plait run FILE begins a new run",
        code="unmade",
    )


def _require_version(version: int, path: str) -> None:
    if version > len(MIGRATIONS):
        raise _too_new(version, len(MIGRATIONS), path)
    if version == UNMADE:
        raise unmade(path)
    if version < UNMADE:
        raise fault("damaged", path)


def _too_new(version: int, known: int, path: str) -> JournalError:
    return JournalError(
        f"the journal has version {version}, and this Plait knows versions up to {known}",
        path,
        "use the newer Plait that made it",
        code="newer-journal",
    )
