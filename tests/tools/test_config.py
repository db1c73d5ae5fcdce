"""The config of a chain: merged, filled once, out of a caller's reach; and parameters checked by their schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, ValueRefusedError
from plait.core.values import Secret
from plait.tools.chain import Chain
from plait.tools.config import (
    CONTEXT,
    EXECUTION_KEYS,
    Config,
    deep_merge,
    validate_params,
    violations,
)
from plait.tools.spaces import Space
from plait.tools.tool_file import Header, ToolFile

SPACE = Space("project", "/p")


def item(**keys: Any) -> ToolFile:
    return ToolFile("tool", "t", SPACE, "/p/t.yaml", b"", "", Header(**keys))


def config(
    written: dict[str, Any],
    params: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
) -> Config:
    return Config(
        Chain((item(config=written),), "x"),
        params=params or {},
        context=context or {},
        env=env or {},
    )


tree = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
maps = st.dictionaries(st.sampled_from("abc"), tree)


@given(maps)
def test_merging_with_nothing_changes_nothing(one: dict[str, Any]) -> None:
    assert deep_merge(one, {}) == one == deep_merge({}, one) == deep_merge(one, one)


@given(maps, maps)
def test_what_stands_above_is_seen_and_nothing_below_is_lost(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    merged = deep_merge(below, above)
    assert set(merged) == set(below) | set(above)
    for key, value in above.items():
        assert merged[key] == value or (
            isinstance(value, dict) and isinstance(below.get(key), dict)
        )


@given(st.text())
def test_a_parameter_is_a_leaf(value: str) -> None:
    written = {"a": "{x}", "b": "{a}", "secret": "no", "list": ["{x}"]}
    filled = config(written, {"x": value}, {"HOME": "no"})
    assert (filled.value("a"), filled.value("b"), filled.value("list")) == (value, value, [value])


@pytest.mark.parametrize("name", sorted(EXECUTION_KEYS | CONTEXT))
def test_no_name_of_execution_or_context_comes_from_a_caller(name: str) -> None:
    assert config({"a": f"<{{{name}}}>"}, {name: "evil"}).value("a") == f"<{{{name}}}>"
    assert config({"a": f"<{{{name}}}>", name: "author"}, {name: "evil"}).value("a") == "<author>"
    assert (
        config({"a": f"<{{{name}}}>"}, {name: "evil"}, context={name: "call"}).value("a")
        == "<call>"
    )


REACH: list[tuple[dict[str, Any] | None, dict[str, Any], Any]] = [
    # the schema declares   config                              what {a} becomes for a caller's {"h": "evil"}
    (None,                  {"a": "{h}", "h": "author"},          "author"),
    (None,                  {"a": "{b}", "b": "{h}", "h": "x"},   "x"),
    (None,                  {"a": "{h}", "h": None},              None),
    ({},                    {"a": "{h}", "h": "author"},          "author"),
    ({"other": {}},         {"a": "{h}", "h": "author"},          "author"),
    ({"h": {}},             {"a": "{h}", "h": "author"},          "evil"),
    ({"h": {}},             {"a": "{b}", "b": "{h}", "h": "x"},   "evil"),
    (None,                  {"a": "{h}"},                         "evil"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "written", "becomes"), REACH)
def test_a_key_that_an_author_wrote_is_replaced_by_declared_parameters_alone(
    declared: dict[str, Any] | None, written: dict[str, Any], becomes: Any
) -> None:
    schema = None if declared is None else {"properties": declared}
    chain = Chain((item(config=written, config_schema=schema),), "x")
    assert Config(chain, params={"h": "evil"}, context={}, env={}).value("a") == becomes


def test_what_is_fixed_wins_over_both() -> None:
    chain = Chain(
        (item(config={"a": "{h}", "h": "author"}, config_schema={"properties": {"h": {}}}),), "x"
    )
    filled = Config(chain, params={"h": "evil"}, context={}, env={}, fixed={"h": "fixed"})
    assert filled.value("a") == "fixed"


def test_a_circle_is_named() -> None:
    with pytest.raises(InputError) as caught:
        config({"a": "{b}", "b": ["{c}"], "c": "x{b}"}).value("a")
    assert (
        str(caught.value)
        == "/p/t.yaml: the config refers to itself: b → c → b\nfix: give one of them a plain value"
    )


def test_a_diamond_is_no_circle() -> None:
    assert config({"a": "{b}{c}", "b": "{d}", "c": "{d}", "d": "x"}).value("a") == "xx"


def test_a_secret_is_masked_until_it_is_asked_for() -> None:
    hidden = config(
        {"a": "k=${KEY}", "b": {"c": "{a}"}, "d": "{p}"},
        {"p": [Secret("s")]},
        {"KEY": Secret("hunter2")},
    )
    assert hidden.value("b") == {"c": Secret("k=hunter2")}
    assert hidden.in_clear().value("b") == {"c": "k=hunter2"}
    assert hidden.in_clear().value("d") == ["s"]
    assert str(hidden.value("a")) == "***"


FROM_CALLER = [
    # config                        name  comes from the caller
    ({},                            "x",  True),
    ({"a": "{x}"},                  "a",  True),
    ({"a": "{b}", "b": "{x}!"},     "a",  True),
    ({"a": "plain"},                "a",  False),
    ({"a": "${X}"},                 "a",  False),
    ({},                            "y",  False),
    ({},                            "project_path", False),
]  # fmt: skip


@pytest.mark.parametrize(("written", "name", "from_caller"), FROM_CALLER)
def test_what_comes_from_the_caller_is_known(
    written: dict[str, Any], name: str, from_caller: bool
) -> None:
    assert (
        config(written, {"x": 1}, context={"project_path": "/p"}).from_caller(name) is from_caller
    )


# ── parameters ───────────────────────────────────────────────────────────

SCHEMA = {
    "type": "object",
    "required": ["week"],
    "additionalProperties": False,
    "properties": {
        "week": {"type": "integer", "minimum": 1},
        "format": {"enum": ["text", "html"], "default": "text"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "deep": {"type": "object", "properties": {"level": {"type": "integer", "default": 3}}},
    },
}


def test_defaults_are_applied_at_any_depth_and_the_caller_keeps_his_map() -> None:
    given_params = {"week": 1, "deep": {}}
    assert validate_params(given_params, item(config_schema=SCHEMA)) == {
        "week": 1,
        "format": "text",
        "deep": {"level": 3},
    }
    assert given_params == {"week": 1, "deep": {}}


def test_all_violations_come_at_once_with_the_given_value_but_no_secret() -> None:
    with pytest.raises(InputError) as caught:
        validate_params(
            {"week": Secret("hunter2"), "format": "htlm", "tags": ["a", 5], "zz": "hunter2"},
            item(config_schema=SCHEMA),
        )
    whats = sorted(problem.what for problem in caught.value.problems)
    assert whats == [
        "'t': 'zz' is not a parameter",
        "'t': format: must be one of ['text', 'html'], got \"htlm\"",
        "'t': tags[1]: must be a string, got 5",
        "'t': week: must be an integer",
    ]
    assert "hunter2" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(InputError) as caught:
        validate_params({}, item(config_schema=SCHEMA))
    assert (
        str(caught.value)
        == "/p/t.yaml: 't': 'week' is required\nfix: look at 'plait tools show t' for its parameters"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no-such-type"},
        {"properties": 3},
        {"$ref": "https://x.example/schema"},
        {"$ref": "file:///etc/passwd"},
    ],
)
def test_a_schema_that_is_none_is_reported(schema: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        validate_params({"a": 1}, item(config_schema=schema))
    assert caught.value.code == "bad-schema"


def test_a_secret_is_text_to_a_schema_and_stays_secret() -> None:
    schema = {"properties": {"token": {"type": "string", "minLength": 3}}}
    assert validate_params({"token": Secret("abc")}, item(config_schema=schema)) == {
        "token": Secret("abc")
    }
    with pytest.raises(InputError) as caught:
        validate_params({"token": Secret("ab")}, item(config_schema=schema))
    assert caught.value.what == "'t': token: must have at least 3 characters"


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), float("nan")])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueRefusedError):
        validate_params({"x": value}, item(config_schema={"type": "object"}))


def test_without_a_schema_everything_passes_as_a_copy() -> None:
    given_params = {"a": 1}
    checked = validate_params(given_params, item())
    assert (checked, checked is given_params) == ({"a": 1}, False)


BOUNDS = [
    # schema of n               value    the message
    ({"minimum": 1},            0,       "must be at least 1, got 0"),
    ({"maximum": 9},            10,      "must be at most 9, got 10"),
    ({"exclusiveMinimum": 0},   0,       "must be more than 0, got 0"),
    ({"exclusiveMaximum": 3},   3,       "must be less than 3, got 3"),
    ({"multipleOf": 2},         3,       "must be a multiple of 2, got 3"),
    ({"minLength": 2},          "a",     'must have at least 2 characters, got "a"'),
    ({"maxLength": 1},          "ab",    'must have at most 1 character, got "ab"'),
    ({"minItems": 1},           [],      "must have at least 1 item, got a list"),
    ({"pattern": "^v[0-9]+$"},  "x",     'must match \'^v[0-9]+$\', got "x"'),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "value", "message"), BOUNDS)
def test_a_bound_of_a_schema_is_reported_in_words_with_the_value(
    rule: dict[str, Any], value: Any, message: str
) -> None:
    [found] = violations({"n": value}, {"type": "object", "properties": {"n": rule}})
    assert found.what == message
