"""The form that a flow expects of a check's result: JSON Schema.

What does not fit is named by its place in the schema, which its author wrote; the result
itself, which may hold anything, is never quoted.
"""

from __future__ import annotations

from functools import lru_cache

from plait.hints import Any, Final
from plait.tools.schemas import surely_meets
from plait.values import Json, json_text

MOST_SHOWN: Final = 5


def is_schema(schema: Json) -> bool:
    """Can it be used as JSON Schema?  One that refers to another document cannot: nothing is fetched."""
    try:
        _validator(json_text(schema))
    except ValueError:
        return False
    return True


def misfits(result: Json, schema: Json) -> list[str]:
    """The places of the schema that a result does not meet: `properties.gaps.type`."""
    if surely_meets(result, schema):
        return []
    validator = _validator(json_text(schema))
    try:
        errors = list(validator.iter_errors(result))
    except UnicodeEncodeError:  # bytes that a command printed and that are no text: their number counts
        errors = list(validator.iter_errors(_encodable(result)))
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


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    import json

    import jsonschema_rs  # large, and few flows need it

    return jsonschema_rs.validator_for(json.loads(schema), retriever=_no_retrieval)


def _no_retrieval(uri: str) -> Json:
    raise ValueError(f"a schema may not fetch {uri}")
