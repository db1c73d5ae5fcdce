"""A run for a page: its progress, its tree of steps and its items, kept up to date.

`update` reads what the journal has since the last call, and what running steps have printed, with
read-only connections: the process that works on the run never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plait.core.hints import Final, Protocol
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
from plait.engine.paths import ITEMS, is_at_or_below, parent_path
from plait.views.item_table import ItemEvent, ItemRow, ItemTable
from plait.views.progress import Progress
from plait.views.report import JournalReader, StoredJournal, read_report
from plait.views.run_tree import Lane, RunClock, Span, StepNode, StepTree, node_spans

MOST_LANES: Final = 300
MOST_ITEM_LANES: Final = 40
"""Items of a map that have a lane of their own; more are drawn as a load."""
LOAD_PARTS: Final = 160
MOST_LIVE: Final = 1 << 20
"""Characters of a stream of a running step."""
INSIDE_RANGE: Final = 4000
"""How many of the last events are searched for what running items do."""


class WatchedReader(JournalReader, Protocol):
    def last(self) -> int: ...
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
        self.tree = StepTree()
        self._tables: dict[str, ItemTable] = {}
        self._table_until: dict[str, int] = {}
        self._last = journal.reader.last()
        """The last event that was taken in."""
        self._is_outline = journal.reader.is_long()
        report = read_report(
            run, journal, is_running=is_running, short=True, watch=self._add_to_tree
        )
        self.progress: Progress = report.progress
        self.status: Status = report.status
        self.update()

    def _add_to_tree(self, record: EventRecord) -> None:
        self._last = max(self._last, record.number)
        self.tree.add(record)

    # ── what is new ──────────────────────────────────────────────────────

    def update(self) -> bool:
        """Take in what is new; whether there was anything."""
        version = self.version
        for record in self.journal.reader.events_to_follow(self._last):
            self._last = record.number
            self._add(record)
            self.version += 1
        for piece, before in self._output.new_pieces():
            self.live.setdefault(piece.path, LiveStep(piece.attempt)).add(piece, before)
            self.progress.add(EventRecord(self._last, self.progress.last_at, piece))
            self.version += 1
        status = self.progress.status
        if self.progress.ended is None:
            status = "running" if self._is_running() else "interrupted"
        if status != self.status:
            self.status = status
            self.version += 1
        if status != "running":
            for table in self._tables.values():
                table.interrupt()
        return self.version != version

    def _add(self, record: EventRecord) -> None:
        self.progress.add(record)
        self.tree.add(record)
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
                for table in self._tables.values():
                    table.interrupt()

    # ── items ────────────────────────────────────────────────────────────

    def maps(self) -> list[str]:
        """The paths of the steps that have items."""
        found = [part.name for part in self.progress.maps]
        nested = [node.path for _, node in self.tree.walk() if node.total is not None]
        return list(dict.fromkeys((*found, *nested)))

    def is_slow(self, path: str) -> bool:
        """Would a person notice the time to read the items of a map, which were not read yet?"""
        return path not in self._tables and self.journal.reader.is_long()

    def items(self, path: str) -> ItemTable:
        """The items of a map, up to date."""
        reader = self.journal.reader
        table = self._tables.get(path)
        if table is None:
            table = self._tables[path] = ItemTable(path)
            self._table_until[path] = self._selection_number(path)
        until = reader.last()
        after = self._table_until[path]
        if until > after:
            table.add(reader.item_rows(path, after, until))
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
        for count, (depth, node) in enumerate(self.tree.walk()):
            if count >= MOST_LANES:
                break
            if items and depth < items[0].depth:
                yield from items
                items = []
            spans = list(node_spans(node, clock, now))
            part = self.progress.parts.get(node.path)
            if part is not None and node.total is not None:
                state = part.shown_state if node.state == "done" else node.state
                lane, *items = self._map_lanes(node, depth, state, spans, clock, now)
                yield lane
            else:
                yield Lane(node.path, node.title, depth, node.state, spans)
        yield from items

    def _map_lanes(
        self,
        node: StepNode,
        depth: int,
        state: str,
        spans: Sequence[Span],
        clock: RunClock,
        now: float,
    ) -> Iterator[Lane]:
        table = self.items(node.path)
        if len(table) > MOST_ITEM_LANES:
            attempts = self.tree.run_attempts
            first, last = attempts[-1] if attempts else (0.0, 0.0)
            load = table.load(
                first, max(last, now) if self.status == "running" else last, LOAD_PARTS, now
            )
            yield Lane(node.path, node.title, depth, state, spans, load)
            return
        yield Lane(node.path, node.title, depth, state, spans)
        for start, end, how, row in table.spans():
            span = Span(clock.seconds(start), clock.seconds(now if end is None else end), how)
            yield Lane(row.path, row.title, depth + 1, how, [span])
