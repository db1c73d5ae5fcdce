"""`plait worktrees`: what runs left behind of the worktrees of their items."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from plait.cli.project import add_project, require_folder
from plait.core.hints import TYPE_CHECKING, Final, Protocol, TextIO
from plait.core.values import Json
from plait.views.format import one_line
from plait.views.terminal import format_table, paint_for, width, write_json

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait worktrees",
    "plait worktrees --clean",
)
HEAD: Final = ("RUN", "COMMITS", "FILES", "BRANCH", "FOLDER")


class Left(Protocol):
    """One thing that a run left behind."""

    @property
    def run(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def commits(self) -> int | None: ...
    @property
    def files(self) -> int: ...
    @property
    def running(self) -> bool: ...
    @property
    def why(self) -> str: ...
    def record(self) -> dict[str, Json]: ...


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

    require_folder(options.project)
    found: Sequence[Left] = flows.list_leftovers(options.project, clean=options.clean)
    if options.json:
        write_json([one.record() for one in found])
    else:
        show(found, sys.stdout, cleaned=options.clean)
    return 0


def show(found: Sequence[Left], stream: TextIO, *, cleaned: bool) -> None:
    if not found:
        print("nothing is left behind", file=stream)
        return
    paint = paint_for(stream)
    rows = [HEAD, *map(_cells, found)]
    for number, line in enumerate(format_table(rows, width(stream))):
        print(paint(line, "bold") if number == 0 else line, file=stream)
    for one in found:
        if one.why:
            print(f"{one_line(_place(one))}: {one_line(one.why, None)}", file=stream)
    if not cleaned:
        print(
            "plait worktrees --clean removes what is merged; unmerged commits keep their branch",
            file=stream,
        )
        return
    if any(one.branch and not one.path for one in found):
        print(
            "merge what you want: git merge BRANCH; or drop it: git branch -D BRANCH", file=stream
        )
    if any(one.path and not one.running and not one.why for one in found):
        print(
            "a folder stays that holds what no branch can: take what you need, then rm -r FOLDER",
            file=stream,
        )


def _cells(one: Left) -> tuple[str, ...]:
    return (
        one_line(one.run) + (" (running)" if one.running else ""),
        "?" if one.commits is None else str(one.commits) if one.commits else "—",
        str(one.files) if one.files else "—",
        one_line(one.branch) or "—",
        one_line(_place(one)) if one.path else "—",
    )


def _place(one: Left) -> str:
    return os.path.relpath(one.path)
