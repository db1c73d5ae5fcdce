"""A trusted project with a few tools, in which graphs are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.toolbox import toolbox
from runs.stories import Place, new_place

HEAD = '__executor_id__ = "core/runtimes/python/function"\n__version__ = "1.0.0"\n'
TOOLS = {
    "demo/add": "def execute(params, project_path):\n    return {'n': params['n'] + params.get('by', 1)}\n",
    "demo/echo": "def execute(params, project_path):\n    return {'got': params}\n",
    "demo/give": "def execute(params, project_path):\n    return params['value']\n",
    "demo/fail": "def execute(params, project_path):\n    raise ValueError('no luck')\n",
    "demo/ledger": (
        "import os\n"
        "def execute(params, project_path):\n"
        "    with open(os.path.join(project_path, 'ledger'), 'a') as file:\n"
        "        file.write(params['line'] + '\\n')\n"
        "    if params.get('dies'):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return {'line': params['line']}\n"
    ),
    "demo/flaky": (
        "import os\n"
        "def execute(params, project_path):\n"
        "    path = os.path.join(project_path, 'tries')\n"
        "    with open(path, 'a') as file:\n"
        "        file.write('x')\n"
        "    if os.path.getsize(path) < params['good']:\n"
        "        raise ValueError('not yet')\n"
        "    return {'tries': os.path.getsize(path)}\n"
    ),
}


def graph_place(top: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Place:
    place = new_place(top, monkeypatch, **env)
    for name, code in TOOLS.items():
        tool(place, name, code)
    trusted(place)
    return place


def tool(place: Place, name: str, code: str) -> Path:
    return place.write(f".ai/tools/{name}.py", HEAD + code)


def graph_tool(place: Place, name: str, text: str) -> Path:
    return place.write(f".ai/tools/{name}.yaml", f"version: 1.0.0\ntool_type: graph\n{text}")


def trusted(place: Place) -> None:
    toolbox(place.root).trust.trust_project(origin="test")
