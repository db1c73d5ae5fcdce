"""The example flows run as they are written, without a network, and do what they say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"
FLOWS = sorted(path.parent.name for path in EXAMPLES.glob("*/flow.yaml"))

PRINTED = {
    # folder: what the flow shows at its end
    "complete-gaps": "About changes, completed in round 2\nAbout errors, completed in round 1\n"
    "About intro\nAbout usage",
    "fix-worst": "# Report\n4 of 4 files mended, 0 failed.\nProblems: 38 before, 4 after.",
    "item-in-prompt": "parser: 2 files, note 'quotes \" and $(commands) are text here'\n"
    "store: 1 files, note 'line one\\nline two'\nviews: 0 files, note None",
    "mend-tests": "def total(numbers):\n    return sum(numbers)",
    "triage-graph": "r1: We look into: The export crashes with a file called $(date).csv\n"
    "r3: We look into: Since the update ${total} shows up in my mails\nr2: closed\n2 rounds",
    "report-ensemble": "# Week of tides\nTeam tides measured all week, and 4 points are open; "
    "{team} and ${team} are only text here.\nOpen points: 4",
    "parallel-edits": "Hello, and welcome.\nWrite to us and you will receive an answer.\n"
    "Nobody has ever edited\nthis part of the page.\n(c) 2026\n"
    "Merge 0-greeting\nMerge 1-spelling\nMerge 2-footer",
    "own-variables": "the largest: 6 in long (of 3 lines)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    # An earlier run in the folder above, whose state is no business of what lies below.
    (tmp_path / "above").mkdir()
    (tmp_path / "above/earlier.yaml").write_text("steps: [{shell: 'true'}]\n")
    assert main(["run", str(tmp_path / "above/earlier.yaml"), "--quiet"]) == 0
    assert (tmp_path / "above/.ai/state/runs").is_dir()
    yield tmp_path / "above/example"
    assert sorted(path.name for path in (tmp_path / "above").iterdir()) == [
        ".ai",
        "earlier.yaml",
        "example",
    ]
    assert [path.name for path in (tmp_path / "above/.ai").iterdir()] == ["state"]
    assert len(list((tmp_path / "above/.ai/state/runs").iterdir())) == 1


def test_every_example_has_a_row() -> None:
    assert sorted(PRINTED) == FLOWS


@pytest.mark.parametrize("name", FLOWS)
def test_an_example_runs_and_does_what_it_says(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLES / name, folder)
    monkeypatch.chdir(folder)
    assert main(["check", "flow.yaml"]) == 0
    assert main(["run", "flow.yaml", "--trust"]) == 0, capsys.readouterr()
    shown = capsys.readouterr().out.split("✓ done", 1)[1].split("\n", 1)[1]
    reported = [line.removeprefix("  ") for line in shown.rstrip().split("\n")]
    assert (
        "\n".join(line for line in reported if not line.startswith("look at it ")) == PRINTED[name]
    )
    assert not list(folder.rglob("owned"))
    assert main(["resume"]) == 0
    assert "replayed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["item-in-prompt", "mend-tests", "triage-graph"])
def test_a_tool_that_an_example_brings_along_asks_for_trust(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLES / name, folder)
    monkeypatch.chdir(folder)
    assert main(["run", "flow.yaml"]) == 3
    assert "plait trust" in capsys.readouterr().err


def test_the_directive_runs_without_a_key_and_answers_with_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLES / "review-directive", folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PLAIT_PROVIDER", "replay")
    assert main(["check", "review.md"]) == 0
    assert main(["run", "review.md", "-i", "file=prices.py"]) == 0, capsys.readouterr()
    assert '"verdict": "mend", "finding": "line 5:' in capsys.readouterr().out
    assert main(["resume"]) == 0
    assert "replayed" in capsys.readouterr().out
