"""Hooks: which ones run when something happens in a run, and what their decisions mean.

    event → hooks of that event, in the order of their layers → condition → actions → decision

The calls of a hook are a recorded step below the path where the event happened, so a resumed run
does not repeat them and decides as before.  Only after `fail` or `abort` the hook runs again: the
user has probably changed something before the resume.  A replayed step causes no events, and
neither does anything inside a hook.

The end of a step is recorded before its hooks run, together with the hooks that are pending
(`PendingHooks`).  If the run ends before a hook was notified, a resumed run notifies it.  A gate
that could not answer stays pending.

Of several decisions an `abort` wins, then a gate that could not answer, then the first.  A failed
hook that only observes is left out for the rest of this run attempt, with one note; a failed gate
blocks.  If a limit or the time of the flow ends a hook, the hook has not answered: the flow or
agent with the limit ends, and a resumed run asks the hook again.

A subflow may have hooks, too.  They run besides those of the run, and only for events inside the
subflow.

Hooks also check the limits of a run, before each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock

from plait.core.hints import Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.events import PendingHooks
from plait.engine.hook_events import (
    MAX_RETRIES,
    Hook,
    HookDecision,
    error_names,
    hook_family,
    step_names,
)
from plait.engine.hook_port import NOTHING, Hooks
from plait.engine.hook_step import (
    FlowHooks,
    HookListener,
    MakeCall,
    NotConcernedError,
    hook_rank,
    is_refusal,
)
from plait.engine.journal import StepRecord, record_number
from plait.engine.kinds import step_kind
from plait.engine.limits import NAMES as LIMITS
from plait.engine.limits import Budget, LimitReached
from plait.engine.outcome import (
    LIMIT,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    Skip,
    Skipped,
    StepError,
    Succeeded,
)
from plait.engine.paths import hook_name, is_at_or_below, is_model_step, join_path
from plait.engine.perform import StepContext
from plait.engine.step import Step
from plait.template.compiled import FACTS

PENDING_EVENTS: Final = ("step_finished", "item_finished", "turn_finished", "tool_result")
"""Events after an end that is recorded first: a resumed run delivers them if a crash did not."""
_BESIDE_STEPS: Final = tuple(name for name in LIMITS if name != "steps")


class HookRunner:
    """The hooks of a run or a subflow, and the limits of the run.  Safe to use from many threads."""

    is_empty = False

    def __init__(
        self,
        hooks: Iterable[Hook] = (),
        *,
        call: MakeCall,
        names: Mapping[str, Json] = NOTHING,
        budget: Budget | None = None,
        around: Hooks | None = None,
    ) -> None:
        """`around`: the hooks of the run, or of the flow, that calls this subflow."""
        outer = around if isinstance(around, HookRunner) else None
        around_depth = 0 if around is None else around.depth
        self.depth: int = around_depth + 1
        """The number of flows with hooks around, the run and this one included."""
        self.budget: Budget | None = budget if outer is None else outer.budget
        """The budget of the run."""
        self.active: set[str] = set() if outer is None else outer.active
        """The paths of hooks that run: what happens below them causes no events."""
        own = FlowHooks(
            hooks,
            depth=around_depth,
            call=call,
            names={"inputs": {}, "limits": {}, "directive": None, "model": None, **names},
            active=self.active,
        )
        self.chain: tuple[FlowHooks, ...] = (*(() if outer is None else outer.chain), own)
        """The hooks of the run and of every flow around, the outermost first; its own are last."""
        self._after_events: dict[str, tuple[str, Mapping[str, Json]]] = {}
        """By path: the event, and its variables, to fire when the end of a step is recorded."""
        self._lock = Lock()
        self._given_up: set[tuple[str, str]] = set() if outer is None else outer._given_up
        """Hooks that have used all retries, and the path of the failed step.  The steps around it
        are not retried by the same hook.
        """

    def has(self, event: str) -> bool:
        """Is there a hook for an event?"""
        return any(event in hooks.by_event for hooks in self.chain)

    # ── for steps that cause events ──────────────────────────────────────

    def fire(
        self,
        event: str,
        ctx: StepContext,
        context: Mapping[str, Json] = NOTHING,
        *,
        own_only: bool = False,
    ) -> HookDecision | None:
        """Run all hooks of an event at a step; return the decision that counts, if there is one.

        `own_only`: without the hooks of flows around.  The caller raises `abort_error` for an
        `abort`, which no failure handler catches.  A path has each event once per attempt
        (`ctx.attempt`, or `attempt` in `context`).
        """
        hooks = self._to_ask(event, own_only=own_only)
        if not hooks or self._is_inside_hook(ctx):
            return None
        attempt = context.get("attempt")
        if isinstance(attempt, int) and attempt != ctx.attempt:
            ctx = replace(ctx, attempt=attempt)
        found: list[HookDecision] = []
        variables = {**_place_variables(ctx), **self._event_variables(event, ctx, context)}
        for owner, name, hook in hooks:
            decision = owner.fire(name, hook, ctx, {**owner.names, **variables})
            if decision is not None:
                found.append(decision)
        return _strongest(found)

    def _to_ask(self, event: str, *, own_only: bool = False) -> list[tuple[FlowHooks, str, Hook]]:
        """Return the hooks of an event in order; in one layer those of the run come first."""
        chain = self.chain[-1:] if own_only else self.chain
        found = [
            (hooks, name, hook) for hooks in chain for name, hook in hooks.by_event.get(event, ())
        ]
        return found if len(chain) == 1 else sorted(found, key=lambda one: hook_rank(one[2]))

    def _is_inside_hook(self, ctx: StepContext) -> bool:
        return any(is_at_or_below(ctx.path, one) for one in tuple(self.active))

    def require(
        self,
        event: str,
        ctx: StepContext,
        context: Mapping[str, Json] = NOTHING,
        *,
        own_only: bool = False,
    ) -> HookDecision | None:
        """Do the same for an event before a step: raise Skip, StepError or Aborted as decided."""
        decision = self.fire(event, ctx, context, own_only=own_only)
        match decision:
            case HookDecision("skip"):
                raise Skip(decision.message)
            case HookDecision("fail"):
                raise StepError(decision.failure())
            case HookDecision("abort"):
                raise decision.abort_error()
        return decision

    def notify_after(self, ctx: StepContext, event: str, context: Mapping[str, Json]) -> None:
        """Fire an event when the end of the step at `ctx` is recorded."""
        self._after_events[ctx.path] = event, context

    def limit_reached(
        self, ctx: StepContext, reached: LimitReached, context: Mapping[str, Json] = NOTHING
    ) -> None:
        """Fire `limit` before the flow or agent with the limit ends; raise Aborted if a hook says so."""
        decision = self.fire("limit", ctx, {**context, "limit": reached.record()})
        if decision is not None and decision.verb == "abort":
            raise decision.abort_error()

    # ── for `perform` ────────────────────────────────────────────────────

    def before(self, step: Step, ctx: StepContext) -> Outcome | None:
        """Return the outcome of a step that hooks do not let start; None: it may start."""
        kind = hook_family(step)
        if kind is None or self._is_inside_hook(ctx):
            return None
        if self.budget is not None:
            self._require_within_limits(self.budget, step, ctx)
        decision = self.fire(f"{kind}_started", ctx, step_names(step, ctx.attempt))
        match decision:
            case HookDecision("skip"):
                return Skipped(decision.message)
            case HookDecision("fail"):
                return Failed(decision.failure())
            case HookDecision("abort"):
                raise decision.abort_error()
        return None

    def after_failure(
        self, step: Step, ctx: StepContext, attempt: int, failed: Failed
    ) -> tuple[Outcome, float | None]:
        """Return the outcome after a failure, and the pause before another attempt, if any."""
        kind, failure = hook_family(step), failed.failure
        if kind is None or failure.kind == LIMIT or not self.has(f"{kind}_failed"):
            return failed, None
        ctx = ctx if attempt == ctx.attempt else replace(ctx, attempt=attempt)
        context = {**step_names(step, ctx.attempt), "error": error_names(failure)}
        try:
            decision = self.fire(f"{kind}_failed", ctx, context)
        except LimitExceeded as end:
            end.path, end.outcome = ctx.path, failed
            raise
        match decision:
            case HookDecision("retry") if self._may_retry(decision, failure, attempt, step):
                return failed, decision.delay
            case HookDecision("continue"):
                make_value = getattr(step, "value_after_failure", None)
                value = dict(failure.as_result()) if make_value is None else make_value(failure)
                if value is None:
                    return failed, None  # it cannot count as done
                ctx.run.events.note(
                    ctx.path, f"'{step.title}' failed, and {decision.message}: {failure.message}"
                )
                return Succeeded(value), None
            case HookDecision("skip"):
                return Skipped(decision.message), None
            case HookDecision("fail"):
                return Failed(
                    replace(failure, message=f"{failure.message}\n{decision.message}")
                ), None
            case HookDecision("abort"):
                raise replace(decision, path=ctx.path).abort_error(failed)
        return failed, None

    def pending_after(
        self, step: Step, ctx: StepContext, outcome: Outcome, attempt: int
    ) -> PendingNotifications | None:
        """Return the notifications for the end of a step; None: no hook is concerned."""
        own = self._after_events.pop(ctx.path) if ctx.path in self._after_events else None
        event, context = own or _finish_event(step, outcome, attempt)
        hooks = self._to_ask(event)
        if not hooks or self._is_inside_hook(ctx):
            return None
        variables = self._event_variables(event, ctx, context)
        to: list[HookListener] = []
        for owner, name, hook in hooks:
            names = {**owner.names, **_place_variables(ctx), **variables}
            with suppress(NotConcernedError):
                to.append(
                    HookListener(
                        owner, name, hook, names, owner.condition_problem(name, hook, names, ctx)
                    )
                )
        if not to:
            return None
        return PendingNotifications(ctx, tuple(to), _pending_hooks(to, variables, ctx, outcome))

    def deliver_pending(self, ctx: StepContext, outcome: Outcome) -> None:
        """Notify the hooks of a replayed step that an earlier attempt of the run did not notify."""
        if not isinstance(outcome, Succeeded) or self._is_inside_hook(ctx):
            return
        if not any(self.has(event) for event in PENDING_EVENTS):
            return
        journal = ctx.run.journal
        known = journal.step(ctx.path)
        if known is None or known.pending is None:
            return
        variables: dict[str, Json] = {
            **_place_variables(ctx),
            "result": outcome.value,
            **known.pending.variables,
        }
        to: list[HookListener] = []
        for owner, name, hook in self._to_ask(str(variables["event"])):
            end = journal.last_result(join_path(ctx.path, hook_name(name)))
            # A gate that could not answer is asked again.
            is_answered = end is not None and (
                not (hook.gate and isinstance(end.outcome, Failed)) or is_refusal(end)
            )
            if name not in known.pending.to or (is_answered and record_number(end) > known.number):
                continue
            names = {**owner.names, **variables}
            with suppress(NotConcernedError):
                problem = (
                    owner.condition_problem(name, hook, names, ctx)
                    if name in known.pending.unjudged
                    else ""
                )
                to.append(HookListener(owner, name, hook, names, problem))
        PendingNotifications(ctx, tuple(to)).deliver()

    def has_decided(self, event: str, ctx: StepContext, since: int) -> bool:
        """Has a hook decided about an event at this path, after event number `since`?"""
        journal = ctx.run.journal
        for owner, name, hook in self._to_ask(event):
            end = journal.last_result(
                join_path(ctx.path, owner.make_step(name, hook, ctx, {}).name)
            )
            match end:
                case StepRecord(outcome=Succeeded({"verb": _}), number=number) if number > since:
                    return True
        return False

    # ── limits ───────────────────────────────────────────────────────────

    def _require_within_limits(self, budget: Budget, step: Step, ctx: StepContext) -> None:
        # A step that was started before uses nothing more here; its model turn checks the rest.
        is_begun = not ctx.run.replay.is_first_run and ctx.run.journal.was_ever_started(ctx.path)
        reached = budget.reach("seconds") if is_begun else budget.reach(*_BESIDE_STEPS)
        # A step that counts itself has used its share already: that may have been the last one.
        if reached is None and hook_family(step) == "step" and not counts_own_steps(step):
            reached = ctx.run.budgets.take_step(ctx.path, ctx.run.budgets.at(ctx.path))
        if reached is None:
            return
        self.limit_reached(ctx, reached, step_names(step, ctx.attempt))
        raise LimitExceeded(reached, ctx.path, _partial_result(ctx))

    def _may_retry(
        self, decision: HookDecision, failure: Failure, attempt: int, step: Step
    ) -> bool:
        """Is a retry left?  Attempts by the policy of the step do not count."""
        first = failure.path
        most = MAX_RETRIES if decision.max_retries is None else decision.max_retries
        with self._lock:
            if (
                attempt - step.policy.retry.attempts < most
                and (decision.by, first) not in self._given_up
            ):
                return True
            self._given_up.add((decision.by, first))
        return False

    def _event_variables(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Return the variables of an event that are the same for all hooks."""
        used: Json = {} if self.budget is None else self.budget.usage()
        return {"used": used, "cost": used, **context, "event": event, "path": ctx.path}


