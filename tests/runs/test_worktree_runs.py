"""Isolation as a flow file says it: what is refused, what a dry run shows, merge steps, what a crash left."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.app import runs as flows
from plait.app import services
from plait.app.takeover import look_at, take_over
from plait.cli import main
from plait.core.documents import parse
from plait.core.errors import InputError
from plait.engine.events import Note
from plait.lang.workflow.check import check_workflow
from plait.lang.workflow.compose import compose
from program.fake_git import git, new_repository
from share import every

HEAD = "map:\n  input: [a, b]\n  max_parallel: 2\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER_SPACE", str(home))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@example.org")
    return new_repository(tmp_path / "project", **{".gitignore": ".ai/state\n", "base": "base\n"})


def written(project: Path, text: str) -> str:
    """A flow, committed."""
    (project / "flow.yaml").write_text(text)
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "flow")
    return str(project / "flow.yaml")


# ── the file ─────────────────────────────────────────────────────────────

ISOLATION = [
    # isolation                                             what is wrong with it
    ("none",                                                []),
    ("worktree",                                            []),
    ("directory",                                           []),
    ("{kind: worktree, base: main~2, merge: none, uncommitted: keep}", []),
    ("{kind: directory, inputs: ['${item}', lib/**]}",      []),
    ("elsewhere",                                           ["wrong-type"]),
    ("{base: HEAD}",                                        ["missing-field"]),
    ("{kind: worktree, base: --force}",                     ["wrong-type"]),
    ("{kind: worktree, uncommitted: drop}",                 ["wrong-type"]),
    ("{kind: worktree, inputs: [a]}",                       ["contradiction"]),
    ("{kind: directory, base: HEAD, merge: none}",          ["contradiction", "contradiction"]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "wrong"), ISOLATION)
def test_what_a_map_may_say_about_isolation(field: str, wrong: Sequence[str]) -> None:
    text = f"{HEAD}  isolation: {field}\n  steps: [{{shell: ls}}]\n"
    found = check_workflow(compose(parse(text, "flow.yaml"), "flow.yaml"))
    assert [finding.problem.code for finding in found if finding.severity == "error"] == wrong


def test_a_dry_run_says_where_items_would_work_and_makes_nothing(project: Path) -> None:
    path = written(project, f"{HEAD}  isolation: worktree\n  steps: [{{shell: ls}}]\n")
    shown = [one.shown for one in flows.plan_run(path)]
    assert (
        shown[0]
        == "each item in its own git worktree, from HEAD; merged back in the order of the items"
    )
    assert not (project / ".ai").exists()


def test_a_dry_run_goes_through_merge_steps_also_of_a_run_that_is_done(project: Path) -> None:
    merge = "merge: [{shell: 'git merge -q ${merge.source_branch} # ${merge.target_branch}'}]\n"
    path = written(project, f"{HEAD}  isolation: worktree\n  steps: [{{shell: ls}}]\n{merge}")
    shown = [one.shown for one in flows.plan_run(path)]
    assert shown[-1] == "git merge -q ${merge.source_branch} # ${merge.target_branch}"
    run = flows.run_flow(path)
    assert run.status == "done", run.failure
    assert all(one.replayed for one in flows.plan_resume(run.run, project=str(project)))


# ── runs ─────────────────────────────────────────────────────────────────

MERGING = """\
map:
  input: [a, b]
  isolation: worktree
  steps:
    - shell: echo ${item} > ${item}.txt; git add -A; git commit -q -m ${item}
    - write_file: {path: "${item}.note", content: "${step.files_added} ${workflow.commit_count}"}
    - tool: core/file/write
      params: {path: "${item}.tool", content: tool}
reduce:
  - shell: cat a.txt b.txt > all.txt; git add -A; git commit -q -m reduced
merge:
  - write_file:
      path: ${workflow.dir}/facts.json
      format: json
      content:
        from: ${merge.source_branch}
        to: ${merge.target_branch}
        files: ${merge.modified_files}
        commits: ${merge.commit_count}
        list: ${merge.file_list}
  - shell: printf '%s\\n' ${merge.worktree} > ${workflow.dir}/where
  - shell: git -C ${workflow.dir} merge -q ${merge.source_branch}
