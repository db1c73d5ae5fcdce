"""Values are JSON data; their text is fixed, and a secret does not show."""

from __future__ import annotations

import copy
import json
import pickle
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import ValueRefusedError
from plait.core.values import (
    MOST_LEVELS,
    UNDEFINED,
    Secret,
    copy_shared,
    deep_copy,
    is_deeper,
    json_text,
    json_value,
    reveal_text,
    text,
    utf8,
)

TEXTS: list[tuple[Any, str]] = [
    # value                           text
    ("",                              ""),
    ("a \"b\" \\n",                   "a \"b\" \\n"),
    ("é😀\0",                         "é😀\0"),
    (None,                            ""),
    (True,                            "true"),
    (False,                           "false"),
    (0,                               "0"),
    (-7,                              "-7"),
    (10**30,                          "1" + "0" * 30),
    (1.0,                             "1.0"),
    (-0.0,                            "-0.0"),
    (1e100,                           "1e+100"),
    (0.1,                             "0.1"),
    ([],                              "[]"),
    ({},                              "{}"),
    ([1, "a", None, True, 1.5],       '[1,"a",null,true,1.5]'),
    ({"b": 1, "a": {"z": [], "y": 2}}, '{"b":1,"a":{"z":[],"y":2}}'),
    (["é", "\"", "\n"],               '["é","\\"","\\n"]'),
    ((1, 2),                          "[1,2]"),
    (MappingProxyType({"a": 1}),      '{"a":1}'),
    (Secret("s"),                     "***"),
    ([Secret("s")],                   '["***"]'),
    ({"k": Secret("s")},              '{"k":"***"}'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TEXTS)
def test_the_text_of_a_value_is_fixed(value: Any, expected: str) -> None:
    assert text(value) == expected


REFUSED = [
    (float("nan"),    "a value has no JSON form: NaN and Infinity do not exist in JSON"),
    ([float("inf")],  "a value has no JSON form: NaN and Infinity do not exist in JSON"),
    (10**5000,        "a value has no JSON form: an integer is too long to print"),
    ({(1, 2): 3},     "a value has no JSON form: a map has a key that is not a string"),
    ({1, 2},          "a value of type set is not JSON data"),
    ([object()],      "a value of type object is not JSON data"),
    (b"bytes",        "a value of type bytes is not JSON data"),
    (UNDEFINED,       "a value of type Undefined is not JSON data"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "what"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED]
)
def test_what_is_no_json_is_refused_without_being_shown(value: Any, what: str) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        text(value)
    assert (caught.value.what, caught.value.code) == (what, "not-json")


def test_data_that_contains_itself_or_is_too_deep_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(ValueRefusedError, match="it contains itself or is nested too deeply"):
            text(value)


def test_levels_of_lists_and_maps_are_counted_without_recursion() -> None:
    deep: object = "text"
    for _ in range(100_000):
        deep = {"a": deep}
    assert is_deeper(deep, 100)
    for value, levels in ((3, 0), ([], 1), ({"a": [1]}, 2), ([[], {"a": 1}], 2)):
        assert not is_deeper(value, levels)
        assert is_deeper(value, levels - 1) is bool(levels)


def test_data_that_contains_itself_several_times_is_too_deep() -> None:
    """And is not unrolled: each level would be twice as long as the one before."""
    value: list[object] = []
    value += [value, (value,)]
    assert is_deeper(value, 100)


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ('{"a":', "}")])
def test_json_that_is_nested_too_deeply_is_refused_where_it_comes_in(
    open_: str, close: str
) -> None:
    def nested(levels: int) -> str:
        return open_ * levels + "1" + close * levels

    assert json_text(json_value(nested(MOST_LEVELS))) == nested(MOST_LEVELS)
    with pytest.raises(RecursionError):
        json_value(nested(MOST_LEVELS + 1))
    assert json_value(f"[{','.join(['[]'] * 1000)}]") == [[]] * 1000  # many, but not deep


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=json_values)
def test_json_text_reads_back_in_its_own_key_order(value: Any) -> None:
    back = json.loads(json_text(value))
    assert back == value
    assert json.dumps(back) == json.dumps(value)


@given(value=st.text())
def test_a_string_is_its_own_text(value: str) -> None:
    assert text(value) == reveal_text(value) == value


# ── secrets ──────────────────────────────────────────────────────────────


