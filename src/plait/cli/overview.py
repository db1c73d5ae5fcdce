"""The text that `plait`, `plait help` and a mistyped command print: how to begin, and the commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final

WELCOME: Final = """\
Plait runs tools, shell commands and agents from plain files; a value never becomes code.
Begin:   plait new workflow hello      writes hello.yaml; plait new lists what else there is
Run:     plait run hello.yaml          plait run alone lists the flows of this project
Check:   plait check hello.yaml        plait run hello.yaml -n shows what would run
More:    plait help, plait help COMMAND
"""


def unknown_command(command: str, commands: Mapping[str, str]) -> InputError:
    kind = "option" if command.startswith("-") else "command"
    known = ["--help", "--version"] if kind == "option" else list(commands)
    guess = "--version" if command == "version" else closest_name(command, known)
    fix = f"{kind}s: {', '.join(known)}"
    if os.path.isfile(command):
        fix = f"did you mean: plait run {shlex.quote(command)}"
    elif guess:
        fix = f"did you mean: plait {guess}; plait help lists all"
    return InputError(f"there is no {kind} '{command[:60]}'", fix=fix, code=f"unknown-{kind}")


def overview(commands: Mapping[str, str], exit_codes: str) -> str:
    shown = {**commands, "help": "this page; plait help COMMAND for examples and options"}
    size = max(map(len, shown))
    rows = [f"  plait {name:<{size}} {what}\n" for name, what in shown.items()]
    return "Commands:\n" + "".join(rows) + f"\n{exit_codes}\n"
