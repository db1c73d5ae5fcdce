"""A client of `plait lsp`: a real process, and the protocol on its pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SERVER = (sys.executable, "-m", "plait", "lsp")


class Client:
    def __init__(
        self, folder: Path, command: Sequence[str] = SERVER, *, initialize: bool = True
    ) -> None:
        self.folder = folder
        self.number = 0
        self.notices: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "USER_SPACE": str(folder / "user")},
        )
        if initialize:
            capabilities = {"workspace": {"configuration": True}}
            self.request(
                "initialize",
                {"processId": None, "rootUri": f"file://{folder}", "capabilities": capabilities},
            )
            self.notify("initialized", {})

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n" % len(data) + data)

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while line := self.process.stdout.readline().strip():
            length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return message

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"method": method, "params": params})

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request; notices that come before it are kept."""
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params or {}})
        while "id" not in (message := self.receive()):
            self.notices.append(message)
        assert message["id"] == self.number
        return message

    def uri(self, name: str) -> str:
        return f"file://{self.folder / name}"

    def open(self, name: str, text: str) -> None:
        document = {"uri": self.uri(name), "languageId": "yaml", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, name: str, *changes: dict[str, Any]) -> None:
        document = {"uri": self.uri(name), "version": 2}
        self.notify(
            "textDocument/didChange", {"textDocument": document, "contentChanges": list(changes)}
        )

    def diagnostics(self, name: str) -> list[dict[str, Any]]:
        """The next diagnostics of a file."""
        while True:
            message = self.notices.pop(0) if self.notices else self.receive()
            if message.get("params", {}).get("uri") == self.uri(name):
                found: list[dict[str, Any]] = message["params"]["diagnostics"]
                return found

    def at(self, method: str, name: str, line: int, character: int) -> Any:
        position = {"line": line, "character": character}
        params = {"textDocument": {"uri": self.uri(name)}, "position": position}
        return self.request(f"textDocument/{method}", params)["result"]
