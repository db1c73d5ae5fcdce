"""Completion: what each shell offers at TAB, quickly, without executing anything of a flow or tool."""

from __future__ import annotations

import argparse
import os
import pprint
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module, reload
from pathlib import Path

import pytest

from plait.cli import COMMANDS, completion_words, main
from plait.cli.arguments import Parser
from plait.cli.complete import parameters_in, split_line
from plait.cli.completion import SCRIPTS
from plait.cli.new import KINDS
from plait.cli.schema import FORMATS

Capsys = pytest.CaptureFixture[str]


# ── the table of options ─────────────────────────────────────────────────


def words_of_commands() -> str:
    """`completion_words.py` as it must be: the options of each command, and words for some of them."""
    options, flags = {}, {}
    for command in COMMANDS:
        parser = Parser(command, "", examples=())
        import_module(f"plait.cli.{command}").configure(parser)
        shown = [one for one in parser._actions if one.help != argparse.SUPPRESS]
        options[command] = tuple(name for one in shown for name in one.option_strings)
        flags[command] = tuple(
            name for one in shown if one.nargs == 0 for name in one.option_strings
        )
    choices = {
        "new": tuple(KINDS),
        "schema": FORMATS,
        "completion": tuple(SCRIPTS),
        "tools": ("list", "show", "new", "lock"),
        "keys": ("list", "new", "show", "export", "add", "revoke", "rotate"),
        "trust": ("status", "remove", "add", "mcp", "reset", "run"),
        "--color": ("auto", "always", "never"),
        "--backend": ("local", "dask"),
        "--runtime": ("python", "function", "bash", "node", "http"),
        "sh --shell": ("sh", "dash", "bash"),
        "init --kind": ("workflow", "graph", "directive", "ensemble"),
        "check --kind": ("workflow", "graph", "directive", "ensemble", "tool", "hooks", "provider"),
        "check --format": ("text", "json", "sarif", "github"),
        "render --profile": ("prompt", "directive", "graph", "workflow", "config"),
        "render --sink": ("value", "text", "argv", "shell", "json", "url", "header", "env"),
    }
    text = '"""The options of each command, for completion: written by tests/cli/test_completion.py."""\n'
    for name, table in (("OPTIONS", options), ("FLAGS", flags), ("CHOICES", choices)):
        shown_table = pprint.pformat(table, width=96, sort_dicts=False)
        text += f"\n{name}: dict[str, tuple[str, ...]] = {shown_table}\n"
    return text


def test_the_table_for_completion_has_every_option() -> None:
    path = Path(completion_words.__file__)
    if os.environ.get("PLAIT_GOLDEN") == "write":
        path.write_text(words_of_commands(), "utf-8")
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)
        reload(completion_words)
    namespace: dict[str, object] = {}
    exec(words_of_commands(), namespace)
    for name in ("OPTIONS", "FLAGS", "CHOICES"):
        assert getattr(completion_words, name) == namespace[name], "PLAIT_GOLDEN=write writes it"


# ── candidates ───────────────────────────────────────────────────────────

TOOL = """\
open("executed", "w")
__executor_id__ = "core/runtimes/python/function"
CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"week": {"type": "integer"}, "name": {"type": "string", "default": "x"}},
}
"""
BASH_TOOL = """\
#!/bin/bash
# ---
# executor_id: core/runtimes/bash/bash
# config_schema:
#   type: object
#   properties:
#     file: {type: string}
#     count:
#       type: integer
# ---
touch executed
"""


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    for folder in ("team", "odd"):
        (here / ".ai/tools" / folder).mkdir(parents=True)
    (here / ".ai/tools/team/report.py").write_text(TOOL)
    (here / ".ai/tools/odd/count.sh").write_text(BASH_TOOL)
    (here / ".ai/state/runs/7f3aaaaa").mkdir(parents=True)
    (here / "flow.yaml").write_text(
        "name: f\nparameters:\n  target:\n    type: string\n  # a remark\n  mode: {choices: [a, b]}\n"
        "steps: [{shell: touch executed}]\n"
    )
    monkeypatch.chdir(here)
    return here


