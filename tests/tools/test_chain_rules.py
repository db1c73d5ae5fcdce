"""Which chains are allowed: the decision on each pair, and the text of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from plait.core.errors import InputError
from plait.core.source import Source, Span
from plait.tools.chain import Chain
from plait.tools.chain_rules import check_pairs, short_id, validate
from plait.tools.spaces import Space, SpaceName
from plait.tools.tool_file import Constraint, Entry, Header, ToolFile, parse_header

HERE = Span(Source("tool.yaml", ""), 0, 0)


def item(item_id: str, space: SpaceName = "project", **keys: Any) -> ToolFile:
    return ToolFile(
        "tool", item_id, Space(space, f"/{space}"), f"/{space}/{item_id}", b"", "", Header(**keys)
    )


def chain(*items: ToolFile) -> Chain:
    return Chain(items, "core/primitives/subprocess")


def test_every_pair_is_judged_down_to_the_primitive() -> None:
    pairs = validate(chain(item("a"), item("core/runtimes/x"), item("b")))
    assert [pair.record() for pair in pairs] == [
        {"child": "a", "parent": "x", "space_ok": True, "io_ok": True},
        {"child": "x", "parent": "b", "space_ok": True, "io_ok": True},
        {"child": "b", "parent": "subprocess", "space_ok": True, "io_ok": True},
    ]


def test_all_problems_of_all_pairs_come_together() -> None:
    wrong = chain(
        item("a", "system", outputs=("text",), version="1.0.0"),
        item("b", "user", inputs=("image", "sound"), child_constraints={"a": Constraint("2", "3")}),
        item("c", "project"),
    )
    with pytest.raises(InputError) as caught:
        validate(wrong)
    assert str(caught.value) == (
        "/system/a: 'a' of the system space depends on 'b' of the user space\n"
        "fix: an item may depend on its own space and those below it: project > user > system\n"
        "/system/a: 'b' needs image, sound, which 'a' does not give\n"
        "fix: add it to the outputs of 'a', or choose another executor_id\n"
        "/system/a: 'b' wants 'a' ≥ 2 ≤ 3, and it is 1.0.0\n"
        "fix: install a version of 'a' in that range\n"
        "/user/b: 'b' of the user space depends on 'c' of the project space\n"
        "fix: an item may depend on its own space and those below it: project > user > system"
    )


def test_a_bundle_counts_as_system() -> None:
    bundled = ToolFile(
        "tool", "b", Space("system", "/bundle", "extra"), "/bundle/b", b"", "", Header()
    )
    assert all(pair.space_ok for pair in check_pairs(chain(item("a", "system"), bundled)))


def test_a_version_that_is_none_is_refused_and_not_let_through() -> None:
    pair = check_pairs(
        chain(item("a", version="new"), item("b", child_constraints={"a": Constraint("1")}))
    )[0]
    assert (pair.version_ok, pair.record()["version_ok"]) == (False, False)
    assert pair.problems[0].code == "bad-version"


def test_a_constraint_on_another_child_says_nothing() -> None:
    assert check_pairs(
        chain(item("a", version="0"), item("b", child_constraints={"z": Constraint("1")}))
    )[0].version_ok


@pytest.mark.parametrize(
    ("item_id", "short"),
    [
        ("core/runtimes/python/script", "python/script"),
        ("core/primitives/subprocess", "subprocess"),
        ("a/b", "a/b"),
    ],
)
def test_runtimes_and_primitives_have_short_names(item_id: str, short: str) -> None:
    assert short_id(item_id) == short


CONSTRAINTS = [
    ({"min_version": "2"}, False),
    ({"min_version": "1"}, True),
    ({"max_version": "1.4"}, False),
    ({"team/tool": {"min_version": "2"}}, False),
    ({"team/*": {"min_version": "2"}}, False),
    ({"*": {"min_version": "2"}}, False),
    ({"*": {"min_version": "1"}, "team/*": {"max_version": "1"}}, False),
    ({"min_version": "1", "*": {"max_version": "1"}}, False),
    ({"min_version": "1", "other/*": {"min_version": "9"}}, True),
    ({"team": {"min_version": "9"}}, True),
]


@pytest.mark.parametrize(("fields", "is_allowed"), CONSTRAINTS)
def test_a_constraint_holds_for_all_for_an_id_and_for_a_pattern(
    fields: dict[str, Any], is_allowed: bool
) -> None:
    header = parse_header({"child_constraints": Entry(fields, HERE)})
    parent = item("run/time", child_constraints=header.child_constraints)
    (pair, *_) = check_pairs(chain(item("team/tool", version="1.5"), parent))
    assert pair.version_ok == is_allowed


INPUTS = [
    (["a"], True),
    ([{"name": "a"}], True),
    ([{"name": "a", "required": True}], True),
    ([{"name": "a", "required": False}], False),
    ([{"name": "a", "default": 1}], False),
    ({"a": {"type": "string"}}, True),
    ({"a": "string"}, True),
    ({"a": {"type": "string", "required": False}}, False),
    ({"a": {"type": "string", "default": "x"}}, False),
    ({"a": {"optional": True}}, False),
]


@pytest.mark.parametrize(("inputs", "is_needed"), INPUTS)
def test_only_inputs_that_are_required_have_to_be_given(inputs: Any, is_needed: bool) -> None:
    header = parse_header({"inputs": Entry(inputs, HERE)})
    parent = item("b", inputs=header.inputs)
    assert check_pairs(chain(item("a", outputs=("z",)), parent))[0].io_ok != is_needed
    assert check_pairs(chain(item("a", outputs=("a",)), parent))[0].io_ok
