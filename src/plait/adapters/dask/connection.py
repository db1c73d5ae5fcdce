"""The connection of a run to its scheduler: calls with time limits, and reconnecting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from plait.adapters.dask.cluster import (
    CONNECT,
    Cluster,
    NoAnswer,
    Preempted,
    TimedCall,
    stop_workers,
)
from plait.adapters.dask.replies import mask_reply
from plait.core.errors import InputError, ProcessError
from plait.core.hints import Any, Final
from plait.engine.backend import JobPacker
from plait.engine.context import RunContext

QUIET: Final = 5.0
"""Seconds without a response until a note says that the run waits."""
CLOSING: Final = 2.0
"""Seconds for the last calls to a cluster."""
CLOSING_IF_SILENT: Final = 0.2
"""The same, if the scheduler does not respond."""
POLL: Final = 0.1
"""Seconds between two attempts to reconnect."""


class SchedulerLost(Exception):
    """The scheduler is gone, or it was restarted."""


class Connection:
    """A Dask client whose calls end after `patience` seconds, or when the run stops."""

    def __init__(
        self, cluster: Cluster, packer: JobPacker, run: RunContext, path: str, patience: float
    ) -> None:
        self.cluster = cluster
        self.patience = patience
        self.client: Any = None
        self._comm: Any = None
        self._packer = packer
        self._run = run
        self._path = path
        self._is_silent = False
        """The scheduler did not respond when workers had to stop, so last calls do not wait."""

    # ── opening and closing ──────────────────────────────────────────────

    def open(self) -> bool:
        """Connect; False if the run must stop. A scheduler that disappeared since `check`
        may come back.
        """
        try:
            self._connect(CONNECT)
        except Preempted:
            return False
        except InputError as error:
            if error.code != "no-cluster" or self.cluster.is_ours:
                raise
            return self._wait_for_scheduler()
        return True

    def reopen(self) -> None:
        self.close(1.0)
        self._wait_for_scheduler()

    def close(self, seconds: float | None = None) -> None:
        seconds = self.closing_seconds if seconds is None else seconds
        TimedCall(partial(self.client.close, timeout=seconds)).is_over(
            seconds, should_preempt=self._is_hurried
        )

    @property
    def closing_seconds(self) -> float:
        return CLOSING_IF_SILENT if self._is_silent else CLOSING

    def _connect(self, seconds: float) -> None:
        self.client = self.cluster.client(seconds, should_preempt=self._run.stop.is_set)
        self._comm = self.client.scheduler_comm

    def _wait_for_scheduler(self) -> bool:
        """Wait for the scheduler; False if the run must stop."""
        self.note(f"the scheduler at {self.cluster.display_name} is gone; waiting for it")
        until = time.monotonic() + self.patience
        while not self._run.stop.is_set():
            try:
                self._connect(min(CONNECT, 3.0))
                return True
            except Preempted:
                return False
            except InputError as error:
                if error.code != "no-cluster":
                    raise
                if time.monotonic() > until:
                    raise ProcessError(
                        f"the scheduler at {self.cluster.display_name} is gone, and did not come "
                        "back",
                        fix=f"start it again, then: plait resume {self._run.id}",
                        code="no-cluster",
                    ) from None
            self._run.stop.wait(POLL)
        return False

    # ── calls ────────────────────────────────────────────────────────────

    def ask(self, function: Callable[[], Any]) -> Any:
        """Call the scheduler.

        Raises Preempted if the run stops or the scheduler was restarted, and SchedulerLost
        if it is gone.
        """
        call = TimedCall(function)
        try:
            quiet = min(QUIET, self.patience / 2)
            if not call.is_over(quiet, should_preempt=self.should_preempt):
                if self.should_preempt():
                    raise Preempted
                self.note(
                    f"the scheduler at {self.cluster.display_name} does not answer; waiting for it"
                )
            return call.answer(self.patience - quiet, should_preempt=self.should_preempt)
        except NoAnswer:
            raise ProcessError(
                f"the scheduler at {self.cluster.display_name} has not answered "
                f"for {self.patience:g} seconds",
                fix=f"look at it, or start it again, then: plait resume {self._run.id}",
                code="no-cluster",
            ) from None
        except (OSError, AttributeError, RuntimeError):
            # A client that has just lost its scheduler may raise any of these.
            if isinstance(call.error, OSError) or self.is_other_scheduler():
                raise SchedulerLost from None
            raise

    def should_preempt(self) -> bool:
        return self._run.stop.is_set() or self.is_other_scheduler()

    def is_other_scheduler(self) -> bool:
        """Has the client lost its scheduler? It may have found another one, which has none
        of our tasks.
        """
        return self.client.scheduler_comm is not self._comm

    def run_on_workers(
        self, workers: list[str] | None, function: Callable[..., object], *args: object
    ) -> dict[str, Any]:
        """Call a function on workers; return its masked result by worker."""
        results = self.client.run(function, *args, workers=workers, on_error="return")
        return {worker: self.mask(one) for worker, one in results.items()}

    def run_unmasked(
        self, workers: list[str], function: Callable[..., object], *args: object
    ) -> dict[str, Any]:
        """The same without masking, for results that are compared and not shown."""
        results = self.client.run(function, *args, workers=workers, on_error="return")
        return {worker: mask_reply(one, str) for worker, one in results.items()}

    def mask(self, value: Any) -> Any:
        secrets = self._run.secrets
        return mask_reply(value, str if secrets.is_empty else secrets.mask)

    def note(self, message: str) -> None:
        self._run.events.note(self._path, message)

    # ── stopping ─────────────────────────────────────────────────────────

    def stop_items(self, digest: str, futures: list[Any], workers: set[str]) -> list[str]:
        """Stop the items of a job; return the workers that did not confirm it in time."""
        TimedCall(partial(self.client.cancel, futures, force=True)).is_over(
            CLOSING, should_preempt=self._is_hurried
        )
        return stop_workers(workers, _StopCalls(self, self._packer, digest), self._run.stop)

    def drop_job(self, digest: str) -> None:
        """Make all workers drop a job. A worker that does not get the call drops it some
        time later.
        """
        call = TimedCall(partial(self.run_on_workers, None, self._packer.drop, digest))
        call.is_over(self.closing_seconds, should_preempt=self._is_hurried)

    def _is_hurried(self) -> bool:
        return self._run.stop.at_once

    def set_silent(self, is_silent: bool) -> None:
        self._is_silent = is_silent


class _StopCalls:
    """Implements `StopChannels` for one job."""

    def __init__(self, connection: Connection, packer: JobPacker, digest: str) -> None:
        self._connection = connection
        self._packer = packer
        self._digest = digest

    def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]:
        self._connection.set_silent(True)
        counts = self._connection.run_on_workers(workers, self._packer.stop, self._digest, at_once)
        self._connection.set_silent(False)
        return counts

    def directly(self, worker: str, at_once: bool) -> object:
        connection = self._connection
        count = connection.cluster.directly(
            connection.client, worker, self._packer.stop, self._digest, at_once
        )
        return connection.mask(count)
