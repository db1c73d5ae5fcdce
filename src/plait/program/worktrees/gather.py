"""The directory of reduce and merge steps after a map with worktrees.

With merge steps, both phases use a gather worktree of the run that contains the work of all items.
Without them, the work is already in the user's branch, and reduce runs in the project. It starts
only if the project is still on that branch.
"""

from __future__ import annotations

import shlex
from functools import partial

from plait.core.errors import InputError, ProcessError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.outcome import Succeeded
from plait.engine.paths import REPOSITORY_STATE, is_below, join_path
from plait.engine.perform import StepContext, act
from plait.engine.step import FunctionAction, Step
from plait.program.worktrees.isolation import WorktreesByMap, in_worktree
from plait.program.worktrees.merge import (
    BRANCHES,
    format_files,
    require_worktrees,
    result_mapping,
    short,
)
from plait.program.worktrees.ports import (
    RepositoryState,
    Worktree,
    Worktrees,
    WorktreeStatus,
)

if TYPE_CHECKING:
    from plait.program.map import Map


@dataclass(frozen=True, slots=True)
class GatherWorktree:
    """A worktree with the work of all items, and its target branch."""

    worktree: Worktree
    target: str
    """A full ref."""
    since: str = ""
    """The commit of the target when the items had ended."""
    is_awaited: bool = False
    """Some items failed, and a person may merge them by hand later."""

    def names(self, git: Worktrees) -> dict[str, Json]:
        """The git fields of `merge.*`."""
        return {
            "worktree": self.worktree.path,
            "source_branch": self.worktree.branch,
            "target_branch": short(self.target),
            **git.facts(self.since or self.target, BRANCHES + self.worktree.branch),
        }


class GatherState:
    """The gather worktree of a run. All steps share it."""

    def __init__(self) -> None:
        self.worktree: GatherWorktree | None = None


def context_after_map(ctx: StepContext, map_step: Map, value: Json) -> StepContext:
    """Return the context after the map: in the gather worktree, if the flow has merge steps."""
    if "worktree" not in _facts(value):
        return ctx
    after = act(FunctionAction(partial(_enter_gather_worktree, map_step, value)), ctx)
    return after if isinstance(after, StepContext) else ctx  # a dry run creates no worktree


def _enter_gather_worktree(map_step: Map, value: Json, ctx: StepContext) -> StepContext:
    run, facts = ctx.run, _facts(value)
    if map_step.name not in run.shared(WorktreesByMap):  # the map was replayed
        require_worktrees(ctx).open(
            RepositoryState(
                **result_mapping(run.journal.step(join_path(map_step.name, REPOSITORY_STATE)))
            )
        )
    source = str(facts["source"])
    merge = run.journal.step("merge")
    if (
        not require_worktrees(ctx).tip(BRANCHES + source)
        and merge
        and isinstance(merge.outcome, Succeeded)
    ):
        return ctx  # everything is merged and the branch is deleted
    worktree = require_worktrees(ctx).gather(source)
    failed = value.get("failed") if isinstance(value, dict) else None
    since = str(facts.get("since", ""))
    run.shared(GatherState).worktree = GatherWorktree(
        worktree, str(facts["target"]), since, is_awaited=bool(failed)
    )
    return in_worktree(ctx, worktree)


def require_target_branch(ctx: StepContext, value: Json, reduce: Step) -> None:
    act(FunctionAction(partial(_require_target_branch, value, reduce)), ctx)


def _require_target_branch(value: Json, reduce: Step, ctx: StepContext) -> None:
    """Raise InputError if reduce would start in a project that has left the target branch.

    If reduce had already started, it continues with a note: it may have left the branch itself.
    """
    target, path = str(_facts(value).get("target", "")), ctx.child(reduce).path
    if "merged" not in _facts(value) or _is_done(ctx, path):
        return
    now = require_worktrees(ctx).project_branch()
    if now == target:
        return
    at = f"the branch {short(now)}" if now else "no branch (detached HEAD)"
    where = f"the project is at {at}, but the work of the items was merged into {short(target)}"
    if _has_begun(ctx, path):
        ctx.run.events.note(path, f"{where}: reduce continues there because it had started")
        return
    raise InputError(
        f"{where}: reduce does not start on another branch",
        ctx.directory,
        f"git switch {shlex.quote(short(target))}; then plait resume {ctx.run.id}",
        code="other-branch",
    )


def _is_done(ctx: StepContext, path: str) -> bool:
    """Did an earlier run attempt complete it after everything before it?"""
    record = (
        ctx.run.journal.step(path) if ctx.can_replay and not ctx.run.replay.is_first_run else None
    )
    return (
        record is not None
        and record.number > ctx.replay_after
        and isinstance(record.outcome, Succeeded)
    )


def _has_begun(ctx: StepContext, path: str) -> bool:
    """Whether an earlier run attempt started any of its steps."""
    journal = ctx.run.journal
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return False
    ended = any(record.number > ctx.replay_after for record in journal.steps_in(path))
    return ended or any(is_below(begun, path) for begun in journal.find_unfinished())


def close_gather_worktree(ctx: StepContext) -> None:
    act(FunctionAction(_close_gather_worktree), ctx)


def _close_gather_worktree(ctx: StepContext) -> None:
    """Remove the gather worktree after the merge steps, unless something in it is not merged."""
    git = require_worktrees(ctx)
    gather = ctx.run.shared(GatherState).worktree
    if gather is None or not git.is_there(gather.worktree):
        return
    worktree = gather.worktree
    try:
        status = git.status(worktree)
    except (InputError, ProcessError) as error:
        ctx.run.events.note("merge", f"{error.what}: {worktree.path}")
        return
    if reasons := _reasons_to_stay(status, gather, git):
        kept = f"the branch {worktree.branch} stays, and its worktree {worktree.path}"
        ctx.run.events.note("merge", f"{', and '.join(reasons)}: {kept}")
        return
    leftover = git.remove(worktree, merged=None if gather.is_awaited else status.head)
    if leftover is not None:
        ctx.run.events.note("merge", leftover.message)
    git.settle()


def _reasons_to_stay(status: WorktreeStatus, gather: GatherWorktree, git: Worktrees) -> list[str]:
    reasons = []
    if not git.is_ancestor(status.head, gather.target):
        reasons.append(
            f"the merge steps have not merged all of {gather.worktree.branch} into "
            f"{short(gather.target)}"
        )
    if left := (*status.files, *status.repositories):
        reasons.append(f"these files are not committed: {format_files(left)}")
    return reasons


def _facts(value: Json) -> dict[str, Json]:
    """What a map recorded about its gather worktree."""
    return result_mapping(value.get("isolation")) if isinstance(value, dict) else {}
