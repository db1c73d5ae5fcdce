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
    boxes = {box.name: box for box in diagram.boxes}
    wide = min(28, max((len(box.name) for box in diagram.boxes), default=0))
    yield diagram.title, "bold"
    for name in (name for layer in layout.layers for name in layer if name in boxes):
        yield (
            _head(boxes[name], wide, is_first=name == diagram.boxes[0].name),
            _colour(boxes[name], diagram),
        )
        leaving = [(at, arrow) for at, arrow in enumerate(diagram.arrows) if arrow.start == name]
        for place, (at, arrow) in enumerate(leaving):
            yield (
                _edge(arrow, at, layout, is_last=place == len(leaving) - 1),
                _edge_colour(arrow, diagram),
            )


def _head(box: DiagramNode, wide: int, *, is_first: bool) -> str:
    state = "failed" if box.failed else "running" if box.visits else "waiting"
    mark = FIRST if is_first and state == "waiting" else sign(state)
    visits = f"   {pluralize(box.visits, 'visit')}" if box.visits else ""
    about = f"{box.sign} {shorten(' '.join(box.about.split()), WIDEST)}".rstrip()
    return f"{mark} {box.name:<{wide}}  {about}{visits}".rstrip()


def _edge(arrow: DiagramEdge, at: int, layout: Layout, *, is_last: bool) -> str:
    label = shorten(" ".join(arrow.label.split()), WIDEST)
    corner = "└" if is_last else "├"
    count = f" ×{arrow.taken}" if arrow.taken > 1 else ""
    up = " ↑" if at in layout.back else ""
    line = f"─ {label} ─" if label else "──"
    return f"  {corner}{line}▶ {arrow.to}{up}{count}"


def _colour(box: DiagramNode, diagram: Diagram) -> str:
    if box.failed:
        return "red"
    return "green" if box.visits else "dim" if diagram.is_run else ""


def _edge_colour(arrow: DiagramEdge, diagram: Diagram) -> str:
    return "green" if arrow.taken else "dim" if diagram.is_run or arrow.style == "error" else ""
