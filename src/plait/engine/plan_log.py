"""The plan of a dry run: what each step would do."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.engine.events import StepFinished
from plait.engine.outcome import NO_TIME_LEFT, Failed, Skipped
from plait.engine.paths import RUN, is_item, split_path
from plait.engine.unknown_results import UNKNOWN_RESULT

if TYPE_CHECKING:
    from plait.core.values import Json
    from plait.engine.event_bus import Mask
    from plait.engine.events import Event
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What a dry run shows for one step."""

    path: str
    kind: str
    shown: str
    replayed: bool = False
    """A resumed run would replay it."""
    why: str = ""
    """Why it is performed again, although it was started before."""
    fails: str = ""
    """Why it would fail, if that is known before a run."""
    fatal: bool = False
    """The run, or the item, would fail with it."""
    skipped: str = ""
    """Why it is skipped."""


class PlanLog:
    """Collects the planned steps of a dry run."""

    def __init__(self, mask: Mask = str) -> None:
        self.steps: list[PlannedStep] = []
        self._mask = mask
        self._failed: set[str] = set()
        self._questions: set[str] = set()

    def add(self, ctx: StepContext, kind: str, shown: str) -> dict[str, Json]:
        """Add what a step would do; return the unknown result."""
        self.steps.append(PlannedStep(ctx.path, kind, self._mask(shown), why=self._why_again(ctx)))
        return dict(UNKNOWN_RESULT)

    def add_unknown(self, ctx: StepContext, what: object) -> dict[str, Json]:
        """Add something that would run, and of which no more is known."""
        kind, title = getattr(what, "kind", "step"), getattr(what, "title", "")
        return self.add(ctx, str(kind), f"would run: {title or type(what).__name__}")

    def add_recorded(self, step: Step, path: str) -> None:
        """Add a step that a resumed run replays."""
        self.steps.append(PlannedStep(path, step.kind, step.title, replayed=True))

    def add_failure(self, ctx: StepContext, kind: str, title: str, why: str) -> None:
        """Add a step that would fail."""
        self.steps.append(PlannedStep(ctx.path, kind, self._mask(title), fails=why))

    def add_question(self, path: str) -> None:
        """Note that `plait resume` asks before it performs the step at a path."""
        self._questions.add(path)

    def add_end(self, event: Event) -> None:
        """Add a step that ends in the dry run: it would fail, or is skipped."""
        if not isinstance(event, StepFinished) or event.replayed:
            return
        path, title = event.path, self._mask(event.title)
        match event.outcome:
            case Failed(failure) if failure.path == path and path not in self._failed:
                self._failed.add(path)
                self.steps.append(PlannedStep(path, event.kind, title, fails=failure.message))
            # A skipped item has a failed step inside it, which is in the plan already.
            case Skipped(why) if not is_item(path):
                self.steps.append(PlannedStep(path, event.kind, title, skipped=why))

    def add_condition(self, since: int, condition: str) -> None:
        """Note that the steps from an index on are performed only if a condition holds."""
        self.steps[since:] = [
            replace(one, shown=f"if {condition}: {one.shown}") for one in self.steps[since:]
        ]

    def has_planned_step(self) -> bool:
        """Would a run have performed a step by now?  The step may have written files."""
        return any(not one.replayed and not one.skipped for one in self.steps)

    def _why_again(self, ctx: StepContext) -> str:
        why = next(_reasons(ctx), "")
        if ctx.path in self._questions:
            return f"{why}, and may run at most once: plait resume asks"
        return why


def _reasons(ctx: StepContext) -> Iterator[str]:
    """Yield why a step is performed that was started before."""
    if ctx.run.replay.is_first_run:
        return
    journal, path = ctx.run.journal, ctx.path
    known = journal.step(path)
    if known is None:
        if journal.is_unfinished(path):
            yield "it was started, not finished"
        return
    if isinstance(known.outcome, Failed):
        was_stopped = known.outcome.failure.message == NO_TIME_LEFT
        yield f"it was {NO_TIME_LEFT}" if was_stopped else "it had failed"
    if not ctx.can_replay and _has_step_failed(ctx, known.number):
        yield "the check of its step had failed"
    follows = not ctx.can_replay or known.number <= ctx.replay_after
    yield "a step before it is done again" if follows else "its text has changed"


def _has_step_failed(ctx: StepContext, number: int) -> bool:
    """Has the step around an action failed after the action succeeded?"""
    above, name = split_path(ctx.path)
    end = ctx.run.journal.last_result(above) if name == RUN else None
    return end is not None and end.number > number and isinstance(end.outcome, Failed)
