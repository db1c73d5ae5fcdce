"""What `plait worktrees` prints: the leftovers of runs as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence

from plait.core.hints import Final, Protocol, TextIO
from plait.core.values import Json
from plait.views.format import one_line
from plait.views.terminal import format_table, paint_for, width

HEAD: Final = ("RUN", "COMMITS", "FILES", "BRANCH", "FOLDER")
NOTHING: Final = "—"


class Leftover(Protocol):
    """A folder or branch that a run left."""

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


def show_leftovers(found: Sequence[Leftover], stream: TextIO, *, cleaned: bool) -> None:
    """The table, and what to do next.  `cleaned`: it is what `--clean` could not remove."""
    if not found:
        print("nothing is left behind", file=stream)
        return
    paint = paint_for(stream)
    rows = [HEAD, *map(_cells, found)]
    for number, line in enumerate(format_table(rows, width(stream))):
        print(paint(line, "bold") if number == 0 else line, file=stream)
    for one in found:
        if one.why:
            print(f"{one_line(_folder(one))}: {one_line(one.why, None)}", file=stream)
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


def _cells(one: Leftover) -> tuple[str, ...]:
    return (
        one_line(one.run) + (" (running)" if one.running else ""),
        "?" if one.commits is None else str(one.commits) if one.commits else NOTHING,
        str(one.files) if one.files else NOTHING,
        one_line(one.branch) or NOTHING,
        one_line(_folder(one)) if one.path else NOTHING,
    )


def _folder(one: Leftover) -> str:
    return os.path.relpath(one.path)
