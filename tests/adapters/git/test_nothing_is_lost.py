"""Whatever an item, a configuration or a crash makes of its place: what it did, and what you have, is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.git.places import Does, Place, start_git
from plait.adapters.git import GitWorktrees, clean_leftover, find_leftovers
from plait.adapters.git.git import Answer
from plait.core.errors import InputError
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Succeeded
from plait.engine.step import Retry
from plait.program.map import ErrorPolicy
from plait.program.worktrees.isolation import Isolation, UncommittedPolicy
from program.fake_git import git
from program.fakes import failure_of, text_of

# ── what hides changes from git ──────────────────────────────────────────


def writes(name: str, text: str = "work\n") -> Does:
    return lambda folder, _: (folder / name).write_text(text)


def skips_and_edits(folder: Path, _: str) -> None:
    git(folder, "update-index", "--skip-worktree", "base")
    (folder / "base").write_text("work\n")


def adds_with_ignored_stat_and_edits(folder: Path, _: str) -> None:
    (folder / "base").write_text("begun\n")
    git(folder, "-c", "core.ignoreStat=true", "add", "base")
    (folder / "base").write_text("work\n")


def assumes_unchanged_and_edits(folder: Path, _: str) -> None:
    git(folder, "update-index", "--assume-unchanged", "base")
    (folder / "base").write_text("work\n")


HIDING: list[tuple[tuple[str, str], Does, str]] = [
    # setting                             what the item does                  where its work is
    (("status.showUntrackedFiles", "no"), writes("new"),                      "new"),
    (("core.ignoreStat", "true"),         writes("base"),                     "base"),
    (("core.ignoreStat", "true"),         adds_with_ignored_stat_and_edits,   "base"),
    (("core.untrackedCache", "true"),     skips_and_edits,                    "base"),
    (("core.untrackedCache", "true"),     assumes_unchanged_and_edits,        "base"),
    (("diff.ignoreSubmodules", "all"),    writes("new"),                      "new"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "does", "name"), HIDING)
def test_no_setting_hides_what_an_item_did(
    tmp_path: Path, setting: tuple[str, str], does: Does, name: str
) -> None:
    place = Place(tmp_path, items=("a",), does=does)
    git(place.repository, "config", *setting)
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "show", f"main:{name}") == "work"
    assert (place.repository / name).read_text() == "work\n"


def excluded_by_the_repository(place: Place, names: str) -> None:
    (place.repository / ".git" / "info" / "exclude").write_text(names)


def excluded_by_a_setting(place: Place, names: str) -> None:
    (place.folder / "excludes").write_text(names)
    git(place.repository, "config", "core.excludesFile", str(place.folder / "excludes"))


def excluded_by_the_user(place: Place, names: str) -> None:
    (place.folder / "home" / "git").mkdir(parents=True)
    (place.folder / "home" / "git" / "ignore").write_text(names)


EXCLUDED = [excluded_by_the_repository, excluded_by_a_setting, excluded_by_the_user]
Exclude = Callable[[Place, str], None]


@pytest.fixture
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git reads what the user ignores from here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("exclude", EXCLUDED)
def test_only_files_called_gitignore_say_what_of_an_item_is_dropped(
    tmp_path: Path, exclude: Exclude
) -> None:
    def does(folder: Path, item: str) -> None:
        (folder / f"{item}.txt").write_text("work\n")
        (folder / f"{item}.log").write_text("dropped\n")

    place = Place(tmp_path, does=does, first={".gitignore": "*.log\n", "base": "base\n"})
    exclude(place, "*.txt\n")
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "ls-tree", "--name-only", "main").split() == [
        ".gitignore", "a.txt", "b.txt", "base", "c.txt",
    ]  # fmt: skip
    assert (place.branches(), place.left(), place.status()) == (["main"], [], "")


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("exclude", EXCLUDED)
@pytest.mark.parametrize("uncommitted", ["keep", "fail"])
def test_a_file_that_others_exclude_is_seen_under_every_policy(
    tmp_path: Path, exclude: Exclude, uncommitted: UncommittedPolicy
) -> None:
    place = Place(tmp_path, items=("a",), does=writes("a.txt"))
    place.isolation = Isolation("worktree", uncommitted=uncommitted, fingerprint="w")
    exclude(place, "*.txt\n")
    place.run_attempt()
    (left,) = place.left()
    assert (place.worktrees / left / "a.txt").read_text() == "work\n"


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("exclude", EXCLUDED)
def test_a_repository_that_others_exclude_keeps_its_place(tmp_path: Path, exclude: Exclude) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "cache").mkdir()
        git(folder / "cache", "init", "-q")

    place = Place(tmp_path, items=("a",), does=does)
    exclude(place, "cache/\n")
    assert isinstance(place.run_attempt(), Succeeded)
    assert len(place.left()) == 1


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("exclude", EXCLUDED)
def test_a_place_is_not_removed_with_a_repository_that_others_exclude(
    tmp_path: Path, exclude: Exclude
) -> None:
    place = Place(tmp_path)
    exclude(place, "cache/\n")
    worktrees = GitWorktrees(start_git, str(place.repository), str(tmp_path / "run"), "r1")
    worktree = worktrees.add(0, "a", "a", worktrees.inspect("HEAD", needs_branch=True).commit)
    (Path(worktree.path) / "cache").mkdir()
    git(Path(worktree.path) / "cache", "init", "-q")
    assert worktrees.remove(worktree, merged=None) is not None
    assert (Path(worktree.path) / "cache" / ".git").is_dir()


@pytest.mark.usefixtures("_own_home")
@pytest.mark.parametrize("exclude", EXCLUDED)
def test_what_the_user_excludes_is_in_the_way_of_the_last_merge_and_stays(
    tmp_path: Path, exclude: Exclude
) -> None:
    place = Place(tmp_path, items=("a",), does=writes("a.txt"))
    exclude(place, "*.txt\n")
    (place.repository / "a.txt").write_text("mine\n")
    (place.repository / "other.txt").write_text("mine\n")
    assert (
        "files of yours that are in no commit are in its way: a.txt"
        in failure_of(place.run_attempt()).message
    )
    assert (place.repository / "a.txt").read_text() == "mine\n"
    (place.repository / "a.txt").unlink()
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "a.txt").read_text() == "work\n"
    assert (place.repository / "other.txt").read_text() == "mine\n"
    assert place.status() == ""


def test_attributes_that_only_the_repository_has_hold_in_places(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",), does=writes("new", "one\r\ntwo\r\n"))
    excluded_by_the_repository(place, "new\n")
    (place.repository / ".git" / "info" / "attributes").write_text("new text\n")
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "cat-file", "-s", "main:new") == "8"


def test_what_a_failed_item_made_is_not_cleaned_away_by_a_setting(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "new").write_text("work\n")
        raise InputError("no", code="no")

    place = Place(tmp_path, items=("a",), does=does)
    git(place.repository, "config", "status.showUntrackedFiles", "no")
    place.run_attempt()
    cleaned(place)
    (branch,) = [name for name in place.branches() if name.startswith("plait/r1/0")]
    assert git(place.repository, "show", f"{branch}:new") == "work"


def cleaned(place: Place) -> list[tuple[str, int | None, int]]:
    """Clean up after the run; what remains, by branch or path."""
    project, runs = str(place.project), str(place.folder / "runs")
    if not os.path.exists(runs):
        os.mkdir(runs)
        os.symlink(place.folder / "run", os.path.join(runs, "r1"))
    found = find_leftovers(start_git, project, runs, (), own=os.listdir(runs))
    rest = [clean_leftover(start_git, project, runs, one) for one in found]
    return [(one.branch or one.path, one.commits, one.files) for one in rest if one is not None]


# ── places that are no worktrees any more ────────────────────────────────


def leaves_its_repository(folder: Path, _: str) -> None:
    (folder / ".git").unlink()
    (folder / "work").write_text("work\n")


INSIDE = "repository/.ai/state"
"""The run is in the repository of the user, which is then around the places of its items."""
WITH_STATE = {".gitignore": ".ai\n", "base": "base\n"}


def test_an_item_without_its_git_file_commits_nothing_of_the_user(tmp_path: Path) -> None:
    place = Place(
        tmp_path, items=("a",), does=leaves_its_repository, state=INSIDE, first=WITH_STATE
    )
    (place.repository / "base").write_text("mine\n")
    (place.repository / "untracked").write_text("mine\n")
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "show", "main:work") == "work"
    assert git(place.repository, "show", "main:base") == "base"
    assert place.status().splitlines() == ["M base", "?? untracked"]


def test_an_attempt_without_its_git_file_commits_nothing_of_the_user(tmp_path: Path) -> None:
    def does(folder: Path, item: str) -> None:
        leaves_its_repository(folder, item)
        raise InputError("no", code="no")

    again = ErrorPolicy(retry=Retry(attempts=2, initial_delay=0))
    place = Place(tmp_path, items=("a",), does=does, state=INSIDE, first=WITH_STATE, errors=again)
    (place.repository / "base").write_text("mine\n")
    place.run_attempt()
    assert git(place.repository, "log", "--format=%s", "main") == "first"
    assert place.status() == "M base"
    (kept,) = place.left()
    (earlier,) = [
        name for name in place.branches() if name.startswith("plait/r1/0") and kept not in name
    ]
    assert git(place.repository, "show", f"{earlier}:work") == "work"


def test_a_place_that_the_repository_does_not_list_is_left_alone_and_the_item_has_failed(
    tmp_path: Path,
) -> None:
    def does(folder: Path, item: str) -> None:
        leaves_its_repository(folder, item)
        git(place.repository, "worktree", "prune")

    place = Place(tmp_path, items=("a",), does=does)
    place.run_attempt()
    (kept,) = place.worktrees.iterdir()
    known = place.journal.step("map/item:a")
    assert known is not None
    assert failure_of(known.outcome).message.startswith(
        f"{kept}: the folder of an item is no longer a worktree of the repository\n"
    )
    assert (kept / "work").read_text() == "work\n"
    place.run_attempt()
    assert cleaned(place)[0] == (str(tmp_path / "runs" / "r1" / "worktrees" / kept.name), 0, 2)
    assert (kept / "work").exists()


def test_cleaning_a_copy_of_a_project_does_not_touch_the_original(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "work").write_text("work\n")
        raise InputError("no", code="no")

    first = Place(tmp_path / "first", items=("a",), does=does)
    first.run_attempt()
    shutil.copytree(tmp_path / "first", tmp_path / "second", symlinks=True)
    (kept,) = first.worktrees.iterdir()
    tip = git(first.repository, "rev-parse", f"plait/r1/{kept.name}")
    runs = tmp_path / "second" / "runs"
    runs.mkdir()
    (tmp_path / "second" / "run").rename(runs / "r1")
    project = str(tmp_path / "second" / "repository")
    for one in find_leftovers(start_git, project, str(runs), (), own=os.listdir(runs)):
        clean_leftover(start_git, project, str(runs), one)
    assert git(first.repository, "rev-parse", f"plait/r1/{kept.name}") == tip
    assert (runs / "r1" / "worktrees" / kept.name / "work").read_text() == "work\n"


# ── repositories inside a place ──────────────────────────────────────────


def makes_a_repository(folder: Path, _: str) -> None:
    (folder / "sub").mkdir()
    git(folder / "sub", "init", "-q")
    (folder / "sub" / "f").write_text("inner\n")
    git(folder / "sub", "add", "-A")
    git(folder / "sub", "commit", "-q", "-m", "inner")
    (folder / "sub" / "more").write_text("more\n")


def commits_a_repository(folder: Path, item: str) -> None:
    makes_a_repository(folder, item)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", item)


def becomes_a_repository(folder: Path, _: str) -> None:
    (folder / ".git").unlink()
    git(folder, "init", "-q")
    (folder / "sub").mkdir()
    (folder / "sub" / "more").write_text("more\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "elsewhere")


@pytest.mark.parametrize("does", [makes_a_repository, commits_a_repository, becomes_a_repository])
def test_a_place_with_a_repository_of_its_own_stays(tmp_path: Path, does: Does) -> None:
    place = Place(tmp_path, items=("a",), does=does)
    assert isinstance(place.run_attempt(), Succeeded)
    (kept,) = place.worktrees.iterdir()
    assert (kept / "sub" / "more").read_text() == "more\n"
    assert any(str(kept) in note for note in place.notes())
    assert isinstance(place.run_attempt(), Succeeded)
    cleaned(place)
    assert (kept / "sub" / "more").read_text() == "more\n"
    assert git(kept / "sub", "log", "-1", "--format=%s") in ("inner", "elsewhere")


def test_what_is_beside_such_a_repository_is_merged(tmp_path: Path) -> None:
    def does(folder: Path, item: str) -> None:
        makes_a_repository(folder, item)
        (folder / "beside").write_text("work\n")

    place = Place(tmp_path, items=("a",), does=does)
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "ls-tree", "--name-only", "main").split() == ["base", "beside"]


def test_a_repository_in_a_folder_that_git_ignores_goes_with_it(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "cache" / "sub").mkdir(parents=True)
        git(folder / "cache" / "sub", "init", "-q")

    place = Place(
        tmp_path, items=("a",), does=does, first={".gitignore": "cache/\n", "base": "base\n"}
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.left() == []


# ── files of the user that git ignores ───────────────────────────────────


def offers_what_was_ignored(folder: Path, _: str) -> None:
    (folder / ".gitignore").write_text("")
    (folder / "local.env").write_text("template\n")


def makes_a_file_of_a_folder(folder: Path, _: str) -> None:
    (folder / "build").write_text("template\n")


def makes_a_folder_of_a_file(folder: Path, _: str) -> None:
    (folder / ".gitignore").write_text("")
    (folder / "local.env").mkdir()
    (folder / "local.env" / "deep").write_text("template\n")


IGNORED: list[tuple[Does, str]] = [
    (offers_what_was_ignored,  "local.env"),
    (makes_a_file_of_a_folder, "build/data"),
    (makes_a_folder_of_a_file, "local.env"),
]  # fmt: skip


@pytest.mark.parametrize(("does", "name"), IGNORED)
def test_files_of_the_user_that_git_ignores_are_in_the_way_and_stay(
    tmp_path: Path, does: Does, name: str
) -> None:
    place = Place(tmp_path, items=("a",), does=does, first={".gitignore": "local.env\ndata\n"})
    mine = place.repository / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine\n")
    before = git(place.repository, "rev-parse", "main")
    assert failure_of(place.run_attempt()).message == (
        f"the work of the items is not merged into main yet: files of yours that are in no commit are in its "
        f"way: {name}\nmove them elsewhere first: git merge overwrites files that a .gitignore names, unasked\n"
        "all of it is on the branch plait/r1/merged: git merge plait/r1/merged; then plait resume r1"
    )
    assert (mine.read_text(), git(place.repository, "rev-parse", "main")) == ("mine\n", before)
    mine.rename(tmp_path / "elsewhere")
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.status() == ""


def test_a_folder_whose_files_are_all_committed_may_become_a_file(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        shutil.rmtree(folder / "build")
        (folder / "build").write_text("file\n")

    place = Place(tmp_path, items=("a",), does=does)
    (place.repository / "build").mkdir()
    (place.repository / "build" / "data").write_text("x\n")
    git(place.repository, "add", "-A")
    git(place.repository, "commit", "-q", "-m", "build")
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "build").read_text() == "file\n"


# ── cleaning ─────────────────────────────────────────────────────────────


def unmerged(tmp_path: Path) -> Place:
    """All items have ended, and what they did is only on the branch of the run."""
    place = Place(tmp_path, items=("a",))
    (place.repository / "a.txt").write_text("in the way\n")
    failure_of(place.run_attempt())
    (place.repository / "a.txt").unlink()
    return place


CHECKED_OUT: list[Sequence[str]] = [
    ("switch", "-q", "plait/r1/merged"),
    ("switch", "-q", "--detach", "plait/r1/merged"),
    ("switch", "-q", "--orphan", "x"),
]


@pytest.mark.parametrize("command", CHECKED_OUT)
def test_a_branch_is_not_cleaned_away_because_of_what_is_checked_out(
    tmp_path: Path, command: Sequence[str]
) -> None:
    place = unmerged(tmp_path)
    git(place.repository, *command)
    assert cleaned(place) == [("plait/r1/merged", 2, 0)]
    assert git(place.repository, "show", "plait/r1/merged:a.txt") == "a"


def test_a_branch_is_not_removed_when_git_cannot_report_other_branches(tmp_path: Path) -> None:
    place = unmerged(tmp_path)
    (place.repository / ".git" / "refs" / "heads" / "broken").write_text("1" * 40 + "\n")
    assert cleaned(place) == [("plait/r1/merged", None, 0)]
    assert git(place.repository, "show", "plait/r1/merged:a.txt") == "a"


def test_a_merged_branch_that_somebody_works_on_stays(tmp_path: Path) -> None:
    place = unmerged(tmp_path)
    git(place.repository, "merge", "-q", "plait/r1/merged")
    git(place.repository, "switch", "-q", "plait/r1/merged")
    assert cleaned(place) == [("plait/r1/merged", 0, 0)]
    git(place.repository, "switch", "-q", "main")
    assert cleaned(place) == []


def test_what_cannot_be_cleaned_keeps_nothing_else_from_being_cleaned(tmp_path: Path) -> None:
    def does(folder: Path, item: str) -> None:
        (folder / f"{item}.txt").write_text(item)
        raise InputError("no", code="no")

    place = Place(tmp_path, items=("a", "b"), does=does)
    place.run_attempt()
    first = sorted(place.worktrees.iterdir())[0].name
    (place.repository / ".git" / "worktrees" / first / "index.lock").touch()
    remains = cleaned(place)
    assert [files for _, _, files in remains] == [1, 0, 0]
    assert place.left() == [first]


# ── sparse checkouts, copies, names ──────────────────────────────────────


def test_what_an_item_writes_outside_the_cone_of_a_sparse_checkout_is_merged(
    tmp_path: Path,
) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "hidden").mkdir(exist_ok=True)
        (folder / "hidden" / "new").write_text("work\n")
        (folder / "hidden" / "file").write_text("work\n")

    place = Place(tmp_path, items=("a",), does=does)
    (place.repository / "hidden").mkdir()
    (place.repository / "hidden" / "file").write_text("x")
    git(place.repository, "add", "-A")
    git(place.repository, "commit", "-q", "-m", "hidden")
    git(place.repository, "sparse-checkout", "set", "--cone", "seen")
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "show", "main:hidden/new") == "work"
    assert git(place.repository, "show", "main:hidden/file") == "work"


def with_other_content(folder: Path) -> None:
    before = (folder / "a.in").stat()
    (folder / "a.in").write_text("A.in")
    os.utime(folder / "a.in", ns=(before.st_atime_ns, before.st_mtime_ns))


SMALL_CHANGES: list[tuple[Callable[[Path], object], bool]] = [
    (lambda folder: (folder / "empty").mkdir(),               True),
    (lambda folder: (folder / "link").symlink_to("/"),        True),
    (with_other_content,                                      True),
    (lambda folder: (folder / "a.in").read_text(),            False),
]  # fmt: skip


@pytest.mark.parametrize(("does", "stays"), SMALL_CHANGES)
def test_a_folder_of_copies_stays_whatever_was_changed_in_it(
    tmp_path: Path, does: Callable[[Path], object], stays: bool
) -> None:
    place = Place(
        tmp_path,
        items=("a",),
        does=lambda folder, _: does(folder),
        isolation=Isolation("directory", inputs=(text_of("${item}.in"),), fingerprint="d"),
    )
    (place.repository / "a.in").write_text("a.in")
    assert isinstance(place.run_attempt(), Succeeded)
    assert bool(place.left()) == stays


def test_a_conflict_between_a_file_and_a_folder_names_the_file(tmp_path: Path) -> None:
    def does(folder: Path, item: str) -> None:
        if item == "a":
            (folder / "d").mkdir()
            (folder / "d" / "deep").write_text("x")
        else:
            (folder / "d").write_text("x")

    place = Place(tmp_path, items=("a", "b"), does=does)
    place.run_attempt()
    known = place.journal.step("map/item:b")
    assert known is not None
    message = failure_of(known.outcome).message
    assert message.startswith("its changes conflict with those of earlier items: d\n")


# ── which repositories ───────────────────────────────────────────────────


def test_a_branch_whose_name_is_no_text_is_merged_into(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))
    subprocess.run([b"git", b"switch", b"-q", b"-c", b"caf\xe9"], cwd=place.repository, check=True)
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "a.txt").exists()


def test_a_project_whose_path_has_a_line_break_works(tmp_path: Path) -> None:
    place = Place(tmp_path / "line\nbreak", items=("a",))
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "a.txt").exists()


MADE_BY = ["--object-format=sha256", "--separate-git-dir={}/administration"]


@pytest.mark.parametrize("option", MADE_BY)
def test_repositories_with_longer_ids_and_those_kept_elsewhere_work(
    tmp_path: Path, option: str
) -> None:
    place = Place(tmp_path, items=("a", "b"), made_by=[option.format(tmp_path)])
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a", "b"]
    assert (place.branches(), place.left(), place.status()) == (["main"], [], "")
    assert (place.repository / "b.txt").exists()


# ── deaths ───────────────────────────────────────────────────────────────


class Killed(BaseException):
    """Plait dies here."""


def test_while_the_branch_moves_no_commit_is_possible_in_the_working_tree(tmp_path: Path) -> None:
    errors: list[bytes] = []

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if args[0] == "update-ref" and "refs/heads/main" in args:
            tried = subprocess.run(
                ["git", "commit", "-a", "-m", "undo"], cwd=place.repository, capture_output=True
            )
            errors.append(tried.stderr)
            raise Killed
        return answer

    place = Place(tmp_path, items=("a",), start=start)
    with pytest.raises(Killed):
        place.run_attempt()
    assert b"index.lock" in errors[0]
    place.start = start_git
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.merged(), place.status()) == (["a"], "")


def test_a_place_of_which_half_was_removed_is_not_the_work_of_an_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, items=("a", "b"), first={"base": "base\n", "other": "other\n"})
    removed = shutil.rmtree

    def dies_half_way(path: str, **options: Any) -> None:
        if "worktrees" in str(path) and (half := Path(path, "base")).exists():
            half.unlink()
            raise Killed
        removed(path, **options)

    monkeypatch.setattr(shutil, "rmtree", dies_half_way)
    with pytest.raises(Killed):
        place.run_attempt()
    monkeypatch.setattr(shutil, "rmtree", removed)
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a", "b"]
    assert (place.branches(), place.left(), place.status()) == (["main"], [], "")


def killed_in_the_last_merge(
    tmp_path: Path, does: Does, afterwards: Callable[[Path], object], *, first: Mapping[str, str]
) -> Place:
    """git was killed while it updated the working tree, after these changes."""

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if args[0] == "read-tree" and "-n" not in args:
            afterwards(place.repository)
            raise Killed
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    place = Place(tmp_path, items=("a",), does=does, start=start, first=first)
    with pytest.raises(Killed):
        place.run_attempt()
    place.start = start_git
    return place


def test_a_large_file_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    line, calls = "a line of a large file\n", []

    def does(folder: Path, _: str) -> None:
        (folder / "large").write_text(line * 100_000)

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        calls.append(len(answer.stdout))
        return answer

    place = killed_in_the_last_merge(
        tmp_path, does, lambda top: (top / "large").write_text(line * 9), first={"base": "base\n"}
    )
    place.start = start
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "large").read_text() == line * 100_000
    assert place.status() == ""
    assert max(calls) < 10_000, "the content of files does not go through a pipe"


def test_a_file_with_other_line_ends_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    first = {"base": "base\n", ".gitattributes": "*.dos text eol=crlf\n"}
    place = killed_in_the_last_merge(
        tmp_path,
        writes("a.dos", "one\ntwo\nthree\n"),
        lambda top: (top / "a.dos").write_bytes(b"one\r\ntw"),
        first=first,
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "a.dos").read_bytes() == b"one\r\ntwo\r\nthree\r\n"


def test_what_the_user_did_to_a_merged_file_before_a_resume_stays(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "base").write_text("a longer text\n")
        (folder / "other").write_text("other\n")

    place = Place(tmp_path, items=("a",), does=does)
    tree_was_updated: list[bool] = []

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if tree_was_updated and args[0] == "worktree":
            raise Killed  # the first call after the tree has gone along
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if args[0] == "read-tree" and "-n" not in args:
            tree_was_updated.append(True)
        return answer

    place.start = start
    with pytest.raises(Killed):
        place.run_attempt()
    place.start = start_git
    forget_last_merge(place)
    (place.repository / "base").write_text("a long")
    (place.repository / "other").unlink()
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "base").read_text() == "a long"
    assert place.status().splitlines() == ["M base", " D other"]


def forget_last_merge(place: Place) -> None:
    """It was killed before the end of the merge was recorded, but not its intent."""
    place.journal.append(StepInvalidated("map/merge", "", below=False))


def test_a_lock_of_ours_is_known_whenever_we_died(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))
    folder = place.repository / ".git"
    seen: list[bytes] = []

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if (folder / "index.lock").exists():
            seen.append((folder / "index.lock").read_bytes())
        return answer

    place.start = start
    assert isinstance(place.run_attempt(), Succeeded)
    assert set(seen) == {b"plait r1\n"}
    assert sorted(path.name for path in folder.glob("index*")) == ["index"]


def test_a_lock_that_another_git_took_meanwhile_is_not_removed(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))
    lock = place.repository / ".git" / "index.lock"

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if args[0] == "read-tree" and "-n" not in args:
            lock.unlink()
            lock.write_bytes(b"DIRC")
        return answer

    place.start = start
    place.run_attempt()
    assert lock.read_bytes() == b"DIRC"


def test_an_item_that_does_nothing_costs_four_calls_of_git(tmp_path: Path) -> None:
    def counted(items: int) -> int:
        calls: list[str] = []

        def start(
            args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
        ) -> Answer:
            calls.append(args[0])
            return start_git(args, cwd=cwd, env=env, stdin=stdin)

        names = tuple(f"i{number}" for number in range(items))
        place = Place(
            tmp_path / str(items), items=names, does=lambda *_: None, start=start, parallel=1
        )
        assert isinstance(place.run_attempt(), Succeeded)
        return len(calls)

    assert counted(4) - counted(3) <= 4, "worktree add, its files, what it holds, its branch"
