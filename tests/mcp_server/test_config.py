"""`plait mcp config` prints the entry for the file of a client, and the entry starts a server that answers."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.peer import LIMIT
from plait.cli import main

CLIENTS = [
    # client, its file, the reader, the key of the servers, and what else its entry has
    ("claude",         ".mcp.json",                    json.loads,    "mcpServers",  {}),
    ("claude-desktop", "claude_desktop_config.json",   json.loads,    "mcpServers",  {}),
    ("codex",          "~/.codex/config.toml",         tomllib.loads, "mcp_servers", {}),
    ("cursor",         ".cursor/mcp.json",             json.loads,    "mcpServers",  {}),
    ("gemini",         ".gemini/settings.json",        json.loads,    "mcpServers",  {}),
    ("vscode",         ".vscode/mcp.json",             json.loads,    "servers",     {"type": "stdio"}),
]  # fmt: skip


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(("client", "file", "read", "key", "more"), CLIENTS)
def test_the_entry_of_a_client_starts_a_server_that_answers(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    client: str,
    file: str,
    read: Callable[[str], Any],
    key: str,
    more: dict[str, str],
) -> None:
    assert main(["mcp", "config", client, "--expose", "team/*", "--answer-within", "9"]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        f"put this into {file}; clients: claude, claude-desktop, codex, cursor, gemini, vscode\n"
    )
    ((found, servers),) = read(printed.out).items()
    assert (found, list(servers)) == (key, ["plait"])
    entry = servers["plait"]
    command, args = entry.pop("command"), entry.pop("args")
    assert entry == more
    assert Path(command).is_absolute()  # clients have a PATH of their own
    given = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": given},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    elsewhere = tmp_path / "elsewhere"  # a client starts it where it likes
    elsewhere.mkdir()
    with subprocess.Popen(
        [command, *args], cwd=elsewhere, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write("".join(f"{json.dumps(one)}\n" for one in messages).encode())
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
        assert server.wait(LIMIT) == 0
    first, second = (one["result"] for one in answers)
    assert (first["protocolVersion"], first["serverInfo"]["name"]) == ("2025-11-25", "plait")
    assert [one["name"] for one in second["tools"]] == ["team__report"]
