"""Run a step, unless this run has already finished it.

`act` is the only caller of `run`, and `perform` of a step.  It replays, records, retries, keeps
the time and turns whatever a step raises into an outcome.  There is no other
resume code: a resumed run performs the whole flow again, and what is recorded
is not done but remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

from plait.core.errors import NO_OUTCOMES, JournalError, PlaitError
from plait.core.hints import TYPE_CHECKING, Protocol, TypeVar
from plait.core.machine import REFUSALS, machine_error
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import StepFinished, StepRetrying, StepStarted, Usage
from plait.engine.outcome import (
    NO_TIME_LEFT,
    Aborted,
    DeadlineExceeded,
    Failed,
    Failure,
    Interrupted,
    LimitExceeded,
    Outcome,
    Skip,
    Skipped,
    StepError,
    Succeeded,
    recordable_failure,
    require_recordable,
    too_long,
)
from plait.engine.replay import QUESTION_CODES, can_continue_after, replay
from plait.engine.step import Retry

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.engine.step import Policy, RetryScope, Step
    from plait.scope import Scope

    _Run = TypeVar("_Run", bound=Callable[..., Json])

    # It may also have `retry_scope: RetryScope`; and its `run` may be one that `plans`.


class Acting(Protocol):
    """A step, the action of one, or a program: something that acts when it is run."""

    def run(self, ctx: StepContext) -> Json: ...


def plans(run: _Run) -> _Run:
    """Mark a `run` that knows dry runs: there it shows what it would do, and performs what is
    inside it.
    """
    run.plans = True  # type: ignore[attr-defined]  # a function takes any attribute
    return run


def act(what: Acting, ctx: StepContext) -> Json:
    """What a step, an action or a program gives: nothing else calls its `run`.

    A dry run calls only a `run` that `plans`.  Whatever knows nothing of dry runs does not act in
    one: it is shown as something that would run.
    """
    run = what.run
    if ctx.run.is_dry and not getattr(run, "plans", False):
        return ctx.run.would_run(ctx, what)
    return run(ctx)


class StepTimer:
    """The time of one attempt by its own `timeout`; it stands still while hooks are asked inside of
    it.
    """

    def __init__(self, seconds: float, around: StepTimer | None = None) -> None:
        self.around = around
        """That of a step which this one is inside of."""
        self._end = time.monotonic() + seconds
        self._asking = 0
        self._since = 0.0
        self._lock = Lock()

    def end(self) -> float:
        """By the monotonic clock, if no hook is asked from now on."""
        with self._lock:
            own = self._end + (time.monotonic() - self._since if self._asking else 0.0)
        return own if self.around is None else min(own, self.around.end())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While a hook is asked; of several side by side the time counts once."""
        with self._lock:
            self._asking += 1
            if self._asking == 1:
                self._since = time.monotonic()
        try:
            if self.around is None:
                yield
            else:
                with self.around.paused():
                    yield
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._end += time.monotonic() - self._since


