"""What the wire formats have in common: a question becomes names for a body, and bodies become answers.

Nothing here sends anything.  Whatever a person, a tool or a model said goes into the values
that fill the body of a request, never into its template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from plait.hints import Final, Literal, Protocol, TypeAlias
from plait.records import dataclass
from plait.steps.model import Answer, Ask
from plait.values import Json, json_text

Structured: TypeAlias = Literal["json_schema", "tool", "prompt"]
ANSWER_TOOL: Final = "give_answer"
"""The tool by whose call a model answers, where answers of a given form are asked for so."""
RESERVED: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "stream", "stream_options"}
    | {"response_format", "output_config"}
)
"""Names of a body that only the question itself gives; options are all others."""


class UnreadableError(Exception):
    """An answer that is not what its wire format says; the text tells what was expected."""


class FaultError(Exception):
    """The server says, in the middle of a stream, that it failed; the text is a word of its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a provider wants to be asked."""

    model: str
    structured: Structured = "prompt"
    stream: bool = False


class Reading(Protocol):
    """A stream, event by event."""

    def take(self, data: str) -> str:
        """The text that an event adds."""

    @property
    def is_over(self) -> bool:
        """Has the model said all it had to say?"""

    @property
    def is_last(self) -> bool:
        """Was that the last event?"""

    def answer(self) -> Answer:
        """What came until now."""


class Family(Protocol):
    """A wire format."""

    def values(self, ask: Ask, shape: Shape) -> dict[str, Json]:
        """What the `{name}` of a body stand for."""

    def answer(self, body: Json) -> Answer:
        """Raises UnreadableError."""

    def reading(self) -> Reading: ...


def in_words(ask: Ask) -> str:
    """The system text, with the form of the answer where only words can say it."""
    if ask.schema is None:
        return ask.system
    wanted = (
        "Answer with JSON alone, without any text around it. It has to be valid against this JSON Schema:\n"
        + json_text(ask.schema)
    )
    return f"{ask.system}\n\n{wanted}" if ask.system else wanted


def arguments_of(written: str) -> Json:
    """The arguments of a call as a model wrote them: what is no JSON stays the text that it is."""
    if not written.strip():
        return {}
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written


def number(source: Mapping[str, Json] | Json, *path: str) -> int:
    """A count in an answer; 0 if nobody counted."""
    found = source
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0


def word(value: Json) -> str:
    """A text in an answer; empty if there is none."""
    return value if isinstance(value, str) else ""


def event_map(data: str) -> dict[str, Json]:
    """An event of a stream."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableError("a stream of JSON") from None
    if not isinstance(event, dict):
        raise UnreadableError("a stream of JSON maps")
    return event


def fault_word(body: Json) -> str:
    """What kind of error a server names, if it is a word and no text: that may hold anything."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    named = (error.get("code"), error.get("type"))
    return next((one for one in named if isinstance(one, str) and _is_word(one)), "")


def _is_word(text: str) -> bool:
    return len(text) <= 60 and text.isascii() and text.replace("_", "a").replace(".", "a").isalpha()
