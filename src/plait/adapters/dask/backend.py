"""Items on the workers of a Dask cluster; the journal stays here.

    items → errands → tasks, few at a time → scheduler → workers → replies → journal, a task a
    transaction

Never more items are with the scheduler than may run at a time, and never more tasks than twice what
its workers can take, so a million items do not fill it and a death repeats no more than it may.  A
task costs milliseconds: where items are shorter, several of them are one, as far as all threads
stay busy.

Replies are fetched for each worker by itself, so one that is stuck or gone keeps back nothing but
its own. What makes no progress is noticed here: others do what a worker has that had no heartbeat
for `stall_timeout`, a task that no worker has is sent again, and a cluster without workers ends the
run after `wait_for_workers`.

Each task is for one worker.  Dask does again what a dead worker had done as long as anybody may
want it, also if that is recorded here meanwhile; for a task that no other worker may take it
cannot.  So what is done again is decided here, by what is recorded.  A reply that comes twice is
dropped.

The graph that the scheduler gets names functions of Python alone, so only workers need Plait.
"""

from __future__ import annotations

import operator
import pkgutil
import queue
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial

from plait.adapters.dask import protocol
from plait.adapters.dask.cluster import (
    CONNECT,
    Cluster,
    Fetched,
    NoAnswer,
    Preempted,
    TimedCall,
    open_cluster,
    quiet,
    require_dask,
    seconds_to_stop,
    stop_workers,
)
from plait.adapters.dask.heartbeats import Signs
from plait.adapters.dask.replies import (
    RemoteError,
    mask_reply,
    mismatch,
    require_same_versions,
    to_error,
    unexpected_worker_error,
    unloadable,
)
from plait.adapters.local import LocalBackend
from plait.core.errors import InputError, InternalError, ProcessError, format_names
from plait.core.hints import Any, Final
from plait.core.records import dataclass
from plait.engine.backend import Finished, JobPacker, MapRun, Perform, RemoteBackend, WorkItem
from plait.engine.context import RunContext
from plait.engine.event_bus import StopSignal
from plait.engine.events import Event, StepFinished, StepStarted
from plait.engine.outcome import Aborted, DeadlineExceeded, Failed, Failure, Outcome, Skipped
from plait.engine.perform import StepContext
from plait.engine.step import Step

AHEAD: Final = 2
"""Short tasks for each thread of a worker, so that none waits for us."""
SHORT: Final = 1.0
"""Seconds of a short task; behind a longer one nothing waits that another worker could do."""
TASK: Final = 0.2
"""Seconds that a task of several items is to take."""
MOST_ITEMS: Final = 64
"""Of one task."""
STALL: Final = 60.0
"""Seconds that a scheduler may be gone, or that it or a worker may say nothing, unless the flow
says more.
"""
WAIT: Final = 600.0
"""Seconds that a cluster may have no worker that takes items, unless the flow says more."""
REVIEW: Final = 5.0
"""Seconds between two looks whether what is on its way is still somewhere."""
FETCHES: Final = 3
"""Questions for a reply that a living worker does not hand over, after which its items go again."""
QUIET: Final = 5.0
"""Seconds without an answer, after which we say that we wait for it."""
GREETING: Final = 1 / 6
"""Of our patience, until workers that were greeted together are greeted one by one: one may be
stuck.
"""
FIRST: Final = 1.0
"""Seconds that we do nothing but wait for the first workers."""
CLOSING: Final = 2.0
"""Seconds for the last words to a cluster."""
IN_VAIN: Final = 0.2
"""The same, if its scheduler does not answer."""
LOOK: Final = 0.1
"""Seconds between two looks whether the run is to stop."""
COUNT: Final = 0.5
"""Seconds between two looks which workers there are."""
ALONE: Final = 2
"""Deaths of workers while they may have been at an item, after which one has it alone …"""
TOO_MANY: Final = 4
"""… and after which it has failed."""


