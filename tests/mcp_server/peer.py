"""A client that sends lines to a real `plait mcp` and reads its answers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT = 60.0
"""Seconds after which a test gives up."""
STATELESS = "2026-07-28"
PLAIT = ("-m", "plait")
"""What Python has to run."""
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Peer:
    """Speaks one revision with a server of its own."""

    def __init__(
        self,
        project: Path,
        *options: str,
        revision: str = "2025-11-25",
        capabilities: dict[str, Any] | None = None,
        program: Sequence[str] = PLAIT,
        **env: str,
    ) -> None:
        self.revision = revision
        self.capabilities = capabilities or {}
        self.notices: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        """Requests of the server."""
        self._answers: dict[object, dict[str, Any]] = {}
        self._kept = b""
        self._last = 0
        self.process = subprocess.Popen(
            [sys.executable, *program, "mcp", *options],
            cwd=project, env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if revision != STATELESS:
            given = {"protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
            self.began = self.ask("initialize", given)
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> bytes:
        """Close the connection; returns what the server wrote to standard error."""
        assert self.process.stdin
        assert self.process.stderr
        self.process.stdin.close()
        self.process.wait(LIMIT)
        return self.process.stderr.read()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT)

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: object) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def begin(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Send a request; returns its id."""
        self._last += 1
        can = {"io.modelcontextprotocol/clientCapabilities": self.capabilities}
        wanted = {**({**META, **can} if self.revision == STATELESS else {}), **meta}
        params = {**(params or {}), **({"_meta": wanted} if wanted else {})}
        self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The result of a request; the error if it has one."""
        answer = self.answer(self.begin(method, params))
        return answer["result"] if "result" in answer else answer["error"]

    def call(self, name: str, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def answer(self, id: object) -> dict[str, Any]:
        while id not in self._answers:
            self.take(self.line())
        return self._answers.pop(id)

    def take(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            self.questions.append(message)
        elif "method" in message:
            self.notices.append(message)
        else:
            self._answers[message["id"]] = message

    def question(self) -> dict[str, Any]:
        """The next request of the server."""
        while not self.questions:
            self.take(self.line())
        return self.questions.pop(0)

    def reply(self, question: dict[str, Any], action: str, **content: Any) -> None:
        result = {"action": action, **({"content": content} if content else {})}
        self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    def wait_for_progress(self, least: int) -> None:
        while not any(one["params"].get("progress", -1) >= least for one in self.notices):
            self.take(self.line())

    def line(self) -> dict[str, Any]:
        assert self.process.stdout
        until = time.monotonic() + LIMIT
        while b"\n" not in self._kept:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(until - time.monotonic(), 0)
            )
            assert ready, "the server does not answer"
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, "the server has ended"
            self._kept += piece
        line, _, self._kept = self._kept.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message
