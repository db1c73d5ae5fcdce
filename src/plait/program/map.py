"""`map` and `foreach`: the same steps for many items, several at a time.

Items are written to a file before the first one runs. So their number is known, a resumed run sees
the same items, and memory does not grow with their number. A failed item is a dead letter: it is
recorded, counted and kept until somebody retries it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial

from plait.core.errors import InputError, JournalError, PlaitError
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import NOT_KNOWN, Json, Unknown, deep_copy, text
from plait.engine.backend import MOST_PARALLEL, Backend, MapRun, WorkItem
from plait.engine.coroutines import Order, finish
from plait.engine.events import ItemsCounted, ItemsReplayed, StepFinished
from plait.engine.journal import in_bitmap
from plait.engine.outcome import (
    TOO_MANY,
    Failed,
    Failure,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import ANY_ITEM, EACH, ITEMS, is_item, item_name, join_path
from plait.engine.perform import StepContext, act, add_failure, perform_new_async
from plait.engine.replay import items_selected_at
from plait.engine.step import (
    DEFAULT_POLICY,
    NO_RETRY,
    Action,
    Composite,
    FunctionAction,
    LeafStep,
    Policy,
    Retry,
    Step,
)
from plait.engine.unknown_results import UNKNOWN_RESULT, is_unknown_result
from plait.program.actions.shell import ShellAction
from plait.program.capture import complete_output, require_complete_output
from plait.program.item_list import OnEmpty, check_not_empty, item_title
from plait.program.ports import ItemCounts, Tracking
from plait.program.step_list import StepList as Steps
from plait.scope import Scope
from plait.template.compiled import FACTS
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.program.worktrees.isolation import Isolation, ItemWorktrees

FEW: int = 10
"""`failure_threshold` applies only after so many items have an outcome."""

OnItemFailure: TypeAlias = Literal["dlq", "retry", "skip", "stop"]


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Pause after several failures in a row: something that all items need may be down."""

    failures: int = 5
    pause: float = 30.0
    successes: int = 3
    """So many items must succeed in a row before the breaker closes again."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    on_item_failure: OnItemFailure = "dlq"
    """What a failure means after all retries."""
    retry: Retry = NO_RETRY
    max_failures: int | None = None
    """Stop after so many failures."""
    failure_threshold: float | None = None
    """Stop if a larger share fails, counted from the tenth outcome on."""
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
        """Whether its items wait for nothing but processes, so one thread can perform them all."""
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
        progress = _MapProgress(self, ctx, total, worktrees)
        if "/" not in ctx.path:  # nested maps would be too many, and no view shows their counts
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
        unknown = ("item", "item_index", "item_total", "item_id", *_short_names(ctx.scope))
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


MANY = 10_000
"""For more items than this, replayed outcomes are read all at once."""


def remote_map_run(map_step: Map, ctx: StepContext, total: int) -> MapRun:
    """A map on a worker: it performs single items and does not count them."""
    return _MapProgress(map_step, ctx, total, None)


def _short_names(scope: Scope) -> frozenset[str]:
    """The short variables of an item that the author has not defined otherwise."""
    known = {name: scope.origin(name) for name in ("index", "total")}
    return frozenset(name for name, one in known.items() if one is None or one.frame == "item")


def _aliases(scope: Scope) -> dict[str, str]:
    """Deprecated variables of an item that are also defined in the head of the flow: the item wins."""
    from plait.scope.frames import ALIASES

    origins = {alias: scope.origin(alias) for alias in ALIASES}
    return {
        alias: ALIASES[alias]
        for alias, one in origins.items()
        if one is not None and one.level == "env"
    }


def _shares_thread(map_step: Map, ctx: StepContext) -> bool:
    """Whether one thread can perform all items of a map in this run."""
    run = ctx.run
    return (
        run.plan_log is None
        and run.hooks.is_empty
        and map_step.is_plain_in(ctx)
        and run.budgets.time_left(ctx) is None
        and not run.shared(Tracking).is_on
    )


class _MapProgress:
    """Counts the outcomes of items and decides whether more items start."""

    def __init__(
        self, map_step: Map, ctx: StepContext, total: int, worktrees: ItemWorktrees | None
    ) -> None:
        self.map = map_step
        self.worktrees = worktrees
        self.ctx = ctx
        self.shows_all = ctx.run.plan_log is not None
        """A dry run shows every item, also those that a run would not reach."""
        self.shares_thread = _shares_thread(map_step, ctx)
        self._shared_ctx = ctx
        """For items that share one thread: it keeps their events until `commit`."""
        if self.shares_thread:
            self._batch = ctx.run.events.batch()
            self._shared_ctx = replace(ctx, run=replace(ctx.run, events=self._batch))
        self._short = _short_names(ctx.scope)
        self._aliases = _aliases(ctx.scope)
        self.total = total
        self.successful = self.failed = self.skipped = 0
        self.failures_in_a_row = 0
        self.successes_to_close = 0
        self.paused_until = 0.0
        self.stop_failure: Failure | None = None
        self._replayed: set[int] = set()
        """The order of items whose outcome was replayed and is not counted yet."""

    def stop_if_failed_before(self) -> None:
        """Start nothing if earlier run attempts already reached `max_failures`."""
        run, most = self.ctx.run, self.map.errors.max_failures
        if most is None or run.replay.is_first_run or not self.ctx.can_replay or self.shows_all:
            return
        text = self.map.steps.fingerprint
        after = max(
            self.ctx.replay_after,
            items_selected_at(run.journal, self.ctx.path, self.map.items.name),
        )
        stay_failed = sum(
            run.replay.has_text(known, text)
            for known in run.journal.failures_in(self.ctx.path, after=after)
            if is_item(known.path)
        )
        if stay_failed >= most:
            self._stop(_too_many(stay_failed, most), TOO_MANY)

    def replay_many(self) -> bytes:
        """Return a bitmap by order: 1 for items that earlier run attempts completed, so they are
        not visited.
        """
        run = self.ctx.run
        if self.total < MANY or run.replay.is_first_run or self.shows_all:
            return b""
        if not self.ctx.can_replay or self.worktrees is not None:
            return b""
        if run.hooks.has("item_finished"):
            return b""  # a hook may still have to see an item
        path, present = self.ctx.path, self.map.steps.fingerprint
        texts = run.replay.text.fingerprints(join_path(path, ANY_ITEM), present)
        done = run.journal.completed_items(path, texts, after=self.ctx.replay_after)[: self.total]
        self.successful = done.count(1)
        run.events.notify(ItemsReplayed(self.ctx.path, done))
        return done

    def wanted_items(self, work: Iterator[WorkItem]) -> Iterator[WorkItem]:
        for item in work:
            if not self._is_wanted():
                return
            if self.worktrees is not None:
                queue = self.worktrees.queue
                if not queue.enter(item.order, self.ctx.run):
                    return
                if not self._is_wanted():  # another item failed while this one waited
                    queue.leave(item.order, ended=True)
                    return
            yield item

    def _is_wanted(self) -> bool:
        """Wait until a pause is over, then say whether another item starts."""
        while (left := self._pause_left()) > 0:
            self.ctx.run.stop.pause(left)
        return (self.stop_failure is None or self.shows_all) and not self.ctx.run.stop.is_set()

    def _pause_left(self) -> float:
        """Seconds, at most the time that is left: the next item then fails with a timeout."""
        rest = self.paused_until - time.monotonic()
        if rest <= 0:
            return 0.0
        left = self.ctx.run.budgets.time_left(self.ctx)
        return rest if left is None else min(rest, left)

    def perform(self, work: WorkItem) -> Outcome:
        if self.worktrees is None:
            return finish(self._perform(*self.item_step(work), work))
        item, ctx = self.item_step(work)
        return self.worktrees.perform(item, ctx, partial(self._count, work))

    def perform_async(self, work: WorkItem) -> Coroutine[Order, Any, Outcome]:
        return self._perform(*self._item_step(work, self._shared_ctx), work)

    async def _perform(self, item: Step, ctx: StepContext, work: WorkItem) -> Outcome:
        known = ctx.run.replay.find(item, ctx)
        if known is None:
            return await perform_new_async(item, ctx)
        self._replayed.add(work.order)
        return known

    def commit(self) -> None:
        """Record the events of items that share a thread."""
        try:
            self._batch.commit()
        except JournalError as error:
            for event in reversed(self._batch.unrecorded):
                if (
                    isinstance(event, StepFinished)
                    and isinstance(event.outcome, Failed)
                    and is_item(event.path)
                ):
                    policy, run, failure = (
                        self.map.item_policy,
                        self.ctx.run.id,
                        event.outcome.failure,
                    )
                    raise add_failure(error, policy, run, event.title, failure) from None
            raise

    def item_step(self, work: WorkItem) -> tuple[Steps | LeafStep, StepContext]:
        """The step of an item and its context."""
        return self._item_step(work, self.ctx)

    def _item_step(
        self, work: WorkItem, around: StepContext
    ) -> tuple[Steps | LeafStep, StepContext]:
        title = self.ctx.run.secrets.mask(item_title(work.item))
        if self.worktrees is None:
            item = self.map.item_step(work.key, title)
        else:
            run = partial(self.worktrees.run_item, self.map.steps, title, work.key)
            item = self.map.item_step(work.key, title, self.map.isolation, FunctionAction(run))
        scope = self.ctx.scope.frame("item", phase=self._names(work))
        return item, around.child(item, scope=scope, order=work.order)

    def _names(self, work: WorkItem) -> dict[str, Json]:
        names: dict[str, Json] = {
            "item": work.item,
            "item_index": work.order,
            "item_total": self.total,
            "item_id": work.key,
        }
        if "index" in self._short:
            names["index"] = work.order
        if "total" in self._short:
            names["total"] = self.total
        for alias, key in self._aliases.items():
            if not isinstance(work.item, dict):
                names[alias] = work.item
            elif key in work.item:
                names[alias] = work.item[key]
        if not isinstance(work.item, dict):
            names["item" + FACTS] = {"value": work.item, "path": work.item}
        return names

    def finish_item(self, work: WorkItem, outcome: Outcome) -> None:
        if self.worktrees is None:  # else it was counted before it left the queue
            self._count(work, outcome)

    def _count(self, work: WorkItem, outcome: Outcome) -> None:
        is_new = work.order not in self._replayed
        match outcome:
            case Succeeded():
                self.successful += 1
                if is_new:
                    self.failures_in_a_row = 0
                    self.successes_to_close = max(0, self.successes_to_close - 1)
            case Skipped():
                self.skipped += 1
            case Failed():
                self.failed += 1
                self._check_failure(work)
                if is_new:
                    self.failures_in_a_row += 1
                    self._check_circuit()
        self._replayed.discard(work.order)
        threshold = self.map.errors.failure_threshold
        if threshold is not None:
            ended = self.successful + self.failed + self.skipped
            if ended >= FEW and self.failed / ended > threshold:
                share = f"{self.failed} of {ended} items failed"
                self._stop(f"{share}, more than failure_threshold allows", TOO_MANY)

    def _check_failure(self, work: WorkItem) -> None:
        errors = self.map.errors
        if errors.on_item_failure == "stop":
            self._stop(
                f"item {item_title(work.item)} failed, and the flow stops at the first failure"
            )
        elif errors.max_failures is not None and self.failed >= errors.max_failures:
            self._stop(_too_many(self.failed, errors.max_failures), TOO_MANY)

    def _check_circuit(self) -> None:
        circuit = self.map.errors.circuit
        if circuit is not None and self.failures_in_a_row >= (
            1 if self.successes_to_close else circuit.failures
        ):
            self.paused_until = time.monotonic() + circuit.pause
            why = "1 failure" if circuit.failures == 1 else f"{circuit.failures} failures in a row"
            if self.successes_to_close:
                why = "another failure after a pause"
            self.successes_to_close, self.failures_in_a_row = circuit.successes, 0
            self.ctx.run.events.note(self.ctx.path, f"{why}: no new items for {circuit.pause:g} s")

    def _stop(self, why: str, kind: str = "stopped") -> None:
        self.stop_failure = self.stop_failure or Failure(
            self.ctx.run.secrets.mask(why), kind, path=self.ctx.path
        )

    def require_not_stopped(self) -> None:
        if self.stop_failure is not None:
            self._count_recorded()
            raise StepError(replace(self.stop_failure, output=self.counts()))

    def _count_recorded(self) -> None:
        """Count the recorded outcomes of items that this run attempt did not reach."""
        run = self.ctx.run
        if run.replay.is_first_run:
            return
        chosen = items_selected_at(run.journal, self.ctx.path, self.map.items.name)
        ended = Counter(
            type(known.outcome)
            for known in run.journal.steps_in(self.ctx.path)
            if is_item(known.path) and known.number > chosen
        )
        self.successful, self.failed, self.skipped = ended[Succeeded], ended[Failed], ended[Skipped]

    def counts(self) -> dict[str, Json]:
        if self.shows_all:  # only a run knows which of the others succeed
            return {**UNKNOWN_COUNTS, "total": self.total, "failed": self.failed}
        return {
            "total": self.total,
            "successful": self.successful,
            "failed": self.failed,
            "skipped": self.skipped,
            "success_rate": round(100 * self.successful / self.total, 2) if self.total else 0,
        }


UNKNOWN_COUNTS: Final[Mapping[str, Json]] = dict.fromkeys(
    ("total", "successful", "failed", "skipped", "success_rate"), NOT_KNOWN
)
"""The value of a map whose items only a run knows."""


def has_unknown_counts(value: Json) -> bool:
    """Is this the value of a map that was planned?"""
    return isinstance(value, dict) and isinstance(value.get("successful"), Unknown)


def _too_many(failed: int, most: int) -> str:
    return f"{failed} item{'' if failed == 1 else 's'} failed, and max_failures is {most}"


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


PARALLEL: Final = 10
"""The meaning of `parallel: true`."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A list of templates, or one template whose value is a list or text with one item per line."""

    template: Template
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CommandSource:
    """Shell text that prints one item per line."""

    script: Template
    shell: Literal["sh", "dash", "bash"] = "sh"
    strict: bool = False


