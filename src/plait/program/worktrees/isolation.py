"""Isolation: each item of a map runs in its own git worktree, or in a folder with copies.

    ground → for each item: worktree → its steps → merge (in the order of the items)
    → for all items: merge

Items start at the same commit. Their commits are merged in item order onto a branch of the run. At
the end that branch is merged into the branch that was checked out. See `merge` for how a merge
survives a crash. Nothing is lost: the work of an item is merged, or its branch and folder stay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from plait.core.errors import InputError, InternalError, ProcessError
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.events import StepInvalidated
from plait.engine.journal import StepRecord
from plait.engine.outcome import (
    Failed,
    Failure,
    Interrupted,
    Outcome,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.perform import StepContext, act, perform
from plait.engine.step import FunctionAction, LeafStep, Step
from plait.program.worktrees.merge import (
    BRANCHES,
    ISOLATION,
    format_files,
    merge_all_step,
    merge_item_step,
    require_worktrees,
    result_mapping,
)
from plait.program.worktrees.ports import (
    RepositoryState,
    Worktree,
    Worktrees,
    WorktreeStatus,
)
from plait.template.sinks import render_text

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.program.step_list import StepList as Steps
    from plait.template.template import Template

Kind: TypeAlias = Literal["directory", "worktree"]
UncommittedPolicy: TypeAlias = Literal["commit", "keep", "fail"]

WAITING: Final = 64
"""The maximum number of completed items that wait for their merge, besides the running ones."""
LOOK: Final = 0.05
"""Seconds between two checks whether the run must stop, while an item waits."""
REPOSITORY_VARIABLES: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_IMPLICIT_WORK_TREE",
    "GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE",
)  # fmt: skip
"""Variables that would let git use another repository than the one of the directory."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The `isolation` of a map."""

    kind: Kind
    base: str = "HEAD"
    uncommitted: UncommittedPolicy = "commit"
    merges: bool = True
    inputs: tuple[Template, ...] = ()
    fingerprint: str = ""
    ends_in_steps: bool = False
    """The flow has merge steps, which merge the collected work."""

    @property
    def collects(self) -> bool:
        return self.kind == "worktree" and self.merges

    def steps(self, each: str) -> tuple[Step, ...]:
        """The extra steps of each item."""
        own = _known_step("worktree", "the item's place", self.fingerprint)
        return (own, _known_step("merge", "merge what the item did", f"{self.fingerprint}{each}"))

    @property
    def around(self) -> tuple[Step, ...]:
        """The extra steps of the map."""
        return (
            (_known_step("merge", "merge what all items did", self.fingerprint),)
            if self.collects
            else ()
        )


# ── the merge queue ──────────────────────────────────────────────────────


class MergeQueue:
    """Limits how many items run at a time, and lets them merge in item order."""

    def __init__(self, parallel: int) -> None:
        self._free = threading.Semaphore(parallel)
        self._changed = threading.Condition()
        self._inside: set[int] = set()
        self._working: set[int] = set()
        self._broken = False

    def enter(self, order: int, run: RunContext) -> bool:
        """Wait for a free slot; False if the run must stop."""
        while not self._free.acquire(timeout=LOOK):
            if run.stop.is_set() or self._broken:
                return False
        with self._changed:
            self._inside.add(order)
            self._working.add(order)
        return True

    def work_again(self, order: int, run: RunContext) -> None:
        """Take a slot again for an item that must run once more."""
        with self._changed:
            if order in self._working or order not in self._inside:
                return
        while not self._free.acquire(timeout=LOOK):
            run.stop.require_unset()
        with self._changed:
            self._working.add(order)

    def has_worked(self, order: int) -> None:
        with self._changed:
            if order in self._working:
                self._working.discard(order)
                self._free.release()

    def wait_for_turn(self, order: int, run: RunContext) -> None:
        with self._changed:
            while order in self._inside and min(self._inside) != order:
                if self._broken:
                    raise Interrupted  # an earlier item has no outcome, so this one cannot merge
                self._changed.wait(LOOK)
                run.stop.require_unset()

    def is_empty(self) -> bool:
        with self._changed:
            return not self._inside

    def leave(self, order: int, *, ended: bool) -> None:
        self.has_worked(order)
        with self._changed:
            self._broken = self._broken or not ended
            self._inside.discard(order)
            self._changed.notify_all()