@dataclass(frozen=True, slots=True)
class StepContext:
    """A step's place in a run: path, names, time left, and how to perform what is inside it."""

    run: RunContext
    path: str
    scope: Scope
    deadline: float | None = None
    """Of the flow, by the monotonic clock."""
    attempt: int = 1
    order: int = 0
    can_replay: bool = True
    """Everything before this step was remembered, so that it may be remembered, too."""
    directory: str = "."
    """Where its processes run and its files are."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What its processes find in their environment."""
    replay_after: int = 0
    """What is before this step ended with this event: an older record of it is one of another pass.
    """
    allowance: StepTimer | None = None
    """The time by the `timeout` of steps, beside that of the flow."""

    def perform(
        self, step: Step, *, scope: Scope | None = None, name: str | None = None
    ) -> Outcome:
        """Perform a step that is inside this one."""
        return perform(step, self.child(step, scope=scope, name=name))

    def perform_next(
        self,
        step: Step,
        order: int = 0,
        *,
        scope: Scope | None = None,
        name: str | None = None,
        is_last: bool = False,
    ) -> tuple[Outcome, StepContext]:
        """Perform one of several steps that follow each other; the turn in which the next is
        performed.

        What is remembered is a beginning: once a step was really done, those behind
        it are done, too, even if an earlier life of the run had done them.  `is_last`:
        the end of this step is the end of the one that it is inside of.
        """
        inner = self.child(step, scope=scope, name=name, order=order)
        known = replay(step, inner)
        if known is not None:
            return known, self._behind(inner.path)
        outcome = _perform_step(step, inner, is_last=is_last)
        return outcome, self if self.run.is_first_run else replace(self, can_replay=False)

    def _behind(self, path: str) -> StepContext:
        """The turn of what follows a step that was remembered."""
        recorded = self.run.journal.step(path)
        number = 0 if recorded is None else recorded.number
        return self if number <= self.replay_after else replace(self, replay_after=number)

    def child(
        self, step: Step, *, scope: Scope | None = None, name: str | None = None, order: int = 0
    ) -> StepContext:
        """The turn of a step that is inside this one."""
        path = f"{self.path}/{name or step.name}" if self.path else name or step.name
        # Not `replace`: this is done for each of a million items.
        return StepContext(
            self.run,
            path,
            scope or self.scope,
            self.deadline,
            1,
            order,
            self.can_replay,
            self.directory,
            self.env,
            self.replay_after,
            self.allowance,
        )

    def with_scope(self, scope: Scope) -> StepContext:
        return StepContext(
            self.run,
            self.path,
            scope,
            self.deadline,
            self.attempt,
            self.order,
            self.can_replay,
            self.directory,
            self.env,
            self.replay_after,
            self.allowance,
        )

    def with_deadline(self, seconds: float) -> StepContext:
        """The same with so much time, if there is not less already."""
        end = time.monotonic() + seconds
        return replace(self, deadline=end if self.deadline is None else min(end, self.deadline))

    def without_timeout(self) -> StepContext:
        """The same, however long it takes."""
        return replace(self, deadline=None, allowance=None)

    def ends_at(self) -> float | None:
        """By the monotonic clock; None if nobody set a limit."""
        if self.allowance is None:
            return self.deadline
        own = self.allowance.end()
        return own if self.deadline is None else min(own, self.deadline)

    def time_left(self) -> float | None:
        """Seconds; None if nobody set a limit."""
        end = self.ends_at()
        return None if end is None else max(0.0, end - time.monotonic())

    def is_expired(self) -> bool:
        """What this step is inside of has no time left."""
        end = self.ends_at()
        return end is not None and time.monotonic() >= end


def join_contexts(ctx: StepContext, turns: Iterable[StepContext]) -> StepContext:
    """The turn of what follows several steps that were performed side by side, given those behind
    each.
    """
    ended = (ctx, *turns)
    return replace(
        ctx,
        can_replay=all(one.can_replay for one in ended),
        replay_after=max(one.replay_after for one in ended),
    )


def perform(step: Step, ctx: StepContext) -> Outcome:
    """Run a step, unless this run has already finished it."""
    known = replay(step, ctx)
    return _perform_step(step, ctx) if known is None else known


def _perform_step(step: Step, ctx: StepContext, *, is_last: bool = False) -> Outcome:
    try:
        return _attempt_and_record(step, ctx, is_last=is_last)
    finally:
        # Of a step that has no end in this life only what was paid: it is done, and counted, again.
        used = ctx.run.take_charges(ctx.path)
        if used is not None and "turns" in used:
            _record_paid(step, ctx, used)


def _record_paid(step: Step, ctx: StepContext, used: Usage) -> None:
    outcome = Failed(Failure("was ended", "stopped", path=ctx.path))
    said = ctx.path, step.kind, step.title, step.fingerprint
    ctx.run.emit_discarded(StepFinished(*said, outcome, 0.0, ctx.order, used=used), "it was ended")


