"""Faults of servers and models are refused, reported or replaced, and never look like a response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.providers.talk import FAMILIES, events, failure, fixture, provider, reply, serving
from agents.scripted import ToolServices
from plait.agents.providers import sse
from plait.agents.providers.wire_formats import MOST_COUNTED, UnreadableError
from plait.agents.providers.wire_formats.table import WIRE_FORMATS
from plait.agents.session import AgentStep
from plait.agents.structured_output import parse_structured
from plait.core.values import MOST_LEVELS, Json, json_text
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Succeeded
from program.fakes import new_run, performed

SPOKEN: dict[str, Any] = {**WIRE_FORMATS}


def completion(message: Json, **more: Json) -> Json:
    choice = {"message": message, "finish_reason": more.pop("finish_reason", "stop")}
    return {"choices": [choice], **more}


def call(**function: Json) -> Json:
    return completion({"content": None, "tool_calls": [{"id": "1", "function": function}]})


MALFORMED: list[tuple[str, Json, str]] = [
    # family, body, what was expected
    ("chat_completions", completion({"content": 5, "tool_calls": "x"}, finish_reason=7, usage="many"), "'tool_calls' to be a list"),
    ("chat_completions", completion({"content": 5}), "'content' to be text"),
    ("chat_completions", completion({"content": {"text": "a"}}), "'content' to be text"),
    ("chat_completions", completion({"content": [{"type": "text", "text": 5}]}), "'text' to be text"),
    ("chat_completions", completion("hi"), "'message' to be a map"),
    ("chat_completions", completion(None), "a chat completion with a message"),
    ("chat_completions", completion({"content": "a"}, finish_reason=7), "'finish_reason' to be text"),
    ("chat_completions", completion({"content": "a"}, usage="many"), "'usage' to be a map"),
    ("chat_completions", completion({"content": "a"}, usage={"prompt_tokens": "3"}), "'prompt_tokens' to be a count up to 1,000,000,000"),
    ("chat_completions", completion({"content": "a"}, usage={"prompt_tokens": 10**30}), "'prompt_tokens' to be a count up to 1,000,000,000"),
    ("chat_completions", completion({"content": "a"}, usage={"completion_tokens": -1}), "'completion_tokens' to be a count up to 1,000,000,000"),
    ("chat_completions", completion({"content": "a"}, usage={"prompt_tokens_details": [1]}), "'prompt_tokens_details' to be a map"),
    ("chat_completions", completion({"content": "a"}, model=["m"]), "'model' to be text"),
    ("chat_completions", completion({"refusal": 1}), "'refusal' to be text"),
    ("chat_completions", completion({"tool_calls": ["x"]}), "calls of tools with the name of a function"),
    ("chat_completions", completion({"tool_calls": [{"id": "1"}]}), "calls of tools with the name of a function"),
    ("chat_completions", call(arguments="{}"), "calls of tools with the name of a function"),
    ("chat_completions", call(name=4), "'name' to be text"),
    ("anthropic_messages", {"content": [{"text": "a"}]}, "blocks of content as maps with a type"),
    ("anthropic_messages", {"content": [{"type": 5}]}, "'type' to be text"),
    ("anthropic_messages", {"content": [{"type": "text"}]}, "blocks of text with their text"),
    ("anthropic_messages", {"content": [{"type": "text", "text": 5}]}, "'text' to be text"),
    ("anthropic_messages", {"content": [{"type": "tool_use", "name": "a"}]}, "calls of tools with an id and a name"),
    ("anthropic_messages", {"content": [{"type": "tool_use", "id": "a", "name": 1}]}, "'name' to be text"),
    ("anthropic_messages", {"content": [{"type": "thinking", "thinking": 1}]}, "'thinking' to be text"),
    ("anthropic_messages", {"content": [], "stop_reason": 1}, "'stop_reason' to be text"),
    ("anthropic_messages", {"content": [], "usage": "many"}, "'usage' to be a map"),
    ("anthropic_messages", {"content": [], "usage": {"input_tokens": 10**30}}, "'input_tokens' to be a count up to 1,000,000,000"),
    ("anthropic_messages", {"content": [], "usage": {"output_tokens": -5}}, "'output_tokens' to be a count up to 1,000,000,000"),
    ("anthropic_messages", {"content": [], "usage": {"output_tokens": True}}, "'output_tokens' to be a count up to 1,000,000,000"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "body", "expected"), MALFORMED)
def test_an_answer_of_another_form_is_none(family: str, body: Json, expected: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        SPOKEN[family].response(body)
    assert str(caught.value) == expected


BROKEN: list[tuple[str, list[Json]]] = [
    ("chat_completions", [{"choices": [{"delta": {"content": 5}}]}]),
    ("chat_completions", [{"choices": [{"delta": "x"}]}]),
    ("chat_completions", [{"choices": [{"delta": {"tool_calls": "x"}}]}]),
    ("chat_completions", [{"choices": [{"delta": {"tool_calls": [{"function": {"name": 1}}]}}]}]),
    ("chat_completions", [{"choices": [{"delta": {}, "finish_reason": 7}]}]),
    ("chat_completions", [{"choices": [], "usage": "many"}]),
    ("chat_completions", [{"choices": [], "usage": {"prompt_tokens": -1}}]),
    ("anthropic_messages", [{"type": "message_start", "message": "x"}]),
    ("anthropic_messages", [{"type": "message_start", "message": {"usage": {"input_tokens": 10**30}}}]),
    ("anthropic_messages", [{"type": "content_block_start", "index": 0, "content_block": "x"}]),
    ("anthropic_messages", [{"type": "content_block_start", "index": -1, "content_block": {"type": "x"}}]),
    ("anthropic_messages", [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
    ]),
    ("anthropic_messages", [{"type": "message_delta", "delta": {"stop_reason": 5}}]),
    ("anthropic_messages", [{"type": "message_delta", "delta": {}, "usage": [1]}]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "sent"), BROKEN)
def test_a_stream_of_another_form_is_a_failure_of_the_server(family: str, sent: list[Json]) -> None:
    data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in sent)
    with serving(events(data)) as server:
        failed = failure(provider(family, server.url))
    assert (failed.kind, len(server.bodies)) == ("server_error", 1)
    assert "broke off: the provider" in failed.message
    assert "does not speak" in failed.message


def test_the_worst_answer_over_the_wire_is_a_failure_of_the_server() -> None:
    with serving(reply(MALFORMED[0][1])) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.kind, failed.message) == (
        "server_error",
        "the provider 'openai' does not speak chat_completions: expected 'tool_calls' to be a list",
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_largest_count_is_still_one(family: str) -> None:
    body = json.loads(fixture(family, "answer.json"))
    name = "prompt_tokens" if family == "chat_completions" else "input_tokens"
    body["usage"] = {name: MOST_COUNTED}
    assert SPOKEN[family].response(body).usage.input == MOST_COUNTED


def test_content_in_parts_is_their_text() -> None:
    parts = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert SPOKEN["chat_completions"].response(completion({"content": parts})).text == "ab"


# ── halves of characters ─────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_half_a_character_is_replaced_and_two_halves_are_one(family: str) -> None:
    pieces = ["a\ud83d", "\ude00b", "\ud800"]
    if family == "chat_completions":
        events: list[Json] = [{"choices": [{"delta": {"content": one}}]} for one in pieces]
    else:
        begin = {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        deltas = [{"type": "text_delta", "text": one} for one in pieces]
        events = [
            begin,
            *({"type": "content_block_delta", "index": 0, "delta": one} for one in deltas),
        ]
    reading = SPOKEN[family].stream_reader()
    for one in events:
        reading.take(json.dumps(one))
    assert reading.response().text == "a😀b\ufffd"


# ── arguments and answers that cannot be written down ────────────────────

DEEP = "[" * 900 + "]" * 900
UNFIT = [
    # what a model writes as arguments           what is kept of it
    ('{"path": NaN}',                            '{"path": NaN}'),
    ('{"path": -Infinity}',                      '{"path": -Infinity}'),
    ('{"path": 1e999}',                          '{"path": 1e999}'),
    ('{"path": "\\ud800"}',                      '{"path": "\\ud800"}'),
    ('{"path": ' + DEEP + "}",                   '{"path": ' + DEEP + "}"),
    ('{"path": ' + "[" * 100_000,                '{"path": ' + "[" * 100_000),
    ('{"path": ' + "9" * 5000 + "}",             '{"path": ' + "9" * 5000 + "}"),
]  # fmt: skip


def with_arguments(family: str, written: str) -> bytes:
    """A stream in which a model calls a tool so."""
    if family == "chat_completions":
        use = {"index": 0, "id": "c1", "function": {"name": "read_file", "arguments": written}}
        events: list[Json] = [
            {"choices": [{"delta": {"tool_calls": [use]}}]},
            {
                "choices": [{"delta": {}, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 9},
            },
        ]
    else:
        block = {"type": "tool_use", "id": "c1", "name": "read_file", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": written}
        events = [
            {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "thinking", "thinking": "hm"},
            },
            {"type": "content_block_start", "index": 1, "content_block": block},
            {"type": "content_block_delta", "index": 1, "delta": delta},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("written", "kept"), UNFIT, ids=range(len(UNFIT)))
def test_arguments_that_cannot_be_recorded_are_reported_and_counted_once(
    family: str, written: str, kept: str
) -> None:
    journal = MemoryJournal()
    talk = AgentStep("agent", "look", "look", tools=("*",))
    with serving(
        events(with_arguments(family, written)), events(fixture(family, "stream.sse"))
    ) as server:
        fakes = ToolServices(provider(family, server.url), {"read_file": lambda _: "never"})  # type: ignore[arg-type]
        outcome = performed(
            talk, new_run(fakes, journal, mask=lambda text: text.replace("hunter2", "***"))
        )
        assert isinstance(outcome, Succeeded), outcome
        assert fakes.calls == []
        reported = server.asked(1)["messages"][-1]
        assert "refused: the arguments are not a JSON object" in json_text(reported)
        again = performed(talk, new_run(fakes, journal.reopen()))
        assert (again, len(server.bodies)) == (outcome, 2)
    recorded = journal.step("agent/turn:1")
    assert recorded is not None
    assert isinstance(recorded.outcome, Succeeded)
    assert recorded.outcome.value["uses"][0]["arguments"] == kept
    json_text(recorded.outcome.value).encode()


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_that_a_server_gives_as_data_are_held_to_the_same(family: str) -> None:
    deep = json.loads(DEEP)
    for given in ({"path": float("nan")}, {"path": "\ud800"}, {"path": deep}):
        body = call(name="a", arguments=given)
        if family == "anthropic_messages":
            use = {"type": "tool_use", "id": "1", "name": "a", "input": given}
            body = {"content": [use], "stop_reason": "tool_use"}
        (use,) = SPOKEN[family].response(body).uses
        assert use.arguments == json.dumps(given)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


JUDGED = [
    # answer                     fits
    ('{"v": 1}',                 True),
    ('{"v": NaN}',               False),
    ('{"v": 1e999}',             False),
    ('{"v": "\\ud800"}',         False),
    ("```json\n[1]\n```",        True),
    ("```\n[1]```",              True),
    ("```json5 x\r\n[1]\n```",   True),
    ("``` [1] ```",              False),
    (nested(MOST_LEVELS),            True),
    (nested(MOST_LEVELS + 1),        False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fits"), JUDGED)
def test_an_answer_is_judged_by_one_rule(text: str, fits: bool) -> None:
    found = parse_structured(text, {})
    assert (found.fits, found.wrong) == (fits, () if fits else ("it is not JSON",))


def test_an_answer_of_a_schema_that_is_no_number_goes_back_to_the_model() -> None:
    with serving(
        reply(completion({"content": '{"n": NaN}'})), reply(completion({"content": '{"n": 4}'}))
    ) as server:
        asking = provider("chat_completions", server.url)
        talk = AgentStep("agent", "look", "look", schema={"type": "object"})
        outcome = performed(talk, new_run(ToolServices(asking)))  # type: ignore[arg-type]
        assert isinstance(outcome, Succeeded), outcome
        assert (outcome.value["data"], outcome.value["turns"]) == ({"n": 4}, 2)


# ── events without an end ────────────────────────────────────────────────


def test_a_long_line_in_many_pieces_is_one_event() -> None:
    size = 1 << 19
    pieces = [b"data: ", *[b"x"] * size, b"\r", b"\n", b"\n"]
    assert list(sse.events(pieces)) == ["x" * size]


@pytest.mark.parametrize(
    "pieces", [[b"data: " + b"x" * 95], [b"x"] * 101, [b"data: x\n"] * 15, [b": x\n"] * 40]
)
def test_an_event_that_does_not_end_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(UnreadableError, match="events of at most 100 bytes"):
        list(sse.events(pieces, most=100))
    assert list(sse.events([b"data: x\n\n"] * 40, most=100)) == ["x"] * 40


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_that_is_one_endless_event_is_a_failure_of_the_server(family: str) -> None:
    with serving(events(b"data: " + b"x" * (9 << 20))) as server:
        failed = failure(provider(family, server.url))
    assert failed.kind == "server_error"
    assert failed.message.endswith(
        "expected events of at most 8,388,608 bytes; the partial response is not used"
    )


def test_an_answer_without_end_says_where_to_look_and_names_no_field_that_is_not_there() -> None:
    with serving(reply(b" " * (17 << 20))) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.kind, failed.message) == (
        "server_error",
        "the provider 'openai' gave no answer: the answer is larger than 16,777,216 bytes; "
        "no answer of a model is that long: look at base_url and path of the provider",
    )
