"""A table of results, for a terminal and for Markdown; its bars are judged in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from measure import Times


@dataclass(frozen=True)
class Bar:
    """At most so many times the reference."""

    most: float

    def __str__(self) -> str:
        return f"≤ {self.most:g}"


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[str, ...]
    bar: str = ""
    passed: bool | None = None

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
        return [head, *((row.name, *row.cells, row.bar, row.mark) for row in self.rows)]

    def plain(self) -> str:
        grid = self._grid()
        widths = [max(len(line[at]) for line in grid) for at in range(len(grid[0]))]
        lines = [_aligned(line, widths) for line in grid]
        return "\n".join([self.title, *(f"  {line}".rstrip() for line in lines)])

    def markdown(self) -> str:
        head, *body = self._grid()
        rule = ["---", *["---:"] * (len(head) - 2), "---"]
        lines = [f"| {' | '.join(line)} |" for line in (head, rule, *body)]
        return "\n".join([f"## {self.title}", "", self.meaning, "", *lines])


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
    return "  ".join([f"{line[0]:<{len(first)}}", *others])


def compared(
    title: str, meaning: str, times: Mapping[str, Times], *, to: str, bars: Mapping[str, Bar]
) -> Table:
    """Every contender as a multiple of one of them; bars hold for the minimum."""
    reference = times[to]
    rows = []
    for name, seen in times.items():
        ratio = seen.least / reference.least
        bar = bars.get(name)
        cells = (shown(seen.least), times_as(ratio), times_as(seen.median / reference.median))
        rows.append(Row(name, cells, str(bar or ""), None if bar is None else ratio <= bar.most))
    return Table(title, meaning, ("", "least time", f"× {to}", "by medians"), tuple(rows))


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
