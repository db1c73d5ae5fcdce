"""The command itself: what it loads, how it ends, what it suggests, and what it never prints."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from plait.cli import COMMANDS, main, run_to_exit_code
from plait.core.errors import InternalError, ProcessError

Capsys = pytest.CaptureFixture[str]
SECRET = "hunter2-hunter2"


def plait(
    *arguments: str, stdin: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environ}
    return subprocess.run(
        [sys.executable, "-m", "plait", *arguments],
        input=stdin,
        capture_output=True,
        env=env,
        timeout=60,
    )


def on_a_terminal(*arguments: str, **environ: str) -> str:
    """What the command prints when standard output and error are a terminal."""
    master, slave = os.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "100", **environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
    )
    os.close(slave)
    printed = b""
    try:
        while chunk := os.read(master, 65536):
            printed += chunk
    except OSError:
        pass  # Linux says EIO when the last writer of a terminal has gone
    finally:
        os.close(master)
    process.wait(timeout=60)
    return printed.decode().replace("\r\n", "\n")


# ── starting ─────────────────────────────────────────────────────────────


def test_version_loads_neither_argparse_nor_yaml_nor_the_engine() -> None:
    code = (
        "import sys; from plait.cli import main; main(['--version']);"
        "print([n for n in sys.modules if n in ('argparse', 'yaml', 'json', 'plait.app.api', 'plait.core.errors')"
        " or n.startswith(('plait.template', 'plait.scope'))])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    ).stdout
    assert printed.splitlines() == [f"plait {__import__('plait').__version__}", "[]"]


def test_plait_alone_shows_five_lines_and_where_to_begin(capsys: Capsys) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 5
    assert "Begin:   plait render 'Hello ${name}'" in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_starts_with_two_examples(command: str, capsys: Capsys) -> None:
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"plait {command}: {COMMANDS[command]}"
    assert [f"{line} ".startswith(f"  plait {command} ") for line in printed[2:4]] == [True, True]
    assert main(["help", command]) == 0
    assert capsys.readouterr().out.splitlines() == printed


def test_help_lists_every_command(capsys: Capsys) -> None:
    assert main(["help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"plait {command}" in printed for command in COMMANDS)


SUGGESTIONS = [
    (["rendr"],                           "there is no command 'rendr'\nfix: did you mean 'render'? commands: run, chat, runs, show, logs, resume, retry, worktrees, render, sh, explain, graph, check, init, call, tools, sign, verify, keys, trust, schema\n"),
    (["--versoin"],                       "there is no option '--versoin'\nfix: did you mean '--version'? options: --help, --version\n"),
    (["render"],                          "plait render: TEXT is missing\nfix: give a template, - for standard input, or --cases\n"),
    (["sh"],                              "plait sh: TEMPLATE is missing\nfix: see plait sh --help\n"),
    (["render", "x", "--values"],         "plait render: --values needs a value\nfix: see plait render --help\n"),
    (["render", "x", "--json=1"],         "plait render: --json takes no value\nfix: see plait render --help\n"),
    (["render", "x", "y"],                "plait render: more arguments than it takes\nfix: quote a text with blanks: '…'\n"),
    (["render", "x", "--profile", "wrokflow"], "there is no profile 'wrokflow'\nfix: did you mean 'workflow'? profiles: prompt, directive, graph, workflow, config\n"),
    (["render", "x", "--sink", "jsn"],    "there is no sink 'jsn'\nfix: did you mean 'json'? sinks: value, text, argv, shell, json, url, header, env\n"),
    (["sh", "true", "--shell", "bsah"],   "there is no shell 'bsah'\nfix: did you mean 'bash'? shells: sh, dash, bash\n"),
    (["check", "x.yaml", "--format", "sarfi"], "there is no format 'sarfi'\nfix: did you mean 'sarif'? formats: text, json, sarif, github\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "printed"), SUGGESTIONS)
def test_a_mistyped_command_line_gets_a_suggestion(
    arguments: list[str], printed: str, capsys: Capsys
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", printed)


def test_an_unknown_option_suggests_the_nearest_and_does_not_quote_its_value(
    capsys: Capsys,
) -> None:
    assert main(["render", "x", f"--value={SECRET}", "--strct"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        "plait render has no option --value, --strct\nfix: did you mean --values --strict? options: "
    )
    assert SECRET not in printed


# ── bad input ────────────────────────────────────────────────────────────

BAD = [
    ["render", "${x}", "--values", f'{{"x": "{SECRET}"'],
    ["render", "${x}", "--values", f'["{SECRET}"]'],
    ["render", "${x}", "--values", f'{{"x": "{SECRET}", "x": 1}}'],
    ["render", "${x}", "--values", "NaN"],
    ["render", "${x}", "--values", "[" * 100_000],
    ["render", "${x}", "--values", '{"x": ' + "9" * 5000 + "}"],
    ["render", "${x}", "--env", '{"A": 1}'],
    ["render", "${x}", "--values-file", "no-such-file.json"],
    ["render", "${x}", "--values-file", "."],
    ["render", "${x}", "--values-file", "a\0b"],
    ["render", "${x}", "--values-file", sys.executable],
    ["render", "${x}", "--secret", "x"],
    ["render", "--cases", "no-such-file.jsonl"],
    ["render", "--cases", "."],
    ["render", "--cases", "a\0b"],
    ["render", "x", "--cases", "c.jsonl"],
    ["render", "{", "--tree"],
    ["render", "${x:int}", "--values", f'{{"x": "{SECRET}"}}'],
    ["render", "${x:a\x1b}"],
    ["render", "${a.b} ${x}", "--strict", "--values", f'{{"c": "{SECRET}"}}'],
    ["sh", "ls ${x}", "--values", f'{{"x": "-{SECRET}"}}'],
    ["sh", "eval ${x}", "--values", f'{{"x": "{SECRET}"}}'],
    ["sh", "true", "--timeout", SECRET],
    ["sh", "true", "--timeout", "-1"],
    ["sh", "true", "--cwd", "no-such-directory"],
    ["explain", "no-such-file.yaml"],
    ["explain", "no-such-file", "map[0]"],
    ["explain", "${x}", "--profile", "nope"],
    ["check", "no-such-file.yaml"],
    ["check", "a\0b"],
    ["check", sys.executable],
    ["check", "x.yaml", "--profile", "nope"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_ends_with_2_one_message_and_neither_traceback_nor_value(
    arguments: list[str], capsys: Capsys
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out or err
    assert "Traceback" not in out + err
    assert SECRET not in out + err
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    "arguments", [row for row in BAD if row[0] in ("render", "sh") and "--cases" not in row]
)
def test_bad_input_is_json_for_programs(arguments: list[str], capsys: Capsys) -> None:
    import json

    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert {"type", "what", "where", "fix", "code"} <= json.loads(out)["error"].keys()
    assert SECRET not in out


# ── endings ──────────────────────────────────────────────────────────────


def test_a_bug_of_ours_keeps_its_traceback_in_a_file_and_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def broken() -> int:
        raise ZeroDivisionError("what broke")

    assert run_to_exit_code(broken) == 4
    out, err = capsys.readouterr()
    [kept] = (tmp_path / "plait").iterdir()
    assert out == ""
    assert err == (
        f"plait: this is a bug of Plait, not yours (ZeroDivisionError); its traceback is in {kept}; "
        "please send it to us\n"
    )
    assert "in broken" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_a_bug_is_kept_in_the_temporary_folder_when_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    blocked = tmp_path / "a file, no folder"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert run_to_exit_code(lambda: [][0]) == 4
    path = capsys.readouterr().err.partition("is in ")[2].partition(";")[0]
    assert "IndexError" in Path(path).read_text()
    os.unlink(path)


def raising(error: BaseException) -> int:
    raise error


ENDINGS = [
    (KeyboardInterrupt(),            130),
    (BrokenPipeError(),              141),
    (ProcessError("it failed"),      1),
    (OSError(28, "No space left"),   1),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status"), ENDINGS)
def test_an_ending_is_an_exit_code(
    error: BaseException, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What cannot be written any more is led to /dev/null: not the stream with which pytest captures.
    with open(tmp_path / "out", "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert run_to_exit_code(lambda: raising(error)) == status


def test_an_internal_error_is_a_bug_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run_to_exit_code(lambda: raising(InternalError("lost"))) == 4
    assert "a bug of Plait" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_complaint() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "render", "--cases", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write(b'{"template": "x"}\n')
    process.stdin.flush()
    assert process.stdout.readline() == b'{"value":"x"}\n'
    process.stdout.close()
    _, err = process.communicate(b'{"template": "y"}\n' * 3, timeout=60)
    assert (process.returncode, err) == (141, b"")


def test_a_full_disk_is_reported_and_not_a_bug() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plait", "render", "x"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == b"plait: the output cannot be written: No space left on device\n"


def test_a_full_disk_of_something_else_is_not_that_of_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def is_full() -> int:
        with open("/dev/full", "w") as file:
            return file.write("x")

    # As a module of ours that writes files does.
    written = types.FunctionType(
        is_full.__code__, {**is_full.__globals__, "__name__": "plait.app.runs"}
    )
    assert run_to_exit_code(written) == 1
    assert capsys.readouterr().err == "the disk is full\nfix: make room on it\n"


def test_closed_standard_streams_do_no_harm() -> None:
    script = f"{sys.executable} -m plait render x >&-; echo $?; {sys.executable} -m plait nope 2>&-; echo $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60)
    assert done.stdout == b"0\n2\n"


def test_the_module_and_its_exit_code_are_the_command() -> None:
    done = plait("sh", "exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"")
    assert plait("--version").stdout.startswith(b"plait ")


# ── colour ───────────────────────────────────────────────────────────────

WRONG = ("render", "${itme.path}", "--strict", "--values", '{"item": {"path": 1}}')


def test_errors_are_coloured_on_a_terminal_and_plain_everywhere_else() -> None:
    coloured = on_a_terminal(*WRONG)
    assert "\x1b[31m" in coloured
    assert "\x1b[32mfix:\x1b[0m did you mean 'item.path'?" in coloured
    assert b"\x1b" not in plait(*WRONG).stderr


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_person_can_switch_colour_off(environ: dict[str, str]) -> None:
    assert on_a_terminal(*WRONG, **environ).encode() == plait(*WRONG).stderr


def test_what_a_template_says_cannot_drive_the_terminal() -> None:
    printed = on_a_terminal("render", "${x:a\x1b\x07b} \x1b[2J", NO_COLOR="1")
    assert "unknown format" in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed


def test_standard_output_may_be_a_stream_without_a_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert run_to_exit_code(lambda: raising(BrokenPipeError())) == 141
