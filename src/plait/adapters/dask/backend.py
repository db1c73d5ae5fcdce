"""Items on the workers of a Dask cluster; the journal stays in this process.

    items → tasks, a few at a time → scheduler → workers → replies → journal, one transaction each

The scheduler never has more items than may run at a time, nor more than twice the tasks that its
workers can run. So a million items do not fill it, and a death repeats few of them. A task costs
milliseconds: short items are sent several to a task, as long as all threads stay busy.

This process notices what makes no progress. If a worker has no heartbeat for `stall_timeout`, its
items are sent to others. A task that no worker has is sent again. A cluster without workers ends
the run after `wait_for_workers`.

Each task is for one worker. Dask would repeat tasks of a dead worker even if their outcomes are
recorded meanwhile; it cannot repeat a task that no other worker may take. So only this process
decides what is sent again, by what is recorded. A second reply for an item is dropped.

The graph for the scheduler names only functions of Python, so only workers need Plait.
"""

from __future__ import annotations

import operator
import pkgutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from functools import partial

from plait.adapters.dask import protocol
from plait.adapters.dask.cluster import (
    Cluster,
    Preempted,
    TimedCall,
    open_cluster,
    quiet,
    require_dask,
    seconds_to_stop,
)
from plait.adapters.dask.connection import CLOSING_IF_SILENT, Connection, SchedulerLost
from plait.adapters.dask.replies import to_error
from plait.adapters.dask.tasks import FETCHES, FetchEnded, Replies, Task, Tasks
from plait.adapters.dask.workers import Workers, raise_refusal
from plait.adapters.local import LocalBackend
from plait.core.errors import InternalError, format_names
from plait.core.hints import Final
from plait.engine.backend import Finished, JobPacker, MapRun, Perform, RemoteBackend, WorkItem
from plait.engine.context import RunContext
from plait.engine.events import Event, StepFinished, StepStarted
from plait.engine.outcome import Aborted, DeadlineExceeded, Failed, Failure, Outcome, Skipped
from plait.engine.perform import StepContext
from plait.engine.step import Step
from plait.engine.stop import StopSignal

__all__ = ["CLOSING_IF_SILENT", "FETCHES", "DaskBackend", "DaskRun"]

AHEAD: Final = 2
"""Short tasks per thread of a worker, so that no thread waits for the next task."""
SHORT: Final = 1.0
"""Seconds of a short task; no task waits behind a longer one."""
TASK: Final = 0.2
"""Seconds that a task of several items should take."""
MOST_ITEMS: Final = 64
"""The number of items in one task."""
STALL: Final = 60.0
"""Default of `stall_timeout`: seconds that a scheduler or a worker may not respond."""
WAIT: Final = 600.0
"""Default of `wait_for_workers`: seconds without a worker that takes items."""
REVIEW: Final = 5.0
"""Seconds between two checks whether workers still have all tasks."""
ALONE: Final = 2
"""The number of workers that may die with an item; after that, it runs alone on a worker."""
TOO_MANY: Final = 4
"""The number of deaths after which the item fails."""


class DaskBackend(RemoteBackend):
    """The workers of the cluster at an address, or of a local cluster for this map only."""

    takes_address = True

    def __init__(self, address: str = "") -> None:
        super().__init__(address)
        self._stall_timeout = STALL
        self._wait_for_workers = WAIT
        self._packer: JobPacker | None = None

    def check(self, stop: StopSignal) -> None:
        """Check that Dask is installed, and that the cluster at the address answers."""
        require_dask()
        if self.address:
            with quiet(), suppress(Preempted):
                Cluster(self.address, self.address).require_available(should_preempt=stop.is_set)

    def bind(
        self, packer: JobPacker, *, stall_timeout: float | None, wait_for_workers: float | None
    ) -> None:
        self._packer = packer
        self._stall_timeout = STALL if stall_timeout is None else stall_timeout
        self._wait_for_workers = WAIT if wait_for_workers is None else wait_for_workers

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,
        map_run: MapRun | None = None,
    ) -> None:
        if map_run is None or self._packer is None or not self._packer.takes(map_run):
            LocalBackend().run(items, perform, finished, parallel=parallel)
            return
        with quiet(), open_cluster(self.address, parallel) as cluster:
            DaskRun(
                cluster,
                self._packer,
                items,
                finished,
                parallel,
                map_run,
                patience=self._stall_timeout,
                wait=self._wait_for_workers,
            ).work()


