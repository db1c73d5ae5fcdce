"""Which recorded outcomes count when a run is resumed, and when the user has to be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import StepFinished
from plait.engine.journal import Journal, StepRecord, record_number
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import generic_path, is_below

if TYPE_CHECKING:
    from plait.core.hints import TypeAlias
    from plait.engine.outcome import Failure
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


def replay_unless_failed(
    ctx: StepContext, name: str, is_in_vain: InVain = lambda *_: False
) -> StepContext:
    """The context of a step whose failure others handle: if they failed, it is tried again.

    `is_in_vain`: it succeeded; does it have to be done again, given how the step around it failed
    afterwards?
    """
    journal = ctx.run.journal
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return ctx
    known, end = journal.step(f"{ctx.path}/{name}"), journal.last_result(ctx.path)
    if (
        known is None
        or end is None
        or end.number < known.number
        or not isinstance(end.outcome, Failed)
    ):
        return ctx
    in_vain = isinstance(known.outcome, Failed) or is_in_vain(known, end.outcome.failure)
    return replace(ctx, can_replay=False) if in_vain else ctx


InVain: TypeAlias = "Callable[[StepRecord, Failure], bool]"


def can_continue_after(failure: Failure, path: str) -> bool:
    """Has something inside the step at a path failed, or had it no time left for more?"""
    return is_below(failure.path, path) or failure.kind == "timeout"


QUESTION_CODES: Final = frozenset({"once", "changed"})
"""Codes of errors that ask the user something: no outcome of a step, and a resumed run asks again.
"""


def changed_steps_error(steps: Iterable[tuple[str, str]]) -> InputError:
    named = [f"{path} ({title})" for path, title in steps]
    return InputError(
        "the file has changed since these steps were done: " + ", ".join(named[:20]),
        fix="plait resume --accept-changes does them again, and all that follows them; "
        "or put the file back as it was",
        code="changed",
    )


ITEMS_STEP: Final = "items"
"""The name, and the kind, of the step that chooses the items of a map."""


class RecordedLookup(Protocol):
    def step(self, path: str) -> StepRecord | None: ...


def items_selected_at(journal: RecordedLookup, fan: str, chooser: str = ITEMS_STEP) -> int:
    """The event with which the items of a fan were chosen; 0 if nothing is known of that."""
    return record_number(journal.step(f"{fan}/{chooser}"))


@dataclass(frozen=True, slots=True)
class RetriedItems:
    """Whatever is not in these items stays as it was done, also if its text was another one
    then.
    """

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; none: nothing was ever retried."""
    held: Mapping[str, str] = field(default_factory=dict)
    """By paths of the flow: the texts of its steps then, as fingerprints."""

    def keeps(self, path: str, fingerprint: str) -> bool:
        """Is what was done at a path not done again for its text, which is this one now?"""
        if not self.items or "/".join(path.split("/", 2)[:2]) in self.items:
            return False
        return self.held.get(generic_path(path)) == fingerprint


NOT_RETRIED: Final = RetriedItems()


