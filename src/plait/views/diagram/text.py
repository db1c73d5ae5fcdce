"""A diagram as lines: each node once, in the order of the layers, with its edges below it.

    ● draft            tool demo/write                3 visits
      ├─ state.ok = true ──▶ send
      └─ otherwise ──▶ draft ↑

An edge that leads back up is marked; the sign of a node that a run has visited is filled.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.errors import shorten
from plait.core.hints import Final
from plait.views.diagram.model import Diagram, DiagramEdge, DiagramNode, Layout
from plait.views.diagram.model import layout as laid_out
from plait.views.format import Line, one_line, sign
from plait.views.terminal import pluralize

WIDEST: Final = 60
FIRST: Final = "▷"


def diagram_lines(diagram: Diagram) -> Iterator[Line]:
    """The lines of `plait graph`: nothing in them can drive a terminal."""
    return ((one_line(text, None), colour) for text, colour in render_text(diagram))


def render_text(diagram: Diagram) -> Iterator[Line]:
    layout = laid_out(diagram)
    nodes = {node.name: node for node in diagram.nodes}
    wide = min(28, max((len(node.name) for node in diagram.nodes), default=0))
    yield diagram.title, "bold"
    for name in (name for layer in layout.layers for name in layer if name in nodes):
        yield (
            _head(nodes[name], wide, is_first=name == diagram.nodes[0].name),
            _colour(nodes[name], diagram),
        )
        leaving = [(at, edge) for at, edge in enumerate(diagram.edges) if edge.start == name]
        for place, (at, edge) in enumerate(leaving):
            yield (
                _edge(edge, at, layout, is_last=place == len(leaving) - 1),
                _edge_colour(edge, diagram),
            )


def _head(node: DiagramNode, wide: int, *, is_first: bool) -> str:
    state = "failed" if node.failed else "running" if node.visits else "waiting"
    mark = FIRST if is_first and state == "waiting" else sign(state)
    visits = f"   {pluralize(node.visits, 'visit')}" if node.visits else ""
    about = f"{node.shape} {shorten(' '.join(node.about.split()), WIDEST)}".rstrip()
    return f"{mark} {node.name:<{wide}}  {about}{visits}".rstrip()


def _edge(edge: DiagramEdge, at: int, layout: Layout, *, is_last: bool) -> str:
    label = shorten(" ".join(edge.label.split()), WIDEST)
    corner = "└" if is_last else "├"
    count = f" ×{edge.taken}" if edge.taken > 1 else ""
    up = " ↑" if at in layout.back else ""
    line = f"─ {label} ─" if label else "──"
    return f"  {corner}{line}▶ {edge.to}{up}{count}"


def _colour(node: DiagramNode, diagram: Diagram) -> str:
    if node.failed:
        return "red"
    return "green" if node.visits else "dim" if diagram.is_run else ""


def _edge_colour(edge: DiagramEdge, diagram: Diagram) -> str:
    return "green" if edge.taken else "dim" if diagram.is_run or edge.style == "error" else ""