@dataclass(frozen=True, slots=True)
class PendingNotifications:
    """The hooks to notify when the end of a step is recorded."""

    ctx: StepContext
    to: tuple[HookListener, ...]
    pending: PendingHooks | None = None
    """What is recorded with the end."""

    def deliver(self) -> None:
        """Run the hooks; raise Aborted if one of them ends the run after this step."""
        decisions = [one.owner.run_listener(one, self.ctx) for one in self.to]
        decision = _strongest([one for one in decisions if one is not None])
        if decision is not None and decision.verb == "abort":
            raise decision.abort_error()


def _finish_event(step: Step, outcome: Outcome, attempt: int) -> tuple[str, Mapping[str, Json]]:
    """Return the default event after a step, and its variables; "": there is none."""
    kind = hook_family(step)
    if kind is None or not isinstance(outcome, Succeeded):
        return "", {}
    value, attempt = outcome.value, max(attempt, getattr(step, "attempts_inside", 1))
    if kind == "step" and isinstance(value, Mapping) and "exit_code" in value:
        # The action inside it was retried, or an earlier attempt of the run recorded it.
        attempt = max(attempt, value.get("attempt", 1))
    return f"{kind}_finished", {
        **step_names(step, attempt),
        **_model_field(step, value),
        "result": value,
    }


