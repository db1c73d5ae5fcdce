"""`plait mcp --http` in a process of its own, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp_server.peer import LIMIT, META, PLAIT, STATELESS
from plait.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The answer; one that took long came as a stream of events."""
        if self.headers["content-type"].startswith("text/event-stream"):
            return self.events[-1][1]
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Id and message of each event of a stream."""
        found = []
        for event in self.body.decode().split("\n\n"):
            fields = dict(line.split(":", 1) for line in event.splitlines() if line[:1] != ":")
            if fields:
                data = fields.get("data", "").strip()
                found.append((fields.get("id", "").strip(), json.loads(data) if data else None))
        return found


class HttpPeer:
    def __init__(self, url: str, token: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.token = token
        self.process = process
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])

    def send(
        self,
        body: bytes | Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        path: str = "/mcp",
    ) -> Reply:
        """A header of '' is left out."""
        connection = self.begin(body, headers, method=method, path=path)
        try:
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def begin(
        self,
        body: bytes | Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        path: str = "/mcp",
    ) -> http.client.HTTPConnection:
        """Send a request; the connection gets the answer."""
        given = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
            **({} if body is None else {"Content-Type": "application/json"}),
            **(headers or {}),
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {k: v for k, v in given.items() if v})
        return connection


class HttpCaller:
    """Calls a server of its own over HTTP, as `Peer` does over standard input."""

    def __init__(
        self,
        project: Path,
        *,
        revision: str,
        capabilities: dict[str, Any],
        program: Sequence[str] = PLAIT,
        **env: str,
    ) -> None:
        self.revision = revision
        self.notices: list[dict[str, Any]] = []
        self._capabilities = capabilities
        self._waiting: list[http.client.HTTPConnection] = []
        self._last = 0
        self._session: dict[str, str] = {}
        self.process = subprocess.Popen(
            [sys.executable, *program, "mcp", "--http", "0"],
            cwd=project, env={**os.environ, **env}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout
        first, second = self.process.stdout.readline(), self.process.stdout.readline()
        self._peer = HttpPeer(first.split()[4].rstrip(";"), second.split()[-1], self.process)
        if revision != STATELESS:
            given = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
            reply = self._peer.send(*self._request("initialize", given))
            self._session = {"Mcp-Session-Id": reply.headers["mcp-session-id"], "MCP-Protocol-Version": revision}  # fmt: skip
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            assert self._peer.send(ready, self._session).status == 202

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request; the error if it has one."""
        answer = self._peer.send(*self._request(method, params)).json
        return answer["result"] if "result" in answer else answer["error"]

    def call(self, name: str, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def begin(self, method: str, params: dict[str, Any]) -> None:
        """Send a request, and do not wait for its answer."""
        self._waiting.append(self._peer.begin(*self._request(method, params)))

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def leave(self) -> None:
        """Ask the server to end.  A client that only leaves ends nothing: others may be there."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(LIMIT)
        for connection in self._waiting:
            connection.close()

    def _request(
        self, method: str, params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        self._last += 1
        headers = self._session
        if self.revision == STATELESS:
            can = {"io.modelcontextprotocol/clientCapabilities": self._capabilities}
            params = {**params, "_meta": {**META, **can}}
            name = params.get("name") or params.get("taskId", "")
            headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, "Mcp-Name": name}
        return {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}, headers


@contextmanager
def http_peer(folder: Path, *options: str) -> Iterator[HttpPeer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "mcp", "--http", "0", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first.startswith("plait mcp listens at http://127.0.0.1:"), process.stderr.read()
        yield HttpPeer(first.split()[4].rstrip(";"), second.split()[-1], process)
        process.send_signal(signal.SIGINT)
        _out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()
