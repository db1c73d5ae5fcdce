"""`plait stop`: stop a run that another process works on, so that it can be resumed."""

from __future__ import annotations

import shlex

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait stop 7f3a",
    "plait stop last",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app.stop_run import stop_run

    require_folder(options.project)
    name, pid = stop_run(options.run, options.project)
    where = f" --project {shlex.quote(options.project)}" if options.project else ""
    command = f"plait resume {name}{where}"
    print(f"run {name} is stopping (process {pid}). Continue it with:  {command}")
    return 0
