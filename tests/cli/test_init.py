"""`plait init`: a project that runs at once, made from nothing and over nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_a_new_project_says_what_it_made_and_what_to_type_next(here: Path, capsys: Capsys) -> None:
    assert main(["init", "first"]) == 0
    assert capsys.readouterr() == (
        f"made in {here}/first:\n"
        "  .ai/tools/hello.py\n"
        "  .ai/plait.yaml\n"
        "  .ai/schema/workflow.json\n"
        "  hello.yaml\n"
        "  .gitignore (.ai/state/)\n"
        "you made it, so it is trusted here\n"
        "next:\n"
        "  cd first\n"
        "  plait run hello.yaml\n"
        "  plait check hello.yaml\n"
        "  plait call hello -i name=Ada\n"
        "  plait tools show hello\n",
        "",
    )


def test_the_commands_that_init_prints_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    assert main(["init", "first"]) == 0
    monkeypatch.chdir(here / "first")
    capsys.readouterr()
    assert main(["call", "hello", "-p", "name=Ada"]) == 0
    assert capsys.readouterr() == ('{"greeting":"Hello, Ada!"}\n', "")
    assert main(["tools", "show", "hello"]) == 0
    assert main(["check", "hello.yaml"]) == 0


def test_init_writes_over_nothing_and_names_all_that_is_there(here: Path, capsys: Capsys) -> None:
    (here / "hello.yaml").write_text("mine")
    (here / ".ai" / "tools").mkdir(parents=True)
    (here / ".ai" / "tools" / "hello.py").write_text("mine too")
    assert main(["init"]) == 2
    assert capsys.readouterr() == (
        "",
        f"{here}/.ai/tools/hello.py: this file exists\nfix: move it away\n"
        f"{here}/hello.yaml: this file exists\nfix: move it away\n",
    )
    assert (here / "hello.yaml").read_text() == "mine"
    assert not (here / ".ai" / "plait.yaml").exists()
    assert not (here / ".gitignore").exists()


def test_init_does_not_bring_trust_to_files_that_were_there(here: Path, capsys: Capsys) -> None:
    (here / ".env").write_text("A=1\n")
    assert main(["init"]) == 0
    assert f"look at them, then trust it:  plait trust {here}\n" in capsys.readouterr().out
    assert main(["call", "hello"]) == 3


IGNORED = [
    # before             after
    (None,               ".ai/state/\n"),
    ("*.pyc\n",          "*.pyc\n.ai/state/\n"),
    ("*.pyc",            "*.pyc\n.ai/state/\n"),
    ("/.ai/state\n",     "/.ai/state\n"),
    (".ai/state/\nx\n",  ".ai/state/\nx\n"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), IGNORED)
def test_the_state_is_ignored_by_git_once(before: str | None, after: str, here: Path) -> None:
    if before is not None:
        (here / ".gitignore").write_text(before)
    assert main(["init"]) == 0
    assert (here / ".gitignore").read_text() == after


def test_the_folder_of_the_user_space_is_no_project(home: Path, capsys: Capsys) -> None:
    assert main(["init", str(home)]) == 2
    assert "your user space lies in this folder" in capsys.readouterr().err
    assert list(home.iterdir()) == []
