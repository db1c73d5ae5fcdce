"""`run.json`, beside the journal of a run: what has to be known of it without its journal.

Its number by the order in which runs were made, and when that was; it is there as soon as the run
is wholly made.  And how many records the journal has at least, with a digest of the last of them:
who finds fewer, or others, knows that the journal has lost something.

Only what is safe on the disk is said to be there, so neither a kill nor a power cut makes it false:
it may say less than there is, by what was recorded in the last 20 ms and reported to nobody.
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
"""Bytes: each time all of them are written at once, in one page, so that a kill leaves the old or
the new.
"""
SEGMENT: Final = 50_000
"""Records that a digest covers at most: to check so many takes a tenth of a second."""

_HASHED: Final = (
    "what, parent, name, kind, title, place, attempt, fingerprint, status, used, owed, body"
)
_of_row: Final = itemgetter(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14)
"""The same of a row that is to be written."""
_RECORDS: Final = (
    f"SELECT number, {_HASHED} FROM log WHERE number > ? AND number <= ? ORDER BY number"
)
_LAST: Final = "SELECT coalesce(max(number), 0) FROM log"


@dataclass(frozen=True, slots=True)
class About:
    """What `run.json` says."""

    place: int
    created: float
    records: int = 0
    """So many there are at least."""
    since: int = 0
    """The digest is of the records behind this one, up to `records`."""
    digest: str = ""


def write_about(folder: str, said: About) -> None:
    path = os.path.join(folder, NAME)
    with map_storage_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(handle, _text(said), 0)
        finally:
            os.close(handle)


def _text(said: About) -> bytes:
    record = {
        "records": said.records,
        "since": said.since,
        "digest": said.digest,
        "place": said.place,
        "created": said.created,
    }
    return json.dumps(record).ljust(LENGTH - 1).encode() + b"\n"


def read_about(folder: str) -> About | None:
    """None if it is not there, or says nothing that can be understood."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError, *MISREAD):
        handle = os.open(os.path.join(folder, NAME), flags)
        try:
            said = json.loads(os.read(handle, 2 * LENGTH))
        finally:
            os.close(handle)
        about = About(
            said["place"], said["created"], said["records"], said["since"], said["digest"]
        )
        numbers = (about.place, about.records, about.since)
        is_right = all(type(one) is int and 0 <= one < 1 << 60 for one in numbers)
        if is_right and isinstance(about.created, float) and isinstance(about.digest, str):
            return about
    return None


def require_records(
    connection: sqlite3.Connection, said: About | None, path: str, *, whole: bool = True
) -> None:
    """JournalError if records are missing that were there, or are others; `whole`: not the number
    alone.
    """
    if said is None or not said.records:
        return
    last: Any = connection.execute(_LAST).fetchone()[0]
    if not isinstance(last, int):
        raise fault("damaged", path)
    if last < said.records:
        raise record_loss_error(said.records - max(last, 0), said.records, path)
    if whole and _digest(connection, said.since, said.records) != said.digest:
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
    """None if a record is missing between them."""
    digest, number = quick_digest(), since
    for found, *row in connection.execute(_RECORDS, (since, last)):
        number += 1
        if found != number:
            return None
        digest.update(dumps(tuple(row), 2))
    return digest.hexdigest() if number == last else None


class Tail:
    """Keeps `run.json` of a run that is being written up to date; whoever calls it lets nobody
    write.
    """

    def __init__(self, folder: str, said: About, connection: sqlite3.Connection) -> None:
        self._path = os.path.join(folder, NAME)
        self._said = said
        self._connection = connection
        self._handle: int | None = None
        self._pending: list[Row] = []
        """Records that the digest does not cover yet."""
        self._since = self._last = said.since
        self._digest = quick_digest()
        self._count()

    def add(self, rows: Iterable[Row]) -> None:
        self._pending += rows

    def claim(self) -> About | None:
        """What can be said as soon as all that was written is safe; None if there is nothing
        new.
        """
        last = self._connection.execute(_LAST).fetchone()[0]
        if last == self._said.records:
            return None
        rows, self._pending = self._pending, []
        if self._last + len(rows) != last:
            self._count()  # somebody was interrupted between a record and its place in the list
        else:
            try:
                self._digest.update(b"".join(map(dumps, map(_of_row, rows), repeat(2))))
            except ValueError:  # a text of another class: the database has it as a text
                self._count()
            self._last = last
        said = self._said
        claimed = About(said.place, said.created, last, self._since, self._digest.hexdigest())
        if last - self._since > SEGMENT:
            self._since, self._digest = last, quick_digest()
        return claimed

    def say(self, claimed: About) -> None:
        """Now it is safe.  What cannot be written is said the next time."""
        with suppress(OSError):
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.pwrite(self._handle, _text(claimed), 0)
            self._said = claimed

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _count(self) -> None:
        """Go through what is in the database."""
        self._last, self._digest = self._since, quick_digest()
        for number, *row in self._connection.execute(_RECORDS, (self._since, (1 << 63) - 1)):
            self._last = number
            self._digest.update(dumps(tuple(row), 2))
