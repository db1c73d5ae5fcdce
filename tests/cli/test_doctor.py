"""`plait doctor`: true on a sound machine, and of use on a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.app import doctor
from plait.cli import main

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def findings(capsys: Capsys, code: int) -> dict[str, tuple[str, str, str | None]]:
    assert main(["doctor", "--json"]) == code
    record = json.loads(capsys.readouterr().out)
    assert record["problems"] == sum(one["state"] == "problem" for one in record["findings"])
    return {one["part"]: (one["state"], one["what"], one["fix"]) for one in record["findings"]}


def test_a_sound_machine_has_no_problems(here: Path, capsys: Capsys) -> None:
    found = findings(capsys, 0)
    assert list(found) == [
        "plait", "python", "packages", "guardian", "journal", "mcp", "dask", "web", "otel", "sh", "bash", "git", "node",
        "project", "state", "trust",
    ]  # fmt: skip
    assert found["state"] == ("ok", f"{here}/.ai/state/runs, no runs yet", None)
    assert found["trust"] == ("ok", "nothing here needs trust; 0 trusted projects, 0 keys", None)
    assert not (here / ".ai").exists(), "it only looks"


def test_the_text_says_the_same(here: Path, capsys: Capsys) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"✓ state     {here}/.ai/state/runs, no runs yet" in lines
    assert lines[-1] == "no problems"


def test_a_project_that_is_not_trusted_is_named_with_the_command(
    here: Path, capsys: Capsys
) -> None:
    tool = here / ".ai/tools/team/report.py"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    found = findings(capsys, 0)
    assert found["project"] == ("ok", str(here), None)
    assert found["trust"] == (
        "note",
        "this project is not trusted, so its tools do not run (1 file)",
        f"read them, then: plait trust {here}",
    )
    assert main(["trust", str(here)]) == 0
    capsys.readouterr()
    assert findings(capsys, 0)["trust"][:2] == (
        "ok",
        "this project is trusted; 1 trusted project, 0 keys",
    )


def test_a_file_in_place_of_the_state_folder(here: Path, capsys: Capsys) -> None:
    (here / ".ai").mkdir()
    (here / ".ai/state").write_text("")
    assert findings(capsys, 1)["state"] == (
        "problem", f"{here}/.ai/state is not a folder", "move it away: runs go there",
    )  # fmt: skip
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("\n1 problem\n")


def test_without_programs(here: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    found = findings(capsys, 1)
    assert found["sh"] == (
        "problem", "not found; needed for shell steps", "install sh, or add its folder to PATH",
    )  # fmt: skip
    assert found["node"][0] == "note"


@pytest.mark.usefixtures("here")
def test_packages_that_are_missing(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("rich", "mcp") else "1")
    found = findings(capsys, 1)
    assert found["packages"][:2] == ("problem", "missing: rich")
    assert found["mcp"] == (
        "note", "not installed; needed for tools of MCP servers", "in the clone of Plait: uv tool install '.[mcp]', or pip install '.[mcp]'",
    )  # fmt: skip


def test_a_part_that_cannot_be_looked_at_is_a_finding(here: Path, capsys: Capsys) -> None:
    here.rmdir()
    found = findings(capsys, 1)
    assert {part: found[part][0] for part in ("python", "project", "state", "trust")} == {
        "python": "ok", "project": "problem", "state": "problem", "trust": "problem",
    }  # fmt: skip


@pytest.mark.usefixtures("here")
def test_a_folder_that_does_not_exist(capsys: Capsys) -> None:
    assert main(["doctor", "--project", "nowhere"]) == 2
    assert capsys.readouterr().err == "nowhere: there is no such folder\nfix: check --project\n"
