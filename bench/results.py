"""The files with the results of the measurements.

The last tables of each part are in a file of their own, so a run that is cut loses one part and not
all.  `history.jsonl` has one line for every table that was ever measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tables import Figures, Row, Table, aligned, shown, times_as

FOLDER = Path(__file__).resolve().parent / "results"
HISTORY = FOLDER / "history.jsonl"
NOTEWORTHY = 0.05
"""A ratio that changed by more than this share is reported."""


@dataclass(frozen=True)
class Measured:
    """The tables of a part, with the time and machine of their measurement."""

    day: str
    machine: str
    tables: list[Table]

    def with_newer(self, newer: list[Table], day: str, machine: str) -> Measured | None:
        """Return the part with newly measured tables; None if the tables or the machine differ."""
        by_title = {table.title: table for table in newer}
        if self.machine != machine or by_title.keys() - {one.title for one in self.tables}:
            return None
        tables = [by_title.get(table.title, table) for table in self.tables]
        return Measured(day, machine, tables)


def keep(part: str, measured: Measured) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(asdict(measured), ensure_ascii=False, indent=1)
    (FOLDER / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def kept(part: str) -> Measured | None:
    file = FOLDER / f"{part}.json"
    if not file.exists():
        return None
    data = json.loads(file.read_text(encoding="utf-8"))
    return Measured(data["day"], data["machine"], [_table(one) for one in data["tables"]])


def _table(data: dict[str, Any]) -> Table:
    rows = tuple(_row(one) for one in data["rows"])
    return Table(data["title"], data["meaning"], tuple(data["columns"]), rows)


def _row(data: dict[str, Any]) -> Row:
    figures = Figures(**data["figures"]) if data.get("figures") else None
    return Row(data["name"], tuple(data["cells"]), data["bar"], data["passed"], figures)


# ── the history ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Note:
    """A line of the history: one table."""

    date: str
    commit: str
    machine: str
    load: float
    """The share of the cores that other programs used before the part began."""
    part: str
    table: str
    rows: dict[str, Figures]


def figures_in(table: Table) -> dict[str, Figures]:
    return {row.name: row.figures for row in table.rows if row.figures is not None}


def add_note(note: Note, file: Path = HISTORY) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(note), ensure_ascii=False) + "\n")


def notes(file: Path = HISTORY) -> list[Note]:
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Note(**{**line, "rows": {name: Figures(**one) for name, one in line["rows"].items()}})
        for line in lines
    ]


def last_note(earlier: Sequence[Note], note: Note) -> Note | None:
    """The last line about the same table on the same machine."""
    key = (note.machine, note.part, note.table)
    return next(
        (one for one in reversed(earlier) if (one.machine, one.part, one.table) == key), None
    )


def changes(note: Note, before: Note) -> list[str]:
    """A line for each ratio that changed by more than 5 %."""
    found = []
    for name, now in note.rows.items():
        then = before.rows.get(name)
        if then is None:
            continue
        for what, new, old in (
            ("wall", now.ratio, then.ratio),
            ("computing", now.computing_ratio, then.computing_ratio),
        ):
            if new and old and abs(new / old - 1) > NOTEWORTHY:
                found.append(
                    f"{note.part}, {note.table}: {name}: {what} × {times_as(old)} → × "
                    f"{times_as(new)} ({new / old - 1:+.0%} since {before.date}, {before.commit})"
                )
    return found


def history_text(lines: Sequence[Note]) -> str:
    """All lines, table by table, the oldest first."""
    grids: dict[str, list[tuple[str, ...]]] = {}
    for note in lines:
        title = f"{note.part}: {note.table}\n  {note.machine}"
        grid = grids.setdefault(
            title, [("", "date", "commit", "load", "wall", "×", "computing", "×")]
        )
        about = (note.date, note.commit, f"{note.load:.0%}")
        grid += [(name, *about, *_figure_cells(one)) for name, one in note.rows.items()]
    return "\n\n".join("\n".join([title, *aligned(grid)]) for title, grid in grids.items())


def _figure_cells(one: Figures) -> tuple[str, ...]:
    wall, computing = ("" if it is None else shown(it) for it in (one.wall, one.computing))
    ratio, share = ("" if it is None else times_as(it) for it in (one.ratio, one.computing_ratio))
    return (wall, ratio, computing, share)


def commit_name() -> str:
    """The commit of this tree, with a plus sign if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
