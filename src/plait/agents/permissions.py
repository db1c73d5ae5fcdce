"""Permissions: which tools an agent may request, by patterns.

    team/report        one tool
    core/file/*        every tool below core/file
    *                  every tool
    directive:team/*   other directives, which only patterns with this prefix name

`*` stands for any characters, `/` too; nothing else is special.  A tool that an inner agent requests
must be allowed by all agents around it, too.
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
    """Patterns for tool ids; empty: nothing is allowed."""

    patterns: tuple[str, ...] = ()
    within: Permissions | None = None
    """The permissions of the agent that called this one; a tool needs both."""

    def allow(self, tool_id: str) -> bool:
        wanted = normalize_tool_id(tool_id)
        if wanted is None or not matches_any(self.patterns, wanted):
            return False
        return self.within is None or self.within.allow(wanted)


def matches_any(patterns: Iterable[str], tool_id: str) -> bool:
    """Does one of the patterns match a normalized id?"""
    return any(_names(pattern.removeprefix(_TOOL), tool_id) for pattern in patterns)


def normalize_tool_id(tool_id: str) -> str | None:
    """Return an id in its only spelling, so that patterns cannot be evaded; None: it is invalid."""
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
    """Does the text have the pieces in this order, the first at its start, the last at its end?"""
    first, *middle = pieces
    if not middle:
        return text == first
    last = middle.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:  # the earliest match is best: it leaves most text for the next pieces
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