class Replay:
    """Decides which recorded outcomes count, and which steps the user is asked about."""

    def __init__(
        self,
        run: str,
        journal: Journal,
        *,
        accept_changes: bool = False,
        repeat: Iterable[str] = (),
        marked_done: Mapping[str, Json] | None = None,
        retried: RetriedItems = NOT_RETRIED,
        open_questions: Mapping[str, str] | None = None,
    ) -> None:
        """`repeat` and `marked_done`: paths of steps that the user wants done again, or says are
        done, with what these give.  `open_questions`: titles by path of steps that may run only
        once, were started before, and whose end is not known.
        """
        self.is_first_run = journal.is_fresh()
        """Nothing recorded counts: this is the first attempt, and no step was tried twice."""
        self.first_event = 1 if self.is_first_run else journal.last() + 1
        """The number of the first event of this attempt of the run."""
        self.accept_changes = accept_changes
        self.marked_done: Mapping[str, Json] = marked_done or {}
        self.retried = retried
        self.unfinished_once: set[str] = set()
        """Steps that may run only once, were started in this attempt, and whose end is not known."""
        self._run = run
        self._journal = journal
        self._repeat = frozenset(repeat)
        self._open_questions: Mapping[str, str] = open_questions or {}

    def continue_attempts(self) -> None:
        """From now on recorded outcomes count: another attempt of a step goes on inside it."""
        self.is_first_run = False

    def find(self, step: Step, ctx: StepContext) -> Outcome | None:
        """The recorded outcome of a step, if it counts; None if the step has to be done."""
        if self.is_first_run:
            return None
        path, run = ctx.path, ctx.run
        given = self.marked_done.get(path)
        is_answered = given is not None or path in self._repeat
        if step.policy.at_most_once and not is_answered and self._journal.is_unfinished(path):
            self.require_answer(step, ctx)
        recorded = self._find_record(step, ctx)
        if recorded is not None:
            outcome = recorded.outcome
            run.events.notify(_replayed(step, ctx, recorded))
        elif given is not None:
            outcome = self._accept_as_done(step, ctx, given)
        else:
            return None
        run.budgets.add_earlier_time(path)
        run.hooks.deliver_pending(ctx, outcome)
        if run.plan is not None:
            run.plan.add_recorded(step, path)
        return outcome

    def _find_record(self, step: Step, ctx: StepContext) -> StepRecord | None:
        if not ctx.can_replay:
            return None
        recorded = self._journal.step(ctx.path)
        if recorded is None:
            return None
        if recorded.number <= ctx.replay_after:
            return None  # a step before it was done again since, and the run ended before this one
        if isinstance(recorded.outcome, Failed) and not step.policy.keep_failure:
            return None
        if recorded.fingerprint != step.fingerprint and not self.retried.keeps(
            ctx.path, step.fingerprint
        ):
            if not (step.children or self.accept_changes):
                raise changed_steps_error([(ctx.path, step.title)])
            return None
        return recorded

    def _accept_as_done(self, step: Step, ctx: StepContext, value: Json) -> Outcome:
        """Record that a step is done because the user says so.

        Only when the run comes to it: a step before it that is done again would void it.
        """
        if (capture := getattr(getattr(step, "work", step), "capture", None)) is not None:
            ctx.run.events.note(
                ctx.path,
                f"taken as done: what it printed is not known, so '{capture.name}' is empty",
            )
        outcome = Succeeded(value)
        about = ctx.path, step.kind, step.title, step.fingerprint
        ctx.run.events.emit(StepFinished(*about, outcome, 0.0, ctx.order))
        return outcome

    def has_older_result(self, ctx: StepContext) -> bool:
        """May there be an older end of the step, which counts no more once it is started again?"""
        return not ctx.can_replay if self.is_first_run else self._journal.step(ctx.path) is not None

    def require_answer(self, step: Step, ctx: StepContext) -> None:
        """Ask about this step, and about all others that are known to need an answer."""
        if ctx.run.plan is not None:
            ctx.run.plan.add_question(ctx.path)
            return
        asked = {ctx.path: step.title, **self._open_questions}
        answered = {*self._repeat, *self.marked_done}
        raise InputError.together(
            [
                _question(self._run, path, title)
                for path, title in asked.items()
                if path not in answered
            ]
        )

    def is_repeated(self, path: str) -> bool:
        """Has the user said that a step whose end is not known is to be done again?"""
        return path in self._repeat

    def is_retried(self, path: str) -> bool:
        return path in self.retried.items


def _replayed(step: Step, ctx: StepContext, recorded: StepRecord) -> StepFinished:
    return StepFinished(
        ctx.path,
        step.kind,
        step.title,
        step.fingerprint,
        recorded.outcome,
        recorded.duration,
        ctx.order,
        replayed=True,
        used=recorded.used,
    )


def _question(run: str, path: str, title: str) -> Problem:
    return Problem(
        f"step '{title}' ({path}) may run only once, was begun, and its end is not known",
        None,
        f"find out whether it did its work; then plait resume {run} --repeat {path}, "
        f"or plait resume {run} --done {path}",
        code="once",
    )
