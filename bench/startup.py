"""How long it takes until something happens: whole processes, in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from measure import race_processes
from tables import Bar, Plan, Table, compared

SOURCES = Path(__file__).resolve().parent.parent / "src"
SCRIPT = Path(sys.executable).parent / "plait"


def startup_tables(*, rounds: int) -> Iterator[Plan]:
    # Everybody gets the same environment, so that everybody pays for the same search path.
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    yield Plan("Importing", partial(_import_table, rounds, env))
    yield Plan("The command", partial(_command_table, rounds, env))


def _import_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference = 'python -c "import json, re"'
    commands = {
        reference: _python("import json, re"),
        'python -c "import plait"': _python("import plait"),
        "a first plait.render": _python("import plait; plait.render('${a}', {'a': 1})"),
    }
    return compared(
        title,
        "Whole processes. The bar: `import plait` costs at most 1.5 times what two modules of the "
        "standard library cost. The engine is imported when it is first used; the last line shows "
        "that.",
        race_processes(commands, rounds=rounds, env=env),
        to=reference,
        bars={'python -c "import plait"': Bar(1.5)},
    )


def _command_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference = "python -c pass"
    version = (
        [str(SCRIPT), "--version"]
        if _works([str(SCRIPT), "--version"], env)
        else _module("--version")
    )
    name = "plait --version" if version[0] == str(SCRIPT) else "python -m plait --version"
    values = ["render", "Hello ${name}", "--values", '{"name": "world"}']
    commands = {
        reference: _python("pass"),
        name: version,
        "python -m plait render": _module(*values),
    }
    return compared(
        title,
        "Whole processes. The bar: `plait --version` costs at most three times what an interpreter "
        "that does nothing costs.",
        race_processes(commands, rounds=rounds, env=env),
        to=reference,
        bars={name: Bar(3)},
    )


def _works(command: list[str], env: dict[str, str]) -> bool:
    if not Path(command[0]).exists():
        return False
    return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _module(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait", *arguments]
