"""A diagram as SVG, without scripts, links and fonts; it has colours for a dark page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from plait.core.errors import shorten
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.views.diagram.model import LABEL, Diagram, DiagramEdge, DiagramNode, Layout
from plait.views.diagram.model import layout as laid_out

LETTER: Final = 7.2
"""The width of a letter."""
SMALL: Final = 6.4
"""The width of a small letter."""
HEIGHT: Final = 46
GAP: Final = 44
"""Between nodes of a layer."""
BEND: Final = 24
BETWEEN: Final = 40
"""From one layer to the next."""
LOW: Final = 16
"""The height of a layer in which there are only bends and labels."""
MARGIN: Final = 28
HEAD: Final = 42

STYLE: Final = """\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1f2430}
.title{font-size:15px;font-weight:600}.about{font-size:10.5px;fill:#667085}.label{font-size:10.5px;fill:#475467}
.halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.box{fill:#fff;stroke:#98a2b3;stroke-width:1.4}.tool{fill:#eef4ff;stroke:#6c8ff0}.foreach{fill:#f4f0ff;stroke:#9b7fe6}
.return,.end{fill:#ecfdf3;stroke:#4cae7c}.gate{fill:#fffaeb;stroke:#d3a43a}.phase,.step,.task{fill:#eef4ff;stroke:#6c8ff0}
.edge{fill:none;stroke:#667085;stroke-width:1.3}.error{stroke:#d0544b;stroke-dasharray:5 3}
.was{stroke-width:2.6;stroke:#155eef}.faint{opacity:.38}.bad{stroke:#d0544b;stroke-width:2.6}
.tip{fill:#667085}.tip-error{fill:#d0544b}.tip-was{fill:#155eef}
.count{font-size:10.5px;fill:#fff;font-weight:600}.badge{fill:#155eef}
@media (prefers-color-scheme:dark){text{fill:#e4e7ec}.about,.label{fill:#a3acbd}.halo{stroke:#14171f}
.page{fill:#14171f}.box{fill:#1d2230}.tool,.phase,.step,.task{fill:#1b2540}.foreach{fill:#261f40}.return,.end{fill:#14301f}
.gate{fill:#33290f}.edge{stroke:#8d97a8}.was{stroke:#6c9bff}.badge{fill:#2f6bff}
.tip{fill:#8d97a8}.tip-was{fill:#6c9bff}}
.page{fill:#fff}
@media (prefers-color-scheme:dark){.page{fill:#14171f}}"""


@dataclass(frozen=True, slots=True)
class Spot:
    """The middle of a node or a bend, and how wide it is."""

    x: float
    y: float
    width: float


def render_svg(diagram: Diagram) -> str:
    """A file with colours of its own."""
    whole, tall = svg_size(diagram)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {tall:.0f}" '
        f'width="{whole:.0f}" height="{tall:.0f}" role="img" aria-label="{escape(diagram.title)}">',
        f"<style>{STYLE}</style>",
        svg_body(diagram),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def svg_size(diagram: Diagram) -> tuple[float, float]:
    """Width and height of the drawing."""
    drawing = _Drawing(diagram)
    return drawing.width, drawing.height


def svg_body(diagram: Diagram) -> str:
    """The drawing without the element around it; its colours are classes of `STYLE`."""
    drawing = _Drawing(diagram)
    parts = [
        _MARKERS,
        f'<rect class="page" width="{drawing.width:.0f}" height="{drawing.height:.0f}"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN}">{escape(diagram.title)}</text>',
        f'<g transform="translate({MARGIN},{HEAD + MARGIN})">',
        *_edges(diagram, drawing.layout, drawing.spots, drawing.lanes),
        *(
            line
            for node in diagram.nodes
            for line in _node(node, drawing.spots[node.name], is_run=diagram.is_run)
        ),
        "</g>",
    ]
    return "\n".join(parts)


class _Drawing:
    """Where the nodes of a diagram are, and how large it is."""

    def __init__(self, diagram: Diagram) -> None:
        self.layout = laid_out(diagram)
        nodes = {node.name: node for node in diagram.nodes}
        self.spots, width, height = _place_nodes(diagram, self.layout, nodes)
        back = sorted(self.layout.back)
        # Edges back up are drawn at the right, each in one lane, beside their labels.
        self.lanes = {at: width + 26 + 22 * lane for lane, at in enumerate(back)}
        labels = max((len(_label(diagram.edges[at])) for at in back), default=0)
        beside = 22 * len(back) + labels * SMALL + 30 if back else 0
        self.width = max(width + beside, len(diagram.title) * 9) + 2 * MARGIN
        self.height = HEAD + height + 2 * MARGIN


def _marker(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse" markerUnits="userSpaceOnUse">'
        f'<path class="{name}" d="M0 0 8 4 0 8z"/></marker>'
    )


_MARKERS: Final = f"<defs>{''.join(map(_marker, ('tip', 'tip-error', 'tip-was')))}</defs>"
"""The heads of edges, each in the colour of its line."""


def _place_nodes(
    diagram: Diagram, layout: Layout, nodes: Mapping[str, DiagramNode]
) -> tuple[dict[str, Spot], float, float]:
    """The positions of nodes and bends, and the width and height of all."""
    labels = {
        route[1]: _label(diagram.edges[at]) for at, route in layout.routes.items() if len(route) > 2
    }
    widths = {
        name: _width(nodes[name])
        if name in nodes
        else max(BEND, len(labels.get(name, "")) * SMALL + 10)
        for layer in layout.layers
        for name in layer
    }
    rows = [sum(widths[name] for name in layer) + GAP * (len(layer) - 1) for layer in layout.layers]
    whole, top = max(rows, default=120.0), 0.0
    spots: dict[str, Spot] = {}
    for layer, row in zip(layout.layers, rows, strict=True):
        left, high = (whole - row) / 2, HEIGHT if any(name in nodes for name in layer) else LOW
        for name in layer:
            spots[name] = Spot(left + widths[name] / 2, top + high / 2, widths[name])
            left += widths[name] + GAP
        top += high + BETWEEN
    return spots, whole, top - BETWEEN


def _width(node: DiagramNode) -> float:
    return max(84.0, len(node.name) * LETTER + 34, min(len(node.about), LABEL) * SMALL + 24)


def _node(node: DiagramNode, spot: Spot, *, is_run: bool) -> Iterator[str]:
    faint = " faint" if is_run and not node.visits else ""
    mark = " bad" if node.failed else " was" if node.visits else ""
    mark += " now" if node.running else ""
    left, top = spot.x - spot.width / 2, spot.y - HEIGHT / 2
    style = "tool" if node.shape == "shell" else node.shape
    round_ = 22 if node.shape in ("return", "end") else 3 if node.shape == "gate" else 9
    yield f'<g class="{faint.strip()}"><title>{escape(_tooltip(node))}</title>'
    yield (
        f'<rect class="box {style}{mark}" x="{left:.1f}" y="{top:.1f}" width="{spot.width:.1f}" '
        f'height="{HEIGHT}" rx="{round_}"/>'
    )
    base = spot.y + 4 if not node.about else spot.y - 3
    yield _text(spot.x, base, node.name)
    if node.about:
        yield _text(spot.x, spot.y + 13, shorten(node.about, LABEL), "about")
    if node.visits > 1:
        right = left + spot.width
        yield f'<circle class="badge" cx="{right:.1f}" cy="{top:.1f}" r="10"/>'
        yield _text(right, top + 4, str(node.visits), "count")
    yield "</g>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _tooltip(node: DiagramNode) -> str:
    visits = f"; visited {node.visits} times" if node.visits else ""
    now = "; runs now" if node.running else ""
    return f"{node.name}: {node.shape}" + (f" {node.about}" if node.about else "") + visits + now


def _edges(
    diagram: Diagram, layout: Layout, spots: Mapping[str, Spot], lanes: Mapping[int, float]
) -> Iterator[str]:
    leaving = _ports(diagram.edges, layout, spots)
    labels: list[str] = []
    for at, edge in enumerate(diagram.edges):
        faint = " faint" if diagram.is_run and not edge.taken else ""
        style = " ".join(["edge", *(["error"] if edge.style == "error" else [])])
        style += (" was" if edge.taken else "") + faint
        if at in lanes:
            path, x, y = _back(edge, spots, lanes[at])
        else:
            path, x, y = _forward(layout.routes[at], spots, leaving[at])
        title = f"<title>{escape(_whole(edge))}</title>"
        tip = "tip-was" if edge.taken else "tip-error" if edge.style == "error" else "tip"
        yield f'<path class="{style}" d="{path}" marker-end="url(#{tip})">{title}</path>'
        if label := _label(edge):
            labels += _render_label(
                x, y, label, faint, is_beside=at in lanes or len(layout.routes[at]) == 2
            )
    yield from labels  # above every line


def _render_label(x: float, y: float, label: str, faint: str, *, is_beside: bool) -> Iterator[str]:
    """The label of an edge: beside its line, or on a rectangle that covers the line."""
    if is_beside:
        yield _text(x, y, label, f"label halo{faint}", "start")
        return
    width = len(label) * SMALL + 8
    yield f'<rect class="page" x="{x - width / 2:.1f}" y="{y - 10:.1f}" width="{width:.1f}" height="13"/>'
    yield _text(x, y, label, f"label{faint}")


def _ports(
    edges: Sequence[DiagramEdge], layout: Layout, spots: Mapping[str, Spot]
) -> dict[int, float]:
    """Where each edge leaves its node: in the order of their targets, from the left."""
    by_node: dict[str, list[int]] = {}
    for at in layout.routes:
        by_node.setdefault(edges[at].start, []).append(at)
    found: dict[int, float] = {}
    for name, every in by_node.items():
        spot = spots[name]
        every.sort(key=lambda at: spots[layout.routes[at][1]].x)
        step = min(26.0, spot.width / (len(every) + 1))
        for place, at in enumerate(every):
            found[at] = spot.x + (place - (len(every) - 1) / 2) * step
    return found


def _forward(
    route: Sequence[str], spots: Mapping[str, Spot], port: float
) -> tuple[str, float, float]:
    points = [(port, spots[route[0]].y + HEIGHT / 2)]
    points += [(spots[name].x, spots[name].y) for name in route[1:-1]]
    points.append((spots[route[-1]].x, spots[route[-1]].y - HEIGHT / 2 - 2))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        half = (y2 - y1) / 2
        path += f" C{x1:.1f} {y1 + half:.1f} {x2:.1f} {y2 - half:.1f} {x2:.1f} {y2:.1f}"
    if len(points) > 2:
        return path, points[1][0], points[1][1] + 4
    (x1, y1), (x2, y2) = points
    return path, max(x1, x2) + 6, (y1 + y2) / 2 + 4


def _back(edge: DiagramEdge, spots: Mapping[str, Spot], lane: float) -> tuple[str, float, float]:
    one, other = spots[edge.start], spots[edge.to]
    right, left = one.x + one.width / 2, other.x + other.width / 2 + 2
    low, high = one.y + 9, other.y - 9
    middle = (low + high) / 2
    path = (
        f"M{right:.1f} {low:.1f} C{lane:.1f} {low:.1f} {lane:.1f} {low:.1f} {lane:.1f} "
        f"{middle:.1f} "
        f"S{lane:.1f} {high:.1f} {left:.1f} {high:.1f}"
    )
    return path, lane + 6, middle + 4


def _label(edge: DiagramEdge) -> str:
    count = f" ×{edge.taken}" if edge.taken > 1 else ""
    return shorten(edge.label, LABEL) + count if edge.label or count else ""


def _whole(edge: DiagramEdge) -> str:
    return f"{edge.start} → {edge.to}" + (f": {edge.label}" if edge.label else "")
