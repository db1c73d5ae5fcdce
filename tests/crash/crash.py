"""Kills, signals, full disks and set clocks against `plait run` and `plait resume`: nothing is lost or repeated.

A map of 60 items, 4 at a time, between a setup and a reduce; every step writes to a
ledger that the engine never opens.  Engines are ended in all the ways below, and the
run is resumed until it ends.  Then these rules must hold:

    A    no step that was recorded when an engine died was started again
    B    every item is recorded once, as done
    C    reduce wrote the same bytes as in an undisturbed run
    D    per death, at most as many steps were repeated as may run at a time
    E    the journal was sound after every death
    F    a second engine was refused while the first one worked
    G13  no process of the run was left after a death
    G16  every step reported as finished would have survived a power cut

Controls are engines with a flaw; the harness must find it.

    PYTHONPATH=tests python -m crash.crash [--kills 200] [--rounds 5] [--items 60] [--only NAME] [--seed N]
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from crash import cluster, power
from crash.agent import Agent, moment
from crash.checks import extra_starts
from crash.edits import edited
from crash.mcp import McpScene
from crash.mcp import play as play_mcp
from crash.scene import (
    LIMIT,
    Ended,
    Engine,
    Failed,
    Scene,
    is_locked,
    read_aside,
    uninterrupted,
    wait_for,
)
from crash.trees import Trees
from crash.trees import moment as moment_of_trees
from plait.adapters.store import Runs
from plait.adapters.store.run_info import read_run_info
from plait.core.errors import JournalError

WORKERS: Final = 2
DAYS: Final = 86_400
REFUSED: Final = ("has been working on run", "began to work on run")
"""How a second engine is refused: with the owner of the run or, before that is known, because there is one."""
STOPPING: Final = '"event":"stopping"'
STARTING: Final = 0.25
"""The share of kills that come while an engine starts."""
FULL_LIMIT: Final = 1_100_000
"""Bytes of the largest file: more than the room that a journal keeps in reserve, less than it needs."""
FULL_ITEMS: Final = 40
FULL_PADDING: Final = 7_000
SYSCALLS: Final = ("pwrite64", "fdatasync", "fsync", "rename", "mkdir", "unlink", "openat")


@dataclass(slots=True)
class Results:
    """The results of one way to end engines."""

    name: str
    runs: int = 0
    deaths: int = 0
    extra: int = 0
    most_extra: float = 0.0
    """The highest number of extra starts per death in one run."""
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
    """The folder of the scenes, their sizes and the random seed."""

    folder: Path
    kills: int = 200
    rounds: int = 5
    """How often ways run that do not count kills."""
    seed: int = 0
    items: int = 60

    def scene(
        self,
        *,
        items: int | None = None,
        parallel: int = 4,
        padding: int = 0,
        view: str = "--quiet",
        engine_options: Sequence[str] = (),
    ) -> Scene:
        made = tempfile.mkdtemp(dir=self.folder)
        return Scene(
            Path(made, "scene"), items or self.items, parallel, padding, view, engine_options
        )

    def expected(self, *, items: int | None = None, padding: int = 0) -> bytes:
        return _expected(self.folder, items or self.items, padding)

    def chance(self, *about: object) -> random.Random:
        return random.Random(f"{self.seed} {about}")


@functools.cache
def _expected(folder: Path, items: int, padding: int) -> bytes:
    made = Path(tempfile.mkdtemp(dir=folder))
    return uninterrupted(made / "scene", items=items, padding=padding)


class NotPossible(Exception):
    """This machine cannot run the test."""


Way = Callable[[Stage, Results], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=200, help="how many random kills (default: 200)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often the other ways are tried (default: 5)"
    )
    parser.add_argument("--items", type=int, default=60, help="of the map (default: 60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--only", choices=[*WAYS, *CONTROLS], action="append", help="this way (again for more)"
    )
    options = parser.parse_args()
    wanted = options.only or [*WAYS, *CONTROLS]
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="plait-crash-") as folder:
        stage = Stage(Path(folder), options.kills, options.rounds, options.seed, options.items)
        _print_row("way", "runs", "deaths", "extra", "per death", "violations", "s")
        all_held = [_reported(name, stage) for name in wanted]
    print("all holds" if all(all_held) else "VIOLATIONS: the guarantees do not hold")
    return 0 if all(all_held) else 1


def _reported(name: str, stage: Stage) -> bool:
    """Run one way, print its row and return whether all rules hold."""
    began = time.monotonic()
    results = tried(name, stage)
    found, seconds = results.violations, f"{time.monotonic() - began:.0f}"
    if results.skipped:
        print(f"{name:20} not tried: {results.skipped}", flush=True)
        return True
    worst = f"{results.most_extra:.1f}"
    _print_row(
        name,
        str(results.runs),
        str(results.deaths),
        str(results.extra),
        worst,
        str(len(found)),
        seconds,
    )
    good = bool(found) == (name in CONTROLS)
    for violation in found[:3] if name in CONTROLS else found[:20]:
        print(f"    {violation}", flush=True)
    if not good and name in CONTROLS:
        print("    the flaw was not found", flush=True)
    return good


def _print_row(name: str, *columns: str) -> None:
    print(f"{name:20}" + "".join(f"{column:>11}" for column in columns), flush=True)


def tried(name: str, stage: Stage) -> Results:
    results = Results(name)
    try:
        (WAYS | CONTROLS)[name](stage, results)
    except Failed as error:
        results.blame(str(error))
    except NotPossible as error:
        results.skipped = str(error)
    return results


# ── kills at random moments ──────────────────────────────────────────────


def random_kills(stage: Stage, results: Results, *engine_options: str) -> None:
    """Run two scenes at a time until there were enough kills; each run is resumed to its end."""
    expected = stage.expected()
    killed: list[Scene] = []

    def play(worker: int) -> None:
        chance = stage.chance(results.name, worker)
        while len(killed) < stage.kills:
            scene = stage.scene(engine_options=engine_options)
            while len(killed) < stage.kills and scene.is_killed(*_moment(chance)):
                killed.append(scene)
            scene.expect_code(
                scene.to_the_end(), 0
            )  # it has nothing to do if the run is already finished
            results.add(scene, expected)
            shutil.rmtree(scene.folder)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(WORKERS)))


def _moment(chance: random.Random) -> tuple[int, float]:
    """A random kill point, as ledger lines plus seconds: during the start or during the work."""
    if chance.random() < STARTING:
        return 0, chance.uniform(0, 0.6)
    return chance.randrange(1, 30), chance.uniform(0, 0.05)


# ── signals that are handled ─────────────────────────────────────────────


def signals(stage: Stage, results: Results) -> None:
    """One signal stops, a second one stops at once; the exit code is 128 plus the signal."""
    expected = stage.expected()
    rows = [
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGINT],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT],
    ]

    def play(numbers: list[signal.Signals]) -> None:
        chance = stage.chance(results.name, *numbers)
        for _ in range(stage.rounds):
            scene = stage.scene(view="--json")
            for _ in range(2):
                _stopped(scene, numbers, chance.randrange(1, stage.items))
            scene.expect_code(scene.to_the_end(), 0)
            results.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, rows))


RUN_DONE: Final = '"event":"run_ended","status":"done"'
"""Printed by an engine that finished before the signal arrived."""


def _stopped(scene: Scene, numbers: Sequence[signal.Signals], lines: int) -> None:
    """Signal an engine when it has added so many lines to the ledger."""
    with scene.engine() as engine:
        if not scene.has_lines(engine, lines):
            return  # on a busy machine the engine may finish first
        for number in numbers:
            _send(engine, number)
        ended = engine.ended()
        scene.expect_code(ended, *([0] if RUN_DONE in ended.output else [128 + numbers[0]]))
    scene.note_death()


def _send(engine: Engine, number: signal.Signals) -> None:
    """Send a signal and wait until it was handled: pending signals arrive in no fixed order."""
    before = engine.read_output().count(STOPPING)

    def is_heard() -> bool:
        return engine.read_output().count(STOPPING) > before or not engine.is_running

    engine.send(number)
    wait_for(is_heard, LIMIT)


# ── one engine at a time ─────────────────────────────────────────────────


def second_engine(stage: Stage, results: Results) -> None:
    """A second engine is refused while the first one works, and accepted when that one is dead."""
    expected = stage.expected()

    def play(number: int) -> None:
        scene = stage.scene()
        _refused_while_one_works(
            scene, stage.chance(results.name, number).randrange(1, stage.items)
        )
        # The pid of the dead engine now belongs to another process: ours.
        lock = scene.runs / str(scene.run) / "lock"
        lock.write_text(f'{{"pid": {os.getpid()}, "since": "2001-01-01 00:00:00"}}')
        _one_of_two_goes_on(scene)
        results.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(stage.rounds)))


def _refused_while_one_works(scene: Scene, lines: int) -> None:
    with scene.engine() as first:
        scene.expect_lines(first, lines)
        first.send(signal.SIGSTOP)  # it must not finish before the second engine starts
        if not is_locked(scene.runs / str(scene.run)):
            scene.faults.append("F: an engine works without a lock")
        _expect_refused(scene, scene.to_the_end())
        first.kill()
    scene.note_death()


def _one_of_two_goes_on(scene: Scene) -> None:
    with scene.engine() as one, scene.engine() as other:
        first, second = sorted([one.ended(), other.ended()], key=lambda ended: ended.code)
    scene.expect_code(first, 0)
    if second.code != 0:  # otherwise the first engine had already finished
        _expect_refused(scene, second)


def _expect_refused(scene: Scene, ended: Ended) -> None:
    if ended.code != 2 or not any(words in ended.output for words in REFUSED):
        scene.faults.append(f"F: a second engine ended with {ended.code}: {ended.output[-300:]}")


# ── disks ────────────────────────────────────────────────────────────────


def file_size_limit(stage: Stage, results: Results) -> None:
    """The journal cannot grow beyond a limit; without the limit the run continues."""
    expected = stage.expected(items=FULL_ITEMS, padding=FULL_PADDING)
    for _ in range(stage.rounds):
        scene = stage.scene(items=FULL_ITEMS, padding=FULL_PADDING)
        ended = scene.to_the_end("--largest-file", str(FULL_LIMIT))
        scene.note_death()
        _expect_journal_error(scene, ended)
        scene.to_the_end(
            "--largest-file", str(FULL_LIMIT)
        )  # gets further: the log was checkpointed meanwhile
        scene.note_death()
        scene.expect_code(scene.to_the_end(), 0)
        results.add(scene, expected)


def _expect_journal_error(scene: Scene, ended: Ended) -> None:
    """Require an error that names the problem of the journal and how to continue."""
    if (
        ended.code != 1
        or "the journal cannot be used" not in ended.output
        or "plait resume" not in ended.output
    ):
        scene.faults.append(f"G17: exit code {ended.code}, and it said: {ended.output[-300:]}")


def full_disk(stage: Stage, results: Results) -> None:
    """A small disk fills up and is enlarged, in its own mount namespace."""
    _in_namespace(stage, results, "full_disk", _full_disk)


def _full_disk(stage: Stage, results: Results) -> None:
    expected = stage.expected(items=FULL_ITEMS, padding=FULL_PADDING)
    scene = stage.scene(items=FULL_ITEMS, padding=FULL_PADDING)
    disk = scene.project / ".ai"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(disk))
    for _ in range(2):
        ended = scene.to_the_end()
        scene.note_death()
        _expect_journal_error(scene, ended)
    _mount("-o", "remount,size=64m", str(disk))
    scene.expect_code(scene.to_the_end(), 0)
    results.add(scene, expected)


def read_only(stage: Stage, results: Results) -> None:
    """The project state becomes read-only between two run attempts, in its own mount namespace."""
    _in_namespace(stage, results, "read_only", _read_only)


def _read_only(stage: Stage, results: Results) -> None:
    expected = stage.expected()
    scene = stage.scene()
    scene.kill_after(stage.items)
    state = str(scene.runs)
    _mount("--bind", state, state)
    _mount("-o", "remount,ro,bind", state)
    ended = scene.to_the_end()
    scene.note_death()
    _expect_journal_error(scene, ended)
    _mount("-o", "remount,rw,bind", state)
    scene.expect_code(scene.to_the_end(), 0)
    results.add(scene, expected)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPossible(f"mount: {done.stderr.strip()}")


def _in_namespace(stage: Stage, results: Results, name: str, play: Way) -> None:
    """Run a way in a process with its own mount namespace."""
    if os.environ.get(NAMESPACE) == name:
        play(stage, results)
        return
    numbers = {"--rounds": stage.rounds, "--seed": stage.seed, "--items": stage.items}
    options = [
        "--only",
        name,
        *(word for option, number in numbers.items() for word in (option, str(number))),
    ]
    env = {**os.environ, NAMESPACE: name, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = ["unshare", "-rm", sys.executable, "-m", "crash.crash", *options]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    except FileNotFoundError:
        results.skipped = "there is no unshare"
        return
    _take_over(results, name, done.stdout, done.stderr)


NAMESPACE: Final = "PLAIT_CRASH_NAMESPACE"


def _take_over(results: Results, name: str, printed: str, errors: str) -> None:
    """Take over the results from the row that another process printed."""
    lines = printed.splitlines()
    row = next((number for number, line in enumerate(lines) if line.startswith(name)), None)
    if row is None and errors.startswith("unshare:"):
        raise NotPossible(errors.strip())
    if row is None:
        raise Failed(f"{name} came to no end: {errors[-500:]}")
    if "not tried" in lines[row]:
        raise NotPossible(lines[row].partition(": ")[2])
    runs, deaths, extra, worst, _, _ = lines[row].split()[1:]
    results.runs, results.deaths, results.extra, results.most_extra = (
        int(runs),
        int(deaths),
        int(extra),
        float(worst),
    )
    results.blame(*(line.strip() for line in lines[row + 1 :] if line.startswith("    ")))


# ── the n-th call of the system ──────────────────────────────────────────


def syscalls(stage: Stage, results: Results) -> None:
    """Kill the engine at the n-th system call of a kind in the main thread, which runs all items here."""
    if not _strace_works(results):
        return
    expected = stage.expected(items=3)

    def play(name: str) -> None:
        for number in _numbers(stage, name):
            scene = stage.scene(items=3, parallel=1)
            before = _strace(name, number)
            if scene.to_the_end(before=before).code != 0:
                scene.note_death()
                scene.to_the_end(before=before)  # and once more, in the run attempt that resumes
                scene.note_death()
                scene.expect_code(scene.to_the_end(), 0)
            results.add(scene, expected)
            shutil.rmtree(scene.folder)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, SYSCALLS))


def _strace(name: str, when: int | str, what: str = "signal=KILL") -> list[str]:
    fault = f"inject={name}:{what}:when={when}"
    return ["strace", "-qq", "-o", os.devnull, "-e", f"trace={name}", "-e", fault]


def _numbers(stage: Stage, name: str) -> list[int]:
    """The calls to die at: from the first one on the project state, sampled if there are many."""
    scene = stage.scene(items=3, parallel=1)
    trace = scene.folder / "trace"
    scene.to_the_end(
        before=["strace", "-qq", "-y", "-o", str(trace), "-e", f"trace={name}", "-e", "signal=none"]
    )
    lines = trace.read_text("utf-8", "replace").splitlines()
    concerning = [number for number, line in enumerate(lines, 1) if "/.ai" in line]
    most = 2 * stage.rounds
    chosen = stage.chance("syscalls", name).sample(concerning, min(most, len(concerning)))
    return sorted({*chosen, *concerning[: stage.rounds]})


def threads(stage: Stage, results: Results) -> None:
    """Kill the engine at the n-th write or sync of the journal in any thread, with four items at a time."""
    if not _strace_works(results):
        return
    expected = stage.expected()

    def play(name: str) -> None:
        scene = stage.scene()
        chance = stage.chance(results.name, name)
        scene.kill_after(2)
        for _ in range(2 * stage.rounds):
            # strace counts per thread, so low numbers are reached soon.
            ended = scene.to_the_end(
                before=_at_journal(scene, name, "signal=KILL", chance.randrange(1, 40))
            )
            scene.note_death()
            if ended.code == 0:
                break
        scene.expect_code(scene.to_the_end(), 0)
        results.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, ("pwrite64", "fdatasync")))


def disk_errors(stage: Stage, results: Results) -> None:
    """The disk fails from the n-th journal write or sync on: there is an error, and nothing is lost."""
    if not _strace_works(results):
        return
    expected = stage.expected()
    rows = [(name, error) for name in ("pwrite64", "fdatasync") for error in ("EIO", "ENOSPC")]

    def play(row: tuple[str, str]) -> None:
        name, error = row
        scene = stage.scene()
        chance = stage.chance(results.name, row)
        scene.kill_after(2)
        for _ in range(stage.rounds):
            ended = scene.to_the_end(
                before=_at_journal(scene, name, f"error={error}", f"{chance.randrange(1, 30)}+")
            )
            scene.note_death()
            if ended.code == 0:
                break
            _expect_journal_error(scene, ended)
        scene.expect_code(scene.to_the_end(), 0)
        results.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, rows))


def _at_journal(scene: Scene, name: str, what: str, when: int | str) -> list[str]:
    """Inject faults into all calls on the write-ahead log."""
    return [
        *_strace(name, when, what),
        "-f",
        "-P",
        str(scene.runs / str(scene.run) / "journal.db-wal"),
    ]


def _strace_works(results: Results) -> bool:
    try:
        done = subprocess.run([*_strace("openat", 60_000), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        results.skipped = "there is no strace"
        return False
    if done.returncode != 0:
        results.skipped = f"strace: {done.stderr.strip()[-200:]}"
    return done.returncode == 0


# ── power, and time ──────────────────────────────────────────────────────


def power_cuts(stage: Stage, results: Results, *engine_options: str) -> None:
    """At each report of a finished step, check what a power cut would leave; over two run attempts."""
    if not _strace_works(results):
        return
    items = min(20, stage.items)
    scene = stage.scene(items=items, view="--json", engine_options=engine_options)
    disk, trace = power.Disk(), scene.folder / "trace"
    for is_first in (True, False):
        with scene.engine(before=[*power.STRACE, "-o", str(trace)]) as engine:
            if is_first:
                scene.expect_lines(engine, 2 * items)
                os.kill(_traced_by(engine.process.pid), signal.SIGKILL)
            engine.ended()
        scene.note_death()
        with trace.open(encoding="ascii", errors="replace") as lines:
            reports, unsafe = power.unsafe_reports(disk, lines, scene.project, engine.output)
        results.blame(*unsafe)
        disk.survive_kill(scene.runs / str(scene.run))
    if reports < items:  # of the last run attempt, which ended by itself
        results.blame(f"G16: only {reports} steps were reported")
    results.add(scene, stage.expected(items=items))


def _traced_by(strace: int) -> int:
    """The engine process that strace has started."""
    return int(Path(f"/proc/{strace}/task/{strace}/children").read_text().split()[0])


def damaged_tails(stage: Stage, results: Results) -> None:
    """A cut, changed or removed write-ahead log is reported; with the log back in place, the run continues."""
    expected = stage.expected()

    def play(number: int) -> None:
        chance = stage.chance(results.name, number)
        scene = stage.scene()
        while scene.is_killed(chance.randrange(5, 30), chance.uniform(0, 0.1)):
            for fault in _faults_of_tail(scene, chance):
                results.blame(fault)
        results.add(scene, expected)
        shutil.rmtree(scene.folder)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(stage.rounds)))


def _faults_of_tail(scene: Scene, chance: random.Random) -> Iterator[str]:
    run = scene.run
    folder = scene.runs / run if run is not None else None
    about = read_run_info(str(folder)) if folder is not None else None
    if folder is None or about is None or not (folder / "journal.db-wal").exists():
        return
    statuses = [one.status for one in Runs(str(scene.project)).list()]
    if statuses == ["done"]:
        return  # the engine was killed after it had recorded the end and before it exited
    if statuses != ["interrupted"]:
        yield "G15: a killed run is taken for a damaged one"
    wal = folder / "journal.db-wal"
    whole = wal.read_bytes()
    for how in ("remove", "cut", "change"):
        _spoil_tail(wal, whole, how, chance)
        left = _records(folder)
        found = Runs(str(scene.project)).list()
        status = found[0].status if found else "not there"
        if left < about.records and status != "unreadable":
            yield f"G17: {about.records - left} of {about.records} records are gone, and the run is {status}"
        if left < about.records and not _is_refused(scene, folder.name):
            yield f"G17: {about.records - left} of {about.records} records are gone, and the run goes on"
        wal.write_bytes(whole)


def _spoil_tail(wal: Path, whole: bytes, how: str, chance: random.Random) -> None:
    at = chance.randrange(len(whole) + 1) if whole else 0
    if how == "remove":
        wal.unlink()
    elif how == "cut":
        wal.write_bytes(whole[:at])
    else:
        wal.write_bytes(
            whole[:at] + bytes([255 - byte for byte in whole[at : at + 1]]) + whole[at + 1 :]
        )


def _records(folder: Path) -> int:
    """Count the records that SQLite finds; 0 if the log was damaged after a partial checkpoint."""
    with read_aside(folder) as journal:
        try:
            if not journal.execute("SELECT 1 FROM sqlite_schema WHERE name = 'records'").fetchall():
                return 0
            return int(journal.execute("SELECT count(*) FROM records").fetchone()[0])
        except sqlite3.DatabaseError:
            return 0


def _is_refused(scene: Scene, run: str) -> bool:
    try:
        Runs(str(scene.project)).open(run, write=True).close()
    except JournalError as error:
        return error.code in ("lost-records", "damaged")
    return False


def clocks(stage: Stage, results: Results) -> None:
    """The clock jumps 400 days back or forward between run attempts."""
    expected = stage.expected()

    def play(number: int) -> None:
        chance = stage.chance(results.name, number)
        scene = stage.scene()
        days = 400 if number % 2 else -400
        while scene.is_killed(chance.randrange(20, 60), 0.0, "--clock", str(days * DAYS)):
            days = -days
        results.add(scene, expected)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(play, range(stage.rounds)))


# ── controls ─────────────────────────────────────────────────────────────


def forgetful(stage: Stage, results: Results) -> None:
    """Flaw: finished steps are not recorded."""
    random_kills(replace(stage, kills=min(stage.kills, 6)), results, "--flaw", "forgetful")


def amnesiac(stage: Stage, results: Results) -> None:
    """Flaw: records are not looked up."""
    random_kills(replace(stage, kills=min(stage.kills, 6)), results, "--flaw", "amnesiac")


def unsynced(stage: Stage, results: Results) -> None:
    """Flaw: steps are reported before they are on disk."""
    power_cuts(stage, results, "--flaw", "unsynced")


# ── agents ───────────────────────────────────────────────────────────────


def agent_kills(stage: Stage, results: Results, *, flaw: str = "") -> None:
    """An agent with tools is killed at random moments: agent.py has the rules."""
    chance = stage.chance(results.name)
    wanted = max(3, stage.kills // 5)
    while results.deaths < wanted:
        agent = Agent(Path(tempfile.mkdtemp(dir=stage.folder), "agent"), flaw)
        while results.deaths + len(agent.deaths) < wanted and agent.is_killed(*moment(chance)):
            pass
        if fault := agent.to_the_end():
            results.blame(fault)
        results.runs += 1
        results.deaths += len(agent.deaths)
        results.extra += agent.extra
        results.most_extra = max(results.most_extra, agent.extra / max(1, len(agent.deaths)))
        results.blame(*agent.violations())
        shutil.rmtree(agent.folder)


def mcp_kills(stage: Stage, results: Results, *engine_options: str) -> None:
    """MCP clients wait for a run while clients and servers are killed: mcp.py has the rules."""
    chance, expected = stage.chance(results.name), stage.expected()
    wanted = max(3, stage.kills // 4)
    while results.deaths < wanted:
        folder = Path(tempfile.mkdtemp(dir=stage.folder), "scene")
        scene = McpScene(folder, stage.items, engine_options=engine_options)
        play_mcp(scene, chance, min(6, wanted - results.deaths))
        results.add(scene, expected)
        shutil.rmtree(scene.folder)


def worktree_kills(stage: Stage, results: Results) -> None:
    """A run with git worktrees is killed at random moments: trees.py has the rules."""
    chance = stage.chance(results.name)
    wanted = max(4, stage.kills // 4)
    while results.deaths < wanted:
        trees = Trees(Path(tempfile.mkdtemp(dir=stage.folder), "trees"))
        while results.deaths + trees.deaths < wanted and trees.is_killed(*moment_of_trees(chance)):
            pass
        trees.to_the_end()
        results.runs += 1
        results.deaths += trees.deaths
        results.blame(*trees.violations())
        shutil.rmtree(trees.folder)


def edited_kills(stage: Stage, results: Results, *engine_options: str) -> None:
    """A flow is killed at random moments and edited between run attempts: edits.py has the rules."""
    chance = stage.chance(results.name)
    wanted = max(6, stage.kills // 3)
    while results.deaths < wanted:
        folder = Path(tempfile.mkdtemp(dir=stage.folder), "edited")
        scene = edited(folder, chance, chance.randint(3, 8), *engine_options)
        results.runs += 1
        results.deaths += len(scene.deaths)
        results.blame(*scene.end())
        shutil.rmtree(scene.folder)


def agent_amnesiac(stage: Stage, results: Results) -> None:
    """Flaw: without looking up records, the engine repeats tool calls."""
    agent_kills(stage, results, flaw="amnesiac")


def mcp_amnesiac(stage: Stage, results: Results) -> None:
    """Flaw: without looking up records, the MCP server repeats steps."""
    mcp_kills(replace(stage, kills=min(stage.kills, 24)), results, "--flaw", "amnesiac")


def mcp_selfish(stage: Stage, results: Results) -> None:
    """Flaw: the MCP server knows only its own runs and loses the handles of earlier ones."""
    mcp_kills(replace(stage, kills=min(stage.kills, 24)), results, "--flaw", "selfish")


def edited_amnesiac(stage: Stage, results: Results) -> None:
    """Flaw: without looking up records, the engine repeats steps."""
    edited_kills(replace(stage, kills=min(stage.kills, 6)), results, "--flaw", "amnesiac")


# ── clusters ─────────────────────────────────────────────────────────────


def cluster_workers(stage: Stage, results: Results) -> None:
    """Dask workers are killed at random moments, half of them after a stop of up to a second."""
    _cluster_kills(stage, results, victims=cluster.WORKER)


def cluster_schedulers(stage: Stage, results: Results) -> None:
    """The Dask scheduler is killed with its workers, and new ones start at the same address."""
    _cluster_kills(stage, results, victims=cluster.SCHEDULER)


def cluster_coordinators(stage: Stage, results: Results) -> None:
    """The engine is killed, and the run is resumed."""
    _cluster_kills(stage, results, victims=cluster.ENGINE)


def cluster_kills(stage: Stage, results: Results) -> None:
    """Workers, schedulers and engines are killed in random order."""
    _cluster_kills(replace(stage, kills=stage.kills // 5), results)


def _cluster_kills(
    stage: Stage, results: Results, *engine_options: str, victims: Sequence[str] = cluster.VICTIMS
) -> None:
    """Run half as many kills as without a cluster: 100 of each kind."""
    if not cluster.is_installed():
        results.skipped = "distributed is not installed"
        return
    from plait.adapters.dask.backend import TOO_MANY

    chance, expected = stage.chance(results.name), stage.expected()
    wanted = max(3, stage.kills // 2)
    # An item fails after so many dead workers: it could be what kills them.
    most = TOO_MANY - 1 if cluster.WORKER[0] in victims else 8
    while results.deaths < wanted:
        folder = Path(tempfile.mkdtemp(dir=stage.folder), "scene")
        scene = cluster.ClusterScene(folder, stage.items, parallel=8, engine_options=engine_options)
        cluster.play(scene, chance, min(most, wanted - results.deaths), victims=victims)
        results.add(scene, expected)


def cluster_amnesiac(stage: Stage, results: Results) -> None:
    """Flaw: without looking up records, the engine sends finished items again."""
    few = replace(stage, kills=min(stage.kills, 6))
    _cluster_kills(few, results, "--flaw", "amnesiac", victims=cluster.ENGINE)


WAYS: Final[dict[str, Way]] = {
    "random_kills": random_kills,
    "signals": signals,
    "second_engine": second_engine,
    "file_size_limit": file_size_limit,
    "full_disk": full_disk,
    "read_only": read_only,
    "syscalls": syscalls,
    "threads": threads,
    "disk_errors": disk_errors,
    "power_cuts": power_cuts,
    "damaged_tails": damaged_tails,
    "clocks": clocks,
    "agent_kills": agent_kills,
    "mcp_kills": mcp_kills,
    "worktree_kills": worktree_kills,
    "edited_kills": edited_kills,
    "cluster_kills": cluster_kills,
    "cluster_workers": cluster_workers,
    "cluster_schedulers": cluster_schedulers,
    "cluster_coordinators": cluster_coordinators,
}
CONTROLS: Final[dict[str, Way]] = {
    "control_forgetful": forgetful,
    "control_amnesiac": amnesiac,
    "control_unsynced": unsynced,
    "control_agent": agent_amnesiac,
    "control_mcp_steps": mcp_amnesiac,
    "control_mcp_handles": mcp_selfish,
    "control_edited": edited_amnesiac,
    "control_cluster": cluster_amnesiac,
}


if __name__ == "__main__":
    sys.exit(main())
