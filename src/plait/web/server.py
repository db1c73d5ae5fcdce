"""The addresses of `plait web`.  The guard of `httpd` stands before them.

Nothing is served from a project's folder: pages are made of journals, and the two static files
come with Plait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from plait.app.started_command import StartedCommand, shown_command
from plait.app.stop_run import stop_run
from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.views.format import one_line
from plait.web.addresses import RUNS, START, STATIC, RunAddresses, runs_address
from plait.web.fields import FIELD
from plait.web.html import Child, Markup, join, tag
from plait.web.layout import command_line, render_page
from plait.web.live import stream
from plait.web.projects import Projects, ShownRun
from plait.web.run_actions import ACTIONS, Question, find_offers
from plait.web.run_page import (
    WINDOW,
    Choice,
    fragments,
    item_counts,
    item_rows,
    page_content,
)
from plait.web.runs_page import runs_content, runs_table, select_lines
from plait.web.start_page import flows_content, form_content, project_flows, run_words

_TYPES: Final = {"web.css": "text/css; charset=utf-8", "web.js": "text/javascript; charset=utf-8"}
STYLESHEET: Final = f"{STATIC}/web.css"
START_SECONDS: Final = 20.0
"""How long a page waits for a command to begin its run."""
STOP_SECONDS: Final = 0.3


def make_app(projects: Projects) -> Starlette:
    pages = Pages(projects)
    return Starlette(
        routes=[
            Route(RUNS, pages.runs),
            Route("/live", pages.runs_live),
            Route("/run/{project}/{run}", pages.run),
            Route("/run/{project}/{run}/live", pages.run_live),
            Route("/run/{project}/{run}/items", pages.items),
            Route("/run/{project}/{run}/act", pages.act, methods=["POST"]),
            Route(START, pages.start_form, methods=["GET"]),
            Route(START, pages.start, methods=["POST"]),
            Route(f"{STATIC}/{{name}}", static_file),
        ],
        exception_handlers={404: _answer_not_found, 405: _answer_not_found},
    )


def static_file(request: Request) -> Response:
    name = str(request.path_params["name"])
    if name not in _TYPES:
        return error_page(404, "there is no such page")
    return Response(read_static(name), media_type=_TYPES[name])


def read_static(name: str) -> str:
    return files("plait.web").joinpath("static", name).read_text("utf-8")


async def _answer_not_found(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return error_page(status, "there is no such page", "the list of runs is at /")


def error_page(status: int, what: str, fix: str = "", where: str = "") -> HTMLResponse:
    content = join(
        tag("h1", "That did not work"),
        tag(
            "div",
            tag("strong", what),
            tag("p", tag("code", where)) if where else None,
            tag("p", fix) if fix else None,
            class_="failure",
            role="alert",
        ),
        tag("p", tag("a", "All runs", href=runs_address())),
    )
    return HTMLResponse(render_page("error", content), status)


def problem_page(error: PlaitError) -> HTMLResponse:
    unknown = error.code in ("unknown-run", "no-project")
    return error_page(404 if unknown else 500, error.what, error.fix or "", str(error.where or ""))


class Pages:
    """Answers requests.  Methods without `async` run in a thread."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    # ── the list ─────────────────────────────────────────────────────────

    def runs(self, request: Request) -> Response:
        state, search, project = self._list_choice(request)
        lines = select_lines(self._projects.lines(project), state, search)
        content = runs_content(
            lines,
            self._projects.folders,
            state=state,
            search=search,
            project=project,
            now=time.time(),
        )
        query = f"?{request.url.query}" if request.url.query else ""
        return HTMLResponse(render_page("Runs", content, here="runs", live=f"/live{query}"))

    async def runs_live(self, request: Request) -> Response:
        state, search, project = self._list_choice(request)
        with_project = len(self._projects.folders) > 1
        seen: list[object] = [None, 0.0]

        def look() -> Mapping[str, Markup] | None:
            now = time.monotonic()
            if now - float(str(seen[1])) < 0.5:  # the list of many projects takes a while
                return None
            lines = select_lines(self._projects.lines(project), state, search)
            figures = [(one.run, one.state, one.counts, one.total) for one in lines]
            seen[1] = time.monotonic()
            if figures == seen[0]:
                return None
            seen[0] = figures
            return {
                "runs": runs_table(
                    lines,
                    time.time(),
                    with_project=with_project,
                    is_chosen=bool(state or search or project),
                )
            }

        return _events(look)

    def _list_choice(self, request: Request) -> tuple[str, str, str]:
        query = request.query_params
        return query.get("state", "")[:20], query.get("q", "")[:200], query.get("project", "")[:20]

    # ── a run ────────────────────────────────────────────────────────────

    def run(self, request: Request) -> Response:
        try:
            shown = self._find_run(request)
            with shown.lock:
                shown.watch.update()
                choice = _choice(request).settle(shown.watch)
                parts = self._parts(request, shown, choice)
                title = f"{shown.watch.progress.flow} {shown.facts.run}"
        except PlaitError as error:
            return problem_page(error)
        live = self._addresses(request).live(choice.view, choice.step, choice.map)
        project = str(request.path_params["project"])
        return HTMLResponse(
            render_page(title, page_content(parts), here="run", live=live, project=project)
        )

    async def run_live(self, request: Request) -> Response:
        chosen = _choice(request)
        seen = [-1]

        def look() -> Mapping[str, Markup] | None:
            shown = self._find_run(request)
            with shown.lock:
                shown.watch.update()
                if shown.watch.version == seen[0]:
                    return None
                seen[0] = shown.watch.version
                choice = chosen.settle(shown.watch)
                if choice.view == "items":
                    shown.watch.items(choice.map)
                parts = self._parts(request, shown, choice)
                if choice.view == "items":
                    del parts["panel"]  # its list is filled by the script
                return parts

        return _events(look)

    def _parts(self, request: Request, shown: ShownRun, choice: Choice) -> dict[str, Markup]:
        offers = find_offers(
            shown.watch,
            shown.facts.project,
            can_act=shown.can_act,
            questions=shown.questions(),
            secrets=shown.secrets,
        )
        parts = fragments(
            shown.watch, shown.facts, choice, self._addresses(request), offers, time.time()
        )
        if choice.view == "items" and not request.url.path.endswith("/live"):
            parts.pop("item-counts", None)  # the panel has it
        return parts

    def items(self, request: Request) -> Response:
        query = request.query_params
        try:
            shown = self._find_run(request)
            with shown.lock:
                shown.watch.update()
                path = query.get("map", "")
                if path not in shown.watch.maps():
                    return error_page(404, "there is no such map in this run")
                table = shown.watch.items(path)
                window = table.window(
                    _number(query.get("offset")),
                    min(_number(query.get("limit"), WINDOW), 2 * WINDOW),
                    state=query.get("state", "")[:20],
                    search=query.get("q", "")[:200],
                )
                rows = item_rows(shown.watch, window.rows, self._addresses(request))
                content = tag(
                    "div",
                    rows,
                    item_counts(table) if query.get("counts") else None,
                    data_offset=window.offset,
                    data_total=window.matching,
                    data_version=table.version,
                )
        except PlaitError as error:
            return problem_page(error)
        return HTMLResponse(content.text)

    def _find_run(self, request: Request) -> ShownRun:
        place = request.path_params
        return self._projects.shown(str(place["project"]), str(place["run"]))

    def _addresses(self, request: Request) -> RunAddresses:
        place = request.path_params
        return RunAddresses(str(place["project"]), str(place["run"]))

    # ── acting ───────────────────────────────────────────────────────────

    async def act(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        async with request.form(max_files=0, max_fields=100) as form:
            given = {name: value for name, value in form.items() if isinstance(value, str)}
        return await run_in_threadpool(self._act, request, given)

    def _act(self, request: Request, given: Mapping[str, str]) -> Response:
        action = given.get("action", "")
        page = self._addresses(request).page()
        try:
            shown = self._find_run(request)
            with shown.lock:
                shown.watch.update()
                offers = find_offers(
                    shown.watch,
                    shown.facts.project,
                    can_act=shown.can_act,
                    questions=shown.questions(),
                    secrets=shown.secrets,
                )
                project, event_count = shown.facts.project, shown.watch.event_count
            offer = next((one for one in offers if one.action == action), None)
            if offer is None:
                known = action if action in ACTIONS else "that"
                return error_page(
                    409, f"{known} is not possible now", "the run has changed meanwhile"
                )
            if action == "stop":
                stop_run(shown.facts.run, project)
                time.sleep(STOP_SECONDS)  # most runs have stopped by then
                return RedirectResponse(page, 303)
            words = [*offer.words, *_answers(given, offer.questions)]
            secrets = {
                name: value for name in offer.secrets if (value := given.get(f"{FIELD}{name}", ""))
            }
            key = str(request.path_params["project"])
            return self._start(words, secrets, shown.facts.run, event_count, key, page)
        except PlaitError as error:
            return problem_page(error)

    def _start(
        self,
        words: list[str],
        inputs: Mapping[str, str],
        run: str,
        event_count: int,
        key: str,
        page: str,
    ) -> Response:
        # Inputs go through standard input: arguments of processes can be seen by others.
        words += ["-i", "@-"] if inputs else []
        started = StartedCommand([*words, "--quiet"], inputs)
        begun = partial(self._has_new_events, key, run, event_count)
        if started.wait_until(begun, START_SECONDS) or started.exit_code in (None, 0, 1):
            return RedirectResponse(page, 303)
        return _command_failed(words, started.output(), page)

    def _has_new_events(self, key: str, run: str, known: int) -> bool:
        """A command that is refused holds the run for a moment, too."""
        shown = self._projects.shown(key, run)
        with shown.lock:
            shown.watch.update()
            return shown.watch.event_count > known

    # ── starting a flow ──────────────────────────────────────────────────

    def start_form(self, request: Request) -> Response:
        key = request.query_params.get("project", "") or next(iter(self._projects.folders))
        inside = request.query_params.get("flow", "")
        try:
            project = self._projects.folder(key)
            flows = project_flows(project)
            if not inside:
                content = flows_content(flows, self._projects.folders, key)
            elif inside in flows:
                content = form_content(inside, flows[inside], key, project)
            else:
                return error_page(404, f"there is no flow '{one_line(inside)}' in this project")
        except PlaitError as error:
            return problem_page(error)
        return HTMLResponse(render_page("Start a flow", content, here="start", project=key))

    async def start(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        async with request.form(max_files=0, max_fields=1000) as form:
            given = {name: value for name, value in form.items() if isinstance(value, str)}
        return await run_in_threadpool(self._start_flow, given)

    def _start_flow(self, given: Mapping[str, str]) -> Response:
        key, inside = given.get("project", ""), given.get("flow", "")
        try:
            project = self._projects.folder(key)
            flows = project_flows(project)
            if inside not in flows or flows[inside].problem:
                return error_page(404, f"there is no flow '{one_line(inside)}' in this project")
            flow = flows[inside]
            inputs = {
                name: given[f"{FIELD}{name}"]
                for name in flow.parameters
                if given.get(f"{FIELD}{name}", "") != ""
            }
            words = run_words(project, inside, {}, trust=given.get("trust") == "yes")
            words += ["-i", "@-"] if inputs else []
            started = StartedCommand([*words, "--quiet"], inputs)
            run = started.find_run(project, START_SECONDS)
        except PlaitError as error:
            return problem_page(error)
        if run is None:
            newest = [one.run for one in self._projects.lines(key)[:1]]
            if started.exit_code in (0, 1) and newest:
                run = newest[0]  # it was over before anybody could look
        if run is not None:
            return RedirectResponse(RunAddresses(key, run).page(), 303)
        content = form_content(
            inside,
            flow,
            key,
            project,
            given={name: given.get(f"{FIELD}{name}", "") for name in flow.parameters},
            problem=started.output() or "the command has not begun a run yet",
            exit_code=started.exit_code or 0,
        )
        page = render_page("Start a flow", content, here="start", project=key)
        return HTMLResponse(page, 422)


def _choice(request: Request) -> Choice:
    query = request.query_params
    return Choice(query.get("view", "")[:20], query.get("step", ""), query.get("map", ""))


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default


def _answers(given: Mapping[str, str], questions: Sequence[Question]) -> list[str]:
    """The options of a form: answers about steps, and whether edits are accepted."""
    words: list[str] = []
    for number, path in enumerate(one.path for one in questions):
        match given.get(f"answer-{number}", "").partition(":"):
            case ("done" | "repeat" as option, _, named) if named == path:
                words += [f"--{option}", path]
    return [*words, *(["--accept-changes"] if given.get("accept") == "yes" else [])]


def _command_failed(words: list[str], output: str, page: str) -> HTMLResponse:
    content: Child = join(
        tag("h1", "The command did not succeed"),
        tag("p", command_line(shown_command(words))),
        tag("div", tag("pre", output or "it printed nothing"), class_="failure", role="alert"),
        tag("p", tag("a", "Back to the run", href=page)),
    )
    return HTMLResponse(render_page("error", content), 409)


def _events(look: Callable[[], Mapping[str, Markup] | None]) -> Response:
    return StreamingResponse(stream(look), media_type="text/event-stream")
