"""Choose the edge that a graph follows after a node: the first one that is open."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.core.values import Json
    from plait.program.graph.node import NodeScope
    from plait.program.graph.spec import NodeSpec


def choose_edge(
    node: NodeSpec, names: NodeScope, assigned: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    """Return the part of the visit's record that names the next node, `{next}`.

    It is empty if no edge is open: the graph ends here. If several edges lead to the same node,
    `edge` is the number of the chosen one. `assigned` is what the visit changes in the state.
    """
    number = _first_matching_edge(node, names, assigned)
    if number is None:
        return {}
    to = node.edges[number].to
    if len(node.edges) > 1 and sum(edge.to == to for edge in node.edges) > 1:
        return {"next": to, "edge": number + 1}
    return {"next": to}


def _first_matching_edge(
    node: NodeSpec, names: NodeScope, assigned: Mapping[str, Json] | None
) -> int | None:
    seen: NodeScope | None = None
    for number, edge in enumerate(node.edges):
        if edge.when is None:
            return number
        if seen is None:
            seen = (
                names.with_names(state={**names.names["state"], **assigned}) if assigned else names
            )
        if edge.when.holds(seen):
            return number
    return None
