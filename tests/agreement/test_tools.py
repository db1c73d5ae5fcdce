"""`plait check` refuses a tool call if, and only if, every run refuses it, with any values.

Random tools, valid and invalid, and random calls of them.  Each call is checked, and then prepared
with several values of the one variable that it may use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plait import PlaitError
from plait.app import call_check
from plait.app.file_check import findings_around
from plait.app.toolbox import toolbox
from plait.lang.check import check_file
from plait.tools.chain import FLOW
from plait.tools.prepare import prepare

UNSET = object()
WORLDS: list[Any] = ["text", 7, 0.5, True, None, [], {}]
"""The values of `${x}`: every type of JSON."""
SHARED = "${x}"
OF_THE_MACHINE = {"no-interpreter", "secret-in-argv"}

TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object"])
NAMES = st.sampled_from(["name", "count", "flag"])
SCHEMAS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(NAMES, TYPES.map(lambda one: {"type": one})),
        },
        optional={
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": st.booleans(),
        },
    ),
    st.sampled_from([{"type": "objekt"}, {"properties": []}, {"required": "name"}]),
)
COMMANDS = st.sampled_from(
    ["echo a", "echo {name}", "echo a | wc -l", "echo 'a | b'", "echo x > y", "echo 'a", "", 3]
)
HEADERS = st.fixed_dictionaries(
    {
        "executor_id": st.sampled_from(
            ["core/primitives/subprocess"] * 6 + ["core/primitives/subproces", None]
        ),
        "config": st.fixed_dictionaries(
            {"command": COMMANDS},
            optional={
                "args": st.sampled_from([["a"], ["{name}", "{count}"], "a", []]),
                "timeout": st.sampled_from([5, "{count}", "soon", -1]),
                "env": st.sampled_from([{"A": "b"}, ["A"]]),
                "cwd": st.sampled_from([".", 3]),
            },
        ),
        "config_schema": SCHEMAS,
    },
    optional={
        "version": st.sampled_from(["1.0", 1.5]),
        "executorid": st.just("x"),
        "secrets": st.sampled_from([["T"], 3]),
    },
)
VALUES = st.sampled_from(["text", 7, True, [], {}, SHARED])
PARAMS = st.one_of(
    st.just(UNSET), st.dictionaries(st.one_of(NAMES, st.just("nmae")), VALUES, max_size=3)
)  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path_factory.mktemp("user")))


@given(header=HEADERS, params=PARAMS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    header={"executor_id": "core/primitives/subprocess", "config": {"command": "echo"}},
    params={"a": 1},
)
def test_check_refuses_a_call_if_and_only_if_every_run_does(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], params: Any
) -> None:
    project = tmp_path_factory.mktemp("project")
    refused = errors(project, header, params)
    worlds = [refusals(project, params, value) for value in WORLDS]
    by_all = all(worlds)
    assert bool(refused) == by_all, (refused, worlds)


def test_simulated_runs_show_that_a_rule_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_check, "params_findings", lambda *_: iter(()))
    header = {
        "executor_id": "core/primitives/subprocess",
        "config": {"command": "echo"},
        "config_schema": {"type": "object", "required": ["name"]},
    }
    assert errors(tmp_path, header, {}) == []
    assert all(refusals(tmp_path, {}, value) for value in WORLDS)


def errors(project: Path, header: dict[str, Any], params: Any) -> list[str]:
    """The findings of check for a flow that calls the tool."""
    tool = project / ".ai" / "tools" / "one.yaml"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text(json.dumps({key: value for key, value in header.items() if value is not None}))
    step = {"tool": "one"} if params is UNSET else {"tool": "one", "params": params}
    flow = project / "flow.yaml"
    flow.write_text(json.dumps({"parameters": {"x": {"type": "any"}}, "steps": [step]}))
    found = check_file(str(flow), must_be_flow=True, around=findings_around)
    return [str(finding.problem) for finding in found if finding.severity == "error"]


def refusals(project: Path, params: Any, value: Any) -> list[str]:
    """The problems that a run would report if `${x}` had this value."""
    given = {} if params is UNSET else {n: value if v == SHARED else v for n, v in params.items()}
    try:
        tools = toolbox(str(project))
        tools.trust.trust_project(origin="test")
        assert tools.chains.get("one").primitive != FLOW
        prepare(tools, "one", given, masked=True)
    except PlaitError as error:
        return [str(one) for one in error.problems if one.code not in OF_THE_MACHINE]
    return []
