"""The official conformance suite from npm against `plait mcp --http`.

The suite calls tools, prompts and resources by names of its own, and sends no password.  So the project
has the tools that it names, as far as a tool of Plait can answer like that, and a relay adds the token.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
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

CONFIG_SCHEMA = {{"type": "object", "properties": {{}}}}


def execute(params, project_path):
    {line}
'''
SCENARIOS = [
    "server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error",
    "tools-call-with-progress", "json-schema-2020-12", "resources-list", "prompts-list",
    "dns-rebinding-protection",
]  # fmt: skip
"""What does not need contents that Plait has none of: images, audio, logging, sampling, completion.

Left out as well: `server-sse-polling` and `server-sse-multiple-streams`, which send the revision
2025-03-26 in the header of a session of a newer one; forms and prompts of fixed names and texts.
"""
PROGRESS = """\
version: "1.0.0"
tool_type: graph
description: Four steps, each of which is reported
start: one
nodes:
  one: {shell: "sleep 0.05", next: two}
  two: {shell: "sleep 0.05", next: three}
  three: {shell: "sleep 0.05", next: four}
  four: {shell: "sleep 0.05"}
"""
SCHEMA = """\
CONFIG_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
"""


@pytest.fixture
def url(project: Path) -> Iterator[str]:
    tools = project / ".ai/tools"
    answer = 'return "This is a simple text response for testing."'
    (tools / "test_simple_text.py").write_text(TOOL.format(line=answer))
    failure = 'raise RuntimeError("This tool intentionally returns an error for testing")'
    (tools / "test_error_handling.py").write_text(TOOL.format(line=failure))
    (tools / "test_tool_with_progress.yaml").write_text(PROGRESS)
    plain = 'CONFIG_SCHEMA = {"type": "object", "properties": {}}\n'
    with_schema = TOOL.format(line="return params").replace(plain, SCHEMA)
    (tools / "json_schema_2020_12_tool.py").write_text(with_schema)
    assert main(["trust", "."]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "mcp", "--http", "127.0.0.1:0"],
        cwd=project, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    port = int(re.findall(r":(\d+)/mcp", process.stdout.readline())[0])
    token = process.stdout.readline().strip().removeprefix("Authorization: ")
    relay = ThreadingHTTPServer(("127.0.0.1", 0), make_relay(port, token))
    relay.daemon_threads = True
    Thread(target=relay.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{relay.server_port}/mcp"
    relay.shutdown()
    relay.server_close()
    process.terminate()
    process.wait(60)
    process.stdout.close()


def make_relay(port: int, token: str) -> type[BaseHTTPRequestHandler]:
    """Passes requests on with the token; a host or origin that is not ours stays as it is."""

    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            own = self.headers.get("Host", "")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}  # fmt: skip
            here = f":{self.connection.getsockname()[1]}"
            headers = {name: value.replace(here, f":{port}") if name.lower() in ("host", "origin") else value for name, value in headers.items()}  # fmt: skip
            if not own.startswith(("127.0.0.1", "localhost")):
                headers["Host"] = own
            headers["Authorization"] = token
            there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            there.request(self.command, self.path, body or None, headers)
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


def test_the_suite_finds_no_fault(url: str) -> None:
    folder = npm_folder(CONFORMANCE, NODE)
    program = folder / "node_modules" / ".bin" / "conformance"
    said = {}
    for scenario in SCENARIOS:
        ended = subprocess.run(
            [node(folder), str(program), "server", "--url", url, "--scenario", scenario],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if ended.returncode:
            said[scenario] = (ended.stdout + ended.stderr)[-1500:]
    assert said == {}
