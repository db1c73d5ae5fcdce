"""The form that a flow expects of a check's result: JSON Schema.

What does not fit is named by its place in the schema, which its author wrote; the result
itself, which may hold anything, is never quoted.
"""

from __future__ import annotations

from plait.core.hints import Final
from plait.core.json_schema import surely_meets, validator
from plait.core.values import Json, json_text

MOST_SHOWN: Final = 5


def is_schema(schema: Json) -> bool:
    """Can it be used as JSON Schema?  One that refers to another document cannot: nothing is fetched."""
    try:
        validator(json_text(schema))
    except ValueError:
        return False
    return True


def misfits(result: Json, schema: Json) -> list[str]:
    """The places of the schema that a result does not meet: `properties.gaps.type`."""
    if surely_meets(result, schema):
        return []
    asked = validator(json_text(schema))
    try:
        errors = list(asked.iter_errors(result))
    except UnicodeEncodeError:  # bytes that a command printed and that are no text: their number counts
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
