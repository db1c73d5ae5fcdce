"""Add events to a journal: many threads, one transaction for all that wait.

A thread that finds the writer free writes at once. Otherwise it adds its rows to a shared batch.
The first thread of a batch leads it: when the transaction before is over, it writes the batch, and
the others wait for that. So no thread waits for a timer, and the more threads wait, the less each
costs.

A few rows are written by one statement, which is also the transaction: half of the cost of a
transaction is its extra statements. While it writes such rows, the writer keeps a snapshot: a
statement that has begun to read. SQLite refuses to write if another process has written since the
snapshot, so the epoch is checked once for a snapshot, and the locks of a reader are taken once.

After a fault nothing is written any more: only a process that opens the journal again knows what
the file holds then.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, islice
from threading import Lock
from time import monotonic

from plait.adapters.store.blobs import Blobs
from plait.adapters.store.faults import fault, map_storage_errors, repeat_error, to_journal_error
from plait.adapters.store.files import Reserve
from plait.adapters.store.rows import (
    COLUMNS,
    IS_MARKED,
    Packing,
    Row,
    escape_text,
    is_marked,
    to_row,
)
from plait.adapters.store.run_info import RunInfo, Tail
from plait.adapters.store.schema import checkpoint, open_to_write
from plait.core.errors import JournalError
from plait.core.hints import Final
from plait.core.private_files import sync_folder
from plait.engine.events import Event, RunEnded
from plait.engine.outcome import Failure

MAX_STRINGS: Final = 4096
"""The number of strings whose ids are in memory."""
LONGEST_WAIT: Final = 1.0
"""Seconds after which a thread no longer waits for the leader of its batch."""

FIRST_CHECKPOINT: Final = 1.0
CHECKPOINT_SECONDS: Final = 5.0
"""Seconds between two checkpoints of the write-ahead log."""

FEW: Final = 32
"""The number of rows that one statement may write."""
SNAPSHOT_WRITES: Final = 50
"""The number of statements that use one snapshot. After that comes a transaction without one:
SQLite moves the write-ahead log into the database after a commit, and never beyond an open
snapshot.
"""

_ROW: Final = f"({', '.join('?' * (COLUMNS.count(',') + 1))})"
# After an interrupt a string may be written again with the same id. The same text with another id
# is an error: rows would refer to the wrong string.
_ADD_STRING: Final = "INSERT INTO strings(id, text) VALUES(?, ?) ON CONFLICT(id) DO NOTHING"
_ADD: Final = f"INSERT INTO records({COLUMNS}) VALUES{_ROW}"
_MARK: Final = (
    f"INSERT INTO marks SELECT type, number FROM records WHERE {IS_MARKED} "
    "AND number > (SELECT max(number) FROM records) - ?"
)
_LAST_STRING: Final = "SELECT coalesce(max(id), 0) FROM strings"
_EPOCH: Final = "SELECT value FROM properties WHERE name = 'epoch'"
_ADD_FEW: Final = tuple(
    f"INSERT INTO records({COLUMNS}) VALUES{', '.join([_ROW] * rows)}" for rows in range(FEW + 1)
)
"""The statements by their number of rows."""
_OPEN_SNAPSHOT: Final = f"{_EPOCH} UNION ALL SELECT 0"
"""The statement stays open after its first row."""


class _Batch:
    """The rows of one transaction."""

    __slots__ = ("is_written", "rows")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.is_written = False


class _SharedBatch(_Batch):
    """The rows of several threads."""

    __slots__ = ("led",)

    def __init__(self) -> None:
        super().__init__([])
        self.led = Lock()
        """A lock that is held until the leader has written, or failed."""
        self.led.acquire()


class Writer:
    """The only writer of a run's journal. The code that creates it holds the run's lock."""

    def __init__(
        self,
        path: str,
        blobs: Blobs,
        *,
        create: bool,
        now: Callable[[], float],
        sync_data: Callable[[int], None],
    ) -> None:
        self.path = path
        self._now = now
        self._sync_data = sync_data
        self._blobs = blobs
        self._strings: dict[str, int] = {}
        self._new_strings: dict[str, int] = {}
        """Strings that no transaction has written yet."""
        self._packing = Packing(self._strings, self._string_id, self.put_blob)
        self._gathering = Lock()
        self._batch = _SharedBatch()
        self._writing = Lock()
        self._fault: JournalError | None = None
        self._commits = self._synced = 0
        self._tail: Tail | None = None
        self._checkpoint_at = monotonic() + FIRST_CHECKPOINT
        self._reserve = Reserve(os.path.dirname(path))
        self._connection = open_to_write(path, create=create)
        self._cursor = self._connection.cursor()
        self._snapshot = self._connection.cursor()
        self._snapshot_writes = 0
        """The number of statements that have used the open snapshot; 0: none is open."""
        try:
            self._reserve.fill()
            with map_storage_errors(path):
                self._epoch = self._begin_epoch()
                self._last_string: int = self._connection.execute(_LAST_STRING).fetchone()[0]
                self._has_all_strings = self._last_string == 0
                """True if every string of the journal is in memory."""
                self._wal = self._open_wal()
        except BaseException:
            self._connection.close()
            raise

    def append(self, *events: Event) -> None:
        if not events:
            return
        now, packing = self._now(), self._packing
        rows = [to_row(event, now, packing) for event in events]
        if self._writing.locked():
            self._append_with_others(rows)
            return
        # Not `acquire`: an interrupt right after it would leave the lock taken forever.
        with self._writing:
            self._write(_Batch(rows))

    def _append_with_others(self, rows: list[Row]) -> None:
        leads = False
        try:
            with self._gathering:
                batch = self._batch
                leads = not batch.rows
                batch.rows += rows
            if leads:
                self._write_gathered(batch)
        finally:
            if leads:
                batch.led.release()
        if not leads:
            # A leader may be interrupted at any moment; then another thread writes the batch.
            if batch.led.acquire(timeout=LONGEST_WAIT):
                batch.led.release()
            if not batch.is_written:
                self._write_gathered(batch)

    def sync(self) -> None:
        """Make everything that was appended survive a power cut.

        The write-ahead log has all records since the last checkpoint, and SQLite syncs the
        database before it reuses the log.
        """
        self.require_healthy()
        commits = self._commits
        if commits == self._synced:
            return
        info = self._next_info()
        try:
            self._sync_data(self._wal)
        except OSError as error:
            # The system may have dropped the data, and would report success the next time.
            self._fault = to_journal_error(error, self.path)
            raise repeat_error(self._fault) from error
        self._synced = commits
        if info is not None and self._tail is not None:
            self._tail.write(info)
        if monotonic() >= self._checkpoint_at:
            with self._writing:
                self._close_snapshot()
            # On another connection, so that no writer waits.
            checkpoint(self.path)
            self._checkpoint_at = monotonic() + CHECKPOINT_SECONDS

    def keep_tail(self, info: RunInfo) -> None:
        """Keep the number of records in `run.json` up to date from now on."""
        with self._writing, map_storage_errors(self.path):
            self._tail = Tail(os.path.dirname(self.path), info, self._connection)

    def _next_info(self) -> RunInfo | None:
        if self._tail is None:
            return None
        with self._writing, map_storage_errors(self.path):
            return self._tail.next_info()

    def put_blob(self, data: bytes) -> str:
        """Store large data and return its name. A fault here counts as one of the journal."""
        self.require_healthy()
        try:
            return self._blobs.put(data)
        except JournalError as error:
            with self._writing:
                raise self._handle_fault(error, _Batch([])) from error

    def add_strings(self, strings: Iterable[str]) -> None:
        """Give ids to strings that rows will need, so that one transaction writes them all."""
        for text in islice(strings, MAX_STRINGS // 2):
            if text not in self._strings:
                self._string_id(text)

    def set_property(self, name: str, value: object, *events: Event) -> None:
        """Store a value beside the records, and append events in the same transaction."""
        batch = _Batch([to_row(event, self._now(), self._packing) for event in events])

        def write(rows: list[Row]) -> None:
            self._connection.execute(
                "INSERT OR REPLACE INTO properties VALUES(?, ?)", (name, value)
            )
            self._add(rows)

        with self._writing:
            self.require_healthy()
            self._transact(write, batch)
            self._new_strings.clear()

    def require_healthy(self) -> None:
        if self._fault is not None:
            raise repeat_error(self._fault)

    def close(self) -> None:
        if self._fault is None:
            with suppress(JournalError):
                self.sync()
            self._reserve.spend()
        if self._tail is not None:
            self._tail.close()
        with suppress(sqlite3.Error):
            self._close_snapshot()
            self._connection.close()
        os.close(self._wal)

    # ── opening ──────────────────────────────────────────────────────────

    def _begin_epoch(self) -> int:
        """Begin an epoch: from now on, an engine that had the run before cannot write."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE properties SET value = value + 1 WHERE name = 'epoch'")
        found = self._connection.execute(_EPOCH).fetchone()
        if found is None or not isinstance(found[0], int):
            raise fault("damaged", self.path)
        self._connection.execute("COMMIT")
        epoch: int = found[0]
        return epoch

    def _open_wal(self) -> int:
        # It exists now, because SQLite has just written to it; SQLite keeps it until the last
        # close.
        wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._sync_data(wal)
            sync_folder(os.path.dirname(self.path))
        except OSError:
            os.close(wal)
            raise
        return wal

    # ── writing ──────────────────────────────────────────────────────────

    def _write_gathered(self, batch: _SharedBatch) -> None:
        with self._writing:
            with self._gathering:
                if batch is self._batch:
                    self._batch = _SharedBatch()
            if not batch.is_written:
                self._write(batch)

    def _write(self, batch: _Batch) -> None:
        if self._fault is not None:
            raise repeat_error(self._fault)
        rows = batch.rows
        are_plain = not self._new_strings and len(rows) <= FEW and not any(map(is_marked, rows))
        if not are_plain or not self._add_few(batch):
            self._transact(self._add, batch)
            self._new_strings.clear()

    def _add_few(self, batch: _Batch) -> bool:
        """Write a batch with one statement; set `is_written` like `_transact`.

        False: the snapshot is used up, or another process writes or has written; with a
        snapshot SQLite does not wait for it.
        """
        if self._snapshot_writes == SNAPSHOT_WRITES:
            return False
        rows, before = batch.rows, self._connection.total_changes
        values = rows[0] if len(rows) == 1 else tuple(chain.from_iterable(rows))
        try:
            if not self._snapshot_writes:
                self._open_snapshot()
            self._snapshot_writes += 1
            self._cursor.execute(_ADD_FEW[len(rows)], values)
            batch.is_written = True
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            self._roll_back()
            raise self._handle_fault(to_journal_error(error, self.path), batch) from error
        except BaseException:
            batch.is_written = self._connection.total_changes > before
            raise
        finally:
            if batch.is_written:
                self._commits += 1
                if self._tail is not None:
                    self._tail.add(rows)
        return True

    def _open_snapshot(self) -> None:
        if self._snapshot.execute(_OPEN_SNAPSHOT).fetchone()[0] != self._epoch:
            raise self._takeover_error()

    def _close_snapshot(self) -> None:
        self._snapshot_writes = 0
        self._snapshot.fetchall()  # a statement without further rows is closed

    def _add(self, rows: list[Row]) -> None:
        if self._new_strings:
            strings = [(id, text) for text, id in self._new_strings.items()]
            self._connection.executemany(_ADD_STRING, strings)
        self._connection.executemany(_ADD, rows)
        if any(map(is_marked, rows)):
            self._connection.execute(_MARK, (len(rows),))

    def _transact(self, write: Callable[[list[Row]], object], batch: _Batch) -> None:
        """Write a batch, unless a newer engine has the run.

        Whatever it raises, the batch then knows whether it is written.
        """
        connection, began = self._connection, False
        try:
            self._close_snapshot()
            connection.execute("BEGIN IMMEDIATE")
            began = True
            if connection.execute(_EPOCH).fetchone()[0] != self._epoch:
                raise self._takeover_error()
            write(batch.rows)
            connection.execute("COMMIT")
            batch.is_written = True
            self._commits += 1
            if self._tail is not None:
                self._tail.add(batch.rows)
        except sqlite3.Error as error:
            self._roll_back()
            raise self._handle_fault(to_journal_error(error, self.path), batch) from error
        except BaseException:
            batch.is_written = began and not connection.in_transaction
            self._commits += batch.is_written
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _string_id(self, text: str) -> int:
        """The id of a string; a new one is written with the first rows that need it."""
        stored = escape_text(text)
        with self._writing:
            id = self._strings.get(text)  # another thread may have added it while we waited
            if id is not None:
                return id
            id = self._new_strings.get(stored)
            if id is None and not self._has_all_strings:
                id = self._find_string(stored)
            if id is None:
                self._last_string += 1
                id = self._new_strings[stored] = self._last_string
            if len(self._strings) >= MAX_STRINGS:
                self._strings.clear()
                self._has_all_strings = False
            self._strings[text] = id
        return id

    def _find_string(self, stored: str) -> int | None:
        query = "SELECT id FROM strings WHERE text = ?"
        with map_storage_errors(self.path):
            found = self._connection.execute(query, (stored,)).fetchone()
        return None if found is None else int(found[0])

    # ── faults ───────────────────────────────────────────────────────────

    def _takeover_error(self) -> JournalError:
        self._fault = JournalError(
            "another engine has taken this run over",
            self.path,
            "let that engine continue; plait runs shows how far it is",
            code="replaced",
        )
        return repeat_error(self._fault)

    def _handle_fault(self, fault: JournalError, batch: _Batch) -> JournalError:
        self._fault = fault
        if fault.code == "disk-full" and self._reserve.spend():
            # The reserve has room for the rows that did not fit, and for the end of the run.
            ended = RunEnded("interrupted", Failure(fault.what, "stopped"))
            last = _Batch([*batch.rows, to_row(ended, self._now(), self._packing)])
            with suppress(JournalError, OSError):
                self._transact(self._add, last)
                batch.is_written = True
                self._sync_data(self._wal)
        error = repeat_error(fault)
        error.holds_last = batch.is_written and bool(batch.rows)
        return error
