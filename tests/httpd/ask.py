"""Requests to a guard without a network, and to a server over loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from plait.core.records import dataclass
from plait.httpd.access import Access
from plait.httpd.guard import Guard, Limits
from plait.httpd.listen import Listen
from plait.httpd.serve import HttpServer

PORT = 8737
HERE = f"127.0.0.1:{PORT}"
OWN = f"http://{HERE}"
PASSWORD = "correct horse battery"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def cookie(self) -> str:
        """What a browser would send back."""
        return self.headers["set-cookie"].partition(";")[0]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body and says what it got."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    kind = b"text/event-stream" if scope["path"] == "/events" else b"text/plain"
    headers = [
        (b"content-type", kind),
        (b"server", b"chatty"),
        (b"access-control-allow-origin", b"*"),
        (b"cache-control", b"public"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send(
        {"type": "http.response.body", "body": b"%s %d" % (scope["path"].encode(), len(body))}
    )


class Door:
    """A guard before `echo`, and how to knock at it."""

    def __init__(
        self,
        *,
        app: Any = echo,
        listen: Listen | None = None,
        limits: Limits | None = None,
        public: tuple[str, ...] = (),
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        listen = listen or Listen(port=PORT)
        self.bugs: list[Exception] = []
        self.access = Access(password=listen.password, cookie="plait-test", clock=clock)
        self.guard = Guard(
            app,
            self.access,
            listen,
            port=PORT,
            limits=limits,
            public=public,
            report_bug=self.bugs.append,
        )

    def ask(
        self,
        target: str = "/",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: list[bytes] | None = None,
        *,
        known: bool = True,
        server: str = "127.0.0.1",
    ) -> Answer:
        """`known`: with a cookie of this start.  A header of '' is left out."""
        sent = {"host": HERE, **(headers or {})}
        if known:
            sent.setdefault("cookie", f"plait-test={self.access.make_cookie()}")
        raw, _, query = target.partition("?")
        from urllib.parse import unquote

        scope = {
            "type": "http",
            "method": method,
            "path": unquote(raw),
            "raw_path": raw.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in sent.items() if v],
            "server": (server, PORT),
            "client": ("192.0.2.7", 50000),
        }
        return asyncio.run(_perform(self.guard, scope, body or [b""]))


async def _perform(guard: Guard, scope: dict[str, Any], body: list[bytes]) -> Answer:
    async def pieces() -> AsyncIterator[dict[str, Any]]:
        for number, piece in enumerate(body, 1):
            yield {"type": "http.request", "body": piece, "more_body": number < len(body)}
        await asyncio.Event().wait()

    waiting = pieces()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await anext(waiting)

    async def send(message: Any) -> None:
        sent.append(message)

    await guard(scope, receive, send)
    start = sent[0]
    assert [one["type"] for one in sent].count("http.response.start") == 1
    text = b"".join(one.get("body", b"") for one in sent[1:]).decode()
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers, text)


# ── a real server ────────────────────────────────────────────────────────


@contextmanager
def serving(
    app: Any = echo, listen: Listen | None = None, limits: Limits | None = None
) -> Iterator[HttpServer]:
    bugs: list[Exception] = []
    server = HttpServer(app, listen or Listen(), limits=limits, report_bug=bugs.append)
    ready = Event()
    thread = Thread(target=server.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(30)
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert bugs == []


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


def request(server: HttpServer, *lines: str, first: str = "GET / HTTP/1.1") -> bytes:
    token = f"Authorization: Bearer {server.token}"
    host = f"Host: 127.0.0.1:{server.port}"
    return "\r\n".join([first, host, token, *lines, "", ""]).encode("latin-1")
