"""An explanation of a template as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import Final
from plait.core.values import Json
from plait.lang.analysis.explain import Explanation, PlaceholderRow
from plait.views.terminal import QUOTED, Paint, cut, format_problem, printable, problem_data

MAX_VALUE: Final = 60
COLOURS: Final = {
    "missing": "red",
    "alias": "yellow",
    "default": "yellow",
    "computed": "cyan",
    "shell": "dim",
}


def render_explanation(
    explanation: Explanation, paint: Paint, columns: int | None, *, headed: bool
) -> Iterator[str]:
    if headed and explanation.place:
        yield paint(printable(explanation.place), "dim")
    margin = max(len(explanation.label), len("runs as")) + 1
    indent = " " * margin
    for number, line in enumerate(explanation.text.rstrip("\n").split("\n")):
        label = explanation.label.ljust(margin) if number == 0 else indent
        yield paint(label, "bold") + printable(line)
    cells = list(_cells(explanation.rows, ""))
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(3)]
    for *plain, colour in cells:
        yield from _lines(plain, widths, indent, paint, colour, columns)
    if not explanation.rows:
        yield indent + paint("no placeholders: this text is the same for every value", "dim")
    if explanation.runs_as is not None:
        first, *rest = printable(explanation.runs_as.rstrip("\n")).split("\n")
        note = paint(QUOTED, "dim")
        yield paint("runs as".ljust(margin), "bold") + first + ("" if rest else f"      {note}")
        yield from (indent + line for line in rest)
        if rest:
            yield indent + note
    for problem in explanation.problems:
        yield format_problem(problem, paint)


def _cells(
    rows: tuple[PlaceholderRow, ...], before: str
) -> Iterator[tuple[str, str, str, str, str]]:
    for number, row in enumerate(rows):
        last = number == len(rows) - 1
        branch = "└ " if last else "├ "
        colour = COLOURS.get(row.status, "green")
        kind = f"{row.kind}, stage {row.stage}" if row.stage else row.kind
        value = "" if row.value is None else cut(row.value, MAX_VALUE)
        yield (
            before + branch + cut(row.text, 42),
            f"{kind}: {row.answer}",
            value,
            row.bound or "",
            colour,
        )
        yield from _cells(row.inner, before + ("  " if last else "│ "))


def _lines(
    cells: list[str], widths: list[int], indent: str, paint: Paint, colour: str, columns: int | None
) -> Iterator[str]:
    """One line; on a terminal that is too narrow, one line per cell.  Only the value is cut."""
    placeholder, answer, value, bound = cells
    wide = len(indent) + sum(widths) + len(bound) + 9
    if columns is None or wide <= columns:
        value = value.ljust(widths[2]) if bound else value
        line = f"{indent}{placeholder.ljust(widths[0])}   {paint(answer.ljust(widths[1]), colour)}   {value}"
        yield f"{line}   {paint(bound, 'dim')}".rstrip()
        return
    below = indent + "    "
    yield indent + placeholder
    yield below + paint(answer, colour)
    if value:
        yield below + cut(value, max(columns - len(below), 8))
    if bound:
        yield below + paint(bound, "dim")


def explanation_json(explanation: Explanation) -> Json:
    data: dict[str, Json] = {
        "place": explanation.place or None,
        "text": explanation.text,
        "profile": explanation.profile,
        "placeholders": [_row_data(row) for row in explanation.rows],
    }
    if explanation.runs_as is not None:
        data["runs_as"] = explanation.runs_as
    if explanation.problems:
        data["problems"] = [problem_data(problem) for problem in explanation.problems]
    return data


def _row_data(row: PlaceholderRow) -> Json:
    data: dict[str, Json] = {
        "placeholder": row.text,
        "kind": row.kind,
        "stage": row.stage,
        "status": row.status,
        "answer": row.answer,
        "value": row.value,
    }
    if row.bound is not None:
        data["bound"] = row.bound
    if row.inner:
        data["inner"] = [_row_data(inner) for inner in row.inner]
    return data
