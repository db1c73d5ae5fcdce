"""`plait new`: a file of each kind, which runs or checks at once; nothing is written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.cli import main
from plait.cli.new import KINDS
from plait.lang.languages import LANGUAGES

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


WRITTEN = [
    # kind, path                        file                              advice
    (["workflow"],                      "workflow.yaml",                  "next:\n  plait run workflow.yaml\n"),
    (["workflow", "a b/c.yml"],         "a b/c.yml",                      "next:\n  plait run 'a b/c.yml'\n"),
    (["map", "lines"],                  "lines.yaml",                     "next:\n  plait run lines.yaml\n"),
    (["graph"],                         "graph.yaml",                     "next:\n  plait run graph.yaml\n  plait graph graph.yaml\n"),
    (["hooks"],                         ".ai/config/hooks.yaml",          "next:\n  plait check .ai/config/hooks.yaml\n"),
    (["provider", "mine"],              ".ai/config/providers/mine.yaml", "next:\n  plait check .ai/config/providers/mine.yaml\n"),
    (["settings"],                      ".ai/plait.yaml",                 "next:\n  plait check .ai/plait.yaml\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "file", "advice"), WRITTEN)
def test_a_new_file_says_where_it_is_and_the_next_commands_work(
    arguments: list[str], file: str, advice: str, here: Path, capsys: Capsys
) -> None:
    assert main(["new", *arguments]) == 0
    assert capsys.readouterr() == (f"wrote {file}\n{advice}", "")
    assert (here / file).is_file()
    assert main(["check", file]) == 0
    if advice.startswith("next:\n  plait run"):
        assert main(["run", file]) == 0, capsys.readouterr()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("kind", "file"), [("directive", "a.md"), ("ensemble", "a.yaml")])
def test_what_asks_a_model_can_be_planned_without_one(kind: str, file: str, capsys: Capsys) -> None:
    assert main(["new", kind, "a"]) == 0
    assert capsys.readouterr().out == (
        f"wrote {file}\nnext:\n  plait run {file} --dry-run\n"
        f"  PLAIT_PROVIDER=anthropic plait run {file}   # or openai, local: it asks a model\n"
    )
    assert main(["check", file]) == 0
    assert main(["run", file, "--dry-run"]) == 0


TOOLS = [
    # arguments                                  file
    (["team/report"],                            ".ai/tools/team/report.py"),
    (["team/report.sh"],                         ".ai/tools/team/report.sh"),
    ([".ai/tools/team/report.mjs"],              ".ai/tools/team/report.mjs"),
    (["team/report", "--runtime", "function"],   ".ai/tools/team/report.py"),
    (["team/report.py", "--runtime", "function"], ".ai/tools/team/report.py"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "file"), TOOLS)
def test_a_tool_is_written_in_the_language_of_its_name_or_option(
    arguments: list[str], file: str, here: Path, capsys: Capsys
) -> None:
    assert main(["new", "tool", *arguments]) == 0
    assert capsys.readouterr() == (f"wrote {here}/{file}\ncall it:  plait call team/report\n", "")
    assert ("function" in (here / file).read_text()) == ("function" in arguments)
    assert main(["call", "team/report", "--dry-run"]) == 0


NAMES = [
    # path           name of the flow
    ("plain",        "plain"),
    ("yes",          '"yes"'),
    ("a: b",         '"a: b"'),
    ("ü",            '"ü"'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_the_name_of_a_flow_is_text_whatever_its_file_is_called(
    path: str, name: str, here: Path
) -> None:
    assert main(["new", "workflow", path]) == 0
    assert f"name: {name}\n" in (here / f"{path}.yaml").read_text("utf-8")
    assert main(["check", f"{path}.yaml"]) == 0


REFUSED = [
    (["grph"],                           "there is no kind 'grph'\nfix: did you mean 'graph'? kinds: workflow, map, graph, directive, ensemble, tool, hooks, provider, settings\n"),
    (["directive", "x.yaml"],            "plait new directive: 'x.yaml' is not the name of such a file\nfix: name it as my-directive.md\n"),
    (["workflow", "x/"],                 "plait new workflow: 'x/' is not the name of such a file\nfix: name it as my-workflow.yaml\n"),
    (["workflow", ".."],                 "plait new workflow: '..' is not the name of such a file\nfix: name it as my-workflow.yaml\n"),
    (["hooks", "x"],                     "plait new hooks takes no PATH\nfix: it is always .ai/config/hooks.yaml\n"),
    (["provider", "../x"],               "plait new provider: PATH is a name\nfix: it goes to .ai/config/providers\n"),
    (["tool"],                           "plait new tool: PATH is missing\nfix: give its id: plait new tool team/report\n"),
    (["tool", "../x"],                   "'../x' is not a tool id\nfix: an id is names joined by '/': letters, digits, '_' and '-', for example team/report\n"),
    (["tool", "x", "--runtime", "pyhton"], "there is no runtime 'pyhton'\nfix: did you mean 'python'? runtimes: python, function, bash, node, http\n"),
    (["graph", "--runtime", "bash"],     "plait new graph: --runtime is for a tool\nfix: plait new tool NAME --runtime R\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "printed"), REFUSED)
def test_a_wrong_kind_or_path_is_refused_and_nothing_is_written(
    arguments: list[str], printed: str, here: Path, capsys: Capsys
) -> None:
    assert main(["new", *arguments]) == 2
    assert capsys.readouterr() == ("", printed)
    assert list(here.iterdir()) == []


def test_a_file_that_exists_stays_as_it_is(here: Path, capsys: Capsys) -> None:
    (here / "workflow.yaml").write_text("mine")
    assert main(["new", "workflow"]) == 2
    assert capsys.readouterr().err == "./workflow.yaml: this file exists\nfix: move it away\n"
    assert (here / "workflow.yaml").read_text() == "mine"


def test_files_that_were_there_are_not_trusted_by_a_new_one(here: Path, capsys: Capsys) -> None:
    (here / ".env").write_text("A=1\n")
    assert main(["new", "hooks"]) == 0
    assert f"it counts after you trust it:  plait trust {here}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_without_a_kind_all_kinds_are_listed(capsys: Capsys) -> None:
    assert main(["new"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:-1]] == list(KINDS)


def test_each_language_has_a_template() -> None:
    assert set(LANGUAGES) <= set(KINDS)


def test_the_next_command_of_an_example_checks_the_file_that_its_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    assert main(["new", "--from", "review-directive"]) == 0
    assert capsys.readouterr().out.endswith("  plait check review.md\n")
