"""Perform a step: replay its recorded outcome, or run it and record how it ends.

`perform` is the only way to run a step.  It replays, retries, keeps time, turns exceptions into
outcomes and records them.  Steps have no code for resume: a resumed run performs the whole flow
again, and `perform` replays what is recorded.  Nothing outside of this module calls the `run` or
`execute` of a step, and nothing here calls `execute` in a dry run (see `act`).

All this is written as coroutines (see `coroutines`).  A function that ends in `_async` is awaited
by a step that is one itself; the function without it runs the same coroutine to its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import CoroutineType

from plait.core.errors import NO_OUTCOMES, JournalError, PlaitError
from plait.core.hints import TYPE_CHECKING, Any, Protocol, cast
from plait.core.os_errors import REFUSALS, machine_error
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, too_deep_error
from plait.engine.coroutines import finish
from plait.engine.events import StepFinished, StepRetrying, StepStarted
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
from plait.engine.replay import QUESTION_CODES, can_continue_after
from plait.engine.step import Action, Composite, LeafStep, retry_mark

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.engine.step import Policy, RetryScope, Step
    from plait.scope import Scope

    # A step may also have `retry_scope: RetryScope`.


def act(what: Composite | Action | Runnable | Step, ctx: StepContext) -> Any:
    """Run a composite, or plan and execute an action; return its value.

    A dry run goes through composites and only plans actions.  An object that is neither is not run
    in a dry run; the plan says that it would run.
    """
    value = what.run(ctx) if isinstance(what, Composite) else _act(what, ctx)
    return finish(value) if type(value) is CoroutineType else value


async def act_async(what: Composite | Action | Runnable | Step, ctx: StepContext) -> Any:
    value = what.run(ctx) if isinstance(what, Composite) else _act(what, ctx)
    return await value if type(value) is CoroutineType else value


def _act(what: Action | Runnable | Step, ctx: StepContext) -> Any:
    """Return the value, or a coroutine that returns it."""
    if isinstance(what, LeafStep):
        if isinstance(what.action, Composite):
            return what.action.run(ctx)
        what = what.action
    log, action = ctx.run.plan_log, cast("Any", what)
    if not hasattr(what, "plan"):
        return action.run(ctx) if log is None else log.add_unknown(ctx, what)
    plan = action.plan(ctx)
    return action.execute(plan, ctx) if log is None else plan.show(ctx, log)


class Runnable(Protocol):
    """An object with only a `run`, which may act: a dry run does not call it."""

    def run(self, ctx: StepContext) -> Json: ...


class StepTimer:
    """The time that the `timeout` of a step leaves for one attempt; it pauses while hooks run."""

    def __init__(self, seconds: float, around: StepTimer | None = None) -> None:
        self.around = around
        """The timer of the step around this one."""
        self._end = time.monotonic() + seconds
        self._asking = 0
        self._since = 0.0
        self._lock = Lock()

    def end(self) -> float:
        """Return when the time is over, by the monotonic clock, if no further hook runs."""
        with self._lock:
            own = self._end + (time.monotonic() - self._since if self._asking else 0.0)
        return own if self.around is None else min(own, self.around.end())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause while a hook runs; the time of parallel hooks counts once."""
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
    """What a step gets when it is performed: path, scope, time left, and how to perform children."""

    run: RunContext
    path: str
    scope: Scope
    deadline: float | None = None
    """When the time of the flow is over, by the monotonic clock."""
    attempt: int = 1
    order: int = 0
    can_replay: bool = True
    """Every step before this one was replayed, so its recorded outcome may count, too."""
    directory: str = "."
    """Where its processes run and its files are."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment of its processes."""
    replay_after: int = 0
    """The number of the event with which the step before it ended; older records do not count."""
    timer: StepTimer | None = None
    """The time by the `timeout` of the steps around, beside the deadline of the flow."""
    retries: str = ""
    """The later attempts of this step and those around it that it belongs to, for trace ids."""

    def perform(
        self, step: Step, *, scope: Scope | None = None, name: str | None = None
    ) -> Outcome:
        """Perform a child of this step."""
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
        """Perform one of several steps in a row; return its outcome and the context for the next.

        Once one of them is not replayed, none of those after it is.  `is_last`: this step ends
        together with the list that it is in.
        """
        return finish(self.perform_next_async(step, order, scope=scope, name=name, is_last=is_last))

    async def perform_next_async(
        self,
        step: Step,
        order: int = 0,
        *,
        scope: Scope | None = None,
        name: str | None = None,
        is_last: bool = False,
    ) -> tuple[Outcome, StepContext]:
        ctx = self.child(step, scope=scope, name=name, order=order)
        known = self.run.replay.find(step, ctx)
        if known is not None:
            return known, self._after_replay(ctx.path)
        outcome = await perform_new_async(step, ctx, is_last=is_last)
        return outcome, self if self.run.replay.is_first_run else replace(self, can_replay=False)

    def _after_replay(self, path: str) -> StepContext:
        """Return the context for what follows a replayed step."""
        recorded = self.run.journal.step(path)
        number = 0 if recorded is None else recorded.number
        return self if number <= self.replay_after else replace(self, replay_after=number)

    def child(
        self, step: Step, *, scope: Scope | None = None, name: str | None = None, order: int = 0
    ) -> StepContext:
        """Return the context of a child of this step."""
        path = f"{self.path}/{name or step.name}" if self.path else name or step.name
        # Not `replace`, which is slower: a map calls this for each of a million items.
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
            self.timer,
            self.retries,
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
            self.timer,
            self.retries,
        )

    def with_deadline(self, seconds: float) -> StepContext:
        """Return the same context with at most so many seconds left."""
        end = time.monotonic() + seconds
        return replace(self, deadline=end if self.deadline is None else min(end, self.deadline))

    def without_timeout(self) -> StepContext:
        """Return the same context without deadline and timer."""
        return replace(self, deadline=None, timer=None)

    def ends_at(self) -> float | None:
        """Return when the time is over, by the monotonic clock; None: there is no limit."""
        if self.timer is None:
            return self.deadline
        own = self.timer.end()
        return own if self.deadline is None else min(own, self.deadline)

    def time_left(self) -> float | None:
        """Return the seconds left; None: there is no limit."""
        end = self.ends_at()
        return None if end is None else max(0.0, end - time.monotonic())

    def is_expired(self) -> bool:
        """Is the time of the flow, or of a step around this one, over?"""
        end = self.ends_at()
        return end is not None and time.monotonic() >= end


