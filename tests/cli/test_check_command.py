"""`plait check`: its output for people, programs and code hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
FLOW = """\
map:
  input: x
  steps:
    - shell: "é ${itme.path}"
      tmeout: 3
    - shell: cat ${FILE}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "good.yaml").write_text("- shell: ls\n")
    (tmp_path / "notes.yml").write_text("a: b\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "words.txt").write_text("just words\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_problems_are_printed_with_place_line_caret_and_fix(capsys: Capsys) -> None:
    assert main(["check", "flow.yaml"]) == 2
    assert capsys.readouterr() == (
        """\
flow.yaml:4:17: unknown variable 'itme.path'
4 |     - shell: "é ${itme.path}"
  |                 ^^^^^^^^^^^^
fix: did you mean 'item.path'? known in map: item, item_index, item_total, step, workflow, git, env, uuid
flow.yaml:5:7: 'tmeout' is not a field of a step
5 |       tmeout: 3
  |       ^^^^^^
fix: did you mean 'timeout'?
flow.yaml:6:18: warning: 'FILE' is a deprecated name of 'item.path'
6 |     - shell: cat ${FILE}
  |                  ^^^^^^^
fix: write ${item.path}
2 problems and 1 warning in 1 file
""",
        "",
    )


ENDINGS = [
    (["good.yaml"],                              0, "no problems in 1 file\n"),
    (["good.yaml", "notes.yml"],                 2, "1 problem in 2 files\n"),
    (["."],                                      2, "2 problems and 1 warning in 3 files\n"),
    (["flow.yaml", "--values-names", "itme"],    2, "1 problem and 1 warning in 1 file\n"),
    (["notes.yml", "--profile", "workflow"],     0, "no problems in 1 file\n"),
    (["no.yaml", "good.yaml"],                   2, "1 problem in 2 files\n"),
    (["empty.txt"],                              2, "1 problem in 1 file\n"),
    (["words.txt"],                              2, "1 problem in 1 file\n"),
]  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("arguments", "status", "ending"), ENDINGS)
def test_it_ends_with_a_count_and_2_only_for_errors(
    arguments: list[str], status: int, ending: str, capsys: Capsys
) -> None:
    assert main(["check", *arguments]) == status
    assert capsys.readouterr().out.endswith(ending)


@pytest.mark.usefixtures("folder")
def test_warnings_alone_are_no_failure(capsys: Capsys) -> None:
    Path("warn.yaml").write_text("map: {input: x, steps: [{shell: 'cat ${ARG}'}]}\n")
    assert main(["check", "warn.yaml"]) == 0
    assert capsys.readouterr().out.endswith("1 warning in 1 file\n")


@pytest.mark.usefixtures("folder")
def test_a_file_that_was_not_checked_says_how_to_choose_a_profile(capsys: Capsys) -> None:
    Path("flow.yaml").unlink()
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out == (
        "./notes.yml: note: this file has none of the shapes that Plait knows, so its templates are not checked\n"
        "fix: name its kind: plait check --kind workflow|graph|directive|ensemble|tool|hooks|provider\n"
        "no problems in 2 files\n"
    )


