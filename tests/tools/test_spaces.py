"""Ids and the spaces that answer them."""

from __future__ import annotations

import os
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.tools.spaces import (
    MAX_ID,
    Space,
    SpaceName,
    Spaces,
    current_id,
    normalize_id,
)

NAMES: tuple[SpaceName, ...] = ("project", "user", "system")


def spaces_in(top: Path, **options: object) -> Spaces:
    return Spaces(tuple(Space(name, str(top / name)) for name in NAMES), **options)  # type: ignore[arg-type]


def put(top: Path, space: str, *places: str) -> None:
    for place in places:
        path = top / space / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


GOOD = ["a", "team/report", "a/b/c", "A-1/b_2", "a/b.c", "tool:team/report", "x" * MAX_ID]
BAD = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", ".a", "a/.b", "-a", "_a", "a b", "a\n", "a\0b", "ä",
    "a\\b", "~/a", "a/~b", "tool:", "tool:../a", "directive:a", "x" * (MAX_ID + 1), "a/" * 50000,
]  # fmt: skip


@pytest.mark.parametrize("item_id", GOOD)
def test_an_id_has_one_spelling(item_id: str) -> None:
    assert normalize_id(item_id) == item_id.removeprefix("tool:")


@pytest.mark.parametrize("item_id", BAD)
def test_what_is_no_id_is_refused(item_id: str) -> None:
    with pytest.raises(InputError) as caught:
        normalize_id(item_id)
    assert caught.value.code == "bad-id"


PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:/[A-Za-z0-9][A-Za-z0-9_.-]*)*")


@pytest.mark.parametrize("length", range(1, 6))
def test_an_id_is_what_its_pattern_says(length: int) -> None:
    for letters in product("aZ0_-./é\n", repeat=length):
        text = "".join(letters)
        assert is_id(text) == (PATTERN.fullmatch(text) is not None)


def is_id(text: str) -> bool:
    try:
        return normalize_id(text) == text
    except InputError:
        return False


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(["..", ".", "a", "", "/", "~", "\0", "b.c", "%2f"])).map("/".join),
    )
)
@example("a/..")
def test_no_id_can_leave_a_space(text: str) -> None:
    try:
        plain = normalize_id(text)
    except InputError:
        return
    for name in (plain, current_id(text)):
        joined = os.path.normpath(os.path.join("/space/tools", name))
        assert joined == f"/space/tools/{name}"


RENAMED = [
    # of the seed                           ours
    ("rye/core/runtimes/python/script",     "core/runtimes/python/script"),
    ("rye/core/primitives/subprocess",      "core/primitives/subprocess"),
    ("rye/bash/bash",                       "core/shell"),
    ("rye/file-system/write",               "core/file/write"),
    ("rye/file-system/grep",                "core/file/search"),
    ("rye/other/thing",                     "rye/other/thing"),
    ("team/rye/core/x",                     "team/rye/core/x"),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "ours"), RENAMED)
def test_ids_of_the_seed_resolve_to_ours(seed: str, ours: str) -> None:
    assert current_id(seed) == ours


def test_project_before_user_before_system(tmp_path: Path) -> None:
    spaces = spaces_in(tmp_path)
    for name in reversed(NAMES):
        put(tmp_path, name, "tools/a/b.py")
        found = spaces.find("a/b")
        assert found is not None
        assert found.space.name == name
    found = spaces.find("a/b")
    assert found is not None
    assert [hidden.space.name for hidden in spaces.find_shadowed(found)] == ["user", "system"]


@pytest.mark.parametrize(
    ("within", "answer"), [("project", "project"), ("user", "user"), ("system", "system")]
)
def test_an_item_sees_its_own_space_and_those_below(
    tmp_path: Path, within: SpaceName, answer: str
) -> None:
    for name in NAMES:
        put(tmp_path, name, "tools/a.py")
    found = spaces_in(tmp_path).find("a", within=Space(within, "/x"))
    assert found is not None
    assert found.space.name == answer


def test_an_id_of_the_seed_may_be_somebodys_own(tmp_path: Path) -> None:
    put(tmp_path, "system", "tools/core/shell.py")
    spaces = spaces_in(tmp_path)
    found = spaces.find("rye/bash/bash")
    assert found is not None
    assert found.id == "core/shell"
    put(tmp_path, "user", "tools/rye/bash/bash.py")
    found = spaces.find("rye/bash/bash")
    assert found is not None
    assert (found.id, found.space.name) == ("rye/bash/bash", "user")


def test_two_files_with_one_id_are_named(tmp_path: Path) -> None:
    put(tmp_path, "project", "tools/d.py", "tools/d.yaml")
    with pytest.raises(InputError) as caught:
        spaces_in(tmp_path).find("d")
    assert str(caught.value) == (
        f"{tmp_path}/project: 'd' names 2 files in the project space: tools/d.py, tools/d.yaml\n"
        "fix: rename or remove all but one"
    )


def test_bundles_answer_last_and_are_reported_apart(tmp_path: Path) -> None:
    put(tmp_path, "one", "tools/b.py", "tools/a.py")
    put(tmp_path, "two", "tools/b.py")
    put(tmp_path, "system", "tools/a.py")
    bundles = (
        Space("system", str(tmp_path / "one"), "one"),
        Space("system", str(tmp_path / "two"), "two"),
    )
    spaces = spaces_in(tmp_path, bundles=lambda: bundles)
    labels = [
        found.space.label for item_id in ("a", "b") if (found := spaces.find(item_id)) is not None
    ]
    assert labels == ["system", "system:one"]


def test_a_missing_tool_is_reported_with_what_was_meant(tmp_path: Path) -> None:
    put(tmp_path, "user", "tools/team/report.py")
    error = spaces_in(tmp_path).missing_error("team/reprt")
    folders = ", ".join(f"{tmp_path}/{name}/tools" for name in NAMES)
    assert str(error) == (
        "there is no tool 'team/reprt'\n"
        f"fix: did you mean 'team/report'? looked in {folders}; 'plait tools' lists them"
    )


def test_one_wrong_file_does_not_hide_that_another_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "project", "tools/d.py", "tools/d.yaml")
    (tmp_path / "project/tools/link.py").symlink_to("/etc/passwd")
    assert spaces_in(tmp_path).missing_error("x").code == "unknown-tool"


def test_the_ids_are_those_of_tools_in_all_spaces(tmp_path: Path) -> None:
    put(
        tmp_path,
        "project",
        "tools/a.py",
        "tools/.hidden/b.py",
        "tools/__pycache__/c.py",
        "tools/_private.py",
        "tools/n.txt",
    )
    put(tmp_path, "system", "tools/a.py", "tools/deep/s.sh")
    assert spaces_in(tmp_path).ids() == {"a", "deep/s"}
