"""A compiled flow of any language: what `app` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Protocol
from plait.core.records import dataclass
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import Failure, StepError, require_success
from plait.engine.perform import StepContext, act
from plait.engine.step import Composite, Step

if TYPE_CHECKING:
    from plait.agents.session import AgentStep
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.engine.hook_events import Hook
    from plait.engine.limits import Budget
    from plait.program.map import Map


MOST_DEPTH: Final = 16
"""The maximum depth of nested flows, whatever their limits say."""


class Body(Protocol):
    """The steps of a program and the order in which they are performed."""

    @property
    def children(self) -> Sequence[Step]:
        """The steps that are known before the run."""

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Each phase with the number of its steps. Views draw them at the start."""

    @property
    def map(self) -> Map | None:
        """The map whose items are counted and can be retried."""

    def run(self, ctx: StepContext) -> Json:
        """Perform the steps and return the value; raises StepError if one fails."""


@dataclass(frozen=True, slots=True)
class Program(Composite):
    kind: str
    """The language: workflow, graph, directive or ensemble; or chat, an interactive directive."""
    name: str
    body: Body
    limits: Limits = NO_LIMITS
    """The limits of its steps. The agent of a directive has its own."""
    hooks: tuple[Hook, ...] = ()
    """The hooks of its file; `app` adds those of the user and of the project."""
    tracks: frozenset[str] = frozenset()
    """Which of `step`, `workflow` and `git` need change tracking, because a template reads their
    changes or state.
    """
    directive: DirectiveSpec | None = None
    """The directive or chat that this is; None for other languages."""

    @property
    def children(self) -> Sequence[Step]:
        return self.body.children

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return self.body.phases

    @property
    def map(self) -> Map | None:
        return self.body.map

    def run(self, ctx: StepContext) -> Json:
        if self.tracks:
            from plait.program.git_changes import begin_tracking

            begin_tracking(ctx, self.tracks)
        if self.directive is not None:  # its agent opens the budget
            return act(self.body, ctx)
        with ctx.run.budgets.scope(
            ctx.path, self.limits, f"{self.kind} '{self.name}'", goes_on=ctx.can_replay
        ) as budget:
            _require_depth(budget)
            return act(self.body, ctx)


def _require_depth(budget: Budget) -> None:
    budget.require("depth")
    if budget.depth > MOST_DEPTH:
        raise StepError(Failure(f"more than {MOST_DEPTH} flows are nested", "limit"))


@dataclass(frozen=True, slots=True)
class OneStep(Composite):
    """A program that is one step: a graph, an agent session, or the tasks of an ensemble."""

    step: Step
    count: int = 0
    """The number of steps in it; 0: only a run knows it."""

    @property
    def children(self) -> Sequence[Step]:
        return (self.step,)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return ((self.step.name, self.count),)

    @property
    def map(self) -> None:
        return None

    def run(self, ctx: StepContext) -> Json:
        return require_success(ctx.perform(self.step))


@dataclass(frozen=True, slots=True)
class DirectiveSpec:
    """A directive with its inputs."""

    agent: AgentStep
    prompt: FilledDirective
    limits: Limits
    """The limits that the author wrote."""


@dataclass(frozen=True, slots=True)
class FilledDirective:
    """The texts of a directive whose inputs are filled in."""

    inputs: Mapping[str, Json]
    body: str
    content: str
    raw: str
    actions: list[Json]
    system: str

    def record(self) -> dict[str, Json]:
        return {
            "prompt": self.body,
            "system": self.system,
            "inputs": dict(self.inputs),
            "actions": self.actions,
            "content": self.content,
            "raw": self.raw,
        }
