"""Structured output: parse the JSON that a model wrote, and check it against a schema.

Values that a journal cannot hold are not accepted: NaN, infinity, half surrogate pairs, and data
that is nested too deeply.  Messages name places and rules, never what the model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from plait.agents.tool_access import schema_errors
from plait.core.errors import ValueRefusedError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.values import MOST_LEVELS, Json, is_deeper, json_text, json_value

NO_JSON: Final = "it is not JSON"
_FENCED: Final = lazy_pattern(r"```[^\n`]*\n(.*)\n?```", re.DOTALL)
"""JSON in a code block: many models write it so."""


@dataclass(frozen=True, slots=True)
class StructuredResult:
    data: Json = None
    wrong: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.wrong

    @property
    def is_json(self) -> bool:
        return self.wrong != (NO_JSON,)


def parse_structured(text: str, schema: Mapping[str, Json]) -> StructuredResult:
    """Parse a response and check it; ValueError if the schema is invalid."""
    written = text.strip()
    fenced = _FENCED.fullmatch(written)
    for candidate in (fenced[1] if fenced else written, _only_block(written)):
        try:
            data = read_json(candidate)
        except ValueError:
            continue
        return check_structured(data, schema)
    return StructuredResult(None, (NO_JSON,))


def _only_block(text: str) -> str:
    """Return the text of the only code block; "" if there is none, or several."""
    lines = text.split("\n")
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    if len(fences) != 2 or lines[fences[1]].rstrip() != "```":
        return ""
    return "\n".join(lines[fences[0] + 1 : fences[1]])


def check_structured(data: Json, schema: Mapping[str, Json]) -> StructuredResult:
    """Check data that is already parsed."""
    return StructuredResult(data, tuple(schema_errors(data, schema)))


def read_json(written: str) -> Json:
    """Parse JSON; raise ValueError if it is not valid."""
    try:
        data = json_value(written)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not is_json_safe(data):
        raise ValueError("holds values that JSON cannot represent")
    return data


def is_json_safe(data: Json) -> bool:
    """Can a journal hold the data?"""
    if is_deeper(data, MOST_LEVELS):
        return False
    try:
        # JSON can contain half of a surrogate pair as an escape, UTF-8 cannot
        json_text(data).encode("utf-8")
    except (ValueRefusedError, UnicodeEncodeError):
        return False
    return True
