"""What runs left behind: worktrees, folders and branches; and how to be rid of it without losing anything.

A worktree goes when its branch holds all that is in it: what was not committed is committed first.  A
branch goes when another branch that is no run's has all its commits, and nobody has it checked out.  What
cannot be looked at stays, and keeps nothing else from going.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator

from plait.errors import InputError, ProcessError
from plait.hints import Final
from plait.records import dataclass
from plait.steps.hands import Spot
from plait.values import Json
from plait.workspace.git import Git, StartGit, names
from plait.workspace.worktrees import BRANCHES, Worktrees

OURS: Final = f"{BRANCHES}plait/"
MERGED: Final = "merged"


@dataclass(frozen=True, slots=True)
class Left:
    """One thing that a run left behind."""

    run: str
    path: str
    """Of its folder; empty if only the branch is there."""
    branch: str
    commits: int | None = 0
    """Those that no branch but those of runs has; None if git cannot tell."""
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
    worktrees = Worktrees(start, project, os.path.join(runs, left.run), left.run)
    if left.path and not left.branch:
        if left.files:
            return left
        shutil.rmtree(left.path, ignore_errors=True)
        return None
    if not worktrees.is_open() or (left.path and not _is_emptied(worktrees, left)):
        return left
    return _without_branch(Git(start, project), worktrees, left)


def _is_emptied(worktrees: Worktrees, left: Left) -> bool:
    spot = Spot(left.path, left.path, left.branch, "")
    if worktrees.is_unfinished(spot.path):
        return worktrees.remove(spot, merged=None)
    try:
        look = worktrees.look(spot)
        if look.unmerged or (not look.on_branch and not worktrees.point(spot, look.head)):
            return False
        if look.files:
            worktrees.commit(spot, look.files, f"{os.path.basename(spot.path)}: what was left behind\n")
    except (InputError, ProcessError):
        return False
    return not look.repositories and worktrees.remove(spot, merged=None)


def _without_branch(git: Git, worktrees: Worktrees, left: Left) -> Left | None:
    commits, tip = _commits(git, left.branch), worktrees.tip(BRANCHES + left.branch)
    remains = Left(left.run, "", left.branch, commits)
    if commits != 0 or (_is_of_all(left) and _has_others(git, left)):
        return remains
    return None if worktrees.forget_branch(left.branch, tip) else remains


def _is_of_all(left: Left) -> bool:
    """Is it the branch that an item in conflict is brought together with by hand?"""
    return left.branch == f"plait/{left.run}/{MERGED}"


def _has_others(git: Git, left: Left) -> bool:
    return any(run == left.run and branch != left.branch for branch, run in _branches(git))


def _folders(start: StartGit, project: str, runs: str, running: Collection[str]) -> Iterator[Left]:
    git = Git(start, project)
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else ():
        worktrees = Worktrees(start, project, os.path.join(runs, run), run)
        for path in worktrees.leftovers():
            yield _folder(git, worktrees, run, path, running=run in running)


def _folder(git: Git, worktrees: Worktrees, run: str, path: str, *, running: bool) -> Left:
    if not worktrees.is_open() or not worktrees.is_worktree(path):
        return Left(run, path, "", files=sum(1 for _ in _found_in(path)), running=running)
    spot = worktrees.spot_at(path)
    try:
        look = worktrees.look(spot)
        files = len(look.files) + len(look.repositories)
    except ProcessError:
        files = 0
    return Left(run, path, spot.branch, _commits(git, spot.branch), files, running=running)


def _found_in(folder: str) -> Iterator[str]:
    """All that is in a folder: files, links and empty folders."""
    for top, folders, files in os.walk(folder):
        yield from files
        yield from (one for one in folders if os.path.islink(os.path.join(top, one)))
        if top != folder and not folders and not files:
            yield top


def _branches(git: Git) -> Iterator[tuple[str, str]]:
    listed = git.asked("for-each-ref", "--format=%(refname)%00", OURS)
    for line in names(listed.stdout) if listed.exit_code == 0 else ():
        ref = os.fsdecode(line).strip("\n")
        parts = ref.removeprefix(OURS).split("/")
        if len(parts) == 2:
            yield ref.removeprefix(BRANCHES), parts[0]


def _commits(git: Git, branch: str) -> int | None:
    """How many commits only branches of runs have; None if git cannot tell."""
    known = ("--exclude=plait/*", "--branches", "--remotes")
    counted = git.asked("rev-list", "--count", f"{BRANCHES}{branch}", "--not", *known)
    if counted.exit_code == 0:
        return int(counted.stdout)
    is_there = git.asked("show-ref", "--verify", "--quiet", f"{BRANCHES}{branch}").exit_code == 0
    return None if is_there else 0
