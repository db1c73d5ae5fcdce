"""`plait logs`: the output of the steps of a run and the text of its agents."""

from __future__ import annotations

import sys

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait logs 7f3a",
    "plait logs 7f3a src/old.py",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "item", metavar="ITEM", nargs="?", help="an item or step: its title, key or path"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.views.format import json_line, write_lines
    from plait.views.log import log_lines, read_log

    require_folder(options.project)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        entries = read_log(opened.journal, name, options.item)
        if options.json:
            for entry in entries:
                print(json_line(entry.record()))
        else:
            write_lines(log_lines(entries), sys.stdout)
    return 0
