"""A run for a page: its progress, its tree of steps and its items, kept up to date.

`update` reads what the journal has since the last call, and what running steps have printed, with
read-only connections: the process that works on the run never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from plait.core.hints import Final, Protocol
from plait.core.records import replace
from plait.engine.events import (
    EventRecord,
    ItemsCounted,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepInvalidated,
    StepOutput,
)
from plait.engine.journal import StepRecord
from plait.engine.live_output import OutputFile
from plait.engine.paths import ITEMS, SETUP, is_at_or_below, is_item, join_path, parent_path
from plait.views.item_table import ItemEvent, ItemRow, ItemTable
from plait.views.progress import Progress
from plait.views.report import JournalReader, StoredJournal, read_report
from plait.views.run_tree import Lane, RunClock, Span, StepNode, StepTree, item_spans, node_spans
from plait.views.step_detail import StepDetail, read_step

MOST_ITEM_LANES: Final = 40
"""Items of a map that have a lane of their own; more are drawn as a load."""
LOAD_PARTS: Final = 160
MOST_LIVE: Final = 1 << 20
"""Characters of a stream of a running step."""
LARGE_MAP: Final = 1000
"""More items are not read with the step that contains them."""
MOST_PATHS: Final = 200
INSIDE_RANGE: Final = 4000
"""How many of the last events are searched for what running items do."""


class WatchedReader(JournalReader, Protocol):
    def last(self) -> int: ...
    def run_attempts(self) -> Sequence[Sequence[float]]: ...
    def events_to_follow(self, after: int = 0) -> Iterator[EventRecord]: ...
    def item_rows(self, path: str, after: int, until: int) -> Sequence[ItemEvent]: ...
    def ends(self, numbers: Sequence[int]) -> list[StepRecord]: ...
    def titles_inside_items(self, after: int) -> Mapping[str, str]: ...
    def events_at(self, paths: Iterable[str]) -> Iterator[EventRecord]: ...


class WatchedJournal(StoredJournal, Protocol):
    @property
    def reader(self) -> WatchedReader: ...


class LiveStep:
    """What a running step has printed until now."""

    __slots__ = ("attempt", "streams")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.streams: dict[str, str] = {}

    def add(self, piece: StepOutput, before: int) -> None:
        if piece.attempt > self.attempt:
            self.attempt, self.streams = piece.attempt, {}
        if piece.attempt == self.attempt:
            text = self.streams.get(piece.stream, "")[:before] + piece.text
            self.streams[piece.stream] = text[-MOST_LIVE:]


class RunWatch:
    """One run.  One thread at a time may use it."""

    def __init__(
        self, run: str, journal: WatchedJournal, folder: str, is_running: Callable[[], bool]
    ) -> None:
        self.run = run
        self.journal = journal
        self.version = 0
        """It changes when anything of the run changes."""
        self._is_running = is_running
        self._output = OutputFile(folder)
        self.live: dict[str, LiveStep] = {}
        # An outline of a long journal does not have the last event of each run attempt.
        self.tree = StepTree(known_attempts=journal.reader.run_attempts())
        self._tables: dict[str, ItemTable] = {}
        self._table_until: dict[str, int] = {}
        self._last = journal.reader.last()
        """The last event that was taken in."""
        self._cut_at = -1
        """The last event when it was seen that nothing runs."""
        self._ended_at = 0
        """The end of the last run attempt that has one."""
        report = read_report(
            run, journal, is_running=is_running, short=True, watch=self._add_to_tree
        )
        self.progress: Progress = report.progress
        self.status: Status = report.status
        self.update()

    def _add_to_tree(self, record: EventRecord) -> None:
        self._last = max(self._last, record.number)
        if isinstance(record.event, RunEnded):
            self._ended_at = record.number
        self.tree.add(record)

    # ── what is new ──────────────────────────────────────────────────────

    def update(self) -> bool:
        """Take in what is new; whether there was anything."""
        version = self.version
        # Asked before the events are read: after its last event a process is soon gone.
        is_running, last = self._is_running(), self.journal.reader.last()
        for record in self.journal.reader.events_to_follow(self._last):
            self._last = record.number
            self._add(record)
            self.version += 1
        self._last = max(self._last, last)  # the last one may be inside an item
        for piece, before in self._output.new_pieces():
            self.live.setdefault(piece.path, LiveStep(piece.attempt)).add(piece, before)
            self.progress.add(EventRecord(self._last, self.progress.last_at, piece))
            self.version += 1
        status = self.progress.status
        if self.progress.ended is None:
            status = "running" if is_running or self._is_running() else "interrupted"
        elif is_running and self._last > self._ended_at:
            status = "running"  # a retry records what it repeats before it starts
        if status != self.status:
            self.status = status
            self.version += 1
        if status != "running" and self._cut_at != self._last:
            self._cut_at = self._last
            self._cut_short()
        return self.version != version

    @property
    def event_count(self) -> int:
        """How many events it has had."""
        return self._last

    def _cut_short(self) -> None:
        progress = self.progress
        if self.status == "interrupted" and progress.ended is None:
            printed_at = self.journal.reader.last_output_at() or 0.0
            progress.last_at = max(progress.last_at, printed_at)
        self.tree.cut_short(progress.last_at)

    def _add(self, record: EventRecord) -> None:
        self.progress.add(record)
        self._add_to_tree(record)
        match record.event:
            case StepFinished(path=path, kind=kind):
                self.live.pop(path, None)
                if kind == ITEMS and (table := self._tables.get(parent_path(path))) is not None:
                    table.clear()
                    self._table_until[table.path] = record.number
            case ItemsCounted(path, total):
                if path in self._tables:
                    self._tables[path].set_total(total)
            case StepInvalidated(path=path):
                for name in [one for one in self._tables if is_at_or_below(one, path)]:
                    del self._tables[name]  # read again when it is asked for
            case RunStarted() | RunEnded():
                self.live.clear()

    # ── items ────────────────────────────────────────────────────────────

    def maps(self) -> list[str]:
        """The paths of the steps that have items."""
        found = [part.name for part in self.progress.maps]
        nested = [node.path for _, node in self.tree.walk() if node.total is not None]
        return list(dict.fromkeys((*found, *nested)))

    @property
    def is_long(self) -> bool:
        """Would a person notice the time to read the whole journal?"""
        return self.journal.reader.is_long()

    def is_slow(self, path: str) -> bool:
        """Would a person notice the time to read the items of a map, which were not read yet?"""
        return path not in self._tables and self.is_long

    def items(self, path: str) -> ItemTable:
        """The items of a map at the last update."""
        table = self._tables.get(path)
        if table is None:
            table = self._tables[path] = ItemTable(path)
            self._table_until[path] = self._selection_number(path)
        after, until = self._table_until[path], self._last
        if until > after:
            table.add(self.journal.reader.item_rows(path, after, until))
            self._table_until[path] = until
        node = self.tree.get(path)
        part = self.progress.parts.get(path)
        total = part.group.total if part is not None and part.group.is_map else None
        total = node.total if total is None and node is not None else total
        table.set_total(max(total or 0, 0))
        if self.status != "running":
            table.interrupt()
        return table

    def _selection_number(self, path: str) -> int:
        from plait.engine.replay import items_selected_at

        return items_selected_at(self.journal, path)

    def read_step(
        self, path: str, events: Iterable[EventRecord] | None = None
    ) -> StepDetail | None:
        """All about one step, with what is inside it; `events`: if they were read already."""
        if events is None:
            wanted = [*self._paths_to_read(SETUP), *self._paths_to_read(path)]
            events = self.journal.reader.events_at(wanted)
        is_running = self.status == "running"
        return read_step(events, path, self.tree.run_attempts, is_running=is_running)

    def _paths_to_read(self, path: str) -> list[str]:
        """The path, or those of the steps inside it without the items of a large map."""
        node = self.tree.get(path)
        if node is None or not self.is_long:
            return [path]
        return list(islice(_paths_beside_large_maps(node), MOST_PATHS))

    def causes(self, rows: Iterable[ItemRow]) -> dict[str, StepRecord]:
        """By path: the ends of those of these items that did not succeed."""
        numbers = [row.end for row in rows if row.state in ("failed", "skipped") and row.end]
        return {record.path: record for record in self.journal.reader.ends(numbers)}

    def doing(self) -> Mapping[str, str]:
        """By the path of an item of the map: what runs inside it now, if that is recent."""
        if self.status != "running":
            return {}
        return self.journal.reader.titles_inside_items(max(0, self._last - INSIDE_RANGE))

    # ── the timeline ─────────────────────────────────────────────────────

    def clock(self, now: float) -> RunClock:
        return RunClock(self.tree.run_attempts, now, alive=self.status == "running")

    def lanes(self, now: float) -> Iterator[Lane]:
        clock = self.clock(now)
        items: list[Lane] = []
        """Of a map, until its other steps are shown: its items were found before they ran."""
        inside: set[str] = set()
        """The items of a map that is one line, and what is inside them."""
        for depth, node in self.tree.walk():
            if parent_path(node.path) in inside:
                inside.add(node.path)
            if node.path in inside:
                continue
            if items and depth < items[0].depth:
                yield from items
                items = []
            spans = list(node_spans(node, clock, now))
            part = self.progress.parts.get(node.path)
            if part is not None and node.total is not None:
                state = part.shown_state if node.state == "done" else node.state
                if state == "failed" and spans:  # its step succeeds whatever its items do
                    spans[-1] = replace(spans[-1], state=state)
                lane, *items = self._map_lanes(node, depth, state, spans, clock)
                yield lane
            elif (node.total or 0) > MOST_ITEM_LANES:
                inside.update(path for path in node.children if is_item(path))
                yield self._load_lane(node, depth, node.state, spans, clock)
            else:
                yield Lane(node.path, node.title, depth, node.state, spans)
        yield from items

    def lanes_inside(self, top: StepNode, now: float) -> Iterator[Lane]:
        """The lines of a step of `read_step` and of the steps in it; time 0 is its first start."""
        clock = self.clock(now)
        first = clock.seconds(top.began or 0.0)
        for depth, node in top.walk():
            spans = [
                replace(one, start=max(0.0, one.start - first), end=max(0.0, one.end - first))
                for one in node_spans(node, clock, now)
            ]
            if spans:
                yield Lane(node.path, node.title, depth, node.state, spans)

    def _load_lane(
        self, node: StepNode, depth: int, state: str, spans: Sequence[Span], clock: RunClock
    ) -> Lane:
        load = self.items(node.path).load(clock, LOAD_PARTS)
        return Lane(node.path, node.title, depth, state, spans, load)

    def _map_lanes(
        self,
        node: StepNode,
        depth: int,
        state: str,
        spans: Sequence[Span],
        clock: RunClock,
    ) -> Iterator[Lane]:
        table = self.items(node.path)
        if len(table) > MOST_ITEM_LANES:
            yield self._load_lane(node, depth, state, spans, clock)
            return
        yield Lane(node.path, node.title, depth, state, spans)
        for row, attempts in table.spans():
            yield Lane(row.path, row.title, depth + 1, row.state, list(item_spans(attempts, clock)))


def _paths_beside_large_maps(node: StepNode) -> Iterator[str]:
    """Paths that have all steps at and below one, but not the items of a large map."""
    if (node.total or 0) > LARGE_MAP:
        yield join_path(node.path, ITEMS)
    elif all((one.total or 0) <= LARGE_MAP for _, one in node.walk()):
        yield node.path
    else:
        for child in node.children.values():
            yield from _paths_beside_large_maps(child)
