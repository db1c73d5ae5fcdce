"""Run shell text in the project, with values that can never become code."""

from __future__ import annotations

from typing import Any

import plait
from plait.tool_api import ProcessError, tool_environment

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core"
__tool_description__ = (
    "Run a shell command in the project's folder. Write data as ${name} and give it in values: "
    "it is bound to a variable and never read as shell text."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["command"],
    "properties": {
        "command": {
            "type": "string",
            "minLength": 1,
            "x-code": "shell",
            "x-code-values": "values",
            "description": "Shell text, with ${name} for each value",
        },
        "values": {"type": "object", "default": {}, "description": "The values by name"},
        "shell": {
            "enum": ["sh", "dash", "bash"],
            "default": "sh",
            "description": "Which shell runs it",
        },
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 3600,
            "default": 120,
            "description": "Seconds",
        },
    },
}
# Above the longest timeout of a command: the shell, not the wait for it, ends first.
CONFIG = {"timeout": 3700}
TOOK_TOO_LONG = 124
"""The exit code of a command whose time was up, as `timeout` gives it."""


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    try:
        finished = plait.sh(
            params["command"],
            params.get("values", {}),
            shell=params.get("shell", "sh"),
            cwd=project_path,
            env=tool_environment(),
            timeout=params.get("timeout", 120),
            strict=True,
        )
    except ProcessError as error:
        if not isinstance(error.ended, plait.ShellResult):
            raise
        return {"success": False, "error": str(error), **_output(error.ended, TOOK_TOO_LONG)}
    result = _output(finished, finished.exit_code)
    if finished.exit_code != 0:
        return {
            "success": False,
            "error": f"the command ended with exit code {finished.exit_code}",
            **result,
        }
    return result


def _output(ended: plait.ShellResult, exit_code: int) -> dict[str, Any]:
    return {"stdout": ended.stdout, "stderr": ended.stderr, "exit_code": exit_code}