ASKED = [
    # words                                          offered
    (["ru"],                                         ["run", "runs"]),
    (["help", "wor"],                                ["worktrees"]),
    (["run", "--dr"],                                ["--dry-run"]),
    (["run", ""],                                    [":files"]),
    (["run", "--color", ""],                         ["auto", "always", "never"]),
    (["run", "flow.yaml", "-i", ""],                 ["target=", "mode="]),
    (["run", "flow.yaml", "-i", "t"],                ["target="]),
    (["run", "-j", "2", "flow.yaml", "-k", "-i", "m"], ["mode="]),
    (["run", "flow.yaml", "-i", "@"],                [":files"]),
    (["run", "nowhere.yaml", "-i", ""],              []),
    (["show", ""],                                   ["7f3aaaaa", "last"]),
    (["resume", "7"],                                ["7f3aaaaa"]),
    (["graph", "--run", "7"],                        ["7f3aaaaa"]),
    (["logs", "7f3aaaaa", ""],                       []),
    (["call", "tea"],                                ["team/report"]),
    (["call", "core/file/re"],                       ["core/file/read"]),
    (["call", "core/runtimes/"],                     []),
    (["call", "team/report", "-i", ""],              ["week=", "name="]),
    (["call", "odd/count", "-i", ""],                ["file=", "count="]),
    (["call", "core/file/read", "-i", "o"],          ["offset="]),
    (["tools", "sh"],                                ["show"]),
    (["tools", "show", "odd"],                       ["odd/count"]),
    (["new", "gr"],                                  ["graph"]),
    (["completion", ""],                             ["bash", "zsh", "fish"]),
    (["sh", "x", "--shell", "b"],                    ["bash"]),
    (["nothing", ""],                                []),
    (["show", "--project", "../here", "7"],          ["7f3aaaaa"]),
    (["show", "--project=../nowhere", "7"],          []),
    (["run", "--color=a"],                           ["--color=auto", "--color=always"]),
    (["--bash", "plait run --color=a", "a"],         ["auto", "always"]),
    (["--bash", "plait run 'flow.yaml' -i t", "t"],  ["target="]),
    (["--bash", "plait ru", "ru"],                   ["run", "runs"]),
    (["--bash", "plait ver", "ver"],                 ["verify"]),
    (["--bash"],                                     []),
]  # fmt: skip


@pytest.mark.parametrize(("words", "offered"), ASKED)
def test_what_is_offered_after_these_words(
    words: list[str], offered: list[str], here: Path, capsys: Capsys
) -> None:
    assert main(["__complete", *words]) == 0
    out, err = capsys.readouterr()
    assert ([line.partition("\t")[0] for line in out.splitlines()], err) == (offered, "")
    assert not (here / "executed").exists()


TEXTS = [
    # text of a flow                                                   names
    ("parameters: {a: string, b: {type: integer, default: 3}, c: [1]}\n", ["a", "b", "c"]),
    ("parameters: [a, b]\nsteps: []\n",                                ["a", "b"]),
    ("parameters:\n- a\n- name: b\n  type: string\nsteps: []\n",       ["a", "b"]),
    ("parameters:\n  - a\n  - name: b\nsteps: []\n",                   ["a", "b"]),
    ("---\ninputs:\n  file: {type: string}\n---\nText: x\n",           ["file"]),
    ("steps:\n  - use: x\n    inputs: {no: 1}\n",                      []),
    ("parameters:\n",                                                  []),
    ("parameters: {",                                                  []),
    ("",                                                               []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), TEXTS)
def test_parameters_are_read_from_the_text(text: str, names: list[str]) -> None:
    assert parameters_in(text, is_tool=False) == names


def test_completion_loads_next_to_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); from plait.cli import main;"
        "main(['__complete', 'call', 'core/file/re']);"
        "print(sorted(n for n in set(sys.modules) - before if n.startswith('plait') or n in ('argparse', 'json', 'yaml', 'ast')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "core/file/read",
        str(["plait", "plait.cli", "plait.cli.complete", "plait.cli.completion_words", "plait.core",
             "plait.core.hints", "plait.core.projects"]),
    ]  # fmt: skip


# ── real shells ──────────────────────────────────────────────────────────

ODD_NAMES = ("my flow.yaml", "it's.yaml", "a$(touch executed).yaml", "b`touch executed`.yaml",
             'c"q.yaml', "z;touch executed;.yaml")  # fmt: skip

TYPED = [
    # typed, then TAB                               words on the line
    ("plait comp",                                  ["completion"]),
    ("plait run --dr",                              ["run", "--dry-run"]),
    ("plait show 7",                                ["show", "7f3aaaaa"]),
    ("plait show 8",                                ["show", "8"]),  # no id: a shell would run it
    ("plait call team/",                            ["call", "team/report"]),
    ("plait call odd/count -i f",                   ["call", "odd/count", "-i", "file="]),
    ("plait run fl",                                ["run", "flow.yaml"]),
    ("plait run my",                                ["run", "my flow.yaml"]),
    ("plait run \"my",                              ["run", "my flow.yaml"]),
    ("plait run my\\ fl",                           ["run", "my flow.yaml"]),
    ("plait run it",                                ["run", "it's.yaml"]),
    ("plait run a",                                 ["run", "a$(touch executed).yaml"]),
    ("plait run b",                                 ["run", "b`touch executed`.yaml"]),
    ("plait run c",                                 ["run", 'c"q.yaml']),
    ("plait run z",                                 ["run", "z;touch executed;.yaml"]),
    ("plait run flow.yaml -i t",                    ["run", "flow.yaml", "-i", "target="]),
    ("plait run my\\ flow.yaml -i t",               ["run", "my flow.yaml", "-i", "target="]),
    ("plait run 'my flow.yaml' -i t",               ["run", "my flow.yaml", "-i", "target="]),
    ("plait run -i mode=a flow.yaml -i t",          ["run", "-i", "mode=a", "flow.yaml", "-i", "target="]),
    ("plait run flow.yaml -i @my",                  ["run", "flow.yaml", "-i", "@my flow.yaml"]),
    ("plait run --color=al",                        ["run", "--color=always"]),
    ("plait graph --run=7",                         ["graph", "--run=7f3aaaaa"]),
]  # fmt: skip

