"""Times that can be compared: all contenders in turn, many rounds, on one core.

A shared machine slows everything down now and then.  A round measures each
contender once, so that such a moment hits all of them; the minimum of the
rounds is what the machine can do, the median is what it did.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

SLICE = 0.001
"""Seconds that one contender runs in one round; whoever needs longer for a single call sits rounds
out.
"""
MOST_SKIPPED = 20


@dataclass(frozen=True)
class Times:
    """Seconds per call."""

    least: float
    median: float


@dataclass(frozen=True)
class Contender:
    """A statement, as its user would write it, and the names in it."""

    name: str
    statement: str
    names: Mapping[str, Any]

    def result(self) -> Any:
        return eval(self.statement, dict(self.names))


def pin_to_one_core() -> str:
    """Stay on one core, if the system lets us; says what was done."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned to a core"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Where processes are started side by side, one core would be too few."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def race(contenders: Sequence[Contender], *, rounds: int) -> dict[str, Times]:
    """The times of statements that can be repeated at will."""
    timers = {it.name: timeit.Timer(it.statement, globals=dict(it.names)) for it in contenders}
    calls = {name: SLICE / _seconds_per_call(timer) for name, timer in timers.items()}
    seen: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(rounds):
        for name, timer in timers.items():
            if number % max(1, min(MOST_SKIPPED, round(1 / calls[name]))) == 0:
                repeats = max(1, round(calls[name]))
                seen[name].append(timer.timeit(repeats) / repeats)
    return _times(seen)


def race_once_each(
    contenders: Mapping[str, Callable[[int], Any]],
    *,
    rounds: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, Times]:
    """The times of calls that must be new each time: each is given the number of the round."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, call in contenders.items():
            start = clock()
            call(number)
            seen[name].append(clock() - start)
    return _times(seen)


def race_processes(
    commands: Mapping[str, Sequence[str]], *, rounds: int, env: Mapping[str, str]
) -> dict[str, Times]:
    """The times of whole processes, from start to end; one that fails is an error."""

    def runner(command: Sequence[str]) -> Callable[[int], Any]:
        return lambda _: subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)

    return race_once_each(
        {name: runner(command) for name, command in commands.items()}, rounds=rounds
    )


def _seconds_per_call(timer: timeit.Timer) -> float:
    timer.timeit(1)
    return max(timer.timeit(5) / 5, 1e-9)


def _times(seen: Mapping[str, list[float]]) -> dict[str, Times]:
    return {name: Times(min(times), statistics.median(times)) for name, times in seen.items()}
