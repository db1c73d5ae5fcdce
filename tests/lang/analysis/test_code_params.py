"""A value never fills a parameter that is code: it is bound where the tool binds, refused at load otherwise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuzz.code_params_fuzz import (
    CANARY,
    HOSTS,
    PAYLOADS,
    PYTHON_TOOL,
    SCRIPTS,
    Case,
    Results,
    World,
    fuzz,
    try_one,
)
from lang.graph.graphs import graph_place, tool, trusted
from plait.app.api import compile
from plait.app.file_check import findings_around
from plait.app.runs import run_flow
from plait.app.toolbox import toolbox
from plait.core.errors import DocumentError, InputError, ShellRefusedError
from plait.lang.check import check_file
from plait.tools.code_params import CodeParams, schema_slips
from runs.stories import Place
from share import WHOLE

SHELL = {
    "properties": {
        "command": {"x-code": "shell", "x-code-values": "values"},
        "values": {"type": "object"},
    }
}
DEEP = {
    "properties": {
        "code": {"type": "string", "x-code": "python"},
        "list": {"items": {"properties": {"run": {"x-code": "shell"}}}},
        "any": {"additionalProperties": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/sql"}]}},
        "data": {"type": "string"},
    },
    "$defs": {"sql": {"x-code": "sql"}},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = graph_place(tmp_path, monkeypatch)
    made.write(".ai/tools/team/code.py", PYTHON_TOOL)
    trusted(made)
    return made


BOUND = [
    # command                      values                                    command that the tool gets, its values
    ("echo ${x}", {"x": "a; b"}, "echo ${value_1}", {"value_1": "a; b"}),
    ("echo '${x}' \"${y}\"", {"x": 1, "y": [2]}, "echo '${value_1}' \"${value_2}\"", {"value_1": 1, "value_2": [2]}),
    ("echo ${x:-none}", {}, "echo ${value_1:opt}", {"value_1": "none"}),
    ("echo ${no:-${x}}", {"x": "`b`"}, "echo ${value_1}", {"value_1": "`b`"}),
    ("echo ${x:opt}", {"x": "-n"}, "echo ${value_1:opt}", {"value_1": "-n"}),
    ("echo ${x.y} $HOME", {"x": {"y": "z"}}, "echo ${value_1} $HOME", {"value_1": "z"}),
    ("echo $x", {"x": "${y}"}, "echo ${value_1}", {"value_1": "${y}"}),
    ("for x in a; do echo $x; done", {"x": "no"}, "for x in a; do echo $x; done", {}),
    ("echo fixed", {}, "echo fixed", {}),
]  # fmt: skip


@pytest.mark.parametrize(("command", "values", "code", "bound"), BOUND)
def test_a_placeholder_in_code_that_binds_becomes_a_reference(
    command: str, values: dict[str, Any], code: str, bound: dict[str, Any]
) -> None:
    params = CodeParams("core/shell", [SHELL])
    filled = params.fill(compile({"command": command}), values)
    assert filled == {"command": code, **({"values": bound} if bound else {})}


def test_values_of_the_author_keep_their_names() -> None:
    written = {"command": "echo $${value_1} ${x}", "values": {"value_1": "${y}"}}
    filled = CodeParams("core/shell", [SHELL]).fill(compile(written), {"x": "1", "y": "2"})
    assert filled == {
        "command": "echo ${value_1} ${value_2}",
        "values": {"value_1": "2", "value_2": "1"},
    }


REFUSED = [
    # parameters                              what is refused
    ({"code": "f('${x}')"}, "'code' of 't' is python code, and '${x}' would become part of it"),
    ({"code": "${x}"}, "'code' of 't' is python code, and '${x}' would become part of it"),
    ({"code": "${no:-${x}}"}, "'code' of 't' is python code, and '${no:-${x}}' would become part of it"),
    ({"code": ["a", "${x}"]}, "'code[1]' of 't' is python code, and '${x}' would become part of it"),
    ({"code": {"a": {"b": "${x}"}}}, "'code.a.b' of 't' is python code, and '${x}' would become part of it"),
    ({"list": [{"run": "echo ${x}"}]}, "'list[0].run' of 't' is shell code, and '${x}' would become part of it"),
    ({"any": {"q": "${x}"}}, "'any.q' of 't' is sql code, and '${x}' would become part of it"),
    ({"list": "${x}"}, "'${x}' would fill a parameter of 't' that is shell code"),
    ({"list": ["${x}"]}, "'${x}' would fill a parameter of 't' that is shell code"),
    ({"any": "${x}"}, "'${x}' would fill a parameter of 't' that is sql code"),
    ("${x}", "'${x}' would fill a parameter of 't' that is "),
    ({"data": "${x}"}, None),
    ({"code": "1 + 1", "list": [{"other": "${x}"}]}, None),
]  # fmt: skip


@pytest.mark.parametrize(("params", "what"), REFUSED)
def test_a_placeholder_in_code_that_does_not_bind_is_refused(params: Any, what: str | None) -> None:
    code, template = CodeParams("t", [DEEP]), compile(params)
    if what is None:
        assert code.refusals(template) == []
        code.fill(template, {"x": "1"})
        return
    with pytest.raises(ShellRefusedError) as caught:
        code.fill(template, {"x": "1"})
    assert caught.value.what.startswith(what)
    assert [problem.what for problem in code.refusals(template)] == [caught.value.what]
    assert caught.value.code == "value-as-code"


def test_raw_text_is_refused_where_values_are_bound() -> None:
    [problem] = CodeParams("core/shell", [SHELL]).refusals(compile({"command": "echo ${x:raw}"}))
    assert (
        problem.what
        == "'command' of 'core/shell' is shell code, and ':raw' would make a value part of it"
    )


def test_a_dollar_before_a_value_is_refused() -> None:
    with pytest.raises(ShellRefusedError, match="a '\\$' right before a value"):
        CodeParams("core/shell", [SHELL]).fill(compile({"command": "echo $$${x}"}), {"x": "1"})


SLIPS = [
    ({"properties": {"c": {"x-code": "sql"}}}, []),
    ({"properties": {"c": {"x-code": "sql", "x-code-values": "v"}, "v": {"type": "object"}}}, []),
    ({"properties": {"x-code": {"type": "string"}}}, []),  # a parameter that is called so
    ({"properties": {"c": {"x-code": True}}}, ["'x-code' names a language"]),
    ({"properties": {"c": {"x-code": ""}}}, ["'x-code' names a language"]),
    ({"properties": {"c": {"x_code": "sql"}}}, ["'x_code' is not a mark of a parameter"]),
    (
        {"properties": {"c": {"items": {"x-Code": "sql"}}}},
        ["'x-Code' is not a mark of a parameter"],
    ),
    (
        {"properties": {"c": {"x-code-values": "v"}, "v": {}}},
        ["'x-code-values' stands beside 'x-code'"],
    ),
    (
        {"properties": {"c": {"x-code": "sql", "x-code-values": "v"}}},
        ["'x-code-values' names a parameter that is an object"],
    ),
    (
        {"properties": {"c": {"x-code": "sql", "x-code-values": "v"}, "v": {"type": "string"}}},
        ["'x-code-values' names a parameter that is an object"],
    ),
]


@pytest.mark.parametrize(("schema", "slips"), SLIPS)
def test_marks_are_checked_when_a_tool_is_read(schema: Any, slips: list[str], place: Place) -> None:
    assert [what for what, _ in schema_slips(schema)] == slips
    tool(
        place,
        "team/marked",
        f"CONFIG_SCHEMA = {schema!r}\n" + "def execute(params, project_path): pass\n",
    )
    if slips:
        with pytest.raises(DocumentError, match=re.escape(slips[0])):
            toolbox(place.root).chains.get("team/marked")
    else:
        toolbox(place.root).chains.get("team/marked")


# ── every host ───────────────────────────────────────────────────────────

CODE = {"tool": "team/code", "params": {"code": "print('@')"}}
FILES = {
    # host: a file in which the value is `@`
    "step": {"steps": [CODE]},
    "on_failure": {"steps": [{"shell": "false", "on_failure": CODE}]},
    "on_success": {"steps": [{"shell": "true", "on_success": [CODE]}]},
    "on_exit_code": {"steps": [{"shell": "true", "on_exit_code": {"3": CODE}}]},
    "validate": {"steps": [{"shell": "true", "validate": CODE}]},
    "foreach": {"steps": [{"foreach": [1], "do": [CODE]}]},
    "setup": {"setup": [CODE], "map": {"input": ["a"], "steps": [{"shell": "true"}]}},
    "map": {"map": {"input": ["a"], "steps": [CODE]}},
    "reduce": {"map": {"input": ["a"], "steps": [{"shell": "true"}]}, "reduce": [CODE]},
    "block": {"blocks": {"b": {"steps": [CODE]}}, "steps": [{"use": "b"}]},
    "agent": {"steps": [{"agent": {"tool": "team/code", "prompt": "p", "options": CODE["params"]}}]},
    "hook": {"steps": [{"shell": "true"}], "hooks": [{"id": "h", "event": "run_finished", "action": CODE}]},
    "hooks": {"steps": [{"shell": "true"}], "hooks": [{"id": "h", "event": "run_finished", "actions": [CODE]}]},
    "node": {"start": "a", "nodes": {"a": CODE}},
    "action": {"start": "a", "nodes": {"a": {"action": CODE}}},
    "foreach node": {"start": "a", "nodes": {"a": {"over": [1], **CODE}}},
    "graph below config": {"tool_type": "graph", "version": "1.0.0", "config": {"start": "a", "nodes": {"a": CODE}}},
    "hook of a graph": {
        "start": "a",
        "nodes": {"a": {"assign": {"b": 1}}},
        "hooks": [{"id": "h", "event": "graph_started", "action": CODE}],
    },
    "task": {"inputs": {"x": {"type": "string", "default": "1"}}, "tasks": [{"id": "t", "description": "d", **CODE}]},
}  # fmt: skip


@pytest.mark.parametrize("host", FILES)
def test_every_host_refuses_at_load_what_check_refuses(host: str, place: Place) -> None:
    placeholder = (
        "${run.id}"
        if "hook" in host
        else "${workflow.name}"
        if "steps" in str(FILES[host])
        else "{input:x}"
    )
    placeholder = "${inputs.x}" if host == "task" else placeholder
    written = json.dumps(FILES[host]).replace("'@'", f"'{placeholder}'")
    file = place.write("flow.yaml", written)
    found = [
        one.problem
        for one in check_file(str(file), around=findings_around)
        if one.code == "value-as-code"
    ]
    assert len(found) == 1, found
    with pytest.raises(InputError) as caught:
        run_flow(str(file), project=str(place.root))
    assert [(one.what, one.fix) for one in caught.value.problems] == [(found[0].what, found[0].fix)]
    assert caught.value.exit_code == 2
    assert "is python code" in found[0].what


def test_hooks_of_a_directive_and_of_a_hooks_file_are_checked(place: Place) -> None:
    hook = '{id: h, event: run_started, action: {tool: team/code, params: {code: "${run.id}"}}}'
    place.write("review.md", f"---\nhooks:\n  - {hook}\n---\nLook.\n")
    place.write(".ai/config/hooks.yaml", f"- {hook}\n")
    for name in ("review.md", ".ai/config/hooks.yaml"):
        found = check_file(str(place.root / name), around=findings_around)
        assert [one.code for one in found if one.severity == "error"] == ["value-as-code"], name
    place.write("flow.yaml", "steps: [{shell: 'true'}]")
    trusted(place)
    with pytest.raises(InputError) as caught:
        run_flow(str(place.root / "flow.yaml"), project=str(place.root))
    assert caught.value.code == "value-as-code"


def test_shell_text_of_a_tool_is_judged_like_that_of_a_step(place: Place) -> None:
    steps = [
        {"tool": "core/shell", "params": {"command": command}}
        for command in (
            "eval ${workflow.name}",
            "${workflow.name} x",
            "echo ${workflow.name}",
            "sh -c '${workflow.id}'",
        )
    ]
    file = place.write("flow.yaml", json.dumps({"steps": steps}))
    found = check_file(str(file), around=findings_around)
    assert [one.code for one in found] == ["value-as-code", "value-as-program", "value-as-code"]
    with pytest.raises(InputError) as caught:
        run_flow(str(file), project=str(place.root))
    assert [one.what for one in caught.value.problems] == [one.problem.what for one in found]


@pytest.mark.parametrize("host", [host for host in HOSTS if host != "agent"])
def test_a_bound_value_arrives_and_does_not_run(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    results, world = Results(), World(tmp_path)
    try_one(host, Case("core/shell", {"command": SCRIPTS[0]}, PAYLOADS[0]), world, results)
    assert results.done[host] == 1
    assert results.first_failure == ""


@pytest.mark.share
def test_no_value_reaches_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    results = fuzz(tmp_path, runs=600 if WHOLE else 40, seed=7)
    assert results.first_failure == ""
    assert min(results.ends["done"], results.ends["refused"]) > 0
    assert not (tmp_path / CANARY).exists()


# ── configs of tools ─────────────────────────────────────────────────────

CONFIGS = [
    # config                                                           refused
    ({"command": "sh", "input_data": "echo {x}"}, "'sh' reads its standard input as code"),
    (
        {"command": "bash", "args": ["-s"], "input_data": "{x}"},
        "'bash' reads its standard input as code",
    ),
    (
        {"command": "python3", "args": ["-"], "input_data": "{params_json}"},
        "'python' reads its standard input",
    ),
    (
        {"command": "env", "args": ["A=1", "sh"], "input_data": "{x}"},
        "'sh' reads its standard input as code",
    ),
    ({"command": "sh", "args": ["-c", "cat"], "input_data": "{x}"}, None),
    ({"command": "sh", "input_data": "echo fixed"}, None),
    ({"command": "cat", "input_data": "{x}"}, None),
]


@pytest.mark.parametrize(("config", "what"), CONFIGS)
def test_what_an_interpreter_reads_from_its_input_holds_no_value(
    config: dict[str, Any], what: str | None, place: Place
) -> None:
    import plait

    header = {"version": "1.0.0", "executor_id": "core/primitives/subprocess", "config": config}
    place.write(".ai/tools/team/input.yaml", json.dumps(header))
    trusted(place)
    if what is None:
        assert (
            plait.call("team/input", {"x": "; echo ran"}, project=place.root)["status"] == "success"
        )
        return
    with pytest.raises(ShellRefusedError, match=re.escape(what)):
        plait.call("team/input", {"x": "; echo ran"}, project=place.root)


def test_a_fixed_parameter_that_is_code_holds_no_value(place: Place) -> None:
    import plait

    code = PYTHON_TOOL + "\nCONFIG = {'fixed_params': {'code': 'x = ${HOME}'}}\n"
    place.write(".ai/tools/team/fixed.py", code)
    trusted(place)
    with pytest.raises(ShellRefusedError, match=r"config\.fixed_params\.code is python code"):
        plait.call("team/fixed", {}, project=place.root)


LOOP = "for f in a b; do echo ${f} $f; done"
FLOWS = {
    "workflow": {"steps": [{"tool": "core/shell", "params": {"command": LOOP}}]},
    "graph": {"start": "a", "nodes": {"a": {"tool": "core/shell", "params": {"command": LOOP}}}},
    "older name": {"steps": [{"tool": "rye/bash/bash", "params": {"command": LOOP}}]},
    "item_id": {
        "start": "a",
        "nodes": {"a": {"item_id": "tool:rye/bash", "params": {"command": LOOP}}},
    },
    "action": {
        "start": "a",
        "nodes": {"a": {"action": {"item_id": "core/shell", "params": {"command": LOOP}}}},
    },
    "hook": {
        "steps": [{"shell": "true"}],
        "hooks": [
            {
                "id": "h",
                "event": "step_finished",
                "actions": [{"tool": "core/shell", "params": {"command": LOOP}}],
            }
        ],
    },
}


@pytest.mark.parametrize("host", FLOWS)
def test_names_that_the_script_of_a_tool_sets_are_its_own(place: Place, host: str) -> None:
    file = place.write("flow.yaml", json.dumps(FLOWS[host]))
    assert check_file(str(file), around=findings_around) == []
    assert run_flow(str(file), project=str(place.root)).status == "done"
    file = place.write("flow.yaml", json.dumps(FLOWS[host]).replace("echo ${f}", "echo ${g}"))
    assert [one.code for one in check_file(str(file), around=findings_around)] == ["unknown-name"]