def test_a_secret_prints_as_a_mask_whatever_asks() -> None:
    secret = Secret("hidden")
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret:>10}",
        f"{secret!r}",
        "{} {!r}".format(secret, secret),  # noqa: UP032 - a third way to print
    ]
    shown += [
        repr([secret]),
        repr({"k": secret}),
        text(secret),
        text([secret]),
        json_text({"k": secret}),
    ]
    assert [it for it in shown if "hidden" in it] == []


def test_a_secret_is_revealed_only_on_request() -> None:
    assert Secret("s").reveal() == reveal_text(Secret("s")) == "s"
    assert reveal_text([Secret("s")]) == json_text([Secret("s")], reveal=True) == '["s"]'


@pytest.mark.parametrize(
    "take", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_secret_cannot_be_carried_away(take: Any) -> None:
    with pytest.raises(TypeError, match=r"^a Secret cannot be pickled or copied$"):
        take(Secret("hidden"))


def test_a_secret_holds_nothing_a_debugger_prints() -> None:
    assert not hasattr(Secret("hidden"), "__dict__")


def test_secrets_compare_by_what_they_hold_and_never_with_text() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


# ── copies ───────────────────────────────────────────────────────────────

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters()),
    st.builds(Secret, st.text()),
)
KEYS = st.one_of(st.text(), st.integers(), st.none(), st.booleans())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.dictionaries(st.text(), inner).map(MappingProxyType),
    ),
)


def by_its_text(value: Any, *, reveal: bool) -> Any:
    return json.loads(json_text(value, reveal=reveal))


def outcome(make: Any, value: Any, *, reveal: bool) -> str:
    try:
        return repr(make(value, reveal=reveal))
    except ValueRefusedError as error:
        return error.what


@given(value=VALUES, reveal=st.booleans())
def test_a_copy_is_what_json_gives_back(value: Any, reveal: bool) -> None:
    assert outcome(deep_copy, value, reveal=reveal) == outcome(by_its_text, value, reveal=reveal)


def test_a_copy_shares_nothing_with_its_original() -> None:
    value: dict[str, Any] = {"list": [1, {"deep": []}], "text": "x"}
    copied = deep_copy(value)
    copied["list"][1]["deep"].append(1)
    copied["list"].append(2)
    copied["new"] = 3
    assert value == {"list": [1, {"deep": []}], "text": "x"}


@pytest.mark.parametrize("depth", [49, 50, 51, 500])
def test_a_copy_goes_as_deep_as_json_does(depth: int) -> None:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    assert deep_copy(value) == value


def test_what_contains_itself_has_no_copy() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueRefusedError):
        deep_copy(value)


def test_a_copy_for_somebody_who_may_change_it_shares_nothing_but_what_cannot_change() -> None:
    secret = Secret("hunter2")
    value = {"a": [1, {"b": secret}], "t": ([2],)}
    other = copy_shared(value)
    other["a"][1]["c"] = 3
    other["t"][0].append(4)
    assert value == {"a": [1, {"b": secret}], "t": ([2],)}
    assert other["a"][1]["b"] is secret


# ── from text and to bytes ───────────────────────────────────────────────

READ: list[tuple[str, Any]] = [
    (' {"a": [1, 2.5, null]} ', {"a": [1, 2.5, None]}),
    ("1e308",                   1e308),
    (r'"\ud83d\ude00"',         "😀"),
    (r'"\\ud800"',              r"\ud800"),
    ('"\udcff"',                "\udcff"),  # a byte that is no text, as a process printed it
    ('"\udcff\\ud83d\\ude00"',  "\udcff😀"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value"), READ)
def test_json_text_is_read(written: str, value: Any) -> None:
    assert json_value(written) == value


NO_JSON = [
    "", "{", "NaN", "[Infinity]", "-Infinity", "1e400", '{"n": [-1e999]}', "1" * 5000, r'"\ud800"', r'"\uDC00"',
    r'"\udcff"', r'{"\ud83d": 1}', r'"\ude00\ud83d"', "\ufeff1",
]  # fmt: skip


@pytest.mark.parametrize("written", NO_JSON)
def test_json_that_only_python_can_read_is_refused(written: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller writes the message
        json_value(written)


def test_text_becomes_bytes_and_bytes_that_were_no_text_stay_what_they_were() -> None:
    assert utf8("é\udcff") == b"\xc3\xa9\xff"
    with pytest.raises(ValueRefusedError) as caught:
        utf8("\ud800")
    assert str(caught.value) == (
        "a text holds half of a character pair, which has no bytes\nfix: write both halves, or neither"
    )
