"""`plait verify`: say whether each tool may run here, and who signed it. Exit code 3 if one may
not.
"""

from __future__ import annotations

import os
import sys

from plait.cli.project import add_project, load_toolbox
from plait.cli.sign import find_location
from plait.cli.tools import Row, listing_exit_code, rows
from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.tools.prepare import find_refused_files
from plait.tools.trust.decisions import Lockfile
from plait.views.format import sign, state_colour
from plait.views.terminal import cut, error_data, paint_for, show_error, write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.core.values import Json
    from plait.tools.prepare import Toolbox

EXAMPLES: Final = (
    "plait verify --json",
    "plait verify team/report",
)
REFUSED: Final = 3


def configure(parser: Parser) -> None:
    parser.add_argument(
        "items", metavar="ITEM", nargs="*", help="ids of tools, or their files; default: all"
    )
    add_project(parser)
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    tools = load_toolbox(options)
    every = rows(tools)
    if options.items:
        wanted = {find_location(tools.spaces, item).path for item in options.items}
        every = [row for row in every if row.path in wanted]
    checked = [_with_folder(tools, row) for row in every]
    unlocked = _lockfile_differences(tools, checked) if options.locked and not options.items else []
    if options.json:
        write_json([*(_record(row) for row in checked), *unlocked])
    else:
        _show(checked, in_full=bool(options.items))
        for record in unlocked:
            print(
                f"{paint_for(sys.stdout)(sign('failed'), 'red')} {cut(record['path'], None)}: {record['why']}"
            )
    return REFUSED if unlocked else _status(checked)


def _lockfile_differences(tools: Toolbox, checked: list[Row]) -> list[dict[str, Json]]:
    """Files without a row that differ from the lockfile: they are not tools, or are missing."""
    project = tools.trust.project or os.getcwd()
    shown = {row.path for row in checked}
    differing = Lockfile.read(project).differences(Lockfile.of(project))
    places = ((os.path.join(project, ".ai", path), why) for path, why in differing)
    return [
        {"path": path, "allowed": False, "why": why} for path, why in places if path not in shown
    ]


def _with_folder(tools: Toolbox, row: Row) -> Row:
    """The row of a tool, refused if a file beside it is refused."""
    decision = row.decision
    if decision is None or not decision.allowed or row.shadowed_by is not None or row.runtime:
        return row

    try:
        refused = find_refused_files(tools, row.id)
    except PlaitError as error:
        return replace(row, decision=None, error=error)
    if not refused:
        return row
    why = "; ".join(f"{os.path.basename(one.item.path)} beside it: {one.why}" for one in refused)
    return replace(row, decision=replace(refused[0], item=decision.item, why=why))


def _show(checked: list[Row], *, in_full: bool) -> None:
    """One line each; tools of the installation are only counted, unless they have a problem."""
    paint = paint_for(sys.stdout)
    installed = 0
    for row in checked:
        if row.decision is None:
            print(f"{paint(sign('failed'), 'red')} {row.id}  {row.space}: cannot be used")
            if row.error is not None:
                show_error(row.error)
        elif row.decision.by == "manifest" and not in_full:
            installed += 1
        else:
            state = "done" if row.decision.allowed else "failed"
            mark = paint(sign(state), state_colour(state))
            print(f"{mark} {row.id}  {row.space}: {cut(row.decision.why, None)}")
            if not row.decision.allowed and row.decision.fix:
                print(f"  fix: {cut(row.decision.fix, None)}")
    if installed:
        print(
            f"{paint(sign('done'), 'green')} {installed} files of the installation are as they were "
            "installed"
        )


def _status(checked: list[Row]) -> int:
    if any(row.decision is not None and not row.decision.allowed for row in checked):
        return REFUSED
    return listing_exit_code(checked)


def _record(row: Row) -> Json:
    if row.decision is None:
        return {
            "item_id": row.id,
            "path": row.path,
            "error": error_data(row.error) if row.error else None,
        }
    return {
        "path": row.path,
        "fix": row.decision.fix or None,
        "code": row.decision.code or None,
        **row.decision.record(),
    }
