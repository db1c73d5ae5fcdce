"""A run as one file: for a mail, or as an artifact of CI.

It has no script and asks nothing of the network; its policy forbids both.  Links lead to places in
the file.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from importlib.resources import files

from plait.core.hints import Final
from plait.engine.events import Event
from plait.engine.paths import MAP, SETUP, is_at_or_below, paths_around
from plait.views.item_table import ItemRow
from plait.views.run_watch import RunWatch
from plait.views.step_detail import StepDetail
from plait.web.addresses import element_id
from plait.web.html import Child, Markup, tag, trusted
from plait.web.layout import logo, section
from plait.web.run_page import (
    Choice,
    RunFacts,
    item_counts,
    item_rows,
    panel,
    run_head,
    step_values,
    tree,
)
from plait.web.step_page import step_panel

MOST_ITEMS: Final = 500
"""Items of a map in the file, beside those that failed."""
MOST_FAILED: Final = 1000
MOST_DETAILS: Final = 300
FEW_DETAILS: Final = 40
"""Steps of a long journal with details: each is searched in all of it."""


class PlacesInFile:
    """Links to steps that the file has; a link to any other stays where it is."""

    def __init__(self) -> None:
        self.steps: dict[str, None] = {}

    def page(self, view: str = "", step: str = "") -> str:
        if view == "items":
            return "#items-main"
        return f"#{element_id('s', step)}" if step in self.steps else "#main"


def export_run(watch: RunWatch, facts: RunFacts, now: float) -> str:
    """The run as HTML."""
    style = files("plait.web").joinpath("static", "web.css").read_text("utf-8")
    digest = b64encode(sha256(style.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    places = PlacesInFile()
    rows = _choose_items(watch)
    for path in _choose_steps(watch, rows):
        places.steps[path] = None
    title = f"{watch.progress.flow} {facts.run}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} · Plait"),
        trusted(f"<style>{style}</style>"),
    )
    parts: list[Child] = [
        panel(watch, facts, Choice(view), places, now)["panel"] for view in ("overview", "timeline")
    ]
    if facts.is_own and facts.kind != "directive":
        parts.append(panel(watch, facts, Choice("graph"), places, now)["panel"])
    parts = [_drop_id(one) for one in parts if isinstance(one, Markup)]
    parts += [_items(watch, path, chosen, places) for path, chosen in rows.items()]
    details = _read_details(watch, list(places.steps))
    parts += [_detail(watch, facts, one, places, now) for one in details]
    content = tag(
        "div",
        tree(watch, Choice("overview"), places, now),
        tag("div", parts, class_="side"),
        class_="columns",
    )
    body = tag(
        "body",
        tag("header", tag("span", logo(), "plait", class_="brand"), class_="top"),
        tag(
            "main",
            run_head(watch, facts, (), now, is_page=False),
            content,
            id="main",
            tabindex="-1",
        ),
        class_="exported",
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _drop_id(panel: Markup) -> Markup:
    """A panel beside others: the id of each page's one panel would be there twice."""
    return trusted(panel.text.replace('<div id="panel" class="panel">', '<div class="panel">', 1))


def _choose_items(watch: RunWatch) -> dict[str, list[ItemRow]]:
    """By map: the items that failed, and the first others."""
    found: dict[str, list[ItemRow]] = {}
    for path in watch.maps():
        table = watch.items(path)
        rows = {row.order: row for row in table.window(0, MOST_FAILED, state="failed").rows}
        rows |= {row.order: row for row in table.window(0, MOST_ITEMS).rows}
        found[path] = [rows[order] for order in sorted(rows)]
    return found


def _choose_steps(watch: RunWatch, rows: dict[str, list[ItemRow]]) -> list[str]:
    """The steps whose details are in the file: failures first, then all that fit."""
    most = FEW_DETAILS if watch.journal.reader.is_long() else MOST_DETAILS
    items = [row for chosen in rows.values() for row in chosen if row.path]
    failed = [row.path for row in items if row.state == "failed"]
    steps = [node.path for _, node in watch.tree.walk() if node.attempts and node.path != MAP]
    inner = [one.path for one in watch.progress.failures.last]
    return list(
        dict.fromkeys((*failed[: most // 2], *inner, *steps, *(row.path for row in items)))
    )[:most]


def _items(watch: RunWatch, path: str, rows: list[ItemRow], places: PlacesInFile) -> Markup:
    table = watch.items(path)
    left_out = len(table) - len(rows)
    more = (
        tag("p", f"… and {left_out:,} more items that did not fail", class_="dim")
        if left_out > 0
        else None
    )
    id = "items-main" if path == MAP else element_id("items", path)
    drawn = tag("div", item_rows(watch, rows, places), role="list")
    area = tag(
        "div", drawn, class_="item-list", tabindex="0", role="region", aria_label=f"rows of {path}"
    )
    counts = trusted(item_counts(table).text.replace('id="item-counts" ', "", 1))
    return section(f"Items of {path}", counts, area, more, id=id)


def _read_details(watch: RunWatch, paths: Sequence[str]) -> Iterator[StepDetail]:
    """Many steps at a time: each search reads the whole journal."""
    for first in range(0, len(paths), FEW_DETAILS):
        some = paths[first : first + FEW_DETAILS]
        records = list(watch.journal.reader.events_at([SETUP, *some]))
        for path in some:
            around = {SETUP, *paths_around(path)}
            own = (one for one in records if _concerns(one.event, path, around))
            detail = watch.read_step(path, own)
            if detail is not None:
                yield detail


def _concerns(event: Event, path: str, around: Collection[str]) -> bool:
    where = getattr(event, "path", None)
    return where is None or where in around or is_at_or_below(where, path)


def _detail(
    watch: RunWatch, facts: RunFacts, detail: StepDetail, places: PlacesInFile, now: float
) -> Markup:
    id = element_id("s", detail.path)
    explanations, item = step_values(watch, facts, detail)
    shown = step_panel(
        detail, places, now, watch=watch, explanations=explanations, item=item, mark=f"{id}-"
    )
    return tag("article", shown, id=id, class_="detail", aria_labelledby=f"{id}-step-title")
