"""How items go to a scheduler and come back, against a cluster that does what the test says."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from plait.adapters.dask import protocol
from plait.adapters.dask.backend import CLOSING_IF_SILENT, FETCHES, DaskRun
from plait.adapters.dask.cluster import Fetched, TimedCall
from plait.adapters.dask.heartbeats import Heartbeats
from plait.core.errors import InputError, ProcessError
from plait.engine.backend import WorkItem
from plait.engine.event_bus import Mask
from plait.engine.events import Note, StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import DeadlineExceeded, Failed, Outcome, Succeeded
from plait.engine.perform import StepContext
from plait.program.map import Map, remote_map_run
from plait.program.step_list import step_list
from plait.scope import Scope
from program.fakes import new_run

THREADS = 2
SILENCE = object()
"""The answer of one who never answers."""


LOSS = object()
"""The task is gone, without a message."""


class KilledWorker(Exception):
    """The worker dies of this item, and all that it had is gone with it."""


class Future:
    def __init__(self, key: str) -> None:
        self.key = key
        self.status = "pending"
        self.value: object = None
        self.items: list[str] = []
        self._reported: Callable[[Any], None] | None = None
        self._lock = threading.Lock()

    def add_done_callback(self, reported: Callable[[Any], None]) -> None:
        with self._lock:
            self._reported = reported
            if self.status != "pending":
                reported(self)

    def end(self, status: str, value: object = None) -> None:
        with self._lock:
            self.status, self.value = status, value
            if self._reported is not None:
                self._reported(self)

    def exception(self) -> object:
        return self.value


class Scheduler:
    """Answers tasks by what `answer` says of their items: a reply, an exception, or None if it is lost."""

    def __init__(self, answer: Callable[[str, int], object]) -> None:
        self.answer = answer
        self.scheduler_comm: object = None
        self.most = 0
        self.lock = threading.Lock()
        self.pending = 0
        self.deaths = 0
        """Of workers: there is always another one."""
        self.pace = 10.0
        """The reported seconds of each item."""
        self.sizes: list[int] = []
        self.tries: dict[str, int] = {}
        self.cancelled = 0
        self.is_ours = False
        self.display_name = "dask://here"
        self.connections = 0
        self.absences = 0
        """The number of first calls without a worker."""
        self.never: threading.Event | None = None
        """Set, it does not answer until this comes."""
        self.is_empty = False
        """It has no workers."""
        self.losses = 0
        """Questions at which the connection breaks."""
        self.stuck: set[str] = set()
        """Workers that answer nothing until `never` comes."""
        self.twice = False
        self.futures: dict[str, Future] = {}
        self.at: dict[str, str] = {}
        """By task that has not ended: the worker that has it."""
        self.silent: set[str] = set()
        """Workers that are there, and have no heartbeat."""
        self.beats = 0
        self.fetched: Callable[[str, int], bool] = lambda _key, _asked: True
        """By item, and how often it was asked for: is the reply handed over?"""
        self.asked: dict[str, int] = {}
        self.unheard = 0
        """So many questions for replies are never answered."""

    # the cluster
    def client(self, seconds: float = 1.0, *, should_preempt: object) -> Scheduler:  # noqa: ARG002 - the real one's shape
        self.connections += 1
        if self.connections <= self.absences:
            raise InputError("there is no Dask cluster", code="no-cluster")
        self.scheduler_comm = object()
        return self

    # the client
    def get(
        self,
        graph: Mapping[str, tuple[Any, ...]],
        keys: list[str],
        *,
        workers: list[str],
        allow_other_workers: bool,
        sync: bool,
    ) -> list[Future]:
        assert not sync
        assert not allow_other_workers, "Dask would do again what is recorded"
        futures = [Future(key) for key in keys]
        self.futures |= {future.key: future for future in futures}
        items = [pickle.loads(graph[key][2]) for key in keys]
        if workers != [self.worker]:
            if self.silent.issuperset(workers):
                with self.lock:
                    self.at |= dict.fromkeys(keys, workers[0])
            return futures  # which no other will end: it has died meanwhile
        with self.lock:
            self.pending += sum(map(len, items))
            self.most = max(self.most, self.pending)
            self.at |= dict.fromkeys(keys, self.worker)
        threading.Thread(target=self._work, args=(list(zip(futures, items, strict=True)),)).start()
        return futures

    def nthreads(self) -> dict[str, int]:
        if self.never is not None and not self.stuck:
            self.never.wait()
        if self.losses:
            self.losses -= 1
            raise OSError
        return (
            {}
            if self.is_empty
            else dict.fromkeys([self.worker, *self.stuck, *self.silent], THREADS)
        )

    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, dict[str, int]]]:
        assert n_workers == -1
        self.beats += 1
        there = self.nthreads()
        return {
            "workers": {
                one: {"last_seen": 0 if one in self.silent else self.beats} for one in there
            }
        }

    def processing(self) -> dict[str, list[str]]:
        with self.lock:
            return {
                worker: [key for key in self.at if self.at[key] == worker]
                for worker in self.at.values()
            }

    @property
    def worker(self) -> str:
        return f"tcp://{self.deaths}"

    def fetch(self, client: object, keys: list[str], reported: Callable[[Fetched], None]) -> None:  # noqa: ARG002 - the real one's shape
        if self.unheard:
            self.unheard -= 1
            return
        for key in keys:
            self.asked[key] = self.asked.get(key, 0) + 1
        missing = frozenset(
            key for key in keys if not self.fetched(self.futures[key].items[0], self.asked[key])
        )
        replies = {} if missing else {key: self.futures[key].value for key in keys}
        reported(Fetched(replies, missing))  # type: ignore[arg-type]

    def run(
        self,
        function: Callable[..., object],
        *args: object,
        workers: list[str] | None,
        on_error: str,
    ) -> dict[str, object]:
        assert on_error == "return"
        if self.never is not None and self.stuck & set(workers or ()):
            self.never.wait()
        return {worker: function(*args) for worker in workers or [self.worker]}

    def cancel(self, futures: list[Future], force: bool) -> None:
        assert force
        self.cancelled = len(futures)

    def close(self, timeout: float) -> None:
        pass

    def _work(self, sent: list[tuple[Future, list[str]]]) -> None:
        for future, keys in sent:
            future.items = keys
            with self.lock:
                self.pending -= len(keys)
            self.sizes.append(len(keys))
            for key in keys:
                self.tries[key] = self.tries.get(key, 0) + 1
            answers = [self.answer(key, self.tries[key]) for key in keys]
            odd = [
                one
                for one in answers
                if not isinstance(
                    one,
                    protocol.ItemCompleted
                    | protocol.ItemStopped
                    | protocol.RunLimitReached
                    | protocol.ItemRefused,
                )
            ]
            if SILENCE in answers:
                continue
            with self.lock:
                self.at.pop(future.key, None)
            if LOSS in answers:
                continue
            match odd[0] if odd else protocol.BatchReply(tuple(answers), self.pace * len(keys)):  # type: ignore[arg-type]
                case None:
                    self.scheduler_comm = object()  # Dask finds a new one by itself
                    future.end("cancelled")
                case KilledWorker():
                    self.deaths += 1
                    return
                case BaseException() as error:
                    future.end("error", error)
                case reply:
                    future.end("finished", protocol.pack_reply(reply))  # type: ignore[arg-type]
                    if self.twice:
                        future.end("finished", protocol.pack_reply(reply))  # type: ignore[arg-type]


class Packer:
    perform = "builtins:str"

    def __init__(self) -> None:
        self.received = 0

    def receive(self, message: bytes) -> bytes | None:  # noqa: ARG002 - the protocol's shape
        self.received += 1
        return None

    def drop(self, digest: str) -> None:
        pass

    def stop(self, digest: str, at_once: bool) -> int:  # noqa: ARG002 - the protocol's shape
        return 0

    def takes(self, map_run: object) -> bool:  # noqa: ARG002 - the protocol's shape
        return True

    def pack_job(self, map_run: object, *, shared: bool) -> tuple[str, bytes]:  # noqa: ARG002 - the same
        return "d", b""

    def add_secrets(self, secrets: object) -> None:
        """There are no secrets."""

    def pack_items(self, digest: str, map_run: object, works: list[WorkItem]) -> bytes:  # noqa: ARG002 - the same
        return pickle.dumps([work.key for work in works])


class Played:
    def hide(self, mask: Mask) -> None:
        self.hidden = mask

    def __init__(
        self,
        answer: Callable[[str, int], object],
        *,
        items: int = 20,
        parallel: int = 100,
        twice: bool = False,
        patience: float = 60.0,
        wait: float = 600.0,
        seconds: float | None = None,
    ) -> None:
        self.scheduler = Scheduler(answer)
        self.scheduler.twice = twice
        self.packer = Packer()
        self.journal = MemoryJournal()
        self.hide(str)
        self.run = new_run(journal=self.journal, mask=lambda text: self.hidden(text))
        self.ended: list[tuple[str, Outcome]] = []
        self.taken = 0
        map_step = Map("map", None, step_list("each", []), "f")  # type: ignore[arg-type]
        deadline = None if seconds is None else time.monotonic() + seconds
        map_run = remote_map_run(
            map_step, StepContext(self.run, "map", Scope(), deadline=deadline), items
        )
        dask_run = DaskRun(
            self.scheduler, self.packer, self.items(items),  # type: ignore[arg-type]
            lambda work, outcome: self.ended.append((work.key, outcome)), parallel, map_run,
            patience=patience, wait=wait,
        )  # fmt: skip
        self.dask_run = dask_run

    def items(self, count: int) -> Iterator[WorkItem]:
        for order in range(count):
            self.taken += 1
            yield WorkItem(order, str(order), order)

    def go(self) -> Played:
        try:
            self.dask_run.work()
        finally:
            self.run.events.close()
        return self

    @property
    def notes(self) -> list[str]:
        return [one.event.message for one in self.journal.events() if isinstance(one.event, Note)]

    @property
    def recorded(self) -> list[str]:
        return [
            one.event.path for one in self.journal.events() if isinstance(one.event, StepFinished)
        ]


def done(key: str) -> protocol.ItemCompleted:
    path = f"map/item:{key}"
    return protocol.ItemCompleted(
        Succeeded(key), (StepFinished(path, "item", key, "f", Succeeded(key), 0.0),)
    )


def test_every_item_is_sent_recorded_and_reported_once() -> None:
    played = Played(lambda key, _: done(key)).go()
    assert sorted(played.recorded) == sorted(f"map/item:{n}" for n in range(20))
    assert sorted(key for key, _ in played.ended) == sorted(str(n) for n in range(20))
    assert set(played.scheduler.tries.values()) == {1}


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (100, THREADS)])
def test_never_more_items_are_with_the_scheduler_than_may_run_or_its_workers_can_take(
    parallel: int, most: int
) -> None:
    assert Played(lambda key, _: done(key), items=50, parallel=parallel).go().scheduler.most == most


def test_a_reply_that_comes_twice_is_dropped() -> None:
    played = Played(lambda key, _: done(key), twice=True).go()
    assert len(played.recorded) == len(played.ended) == 20


def test_a_message_that_arrives_twice_at_once_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(lambda key, _: done(key))
    replies = played.dask_run._replies
    drain = replies.messages
    monkeypatch.setattr(replies, "messages", lambda: [one for one in drain() for _ in range(2)])
    played.go()
    assert len(played.recorded) == len(played.ended) == 20


def test_what_is_lost_with_the_scheduler_is_sent_again_and_nothing_else() -> None:
    played = Played(lambda key, tries: None if key == "7" and tries == 1 else done(key)).go()
    assert sorted(played.recorded) == sorted(f"map/item:{n}" for n in range(20))
    assert played.scheduler.connections == 2
    assert played.packer.received == 2


def test_a_scheduler_that_goes_before_the_first_item_is_waited_for_as_at_any_other() -> None:
    played = Played(lambda key, _: done(key))
    played.scheduler.absences = 2
    played.go()
    assert len(played.recorded) == 20
    assert played.notes == ["the scheduler at dask://here is gone; waiting for it"]


def test_one_that_does_not_come_back_ends_the_run_with_what_resumes_it() -> None:
    played = Played(lambda key, _: done(key), patience=0.2)
    played.scheduler.absences = 1000
    with pytest.raises(ProcessError) as raised:
        played.go()
    assert str(raised.value) == (
        "the scheduler at dask://here is gone, and did not come back\n"
        "fix: start it again, then: plait resume r1"
    )


def test_what_was_with_a_scheduler_that_is_gone_is_not_waited_for() -> None:
    """A task lost between its end and the fetching of its reply is not reported."""
    played = Played(
        lambda key, tries: SILENCE if tries == 1 and key in "01" else done(key), items=2
    )
    scheduler = played.scheduler
    renewed = threading.Timer(0.3, lambda: setattr(scheduler, "scheduler_comm", object()))
    renewed.start()
    played.go()
    renewed.join()
    assert sorted(played.recorded) == ["map/item:0", "map/item:1"]


def test_a_worker_that_joined_late_gets_the_job_and_the_item_goes_again() -> None:
    missing = protocol.JobMissing("tcp://late")
    played = Played(lambda key, tries: missing if key == "3" and tries == 1 else done(key)).go()
    assert len(played.recorded) == 20
    assert played.packer.received == 2


def test_an_item_that_its_worker_did_not_finish_because_it_was_to_end_goes_again() -> None:
    stopped = protocol.ItemStopped()
    played = Played(lambda key, tries: stopped if key == "3" and tries == 1 else done(key)).go()
    assert len(played.recorded) == 20


def test_an_item_of_which_workers_die_is_a_failed_item() -> None:
    played = Played(lambda key, _: KilledWorker() if key == "3" else done(key)).go()
    [(key, outcome)] = [one for one in played.ended if isinstance(one[1], Failed)]
    assert key == "3"
    assert isinstance(outcome, Failed)
    assert (
        outcome.failure.message
        == "its workers died or fell silent, one after the other, while they were at this item"
    )
    assert len(played.recorded) == 20


ERRORS = [
    # reply                                           what is raised
    (protocol.ItemStopped(out_of_time=True),                DeadlineExceeded),
    (protocol.ItemRefused("InputError", "w", "f", "c"),     InputError),
    (protocol.ItemRefused("Unheard", "w", "f", "c"),        ProcessError),
    (protocol.VersionMismatch(protocol.Versions("9", "3.9"), ""), InputError),
    (ModuleNotFoundError("plait"),                    InputError),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "error"), ERRORS)
def test_what_is_no_outcome_ends_the_map_and_is_raised(
    reply: object, error: type[BaseException]
) -> None:
    played = Played(lambda key, _: reply if key == "3" else done(key), items=100)
    with pytest.raises(error):
        played.go()
    assert played.taken < 100


def test_short_items_go_several_at_a_time_and_still_no_more_than_may_run() -> None:
    played = Played(lambda key, _: done(key), items=300, parallel=40)
    played.scheduler.pace = 0.001
    played.go()
    assert max(played.scheduler.sizes) == 40 // (2 * THREADS)
    assert played.scheduler.most <= 40
    assert len(played.recorded) == 300


def test_when_workers_die_of_a_task_its_items_go_alone_and_only_the_guilty_one_fails() -> None:
    played = Played(
        lambda key, _: KilledWorker() if key == "250" else done(key), items=300, parallel=40
    )
    played.scheduler.pace = 0.001
    played.go()
    assert [key for key, outcome in played.ended if isinstance(outcome, Failed)] == ["250"]
    assert sorted(played.recorded) == sorted(f"map/item:{n}" for n in range(300))


def test_what_is_recorded_is_not_sent() -> None:
    played = Played(lambda key, _: done(key))
    known = step_list("each", []).fingerprint
    played.journal.append(
        StepFinished("map/item:5", "item", "5", known, Succeeded("before"), 0.0, 5)
    )
    played.journal.reopen()
    played.run.replay.is_first_run = False
    played.go()
    assert "5" not in played.scheduler.tries
    assert ("5", Succeeded("before")) in played.ended


def test_an_error_is_raised_though_a_worker_dies_that_was_at_another_item() -> None:
    refused = protocol.ItemRefused("InputError", "w", "f", "c")
    played = Played(lambda key, _: refused if key == "0" else KilledWorker(), items=10)
    with pytest.raises(InputError):
        TimedCall(played.go).answer(30)


def test_a_map_whose_time_is_over_ends_though_no_worker_comes() -> None:
    played = Played(lambda key, _: done(key), seconds=0.0)
    played.scheduler.is_empty = True
    with pytest.raises(DeadlineExceeded):
        TimedCall(played.go).answer(30)
    assert played.notes == [
        "the cluster at dask://here has no workers; items go on when one is there, "
        "and the run ends after 600 seconds without one"
    ]


def test_a_worker_that_dies_before_it_got_another_job_takes_no_item_with_it() -> None:
    def answer(key: str, tries: int) -> object:
        if key == "0" and tries == 1:
            played.scheduler.deaths += 1
            return protocol.JobMissing("tcp://0")
        return SILENCE if key == "1" and tries == 1 else done(key)

    played = Played(answer, items=4)
    TimedCall(played.go).answer(20)
    assert len(played.recorded) == 4


# ── what makes no progress ───────────────────────────────────────────────


def all_items(played: Played) -> bool:
    return sorted(played.recorded) == sorted(f"map/item:{n}" for n in range(20))


@pytest.mark.parametrize(
    ("handed_over", "tries"),
    [
        (lambda key, asked: key != "3" or asked > 1, 1),  # a worker that was busy for a moment
        (lambda key, asked: key != "3" or asked >= FETCHES, 1),
        (
            lambda key, _: key != "3" or played_again(key),
            2,
        ),  # its reply is lost, and its item goes again
    ],
)
def test_a_reply_that_is_not_handed_over_is_asked_for_again_and_keeps_back_no_other(
    handed_over: Callable[[str, int], bool], tries: int
) -> None:
    played = Played(lambda key, _: done(key))
    AGAIN["3"] = lambda: played.scheduler.tries["3"] > 1
    played.scheduler.fetched = handed_over
    TimedCall(played.go).answer(30)
    assert all_items(played)
    assert played.scheduler.tries == {str(n): 1 for n in range(20)} | {"3": tries}


AGAIN: dict[str, Callable[[], bool]] = {}


def played_again(key: str) -> bool:
    return AGAIN[key]()


def test_a_task_that_no_worker_has_any_more_is_sent_again_with_a_note() -> None:
    played = Played(
        lambda key, tries: LOSS if key == "7" and tries == 1 else done(key), patience=0.2
    )
    TimedCall(played.go).answer(30)
    assert all_items(played)
    assert played.notes == ["1 items were lost on the cluster; they are sent again"]
    assert played.scheduler.tries["7"] == 2


def test_a_worker_without_a_heartbeat_loses_its_items_to_others_with_a_note() -> None:
    def answer(key: str, tries: int) -> object:
        if key != "7" or tries > 1:
            return done(key)
        played.scheduler.silent.add("tcp://0")
        played.scheduler.deaths += 1  # there is another one
        return SILENCE

    played = Played(answer, patience=0.4)
    TimedCall(played.go).answer(30)
    assert all_items(played)
    assert played.notes == [
        "the worker at tcp://0 does not answer; after 0.4 seconds its items go to other workers",
        "the worker at tcp://0 has not answered for 0.4 seconds; its items go to other workers",
    ]
    assert played.scheduler.cancelled


def test_a_worker_that_never_delivers_its_results_is_left_like_one_without_a_heartbeat() -> None:
    played = Played(lambda key, _: done(key), items=2, patience=0.4)
    played.scheduler.unheard = 1
    TimedCall(played.go).answer(30)
    assert sorted(played.recorded) == ["map/item:0", "map/item:1"]
    assert played.notes[-1] == (
        "the worker at tcp://0 has not answered for 0.4 seconds; its items go to other workers"
    )


def test_a_long_task_is_waited_for_as_long_as_its_worker_is_alive() -> None:
    ended = threading.Event()

    def answer(key: str, _: int) -> object:
        ended.wait(30)
        return done(key)

    played = Played(answer, items=1, patience=0.2)
    seen = played.scheduler.scheduler_info

    def scheduler_info(n_workers: int) -> dict[str, dict[str, dict[str, int]]]:
        if played.scheduler.beats > 8:
            ended.set()
        return seen(n_workers)

    played.scheduler.scheduler_info = scheduler_info  # type: ignore[method-assign]
    TimedCall(played.go).answer(30)
    assert (played.recorded, played.notes, played.scheduler.tries) == (["map/item:0"], [], {"0": 1})


def test_a_cluster_that_has_no_worker_for_too_long_ends_the_run_with_what_resumes_it() -> None:
    played = Played(lambda key, _: done(key), wait=0.2)
    played.scheduler.is_empty = True
    with pytest.raises(ProcessError) as raised:
        TimedCall(played.go).answer(30)
    assert (raised.value.code, str(raised.value)) == (
        "no-workers",
        "the cluster at dask://here has had no worker that takes items for 0.2 seconds\n"
        "fix: start workers, then: plait resume r1 (to wait longer, write wait_for_workers under map)",
    )


def test_silence_is_the_time_since_a_heartbeat_changed_by_our_own_clock() -> None:
    now = [100.0]
    signs = Heartbeats(lambda: now[0])
    assert signs.see({"a": 5.0, "b": 5.0}) == {"a", "b"}
    now[0] = 130.0
    assert signs.see({"a": 5.0, "b": 1.0}) == {"b"}  # whose clock was set back
    now[0] = 140.0
    assert [signs.silence(one) for one in ("a", "b", "c")] == [40.0, 10.0, 0.0]
    assert signs.see({"b": 1.0}) == frozenset()
    assert signs.see({"a": 5.0}) == {"a"}  # it was gone, and is another one


# ── what does not answer ─────────────────────────────────────────────────


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that is set only at the end of the test, so that waiting threads end."""
    event = threading.Event()
    yield event
    event.set()


