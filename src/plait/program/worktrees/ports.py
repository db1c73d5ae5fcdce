"""What steps need of worktrees; `adapters.git` implements it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plait.core.hints import TYPE_CHECKING, Protocol
from plait.core.records import dataclass

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from plait.core.hints import Final, Literal
    from plait.core.values import Json


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """A repository, and where in it items begin."""

    root: str
    common: str
    """The folder of its refs and objects."""
    prefix: str
    """The project, as seen from the root."""
    commit: str
    branch: str
    """The ref that is checked out; empty if none is."""

    def record(self) -> dict[str, Json]:
        return {
            name: getattr(self, name) for name in ("root", "common", "prefix", "commit", "branch")
        }


@dataclass(frozen=True, slots=True)
class Worktree:
    """The place of one item."""

    path: str
    directory: str
    """Where the project is, in it."""
    branch: str
    base: str
    """The commit with which it began."""
    stamps: str = ""
    """Of a folder of copies: what tells whether anything in it has changed."""

    def record(self) -> dict[str, Json]:
        return {
            name: getattr(self, name) for name in ("path", "directory", "branch", "base", "stamps")
        }


@dataclass(frozen=True, slots=True)
class WorktreeStatus:
    """What a worktree holds."""

    head: str
    on_branch: bool
    """Its own branch is still checked out."""
    files: tuple[str, ...] = ()
    """Those with changes that are not committed."""
    unmerged: bool = False
    repositories: tuple[str, ...] = ()
    """Folders that are repositories of their own, and that no commit can hold."""


LONGEST_PATH: Final = 400
"""Characters of a path that people are told."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What stays of a place that was to be removed, and why."""

    path: str
    cause: Literal["repositories", "closed", "cannot-move", "aside"]
    said: str = ""
    """By the system."""

    @property
    def message(self) -> str:
        path = short_path(self.path)
        match self.cause:
            case "repositories":
                return (
                    f"the folder of an item stays, since it holds repositories of its own: {path}"
                )
            case "closed":
                return (
                    "the folder of an item stays, since a part of it cannot be read, and so may "
                    "hold what is "
                    f"not committed: {path} ({self.said}); "
                    "make it readable, then plait worktrees --clean"
                )
            case "cannot-move":
                return (
                    f"the folder of an item stays, since it cannot be moved: {path} ({self.said}); "
                    "plait worktrees --clean tries again"
                )
            case "aside":
                return (
                    "all that an item did is on its branch or merged, but its folder could not be "
                    "wholly "
                    f"removed: {path} ({self.said}); plait worktrees --clean tries again, or "
                    "remove it "
                    "yourself"
                )


def short_path(path: str) -> str:
    """A path for people: of one that is nested without end, how it begins and how it ends."""
    return (
        path
        if len(path) <= LONGEST_PATH
        else f"{path[: LONGEST_PATH // 2]}…{path[-LONGEST_PATH // 4 :]}"
    )


@dataclass(frozen=True, slots=True)
class Conflict:
    files: tuple[str, ...]


class LocalChangesConflict(Exception):
    """A working tree cannot go along, because of what is in it; in git's words."""


class CheckoutFailed(LocalChangesConflict):
    """Files of a working tree cannot be written; in git's words, and how much room there is."""


class WorkingTree(Protocol):
    """A working tree of the user's."""

    @property
    def path(self) -> str: ...

    def require_can_update(self, old: str, new: str) -> None:
        """Raises InTheWay if the tree could not go from one commit to the other."""

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Go from one commit to another; `again`: that was perhaps begun before.

        Local changes stay, or InTheWay; NotWritten if there is no room for it.
        """


class Worktrees(Protocol):
    """Worktrees, branches and merges of one run.  Commits are object ids, refs whole names."""

    def inspect(self, base: str, *, needs_branch: bool) -> RepositoryState:
        """An InputError that says why, if items cannot have worktrees here."""

    def open(self, site: RepositoryState) -> None:
        """Work with a repository that was looked at before."""

    def project_branch(self) -> str:
        """The branch that is checked out where the project is, a whole ref; empty if there is
        none.
        """

    def add(self, order: int, title: str, key: str, commit: str) -> Worktree: ...
    def copy(self, order: int, title: str, key: str, inputs: Sequence[str]) -> Worktree: ...
    def publish(self, spot: Worktree) -> None:
        """A place was recorded, and steps are about to work there; until then nobody keeps a
        copy.
        """

    def gather(self, branch: str) -> Worktree:
        """The worktree of the branch on which everything is collected."""

    def remove_gather(self, branch: str) -> str:
        """Remove it, since its branch moves on without it; the branch that keeps what is not
        committed.
        """

    def is_there(self, spot: Worktree) -> bool: ...
    def is_unfinished(self, path: str) -> bool:
        """A folder that was being made for an item when an earlier life of the run ended."""

    def break_locks(self, spot: Worktree | None = None) -> None:
        """Remove what git processes that died with an earlier life left locked: branches, or a
        place.
        """

    def is_unchanged(self, spot: Worktree) -> bool: ...
    def look(self, spot: Worktree) -> WorktreeStatus: ...
    def commit(self, spot: Worktree, files: Sequence[str], message: str) -> str: ...
    def point(self, spot: Worktree, head: str) -> bool:
        """Let its branch name what a worktree has, unless commits would lose their name by that."""

    def require_intact(self, spot: Worktree) -> None:
        """Raises if a worktree may be half removed: what is missing there is nobody's deletion."""

    def remove(self, spot: Worktree, *, merged: str | None) -> Leftover | None:
        """Remove a place, and its branch if that is still at `merged`; what stays of it, if
        anything.

        The branch is removed at the latest when it is said to `settle`.
        """

    def settle(self) -> None: ...
    def prune(self) -> None:
        """Remove what is left of places that nobody needs; when no item is at work."""

    def tip(self, ref: str) -> str: ...
    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref was somewhere else."""

    def forget_branch(self, branch: str, at: str) -> bool:
        """Remove a branch that is still there; False if somebody has it checked out."""

    def forget_merged(self, into: str, spare: Collection[str]) -> None:
        """Remove the branches of places that add nothing to a commit, but for these."""

    def find_unmerged(self, into: str) -> list[str]:
        """The branches of places that are gone, and that have commits which this one has not."""

    def undone(self, old: str, new: str, tip: str) -> list[str]:
        """The files that one commit changes, and that are at a later one as they were before it."""

    def is_ancestor(self, one: str, other: str) -> bool: ...
    def merge(self, ours: str, theirs: str, message: str) -> str | Conflict: ...
    def lock_tree(self, ref: str, *, mark: str) -> AbstractContextManager[WorkingTree | None]:
        """The working tree in which a branch is checked out; nobody else changes its index
        meanwhile.
        """

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """`commits` that one ref has and another has not, and the `files` that they change."""

    def leftovers(self) -> list[str]: ...
    def spot_at(self, path: str) -> Worktree: ...
