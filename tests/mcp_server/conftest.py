"""A user with an empty home, and a project with tools, a directive and flows.

These tests mirror src/plait/mcp.  Their folder has another name because a package `mcp` in tests would hide
the SDK `mcp`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.cli import main

REPORT = '''\
"""A tool in the process of Plait."""

import os

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Answer with what it was given"

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["week"],
    "properties": {"week": {"type": "integer"}, "name": {"type": "string", "default": "Ada"}},
    "additionalProperties": False,
}


def execute(params, project_path):
    os.write(1, b"this must not reach the client")
    return {"week": params["week"], "name": params["name"]}
'''

LEDGER = """\
description: Write each item down
parameters:
  last: {type: string, default: end, description: what is written at the end}
map:
  input: [a, b, c, d]
  max_parallel: 1
  steps:
    - shell: |
        echo ${item} >> ledger.txt
        while [ ${item} = c ] && [ ! -e go ]; do sleep 0.05; done
reduce:
  - shell: echo ${last}
"""

SECRET = """\
secrets: {token: TOKEN}
steps:
  - shell: echo "the token is ${token}"
"""

DIRECTIVE = """\
---
description: Review a file
inputs:
  file: {type: string, description: which file}
---
Review {input:file} please.
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is untrusted, and the current folder."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER_SPACE", str(home))
    for folder in ("tools/team", "directives/team"):
        (project / ".ai" / folder).mkdir(parents=True)
    (project / ".ai/tools/team/report.py").write_text(REPORT)
    (project / ".ai/directives/team/review.md").write_text(DIRECTIVE)
    (project / "ledger.yaml").write_text(LEDGER)
    (project / "secret.yaml").write_text(SECRET)
    (project / "broken.yaml").write_text("steps: [{shel: touch made.txt}]\n")
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def trusted(project: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["trust", "."]) == 0
    capsys.readouterr()
    return project
