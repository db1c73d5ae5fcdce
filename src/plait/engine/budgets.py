"""The budgets of a run by path: one for the run, and one for each flow or agent with limits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.limits import Budget, LimitReached, Limits, PriorUsage
from plait.engine.outcome import Failure, LimitExceeded, StepError
from plait.engine.paths import hook_name, is_hook_name, join_path, split_path

if TYPE_CHECKING:
    from plait.engine.events import Usage
    from plait.engine.journal import Journal
    from plait.engine.perform import StepContext

CRUMB: Final = 0.001
"""Seconds added to a pause, because it may end a little too early."""


class Budgets:
    """One budget for the run, and one for each flow or agent inside it that has limits."""

    def __init__(
        self,
        journal: Journal,
        total: Budget | None = None,
        *,
        first_event: int = 1,
        has_hooks: bool = False,
    ) -> None:
        """`first_event`: the number of the first event of this attempt of the run.  `has_hooks`:
        hooks read the usage, also without a limit.
        """
        self._total = total
        self._journal = journal
        self._first_event = first_event
        self._has_hooks = has_hooks
        self._by_path: dict[str, Budget] = {}
        """By path: the budgets of running flows and agents."""
        self._failed: dict[str, Budget] = {}
        """By path: the budget of the last failed attempt."""
        self._charges: dict[str, dict[str, float]] = {}
        """By path: usage that is not recorded yet."""
        self._lock = Lock()
        self._counted_budgets: set[tuple[str, int]] = set()
        self._counted_steps: set[str] = set()
        self._counted_times: set[str] = set()

    @property
    def total(self) -> Budget:
        """The budget of the run."""
        if self._total is None:
            self._total = Budget()
        return self._total

    def at(self, path: str) -> Budget:
        """Return the budget that a step at a path uses: the nearest one around it.

        A hook about a step uses the budget around that step, even after the step has ended.
        """
        if not self._by_path:
            return self.total
        is_about = False
        while path:
            if not is_about and (found := self._by_path.get(path)) is not None:
                return found
            path, name = split_path(path)
            is_about = is_hook_name(name)
        return self.total

    @contextmanager
    def scope(
        self, path: str, limits: Limits, what: str, *, goes_on: bool = False
    ) -> Iterator[Budget]:
        """Open a budget while the flow or agent at a path runs; it is a part of those around.

        If its limit is reached inside, the flow or agent fails, and no step around it.  `goes_on`:
        the usage of failed attempts at this path counts, too.
        """
        if not path:
            if self._total is None:
                self._total = Budget(limits, what=what)
            yield self._total
            return
        outer = self._by_path.get(path)
        budget = self._by_path[path] = Budget(limits, within=self.at(path), what=what)
        self._count_earlier(path, budget)
        if goes_on and (before := self._failed.get(path)) is not None:
            budget.continue_from(before)
        try:
            yield budget
        except LimitExceeded as end:
            if end.reached.holder is not budget:
                raise
            raise StepError(replace(end.failure, path="")) from None
        except BaseException:  # a timeout, too: another attempt may follow
            self._failed[path] = budget
            raise
        finally:
            if outer is None:
                del self._by_path[path]
            else:
                self._by_path[path] = outer

    # ── charges ──────────────────────────────────────────────────────────

    def charge(self, path: str, **used: float) -> None:
        """Note usage at a path; the next end or retry event of that path records it."""
        here = self._charges.setdefault(path, {})
        for name, amount in used.items():
            if amount:
                here[name] = here.get(name, 0) + amount

    def take_charges(self, path: str) -> Usage | None:
        """Return and forget the noted usage of a path, for the event that records it."""
        return (self._charges.pop(path, None) or None) if self._charges else None

    def take_step(self, path: str, budget: Budget, *names: str) -> LimitReached | None:
        """Use one step of a budget, or return the limit that is reached: of `names`, or steps.

        A step that an earlier attempt of the run has counted is not counted again.
        """
        if self._was_counted(path):
            return None
        reached = budget.take(*(names or ("steps",)), steps=1)
        if reached is None:
            self.charge(path, steps=1)
        return reached

    # ── time ─────────────────────────────────────────────────────────────

    def time_left(self, ctx: StepContext) -> float | None:
        """Return the seconds that a step has, by its deadline and by the limits around it."""
        own, rest = ctx.time_left(), self.at(ctx.path).available("seconds")
        if own is None or rest is None:
            return rest if own is None else own
        return min(own, rest)

    def pause(self, ctx: StepContext, seconds: float) -> None:
        """Wait before the next attempt; raise LimitExceeded when a limit of seconds is reached."""
        budget, end = self.at(ctx.path), time.monotonic() + seconds
        while (reached := budget.reach("seconds")) is None:
            rest, left = end - time.monotonic(), budget.available("seconds")
            if rest <= 0:
                return
            ctx.run.stop.pause(rest if left is None else min(rest, left + CRUMB))
        raise limit_error(reached, ctx)

    # ── earlier attempts of the run ──────────────────────────────────────

    @cached_property
    def earlier(self) -> PriorUsage:
        """What earlier attempts of the run have used."""
        return PriorUsage(self._journal, before=self._first_event)

    def add_earlier_time(self, path: str) -> None:
        """Count the time of a replayed step for the budgets around it."""
        budget = self.at(path)
        if budget.within is None or path in self._counted_times or not self._looks_back(budget):
            return
        self._counted_times.add(path)
        recorded = self._journal.step(path)
        if recorded is None or recorded.number >= self._first_event:
            return  # it was counted in this attempt
        to = () if recorded.pending is None else recorded.pending.to
        hooks = (self._journal.last_result(join_path(path, hook_name(name))) for name in to)
        budget.add_time(recorded.duration + sum(one.duration for one in hooks if one is not None))

    def _count_earlier(self, path: str, budget: Budget) -> None:
        """Count what earlier attempts used inside a path, once."""
        if not self._looks_back(budget) or (path, budget.depth) in self._counted_budgets:
            return
        self._counted_budgets.add((path, budget.depth))
        budget.add_earlier(**self.earlier.inside(path))

    def _was_counted(self, path: str) -> bool:
        """Has an earlier attempt counted this step, and is this its first start in this one?"""
        if not self._looks_back(self.at(path)) or not self.earlier.has_step(path):
            return False
        with self._lock:
            is_first = path not in self._counted_steps
            self._counted_steps.add(path)
        return is_first

    def _looks_back(self, budget: Budget) -> bool:
        """Does earlier usage matter?  To find it, the whole journal is read."""
        return self._first_event > 1 and (self._has_hooks or budget.is_limited())


def timeout_or_limit(failure: Failure, ctx: StepContext) -> Failure:
    """Return the failure of a call; raise LimitExceeded if a limit of seconds ended the call."""
    if failure.kind != "timeout" or ctx.is_expired():
        return failure
    reached = ctx.run.budgets.at(ctx.path).reach("seconds")
    if reached is None:
        return failure
    raise limit_error(reached, ctx, partial=failure.output)


def limit_error(
    reached: LimitReached,
    ctx: StepContext,
    context: Mapping[str, Json] | None = None,
    *,
    partial: Json = None,
) -> LimitExceeded:
    """Notify hooks of a reached limit, and return the error to raise."""
    ctx.run.hooks.limit_reached(ctx, reached, context or {})
    return LimitExceeded(reached, ctx.path, partial)