Source: TypeAlias = ValueSource | CommandSource


def foreach(
    source: Source,
    each: Steps,
    *,
    fingerprint: str,
    items_fingerprint: str,
    title: str = "foreach",
    parallel: bool | int | Template = False,
    max_items: int | None = None,
    continue_on_error: bool = False,
    item_timeout: float | None = None,
    on_empty: OnEmpty = "warn",
) -> ForeachAction:
    """The action of a `foreach:` step; `items_fingerprint` covers the source of the items."""
    if isinstance(parallel, bool):
        parallel = PARALLEL if parallel else 1
    return ForeachAction(
        Map(
            name=EACH,
            items=ListItems(source, items_fingerprint, max_items, on_empty),
            steps=each,
            fingerprint=fingerprint,
            title=title,
            parallel=parallel,
            item_timeout=item_timeout,
            errors=ErrorPolicy(on_item_failure="dlq" if continue_on_error else "stop"),
        )
    )


@dataclass(frozen=True, slots=True)
class ForeachAction(Composite):
    map: Map

    @property
    def children(self) -> Sequence[Step]:
        return (self.map,)

    def run(self, ctx: StepContext) -> dict[str, Json]:
        began = time.monotonic()
        outcome = ctx.perform(self.map)
        if isinstance(outcome, Succeeded) and has_unknown_counts(outcome.value):
            return _plan_result(outcome.value, ctx)
        found = list(self._results(ctx))
        record: dict[str, Json] = {
            "output": [one["output"] for one in found],
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
        }
        if isinstance(outcome, Failed):
            raise StepError(_as_one(outcome.failure, found, record))
        failed = sum(one["status"] == "failed" for one in found)
        if failed:
            raise StepError(_as_one(_some_failed(failed, len(found), ctx), found, record))
        return record

    def _results(self, ctx: StepContext) -> Iterator[dict[str, Json]]:
        inner = ctx.child(self.map)
        written = ctx.run.journal.step(join_path(inner.path, self.map.items.name))
        value = getattr(written.outcome, "value", None) if written is not None else None
        return item_results(inner, self.map.items.read(value, inner))