# ── the worktrees of one map ─────────────────────────────────────────────


class ItemWorktrees:
    """The worktrees of the items of one map while it runs."""

    def __init__(
        self, isolation: Isolation, ctx: StepContext, site: RepositoryState | None, parallel: int
    ) -> None:
        self.isolation = isolation
        self.line = MergeQueue(parallel)
        self.site = site
        self._turn = ctx
        self._counting = threading.Lock()
        self._tidied = False
        """Whether worktrees of earlier attempts were removed in this run attempt."""
        self._spots: dict[str, tuple[Worktree, str | None]] = {}
        """By item path: the worktree to remove once the outcome of the item is recorded, and its
        merged head.
        """

    @property
    def _workspaces(self) -> Worktrees:
        return require_worktrees(self._turn)

    @property
    def run_id(self) -> str:
        return self._turn.run.id

    @property
    def branch(self) -> str:
        """The branch on which the work of the items is collected."""
        return f"plait/{self.run_id}/merged"

    @property
    def target(self) -> str:
        assert self.site is not None
        return self.site.branch

    def threads(self, parallel: int, total: int) -> int:
        """The number of threads: for running items, and for those that wait for their merge."""
        return min(parallel + WAITING, max(total, 1)) if self.isolation.collects else parallel

    # ── one item ─────────────────────────────────────────────────────────

    def perform(self, item: Step, ctx: StepContext, count: Callable[[Outcome], None]) -> Outcome:
        """Perform an item. It leaves the queue when its outcome is recorded and counted.

        So the next item sees the count before it merges: the failure may have stopped the map.
        """
        ended = False
        try:
            outcome = perform(item, ctx)
            with self._counting:
                count(outcome)
            ended = True
        finally:
            self.line.leave(ctx.order, ended=ended)
        self._leave(ctx.path)
        if self.line.is_empty():
            self._workspaces.settle()
        return outcome

    def run_item(self, each: Steps, ctx: StepContext, title: str, key: str) -> Json:
        """Run the steps of an item in its worktree and return their value, with facts about the
        worktree.
        """
        spot, ctx = self._place(ctx, title, key)
        try:
            value = act(each, in_worktree(ctx, spot))
        except StepError as error:
            raise StepError(_with_place(error.failure, spot)) from None
        ctx.run.events.flush_end(ctx.path)
        self.line.has_worked(ctx.order)
        facts = self._finish_item(each, ctx.without_timeout(), spot)
        return {**value, "isolation": facts} if isinstance(value, dict) else value

    def _leave(self, path: str) -> None:
        spot, merged = self._spots.pop(path, (None, None))
        if spot is None:
            return
        self._remove(path, spot, merged)

    def _remove(self, path: str, spot: Worktree, merged: str | None) -> None:
        remains = self._workspaces.remove(spot, merged=merged)
        if remains is not None:
            self._turn.run.events.note(path, remains.message)

    def _place(self, ctx: StepContext, title: str, key: str) -> tuple[Worktree, StepContext]:
        self.line.work_again(ctx.order, ctx.run)
        again = ctx.attempt > 1 or ctx.run.replay.is_retried(ctx.path)
        step = LeafStep(
            "worktree",
            ISOLATION,
            "the item's place",
            self.isolation.fingerprint,
            FunctionAction(lambda ctx: self.add(ctx, title, key, again=again).record()),
        )
        inner = ctx.child(step, order=ctx.order)
        known = ctx.run.replay.find(step, inner) if ctx.attempt == 1 else None
        before = _spot(known)
        if before is not None and self._workspaces.is_there(before):
            self._workspaces.break_locks(before)
            return before, ctx
        if not ctx.run.replay.is_first_run or ctx.attempt > 1:
            self._forget(ctx)
        placed = result_mapping(require_success(perform(step, replace(inner, can_replay=False))))
        spot = Worktree(**placed)
        self._workspaces.publish(spot)
        return spot, replace(ctx, can_replay=False)

    def _forget(self, ctx: StepContext) -> None:
        """Invalidate what was done in an earlier worktree."""
        journal, path = ctx.run.journal, ctx.path
        recorded = journal.last_result(f"{path}/worktree")
        if recorded is not None and (earlier := _spot(recorded.outcome)) is not None:
            self.tidy(earlier, just_left=ctx.attempt > 1)
        if next(iter(journal.steps_in(path)), None) is not None:
            ctx.run.events.emit(StepInvalidated(path, "it begins anew in a new place"))

    def add(self, ctx: StepContext, title: str, key: str, *, again: bool) -> Worktree:
        if self.isolation.kind == "directory":
            inputs = [render_text(one, ctx.scope, strict=True) for one in self.isolation.inputs]
            return self._workspaces.copy(ctx.order, title, key, inputs)
        return self._workspaces.add(ctx.order, title, key, self._base(again=again))

    def _base(self, *, again: bool) -> str:
        """The commit at which a worktree starts. A retry starts with what was merged since."""
        assert self.site is not None
        if again and self.isolation.collects and self.isolation.base == "HEAD":
            return self._workspaces.tip(BRANCHES + self.branch) or self.site.commit
        return self.site.commit

    # ── after the steps ──────────────────────────────────────────────────

    def _finish_item(self, each: Steps, ctx: StepContext, spot: Worktree) -> dict[str, Json]:
        if self.isolation.kind == "directory":
            if self._workspaces.is_unchanged(spot):
                self._spots[ctx.path] = spot, None
                return {"directory": "", "kept": False}
            return {"directory": spot.path, "kept": True}
        look = self._require_committed(ctx, spot, self._workspaces.look(spot))
        facts: dict[str, Json] = {"branch": spot.branch, "base": spot.base, "head": look.head}
        keeps = bool(look.files or look.repositories)
        if look.head == spot.base:
            if not keeps:
                self._spots[ctx.path] = spot, look.head
            return {**facts, "branch": spot.branch if keeps else "", "kept": keeps}
        if self.isolation.merges:
            step = merge_item_step(
                self, spot, look.head, ctx.order, f"{self.isolation.fingerprint}{each.fingerprint}"
            )
            outcome, _ = ctx.perform_next(step, len(each.steps), is_last=True)
            if isinstance(outcome, Failed):
                raise StepError(outcome.failure)
        if not keeps:
            self._spots[ctx.path] = spot, look.head if self.isolation.merges else None
        return {
            **facts,
            "branch": spot.branch if keeps or not self.isolation.merges else "",
            "kept": keeps,
        }

    def _require_committed(
        self, ctx: StepContext, spot: Worktree, look: WorktreeStatus
    ) -> WorktreeStatus:
        """Return the status of a worktree after its branch contains everything that `uncommitted`
        wants.
        """
        if not look.on_branch and not self._workspaces.point(spot, look.head):
            raise _branch_error(spot)
        if not look.files and not look.repositories:
            return look
        if look.unmerged:
            raise StepError(
                _with_place(
                    Failure(f"a merge was begun there and not ended: {format_files(look.files)}"),
                    spot,
                )
            )
        match self.isolation.uncommitted:
            case "commit":
                if look.repositories:
                    what = (
                        "what cannot be committed, being a repository of its own, stays in "
                        f"{spot.path}"
                    )
                    ctx.run.events.note(ctx.path, f"{what}: {format_files(look.repositories)}")
                return self._with_all_committed(spot, look) if look.files else look
            case "fail":
                what = (
                    f"changes were not committed: {format_files((*look.files, *look.repositories))}"
                )
                raise StepError(_with_place(Failure(what, "incomplete", exit_code=1), spot))
            case "keep":
                ctx.run.events.note(
                    ctx.path, f"changes that were not committed stay in {spot.path}"
                )
                return look

    def _with_all_committed(self, spot: Worktree, look: WorktreeStatus) -> WorktreeStatus:
        message = f"{os.path.basename(spot.path)}: what was not committed\n"
        head = self._workspaces.commit(spot, look.files, message)
        if not look.on_branch and not self._workspaces.point(spot, head):
            raise _branch_error(spot)
        return replace(look, head=head, files=())

    def tidy(self, spot: Worktree, *, just_left: bool = False) -> None:
        """Remove the worktree of an abandoned attempt; its branch keeps the work.

        `just_left`: by an attempt of this process, so the worktree is certainly complete.
        """
        if self.isolation.kind == "directory" or not os.path.isdir(spot.path):
            return
        self._tidied = True
        try:
            if not just_left:
                self._workspaces.require_intact(spot)
            self._tidy(spot)
        except (InputError, ProcessError) as error:
            # A problem with one worktree must not fail the run.
            self._turn.run.events.note(self._turn.path, f"{error.what}: {spot.path}")

    def _tidy(self, spot: Worktree) -> None:
        look = self._workspaces.look(spot)
        if look.unmerged or (not look.on_branch and not self._workspaces.point(spot, look.head)):
            return
        if look.files:
            message = f"{os.path.basename(spot.path)}: what an attempt left behind\n"
            self._workspaces.commit(spot, look.files, message)
        if look.repositories:
            return
        is_at_base = not look.files and look.head == spot.base
        self._remove(self._turn.path, spot, look.head if is_at_base else None)

    # ── all items ────────────────────────────────────────────────────────

    def collect(self) -> None:
        """Create the branch on which the work is collected, if it does not exist."""
        if self.isolation.kind == "worktree" and not self._turn.run.replay.is_first_run:
            self._workspaces.break_locks()
            self._leave_meeting()
        if not self.isolation.collects or self._workspaces.tip(BRANCHES + self.branch):
            return
        assert self.site is not None
        begin = self._last_merged() or self.site.commit
        target = self._workspaces.tip(self.target)
        if self._turn.run.replay.is_first_run or not self._workspaces.is_ancestor(begin, target):
            target = begin
        self._workspaces.move(BRANCHES + self.branch, target, "")

    def _leave_meeting(self) -> None:
        """Remove the gather worktree of an earlier run attempt: it lacks the work that follows."""
        if self.isolation.collects and (side := self._workspaces.remove_gather(self.branch)):
            what = "what nobody had committed in the worktree of reduce and merge"
            self._turn.run.events.note(
                self._turn.path, f"{what} is on the branch {side} now: they begin anew"
            )

    def _last_merged(self) -> str:
        """The last commit of the branch of the run, if somebody has deleted the branch."""
        if self._turn.run.replay.is_first_run:
            return ""
        journal, last = self._turn.run.journal, ""
        for item in journal.steps_in(self._turn.path):
            merged = result_mapping(journal.step(f"{item.path}/merge"))
            last = str(merged["new"]) if "new" in merged else last
        return last

    def conclude(self, failed: int) -> dict[str, Json]:
        """After the last item: merge the collected work and remove what is no longer needed."""
        self._tidy_leftovers()
        self._workspaces.settle()
        if not self.isolation.collects:
            return {}
        tip = self._workspaces.tip(BRANCHES + self.branch)
        facts: dict[str, Json] = {"source": self.branch, "target": self.target}
        if self.isolation.ends_in_steps:
            spot = self._workspaces.gather(self.branch)
            since = self._workspaces.tip(self.target)
            self._tell_of_attempts(tip)
            return {
                "isolation": {
                    **facts,
                    "since": since,
                    "worktree": spot.path,
                    "directory": spot.directory,
                }
            }
        step = merge_all_step(self, tip)
        path = f"{self._turn.path}/{step.name}"
        if result_mapping(self._turn.run.journal.step(path)).get("head") not in (None, tip):
            self._turn.run.events.emit(StepInvalidated(path, "more was merged since"))
        merged = require_success(self._turn.perform(step))
        self._tell_of_attempts(tip)
        if not failed:
            self._workspaces.forget_branch(self.branch, tip)
        return {"isolation": {**facts, "merged": merged}}

    def _tell_of_attempts(self, merged: str) -> None:
        """Note unmerged branches of earlier attempts. They are kept: no other branch has their
        commits.
        """
        if self._turn.run.replay.is_first_run and not self._tidied:
            return
        if branches := [
            one for one in self._workspaces.find_unmerged(merged) if not one.startswith(self.branch)
        ]:
            what = (
                "commits of attempts that came to nothing stay on their branches: "
                f"{format_files(branches)}"
            )
            self._turn.run.events.note(
                self._turn.path, f"{what}; git branch -D drops one that you do not need"
            )

    def _tidy_leftovers(self) -> None:
        """Remove worktrees that a crash left behind; those of dead letters stay."""
        if self._turn.run.replay.is_first_run:
            return
        if self.isolation.kind == "directory":
            self._workspaces.prune()
            return
        journal = self._turn.run.journal
        needed = set()
        for item in journal.steps_in(self._turn.path):
            spot = _worktree_from_record(journal.last_result(f"{item.path}/worktree"))
            facts = result_mapping(item).get("isolation")
            kept = not isinstance(facts, dict) or facts.get("kept")
            if spot is not None and kept:
                needed.add(os.path.realpath(spot.path))
        for path in self._workspaces.leftovers():
            if os.path.realpath(path) not in needed and os.path.basename(path) != "merged":
                self._tidy_path(path)
        if self.site is not None:
            tip = self._workspaces.tip(BRANCHES + self.branch) or self.site.commit
            self._workspaces.forget_merged(tip, {self.branch, *map(os.path.basename, needed)})

    def _tidy_path(self, path: str) -> None:
        spot = self._workspaces.spot_at(path)
        if self._workspaces.is_unfinished(path):
            self._remove(self._turn.path, spot, None)
            return
        self._workspaces.break_locks(spot)
        tip = self._workspaces.tip(BRANCHES + spot.branch)
        merged = self._workspaces.is_ancestor(tip, self._workspaces.tip(BRANCHES + self.branch))
        base = tip if (merged or (self.site and tip == self.site.commit)) else ""
        self.tidy(replace(spot, base=base))


