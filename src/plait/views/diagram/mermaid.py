"""A diagram as Mermaid text, which GitHub, GitLab and many editors draw.

The text is made of our own words; what authors wrote stands in quotes, where every character that
Mermaid or the Markdown around it could read as syntax is a character code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from plait.core.errors import shorten
from plait.core.hints import Final
from plait.views.diagram.model import Diagram, DiagramNode
from plait.views.format import one_line

MOST_OF_A_LABEL: Final = 80
SHAPES: Final = {
    "gate": ("{", "}"),
    "return": ("([", "])"),
    "start": ("([", "])"),
    "end": ("([", "])"),
    "foreach": ("[[", "]]"),
}
"""By the shape of a node: what stands around its label; a box otherwise."""
PLAIN: Final = frozenset(" .,=()/_-+!?'≠≥≤…×")
"""Characters beside letters and digits that no label gives a meaning to."""
LATE_SYNTAX: Final = (
    ("$$", "$\u200b$"),  # around mathematics: one wrong formula, and no diagram is drawn
    ("$$", "$\u200b$"),  # of three
    (":fa-", ":\u200bfa-"),  # in `fa:fa-car`, an icon
)
"""What Mermaid reads after it has turned character codes into characters, and the same with a space
that has no width.
"""
STYLES: Final = {
    "visited": "stroke:#155eef,stroke-width:3px",
    "failed": "stroke:#d0544b,stroke-width:3px",
}


def render_mermaid(diagram: Diagram) -> str:
    return "".join(f"{line}\n" for line in _lines(diagram))


def _lines(diagram: Diagram) -> Iterator[str]:
    numbers = {node.name: number for number, node in enumerate(diagram.nodes)}
    yield "flowchart TD"
    title = "".join(char if char.isalnum() or char in "._-" else " " for char in diagram.title)
    if title := " ".join(title.split()):
        yield f"    accTitle: {title}"
    for node in diagram.nodes:
        left, right = SHAPES.get(node.shape, ("[", "]"))
        yield f'    n{numbers[node.name]}{left}"{_label(node)}"{right}'
    for edge in diagram.edges:
        arrow = "-.->" if edge.style == "error" else "==>" if edge.taken else "-->"
        count = f" ×{edge.taken}" if edge.taken > 1 else ""
        words = f"{edge.label}{count}".strip()
        label = f'|"{encode(words)}"|' if words else ""
        yield f"    n{numbers[edge.start]} {arrow}{label} n{numbers[edge.to]}"
    for name, style in STYLES.items():
        drawn = [node for node in diagram.nodes if _style(node) == name]
        if drawn:
            yield f"    classDef {name} {style}"
            yield f"    class {','.join(f'n{numbers[node.name]}' for node in drawn)} {name}"


def _label(node: DiagramNode) -> str:
    about = f"<br>{encode(node.about)}" if node.about else ""
    visits = f"<br>{node.visits} visits" if node.visits > 1 else ""
    return f"{encode(node.name)}{about}{visits}"


def _style(node: DiagramNode) -> str:
    return "failed" if node.failed else "visited" if node.visits else ""


def encode(text: str) -> str:
    """One line of text with character codes for all that could be syntax."""
    line = shorten(one_line(" ".join(text.split()), None), MOST_OF_A_LABEL)
    # A label that begins like a list would be drawn as one, so its first sign is a code, too.
    is_list = re.match(r"\d+[.)]|\W", line) is not None
    for read, parted in LATE_SYNTAX:
        line = line.replace(read, parted)
    codes = (
        char if (char.isalnum() or char in PLAIN) and (at or not is_list) else f"#{ord(char)};"
        for at, char in enumerate(line)
    )
    # After `style` and a colon it drops the end of a code; a space between them prevents that.
    return "".join(codes).replace("#58; ", ": ") or "#160;"
