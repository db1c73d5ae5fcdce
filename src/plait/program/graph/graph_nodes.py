"""What a graph is made of: nodes, their edges and loops; and how a node is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.hints import TYPE_CHECKING, Literal, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.perform import Turn
from plait.engine.step import PLAIN, Policy, Step
from plait.program.graph.calls import Action
from plait.program.on_empty import OnEmpty
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
class Loop:
    """What makes an action that of a foreach."""

    over: Template
    name: str = "item"
    collect: str | None = None
    parallel: int = 1
    keeps_going: bool = False
    """One item that fails does not keep the others from being done."""
    on_empty: OnEmpty = "warn"


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: NodeKind
    fingerprint: str
    call: Action | None = None
    loop: Loop | None = None
    assign: Template | None = None
    output: Template | None = None
    edges: tuple[Edge, ...] = ()
    on_error: str | None = None
    policy: Policy = PLAIN
    """How `perform` treats a visit, and that of a foreach each item."""
    clock: bool = False
    """A template of it asks for the time."""

    @property
    def title(self) -> str:
        return self.name

    @property
    def inner(self) -> Sequence[Step]:
        return ()

    def run(self, turn: Turn) -> Json:
        raise AssertionError(f"a node is visited, not run: {turn.path}")


def leads_to(node: Node) -> Iterator[str]:
    yield from (edge.to for edge in node.edges)
    if node.on_error is not None:
        yield node.on_error


def shown(node: Node, does: str | None = None) -> str:
    """What a node does, as its author wrote it, or in the words of whoever knows more; and its edges."""
    if does is None:
        does = node.kind if node.call is None else node.call.shown()
        does = does if node.loop is None else f"for each {node.loop.name}: {does}"
    ways = [edge.to + (f" if {edge.when.source.text}" if edge.when else "") for edge in node.edges]
    return does + (f" → {', '.join(ways)}" if ways else "")


def node_of(path: str) -> str:
    """`nodes/draft@2` is a visit of `draft`."""
    return path.rpartition("/")[2].partition("@")[0]