START = {
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set bell-style none'"),
    "zsh": (["-f", "-i"], "bindkey -e; unsetopt beep"),
}


@pytest.fixture
def odd(here: Path) -> Path:
    """The project with names that would do harm if a shell read them as code."""
    for name in ODD_NAMES:
        (here / name).write_text((here / "flow.yaml").read_text())
    for name in ("8$(touch executed)", "8;touch executed", "8 b"):
        (here / ".ai/state/runs" / name).mkdir()
    (here / ".ai/tools/team/t$(touch executed).py").write_text(TOOL)
    return here


def shell_environment(home: Path) -> dict[str, str]:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "USER_SPACE": str(home), "TERM": "dumb"}


def type_into(shell: str, lines: list[str], here: Path, home: Path) -> list[list[str]]:
    """Type each line and TAB at a terminal, then let a function keep the words that came of it."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    options, settings = START[shell]
    kept = home / "kept"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.execve(program, [shell, *options], shell_environment(home))
    try:
        setup = (
            f'{settings}; eval "$(plait completion {shell})"; '
            f"keep() {{ printf '%s\\0' \"$@\" >> {kept}; printf '\\n' >> {kept}; }}; keep ready\n"
        )
        os.write(terminal, setup.encode())
        _read_until_lines(terminal, kept, 1)
        for number, line in enumerate(lines):
            # Control-A goes to the start of the line, where the function is put before it.
            os.write(terminal, f"{line}\t\x01keep \r".encode())
            _read_until_lines(terminal, kept, number + 2)
    finally:
        os.close(terminal)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [line.split("\0")[1:-1] for line in kept.read_text().split("\n")[1:-1]]


def _read_until_lines(terminal: int, path: Path, count: int) -> None:
    end, seen = time.monotonic() + 60, b""
    while not path.exists() or path.read_text().count("\n") < count:
        if time.monotonic() > end:
            pytest.fail(f"the shell does not answer: {seen!r}")
        if select.select([terminal], [], [], 0.02)[0]:
            seen += os.read(terminal, 65536)


@pytest.mark.parametrize("shell", START)
def test_a_shell_at_a_terminal_completes(shell: str, odd: Path, home: Path) -> None:
    found = type_into(shell, [line for line, _ in TYPED], odd, home)
    assert dict(zip([line for line, _ in TYPED], found, strict=True)) == dict(TYPED)
    assert not (odd / "executed").exists()


def test_fish_completes(odd: Path, home: Path) -> None:
    program = shutil.which("fish")
    if program is None:
        pytest.skip("fish is not installed")
    typed = [(line, words[-1]) for line, words in TYPED if "--" not in line and line[-1] != "8"]
    asked = "".join(f"echo (complete -C {shlex.quote(line)})\n" for line, _ in typed)
    done = subprocess.run(
        [program, "-c", f"plait completion fish | source\n{asked}"],
        cwd=odd, capture_output=True, text=True, timeout=60, env=shell_environment(home),
    )  # fmt: skip
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert (found, done.stderr) == ([word for _, word in typed], "")
    assert not (odd / "executed").exists()


LINES = [
    # line                              words
    ("plait ",                          ["plait", ""]),
    ("plait  run a",                    ["plait", "run", "a"]),
    ("plait run my\\ f",                ["plait", "run", "my f"]),
    ("plait run 'a b' -i x=\"c d\" ",   ["plait", "run", "a b", "-i", "x=c d", ""]),
    ("plait run 'it'\\''s",             ["plait", "run", "it's"]),
    ("plait run 'a\\' b",               ["plait", "run", "a\\", "b"]),
    ('plait run "\\$x \\n',             ["plait", "run", "$x \\n"]),
    ("plait run \\",                    ["plait", "run", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), LINES)
def test_a_line_of_bash_is_split_into_its_words(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_a_shell_is_printed(shell: str, capsys: Capsys) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr() == (SCRIPTS[shell], "")


def test_another_shell_is_refused(capsys: Capsys) -> None:
    assert main(["completion", "fsh"]) == 2
    assert capsys.readouterr().err == (
        "there is no shell 'fsh'\nfix: did you mean 'fish'? shells: bash, zsh, fish\n"
    )
