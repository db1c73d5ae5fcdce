"""What is recorded: events in their order, and steps by their paths.

The journal is a list of events.  Where a step is in it, and what counts no
longer, is an index that each reader makes for itself, in a temporary database,
when it is first asked, and continues from where it stopped when it is asked
again.  So a run that nobody asks pays nothing for it, and nothing in the file can
contradict the events.  No read lasts: an engine is never kept from tidying up.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from threading import RLock

from plait.adapters.store.blobs import Blobs
from plait.adapters.store.faults import map_storage_errors, to_journal_error
from plait.adapters.store.rows import (
    ALONE,
    COLUMNS,
    COUNTED,
    DONE,
    EVENT_NAMES,
    FAILED,
    FINISHED,
    FORGOTTEN,
    MAP,
    MOST_ITEMS,
    NOTED,
    RETRYING,
    RUN_ENDED,
    RUN_STARTED,
    SOMETHING_USED,
    STARTED,
    STATUS_NAMES,
    Unpacking,
    escape_text,
    split,
    to_recorded,
    to_stamped,
    to_used,
    unescape_text,
)
from plait.adapters.store.run_info import About, require_records
from plait.adapters.store.schema import open_to_read
from plait.adapters.store.shapes import MISREAD, damage_error
from plait.core.errors import JournalError
from plait.core.hints import Any, Final, TypeAlias
from plait.core.records import dataclass
from plait.engine.events import EventRecord, Usage
from plait.engine.journal import StepRecord, to_bitmap
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.engine.paths import ITEM, is_at_or_below

PAGE: Final = 200
"""Rows that are in memory at a time."""
MANY: Final = 20_000
"""Events; to go through more than these, or to put them into the index, takes long enough to be
noticed.
"""

_INDEX: Final = (
    "PRAGMA temp.journal_mode=OFF",  # an index that could not be continued is thrown away
    "CREATE TEMP TABLE known(parent TEXT, name TEXT, place INTEGER, number INTEGER, ended INTEGER, "
    "started INTEGER, kind INTEGER, status INTEGER, PRIMARY KEY(parent, name)) WITHOUT ROWID",
    "CREATE TEMP TABLE listed(id INTEGER PRIMARY KEY, number INTEGER)",
)
_EXTEND: Final = (
    f"INSERT INTO temp.known SELECT parent, name, iif(what = {FINISHED}, place, NULL), "
    f"iif(what = {FINISHED}, number, NULL), iif(what = {FINISHED}, number, NULL), what = "
    f"{STARTED}, "
    "kind, status "
    f"FROM log WHERE number > ? AND number <= ? AND what IN ({STARTED}, {FINISHED}) "
    # Sorted, it fills page after page; the last of several records of a step stays: of one that was
    # begun
    # again behind its end only where that end was.
    "ORDER BY parent, name, number ON CONFLICT(parent, name) DO UPDATE SET place = excluded.place, "
    "number = excluded.number, ended = coalesce(excluded.ended, ended), started = "
    "excluded.started, "
    "kind = excluded.kind, status = excluded.status"
)
_FORGOTTEN: Final = (
    "SELECT number, parent, name, status FROM marks JOIN log USING(number) "
    f"WHERE marks.what = {FORGOTTEN} AND number > ? AND number <= ? ORDER BY number"
)
_FORGET_BELOW: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, place = NULL WHERE parent >= ? AND parent "
    "< ?"
)
_FORGET: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, place = NULL "
    "WHERE (parent, name) IN (SELECT parent, name FROM log WHERE number >= ? AND number <= ?)"
)
_LIST: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND number NOT NULL ORDER BY place, number"
)
_LIST_NAMED: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND name >= ? AND name < ? AND number NOT NULL ORDER BY place, number"
)
_LAST: Final = "\U0010ffff"
"""Behind every character of a name."""
_BEGUN_IN: Final = (
    "SELECT parent || name FROM temp.known WHERE parent = ? AND name >= ? AND substr(name, 1, ?) = "
    "?"
)
_BEHIND_ITEMS: Final = "item;"
"""Every name of an item is between `item:` and this: `;` follows `:`."""
_COUNT: Final = (
    "SELECT status, count(*) FROM temp.known WHERE number NOT NULL "
    f"AND kind = (SELECT id FROM words WHERE text = 'item') AND instr(parent, '/{ITEM}') = 0 GROUP "
    "BY status"
)
_COUNT_OF_MAP: Final = (
    f"SELECT status, count(*) FROM temp.known WHERE parent = '{MAP}/' "
    f"AND name >= '{ITEM}' AND name < '{_BEHIND_ITEMS}' AND number > ? GROUP BY status"
)
_SAID: Final = {"done": "successful", "failed": "failed", "skipped": "skipped"}
"""By how items end: what a map calls their number."""


_OF_ITEMS: Final = (
    f"(parent = '{MAP}/' AND name >= '{ITEM}' AND name < '{_BEHIND_ITEMS}' "
    f"OR parent >= '{MAP}/{ITEM}' AND parent < '{MAP}/{_BEHIND_ITEMS}')"
)
_SOME_MARKS: Final = (
    f"marks.what IN {tuple(range(len(EVENT_NAMES)))} AND marks.number > ? AND marks.number <= ?"
)
_MARKS: Final = f"SELECT number FROM marks WHERE {_SOME_MARKS} ORDER BY number"
_FRAME: Final = (
    "SELECT number, log.what, parent, name, status FROM marks JOIN log USING(number) "
    f"WHERE {_SOME_MARKS} AND (parent IS NULL OR NOT {_OF_ITEMS}) ORDER BY number"
)
_LAST_NOTES: Final = (
    f"SELECT number FROM marks JOIN log USING(number) WHERE marks.what = {NOTED} AND {_OF_ITEMS} "
    f"ORDER BY number DESC LIMIT {PAGE}"
)
_RETRIES: Final = (
    "SELECT number, name FROM marks JOIN log USING(number) "
    f"WHERE marks.what = {RETRYING} AND parent = '{MAP}/'"
)
_EVENTS: Final = (
    f"SELECT number, {COLUMNS} FROM log WHERE number > ? AND number <= ? ORDER BY number LIMIT "
    f"{PAGE}"
)
_EVENTS_OF_NO_ITEM: Final = (
    f"SELECT number, {COLUMNS} FROM log WHERE number > ? AND number <= ? "
    f"AND (parent IS NULL OR NOT {_OF_ITEMS}) ORDER BY number LIMIT {PAGE}"
)
_FAILED: Final = (
    # Place and title are those of the row with the largest number, as SQLite promises.
    "WITH ended AS (SELECT name, max(number) AS number, place, title FROM marks JOIN log "
    "USING(number) "
    f"WHERE marks.what = {FINISHED} AND status = {FAILED} AND parent = ? GROUP BY name), "
    "dropped AS (SELECT name, max(number) AS number FROM marks JOIN log USING(number) "
    f"WHERE marks.what = {FORGOTTEN} AND parent = ? GROUP BY name) "
    "SELECT ended.number, name, title FROM ended LEFT JOIN dropped USING(name) "
    "WHERE ended.number > max(?, coalesce(dropped.number, 0)) ORDER BY place, ended.number"
)
"""The ends of those directly below a path that failed and were not forgotten since, by marks alone.
"""
_USED_UP: Final = (
    "SELECT number, parent, name, used FROM log WHERE number > ? AND number < ? AND used IS NOT "
    "NULL "
    f"ORDER BY number LIMIT {PAGE}"
)
_LIST_FAILED: Final = (
    "SELECT number, known.name, title FROM temp.known JOIN log USING(number) "
    f"WHERE known.parent = ? AND known.status = {FAILED} ORDER BY known.place, number"
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
    "AND substr(parent, -?) = ? AND fingerprint IS NOT (SELECT id FROM words WHERE text = ?) LIMIT "
    "1"
)
_STEPS_IN_ITEMS: Final = (
    f"SELECT name, min(place), max(place) FROM log WHERE what = {FINISHED} AND parent > ? AND "
    "parent < ? "
    "AND instr(substr(parent, ?), '/') = length(substr(parent, ?)) AND number > ? GROUP BY name"
)
_ENDS_AND_BEGINS: Final = (
    "SELECT number, what FROM log WHERE number > ? AND number <= ? "
    f"AND what IN ({STARTED}, {FINISHED}) AND parent = ? AND name = ?"
)
_BEGINS_AND_ENDS_BELOW: Final = (
    "SELECT number, name, place, what FROM log WHERE number > ? AND number <= ? "
    f"AND what IN ({STARTED}, {FINISHED}) AND parent = ? ORDER BY number"
)
_ENDED: Final = (
    "SELECT status, count(*) FROM log "
    f"WHERE parent = ? AND what = {FINISHED} AND name >= ? AND name < ? GROUP BY status"
)


def map_counts(outcome: Outcome) -> Mapping[str, int] | None:
    """What a map says about its items, whether it ended well or not; None if it says nothing."""
    match outcome:
        case Succeeded(value) | Failed(Failure(output=value)) if isinstance(value, dict):
            named = {name: value.get(name) for name in _SAID.values()}
            return {name: count for name, count in named.items() if isinstance(count, int)} or None
    return None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the index knows of a step."""

    number: int | None
    """Of its end; None if there is none, or it was begun again or forgotten since."""
    ended: int | None
    """The same, also if it was begun again since."""
    started: int
    """1: it was begun, and has not ended since."""


