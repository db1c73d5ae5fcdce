"""`plait verify`: of each tool, whether it may run here, and on whose word.  Exit code 3 if one may not."""

from __future__ import annotations

import os
import sys

from plait.cli.consent import add_project, toolbox_of
from plait.cli.output import cut, error_data, paint_for, show_error, write_json
from plait.cli.sign import place_of
from plait.cli.tools import Row, rows, status_of
from plait.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.steps.call import Toolbox
    from plait.values import Json

EXAMPLES: Final = (
    "plait verify --json",
    "plait verify team/report",
)
REFUSED: Final = 3


def configure(parser: Parser) -> None:
    parser.add_argument(
        "items", metavar="ITEM", nargs="*", help="ids of tools, or their files; all if left out"
    )
    add_project(parser)
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    tools = toolbox_of(options)
    judged = _chosen(tools, options.items)
    unlocked = _unlocked(tools, judged) if options.locked and not options.items else []
    if options.json:
        write_json([*(_record(row) for row in judged), *unlocked])
    else:
        _show(judged, in_full=bool(options.items))
        for record in unlocked:
            print(f"{paint_for(sys.stdout)('✗', 'red')} {cut(record['path'], None)}: {record['why']}")
    return REFUSED if unlocked else _status(judged)


def _unlocked(tools: Toolbox, judged: list[Row]) -> list[dict[str, Json]]:
    """Files that are no tools of their own, or have gone, and so have no row, but differ from the lock."""
    from plait.tools.trust import Lock

    project = tools.trust.project or os.getcwd()
    shown = {row.path for row in judged}
    differing = Lock.read(project).differences(Lock.of(project))
    places = ((os.path.join(project, ".ai", path), why) for path, why in differing)
    return [{"path": path, "allowed": False, "why": why} for path, why in places if path not in shown]


def _chosen(tools: Toolbox, given: list[str]) -> list[Row]:
    every = rows(tools)
    if not given:
        return every
    wanted = {place_of(tools.spaces, item).path for item in given}
    return [row for row in every if row.path in wanted]


def _show(judged: list[Row], *, in_full: bool) -> None:
    """One line each; of what was installed with Plait only the count, unless something is wrong with it."""
    paint = paint_for(sys.stdout)
    installed = 0
    for row in judged:
        if row.verdict is None:
            print(f"{paint('✗', 'red')} {row.id}  {row.space}: cannot be used")
            if row.error is not None:
                show_error(row.error)
        elif row.verdict.by == "manifest" and not in_full:
            installed += 1
        else:
            mark = paint("✓", "green") if row.verdict.allowed else paint("✗", "red")
            print(f"{mark} {row.id}  {row.space}: {cut(row.verdict.why, None)}")
            if not row.verdict.allowed and row.verdict.fix:
                print(f"  fix: {cut(row.verdict.fix, None)}")
    if installed:
        print(f"{paint('✓', 'green')} {installed} files of the installation are as they were installed")


def _status(judged: list[Row]) -> int:
    if any(row.verdict is not None and not row.verdict.allowed for row in judged):
        return REFUSED
    return status_of(judged)


def _record(row: Row) -> Json:
    if row.verdict is None:
        return {
            "item_id": row.id,
            "path": row.path,
            "error": error_data(row.error) if row.error else None,
        }
    return {
        "path": row.path,
        "fix": row.verdict.fix or None,
        "code": row.verdict.code or None,
        **row.verdict.record(),
    }
