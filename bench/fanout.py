"""One command for many items: Plait's map against xargs, threads, GNU parallel and workflow
engines.

Everybody does the same work: start `sh` for each item, several at a time, and
look at how it ended.  Plait also records each item so that a kill loses nothing;
of the others only the engines do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
from measure import Times, all_cores, race_once_each, race_trees  # noqa: E402
from peers import PEERS, seconds_of  # noqa: E402
from tables import Bar, Figures, Plan, Row, Table, compared, shown, times_as  # noqa: E402

from plait.adapters.local import LocalBackend  # noqa: E402
from plait.adapters.process import process  # noqa: E402
from plait.adapters.process.guardian_process import NO_COMPILED  # noqa: E402
from plait.adapters.store.journal import SqliteJournal  # noqa: E402
from plait.app import runs as flows  # noqa: E402
from plait.core.values import Json  # noqa: E402
from plait.engine.backend import WorkItem  # noqa: E402
from plait.engine.context import new_run_context  # noqa: E402
from plait.engine.events import StepFinished  # noqa: E402
from plait.engine.journal import Journal, MemoryJournal  # noqa: E402
from plait.engine.outcome import Succeeded  # noqa: E402
from plait.engine.perform import StepContext, perform  # noqa: E402
from plait.engine.step import DEFAULT_POLICY, Policy, Step  # noqa: E402
from plait.program.action_step import ActionStep  # noqa: E402
from plait.program.items.spool import read_spool, write_spool  # noqa: E402
from plait.program.map import Map  # noqa: E402
from plait.program.step_list import step_list  # noqa: E402
from plait.scope import Scope  # noqa: E402

XARGS, SHELL = "xargs -P", "sh -c true"
BY_FILE, BY_PYTHON, BY_THREADS, BY_PARALLEL, UNCOMPILED = (
    "plait run FILE", "plait from Python", "subprocess from threads", "GNU parallel",
    "plait run FILE, nothing compiled",
)  # fmt: skip
MOST, MOST_OF_FEW, MOST_UNCOMPILED = 0.7, 1.0, 1.3
"""Times xargs: for many items, for 1,000 with the start of the command, and without a compiler."""
MOST_ENGINE, MOST_RECORD, MOST_START = 60e-6, 20e-6, 0.060
"""Seconds for a step without a process, for its record, and for a run above its only command."""
MOST_ITEM = 100e-6
"""Seconds for an item that starts no process, with its records."""
SYNC_PAUSE = 0.02
"""Seconds between two syncs, as in a run."""


@dataclass(frozen=True)
class Task:
    """The work for each item, as Plait and as a shell write it."""

    name: str
    step: str
    script: str
    """Its `$1` is the item."""
    prints: bool


TASKS = (
    Task("sh -c true", '{shell: "true"}', "true", prints=False),
    Task(
        "output captured",
        '{shell: "echo item ${item.n}", capture_output: said}',
        'echo item "$1"',
        prints=True,
    ),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the measurements."""

    items: tuple[tuple[int, int], ...]
    """Numbers of items, each with its rounds."""
    parallel: tuple[int, ...]
    starts: int
    peers: bool
    """Whether to measure the engines that take minutes."""


FULL = Sizes(((1000, 5), (10_000, 2)), (2, 8), starts=15, peers=True)
QUICK = Sizes(((200, 2),), (8,), starts=3, peers=False)


def fanout_tables(sizes: Sizes) -> Iterator[Plan]:
    if shutil.which("xargs") is None:
        raise SystemExit("bench: xargs is not installed")
    yield Plan("What a step costs besides its work", _engine_table)
    with all_cores():
        yield Plan("The start: a run of one step", partial(_start_table, sizes.starts))
        for items, rounds in sizes.items:
            for parallel in sizes.parallel:
                for task in TASKS:
                    table = partial(_map_table, task, items, parallel, rounds, peers=sizes.peers)
                    yield Plan(f"{items:,} items, {parallel} at a time: {task.name}", table)


