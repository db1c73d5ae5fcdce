"""A server that passes requests on to `plait mcp --http`, and shows or changes them."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Rules:
    """What a relay changes on the way: nothing."""

    def request(self, text: str) -> str:
        """The body of a request, or the name in its header."""
        return text

    def response(self, text: str) -> str:
        """The body of an answer of one piece."""
        return text

    def begin(self, message: dict[str, Any]) -> None:
        """Before a message of the client is passed on."""


@contextmanager
def relay(port: int, token: str, rules: Rules) -> Iterator[str]:
    """Its URL, until the context ends.  `token`: the header Authorization; empty: that of the client."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(port, token, rules))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()


def _make_handler(port: int, token: str, rules: Rules) -> type[BaseHTTPRequestHandler]:
    """Passes requests on with the token; a host or origin that is not ours stays as it is."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            own = self.headers.get("Host", "")
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            with contextlib.suppress(ValueError):  # the suite sends wrong messages, too
                message = json.loads(given)
                if isinstance(message, dict):
                    rules.begin(message)
            body = rules.request(given)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "content-length")}  # fmt: skip
            here = f":{self.connection.getsockname()[1]}"
            headers = {name: value.replace(here, f":{port}") if name.lower() in ("host", "origin") else value for name, value in headers.items()}  # fmt: skip
            if not own.startswith(("127.0.0.1", "localhost")):
                headers["Host"] = own
            if token:
                headers["Authorization"] = token
            there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            if "Mcp-Name" in headers:
                headers["Mcp-Name"] = rules.request(f'"{headers["Mcp-Name"]}"').strip('"')
            there.request(self.command, self.path, body.encode() or None, headers)
            answer = there.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            is_stream = (answer.getheader("Content-Type") or "").startswith("text/event-stream")
            with contextlib.suppress(OSError, http.client.HTTPException):  # one side has left
                if is_stream:
                    while piece := answer.read1(1 << 16):
                        self.wfile.write(piece)
                        self.wfile.flush()
                else:
                    self.wfile.write(rules.response(answer.read().decode()).encode())
            there.close()
            self.close_connection = True

        do_GET = do_POST = do_DELETE = do_OPTIONS = pass_on

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler
