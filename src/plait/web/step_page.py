"""Everything about one step: attempts, output, values, an agent's conversation, tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from plait.core.hints import Final
from plait.core.values import Json, json_value
from plait.engine.outcome import Failed, Skipped, Succeeded
from plait.engine.paths import is_at_or_below
from plait.lang.analysis.explain import Explanation, PlaceholderRow
from plait.views.format import clock, describe_failure, first_line
from plait.views.log import LogEntry
from plait.views.run_tree import StepNode
from plait.views.run_watch import RunWatch
from plait.views.step_detail import ModelTurnFacts, SessionFacts, StepDetail, TaskFacts, ToolUse
from plait.views.terminal import QUOTED
from plait.web.addresses import Links, element_id
from plait.web.ansi import shorten_output, to_markup
from plait.web.charts import timeline
from plait.web.html import Child, Markup, join, tag
from plait.web.layout import (
    cost_words,
    facts_list,
    limits_text,
    moment,
    note,
    pill,
    seconds,
    section,
    short_json,
    state_sign,
    title_text,
    usage_text,
    value_block,
)

LIVE_OUTPUT: Final = 64 * 1024
"""Characters of a running step's output on a page."""
MOST_CHILDREN: Final = 200
MOST_LANES: Final = 60
FEW_OUTPUTS: Final = 3
"""More outputs on a page are lower, so that one can be found among them."""
MOST_FILES: Final = 50
_ENDINGS: Final = {"length": "cut off at its longest length", "refused": "the model refused"}
"""Of a turn, in words; other turns ended as usual."""


def step_panel(
    detail: StepDetail,
    links: Links,
    now: float,
    *,
    watch: RunWatch | None = None,
    explanations: Sequence[Explanation] = (),
    item: Json = None,
    mark: str = "",
) -> Markup:
    """The panel of one step; `watch`: it may be running.

    `mark`: begins the ids in it, if a page has several panels; such a page has no script.
    """
    node = detail.node
    live = None if watch is None else _live_blocks(watch, detail.path)
    return tag(
        "div",
        _head(detail, links, now, mark),
        _failure(detail),
        _tasks(detail.tasks, links, mark),
        [_session(one, mark) for one in detail.sessions],
        _outputs(detail, live, mark),
        _values(explanations, item, mark),
        _result(detail, mark),
        _attempts(node, mark),
        _times(watch, node, links, now) if watch is not None and not mark else None,
        _children(node, links, now, mark),
        class_="step",
        id=f"{mark}step",
    )


def _head(detail: StepDetail, links: Links, now: float, mark: str) -> Markup:
    node = detail.node
    around = [
        tag("li", tag("a", title_text(title, 40), href=links.page(step=path)))
        for path, title in detail.above
    ]
    attempts = len(node.attempts)
    used = node.used or {}
    since = node.attempts[-1].began if node.state == "running" and node.attempts else None
    return tag(
        "div",
        tag("nav", tag("ol", around), aria_label="Steps around this one", class_="crumbs")
        if around
        else None,
        tag(
            "div",
            tag("h2", title_text(node.title, 300), id=f"{mark}step-title"),
            pill(node.state),
            class_="step-head",
        ),
        facts_list(
            ("kind", node.kind),
            ("time", seconds(node.time(now), since)),
            ("started", moment(node.began) if node.began else None),
            ("exit code", None if detail.exit_code is None else str(detail.exit_code)),
            ("attempts", str(attempts) if attempts > 1 else None),
            *_resources(detail.process),
            ("why", title_text(node.cause, 200) if node.cause else None),
            ("used", ", ".join(f"{amount:g} {name}" for name, amount in used.items())),
            ("files", _files(detail)),
            ("commits", ", ".join(one[:12] for one in detail.commits[:MOST_FILES]) or None),
            ("path", tag("code", detail.path)),
        ),
    )


def _resources(process: Mapping[str, Json]) -> Iterator[tuple[str, Child]]:
    """What a process used; that of a short one is not recorded."""
    match process.get("cpu_seconds"):
        case int() | float() as used:
            yield "computing", clock(used)
    match process.get("peak_rss_kib"):
        case int() as peak if peak:
            yield "memory", f"{peak / 1024:,.0f} MiB"


