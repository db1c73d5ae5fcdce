"""`plait doctor`: what is installed, and what works here.  Exit code 1 if something is broken."""

from __future__ import annotations

import sys

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final
from plait.views.terminal import write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait doctor",
    "plait doctor --json",
)
SHOWN_AS: Final = {"ok": "done", "note": "partial", "problem": "failed"}


def configure(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="the same for programs")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app.doctor import PROBLEM, examine
    from plait.views.format import one_line, sign, state_colour
    from plait.views.terminal import paint_for, pluralize

    require_folder(options.project)
    found = list(examine(options.project))
    problems = sum(one.state == PROBLEM for one in found)
    if options.json:
        write_json({"problems": problems, "findings": [one.record() for one in found]})
        return 1 if problems else 0
    paint = paint_for(sys.stdout)
    for one in found:
        state = SHOWN_AS[one.state]
        print(f"{paint(sign(state), state_colour(state))} {one.part:<9} {one_line(one.what, None)}")
        if one.fix:
            print(f"{'':<12}fix: {one_line(one.fix, None)}")
    print(pluralize(problems, "problem") if problems else "no problems")
    return 1 if problems else 0
