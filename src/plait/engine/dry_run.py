"""The plan that a dry run makes: what each step would do."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.engine.events import StepFinished
from plait.engine.outcome import NO_TIME_LEFT, Failed, Skipped
from plait.engine.paths import is_item
from plait.engine.unknown import UNKNOWN_RESULT

if TYPE_CHECKING:
    from plait.core.values import Json
    from plait.engine.event_bus import Mask
    from plait.engine.events import Event
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What a dry run shows of one step, instead of doing it."""

    path: str
    kind: str
    shown: str
    remembered: bool = False
    """It is recorded as done, and is not done again."""
    why: str = ""
    """Why it is done again, although it was started or done before."""
    fails: str = ""
    """Why it would fail, as far as that is known without doing it."""
    fatal: bool = False
    """The run would fail with it, or count it as a failed item."""
    skipped: str = ""
    """Why it is not done at all."""


class PlanLog:
    """What a dry run would do, step by step."""

    def __init__(self, mask: Mask = str) -> None:
        self.steps: list[PlannedStep] = []
        self._mask = mask
        self._failed: set[str] = set()
        self._questions: set[str] = set()

    def add(self, ctx: StepContext, kind: str, shown: str) -> dict[str, Json]:
        """Say what a step would do; the result is one that only a run can know."""
        self.steps.append(PlannedStep(ctx.path, kind, self._mask(shown), why=self._why_again(ctx)))
        return dict(UNKNOWN_RESULT)

    def add_unknown(self, ctx: StepContext, what: object) -> dict[str, Json]:
        """Say that something would run of which no more is known."""
        kind, title = getattr(what, "kind", "step"), getattr(what, "title", "")
        return self.add(ctx, str(kind), f"would run: {title or type(what).__name__}")

    def add_recorded(self, step: Step, path: str) -> None:
        """Say that a step is recorded as done."""
        self.steps.append(PlannedStep(path, step.kind, step.title, remembered=True))

    def add_failure(self, ctx: StepContext, kind: str, title: str, why: str) -> None:
        """Say that a step would fail."""
        self.steps.append(PlannedStep(ctx.path, kind, self._mask(title), fails=why))

    def add_question(self, path: str) -> None:
        """Say that `plait resume` asks before it does the step at a path."""
        self._questions.add(path)

    def add_end(self, event: Event) -> None:
        """Show the end of a step that shows nothing else: it would fail, or is not done."""
        if not isinstance(event, StepFinished) or event.replayed:
            return
        path, title = event.path, self._mask(event.title)
        match event.outcome:
            case Failed(failure) if failure.path == path and path not in self._failed:
                self._failed.add(path)
                self.steps.append(PlannedStep(path, event.kind, title, fails=failure.message))
            # An item is skipped for a failure inside it, which is shown already.
            case Skipped(why) if not is_item(path):
                self.steps.append(PlannedStep(path, event.kind, title, skipped=why))

    def add_condition(self, since: int, condition: str) -> None:
        """Say of all steps from a place on that they are done only if a condition holds."""
        self.steps[since:] = [
            replace(one, shown=f"if {condition}: {one.shown}") for one in self.steps[since:]
        ]

    def is_acting(self) -> bool:
        """Is there a step that a run would have done by now?  It may have written files."""
        return any(not one.remembered and not one.skipped for one in self.steps)

    def _why_again(self, ctx: StepContext) -> str:
        why = next(_reasons(ctx), "")
        if ctx.path in self._questions:
            return f"{why}, and may run only once: plait resume asks"
        return why


def _reasons(ctx: StepContext) -> Iterator[str]:
    """Why a step is done that was started or done before."""
    if ctx.run.replay.is_first_run:
        return
    journal, path = ctx.run.journal, ctx.path
    known = journal.step(path)
    if known is None:
        if journal.is_unfinished(path):
            yield "it was begun, not finished"
        return
    if isinstance(known.outcome, Failed):
        was_cut = known.outcome.failure.message == NO_TIME_LEFT
        yield "it was cut: the time of what it is part of was over" if was_cut else "it had failed"
    if not ctx.can_replay and _has_step_failed(ctx, known.number):
        yield "its step had failed by its check"
    follows = not ctx.can_replay or known.number <= ctx.replay_after
    yield "a step before it is done again" if follows else "its text has changed"


def _has_step_failed(ctx: StepContext, number: int) -> bool:
    """Of an action that is a step of its own: has the step failed, though the action had not?"""
    above, _, name = ctx.path.rpartition("/")
    end = ctx.run.journal.last_result(above) if name == "run" else None
    return end is not None and end.number > number and isinstance(end.outcome, Failed)
