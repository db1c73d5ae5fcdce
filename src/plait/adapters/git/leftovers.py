"""Leftovers of runs: worktrees, folders and branches, and how to remove them without losing work.

A worktree is removed when its branch has everything; uncommitted changes are committed first. A
branch is removed when a branch of the user has all its commits and it is not checked out. A
leftover that cannot be read stays, and does not prevent removing others. An interrupted removal is
only continued: its folder no longer counts as work.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from plait.adapters.git.git import Git, StartGit, names
from plait.adapters.git.removal import remove_tree
from plait.adapters.git.worktrees import BRANCHES, COPYING, GitWorktrees
from plait.core.errors import InputError, ProcessError
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.program.worktrees.ports import Worktree

OURS: Final = f"{BRANCHES}plait/"
MERGED: Final = "merged"
FIELDS: Final = ("run", "path", "branch", "commits", "files", "running", "why")
REST: Final = (
    "the rest of a folder whose removal was begun; all that it held is merged or on a branch"
)
UNMADE: Final = "copies for an item that were not finished, so that no step was ever there"
FOREIGN: Final = (
    "this run is not known to be yours, so its folder is neither read nor removed: "
    "plait trust run RUN, or remove its folder"
)
LISTED: Final = "git still lists this folder, which is gone: plait worktrees --clean"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A worktree, a folder or a branch that a run left."""

    run: str
    path: str
    """Its folder; empty if only the branch is left."""
    branch: str
    commits: int | None = 0
    """The number of commits that only branches of runs have; None if git cannot tell."""
    files: int = 0
    """Files with uncommitted changes."""
    running: bool = False
    why: str = ""
    """Why it cannot be removed, and what to do, if there is a special reason."""
    foreign: bool = False
    """Another user made the run."""

    def record(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in FIELDS}


def find_leftovers(
    start: StartGit, project: str, runs: str, running: Collection[str], *, own: Collection[str]
) -> list[Leftover]:
    """The leftovers of a project, by run and name; `runs` is the folder of its runs.

    `own`: the runs that this user made. Leftovers of others are listed, but not read.
    """
    git = Git(start, project)
    found = {
        (one.run, one.branch or one.path): one
        for one in _folders(start, project, runs, own, running)
    }
    for branch, run in _branches(git):
        if (run, branch) not in found and run in own:
            found[run, branch] = Leftover(
                run, "", branch, _commits(git, branch), running=run in running
            )
    return [found[key] for key in sorted(found)]


def clean_leftover(start: StartGit, project: str, runs: str, left: Leftover) -> Leftover | None:
    """Remove a leftover; return what stays, and why."""
    if left.running or left.foreign:
        return left
    worktrees = GitWorktrees(start, project, os.path.join(runs, left.run), left.run)
    is_open = worktrees.is_open()
    if left.path in (*worktrees.asides(), *worktrees.missing_folders()):
        why = remove_tree(left.path)
        worktrees.prune()
        return None if why is None else replace(left, why=_rest_message(left.path, why))
    if left.path and not left.branch:
        return left if left.files else _remove_folder(left)
    if not is_open:
        return left
    stays = _try_remove(worktrees, left) if left.path else None
    return _remove_branch(Git(start, project), worktrees, left) if stays is None else stays


def _remove_folder(left: Leftover) -> Leftover | None:
    why = remove_tree(left.path)
    return None if why is None else replace(left, why=f"it cannot be removed: {why}")


def _rest_message(path: str, why: str) -> str:
    return f"{_rest_kind(path)}; it cannot be removed: {why}; sudo rm -r FOLDER, if it is not yours"


def _rest_kind(path: str) -> str:
    return UNMADE if path.endswith(COPYING) else REST


def _try_remove(worktrees: GitWorktrees, left: Leftover) -> Leftover | None:
    """Remove a worktree after committing its changes; return it if it must stay."""
    worktree = Worktree(left.path, left.path, left.branch, "")
    try:
        if not worktrees.is_unfinished(worktree.path) and not _is_committed(worktrees, worktree):
            return left
    except (InputError, ProcessError) as error:
        return replace(left, why=error.what)
    remains = worktrees.remove(worktree, merged=None)
    if remains is None:
        return None
    if remains.cause == "aside":
        return Leftover(left.run, remains.path, "", why=_rest_message(remains.path, remains.detail))
    return replace(left, why=remains.message)