class WorktreesByMap(dict[str, ItemWorktrees]):
    """By path of a map: the worktrees of its items. All steps of a run share it."""


def open_item_worktrees(
    isolation: Isolation | None, ctx: StepContext, parallel: int
) -> ItemWorktrees | None:
    """Inspect the repository before the first item, once for all run attempts."""
    if isolation is None:
        return None

    def open_them(ctx: StepContext) -> ItemWorktrees:
        site = None
        if isolation.kind == "worktree":
            ground = require_success(ctx.perform(_ground_step(isolation)))
            site = RepositoryState(**result_mapping(ground))
            require_worktrees(ctx).open(site)
        shelter = ItemWorktrees(isolation, ctx, site, parallel)
        ctx.run.shared(WorktreesByMap)[ctx.path] = shelter
        shelter.collect()
        return shelter

    shown = _describe_isolation(isolation)
    opened = act(FunctionAction(open_them, isolation.kind, shown), ctx)
    return opened if isinstance(opened, ItemWorktrees) else None  # None in a dry run


def _describe_isolation(isolation: Isolation) -> str:
    if isolation.kind == "directory":
        return "each item in a folder of its own"
    merged = "merged back in the order of the items" if isolation.merges else "left on its branch"
    return f"each item in a git worktree of its own, from {isolation.base}; {merged}"


