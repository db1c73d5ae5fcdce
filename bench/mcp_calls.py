"""The cost of a tool call through `plait mcp`, compared with the same call in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from measure import all_cores, race_once_each
from tables import Bar, Plan, Table, compared

from plait.app import api as app
from tools import Setup, make_setup

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
TOOLS = {"a script": "team/report", "a function": "team/quick"}
BATCH = 20
"""Function calls per measurement: a single one is too short for the clock."""


def mcp_tables(*, rounds: int) -> Iterator[Plan]:
    with make_setup() as setup, all_cores(), _server(setup) as call:
        for kind, tool in TOOLS.items():
            measure = partial(_call_table, setup, call, kind, tool, rounds)
            yield Plan(f"Calling {kind} through the MCP server", measure)


Call = Callable[[str, Mapping[str, Any]], Any]


def _server(setup: Setup) -> AbstractContextManager[Call]:
    """A server with an open client, as in editors and agents."""
    return _client([sys.executable, "-m", "plait", "mcp"], setup)


@contextmanager
def _client(command: list[str], setup: Setup) -> Iterator[Call]:
    with subprocess.Popen(
        command,
        cwd=setup.project, env={**os.environ, **setup.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        write, read = process.stdin, process.stdout

        def call(name: str, arguments: Mapping[str, Any]) -> Any:
            params = {"name": name, "arguments": arguments, "_meta": META}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            write.write(json.dumps(message).encode() + b"\n")
            write.flush()
            return json.loads(read.readline())["result"]["structuredContent"]

        yield call
        write.close()


ECHO = """
import json, os
while line := os.read(0, 1 << 16):
    given = json.loads(line)
    data = {"got": given["params"]["arguments"]}
    result = {"content": [{"type": "text", "text": "{}"}], "structuredContent": data}
    answer = json.dumps({"jsonrpc": "2.0", "id": given["id"], "result": result})
    os.write(1, answer.encode() + b"\\n")
"""
"""A server that only answers: the time of two messages through two pipes."""


def _call_table(setup: Setup, call: Call, kind: str, tool: str, rounds: int, title: str) -> Table:
    here, wire = "plait.call", tool.replace("/", "__")
    times = BATCH if kind == "a function" else 1

    def by_plait(_: int) -> None:
        for _number in range(times):
            app.call(tool, {"week": 46}, project=setup.project)

    def by_mcp(_: int) -> None:
        for _number in range(times):
            assert call(wire, {"week": 46}) == {"got": {"week": 46}}

    with _client([sys.executable, "-c", ECHO], setup) as echo:

        def by_echo(_: int) -> None:
            for _number in range(times):
                assert echo(wire, {"week": 46}) == {"got": {"week": 46}}

        def by_both(_: int) -> None:
            for _number in range(times):
                echo(wire, {"week": 46})
                app.call(tool, {"week": 46}, project=setup.project)

        contenders = {
            here: by_plait,
            f"{kind} through plait mcp": by_mcp,
            "a server that only echoes": by_echo,
            "the echo, then plait.call": by_both,
        }
        for one in contenders.values():
            for _ in range(5):
                one(0)
        measured = race_once_each(contenders, rounds=rounds)
    calls = f"{times} calls" if times > 1 else "A call"
    return compared(
        title,
        f"{calls} of {kind}, from a long-running process: in that process, and through a server that "
        "it holds open, over standard input and output, one call after the other. The bar: at most "
        "1.3 times the same `plait.call`. The last rows are the floor: the way of two messages "
        "through two pipes, alone and with the same call beside it.",
        measured,
        to=here,
        bars={f"{kind} through plait mcp": Bar(1.3)},
    )
