"""Timeline, overview of items and diagram as SVG, with classes in place of colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.core.hints import Final
from plait.views.diagram.model import Diagram
from plait.views.diagram.svg import svg_body, svg_size
from plait.views.format import clock, one_line
from plait.views.item_table import ItemState
from plait.views.run_tree import Lane
from plait.web.html import Markup, join, tag, trusted
from plait.web.layout import state_sign, word

WIDE: Final = 1000
"""The width of the drawing of a lane, which is stretched to that of the page."""
LEAST: Final = 2.5
"""The least width of a span."""
LOAD_HEIGHT: Final = 28


def timeline(lanes: Sequence[Lane], total: float, address: Callable[[str], str]) -> Markup:
    """A table: one row per step, with a drawing of when it ran; `total`: the seconds of all."""
    total = max(total, 1e-6)
    rows = [
        tag(
            "tr",
            tag(
                "th",
                tag(
                    "a",
                    state_sign(lane.state),
                    tag("bdi", one_line(lane.title)),
                    href=address(lane.path),
                    class_=f"indent-{min(lane.depth, 6)}",
                ),
                scope="row",
            ),
            tag("td", _lane(lane, total)),
        )
        for lane in lanes
    ]
    return tag(
        "table",
        tag("caption", "When each step ran", class_="unseen"),
        tag(
            "thead",
            tag("tr", tag("th", "Step", scope="col"), tag("th", _scale(total), scope="col")),
        ),
        tag("tbody", rows),
        class_="timeline",
    )


def _scale(total: float) -> Markup:
    """Five times; each stands where its line is, the last one at the end."""
    marks = [_mark(total * part / 4, total) for part in range(5)]
    return tag("span", [tag("span", mark) for mark in marks], class_="scale")


def _mark(seconds: float, total: float) -> str:
    """Fine enough to tell the marks of a short run apart."""
    return clock(seconds) if total >= 2 else f"{seconds:.2f} s"


def _lane(lane: Lane, total: float) -> Markup:
    words = "; ".join(
        f"{word(one.state)} from {clock(one.start)} to {clock(one.end)}"
        + (f", {one_line(one.label)}" if one.label else "")
        for one in lane.spans[:20]
    )
    drawn = []
    if lane.load:
        drawn.append(_load(lane.load))
    # Waits first: what is drawn later lies on top, and an attempt may be as short as its least width.
    for one in sorted(lane.spans, key=lambda span: span.state != "retrying"):
        left = one.start / total * WIDE
        width = max((one.end - one.start) / total * WIDE, LEAST)
        drawn.append(
            tag(
                "rect",
                tag(
                    "title", f"{word(one.state)}, {clock(one.end - one.start)} {one.label}".strip()
                ),
                x=f"{min(left, WIDE - LEAST):.2f}",
                y=LOAD_HEIGHT - 5 if lane.load else 3,
                width=f"{width:.2f}",
                height=5 if lane.load else 12,
                rx="1.5",
                class_=f"span f-{one.state}",
            )
        )
    tall = LOAD_HEIGHT if lane.load else 18
    return tag(
        "svg",
        drawn,
        viewBox=f"0 0 {WIDE} {tall}",
        height=tall,
        preserveAspectRatio="none",
        role="img",
        aria_label=words or "not started",
        class_="lane",
    )


def _load(load: Sequence[int]) -> Markup:
    most, step = max(load) or 1, WIDE / len(load)
    points = "".join(
        f"L{at * step:.1f} {22 - 20 * count / most:.1f}L{(at + 1) * step:.1f} {22 - 20 * count / most:.1f}"
        for at, count in enumerate(load)
    )
    path = f"M0 22{points}L{WIDE} 22z"
    return tag("path", tag("title", f"at most {most} items at a time"), d=path, class_="load")


def overview(states: Sequence[ItemState], total: int) -> Markup:
    """A strip of cells, each with the state that matters most of its items."""
    if not states:
        return join()
    size = WIDE / len(states)
    cells = []
    start = 0
    for at in range(1, len(states) + 1):
        if at == len(states) or states[at] != states[start]:
            cells.append(
                tag(
                    "rect",
                    x=f"{start * size:.2f}",
                    y=0,
                    width=f"{(at - start) * size:.2f}",
                    height=10,
                    class_=f"f-{states[start]}",
                )
            )
            start = at
    return tag(
        "svg",
        cells,
        viewBox=f"0 0 {WIDE} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"the states of {total} items in their order",
        class_="strip",
    )


def diagram(drawn: Diagram) -> Markup:
    wide, tall = svg_size(drawn)
    label = f"the diagram of {one_line(drawn.title)}"
    # `svg_body` escapes every name in it.
    body = trusted(svg_body(drawn))
    return tag(
        "svg",
        body,
        viewBox=f"0 0 {wide:.0f} {tall:.0f}",
        width=f"{wide:.0f}",
        height=f"{tall:.0f}",
        role="img",
        aria_label=label,
        class_="diagram",
    )
