"""A Dask cluster, our own or at an address: find it, fetch results, stop its workers.

Nothing here waits forever. Before a client connects, we check that a Dask scheduler listens at the
address: a client would wait without end for a server that accepts and never responds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from plait.adapters.dask.replies import RemoteError
from plait.core.errors import InputError
from plait.core.extras import install_extra
from plait.core.grace import grace_seconds
from plait.core.hints import Any, Final, Protocol
from plait.core.records import dataclass, field
from plait.engine.stop import StopSignal

POLL: Final = 0.05
"""Seconds between two checks for something more urgent."""


class NoAnswer(Exception):
    """A call did not return in time."""


class Preempted(Exception):
    """A caller stopped waiting, because there is something more urgent."""


def _never() -> bool:
    return False


class TimedCall:
    """A call in its own thread, with a result that may come late."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._over = threading.Event()
        self.value: Any = None
        """The result, when the call is over."""
        self.error: BaseException | None = None
        """The exception, if the call raised one."""
        threading.Thread(target=self._make, name="plait-call", daemon=True).start()

    def _make(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # `answer` raises it in the caller's thread
            self.error = error
        self._over.set()

    def is_over(self, seconds: float = 0.0, *, should_preempt: Callable[[], bool] = _never) -> bool:
        """Has it ended, now or within this number of seconds?"""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._over.wait(min(POLL, left)):
            if should_preempt():
                break
        return self._over.is_set()

    def answer(self, seconds: float, *, should_preempt: Callable[[], bool] = _never) -> Any:
        """Return the result or raise the exception of the call; NoAnswer if it takes
        longer; it may be called again.
        """
        if not self.is_over(seconds, should_preempt=should_preempt):
            raise Preempted if should_preempt() else NoAnswer
        if self.error is not None:
            raise self.error
        return self.value


CONNECT: Final = 6.0
"""Seconds to find a cluster at an address."""
DIRECT: Final = 2.0
"""Seconds to reach a worker without its scheduler."""
DASK_LOGGERS: Final = frozenset({"asyncio", "distributed", "tornado"})
SILENT: Final = 100
"""A log level above all others."""
NO_SCHEDULER: Final = (
    "look whether its scheduler runs, and can be reached from this host; or run elsewhere: "
    "--backend"
)
NO_ADDRESS: Final = "write dask://HOST:PORT; a scheduler of Dask listens at port 8786 by default"

ShouldPreempt = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch: all replies, the missing keys, or an error."""

    replies: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    missing: frozenset[str] = frozenset()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    """As the user wrote it; empty for a local cluster of our own."""
    scheduler: str

    @property
    def is_ours(self) -> bool:
        return not self.address

    @property
    def display_name(self) -> str:
        return f"dask://{self.address}" if self.address else "dask"

    def client(self, seconds: float = CONNECT, *, should_preempt: ShouldPreempt) -> Any:
        """Return a connected client; raise an InputError if there is no cluster."""
        if not self.is_ours:
            self._await(
                lambda: _require_dask_server(self.scheduler, seconds), seconds, should_preempt
            )
        return self._await(lambda: _client(self.scheduler, seconds), seconds, should_preempt)

    def require_available(self, *, should_preempt: ShouldPreempt) -> None:
        self._await(lambda: _require_dask_server(self.scheduler, CONNECT), CONNECT, should_preempt)

    def _await(
        self, function: Callable[[], Any], seconds: float, should_preempt: ShouldPreempt
    ) -> Any:
        # A second longer than its own timeout, because its error is more precise.
        call = TimedCall(function)
        if not call.is_over(seconds + 1.0, should_preempt=should_preempt) and should_preempt():
            raise Preempted
        if call.is_over() and call.error is None:
            return call.value
        raise InputError(
            f"there is no Dask cluster at {self.display_name}: {_reason(call.error)}",
            fix=NO_ADDRESS if isinstance(call.error, ValueError) else NO_SCHEDULER,
            code="no-cluster",
        )

    def fetch(self, client: Any, keys: list[str], done: Callable[[Fetched], None]) -> None:
        """Fetch the results of tasks; `done` is called in a thread of Dask, if at all.

        `client.gather` is not used: it waits forever for a lost result, and keeps back the
        others.
        """
        from tornado.gen import convert_yielded

        def begin() -> None:
            try:
                asked: Any = convert_yielded(client.scheduler.gather(keys=keys))
            except Exception as error:  # the client was closed meanwhile
                done(Fetched(error=error))
            else:
                asked.add_done_callback(lambda over: done(_fetch_result(over)))

        client.loop.add_callback(begin)

    def directly(
        self, client: Any, worker: str, function: Callable[..., Any], *args: object
    ) -> Any:
        """Call a function on a worker without the scheduler, which may be stuck.

        Some networks do not allow it.
        """
        from distributed.protocol import pickle

        dumps: Any = pickle.dumps
        message = {
            "function": dumps(function),
            "args": dumps(args),
            "kwargs": dumps({}),
            "wait": True,
        }
        reply = client.sync(client.rpc(worker).run, callback_timeout=DIRECT, **message)
        return reply["result"]


def _fetch_result(over: Any) -> Fetched:
    try:
        answer = over.result()
    except BaseException as error:  # CancelledError is not an Exception
        return Fetched(error=error)
    if answer["status"] == "OK":
        return Fetched(answer["data"])
    return Fetched(missing=frozenset(answer["keys"]))


def _require_dask_server(address: str, seconds: float) -> None:
    """Raise OSError unless a server at the address responds like Dask."""
    from distributed import security, utils
    from distributed.comm import core

    _require_host(address)
    make_security: Any = security.Security
    settings = make_security().get_connection_args("client")
    make_runner: Any = utils.LoopRunner
    runner = make_runner()
    runner.start()
    try:
        # Dask's own timeout covers only the connection, not the handshake.
        limits = {"timeout": seconds * 0.75, "callback_timeout": seconds}
        found: Any = utils.sync(runner.loop, core.connect, address, **limits, **settings)
        runner.run_sync(found.close)
    finally:
        runner.stop()


def _require_host(address: str) -> None:
    """Raise OSError for an unknown host: Dask would retry until its timeout, and then report
    that.
    """
    from socket import gaierror, getaddrinfo

    from distributed.comm import addressing

    find: Any = addressing.get_address_host
    host = find(address)
    try:
        getaddrinfo(host, None)
    except (gaierror, UnicodeError) as error:
        raise OSError(f"there is no host '{host}'") from error


def _client(address: str, seconds: float) -> Any:
    from distributed import Client

    make: Any = Client
    return make(address, timeout=seconds, set_as_default=False, name="plait")


def _reason(error: BaseException | None) -> str:
    from distributed.comm.core import CommClosedError

    is_foreign = isinstance(error, TimeoutError | CommClosedError)
    if is_foreign or not isinstance(error, OSError | ValueError | ImportError):
        return "what listens there does not answer like a scheduler of Dask"
    first = str(error).strip().splitlines()
    return first[0].rstrip(":") if first else type(error).__name__


@contextmanager
def open_cluster(address: str, parallel: int) -> Iterator[Cluster]:
    """The cluster at an address, or a local one that exists only within this."""
    require_dask()
    if address:
        yield Cluster(address, address)
        return
    import os

    from dask import config
    from distributed import LocalCluster

    settings: Any = config.set(
        {"distributed.worker.profile.enabled": False}
    )  # not used, and takes time
    workers = max(1, min(parallel, len(os.sched_getaffinity(0))))
    make: Any = LocalCluster
    with (
        settings,
        make(
            n_workers=workers,
            threads_per_worker=-(-parallel // workers),
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=SILENT,
        ) as cluster,
    ):
        yield Cluster("", str(cluster.scheduler_address))


def require_dask() -> None:
    try:
        import distributed  # noqa: F401 - only to see whether it is installed
    except ImportError:
        raise InputError(
            "the Dask backend needs a package that is not installed: distributed",
            fix=install_extra("dask"),
            code="no-package",
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Dask's logs: we report lost connections ourselves."""
    import logging

    require_dask()  # its first import sets the levels of its loggers
    existing = (logging.getLogger(name) for name in list(logging.root.manager.loggerDict))
    loggers = [one for one in existing if one.name.partition(".")[0] in DASK_LOGGERS]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(SILENT)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


AT_ONCE: Final = 2.0
"""Seconds to stop items without grace, and to report that."""
ANSWER: Final = 1.0
"""Seconds after which we call workers without the scheduler."""
PAUSE: Final = 0.1


def seconds_to_stop() -> float:
    """Seconds until stopped items have ended: the grace of their processes, and some more."""
    return grace_seconds() + AT_ONCE


class StopChannels(Protocol):
    """Two ways to stop items; each returns how many still run."""

    def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]: ...

    def directly(self, worker: str, at_once: bool) -> object: ...


