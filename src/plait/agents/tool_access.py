"""Tools as a model sees them: a name that its wire format allows, what they do, what they take.

Ids have `/`, names may not.  Of an id without oddities the name can be read back by anybody
(`core/file/read` is `core__file__read`); the name of another ends with a digest of the id.
No two ids have one name, so what a model asks for is one tool or none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from plait.agents.messages import ToolOffer
from plait.core.digests import sha256_hex
from plait.core.errors import InputError, closest_name
from plait.core.hints import Final
from plait.core.json_schema import surely_meets, validator
from plait.core.records import dataclass
from plait.core.values import Json, text
from plait.tools.config import describe_violation, place_in
from plait.tools.spaces import normalize_id

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
    """Do the pieces stand in the text in this order, the first at its start and the last at its end?"""
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


LONGEST_NAME: Final = 64
MAX_RESULT: Final = 50_000
"""Characters of a tool's result that a model gets to read."""
MOST_SAID: Final = 8
"""Of what is wrong with arguments or an answer."""
ANYTHING: Final[Mapping[str, Json]] = {"type": "object", "properties": {}}
_ODD: Final = ("__", "_-", "-_", "_/", ".")
_DIGEST: Final = 11
_CALLED: Final = "directive-_"


def wire_name(tool_id: str) -> str:
    """The name under which a tool is offered: letters, digits, `_` and `-`, at most 64."""
    plain = tool_id.removeprefix(DIRECTIVE)
    prefix = "" if plain == tool_id else _CALLED
    name = prefix + plain.replace("/", "__")
    if len(name) <= LONGEST_NAME and not any(odd in plain for odd in _ODD):
        return name
    readable = re.sub(r"[^A-Za-z0-9]+", "_", tool_id).strip("_")[: LONGEST_NAME - _DIGEST - 2]
    return f"{readable}_-{sha256_hex(tool_id.encode())[:_DIGEST]}"


def tool_id_for(name: str, offers: Iterable[ToolOffer]) -> str | None:
    """The tool that was offered under a name."""
    return next((offer.tool_id for offer in offers if offer.name == name), None)


def make_offer(tool_id: str, description: str, schema: Mapping[str, Json] | None) -> ToolOffer:
    return ToolOffer(wire_name(tool_id), description.strip() or tool_id, schema or ANYTHING, tool_id)


def not_offered_message(name: str, offers: Iterable[ToolOffer]) -> str:
    """What a model is told that asks for a tool which it was not offered."""
    names = [offer.name for offer in offers]
    guess = closest_name(name, names)
    known = f"did you mean {guess}? " if guess else ""
    there = f"there are: {', '.join(names)}" if names else "there are no tools"
    return f"there is no tool of this name that you may call; {known}{there}"


# ── what does not fit a schema ───────────────────────────────────────────


def schema_errors(value: Json, schema: Mapping[str, Json]) -> list[str]:
    """What of a value does not meet a schema, without the value; ValueError if the schema is none."""
    if surely_meets(value, schema):
        return []
    asked = validator(json.dumps(schema))
    try:
        found = [
            f"{place_in(error.instance_path)}{describe_violation(error)}"
            for error in asked.iter_errors(value)
        ]
    except UnicodeEncodeError:
        return ["it holds half a character"]
    return found[:MOST_SAID] + ([f"and {len(found) - MOST_SAID} more"] if len(found) > MOST_SAID else [])


# ── what a tool gave, for a model to read ────────────────────────────────


def format_tool_result(output: Json) -> str:
    """A result as text: text as it is, other data as JSON; what is too long is cut, and says so."""
    whole = text(output)
    if len(whole) <= MAX_RESULT:
        return whole
    return f"{whole[:MAX_RESULT]}\n[cut: {MAX_RESULT:,} of {len(whole):,} characters are shown]"
