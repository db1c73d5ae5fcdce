"""`plait runs`: the runs of a project, newest first."""

from __future__ import annotations

import shlex
import sys
import time

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final
from plait.views.terminal import write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait runs --limit 5",
    "plait runs --json",
)


def configure(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", help="only the newest N")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.toolbox import project_root
    from plait.cli.values import whole_number
    from plait.views.run_list import run_json, show_runs

    require_folder(options.project)
    summaries = flows.flow_runs(options.project, whole_number("--limit", options.limit))
    if options.json:
        write_json([run_json(one) for one in summaries])
        return 0
    show_runs(summaries, sys.stdout, now=time.time())
    if not summaries and options.project is None:
        above = flows.runs_above(project_root(None))
        if above:
            print(f"{above} has runs: plait runs --project {shlex.quote(above)}")
    return 0
