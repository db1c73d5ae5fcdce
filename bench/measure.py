"""Comparable times: all contenders in turn, in many rounds, on one core.

A shared machine slows everything down now and then.  A round measures each
contender once, so that such a moment hits all of them; the minimum of the
rounds is what the machine can do, the median is what it did.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
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
    computing: float | None = None
    """The least computing time of the whole process tree, if measured."""
    median_computing: float | None = None


@dataclass(frozen=True)
class Contender:
    """A statement, as its user would write it, and the names in it."""

    name: str
    statement: str
    names: Mapping[str, Any]

    def result(self) -> Any:
        return eval(self.statement, dict(self.names))


def pin_to_one_core() -> str:
    """Stay on one core if the system allows it; return a description."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned to a core"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    is_urgent = os.sched_getscheduler(0) != os.SCHED_OTHER
    return f"pinned to core {core}" + (", real-time priority" if is_urgent else "")


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Use all cores, for processes that run in parallel."""
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
    """The times of repeatable statements."""
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
    """The times of calls that must differ each time: each gets the number of the round."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, call in contenders.items():
            start = clock()
            call(number)
            seen[name].append(clock() - start)
    return _times(seen)


def race_trees(contenders: Mapping[str, Callable[[int], Any]], *, rounds: int) -> dict[str, Times]:
    """The times of whole processes or maps: wall time, and computing time of all processes."""

    def spender(call: Callable[[int], Any]) -> Callable[[int], tuple[float, float]]:
        return lambda number: spent(partial(call, number))

    spans = race_spans({name: spender(call) for name, call in contenders.items()}, rounds=rounds)
    return {name: tree_times(seen) for name, seen in spans.items()}


def race_spans(
    contenders: Mapping[str, Callable[[int], tuple[float, float]]], *, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """The wall and computing time of each contender in each round; it gets the number of the round.

    Each round begins with another contender, so that none always has the same one before it.
    """
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seen[name].append(contenders[name](number))
    return seen


def paired_ratios(times: Sequence[float], references: Sequence[float]) -> list[float]:
    """The ratio of each round: a slow moment of the machine hits both times of a round."""
    return [one / reference for one, reference in zip(times, references, strict=True)]


def tree_times(spans: Sequence[tuple[float, float]]) -> Times:
    """Times from the wall and computing times that `spent` returns."""
    wall = [passed for passed, _ in spans]
    computing = [computed for _, computed in spans]
    median = statistics.median
    return Times(min(wall), median(wall), min(computing), median(computing))


def race_processes(
    commands: Mapping[str, Sequence[str]], *, rounds: int, env: Mapping[str, str]
) -> dict[str, Times]:
    """The times of whole processes, from start to end; one that fails is an error."""

    def runner(command: Sequence[str]) -> Callable[[int], Any]:
        return lambda _: subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)

    return race_trees({name: runner(command) for name, command in commands.items()}, rounds=rounds)


# ── computing time ───────────────────────────────────────────────────────

ORPHAN_PATIENCE = 1.0
"""Seconds until a leftover process of a command must have ended."""


def adopt_orphans() -> None:
    """Become the parent of processes that a command leaves behind, where the system allows it.

    Plait's guardian ends a moment after Plait; the time it computed would be lost.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def spent(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall time of a call, and computing time of it and of all processes it starts.

    A process that has ended counts by the clock of the system, one that lives on (the guardian of
    this process) in ticks of a hundredth of a second.
    """
    living = _living()
    own, ended = _used(resource.RUSAGE_SELF), _used(resource.RUSAGE_CHILDREN)
    start = perf_counter()
    call()
    passed = perf_counter() - start
    own = _used(resource.RUSAGE_SELF) - own
    left = _wait_for_orphans(living)
    ended = _used(resource.RUSAGE_CHILDREN) - ended
    return passed, own + ended + sum(left.values()) - sum(living.values())


def _used(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans(known: Mapping[int, float]) -> dict[int, float]:
    """Reap the new children; return those that are still alive."""
    until = perf_counter() + ORPHAN_PATIENCE
    while (new := (living := _living()).keys() - known) and perf_counter() < until:
        for pid in new:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        sleep(0.002)
    return living


def _living() -> dict[int, float]:
    """The processes below this one, and the seconds that each and its ended children computed."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid] = int(fields[1])
            seconds[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid: seconds[pid] for pid in below - {os.getpid()}}


def _seconds_per_call(timer: timeit.Timer) -> float:
    timer.timeit(1)
    return max(timer.timeit(5) / 5, 1e-9)


def _times(seen: Mapping[str, list[float]]) -> dict[str, Times]:
    return {name: Times(min(times), statistics.median(times)) for name, times in seen.items()}
