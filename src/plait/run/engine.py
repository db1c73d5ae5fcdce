"""What all steps of one run share: its journal, its watchers, and the wish to stop.

Events go to the journal first and to watchers afterwards, when a power cut could
no longer undo them: a thread of its own syncs the journal every 20 ms while there
is something to tell, and then tells it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from random import Random

from plait.errors import InputError
from plait.hints import TYPE_CHECKING, Final
from plait.run.events import Event, Noted, StepFinished, StepStarted
from plait.run.journal import Journal, Stamped
from plait.run.outcome import Failed, Interrupted, Outcome

if TYPE_CHECKING:
    from plait.run.perform import Step, Turn

SYNC_PAUSE: Final = 0.02
"""Seconds between two syncs, while there is something to sync."""
SLEEP: Final = 0.05
"""Seconds between two looks whether the run is to stop, while a step waits for its next attempt."""

Watch = Callable[[Stamped], None]
Mask = Callable[[str], str]


class Stop:
    """The wish to stop: once is to begin nothing new and end what runs; twice is at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.at_once = False
        self.why = ""

    def ask(self, why: str = "interrupted") -> None:
        self.at_once = self._event.is_set()
        self.why = self.why or why
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


class Run:
    """One life of a run."""

    def __init__(
        self,
        id: str,
        journal: Journal,
        *,
        watchers: Iterable[Watch] = (),
        stop: Stop | None = None,
        mask: Mask = str,
        random: Random | None = None,
        accept_changes: bool = False,
        repeat: Iterable[str] = (),
        full_durability: bool = False,
    ) -> None:
        self.id = id
        self.journal = journal
        self.stop = stop or Stop()
        self.mask = mask
        self.random = random or Random()
        self.fresh = journal.is_fresh()
        self.accept_changes = accept_changes
        self.full_durability = full_durability
        self._repeat = frozenset(repeat)
        self._starts: list[Event] = []
        self._teller = _Teller(journal, list(watchers))

    # ── events ───────────────────────────────────────────────────────────

    def emit(self, event: Event) -> None:
        # Journal first: nobody may act on an event that a crash could undo.
        starts, self._starts = self._starts, []
        self.journal.append(*starts, event)
        if self.full_durability:
            self.journal.sync()
        self._teller.tell(event)

    def emit_start(self, event: StepStarted, *, at_once: bool) -> None:
        """A start may be lost by a crash, since the step is then done again; unless it must not be."""
        if at_once:
            self.emit(event)
            self.journal.sync()
            return
        self._starts.append(event)
        self._teller.tell(event)

    def note(self, path: str, message: str) -> None:
        self.emit(Noted(path, self.mask(message)))

    def close(self) -> None:
        """What was recorded is safe, and watchers have heard of it, when this returns."""
        starts, self._starts = self._starts, []
        if starts:
            self.journal.append(*starts)
        self._teller.close()

    # ── stopping ─────────────────────────────────────────────────────────

    def is_stopping(self) -> bool:
        return self.stop.is_set()

    def expect_going(self) -> None:
        if self.stop.is_set():
            raise Interrupted

    def pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Interrupted

    # ── remembering ──────────────────────────────────────────────────────

    def known(self, step: Step, turn: Turn) -> Outcome | None:
        """The outcome of a step that an earlier life of this run has finished."""
        if not turn.replaying:
            return None
        recorded = self.journal.recorded(turn.path)
        if recorded is None:
            if step.policy.once and turn.path not in self._repeat and self.journal.was_started(turn.path):
                raise _asks(step, turn)
            return None
        if isinstance(recorded.outcome, Failed) and not step.policy.failure_is_final:
            return None
        if recorded.fingerprint != step.fingerprint:
            if not (step.inner or self.accept_changes):
                raise changed_steps([(turn.path, step.title)])
            return None
        self._teller.tell(
            StepFinished(
                turn.path,
                step.kind,
                step.title,
                step.fingerprint,
                recorded.outcome,
                recorded.duration,
                turn.order,
                replayed=True,
            )
        )
        return recorded.outcome


def _asks(step: Step, turn: Turn) -> InputError:
    return InputError(
        f"step '{step.title}' ({turn.path}) may run only once, was begun, and its end is not known",
        fix=f"find out whether it did its work; then plait resume --repeat {turn.path}, "
        f"or plait resume --done {turn.path}",
        code="once",
    )


def changed_steps(steps: Iterable[tuple[str, str]]) -> InputError:
    named = [f"{path} ({title})" for path, title in steps]
    return InputError(
        "the file has changed since these steps were done: " + ", ".join(named[:20]),
        fix="plait resume --accept-changes does them again, and all that follows them; "
        "or put the file back as it was",
        code="changed",
    )


class _Teller:
    """Tells watchers what has happened, once it is safe."""

    def __init__(self, journal: Journal, watchers: list[Watch]) -> None:
        self._journal = journal
        self._watchers = watchers
        self._waiting: list[Stamped] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._number = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="plait-teller", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        with self._lock:
            self._number += 1
            self._waiting.append(Stamped(self._number, time.time(), event))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            try:
                self._pass_on()
            except BaseException as error:
                self._failure = error
                return
            if closing:
                return
            time.sleep(SYNC_PAUSE)

    def _pass_on(self) -> None:
        with self._lock:
            told, self._waiting = self._waiting, []
        if not told:
            return
        self._journal.sync()
        for watch in list(self._watchers):
            try:
                for stamped in told:
                    watch(stamped)
            except Exception:
                # A view that breaks must not break the run that it shows.
                self._watchers.remove(watch)
