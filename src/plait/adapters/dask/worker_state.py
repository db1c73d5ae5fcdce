"""The state of a worker as it sees it: its name, and whether its tasks are cancelled.

A cancelled task stays with its worker until its thread ends, in another state. So does a task whose
client has died, because the scheduler then drops it. A stuck scheduler reports neither, so one that
does not answer heartbeats for long counts as gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plait.core.hints import Any, Final

SILENT: Final = 60.0
"""Seconds without an answer after which a scheduler counts as gone; the run waits equally long."""
GAP: Final = 5.0
"""Seconds between two checks; after a longer gap, it is unknown what happened in between."""
AT_WORK: Final = ("running", "paused")
"""The states in which a worker keeps its tasks; a paused one starts no new ones."""


def worker_name() -> str:
    """The address of this worker; empty outside a worker."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def task_watch() -> Callable[[], bool]:
    """Return a function that says whether the task of this thread is cancelled."""
    worker = _worker()
    if worker is None:
        return lambda: False
    return make_cancel_check(worker, worker.get_current_task(), _HEARTBEATS)


def make_cancel_check(worker: Any, key: str, heartbeats: HeartbeatWatch) -> Callable[[], bool]:
    def is_cancelled() -> bool:
        if str(worker.status).rpartition(".")[2] not in AT_WORK:
            return True
        task = worker.state.tasks.get(key)
        if task is None or task.state not in ("executing", "long-running"):
            return True
        # The measured delay changes with each answered heartbeat.
        delay = getattr(worker, "scheduler_delay", None)
        return heartbeats.is_lost(
            None if delay is None else (delay, getattr(worker, "latency", None))
        )

    return is_cancelled


class HeartbeatWatch:
    """Checks whether the scheduler has answered lately; `is_lost` must be called regularly."""

    def __init__(
        self, *, silent: float = SILENT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent = silent
        self._clock = clock
        self._answer: object = None
        self._since = self._looked = clock()

    def is_lost(self, answer: object) -> bool:
        """Is the scheduler lost? `answer` changes with each answered heartbeat; None if
        that is unknown.
        """
        now = self._clock()
        if answer is None or answer != self._answer or now - self._looked > GAP:
            self._answer, self._since = answer, now
        self._looked = now
        return now - self._since > self._silent


_HEARTBEATS: Final = HeartbeatWatch()


def _worker() -> Any:
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None
