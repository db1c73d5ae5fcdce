"""The workers of a cluster that take items of a run: which are ready, silent or gone.

New workers are checked and get the job while others work. A worker without a heartbeat for the
run's patience is stuck: it gets no items until it has a heartbeat again.
"""

from __future__ import annotations

import pkgutil
import platform
import time
from collections.abc import Callable, Mapping, Set
from functools import partial

from plait.adapters.dask import protocol
from plait.adapters.dask.cluster import TimedCall
from plait.adapters.dask.connection import POLL, QUIET, Connection
from plait.adapters.dask.heartbeats import Heartbeats
from plait.adapters.dask.replies import (
    RemoteError,
    mismatch,
    require_same_versions,
    to_error,
    unloadable,
)
from plait.core.errors import ProcessError
from plait.core.hints import Any, Final
from plait.core.records import dataclass
from plait.engine.backend import JobPacker
from plait.engine.context import RunContext

COUNT_INTERVAL: Final = 0.5
"""Seconds between two counts of the workers."""
FIRST_WAIT: Final = 1.0
"""Seconds in which the run only waits for the first workers."""
CHECK_SHARE: Final = 1 / 6
"""The share of the patience after which workers that were checked together are checked one by one.
"""


@dataclass(frozen=True, slots=True)
class _WorkerCheck:
    """New workers that are being checked and get the job."""

    workers: tuple[str, ...]
    call: TimedCall
    since: float