def perform(step: Step, ctx: StepContext) -> Outcome:
    """Replay the recorded outcome of a step, or run the step and record its outcome."""
    known = ctx.run.replay.find(step, ctx)
    return finish(perform_new_async(step, ctx)) if known is None else known


async def perform_new_async(step: Step, ctx: StepContext, *, is_last: bool = False) -> Outcome:
    """Run a step that has no recorded outcome that counts, and record how it ends.

    `is_last`: it ends together with the list that it is in.
    """
    run = ctx.run
    try:
        if ctx.is_expired():
            raise DeadlineExceeded
        if ctx.path in run.replay.unfinished_once:
            # It was cut short in this attempt of the run, and the step around it is retried.
            run.replay.require_answer(step, ctx)
        attempts = Attempts(step, ctx)
        aborted: Aborted | None = None
        try:
            outcome = run.hooks.before(step, ctx)
            while outcome is None:
                own = attempts.start()
                try:
                    value = step.run(own) if isinstance(step, Composite) else _act(step, own)
                    if type(value) is CoroutineType:
                        value = await value
                    ended: Outcome = Succeeded(require_recordable(value))
                except (Exception, DeadlineExceeded) as error:
                    ended = _outcome_after(error, step, own, ctx)
                outcome = attempts.settle(ended)
        except Aborted as abort:
            # This holds for a limit of a step around it, too: only the usage is recorded.
            if abort.outcome is None or abort.path != ctx.path:
                raise
            outcome, aborted = abort.outcome, abort
        return _record(step, ctx, outcome, attempts, aborted, is_last=is_last)
    finally:
        # A step without an end is performed and counted again: only its usage is recorded.
        used = run.budgets.take_charges(ctx.path)
        if used is not None and "turns" in used:
            ended = Failed(Failure("was ended", "stopped", path=ctx.path))
            about = ctx.path, step.kind, step.title, step.fingerprint
            end = StepFinished(*about, ended, 0.0, ctx.order, used=used)
            run.events.emit_discarded(end, "it was ended")