MEANT = [
    # a file below the folder                               is it plainly meant as a flow?
    ("stpes: [{shell: ls}]",                                True),
    ("stpes:\n  - run: ls",                                 True),
    ("stesp: [{shell: ls}]",                                True),
    ("name: x\nstages: [{shell: ls}]",                      True),
    ("- {shell: ls}\n- {shel: ls}",                         True),
    ("things: [{tool: core/file/read}]",                    True),
    ("start: a\nnoeds: {a: {shell: ls}}",                   True),
    ("taks: [{name: a, description: b}]",                   True),
    ("a: b",                                                False),
    ("step: 3",                                             False),
    ("stages: [build, test]",                               False),
    ("nodes: [{role: worker}]",                             False),
    ("version: '3'\ntasks: {build: {cmds: [make]}}",        False),
    ("services: {web: {image: nginx}}",                     False),
    ("repos: [{repo: local, hooks: [{id: a}]}]",            False),
    ("paths: {/a: {get: {}}}\ntags: [{name: a}]",           False),
]  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("text", "is_meant"), MEANT)
def test_below_a_folder_only_a_file_that_is_meant_as_a_flow_must_be_one(
    text: str, is_meant: bool, capsys: Capsys
) -> None:
    Path("flow.yaml").write_text(text)
    assert main(["check", "."]) == (2 if is_meant else 0)
    assert ("./flow.yaml: note: this file has none" in capsys.readouterr().out) == (not is_meant)


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_named_and_no_run_would_take_is_a_problem(capsys: Capsys) -> None:
    assert main(["check", "notes.yml"]) == 2
    assert capsys.readouterr().out.startswith(
        "notes.yml: this file is not a flow\nfix: a workflow has steps:"
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", [["--json"], ["--format", "json"]])
def test_json_lists_problems_and_counts(option: list[str], capsys: Capsys) -> None:
    assert main(["check", "flow.yaml", *option]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["files"], report["errors"], report["warnings"]) == (1, 2, 1)
    assert report["problems"][1] == {
        "severity": "error",
        "what": "'tmeout' is not a field of a step",
        "where": {"file": "flow.yaml", "line": 5, "column": 7},
        "fix": "did you mean 'timeout'?",
        "code": "unknown-field",
    }


@pytest.mark.usefixtures("folder")
def test_sarif_has_rules_levels_and_regions(capsys: Capsys) -> None:
    Path("two words.yaml").write_text("a: 1\na: 2\n")
    assert main(["check", "flow.yaml", "notes.yml", "two words.yaml", "--format", "sarif"]) == 2
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    results = run["results"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in rules)
    assert [rules[result["ruleIndex"]]["id"] for result in results] == [
        result["ruleId"] for result in results
    ]
    assert [result["level"] for result in results] == [
        "error",
        "error",
        "warning",
        "error",
        "error",
    ]
    first, *_, note, last = (result["locations"][0]["physicalLocation"] for result in results)
    assert first == {
        "artifactLocation": {"uri": "flow.yaml"},
        "region": {"startLine": 4, "startColumn": 17, "endLine": 4, "endColumn": 29},
    }
    assert note == {"artifactLocation": {"uri": "notes.yml"}}
    assert last["artifactLocation"] == {"uri": "two%20words.yaml"}
    assert results[-1]["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 2


@pytest.mark.usefixtures("folder")
def test_github_gets_one_annotation_per_line(capsys: Capsys) -> None:
    Path("100%,a:b.yaml").write_text("- {shell: ls, tmeout: 1}\n")
    assert main(["check", "flow.yaml", "100%,a:b.yaml", "--format", "github"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1] == (
        "::error title=plait unknown-field,file=flow.yaml,line=5,col=7::"
        "'tmeout' is not a field of a step%0Afix: did you mean 'timeout'?"
    )
    assert lines[2].startswith("::warning title=plait deprecated-alias,")
    assert "file=100%25%2Ca%3Ab.yaml," in lines[3]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_no_findings_are_still_a_whole_report(form: str, capsys: Capsys) -> None:
    assert main(["check", "good.yaml", "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed == "" if form == "github" else json.loads(printed)


@pytest.mark.usefixtures("folder")
def test_an_empty_directory_is_an_error_and_not_a_success(capsys: Capsys) -> None:
    Path("empty").mkdir()
    assert main(["check", "empty"]) == 2
    assert (
        capsys.readouterr().err
        == "empty: there is no YAML file and no directive below this directory\nfix: name a file\n"
    )


PROJECT = """\
hooks:
  - {id: a, event: step_failed, action: {tool: team/hepler}}
  - {id: b, event: step_failed, action: {tool: team/helper}}
steps:
  - tool: team/helper
  - tool: team/hlper
  - tool: ${workflow.name}
  - {call: core/file/nothing, on_failure: [{tool: team/none}]}
  - {shell: ls, when: "${workflow.name} == 'a'"}
"""


def test_tools_that_a_project_does_not_have_are_found(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_SPACE", str(folder / "user"))
    (folder / "flow.yaml").write_text(PROJECT)
    assert main(["check", "flow.yaml", "--json"]) == 2  # in no project, as a run there
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [one["where"].get("line") for one in problems] == [2, 3, 5, 6, 8, 8]
    tools = folder / ".ai" / "tools" / "team"
    tools.mkdir(parents=True)
    (tools / "helper.sh").write_text(
        "# version: 1.0.0\n# executor_id: core/runtimes/bash/bash\ntouch ran\n"
    )
    assert main(["check", "flow.yaml", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    found = [(one["where"].get("line"), one["what"], one["code"]) for one in problems]
    assert found == [
        (2, "there is no tool 'team/hepler'", "unknown-tool"),
        (6, "there is no tool 'team/hlper'", "unknown-tool"),
        (8, "there is no tool 'core/file/nothing'", "unknown-tool"),
        (8, "there is no tool 'team/none'", "unknown-tool"),
    ]
    assert not (folder / "ran").exists()


NODES = """\
start: a
nodes:
  a: {action: {item_type: directive, tool: team/talk}, next: b}
  b: {action: {item_type: directive, item_id: team/tlak}, next: c}
  c: {action: {tool: team/talk}, next: d}
  d: {tool: 'directive:team/talk'}
"""


def test_tools_and_directives_of_nodes_that_a_project_does_not_have_are_found(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_SPACE", str(folder / "user"))
    directives = folder / ".ai" / "directives" / "team"
    directives.mkdir(parents=True)
    (directives / "talk.md").write_text("---\ndescription: x\n---\nTalk.\n")
    below = "".join(f"  {line}\n" for line in NODES.splitlines())
    for name, text in (("flat.yaml", NODES), ("below.yaml", f"config:\n{below}")):
        (folder / name).write_text(text)
        assert main(["check", name, "--json", "--kind", "graph"]) == 2
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert [one["what"] for one in problems] == [
            "there is no directive 'team/tlak'",
            "there is no tool 'team/talk'",
        ]


ADVICE = [
    # the flow                                       the last fix
    ("steps: echo hi",                               "write a list: - shell: echo hi"),
    ("provider: openai\nsteps: [{prompt: hi}]",      "write it in a step: prompt: {prompt: …, provider: …}"),
    ("steps: [{prompt: hi, provider: openai}]",      "write it further in: prompt: {prompt: …, provider: …}"),
    ("steps: [{tool: core/file/raed}]",              "did you mean 'core/file/read'?"),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "fix"), ADVICE)
def test_advice_is_a_form_that_can_be_typed(
    flow: str, fix: str, folder: Path, capsys: Capsys
) -> None:
    (folder / "flow.yaml").write_text(flow)
    assert main(["check", "flow.yaml", "--json"]) == 2
    errors = [
        one for one in json.loads(capsys.readouterr().out)["problems"] if one["severity"] == "error"
    ]
    assert errors[-1]["fix"].startswith(fix)


def test_a_hidden_folder_is_not_checked_but_that_of_the_project_is(
    tmp_path: Path, capsys: Capsys
) -> None:
    for folder in (".plait", ".github/workflows", ".ai", "flows"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "wrong.yaml").write_text("steps: [{shel: ls}]\n")
    assert main(["check", str(tmp_path)]) == 2
    found = capsys.readouterr().out
    assert [folder in found for folder in (".plait", ".github", "/.ai/", "/flows/")] == [
        False,
        False,
        True,
        True,
    ]
