"""Read a journal: events in their order, and steps by their paths.

The journal is a list of records. The places of the steps' records, and which of them are still
valid, are an index: each reader builds it in a temporary database when it first needs it, and
extends it later. So a run that is not queried pays nothing for it, and the index cannot contradict
the records. No query stays open, so an engine can always checkpoint.
"""

from __future__ import annotations

import os
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    HAS_USAGE,
    INVALIDATED,
    MOST_ITEMS,
    NOTE,
    RETRYING,
    RUN_ENDED,
    RUN_STARTED,
    STARTED,
    STATUS_NAMES,
    BriefEnd,
    Unpacking,
    escape_text,
    split,
    to_brief_end,
    to_event_record,
    to_json,
    to_step_record,
    to_usage,
    unescape_text,
)
from plait.adapters.store.run_info import RunInfo, require_records
from plait.adapters.store.schema import open_to_read
from plait.adapters.store.shapes import MISREAD, damage_error
from plait.core.errors import JournalError
from plait.core.hints import Any, Final, TypeAlias
from plait.core.records import dataclass
from plait.engine.events import RETRY_REASON, EventRecord, Usage
from plait.engine.journal import StepRecord, to_bitmap
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.engine.paths import (
    ITEM,
    MAIN_ITEMS,
    MAP,
    is_at_or_below,
    join_path,
    last_name,
    parent_path,
    range_below,
)

PAGE: Final = 200
"""Rows in memory at a time."""
MOST_NAMES: Final = 900
"""The number of names in a path that is searched for."""
MANY: Final = 20_000
"""The number of records above which a user notices the time to index or read them."""

