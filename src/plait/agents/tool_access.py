"""Tools as a model sees them: a name that wire formats allow, a description and a schema.

Ids have `/`, names may not.  The name of a plain id is readable (`core/file/read` is
`core__file__read`); other names end with a digest of the id.  No two ids have the same name, so a
request of a model means one tool or none.
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
"""Characters of a tool's result that a model gets."""
MAX_ERRORS: Final = 8
"""Schema errors that a message lists."""
ANYTHING: Final[Mapping[str, Json]] = {"type": "object", "properties": {}}
_ODD: Final = ("__", "_-", "-_", "_/", ".")
_DIGEST: Final = 11
_CALLED: Final = "directive-_"


def wire_name(tool_id: str) -> str:
    """Return the name that a tool is offered by: letters, digits, `_` and `-`, at most 64."""
    plain = tool_id.removeprefix(DIRECTIVE)
    prefix = "" if plain == tool_id else _CALLED
    name = prefix + plain.replace("/", "__")
    if len(name) <= LONGEST_NAME and not any(odd in plain for odd in _ODD):
        return name
    readable = re.sub(r"[^A-Za-z0-9]+", "_", tool_id).strip("_")[: LONGEST_NAME - _DIGEST - 2]
    return f"{readable}_-{sha256_hex(tool_id.encode())[:_DIGEST]}"


def tool_id_for(name: str, offers: Iterable[ToolOffer]) -> str | None:
    """Return the id of the tool with an offered name."""
    return next((offer.tool_id for offer in offers if offer.name == name), None)


def make_offer(tool_id: str, description: str, schema: Mapping[str, Json] | None) -> ToolOffer:
    return ToolOffer(
        wire_name(tool_id), description.strip() or tool_id, schema or ANYTHING, tool_id
    )


def not_offered_message(name: str, offers: Iterable[ToolOffer]) -> str:
    """Return the message for a model that requests a tool which was not offered."""
    names = [offer.name for offer in offers]
    guess = closest_name(name, names)
    known = f"did you mean {guess}? " if guess else ""
    there = f"there are: {', '.join(names)}" if names else "there are no tools"
    return f"there is no tool of this name that you may call; {known}{there}"


# ── schema errors ────────────────────────────────────────────────────────────


def schema_errors(value: Json, schema: Mapping[str, Json]) -> list[str]:
    """Return how a value violates a schema, without the value; ValueError: an invalid schema."""
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
    return found[:MAX_ERRORS] + (
        [f"and {len(found) - MAX_ERRORS} more"] if len(found) > MAX_ERRORS else []
    )


# ── tool results as text for a model ─────────────────────────────────────────


def format_tool_result(output: Json) -> str:
    """Return a tool result as text; data becomes JSON, and a long result is cut with a note."""
    whole = text(output)
    if len(whole) <= MAX_RESULT:
        return whole
    return f"{whole[:MAX_RESULT]}\n[cut: {MAX_RESULT:,} of {len(whole):,} characters are shown]"
