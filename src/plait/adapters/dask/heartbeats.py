"""Decide which workers of a cluster are alive, by the heartbeats that their scheduler sees.

A heartbeat is a time stamp of the scheduler's clock. Stamps are only compared for equality, so only
our own monotonic clock matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Heartbeats:
    """Measures how long each worker has been silent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}

    def see(self, heartbeats: Mapping[str, object]) -> frozenset[str]:
        """Record heartbeats, the last stamp of each worker; return the workers with a new one."""
        now, before = self._clock(), self._seen
        heard = frozenset(
            worker
            for worker, stamp in heartbeats.items()
            if worker not in before or before[worker][0] != stamp
        )
        self._seen = {
            worker: (stamp, now) if worker in heard else before[worker]
            for worker, stamp in heartbeats.items()
        }
        return heard

    def silence(self, worker: str) -> float:
        """Return the seconds since its last heartbeat was first seen; 0 for an unknown worker."""
        seen = self._seen.get(worker)
        return 0.0 if seen is None else self._clock() - seen[1]

    def clear(self) -> None:
        self._seen.clear()
