"""What steps change, by real git: committed or not, under odd names, and nothing of a repository runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core.values import Json
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, StepError
from plait.program.action_step import FailureHandler
from plait.program.git_changes import CHANGES, ChangeTracker
from plait.program.phases import Phases
from plait.program.program import Program
from program.fake_git import GitServices, git, new_repository
from program.fakes import Acting, FakeServices, new_run, saying, step, steps, turn_of

EMPTY = {
    "files": [], "files_added": [], "files_modified": [], "files_deleted": [], "files_changed": [],
    "commits": [], "commit_count": 0, "insertions": 0, "deletions": 0,
}  # fmt: skip


def tracker(folder: Path, tmp_path: Path, project: Path | None = None) -> ChangeTracker:
    return ChangeTracker(
        GitServices(),
        str(tmp_path / "run"),
        str(project or folder),
        frozenset({"step", "workflow", "git"}),
    )


def changed(
    folder: Path, tmp_path: Path, change: Callable[[], Any], project: Path | None = None
) -> dict[str, Json]:
    found = tracker(folder, tmp_path, project)
    before = found.snapshot(str(folder))
    change()
    return found.since(before, str(folder))


def test_files_outside_the_cone_of_a_sparse_checkout_are_still_there(tmp_path: Path) -> None:
    files = {"seen/a": "1\n", "far/changed": "1\n", "far/kept": "1\n"}
    for folder in ("seen", "far"):
        (tmp_path / "r" / folder).mkdir(parents=True)
    repository = new_repository(tmp_path / "r", **files)
    git(repository, "sparse-checkout", "set", "--cone", "seen")
    assert not (repository / "far").exists()

    def change() -> None:
        (repository / "far").mkdir()
        (repository / "far/changed").write_text("1\n2\n")
        (repository / "far/new").write_text("1\n")
        (repository / "seen/a").unlink()

    found = changed(repository, tmp_path, change)
    reported = [found[name] for name in ("files_added", "files_modified", "files_deleted")]
    assert reported == [["far/new"], ["far/changed"], ["seen/a"]]
    assert (found["insertions"], found["deletions"]) == (2, 1)


def test_files_that_came_changed_and_went_are_reported_apart(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", kept="1\n", edited="1\n2\n", gone="1\n2\n3\n")

    def change() -> None:
        (repository / "edited").write_text("1\nnew\nnewer\n")
        (repository / "gone").unlink()
        (repository / "sub").mkdir()
        (repository / "sub" / "added").write_text("a\n")

    assert changed(repository, tmp_path, change) == {
        "files": ["edited", "gone", "sub/added"],
        "files_added": ["sub/added"],
        "files_modified": ["edited"],
        "files_deleted": ["gone"],
        "files_changed": ["edited", "gone", "sub/added"],
        "commits": [],
        "commit_count": 0,
        "insertions": 3,
        "deletions": 4,
    }


def test_what_was_there_before_is_no_change_of_the_step(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    (repository / "a").write_text("dirty\n")
    (repository / "untracked").write_text("x\n")
    assert changed(repository, tmp_path, lambda: None) == EMPTY


def test_commits_are_reported_oldest_first_and_their_files_too(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    ids: list[str] = []

    def change() -> None:
        for number in (1, 2):
            (repository / f"f{number}").write_text("x\n")
            git(repository, "add", "-A")
            git(repository, "commit", "-q", "-m", "more")
            ids.append(git(repository, "rev-parse", "HEAD"))

    found = changed(repository, tmp_path, change)
    assert (found["commits"], found["commit_count"], found["files_added"]) == (ids, 2, ["f1", "f2"])


def test_a_repository_without_commits_has_changes_too(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r")

    def change() -> None:
        (repository / "a").write_text("1\n")
        git(repository, "add", "a")
        git(repository, "commit", "-q", "-m", "first")

    found = changed(repository, tmp_path, change)
    assert (found["files_added"], found["commit_count"], found["insertions"]) == (["a"], 1, 1)


def test_outside_any_repository_nothing_has_changed(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    assert changed(plain, tmp_path, lambda: (plain / "a").write_text("x")) == EMPTY
    assert tracker(plain, tmp_path).repository(str(plain)) == {}


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
    | st.sampled_from(" \n\t\"'\\-*[]{}$:\udce9"),
    min_size=1,
    max_size=12,
).filter(
    lambda name: name not in (".", "..", ".git") and not name.lower().startswith((".git", "git~"))
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=names)
def test_a_file_of_any_name_is_reported_by_its_name(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    top = tmp_path_factory.mktemp("odd")
    repository = new_repository(top / 'r: "x"\n', a="1\n")
    found = changed(repository, top, lambda: (repository / name).write_text("1\n"))
    assert found["files_changed"] == [name]


ODD = [
    "-n",
    "--stdin",
    ":(glob)*",
    "a\nb",
    'quo"te',
    "tab\tbed",
    "caf\udce9",
    "ü",
    " lead",
    "a\\b",
    "*",
]


def test_odd_names_together(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")

    def change() -> None:
        for name in ODD:
            Path(os.fsdecode(os.fsencode(str(repository / name)))).write_text("1\n")

    assert sorted(changed(repository, tmp_path, change)["files_added"]) == sorted(ODD)


def test_ignored_files_are_left_out_unless_they_are_tracked(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    (repository / ".gitignore").write_text("*.log\n")
    (repository / "kept.log").write_text("1\n")
    git(repository, "add", "-f", "-A")
    git(repository, "add", "-f", "kept.log")
    git(repository, "commit", "-q", "-m", "more")

    def change() -> None:
        (repository / "kept.log").write_text("2\n")
        (repository / "other.log").write_text("2\n")

    assert changed(repository, tmp_path, change)["files_changed"] == ["kept.log"]


def test_files_folders_and_links_may_take_the_place_of_each_other(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n", b="1\n")
    (repository / "c").mkdir()
    (repository / "c" / "inner").write_text("1\n")

    def change() -> None:
        (repository / "a").unlink()
        (repository / "a").mkdir()
        (repository / "a" / "inner").write_text("x\n")
        (repository / "b").unlink()
        (repository / "b").symlink_to("a")
        (repository / "c" / "inner").unlink()
        (repository / "c").rmdir()
        (repository / "c").write_text("x\n")

    found = changed(repository, tmp_path, change)
    assert found["files_added"] == ["a/inner", "c"]
    assert found["files_modified"] == ["b"]
    assert found["files_deleted"] == ["a", "c/inner"]


def test_a_repository_inside_is_not_looked_into(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    found = changed(repository, tmp_path, lambda: new_repository(repository / "inner"))
    assert found == EMPTY


def test_paths_are_those_of_the_project_in_a_larger_repository(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", outside="1\n")
    project = repository / "apps" / "mine"
    project.mkdir(parents=True)

    def change() -> None:
        (project / "a").write_text("1\n")
        (repository / "outside").write_text("2\n")

    assert changed(project, tmp_path, change)["files_changed"] == ["a"]
    # The same in another worktree, where the project has the same place.
    other = tmp_path / "other"
    git(repository, "worktree", "add", "-q", str(other))
    (other / "apps" / "mine").mkdir(parents=True)
    found = changed(
        other, tmp_path, lambda: (other / "apps" / "mine" / "b").write_text("x"), project
    )
    assert found["files_changed"] == ["b"]


def test_the_repository_itself_is_not_written_to(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")

    def state() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in (repository / ".git").rglob("*")
            if path.is_file()
        }

    (repository / "b").write_text("x\n")
    before = state()
    found = tracker(repository, tmp_path)
    first = found.snapshot(str(repository))
    found.since(first, str(repository))
    found.repository(str(repository))
    assert state() == before


def test_nothing_runs_that_a_repository_names(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch '{tmp_path}/sprung'\ncat\n")
    trap.chmod(trap.stat().st_mode | stat.S_IXUSR)
    for key in (
        "core.fsmonitor", "filter.evil.clean", "filter.evil.process", "filter.e=v.i l.smudge",
        "diff.evil.command", "diff.evil.textconv", "diff.external", "core.sshCommand", "core.pager",
    ):  # fmt: skip
        git(repository, "config", key, str(trap))
    git(repository, "config", "filter.evil.required", "true")
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "pre-commit", "reference-transaction"):
        os.link(trap, hooks / hook)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")

    def change() -> None:
        (repository / "a").write_text("2\n")
        (repository / "b").write_text("2\n")

    found = changed(repository, tmp_path, change)
    assert found["files_changed"] == ["a", "b"]
    assert (found["insertions"], found["deletions"]) == (2, 1)
    assert tracker(repository, tmp_path).repository(str(repository))["branch"] == "main"
    assert not (tmp_path / "sprung").exists()


def test_a_filter_that_a_step_brings_does_not_run_at_the_next_snapshot(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    trap = f"touch '{tmp_path}/sprung'; cat"

    def change() -> None:
        git(repository, "config", "filter.late.clean", trap)
        (tmp_path / "r" / "included").write_text(f'[filter "later"]\n\tclean = "{trap}"\n')
        git(repository, "config", "include.path", "../included")
        (repository / ".gitattributes").write_text("a filter=late\nb filter=later\n")
        (repository / "a").write_text("2\n")
        (repository / "b").write_text("2\n")

    found = changed(repository, tmp_path, change)
    assert found["files_changed"] == [".gitattributes", "a", "b", "included"]
    assert not (tmp_path / "sprung").exists()


def test_a_git_file_that_a_step_writes_leads_to_no_program(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n", **{".gitattributes": "* filter=evil\n"})
    found = tracker(repository, tmp_path)
    before = found.snapshot(str(repository))
    (repository / ".git").rename(repository / "evil")
    (repository / ".git").write_text("gitdir: evil\n")
    git(repository, "config", "filter.evil.clean", f"touch '{tmp_path}/sprung'; cat")
    (repository / "a").write_text("2\n")
    found.since(before, str(repository))
    tracker(repository, tmp_path / "other").snapshot(str(repository))
    assert not (tmp_path / "sprung").exists()


def test_git_names_the_branch_the_commit_and_the_root(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    head = git(repository, "rev-parse", "HEAD")
    found = tracker(repository, tmp_path)
    root = os.path.realpath(repository)
    assert found.repository(str(repository)) == {"branch": "main", "commit": head, "root": root}
    git(repository, "checkout", "-q", "--detach")
    assert found.repository(str(repository)) == {"branch": "", "commit": head, "root": root}
    empty = new_repository(tmp_path / "empty")
    assert tracker(empty, tmp_path).repository(str(empty)) == {
        "branch": "main",
        "commit": "",
        "root": os.path.realpath(empty),
    }


# ── in a flow ────────────────────────────────────────────────────────────


def writing(folder: Path, **files: str) -> Acting:
    def write(_: object) -> Json:
        for name, text in files.items():
            (folder / name).write_text(text)
        return "written"

    return Acting(write)


def ran(flow: Program, folder: Path, tmp_path: Path, journal: MemoryJournal | None = None) -> Json:
    run = new_run(GitServices(), journal, folder=str(tmp_path / "run"))
    try:
        value = flow.run(turn_of(run, directory=str(folder)))
    finally:
        run.events.close()
    return value["output"]


def workflow(*, tracks: frozenset[str], **phases: Any) -> Program:
    return Program("workflow", "w", Phases(**phases), tracks=tracks)


ALL = frozenset({"step", "workflow", "git"})


def test_a_step_sees_what_the_one_before_it_changed_and_what_the_run_did(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    text = "${step.files_added:json} ${step.name:-} ${workflow.files_changed:json} ${workflow.name:-none} ${git.branch}"
    flow = workflow(
        steps=steps(
            step("one", writing(repository, b="1\n")),
            step("two", writing(repository, c="1\n")),
            step("three", saying(text), facts={"name": "three"}),
        ),
        tracks=ALL,
    )
    assert ran(flow, repository, tmp_path) == '["c"] three ["b","c"] none main'


def test_before_the_first_step_nothing_has_changed(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    text = "${step.files_added:json} ${step.commit_count} ${step.insertions}"
    for flow in (
        workflow(steps=steps(step("one", saying(text))), tracks=ALL),
        workflow(
            setup=steps(step("one", saying("x"))),
            reduce=steps(step("two", saying(text))),
            tracks=ALL,
        ),
    ):
        assert ran(flow, repository, tmp_path) == "[] 0 0"


def test_each_merge_step_knows_what_those_before_it_added(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    flow = workflow(
        merge=steps(
            step("one", writing(repository, b="1\n")),
            step("two", saying("${merge.file_list} ${merge.file_count}")),
        ),
        tracks=ALL,
    )
    assert ran(flow, repository, tmp_path) == "b 1"


def test_handlers_see_what_the_step_itself_changed_also_if_it_failed(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")

    def write_and_fail(_: object) -> Json:
        (repository / "half").write_text("1\n")
        raise StepError(Failure("broken", "exit", 1))

    mend = step("mend", saying("${step.files_added:json} ${error.message}"), capture="seen")
    flow = workflow(
        steps=steps(
            step(
                "one",
                Acting(write_and_fail),
                on_failure=FailureHandler(steps(mend, name="on_failure")),
            ),
            step("two", saying("${seen}")),
        ),
        tracks=frozenset({"step"}),
    )
    assert ran(flow, repository, tmp_path) == '["half"] broken'


def test_a_resumed_run_knows_what_steps_changed_and_where_the_run_began(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    broken = [True]

    def last(turn: Any) -> Json:
        if broken[0]:
            raise StepError(Failure("not yet"))
        return saying("${step.files_added:json} ${workflow.files_added:json}").answers(turn)

    flow = workflow(
        steps=steps(step("one", writing(repository, b="1\n")), step("two", Acting(last))),
        tracks=ALL,
    )
    journal = MemoryJournal()
    with pytest.raises(StepError):
        ran(flow, repository, tmp_path, journal)
    broken[0] = False
    (repository / "later").write_text("by hand\n")
    assert ran(flow, repository, tmp_path, journal.reopen()) == '["b"] ["b","later"]'


def test_a_flow_that_does_not_ask_starts_no_git(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r", a="1\n")
    run = new_run(FakeServices(), folder=str(tmp_path / "run"))
    flow = workflow(steps=steps(step("one", writing(repository, b="1\n"))), tracks=frozenset())
    assert flow.run(turn_of(run, directory=str(repository)))["output"] == "written"
    run.events.close()
    assert not (tmp_path / "run").exists()


def test_changes_have_the_fields_that_are_promised(tmp_path: Path) -> None:
    assert tuple(changed(tmp_path, tmp_path, lambda: None)) == CHANGES
