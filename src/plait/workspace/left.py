"""What runs left behind: worktrees, folders and branches; and how to be rid of it without losing anything.

A worktree goes when its branch holds all that is in it: what was not committed is committed first.  A
branch goes when another branch that is no run's has all its commits.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator

from plait.errors import ProcessError
from plait.hints import Final
from plait.records import dataclass
from plait.steps.hands import Spot
from plait.values import Json
from plait.workspace.git import Git, StartGit, names
from plait.workspace.worktrees import BRANCHES, Worktrees

OURS: Final = f"{BRANCHES}plait/"


@dataclass(frozen=True, slots=True)
class Left:
    """One thing that a run left behind."""

    run: str
    path: str
    """Of its folder; empty if only the branch is there."""
    branch: str
    commits: int = 0
    """Those that no branch but those of runs has."""
    files: int = 0
    """Those with changes that are not committed."""
    running: bool = False

    def record(self) -> dict[str, Json]:
        return {
            name: getattr(self, name) for name in ("run", "path", "branch", "commits", "files", "running")
        }


def left_behind(start: StartGit, project: str, runs: str, running: Collection[str]) -> list[Left]:
    """What the runs of a project left behind, by run and name; `runs` is the folder of its runs."""
    git = Git(start, project)
    found = {(one.run, one.branch or one.path): one for one in _folders(start, project, runs, running)}
    for branch, run in _branches(git):
        if (run, branch) not in found and os.path.isdir(os.path.join(runs, run)):
            found[run, branch] = Left(run, "", branch, _commits(git, branch), running=run in running)
    return [found[key] for key in sorted(found)]


def clean(start: StartGit, project: str, runs: str, left: Left) -> Left | None:
    """Be rid of one thing; what remains of it, and why that has to be, is what is given back."""
    if left.running:
        return left
    git, spot = Git(start, project), Spot(left.path, left.path, left.branch, "")
    worktrees = Worktrees(start, project, os.path.join(runs, left.run), left.run)
    if left.path and not left.branch:
        if left.files:
            return left
        shutil.rmtree(left.path, ignore_errors=True)
        return None
    if left.path and not _is_emptied(worktrees, spot):
        return left
    commits = _commits(git, left.branch)
    if not commits:
        worktrees.forget_branch(left.branch, git.line_if_any("rev-parse", "--verify", BRANCHES + left.branch))
        return None
    return Left(left.run, "", left.branch, commits)


def _is_emptied(worktrees: Worktrees, spot: Spot) -> bool:
    if worktrees.is_unfinished(spot.path):
        return worktrees.remove(spot, merged=None)
    try:
        look = worktrees.look(spot)
    except ProcessError:
        return False
    if look.unmerged or (not look.on_branch and not worktrees.point(spot, look.head)):
        return False
    if look.files:
        worktrees.commit(spot, f"{os.path.basename(spot.path)}: what was left behind\n")
    return worktrees.remove(spot, merged=None)


def _folders(start: StartGit, project: str, runs: str, running: Collection[str]) -> Iterator[Left]:
    git = Git(start, project)
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else ():
        worktrees = Worktrees(start, project, os.path.join(runs, run), run)
        for path in worktrees.leftovers():
            yield _folder(git, worktrees, run, path, running=run in running)


def _folder(git: Git, worktrees: Worktrees, run: str, path: str, *, running: bool) -> Left:
    spot = worktrees.spot_at(path)
    if not os.path.lexists(os.path.join(path, ".git")):
        return Left(run, path, "", files=sum(len(files) for _, _, files in os.walk(path)), running=running)
    try:
        files = len(worktrees.look(spot).files)
    except ProcessError:
        files = 0
    return Left(run, path, spot.branch, _commits(git, spot.branch), files, running=running)


def _branches(git: Git) -> Iterator[tuple[str, str]]:
    listed = git.asked("for-each-ref", "--format=%(refname)%00", OURS)
    for line in names(listed.stdout) if listed.exit_code == 0 else ():
        ref = os.fsdecode(line).strip("\n")
        parts = ref.removeprefix(OURS).split("/")
        if len(parts) == 2:
            yield ref.removeprefix(BRANCHES), parts[0]


def _commits(git: Git, branch: str) -> int:
    """How many commits only branches of runs have."""
    known = ("--exclude=plait/*", "--branches", "--remotes", "HEAD")
    asked = ("rev-list", "--count", f"{BRANCHES}{branch}", "--not", *known)
    counted = git.asked(*asked)
    return int(counted.stdout) if counted.exit_code == 0 else 0
