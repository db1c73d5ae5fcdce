"""Copies of verified files: complete, unchangeable, made once, and never anywhere unsafe."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attack import swap_attack
from plait.core.digests import sha256_hex
from plait.core.errors import InputError
from plait.tools.anchors import ActiveAnchor
from plait.tools.snapshots import ABANDONED, Room, Snapshots
from plait.tools.spaces import Space
from plait.tools.tool_file import Anchor, Header, ToolFile


def item(top: Path, place: str, data: bytes) -> ToolFile:
    return ToolFile(
        "tool",
        place,
        Space("project", str(top)),
        str(top / "tools" / place),
        data,
        sha256_hex(data),
        Header(),
    )


def anchored(top: Path, folder: str) -> ActiveAnchor:
    return ActiveAnchor(
        Anchor(mode="always"), str(top / "tools" / folder), "", item(top, "runtime.yaml", b"")
    )


def files_below(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def copies_in(root: str) -> set[str]:
    return {name for name in os.listdir(root) if name != ".lock"}


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


@pytest.mark.parametrize("what", ["cache", "cache/.lock"])
def test_a_cache_that_is_removed_meanwhile_is_made_anew(tmp_path: Path, what: str) -> None:
    root = tmp_path / "cache"
    snapshots = Snapshots(str(root))
    one, two = item(tmp_path, "t.py", b"one"), item(tmp_path, "t.py", b"two")
    before = snapshots.place(one, None, [])
    shutil.rmtree(tmp_path / what) if what == "cache" else (tmp_path / what).unlink()
    for tool in (two, one):
        placed = snapshots.place(tool, None, [])
        assert Path(placed.tool_path).read_bytes() == tool.data
    assert placed == before
    # No other process removes them while we use them: it checks the locks.
    Snapshots(str(root), room=Room(copies=1)).place(item(tmp_path, "t.py", b"three"), None, [])
    assert Path(placed.tool_path).read_bytes() == b"one"


def test_a_cache_that_is_removed_all_the_time_is_made_anew_all_the_time(tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    snapshots = Snapshots(root)
    snapshots.place(item(tmp_path, "t.py", b"first"), None, [])
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        tool = item(tmp_path, "t.py", b"%d" % (number % 3))
        assert Path(snapshots.place(tool, None, []).tool_path).read_bytes() == tool.data
        shutil.rmtree(root)
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_names_and_contents_cannot_be_confused(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path / "cache"))
    ways = [[("a", b"x"), ("b", b"y")], [("a", b"y"), ("b", b"x")], [("a", b"x")], [("ab", b"x")]]
    folders = {
        snapshots.place_library(
            str(tmp_path / "tools"), [item(tmp_path, name, data) for name, data in files]
        )
        for files in ways
    }
    assert len(folders) == len(ways)


def test_many_threads_make_one_copy(tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    barrier = threading.Barrier(8)
    placed: list[str] = []

    def place() -> None:
        barrier.wait(20)
        placed.append(
            Snapshots(root).place(item(tmp_path, "t.py", b"x" * 100_000), None, []).tool_path
        )

    threads = [threading.Thread(target=place) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(placed) == 8
    assert len(set(placed)) == 1
    assert copies_in(root) == {os.path.basename(os.path.dirname(placed[0]))}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(InputError) as caught:
        Snapshots(str(root)).place(item(tmp_path, "t.py", b"x"), None, [])
    assert (
        str(caught.value) == f"{root} can be written by others\nfix: chmod 700 {root}, or remove it"
    )


def test_a_cache_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        Snapshots(str(tmp_path / "cache")).place(item(tmp_path, "t.py", b"x"), None, [])


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
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
    assert os.readlink(f"{opened.anchor_path}/node_modules") == str(
        tmp_path / "tools/pkg/node_modules"
    )


def test_files_exchanged_between_check_and_start_do_not_run(tmp_path: Path) -> None:
    counts = swap_attack.attack(tmp_path, 30)
    assert counts["other"] == 0
    assert sum(counts.values()) == 30


# ── room ─────────────────────────────────────────────────────────────────


def filled(top: Path, count: int, *, size: int = 1) -> list[str]:
    """Unused copies, the oldest first."""
    made = []
    for number in range(count):
        unused = Snapshots(str(top / "cache"))
        folder = unused.place(item(top, "t.py", bytes([number]) * size), None, []).anchor_path
        os.utime(folder, ns=(number, number))
        made.append(os.path.basename(folder))
        del unused  # and with it goes what it holds
    return made


def place_new(top: Path, room: Room) -> str:
    snapshots = Snapshots(str(top / "cache"), room=room)
    return os.path.basename(snapshots.place(item(top, "t.py", b"new"), None, []).anchor_path)


ROOMS = [
    # room                    how many of five old copies of 100 bytes stay beside a new one
    (Room(),                  5),
    (Room(copies=6),          5),
    (Room(copies=3),          2),
    (Room(copies=1),          0),
    (Room(size=300),          2),
    (Room(size=303),          3),
    (Room(copies=5, size=0),  0),
]  # fmt: skip


@pytest.mark.parametrize(("room", "stay"), ROOMS)
def test_the_cache_keeps_within_its_room_and_drops_the_oldest_first(
    tmp_path: Path, room: Room, stay: int
) -> None:
    old = filled(tmp_path, 5, size=100)
    new = place_new(tmp_path, room)
    assert copies_in(str(tmp_path / "cache")) == {*old[5 - stay :], new}


def test_a_copy_that_is_used_again_is_not_the_oldest(tmp_path: Path) -> None:
    old = filled(tmp_path, 3)
    Snapshots(str(tmp_path / "cache")).place(item(tmp_path, "t.py", bytes([0])), None, [])
    new = place_new(tmp_path, Room(copies=2))
    assert copies_in(str(tmp_path / "cache")) == {old[0], new}


def test_a_copy_in_use_stays_whatever_the_room(tmp_path: Path) -> None:
    old = filled(tmp_path, 4)
    using = Snapshots(str(tmp_path / "cache"))
    used = using.place(item(tmp_path, "t.py", bytes([0])), None, [])
    os.utime(used.anchor_path, ns=(0, 0))
    new = place_new(tmp_path, Room(copies=1))
    assert copies_in(str(tmp_path / "cache")) == {old[0], new}
    assert Path(used.tool_path).read_bytes() == bytes([0])
    del using
    other = Snapshots(str(tmp_path / "cache"), room=Room(copies=0))
    other.place(item(tmp_path, "t.py", b"other"), None, [])
    assert old[0] not in copies_in(str(tmp_path / "cache"))


HOLDER = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from tools.test_snapshots import item
from plait.tools.snapshots import Snapshots
top = Path(sys.argv[2])
snapshots = Snapshots(str(top / "cache"))
print(snapshots.place(item(top, "t.py", bytes([0])), None, []).tool_path, flush=True)
sys.stdin.read()
"""


