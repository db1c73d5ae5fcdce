"""The place of a text: a source, and a span in it.

A span draws itself for people: `file:line:column`, the line, and carets under the exact characters.
A text that is part of a larger text (a YAML scalar) is an `Excerpt`: its spans show their place in
the outer file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache

from plait.core.records import dataclass, field

MAX_DRAWN_COLUMNS = 160


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A named text; `name` is what an error prints before the line number."""

    name: str
    text: str

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from one."""
        starts = _line_starts(self.text)
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(starts, offset) - 1
        return line + 1, offset - starts[line] + 1

    def line(self, number: int) -> str:
        starts = _line_starts(self.text)
        start = starts[number - 1]
        end = starts[number] if number < len(starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def outer_span(self, start: int, end: int) -> Span:
        """The span of `start..end` in the outermost text."""
        return Span(self, start, end)


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt(Source):
    """Text that is part of another source, not always letter for letter.

    `origin` maps an offset of this text to an offset of the outer one (a YAML scalar loses its
    indentation and its escapes).
    """

    outer: Source = field(kw_only=True)
    origin: Callable[[int], int] = field(kw_only=True)

    def outer_span(self, start: int, end: int) -> Span:
        first = self.origin(start)
        last = self.origin(end - 1) + 1 if end > start else first
        return self.outer.outer_span(first, max(first, last))


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` up to, not including, `end`."""

    source: Source
    start: int
    end: int

    def __str__(self) -> str:
        line, column = self.position
        return f"{self.place.source.name}:{line}:{column}"

    @property
    def place(self) -> Span:
        """This span in the file that a person can open."""
        return self.source.outer_span(self.start, self.end)

    @property
    def position(self) -> tuple[int, int]:
        place = self.place
        return place.source.position(place.start)

    def draw(self) -> str:
        return draw([self])


def draw(spans: Iterable[Span]) -> str:
    """The lines on which the spans start, with carets under all of them."""
    rows: dict[tuple[int, int], list[Span]] = {}
    for span in (span.place for span in spans):
        rows.setdefault((id(span.source), span.source.position(span.start)[0]), []).append(span)
    return "\n".join(_draw_line(number, spans) for (_, number), spans in rows.items())


def _draw_line(number: int, spans: list[Span]) -> str:
    line = spans[0].source.line(number)
    carets = [" "] * (len(line) + 1)
    for span in spans:
        column = span.source.position(span.start)[1] - 1
        width = max(1, min(span.end - span.start, len(line) - column))
        carets[column : column + width] = "^" * width
    shown, marks = _window(line, "".join(carets).rstrip())
    gutter = str(number)
    # A tab must stay a tab in the caret line, or the carets move.
    marks = "".join(
        "\t" if a == "\t" and b == " " else b
        for a, b in zip(shown.ljust(len(marks)), marks, strict=False)
    )
    # Control characters in a quoted line could drive the reader's terminal.
    shown = "".join(c if c.isprintable() or c == "\t" else "�" for c in shown)
    return f"{gutter} | {shown}\n{' ' * len(gutter)} | {marks}"


def _window(line: str, carets: str) -> tuple[str, str]:
    """Cut a very long line around its first caret."""
    if len(line) <= MAX_DRAWN_COLUMNS:
        return line, carets
    start = max(0, len(carets) - len(carets.lstrip()) - MAX_DRAWN_COLUMNS // 4)
    end = start + MAX_DRAWN_COLUMNS
    left, right = ("…" if start else ""), ("…" if end < len(line) else "")
    return left + line[start:end] + right, " " * len(left) + carets[start:end]


@lru_cache(maxsize=2)  # a file with many problems needs the same text many times
def _line_starts(text: str) -> list[int]:
    starts = [0]
    find = text.find
    at = find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = find("\n", at + 1)
    return starts
