"""The end of what runs on workers and is not wanted any more: with grace or at once, always within a limit.

Workers are asked through their scheduler; if that does not answer, one by one and without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from plait.adapters.dask.patience import Call
from plait.adapters.dask.replies import Raised
from plait.core.grace import grace_seconds
from plait.core.hints import Final, Protocol
from plait.engine.event_bus import Stop

AT_ONCE: Final = 2.0
"""The same without grace."""
ANSWER: Final = 1.0
"""Seconds until a scheduler that says nothing is left aside."""
PAUSE: Final = 0.1


def seconds_to_stop() -> float:
    """Until what is to stop has ended: the grace of its processes, and some more."""
    return grace_seconds() + AT_ONCE


class Ways(Protocol):
    """To have workers halt: each says how many items it is still at."""

    def through_scheduler(self, workers: list[str], at_once: bool) -> Mapping[str, object]: ...

    def directly(self, worker: str, at_once: bool) -> object: ...


def halted(workers: Iterable[str], ways: Ways, stop: Stop) -> list[str]:
    """Have workers end what they are at; those that did not say that they have."""
    return _Halting(set(workers), ways, stop).done()


class _Halting:
    def __init__(self, workers: set[str], ways: Ways, stop: Stop) -> None:
        self._busy = workers
        self._ways = ways
        self._stop = stop
        self._hurried = stop.at_once
        self._ask: Callable[[], Mapping[str, object]] = self._through_scheduler
        self._asked: dict[tuple[str, bool], Call] = {}
        """By worker, and whether it was hurried: calls under way, of which an answer may come late."""

    def done(self) -> list[str]:
        until = time.monotonic() + (AT_ONCE if self._hurried else seconds_to_stop())
        while self._busy and time.monotonic() < until:
            if self._is_hurried_now():
                self._hurried = True
                until = min(until, time.monotonic() + AT_ONCE)
            said = self._ask()
            self._busy -= {worker for worker, count in said.items() if _is_through(count)}
            if self._busy and not self._is_hurried_now():
                time.sleep(PAUSE)
        return sorted(self._busy)

    def _is_hurried_now(self) -> bool:
        return self._stop.at_once and not self._hurried

    def _through_scheduler(self) -> Mapping[str, object]:
        call = Call(partial(self._ways.through_scheduler, sorted(self._busy), self._hurried))
        if call.is_over(ANSWER, gives_way=self._is_hurried_now) and call.error is None:
            said: Mapping[str, object] = call.value
            return said
        if not self._is_hurried_now():
            self._ask = self._directly
        return {}

    def _directly(self) -> Mapping[str, object]:
        calls = {worker: self._call(worker) for worker in sorted(self._busy)}
        until = time.monotonic() + ANSWER
        over = {
            worker: self._asked.pop((worker, self._hurried))
            for worker, call in calls.items()
            if call.is_over(max(0.0, until - time.monotonic()), gives_way=self._is_hurried_now)
        }
        return {worker: call.value for worker, call in over.items() if call.error is None}

    def _call(self, worker: str) -> Call:
        key = worker, self._hurried
        if key not in self._asked:
            self._asked[key] = Call(partial(self._ways.directly, worker, self._hurried))
        return self._asked[key]


def _is_through(said: object) -> bool:
    """It is at nothing, or gone: its processes end with it."""
    return said == 0 or (isinstance(said, Raised) and said.is_a(OSError))
