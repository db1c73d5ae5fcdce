"""Formats and filters: closed tables of pure functions, filters total."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import LimitError, ValueRefusedError
from plait.core.values import UNDEFINED, Secret, json_text
from plait.template.filters import FILTERS, FORMATS, filter_paths
from plait.template.template import compile_template

S = Secret("ab")


def render(template: str, value: Any) -> Any:
    return compile_template(template).render({"x": value})


FILTERED = [
    # filter          value                  result
    ("json",          "a\"b",                '"a\\"b"'),
    ("json",          {"b": 1, "a": [None]}, '{"b":1,"a":[null]}'),
    ("json",          "é",                   '"é"'),
    ("length",        "héé",                 3),
    ("length",        [1, 2],                2),
    ("length",        {"a": 1},              1),
    ("length",        None,                  0),
    ("length",        120,                   3),
    ("keys",          {"b": 1, "a": 2},      ["b", "a"]),
    ("keys",          [1],                   []),
    ("keys",          "x",                   []),
    ("upper",         "aß",                  "ASS"),
    ("upper",         True,                  "TRUE"),
    ("upper",         None,                  ""),
    ("lower",         "AÉ",                  "aé"),
    ("trim",          " \n a b\t",           "a b"),
    ("first",         [1, 2],                1),
    ("first",         [],                    None),
    ("first",         "xy",                  "x"),
    ("first",         "",                    ""),
    ("first",         7,                     7),
    ("last",          [1, 2],                2),
    ("last",          "xy",                  "y"),
    ("default(9)",    None,                  9),
    ("default(9)",    0,                     0),
    ("default(9)",    "",                    ""),
    ("default('a')",  None,                  "a"),
    ("default(true)", None,                  True),
    ("default(1.5)",  None,                  1.5),
    ("join(', ')",    ["a", 1, None],        "a, 1, "),
    ("join(-)",       "ab",                  "ab"),
    ("join('')",      [],                    ""),
    ("join(1)",       ["a", "b"],            "a1b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "expected"), FILTERED)
def test_a_filter_changes_a_value(name: str, value: Any, expected: Any) -> None:
    result = render(f"${{x | {name}}}", value)
    assert (type(result), result) == (type(expected), expected)


FORMATTED = [
    # format   value                        result
    ("json",   [1, "a"],                    '[1,"a"]'),
    ("lines",  ["a", 2, None],              "a\n2\n"),
    ("lines",  "a",                         "a"),
    ("csv",    ["a", "b,c", 'd"e', "f\n"],  'a,"b,c","d""e","f\n"'),
    ("csv",    3,                           "3"),
    ("raw",    ["a"],                       '["a"]'),
    ("raw",    "a b",                       "a b"),
    ("int",    3,                           3),
    ("int",    " -12 ",                     -12),
    ("int",    "+7",                        7),
    ("int",    4.0,                         4),
    ("path",   "-x",                        "./-x"),
    ("path",   "a/-b",                      "a/-b"),
    ("path",   ["-x", "y"],                 ["./-x", "y"]),
    ("opt",    "-x",                        "-x"),
    ("*.py",   ["a.py", "b.c", "d/e.py"],   ["a.py", "d/e.py"]),
    ("src/*",  ["src/a", "b"],              ["src/a"]),
    ("*.py",   "a.py\nb.c",                 ["a.py"]),
    ("*.py",   "",                          []),
    ("*.py",   None,                        []),
    ("[ab].c", ["a.c", "d.c"],              ["a.c"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "expected"), FORMATTED)
def test_a_format_writes_a_value(name: str, value: Any, expected: Any) -> None:
    result = render(f"${{x:{name}}}", value)
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    "value",
    [
        "abc",
        "",
        "1.5",
        "1_000",
        "٣",
        "0x10",
        "--1",
        1.5,
        True,
        None,
        [1],
        {},
        "1" * 4001,
        S,
        float("inf"),
    ],
)
def test_int_does_not_guess_and_does_not_quote_the_value(value: Any) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        render("${x:int}", value)
    assert str(caught.value) == (
        "<template>:1:1: this value is not an integer, and ':int' does not guess\n"
        "1 | ${x:int}\n  | ^^^^^^^^\nfix: give it a whole number, or leave ':int' away"
    )


CHAINS = [
    ("${x | trim | upper}", " a ", "A"),
    ("${x | first | upper}", ["a"], "A"),
    ("${x | keys | join(',')}", {"a": 1, "b": 2}, "a,b"),
    ("${x:*.py:lines}", ["a.py", "b.py", "c"], "a.py\nb.py"),
    ("${x:lines | length}", ["a", "b"], 3),
    ("${x | last | default(0)}", [None], 0),
]


@pytest.mark.parametrize(("template", "value", "expected"), CHAINS)
def test_steps_follow_one_another(template: str, value: Any, expected: Any) -> None:
    assert render(template, value) == expected


def test_a_filter_does_not_make_an_unknown_name_known() -> None:
    assert compile_template("${y | length} ${y | default(z)}").render({}) == "${y | length} z"


@pytest.mark.parametrize("step", [" | json", ":json", ":csv"])
def test_quoting_what_is_quoted_meets_a_limit(step: str) -> None:
    with pytest.raises(
        LimitError, match="formats and filters made a text of more than 16,777,216 characters"
    ):
        render("${x" + step * 60 + "}", '""')
    with pytest.raises(LimitError):
        render("${x" + step * 60 + "}", Secret('""'))


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
    max_leaves=6,
)


@pytest.mark.parametrize("name", FILTERS)
@given(value=json_values)
def test_every_filter_answers_for_every_value(name: str, value: Any) -> None:
    arguments, function = FILTERS[name]
    answer = function(value, *[","] * arguments)
    assert answer is UNDEFINED or json.loads(json_text(answer)) == answer


@given(value=json_values)
def test_json_reads_back(value: Any) -> None:
    assert json.loads(render("${x:json}", value)) == value


@given(value=st.lists(st.text(), max_size=4))
def test_csv_reads_back(value: list[str]) -> None:
    import csv
    import io

    record = render("${x:csv}", value)
    if value not in ([], [""]) and "\0" not in record:
        assert next(csv.reader(io.StringIO(record, newline=""))) == value


@pytest.mark.parametrize("name", FILTERS)
def test_no_filter_shows_a_secret(name: str) -> None:
    arguments, function = FILTERS[name]
    for value in (Secret("hidden"), [Secret("hidden")], {"k": Secret("hidden")}):
        result = function(value, *[","] * arguments)
        assert "hidden" not in repr(result).lower()
        assert (
            "hidden"
            not in compile_template(f"<${{x | {name}{'(1)' * arguments}}}>")
            .render({"x": value})
            .lower()
        )


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "int"])
def test_no_format_shows_a_secret(name: str) -> None:
    for value in (Secret("hidden"), [Secret("hidden")], {"k": Secret("hidden")}):
        assert "hidden" not in repr(FORMATS[name](value))


def test_a_glob_filters_secrets_without_showing_them() -> None:
    kept = filter_paths([Secret("a.py"), "b.c"], "*.py")
    assert kept == [Secret("a.py")]
    assert repr(kept) == "[***]"