class Attempts:
    """The attempts of one step: their contexts, their number and the pauses between them."""

    __slots__ = ("_ctx", "_delays", "_own", "_since", "_step", "began", "number")

    def __init__(self, step: Step, ctx: StepContext) -> None:
        retry = step.policy.retry
        self._step = step
        self._ctx = self._own = ctx
        self._delays = retry.delays(ctx.run.random) if retry.attempts > 1 else iter(())
        self._since = 0
        if _retry_scope(step) is not None:
            self._since = ctx.replay_after if ctx.can_replay else ctx.run.journal.last()
        self.began = time.monotonic()
        self.number = 1

    def start(self) -> StepContext:
        """Record that an attempt starts; return its context."""
        step, ctx, run = self._step, self._ctx, self._ctx.run
        once = step.policy.at_most_once
        run.stop.require_unset()
        started = StepStarted(ctx.path, step.kind, step.title, self.number, ctx.order)
        run.events.emit_start(started, at_once=once or run.replay.has_older_result(ctx))
        if once:
            run.replay.unfinished_once.add(ctx.path)
        timeout = step.policy.timeout
        if self.number == 1 and timeout is None:
            return self._own
        timer = ctx.timer if timeout is None else StepTimer(timeout, ctx.timer)
        retries = ctx.retries
        if self.number > 1:
            retries += retry_mark(ctx.path, self.number)
        return replace(self._own, attempt=self.number, timer=timer, retries=retries)

    def settle(self, outcome: Outcome) -> Outcome | None:
        """Return the outcome of the step, or None, after the pause, if it is retried."""
        if not isinstance(outcome, Failed):
            return outcome
        step, ctx, run = self._step, self._ctx, self._ctx.run
        retry = step.policy.retry
        delay = self._pause(outcome.failure)
        if delay is None:
            decided, delay = run.hooks.after_failure(step, ctx, self.number, outcome)
            if delay is None or not isinstance(decided, Failed):
                return decided
            outcome = decided
        of = retry.attempts if self.number < retry.attempts else 0
        used = run.budgets.take_charges(ctx.path)
        run.events.emit(StepRetrying(ctx.path, self.number, outcome.failure, delay, of, used))
        run.budgets.pause(ctx, delay)
        self.number += 1
        self._own = replace(ctx, can_replay=False)
        scope = _retry_scope(step)
        if scope == "always" or (scope and can_continue_after(outcome.failure, ctx.path)):
            # As in a resumed run, the children that any attempt has finished are replayed.
            self._own = replace(ctx, can_replay=True, replay_after=self._since)
            run.replay.continue_attempts()
        return None

    def _pause(self, failure: Failure) -> float | None:
        """Return the seconds until the next attempt by the step's policy; None: no further one."""
        retry = self._step.policy.retry
        delay = next(self._delays, None)
        if delay is None or not retry.applies_to(failure):
            return None
        if retry.exceeds_budget(time.monotonic() - self.began + delay):
            return None
        if (end := self._ctx.ends_at()) is not None and time.monotonic() + delay >= end:
            return None
        return delay


def _retry_scope(step: Step) -> RetryScope | None:
    return getattr(step, "retry_scope", None)


