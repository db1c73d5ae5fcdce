"""Who gets the ids of a trace: processes, requests to hosts that the author names, MCP calls."""

from __future__ import annotations

import pytest

from plait.core.records import replace
from plait.tools.invocation import (
    FunctionCall,
    Invocation,
    McpCall,
    McpServer,
    ProcessCall,
    RequestCall,
    with_trace,
)

TRACE = (("traceparent", "00-1-2-01"), ("tracestate", "v=1"))
PROCESS = ProcessCall(("true",), "/", {"A": "1", "TRACEPARENT": "outer"})
REQUEST = RequestCall("GET", "https://a/", (("Accept", "x"),))
MCP = McpCall(McpServer("s", ("s",)), "t", {})
FUNCTION = FunctionCall("t.py", b"", "d", "f", {}, None)

ROWS: list[tuple[Invocation, Invocation]] = [
    (PROCESS, replace(PROCESS, env={"A": "1", "TRACEPARENT": "00-1-2-01", "TRACESTATE": "v=1"})),
    (REQUEST, replace(REQUEST, headers=(("Accept", "x"), *TRACE))),
    (replace(REQUEST, headers=(("Traceparent", "own"),)), replace(REQUEST, headers=(("Traceparent", "own"), TRACE[1]))),
    (replace(REQUEST, url_from_data=True), replace(REQUEST, url_from_data=True)),
    (MCP, replace(MCP, meta=TRACE)),
    (replace(MCP, server=replace(MCP.server, url_from_data=True)), replace(MCP, server=replace(MCP.server, url_from_data=True))),
    (FUNCTION, FUNCTION),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), ROWS)
def test_a_call_passes_a_trace_on(call: Invocation, expected: Invocation) -> None:
    assert with_trace(call, TRACE) == expected
