"""The journal port, and a journal in memory.

When `append` returns, the event survives a crash of this process; when `sync` returns, all that was
appended survives a power cut, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from threading import Lock

from plait.core.hints import Protocol
from plait.core.records import dataclass, field
from plait.engine.events import (
    Event,
    EventRecord,
    PendingHooks,
    StepFinished,
    StepInvalidated,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import is_at_or_below, is_item, parent_path


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A finished step in the journal."""

    path: str
    fingerprint: str
    outcome: Outcome
    order: int
    duration: float
    title: str = ""
    used: Usage | None = None
    """What the step has used, without its children."""
    pending: PendingHooks | None = None
    """The hooks to notify of its end."""
    number: int = field(default=0, compare=False)
    """The number of its end event; later events have larger numbers."""


class Journal(Protocol):
    """The events of one run.  Safe to use from many threads."""

    def append(self, *events: Event) -> None:
        """Record events, in one transaction."""

    def sync(self) -> None: ...

    def prepare(self, fingerprints: Iterable[str]) -> None:
        """Prepare to record steps with these fingerprints."""

    def step(self, path: str) -> StepRecord | None:
        """Return the finished step at a path, unless it was invalidated or started again."""

    def steps_in(self, path: str, name_prefix: str = "") -> Iterator[StepRecord]:
        """Yield the finished steps directly below a path by `order`, if their name has the prefix."""

    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        """Yield the failed ones among them; this uses an index, so a million items are no problem."""

    def failure_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        """Yield the paths and titles of the same steps."""

    def completed_items(
        self, path: str, fingerprints: Collection[str] | None, *, after: int = 0
    ) -> bytes:
        """Return a bitmap by `order` of the items below a path that succeeded after an event.

        `fingerprints` None: of any fingerprint.
        """

    def was_ever_started(self, path: str) -> bool:
        """Was this step ever started, even if the record no longer counts?"""

    def started_in(self, path: str, name_prefix: str = "") -> Iterator[str]:
        """Yield the paths of all such steps directly below a path, if their name has the prefix."""

    def last_result(self, path: str) -> StepRecord | None:
        """Return the last end of a step unless it was invalidated, even if it was started again."""

    def is_unfinished(self, path: str) -> bool:
        """Was this step started, and its end not recorded since?"""

    def find_unfinished(self) -> Iterator[str]:
        """Yield the paths of all unfinished steps, sorted."""

    def usage_before(self, before: int) -> Iterator[tuple[str, Usage]]:
        """Yield path and usage of each event before a number; a path may occur several times."""

    def is_fresh(self) -> bool:
        """Was the journal empty when it was opened?"""

    def last(self) -> int:
        """Return the number of the last event; 0: there is none."""

    def events(self, after: int = 0) -> Iterator[EventRecord]: ...

    def put_blob(self, data: bytes) -> str:
        """Store large data; return the name for `get_blob`."""

    def get_blob(self, name: str) -> bytes: ...


