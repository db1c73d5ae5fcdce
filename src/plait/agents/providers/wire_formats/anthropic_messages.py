"""Anthropic messages: content in blocks, a separate system text, tool results in user turns."""

from __future__ import annotations

from collections.abc import Iterable

from plait.agents.messages import (
    Ending,
    Message,
    ModelRequest,
    ModelResponse,
    TokenUsage,
    ToolRequest,
)
from plait.agents.providers.wire_formats import (
    ANSWER_TOOL,
    RequestShape,
    ServerFault,
    UnreadableError,
    event_map,
    number,
    parse_arguments,
    part,
    piece,
    require_stop_reason,
    system_text_with_schema,
    whole_text,
    word,
)
from plait.agents.structured_output import is_json_safe
from plait.core.hints import Final
from plait.core.values import Json

ENDINGS: Final[dict[str, Ending]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
PLAIN_BLOCKS: Final = ("text", "tool_use")
"""Block types that the text and the tool requests of a response represent completely."""
WRITTEN: Final = "partial_json"
DELTAS: Final = {
    "text_delta": "text",
    "input_json_delta": WRITTEN,
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""Delta types of a stream, and the field that each one continues."""


class AnthropicMessages:
    def values(self, request: ModelRequest, shape: RequestShape) -> dict[str, Json]:
        as_tool = request.schema is not None and shape.structured == "tool"
        as_field = request.schema is not None and shape.structured == "json_schema"
        system = request.system if as_tool or as_field else system_text_with_schema(request)
        values: dict[str, Json] = {
            **request.options,
            "model": shape.model,
            "messages": _turns(request.messages),
        }
        tools = [_tool(offer.name, offer.description, offer.schema) for offer in request.tools]
        if as_tool:
            tools.append(_tool(ANSWER_TOOL, "Gives the answer.", request.schema))
            values["tool_choice"] = (
                {"type": "any"} if request.tools else {"type": "tool", "name": ANSWER_TOOL}
            )
        if as_field:
            values["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
        optional = {"system": system, "tools": tools, "stream": shape.stream}
        return {**values, **{name: value for name, value in optional.items() if value}}

    def response(self, body: Json) -> ModelResponse:
        blocks = part(body, "content", list)
        if blocks is None:
            raise UnreadableError("a message with blocks of content")
        read = [_parse_block(block) for block in blocks]
        reason = word(body, "stop_reason")
        return require_stop_reason(
            _response(read, _usage(body), word(body, "model"), reason), reason
        )

    def stream_reader(self) -> MessageReader:
        return MessageReader()


class MessageReader:
    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Json]] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}
        """The pieces that have arrived, by block and field."""
        self._counts: dict[str, Json] = {}
        self._usage = TokenUsage()
        self._model = ""
        self._reason = ""
        self._done = False

    def take(self, data: str) -> str:
        event = event_map(data)
        match event.get("type"):
            case "message_start":
                message = part(event, "message", dict) or {}
                self._model = word(message, "model")
                self._count(message)
            case "content_block_start":
                place, block = number(event, "index"), _parse_block(event.get("content_block"))
                self._blocks[place], self._pieces[place] = block, {}
                return piece(block, "text") if block["type"] == "text" else ""
            case "content_block_delta":
                return self._take_delta(number(event, "index"), part(event, "delta", dict))
            case "message_delta":
                self._reason = word(part(event, "delta", dict), "stop_reason") or self._reason
                self._count(event)
            case "message_stop":
                self._done = True
            case "error":
                raise ServerFault(event)
        return ""

    def _take_delta(self, place: int, delta: Json) -> str:
        if place not in self._blocks or delta is None:
            raise UnreadableError("blocks that begin before they go on")
        kind = word(delta, "type")
        if kind not in DELTAS:
            return ""
        text = piece(delta, DELTAS[kind])
        self._pieces[place].setdefault(DELTAS[kind], []).append(text)
        return text if kind == "text_delta" else ""

    def _count(self, event: dict[str, Json]) -> None:
        # Counts are totals, so later ones replace earlier ones.
        counts = part(event, "usage", dict) or {}
        counts = self._counts | {name: count for name, count in counts.items() if count is not None}
        self._usage = _usage({"usage": counts})
        self._counts = counts

    @property
    def is_over(self) -> bool:
        # A server that breaks off may still send the last event: only a stop reason shows that the
        # response is complete.
        return self._done and bool(self._reason)

    @property
    def is_last(self) -> bool:
        return self._done

    def response(self) -> ModelResponse:
        blocks = [self._block(place) for place in sorted(self._blocks)]
        return _response(blocks, self._usage, self._model, self._reason)

    def _block(self, place: int) -> dict[str, Json]:
        block = dict(self._blocks[place])
        for name, pieces in self._pieces[place].items():
            if name == WRITTEN:
                block["input"] = parse_arguments("".join(pieces))
            else:
                block[name] = whole_text((block.get(name) or "") + "".join(pieces))
        return block


# ── helpers, in order of use ─────────────────────────────────────────────


def _turns(messages: Iterable[Message]) -> list[Json]:
    """Alternating turns of user and assistant. Adjacent messages of one role become one turn."""
    turns: list[dict[str, Json]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return [*turns]


def _blocks(message: Message) -> list[Json]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.answers, "content": message.text}
        return [{**result, "is_error": True} if message.failed else result]
    if isinstance(message.blocks, list):
        return [_request_block(block) for block in message.blocks]
    text: list[Json] = (
        [{"type": "text", "text": message.text}] if message.text or not message.uses else []
    )
    uses: list[Json] = [
        {
            "type": "tool_use",
            "id": use.id,
            "name": use.name,
            "input": _arguments_map(use.arguments),
        }
        for use in message.uses
    ]
    return text + uses


def _request_block(block: Json) -> Json:
    is_use = isinstance(block, dict) and block.get("type") == "tool_use"
    return {**block, "input": _arguments_map(block.get("input"))} if is_use else block


def _arguments_map(arguments: Json) -> Json:
    """The arguments as a map, which the format requires.

    Arguments of another type were refused, and the tool result says so.
    """
    return arguments if isinstance(arguments, dict) else {"not_a_map": arguments}


def _tool(name: str, description: str, schema: Json) -> dict[str, Json]:
    return {"name": name, "description": description, "input_schema": schema}


def _usage(body: Json) -> TokenUsage:
    cached = number(body, "usage", "cache_read_input_tokens")
    written = number(body, "usage", "cache_creation_input_tokens")
    # Their count of the input excludes tokens that the cache read or wrote.
    whole = number(body, "usage", "input_tokens") + cached + written
    return TokenUsage(whole, number(body, "usage", "output_tokens"), cached)


def _parse_block(block: Json) -> dict[str, Json]:
    """A block with checked fields. A block of an unknown type is kept unchanged."""
    if not isinstance(block, dict) or not word(block, "type"):
        raise UnreadableError("blocks of content as maps with a type")
    match block["type"]:
        case "text" if part(block, "text", str) is None:
            raise UnreadableError("blocks of text with their text")
        case "tool_use":
            if not word(block, "id") or not word(block, "name"):
                raise UnreadableError("calls of tools with an id and a name")
            named = {name: word(block, name) for name in ("id", "name")}
            return {**block, **named, "input": parse_arguments(block.get("input", {}))}
        case "thinking":
            return {
                **block,
                **{name: piece(block, name) for name in ("thinking", "signature") if name in block},
            }
    return dict(block)


def _response(
    blocks: list[dict[str, Json]], usage: TokenUsage, model: str, reason: str
) -> ModelResponse:
    text = whole_text("".join(block["text"] for block in blocks if block["type"] == "text"))
    uses = tuple(
        ToolRequest(block["id"], block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    )
    ending = ENDINGS.get(reason, "tools" if uses else "end")
    more = any(block["type"] not in PLAIN_BLOCKS for block in blocks)
    # Blocks that cannot be recorded cannot be sent again.
    return ModelResponse(
        text, uses, usage, model, ending, blocks=blocks if more and is_json_safe(blocks) else None
    )
