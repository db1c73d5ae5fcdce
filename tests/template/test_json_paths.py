"""JSONPath through the names that both lines of the library export."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, LimitError
from plait.program.items import compile_json_path
from plait.template.json_paths import chooses_one_by_one, compile_query, is_wildcard

PARTS: list[tuple[str, tuple[str, ...], str, bool, bool]] = [
    # path                         names           rest                 one by one  singular
    ("$",                          (),             "",                  False,      True),
    ("$.a.b",                      ("a", "b"),     "",                  False,      True),
    ("$ .a ['b'] [ \"c\" ]",       ("a", "b", "c"), "",                 False,      True),
    ("$['it\\'s'][\"a\\\"b\"]",    ("it's", 'a"b'), "",                 False,      True),
    ("$['\\u00e9\\n\"\\\\']",      ('é\n"\\',),    "",                  False,      True),
    ("$.é_1.x",                    ("é_1", "x"),   "",                  False,      True),
    ("$.a[0]",                     ("a",),         "[0]",               False,      True),
    ("$[-1].b",                    (),             "[-1].b",            False,      True),
    ("$.a[*]",                     ("a",),         "[*]",               True,       False),
    ("$.a.*",                      ("a",),         ".*",                True,       False),
    ("$.a[ * ].b",                 ("a",),         "[ * ].b",           True,       False),
    ("$.a[*, 0]",                  ("a",),         "[*, 0]",            False,      False),
    ("$.a['b', 'c']",              ("a",),         "['b', 'c']",        False,      False),
    ("$.a[1:2]",                   ("a",),         "[1:2]",             False,      False),
    ("$..a",                       (),             "..a",               False,      False),
    ("$.a[?@.b]",                  ("a",),         "[?@.b]",            True,       False),
    ("$.a[?@.b, ?@.c]",            ("a",),         "[?@.b, ?@.c]",      False,      False),
    ("$.a[?@['b','c']]",           ("a",),         "[?@['b','c']]",     True,       False),
    ("$.a[?@ == ',' || @ == ']']", ("a",),         "[?@ == ',' || @ == ']']", True,  False),
    ("$.a[?match(@, 'x')]['p','q']", ("a",),       "[?match(@, 'x')]['p','q']", True, False),
    ("$.a[?@ > $.m]",              ("a",),         "[?@ > $.m]",        False,      False),  # looks at the root
]  # fmt: skip


@pytest.mark.parametrize(("path", "names", "rest", "one_by_one", "singular"), PARTS)
def test_a_path_is_taken_apart_as_the_standard_reads_it(
    path: str, names: tuple[str, ...], rest: str, one_by_one: bool, singular: bool
) -> None:
    query = compile_query(path)
    assert query.leading_names() == (names, rest)
    assert (chooses_one_by_one(rest), query.is_singular) == (one_by_one, singular)
    assert is_wildcard(rest) == (rest in ("[*]", ".*"))


NAME = st.sampled_from([".a", "['a']", ' [ "b" ]', ".b", "['c,]']"])
CHOICE = st.sampled_from(
    [
        "[*]",
        ".*",
        "[0]",
        "[-1]",
        "[0:1]",
        "['a','b']",
        "..a",
        "[?@.a]",
        "[?@ > 1]",
        "[?@.a == ']']",
        "[?@.a, *]",
    ]
)
DOCUMENT = st.recursive(
    st.integers(0, 3) | st.sampled_from(["]", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c,]"]), inner)
    ),
    max_leaves=12,
)


@given(st.lists(NAME, max_size=2), st.lists(CHOICE | NAME, min_size=1, max_size=3), DOCUMENT)
def test_items_chosen_one_by_one_are_those_of_the_whole_path(
    names: list[str], rest: list[str], document: Any
) -> None:
    path = compile_json_path("$" + "".join(names + rest))
    try:
        found = list(path.of_document(document, "x"))
    except InputError:  # nothing is there to choose from, or no list
        found = []
    if not path.wants_list:
        assert found == [node.value for node in compile_query(path.text).nodes(document)]


def test_a_document_that_is_too_deep_for_a_path_is_refused_with_its_place() -> None:
    deep: Any = 0
    for _ in range(150):
        deep = [deep]
    with pytest.raises(LimitError) as caught:
        list(compile_json_path("$..a").of_document(deep, "deep.json"))
    assert str(caught.value) == (
        "deep.json: the JSON is nested too deeply for '$..a'\nfix: say where to look by names instead of '..'"
    )


def test_a_path_that_is_nested_deeply_is_read_or_refused() -> None:
    path = "$[?" + "(" * 400 + "@" + ")" * 400 + "]"
    with suppress(LimitError):
        assert [node.value for node in compile_query(path).nodes([1])] == [1]
