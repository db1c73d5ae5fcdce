"""Tools as a model sees them: a name that its wire format allows, what they do, what they take.

Ids have `/`, names may not.  Of an id without oddities the name can be read back by anybody
(`core/file/read` is `core__file__read`); the name of another ends with a digest of the id.
No two ids have one name, so what a model asks for is one tool or none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from plait.agents.messages import ToolOffer
from plait.agents.permissions import DIRECTIVE
from plait.core.digests import sha256_hex
from plait.core.errors import closest_name
from plait.core.hints import Final
from plait.core.json_schema import surely_meets, validator
from plait.core.values import Json, text
from plait.tools.config import describe_violation, place_in

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
    return ToolOffer(
        wire_name(tool_id), description.strip() or tool_id, schema or ANYTHING, tool_id
    )


def not_offered_message(name: str, offers: Iterable[ToolOffer]) -> str:
    """What a model is told that asks for a tool which it was not offered."""
    names = [offer.name for offer in offers]
    guess = closest_name(name, names)
    known = f"did you mean {guess}? " if guess else ""
    there = f"there are: {', '.join(names)}" if names else "there are no tools"
    return f"there is no tool of this name that you may call; {known}{there}"


# ── what does not fit a schema ───────────────────────────────────────────


def schema_errors(value: Json, schema: Mapping[str, Json]) -> list[str]:
    """What of a value does not meet a schema, without the value; ValueError if the schema is
    none.
    """
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
    return found[:MOST_SAID] + (
        [f"and {len(found) - MOST_SAID} more"] if len(found) > MOST_SAID else []
    )


# ── what a tool gave, for a model to read ────────────────────────────────


def format_tool_result(output: Json) -> str:
    """A result as text: text as it is, other data as JSON; what is too long is cut, and says so."""
    whole = text(output)
    if len(whole) <= MAX_RESULT:
        return whole
    return f"{whole[:MAX_RESULT]}\n[cut: {MAX_RESULT:,} of {len(whole):,} characters are shown]"