def stop_workers(workers: Iterable[str], ways: StopChannels, stop: StopSignal) -> list[str]:
    """Stop the items of workers; return the workers that did not confirm it in time."""
    return _Stopping(set(workers), ways, stop).wait_for_stop()


class _Stopping:
    def __init__(self, workers: set[str], ways: StopChannels, stop: StopSignal) -> None:
        self._busy = workers
        self._ways = ways
        self._stop = stop
        self._hurried = stop.at_once
        self._ask: Callable[[], Mapping[str, object]] = self._through_scheduler
        self._asked: dict[tuple[str, bool], TimedCall] = {}
        """Calls that may still return, by worker and urgency."""

    def wait_for_stop(self) -> list[str]:
        until = time.monotonic() + (AT_ONCE if self._hurried else seconds_to_stop())
        while self._busy and time.monotonic() < until:
            if self._is_hurried_now():
                self._hurried = True
                until = min(until, time.monotonic() + AT_ONCE)
            counts = self._ask()
            self._busy -= {worker for worker, count in counts.items() if _has_stopped(count)}
            if self._busy and not self._is_hurried_now():
                time.sleep(PAUSE)
        return sorted(self._busy)

    def _is_hurried_now(self) -> bool:
        return self._stop.at_once and not self._hurried

    def _through_scheduler(self) -> Mapping[str, object]:
        call = TimedCall(partial(self._ways.through_scheduler, sorted(self._busy), self._hurried))
        if call.is_over(ANSWER, should_preempt=self._is_hurried_now) and call.error is None:
            counts: Mapping[str, object] = call.value
            return counts
        if not self._is_hurried_now():
            self._ask = self._directly
        return {}

    def _directly(self) -> Mapping[str, object]:
        calls = {worker: self._call(worker) for worker in sorted(self._busy)}
        until = time.monotonic() + ANSWER
        over = {
            worker: self._asked.pop((worker, self._hurried))
            for worker, call in calls.items()
            if call.is_over(max(0.0, until - time.monotonic()), should_preempt=self._is_hurried_now)
        }
        return {worker: call.value for worker, call in over.items() if call.error is None}

    def _call(self, worker: str) -> TimedCall:
        key = worker, self._hurried
        if key not in self._asked:
            self._asked[key] = TimedCall(partial(self._ways.directly, worker, self._hurried))
        return self._asked[key]


def _has_stopped(count: object) -> bool:
    """Does the worker run no item, or is it gone? Its processes end with it."""
    return count == 0 or (isinstance(count, RemoteError) and count.is_a(OSError))
