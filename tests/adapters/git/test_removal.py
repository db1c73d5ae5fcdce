"""Folders that cannot be read or removed: the run goes on, nothing is lost, and nothing looks like a deletion."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.git.places import Does, Place, start_git
from ordinary import by_ordinary_user
from plait.adapters.git import Leftover, clean_leftover, find_leftovers
from plait.adapters.git.removal import remove_tree
from plait.core.errors import InputError
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Failed, Succeeded
from plait.program.worktrees.isolation import Isolation
from program.fake_git import git

IGNORING = {".gitignore": "cache/\n.env\n", "base": "base\n"}


@pytest.fixture(autouse=True)
def removable(tmp_path: Path) -> Iterator[None]:
    yield
    subprocess.run(["chmod", "-R", "u+rwx", str(tmp_path)], check=False)


def left(place: Place) -> list[Leftover]:
    return find_leftovers(
        start_git, str(place.project), runs_of(place), (), own=os.listdir(runs_of(place))
    )


def cleaned(place: Place) -> list[Leftover]:
    rest = [
        clean_leftover(start_git, str(place.project), runs_of(place), one) for one in left(place)
    ]
    return [one for one in rest if one is not None]


def runs_of(place: Place) -> str:
    runs = place.folder / "runs"
    if not runs.exists():
        runs.mkdir()
        (runs / "r1").symlink_to(place.folder / "run")
    return str(runs)


def working(folder: Path, item: str) -> None:
    (folder / f"{item}.txt").write_text(f"{item}\n")


def closes(mode: int, name: str = "cache/ro") -> Does:
    """An item that works, and leaves a folder with such a mode, with a secret in it."""

    def does(folder: Path, item: str) -> None:
        working(folder, item)
        closed = folder / name
        closed.mkdir(parents=True, exist_ok=True)
        (closed / "x").write_text("PASSWORD\n")
        closed.chmod(mode)

    return does


def entries(place: Place) -> int:
    """Of the repository's list of worktrees, but for the user's own."""
    return git(place.repository, "worktree", "list").count("\n")


def merged_files(place: Place) -> list[str]:
    return git(place.repository, "ls-tree", "-r", "--name-only", "main").split()


# ── what git ignores goes with the place ─────────────────────────────────


@pytest.mark.parametrize("mode", [0o000, 0o555, 0o311, 0o444])
@by_ordinary_user
def test_an_ignored_folder_that_is_closed_goes_with_its_place(tmp_path: Path, mode: int) -> None:
    place = Place(tmp_path, items=("a", "b"), does=closes(mode), first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base"]
    assert (place.left(), place.notes(), place.branches(), entries(place)) == ([], [], ["main"], 0)


# ── what cannot be read stays, untouched ─────────────────────────────────


@by_ordinary_user
def test_a_folder_that_cannot_be_read_keeps_its_place_and_the_run_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a", "b"), does=closes(0o000, "data"), first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base"]
    first, second = place.left()
    kept = place.worktrees / first / "data"
    assert (
        "the folder of an item stays because a part of it cannot be read and may contain uncommitted "
        f"changes: {kept} (Permission denied); make it readable, then plait worktrees --clean"
    ) in place.notes()
    assert isinstance(place.run_attempt(), Succeeded), "a resumed run goes on, too"
    assert place.left() == [first, second]
    assert all("a part of it cannot be read" in one.why for one in left(place) if one.path)
    assert [one.path for one in cleaned(place) if one.path] == [
        str(Path(runs_of(place)) / "r1" / "worktrees" / name) for name in (first, second)
    ]
    kept.chmod(0o700)
    (rest,) = [one for one in cleaned(place) if not one.path]
    assert git(place.repository, "show", f"{rest.branch}:data/x") == "PASSWORD", (
        "it was committed first"
    )
    assert place.left() == [second]


def closes_itself(folder: Path, item: str) -> None:
    working(folder, item)
    folder.chmod(0o000)


def closes_a_file(folder: Path, item: str) -> None:
    working(folder, item)
    (folder / f"{item}.txt").chmod(0o000)


@pytest.mark.parametrize("does", [closes_itself, closes_a_file])
@by_ordinary_user
def test_a_place_that_cannot_be_looked_at_is_that_of_a_failed_item(
    tmp_path: Path, does: Does
) -> None:
    place = Place(tmp_path, items=("a", "b"), does=does, first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    assert isinstance(place.journal.step("map/item:a").outcome, Failed)  # type: ignore[union-attr]
    first, second = place.left()
    assert {Path(one.path).name for one in cleaned(place) if one.path} == {first, second}
    place.does = working
    place.journal.append(*forgotten("a", "b"))
    for name in (first, second):
        (place.worktrees / name).chmod(0o700)
        for file in (place.worktrees / name).glob("*.txt"):
            file.chmod(0o600)
    assert isinstance(place.run_attempt(retried=["map/item:a", "map/item:b"]), Succeeded)
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base"]
    assert place.left() == []


def forgotten(*items: str) -> list[StepInvalidated]:
    return [StepInvalidated("map", "again", below=False)] + [
        StepInvalidated(f"map/item:{item}", "again") for item in items
    ]


@by_ordinary_user
def test_a_copy_with_a_closed_folder_stays_and_the_run_goes_on(tmp_path: Path) -> None:
    place = Place(
        tmp_path, items=("a",), does=closes(0o444, "data"), isolation=Isolation("directory")
    )
    assert isinstance(place.run_attempt(), Succeeded)
    (kept,) = place.left()
    (rest,) = cleaned(place)
    assert (os.path.basename(rest.path), place.left()) == (kept, [kept])
    (place.worktrees / kept / "data").chmod(0)
    (place.worktrees / kept / "a.txt").unlink()
    assert [one.files for one in cleaned(place)] == [1], "what cannot be read may be something"


# ── what cannot be removed is never a place again ────────────────────────


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Files called `x` belong to somebody else, as those that a container has made."""
    real = os.unlink

    def unlink(path: str, *args: object, **options: object) -> None:
        if os.path.basename(os.fsdecode(path)) == "x":
            raise PermissionError(1, "Operation not permitted", path)
        real(path, *args, **options)  # type: ignore[arg-type]

    def switch(on: bool) -> None:
        monkeypatch.setattr(os, "unlink", unlink if on else real)

    switch(True)
    return switch


