"""`plait explain`: where values come from; nothing is run, and no secret is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main
from plait.core.source import Source
from plait.lang.analysis.explain import TextField, explain
from plait.lang.analysis.names import BuiltinName
from plait.scope import Scope
from plait.views.explanation import render_explanation

Capsys = pytest.CaptureFixture[str]


def explained(capsys: Capsys, *arguments: str) -> list[dict[str, Any]]:
    assert main(["explain", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_shell_text_is_drawn_with_the_way_each_value_is_bound(capsys: Capsys) -> None:
    template = "git commit -m '${file:.msg}' -- ${item.path:path} $HOME ${n:-${m}} ${x}"
    values = '{"item": {"path": "-we ird"}, "x": ["a", "b c"]}'
    assert main(["explain", template, "--shell", "--values", values]) == 0
    assert (
        capsys.readouterr().out
        == """\
text    git commit -m '${file:.msg}' -- ${item.path:path} $HOME ${n:-${m}} ${x}
        ├ ${file:.msg}        context, stage 2: computed, read once per run                  bound inside '…'
        ├ ${item.path:path}   context, stage 2: frame values, level captures   ./-we ird     bound as one word
        ├ $HOME               context, stage 2: left to the shell
        ├ ${n:-${m}}          context, stage 2: its default                    ${m}          bound as one word
        │ └ ${m}              context, stage 2: missing: stays as written
        └ ${x}                context, stage 2: frame values, level captures   ["a","b c"]   bound, one word per element
runs as git commit -m '${file:.msg}' -- './-we ird' $HOME '${m}' a 'b c'      (shown quoted; values are passed, never pasted)
"""
    )


PLACEHOLDERS = [
    # template, profile, values                                     status, answer, value
    ("${a}", "workflow", {"a": 1},                                  ("found", "frame values, level captures", "1")),
    ("${a.b[0]}", "workflow", {"a": {"b": ["x"]}},                  ("found", "frame values, level captures", "x")),
    ("${a | upper}", "workflow", {"a": "x"},                        ("found", "frame values, level captures", "X")),
    ("${a}", "workflow", {"a": ""},                                 ("found", "frame values, level captures", '""')),
    ("${a}", "workflow", {"a": None},                               ("found", "frame values, level captures", "null")),
    ("${a}", "workflow", {},                                        ("missing", "missing: stays as written", None)),
    ("${a.b}", "workflow", {"a": {}},                               ("missing", "missing: stays as written", None)),
    ("${a:?why}", "workflow", {},                                   ("missing", "missing: an error, it is required", None)),
    ("${a:-d}", "workflow", {},                                     ("default", "its default", "d")),
    ("${a | default(7)}", "workflow", {},                           ("default", "its filter 'default'", "7")),
    ("${a || 'lit'}", "workflow", {},                               ("found", "written here", "lit")),
    ("${FILE}", "workflow", {"item": {"path": "p"}},                ("alias", "deprecated name of item.path", "p")),
    ("${a:int}", "workflow", {"a": "hunter2"},                      ("found", "frame values, level captures", "refused: this value is not an integer, and ':int' does not guess")),
    ("${file:/etc/passwd}", "workflow", {},                         ("computed", "computed, read once per run", None)),
    ("${cmd:touch canary}", "workflow", {},                         ("computed", "computed, read once per run", None)),
    ("${date:%Y}", "workflow", {},                                  ("computed", "computed, new for every use", None)),
    ("${uuid}", "workflow", {},                                     ("computed", "computed, new for every use", None)),
    ("${env.PLAIT_SET}", "workflow", {},                            ("computed", "environment, read once per run: set", None)),
    ("${env.PLAIT_NOT_SET}", "workflow", {},                        ("missing", "missing: stays as written", None)),
    ("${json:a:from:j}", "workflow", {"j": {"a": 5}},               ("found", "frame values, level captures", "5")),
    ("${a}", "graph", {},                                           ("missing", "missing: empty", None)),
    ("{input:k}", "directive", {"inputs": {"k": "v"}},              ("found", "an input", "v")),
    ("{input:k?}", "directive", {},                                 ("default", "optional: empty", '""')),
    ("{input:k:d}", "directive", {},                                ("default", "its default", "d")),
    ("{input:k}", "directive", {},                                  ("missing", "missing: stays as written", None)),
    ("${PLAIT_SET}", "config", {},                                  ("environment", "the environment: set", None)),
    ("${PLAIT_NOT_SET}", "config", {},                              ("missing", "not set: empty", None)),
    ("{p}", "config", {"p": [1]},                                   ("found", "frame values, level captures", "[1]")),
    ("{p}", "prompt", {},                                           ("missing", "missing: an error", None)),
]  # fmt: skip


@pytest.mark.parametrize(("template", "profile", "values", "expected"), PLACEHOLDERS)
def test_each_placeholder_says_what_answers_it(
    template: str,
    profile: str,
    values: dict[str, Any],
    expected: tuple[str, str, str | None],
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PLAIT_SET", "hunter2")
    monkeypatch.chdir(tmp_path)
    [found] = explained(capsys, template, "--profile", profile, "--values", json.dumps(values))
    [placeholder] = found["placeholders"]
    assert (placeholder["status"], placeholder["answer"], placeholder["value"]) == expected
    assert placeholder["placeholder"] == template
    assert list(tmp_path.iterdir()) == []


BINDINGS = [
    ("echo ${x}",               "bound as one word"),
    ("echo '${x}'",             "bound inside '…'"),
    ('echo "${x}"',             'bound inside "…"'),
    ("cat <<E\n${x}\nE",        "bound in the here-document"),
    ("echo $((1+${x}))",        "bound as an integer"),
    ("echo # ${x}",             "left out: a comment"),
    ("echo ${x:raw}",           "pasted as code (:raw)"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "bound"), BINDINGS)
def test_shell_text_says_how_its_value_is_bound(script: str, bound: str, capsys: Capsys) -> None:
    [found] = explained(capsys, script, "--shell", "--values", '{"x": 5}')
    assert found["placeholders"][0]["bound"] == bound
    assert "5" in found["runs_as"] or "comment" in bound


def test_refused_shell_text_is_explained_by_its_refusal(capsys: Capsys) -> None:
    [found] = explained(capsys, "eval ${x}", "--shell", "--values", '{"x": 5}')
    assert "runs_as" not in found
    assert [problem["code"] for problem in found["problems"]] == ["value-as-code"]


def test_a_secret_is_shown_nowhere(capsys: Capsys) -> None:
    arguments = [
        "explain",
        "echo ${t} '${t | upper}' ${u:json}",
        "--shell",
        "--secret",
        "t",
        "--secret",
        "u",
    ]
    values = ["--values", '{"t": "hush-hush", "u": {"k": "hush-hush"}}']
    assert main([*arguments, *values]) == 0
    assert main([*arguments, *values, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "   ***   bound as one word\n" in out
    assert "hush" not in (out + err).lower()


def test_flaws_of_the_text_are_shown_below(capsys: Capsys) -> None:
    assert main(["explain", "${x:jsn} ${"]) == 0
    printed = capsys.readouterr().out
    assert "unknown format ':jsn'" in printed
    assert "'${' is never closed" in printed


FLOW = """\
setup:
  - {shell: ls, capture: base}
