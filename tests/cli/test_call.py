"""`plait call`: what goes where, which exit code, and what a dry run shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
SECRET = "hunter2-hunter2"


def tool(project: Path, name: str, text: str) -> None:
    path = project / ".ai" / "tools" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def function(body: str) -> str:
    return f'__executor_id__ = "core/runtimes/python/function"\n\ndef execute(params, project_path):\n    {body}\n'


def script(header: str, body: str) -> str:
    return f"#!/bin/bash\n# executor_id: core/runtimes/bash/bash\n{header}{body}\n"


# ── results ──────────────────────────────────────────────────────────────

DATA = [
    # what the tool gives         what is printed
    ("return {'a': [1, 'é']}",    '{"a":[1,"é"]}\n'),
    ("return 'plain'",            "plain\n"),
    ("return 'a line\\n'",        "a line\n"),
    ("return ''",                 ""),
    ("return 3",                  "3\n"),
    ("return None",               "null\n"),
    ("print('noise'); return 1",  "1\n"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "printed"), DATA)
def test_text_is_printed_as_it_is_and_anything_else_as_json(
    body: str, printed: str, trusted: Path, capsys: Capsys
) -> None:
    tool(trusted, "t.py", function(body))
    assert main(["call", "t"]) == 0
    assert capsys.readouterr() == (printed, "")


CONTROLS = [
    # what the tool gives                              what a terminal gets
    ("return 'a\\x1b]0;evil\\x07\\x9b2J\\tb\\n'",      "a\\u001b]0;evil\\u0007\\u009b2J\tb\r\n"),
    ("return {'a': '\\x1b[2J\\x9b'}",                  '{"a":"\\u001b[2J\\u009b"}\r\n'),
    ("return 'a\\u202eb\\r'",                          "a\\u202eb\\u000d\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "printed"), CONTROLS)
def test_what_a_tool_gives_cannot_drive_a_terminal(body: str, printed: str, trusted: Path) -> None:
    tool(trusted, "t.py", function(body))
    master, slave = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "plait", "call", "t"], stdout=slave, timeout=60, check=False
    )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert (done.returncode, shown) == (0, printed)
    piped = subprocess.run(
        [sys.executable, "-m", "plait", "call", "t"], capture_output=True, timeout=60
    )
    assert ("\x9b" in piped.stdout.decode()) == ("009b" in printed)


def test_what_a_tool_printed_beyond_the_limits_is_reported(
    trusted: Path, home: Path, capsys: Capsys
) -> None:
    config = "version: '1'\nexecutor_id: core/primitives/subprocess\nconfig: {{command: sh, max_output: 9, args: [-c, '{}']}}\n"
    tool(trusted, "out.yaml", config.format("seq 100"))
    tool(trusted, "err.yaml", config.format("seq 100 >&2; echo ok"))
    assert main(["call", "out"]) == 1
    folder = home / ".ai" / "cache" / "output"
    [first] = folder.iterdir()
    assert capsys.readouterr() == (
        "",
        f"'out' failed (exit code 0): it printed more than 9 bytes; all of it is in {first} "
        "(raise config.max_output, or let it print less)\n",
    )
    assert main(["call", "err"]) == 0
    [second] = set(folder.iterdir()) - {first}
    reported = f"note: it wrote more to standard error than is kept; all of it is in {second}\n"
    assert capsys.readouterr() == ("ok\n", reported)


FAILURES = [
    # the tool                             stdout                                  stderr
    (function("raise ValueError('no')"),   "",                                     "'t' failed: ValueError: no"),
    (function("return {'success': False, 'error': 'out of ink'}"), "",             "'t' failed: out of ink\n"),
    (function("return {'success': False, 'error': 'out of ink', 'pages': 3}"), '{"pages":3}\n', "'t' failed: out of ink\n"),
    (function("return {'success': False, 'pages': 3}"), '{"success":false,"pages":3}\n', "'t' failed: the tool reports"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "out", "err"), FAILURES)
def test_a_tool_that_fails_says_why_on_stderr_and_ends_with_1(
    code: str, out: str, err: str, trusted: Path, capsys: Capsys
) -> None:
    tool(trusted, "t.py", code)
    assert main(["call", "t"]) == 1
    printed = capsys.readouterr()
    assert printed.out == out
    assert printed.err.startswith(err)


def test_a_script_that_fails_keeps_its_output_and_names_its_exit_code(
    trusted: Path, capsys: Capsys
) -> None:
    tool(trusted, "t.sh", script("", "echo half; echo 'no paper' >&2; exit 7"))
    assert main(["call", "t"]) == 1
    assert capsys.readouterr() == ("half\n", "'t' failed (exit code 7): no paper\n")


@pytest.mark.parametrize("status", [0, 1])
def test_what_is_printed_shows_no_secret_that_the_tool_was_given(
    status: int, trusted: Path, capsys: Capsys
) -> None:
    (trusted / ".env").write_text(f"PRINTER_TOKEN={SECRET}\n")
    header = "# env_config: {passes: [PRINTER_TOKEN]}\n"
    body = f'echo "at $PRINTER_TOKEN"; echo -n $PRINTER_TOKEN | base64; echo "no $PRINTER_TOKEN" >&2; exit {status}'
    tool(trusted, "t.sh", script(header, body))
    assert main(["call", "t"]) == status
    error = "'t' failed (exit code 1): no ***\n" if status else ""
    assert capsys.readouterr() == ("at ***\n***\n", error)
    assert main(["call", "t", "--json"]) == status
    record = json.loads(capsys.readouterr().out)
    assert (record["data"], record["metadata"]["stderr"]) == ("at ***\n***\n", "no ***\n")


def test_a_harmless_value_of_a_dotenv_file_is_used_in_arguments_and_not_masked(
    trusted: Path, capsys: Capsys
) -> None:
    (trusted / ".env").write_text("PORT=8080\nMODE=test\n")
    tool(
        trusted,
        "t.yaml",
        "version: '1'\nexecutor_id: core/primitives/subprocess\nconfig: {command: echo, args: ['${PORT}', test]}\n",
    )
    assert main(["call", "t"]) == 0
    assert capsys.readouterr().out == "8080 test\n"


@pytest.mark.parametrize("words", ["no paper", '{"paper": 0}'])
def test_what_a_tool_gives_as_its_reason_is_shown_once(
    words: str, trusted: Path, capsys: Capsys
) -> None:
    tool(trusted, "t.sh", script("", f"echo '{words}'; echo '{words}' >&2; exit 7"))
    assert main(["call", "t"]) == 1
    assert capsys.readouterr() == ("", f"'t' failed (exit code 7): {words}\n")


@pytest.mark.usefixtures("trusted")
def test_json_is_the_whole_envelope(capsys: Capsys) -> None:
    assert main(["call", "team/report", "--params", '{"week": 46}', "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["status"], record["item_id"], record["data"]) == (
        "success", "team/report", {"week": 46, "name": "Ada"},
    )  # fmt: skip
    assert [element["item_id"] for element in record["chain"]] == [
        "team/report", "core/runtimes/python/function", "core/primitives/function",
    ]  # fmt: skip
    assert record["metadata"]["duration_ms"] >= 0


def test_json_of_a_failure_is_an_envelope_too(trusted: Path, capsys: Capsys) -> None:
    tool(trusted, "t.py", function("return {'success': False, 'error': 'out of ink'}"))
    assert main(["call", "t", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["status"], record["error"]) == ("error", "out of ink")


def test_the_caller_can_shorten_the_time_of_a_tool(trusted: Path, capsys: Capsys) -> None:
    tool(trusted, "t.sh", script("", "sleep 30"))
    assert main(["call", "t", "--timeout", "0.2"]) == 1
    assert "took longer than 0.2 s" in capsys.readouterr().err
    assert main(["call", "t", "--timeout", "0.2", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"]["timeout"] == 0.2
    assert main(["call", "t", "--timeout", "soon"]) == 2


# ── parameters ───────────────────────────────────────────────────────────

PARAMS = [
    # arguments                                                what the tool is given
    (["-p", "week=46"],                                        {"week": 46, "name": "Ada"}),
    (["-p", "week=46", "-p", "name=1.10"],                     {"week": 46, "name": "1.10"}),
    (["-p", "week=46", "-p", "name=a=b"],                      {"week": 46, "name": "a=b"}),
    (["-p", "week=46", "-p", "name="],                         {"week": 46, "name": ""}),
    (["-p", "week:=46"],                                       {"week": 46, "name": "Ada"}),
    (["--params", '{"week": 1}', "-p", "week=2"],              {"week": 2, "name": "Ada"}),
    (["-i", "week=46", "--input", "name=x"],                   {"week": 46, "name": "x"}),
    (["-i", "@p.json"],                                        {"week": 5, "name": "file"}),
    (["-i", "week=7", "-i", "@p.json"],                        {"week": 7, "name": "file"}),
    (["-i", "week:=7", "-i", "@p.yaml"],                       {"week": 7, "name": "yaml"}),
    (["--params-file", "p.json"],                              {"week": 5, "name": "file"}),
    (["--params-file", "p.json", "--params", '{"week": 6}'],   {"week": 6, "name": "file"}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "given"), PARAMS)
def test_parameters_are_typed_by_the_schema_and_the_nearest_wins(
    arguments: list[str], given: object, trusted: Path, capsys: Capsys
) -> None:
    (trusted / "p.json").write_text('{"week": 5, "name": "file"}')
    (trusted / "p.yaml").write_text("week: 5\nname: yaml\n")
    assert main(["call", "team/report", *arguments]) == 0
    assert json.loads(capsys.readouterr().out) == given


def test_without_a_schema_a_parameter_is_text(trusted: Path, capsys: Capsys) -> None:
    tool(trusted, "t.py", function("return params"))
    assert main(["call", "t", "-p", "a=1", "-p", "b:=[1]", "-p", "c=true"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": "1", "b": [1], "c": "true"}


@pytest.mark.usefixtures("trusted")
def test_parameters_come_from_standard_input_when_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plait", "call", "team/report", "-i", "@-"],
        input=b'{"week": 9}', capture_output=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"week": 9, "name": "Ada"}


BAD = [
    # arguments                             exit  the message
    ([],                                    2,    "plait call: TOOL is missing\nfix: see plait call --help\n"),
    (["team/report", "-p", SECRET],         2,    "-i needs KEY=VALUE, KEY:=JSON or @FILE\nfix: for example -i folder=src\n"),
    (["team/report", "-i", "a=1", "-p", "a=2"], 2, "-i gives 'a' twice\nfix: give a list as JSON: -i a:='[1, 2]'\n"),
    (["team/report", "-i", "@nowhere.json"], 2,   "nowhere.json: this file cannot be read: No such file or directory\nfix: check the path\n"),
    (["team/report", "--params", f'["{SECRET}"]'], 2, "--params: this must be a map of names\nfix: for example {\"name\": \"world\"}\n"),
    (["team/report", "--project", "nowhere"], 2,  "nowhere: there is no such folder\nfix: check --project\n"),
    (["../x"],                              2,    "'../x' is not a tool id\n"),
    (["team/reprot"],                       2,    "there is no tool 'team/reprot'\nfix: did you mean 'team/report'?"),
    (["core/primitives/subprocess"],        2,    "'core/primitives/subprocess' is a primitive, not a tool\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "message"), BAD)
@pytest.mark.usefixtures("trusted")
def test_bad_input_is_refused_before_anything_runs(
    arguments: list[str], status: int, message: str, capsys: Capsys
) -> None:
    assert main(["call", *arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert SECRET not in printed.err


@pytest.mark.usefixtures("trusted")
def test_all_violations_of_a_schema_are_reported_at_once_with_the_given_value_and_the_nearest_name(
    project: Path, capsys: Capsys
) -> None:
    given = ["-i", "week=46a", "-i", "name:=1", "-i", f"wek={SECRET}"]
    assert main(["call", "team/report", *given]) == 2
    stderr = capsys.readouterr().err
    place, see = f"{project}/.ai/tools/team/report.py", "look at 'plait tools show team/report'"
    assert sorted(stderr.splitlines()) == sorted(
        [
            f"{place}: 'team/report': week: must be an integer, got \"46a\"",
            f"fix: {see} for its parameters",
            f"{place}: 'team/report': name: must be a string, got 1",
            f"fix: {see} for its parameters",
            f"{place}: 'team/report': 'wek' is not a parameter",
            f"fix: did you mean 'week'? {see} for its parameters",
        ]
    )


@pytest.mark.usefixtures("trusted")
def test_an_error_is_json_when_json_is_asked_for(capsys: Capsys) -> None:
    assert main(["call", "team/reprot", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown-tool"


# ── dry run ──────────────────────────────────────────────────────────────

ENVIRONED = """\
executor_id: core/primitives/subprocess
env_config:
  env: {REPORT_LANG: en, TOKEN: "${TEAM_TOKEN}"}
