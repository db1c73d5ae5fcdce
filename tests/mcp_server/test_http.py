"""`plait mcp --http`: sessions, single requests, streams that break, and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("uvicorn", reason="no HTTP server is here: pip install 'plait-flow[web]'")

from mcp_server.http_peer import HttpPeer, http_peer
from plait.cli import main
from plait.mcp.http import _Stream

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
NEWEST = {"MCP-Protocol-Version": "2026-07-28"}


def single(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": META, **params}}


def headers(method: str, name: str = "") -> dict[str, str]:
    return {**NEWEST, "Mcp-Method": method, "Mcp-Name": name}


def initialize(revision: str) -> dict[str, Any]:
    params = {
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def begin(peer: HttpPeer, revision: str = "2025-11-25") -> dict[str, str]:
    """Headers of a new session."""
    reply = peer.send(initialize(revision))
    assert (reply.status, reply.json["result"]["protocolVersion"]) == (200, revision)
    session = {"Mcp-Session-Id": reply.headers["mcp-session-id"], "MCP-Protocol-Version": revision}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (peer.send(ready, session).status, peer.send(ready, session).body) == (202, b"")
    return session


def request(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


@pytest.fixture
def peer(trusted: Path) -> Iterator[HttpPeer]:
    with http_peer(trusted) as peer:
        yield peer


def test_a_single_request_needs_no_session(peer: HttpPeer) -> None:
    reply = peer.send(single("server/discover"), headers("server/discover"))
    assert reply.status == 200
    assert reply.json["result"]["supportedVersions"] == ["2026-07-28", "2025-11-25", "2025-06-18"]
    assert "mcp-session-id" not in reply.headers
    call = single("tools/call", name="team__report", arguments={"week": 46})
    reply = peer.send(call, headers("tools/call", "team__report"))
    assert reply.json["result"]["structuredContent"] == {"week": 46, "name": "Ada"}


WRONG: list[tuple[Any, dict[str, str], int, int | None]] = [
    # message                                headers                                           status  code
    (b"",                                    {},                                               400,    -32700),
    (b"{",                                   {},                                               400,    -32700),
    (b"[]",                                  {},                                               400,    -32600),
    (b"1",                                   {},                                               400,    -32600),
    (request("ping"),                        {},                                               400,    -32600),  # no session
    (request("ping"),                        {"Mcp-Session-Id": "guess"},                      404,    -32600),
    (request("ping"),                        NEWEST,                                           400,    -32602),  # no _meta
    (single("ping"),                         {},                                               400,    -32020),  # no headers
    (single("ping"),                         {**NEWEST},                                       400,    -32020),
    (single("ping"),                         headers("tools/list"),                            400,    -32020),
    (single("ping"),                         {"MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "ping"}, 400, -32020),
    (single("tools/call", name="a"),         headers("tools/call", "b"),                       400,    -32020),
    (single("tools/call", name="a"),         headers("tools/call", "a"),                       400,    -32602),  # unknown tool
    (single("tasks/get", taskId="a"),        headers("tasks/get", "b"),                        400,    -32020),
    (single("nothing"),                      headers("nothing"),                               404,    -32601),
    (single("ping"),                         headers("ping"),                                  404,    -32601),  # of older revisions
    (single("initialize"),                   headers("initialize"),                            404,    -32601),
    (single("ping"),                         {**headers("ping"), "Content-Type": "text/plain"}, 415,   -32600),
    (single("ping"),                         {**headers("ping"), "Accept": "text/html"},       406,    -32600),
    (single("ping"),                         {**headers("ping"), "Authorization": ""},         401,    None),
    (single("ping"),                         {**headers("ping"), "Authorization": "Bearer x"}, 401,    None),
    (single("ping"),                         {**headers("ping"), "Host": "evil.example"},      421,    None),
    (single("ping"),                         {**headers("ping"), "Origin": "http://evil.example"}, 403, None),
]  # fmt: skip


def test_what_is_wrong_is_refused_with_a_reason(peer: HttpPeer) -> None:
    peer.send(single("tools/list"), headers("tools/list"))  # an error that comes late is an event
    found = []
    for message, given, _, code in WRONG:
        reply = peer.send(message, given)
        found.append((reply.status, reply.json["error"]["code"] if code else None))
    assert found == [(status, code) for _, _, status, code in WRONG]
    stranger = peer.send(single("ping"), {**headers("ping"), "Authorization": ""})
    assert stranger.body == (
        b"this server needs the header Authorization: Bearer, with the token that it printed\n"
    )
    assert peer.send(None, method="GET").status == 405
    assert peer.send(single("ping"), headers("ping"), path="/other").status == 404
    assert peer.send(single("ping"), headers("ping"), method="PUT").status == 405


def test_a_name_that_no_header_can_hold_is_written_in_base64(peer: HttpPeer) -> None:
    peer.send(single("tools/list"), headers("tools/list"))
    given = headers("tools/call", "=?base64?w6Q=?=")
    reply = peer.send(single("tools/call", name="ä"), given)
    assert (reply.status, reply.json["error"]["message"]) == (400, "Unknown tool: ä")


REPEATED: list[tuple[dict[str, Any], dict[str, str], int]] = [
    # arguments                                    headers                                            status
    ({"week": 46},                                 {"Mcp-Param-Week": "46"},                          200),
    ({"week": 46, "name": "Ä"},                    {"Mcp-Param-Week": "46", "Mcp-Param-Name": "=?base64?w4Q=?="}, 200),
    ({"week": 46},                                 {"Mcp-Param-Week": "47"},                          400),
    ({"week": 46},                                 {},                                                400),
    ({"week": 46},                                 {"Mcp-Param-Week": "46", "Mcp-Param-Name": "Ada"}, 400),  # not in the message
    ({"week": 46, "name": "Ä"},                    {"Mcp-Param-Week": "46", "Mcp-Param-Name": "=?base64?w4Q?="}, 400),
]  # fmt: skip


def test_a_header_that_a_schema_names_repeats_its_parameter(peer: HttpPeer, trusted: Path) -> None:
    file = trusted / ".ai/tools/team/report.py"
    text = file.read_text()
    for name, kind in (("Week", "integer"), ("Name", "string")):
        text = text.replace(f'"type": "{kind}"', f'"type": "{kind}", "x-mcp-header": "{name}"')
    file.write_text(text)
    assert main(["trust", "."]) == 0
    found = []
    for arguments, given, _ in REPEATED:
        call = single("tools/call", name="team__report", arguments=arguments)
        reply = peer.send(call, {**headers("tools/call", "team__report"), **given})
        found.append(reply.status)
    assert found == [status for *_, status in REPEATED]


@pytest.mark.parametrize("revision", ["2025-11-25", "2025-06-18"])
def test_a_session(peer: HttpPeer, revision: str) -> None:
    session = begin(peer, revision)
    tools = peer.send(request("tools/list"), session).json["result"]["tools"]
    assert "team__report" in [tool["name"] for tool in tools]
    other = {**session, "MCP-Protocol-Version": "2026-07-28"}
    assert peer.send(request("ping"), other).status == 400
    assert peer.send(None, session, method="DELETE").status == 200
    assert peer.send(request("ping"), session).status == 404


@pytest.mark.parametrize("last", ["1-" + "9" * 5000, "9" * 5000 + "-1", "1-x", "1", "-"])
def test_a_place_in_a_stream_that_is_none_is_refused(peer: HttpPeer, last: str) -> None:
    session = begin(peer)
    reply = peer.send(None, {**session, "Last-Event-ID": last}, method="GET")
    assert reply.status == 404
    assert "there is nothing left of this stream" in reply.json["error"]["message"]


def test_a_stream_that_is_read_gets_all_progress_and_one_that_is_not_the_newest() -> None:
    async def read() -> tuple[list[Any], list[Any]]:
        stream, seen, found = _Stream(1), 0, list[Any]()
        for number in range(1000):
            stream.put({"method": "notifications/progress", "n": number}, may_miss=True)
            new = stream.after(seen)
            found += [message["n"] for _, message in new]
            seen = new[-1][0] if new else seen
        return found, [message["n"] for _, message in stream.after(0)]

    read_at_once, kept = asyncio.run(read())
    assert read_at_once == list(range(1000))
    assert kept == list(range(800, 1000))


def test_sessions_of_several_clients_do_not_meet(peer: HttpPeer) -> None:
    first, second = begin(peer), begin(peer)
    assert first["Mcp-Session-Id"] != second["Mcp-Session-Id"]
    for session, week in ((first, 1), (second, 2)):
        call = request("tools/call", name="team__report", arguments={"week": week})
        assert peer.send(call, session).json["result"]["structuredContent"]["week"] == week
    assert peer.send(None, first, method="DELETE").status == 200
    assert peer.send(request("ping"), second).status == 200


def test_the_session_that_was_used_longest_ago_makes_room(peer: HttpPeer) -> None:
    first = begin(peer)
    for _ in range(64):
        last = begin(peer)
    assert peer.send(request("ping"), first).status == 404
    assert peer.send(request("ping"), last).status == 200


def test_progress_comes_as_events_and_the_rest_after_a_break(peer: HttpPeer, trusted: Path) -> None:
    session = begin(peer)
    call = request("tools/call", 7, name="flow__ledger", arguments={}, _meta={"progressToken": "p"})
    body = json.dumps(call).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{peer.port}",
        f"Authorization: Bearer {peer.token}",
        *(f"{name}: {value}" for name, value in session.items()),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    seen = b""
    with socket.create_connection(("127.0.0.1", peer.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        while seen.count(b"notifications/progress") < 2:
            piece = connection.recv(4096)
            assert piece, seen
            seen += piece
    last = [line for line in seen.decode().splitlines() if line.startswith("id: ")][1][4:]
    (trusted / "go").touch()  # the client is gone, the run goes on
    rest = peer.send(None, {**session, "Last-Event-ID": last}, method="GET")
    ids = [id for id, _ in rest.events]
    messages = [message for _, message in rest.events if message is not None]
    assert ids[0] == last
    assert messages[-1]["id"] == 7
    assert messages[-1]["result"]["structuredContent"]["status"] == "done"
    done = [
        m["params"]["progress"] for m in messages if m.get("method") == "notifications/progress"
    ]
    assert done == sorted(done)
    assert (trusted / "ledger.txt").read_text() == "a\nb\nc\nd\n"
    assert peer.send(None, {**session, "Last-Event-ID": "99-1"}, method="GET").status == 404


@pytest.mark.parametrize("id", [0, 1])
def test_a_client_that_leaves_a_single_request_cancels_it(
    peer: HttpPeer, trusted: Path, id: int
) -> None:
    call = single("tools/call", id, name="flow__ledger", arguments={})
    call["params"]["_meta"] = {**META, "progressToken": 1}
    body = json.dumps(call).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{peer.port}",
        f"Authorization: Bearer {peer.token}",
        *(f"{name}: {value}" for name, value in headers("tools/call", "flow__ledger").items()),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    seen = b""
    with socket.create_connection(("127.0.0.1", peer.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        while b"notifications/progress" not in seen:
            seen += connection.recv(4096)
    while True:  # until the run has noticed
        listed = peer.send(single("resources/list"), headers("resources/list")).json
        run = listed["result"]["resources"][0]["uri"].split("/")[3]
        status = single("tools/call", name="plait_run_status", arguments={"run": run})
        reply = peer.send(status, headers("tools/call", "plait_run_status")).json
        if reply["result"]["structuredContent"]["status"] != "running":
            break
    assert reply["result"]["structuredContent"]["status"] == "interrupted"
    (trusted / "go").touch()
    resume = single("tools/call", name="plait_run_resume", arguments={"run": run})
    result = peer.send(resume, headers("tools/call", "plait_run_resume")).json
    assert result["result"]["structuredContent"]["status"] == "done"


def test_the_same_handle_answers_after_a_restart(trusted: Path) -> None:
    start = single("tools/call", name="plait_run_start", arguments={"flow": "flow__ledger"})
    given = headers("tools/call", "plait_run_start")
    with http_peer(trusted) as peer:
        run = peer.send(start, given).json["result"]["structuredContent"]["run"]
        while (
            not (trusted / "ledger.txt").exists() or "c" not in (trusted / "ledger.txt").read_text()
        ):
            peer.send(single("ping"), headers("ping"))
    (trusted / "go").touch()
    wait = single("tools/call", name="plait_run_wait", arguments={"run": run})
    with http_peer(trusted) as peer:
        result = peer.send(wait, headers("tools/call", "plait_run_wait")).json
    assert result["result"]["structuredContent"]["status"] == "done"
    written = (trusted / "ledger.txt").read_text().split()
    assert [written.count(item) for item in "abd"] == [1, 1, 1]


@pytest.mark.parametrize(("mode", "revision"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_the_official_client(
    peer: HttpPeer, trusted: Path, mode: Literal["auto", "legacy"], revision: str
) -> None:
    pytest.importorskip(
        "mcp", reason="the official client is not here: pip install 'plait-flow[mcp]'"
    )
    import anyio
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    (trusted / "go").touch()
    steps: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)
        assert (total, message) != (None, None)

    async def talk() -> None:
        known = {"Authorization": f"Bearer {peer.token}"}
        async with (
            httpx2.AsyncClient(headers=known, timeout=60) as http,
            Client(streamable_http_client(peer.url, http_client=http), mode=mode) as client,
        ):
            assert client.session.protocol_version == revision
            tools = [one.name for one in (await client.list_tools()).tools]
            assert "team__report" in tools
            result = await client.call_tool("team__report", {"week": 46})
            assert result.structured_content == {"week": 46, "name": "Ada"}
            run: Any = await client.call_tool("flow__ledger", {}, progress_callback=note)
            assert run.structured_content["status"] == "done"
            uri = f"plait://runs/{run.structured_content['run']}/output"
            contents: Any = (await client.read_resource(uri)).contents[0]
            assert contents.text == "end\n"

    anyio.run(talk)
    assert steps == sorted(steps)
    assert steps


def test_a_busy_server_still_reports_the_state_of_runs(peer: HttpPeer) -> None:
    def call(name: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
        return single("tools/call", name=name, arguments=arguments), headers("tools/call", name)

    started = peer.send(*call("plait_run_start", flow="flow__ledger")).json["result"]
    run = started["structuredContent"]["run"]
    wait = call("plait_run_wait", run=run, seconds=60)
    waiting = [peer.begin(*wait) for _ in range(64)]
    while (full := peer.send(*call("core__file__list", path="."))).status == 200:
        assert len(waiting) < 200
        waiting.append(
            peer.begin(*wait)
        )  # one that came while the call before it was performed was refused
    assert (full.status, full.json["error"]["code"]) == (503, -32000)
    status = peer.send(*call("plait_run_status", run=run))
    assert (status.status, status.json["result"]["structuredContent"]["status"]) == (200, "running")
    stopped = peer.send(*call("plait_run_cancel", run=run)).json["result"]["structuredContent"]
    assert stopped["status"] == "interrupted"
    for connection in waiting:
        connection.close()


def test_a_port_that_is_taken_is_an_error_with_the_way_out(trusted: Path, peer: HttpPeer) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "plait", "mcp", "--http", str(peer.port)],
        cwd=trusted, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        f"port {peer.port} of 127.0.0.1 is taken\n"
        "fix: end the program that has it, or give another port (0: any)\n",
    )
