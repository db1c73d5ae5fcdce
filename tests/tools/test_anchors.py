"""Anchors: which files a tool could load, and which of them are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.tools.anchors import ActiveAnchor, dependencies, find_anchor, library
from plait.tools.chain import Chain
from plait.tools.spaces import Space
from plait.tools.tool_file import Anchor, Header, ToolFile, VerifyDeps


def put(top: Path, *places: str) -> None:
    for place in places:
        path = top / "space" / "tools" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def item(top: Path, place: str, header: Header | None = None) -> ToolFile:
    path = str(top / "space" / "tools" / place)
    return ToolFile(
        "tool",
        place.rpartition(".")[0],
        Space("project", str(top / "space")),
        path,
        b"",
        "",
        header or Header(),
    )


def anchored(top: Path, **keys: Any) -> ActiveAnchor | None:
    runtime = item(top, "my/runtime.yaml", Header(anchor=Anchor(**keys)))
    return find_anchor(Chain((item(top, "pkg/tool.py"), runtime), "x"), str(top))


def names(top: Path, **keys: Any) -> list[str]:
    """The files below tools/ that must be verified."""
    found = dependencies(anchored(top, mode="always"), VerifyDeps(**keys), item(top, "pkg/tool.py"))
    return [each.relative.removeprefix("tools/") for each in found]


def test_every_loadable_file_below_the_anchor_but_the_tool(tmp_path: Path) -> None:
    put(
        tmp_path,
        "pkg/tool.py",
        "pkg/a.py",
        "pkg/config/b.yaml",
        "pkg/deep/er/c.json",
        "pkg/n.txt",
        "other/x.py",
    )
    put(
        tmp_path,
        "pkg/__pycache__/a.pyc",
        "pkg/node_modules/m.py",
        "pkg/.venv/v.py",
        "pkg/.git/g.py",
    )
    assert names(tmp_path) == ["pkg/a.py", "pkg/config/b.yaml", "pkg/deep/er/c.json"]


def test_scope_extensions_and_depth_can_be_set(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py", "pkg/a.py", "pkg/b.so", "pkg/deep/c.py")
    assert names(tmp_path, extensions=(".so",)) == ["pkg/b.so"]
    assert names(tmp_path, recursive=False) == ["pkg/a.py"]
    assert names(tmp_path, exclude_dirs=("deep",)) == ["pkg/a.py"]
    assert names(tmp_path, scope="tool_file") == []
    assert names(tmp_path, enabled=False) == []
    assert names(tmp_path, scope="tool_dir") == ["pkg/a.py", "pkg/deep/c.py"]


def test_without_an_anchor_nothing_else_is_loaded(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py", "pkg/a.py")
    assert dependencies(None, VerifyDeps(), item(tmp_path, "pkg/tool.py")) == []
    assert (
        dependencies(anchored(tmp_path, mode="always"), None, item(tmp_path, "pkg/tool.py")) == []
    )


@pytest.mark.parametrize("place", ["pkg/link.py", "pkg/link", "pkg/deep/link.txt"])
def test_a_link_that_could_be_loaded_is_refused(tmp_path: Path, place: str) -> None:
    put(tmp_path, "pkg/tool.py", "pkg/deep/x.py", "pkg-evil/x.py")
    (tmp_path / "space/tools" / place).symlink_to(tmp_path / "space/tools/pkg-evil")
    with pytest.raises(InputError) as caught:
        names(tmp_path)
    assert caught.value.code == "linked-dependency"


def test_a_linked_folder_that_is_left_out_does_no_harm(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py", "pkg/a.py")
    (tmp_path / "space/tools/pkg/.venv").symlink_to("/usr")
    assert names(tmp_path) == ["pkg/a.py"]


def test_a_library_is_walked_like_an_anchor(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py", "my/lib/a.py", "my/lib/deep/b.py", "my/other.py")
    found = library(anchored(tmp_path, mode="always", lib="lib"), VerifyDeps())
    assert [each.relative for each in found] == ["tools/my/lib/a.py", "tools/my/lib/deep/b.py"]


def test_a_library_outside_the_space_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py")
    with pytest.raises(InputError) as caught:
        library(anchored(tmp_path, mode="always", lib="../../../elsewhere"), VerifyDeps())
    assert caught.value.code == "outside-space"


def test_for_the_project_as_anchor_no_file_of_a_space_speaks(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py", "pkg/a.py")
    found = anchored(tmp_path, mode="always", root="project_path")
    assert found is not None
    assert found.is_project
    assert dependencies(found, VerifyDeps(), item(tmp_path, "pkg/tool.py")) == []


def test_the_first_anchor_of_a_chain_counts(tmp_path: Path) -> None:
    put(tmp_path, "pkg/tool.py")
    near = item(tmp_path, "a/near.yaml", Header(anchor=Anchor(mode="never")))
    far = item(tmp_path, "b/far.yaml", Header(anchor=Anchor(mode="always")))
    assert find_anchor(Chain((item(tmp_path, "pkg/tool.py"), near, far), "x"), None) is None
