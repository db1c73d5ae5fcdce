"""What all steps of one run share: its journal, its watchers, and the wish to stop.

Events go to the journal first and to watchers afterwards, when a power cut could
no longer undo them: a thread of its own syncs the journal every 20 ms while there
is something to tell, and then tells it.

What a crash may undo waits for company, because a transaction costs more than what
is in it.  A start is recorded with the first event of its step or of one inside it;
if none comes, by that thread; and never if its end is recorded with that event, since an
end says all that the start would.  The last step of a list ends with its list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from plait.core.errors import InputError, InternalError, Problem
from plait.core.hints import TYPE_CHECKING
from plait.engine.event_bus import SYNC_PAUSE, StopSignal
from plait.engine.events import (
    Event,
    EventRecord,
    Note,
    StepFinished,
    StepInvalidated,
    StepRenamed,
    StepStarted,
    Usage,
)
from plait.engine.journal import Journal, StepRecord
from plait.engine.outcome import Failed, Interrupted, Outcome, Succeeded
from plait.engine.replay import NOT_RETRIED, RetriedItems, changed_steps_error

if TYPE_CHECKING:
    from random import Random

    from plait.core.values import Json
    from plait.engine.event_bus import Mask, Watch
    from plait.engine.hooks import HookRunner
    from plait.engine.limits import Budget, LimitReached
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


class RunContext:
    """One life of a run."""

    def __init__(
        self,
        id: str,
        journal: Journal,
        *,
        watchers: Iterable[Watch] = (),
        stop: StopSignal | None = None,
        mask: Mask = str,
        random: Random | None = None,
        accept_changes: bool = False,
        repeat: Iterable[str] = (),
        said_done: Mapping[str, Json] | None = None,
        retried: RetriedItems = NOT_RETRIED,
        full_durability: bool = False,
        told: bool = True,
    ) -> None:
        """Not `told`: nobody watches, and the journal lasts no longer than the run, so it needs no
        thread.
        """
        self.id = id
        self.journal = journal
        self.stop = stop or StopSignal()
        self.mask = mask
        if random is not None:
            self.random = random
        self.is_first_run = journal.is_fresh()
        self.first_event = 1 if self.is_first_run else journal.last() + 1
        """The number of its first event: those before it are of earlier lives."""
        self.accept_changes = accept_changes
        self.full_durability = full_durability
        self._repeat = frozenset(repeat)
        self.marked_done: Mapping[str, Json] = said_done or {}
        """By path: what steps give that the user says have done their work, whatever is recorded of
        them.
        """
        self.retried = retried
        self._starts: dict[str, StepStarted] = {}
        """By path: steps that have begun, and of which nothing is recorded."""
        self._still_running: Iterable[str] = ()
        """Those of them of which nothing was recorded already at the last look."""
        self._ends: dict[str, StepFinished] = {}
        """By the path of its list: the end of a list's last step, recorded with that of the list.
        """
        self.titles: dict[str, str] = {}
        """By path: what steps that run are called, if that is not what their authors wrote."""
        self._used: dict[str, dict[str, float]] = {}
        """By path: what was used up there, and is not recorded yet."""
        self.hooks: HookRunner | None = None
        """What is asked and told when something happens, and the limits of the run; None costs
        nothing.
        """
        self.reacting: set[str] = set()
        """The paths of hooks that are at work: what happens below them causes nothing."""
        self.open_questions: Mapping[str, str] = {}
        """By path: titles of steps that may run only once, were begun before, and whose end is not
        known.
        """
        self.unfinished_once: set[str] = set()
        """Steps that may run only once, were begun in this life, and whose end is not known."""
        self._starting = threading.Lock()
        self._teller: _Teller | _Silence = (
            _Teller(journal, list(watchers), self._record_long_starts) if told else _Silence()
        )

    @cached_property
    def random(self) -> Random:
        """Spreads pauses; made when there is a first one."""
        from random import Random

        return Random()

    @property
    def is_dry(self) -> bool:
        """Is it a dry run, which shows what would be done and does none of it?"""
        return False

    def would_run(self, ctx: StepContext, what: object) -> Json:
        """In a dry run: say that something would run of which no more is known."""
        raise InternalError(f"only a dry run plans: {ctx.path}, {what!r}")

    # ── events ───────────────────────────────────────────────────────────

    def emit(self, event: Event) -> None:
        # Journal first: nobody may act on an event that a crash could undo.
        path = getattr(event, "path", "")
        end = self._ends.pop(path, None)
        ended = (event,) if end is None else (end, event)
        self.journal.append(*self._starts_before(ended), *ended)
        if self.full_durability:
            self.journal.sync()
        for one in ended:
            self._teller.tell(one)

    def emit_start(self, event: StepStarted, *, at_once: bool) -> None:
        """A start may be lost by a crash if the step is then done again; not where that is not
        sure.
        """
        if at_once:
            self.emit(event)
            self.journal.sync()
            return
        with self._starting:
            self._starts[event.path] = event
        self._teller.tell(event)

    def emit_with_parent(self, event: StepFinished) -> None:
        """The end of a step behind which its list ends, too, so that an event of the list follows
        at once.
        """
        self._ends[event.path.rpartition("/")[0]] = event

    def emit_discarded(self, event: StepFinished, why: str) -> None:
        """What a step took that counts as not done: at once, so that a crash leaves no end that
        counts.
        """
        self.flush_end(event.path)
        self._ends[event.path] = event
        self.emit(StepInvalidated(event.path, why, below=False))

    def charge(self, path: str, **used: float) -> None:
        """What was taken from the budgets around a path; the next end or attempt of that path
        records it.
        """
        here = self._used.setdefault(path, {})
        for name, amount in used.items():
            if amount:
                here[name] = here.get(name, 0) + amount

    def take_charges(self, path: str) -> Usage | None:
        """The same for whoever records it now."""
        return (self._used.pop(path, None) or None) if self._used else None

    def set_title(self, path: str, title: str) -> None:
        """Call a step that has begun by what it does with its values put in; secrets are masked
        before.
        """
        self.titles[path] = title
        self._teller.tell(StepRenamed(path, title))

    def notify(self, event: Event) -> None:
        """To those who watch, and not to the journal: what is gone when nobody looks."""
        self._teller.tell(event)

    def flush_end(self, path: str) -> None:
        """Record the end of the last step of a list, before somebody acts on the end of the
        list.
        """
        end = self._ends.pop(path, None)
        if end is not None:
            self.emit(end)

    def append_remote(self, events: tuple[Event, ...]) -> None:
        """What happened in another process, in one transaction."""
        self.journal.append(*events)
        if self.full_durability:
            self.journal.sync()
        for event in events:
            self._teller.tell(event)

    def note(self, path: str, message: str) -> None:
        self.emit(Note(path, self.mask(message)))

    def warn(self, path: str, message: str) -> None:
        self.emit(Note(path, self.mask(message), warning=True))

    def close(self) -> None:
        """What was recorded is safe, and watchers have heard of it, when this returns."""
        for end in list(self._ends.values()):
            self.emit(end)
        with self._starting:
            if self._starts:
                self.journal.append(*self._starts.values())
                self._starts.clear()
        self._teller.close()

    def _starts_before(self, events: tuple[Event, ...]) -> list[StepStarted]:
        """The starts that are to be recorded before an event and what follows it, the outermost
        first.
        """
        starts: list[StepStarted] = []
        path = getattr(events[0], "path", "")
        with self._starting:
            while path and self._starts:
                start = self._starts.pop(path, None)
                if start is not None and not any(_says_all(event, start) for event in events):
                    starts.append(start)
                path = path.rpartition("/")[0]
        starts.reverse()
        return starts

    def _record_long_starts(self) -> bool:
        """Record the starts that were there at the last look and still are; are there others?"""
        with self._starting:
            long = [self._starts.pop(path) for path in self._still_running if path in self._starts]
            if long:
                # While the lock is held, so that no end comes before its start.
                self.journal.append(*long)
            self._still_running = tuple(self._starts)
        return bool(self._still_running)

    # ── stopping ─────────────────────────────────────────────────────────

    def is_stopping(self) -> bool:
        return self.stop.is_set()

    def require_not_stopped(self) -> None:
        if self.stop.is_set():
            raise Interrupted

    def pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Interrupted

    def pause_at(self, ctx: StepContext, seconds: float) -> None:  # noqa: ARG002
        """Wait before the next attempt at a turn; where something limits the time, no longer than
        it lets.
        """
        self.pause(seconds)

    # ── remembering ──────────────────────────────────────────────────────

    def find_recorded(self, step: Step, ctx: StepContext) -> Outcome | None:
        """The outcome of a step that an earlier life of this run has finished, or is said to
        have.
        """
        said = self.marked_done.get(ctx.path)
        is_answered = said is not None or ctx.path in self._repeat
        if step.policy.at_most_once and not is_answered and self.journal.is_unfinished(ctx.path):
            self.require_answer(step, ctx)
        recorded = self._end_that_counts(step, ctx)
        if recorded is None:
            return None if said is None else self.accept_as_done(step, ctx, said)
        self._teller.tell(
            StepFinished(
                ctx.path,
                step.kind,
                step.title,
                step.fingerprint,
                recorded.outcome,
                recorded.duration,
                ctx.order,
                replayed=True,
                used=recorded.used,
            )
        )
        return recorded.outcome

    def accept_as_done(self, step: Step, ctx: StepContext, value: Json) -> Outcome:
        """Only when it is its turn: an older end would count no more, if what is before it is
        new.
        """
        outcome = Succeeded(value)
        said = ctx.path, step.kind, step.title, step.fingerprint
        self.emit(StepFinished(*said, outcome, 0.0, ctx.order))
        return outcome

    def _end_that_counts(self, step: Step, ctx: StepContext) -> StepRecord | None:
        """The end of a step that is remembered."""
        if not ctx.can_replay:
            return None
        recorded = self.journal.step(ctx.path)
        if recorded is None:
            return None
        if recorded.number <= ctx.replay_after:
            # what is before it was done again since, in a life that did not come to this step
            return None
        if isinstance(recorded.outcome, Failed) and not step.policy.keep_failure:
            return None
        if recorded.fingerprint != step.fingerprint and not self.retried.keeps(
            ctx.path, step.fingerprint
        ):
            if not (step.inner or self.accept_changes):
                raise changed_steps_error([(ctx.path, step.title)])
            return None
        return recorded

    def has_older_result(self, ctx: StepContext) -> bool:
        """May there be an older end of the step, which counts no more as soon as it is begun
        again?
        """
        return not ctx.can_replay if self.is_first_run else self.journal.step(ctx.path) is not None

    def take_step(self, path: str, spent: Budget, *names: str) -> LimitReached | None:
        """One of the steps that may be done, for a path; or which of these limits (that of steps)
        is reached.

        A step that an earlier life has counted is not counted again when it is done again, once.
        """
        if self.was_counted(path):
            return None
        reached = spent.take(*(names or ("steps",)), steps=1)
        if reached is None:
            self.charge(path, steps=1)
        return reached

    def budget_at(self, path: str) -> Budget | None:  # noqa: ARG002
        """What is used up by whoever is at a path; None: that of the run."""
        return None

    def was_counted(self, path: str) -> bool:  # noqa: ARG002
        """Has an earlier life used up one of the limited steps for it, and is it now done again,
        once?
        """
        return False

    def require_answer(self, step: Step, ctx: StepContext) -> None:
        """Raises a question about this step, and those about all others that are known by now."""
        asked = {ctx.path: step.title, **self.open_questions}
        answered = {*self._repeat, *self.marked_done}
        problems = [_question(self.id, path, asked[path]) for path in asked if path not in answered]
        raise InputError.together(problems)

    def is_repeated(self, path: str) -> bool:
        """The user has said of a step whose end nobody knows that it is to be done again."""
        return path in self._repeat

    def is_retried(self, path: str) -> bool:
        return path in self.retried.items


def _says_all(event: Event, start: StepStarted) -> bool:
    """Is the event the end of this step, which was tried once?"""
    return isinstance(event, StepFinished) and event.path == start.path and start.attempt == 1


def _question(run: str, path: str, title: str) -> Problem:
    return Problem(
        f"step '{title}' ({path}) may run only once, was begun, and its end is not known",
        None,
        f"find out whether it did its work; then plait resume {run} --repeat {path}, "
        f"or plait resume {run} --done {path}",
        code="once",
    )


class _Silence:
    """Stands for a teller where nobody listens."""

    def tell(self, event: Event) -> None:
        """There is nobody."""

    def close(self) -> None:
        """There is nothing to wait for."""


class _Teller:
    """Tells watchers what has happened, once it is safe."""

    def __init__(
        self, journal: Journal, watchers: list[Watch], record_starts: Callable[[], bool]
    ) -> None:
        self._journal = journal
        self._watchers = watchers
        self._record_starts = record_starts
        self._waiting: list[EventRecord] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._number = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="plait-teller", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        if self._watchers:
            with self._lock:
                self._number += 1
                self._waiting.append(EventRecord(self._number, time.time(), event))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing.is_set()
            try:
                self._pass_on()
            except (
                BaseException
            ) as error:  # `close` raises it, in the thread that can do something about it
                self._failure = error
                return
            if closing:
                return
            self._closing.wait(SYNC_PAUSE)  # not longer than somebody waits for the end

    def _pass_on(self) -> None:
        if self._record_starts():
            self._wake.set()  # what still runs is looked at again, even if nothing else happens
        with self._lock:
            told, self._waiting = self._waiting, []
        self._journal.sync()
        for watch in list(self._watchers):
            try:
                for stamped in told:
                    watch(stamped)
            except Exception:
                # A view that breaks must not break the run that it shows.
                self._watchers.remove(watch)