_INDEX: Final = (
    "PRAGMA temp.journal_mode=OFF",  # an index that could not be extended is dropped
    "CREATE TEMP TABLE known(parent TEXT, name TEXT, position INTEGER, number INTEGER, ended INTEGER, "
    "started INTEGER, kind INTEGER, status INTEGER, PRIMARY KEY(parent, name)) WITHOUT ROWID",
    "CREATE TEMP TABLE listed(id INTEGER PRIMARY KEY, number INTEGER)",
)
_EXTEND: Final = (
    f"INSERT INTO temp.known SELECT parent, name, iif(type = {FINISHED}, position, NULL), "
    f"iif(type = {FINISHED}, number, NULL), iif(type = {FINISHED}, number, NULL), type = "
    f"{STARTED}, "
    "kind, status "
    f"FROM records WHERE number > ? AND number <= ? AND type IN ({STARTED}, {FINISHED}) "
    # Sorted, because the index then fills page after page. The last record of a step wins; `ended`
    # keeps the last end of a step that was started again.
    "ORDER BY parent, name, number ON CONFLICT(parent, name) DO UPDATE SET position = excluded.position, "
    "number = excluded.number, ended = coalesce(excluded.ended, ended), started = "
    "excluded.started, "
    "kind = excluded.kind, status = excluded.status"
)
_INVALIDATED: Final = (
    "SELECT number, parent, name, status FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {INVALIDATED} AND number > ? AND number <= ? ORDER BY number"
)
_INVALIDATE_BELOW: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, position = NULL WHERE parent >= ? AND parent "
    "< ?"
)
_INVALIDATE: Final = (
    "UPDATE temp.known SET number = NULL, ended = NULL, position = NULL "
    "WHERE (parent, name) IN (SELECT parent, name FROM records WHERE number >= ? AND number <= ?)"
)
_LIST: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND number NOT NULL ORDER BY position, number"
)
_LIST_NAMED: Final = (
    "INSERT INTO temp.listed(number) SELECT number FROM temp.known "
    "WHERE parent = ? AND name >= ? AND name < ? AND number NOT NULL ORDER BY position, number"
)
_LAST: Final = "\U0010ffff"
"""A text that sorts after every character of a name."""
_STARTED_IN: Final = (
    "SELECT parent || name FROM temp.known WHERE parent = ? AND name >= ? AND substr(name, 1, ?) = "
    "?"
)
_AFTER_ITEMS: Final = "item;"
"""A text that sorts after every name of an item: `;` follows `:`."""
_COUNT: Final = (
    "SELECT status, count(*) FROM temp.known WHERE number NOT NULL "
    f"AND kind = (SELECT id FROM strings WHERE text = 'item') AND instr(parent, '/{ITEM}') = 0 GROUP "
    "BY status"
)
_COUNT_OF_MAP: Final = (
    f"SELECT status, count(*) FROM temp.known WHERE parent = '{MAP}/' "
    f"AND name >= '{ITEM}' AND name < '{_AFTER_ITEMS}' AND number > ? GROUP BY status"
)
_COUNT_NAMES: Final = {"done": "successful", "failed": "failed", "skipped": "skipped"}
"""The field of a map's result that counts the items of a status, by status."""
_OF_ITEMS: Final = (
    f"(parent = '{MAP}/' AND name >= '{ITEM}' AND name < '{_AFTER_ITEMS}' "
    f"OR parent >= '{MAP}/{ITEM}' AND parent < '{MAP}/{_AFTER_ITEMS}')"
)
_SOME_MARKS: Final = (
    f"marks.type IN {tuple(range(len(EVENT_NAMES)))} AND marks.number > ? AND marks.number <= ?"
)
_MARKS: Final = f"SELECT number FROM marks WHERE {_SOME_MARKS} ORDER BY number"
_BRIEF_EVENTS: Final = (
    f"SELECT number, type = {FINISHED} AND status = {DONE} AND kind NOT IN "
    "(SELECT id FROM strings WHERE text IN ({})), at, parent, name, kind, title, duration "
    # The limit is half a batch of 2048 spans, so a batch ends with a page.
    "FROM records WHERE number > ? ORDER BY number LIMIT 1024"
)
_RUN_EVENTS: Final = (
    f"SELECT number FROM marks WHERE type IN ({RUN_STARTED}, {RUN_ENDED}) AND number <= ? "
    "ORDER BY number"
)
_STARTS_AND_ENDS_BETWEEN: Final = (
    f"SELECT number, parent, name, at, iif(type = {FINISHED}, duration, NULL) FROM records "
    f"WHERE number > ? AND number < ? AND type IN ({STARTED}, {FINISHED}) ORDER BY number LIMIT 10000"
)
_FRAME: Final = (
    "SELECT number, records.type, parent, name, status FROM marks JOIN records USING(number) "
    f"WHERE {_SOME_MARKS} AND (parent IS NULL OR NOT {_OF_ITEMS}) ORDER BY number"
)
_LAST_NOTES: Final = (
    f"SELECT number FROM marks JOIN records USING(number) WHERE marks.type = {NOTE} AND {_OF_ITEMS} "
    f"ORDER BY number DESC LIMIT {PAGE}"
)
_RETRY_COUNT: Final = (
    "SELECT count(*) FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {RETRYING} OR (marks.type = {INVALIDATED} AND body = ?)"
)
_RUN_STARTS: Final = (
    "SELECT number, at FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {RUN_STARTED} ORDER BY number"
)
# Outcomes are invalidated before the next run attempt starts, not by the attempt that ended.
_LAST_OF_ATTEMPT: Final = (
    f"SELECT at FROM records WHERE number < ? AND type != {INVALIDATED} "
    "ORDER BY number DESC LIMIT 1"
)
_RETRIED_ITEMS: Final = (
    "SELECT DISTINCT name FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {INVALIDATED} AND body = ? AND parent = ? AND number > ?"
)
_RETRIES: Final = (
    "SELECT number, name FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {RETRYING} AND parent = '{MAP}/'"
)
_EVENTS: Final = (
    f"SELECT number, {COLUMNS} FROM records WHERE number > ? AND number <= ? ORDER BY number LIMIT "
    f"{PAGE}"
)
_EVENTS_OF_NO_ITEM: Final = (
    f"SELECT number, {COLUMNS} FROM records WHERE number > ? AND number <= ? "
    f"AND (parent IS NULL OR NOT {_OF_ITEMS}) ORDER BY number LIMIT {PAGE}"
)
_INSIDE_ITEMS: Final = f"(parent >= '{MAP}/{ITEM}' AND parent < '{MAP}/{_AFTER_ITEMS}')"
_BODY: Final = (
    f"iif(status = {DONE} AND parent = '{MAP}/' AND name >= '{ITEM}' AND name < '{_AFTER_ITEMS}', "
    "NULL, body)"
)
_EVENTS_TO_FOLLOW: Final = (
    f"SELECT number, {COLUMNS.removesuffix('body')}{_BODY} FROM records WHERE number > ? "
    f"AND (parent IS NULL OR NOT {_INSIDE_ITEMS}) ORDER BY number LIMIT {PAGE}"
)
_ITEM_ROWS: Final = (
    "SELECT number, at, type, name, title, position, status, duration FROM records "
    "WHERE number > ? AND number <= ? AND (parent = ? AND name >= ? AND name < ? "
    f"AND type IN ({STARTED}, {FINISHED}, {INVALIDATED}, {RETRYING}) OR type = {RUN_STARTED}) "
    "ORDER BY number"
)
_INSIDE: Final = (
    "SELECT parent, title, type FROM records WHERE number > ? AND number <= ? "
    f"AND {_INSIDE_ITEMS} AND type IN ({STARTED}, {FINISHED}) ORDER BY number"
)
_FAILED: Final = (
    # Place and title come from the row with the largest number, as SQLite guarantees.
    "WITH ended AS (SELECT name, max(number) AS number, position, title FROM marks JOIN records "
    "USING(number) "
    f"WHERE marks.type = {FINISHED} AND status = {FAILED} AND parent = ? GROUP BY name), "
    "dropped AS (SELECT name, max(number) AS number FROM marks JOIN records USING(number) "
    f"WHERE marks.type = {INVALIDATED} AND parent = ? GROUP BY name) "
    "SELECT ended.number, name, title FROM ended LEFT JOIN dropped USING(name) "
    "WHERE ended.number > max(?, coalesce(dropped.number, 0)) ORDER BY position, ended.number"
)
"""The valid failures directly below a path, found by marks alone."""
_USAGE: Final = (
    "SELECT number, parent, name, usage FROM records WHERE number > ? AND number < ? AND usage IS NOT "
    "NULL "
    f"ORDER BY number LIMIT {PAGE}"
)
_LIST_FAILED: Final = (
    "SELECT number, known.name, title FROM temp.known JOIN records USING(number) "
    f"WHERE known.parent = ? AND known.status = {FAILED} ORDER BY known.position, number"
)
_DONE: Final = (
    "SELECT known.position FROM temp.known JOIN records USING(number) WHERE known.parent = ? "
    f"AND known.name >= ? AND known.name < ? AND known.number > ? AND known.status = {DONE}"
)
_DONE_AS: Final = " AND records.fingerprint IN (SELECT id FROM strings WHERE text IN ({}))"
_FIND: Final = (
    f"SELECT DISTINCT parent, name FROM records WHERE type IN ({STARTED}, {FINISHED}) "
    "AND (name = ? OR title = ? OR name = ? OR parent || name = ?)"
)
_FIND_PREFIX: Final = (
    f"SELECT DISTINCT parent, name FROM records WHERE type IN ({STARTED}, {FINISHED}) "
    "AND (substr(parent || name, 1, ?) = ? OR substr(name, 1, ?) = ? OR substr(name, 1, ?) = ?)"
)
_STARTS_AND_ENDS: Final = (
    "SELECT number, type FROM records WHERE number > ? AND number <= ? "
    f"AND type IN ({STARTED}, {FINISHED}) AND parent = ? AND name = ?"
)
_STARTS_AND_ENDS_BELOW: Final = (
    "SELECT number, name, position, type FROM records WHERE number > ? AND number <= ? "
    f"AND type IN ({STARTED}, {FINISHED}) AND parent = ? ORDER BY number"
)
_ENDED: Final = (
    "SELECT status, count(*) FROM records "
    f"WHERE parent = ? AND type = {FINISHED} AND name >= ? AND name < ? GROUP BY status"
)


