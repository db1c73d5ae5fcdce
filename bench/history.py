"""What a start costs in a project with many earlier runs: whole processes, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from measure import Times
from tables import Bar, Row, Table, shown, times_as

SOURCES = Path(__file__).resolve().parent.parent / "src"
FLOW = "steps: [{shell: echo done}]\n"
MOST_LINKS = 30_000
"""Names that one journal has: file systems have a bound for that."""
BAR = Bar(1.2)
COMMANDS = {
    "plait run": ("run", "flow.yaml"),
    "plait runs --limit 5": ("runs", "--limit", "5"),
    "plait show last": ("show", "last"),
}


def history_tables(*, sizes: Sequence[int], rounds: int) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        projects = {size: _project(Path(folder, str(size)), size) for size in sizes}
        for project in projects.values():
            _spent(project, "runs", "--limit", "1")  # which makes the index
        for name, command in COMMANDS.items():
            yield _table(name, command, projects, rounds)


def _table(name: str, command: tuple[str, ...], projects: dict[int, Path], rounds: int) -> Table:
    wall: dict[int, list[float]] = {size: [] for size in projects}
    work: dict[int, list[float]] = {size: [] for size in projects}
    for _ in range(rounds):
        for size, project in projects.items():
            passed, computed = _spent(project, *command)
            wall[size].append(passed)
            work[size].append(computed)
    least = min(projects)
    rows = []
    for size in projects:
        computing, passing = _times(work[size]), _times(wall[size])
        ratio = computing.least / _times(work[least]).least
        cells = (
            shown(computing.least), times_as(ratio), times_as(computing.median / _times(work[least]).median),
            shown(passing.least), times_as(passing.least / _times(wall[least]).least),
        )  # fmt: skip
        judged = None if size == least else ratio <= BAR.most
        rows.append(Row(f"{size:,} runs", cells, "" if judged is None else str(BAR), judged))
    return Table(
        f"Earlier runs: {name}",
        "Whole processes in projects with so many earlier runs, with an index. The bar is about "
        "computing "
        "time, of Plait and of all it starts: it does not depend on the number of runs.",
        ("", "computing", f"× {least} runs", "by medians", "wall time", f"× {least} runs"),
        tuple(rows),
    )


def _times(seen: list[float]) -> Times:
    return Times(min(seen), sorted(seen)[len(seen) // 2])


def _spent(project: Path, *command: str) -> tuple[float, float]:
    """Wall and computing time of one command."""
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "HOME": str(project),
        "USER_SPACE": str(project / "user"),
    }
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "plait", *command],
        cwd=project,
        env=env,
        capture_output=True,
        check=False,
    )
    passed, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _project(project: Path, size: int) -> Path:
    """A project with so many runs that have ended: journals are alike, so few of them have all the
    names.
    """
    (project / ".ai").mkdir(parents=True)
    (project / ".ai/plait.yaml").write_text("trust: project\n", encoding="utf-8")
    (project / "flow.yaml").write_text(FLOW, encoding="utf-8")
    _spent(project, "run", "flow.yaml")
    runs = project / ".ai/state/runs"
    (first,) = runs.iterdir()
    about = json.loads((first / "run.json").read_text(encoding="utf-8"))
    journal = first / "journal.db"
    for number in range(2, size + 1):
        folder = runs / f"z{number:07d}"
        folder.mkdir(mode=0o700)
        if number % MOST_LINKS == 0:
            (folder / "journal.db").write_bytes(journal.read_bytes())
            journal = folder / "journal.db"
        else:
            os.link(journal, folder / "journal.db")
        said = json.dumps({**about, "place": number})
        (folder / "run.json").write_text(said, encoding="utf-8")
    return project