def _attempt_and_record(step: Step, ctx: StepContext, *, is_last: bool) -> Outcome:
    if ctx.is_expired():
        raise DeadlineExceeded
    if ctx.path in ctx.run.unfinished_once:
        ctx.run.require_answer(
            step, ctx
        )  # it was cut in this life, and is to be tried again with what it is in
    began = time.monotonic()
    hooks, ends_run = ctx.run.hooks, None
    attempt = 1
    try:
        outcome, attempt = _run_attempts(step, ctx, began)
    except Aborted as aborted:
        # A limit of what it is inside of, too: no end that counts, but for what was paid until
        # then.
        if aborted.outcome is None or aborted.path != ctx.path:
            raise
        outcome, ends_run = aborted.outcome, aborted
    cut_short = _is_timeout(outcome) and ctx.is_expired()
    if step.policy.at_most_once and not cut_short:
        ctx.run.unfinished_once.discard(ctx.path)
    if cut_short and (step.policy.keep_failure or step.policy.at_most_once):
        # The step had not taken too long, so nobody may remember that it failed; and of one that is
        # done
        # once nobody knows how far it came.
        raise DeadlineExceeded
    if cut_short and isinstance(outcome, Failed) and outcome.failure.path == ctx.path:
        outcome = Failed(replace(outcome.failure, message=NO_TIME_LEFT))
    is_own = not isinstance(ends_run, LimitExceeded)
    if isinstance(outcome, Failed) and step.policy.skip_on_failure and is_own:
        outcome = Skipped(outcome.failure.message)
    news = (
        None
        if hooks is None or ends_run is not None
        else hooks.pending_after(step, ctx, outcome, attempt)
    )
    end = StepFinished(
        ctx.path,
        step.kind,
        ctx.run.titles.pop(ctx.path, step.title),
        step.fingerprint,
        outcome,
        time.monotonic() - began,
        ctx.order,
        used=ctx.run.take_charges(ctx.path),
        owed=None if news is None else news.owed,
    )
    # Before any hook hears of it: who has not heard when this life ends hears of it in another one.
    try:
        if ends_run is not None and _would_count(ends_run, step, outcome):
            ctx.run.emit_discarded(end, "a limit cut it off")
        elif is_last and news is None:
            ctx.run.emit_with_parent(end)
        else:
            ctx.run.emit(end)
    except JournalError as error:
        raise _at_failure(error, step, ctx, outcome) from None
    if cut_short:
        raise DeadlineExceeded
    if ends_run is not None:
        raise ends_run
    if news is not None:
        news.tell()
    return outcome


def _at_failure(
    error: JournalError, step: Step, ctx: StepContext, outcome: Outcome
) -> JournalError:
    """With the failure at which the journal could not go on; perhaps nobody will find it there."""
    if not isinstance(outcome, Failed):
        return error
    said = outcome.failure.message.splitlines()
    why = "\n".join(
        line for line in said if not line.startswith("fix: ")
    )  # what to do first is ours
    begins = "before that" if error.holds_last else "so it does not hold that"
    fix = error.fix
    if error.holds_last and step.policy.keep_failure:
        fix = f"{fix}; plait retry {ctx.run.id} --failed tries again what failed"
    return JournalError(
        f"{error.what}; {begins} '{step.title}' failed: {why}", error.where, fix, code=error.code
    )


def _would_count(aborted: Aborted, step: Step, outcome: Outcome) -> bool:
    """Would a failure be remembered that is not the step's own?  What was paid for it is kept, no
    more.
    """
    is_limit = isinstance(aborted, LimitExceeded) and isinstance(outcome, Failed)
    return is_limit and step.policy.keep_failure


