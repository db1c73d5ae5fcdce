"""`plait trust`, `keys`, `sign` and `verify`: trust is given, shown and taken back."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import select
import shlex
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
TINY = Path(__file__).parent.parent / "data" / "mcp" / "tiny.py"
CALL = ("call", "team/report", "-p", "week=46")
PASSPHRASE = "open sesame\n"
LIMIT = 60.0
REPORT = '{"week":46,"name":"Ada"}\n'


def output(capsys: Capsys, *arguments: str, status: int = 0) -> str:
    """What a command prints, on both streams."""
    assert main(list(arguments)) == status
    printed = capsys.readouterr()
    return printed.out + printed.err


# ── the question, on a terminal ──────────────────────────────────────────


def on_a_terminal(*arguments: str, answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """The exit code, and what appears on the terminal of a person who gives each answer to its question."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", *arguments], stdin=slave, stdout=slave, stderr=slave,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"}, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    try:
        shown = ""
        for question, answer in answers:
            shown = read_until(master, shown, question)
            os.write(master, answer.encode())
        shown = read_until(master, shown, None)
        return process.wait(timeout=LIMIT), shown.replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, shown: str, question: str | None) -> str:
    """What is shown until a question appears that was not there before; None: until the terminal is left."""
    known = len(shown)
    while question is None or question not in shown[known:]:
        assert select.select([master], [], [], LIMIT)[0], f"nothing comes after {shown!r}"
        try:
            shown += os.read(master, 65536).decode()
        except OSError:  # Linux says EIO when the last writer of a terminal has gone
            assert question is None, f"it ended without the question: {shown!r}"
            return shown
    return shown


ASKED = "trust it? y / N / show"


def test_a_person_is_asked_once_can_look_and_says_yes(project: Path) -> None:
    (project / ".env").write_text("A=1\n")
    status, shown = on_a_terminal(*CALL, answers=[(ASKED, "show\n"), (ASKED, "y\n")])
    assert status == 0
    assert f"this project brings 1 tool, .env, signed by nobody you trust: {project}\n" in shown
    assert shown.count(ASKED) == 2
    assert "  .ai/tools/team/report.py   ← about to run\n" in shown
    assert "  .env\n" in shown
    assert shown.endswith(REPORT)
    again, shown = on_a_terminal(*CALL, answers=[])
    assert (again, "trust it?" in shown) == (0, False)


@pytest.mark.parametrize(
    "typed", ["n\n", "\n", "yep\n", "\x04"], ids=["n", "nothing", "another word", "end of input"]
)
def test_anything_but_yes_is_no_and_ends_with_3(typed: str, project: Path, capsys: Capsys) -> None:
    status, shown = on_a_terminal(*CALL, answers=[(ASKED, typed)])
    assert status == 3
    assert f"fix: look at what it brings, then type: plait trust {project}\n" in shown
    assert json.loads(output(capsys, "trust", "--json"))["projects"] == []


def test_a_name_that_would_drive_the_terminal_is_shown_harmless(project: Path) -> None:
    (project / ".ai" / "tools" / "x\x1b[2J.py").write_text("")
    _, shown = on_a_terminal(*CALL, answers=[(ASKED, "show\n"), (ASKED, "n\n")])
    assert "\x1b[2J" not in shown


# ── projects ─────────────────────────────────────────────────────────────


def test_a_project_is_trusted_seen_and_forgotten(project: Path, capsys: Capsys) -> None:
    assert output(capsys, "trust").splitlines()[0] == (
        f"here  {project}: not trusted; it has 1 file; trust it: plait trust {project}"
    )
    assert output(capsys, "trust", ".") == (
        f"trusted: {project}\n  .ai/tools/team/report.py\nto take it back:  plait trust remove .\n"
    )
    assert output(capsys, *CALL) == REPORT
    status = output(capsys, "trust", "status")
    assert status.splitlines()[0] == f"here  {project}: trusted"
    assert re.search(rf"^  {project}   since \S+ \(plait trust\)$", status, re.MULTILINE)
    assert output(capsys, "trust", "remove", ".") == f"no longer trusted: {project}\n"
    assert main(list(CALL)) == 3


