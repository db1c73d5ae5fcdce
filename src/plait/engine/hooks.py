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

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from threading import Lock

from plait.core.errors import ConditionError, closest_name
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import PendingHooks
from plait.engine.hook_port import NOTHING, Hooks
from plait.engine.journal import StepRecord, record_number
from plait.engine.kinds import failure_kinds, step_kind
from plait.engine.limits import NAMES as LIMITS
from plait.engine.limits import Budget, LimitReached
from plait.engine.outcome import (
    ABORTED,
    LIMIT,
    Aborted,
    DeadlineExceeded,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    Skip,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import is_at_or_below
from plait.engine.perform import StepContext, act, perform
from plait.engine.step import DEFAULT_POLICY, Action, Composite, LeafStep, Policy, Step
from plait.scope import Scope
from plait.template.program import FACTS

if TYPE_CHECKING:
    from plait.core.source import Span
    from plait.scope.expressions import Expression
    from plait.template.template import Template

Verb: TypeAlias = Literal["retry", "fail", "abort", "continue", "skip"]
VERBS: Final[tuple[Verb, ...]] = ("retry", "fail", "abort", "continue", "skip")
FOREIGN_VERBS: Final = ("escalate", "suspend")
"""Verbs of other systems: a tool that returns one of them gets an error, not silence."""
MAX_RETRIES: Final = 3
LAYERS: Final[dict[str, int]] = {"user": 0, "flow": 1, "project": 3}
_BESIDE_STEPS: Final = tuple(name for name in LIMITS if name != "steps")
REFUSED_BY_HOOK: Final = "verdict"
"""The failure kind of a hook step that decides fail or abort."""
HOOK: Final = "hook:"
"""The prefix of a hook step's name."""
PENDING_EVENTS: Final = ("step_finished", "item_finished", "turn_finished", "tool_result")
"""Events after an end that is recorded first: a resumed run delivers them if a crash did not."""
TRANSIENT: Final = frozenset(failure_kinds("transient"))


# ── events ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event that hooks can name: the decisions it allows, and the variables it has."""

    name: str
    what: str
    verbs: tuple[Verb, ...]
    names: tuple[str, ...] = ()
    """Besides `ALWAYS`."""


ALWAYS: Final = ("event", "path", "run", "inputs", "limits", "used", "cost", "directive", "model")
_BEGIN: Final[tuple[Verb, ...]] = ("continue", "fail", "abort")
_GATE: Final[tuple[Verb, ...]] = ("continue", "skip", "fail", "abort")
_AFTER: Final[tuple[Verb, ...]] = ("continue", "abort")
_FAILED: Final[tuple[Verb, ...]] = ("retry", "continue", "skip", "fail", "abort")
_LIMIT: Final[tuple[Verb, ...]] = ("fail", "abort")
_STEP: Final = ("step", "item", "state")
_TOOL: Final = ("turn", "tool", "params")
_GRAPH: Final = ("graph", "state", "steps")

HOOK_EVENTS: Final[dict[str, HookEvent]] = {
    event.name: event
    for event in (
        HookEvent("run_started", "a run begins", _BEGIN),
        HookEvent("run_finished", "all of a run is done", _AFTER, ("result",)),
        HookEvent("run_failed", "a run has failed", _AFTER, ("error",)),
        HookEvent("step_started", "a step is about to begin", _GATE, _STEP),
        HookEvent("step_finished", "a step is done", _AFTER, (*_STEP, "result")),
        HookEvent(
            "step_failed", "a step has failed, and is not tried again", _FAILED, (*_STEP, "error")
        ),
        HookEvent("item_started", "the steps for an item are about to begin", _GATE, _STEP),
        HookEvent("item_finished", "the steps for an item are done", _AFTER, (*_STEP, "result")),
        HookEvent(
            "item_failed",
            "a step for an item has failed, and with it the item",
            _FAILED,
            (*_STEP, "error"),
        ),
        HookEvent("graph_started", "a graph begins", _BEGIN, (*_GRAPH, "start")),
        HookEvent(
            "after_step",
            "a node of a graph is done",
            _AFTER,
            (*_GRAPH, "item", "node", "next", "result"),
        ),
        HookEvent(
            "error",
            "a node of a graph has failed",
            _FAILED,
            (*_GRAPH, "item", "node", "attempt", "error"),
        ),
        HookEvent("graph_completed", "a graph has come to its end", _AFTER, (*_GRAPH, "result")),
        HookEvent(
            "limit", "a limit is reached", _LIMIT, (*_STEP, "graph", "steps", "turn", "limit")
        ),
        HookEvent("turn_started", "a model is about to be asked", _GATE, (*_STEP, "turn")),
        HookEvent("turn_finished", "a model has answered", _AFTER, (*_STEP, "turn", "result")),
        HookEvent("tool_call", "a model wants a tool to be called", _GATE, (*_STEP, *_TOOL)),
        HookEvent("tool_result", "that tool has been called", _AFTER, (*_STEP, *_TOOL, "result")),
    )
}

NAMES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # name: what it is, its fields (none: not ours to know)
    "event": ("which event it is", ()),
    "path": ("where in the run it happened", ()),
    "run": ("this run", ("id", "flow", "file")),
    "inputs": ("what the run, or the graph, was given", ()),
    "limits": ("the limits that are set", LIMITS),
    "used": ("what was used up of them", LIMITS),
    "cost": ("the same: what the run, or the agent, took until now", LIMITS),
    "directive": ("the directive or agent that runs", ()),
    "model": ("the model that is asked; if no file names one, and behind a step, the one that answered", ()),
    "step": ("the step", ("name", "kind", "title", "attempt")),
    "item": ("the current item", ()),
    "graph": ("the graph", ()),
    "start": ("the node that it begins with", ()),
    "node": ("the node", ()),
    "next": ("the node that follows it", ()),
    "steps": ("how many nodes were done until now", ()),
    "attempt": ("how often it was tried", ()),
    "state": ("what the nodes of the graph have assigned so far", ()),
    "error": ("why it failed", ("message", "kind", "exit_code", "retryable", "path")),
    "result": ("what came of it", ()),
    "limit": ("the limit", ("code", "value", "max")),
    "turn": ("the number of the question", ()),
    "tool": ("the id of the tool", ()),
    "params": ("what it is to be called with", ()),
}  # fmt: skip
"""Every name that a hook may know."""