"""


def test_merge_steps_replace_the_merge_and_know_what_is_merged(project: Path) -> None:
    path = written(
        project,
        MERGING.replace(
            "  - write_file:\n      path: ${workflow.dir}/facts.json\n",
            "  - write_file:\n      path: facts.json\n",
        ),
    )
    result = plait.run(path)
    assert result.status == "done", result.failure
    # What a merge step writes is in the worktree that it works in, and is not committed: so that stays.
    where = Path((project / "where").read_text().strip())
    assert json.loads((where / "facts.json").read_text()) == {
        "from": f"plait/{result.run}/merged",
        "to": "main",
        "files": ["a.note", "a.tool", "a.txt", "all.txt", "b.note", "b.tool", "b.txt"],
        "commits": 7,
        "list": "a.note, a.tool, a.txt, all.txt, b.note, b.tool, b.txt",
    }
    assert (project / "all.txt").read_text() == "a\nb\n"
    assert (project / "a.note").read_text() == '["a.txt"] 1'
    assert (project / "b.tool").read_text() == "tool"
    log = git(project, "log", "--first-parent", "--format=%s").splitlines()
    assert log[0] == "reduced"
    assert [line[:7] for line in log[1:3]] == ["Merge 1", "Merge 0"]


ADDING = """\
map:
  input: [a]
  isolation: worktree
  steps:
    - shell: echo ${item} > ${item}.txt
merge:
  - shell: echo x > extra; git add extra; git commit -q -m extra
  - shell: printf '%s %s\\n' ${merge.commit_count} ${merge.file_list} > ${workflow.dir}/before
  - shell: git -C ${workflow.dir} merge -q ${merge.source_branch}
  - shell: printf '%s %s\\n' ${merge.commit_count} ${merge.file_list} > ${workflow.dir}/after
"""


def test_what_merge_steps_know_is_true_when_they_begin(project: Path) -> None:
    assert plait.run(written(project, ADDING)).status == "done"
    assert (project / "before").read_text() == "3 a.txt, extra\n"
    assert (project / "after").read_text() == "3 a.txt, extra\n", (
        "not less, because it was merged meanwhile"
    )


LEFT = """\
map:
  input: [a]
  isolation: worktree
  steps:
    - shell: echo ${item} > ${item}.txt
reduce:
  - shell: REDUCE
merge:
  - shell: MERGE
"""
MERGED = "git -C ${workflow.dir} merge -q ${merge.source_branch}"
STAYS = [
    # reduce                   merge     why the worktree stays
    ("echo r > report.txt",    MERGED,   "these files are not committed: report.txt"),
    ("'true'",                 "'true'", "the merge steps have not merged all of BRANCH into main"),
    ("echo r > report.txt",    "'true'", "the merge steps have not merged all of BRANCH into main, "
                                         "and these files are not committed: report.txt"),
]  # fmt: skip


@pytest.mark.parametrize(("reduce", "merge", "why"), STAYS)
def test_the_note_says_why_a_worktree_stays_after_merge_steps(
    reduce: str, merge: str, why: str, project: Path
) -> None:
    path = written(project, LEFT.replace("REDUCE", reduce).replace("MERGE", merge))
    result = plait.run(path)
    assert result.status == "done", result.failure
    branch = f"plait/{result.run}/merged"
    with flows.flow_store(str(project)).open(result.run, write=False) as opened:
        notes = [one.event for one in opened.journal.events() if isinstance(one.event, Note)]
    [note] = [one.message for one in notes if one.path == "merge"]
    reason, _, where = note.rpartition(" ")
    assert reason == f"{why.replace('BRANCH', branch)}: the branch {branch} stays, and its worktree"
    assert Path(where).is_dir()


CONFLICTING = """\
map:
  input: [a, b]
  isolation: worktree
  steps:
    - shell: echo ${item} > base; git commit -q -a -m ${item:opt}
merge:
  - shell: git -C ${workflow.dir} merge -q ${merge.source_branch}
