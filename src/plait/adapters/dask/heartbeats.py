"""Whether workers of a cluster still live, by the heartbeats that their scheduler counts.

A heartbeat is a stamp of the scheduler's clock.  Two stamps are only compared for being the same,
so that no clock but our own is believed, and that one never goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Signs:
    """Of each worker: how long has it been silent?"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}

    def see(self, heartbeats: Mapping[str, object]) -> frozenset[str]:
        """`heartbeats`: the stamp of the last one, by worker.  Those that were heard since the last
        look.
        """
        now, known = self._clock(), self._seen
        heard = frozenset(
            worker
            for worker, stamp in heartbeats.items()
            if worker not in known or known[worker][0] != stamp
        )
        self._seen = {
            worker: (stamp, now) if worker in heard else known[worker]
            for worker, stamp in heartbeats.items()
        }
        return heard

    def silence(self, worker: str) -> float:
        """Seconds since its last heartbeat was first seen; none for a worker that was never
        seen.
        """
        seen = self._seen.get(worker)
        return 0.0 if seen is None else self._clock() - seen[1]

    def forget(self) -> None:
        """The scheduler is another one."""
        self._seen.clear()
