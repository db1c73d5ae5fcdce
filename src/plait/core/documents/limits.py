"""How large a document may be, and how much of it a message shows.

The limits apply to the built document, not to the text: an alias counts as if its value were
written there again.
"""

from __future__ import annotations

from plait.core.errors import LimitError, shorten
from plait.core.hints import Final
from plait.core.source import Span

MAX_TEXT: Final = 4 * 1024 * 1024
MAX_JSON_TEXT: Final = 64 * 1024 * 1024
MAX_NODES: Final = 200_000
MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 3_500
"""An integer with this many hexadecimal digits is still one that Python prints."""
MAX_PROBLEMS: Final = 25
"""Reading stops at this number of problems: more do not help a person, and drawing each takes time.
"""
MAX_SHOWN: Final = 60
"""Characters of a name in a message."""


def require_size(size: int, limit: int, where: str, *, unit: str) -> None:
    if size > limit:
        what = f"this file is larger than {limit:,} {unit}"
        raise LimitError(
            what, where, "split it, or keep large data in files of their own", code="too-large"
        )


def too_deep(where: Span | str) -> LimitError:
    what = f"this is nested deeper than {MAX_DEPTH} levels"
    return LimitError(what, where, "flatten it, or split the file", code="too-deep")


def printable_name(name: str) -> str:
    """A name for a message: shortened, and without characters that could control a terminal."""
    return one_printable_line(shorten(name, MAX_SHOWN))


def one_printable_line(text: str) -> str:
    """A text for a message, without characters that could begin a line or control a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)
