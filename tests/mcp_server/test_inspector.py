"""Exchanges of `plait mcp` with the official inspector, a client in another language, in two revisions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.http_peer import http_peer
from mcp_server.relay import Rules, relay
from npm import INSPECTOR, NODE, node, npm_folder

ERAS = [
    # of the inspector, and the revision that it speaks then
    ("legacy", "2025-11-25"),
    ("modern", "2026-07-28"),
]
VERSION = "io.modelcontextprotocol/protocolVersion"
RECORD = """\
tee -a asked.jsonl | "$@" | tee -a answered.jsonl
"""


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    folder = npm_folder(INSPECTOR, NODE)
    return [node(folder), str(folder / "node_modules" / ".bin" / "mcp-inspector"), "--cli"]


def agreed(messages: Iterable[str]) -> set[str]:
    """The revisions that the server has answered `initialize` with, or that requests name."""
    found = set()
    for line in messages:
        message = json.loads(line)
        meta = message.get("params", {}).get("_meta", {})
        found |= {message.get("result", {}).get("protocolVersion"), meta.get(VERSION)}
    return found - {None}


@pytest.mark.parametrize(("era", "revision"), ERAS)
def test_the_inspector_lists_calls_and_reads(
    trusted: Path, inspector: list[str], era: str, revision: str
) -> None:
    (trusted / "go").touch()
    (trusted / "record.sh").write_text(RECORD)

    def ask(method: str, *options: str) -> tuple[int, Any]:
        server = ["sh", "record.sh", sys.executable, "-m", "plait", "mcp"]
        ended = subprocess.run(
            [*inspector, *server, "--protocol-era", era, "--method", method, *options],
            cwd=trusted, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return ended.returncode, json.loads(ended.stdout) if ended.returncode == 0 else ended.stderr

    _, listed = ask("tools/list", "--strict")  # it finds no fault with the schemas
    assert {"team__report", "flow__ledger"} <= {one["name"] for one in listed["tools"]}
    code, made = ask("tools/call", "--tool-name", "team__report", "--tool-arg", "week=46")
    assert (code, made["structuredContent"]) == (0, {"week": 46, "name": "Ada"})
    _, run = ask("tools/call", "--tool-name", "flow__ledger")
    state = run["structuredContent"]
    assert (state["status"], state["output"]) == ("done", "end\n")
    _, read = ask("resources/read", "--uri", f"plait://runs/{state['run']}/output")
    assert read["contents"][0]["text"] == "end\n"
    _, prompts = ask("prompts/list")
    assert [one["name"] for one in prompts["prompts"]] == ["directive-_team__review"]
    _, prompt = ask("prompts/get", "--prompt-name", "directive-_team__review", "--prompt-args", "file=a.py")  # fmt: skip
    assert prompt["messages"][0]["content"]["text"] == "Review a.py please."
    code, _ = ask("tools/call", "--tool-name", "nothing")
    assert code != 0
    messages = [(trusted / name).read_text() for name in ("asked.jsonl", "answered.jsonl")]
    assert agreed("".join(messages).splitlines()) == {revision}


class Record(Rules):
    """Keeps the messages of both sides."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def begin(self, message: dict[str, Any]) -> None:
        self.messages.append(json.dumps(message))

    def response(self, text: str) -> str:
        self.messages.append(text or "{}")
        return text


@pytest.mark.parametrize(("era", "revision"), ERAS)
def test_the_inspector_lists_and_calls_over_http(
    trusted: Path, inspector: list[str], era: str, revision: str
) -> None:
    pytest.importorskip("uvicorn", reason="plait mcp --http needs: pip install 'plait-flow[web]'")
    record = Record()
    with http_peer(trusted) as peer, relay(peer.port, "", record) as url:

        def ask(*options: str) -> tuple[int, Any]:
            ended = subprocess.run(
                [*inspector, url, "--transport", "http", "--protocol-era", era, *options],
                cwd=trusted, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            return ended.returncode, ended.stdout

        header = ["--header", f"Authorization: Bearer {peer.token}"]
        code, stdout = ask(*header, "--method", "tools/list")
        assert code == 0
        assert "team__report" in {one["name"] for one in json.loads(stdout)["tools"]}
        code, stdout = ask(
            *header, "--method", "tools/call", "--tool-name", "team__report", "--tool-arg", "week=46"
        )  # fmt: skip
        assert (code, json.loads(stdout)["structuredContent"]["week"]) == (0, 46)
        assert agreed(record.messages) == {revision}
        assert ask("--method", "tools/list")[0] != 0