map:
  input: items.json
  agent_template:
    - shell: "wc ${item.path} ${base} ${HOME}"
    - claude: "/fix ${item.x} ${nothing.here}"
"""


def test_a_file_is_explained_by_the_names_that_exist_at_each_place(
    tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW)
    shell, claude = explained(capsys, str(file))
    assert shell["place"] == f"map.agent_template[0].shell ({file}:6:14)"
    assert [
        (placeholder["status"], placeholder["answer"]) for placeholder in shell["placeholders"]
    ] == [
        ("known", "known in map: the current item, whatever the input holds"),
        ("known", "known in map: captured"),
        ("shell", "left to the shell"),
    ]
    assert shell["runs_as"] == "wc '${item.path}' '${base}' ${HOME}"
    assert [placeholder["status"] for placeholder in claude["placeholders"]] == ["known", "missing"]


@pytest.mark.parametrize("path", ["map[1]", "map.agent_template[1]", "map[1].claude"])
def test_one_place_of_a_file_may_be_named_shortly(
    path: str, tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW)
    values = '{"item": {"x": 5}}'
    [found] = explained(capsys, str(file), path, "--values", values)
    assert found["text"] == "/fix ${item.x} ${nothing.here}"
    assert found["placeholders"][0]["value"] == "5"


HEADS = [
    "---\nname: review\ninputs: {file: string}\nsystem: Be {input:tone:kind}.\n---\n",
    "```xml\n<directive name='review'><metadata><description>d</description></metadata></directive>\n```\n",
    "",
]


@pytest.mark.parametrize("head", HEADS)
def test_a_directive_is_explained_head_and_prompt(
    head: str, tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "review.md"
    file.write_text(f"{head}Look at {{input:file}}.\n")
    found = explained(capsys, str(file), "--values", '{"inputs": {"file": "a.py"}}')
    assert found[-1]["place"].startswith("body (")
    assert [
        (placeholder["placeholder"], placeholder["value"])
        for placeholder in found[-1]["placeholders"]
    ] == [("{input:file}", "a.py")]
    assert [one["text"] for one in found[:-1]] == (
        ["Be {input:tone:kind}."] if "system" in head else []
    )


def test_a_place_that_does_not_exist_suggests_the_nearest(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(FLOW)
    assert main(["explain", str(file), "mpa[1].claude"]) == 2
    assert capsys.readouterr().err == (
        f"{file}: there is no template at 'mpa[1].claude'\nfix: did you mean 'map[1].claude'?\n"
    )


def test_long_values_are_cut_and_control_characters_are_not_printed(capsys: Capsys) -> None:
    values = json.dumps({"a": "x" * 500, "b": "\x1b[31m\nred"})
    assert main(["explain", "${a} ${b}", "--values", values]) == 0
    printed = capsys.readouterr().out
    assert f"   {'x' * 59}…\n" in printed
    assert "   �[31m⏎red\n" in printed


def test_a_narrow_terminal_gets_one_line_per_fact_and_loses_none() -> None:
    template, values = "cat ${item.path} '${x:-5}'", {"item": {"path": "p" * 200}}
    field = TextField(template, "workflow", {"item": BuiltinName("item", (), "given")}, shell=True)
    explanation = explain(field, Source("<template>", template), Scope(values))
    rows = list(render_explanation(explanation, lambda text, _: text, 60, headed=False))[:-1]
    assert rows == [
        "text    cat ${item.path} '${x:-5}'",
        "        ├ ${item.path}",
        "            context, stage 2: frame values, level captures",
        f"            {'p' * 47}…",
        "            bound as one word",
        "        └ ${x:-5}",
        "            context, stage 2: its default",
        "            5",
        "            bound inside '…'",
    ]
