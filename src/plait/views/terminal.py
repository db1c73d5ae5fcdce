"""Output of every command: text, colour, JSON, errors.

Colour is for terminals.  `NO_COLOR` turns it off, `FORCE_COLOR` on; `--color` wins over both.
An error cannot drive a terminal: its control characters are replaced.  A result is written byte for
byte to a file or a pipe; on a terminal the control characters in the result of a tool are escaped.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.core.errors import InputError, PlaitError, Problem
from plait.core.hints import Final, TextIO
from plait.core.source import Span, draw
from plait.core.values import Json, json_text

_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
QUOTED: Final = "(shown quoted; values are passed, never pasted)"
"""The remark beside a shell command that Plait shows with its values."""
DEFAULT_WIDTH: Final = 100
MIN_WIDTH: Final = 20
Paint = Callable[[str, str], str]


def paint_for(stream: TextIO) -> Paint:
    """`paint(text, "red")`: coloured on a terminal, unchanged anywhere else."""
    return _colour_text if wants_colour(stream) else _plain


COLOUR_MODES: Final = ("auto", "always", "never")
_colour_mode: list[str] = ["auto"]


def set_colour(mode: str) -> None:
    """`--color`: InputError if it is none of the three modes."""
    if mode not in COLOUR_MODES:
        raise InputError(
            f"--color must be auto, always or never, not '{mode[:60]}'",
            fix="for example --color never",
            code="arguments",
        )
    _colour_mode[0] = mode


def wants_colour(stream: TextIO) -> bool:
    if _colour_mode[0] != "auto":
        return _colour_mode[0] == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _colour_text(text: str, colour: str) -> str:
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if text else text


def _plain(text: str, colour: str) -> str:  # noqa: ARG001 - the shape of a Paint
    return text


def is_interactive() -> bool:
    """Can a question be asked: are standard input and standard error a terminal?"""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def width(stream: TextIO) -> int | None:
    """Columns of the terminal; None if the stream is not one."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(int(columns), MIN_WIDTH)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, MIN_WIDTH)
    except OSError:
        return DEFAULT_WIDTH


def cut(text: str, room: int | None) -> str:
    """One printable line of at most `room` characters."""
    line = printable(text.replace("\n", "⏎"))
    return line if room is None or len(line) <= room else line[: max(room - 1, 0)] + "…"


def printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def pluralize(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def count_columns(text: str) -> int:
    """How many columns of a terminal a text takes: a wide character takes two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def fold_line(line: str, room: int | None) -> Iterator[str]:
    """One line in pieces that fit, all but the first indented.

    A terminal would wrap a long line to its left edge, where the rest looks like a line of Plait.
    """
    if room is None:
        yield line
        return
    margin = " " * 6
    piece, used = "", 0
    for letter in line:
        wide = count_columns(letter)
        if used + wide > room:
            yield piece
            piece, used = margin, len(margin)
        piece, used = piece + letter, used + wide
    yield piece


def format_table(table: Sequence[Sequence[str]], columns: int | None) -> Iterator[str]:
    """Rows with aligned cells; the last cell is cut at the width of the terminal."""
    clean = [[cut(cell, None) for cell in row] for row in table]
    widths = [max(map(count_columns, cells)) for cells in zip(*clean, strict=True)][:-1]
    for *cells, last in clean:
        padded = (
            cell + " " * (size - count_columns(cell) + 3)
            for cell, size in zip(cells, widths, strict=True)
        )
        line = "".join(padded) + last
        yield cut(line.rstrip(), columns)


# ── results ──────────────────────────────────────────────────────────────


def write_value(value: Json) -> None:
    """Text as it is and a newline; anything else as JSON."""
    if isinstance(value, str):
        write_bytes(_encode_text(value) + b"\n")
    else:
        write_json(value)


def write_json(value: Json) -> None:
    write_bytes(json_bytes(value))


def write_result(value: Json) -> None:
    """The result of a tool: text with one newline at its end, anything else as JSON."""
    if isinstance(value, str):
        data = _encode_text(value if value.endswith("\n") else f"{value}\n")
    else:
        data = json_bytes(value)
    if sys.stdout.isatty():
        data = without_controls(data.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "backslashreplace"
        )
    write_bytes(data)


_CONTROLS: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]"


def without_controls(text: str) -> str:
    """The text with control characters and changes of direction escaped."""
    return re.sub(_CONTROLS, lambda found: f"\\u{ord(found[0]):04x}", text)


def json_bytes(value: Json) -> bytes:
    """One line of JSON; only what UTF-8 cannot encode is escaped."""
    line = json_text(value)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(json.loads(line)).encode() + b"\n"


def write_bytes(data: bytes, stream: TextIO | None = None) -> None:
    """Write without encoding: a result may hold bytes that are not UTF-8."""
    stream = sys.stdout if stream is None else stream
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(
            "the result holds half of a character pair, which cannot be printed",
            fix="print it escaped, with --json",
            code="not-printable",
        ) from None


# ── errors ───────────────────────────────────────────────────────────────


def with_json_errors(work: Callable[[], int], fields: Mapping[str, Json]) -> int:
    """The exit code of a command with `--json`: its error is printed as JSON, after `fields`."""
    try:
        return work()
    except PlaitError as error:
        if error.exit_code == 4:
            raise
        line = json_text({**fields, "error": error_data(error)})
        if not line.isprintable():
            line = json.dumps(json.loads(line))
        print(line)
        return error.exit_code


def show_error(error: PlaitError) -> None:
    paint = paint_for(sys.stderr)
    for problem in error.problems:
        print(format_problem(problem, paint), file=sys.stderr)


def format_problem(problem: Problem, paint: Paint, *, mark: str = "", colour: str = "red") -> str:
    """A problem with its place, its drawing and its fix; `mark` stands before the problem."""
    place = f"{cut(str(problem.where), None)}: " if problem.where else ""
    what = printable(problem.what)
    lines = [paint(place, "bold") + (paint(mark, colour) + what if mark else paint(what, colour))]
    if isinstance(problem.where, Span):
        drawn = draw([problem.where, *problem.also]).split("\n")
        lines += [paint(line, colour) if number % 2 else line for number, line in enumerate(drawn)]
    if problem.fix:
        lines.append(paint("fix:", "green") + f" {printable(problem.fix)}")
    return "\n".join(lines)


def error_data(error: PlaitError) -> dict[str, Json]:
    """An error as JSON: the first problem, and all of them if there are more."""
    data: dict[str, Json] = {"type": type(error).__name__, **problem_data(error.problems[0])}
    names = getattr(error, "names", None) or getattr(error, "missing_variables", None)
    if names:
        data["names"] = list(names)
    if len(error.problems) > 1:
        data["problems"] = [problem_data(problem) for problem in error.problems]
    return data


def problem_data(problem: Problem) -> dict[str, Json]:
    return {
        "what": problem.what,
        "where": place_data(problem.where),
        "fix": problem.fix,
        "code": problem.code,
    }


def place_data(where: Span | str | None) -> Json:
    if isinstance(where, Span):
        line, column = where.position
        return {"file": where.place.source.name, "line": line, "column": column}
    if not where:
        return None
    # A place as text, which has no drawing.
    found = re.fullmatch(r"(.*?)(?::(\d+))?(?::(\d+))?", where, re.DOTALL)
    assert found is not None
    name, *numbers = found.groups()
    at = [int(number) if number else None for number in numbers]
    return {"file": name, "line": at[0], "column": at[1]}
