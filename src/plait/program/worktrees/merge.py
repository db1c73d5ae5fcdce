"""Merge the work of items: onto the branch of the run, and from there into the user's branch.

A merge is computed outside of all working trees. First its intent {target, old, new} is recorded,
then the branch moves by compare-and-swap. So a resumed run can see whether the merge has happened.
The working tree of the user's branch stays locked from before the branch moves until the tree is
updated, so that no commit can undo the merge.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.events import StepInvalidated
from plait.engine.journal import StepRecord
from plait.engine.outcome import Failure, StepError, Succeeded, require_success
from plait.engine.paths import INTENT, MERGE, join_path
from plait.engine.perform import StepContext, perform
from plait.engine.step import FunctionAction, LeafStep, Step
from plait.program.worktrees.ports import (
    CheckoutFailed,
    Conflict,
    LocalChangesConflict,
    WorkingTree,
    Worktree,
    Worktrees,
)

if TYPE_CHECKING:
    from plait.program.worktrees.isolation import ItemWorktrees

MOST_NAMED: Final = 20
MOST_MOVES: Final = 20
"""How often a merge is repeated because the branch has moved."""
BRANCHES: Final = "refs/heads/"
ISOLATION: Final = "isolation"
"""The kind of the steps around an item with a worktree."""


def _intent_step(value: dict[str, Json]) -> Step:
    """Records what a merge is about to do."""
    return LeafStep(
        INTENT, ISOLATION, "the intent of the merge", INTENT, FunctionAction(lambda _: value)
    )


def merge_item_step(
    worktrees: ItemWorktrees, worktree: Worktree, head: str, order: int, fingerprint: str
) -> Step:
    """Merge the work of one item onto the branch of the run, after the items before it."""

    def merge(ctx: StepContext) -> Json:
        worktrees.queue.wait_until_first(order, ctx.run)
        message = f"Merge {os.path.basename(worktree.path)}\n"
        return _merge_commit(ctx, BRANCHES + worktrees.branch, head, message, conflict)

    def conflict(files: Sequence[str]) -> Failure:
        path, branch = shlex.quote(worktree.path), worktrees.branch
        return Failure(
            f"its changes conflict with those of earlier items: {format_files(files)}\n"
            f"its branch is {worktree.branch}, its worktree {worktree.path}\n"
            f"continue by hand: cd {path} && git merge {branch}, resolve, git commit; "
            f"then plait retry {worktrees.run_id} --failed",
            "conflict",
            exit_code=1,
        )

    return _merge_step("merge the work of the item", fingerprint, merge)


def merge_all_step(worktrees: ItemWorktrees, head: str) -> Step:
    """Merge the work of all items into the branch that was checked out when the map started."""

    def merge(ctx: StepContext) -> Json:
        message = f"Merge branch '{worktrees.branch}'\n"
        return _merge_commit(
            ctx, worktrees.target, head, message, conflict, tree_failure=tree_failure
        )

    def conflict(files: Sequence[str]) -> Failure:
        what = f"the work of the items conflicts with newer commits on {short(worktrees.target)}"
        message = f"{what}: {format_files(files)}\n{_manual_merge(worktrees)}"
        return Failure(message, "conflict", exit_code=1)

    def tree_failure(error: LocalChangesConflict) -> Failure:
        what = f"the work of the items is not merged into {short(worktrees.target)} yet: {error}\n"
        return Failure(f"{what}{_manual_merge(worktrees)}", "refused", exit_code=1)

    return _merge_step("merge the work of all items", worktrees.isolation.fingerprint, merge)


def _merge_step(title: str, fingerprint: str, merge: Callable[[StepContext], Json]) -> Step:
    return LeafStep(
        MERGE,
        ISOLATION,
        title,
        fingerprint,
        FunctionAction(merge),
        children=(_intent_step({}),),
    )


def _manual_merge(worktrees: ItemWorktrees) -> str:
    merge = f"git merge {worktrees.branch}; then plait resume {worktrees.run_id}"
    return f"all of it is on the branch {worktrees.branch}: {merge}"


# ── one merge ────────────────────────────────────────────────────────────


def _merge_commit(
    ctx: StepContext,
    target: str,
    head: str,
    message: str,
    conflict: Callable[[Sequence[str]], Failure],
    *,
    tree_failure: Callable[[LocalChangesConflict], Failure] | None = None,
) -> Json:
    """Merge a commit into a branch.

    `tree_failure`: makes the failure if the working tree of the user's branch cannot be updated. With
    it, the branch is fast-forwarded if possible, and its working tree is updated. Without it, the
    branch belongs to the run.
    """
    git, is_users = require_worktrees(ctx), tree_failure is not None
    recorded = result_mapping(ctx.run.journal.step(join_path(ctx.path, INTENT)))
    if recorded.get("head") == head and _has_happened(ctx, recorded):
        if is_users and git.tip(target) == recorded["new"]:
            with git.lock_tree(target, mark=ctx.run.id) as tree:
                _update_tree(tree, recorded, again=True)
        elif is_users:
            _note_reverted_files(ctx, recorded)
        return recorded
    for _ in range(MOST_MOVES):
        old = git.tip(target)
        if not old:
            gone = f"the branch {short(target)} no longer exists"
            raise StepError(Failure(f"{gone}: create it, then plait resume {ctx.run.id}"))
        if git.is_ancestor(head, old):
            return {"target": target, "old": old, "new": old, "head": head}
        is_ahead = is_users and git.is_ancestor(old, head)
        new = head if is_ahead else git.merge(old, head, message)
        if isinstance(new, Conflict):
            raise StepError(conflict(new.files))
        intent: dict[str, Json] = {"target": target, "old": old, "new": new, "head": head}
        if (
            _is_moved(ctx, intent)
            if tree_failure is None
            else _is_moved_with_tree(ctx, intent, tree_failure)
        ):
            return intent
    raise StepError(
        Failure(f"the branch {short(target)} moves too often to be merged into; try again later")
    )


def _is_moved_with_tree(
    ctx: StepContext,
    intent: dict[str, Json],
    tree_failure: Callable[[LocalChangesConflict], Failure],
) -> bool:
    """Move a branch and update its working tree, or do neither."""
    with require_worktrees(ctx).lock_tree(str(intent["target"]), mark=ctx.run.id) as tree:
        try:
            if tree is not None:
                tree.require_can_update(str(intent["old"]), str(intent["new"]))
        except LocalChangesConflict as error:
            raise StepError(tree_failure(error)) from None
        if not _is_moved(ctx, intent):
            return False
        _update_tree(tree, intent, again=False)
        return True


def _is_moved(ctx: StepContext, intent: dict[str, Json]) -> bool:
    """Record an intent and move the branch. The intent is invalidated if the branch did not move."""
    git, target, new = require_worktrees(ctx), str(intent["target"]), str(intent["new"])
    step = _intent_step(intent)
    require_success(perform(step, replace(ctx.child(step), can_replay=False)))
    ctx.run.journal.sync()
    try:
        if git.move(target, new, str(intent["old"])):
            return True
    except PlaitError:
        if git.tip(target) == new:
            return True
        ctx.run.events.emit(
            StepInvalidated(join_path(ctx.path, INTENT), "the branch could not be moved")
        )
        raise
    ctx.run.events.emit(
        StepInvalidated(join_path(ctx.path, INTENT), "the branch was moved by another process")
    )
    return False


def _has_happened(ctx: StepContext, intent: Mapping[str, Json]) -> bool:
    """Whether an earlier run attempt completed a recorded intent."""
    git, target = require_worktrees(ctx), str(intent["target"])
    tip = git.tip(target)
    if git.is_ancestor(str(intent["new"]), tip):
        return True
    if tip == intent["old"] or ctx.run.replay.is_repeated(ctx.path):
        return False
    resume = f"plait resume {ctx.run.id}"
    raise InputError(
        f"the branch {short(target)} is neither where a merge ({ctx.path}) began nor where it was "
        "to end, "
        "so it is unknown whether the merge was made and undone",
        fix=f"look at it: git log {short(target)}; then {resume} --repeat {ctx.path} merges "
        f"{str(intent['head'])[:12]} into it, and {resume} --done {ctx.path} leaves it as it is",
        code="once",
    )


def _note_reverted_files(ctx: StepContext, intent: Mapping[str, Json]) -> None:
    """Warn if a commit in a tree that was not updated may have reverted the merge."""
    git, target = require_worktrees(ctx), str(intent["target"])
    new = str(intent["new"])
    if files := git.undone(str(intent["old"]), new, git.tip(target)):
        ctx.run.events.note(
            ctx.path,
            f"{short(target)} has commits after the merge of the items that restore these files: "
            f"{format_files(files)}; if that was not intended: git checkout {new[:12]} -- FILE",
        )


def _update_tree(tree: WorkingTree | None, intent: Mapping[str, Json], *, again: bool) -> None:
    """Update the working tree of a branch that has moved."""
    if tree is None:
        return
    old, new = str(intent["old"]), str(intent["new"])
    branch = short(str(intent["target"]))
    try:
        tree.update(old, new, again=again)
    except CheckoutFailed as error:
        fix = (
            "free some space, then plait resume; its index.lock stays until then to prevent commits"
        )
        raise _stale_tree_error(branch, tree, error, fix) from None
    except LocalChangesConflict as error:
        fix = (
            "if your own changes are the reason, combine both: "
            f"git checkout --detach {old[:12]} && git stash && git checkout {branch} && git stash "
            "pop; "
            "then plait resume"
        )
        raise _stale_tree_error(branch, tree, error, fix) from None


def _stale_tree_error(branch: str, tree: WorkingTree, error: Exception, fix: str) -> StepError:
    what = (
        f"{branch} has the work of the items, but your working tree {tree.path} could not be updated: "
        f"{error}"
    )
    return StepError(Failure(f"{what}\n{fix}", "refused", exit_code=1))


# ── helpers ──────────────────────────────────────────────────────────────


def require_worktrees(ctx: StepContext) -> Worktrees:
    return ctx.run.services.get(Worktrees)


def format_files(files: Sequence[str]) -> str:
    shown = ", ".join(
        name.encode("unicode_escape").decode() if not name.isprintable() else name
        for name in files[:MOST_NAMED]
    )
    return shown if len(files) <= MOST_NAMED else f"{shown} and {len(files) - MOST_NAMED} more"


def short(ref: str) -> str:
    return ref.removeprefix(BRANCHES)


def result_mapping(known: StepRecord | Json) -> dict[str, Json]:
    """The map that a step returned; empty if there is none."""
    if isinstance(known, StepRecord):
        known = known.outcome.value if isinstance(known.outcome, Succeeded) else None
    return dict(known) if isinstance(known, dict) else {}
