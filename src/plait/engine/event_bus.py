"""Events of a run: first to the journal, then to watchers.

Watchers see an event when a power cut could no longer undo it: a thread syncs the journal every
20 ms while there is something to report, and then reports it.

Some events wait to be recorded together with others, because a transaction costs more than the
events in it.  The start of a step is recorded with the next event of the step or of one inside it,
or by that thread if none comes; if that event is the end of the step, the start is not recorded at
all.  The end of the last step of a list is recorded with the end of the list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from plait.core.errors import JournalError
from plait.core.hints import TYPE_CHECKING, TypeAlias
from plait.core.records import replace
from plait.engine.events import (
    Event,
    EventRecord,
    Note,
    StepFinished,
    StepInvalidated,
    StepRenamed,
    StepStarted,
)
from plait.engine.paths import parent_path

if TYPE_CHECKING:
    from plait.core.hints import Final, TypeVar
    from plait.engine.journal import Journal
    from plait.engine.live_output import LiveOutput, StepStream
    from plait.engine.plan_log import PlanLog

    StepEvent = TypeVar("StepEvent", bound=StepStarted | StepFinished)


SYNC_PAUSE: Final = 0.02
"""Seconds between two syncs, while there is something to sync."""

Watch = Callable[[EventRecord], None]

Mask = Callable[[str], str]


def _ignore(event: Event) -> None:
    """Only a dry run has a plan."""


class EventBus:
    """Records the events of a run and reports them to watchers."""

    def __init__(
        self,
        journal: Journal,
        watchers: Iterable[Watch] = (),
        *,
        mask: Mask = str,
        mask_title: Mask | None = None,
        full_durability: bool = False,
        reports: bool = True,
        plan_log: PlanLog | None = None,
        noted: set[str] | None = None,
        live: LiveOutput | None = None,
    ) -> None:
        """Without `reports` there are no watchers and no thread.

        `live`: gets the output of running steps; without it, only their ends show it.

        `plan_log`: the log of a dry run, which gets the ends of steps.  `noted`: keys that `note_once`
        has used in earlier attempts of the run.
        """
        self._journal = journal
        self._mask = mask
        self._mask_title = mask_title or mask
        self._full_durability = full_durability
        self._add_to_plan = _ignore if plan_log is None else plan_log.add_end
        self._starts: dict[str, StepStarted] = {}
        """By path: starts that are not recorded yet."""
        self._long_starts: Iterable[str] = ()
        """The paths of those that were not recorded at the last look either."""
        self._ends: dict[str, StepFinished] = {}
        """By path of a list: the end of its last step, which is recorded with that of the list."""
        self._titles: dict[str, str] = {}
        """By path: titles of running steps that differ from what their authors wrote."""
        self._noted: set[str] = set() if noted is None else noted
        self._starting = threading.Lock()
        self._live = live if reports else None
        self._reporter: _AnyReporter = (
            _Reporter(journal, list(watchers), self._record_long_starts, self._live)
            if reports
            else _Silence()
        )

    def emit(self, event: Event) -> None:
        """Record an event, then report it: a watcher must not see what a crash could undo."""
        if isinstance(event, StepFinished):
            event = self._hide_secrets(event)
        self._add_to_plan(event)
        path = getattr(event, "path", "")
        end = self._ends.pop(path, None)
        ended = (event,) if end is None else (end, event)
        self._record((*self._starts_before(ended), *ended), ended)

    def _record(self, events: tuple[Event, ...], reported: tuple[Event, ...]) -> None:
        """Record events in one transaction, then report some of them."""
        self._journal.append(*events)
        if self._full_durability:
            self._journal.sync()
        for one in reported:
            self._reporter.report(one)

    def emit_start(self, event: StepStarted, *, at_once: bool) -> None:
        """Report a start and record it later; `at_once`: a crash must not lose it."""
        event = self._hide_secrets(event)
        if at_once:
            self.emit(event)
            self._journal.sync()
            return
        with self._starting:
            self._starts[event.path] = event
        self._reporter.report(event)

    def emit_with_parent(self, event: StepFinished) -> None:
        """Record the end of the last step of a list together with the end of the list."""
        event = self._hide_secrets(event)
        self._add_to_plan(event)
        self._ends[parent_path(event.path)] = event

    def emit_discarded(self, event: StepFinished, why: str) -> None:
        """Record what a step used, and invalidate its end in the same transaction."""
        self.flush_end(event.path)
        self._ends[event.path] = self._hide_secrets(event)
        self.emit(StepInvalidated(event.path, why, below=False))

    def _hide_secrets(self, event: StepEvent) -> StepEvent:
        """Mask the title: the author may have written the value of a secret into the file."""
        title = self._mask_title(event.title)
        return event if title == event.title else replace(event, title=title)

    def notify(self, event: Event) -> None:
        """Report an event to watchers only; the journal does not keep it."""
        if isinstance(event, StepStarted | StepFinished):
            event = self._hide_secrets(event)
        self._reporter.report(event)

    def open_output(self, path: str, attempt: int) -> StepStream | None:
        """Return where the output of a running step goes, piece by piece; None: nowhere."""
        return None if self._live is None else self._live.open(path, attempt)

    def flush_end(self, path: str) -> None:
        """Record the end of the last step of a list now, without the end of the list."""
        end = self._ends.pop(path, None)
        if end is not None:
            self.emit(end)

    def append_remote(self, events: tuple[Event, ...]) -> None:
        """Record what happened in another process, in one transaction."""
        self._record(events, events)

    def batch(self) -> EventBatch:
        """Return a bus for one thread that performs many steps at a time."""
        return EventBatch(self)

    def note(self, path: str, message: str) -> None:
        self.emit(Note(path, self._mask(message)))

    def note_once(self, key: str, path: str, message: str) -> None:
        """Note a message, unless this run has noted one with the same key."""
        if key not in self._noted:
            self._noted.add(key)
            self.note(path, message)

    def warn(self, path: str, message: str) -> None:
        self.emit(Note(path, self._mask(message), warning=True))

    # ── titles ───────────────────────────────────────────────────────────

    def set_title(self, path: str, title: str) -> None:
        """Name a running step by what it does, with its values filled in and secrets masked."""
        self._titles[path] = title
        self._reporter.report(StepRenamed(path, title))

    def title(self, path: str) -> str | None:
        return self._titles.get(path)

    def copy_title(self, path: str, to: str) -> None:
        """Give one step the title of another, if that has one."""
        title = self._titles.get(path)
        if title is not None:
            self._titles[to] = title

    def take_title(self, path: str, otherwise: str) -> str:
        """Return and forget the title of a step that ends."""
        return self._titles.pop(path, otherwise)

    # ── the end ──────────────────────────────────────────────────────────

    def close(self) -> None:
        """Record and report all events; then they are safe, and watchers have seen them."""
        for end in list(self._ends.values()):
            self.emit(end)
        with self._starting:
            if self._starts:
                self._journal.append(*self._starts.values())
                self._starts.clear()
        self._reporter.close()

    def _starts_before(self, events: tuple[Event, ...]) -> list[StepStarted]:
        """Return the starts to record before these events, the outermost first."""
        starts: list[StepStarted] = []
        path = getattr(events[0], "path", "")
        with self._starting:
            while path and self._starts:
                start = self._starts.pop(path, None)
                if start is not None and not any(_says_all(event, start) for event in events):
                    starts.append(start)
                path = parent_path(path)
        starts.reverse()
        return starts

    def _record_long_starts(self) -> bool:
        """Record the starts that were waiting at the last look, too; are others waiting?"""
        with self._starting:
            long = [self._starts.pop(path) for path in self._long_starts if path in self._starts]
            if long:
                # While the lock is held, so that no end comes before its start.
                self._journal.append(*long)
            self._long_starts = tuple(self._starts)
        return bool(self._long_starts)


def _says_all(event: Event, start: StepStarted) -> bool:
    """Is the event the end of this step, at the first attempt?"""
    return isinstance(event, StepFinished) and event.path == start.path and start.attempt == 1


class EventBatch(EventBus):
    """Keeps the events of one thread until `commit` records them in one transaction.

    It shares everything else with the bus that it was made of.
    """

    def __init__(self, bus: EventBus) -> None:
        self.__dict__.update(bus.__dict__)
        self._kept: list[Event] = []
        self.unrecorded: list[Event] = []
        """What the journal refused, if it fails."""
        self._reports = _KeptReports(self._reporter)
        self._reporter = self._reports

    def _record(self, events: tuple[Event, ...], reported: tuple[Event, ...]) -> None:
        self._kept += events
        for event in reported:
            self._reporter.report(event)

    def emit_start(self, event: StepStarted, *, at_once: bool) -> None:
        super().emit_start(event, at_once=False)
        if at_once:
            self._kept += self._starts_before((event,))
            self.commit()
            self._journal.sync()

    def commit(self) -> None:
        """Record what was kept, then report it."""
        kept, self._kept = self._kept, []
        if kept:
            try:
                self._journal.append(*kept)
            except JournalError:
                self.unrecorded = kept
                raise
            if self._full_durability:
                self._journal.sync()
        self._reports.pass_on()


class _KeptReports:
    """Keeps reports in order, until what happened before them is recorded."""

    def __init__(self, reporter: _AnyReporter) -> None:
        self._reporter = reporter
        self._kept: list[Event] = []

    def report(self, event: Event) -> None:
        self._kept.append(event)

    def pass_on(self) -> None:
        kept, self._kept = self._kept, []
        for event in kept:
            self._reporter.report(event)

    def close(self) -> None:
        """The bus that it belongs to closes the reporter."""


class _Silence:
    """Stands for a reporter where nothing watches."""

    def report(self, event: Event) -> None:
        """Nothing watches."""

    def close(self) -> None:
        """There is nothing to wait for."""


class _Reporter:
    """Reports events to watchers, once they are safe."""

    def __init__(
        self,
        journal: Journal,
        watchers: list[Watch],
        record_starts: Callable[[], bool],
        live: LiveOutput | None,
    ) -> None:
        self._journal = journal
        self._live = live
        self._watchers = watchers
        self._record_starts = record_starts
        self._waiting: list[EventRecord] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._number = 0
        self._failure: BaseException | None = None
        if live is not None:
            live.start(self._wake.set)
        self._thread = threading.Thread(target=self._serve, name="plait-reporter", daemon=True)
        self._thread.start()

    def report(self, event: Event) -> None:
        if self._watchers or self._live is not None:
            with self._lock:
                self._number += 1
                self._waiting.append(EventRecord(self._number, time.time(), event))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join()
        if self._live is not None:
            self._live.close()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing.is_set()
            try:
                self._pass_on()
            except BaseException as error:
                # `close` raises it, in the thread that can do something about it.
                self._failure = error
                return
            if closing:
                return
            self._closing.wait(SYNC_PAUSE)  # `close` ends the pause

    def _pass_on(self) -> None:
        if self._record_starts():
            self._wake.set()  # look at running steps again, even if nothing else happens
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._journal.sync()
        if self._live is not None:
            waiting += self._take_output(self._live, waiting)
        for watch in list(self._watchers):
            try:
                for record in waiting:
                    watch(record)
            except Exception:
                # A view that breaks must not break the run that it shows.
                self._watchers.remove(watch)

    def _take_output(self, live: LiveOutput, records: list[EventRecord]) -> list[EventRecord]:
        """Return what running steps have printed.  Of steps that ended, the journal has it."""
        live.add_reported(records)
        output, is_more = live.take()
        if is_more:
            self._wake.set()
        at = time.time()
        return [EventRecord(self._number, at, one) for one in output]


_AnyReporter: TypeAlias = "_Reporter | _KeptReports | _Silence"
