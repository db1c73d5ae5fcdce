"""What `plait check` says because of tools, their parameters and providers: whatever a run would refuse."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from plait.app.file_check import findings_around
from plait.lang.check import check_file, flow_files

GREET = """
executor_id: core/primitives/subprocess
config: {command: echo, args: ["{name}"]}
config_schema:
  type: object
  properties: {name: {type: string}, count: {type: integer}}
  required: [name]
"""
STRICT = GREET + "  additionalProperties: false\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.delenv("PLAIT_PROVIDER", raising=False)
    root = tmp_path / "project"
    (root / ".ai" / "tools").mkdir(parents=True)
    return root


def findings(root: Path, name: str, text: str) -> list[str]:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text).lstrip("\n"))
    found = check_file(str(file), must_be_flow=True, around=findings_around)
    return [f"{one.problem.place[1]}: {one.severity}: {one.problem.what}" for one in found]


CALLS = [
    # a step                                             what is reported
    ("{tool: greet, params: {name: x}}",                 []),
    ("{tool: greet, params: {name: '${workflow.name}'}}", []),
    ("{tool: greet, params: {name: x, count: '${workflow.name}'}}", []),
    ("{tool: greet}",                                    ["'greet': 'name' is required"]),
    ("{tool: greet, params: {name: 3}}",                 ["'greet': name: must be a string, got 3"]),
    ("{tool: greet, params: {name: x, count: many}}",    ['\'greet\': count: must be an integer, got "many"']),
    ("{tool: greet, params: {name: x, cuont: 1}}",       ["'cuont' is not among the parameters of 'greet'"]),
    ("{tool: strict, params: {name: x, cuont: 1}}",      ["'strict': 'cuont' is not a parameter"]),
    ("{tool: strict, params: {name: x, cuont: '${workflow.name}'}}", ["'strict': 'cuont' is not a parameter"]),
    ("{tool: gret, params: {name: x}}",                  ["there is no tool 'gret'"]),
    ("{tool: core/file/read, params: {pth: a}}",         ["'core/file/read': 'path' is required", "'core/file/read': 'pth' is not a parameter"]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "messages"), CALLS)
def test_a_call_is_held_against_the_schema_of_its_tool(
    project: Path, step: str, messages: list[str]
) -> None:
    (project / ".ai" / "tools" / "greet.yaml").write_text(GREET)
    (project / ".ai" / "tools" / "strict.yaml").write_text(STRICT)
    steps = [line.split(": ", 2)[2] for line in findings(project, "flow.yaml", f"steps: [{step}]")]
    assert sorted(steps) == sorted(messages)


SEARCH = """
executor_id: core/primitives/subprocess
config: {command: git, args: [grep, -n, "{pattern}"], timeout: "{seconds}"}
"""
BOUND = [
    # parameters                                     is it said that the call would be refused?
    ("{pattern: x, seconds: 5}",                     False),
    ("{pattern: '${workflow.name}', seconds: 5}",    False),
    ("{pattern: x, seconds: '${workflow.name}'}",    False),
    ("{pattern: --open-files-in-pager=sh, seconds: 5}", True),
    ("{pattern: x, seconds: soon}",                  True),
]  # fmt: skip


@pytest.mark.parametrize(("params", "is_found"), BOUND)
def test_check_reports_what_the_call_itself_would_refuse(
    project: Path, params: str, is_found: bool
) -> None:
    (project / ".ai" / "tools" / "search.yaml").write_text(SEARCH)
    found = findings(project, "flow.yaml", f"steps: [{{tool: search, params: {params}}}]")
    assert [
        line.startswith("1: error: 'search' cannot be called like this: ") for line in found
    ] == [True] * is_found


def test_a_call_in_a_graph_and_in_a_hook_is_held_against_it_too(project: Path) -> None:
    (project / ".ai" / "tools" / "strict.yaml").write_text(STRICT)
    graph = """
        start: a
        hooks: [{event: graph_completed, action: {tool: strict, params: {nam: x}}}]
        nodes: {a: {tool: strict, params: {name: '${state.x}', conut: 1}}}
        """
    found = findings(project, "graph.yaml", graph)
    assert "3: error: 'strict': 'conut' is not a parameter" in found
    assert "2: error: 'strict': 'name' is required" in found


def test_a_call_in_a_block_in_a_handler_and_in_an_ensemble_is_held_against_it_too(
    project: Path,
) -> None:
    (project / ".ai" / "tools" / "strict.yaml").write_text(STRICT)
    flow = """
        blocks: {say: {steps: [{tool: strict, params: {name: 3}}]}}
        steps:
          - use: say
          - shell: ls
            on_failure: [{tool: strict, params: {nam: x}}]
        """
    found = findings(project, "flow.yaml", flow)
    assert "1: error: 'strict': name: must be a string, got 3" in found
    assert "5: error: 'strict': 'nam' is not a parameter" in found
    ensemble = "tasks: [{description: d, expected_output: e, tool: strict, params: {nam: x}}]"
    assert "1: error: 'strict': 'nam' is not a parameter" in findings(project, "e.yaml", ensemble)


def test_a_parameter_is_named_where_it_stands_with_what_was_meant(project: Path) -> None:
    (project / ".ai" / "tools" / "strict.yaml").write_text(STRICT)
    file = project / "flow.yaml"
    file.write_text("steps:\n  - tool: strict\n    params:\n      name: x\n      cuont: 1\n")
    [finding] = check_file(str(file), around=findings_around)
    assert str(finding.problem) == (
        f"{file}:5:7: 'strict': 'cuont' is not a parameter\n"
        "5 |       cuont: 1\n  |       ^^^^^\nfix: did you mean 'count'?"
    )


SUBPROCESS = "executor_id: core/primitives/subprocess\nconfig: "
TENFOLD = ", ".join(f"v{level}: '{f'{{v{level - 1}}}' * 10}'" for level in range(1, 9))
"""Entries of which each holds ten times the one before."""
TOOLS = [
    # a file below .ai/tools, its text                              what is reported
    ("a.yaml", GREET,                                               []),
    ("a.yaml", "executor_idd: core/primitives/subprocess",          ["1: error: 'executor_idd' is not a key of a tool"]),
    ("a.yaml", "executor_id: core/primitives/subprocess\nversion: 1.5", ["2: error: 'version' is text"]),
    ("a.yaml", "description: nothing runs it",                      ["1: error: this tool says no executor_id"]),
    ("a.yaml", "executor_id: core/runtimes/pyton/script",           ["0: error: 'a' is executed by 'core/runtimes/pyton/script', which does not exist in the project space or below"]),
    ("a.yaml", SUBPROCESS + "{command: 'echo a | wc -l'}",          ["2: error: config.command starts a program, no shell: '|' would be one of its arguments"]),
    ("a.yaml", SUBPROCESS + "{command: 'make && make test'}",       ["2: error: config.command starts a program, no shell: '&&' would be one of its arguments"]),
    ("a.yaml", SUBPROCESS + "{command: 'make 2>&1'}",               ["2: error: config.command starts a program, no shell: '2>&1' would be one of its arguments"]),
    ("a.yaml", SUBPROCESS + "{command: 'cd x; ls'}",                ["2: error: config.command starts a program, no shell: 'x;' would be one of its arguments"]),
    ("a.yaml", SUBPROCESS + "{command: 'echo $(date)'}",            ["2: error: config.command starts a program, no shell: '$(date)' would be one of its arguments"]),
    ("a.yaml", SUBPROCESS + "{command: \"grep '|' f\"}",            []),
    ("a.yaml", SUBPROCESS + "{command: 'find . -exec ls {} \\;'}",  []),
    ("a.yaml", SUBPROCESS + "{command: 'curl http://h/?a=1&b=2'}",  []),
    ("a.yaml", SUBPROCESS + "{command: sh, args: [-c, 'echo a | wc -l']}", []),
    ("a.yaml", SUBPROCESS + "{command: echo, args: a}",             ["2: error: config.args is a list"]),
    ("a.yaml", SUBPROCESS + "{command: echo, timeout: '{t}'}",      []),
    ("a.yaml", SUBPROCESS + "{command: echo, timeout: soon}",       ["2: error: config.timeout is a number of seconds above 0"]),
    ("a.yaml", SUBPROCESS + f"{{command: echo, args: ['{{v8}}'], v0: xxxxxxxxxx, {TENFOLD}}}", ["2: error: the rendered text is longer than 16,777,216 characters"]),
    ("a.yaml", SUBPROCESS + f"{{command: echo, args: ['{{v5}}'], v0: xxxxxxxxxx, {TENFOLD}}}", []),
    ("a.yaml", SUBPROCESS + "{command: echo}\nconfig_schema: {type: objekt}", ["0: error: the schema of 'a' is not JSON Schema: \"objekt\" is not valid under any of the schemas listed in the 'anyOf' keyword"]),
    ("a.yaml", "executor_id: core/primitives/http_client\nconfig: {method: GET}", ["0: error: an HTTP tool names a url"]),
    ("a.yaml", "executor_id: core/primitives/http_client\nconfig: {url: '${BASE}/{id}', auth: {type: bearer, token: '${TOKEN}'}}", []),
    ("a.yaml", "executor_id: core/primitives/mcp\nconfig: {server: {command: x}, tool_name: t}\ninput_schema: {type: object}", ["3: warning: 'input_schema' is not read, so no parameter is checked"]),
    ("a.py",   '__executor_id__ = "core/runtimes/python/script"\n', []),
    ("a.py",   '__executor_idd__ = "core/runtimes/python/script"\n', ["1: error: '__executor_idd__' is not a key of a header"]),
    ("a.py",   "def helper():\n    pass\n",                         ["1: error: this tool says no executor_id"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "messages"), TOOLS)
def test_the_file_of_a_tool_is_checked(
    project: Path, name: str, text: str, messages: list[str]
) -> None:
    assert findings(project, f".ai/tools/{name}", text) == messages


def test_below_a_directory_tools_are_checked_and_what_they_import_is_not(project: Path) -> None:
    tools = project / ".ai" / "tools"
    (tools / "tool.py").write_text('__executor_idd__ = "core/runtimes/python/script"\n')
    (tools / "helper.py").write_text("def helper():\n    pass\n")
    assert [Path(file).name for file in flow_files([str(project)])] == ["tool.py"]


FLOWS = [
    # a flow                                                                 what is reported
    ("steps: [{shell: ls, on_failure: ignore}]",                             ["1: error: 'on_failure' is shell text, so this would run a command called 'ignore'"]),
    ("steps: [{shell: ls, on_failure: continue}]",                           ["1: error: 'on_failure' is shell text, so this would run a command called 'continue'"]),
    ("steps: [{shell: ls, on_failure: retry}]",                              ["1: error: 'on_failure' is shell text, so this would run a command called 'retry'"]),
    ("steps: [{shell: ls, on_success: stop}]",                               ["1: error: 'on_success' is shell text, so this would run a command called 'stop'"]),
    ("steps: [{shell: ls, on_failure: true}]",                               []),
    ("steps: [{shell: ls, on_failure: ignore it}]",                          []),
    ("steps: [{write_file: {path: a, format: yaml, content: 'a: ${workflow.name}'}}]", ["1: error: text with variables in it cannot be written as YAML: a value could change what it means"]),
    ("steps: [{write_file: {path: a, format: yaml, content: '[a'}}]",        ["1: error: this '[' is not closed, or a ',' is missing"]),
    ("steps: [{write_file: {path: a, format: yaml, content: '${workflow.name}'}}]",   []),
    ("steps: [{write_file: {path: a, format: json, content: '{a: 1}'}}]",    ["1: error: the content is not JSON"]),
    ("steps: [{write_file: {path: a, format: json, content: '{\"a\": ${workflow.name}}'}}]", []),
    ("steps: [{prompt: hello}]",                                             ["1: warning: no model provider is configured"]),
    ("steps: [{prompt: {prompt: hello, provider: opnai}}]",                  ["1: error: there is no provider 'opnai'"]),
    ("steps: [{prompt: {prompt: hello, provider: openai}}]",                 []),
    ("tasks: [{description: d, expected_output: e}]",                        ["0: warning: task 'task-1' needs a model: no model provider is configured"]),
    ("on: push\njobs: {a: {steps: [{run: make}]}}",                          ["0: error: this is a GitHub Actions workflow, not a flow of Plait"]),
    ("name: CI\non: push\njobs: {a: {steps: [{run: make}]}}",                ["0: error: this is a GitHub Actions workflow, not a flow of Plait"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "messages"), FLOWS)
def test_check_reports_what_a_run_would_refuse(
    project: Path, text: str, messages: list[str]
) -> None:
    assert findings(project, "flow.yaml", text) == messages


def test_a_directive_without_a_provider_is_reported(project: Path) -> None:
    text = "---\nname: d\n---\nSay hello.\n"
    assert findings(project, "d.md", text) == ["0: warning: no model provider is configured"]
    (project / ".ai" / "config" / "providers").mkdir(parents=True)
    (project / ".ai" / "config" / "providers" / "default.yaml").write_text("extends: openai\n")
    assert findings(project, "d.md", text) == []
    assert findings(project, "d.md", "---\nprovider: opnai\n---\nSay hello.\n") == [
        "0: error: there is no provider 'opnai'"
    ]
