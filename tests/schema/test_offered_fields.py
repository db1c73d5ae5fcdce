"""What a JSON Schema offers in an editor, the reader of the format takes: each field of each map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plait.cli.schema import FORMATS as ALL_FORMATS
from plait.core.documents import parse
from plait.schema import WARNED, validate
from plait.schema.field_types import NoEffect, Record, Refused
from plait.schema.forms import FILES, fields_by_spelling, record_type, record_types_in
from plait.schema.json_schema import json_schema
from share import examples

FORMATS = [name for name in ALL_FORMATS if name != "events"]
"""Events are written and not read: tests/views/test_events.py."""

TEXTS = (
    "a",
    "${a}",
    "/a",
    "5m",
    "0644",
    "1",
    "A",
    "${a.b}",
    "GET",
    "https://h/",
    "1 == 1",
    "local",
)
"""One of these fits each pattern."""
MAPS = sorted(
    {
        (format, form.name)
        for format in FORMATS
        for form in record_types_in(FILES[format])
        if form.fields
    }
)


@cache
def schema_of(format: str, form: str) -> dict[str, Any]:
    whole = json_schema(format)
    return {**whole["$defs"][form], "$defs": whole["$defs"]}


@cache
def validator(format: str, form: str) -> Any:
    return jsonschema_rs.validator_for(schema_of(format, form))


def offered() -> Iterator[tuple[str, str, str]]:
    for format, form in MAPS:
        for name in schema_of(format, form)["properties"]:
            yield format, form, name


def fits(value: Any, schema: dict[str, Any], defs: dict[str, Any]) -> bool:
    return bool(jsonschema_rs.is_valid({**schema, "$defs": defs}, value))


def value_for(schema: dict[str, Any], defs: dict[str, Any], depth: int = 0) -> Any:
    """A value that a schema takes, as small as can be."""
    if "$ref" in schema:
        return map_with(defs[schema["$ref"].removeprefix("#/$defs/")], defs, depth=depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        simple = [
            one for one in schema["anyOf"] if "$ref" not in one and one.get("type") != "array"
        ]
        return value_for((simple or schema["anyOf"])[0], defs, depth)
    match schema.get("type"):
        case "string":
            return next(text for text in TEXTS if fits(text, schema, defs))
        case "integer" | "number":
            return schema.get("minimum", 0) or 1
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return [value_for(schema["items"], defs, depth)] if schema.get("minItems") else []
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return {}
    return "a"


def map_with(
    schema: dict[str, Any], defs: dict[str, Any], *names: str, depth: int = 0
) -> dict[str, Any]:
    """A map with these fields and those that must stand beside them."""
    assert depth < 20
    made = {name: value_for(schema["properties"][name], defs, depth) for name in names}
    for _ in range(10):
        # What a field needs first: it may choose what the map is.
        rules = sorted(schema.get("allOf", ()), key=lambda rule: "then" not in rule)
        missing = next((rule for rule in rules if not fits(made, rule, defs)), None)
        if missing is None:
            return made
        wanted = missing.get("then", missing)
        name = next(
            one
            for choice in wanted["anyOf"]
            for one in choice["required"]
            if all(
                fits({**dict.fromkeys(made), one: 1}, rule, defs)
                for rule in schema["allOf"]
                if "not" in rule
            )
        )
        made[name] = value_for(schema["properties"][name], defs, depth)
    raise AssertionError(f"no map with {names}")


def errors(value: Any, form: str) -> list[str]:
    found = validate(parse(json.dumps(value), "f.yaml"), Record(form))
    return [problem.what for problem in found if problem.code not in WARNED]


@pytest.mark.parametrize(("format", "form", "name"), list(offered()))
def test_an_offered_field_is_read(format: str, form: str, name: str) -> None:
    schema = schema_of(format, form)
    made = map_with(schema, schema["$defs"], name)
    assert validator(format, form).is_valid(made), made
    assert errors(made, form) == [], made


@pytest.mark.parametrize(("format", "form"), MAPS)
def test_a_field_is_offered_if_and_only_if_it_is_read(format: str, form: str) -> None:
    fields = fields_by_spelling(form)
    read = {name for name, field in fields.items() if not isinstance(field.kind, Refused)}
    assert schema_of(format, form)["properties"].keys() == read


@pytest.mark.parametrize(("format", "form"), MAPS)
def test_a_field_with_a_warning_is_not_offered(format: str, form: str) -> None:
    fields = fields_by_spelling(form)
    warned = {
        name
        for name, field in fields.items()
        if name in field.deprecated or isinstance(field.kind, NoEffect)
    }
    properties = schema_of(format, form)["properties"]
    hidden = {name for name, one in properties.items() if "deprecationMessage" in one}
    assert hidden == {name for name in warned if name in properties}


@given(
    place=st.sampled_from([one for one in MAPS if schema_of(*one)["properties"]]), data=st.data()
)
@settings(max_examples=examples(300), deadline=None)
def test_the_schema_and_the_reader_agree_on_any_two_fields(
    place: tuple[str, str], data: st.DataObject
) -> None:
    format, form = place
    schema = schema_of(format, form)
    names = data.draw(
        st.lists(st.sampled_from(sorted(schema["properties"])), max_size=3, unique=True)
    )
    made = {name: value_for(schema["properties"][name], schema["$defs"]) for name in names}
    assume(names or not record_type(form).marks)  # by them alone a union knows the map
    assert validator(format, form).is_valid(made) == (errors(made, form) == []), made


@pytest.mark.parametrize("format", FORMATS)
def test_a_schema_has_a_name_that_stays(format: str) -> None:
    assert json_schema(format)["$id"] == f"urn:plait:schema:{format}"
