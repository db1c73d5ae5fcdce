"""`run.json`, beside the journal: the properties of a run that must be known without its journal.

It has the run's number and when it was made; it exists as soon as the run is complete on disk. It
also has the least number of records in the journal, with a digest of the last of them: a reader
that finds fewer or other records knows that the journal has lost something.

It claims only what is safe on the disk, so neither a kill nor a power cut makes it false. It may
claim less than there is: the records of the last 20 ms, which were not reported yet.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat
from marshal import dumps
from operator import itemgetter

from plait.adapters.store.faults import fault, map_storage_errors
from plait.adapters.store.shapes import MISREAD
from plait.core.digests import quick_digest
from plait.core.errors import JournalError
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.core.records import dataclass

if TYPE_CHECKING:
    from plait.adapters.store.rows import Row

NAME: Final = "run.json"
LENGTH: Final = 320
"""Bytes. All are written at once, within one page: a kill leaves the old text or the new one."""
SEGMENT: Final = 50_000
"""The largest number of records that a digest covers: checking them takes 0.1 s."""

_HASHED: Final = (
    "type, parent, name, kind, title, position, attempt, fingerprint, status, usage, "
    "pending_hooks, body"
)
_hashed: Final = itemgetter(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14)
"""The hashed columns of a row that is not written yet."""
_RECORDS: Final = (
    f"SELECT number, {_HASHED} FROM records WHERE number > ? AND number <= ? ORDER BY number"
)
_LAST: Final = "SELECT coalesce(max(number), 0) FROM records"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of `run.json`."""

    number: int
    """Runs are numbered in the order in which they were made."""
    created: float
    records: int = 0
    """The least number of records in the journal."""
    since: int = 0
    """The digest covers the records after this one, up to `records`."""
    digest: str = ""


def write_run_info(folder: str, info: RunInfo) -> None:
    path = os.path.join(folder, NAME)
    with map_storage_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(handle, _text(info), 0)
        finally:
            os.close(handle)


def _text(info: RunInfo) -> bytes:
    record = {
        "records": info.records,
        "since": info.since,
        "digest": info.digest,
        "number": info.number,
        "created": info.created,
    }
    return json.dumps(record).ljust(LENGTH - 1).encode() + b"\n"


def read_run_info(folder: str) -> RunInfo | None:
    """Read `run.json`; None if it is missing or damaged."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError, *MISREAD):
        handle = os.open(os.path.join(folder, NAME), flags)
        try:
            fields = json.loads(os.read(handle, 2 * LENGTH))
        finally:
            os.close(handle)
        info = RunInfo(
            fields["number"],
            fields["created"],
            fields["records"],
            fields["since"],
            fields["digest"],
        )
        numbers = (info.number, info.records, info.since)
        is_right = all(type(one) is int and 0 <= one < 1 << 60 for one in numbers)
        if is_right and isinstance(info.created, float) and isinstance(info.digest, str):
            return info
    return None


def require_records(
    connection: sqlite3.Connection, info: RunInfo | None, path: str, *, whole: bool = True
) -> None:
    """Raise JournalError if records are missing; with `whole`, also if the last ones have
    changed.
    """
    if info is None or not info.records:
        return
    last: Any = connection.execute(_LAST).fetchone()[0]
    if not isinstance(last, int):
        raise fault("damaged", path)
    if last < info.records:
        raise record_loss_error(info.records - max(last, 0), info.records, path)
    if whole and _digest(connection, info.since, info.records) != info.digest:
        raise JournalError(
            "the last records of the journal are not those that were written",
            path,
            "restore the folder of the run from a backup, or remove it and run the flow again",
            code="altered-records",
        )


def record_loss_error(missing: int, of: int, path: str) -> JournalError:
    return JournalError(
        f"the journal has lost {missing} of {of} records: what was recorded there would be done "
        "again",
        path,
        "restore the folder of the run from a backup, with journal.db-wal, which belongs to it; "
        "or remove the folder and run the flow again",
        code="lost-records",
    )


def _digest(connection: sqlite3.Connection, since: int, last: int) -> str | None:
    """Return the digest of the records after `since` up to `last`; None if one is missing."""
    digest, number = quick_digest(), since
    for found, *row in connection.execute(_RECORDS, (since, last)):
        number += 1
        if found != number:
            return None
        digest.update(dumps(tuple(row), 2))
    return digest.hexdigest() if number == last else None


class Tail:
    """Keeps `run.json` up to date while a run writes. The caller holds the writer's lock."""

    def __init__(self, folder: str, info: RunInfo, connection: sqlite3.Connection) -> None:
        self._path = os.path.join(folder, NAME)
        self._info = info
        self._connection = connection
        self._handle: int | None = None
        self._pending: list[Row] = []
        """Written rows that the digest does not cover yet."""
        self._since = self._last = info.since
        self._digest = quick_digest()
        self._read_records()

    def add(self, rows: Iterable[Row]) -> None:
        self._pending += rows

    def next_info(self) -> RunInfo | None:
        """Return what `write` may write when all records are on the disk; None if nothing
        is new.
        """
        last = self._connection.execute(_LAST).fetchone()[0]
        if last == self._info.records:
            return None
        rows, self._pending = self._pending, []
        if self._last + len(rows) != last:
            self._read_records()  # an interrupt came between writing rows and `add`
        else:
            try:
                self._digest.update(b"".join(map(dumps, map(_hashed, rows), repeat(2))))
            except ValueError:  # a subclass of str: the database has a plain str
                self._read_records()
            self._last = last
        info = self._info
        new = RunInfo(info.number, info.created, last, self._since, self._digest.hexdigest())
        if last - self._since > SEGMENT:
            self._since, self._digest = last, quick_digest()
        return new

    def write(self, info: RunInfo) -> None:
        """Write `run.json`, after the records are on the disk. A failed write is repeated
        the next time.
        """
        with suppress(OSError):
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.pwrite(self._handle, _text(info), 0)
            self._info = info

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _read_records(self) -> None:
        """Compute the digest from the database."""
        self._last, self._digest = self._since, quick_digest()
        for number, *row in self._connection.execute(_RECORDS, (self._since, (1 << 63) - 1)):
            self._last = number
            self._digest.update(dumps(tuple(row), 2))
