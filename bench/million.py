"""A map of a million items that start no process: memory, speed to the end, and how fast it is
looked at.

A real run of a real file, in a process of its own; one item in a thousand fails.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

from measure import Times, all_cores, spent, tree_times
from tables import Plan, Row, Table, computing_cells, figures_of, shown, times_as

SOURCES = Path(__file__).resolve().parent.parent / "src"
MOST_MEMORY = 60
"""Megabytes."""
MOST_ITEM = 120e-6
"""Seconds of computing time for an item, with its share of the start."""
LEAST_SPEED = 0.8
"""Of a million items, as a share of that of ten thousand, and of the last tenth as one of the
first.
"""
MOST_WAIT = 1.0
"""Seconds until a query is answered."""
FEW = 10_000
FLOW = """\
map:
  input: items.jsonl
  max_parallel: 8
  steps:
  - {when: "${item.n} == 0", write_file: {path: "%s/x", content: y, create_dirs: false}}
"""


@dataclass(frozen=True)
class Seen:
    """One run."""

    rate: float
    """Items a second."""
    tenths: float
    """The speed of the last tenth, as a multiple of the first."""
    memory: float
    journal: float
    computing: float
    """Seconds for one item over all processes, with the start of the command."""


def million_tables(items: int) -> Iterator[Plan]:
    if not items:
        return
    with all_cores(), tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        run = cache(lambda: _run(project, items))  # both tables describe this run
        yield Plan(f"{items:,} items that start no process", partial(_run_table, run))
        asked = partial(_asked_table, run, project)
        yield Plan(f"Asking about a run of {items:,} items", asked)


def _run_table(run: Callable[[], Seen], title: str) -> Table:
    seen_few = [_run_in_new(FEW) for _ in range(3)]
    few = median(one.rate for one in seen_few)
    seen = run()
    reference = Times(1 / few, 1 / few, min(one.computing for one in seen_few))
    return Table(
        title,
        "One step for each, journal on, 8 at a time; a thousandth of them fails. Memory must not "
        "grow with "
        "the items, and a run of many must be as fast as one of few, to its end. Computing time is "
        "that of all processes, with the start of the command.",
        ("", "", f"× {FEW:,}", "computing", f"× {FEW:,}"),
        (
            Row(
                "peak resident memory",
                (f"{seen.memory:.0f} MB",),
                f"< {MOST_MEMORY} MB",
                seen.memory < MOST_MEMORY,
            ),
            replace(
                _row("an item", Times(1 / seen.rate, 1 / seen.rate, seen.computing), reference),
                bar=f"computing ≤ {MOST_ITEM * 1e6:g} µs",
                passed=seen.computing <= MOST_ITEM,
            ),
            _row(f"an item of {FEW:,}", reference, reference),
            _at_least(f"speed, ÷ that of {FEW:,}", seen.rate / few),
            _at_least("speed of the last tenth ÷ the first", seen.tenths),
            Row("size of the journal", (f"{seen.journal:.0f} MB",)),
        ),
    )


def _row(name: str, seen: Times, reference: Times, most: float | None = None) -> Row:
    figures = figures_of(seen, reference)
    cells = (
        shown(seen.least),
        times_as(seen.least / reference.least),
        *computing_cells(figures),
    )
    if most is None:
        return Row(name, cells, figures=figures)
    return Row(name, cells, f"≤ {most:g} s", seen.least <= most, figures)


def _at_least(name: str, share: float) -> Row:
    return Row(name, (times_as(share),), f"≥ {LEAST_SPEED:g}", share >= LEAST_SPEED)


def _asked_table(run: Callable[[], Seen], folder: Path, title: str) -> Table:
    run()
    (folder / "made").mkdir()
    show = tree_times([_until_end(folder, "show") for _ in range(5)])
    runs = tree_times([_until_end(folder, "runs") for _ in range(5)])
    _write_flow(folder, "made")
    answers: list[float] = []
    whole = tree_times([spent(lambda: answers.append(_retried(folder)))])
    first = Times(answers[0], answers[0])
    return Table(
        title,
        "Whole processes, with their start. A retry answers when it says that it works; its end "
        "comes when "
        "the failed thousandth is done.",
        ("", "least time", "× plait show", "computing", "× plait show"),
        (
            _row("plait show", show, show, MOST_WAIT),
            _row("plait runs", runs, show),
            _row("plait retry --failed: answer", first, show, MOST_WAIT),
            _row("plait retry --failed: end", whole, show),
        ),
    )


# ── running ──────────────────────────────────────────────────────────────


def _run_in_new(items: int) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder, "project"), items)


def _run(folder: Path, items: int) -> Seen:
    (folder / ".ai").mkdir(parents=True)
    _write_flow(folder, "nowhere")
    with (folder / "items.jsonl").open("w", encoding="ascii") as file:
        file.writelines(f'{{"id":{n},"n":{n % 1000}}}\n' for n in range(items))
    peaks: list[float] = []
    _, computing = spent(lambda: peaks.append(_watched(_started(folder))))
    (journal,) = folder.glob(".ai/state/runs/*/journal.db")
    ends = _ends(journal)
    assert len(ends) == items, f"{len(ends)} of {items} items are recorded"
    tenth = items // 10
    return Seen(
        items / (ends[-1] - ends[0]),
        (ends[tenth] - ends[0]) / (ends[-1] - ends[-tenth - 1]),
        peaks[0],
        journal.stat().st_size / 1e6,
        computing / items,
    )


def _started(folder: Path) -> subprocess.Popen[bytes]:
    command = _command("run", "flow.yaml", "--quiet")
    return subprocess.Popen(command, cwd=folder, env=_env(folder), stderr=subprocess.DEVNULL)


def _write_flow(folder: Path, where: str) -> None:
    (folder / "flow.yaml").write_text(FLOW % where, encoding="ascii")


def _watched(running: subprocess.Popen[bytes]) -> float:
    """Wait for the process, and return its peak memory in megabytes."""
    most = 0.0
    while running.poll() is None:
        try:
            status = Path(f"/proc/{running.pid}/status").read_text(encoding="ascii")
        except OSError:
            break
        peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
        most = max([most, *(peak / 1024 for peak in peaks)])
        time.sleep(0.2)
    return most


def _ends(journal: Path) -> Sequence[float]:
    """The times at which items ended, from the journal."""
    connection = sqlite3.connect(journal)
    try:
        query = (
            "SELECT at FROM records WHERE type = 3 AND parent = 'map/' AND name >= 'item:' AND name < "
            "'item;'"
        )
        return [at for (at,) in connection.execute(query)]
    finally:
        connection.close()


# ── asking ───────────────────────────────────────────────────────────────


def _until_end(folder: Path, *arguments: str) -> tuple[float, float]:
    command, env = _command(*arguments), _env(folder)
    return spent(
        lambda: subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    )


def _retried(folder: Path) -> float:
    """Retry the run to its end; return the seconds until it reports that the map runs."""
    start = time.perf_counter()
    command = _command("retry", "last", "--failed")
    with subprocess.Popen(command, cwd=folder, env=_env(folder), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        first = next(
            time.perf_counter() - start
            for line in running.stdout
            if line.startswith(b"map: started")
        )
        running.stdout.read()
    assert running.returncode == 0, "every failed item was done"
    return first


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait", *arguments]


def _env(folder: Path) -> dict[str, str]:
    home = str(folder.parent / "home")  # a user space inside the project is refused
    return {**os.environ, "PYTHONPATH": str(SOURCES), "HOME": home, "USER_SPACE": home}
