"""`plait sh`: run shell text whose values are bound to variables, never pasted into it.

The command has the standard streams of `plait`, so its output appears at once, whatever its size.
With `--secret` its output is masked line by line.  `--show` runs nothing and prints the command as
a person would type it.
"""

from __future__ import annotations

import argparse
import sys

from plait.cli.arguments import require_choice, seconds
from plait.cli.values import (
    add_values,
    make_scope,
    parse_values,
    read_template_text,
    working_directory,
)
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.views.terminal import QUOTED, paint_for, printable, write_bytes, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plait.cli.arguments import Parser
    from plait.core.values import Json

EXAMPLES: Final = (
    """plait sh 'wc -l ${file}' -i 'file=my notes.txt'""",
    """plait sh 'git commit -m "${message}"' -i @commit.json --show""",
)
SHELLS: Final = ("sh", "dash", "bash")


def configure(parser: Parser) -> None:
    parser.add_argument(
        "template", metavar="TEMPLATE", help="shell text with placeholders; - reads standard input"
    )
    add_values(parser)
    parser.add_argument("--shell", default="sh", metavar="SHELL", help="sh (default), dash or bash")
    parser.add_argument(
        "--lenient", action="store_true", help="keep a placeholder without a value as it is written"
    )
    parser.add_argument(
        "--strict", action="store_true", help="the opposite of --lenient, which is the default"
    )
    parser.add_argument("--timeout", metavar="S", help="end the command after so many seconds")
    parser.add_argument("--cwd", metavar="DIR", help="run it there")
    parser.add_argument(
        "-n", "--show", action="store_true", help="print what would run, and run nothing"
    )
    parser.add_argument(
        "--json", action="store_true", help="print stdout, stderr, exit_code, duration and shown"
    )


def run(options: argparse.Namespace) -> int:
    return _show(options) if options.show else _run(options)


def _show(options: argparse.Namespace) -> int:
    from plait.app import api as app

    shell = require_choice("shell", options.shell, SHELLS)
    scope = make_scope(
        parse_values(options), directory=working_directory(options.cwd), commands=False
    )
    bound = app.bind_script(
        read_template_text(options.template), scope, shell=shell, strict=not options.lenient
    )
    if options.json:
        write_json({"shown": bound.shown})
        return 0
    paint = paint_for(sys.stdout)
    shown = printable(bound.shown) if sys.stdout.isatty() else bound.shown
    write_bytes(shown.encode("utf-8", "backslashreplace") + b"\n")
    print(paint(f"# {QUOTED}", "dim"))
    return 0


def _run(options: argparse.Namespace) -> int:
    from plait.app import api as app

    directory = working_directory(options.cwd)
    template = read_template_text(options.template)
    values = parse_values(options)
    scope = make_scope(values, directory=directory)
    how: dict[str, Any] = {
        "shell": require_choice("shell", options.shell, SHELLS),
        "cwd": directory,
        "timeout": seconds(options.timeout),
        "strict": not options.lenient,
    }
    if not options.json:
        if not options.secret:
            return app.sh_through(template, scope, **how)
        from plait.cli.masked_output import MaskedOutput

        with MaskedOutput(values):
            return app.sh_through(template, scope, **how)
    result = app.sh(template, scope, **how)
    mask = _mask(values) if options.secret else str
    write_json(
        {
            "stdout": mask(result.stdout),
            "stderr": mask(result.stderr),
            "exit_code": result.exit_code,
            "duration": result.duration,
            "shown": result.shown,
        }
    )
    return result.exit_code


def _mask(values: Mapping[str, Json]) -> Callable[[str], str]:
    from plait.cli.masked_output import make_masker

    return make_masker(values).mask
