"""Read a text file of the project."""

from __future__ import annotations

from typing import Any

from plait.system.tools.core.file import _tree

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/file"
__tool_description__ = "Read a text file of the project, whole or some of its lines."
__read_only__ = True

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["path"],
    "properties": {
        "path": {
            "type": "string",
            "minLength": 1,
            "description": "The file, relative to the project",
        },
        "offset": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "The first line, counted from 1",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "default": 2000,
            "description": "How many lines at most",
        },
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    text = _tree.read_text(_tree.root_of(project_path), params["path"])
    # Only \n ends a line here, as in every editor: splitlines() would also break at form feeds.
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    first = params.get("offset", 1) - 1
    chosen = lines[first : first + params.get("limit", 2000)]
    return {
        "path": params["path"],
        "content": "".join(chosen),
        "first_line": first + 1,
        "lines": len(chosen),
        "total_lines": len(lines),
        "complete": len(chosen) == len(lines),
    }
