"""Choose values from JSON by a path of RFC 9535."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from plait.errors import InputError
from plait.system.tools.core.file import _tree

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "core/json"
__tool_description__ = (
    "Choose values from JSON by a JSONPath (RFC 9535), for example $.items[?@.price < 10].name; "
    "the JSON is given as data or is a file of the project."
)

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["query"],
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "A JSONPath of RFC 9535, starting with $"},
        "data": {"description": "The JSON value to look into"},
        "path": {"type": "string", "minLength": 1, "description": "A JSON file, relative to the project"},
        "max": {"type": "integer", "minimum": 1, "default": 1000, "description": "How many values at most"},
    },
}


def execute(params: dict[str, Any], project_path: str | None) -> dict[str, Any]:
    from jsonpath_rfc9535 import JSONPathError

    data = _data(params, project_path)
    most = params.get("max", 1000)
    try:
        found = _environment().find(params["query"], data)
    except JSONPathError:
        raise InputError(
            "the query is not a JSONPath of RFC 9535",
            fix="for example $.items[0].name or $..id",
            code="bad-query",
        ) from None
    return {
        "values": [node.value for node in found[:most]],
        "paths": [node.path() for node in found[:most]],
        "complete": len(found) <= most,
    }


def _data(params: dict[str, Any], project_path: str | None) -> Any:
    if ("data" in params) == ("path" in params):
        raise InputError(
            "give either data or path", fix='{"query": "$.a", "data": {"a": 1}}', code="bad-parameters"
        )
    if "data" in params:
        return params["data"]
    text = _tree.read_text(_tree.root_of(project_path), params["path"])
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"'{params['path']}' is not JSON", fix="name a JSON file", code="not-json") from None


@lru_cache(maxsize=1)
def _environment() -> Any:
    import re2
    from jsonpath_rfc9535 import JSONPathEnvironment
    from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction

    class Matching(FilterFunction):
        """`match` and `search` in linear time: a query may come from anybody, and so may the data."""

        arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012  # the library's own attribute
        return_type = ExpressionType.LOGICAL

        def __init__(self, *, whole: bool) -> None:
            self._whole = whole

        def __call__(self, text: object, pattern: object) -> bool:
            if not isinstance(text, str) or not isinstance(pattern, str):
                return False
            options = re2.Options()
            options.log_errors = False
            try:
                compiled = re2.compile(pattern, options)
            except re2.error:
                return False  # RFC 9535: a pattern that is none matches nothing
            return (compiled.fullmatch if self._whole else compiled.search)(text) is not None

    environment = JSONPathEnvironment()
    environment.function_extensions["match"] = Matching(whole=True)
    environment.function_extensions["search"] = Matching(whole=False)
    return environment
