"""What the wire formats have in common: a question becomes names for a body, and bodies become
answers.

Nothing here sends anything.  Whatever a person, a tool or a model said goes into the values
that fill the body of a request, never into its template.
"""

from __future__ import annotations

import json

from plait.agents.messages import ModelRequest, ModelResponse
from plait.agents.structured_output import is_json_safe, read_json
from plait.core.hints import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.core.values import Json, json_text

if TYPE_CHECKING:
    from typing import TypeVar

    _T = TypeVar("_T")

Structured: TypeAlias = Literal["json_schema", "tool", "prompt"]
ANSWER_TOOL: Final = "give_answer"
"""The tool by whose call a model answers, where answers of a given form are asked for so."""
RESERVED: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "stream", "stream_options"}
    | {"response_format", "output_config"}
)
"""Names of a body that only the question itself gives; options are all others."""
FAULT_TEXTS: Final = ("message", "detail")
"""Where servers say what went wrong."""
MOST_COUNTED: Final = 1_000_000_000
"""Tokens of one answer; a server that counts more does not count tokens."""
_TYPES: Final[dict[type, str]] = {str: "text", dict: "a map", list: "a list"}


class MissingStopReason(Exception):
    """An answer that does not say why it ends: what there is of it is half of one."""

    def __init__(self, half: ModelResponse) -> None:
        super().__init__("an answer that says why it ends")
        self.half = half


class UnreadableError(Exception):
    """An answer that is not what its wire format says; the text tells what was expected."""


class ServerFault(Exception):
    """The server says, in the middle of a stream, that it failed: a word of its own, and a text."""

    def __init__(self, event: Json) -> None:
        super().__init__("the server says it failed")
        self.word = error_code(event)
        self.text = error_text(event) or ""


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How a provider wants to be asked."""

    model: str
    structured: Structured = "prompt"
    stream: bool = False


class StreamReader(Protocol):
    """A stream, event by event."""

    def take(self, data: str) -> str:
        """The text that an event adds."""

    @property
    def is_over(self) -> bool:
        """Has the model said all it had to say?"""

    @property
    def is_last(self) -> bool:
        """Was that the last event?"""

    def answer(self) -> ModelResponse:
        """What came until now."""


class Family(Protocol):
    """A wire format."""

    def values(self, ask: ModelRequest, shape: RequestShape) -> dict[str, Json]:
        """What the `{name}` of a body stand for."""

    def answer(self, body: Json) -> ModelResponse:
        """Raises UnreadableError."""

    def reading(self) -> StreamReader: ...


def system_text_with_schema(ask: ModelRequest) -> str:
    """The system text, with the form of the answer where only words can say it."""
    if ask.schema is None:
        return ask.system
    wanted = (
        "Answer with JSON alone, without any text around it. It has to be valid against this JSON "
        "Schema:\n" + json_text(ask.schema)
    )
    return f"{ask.system}\n\n{wanted}" if ask.system else wanted


def parse_arguments(written: Json) -> Json:
    """The arguments of a call as a model wrote them: what is no JSON stays the text that it is."""
    if not isinstance(written, str):  # some servers give the map itself
        return written if is_json_safe(written) else _as_written(written)
    if not written.strip():
        return {}
    try:
        return read_json(written)
    except ValueError:
        return whole_text(written)


def _as_written(data: Json) -> str:
    try:
        return json.dumps(data)
    except (ValueError, RecursionError):
        return "…"  # deeper than can be written


def whole_text(text: str) -> str:
    """With halves of characters put together; one that stays alone is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ── parts of an answer: absent, or of their type ─────────────────────────


def part(source: Json, name: str, kind: type[_T]) -> _T | None:
    """A part of an answer, if it is there; UnreadableError if it is of another type."""
    found = source.get(name) if isinstance(source, dict) else None
    if found is None:
        return None
    if not isinstance(found, kind):
        raise UnreadableError(f"'{name}' to be {_TYPES[kind]}")
    return found


def piece(source: Json, name: str) -> str:
    """A text in an answer, perhaps with half a character at its end; empty if there is none."""
    return part(source, name, str) or ""


def require_stop_reason(answer: ModelResponse, reason: str) -> ModelResponse:
    """The same; UnendedError if the server does not say why it ends."""
    if not reason:
        raise MissingStopReason(answer)
    return answer


def word(source: Json, name: str) -> str:
    """A whole text in an answer; empty if there is none."""
    return whole_text(piece(source, name))


def number(source: Json, *path: str) -> int:
    """A count in an answer; 0 if nobody counted."""
    found = source
    for name in path[:-1]:
        found = part(found, name, dict)
    count = found.get(path[-1]) if found else None
    if count is None:
        return 0
    if (
        isinstance(count, bool)
        or not isinstance(count, int | float)
        or not 0 <= count <= MOST_COUNTED
    ):
        raise UnreadableError(f"'{path[-1]}' to be a count up to {MOST_COUNTED:,}")
    return int(count)


def event_map(data: str) -> dict[str, Json]:
    """An event of a stream."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableError("a stream of JSON") from None
    if not isinstance(event, dict):
        raise UnreadableError("a stream of JSON maps")
    return event


def error_text(body: Json) -> str | None:
    """What a server says about an error to people, in one of the forms that are usual."""
    error = body.get("error") if isinstance(body, dict) else None
    places = (error, body) if isinstance(error, dict) else (body,)
    named = [place.get(name) for place in places if isinstance(place, dict) for name in FAULT_TEXTS]
    return next((one for one in (*named, error) if isinstance(one, str)), None)


def error_code(body: Json) -> str:
    """What kind of error a server names, if it is a word and no text: that may hold anything."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    named = (error.get("code"), error.get("type"))
    return next((one for one in named if isinstance(one, str) and _is_word(one)), "")


def _is_word(text: str) -> bool:
    return len(text) <= 60 and text.isascii() and text.replace("_", "a").replace(".", "a").isalpha()
