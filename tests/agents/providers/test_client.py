"""Questions to real servers on loopback: whole answers and streams, attempts, keys, deadlines, a wish to stop."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.providers.talk import (
    FAMILIES,
    FILES,
    GREETING,
    KEY,
    PATHS,
    SCHEMA,
    ask,
    events,
    events_until,
    failure,
    fixture,
    hi,
    provider,
    reply,
    saying,
    serving,
    talk,
)
from plait.agents.messages import Message, ModelRequest, ToolOffer, ToolRequest
from plait.agents.providers.client import pause_asked
from plait.agents.turn_budget import TurnBudget
from plait.core.values import json_text
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Interrupted, StepError
from plait.engine.stop import StopSignal
from share import examples

PRICED = "prices: {gpt-5.4-mini: {input: 10, cached: 1, output: 100}, claude-sonnet-5: {input: 10, cached: 1, output: 100}}"
COST = (200 * 10 + 1000 * 1 + 40 * 100) / 1_000_000


# ── answers ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_with_what_it_cost(family: str, streamed: bool) -> None:
    whole = (
        events(fixture(family, "stream.sse"))
        if streamed
        else reply(json.loads(fixture(family, "answer.json")))
    )
    heard: list[str] = []
    with serving(whole) as server:
        answer = ask(provider(family, server.url, PRICED), on_text=heard.append)
    assert (answer.text, answer.ending, "".join(heard)) == (GREETING, "end", GREETING)
    assert answer.usage.cost == pytest.approx(COST)
    assert (answer.usage.input, answer.usage.output, answer.usage.cached) == (1200, 40, 1000)
    assert (len(heard) > 1) == streamed


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_tools_come_over_a_stream(family: str) -> None:
    with serving(events(fixture(family, "stream_tools.sse"))) as server:
        answer = ask(provider(family, server.url), talk())
    assert [(use.name, use.arguments) for use in answer.uses] == [
        ("read_file", {"path": "a.txt"}),
        ("list_files", {}),
    ]
    assert (answer.ending, answer.usage.tokens) == ("tools", 120)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_key_goes_into_one_header_and_the_question_to_the_path_of_the_file(family: str) -> None:
    with serving(events(fixture(family, "stream.sse"))) as server:
        ask(provider(family, server.url))
    assert server.paths == [PATHS[family]]
    (headers,) = server.headers
    name, value = (
        ("authorization", f"Bearer {KEY}") if family == "chat_completions" else ("x-api-key", KEY)
    )
    assert headers[name] == value
    assert [one for one in headers if KEY in headers[one]] == [name]
    assert headers.get("anthropic-version") == (
        "2023-06-01" if family == "anthropic_messages" else None
    )


def test_a_model_is_named_as_the_server_calls_it() -> None:
    names = [(None, "gpt-5.4-mini"), ("fast", "gpt-5.4-nano"), ("some-model", "some-model")]
    with serving(saying("chat_completions", "ok")) as server:
        for name, called in names:
            ask(provider("chat_completions", server.url), hi(model=name))
            assert server.asked()["model"] == called


def test_a_model_in_the_path_is_encoded_and_never_a_template() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        asking = provider("chat_completions", server.url, "path: /models/{model}/chat")
        ask(asking, hi(model="a/../b ${OPENAI_API_KEY} {model}"))
    assert server.paths == ["/models/a%2F..%2Fb%20%24%7BOPENAI_API_KEY%7D%20%7Bmodel%7D/chat"]


def test_a_path_knows_variables_and_no_attributes_of_a_value() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        asking = provider(
            "chat_completions",
            server.url,
            "path: '/${REGION}/{model.__class__}'",
            environ={"REGION": "eu west"},
        )
        ask(asking)
    assert server.paths == ["/eu%20west/%7Bmodel.__class__%7D"]


# ── seed 000, and the defect of the reference ────────────────────────────

BODY = [
    # written in the body             what is asked                      what is sent
    ('{a: "{model}"}',                hi(model="m"),                     {"a": "m"}),
    ('{a: "{messages}"}',             hi("x"),                           {"a": [{"role": "user", "content": "x"}]}),
    ('{a: "{max_tokens}"}',           hi(options={"max_tokens": 7}),     {"a": 7}),
    ('{a: "n={max_tokens}"}',         hi(options={"max_tokens": 7}),     {"a": "n=7"}),
    ('{a: "x {nobody} y"}',           hi(),                              {"a": "x {nobody} y"}),
    ('{a: "{tools}", b: 1}',          hi(),                              {"b": 1}),
    ('{a: {b: {c: "{tools}"}}}',      hi(),                              {"a": {"b": {}}}),
    ('{a: ["{tools}", "{model}"]}',   hi(model="m"),                     {"a": ["m"]}),
    ('{a: "{stream}"}',               hi(),                              {}),
    ('{a: "${REGION}", b: "${NO:-d}"}', hi(),                            {"a": "eu", "b": "d"}),
    ('{a: "{{model}}"}',              hi(model="m"),                     {"a": "{model}"}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "question", "sent"), BODY)
def test_a_body_is_filled_by_type_and_leaves_out_what_was_not_given(
    body: str, question: ModelRequest, sent: Any
) -> None:
    with serving(saying("chat_completions", "ok")) as server:
        asking = provider(
            "chat_completions", server.url, "stream: false", body=body, environ={"REGION": "eu"}
        )
        ask(asking, question)
    assert server.asked() == sent


HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "{model}",
                "{messages}",
                "${OPENAI_API_KEY}",
                "{{x}}",
                "$${A}",
                "{input:x}",
                "\x00",
                '"',
                "\\u0041",
            ]
        ),
        st.text(max_size=5),
    ),
    max_size=6,
).map("".join)


@pytest.mark.hypothesis
def test_messages_reach_the_server_unchanged() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        asking = provider("chat_completions", server.url)

        @settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
        @given(text=HOSTILE, result=HOSTILE, described=HOSTILE)
        def arrives(text: str, result: str, described: str) -> None:
            use = ToolRequest("1", "t", {"x": text})
            messages = (
                Message("user", text),
                Message("assistant", "", (use,)),
                Message("tool", result, answers="1"),
            )
            ask(asking, ModelRequest(messages, text, tools=(ToolOffer("t", described, {}),)))
            sent = server.asked()
            system = sent["messages"].pop(0)["content"] if text else ""
            assert (system, sent["messages"][0]["content"], sent["messages"][2]["content"]) == (
                text,
                text,
                result,
            )
            assert sent["tools"][0]["function"]["description"] == described
            assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == json_text(
                {"x": text}
            )

        arrives()


def test_bytes_that_are_no_text_do_not_stop_a_question() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        ask(provider("chat_completions", server.url), hi("a\udce4b"))
    assert server.asked()["messages"][0]["content"].startswith("a\ufffd")


# ── attempts ─────────────────────────────────────────────────────────────


def refusal(status: int, word: str = "", **headers: str) -> Any:
    return reply({"error": {"type": word, "message": f"says {KEY}"}}, status, **headers)


AGAIN = [
    ("chat_completions",   refusal(429, "rate_limit_exceeded", retry_after="0")),
    ("chat_completions",   refusal(429, retry_after=formatdate(0, usegmt=True))),
    ("chat_completions",   refusal(429, retry_after_ms="1")),
    ("chat_completions",   refusal(503)),
    ("chat_completions",   refusal(500)),
    ("anthropic_messages", refusal(529, "overloaded_error")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "first"), AGAIN)
def test_a_server_that_was_busy_is_asked_again(family: str, first: Any) -> None:
    with serving(first, events(fixture(family, "stream.sse"))) as server:
        answer = ask(provider(family, server.url))
    assert (answer.text, len(server.bodies), answer.usage.calls) == (GREETING, 2, 1)
    assert server.bodies[0] == server.bodies[1]


ENDS = [
    # status  word                   kind            attempts  message
    (429, "rate_limit_exceeded",     "rate_limit",   3, "the provider 'openai' answered 429 Too Many Requests (rate_limit_exceeded), after 3 attempts, "
                                                        'and says "says ***": wait, or look at the limits and the credit of your account there'),
    (503, "",                        "server_error", 3, "the provider 'openai' answered 503 Service Unavailable, after 3 attempts, and says \"says ***\""),
    (401, "invalid_api_key",         "refused",      1, "the provider 'openai' answered 401 Unauthorized (invalid_api_key), and says \"says ***\": "
                                                        "look at the key in OPENAI_API_KEY, and what it may do"),
    (403, "",                        "refused",      1, "the provider 'openai' answered 403 Forbidden, and says \"says ***\": "
                                                        "look at the key in OPENAI_API_KEY, and what it may do"),
    (404, "model_not_found",         "refused",      1, "the provider 'openai' answered 404 Not Found (model_not_found), and says \"says ***\": "
                                                        "look at the name of the model, and at base_url and path of the provider"),
    (400, "context_length_exceeded", "refused",      1, "the provider 'openai' answered 400 Bad Request (context_length_exceeded), and says \"says ***\": "
                                                        "it rejected the request"),
    (302, "",                        "refused",      1, "the provider 'openai' answered 302 Found, and says \"says ***\": "
                                                        "it redirects, which a key does not follow; write the last address as base_url"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "word", "kind", "attempts", "message"), ENDS)
def test_an_unwelcome_answer_says_what_to_do(
    status: int, word: str, kind: str, attempts: int, message: str
) -> None:
    with serving(refusal(status, word, location="http://127.0.0.1:1/")) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.message, failed.kind, len(server.bodies)) == (message, kind, attempts)
    assert failed.output == {"said": "says ***", "status": status}


FAULTS = [
    # what the server sends                                       what is reported
    ({"error": {"message": "too long:\n 9000 > 8192 "}},           ', and says "too long: 9000 > 8192"'),
    ({"error": "no such model"},                                  ', and says "no such model"'),
    ({"object": "error", "message": "no such model"},             ', and says "no such model"'),
    ({"detail": "no such model"},                                 ', and says "no such model"'),
    (b"404 page not found\n",                                     ', and says "404 page not found"'),
    ({"error": {"message": "x" * 500}},                           ', and says "' + "x" * 299 + '…"'),
    ({"error": {"message": ["x"]}},                               ""),
    (b"<html>proxy</html>",                                       ""),
    (b"",                                                         ""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reported"), FAULTS)
def test_what_a_server_says_about_an_error_is_reported_on_one_line(
    body: Any, reported: str
) -> None:
    with serving(reply(body, 400)) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (
        failed.message
        == f"the provider 'openai' answered 400 Bad Request{reported}: it rejected the request"
    )


@pytest.mark.parametrize(
    "body", [{"error": {"message": "x" * 1990 + KEY}}, b"x" * 1990 + KEY.encode()]
)
@pytest.mark.parametrize("status", [200, 400])
def test_no_part_of_a_secret_is_left_where_the_words_of_a_server_are_cut(
    body: Any, status: int
) -> None:
    with serving(reply(body, status)) as server:
        failed = failure(provider("chat_completions", server.url))
    assert failed.output is not None
    assert KEY[:4] not in json.dumps(failed.output) + failed.message
    assert "x" * 1900 in json.dumps(failed.output)


WAITS = [
    # status  message
    (429, "the provider 'openai' answered 429 Too Many Requests, and says \"says ***\": "
          "wait 3600 seconds, or look at the limits and the credit of your account there"),
    (503, "the provider 'openai' answered 503 Service Unavailable, and says \"says ***\": wait 3600 seconds"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "message"), WAITS)
def test_a_longer_wait_than_there_is_time_ends_at_once_and_is_reported(
    status: int, message: str
) -> None:
    with serving(refusal(status, retry_after="3600")) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.message, len(server.bodies)) == (message, 1)


def test_an_unreachable_server_is_a_failure_of_the_network() -> None:
    with serving(refusal(500)) as server:
        url = server.url
    failed = failure(provider("chat_completions", url))
    assert failed.kind == "network"
    assert failed.message == (
        "the provider 'openai' gave no answer: the host cannot be reached: the connection was refused, "
        "after 3 attempts; check host and port, and that the server runs"
    )


PAUSES = [
    ({"retry-after": "0"},                                   0.0),
    ({"retry-after": "1.5"},                                 1.5),
    ({"retry-after-ms": "250", "retry-after": "9"},          0.25),
    ({"retry-after": formatdate(1030, usegmt=True)},         30.0),
    ({"retry-after": formatdate(970, usegmt=True)},          0.0),
    ({"retry-after": "soon"},                                None),
    ({},                                                     None),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "pause"), PAUSES)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], pause: float | None) -> None:
    assert pause_asked(headers, now=1000.0) == pause


# ── uncounted usage ──────────────────────────────────────────────────────

UNCOUNTED_TEXT = "Ein Haus, drei Türen."  # 22 bytes
CALLED = {"name": "read_file", "arguments": '{"path":"a.txt"}'}


def uncounted(message: dict[str, Any], **counted: int) -> Any:
    response = {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": counted,
        "model": "gpt-5.4-mini",
    }
    return reply(
        response if counted else {name: response[name] for name in response if name != "usage"}
    )


ESTIMATES = [
    # an answer, and what its server counts                                    input  output  estimated
    (uncounted({"content": UNCOUNTED_TEXT}),                                             5,     8,      13),
    (uncounted({"content": UNCOUNTED_TEXT}, prompt_tokens=9),                            9,     8,      8),
    (uncounted({"content": UNCOUNTED_TEXT}, completion_tokens=3),                        5,     3,      5),
    (uncounted({"content": UNCOUNTED_TEXT}, prompt_tokens=9, completion_tokens=3),       9,     3,      0),
    (uncounted({"content": ""}, prompt_tokens=9, completion_tokens=0),         9,     0,      0),
    (uncounted({"content": None, "tool_calls": [{"function": CALLED}]}),       5,     10,     15),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "question", "output", "estimated"), ESTIMATES)
def test_usage_that_a_server_does_not_count_is_estimated(
    answer: Any, question: int, output: int, estimated: int
) -> None:
    with serving(answer) as server:
        usage = ask(provider("chat_completions", server.url, PRICED)).usage
    assert (usage.input, usage.output, usage.estimated) == (question, output, estimated)
    assert usage.cost == pytest.approx((question * 10 + output * 100) / 1_000_000)
    assert usage.record().get("estimated", 0) == estimated


@pytest.mark.parametrize(
    ("family", "counted"), [("chat_completions", 5), ("anthropic_messages", 1200)]
)
def test_half_a_response_is_counted_by_its_length(family: str, counted: int) -> None:
    data = fixture(family, "stream.sse")
    until = data.rindex(b"\n\n", 0, data.index(b"${HOME}")) + 2
    with serving(events_until(data[:until])) as server:
        failed = failure(provider(family, server.url, PRICED))
    usage = failed.output["usage"]
    assert (usage["input"], usage["output"], failed.output["text"]) == (counted, 4, "Grüße aus ")
    assert usage["estimated"] in (9, 3)
    assert usage["cost"] > 0


def test_limits_hold_although_the_server_does_not_count() -> None:
    half = fixture("chat_completions", "stream.sse")
    half = half[: half.rindex(b"\n\n", 0, half.index(b"${HOME}")) + 2]
    one = 5 + 8  # these servers do not keep to the room that they are given, but by one answer
    for answer in (uncounted({"content": UNCOUNTED_TEXT}), events(half)):
        budget = Budget(Limits(tokens=1000, spend=0.05))
        with serving(answer) as server:
            model = provider("chat_completions", server.url, PRICED)
            kinds = [asked_within(budget, model) for _ in range(200)]
        assert kinds[-1] == "limit"
        assert len(server.bodies) < 120
        assert budget.usage()["tokens"] <= 1000 + one
        assert 0.04 < budget.usage()["spend"] <= 0.05 + one * 100 / 1_000_000


def asked_within(budget: Budget, model: Any) -> str:
    try:
        TurnBudget(budget, lambda **_: None).ask(
            model, hi(options={"max_tokens": 200}), timeout=20, stop=StopSignal(), on_text=None
        )
    except StepError as error:
        return error.failure.kind
    return "done"


# ── streams that break ───────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_half_an_answer_is_none_and_is_kept(family: str) -> None:
    data = fixture(family, "stream.sse")
    until = data.index(b"${HOME}")
    until = data.rindex(b"\n\n", 0, until) + 2
    heard: list[str] = []
    with serving(events_until(data[:until])) as server:
        failed = failure(provider(family, server.url), on_text=heard.append)
    assert failed.kind == "network"
    assert failed.message.startswith(f"the answer of '{FILES[family]}' broke off: ")
    assert failed.message.endswith("; the partial response is not used")
    assert failed.output["text"] == "".join(heard) == "Grüße aus "
    assert len(server.bodies) == 1  # it may have been paid for


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_that_ends_politely_but_too_early_is_broken(family: str) -> None:
    data = fixture(family, "stream.sse")
    until = data.rindex(b"\n\n", 0, data.index(b"${HOME}")) + 2
    with serving(events(data[:until])) as server:
        failed = failure(provider(family, server.url))
    assert failed.message == (
        f"the answer of '{FILES[family]}' broke off: the stream ended before the answer did; the partial response is not used"
    )


def test_a_body_that_does_not_say_why_it_ends_is_broken_and_paid_for() -> None:
    body = json.loads(fixture("chat_completions", "answer.json"))
    body["choices"][0]["finish_reason"] = None
    with serving(reply(body)) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.kind, failed.message) == (
        "server_error",
        f"the answer of '{FILES['chat_completions']}' broke off: it does not say why it ends; the partial response is not used",
    )
    assert failed.output["usage"]["input"] == body["usage"]["prompt_tokens"]


def test_a_fault_inside_a_stream_is_one_of_the_server() -> None:
    fault = b'data: {"type":"error","error":{"type":"overloaded_error","message":"too many\\nquestions"}}\n\n'
    start = fixture("anthropic_messages", "stream.sse").partition(b"event: ping")[0]
    with serving(events(start + fault)) as server:
        failed = failure(provider("anthropic_messages", server.url))
    assert (failed.kind, failed.message) == (
        "server_error",
        "the answer of 'anthropic' broke off: the server says it failed (overloaded_error), "
        '"too many questions"; the partial response is not used',
    )


NO_ANSWER = [
    (reply(b"<html>proxy</html>", kind="text/html"), "a chat completion with a message"),
    (reply({"error": {"message": "quota"}}), "a chat completion with a message"),
]


@pytest.mark.parametrize(("answer", "expected"), NO_ANSWER)
def test_what_is_no_answer_of_the_family_is_a_fault_of_the_server(
    answer: Any, expected: str
) -> None:
    with serving(answer) as server:
        failed = failure(provider("chat_completions", server.url))
    assert (failed.kind, failed.message) == (
        "server_error",
        f"the provider 'openai' does not speak chat_completions: expected {expected}",
    )
    assert failed.output["said"]


def test_a_silent_server_is_left_when_the_time_is_over() -> None:
    with serving(events_until(b": wait\n\n", hang=True)) as server:
        failed = failure(provider("chat_completions", server.url), timeout=0.2)
    assert failed.kind == "timeout"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_is_to_stop_leaves_in_the_middle_of_a_stream(family: str) -> None:
    data = fixture(family, "stream.sse")
    until = data.rindex(b"\n\n", 0, data.index(b"${HOME}")) + 2
    stop = StopSignal()
    with serving(events_until(data[:until], hang=True)) as server, pytest.raises(Interrupted):
        ask(provider(family, server.url), stop=stop, on_text=lambda _: stop.ask(), timeout=30)


def test_a_run_that_is_to_stop_does_not_wait_for_the_next_attempt() -> None:
    stop = StopSignal()

    def busy(to: Any) -> None:
        refusal(503)(to)
        stop.ask()

    with serving(busy) as server:
        patient = "retry: {attempts: 5, initial_delay: 1h, max_delay: 1h}\ntimeout: 1d"
        with pytest.raises(Interrupted):
            ask(provider("chat_completions", server.url, patient), stop=stop, timeout=None)
    assert len(server.bodies) == 1


def test_a_run_that_is_to_stop_sends_nothing() -> None:
    stop = StopSignal()
    stop.ask()
    with serving(saying("chat_completions", "ok")) as server, pytest.raises(Interrupted):
        ask(provider("chat_completions", server.url), stop=stop)
    assert server.bodies == []


# ── keys and options ─────────────────────────────────────────────────────

KEYS = [
    # what is set                            message
    ({"OPENAI_API_KEY": ""},                 "the provider 'openai' needs a key: put it into the variable OPENAI_API_KEY"),
    ({"OPENAI_API_KEY": " \n"},              "the provider 'openai' needs a key: put it into the variable OPENAI_API_KEY"),
    ({"OPENAI_API_KEY": "sk-a\r\nx-evil: 1"}, "the variable OPENAI_API_KEY holds characters that no key has: look for line breaks"),
    ({"OPENAI_API_KEY": "schlüssel"},        "the variable OPENAI_API_KEY holds characters that no key has: look for line breaks"),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "message"), KEYS)
def test_without_a_usable_key_nothing_is_sent(environ: dict[str, str], message: str) -> None:
    with serving(saying("chat_completions", "ok")) as server:
        failed = failure(provider("chat_completions", server.url, environ=environ))
    assert (failed.message, failed.kind, server.bodies) == (message, "refused", [])


def test_a_key_that_may_be_missing_is() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        ask(
            provider(
                "chat_completions",
                server.url,
                "auth: {optional: true}",
                environ={"OPENAI_API_KEY": ""},
            )
        )
    assert "authorization" not in server.headers[0]


def test_a_stream_that_says_it_is_done_and_not_why_has_broken_off() -> None:
    data = b'data: {"choices": [{"delta": {"content": "half an ans"}}]}\n\ndata: [DONE]\n\n'
    with serving(events(data)) as server:
        failed = failure(provider("chat_completions", server.url, "retry: {attempts: 1}"))
    assert (failed.kind, failed.output["text"]) == ("network", "half an ans")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_server_that_repeats_the_key_does_not_give_it_away(streamed: bool) -> None:
    chunks = [f"a {KEY[:9]}", f"{KEY[9:]} b sk-", "x"]
    event = [{"choices": [{"delta": {"content": chunk}}]} for chunk in chunks]
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in [*event, last])
    heard: list[str] = []
    with serving(
        events(data) if streamed else saying("chat_completions", "".join(chunks))
    ) as server:
        answer = ask(provider("chat_completions", server.url), on_text=heard.append)
    assert answer.text == "".join(heard) == "a *** b sk-x"


def test_a_key_in_another_header_is_one_too() -> None:
    heard: list[str] = []
    with serving(saying("chat_completions", f"{KEY} and t0ken-of-gate")) as server:
        more = "headers: {x-gate: 'gate ${GATE_TOKEN}', x-region: '${REGION}'}"
        environ = {"GATE_TOKEN": "t0ken-of-gate", "REGION": "and"}
        answer = ask(
            provider("chat_completions", server.url, more, environ=environ), on_text=heard.append
        )
    assert server.headers[0]["x-gate"] == "gate t0ken-of-gate"
    assert answer.text == "".join(heard) == "*** and ***"


def test_an_option_that_the_body_has_no_place_for_is_refused() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        asking = provider("chat_completions", server.url)
        for name, meant in [
            ("temprature", "did you mean 'temperature'?"),
            ("messages", "it takes max_tokens, reasoning_effort, seed, stop, temperature, top_p"),
        ]:
            failed = failure(asking, hi(options={name: 1}))
            assert failed.message == f"the provider 'openai' takes no option '{name}': {meant}"
    assert server.bodies == []


def test_no_more_is_asked_for_than_the_server_gives() -> None:
    with serving(saying("anthropic_messages", "ok")) as server:
        asking = provider("anthropic_messages", server.url)
        for asked, sent in [({}, 32000), ({"max_tokens": 5}, 5), ({"max_tokens": 10**6}, 32000)]:
            ask(asking, hi(options=asked))
            assert server.asked()["max_tokens"] == sent


def test_without_a_model_nothing_is_sent() -> None:
    with serving(saying("chat_completions", "ok")) as server:
        failed = failure(provider("chat_completions", server.url, "default_model: ${NO_MODEL}"))
    assert failed.message == (
        "the provider 'openai' has no default_model: name a model, or put its name into the variable NO_MODEL"
    )
    assert server.bodies == []


# ── answers of a schema, over the wire ───────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bad_answer_goes_back_with_the_schema_and_both_are_paid(family: str) -> None:
    with serving(
        saying(family, "It is four."), saying(family, '{"n": "4"}'), saying(family, '{"n": 4}')
    ) as server:
        answer = ask(provider(family, server.url), hi(schema=SCHEMA))
    assert (answer.data, answer.usage.calls, answer.usage.input) == ({"n": 4}, 3, 3600)
    last = json.dumps(server.asked()["messages"])
    assert "It is four." in last
    assert "it is not JSON" in last
    assert json.dumps(json_text(SCHEMA))[1:-1] in last


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_by_a_tool_is_an_answer(family: str) -> None:
    body = json.loads(fixture(family, "tools.json"))
    if family == "chat_completions":
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "give_answer", "arguments": '{"n":4}'},
        }
        body["choices"][0]["message"]["tool_calls"] = [call]
    else:
        body["content"] = [
            {"type": "tool_use", "id": "1", "name": "give_answer", "input": {"n": 4}}
        ]
    with serving(reply(body)) as server:
        answer = ask(provider(family, server.url, "structured: tool"), hi(schema=SCHEMA))
    assert (answer.data, answer.text, answer.uses, answer.ending) == (
        {"n": 4},
        '{"n":4}',
        (),
        "end",
    )
