"""`plait worktrees`: the leftovers of runs that gave each item its own worktree."""

from __future__ import annotations

import sys

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final
from plait.views.terminal import write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait worktrees",
    "plait worktrees --clean",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove what holds nothing that is not merged; commit what was not committed, "
        "and leave the branch",
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.views.leftovers import show_leftovers

    require_folder(options.project)
    found = flows.list_leftovers(options.project, clean=options.clean)
    if options.json:
        write_json([one.record() for one in found])
    else:
        show_leftovers(found, sys.stdout, cleaned=options.clean)
    return 0
