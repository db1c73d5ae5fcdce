"""Items that were sent by another process: performed by the same steps, against a journal in
memory.

    receive     a parcel becomes a flow that is ready, once for all of its items
    perform     an errand becomes events and an outcome
    halt        what a parcel's errands are at ends
    forget      a parcel is needed no longer

A worker imports these by their names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from plait.adapters.dask import protocol as travel
from plait.adapters.dask.worker_state import task_watch, worker_name
from plait.adapters.process import jobs
from plait.app.remote.jobs import WorkerJob, WorkerJobs
from plait.core.errors import GuardianError, MachineError, PlaitError
from plait.core.hints import Final
from plait.core.records import replace
from plait.engine.backend import MapRun, WorkItem
from plait.engine.context import RunContext
from plait.engine.event_bus import StopSignal
from plait.engine.events import Event, StepFinished, StepRetrying, Usage
from plait.engine.journal import MemoryJournal, StepRecord
from plait.engine.outcome import Aborted, DeadlineExceeded, Failed, Failure, Interrupted, Outcome
from plait.engine.perform import StepContext

LOOK: Final = 0.1
"""Seconds between two looks whether an errand is to stop."""
TIDY: Final = 5.0
"""Seconds between two looks whether anything can be put away."""


class CancelWatch:
    def __init__(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[Callable[[], bool], StopSignal]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="plait-lookout", daemon=True
                )
                self._thread.start()

    def add(self, is_unwanted: Callable[[], bool], stop: StopSignal) -> int:
        self.begin()
        with self._lock:
            self._number += 1
            self._watched[self._number] = (is_unwanted, stop)
            return self._number

    def remove(self, number: int) -> None:
        with self._lock:
            self._watched.pop(number, None)

    def _look(self) -> None:
        tidied = time.monotonic()
        while True:
            threading.Event().wait(LOOK)
            with self._lock:
                watched = list(self._watched.values())
            for is_unwanted, stop in watched:
                if not stop.is_set() and is_unwanted():
                    stop.ask("cancelled")
            if time.monotonic() - tidied > TIDY:
                tidied = time.monotonic()
                self._tidy()


LONGEST: Final = 1.0
"""Seconds after which a worker tells what has ended, and leaves the rest to be sent again."""
LONGEST_TWIN: Final = 30.0
"""Seconds that a second errand waits for the end of one that was cancelled, for the same item."""
TWIN_LOOK: Final = 0.1

_PLACES: Final = WorkerJobs()
_LOOKOUT: Final = CancelWatch(_PLACES.drop_unused)
_RECEIVING: Final = threading.Lock()


def receive_job(message: bytes) -> bytes | None:
    """Make ready what all items of a parcel need; a reply if that cannot be."""
    versions, digest, data = travel.unpack_message(message)
    if versions != travel.own_versions():
        return _foreign()
    with _RECEIVING:
        known = _PLACES.find(digest)
        if known is not None:
            known.is_halted = False
            return None
        try:
            _PLACES.keep(digest, WorkerJob(travel.unpickle(data)))
        except PlaitError as error:
            return travel.pack_reply(_make_refusal(error, f"worker {worker_name()}: "))
        except OSError as error:
            return travel.pack_reply(_no_room(error))
    _LOOKOUT.begin()
    return None


def _foreign() -> bytes:
    return travel.pack_reply(travel.VersionMismatch(travel.own_versions(), worker_name()))


def _no_room(error: OSError) -> travel.ItemRefused:
    what = f"worker {worker_name()}: the files of the flow cannot be written: {error.strerror}"
    return travel.ItemRefused(
        "ProcessError", what, "look at the folder for temporary files there", "worker-files"
    )


def drop_job(digest: str) -> None:
    _PLACES.forget(digest)


def stop_job(digest: str, at_once: bool) -> int:
    """How many errands have not ended yet."""
    place = _PLACES.find(digest)
    return 0 if place is None else place.halt(at_once=at_once)


def perform_items(message: bytes) -> bytes:
    """Perform some items, one after the other."""
    versions, digest, data = travel.unpack_message(message)
    if versions != travel.own_versions():
        return _foreign()
    with _PLACES.used(digest) as place:
        if place is None:
            return travel.pack_reply(travel.JobMissing(worker_name()))
        return travel.pack_reply(_all_performed(place, travel.unpickle(data)))


def _all_performed(place: WorkerJob, errands: Sequence[travel.ItemTask]) -> travel.BatchReply:
    """Until the last, or one that does not end as items do, or others should hear of those that
    ended.
    """
    began = time.monotonic()
    replies: list[Single] = []
    for errand in errands:
        spent = time.monotonic() - began
        if replies and (spent > LONGEST or not isinstance(replies[-1], travel.ItemCompleted)):
            break
        left = errand.seconds_left
        replies.append(
            _perform_item(place, errand, None if left is None else max(0.0, left - spent))
        )
    return travel.BatchReply(tuple(replies), time.monotonic() - began)


def _perform_item(place: WorkerJob, errand: travel.ItemTask, left: float | None) -> Single:
    from plait.program.map import remote_map_run

    journal = MemoryJournal()
    if errand.known or errand.used:
        journal.append(*map(_as_finished, errand.known), *map(_as_used, errand.used))
        journal.reopen()
    known = journal.last()
    stop = StopSignal()
    path = f"{place.fan.name}/item:{errand.work.key}"
    with _at_work(place, path, stop):
        run = place.run(journal, stop)
        turn = StepContext(
            run,
            place.fan.name,
            place.scope,
            deadline=None if left is None else time.monotonic() + left,
            can_replay=errand.replaying,
            directory=place.directory,
            env=place.env,
        )
        try:
            with jobs.listening(partial(_warn, run, place, worker_name())):
                reply = _attempt_item(
                    remote_map_run(place.fan, turn, place.parcel.total), errand.work
                )
        finally:
            run.events.close()
    events = travel.worth_recording([stamped.event for stamped in journal.events(known)])
    single = reply(place, events)
    hidden = set(run.secrets.values()).difference(place.hidden)
    if hidden and isinstance(single, travel.ItemCompleted):
        return replace(single, hidden=tuple(map(travel.SealedSecret, sorted(hidden))))
    return single


def _warn(run: RunContext, place: WorkerJob, worker: str, what: str) -> None:
    """What is wrong with a worker, once for all items of a parcel."""
    if what not in place.noted:
        place.noted.add(what)
        run.events.warn("", f"worker {worker}: {what}")


Single = travel.ItemCompleted | travel.ItemStopped | travel.RunLimitReached | travel.ItemRefused
Answer = Callable[[WorkerJob, tuple[Event, ...]], Single]


def _attempt_item(fanned: MapRun, work: WorkItem) -> Answer:
    try:
        outcome = fanned.perform(work)
    except Interrupted:
        return lambda place, events: travel.ItemStopped()  # noqa: ARG005 - one shape for all
    except DeadlineExceeded:
        return lambda place, events: travel.ItemStopped(out_of_time=True)  # noqa: ARG005 - the same
    except Aborted as aborted:
        failure, path = aborted.failure, aborted.path
        return lambda place, events: travel.RunLimitReached(failure, path, events)  # noqa: ARG005 - the same
    except PlaitError as error:
        # What this machine is short of, or what died here, is to be looked for here.
        is_local = isinstance(error, GuardianError | MachineError)
        refused = _make_refusal(error, f"worker {worker_name()}: " if is_local else "")
        return lambda place, events: refused  # noqa: ARG005 - the same
    return lambda place, events: travel.ItemCompleted(
        _with_run_paths(outcome, place), tuple(_event_placed(event, place) for event in events)
    )


def _event_placed(event: Event, place: WorkerJob) -> Event:
    if isinstance(event, StepFinished) and isinstance(event.outcome, Failed):
        return replace(event, outcome=_with_run_paths(event.outcome, place))
    return event


def _with_run_paths(outcome: Outcome, place: WorkerJob) -> Outcome:
    """What a failure says of files, with the names that they have where the run is."""
    if place.project == place.parcel.project or not isinstance(outcome, Failed):
        return outcome
    message = outcome.failure.message.replace(place.project, place.parcel.project)
    return Failed(replace(outcome.failure, message=message))


def _make_refusal(error: PlaitError, before: str = "") -> travel.ItemRefused:
    return travel.ItemRefused(type(error).__name__, f"{before}{error.what}", error.fix, error.code)


def _as_finished(known: StepRecord) -> StepFinished:
    return StepFinished(
        known.path, "", known.title, known.fingerprint, known.outcome, known.duration, known.order
    )


def _as_used(one: tuple[str, Usage]) -> StepRetrying:
    """What was used up at a path before, as an attempt: no end of it that would count."""
    path, used = one
    return StepRetrying(path, 0, Failure(""), 0.0, used=used)


# ── cancelling ───────────────────────────────────────────────────────────


@contextmanager
def _at_work(place: WorkerJob, path: str, stop: StopSignal) -> Iterator[None]:
    """While an item is performed: whether it is still wanted is looked at by a thread for all."""
    _wait_for_twin(place, path)
    place.errands[path] = stop
    is_unwanted = task_watch()
    if place.is_halted or is_unwanted():
        stop.ask("cancelled")
    number = _LOOKOUT.add(is_unwanted, stop)
    try:
        yield
    finally:
        _LOOKOUT.remove(number)
        place.errands.pop(path, None)


def _wait_for_twin(place: WorkerJob, path: str) -> None:
    """The same item, cancelled and not yet ended here: two at a time would be one too many."""
    until = time.monotonic() + LONGEST_TWIN
    while (twin := place.errands.get(path)) is not None and time.monotonic() < until:
        twin.ask("cancelled")
        threading.Event().wait(TWIN_LOOK)
