"""Which folder is a project, for everyone who asks; and where runs are found without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait.app.toolbox import project_root
from plait.cli import main
from plait.core.projects import is_project, nearest_project, project_of_file

KINDS = [
    # what is in .ai                       is it a project?
    ([],                                   False),
    (["state/"],                           False),
    (["state/runs/k7f3aq2d/journal.db"],   False),
    (["state/runs/k7f3aq2d/", ".gitignore"], False),
    ([".DS_Store"],                        False),
    (["tools/"],                           True),
    (["state/", "tools/"],                 True),
    (["plait.yaml"],                       True),
    (["config/hooks.yaml"],                True),
    (["State"],                            True),
]  # fmt: skip


def make(folder: Path, entries: list[str]) -> None:
    (folder / ".ai").mkdir(parents=True)
    for entry in entries:
        path = folder / ".ai" / entry
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if entry.endswith("/") else path.touch()


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "space"))
    (tmp_path / "top/sub").mkdir(parents=True)
    return tmp_path / "top"


@pytest.mark.parametrize(
    ("entries", "expected"), KINDS, ids=lambda it: " ".join(it) if isinstance(it, list) else ""
)
def test_everyone_who_asks_gets_the_same_answer(
    entries: list[str], expected: bool, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(top, entries)
    monkeypatch.chdir(top / "sub")
    found = str(top if expected else top / "sub")
    assert is_project(str(top)) == expected
    assert project_root(None) == found
    assert project_of_file(str(top / "sub/flow.yaml")) == found
    assert project_root(str(top)) == str(top)  # it is named


def test_a_folder_without_ai_and_one_whose_ai_is_a_file_are_no_projects(top: Path) -> None:
    assert not is_project(str(top))
    (top / ".ai").write_text("")
    assert not is_project(str(top))


@pytest.mark.parametrize("name", ["home", "space"])
def test_the_user_space_makes_no_project_of_what_lies_below(
    name: str, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = top.parent
    make(tmp_path / name, ["trust/", "tools/"])
    (tmp_path / name / "work").mkdir()
    assert nearest_project(str(tmp_path / name / "work")) is None
    monkeypatch.chdir(tmp_path / name / "work")
    assert project_root(None) == os.getcwd()


def test_an_earlier_run_above_changes_nothing_and_its_runs_are_found_where_it_ran(
    top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (top, top / "sub"):
        (folder / "flow.yaml").write_text("steps: [{shell: pwd > where}]\n")
    monkeypatch.chdir(top)
    assert main(["run", "flow.yaml"]) == 0
    monkeypatch.chdir(top / "sub")
    capsys.readouterr()
    assert main(["runs"]) == 0
    assert (
        capsys.readouterr().out
        == f"no runs yet: plait run FILE\n{top} has runs: plait runs --project {top}\n"
    )
    for command in (["resume"], ["show"], ["logs", "last"], ["retry", "--failed"]):
        assert main(command) == 2
        stderr = capsys.readouterr().err
        assert stderr == f"there is no run in {top}/sub\nfix: {top} has runs: --project {top}\n"
    assert main(["resume", "--project", str(top)]) == 0
    assert main(["run", "flow.yaml"]) == 0
    assert (top / "sub/where").read_text() == f"{top}/sub\n"
    assert main(["resume"]) == 0
    monkeypatch.chdir(top)
    assert main(["run", "sub/flow.yaml"]) == 0
    assert (top / "sub/where").read_text() == f"{top}/sub\n"
    assert (top / "where").read_text() == f"{top}\n"
