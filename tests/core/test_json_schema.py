"""A yes of the quick check is a yes of the library, and a plain call is answered by it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.json_schema import surely_meets
from share import examples

REPORT = {
    "type": "object",
    "properties": {
        "week": {"type": "integer", "minimum": 1, "maximum": 53},
        "lang": {"enum": ["en", "de"]},
    },
    "required": ["week"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": ["string", "null"], "maxLength": 3}, "maxItems": 2}

ROWS: list[tuple[Any, Any, bool]] = [
    # value                          schema                              surely
    ({"week": 46},                   REPORT,                             True),
    ({"week": 46, "lang": "de"},     REPORT,                             True),
    ({"week": 46, "lang": "fr"},     REPORT,                             False),
    ({"week": 46, "new": 1},         REPORT,                             False),
    ({"week": 54},                   REPORT,                             False),
    ({"week": True},                 REPORT,                             False),
    ({"week": "46"},                 REPORT,                             False),
    ({},                             REPORT,                             False),
    (["a", None],                    LIST,                               True),
    (["a", "bbbb"],                  LIST,                               False),
    (["a", "b", "c"],                LIST,                               False),
    ({"anything": [1]},              {},                                 True),
    (1.5,                            {"type": "number"},                 True),
    (1.0,                            {"type": "integer"},                False),  # yes, but not here
    (1 << 60,                        {"type": "integer"},                False),
    ({"a": 1},                       {"pattern": "a"},                   False),  # known to the library alone
    ({},                             {"properties": {"a": {"type": "intger"}}}, False),
    ({},                             {"properties": {"a": True}},        False),
    ({},                             {"required": ["a", "a"]},           False),
    ({},                             {"type": []},                       False),
    ({},                             True,                               False),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema", "surely"), ROWS)
def test_a_yes_is_given_where_it_is_certain(value: Any, schema: Any, surely: bool) -> None:
    assert surely_meets(value, schema) is surely


TYPES = ["string", "integer", "number", "boolean", "array", "object", "null", "other"]
BOUNDS = st.one_of(st.integers(-3, 3), st.just(1.5), st.just("1"), st.just(True))
names = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-4, 4),
        st.just(1 << 60),
        st.floats(-4, 4),
        st.text("ab", max_size=4),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=5,
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), max_size=3)),
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "items": inner,
            "enum": st.lists(st.one_of(st.sampled_from("ab"), st.integers(0, 1)), max_size=3),
            **dict.fromkeys(
                ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), BOUNDS
            ),
            "description": st.one_of(st.just("text"), st.just(1)),
            "default": values,
        },
    )


schemas = st.recursive(
    st.one_of(st.just({}), st.booleans(), st.just({"type": "integer"})), keywords, max_leaves=5
)


@settings(max_examples=examples(400), deadline=None)
@given(value=values, schema=schemas)
def test_a_yes_is_a_yes_of_the_library(value: Any, schema: Any) -> None:
    if surely_meets(value, schema):
        assert jsonschema_rs.validator_for(schema).is_valid(value)
