"""`plait sh`: run shell text whose values are bound to variables, never pasted into it.

Input, output and exit code are the command's own: it has our standard streams, so what it
prints appears at once, whatever its size.  `--show` runs nothing and prints how the command
would look if a person had typed it.
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
from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Any, Final
from plait.views.terminal import error_data, paint_for, printable, write_bytes, write_json

if TYPE_CHECKING:
    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    """plait sh 'wc -l ${file}' --values '{"file": "my notes.txt"}'""",
    """plait sh 'git commit -m "${message}"' --values-file commit.json --show""",
)
SHELLS: Final = ("sh", "dash", "bash")
SHOWN: Final = "(shown quoted; values are passed, never pasted)"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "template", metavar="TEMPLATE", help="shell text with holes; - reads standard input"
    )
    add_values(parser)
    parser.add_argument("--shell", default="sh", metavar="SHELL", help="sh (default), dash or bash")
    parser.add_argument(
        "--lenient", action="store_true", help="a name that nothing answers stays as it is written"
    )
    parser.add_argument(
        "--strict", action="store_true", help="the opposite of --lenient, which is the default"
    )
    parser.add_argument("--timeout", metavar="S", help="end the command after so many seconds")
    parser.add_argument("--cwd", metavar="DIR", help="run it there")
    parser.add_argument("--show", action="store_true", help="print what would run, and run nothing")
    parser.add_argument(
        "--json", action="store_true", help="print stdout, stderr, exit_code, duration and shown"
    )


def run(options: argparse.Namespace) -> int:
    try:
        return _show(options) if options.show else _run(options)
    except PlaitError as error:
        if not options.json or error.exit_code == 4:
            raise
        write_json({"error": error_data(error)})
        return error.exit_code


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
    print(paint(f"# {SHOWN}", "dim"))
    return 0


def _run(options: argparse.Namespace) -> int:
    from plait.app import api as app

    directory = working_directory(options.cwd)
    template = read_template_text(options.template)
    scope = make_scope(parse_values(options), directory=directory)
    how: dict[str, Any] = {
        "shell": require_choice("shell", options.shell, SHELLS),
        "cwd": directory,
        "timeout": seconds(options.timeout),
        "strict": not options.lenient,
    }
    if not options.json:
        return app.sh_through(template, scope, **how)
    result = app.sh(template, scope, **how)
    write_json(
        {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "exit_code": result.exit_code,
            "duration": result.duration,
            "shown": result.shown,
        }
    )
    return result.exit_code
