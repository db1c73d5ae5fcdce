"""Become Claude Code, with the prompt on standard input; no shell stands in between."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any, NoReturn

__executor_id__ = "core/runtimes/python/script"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/agents"
__tool_description__ = (
    "Give a prompt or a slash command to Claude Code and wait for its answer. It works in the "
    "project's "
    "folder with the permissions that are named; PLAIT_CLAUDE may name another program than "
    "'claude'."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prompt"],
    "properties": {
        "prompt": {
            "type": "string",
            "minLength": 1,
            "description": "What it is to do; passed on as it is",
        },
        "directory": {"type": "string", "minLength": 1, "description": "Where it works"},
        "model": {
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@/\\[\\]-]*$",
            "description": "The model, by its name or alias",
        },
        "permission_mode": {
            "enum": ["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"],
            "description": "What it may do without asking",
        },
        "allowed_tools": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[A-Za-z_]"},
            "description": "Tools that it may use without asking, such as Edit or Bash(git log:*)",
        },
        "disallowed_tools": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[A-Za-z_]"},
            "description": "Tools that it may not use",
        },
        "max_turns": {
            "type": "integer",
            "minimum": 1,
            "description": "How often it may act before it ends",
        },
        "system": {"type": "string", "description": "Text that is added to its system prompt"},
    },
}
CONFIG = {"timeout": 3600}
ENV_CONFIG = {
    "passes": [
        "PLAIT_CLAUDE",
        "CLAUDE_CONFIG_DIR",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "HTTPS_PROXY",
        "NO_PROXY",
    ]
}


def become_agent(params: dict[str, Any]) -> NoReturn:
    program = os.environ.get("PLAIT_CLAUDE") or "claude"
    with tempfile.TemporaryFile() as prompt:
        prompt.write(params["prompt"].encode("utf-8", "surrogateescape"))
        prompt.seek(0)
        os.dup2(prompt.fileno(), 0)
    os.chdir(params.get("directory") or ".")
    try:
        os.execvp(program, [program, "-p", "--output-format", "text", *options(params)])
    except OSError as error:
        refuse(program, error.strerror or "it cannot be started")


def options(params: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, option in (
        ("model", "--model"),
        ("permission_mode", "--permission-mode"),
        ("max_turns", "--max-turns"),
        ("system", "--append-system-prompt"),
    ):
        if name in params:
            words += [option, str(params[name])]
    # These take all words that follow, so they come last.
    for name, option in (
        ("allowed_tools", "--allowedTools"),
        ("disallowed_tools", "--disallowedTools"),
    ):
        if params.get(name):
            words += [option, *params[name]]
    return words


def refuse(program: str, why: str) -> NoReturn:
    message = (
        f"the agent '{program}' cannot be started ({why}): install it "
        "(https://code.claude.com, or npm install -g @anthropic-ai/claude-code), "
        "set PLAIT_CLAUDE to where it is, or name another one by 'agent: {tool: …}'"
    )
    print(json.dumps({"success": False, "error": message}))
    sys.exit(127)


if __name__ == "__main__":
    become_agent(json.load(sys.stdin))
