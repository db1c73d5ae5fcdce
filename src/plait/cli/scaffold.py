"""The files of a new tool and of a new project. They run at once.

No file is overwritten: if one exists, none is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from plait.cli.arguments import require_choice
from plait.cli.templates import SETTINGS
from plait.cli.trust_prompt import trust_new_files
from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.tools.spaces import normalize_id
from plait.tools.trust.decisions import project_files as files_to_trust

if TYPE_CHECKING:
    from plait.tools.prepare import Toolbox

SCRIPT: Final = '''\
"""Greet somebody: parameters come as JSON on stdin, the result goes as JSON to stdout."""

import json
import sys

__version__ = "0.1.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "Greet somebody"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "default": "world", "description": "Who is greeted"}},
    "additionalProperties": False,
}


def main() -> None:
    params = json.load(sys.stdin)
    json.dump({"greeting": f"Hello, {params['name']}!"}, sys.stdout)


if __name__ == "__main__":
    main()
'''

FUNCTION: Final = '''\
"""Greet somebody, in the process of Plait itself: quick, with Plait's own Python and modules."""

from typing import Any

__version__ = "0.1.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Greet somebody"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "default": "world", "description": "Who is greeted"}},
    "additionalProperties": False,
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    return {"greeting": f"Hello, {params['name']}!"}
'''

BASH: Final = """\
#!/bin/bash
# Greet somebody: a parameter `name` is "$PARAM_NAME", all of them are JSON on stdin, $1 is the project.
# ---
# version: "0.1.0"
# tool_type: bash
# executor_id: core/runtimes/bash/bash
# description: Greet somebody
# config_schema:
#   type: object
#   properties:
#     name: {type: string, default: world, description: Who is greeted}
#   additionalProperties: false
# ---
set -euo pipefail

printf 'Hello, %s!\\n' "$PARAM_NAME"
"""

NODE: Final = """\
// Greet somebody: parameters come as JSON on stdin, the result goes as JSON to stdout.
import { readFileSync } from "node:fs";

const __version__ = "0.1.0";
const __tool_type__ = "javascript";
const __executor_id__ = "core/runtimes/node/node";
const __tool_description__ = "Greet somebody";

const CONFIG_SCHEMA = {
  type: "object",
  properties: { name: { type: "string", default: "world", description: "Who is greeted" } },
  additionalProperties: false,
};

const params = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify({ greeting: `Hello, ${params.name}!` }));
"""

HTTP: Final = """\
# Get a page: a value fills a placeholder of the url, and can never change its host.
version: "0.1.0"
tool_type: http
executor_id: core/primitives/http_client
description: Get a page of example.org

config_schema:
  type: object
  properties:
    page: {type: string, minLength: 1, default: index.html, description: Which page}
  additionalProperties: false

config:
  method: GET
  url: "https://example.org/{page}"
  timeout: 30
"""

RUNTIMES: Final[Mapping[str, tuple[str, str]]] = {
    # name: extension, contents
    "python": (".py", SCRIPT),
    "function": (".py", FUNCTION),
    "bash": (".sh", BASH),
    "node": (".mjs", NODE),
    "http": (".yaml", HTTP),
}


def new_tool(tools: Toolbox, name: str, runtime: str | None) -> None:
    """Write a tool to the project, and print the next command."""
    if runtime is None:
        what = f"plait tools new: --runtime is missing; runtimes: {', '.join(RUNTIMES)}"
        raise InputError(
            what, fix=f"for example plait tools new {name} --runtime python", code="arguments"
        )
    extension, contents = RUNTIMES[require_choice("runtime", runtime, tuple(RUNTIMES))]
    item_id = normalize_id(name)
    root = tools.spaces.project or os.getcwd()
    alone = not files_to_trust(root)
    standing = tools.spaces.find(item_id)
    if standing is not None and standing.space.name == "project":
        raise InputError(
            f"there is a tool '{item_id}' already",
            standing.path,
            "choose another name",
            code="exists",
        )
    relative = f".ai/tools/{item_id}{extension}"
    write_new(root, {relative: contents})
    print(f"wrote {os.path.join(root, relative)}")
    if standing is not None:
        print(f"it shadows {standing.path} ({standing.space})")
    first = trust_new_files(tools.trust, alone=alone, origin="plait tools new")
    if first is not None:
        print(f"it runs after you trust it:  {first}")
    print(f"call it:  plait call {item_id}")


def require_new(root: str, files: Iterable[str]) -> None:
    """Raise an InputError that names all of these files that exist."""
    there = [relative for relative in files if os.path.lexists(os.path.join(root, relative))]
    if there:
        raise InputError.together(
            Problem(
                "this file exists",
                os.path.join(root, relative),
                "move it away",
                code="exists",
            )
            for relative in there
        )


def write_new(root: str, files: Mapping[str, str]) -> None:
    """Write all of these files, or none: an error names each one that exists."""
    require_new(root, files)
    for relative, contents in files.items():
        path = os.path.join(root, relative)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(contents)
        except OSError as error:
            what = f"this file cannot be written: {error.strerror}"
            raise InputError(
                what, path, "look at the folder's permissions", code="not-written"
            ) from None


# ── a project ────────────────────────────────────────────────────────────

FLOW: Final = """\
# A workflow: its steps run in order; a value is data, never code.
name: hello

env:
  greeting: Hello

steps:
  - shell: date +%A
    capture_output: day
  - shell: "echo '${greeting} on ${day}, ${env.USER:-you}!'"
"""

GRAPH: Final = """\
# A graph: a node calls a tool, assigns to the state, and follows the first edge whose condition holds.
name: hello

inputs:
  name: {type: string, default: Ada}

start: greet

nodes:
  greet:
    tool: hello
    params: {name: "${inputs.name}"}
    assign: {greeting: "${result.greeting}"}
    next: look

  look:
    type: gate
    next:
      - {to: done, when: {path: state.greeting, op: contains, value: Hello}}
      - to: greet

  done:
    type: return
    output: ${state.greeting}
"""

DIRECTIVE: Final = """\
---
description: Greet somebody with a tool, and report it
inputs:
  name: {type: string, default: Ada}
permissions: [hello]
limits: {turns: 4, spend: 0.10}
---
Greet {input:name} with the tool, and say in one line what it answered.
"""

DIRECTIVE_RECORDING: Final = """\
# Recorded answers of a model: no server and no key are needed.
- answer:
    text: I call the tool.
    uses:
      - {name: hello, arguments: {name: Ada}}
    usage: {input: 120, output: 18}
- answer:
    text: "The tool answered: Hello, Ada!"
    usage: {input: 160, output: 9}
"""

ENSEMBLE: Final = """\
# An ensemble: tasks of tools and agents; a task starts when the tasks in its context are done.
name: hello

inputs:
  name: {type: string, default: Ada}

agents:
  host: {role: Host, goal: "Welcome {name} warmly"}

tasks:
  - id: greeting
    description: Greet {name}
    tool: hello
    params: {name: "${inputs.name}"}
  - id: welcome
    description: Write a welcome for {name} around the greeting
    expected_output: One sentence
    agent: host
    context: [greeting]
"""

ENSEMBLE_RECORDING: Final = """\
# Recorded answers of a model: no server and no key are needed.
- answer:
    text: Hello, Ada! Come in and take a seat by the window.
    usage: {input: 90, output: 14}
"""

PROVIDER: Final = """\
# The default provider of this project replays recorded answers.  To use a real one:
# PLAIT_PROVIDER=anthropic plait run …, with its key in ANTHROPIC_API_KEY.
extends: replay
file: .ai/hello.replay.yaml
"""

RECORDING: Final = ".ai/hello.replay.yaml"
FLOWS: Final[Mapping[str, Mapping[str, str]]] = {
    # kind: its files, the flow first
    "workflow": {"hello.yaml": FLOW},
    "graph": {"hello.yaml": GRAPH},
    "directive": {"hello.md": DIRECTIVE, RECORDING: DIRECTIVE_RECORDING},
    "ensemble": {"hello.yaml": ENSEMBLE, RECORDING: ENSEMBLE_RECORDING},
}


def project_files(kind: str) -> dict[str, str]:
    """The files of a new project, the flow last; a YAML flow names its schema for editors."""
    (flow, text), *others = FLOWS[kind].items()
    files = {".ai/tools/hello.py": SCRIPT, ".ai/plait.yaml": SETTINGS}
    if others:
        files |= {**dict(others), ".ai/config/providers/default.yaml": PROVIDER}
    if flow.endswith(".yaml"):
        schema = f".ai/schema/{kind}.json"
        files[schema] = _schema(kind)
        text = f"# yaml-language-server: $schema={schema}\n{text}"
    return {**files, flow: text}


def _schema(kind: str) -> str:
    import json

    from plait.schema.json_schema import json_schema

    return json.dumps(json_schema(kind), separators=(",", ":")) + "\n"


STATE: Final = ".ai/state/"


def ignore_state(root: str) -> bool:
    """Add the state of runs to .gitignore; False if it is already there."""
    path = os.path.join(root, ".gitignore")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            standing = file.read()
    except FileNotFoundError:
        standing = ""
    if re.search(r"^/?\.ai/state/?$", standing, re.MULTILINE):
        return False
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{'' if standing.endswith(chr(10)) or not standing else chr(10)}{STATE}\n")
    return True