def hook_family(step: Step) -> str | None:
    """Return `step` or `item`, the prefix of the events that a step causes; None: it causes none."""
    if is_model_step(step.name):
        return None
    return step_kind(step.kind).events or None


def is_model_step(name: str) -> bool:
    """Is it a turn of an agent, or a call by an agent or a node?  These have other events."""
    return name.startswith("turn:") or name.partition("@")[0] == "call"


# ── hooks ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool that a hook calls, and its parameters."""

    tool: str
    params: Template | None = None
    where: Span | None = None


@dataclass(frozen=True, slots=True)
class Hook:
    id: str
    event: str
    calls: tuple[HookCall, ...] = ()
    condition: Expression | None = None
    layer: int = LAYERS["flow"]
    space: str = "flow"
    """Where it is defined: user, flow or project."""
    gate: bool = False
    """If it cannot answer, it blocks."""
    verb: Verb | None = None
    why: str = ""
    max_retries: int = MAX_RETRIES
    delay: float = 0.0
    timeout: float | None = None
    description: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class HookDecision:
    verb: Verb
    why: str
    by: str
    max_retries: int | None = None
    delay: float = 0.0
    path: str = ""
    """The path of the hook step, or of the step that it ends."""
    blocks: bool = False
    """It comes from a gate that could not answer."""
    is_all: bool = True
    """Every gate of the event has answered."""

    @property
    def message(self) -> str:
        """For people: the hook, its decision and the reason."""
        if self.blocks:
            return f"the gate '{self.by}' could not answer: {self.why}"
        return f"the hook '{self.by}' says {self.verb}" + (f": {self.why}" if self.why else "")

    def failure(self) -> Failure:
        return Failure(self.message, "refused", path=self.path)

    def abort_error(self, outcome: Outcome | None = None) -> Aborted:
        return Aborted(Failure(self.message, ABORTED, path=self.path), self.path, outcome)


MakeCall: TypeAlias = "Callable[[StepContext, str, Template | None, Scope], Action]"
"""Makes the action that calls a tool with its parameters filled; its value has the `output`."""


