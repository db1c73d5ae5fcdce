"""What every command prints, and how every flow of the corpus runs, is as it was recorded.

`PLAIT_GOLDEN=write pytest tests/golden` records all of it anew; read the difference before you commit it.
Here stands nothing about modules and classes, so that they can be moved and renamed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from golden.cases import (
    CASES,
    HERE,
    WRITE,
    Output,
    case_names,
    commands_of,
    play,
    read_record,
    record,
)
from golden.names import public_names


def expect_same(title: str, found: str, expected: str) -> None:
    """The difference line by line: a whole text is too long to be read."""
    if found != expected:
        lines = unified_diff(
            expected.splitlines(), found.splitlines(), "recorded", "found", "", "", 1, ""
        )
        pytest.fail("\n".join([f"{title} is not as it was recorded:", *lines]), pytrace=False)


def expect_recorded(path: Path, found: str) -> None:
    if WRITE:
        path.write_text(found, "utf-8")
    expect_same(path.name, found, path.read_text("utf-8"))


# ── commands ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", case_names())
def test_commands_print_what_is_recorded(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    printed = dict(play(case, tmp_path, monkeypatch, capfdbinary))
    if WRITE:
        record(case, printed)
    expect_same(case, transcript(printed), transcript(read_record(case)))


def transcript(printed: dict[str, Output]) -> str:
    """All commands in one text, with the name of the command before each line, so that a difference shows it."""
    return "\n".join(
        f"{name}.{stream}: {line}"
        for name, one in printed.items()
        for stream, text in (("code", str(one.code)), ("out", one.out), ("err", one.err))
        for line in text.split("\n")
    )


def test_what_is_recorded_belongs_to_a_command() -> None:
    stale = [
        str(path.relative_to(CASES))
        for case in case_names()
        for path in (*(CASES / case).glob("*.out"), *(CASES / case).glob("*.err"))
        if path.stem not in {command.name for command in commands_of(case)}
    ]
    assert stale == []


ONLY_HELP = {
    "help": "help is all it prints",
    "lsp": "it runs until its editor ends it: tests/lsp",
    "web": "it runs until a user ends it: tests/web, tests/browser",
}
"""Commands of which the corpus has no more, and why."""


def test_every_command_of_plait_is_in_the_corpus() -> None:
    """With more than its help and what it says about wrong words."""
    overview = (CASES / "help/overview.out").read_text("utf-8")
    known = set(re.findall(r"^  plait (\w+)", overview, re.MULTILINE))
    used = {
        command.arguments[0]
        for case in set(case_names()) - {"help", "bad-usage"}
        for command in commands_of(case)
        if command.arguments and "--help" not in command.arguments
    }
    assert known - used == ONLY_HELP.keys()
    assert len(known) > 20


@pytest.mark.parametrize("case", case_names())
def test_no_name_of_a_command_is_there_twice(case: str) -> None:
    text = (CASES / case / "case.yaml").read_text("utf-8")
    names = re.findall(r"^([\w-]+):", text, re.MULTILINE)
    assert names == [command.name for command in commands_of(case)]


# ── public names ─────────────────────────────────────────────────────────


def test_public_names_take_what_they_took() -> None:
    expect_recorded(HERE / "public_names.txt", public_names())


# ── paths of steps ───────────────────────────────────────────────────────

FORMS = [
    # what is found                  what is held instead
    (r"item:[^/]+",                  "item:KEY"),
    (r"(?<=[@:])\d+",                "N"),
    (r"(?<=/)\d+(?=/|$)",            "N"),
]  # fmt: skip


def test_paths_of_steps_have_the_forms_that_they_had() -> None:
    """Of what is recorded, which the commands have to print: so no flow has to run for it."""
    found = sorted({f"{kind:<12}{form(path)}" for path, kind in steps_of_corpus()})
    expect_recorded(HERE / "paths.txt", "".join(f"{line}\n" for line in found))


def form(path: str) -> str:
    for pattern, instead in FORMS:
        path = re.sub(pattern, instead, path)
    return path


def steps_of_corpus() -> Iterator[tuple[str, str]]:
    """Path and kind of every step in the events and logs of the corpus."""
    for file in sorted(CASES.glob("*/*.out")):
        for line in file.read_text("utf-8").splitlines():
            if line.startswith("{") and '"path":' in line and '"kind":' in line:
                record = json.loads(line)
                if isinstance(record.get("path"), str) and isinstance(record.get("kind"), str):
                    yield record["path"], record["kind"]
