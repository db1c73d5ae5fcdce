"""A template that is rendered often means the same as on its first day."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core.errors import MissingNamesError, PlaitError, ValueRefusedError
from plait.core.values import Secret
from plait.scope import Scope
from plait.template.template import (
    RENDERINGS_UNTIL_HOT,
    SURPRISES_UNTIL_CAUTIOUS,
    Template,
    compile_template,
)
from share import examples

OFTEN = RENDERINGS_UNTIL_HOT + 5
MANY_SURPRISES = SURPRISES_UNTIL_CAUTIOUS + 5


def outcome(render: Callable[..., Any], values: Any, **switches: Any) -> tuple[str, Any]:
    """What came out, with its types; or which error, word for word."""
    try:
        value = render(values, **switches)
    except PlaitError as error:
        return type(error).__name__, str(error)
    return "value", typed(value)


def typed(value: Any) -> Any:
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, value


def hot(template: Any, values: Any, profile: str = "workflow", **switches: Any) -> Template:
    compiled = compile_template(template, profile, lookup_of=Scope.of)
    for _ in range(OFTEN):
        outcome(compiled.render, values, **switches)
    return compiled


def is_generated(template: Template) -> bool:
    return getattr(template.render, "__name__", "") == "render"


# ── random templates and values ──────────────────────────────────────────

PIECES = {
    "workflow": [
        *(
            "${a}",
            "${b.c}",
            "${b.d:-none}",
            "${a:-d}",
            "$a",
            "$NOPE",
            "${nope}",
            "${nope:-x}",
            "${a || b.c}",
            "${l[0]}",
        ),
        *(
            "${a | upper}",
            "${a:json}",
            "${a:int}",
            "${nope:-${a}}",
            "${nope:-$NOPE}",
            "${env.X}",
            "${a:?need}",
            "${b.c.d}",
        ),
    ],
    "graph": [
        "${a}",
        "${b.c}",
        "${nope}",
        "{input:k}",
        "{input:n}",
        "{input:k?}",
        "{input:n:d}",
        "${b.c:-x}",
        "${A}",
    ],
    "config": ["${A}", "${A:-d}", "${N:-d}", "${N:-{a}}", "{a}", "{nope}", "{{a}}", "${a}", "${N}"],
    "prompt": ["{a}", "{b}", "{{a}}", "{nope}"],
    "directive": ["{input:k}", "{input:n}", "{input:n?}", "{input:n:d}", "${a}"],
}
scalars = st.one_of(
    st.text(max_size=4), st.integers(-5, 10**20), st.booleans(), st.none(), st.floats(allow_nan=True, width=16),
    st.builds(Secret, st.text(max_size=3)), st.lists(st.integers(0, 3), max_size=2),
)  # fmt: skip
maps = st.dictionaries(st.sampled_from(["c", "d", "k", "n"]), scalars, max_size=4)
names = st.fixed_dictionaries(
    {},
    optional={
        "a": scalars,
        "b": st.one_of(maps, scalars),
        "l": st.lists(scalars, max_size=2),
        "inputs": st.one_of(maps, scalars),
    },
)
containers: list[Callable[[dict[str, Any]], Any]] = [
    dict, MappingProxyType, OrderedDict, UserDict, Scope, lambda it: defaultdict(str, it), lambda it: Counter(it),
]  # fmt: skip


def texts(profile: str) -> st.SearchStrategy[str]:
    pieces = st.one_of(
        st.sampled_from(PIECES[profile]), st.sampled_from(["text", " ", "'", "\n", "é", "\\"])
    )
    return st.lists(pieces, min_size=1, max_size=11).map("".join)


def trees(profile: str) -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        texts(profile), st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)
    )
    nodes = st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)), max_leaves=5)  # fmt: skip
    return st.one_of(texts(profile), nodes)


@pytest.mark.parametrize("profile", PIECES)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_generated_code_says_what_the_careful_way_says(profile: str, data: st.DataObject) -> None:
    env = data.draw(st.sampled_from([None, {}, {"A": "e", "X": "${a}"}]))
    template = hot(data.draw(trees(profile)), data.draw(names), profile, env=env)
    for _ in range(4):
        values = data.draw(st.sampled_from(containers))(data.draw(names))
        strict = data.draw(st.booleans())
        careful = outcome(template.render_checked, values, strict=strict, env=env)
        assert repr(outcome(template.render, values, strict=strict, env=env)) == repr(careful)
        assert repr(outcome(template.render_checked, values, strict=strict, env=env)) == repr(
            careful
        )


@pytest.mark.parametrize("profile", PIECES)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_code_that_was_surprised_often_says_it_too(profile: str, data: st.DataObject) -> None:
    template = hot(data.draw(trees(profile)), data.draw(names), profile, env={"A": "e"})
    surprising = data.draw(names)
    for _ in range(MANY_SURPRISES):
        outcome(template.render, surprising, env={"A": "e"})
    values = data.draw(names)
    careful = outcome(template.render_checked, values, env={"A": "e"})
    assert repr(outcome(template.render, values, env={"A": "e"})) == repr(careful)


# ── rows ─────────────────────────────────────────────────────────────────

ROWS = [
    # template                            sample                      then                             expected
    ("${a}${b}",                          {"a": 1, "b": 2},           {"a": 3, "b": 4},                "34"),
    ("${a}${b}x",                         {"a": 1, "b": 2},           {"a": "3", "b": 4},              "34x"),
    ("${a}${b}",                          {"a": "1", "b": "2"},       {"a": [1], "b": [2]},            "[1][2]"),
    ("${a}x${b}",                         {"a": "1", "b": "2"},       {"a": None, "b": True},          "xtrue"),
    ("n=${a}",                            {"a": 1},                   {"a": True},                     "n=true"),
    ("n=${a}",                            {"a": "x"},                 {"a": Secret("s")},              "n=***"),
    ("n=${a}",                            {"a": "x"},                 {"a": 1.0},                      "n=1.0"),
    ("${a}",                              {"a": "x"},                 {"a": [1, {"k": None}]},         [1, {"k": None}]),
    ("${a.b}",                            {"a": {"b": 1}},            {"a": "text"},                   "${a.b}"),
    ("${a.b:-d}",                         {"a": {"b": 1}},            {"a": "text"},                   "d"),
    ("${a.b:-d}",                         {"a": {}},                  {"a": ["x"]},                    "d"),
    ("${a.b:-d} ${a.c}",                  {"a": {"c": 1}},            {"a": {"b": 0, "c": 2}},         "0 2"),
    ("${a:-d}",                           {},                         {"a": None},                     None),
    ("<${a:-d}>",                         {"a": "d"},                 {},                              "<d>"),
    ({"x": "${a:-$HOME}"},                {},                         {},                              {"x": "$HOME"}),
    ({"x": "1", "y": "${n:-${a} $Z}"},    {"a": 1},                   {"a": "q"},                      {"x": "1", "y": "q $Z"}),
    (["${a}", "${a.b}", "${b}"],          {"a": {"b": 1}, "b": 2},    {"a": {}, "b": 3},               [{}, "${a.b}", 3]),
    ("$a-$b",                             {"a": "x"},                 {"b": "y"},                      "$a-y"),
    ("a'\"\\\n${a}",                      {"a": "x"},                 {"a": "y"},                      "a'\"\\\ny"),
    ("${a} " * 12,                        {"a": "x"},                 {"a": 1},                        "1 " * 12),
]  # fmt: skip


@pytest.mark.parametrize(("template", "sample", "then", "expected"), ROWS)
def test_values_of_another_kind_are_put_in_place_as_before(
    template: Any, sample: Any, then: Any, expected: Any
) -> None:
    compiled = hot(template, sample)
    assert is_generated(compiled)
    assert typed(compiled.render(then)) == typed(expected)


class Colour(str, Enum):  # noqa: UP042 - StrEnum prints itself in another way
    RED = "red"


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"

    def __format__(self, spec: str) -> str:
        return "LOUD"


@pytest.mark.parametrize("value", [Colour.RED, Loud("red")], ids=["enum", "subclass"])
@pytest.mark.parametrize("sample", ["x", 1, None])
@pytest.mark.parametrize("template", ["<${a}>", "${a}${a}", "${a} " * 10])
def test_a_subclass_of_str_is_its_text(template: str, sample: Any, value: str) -> None:
    assert hot(template, {"a": sample}).render({"a": value}) == template.replace("${a}", "red")


@pytest.mark.parametrize("template", ["<${a}>", "<${b.a}>", "<${b.a:-none}>", "<${a:-none}>"])
def test_a_map_that_invents_values_is_not_asked_to(template: str) -> None:
    compiled = hot(template, {"a": "x", "b": {"a": "x"}})
    values: Mapping[str, Any] = defaultdict(str, {"b": defaultdict(str)})
    expected = template if ":-" not in template else "<none>"
    assert compiled.render(values) == expected
    assert list(values) == ["b"]
    assert list(values["b"]) == []


@pytest.mark.parametrize("key", [Colour.RED, 1, None, True, 1.5, float("inf"), (1, 2)], ids=repr)
def test_a_key_is_kept_whatever_it_is(key: Any) -> None:
    assert hot({key: "${a}"}, {"a": "x"}).render({"a": "y"}) == {key: "y"}


def test_strict_is_asked_at_every_rendering() -> None:
    template = hot("${a} ${b}", {"a": 1, "b": 2})
    assert template.render({"a": 1}) == "1 ${b}"
    with pytest.raises(MissingNamesError) as caught:
        template.render({"a": 1}, strict=True)
    assert caught.value.names == ("b",)
    assert template.render({"a": 1, "b": 2}, strict=True) == "1 2"


def test_an_error_has_its_place_however_hot_the_template_is() -> None:
    template = hot({"k": "n=${n:int}"}, {"n": 1})
    assert is_generated(template)
    with pytest.raises(ValueRefusedError) as caught:
        template.render({"n": "abc"})
    assert str(caught.value) == (
        "<template>.k:1:3: this value is not an integer, and ':int' does not guess\n"
        "1 | n=${n:int}\n  |   ^^^^^^^^\nfix: give it a whole number, or leave ':int' away"
    )


def test_a_number_too_long_to_print_is_refused_in_the_same_words() -> None:
    template = hot("n=${n}", {"n": 1})
    assert outcome(template.render, {"n": 10**5000}) == outcome(
        template.render_checked, {"n": 10**5000}
    )
    with pytest.raises(
        ValueRefusedError,
        match=r"^<template>:1:3: a value has no JSON form: an integer is too long",
    ):
        template.render({"n": 10**5000})


def test_a_template_that_becomes_hot_on_a_bad_value_still_says_where() -> None:
    template = compile_template("${n:int}")
    for _ in range(RENDERINGS_UNTIL_HOT):
        template.render({"n": 1})
    for _ in range(3):
        with pytest.raises(
            ValueRefusedError, match=r"^<template>:1:1: this value is not an integer"
        ):
            template.render({"n": "abc"})
    assert template.render({"n": "7"}) == 7


def test_a_scope_and_a_map_may_take_turns() -> None:
    template = hot("${a}/${b.c}", {"a": 1, "b": {"c": 2}})
    scope = Scope({"a": 3}).child(b={"c": 4})
    assert template.render(scope) == "3/4"
    assert hot("${a}/${b.c}", scope).render({"a": 1, "b": {"c": 2}}) == "1/2"


def test_a_deep_tree_can_be_hot() -> None:
    tree: Any = "${a}"
    for _ in range(99):
        tree = [tree]
    template = hot(tree, {"a": 1})
    value = template.render({"a": 2})
    for _ in range(99):
        [value] = value
    assert value == 2


def test_threads_may_render_one_template_while_it_becomes_hot() -> None:
    template = compile_template({"x": "${a}-${b.c}", "y": "${n:-$Z} ${b.c | upper}"})
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def work(me: int) -> None:
        start.wait(10)
        for turn in range(150):
            values = {"a": f"{me}.{turn}" if turn % 3 else turn, "b": {"c": f"c{me}"}}
            got = template.render(values)
            if got != {"x": f"{values['a']}-c{me}", "y": f"$Z C{me}"}:
                wrong.append((values, got))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert is_generated(template)
