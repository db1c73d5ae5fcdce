"""The first segment of a path picks the frame, and that frame answers alone."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.values import UNDEFINED
from plait.scope import LEVELS, Origin, Scope, Sources
from plait.template.template import compile_template

LOOKUPS = [
    # path            answer
    ("a",             1),
    ("m.k",           "v"),
    ("m.none",        None),
    ("m.nope",        UNDEFINED),
    ("m.k.deeper",    UNDEFINED),
    ("l[0]",          "x"),
    ("l.1",           "y"),
    ("l[-1]",         "y"),
    ("l[2]",          UNDEFINED),
    ("l[-3]",         UNDEFINED),
    ("l.k",           UNDEFINED),
    ("s[0]",          UNDEFINED),
    ("s.upper",       UNDEFINED),
    ("m.0",           "zero"),
    ('m["a b"]',      "spaced"),
    ("m.__class__",   UNDEFINED),
    ("__class__",     UNDEFINED),
    ("nope",          UNDEFINED),
]  # fmt: skip
NAMES = {
    "a": 1,
    "m": {"k": "v", "none": None, "0": "zero", "a b": "spaced"},
    "l": ["x", "y"],
    "s": "text",
}


@pytest.mark.parametrize(("path", "expected"), LOOKUPS)
def test_a_path_walks_into_maps_and_lists_and_nothing_else(path: str, expected: Any) -> None:
    assert Scope(NAMES).lookup(path) == expected


def test_an_inner_item_does_not_borrow_from_an_outer_one() -> None:
    scope = Scope({"item": {"name": "outer", "id": 1}}).child(item={"id": 2})
    assert scope.lookup("item.id") == 2
    assert scope.lookup("item.name") is UNDEFINED
    assert compile_template("${item.name:-none}").render(scope) == "none"


def test_a_null_of_an_inner_frame_hides_the_outer_value() -> None:
    assert Scope({"a": 1}).child(a=None).lookup("a") is None


def test_a_child_does_not_change_its_parent() -> None:
    parent = Scope({"a": 1})
    child = parent.child(a=2, b=3)
    assert (parent.lookup("a"), parent.lookup("b")) == (1, UNDEFINED)
    assert (child.lookup("a"), child.lookup("b")) == (2, 3)


def test_a_scope_does_not_follow_changes_of_the_map_it_was_made_of() -> None:
    names = {"a": 1}
    scope = Scope(names)
    names["a"] = 2
    assert scope.lookup("a") == 1


def test_a_scope_is_immutable() -> None:
    scope = Scope({"a": 1})
    with pytest.raises(
        AttributeError, match=r"^a Scope is immutable: 'names' cannot be set; use child"
    ):
        scope.names = {}
    with pytest.raises(AttributeError):
        scope.new = 1


@pytest.mark.parametrize("higher", range(len(LEVELS)))
def test_within_a_frame_the_higher_level_answers(higher: int) -> None:
    levels: dict[str, Any] = {level: {"x": level} for level in LEVELS[higher:]}
    scope = Scope().frame("f", **levels)
    assert scope.lookup("x") == LEVELS[higher]
    assert scope.origin("x") == Origin("f", LEVELS[higher])


def test_an_inner_frame_beats_a_higher_level_of_an_outer_one() -> None:
    scope = Scope({"x": "captured outside"}).frame("inner", env={"x": "env inside"})
    assert scope.lookup("x") == "env inside"
    assert scope.origin("x") == Origin("inner", "env")


TRUSTED = {
    "captures": False,
    "phase": False,
    "step": False,
    "workflow": True,
    "outputs": False,
    "env": True,
}


@pytest.mark.parametrize("level", LEVELS)
def test_only_the_words_of_the_author_are_trusted(level: str) -> None:
    levels: dict[str, Any] = {level: {"x": 1}}
    origin = Scope().frame("f", **levels).origin("x")
    assert origin is not None
    assert origin.is_trusted is TRUSTED[level]


def test_unknown_and_computed_names_have_no_origin() -> None:
    assert Scope({"a": 1}).origin("b") is None
    assert Scope().origin("uuid") is None


ALIASES = [
    # path           item                          answer
    ("ARG",          {"value": "v", "path": "p"},  "v"),
    ("ARGUMENT",     {"value": "v"},               "v"),
    ("FILE",         {"path": "p"},                "p"),
    ("FILE_PATH",    {"path": "p"},                "p"),
    ("FILE",         {"value": "v"},               UNDEFINED),
    ("ARG",          "plain",                      "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "item", "expected"), ALIASES)
def test_legacy_aliases_read_the_item(path: str, item: Any, expected: Any) -> None:
    assert Scope({"item": item}).lookup(path) == expected


def test_an_alias_is_unknown_without_an_item_and_yields_to_a_variable() -> None:
    assert Scope().lookup("ARG") is UNDEFINED
    assert Scope({"item": {"value": "v"}, "ARG": "own"}).lookup("ARG") == "own"


def test_a_variable_wins_over_a_computed_value() -> None:
    sources = Sources(environ={"X": "outside"}, new_uuid=lambda: "fresh")
    assert Scope(sources=sources).lookup("env.X") == "outside"
    assert Scope({"env": {"X": "own"}}, sources=sources).lookup("env.X") == "own"
    assert Scope({"env": {}}, sources=sources).lookup("env.X") is UNDEFINED
    assert Scope(sources=sources).lookup("uuid") == "fresh"
    assert Scope({"uuid": 7}, sources=sources).lookup("uuid") == 7


def test_computed_values_are_shared_by_all_frames() -> None:
    sources = Sources(environ={"X": "x"})
    assert Scope(sources=sources).child(a=1).child(b=2).lookup("env.X") == "x"


def test_a_scope_may_be_made_of_any_map_and_of_nothing_else() -> None:
    assert Scope(MappingProxyType({"a": 1})).lookup("a") == 1
    assert Scope.of(MappingProxyType({"a": 1})).lookup("a") == 1
    with pytest.raises(InputError) as caught:
        Scope([("a", 1)])  # type: ignore[arg-type]
    assert str(caught.value) == 'a scope is made of a map of names\nfix: pass {"name": value}'


def test_a_scope_shows_its_frames_and_no_value() -> None:
    assert (
        repr(Scope({"a": "hidden"}).frame("map", phase={"item": "hidden"}))
        == "Scope(map > values; 2 names)"
    )


frames = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3), max_size=5)


@given(frames=frames)
def test_the_innermost_frame_that_knows_a_name_answers(frames: list[dict[str, int]]) -> None:
    scope = Scope()
    for names in frames:
        scope = scope.child(**names)
    for name in "abc":
        expected = next((names[name] for names in reversed(frames) if name in names), UNDEFINED)
        assert scope.lookup(name) == expected
        assert scope.names.get(name, UNDEFINED) == expected
