"""The frame of every page, and the small parts that all pages use."""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.core.hints import Final
from plait.core.values import Json, json_text
from plait.engine.limits import UsageSum
from plait.views.format import SIGNS, clock, money, one_line, short
from plait.web.addresses import STATIC, runs_address, start_address
from plait.web.ansi import to_markup
from plait.web.html import Child, Markup, join, tag, trusted

WORDS: Final = {
    # state       the word that a person reads
    "done":        "finished",
    "partial":     "some failed",
    "retrying":    "waits to retry",
    "unreadable":  "unreadable",
}  # fmt: skip
_SIGNS: Final = {"retrying": "↻", "unreadable": "?"}
MOST_VALUE: Final = 64 * 1024
"""Characters of a value on a page."""
_ICON: Final = (
    "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHZpZXdCb3g9IjA"
    "gMCAxNiAxNiI+PHBhdGggZD0iTTIgNGM2IDAgNiA4IDEyIDhNMiAxMmM2IDAgNi04IDEyLTgiIGZpbGw9Im5vbmUiIHN0"
    "cm9rZT0iIzI1NjNlYiIgc3Ryb2tlLXdpZHRoPSIyLjUiIHN0cm9rZS1saW5lY2FwPSJyb3VuZCIvPjwvc3ZnPg=="
)


def render_page(
    title: str, *content: Child, here: str = "", live: str = "", project: str = ""
) -> str:
    """A whole page.  `here`: the entry of the navigation; `live`: the address of its updates."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{one_line(title, 120)} · Plait"),
        tag("link", rel="icon", href=_ICON),
        tag("link", rel="stylesheet", href=f"{STATIC}/web.css"),
        trusted(f'<script src="{STATIC}/web.js" defer></script>'),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag(
            "header",
            tag("a", logo(), "plait", href=runs_address(), class_="brand"),
            tag(
                "nav",
                _entry("Runs", runs_address(), here == "runs"),
                _entry("Start a flow", start_address(project=project), here == "start"),
                aria_label="Pages",
            ),
            tag("span", "", id="connection", role="status", class_="connection"),
            class_="top",
        ),
        tag("main", *content, id="main", tabindex="-1"),
        tag("div", "", id="announce", role="status", aria_live="polite", class_="unseen"),
        data_live=live or None,
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def logo() -> Markup:
    return tag(
        "svg",
        tag("path", d="M2 4c6 0 6 8 12 8M2 12c6 0 6-8 12-8"),
        viewBox="0 0 16 16",
        aria_hidden="true",
        class_="logo",
    )


def _entry(words: str, address: str, is_here: bool) -> Markup:
    return tag("a", words, href=address, aria_current="page" if is_here else None)


# ── small parts ──────────────────────────────────────────────────────────


def word(state: str) -> str:
    return WORDS.get(state, state)


def state_sign(state: str, *, with_word: bool = False) -> Markup:
    """The sign of a state; screen readers hear its word."""
    shown = _SIGNS.get(state) or SIGNS.get(state, ("·",))[0]
    sign = tag("span", shown, class_=f"sign s-{state}", aria_hidden="true")
    kind = f"word s-{state}" if with_word else "unseen"
    return join(sign, tag("span", word(state), class_=kind))


def pill(state: str) -> Markup:
    return tag("span", state_sign(state, with_word=True), class_=f"pill p-{state}")


def cause_text(cause: str) -> str:
    """A kind of failure as words: all_failed, rate_limit."""
    return one_line(cause).replace("_", " ")


def title_text(text: str, room: int | None = None) -> Markup:
    """A title from a run, whose direction of writing concerns nothing else."""
    return tag("bdi", one_line(text, room))


def seconds(value: float | None, since: float | None = None) -> Markup | None:
    """A duration; one that goes on is counted by the script of the page."""
    if value is None:
        return None
    return tag(
        "span", clock(value), class_="time", data_since=None if since is None else f"{since:.3f}"
    )


def moment(at: float | None) -> Markup | str:
    """A point in time; the script shows it as the reader's clock has it."""
    if at is None:
        return "—"
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return tag("time", shown, datetime=utc)


def command_line(words: str) -> Markup:
    return tag("code", words, class_="command")


def usage_text(usage: UsageSum) -> str:
    about = "about " if usage.estimated else ""
    words = [f"{usage.turns} turns" if usage.turns != 1 else "1 turn"]
    words.append(f"{about}{short(usage.tokens)} tokens")
    if usage.cost:
        words.append(money(usage.cost))
    return ", ".join(words)


def limits_text(limits: Mapping[str, Json]) -> str:
    """What an agent may use: 6 turns, 20,000 tokens, $0.25."""
    words = []
    for name, most in limits.items():
        if isinstance(most, int | float):
            words.append(money(most) if name == "spend" else f"{most:,} {name}")
    return ", ".join(words)


def cost_words(usage: Mapping[str, Json]) -> str:
    """What one turn or task used, from its record: 412 in, 38 out, $0.0021."""
    words = []
    about = "about " if usage.get("estimated") else ""
    for name, shown in (("input", "in"), ("output", "out"), ("cached", "cached")):
        count = usage.get(name)
        if isinstance(count, int) and (count or name != "cached"):
            words.append(f"{about}{short(count)} {shown}")
    cost = usage.get("cost")
    if isinstance(cost, int | float):
        words.append(money(cost))
    return ", ".join(words)


def value_block(value: Json, label: str) -> Markup:
    """A value as text, or as JSON with one line per field; text with colours as a terminal shows it."""
    import json

    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    text, left_out = (text[:MOST_VALUE], len(text) - MOST_VALUE)
    more = tag("p", f"… {left_out} more characters", class_="dim") if left_out > 0 else None
    has_colours = isinstance(value, str) and "\x1b" in text
    shown, kind = (to_markup(text), "terminal") if has_colours else (text, "value")
    return join(tag("pre", shown, class_=kind, tabindex="0", aria_label=label, role="region"), more)


def facts_list(*facts: tuple[str, Child]) -> Markup:
    """Names and values; those without a value are left out."""
    return tag(
        "dl",
        [
            join(tag("dt", name), tag("dd", value))
            for name, value in facts
            if value not in (None, "")
        ],
        class_="facts",
    )


def section(title: str, *content: Child, id: str, extra: Child = None, level: int = 2) -> Markup:
    """A part of a page with a heading that names it."""
    heading = tag(f"h{level}", title, id=f"{id}-title")
    head = tag("div", heading, extra, class_="section-head") if extra is not None else heading
    return tag("section", head, *content, id=id, aria_labelledby=f"{id}-title", class_="card")


def note(words: Child, kind: str = "note") -> Markup:
    return tag("p", words, class_=f"notice n-{kind}", role="alert" if kind == "error" else None)


def short_json(value: Json, room: int = 200) -> str:
    return one_line(json_text(value), room)
