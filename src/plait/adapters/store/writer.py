"""Adds events to a journal: many threads, one transaction for all that wait.

A thread that finds nobody writing writes.  Else it leaves its rows in the batch that is
being gathered.  Whoever was first leads: as soon as what is before is written, it writes
this batch, and the others only wait for that.  So nobody waits for a clock, and the more
wait, the less each costs.

Few rows are one statement, which is a transaction of its own and holds the question
whether we have been replaced: half of what a transaction costs is asking for its parts.

After a fault nothing is written any more: what the file system holds then is
known only to whoever opens the journal again.
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
from plait.adapters.store.run_info import About, Tail
from plait.adapters.store.schema import checkpoint, open_to_write
from plait.core.errors import JournalError
from plait.core.hints import Final
from plait.core.private_files import sync_folder
from plait.engine.events import Event, RunEnded
from plait.engine.outcome import Failure

MAX_WORDS: Final = 4096
"""Words whose numbers are kept in memory."""
LONGEST_WAIT: Final = 1.0
"""Seconds after which a thread no longer relies on the one that leads its batch."""

FIRST_CHECKPOINT: Final = 1.0
CHECKPOINT_SECONDS: Final = 5.0
"""After so long, what is in the write-ahead log alone goes into the database, and then again each
time.
"""

FEW: Final = 8
"""Rows that are written by one statement."""

_ROW: Final = f"({', '.join('?' * (COLUMNS.count(',') + 1))})"
# Under its number a word may stand there already; under another the rows with this one would have
# lost it.
_ADD_WORD: Final = "INSERT INTO words(id, text) VALUES(?, ?) ON CONFLICT(id) DO NOTHING"
_ADD: Final = f"INSERT INTO log({COLUMNS}) VALUES{_ROW}"
_MARK: Final = (
    f"INSERT INTO marks SELECT what, number FROM log WHERE {IS_MARKED} "
    "AND number > (SELECT max(number) FROM log) - ?"
)
_LAST_WORD: Final = "SELECT coalesce(max(id), 0) FROM words"
_EPOCH: Final = "SELECT value FROM about WHERE name = 'epoch'"
_ADD_FEW: Final = tuple(
    f"INSERT INTO log({COLUMNS}) SELECT * FROM (VALUES{', '.join([_ROW] * rows)}) WHERE ({_EPOCH}) "
    "= ?"
    for rows in range(FEW + 1)
)
"""By the number of rows; adds nothing if another epoch has begun."""


class _Batch:
    """Rows that become one transaction."""

    __slots__ = ("is_written", "rows")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.is_written = False


class _Shared(_Batch):
    """Rows of several threads."""

    __slots__ = ("led",)

    def __init__(self) -> None:
        super().__init__([])
        self.led = Lock()
        """Held until its leader has done what it could."""
        self.led.acquire()


class Writer:
    """The one writer of a run's journal; whoever makes it holds the run's lock."""

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
        self._words: dict[str, int] = {}
        self._new_words: dict[str, int] = {}
        """Those that no transaction has written; none other than ours can, so their numbers are
        ours, too.
        """
        self._packing = Packing(self._words, self._word_number, self.keep)
        self._gathering = Lock()
        self._batch = _Shared()
        self._writing = Lock()
        self._fault: JournalError | None = None
        self._commits = self._synced = 0
        self._tail: Tail | None = None
        self._checkpoint_at = monotonic() + FIRST_CHECKPOINT
        self._reserve = Reserve(os.path.dirname(path))
        self._connection = open_to_write(path, create=create)
        self._cursor = self._connection.cursor()
        try:
            self._reserve.fill()
            with map_storage_errors(path):
                self._epoch = self._begin_epoch()
                self._last_word: int = self._connection.execute(_LAST_WORD).fetchone()[0]
                self._knows_words = self._last_word == 0
                """Every word of the journal is one of those in memory."""
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
        # Not `acquire`: an interrupt that is heard when it has returned would leave the lock taken
        # for ever.
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
            # A leader may be interrupted at any moment; then somebody else does it.
            if batch.led.acquire(timeout=LONGEST_WAIT):
                batch.led.release()
            if not batch.is_written:
                self._write_gathered(batch)

    def sync(self) -> None:
        """What was appended survives a power cut.

        The write-ahead log holds what was added since it was last emptied into the
        database, and SQLite syncs the database before it empties the log.
        """
        self.require_healthy()
        commits = self._commits
        if commits == self._synced:
            return
        claimed = self._claim()
        try:
            self._sync_data(self._wal)
        except OSError as error:
            # The system may have dropped what it could not write, and would report success the next
            # time.
            self._fault = to_journal_error(error, self.path)
            raise repeat_error(self._fault) from error
        self._synced = commits
        if claimed is not None and self._tail is not None:
            self._tail.say(claimed)
        if monotonic() >= self._checkpoint_at:
            # By a connection of its own, so that nobody who writes has to wait.
            checkpoint(self.path)
            self._checkpoint_at = monotonic() + CHECKPOINT_SECONDS

    def keep_tail(self, said: About) -> None:
        """From now on `run.json` says how many records there are."""
        with self._writing, map_storage_errors(self.path):
            self._tail = Tail(os.path.dirname(self.path), said, self._connection)

    def _claim(self) -> About | None:
        if self._tail is None:
            return None
        with self._writing, map_storage_errors(self.path):
            return self._tail.claim()

    def keep(self, data: bytes) -> str:
        """Put large data aside; a fault there is one of the journal."""
        self.require_healthy()
        try:
            return self._blobs.keep(data)
        except JournalError as error:
            with self._writing:
                raise self._handle_fault(error, _Batch([])) from error

    def learn(self, words: Iterable[str]) -> None:
        """Words that rows will need, so that they are written together; more than are kept are left
        alone.
        """
        for word in islice(words, MAX_WORDS // 2):
            if word not in self._words:
                self._word_number(word)

    def say(self, name: str, value: object) -> None:
        """Write a fact beside the events."""
        with self._writing:
            self._do("INSERT OR REPLACE INTO about VALUES(?, ?)", name, value)

    def require_healthy(self) -> None:
        if self._fault is not None:
            raise repeat_error(self._fault)

    def close(self) -> None:
        """Nothing else uses it any more."""
        if self._fault is None:
            with suppress(JournalError):
                self.sync()
            self._reserve.spend()
        if self._tail is not None:
            self._tail.close()
        with suppress(sqlite3.Error):
            self._connection.close()
        os.close(self._wal)

    # ── opening ──────────────────────────────────────────────────────────

    def _begin_epoch(self) -> int:
        """From here on an engine that held the run before can write nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE about SET value = value + 1 WHERE name = 'epoch'")
        found = self._connection.execute(_EPOCH).fetchone()
        if found is None or not isinstance(found[0], int):
            raise fault("damaged", self.path)
        self._connection.execute("COMMIT")
        epoch: int = found[0]
        return epoch

    def _open_wal(self) -> int:
        # SQLite has just written to it, and keeps this file until the last connection is closed.
        wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._sync_data(wal)
            sync_folder(os.path.dirname(self.path))
        except OSError:
            os.close(wal)
            raise
        return wal

    # ── writing ──────────────────────────────────────────────────────────

    def _write_gathered(self, batch: _Shared) -> None:
        with self._writing:
            with self._gathering:
                if batch is self._batch:
                    self._batch = _Shared()
            if not batch.is_written:
                self._write(batch)

    def _write(self, batch: _Batch) -> None:
        if self._fault is not None:
            raise repeat_error(self._fault)
        rows = batch.rows
        if not self._new_words and len(rows) <= FEW and not any(map(is_marked, rows)):
            self._add_few(batch)
        else:
            self._transact(self._add, batch)
            self._new_words.clear()

    def _add_few(self, batch: _Batch) -> None:
        """Write a batch by one statement; as with `_transact`, it knows if it is written."""
        rows, before = batch.rows, self._connection.total_changes
        try:
            added = self._cursor.execute(
                _ADD_FEW[len(rows)], (*chain.from_iterable(rows), self._epoch)
            )
            batch.is_written = added.rowcount > 0
        except sqlite3.Error as error:
            self._roll_back()
            raise self._handle_fault(to_journal_error(error, self.path), batch) from error
        except BaseException:
            batch.is_written = self._connection.total_changes > before
            raise
        finally:
            self._commits += batch.is_written
            if batch.is_written and self._tail is not None:
                self._tail.add(rows)
        if not batch.is_written:
            raise self._takeover_error()

    def _add(self, rows: list[Row]) -> None:
        if self._new_words:
            words = [(number, word) for word, number in self._new_words.items()]
            self._connection.executemany(_ADD_WORD, words)
        self._connection.executemany(_ADD, rows)
        if any(map(is_marked, rows)):
            self._connection.execute(_MARK, (len(rows),))

    def _transact(self, write: Callable[[list[Row]], object], batch: _Batch) -> None:
        """Write a batch, unless we have been replaced; whatever interrupts us, it knows if it is
        written.
        """
        connection, began = self._connection, False
        try:
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

    def _do(self, statement: str, *values: object) -> None:
        self.require_healthy()
        self._transact(lambda _: self._connection.execute(statement, values), _Batch([]))

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _word_number(self, word: str) -> int:
        """The number of a word; a new one is written with the first rows that need it."""
        stored = escape_text(word)
        with self._writing:
            number = self._words.get(word)  # another thread has learned it while we waited
            if number is not None:
                return number
            number = self._new_words.get(stored)
            if number is None and not self._knows_words:
                number = self._find_word(stored)
            if number is None:
                self._last_word += 1
                number = self._new_words[stored] = self._last_word
            if len(self._words) >= MAX_WORDS:
                self._words.clear()
                self._knows_words = False
            self._words[word] = number
        return number

    def _find_word(self, stored: str) -> int | None:
        with map_storage_errors(self.path):
            found = self._connection.execute(
                "SELECT id FROM words WHERE text = ?", (stored,)
            ).fetchone()
        return None if found is None else int(found[0])

    # ── faults ───────────────────────────────────────────────────────────

    def _takeover_error(self) -> JournalError:
        self._fault = JournalError(
            "another engine has taken this run over",
            self.path,
            "let that one go on; plait runs shows how far it is",
            code="replaced",
        )
        return repeat_error(self._fault)

    def _handle_fault(self, fault: JournalError, batch: _Batch) -> JournalError:
        self._fault = fault
        if fault.code == "disk-full" and self._reserve.spend():
            # In the room that was kept back for it: what could not be written, and why nothing
            # follows.
            ended = RunEnded("interrupted", Failure(fault.what, "stopped"))
            last = _Batch([*batch.rows, to_row(ended, self._now(), self._packing)])
            with suppress(JournalError, OSError):
                self._transact(self._add, last)
                batch.is_written = True
                self._sync_data(self._wal)
        told = repeat_error(fault)
        told.holds_last = batch.is_written and bool(batch.rows)
        return told