def _outcome_after(
    error: Exception | DeadlineExceeded, step: Step, ctx: StepContext, around: StepContext
) -> Outcome:
    """Return the outcome of an attempt that raised an error, or raise the error again.

    `around` is the context without the timer of the attempt.
    """
    limit = step.policy.timeout
    if isinstance(error, RecursionError):  # data that steps have built, level by level
        error = too_deep_error()
    match error:
        case Skip():
            return Skipped(error.why)
        case StepError():
            failure = recordable_failure(error.failure)
            failed = Failed(failure if failure.path else replace(failure, path=ctx.path))
            return failed if limit is None else _with_limit(failed, limit, ctx, around)
        case DeadlineExceeded() if limit is not None and not around.is_expired():
            return Failed(replace(too_long(limit), path=ctx.path))
        case PlaitError() if not isinstance(error, NO_OUTCOMES):
            if error.code in QUESTION_CODES:
                raise error  # the user answers it and resumes the run
            if error.code == "cancelled" and ctx.run.stop.is_set():
                raise Interrupted from None
            kind = "timeout" if error.code == "timeout" else "refused"
            failed = Failed(Failure(ctx.run.secrets.mask(str(error)), kind, path=ctx.path))
            return failed if limit is None else _with_limit(failed, limit, ctx, around)
    if isinstance(error, REFUSALS) and (machine := machine_error(error)) is not None:
        raise machine from error
    raise error


def _with_limit(failed: Failed, limit: float, ctx: StepContext, around: StepContext) -> Failed:
    """Name the author's `timeout` in the message: a process knows only the time that was left."""
    failure = failed.failure
    if not (ctx.is_expired() and not around.is_expired()):
        return failed
    if failure.kind != "timeout" or failure.path != ctx.path:
        return failed
    return Failed(replace(failure, message=too_long(limit).message))


def _record(
    step: Step,
    ctx: StepContext,
    outcome: Outcome,
    attempts: Attempts,
    aborted: Aborted | None,
    *,
    is_last: bool,
) -> Outcome:
    """Record the end of a step, then notify hooks."""
    run, policy = ctx.run, step.policy
    is_timeout = isinstance(outcome, Failed) and outcome.failure.kind == "timeout"
    cut_short = is_timeout and ctx.is_expired()
    if policy.at_most_once and not cut_short:
        run.replay.unfinished_once.discard(ctx.path)
    if cut_short and (policy.keep_failure or policy.at_most_once):
        # The time of a step around it was over, so its failure does not count; and how far an
        # at-most-once step came is unknown.
        raise DeadlineExceeded
    if cut_short and isinstance(outcome, Failed) and outcome.failure.path == ctx.path:
        outcome = Failed(replace(outcome.failure, message=NO_TIME_LEFT))
    is_limit = isinstance(aborted, LimitExceeded)
    if isinstance(outcome, Failed) and policy.skip_on_failure and not is_limit:
        outcome = Skipped(outcome.failure.message)
    notifications = (
        run.hooks.pending_after(step, ctx, outcome, attempts.number) if aborted is None else None
    )
    end = StepFinished(
        ctx.path,
        step.kind,
        run.events.take_title(ctx.path, step.title),
        step.fingerprint,
        outcome,
        time.monotonic() - attempts.began,
        ctx.order,
        used=run.budgets.take_charges(ctx.path),
        pending=None if notifications is None else notifications.pending,
    )
    # Recorded before hooks run: if the run ends first, a resumed run notifies the pending ones.
    try:
        if is_limit and isinstance(outcome, Failed) and policy.keep_failure:
            # A limit of a step around it is not its failure: only the usage counts.
            run.events.emit_discarded(end, "a limit cut it off")
        elif is_last and notifications is None:
            run.events.emit_with_parent(end)
        else:
            run.events.emit(end)
    except JournalError as error:
        if not isinstance(outcome, Failed):
            raise
        title = run.secrets.mask_title(end.title)
        raise add_failure(error, policy, run.id, title, outcome.failure) from None
    if cut_short:
        raise DeadlineExceeded
    if aborted is not None:
        raise aborted
    if notifications is not None:
        notifications.deliver()
    return outcome


def add_failure(
    error: JournalError, policy: Policy, run: str, title: str, failure: Failure
) -> JournalError:
    """Add the failure of a step to a journal error: the journal may not hold it."""
    lines = failure.message.splitlines()
    # The fix for the journal comes first, so the step's fix is left out.
    why = "\n".join(line for line in lines if not line.startswith("fix: "))
    begins = "before that" if error.holds_last else "so it does not hold that"
    fix = error.fix
    if error.holds_last and policy.keep_failure:
        fix = f"{fix}; plait retry {run} --failed retries what failed"
    return JournalError(
        f"{error.what}; {begins} '{title}' failed: {why}", error.where, fix, code=error.code
    )
