"""What a worker of a Dask cluster knows of itself: its name, and whether its tasks are still
wanted.

A cancelled task stays with its worker until its thread ends, in a state that says so; so does one
whose client has died, since the scheduler then forgets all that only this client wanted.  A
scheduler that is stuck tells nothing of either, so one that answers no heartbeat for long counts as
gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plait.core.hints import Any, Final

DEAF: Final = 60.0
"""Seconds without an answer, after which a scheduler is gone: so long waits the run for it, too."""
GAP: Final = 5.0
"""Seconds between two looks, after which nothing is known of the time between them."""
AT_WORK: Final = ("running", "paused")
"""A worker keeps its tasks; one that is paused has little memory left, and begins no others."""


def worker_name() -> str:
    """The address of the worker that this is, or nothing."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def task_watch() -> Callable[[], bool]:
    """For the task of this thread: is it wanted no longer?"""
    worker = _worker()
    if worker is None:
        return lambda: False
    return make_cancel_check(worker, worker.get_current_task(), _HEARING)


def make_cancel_check(worker: Any, key: str, hearing: HeartbeatWatch) -> Callable[[], bool]:
    def is_unwanted() -> bool:
        if str(worker.status).rpartition(".")[2] not in AT_WORK:
            return True
        task = worker.state.tasks.get(key)
        if task is None or task.state not in ("executing", "long-running"):
            return True
        return hearing.is_lost(_last_answer(worker))

    return is_unwanted


def _last_answer(worker: Any) -> object:
    """Is another one after each heartbeat that was answered: it has measured how long that took."""
    delay = getattr(worker, "scheduler_delay", None)
    return None if delay is None else (delay, getattr(worker, "latency", None))


class HeartbeatWatch:
    """Has the scheduler answered lately?  It has to be asked regularly."""

    def __init__(self, *, deaf: float = DEAF, clock: Callable[[], float] = time.monotonic) -> None:
        self._deaf = deaf
        self._clock = clock
        self._answer: object = None
        self._since = self._looked = clock()

    def is_lost(self, answer: object) -> bool:
        """`answer`: of the last heartbeat, or None if that cannot be known."""
        now = self._clock()
        if answer is None or answer != self._answer or now - self._looked > GAP:
            self._answer, self._since = answer, now
        self._looked = now
        return now - self._since > self._deaf


_HEARING: Final = HeartbeatWatch()


def _worker() -> Any:
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None
