"""Lines that a client may send, and the answers: a clear error, and the server continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.peer import META, STATELESS, Peer
from plait import __version__
from plait.mcp.stdio import MAX_MESSAGE

NO_ENVELOPE = "tools/list: send initialize first, or name the revision in params._meta as io.modelcontextprotocol/protocolVersion"  # fmt: skip
REVISION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"

BAD = [
    # line, id of the answer, code, message
    (b"nonsense\n",                                              None, -32700, "this line is not JSON in UTF-8"),
    (b"\xff\xfe\n",                                              None, -32700, "this line is not JSON in UTF-8"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": NaN}}\n', None, -32700, "this line is not JSON in UTF-8"),
    (b"[" * 100_000 + b"\n",                                     None, -32700, "this line is not JSON in UTF-8"),
    (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}\n",               None, -32600, "a message may have at most 100 lists and maps inside one another"),
    (b"[]\n",                                                    None, -32600, "a batch is not allowed: send one message a line"),
    (b"3\n",                                                     None, -32600, 'a message is an object with "jsonrpc": "2.0"'),
    (b'{"id": 1, "method": "ping"}\n',                           None, -32600, 'a message is an object with "jsonrpc": "2.0"'),
    (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}\n',      None, -32600, "a request has an 'id' (text or a whole number) and a 'method' (text)"),
    (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}\n',      None, -32600, "a request has an 'id' (text or a whole number) and a 'method' (text)"),
    (b'{"jsonrpc": "2.0", "id": 1}\n',                              1, -32600, "a request has an 'id' (text or a whole number) and a 'method' (text)"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 3}\n',                 1, -32600, "a request has an 'id' (text or a whole number) and a 'method' (text)"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}\n', 1, -32602, "ping: 'params' must be an object"),
    (b'{"jsonrpc": "2.0", "id": "a", "method": "tools/list"}\n',  "a", -32600, NO_ENVELOPE),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}\n', 1, -32602, "initialize: 'protocolVersion' must be text"),
    (b" " * (MAX_MESSAGE + 10) + b"x\n",                         None, -32600, "a message may have at most 16 MiB"),
]  # fmt: skip


@pytest.fixture
def peer(project: Path) -> Any:
    with Peer(project, revision=STATELESS) as peer:
        yield peer


def test_a_bad_line_gets_a_clear_error_and_the_server_goes_on(peer: Peer) -> None:
    for line, id, code, message in BAD:
        peer.write(line)
        error = {"code": code, "message": message}
        assert peer.line() == {"jsonrpc": "2.0", "id": id, "error": error}
    peer.write(b'\n  \n{"jsonrpc": "2.0", "method": "notifications/unknown"}\n')
    peer.write(b'{"jsonrpc": "2.0", "id": 9, "result": {}}\n')
    assert peer.ask("prompts/list")["resultType"] == "complete"


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    # method, params, code, message; the revision is the newest
    ("nothing/here",   {},                             -32601, "there is no method 'nothing/here' here"),
    ("tools/call",     {},                             -32602, "tools/call: 'name' must be text"),
    ("tools/call",     {"name": "x", "arguments": []}, -32602, "tools/call: 'arguments' must be an object"),
    ("tools/call",     {"name": "x"},                  -32602, "Unknown tool: x"),
    ("tools/list",     {"cursor": "2"},                -32602, "tools/list: there is only one page"),
    ("prompts/get",    {"name": "x"},                  -32602, "Unknown prompt: x"),
    ("initialize",     {},                             -32601, "revision 2026-07-28 has no initialize"),
    ("ping",           {},                             -32601, "revision 2026-07-28 has no ping"),
]  # fmt: skip


def test_a_wrong_request_gets_the_code_of_the_protocol(peer: Peer) -> None:
    for method, params, code, message in WRONG:
        assert peer.ask(method, params) == {"code": code, "message": message}


def test_the_newest_revision_checks_the_envelope(peer: Peer) -> None:
    def ask(meta: dict[str, Any]) -> Any:
        peer.send(
            {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
        )
        return peer.answer(1)

    assert ask({**META, REVISION: "2030-01-01"})["error"] == {
        "code": -32022,
        "message": "this revision is not supported in _meta",
        "data": {"supported": [STATELESS], "requested": "2030-01-01"},
    }
    assert ask({REVISION: STATELESS})["error"] == {
        "code": -32602,
        "message": f"server/discover: _meta needs {CAPABILITIES}",
    }
    found = ask(META)["result"]
    assert found["supportedVersions"] == [STATELESS, "2025-11-25", "2025-06-18"]
    assert (found["resultType"], found["ttlMs"], found["cacheScope"]) == ("complete", 0, "private")
    assert found["_meta"] == {
        "io.modelcontextprotocol/serverInfo": {
            "name": "plait",
            "title": "Plait",
            "version": __version__,
        }
    }


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25")],
)
def test_a_client_that_begins_with_initialize_gets_a_revision(
    project: Path, asked: str, agreed: str
) -> None:
    with Peer(project, revision=asked) as peer:
        assert peer.began["protocolVersion"] == agreed
        tasks: Any = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        assert peer.began["capabilities"] == {
            "tools": {},
            "prompts": {},
            "resources": {},
            **({"tasks": tasks} if agreed == "2025-11-25" else {}),
        }
        assert "_meta" not in peer.ask("tools/list")
        assert peer.ask("ping") == {}
        answer = peer.ask("server/discover")
        assert answer == {
            "code": -32601,
            "message": "server/discover belongs to revision 2026-07-28",
        }


def test_a_request_with_the_id_of_another_one_is_refused(trusted: Path) -> None:
    with Peer(trusted) as peer:
        peer.begin("tools/call", {"name": "flow__ledger"}, progressToken=1)
        peer.wait_for_progress(2)
        peer.send({"jsonrpc": "2.0", "id": peer._last, "method": "ping"})
        error = {"code": -32600, "message": "another request with this id is being performed"}
        assert peer.answer(peer._last)["error"] == error


def test_a_server_without_input_ends(project: Path) -> None:
    peer = Peer(project, revision=STATELESS)
    assert peer.leave() == b""
    assert peer.process.returncode == 0


def test_a_client_that_sends_and_closes_gets_its_answers(project: Path) -> None:
    given = '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}\n'
    given += '{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n'
    ended = subprocess.run(
        [sys.executable, "-m", "plait", "mcp"], cwd=project, input=given.encode(), capture_output=True, check=True
    )  # fmt: skip
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [1, 2]


def test_the_answers_are_lines_of_json_even_if_a_tool_prints_odd_bytes(trusted: Path) -> None:
    with Peer(trusted) as peer:
        made = peer.call("core__shell", command="printf 'a\\377\\342\\200\\250b'")
        assert json.dumps(made)
        assert made["isError"] is False