BAD = [
    (["trust", "nowhere"],       "there is no folder 'nowhere'\nfix: actions: status, remove, add, mcp, reset, run\n"),
    (["trust", "statsu"],        "there is no folder 'statsu'\nfix: did you mean 'plait trust status'? "),
    (["trust", "a", "b"],        "plait trust takes one folder\n"),
    (["trust", "mcp", "time"],   "plait trust mcp takes two arguments\n"),
    (["trust", "remove", "."],   "PROJECT: this project was not trusted\n"),
    (["trust", ".ai"],           "PROJECT/.ai: this folder has no files that need trust\n"),
    (["trust", "reset", "x/y"],  "no version of 'x/y' is recorded\n"),
    (["trust", "add", "no"],     "no: this file cannot be read: No such file or directory\n"),
    (["trust", "mcp", "s", "t"], "no tool here calls 't' of the MCP server 's'\n"),
    (["keys", "shwo"],           "there is no action 'shwo'\nfix: did you mean 'show'? "),
    (["keys", "revoke"],         "plait keys revoke: NAME is missing\n"),
    (["keys", "revoke", "12"],   "a fingerprint has 64 digits; give at least its first 8\n"),
    (["keys", "show", "12345678"], "no trusted keys begin with '12345678'\n"),
    (["keys", "export"],         "HOME/.ai/keys/signing.key: there is no key 'signing'\nfix: make one: plait keys new\n"),
    (["sign"],                   "name what to sign, or give --all\n"),
    (["sign", "team/report"],    "HOME/.ai/keys/signing.key: there is no key 'signing'\nfix: make one: plait keys new\n"),
    (["sign", "team/reprot"],    "there is no tool 'team/reprot'\n"),
    (["sign", "/etc/hostname"],  "/etc/hostname: this file has no id: it is outside the spaces\n"),
    (["verify", "team/reprot"],  "there is no tool 'team/reprot'\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"), BAD, ids=lambda it: " ".join(it) if isinstance(it, list) else ""
)
def test_bad_input_is_refused(
    arguments: list[str], error: str, project: Path, home: Path, capsys: Capsys
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(error.replace("PROJECT", str(project)).replace("HOME", str(home)))


def test_a_project_that_holds_the_user_space_cannot_vouch_for_itself(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("USER_SPACE", str(project / "inside"))
    assert "cannot vouch for itself" in output(capsys, "trust", ".", status=3)
    assert main([*CALL, "--trust"]) == 3


# ── keys and signatures ──────────────────────────────────────────────────


def test_a_signed_tool_runs_without_trusting_its_project(project: Path, capsys: Capsys) -> None:
    made = output(capsys, "keys", "new")
    fingerprint = re.findall(r"^fingerprint  ([0-9a-f]{64})$", made, re.MULTILINE)[0]
    assert "made the key 'signing' (without a passphrase; only you can read the file)\n" in made
    assert output(capsys, "sign", "team/report") == f"signed {project}/.ai/tools/team/report.py\n"
    assert output(capsys, *CALL) == REPORT
    assert f"you ({fingerprint[:4]}…)" in output(capsys, "tools")
    assert f"team/report  1.2.0, project: signed by you ({fingerprint[:4]}…)\n" in output(
        capsys, "tools", "show", "team/report"
    )
    assert fingerprint in output(capsys, "keys")


def test_a_changed_file_is_refused_until_it_is_signed_again(trusted: Path, capsys: Capsys) -> None:
    output(capsys, "keys", "new")
    file = trusted / ".ai" / "tools" / "team" / "report.py"
    output(capsys, "sign", "--all")
    output(capsys, *CALL)
    file.write_text(file.read_text() + "# changed\n")
    refusal = f"fix: restore the file, or sign it as it is now: plait sign {file}\n"
    assert output(capsys, *CALL, status=3) == (
        f"{file}: 'team/report' may not run: its bytes are not those that were signed\n{refusal}"
    )
    assert output(capsys, "verify", "team/report", status=3) == (
        f"✗ team/report  project: its bytes are not those that were signed\n  {refusal}"
    )
    # Within the same second: the new signature must still be seen to be the newer one.
    assert output(capsys, "sign", str(file)) == f"signed {file}\n"
    assert output(capsys, *CALL) == REPORT


def test_an_older_version_runs_again_only_after_a_reset(project: Path, capsys: Capsys) -> None:
    output(capsys, "keys", "new")
    file = project / ".ai" / "tools" / "team" / "report.py"
    output(capsys, "sign", "team/report")
    old = file.read_bytes()
    file.write_bytes(old + b"# newer\n")
    output(capsys, "sign", "team/report")
    output(capsys, *CALL)
    file.write_bytes(old)
    refused = output(capsys, *CALL, status=3)
    assert "a newer version of it ran here before" in refused
    assert refused.endswith("plait trust reset team/report\n")
    assert (
        output(capsys, "trust", "reset", "team/report")
        == "any signed version of 'team/report' may run again\n"
    )
    assert output(capsys, *CALL) == REPORT


def test_signing_keeps_the_mode_and_what_cannot_hold_a_comment_is_signed_beside(
    project: Path, capsys: Capsys
) -> None:
    output(capsys, "keys", "new")
    tools = project / ".ai" / "tools"
    (tools / "data.json").write_text("{}")
    (tools / "notes.txt").write_text("not a tool")
    script = tools / "s.sh"
    script.write_text("#!/bin/bash\n# executor_id: core/runtimes/bash/bash\necho $0\n")
    script.chmod(0o755)
    assert output(capsys, "sign", "--all").count("signed ") == 4
    assert script.stat().st_mode & 0o777 == 0o755
    assert script.read_text().startswith("#!/bin/bash\n# plait:signed:")
    assert (tools / "data.json").read_text() == "{}"
    assert (tools / "data.json.sig").read_text().startswith("plait:signed:")
    assert (tools / "notes.txt.sig").exists()  # it comes along with the tools beside it
    assert main(["call", "s"]) == 0


@pytest.mark.usefixtures("project")
def test_verify_speaks_of_all_tools_and_ends_with_3_if_one_may_not_run(capsys: Capsys) -> None:
    printed = output(capsys, "verify", status=3)
    assert printed.startswith("✗ team/report  project: it is not signed\n")
    assert re.search(
        r"^✓ \d+ files of the installation are as they were installed$", printed, re.MULTILINE
    )
    output(capsys, "trust", ".")
    assert output(capsys, "verify").startswith(
        "✓ team/report  project: you trusted this project; it is not signed\n"
    )
    record = json.loads(output(capsys, "verify", "team/report", "--json"))
    assert [(it["item_id"], it["allowed"], it["by"]) for it in record] == [
        ("team/report", True, "project")
    ]


def test_a_project_may_demand_signatures(trusted: Path, capsys: Capsys) -> None:
    (trusted / ".ai" / "plait.yaml").write_text("trust: signed\n")
    assert "demands signatures" in output(capsys, *CALL, status=3)
    assert "but this project requires signatures" in output(capsys, "trust", ".")
    output(capsys, "keys", "new")
    output(capsys, "sign", "--all")
    assert output(capsys, *CALL) == REPORT


def test_a_lock_is_written_held_to_and_written_anew(trusted: Path, capsys: Capsys) -> None:
    held = (*CALL, "--locked")
    assert output(capsys, *held, status=2) == (
        f"{trusted}/plait.lock: this project has no lock\nfix: write it: plait tools lock\n"
    )
    (trusted / ".ai" / "config").mkdir()
    (trusted / ".ai" / "config" / "site.yaml").write_text("a: 1\n")
    assert output(capsys, "tools", "lock") == (
        f"wrote {trusted}/plait.lock: 2 files\nuse it:  plait call --locked …, plait verify --locked\n"
    )
    assert output(capsys, *held) == REPORT
    assert "✓ team/report  project: you trusted this project" in output(
        capsys, "verify", "--locked"
    )

    tool = trusted / ".ai" / "tools" / "team" / "report.py"
    tool.write_text(tool.read_text() + "# one more line\n")
    (trusted / ".ai" / "config" / "site.yaml").unlink()
    changed = "it has changed since plait.lock was written"
    assert output(capsys, *held, status=3).startswith(
        f"{tool}: 'team/report' may not run: {changed}\n"
    )
    assert output(capsys, *held, "--dry-run", status=3).startswith(
        f"{tool}: 'team/report' may not run:"
    )
    assert output(capsys, *CALL) == REPORT
    shown = output(capsys, "verify", "--locked", status=3)
    assert f"✗ team/report  project: {changed}\n" in shown
    assert f"✗ {trusted}/.ai/config/site.yaml: it has gone since plait.lock was written\n" in shown
    records = json.loads(output(capsys, "verify", "--locked", "--json", status=3))
    assert [record["path"] for record in records if record.get("allowed") is False] == [
        str(tool),
        f"{trusted}/.ai/config/site.yaml",
    ]
    output(capsys, "tools", "lock")
    assert output(capsys, *held) == REPORT


def test_there_is_nothing_to_lock_where_there_are_no_tools(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert "there is nothing to lock" in output(capsys, "tools", "lock", status=2)
    assert list(empty.iterdir()) == list(home.iterdir()) == []


@pytest.mark.usefixtures("project")
def test_a_key_goes_from_one_person_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    output(capsys, "keys", "new")
    output(capsys, "sign", "--all")
    file = tmp_path / "ada.key.json"
    file.write_text(output(capsys, "keys", "export", "--owner", "Ada"))

    monkeypatch.setenv("USER_SPACE", str(tmp_path / "bob"))
    assert "a key you do not trust" in output(capsys, *CALL, status=3)
    assert "for the ids other/* in the space project" in output(
        capsys, "trust", "add", str(file), "--ids", "other/*", "--space", "project"
    )
    assert "Ada's key is not trusted for this id" in output(capsys, *CALL, status=3)
    assert output(capsys, "keys", "add", str(file), "--ids", "team/*").startswith(
        "trusted: Ada's key "
    )
    assert output(capsys, *CALL) == REPORT
    assert "Ada (" in output(capsys, "tools")

    fingerprint = json.loads(file.read_text())["fingerprint"]
    assert output(capsys, "keys", "revoke", fingerprint[:12], "--reason", "lost").startswith(
        "revoked: Ada's key "
    )
    assert "which was revoked" in output(capsys, *CALL, status=3)
    assert "revoked " in output(capsys, "keys", "show", fingerprint[:12])
    assert main(["keys", "add", str(file)]) == 3  # there is no way back


@pytest.mark.usefixtures("project")
def test_a_new_key_takes_the_place_of_an_old_one_for_everybody_who_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    home = os.environ["USER_SPACE"]
    output(capsys, "keys", "new")
    file, statement = tmp_path / "ada.key.json", tmp_path / "ada.rotation.json"
    file.write_text(output(capsys, "keys", "export", "--owner", "Ada"))
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "bob"))
    output(capsys, "keys", "add", str(file))

    monkeypatch.setenv("USER_SPACE", home)
    assert main(["keys", "rotate"]) == 0
    printed = capsys.readouterr()
    statement.write_text(printed.out)
    assert "the old key is kept as 'signing-until-" in printed.err
    output(capsys, "sign", "--all")
    assert output(capsys, *CALL) == REPORT

    monkeypatch.setenv("USER_SPACE", str(tmp_path / "bob"))
    assert main(list(CALL)) == 3
    capsys.readouterr()
    assert output(capsys, "keys", "add", str(statement)).startswith("Ada has a new key ")
    assert output(capsys, *CALL) == REPORT


def test_a_file_that_holds_no_key_is_not_trusted(project: Path, capsys: Capsys) -> None:
    for text in ('{"format": "plait.public-key.v1", "owner": "x"}', "[]", '{"public_key": "00"}'):
        (project / "k.json").write_text(text)
        assert "this file holds neither a public key nor a rotation" in output(
            capsys, "keys", "add", "k.json", status=2
        )
    assert json.loads(output(capsys, "keys", "--json")) == {"own": [], "trusted": []}


@pytest.mark.usefixtures("project")
def test_a_key_with_a_passphrase_is_opened_on_a_terminal_only(capsys: Capsys) -> None:
    status, shown = on_a_terminal(
        "keys", "new", answers=[("(empty: none)", PASSPHRASE), ("again", PASSPHRASE)]
    )
    assert (status, "closed with your passphrase" in shown) == (0, True)
    assert "sesame" not in shown
    assert "this key needs its passphrase" in output(capsys, "sign", "--all", status=2)
    status, _ = on_a_terminal("sign", "--all", answers=[("passphrase of", PASSPHRASE)])
    assert status == 0
    assert output(capsys, *CALL) == REPORT
    status, shown = on_a_terminal("sign", "--all", answers=[("passphrase of", "open simsim\n")])
    assert (status, "that is not the passphrase of this key" in shown) == (2, True)


def test_config_is_signed_with_the_tools_that_read_it(trusted: Path, capsys: Capsys) -> None:
    (trusted / ".ai" / "plait.yaml").write_text("trust: signed\n")
    config = trusted / ".ai" / "config" / "site.yaml"
    config.parent.mkdir()
    config.write_text("host: theirs\n")
    record = {
        "executor_id": "core/primitives/subprocess",
        "config": {"command": "cat", "input_data": "{params_json}"},
        "config_resolve": {"path": "site.yaml"},
    }
    (trusted / ".ai" / "tools" / "asking.yaml").write_text(json.dumps(record))
    output(capsys, "keys", "new")
    output(capsys, "sign", "asking")
    assert "'config/site' may not run: it is not signed" in output(
        capsys, "call", "asking", status=3
    )
    assert f"signed {config}\n" in output(capsys, "sign", "--all")
    assert output(capsys, "call", "asking") == '{"resolved_config":{"host":"theirs"}}\n'


@pytest.mark.usefixtures("project")
def test_a_system_file_is_not_signed(capsys: Capsys) -> None:
    output(capsys, "keys", "new")
    assert "belongs to the installation" in output(capsys, "sign", "core/shell", status=2)


# ── MCP ──────────────────────────────────────────────────────────────────


def test_a_tool_of_an_mcp_server_runs_after_it_was_approved(trusted: Path, capsys: Capsys) -> None:
    pytest.importorskip("mcp")
    record = {
        "executor_id": "core/runtimes/mcp/stdio",
        "config": {
            "server": {"name": "tiny", "command": sys.executable, "args": [str(TINY)]},
            "tool_name": "add",
        },
        "config_schema": {"type": "object", "required": ["a", "b"]},
    }
    (trusted / ".ai" / "tools" / "add.yaml").write_text(json.dumps(record))
    call = ("call", "add", "--params", '{"a": 1, "b": 2}')
    assert output(capsys, *call, status=3) == (
        "the tool 'add' of the MCP server 'tiny' has not been approved\n"
        "fix: look at it and approve it: plait trust mcp tiny add\n"
    )
    assert "did you mean tiny add?" in output(capsys, "trust", "mcp", "tiny", "ad", status=2)
    shown = output(capsys, "trust", "mcp", "tiny", "add")
    assert shown.startswith(f"tiny / add\n  server: {sys.executable} {TINY}\n  name:\n    add\n")
    assert '      "properties": {\n        "a": {\n          "title": "A",\n' in shown
    assert "  outputSchema:\n    {\n" in shown
    assert shown.endswith(
        "approved: if anything shown here changes, the tool is refused until you approve it again\n"
    )
    assert main(list(call)) == 0
    assert "3" in capsys.readouterr().out


def test_a_question_on_the_terminal_shows_what_it_is_about(
    trusted: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    server = {"name": "tiny", "command": sys.executable, "args": [str(TINY)]}
    record = {
        "executor_id": "core/runtimes/mcp/stdio",
        "config": {"server": server, "tool_name": "say"},
    }
    (trusted / ".ai" / "tools" / "say.yaml").write_text(json.dumps(record))
    monkeypatch.setattr("plait.cli.trust.is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert main(["trust", "mcp", "tiny", "say"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert '"text": {' in printed.err
    assert printed.err.endswith("approve it as it is? y / N  ")


def chosen_server(project: Path, **schema: Any) -> None:
    """A tool whose server is started with a parameter of the caller."""
    record = {
        "executor_id": "core/runtimes/mcp/stdio",
        "config": {
            "server": {"name": "tiny", "command": sys.executable, "args": [str(TINY), "{place}"]},
            "place": "in {zone}",
            "tool_name": "add",
        },
        "config_schema": {"type": "object", "properties": {"zone": {"type": "string", **schema}}},
    }
    (project / ".ai" / "tools" / "add.yaml").write_text(json.dumps(record))


def test_a_server_that_parameters_choose_is_approved_with_them(
    trusted: Path, capsys: Capsys
) -> None:
    pytest.importorskip("mcp")
    chosen_server(trusted)
    call = ("call", "add", "--params", """{"a": 1, "b": 2, "zone": "it's UTC"}""")
    refusal = output(capsys, *call, status=3)
    assert refusal == (
        "the tool 'add' of the MCP server 'tiny' has not been approved\n"
        "fix: look at it and approve it: "
        """plait trust mcp tiny add --params '{"zone":"it'"'"'s UTC"}'\n"""
    )
    typed = shlex.split(refusal.partition("approve it: plait ")[2])
    argument = """'in it'"'"'s UTC'"""
    assert output(capsys, *typed).startswith(
        f"tiny / add\n  server: {sys.executable} {TINY} {argument}\n"
    )
    assert main(list(call)) == 0
    assert "3" in capsys.readouterr().out
    # Of another value it is another server.
    output(capsys, "call", "add", "--params", '{"a": 1, "b": 2, "zone": "CET"}', status=3)


def test_an_approval_without_the_parameters_that_choose_the_server_says_which_they_are(
    trusted: Path, capsys: Capsys
) -> None:
    chosen_server(trusted)
    assert output(capsys, "trust", "mcp", "tiny", "add", status=2) == (
        "which server 'add' calls depends on its parameters: zone\n"
        "fix: give those that you want to approve: "
        """plait trust mcp tiny add --params '{"zone": …}'\n"""
    )
    assert "--params" in output(capsys, "trust", "mcp", "tiny", "add", "--params", "[1]", status=2)


def test_a_default_chooses_the_server_as_it_does_in_a_call(trusted: Path, capsys: Capsys) -> None:
    pytest.importorskip("mcp")
    chosen_server(trusted, default="UTC")
    assert f"  server: {sys.executable} {TINY} 'in UTC'\n" in output(
        capsys, "trust", "mcp", "tiny", "add"
    )
