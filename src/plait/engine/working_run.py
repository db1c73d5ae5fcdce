"""What steps need of the world; `app` gives it to them, tests give fakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import Masker
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.backend import Backend
from plait.engine.context import RunContext
from plait.engine.dry_run import UNKNOWN_RESULT
from plait.engine.events import StepFinished
from plait.engine.limits import Budget, LimitReached, Limits, PriorUsage
from plait.engine.outcome import (
    NO_TIME_LEFT,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    Skipped,
    StepError,
)
from plait.engine.paths import is_item

if TYPE_CHECKING:
    from plait.agents.session import AgentScope
    from plait.engine.events import Event
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.program.changes import ChangeTracker
    from plait.program.ports import Hands
    from plait.program.worktrees.gather import GatherWorktree
    from plait.program.worktrees.isolation import ItemWorktrees
    from plait.program.worktrees.ports import Worktrees


# ── places of their own for items ────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What a dry run shows of one step, instead of doing it."""

    path: str
    kind: str
    shown: str
    remembered: bool = False
    """It was done in an earlier life of the run, and is not done again."""
    why: str = ""
    """Why it is done again, although an earlier life of the run had begun or done it."""
    fails: str = ""
    """Why it would fail, as far as that is known without doing it."""
    fatal: bool = False
    """The run would fail with it, or count it as a failed item."""
    skipped: str = ""
    """Why it is not done at all."""


_HIDING: Final = Lock()
CRUMB: Final = 0.001
"""Seconds by which a pause may end too early."""


