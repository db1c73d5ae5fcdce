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
from plait.engine.paths import MERGE, REPOSITORY_STATE, WORKTREE, join_path
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
POLL_SECONDS: Final = 0.05
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

    def item_steps(self, each: str) -> tuple[Step, ...]:
        """The extra steps of each item."""
        own = _step_description(WORKTREE, "the item's worktree", self.fingerprint)
        return (
            own,
            _step_description(MERGE, "merge the work of the item", f"{self.fingerprint}{each}"),
        )

    @property
    def map_steps(self) -> tuple[Step, ...]:
        """The extra steps of the map."""
        return (
            (_step_description(MERGE, "merge the work of all items", self.fingerprint),)
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
        while not self._free.acquire(timeout=POLL_SECONDS):
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
        while not self._free.acquire(timeout=POLL_SECONDS):
            run.stop.require_unset()
        with self._changed:
            self._working.add(order)

    def finish_work(self, order: int) -> None:
        with self._changed:
            if order in self._working:
                self._working.discard(order)
                self._free.release()

    def wait_until_first(self, order: int, run: RunContext) -> None:
        with self._changed:
            while order in self._inside and min(self._inside) != order:
                if self._broken:
                    raise Interrupted  # an earlier item has no outcome, so this one cannot merge
                self._changed.wait(POLL_SECONDS)
                run.stop.require_unset()

    def is_empty(self) -> bool:
        with self._changed:
            return not self._inside

    def leave(self, order: int, *, ended: bool) -> None:
        self.finish_work(order)
        with self._changed:
            self._broken = self._broken or not ended
            self._inside.discard(order)
            self._changed.notify_all()


# ── the worktrees of one map ─────────────────────────────────────────────


class ItemWorktrees:
    """The worktrees of the items of one map while it runs."""

    def __init__(
        self,
        isolation: Isolation,
        ctx: StepContext,
        repository: RepositoryState | None,
        parallel: int,
    ) -> None:
        self.isolation = isolation
        self.queue = MergeQueue(parallel)
        self.repository = repository
        self._ctx = ctx
        self._counting = threading.Lock()
        self._tidied = False
        """Whether worktrees of earlier attempts were removed in this run attempt."""
        self._to_remove: dict[str, tuple[Worktree, str | None]] = {}
        """By item path: the worktree to remove once the outcome of the item is recorded, and its
        merged head.
        """

    @property
    def _git(self) -> Worktrees:
        return require_worktrees(self._ctx)

    @property
    def run_id(self) -> str:
        return self._ctx.run.id

    @property
    def branch(self) -> str:
        """The branch on which the work of the items is collected."""
        return f"plait/{self.run_id}/merged"

    @property
    def target(self) -> str:
        assert self.repository is not None
        return self.repository.branch

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
            self.queue.leave(ctx.order, ended=ended)
        self._remove_if_done(ctx.path)
        if self.queue.is_empty():
            self._git.settle()
        return outcome

    def run_item(self, each: Steps, title: str, key: str, ctx: StepContext) -> Json:
        """Run the steps of an item in its worktree and return their value, with facts about the
        worktree.
        """
        worktree, ctx = self._enter_worktree(ctx, title, key)
        try:
            value = act(each, in_worktree(ctx, worktree))
        except StepError as error:
            raise StepError(_with_worktree_path(error.failure, worktree)) from None
        ctx.run.events.flush_end(ctx.path)
        self.queue.finish_work(ctx.order)
        facts = self._finish_item(each, ctx.without_timeout(), worktree)
        return {**value, "isolation": facts} if isinstance(value, dict) else value

    def _remove_if_done(self, path: str) -> None:
        worktree, merged = self._to_remove.pop(path, (None, None))
        if worktree is None:
            return
        self._remove(path, worktree, merged)

    def _remove(self, path: str, worktree: Worktree, merged: str | None) -> None:
        leftover = self._git.remove(worktree, merged=merged)
        if leftover is not None:
            self._ctx.run.events.note(path, leftover.message)

    def _enter_worktree(
        self, ctx: StepContext, title: str, key: str
    ) -> tuple[Worktree, StepContext]:
        self.queue.work_again(ctx.order, ctx.run)
        again = ctx.attempt > 1 or ctx.path in ctx.run.replay.retried
        step = LeafStep(
            WORKTREE,
            ISOLATION,
            "the item's worktree",
            self.isolation.fingerprint,
            FunctionAction(lambda ctx: self.add(ctx, title, key, again=again).record()),
        )
        inner = ctx.child(step, order=ctx.order)
        known = ctx.run.replay.find(step, inner) if ctx.attempt == 1 else None
        before = _worktree_from_outcome(known)
        if before is not None and self._git.is_there(before):
            self._git.break_locks(before)
            return before, ctx
        if not ctx.run.replay.is_first_run or ctx.attempt > 1:
            self._invalidate_earlier(ctx)
        placed = result_mapping(require_success(perform(step, replace(inner, can_replay=False))))
        worktree = Worktree(**placed)
        self._git.publish(worktree)
        return worktree, replace(ctx, can_replay=False)

    def _invalidate_earlier(self, ctx: StepContext) -> None:
        """Invalidate what was done in an earlier worktree."""
        journal, path = ctx.run.journal, ctx.path
        recorded = journal.last_result(join_path(path, WORKTREE))
        if (
            recorded is not None
            and (earlier := _worktree_from_outcome(recorded.outcome)) is not None
        ):
            self.tidy(earlier, just_left=ctx.attempt > 1)
        if next(iter(journal.steps_in(path)), None) is not None:
            ctx.run.events.emit(StepInvalidated(path, "it starts again in a new worktree"))

    def add(self, ctx: StepContext, title: str, key: str, *, again: bool) -> Worktree:
        if self.isolation.kind == "directory":
            inputs = [render_text(one, ctx.scope, strict=True) for one in self.isolation.inputs]
            return self._git.copy(ctx.order, title, key, inputs)
        return self._git.add(ctx.order, title, key, self._base(again=again))

    def _base(self, *, again: bool) -> str:
        """The commit at which a worktree starts. A retry starts with what was merged since."""
        assert self.repository is not None
        if again and self.isolation.collects and self.isolation.base == "HEAD":
            return self._git.tip(BRANCHES + self.branch) or self.repository.commit
        return self.repository.commit

    # ── after the steps ──────────────────────────────────────────────────

    def _finish_item(self, each: Steps, ctx: StepContext, worktree: Worktree) -> dict[str, Json]:
        if self.isolation.kind == "directory":
            if self._git.is_unchanged(worktree):
                self._to_remove[ctx.path] = worktree, None
                return {"directory": "", "kept": False}
            return {"directory": worktree.path, "kept": True}
        status = self._require_committed(ctx, worktree, self._git.status(worktree))
        facts: dict[str, Json] = {
            "branch": worktree.branch,
            "base": worktree.base,
            "head": status.head,
        }
        keeps = bool(status.files or status.repositories)
        if status.head == worktree.base:
            if not keeps:
                self._to_remove[ctx.path] = worktree, status.head
            return {**facts, "branch": worktree.branch if keeps else "", "kept": keeps}
        if self.isolation.merges:
            step = merge_item_step(
                self,
                worktree,
                status.head,
                ctx.order,
                f"{self.isolation.fingerprint}{each.fingerprint}",
            )
            outcome, _ = ctx.perform_next(step, len(each.steps), is_last=True)
            if isinstance(outcome, Failed):
                raise StepError(outcome.failure)
        if not keeps:
            self._to_remove[ctx.path] = worktree, status.head if self.isolation.merges else None
        return {
            **facts,
            "branch": worktree.branch if keeps or not self.isolation.merges else "",
            "kept": keeps,
        }

    def _require_committed(
        self, ctx: StepContext, worktree: Worktree, status: WorktreeStatus
    ) -> WorktreeStatus:
        """Return the status of a worktree after its branch contains everything that `uncommitted`
        wants.
        """
        if not status.on_branch and not self._git.point(worktree, status.head):
            raise _branch_error(worktree)
        if not status.files and not status.repositories:
            return status
        if status.unmerged:
            raise StepError(
                _with_worktree_path(
                    Failure(
                        f"a merge was started there and not completed: {format_files(status.files)}"
                    ),
                    worktree,
                )
            )
        match self.isolation.uncommitted:
            case "commit":
                if status.repositories:
                    what = f"nested repositories cannot be committed and stay in {worktree.path}"
                    ctx.run.events.note(ctx.path, f"{what}: {format_files(status.repositories)}")
                return self._with_all_committed(worktree, status) if status.files else status
            case "fail":
                what = f"changes were not committed: {format_files((*status.files, *status.repositories))}"
                raise StepError(
                    _with_worktree_path(Failure(what, "incomplete", exit_code=1), worktree)
                )
            case "keep":
                ctx.run.events.note(
                    ctx.path, f"changes that were not committed stay in {worktree.path}"
                )
                return status

    def _with_all_committed(self, worktree: Worktree, status: WorktreeStatus) -> WorktreeStatus:
        message = f"{os.path.basename(worktree.path)}: what was not committed\n"
        head = self._git.commit(worktree, status.files, message)
        if not status.on_branch and not self._git.point(worktree, head):
            raise _branch_error(worktree)
        return replace(status, head=head, files=())

    def tidy(self, worktree: Worktree, *, just_left: bool = False) -> None:
        """Remove the worktree of an abandoned attempt; its branch keeps the work.

        `just_left`: by an attempt of this process, so the worktree is certainly complete.
        """
        if self.isolation.kind == "directory" or not os.path.isdir(worktree.path):
            return
        self._tidied = True
        try:
            if not just_left:
                self._git.require_intact(worktree)
            self._tidy(worktree)
        except (InputError, ProcessError) as error:
            # A problem with one worktree must not fail the run.
            self._ctx.run.events.note(self._ctx.path, f"{error.what}: {worktree.path}")

    def _tidy(self, worktree: Worktree) -> None:
        status = self._git.status(worktree)
        if status.unmerged or (not status.on_branch and not self._git.point(worktree, status.head)):
            return
        if status.files:
            message = f"{os.path.basename(worktree.path)}: what an attempt left behind\n"
            self._git.commit(worktree, status.files, message)
        if status.repositories:
            return
        is_at_base = not status.files and status.head == worktree.base
        self._remove(self._ctx.path, worktree, status.head if is_at_base else None)

    # ── all items ────────────────────────────────────────────────────────

    def create_branch(self) -> None:
        """Create the branch on which the work is collected, if it does not exist."""
        if self.isolation.kind == "worktree" and not self._ctx.run.replay.is_first_run:
            self._git.break_locks()
            self._remove_gather_worktree()
        if not self.isolation.collects or self._git.tip(BRANCHES + self.branch):
            return
        assert self.repository is not None
        begin = self._last_merged() or self.repository.commit
        target = self._git.tip(self.target)
        if self._ctx.run.replay.is_first_run or not self._git.is_ancestor(begin, target):
            target = begin
        self._git.move(BRANCHES + self.branch, target, "")

    def _remove_gather_worktree(self) -> None:
        """Remove the gather worktree of an earlier run attempt: it lacks the work that follows."""
        if self.isolation.collects and (side := self._git.remove_gather(self.branch)):
            what = "uncommitted changes of reduce and merge"
            self._ctx.run.events.note(
                self._ctx.path, f"{what} are on the branch {side} now: both phases start again"
            )

    def _last_merged(self) -> str:
        """The last commit of the branch of the run, if somebody has deleted the branch."""
        if self._ctx.run.replay.is_first_run:
            return ""
        journal, last = self._ctx.run.journal, ""
        for item in journal.steps_in(self._ctx.path):
            merged = result_mapping(journal.step(join_path(item.path, MERGE)))
            last = str(merged["new"]) if "new" in merged else last
        return last

    def conclude(self, failed: int) -> dict[str, Json]:
        """After the last item: merge the collected work and remove what is no longer needed."""
        self._tidy_leftovers()
        self._git.settle()
        if not self.isolation.collects:
            return {}
        tip = self._git.tip(BRANCHES + self.branch)
        facts: dict[str, Json] = {"source": self.branch, "target": self.target}
        if self.isolation.ends_in_steps:
            worktree = self._git.gather(self.branch)
            since = self._git.tip(self.target)
            self._note_unmerged_branches(tip)
            return {
                "isolation": {
                    **facts,
                    "since": since,
                    "worktree": worktree.path,
                    "directory": worktree.directory,
                }
            }
        step = merge_all_step(self, tip)
        path = join_path(self._ctx.path, step.name)
        if result_mapping(self._ctx.run.journal.step(path)).get("head") not in (None, tip):
            self._ctx.run.events.emit(StepInvalidated(path, "more was merged since"))
        merged = require_success(self._ctx.perform(step))
        self._note_unmerged_branches(tip)
        if not failed:
            self._git.forget_branch(self.branch, tip)
        return {"isolation": {**facts, "merged": merged}}

    def _note_unmerged_branches(self, merged: str) -> None:
        """Note unmerged branches of earlier attempts. They are kept: no other branch has their
        commits.
        """
        if self._ctx.run.replay.is_first_run and not self._tidied:
            return
        if branches := [
            one for one in self._git.find_unmerged(merged) if not one.startswith(self.branch)
        ]:
            what = f"commits of failed attempts stay on their branches: {format_files(branches)}"
            self._ctx.run.events.note(
                self._ctx.path, f"{what}; git branch -D drops one that you do not need"
            )

    def _tidy_leftovers(self) -> None:
        """Remove worktrees that a crash left behind; those of dead letters stay."""
        if self._ctx.run.replay.is_first_run:
            return
        if self.isolation.kind == "directory":
            self._git.prune()
            return
        journal = self._ctx.run.journal
        needed = set()
        for item in journal.steps_in(self._ctx.path):
            worktree = _worktree_from_record(journal.last_result(join_path(item.path, WORKTREE)))
            facts = result_mapping(item).get("isolation")
            kept = not isinstance(facts, dict) or facts.get("kept")
            if worktree is not None and kept:
                needed.add(os.path.realpath(worktree.path))
        for path in self._git.leftovers():
            if os.path.realpath(path) not in needed and os.path.basename(path) != "merged":
                self._tidy_path(path)
        if self.repository is not None:
            tip = self._git.tip(BRANCHES + self.branch) or self.repository.commit
            self._git.forget_merged(tip, {self.branch, *map(os.path.basename, needed)})

    def _tidy_path(self, path: str) -> None:
        worktree = self._git.worktree_at(path)
        if self._git.is_unfinished(path):
            self._remove(self._ctx.path, worktree, None)
            return
        self._git.break_locks(worktree)
        tip = self._git.tip(BRANCHES + worktree.branch)
        merged = self._git.is_ancestor(tip, self._git.tip(BRANCHES + self.branch))
        base = tip if (merged or (self.repository and tip == self.repository.commit)) else ""
        self.tidy(replace(worktree, base=base))


class WorktreesByMap(dict[str, ItemWorktrees]):
    """By path of a map: the worktrees of its items. All steps of a run share it."""


def open_item_worktrees(
    isolation: Isolation | None, ctx: StepContext, parallel: int
) -> ItemWorktrees | None:
    """Inspect the repository before the first item, once for all run attempts."""
    if isolation is None:
        return None

    def open_them(ctx: StepContext) -> ItemWorktrees:
        repository = None
        if isolation.kind == "worktree":
            ground = require_success(ctx.perform(_repository_state_step(isolation)))
            repository = RepositoryState(**result_mapping(ground))
            require_worktrees(ctx).open(repository)
        worktrees = ItemWorktrees(isolation, ctx, repository, parallel)
        ctx.run.shared(WorktreesByMap)[ctx.path] = worktrees
        worktrees.create_branch()
        return worktrees

    shown = _describe_isolation(isolation)
    opened = act(FunctionAction(open_them, isolation.kind, shown), ctx)
    return opened if isinstance(opened, ItemWorktrees) else None  # None in a dry run


def _describe_isolation(isolation: Isolation) -> str:
    if isolation.kind == "directory":
        return "each item in its own folder"
    merged = "merged back in the order of the items" if isolation.merges else "left on its branch"
    return f"each item in its own git worktree, from {isolation.base}; {merged}"


# ── steps ────────────────────────────────────────────────────────────────


def _step_description(name: str, title: str, fingerprint: str) -> Step:
    """A description of a step for `plait show` and `--repeat`; it cannot be performed."""

    def refuse(ctx: StepContext) -> Json:
        raise InternalError(f"{ctx.path} cannot be performed")

    return LeafStep(name, ISOLATION, title, fingerprint, FunctionAction(refuse))


def _repository_state_step(isolation: Isolation) -> Step:
    """The step that records where all items start and where their work goes."""

    def inspect(ctx: StepContext) -> Json:
        found = require_worktrees(ctx).inspect(isolation.base, needs_branch=isolation.merges)
        return found.record()

    return LeafStep(
        REPOSITORY_STATE,
        ISOLATION,
        "the repository",
        isolation.fingerprint,
        FunctionAction(inspect),
    )


# ── helpers ──────────────────────────────────────────────────────────────


def in_worktree(ctx: StepContext, worktree: Worktree) -> StepContext:
    """Return the context of steps in a worktree."""
    env = {name: value for name, value in ctx.env.items() if name not in REPOSITORY_VARIABLES}
    return replace(
        ctx, directory=worktree.directory, scope=ctx.scope.at(worktree.directory), env=env
    )


def _with_worktree_path(failure: Failure, worktree: Worktree) -> Failure:
    place = (
        f"its worktree stays: {worktree.path}, branch {worktree.branch}"
        if worktree.branch
        else f"its folder stays: {worktree.path}"
    )
    return replace(failure, message=f"{failure.message}\n{place}")


def _branch_error(worktree: Worktree) -> StepError:
    what = (
        "its worktree is not on its branch, and the two have diverged: "
        "set the branch to the commit that you want"
    )
    return StepError(_with_worktree_path(Failure(what, "incomplete", exit_code=1), worktree))


def _worktree_from_outcome(outcome: Outcome | None) -> Worktree | None:
    value = outcome.value if isinstance(outcome, Succeeded) else None
    return Worktree(**value) if isinstance(value, dict) and "path" in value else None


def _worktree_from_record(known: StepRecord | None) -> Worktree | None:
    return None if known is None else _worktree_from_outcome(known.outcome)
