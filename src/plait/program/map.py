"""`map`: the same steps for many items, several at a time.

Items are written to a file before the first one runs. So their number is known, a resumed run sees
the same items, and memory does not grow with their number. A failed item is a dead letter: it is
recorded, counted and kept until somebody retries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Literal, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import NOT_KNOWN, Json, Unknown, text
from plait.engine.backend import MOST_PARALLEL, Backend, MapRun, WorkItem
from plait.engine.events import ItemsCounted
from plait.engine.outcome import (
    Failed,
    Failure,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import item_name, join_path
from plait.engine.perform import StepContext
from plait.engine.step import (
    DEFAULT_POLICY,
    NO_RETRY,
    Action,
    Composite,
    LeafStep,
    Policy,
    Retry,
    Step,
)
from plait.program.capture import complete_output
from plait.program.map_progress import UNKNOWN_COUNTS, MapProgress, short_names
from plait.program.ports import ItemCounts
from plait.program.step_list import StepList as Steps
from plait.template.compiled import FACTS
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.program.worktrees.isolation import Isolation, ItemWorktrees

OnItemFailure: TypeAlias = Literal["dlq", "retry", "skip", "stop"]


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Pause after several failures in a row: something that all items need may be down."""

    failures: int = 5
    pause: float = 30.0
    successes: int = 3
    """The number of items in a row that must succeed before the breaker closes again."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    on_item_failure: OnItemFailure = "dlq"
    """The effect of a failure after all retries."""
    retry: Retry = NO_RETRY
    max_failures: int | None = None
    """The number of failures after which the map stops."""
    failure_threshold: float | None = None
    """The share of failures above which the map stops, counted from the tenth outcome on."""
    circuit: CircuitBreaker | None = None


class ItemsStep(Step, Protocol):
    """The step that finds the items and writes them to a file; its value says where."""

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:
        """Yield the items in order, except those with a 1 in `without`."""


@dataclass(frozen=True, slots=True)
class Map(Composite):
    name: str
    items: ItemsStep
    steps: Steps
    fingerprint: str
    title: str = "map"
    parallel: int | Template = 10
    item_timeout: float | None = None
    errors: ErrorPolicy = ErrorPolicy()
    policy: Policy = DEFAULT_POLICY
    kind: str = "map"
    isolation: Isolation | None = None
    """None: all items use the directory of the flow."""
    expects_all: bool = False
    """If any item fails, the map fails after all items. Resume then retries the failed ones."""
    item_policy: Policy = field(default=DEFAULT_POLICY, init=False)

    def __post_init__(self) -> None:
        failing = self.errors.on_item_failure
        policy = Policy(
            retry=self.errors.retry,
            timeout=self.item_timeout,
            # With `stop`, a failed item is not a dead letter: resume retries it.
            keep_failure=failing != "stop" and not self.expects_all,
            skip_on_failure=failing == "skip",
        )
        object.__setattr__(self, "item_policy", policy)

    @property
    def children(self) -> Sequence[Step]:
        map_steps = () if self.isolation is None else self.isolation.map_steps
        return [self.items, self.item_step("*", "each item", self.isolation), *map_steps]

    def item_step(
        self, key: str, title: str, isolation: Isolation | None = None, run: Action | None = None
    ) -> Steps | LeafStep:
        """The steps for one item; `run`: the action that performs them in a worktree."""
        name, each = item_name(key), self.steps
        if isolation is None:
            return Steps(name, each.steps, each.fingerprint, "item", title, self.item_policy)
        children = (*each.steps, *isolation.item_steps(each.fingerprint))
        about = name, "item", title, each.fingerprint
        return LeafStep(*about, run or each, self.item_policy, children)

    def is_plain_in(self, ctx: StepContext) -> bool:
        """Do its items wait only for processes, so that one thread can perform them all?"""
        errors = self.errors
        has_waits = (
            errors.retry.attempts > 1 or errors.circuit or self.item_timeout or self.isolation
        )
        return not has_waits and all(
            hasattr(step, "is_plain_in") and step.is_plain_in(ctx) for step in self.steps.steps
        )

    def run(self, ctx: StepContext) -> Json:
        found, ctx = ctx.perform_next(self.items, 0)
        value = require_success(found)
        if isinstance(value, Unknown):
            return self._plan_items(ctx)
        total = _count(value)
        ctx.run.events.emit(ItemsCounted(ctx.path, total))
        parallel = self._parallel(ctx)
        worktrees = self._open_worktrees(ctx, parallel)
        progress = MapProgress(self, ctx, total, worktrees)
        # there would be too many nested maps, and no view shows their counts
        if "/" not in ctx.path:
            ctx.run.shared(ItemCounts)[ctx.path] = progress.counts
        progress.stop_if_failed_before()
        done = progress.replay_many()
        work = self.items.read(value, ctx, without=done) if total else iter(())
        backend: Backend = ctx.run.backend
        if worktrees is not None:
            parallel = worktrees.threads(parallel, total)
        # Worktrees exist only on this machine, so their items run here.
        backend.run(
            progress.wanted_items(work),
            progress.perform,
            progress.finish_item,
            parallel=parallel,
            map_run=progress if worktrees is None else None,
        )
        ctx.run.stop.require_unset()
        progress.require_not_stopped()
        if self.expects_all and progress.failed and not progress.shows_all:
            what = f"{progress.failed} of {total} items failed"
            raise StepError(Failure(what, path=ctx.path, output=progress.counts()))
        return (
            progress.counts()
            if worktrees is None
            else progress.counts() | worktrees.conclude(progress.failed)
        )

    def _open_worktrees(self, ctx: StepContext, parallel: int) -> ItemWorktrees | None:
        if self.isolation is None:
            return None
        from plait.program.worktrees.isolation import open_item_worktrees

        return open_item_worktrees(self.isolation, ctx, parallel)

    def _plan_items(self, ctx: StepContext) -> Json:
        """In a dry run with unknown items: plan the steps once, with unknown variables."""
        # The variables of an outer item must not look like those of this item.
        unknown = ("item", "item_index", "item_total", "item_id", *short_names(ctx.scope))
        names: dict[str, Json] = {**dict.fromkeys(unknown, NOT_KNOWN), f"item{FACTS}": None}
        scope = ctx.scope.frame("item", phase=names)
        require_success(ctx.perform(self.item_step("*", "each item"), scope=scope))
        return {**UNKNOWN_COUNTS, "failed": 0}

    def _parallel(self, ctx: StepContext) -> int:
        if isinstance(self.parallel, int):
            return self.parallel
        from plait.program.git_changes import scope_outside_steps

        rendered = self.parallel.render(scope_outside_steps(ctx))
        if isinstance(rendered, Unknown):
            return 1
        number = text(rendered).strip()
        if number.isdecimal() and 0 < int(number) <= MOST_PARALLEL:
            return int(number)
        raise InputError(
            f"max_parallel is a number from 1 to {MOST_PARALLEL}",
            self.parallel.leaf.source.outer_span(0, len(self.parallel.leaf.source.text)),
            "check the value of its variable",
            code="wrong-type",
        )


def remote_map_run(map_step: Map, ctx: StepContext, total: int) -> MapRun:
    """A map on a worker: it performs single items and does not count them."""
    return MapProgress(map_step, ctx, total, None)


def _count(value: Json) -> int:
    count = value.get("count") if isinstance(value, dict) else 0
    return count if isinstance(count, int) else 0


def item_results(ctx: StepContext, items: Iterator[WorkItem]) -> Iterator[dict[str, Json]]:
    """Yield the result of each item in item order, failed ones included."""
    recorded = ctx.run.journal.steps_in(ctx.path)
    known = next(recorded, None)
    for work in items:
        path = join_path(ctx.path, item_name(work.key))
        # The step that found the items has an order, too.
        while known is not None and (
            known.order < work.order or (known.order == work.order and known.path != path)
        ):
            known = next(recorded, None)
        if known is None:
            return
        if known.path == path:
            yield _result(work, known.outcome)


def _result(work: WorkItem, outcome: Outcome) -> dict[str, Json]:
    result: dict[str, Json] = {"item_id": work.key, "index": work.order, "item": work.item}
    match outcome:
        case Succeeded(value):
            inner = value if isinstance(value, dict) else {}
            return {
                **result,
                "status": "success",
                "output": complete_output(inner),
                "captures": _plain(inner),
                "error": None,
            }
        case Failed(failure):
            ended = failure.as_result()
            return {
                **result,
                "status": "failed",
                "output": complete_output(ended),
                "captures": _plain(ended),
                "error": failure.message,
                "exit_code": failure.exit_code,
            }
        case Skipped(why):
            return {**result, "status": "skipped", "output": None, "captures": {}, "error": why}


def _plain(value: dict[str, Json]) -> dict[str, Json]:
    captures = value.get("captures")
    if not isinstance(captures, dict):
        return {}
    return {name: captured for name, captured in captures.items() if not name.endswith(FACTS)}
