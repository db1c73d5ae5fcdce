"""A state graph as its author wrote it: nodes, edges and the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Literal, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.step import DEFAULT_POLICY, Policy, Step
from plait.program.graph.calls import Action
from plait.program.item_list import OnEmpty
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.core.source import Source


NodeKind: TypeAlias = Literal["tool", "gate", "foreach", "return"]


class When(Protocol):
    """A compiled condition."""

    @property
    def source(self) -> Source: ...

    def holds(self, subject: Json) -> bool: ...


@dataclass(frozen=True, slots=True)
class Edge:
    to: str
    when: When | None = None
    """None: always open."""


@dataclass(frozen=True, slots=True)
class NodeForeach:
    """Makes an action run for each item of a list."""

    over: Template
    name: str = "item"
    collect: str | None = None
    parallel: int = 1
    keeps_going: bool = False
    """The other items run even if one fails."""
    on_empty: OnEmpty = "warn"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    kind: NodeKind
    fingerprint: str
    call: Action | None = None
    loop: NodeForeach | None = None
    assign: Template | None = None
    output: Template | None = None
    edges: tuple[Edge, ...] = ()
    on_error: str | None = None
    policy: Policy = DEFAULT_POLICY
    """The policy of a visit; for a foreach, the policy of each item."""
    clock: bool = False
    """One of its templates reads the clock."""

    @property
    def title(self) -> str:
        return self.name

    @property
    def children(self) -> Sequence[Step]:
        return ()


def next_names(node: NodeSpec) -> Iterator[str]:
    """Yield the nodes that a visit of this one may lead to, `on_error` included."""
    yield from (edge.to for edge in node.edges)
    if node.on_error is not None:
        yield node.on_error


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A graph with its inputs."""

    name: str
    start: str
    nodes: Mapping[str, NodeSpec]
    state: Mapping[str, Json] = field(default_factory=dict)
    inputs: Mapping[str, Json] = field(default_factory=dict, repr=False)
    max_steps: int = 1000
    continue_on_error: bool = False
    """`on_error: continue`."""
    strict: bool = False
    has_secrets: bool = False
