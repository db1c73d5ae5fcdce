"""Questions and answers for the tests of providers, and a real server on loopback that speaks both families."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from plait.adapters.http.client import stream_request
from plait.agents.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    OnText,
    ToolOffer,
    ToolRequest,
)
from plait.agents.providers.client import HttpModel
from plait.agents.providers.file_check import file_problems
from plait.agents.providers.spec import read_spec
from plait.agents.providers.structured import StructuredProvider
from plait.core import documents
from plait.core.values import Json
from plait.engine.outcome import Failure, StepError
from plait.engine.stop import StopSignal

DATA = Path(__file__).parents[2] / "data" / "providers"
SYSTEM = Path(__file__).parents[3] / "src" / "plait" / "system" / "providers"
KEY = "sk-test-0123456789abcdef"
FILES = {"chat_completions": "openai", "anthropic_messages": "anthropic"}
FAMILIES = tuple(FILES)
PATHS = {"chat_completions": "/chat/completions", "anthropic_messages": "/v1/messages"}

READ = ToolOffer(
    "read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}
)
LIST = ToolOffer("list_files", "Lists files.", {"type": "object", "properties": {}})
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
GREETING = "Grüße aus ${HOME} und {model}."


def fixture(family: str, name: str) -> bytes:
    return (DATA / family / name).read_bytes()


def hi(text: str = "hi", **fields: Any) -> ModelRequest:
    return ModelRequest((Message("user", text),), **fields)


def talk() -> ModelRequest:
    """A question with all kinds of messages before it."""
    first = (ToolRequest("a1", "read_file", {"path": "a.txt"}), ToolRequest("b2", "list_files", {}))
    messages = (
        Message("user", "look"),
        Message("assistant", "I look.", first),
        Message("tool", "it says {model}", answers="a1"),
        Message("tool", "no such folder", answers="b2", failed=True),
        Message("user", "and now?"),
    )
    return ModelRequest(messages, "Be brief.", "general", (READ, LIST), options={"max_tokens": 100})


# ── the server ───────────────────────────────────────────────────────────


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        server = self.server
        server.bodies.append(body)
        server.paths.append(self.path)
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        turn = min(len(server.bodies), len(server.replies)) - 1
        server.replies[turn](self)

    def log_message(self, *_: object) -> None:
        return


Reply: TypeAlias = Callable[[Handler], None]


class Server(ThreadingHTTPServer):
    """Gives its replies in turn, the last one again and again, and keeps what it was sent."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = replies
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def asked(self, place: int = -1) -> Any:
        return json.loads(self.bodies[place])

    def handle_error(self, *_: object) -> None:
        return  # clients of these tests leave on purpose


@contextmanager
def serving(*replies: Reply) -> Iterator[Server]:
    server = Server(*replies)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


def reply(
    body: bytes | Json, status: int = 200, kind: str = "application/json", **headers: str
) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def send(to: Handler) -> None:
        to.send_response_only(status)
        to.send_header("content-type", kind)
        for name, value in headers.items():
            to.send_header(name.replace("_", "-"), value)
        to.send_header("content-length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)

    return send


def events(data: bytes) -> Reply:
    """A stream, whole."""
    return reply(data, kind="text/event-stream; charset=utf-8")


def events_until(data: bytes, *, hang: bool = False) -> Reply:
    """A stream that breaks off there, or says nothing more."""

    def send(to: Handler) -> None:
        to.send_response_only(200)
        to.send_header("content-type", "text/event-stream")
        to.send_header("transfer-encoding", "chunked")
        to.end_headers()
        to.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        to.wfile.flush()
        if hang:
            to.server.over.wait(30)
        to.close_connection = True

    return send


def saying(family: str, text: str) -> Reply:
    """A whole answer of a family with another text."""
    body = json.loads(fixture(family, "answer.json"))
    if family == "chat_completions":
        body["choices"][0]["message"]["content"] = text
    else:
        body["content"][0]["text"] = text
    return reply(body)


# ── providers ────────────────────────────────────────────────────────────

QUICK = "retry: {attempts: 3, initial_delay: 1ms, max_delay: 2ms}\n"


def provider(
    family: str,
    url: str,
    more: str = "",
    *,
    body: str = "",
    environ: Mapping[str, str] | None = None,
) -> StructuredProvider:
    """The provider of the system space for a family, at another address; perhaps with another body."""
    name = FILES[family]
    texts = [(SYSTEM / f"{name}.yaml").read_text("utf-8"), QUICK, more]
    if body:
        texts = [
            texts[0].partition("\nbody:")[0] + f"\nbody: {body}\ndefault_model: m\n",
            *texts[1:],
        ]
    nodes = [documents.parse(text, f"{name}.yaml") for text in texts if text]
    assert [problem for node in nodes for problem in file_problems(node)] == []
    variable = name.upper()
    given = {f"{variable}_API_KEY": KEY, f"{variable}_BASE_URL": url, **(environ or {})}
    return StructuredProvider(
        HttpModel(read_spec(name, documents.merge(nodes), given), stream_request, environ=given)
    )


def ask(
    asking: StructuredProvider, question: ModelRequest | None = None, *, timeout: float | None = 20, stop: StopSignal | None = None,
    on_text: OnText | None = None,
) -> ModelResponse:  # fmt: skip
    return asking.ask(question or hi(), timeout=timeout, stop=stop or StopSignal(), on_text=on_text)


def failure(
    asking: StructuredProvider, question: ModelRequest | None = None, **fields: Any
) -> Failure:
    try:
        answer = ask(asking, question, **fields)
    except StepError as error:
        return error.failure
    raise AssertionError(f"it answered {answer}")
