"""Write a text file of the project, whole."""

from __future__ import annotations

from typing import Any

from plait.system.tools.core.file import _tree

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/file"
__tool_description__ = (
    "Write a text file of the project, replacing what it held; folders on the way are made. "
    "Files that can start programs are not written: those below .git, .ai, .venv, node_modules, "
    ".github and "
    "their like, and .env, .envrc, plait.lock, *.pth and their like."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["path", "content"],
    "properties": {
        "path": {
            "type": "string",
            "minLength": 1,
            "description": "The file, relative to the project",
        },
        "content": {"type": "string", "description": "The whole new content"},
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    content = params["content"]
    created = _tree.write_text(_tree.root_of(project_path), params["path"], content)
    return {
        "path": params["path"],
        "created": created,
        "bytes": len(content.encode("utf-8", "surrogateescape")),
    }
