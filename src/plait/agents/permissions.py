"""Which tools an agent may ask for: those that a pattern names, and no other.

    team/report        one tool
    core/file/*        every tool below core/file
    *                  every tool
    directive:team/*   other directives, which only patterns with this prefix name

`*` stands for any characters, `/` too; nothing else is special.  Whoever is inside an agent
has at most what that agent has: both have to allow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.tools.spaces import normalize_id

if TYPE_CHECKING:
    from plait.core.hints import Final


DIRECTIVE: Final = "directive:"

_TOOL: Final = "tool:"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Patterns over ids; none of them: nothing is allowed."""

    patterns: tuple[str, ...] = ()
    within: Permissions | None = None
    """Those of the agent that this one is inside of."""

    def allow(self, tool_id: str) -> bool:
        wanted = normalize_tool_id(tool_id)
        if wanted is None or not matches_any(self.patterns, wanted):
            return False
        return self.within is None or self.within.allow(wanted)


def matches_any(patterns: Iterable[str], tool_id: str) -> bool:
    """Does one of the patterns name this id, which is in its one spelling?"""
    return any(_names(pattern.removeprefix(_TOOL), tool_id) for pattern in patterns)


def normalize_tool_id(tool_id: str) -> str | None:
    """An id in its one spelling, so that no other spelling slips by; None if it is none."""
    prefix = DIRECTIVE if tool_id.startswith(DIRECTIVE) else ""
    try:
        return prefix + normalize_id(tool_id.removeprefix(DIRECTIVE))
    except InputError:
        return None


def _names(pattern: str, tool_id: str) -> bool:
    if pattern.startswith(DIRECTIVE) != tool_id.startswith(DIRECTIVE):
        return False
    return _fits(tuple(pattern.split("*")), tool_id)


@lru_cache(maxsize=4096)
def _fits(pieces: tuple[str, ...], text: str) -> bool:
    """Do the pieces stand in the text in this order, the first at its start and the last at its
    end?
    """
    first, *middle = pieces
    if not middle:
        return text == first
    last = middle.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:  # the earliest place is the best: it leaves most room for those behind it
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