class Workers:
    def __init__(
        self,
        connection: Connection,
        packer: JobPacker,
        run: RunContext,
        job: bytes,
        on_lost: Callable[[str, int], None],
        *,
        wait: float,
    ) -> None:
        """`on_lost` gets a worker that is gone, and its threads. `wait`: seconds without
        any worker.
        """
        self._connection = connection
        self._packer = packer
        self._run = run
        self._job = job
        self._on_lost = on_lost
        self._wait = wait
        self.threads: dict[str, int] = {}
        """Threads of the workers that have the job."""
        self.stuck: set[str] = set()
        self._heartbeats = Heartbeats()
        self._silence_noted: set[str] = set()
        """Workers whose silence was noted."""
        self._checks: list[_WorkerCheck] = []
        self._counted = 0.0
        self._without_since: float | None = None
        """The time since which no worker takes items; None if one does."""
        self._was_empty_noted = False

    def update(self, busy: Set[str]) -> bool:
        """Find workers that came or went, from time to time; `busy` workers have tasks.
        False: not now.
        """
        self._accept_checked()
        if time.monotonic() - self._counted < (COUNT_INTERVAL if self.threads else POLL):
            return False
        client = self._connection.client
        there: dict[str, int] = dict(self._connection.ask(lambda: client.nthreads()))
        self._counted = time.monotonic()
        for worker in (self.threads.keys() | busy) - there.keys():
            self.remove_lost(worker)
        self.stuck &= there.keys()
        self._check_new(
            {worker: count for worker, count in there.items() if worker not in self.stuck}
        )
        self._accept_checked()
        self.threads |= {worker: count for worker, count in there.items() if worker in self.threads}
        self._require_some(is_empty=not there)
        return True

    def update_soon(self) -> None:
        self._counted = 0.0

    def _require_some(self, *, is_empty: bool) -> None:
        """Raise ProcessError if no worker has taken items for too long."""
        now = time.monotonic()
        if self.threads:
            self._without_since, self._was_empty_noted = None, False
            return
        if self._without_since is None:
            self._without_since = now
        without = now - self._without_since
        name = self._connection.cluster.display_name
        if not self._was_empty_noted and (is_empty or without > min(QUIET, self._wait / 2)):
            self._was_empty_noted = True
            self._connection.note(
                f"the cluster at {name} has no workers{' that answer' * (not is_empty)}; "
                f"items go on when one is there, and the run ends after {self._wait:g} seconds "
                "without one"
            )
        if without > self._wait:
            raise ProcessError(
                f"the cluster at {name} has had no worker that takes items "
                f"for {self._wait:g} seconds",
                fix=f"start workers, then: plait resume {self._run.id} "
                "(to wait longer, write wait_for_workers under map)",
                code="no-workers",
            )

    def remove_lost(self, worker: str) -> None:
        # A worker without the job may have been waiting for another one.
        self._on_lost(worker, self.threads.pop(worker, 1))

    def drop(self, worker: str) -> None:
        """Forget that a worker has the job; it gets the job again at the next update."""
        self.threads.pop(worker, None)

    def clear(self) -> None:
        """Forget all workers, because the scheduler is another one."""
        self.threads.clear()
        self._checks.clear()
        self.stuck.clear()
        self._heartbeats.clear()
        self._counted = 0.0

    # ── heartbeats ───────────────────────────────────────────────────────

    def note_heartbeats(self, heartbeats: Mapping[str, object]) -> None:
        self.stuck -= self._heartbeats.see(heartbeats)  # they are checked like new workers

    def is_stuck(self, worker: str, waited: float) -> bool:
        """Was the worker silent for too long? `waited`: seconds that we have waited for its
        replies.
        """
        patience = self._connection.patience
        silence = max(self._heartbeats.silence(worker), waited)
        if silence > patience:
            self._silence_noted.discard(worker)
            self._connection.note(
                f"the worker at {worker} has not answered for {patience:g} seconds; "
                "its items go to other workers"
            )
            self.stuck.add(worker)
            return True
        if silence > min(2 * QUIET, patience / 2) and worker not in self._silence_noted:
            self._silence_noted.add(worker)
            self._connection.note(
                f"the worker at {worker} does not answer; after {patience:g} seconds "
                "its items go to other workers"
            )
        elif silence < QUIET:
            self._silence_noted.discard(worker)
        return False

    # ── new workers ──────────────────────────────────────────────────────

    def _check_new(self, there: Mapping[str, int]) -> None:
        """Check new workers in the background, so that a stuck one does not delay the run."""
        self._checks = [one for one in self._checks if not there.keys().isdisjoint(one.workers)]
        in_check = {worker for one in self._checks for worker in one.workers}
        new = tuple(
            worker for worker in there if worker not in self.threads and worker not in in_check
        )
        if not new:
            return
        self._start_check(new)
        if not self.threads:
            self._checks[-1].call.is_over(
                FIRST_WAIT, should_preempt=self._connection.should_preempt
            )

    def _start_check(self, workers: tuple[str, ...]) -> None:
        call = TimedCall(partial(self._prepare, list(workers)))
        self._checks.append(_WorkerCheck(workers, call, time.monotonic()))

    def _prepare(self, workers: list[str]) -> dict[str, Any]:
        """Check the versions of workers, and send them the job; runs in its own thread."""
        connection = self._connection
        plaits = connection.run_unmasked(workers, pkgutil.resolve_name, protocol.VERSION)
        pythons = connection.run_unmasked(workers, platform.python_version)
        require_same_versions(pythons, plaits, self._run.secrets.mask)
        return connection.run_on_workers(workers, self._packer.receive, self._job)

    def _accept_checked(self) -> None:
        """Let workers that have the job take items."""
        checks, self._checks = self._checks, []
        patience = self._connection.patience
        for one in checks:
            if one.call.is_over():
                self._add(one.call)
            elif len(one.workers) > 1 and time.monotonic() - one.since > CHECK_SHARE * patience:
                for worker in one.workers:
                    self._start_check((worker,))
            else:
                self._checks.append(one)

    def _add(self, check: TimedCall) -> None:
        try:
            replies = check.answer(0.0)
        except OSError:
            return  # the next update checks them again if they are still there
        except (AttributeError, RuntimeError):
            if self._connection.is_other_scheduler():
                return
            raise
        for worker, reply in replies.items():
            if isinstance(reply, bytes):
                raise_refusal(self._connection.mask(protocol.unpack_reply(reply)))
            elif reply is None:
                self.threads[worker] = 1  # the next update counts its threads
                self.update_soon()
            elif not (isinstance(reply, RemoteError) and reply.is_a(OSError)):
                raise unloadable({worker: reply})


def raise_refusal(reply: protocol.Reply) -> None:
    match reply:
        case protocol.VersionMismatch(versions, worker):
            raise mismatch({worker: str(versions)})
        case protocol.ItemRefused():
            raise to_error(reply)