"""


BY_HAND = re.compile(
    r"continue by hand: cd (.*) && (git merge .*), resolve, git commit; then plait (.*)"
)


def test_after_merge_steps_an_item_in_conflict_can_be_continued_with_the_printed_commands(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--project", str(project))
    assert main(["run", written(project, CONFLICTING), *where]) == 1
    advice = BY_HAND.search(capsys.readouterr().out)
    assert advice is not None
    folder, merge, retry = advice.groups()
    os.system(f"cd {folder} && {merge} >/dev/null 2>&1")
    (Path(folder) / "base").write_text("a and b\n")
    git(Path(folder), "commit", "-q", "-a", "-m", "both")
    assert main([*retry.split(), *where]) == 0
    assert (project / "base").read_text() == "a and b\n"
    assert git(project, "branch", "--format=%(refname:short)") == "main"


def test_if_only_the_last_merge_fails_no_item_has_failed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        project, f"{HEAD}  isolation: worktree\n  steps: [{{shell: 'echo x > f${{item}}'}}]\n"
    )
    (project / "fa").write_text("mine")
    assert main(["run", path, "--project", str(project)]) == 1
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert "map: 2 items, 2 done" in shown
    assert "plait retry" not in shown
    assert "plait resume" in shown


def test_files_of_an_item_do_not_leave_its_worktree(project: Path) -> None:
    path = written(
        project,
        "map:\n  input: [../../../../../../escaped, ../other/file]\n  isolation: worktree\n"
        "  steps:\n    - write_file: {path: '${item}', content: x, create_dirs: true}\n",
    )
    result = plait.run(path)
    assert result.counts["failed"] == 2
    assert not (project / "escaped").exists()


def test_the_results_of_a_map_and_its_counts_are_those_of_any_map(project: Path) -> None:
    path = written(
        project,
        f"{HEAD}  isolation: worktree\n  steps: [{{shell: 'echo ${{item}}'}}]\n"
        "reduce:\n  - shell: 'echo ${map.total} ${map.outputs:json}'\n",
    )
    result = plait.run(path)
    assert isinstance(result.value, dict)
    assert result.value["output"] == '2 ["a","b"]\n'


def test_variables_around_us_do_not_lead_git_elsewhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{HEAD}  isolation: worktree\n  steps: [{{shell: 'echo x > f${{item}}; git add -A; git commit -qm ${{item:opt}}'}}]\n"
    path, other = written(project, text), new_repository(tmp_path / "other", a="1")
    before = git(other, "rev-parse", "HEAD")
    for name in ("GIT_DIR", "GIT_COMMON_DIR"):
        monkeypatch.setenv(name, str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    result = plait.run(path)
    for name in ("GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert (result.status, result.counts["failed"]) == ("done", 0)
    assert git(project, "log", "--no-merges", "--format=%s").splitlines().count("a") == 1
    assert (git(other, "rev-parse", "HEAD"), git(other, "status", "--porcelain")) == (before, "")
    assert not (tmp_path / "index").exists()


def test_without_git_the_run_says_so(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(project, f"{HEAD}  isolation: worktree\n  steps: [{{shell: ls}}]\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    failure = plait.run(path).failure
    assert failure is not None
    assert "'git'" in failure.message


# ── reduce, where the items were merged ──────────────────────────────────

SWITCHING = """\
map:
  input: [a, b]
  isolation: worktree
  steps:
    - shell: echo ${item} > ${item}.txt
    - shell: test ${item} = a || MEANWHILE
reduce:
  - shell: ls *.txt > all
  - shell: test ! -e ${workflow.dir}/.ai/bad
  - shell: cat all
