"""One hook at one event: its condition, its recorded step and its decision.

`FlowHooks` holds the hooks of one flow and runs one of them.  The tools that a hook calls are
called in its step, `HookStep`, which is recorded below the path where the event happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from threading import Lock

from plait.core.errors import ConditionError, closest_name
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.hook_events import (
    FOREIGN_VERBS,
    HOOK_EVENTS,
    LAYERS,
    VERBS,
    Hook,
    HookCall,
    HookDecision,
    Verb,
)
from plait.engine.journal import StepRecord, record_number
from plait.engine.outcome import (
    DeadlineExceeded,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import hook_name, join_path, repeated_name
from plait.engine.perform import StepContext, act, perform
from plait.engine.step import DEFAULT_POLICY, Action, Composite, LeafStep, Policy, Step
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.template.template import Template

HOOK_DECISION: Final = "hook_decision"
"""The failure kind of a hook step that decides fail or abort."""

MakeCall: TypeAlias = "Callable[[StepContext, str, Template | None, Scope], Action]"
"""Makes the action that calls a tool with its parameters filled; its value has the `output`."""


class NotConcernedError(Exception):
    """The condition of a hook does not hold."""


@dataclass(frozen=True, slots=True)
class HookListener:
    """A hook to notify, and its variables."""

    owner: FlowHooks = field(repr=False)
    name: str
    hook: Hook
    names: Mapping[str, Json] = field(repr=False)
    problem: str = ""
    """Why its condition cannot be evaluated."""


class FlowHooks:
    """The hooks that one flow defines.  Safe to use from many threads."""

    def __init__(
        self,
        hooks: Iterable[Hook],
        *,
        depth: int,
        call: MakeCall,
        names: Mapping[str, Json],
        active: set[str],
    ) -> None:
        """`active`: the paths of hooks that run, of all flows of the run."""
        self.names = names
        self._call = call
        self._active = active
        self._lock = Lock()
        self._dropped: set[str] = set()
        # The depth tells its hooks from those of the flows around, in every attempt of the run.
        prefix = "" if not depth else "inner." if depth == 1 else f"inner{depth}."
        self.by_event: dict[str, list[tuple[str, Hook]]] = {}
        for name, hook in _name_hooks(hooks):
            self.by_event.setdefault(hook.event, []).append((prefix + name, hook))

    def fire(
        self, name: str, hook: Hook, ctx: StepContext, names: Mapping[str, Json]
    ) -> HookDecision | None:
        """Run a hook if its condition holds, and return its decision."""
        hook_ctx = _hook_context(self.make_step(name, hook, ctx, names), ctx)
        problem = ""
        known = _find_record(hook_ctx)
        if known is not None and hook.event == "after_step" and is_refusal(known):
            return None  # another hook is asked again; this one has decided abort before
        if known is None:
            try:
                problem = self.condition_problem(name, hook, names, ctx)
            except NotConcernedError:
                return None
        return self.run_listener(HookListener(self, name, hook, names, problem), ctx)

    def condition_problem(
        self, name: str, hook: Hook, names: Mapping[str, Json], ctx: StepContext
    ) -> str:
        """Return why the condition cannot be evaluated, or ""; raise NotConcernedError if it is
        false.
        """
        try:
            if name in self._dropped or not (
                hook.condition is None or hook.condition.holds(_scope(names, ctx))
            ):
                raise NotConcernedError
        except ConditionError as error:
            return str(error)
        return ""

    def run_listener(self, one: HookListener, ctx: StepContext) -> HookDecision | None:
        """Run one hook and return its decision."""
        name, hook = one.name, one.hook
        if name in self._dropped:
            return None
        step = self.make_step(name, hook, ctx, one.names)
        hook_ctx = _hook_context(step, ctx)
        if one.problem:
            return self._handle_broken_hook(name, hook, hook_ctx, one.problem)
        match _perform_hook(step, hook_ctx, self._active):
            case Succeeded(dict() as value) | Failed(
                Failure(kind="hook_decision", output=dict() as value)
            ):
                return _make_decision(hook, value, hook_ctx.path)
            case Failed(failure):
                return self._handle_broken_hook(name, hook, hook_ctx, failure.message)
        return None

    def make_step(
        self, name: str, hook: Hook, ctx: StepContext, names: Mapping[str, Json]
    ) -> HookStep:
        return HookStep(repeated_name(name, ctx.attempt), hook, names, self._call)

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


def _name_hooks(hooks: Iterable[Hook]) -> list[tuple[str, Hook]]:
    """Sort hooks by layer; an id that an earlier layer uses gets the name of its space."""
    seen: set[str] = set()
    named: list[tuple[str, Hook]] = []
    for hook in sorted(hooks, key=hook_rank):
        name = hook.id if hook.id not in seen else f"{hook.space}.{hook.id}"
        seen |= {hook.id, name}
        named.append((name, hook))
    return named


def hook_rank(hook: Hook) -> tuple[int, int]:
    """The order in which the hooks of an event run."""
    return hook.layer, LAYERS.get(hook.space, 0)


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


def is_refusal(end: StepRecord) -> bool:
    """Did the hook decide fail or abort?"""
    return isinstance(end.outcome, Failed) and end.outcome.failure.kind == HOOK_DECISION


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
        return hook_name(self.called)

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
        if self.hook.verb is not None:
            fields: dict[str, Json] = {"verb": self.hook.verb, "why": self.hook.why}
        else:  # that of the first tool which has one
            fields = next((found for one in outputs if (found := find_decision(one))), {})
        if fields and fields["verb"] not in HOOK_EVENTS[self.hook.event].verbs:
            raise StepError(
                Failure(f"'{fields['verb']}' means nothing at {self.hook.event}", "refused")
            )
        if fields:
            fields["why"] = mask_value(fields["why"], ctx.run.secrets.mask)
        value: dict[str, Json] = {
            "output": outputs[0] if len(outputs) == 1 else outputs or None,
            **fields,
        }
        if fields.get("verb") in ("fail", "abort"):
            # A failure is not replayed: a resumed run asks again.
            decision = _make_decision(self.hook, value, ctx.path)
            assert decision is not None
            raise StepError(Failure(decision.message, HOOK_DECISION, output=value))
        return value

    def _replay_context(self, ctx: StepContext) -> StepContext:
        """Return a context that replays no call if all were made and the decision did not count."""
        journal = ctx.run.journal
        if ctx.run.replay.is_first_run or not ctx.can_replay or len(self.hook.calls) < 2:
            return ctx
        last, end = (
            journal.step(join_path(ctx.path, str(len(self.hook.calls)))),
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


@dataclass(frozen=True, slots=True)
class _HookCall(Composite):
    """One call of a hook."""

    step: HookStep = field(repr=False)
    call: HookCall

    def run(self, ctx: StepContext) -> Json:
        names = _scope(self.step.names, ctx)
        return act(self.step.make_call(ctx, self.call.tool, self.call.params, names), ctx)


def _scope(names: Mapping[str, Json], ctx: StepContext) -> Scope:
    """Return the scope for the condition and the parameters of a hook."""
    return Scope(names, label="hook", sources=ctx.scope.sources)


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