# ── fan-out ──────────────────────────────────────────────────────────────


def _map_table(
    task: Task, items: int, parallel: int, rounds: int, title: str, *, peers: bool
) -> Table:
    process.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        file = _flow_file(Path(folder), task, items, parallel)
        contenders: dict[str, Callable[[int], object]] = {
            XARGS: lambda _: _by_xargs(task, items, parallel),
            BY_FILE: lambda _: _by_file(file),
            BY_PYTHON: lambda _: _by_python(file, items),
            UNCOMPILED: lambda _: _by_file(file, compiled=False),
            BY_THREADS: lambda _: _by_threads(task, items, parallel),
        }
        slow = items <= 1000
        if slow and _is_gnu_parallel():
            contenders[BY_PARALLEL] = lambda _: _by_parallel(task, items, parallel)
        times = race_trees(contenders, rounds=rounds)
    most = MOST_OF_FEW if slow else MOST
    bars = {BY_FILE: Bar(most)} if slow or task.prints else {}
    if not slow and task.prints:
        bars[UNCOMPILED] = Bar(MOST_UNCOMPILED)
    table = compared(
        title,
        "The unit is `xargs` with the same parallelism. Plait's journal is on. `plait run` is a "
        "whole "
        "process, with its start and the reading of the file. Its guardian is compiled, and its "
        "shells begin from one that waits; where nothing is compiled, the guardian in Python "
        "executes each shell. Engines say themselves how long the items took, without their own "
        "start. " + (f"The bar: at most {most:g} times xargs." if BY_FILE in bars else "No bar."),
        times,
        to=XARGS,
        bars=bars,
    )
    if not slow:
        return table
    others = [] if BY_PARALLEL in times else [Row(BY_PARALLEL, ("not installed",))]
    seconds = {peer.name: seconds_of(peer, task.script, items, parallel) for peer in PEERS if peers}
    others += [_peer_row(name, took, times[XARGS]) for name, took in seconds.items()]
    known = [took for took in seconds.values() if isinstance(took, float)]
    if BY_PARALLEL in times:
        known.append(times[BY_PARALLEL].least)
    if known:
        share = times[BY_FILE].least / min(known)
        others.append(
            Row("plait run ÷ the fastest of those", ("", times_as(share)), "< 1", share < 1)
        )
    return replace(table, rows=(*table.rows, *others))


