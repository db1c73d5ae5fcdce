"""An agent in the world: tools of real MCP servers, and providers that fail in the middle of a run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.providers.talk import Reply, events, events_until, fixture, reply, serving
from lang.graph.graphs import graph_place, tool, trusted
from plait.app.runs import flow_runs
from plait.app.tool_catalog import offers
from plait.app.toolbox import toolbox
from plait.core.errors import PlaitError, TrustError
from runs.stories import Place
from runs.test_subflows import DEADLY, directive, ledger, script, use

TIMES = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
CONVERT = {
    "version": "0.1.0",
    "executor_id": "core/runtimes/mcp/stdio",
    "description": "Convert a time from one time zone to another",
    "config_schema": {
        "type": "object",
        "required": list(TIMES),
        "properties": {name: {"type": "string"} for name in TIMES},
        "additionalProperties": False,
    },
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = graph_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    made.write("dies", "nothing")
    tool(made, "demo/mark", DEADLY)
    trusted(made)
    return made


# ── MCP ──────────────────────────────────────────────────────────────────


def with_clock(place: Place) -> None:
    """An agent that may ask a real server for the time, and then leaves a mark."""
    program = shutil.which("mcp-server-time", path=os.path.dirname(sys.executable))
    assert program is not None, "mcp-server-time is missing: pip install -e '.[dev]'"
    server = {"name": "time", "command": program}
    place.write(
        ".ai/tools/convert.yaml",
        {**CONVERT, "config": {"server": server, "tool_name": "convert_time"}},
    )
    directive(place, "clock", "permissions: [convert, demo/mark]", "When is it?")
    trusted(place)
    script(
        place,
        ("When is it?", use("convert", **TIMES)),
        ('{"line":"m"}', "At nine."),
        (None, use("demo__mark", line="m")),
    )


TINY = [sys.executable, str(Path(__file__).parent.parent / "data" / "mcp" / "tiny.py")]
NUMBERS: dict[str, Any] = {
    "a": {"title": "A", "type": "integer"},
    "b": {"title": "B", "type": "integer"},
}


def tiny(place: Place, args: list[str] | None = None, config: Any = None, **more: Any) -> None:
    """A tool `add` of a server whose file says nothing of its parameters."""
    command, *given = TINY
    server = {"name": "tiny", "command": command, "args": [*given, *(args or [])]}
    head = {"version": "0.1.0", "executor_id": "core/runtimes/mcp/stdio", **more}
    place.write(
        ".ai/tools/add.yaml",
        {**head, "config": {"server": server, "tool_name": "add", **(config or {})}},
    )
    trusted(place)


def test_an_mcp_tool_is_offered_as_its_server_describes_it_once_it_is_approved(
    place: Place,
) -> None:
    tiny(place)
    for patterns in (("add",), ("ad*",)):
        with pytest.raises(TrustError, match="has not been approved"):
            offers(toolbox(place.root), patterns)
        assert [
            one.tool_id for one in offers(toolbox(place.root), patterns, ask_servers=False)
        ] == ["add"]
    assert place.plait("trust", "mcp", "tiny", "add").returncode == 0
    [offer] = offers(toolbox(place.root), ("ad*",))
    assert offer.description == "Add two numbers."
    assert (offer.schema["properties"], offer.schema["required"]) == (NUMBERS, ["a", "b"])


OWN = {"type": "object", "required": ["a"]}
KNOWN_BY_FILE = [
    # what the file says                                                description            schema
    ({"description": "Sum"},                                            "Sum",                 None),
    ({"description": "Sum", "config_schema": OWN},                      "Sum",                 OWN),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "description", "schema"), KNOWN_BY_FILE)
def test_what_the_file_of_an_mcp_tool_says_counts_more(
    place: Place, fields: Any, description: str, schema: Any
) -> None:
    tiny(place, **fields)
    assert place.plait("trust", "mcp", "tiny", "add").returncode == 0
    [offer] = offers(toolbox(place.root), ("add",))
    assert offer.description == description
    assert offer.schema == schema if schema else offer.schema["properties"] == NUMBERS


def test_a_parameter_that_the_file_of_an_mcp_tool_gives_is_not_asked_of_a_model(
    place: Place,
) -> None:
    tiny(place, config={"fixed_params": {"b": 2}})
    assert place.plait("trust", "mcp", "tiny", "add").returncode == 0
    [offer] = offers(toolbox(place.root), ("add",))
    assert (offer.schema["properties"], offer.schema["required"]) == ({"a": NUMBERS["a"]}, ["a"])


def test_a_server_that_parameters_choose_is_asked_when_they_are_there(place: Place) -> None:
    tiny(
        place,
        ["{zone}"],
        config_schema={"type": "object", "properties": {"zone": {"type": "string"}}},
    )
    [offer] = offers(toolbox(place.root), ("add",))
    assert list(offer.schema["properties"]) == ["zone"]


def test_a_server_that_is_not_there_keeps_only_those_from_beginning_who_name_its_tool(
    place: Place,
) -> None:
    broken = {"server": {"name": "tiny", "command": str(place.root / "nowhere")}}
    tiny(place, config=broken)
    assert offers(toolbox(place.root), ("ad*",)) == ()
    with pytest.raises(PlaitError, match="tiny"):
        offers(toolbox(place.root), ("add",))


def test_an_mcp_tool_is_called_by_an_agent_once_it_is_approved_and_not_again_after_a_kill(
    place: Place,
) -> None:
    with_clock(place)
    refused = place.plait("run", "directive:clock")
    assert refused.returncode == 3
    assert "turn 1" not in refused.stdout, "nothing is asked, and paid, before"
    assert (
        "the tool 'convert_time' of the MCP server 'time' has not been approved" in refused.stdout
    )
    assert "plait trust mcp time convert_time" in refused.stdout
    assert place.plait("trust", "mcp", "time", "convert_time").returncode == 0
    place.write("dies", "m")
    run = flow_runs(str(place.root))[0].id
    assert (
        place.plait("resume", run).returncode == -9
    )  # behind the call, before the mark is recorded
    place.write("dies", "nothing")
    ended = place.resume(run)
    assert (ended.result.status, ended.value["output"], ended.message) == ("done", "At nine.", "")
    assert ended.finished["agent/turn:1.call:1"].replayed
    call: Any = ended.outcome("agent/turn:1.call:1")
    assert json.loads(call.value["output"])["time_difference"] == "+9.0h"
    assert ledger(place) == ["m", "m"]


# ── providers that fail ──────────────────────────────────────────────────


def wants_mark() -> Reply:
    called = {"name": "demo__mark", "arguments": json.dumps({"line": "x"})}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": called}],
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return reply({"id": "1", "model": "m", "choices": [choice], "usage": usage})


WHOLE = fixture("chat_completions", "stream.sse")
FAULTS = [
    # what the server does                       reply                                            kind
    ("too many requests", reply({"error": {"message": "slow down"}}, 429),                        "rate_limit"),
    ("an error of its own", reply(b"oops", 500),                                                  "server_error"),
    ("a stream that breaks off", events_until(WHOLE[: len(WHOLE) // 2]),                          "network"),
    ("JSON that is none", reply(b'{"choices": [{"mess'),                                          "server_error"),
    ("a stream of JSON that is none", events(b'data: {"choices": [{"del\n\ndata: [DONE]\n\n'),    "server_error"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "fault", "kind"), FAULTS, ids=[row[0] for row in FAULTS])
def test_after_a_fault_of_the_provider_nothing_that_is_recorded_is_paid_for_again(
    what: str, fault: Reply, kind: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(".ai/config/providers/openai.yaml", "extends: openai\nretry: {attempts: 1}\n")
    directive(place, "mark", "permissions: [demo/mark]\nlimits: {turns: 3}", "Mark it.")
    trusted(place)
    monkeypatch.setenv("PLAIT_PROVIDER", "openai")
    monkeypatch.setenv("OPENAI_API_KEY", "k-0123456789")
    with serving(wants_mark(), fault, events(WHOLE)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        place.write("flow.yaml", "steps: [{tool: 'directive:mark'}]")
        failed = place.run()
        assert failed.result.failure is not None, what
        assert (failed.result.failure.kind, len(server.bodies)) == (kind, 2), failed.message
        done = place.resume(failed.result.run)
        assert (done.result.status, done.message, len(server.bodies)) == ("done", "", 3)
        # The question is the one that was not answered, with all that was recorded before it.
        assert server.bodies[2] == server.bodies[1]
        assert place.resume(failed.result.run).result.status == "done"
        assert len(server.bodies) == 3
    assert ledger(place) == ["x"]
