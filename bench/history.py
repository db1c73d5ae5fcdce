"""The cost of a start in a project with many earlier runs: whole processes, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from measure import Times, spent
from tables import Bar, Figures, Plan, Row, Table, shown, times_as

SOURCES = Path(__file__).resolve().parent.parent / "src"
FLOW = "steps: [{shell: echo done}]\n"
MOST_LINKS = 30_000
"""The number of hard links to one journal: file systems limit it."""
BAR = Bar(1.2)
COMMANDS = {
    "plait run": ("run", "flow.yaml"),
    "plait runs --limit 5": ("runs", "--limit", "5"),
    "plait show last": ("show", "last"),
}


def history_tables(*, sizes: Sequence[int], rounds: int) -> Iterator[Plan]:
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        projects = cache(lambda: _projects(Path(folder), sizes))  # only if a table needs it
        for name, command in COMMANDS.items():
            yield Plan(f"Earlier runs: {name}", partial(_table, command, projects, rounds))


def _projects(folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    projects = {size: _project(folder / str(size), size) for size in sizes}
    for project in projects.values():
        _spent(project, "runs", "--limit", "1")  # this creates the index
    return projects


def _table(
    command: tuple[str, ...], made: Callable[[], dict[int, Path]], rounds: int, title: str
) -> Table:
    projects = made()
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
        bar = "" if judged is None else str(BAR)
        share = passing.least / _times(wall[least]).least
        figures = Figures(passing.least, computing.least, share, ratio)
        rows.append(Row(f"{size:,} runs", cells, bar, judged, figures))
    return Table(
        title,
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
    # A user space inside the project makes no seals, so every run would be foreign.
    home = project.parent / "home"
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "HOME": str(home),
        "USER_SPACE": str(home / ".ai"),
    }

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "plait", *command],
            cwd=project,
            env=env,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.decode())

    return spent(run)


def _project(project: Path, size: int) -> Path:
    """A project with many finished runs: journals are alike, so few of them have all the
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
        text = json.dumps({**about, "number": number})
        (folder / "run.json").write_text(text, encoding="utf-8")
    return project