def map_counts(outcome: Outcome) -> Mapping[str, int] | None:
    """Return the counts in a map's outcome, if it has any."""
    match outcome:
        case Succeeded(value) | Failed(Failure(output=value)) if isinstance(value, dict):
            named = {name: value.get(name) for name in _COUNT_NAMES.values()}
            return {name: count for name, count in named.items() if isinstance(count, int)} or None
    return None


@dataclass(frozen=True, slots=True)
class _StepState:
    """The state of a step in the index."""

    number: int | None
    """The number of its end; None if it has none, was started again or is invalid."""
    ended: int | None
    """The number of its end, also if it was started again."""
    started: int
    """1 if it was started and has not ended since."""


_NO_STATE: Final = _StepState(None, None, 0)


ItemEvent: TypeAlias = tuple[int, float, str, str, str, int, str, float]
"""Number, time, what happened, name, title, order, status if it ended, and duration."""
_HAPPENED: Final = {
    STARTED: "started",
    FINISHED: "ended",
    INVALIDATED: "invalidated",
    RETRYING: "retried",
    RUN_STARTED: "run started",
}


_End: TypeAlias = tuple[int, str, str | None]
"""The number of an end, and the name and the title of its step."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marked record outside the items of the map."""

    number: int
    type: int
    parent: str | None
    name: str | None
    status: int | None

    def invalidates(self, path: str) -> bool:
        """Does it invalidate the step at a path?"""
        return self.type == INVALIDATED and (self._path == path or self.invalidates_below(path))

    def invalidates_below(self, path: str) -> bool:
        """Does it invalidate all steps below a path?"""
        return (
            self.type == INVALIDATED and self.status != ALONE and is_at_or_below(path, self._path)
        )

    @property
    def _path(self) -> str:
        return unescape_text(f"{self.parent}{self.name}")


