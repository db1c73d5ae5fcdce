"""`plait sh`: bound values, the command's own output and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
HOSTILE = "'; touch canary; $(touch canary) `touch canary`\n\""


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_output_and_exit_code_are_the_commands_own(shell: str, capsys: Capsys) -> None:
    assert main(["sh", "echo ${x}; echo bad >&2; exit 3", "--values", '{"x": "a  b"}', "--shell", shell]) == 3
    assert capsys.readouterr() == ("a  b\n", "bad\n")


def test_a_hostile_value_is_only_printed(tmp_path: Path, capsys: Capsys) -> None:
    script = "printf %s ${x}; printf %s '${x}'; printf %s \"${x}\""
    assert main(["sh", script, "--values", json.dumps({"x": HOSTILE}), "--cwd", str(tmp_path)]) == 0
    assert capsys.readouterr().out == HOSTILE * 3
    assert list(tmp_path.iterdir()) == []


def test_show_prints_the_command_quoted_and_runs_nothing(tmp_path: Path, capsys: Capsys) -> None:
    script = "touch ran; echo ${x} ${cmd:touch ran-too}"
    assert main(["sh", script, "--values", '{"x": "it\'s"}', "--show", "--cwd", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("touch ran; echo 'it'\"'\"'s' ${cmd:touch ran-too}\n")
    assert list(tmp_path.iterdir()) == []
    assert main(["sh", "echo ${x}", "--values", '{"x": "it\'s"}', "--show"]) == 0
    assert capsys.readouterr().out == (
        "echo 'it'\"'\"'s'\n# (shown quoted; values are passed, never pasted)\n"
    )


def test_json_tells_everything(capsys: Capsys) -> None:
    assert main(["sh", "echo ${x}; echo e >&2; exit 4", "--values", '{"x": "a b"}', "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    assert result.pop("duration") >= 0
    assert result == {
        "stdout": "a b\n", "stderr": "e\n", "exit_code": 4, "shown": "echo 'a b'; echo e >&2; exit 4",
    }  # fmt: skip


def test_a_secret_reaches_the_command_and_no_message(capsys: Capsys) -> None:
    values = ["--values", '{"t": "hush-hush"}', "--secret", "t"]
    assert main(["sh", "test ${t} = hush-hush", *values]) == 0
    assert main(["sh", "true ${t}", *values, "--show"]) == 0
    assert main(["sh", "true ${t}", *values, "--json"]) == 0
    assert main(["sh", "eval ${t}", *values]) == 2
    out, err = capsys.readouterr()
    assert "***" in out
    assert "hush-hush" not in out + err


def test_strict_names_what_is_missing(capsys: Capsys) -> None:
    assert main(["sh", "f=1; echo ${f} ${nmae}", "--values", '{"name": 1}', "--strict"]) == 2
    assert capsys.readouterr().err == (
        "<template>:1:16: nothing here is named 'nmae'\n"
        "1 | f=1; echo ${f} ${nmae}\n"
        "  |                ^^^^^^^\n"
        "fix: did you mean 'name'? known here: name\n"
    )


def test_a_command_that_takes_too_long_is_ended(capsys: Capsys) -> None:
    assert main(["sh", "sleep 60", "--timeout", "0.2"]) == 1
    assert "Traceback" not in capsys.readouterr().err
