"""What runs left behind: worktrees, folders and branches; and how to be rid of it without losing
anything.

A worktree goes when its branch holds all that is in it: what was not committed is committed first.
A branch goes when another branch that is no run's has all its commits, and nobody has it checked
out.  What cannot be looked at stays, and keeps nothing else from going.  What a removal had begun
with is never looked at as anybody's work again: it only goes on being removed.
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
    "nobody knows that this run is yours, so nothing of it is looked into or removed: "
    "plait trust run RUN, or remove its folder"
)
LISTED: Final = "git still lists this folder, which is gone: plait worktrees --clean"


@dataclass(frozen=True, slots=True)
class Leftover:
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
    why: str = ""
    """What keeps it there, and what to do, if that is not what keeps any other."""
    foreign: bool = False
    """The run is not this user's own."""

    def record(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in FIELDS}


def find_leftovers(
    start: StartGit, project: str, runs: str, running: Collection[str], *, own: Collection[str]
) -> list[Leftover]:
    """What the runs of a project left behind, by run and name; `runs` is the folder of its runs.

    `own` are those that this user made; what others left is listed, and not looked into.
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
    """Be rid of one thing; what remains of it, and why that has to be, is what is given back."""
    if left.running or left.foreign:
        return left
    worktrees = GitWorktrees(start, project, os.path.join(runs, left.run), left.run)
    is_open = worktrees.is_open()
    if left.path in (*worktrees.asides(), *worktrees.missing_folders()):
        return _without_rest(worktrees, left)
    if left.path and not left.branch:
        return left if left.files else _without_folder(left)
    if not is_open:
        return left
    stays = _try_remove(worktrees, left) if left.path else None
    return _without_branch(Git(start, project), worktrees, left) if stays is None else stays


def _without_rest(worktrees: GitWorktrees, left: Leftover) -> Leftover | None:
    why = remove_tree(left.path)
    worktrees.prune()
    return None if why is None else replace(left, why=_rest(left.path, why))


def _without_folder(left: Leftover) -> Leftover | None:
    why = remove_tree(left.path)
    return None if why is None else replace(left, why=f"it cannot be removed: {why}")


def _rest(path: str, why: str) -> str:
    return (
        f"{_what_rests(path)}; it cannot be removed: {why}; sudo rm -r FOLDER, if it is not yours"
    )


def _what_rests(path: str) -> str:
    return UNMADE if path.endswith(COPYING) else REST


def _try_remove(worktrees: GitWorktrees, left: Leftover) -> Leftover | None:
    """A worktree that has to stay; None if it is gone, and all that it held is on its branch."""
    spot = Worktree(left.path, left.path, left.branch, "")
    try:
        if not worktrees.is_unfinished(spot.path) and not _is_committed(worktrees, spot):
            return left
    except (InputError, ProcessError) as error:
        return replace(left, why=error.what)
    remains = worktrees.remove(spot, merged=None)
    if remains is None:
        return None
    if remains.cause == "aside":
        return Leftover(left.run, remains.path, "", why=_rest(remains.path, remains.said))
    return replace(left, why=remains.message)


def _is_committed(worktrees: GitWorktrees, spot: Worktree) -> bool:
    """Commit what is not; False if the worktree holds what no branch can."""
    worktrees.require_intact(spot)
    look = worktrees.look(spot)
    if look.unmerged or (not look.on_branch and not worktrees.point(spot, look.head)):
        return False
    if look.files:
        worktrees.commit(spot, look.files, f"{os.path.basename(spot.path)}: what was left behind\n")
    return not look.repositories


def _without_branch(git: Git, worktrees: GitWorktrees, left: Leftover) -> Leftover | None:
    commits, tip = _commits(git, left.branch), worktrees.tip(BRANCHES + left.branch)
    remains = Leftover(left.run, "", left.branch, commits)
    if commits != 0 or (_is_of_all(left) and _has_others(git, left)):
        return remains
    return None if worktrees.forget_branch(left.branch, tip) else remains


def _is_of_all(left: Leftover) -> bool:
    """Is it the branch that an item in conflict is brought together with by hand?"""
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
        if run not in running:  # there, places are being removed all the time
            yield from _rests(worktrees, run)


def _folder(git: Git, worktrees: GitWorktrees, run: str, path: str, *, running: bool) -> Leftover:
    if not worktrees.is_open() or not worktrees.is_worktree(path):
        return Leftover(run, path, "", files=sum(1 for _ in _iter_entries(path)), running=running)
    spot, files, why = worktrees.spot_at(path), 0, ""
    try:
        worktrees.require_intact(spot)
        look = worktrees.look(spot)
        files = len(look.files) + len(look.repositories)
        unread = None if running else worktrees.unread(spot)
        why = "" if unread is None else unread.message
    except (InputError, ProcessError) as error:
        why = error.what
    commits = _commits(git, spot.branch)
    if why and _is_gone(git, spot.branch):
        # It was merged, or somebody has removed it: now it is a folder like any other.
        return Leftover(
            run, path, "", files=sum(1 for _ in _iter_entries(path)), running=running, why=why
        )
    return Leftover(run, path, spot.branch, commits, files, running=running, why=why)


def _rests(worktrees: GitWorktrees, run: str) -> Iterator[Leftover]:
    """What removals left that a crash or a permission kept from their end; copies that were not
    finished.
    """
    asides = worktrees.asides()
    for path in asides:
        yield Leftover(run, path, "", why=f"{_what_rests(path)}: plait worktrees --clean")
    if asides or not worktrees.is_open():
        return  # with those goes what git lists of them
    for path in worktrees.missing_folders():
        yield Leftover(run, path, "", why=LISTED)


def _iter_entries(folder: str) -> Iterator[str]:
    """All that is in a folder: files, links, empty folders, and those that cannot be read."""
    closed: list[OSError] = []
    for top, folders, files in os.walk(folder, onerror=closed.append):
        yield from files
        yield from (one for one in folders if os.path.islink(os.path.join(top, one)))
        if top != folder and not folders and not files:
            yield top
    yield from (str(error.filename) for error in closed)


def _branches(git: Git) -> Iterator[tuple[str, str]]:
    listed = git.try_run("for-each-ref", "--format=%(refname)%00", OURS)
    for line in names(listed.stdout) if listed.exit_code == 0 else ():
        ref = os.fsdecode(line).strip("\n")
        parts = ref.removeprefix(OURS).split("/")
        if len(parts) == 2:
            yield ref.removeprefix(BRANCHES), parts[0]


def _commits(git: Git, branch: str) -> int | None:
    """How many commits only branches of runs have; None if git cannot tell."""
    known = ("--exclude=plait/*", "--branches", "--remotes")
    counted = git.try_run("rev-list", "--count", f"{BRANCHES}{branch}", "--not", *known)
    if counted.exit_code == 0:
        return int(counted.stdout)
    return 0 if _is_gone(git, branch) else None


def _is_gone(git: Git, branch: str) -> bool:
    return git.try_run("show-ref", "--verify", "--quiet", f"{BRANCHES}{branch}").exit_code == 1
