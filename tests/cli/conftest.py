"""A user with an empty home, and a project of theirs: nothing of the machine's own is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

FUNCTION = '''\
"""A tool in the process of Plait."""

__version__ = "1.2.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Answer with what it was given"

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["week"],
    "properties": {
        "week": {"type": "integer", "description": "Which week"},
        "name": {"type": "string", "default": "Ada", "description": "Whose report"},
    },
    "additionalProperties": False,
}


def execute(params, project_path):
    return {"week": params["week"], "name": params["name"]}
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER_SPACE", str(home))
    return home


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one untrusted tool, as the current folder."""
    project = home.parent / "project"
    (project / ".ai" / "tools" / "team").mkdir(parents=True)
    (project / ".ai" / "tools" / "team" / "report.py").write_text(FUNCTION)
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def trusted(project: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    from plait.cli import main

    assert main(["trust", "."]) == 0
    capsys.readouterr()
    return project
