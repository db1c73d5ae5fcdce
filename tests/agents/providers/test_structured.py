"""Answers of a given form, and answers that a program gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.providers.talk import READ, SCHEMA, ask, failure, hi
from plait.agents.messages import ModelRequest, ModelResponse, TokenUsage, ToolRequest
from plait.agents.providers.scripted import Scripted, scripted
from plait.agents.providers.structured import StructuredProvider
from plait.core.values import Json, json_text
from plait.engine.outcome import Failure, Interrupted, StepError
from plait.engine.stop import StopSignal

PAID = TokenUsage(10, 5, cost=0.5)


def response(text: str, **fields: Any) -> ModelResponse:
    return ModelResponse(text, usage=PAID, model="m-1", **fields)


FITTING = [
    # text                              data
    ('{"n": 4}',                        {"n": 4}),
    (' \n{"n": 4}\n ',                  {"n": 4}),
    ('```json\n{"n": 4}\n```',          {"n": 4}),
    ('```\n{"n": 4}\n```',              {"n": 4}),
    ('Here:\n```json\n{"n": 4}\n```\n',  {"n": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "data"), FITTING)
def test_an_answer_that_fits_brings_its_data(text: str, data: Json) -> None:
    answer = ask(scripted([response(text)]), hi(schema=SCHEMA))
    assert (answer.text, answer.data, answer.usage) == (text, data, PAID)


BAD = [
    # text                   ending     why
    ("four",                 "end",     "is not JSON"),
    ("",                     "end",     "is not JSON"),
    ('```\n{"n": 1}\n```\nor\n```\n{"n": 2}\n```', "end", "is not JSON"),
    ('See:\n```\n{"n": 1}',  "end",     "is not JSON"),
    ('{"n": NaN}',           "end",     "is not JSON"),
    ('{"n": 1e999}',         "end",     "is not JSON"),
    ('{"n": "\\ud800"}',     "end",     "is not JSON"),
    ("[" * 100_000,          "end",     "is not JSON"),
    ('{"n": "secret"}',      "end",     "does not fit the schema: see properties.n.type there"),
    ("{}",                   "end",     "does not fit the schema: see required there"),
    ('{"n": 4, "secret": 1}', "end",    "does not fit the schema: see additionalProperties there"),
    ('{"n": ',               "length",  "is not JSON; it had no room left: raise max_tokens"),
    ("I will not",           "refused", "declines to answer"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "ending", "why"), BAD)
def test_an_answer_that_does_not_fit_fails_loudly_and_is_kept(
    text: str, ending: Any, why: str
) -> None:
    failed = failure(scripted([response(text, ending=ending)]), hi(schema=SCHEMA, schema_retries=0))
    assert (failed.message, failed.kind) == (f"the answer of 'scripted' {why}", "bad_answer")
    assert failed.output == {"text": text, "usage": PAID.record(), "model": "m-1", "ending": ending}


def test_an_invalid_answer_goes_back_to_the_model_up_to_the_limit_and_each_turn_counts() -> None:
    model = Scripted(lambda _: response("four"))
    failed = failure(StructuredProvider(model), hi(schema=SCHEMA, schema_retries=2))
    assert failed.message == "the answer of 'scripted' is not JSON, asked 3 times"
    assert failed.output["usage"] == (PAID + PAID + PAID).record()
    assert [len(one.messages) for one in model.asked] == [1, 3, 5]
    assert [message.role for message in model.asked[-1].messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert model.asked[1].messages[1].text == "four"
    assert model.asked[1].messages[2].text == (
        "This answer cannot be used:\n- it is not JSON\n"
        f"It has to be valid against this JSON Schema:\n{json_text(SCHEMA)}\n"
        "Give the whole answer again, as JSON alone."
    )


def test_a_model_that_declines_is_not_pressed() -> None:
    model = Scripted(lambda _: response("no", ending="refused"))
    failure(StructuredProvider(model), hi(schema=SCHEMA))
    assert len(model.asked) == 1


def test_the_model_receives_what_does_not_fit_and_where() -> None:
    model = Scripted([response('{"n": "x"}'), response('{"n": 1}')])
    assert ask(StructuredProvider(model), hi(schema=SCHEMA)).data == {"n": 1}
    assert "- n: must be an integer" in model.asked[1].messages[2].text


def test_calls_of_tools_come_before_the_answer() -> None:
    use = ToolRequest("1", "read_file", {"path": "a"})
    model = scripted(
        [response("", uses=(use, ToolRequest("2", "give_answer", {"n": 1})), ending="tools")]
    )
    answer = ask(model, hi(schema=SCHEMA, tools=(READ,)))
    assert (answer.uses, answer.data) == ((use,), None)


def test_what_was_paid_before_a_failure_is_in_it() -> None:
    def answer(question: ModelRequest) -> ModelResponse:
        if len(question.messages) == 1:
            return response("four")
        raise StepError(
            Failure("gone", "network", output={"text": "{", "usage": TokenUsage(1, 1).record()})
        )

    failed = failure(scripted(answer), hi(schema=SCHEMA))
    assert (failed.kind, failed.output["text"]) == ("network", "{")
    assert failed.output["usage"] == (PAID + TokenUsage(1, 1)).record()


def test_an_invalid_schema_sends_no_request() -> None:
    model = Scripted([])
    failed = failure(StructuredProvider(model), hi(schema={"type": "nonsense"}))
    assert (failed.message, failed.kind, model.asked) == (
        "the schema of the answer is not JSON Schema",
        "refused",
        [],
    )


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_data_of_an_answer_is_what_the_model_wrote(data: Json) -> None:
    try:
        text = json_text(data)
        text.encode()
    except UnicodeEncodeError:
        return
    assert ask(scripted([text]), hi(schema={})).data == data


# ── answers of a program ─────────────────────────────────────────────────


def test_a_list_of_answers_is_given_in_turn_until_none_is_left() -> None:
    asking = scripted(["one", ModelResponse("two")], name="mine")
    assert [ask(asking).text, ask(asking).text] == ["one", "two"]
    failed = failure(asking)
    assert failed.message == "the provider 'mine' has 2 answers, and was asked once more"


def test_a_function_receives_the_request() -> None:
    heard: list[str] = []
    answer = ask(
        scripted(lambda question: question.messages[0].text.upper()),
        hi("abc"),
        on_text=heard.append,
    )
    assert (answer.text, heard) == ("ABC", ["ABC"])


def test_a_run_that_is_to_stop_asks_no_function() -> None:
    stop = StopSignal()
    stop.ask()
    with pytest.raises(Interrupted):
        ask(scripted(["one"]), stop=stop)