def _flow_file(folder: Path, task: Task, items: int, parallel: int) -> str:
    (folder / "items.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(items)))
    file = folder / "flow.yaml"
    file.write_text(
        f"name: fan\nmap: {{input: items.jsonl, max_parallel: {parallel}, agent_template: "
        f"[{task.step}]}}\n"
    )
    return str(file)


def _by_xargs(task: Task, items: int, parallel: int) -> None:
    command = ["xargs", "-P", str(parallel), "-n", "1", "sh", "-c", task.script, "sh"]
    _expect_lines(task, items, _printed(command, items))


def _by_parallel(task: Task, items: int, parallel: int) -> None:
    command = [
        "parallel",
        "--will-cite",
        "-j",
        str(parallel),
        "-n",
        "1",
        f"sh -c {_quoted(task.script)} sh {{}}",
    ]
    _expect_lines(task, items, _printed(command, items))


def _printed(command: Sequence[str], items: int) -> bytes:
    numbers = "".join(f"{n}\n" for n in range(items)).encode()
    return subprocess.run(command, input=numbers, stdout=subprocess.PIPE, check=True).stdout


def _quoted(script: str) -> str:
    import shlex

    return shlex.quote(script)


def _expect_lines(task: Task, items: int, printed: bytes) -> None:
    assert printed.count(b"\n") == (items if task.prints else 0), "a contender did something else"


def _by_threads(task: Task, items: int, parallel: int) -> None:
    def one(n: int) -> bytes:
        command = ["sh", "-c", task.script, "sh", str(n)]
        return subprocess.run(
            command, capture_output=True, check=True, stdin=subprocess.DEVNULL
        ).stdout

    with ThreadPoolExecutor(parallel) as pool:
        _expect_lines(task, items, b"".join(pool.map(one, range(items))))


def _by_file(file: str, *, compiled: bool = True) -> None:
    # Exit code 0: every item was successful.
    env = _env() if compiled else {**_env(), NO_COMPILED: "1"}
    subprocess.run([sys.executable, "-m", "plait", "run", file, "--quiet"], env=env, check=True)


def _by_python(file: str, items: int) -> None:
    assert flows.run_flow(file).counts["successful"] == items


def _env() -> dict[str, str]:
    """Compile bytecode first, as for an installed Plait."""
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def _is_gnu_parallel() -> bool:
    """Check for GNU parallel: another program has the same name."""
    if shutil.which("parallel") is None:
        return False
    printed = subprocess.run(["parallel", "--version"], capture_output=True, check=False).stdout
    return printed.startswith(b"GNU parallel")


def _peer_row(name: str, seconds: float | str, unit: Times) -> Row:
    if isinstance(seconds, str):
        return Row(name, (seconds,))
    return Row(name, (shown(seconds), times_as(seconds / unit.least)))


# ── a run of one step ────────────────────────────────────────────────────


def _start_table(rounds: int, title: str) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "one.yaml")
        file.write_text('- shell: "true"\n')
        contenders: dict[str, Callable[[int], object]] = {
            SHELL: lambda _: subprocess.run(["sh", "-c", "true"], check=True),
            "python -c pass": lambda _: subprocess.run(
                [sys.executable, "-c", "pass"], env=_env(), check=True
            ),
            BY_FILE: lambda _: _by_file(str(file)),
        }
        for call in contenders.values():
            call(0)
        times = race_trees(contenders, rounds=rounds)
    table = compared(
        title,
        "Whole processes: the file is read and checked, a journal made, one command run and "
        "recorded.",
        times,
        to=SHELL,
        bars={},
    )
    above = times[BY_FILE].least - times[SHELL].least
    bar = f"≤ {MOST_START * 1000:g} ms"
    last = Row("plait run above its command", (shown(above),), bar, above <= MOST_START)
    return replace(table, rows=(*table.rows, last))


# ── what starts no process ───────────────────────────────────────────────


class Nothing:
    """The action of a step that starts no process."""

    def run(self, ctx: StepContext) -> dict[str, Json]:  # noqa: ARG002 - the protocol's shape
        return {"output": "x", "stderr": "", "exit_code": 0, "duration": 0.0}


@dataclass(frozen=True)
class Counted:
    """The step that records the items."""

    count: int
    folder: str
    name: str = "items"
    kind: str = "items"
    title: str = "the items"
    fingerprint: str = "items"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    @property
    def file(self) -> str:
        return os.path.join(self.folder, "items.jsonl")

    def run(self, ctx: StepContext) -> Json:  # noqa: ARG002 - the protocol's shape
        written = write_spool(((str(n), {"n": n}) for n in range(self.count)), self.file)
        return {"count": written.count}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002
        for order, key, item in read_spool(self.file):
            yield WorkItem(order, key, item)


def _map_of(count: int, steps: int, folder: str, *, parallel: int) -> Map:
    nothing = Nothing()
    each = [ActionStep(str(n), "nothing", "nothing", f"f{n}", nothing) for n in range(steps)]
    return Map("map", Counted(count, folder), step_list("each", each), "fan", parallel=parallel)


class Forgetful(MemoryJournal):
    """A journal that costs nothing."""

    def append(self, *events: object) -> None:
        """Keep nothing."""


