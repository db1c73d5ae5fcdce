"""A compiled flow: what `app` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Protocol
from plait.core.records import dataclass
from plait.engine.outcome import require_success
from plait.engine.paths import AGENT
from plait.engine.step import Composite

if TYPE_CHECKING:
    from plait.agents.session import AgentStep
    from plait.core.values import Json
    from plait.engine.limits import Limits
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.program.map import Map


@dataclass(frozen=True, slots=True)
class FilledDirective:
    """A directive whose inputs are filled in."""

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


@dataclass(frozen=True, slots=True)
class DirectiveProgram(Composite):
    """The program of a directive: one agent session."""

    name: str
    session: AgentStep
    prompt: FilledDirective
    limits: Limits
    """The limits that the author wrote."""

    @property
    def children(self) -> Sequence[Step]:
        return (self.session,)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return ((AGENT, 0),)

    @property
    def map(self) -> Map | None:
        return None

    def run(self, ctx: StepContext) -> Json:
        return require_success(ctx.perform(self.session))


class Program(Protocol):
    """The steps of a flow and the order in which they are performed."""

    @property
    def name(self) -> str: ...

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