def _is_committed(worktrees: GitWorktrees, worktree: Worktree) -> bool:
    """Commit all changes; False if the worktree has content that a branch cannot hold."""
    worktrees.require_intact(worktree)
    status = worktrees.status(worktree)
    if status.unmerged or (not status.on_branch and not worktrees.point(worktree, status.head)):
        return False
    if status.files:
        worktrees.commit(
            worktree, status.files, f"{os.path.basename(worktree.path)}: what was left behind\n"
        )
    return not status.repositories


def _remove_branch(git: Git, worktrees: GitWorktrees, left: Leftover) -> Leftover | None:
    commits, tip = _commits(git, left.branch), worktrees.tip(BRANCHES + left.branch)
    remains = Leftover(left.run, "", left.branch, commits)
    if commits != 0 or (_is_gather_branch(left) and _has_others(git, left)):
        return remains
    return None if worktrees.forget_branch(left.branch, tip) else remains


def _is_gather_branch(left: Leftover) -> bool:
    """Is it the branch into which the user merges items in conflict?"""
    return left.branch == f"plait/{left.run}/{MERGED}"


def _has_others(git: Git, left: Leftover) -> bool:
    return any(run == left.run and branch != left.branch for branch, run in _branches(git))


def _folders(
    start: StartGit, project: str, runs: str, own: Collection[str], running: Collection[str]
) -> Iterator[Leftover]:
    git = Git(start, project)
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else ():
        worktrees = GitWorktrees(start, project, os.path.join(runs, run), run)
        if run not in own:
            yield from (
                Leftover(run, path, "", why=FOREIGN, foreign=True) for path in worktrees.leftovers()
            )
            continue
        for path in worktrees.leftovers():
            yield _folder(git, worktrees, run, path, running=run in running)
        if run not in running:  # a running run removes worktrees all the time
            yield from _rests(worktrees, run)


def _folder(git: Git, worktrees: GitWorktrees, run: str, path: str, *, running: bool) -> Leftover:
    if not worktrees.is_open() or not worktrees.is_worktree(path):
        return Leftover(run, path, "", files=sum(1 for _ in _iter_entries(path)), running=running)
    worktree, files, why = worktrees.worktree_at(path), 0, ""
    try:
        worktrees.require_intact(worktree)
        status = worktrees.status(worktree)
        files = len(status.files) + len(status.repositories)
        unread = None if running else worktrees.unread(worktree)
        why = "" if unread is None else unread.message
    except (InputError, ProcessError) as error:
        why = error.what
    commits = _commits(git, worktree.branch)
    if why and _is_gone(git, worktree.branch):
        # Its branch was merged or deleted, so it counts as a plain folder.
        return Leftover(
            run, path, "", files=sum(1 for _ in _iter_entries(path)), running=running, why=why
        )
    return Leftover(run, path, worktree.branch, commits, files, running=running, why=why)


def _rests(worktrees: GitWorktrees, run: str) -> Iterator[Leftover]:
    """Yield interrupted removals and unfinished copies."""
    asides = worktrees.asides()
    for path in asides:
        yield Leftover(run, path, "", why=f"{_rest_kind(path)}: plait worktrees --clean")
    if asides or not worktrees.is_open():
        return  # removing those also updates git's list
    for path in worktrees.missing_folders():
        yield Leftover(run, path, "", why=LISTED)


def _iter_entries(folder: str) -> Iterator[str]:
    """Yield files, links, empty folders and unreadable folders below a folder."""
    unreadable: list[OSError] = []
    for top, folders, files in os.walk(folder, onerror=unreadable.append):
        yield from files
        yield from (one for one in folders if os.path.islink(os.path.join(top, one)))
        if top != folder and not folders and not files:
            yield top
    yield from (str(error.filename) for error in unreadable)


def _branches(git: Git) -> Iterator[tuple[str, str]]:
    listed = git.try_run("for-each-ref", "--format=%(refname)%00", OURS)
    for line in names(listed.stdout) if listed.exit_code == 0 else ():
        ref = os.fsdecode(line).strip("\n")
        parts = ref.removeprefix(OURS).split("/")
        if len(parts) == 2:
            yield ref.removeprefix(BRANCHES), parts[0]


def _commits(git: Git, branch: str) -> int | None:
    """The number of commits that only branches of runs have; None if git cannot tell."""
    others = ("--exclude=plait/*", "--branches", "--remotes")
    counted = git.try_run("rev-list", "--count", f"{BRANCHES}{branch}", "--not", *others)
    if counted.exit_code == 0:
        return int(counted.stdout)
    return 0 if _is_gone(git, branch) else None


def _is_gone(git: Git, branch: str) -> bool:
    return git.try_run("show-ref", "--verify", "--quiet", f"{BRANCHES}{branch}").exit_code == 1
