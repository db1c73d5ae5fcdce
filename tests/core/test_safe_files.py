"""Opening below a folder: what is found, what is refused, and what is out of reach."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attack import path_attack
from plait.core import safe_files as beneath
from plait.core.errors import InputError, LimitError
from plait.core.safe_files import OutsideError, open_below, read_below, stamp_below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    space = tmp_path / "space"
    (space / "tools" / "deep").mkdir(parents=True)
    (space / "tools" / "t.py").write_bytes(b"inside")
    (space / "tools" / "deep" / "d.py").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"outside")
    return space


def test_bytes_and_stamp_of_a_file(root: Path) -> None:
    data, stamp = read_below(str(root), "tools/t.py") or (b"", None)
    status = (root / "tools/t.py").stat()
    assert data == b"inside"
    assert stamp is not None
    assert (stamp.inode, stamp.size, stamp.changed) == (status.st_ino, 6, status.st_ctime_ns)
    assert stamp_below(str(root), "tools/t.py") == stamp


@pytest.mark.parametrize("place", ["tools/no.py", "no/t.py", "tools", "tools/t.py/x", "tools/deep"])
def test_what_is_no_file_is_nothing(root: Path, place: str) -> None:
    assert read_below(str(root), place) is None
    assert stamp_below(str(root), place) is None


def test_a_root_that_is_not_there_holds_nothing(root: Path) -> None:
    assert read_below(str(root / "no"), "x") is None
    assert read_below(str(root / "tools" / "t.py"), "x") is None


@pytest.mark.parametrize(
    "place",
    [
        "../secret",
        "tools/../../secret",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "tools/./t.py",
        "tools/",
        "a\0b",
    ],
)
def test_a_path_that_could_leave_is_refused_unseen(root: Path, place: str) -> None:
    for look in (read_below, stamp_below):
        with pytest.raises(OutsideError) as caught:
            look(str(root), place)
        assert caught.value.code == "outside-space"


WAYS = [beneath.open_with_openat2, beneath.open_by_walking, None]


@pytest.mark.parametrize("target", ["../../secret", "t.py", "/etc/passwd"])
@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_refused_wherever_it_leads(
    root: Path, target: str, way: beneath.Opener | None
) -> None:
    (root / "tools" / "link.py").symlink_to(target)
    with pytest.raises(OutsideError) as caught:
        read_below(str(root), "tools/link.py", way=way)
    assert caught.value.what == "'tools/link.py' is a link, or lies behind one"


@pytest.mark.parametrize("way", WAYS)
def test_a_linked_folder_leads_nowhere(root: Path, way: beneath.Opener | None) -> None:
    (root / "linked").symlink_to(root / "tools")
    with pytest.raises(OutsideError):
        read_below(str(root), "linked/t.py", way=way)


PLACES = [
    "tools/t.py",
    "tools/deep/d.py",
    "tools/no.py",
    "no/t.py",
    "tools",
    "tools/t.py/x",
    "tools/deep",
]


@pytest.mark.parametrize("place", PLACES)
def test_the_walk_finds_what_the_kernel_finds(root: Path, place: str) -> None:
    by_kernel, by_walking = (
        read_below(str(root), place, way=way)
        for way in (beneath.open_with_openat2, beneath.open_by_walking)
    )
    assert by_kernel == by_walking


def test_the_way_changes_with_the_number_of_files_and_the_answer_does_not(root: Path) -> None:
    answers = {read_below(str(root), "tools/t.py") for _ in range(2 * beneath._OPENED_BY_WALKING)}
    assert len(answers) == 1


def test_a_pipe_neither_blocks_nor_counts_as_a_file(root: Path) -> None:
    os.mkfifo(root / "tools" / "pipe.py")
    assert read_below(str(root), "tools/pipe.py") is None


def test_a_file_beyond_the_limit_is_refused(root: Path) -> None:
    with (root / "tools" / "big.py").open("wb") as file:
        file.truncate(beneath.MAX_FILE + 1)
    with pytest.raises(LimitError, match="larger than 16,777,216 bytes"):
        read_below(str(root), "tools/big.py")


def test_the_limit_holds_for_what_is_read_not_for_the_announced_size(root: Path) -> None:
    # As if the file had grown after it was looked at.
    with (root / "tools" / "big.py").open("wb") as file:
        file.truncate(beneath.MAX_FILE + 1)
    handle = os.open(root / "tools" / "big.py", os.O_RDONLY)
    with pytest.raises(LimitError):
        beneath._read(handle, "tools/big.py", str(root))
    os.close(handle)


def test_no_descriptor_is_left(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for place in ("tools/t.py", "no", "tools/deep"):
        read_below(str(root), place)
    with pytest.raises(InputError):
        read_below(str(root), "../x")
    assert len(os.listdir("/proc/self/fd")) == before


@given(
    st.lists(
        st.sampled_from(["..", ".", "", "tools", "t.py", "secret", "\0", "~", "%2e%2e", "..\\"]),
        max_size=6,
    )
)
def test_no_path_reads_what_is_outside(parts: list[str]) -> None:
    root = "/usr/lib"  # a folder that exists; nothing in it is called so
    try:
        found = read_below(root, "/".join(parts))
    except OutsideError:
        return
    assert found is None


# ── links that stay inside, for those who ask ────────────────────────────


@pytest.fixture
def linked(root: Path) -> Path:
    (root / "tools" / "near.py").symlink_to("t.py")
    (root / "tools" / "deep" / "up.py").symlink_to("../near.py")
    (root / "way").symlink_to("tools/deep/../")
    (root / "out").symlink_to("../secret")
    (root / "absolute").symlink_to(root / "tools" / "t.py")
    (root / "round").symlink_to("way/../round")
    (root / "loose").symlink_to("tools/no.py")
    return root


def found(root: Path, place: str, way: beneath.Opener | None) -> bytes | str:
    """The bytes of a file, or how it was refused."""
    try:
        handle = open_below(str(root), place, links="inside", way=way)
    except OutsideError:
        return "outside"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        return os.read(handle, 100) if stat.S_ISREG(os.fstat(handle).st_mode) else "folder"
    finally:
        os.close(handle)


BY_LINKS = [
    # place                      what is there
    ("tools/t.py",               b"inside"),
    ("tools/near.py",            b"inside"),
    ("tools/deep/up.py",         b"inside"),
    ("way/t.py",                 b"inside"),
    ("way/deep/../near.py",      b"inside"),
    ("./way/.//deep/up.py",      b"inside"),
    ("way",                      "folder"),
    ("tools/..",                 "folder"),
    ("..",                       "outside"),
    ("tools/../../secret",       "outside"),
    ("way/../../x/tools/t.py",   "outside"),
    ("out",                      "outside"),
    ("absolute",                 "outside"),
    ("/etc/passwd",              "outside"),
    ("a\0b",                     "outside"),
    ("round",                    "ELOOP"),
    ("loose",                    "ENOENT"),
    ("no/../tools/t.py",         "ENOENT"),
    ("tools/t.py/",              "ENOTDIR"),
    ("tools/t.py/..",            "ENOTDIR"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "expected"), BY_LINKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_link_may_lead_anywhere_inside(
    linked: Path, place: str, expected: bytes | str, way: beneath.Opener | None
) -> None:
    assert found(linked, place, way) == expected


STEPS = [
    "..",
    ".",
    "",
    "tools",
    "deep",
    "way",
    "near.py",
    "up.py",
    "t.py",
    "out",
    "round",
    "absolute",
    "no",
]


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_of_following_links_have_the_same_result(linked: Path, steps: list[str]) -> None:
    place = "/".join(steps)
    by_kernel = found(linked, place or ".", beneath.open_with_openat2)
    assert by_kernel == found(linked, place or ".", beneath.open_by_walking)
    assert by_kernel != b"outside"


def test_following_links_leaves_no_descriptor(linked: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for place, _ in BY_LINKS:
        for way in WAYS:
            found(linked, place, way)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("way", ["openat2", "walk", "openat2 with links", "walk with links"])
def test_a_race_with_links_brings_no_byte_from_outside(tmp_path: Path, what: str, way: str) -> None:
    counts = path_attack.attack(tmp_path, what, way, 200)
    assert counts["outside"] == 0
    assert counts["inside"] + counts["nothing"] + counts["refused"] == 200