def _is_timeout(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.failure.kind == "timeout"


def _run_attempts(step: Step, ctx: StepContext, began: float) -> tuple[Outcome, int]:
    """What it comes to, and at which attempt."""
    policy, run = step.policy, ctx.run
    delays = policy.retry.delays(run.random) if policy.retry.attempts > 1 else iter(())
    attempt = 1
    hooks = run.hooks
    goes_on: RetryScope | None = getattr(step, "retry_scope", None)
    since = 0 if goes_on is None else ctx.replay_after if ctx.can_replay else run.journal.last()
    own = ctx
    if hooks is not None and (decided := hooks.before(step, ctx)) is not None:
        return decided, attempt
    while True:
        run.require_not_stopped()
        started = StepStarted(ctx.path, step.kind, step.title, attempt, ctx.order)
        run.emit_start(started, at_once=policy.at_most_once or run.has_older_result(ctx))
        if policy.at_most_once:
            run.unfinished_once.add(ctx.path)
        outcome = _in_time(step, own, attempt)
        if not isinstance(outcome, Failed):
            return outcome, attempt
        delay = _pause(policy.retry, delays, outcome.failure, ctx, began)
        if delay is None and hooks is not None:
            outcome, delay = hooks.after_failure(step, ctx, attempt, outcome)
        if delay is None or not isinstance(outcome, Failed):
            return outcome, attempt
        of = policy.retry.attempts if attempt < policy.retry.attempts else 0
        run.emit(
            StepRetrying(ctx.path, attempt, outcome.failure, delay, of, run.take_charges(ctx.path))
        )
        run.pause_at(ctx, delay)
        attempt += 1
        own = replace(ctx, can_replay=False)
        if goes_on == "always" or (goes_on and can_continue_after(outcome.failure, ctx.path)):
            # As in a run that is resumed: what was done inside of it, at this attempt or before,
            # stays done.
            own = replace(ctx, can_replay=True, replay_after=since)
            run.is_first_run = False


def _pause(
    retry: Retry, delays: Iterator[float], failure: Failure, ctx: StepContext, began: float
) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    delay = next(delays, None)
    if delay is None or not retry.applies_to(failure):
        return None
    if retry.exceeds_budget(time.monotonic() - began + delay):
        return None
    if (end := ctx.ends_at()) is not None and time.monotonic() + delay >= end:
        return None
    return delay


def _in_time(step: Step, ctx: StepContext, attempt: int) -> Outcome:
    """One attempt; it fails if its own time is over before all that is inside it has begun."""
    own = _for_attempt(ctx, attempt, step.policy)
    limit = step.policy.timeout
    try:
        outcome = _attempt(step, own)
    except DeadlineExceeded:
        if limit is None or ctx.is_expired():
            raise
        return Failed(replace(too_long(limit), path=ctx.path))
    if limit is not None and own.is_expired() and not ctx.is_expired():
        return _with_limit(outcome, limit, ctx.path)
    return outcome


def _with_limit(outcome: Outcome, limit: float, path: str) -> Outcome:
    """What ended it knew only how much time was left; people know what the author said."""
    if (
        isinstance(outcome, Failed)
        and outcome.failure.kind == "timeout"
        and outcome.failure.path == path
    ):
        return Failed(replace(outcome.failure, message=too_long(limit).message))
    return outcome


def _for_attempt(ctx: StepContext, attempt: int, policy: Policy) -> StepContext:
    if attempt == 1 and policy.timeout is None:
        return ctx
    own = ctx.allowance if policy.timeout is None else StepTimer(policy.timeout, ctx.allowance)
    return replace(ctx, attempt=attempt, allowance=own)


def _attempt(step: Step, ctx: StepContext) -> Outcome:
    try:
        return Succeeded(require_recordable(act(step, ctx)))
    except Skip as skip:
        return Skipped(skip.why)
    except StepError as error:
        failure = recordable_failure(error.failure)
        return Failed(failure if failure.path else replace(failure, path=ctx.path))
    except NO_OUTCOMES:
        raise
    except PlaitError as error:
        if error.code in QUESTION_CODES:
            raise  # as above: whoever answers it resumes the run
        if error.code == "cancelled" and ctx.run.is_stopping():
            raise Interrupted from None
        kind = "timeout" if error.code == "timeout" else "refused"
        return Failed(Failure(ctx.run.mask(str(error)), kind, path=ctx.path))
    except REFUSALS as error:
        limit = machine_error(error)
        if limit is None:
            raise
        raise limit from error
