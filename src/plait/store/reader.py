"""What is recorded: events in their order, and steps by their paths.

The journal is a list of events.  Where a step is in it, and what counts no
longer, is an index that each reader makes for itself, in a temporary database,
when it is first asked, and continues from where it stopped when it is asked
again.  So a run that nobody asks pays nothing for it, and nothing in the file can
contradict the events.  No read lasts: an engine is never kept from tidying up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from threading import RLock

from plait.engine.journal import Recorded, Stamped
from plait.errors import JournalError
from plait.hints import Any, Final
from plait.store.blobs import Blobs
from plait.store.faults import explained, fault_of
from plait.store.rows import (
    ALONE,
    COLUMNS,
    FINISHED,
    FORGOTTEN,
    STARTED,
    STATUS_NAMES,
    Unpacking,
    original,
    split,
    storable,
    to_recorded,
    to_stamped,
)
from plait.store.schema import open_to_read

PAGE: Final = 200
"""Rows that are in memory at a time."""

_INDEX: Final = (
    "PRAGMA temp.journal_mode=OFF",  # an index that could not be continued is thrown away
    "CREATE TEMP TABLE known(parent TEXT, name TEXT, place INTEGER, number INTEGER, started INTEGER, "
    "kind INTEGER, status INTEGER, PRIMARY KEY(parent, name)) WITHOUT ROWID",
    "CREATE TEMP TABLE listed(id INTEGER PRIMARY KEY, number INTEGER)",
)
_EXTEND: Final = (
    f"INSERT INTO temp.known SELECT parent, name, iif(what = {FINISHED}, place, NULL), "
    f"iif(what = {FINISHED}, number, NULL), what = {STARTED}, kind, status "
    f"FROM log WHERE number > ? AND number <= ? AND what IN ({STARTED}, {FINISHED}) "
    # Sorted, it fills page after page; the last of several records of a step stays.
    "ORDER BY parent, name, number ON CONFLICT(parent, name) DO UPDATE SET "
    "place = coalesce(excluded.place, place), number = coalesce(excluded.number, number), "
    "started = max(started, excluded.started), kind = excluded.kind, "
    "status = coalesce(excluded.status, status)"
)
_FORGOTTEN: Final = (
    "SELECT number, parent, name, status FROM marks JOIN log USING(number) "
    f"WHERE marks.what = {FORGOTTEN} AND number > ? AND number <= ? ORDER BY number"
)
_FORGET: Final = (
    "UPDATE temp.known SET number = NULL, place = NULL "
    "WHERE parent = ? AND name = ? OR parent >= ? AND parent < ?"
)
_FORGET_ALONE: Final = "UPDATE temp.known SET number = NULL, place = NULL WHERE parent = ? AND name = ?"
_LIST: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND number NOT NULL ORDER BY place, number"
)
_COUNT: Final = (
    "SELECT status, count(*) FROM temp.known WHERE number NOT NULL "
    "AND kind = (SELECT id FROM words WHERE text = ?) GROUP BY status"
)


_OUTLINE: Final = (
    f"SELECT number, {COLUMNS} FROM log WHERE number > ? AND NOT (what IN ({STARTED}, {FINISHED}) "
    "AND coalesce(status, 0) = 0 AND (parent >= ? AND parent < ? OR parent = ? AND name >= ? AND name < ?)) "
    f"ORDER BY number LIMIT {PAGE}"
)
_ENDED: Final = (
    "SELECT status, count(*) FROM log "
    f"WHERE parent = ? AND what = {FINISHED} AND name >= ? AND name < ? GROUP BY status"
)
_ITEM, _BEHIND_ITEMS = "item:", "item;"
"""Every name of an item is between them: `;` follows `:`."""


class Reader:
    """Reads a journal, from any thread, while another process may write it."""

    def __init__(self, path: str, blobs: Blobs) -> None:
        self.path = path
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._indexed = 0
        self._words: dict[int, str] = {}
        self._unpacking = Unpacking(self._word, blobs.kept)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._indexed = 0

    # ── events ───────────────────────────────────────────────────────────

    def last(self) -> int:
        """The number of the last event; 0 if there is none."""
        return int(self._all("SELECT coalesce(max(number), 0) FROM log")[0][0])

    def events(self, after: int = 0) -> Iterator[Stamped]:
        query = f"SELECT number, {COLUMNS} FROM log WHERE number > ? ORDER BY number LIMIT {PAGE}"
        while rows := self._all(query, after):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def outline(self, fan: str) -> Iterator[Stamped]:
        """The events without those that say only that an item, or a step of one, began or went well."""
        parent, after = f"{storable(fan)}/", 0
        inside = (parent + _ITEM, parent + _BEHIND_ITEMS, parent, _ITEM, _BEHIND_ITEMS)
        while rows := self._all(_OUTLINE, after, *inside):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def ended_in(self, fan: str) -> dict[str, int]:
        """How often items of a fan are recorded to have ended how; one that was done again counts twice."""
        found = self._all(_ENDED, f"{storable(fan)}/", _ITEM, _BEHIND_ITEMS)
        return {STATUS_NAMES[status]: count for status, count in found}

    def knows_word(self, words: Iterable[str]) -> bool:
        """Is one of these words, such as kinds of steps, anywhere in the journal?"""
        asked = [storable(word) for word in words]
        marks = ", ".join("?" * len(asked))
        return bool(self._all(f"SELECT 1 FROM words WHERE text IN ({marks}) LIMIT 1", *asked))

    def newest(self, what: int) -> tuple[int, float, str | None] | None:
        """Number, time and title of the newest event of one of the kinds that are marked."""
        query = (
            "SELECT number, at, title FROM log WHERE number = (SELECT max(number) FROM marks WHERE what = ?)"
        )
        found = self._all(query, what)
        return found[0] if found else None

    # ── steps ────────────────────────────────────────────────────────────

    def recorded(self, path: str) -> Recorded | None:
        number = self._known(path)[0]
        return None if number is None else self._recorded_at([number])[0]

    def recorded_in(self, path: str) -> Iterator[Recorded]:
        before, last = self._list_below(path)
        try:
            at = before
            while at < last:
                some = self._all(f"SELECT id, number FROM temp.listed WHERE id > ? LIMIT {PAGE}", at)
                some = [(id, number) for id, number in some if id <= last]
                at = some[-1][0]
                yield from self._recorded_at([number for _, number in some])
        finally:
            if self._connection is not None:
                self._all("DELETE FROM temp.listed WHERE id > ? AND id <= ?", before, last)

    def was_started(self, path: str) -> bool:
        number, started = self._known(path)
        return bool(started) and number is None

    def unfinished(self) -> Iterator[str]:
        """The paths of steps that were begun and whose end is not recorded."""
        with self._lock:
            self._catch_up()
            found = self._all("SELECT parent || name FROM temp.known WHERE started AND number IS NULL")
        yield from sorted(original(path) for (path,) in found)

    def counts(self, kind: str) -> dict[str, int]:
        """How many steps of a kind ended how."""
        with self._lock:
            self._catch_up()
            found = self._all(_COUNT, storable(kind))
        return {STATUS_NAMES[status]: count for status, count in found}

    def about(self, name: str) -> object:
        """One of the facts that are written beside the events."""
        found = self._all("SELECT value FROM about WHERE name = ?", name)
        return found[0][0] if found else None

    def _list_below(self, path: str) -> tuple[int, int]:
        """Put the steps below a path into a list; it goes from behind the first number to the second.

        A query that is read from bit by bit would do, but as long as it lasts this
        connection sees nothing new.
        """
        end = "SELECT coalesce(max(id), 0) FROM temp.listed"
        with self._lock:
            self._catch_up()
            ((before,),) = self._all(end)
            self._all(_LIST, f"{storable(path)}/")
            ((last,),) = self._all(end)
        return before, last

    # ── the index ────────────────────────────────────────────────────────

    def _known(self, path: str) -> tuple[int | None, int]:
        with self._lock:
            self._catch_up()
            query = "SELECT number, started FROM temp.known WHERE parent = ? AND name = ?"
            found = self._all(query, *split(path))
        return found[0] if found else (None, 0)

    def _catch_up(self) -> None:
        last = self.last()
        if last == self._indexed:
            return
        try:
            self._index_up_to(last)
        except JournalError:
            self.close()  # with an index of which nobody knows how far it goes
            raise

    def _index_up_to(self, last: int) -> None:
        for number, parent, name, status in self._all(_FORGOTTEN, self._indexed, last):
            self._extend(number)
            if status == ALONE:
                self._all(_FORGET_ALONE, parent, name)
            else:
                self._all(_FORGET, parent, name, f"{parent}{name}/", f"{parent}{name}0")  # `0` follows `/`
        self._extend(last)

    def _extend(self, last: int) -> None:
        self._all(_EXTEND, self._indexed, last)
        self._indexed = last

    # ── rows ─────────────────────────────────────────────────────────────

    def _recorded_at(self, numbers: list[int]) -> list[Recorded]:
        marks = ", ".join("?" * len(numbers))
        rows = self._all(f"SELECT {COLUMNS}, number FROM log WHERE number IN ({marks})", *numbers)
        found = {row[-1]: row[:-1] for row in rows}
        return [to_recorded(found[number], self._unpacking) for number in numbers]

    def _word(self, number: int) -> str:
        if number not in self._words:
            ((text,),) = self._all("SELECT text FROM words WHERE id = ?", number)
            self._words[number] = original(text)
        return self._words[number]

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            connection = self._opened()
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise fault_of(error, self.path) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_to_read(self.path)
            with explained(self.path):
                for statement in _INDEX:
                    self._connection.execute(statement)
        return self._connection
