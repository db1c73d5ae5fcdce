"""Run a step, unless this run has already finished it.

`act` is the only caller of `run`, and `perform` of a step.  It replays, records, retries, keeps
the time and turns whatever a step raises into an outcome.  There is no other
resume code: a resumed run performs the whole flow again, and what is recorded
is not done but remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from plait.core.errors import NO_OUTCOMES, JournalError, PlaitError
from plait.core.hints import TYPE_CHECKING, Any, Protocol, cast
from plait.core.machine import REFUSALS, machine_error
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.backend import WorkItem
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
from plait.engine.step import Action, Composite, LeafStep

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.engine.step import RetryScope, Step
    from plait.scope import Scope

    # A step may also have `retry_scope: RetryScope`.


def act(what: Composite | Action | Runnable | Step, ctx: StepContext) -> Any:
    """What a step, an action or a program gives: nothing else calls `run` or `execute`.

    A dry run goes through composites and plans actions.  Whatever is neither does not act in one:
    it is shown as something that would run.
    """
    if isinstance(what, LeafStep):
        what = what.action
    if isinstance(what, Composite):
        return what.run(ctx)
    log, action = ctx.run.plan, cast("Any", what)
    if not hasattr(what, "plan"):
        return action.run(ctx) if log is None else log.add_unknown(ctx, what)
    plan = action.plan(ctx)
    return action.execute(plan, ctx) if log is None else plan.show(ctx, log)


class Runnable(Protocol):
    """Something that acts when it is run, and knows nothing of dry runs."""

    def run(self, ctx: StepContext) -> Json: ...


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
    timer: StepTimer | None = None
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
        known = self.run.replay.find(step, inner)
        if known is not None:
            return known, self._behind(inner.path)
        outcome = perform_new(step, inner, is_last=is_last)
        return outcome, self if self.run.replay.is_first_run else replace(self, can_replay=False)

    def perform_many(
        self,
        steps: Sequence[Step],
        *,
        parallel: int,
        first: int = 0,
        scope: Callable[[int], Scope | None] = lambda _: None,
        stops: Callable[[Outcome], bool] = lambda _: False,
    ) -> tuple[list[Outcome], StepContext]:
        """Perform steps that need nothing of each other, `parallel` at a time.

        Returns the outcomes of those that were started, in order, and the context of what follows
        them all.  No step starts after an outcome that `stops`.  `first` is the order of the first
        step, `scope` gives the names of each.
        """
        ended: dict[int, Outcome] = {}
        contexts: list[StepContext] = []

        def perform_one(work: WorkItem) -> Outcome:
            number = work.order
            outcome, after = self.perform_next(steps[number], first + number, scope=scope(number))
            contexts.append(after)
            return outcome

        def finish_one(work: WorkItem, outcome: Outcome) -> None:
            ended[work.order] = outcome

        def wanted() -> Iterator[WorkItem]:
            for number, step in enumerate(steps):
                if self.run.stop.is_set() or any(map(stops, list(ended.values()))):
                    return
                yield WorkItem(number, step.name, None)

        if steps:
            most = max(1, min(parallel, len(steps)))
            self.run.backend.run(wanted(), perform_one, finish_one, parallel=most)
            self.run.stop.require_unset()
        return [ended[number] for number in sorted(ended)], join_contexts(self, contexts)

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
            self.timer,
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
        )

    def with_deadline(self, seconds: float) -> StepContext:
        """The same with so much time, if there is not less already."""
        end = time.monotonic() + seconds
        return replace(self, deadline=end if self.deadline is None else min(end, self.deadline))

    def without_timeout(self) -> StepContext:
        """The same, however long it takes."""
        return replace(self, deadline=None, timer=None)

    def ends_at(self) -> float | None:
        """By the monotonic clock; None if nobody set a limit."""
        if self.timer is None:
            return self.deadline
        own = self.timer.end()
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
    known = ctx.run.replay.find(step, ctx)
    return perform_new(step, ctx) if known is None else known


def perform_new(step: Step, ctx: StepContext, *, is_last: bool = False) -> Outcome:
    """Run a step of which no recorded outcome counts, and record how it ends.

    `is_last`: its end is the end of the list that it is in.
    """
    run = ctx.run
    try:
        if ctx.is_expired():
            raise DeadlineExceeded
        if ctx.path in run.replay.unfinished_once:
            # It was cut in this attempt of the run, and is to be tried again with the step around.
            run.replay.require_answer(step, ctx)
        attempts = Attempts(step, ctx)
        aborted: Aborted | None = None
        try:
            outcome = run.hooks.before(step, ctx)
            while outcome is None:
                outcome = attempts.settle(_attempt(step, attempts.start(), ctx))
        except Aborted as error:
            # A limit of what it is inside of, too: no end that counts, but for what was paid.
            if error.outcome is None or error.path != ctx.path:
                raise
            outcome, aborted = error.outcome, error
        return _record(step, ctx, outcome, attempts, aborted, is_last=is_last)
    finally:
        # Of a step without an end only what was paid is recorded: it is done, and counted, again.
        used = run.budgets.take_charges(ctx.path)
        if used is not None and "turns" in used:
            ended = Failed(Failure("was ended", "stopped", path=ctx.path))
            about = ctx.path, step.kind, step.title, step.fingerprint
            end = StepFinished(*about, ended, 0.0, ctx.order, used=used)
            run.events.emit_discarded(end, "it was ended")


class Attempts:
    """The attempts of one step: their contexts, the pauses between them, and how often it is tried."""

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
        """Record that an attempt starts; its context."""
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
        return replace(self._own, attempt=self.number, timer=timer)

    def settle(self, outcome: Outcome) -> Outcome | None:
        """How the step ends; None after a pause, if it is to be tried again."""
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
            # As in a resumed run: what was done inside of it, at any attempt, stays done.
            self._own = replace(ctx, can_replay=True, replay_after=self._since)
            run.replay.continue_attempts()
        return None

    def _pause(self, failure: Failure) -> float | None:
        """Seconds until the next attempt by the policy of the step; None if there is none."""
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


def _attempt(step: Step, ctx: StepContext, around: StepContext) -> Outcome:
    """One attempt; `around` is the context without the time of the attempt."""
    limit = step.policy.timeout
    try:
        value = step.run(ctx) if isinstance(step, Composite) else act(step, ctx)
        return Succeeded(require_recordable(value))
    except Skip as skip:
        return Skipped(skip.why)
    except StepError as error:
        failure = recordable_failure(error.failure)
        failed = Failed(failure if failure.path else replace(failure, path=ctx.path))
        return failed if limit is None else _with_limit(failed, limit, ctx, around)
    except DeadlineExceeded:
        if limit is None or around.is_expired():
            raise
        return Failed(replace(too_long(limit), path=ctx.path))
    except NO_OUTCOMES:
        raise
    except PlaitError as error:
        if error.code in QUESTION_CODES:
            raise  # the user answers it and resumes the run
        if error.code == "cancelled" and ctx.run.stop.is_set():
            raise Interrupted from None
        kind = "timeout" if error.code == "timeout" else "refused"
        failed = Failed(Failure(ctx.run.secrets.mask(str(error)), kind, path=ctx.path))
        return failed if limit is None else _with_limit(failed, limit, ctx, around)
    except REFUSALS as error:
        machine = machine_error(error)
        if machine is None:
            raise
        raise machine from error


def _with_limit(failed: Failed, limit: float, ctx: StepContext, around: StepContext) -> Failed:
    """What ended the step knew only how much time was left; people know the author's `timeout`."""
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
    """Record the end of a step, then let hooks hear of it."""
    run, policy = ctx.run, step.policy
    is_timeout = isinstance(outcome, Failed) and outcome.failure.kind == "timeout"
    cut_short = is_timeout and ctx.is_expired()
    if policy.at_most_once and not cut_short:
        run.replay.unfinished_once.discard(ctx.path)
    if cut_short and (policy.keep_failure or policy.at_most_once):
        # The step itself had time, so its failure must not count; and of one that is done once it is
        # not known how far it came.
        raise DeadlineExceeded
    if cut_short and isinstance(outcome, Failed) and outcome.failure.path == ctx.path:
        outcome = Failed(replace(outcome.failure, message=NO_TIME_LEFT))
    is_limit = isinstance(aborted, LimitExceeded)
    if isinstance(outcome, Failed) and policy.skip_on_failure and not is_limit:
        outcome = Skipped(outcome.failure.message)
    pending = (
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
        owed=None if pending is None else pending.owed,
    )
    # Before any hook hears of it: a hook that has not heard when the run ends hears of it later.
    try:
        if is_limit and isinstance(outcome, Failed) and policy.keep_failure:
            # A failure that is not the step's own must not count; what was paid for it is kept.
            run.events.emit_discarded(end, "a limit cut it off")
        elif is_last and pending is None:
            run.events.emit_with_parent(end)
        else:
            run.events.emit(end)
    except JournalError as error:
        raise _at_failure(error, step, ctx, outcome) from None
    if cut_short:
        raise DeadlineExceeded
    if aborted is not None:
        raise aborted
    if pending is not None:
        pending.tell()
    return outcome


def _at_failure(
    error: JournalError, step: Step, ctx: StepContext, outcome: Outcome
) -> JournalError:
    """With the failure at which the journal could not go on: the journal may not hold it."""
    if not isinstance(outcome, Failed):
        return error
    lines = outcome.failure.message.splitlines()
    # What to do about the journal comes first.
    why = "\n".join(line for line in lines if not line.startswith("fix: "))
    begins = "before that" if error.holds_last else "so it does not hold that"
    fix = error.fix
    if error.holds_last and step.policy.keep_failure:
        fix = f"{fix}; plait retry {ctx.run.id} --failed tries again what failed"
    return JournalError(
        f"{error.what}; {begins} '{step.title}' failed: {why}", error.where, fix, code=error.code
    )
