"""Kills, signals, full disks and set clocks against `plait run` and `plait resume`: nothing is lost or repeated.

A map of 60 items, 4 at a time, between a setup and a reduce; every step writes to a
ledger that the engine never opens.  Engines are ended in all the ways below, and the
run is resumed until it ends.  Then must hold:

    A    no step that was recorded when an engine died was begun again
    B    every item is recorded once, as done
    C    reduce wrote the same bytes as in a run that nothing happened to
    D    per death, no more steps were repeated than may run at a time
    E    the journal was sound after every death
    F    a second engine was refused while the first one worked
    G13  no process of the run was left after a death
    G16  what was reported as finished would have survived a power cut

Controls are engines with a flaw; the harness must find it.

    PYTHONPATH=tests python -m crash.crash [--kills 200] [--only NAME] [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crash import power
from crash.scene import Failed, Scene, is_locked, uninterrupted, wait_for
from crash.verdict import extra_starts

WORKERS: Final = 2
DAYS: Final = 86_400
REFUSED: Final = "has been working on run"
SPANS: Final = (0.3, 0.8, 1.6)
"""Seconds in which a kill comes: while the engine starts, a little later, at work."""
FULL_LIMIT: Final = 1_400_000
"""Bytes of the largest file: more than the room that a journal keeps in reserve, less than it needs."""
FULL_PADDING: Final = 12_000
SYSCALLS: Final = ("pwrite64", "fdatasync", "fsync", "rename", "mkdir", "unlink", "openat")


@dataclass(slots=True)
class Tally:
    """What came of a way to end engines."""

    name: str
    runs: int = 0
    deaths: int = 0
    extra: int = 0
    most_extra: float = 0.0
    """Per death, of the worst run."""
    violations: list[str] = field(default_factory=list)
    skipped: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, scene: Scene, expected: bytes) -> None:
        found = scene.violations(expected)
        extra = extra_starts(scene.ledger())
        with self._lock:
            self.runs += 1
            self.deaths += len(scene.deaths)
            self.extra += extra
            self.most_extra = max(self.most_extra, extra / max(1, len(scene.deaths)))
            self.violations += found

    def blame(self, *violations: str) -> None:
        with self._lock:
            self.violations += violations


@dataclass(frozen=True, slots=True)
class Stage:
    """Where scenes play, and by which chance."""

    folder: Path
    kills: int = 200
    rounds: int = 5
    """How often each way is tried, where it is not by kills."""
    seed: int = 0
    items: int = 60

    def scene(self, *, parallel: int = 4, items: int | None = None, padding: int = 0, world: Sequence[str] = ()) -> Scene:
        made = tempfile.mkdtemp(dir=self.folder)
        return Scene(Path(made, "scene"), items or self.items, parallel, padding, world)

    def expected(self, *, items: int | None = None, padding: int = 0) -> bytes:
        return _expected(self.folder, items or self.items, padding)

    def chance(self, *about: object) -> random.Random:
        return random.Random(f"{self.seed} {about}")


@functools.cache
def _expected(folder: Path, items: int, padding: int) -> bytes:
    made = Path(tempfile.mkdtemp(dir=folder))
    return uninterrupted(made / "scene", items=items, padding=padding)


class NotPossible(Exception):
    """The machine does not allow what is to be tried."""


Way = Callable[[Stage, Tally], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many random kills (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="how often the other ways are tried (default: 5)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=[*WAYS, *CONTROLS], action="append", help="this way (again for more)")
    options = parser.parse_args()
    wanted = options.only or [*WAYS, *CONTROLS]
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="plait-crash-") as folder:
        stage = Stage(Path(folder), options.kills, options.rounds, options.seed)
        _print_row("way", "runs", "deaths", "extra", "per death", "violations", "s")
        results = [_reported(name, stage) for name in wanted]
    print("all holds" if all(results) else "VIOLATIONS: the guarantees do not hold")
    return 0 if all(results) else 1


def _reported(name: str, stage: Stage) -> bool:
    """Try one way and print its row; is everything as it must be?"""
    began = time.monotonic()
    tally = tried(name, stage)
    found, seconds = tally.violations, f"{time.monotonic() - began:.0f}"
    if tally.skipped:
        print(f"{name:20} not tried: {tally.skipped}", flush=True)
        return True
    worst = f"{tally.most_extra:.1f}"
    _print_row(name, str(tally.runs), str(tally.deaths), str(tally.extra), worst, str(len(found)), seconds)
    good = bool(found) == (name in CONTROLS)
    for violation in found[:3] if name in CONTROLS else found[:20]:
        print(f"    {violation}", flush=True)
    if not good and name in CONTROLS:
        print("    the flaw was not found", flush=True)
    return good


def _print_row(name: str, *columns: str) -> None:
    print(f"{name:20}" + "".join(f"{column:>11}" for column in columns), flush=True)


def tried(name: str, stage: Stage) -> Tally:
    tally = Tally(name)
    try:
        (WAYS | CONTROLS)[name](stage, tally)
    except Failed as error:
        tally.blame(str(error))
    except NotPossible as error:
        tally.skipped = str(error)
    return tally


# ── kills at random moments ──────────────────────────────────────────────


def random_kills(stage: Stage, tally: Tally, *world: str) -> None:
    """Runs, two at a time, until there were enough kills; each run goes on to its end."""
    expected = stage.expected()
    killed: list[Scene] = []

    def play(worker: int) -> None:
        chance = stage.chance(tally.name, worker)
        while len(killed) < stage.kills:
            scene = stage.scene(world=world)
            while len(killed) < stage.kills and scene.is_killed(chance.uniform(0, chance.choice(SPANS))):
                killed.append(scene)
            scene.expect_code(scene.to_the_end(), 0)  # which has nothing to do, if it is through already
            tally.add(scene, expected)
            shutil.rmtree(scene.folder)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(WORKERS)))


# ── signals that can be heard ────────────────────────────────────────────


def signals(stage: Stage, tally: Tally) -> None:
    """Once to stop, twice to stop at once; the exit code is 128 and the signal."""
    expected = stage.expected()
    rows = [
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGINT],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT],
    ]

    def play(numbers: list[signal.Signals]) -> None:
        chance = stage.chance(tally.name, *numbers)
        for _ in range(stage.rounds):
            scene = stage.scene()
            for _ in range(2):
                _stopped(scene, numbers, chance.randrange(1, 80))
            scene.expect_code(scene.to_the_end(), 0)
            tally.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, rows))


def _stopped(scene: Scene, numbers: Sequence[signal.Signals], lines: int) -> None:
    """Signal an engine when it has added so many lines to the ledger."""
    with scene.engine() as running:
        if scene.until_lines(running, len(scene.ledger()) + lines):
            for number in numbers:
                running.send_signal(number)
            ended = scene.ended(running)
            # It may have been through before it heard us.
            scene.expect_code(ended, 128 + numbers[0], 0)
    scene.note_death()


# ── one engine at a time ─────────────────────────────────────────────────


def second_engine(stage: Stage, tally: Tally) -> None:
    """While one works (it is halted, so that it cannot end), another is refused; when it is dead, not."""
    expected = stage.expected()
    for number in range(stage.rounds):
        scene = stage.scene()
        chance = stage.chance(tally.name, number)
        with scene.engine() as first:
            if not scene.until_lines(first, chance.randrange(1, 100)):
                raise Failed("the engine was through too early")
            first.send_signal(signal.SIGSTOP)
            run = scene.run
            assert run is not None
            if not is_locked(scene.runs / run):
                tally.blame("F: an engine works without a lock")
            ended = scene.to_the_end()
            if ended.code != 2 or REFUSED not in ended.said:
                tally.blame(f"F: a second engine ended with {ended.code}: {ended.said[-300:]}")
            first.kill()
            first.wait()
        scene.note_death()
        # The number of the dead engine is that of another process now: ours.
        (scene.runs / run / "lock").write_text(f'{{"pid": {os.getpid()}, "since": "2001-01-01 00:00:00"}}')
        scene.expect_code(scene.to_the_end(), 0)
        tally.add(scene, expected)


# ── disks ────────────────────────────────────────────────────────────────


def file_size_limit(stage: Stage, tally: Tally) -> None:
    """The journal may not grow beyond a limit; without the limit the run goes on."""
    expected = stage.expected(padding=FULL_PADDING)
    scene = stage.scene(padding=FULL_PADDING)
    for _ in range(stage.rounds):
        ended = scene.to_the_end("--largest-file", str(FULL_LIMIT))
        scene.note_death()
        _expect_journal_error(scene, ended.code, ended.said)
    scene.expect_code(scene.to_the_end(), 0)
    tally.add(scene, expected)


def _expect_journal_error(scene: Scene, code: int, said: str) -> None:
    if code != 1 or "the journal cannot be used" not in said or "plait resume" not in said:
        scene.faults.append(f"G17: exit code {code}, and it said: {said[-300:]}")


def full_disk(stage: Stage, tally: Tally) -> None:
    """A small disk that fills up, and grows; in a name space of its own."""
    _in_namespace(stage, tally, "full_disk", _full_disk)


def _full_disk(stage: Stage, tally: Tally) -> None:
    expected = stage.expected(padding=FULL_PADDING)
    disk = stage.folder / "disk"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", "size=2500k,mode=700", "tmpfs", str(disk))
    scene = Scene(disk / "scene", stage.items, 4, FULL_PADDING)
    for _ in range(2):
        ended = scene.to_the_end()
        scene.note_death()
        _expect_journal_error(scene, ended.code, ended.said)
    _mount("-o", "remount,size=64m", str(disk))
    scene.expect_code(scene.to_the_end(), 0)
    tally.add(scene, expected)


def read_only(stage: Stage, tally: Tally) -> None:
    """The state of the project becomes read-only between two lives; in a name space of its own."""
    _in_namespace(stage, tally, "read_only", _read_only)


def _read_only(stage: Stage, tally: Tally) -> None:
    expected = stage.expected()
    scene = stage.scene()
    while not scene.is_killed(stage.chance(tally.name).uniform(0.5, 0.8)) or scene.run is None:
        scene = stage.scene()
    state = str(scene.runs)
    _mount("--bind", state, state)
    _mount("-o", "remount,ro,bind", state)
    ended = scene.to_the_end()
    scene.note_death()
    _expect_journal_error(scene, ended.code, ended.said)
    _mount("-o", "remount,rw,bind", state)
    scene.expect_code(scene.to_the_end(), 0)
    tally.add(scene, expected)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPossible(f"mount: {done.stderr.strip()}")


def _in_namespace(stage: Stage, tally: Tally, name: str, play: Way) -> None:
    """Play in a process that may mount disks which nobody else sees."""
    if os.environ.get(NAMESPACE) == name:
        play(stage, tally)
        return
    command = ["unshare", "-rm", sys.executable, "-m", "crash.crash", "--only", name, "--seed", str(stage.seed)]
    env = {**os.environ, NAMESPACE: name, "PYTHONPATH": str(Path(__file__).parents[1])}
    try:
        done = subprocess.run([*command, "--rounds", str(stage.rounds)], env=env, capture_output=True, text=True)
    except FileNotFoundError:
        tally.skipped = "there is no unshare"
        return
    _take_over(tally, name, done.stdout, done.stderr)


NAMESPACE: Final = "PLAIT_CRASH_NAMESPACE"


def _take_over(tally: Tally, name: str, printed: str, errors: str) -> None:
    """The row that another process printed."""
    lines = printed.splitlines()
    row = next((number for number, line in enumerate(lines) if line.startswith(name)), None)
    if row is None or "not tried" in lines[row]:
        tally.skipped = (lines[row].partition(": ")[2] if row is not None else errors.strip()[-200:]) or "?"
        return
    runs, deaths, extra, worst, _, _ = lines[row].split()[1:]
    tally.runs, tally.deaths, tally.extra, tally.most_extra = int(runs), int(deaths), int(extra), float(worst)
    tally.blame(*(line.strip() for line in lines[row + 1 :] if line.startswith("    ")))


# ── the n-th call of the system ──────────────────────────────────────────


def syscalls(stage: Stage, tally: Tally) -> None:
    """Killed at the n-th call of a kind by the main thread, which makes the run and its items here."""
    if not _strace_works(tally):
        return
    expected = stage.expected(items=3)

    def play(name: str) -> None:
        for number in _numbers(stage, name):
            scene = stage.scene(items=3, parallel=1)
            before = _strace(name, number)
            if scene.to_the_end(before=before).code != 0:
                scene.note_death()
                scene.to_the_end(before=before)  # and once more, in the life that resumes
                scene.note_death()
                scene.expect_code(scene.to_the_end(), 0)
            tally.add(scene, expected)
            shutil.rmtree(scene.folder)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, SYSCALLS))


def _strace(name: str, number: int) -> list[str]:
    kill = f"inject={name}:signal=KILL:when={number}"
    return ["strace", "-qq", "-o", os.devnull, "-e", f"trace={name}", "-e", kill]


def _numbers(stage: Stage, name: str) -> list[int]:
    """Calls to die at: those from the first that concerns the state of the project, a choice if many."""
    scene = stage.scene(items=3, parallel=1)
    trace = scene.folder / "trace"
    scene.to_the_end(before=["strace", "-qq", "-y", "-o", str(trace), "-e", f"trace={name}", "-e", "signal=none"])
    lines = trace.read_text("utf-8", "replace").splitlines()
    concerning = [number for number, line in enumerate(lines, 1) if "/.ai" in line]
    most = 4 * stage.rounds
    chosen = stage.chance("syscalls", name).sample(concerning, min(most, len(concerning)))
    return sorted({*chosen, *concerning[: stage.rounds]})


def threads(stage: Stage, tally: Tally) -> None:
    """Killed at the n-th write or sync of the journal by any thread, four items at a time, while resuming."""
    if not _strace_works(tally):
        return
    expected = stage.expected()
    for name in ("pwrite64", "fdatasync"):
        scene = stage.scene()
        chance = stage.chance(tally.name, name)
        while scene.run is None:
            scene.is_killed(chance.uniform(0.3, 0.6))
        for _ in range(2 * stage.rounds):
            # Each thread counts for itself, so low numbers come soon.
            watched = ["-f", "-P", str(scene.runs / str(scene.run) / "journal.db-wal")]
            before = [*_strace(name, chance.randrange(1, 40)), *watched]
            if scene.to_the_end(before=before).code == 0:
                break
            scene.note_death()
        scene.expect_code(scene.to_the_end(), 0)
        tally.add(scene, expected)


def _strace_works(tally: Tally) -> bool:
    try:
        done = subprocess.run([*_strace("openat", 100_000), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        tally.skipped = "there is no strace"
        return False
    if done.returncode != 0:
        tally.skipped = f"strace: {done.stderr.strip()[-200:]}"
    return done.returncode == 0


# ── power, and time ──────────────────────────────────────────────────────


def power_cuts(stage: Stage, tally: Tally) -> None:
    """At each report of a finished step, what would be left if the power failed now."""
    if not _strace_works(tally):
        return
    expected = stage.expected(items=20)
    scene = stage.scene(items=20)
    for is_first in (True, False):
        trace = scene.folder / "trace"
        with scene.engine(before=[*power.STRACE, "-o", str(trace)]) as running:
            if is_first and scene.until_lines(running, 40):
                os.kill(_traced_by(running.pid), signal.SIGKILL)
            scene.ended(running)
        scene.note_death()
        with trace.open(encoding="ascii", errors="replace") as lines:
            reports, unsafe = power.unsafe_reports(lines, scene.project, scene.said_file)
        if reports == 0:
            unsafe.append("G16: nothing was reported")
        tally.blame(*unsafe)
    tally.add(scene, expected)


def _traced_by(strace: int) -> int:
    """The engine that strace has started."""
    return int(Path(f"/proc/{strace}/task/{strace}/children").read_text().split()[0])


def clocks(stage: Stage, tally: Tally) -> None:
    """Each life is 400 days before or after the one before it."""
    expected = stage.expected()

    def play(number: int) -> None:
        chance = stage.chance(tally.name, number)
        scene = stage.scene()
        days = 400 if number % 2 else -400
        while scene.is_killed(chance.uniform(0.2, 0.9), "--clock", str(days * DAYS)):
            days = -days
        tally.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(stage.rounds)))


# ── controls ─────────────────────────────────────────────────────────────


def flawed(flaw: str) -> Way:
    def play(stage: Stage, tally: Tally) -> None:
        few = Stage(stage.folder, min(stage.kills, 6), stage.rounds, stage.seed, stage.items)
        random_kills(few, tally, "--flaw", flaw)

    return play


WAYS: Final[dict[str, Way]] = {
    "random_kills": random_kills,
    "signals": signals,
    "second_engine": second_engine,
    "file_size_limit": file_size_limit,
    "full_disk": full_disk,
    "read_only": read_only,
    "syscalls": syscalls,
    "threads": threads,
    "power_cuts": power_cuts,
    "clocks": clocks,
}
CONTROLS: Final[dict[str, Way]] = {
    "control_forgetful": flawed("forgetful"),
    "control_amnesiac": flawed("amnesiac"),
}


if __name__ == "__main__":
    sys.exit(main())
