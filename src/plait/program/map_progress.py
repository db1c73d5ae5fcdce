"""The progress of a map: counts the outcomes of its items and decides whether more items start."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial

from plait.core.errors import JournalError
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.core.records import replace
from plait.core.values import NOT_KNOWN, Json, Unknown
from plait.engine.backend import WorkItem
from plait.engine.coroutines import Order, finish
from plait.engine.events import ItemsReplayed, StepFinished
from plait.engine.outcome import TOO_MANY, Failed, Failure, Outcome, Skipped, StepError, Succeeded
from plait.engine.paths import ANY_ITEM, is_item, join_path
from plait.engine.perform import StepContext, add_failure, perform_new_async
from plait.engine.replay import items_selected_at
from plait.engine.step import FunctionAction, LeafStep, Step
from plait.program.item_list import item_title
from plait.program.ports import Tracking
from plait.program.step_list import StepList as Steps
from plait.scope import Scope
from plait.template.compiled import FACTS

if TYPE_CHECKING:
    from plait.program.map import Map
    from plait.program.worktrees.isolation import ItemWorktrees

FEW: int = 10
"""The number of outcomes from which on `failure_threshold` applies."""

MANY = 10_000
"""The number of items above which replayed outcomes are read all at once."""

UNKNOWN_COUNTS: Final[Mapping[str, Json]] = dict.fromkeys(
    ("total", "successful", "failed", "skipped", "success_rate"), NOT_KNOWN
)
"""The value of a map whose items only a run knows."""


class MapProgress:
    """Counts the outcomes of items and decides whether more items start."""

    def __init__(
        self, map_step: Map, ctx: StepContext, total: int, worktrees: ItemWorktrees | None
    ) -> None:
        self.map = map_step
        self.worktrees = worktrees
        self.ctx = ctx
        self.shows_all = ctx.run.is_dry_run
        """A dry run shows every item, also those that a run would not reach."""
        self.shares_thread = _shares_thread(map_step, ctx)
        self._shared_ctx = ctx
        """The context of items that share one thread: it keeps their events until `commit`."""
        if self.shares_thread:
            self._batch = ctx.run.events.batch()
            self._shared_ctx = replace(ctx, run=replace(ctx.run, events=self._batch))
        self._short = short_names(ctx.scope)
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
        """Wait until a pause is over; return whether another item starts."""
        while (left := self._pause_left()) > 0:
            self.ctx.run.stop.pause(left)
        return (self.stop_failure is None or self.shows_all) and not self.ctx.run.stop.is_set()

    def _pause_left(self) -> float:
        """Return the rest of a pause in seconds, at most the time that is left: the next item then
        times out.
        """
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
        title = self.ctx.run.secrets.mask_title(item_title(work.item))
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
        if self.worktrees is None:  # otherwise it was counted before it left the queue
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
        if self.shows_all:  # only a run knows which of the other items succeed
            return {**UNKNOWN_COUNTS, "total": self.total, "failed": self.failed}
        return {
            "total": self.total,
            "successful": self.successful,
            "failed": self.failed,
            "skipped": self.skipped,
            "success_rate": round(100 * self.successful / self.total, 2) if self.total else 0,
        }


def has_unknown_counts(value: Json) -> bool:
    """Is this the value of a map that was planned?"""
    return isinstance(value, dict) and isinstance(value.get("successful"), Unknown)


def short_names(scope: Scope) -> frozenset[str]:
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
        not run.is_dry_run
        and run.hooks.is_empty
        and map_step.is_plain_in(ctx)
        and run.budgets.time_left(ctx) is None
        and not run.shared(Tracking).is_on
    )


def _too_many(failed: int, most: int) -> str:
    return f"{failed} item{'' if failed == 1 else 's'} failed, and max_failures is {most}"