# ── steps ────────────────────────────────────────────────────────────────


def _known_step(name: str, title: str, fingerprint: str) -> Step:
    """A description of a step for `plait show` and `--repeat`; it cannot be performed."""

    def refuse(ctx: StepContext) -> Json:
        raise InternalError(f"{ctx.path} is not performed by this")

    return LeafStep(name, ISOLATION, title, fingerprint, FunctionAction(refuse))


def _ground_step(isolation: Isolation) -> Step:
    """The step that records where all items start and where their work goes."""

    def inspect(ctx: StepContext) -> Json:
        found = require_worktrees(ctx).inspect(isolation.base, needs_branch=isolation.merges)
        return found.record()

    return LeafStep(
        "ground", ISOLATION, "the repository", isolation.fingerprint, FunctionAction(inspect)
    )


# ── helpers ──────────────────────────────────────────────────────────────


def in_worktree(ctx: StepContext, spot: Worktree) -> StepContext:
    """Return the context of steps in a worktree."""
    env = {name: value for name, value in ctx.env.items() if name not in REPOSITORY_VARIABLES}
    return replace(ctx, directory=spot.directory, scope=ctx.scope.at(spot.directory), env=env)


def _with_place(failure: Failure, spot: Worktree) -> Failure:
    place = (
        f"its worktree stays: {spot.path}, branch {spot.branch}"
        if spot.branch
        else f"its folder stays: {spot.path}"
    )
    return replace(failure, message=f"{failure.message}\n{place}")


def _branch_error(spot: Worktree) -> StepError:
    what = (
        "its worktree has left its branch, and the two have gone apart: bring the branch to what "
        "is meant"
    )
    return StepError(_with_place(Failure(what, "incomplete", exit_code=1), spot))


def _spot(outcome: Outcome | None) -> Worktree | None:
    value = outcome.value if isinstance(outcome, Succeeded) else None
    return Worktree(**value) if isinstance(value, dict) and "path" in value else None


def _worktree_from_record(known: StepRecord | None) -> Worktree | None:
    return None if known is None else _spot(known.outcome)
