"""Positions of the protocol, a line and a UTF-16 column, as offsets of a text, and back.

A line ends with `\\n`, `\\r\\n` or `\\r`.  A position outside of the text is the nearest one in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from plait.core.patterns import lazy_pattern
from plait.core.values import Json

_LINE_END = lazy_pattern(r"\r\n|\n|\r")


class Lines:
    """The lines of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        ends: list[re.Match[str]] = list(_LINE_END.finditer(text))
        self.starts = [0, *(end.end() for end in ends)]
        self.ends = [*(end.start() for end in ends), len(text)]

    def offset(self, position: Json) -> int:
        line = _number(position, "line")
        if line >= len(self.starts):
            return len(self.text)
        start, end = self.starts[line], self.ends[line]
        units = _number(position, "character")
        for offset in range(start, end):
            if units <= 0:
                return offset
            units -= 2 if ord(self.text[offset]) > 0xFFFF else 1
        return end

    def position(self, offset: int) -> dict[str, Json]:
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self.starts, offset) - 1
        before = self.text[self.starts[line] : min(offset, self.ends[line])]
        return {"line": line, "character": len(before) + sum(ord(c) > 0xFFFF for c in before)}

    def range(self, start: int, end: int) -> dict[str, Json]:
        return {"start": self.position(start), "end": self.position(end)}


def _number(position: Json, key: str) -> int:
    value = position.get(key) if isinstance(position, dict) else None
    return max(0, value) if isinstance(value, int) else 0


def apply_change(text: str, change: Json) -> str:
    """The text after a change, of a range or of all of it."""
    if not isinstance(change, dict) or not isinstance(new := change.get("text"), str):
        return text
    place = change.get("range")
    if not isinstance(place, dict):
        return new
    lines = Lines(text)
    start, end = lines.offset(place.get("start")), lines.offset(place.get("end"))
    return text[:start] + new + text[max(start, end) :]