class DaskBackend(RemoteBackend):
    """The workers of the cluster at an address, or of a local cluster for this map only."""

    takes_address = True

    def __init__(self, address: str = "") -> None:
        super().__init__(address)
        self._stall_timeout = STALL
        self._wait_for_workers = WAIT
        self._packer: JobPacker | None = None

    def check(self, stop: StopSignal) -> None:
        """Dask is installed, and the cluster at the address answers."""
        require_dask()
        if self.address:
            with quiet(), suppress(Preempted):
                Cluster(self.address, self.address).require_available(gives_way=stop.is_set)

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


# ── the items ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Flight:
    """A task that is on its way."""

    works: list[WorkItem]
    worker: str
    future: Any
    since: float


@dataclass(frozen=True, slots=True)
class _Question:
    """For the replies of tasks that one worker has ended."""

    worker: str
    keys: list[str]
    since: float


@dataclass(frozen=True, slots=True)
class _Answer:
    question: _Question
    fetched: Fetched


@dataclass(frozen=True, slots=True)
class _Greeting:
    """Workers that were asked whether they are such as we need."""

    workers: tuple[str, ...]
    call: TimedCall
    since: float


class _Lost(Exception):
    """The scheduler is gone, or another one."""


class DaskRun:
    """One fan on one cluster, from the first item to the last; used by one thread."""

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
        """`patience`: seconds that the scheduler may be gone, or that it or a worker may say
        nothing; `wait`: seconds that there may be no worker that takes items."""
        self._patience = patience
        self._wait = wait
        self._cluster = cluster
        self._packer = packer
        self._items = items
        self._finished = finished
        self._parallel = parallel
        self._map_run = map_run
        self._run: RunContext = map_run.turn.run
        self._life = uuid.uuid4().hex[:12]
        self._numbers = 0
        self._flying: dict[str, _Flight] = {}
        """In the order in which they were sent."""
        self._again: deque[WorkItem] = deque()
        self._deaths: Counter[str] = Counter()
        """By the keys of items: workers that died while they may have been at them."""
        self._pace: float | None = None
        """Seconds that an item takes."""
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Tasks that have ended, and answers to questions for their replies."""
        self._ready: dict[str, list[str]] = {}
        """By worker: tasks that have ended there, and of whose replies nobody was asked yet …"""
        self._asked: dict[str, _Question] = {}
        """… or somebody was …"""
        self._later: set[str] = set()
        """… or will be once more, when we look again who is there."""
        self._fetches: Counter[str] = Counter()
        """By task: questions in vain."""
        self._signs = Signs()
        self._reviewed = 0.0
        self._doubted: set[str] = set()
        """Tasks that no worker had at the last review."""
        self._hushed: set[str] = set()
        """Workers that we have said to be silent."""
        self._stuck: set[str] = set()
        """Workers that were silent for too long: nothing is sent to them until they are heard
        again.
        """
        self._workers: dict[str, int] = {}
        """Threads of those that have the parcel."""
        self._greetings: list[_Greeting] = []
        self._counted = 0.0
        self._without_since: float | None = None
        """Since when no worker takes items …"""
        self._has_said_empty = False
        self._is_silent = False
        """The scheduler has not answered when workers were to halt, so nobody waits for it at last
        words.
        """
        self._error: BaseException | None = None
        self._exhausted = False

    def work(self) -> None:
        self._digest, self._job = self._packer.pack_job(self._map_run, shared=self._cluster.is_ours)
        if not self._is_connected():
            return  # the run is to stop
        try:
            self._until_all_ended()
        finally:
            self._say_goodbye()
            self._close(self._closing)
        if self._error is not None:
            raise self._error

    def _is_connected(self) -> bool:
        """It was there before anything ran: if it is not now, it is one that is gone, and may come
        back.
        """
        try:
            self._connect(CONNECT)
        except Preempted:
            return False
        except InputError as error:
            if error.code != "no-cluster" or self._cluster.is_ours:
                raise
            return self._is_back()
        return True

    def _until_all_ended(self) -> None:
        try:
            while self._goes_on() and not self._run.stop.is_set():
                pass
        finally:
            self._cancel()

    def _goes_on(self) -> bool:
        """Send and take what there is; is there more to come?"""
        try:
            if not self._fill():
                return False
            self._take()
        except _Lost:
            self._reconnect()
        except Preempted:
            pass
        if self._is_other_scheduler() and not self._run.stop.is_set():
            self._reconnect()
        return True

    # ── asking ───────────────────────────────────────────────────────────

    def _ask(self, function: Callable[[], Any]) -> Any:
        """What the scheduler says.  It may take its time, but no longer than one that is gone
        may.
        """
        call = TimedCall(function)
        try:
            quiet = min(QUIET, self._patience / 2)
            if not call.is_over(quiet, gives_way=self._has_to_look_up):
                self._require_nothing_urgent()
                self._note(
                    f"the scheduler at {self._cluster.display_name} does not answer; waiting for it"
                )
            return call.answer(self._patience - quiet, gives_way=self._has_to_look_up)
        except NoAnswer:
            raise ProcessError(
                f"the scheduler at {self._cluster.display_name} has not answered "
                f"for {self._patience:g} seconds",
                fix=f"look what it is at, or start it again, then: plait resume {self._run.id}",
                code="no-cluster",
            ) from None
        except (OSError, AttributeError, RuntimeError):
            # Whatever a client says that has just lost its scheduler.
            if isinstance(call.error, OSError) or self._is_other_scheduler():
                raise _Lost from None
            raise

    def _has_to_look_up(self) -> bool:
        return self._run.stop.is_set() or self._is_other_scheduler()

    def _require_nothing_urgent(self) -> None:
        if self._has_to_look_up():
            raise Preempted

    def _is_other_scheduler(self) -> bool:
        """The client has lost its scheduler, and may have found one, who knows nothing of us."""
        return self._client.scheduler_comm is not self._comm

    def _run_on_workers(
        self, workers: list[str] | None, function: Callable[..., object], *args: object
    ) -> Any:
        """What workers say, each for itself."""
        said = self._client.run(function, *args, workers=workers, on_error="return")
        return {worker: self._mask_reply(one) for worker, one in said.items()}

    def _run_unmasked(
        self, workers: list[str], function: Callable[..., object], *args: object
    ) -> Any:
        """The same as it is, secrets and all: to be compared, and not to be shown."""
        said = self._client.run(function, *args, workers=workers, on_error="return")
        return {worker: mask_reply(one, str) for worker, one in said.items()}

    def _mask_reply(self, value: Any) -> Any:
        secrets = self._run.secrets
        return mask_reply(value, str if secrets.is_empty else secrets.mask)

    def _unpack_reply(self, reply: bytes) -> protocol.Reply:
        unpacked: protocol.Reply = protocol.unpack_reply(reply)
        several = unpacked.replies if isinstance(unpacked, protocol.BatchReply) else (unpacked,)
        for one in several:
            if isinstance(one, protocol.ItemCompleted):
                self._packer.add_secrets(secret.to_secret() for secret in one.new_secrets)
        masked: protocol.Reply = self._mask_reply(unpacked)
        return masked

    def _note(self, message: str) -> None:
        self._run.events.note(self._map_run.turn.path, message)

    # ── workers ──────────────────────────────────────────────────────────

    def _look_at_workers(self) -> None:
        self._welcome()
        if time.monotonic() - self._counted < (COUNT if self._workers else LOOK):
            return
        there: dict[str, int] = dict(self._ask(lambda: self._client.nthreads()))
        self._counted = time.monotonic()
        flown_to = {flight.worker for flight in self._flying.values()}
        for worker in (self._workers.keys() | flown_to) - there.keys():
            self._lose(worker)
        self._stuck &= there.keys()
        self._greet_new(
            {worker: count for worker, count in there.items() if worker not in self._stuck}
        )
        self._welcome()
        self._workers |= {
            worker: threads for worker, threads in there.items() if worker in self._workers
        }
        self._ask_later()
        self._require_workers(there)

    def _require_workers(self, there: Mapping[str, int]) -> None:
        """Somebody takes items, or will in time."""
        now = time.monotonic()
        if self._workers:
            self._without_since, self._has_said_empty = None, False
            return
        if self._without_since is None:
            self._without_since = now
        without = now - self._without_since
        if not self._has_said_empty and (not there or without > min(QUIET, self._wait / 2)):
            self._has_said_empty = True
            self._note(
                f"the cluster at {self._cluster.display_name} has no "
                f"workers{' that answer' * bool(there)}; "
                f"items go on when one is there, and the run ends after {self._wait:g} seconds "
                "without one"
            )
        if without > self._wait:
            raise ProcessError(
                f"the cluster at {self._cluster.display_name} has had no worker that takes items "
                f"for {self._wait:g} seconds",
                fix=f"start workers, then: plait resume {self._run.id} "
                "(to wait longer, write wait_for_workers under map)",
                code="no-workers",
            )

    def _review(self) -> None:
        """Is everything that is on its way still somewhere?  What is not goes again."""
        now, pause = time.monotonic(), min(REVIEW, self._patience / 4)
        old = [key for key, flight in self._flying.items() if now - flight.since > pause]
        if not (old or self._stuck) or now - self._reviewed < pause:
            return
        beats, processing = self._ask(self._heartbeats_and_tasks)
        self._reviewed = time.monotonic()
        self._stuck -= self._signs.see(beats)  # who is heard again is greeted as if it were new
        for worker in {self._flying[key].worker for key in old}:
            self._check_heartbeat(worker)
        self._send_lost_again([key for key in old if key in self._flying], processing)

    def _heartbeats_and_tasks(self) -> tuple[dict[str, object], set[str]]:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        beats = {worker: known["last_seen"] for worker, known in workers.items()}
        return beats, {key for keys in self._client.processing().values() for key in keys}

    def _check_heartbeat(self, worker: str) -> None:
        """It has a heartbeat, and hands over what it has done; else others do what it has."""
        question = self._asked.get(worker)
        waited = 0.0 if question is None else time.monotonic() - question.since
        silence = max(self._signs.silence(worker), waited)
        if silence > self._patience:
            self._hushed.discard(worker)
            self._note(
                f"the worker at {worker} has not answered for {self._patience:g} seconds; "
                "others do what it was at"
            )
            self._leave(worker)
        elif silence > min(2 * QUIET, self._patience / 2) and worker not in self._hushed:
            self._hushed.add(worker)
            self._note(
                f"the worker at {worker} does not answer; after {self._patience:g} seconds "
                "others do what it is at"
            )
        elif silence < QUIET:
            self._hushed.discard(worker)

    def _leave(self, worker: str) -> None:
        """Whoever is stuck may wake up: it is not to go on with what others do then."""
        futures = [flight.future for flight in self._flying.values() if flight.worker == worker]
        self._stuck.add(worker)
        self._lose(worker)
        TimedCall(partial(self._client.cancel, futures, force=True))

    def _send_lost_again(self, old: list[str], processing: Set[str]) -> None:
        """A task that has not ended, and that no worker has, twice in a row."""
        doubted = {
            key
            for key in old
            if key not in processing
            and self._flying[key].future.status not in ("finished", "error")
        }
        lost = doubted & self._doubted
        self._doubted = doubted - lost
        if not lost:
            return
        works = [work for key in lost for work in self._flying.pop(key).works]
        self._note(f"{len(works)} items were lost on the cluster; they are sent again")
        self._again += works

    def _greet_new(self, there: Mapping[str, int]) -> None:
        """While others work: one that is stuck keeps nobody from it."""
        self._greetings = [
            one for one in self._greetings if not there.keys().isdisjoint(one.workers)
        ]
        greeted = {worker for one in self._greetings for worker in one.workers}
        new = tuple(
            worker for worker in there if worker not in self._workers and worker not in greeted
        )
        if not new:
            return
        self._greet(new)
        if not self._workers:
            self._greetings[-1].call.is_over(FIRST, gives_way=self._has_to_look_up)

    def _greet(self, workers: tuple[str, ...]) -> None:
        call = TimedCall(partial(self._prepare_workers, list(workers)))
        self._greetings.append(_Greeting(workers, call, time.monotonic()))

    def _prepare_workers(self, workers: list[str]) -> dict[str, Any]:
        """Are these workers such as we need?  Then they get the parcel.  By a thread of its own."""
        from pkgutil import resolve_name
        from platform import python_version

        plaits = self._run_unmasked(workers, resolve_name, protocol.VERSION)
        require_same_versions(
            self._run_unmasked(workers, python_version), plaits, self._run.secrets.mask
        )
        replies: dict[str, Any] = self._run_on_workers(workers, self._packer.receive, self._job)
        return replies

    def _welcome(self) -> None:
        """Those that have answered take items from now on."""
        waiting, self._greetings = self._greetings, []
        for one in waiting:
            if one.call.is_over():
                self._consider(one.call)
            elif len(one.workers) > 1 and time.monotonic() - one.since > GREETING * self._patience:
                for worker in one.workers:
                    self._greet((worker,))
            else:
                self._greetings.append(one)

    def _consider(self, greeting: TimedCall) -> None:
        try:
            replies = greeting.answer(0.0)
        except OSError:
            return  # they are greeted again, if they are still there at the next look
        except (AttributeError, RuntimeError):
            if self._is_other_scheduler():
                return
            raise
        for worker, reply in replies.items():
            if isinstance(reply, bytes):
                self._consider_refusal(self._unpack_reply(reply))
            elif reply is None:
                self._workers[worker] = 1
                self._counted = 0.0  # how many it takes is seen at the next look
            elif not (isinstance(reply, RemoteError) and reply.is_a(OSError)):
                raise unloadable({worker: reply})

    def _lose(self, worker: str) -> None:
        """It is gone: what it had goes again; an item of which workers die, one after the other,
        does not.
        """
        threads = self._workers.pop(worker, 1)  # it may have been waiting for another parcel
        self._ready.pop(worker, None)
        self._asked.pop(worker, None)
        flights = [(key, flight) for key, flight in self._flying.items() if flight.worker == worker]
        for number, (key, flight) in enumerate(flights):
            del self._flying[key]
            if number < threads:  # the others had not begun
                self._deaths.update(work.key for work in flight.works)
            for work in flight.works:
                if self._deaths[work.key] >= TOO_MANY:
                    self._give_up(work)
                else:
                    self._again.append(work)

    def _consider_refusal(self, reply: protocol.Reply) -> None:
        match reply:
            case protocol.VersionMismatch(versions, worker):
                raise mismatch({worker: str(versions)})
            case protocol.ItemRefused():
                raise to_error(reply)

    # ── there ────────────────────────────────────────────────────────────

    def _fill(self) -> bool:
        """Send as many items as there is room for; is there anything to wait for?"""
        self._look_at_workers()
        self._review()
        if self._error is not None:
            return bool(self._flying)  # of those that live: what dies now is not sent again
        self._require_time_left()
        sent: dict[str, dict[str, list[WorkItem]]] = {}
        free, together = self._free(), self._together()
        room = self._parallel - sum(len(flight.works) for flight in self._flying.values())
        while room > 0 and free:
            works = self._some(min(room, together))
            if not works:
                break
            worker = self._take_worker(free, works, sent.keys())
            if worker is None:
                self._again.extendleft(reversed(works))
                break
            self._numbers += 1
            sent.setdefault(worker, {})[f"plait-{self._life}-{self._numbers}"] = works
            room -= len(works)
        for worker, tasks in sent.items():
            self._send(worker, tasks)
        return bool(self._flying or self._again) or not self._exhausted

    def _require_time_left(self) -> None:
        """Workers see to it themselves; but there may be none, or one that is stuck."""
        turn = self._map_run.turn
        if (end := turn.ends_at()) is not None and time.monotonic() > end + (
            seconds_to_stop() if self._flying else 0
        ):
            raise DeadlineExceeded

    def _take_worker(
        self, free: dict[str, int], works: list[WorkItem], sent: Set[str]
    ) -> str | None:
        """The worker that has most room, or has nothing else if this is an item of which workers
        died.
        """
        if self._is_suspect(works):
            busy = {flight.worker for flight in self._flying.values()} | sent
            idle = next((one for one in free if one not in busy), None)
            if idle is not None:
                del free[idle]
            return idle
        worker = max(free, key=lambda one: free[one] / self._workers[one])
        free[worker] -= 1
        if not free[worker]:
            del free[worker]
        return worker

    def _is_suspect(self, works: list[WorkItem]) -> bool:
        return any(self._deaths[work.key] >= ALONE for work in works)

    def _free(self) -> dict[str, int]:
        """How many tasks each worker can take; those that can take none are not in it."""
        is_short = self._pace is not None and self._pace * self._together() < SHORT
        ahead = AHEAD if is_short else 1
        flying = Counter(flight.worker for flight in self._flying.values())
        free = {
            worker: ahead * threads - flying[worker] for worker, threads in self._workers.items()
        }
        alone = {
            flight.worker for flight in self._flying.values() if self._is_suspect(flight.works)
        }
        return {
            worker: tasks for worker, tasks in free.items() if tasks > 0 and worker not in alone
        }

    def _together(self) -> int:
        """How many items are to be one task."""
        threads = sum(self._workers.values())
        if self._pace is None or not threads:
            return 1
        busy = self._parallel // (AHEAD * threads)
        return max(1, min(int(TASK / max(self._pace, 1e-4)), busy, MOST_ITEMS))

    def _some(self, most: int) -> list[WorkItem]:
        works: list[WorkItem] = []
        while len(works) < most and (work := self._next()) is not None:
            if self._is_suspect([work]):
                if works:
                    self._again.appendleft(work)
                    break
                return [work]
            works.append(work)
        return works

    def _next(self) -> WorkItem | None:
        """The next item of which nothing is recorded; the others have ended already."""
        if self._again:
            return self._again.popleft()
        while not self._exhausted:
            work = next(self._items, None)
            if work is None:
                self._exhausted = True
                return None
            step, turn = self._map_run.item_step(work)
            known = turn.run.replay.find(step, turn)
            if known is None:
                _require_time(turn)
                self._run.events.notify(
                    StepStarted(turn.path, step.kind, step.title, 1, turn.order)
                )
                return work
            self._finished(work, known)
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
            futures = self._client.get(
                graph, list(tasks), workers=[worker], allow_other_workers=False, sync=False
            )
        except (OSError, AttributeError, RuntimeError):
            if not self._is_other_scheduler():
                raise
            self._again.extend(work for works in tasks.values() for work in works)
            return
        for key, future in zip(tasks, futures, strict=True):
            self._flying[key] = _Flight(tasks[key], worker, future, time.monotonic())
            future.add_done_callback(self._news.put)

    # ── and back ─────────────────────────────────────────────────────────

    def _take(self) -> None:
        for one in self._drain_messages():
            if isinstance(one, _Answer):
                self._handle_fetch(one.question, one.fetched)
            else:
                self._task_ended(one)
        self._fetch()

    def _drain_messages(self) -> list[Any]:
        """What came in; a moment is waited for it."""
        heard: list[Any] = []
        with suppress(queue.Empty):
            heard.append(self._news.get(timeout=LOOK))
            while True:
                heard.append(self._news.get_nowait())
        return heard

    def _task_ended(self, future: Any) -> None:
        flight = self._flying.get(future.key)
        if flight is None:
            return  # it has come before, or goes again already
        match future.status:
            case "finished":
                self._ready.setdefault(flight.worker, []).append(future.key)
            case "error":
                del self._flying[future.key]
                raise unexpected_worker_error(self._mask_reply(future.exception()))
            case _:
                del self._flying[future.key]
                self._again += flight.works

    def _fetch(self) -> None:
        """Each worker is asked by itself, for all that it has: one that is stuck keeps back nobody
        else's.
        """
        for worker in [one for one in self._ready if one not in self._asked]:
            # A task may say twice that it has ended.
            keys = [key for key in dict.fromkeys(self._ready.pop(worker)) if key in self._flying]
            if keys:
                question = self._asked[worker] = _Question(worker, keys, time.monotonic())
                self._cluster.fetch(self._client, keys, partial(self._hand_in, question))

    def _hand_in(self, question: _Question, fetched: Fetched) -> None:
        self._news.put(_Answer(question, fetched))

    def _handle_fetch(self, question: _Question, fetched: Fetched) -> None:
        if self._asked.get(question.worker) is not question:
            return  # its worker or its scheduler was given up meanwhile
        del self._asked[question.worker]
        if fetched.error is not None and not _is_lost(fetched.error):
            raise unexpected_worker_error(self._mask_reply(fetched.error))
        for key in question.keys:
            if key not in self._flying:
                continue  # it was sent again meanwhile
            if key in fetched.replies:
                self._fetches.pop(key, None)
                flight = self._flying.pop(key)
                self._handle_reply(flight, self._unpack_reply(fetched.replies[key]))
            elif fetched.error is not None or key in fetched.missing:
                self._count_miss(key)
            else:  # kept back because of others
                self._ready.setdefault(question.worker, []).append(key)

    def _count_miss(self, key: str) -> None:
        """Its worker is gone, which we see at the next look, or does not hand it over."""
        self._counted = 0.0
        self._fetches[key] += 1
        if self._fetches[key] < FETCHES:
            self._later.add(key)
        else:
            del self._fetches[key]
            self._again += self._flying.pop(key).works

    def _ask_later(self) -> None:
        later, self._later = self._later & self._flying.keys(), set()
        for key in later:
            self._ready.setdefault(self._flying[key].worker, []).append(key)

    def _handle_reply(self, flight: _Flight, reply: protocol.Reply) -> None:
        works = flight.works
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
                self._workers.pop(flight.worker, None)  # it gets another parcel at the next look
            case protocol.VersionMismatch():
                self._consider_refusal(reply)
            case _:
                raise InternalError("a worker replied what is no reply", code="cluster")

    def _handle_item_reply(self, work: WorkItem, reply: protocol.Reply) -> None:
        match reply:
            case protocol.ItemCompleted(outcome):
                self._finished(work, outcome)
            case protocol.ItemStopped(out_of_time=True):
                self._error = self._error or DeadlineExceeded()
            case protocol.ItemStopped():
                self._again.append(work)  # its worker was to end
            case protocol.RunLimitReached(failure, path):
                self._error = self._error or Aborted(failure, path)
            case protocol.ItemRefused():
                self._error = self._error or to_error(reply)

    def _give_up(self, work: WorkItem) -> None:
        step, turn = self._map_run.item_step(work)
        failure = Failure(
            "its workers died or fell silent, one after the other, while they were at this item",
            "worker",
            path=turn.path,
        )
        outcome: Outcome = (
            Skipped(failure.message) if step.policy.skip_on_failure else Failed(failure)
        )
        self._run.events.append_remote((_end(step, turn, outcome),))
        self._finished(work, outcome)

    # ── when things go wrong ─────────────────────────────────────────────

    def _connect(self, seconds: float) -> None:
        self._client = self._cluster.client(seconds, gives_way=self._run.stop.is_set)
        self._comm = self._client.scheduler_comm

    def _close(self, seconds: float) -> None:
        TimedCall(partial(self._client.close, timeout=seconds)).is_over(
            seconds, gives_way=self._is_hurried
        )

    def _is_hurried(self) -> bool:
        return self._run.stop.at_once

    def _reconnect(self) -> None:
        """The scheduler is gone, and with it all that it had: what is not recorded is sent
        again.
        """
        for flight in self._flying.values():
            self._again += flight.works
        self._flying.clear()
        self._workers.clear()
        self._greetings.clear()
        self._ready.clear()
        self._asked.clear()
        self._stuck.clear()
        self._signs.forget()
        self._close(1.0)
        self._is_back()

    def _is_back(self) -> bool:
        """Wait for it; False if the run is to stop."""
        self._note(f"the scheduler at {self._cluster.display_name} is gone; waiting for it")
        until = time.monotonic() + self._patience
        while not self._run.stop.is_set():
            try:
                self._connect(min(CONNECT, 3.0))
                self._counted = 0.0
                return True
            except Preempted:
                return False
            except InputError as error:
                if error.code != "no-cluster":
                    raise
                if time.monotonic() > until:
                    raise ProcessError(
                        f"the scheduler at {self._cluster.display_name} is gone, and did not come "
                        "back",
                        fix=f"start it again, then: plait resume {self._run.id}",
                        code="no-cluster",
                    ) from None
            self._run.stop.wait(LOOK)
        return False

    def _cancel(self) -> None:
        """Nobody wants them any more; their processes are gone when this returns, or the grace is
        over.
        """
        flying = list(self._flying.values())
        self._flying.clear()
        if not flying:
            return
        futures = [flight.future for flight in flying]
        TimedCall(partial(self._client.cancel, futures, force=True)).is_over(
            CLOSING, gives_way=self._is_hurried
        )
        left = stop_workers({flight.worker for flight in flying}, self, self._run.stop)
        if left:
            self._note(
                "items may still be running on "
                f"{format_names(left[:5])}{' and others' * (len(left) > 5)}: "
                "not reached. They are ended there when that is noticed, at the latest after a "
                "minute"
            )

    def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]:
        self._is_silent = True
        said: Mapping[str, object] = self._run_on_workers(
            workers, self._packer.stop, self._digest, at_once
        )
        self._is_silent = False
        return said

    def directly(self, worker: str, at_once: bool) -> object:
        said = self._cluster.directly(
            self._client, worker, self._packer.stop, self._digest, at_once
        )
        return self._mask_reply(said)

    def _say_goodbye(self) -> None:
        """A worker that does not hear it forgets by itself, some time later."""
        call = TimedCall(partial(self._run_on_workers, None, self._packer.drop, self._digest))
        call.is_over(self._closing, gives_way=self._is_hurried)

    @property
    def _closing(self) -> float:
        return IN_VAIN if self._is_silent else CLOSING


def _events(reply: protocol.Reply) -> tuple[Event, ...]:
    return (
        reply.events if isinstance(reply, protocol.ItemCompleted | protocol.RunLimitReached) else ()
    )


def _is_lost(error: BaseException) -> bool:
    from concurrent.futures import CancelledError

    names = {one.__name__ for one in type(error).__mro__}
    return isinstance(error, OSError | CancelledError) or "CancelledError" in names


def _require_time(ctx: StepContext) -> None:
    if ctx.is_expired():
        raise DeadlineExceeded


def _end(step: Step, ctx: StepContext, outcome: Outcome) -> StepFinished:
    return StepFinished(ctx.path, step.kind, step.title, step.fingerprint, outcome, 0.0, ctx.order)
