"""Conversations written down and played back."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.providers.talk import (
    KEY,
    READ,
    SCHEMA,
    ask,
    events,
    failure,
    fixture,
    hi,
    provider,
    serving,
    talk,
)
from plait.agents.messages import Message, ModelRequest, ModelResponse, TokenUsage, ToolRequest
from plait.agents.providers.recordings import RecordedModel, RecordingModel, request_key
from plait.agents.providers.scripted import Scripted
from plait.agents.providers.structured import StructuredProvider
from plait.core.digests import json_digest
from plait.core.errors import InputError
from plait.engine.outcome import Interrupted
from plait.engine.stop import StopSignal


def playing(
    tmp_path: Path, text: str, match: Any = "exact", name: str = "talk.yaml"
) -> StructuredProvider:
    (tmp_path / name).write_text(text)
    return StructuredProvider(RecordedModel("replay", str(tmp_path / name), match))


HAND = """
- ask: hello
  answer: Good day.
- ask: {messages: [{role: user, text: read it}], tools: []}
  answer: never, since an empty list is not said
- ask: read
  answer: {text: I read., uses: [{name: read_file, arguments: {path: "${HOME} {model}"}}], usage: {input: 3, output: 2, cost: 0.1}}
"""


def test_a_file_written_by_hand_answers_by_the_last_message(tmp_path: Path) -> None:
    asking = playing(tmp_path, HAND)
    assert ask(asking, hi("hello", system="whatever", model="any")).text == "Good day."
    answer = ask(asking, hi("read"))
    assert answer == ModelResponse(
        "I read.",
        (ToolRequest("call_1", "read_file", {"path": "${HOME} {model}"}),),
        TokenUsage(3, 2, cost=0.1),
        ending="tools",
    )


def test_one_question_with_several_answers_gets_them_in_turn(tmp_path: Path) -> None:
    asking = playing(
        tmp_path, "- {ask: a, answer: one}\n- {ask: b, answer: other}\n- {ask: a, answer: two}\n"
    )
    assert [ask(asking, hi(text)).text for text in "aabaa"] == ["one", "two", "other", "two", "two"]


def test_in_order_the_question_does_not_matter_unless_it_is_written_down(tmp_path: Path) -> None:
    asking = playing(tmp_path, "- answer: one\n- {ask: two?, answer: two}\n", "order")
    assert ask(asking, hi("anything")).text == "one"
    failed = failure(asking, hi("anything"))
    path = tmp_path / "talk.yaml"
    assert failed.message == (
        f"the provider 'replay' knows no answer: exchange 2 of {path} is another question: "
        'it differs in messages[0].text; record it, or add it there: ask: "anything"'
    )
    assert ask(asking, hi("two?")).text == "two"
    assert failure(asking, hi("three?")).message == (
        f"the provider 'replay' knows no answer: {path} holds 2 answers, and one more is asked for; "
        'record it, or add it there: ask: "three?"'
    )


def test_an_unrecorded_request_is_refused_with_where_it_differs_and_what_was_recorded(
    tmp_path: Path,
) -> None:
    known = [hi("first"), hi("hunter2", system="same", tools=(READ,))]
    lines = [json.dumps({"ask": request_key(one), "answer": "x"}) for one in known]
    asking = playing(tmp_path, "\n".join(lines), name="talk.jsonl")
    asked = hi("swordfish", system="same", tools=(READ,))
    failed = failure(asking, asked)
    assert failed.kind == "refused"
    assert failed.message == (
        f"the provider 'replay' knows no answer: none of the 2 questions in {tmp_path}/talk.jsonl is this one; "
        f"exchange 2 is most like it, and differs in messages[0].text (messages: 1, tools: 1, "
        f"digest {json_digest(request_key(asked))[:12]}); record it, or add it there: "
        'ask: "swordfish"'
    )


ASKED = [
    # the last text        what is shown
    ('say "a": b\nthen c', '"say \\"a\\": b\\nthen c"'),
    ("é" * 300,            f'"{"é" * 300}"'),
    ("x" * 301,            f'"{"x" * 299}…"'),
    ("",                   '""'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), ASKED)
def test_what_was_asked_is_shown_as_the_ask_of_an_exchange(
    tmp_path: Path, text: str, shown: str
) -> None:
    message = failure(playing(tmp_path, "- {ask: other, answer: x}"), hi(text)).message
    ask_line = message.partition("add it there: ")[2]
    assert ask_line == f"ask: {shown}"
    if len(text) <= 300:
        assert ask(playing(tmp_path, f"- {ask_line}\n  answer: x"), hi(text)).text == "x"


def test_a_run_that_is_to_stop_gets_no_recorded_response(tmp_path: Path) -> None:
    stop = StopSignal()
    stop.ask()
    with pytest.raises(Interrupted):
        ask(playing(tmp_path, "- answer: x"), stop=stop)


WRONG = [
    ("a: 1",                                     "a replay file is a list of exchanges"),
    ("- ask: x",                                 "exchange 1: it has no answer"),
    ("- {answer: x, asks: y}",                   "exchange 1: it has no field 'asks'"),
    ("- {answer: x, ask: 3}",                    "exchange 1: 'ask' is text or a map"),
    ("- answer: 3",                              "exchange 1: 'answer' is text or a map"),
    ("- answer: {txt: x}",                       "exchange 1: an answer has no field 'txt'"),
    ("- answer: {text: 3}",                      "exchange 1: 'text' is text"),
    ("- answer: {ending: soon}",                 "exchange 1: 'ending' is one of end, tools, length, refused"),
    ("- answer: {uses: [{id: x}]}",              "exchange 1: 'uses' is a list of maps: name, arguments, id"),
    ("- answer: {usage: {tokens: 3}}",           "exchange 1: 'usage' is a map of numbers: input, output, cached, cost, calls, estimated"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), WRONG)
def test_a_file_that_is_wrong_says_so(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        playing(tmp_path, text)
    assert caught.value.what == what


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        playing(tmp_path, "- ask: x\n- answer: 3\n- answer: fine\n")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("name", ["none.yaml", "none.jsonl"])
def test_no_file_is_an_error_of_the_user(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        RecordedModel("replay", str(tmp_path / name))
    assert caught.value.code == "no-file"


# ── recording ────────────────────────────────────────────────────────────


def test_what_was_recorded_is_played_back_and_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    family = "anthropic_messages"
    asked = [hi(f"my key is {KEY}"), talk()]
    with serving(events(fixture(family, "stream_tools.sse"))) as server:
        inner: Any = provider(family, server.url).model
        recording = StructuredProvider(RecordingModel("rec", str(path), inner, mask=inner.mask))
        answers = [ask(recording, one) for one in asked]
    assert KEY not in path.read_text()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    playing = StructuredProvider(RecordedModel("replay", str(path)))
    assert ask(playing, asked[1]) == answers[1]
    assert ask(playing, hi("my key is ***")) == answers[0]


def test_retries_for_a_schema_are_recorded_one_by_one_and_play_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "talk.jsonl")
    inner = Scripted(["four", '{"n": 4}'])
    live = ask(StructuredProvider(RecordingModel("rec", path, inner)), hi(schema=SCHEMA))
    assert ask(StructuredProvider(RecordedModel("replay", path)), hi(schema=SCHEMA)) == live
    assert (live.data, live.usage.calls) == ({"n": 4}, 2)


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError) as caught:
        ask(
            StructuredProvider(RecordingModel("rec", str(tmp_path / "link.jsonl"), Scripted(["x"])))
        )
    assert caught.value.what.startswith("the exchange cannot be written down: ")
    assert not (tmp_path / "elsewhere").exists()


@given(text=st.text(), system=st.text(), result=st.text())
def test_any_question_finds_its_own_answer(
    text: str, system: str, result: str, tmp_path_factory: Any
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "any.jsonl")
    if os.path.exists(path):
        os.unlink(path)
    use = ToolRequest("1", "read_file", {"path": text})
    asked = ModelRequest(
        (
            Message("user", text),
            Message("assistant", "", (use,)),
            Message("tool", result, answers="1"),
        ),
        system,
    )
    response = ModelResponse(
        result,
        (use,),
        TokenUsage(1, 2, cost=0.25),
        "m",
        "tools",
        blocks=[{"type": "thinking", "thinking": text}],
    )
    ask(StructuredProvider(RecordingModel("rec", path, Scripted([response]))), asked)
    assert ask(StructuredProvider(RecordedModel("replay", path)), asked) == response


def test_a_digest_is_of_what_the_model_receives() -> None:
    one = hi("a", tools=(READ,), model="m", system="s")
    same = hi(
        "a", tools=(READ,), model="m", system="s", options={"temperature": 1}, schema_retries=0
    )
    others = [
        hi("b", tools=(READ,), model="m", system="s"),
        hi("a", model="m", system="s"),
        hi("a", tools=(READ,), system="s"),
    ]
    assert json_digest(request_key(one)) == json_digest(request_key(same))
    assert len({json_digest(request_key(each)) for each in [one, *others]}) == 4
