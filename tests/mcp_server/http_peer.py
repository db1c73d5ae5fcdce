"""`plait mcp --http` in a process of its own, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
        given = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
            **({} if body is None else {"Content-Type": "application/json"}),
            **(headers or {}),
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {k: v for k, v in given.items() if v})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()


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