def test_a_scheduler_that_does_not_answer_for_too_long_is_lost_and_the_run_can_be_resumed(
    never: threading.Event,
) -> None:
    played = Played(lambda key, _: done(key), patience=0.1)
    played.scheduler.never = never
    with pytest.raises(ProcessError) as raised:
        played.go()
    assert str(raised.value) == (
        "the scheduler at dask://here has not answered for 0.1 seconds\n"
        "fix: look at it, or start it again, then: plait resume r1"
    )
    assert played.notes == ["the scheduler at dask://here does not answer; waiting for it"]


def test_a_run_that_waits_for_its_scheduler_can_be_stopped(never: threading.Event) -> None:
    played = Played(lambda key, _: done(key))
    played.scheduler.never = never
    played.run.stop.ask()
    played.go()
    assert played.taken == 0


def test_a_question_at_which_the_connection_breaks_is_a_lost_scheduler_and_not_the_end() -> None:
    played = Played(lambda key, _: done(key))
    played.scheduler.losses = 1
    played.go()
    assert len(played.recorded) == 20
    assert played.scheduler.connections == 2


def test_a_worker_that_is_stuck_at_its_start_does_not_block_the_items(
    never: threading.Event,
) -> None:
    played = Played(lambda key, _: done(key), patience=0.6)
    played.scheduler.never, played.scheduler.stuck = never, {"tcp://stuck"}
    played.go()
    assert len(played.recorded) == 20


def test_the_end_does_not_wait_for_a_scheduler_that_did_not_answer(
    never: threading.Event,
) -> None:
    def stops(_: str, __: int) -> object:
        played.run.stop.ask()
        return SILENCE

    played = Played(stops, items=1)
    scheduler, call = played.scheduler, played.scheduler.run
    closings: list[float] = []

    def run(function: Callable[..., object], *args: object, **how: Any) -> dict[str, object]:
        if function == played.packer.drop:
            closings.append(played.dask_run._connection.closing_seconds)
        if scheduler.tries:
            never.wait()
            raise OSError
        return call(function, *args, **how)

    scheduler.run = run  # type: ignore[method-assign]
    scheduler.directly = lambda _, __, halt, *args: halt(*args)  # type: ignore[attr-defined]
    played.go()
    assert closings == [CLOSING_IF_SILENT]


def test_when_the_run_is_to_stop_nothing_is_sent_any_more_and_what_runs_is_cancelled() -> None:
    played = Played(lambda key, _: done(key), items=100)
    played.run.stop.ask()
    played.go()
    assert played.scheduler.cancelled <= THREADS
    assert played.taken < 100
