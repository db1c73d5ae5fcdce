"""Folders of copies in which no step ever was do not stay; those in which an item has worked do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from adapters.git.places import Place, start_git
from plait.adapters.git import GitWorktrees
from plait.adapters.git.leftovers import clean_leftover, find_leftovers
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Failed, Failure, StepError, Succeeded
from plait.program.worktrees.isolation import Isolation
from program.fakes import text_of


def copying(folder: Path, *inputs: str, items: tuple[str, ...] = ("a", "b")) -> Place:
    """Items in folders of copies; they make nothing."""
    isolation = Isolation("directory", inputs=tuple(map(text_of, inputs)), fingerprint="d")
    place = Place(folder, items=items, does=lambda *_: None, isolation=isolation)
    for name in ("a.in", "b.in"):
        (place.repository / name).write_text(name)
    return place


def failure_of(place: Place, path: str) -> Failure:
    known = place.journal.step(path)
    assert known is not None
    assert isinstance(known.outcome, Failed)
    return known.outcome.failure


def retried(place: Place) -> None:
    items = [f"map/item:{item}" for item in place.items]
    for path in ("map", *items):
        place.journal.append(StepInvalidated(path, "it is retried", below=False))
    place.run_attempt(retried=items)


def test_copies_that_were_refused_half_way_do_not_stay_and_a_retry_adds_none(
    tmp_path: Path,
) -> None:
    place = copying(tmp_path, "${item}.in", "missing")
    place.run_attempt()
    for _ in range(2):
        retried(place)
        assert failure_of(place, "map/item:a").message.splitlines()[0] == (
            "one of the inputs of an item is not a file of the project"
        )
        assert place.left() == []


def test_copies_for_which_there_is_no_room_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copying(tmp_path, "${item}.in")

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copyfileobj", is_full)
        place.run_attempt()
    assert (
        failure_of(place, "map/item:a")
        .message.splitlines()[0]
        .endswith(": a folder for an item cannot be made: No space left on device")
    )
    assert place.left() == []
    retried(place)
    assert sorted(place.ran) == ["a", "b"]
    assert place.left() == []


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize(
    "when", ["while copying", "before it is recorded", "before it is handed over"]
)
def test_copies_that_a_kill_left_go_with_the_next_run_attempt_or_by_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    place = copying(tmp_path, "${item}.in", items=("a",))
    place.state = "runs/r"
    with monkeypatch.context() as patched:

        def dies(*_: object) -> None:
            raise Killed

        patched.setattr(
            "plait.adapters.git.worktrees.remove_tree", lambda _: None
        )  # the dead do not tidy up
        if when == "while copying":
            patched.setattr("shutil.copyfileobj", dies)
        elif when == "before it is recorded":
            patched.setattr("plait.program.worktrees.ports.Worktree.record", dies)
        else:
            patched.setattr(GitWorktrees, "publish", dies)
        with pytest.raises(Killed):
            place.run_attempt()
    assert len(place.left()) == 1
    runs = str(tmp_path / "runs")
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    [found] = find_leftovers(start_git, str(place.project), runs, [], own=os.listdir(runs))
    assert found.why == (
        "copies for an item that were not finished, so that no step was ever there: plait worktrees --clean"
    )
    assert clean_leftover(start_git, str(place.project), runs, found) is None
    assert place.left() == []
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "copy").rename(tmp_path / "runs")
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.ran == ["a"]
    assert place.left() == []


def test_the_copies_in_which_a_failed_item_worked_stay(tmp_path: Path) -> None:
    place = copying(tmp_path, "${item}.in", items=("a",))

    def fails(folder: Path, _: str) -> None:
        (folder / "made").write_text("x")
        raise StepError(Failure("no"))

    place.does = fails
    place.run_attempt()
    [kept] = place.left()
    retried(place)
    assert place.ran == ["a", "a"]
    assert kept in place.left()
    assert (place.worktrees / kept / "made").exists()
