"""A git that was killed, or had no room, has answered nothing: nothing is concluded from it."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapters.git.places import Ended, Place, start_git
from plait.adapters.git import GitWorktrees
from plait.adapters.git.git import Answer, StartGit
from plait.adapters.git.leftovers import find_leftovers
from plait.core.errors import PlaitError, ProcessError
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Succeeded
from plait.program.worktrees.ports import Leftover
from program.fake_git import git
from program.fakes import failure_of

Picks = Callable[[Sequence[str]], bool]


def killing(picks: Picks, code: int = 137) -> StartGit:
    """git, but for calls that are killed before they say anything."""

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        return (
            Ended(code, b"", b"") if picks(args) else start_git(args, cwd=cwd, env=env, stdin=stdin)
        )

    return start


ASKED = [
    ("rev-parse", "--verify"),
    ("symbolic-ref", "--quiet"),
    ("show-ref", "--verify"),
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("code", [137, -9])
def test_a_repository_about_which_git_was_killed_is_not_refused_for_what_it_lacks(
    tmp_path: Path, asked: tuple[str, ...], code: int
) -> None:
    place = Place(tmp_path)
    start = killing(lambda args: tuple(args[:2]) == asked, code)
    with pytest.raises(ProcessError) as raised:
        GitWorktrees(start, str(place.project), str(tmp_path / "run"), "r").inspect(
            "HEAD", needs_branch=True
        )
    assert raised.value.what == f"'git {asked[0]}' was killed"


def test_a_branch_that_is_nowhere_known_to_be_is_not_removed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    git(place.repository, "branch", "plait/r/x")
    worktrees = GitWorktrees(start_git, str(place.project), str(tmp_path / "run"), "r")
    worktrees.inspect("HEAD", needs_branch=True)
    worktrees.forget_branch("plait/r/x", "")
    assert "plait/r/x" in place.branches()


@pytest.mark.parametrize("number", range(8))
def test_everything_is_merged_after_a_kill_of_any_git_query(tmp_path: Path, number: int) -> None:
    questions = itertools.count()
    place = Place(tmp_path)
    place.start = killing(lambda args: "--verify" in args and next(questions) == number)
    message = ""
    try:
        place.run_attempt()
    except PlaitError as error:
        message = str(error)
    assert "no commit" not in message
    place.start = start_git
    failed = [
        f"map/item:{item}" for item in place.items if place.recorded(f"map/item:{item}") is None
    ]
    for path in ("map", *failed):
        place.journal.append(StepInvalidated(path, "again", below=False))
    assert isinstance(place.run_attempt(retried=failed), Succeeded)
    assert sorted(place.merged()) == ["a", "b", "c"]
    assert place.left() == []


def test_on_a_full_disk_each_folder_that_cannot_be_inspected_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, items=("a",), state="runs/r1", does=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        place.run_attempt()

    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plait.adapters.git.git.make_clean_repository", is_full)
    found = [
        one.why
        for one in find_leftovers(
            start_git,
            str(place.project),
            str(tmp_path / "runs"),
            (),
            own=os.listdir(tmp_path / "runs"),
        )
        if one.path
    ]
    assert found == ["what git works with here cannot be written: No space left on device"]


def test_a_path_without_end_is_reported_by_how_it_begins_and_ends() -> None:
    message = Leftover("/runs/0-a/" + "d/" * 2000 + "last", "closed", "File name too long").message
    assert "/runs/0-a/d/" in message
    assert "…" in message
    assert "/last (File name too long)" in message
    assert len(message) < 600


def test_a_working_tree_without_room_is_reported_and_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if (
            tuple(args[:3]) == ("read-tree", "-m", "-u")
            and "-n" not in args
            and cwd == str(place.repository)
        ):
            return Ended(128, b"", b"error: unable to write file a.txt\n")
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    place = Place(tmp_path, items=("a",), start=start)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5 << 10))
    message = failure_of(place.run_attempt()).message
    full = f"(the disk of {place.repository} is full: 5 KiB are free)"
    assert f"unable to write file a.txt {full}\nfree some space" in message
    assert "stash" not in message
    with pytest.raises(AssertionError, match=r"index\.lock"):
        git(place.repository, "commit", "-q", "--allow-empty", "-m", "mine")
    place.start = start_git
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.status(), place.merged()) == ("", ["a"])


def test_a_commit_in_the_meantime_is_reported_with_what_it_has_undone(tmp_path: Path) -> None:
    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if (
            tuple(args[:3]) == ("read-tree", "-m", "-u")
            and "-n" not in args
            and cwd == str(place.repository)
        ):
            return Ended(128, b"", b"error: unable to write file a.txt\n")
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    place = Place(tmp_path, items=("a",), start=start)
    place.run_attempt()
    (place.repository / ".git/index.lock").unlink()
    git(place.repository, "commit", "-q", "--allow-empty", "-m", "mine")
    place.start = start_git
    assert isinstance(place.run_attempt(), Succeeded)
    [note] = [one for one in place.notes() if "restore these files" in one]
    assert "a.txt" in note