def test_what_another_process_uses_stays_until_that_process_is_gone_however_it_ends(
    tmp_path: Path,
) -> None:
    tests = str(Path(__file__).parent.parent)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tests, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        used = Path(holder.stdout.readline().strip())
        place_new(tmp_path, Room(copies=0))
        assert used.read_bytes() == bytes([0])
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=60)
    other = Snapshots(str(tmp_path / "cache"), room=Room(copies=0))
    other.place(item(tmp_path, "t.py", b"other"), None, [])
    assert not used.exists()


RACER = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from tools.test_snapshots import item
from plait.tools.snapshots import Room, Snapshots
top = Path(sys.argv[2])
for number in range(60):
    snapshots = Snapshots(str(top / "cache"), room=Room(copies=1))
    placed = snapshots.place(item(top, "t.py", bytes([number % 4])), None, [])
    assert Path(placed.tool_path).read_bytes() == bytes([number % 4])
"""


def test_processes_that_make_and_remove_the_same_copies_never_miss_one(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, tests, str(tmp_path)], stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    errors = [racer.communicate(timeout=60)[1].decode() for racer in racers]
    assert errors == ["", "", ""]
    assert len(copies_in(str(tmp_path / "cache"))) <= 3


def test_what_a_killed_process_left_half_done_is_removed_in_time(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    filled(tmp_path, 1)
    for name, age in (
        (".new-old", ABANDONED + 60),
        (".new-young", ABANDONED - 60),
        (".old-x", 0.0),
    ):
        (cache / name).mkdir()
        (cache / name / "t.py").write_text("x")
        os.utime(cache / name, (time.time() - age,) * 2)
    place_new(tmp_path, Room())
    assert sorted(name for name in copies_in(str(cache)) if name.startswith(".")) == [".new-young"]


def test_a_used_copy_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path / "cache"))
    first = snapshots.place(item(tmp_path, "t.py", b"x"), None, [])
    shutil.rmtree(first.anchor_path)
    assert snapshots.place(item(tmp_path, "t.py", b"x"), None, []) == first
    assert Path(first.tool_path).read_bytes() == b"x"