config:
  command: /bin/echo
  args: ["it's", "{week}"]
  input_data: "{params_json}"
  timeout: 5
"""


def test_a_dry_run_shows_what_would_run_and_runs_nothing(trusted: Path, capsys: Capsys) -> None:
    tool(trusted, "team/echo.yaml", ENVIRONED)
    (trusted / ".env").write_text(f"TEAM_TOKEN={SECRET}\n")
    assert main(["call", "team/echo", "-p", "week=46", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert SECRET not in printed.out
    lines = dict(line.split(None, 1) for line in printed.out.splitlines())
    assert (
        lines["chain"]
        == "team/echo → core/primitives/subprocess      space ok, i/o ok, versions ok"
    )
    assert lines["argv"] == "/bin/echo 'it'\"'\"'s' 46"
    assert lines["cwd"] == str(trusted)
    assert lines["stdin"] == '{"week":"46"}'
    assert lines["limits"].startswith("5 seconds")
    assert "REPORT_LANG (tool)" in lines["env"]
    assert "TOKEN *** (.env)" in lines["env"]


def test_a_dry_run_of_a_request_hides_its_credentials(trusted: Path, capsys: Capsys) -> None:
    tool(
        trusted,
        "team/get.yaml",
        "executor_id: core/primitives/http_client\n"
        "env_config: {passes: [API_TOKEN]}\n"
        "config:\n  method: GET\n  url: https://h.example/{page}\n  auth: {type: bearer, token: '${API_TOKEN}'}\n",
    )
    (trusted / ".env").write_text(f"API_TOKEN={SECRET}\n")
    assert main(["call", "team/get", "-p", "page=a/b", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "request GET https://h.example/a%2Fb\n" in printed
    assert "header  Authorization: ***\n" in printed
    assert SECRET not in printed


def test_a_dry_run_of_a_function_names_the_function_and_its_file(
    trusted: Path, capsys: Capsys
) -> None:
    assert main(["call", "team/report", "-p", "week=46", "--dry-run"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    file = trusted / ".ai" / "tools" / "team" / "report.py"
    assert lines["calls"] == f"execute(params, project_path) of {file}"
    assert lines["params"] == '{"week":46,"name":"Ada"}'


def test_the_record_of_a_dry_run_is_the_one_of_python(trusted: Path, capsys: Capsys) -> None:
    import plait

    assert main(["call", "team/report", "-p", "week=46", "--dry-run", "--json"]) == 0
    record = plait.call("team/report", {"week": 46}, project=trusted, dry_run=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(record))


# ── trust ────────────────────────────────────────────────────────────────


def test_an_untrusted_tool_does_not_run_and_the_command_to_type_is_named(
    project: Path, capsys: Capsys
) -> None:
    tool(project, "t.py", function("open('ran', 'w')"))
    assert main(["call", "t"]) == 3
    assert capsys.readouterr() == (
        "",
        f"{project}: this project brings a file that nobody you trust has signed: t.py (it is not signed)\n"
        f"fix: look at what it brings, then type: plait trust {project}\n",
    )
    assert not (project / "ran").exists()


@pytest.mark.usefixtures("project")
def test_a_terminal_that_is_only_half_of_one_is_not_asked() -> None:
    """Standard input is a terminal, standard error is not: the question would be invisible."""
    master, slave = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "plait", "call", "team/report", "-p", "week=1"],
        stdin=slave, capture_output=True, timeout=60,
    )  # fmt: skip
    os.close(master)
    os.close(slave)
    assert done.returncode == 3
    assert b"show" not in done.stderr


@pytest.mark.usefixtures("project")
def test_trust_may_be_given_beforehand_and_lasts(capsys: Capsys) -> None:
    assert main(["call", "team/report", "-p", "week=1", "--trust"]) == 0
    assert main(["call", "team/report", "-p", "week=1"]) == 0
    capsys.readouterr()
    assert main(["trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["projects"][0]["origin"] == "--trust"


@pytest.mark.usefixtures("home")
def test_trust_says_nothing_about_a_folder_that_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["call", "core/file/list", "--trust"]) == 0
    capsys.readouterr()
    main(["trust", "--json"])
    assert json.loads(capsys.readouterr().out)["projects"] == []


@pytest.mark.usefixtures("project")
def test_no_variable_of_the_environment_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAIT_TRUST", "TRUST", "CI", "PLAIT_YES"):
        monkeypatch.setenv(name, "1")
    assert main(["call", "team/report", "-p", "week=1"]) == 3


# ── what a call loads ────────────────────────────────────────────────────


def test_a_call_of_a_script_does_not_load_what_only_shell_text_needs(trusted: Path) -> None:
    tool(trusted, "t.py", '__executor_id__ = "core/runtimes/python/script"\nprint(1)\n')
    code = "import sys; from plait.cli import main; main(['call', 't']); print('plait.template.shell.rules' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"1\nFalse\n"


@pytest.mark.usefixtures("trusted")
def test_a_call_loads_neither_bundles_nor_http_nor_mcp_nor_what_only_errors_need() -> None:
    code = (
        "import sys; from plait.cli import main; main(['call', 'team/report', '-p', 'week=1']);"
        "print([n for n in ('importlib.metadata', 'httpx2', 'mcp', 'asyncio', 'difflib', 'subprocess', 'plait.lang')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_a_variable_of_the_loader_comes_from_dotenv_only_where_it_is_allowed(
    trusted: Path, capsys: Capsys
) -> None:
    (trusted / ".env").write_text("PYTHONPATH=/odd/place\n")
    tool(
        trusted,
        "t.sh",
        script(
            "# env_config:\n#   env:\n#     PYTHONPATH: ${PYTHONPATH:-none}\n", "echo $PYTHONPATH"
        ),
    )
    assert main(["call", "t"]) == 0
    assert "/odd/place" not in capsys.readouterr().out
    assert main(["call", "t", "--json", "--allow-env", "PYTHONPATH"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "refused_env" not in result["metadata"]
