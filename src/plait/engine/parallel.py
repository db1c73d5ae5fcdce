"""Perform several steps at a time, each one after those that it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition

from plait.core.hints import TYPE_CHECKING, TypeAlias
from plait.core.records import replace
from plait.engine.backend import WorkItem
from plait.engine.outcome import Outcome
from plait.engine.perform import StepContext

if TYPE_CHECKING:
    from plait.engine.step import Step
    from plait.scope import Scope

Perform: TypeAlias = Callable[[int, StepContext], tuple[Outcome, StepContext]]
"""Performs the step of a number, as `StepContext.perform_next` does."""
Finish: TypeAlias = Callable[[int, Outcome], None]
Needs: TypeAlias = Callable[[int], Iterable[int] | None]
"""The numbers of the steps that must have ended before a step starts; None: it never starts."""
Stops: TypeAlias = Callable[[Outcome], bool]


def perform_many(
    ctx: StepContext,
    steps: Sequence[Step],
    *,
    parallel: int,
    first: int = 0,
    scope: Callable[[int], Scope | None] = lambda _: None,
    stops: Stops = lambda _: False,
) -> tuple[list[Outcome], StepContext]:
    """Perform steps that do not depend on each other, `parallel` at a time.

    Return the outcomes of the started ones in order, and the context for what follows them all.
    No step starts after an outcome that `stops`.  `first` is the order of the first step; `scope`
    returns the scope of each.
    """
    ended: dict[int, Outcome] = {}

    def perform(number: int, ctx: StepContext) -> tuple[Outcome, StepContext]:
        return ctx.perform_next(steps[number], first + number, scope=scope(number))

    after = perform_dependent(
        ctx, len(steps), perform, ended.__setitem__, parallel=parallel, stops=stops
    )
    return [ended[number] for number in sorted(ended)], after


def perform_dependent(
    ctx: StepContext,
    count: int,
    perform: Perform,
    finish: Finish,
    *,
    parallel: int,
    needs: Needs = lambda _: (),
    stops: Stops = lambda _: False,
) -> StepContext:
    """Perform the steps 0 to `count` - 1, each one after those that it `needs`.

    Of the steps that can start, the one with the lowest number does.  Its context follows the
    steps that it needs, so it is replayed only if they were.  One thread at a time calls `needs`
    and `finish`.  Return the context for what follows all steps.
    """
    steps = _Steps(ctx, count, perform, finish, needs, stops)
    if count:
        most = max(1, min(parallel, count))
        ctx.run.backend.run(steps.take_ready(), steps.perform, _ignore, parallel=most)
        ctx.run.stop.require_unset()
    return _join_contexts(ctx, steps.contexts.values())


class _Steps:
    """Which steps wait, how many run, and the context after each that has ended."""

    def __init__(
        self,
        ctx: StepContext,
        count: int,
        perform: Perform,
        finish: Finish,
        needs: Needs,
        stops: Stops,
    ) -> None:
        self._ctx = ctx
        self._perform = perform
        self._finish = finish
        self._needs = needs
        self._stops = stops
        self._waiting = deque(range(count))
        self._running = 0
        self._is_stopped = False
        self._changed = Condition()
        self.contexts: dict[int, StepContext] = {}

    def take_ready(self) -> Iterator[WorkItem]:
        """Yield each step when it can start; while none can, wait for the running ones."""
        while True:
            with self._changed:
                while (number := self._first_ready()) is None and self._running:
                    self._changed.wait()
                if number is None:
                    return
                self._waiting.remove(number)
                self._running += 1
            yield WorkItem(number, str(number), None)

    def _first_ready(self) -> int | None:
        if self._is_stopped or self._ctx.run.stop.is_set():
            return None
        for number in self._waiting:
            needed = self._needs(number)
            if needed is not None and all(one in self.contexts for one in needed):
                return number
        return None

    def perform(self, work: WorkItem) -> Outcome:
        number, ctx = work.order, self._ctx
        try:
            with self._changed:
                needed = [self.contexts[one] for one in self._needs(number) or ()]
            if needed:
                ctx = _join_contexts(ctx, needed)
            outcome, after = self._perform(number, ctx)
            with self._changed:
                self._finish(number, outcome)
                self.contexts[number] = after
                self._is_stopped = self._is_stopped or self._stops(outcome)
        except BaseException:
            self._is_stopped = True
            raise
        finally:
            with self._changed:  # the thread that takes steps may wait for this one
                self._running -= 1
                self._changed.notify()
        return outcome


def _ignore(work: WorkItem, outcome: Outcome) -> None:
    """A backend reports outcomes one at a time; `_Steps.perform` has used them by then."""


def _join_contexts(ctx: StepContext, contexts: Iterable[StepContext]) -> StepContext:
    """The context for what follows several parallel steps, given the one after each."""
    ended = (ctx, *contexts)
    return replace(
        ctx,
        can_replay=all(one.can_replay for one in ended),
        replay_after=max(one.replay_after for one in ended),
    )