def _engine_table(title: str) -> Table:
    engine, record = _engine_times(), _record_times()
    rows = [
        _part("a step of an item", engine["step"], MOST_ENGINE),
        _part("an item with one step", engine["item"]),
        _part("the same, with its records", engine["recorded"], MOST_ITEM),
        _part("a record, 1 thread", record[1], MOST_RECORD),
        _part("a record, 8 threads", record[8], MOST_RECORD),
    ]
    return Table(
        title,
        "Computing time, by the clock of the process. A step that starts no process, in a run "
        "whose journal "
        "keeps nothing; then an item in a run with a journal on disk; then "
        "the end of a step in a journal on disk, which is synced every 20 ms, "
        "as in a "
        "run. An item is a step that holds others, so an item with one step is two.",
        ("", "least time", "median"),
        tuple(rows),
    )


def _part(name: str, seen: Times, most: float | None = None) -> Row:
    cells = (shown(seen.least), shown(seen.median))
    figures = Figures(None, seen.least)
    if most is None:
        return Row(name, cells, figures=figures)
    return Row(name, cells, f"≤ {most * 1e6:g} µs", seen.least <= most, figures)


def _engine_times(*, items: int = 2000, many: int = 11, rounds: int = 7) -> dict[str, Times]:
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            steps: (lambda _, steps=steps: _performed(Forgetful(), folder, items, steps))
            for steps in (1, many)
        }
        seen = race_once_each(
            {str(steps): call for steps, call in contenders.items()},
            rounds=rounds,
            clock=time.process_time,
        )
        recorded = race_once_each(
            {"": lambda number: _recorded(os.path.join(folder, f"{number}"), items)},
            rounds=rounds,
            clock=time.process_time,
        )[""]
    one, eleven = seen["1"], seen[str(many)]
    return {
        "recorded": Times(recorded.least / items, recorded.median / items),
        "item": Times(one.least / items, one.median / items),
        "step": Times(
            (eleven.least - one.least) / items / (many - 1),
            (eleven.median - one.median) / items / (many - 1),
        ),
    }


def _performed(journal: Journal, folder: str, items: int, steps: int, *, parallel: int = 1) -> None:
    run = new_run_context("bench", journal, backend=LocalBackend(), folder=folder)
    map_step = _map_of(items, steps, folder, parallel=parallel)
    turn = StepContext(run, "", Scope({}))
    try:
        outcome = perform(map_step, turn.child(map_step))
    finally:
        run.events.close()
    assert isinstance(outcome, Succeeded)


def _recorded(folder: str, items: int) -> None:
    os.mkdir(folder)
    journal = SqliteJournal(folder, write=True, create=True)
    _performed(journal, folder, items, 1)
    journal.close()


def _record_times(*, records: int = 8000, rounds: int = 5) -> dict[int, Times]:
    def appended(threads: int) -> Callable[[int], None]:
        return lambda number: _appended(folder, f"{threads}-{number}", records, threads)

    with tempfile.TemporaryDirectory() as folder:
        seen = race_once_each(
            {str(threads): appended(threads) for threads in (1, 8)},
            rounds=rounds,
            clock=time.process_time,
        )
    return {
        threads: Times(seen[str(threads)].least / records, seen[str(threads)].median / records)
        for threads in (1, 8)
    }


def _appended(folder: str, name: str, records: int, threads: int) -> None:
    os.mkdir(os.path.join(folder, name))
    journal = SqliteJournal(os.path.join(folder, name), write=True, create=True)
    over = threading.Event()

    def append(thread: int) -> None:
        for n in range(thread, records, threads):
            value: Json = {"output": "item\n", "stderr": "", "exit_code": 0, "duration": 0.001}
            journal.append(
                StepFinished(f"map/item:{n}/0", "shell", "echo", "f", Succeeded(value), 0.001)
            )

    def sync() -> None:
        while not over.wait(SYNC_PAUSE):
            journal.sync()

    syncing = threading.Thread(target=sync)
    syncing.start()
    workers = [threading.Thread(target=append, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    over.set()
    syncing.join()
    journal.sync()
    journal.close()
