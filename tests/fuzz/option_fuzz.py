"""Random commands with hostile values, in real dash and bash: no value arrives as an option.

Each program is replaced by one that records its arguments.  `read` then decides which arguments
the program would read as options; it has its own descriptions of a few programs and shares nothing with
Plait.  A command must be refused if and only if one of its values would be an option.

    python tests/fuzz/option_fuzz.py --runs 4000
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from plait.core.errors import ShellRefusedError, ValueRefusedError
from plait.core.source import Source
from plait.core.values import Json
from plait.template.shell.binding import bind, plan
from plait.template.shell.lexer import Dialect, Piece, ValueSlot

DIALECTS: dict[str, Dialect] = {"dash": "sh", "bash": "bash"}


@dataclass(frozen=True)
class Described:
    """A program, described here independently of Plait."""

    words: tuple[str, ...]
    short: str
    """As for getopt: a letter with `:` takes a value, one with `::` only a glued one."""
    long: tuple[str, ...] = ()
    """Long options that take the next word."""
    flags: tuple[str, ...] = ()
    stops: bool = False
    """At the first operand."""
    dashes: bool = True
    digits: bool = False


PROGRAMS = (
    Described(
        ("grep",), "A:B:C:D:d:e:f:m:ivnrlc", ("--regexp", "--include"), ("--count",), digits=True
    ),
    Described(("sort",), "k:o:S:t:T:nru", ("--key", "--output"), ("--reverse",)),
    Described(("sed",), "e:f:l:i::nE", ("--expression",), ("--quiet",)),
    Described(("cut",), "b:c:d:f:sz", ("--delimiter",), ("--complement",)),
    Described(("tr",), "cds", (), ("--delete",), stops=True),
    Described(("head",), "c:n:qv", ("--lines",), ("--quiet",), digits=True),
    Described(("rm",), "rfiv", (), ("--force",)),
    Described(("git", "commit"), "m:F:C:c:t:S::u::aqv", ("--message", "--author"), ("--amend",)),
    Described(
        ("git", "grep"), "e:f:A:B:C:m:O::nil", ("--max-depth",), ("--all-match",), digits=True
    ),
    Described(("git", "worktree"), "b:B:f", (), ("--force",), dashes=False),
    Described(("sudo", "-u", "root", "rm"), "rfiv", (), ("--force",)),
    Described(("some-tool",), "xyz", (), ("--flag",)),
    Described(("env", "A=b", "some-tool"), "xyz", (), ("--flag",)),
)
HOSTILE: tuple[Json, ...] = (
    "-x", "--evil=1", "-e", "-rf", "--", "-", "-5", -7, -2.5, "", "a", "a -x", "-m", "--message", "- item",
    "-5x", ["a", "-x"], [], ["-e"], ["b"], [-1, "c"], "-Dx", "--include", None, "-i", "-n",
)  # fmt: skip


@dataclass
class Results:
    shell: str
    commands: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class _Command:
    """A command: its text in pieces, and values by their numbers."""

    described: Described
    pieces: list[str | int]


def fuzz(shell: str, *, runs: int, seed: int) -> Results:
    """Run at least this many commands in one shell."""
    results, random = Results(shell), Random(f"{seed} {shell}")
    with tempfile.TemporaryDirectory(prefix="plait-options-") as folder:
        _write_recorders(Path(folder))
        while results.commands < runs and not results.wrong:
            _try_one(random, shell, results, Path(folder))
    return results


def _write_recorders(folder: Path) -> None:
    for name in {"git", "sudo", *(word for one in PROGRAMS for word in one.words[:1])} - {
        "env",
        "sudo",
    }:
        _write(
            folder / name,
            '#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" "" >>"$RECORD"; echo >>"$RECORD"\n',
        )
    _write(
        folder / "sudo", '#!/bin/sh\nprintf "%s\\0" sudo "$@" "" >>"$RECORD"; echo >>"$RECORD"\n'
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _try_one(random: Random, shell: str, results: Results, folder: Path) -> None:
    values: list[Json] = []
    command = _random_command(random, values)
    try:
        refused = _is_refused(command, values, DIALECTS[shell])
    except ShellRefusedError:
        return  # `${x} -c` could be a shell
    record = folder / "record"
    record.write_bytes(b"")
    arguments = _arguments(command, values, shell, folder, record)
    expected = _has_option(command, values, arguments)
    results.commands += 1
    results.refused += refused
    if refused is not expected:
        problem = (
            "is refused, and none of its values is an option" if refused else "passes an option"
        )
        results.wrong.append(f"{shell}: {_shown(command, values)} {problem}: {arguments}")


def _random_command(random: Random, values: list[Json]) -> _Command:
    described = random.choice(PROGRAMS)
    pieces: list[str | int] = [" ".join(described.words)]
    for _ in range(random.randint(1, 5)):
        pieces.append(" ")
        pieces += _random_word(random, described, values)
    return _Command(described, pieces)


def _random_word(random: Random, described: Described, values: list[Json]) -> list[str | int]:
    letters = re.findall(r"\w", described.short)
    kind = random.random()
    if kind < 0.45:
        values.append(random.choice(HOSTILE))
        number = len(values) - 1
        return random.choice(
            [
                [number],
                [number],
                ["'", number, "'"],
                ['"', number, '"'],
                [number, "z"],
                ["a", number],
            ]
        )
    if kind < 0.7:
        return ["-" + "".join(random.choices(letters, k=random.randint(1, 3)))]
    if kind < 0.85:
        return [random.choice([*described.long, *described.flags, "--unheard-of"])]
    return [random.choice(["--", "file", "'two words'", "-", "''"])]


def _script(command: _Command) -> tuple[list[Piece], list[int]]:
    pieces: list[Piece] = []
    numbers: list[int] = []
    for piece in command.pieces:
        if isinstance(piece, int):
            pieces.append(ValueSlot(len(numbers), 0, 1))
            numbers.append(piece)
        else:
            pieces.append(piece)
    return pieces, numbers


def _is_refused(command: _Command, values: Sequence[Json], dialect: Dialect) -> bool:
    pieces, numbers = _script(command)
    try:
        bind(plan(pieces, dialect, Source("t", "x")), [values[number] for number in numbers])
    except ValueRefusedError as error:
        return {problem.code for problem in error.problems} == {"option-like"}
    return False


def _arguments(
    command: _Command, values: Sequence[Json], shell: str, folder: Path, record: Path
) -> list[str]:
    """The arguments that arrive when nothing is refused."""
    pieces, numbers = _script(command)
    script = bind(
        plan(pieces, DIALECTS[shell], Source("t", "x")),
        [values[number] for number in numbers],
        trusted=lambda _: True,
    )
    env = {"PATH": f"{folder}:/usr/bin:/bin", "RECORD": str(record), **script.env}
    subprocess.run(
        [shell, "-c", script.script], env=env, check=True, timeout=30, capture_output=True
    )
    line = record.read_text()
    return line.removesuffix("\n").removesuffix("\0").split("\0")[:-1]


def _has_option(command: _Command, values: Sequence[Json], arguments: list[str]) -> bool:
    """Whether a word that begins with a value is read as an option."""
    begins = list(_begins(command, values))
    words = arguments[arguments.index(command.described.words[-1]) + 1 :]
    assert len(begins) == len(words), (begins, words)
    options = set(read(command.described, words))
    return any(at in options for at, is_value in enumerate(begins) if is_value)


def _begins(command: _Command, values: Sequence[Json]) -> Iterator[bool]:
    """Whether each argument begins with a value."""
    word: list[str | int] = []
    for piece in [*command.pieces[2:], " "]:
        if piece != " ":
            word.append(piece)
            continue
        match word:
            case [int(number)] if isinstance(values[number], list):
                yield from [True] * len(values[number])
            case _:
                shown = [part for part in word if isinstance(part, int) or part.strip("'\"")]
                first = shown[0] if shown else ""
                if isinstance(first, int) and values[first] in ("", None):
                    first = ""  # empty, so the next piece begins it
                yield isinstance(first, int)
        word = []


def read(described: Described, words: Sequence[str]) -> Iterator[int]:
    """Which words are options, by the rules of getopt."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" and described.dashes:
            return
        if not word.startswith("-"):
            if described.stops:
                return
        elif word == "-":
            yield at  # standard input: not for a value either
            if described.stops:
                return
        elif described.digits or not re.fullmatch(r"-\d+(\.\d+)?", word):
            yield at
            at += _takes_another(described, word)
        elif described.stops:
            return
        at += 1


def _takes_another(described: Described, word: str) -> bool:
    if word.startswith("--"):
        return word in described.long
    for place, letter in enumerate(word[1:], start=2):
        found = re.search(re.escape(letter) + "(:*)", described.short) if letter != ":" else None
        if found and found.group(1) == "::":
            return False
        if found and found.group(1) == ":":
            return place == len(word)
    return False


def _shown(command: _Command, values: Sequence[Json]) -> str:
    return "".join(
        piece if isinstance(piece, str) else f"⟨{values[piece]!r}⟩" for piece in command.pieces
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="random commands with values that look like options"
    )
    parser.add_argument("--runs", type=int, default=4_000, help="commands to try, over all shells")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    shells = [shell for shell in DIALECTS if shutil.which(shell, path=os.defpath)]
    by_shell = [fuzz(shell, runs=chosen.runs // len(shells), seed=chosen.seed) for shell in shells]
    for results in by_shell:
        print(
            f"{results.shell}: {results.commands} commands, {results.refused} refused, {len(results.wrong)} wrong"
        )
        print("\n".join(results.wrong[:3]))
    return 1 if any(results.wrong for results in by_shell) else 0


if __name__ == "__main__":
    sys.exit(main())
