"""What is recorded: events in their order, and steps by their paths.

The journal is a list of events.  Where a step is in it, and what counts no
longer, is an index that each reader makes for itself, in a temporary database,
when it is first asked, and continues from where it stopped when it is asked
again.  So a run that nobody asks pays nothing for it, and nothing in the file can
contradict the events.  No read lasts: an engine is never kept from tidying up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from threading import RLock
from typing import NamedTuple

from plait.engine.events import StepFinished, StepForgotten, StepStarted
from plait.engine.journal import ITEM, Recorded, Stamped, as_recorded, is_below, marked
from plait.engine.outcome import Done, Failed, Failure, Outcome
from plait.errors import JournalError
from plait.hints import Any, Final
from plait.store.blobs import Blobs
from plait.store.faults import explained, fault_of
from plait.store.rows import (
    ALONE,
    COLUMNS,
    COUNTED,
    DONE,
    FAILED,
    FINISHED,
    FORGOTTEN,
    MAP,
    RUN_ENDED,
    RUN_STARTED,
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
MANY: Final = 20_000
"""Events; to go through more than these, or to put them into the index, takes long enough to be noticed."""

_INDEX: Final = (
    "PRAGMA temp.journal_mode=OFF",  # an index that could not be continued is thrown away
    "CREATE TEMP TABLE known(parent TEXT, name TEXT, place INTEGER, number INTEGER, ended INTEGER, "
    "started INTEGER, kind INTEGER, status INTEGER, PRIMARY KEY(parent, name)) WITHOUT ROWID",
    "CREATE TEMP TABLE listed(id INTEGER PRIMARY KEY, number INTEGER)",
)
_EXTEND: Final = (
    f"INSERT INTO temp.known SELECT parent, name, iif(what = {FINISHED}, place, NULL), "
    f"iif(what = {FINISHED}, number, NULL), iif(what = {FINISHED}, number, NULL), what = {STARTED}, "
    "kind, status "
    f"FROM log WHERE number > ? AND number <= ? AND what IN ({STARTED}, {FINISHED}) "
    # Sorted, it fills page after page; the last of several records of a step stays: of one that was begun
    # again behind its end only where that end was.
    "ORDER BY parent, name, number ON CONFLICT(parent, name) DO UPDATE SET place = excluded.place, "
    "number = excluded.number, ended = coalesce(excluded.ended, ended), started = excluded.started, "
    "kind = excluded.kind, status = excluded.status"
)
_FORGOTTEN: Final = (
    "SELECT number, parent, name, status FROM marks JOIN log USING(number) "
    f"WHERE marks.what = {FORGOTTEN} AND number > ? AND number <= ? ORDER BY number"
)
_FORGET: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, place = NULL "
    "WHERE parent = ? AND name = ? OR parent >= ? AND parent < ?"
)
_FORGET_ALONE: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, place = NULL WHERE parent = ? AND name = ?"
)
_LIST: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND number NOT NULL ORDER BY place, number"
)
_BEHIND_ITEMS: Final = "item;"
"""Every name of an item is between `item:` and this: `;` follows `:`."""
_COUNT: Final = (
    "SELECT status, count(*) FROM temp.known WHERE number NOT NULL "
    f"AND kind = (SELECT id FROM words WHERE text = 'item') AND instr(parent, '/{ITEM}') = 0 GROUP BY status"
)
_COUNT_OF_MAP: Final = (
    f"SELECT status, count(*) FROM temp.known WHERE parent = '{MAP}/' "
    f"AND name >= '{ITEM}' AND name < '{_BEHIND_ITEMS}' AND number > ? GROUP BY status"
)
_SAID: Final = {"done": "successful", "failed": "failed", "skipped": "skipped"}
"""By how items end: what a map calls their number."""


_MARKS: Final = "SELECT number, log.what, parent, name FROM marks JOIN log USING(number) ORDER BY number"
_EVENTS: Final = (
    f"SELECT number, {COLUMNS} FROM log WHERE number > ? AND number <= ? ORDER BY number LIMIT {PAGE}"
)
_LIST_FAILED: Final = (
    "SELECT number FROM temp.known "
    f"WHERE parent = ? AND number NOT NULL AND status = {FAILED} ORDER BY place, number"
)
_DONE: Final = (
    "SELECT known.place FROM temp.known JOIN log USING(number) WHERE known.parent = ? "
    f"AND known.name >= ? AND known.name < ? AND known.number > ? AND known.status = {DONE}"
)
_DONE_AS: Final = " AND log.fingerprint = (SELECT id FROM words WHERE text = ?)"
_CALLED: Final = (
    f"SELECT DISTINCT parent, name FROM log WHERE what IN ({STARTED}, {FINISHED}) "
    "AND (name = ? OR title = ? OR name = ? OR parent || name = ?)"
)
_CALLED_LIKE: Final = (
    f"SELECT DISTINCT parent, name FROM log WHERE what IN ({STARTED}, {FINISHED}) "
    "AND (substr(parent || name, 1, ?) = ? OR substr(name, 1, ?) = ? OR substr(name, 1, ?) = ?)"
)
_UNLIKE: Final = (
    f"SELECT 1 FROM log WHERE what = {FINISHED} AND name = ? AND parent > ? AND parent < ? "
    "AND substr(parent, -?) = ? AND fingerprint IS NOT (SELECT id FROM words WHERE text = ?) LIMIT 1"
)
_NAMES_IN_ITEMS: Final = (
    f"SELECT DISTINCT name FROM log WHERE what = {FINISHED} AND parent > ? AND parent < ? "
    "AND instr(substr(parent, ?), '/') = length(substr(parent, ?))"
)
_ENDED: Final = (
    "SELECT status, count(*) FROM log "
    f"WHERE parent = ? AND what = {FINISHED} AND name >= ? AND name < ? GROUP BY status"
)


def counts_said(outcome: Outcome) -> Mapping[str, int] | None:
    """What a map says about its items, whether it ended well or not; None if it says nothing."""
    match outcome:
        case Done(value) | Failed(Failure(output=value)) if isinstance(value, dict):
            named = {name: value.get(name) for name in _SAID.values()}
            return {name: count for name, count in named.items() if isinstance(count, int)} or None
    return None


class _Known(NamedTuple):
    """What the index knows of a step."""

    number: int | None
    """Of its end; None if there is none, or it was begun again or forgotten since."""
    ended: int | None
    """The same, also if it was begun again since."""
    started: int
    """1: it was begun, and has not ended since."""


_NOTHING: Final = _Known(None, None, 0)


class Reader:
    """Reads a journal, from any thread, while another process may write it."""

    def __init__(self, path: str, blobs: Blobs, *, many: int = MANY) -> None:
        self._many = many
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

    def is_long(self) -> bool:
        """Would a person notice that it is gone through?"""
        return self.last() > self._many

    def events(self, after: int = 0) -> Iterator[Stamped]:
        query = f"SELECT number, {COLUMNS} FROM log WHERE number > ? ORDER BY number LIMIT {PAGE}"
        while rows := self._all(query, after):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def outline(self) -> Iterator[Stamped]:
        """The events, but of those between the count of the map's items and its end only what is marked."""
        last, after, skipping = self.last(), 0, False
        for number, what, parent, name in self._all(_MARKS):
            yield from self._between(number - 1 if skipping else after, number)
            after = number
            if (parent, name) == ("", MAP) and what in (COUNTED, FINISHED):
                skipping = what == COUNTED
            elif what in (RUN_STARTED, RUN_ENDED):
                skipping = False
        if not skipping:
            yield from self._between(after, last)

    def _between(self, after: int, last: int) -> Iterator[Stamped]:
        while after < last and (rows := self._all(_EVENTS, after, last)):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def called(self, name: str) -> list[str]:
        """The paths of steps with this path, name, key or title; if there is none, of those that begin so."""
        stored = storable(name)
        key = f"{ITEM}{stored}"
        found = self._all(_CALLED, stored, stored, key, stored)
        if not found:
            found = self._all(_CALLED_LIKE, len(stored), stored, len(stored), stored, len(key), key)
        return [original(parent + own) for parent, own in found]

    def events_at(self, paths: Iterable[str]) -> Iterator[Stamped]:
        """What happened at these paths and below, to what they are inside of, and when the run was begun."""
        tests, values = [f"what = {RUN_STARTED}"], list[str]()
        for path in paths:
            above = path
            while above:
                tests.append("parent = ? AND name = ?")
                values += split(above)
                above = above.rpartition("/")[0]
            tests.append("parent >= ? AND parent < ?")
            values += [f"{storable(path)}/", f"{storable(path)}0"]  # `0` follows `/`
        query = f"SELECT number, {COLUMNS} FROM log WHERE {' OR '.join(tests)} ORDER BY number"
        for number, *row in self._all(query, *values):
            yield to_stamped(number, tuple(row), self._unpacking)

    def is_alike(self, fan: str, rest: str, fingerprint: str) -> bool:
        """Have all ends of one step of the items of a fan this fingerprint, of whatever life they are?"""
        above, _, name = storable(rest).rpartition("/")
        items = f"{storable(fan)}/{ITEM}"
        values = (name, items, f"{storable(fan)}/{_BEHIND_ITEMS}", len(above) + 1, f"{above}/")
        return not self._all(_UNLIKE, *values, storable(fingerprint))

    def names_in_items(self, fan: str) -> set[str]:
        """What the steps of the items of a fan are called that have ended."""
        items = f"{storable(fan)}/{ITEM}"
        behind = len(items) + 1
        found = self._all(_NAMES_IN_ITEMS, items, f"{storable(fan)}/{_BEHIND_ITEMS}", behind, behind)
        return {original(name) for (name,) in found}

    def ended_in(self, fan: str) -> dict[str, int]:
        """How often items of a fan are recorded to have ended how; one that was done again counts twice."""
        found = self._all(_ENDED, f"{storable(fan)}/", ITEM, _BEHIND_ITEMS)
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
        number = self._known(path).number
        return None if number is None else self._recorded_at([number])[0]

    def has_begun(self, path: str) -> bool:
        return self._known(path) is not _NOTHING

    def begun_in(self, path: str) -> Iterator[str]:
        with self._lock:
            self._catch_up()
            found = self._all("SELECT parent || name FROM temp.known WHERE parent = ?", f"{storable(path)}/")
        return (original(one) for (one,) in found)

    def last_end(self, path: str) -> int:
        return self._known(path).ended or 0

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

    def failed_in(self, path: str) -> Iterator[Recorded]:
        """Those directly below a path that failed, by `order`; without the index where that is not needed."""
        failed: dict[str, Recorded] = {}
        for stamped in self.outline():
            match stamped.event:
                case StepFinished(outcome=Failed()) as event if event.path.rpartition("/")[0] == path:
                    failed[event.path] = as_recorded(event, stamped.number)
                case StepForgotten(path=forgotten, below=below):
                    if below and is_below(path, forgotten):
                        failed.clear()
                    failed.pop(forgotten, None)
        known = self.recorded(path)
        said = None if known is None else counts_said(known.outcome)
        if said is None or len(failed) != said.get("failed"):
            # Some were done again without being forgotten, or nobody has counted them yet.
            self._catch_up()
            numbers = [number for (number,) in self._all(_LIST_FAILED, f"{storable(path)}/")]
            for at in range(0, len(numbers), PAGE):
                yield from self._recorded_at(numbers[at : at + PAGE])
            return
        yield from sorted(failed.values(), key=lambda known: known.order)

    def done_in(self, path: str, fingerprint: str | None, *, after: int = 0) -> bytes:
        items = (f"{storable(path)}/", ITEM, _BEHIND_ITEMS, after)
        with self._lock:
            self._catch_up()
            if fingerprint is None:
                found = self._all(_DONE, *items)
            else:
                found = self._all(_DONE + _DONE_AS, *items, storable(fingerprint))
        return marked([place for (place,) in found])

    def was_started(self, path: str) -> bool:
        return bool(self._known(path).started)

    def unfinished(self) -> Iterator[str]:
        """The paths of steps that were begun and whose end is not recorded."""
        with self._lock:
            self._catch_up()
            found = self._all("SELECT parent || name FROM temp.known WHERE started")
        yield from sorted(original(path) for (path,) in found)

    def item_counts(self) -> dict[str, int]:
        """How many items ended how, without those inside other items; of a map that has ended, as it says.

        Where there is a map, those that it has chosen last, and no others.
        """
        known = self.recorded(MAP)
        said = None if known is None else counts_said(known.outcome)
        if said is not None:
            return {status: said[name] for status, name in _SAID.items() if said.get(name)}
        chosen = self._known(f"{MAP}/items").ended
        with self._lock:
            self._catch_up()
            found = self._all(_COUNT) if chosen is None else self._all(_COUNT_OF_MAP, chosen)
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

    def _known(self, path: str) -> _Known:
        with self._lock:
            if ITEM not in path and path.count("/") < 2 and self.last() - self._indexed > self._many:
                return self._known_outside(path)
            self._catch_up()
            query = "SELECT number, ended, started FROM temp.known WHERE parent = ? AND name = ?"
            found = self._all(query, *split(path))
        return _Known(*found[0]) if found else _NOTHING

    def _known_outside(self, path: str) -> _Known:
        """The same of a path outside of items, without an index of a million of them."""
        known = _NOTHING
        for stamped in self.outline():
            match stamped.event:
                case StepStarted(path=begun) if begun == path:
                    known = _Known(None, known.ended, 1)
                case StepFinished(path=ended) if ended == path:
                    known = _Known(stamped.number, stamped.number, 0)
                case StepForgotten(path=forgotten, below=below):
                    if forgotten == path or (below and is_below(path, forgotten)):
                        known = _Known(None, None, known.started)
        return known

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
        return [to_recorded(number, found[number], self._unpacking) for number in numbers]

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
