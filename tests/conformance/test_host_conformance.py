"""Document 000 in real runs of hooks, directives and providers, and its stages in their order on one road.

A row of `hosts-000.yaml` is what an author writes in one host, and what arrives behind it: at a tool that
gives back its parameters, or at a server on loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.providers.talk import Server, reply, saying, serving
from lang.graph.graphs import graph_place, tool, trusted
from plait.app.runs import Options, run_flow
from runs.stories import Place, Ran

ROWS = yaml.safe_load((Path(__file__).parent / "hosts-000.yaml").read_text("utf-8"))
ARRIVED = (
    "import json, os\n"
    "def execute(params, project_path):\n"
    "    with open(os.path.join(project_path, 'arrived.jsonl'), 'a') as file:\n"
    "        file.write(json.dumps(params) + '\\n')\n"
    "    return params\n"
)
PROVIDER = """\
family: chat_completions
base_url: ${SERVER}
path: /chat
auth: {type: none}
default_model: m-1
stream: true
"""
BODY = {
    "model": "{model}",
    "messages": "{messages}",
    "tools": "{tools}",
    "n": "{max_tokens}",
    "t": "{temperature}",
    "s": "{stream}",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = graph_place(tmp_path, monkeypatch, PLAIT_PROVIDER="loopback", REGION="eu")
    tool(made, "demo/arrived", ARRIVED)
    return made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(saying("chat_completions", "Fine.")) as running:
        monkeypatch.setenv("SERVER", running.url)
        yield running


def with_provider(place: Place, **more: Any) -> None:
    text = PROVIDER + "body: " + json.dumps({**BODY, **more}) + "\n"
    place.write(".ai/config/providers/loopback.yaml", text)
    trusted(place)


def directed(place: Place, head: str, prompt: str, given: dict[str, Any]) -> None:
    place.write("look.md", f"---\n{head}\n---\n{prompt}\n")
    ran = Ran(run_flow(str(place.root / "look.md"), Options(given), project=str(place.root)), [])
    assert ran.result.status == "done", ran.message


def arrived(place: Place) -> list[Any]:
    return [json.loads(line) for line in place.text("arrived.jsonl").splitlines()]


def rows(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row["about"].replace(" ", "-")) for row in ROWS[name]]
    )


@rows("hooks")
def test_what_a_hook_says_arrives_at_its_tool(
    row: dict[str, Any], place: Place, server: Server
) -> None:
    with_provider(place)
    hook = {
        "id": "told",
        "event": "turn_finished",
        "action": {"primary": "execute", "item_id": "tool:demo/arrived", "params": row["params"]},
    }
    head = f"inputs: {{q: string}}\nmodel: m-1\nlimits: {{turns: 4}}\nhooks: [{json.dumps(hook)}]"
    directed(place, head, "Look at {input:q}.", {"q": row.get("q", "x")})
    assert (arrived(place), len(server.bodies)) == ([row["arrives"]], 1)


@rows("directives")
def test_what_a_directive_says_arrives_at_the_server(
    row: dict[str, Any], place: Place, server: Server
) -> None:
    with_provider(place)
    optional = "{type: string, required: false}"
    head = f"inputs: {{q: string, o: {optional}, d: {optional}}}"
    directed(place, head, row["prompt"], row["given"])
    assert server.asked()["messages"][-1]["content"] == row["sent"]


@rows("bodies")
def test_what_a_provider_says_arrives_at_its_server(
    row: dict[str, Any], place: Place, server: Server
) -> None:
    with_provider(place, extra=row["field"])
    directed(
        place, "model: m-1\noptions: {max_tokens: 7, temperature: 0.5}", "Hi {extra} ${REGION}.", {}
    )
    asked = server.asked()
    assert asked["extra"] == row["arrives"]
    # Whatever the body says, the question is data: nothing in it was filled a second time.
    assert asked["messages"][-1]["content"] == "Hi {extra} ${REGION}."


# ── all stages, one after the other ──────────────────────────────────────

ROAD = """\
inputs: {q: string}
state: {note: "${REGION} {word} {input:q}"}
start: call
nodes:
  call:
    tool: demo/shown
    params: {word: "{input:q}", path: "${state.note}", text: "${REGION} {word}"}
    assign: {printed: "${result.result}"}
"""
SHOWN = {
    "version": "1.0.0",
    "executor_id": "core/primitives/subprocess",
    "config": {
        "command": "printf",
        "args": [
            "%s|",
            "${REGION}",
            "{word}",
            "{path}",
            "{text}",
            "${GONE:-d}",
            "{missing}",
            "x{unknown}",
            "${state.note}",
        ],
    },
    "env_config": {"passes": ["REGION"]},
}
VALUES = ["plain", "${REGION}", "{path}", "{input:q}", "${state.note}", "$${x} {{y}}", "$(id) `id`"]


@pytest.mark.parametrize("value", VALUES)
def test_the_stages_run_in_their_order_and_none_reads_what_another_has_put_in(
    value: str, place: Place
) -> None:
    """Input, context, then beyond the dispatch boundary environment and parameter: each placeholder once."""
    place.write(".ai/tools/demo/shown.yaml", SHOWN)
    trusted(place)
    ran = place.done(ROAD, inputs={"q": value})
    assert ran.value["state"]["printed"].split("|") == [
        "eu",                          # ${VAR} of the config
        value,                         # {param}, which was {input:q} before dispatch
        "${REGION} {word} {input:q}",  # a value of the state, which no later stage looks into
        "${REGION} {word}",            # an upper case name and a brace in params are data behind the boundary
        "d",                           # a default
        "x{unknown}",                  # in a longer text a parameter that is missing is left as it is; alone it is gone
        "${state.note}",               # a dotted path is none of the config's
        "",
    ]  # fmt: skip


def test_a_model_cannot_put_a_placeholder_into_what_a_later_stage_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(".ai/tools/demo/shown.yaml", SHOWN)
    with_provider(place)
    hostile = {"word": "${REGION} {path}", "path": "{input:q}", "text": "${state.note}"}
    called = {"name": "demo__shown", "arguments": json.dumps(hostile)}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": called}],
    }
    wants = reply(
        {"model": "m-1", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    )
    with serving(wants, saying("chat_completions", "Fine.")) as server:
        monkeypatch.setenv("SERVER", server.url)
        directed(
            place,
            "inputs: {q: string}\npermissions: [demo/shown]",
            "Go {input:q}.",
            {"q": "secret"},
        )
        reported = server.asked(1)["messages"][-1]["content"]
    assert reported == "eu|${REGION} {path}|{input:q}|${state.note}|d|x{unknown}|${state.note}|"
