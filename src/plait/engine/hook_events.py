"""The events that hooks can name, hooks as files define them, and their decisions.

Here is only what a hook is; `hook_step` runs one, `hooks` finds those of an event.
"""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.kinds import failure_kinds, step_kind
from plait.engine.limits import NAMES as LIMITS
from plait.engine.outcome import ABORTED, Aborted, Failure, Outcome
from plait.engine.paths import is_model_step
from plait.engine.step import Step

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
TRANSIENT: Final = frozenset(failure_kinds("transient"))


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
        HookEvent("run_finished", "a run has ended, and nothing failed", _AFTER, ("result",)),
        HookEvent("run_failed", "a run has failed, or some of its items have", _AFTER, ("error",)),
        HookEvent("step_started", "a step is about to begin", _GATE, _STEP),
        HookEvent("step_finished", "a step is done", _AFTER, (*_STEP, "result")),
        HookEvent(
            "step_failed", "a step has failed after its last attempt", _FAILED, (*_STEP, "error")
        ),
        HookEvent("item_started", "the steps for an item are about to begin", _GATE, _STEP),
        HookEvent("item_finished", "the steps for an item are done", _AFTER, (*_STEP, "result")),
        HookEvent(
            "item_failed",
            "an item has failed, because one of its steps failed",
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
        HookEvent("graph_completed", "a graph has ended", _AFTER, (*_GRAPH, "result")),
        HookEvent(
            "limit", "a limit is reached", _LIMIT, (*_STEP, "graph", "steps", "turn", "limit")
        ),
        HookEvent("turn_started", "a model request is about to be sent", _GATE, (*_STEP, "turn")),
        HookEvent("turn_finished", "a model has answered", _AFTER, (*_STEP, "turn", "result")),
        HookEvent("tool_call", "a model requests a tool call", _GATE, (*_STEP, *_TOOL)),
        HookEvent("tool_result", "that tool has been called", _AFTER, (*_STEP, *_TOOL, "result")),
    )
}

NAMES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # name: what it is, its fields (none: not ours to know)
    "event": ("which event it is", ()),
    "path": ("where in the run it happened", ()),
    "run": ("this run", ("id", "flow", "file")),
    "inputs": ("the inputs of the run or the graph", ()),
    "limits": ("the limits that are set", LIMITS),
    "used": ("how much of them is used", LIMITS),
    "cost": ("the same usage, of the run or the agent so far", LIMITS),
    "directive": ("the directive or agent that runs", ()),
    "model": ("the model of the request; after a step, or if no file names one, that of the answer", ()),
    "step": ("the step", ("name", "kind", "title", "attempt")),
    "item": ("the current item", ()),
    "graph": ("the graph", ()),
    "start": ("its first node", ()),
    "node": ("the node", ()),
    "next": ("the next node", ()),
    "steps": ("how many nodes were done so far", ()),
    "attempt": ("the number of the attempt, from 1", ()),
    "state": ("what the nodes of the graph have assigned so far", ()),
    "error": ("why it failed", ("message", "kind", "exit_code", "retryable", "path")),
    "result": ("its result", ()),
    "limit": ("the limit", ("code", "value", "max")),
    "turn": ("the number of the turn", ()),
    "tool": ("the id of the tool", ()),
    "params": ("the parameters of the call", ()),
}  # fmt: skip
"""Every name that a hook may know."""


def hook_family(step: Step) -> str | None:
    """Return `step` or `item`, the prefix of the events that a step causes; None: it causes none."""
    if is_model_step(step.name):
        return None  # turns and calls have events of their own
    return step_kind(step.kind).events or None


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
