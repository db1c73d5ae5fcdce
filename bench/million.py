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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measure import all_cores
from tables import Row, Table, shown, times_as

SOURCES = Path(__file__).resolve().parent.parent / "src"
MOST_MEMORY = 200
"""Megabytes."""
LEAST_SPEED = 0.8
"""Of a million items, as a share of that of ten thousand, and of the last tenth as one of the
first.
"""
MOST_WAIT = 1.0
"""Seconds until somebody who asks is answered."""
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
    """How fast the last tenth went, as a multiple of the first."""
    memory: float
    journal: float


def million_tables(items: int) -> Iterator[Table]:
    if not items:
        return
    with all_cores():
        few = median(_run_in_new(FEW).rate for _ in range(3))
        with tempfile.TemporaryDirectory() as folder:
            seen = _run(Path(folder, "project"), items)
            yield _run_table(items, seen, few)
            yield _asked_table(items, Path(folder, "project"))


def _run_table(items: int, seen: Seen, few: float) -> Table:
    return Table(
        f"{items:,} items that start no process",
        "One step for each, journal on, 8 at a time; a thousandth of them fails. Memory must not "
        "grow with "
        "the items, and a run of many must be as fast as one of few, to its end.",
        ("", ""),
        (
            Row(
                "peak resident memory",
                (f"{seen.memory:.0f} MB",),
                f"< {MOST_MEMORY} MB",
                seen.memory < MOST_MEMORY,
            ),
            Row("an item", (shown(1 / seen.rate),)),
            Row(f"an item of {FEW:,}", (shown(1 / few),)),
            _at_least(f"speed, ÷ that of {FEW:,}", seen.rate / few),
            _at_least("speed of the last tenth ÷ the first", seen.tenths),
            Row("size of the journal", (f"{seen.journal:.0f} MB",)),
        ),
    )


def _at_least(name: str, share: float) -> Row:
    return Row(name, (times_as(share),), f"≥ {LEAST_SPEED:g}", share >= LEAST_SPEED)


def _asked_table(items: int, folder: Path) -> Table:
    (folder / "made").mkdir()
    show = min(_until_end(folder, "show") for _ in range(5))
    runs = min(_until_end(folder, "runs") for _ in range(5))
    _write_flow(folder, "made")
    first, whole = _retried(folder)
    return Table(
        f"Asking about a run of {items:,} items",
        "Whole processes, with their start. A retry answers when it says that it works; its end "
        "comes when "
        "the failed thousandth is done.",
        ("", ""),
        (
            Row("plait show", (shown(show),), f"≤ {MOST_WAIT:g} s", show <= MOST_WAIT),
            Row("plait runs", (shown(runs),)),
            Row(
                "plait retry --failed: answer",
                (shown(first),),
                f"≤ {MOST_WAIT:g} s",
                first <= MOST_WAIT,
            ),
            Row("plait retry --failed: end", (shown(whole),)),
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
    memory = _watched(
        subprocess.Popen(
            _command("run", "flow.yaml", "--quiet"),
            cwd=folder,
            env=_env(folder),
            stderr=subprocess.DEVNULL,
        )
    )
    (journal,) = folder.glob(".ai/state/runs/*/journal.db")
    ends = _ends(journal)
    assert len(ends) == items, f"{len(ends)} of {items} items are recorded"
    tenth = items // 10
    return Seen(
        items / (ends[-1] - ends[0]),
        (ends[tenth] - ends[0]) / (ends[-1] - ends[-tenth - 1]),
        memory,
        journal.stat().st_size / 1e6,
    )


def _write_flow(folder: Path, where: str) -> None:
    (folder / "flow.yaml").write_text(FLOW % where, encoding="ascii")


def _watched(running: subprocess.Popen[bytes]) -> float:
    """Waits, and says how many megabytes it had at most."""
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
    """When items ended, by the clock of the journal."""
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


def _until_end(folder: Path, *arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        _command(*arguments), cwd=folder, env=_env(folder), check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def _retried(folder: Path) -> tuple[float, float]:
    """Seconds until it says that the map works, and until it ends."""
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
    return first, time.perf_counter() - start


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait", *arguments]


def _env(folder: Path) -> dict[str, str]:
    home = str(folder.parent / "home")  # a user space inside the project is refused
    return {**os.environ, "PYTHONPATH": str(SOURCES), "HOME": home, "USER_SPACE": home}
