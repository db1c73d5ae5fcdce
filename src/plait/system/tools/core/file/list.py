"""List a folder of the project, or find files by a pattern."""

from __future__ import annotations

from typing import Any

from plait.system.tools.core.file import _tree

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/file"
__tool_description__ = (
    "List a folder of the project; with a pattern such as *.py or src/**/*.ts, "
    "find the files below it that match."
)
__read_only__ = True

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "path": {
            "type": "string",
            "default": ".",
            "description": "The folder, relative to the project",
        },
        "pattern": {
            "type": "string",
            "minLength": 1,
            "description": "A glob on paths below that folder; without '/' it is on names, at any depth",
        },
        "max": {
            "type": "integer",
            "minimum": 1,
            "default": 1000,
            "description": "How many entries at most",
        },
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    root = _tree.root_of(project_path)
    folder = _tree.relative(root, params.get("path", "."))
    pattern = params.get("pattern")
    if pattern is None:
        found = _tree.entries(root, folder)
    else:
        meets = _tree.matching(pattern)
        below = len(folder) + 1 if folder else 0
        found = sorted(
            (entry for entry in _tree.walk(root, folder) if meets(entry.path[below:])),
            key=lambda entry: entry.path,
        )
    most = params.get("max", 1000)
    shown = [{"path": entry.path, "kind": entry.kind, "size": entry.size} for entry in found[:most]]
    return {"entries": shown, "complete": len(found) <= most}
