"""What a literal in code may stand for: JSON data of a bounded size, and nothing else.

What is no such data is `Refused`, with the place and the fix; the name of the
key is added by whoever asked for its value.  What is too large to be read at
all is a `LimitError` of the whole file.
"""

from __future__ import annotations

from math import isfinite

from plait.core import documents
from plait.core.errors import LimitError
from plait.core.source import Source, Span
from plait.core.values import Json


class Refused(Exception):
    """A value that is no plain data; `what` goes on after the name of its key."""

    def __init__(self, what: str, where: Span, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix


def computed(where: Span) -> Refused:
    fix = "write the value itself: text, a number, true, false, null, a list or a map of them"
    return Refused("is computed: a header is read, never executed", where, fix)


def expect_text(value: str, where: Span) -> str:
    if "\0" in value or not _is_whole(value):
        raise Refused("holds NUL or half of a character pair", where, "remove the escape")
    return value


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def expect_finite(value: float, where: Span) -> float:
    large = value.bit_length() > 4 * documents.MAX_DIGITS if isinstance(value, int) else not isfinite(value)
    if large:
        raise Refused("holds a number that is too large", where, "write it as text")
    return value


def expect_size(source: Source, limit: int) -> None:
    if len(source.text) > limit:
        what, fix = f"this file is larger than {limit:,} characters", "keep large data in files of their own"
        raise LimitError(what, source.name, fix, code="too-large")


def expect_depth(depth: int, where: Span) -> None:
    if depth > documents.MAX_DEPTH:
        what = f"this is nested deeper than {documents.MAX_DEPTH} levels"
        raise LimitError(what, where, "flatten it, or move it to a file of its own", code="too-deep")


def put(table: dict[str, Json], key: str, where: Span, value: Json) -> None:
    if key in table:
        raise Refused("has a key that stands twice", where, "remove or rename one of them")
    table[key] = value
