"""Check values against the common part of JSON Schema, without loading a library.

Most tools declare parameters by type and list which are required. A few comparisons check those
faster than the library loads. "Yes" is certain. "No" only means that this module cannot decide;
then the library decides and says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache

from plait.core.hints import Any, Final
from plait.core.values import Json, json_text

_EXACT: Final = 1 << 53
"""The largest integer up to which integers and floats compare alike everywhere."""


def surely_meets(value: Json, schema: Json) -> bool:
    """Does this module know every keyword of the schema, and does the value meet it?"""
    return _is_known_again(schema) and _meets(value, schema)


@lru_cache(maxsize=256)
def validator(schema: str) -> Any:
    """Return the library's validator for a schema; raise ValueError if it is not valid, or refers
    to another document.
    """
    import jsonschema_rs  # ten megabytes, slow to load, and few calls need it

    return jsonschema_rs.validator_for(json.loads(schema), retriever=_no_retrieval)


def _no_retrieval(uri: str) -> Json:
    raise ValueError(f"a schema may not fetch {uri}")


# ── schemas that are known ───────────────────────────────────────────────


_SEEN: dict[int, tuple[Json, bool]] = {}
_MOST_SEEN: Final = 1000


def _is_known_again(schema: Json) -> bool:
    """Like `_is_known`, but asked once for each tool's schema.

    Schemas are compared by identity: comparing their contents takes as long as the question.
    """
    seen = _SEEN.get(id(schema))
    if seen is None or seen[0] is not schema:
        if len(_SEEN) >= _MOST_SEEN:
            _SEEN.clear()
        seen = _SEEN[id(schema)] = (schema, _is_known(schema))
    return seen[1]


def _is_known(schema: Json) -> bool:
    if not isinstance(schema, Mapping):
        return False
    return all(
        keyword in _KEYWORDS and _KEYWORDS[keyword](value) for keyword, value in schema.items()
    )


def _is_type(value: Json) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_choice(names) and set(names) <= _TYPES.keys()


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_properties(value: Json) -> bool:
    return isinstance(value, Mapping) and all(map(_is_known, value.values()))


def _is_choice(value: Json) -> bool:
    return _is_names(value) and bool(value)


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_bound(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_EXACT < value < _EXACT


def _is_length(value: Json) -> bool:
    return _is_bound(value) and value >= 0


_KEYWORDS: Final[Mapping[str, Callable[[Json], bool]]] = {
    "type": _is_type,
    "properties": _is_properties,
    "required": _is_names,
    "additionalProperties": lambda value: isinstance(value, bool),
    "items": _is_known,
    "enum": _is_choice,
    "minimum": _is_bound,
    "maximum": _is_bound,
    "minLength": _is_length,
    "maxLength": _is_length,
    "minItems": _is_length,
    "maxItems": _is_length,
    "description": _is_text,
    "title": _is_text,
    "default": lambda _: True,
    "x-code": _is_text,
    "x-code-values": _is_text,
}


# ── values that meet the schemas ─────────────────────────────────────────────


def _meets(value: Json, schema: Mapping[str, Json]) -> bool:
    types = schema.get("type", ())
    if isinstance(types, str):
        if not _TYPES[types](value):
            return False
    elif types and not any(_TYPES[name](value) for name in types):
        return False
    if "enum" in schema and not (isinstance(value, str) and value in schema["enum"]):
        return False
    if isinstance(value, dict):
        return _properties_meet(value, schema)
    if isinstance(value, str):
        return _within(len(value), schema, "minLength", "maxLength")
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int | float):
        return abs(value) < _EXACT and _within(value, schema, "minimum", "maximum")
    if isinstance(value, list):
        return _within(len(value), schema, "minItems", "maxItems") and _items_meet(value, schema)
    return False


def _within(amount: float, schema: Mapping[str, Json], least: str, most: str) -> bool:
    return schema.get(least, amount) <= amount <= schema.get(most, amount)  # type: ignore[no-any-return]


def _items_meet(value: list[Json], schema: Mapping[str, Json]) -> bool:
    inner = schema.get("items")
    return inner is None or all(_meets(item, inner) for item in value)


def _properties_meet(value: dict[str, Json], schema: Mapping[str, Json]) -> bool:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return False
    if schema.get("additionalProperties") is False and not value.keys() <= properties.keys():
        return False
    for name, inner in properties.items():  # noqa: SIM110 - a call waits for it, and `all` is slower
        if name in value and not _meets(value[name], inner):
            return False
    return True


_TYPES: Final[Mapping[str, Callable[[Json], bool]]] = {
    "string": _is_text,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


MOST_SHOWN: Final = 5


def is_schema(schema: Json) -> bool:
    """Can it be used as JSON Schema?

    A schema that refers to another document cannot: Plait fetches nothing.
    """
    try:
        validator(json_text(schema))
    except ValueError:
        return False
    return True


def schema_violations(result: Json, schema: Json) -> list[str]:
    """Return the places of the schema that a result does not meet: `properties.gaps.type`."""
    if surely_meets(result, schema):
        return []
    asked = validator(json_text(schema))
    try:
        errors = list(asked.iter_errors(result))
    except (
        UnicodeEncodeError
    ):  # bytes of a command's output that are not text: only their number counts
        errors = list(asked.iter_errors(_encodable(result)))
    places = [".".join(str(step) for step in error.schema_path) for error in errors]
    return list(dict.fromkeys(places))[:MOST_SHOWN]


def _encodable(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {_encodable(key): _encodable(inner) for key, inner in value.items()}
        case list():
            return [_encodable(inner) for inner in value]
    return value
