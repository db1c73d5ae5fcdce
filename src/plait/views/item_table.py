"""The items of one map in a table by their order: quick to filter and to search with 100,000 items.

It is filled from rows without values, and later extended with those that are new.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass
from plait.engine.paths import join_path, last_name, name_key, parent_path

if TYPE_CHECKING:
    from plait.views.run_tree import RunClock

ItemState: TypeAlias = Literal["waiting", "running", "done", "failed", "skipped", "interrupted"]
STATES: Final[tuple[ItemState, ...]] = (
    "waiting",
    "running",
    "done",
    "failed",
    "skipped",
    "interrupted",
)
_MARK: Final = {state: mark for mark, state in enumerate(STATES)}
_RUNNING: Final = _MARK["running"]
MOST_ITEMS: Final = 1 << 22
"""Items from this order on are not listed."""


ItemEvent: TypeAlias = tuple[int, float, str, str, str, int, str, float]
"""Number, time, what happened (started, ended, invalidated, retried, run started), name of the item,
title, order, status if it ended (done, failed, skipped), and duration.
"""


ItemSpan: TypeAlias = tuple[float, float | None, Literal[ItemState, "retrying"]]
"""An attempt of an item, or the wait for its next one: start, recorded end, state."""


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item, as one line shows it."""

    order: int
    path: str
    """Empty if it has not started."""
    title: str
    state: ItemState
    duration: float | None
    since: float | None
    """When it started, if it runs."""
    attempts: int
    """Also those that the journal counts, and whose times it does not have."""
    end: int
    """The number of its last end; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class ItemWindow:
    """Some of the items that a filter selects."""

    rows: Sequence[ItemRow]
    offset: int
    matching: int
    total: int


class ItemTable:
    """The items directly below one path."""

    def __init__(self, path: str, total: int = 0) -> None:
        self.path = path
        self.version = 0
        """It changes when anything in the table changes."""
        self._total = total
        self._used = 0
        """The largest order of an item that has started, plus one."""
        self._states = bytearray()
        self._names: list[str] = []
        self._titles: list[str] = []
        self._folded: list[str] = []
        self._began = array("d")
        """When the last attempt of an item began, or the wait for its next one."""
        self._ended = array("d")
        self._durations = array("d")
        self._ends = array("q")
        self._timeless: dict[str, int] = {}
        """By name: failed attempts whose start is not recorded."""
        self._earlier: dict[int, list[ItemSpan]] = {}
        """By order: the attempts before the last one."""
        self._waiting: set[int] = set()
        """The items that wait for their next attempt."""
        self._orders: dict[str, int] = {}
        self._found: tuple[object, list[int]] = (None, [])
        """Cache: what was asked for, and the orders that match."""

    def __len__(self) -> int:
        return max(self._total, self._used)

    def set_total(self, total: int) -> None:
        if total != self._total:
            self._total = total
            self.version += 1

    def clear(self) -> None:
        """The map has selected its items anew."""
        total, version = self._total, self.version
        self.__init__(self.path, total)  # type: ignore[misc]  # all is empty again
        self.version = version + 1

    def add(self, events: Iterable[ItemEvent]) -> None:
        """Take in events of the items, in their order."""
        for number, at, what, name, title, order, status, duration in events:
            self.version += 1
            if what == "run started":
                self.interrupt()
                continue
            if what in ("invalidated", "retried"):
                self._end_attempt(name, at, what)
                continue
            if not 0 <= order < MOST_ITEMS:
                continue
            if order >= self._used:
                if order >= len(self._states):
                    self._extend(order + 1 - len(self._states))
                self._used = order + 1
            if self._names[order] != name or self._titles[order] != title:
                self._names[order], self._titles[order] = name, title
                self._folded[order] = title.casefold()
                self._orders[name] = order
            if what == "started":
                self._keep_attempt(order, at)
                self._states[order], self._began[order] = _RUNNING, at
                continue
            if self._states[order] != _RUNNING or order in self._waiting:
                self._keep_attempt(order, at)
            self._states[order] = _MARK[status]  # type: ignore[index]
            # The duration is that of all attempts since the first one of this run attempt.
            self._began[order] = max(at - duration, self._kept_until(order))
            self._ended[order], self._durations[order], self._ends[order] = at, duration, number

    def _end_attempt(self, name: str, at: float, what: str) -> None:
        order = self._orders.get(name)
        if what == "invalidated":
            if order is not None:
                self._keep_attempt(order, at)
                self._states[order] = _MARK["waiting"]
            return
        if order is None or self._states[order] != _RUNNING:
            self._timeless[name] = self._timeless.get(name, 0) + 1
            return
        self._earlier.setdefault(order, []).append((self._began[order], at, "failed"))
        self._began[order] = at
        self._waiting.add(order)

    def _keep_attempt(self, order: int, at: float) -> None:
        """Something new follows the last attempt, or the wait after it."""
        span = self._last_span(order)
        if span is None:
            return
        start, end, state = span
        if state == "retrying":
            end = at
        elif state == "running":  # its process has died
            state = "interrupted"
        self._earlier.setdefault(order, []).append((start, end, state))
        self._waiting.discard(order)

    def _kept_until(self, order: int) -> float:
        spans = self._earlier.get(order)
        return spans[-1][1] or 0.0 if spans else 0.0

    def _last_span(self, order: int) -> ItemSpan | None:
        state, start = STATES[self._states[order]], self._began[order]
        if state == "waiting":
            return None
        if order in self._waiting:
            return start, None, "retrying"
        return start, None if state in ("running", "interrupted") else self._ended[order], state

    def _extend(self, more: int) -> None:
        more = max(more, len(self._states) // 8)
        self._states.extend(bytes(more))
        for texts in (self._names, self._titles, self._folded):
            texts.extend([""] * more)
        for numbers in (self._began, self._ended, self._durations, self._ends):
            numbers.frombytes(bytes(8 * more))

    def _set(self, order: int | None, state: ItemState) -> None:
        if order is not None:
            self._states[order] = _MARK[state]

    def interrupt(self) -> None:
        """The run attempt is over: what was running was cut short."""
        if _RUNNING in self._states:
            self._states = self._states.replace(bytes([_RUNNING]), bytes([_MARK["interrupted"]]))
            self.version += 1

    # ── questions ────────────────────────────────────────────────────────

    def count(self, state: ItemState) -> int:
        found = self._states.count(_MARK[state], 0, self._used)
        return found + len(self) - self._used if state == "waiting" else found

    def order(self, path: str) -> int | None:
        """The order of the item at a path; None if it has not started."""
        return self._orders.get(last_name(path)) if parent_path(path) == self.path else None

    def running(self) -> Iterator[ItemRow]:
        at = self._states.find(_RUNNING)
        while at >= 0:
            yield self._row(at)
            at = self._states.find(_RUNNING, at + 1)

    def window(self, offset: int, limit: int, *, state: str = "", search: str = "") -> ItemWindow:
        """Items in their order; `state`: only those; `search`: only those with it in the title."""
        if not state and not search:
            last = min(offset + limit, len(self))
            rows = [self._row(order) for order in range(offset, last)]
            return ItemWindow(rows, offset, len(self), len(self))
        found = self._matching(state, search.casefold())
        rows = [self._row(order) for order in found[offset : offset + limit]]
        return ItemWindow(rows, offset, len(found), len(self))

    def _matching(self, state: str, search: str) -> list[int]:
        asked = (self.version, state, search)
        if self._found[0] != asked:
            orders: Iterable[int] = range(len(self))
            if search:
                titles = self._folded
                orders = [at for at in range(self._used) if search in titles[at]]
            if state:
                mark, states, known = _MARK.get(state), self._states, self._used  # type: ignore[call-overload]
                waiting = _MARK["waiting"]
                orders = [at for at in orders if (states[at] if at < known else waiting) == mark]
            self._found = (asked, list(orders))
        return self._found[1]

    def _row(self, order: int) -> ItemRow:
        if order >= self._used or not self._names[order]:
            return ItemRow(order, "", f"item {order + 1}", "waiting", None, None, 0, 0)
        state = STATES[self._states[order]]
        is_running = state == "running"
        path = join_path(self.path, self._names[order])
        return ItemRow(
            order,
            path,
            self._titles[order] or name_key(self._names[order]),
            state,
            None if state in ("waiting", "running", "interrupted") else self._durations[order],
            self._began[order] if is_running else None,
            self._attempts(order),
            self._ends[order],
        )

    def _attempts(self, order: int) -> int:
        timed = sum(state != "retrying" for _, _, state in self._spans(order))
        return timed + self._timeless.get(self._names[order], 0)

    def spans(self) -> Iterator[tuple[ItemRow, Sequence[ItemSpan]]]:
        """When each item that has started ran: all its attempts, and the waits between them."""
        for order in range(self._used):
            row, spans = self._row(order), self._spans(order)
            if row.path and spans:
                yield row, spans

    def _spans(self, order: int) -> Sequence[ItemSpan]:
        last, earlier = self._last_span(order), self._earlier.get(order, ())
        return earlier if last is None else (*earlier, last)

    def load(self, clock: RunClock, buckets: int) -> list[int]:
        """How many items ran at the same time, at most, in each of so many equal times of a run."""
        times = [clock.span(start, end) for start, end in self._running_times()]
        starts, ends = sorted(start for start, _ in times), sorted(end for _, end in times)
        scale = buckets / max(clock.total, 1e-6)
        found = [0] * (buckets + 1)  # the last one is for what starts or ends at the very end
        here = ended = 0
        for begun, start in enumerate((*starts, clock.total)):
            # An end comes before the starts of its moment: such items are not counted together.
            while ended < begun and ends[ended] <= start:
                if (bucket := int(ends[ended] * scale)) > here:
                    _raise(found, here + 1, bucket, begun - ended)
                    here = bucket
                ended += 1
            if (bucket := int(start * scale)) > here:
                _raise(found, here + 1, bucket, begun - ended)
                here = bucket
            if begun < len(starts) and begun - ended >= found[here]:
                found[here] = begun - ended + 1
        found[-2] = max(found[-2:])
        return found[:-1]

    def _running_times(self) -> Iterator[tuple[float, float | None]]:
        """Start and recorded end of all attempts, in any order."""
        ended = {_MARK[state] for state in ("done", "failed", "skipped")}
        now = {_RUNNING, _MARK["interrupted"]}
        rows = zip(self._states, self._began, self._ended, strict=True)
        for order, (mark, start, end) in enumerate(rows):
            if mark in ended:
                yield start, end
            elif mark in now and order not in self._waiting:
                yield start, None
        for spans in self._earlier.values():
            yield from ((start, end) for start, end, state in spans if state != "retrying")

    def overview(self, cells: int) -> list[ItemState]:
        """The items in so many cells, each with the state that matters most of its items."""
        size = len(self)
        if not size:
            return []
        cells = min(cells, size)
        found: list[ItemState] = []
        for cell in range(cells):
            first, last = size * cell // cells, size * (cell + 1) // cells
            part = self._states[first : min(last, self._used)]
            found.append(_worst(part, last - first))
        return found


def _raise(counts: list[int], first: int, last: int, least: int) -> None:
    for at in range(first, min(last + 1, len(counts))):
        counts[at] = max(counts[at], least)


_BY_WEIGHT: Final = tuple((_MARK[state], state) for state in ("failed", "running", "interrupted"))


def _worst(part: bytearray, size: int) -> ItemState:
    for mark, state in _BY_WEIGHT:
        if mark in part:
            return state  # type: ignore[return-value]
    if 2 * (part.count(_MARK["waiting"]) + size - len(part)) >= size:
        return "waiting"
    return "done" if _MARK["done"] in part else "skipped"