def _files(detail: StepDetail) -> Child:
    """The files that a step has written, or that git saw change."""
    files = detail.files
    if not files:
        return None
    rows = [tag("li", tag("code", path), f" {what}") for what, path in files[:MOST_FILES]]
    if len(files) > MOST_FILES:
        rows.append(tag("li", f"and {len(files) - MOST_FILES:,} more"))
    return tag("ul", rows, class_="plain")


def _failure(detail: StepDetail) -> Markup | None:
    if isinstance(detail.outcome, Skipped):
        return note(f"skipped: {first_line(detail.outcome.why)}")
    if detail.failure is None:
        return None
    cause, lines = describe_failure(detail.failure)
    return tag(
        "div",
        tag("strong", cause),
        tag("pre", to_markup("\n".join(lines))) if lines else None,
        class_="failure",
        role="group",
        aria_label="Why it failed",
    )


# ── output ───────────────────────────────────────────────────────────────


def _outputs(detail: StepDetail, live: Iterable[Markup] | None, mark: str) -> Markup | None:
    blocks = [*_entry_blocks(detail.entries, detail.path), *(live or ())]
    if not blocks:
        return None
    find = None if mark else find_box("output")
    many = "many" if len(blocks) > FEW_OUTPUTS else None
    text = tag("div", blocks, id=f"{mark}output-text", class_=many)
    return section("Output", find, text, id=f"{mark}output")


def find_box(about: str) -> Markup:
    """A box that searches the text below it."""
    return tag(
        "search",
        tag("label", "Find", for_=f"{about}-find"),
        tag(
            "input",
            type="search",
            id=f"{about}-find",
            data_find=f"{about}-text",
            autocomplete="off",
            spellcheck="false",
        ),
        tag("button", "↑", type="button", data_find_step="-1", aria_label="Previous match"),
        tag("button", "↓", type="button", data_find_step="1", aria_label="Next match"),
        tag("output", "", for_=f"{about}-find", class_="dim"),
        class_="find",
    )


def _entry_blocks(entries: Sequence[LogEntry], path: str) -> Iterator[Markup]:
    outputs = Counter(entry.path for entry in entries)
    for entry in entries:
        value = _step_value(entry)
        streams = _streams(value)
        if not streams:
            continue
        head: list[Child] = []
        if entry.path != path:
            head.append(title_text(entry.title))
        if entry.attempt > 1 or entry.is_repeated or outputs[entry.path] > 1:
            head.append(f" attempt {entry.attempt}")
        state = "failed" if isinstance(entry.outcome, Failed) else "done"
        yield _block(join(state_sign(state), head) if head else None, streams)


def _step_value(entry: LogEntry) -> Json:
    match entry.outcome:
        case Succeeded(value):
            return value
        case Failed(failure):
            return failure.output
    return None


def _streams(value: Json) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return []
    found = []
    for name, label in (("output", "output"), ("stderr", "errors"), ("raw", "output")):
        text = value.get(name)
        if isinstance(text, str) and text.strip():
            found.append((label, text))
    return found


def _live_blocks(watch: RunWatch, path: str) -> Iterator[Markup]:
    """What the steps at and below a path have printed that have not ended."""
    is_running = watch.status == "running"
    state = "running" if is_running else "interrupted"
    for one, step in watch.live.items():
        if not is_at_or_below(one, path):
            continue
        names = {"stdout": "output", "stderr": "errors"}
        streams = [
            (names.get(name, name), text[-LIVE_OUTPUT:]) for name, text in step.streams.items()
        ]
        head = join(state_sign(state, with_word=True), None if one == path else f" {one}")
        yield _block(head, streams, follow=is_running)


def _block(head: Child, streams: Sequence[tuple[str, str]], *, follow: bool = False) -> Markup:
    parts: list[Child] = [tag("p", head, class_="output-head")] if head is not None else []
    for label, text in streams:
        kept, left_out = shorten_output(text)
        if left_out:
            parts.append(tag("p", f"… {left_out} characters before this", class_="dim"))
        parts.append(
            tag(
                "pre",
                to_markup(kept.rstrip("\n")),
                class_=f"terminal t-{label}",
                tabindex="0",
                role="group",
                aria_label=f"{label} of the step",
                data_follow=follow or None,
            )
        )
    return tag("div", parts, class_="output-block")


