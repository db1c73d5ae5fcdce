"""A git worktree for each item: Plait's isolation against the bare `git worktree add` and `remove`.

Everybody makes a worktree with a branch of its own for each item, at the same commit, and removes
it, so many at a time.  Plait also looks whether the item left anything, records what it does so
that a kill loses nothing, and removes the branch.  In the last row each item makes a commit, which
is merged back.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from measure import all_cores, race_trees
from tables import Bar, Plan, Table, compared

from plait.app.runs import Options, RunObservers, run_flow

FILES = 200
ITEMS = 24
PARALLEL = 2
MOST = 1.2
BARE, OURS, MERGED = (
    "git worktree add + remove",
    "plait, isolation: worktree",
    "the same, each item merged",
)
FLOW = """\
map:
  input: {items: ITEMS}
  max_parallel: PARALLEL
  isolation: worktree
  steps:
    - tool: core/json/query
      params: {data: [1], query: "$[0]"}
"""
WRITES = """\
    - write_file: {path: "new-${item}", content: "${workflow.run}"}
"""


def worktree_tables(*, rounds: int) -> Iterator[Plan]:
    title = f"{ITEMS} worktrees of {FILES} files, {PARALLEL} at a time"
    yield Plan(title, partial(_table, rounds))


def _table(rounds: int, title: str) -> Table:
    with tempfile.TemporaryDirectory() as folder, all_cores():
        repository = _repository(Path(folder) / "repository")
        contenders: dict[str, Callable[[int], object]] = {
            BARE: lambda number: _bare(repository, number),
            OURS: _by_plait(repository, "flow.yaml"),
            MERGED: _by_plait(repository, "merging.yaml"),
        }
        for run in contenders.values():
            run(-1)  # warm up: first loads and reads must not count
        times = race_trees(contenders, rounds=rounds)
    return compared(
        title,
        "Seconds for all items together; the first row is git alone, from threads.",
        times,
        to=BARE,
        bars={OURS: Bar(MOST)},
    )


def _repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "src").mkdir()
    for number in range(FILES):
        (folder / "src" / f"file{number}.txt").write_text(f"line {number}\n" * 20)
    flow = FLOW.replace("ITEMS", str(list(range(ITEMS)))).replace("PARALLEL", str(PARALLEL))
    (folder / "flow.yaml").write_text(flow)
    (folder / "merging.yaml").write_text(flow + WRITES)
    (folder / ".gitignore").write_text(".ai/state\n")
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "config", "user.name", "bench")
    _git(folder, "config", "user.email", "bench@example.org")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def _bare(repository: Path, round_number: int) -> None:
    top = repository / ".ai" / "state" / f"bare-{round_number}"

    def one(number: int) -> None:
        place = str(top / str(number))
        _added(repository, f"bare/{round_number}/{number}", place)
        _git(repository, "worktree", "remove", place)

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(one, range(ITEMS)))


def _added(repository: Path, branch: str, place: str) -> None:
    """git looks at all worktrees, and fails at times if one of them goes meanwhile: then once
    more.
    """
    for number in range(10):
        new = ["-b", f"{branch}-{number}", place, "HEAD"]
        done = subprocess.run(
            ["git", "worktree", "add", "-q", *new], cwd=repository, stderr=subprocess.DEVNULL
        )
        if done.returncode == 0:
            return
    raise RuntimeError("git makes no worktree")


def _by_plait(repository: Path, name: str) -> Callable[[int], object]:
    def run(_: int) -> None:
        result = run_flow(str(repository / name), Options(), observers=RunObservers())
        if result.exit_code != 0:
            raise RuntimeError(f"{name}: {result.failure}")

    return run


def _git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)
