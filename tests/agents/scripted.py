"""A model with scripted answers, and services with functions as tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plait.agents.messages import (
    ModelRequest,
    ModelResponse,
    OnText,
    TokenUsage,
    ToolOffer,
    ToolRequest,
)
from plait.agents.permissions import matches_any
from plait.agents.tool_access import make_offer, wire_name
from plait.core.errors import InputError
from plait.core.values import Json
from plait.engine.stop import StopSignal
from plait.program.ports import OnOutput
from plait.tools.call import ToolResult
from program.fakes import FakeServices

Says = Callable[[ModelRequest], ModelResponse]
Tool = Callable[[Mapping[str, Json]], Json]

USED = TokenUsage(10, 5, cost=0.25)


def says(text: str, **fields: Any) -> ModelResponse:
    return ModelResponse(text, usage=fields.pop("usage", USED), model="m-1", **fields)


def wants(*uses: tuple[str, Json], text: str = "", usage: TokenUsage = USED) -> ModelResponse:
    """An answer that asks for calls: tool id, arguments."""
    asked = tuple(
        ToolRequest(f"use-{number}", wire_name(tool), given)
        for number, (tool, given) in enumerate(uses, 1)
    )
    return ModelResponse(text, asked, usage, "m-1", "tools")


class OverError(RuntimeError):
    """Nothing is left to say: the process dies while it asks."""


class Scripted:
    """Plays a list of answers, or asks a function for each; keeps every question."""

    name = "scripted"
    fingerprint = "scripted-1"

    def __init__(self, *answers: ModelResponse | Says) -> None:
        self.asks: list[ModelRequest] = []
        self.timeouts: list[float | None] = []
        self._answers: Iterator[ModelResponse | Says] = iter(answers)
        self._always = answers[0] if len(answers) == 1 and callable(answers[0]) else None

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,  # noqa: ARG002
        on_text: OnText | None = None,
    ) -> ModelResponse:
        self.asks.append(request)
        self.timeouts.append(timeout)
        answer = self._always or next(self._answers, None)
        if answer is None:
            raise OverError
        if callable(answer):
            answer = answer(request)
        if on_text is not None:
            for piece in answer.text.split(" ") if answer.text else ():
                on_text(f"{piece} ")
        return answer

    def price(self, model: str | None, usage: TokenUsage) -> float | None:  # noqa: ARG002
        return usage.cost or 0.0


class ToolServices(FakeServices):
    """Tools are functions of their parameters; every call is kept, in the order of its begin."""

    def __init__(
        self,
        model: Scripted | None,
        tools: Mapping[str, Tool] | None = None,
        **schemas: Mapping[str, Json],
    ) -> None:
        super().__init__()
        self.scripted = model
        self.tools = dict(tools or {})
        self.schemas = {tool_id.replace("__", "/"): schema for tool_id, schema in schemas.items()}
        self.calls: list[tuple[str, dict[str, Json]]] = []
        self._lock = threading.Lock()

    def provider(self, name: str | None) -> Any:
        return self.scripted if name in (None, "scripted") else None

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:  # noqa: ARG002
        return tuple(
            make_offer(tool_id, f"does {tool_id}", self.schemas.get(tool_id))
            for tool_id in sorted(self.tools)
            if matches_any(patterns, tool_id)
        )

    async def call(
        self,
        tool_id: str,
        params: Mapping[str, Json],
        *,
        timeout: float | None,  # noqa: ARG002
        on_output: OnOutput | None = None,  # noqa: ARG002
        trace: tuple[tuple[str, str], ...] = (),  # noqa: ARG002
    ) -> ToolResult:
        with self._lock:
            self.calls.append((tool_id, dict(params)))
        if tool_id not in self.tools:
            raise InputError(f"there is no tool '{tool_id}'", code="unknown-tool")
        return result(tool_id, self.tools[tool_id](params))

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Any:  # noqa: ARG002
        return None


def result(tool_id: str, data: Json) -> ToolResult:
    """What a tool gave; an Exception is how it failed."""
    if isinstance(data, ToolResult):
        return data
    return ToolResult(tool_id, True, data, None, (), {"exit_code": 0})


def failed(tool_id: str, error: str, exit_code: int = 2) -> ToolResult:
    return ToolResult(tool_id, False, None, error, (), {"exit_code": exit_code})