_NOTHING: Final = _Known(None, None, 0)


_Ended: TypeAlias = tuple[int, str, str | None]
"""The number of an end, and the name and the title of what has ended."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marked event that is not of an item of the map."""

    number: int
    what: int
    parent: str | None
    name: str | None
    status: int | None

    def drops(self, path: str) -> bool:
        """Is the step at a path forgotten by it?"""
        return self.what == FORGOTTEN and (self._path == path or self.drops_below(path))

    def drops_below(self, path: str) -> bool:
        """Is all that is below a path forgotten by it?"""
        return self.what == FORGOTTEN and self.status != ALONE and is_at_or_below(path, self._path)

    @property
    def _path(self) -> str:
        return unescape_text(f"{self.parent}{self.name}")


def _stretches(frame: Sequence[_Mark], last: int) -> Iterator[tuple[int, int, bool]]:
    """From behind one event to another: are those between of the map's items, so that marks are
    enough?
    """
    after, skipping = 0, False
    for mark in frame:
        now = skipping
        if (mark.parent, mark.name) == ("", MAP) and mark.what in (COUNTED, FINISHED):
            now = mark.what == COUNTED
        elif mark.what in (RUN_STARTED, RUN_ENDED):
            now = False
        if now != skipping:
            yield after, mark.number, skipping
            after, skipping = mark.number, now
    yield after, last, skipping


