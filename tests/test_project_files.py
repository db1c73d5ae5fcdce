"""Files for those who use the project's repository: hooks, templates, settings of editors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.cli import COMMANDS

ROOT = Path(__file__).parent.parent


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


CHECKED = [
    # file of a repository       is it checked by the hook?
    ("flow.yaml",                 True),
    ("deploy/flow.yml",           True),
    ("flows/nightly.yaml",        True),
    ("team/flows/a/b.yaml",       True),
    (".ai/directives/review.md",  True),
    ("a/.ai/directives/x/y.md",   True),
    ("overflow.yaml",             False),
    ("flow.yaml.bak",             False),
    ("workflows/a.yaml",          False),
    (".github/workflows/ci.yml",  False),
    (".ai/tools/team/data.yaml",  False),
    ("docs/flows.md",             False),
]  # fmt: skip


@pytest.mark.parametrize(("path", "is_checked"), CHECKED)
def test_the_hook_checks_flows_and_directives(path: str, is_checked: bool) -> None:
    [hook] = load(".pre-commit-hooks.yaml")
    assert bool(re.search(hook["files"], path)) is is_checked
    program, command = hook["entry"].split()
    assert program == "plait"
    assert command in COMMANDS


def test_the_release_workflow_starts_with_a_tag_and_only_one_job_may_publish() -> None:
    workflow = load(".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "check": {"contents": "read"},
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("check", "build")


@pytest.mark.parametrize(
    "file", [".github/workflows/release.yml", ".github/workflows/flow.yml", "action.yml"]
)
def test_each_action_that_is_used_is_a_commit(file: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    used = re.findall(r"uses: (?!\./)(.+)", text)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


def run_action(step: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run one step of the action, as a runner does: its script in bash, its inputs in variables."""
    [found] = [one for one in load("action.yml")["runs"]["steps"] if one.get("name") == step]
    defaults = {name: one["default"] for name, one in load("action.yml")["inputs"].items()}
    given = {
        name: {**defaults, **inputs}[re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1]]  # type: ignore[index]
        for name, value in found["env"].items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]],
        cwd=folder, env={"PATH": path, "HOME": str(folder.parent / "home"), **given,
        "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md")},
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_action_checks_the_files_and_runs_the_flow(tmp_path: Path) -> None:
    folder = tmp_path / "in-ci"
    shutil.copytree(ROOT / "examples" / "in-ci", folder)
    assert run_action("check", folder, paths=". flow.yaml").returncode == 0
    assert run_action("run", folder, run="flow.yaml").returncode == 0
    (folder / "wrong.yaml").write_text("steps: [{shell: 'echo ${nobody}'}]\n")
    wrong = run_action("check", folder, paths="flow.yaml wrong.yaml")
    assert wrong.returncode == 2
    title = "title=plait unknown-name"
    assert wrong.stdout.startswith(
        f"::error {title},file=wrong.yaml,line=1,col=23::unknown variable"
    )
    assert run_action("run", folder, run="wrong.yaml").returncode == 2


HOSTILE = """\
name: "hostile\\n::error::from the name"
parameters: {word: {type: string}}
steps:
  - shell: |
      printf '%s\\n' '::error::from the output' '##[error]also' '::stop-commands::x' 'word ${word}' >&2
      exit 4
"""


def commands(text: str) -> list[str]:
    """The commands that a runner obeys: not those between `stop-commands` and its token."""
    found, token = [], None
    for line in map(str.strip, text.split("\n")):
        if token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.startswith("::") or "##[" in line:
            found.append(line)
    assert token is None
    return found


def test_the_action_reports_a_failure_and_no_output_becomes_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flow.yaml").write_text(HOSTILE)
    ended = run_action("run", folder, run="flow.yaml", inputs="word=a b")
    assert ended.returncode == 1
    [annotation] = commands(ended.stdout)
    assert annotation.startswith("::error title=hostile")
    assert ",file=flow.yaml::" in annotation
    assert "%0A::error::from the output%0A##[error]also%0A" in annotation
    assert "word a b" in annotation
    assert commands(ended.stderr) == []
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert summary.startswith("## ✗ hostile")
    assert "\n  ::error::from the output\n" in summary  # in a block of code
    assert "```mermaid\nflowchart TD\n" in summary


PLACES = [
    # flow              another file of the repository
    ("flow.yaml",       "secrets.py"),  # the action needs the module of Python
    ("flows/flow.yaml", "flows/json.py"),
    ("flows/flow.yaml", ".ai/plait.yaml"),
    ("app/flow.yaml",   "app/.ai/plait.yaml"),
    ("a b/-c/f.yaml",   ".ai/state/x"),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "other"), PLACES)
def test_the_action_reports_a_failure_of_a_flow_in_any_project_of_the_repository(
    tmp_path: Path, flow: str, other: str
) -> None:
    folder = tmp_path / "project"
    for name, text in ((flow, "steps: [{shell: exit 4}]\n"), (other, "")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for _ in range(2):  # the second run is reported, too
        ended = run_action("run", folder, run=flow)
        assert ended.returncode == 1
        [annotation] = commands(ended.stdout)
        assert f",file={flow}::" in annotation
    assert (tmp_path / "summary.md").read_text("utf-8").count("\n## ✗ ") == 1


def test_the_reusable_workflow_gives_its_inputs_to_the_action() -> None:
    workflow = load(".github/workflows/flow.yml")
    given = workflow[True]["workflow_call"]["inputs"].keys() - {"plait", "version"}
    [step] = [one for one in workflow["jobs"]["flow"]["steps"] if one.get("uses") == "./.plait"]
    assert step["with"] == {name: f"${{{{ inputs.{name} }}}}" for name in given}
    assert given <= load("action.yml")["inputs"].keys()
    assert workflow["jobs"]["flow"]["permissions"] == {"contents": "read"}
