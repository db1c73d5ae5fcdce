"""A start says which old runs it removed, and removes none where all are to be kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plait.adapters.store import Runs
from plait.app.retention import runs_to_keep
from plait.app.toolbox import seals_for
from plait.cli import main
from plait.core.errors import PlaitError
from plait.engine.events import RunEnded, RunStarted
from plait.tools.trust.decisions import Trust

NUMBERS = [
    # .ai/plait.yaml           PLAIT_KEEP_RUNS   how many stay
    (None, None, 200),
    ("trust: project\n", None, 200),
    ("keep_runs: 500\n", None, 500),
    ("keep_runs: 7\n", None, 200),  # whose project is untrusted
    (f"keep_runs: {10**30}\n", None, None),
    ("keep_runs: all\n", None, None),
    ("keep_runs: 7\ntrust: signed\n", "all", None),
    ("keep_runs: all\n", "3", 3),
    (None, "", 200),
    (None, "0007", 7),
    (None, "9" * 5000, None),
]


def setting(project: Path, text: str | None) -> None:
    (project / ".ai").mkdir(exist_ok=True)
    if text is not None:
        (project / ".ai/plait.yaml").write_text(text)


@pytest.mark.parametrize(("settings", "variable", "expected"), NUMBERS)
def test_how_many_runs_stay_is_a_setting_or_a_variable(
    settings: str | None, variable: str | None, expected: int | None, tmp_path: Path
) -> None:
    setting(tmp_path, settings)
    environ = {} if variable is None else {"PLAIT_KEEP_RUNS": variable}
    assert runs_to_keep(str(tmp_path), environ) == expected


@pytest.mark.parametrize("settings", ["keep_runs: 7\n", "keep_runs: 7\ntrust: signed\n"])
def test_a_project_keeps_fewer_runs_only_if_it_is_trusted(
    settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    setting(project, settings)
    assert runs_to_keep(str(project), {}) == 200
    Trust(str(tmp_path / "home/.ai"), str(project)).trust_project(origin="test")
    assert runs_to_keep(str(project), {}) == 7


WRONG = [
    ("keep_runs: 0\n", None),
    ("keep_runs: -1\n", None),
    ("keep_runs: true\n", None),
    ("keep_runs: [1]\n", None),
    ("keep_run: 3\n# keep_runs\n", None),
    (None, "0"),
    (None, "-1"),
    (None, "none"),
    (None, "٣"),
]


@pytest.mark.parametrize(("settings", "variable"), WRONG)
def test_a_number_that_is_none_is_an_error_of_the_user(
    settings: str | None, variable: str | None, tmp_path: Path
) -> None:
    setting(tmp_path, settings)
    with pytest.raises(PlaitError) as refused:
        runs_to_keep(str(tmp_path), {} if variable is None else {"PLAIT_KEEP_RUNS": variable})
    assert refused.value.exit_code == 2
    assert refused.value.fix


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "home"))
    setting(project, "keep_runs: 2\n")
    monkeypatch.chdir(project)
    Trust(str(tmp_path / "home/.ai"), str(project)).trust_project(origin="test")
    (project / "flow.yaml").write_text("steps: [{shell: echo}]\n")
    return project


def made(project: Path, days_ago: float, *, ended: bool = True) -> str:
    at = time.time() - days_ago * 86_400
    with Runs(str(project), seals=seals_for(str(project)), now=lambda: at).create({}) as opened:
        opened.journal.append(RunStarted(opened.id, "f", "f.yaml", "/p"))
        if ended:
            opened.journal.append(RunEnded("done"))
        return opened.id


def test_a_start_says_what_it_removed(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, cut = made(project, 400), made(project, 390, ended=False)
    new = [made(project, 1), made(project, 0)]
    monkeypatch.setenv("PLAIT_KEEP_RUNS", "all")
    assert main(["run", "flow.yaml"]) == 0
    assert "removed" not in capsys.readouterr().out
    monkeypatch.delenv("PLAIT_KEEP_RUNS")
    assert main(["run", "flow.yaml"]) == 0
    note = (
        f"note: 1 old run was removed: {old} "
        "(keep_runs: all in .ai/plait.yaml, or PLAIT_KEEP_RUNS=all, keeps every run)"
    )
    assert note in capsys.readouterr().out.splitlines()
    assert [one.id for one in Runs(str(project)).list()][2:] == [*new[::-1], cut]
    assert main(["show"]) == 0
    assert note in capsys.readouterr().out


def test_a_start_with_a_wrong_clock_removes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [made(project, 0) for _ in range(6)]
    made(project, -400)
    assert main(["run", "flow.yaml"]) == 0
    assert "removed" not in capsys.readouterr().out
    assert [one.id for one in Runs(str(project)).list()][2:] == before[::-1]
