"""Copies of verified files: complete, unchangeable, made once, and never anywhere unsafe."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from attack import swap_attack
from plait.errors import InputError
from plait.tools.anchors import Anchored
from plait.tools.items import Anchor, Header, Item, digest_of
from plait.tools.snapshots import Snapshots
from plait.tools.spaces import Space


def item(top: Path, place: str, data: bytes) -> Item:
    return Item(
        "tool", place, Space("project", str(top)), str(top / "tools" / place), data, digest_of(data), Header()
    )


def anchored(top: Path, folder: str) -> Anchored:
    return Anchored(Anchor(mode="always"), str(top / "tools" / folder), "", item(top, "runtime.yaml", b""))


def files_below(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def test_a_copy_holds_the_bytes_that_were_verified(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path / "cache"))
    tool, part = item(tmp_path, "pkg/tool.py", b"tool"), item(tmp_path, "pkg/deep/part.py", b"part")
    placed = snapshots.place(tool, anchored(tmp_path, "pkg"), [part])
    assert files_below(placed.anchor_path) == {"tool.py": b"tool", "deep/part.py": b"part"}
    assert placed.tool_path == f"{placed.anchor_path}/tool.py"
    assert stat.S_IMODE(os.stat(placed.tool_path).st_mode) == 0o500
    assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700


def test_the_same_bytes_are_copied_once_and_others_elsewhere(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path / "cache"))
    first = snapshots.place(item(tmp_path, "t.py", b"one"), None, [])
    inode = os.stat(first.tool_path).st_ino
    again = Snapshots(str(tmp_path / "cache")).place(item(tmp_path, "t.py", b"one"), None, [])
    assert (again, os.stat(again.tool_path).st_ino) == (first, inode)
    other = snapshots.place(item(tmp_path, "t.py", b"two"), None, [])
    assert other.anchor_path != first.anchor_path
    assert Path(first.tool_path).read_bytes() == b"one"


def test_names_and_contents_cannot_be_confused(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path / "cache"))
    ways = [[("a", b"x"), ("b", b"y")], [("a", b"y"), ("b", b"x")], [("a", b"x")], [("ab", b"x")]]
    folders = {
        snapshots.place_library(str(tmp_path / "tools"), [item(tmp_path, name, data) for name, data in files])
        for files in ways
    }
    assert len(folders) == len(ways)


def test_many_threads_make_one_copy(tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    barrier = threading.Barrier(8)
    placed: list[str] = []

    def place() -> None:
        barrier.wait(20)
        placed.append(Snapshots(root).place(item(tmp_path, "t.py", b"x" * 100_000), None, []).tool_path)

    threads = [threading.Thread(target=place) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(placed) == 8
    assert len(set(placed)) == 1
    assert os.listdir(root) == [os.path.basename(os.path.dirname(placed[0]))]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(InputError) as caught:
        Snapshots(str(root)).place(item(tmp_path, "t.py", b"x"), None, [])
    assert str(caught.value) == f"{root} can be written by others\nfix: chmod 700 {root}, or remove it"


def test_a_cache_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        Snapshots(str(tmp_path / "cache")).place(item(tmp_path, "t.py", b"x"), None, [])


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        Snapshots(str(tmp_path / "file" / "cache")).place(item(tmp_path, "t.py", b"x"), None, [])
    assert (caught.value.code, caught.value.what) == (
        "no-snapshot",
        "a verified copy cannot be written: Not a directory",
    )


def test_installed_packages_are_reached_only_when_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "tools/pkg/node_modules").mkdir(parents=True)
    snapshots = Snapshots(str(tmp_path / "cache"))
    tool, anchor = item(tmp_path, "pkg/tool.js", b"x"), anchored(tmp_path, "pkg")
    closed = snapshots.place(tool, anchor, [])
    assert not os.path.lexists(f"{closed.anchor_path}/node_modules")
    opened = snapshots.place(tool, anchor, [], installed=True)
    assert os.readlink(f"{opened.anchor_path}/node_modules") == str(tmp_path / "tools/pkg/node_modules")


def test_files_exchanged_between_check_and_start_do_not_run(tmp_path: Path) -> None:
    tally = swap_attack.attack(tmp_path, 30)
    assert tally["other"] == 0
    assert sum(tally.values()) == 30
