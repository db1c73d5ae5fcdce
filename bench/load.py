"""Check whether the machine is quiet enough to measure, from one second of core usage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep

STAT = Path("/proc/stat")
LOOK = 1.0
"""Seconds."""
MOST = 0.10
"""The share of all cores that other programs may use."""


def busy_share(
    *, read: Callable[[], str] = STAT.read_text, pause: Callable[[float], object] = sleep
) -> float:
    """Return the busy share of all cores, from 0 to 1.

    Without /proc/stat it is the load average of the last minute, as a share of the cores.
    """
    try:
        first = _ticks(read())
    except OSError:
        return min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
    pause(LOOK)
    (idle, total), (idle_then, total_then) = _ticks(read()), first
    return 1 - (idle - idle_then) / max(total - total_then, 1)


def _ticks(stat: str) -> tuple[int, int]:
    """Idle ticks and all ticks of all cores; a core that waits for a disk is idle."""
    line = next(line for line in stat.splitlines() if line.startswith("cpu "))
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return idle + iowait, user + nice + system + idle + iowait + irq + softirq + steal


def refusal(share: float) -> str | None:
    """The reason why nothing can be measured now, and what to do."""
    if share <= MOST:
        return None
    return (
        f"bench: the machine is busy: {share:.0%} of its cores compute for others, "
        f"at most {MOST:.0%} may.\n"
        "fix: end the other work (`top` shows it) and run this again, "
        "or measure nevertheless with --beside-load"
    )


def refuse_beside_load() -> float:
    """Stop the program on a busy machine; otherwise return its load."""
    share = busy_share()
    if reason := refusal(share):
        raise SystemExit(reason)
    return share