class HookRunner:
    """The hooks of a run or a subflow, and the limits of the run.  Safe to use from many threads."""

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
        self._call = call
        self._names: dict[str, Json] = {
            "inputs": {},
            "limits": {},
            "directive": None,
            "model": None,
            **names,
        }
        outer = around if isinstance(around, HookRunner) else None
        self._budget: Budget | None = budget if outer is None else outer._budget
        self._chain: tuple[HookRunner, ...] = (*(() if outer is None else outer._chain), self)
        """The runners of the run and of every flow around, the outermost first; `self` is last."""
        depth = 0 if around is None else around.depth
        self._depth: int = depth + 1
        # The depth tells its hooks from those of the flows around, in every attempt of the run.
        prefix = "" if not depth else "inner." if depth == 1 else f"inner{depth}."
        self._by_event: dict[str, list[tuple[str, Hook]]] = {}
        for name, hook in _name_hooks(hooks):
            self._by_event.setdefault(hook.event, []).append((prefix + name, hook))
        self._lock = Lock()
        self.active: set[str] = set() if outer is None else outer.active
        """The paths of hooks that run: what happens below them causes no events."""
        self._after_events: dict[str, tuple[str, Mapping[str, Json]]] = {}
        """By path: the event, and its variables, to fire when the end of a step is recorded."""
        self._dropped: set[str] = set()
        self._given_up: set[tuple[str, str]] = set() if outer is None else outer._given_up
        """Hooks that have used all retries, and the path of the failed step.  The steps around it
        are not retried by the same hook.
        """

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        """The number of flows with hooks around, the run and this one included."""
        return self._depth

    @property
    def budget(self) -> Budget | None:
        """The budget of the run."""
        return self._budget

    def has(self, event: str) -> bool:
        """Is there a hook for an event?"""
        return any(event in hooks._by_event for hooks in self._chain)

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
        names = {owner: owner._hook_variables(event, ctx, context) for owner, _, _ in hooks}
        for owner, name, hook in hooks:
            decision = owner._fire_hook(name, hook, ctx, names[owner])
            if decision is not None:
                found.append(decision)
        return _strongest(found)

    def _to_ask(self, event: str, *, own_only: bool = False) -> list[tuple[HookRunner, str, Hook]]:
        """Return the hooks of an event in order; in one layer those of the run come first."""
        chain = (self,) if own_only else self._chain
        found = [
            (hooks, name, hook) for hooks in chain for name, hook in hooks._by_event.get(event, ())
        ]
        return found if len(chain) == 1 else sorted(found, key=lambda one: _rank(one[2]))

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
        if self._budget is not None:
            self._require_within_limits(self._budget, step, ctx)
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
                value = _value_after_failure(step, failure)
                if value is None:
                    return failed, None
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
            names = {**owner._names, **_place_variables(ctx), **variables}
            with suppress(_NotConcernedError):
                to.append(
                    HookListener(
                        owner, name, hook, names, owner._condition_problem(name, hook, names, ctx)
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
            end = journal.last_result(f"{ctx.path}/{HOOK}{name}")
            if name not in known.pending.to or (
                record_number(end) > known.number and _is_answer(end, hook)
            ):
                continue
            names = {**owner._names, **variables}
            with suppress(_NotConcernedError):
                problem = (
                    owner._condition_problem(name, hook, names, ctx)
                    if name in known.pending.unjudged
                    else ""
                )
                to.append(HookListener(owner, name, hook, names, problem))
        PendingNotifications(ctx, tuple(to)).deliver()

    def has_decided(self, event: str, ctx: StepContext, since: int) -> bool:
        """Has a hook decided about an event at this path, after event number `since`?"""
        journal = ctx.run.journal
        for owner, name, hook in self._to_ask(event):
            end = journal.last_result(f"{ctx.path}/{owner._hook_step(name, hook, ctx, {}).name}")
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

    # ── one hook ─────────────────────────────────────────────────────────

    def _fire_hook(
        self, name: str, hook: Hook, ctx: StepContext, names: Mapping[str, Json]
    ) -> HookDecision | None:
        hook_ctx = _hook_context(self._hook_step(name, hook, ctx, names), ctx)
        problem = ""
        known = _find_record(hook_ctx)
        if known is not None and hook.event == "after_step" and _is_refusal(known):
            return None  # another hook is asked again; this one has decided abort before
        if known is None:
            try:
                problem = self._condition_problem(name, hook, names, ctx)
            except _NotConcernedError:
                return None
        return self._run_listener(HookListener(self, name, hook, names, problem), ctx)

    def _condition_problem(
        self, name: str, hook: Hook, names: Mapping[str, Json], ctx: StepContext
    ) -> str:
        """Return why the condition cannot be evaluated, or ""; raise _NotConcernedError if it is
        false.
        """
        try:
            if name in self._dropped or not (
                hook.condition is None or hook.condition.holds(_scope(names, ctx))
            ):
                raise _NotConcernedError
        except ConditionError as error:
            return str(error)
        return ""

    def _run_listener(self, one: HookListener, ctx: StepContext) -> HookDecision | None:
        """Run one hook and return its decision."""
        name, hook = one.name, one.hook
        if name in self._dropped:
            return None
        step = self._hook_step(name, hook, ctx, one.names)
        hook_ctx = _hook_context(step, ctx)
        if one.problem:
            return self._handle_broken_hook(name, hook, hook_ctx, one.problem)
        match _perform_hook(step, hook_ctx, self.active):
            case Succeeded(dict() as value) | Failed(
                Failure(kind="verdict", output=dict() as value)
            ):
                return _make_decision(hook, value, hook_ctx.path)
            case Failed(failure):
                return self._handle_broken_hook(name, hook, hook_ctx, failure.message)
        return None

    def _hook_step(
        self, name: str, hook: Hook, ctx: StepContext, names: Mapping[str, Json]
    ) -> HookStep:
        called = name if ctx.attempt == 1 else f"{name}@{ctx.attempt}"
        return HookStep(called, hook, names, self._call)

    def _handle_broken_hook(
        self, name: str, hook: Hook, ctx: StepContext, why: str
    ) -> HookDecision | None:
        if hook.gate:
            verb: Verb = "fail" if "fail" in HOOK_EVENTS[hook.event].verbs else "abort"
            return HookDecision(
                verb, ctx.run.secrets.mask(why), hook.id, path=ctx.path, blocks=True
            )
        with self._lock:
            if name in self._dropped:
                return None
            self._dropped.add(name)
        ctx.run.events.note(
            ctx.path, f"the hook '{hook.id}' failed and is left out from now on: {why}"
        )
        return None

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

    # ── names ────────────────────────────────────────────────────────────

    def _hook_variables(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> dict[str, Json]:
        return {
            **self._names,
            **_place_variables(ctx),
            **self._event_variables(event, ctx, context),
        }

    def _event_variables(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Return the variables of an event that are the same for all hooks."""
        used: Json = {} if self._budget is None else self._budget.used()
        return {"used": used, "cost": used, **context, "event": event, "path": ctx.path}


class _NotConcernedError(Exception):
    """The condition of a hook does not hold."""


@dataclass(frozen=True, slots=True)
class HookListener:
    """A hook to notify, and its variables."""

    owner: HookRunner = field(repr=False)
    name: str
    hook: Hook
    names: Mapping[str, Json] = field(repr=False)
    problem: str = ""
    """Why its condition cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class PendingNotifications:
    """The hooks to notify when the end of a step is recorded."""

    ctx: StepContext
    to: tuple[HookListener, ...]
    pending: PendingHooks | None = None
    """What is recorded with the end."""

    def deliver(self) -> None:
        """Run the hooks; raise Aborted if one of them ends the run after this step."""
        decisions = [one.owner._run_listener(one, self.ctx) for one in self.to]
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


@dataclass(frozen=True, slots=True)
class HookStep(Composite):
    """The recorded step in which a hook handles one event."""

    called: str
    hook: Hook
    names: Mapping[str, Json] = field(repr=False)
    make_call: MakeCall = field(repr=False)
    kind: str = "hook"

    @property
    def name(self) -> str:
        return f"{HOOK}{self.called}"

    @property
    def title(self) -> str:
        return self.hook.description or self.hook.id

    @property
    def fingerprint(self) -> str:
        return self.hook.fingerprint

    @property
    def policy(self) -> Policy:
        return DEFAULT_POLICY if self.hook.timeout is None else Policy(timeout=self.hook.timeout)

    @property
    def children(self) -> Sequence[Step]:
        return ()

    def run(self, ctx: StepContext) -> Json:
        ctx = self._replay_context(ctx)
        try:
            outputs = [self._output(ctx, number) for number in range(len(self.hook.calls))]
        except StepError as error:
            if error.failure.kind == "timeout" and ctx.is_expired():
                # The time of the flow is over: the hook has not answered.
                raise DeadlineExceeded from None
            raise
        fields = self._find_decision(outputs)
        if fields and fields["verb"] not in HOOK_EVENTS[self.hook.event].verbs:
            raise StepError(
                Failure(f"'{fields['verb']}' means nothing at {self.hook.event}", "refused")
            )
        value: dict[str, Json] = {
            "output": outputs[0] if len(outputs) == 1 else outputs or None,
            **mask_mapping(fields, ctx.run.secrets.mask),
        }
        if fields.get("verb") in ("fail", "abort"):
            # A failure is not replayed: a resumed run asks again.
            decision = _make_decision(self.hook, value, ctx.path)
            assert decision is not None
            raise StepError(Failure(decision.message, REFUSED_BY_HOOK, output=value))
        return value

    def _replay_context(self, ctx: StepContext) -> StepContext:
        """Return a context that replays no call if all were made and the decision did not count."""
        journal = ctx.run.journal
        if ctx.run.replay.is_first_run or not ctx.can_replay or len(self.hook.calls) < 2:
            return ctx
        last, end = (
            journal.step(f"{ctx.path}/{len(self.hook.calls)}"),
            journal.last_result(ctx.path),
        )
        if (
            last is None
            or not isinstance(last.outcome, Succeeded)
            or record_number(end) < last.number
        ):
            return ctx
        return replace(ctx, can_replay=False)

    def _output(self, ctx: StepContext, number: int) -> Json:
        call = _HookCall(self, self.hook.calls[number])
        if len(self.hook.calls) == 1:
            ended = act(call, ctx)
        else:
            step = LeafStep(str(number + 1), "tool", call.call.tool, self.fingerprint, call)
            ended = require_success(ctx.perform(step))
        return ended.get("output") if isinstance(ended, Mapping) else None

    def _find_decision(self, outputs: Sequence[Json]) -> dict[str, Json]:
        """Return the decision of the hook, else the first of its tools; {}: there is none."""
        if self.hook.verb is not None:
            return {"verb": self.hook.verb, "why": self.hook.why}
        return next((fields for output in outputs if (fields := find_decision(output))), {})


@dataclass(frozen=True, slots=True)
class _HookCall(Composite):
    """One call of a hook."""

    step: HookStep = field(repr=False)
    call: HookCall

    def run(self, ctx: StepContext) -> Json:
        names = _scope(self.step.names, ctx)
        return act(self.step.make_call(ctx, self.call.tool, self.call.params, names), ctx)


def step_names(step: Step, attempt: int) -> dict[str, Json]:
    """A step as conditions and templates of hooks see it."""
    facts = {"name": step.name, "kind": step.kind, "title": step.title, "attempt": attempt}
    return {"step": facts}


def error_names(failure: Failure) -> dict[str, Json]:
    """A failure as conditions and templates of hooks see it."""
    return {
        "message": failure.message,
        "kind": failure.kind,
        "exit_code": failure.exit_code,
        "retryable": failure.kind in TRANSIENT,
        "path": failure.path,
    }


def find_decision(output: Json) -> dict[str, Json]:
    """Return the decision in the result of a tool; {}: there is none.

    An unknown `verb` raises StepError.  An unknown `action` does not: tools use that key for other
    things, too.
    """
    if not isinstance(output, Mapping):
        return {}
    verb = output.get("verb", output.get("action"))
    if isinstance(verb, str) and verb in VERBS:
        return _parse_decision(verb, output)
    if "verb" in output or verb in FOREIGN_VERBS:
        guess = closest_name(verb, VERBS) if isinstance(verb, str) else None
        what = f"its tool returned an unknown decision; there are {', '.join(VERBS)}"
        raise StepError(Failure(what + (f" (did you mean '{guess}'?)" if guess else ""), "refused"))
    return {}


def _parse_decision(verb: str, output: Mapping[str, Json]) -> dict[str, Json]:
    words = (output.get(name) for name in ("why", "reason", "message"))
    decision: dict[str, Json] = {
        "verb": verb,
        "why": next((word for word in words if isinstance(word, str)), ""),
    }
    for name, wanted in (("max_retries", "a whole number"), ("delay", "a number of seconds")):
        value = output.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int if name == "max_retries" else int | float) and value >= 0
        if isinstance(value, bool) or not is_number:
            raise StepError(
                Failure(f"'{name}' of its tool's decision is not {wanted} from 0", "refused")
            )
        decision[name] = value
    return decision


# ── helpers, in order of use ─────────────────────────────────────────────


def _scope(names: Mapping[str, Json], ctx: StepContext) -> Scope:
    """Return the scope for the condition and the parameters of a hook."""
    return Scope(names, label="hook", sources=ctx.scope.sources)


def counts_own_steps(step: Step) -> bool:
    """Does its parent count it, performed or replayed?  Graphs count their nodes."""
    return is_model_step(step.name) or getattr(step, "counts_itself", False)


def _name_hooks(hooks: Iterable[Hook]) -> list[tuple[str, Hook]]:
    """Sort hooks by layer; an id that an earlier layer uses gets the name of its space."""
    seen: set[str] = set()
    named: list[tuple[str, Hook]] = []
    for hook in sorted(hooks, key=_rank):
        name = hook.id if hook.id not in seen else f"{hook.space}.{hook.id}"
        seen |= {hook.id, name}
        named.append((name, hook))
    return named


def _rank(hook: Hook) -> tuple[int, int]:
    return hook.layer, LAYERS.get(hook.space, 0)


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


def _perform_hook(step: HookStep, ctx: StepContext, active: set[str]) -> Outcome:
    active.add(ctx.path)
    try:
        # The time of a hook does not count for the step that it is about.
        with nullcontext() if ctx.timer is None else ctx.timer.paused():
            return perform(step, replace(ctx, timer=None))
    except LimitExceeded as end:
        if step.hook.event != "limit":
            raise
        # That limit ends the flow anyway, whatever the hook decides.
        return Failed(end.failure)
    finally:
        active.discard(ctx.path)


def _hook_context(step: HookStep, ctx: StepContext) -> StepContext:
    """Return the context of a hook step; an older record counts only for the same event."""
    hook_ctx = ctx.child(step)
    run = ctx.run
    if run.replay.is_first_run or not hook_ctx.can_replay:
        return hook_ctx
    if step.hook.event == "limit":
        return replace(hook_ctx, can_replay=False)  # each attempt of the run reaches it again
    known = run.journal.step(hook_ctx.path)
    is_edited = known is not None and known.fingerprint != step.fingerprint
    if is_edited:
        return replace(hook_ctx, can_replay=False)
    # A step that is performed again causes its events again.
    ended = record_number(run.journal.last_result(ctx.path)) if ctx.path else 0
    return hook_ctx if ended <= hook_ctx.replay_after else replace(hook_ctx, replay_after=ended)


def _find_record(ctx: StepContext) -> StepRecord | None:
    """Return the record of a hook that ran already; then its condition is not evaluated again."""
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return None
    known = ctx.run.journal.step(ctx.path)
    return None if known is None or known.number <= ctx.replay_after else known


def _is_answer(end: StepRecord | None, hook: Hook) -> bool:
    """Was a hook with this end notified?  A gate that could not answer is asked again."""
    if end is None:
        return False
    return not (hook.gate and isinstance(end.outcome, Failed)) or _is_refusal(end)


def _is_refusal(end: StepRecord) -> bool:
    return isinstance(end.outcome, Failed) and end.outcome.failure.kind == REFUSED_BY_HOOK


def _make_decision(hook: Hook, value: Mapping[str, Json], path: str) -> HookDecision | None:
    verb, why = value.get("verb"), value.get("why")
    if verb not in VERBS:
        return None
    most, delay = value.get("max_retries"), value.get("delay")
    return HookDecision(
        verb,
        why if isinstance(why, str) else "",
        hook.id,
        most if isinstance(most, int) else hook.max_retries,
        float(delay) if isinstance(delay, int | float) else hook.delay,
        path,
    )


def _value_after_failure(step: Step, failure: Failure) -> Json:
    """Return the value of a failed step that counts as done; None: it cannot count as done."""
    make_value = getattr(step, "value_after_failure", None)
    return dict(failure.as_result()) if make_value is None else make_value(failure)


def mask_mapping(decision: Mapping[str, Json], mask: Callable[[str], str]) -> dict[str, Json]:
    return {
        name: mask_value(value, mask) if name == "why" else value
        for name, value in decision.items()
    }