class MemoryJournal:
    """A journal for dry runs and tests."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._events: list[EventRecord] = []
        self._finished: dict[str, StepRecord] = {}
        self._ends: dict[str, StepRecord] = {}
        self._started: set[str] = set()
        self._begun: dict[str, None] = {}
        self._data: dict[str, bytes] = {}
        self._fresh = True
        self._before = 0
        """The number of events in the journal below."""

    def append(self, *events: Event) -> None:
        with self._lock:
            for event in events:
                self._events.append(EventRecord(self.last() + 1, time.time(), event))
                if isinstance(event, StepStarted | StepFinished):
                    self._begun[event.path] = None
                match event:
                    case StepStarted(path=path):
                        self._started.add(path)
                        self._finished.pop(path, None)
                    case StepFinished():
                        self._started.discard(event.path)
                        known = to_step_record(event, self.last())
                        self._finished[event.path] = self._ends[event.path] = known
                    case StepInvalidated(path=path, below=below):
                        for gone in [
                            p
                            for p in self._ends
                            if is_at_or_below(p, path) and (below or p == path)
                        ]:
                            self._finished.pop(gone, None)
                            del self._ends[gone]

    def sync(self) -> None:
        """Nothing to do in memory."""

    def prepare(self, fingerprints: Iterable[str]) -> None:
        """Nothing to prepare in memory."""

    def step(self, path: str) -> StepRecord | None:
        return self._finished.get(path)

    def steps_in(self, path: str, name_prefix: str = "") -> Iterator[StepRecord]:
        prefix = f"{path}/"
        with self._lock:
            found = [
                known
                for known in self._finished.values()
                if known.path.startswith(prefix + name_prefix)
                and "/" not in known.path[len(prefix) :]
            ]
        yield from sorted(found, key=lambda known: known.order)

    def failures_in(self, path: str, *, after: int = 0) -> Iterator[StepRecord]:
        failed = (known for known in self.steps_in(path) if isinstance(known.outcome, Failed))
        return (known for known in failed if known.number > after)

    def failure_titles(self, path: str, *, after: int = 0) -> Iterator[tuple[str, str]]:
        return ((known.path, known.title) for known in self.failures_in(path, after=after))

    def completed_items(
        self, path: str, fingerprints: Collection[str] | None, *, after: int = 0
    ) -> bytes:
        done = [
            known.order
            for known in self.steps_in(path)
            if is_item(known.path)
            and (fingerprints is None or known.fingerprint in fingerprints)
            and known.number > after
            and isinstance(known.outcome, Succeeded)
        ]
        return to_bitmap(done)

    def was_ever_started(self, path: str) -> bool:
        return path in self._begun

    def started_in(self, path: str, name_prefix: str = "") -> Iterator[str]:
        first = f"{path}/{name_prefix}"
        return (one for one in [*self._begun] if one.startswith(first) and parent_path(one) == path)

    def last_result(self, path: str) -> StepRecord | None:
        return self._ends.get(path)

    def is_unfinished(self, path: str) -> bool:
        return path in self._started

    def find_unfinished(self) -> Iterator[str]:
        yield from sorted(self._started)

    def usage_before(self, before: int) -> Iterator[tuple[str, Usage]]:
        for stamped in self._events[: max(before - 1 - self._before, 0)]:
            event = stamped.event
            if isinstance(event, StepFinished | StepRetrying) and event.used:
                yield event.path, event.used

    def is_fresh(self) -> bool:
        return self._fresh

    def reopen(self) -> MemoryJournal:
        """Return the same journal as a resumed run sees it."""
        self._fresh = False
        return self

    def last(self) -> int:
        return self._before + len(self._events)

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        yield from self._events[max(after - self._before, 0) :]

    def put_blob(self, data: bytes) -> str:
        from plait.core.digests import sha256_hex

        name = sha256_hex(data)
        self._data[name] = data
        return name

    def get_blob(self, name: str) -> bytes:
        return self._data[name]


class Overlay(MemoryJournal):
    """A journal on top of another one, which it does not change: for dry runs."""

    def __init__(self, below: Journal) -> None:
        super().__init__()
        self._below = below
        self._fresh = False
        self._before = below.last()
        self._gone: dict[str, bool] = {}
        """Invalidated paths: are the paths below them invalid, too?"""

    def append(self, *events: Event) -> None:
        super().append(*events)
        for event in events:
            if isinstance(event, StepInvalidated):
                self._gone[event.path] = event.below or self._gone.get(event.path, False)

    def _is_gone(self, path: str) -> bool:
        """Was a record of the journal below invalidated here?"""
        if path in self._gone:
            return True
        while path := parent_path(path):
            if self._gone.get(path):
                return True
        return False

    def step(self, path: str) -> StepRecord | None:
        return super().step(path) or (None if self._is_gone(path) else self._below.step(path))

    def steps_in(self, path: str, name_prefix: str = "") -> Iterator[StepRecord]:
        mine = {known.path: known for known in super().steps_in(path, name_prefix)}
        for known in self._below.steps_in(path, name_prefix):
            if known.path in mine or not self._is_gone(known.path):
                yield mine.pop(known.path, known)
        yield from mine.values()

    def was_ever_started(self, path: str) -> bool:
        return self._below.was_ever_started(path)

    def started_in(self, path: str, name_prefix: str = "") -> Iterator[str]:
        return self._below.started_in(path, name_prefix)

    def last_result(self, path: str) -> StepRecord | None:
        return self._below.last_result(path)

    def is_unfinished(self, path: str) -> bool:
        return self._below.is_unfinished(path)

    def find_unfinished(self) -> Iterator[str]:
        return self._below.find_unfinished()

    def get_blob(self, name: str) -> bytes:
        return self._data[name] if name in self._data else self._below.get_blob(name)


def to_step_record(event: StepFinished, number: int = 0) -> StepRecord:
    return StepRecord(
        event.path,
        event.fingerprint,
        event.outcome,
        event.order,
        event.duration,
        event.title,
        event.used,
        event.pending,
        number,
    )


def record_number(known: StepRecord | None) -> int:
    """Return the number of a step's end; 0, before all others, if there is none."""
    return 0 if known is None else known.number


def to_bitmap(orders: Collection[int]) -> bytes:
    """Return one byte for each order up to the largest: 1 for each given order."""
    marks = bytearray(max(orders, default=-1) + 1)
    for order in orders:
        marks[order] = 1
    return bytes(marks)


def in_bitmap(marks: bytes, order: int) -> bool:
    """Is an order set in a bitmap of `to_bitmap`?"""
    return order < len(marks) and marks[order] == 1
