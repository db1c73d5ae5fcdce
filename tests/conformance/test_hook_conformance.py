"""The rows of hooks.yaml: hooks and limits as the references have them, through real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.app.toolbox import toolbox
from plait.core.documents import Mapping, parse
from plait.engine.limits import Budget
from plait.lang.common import read_limits
from plait.schema import Fields, Record, validate
from plait.scope import Scope
from runs.stories import Place, new_place

ROWS = yaml.safe_load((Path(__file__).parent / "hooks.yaml").read_text("utf-8"))
TOOL = '''\
"""Remembers that it was asked, and returns what it is to return."""
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"


def execute(params, project_path):
    with open(project_path + "/asked", "a") as file:
        file.write(params["id"] + "\\n")
    return params["says"]
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(tmp_path, monkeypatch)
    place.write(".ai/tools/say.py", TOOL)
    toolbox(str(place.root)).trust.trust_project(origin="test")
    return place


@pytest.mark.parametrize("row", ROWS["verdicts"], ids=lambda row: row["what"])
def test_what_hooks_decide(place: Place, row: dict[str, Any]) -> None:
    count = f'n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; test "$n" -ge {row["fails"]} || exit 3'
    flow = {"hooks": [_hook(dict(hook)) for hook in row["hooks"]], "steps": [{"shell": count}]}
    ran = place.run(json.dumps(flow))
    asked = place.root / "asked"
    assert ran.result.status == row["status"], ran.message
    assert (asked.read_text().split() if asked.exists() else []) == row["asked"]


def _hook(hook: dict[str, Any]) -> dict[str, Any]:
    params = {"id": hook["id"], "says": hook.pop("says")}
    return {**hook, "action": {"primary": "execute", "item_id": "tool:say", "params": params}}


@pytest.mark.parametrize("row", ROWS["refused"], ids=lambda row: row["what"])
def test_what_cannot_be_meant_here_is_refused(place: Place, row: dict[str, Any]) -> None:
    flow = {"hooks": [row["hook"]], "steps": [{"shell": "true"}]}
    assert row["code"] in [finding.code for finding in place.check(json.dumps(flow))]


@pytest.mark.parametrize("row", ROWS["limits"], ids=str)
def test_what_is_reached(row: dict[str, Any]) -> None:
    node = parse(json.dumps(row["limits"]), "limits")
    assert isinstance(node, Mapping)
    assert validate(node, Record("limits")) == []
    budget = Budget(read_limits(Fields("limits", node, Scope())))
    budget.add(**row["used"])
    found = budget.reach()
    assert (None if found is None else found.code) == row["reached"]
