"""Conditions: the rows of conformance/conditions.yaml, whole messages, limits and laws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import ConditionError, LimitError
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json, Secret
from plait.template.conditions import (
    MAX_DEPTH,
    MAX_NODES,
    Place,
    check,
    compile_condition,
    matches,
)
from plait.template.operators import MAX_PATTERN, OPERATORS

ROWS = yaml.safe_load(
    (Path(__file__).parent.parent / "conformance/conditions.yaml").read_text("utf-8")
)


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{row['seed']}-{row['about']}".replace(" ", "-") for row in ROWS]
)
def test_a_row_of_the_table_holds(row: dict[str, Any]) -> None:
    if "expect" in row:
        assert matches(row["document"], row["condition"]) is row["expect"]
        assert check(row["condition"]) == []
        return
    with pytest.raises(ConditionError) as caught:
        matches(row["document"], row["condition"])
    assert [f"{problem.where}: {problem.what}" for problem in caught.value.problems] == row["error"]
    assert all(problem.fix for problem in caught.value.problems)


def test_every_operator_has_a_row_for_true_for_false_and_for_error() -> None:
    seen = {
        (str(row["condition"].get("op", "eq")), row.get("expect", "error"))
        for row in ROWS
        if isinstance(row["condition"], dict) and "path" in row["condition"]
    }
    # `eq` and `ne` compare anything with anything, so only a missing value is an error.
    wanted = {(name, outcome) for name in OPERATORS for outcome in (True, False, "error")} - {
        ("ne", "error")
    }
    assert wanted - seen == set()


def test_rows_have_names_of_their_own() -> None:
    names = [row["about"] for row in ROWS]
    assert sorted(names) == sorted(set(names))


# Whole messages.

MESSAGES = [
    # document      condition                                   message
    ({}, {"path": "a", "op": "contain", "value": 1}, "op: there is no operator 'contain'\nfix: did you mean 'contains'? operators: eq, ne, gt, gte, lt, lte, in, contains, regex, exists"),
    ({}, {"path": "a", "op": "≈", "value": 1}, "op: there is no operator '≈'\nfix: operators: eq, ne, gt, gte, lt, lte, in, contains, regex, exists"),
    ({}, {"pth": "a"}, "pth: 'pth' is not a field of a condition\nfix: did you mean 'path'? fields: path, op, value, any, all, not"),
    ({}, {"\x1b[2J": 1}, "['\\x1b[2J']: '\\x1b[2J' is not a field of a condition\nfix: fields: path, op, value, any, all, not"),
    ({}, {"k" * 80: 1}, f"['{'k' * 59}…']: '{'k' * 59}…' is not a field of a condition\nfix: fields: path, op, value, any, all, not"),
    ({}, {3: 1}, "['a number']: 'a number' is not a field of a condition\nfix: fields: path, op, value, any, all, not"),
    ({}, {"any": [], "not": {}}, "condition: 'any' and 'not' stand in one condition, which can only be one of them\nfix: give each its own map, and join these by all: [ … ] or any: [ … ]"),
    ({}, {"path": "a", "op": "regex", "value": "a++"}, "value: the value of 'regex' is a pattern with a possessive repetition, which a search in linear time cannot do\nfix: use RE2 syntax, and all, any and not to join simpler patterns"),
    ({}, {"path": "a", "op": "regex", "value": "a\\Z"}, "value: the value of 'regex' is not a valid pattern (invalid escape sequence)\nfix: write \\z for the end of the text"),
    ({}, {"path": "a", "op": "regex", "value": "\ud800"}, "value: the value of 'regex' is text with half a surrogate pair\nfix: use text that has a UTF-8 form"),
    ({"a": "\ud800"}, {"path": "a", "op": "regex", "value": "x"}, "path: 'a' is text with half a surrogate pair\nfix: use text that has a UTF-8 form"),
    ({}, {"path": "a", "value": float("nan")}, "value: the value is not JSON data\nfix: write strings, finite numbers, true/false, null, lists and maps with string keys"),
    ({}, {"path": "a", "value": [{1: 2}]}, "value: the value is not JSON data\nfix: write strings, finite numbers, true/false, null, lists and maps with string keys"),
    ({}, {"path": "a", "value": {1, 2}}, "value: the value is not JSON data\nfix: write strings, finite numbers, true/false, null, lists and maps with string keys"),
    ([1], {"path": "", "op": "gt", "value": 1}, "path: the document is a list and is compared with a number\nfix: compare numbers with numbers and strings with strings"),
    ({"a": object()}, {"path": "a", "op": "gt", "value": 1}, "path: 'a' is not JSON data and is compared with a number\nfix: compare numbers with numbers and strings with strings"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "condition", "message"), MESSAGES)
def test_a_mistake_says_what_where_and_what_to_do(
    document: Json, condition: Json, message: str
) -> None:
    with pytest.raises(ConditionError) as caught:
        matches(document, condition)
    assert str(caught.value) == message


def test_no_message_holds_a_value_of_the_document_or_the_condition() -> None:
    hidden = "hunter2"
    document = {"a": hidden, "b": [hidden], "c": 5}
    condition = {
        "any": [
            {"path": "a", "op": "gt", "value": 1},
            {"path": "b", "op": "lt", "value": hidden},
            {"path": "c", "op": "contains", "value": hidden},
            {"path": "c", "op": "regex", "value": hidden},
        ]
    }
    with pytest.raises(ConditionError) as caught:
        matches(document, condition)
    assert len(caught.value.problems) == 4
    assert hidden not in str(caught.value)
    with pytest.raises(ConditionError) as caught:
        matches(document, {"path": "a", "op": "regex", "value": f"({hidden}"})
    assert hidden not in str(caught.value)


def test_a_loader_with_spans_gets_its_problems_at_the_spans() -> None:
    source = Source("flow.yaml", "when: {path: a, op: gtt, value: 1}")
    start = source.text.index("gtt")
    spans: dict[Place, Span] = {("op",): Span(source, start, start + 3)}
    problems = check({"path": "a", "op": "gtt", "value": 1}, locate=lambda place: spans[place])
    assert str(problems[0]).startswith(
        "flow.yaml:1:21: there is no operator 'gtt'\n1 | when: {path"
    )


# Secrets, and values that stand for nothing.

SECRETS = [
    # condition on the secret                                             answer
    ({"path": "token", "value": "s3cret"}, True),
    ({"path": "token", "value": Secret("s3cret")}, True),
    ({"path": "token", "op": "ne", "value": "changeme"}, True),
    ({"path": "token", "op": "contains", "value": "3c"}, True),
    ({"path": "token", "op": "regex", "value": "^s.*t$"}, True),
    ({"path": "token", "op": "in", "value": ["other"]}, False),
    ({"path": "token", "op": "gt", "value": "a"}, True),
    ({"path": "token", "op": "exists"}, True),
    ({"path": "", "value": {"token": "s3cret"}}, True),
]


@pytest.mark.parametrize(("condition", "answer"), SECRETS)
def test_a_secret_is_compared_as_the_string_it_hides(condition: Json, answer: bool) -> None:
    assert matches({"token": Secret("s3cret")}, condition) is answer


def test_undefined_is_missing() -> None:
    assert matches({"a": UNDEFINED}, {"path": "a", "op": "exists"}) is False
    assert matches(UNDEFINED, {"path": "", "op": "exists", "value": False}) is True


# Use.


def test_a_compiled_condition_is_read_once_and_used_often() -> None:
    condition: dict[str, Json] = {"path": "n", "op": "gte", "value": 2}
    holds = compile_condition(condition)
    condition["op"] = "never read again"
    assert [holds({"n": n}) for n in (1, 2, 3)] == [False, True, True]


def test_a_condition_with_a_mistake_is_refused_before_any_document() -> None:
    with pytest.raises(ConditionError):
        compile_condition({"any": [{}, {"path": "a", "op": "nope", "value": 1}]})


def test_the_pattern_engine_is_imported_only_by_a_pattern() -> None:
    program = (
        "import sys; from plait.template.conditions import matches;"
        "matches({}, {'path': 'a', 'value': 1}); before = 're2' in sys.modules;"
        "matches({}, {'path': 'a', 'op': 'regex', 'value': 'x'}); print(before, 're2' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ran.stdout.split(), ran.stderr) == (["False", "True"], "")


def test_a_wrong_pattern_leaves_nothing_on_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert len(check({"path": "a", "op": "regex", "value": "("})) == 1
    assert capfd.readouterr().err == ""


# Limits.


def nested(depth: int, wrap: str = "all") -> Json:
    condition: Json = {"path": "a", "value": 1}
    for _ in range(depth):
        condition = {"not": condition} if wrap == "not" else {wrap: [condition]}
    return condition


@pytest.mark.parametrize("wrap", ["all", "any", "not"])
def test_conditions_nest_to_the_limit_and_no_further(wrap: str) -> None:
    assert matches({"a": 1}, nested(MAX_DEPTH, wrap)) is True
    with pytest.raises(LimitError) as caught:
        matches({"a": 1}, nested(MAX_DEPTH + 1, wrap))
    assert (
        str(caught.value)
        == "condition: a condition is nested deeper than 64\nfix: join tests in flatter lists"
    )
    assert [problem.what for problem in check(nested(5_000, wrap))] == [caught.value.what]


def test_a_value_nested_too_deeply_is_refused_and_a_deep_document_is_not() -> None:
    deep: Json = []
    for _ in range(50_000):
        deep = [deep]
    assert matches(deep, {"path": "", "value": [[[]]]}) is False
    with pytest.raises(LimitError):
        matches({}, {"path": "a", "value": deep})


def test_a_condition_that_contains_itself_is_refused() -> None:
    endless: dict[str, Json] = {}
    endless["not"] = endless
    with pytest.raises(LimitError):
        matches({}, endless)


def test_shared_parts_count_at_each_use() -> None:
    bomb: Json = {"path": "a", "value": 1}
    for _ in range(60):
        bomb = {"any": [bomb, bomb]}
    with pytest.raises(LimitError) as caught:
        matches({}, bomb)
    assert f"{MAX_NODES:,}" in caught.value.what


def test_a_pattern_longer_than_the_limit_is_refused() -> None:
    condition = {"path": "a", "op": "regex", "value": "x" * MAX_PATTERN}
    assert matches({"a": "x" * 2_000}, condition) is True
    assert len(check({**condition, "value": "x" * (MAX_PATTERN + 1)})) == 1


SEARCHES = [
    # pattern                      text            answer, or None when it is refused
    ("x", "x" * (1 << 20), True),
    ("x", "x" * ((1 << 20) + 1), None),
    ("x", "é" * (1 << 19) + "é", None),  # bytes count, not characters
    ("(x+x+)+y", "x" * 100_000, False),  # exponential in a backtracking engine
    ("((x?){30}){30}y", "x" * (1 << 20), None),  # linear, but a second for every 60 KB
    ("((x?){30}){30}y", "x" * 10_000, False),
]


@pytest.mark.parametrize(("pattern", "text", "answer"), SEARCHES)
def test_the_work_of_a_search_is_bounded(pattern: str, text: str, answer: bool | None) -> None:
    condition = {"path": "", "op": "regex", "value": pattern}
    if answer is not None:
        assert matches(text, condition) is answer
        return
    with pytest.raises(ConditionError) as caught:
        matches(text, condition)
    assert caught.value.what == "the document is too long for this pattern"


@pytest.mark.parametrize("path", ["a." + "9" * 5_000, f"a[{'9' * 18}]"])
def test_an_enormous_index_is_missing_and_not_a_crash(path: str) -> None:
    assert matches({"a": [1]}, {"path": path, "op": "exists"}) is False


# Laws.  Names and values come from small sets so that documents and conditions meet.

names = st.sampled_from(["a", "b", "0", "-1", "k.k"])
scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2, -1.5, "", "a", "1", "b"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
keys = st.lists(st.sampled_from(["a", "b", "k.k", 0, 1, -1]), max_size=3)
patterns = st.sampled_from(["a", "^$", "[0-9]+", "b|1", "."])


def written(path: list[str | int]) -> str:
    """A path in brackets; the dotted notation has rows of its own."""
    return "".join(f"[{key}]" if isinstance(key, int) else f'["{key}"]' for key in path)


def leaf_of(path: list[str | int], op: str, value: Json) -> Json:
    return {"keys": path, "op": op, "value": value}


leaves = st.one_of(
    st.builds(leaf_of, keys, st.sampled_from(["eq", "ne", "contains"]), values),
    st.builds(
        leaf_of,
        keys,
        st.sampled_from(["gt", "gte", "lt", "lte"]),
        st.sampled_from([0, 1.5, "a", ""]),
    ),
    st.builds(leaf_of, keys, st.just("in"), st.lists(values, max_size=3)),
    st.builds(leaf_of, keys, st.just("regex"), patterns),
    st.builds(leaf_of, keys, st.just("exists"), st.booleans()),
)
trees: st.SearchStrategy[Json] = st.recursive(
    leaves | st.just({}),
    lambda inner: (
        st.builds(lambda parts: {"any": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda parts: {"all": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda part: {"not": part}, inner)
    ),
    max_leaves=8,
)


def plain(tree: Json) -> Json:
    """The condition that a tree of key lists stands for."""
    if "keys" in tree:
        return {"path": written(tree["keys"]), "op": tree["op"], "value": tree["value"]}
    return {
        key: plain(part) if key == "not" else [plain(one) for one in part]
        for key, part in tree.items()
    }


class MeaninglessError(Exception):
    pass


def naive(document: Json, tree: Json) -> bool:
    """The same language in the fewest words."""
    if "any" in tree:
        return any(naive(document, part) for part in tree["any"])
    if "all" in tree:
        return all(naive(document, part) for part in tree["all"])
    if "not" in tree:
        return not naive(document, tree["not"])
    return naive_leaf(document, tree) if tree else True


def naive_leaf(document: Json, tree: Json) -> bool:
    found, op, value = naive_found(document, tree["keys"]), tree["op"], tree["value"]
    if op in ("eq", "ne"):
        return bool(typed(found) == typed(value)) is (op == "eq")
    if op == "exists":
        return (found is not None) is bool(value)
    if found is None:
        return False
    if op == "in":
        return bool(typed(found) in typed(value)[1])
    if op == "contains":
        return naive_contains(found, value)
    return naive_regex(found, value) if op == "regex" else naive_order(found, op, value)


def naive_found(document: Json, path: list[str | int]) -> Json:
    for key in path:
        if isinstance(document, dict):
            document = document.get(str(key))
        elif (
            isinstance(document, list)
            and isinstance(key, int)
            and -len(document) <= key < len(document)
        ):
            document = document[key]
        else:
            return None
    return document


def naive_contains(found: Json, value: Json) -> bool:
    if isinstance(found, list):
        return bool(typed(value) in typed(found)[1])
    if isinstance(found, str | dict) and isinstance(value, str):
        return value in found
    raise MeaninglessError


def naive_regex(found: Json, pattern: str) -> bool:
    if not isinstance(found, str):
        raise MeaninglessError
    return re.search(pattern, found) is not None


def naive_order(found: Json, op: str, value: Json) -> bool:
    if typed(found)[0] != typed(value)[0] or isinstance(found, bool | list | dict):
        raise MeaninglessError
    before, same = found < value, found == value
    return bool(
        {"gt": not before and not same, "gte": not before, "lt": before, "lte": before or same}[op]
    )


def typed(value: Json) -> Any:
    """A form in which Python's == is JSON's: true apart from 1, 1 together with 1.0."""
    if isinstance(value, list):
        return "list", [typed(part) for part in value]
    if isinstance(value, dict):
        return "map", {key: typed(part) for key, part in value.items()}
    kind = float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
    return kind.__name__, value


@given(document=values, tree=trees)
def test_the_evaluator_agrees_with_the_naive_one(document: Json, tree: Json) -> None:
    try:
        expected = naive(document, tree)
    except MeaninglessError:
        with pytest.raises(ConditionError):
            matches(document, plain(tree))
    else:
        assert matches(document, plain(tree)) is expected


def answer(document: Json, condition: Json) -> bool | list[str]:
    """The answer, or what is wrong, whatever its place."""
    try:
        return matches(document, condition)
    except ConditionError as error:
        return sorted(problem.what for problem in error.problems)


@given(document=values, parts=st.lists(trees.map(plain), max_size=4))
def test_de_morgan_holds_for_answers_and_for_errors(document: Json, parts: list[Json]) -> None:
    opposites = [{"not": part} for part in parts]
    assert answer(document, {"not": {"all": parts}}) == answer(document, {"any": opposites})
    assert answer(document, {"not": {"any": parts}}) == answer(document, {"all": opposites})


@given(document=values, condition=trees.map(plain))
def test_not_of_not_is_the_condition(document: Json, condition: Json) -> None:
    assert answer(document, {"not": {"not": condition}}) == answer(document, condition)


words = st.sampled_from(
    ["path", "op", "value", "any", "all", "not", "eq", "regex", "in", "a", "a[", "("]
)
wild = st.recursive(
    scalars | words | st.text(max_size=5) | st.floats() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(document=values | wild, condition=wild)
def test_whatever_stands_there_is_answered_or_refused(document: Json, condition: Json) -> None:
    found = check(condition)
    if found:
        with pytest.raises(ConditionError) as caught:
            compile_condition(condition)
        assert sorted(map(str, caught.value.problems)) == sorted(map(str, found))
        assert all(problem.where and problem.fix for problem in found)
    else:
        assert isinstance(answer(document, condition), bool | list)


@given(document=values, path=st.text(alphabet='ab.[]"-01', max_size=8))
def test_a_path_of_any_letters_is_read_or_refused(document: Json, path: str) -> None:
    condition = {"path": path, "op": "exists"}
    assert isinstance(answer(document, condition), bool) is (check(condition) == [])
