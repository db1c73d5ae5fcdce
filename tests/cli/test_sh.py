"""`plait sh`: bound values, the command's own output and exit code."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
Capfd = pytest.CaptureFixture[str]
LIMIT = 60
HOSTILE = "'; touch canary; $(touch canary) `touch canary`\n\""


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_output_and_exit_code_are_the_commands_own(shell: str, capfd: Capfd) -> None:
    assert (
        main(
            ["sh", "echo ${x}; echo bad >&2; exit 3", "--values", '{"x": "a  b"}', "--shell", shell]
        )
        == 3
    )
    assert capfd.readouterr() == ("a  b\n", "bad\n")


def test_a_hostile_value_is_only_printed(tmp_path: Path, capfd: Capfd) -> None:
    script = "printf %s ${x}; printf %s '${x}'; printf %s \"${x}\""
    assert main(["sh", script, "--values", json.dumps({"x": HOSTILE}), "--cwd", str(tmp_path)]) == 0
    assert capfd.readouterr().out == HOSTILE * 3
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


def test_json_shows_everything(capsys: Capsys) -> None:
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


SECRET_OUTPUT = [
    # what the command prints                            what is shown of it
    ("echo ${t}; echo ${t} >&2; exit 3",                 "***\n", "***\n"),
    ("printf %s ${t}",                                   "***", ""),
    ("printf 'a\\nb %s\\n' ${t}; printf %s ${t} | base64", "a\nb ***\n***\n", ""),
]  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("script", "out", "err"), SECRET_OUTPUT)
def test_a_secret_is_masked_in_what_the_command_prints(
    script: str, out: str, err: str, as_json: bool, capfd: Capfd
) -> None:
    values = ["--values", '{"t": "hush-hush"}', "--secret", "t"]
    code = main(["sh", script, *values, *(["--json"] if as_json else [])])
    assert code == (3 if "exit 3" in script else 0)
    shown = capfd.readouterr()
    if as_json:
        record = json.loads(shown.out)
        assert (record["stdout"], record["stderr"]) == (out, err)
    else:
        assert shown == (out, err)


def test_masked_output_ends_with_the_command_and_not_with_what_it_left(capfd: Capfd) -> None:
    values = ["--values", '{"t": "hush-hush"}', "--secret", "t"]
    assert main(["sh", "sleep 60 & echo ${t}", *values]) == 0
    assert capfd.readouterr().out == "***\n"


def test_strict_names_what_is_missing(capsys: Capsys) -> None:
    assert main(["sh", "f=1; echo ${f} ${nmae}", "--values", '{"name": 1}', "--strict"]) == 2
    assert capsys.readouterr().err == (
        "<template>:1:16: unknown variable 'nmae'\n"
        "1 | f=1; echo ${f} ${nmae}\n"
        "  |                ^^^^^^^\n"
        "fix: did you mean 'name'? known here: name, env, uuid\n"
    )


def test_a_variable_of_the_shell_is_reported_how_it_is_written(capsys: Capsys) -> None:
    assert main(["sh", "echo ${HOME}"]) == 2
    assert capsys.readouterr().err.endswith(
        "fix: a variable of the shell is written $HOME; known here: env, uuid\n"
    )
    assert main(["sh", "test -n $PATH"]) == 0


def test_a_command_that_takes_too_long_is_ended(capsys: Capsys) -> None:
    assert main(["sh", "sleep 60", "--timeout", "0.2"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def started(
    *arguments: str, stdin: int | None = None, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "plait", "sh", *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)


def test_output_appears_as_it_is_written(tmp_path: Path) -> None:
    script = "echo first; echo warned >&2; read word; echo $word; test -e seen"
    pipe = subprocess.PIPE
    with started(script, "--cwd", str(tmp_path), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # The command waits for an answer: what it printed before cannot have been kept until its end.
        assert select.select([process.stdout], [], [], LIMIT)[0]
        assert process.stdout.readline() == b"first\n"
        assert process.stderr.readline() == b"warned\n"
        (tmp_path / "seen").touch()
        process.stdin.write(b"second\n")
        process.stdin.close()
        assert process.stdout.read() == b"second\n"
        assert process.wait(LIMIT) == 0


def test_large_output_is_not_held() -> None:
    measured = (
        "import resource, subprocess, sys; "
        "done = subprocess.run([sys.executable, '-m', 'plait', 'sh', sys.argv[1]], stdout=subprocess.DEVNULL); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measured, "head -c 200000000 /dev/zero; exit 5"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    status, kibibytes = map(int, done.stdout.split())
    assert status == 5
    assert kibibytes < 100_000


def test_the_template_may_come_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plait", "sh", "-"],
        input=b"echo hello; cat",
        capture_output=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, b"hello\n")