"""
AWAY = [
    # what somebody does meanwhile                     where the project is then
    ("git -C ${workflow.dir} switch -q -c other",      "the project is at the branch other"),
    ("git -C ${workflow.dir} switch -q --detach",      "the project is at no branch (detached HEAD)"),
]  # fmt: skip


@pytest.mark.parametrize(("meanwhile", "where"), AWAY)
def test_reduce_does_not_begin_elsewhere_than_where_the_items_were_merged(
    project: Path, meanwhile: str, where: str
) -> None:
    run = flows.run_flow(written(project, SWITCHING.replace("MEANWHILE", meanwhile)))
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure.message == (
        f"{project}: {where}, but the work of the items was merged into main: reduce does not start on another branch\n"
        f"fix: git switch main; then plait resume {run.run}"
    )
    assert not (project / "all").exists()
    git(project, "switch", "-q", "main")
    again = flows.resume_flow(run.run, project=str(project))
    assert again.status == "done", again.failure
    assert (project / "all").read_text() == "a.txt\nb.txt\n"


def test_a_reduce_that_goes_on_at_another_branch_says_so(project: Path) -> None:
    path = written(project, SWITCHING.replace("MEANWHILE", "'true'"))
    (project / ".ai/tools").mkdir(parents=True)
    (project / ".ai/bad").touch()
    run = flows.run_flow(path)
    assert (run.status, (project / "all").read_text()) == ("failed", "a.txt\nb.txt\n")
    (project / ".ai/bad").unlink()
    git(project, "switch", "-q", "-c", "other")
    notes: list[str] = []
    observers = flows.RunObservers(
        [lambda reported: notes.append(getattr(reported.event, "message", ""))]
    )
    assert flows.resume_flow(run.run, project=str(project), observers=observers).status == "done"
    reason = "the project is at the branch other, but the work of the items was merged into main"
    assert [note for note in notes if note] == [
        f"{reason}: reduce continues there because it had started"
    ]
    notes.clear()
    assert flows.resume_flow(run.run, project=str(project), observers=observers).status == "done"
    assert not any(notes), "of a reduce that is done there is nothing to say"


def test_a_reduce_whose_first_step_left_the_branch_and_failed_goes_on(project: Path) -> None:
    leaving = "- shell: git switch -q -c report 2>/dev/null; test ! -e ${workflow.dir}/.ai/bad\n  - shell: ls"
    path = written(
        project, SWITCHING.replace("MEANWHILE", "'true'").replace("- shell: ls", leaving)
    )
    (project / ".ai/tools").mkdir(parents=True)
    (project / ".ai/bad").touch()
    run = flows.run_flow(path)
    assert run.status == "failed"
    (project / ".ai/bad").unlink()
    assert flows.resume_flow(run.run, project=str(project)).status == "done"


def test_a_reduce_that_has_nothing_to_do_with_branches_goes_on_wherever_it_is(
    project: Path,
) -> None:
    text = SWITCHING.replace("MEANWHILE", "git -C ${workflow.dir} switch -q -c other")
    kept = text.replace("isolation: worktree", "isolation: {kind: worktree, merge: none}")
    run = flows.run_flow(written(project, kept.replace("ls *.txt", "ls")))
    assert run.status == "done", run.failure


# ── what is left ─────────────────────────────────────────────────────────

FAILING = f"{HEAD}  isolation: worktree\n  steps: [{{shell: 'echo x > new; git add -A; git commit -qm x; echo y > more; exit 1'}}]\n"


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["worktrees", "--json", *arguments]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_what_failed_items_left_is_listed_and_cleaned_without_losing_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = plait.run(written(project, FAILING)).run
    where = ("--project", str(project))
    found = listed(capsys, *where)
    assert [(one["commits"], one["files"]) for one in found] == [(1, 1), (1, 1), (0, 0)]
    assert [str(one["branch"]).rpartition("/")[0] for one in found] == [f"plait/{run}"] * 3
    *cleaned, all_of_them = listed(capsys, "--clean", *where)
    assert [(one["commits"], one["files"], one["path"]) for one in cleaned] == [
        (2, 0, ""),
        (2, 0, ""),
    ]
    assert all_of_them["branch"] == f"plait/{run}/merged", (
        "by hand, branches of items are merged with it"
    )
    for one in cleaned:
        assert git(project, "show", f"{one['branch']}:more") == "y"
    assert git(project, "worktree", "list").count("\n") == 0
    for one in cleaned:
        git(project, "merge", "-q", "-X", "ours", str(one["branch"]))
    assert listed(capsys, "--clean", *where) == []
    assert git(project, "branch", "--format=%(refname:short)") == "main"


def test_without_anything_left_it_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worktrees", "--project", str(project)]) == 0
    assert capsys.readouterr().out == "nothing is left behind\n"


def test_a_folder_that_cannot_be_cleaned_stays_with_a_word_about_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plait.run(
        written(
            project, f"{HEAD}  isolation: directory\n  steps: [{{shell: 'echo x > new; exit 1'}}]\n"
        )
    )
    assert main(["worktrees", "--clean", "--project", str(project)]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert len(rows) == 3
    assert (
        last
        == "a folder stays that holds what no branch can: take what you need, then rm -r FOLDER"
    )


def test_a_run_whose_items_left_something_is_not_removed_with_old_runs(project: Path) -> None:
    run = plait.run(written(project, FAILING)).run
    other = plait.run(written(project, "steps: [{shell: 'true'}]\n")).run
    last = plait.run(written(project, "steps: [{shell: 'echo'}]\n")).run
    assert flows.flow_store(str(project)).remove_old(1, 0) == (other,)
    assert sorted(os.listdir(flows.flow_store(str(project)).folder)) == sorted([run, last])
    assert run in os.listdir(flows.flow_store(str(project)).folder)


AGAIN = """\
map:
  input: [one, two]
  isolation: worktree
  steps: [{shell: '(test ${item} = one || test -e ${workflow.dir}/.ai/ok) && echo ${item} > f-${item}.txt'}]
reduce:
  - shell: ls f-*.txt > all.txt
  - shell: COMMIT
merge:
  - shell: test -e ${workflow.dir}/.ai/ok
  - shell: git -C ${workflow.dir} merge -q ${merge.source_branch}