# ── an agent ─────────────────────────────────────────────────────────────


def _session(one: SessionFacts, mark: str) -> Markup:
    turns = [_turn(turn, mark) for turn in one.turns]
    used = usage_text(one.usage) if one.usage.turns else None
    return section(
        "Conversation",
        facts_list(("used", used), ("limits", limits_text(one.limits))),
        tag("ol", turns, class_="turns"),
        id=mark + element_id("conversation", one.path),
        extra=tag("span", title_text(one.title, 60), class_="dim"),
    )


def _turn(turn: ModelTurnFacts, mark: str) -> Markup:
    ending = _ENDINGS.get(turn.ending, "")
    used = ", ".join(filter(None, (turn.model, cost_words(turn.usage), ending)))
    parts: list[Child] = []
    if turn.system:
        parts.append(
            tag(
                "details",
                tag("summary", "System prompt"),
                tag("div", turn.system, class_="words"),
                class_="said by-system",
            )
        )
    if turn.user:
        parts.append(_message("user", "User", turn.user))
    if turn.text:
        parts.append(_message("model", "Model", turn.text))
    if turn.failure is not None:
        parts.append(note(turn.failure.message, "error"))
    parts += [_tool_use(call, mark) for call in turn.calls]
    head = tag(
        "div",
        state_sign(turn.state),
        tag("strong", f"Turn {turn.number}"),
        tag("span", used, class_="dim"),
        seconds(turn.duration),
        class_="turn-head",
    )
    return tag("li", head, parts)


def _message(who: str, label: str, words: str) -> Markup:
    return tag(
        "div",
        tag("span", label, class_="who"),
        tag("div", words, class_="words", dir="auto"),
        class_=f"said by-{who}",
    )


def _tool_use(call: ToolUse, mark: str) -> Markup:
    named = f"{call.tool}, {call.path}"  # a tool may be called often
    head = tag(
        "summary",
        state_sign(call.state),
        tag("code", call.tool),
        tag("span", short_json(call.arguments, 90), class_="dim arguments"),
        seconds(call.duration),
    )
    return tag(
        "details",
        head,
        tag("h3", "Arguments"),
        value_block(call.arguments, f"arguments of {named}"),
        join(tag("h3", "Result"), value_block(_data(call.result), f"result of {named}"))
        if call.result is not None
        else None,
        class_="said by-tool",
        id=mark + element_id("call", call.path),
    )


def _data(result: Json) -> Json:
    """What a tool returned as a model read it: mostly the text of a JSON object."""
    if not isinstance(result, str) or result[:1] not in ("{", "["):
        return result
    try:
        return json_value(result)
    except (ValueError, RecursionError):
        return result


# ── an ensemble ──────────────────────────────────────────────────────────


def _tasks(tasks: Sequence[TaskFacts], links: Links, mark: str) -> Markup | None:
    if not tasks:
        return None
    return section("Tasks", [_task(one, links) for one in tasks], id=f"{mark}tasks")


def _task(one: TaskFacts, links: Links) -> Markup:
    by = ", ".join(filter(None, (one.agent, one.model)))
    used = cost_words(one.usage) if one.usage.get("calls") else ""
    head = tag(
        "div",
        state_sign(one.state),
        tag("a", title_text(one.title), href=links.page(step=one.path)),
        tag("span", ", ".join(filter(None, (by, used))), class_="dim"),
        seconds(one.duration),
        class_="turn-head",
    )
    output: Child = None
    if one.failure is not None:
        output = note(one.failure.message, "error")
    elif one.output is not None:
        output = value_block(one.output, f"output of {one.title}")
    return tag("article", head, output, class_="task")


# ── values ───────────────────────────────────────────────────────────────


