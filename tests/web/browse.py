"""A client of the pages without a network."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from plait.app.runs import FlowResult, Options, run_flow
from plait.core.records import dataclass
from plait.web.addresses import project_key
from plait.web.projects import Projects
from plait.web.server import make_app


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Asks the app for pages of one project, or of several."""

    def __init__(self, project: Path, *others: Path) -> None:
        self.key = project_key(str(project.resolve()))
        self.projects = Projects([str(one.resolve()) for one in (project, *others)])
        self._app = make_app(self.projects)

    def get(self, address: str) -> Page:
        return asyncio.run(self._ask("GET", address, b""))

    def post(self, address: str, **fields: str) -> Page:
        return asyncio.run(self._ask("POST", address, urlencode(fields).encode()))

    def run(self, run: str, **query: str) -> Page:
        return self.get(f"/run/{self.key}/{run}?{urlencode(query, quote_via=quote)}")

    async def _ask(self, method: str, address: str, body: bytes) -> Page:
        path, _, query = address.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"content-type", b"application/x-www-form-urlencoded"),
            ],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []
        received = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            return received.pop() if received else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, *rest = sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        text = b"".join(one.get("body", b"") for one in rest).decode()
        return Page(start["status"], headers, text)


class Outline(HTMLParser):
    """The elements and attributes of a page, and the text in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def run_text(project: Path, flow: str, **inputs: str) -> FlowResult:
    """Run a flow in a project."""
    project.mkdir(exist_ok=True)
    file = project / "flow.yaml"
    file.write_text(flow)
    return run_flow(str(file), Options(inputs), project=str(project.resolve()))