def _ranges(frame: Sequence[_Mark], last: int) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of records, after one number up to another; True if only the map's items run
    there.

    There are too many records of items to read all: in these ranges readers use the marks.
    """
    after, in_items, counted, others = 0, False, False, set[str | None]()
    for mark in frame:
        match mark:
            case _Mark(type=type) if type in (RUN_STARTED, RUN_ENDED):
                counted = False
                others.clear()
            case _Mark(parent="", name=name, type=type) if name == MAP:
                counted = type == COUNTED or (counted and type != FINISHED)
            case _Mark(parent="", name=name, type=type) if type == STARTED:
                others.add(name)
            case _Mark(parent="", name=name, type=type) if type == FINISHED:
                others.discard(name)
        now = counted and not others
        if now != in_items:
            yield after, mark.number, in_items
            after, in_items = mark.number, now
    yield after, last, in_items


def _item_around(path: str) -> str:
    """Return the item of the map that contains a step."""
    while (above := parent_path(path)) not in (MAP, ""):
        path = above
    return path


def _within(numbers: Sequence[int], after: int, until: int) -> Sequence[int]:
    return numbers[bisect_right(numbers, after) : bisect_right(numbers, until)]


_GENERATOR: Final = 0x20
"""The flag of a generator function; importing `inspect` for it is slow."""


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, which then raises JournalError for any error that a damaged row causes."""
    if method.__code__.co_flags & _GENERATOR:

        @wraps(method)
        def iterate(self: Reader, *args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from method(self, *args, **kwargs)
            except MISREAD as error:
                raise damage_error(self.path) from error

        return iterate

    @wraps(method)
    def call(self: Reader, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except MISREAD as error:
            raise damage_error(self.path) from error

    return call


class Reader:
    """Reads a journal; safe for threads, and while another process writes the journal.

    Every method raises JournalError for records that it cannot read.
    """

    def __init__(self, path: str, blobs: Blobs, *, many: int = MANY) -> None:
        self._many = many
        self.path = path
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._indexed = 0
        self._failures: tuple[str, int, list[_End]] = ("", 0, [])
        """A cache: a path, the last record at that time, and the failures below the path."""
        self._frame: list[_Mark] = []
        self._framed = 0
        """The last record that `_frame` covers."""
        self._strings: dict[int, str] = {}
        self._unpacking = Unpacking(self._string, blobs.get_blob, path)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._indexed = 0

    # ── events ───────────────────────────────────────────────────────────

    def last(self) -> int:
        """The number of the last record; 0 if there is none."""
        return int(self._all("SELECT coalesce(max(number), 0) FROM records")[0][0])

    def require_records(self, info: RunInfo | None, *, whole: bool) -> None:
        """Raise JournalError if records are missing or changed, according to `run.json`."""
        with self._lock:
            try:
                require_records(self._open_connection(), info, self.path, whole=whole)
            except sqlite3.Error as error:
                raise to_journal_error(error, self.path) from error

    def is_long(self) -> bool:
        """Would a user notice the time that it takes to read all of it?"""
        return self.last() > self._many

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        query = (
            f"SELECT number, {COLUMNS} FROM records WHERE number > ? ORDER BY number LIMIT {PAGE}"
        )
        while rows := self._all(query, after):
            for number, *row in rows:
                yield to_event_record(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def events_to_follow(self, after: int = 0) -> Iterator[EventRecord]:
        """Yield the events after one, for watchers, without those inside the items of the
        map.

        The end of an item that succeeded has no value, so that a busy map is cheap to
        watch.
        """
        while rows := self._all(_EVENTS_TO_FOLLOW, after):
            for number, *row in rows:
                yield to_event_record(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def item_rows(self, path: str, after: int, until: int) -> list[ItemEvent]:
        """Return what happened to the items directly below a path after an event, without
        values.

        It also includes starts of the run.
        """
        found = self._all(_ITEM_ROWS, after, until, f"{escape_text(path)}/", ITEM, _AFTER_ITEMS)
        return [
            (
                number,
                at,
                _HAPPENED[type],
                unescape_text(name) if name else "",
                unescape_text(title) if title else "",
                position or 0,
                STATUS_NAMES[status] if type == FINISHED else "",
                duration or 0.0,
            )
            for number, at, type, name, title, position, status, duration in found
        ]

    def ends(self, numbers: Sequence[int]) -> list[StepRecord]:
        """The ends of steps with these numbers."""
        return self._load_records(list(numbers)) if numbers else []

    def titles_inside_items(self, after: int) -> dict[str, str]:
        """Return the title of the step that started last inside each item of the map, by
        item path.
        """
        found: dict[str, str] = {}
        for parent, title, type in self._all(_INSIDE, after, self.last()):
            if type == STARTED:
                found[_item_around(unescape_text(parent).removesuffix("/"))] = unescape_text(
                    title or ""
                )
        return found

    def brief_events(self, after: int, whole: Collection[str]) -> Iterator[EventRecord | BriefEnd]:
        """Yield events after one; a successful step whose kind is not in `whole` has only
        the brief end.

        This takes a fifth of the time: most of it is decoding values.
        """
        query = _BRIEF_EVENTS.format(", ".join("?" * len(whole)))
        kinds = [escape_text(kind) for kind in whole]
        while rows := self._all(query, *kinds, after):
            others = self._events_at([row[0] for row in rows if not row[1]])
            for row in rows:
                yield to_brief_end(row, self._unpacking) if row[1] else next(others)
            after = rows[-1][0]

    def run_events(self, until: int) -> Iterator[EventRecord]:
        """The starts and ends of the run up to an event."""
        return self._events_at([number for (number,) in self._all(_RUN_EVENTS, until)])

    def starts_and_ends(self, after: int, before: int) -> Iterator[tuple[str, float, bool]]:
        """Yield, between two events: the path of a step, its start, and whether this is its end."""
        while rows := self._all(_STARTS_AND_ENDS_BETWEEN, after, before):
            for _, parent, name, at, duration in rows:
                yield unescape_text(parent + name), at - (duration or 0.0), duration is not None
            after = rows[-1][0]

    def usage_before(self, before: int) -> Iterator[tuple[str, Usage]]:
        """Yield the usage in records before this one, by path."""
        if not self.has_string([HAS_USAGE]):
            return
        after = 0
        while rows := self._all(_USAGE, after, before):
            for _, parent, name, text in rows:
                if usage := to_usage(text, self.path):
                    yield unescape_text(parent + name), usage
            after = rows[-1][0]

    def outline(self, items: Iterable[int] | None = None) -> Iterator[EventRecord]:
        """Yield the events, but only the marked ones while the map's items run.

        `items`: of the map's items, yield only the events with these numbers.
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
        for after, until, in_items in _ranges(frame, last):
            inside = _within(marks, after, until)
            if in_items:
                yield from self._events_at(sorted({*inside, *_within(outside, after, until)}))
            elif items is None:
                yield from self._between(after, until, _EVENTS)
            else:
                others = self._between(after, until, _EVENTS_OF_NO_ITEM)
                yield from merge(others, self._events_at(inside), key=lambda one: one.number)

    def short_outline(self, most: int) -> Iterator[EventRecord]:
        """Yield the outline with at most `most` failed items: the first by order, the last
        by time.
        """
        failed = self._failure_numbers(MAP)
        shown = {last_name(record.path) for record in self._load_records(failed[:most])}
        retries = [number for number, name in self._all(_RETRIES) if unescape_text(name) in shown]
        notes = [number for (number,) in self._all(_LAST_NOTES)]
        yield from self.outline({*failed[:most], *sorted(failed)[-most:], *retries, *notes})

    def _frame_up_to(self, last: int) -> list[_Mark]:
        """The marks outside the items of the map."""
        with self._lock:
            self._frame += [_Mark(*row) for row in self._all(_FRAME, self._framed, last)]
            self._framed = max(self._framed, last)
            return self._frame[: bisect_right(self._frame, last, key=lambda mark: mark.number)]

    def _events_at(self, numbers: Sequence[int]) -> Iterator[EventRecord]:
        for at in range(0, len(numbers), PAGE):
            some = numbers[at : at + PAGE]
            marks = ", ".join("?" * len(some))
            query = (
                f"SELECT number, {COLUMNS} FROM records WHERE number IN ({marks}) ORDER BY number"
            )
            for number, *row in self._all(query, *some):
                yield to_event_record(number, tuple(row), self._unpacking)

    def _between(self, after: int, last: int, query: str) -> Iterator[EventRecord]:
        while after < last and (rows := self._all(query, after, last)):
            for number, *row in rows:
                yield to_event_record(number, tuple(row), self._unpacking)
            after = rows[-1][0]

    def find_steps(self, name: str) -> list[str]:
        """Return the paths of steps with this path, name, key or title, or with one that
        begins with it.
        """
        stored = escape_text(name)
        key = f"{ITEM}{stored}"
        found = self._all(_FIND, stored, stored, key, stored)
        if not found:
            found = self._all(_FIND_PREFIX, len(stored), stored, len(stored), stored, len(key), key)
        return [unescape_text(parent + name) for parent, name in found]

    def events_at(self, paths: Iterable[str]) -> Iterator[EventRecord]:
        """Yield the events of the steps at these paths, of the steps around and inside
        them, and run starts.
        """
        tests, values = [f"type = {RUN_STARTED}"], list[str]()
        around: set[tuple[str, str]] = set()
        for path in paths:
            if path.count("/") > MOST_NAMES:
                continue  # SQLite would refuse so many values; no step is there
            tests.append("parent >= ? AND parent < ?")
            values += range_below(escape_text(path))
            above = path
            while above:
                around.add(split(above))
                above = parent_path(above)
        if around:  # as a list, since SQLite refuses a thousand conditions
            tests.append(f"(parent, name) IN (VALUES {', '.join(['(?, ?)'] * len(around))})")
            for place in around:
                values += place
        query = f"SELECT number, {COLUMNS} FROM records WHERE {' OR '.join(tests)} ORDER BY number"
        for number, *row in self._all(query, *values):
            yield to_event_record(number, tuple(row), self._unpacking)

    def retried_items(self, map: str, after: int) -> list[str]:
        """The paths of the items that `plait retry` invalidated after an event."""
        parent = f"{escape_text(map)}/"
        found = self._all(_RETRIED_ITEMS, to_json(RETRY_REASON), parent, after)
        return [unescape_text(parent + name) for (name,) in found]

    def count_outcomes(self, map: str) -> dict[str, int]:
        """Return the number of recorded ends of items by status; an item that ran again
        counts twice.
        """
        found = self._all(_ENDED, f"{escape_text(map)}/", ITEM, _AFTER_ITEMS)
        return {STATUS_NAMES[status]: count for status, count in found}

    def retries(self) -> int:
        """Return the number of attempts that followed a failed one, by policy or by `plait
        retry`.
        """
        return int(self._all(_RETRY_COUNT, to_json(RETRY_REASON))[0][0])

    def has_string(self, strings: Iterable[str]) -> bool:
        """Is one of these strings, such as kinds of steps, in the journal?"""
        stored = [escape_text(text) for text in strings]
        marks = ", ".join("?" * len(stored))
        return bool(self._all(f"SELECT 1 FROM strings WHERE text IN ({marks}) LIMIT 1", *stored))

    def newest(self, type: int) -> tuple[int, float, str | None] | None:
        """Return number, time and title of the newest record of a marked type."""
        query = (
            "SELECT number, at, title FROM records "
            "WHERE number = (SELECT max(number) FROM marks WHERE type = ?)"
        )
        found = self._all(query, type)
        return found[0] if found else None

    def work_time(self) -> tuple[float, float | None]:
        """Return the seconds of all run attempts, and the time of the last record of the
        last one.

        The time between two run attempts does not count. A killed attempt ends with its
        last record, or later: `last_output_at`.
        """
        seconds, last_at = 0.0, None
        for began, last_at in self.run_attempts():
            seconds += max(0.0, last_at - began)
        return round(seconds, 6), last_at

    def run_attempts(self) -> list[tuple[float, float]]:
        """The times of the first and the last record of each run attempt."""
        starts = self._all(_RUN_STARTS)
        ends = [number for number, _ in starts[1:]] + [self.last() + 1]
        return [
            (began, float(self._all(_LAST_OF_ATTEMPT, end)[0][0]))
            # there are none if a run was only made
            for (_, began), end in zip(starts, ends, strict=False)
        ]

    def last_output_at(self) -> float | None:
        """Return when a step of the last run attempt last printed something; None if that
        is unknown.

        It is the time of a file. A copied folder has other times; there, the lock file,
        which an attempt writes first, is newer than the attempt.
        """
        from plait.engine.live_output import FILE

        started, folder = self.newest(RUN_STARTED), os.path.dirname(self.path)
        try:
            locked_at = os.stat(os.path.join(folder, "lock")).st_mtime
            printed_at = os.stat(os.path.join(folder, FILE)).st_mtime
        except OSError:
            return None
        return printed_at if started is not None and locked_at <= started[1] else None

    # ── steps ────────────────────────────────────────────────────────────

    def step(self, path: str) -> StepRecord | None:
        number = self._step_state(path).number
        return None if number is None else self._load_records([number])[0]

    def was_ever_started(self, path: str) -> bool:
        return self._step_state(path) is not _NO_STATE

    def started_in(self, path: str, name_prefix: str = "") -> Iterator[str]:
        names = escape_text(name_prefix)
        with self._lock:
            self._catch_up()
            found = self._all(_STARTED_IN, f"{escape_text(path)}/", names, len(names), names)
        return (unescape_text(one) for (one,) in found)

    def last_result(self, path: str) -> StepRecord | None:
        number = self._step_state(path).ended
        return None if number is None else self._load_records([number])[0]

    def steps_in(self, path: str, name_prefix: str = "") -> Iterator[StepRecord]:
        if "/" not in path and path != MAP and not name_prefix and self._is_behind():
            yield from self._steps_outside_map(path)
            return
        before, last = self._list_below(path, escape_text(name_prefix))
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
        """The steps directly below a path outside the map, without indexing a million items."""
        last = self.last()
        frame = self._frame_up_to(last)
        ended: dict[str, tuple[int, int]] = {}
        for after, until, in_items in _ranges(frame, last):
            if not in_items:
                found = self._all(_STARTS_AND_ENDS_BELOW, after, until, f"{escape_text(path)}/")
                for number, name, position, type in found:
                    if type == FINISHED:
                        ended[name] = (position or 0, number)
                    else:
                        ended.pop(name, None)  # it was started again
        invalidated = [mark for mark in frame if mark.type == INVALIDATED]
        valid = [
            one
            for name, one in ended.items()
            if not any(
                mark.number > one[1] and mark.invalidates(join_path(path, unescape_text(name)))
                for mark in invalidated
            )
        ]
        numbers = [number for _, number in sorted(valid)]
        for at in range(0, len(numbers), PAGE):
            yield from self._load_records(numbers[at : at + PAGE])

    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        """The steps directly below a path that failed, by position."""
        numbers = self._failure_numbers(path, after)
        for at in range(0, len(numbers), PAGE):
            yield from self._load_records(numbers[at : at + PAGE])

    def failure_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        """Yield only the paths and titles of `failures_in`: much less must be read."""
        for _, name, title in self._failures_below(path, after):
            yield join_path(path, unescape_text(name)), unescape_text(title or "")

    def count_failures(self, path: str, *, after: int = 0) -> int:
        return len(self._failures_below(path, after))

    def _failure_numbers(self, path: str, after: int = 0) -> list[int]:
        return [number for number, _, _ in self._failures_below(path, after)]

    def _failures_below(self, path: str, after: int) -> list[_End]:
        with self._lock:
            last = self.last()
            if self._failures[:2] != (path, last):
                self._failures = (path, last, self._find_failures(path, last))
            found = self._failures[2]
        return [one for one in found if one[0] > after] if after else found

    def _find_failures(self, path: str, last: int) -> list[_End]:
        above = (mark.number for mark in self._frame_up_to(last) if mark.invalidates_below(path))
        below = f"{escape_text(path)}/"
        found: list[_End] = self._all(_FAILED, below, below, max(above, default=0))
        counts = self.final_counts(path)
        if counts is not None and len(found) == counts.get("failed"):
            return found
        # Marks are not enough: an item ran again without being invalidated, or the map still runs.
        self._catch_up()
        return self._all(_LIST_FAILED, f"{escape_text(path)}/")

    def final_counts(self, map: str) -> Mapping[str, int] | None:
        """The counts in the result of a map that has ended."""
        record = self.step(map)
        return None if record is None else map_counts(record.outcome)

    def completed_items(
        self, path: str, fingerprints: Collection[str] | None, *, after: int = 0
    ) -> bytes:
        items = (f"{escape_text(path)}/", ITEM, _AFTER_ITEMS, after)
        with self._lock:
            self._catch_up()
            if fingerprints is None:
                found = self._all(_DONE, *items)
            else:
                texts = map(escape_text, fingerprints)
                query = _DONE + _DONE_AS.format(", ".join("?" * len(fingerprints)))
                found = self._all(query, *items, *texts)
        positions = [position for (position,) in found]
        if positions and not 0 <= min(positions) <= max(positions) < MOST_ITEMS:
            raise damage_error(self.path)
        return to_bitmap(positions)

    def is_unfinished(self, path: str) -> bool:
        return bool(self._step_state(path).started)

    def find_unfinished(self) -> Iterator[str]:
        """The paths of steps that were started and have no recorded end."""
        with self._lock:
            self._catch_up()
            found = self._all("SELECT parent || name FROM temp.known WHERE started")
        yield from sorted(unescape_text(path) for (path,) in found)

    def item_counts(self) -> dict[str, int]:
        """Return the number of ended items by status, without items inside other items.

        With a map, only the items that it selected last count.
        """
        counts = self.final_counts(MAP)
        if counts is not None:
            return {
                status: counts[name] for status, name in _COUNT_NAMES.items() if counts.get(name)
            }
        selected = self._step_state(MAIN_ITEMS).ended
        with self._lock:
            self._catch_up()
            found = self._all(_COUNT) if selected is None else self._all(_COUNT_OF_MAP, selected)
        return {STATUS_NAMES[status]: count for status, count in found}

    def get_property(self, name: str) -> object:
        """A value that is stored beside the records: `facts`, `number`, `created` or `counts`."""
        found = self._all("SELECT value FROM properties WHERE name = ?", name)
        return found[0][0] if found else None

    def _list_below(self, path: str, name_prefix: str) -> tuple[int, int]:
        """List the steps below a path in `listed`, after the first id up to the second.

        An open query would work too, but while it is open this connection sees no new
        records.
        """
        end = "SELECT coalesce(max(id), 0) FROM temp.listed"
        with self._lock:
            self._catch_up()
            ((before,),) = self._all(end)
            if name_prefix:
                self._all(
                    _LIST_NAMED, f"{escape_text(path)}/", name_prefix, f"{name_prefix}{_LAST}"
                )
            else:
                self._all(_LIST, f"{escape_text(path)}/")
            ((last,),) = self._all(end)
        return before, last

    # ── the index ────────────────────────────────────────────────────────

    def _step_state(self, path: str) -> _StepState:
        with self._lock:
            if ITEM not in path and path.count("/") < 2 and self._is_behind():
                return self._state_outside_items(path)
            self._catch_up()
            query = "SELECT number, ended, started FROM temp.known WHERE parent = ? AND name = ?"
            found = self._all(query, *split(path))
        return _StepState(*found[0]) if found else _NO_STATE

    def _is_behind(self) -> bool:
        """Would a user notice the time to extend the index?"""
        return self.last() - self._indexed > self._many

    def _state_outside_items(self, path: str) -> _StepState:
        """`_step_state` of a path outside items, without indexing a million of them."""
        last = self.last()
        frame = self._frame_up_to(last)
        columns = split(path)
        seen = [(mark.number, mark.type) for mark in frame if (mark.parent, mark.name) == columns]
        for after, until, in_items in _ranges(frame, last):
            if not in_items:
                seen += self._all(_STARTS_AND_ENDS, after, until, *columns)
        started = max((number for number, type in seen if type == STARTED), default=0)
        ended = max((number for number, type in seen if type == FINISHED), default=0)
        if not started and not ended:
            return _NO_STATE
        invalidated = max((mark.number for mark in frame if mark.invalidates(path)), default=0)
        valid = ended if ended > invalidated else None
        return _StepState(valid if ended > started else None, valid, int(started > ended))

    def _catch_up(self) -> None:
        last = self.last()
        if last == self._indexed:
            return
        try:
            self._index_up_to(last)
        except JournalError:
            self.close()  # drops the index, which may be half extended
            raise

    def _index_up_to(self, last: int) -> None:
        rows = self._all(_INVALIDATED, self._indexed, last)
        at = 0
        while at < len(rows):
            # A retry invalidates many steps at once, so adjacent records are handled together.
            first, end = rows[at][0], at + 1
            while end < len(rows) and rows[end][0] == first + end - at:
                end += 1
            self._extend(first)
            self._invalidate(rows[at:end])
            at = end
        self._extend(last)

    def _invalidate(self, rows: Sequence[tuple[int, str, str, int | None]]) -> None:
        self._all(_INVALIDATE, rows[0][0], rows[-1][0])
        below = (f"{parent}{name}" for _, parent, name, status in rows if status != ALONE)
        with self._lock:
            try:
                self._open_connection().executemany(_INVALIDATE_BELOW, map(range_below, below))
            except sqlite3.Error as error:
                raise to_journal_error(error, self.path) from error

    def _extend(self, last: int) -> None:
        self._all(_EXTEND, self._indexed, last)
        self._indexed = last

    # ── rows ─────────────────────────────────────────────────────────────

    def _load_records(self, numbers: list[int]) -> list[StepRecord]:
        marks = ", ".join("?" * len(numbers))
        rows = self._all(
            f"SELECT {COLUMNS}, number FROM records WHERE number IN ({marks})", *numbers
        )
        found = {row[-1]: row[:-1] for row in rows}
        return [to_step_record(number, found[number], self._unpacking) for number in numbers]

    def _string(self, number: int) -> str:
        if number not in self._strings:
            ((text,),) = self._all("SELECT text FROM strings WHERE id = ?", number)
            self._strings[number] = unescape_text(text)
        return self._strings[number]

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            connection = self._open_connection()
            try:
                return connection.execute(query, values).fetchall()
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
    # In a loop, so that no method is missed: nearly all of them read rows.
    if callable(_method) and not _name.startswith("_"):
        setattr(Reader, _name, _checked(_method))