def _within(numbers: Sequence[int], after: int, until: int) -> Sequence[int]:
    return numbers[bisect_right(numbers, after) : bisect_right(numbers, until)]


_GENERATOR: Final = 0x20
"""The flag of a function that yields; `inspect`, which knows it, takes long to import."""


def _careful(ask: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked of a damaged journal gets JournalError, whatever stands in its rows."""
    if ask.__code__.co_flags & _GENERATOR:

        @wraps(ask)
        def answers(self: Reader, *given: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from ask(self, *given, **named)
            except MISREAD as error:
                raise damage_error(self.path) from error

        return answers

    @wraps(ask)
    def answer(self: Reader, *given: Any, **named: Any) -> Any:
        try:
            return ask(self, *given, **named)
        except MISREAD as error:
            raise damage_error(self.path) from error

    return answer


class Reader:
    """Reads a journal, from any thread, while another process may write it.

    JournalError for whatever cannot be read.
    """

    def __init__(self, path: str, blobs: Blobs, *, many: int = MANY) -> None:
        self._many = many
        self.path = path
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._indexed = 0
        self._failed: tuple[str, int, list[_Ended]] = ("", 0, [])
        """The path that was last asked for, the last event then, and the ends of what failed below
        it.
        """
        self._frame: list[_Mark] = []
        self._framed = 0
        """The number up to which marks are in it."""
        self._words: dict[int, str] = {}
        self._unpacking = Unpacking(self._word, blobs.get_blob, path)

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

    def require_records(self, said: About | None, *, whole: bool) -> None:
        """JournalError if there are fewer than were there, or others."""
        with self._lock:
            try:
                require_records(self._open_connection(), said, self.path, whole=whole)
            except sqlite3.Error as error:
                raise to_journal_error(error, self.path) from error

    def is_long(self) -> bool:
        """Would a person notice that it is gone through?"""
        return self.last() > self._many

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        query = f"SELECT number, {COLUMNS} FROM log WHERE number > ? ORDER BY number LIMIT {PAGE}"
        while rows := self._all(query, after):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def usage_before(self, before: int) -> Iterator[tuple[str, Usage]]:
        """By path: what events before this one say was used up."""
        if not self.knows_word([SOMETHING_USED]):
            return
        after = 0
        while rows := self._all(_USED_UP, after, before):
            for _, parent, name, text in rows:
                if used := to_used(text, self.path):
                    yield unescape_text(parent + name), used
            after = rows[-1][0]

    def outline(self, items: Iterable[int] | None = None) -> Iterator[EventRecord]:
        """The events, but of those between the count of the map's items and its end only what is
        marked.

        `items`: of the items of the map only these events, by their numbers.
        """
        from heapq import merge

        last = self.last()
        frame = self._frame_up_to(last)
        marks = (
            sorted(items)
            if items is not None
            else [number for (number,) in self._all(_MARKS, 0, last)]
        )
        outside = [mark.number for mark in frame]
        for after, until, skipping in _stretches(frame, last):
            inside = _within(marks, after, until)
            if skipping:
                yield from self._events_at(sorted({*inside, *_within(outside, after, until)}))
            elif items is None:
                yield from self._between(after, until, _EVENTS)
            else:
                others = self._between(after, until, _EVENTS_OF_NO_ITEM)
                yield from merge(others, self._events_at(inside), key=lambda one: one.number)

    def short_outline(self, most: int) -> Iterator[EventRecord]:
        """The same, but of failed items only the first by order and the last by time; and the last
        notes.
        """
        failed = self._failure_numbers(MAP)
        shown = {known.path.rpartition("/")[2] for known in self._load_records(failed[:most])}
        tries = [number for number, name in self._all(_RETRIES) if unescape_text(name) in shown]
        notes = [number for (number,) in self._all(_LAST_NOTES)]
        yield from self.outline({*failed[:most], *sorted(failed)[-most:], *tries, *notes})

    def _frame_up_to(self, last: int) -> list[_Mark]:
        """The marks that are not of items of the map; those that are known are not looked for
        again.
        """
        with self._lock:
            self._frame += [_Mark(*row) for row in self._all(_FRAME, self._framed, last)]
            self._framed = max(self._framed, last)
            return self._frame[: bisect_right(self._frame, last, key=lambda mark: mark.number)]

    def _events_at(self, numbers: Sequence[int]) -> Iterator[EventRecord]:
        for at in range(0, len(numbers), PAGE):
            some = numbers[at : at + PAGE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT number, {COLUMNS} FROM log WHERE number IN ({marks}) ORDER BY number"
            for number, *row in self._all(query, *some):
                yield to_stamped(number, tuple(row), self._unpacking)

    def _between(self, after: int, last: int, query: str) -> Iterator[EventRecord]:
        while after < last and (rows := self._all(query, after, last)):
            for number, *row in rows:
                yield to_stamped(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def find_steps(self, name: str) -> list[str]:
        """The paths of steps with this path, name, key or title; if there is none, of those that
        begin so.
        """
        stored = escape_text(name)
        key = f"{ITEM}{stored}"
        found = self._all(_CALLED, stored, stored, key, stored)
        if not found:
            found = self._all(_CALLED_LIKE, len(stored), stored, len(stored), stored, len(key), key)
        return [unescape_text(parent + own) for parent, own in found]

    def events_at(self, paths: Iterable[str]) -> Iterator[EventRecord]:
        """What happened at these paths and below, to what they are inside of, and when the run was
        begun.
        """
        tests, values = [f"what = {RUN_STARTED}"], list[str]()
        for path in paths:
            above = path
            while above:
                tests.append("parent = ? AND name = ?")
                values += split(above)
                above = above.rpartition("/")[0]
            tests.append("parent >= ? AND parent < ?")
            values += [f"{escape_text(path)}/", f"{escape_text(path)}0"]  # `0` follows `/`
        query = f"SELECT number, {COLUMNS} FROM log WHERE {' OR '.join(tests)} ORDER BY number"
        for number, *row in self._all(query, *values):
            yield to_stamped(number, tuple(row), self._unpacking)

    def same_fingerprint(self, fan: str, rest: str, fingerprint: str) -> bool:
        """Have all ends of one step of the items of a fan this fingerprint, of whatever life they
        are?
        """
        above, _, name = escape_text(rest).rpartition("/")
        items = f"{escape_text(fan)}/{ITEM}"
        values = (name, items, f"{escape_text(fan)}/{_BEHIND_ITEMS}", len(above) + 1, f"{above}/")
        return not self._all(_UNLIKE, *values, escape_text(fingerprint))

    def steps_in_items(self, fan: str, after: int) -> dict[str, tuple[int, int]]:
        """By name: the first and last of the places of steps of a fan's items that ended behind an
        event.
        """
        items = f"{escape_text(fan)}/{ITEM}"
        behind = len(items) + 1
        found = self._all(
            _STEPS_IN_ITEMS, items, f"{escape_text(fan)}/{_BEHIND_ITEMS}", behind, behind, after
        )
        return {unescape_text(name): (first, last) for name, first, last in found}

    def count_outcomes(self, fan: str) -> dict[str, int]:
        """How often items of a fan are recorded to have ended how; one that was done again counts
        twice.
        """
        found = self._all(_ENDED, f"{escape_text(fan)}/", ITEM, _BEHIND_ITEMS)
        return {STATUS_NAMES[status]: count for status, count in found}

    def retries(self) -> int:
        """How often anything was tried again."""
        return int(self._all("SELECT count(*) FROM marks WHERE what = ?", RETRYING)[0][0])

    def knows_word(self, words: Iterable[str]) -> bool:
        """Is one of these words, such as kinds of steps, anywhere in the journal?"""
        asked = [escape_text(word) for word in words]
        marks = ", ".join("?" * len(asked))
        return bool(self._all(f"SELECT 1 FROM words WHERE text IN ({marks}) LIMIT 1", *asked))

    def newest(self, what: int) -> tuple[int, float, str | None] | None:
        """Number, time and title of the newest event of one of the kinds that are marked."""
        query = (
            "SELECT number, at, title FROM log WHERE number = (SELECT max(number) FROM marks WHERE "
            "what = ?)"
        )
        found = self._all(query, what)
        return found[0] if found else None

    # ── steps ────────────────────────────────────────────────────────────

    def step(self, path: str) -> StepRecord | None:
        number = self._step_state(path).number
        return None if number is None else self._load_records([number])[0]

    def was_ever_started(self, path: str) -> bool:
        return self._step_state(path) is not _NOTHING

    def started_in(self, path: str, begins: str = "") -> Iterator[str]:
        names = escape_text(begins)
        with self._lock:
            self._catch_up()
            found = self._all(_BEGUN_IN, f"{escape_text(path)}/", names, len(names), names)
        return (unescape_text(one) for (one,) in found)

    def last_result(self, path: str) -> StepRecord | None:
        number = self._step_state(path).ended
        return None if number is None else self._load_records([number])[0]

    def steps_in(self, path: str, begins: str = "") -> Iterator[StepRecord]:
        if "/" not in path and path != MAP and not begins and self._is_behind():
            yield from self._steps_outside_map(path)
            return
        before, last = self._list_below(path, escape_text(begins))
        try:
            at = before
            while at < last:
                some = self._all(
                    f"SELECT id, number FROM temp.listed WHERE id > ? LIMIT {PAGE}", at
                )
                some = [(id, number) for id, number in some if id <= last]
                at = some[-1][0]
                yield from self._load_records([number for _, number in some])
        finally:
            if self._connection is not None:
                self._all("DELETE FROM temp.listed WHERE id > ? AND id <= ?", before, last)

    def _steps_outside_map(self, path: str) -> Iterator[StepRecord]:
        """The steps directly below a path outside of the map, without an index of a million
        items.
        """
        last = self.last()
        frame = self._frame_up_to(last)
        ended: dict[str, tuple[int, int]] = {}
        for after, until, skipping in _stretches(frame, last):
            if not skipping:
                found = self._all(_BEGINS_AND_ENDS_BELOW, after, until, f"{escape_text(path)}/")
                for number, name, place, what in found:
                    if what == FINISHED:
                        ended[name] = (place or 0, number)
                    else:
                        ended.pop(name, None)  # it was begun again
        drops = [mark for mark in frame if mark.what == FORGOTTEN]
        kept = [
            one
            for name, one in ended.items()
            if not any(
                mark.number > one[1] and mark.drops(f"{path}/{unescape_text(name)}")
                for mark in drops
            )
        ]
        numbers = [number for _, number in sorted(kept)]
        for at in range(0, len(numbers), PAGE):
            yield from self._load_records(numbers[at : at + PAGE])

    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        """Those directly below a path that failed, by `order`; without the index where that is not
        needed.
        """
        numbers = self._failure_numbers(path, after)
        for at in range(0, len(numbers), PAGE):
            yield from self._load_records(numbers[at : at + PAGE])

    def failure_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        """The same, but only their paths and titles: of very many that is much less to read."""
        for _, name, title in self._failures_below(path, after):
            yield f"{path}/{unescape_text(name)}", unescape_text(title or "")

    def count_failures(self, path: str, *, after: int = 0) -> int:
        return len(self._failures_below(path, after))

    def _failure_numbers(self, path: str, after: int = 0) -> list[int]:
        return [number for number, _, _ in self._failures_below(path, after)]

    def _failures_below(self, path: str, after: int) -> list[_Ended]:
        with self._lock:
            last = self.last()
            if self._failed[:2] != (path, last):
                self._failed = (path, last, self._find_failures(path, last))
            found = self._failed[2]
        return [one for one in found if one[0] > after] if after else found

    def _find_failures(self, path: str, last: int) -> list[_Ended]:
        above = (mark.number for mark in self._frame_up_to(last) if mark.drops_below(path))
        below = f"{escape_text(path)}/"
        found: list[_Ended] = self._all(_FAILED, below, below, max(above, default=0))
        said = self.final_counts(path)
        if said is not None and len(found) == said.get("failed"):
            return found
        # Some were done again without being forgotten, or nobody has counted them yet.
        self._catch_up()
        return self._all(_LIST_FAILED, f"{escape_text(path)}/")

    def final_counts(self, fan: str) -> Mapping[str, int] | None:
        """What a fan that has ended says about its items; None if it has not, or says nothing."""
        known = self.step(fan)
        return None if known is None else map_counts(known.outcome)

    def completed_items(self, path: str, fingerprint: str | None, *, after: int = 0) -> bytes:
        items = (f"{escape_text(path)}/", ITEM, _BEHIND_ITEMS, after)
        with self._lock:
            self._catch_up()
            if fingerprint is None:
                found = self._all(_DONE, *items)
            else:
                found = self._all(_DONE + _DONE_AS, *items, escape_text(fingerprint))
        places = [place for (place,) in found]
        if places and not 0 <= min(places) <= max(places) < MOST_ITEMS:
            raise damage_error(self.path)
        return to_bitmap(places)

    def is_unfinished(self, path: str) -> bool:
        return bool(self._step_state(path).started)

    def find_unfinished(self) -> Iterator[str]:
        """The paths of steps that were begun and whose end is not recorded."""
        with self._lock:
            self._catch_up()
            found = self._all("SELECT parent || name FROM temp.known WHERE started")
        yield from sorted(unescape_text(path) for (path,) in found)

    def item_counts(self) -> dict[str, int]:
        """How many items ended how, without those inside other items; of a map that has ended, as
        it says.

        Where there is a map, those that it has chosen last, and no others.
        """
        said = self.final_counts(MAP)
        if said is not None:
            return {status: said[name] for status, name in _SAID.items() if said.get(name)}
        chosen = self._step_state(f"{MAP}/items").ended
        with self._lock:
            self._catch_up()
            found = self._all(_COUNT) if chosen is None else self._all(_COUNT_OF_MAP, chosen)
        return {STATUS_NAMES[status]: count for status, count in found}

    def about(self, name: str) -> object:
        """One of the facts that are written beside the events."""
        found = self._all("SELECT value FROM about WHERE name = ?", name)
        return found[0][0] if found else None

    def _list_below(self, path: str, begins: str) -> tuple[int, int]:
        """Put the steps below a path into a list; it goes from behind the first number to the
        second.

        A query that is read from bit by bit would do, but as long as it lasts this
        connection sees nothing new.
        """
        end = "SELECT coalesce(max(id), 0) FROM temp.listed"
        with self._lock:
            self._catch_up()
            ((before,),) = self._all(end)
            if begins:
                self._all(_LIST_NAMED, f"{escape_text(path)}/", begins, f"{begins}{_LAST}")
            else:
                self._all(_LIST, f"{escape_text(path)}/")
            ((last,),) = self._all(end)
        return before, last

    # ── the index ────────────────────────────────────────────────────────

    def _step_state(self, path: str) -> _Known:
        with self._lock:
            if ITEM not in path and path.count("/") < 2 and self._is_behind():
                return self._state_outside_items(path)
            self._catch_up()
            query = "SELECT number, ended, started FROM temp.known WHERE parent = ? AND name = ?"
            found = self._all(query, *split(path))
        return _Known(*found[0]) if found else _NOTHING

    def _is_behind(self) -> bool:
        """Would it be noticed if the index were continued now?"""
        return self.last() - self._indexed > self._many

    def _state_outside_items(self, path: str) -> _Known:
        """The same of a path outside of items, without an index of a million of them."""
        last = self.last()
        frame = self._frame_up_to(last)
        place = split(path)
        seen = [(mark.number, mark.what) for mark in frame if (mark.parent, mark.name) == place]
        for after, until, skipping in _stretches(frame, last):
            if not skipping:
                seen += self._all(_ENDS_AND_BEGINS, after, until, *place)
        begun = max((number for number, what in seen if what == STARTED), default=0)
        ended = max((number for number, what in seen if what == FINISHED), default=0)
        if not begun and not ended:
            return _NOTHING
        forgotten = max((mark.number for mark in frame if mark.drops(path)), default=0)
        counts = ended if ended > forgotten else None
        return _Known(counts if ended > begun else None, counts, int(begun > ended))

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
        forgotten = self._all(_FORGOTTEN, self._indexed, last)
        at = 0
        while at < len(forgotten):
            # A retry forgets many at once: of what nothing is between, the order does not matter.
            first, end = forgotten[at][0], at + 1
            while end < len(forgotten) and forgotten[end][0] == first + end - at:
                end += 1
            self._extend(first)
            self._forget(forgotten[at:end])
            at = end
        self._extend(last)

    def _forget(self, rows: Sequence[tuple[int, str, str, int | None]]) -> None:
        self._all(_FORGET, rows[0][0], rows[-1][0])
        below = (f"{parent}{name}" for _, parent, name, status in rows if status != ALONE)
        self._many_times(
            _FORGET_BELOW, ((f"{path}/", f"{path}0") for path in below)
        )  # `0` follows `/`

    def _extend(self, last: int) -> None:
        self._all(_EXTEND, self._indexed, last)
        self._indexed = last

    # ── rows ─────────────────────────────────────────────────────────────

    def _load_records(self, numbers: list[int]) -> list[StepRecord]:
        marks = ", ".join("?" * len(numbers))
        rows = self._all(f"SELECT {COLUMNS}, number FROM log WHERE number IN ({marks})", *numbers)
        found = {row[-1]: row[:-1] for row in rows}
        return [to_recorded(number, found[number], self._unpacking) for number in numbers]

    def _word(self, number: int) -> str:
        if number not in self._words:
            ((text,),) = self._all("SELECT text FROM words WHERE id = ?", number)
            self._words[number] = unescape_text(text)
        return self._words[number]

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            connection = self._open_connection()
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise to_journal_error(error, self.path) from error

    def _many_times(self, query: str, values: Iterable[tuple[str, ...]]) -> None:
        with self._lock:
            try:
                self._open_connection().executemany(query, values)
            except sqlite3.Error as error:
                raise to_journal_error(error, self.path) from error

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_to_read(self.path)
            with map_storage_errors(self.path):
                for statement in _INDEX:
                    self._connection.execute(statement)
        return self._connection


for _name, _method in list(vars(Reader).items()):
    # Each in the same way, so that none is forgotten: rows are looked at in nearly all of them.
    if callable(_method) and not _name.startswith("_"):
        setattr(Reader, _name, _careful(_method))
