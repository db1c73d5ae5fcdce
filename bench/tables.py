"""A table of results, for a terminal and for Markdown, with the checks of its bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from measure import Times


@dataclass(frozen=True)
class Bar:
    """At most this multiple of the reference."""

    most: float

    def __str__(self) -> str:
        return f"≤ {self.most:g}"


@dataclass(frozen=True)
class Figures:
    """The history of a row: least seconds, and multiples of the reference row."""

    wall: float | None
    computing: float | None = None
    ratio: float | None = None
    computing_ratio: float | None = None


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[str, ...]
    """Those that are missing at the end are empty."""
    bar: str = ""
    passed: bool | None = None
    figures: Figures | None = None

    @property
    def mark(self) -> str:
        return {None: "", True: "✓", False: "✗"}[self.passed]


@dataclass(frozen=True)
class Table:
    title: str
    meaning: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def missed(self) -> list[str]:
        return [f"{self.title}: {row.name}" for row in self.rows if row.passed is False]

    def _grid(self) -> list[tuple[str, ...]]:
        head = (*self.columns, "bar", "")
        return [head, *((*self._filled(row), row.bar, row.mark) for row in self.rows)]

    def _filled(self, row: Row) -> tuple[str, ...]:
        cells = (row.name, *row.cells)
        return (*cells, *[""] * (len(self.columns) - len(cells)))

    def plain(self) -> str:
        return "\n".join([self.title, *aligned(self._grid())])

    def markdown(self) -> str:
        head, *body = self._grid()
        rule = ["---", *["---:"] * (len(head) - 2), "---"]
        lines = [f"| {' | '.join(line)} |" for line in (head, rule, *body)]
        return "\n".join([f"## {self.title}", "", self.meaning, "", *lines])


def aligned(grid: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines for a terminal: the first column to the left, the others to the right."""
    widths = [max(len(line[at]) for line in grid) for at in range(len(grid[0]))]
    return [f"  {_aligned(line, widths)}".rstrip() for line in grid]


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
    return "  ".join([f"{line[0]:<{len(first)}}", *others])


@dataclass(frozen=True)
class Plan:
    """A table that is not measured yet; a run may skip it."""

    title: str
    measure: Callable[[str], Table]
    """Measures the table, given its title."""


def part_and_piece(only: str) -> tuple[str, str]:
    """`fanout.1000` is the part `fanout` and the piece `1000` of its titles."""
    part, _, piece = only.partition(".")
    return part, piece


def holds(title: str, piece: str) -> bool:
    """Whether a title has a piece: at the beginning of a word, and a number as a whole.

    Case and the commas of numbers do not count.
    """
    plain = title.lower().replace(",", "")
    wanted = re.escape(piece.lower().replace(",", ""))
    return (
        re.search(rf"(?<!\w){wanted}" + (r"(?!\d)" if piece[-1:].isdigit() else ""), plain)
        is not None
    )


def compared(
    title: str, meaning: str, times: Mapping[str, Times], *, to: str, bars: Mapping[str, Bar]
) -> Table:
    """Every contender as a multiple of one of them; bars hold for the least wall time."""
    reference = times[to]
    columns = ("", "least time", f"× {to}", "by medians")
    if reference.computing is not None:
        columns += ("computing", f"× {to}")
    rows = []
    for name, seen in times.items():
        ratio = seen.least / reference.least
        bar = bars.get(name)
        figures = figures_of(seen, reference)
        cells = (shown(seen.least), times_as(ratio), times_as(seen.median / reference.median))
        cells += computing_cells(figures)
        passed = None if bar is None else ratio <= bar.most
        rows.append(Row(name, cells, str(bar or ""), passed, figures))
    return Table(title, meaning, columns, tuple(rows))


def compared_by_computing(
    title: str, meaning: str, times: Mapping[str, Times], *, to: str, bars: Mapping[str, Bar]
) -> Table:
    """As `compared`, with bars for the computing time of the whole process tree."""
    rows = []
    for name, seen in times.items():
        figures = figures_of(seen, times[to])
        ratio, bar = figures.computing_ratio, bars.get(name)
        cells = (shown(seen.least), times_as(seen.least / times[to].least))
        passed = None if bar is None or ratio is None else ratio <= bar.most
        text = "" if bar is None else f"computing {bar}"
        rows.append(Row(name, (*cells, *computing_cells(figures)), text, passed, figures))
    return Table(title, meaning, ("", "least time", f"× {to}", "computing", f"× {to}"), tuple(rows))


def figures_of(seen: Times, reference: Times) -> Figures:
    share = seen.computing / reference.computing if seen.computing and reference.computing else None
    return Figures(seen.least, seen.computing, seen.least / reference.least, share)


def computing_cells(figures: Figures) -> tuple[str, ...]:
    """Computing time and its ratio, if measured."""
    if figures.computing is None:
        return ()
    share = figures.computing_ratio
    return (shown(figures.computing), "" if share is None else times_as(share))


def shown(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 999 * size
                else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds / 1e-9:.0f} ns"


def times_as(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"
