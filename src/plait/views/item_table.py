"""The items of one map in a table by their order: quick to filter and to search with 100,000 items.

It is filled from rows without values, and later extended with those that are new.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass
from plait.engine.paths import join_path, last_name, name_key, parent_path

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
"""Number, time, what happened (started, ended, invalidated, retried), name of the item, title,
order, status if it ended (done, failed, skipped), and duration.
"""


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
    retries: int
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
        self._times = array("d")
        """When an item started, while it runs; else when it ended."""
        self._durations = array("d")
        self._ends = array("q")
        self._retries: dict[int, int] = {}
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
            if what == "invalidated":
                self._set(self._orders.get(name), "waiting")
                continue
            if what == "retried":
                if (known := self._orders.get(name)) is not None:
                    self._retries[known] = self._retries.get(known, 0) + 1
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
            self._times[order] = at
            if what == "started":
                self._states[order] = _RUNNING
            else:
                self._states[order] = _MARK[status]  # type: ignore[index]
                self._durations[order], self._ends[order] = duration, number

    def _extend(self, more: int) -> None:
        more = max(more, len(self._states) // 8)
        self._states.extend(bytes(more))
        for texts in (self._names, self._titles, self._folded):
            texts.extend([""] * more)
        for numbers in (self._times, self._durations, self._ends):
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
            self._times[order] if is_running else None,
            self._retries.get(order, 0),
            self._ends[order],
        )

    def spans(self) -> Iterator[tuple[float, float | None, ItemState, ItemRow]]:
        """When each item that has started ran: its start, its end if it has one, its state."""
        for order in range(self._used):
            row = self._row(order)
            if row.path and row.state in ("done", "failed", "skipped"):
                end = self._times[order]
                yield end - self._durations[order], end, row.state, row
            elif row.since is not None:
                yield row.since, None, row.state, row

    def load(self, first: float, last: float, buckets: int, now: float) -> list[int]:
        """How many items ran at the same time, at most, in each of so many equal times."""
        step = max(last - first, 1e-6) / buckets
        changes = [0] * (buckets + 1)
        for order in range(self._used):
            mark = self._states[order]
            if mark in (0, 5):
                continue
            end = self._times[order]
            start = end if mark == _RUNNING else end - self._durations[order]
            end = now if mark == _RUNNING else end
            one = min(max(int((start - first) / step), 0), buckets - 1)
            changes[one] += 1
            changes[min(max(int((end - first) / step), one), buckets - 1) + 1] -= 1
        found, running = [], 0
        for change in changes[:buckets]:
            running += change
            found.append(running)
        return found

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


_BY_WEIGHT: Final = tuple((_MARK[state], state) for state in ("failed", "running", "interrupted"))


def _worst(part: bytearray, size: int) -> ItemState:
    for mark, state in _BY_WEIGHT:
        if mark in part:
            return state  # type: ignore[return-value]
    if 2 * (part.count(_MARK["waiting"]) + size - len(part)) >= size:
        return "waiting"
    return "done" if _MARK["done"] in part else "skipped"
