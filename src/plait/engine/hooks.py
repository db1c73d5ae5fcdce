"""Hooks: what is asked or variables when something happens in a run, and what the answer means.

    event → hooks of that event, in the order of their layers → condition → actions → verdict

The actions of a hook are performed as a recorded step below the place where the event
happened, so a resumed run asks nobody twice and decides as before.  Only a `fail` or an
`abort` is asked for again: whoever resumes has changed something.  What a remembered step
once caused is not caused again, and what happens inside a hook causes nothing.

The end of a step is recorded before any hook hears of it, together with who is to hear and of what
(`PendingHooks`).  However a life of the run ends meanwhile, the step is done, and who has not heard
of it by then hears of it when the run goes on.  A gate that could not answer has not heard.

Of several verdicts an `abort` wins, then a gate that could not answer, then the first.  A hook that
only observes and fails is left away for the rest of this life of the run, with one note; a gate
that fails blocks.  A limit that a hook meets is no answer of the hook, nor is the end of the flow's
time: it ends whoever has the limit, and a resumed run asks again.

A flow that is called like a tool brings hooks of its own.  They are asked besides those of the
run, about what happens inside that flow and nothing else.

The limits of a run are looked at in the same place: before each of its steps.
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
ELSEWHERE: Final = ("escalate", "suspend")
"""Verbs of other systems: a tool that says one of them means something, and nothing would come of
it here.
"""
MAX_RETRIES: Final = 3
LAYERS: Final[dict[str, int]] = {"user": 0, "flow": 1, "project": 3}
_BESIDE_STEPS: Final = tuple(name for name in LIMITS if name != "steps")
REFUSED_BY_HOOK: Final = "verdict"
"""The kind of the failure with which a hook ends that says fail or abort."""
HOOK: Final = "hook:"
"""The name of what a hook does begins with it."""
PENDING_EVENTS: Final = ("step_finished", "item_finished", "turn_finished", "tool_result")
"""Events behind an end that is recorded first: who misses one of them hears of it later."""
TRANSIENT: Final = frozenset(failure_kinds("transient"))


# ── events ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event that hooks can be for: what may be decided there, and which names are known."""

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
    moment.name: moment
    for moment in (
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
    "item": ("the item in hand", ()),
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
    """Whose events a step causes; None: it causes none, or whoever performs it does so instead."""
    if is_model_step(step.name):
        return None
    return step_kind(step.kind).events or None


def is_model_step(name: str) -> bool:
    """The turns of an agent, and the calls of agents and nodes: they have events of their own."""
    return name.startswith("turn:") or name.partition("@")[0] == "call"


# ── hooks ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool that a hook calls, and with what."""

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
    """Whose word it is: user, flow or project."""
    gate: bool = False
    """If it cannot answer, that counts as a no."""
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
    """Where it was asked for."""
    blocks: bool = False
    """It is that of a gate that could not answer."""
    is_all: bool = True
    """Every gate that was asked has answered."""

    @property
    def message(self) -> str:
        """For people: who says what, and why."""
        if self.blocks:
            return f"the gate '{self.by}' could not answer: {self.why}"
        return f"the hook '{self.by}' says {self.verb}" + (f": {self.why}" if self.why else "")

    def failure(self) -> Failure:
        return Failure(self.message, "refused", path=self.path)

    def abort_error(self, outcome: Outcome | None = None) -> Aborted:
        return Aborted(Failure(self.message, ABORTED, path=self.path), self.path, outcome)


MakeCall: TypeAlias = "Callable[[StepContext, str, Template | None, Scope], Action]"
"""Makes the call of a tool, with its parameters filled: it gives how that ended, with its `output`.
"""


class HookRunner:
    """The hooks of a run, or of a flow inside it, and the limits of the run; threads share it."""

    def __init__(
        self,
        hooks: Iterable[Hook] = (),
        *,
        call: MakeCall,
        names: Mapping[str, Json] = NOTHING,
        budget: Budget | None = None,
        around: Hooks | None = None,
    ) -> None:
        """`around`: the hooks of the run, or of the flow, that has called this flow."""
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
        """Those of the run, and of every flow around, from the outermost inwards; this is the last.
        """
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
        self._behind: dict[str, tuple[str, Mapping[str, Json]]] = {}
        """By path: what a step wants to be variables when its end is recorded."""
        self._dropped: set[str] = set()
        self._given_up: set[tuple[str, str]] = set() if outer is None else outer._given_up
        """Hooks whose retries were in vain, and the step that failed: what it is inside of is not
        retried.
        """

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        """How many flows with hooks are around, the run and this one included."""
        return self._depth

    @property
    def budget(self) -> Budget | None:
        """That of the run."""
        return self._budget

    def has(self, event: str) -> bool:
        """Is a hook asked about such an event?"""
        return any(event in hooks._by_event for hooks in self._chain)

    # ── for whoever causes events ────────────────────────────────────────

    def fire(
        self,
        event: str,
        ctx: StepContext,
        context: Mapping[str, Json] = NOTHING,
        *,
        own_only: bool = False,
    ) -> HookDecision | None:
        """Ask all hooks of an event that happened at a step; the verdict that counts, if there is
        one.  `own_only`: not those of flows around.

        An `abort` is for whoever fires to raise (`Verdict.aborted`): no handler goes on after it.
        A path has an event once for each attempt (`turn.attempt`, or `attempt` of the context):
        each visit of a place has a path of its own.
        """
        hooks = self._to_ask(event, own_only=own_only)
        if not hooks or self._is_inside_hook(ctx):
            return None
        attempt = context.get("attempt")
        if isinstance(attempt, int) and attempt != ctx.attempt:
            ctx = replace(ctx, attempt=attempt)
        found: list[HookDecision] = []
        names = {whose: whose._hook_variables(event, ctx, context) for whose, _, _ in hooks}
        for whose, name, hook in hooks:
            verdict = whose._fire_hook(name, hook, ctx, names[whose])
            if verdict is not None:
                found.append(verdict)
        return _strongest(found)

    def _to_ask(self, event: str, *, own_only: bool = False) -> list[tuple[HookRunner, str, Hook]]:
        """In order; in one layer those of the run come before those of the flows inside it."""
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
        """The same for an event before something: raises Skip, StepError or Aborted if it is not to
        be.
        """
        verdict = self.fire(event, ctx, context, own_only=own_only)
        match verdict:
            case HookDecision("skip"):
                raise Skip(verdict.message)
            case HookDecision("fail"):
                raise StepError(verdict.failure())
            case HookDecision("abort"):
                raise verdict.abort_error()
        return verdict

    def notify_after(self, ctx: StepContext, event: str, context: Mapping[str, Json]) -> None:
        """Said by a step that knows what came of it: tell this when its end is recorded."""
        self._behind[ctx.path] = event, context

    def limit_reached(
        self, ctx: StepContext, reached: LimitReached, context: Mapping[str, Json] = NOTHING
    ) -> None:
        """Tell of a limit, before whoever has reached it ends; raises Aborted if all has to end."""
        verdict = self.fire("limit", ctx, {**context, "limit": reached.record()})
        if verdict is not None and verdict.verb == "abort":
            raise verdict.abort_error()

    # ── for `perform` ────────────────────────────────────────────────────

    def before(self, step: Step, ctx: StepContext) -> Outcome | None:
        """What a step comes to without being done; None if it is to be done."""
        kind = hook_family(step)
        if kind is None or self._is_inside_hook(ctx):
            return None
        if self._budget is not None:
            self._require_within_limits(self._budget, step, ctx)
        verdict = self.fire(f"{kind}_started", ctx, step_names(step, ctx.attempt))
        match verdict:
            case HookDecision("skip"):
                return Skipped(verdict.message)
            case HookDecision("fail"):
                return Failed(verdict.failure())
            case HookDecision("abort"):
                raise verdict.abort_error()
        return None

    def after_failure(
        self, step: Step, ctx: StepContext, attempt: int, failed: Failed
    ) -> tuple[Outcome, float | None]:
        """What a failure comes to, and the pause before another attempt, if there is to be one."""
        kind, failure = hook_family(step), failed.failure
        if kind is None or failure.kind == LIMIT or not self.has(f"{kind}_failed"):
            return failed, None
        ctx = ctx if attempt == ctx.attempt else replace(ctx, attempt=attempt)
        context = {**step_names(step, ctx.attempt), "error": error_names(failure)}
        try:
            verdict = self.fire(f"{kind}_failed", ctx, context)
        except LimitExceeded as end:
            end.path, end.outcome = ctx.path, failed
            raise
        match verdict:
            case HookDecision("retry") if self._may_retry(verdict, failure, attempt, step):
                return failed, verdict.delay
            case HookDecision("continue"):
                value = _value_after_failure(step, failure)
                if value is None:
                    return failed, None
                ctx.run.events.note(
                    ctx.path, f"'{step.title}' failed, and {verdict.message}: {failure.message}"
                )
                return Succeeded(value), None
            case HookDecision("skip"):
                return Skipped(verdict.message), None
            case HookDecision("fail"):
                return Failed(
                    replace(failure, message=f"{failure.message}\n{verdict.message}")
                ), None
            case HookDecision("abort"):
                raise replace(verdict, path=ctx.path).abort_error(failed)
        return failed, None

    def pending_after(
        self, step: Step, ctx: StepContext, outcome: Outcome, attempt: int
    ) -> PendingNotifications | None:
        """What there is to tell of a step that has ended, and to whom; None if nobody is to hear of
        it.
        """
        own = self._behind.pop(ctx.path) if ctx.path in self._behind else None
        event, context = own or _finish_event(step, outcome, attempt)
        hooks = self._to_ask(event)
        if not hooks or self._is_inside_hook(ctx):
            return None
        variables = self._event_variables(event, ctx, context)
        to: list[HookListener] = []
        for whose, name, hook in hooks:
            names = {**whose._names, **_around(ctx), **variables}
            with suppress(_NotConcernedError):
                to.append(
                    HookListener(whose, name, hook, names, whose._wrong(name, hook, names, ctx))
                )
        if not to:
            return None
        return PendingNotifications(ctx, tuple(to), _pending_hooks(to, variables, ctx, outcome))

    def deliver_pending(self, ctx: StepContext, outcome: Outcome) -> None:
        """Tell those who had not heard of a step, when an earlier life ended, which is now
        remembered.
        """
        if not isinstance(outcome, Succeeded) or self._is_inside_hook(ctx):
            return
        if not any(self.has(event) for event in PENDING_EVENTS):
            return
        journal = ctx.run.journal
        known = journal.step(ctx.path)
        if known is None or known.pending is None:
            return
        variables: dict[str, Json] = {
            **_around(ctx),
            "result": outcome.value,
            **known.pending.variables,
        }
        to: list[HookListener] = []
        for whose, name, hook in self._to_ask(str(variables["event"])):
            end = journal.last_result(f"{ctx.path}/{HOOK}{name}")
            if name not in known.pending.to or (
                record_number(end) > known.number and _is_answer(end, hook)
            ):
                continue
            names = {**whose._names, **variables}
            with suppress(_NotConcernedError):
                wrong = (
                    whose._wrong(name, hook, names, ctx) if name in known.pending.unjudged else ""
                )
                to.append(HookListener(whose, name, hook, names, wrong))
        PendingNotifications(ctx, tuple(to)).deliver()

    def has_decided(self, event: str, ctx: StepContext, since: int) -> bool:
        """Has a hook of an earlier life decided what follows from something that happened at an
        event?
        """
        journal = ctx.run.journal
        for whose, name, hook in self._to_ask(event):
            end = journal.last_result(f"{ctx.path}/{whose._reaction(name, hook, ctx, {}).name}")
            match end:
                case StepRecord(outcome=Succeeded({"verb": _}), number=number) if number > since:
                    return True
        return False

    # ── limits ───────────────────────────────────────────────────────────

    def _require_within_limits(self, budget: Budget, step: Step, ctx: StepContext) -> None:
        # A step that was begun before is no next one: what its question needs is looked at there.
        is_begun = not ctx.run.replay.is_first_run and ctx.run.journal.was_ever_started(ctx.path)
        reached = budget.reach("seconds") if is_begun else budget.reach(*_BESIDE_STEPS)
        # Who counts itself has taken what it needs of the steps: they may be used up by that.
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
        inner = _place(self._reaction(name, hook, ctx, names), ctx)
        wrong = ""
        known = _find_record(inner)
        if known is not None and hook.event == "after_step" and _is_refusal(known):
            return None  # it was asked again for another's sake: who said abort has heard
        if known is None:
            try:
                wrong = self._wrong(name, hook, names, ctx)
            except _NotConcernedError:
                return None
        return self._run_listener(HookListener(self, name, hook, names, wrong), ctx)

    def _wrong(self, name: str, hook: Hook, names: Mapping[str, Json], ctx: StepContext) -> str:
        """Why nobody can say whether its condition holds; raises _NotConcernedError if it does not
        hold.
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
        """The verdict of a hook that is to hear of something."""
        name, hook = one.name, one.hook
        if name in self._dropped:
            return None
        step = self._reaction(name, hook, ctx, one.names)
        inner = _place(step, ctx)
        if one.wrong:
            return self._handle_broken_hook(name, hook, inner, one.wrong)
        match _perform_hook(step, inner, self.active):
            case Succeeded(dict() as value) | Failed(
                Failure(kind="verdict", output=dict() as value)
            ):
                return _verdict(hook, value, inner.path)
            case Failed(failure):
                return self._handle_broken_hook(name, hook, inner, failure.message)
        return None

    def _reaction(
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
            ctx.path, f"the hook '{hook.id}' failed, and is left away from now on: {why}"
        )
        return None

    def _may_retry(self, verdict: HookDecision, failure: Failure, attempt: int, step: Step) -> bool:
        """Is a retry left?  What the policy of the step allows does not count against the hook."""
        first = failure.path
        most = MAX_RETRIES if verdict.max_retries is None else verdict.max_retries
        with self._lock:
            if (
                attempt - step.policy.retry.attempts < most
                and (verdict.by, first) not in self._given_up
            ):
                return True
            self._given_up.add((verdict.by, first))
        return False

    # ── names ────────────────────────────────────────────────────────────

    def _hook_variables(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> dict[str, Json]:
        return {**self._names, **_around(ctx), **self._event_variables(event, ctx, context)}

    def _event_variables(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Those that are of this event, whoever hears of it."""
        used: Json = {} if self._budget is None else self._budget.used()
        return {"used": used, "cost": used, **context, "event": event, "path": ctx.path}


class _NotConcernedError(Exception):
    """The condition of a hook does not hold."""


@dataclass(frozen=True, slots=True)
class HookListener:
    """A hook that is to hear of something, and what it is variables."""

    whose: HookRunner = field(repr=False)
    name: str
    hook: Hook
    names: Mapping[str, Json] = field(repr=False)
    wrong: str = ""
    """Why its condition can be neither true nor false: all that is to be said of it."""


@dataclass(frozen=True, slots=True)
class PendingNotifications:
    """What is to be variables of a step when its end is recorded."""

    ctx: StepContext
    to: tuple[HookListener, ...]
    pending: PendingHooks | None = None
    """What is recorded with the end."""

    def deliver(self) -> None:
        """Raises Aborted if all has to end behind the step."""
        verdicts = [one.whose._run_listener(one, self.ctx) for one in self.to]
        verdict = _strongest([one for one in verdicts if one is not None])
        if verdict is not None and verdict.verb == "abort":
            raise verdict.abort_error()


def _finish_event(step: Step, outcome: Outcome, attempt: int) -> tuple[str, Mapping[str, Json]]:
    """The event behind a step that says nothing of its own, and what it brings along; "": there is
    none.
    """
    kind = hook_family(step)
    if kind is None or not isinstance(outcome, Succeeded):
        return "", {}
    value, attempt = outcome.value, max(attempt, getattr(step, "attempts_inside", 1))
    if kind == "step" and isinstance(value, Mapping) and "exit_code" in value:
        # What is inside of it was tried again, or an earlier life had the answer.
        attempt = max(attempt, value.get("attempt", 1))
    return f"{kind}_finished", {
        **step_names(step, attempt),
        **_model_field(step, value),
        "result": value,
    }


def _model_field(step: Step, value: Json) -> dict[str, Json]:
    """The model that answered in a step which asks one."""
    if not step_kind(step.kind).asks_model or not isinstance(value, Mapping):
        return {}
    facts = value.get("facts", value)
    model = facts.get("model") if isinstance(facts, Mapping) else None
    return {"model": model} if isinstance(model, str) and model else {}


def _pending_hooks(
    to: Sequence[HookListener], variables: Mapping[str, Json], ctx: StepContext, outcome: Outcome
) -> PendingHooks | None:
    """What has to be recorded so that they hear the same later, as far as the step is remembered
    then.
    """
    if not isinstance(outcome, Succeeded):
        return None
    rest = {name: value for name, value in variables.items() if name != "result"}
    # Of a gate whose condition can be neither true nor false nobody knows yet whether it is to
    # hear.
    pending = [one for one in to if one.hook.gate or not one.wrong]
    unjudged = tuple(one.name for one in pending if one.wrong)
    return PendingHooks(
        tuple(one.name for one in pending), mask_value(rest, ctx.run.secrets.mask), unjudged
    )


@dataclass(frozen=True, slots=True)
class HookStep(Composite):
    """What a hook does about one event: the step that is recorded."""

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
                # no answer of the hook, if it is the time of the flow
                raise DeadlineExceeded from None
            raise
        said = self._find_decision(outputs)
        if said and said["verb"] not in HOOK_EVENTS[self.hook.event].verbs:
            raise StepError(
                Failure(f"'{said['verb']}' means nothing at {self.hook.event}", "refused")
            )
        value: dict[str, Json] = {
            "output": outputs[0] if len(outputs) == 1 else outputs or None,
            **mask_mapping(said, ctx.run.secrets.mask),
        }
        if said.get("verb") in ("fail", "abort"):
            # No end that counts: a resumed run asks again.
            verdict = _verdict(self.hook, value, ctx.path)
            assert verdict is not None
            raise StepError(Failure(verdict.message, REFUSED_BY_HOOK, output=value))
        return value

    def _replay_context(self, ctx: StepContext) -> StepContext:
        """If all of its calls were made and the answer did not count, none of them is
        remembered.
        """
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
        """The verdict of the hook itself, else the first of its tools that gives one; {} if there
        is none.
        """
        if self.hook.verb is not None:
            return {"verb": self.hook.verb, "why": self.hook.why}
        return next((said for output in outputs if (said := verdict_in(output))), {})


@dataclass(frozen=True, slots=True)
class _HookCall(Composite):
    """One of the calls of a hook."""

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


def verdict_in(output: Json) -> dict[str, Json]:
    """What the result of a tool decides; {} if it decides nothing.  StepError if it means to, and
    cannot.

    `verb` is ours alone, so an unknown one is a slip; `action` is a word that tools use for their
    own.
    """
    if not isinstance(output, Mapping):
        return {}
    verb = output.get("verb", output.get("action"))
    if isinstance(verb, str) and verb in VERBS:
        return _parse_decision(verb, output)
    if "verb" in output or verb in ELSEWHERE:
        guess = closest_name(verb, VERBS) if isinstance(verb, str) else None
        what = f"its tool gives a verdict that does not exist here; there are {', '.join(VERBS)}"
        raise StepError(Failure(what + (f" (did you mean '{guess}'?)" if guess else ""), "refused"))
    return {}


def _parse_decision(verb: str, output: Mapping[str, Json]) -> dict[str, Json]:
    words = (output.get(name) for name in ("why", "reason", "message"))
    said: dict[str, Json] = {
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
                Failure(f"'{name}' of its tool's verdict is not {wanted} from 0", "refused")
            )
        said[name] = value
    return said


# ── helpers, in order of use ─────────────────────────────────────────────


def _scope(names: Mapping[str, Json], ctx: StepContext) -> Scope:
    """What a condition and the params of a hook know."""
    return Scope(names, label="hook", sources=ctx.scope.sources)


def counts_own_steps(step: Step) -> bool:
    """Does whoever performs it count it, done or remembered?  Graphs do so with their nodes."""
    return is_model_step(step.name) or getattr(step, "counts_itself", False)


def _name_hooks(hooks: Iterable[Hook]) -> list[tuple[str, Hook]]:
    """In the order in which they are asked; where two layers use one id, the later one tells whose
    it is.
    """
    seen: set[str] = set()
    named: list[tuple[str, Hook]] = []
    for hook in sorted(hooks, key=_rank):
        name = hook.id if hook.id not in seen else f"{hook.space}.{hook.id}"
        seen |= {hook.id, name}
        named.append((name, hook))
    return named


def _rank(hook: Hook) -> tuple[int, int]:
    return hook.layer, LAYERS.get(hook.space, 0)


def _strongest(verdicts: Sequence[HookDecision]) -> HookDecision | None:
    aborts = [one for one in verdicts if one.verb == "abort"]
    blocks = [one for one in verdicts if one.blocks]
    first = next(iter([*aborts, *blocks, *verdicts]), None)
    return first if first is None or not blocks else replace(first, is_all=False)


def _partial_result(ctx: StepContext) -> Json:
    """What a flow had made when it reached a limit: its last output, and what it has captured."""
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


def _around(ctx: StepContext) -> dict[str, Json]:
    """Names that are known by the place of a step, in every life of the run."""
    return {name: ctx.scope.names[name] for name in ("item", "state") if name in ctx.scope.names}


def _perform_hook(step: HookStep, ctx: StepContext, active: set[str]) -> Outcome:
    active.add(ctx.path)
    try:
        # Its time is that of the flow, and no time of the step that it is about.
        with nullcontext() if ctx.timer is None else ctx.timer.paused():
            return perform(step, replace(ctx, timer=None))
    except LimitExceeded as end:
        if step.hook.event != "limit":
            raise
        # All ends by that limit already, whatever the hook would have said.
        return Failed(end.failure)
    finally:
        active.discard(ctx.path)


def _place(step: HookStep, ctx: StepContext) -> StepContext:
    """The turn of a hook; what an earlier life recorded there counts only if this is the same
    event.
    """
    inner = ctx.child(step)
    run = ctx.run
    if run.replay.is_first_run or not inner.can_replay:
        return inner
    if step.hook.event == "limit":
        return replace(inner, can_replay=False)  # it is reached anew in each life
    known = run.journal.step(inner.path)
    is_edited = known is not None and known.fingerprint != step.fingerprint
    if is_edited:
        return replace(inner, can_replay=False)
    # A step that had ended and is done again begins, fails or ends another time.
    ended = record_number(run.journal.last_result(ctx.path)) if ctx.path else 0
    return inner if ended <= inner.replay_after else replace(inner, replay_after=ended)


def _find_record(ctx: StepContext) -> StepRecord | None:
    """How the hook ended, if it was asked already: then its condition held, whatever it would say
    now.
    """
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return None
    known = ctx.run.journal.step(ctx.path)
    return None if known is None or known.number <= ctx.replay_after else known


def _is_answer(end: StepRecord | None, hook: Hook) -> bool:
    """Has a hook heard that ended so?  A gate that could not answer is asked until it can."""
    if end is None:
        return False
    return not (hook.gate and isinstance(end.outcome, Failed)) or _is_refusal(end)


def _is_refusal(end: StepRecord) -> bool:
    return isinstance(end.outcome, Failed) and end.outcome.failure.kind == REFUSED_BY_HOOK


def _verdict(hook: Hook, value: Mapping[str, Json], path: str) -> HookDecision | None:
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
    """What a step gives that counts as done although it failed; None: it cannot count as done."""
    gone_on = getattr(step, "value_after_failure", None)
    return dict(failure.as_result()) if gone_on is None else gone_on(failure)


def mask_mapping(said: Mapping[str, Json], mask: Callable[[str], str]) -> dict[str, Json]:
    return {
        name: mask_value(value, mask) if name == "why" else value for name, value in said.items()
    }
