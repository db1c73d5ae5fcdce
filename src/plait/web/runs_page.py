"""The list of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from plait.core.hints import Final
from plait.views.format import one_line
from plait.web.addresses import RunAddresses, runs_address
from plait.web.html import Child, Markup, join, tag
from plait.web.layout import moment, note, seconds, state_sign, title_text, usage_text, word
from plait.web.projects import RunLine

STATES: Final = ("running", "done", "partial", "failed", "interrupted", "unreadable")


def select_lines(lines: Sequence[RunLine], state: str, search: str) -> list[RunLine]:
    """Those with this state, and with this text in their id, flow or file."""
    wanted = search.casefold()
    return [
        line
        for line in lines
        if (not state or line.state == state)
        and (
            not wanted or any(wanted in one.casefold() for one in (line.run, line.flow, line.file))
        )
    ]


def runs_content(
    lines: Sequence[RunLine],
    projects: Mapping[str, str],
    *,
    state: str,
    search: str,
    project: str,
    now: float,
) -> Markup:
    return join(
        tag("h1", "Runs"),
        _tools(projects, state=state, search=search, project=project),
        runs_table(
            lines,
            now,
            with_project=len(projects) > 1,
            is_chosen=bool(state or search or project),
        ),
    )


def _tools(projects: Mapping[str, str], *, state: str, search: str, project: str) -> Markup:
    states = [tag("option", "every state", value="")] + [
        tag("option", word(one), value=one, selected=one == state) for one in STATES
    ]
    folders = [tag("option", "every project", value="")] + [
        tag("option", _project_name(folder), value=key, selected=key == project)
        for key, folder in projects.items()
    ]
    return tag(
        "form",
        tag("label", "Search", for_="run-search"),
        tag(
            "input",
            type="search",
            id="run-search",
            name="q",
            value=search,
            placeholder="flow, file or id",
            autocomplete="off",
        ),
        tag("label", "State", for_="run-state", class_="unseen"),
        tag("select", states, id="run-state", name="state"),
        join(
            tag("label", "Project", for_="run-project", class_="unseen"),
            tag("select", folders, id="run-project", name="project"),
        )
        if len(projects) > 1
        else None,
        tag("button", "Show", type="submit"),
        method="get",
        action=runs_address(),
        role="search",
        class_="tools",
        id="run-tools",
    )


def runs_table(
    lines: Sequence[RunLine], now: float, *, with_project: bool, is_chosen: bool
) -> Markup:
    """`is_chosen`: these are not all runs."""
    if not lines:
        empty = join("no runs here yet: start one, or type ", tag("code", "plait run FILE"))
        if is_chosen:
            empty = join("no run matches: ", tag("a", "all runs", href=runs_address()))
        return tag("div", note(empty), id="runs")
    names = ["State", "Flow", "Run", "Started", "Time", "Items", "Model"]
    names += ["Project"] if with_project else []
    heads = [tag("th", name, scope="col") for name in names]
    rows = [_row(line, now, with_project=with_project) for line in lines]
    table = tag(
        "table",
        tag("caption", "Runs, the newest first", class_="unseen"),
        tag("thead", tag("tr", heads)),
        tag("tbody", rows),
        class_="runs",
    )
    return tag("div", table, id="runs", class_="card")


def _row(line: RunLine, now: float, *, with_project: bool) -> Markup:
    address = RunAddresses(line.key, line.run).page()
    began = now - line.duration if line.is_running else None
    cells: list[Child] = [
        tag("td", state_sign(line.state, with_word=True), data_label="State"),
        tag(
            "th",
            tag("a", title_text(line.flow or line.problem or line.run, 60), href=address),
            tag("span", "foreign", class_="chip") if line.foreign else None,
            tag("span", one_line(os.path.basename(line.file)), class_="dim file"),
            scope="row",
        ),
        tag("td", tag("code", line.run), data_label="Run"),
        tag("td", moment(line.started), data_label="Started"),
        tag("td", seconds(line.duration, began), data_label="Time", class_="number"),
        tag(
            "td", _items(line), data_label="Items", class_=f"number{'' if line.total else ' none'}"
        ),
        tag("td", usage_text(line.usage), data_label="Model")
        if line.usage
        else tag("td", "—", data_label="Model", class_="none"),
    ]
    if with_project:
        cells.append(
            tag("td", _project_name(line.project), data_label="Project", title=line.project)
        )
    return tag("tr", cells, class_=f"r-{line.state}")


def _items(line: RunLine) -> Child:
    if not line.total:
        return "—"
    ended = sum(line.counts.values())
    failed = line.counts.get("failed", 0)
    shown = f"{ended:,}/{line.total:,}" if line.is_running else f"{line.total:,}"
    return join(shown, tag("span", f", {failed:,} failed", class_="cause") if failed else None)


def _project_name(folder: str) -> str:
    return one_line(os.path.basename(folder) or folder)
