"""Write the tables as JSON Schema, for editors."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import Final
from plait.core.values import Json
from plait.engine.events import EVENTS_VERSION
from plait.schema.field_types import (
    AgentCommand,
    Boolean,
    Choice,
    Condition,
    Data,
    Duration,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    NoEffect,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    ShellText,
    SingleValue,
    TemplateText,
    TemplateTree,
)
from plait.schema.forms import EVENTS, FILES, record_types_in
from plait.schema.validate import DURATION, LONGEST, SECONDS

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_id(format: str) -> str:
    """The name of a schema, which stays the same wherever the schema is published."""
    return f"urn:plait:schema:{format}"


def json_schema(format: str = "workflow") -> dict[str, Json]:
    """A format as JSON Schema."""
    if format == "events":
        return _events_schema()
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": schema_id(format),
        "title": f"Plait {format}",
        **_schema(FILES[format]),
        "$defs": {form.name: _form_schema(form) for form in record_types_in(FILES[format])},
    }


def _events_schema() -> dict[str, Json]:
    """The schema of a run's events. Plait writes them, so a reader must expect new fields."""
    forms = record_types_in(FILES["events"])
    names = [form.form for form in EVENTS.kinds if isinstance(form, Record)]
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": schema_id(f"events:{EVENTS_VERSION}"),
        "title": "Plait event",
        "description": "One line of plait run --json or plait events",
        "type": "object",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in names],
        "$defs": {form.name: _record_schema(form, is_event=form.name in names) for form in forms},
    }


def _record_schema(form: RecordType, *, is_event: bool) -> dict[str, Json]:
    name: dict[str, Json] = {"event": {"const": form.name}} if is_event else {}
    fields = {
        field.name: {**_kind_schema(field.kind), "description": field.what} for field in form.fields
    }
    return {
        "description": form.what,
        "type": "object",
        "properties": {**name, **fields},
        "required": [*name, *(field.name for field in form.fields if field.required)],
    }


def _kind_schema(kind: Kind) -> dict[str, Json]:
    """The schema of a value that Plait has written: it contains no template, so a number is a
    number.
    """
    match kind:
        case Integer(least, most):
            return _number_schema("integer", least, most)
        case ListOf(inner):
            return {"type": "array", "items": _kind_schema(inner)}
        case MapOf(inner):
            return {"type": "object", "additionalProperties": _kind_schema(inner)}
        case OneOf(kinds):
            return {"anyOf": [_kind_schema(one) for one in kinds]}
    return _schema(kind)


