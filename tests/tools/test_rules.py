"""Is a chain allowed: the verdict on each pair, and the words of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import InputError
from plait.tools.chain import Chain
from plait.tools.items import Constraint, Header, Item
from plait.tools.rules import judge, short_id, validate
from plait.tools.spaces import Space, SpaceName


def item(item_id: str, space: SpaceName = "project", **keys: Any) -> Item:
    return Item("tool", item_id, Space(space, f"/{space}"), f"/{space}/{item_id}", b"", "", Header(**keys))


def chain(*items: Item) -> Chain:
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
    bundled = Item("tool", "b", Space("system", "/bundle", "extra"), "/bundle/b", b"", "", Header())
    assert all(pair.space_ok for pair in judge(chain(item("a", "system"), bundled)))


def test_a_version_that_is_none_is_refused_and_not_let_through() -> None:
    pair = judge(chain(item("a", version="new"), item("b", child_constraints={"a": Constraint("1")})))[0]
    assert (pair.version_ok, pair.record()["version_ok"]) == (False, False)
    assert pair.problems[0].code == "bad-version"


def test_a_constraint_on_another_child_says_nothing() -> None:
    assert judge(chain(item("a", version="0"), item("b", child_constraints={"z": Constraint("1")})))[
        0
    ].version_ok


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