def test_what_cannot_be_removed_is_left_aside_and_reported(
    tmp_path: Path, stubborn: Callable[[bool], None]
) -> None:
    place = Place(tmp_path, items=("a", "b"), does=closes(0o755), first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base"]
    first, second = place.left()
    assert first.startswith(".0-a-")
    assert first.endswith(".gone")
    stays = f"Operation not permitted: {place.worktrees / first}/cache/ro/x"
    assert (
        "the work of an item is merged or on its branch, but its folder could not be removed completely: "
        f"{place.worktrees / first} ({stays}); plait worktrees --clean tries again, "
        "or remove it yourself"
    ) in place.notes()
    assert entries(place) == 0
    found = left(place)
    assert [os.path.basename(one.path) for one in found] == [first, second]
    assert {(one.branch, one.commits, one.files) for one in found} == {("", 0, 0)}
    assert all("rest of a folder" in one.why for one in found)
    rest = cleaned(place)
    assert [os.path.basename(one.path) for one in rest] == [first, second]
    assert f"Operation not permitted: {rest[0].path}/cache/ro/x" in rest[0].why
    assert isinstance(place.run_attempt(), Succeeded), "a resumed run commits nothing of it"
    assert place.branches() == ["main"]
    stubborn(False)
    assert (cleaned(place), place.left()) == ([], [])


@pytest.mark.usefixtures("stubborn")
def test_a_retry_commits_nothing_from_what_is_left_of_other_items(tmp_path: Path) -> None:
    def does(folder: Path, item: str) -> None:
        closes(0o755)(folder, item)
        if item == "c" and not (tmp_path / "ok").exists():
            raise InputError("not yet", code="no")

    place = Place(tmp_path, does=does, first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    (tmp_path / "ok").touch()
    place.journal.append(*forgotten("c"))
    assert isinstance(place.run_attempt(retried=["map/item:c"]), Succeeded)
    assert "PASSWORD" not in git(place.repository, "log", "--all", "-p")
    assert git(place.repository, "log", "--all", "--diff-filter=D", "--format=%s") == ""
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base", "c.txt"]
    assert all(name.endswith(".gone") for name in place.left())


@pytest.mark.usefixtures("stubborn")
def test_two_places_of_one_name_can_both_stay_aside(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",), does=closes(0o755), first=IGNORING)
    assert isinstance(place.run_attempt(), Succeeded)
    place.journal.append(*forgotten("a"))
    assert isinstance(place.run_attempt(retried=["map/item:a"]), Succeeded)
    assert len(place.left()) == 2
    assert all(name.startswith(".0-a-") for name in place.left())


def test_a_folder_whose_git_file_is_gone_is_not_committed_by_those_who_tidy_up(
    tmp_path: Path,
) -> None:
    """As versions that put a half-removed place back have left it."""

    def does(folder: Path, item: str) -> None:
        working(folder, item)
        raise InputError("no", code="no")

    place = Place(tmp_path, items=("a", "b"), does=does, first=IGNORING)
    place.run_attempt()
    first, _ = place.left()
    for name in (".git", ".gitignore", "base"):
        (place.worktrees / first / name).unlink()
    branch = f"plait/r1/{first}"
    rest = {one.branch: one for one in cleaned(place)}
    assert "its .git is gone" in rest[branch].why
    assert (place.worktrees / first / "a.txt").exists()
    (place.repository / ".git/refs/heads" / branch).unlink()
    [found] = [one for one in left(place) if one.path.endswith(first)]
    assert (found.branch, found.files) == ("", 1)
    assert "its .git is gone" in found.why
    assert [one.why for one in cleaned(place) if one.path] == [found.why]
    assert (place.worktrees / first / "a.txt").exists()
    place.does = working
    place.journal.append(*forgotten("a", "b"))
    assert isinstance(place.run_attempt(retried=["map/item:a", "map/item:b"]), Succeeded)
    assert merged_files(place) == [".gitignore", "a.txt", "b.txt", "base"]
    assert any("its .git is gone" in note and first in note for note in place.notes())
    assert git(place.repository, "log", "--all", "--diff-filter=D", "--format=%s") == ""


# ── after a kill ─────────────────────────────────────────────────────────


def killed_while_removing(place: Place) -> str:
    """What is left if we die behind the rename: the place is aside, git still lists it."""
    place.run_attempt()
    first = place.left()[0]
    os.rename(place.worktrees / first, place.worktrees / f".{first}.gone")
    return first


def failing(folder: Path, item: str) -> None:
    working(folder, item)
    raise InputError("no", code="no")


def test_what_a_kill_left_aside_is_listed_and_cleaned(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a", "b"), does=failing, first=IGNORING)
    first = killed_while_removing(place)
    (found,) = [one for one in left(place) if one.path.endswith(".gone")]
    assert "plait worktrees --clean" in found.why
    assert [one.path for one in cleaned(place) if one.path] == []
    assert (place.left(), entries(place), first in "".join(place.branches())) == ([], 0, False)


def test_an_entry_of_git_whose_folder_is_gone_is_listed_and_cleaned(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",), does=failing, first=IGNORING)
    first = killed_while_removing(place)
    remove_tree(str(place.worktrees / f".{first}.gone"))
    assert any("git still lists" in one.why for one in left(place))
    cleaned(place)
    assert (left(place), entries(place)) == ([], 0)


def test_leftovers_of_a_run_that_continues_belong_to_it(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",), does=failing, first=IGNORING)
    first = killed_while_removing(place)
    found = find_leftovers(
        start_git, str(place.project), runs_of(place), ("r1",), own=os.listdir(runs_of(place))
    )
    assert not any(first in one.path for one in found)


# ── removing ─────────────────────────────────────────────────────────────


@by_ordinary_user
def test_folders_of_ours_are_opened_to_be_removed_and_nothing_beside_them(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    (beside / "closed").mkdir(parents=True)
    (beside / "closed").chmod(0o500)
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    (top / "a" / "link").symlink_to(beside)
    (top / "a" / "inner").symlink_to(beside / "closed")
    for folder in (top / "a" / "b", top / "a", top):
        folder.chmod(0)
    assert remove_tree(str(top)) is None
    assert not top.exists()
    assert (beside / "closed").stat().st_mode & 0o777 == 0o500


def test_a_tree_that_is_too_deep_is_no_end_of_the_run(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    try:
        why = remove_tree(str(tmp_path / "d"))
        assert why is None or "deep" in why
    finally:  # pytest itself could not
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_what_is_not_there_is_removed(tmp_path: Path) -> None:
    assert remove_tree(str(tmp_path / "nothing")) is None