def _form_schema(form: RecordType) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for field in form.fields:
        if isinstance(field.kind, Refused):
            continue  # editors would offer it; it is refused anyway, as an unknown property
        for name in field.spellings:
            properties[name] = _field_schema(field, old=name in field.deprecated)
    schema: dict[str, Json] = {
        "description": form.what,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    rules: list[Json] = [_any_spelling(field) for field in form.fields if field.required]
    rules += [
        _at_most_one(list(field.spellings)) for field in form.fields if len(field.spellings) > 1
    ]
    table = {field.name: field for field in form.fields}
    one_of = [name for key in form.one_of for name in table[key].spellings]
    if one_of:
        rules.append(_at_most_one(one_of))
        rules.append({"anyOf": [{"required": [name]} for name in (*one_of, *form.alone)]})
    if form.some_of:
        names = [name for key in form.some_of for name in table[key].spellings]
        rules.append({"anyOf": [{"required": [name]} for name in names]})
    rules += _rules_between(form, table)
    if rules:
        schema["allOf"] = rules
    return schema


def _rules_between(form: RecordType, table: dict[str, Field]) -> Iterator[Json]:
    """The rules between the fields of a map."""
    for field in form.fields:
        belongs = [name for key in field.only_for for name in table[key].spellings]
        needed = [name for key in (field.needs or ())[:1] for name in table[key].spellings]
        for wanted in filter(None, (belongs, needed)):
            has_one: Json = {"anyOf": [{"required": [name]} for name in wanted]}
            yield from ({"if": {"required": [name]}, "then": has_one} for name in field.spellings)
    for one, other in form.apart:
        pairs = [[a, b] for a in table[one].spellings for b in table[other].spellings]
        yield {"not": {"anyOf": [{"required": pair} for pair in pairs]}}
    for odds in form.at_odds:
        properties: Json = {
            odds.one: {"enum": list(odds.values)},
            odds.other: {"enum": list(odds.others)},
        }
        yield {"not": {"required": [odds.one, odds.other], "properties": properties}}


def _any_spelling(field: Field) -> Json:
    return {"anyOf": [{"required": [name]} for name in field.spellings]}


def _at_most_one(names: list[str]) -> Json:
    """The rule that at most one of these fields is set."""
    pairs = [[one, other] for at, one in enumerate(names) for other in names[at + 1 :]]
    return {"not": {"anyOf": [{"required": pair} for pair in pairs]}}


def _field_schema(field: Field, *, old: bool) -> Json:
    if isinstance(field.kind, NoEffect):
        return _deprecation(f"no effect: {field.kind.why}")
    schema = {**_schema(field.kind), "description": field.what}
    if field.default is not None:
        schema["default"] = field.default
    if old:
        schema |= _deprecation(f"write '{field.name}'")
    return schema


def _deprecation(why: str) -> dict[str, Json]:
    """The schema of a field that is accepted with a warning. Editors for YAML do not offer a
    field that has `deprecationMessage`.
    """
    return {"deprecated": True, "deprecationMessage": why}


_PLACEHOLDER: Final = r"[$](?:\{|[A-Za-z_])"


def _schema(kind: Kind) -> dict[str, Json]:
    match kind:
        case PlainText(_, pattern):
            return (
                {"type": "string", "pattern": f"^(?:{pattern})$"} if pattern else {"type": "string"}
            )
        case TemplateText():
            return {"type": "string"}
        case ShellText():
            return {"type": "string", "pattern": r"\S"}
        case SingleValue():
            return {"type": "string", "pattern": "^[$]"}
        case AgentCommand():
            return {"type": "string", "pattern": "^/"}
        case Null():
            return {"type": "null"}
        case Boolean():
            return {"type": "boolean"}
        case Condition():
            return {"type": ["string", "boolean", "object"]}
        case Integer(least, most):
            return {
                "anyOf": [
                    _number_schema("integer", least, most),
                    {"type": "string", "pattern": _PLACEHOLDER},
                ]
            }
        case Number(least, most):
            return _number_schema("number", least, most)
        case Duration():
            bound: dict[str, Json] = {"minimum": 0} if kind.zero else {"exclusiveMinimum": 0}
            written = rf"^\s*(?:{DURATION}|{SECONDS})\s*$|{_PLACEHOLDER}"
            text: dict[str, Json] = {"type": "string", "pattern": written}
            more: dict[str, Json] = (
                {} if kind.zero else {"allOf": [{"pattern": rf"[1-9]|{_PLACEHOLDER}"}]}
            )
            return {"anyOf": [{"type": "number", **bound, "maximum": LONGEST}, {**text, **more}]}
        case Choice(words):
            return {"enum": list(words)}
        case Record(form):
            return {"$ref": f"#/$defs/{form}"}
        case MapOf(inner, keys):
            each: dict[str, Json] = {"type": "object", "additionalProperties": _schema(inner)}
            return (
                {**each, "propertyNames": {"pattern": f"^(?:{keys.pattern})$"}}
                if keys.pattern
                else each
            )
        case ListOf(inner, least):
            parts: dict[str, Json] = {"type": "array", "items": _schema(inner)}
            return {**parts, "minItems": least} if least else parts
        case OneOf(kinds):
            return {"anyOf": [_after(one, kinds[:at]) for at, one in enumerate(kinds)]}
        case TemplateTree() | Data() | NoEffect() | Refused():
            return {}


def _after(kind: Kind, before: tuple[Kind, ...]) -> dict[str, Json]:
    """A part of a union. The first part that accepts text accepts all text, including
    placeholders.
    """
    if isinstance(kind, Integer) and any(
        isinstance(one, PlainText | TemplateText | ShellText | Choice) for one in before
    ):
        return _number_schema("integer", kind.least, kind.most)
    return _schema(kind)


def _number_schema(name: str, least: float, most: float | None) -> dict[str, Json]:
    bounds: dict[str, Json] = {"type": name, "minimum": least}
    return bounds if most is None else {**bounds, "maximum": most}
