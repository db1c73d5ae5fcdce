"""Every example runs as its README says, without a network, wherever it is copied."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.app.examples import all_examples
from plait.cli import main
from test_docs import EXAMPLES, Reader, blocks, console_problems

ROOT = EXAMPLES.parent
NAMES = [example.name for example in all_examples()]


# ── the list ─────────────────────────────────────────────────────────────


def test_every_folder_is_in_the_list() -> None:
    assert sorted(NAMES) == sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"}
    assert sorted(NAMES) == sorted(folders)
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_shows_the_picture_the_output_and_how_to_copy(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert page.count("](picture.svg)") == 1
    assert [block.kind for block in blocks(page)] == ["console"]
    assert f"`plait new --from {name}`" in page
    # A copy stands alone: no link leads out of the folder.
    assert re.findall(r"\]\((?!picture\.svg)", page) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_is_that_of_the_flow(name: str) -> None:
    drawn = (EXAMPLES / name / "picture.svg").read_text(encoding="utf-8")
    assert drawn == picture_maker().picture(EXAMPLES / name), "run: python examples/pictures.py"


def picture_maker() -> Any:
    spec = importlib.util.spec_from_file_location("example_pictures", EXAMPLES / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── wherever it is copied ────────────────────────────────────────────────


def alone(folder: Path) -> Path:
    return folder / "example"


def below_recorded_runs(folder: Path) -> Path:
    """In a folder that had runs, but is no project."""
    (folder / "above/.ai/state/runs").mkdir(parents=True)
    return folder / "above/deep/example"


def in_another_project(folder: Path) -> Path:
    """In a git repository and project whose settings, hooks, tools and provider do not suit."""
    above = folder / "above"
    for path, text in {
        ".ai/plait.yaml": "trust: signed\n",
        ".ai/config/hooks.yaml": "- {id: never, event: run_started, verb: abort, why: not here}\n",
        ".ai/config/providers/default.yaml": "extends: replay\nfile: none.yaml\n",
        ".ai/tools/demo/agent.py": "raise SystemExit('the wrong tool')\n",
        "flow.yaml": "steps: [{shell: 'exit 9'}]\n",
    }.items():
        (above / path).parent.mkdir(parents=True, exist_ok=True)
        (above / path).write_text(text)
    subprocess.run(["git", "init", "-q", str(above)], check=True)
    return above / "my examples/example"


PLACES = [alone, below_recorded_runs, in_another_project]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place.__name__))
def test_an_example_does_what_its_readme_says(
    name: str, place: Callable[[Path], Path], tmp_path: Path
) -> None:
    target = place(tmp_path)
    before = files_beside(tmp_path, target)
    shutil.copytree(EXAMPLES / name, target, ignore=shutil.ignore_patterns("state", "__pycache__"))
    reader = Reader(target, tmp_path / "home")
    page = (target / "README.md").read_text(encoding="utf-8")
    found = [problem for block in blocks(page) for problem in console_problems(block, reader)]
    assert not found, "\n".join(found)
    assert files_beside(tmp_path, target) == before
    assert not list(tmp_path.rglob("owned"))


def files_beside(folder: Path, target: Path) -> list[Path]:
    """All files but those of the example, of the user and of git."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_relative_to(target)
        and not path.is_relative_to(folder / "home")
        and ".git" not in path.parts
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_the_files_of_an_example(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAIT_PROVIDER", "replay")
    shutil.copytree(EXAMPLES / name, here / name, ignore=shutil.ignore_patterns("state"))
    assert main(["check", name]) == 0
    assert re.fullmatch(r"no problems in \d+ files?\n", capsys.readouterr().out)


WITH_TOOLS = ["item-in-prompt", "mend-tests", "notify-hook", "triage-graph"]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_tool_that_an_example_brings_along_asks_for_trust(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLES / name, here / name)
    assert main(["run", f"{name}/flow.yaml"]) == 3
    assert "plait trust" in capsys.readouterr().err


# ── plait new --from ─────────────────────────────────────────────────────


def test_a_copied_example_is_trusted_and_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "--from", "mend-tests", "my tests"]) == 0
    assert capsys.readouterr() == (
        f"copied to {here}/my tests:\n"
        "  README.md\n"
        "  flow.yaml\n"
        "  picture.svg\n"
        "  sums.py\n"
        "  test_sums.py\n"
        "  .ai/plait.yaml\n"
        "  .ai/tools/demo/mender.py\n"
        "you copied it, so it is trusted here\n"
        "next:\n"
        "  cd 'my tests'\n"
        "  cat README.md\n"
        "  plait check flow.yaml\n",
        "",
    )
    monkeypatch.chdir(here / "my tests")
    assert main(["run", "flow.yaml", "--quiet"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_example_can_be_copied(name: str, here: Path) -> None:
    assert main(["new", "--from", name]) == 0
    copied = sorted(path.relative_to(here / name) for path in (here / name).rglob("*"))
    written = sorted(path.relative_to(EXAMPLES / name) for path in (EXAMPLES / name).rglob("*"))
    assert copied == [
        path for path in written if not {"state", "__pycache__"} & {*path.parts, path.name}
    ]
    assert main(["check", name]) == 0


def test_the_examples_are_listed_from_simple_to_rich(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "--from"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plait new --from EXAMPLE [PATH] copies one of these:"
    assert [line.split()[0] for line in lines[1:]] == NAMES
    assert list(here.iterdir()) == []


REFUSED = [
    # arguments                              the whole error
    (["chek-files"], f"there is no example 'chek-files'\nfix: did you mean 'check-files'? examples: {', '.join(NAMES)}\n"),
    (["../hello"], f"there is no example '../hello'\nfix: did you mean 'hello'? examples: {', '.join(NAMES)}\n"),
    (["hello", "full"], "full: this folder is not empty\nfix: name a new folder\n"),
    (["hello", "full/file"], "full/file: the example cannot be copied: File exists\nfix: name another folder\n"),
    (["hello", "a", "b"], "plait new --from takes one example and one folder\nfix: plait new --from EXAMPLE [PATH]\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error"), REFUSED)
def test_a_copy_that_is_refused_writes_nothing(
    arguments: list[str], error: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "full").mkdir()
    (here / "full/file").touch()
    assert main(["new", "--from", *arguments]) == 2
    assert capsys.readouterr() == ("", error)
    assert [path.name for path in here.rglob("*")] == ["full", "file"]


# ── what is released ─────────────────────────────────────────────────────


def test_a_wheel_has_every_file_of_every_example_and_nothing_else_of_them(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    (tmp_path / "one/.ai/state").mkdir(parents=True)
    (tmp_path / "one/.ai/state/journal").touch()
    (tmp_path / "one/flow.yaml").touch()
    assert list(builder.example_files(tmp_path)) == [
        tmp_path / "README.md",
        tmp_path / "one/flow.yaml",
    ]
    packed = set(builder.example_files(EXAMPLES))
    assert packed == {EXAMPLES / "README.md"} | {
        Path(example.folder, file) for example in all_examples() for file in example.files()
    }


def test_the_workflow_for_ci_installs_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = (EXAMPLES / "in-ci/.github/workflows/checks.yaml").read_text(encoding="utf-8")
    assert f"- run: pip install {project['name']}\n" in workflow
