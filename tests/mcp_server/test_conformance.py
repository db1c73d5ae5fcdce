"""The official conformance suite from npm against `plait mcp --http`, in each revision.

The suite calls tools, prompts and resources by names of its own, and sends no password.  So the project
has the tools that it names, as far as a tool of Plait can answer like that, and a relay adds the token
and puts the names of Plait in place of others.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from mcp_server.relay import Rules, relay
from npm import CONFORMANCE, NODE, node, npm_folder
from plait.cli import main

pytest.importorskip("uvicorn", reason="plait mcp --http needs: pip install 'plait-flow[web]'")

TOOL = '''\
"""A tool that the suite calls."""

__version__ = "1.0.0"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Answers as the suite expects"

CONFIG_SCHEMA = {schema}


def execute(params, project_path):
    {line}
'''
GRAPH = """\
version: "1.0.0"
tool_type: graph
description: A flow that the suite calls
start: one
config_schema:
  type: object
  properties:
    seconds: {type: number, default: 1.5}
    label: {type: string, default: ""}
nodes:
"""
FUNCTIONS: dict[str, tuple[str, dict[str, object]]] = {
    # name: what it does, the properties of its schema
    "test_simple_text": ('return "This is a simple text response for testing."', {}),
    "test_error_handling": ('raise RuntimeError("This tool intentionally returns an error for testing")', {}),
    "test_logging_tool": ('return "it has nothing to log"', {}),
    "test_streaming_elicitation": ('return "nobody was asked"', {}),
    "test_elicitation": ('return "somebody was asked"', {"message": {"type": "string"}}),
    "test_input_required_result_elicitation": ('return "somebody was asked"', {}),
    "greet": ('return f"Hello, {params[\'name\']}!"', {"name": {"type": "string"}}),
    "confirm_delete": ('return "nobody was asked"', {"filename": {"type": "string"}}),
    "for_a_region": ("return params", {"region": {"type": "string", "x-mcp-header": "Region"}}),
}  # fmt: skip
FLOWS = {
    "test_tool_with_progress": "  one: {shell: ':', next: two}\n  two: {shell: ':', next: three}\n  three: {shell: ':'}\n",
    "slow_compute": "  one: {shell: 'sleep ${inputs.seconds}; sleep 0.5; echo done'}\n",
    "failing_job": "  one: {shell: 'sleep ${inputs.seconds}; exit 3'}\n",
}
DIRECTIVES = {
    "test_simple_prompt": "---\ndescription: Without inputs\n---\nThis is a simple prompt for testing.\n",
    "test_prompt_with_arguments": "---\ndescription: With inputs\ninputs:\n  arg1: {type: string}\n  arg2: {type: string}\n"
    "---\nPrompt with arguments: {input:arg1}, {input:arg2}\n",
}  # fmt: skip
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
ASKING = ("test_elicitation", "test_input_required_result_elicitation")
"""Tools that are called while the project is not trusted."""
ANSWERS = ('{"username":"testuser","email":"test@example.com"}', '{"name":"Alice"}')
"""What the user of the suite enters into a form."""
REVISIONS = {
    "2026-07-28": ["--requirements", "2026-07-28"],  # with the extension for tasks
    "2025-11-25": ["--suite", "all", "--spec-version", "2025-11-25"],
    "2025-06-18": ["--suite", "all", "--spec-version", "2025-06-18"],
}
QUESTIONS = {
    # revision: the checks that need a question to the user
    "2026-07-28": (
        "sep-2322-elicitation-incomplete", "sep-2322-elicitation-complete",
        "sep-2322-missing-response-rerequests", "sep-2322-result-type-included",
    ),
    "2025-11-25": ("tools-call-elicitation",),
    "2025-06-18": ("tools-call-elicitation",),
}  # fmt: skip
LEFT_OUT = {
    # why: checks of the suite
    "a tool of Plait answers with text and data": (
        "tools-call-image", "tools-call-audio", "tools-call-mixed-content", "tools-call-embedded-resource",
    ),
    "a directive is one text": ("prompts-get-with-image", "prompts-get-embedded-resource"),
    "what a run leaves is read as text": ("resources-read-binary",),
    "the server does not declare that it can do this": (
        "completion-complete", "logging-set-level", "tools-call-with-logging", "tools-call-sampling",
        "resources-subscribe", "resources-unsubscribe",
        "sep-2322-sampling-incomplete", "sep-2322-list-roots-incomplete",
    ),
    "a form of Plait has one field: the answer to its question": (
        "elicitation-sep1034-general", "elicitation-sep1330-general",
    ),
    "tools ask, prompts do not, and only the user is asked, neither a model nor for folders": (
        "sep-2322-non-tool-incomplete", "sep-2322-multiple-inputs-incomplete",
        "sep-2322-respect-client-capabilities",
    ),
    "requestState holds only what the client has answered: nothing in the first round, and no secret": (
        "sep-2322-multi-round-r1", "sep-2322-request-state-incomplete", "sep-2322-reject-tampered-state",
    ),
    "a task asks after its server has died in it, and what was answered is not its result: see test_tasks": (
        "sep-2663-tasks-get-status-input-required", "tasks-mrtr-tasks-update-resumes",
        "tasks-mrtr-partial-fulfillment", "sep-2663-mrtr-synchronous-before-task-creation",
    ),
    "no tool of Plait refuses a client for what the client cannot do": (
        "sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
        "sep-2663-server-returns-missing-capability-when-required",
    ),
    "a run ends with a result, never with an error of the protocol": ("sep-2663-tasks-get-status-failed",),
}  # fmt: skip


@pytest.fixture
def url(project: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    tools, directives = project / ".ai/tools", project / ".ai/directives"
    for name, (line, properties) in FUNCTIONS.items():
        schema = {"type": "object", "properties": properties}
        (tools / f"{name}.py").write_text(TOOL.format(line=line, schema=schema))
    given = TOOL.format(line="return params", schema=SCHEMA)
    (tools / "json_schema_2020_12_tool.py").write_text(given)
    for name, nodes in FLOWS.items():
        (tools / f"{name}.yaml").write_text(GRAPH + nodes)
    for name, text in DIRECTIVES.items():
        (directives / f"{name}.md").write_text(text)
    (project / "number.yaml").write_text("steps: [{shell: echo 123}]\n")
    assert main(["trust", "."]) == 0
    assert main(["run", "number.yaml"]) == 0
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)[0]["id"]
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "mcp", "--http", "127.0.0.1:0"],
        cwd=project, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    port = int(re.findall(r":(\d+)/mcp", process.stdout.readline())[0])
    token = process.stdout.readline().strip().removeprefix("Authorization: ")
    names = {f'"{name}"': f'"directive-_{name}"' for name in DIRECTIVES}
    names["test://static-text"] = f"plait://runs/{run}/output"
    names["test://template/123/data"] = f"plait://runs/{run}/log"
    _list_tools(port, token)
    with relay(port, token, Fitting(names)) as url:
        yield url
    process.terminate()
    process.wait(60)
    process.stdout.close()


def _list_tools(port: int, token: str) -> None:
    """The server knows a tool that was offered once, also when the project is no longer trusted."""
    version = "io.modelcontextprotocol/protocolVersion"
    meta = {version: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
    headers |= {"Authorization": token, "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"
    url = f"http://127.0.0.1:{port}/mcp"
    with urlopen(Request(url, json.dumps(asked).encode(), headers), timeout=60) as answer:
        assert set(ASKING) <= {one["name"] for one in json.load(answer)["result"]["tools"]}


class Fitting(Rules):
    """Puts the names of Plait in place of those of the suite.

    The suite has tools that ask its user.  A tool of Plait asks when the project is no longer trusted,
    so the trust is taken back before such a tool is called, and given again before anything else.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._is_trusted = True
        self._key = ""
        """Of the last question of Plait, where the suite says `user_name`."""

    def begin(self, message: dict[str, Any]) -> None:
        if "method" not in message or "id" not in message:
            return  # an answer to a question, or a notification
        params = message.get("params")
        if not isinstance(params, dict):
            return
        is_asked = params.get("name") in ASKING
        if is_asked and "user_name" not in params.get("inputResponses", {}):
            assert main(["trust", "remove", "."]) == 0
            self._is_trusted = False
        elif not is_asked and not self._is_trusted:
            assert main(["trust", "."]) == 0
            self._is_trusted = True

    def request(self, text: str) -> str:
        for theirs, ours in self._names.items():
            text = text.replace(theirs, ours)
        for theirs in ANSWERS:
            text = text.replace(theirs, '{"answer":true}')
        return text.replace('"user_name"', f'"{self._key}"') if self._key else text

    def response(self, text: str) -> str:
        if found := re.search('"(trust:[0-9a-f]+)"', text):
            self._key = found[1]
        return text.replace(f'"{self._key}"', '"user_name"') if self._key else text


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_suite_finds_no_fault(url: str, revision: str, tmp_path: Path) -> None:
    folder = npm_folder(CONFORMANCE, NODE)
    program = folder / "node_modules" / ".bin" / "conformance"
    found = tmp_path / "found"
    subprocess.run(
        [node(folder), str(program), "server", "--url", url, *REVISIONS[revision], "-o", str(found)],
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    checks = [one for file in found.glob("*/checks.json") for one in json.loads(file.read_text())]
    assert len(checks) > 50  # it went to its end
    failed = {one["id"]: one.get("errorMessage") for one in checks if one["status"] == "FAILURE"}
    left_out = {id for ids in LEFT_OUT.values() for id in ids}
    assert {id: why for id, why in failed.items() if id not in left_out} == {}
    assert {one["id"] for one in checks} & left_out - failed.keys() == set()
    succeeded = {one["id"] for one in checks if one["status"] == "SUCCESS"}
    assert set(QUESTIONS[revision]) <= succeeded - failed.keys()