def _plan_result(counts: dict[str, Json], ctx: StepContext) -> dict[str, Json]:
    if counts.get("failed"):
        raise StepError(_some_failed(counts["failed"], counts["total"], ctx))
    return dict(UNKNOWN_RESULT)


def _some_failed(failed: int, total: int, ctx: StepContext) -> Failure:
    return Failure(f"{failed} of {total} items failed", path=ctx.path)


def _as_one(failure: Failure, found: Sequence[dict[str, Json]], record: dict[str, Json]) -> Failure:
    """The failure of the foreach, with the error of the first failed item."""
    first = next((one for one in found if one["status"] == "failed"), None)
    message = failure.message if first is None else f"{failure.message}: {first['error']}"
    ended = {**record, "stderr": message, "exit_code": 1}
    return replace(failure, message=message, exit_code=1, output=ended)


@dataclass(frozen=True, slots=True)
class ListItems(Composite):
    """The step that finds the items of a foreach; they are its value."""

    source: Source
    fingerprint: str
    max_items: int | None = None
    on_empty: OnEmpty = "warn"
    name: str = ITEMS
    kind: str = ITEMS
    title: str = "the items"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> Json:
        match self.source:
            case ValueSource(template, strict):
                found = template.render(ctx.scope, strict=strict)
                # In a dry run, a text may contain placeholders that only a run can fill.
                is_open = ctx.run.plan_log is not None and isinstance(found, str | Unknown)
                if is_open and _is_open(template, ctx.scope):
                    return NOT_KNOWN
                items = _as_list(found)
                why_empty = "the list is empty"
            case CommandSource(script, shell, strict):
                ended = act(ShellAction(script, shell, strict), ctx)
                if is_unknown_result(ended):
                    return NOT_KNOWN
                require_complete_output(ended, "output", use="a list of items")
                items = _lines(ended["output"]) if isinstance(ended.get("output"), str) else []
                why_empty = "the command prints no line"
        items = deep_copy(mask_value(items[: self.max_items], ctx.run.secrets.mask))
        check_not_empty(len(items), self.on_empty, ctx, "foreach", why_empty)
        return {"count": len(items), "items": items}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002 - the protocol's shape
        items = value.get("items") if isinstance(value, dict) else None
        for order, item in enumerate(items if isinstance(items, list) else ()):
            if not in_bitmap(without, order):
                yield WorkItem(order, str(order), item)


def _is_open(template: Template, scope: Scope) -> bool:
    """Whether a text contains placeholders that only a run can fill."""
    try:
        return isinstance(template.render(scope, strict=True), Unknown)
    except PlaitError:
        return True


def _as_list(found: Json) -> list[Json]:
    match found:
        case list():
            return found
        case str():
            return _lines(found)
    raise StepError(Failure("foreach needs a list or text, but the value is neither", "refused"))


def _lines(text: str) -> list[Json]:
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