class WorkingRun(RunContext):
    """A run whose steps have hands, a place for their items, and a folder for what is large."""

    hands: Hands
    backend: Backend
    folder: str
    rehearsal: list[PlannedStep] | None = None
    """In a dry run: where steps say what they would do, instead of doing it."""
    masker: Masker | None = None
    """Whose `mask` it is; None where nothing is to be masked, so far."""
    changes: ChangeTracker | None = None
    """Knows what steps change, in a flow that asks for it."""
    untracked: frozenset[str] = frozenset()
    """In a dry run: of which names only a run will know what has changed."""
    workspaces: Worktrees | None = None
    """Makes the places of items that work apart from each other."""
    meeting: GatherWorktree | None = None
    """Where the work of such items was brought together, for the merge steps of the flow."""

    @cached_property
    def shelters(self) -> dict[str, ItemWorktrees]:
        """By the path of a fan: the places of its items."""
        return {}

    @cached_property
    def note_keys(self) -> set[str]:
        """What need not be said again in this run."""
        return set()

    @cached_property
    def agents(self) -> dict[str, AgentScope]:
        """By their paths: those that are at work."""
        return {}

    @cached_property
    def tallies(self) -> dict[str, Callable[[], dict[str, Json]]]:
        """By path: what has become of the items of a fan until now."""
        return {}

    # ── what may be used up ──────────────────────────────────────────────

    spent: Budget | None = None
    """Of the run as a whole."""

    @cached_property
    def _budgets(self) -> dict[str, Budget]:
        """By path: what those have used up that are inside others and still run."""
        return {}

    def budget_at(self, path: str) -> Budget:
        """What is used up by whoever is at a path: the nearest that has limits of its own.

        A hook about somebody is asked from outside, whether that one still runs or not.
        """
        is_about = False
        while path:
            if not is_about and (found := self._budgets.get(path)) is not None:
                return found
            if not is_about and (agent := self.agents.get(path)) is not None:
                return agent.spent
            path, _, name = path.rpartition("/")
            is_about = name.startswith("hook:")
        if self.spent is None:
            self.spent = Budget()
        return self.spent

    def time_left(self, ctx: StepContext) -> float | None:
        """Seconds for whoever is at a turn, by its deadline and by the limits around it."""
        rests = (ctx.time_left(), self.budget_at(ctx.path).available("seconds"))
        return min((rest for rest in rests if rest is not None), default=None)

    def pause_at(self, ctx: StepContext, seconds: float) -> None:
        """No attempt begins when the time of a limit is over: whoever has it ends, and not the
        step.
        """
        spent, end = self.budget_at(ctx.path), time.monotonic() + seconds
        while (reached := spent.reach("seconds")) is None:
            rest, left = end - time.monotonic(), spent.available("seconds")
            if rest <= 0:
                return
            self.pause(rest if left is None else min(rest, left + CRUMB))
        raise limit_error(reached, ctx)

    @contextmanager
    def budget_scope(
        self, path: str, limits: Limits, what: str, *, goes_on: bool = False
    ) -> Iterator[Budget]:
        """For as long as a flow or an agent at a path runs: what it uses up, of others as well.

        A limit of its own that is reached inside is its failure, and nobody else's.  `goes_on`:
        what was tried at this path before, in this life, counts as well.
        """
        if not path:
            if self.spent is None:
                self.spent = Budget(limits, what=what)
            yield self.spent
            return
        outer = self._budgets.get(path)
        inner = self._budgets[path] = Budget(limits, within=self.budget_at(path), what=what)
        self._count_earlier(path, inner)
        if goes_on and (before := self._attempt_budgets.get(path)) is not None:
            inner.carry_on(before)
        try:
            yield inner
        except LimitExceeded as end:
            if end.reached.holder is not inner:
                raise
            raise StepError(replace(end.failure, path="")) from None
        except BaseException:  # also if its time was up: another attempt may follow
            self._attempt_budgets[path] = inner
            raise
        finally:
            if outer is None:
                del self._budgets[path]
            else:
                self._budgets[path] = outer

    def add_planned_step(self, ctx: StepContext, kind: str, shown: str) -> dict[str, Json]:
        """Say what a step would do; how it would end, only a run can know."""
        assert self.rehearsal is not None
        self.rehearsal.append(
            PlannedStep(ctx.path, kind, self.mask(shown), why=self._why_again(ctx))
        )
        return dict(UNKNOWN_RESULT)

    @property
    def is_dry(self) -> bool:
        return self.rehearsal is not None

    def would_run(self, ctx: StepContext, what: object) -> Json:
        kind, title = (
            getattr(what, "kind", "step"),
            getattr(what, "title", "") or type(what).__name__,
        )
        return self.add_planned_step(ctx, str(kind), f"would run: {title}")

    @property
    def would_have_run(self) -> bool:
        """In a dry run: is there something by now that a run would have done?  It may have written
        files.
        """
        return any(not one.remembered and not one.skipped for one in self.rehearsal or ())

    def add_derived_secrets(self, secrets: Iterable[str]) -> None:
        """Mask what a step has made of secrets, unless it is masked at least in part, as from the
        beginning.

        What a run masks must not depend on which steps it has performed, and which it remembers.
        """
        self.add_secrets([one for one in secrets if self.mask(one) == one])

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Mask these from now on, too: those of a flow inside this one, and what only a command
        knows.
        """
        for secret in secrets:
            with _HIDING:
                if self.masker is None:
                    self.masker = Masker()
                    self.mask = self.masker.mask
            self.masker.add(secret)

    def _why_again(self, ctx: StepContext) -> str:
        known = None if self.is_first_run else self.journal.step(ctx.path)
        if known is None:
            return (
                ""
                if self.is_first_run or not self.journal.is_unfinished(ctx.path)
                else "it was begun, not finished"
            )
        if isinstance(known.outcome, Failed):
            was_cut = known.outcome.failure.message == NO_TIME_LEFT
            return (
                "it was cut: the time of what it is part of was over"
                if was_cut
                else "it had failed"
            )
        if not ctx.can_replay and self._has_step_failed(ctx.path, known.number):
            return "its step had failed by its check"
        follows = not ctx.can_replay or known.number <= ctx.replay_after
        return "a step before it is done again" if follows else "its text has changed"

    def _has_step_failed(self, path: str, number: int) -> bool:
        """Of an action that is a step of its own: has the step failed, though the action had
        not?
        """
        above, _, name = path.rpartition("/")
        end = self.journal.last_result(above) if name == "run" else None
        return end is not None and end.number > number and isinstance(end.outcome, Failed)

    @cached_property
    def earlier(self) -> PriorUsage:
        """What was used up before this life of the run."""
        return PriorUsage(self.journal, before=self.first_event)

    def _count_earlier(self, path: str, spent: Budget) -> None:
        """What earlier lives used up inside a place is used up there: once in this life."""
        if not self._looks_back(spent) or (path, spent.depth) in self._usage_recounts:
            return
        self._usage_recounts.add((path, spent.depth))
        spent.add_earlier(**self.earlier.inside(path))

    def was_counted(self, path: str) -> bool:
        if not self._looks_back(self.budget_at(path)) or not self.earlier.has_step(path):
            return False
        with self._counting:
            is_first = path not in self._step_recounts
            self._step_recounts.add(path)
        return is_first

    def _looks_back(self, spent: Budget) -> bool:
        """Does anybody care what was used up before?  To find out is to read the whole journal."""
        return not self.is_first_run and (self.hooks is not None or spent.is_limited())

    @cached_property
    def _attempt_budgets(self) -> dict[str, Budget]:
        """By path: what attempts that failed have used up."""
        return {}

    @cached_property
    def _usage_recounts(self) -> set[tuple[str, int]]:
        return set()

    @cached_property
    def _step_recounts(self) -> set[str]:
        return set()

    @cached_property
    def _counting(self) -> Lock:
        return Lock()

    def _recount_time(self, path: str) -> None:
        """The time of a remembered step is time of all that it is inside of."""
        spent = self.budget_at(path)
        if spent.within is None or path in self._time_recounts or not self._looks_back(spent):
            return
        self._time_recounts.add(path)
        recorded = self.journal.step(path)
        if recorded is None or recorded.number >= self.first_event:
            return  # what this life has done was counted then
        to = () if recorded.owed is None else recorded.owed.to
        heard = (self.journal.last_result(f"{path}/hook:{name}") for name in to)
        spent.add_time(recorded.duration + sum(one.duration for one in heard if one is not None))

    @cached_property
    def _time_recounts(self) -> set[str]:
        return set()

    def accept_as_done(self, step: Step, ctx: StepContext, value: Json) -> Outcome:
        if (capture := getattr(getattr(step, "work", step), "capture", None)) is not None:
            self.note(
                ctx.path,
                f"taken as done: what it printed is not known, so '{capture.name}' is empty",
            )
        return super().accept_as_done(step, ctx, value)

    def find_recorded(self, step: Step, ctx: StepContext) -> Outcome | None:
        outcome = super().find_recorded(step, ctx)
        if outcome is not None:
            self._recount_time(ctx.path)
        if outcome is not None and self.hooks is not None:
            self.hooks.deliver_pending(ctx, outcome)
        if outcome is not None and self.rehearsal is not None:
            self.rehearsal.append(PlannedStep(ctx.path, step.kind, step.title, remembered=True))
        return outcome


class RehearsedRun(WorkingRun):
    """A dry run: it shows what would be done, and in its place what would fail, wherever that
    leads.
    """

    rehearsal: list[PlannedStep]

    @cached_property
    def _failure_paths(self) -> set[str]:
        return set()

    def require_answer(self, step: Step, ctx: StepContext) -> None:  # noqa: ARG002 - shown where it would be done
        self._question_paths.add(ctx.path)

    def _why_again(self, ctx: StepContext) -> str:
        why = super()._why_again(ctx)
        return (
            f"{why}, and may run only once: plait resume asks"
            if ctx.path in self._question_paths
            else why
        )

    @cached_property
    def _question_paths(self) -> set[str]:
        return set()

    def emit(self, event: Event) -> None:
        self._show_end(event)
        super().emit(event)

    def emit_with_parent(self, event: StepFinished) -> None:
        self._show_end(event)
        super().emit_with_parent(event)

    def _show_end(self, event: Event) -> None:
        """Of a step that shows nothing else: one that would fail, or is not done."""
        if not isinstance(event, StepFinished) or event.replayed:
            return
        path, title = event.path, self.mask(event.title)
        match event.outcome:
            case Failed(failure) if failure.path == path and path not in self._failure_paths:
                self._failure_paths.add(path)
                self.rehearsal.append(PlannedStep(path, event.kind, title, fails=failure.message))
            case Skipped(why) if not is_item(path):  # which is skipped for what failed in it
                self.rehearsal.append(PlannedStep(path, event.kind, title, skipped=why))


def working(run: RunContext) -> WorkingRun:
    assert isinstance(run, WorkingRun), "steps run where `app` has given them hands"
    return run


def timeout_or_limit(failure: Failure, ctx: StepContext) -> Failure:
    """The failure of a call; raises OutOfLimit if the call took longer than a limit lets it."""
    if failure.kind != "timeout" or ctx.is_expired():
        return failure
    reached = working(ctx.run).budget_at(ctx.path).reach("seconds")
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
    """The end of whoever has this limit, to be raised where it is reached; hooks have heard of
    it.
    """
    hooks = ctx.run.hooks
    if hooks is not None:
        hooks.limit_reached(ctx, reached, context or {})
    return LimitExceeded(reached, ctx.path, partial)
