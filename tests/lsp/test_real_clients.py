"""Editors themselves: Neovim and the client of VS Code with `plait lsp`, and the server that VS Code has for YAML with our schemas.

Neovim is not among the tools of the tests: where it is missing, its test is skipped and says so.  The others
come from the npm registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lsp.client import Client
from npm import LANGUAGE_CLIENT, YAML_SERVER, npm_folder, run_node
from plait.schema.json_schema import json_schema

FLOW = "steps:\n  - shell: echo ${nope}\n    tmeout: 3\n"

LUA = """\
vim.cmd('edit flow.yaml')
local client = vim.lsp.start_client({ name = 'plait', cmd = vim.fn.json_decode(vim.env.SERVER) })
vim.lsp.buf_attach_client(0, client)
vim.wait(60000, function() return #vim.diagnostic.get(0) > 0 end, 20)
local lines = {}
for _, one in ipairs(vim.diagnostic.get(0)) do
  table.insert(lines, one.lnum .. ':' .. one.col .. '-' .. one.end_col .. ' ' .. vim.split(one.message, '\\n')[1])
end
local place = { textDocument = { uri = vim.uri_from_bufnr(0) }, position = { line = 2, character = 4 } }
for _, one in pairs(vim.lsp.buf_request_sync(0, 'textDocument/completion', place, 60000)) do
  for _, item in ipairs(one.result) do
    if item.label == 'timeout' then table.insert(lines, 'completes ' .. item.label) end
  end
end
vim.fn.writefile(lines, 'found.txt')
vim.cmd('qa!')
"""


def test_neovim_shows_the_findings_and_completes(tmp_path: Path) -> None:
    editor = shutil.which("nvim")
    if editor is None:
        pytest.skip("Neovim is not installed (Debian: apt install neovim)")
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "try.lua").write_text(LUA)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SERVER": json.dumps([sys.executable, "-m", "plait", "lsp"]),
    }
    command = [editor, "--clean", "--headless", "+luafile try.lua"]
    subprocess.run(
        command, cwd=tmp_path, env=environment, timeout=120, capture_output=True, check=True
    )
    assert (tmp_path / "found.txt").read_text().splitlines() == [
        "1:16-23 unknown variable 'nope'",
        "2:4-10 'tmeout' is not a field of a step",
        "completes timeout",
    ]


VSCODE = """\
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import protocol from "vscode-languageserver-protocol/node.js";

const { command, folder } = JSON.parse(readFileSync(0, "utf8"));
const server = spawn(command[0], command.slice(1), { cwd: folder, stdio: ["pipe", "pipe", "inherit"] });
const client = protocol.createProtocolConnection(
  new protocol.StreamMessageReader(server.stdout), new protocol.StreamMessageWriter(server.stdin));
const reported = new Promise((done) =>
  client.onNotification(protocol.PublishDiagnosticsNotification.type, (found) => done(found.diagnostics)));
client.listen();
const rootUri = `file://${folder}`;
await client.sendRequest(protocol.InitializeRequest.type, { processId: process.pid, rootUri, capabilities: {} });
client.sendNotification(protocol.InitializedNotification.type, {});
const uri = `${rootUri}/flow.yaml`;
const text = readFileSync(`${folder}/flow.yaml`, "utf8");
client.sendNotification(protocol.DidOpenTextDocumentNotification.type,
  { textDocument: { uri, languageId: "yaml", version: 1, text } });
const at = (type, line, character) => client.sendRequest(type, { textDocument: { uri }, position: { line, character } });
const labels = async (line, character) =>
  (await at(protocol.CompletionRequest.type, line, character)).map((item) => item.label);
const answer = {
  diagnostics: (await reported).map((one) => [one.range.start, one.message.split("\\n")[0]]),
  hover: (await at(protocol.HoverRequest.type, 4, 19)).contents.value,
  definition: (await at(protocol.DefinitionRequest.type, 4, 19)).range.start,
  names: (await labels(4, 19)).includes("who"),
  tools: (await labels(5, 21)).includes("core/file/read"),
};
await client.sendRequest(protocol.ShutdownRequest.type);
const ended = new Promise((done) => server.on("exit", done));
client.sendNotification(protocol.ExitNotification.type);
console.log(JSON.stringify({ ...answer, "exit code": await ended }));
"""


def test_the_client_of_vs_code_gets_an_answer_to_everything(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(
        "vars:\n  who: Ada\nsteps:\n  - shell: ls\n  - shell: echo ${who}\n  - tool: core/file/rea\n"
    )
    given = {"command": [sys.executable, "-m", "plait", "lsp"], "folder": str(tmp_path)}
    printed = run_node(npm_folder(LANGUAGE_CLIENT), VSCODE, json.dumps(given))
    assert json.loads(printed) == {
        "diagnostics": [[{"line": 5, "character": 10}, "there is no tool 'core/file/rea'"]],
        "hover": "`${who}`: known in flow: declared under vars\n\n**who**: declared under vars\n\nbound as one word",
        "definition": {"line": 1, "character": 2},
        "names": True,
        "tools": True,
        "exit code": 0,
    }


class YamlClient(Client):
    """The same client for another server."""

    def __init__(self, folder: Path, command: str, settings: dict[str, Any]) -> None:
        self.settings = settings
        super().__init__(folder, [command, "--stdio"])

    def receive(self) -> dict[str, Any]:
        """The next message that is no request of the server; those get their answers."""
        while "id" in (message := super().receive()) and "method" in message:
            is_question = message["method"] == "workspace/configuration"
            asked = message["params"]["items"] if is_question else ()
            answer = [self.settings.get(one.get("section"), None) for one in asked]
            self.send({"id": message["id"], "result": answer if is_question else None})
        return message


@pytest.mark.parametrize("way", ["modeline", "settings"])
def test_an_editor_for_yaml_takes_the_schema_and_offers_what_it_should(
    tmp_path: Path, way: str
) -> None:
    server = str(npm_folder(YAML_SERVER) / "node_modules/.bin/yaml-language-server")
    (tmp_path / "workflow.json").write_text(json.dumps(json_schema("workflow")))
    line = "# yaml-language-server: $schema=workflow.json\n" if way == "modeline" else "#\n"
    schemas = {} if way == "modeline" else {f"file://{tmp_path}/workflow.json": "flows/*.yaml"}
    settings = {
        "yaml": {
            "validate": True,
            "completion": True,
            "hover": True,
            "schemas": schemas,
            "schemaStore": {"enable": False},
        }
    }
    name = "flow.yaml" if way == "modeline" else "flows/flow.yaml"
    with YamlClient(tmp_path, server, settings) as client:
        client.notify("workspace/didChangeConfiguration", {"settings": settings})
        client.open(name, f"{line}steps:\n  - shell: ls\n    tmeout: 3\n")
        while not (found := client.diagnostics(name)):
            pass
        assert [(one["range"]["start"], one["message"]) for one in found] == [
            ({"line": 3, "character": 4}, "Property tmeout is not allowed.")
        ]
        client.change(name, {"text": f"{line}steps:\n  - shell: ls\n    \n"})
        labels = {one["label"] for one in client.at("completion", name, 3, 4)["items"]}
        assert {"timeout", "when", "capture_output"} <= labels
        assert not {"auto_commit", "analysis"} & labels  # refused, and without effect