def _model_field(step: Step, value: Json) -> dict[str, Json]:
    """Return the variable `model` for a step that asks one: the model that answered."""
    if not step_kind(step.kind).asks_model or not isinstance(value, Mapping):
        return {}
    facts = value.get("facts", value)
    model = facts.get("model") if isinstance(facts, Mapping) else None
    return {"model": model} if isinstance(model, str) and model else {}


def _pending_hooks(
    to: Sequence[HookListener], variables: Mapping[str, Json], ctx: StepContext, outcome: Outcome
) -> PendingHooks | None:
    """Return what to record so that a resumed run can notify the same hooks."""
    if not isinstance(outcome, Succeeded):
        return None
    rest = {name: value for name, value in variables.items() if name != "result"}
    # A gate whose condition cannot be evaluated yet stays pending.
    pending = [one for one in to if one.hook.gate or not one.problem]
    unjudged = tuple(one.name for one in pending if one.problem)
    return PendingHooks(
        tuple(one.name for one in pending), mask_value(rest, ctx.run.secrets.mask), unjudged
    )


def counts_own_steps(step: Step) -> bool:
    """Does its parent count it, performed or replayed?  Graphs count their nodes."""
    return is_model_step(step.name) or getattr(step, "counts_itself", False)


def _strongest(decisions: Sequence[HookDecision]) -> HookDecision | None:
    aborts = [one for one in decisions if one.verb == "abort"]
    blocks = [one for one in decisions if one.blocks]
    first = next(iter([*aborts, *blocks, *decisions]), None)
    return first if first is None or not blocks else replace(first, is_all=False)


def _partial_result(ctx: StepContext) -> Json:
    """Return what a flow has when it reaches a limit: its last output and its captures."""
    scope = ctx.scope
    last = scope.names.get("last")
    captures = {
        name: scope.names[name] for name in sorted(scope.captured) if not name.endswith(FACTS)
    }
    made = {
        "output": last.get("output") if isinstance(last, Mapping) else None,
        "captures": captures,
    }
    return mask_value(made, ctx.run.secrets.mask)


def _place_variables(ctx: StepContext) -> dict[str, Json]:
    """Return the variables that depend only on the place of a step, so a resume sees the same."""
    return {name: ctx.scope.names[name] for name in ("item", "state") if name in ctx.scope.names}
