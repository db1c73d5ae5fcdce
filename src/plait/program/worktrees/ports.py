"""The port for worktrees, which `adapters.git` implements."""

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
    """A repository and the commit at which items start."""

    root: str
    common: str
    """The folder with its refs and objects."""
    prefix: str
    """The path of the project below the root."""
    commit: str
    branch: str
    """The ref that is checked out; empty if HEAD is detached."""

    def record(self) -> dict[str, Json]:
        return {
            name: getattr(self, name) for name in ("root", "common", "prefix", "commit", "branch")
        }


@dataclass(frozen=True, slots=True)
class Worktree:
    """The private checkout of an item."""

    path: str
    directory: str
    """The project folder in it."""
    branch: str
    base: str
    """The commit at which it started."""
    stamps: str = ""
    """For a folder of copies: a fingerprint that shows whether anything has changed."""

    def record(self) -> dict[str, Json]:
        return {
            name: getattr(self, name) for name in ("path", "directory", "branch", "base", "stamps")
        }


@dataclass(frozen=True, slots=True)
class WorktreeStatus:
    """The state of a worktree."""

    head: str
    on_branch: bool
    """Whether its own branch is still checked out."""
    files: tuple[str, ...] = ()
    """Files with uncommitted changes."""
    unmerged: bool = False
    repositories: tuple[str, ...] = ()
    """Nested repositories, which no commit can contain."""


LONGEST_PATH: Final = 400
"""The maximum length of a path in messages."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A worktree that could not be removed, and why."""

    path: str
    cause: Literal["repositories", "closed", "cannot-move", "aside"]
    detail: str = ""
    """The message of the system."""

    @property
    def message(self) -> str:
        path = short_path(self.path)
        match self.cause:
            case "repositories":
                return (
                    f"the folder of an item stays because it contains nested repositories: {path}"
                )
            case "closed":
                return (
                    "the folder of an item stays because a part of it cannot be read and may "
                    f"contain uncommitted changes: {path} ({self.detail}); "
                    "make it readable, then plait worktrees --clean"
                )
            case "cannot-move":
                return (
                    f"the folder of an item stays because it cannot be moved: {path} "
                    f"({self.detail}); "
                    "plait worktrees --clean tries again"
                )
            case "aside":
                return (
                    "the work of an item is merged or on its branch, but its folder could not be "
                    f"removed completely: {path} ({self.detail}); "
                    "plait worktrees --clean tries again, or remove it yourself"
                )


def short_path(path: str) -> str:
    """A path for messages; the middle of a very long one is cut."""
    return (
        path
        if len(path) <= LONGEST_PATH
        else f"{path[: LONGEST_PATH // 2]}…{path[-LONGEST_PATH // 4 :]}"
    )


@dataclass(frozen=True, slots=True)
class Conflict:
    files: tuple[str, ...]


class LocalChangesConflict(Exception):
    """Local changes keep a working tree from being updated; the message is git's."""


class CheckoutFailed(LocalChangesConflict):
    """Files of a working tree cannot be written; the message is git's, with the free space."""


class WorkingTree(Protocol):
    """A working tree of the user."""

    @property
    def path(self) -> str: ...

    def require_can_update(self, old: str, new: str) -> None:
        """Raise LocalChangesConflict if the tree cannot be updated from one commit to the other."""

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Update from one commit to another; `again`: an earlier update may have been interrupted.

        Local changes stay. Raises LocalChangesConflict, or CheckoutFailed if there is no space.
        """


class Worktrees(Protocol):
    """Worktrees, branches and merges of one run. Commits are object ids, refs are full names."""

    def inspect(self, base: str, *, needs_branch: bool) -> RepositoryState:
        """Return the repository; raises InputError if items cannot have worktrees here."""

    def open(self, repository: RepositoryState) -> None:
        """Use a repository that was inspected before."""

    def project_branch(self) -> str:
        """The full ref that is checked out in the project; empty if HEAD is detached."""

    def add(self, order: int, title: str, key: str, commit: str) -> Worktree: ...
    def copy(self, order: int, title: str, key: str, inputs: Sequence[str]) -> Worktree: ...
    def publish(self, worktree: Worktree) -> None:
        """Keep a worktree that is now recorded. Before this call, a copy may be deleted."""

    def gather(self, branch: str) -> Worktree:
        """The gather worktree of a branch."""

    def remove_gather(self, branch: str) -> str:
        """Remove the gather worktree because its branch will move. Return the branch that keeps
        uncommitted changes.
        """

    def is_there(self, worktree: Worktree) -> bool: ...
    def is_unfinished(self, path: str) -> bool:
        """Whether a folder was being created for an item when an earlier run attempt ended."""

    def break_locks(self, worktree: Worktree | None = None) -> None:
        """Remove git locks that processes of an earlier run attempt left: of branches, or of a
        worktree.
        """

    def is_unchanged(self, worktree: Worktree) -> bool: ...
    def status(self, worktree: Worktree) -> WorktreeStatus: ...
    def commit(self, worktree: Worktree, files: Sequence[str], message: str) -> str: ...
    def point(self, worktree: Worktree, head: str) -> bool:
        """Set its branch to the head of the worktree, unless that would lose commits."""

    def require_intact(self, worktree: Worktree) -> None:
        """Raise an error if a worktree may be half removed: its missing files are not deletions of
        an item.
        """

    def remove(self, worktree: Worktree, *, merged: str | None) -> Leftover | None:
        """Remove a worktree, and its branch if that is still at `merged`. Return what could not be
        removed.

        The branch is removed by `settle` at the latest.
        """

    def settle(self) -> None: ...
    def prune(self) -> None:
        """Remove leftovers that are no longer needed. Call it when no item is running."""

    def tip(self, ref: str) -> str: ...
    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref had another value."""

    def forget_branch(self, branch: str, at: str) -> bool:
        """Delete a branch; False if it is checked out somewhere."""

    def forget_merged(self, into: str, spare: Collection[str]) -> None:
        """Delete branches of worktrees that are merged into a commit, except `spare`."""

    def find_unmerged(self, into: str) -> list[str]:
        """Branches of removed worktrees with commits that are not in `into`."""

    def undone(self, old: str, new: str, tip: str) -> list[str]:
        """The files that a commit changes and that a later commit restores."""

    def is_ancestor(self, one: str, other: str) -> bool: ...
    def merge(self, ours: str, theirs: str, message: str) -> str | Conflict: ...
    def lock_tree(self, ref: str, *, mark: str) -> AbstractContextManager[WorkingTree | None]:
        """Lock the working tree in which a branch is checked out, so that its index cannot change."""

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """The `commits` that are in `source` but not in `target`, and the `files` that they change."""

    def leftovers(self) -> list[str]: ...
    def worktree_at(self, path: str) -> Worktree: ...
