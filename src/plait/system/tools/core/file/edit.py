"""Replace a piece of text in a file of the project."""

from __future__ import annotations

from typing import Any

from plait.system.tools.core.file import _tree
from plait.tool_api import InputError

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/file"
__tool_description__ = (
    "Replace a piece of text in a file of the project by another. The old text must occur exactly "
    "once, "
    "unless all occurrences are to be replaced. Files that can start programs are not changed: "
    "those below "
    ".git, .ai, .venv, node_modules, .github and their like, and .env, plait.lock, *.pth and their "
    "like."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["path", "old", "new"],
    "properties": {
        "path": {
            "type": "string",
            "minLength": 1,
            "description": "The file, relative to the project",
        },
        "old": {
            "type": "string",
            "minLength": 1,
            "description": "The text to replace, exactly as it stands",
        },
        "new": {"type": "string", "description": "The text to put in its place"},
        "all": {"type": "boolean", "default": False, "description": "Replace every occurrence"},
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    root = _tree.root_of(project_path)
    path, old = params["path"], params["old"]
    text = _tree.read_text(root, path)
    count = text.count(old)
    if count == 0:
        raise InputError(
            f"'{path}' does not hold the old text",
            fix="read the file again and copy it exactly",
            code="no-match",
        )
    if count > 1 and not params.get("all", False):
        raise InputError(
            f"'{path}' holds the old text {count} times",
            fix="give more of the text around it, or all: true",
            code="ambiguous",
        )
    _tree.write_text(root, path, text.replace(old, params["new"]))
    return {"path": path, "replaced": count}
