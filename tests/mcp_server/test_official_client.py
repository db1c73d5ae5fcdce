"""Exchanges of `plait mcp` with the official client, in the newest revision and by handshake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("mcp", reason="the official client is not here: pip install 'plait-flow[mcp]'")

import anyio
from mcp import Client, MCPError, StdioServerParameters, stdio_client


@pytest.mark.parametrize(("mode", "revision"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_the_official_client_lists_and_calls(
    trusted: Path, mode: Literal["auto", "legacy"], revision: str
) -> None:
    (trusted / "go").touch()

    async def talk() -> None:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "plait", "mcp"], cwd=str(trusted)
        )
        steps: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)
            assert (total, message) != (None, None)

        async with Client(stdio_client(server), mode=mode) as client:
            assert client.session.protocol_version == revision
            tools = {one.name: one for one in (await client.list_tools()).tools}
            read: Any = tools["core__file__read"].annotations
            assert read.read_only_hint is True
            result = await client.call_tool("team__report", {"week": 46})
            assert result.structured_content == {"week": 46, "name": "Ada"}
            wrong = await client.call_tool("team__report", {"week": "x"})
            assert wrong.is_error is True
            run: Any = await client.call_tool("flow__ledger", {}, progress_callback=note)
            assert run.structured_content["status"] == "done"
            assert steps == sorted(steps)
            uri = f"plait://runs/{run.structured_content['run']}/output"
            contents: Any = (await client.read_resource(uri)).contents[0]
            assert contents.text == "end\n"
            prompt = await client.get_prompt("directive-_team__review", {"file": "a.py"})
            content: Any = prompt.messages[0].content
            assert content.text == "Review a.py please."
            with pytest.raises(MCPError, match="Unknown tool: nothing"):
                await client.call_tool("nothing", {})

    anyio.run(talk)
