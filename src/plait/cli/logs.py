"""`plait logs`: the output of the steps of a run and the text of its agents."""

from __future__ import annotations

import sys
from functools import partial

from plait.cli.project import add_project, require_folder
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait logs 7f3a",
    "plait logs 7f3a src/old.py",
    "plait logs -f",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "item", metavar="ITEM", nargs="?", help="an item or step: its title, key or path"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print more as it comes, until the run ends"
    )
    parser.add_argument("--failed", action="store_true", help="only of steps and items that failed")
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.recorded_result import recorded_result
    from plait.cli.log_output import follow_log, print_log

    require_folder(options.project)
    if options.follow and (options.json or options.failed):
        other = "--json" if options.json else "--failed"
        raise InputError(
            f"-f and {other} exclude each other",
            fix="plait events -f prints each event of a run as it happens"
            if options.json
            else "plait logs --failed prints the failures until now",
            code="arguments",
        )
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        if options.follow:
            code = follow_log(opened, options.item, partial(runs.is_running, name))
            result = recorded_result(opened)
            if code == 0 and result.status == "interrupted" and result.failure is not None:
                print(result.failure.message, file=sys.stderr)
            return code
        return print_log(opened, options, is_running=runs.is_running(name))
