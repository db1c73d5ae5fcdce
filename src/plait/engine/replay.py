"""Replay: which recorded outcomes count in a resumed run, and when the user is asked.

A large map does not ask here for each item: `program/map_progress.py` skips the completed ones together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.events import StepFinished, StepInvalidated
from plait.engine.journal import Journal, StepRecord, record_number
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import (
    is_below,
    is_hook_name,
    join_path,
    last_name,
    path_names,
    unnumbered_name,
    unnumbered_path,
)
from plait.engine.run_text import NO_TEXT, RunText
from plait.engine.step import Composite

if TYPE_CHECKING:
    from plait.core.hints import TypeAlias
    from plait.engine.outcome import Failure
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


def replay_unless_failed(
    ctx: StepContext, name: str, must_repeat: MustRepeat = lambda *_: False
) -> StepContext:
    """Return the context of a step whose failure is handled; if the handler failed, it runs again.

    `must_repeat` is asked about a step that succeeded: must it run again, given how the step around
    it failed afterwards?
    """
    journal = ctx.run.journal
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return ctx
    known, end = journal.step(join_path(ctx.path, name)), journal.last_result(ctx.path)
    if (
        known is None
        or end is None
        or end.number < known.number
        or not isinstance(end.outcome, Failed)
    ):
        return ctx
    if isinstance(known.outcome, Failed) or must_repeat(known, end.outcome.failure):
        return replace(ctx, can_replay=False)
    return ctx


MustRepeat: TypeAlias = "Callable[[StepRecord, Failure], bool]"


def can_continue_after(failure: Failure, path: str) -> bool:
    """Has a step inside the one at a path failed, or did it time out?"""
    return is_below(failure.path, path) or failure.kind == "timeout"


QUESTION_CODES: Final = frozenset({"once", "changed"})
"""Codes of errors that ask the user something: the step has no outcome, and a resume asks again."""


def changed_steps_error(run: str, steps: Iterable[tuple[str, str]]) -> InputError:
    named = [f"{path} ({title})" for path, title in steps]
    return InputError(
        "the file has changed since these steps were done: " + ", ".join(named[:20]),
        fix=f"plait resume {run} --accept-changes does them again, and all that follows them; "
        "or put the file back as it was",
        code="changed",
    )


ITEMS_STEP: Final = "items"
"""The name, and the kind, of the step that chooses the items of a map."""


class RecordedLookup(Protocol):
    def step(self, path: str) -> StepRecord | None: ...


def items_selected_at(journal: RecordedLookup, map_path: str, chooser: str = ITEMS_STEP) -> int:
    """Return the number of the event that recorded the items of a map; 0: there is none."""
    return record_number(journal.step(join_path(map_path, chooser)))


class Replay:
    """Decides which recorded outcomes count, and which steps need an answer of the user."""

    def __init__(
        self,
        run: str,
        journal: Journal,
        *,
        text: RunText = NO_TEXT,
        repeat: Iterable[str] = (),
        marked_done: Mapping[str, Json] | None = None,
        retried: Collection[str] = (),
        open_questions: Mapping[str, str] | None = None,
    ) -> None:
        """`repeat`: paths of steps that the user wants to run again.  `marked_done`: values by path
        of steps that the user says are done.  `retried`: paths of items that `plait retry` starts
        again.  `open_questions`: titles by path of at-most-once steps that were started before, and
        whose end is unknown.
        """
        self.is_first_run = journal.is_fresh()
        """No record counts: this is the first attempt of the run, and no step was retried."""
        self.first_event = 1 if self.is_first_run else journal.last() + 1
        """The number of the first event of this attempt of the run."""
        self.text = text
        self.marked_done: Mapping[str, Json] = marked_done or {}
        self.retried = frozenset(retried)
        self.unfinished_once: set[str] = set()
        """At-most-once steps that were started in this attempt, and whose end is unknown."""
        self._run = run
        self._journal = journal
        self._repeat = frozenset(repeat)
        self._open_questions: Mapping[str, str] = open_questions or {}

    def continue_attempts(self) -> None:
        """Let recorded outcomes count from now on: a retried step replays its children."""
        self.is_first_run = False

    def find(self, step: Step, ctx: StepContext) -> Outcome | None:
        """Return the recorded outcome of a step if it counts; None: the step has to run."""
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
            run.events.notify(_replay_event(step, ctx, recorded))
        elif given is not None:
            outcome = self._accept_as_done(step, ctx, given)
        else:
            return None
        run.budgets.add_earlier_time(path)
        run.hooks.deliver_pending(ctx, outcome)
        if run.plan_log is not None:
            run.plan_log.add_recorded(step, path)
        return outcome

    def _find_record(self, step: Step, ctx: StepContext) -> StepRecord | None:
        if not ctx.can_replay:
            return None
        recorded = self._journal.step(ctx.path)
        if recorded is None:
            return None
        if recorded.number <= ctx.replay_after:
            return None  # a step before it ran again later, and the run ended before this one
        if isinstance(recorded.outcome, Failed) and not step.policy.keep_failure:
            return None
        if not self.has_text(recorded, step.fingerprint):
            if not (step.children or self.text.is_accepted):
                title = ctx.run.secrets.mask_title(step.title)
                raise changed_steps_error(self._run, [(ctx.path, title)])
            return None
        return recorded

    def has_text(self, recorded: StepRecord, present: str) -> bool:
        """Does a recorded outcome count for a step that has this fingerprint now?"""
        if recorded.fingerprint == present:
            return True
        if join_path(*path_names(recorded.path)[:2]) in self.retried:
            return False  # in an item that is retried, only the present text counts
        return recorded.fingerprint in self.text.fingerprints(recorded.path, present)

    def require_known_steps(self, parts: Iterable[Step], ctx: StepContext) -> None:
        """Raise an error if a called flow was edited and has lost a step that was done.

        Under another name it would run again, even if it may run at most once.  `app/edited_flow.py` asks
        the same about the flow of the run.  What is accepted is invalidated, so it is asked once.
        """
        if self.is_first_run or not ctx.can_replay:
            return
        lost = [known for part in parts for known in self._find_lost_steps(part, ctx)]
        if lost and not self.text.is_accepted:
            named: dict[str, str] = {}
            for known in lost:  # the visits of a node are one step of the flow
                named.setdefault(unnumbered_path(known.path), f"{known.title}, removed")
            raise changed_steps_error(self._run, named.items())
        for known in lost:
            ctx.run.events.emit(StepInvalidated(known.path, "it is not in the file any more"))

    def _find_lost_steps(self, part: Step, ctx: StepContext) -> Iterator[StepRecord]:
        """Yield what was done directly below a part of a flow, and is not one of its steps now."""
        names = {step.name for step in part.children}
        for known in self._journal.steps_in(join_path(ctx.path, part.name)) if names else ():
            name = last_name(known.path)
            if is_hook_name(name) or not names.isdisjoint((name, unnumbered_name(name))):
                continue
            if known.number > ctx.replay_after and isinstance(known.outcome, Succeeded):
                yield known

    def _accept_as_done(self, step: Step, ctx: StepContext, value: Json) -> Outcome:
        """Record a step as done because the user says so.

        This happens when the run comes to it: if a step before it runs again, it does not count.
        """
        if isinstance(step, Composite) and (name := step.capture_name):
            ctx.run.events.note(
                ctx.path,
                f"taken as done: what it printed is not known, so '{name}' is empty",
            )
        outcome = Succeeded(value)
        about = ctx.path, step.kind, step.title, step.fingerprint
        ctx.run.events.emit(StepFinished(*about, outcome, 0.0, ctx.order))
        return outcome

    def has_older_result(self, ctx: StepContext) -> bool:
        """May there be an older end of the step, which a new start makes invalid?"""
        return not ctx.can_replay if self.is_first_run else self._journal.step(ctx.path) is not None

    def require_answer(self, step: Step, ctx: StepContext) -> None:
        """Raise an error that asks about this step and all others that need an answer."""
        if ctx.run.plan_log is not None:
            ctx.run.plan_log.add_question(ctx.path)
            return
        asked = {ctx.path: ctx.run.secrets.mask_title(step.title), **self._open_questions}
        answered = {*self._repeat, *self.marked_done}
        raise InputError.together(
            [
                _question(self._run, path, title)
                for path, title in asked.items()
                if path not in answered
            ]
        )

    def is_repeated(self, path: str) -> bool:
        """Did the user say that a step with an unknown end runs again?"""
        return path in self._repeat


def _replay_event(step: Step, ctx: StepContext, recorded: StepRecord) -> StepFinished:
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
        f"step '{title}' ({path}) may run at most once; it started, and its outcome is unknown",
        None,
        f"find out whether it did its work; then plait resume {run} --repeat {path}, "
        f"or plait resume {run} --done {path}",
        code="once",
    )
