"""Anthropic messages: content in blocks, the system text beside them, results of tools in a user's turn."""

from __future__ import annotations

from collections.abc import Iterable

from plait.hints import Final
from plait.providers.families import (
    ANSWER_TOOL,
    FaultError,
    Shape,
    UnreadableError,
    arguments_of,
    event_map,
    fault_word,
    in_words,
    number,
    word,
)
from plait.steps.model import Answer, Ask, Ending, Message, ToolUse, Usage
from plait.values import Json

ENDINGS: Final[dict[str, Ending]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
SAID: Final = ("text", "tool_use")
"""Kinds of blocks that text and uses say all of."""


class AnthropicMessages:
    def values(self, ask: Ask, shape: Shape) -> dict[str, Json]:
        as_tool = ask.schema is not None and shape.structured == "tool"
        as_field = ask.schema is not None and shape.structured == "json_schema"
        system = ask.system if as_tool or as_field else in_words(ask)
        values: dict[str, Json] = {**ask.options, "model": shape.model, "messages": _turns(ask.messages)}
        tools = [_tool(offer.name, offer.description, offer.schema) for offer in ask.tools]
        if as_tool:
            tools.append(_tool(ANSWER_TOOL, "Gives the answer.", ask.schema))
            values["tool_choice"] = {"type": "any"} if ask.tools else {"type": "tool", "name": ANSWER_TOOL}
        if as_field:
            values["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
        optional = {"system": system, "tools": tools, "stream": shape.stream}
        return {**values, **{name: value for name, value in optional.items() if value}}

    def answer(self, body: Json) -> Answer:
        blocks = body.get("content") if isinstance(body, dict) else None
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise UnreadableError("a message with blocks of content")
        return _answer(blocks, _usage(body), word(body.get("model")), word(body.get("stop_reason")))

    def reading(self) -> MessageReading:
        return MessageReading()


class MessageReading:
    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Json]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._counts: dict[str, Json] = {}
        self._model = ""
        self._reason = ""
        self._done = False

    def take(self, data: str) -> str:
        event = event_map(data)
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                message = message if isinstance(message, dict) else {}
                self._model = word(message.get("model"))
                self._count(message)
            case "content_block_start":
                block = event.get("content_block")
                self._blocks[number(event, "index")] = dict(block) if isinstance(block, dict) else {}
            case "content_block_delta":
                return self._take_delta(number(event, "index"), event.get("delta"))
            case "message_delta":
                delta = event.get("delta")
                self._reason = word(delta.get("stop_reason")) if isinstance(delta, dict) else ""
                self._count(event)
            case "message_stop":
                self._done = True
            case "error":
                raise FaultError(fault_word(event))
        return ""

    def _take_delta(self, place: int, delta: Json) -> str:
        block = self._blocks.get(place)
        if block is None or not isinstance(delta, dict):
            raise UnreadableError("blocks that begin before they go on")
        match delta.get("type"):
            case "text_delta":
                text = word(delta.get("text"))
                block["text"] = word(block.get("text")) + text
                return text
            case "input_json_delta":
                self._arguments.setdefault(place, []).append(word(delta.get("partial_json")))
            case "thinking_delta":
                block["thinking"] = word(block.get("thinking")) + word(delta.get("thinking"))
            case "signature_delta":
                block["signature"] = word(block.get("signature")) + word(delta.get("signature"))
        return ""

    def _count(self, event: dict[str, Json]) -> None:
        # Counts are of all until now, so that later ones take the place of earlier ones.
        counts = event.get("usage")
        if isinstance(counts, dict):
            self._counts |= {name: count for name, count in counts.items() if count is not None}

    @property
    def is_over(self) -> bool:
        return self._done

    @property
    def is_last(self) -> bool:
        return self._done

    def answer(self) -> Answer:
        blocks = [self._block(place) for place in sorted(self._blocks)]
        return _answer(blocks, _usage({"usage": self._counts}), self._model, self._reason)

    def _block(self, place: int) -> dict[str, Json]:
        written = "".join(self._arguments.get(place, ()))
        return {**self._blocks[place], "input": arguments_of(written)} if written else self._blocks[place]


# ── helpers, in order of use ─────────────────────────────────────────────


def _turns(messages: Iterable[Message]) -> list[Json]:
    """Turns of user and assistant, one after the other: what a side says at once is one turn."""
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
        return [*message.blocks]
    said: list[Json] = [{"type": "text", "text": message.text}] if message.text or not message.uses else []
    return [*said, *(_use_block(use) for use in message.uses)]


def _use_block(use: ToolUse) -> dict[str, Json]:
    # The format wants a map; what a model wrote instead of one was refused, and says so in its result.
    given = use.arguments if isinstance(use.arguments, dict) else {"not_a_map": use.arguments}
    return {"type": "tool_use", "id": use.id, "name": use.name, "input": given}


def _tool(name: str, description: str, schema: Json) -> dict[str, Json]:
    return {"name": name, "description": description, "input_schema": schema}


def _usage(body: Json) -> Usage:
    cached = number(body, "usage", "cache_read_input_tokens")
    written = number(body, "usage", "cache_creation_input_tokens")
    # Their count of the input is without what the cache has to do with.
    whole = number(body, "usage", "input_tokens") + cached + written
    return Usage(whole, number(body, "usage", "output_tokens"), cached)


def _answer(blocks: list[dict[str, Json]], usage: Usage, model: str, reason: str) -> Answer:
    text = "".join(word(block.get("text")) for block in blocks if block.get("type") == "text")
    uses = tuple(
        ToolUse(word(block.get("id")), word(block.get("name")), block.get("input", {}))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    ending = ENDINGS.get(reason, "tools" if uses else "end")
    more = any(block.get("type") not in SAID for block in blocks)
    return Answer(text, uses, usage, model, ending, blocks=blocks if more else None)