def _values(explanations: Sequence[Explanation], item: Json, mark: str) -> Markup | None:
    parts: list[Child] = []
    for one in explanations:
        rows = list(_placeholder_rows(one.rows))
        if not rows and one.runs_as is None:
            continue
        parts.append(
            tag(
                "div",
                tag("p", tag("strong", one.label), tag("span", f" {one.place}", class_="dim")),
                tag("pre", one.text.rstrip("\n"), class_="value", tabindex="0"),
                _placeholder_table(rows) if rows else None,
                join(
                    tag("p", "runs as ", tag("span", QUOTED, class_="dim")),
                    tag("pre", one.runs_as.rstrip("\n"), class_="value", tabindex="0"),
                )
                if one.runs_as is not None
                else None,
                class_="template",
            )
        )
    if item is not None:
        parts.append(tag("p", tag("strong", "item")))
        parts.append(value_block(item, "the item"))
    if not parts:
        return None
    hint = tag(
        "p", "As the flow file says now. Values are those that the run has recorded.", class_="dim"
    )
    return section("Values and where they come from", hint, parts, id=f"{mark}values")


def _placeholder_table(rows: Sequence[Markup]) -> Markup:
    heads = [tag("th", name, scope="col") for name in ("Placeholder", "From", "Value", "How")]
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="small"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="placeholders",
    )


def _placeholder_rows(rows: Sequence[PlaceholderRow], depth: int = 0) -> Iterator[Markup]:
    for row in rows:
        yield tag(
            "tr",
            tag("td", tag("code", row.text), class_=f"indent-{min(depth, 6)}"),
            tag("td", f"{row.kind}: {row.answer}"),
            tag("td", "—" if row.value is None else row.value[:400]),
            tag("td", row.bound or ""),
        )
        yield from _placeholder_rows(row.inner, depth + 1)


def _result(detail: StepDetail, mark: str) -> Markup | None:
    value = detail.value
    if value is None or (detail.sessions and detail.node.kind == "turn"):
        return None
    if isinstance(value, Mapping) and value.keys() <= {"output", "captures"}:
        captures = value.get("captures")
        if not captures:
            return None
        return section(
            "Captured values", value_block(captures, "captured values"), id=f"{mark}result"
        )
    return section("Result", value_block(value, "result of the step"), id=f"{mark}result")


def _attempts(node: StepNode, mark: str) -> Markup | None:
    if len(node.attempts) < 2:
        return None
    heads = [tag("th", one, scope="col") for one in ("Attempt", "State", "Started", "Time", "Then")]
    rows = [
        tag(
            "tr",
            tag("td", str(one.number)),
            tag("td", state_sign(one.state, with_word=not one.cause), f" {one.cause}".rstrip()),
            tag("td", moment(one.began)),
            tag("td", seconds(None if one.ended is None else one.ended - one.began)),
            tag("td", f"waits {one.delay:g} s" if one.delay else ""),
        )
        for one in node.attempts
    ]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="small")
    return section("Attempts", table, id=f"{mark}attempts")


def _times(watch: RunWatch, node: StepNode, links: Links, now: float) -> Markup | None:
    """When the steps inside ran, and waited: the timeline of a run has no lines for those of items."""
    lanes = list(islice(watch.lanes_inside(node, now), MOST_LANES + 1))
    if len(lanes) < 2:
        return None
    total = max(span.end for lane in lanes for span in lane.spans)
    drawn = timeline(lanes[:MOST_LANES], total, lambda path: links.page(step=path))
    more = note("the steps after these are not drawn") if len(lanes) > MOST_LANES else None
    return section("Timeline of this step", drawn, more, id="times")


def _children(node: StepNode, links: Links, now: float, mark: str) -> Markup | None:
    if not node.children:
        return None
    rows = []
    for depth, one in list(node.walk())[1 : MOST_CHILDREN + 1]:
        rows.append(
            tag(
                "li",
                tag(
                    "a",
                    state_sign(one.state),
                    title_text(one.title, 80),
                    href=links.page(step=one.path),
                    class_=f"indent-{min(depth - 1, 6)}",
                ),
                tag("span", one.kind, class_="dim"),
                tag("span", one.cause, class_="cause") if one.cause else None,
                seconds(one.time(now)),
            )
        )
    return section("Steps inside", tag("ul", rows, class_="steps"), id=f"{mark}inside")
