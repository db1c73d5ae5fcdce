"""Search the files of the project for a regular expression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plait.system.tools.core._values import with_values as put_values
from plait.system.tools.core.file import _tree
from plait.tool_api import MAX_FILE, InputError, read_file, value_text

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/file"
__tool_description__ = (
    "Search the project's text files for a regular expression (RE2 syntax) and show the lines that "
    "match."
)
__read_only__ = True

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["pattern"],
    "properties": {
        "pattern": {
            "type": "string",
            "minLength": 1,
            "x-code": "regex",
            "x-code-values": "values",
            "description": "A regular expression in RE2 syntax, with ${name} for each value of values",
        },
        "values": {
            "type": "object",
            "description": "Text by name that is searched for as it is, whatever characters it holds",
        },
        "path": {
            "type": "string",
            "default": ".",
            "description": "A file or folder, relative to the project",
        },
        "glob": {
            "type": "string",
            "minLength": 1,
            "description": "Only files that match, for example *.py",
        },
        "max": {
            "type": "integer",
            "minimum": 1,
            "default": 100,
            "description": "How many lines at most",
        },
    },
}

MAX_LINE = 500
"""Characters shown of a line."""


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    root = _tree.root_of(project_path)
    most = params.get("max", 100)
    pattern = with_values(params["pattern"], params.get("values", {}))
    matches: list[dict[str, Any]] = []
    files = 0
    for path, text in texts(
        root, _tree.relative(root, params.get("path", ".")), params.get("glob")
    ):
        files += 1
        for match in matching_lines(pattern, path, text):
            if len(matches) == most:
                return {"matches": matches, "complete": False, "files": files}
            matches.append(match)
    return {"matches": matches, "complete": True, "files": files}


def texts(root: str, inside: str, glob: str | None) -> Iterator[tuple[str, str]]:
    """Every text file at or below a path."""
    meets = _tree.matching(glob) if glob else None
    if inside and (contents := read_file(root, inside)) is not None:
        yield inside, contents.decode("utf-8", "replace")
        return
    below = len(inside) + 1 if inside else 0
    for entry in _tree.walk(root, inside):
        if (meets is None or meets(entry.path[below:])) and (entry.size or 0) <= MAX_FILE:
            contents = read_file(root, entry.path)
            if contents is not None and b"\0" not in contents[:8192]:
                yield entry.path, contents.decode("utf-8", "replace")


def with_values(pattern: str, values: dict[str, Any]) -> str:
    """The pattern with its values put in as text: no character of them means anything."""
    import re2

    return put_values(pattern, values, lambda value: str(re2.escape(value_text(value))))


def matching_lines(pattern: str, path: str, text: str) -> Iterator[dict[str, Any]]:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        raise InputError(
            "the pattern is not a regular expression that RE2 knows",
            fix="look at its brackets; RE2 has no back-references and no look-around",
            code="bad-pattern",
        ) from None
    for number, line in enumerate(text.split("\n"), 1):
        if compiled.search(line) is not None:
            yield {"path": path, "line": number, "text": line[:MAX_LINE]}
