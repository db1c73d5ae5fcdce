"""Waiting with a limit: for one call, for workers that are to end, for a scheduler that may be gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest

from plait.adapters.dask.cluster import ANSWER, NoAnswer, Preempted, TimedCall, stop_workers
from plait.adapters.dask.replies import RemoteError
from plait.adapters.dask.worker_state import GAP, SILENT, HeartbeatWatch, make_cancel_check
from plait.engine.stop import StopSignal


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that is set only at the end of the test, so that waiting threads end."""
    event = threading.Event()
    yield event
    event.set()


# ── one call ─────────────────────────────────────────────────────────────


def test_an_answer_comes_back() -> None:
    assert TimedCall(lambda: 7).answer(10) == 7


def test_what_a_call_raises_is_raised_where_its_answer_is_wanted() -> None:
    with pytest.raises(ZeroDivisionError):
        TimedCall(lambda: 1 // 0).answer(10)


def test_a_call_that_does_not_come_back_is_waited_for_no_longer_than_its_limit(
    never: threading.Event,
) -> None:
    call = TimedCall(never.wait)
    with pytest.raises(NoAnswer):
        call.answer(0.01)
    never.set()
    assert call.answer(10) is True


def test_a_wait_gives_way_to_something_else(never: threading.Event) -> None:
    with pytest.raises(Preempted):
        TimedCall(never.wait).answer(60, should_preempt=lambda: True)


# ── workers that are to end ──────────────────────────────────────────────


class Ways:
    """Workers that are through after so many questions; a scheduler that answers, or does not."""

    def __init__(self, *, never: threading.Event | None = None, asks: int = 1) -> None:
        self._never = never
        self._left = asks
        self.through: list[bool] = []
        """Whether it was to be at once, by question."""
        self.direct: list[tuple[str, bool]] = []
        self.unreachable: tuple[str, ...] = ()
        self.asked: Callable[[], None] = lambda: None

    def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]:
        self.through.append(at_once)
        self.asked()
        if self._never is not None:
            self._never.wait()
        self._left -= 1
        return dict.fromkeys(workers, max(0, self._left))

    def directly(self, worker: str, at_once: bool) -> object:
        self.direct.append((worker, at_once))
        if worker in self.unreachable:
            raise OSError
        return 0


def test_workers_are_asked_until_they_are_through() -> None:
    ways = Ways(asks=3)
    assert stop_workers(["a", "b"], ways, StopSignal()) == []
    assert (ways.through, ways.direct) == ([False] * 3, [])


def test_workers_of_a_scheduler_that_does_not_answer_are_asked_without_it(
    never: threading.Event,
) -> None:
    ways = Ways(never=never)
    assert stop_workers(["a", "b"], ways, StopSignal()) == []
    assert sorted(ways.direct) == [("a", False), ("b", False)]


def test_a_late_answer_counts_and_no_request_is_repeated_meanwhile(
    never: threading.Event,
) -> None:
    class Late(Ways):
        def directly(self, worker: str, at_once: bool) -> object:
            answer = super().directly(worker, at_once)
            threading.Event().wait(1.5 * ANSWER)
            return answer

    ways = Late(never=never)
    assert stop_workers(["a"], ways, StopSignal()) == []
    assert ways.direct == [("a", False)]


def test_an_unreachable_worker_is_named(never: threading.Event) -> None:
    ways = Ways(never=never)
    ways.unreachable = ("b",)
    stop = StopSignal()
    stop.ask()
    stop.ask()
    assert stop_workers(["a", "b"], ways, stop) == ["b"]
    assert ("a", True) in ways.direct


def test_a_second_wish_to_stop_reaches_the_workers_while_they_have_their_grace() -> None:
    stop, ways = StopSignal(), Ways(asks=3)
    stop.ask()
    ways.asked = stop.ask
    assert stop_workers(["a"], ways, stop) == []
    assert ways.through == [False, True, True]


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    class Gone(Ways):
        def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]:  # noqa: ARG002
            return dict.fromkeys(workers, RemoteError(OSError, ""))

    assert stop_workers(["a"], Gone(), StopSignal()) == []


# ── a scheduler that may be gone ─────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looks(
    hearing: HeartbeatWatch, clock: Clock, seconds: float, answer: Callable[[], object]
) -> bool:
    """What is seen at the last look, after so many seconds with a look in each."""
    lost = False
    for _ in range(round(seconds)):
        clock.now += 1
        lost = hearing.is_lost(answer())
    return lost


HEARD = [
    # seconds     answer of the last heartbeat   lost
    (SILENT * 10,   "changes",                     False),
    (SILENT - 5,    "stays",                       False),
    (SILENT + 5,    "stays",                       True),
    (SILENT * 10,   "unknown",                     False),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "answer", "lost"), HEARD)
def test_a_scheduler_that_answers_no_heartbeat_for_long_is_lost(
    seconds: float, answer: str, lost: bool
) -> None:
    clock = Clock()
    answers: dict[str, Callable[[], object]] = {
        "changes": lambda: clock.now, "stays": lambda: 0.5, "unknown": lambda: None
    }  # fmt: skip
    assert looks(HeartbeatWatch(clock=clock), clock, seconds, answers[answer]) is lost


def test_nothing_is_known_of_a_time_without_observations() -> None:
    clock = Clock()
    hearing = HeartbeatWatch(clock=clock)
    assert not looks(hearing, clock, SILENT / 2, lambda: 0.5)
    clock.now += SILENT + GAP
    assert not hearing.is_lost(0.5)
    assert looks(hearing, clock, SILENT + 5, lambda: 0.5)


WANTED = [
    # worker                 task              unwanted
    ("Status.running",       "executing",      False),
    ("Status.running",       "long-running",   False),
    ("Status.paused",        "executing",      False),   # it has little memory left, and keeps what it has
    ("Status.closing",       "executing",      True),
    ("Status.running",       "cancelled",      True),
    ("Status.running",       None,             True),
]  # fmt: skip


@pytest.mark.parametrize(("status", "state", "unwanted"), WANTED)
def test_a_task_is_wanted_as_long_as_its_worker_works_and_its_scheduler_says_so(
    status: str, state: str | None, unwanted: bool
) -> None:
    tasks = {} if state is None else {"key": SimpleNamespace(state=state)}
    worker = SimpleNamespace(
        status=status, state=SimpleNamespace(tasks=tasks), scheduler_delay=1, latency=2
    )
    assert make_cancel_check(worker, "key", HeartbeatWatch())() is unwanted


def test_a_task_of_a_scheduler_that_is_stuck_is_wanted_no_longer() -> None:
    clock = Clock()
    tasks = {"key": SimpleNamespace(state="executing")}
    worker = SimpleNamespace(
        status="Status.running", state=SimpleNamespace(tasks=tasks), scheduler_delay=1, latency=2
    )
    is_unwanted = make_cancel_check(worker, "key", HeartbeatWatch(clock=clock))
    seen = []
    for _ in range(round(SILENT) + 5):
        clock.now += 1
        seen.append(is_unwanted())
    assert (seen[0], seen[-1]) == (False, True)
