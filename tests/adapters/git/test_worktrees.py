"""Items in worktrees of their own: merged in their order, once, whatever happens; nothing is dropped."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.git.places import Ended, Place, commits_a_file, start_git
from plait.adapters.git.git import Answer
from plait.adapters.git.worktrees import place_name
from plait.core.errors import InputError
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Failed, Succeeded
from plait.engine.step import Retry
from plait.program.map import ErrorPolicy
from plait.program.worktrees.isolation import Isolation, UncommittedPolicy
from program.fake_git import git, new_repository
from program.fakes import failure_of, text_of
from share import every

# ── the road ─────────────────────────────────────────────────────────────


def test_what_items_commit_is_merged_in_their_order_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a", "b", "c"]
    assert place.branches() == ["main"]
    assert (place.left(), place.status()) == ([], "")
    assert sorted(path.name for path in place.repository.glob("*.txt")) == [
        "a.txt",
        "b.txt",
        "c.txt",
    ]


def test_an_item_that_is_quicker_waits_for_those_before_it_and_blocks_no_other(
    tmp_path: Path,
) -> None:
    last_has_worked = threading.Event()

    def does(folder: Path, item: str) -> None:
        if item == "a":
            assert last_has_worked.wait(30), (
                "the last item never came, since those that wait held its place"
            )
        commits_a_file(folder, item)
        if item == "f":
            last_has_worked.set()

    place = Place(tmp_path, items=("a", "b", "c", "d", "e", "f"), does=does, parallel=2)
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.ran[-1] == "f"
    assert place.merged() == ["a", "b", "c", "d", "e", "f"]


def test_no_more_items_work_at_a_time_than_the_map_says(tmp_path: Path) -> None:
    lock, at_work, most = threading.Lock(), [0], [0]

    def does(folder: Path, item: str) -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        commits_a_file(folder, item)
        with lock:
            at_work[0] -= 1

    Place(tmp_path, items=tuple("abcdefgh"), does=does, parallel=3).run_attempt()
    assert most[0] <= 3


def test_a_project_below_the_root_of_its_repository_is_where_items_work(tmp_path: Path) -> None:
    seen: list[Path] = []

    def does(folder: Path, item: str) -> None:
        seen.append(folder)
        commits_a_file(folder, item)

    place = Place(tmp_path, items=("a",), prefix="sub/project", does=does)
    assert isinstance(place.run_attempt(), Succeeded)
    assert [folder.parts[-2:] for folder in seen] == [("sub", "project")]
    assert (place.project / "a.txt").read_text() == "a\n"


def test_an_item_without_changes_leaves_no_trace(tmp_path: Path) -> None:
    place = Place(tmp_path, does=lambda *_: None)
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.merged(), place.branches(), place.left()) == ([], ["main"], [])


# ── what was not committed ───────────────────────────────────────────────


def writes_only(folder: Path, item: str) -> None:
    (folder / f"{item}.txt").write_text(item)
    (folder / "base").unlink()


UNCOMMITTED: list[tuple[UncommittedPolicy, list[str]]] = [
    ("commit", ["*: what was not committed"]),
    ("keep", []),
    ("fail", []),
]


@pytest.mark.parametrize(("policy", "merged"), UNCOMMITTED)
def test_changes_that_were_not_committed_are_never_dropped(
    tmp_path: Path, policy: UncommittedPolicy, merged: list[str]
) -> None:
    place = Place(
        tmp_path,
        items=("a",),
        does=writes_only,
        isolation=Isolation("worktree", uncommitted=policy, fingerprint="w"),
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert [re.sub(r"^0-a-[0-9a-f]{8}", "*", message) for message in place.merged()] == merged
    if policy == "commit":
        assert not (place.repository / "base").exists()
        return
    (kept,) = place.worktrees.iterdir()
    assert (kept / "a.txt").read_text() == "a"
    item = place.journal.step("map/item:a")
    assert item is not None
    if policy == "fail":
        assert failure_of(item.outcome).message == (
            f"changes were not committed: base, a.txt\nits worktree stays: {kept}, branch plait/r1/{kept.name}"
        )
    else:
        assert place.notes() == [f"changes that were not committed stay in {kept}"]


def test_a_failed_item_keeps_its_worktree_and_goes_on_there_when_it_is_retried(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad").touch()

    def does(folder: Path, item: str) -> None:
        commits_a_file(folder, item)
        if item == "b" and (tmp_path / "bad").exists():
            raise InputError("no", code="no")

    place = Place(tmp_path, does=does)
    place.run_attempt()
    assert place.merged() == ["a", "c"]
    (kept,) = place.left()
    (tmp_path / "bad").unlink()
    place.does = lambda folder, _: (folder / "more.txt").write_text("more")
    place.journal.append(*forget("map/item:b"))
    assert isinstance(place.run_attempt(retried=["map/item:b"]), Succeeded)
    assert place.merged() == ["a", "c", "b", f"{kept}: what was not committed"]
    assert (place.branches(), place.left()) == (["main"], [])


def forget(*paths: str, below: bool = False) -> list[StepInvalidated]:
    return [
        StepInvalidated("map", "", below=False),
        *(StepInvalidated(path, "", below=below) for path in paths),
    ]


def test_each_attempt_has_a_worktree_of_its_own_and_the_earlier_one_keeps_its_commits(
    tmp_path: Path,
) -> None:
    seen: list[Path] = []

    def does(folder: Path, item: str) -> None:
        seen.append(folder)
        (folder / "attempt").write_text(str(len(seen)))
        commits_a_file(folder, item)
        (folder / "uncommitted").write_text("x")
        if len(seen) == 1:
            raise InputError("no", code="no")

    place = Place(
        tmp_path,
        items=("a",),
        does=does,
        errors=ErrorPolicy(retry=Retry(attempts=2, initial_delay=0)),
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert len(set(seen)) == 2
    first = f"plait/r1/{seen[0].name}"
    assert place.branches() == ["main", first]
    shown = git(place.repository, "log", "--format=%s", first, "^main").splitlines()
    assert shown == [f"{seen[0].name}: what an attempt left behind", "a"]
    assert place.left() == []
    assert place.notes() == [
        f"commits of failed attempts stay on their branches: {first}; "
        "git branch -D drops one that you do not need"
    ]


def test_attempts_that_committed_nothing_are_not_reported(tmp_path: Path) -> None:
    seen: list[Path] = []

    def does(folder: Path, item: str) -> None:
        seen.append(folder)
        if len(seen) == 1:
            raise InputError("no", code="no")
        commits_a_file(folder, item)

    errors = ErrorPolicy(retry=Retry(attempts=2, initial_delay=0))
    place = Place(tmp_path, items=("a",), does=does, errors=errors)
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.branches(), place.notes()) == (["main"], [])


def test_branches_of_attempts_of_an_earlier_run_attempt_are_reported_at_the_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad").touch()

    def does(folder: Path, item: str) -> None:
        commits_a_file(folder, item)
        if item == "b" and (tmp_path / "bad").exists():
            raise InputError("no", code="no")

    errors = ErrorPolicy(retry=Retry(attempts=2, initial_delay=0))
    place = Place(tmp_path, does=does, errors=errors)
    place.run_attempt()
    (attempt,) = (
        one for one in place.branches() if one not in ("main", "plait/r1/merged", *kept_by(place))
    )
    assert [attempt in note for note in place.notes()] == [True], (
        "the dead letter has its place, and is told"
    )
    (tmp_path / "bad").unlink()
    place.journal.append(*forget("map/item:b", below=True))
    assert isinstance(place.run_attempt(retried=["map/item:b"]), Succeeded)
    assert attempt in place.notes()[-1]
    assert set(place.branches()) >= {"main", attempt}


def kept_by(place: Place) -> list[str]:
    return [f"plait/r1/{name}" for name in place.left()]


# ── conflicts ────────────────────────────────────────────────────────────


def edits_base(folder: Path, item: str) -> None:
    (folder / "base").write_text(f"{item}\n")
    git(folder, "commit", "-q", "-a", "-m", item)


def test_a_conflict_keeps_everything_names_it_and_can_be_continued_by_hand(tmp_path: Path) -> None:
    place = Place(
        tmp_path,
        does=lambda folder, item: (edits_base if item != "c" else commits_a_file)(folder, item),
    )
    place.run_attempt()
    assert place.merged() == ["a", "c"]
    known = place.journal.step("map/item:b")
    assert known is not None
    (kept,) = place.worktrees.iterdir()
    assert failure_of(known.outcome).message == (
        "its changes conflict with those of earlier items: base\n"
        f"its branch is plait/r1/{kept.name}, its worktree {kept}\n"
        f"continue by hand: cd {shlex.quote(str(kept))} && git merge plait/r1/merged, resolve, git commit; "
        "then plait retry r1 --failed"
    )
    assert git(place.repository, "show", f"plait/r1/{kept.name}:base") == "b"
    # By hand, as it says.
    who = "-c user.name=t -c user.email=t@example.org"
    os.system(f"cd {shlex.quote(str(kept))} && git {who} merge -q plait/r1/merged >/dev/null 2>&1")
    (kept / "base").write_text("a and b\n")
    git(kept, "commit", "-q", "-a", "-m", "resolved")
    place.journal.append(*forget("map/item:b"))
    assert isinstance(place.run_attempt(retried=["map/item:b"]), Succeeded)
    assert place.ran.count("b") == 1
    assert (place.repository / "base").read_text() == "a and b\n"
    assert (place.branches(), place.left(), place.status()) == (["main"], [], "")


def test_with_another_attempt_an_item_in_conflict_is_done_again_on_top_of_the_others(
    tmp_path: Path,
) -> None:
    place = Place(
        tmp_path,
        items=("a", "b"),
        does=lambda folder, item: (folder / "base").write_text(
            (folder / "base").read_text() + f"{item}\n"
        ),
        errors=ErrorPolicy(retry=Retry(attempts=2, initial_delay=0)),
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert (place.repository / "base").read_text() == "base\na\nb\n"


# ── the user's own working tree ──────────────────────────────────────────


def test_changes_of_the_user_that_are_not_in_the_way_stay(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.repository / "base").write_text("mine\n")
    (place.repository / "notes").write_text("mine\n")
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.status().splitlines() == ["M base", "?? notes"]
    assert (place.repository / "base").read_text() == "mine\n"
    assert place.merged() == ["a", "b", "c"]


def test_changes_of_the_user_that_are_in_the_way_stop_the_merge_until_they_are_gone(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, items=("a",), does=edits_base)
    (place.repository / "base").write_text("mine\n")
    before = git(place.repository, "rev-parse", "main")
    message = failure_of(place.run_attempt()).message
    assert message.startswith("the work of the items is not merged into main yet: ")
    assert message.endswith(
        "all of it is on the branch plait/r1/merged: git merge plait/r1/merged; then plait resume r1"
    )
    assert git(place.repository, "rev-parse", "main") == before
    assert (place.repository / "base").read_text() == "mine\n"
    git(place.repository, "checkout", "-q", "base")
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.ran == ["a"]
    assert (place.repository / "base").read_text() == "a\n"
    assert (place.branches(), place.status()) == (["main"], "")


def test_a_working_tree_that_changed_at_the_last_moment_can_be_merged_with_the_printed_commands(
    tmp_path: Path,
) -> None:
    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if args[0] == "update-ref" and "refs/heads/main" in args:
            (place.repository / "base").write_text("mine\nbase\n")
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    def does(folder: Path, item: str) -> None:
        (folder / "base").write_text(f"{'base' * 5}\n")
        commits_a_file(folder, item)

    place = Place(tmp_path, items=("a",), start=start, does=does)
    message = failure_of(place.run_attempt()).message
    assert message.startswith(
        f"main has the work of the items, but your working tree {place.repository} could not be updated"
    )
    assert (place.repository / "base").read_text() == "mine\nbase\n"
    detach, *others = re.findall(r"git [a-z]+(?: [^&;]+)?", message.partition("combine both: ")[2])
    git(place.repository, *shlex.split(detach)[1:])
    assert place.status() == "M base"
    assert not (place.repository / "a.txt").exists()
    for command in others[:2]:
        git(place.repository, *shlex.split(command)[1:])
    assert (place.status(), place.merged()) == ("", ["a"])
    assert isinstance(place.run_attempt(), Succeeded)


def test_a_branch_that_went_on_meanwhile_is_merged_and_not_overwritten(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",), parallel=1)

    def does(folder: Path, item: str) -> None:
        commits_a_file(folder, item)
        (place.repository / "mine").write_text("x")
        git(place.repository, "add", "mine")
        git(place.repository, "commit", "-q", "-m", "mine")

    place.does = does
    assert isinstance(place.run_attempt(), Succeeded)
    log = git(place.repository, "log", "--first-parent", "--format=%s", "main").splitlines()
    assert log == ["Merge branch 'plait/r1/merged'", "mine", "first"]
    assert place.status() == ""


def test_a_branch_that_is_checked_out_nowhere_is_moved_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))

    def does(folder: Path, item: str) -> None:
        commits_a_file(folder, item)
        git(place.repository, "checkout", "-q", "-b", "other")

    place.does = does
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a"]
    assert not (place.repository / "a.txt").exists()
    assert place.status() == ""


# ── which repositories ───────────────────────────────────────────────────


def detached(place: Place) -> None:
    git(place.repository, "checkout", "-q", "--detach")


def bare(place: Place) -> None:
    git(place.repository, "config", "core.bare", "true")


def without_repository(place: Place) -> None:
    (place.repository / ".git").rename(place.folder / "elsewhere")


def with_a_branch_in_the_way(place: Place) -> None:
    git(place.repository, "branch", "plait")


REFUSED = [
    (detached,           {}, "no branch is checked out (detached HEAD), so there is nothing to merge into"),
    (bare,               {}, "the repository has no working tree: it is bare"),
    (without_repository, {}, "the project is not in a git repository"),
    (lambda _: None,     {"first": {}}, "the repository has no commit yet"),
    (lambda _: None,     {"isolation": Isolation("worktree", base="nowhere", fingerprint="w")},
                         "there is no commit 'nowhere' in the repository"),
    (with_a_branch_in_the_way, {},
     "a branch is called 'plait', and git has no room for branches 'plait/…' beside it"),
    (with_a_branch_in_the_way, {"isolation": Isolation("worktree", merges=False, fingerprint="w")},
     "a branch is called 'plait', and git has no room for branches 'plait/…' beside it"),
]  # fmt: skip


@pytest.mark.parametrize(("arrange", "fields", "why"), REFUSED)
def test_a_repository_in_which_items_cannot_have_worktrees_is_refused_with_a_reason(
    tmp_path: Path, arrange: Callable[[Place], None], fields: Mapping[str, object], why: str
) -> None:
    place = Place(tmp_path, **fields)  # type: ignore[arg-type]
    arrange(place)
    message = failure_of(place.run_attempt()).message
    assert f"items cannot have worktrees here: {why}\n" in message
    assert "\nfix: " in message
    assert place.ran == []


def test_a_branch_in_the_way_is_renamed_by_the_printed_command(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))
    with_a_branch_in_the_way(place)
    assert failure_of(place.run_attempt()).message.endswith("\nfix: git branch -m plait NEW-NAME")
    git(place.repository, "branch", "-m", "plait", "new-name")
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a"]


PARTIAL = (
    "{folder}: items cannot have worktrees here: this is a partial clone, a file of the commit was never "
    "fetched, and Plait fetches nothing\n"
    "fix: git checkout {commit} once, which fetches what it lacks, and git switch - to be back; "
    "then plait retry RUN --failed, or plait resume"
)


@pytest.mark.parametrize("lacking", ["blob:none", "tree:0"])
def test_a_partial_clone_that_lacks_the_base_says_how_to_fetch_it(
    tmp_path: Path, lacking: str
) -> None:
    origin = new_repository(tmp_path / "origin", base="first\n")
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    first = git(origin, "rev-parse", "HEAD")
    (origin / "base").write_text("second\n")
    git(origin, "commit", "-q", "-a", "-m", "second")
    git(tmp_path, "clone", "-q", f"--filter={lacking}", origin.as_uri(), "repository")

    place = Place(
        tmp_path, items=("a",), isolation=Isolation("worktree", base="HEAD~2", fingerprint="w")
    )
    place.run_attempt()
    known = place.journal.step("map/item:a")
    assert known is not None
    assert failure_of(known.outcome).message == PARTIAL.format(
        folder=place.repository, commit=first
    )
    assert place.left() == []

    git(place.repository, "checkout", "-q", first)
    git(place.repository, "switch", "-q", "-")
    place.journal.append(*forget("map/item:a"))
    assert isinstance(place.run_attempt(retried=["map/item:a"]), Succeeded)
    assert (place.repository / "a.txt").exists()


def sparse(place: Place) -> None:
    (place.repository / "hidden").mkdir()
    (place.repository / "hidden" / "file").write_text("x")
    git(place.repository, "add", "-A")
    git(place.repository, "commit", "-q", "-m", "hidden")
    git(place.repository, "sparse-checkout", "set", "--cone", "seen")


def with_submodule(place: Place) -> None:
    other = place.folder / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "f").write_text("x")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "x")
    git(
        place.repository,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(other),
        "module",
    )
    git(place.repository, "commit", "-q", "-m", "module")


def linked(place: Place) -> None:
    """The project is itself a linked worktree of another repository."""
    git(place.repository, "checkout", "-q", "-b", "elsewhere")
    git(place.repository, "worktree", "add", "-q", str(place.folder / "linked"), "main")
    place.repository.rename(place.folder / "origin")
    (place.folder / "linked").rename(place.repository)
    git(place.folder / "origin", "worktree", "repair", str(place.repository))


@pytest.mark.parametrize("arrange", [sparse, with_submodule, linked])
def test_other_repositories_work(tmp_path: Path, arrange: Callable[[Place], None]) -> None:
    place = Place(tmp_path, items=("a", "b"))
    arrange(place)
    before = git(place.repository, "rev-parse", "HEAD")
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(
        place.repository, "log", "--no-merges", "--format=%s", f"{before}..main"
    ).splitlines() in (
        ["b", "a"],
        ["a", "b"],
    )
    assert (place.repository / "a.txt").exists()
    assert place.status() == ""


def test_without_a_branch_items_can_keep_their_own(tmp_path: Path) -> None:
    place = Place(tmp_path, isolation=Isolation("worktree", merges=False, fingerprint="w"))
    detached(place)
    assert isinstance(place.run_attempt(), Succeeded)
    names = [name for name in place.branches() if name.startswith("plait/")]
    assert [git(place.repository, "log", "-1", "--format=%s", name) for name in names] == [
        "a",
        "b",
        "c",
    ]
    assert (place.left(), place.merged()) == ([], [])


# ── names ────────────────────────────────────────────────────────────────

HOSTILE = [
    "--force",
    "-b",
    "../../escape",
    "refs/heads/x",
    "a\nb\x00c\x1b[1m",
    "",
    "HEAD",
    "..",
    "ä☃/",
    "a" * 500,
]


@given(st.text() | st.sampled_from(HOSTILE), st.text(), st.integers(0, 10**7), st.integers(1, 99))
def test_what_an_item_holds_never_becomes_a_name_an_option_or_a_path(
    title: str, key: str, order: int, number: int
) -> None:
    assert re.fullmatch(
        r"[0-9]+(-[a-z0-9]+)*-[0-9a-f]{8}", place_name("r1", order, title, key, number)
    )


def test_git_is_given_only_names_of_our_own_making(tmp_path: Path) -> None:
    words: list[str] = []

    def watched(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        words.extend(args)
        words.append(cwd)
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    items = tuple(name for name in HOSTILE if "\0" not in name)
    place = Place(
        tmp_path,
        items=items,
        start=watched,
        does=lambda folder, item: (folder / f"f{items.index(item)}").write_text(item),
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert len(place.merged()) == len(items)
    whole = {item for item in items if item not in ("HEAD", "-b", "..")}
    assert [
        word for word in words if any(item and item in word for item in whole if len(item) > 2)
    ] == []
    assert sorted(os.listdir(tmp_path)) == ["repository", "run"]


# ── hostile repositories ─────────────────────────────────────────────────


def test_nothing_that_a_repository_names_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = tmp_path / "evil.sh"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >> {canary}\ncat\n')
    evil.chmod(0o755)
    place = Place(
        tmp_path,
        items=("a", "b"),
        first={
            "base": "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            ".gitattributes": "* filter=evil merge=evil diff=evil\n",
        },
    )
    hooks = place.repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in (
        "post-checkout",
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
        "post-merge",
        "prepare-commit-msg",
    ):
        (hooks / hook).symlink_to(evil)

    def hostile(value: str) -> None:
        for key in (
            "core.fsmonitor",
            "filter.evil.clean",
            "filter.evil.smudge",
            "filter.evil.process",
            "merge.evil.driver",
            "diff.evil.command",
            "diff.evil.textconv",
            "diff.external",
            "gpg.program",
            "core.sshCommand",
            "core.editor",
            "core.pager",
            "core.askPass",
            "core.gitProxy",
            "credential.helper",
            "uploadpack.packObjectsHook",
        ):
            git(place.repository, "config", key, value)
        git(place.repository, "config", "commit.gpgSign", "true")
        git(place.repository, "config", "core.hooksPath", str(hooks))

    def does(folder: Path, item: str) -> None:
        lines = (folder / "base").read_text().splitlines()
        lines[0 if item == "a" else 8] = item
        (folder / "base").write_text("\n".join(lines) + "\n")

    hostile(str(evil))
    place.does = does
    outcome = place.run_attempt()
    assert not canary.exists(), canary.read_text()
    # Its own filters are not run, so its working tree is left alone; and its merge driver is a conflict.
    assert "filters for its files, which Plait does not run" in failure_of(outcome).message
    known = place.journal.step("map/item:b")
    assert known is not None
    assert failure_of(known.outcome).kind == "conflict"


def test_a_step_that_defines_a_filter_while_the_run_is_on_does_not_get_it_run(
    tmp_path: Path,
) -> None:
    canary = tmp_path / "canary"

    def does(folder: Path, item: str) -> None:
        git(folder, "config", "filter.late.clean", f"sh -c 'echo x >> {canary}; cat'")
        (folder / ".gitattributes").write_text("* filter=late\n")
        (folder / f"{item}.txt").write_text(item)

    Place(tmp_path, items=("a",), does=does).run_attempt()
    assert not canary.exists()


# ── deaths and faults at every call of git ───────────────────────────────


class Killed(BaseException):
    """Plait dies here."""


def dying(at: int, *, after: bool) -> tuple[Callable[..., Answer], Callable[[], bool]]:
    """A git whose n-th call is the last action of this run attempt, before or after its effect."""
    numbers, dead = itertools.count(1), threading.Event()

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if dead.is_set():
            raise Killed
        number = next(numbers)
        if number == at and not after:
            dead.set()
            raise Killed
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if number == at:
            dead.set()
            raise Killed
        return answer

    return start, dead.is_set


CALLS = every(12)
"""Of the calls of git, every so many is the last one; `make crash` tries them all."""


@pytest.mark.share
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whenever_we_die_no_commit_is_lost_none_is_merged_twice_and_the_order_stays(
    tmp_path: Path, after: bool
) -> None:
    for at in itertools.count(1 + after, CALLS):
        start, has_died = dying(at, after=after)
        place = Place(tmp_path / str(at), items=("a", "b"), start=start, parallel=1)
        with contextlib.suppress(Killed):
            place.run_attempt()
        if not has_died():
            break
        place.start = start_git
        assert isinstance(place.run_attempt(), Succeeded), at
        assert place.merged() == ["a", "b"], at
        assert (place.branches(), place.left(), place.status()) == (["main"], [], ""), at
    assert at > 20


@pytest.mark.share
def test_a_disk_that_is_full_at_any_call_loses_nothing(tmp_path: Path) -> None:
    for at in itertools.count(1, CALLS):
        numbers = itertools.count(1)
        failed = []

        def start(
            args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
        ) -> Answer:
            if next(numbers) == at:  # noqa: B023 - used up in this round
                failed.append(args[0])  # noqa: B023
                return Ended(128, b"", b"fatal: write error: No space left on device")
            return start_git(args, cwd=cwd, env=env, stdin=stdin)

        place = Place(tmp_path / str(at), items=("a", "b"), start=start, parallel=1)
        first = place.run_attempt()
        if not failed:
            break
        place.start = start_git
        letters = [f"map/item:{item}" for item in "ab" if is_failed(place, f"map/item:{item}")]
        if letters:
            place.journal.append(*forget(*letters))
        if letters or isinstance(first, Failed):
            assert isinstance(place.run_attempt(retried=letters), Succeeded), (at, failed)
        assert sorted(place.merged()) == ["a", "b"], (at, failed)
        assert place.ran.count("a") <= 2, (at, failed)
        assert place.status() == "", (at, failed)
    assert at > 20


def is_failed(place: Place, path: str) -> bool:
    known = place.journal.step(path)
    return known is not None and isinstance(known.outcome, Failed)


def test_a_working_tree_that_was_half_updated_is_finished(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a", "b", "c"), first={"base": "base\n", "gone": "x\n"})

    def does(folder: Path, _: str) -> None:
        (folder / "base").write_text("a much longer text than before\n" * 100)
        (folder / "gone").unlink(missing_ok=True)
        (folder / "new").write_text("new\n")

    place.items, place.does = ("a",), does

    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        if args[0] == "read-tree" and "-n" not in args:
            # git was killed while it wrote: a part of one file, all of another, one not yet.
            (place.repository / "base").write_text("a much longer text than before\n" * 7)
            (place.repository / "gone").unlink()
            raise Killed
        return start_git(args, cwd=cwd, env=env, stdin=stdin)

    place.start = start
    with pytest.raises(Killed):
        place.run_attempt()
    (place.repository / ".git" / "index.lock").write_text(
        "plait r1\n"
    )  # as a killed process leaves it
    place.start = start_git
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.status() == ""
    assert (place.repository / "base").read_text() == "a much longer text than before\n" * 100


def test_the_lock_of_another_git_is_not_taken_away(tmp_path: Path) -> None:
    place = Place(tmp_path, items=("a",))
    lock = place.repository / ".git" / "index.lock"
    lock.write_bytes(b"DIRC")
    message = failure_of(place.run_attempt()).message
    assert "another git process holds the lock of your working tree" in message
    assert lock.read_bytes() == b"DIRC"
    lock.unlink()
    assert isinstance(place.run_attempt(), Succeeded)
    assert place.merged() == ["a"]


# ── intents ──────────────────────────────────────────────────────────────


def test_a_branch_that_is_neither_before_nor_behind_a_merge_is_a_question(tmp_path: Path) -> None:
    def start(
        args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> Answer:
        answer = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if args[0] == "update-ref" and "refs/heads/main" in args:
            raise Killed
        return answer

    place = Place(tmp_path, items=("a",), start=start)
    with pytest.raises(Killed):
        place.run_attempt()
    # The merge was made; somebody takes it back and goes on elsewhere.
    git(place.repository, "reset", "-q", "--hard", "main~1")
    (place.repository / "mine").write_text("x")
    git(place.repository, "add", "-A")
    git(place.repository, "commit", "-q", "-m", "mine")
    place.start = start_git
    with pytest.raises(InputError) as asked:
        place.run_attempt()
    assert asked.value.code == "once"
    assert (
        "the branch main is neither where a merge (map/merge) began nor where it was to end"
        in str(asked.value)
    )
    assert "--repeat map/merge" in str(asked.value)
    assert isinstance(place.run_attempt(repeat=["map/merge"]), Succeeded)
    assert (
        git(place.repository, "log", "--first-parent", "--format=%s", "main").splitlines()[1]
        == "mine"
    )
    assert (place.repository / "a.txt").exists()


# ── folders of copies ────────────────────────────────────────────────────


def test_a_folder_of_copies_has_the_named_inputs_and_stays_if_something_came_to_it(
    tmp_path: Path,
) -> None:
    seen: dict[str, list[str]] = {}

    def does(folder: Path, item: str) -> None:
        seen[item] = sorted(
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
        )
        if item == "b":
            (folder / "made").write_text("x")

    inputs = tuple(text_of(one) for one in ("${item}.in", "lib/**"))
    place = Place(
        tmp_path,
        items=("a", "b"),
        does=does,
        isolation=Isolation("directory", inputs=inputs, fingerprint="d"),
    )
    for name in ("a.in", "b.in", "lib/deep/x", "other"):
        (place.repository / name).parent.mkdir(parents=True, exist_ok=True)
        (place.repository / name).write_text(name)
    assert isinstance(place.run_attempt(), Succeeded)
    assert seen == {"a": ["a.in", "lib/deep/x"], "b": ["b.in", "lib/deep/x"]}
    (kept,) = place.worktrees.iterdir()
    assert (kept / "made").exists()
    assert not (place.repository / "made").exists()


@pytest.mark.parametrize("item", ["../outside", "/etc/passwd", "link", "missing"])
def test_an_input_outside_the_project_is_refused(tmp_path: Path, item: str) -> None:
    isolation = Isolation("directory", inputs=(text_of("${item}"),), fingerprint="d")
    place = Place(tmp_path, items=(item,), does=lambda *_: None, isolation=isolation)
    (tmp_path / "outside").write_text("secret")
    (place.repository / "link").symlink_to(tmp_path / "outside")
    place.run_attempt()
    assert is_failed(place, f"map/item:{item}")
    assert place.ran == []
