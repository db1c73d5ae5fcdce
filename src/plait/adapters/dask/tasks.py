"""The tasks that a run has sent to a cluster, and how their replies are fetched.

Replies are fetched from each worker separately, so a stuck worker delays only its own replies.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from plait.adapters.dask.cluster import Fetched
from plait.adapters.dask.connection import POLL, Connection
from plait.adapters.dask.replies import unexpected_worker_error
from plait.core.hints import Any, Final
from plait.core.records import dataclass
from plait.engine.backend import WorkItem

FETCHES: Final = 3
"""Failed fetches from a living worker after which its items are sent again."""


@dataclass(frozen=True, slots=True)
class Task:
    """Items that were sent to a worker together."""

    works: list[WorkItem]
    worker: str
    future: Any
    since: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """A call for the replies of ended tasks of one worker."""

    worker: str
    keys: list[str]
    since: float


@dataclass(frozen=True, slots=True)
class FetchEnded:
    fetch: Fetch
    fetched: Fetched


class Tasks:
    """The tasks that have not ended."""

    def __init__(self) -> None:
        self.running: dict[str, Task] = {}
        """The tasks by key, in the order in which they were sent."""
        self._doubted: set[str] = set()
        """Tasks that no worker had at the last review."""

    def add(self, key: str, works: list[WorkItem], worker: str, future: Any) -> None:
        self.running[key] = Task(works, worker, future, time.monotonic())

    def of_worker(self, worker: str) -> list[Task]:
        return [task for task in self.running.values() if task.worker == worker]

    def busy_workers(self) -> set[str]:
        return {task.worker for task in self.running.values()}

    def count_items(self) -> int:
        return sum(len(task.works) for task in self.running.values())

    def older_than(self, seconds: float) -> list[str]:
        now = time.monotonic()
        return [key for key, task in self.running.items() if now - task.since > seconds]

    def take_worker(self, worker: str) -> list[Task]:
        """Remove and return the tasks of a worker that is gone, oldest first."""
        keys = [key for key, task in self.running.items() if task.worker == worker]
        return [self.running.pop(key) for key in keys]

    def take_all(self) -> list[Task]:
        tasks = list(self.running.values())
        self.running.clear()
        return tasks

    def take_lost(self, old: list[str], processing: set[str]) -> list[WorkItem]:
        """Remove and return the items of old unfinished tasks that no worker has, at two
        reviews in a row.
        """
        doubted = {
            key
            for key in old
            if key in self.running
            and key not in processing
            and self.running[key].future.status not in ("finished", "error")
        }
        lost = doubted & self._doubted
        self._doubted = doubted - lost
        return [work for key in lost for work in self.running.pop(key).works]


class Replies:
    """Fetches the replies of tasks that have ended."""

    def __init__(
        self, connection: Connection, tasks: Tasks, send_again: Callable[[list[WorkItem]], None]
    ) -> None:
        self._connection = connection
        self._running = tasks.running
        self._send_again = send_again
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Ended futures and ended fetches; Dask's threads put them here."""
        self._ready: dict[str, list[str]] = {}
        """Ended tasks whose replies are not fetched yet, by worker."""
        self._fetching: dict[str, Fetch] = {}
        """Tasks whose replies are being fetched."""
        self._later: set[str] = set()
        """Tasks whose replies will be fetched once more."""
        self._misses: Counter[str] = Counter()
        """The number of failed fetches, by task."""

    def expect(self, future: Any) -> None:
        future.add_done_callback(self._messages.put)

    def fetching_since(self, worker: str) -> float | None:
        fetch = self._fetching.get(worker)
        return None if fetch is None else fetch.since

    def drop(self, worker: str) -> None:
        """Forget a worker that is gone."""
        self._ready.pop(worker, None)
        self._fetching.pop(worker, None)

    def clear(self) -> None:
        """Forget everything, because the scheduler is another one."""
        self._ready.clear()
        self._fetching.clear()

    def messages(self) -> list[Any]:
        """Return what has arrived; wait a moment for the first message."""
        found: list[Any] = []
        with suppress(queue.Empty):
            found.append(self._messages.get(timeout=POLL))
            while True:
                found.append(self._messages.get_nowait())
        return found

    def task_ended(self, future: Any) -> None:
        task = self._running.get(future.key)
        if task is None:
            return  # it has ended before, or is being sent again
        match future.status:
            case "finished":
                self._ready.setdefault(task.worker, []).append(future.key)
            case "error":
                del self._running[future.key]
                raise unexpected_worker_error(self._connection.mask(future.exception()))
            case _:
                del self._running[future.key]
                self._send_again(task.works)

    def fetch(self) -> None:
        """Start to fetch replies, with one call per worker."""
        for worker in [one for one in self._ready if one not in self._fetching]:
            # A task may report its end twice.
            keys = [key for key in dict.fromkeys(self._ready.pop(worker)) if key in self._running]
            if keys:
                fetch = self._fetching[worker] = Fetch(worker, keys, time.monotonic())
                self._connection.cluster.fetch(
                    self._connection.client, keys, partial(self._put, fetch)
                )

    def _put(self, fetch: Fetch, fetched: Fetched) -> None:
        self._messages.put(FetchEnded(fetch, fetched))

    def fetch_ended(self, ended: FetchEnded) -> Iterator[tuple[Task, bytes]]:
        """Yield the replies of a fetch; tasks without a reply are fetched or sent again."""
        fetch, fetched = ended.fetch, ended.fetched
        if self._fetching.get(fetch.worker) is not fetch:
            return  # its worker or scheduler was given up meanwhile
        del self._fetching[fetch.worker]
        if fetched.error is not None and not _is_lost(fetched.error):
            raise unexpected_worker_error(self._connection.mask(fetched.error))
        for key in fetch.keys:
            if key not in self._running:
                continue  # it was sent again meanwhile
            if key in fetched.replies:
                self._misses.pop(key, None)
                yield self._running.pop(key), fetched.replies[key]
            elif fetched.error is not None or key in fetched.missing:
                # Its worker is gone, which the next update notices, or does not return the reply.
                self._misses[key] += 1
                if self._misses[key] < FETCHES:
                    self._later.add(key)
                else:
                    del self._misses[key]
                    self._send_again(self._running.pop(key).works)
            else:  # delayed by others
                self._ready.setdefault(fetch.worker, []).append(key)

    def fetch_misses(self) -> None:
        """Fetch once more the replies that could not be fetched."""
        later, self._later = self._later & self._running.keys(), set()
        for key in later:
            self._ready.setdefault(self._running[key].worker, []).append(key)


def _is_lost(error: BaseException) -> bool:
    from concurrent.futures import CancelledError

    names = {one.__name__ for one in type(error).__mro__}
    return isinstance(error, OSError | CancelledError) or "CancelledError" in names
