"""The budgets of a run, by path: what its flows and agents may use, and what they have used."""

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

if TYPE_CHECKING:
    from plait.engine.events import Usage
    from plait.engine.journal import Journal
    from plait.engine.perform import StepContext

CRUMB: Final = 0.001
"""Seconds by which a pause may end too early."""


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
        """`first_event`: the number of the first event of this attempt; those before it are of
        earlier ones.  `has_hooks`: hooks ask what was used, also without a limit.
        """
        self._total = total
        self._journal = journal
        self._first_event = first_event
        self._has_hooks = has_hooks
        self._by_path: dict[str, Budget] = {}
        """By path: those of flows and agents that run."""
        self._failed: dict[str, Budget] = {}
        """By path: what attempts that failed have used."""
        self._charges: dict[str, dict[str, float]] = {}
        """By path: what was used there, and is not recorded yet."""
        self._lock = Lock()
        self._counted_budgets: set[tuple[str, int]] = set()
        self._counted_steps: set[str] = set()
        self._counted_times: set[str] = set()

    @property
    def total(self) -> Budget:
        """That of the run as a whole."""
        if self._total is None:
            self._total = Budget()
        return self._total

    def at(self, path: str) -> Budget:
        """The budget that a step at a path uses: the nearest with limits of its own.

        A hook about a step uses the budget around the step, whether that still runs or not.
        """
        is_about = False
        while path:
            if not is_about and (found := self._by_path.get(path)) is not None:
                return found
            path, _, name = path.rpartition("/")
            is_about = name.startswith("hook:")
        return self.total

    @contextmanager
    def scope(
        self, path: str, limits: Limits, what: str, *, goes_on: bool = False
    ) -> Iterator[Budget]:
        """A budget for as long as the flow or agent at a path runs; it is a part of those around.

        A limit of its own that is reached inside is its failure, and of no step around it.
        `goes_on`: what failed attempts at this path have used counts as well.
        """
        if not path:
            if self._total is None:
                self._total = Budget(limits, what=what)
            yield self._total
            return
        outer = self._by_path.get(path)
        inner = self._by_path[path] = Budget(limits, within=self.at(path), what=what)
        self._count_earlier(path, inner)
        if goes_on and (before := self._failed.get(path)) is not None:
            inner.carry_on(before)
        try:
            yield inner
        except LimitExceeded as end:
            if end.reached.holder is not inner:
                raise
            raise StepError(replace(end.failure, path="")) from None
        except BaseException:  # also if its time was up: another attempt may follow
            self._failed[path] = inner
            raise
        finally:
            if outer is None:
                del self._by_path[path]
            else:
                self._by_path[path] = outer

    # ── charges ──────────────────────────────────────────────────────────

    def charge(self, path: str, **used: float) -> None:
        """Remember what was used at a path; the next end or attempt there records it."""
        here = self._charges.setdefault(path, {})
        for name, amount in used.items():
            if amount:
                here[name] = here.get(name, 0) + amount

    def take_charges(self, path: str) -> Usage | None:
        """What was used at a path, for the event that records it."""
        return (self._charges.pop(path, None) or None) if self._charges else None

    def take_step(self, path: str, budget: Budget, *names: str) -> LimitReached | None:
        """Use one step of a budget; or say which of these limits (that of steps) is reached.

        A step that an earlier attempt has counted is not counted again when it is done again.
        """
        if self._was_counted(path):
            return None
        reached = budget.take(*(names or ("steps",)), steps=1)
        if reached is None:
            self.charge(path, steps=1)
        return reached

    # ── time ─────────────────────────────────────────────────────────────

    def time_left(self, ctx: StepContext) -> float | None:
        """Seconds that a step has, by its deadline and by the limits around it."""
        rests = (ctx.time_left(), self.at(ctx.path).available("seconds"))
        return min((rest for rest in rests if rest is not None), default=None)

    def pause(self, ctx: StepContext, seconds: float) -> None:
        """Wait before the next attempt; raises LimitExceeded when a limit of time is reached."""
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
        """What was used before this attempt of the run."""
        return PriorUsage(self._journal, before=self._first_event)

    def add_earlier_time(self, path: str) -> None:
        """The time of a step that is not done again is time of all that it is inside of."""
        budget = self.at(path)
        if budget.within is None or path in self._counted_times or not self._looks_back(budget):
            return
        self._counted_times.add(path)
        recorded = self._journal.step(path)
        if recorded is None or recorded.number >= self._first_event:
            return  # it was counted when it was done
        to = () if recorded.pending is None else recorded.pending.to
        heard = (self._journal.last_result(f"{path}/hook:{name}") for name in to)
        budget.add_time(recorded.duration + sum(one.duration for one in heard if one is not None))

    def _count_earlier(self, path: str, budget: Budget) -> None:
        """What earlier attempts used inside a path is used there: counted once."""
        if not self._looks_back(budget) or (path, budget.depth) in self._counted_budgets:
            return
        self._counted_budgets.add((path, budget.depth))
        budget.add_earlier(**self.earlier.inside(path))

    def _was_counted(self, path: str) -> bool:
        """Has an earlier attempt counted this step, and is it now done again for the first time?"""
        if not self._looks_back(self.at(path)) or not self.earlier.has_step(path):
            return False
        with self._lock:
            is_first = path not in self._counted_steps
            self._counted_steps.add(path)
        return is_first

    def _looks_back(self, budget: Budget) -> bool:
        """Does it matter what was used before?  To find out is to read the whole journal."""
        return self._first_event > 1 and (self._has_hooks or budget.is_limited())


def timeout_or_limit(failure: Failure, ctx: StepContext) -> Failure:
    """The failure of a call; raises LimitExceeded if a limit of time has cut the call."""
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
    """The error to raise where a limit is reached; hooks have heard of it."""
    ctx.run.hooks.limit_reached(ctx, reached, context or {})
    return LimitExceeded(reached, ctx.path, partial)
