"""The page of a run: head, tree of steps, and one panel beside it.

A page is made of fragments with ids.  A live update sends those that have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.paths import MAP
from plait.lang.analysis.explain import Explanation
from plait.views.diagram.files import run_diagram
from plait.views.diagram.model import Diagram
from plait.views.format import describe_failure, one_line
from plait.views.item_table import ItemRow, ItemTable
from plait.views.lines import note_line, part_figures
from plait.views.parts import AGENT, ENSEMBLE
from plait.views.run_tree import StepNode
from plait.views.run_watch import RunWatch
from plait.views.step_detail import StepDetail
from plait.views.step_values import explain_step, find_item, item_around
from plait.web.addresses import Links, RunAddresses, project_key, runs_address
from plait.web.ansi import to_markup
from plait.web.charts import diagram, overview, timeline
from plait.web.fields import secret_field, secrets_note
from plait.web.html import Child, Markup, join, tag
from plait.web.layout import (
    cause_text,
    command_line,
    facts_list,
    moment,
    note,
    pill,
    seconds,
    section,
    state_sign,
    title_text,
    usage_text,
    value_block,
)
from plait.web.run_actions import Offer, Question
from plait.web.step_page import step_panel

VIEWS: Final = ("overview", "timeline", "graph", "items", "step")
MOST_FAILURES: Final = 50
MOST_LANES: Final = 300
STRIP: Final = 250
"""Cells of the overview of items."""
FILTERS: Final = ("", "failed", "running", "done", "skipped", "waiting")
WINDOW: Final = 100
"""Items that are sent at a time."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a page needs to know of a run beside its events."""

    run: str
    project: str
    folder: str
    file: str
    kind: str
    is_own: bool
    inputs: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a page of a run shows beside the tree."""

    view: str = ""
    step: str = ""
    map: str = ""

    def settle(self, watch: RunWatch) -> Choice:
        """With a view if none was chosen: what matters most in this run."""
        maps = watch.maps()
        if self.step in maps and (self.step == MAP or watch.is_long):
            return Choice("items", "", self.step)  # a step that is all items
        if self.step:
            return Choice("step", self.step)
        view = self.view if self.view in VIEWS[:-1] else "overview"
        if view == "items" and not maps:
            view = "overview"  # no map has begun
        chosen = self.map if self.map in maps else maps[0] if maps else ""
        return Choice(view, "", chosen if view == "items" else "")


def fragments(
    watch: RunWatch,
    facts: RunFacts,
    choice: Choice,
    links: Links,
    offers: Sequence[Offer],
    now: float,
) -> dict[str, Markup]:
    """The parts of a page, by the ids of their elements."""
    return {
        "run-head": run_head(watch, facts, offers, now),
        "run-tabs": run_tabs(watch, facts, choice, links),
        "tree": tree(watch, choice, links, now),
        **panel(watch, facts, choice, links, now),
    }


def page_content(parts: Mapping[str, Markup]) -> Markup:
    head, tabs, steps, *panels = parts.values()
    return join(
        head,
        tag("div", steps, tag("div", tabs, panels, class_="side"), class_="columns"),
    )


# ── the head ─────────────────────────────────────────────────────────────


def shown_state(watch: RunWatch) -> str:
    return watch.progress.shown_status if watch.status == "done" else watch.status


def run_head(
    watch: RunWatch,
    facts: RunFacts,
    offers: Sequence[Offer],
    now: float,
    *,
    is_page: bool = True,
) -> Markup:
    """What a run is, how it stands, and what can be done; `is_page`: other pages are there."""
    progress = watch.progress
    is_running = watch.status == "running"
    duration = progress.duration(now if is_running else progress.last_at)
    resumes = progress.run_attempts - 1
    return tag(
        "div",
        tag(
            "div",
            tag("h1", title_text(progress.flow or facts.run, 80)),
            pill(shown_state(watch)),
            tag("span", "run ", tag("code", facts.run), class_="dim"),
            class_="run-title",
        ),
        facts_list(
            ("time", seconds(duration, now - duration if is_running else None)),
            ("started", moment(progress.started)),
            ("items", _item_words(watch)),
            ("model", usage_text(progress.usage) if progress.usage.turns else None),
            ("retries", str(progress.retries) if progress.retries else None),
            ("continued", f"{resumes} times" if resumes > 1 else "once" if resumes else None),
            ("file", tag("code", one_line(facts.file, None))),
            ("project", _project(facts, is_page=is_page)),
        ),
        _bars(watch, now),
        _actions(offers, facts) if is_page else None,
        class_="run-head card",
        id="run-head",
    )


def _project(facts: RunFacts, *, is_page: bool) -> Child:
    name = one_line(facts.project, None)
    address = runs_address(project=project_key(facts.project))
    return tag("a", name, href=address) if is_page else name


def _item_words(watch: RunWatch) -> str | None:
    items = watch.progress.items
    if items is None:
        return None
    failed = sum(part.group.failure_count for part in watch.progress.maps)
    words = f"{items[0]:,} of {items[1]:,}"
    return f"{words}, {failed:,} failed" if failed else words


def _bars(watch: RunWatch, now: float) -> Markup | None:
    """A bar for each map that runs now."""
    found = []
    for part in watch.progress.maps:
        group = part.group
        if part.state != "running" or watch.status != "running" or not group.total:
            continue
        figures = "  ·  ".join(part_figures(watch.progress, part, now))
        bar = tag("progress", value=group.outcome_count, max=group.total, aria_label=part.title)
        found.append(tag("div", bar, tag("span", figures, class_="dim"), class_="bar"))
    return join(found) if found else None


def _actions(offers: Sequence[Offer], facts: RunFacts) -> Markup | None:
    if not facts.is_own:
        command = f"plait trust run {facts.run}"
        return note(join("this run did not begin here; take it over: ", command_line(command)))
    if not offers:
        return None
    links = RunAddresses(project_key(facts.project), facts.run)
    return tag("div", [_action(one, links) for one in offers], class_="actions")


def _action(offer: Offer, links: RunAddresses) -> Markup:
    questions: list[Child] = [
        _question(number, one, links) for number, one in enumerate(offer.questions)
    ]
    accept: Child = None
    if offer.action == "resume":
        accept = tag(
            "label",
            tag("input", type="checkbox", name="accept", value="yes", data_adds="--accept-changes"),
            " the flow was edited on purpose",
            class_="dim",
        )
    return tag(
        "form",
        questions,
        [secret_field(name, required=True) for name in offer.secrets],
        tag(
            "button",
            offer.label,
            type="submit",
            name="action",
            value=offer.action,
            class_=f"act a-{offer.action}",
        ),
        tag("code", offer.command, class_="command", data_command=offer.command),
        secrets_note(offer.secrets) if offer.secrets else None,
        accept,
        tag("span", offer.why, class_="dim") if offer.why else None,
        method="post",
        action=links.act,
    )


def _question(number: int, question: Question, links: Links) -> Markup:
    """Was a step done, that may run at most once and was cut short?"""
    name, path = f"answer-{number}", question.path
    choices = [
        tag(
            "label",
            tag(
                "input",
                type="radio",
                name=name,
                value=f"{option}:{path}",
                data_adds=f"{flag} {path}",
                required=True,
            ),
            f" {words}",
        )
        for option, flag, words in (
            ("done", "--done", "it was done"),
            ("repeat", "--repeat", "run it again"),
        )
    ]
    step = tag("a", title_text(question.title, 80), href=links.page(step=path))
    item = join(" in “", title_text(question.item, 80), "”") if question.item else None
    legend = tag("legend", "Was “", step, "”", item, " done? It may run at most once.")
    return tag("fieldset", legend, choices, class_="question")


# ── tabs and tree ────────────────────────────────────────────────────────


def run_tabs(watch: RunWatch, facts: RunFacts, choice: Choice, links: Links) -> Markup:
    entries: list[tuple[str, str, bool]] = [
        ("Overview", links.page(view="overview"), choice.view == "overview"),
        ("Timeline", links.page(view="timeline"), choice.view == "timeline"),
    ]
    if facts.kind != "directive" and facts.is_own:
        entries.append(("Graph", links.page(view="graph"), choice.view == "graph"))
    if watch.maps():
        entries.append(("Items", links.page(view="items"), choice.view == "items"))
    for part in watch.progress.parts.values():
        words = {AGENT: "Conversation", ENSEMBLE: "Tasks"}.get(part.kind)
        if words is not None:
            entries.append((words, links.page(step=part.name), choice.step == part.name))
    if choice.step and all(not is_here for *_, is_here in entries):
        entries.append(("Step", links.page(step=choice.step), True))
    return tag(
        "nav",
        [
            tag("a", words, href=address, aria_current="page" if is_here else None)
            for words, address, is_here in entries
        ],
        aria_label="Views of this run",
        class_="tabs",
        id="run-tabs",
    )


def tree(watch: RunWatch, choice: Choice, links: Links, now: float) -> Markup:
    parts = [_branch(part, watch, choice, links, now) for part in watch.tree.parts.values()]
    return tag(
        "nav",
        tag("h2", "Steps", class_="small-title"),
        tag("ul", parts, class_="tree") if parts else tag("p", "nothing has started", class_="dim"),
        aria_label="Steps of this run",
        id="tree",
        class_="card tree-card",
    )


def _branch(node: StepNode, watch: RunWatch, choice: Choice, links: Links, now: float) -> Markup:
    since = node.attempts[-1].began if node.state == "running" and node.attempts else None
    state = node.state
    part = watch.progress.parts.get(node.path)
    figures = ""
    if part is not None:
        state = part.shown_state if node.state == "done" else node.state  # type: ignore[assignment]
        group = part.group
        if group.is_map:
            figures = f"{group.outcome_count:,}/{group.total or 0:,}"
        elif state == "waiting" and node.planned:
            figures = f"{node.planned} step{'s' if node.planned != 1 else ''}"
    attempts = f"×{len(node.attempts)}" if len(node.attempts) > 1 else ""
    is_map = part is not None and part.group.is_map
    address = (
        links.page(view="items") if is_map and node.path == MAP else links.page(step=node.path)
    )
    children = [_branch(one, watch, choice, links, now) for one in node.children.values()]
    more = (
        tag("li", f"… {node.left_out} more", class_="dim") if node.left_out and not is_map else None
    )
    return tag(
        "li",
        tag(
            "a",
            state_sign(state),
            tag("span", title_text(node.title, 60), class_="node-title"),
            tag("span", figures, class_="dim") if figures else None,
            tag("span", attempts, class_="dim", title="attempts") if attempts else None,
            tag("span", title_text(node.cause, 24), class_="cause") if node.cause else None,
            seconds(node.time(now), since),
            href=address,
            aria_current="true" if choice.step == node.path else None,
        ),
        tag("ul", children, more) if children or more else None,
    )


# ── panels ───────────────────────────────────────────────────────────────


def panel(
    watch: RunWatch, facts: RunFacts, choice: Choice, links: Links, now: float
) -> dict[str, Markup]:
    match choice.view:
        case "timeline":
            lanes = list(islice(watch.lanes(now), MOST_LANES + 1))
            drawn = timeline(
                lanes[:MOST_LANES], watch.clock(now).total, lambda path: links.page(step=path)
            )
            more = note("the steps after these are not drawn") if len(lanes) > MOST_LANES else None
            load = None
            if any(lane.load for lane in lanes):
                words = "The blue area of a map shows how many items ran at the same time."
                load = tag("p", words, class_="dim")
            return _panel(section("Timeline", _legend(), load, drawn, more, id="timeline"))
        case "graph":
            return _panel(_graph(watch, facts))
        case "items":
            if watch.is_slow(choice.map):
                return _panel(_items_later(watch, choice, facts))
            table = watch.items(choice.map)
            return {
                **_panel(items_shell(watch, table, choice, facts)),
                "item-counts": item_counts(table),
            }
        case "step":
            return _panel(_step(watch, facts, choice.step, links, now))
    return _panel(_overview(watch, links))


def _panel(content: Child) -> dict[str, Markup]:
    return {"panel": tag("div", content, id="panel", class_="panel")}


def _legend() -> Markup:
    states = ("done", "running", "failed", "retrying", "skipped", "interrupted")
    return tag(
        "p", [tag("span", state_sign(one, with_word=True)) for one in states], class_="legend"
    )


def _overview(watch: RunWatch, links: Links) -> Markup:
    progress = watch.progress
    parts: list[Child] = []
    if watch.status == "interrupted":
        what = "The process of this run has ended"
        if progress.failure is not None:
            what = f"This run was stopped ({one_line(progress.failure.message)})"
        parts.append(note(f"{what}. What is done stays recorded."))
    elif progress.failure is not None:
        cause, lines = describe_failure(progress.failure)
        text = tag("pre", to_markup("\n".join(lines)))
        parts.append(
            tag(
                "div",
                tag("strong", cause_text(cause)),
                text,
                class_="failure",
                role="group",
                aria_label="Why the run failed",
            )
        )
    if progress.failures.last:
        parts.append(_failures(watch, links))
    notes = [tag("li", note_line(one)) for one in progress.notes]
    if notes:
        parts.append(section("Notes", tag("ul", notes), id="notes"))
    files = progress.facts.get("files")
    if isinstance(files, list) and files:
        names = [tag("li", tag("code", str(one))) for one in files[:200]]
        parts.append(section("Files written", tag("ul", names, class_="plain"), id="files"))
    value = progress.value
    output = value.get("output", value) if isinstance(value, Mapping) else value
    if output not in (None, ""):
        parts.append(section("Result", value_block(output, "result of the run"), id="result"))
    running = [
        tag(
            "li",
            tag(
                "a",
                state_sign("running"),
                title_text(step.title, 80),
                href=links.page(step=step.path),
            ),
            tag("span", title_text(step.current.title, 60) if step.current else "", class_="dim"),
            seconds(max(0.0, progress.last_at - step.since), step.since),
        )
        for part in progress.parts.values()
        for step in progress.running(part)[:20]
    ]
    if running and watch.status == "running":
        parts.insert(0, section("Running now", tag("ul", running, class_="steps"), id="running"))
    if not parts:
        parts.append(
            note(
                "nothing to report yet"
                if watch.status == "running"
                else "it ended without a result"
            )
        )
    return join(parts)


def _failures(watch: RunWatch, links: Links) -> Markup:
    failures = watch.progress.failures
    rows = [
        tag(
            "li",
            tag(
                "a", state_sign("failed"), title_text(one.title, 80), href=links.page(step=one.path)
            ),
            tag("span", cause_text(one.cause), class_="cause"),
            tag("pre", to_markup("\n".join(one.lines))) if one.lines else None,
        )
        for one in list(failures.last)[-MOST_FAILURES:]
    ]
    left_out = failures.count - len(rows)
    more = tag("p", f"… and {left_out} more", class_="dim") if left_out > 0 else None
    return section("Failures", tag("ul", rows, class_="failures"), more, id="failures")


def find_diagram(watch: RunWatch, facts: RunFacts) -> Diagram | None:
    """The diagram of the flow with the way that the run took; None if it cannot be drawn."""
    if not facts.is_own or not facts.file:
        return None  # do not open a file that the journal of another person names
    try:
        running = watch.progress.all_running() if watch.status == "running" else ()
        return run_diagram(facts.file, watch.journal, running)  # type: ignore[arg-type]
    except PlaitError:
        return None


def _graph(watch: RunWatch, facts: RunFacts) -> Markup:
    drawn = find_diagram(watch, facts)
    if drawn is None:
        return note("the flow of this run cannot be drawn: its file has changed or is gone")
    now = [one_line(node.name) for node in drawn.nodes if node.running]
    words = "Blue is the way that the run took."
    words += " Red: failed." if any(node.failed for node in drawn.nodes) else ""
    words += f" Runs now: {', '.join(now)}." if now else ""
    hint = tag("p", words, class_="dim")
    area = tag(
        "div", diagram(drawn), class_="scroll", tabindex="0", role="region", aria_label="diagram"
    )
    return section("Graph", hint, area, id="graph")


def _step(watch: RunWatch, facts: RunFacts, path: str, links: Links, now: float) -> Markup:
    detail = watch.read_step(path)
    if detail is None:
        return tag("div", note("this run has no such step, or it has not started"), id="step")
    explanations, item = step_values(watch, facts, detail)
    return step_panel(detail, links, now, watch=watch, explanations=explanations, item=item)


def step_values(
    watch: RunWatch, facts: RunFacts, detail: StepDetail
) -> tuple[list[Explanation], Json]:
    """The templates of a step, and its item."""
    if not facts.is_own:
        return [], None
    item: dict[str, Json] = {}
    around = item_around(detail.path)
    if around is not None and MAP in watch.progress.parts:
        table = watch.items(MAP)
        order = table.order(around)
        if order is not None:
            found = find_item(facts.folder, order)
            item = {"item": found, "item_index": order, "item_total": len(table)}
    explanations = explain_step(facts.file, detail.path, facts.inputs, item, detail.captures)
    return explanations, item.get("item")


# ── items ────────────────────────────────────────────────────────────────


def items_shell(watch: RunWatch, table: ItemTable, choice: Choice, facts: RunFacts) -> Markup:
    """The list of items; the script fills it as it is scrolled."""
    addresses = RunAddresses(project_key(facts.project), facts.run)
    window = table.window(0, WINDOW)
    rows = item_rows(watch, window.rows, addresses)
    return _items_section(watch, choice, addresses, item_counts(table), rows, window.matching)


def _items_later(watch: RunWatch, choice: Choice, facts: RunFacts) -> Markup:
    """The same for so many items that reading them would delay the page: the script asks for them."""
    addresses = RunAddresses(project_key(facts.project), facts.run)
    counts = tag("div", tag("p", "reading the items …", class_="dim"), id="item-counts")
    return _items_section(watch, choice, addresses, counts, [], -1)


def _items_section(
    watch: RunWatch,
    choice: Choice,
    addresses: RunAddresses,
    counts: Markup,
    rows: Sequence[Markup],
    total: int,
) -> Markup:
    filters = tag(
        "div",
        [
            tag(
                "label",
                tag("input", type="radio", name="state", value=state, checked=state == ""),
                tag("span", state or "all"),
            )
            for state in FILTERS
        ],
        role="radiogroup",
        aria_label="Which items",
        class_="choices",
    )
    find = join(
        tag("label", "Search titles", for_="item-search", class_="unseen"),
        tag(
            "input",
            type="search",
            id="item-search",
            placeholder="Search titles",
            autocomplete="off",
        ),
    )
    maps = watch.maps()
    others = [
        tag(
            "a",
            one,
            href=addresses.page(view="items", map=one),
            aria_current="true" if one == choice.map else None,
        )
        for one in maps[:30]
    ]
    body = tag(
        "div",
        tag("div", rows, id="item-rows", class_="item-rows", role="list"),
        id="item-list",
        class_="item-list",
        tabindex="0",
        role="region",
        aria_label="items of the map",
        data_items=addresses.items(choice.map),
        data_total=total,
    )
    return section(
        "Items",
        tag("nav", others, aria_label="Maps", class_="chips") if len(maps) > 1 else None,
        counts,
        tag("div", filters, find, class_="item-tools"),
        body,
        id="items",
    )


def item_counts(table: ItemTable) -> Markup:
    states = ("done", "failed", "running", "interrupted", "skipped", "waiting")
    counts = [(state, table.count(state)) for state in states]  # type: ignore[arg-type]
    words = [
        tag("span", state_sign(state), f"{count:,} {state}", class_="count")
        for state, count in counts
        if count
    ]
    return tag(
        "div",
        overview(table.overview(STRIP), len(table)),
        tag("p", words, class_="counts"),
        id="item-counts",
        data_version=table.version,
    )


def item_rows(watch: RunWatch, rows: Sequence[ItemRow], links: Links) -> list[Markup]:
    causes = watch.causes(rows)
    doing = watch.doing() if any(row.state == "running" for row in rows) else {}
    return [_item_row(row, causes.get(row.path), doing.get(row.path, ""), links) for row in rows]


def _item_row(row: ItemRow, end: object, doing: str, links: Links) -> Markup:
    from plait.engine.journal import StepRecord
    from plait.engine.outcome import Failed, Skipped

    words: Child = tag("span", title_text(doing, 60), class_="dim") if doing else None
    outcome = end.outcome if isinstance(end, StepRecord) else None
    if isinstance(outcome, Failed):
        cause, lines = describe_failure(outcome.failure)
        last = one_line(lines[-1], 160) if lines else ""
        words = join(
            tag("span", cause_text(cause), class_="cause"), " ", tag("bdi", last, class_="dim")
        )
    elif isinstance(outcome, Skipped):
        words = tag("span", one_line(outcome.why, 160), class_="dim")
    name = title_text(row.title, 120)
    retried = f" ×{row.attempts}" if row.attempts > 1 else None
    return tag(
        "div",
        state_sign(row.state),
        tag("a", name, href=links.page(step=row.path))
        if row.path
        else tag("span", name, class_="dim"),
        tag(
            "span",
            words,
            tag("span", retried, class_="dim") if retried else None,
            class_="item-words",
        ),
        seconds(row.duration),
        tag("span", "", class_="time", data_since=f"{row.since:.3f}") if row.since else None,
        class_=f"item i-{row.state}",
        role="listitem",
    )
