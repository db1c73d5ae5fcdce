"""Choose values from JSON by a path of RFC 9535."""

from __future__ import annotations

import json
from typing import Any

from plait.system.tools.core._values import with_values as put_values
from plait.system.tools.core.file import _tree
from plait.tool_api import InputError, find_json

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/json"
__tool_description__ = (
    "Choose values from JSON by a JSONPath (RFC 9535), for example $.items[?@.price < 10].name; "
    "the JSON is given as data or is a file of the project."
)
__read_only__ = True

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["query"],
    "properties": {
        "query": {
            "type": "string",
            "minLength": 1,
            "x-code": "jsonpath",
            "x-code-values": "values",
            "description": "A JSONPath of RFC 9535, starting with $, with ${name} for each value of values",
        },
        "values": {
            "type": "object",
            "description": "Text, numbers, true, false and null by name, to compare with or to choose by",
        },
        "data": {"description": "The JSON value to look into"},
        "path": {
            "type": "string",
            "minLength": 1,
            "description": "A JSON file, relative to the project",
        },
        "max": {
            "type": "integer",
            "minimum": 1,
            "default": 1000,
            "description": "How many values at most",
        },
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    data = _data(params, project_path)
    written = with_values(params["query"], params.get("values", {}))
    most = params.get("max", 1000)
    try:
        found = find_json(written, data)
    except InputError:
        raise InputError(
            "the query is not a JSONPath of RFC 9535",
            fix="for example $.items[0].name or $..id",
            code="bad-query",
        ) from None
    return {
        "values": [value for _, value in found[:most]],
        "paths": [path for path, _ in found[:most]],
        "complete": len(found) <= most,
    }


def with_values(query: str, values: dict[str, Any]) -> str:
    """The query with its values put in as literals, each whole: not inside of quotes."""
    return put_values(query, values, _literal, quotes="\"'")


def _literal(value: Any) -> str:
    if value is None or isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=True)
    raise InputError(
        "a value of a query is text, a number, true, false or null",
        fix="give one part of it",
        code="bad-parameters",
    )


def _data(params: dict[str, Any], project_path: str | None) -> Any:
    if ("data" in params) == ("path" in params):
        raise InputError(
            "give exactly one of data and path",
            fix='{"query": "$.a", "data": {"a": 1}}',
            code="bad-parameters",
        )
    if "data" in params:
        return params["data"]
    text = _tree.read_text(_tree.root_of(project_path), params["path"])
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"'{params['path']}' is not JSON", fix="name a JSON file", code="not-json"
        ) from None
