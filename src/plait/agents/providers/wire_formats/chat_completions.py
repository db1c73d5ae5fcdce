"""Chat completions: the wire format of OpenAI and compatible servers."""

from __future__ import annotations

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
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.core.values import Json, json_text

ENDINGS: Final[dict[str, Ending]] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tools",
    "function_call": "tools",
    "content_filter": "refused",
}
LAST: Final = "[DONE]"


class ChatCompletions:
    def values(self, request: ModelRequest, shape: RequestShape) -> dict[str, Json]:
        as_tool = request.schema is not None and shape.structured == "tool"
        as_field = request.schema is not None and shape.structured == "json_schema"
        system = request.system if as_tool or as_field else system_text_with_schema(request)
        values: dict[str, Json] = {
            **request.options,
            "model": shape.model,
            "messages": [
                *([{"role": "system", "content": system}] if system else []),
                *(_message(message) for message in request.messages),
            ],
        }
        tools = [_tool(offer.name, offer.description, offer.schema) for offer in request.tools]
        if as_tool:
            tools.append(_tool(ANSWER_TOOL, "Gives the answer.", request.schema))
            alone = {"type": "function", "function": {"name": ANSWER_TOOL}}
            values["tool_choice"] = "required" if request.tools else alone
        if tools:
            values["tools"] = tools
        if as_field:
            values["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.schema},
            }
        if shape.stream:
            values |= {"stream": True, "stream_options": {"include_usage": True}}
        return values

    def response(self, body: Json) -> ModelResponse:
        choice = _first_choice(body)
        message = part(choice, "message", dict)
        if message is None:
            raise UnreadableError("a chat completion with a message")
        calls = part(message, "tool_calls", list) or []
        uses = [_use(call, place) for place, call in enumerate(calls)]
        refusal = word(message, "refusal")
        reason = "content_filter" if refusal else word(choice, "finish_reason")
        response = _response(
            _content(message) or refusal, uses, _usage(body), word(body, "model"), reason
        )
        return require_stop_reason(response, reason)

    def stream_reader(self) -> ChatReader:
        return ChatReader()


@dataclass(slots=True)
class _Call:
    """A tool request, as far as it has arrived."""

    id: str = ""
    name: str = ""
    written: list[str] = field(default_factory=list)

    def use(self, place: int) -> ToolRequest:
        return ToolRequest(
            self.id or f"call_{place}", self.name, parse_arguments("".join(self.written))
        )


class ChatReader:
    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._usage = TokenUsage()
        self._model = ""
        self._reason = ""
        self._done = False

    def take(self, data: str) -> str:
        if data.strip() == LAST:
            self._done = True
            return ""
        chunk = event_map(data)
        if chunk.get("error"):
            raise ServerFault(chunk)
        self._model = word(chunk, "model") or self._model
        if part(chunk, "usage", dict):
            self._usage = _usage(chunk)
        choice = _first_choice(chunk)
        return "" if choice is None else self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Json]) -> str:
        self._reason = word(choice, "finish_reason") or self._reason
        delta = part(choice, "delta", dict) or {}
        for call in part(delta, "tool_calls", list) or ():
            self._take_call(call)
        refusal = piece(delta, "refusal")
        if refusal:
            self._reason = "content_filter"
        text = _content(delta) or refusal
        self._text.append(text)
        return text

    def _take_call(self, delta: Json) -> None:
        if not isinstance(delta, dict):
            raise UnreadableError("calls of tools as maps")
        # Not every server numbers the calls. Without a number, a name starts the next call.
        place = delta.get("index")
        function = part(delta, "function", dict) or {}
        if not isinstance(place, int):
            place = len(self._calls) if function.get("name") else max(0, len(self._calls) - 1)
        call = self._calls.setdefault(place, _Call())
        call.id = call.id or word(delta, "id")
        call.name = call.name or word(function, "name")
        call.written.append(piece(function, "arguments"))

    @property
    def is_over(self) -> bool:
        # A server that breaks off may still send the last event: only a stop reason shows that the
        # response is complete.
        return bool(self._reason)

    @property
    def is_last(self) -> bool:
        return self._done

    def response(self) -> ModelResponse:
        uses = [call.use(place) for place, call in sorted(self._calls.items())]
        return _response("".join(self._text), uses, self._usage, self._model, self._reason)


# ── helpers, in order of use ─────────────────────────────────────────────


def _message(message: Message) -> dict[str, Json]:
    match message.role:
        case "tool":
            return {"role": "tool", "tool_call_id": message.answers, "content": message.text}
        case "assistant" if message.uses:
            calls = [_call(use) for use in message.uses]
            return {"role": "assistant", "content": message.text or None, "tool_calls": calls}
    return {"role": message.role, "content": message.text}


def _call(use: ToolRequest) -> dict[str, Json]:
    written = use.arguments if isinstance(use.arguments, str) else json_text(use.arguments)
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": written}}


def _tool(name: str, description: str, schema: Json) -> dict[str, Json]:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _first_choice(body: Json) -> dict[str, Json] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    return (
        choices[0]
        if isinstance(choices, list) and choices and isinstance(choices[0], dict)
        else None
    )


def _content(message: Json) -> str:
    """The text of a message. Some servers send it in parts; other parts than text are ignored."""
    if isinstance(parts := message.get("content"), list):
        return "".join(piece(one, "text") for one in parts if word(one, "type") == "text")
    return piece(message, "content")


def _use(call: Json, place: int) -> ToolRequest:
    function = part(call, "function", dict)
    if function is None or not (name := word(function, "name")):
        raise UnreadableError("calls of tools with the name of a function")
    return ToolRequest(
        word(call, "id") or f"call_{place}", name, parse_arguments(function.get("arguments", ""))
    )


def _usage(body: Json) -> TokenUsage:
    return TokenUsage(
        number(body, "usage", "prompt_tokens"),
        number(body, "usage", "completion_tokens"),
        number(body, "usage", "prompt_tokens_details", "cached_tokens"),
    )


def _response(
    text: str, uses: list[ToolRequest], usage: TokenUsage, model: str, reason: str
) -> ModelResponse:
    ending = ENDINGS.get(reason, "end")
    # Some servers give the reason `stop` although the response calls tools.
    if uses and ending == "end":
        ending = "tools"
    return ModelResponse(whole_text(text), tuple(uses), usage, model, ending)
