"""`plait run` without a file lists the flows of a project; `plait run FILE --help` is the help of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]

FLOW = """\
name: build
description: >
  Build the
  target
parameters:
  mode: {choices: [fast, slow], default: fast}
  target: {type: string, description: What to build}
steps: [{shell: "echo ${target} ${mode} > made.txt"}]
"""


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    (here / "sub").mkdir(parents=True)
    (here / ".ai/directives").mkdir(parents=True)
    (here / ".ai/config").mkdir()
    (here / "build.yaml").write_text(FLOW)
    (here / "sub/graph.yaml").write_text("start: a\nnodes: {a: {shell: touch made.txt}}\n")
    (here / "broken.yaml").write_text("steps: [{shel: touch made.txt}]\n")
    (here / "compose.yaml").write_text("services: {web: {image: x}}\n")
    (here / "no.yaml").write_text("a: [\n")
    (here / "README.md").write_text("# Words\n")
    (here / ".ai/directives/ask.md").write_text(
        "---\ndescription: Ask\nlimits: {turns: 1}\n---\nHi\n"
    )
    (here / ".ai/config/hooks.yaml").write_text("hooks: []\n")
    monkeypatch.chdir(here)
    return here


LIST = """\
.ai/directives/ask.md   directive   Ask
broken.yaml             workflow    has problems: plait check broken.yaml
build.yaml              workflow    Build the target
    -i target=…   string, needed                     What to build
    -i mode=…     "fast" or "slow", default "fast"
sub/graph.yaml          graph
its parameters and how to run it:  plait run FILE --help
"""

HELP = """\
plait run build.yaml: Build the target

  plait run build.yaml -i target=…
  plait run build.yaml -i target=… --dry-run

parameters:
  -i target=…   string, needed                     What to build
  -i mode=…     "fast" or "slow", default "fast"

options: plait run --help
"""


def test_run_alone_lists_the_flows_and_runs_nothing(here: Path, capsys: Capsys) -> None:
    assert main(["run"]) == 0
    assert capsys.readouterr() == (LIST, "")
    assert not (here / "made.txt").exists()
    assert not (here / ".ai/state").exists()


@pytest.mark.usefixtures("here")
def test_the_list_is_data_for_programs(capsys: Capsys) -> None:
    assert main(["run", "--json"]) == 0
    listed = {one["file"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["build.yaml"]["parameters"] == [
        {"name": "mode", "type": "any", "required": False, "default": "fast", "choices": ["fast", "slow"]},
        {"name": "target", "type": "string", "required": True, "description": "What to build"},
    ]  # fmt: skip
    assert listed["broken.yaml"]["problem"] == "has problems: plait check broken.yaml"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words",
    [
        ["run", "build.yaml", "--help"],
        ["run", "-h", "-i", "a=b", "build.yaml"],
        ["help", "run", "build.yaml"],
    ],
)
def test_the_help_of_a_flow_is_its_own(words: list[str], capsys: Capsys) -> None:
    assert main(words) == 0
    assert capsys.readouterr() == (HELP, "")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [["run", "--help"], ["run", "nowhere.yaml", "--help"]])
def test_without_a_flow_the_help_is_that_of_the_command(words: list[str], capsys: Capsys) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("plait run: run a flow\n")


def test_the_help_of_a_wrong_file_says_what_is_wrong(here: Path, capsys: Capsys) -> None:
    assert main(["run", "compose.yaml", "--help"]) == 2
    assert "this is a Compose file, not a flow of Plait" in capsys.readouterr().err
    (here / "binary.yaml").write_bytes(b"\x00\xff")
    assert main(["run", "binary.yaml", "--help"]) == 2


@pytest.mark.usefixtures("home")
def test_a_folder_without_flows_says_how_to_write_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["run"]) == 0
    assert capsys.readouterr().out == (
        f"there is no flow in {tmp_path}/empty\nwrite one:  plait new workflow hello\n"
    )


def test_help_of_help_is_the_overview(capsys: Capsys) -> None:
    assert main(["help"]) == 0
    printed = capsys.readouterr().out
    for words in (["help", "--help"], ["help", "help"], ["help", "-h"]):
        assert main(words) == 0
        assert capsys.readouterr().out == printed
