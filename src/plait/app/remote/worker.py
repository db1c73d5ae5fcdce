"""The worker's side of a map: items run through the same steps, with a journal in memory.

    receive_job     load the flow of a job, once for all of its items
    perform_items   perform items; the reply has their outcomes and events
    stop_job        stop the items of a job that run now
    drop_job        remove a job

A worker imports these functions by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from plait.adapters.dask import protocol
from plait.adapters.dask.worker_state import task_watch, worker_name
from plait.adapters.process import guardian_process
from plait.app.remote.jobs import WorkerJob, WorkerJobs
from plait.app.remote.payload import ItemTask
from plait.core.errors import GuardianError, MachineError, PlaitError
from plait.core.hints import Final
from plait.core.records import replace
from plait.engine.backend import MapRun, WorkItem
from plait.engine.context import RunContext
from plait.engine.events import Event, StepFinished, StepRetrying, Usage
from plait.engine.journal import MemoryJournal, StepRecord
from plait.engine.outcome import Aborted, DeadlineExceeded, Failed, Failure, Interrupted, Outcome
from plait.engine.paths import item_name, join_path
from plait.engine.perform import StepContext
from plait.engine.stop import StopSignal
from plait.program.map import remote_map_run

POLL: Final = 0.1
"""Seconds between two checks whether an item was cancelled."""
CLEAN_UP_INTERVAL: Final = 5.0
"""Seconds between two checks whether a job can be removed."""
REPLY_AFTER: Final = 1.0
"""Seconds after which a worker replies with the items that ended; the others are sent again."""
CANCELLED_TASK_WAIT: Final = 30.0
"""Seconds that an item waits for the end of its own cancelled task."""

ItemReply = (
    protocol.ItemCompleted | protocol.ItemStopped | protocol.RunLimitReached | protocol.ItemRefused
)


class CancelWatch:
    """One thread that stops the items whose tasks were cancelled, and removes unused jobs."""

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
                    target=self._watch, name="plait-cancel-watch", daemon=True
                )
                self._thread.start()

    def add(self, is_cancelled: Callable[[], bool], stop: StopSignal) -> int:
        self.begin()
        with self._lock:
            self._number += 1
            self._watched[self._number] = (is_cancelled, stop)
            return self._number

    def remove(self, number: int) -> None:
        with self._lock:
            self._watched.pop(number, None)

    def _watch(self) -> None:
        tidied = time.monotonic()
        while True:
            threading.Event().wait(POLL)
            with self._lock:
                watched = list(self._watched.values())
            for is_cancelled, stop in watched:
                if not stop.is_set() and is_cancelled():
                    stop.ask("cancelled")
            if time.monotonic() - tidied > CLEAN_UP_INTERVAL:
                tidied = time.monotonic()
                self._tidy()


_JOBS: Final = WorkerJobs()
_CANCEL_WATCH: Final = CancelWatch(_JOBS.drop_unused)
_RECEIVING: Final = threading.Lock()


def receive_job(message: bytes) -> bytes | None:
    """Load a job; return a reply only if that fails."""
    versions, digest, data = protocol.unpack_message(message)
    if versions != protocol.own_versions():
        return _version_mismatch()
    with _RECEIVING:
        job = _JOBS.find(digest)
        if job is not None:
            job.is_stopped = False
            return None
        try:
            _JOBS.keep(digest, WorkerJob(protocol.unpickle(data)))
        except PlaitError as error:
            return protocol.pack_reply(_make_refusal(error, f"worker {worker_name()}: "))
        except OSError as error:
            return protocol.pack_reply(_make_files_refusal(error))
    _CANCEL_WATCH.begin()
    return None


def _version_mismatch() -> bytes:
    return protocol.pack_reply(protocol.VersionMismatch(protocol.own_versions(), worker_name()))


def _make_refusal(error: PlaitError, prefix: str = "") -> protocol.ItemRefused:
    return protocol.ItemRefused(
        type(error).__name__, f"{prefix}{error.what}", error.fix, error.code
    )


def _make_files_refusal(error: OSError) -> protocol.ItemRefused:
    what = f"worker {worker_name()}: the files of the flow cannot be written: {error.strerror}"
    return protocol.ItemRefused(
        "ProcessError", what, "look at the folder for temporary files there", "worker-files"
    )


def drop_job(digest: str) -> None:
    _JOBS.drop(digest)


def stop_job(digest: str, at_once: bool) -> int:
    """Stop the items of a job; return how many still run."""
    job = _JOBS.find(digest)
    return 0 if job is None else job.stop(at_once=at_once)


def perform_items(message: bytes) -> bytes:
    """Perform items, one after the other."""
    versions, digest, data = protocol.unpack_message(message)
    if versions != protocol.own_versions():
        return _version_mismatch()
    with _JOBS.use(digest) as job:
        if job is None:
            return protocol.pack_reply(protocol.JobMissing(worker_name()))
        return protocol.pack_reply(_perform_batch(job, protocol.unpickle(data)))


def _perform_batch(job: WorkerJob, tasks: Sequence[ItemTask]) -> protocol.BatchReply:
    """Ends early after REPLY_AFTER seconds, or when an item did not complete."""
    began = time.monotonic()
    replies: list[ItemReply] = []
    for task in tasks:
        elapsed = time.monotonic() - began
        if replies and (
            elapsed > REPLY_AFTER or not isinstance(replies[-1], protocol.ItemCompleted)
        ):
            break
        left = task.seconds_left
        replies.append(_perform_item(job, task, None if left is None else max(0.0, left - elapsed)))
    return protocol.BatchReply(tuple(replies), time.monotonic() - began)


def _perform_item(job: WorkerJob, task: ItemTask, left: float | None) -> ItemReply:
    journal = MemoryJournal()
    if task.records or task.usage:
        journal.append(*map(_finished_event, task.records), *map(_usage_event, task.usage))
        journal.reopen()
    replayed = journal.last()
    stop = StopSignal()
    path = join_path(job.map.name, item_name(task.work.key))
    with _item_running(job, path, stop):
        run = job.run(journal, stop)
        ctx = StepContext(
            run,
            job.map.name,
            job.scope,
            deadline=None if left is None else time.monotonic() + left,
            can_replay=task.can_replay,
            directory=job.directory,
            env=job.env,
        )
        try:
            with guardian_process.listening(partial(_warn, run, job, worker_name())):
                map_run = remote_map_run(job.map, ctx, job.payload.total)
                ended = _attempt_item(map_run, task.work)
        finally:
            run.events.close()
    events = protocol.events_to_record([record.event for record in journal.events(replayed)])
    match ended:
        case Aborted():
            return protocol.RunLimitReached(ended.failure, ended.path, events)
        case protocol.ItemStopped() | protocol.ItemRefused():
            return ended
    secrets = set(run.secrets.values()).difference(job.secret_texts)
    return protocol.ItemCompleted(
        _with_run_paths(ended, job),
        tuple(_event_with_run_paths(event, job) for event in events),
        tuple(map(protocol.SealedSecret, sorted(secrets))),
    )


def _warn(run: RunContext, job: WorkerJob, worker: str, what: str) -> None:
    """Warn about the machine, once for all items of a job."""
    if what not in job.noted:
        job.noted.add(what)
        run.events.warn("", f"worker {worker}: {what}")


def _attempt_item(
    map_run: MapRun, work: WorkItem
) -> Outcome | Aborted | protocol.ItemStopped | protocol.ItemRefused:
    try:
        return map_run.perform(work)
    except Interrupted:
        return protocol.ItemStopped()
    except DeadlineExceeded:
        return protocol.ItemStopped(out_of_time=True)
    except Aborted as aborted:
        return aborted
    except PlaitError as error:
        # These are problems of this machine, so the message names the worker.
        is_local = isinstance(error, GuardianError | MachineError)
        return _make_refusal(error, f"worker {worker_name()}: " if is_local else "")


def _event_with_run_paths(event: Event, job: WorkerJob) -> Event:
    if isinstance(event, StepFinished) and isinstance(event.outcome, Failed):
        return replace(event, outcome=_with_run_paths(event.outcome, job))
    return event


def _with_run_paths(outcome: Outcome, job: WorkerJob) -> Outcome:
    """The outcome, with the project's path of the run's machine in its message."""
    if job.project == job.payload.project or not isinstance(outcome, Failed):
        return outcome
    message = outcome.failure.message.replace(job.project, job.payload.project)
    return Failed(replace(outcome.failure, message=message))


def _finished_event(record: StepRecord) -> StepFinished:
    return StepFinished(
        record.path,
        "",
        record.title,
        record.fingerprint,
        record.outcome,
        record.duration,
        record.order,
    )


def _usage_event(usage_at: tuple[str, Usage]) -> StepRetrying:
    """Earlier usage at a path, as a failed attempt: it counts, and replaces no outcome."""
    path, usage = usage_at
    return StepRetrying(path, 0, Failure(""), 0.0, used=usage)


# ── cancelling ───────────────────────────────────────────────────────────


@contextmanager
def _item_running(job: WorkerJob, path: str, stop: StopSignal) -> Iterator[None]:
    """Within this, `stop` is set when the item's task is cancelled or its job is stopped."""
    _wait_for_twin(job, path)
    job.running[path] = stop
    is_cancelled = task_watch()
    if job.is_stopped or is_cancelled():
        stop.ask("cancelled")
    number = _CANCEL_WATCH.add(is_cancelled, stop)
    try:
        yield
    finally:
        _CANCEL_WATCH.remove(number)
        job.running.pop(path, None)


def _wait_for_twin(job: WorkerJob, path: str) -> None:
    """Wait until a cancelled task of the same item has ended: an item must not run twice at once."""
    until = time.monotonic() + CANCELLED_TASK_WAIT
    while (twin := job.running.get(path)) is not None and time.monotonic() < until:
        twin.ask("cancelled")
        threading.Event().wait(POLL)