class DaskRun:
    """One map on one cluster, from the first item to the last; used by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        packer: JobPacker,
        items: Iterator[WorkItem],
        finished: Finished,
        parallel: int,
        map_run: MapRun,
        *,
        patience: float = STALL,
        wait: float = WAIT,
    ) -> None:
        """`patience`: seconds that the scheduler or a worker may not respond; `wait`: seconds
        without a worker that takes items."""
        self._packer = packer
        self._items = items
        self._finished = finished
        self._parallel = parallel
        self._map_run = map_run
        self._run: RunContext = map_run.ctx.run
        self._connection = Connection(cluster, packer, self._run, map_run.ctx.path, patience)
        self._again: deque[WorkItem] = deque()
        """Items that are sent before others, because they must run again."""
        self._tasks = Tasks()
        self._replies = Replies(self._connection, self._tasks, self._again.extend)
        self._wait = wait
        self._prefix = f"plait-{uuid.uuid4().hex[:12]}"
        self._numbers = 0
        self._deaths: Counter[str] = Counter()
        """The number of workers that died while they may have run an item, by item."""
        self._pace: float | None = None
        """Seconds per item."""
        self._reviewed = 0.0
        self._error: BaseException | None = None
        self._exhausted = False

    def work(self) -> None:
        self._digest, job = self._packer.pack_job(
            self._map_run, shared=self._connection.cluster.is_ours
        )
        self._workers = Workers(
            self._connection, self._packer, self._run, job, self._lose_tasks, wait=self._wait
        )
        if not self._connection.open():
            return  # the run must stop
        try:
            self._until_all_ended()
        finally:
            self._connection.drop_job(self._digest)
            self._connection.close()
        if self._error is not None:
            raise self._error

    def _until_all_ended(self) -> None:
        try:
            while self._goes_on() and not self._run.stop.is_set():
                pass
        finally:
            self._cancel()

    def _goes_on(self) -> bool:
        """Send items and take replies; False if there is nothing more to do."""
        try:
            if not self._fill():
                return False
            self._take()
        except SchedulerLost:
            self._reconnect()
        except Preempted:
            pass
        if self._connection.is_other_scheduler() and not self._run.stop.is_set():
            self._reconnect()
        return True

    # ── sending ──────────────────────────────────────────────────────────

    def _fill(self) -> bool:
        """Send as many items as there is room for; False if there is nothing to wait for."""
        if self._workers.update(self._tasks.busy_workers()):
            self._replies.fetch_misses()
        self._review()
        if self._error is not None:
            return bool(self._tasks.running)  # lost items are not sent again
        # Workers check the time too, but there may be none, or they may be stuck.
        end = self._map_run.ctx.ends_at()
        grace = seconds_to_stop() if self._tasks.running else 0
        if end is not None and time.monotonic() > end + grace:
            raise DeadlineExceeded
        sent: dict[str, dict[str, list[WorkItem]]] = {}
        free, batch = self._free_slots(), self._batch_size()
        room = self._parallel - self._tasks.count_items()
        while room > 0 and free:
            works = self._next_batch(min(room, batch))
            if not works:
                break
            worker = self._take_worker(free, works, sent.keys())
            if worker is None:
                self._again.extendleft(reversed(works))
                break
            self._numbers += 1
            sent.setdefault(worker, {})[f"{self._prefix}-{self._numbers}"] = works
            room -= len(works)
        for worker, tasks in sent.items():
            self._send(worker, tasks)
        return bool(self._tasks.running or self._again) or not self._exhausted

    def _take_worker(
        self, free: dict[str, int], works: list[WorkItem], sent: Set[str]
    ) -> str | None:
        """Return the worker with the most room; for a suspect item, one without tasks."""
        if self._is_suspect(works):
            busy = self._tasks.busy_workers() | sent
            idle = next((one for one in free if one not in busy), None)
            if idle is not None:
                del free[idle]
            return idle
        worker = max(free, key=lambda one: free[one] / self._workers.threads[one])
        free[worker] -= 1
        if not free[worker]:
            del free[worker]
        return worker

    def _is_suspect(self, works: list[WorkItem]) -> bool:
        """Whether workers have died with one of these items."""
        return any(self._deaths[work.key] >= ALONE for work in works)

    def _free_slots(self) -> dict[str, int]:
        """How many tasks each worker can take; without those that can take none."""
        is_short = self._pace is not None and self._pace * self._batch_size() < SHORT
        ahead = AHEAD if is_short else 1
        running = self._tasks.running.values()
        counts = Counter(task.worker for task in running)
        alone = {task.worker for task in running if self._is_suspect(task.works)}
        free = {
            worker: ahead * threads - counts[worker]
            for worker, threads in self._workers.threads.items()
        }
        return {
            worker: slots for worker, slots in free.items() if slots > 0 and worker not in alone
        }

    def _batch_size(self) -> int:
        """How many items a task gets."""
        threads = sum(self._workers.threads.values())
        if self._pace is None or not threads:
            return 1
        per_slot = self._parallel // (AHEAD * threads)
        return max(1, min(int(TASK / max(self._pace, 1e-4)), per_slot, MOST_ITEMS))

    def _next_batch(self, most: int) -> list[WorkItem]:
        """Return the next items; a suspect item comes alone."""
        works: list[WorkItem] = []
        while len(works) < most and (work := self._next_item()) is not None:
            if self._is_suspect([work]):
                if works:
                    self._again.appendleft(work)
                    break
                return [work]
            works.append(work)
        return works

    def _next_item(self) -> WorkItem | None:
        """Return the next item without a recorded outcome; the others are finished at once."""
        if self._again:
            return self._again.popleft()
        while not self._exhausted:
            work = next(self._items, None)
            if work is None:
                self._exhausted = True
                return None
            step, ctx = self._map_run.item_step(work)
            recorded = ctx.run.replay.find(step, ctx)
            if recorded is None:
                if ctx.is_expired():
                    raise DeadlineExceeded
                self._run.events.notify(StepStarted(ctx.path, step.kind, step.title, 1, ctx.order))
                return work
            self._finished(work, recorded)
        return None

    def _send(self, worker: str, tasks: Mapping[str, list[WorkItem]]) -> None:
        perform = (pkgutil.resolve_name, self._packer.perform)
        graph = {
            key: (
                operator.call,
                perform,
                self._packer.pack_items(self._digest, self._map_run, works),
            )
            for key, works in tasks.items()
        }
        try:
            futures = self._connection.client.get(
                graph, list(tasks), workers=[worker], allow_other_workers=False, sync=False
            )
        except (OSError, AttributeError, RuntimeError):
            if not self._connection.is_other_scheduler():
                raise
            self._again.extend(work for works in tasks.values() for work in works)
            return
        for key, future in zip(tasks, futures, strict=True):
            self._tasks.add(key, tasks[key], worker, future)
            self._replies.expect(future)

    # ── receiving ────────────────────────────────────────────────────────

    def _take(self) -> None:
        for message in self._replies.messages():
            if isinstance(message, FetchEnded):
                for task, reply in self._replies.fetch_ended(message):
                    self._handle_reply(task, self._unpack_reply(reply))
                if message.fetched.error is not None or message.fetched.missing:
                    self._workers.update_soon()
            else:
                self._replies.task_ended(message)
        self._replies.fetch()

    def _unpack_reply(self, data: bytes) -> protocol.Reply:
        reply = protocol.unpack_reply(data)
        for one in reply.replies if isinstance(reply, protocol.BatchReply) else (reply,):
            if isinstance(one, protocol.ItemCompleted):
                self._packer.add_secrets(secret.to_secret() for secret in one.new_secrets)
        masked: protocol.Reply = self._connection.mask(reply)
        return masked

    def _handle_reply(self, task: Task, reply: protocol.Reply) -> None:
        works = task.works
        match reply:
            case protocol.BatchReply(replies, seconds):
                each = seconds / max(1, len(replies))
                self._pace = each if self._pace is None else (3 * self._pace + each) / 4
                self._run.events.append_remote(
                    tuple(event for one in replies for event in _events(one))
                )
                for work, one in zip(works, replies, strict=False):
                    self._handle_item_reply(work, one)
                self._again += works[len(replies) :]
            case protocol.JobMissing():
                self._again += works
                self._workers.drop(task.worker)
            case protocol.VersionMismatch():
                raise_refusal(reply)
            case _:
                raise InternalError("a worker sent an unknown reply", code="cluster")

    def _handle_item_reply(self, work: WorkItem, reply: protocol.Reply) -> None:
        match reply:
            case protocol.ItemCompleted(outcome):
                self._finished(work, outcome)
            case protocol.ItemStopped(out_of_time=True):
                self._error = self._error or DeadlineExceeded()
            case protocol.ItemStopped():
                self._again.append(work)  # its worker was shut down
            case protocol.RunLimitReached(failure, path):
                self._error = self._error or Aborted(failure, path)
            case protocol.ItemRefused():
                self._error = self._error or to_error(reply)

    # ── lost tasks, workers and schedulers ───────────────────────────────

    def _review(self) -> None:
        """Send again the items of stuck workers, and the items that no worker has."""
        pause = min(REVIEW, self._connection.patience / 4)
        old = self._tasks.older_than(pause)
        if not (old or self._workers.stuck) or time.monotonic() - self._reviewed < pause:
            return
        heartbeats, processing = self._connection.ask(self._heartbeats_and_tasks)
        self._reviewed = time.monotonic()
        self._workers.note_heartbeats(heartbeats)
        for worker in {self._tasks.running[key].worker for key in old}:
            since = self._replies.fetching_since(worker)
            waited = 0.0 if since is None else time.monotonic() - since
            if self._workers.is_stuck(worker, waited):
                self._leave(worker)
        lost = self._tasks.take_lost(old, processing)
        if lost:
            self._connection.note(
                f"{len(lost)} items were lost on the cluster; they are sent again"
            )
            self._again += lost

    def _heartbeats_and_tasks(self) -> tuple[dict[str, object], set[str]]:
        client = self._connection.client
        workers = client.scheduler_info(n_workers=-1)["workers"]
        heartbeats = {worker: info["last_seen"] for worker, info in workers.items()}
        return heartbeats, {key for keys in client.processing().values() for key in keys}

    def _leave(self, worker: str) -> None:
        """Cancel the tasks of a stuck worker, which may wake up: other workers get its items."""
        futures = [task.future for task in self._tasks.of_worker(worker)]
        self._workers.remove_lost(worker)
        TimedCall(partial(self._connection.client.cancel, futures, force=True))

    def _lose_tasks(self, worker: str, threads: int) -> None:
        """Send the items of a lost worker again, unless too many workers died with them."""
        self._replies.drop(worker)
        for number, task in enumerate(self._tasks.take_worker(worker)):
            if number < threads:  # the others had not begun
                self._deaths.update(work.key for work in task.works)
            for work in task.works:
                if self._deaths[work.key] >= TOO_MANY:
                    self._fail_item(work)
                else:
                    self._again.append(work)

    def _fail_item(self, work: WorkItem) -> None:
        step, ctx = self._map_run.item_step(work)
        failure = Failure(
            "its workers died or fell silent, one after the other, while they were at this item",
            "worker",
            path=ctx.path,
        )
        outcome: Outcome = (
            Skipped(failure.message) if step.policy.skip_on_failure else Failed(failure)
        )
        self._run.events.append_remote((_end(step, ctx, outcome),))
        self._finished(work, outcome)

    def _reconnect(self) -> None:
        """Reconnect after the scheduler is gone with all its tasks; items that are not
        recorded are sent again.
        """
        for task in self._tasks.take_all():
            self._again += task.works
        self._replies.clear()
        self._workers.clear()
        self._connection.reopen()

    def _cancel(self) -> None:
        """Stop all items; on return, their processes are gone, or the grace is over."""
        tasks = self._tasks.take_all()
        if not tasks:
            return
        left = self._connection.stop_items(
            self._digest, [task.future for task in tasks], {task.worker for task in tasks}
        )
        if left:
            self._connection.note(
                "items may still be running on "
                f"{format_names(left[:5])}{' and others' * (len(left) > 5)}: "
                "not reached. They are ended there when that is noticed, at the latest after a "
                "minute"
            )


def _events(reply: protocol.Reply) -> tuple[Event, ...]:
    if isinstance(reply, protocol.ItemCompleted | protocol.RunLimitReached):
        return reply.events
    return ()


def _end(step: Step, ctx: StepContext, outcome: Outcome) -> StepFinished:
    return StepFinished(ctx.path, step.kind, step.title, step.fingerprint, outcome, 0.0, ctx.order)
