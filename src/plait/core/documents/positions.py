"""Map a character of a YAML string to its place in the file.

YAML drops indentation, folds lines and replaces escapes, so value and file differ. This module
keeps the runs that both have in common. They are computed only when an error needs a place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache

from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.source import Span

VERBATIM: Final = "="
"""The style of text that has the same characters in the file."""


def origin(value: str, span: Span, style: str) -> Callable[[int], int]:
    """Return the `origin` of the excerpt `value`, which is written at `span` in the style `' "
    | >` or plain.
    """

    if style == VERBATIM:
        return lambda offset: span.start + offset

    @cache
    def runs() -> tuple[list[int], list[int]]:
        found = list(
            _block_runs(value, span, style) if style in ("|", ">") else _flow_runs(span, style)
        )
        return [start for start, _ in found], [place for _, place in found]

    def place(offset: int) -> int:
        starts, places = runs()
        run = bisect_right(starts, offset) - 1
        return places[run] + offset - starts[run]

    return place


_Run: TypeAlias = tuple[int, int]
"""A run: an offset of the value, and the offset of the file from which the same characters follow.
"""

_FOLD = r"(?P<fold>[ \t]*+(?:\r?\n[ \t]*+)+)"
_FLOW_PARTS: Final = {
    "": lazy_pattern(_FOLD + r"|(?P<run>[ \t]++|[^ \t\r\n]++)"),
    "'": lazy_pattern(_FOLD + r"|(?P<escape>'')|(?P<run>[ \t]++|[^ \t\r\n']++)"),
    '"': lazy_pattern(
        r"(?P<continued>\\\r?\n[ \t]*+(?:\r?\n[ \t]*+)*)|(?P<escape>\\(?:x..|u.{4}|U.{8}|.))|"
        + _FOLD
        + r"|(?P<run>[ \t]++|[^ \t\r\n\\]++)"
    ),
}


def _flow_runs(span: Span, style: str) -> Iterator[_Run]:
    """The runs of plain and quoted text: one line break is a blank; of several, the first is
    dropped.
    """
    quote = len(style)
    first, end = span.start + quote, span.end - quote
    offset = 0
    for part in _FLOW_PARTS[style].finditer(span.source.text, first, end):
        match part.lastgroup:
            case "run":
                yield offset, part.start()
                offset += part.end() - part.start()
            case "escape":
                yield offset, part.start()
                offset += 1
            case kind:
                breaks = [part.start() + found.start() for found in re.finditer(r"\r?\n", part[0])]
                for place in breaks[1:] if kind == "continued" or len(breaks) > 1 else breaks:
                    yield offset, place
                    offset += 1
    yield offset, end


_LINE = lazy_pattern(r"([^\r\n]*+)(?:\r?\n|\Z)")


def _block_runs(value: str, span: Span, style: str) -> Iterator[_Run]:
    """The runs of block text: indentation is dropped; in `>`, a single break between unindented
    lines is a blank.
    """
    text, end = span.source.text, span.end
    body = text.find("\n", span.start) + 1 or end
    lines = [found.span(1) for found in _LINE.finditer(text, body, end)]
    indent = _indentation(lines, text, value)
    offset, breaks, folds = 0, list[int](), False
    for start, stop in lines:
        content = start + indent
        if content >= stop:
            breaks.append(stop)
            continue
        may_fold = style == ">" and text[content] not in " \t"
        for place in breaks[1:] if folds and may_fold and len(breaks) > 1 else breaks:
            yield offset, place
            offset += 1
        yield offset, content
        offset, breaks, folds = offset + stop - content, [stop], may_fold
    for place in [*breaks, end]:
        yield offset, place
        offset += 1


def _indentation(lines: list[tuple[int, int]], text: str, value: str) -> int:
    """How far each line is indented, as the first line that is not blank shows.

    Up to that line the value has the same lines as the file, in both styles.
    """
    rows = value.split("\n")
    telling = next((i for i, row in enumerate(rows) if row.strip(" ")), None)
    if telling is None:
        telling = next((i for i, row in enumerate(rows) if row), None)
    if telling is None:
        return len(text)
    start, stop = lines[telling]
    if not rows[telling].strip(" "):
        return stop - start - len(rows[telling])
    return _blanks(text[start:stop]) - _blanks(rows[telling])


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
