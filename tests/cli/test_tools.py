"""`plait tools`: the table, one tool in full, and new tools that run at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]


def table(capsys: Capsys, *arguments: str, status: int = 0) -> dict[tuple[str, str], list[str]]:
    assert main(["tools", *arguments]) == status
    lines = [line.split("   ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {(row[0], row[1]): row[2:] for row in cells if len(row) == 5}


# ── the table ────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("trusted")
def test_the_table_names_space_runtime_signer_and_purpose(capsys: Capsys) -> None:
    rows = table(capsys)
    assert rows["ID", "SPACE"] == ["RUNTIME", "SIGNED", "WHAT"]
    assert rows["team/report", "project"] == [
        "python/function",
        "—",
        "Answer with what it was given",
    ]
    assert rows["core/shell", "system"][:2] == ["python/function", "plait"]
    assert not any(item_id.startswith("core/runtimes/") for item_id, _ in rows)
    assert ("core/runtimes/python/script", "system") in table(capsys, "--all")


def test_a_shadowed_tool_is_marked_and_follows_the_one_that_hides_it(
    trusted: Path, home: Path, capsys: Capsys
) -> None:
    own = home / ".ai" / "tools" / "team"
    own.mkdir(parents=True)
    shutil.copy(trusted / ".ai" / "tools" / "team" / "report.py", own)
    rows = list(table(capsys))
    assert rows.index(("team/report", "project")) + 1 == rows.index(
        ("team/report", "user (shadowed)")
    )


def test_what_is_not_trusted_is_marked_and_the_command_is_named(
    project: Path, capsys: Capsys
) -> None:
    assert table(capsys)["team/report", "project"][1] == "— (not trusted)"
    main(["tools"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"1 tool does not run before you trust this project: plait trust {project}"


def test_a_tool_that_cannot_be_read_has_its_reason_in_the_table_and_hides_no_other(
    trusted: Path, capsys: Capsys
) -> None:
    (trusted / ".ai" / "tools" / "broken.yaml").write_text("executor_id: [\n")
    rows = table(capsys, status=2)
    assert rows["broken", "project"][2].startswith("cannot be used: ")
    assert ("team/report", "project") in rows


def test_an_ambiguous_id_has_its_problem_in_the_table_and_hides_no_other(
    trusted: Path, home: Path, capsys: Capsys
) -> None:
    (trusted / ".ai" / "tools" / "team" / "report.yaml").write_text("version: '1'\n")
    own = home / ".ai" / "tools" / "team"
    own.mkdir(parents=True)
    shutil.copy(trusted / ".ai" / "tools" / "team" / "report.py", own)
    rows = table(capsys, status=2)
    assert rows["team/report", "project"] == [
        "—",
        "—",
        "cannot be used: 'team/report' names 2 files in the project space: "
        "tools/team/report.py, tools/team/report.yaml",
    ]
    assert rows["team/report", "user (shadowed)"][0] == "python/function"
    assert ("core/shell", "system") in rows
    assert main(["tools", "--json"]) == 2
    record = next(row for row in json.loads(capsys.readouterr().out) if "error" in row)
    assert (record["id"], record["space"], record["error"]["code"]) == (
        "team/report",
        "project",
        "ambiguous-id",
    )
    assert main(["verify"]) == 2
    shown = capsys.readouterr()
    assert "✗ team/report  project: cannot be used\n" in shown.out
    assert "fix: rename or remove all but one\n" in shown.err


@pytest.mark.usefixtures("trusted")
def test_json_lists_every_tool_with_its_schema_and_trust_decision(capsys: Capsys) -> None:
    assert main(["tools", "--json"]) == 0
    found = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    report = found["team/report"]
    assert (report["version"], report["runtime"]) == ("1.2.0", "core/runtimes/python/function")
    assert report["trust"]["by"] == "project"
    assert report["parameters"]["required"] == ["week"]
    assert found["core/shell"]["trust"]["by"] == "manifest"


# ── one tool ─────────────────────────────────────────────────────────────


def test_a_tool_in_full_is_its_chain_and_its_parameters(trusted: Path, capsys: Capsys) -> None:
    assert main(["tools", "show", "team/report"]) == 0
    assert capsys.readouterr().out == (
        "team/report  1.2.0, project: you trusted this project; it is not signed\n"
        "└─ core/runtimes/python/function  1.0.0, system: it is as it was installed\n"
        "   └─ core/primitives/function  built in\n"
        "\n"
        "what       Answer with what it was given\n"
        f"file       {trusted}/.ai/tools/team/report.py\n"
        "checks     space ok, i/o ok, versions ok\n"
        "parameters week   integer, needed         Which week\n"
        '           name   string, default "Ada"   Whose report\n'
        "call       plait call team/report -i week=…\n"
    )


@pytest.mark.usefixtures("trusted")
def test_a_tool_in_full_names_what_it_hides(capsys: Capsys) -> None:
    assert main(["tools", "new", "core/shell", "--runtime", "bash"]) == 0
    assert "it shadows " in capsys.readouterr().out
    assert main(["tools", "show", "core/shell"]) == 0
    assert "/core/shell.py (system)\n" in capsys.readouterr().out


def test_a_tool_in_full_names_every_rule_that_its_chain_breaks(
    trusted: Path, capsys: Capsys
) -> None:
    tools = trusted / ".ai" / "tools"
    (tools / "parent.yaml").write_text(
        "executor_id: core/primitives/subprocess\nchild_constraints: {child: {min_version: 2.0.0}}\n"
    )
    (tools / "child.yaml").write_text('executor_id: parent\nversion: "1.0.0"\n')
    assert main(["tools", "show", "child"]) == 0
    assert "checks     'parent' wants 'child' ≥ 2.0.0, and it is 1.0.0\n" in capsys.readouterr().out


@pytest.mark.usefixtures("trusted")
def test_programs_get_the_chain_with_digests(capsys: Capsys) -> None:
    assert main(["tools", "show", "team/report", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [(it["item_id"], len(it["digest"])) for it in record["chain"]] == [
        ("team/report", 64), ("core/runtimes/python/function", 64),
    ]  # fmt: skip
    assert record["primitive"] == "core/primitives/function"


# ── new tools ────────────────────────────────────────────────────────────

NEW = [
    # runtime     program     what a call prints
    ("python",    "python3",  '{"greeting":"Hello, Bo!"}\n'),
    ("function",  "python3",  '{"greeting":"Hello, Bo!"}\n'),
    ("bash",      "bash",     "Hello, Bo!\n"),
    ("node",      "node",     '{"greeting":"Hello, Bo!"}\n'),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "program", "printed"), NEW)
@pytest.mark.usefixtures("trusted")
def test_a_new_tool_runs_at_once_where_the_project_is_trusted(
    runtime: str, program: str, printed: str, capsys: Capsys
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    assert main(["tools", "new", "team/greet", "--runtime", runtime]) == 0
    assert capsys.readouterr().out.endswith("call it:  plait call team/greet\n")
    assert main(["call", "team/greet", "-p", "name=Bo"]) == 0
    assert capsys.readouterr() == (printed, "")


@pytest.mark.usefixtures("trusted")
def test_a_new_http_tool_is_ready_to_be_sent(capsys: Capsys) -> None:
    assert main(["tools", "new", "page", "--runtime", "http"]) == 0
    capsys.readouterr()
    assert main(["call", "page", "-p", "page=a b", "--dry-run"]) == 0
    assert "request GET https://example.org/a%20b\n" in capsys.readouterr().out


def test_a_new_tool_does_not_bring_trust_to_what_was_there_before(
    project: Path, capsys: Capsys
) -> None:
    assert main(["tools", "new", "mine", "--runtime", "function"]) == 0
    assert f"it runs after you trust it:  plait trust {project}\n" in capsys.readouterr().out
    assert main(["call", "mine"]) == 3


@pytest.mark.usefixtures("home")
def test_the_first_tool_of_a_project_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["tools", "new", "mine", "--runtime", "function"]) == 0
    assert main(["call", "mine"]) == 0
    assert capsys.readouterr().out.endswith('{"greeting":"Hello, world!"}\n')


BAD = [
    # arguments                                      the message
    (["new", "x"],                                   "plait tools new: --runtime is missing; runtimes: python, function, bash, node, http\n"),
    (["new", "x", "--runtime", "pyton"],             "there is no runtime 'pyton'\nfix: did you mean 'python'?"),
    (["new", "../x", "--runtime", "bash"],           "'../x' is not a tool id\n"),
    (["show"],                                       "plait tools show: ID is missing\n"),
    (["list", "x"],                                  "plait tools list takes no ID\n"),
    (["shwo", "x"],                                  "there is no action 'shwo'\nfix: did you mean 'show'?"),
    (["show", "team/reprot"],                        "there is no tool 'team/reprot'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD)
@pytest.mark.usefixtures("trusted")
def test_bad_input_is_refused(arguments: list[str], message: str, capsys: Capsys) -> None:
    assert main(["tools", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_new_tool_is_never_written_over_another(trusted: Path, capsys: Capsys) -> None:
    file = trusted / ".ai" / "tools" / "team" / "report.py"
    before = file.read_bytes()
    for runtime in ("python", "bash"):  # the same file, and another one of the same id
        assert main(["tools", "new", "team/report", "--runtime", runtime]) == 2
        assert capsys.readouterr().err == (
            f"{file}: there is a tool 'team/report' already\nfix: choose another name\n"
        )
    assert file.read_bytes() == before
    assert [it.name for it in file.parent.iterdir()] == ["report.py"]


# ── another language ─────────────────────────────────────────────────────

HOW_TO = Path(__file__).parent.parent.parent / "docs" / "tools.md"
STAND_IN = '#!/bin/sh\nfor word; do case $word in */greet.*) ;; *) echo "$word";; esac; done\ncat\n'


@pytest.mark.parametrize(
    ("program", "comment", "words"),
    [
        ("ruby", "#", ["--project-path", "PROJECT"]),
        ("go", "//", ["run", "--project-path", "PROJECT"]),
    ],
)
def test_the_runtime_of_the_documentation_adds_a_language_with_one_file(
    program: str,
    comment: str,
    words: list[str],
    trusted: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    """A stand-in for the interpreter shows what it is started with; the runtime is the page's own text."""
    blocks = HOW_TO.read_text().split("```yaml\n")[1:]
    (runtime,) = [block.split("```")[0] for block in blocks if f"binary: {program}," in block]
    tools = trusted / ".ai" / "tools"
    (tools / "runtimes").mkdir()
    (tools / "runtimes" / f"{program}.yaml").write_text(runtime)
    extension = {"ruby": ".rb", "go": ".go"}[program]
    (tools / f"greet{extension}").write_text(f"{comment} executor_id: runtimes/{program}\n")
    (trusted / "bin").mkdir()
    (trusted / "bin" / program).write_text(STAND_IN)
    (trusted / "bin" / program).chmod(0o755)
    monkeypatch.setenv("HOME", str(trusted / "another"))  # another environment is another toolbox
    monkeypatch.setenv("PATH", f"{trusted / 'bin'}:/usr/bin:/bin")
    assert main(["call", "greet", "-p", "name=Ada"]) == 0
    expected = [*(word.replace("PROJECT", str(trusted)) for word in words), '{"name":"Ada"}']
    assert capsys.readouterr().out.splitlines() == expected


def test_a_circle_is_seen_in_the_table_and_by_verify(trusted: Path, capsys: Capsys) -> None:
    for name, executor in (("a", "b"), ("b", "a")):
        (trusted / ".ai" / "tools" / f"{name}.yaml").write_text(
            f"version: '1'\nexecutor_id: {executor}\n"
        )
    assert main(["tools"]) == 2
    shown = capsys.readouterr()
    assert "cannot be used: the chain runs in a circle: a → b → a" in shown.out
    assert shown.err == "2 tools cannot be used: a, b\n"
    assert main(["verify"]) == 2
    assert "the chain runs in a circle: a → b → a" in capsys.readouterr().err
