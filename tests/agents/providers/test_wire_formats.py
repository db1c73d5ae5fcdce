"""The wire formats, without a wire: recorded bodies and streams become answers, questions become bodies."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.providers.talk import FAMILIES, FILES, GREETING, SCHEMA, SYSTEM, fixture, hi, talk
from plait.agents.messages import Message, ModelRequest, ModelResponse, TokenUsage, ToolRequest
from plait.agents.providers import sse
from plait.agents.providers.spec import read_spec
from plait.agents.providers.wire_formats import (
    MissingStopReason,
    RequestShape,
    ServerFault,
    UnreadableError,
)
from plait.agents.providers.wire_formats.chat_completions import ChatCompletions
from plait.agents.providers.wire_formats.table import WIRE_FORMATS
from plait.core import documents
from plait.schema import provider_tables
from plait.template.sinks import render_json

SPOKEN: dict[str, Any] = {**WIRE_FORMATS}
VERSION = {"chat_completions": "gpt-5.4-mini-2026-03-17", "anthropic_messages": "claude-sonnet-5"}
THOUGHT = json.loads(fixture("anthropic_messages", "tools.json"))["content"]
GREETED = {
    family: ModelResponse(GREETING, usage=TokenUsage(1200, 40, 1000), model=VERSION[family])
    for family in FAMILIES
}
CALLED = {
    "chat_completions": ModelResponse(
        "",
        (
            ToolRequest("call_a1", "read_file", {"path": "a.txt"}),
            ToolRequest("call_b2", "list_files", {}),
        ),
        TokenUsage(90, 30),
        VERSION["chat_completions"],
        "tools",
    ),
    "anthropic_messages": ModelResponse(
        "I look.",
        (
            ToolRequest("toolu_a1", "read_file", {"path": "a.txt"}),
            ToolRequest("toolu_b2", "list_files", {}),
        ),
        TokenUsage(90, 30),
        VERSION["anthropic_messages"],
        "tools",
        blocks=THOUGHT,
    ),
}


def test_a_provider_file_may_name_each_wire_format() -> None:
    assert {*WIRE_FORMATS, "replay"} == {*provider_tables.FAMILY_NAMES}
    assert {*WIRE_FORMATS} == {*FAMILIES}


def read(family: str, data: bytes) -> tuple[ModelResponse, str, bool]:
    """The answer of a stream, what was heard of it meanwhile, and whether it was whole."""
    reading = SPOKEN[family].stream_reader()
    heard = "".join(reading.take(event) for event in sse.events([data]))
    return reading.response(), heard, reading.is_over


def bodies(family: str, ask: ModelRequest, shape: RequestShape | None = None) -> Any:
    """The body that the file of the system space makes of a question."""
    text = (SYSTEM / f"{FILES[family]}.yaml").read_text("utf-8")
    spec = read_spec("x", documents.parse(text, "x.yaml"), {})
    return json.loads(
        render_json(spec.body, SPOKEN[family].values(ask, shape or RequestShape("m")))
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_body_is_read_as_an_answer(family: str) -> None:
    spoken = SPOKEN[family]
    assert spoken.response(json.loads(fixture(family, "answer.json"))) == GREETED[family]
    assert spoken.response(json.loads(fixture(family, "tools.json"))) == CALLED[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_is_the_same_answer_piece_by_piece(family: str) -> None:
    assert read(family, fixture(family, "stream.sse")) == (GREETED[family], GREETING, True)
    answer, heard, whole = read(family, fixture(family, "stream_tools.sse"))
    assert (answer, heard, whole) == (CALLED[family], CALLED[family].text, True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["stream.sse", "stream_tools.sse"])
def test_a_stream_without_its_last_events_is_not_whole(family: str, name: str) -> None:
    data = fixture(family, name)
    end = data.index(
        b'"finish_reason":"' if family == "chat_completions" else b"event: message_delta"
    )
    assert read(family, data[:end])[2] is False


HALF = b'data: {"choices": [{"delta": {"content": "half an ans"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("data", [HALF + DONE, DONE])
def test_a_last_event_alone_does_not_make_an_answer_whole(data: bytes) -> None:
    assert read("chat_completions", data)[2] is False


def without_reason(body: dict[str, Any], family: str, *, null: bool) -> dict[str, Any]:
    holder, name = (body, "stop_reason")
    if family == "chat_completions":
        holder, name = body["choices"][0], "finish_reason"
    del holder[name]
    if null:
        holder[name] = None
    return body


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("null", [True, False])
def test_an_answer_that_does_not_say_why_it_ends_is_half_of_one(family: str, null: bool) -> None:
    body = without_reason(json.loads(fixture(family, "answer.json")), family, null=null)
    with pytest.raises(MissingStopReason) as caught:
        SPOKEN[family].response(body)
    assert (caught.value.half.text, caught.value.half.usage) == (
        GREETED[family].text,
        GREETED[family].usage,
    )


def anthropic_end(*deltas: str) -> bytes:
    """A stream of the fixture that ends with these deltas of the message."""
    start = fixture("anthropic_messages", "stream.sse").partition(b"event: message_delta")[0]
    events = (
        f'event: message_delta\ndata: {{"type":"message_delta","delta":{delta},"usage":{{"output_tokens":3}}}}\n\n'
        for delta in deltas
    )
    return (
        start + "".join(events).encode() + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


ANTHROPIC_ENDS = [
    # what is shown of the message at its end                        ending    whole
    ((),                                                            "end",    False),
    (('{"stop_reason":null}',),                                     "end",    False),
    (("{}",),                                                       "end",    False),
    (('{"stop_reason":"max_tokens"}', "{}"),                        "length", True),
    (('{"stop_reason":"max_tokens"}', '{"stop_reason":null}'),      "length", True),
]  # fmt: skip


@pytest.mark.parametrize(("deltas", "ending", "whole"), ANTHROPIC_ENDS)
def test_only_a_reason_makes_a_stream_whole_and_nothing_behind_it_takes_it_back(
    deltas: tuple[str, ...], ending: str, whole: bool
) -> None:
    answer, _, is_whole = read("anthropic_messages", anthropic_end(*deltas))
    assert (answer.ending, is_whole) == (ending, whole)


REASONS = [
    # family                reason                           uses   ending
    ("chat_completions",    "stop",                          False, "end"),
    ("chat_completions",    "stop",                          True,  "tools"),
    ("chat_completions",    "length",                        False, "length"),
    ("chat_completions",    "tool_calls",                    True,  "tools"),
    ("chat_completions",    "content_filter",                False, "refused"),
    ("chat_completions",    "something new",                 False, "end"),
    ("anthropic_messages",  "end_turn",                      False, "end"),
    ("anthropic_messages",  "stop_sequence",                 False, "end"),
    ("anthropic_messages",  "max_tokens",                    False, "length"),
    ("anthropic_messages",  "model_context_window_exceeded", False, "length"),
    ("anthropic_messages",  "tool_use",                      True,  "tools"),
    ("anthropic_messages",  "refusal",                       False, "refused"),
    ("anthropic_messages",  "something new",                 True,  "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "reason", "uses", "ending"), REASONS)
def test_why_a_model_stopped(family: str, reason: str, uses: bool, ending: str) -> None:
    body = json.loads(fixture(family, "tools.json" if uses else "answer.json"))
    if family == "chat_completions":
        body["choices"][0]["finish_reason"] = reason
    else:
        body["stop_reason"] = reason
    assert SPOKEN[family].response(body).ending == ending


def test_a_refusal_of_its_own_field_is_one() -> None:
    body = json.loads(fixture("chat_completions", "answer.json"))
    body["choices"][0]["message"] |= {"content": None, "refusal": "I will not."}
    assert (answer := SPOKEN["chat_completions"].response(body)).ending == "refused"
    assert answer.text == "I will not."


UNREADABLE: list[tuple[str, Any]] = [
    ("chat_completions", None), ("chat_completions", []), ("chat_completions", {}),
    ("chat_completions", {"choices": []}), ("chat_completions", {"choices": [{}]}),
    ("anthropic_messages", None), ("anthropic_messages", {}), ("anthropic_messages", {"content": "text"}),
    ("anthropic_messages", {"content": ["text"]}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "body"), UNREADABLE)
def test_a_body_of_another_form_is_no_answer(family: str, body: Any) -> None:
    with pytest.raises(UnreadableError):
        SPOKEN[family].response(body)


FAULTS = [
    # family                event                                                              what is reported
    ("chat_completions",    '{"error": {"message": "secret", "type": "server_error"}}',        "server_error"),
    ("anthropic_messages",  '{"type": "error", "error": {"type": "overloaded_error"}}',        "overloaded_error"),
    ("anthropic_messages",  '{"type": "error", "error": {"type": "a text, not a word"}}',      ""),
]  # fmt: skip


@pytest.mark.parametrize(("family", "event", "word"), FAULTS)
def test_an_error_inside_a_stream_is_one(family: str, event: str, word: str) -> None:
    with pytest.raises(ServerFault) as caught:
        SPOKEN[family].stream_reader().take(event)
    assert caught.value.word == word


@pytest.mark.parametrize(
    "event", ["not JSON", "[1]", '{"type": "content_block_delta", "index": 7}']
)
def test_an_event_of_another_form_is_unreadable(event: str) -> None:
    with pytest.raises(UnreadableError):
        SPOKEN["anthropic_messages"].stream_reader().take(event)


def test_calls_without_numbers_are_reported_apart_by_their_names() -> None:
    pieces = [
        {"id": "1", "function": {"name": "a", "arguments": '{"x":'}},
        {"function": {"arguments": "1}"}},
        {"id": "2", "function": {"name": "b", "arguments": "{}"}},
    ]
    reading = ChatCompletions().stream_reader()
    for piece in pieces:
        reading.take(json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]}))
    assert reading.response().uses == (ToolRequest("1", "a", {"x": 1}), ToolRequest("2", "b", {}))


RAW = [
    (
        "chat_completions",
        lambda body: body["messages"][0]["tool_calls"][0]["function"]["arguments"],
    ),
    ("anthropic_messages", lambda body: body["messages"][0]["content"][0]["input"]["not_a_map"]),
]


@pytest.mark.parametrize(("family", "place"), RAW)
def test_arguments_that_are_no_json_go_back_as_they_were_written(family: str, place: Any) -> None:
    use = ToolRequest("1", "a", '{"x":')
    body = bodies(
        family,
        ModelRequest((Message("assistant", "", (use,)), Message("tool", "what?", answers="1"))),
    )
    assert place(body) == '{"x":'


# ── questions ────────────────────────────────────────────────────────────


def test_a_session_as_chat_completions() -> None:
    body = bodies("chat_completions", talk(), RequestShape("gpt-5.4-mini", stream=True))
    assert body.pop("tools")[0] == {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    assert body == {
        "model": "gpt-5.4-mini",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "a1",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path":"a.txt"}'},
                    },
                    {
                        "id": "b2",
                        "type": "function",
                        "function": {"name": "list_files", "arguments": "{}"},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "a1", "content": "it says {model}"},
            {"role": "tool", "tool_call_id": "b2", "content": "no such folder"},
            {"role": "user", "content": "and now?"},
        ],
        "max_completion_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_session_as_anthropic_messages() -> None:
    body = bodies("anthropic_messages", talk(), RequestShape("claude-sonnet-5", stream=True))
    assert body.pop("tools")[1] == {
        "name": "list_files",
        "description": "Lists files.",
        "input_schema": {"type": "object", "properties": {}},
    }
    assert body == {
        "model": "claude-sonnet-5",
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {
                        "type": "tool_use",
                        "id": "a1",
                        "name": "read_file",
                        "input": {"path": "a.txt"},
                    },
                    {"type": "tool_use", "id": "b2", "name": "list_files", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a1", "content": "it says {model}"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "b2",
                        "content": "no such folder",
                        "is_error": True,
                    },
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
        "max_tokens": 100,
        "stream": True,
    }


def test_thoughts_go_back_to_the_model_as_they_came() -> None:
    answer = CALLED["anthropic_messages"]
    again = ModelResponse.of(json.loads(json.dumps(answer.record())))
    body = bodies("anthropic_messages", ModelRequest((Message("user", "look"), again.message())))
    assert body["messages"][1] == {"role": "assistant", "content": THOUGHT}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_question_does_not_have_is_not_in_its_body(family: str) -> None:
    body = bodies(family, hi())
    assert body.keys() == {"model", "messages"}


STRUCTURED = [
    # family                how            what the body has
    ("chat_completions",    "json_schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}),
    ("chat_completions",    "tool",        {"tool_choice": {"type": "function", "function": {"name": "give_answer"}}}),
    ("anthropic_messages",  "json_schema", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ("anthropic_messages",  "tool",        {"tool_choice": {"type": "tool", "name": "give_answer"}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "how", "more"), STRUCTURED)
def test_an_answer_of_a_given_form_is_asked_for(
    family: str, how: Any, more: dict[str, Any]
) -> None:
    body = bodies(family, hi(schema=SCHEMA), RequestShape("m", how))
    assert {
        name: value for name, value in body.items() if name not in ("model", "messages", "tools")
    } == more
    assert ("tools" in body) == (how == "tool")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schema_in_words_follows_the_system_text(family: str) -> None:
    body = bodies(family, hi(schema=SCHEMA, system="Be brief."), RequestShape("m", "prompt"))
    system = body["system"] if family == "anthropic_messages" else body["messages"][0]["content"]
    assert system.startswith("Be brief.\n\nAnswer with JSON alone")
    assert system.endswith(json.dumps(SCHEMA, separators=(",", ":")))


PLACEHOLDERS = st.sampled_from(
    [
        "{model}",
        "{messages}",
        "{{model}}",
        "${HOME}",
        "$${X}",
        "${X:-{model}}",
        "{input:a}",
        "${inputs.a}",
        "$(id)",
        "{}",
        '"',
        "\\",
        "\n",
    ]
)
HOSTILE = st.lists(st.one_of(PLACEHOLDERS, st.text(max_size=8)), max_size=6).map("".join)


@given(text=HOSTILE, result=HOSTILE, system=HOSTILE, argument=HOSTILE)
def test_any_message_arrives_unchanged(text: str, result: str, system: str, argument: str) -> None:
    ask = ModelRequest(
        (
            Message("user", text),
            Message("assistant", "", (ToolRequest("1", "read_file", {"path": argument}),)),
            Message("tool", result, answers="1"),
        ),
        system,
    )
    chat = bodies("chat_completions", ask)["messages"]
    if system:
        assert chat.pop(0)["content"] == system
    assert (chat[0]["content"], chat[2]["content"]) == (text, result)
    assert json.loads(chat[1]["tool_calls"][0]["function"]["arguments"]) == {"path": argument}
    messages = bodies("anthropic_messages", ask)
    assert messages.get("system", "") == system
    turns = [turn["content"][0] for turn in messages["messages"]]
    assert (turns[0]["text"], turns[1]["input"], turns[2]["content"]) == (
        text,
        {"path": argument},
        result,
    )


# ── events ───────────────────────────────────────────────────────────────

EVENTS = [
    # bytes                                            data of the events
    (b"data: a\n\n",                                   ["a"]),
    (b"data:a\r\n\r\ndata: b\r\rdata: c\n\n",          ["a", "b", "c"]),
    (b"data: a\ndata: b\n\n",                          ["a\nb"]),
    (b": comment\nevent: x\nid: 1\nretry: 3\n\n",      []),
    (b"\xef\xbb\xbfdata: a\n\n",                       ["a"]),
    (b"data\n\n",                                      [""]),
    (b"data:  two blanks\n\n",                         [" two blanks"]),
    (b"data: a\n\ndata: not ended\n",                  ["a"]),
    (b"data: a\r\n\r",                                 ["a"]),
    (b"",                                              []),
]  # fmt: skip


@pytest.mark.parametrize(("data", "found"), EVENTS)
def test_events_out_of_bytes(data: bytes, found: list[str]) -> None:
    assert list(sse.events([data])) == found
    assert list(sse.events(data[i : i + 1] for i in range(len(data)))) == found


@given(cuts=st.lists(st.integers(0, 2000), max_size=8), family=st.sampled_from(FAMILIES))
def test_where_the_network_cuts_a_stream_does_not_matter(cuts: list[int], family: str) -> None:
    data = fixture(family, "stream_tools.sse")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert list(sse.events(pieces)) == list(sse.events([data]))


def test_every_file_of_the_data_folder_is_read_by_a_test() -> None:
    names = {"answer.json", "tools.json", "stream.sse", "stream_tools.sse"}
    for family in FAMILIES:
        assert {
            path.name
            for path in Path(SYSTEM.parents[3], "tests", "data", "providers", family).iterdir()
        } == names
