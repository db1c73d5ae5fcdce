"""The official conformance suite from npm against `plait mcp --http`, in each revision.

The suite calls tools, prompts and resources by names of its own, and sends no password.  So the project
has the tools that it names, as far as a tool of Plait can answer like that, and a relay adds the token
and puts the names of Plait in place of others.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

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
REVISIONS = {
    "2026-07-28": ["--requirements", "2026-07-28"],  # with the extension for tasks
    "2025-11-25": ["--suite", "all", "--spec-version", "2025-11-25"],
    "2025-06-18": ["--suite", "all", "--spec-version", "2025-06-18"],
}
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
    "forms of the suite: those of Plait ask about steps, edited flows and trust, see test_tasks": (
        "tools-call-elicitation", "elicitation-sep1034-general", "elicitation-sep1330-general",
        "sep-2322-elicitation-incomplete", "sep-2322-multiple-inputs-incomplete", "sep-2322-multi-round-r1",
        "sep-2322-request-state-incomplete", "sep-2322-reject-tampered-state", "sep-2322-result-type-included",
        "sep-2322-respect-client-capabilities", "sep-2322-non-tool-incomplete",
        "sep-2663-tasks-get-status-input-required", "sep-2663-mrtr-synchronous-before-task-creation",
        "tasks-mrtr-tasks-update-resumes", "tasks-mrtr-partial-fulfillment",
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
    relay = ThreadingHTTPServer(("127.0.0.1", 0), make_relay(port, token, names))
    relay.daemon_threads = True
    Thread(target=relay.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{relay.server_port}/mcp"
    relay.shutdown()
    relay.server_close()
    process.terminate()
    process.wait(60)
    process.stdout.close()


def make_relay(port: int, token: str, names: Mapping[str, str]) -> type[BaseHTTPRequestHandler]:
    """Passes requests on with the token; a host or origin that is not ours stays as it is."""

    def rename(text: str, quote: str = "") -> str:
        for theirs, ours in names.items():
            text = text.replace(theirs.strip(quote), ours.strip(quote))
        return text

    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            own = self.headers.get("Host", "")
            body = rename(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "content-length")}  # fmt: skip
            here = f":{self.connection.getsockname()[1]}"
            headers = {name: value.replace(here, f":{port}") if name.lower() in ("host", "origin") else value for name, value in headers.items()}  # fmt: skip
            if not own.startswith(("127.0.0.1", "localhost")):
                headers["Host"] = own
            headers["Authorization"] = token
            there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            if "Mcp-Name" in headers:
                headers["Mcp-Name"] = rename(headers["Mcp-Name"], quote='"')
            there.request(self.command, self.path, body.encode() or None, headers)
            answer = there.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            with contextlib.suppress(OSError, http.client.HTTPException):  # one side has left
                while piece := answer.read1(1 << 16):
                    self.wfile.write(piece)
                    self.wfile.flush()
            there.close()
            self.close_connection = True

        do_GET = do_POST = do_DELETE = do_OPTIONS = pass_on

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Relay


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
