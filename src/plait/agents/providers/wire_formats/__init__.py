"""What the wire formats share: make the values of a request body, and parse response bodies.

Nothing here sends anything. Text of people, tools and models goes into the values that fill the
body of a request, never into its template.
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
"""The model calls this tool to give structured output (`structured: tool`)."""
RESERVED: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "stream", "stream_options"}
    | {"response_format", "output_config"}
)
"""Placeholders of a body that the request fills. All others are options."""
FAULT_TEXTS: Final = ("message", "detail")
"""Fields in which servers put an error message."""
MOST_COUNTED: Final = 1_000_000_000
"""Most tokens of one response. A higher count is not a count of tokens."""
_TYPES: Final[dict[type, str]] = {str: "text", dict: "a map", list: "a list"}


class MissingStopReason(Exception):
    """A response without a stop reason, which counts as incomplete."""

    def __init__(self, half: ModelResponse) -> None:
        super().__init__("an answer that says why it ends")
        self.half = half


class UnreadableError(Exception):
    """A response that does not follow its wire format. The text says what was expected."""


class ServerFault(Exception):
    """The server reports an error in the middle of a stream, with a code and a text."""

    def __init__(self, event: Json) -> None:
        super().__init__("the server says it failed")
        self.word = error_code(event)
        self.text = error_text(event) or ""


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How a provider wants its requests."""

    model: str
    structured: Structured = "prompt"
    stream: bool = False


class StreamReader(Protocol):
    """A stream, event by event."""

    def take(self, data: str) -> str:
        """The text that an event adds."""

    @property
    def is_over(self) -> bool:
        """Is the response complete?"""

    @property
    def is_last(self) -> bool:
        """Was that the last event?"""

    def response(self) -> ModelResponse:
        """The response as far as it has arrived."""


class WireFormat(Protocol):
    """A wire format."""

    def values(self, request: ModelRequest, shape: RequestShape) -> dict[str, Json]:
        """The values of the placeholders of a body."""

    def response(self, body: Json) -> ModelResponse:
        """Raises UnreadableError."""

    def stream_reader(self) -> StreamReader: ...


def system_text_with_schema(request: ModelRequest) -> str:
    """The system text, followed by the schema of the response if there is one."""
    if request.schema is None:
        return request.system
    wanted = (
        "Answer with JSON alone, without any text around it. It has to be valid against this JSON "
        "Schema:\n" + json_text(request.schema)
    )
    return f"{request.system}\n\n{wanted}" if request.system else wanted


def parse_arguments(written: Json) -> Json:
    """Parse the arguments of a tool request. Text that is not JSON stays text."""
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
        return "…"  # deeper than JSON can be written


def whole_text(text: str) -> str:
    """Join surrogate pairs. A surrogate without its other half is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ── parts of a response: absent, or of their type ─────────────────────────


def part(source: Json, name: str, kind: type[_T]) -> _T | None:
    """Return a part of a response, or None. Raises UnreadableError if it has another type."""
    found = source.get(name) if isinstance(source, dict) else None
    if found is None:
        return None
    if not isinstance(found, kind):
        raise UnreadableError(f"'{name}' to be {_TYPES[kind]}")
    return found


def piece(source: Json, name: str) -> str:
    """A text in a response, or empty. It may end with half of a surrogate pair."""
    return part(source, name, str) or ""


def require_stop_reason(response: ModelResponse, reason: str) -> ModelResponse:
    """The same response. Raises MissingStopReason if it has no stop reason."""
    if not reason:
        raise MissingStopReason(response)
    return response


def word(source: Json, name: str) -> str:
    """A complete text in a response, or empty."""
    return whole_text(piece(source, name))


def number(source: Json, *path: str) -> int:
    """A count in a response, or 0."""
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
    """The error message of a server, in one of the usual forms."""
    error = body.get("error") if isinstance(body, dict) else None
    places = (error, body) if isinstance(error, dict) else (body,)
    named = [place.get(name) for place in places if isinstance(place, dict) for name in FAULT_TEXTS]
    return next((one for one in (*named, error) if isinstance(one, str)), None)


def error_code(body: Json) -> str:
    """The error code of a server. Empty if it is longer than a word: text may hold anything."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    named = (error.get("code"), error.get("type"))
    words = (one for one in named if isinstance(one, str) and len(one) <= 60 and one.isascii())
    return next((one for one in words if one.replace("_", "a").replace(".", "a").isalpha()), "")
