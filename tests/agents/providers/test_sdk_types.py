"""The vendors' own types read our requests, and read the bodies and streams that the other tests play.

Their SDKs are no part of Plait.  Where they are not installed these tests are skipped.  What does not fit
a type raises, so to read a body is to judge it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, get_type_hints

import pytest

from agents.providers.talk import SCHEMA, fixture, hi, talk
from agents.providers.test_wire_formats import CALLED, bodies
from plait.agents.messages import Message, ModelRequest
from plait.agents.providers import sse
from plait.agents.providers.wire_formats import RequestShape

pydantic = pytest.importorskip(
    "pydantic", reason="pydantic is not installed: pip install -e '.[dev]'"
)

ASKS = [
    ("a word", hi()),
    ("all kinds of messages", talk()),
    ("options", hi(options={"max_tokens": 5, "stop": ["x"]})),
    ("a schema", hi(schema=SCHEMA)),
    (
        "a schema and tools",
        ModelRequest(talk().messages, "s", None, talk().tools, SCHEMA, {"max_tokens": 5}),
    ),
]
HOW = ["json_schema", "tool", "prompt"]


def asked(family: str, ask: ModelRequest, how: Any, stream: bool) -> Any:
    body = bodies(family, ask, RequestShape("some-model", how, stream))
    if family == "anthropic_messages":
        body.setdefault("max_tokens", 32000)  # as `limits` of its file says
    return body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("what", "ask"), ASKS)
def test_openai_takes_our_requests(what: str, ask: ModelRequest, how: Any, stream: bool) -> None:  # noqa: ARG001
    params = pytest.importorskip(
        "openai.types.chat.completion_create_params", reason="openai is not installed"
    )
    kind = (
        params.CompletionCreateParamsStreaming
        if stream
        else params.CompletionCreateParamsNonStreaming
    )
    strictly(kind, asked("chat_completions", ask, how, stream))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("what", "ask"), ASKS)
def test_anthropic_takes_our_requests(what: str, ask: ModelRequest, how: Any, stream: bool) -> None:  # noqa: ARG001
    params = pytest.importorskip(
        "anthropic.types.message_create_params", reason="anthropic is not installed"
    )
    kind = params.MessageCreateParamsStreaming if stream else params.MessageCreateParamsNonStreaming
    strictly(kind, asked("anthropic_messages", ask, how, stream))


def test_anthropic_takes_thoughts_that_go_back() -> None:
    params = pytest.importorskip(
        "anthropic.types.message_create_params", reason="anthropic is not installed"
    )
    answer = CALLED["anthropic_messages"]
    results = [Message("tool", "x", answers=use.id) for use in answer.uses]
    body = asked(
        "anthropic_messages",
        ModelRequest((Message("user", "look"), answer.message(), *results)),
        "prompt",
        False,
    )
    strictly(params.MessageCreateParamsNonStreaming, body)


@pytest.mark.parametrize("name", ["answer.json", "tools.json"])
def test_openai_reads_the_bodies_of_our_tests(name: str) -> None:
    chat = pytest.importorskip("openai.types.chat", reason="openai is not installed")
    assert chat.ChatCompletion.model_validate(json.loads(fixture("chat_completions", name))).choices


@pytest.mark.parametrize("name", ["stream.sse", "stream_tools.sse"])
def test_openai_reads_the_streams_of_our_tests(name: str) -> None:
    chat = pytest.importorskip("openai.types.chat", reason="openai is not installed")
    *chunks, last = sse.events([fixture("chat_completions", name)])
    assert last == "[DONE]"
    for chunk in chunks:
        chat.ChatCompletionChunk.model_validate(json.loads(chunk))


@pytest.mark.parametrize("name", ["answer.json", "tools.json"])
def test_anthropic_reads_the_bodies_of_our_tests(name: str) -> None:
    types = pytest.importorskip("anthropic.types", reason="anthropic is not installed")
    assert types.Message.model_validate(json.loads(fixture("anthropic_messages", name))).content


@pytest.mark.parametrize("name", ["stream.sse", "stream_tools.sse"])
def test_anthropic_reads_the_streams_of_our_tests(name: str) -> None:
    types = pytest.importorskip("anthropic.types", reason="anthropic is not installed")
    kind = pydantic.TypeAdapter(types.RawMessageStreamEvent)
    for event in sse.events([fixture("anthropic_messages", name)]):
        if json.loads(event)["type"] != "ping":  # which the SDK passes over
            kind.validate_python(json.loads(event))


def strictly(kind: Any, body: Any) -> None:
    """The body is of the type, and has no field that the type does not know."""
    assert body.keys() <= get_type_hints(kind).keys()
    exhaust(adapter(kind).validate_python(body))


@cache
def adapter(kind: Any) -> Any:
    return pydantic.TypeAdapter(kind)  # kept: iterables that it has checked ask it again


def exhaust(value: Any) -> None:
    """Look at everything: pydantic checks the items of an iterable when they are asked for."""
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            exhaust(item)