"""


@pytest.mark.parametrize("commit", ["git add -A && git commit -qm report", "'true'"])
def test_reduce_and_merge_steps_see_what_a_retried_item_did(project: Path, commit: str) -> None:
    path = written(project, AGAIN.replace("COMMIT", commit))
    failed = flows.run_flow(path)
    assert failed.status == "failed"
    (project / ".ai/ok").write_text("")
    notes: list[str] = []
    observers = flows.RunObservers(
        [lambda reported: notes.append(getattr(reported.event, "message", ""))]
    )
    again = flows.retry_flow(failed.run, project=str(project), observers=observers)
    assert again.status == "done", again.failure
    assert {"f-one.txt", "f-two.txt"} <= set(git(project, "ls-tree", "--name-only", "main").split())
    if "commit" in commit:
        assert git(project, "show", "main:all.txt").split() == ["f-one.txt", "f-two.txt"]
    else:
        left = f"plait/{failed.run}/merged-left-1"
        assert any(left in note for note in notes)
        assert git(project, "show", f"{left}:all.txt") == "f-one.txt"


class Killed(BaseException):
    """The engine has died."""


@pytest.mark.share
@pytest.mark.parametrize("last", range(1, 14, every(4)))
def test_uncommitted_changes_are_not_merged_wherever_a_retry_dies(
    project: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    path = written(project, AGAIN.replace("COMMIT", "git add -A && git commit -qm report"))
    failed = flows.run_flow(path)
    place = project / f".ai/state/runs/{failed.run}/worktrees/merged"
    (place / "base").unlink()
    (place / "f-one.txt").write_text("half")
    (project / ".ai/ok").write_text("")
    calls, real = itertools.count(1), services.start_git

    def start(*args: Any, **options: Any) -> Any:
        answer = real(*args, **options)
        if next(calls) == last:
            raise Killed
        return answer

    monkeypatch.setattr("plait.app.services.start_git", start)
    with contextlib.suppress(Killed):
        flows.retry_flow(failed.run, project=str(project))
    monkeypatch.setattr("plait.app.services.start_git", real)
    assert flows.resume_flow(failed.run, project=str(project)).status == "done"
    assert {"base", "f-one.txt", "f-two.txt"} <= set(
        git(project, "ls-tree", "--name-only", "main").split()
    )
    assert git(project, "show", "main:f-one.txt") == "one"
    assert flows.resume_flow(failed.run, project=str(project)).status == "done"


# ── a project in another place ───────────────────────────────────────────


@pytest.mark.parametrize("kind", ["worktree", "directory"])
@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_run_whose_items_have_places_stays_where_they_are(
    project: Path, kind: str, how: str
) -> None:
    flow = f"{HEAD}  isolation: {kind}\n  steps: [{{shell: 'test ${{item}} = a && echo a > a'}}]\n"
    run = flows.run_flow(written(project, flow)).run
    head = git(project, "rev-parse", "HEAD")
    now = project.parent / "now"
    if how == "moved":
        project.rename(now)
    else:
        shutil.copytree(project, now, symlinks=True)
        take_over(look_at(run, str(now)))
    ways: list[Callable[[], object]] = [
        lambda: flows.retry_flow(run, project=str(now)),
        lambda: flows.resume_flow(run, project=str(now)),
        lambda: flows.plan_resume(run, project=str(now)),
    ]
    for way in ways:
        with pytest.raises(InputError, match="the worktrees of its items are there") as caught:
            way()
        assert (f"--project {project};" in str(caught.value.fix)) == (how == "copied")
    assert git(now, "rev-parse", "HEAD") == head
    if how == "moved":
        now.rename(project)
    (project / "flow.yaml").write_text(flow.replace("test ${item} = a", "test -n ${item}"))
    assert flows.retry_flow(run, project=str(project)).counts["failed"] == 0


# ── failures too many ────────────────────────────────────────────────────

TOO_MANY = [
    # policy                       at a time   begun
    ("on_item_failure: stop",      1,          ["a", "b"]),
    ("max_failures: 1",            1,          ["a", "b"]),
    ("max_failures: 2",            1,          ["a", "b", "c"]),
    ("on_item_failure: stop",      2,          ["a", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "parallel", "begun"), TOO_MANY)
def test_no_item_begins_behind_a_failure_too_many(
    project: Path, policy: str, parallel: int, begun: list[str]
) -> None:
    # Side by side the first one waits until the second has failed, and the map has heard of it.
    waits = "until grep -q b $L; do sleep 0.01; done; sleep 0.5" if parallel == 2 else "true"
    flow = f"""\
map:
  input: [a, b, c, d, e]
  max_parallel: {parallel}
  {policy}
  isolation: worktree
  steps:
  - shell: 'L={project}/../begun; echo ${{item}} >> $L; if [ ${{item}} = a ]; then {waits}; else exit 1; fi'
"""
    assert flows.run_flow(written(project, flow)).status == "failed"
    assert sorted((project.parent / "begun").read_text().split()) == begun
