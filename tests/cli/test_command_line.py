"""The command itself: what it loads, how it ends, what it suggests, and what it never prints."""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from plait import __version__ as plait_version
from plait.cli import COMMANDS, find_commit, main, run_to_exit_code
from plait.cli.values import HIDDEN
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
    version, loaded = printed.splitlines()
    assert re.fullmatch(rf"plait {re.escape(plait_version)}( \([0-9a-f]{{12}}\))?", version)
    assert loaded == "[]"


def git(folder: Path, *arguments: str) -> str:
    names = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a",
    }
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **names}
    asked = subprocess.run(["git", *arguments], cwd=folder, env=plain, capture_output=True, text=True, check=True)  # fmt: skip
    return asked.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "src" / "plait").mkdir(parents=True)
    (folder / "hatch_build.py").touch()
    git(folder, "init", "-q", "-b", "feature/a")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


@pytest.mark.parametrize("after", [[], ["pack-refs", "--all"], ["checkout", "-q", "--detach"]])
def test_the_commit_of_a_checkout_is_the_one_that_git_names(
    after: list[str], checkout: Path
) -> None:
    git(checkout, *(after or ["status"]))
    assert find_commit(f"{checkout}/src/plait") == git(checkout, "rev-parse", "HEAD")[:12]


def test_the_commit_of_a_worktree_is_its_own(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(checkout, "worktree", "add", "-q", "-b", "b", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    (other / "src" / "plait").mkdir(parents=True)
    (other / "hatch_build.py").touch()
    assert find_commit(f"{other}/src/plait") == git(other, "rev-parse", "HEAD")[:12]
    assert find_commit(f"{checkout}/src/plait") == git(checkout, "rev-parse", "HEAD")[:12]


def test_a_wheel_of_a_development_build_has_its_commit_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "commit.txt").write_text("0123456789ab, changed\n")
    assert find_commit(str(tmp_path)) == "0123456789ab, changed"


def leave_foreign_repository(checkout: Path) -> None:
    (checkout / "hatch_build.py").unlink()  # then it is the repository of somebody else


def remove_git(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")


def cut_git(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git" / "refs")


def write_bytes(checkout: Path) -> None:
    (checkout / ".git" / "HEAD").write_bytes(b"\xff\xfe")


def empty(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "--orphan", "new")


@pytest.mark.parametrize(
    "change", [leave_foreign_repository, remove_git, cut_git, write_bytes, empty]
)
def test_a_commit_that_is_not_known_is_not_shown(
    change: Callable[[Path], None], checkout: Path
) -> None:
    change(checkout)
    assert find_commit(f"{checkout}/src/plait") == ""


@pytest.mark.parametrize("arguments", [["run", "none.yaml"], ["run"], ["resume", "none"]])
def test_a_command_in_a_process_of_others_leaves_its_garbage_collection_alone(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frozen = gc.get_freeze_count()
    main(arguments)
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, frozen)


def test_the_program_itself_collects_no_garbage_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("steps: [{shell: 'true'}]")
    code = (
        "import gc, sys, atexit, plait.cli; sys.argv = ['plait', 'run', 'flow.yaml', '-q']; "
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000)); "
        "plait.cli.enter()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.stdout == b"True True\n"


def test_plait_alone_shows_five_lines_and_where_to_begin(capsys: Capsys) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 5
    assert "Begin:   plait new workflow hello" in printed


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
    (["rendr"],                           "there is no command 'rendr'\nfix: did you mean: plait render; plait help lists all\n"),
    (["--versoin"],                       "there is no option '--versoin'\nfix: did you mean: plait --version; plait help lists all\n"),
    (["render"],                          "plait render: TEXT is missing\nfix: give a template, - for standard input, or --cases\n"),
    (["call", "--hlep"],                  "plait call has no option --hlep\nfix: did you mean --help? plait help call lists all\n"),
    (["sh"],                              "plait sh: TEMPLATE is missing\nfix: see plait sh --help\n"),
    (["render", "x", "--values"],         "plait render: --values needs a value\nfix: see plait render --help\n"),
    (["render", "x", "--json=1"],         "plait render: --json takes no value\nfix: see plait render --help\n"),
    (["run", "flow.yaml", "version=2"],   "plait run: more arguments than it takes\nfix: a value is given with -i: -i version=2\n"),
    (["run", "flow.yaml", "name=a b"],    "plait run: more arguments than it takes\nfix: a value is given with -i: -i 'name=a b'\n"),
    (["version"],                         "there is no command 'version'\nfix: did you mean: plait --version; plait help lists all\n"),
    ([__file__],                          f"there is no command '{__file__[:60]}'\nfix: did you mean: plait run {__file__}\n"),
    (["run", "--hlep"],                   "plait run has no option --hlep\nfix: did you mean --help? plait help run lists all\n"),
    (["check", "x", "--color", "blue"],   "--color must be auto, always or never, not 'blue'\nfix: for example --color never\n"),
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
        "plait render has no option --value, --strct\nfix: did you mean --values --strict? plait help render lists all"
    )
    assert SECRET not in printed


# ── bad input ────────────────────────────────────────────────────────────


def test_an_argument_may_stand_behind_an_option(capsys: Capsys) -> None:
    assert main(["mcp", "config", "codex", "--expose", "flow:*"]) == 0
    usual = capsys.readouterr().out
    assert main(["mcp", "config", "--expose", "flow:*", "codex"]) == 0
    assert capsys.readouterr().out == usual


def test_the_entry_of_a_client_is_readable_whatever_the_folder_is_called(
    capsys: Capsys, tmp_path: Path
) -> None:
    project = tmp_path / 'a "b" \\n \x7f \U0001f600'
    project.mkdir()
    for client, read in (("claude", json.loads), ("codex", tomllib.loads)):
        assert main(["mcp", "config", client, "--project", str(project)]) == 0
        (servers,) = read(capsys.readouterr().out).values()
        assert servers["plait"]["args"][-2:] == ["--project", str(project)]


def test_an_entry_and_a_list_have_no_address(capsys: Capsys) -> None:
    for action in ("config", "list"):
        assert main(["mcp", action, "--http", "0"]) == 2
        assert capsys.readouterr().err == (
            f"plait mcp {action} takes no --http\n"
            "fix: plait mcp --http ADDRESS prints what its clients need\n"
        )


FOR_HTTP = [
    ["--tls-cert", "c.pem"],
    ["--tls-key", "k.pem"],
    ["--password-file", "p"],
    ["--insecure"],
    ["--name", "shop.example"],
]


@pytest.mark.parametrize("words", FOR_HTTP)
@pytest.mark.parametrize("action", ["serve", "list", "config"])
def test_an_option_of_a_server_over_http_is_not_ignored(
    capsys: Capsys, action: str, words: list[str]
) -> None:
    assert main(["mcp", action, *words]) == 2
    assert capsys.readouterr().err == (
        f"{words[0]} needs --http\nfix: plait mcp --http PORT {words[0]} …\n"
    )


def test_the_entry_of_a_client_has_no_option_that_the_server_refuses(capsys: Capsys) -> None:
    assert main(["mcp", "config", "--answer-within", "soon"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.partition("\n")[0]) == (
        "", "--answer-within needs a number of seconds above 0"
    )  # fmt: skip


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


FORCED: list[tuple[list[str], dict[str, str], bool]] = [
    # options                 environment                             coloured in a pipe
    ([],                      {},                                     False),
    ([],                      {"FORCE_COLOR": "1"},                   True),
    ([],                      {"FORCE_COLOR": ""},                    False),
    ([],                      {"FORCE_COLOR": "1", "NO_COLOR": "1"},  False),
    (["--color", "always"],   {"NO_COLOR": "1"},                      True),
    (["--color=never"],       {"FORCE_COLOR": "1"},                   False),
    (["--color", "auto"],     {"FORCE_COLOR": "1"},                   True),
]  # fmt: skip


@pytest.mark.parametrize(("options", "environ", "coloured"), FORCED)
def test_a_person_decides_over_colour_in_a_pipe(
    options: list[str], environ: dict[str, str], coloured: bool
) -> None:
    assert (b"\x1b[31m" in plait(*WRONG, *options, stdin=b"", **environ).stderr) is coloured


def test_a_person_can_switch_colour_off_with_an_option() -> None:
    assert on_a_terminal(*WRONG, "--color", "never").encode() == plait(*WRONG).stderr


def test_the_colour_of_one_command_is_not_that_of_the_next(capsys: Capsys) -> None:
    assert main([*WRONG, "--color", "always"]) == 2
    assert "\x1b[31m" in capsys.readouterr().err
    assert main(WRONG) == 2
    assert "\x1b" not in capsys.readouterr().err


# ── one way to pass values ───────────────────────────────────────────────

HELLO = 'steps: [{shell: "echo ${n}"}]\nparameters: {n: any}\n'
QUERIED = '{"values":[[1]],"paths":["$"],"complete":true}\n'
WAYS = [
    # command                                   options                                   printed
    (["render", "${n}"],                        ["-i", "n=1.10"],                         "1.10\n"),
    (["render", "${n}"],                        ["-i", "n:=[1, 2]"],                      "[1,2]\n"),
    (["render", "${n}"],                        ["-i", "@v.json"],                        "7\n"),
    (["render", "${n}"],                        ["-i", "@v.yaml"],                        "8\n"),
    (["render", "${n}"],                        ["-i", "n=9", "-i", "@v.json"],           "9\n"),
    (["render", "${n}"],                        ["-i", "@v.json", "-i", "@v.yaml"],       "8\n"),
    (["render", "${n}"],                        ["--values-file", "v.json"],              "7\n"),
    (["render", "${n}"],                        ["--values", '{"n": 7}'],                 "7\n"),
    (["render", "${n}"],                        ["-i", "n=hush", "--secret", "n"],        "***\n"),
    (["sh", "echo ${n}", "--show"],             ["-i", "n=a b"],                          "echo 'a b'\n# (shown quoted; values are passed, never pasted)\n"),
    (["sh", "echo ${n}", "-n"],                 ["-i", "@v.json"],                        "echo 7\n# (shown quoted; values are passed, never pasted)\n"),
    (["run", "f.yaml", "-n"],                   ["-i", "n=a b"],                          "steps/0   shell   echo 'a b'\n"),
    (["run", "f.yaml", "--dry-run"],            ["-i", "@v.json"],                        "steps/0   shell   echo 7\n"),
    (["run", "f.yaml", "--dry-run"],            ["--inputs", "v.yaml"],                   "steps/0   shell   echo 8\n"),
    (["call", "core/json/query"],               ["-i", "query=$", "-i", "data:=[1]"],     QUERIED),
    (["call", "core/json/query"],               ["-p", "query=$", "--param", "data:=[1]"], QUERIED),
    (["call", "core/json/query"],               ["--params", '{"query": "$", "data": [1]}'], QUERIED),
]  # fmt: skip


@pytest.mark.parametrize(("command", "options", "printed"), WAYS)
def test_a_value_is_given_in_the_same_way_to_each_command(
    command: list[str],
    options: list[str],
    printed: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    (home / "f.yaml").write_text(HELLO)
    (home / "v.json").write_text('{"n": 7}')
    (home / "v.yaml").write_text("n: 8\n")
    monkeypatch.chdir(home)
    assert main([*command, *options]) == 0
    stdout = capsys.readouterr().out
    assert stdout == printed


@pytest.mark.parametrize("command", ["run", "call", "render", "sh", "explain", "chat", "resume"])
def test_the_help_names_one_way_to_give_a_value(command: str, capsys: Capsys) -> None:
    assert main(["help", command]) == 0
    printed = capsys.readouterr().out
    assert "--input KEY=VALUE" in printed
    assert not re.search(r"--(values|values-file|inputs|params|params-file|param)\b(?!-)", printed)


def test_a_hidden_option_is_what_argparse_leaves_out() -> None:
    assert HIDDEN == argparse.SUPPRESS


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
