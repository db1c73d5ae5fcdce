"""Cases of the corpus: their commands, what they print, and what is recorded of it.

A case is a folder of `corpus/`: `case.yaml` lists its commands, `files/` is the folder in which they run,
`NAME.out` and `NAME.err` hold what the command NAME printed (a stream that is empty has no file), `codes.txt` holds the exit
codes.  All commands of a case run one after the other in one copy of `files/`, so that a later one sees what an
earlier one has left.

    stdin: of a command, what it reads          env: its variables, besides those of ENVIRONMENT
    any_order: true if the lines it prints are those of several threads: they are held sorted, without their numbers
    sh: instead of a command, shell text that prepares something; nothing of it is held
"""

from __future__ import annotations

import io
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import plait
from plait.cli import main

HERE = Path(__file__).parent
CASES = HERE / "corpus"
WRITE = os.environ.get("PLAIT_GOLDEN") == "write"

ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "USER": "ada",
    "LOGNAME": "ada",
    "COLUMNS": "80",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}
"""All variables that a command sees, besides PATH and those of its user space."""


# ── what a case says ─────────────────────────────────────────────────────


@dataclass(frozen=True)
class Command:
    name: str
    arguments: list[str] = field(default_factory=list)
    stdin: str = ""
    env: dict[str, str] = field(default_factory=dict)
    sh: str = ""
    any_order: bool = False

    def held(self, text: str) -> str:
        if not self.any_order:
            return text
        return "".join(sorted(re.sub(r'"number":\d+,', "", text).splitlines(keepends=True)))


@dataclass(frozen=True)
class Output:
    """What is held of a command."""

    out: str
    err: str
    code: int


def case_names() -> list[str]:
    return sorted(path.parent.name for path in CASES.glob("*/case.yaml"))


def commands_of(case: str) -> list[Command]:
    fields = yaml.safe_load((CASES / case / "case.yaml").read_text("utf-8"))
    return [_command(name, one) for name, one in fields.items()]


def _command(name: str, fields: Any) -> Command:
    if isinstance(fields, str):
        return Command(name, shlex.split(fields))
    return Command(name, shlex.split(fields.pop("run", "")), **fields)


# ── what is recorded ─────────────────────────────────────────────────────


def read_record(case: str) -> dict[str, Output]:
    folder = CASES / case
    rows = [line.split() for line in _text(folder / "codes.txt").splitlines()]
    return {
        name: Output(_text(folder / f"{name}.out"), _text(folder / f"{name}.err"), int(code))
        for name, code in rows
    }


def record(case: str, printed: Mapping[str, Output]) -> None:
    folder = CASES / case
    for old in (*folder.glob("*.out"), *folder.glob("*.err")):
        old.unlink()
    for name, one in printed.items():
        for stream, text in (("out", one.out), ("err", one.err)):
            if text:
                (folder / f"{name}.{stream}").write_text(text, "utf-8", newline="")
    codes = "".join(f"{name} {one.code}\n" for name, one in printed.items())
    (folder / "codes.txt").write_text(codes, "utf-8")


def _text(path: Path) -> str:
    return path.read_bytes().decode() if path.exists() else ""


# ── how a case runs ──────────────────────────────────────────────────────


def play(
    case: str, top: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
) -> Iterator[tuple[str, Output]]:
    """Run the commands of a case in a copy of its folder below `top`; what each of them printed."""
    project, home = top / "case", top / "home"
    home.mkdir()
    if (CASES / case / "files").is_dir():
        shutil.copytree(CASES / case / "files", project)
    else:
        project.mkdir()
    patch.chdir(project)
    normal = Normal(project, home)
    for command in commands_of(case):
        environment = _environment(home) | command.env
        if command.sh:
            subprocess.run(
                ["sh", "-euc", command.sh], env=environment, check=True, capture_output=True
            )
            continue
        with pytest.MonkeyPatch.context() as around:
            for name in set(os.environ) - set(environment):
                around.delenv(name)
            for name, value in environment.items():
                around.setenv(name, value)
            around.setattr(
                sys, "stdin", io.TextIOWrapper(io.BytesIO(command.stdin.encode()), "utf-8")
            )
            capture.readouterr()
            code = main(command.arguments)
            out, err = capture.readouterr()
        yield command.name, Output(command.held(normal.text(out)), normal.text(err), code)


def _environment(home: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": str(home), "USER_SPACE": str(home)}


# ── what differs from run to run ─────────────────────────────────────────

USER = pwd.getpwuid(os.getuid()).pw_name

RULES: list[tuple[str, str]] = [
    # what is found                                         what is held instead
    (r'"(at|started|ended|added)":\d+(\.\d+)?',             r'"\1":"<time>"'),
    (r'"duration":\d+(\.\d+)?(e-?\d+)?',                   '"duration":"<duration>"'),
    (r'"(duration_ms|peak_rss_kib)":\d+(\.\d+)?',          r'"\1":"<number>"'),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"(?<![\d:.])(\d+:\d\d|\d+\.\d s)(?=$|[),]| {3}| →| \|)", "<clock>"),
    # A long path is cut where a line of 80 columns ends.
    (r"^(\S+: run <run..\d>(, resumed)?), .*$",            r"\1, <file>"),
    (r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])",              "<digest>"),
    (r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])",              "<commit>"),
    (r"(?<=^plait 0\.1\.0) \([0-9a-f]{12}\)$",              ""),  # only a checkout has it
    (r'(?<=")[\w-]{86}(?=")',                               "<signature>"),
    (r"(?<=signing-until-)[0-9a-f]{8}",                     "<key>"),
    # The name of a worktree ends with a digest of its run.
    (r"(?<=[/ ])(\d+-[\w-]+)-[0-9a-f]{8}(?![0-9a-f])",      r"\1-<place>"),
    # A key belongs to the user who has made it.
    (rf'("owner":"|^owner +|signed by ){USER}\b',           r"\1<user>"),
]  # fmt: skip


class Normal:
    """A text without what differs from run to run, from folder to folder, and from machine to machine."""

    def __init__(self, project: Path, home: Path) -> None:
        self._top = project.parent
        self._rules = [(re.compile(pattern, re.MULTILINE), form) for pattern, form in RULES]
        self._places = [
            (str(project), "<case>"),
            (str(home), "<home>"),
            (str(Path(plait.__file__).parent), "<plait>"),
            (str(Path(sys.executable).with_name("plait")), "<plait command>"),
            (sys.executable, "<python>"),
            (os.path.realpath(sys.executable), "<python>"),
        ]
        self._runs: dict[str, str] = {}

    def text(self, data: bytes) -> str:
        text = data.decode("utf-8", "backslashreplace")
        for place, form in self._places:
            text = text.replace(place, form)
        for run, form in self._known_runs().items():
            text = text.replace(run, form)
        for pattern, form in self._rules:
            text = pattern.sub(form, text)
        return text

    def _known_runs(self) -> dict[str, str]:
        """Ids of runs, by the folders that they have made; each form is as long as an id."""
        for path in sorted(
            self._top.rglob(".ai/state/runs/*"), key=lambda path: path.stat().st_ctime_ns
        ):
            self._runs.setdefault(path.name, f"<run{len(self._runs) + 1:>3}>")
        return self._runs
