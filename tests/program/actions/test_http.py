"""A step that sends a request: encoded values, kinds of failure, and hosts that come from data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plait.core.errors import RequestError
from plait.core.values import Json, Secret
from plait.engine.outcome import Outcome, Succeeded
from plait.engine.step import Policy, Retry
from plait.program.actions.http import HttpAction, matching_host_rule
from plait.scope import Scope
from plait.tools.invocation import PrimitiveResult, RequestCall
from program.fakes import FakeServices, failure_of, new_run, performed, step, text_of, turn_of

URL = "https://api.example/v1"


def answering(status: int = 200, data: Json = "fine", **fields: Any) -> FakeServices:
    def answer(_: RequestCall) -> PrimitiveResult:
        ok = 200 <= status < 300
        error = None if ok else f"the server answered {status}"
        return PrimitiveResult(
            **{
                "success": ok,
                "data": data,
                "error": error,
                "duration": 0.5,
                "metadata": {"status": status},
                **fields,
            }
        )

    return FakeServices(on_request=answer)


def sent(http: HttpAction, values: dict[str, Json] | None = None, **fields: Any) -> RequestCall:
    fakes = answering()
    performed(step("a", http, **fields), new_run(fakes), values)
    call = fakes.asked[0]
    assert isinstance(call, RequestCall)
    return call


URLS = [
    # url                                  values                            sent
    (f"{URL}/items/${{id}}",               {"id": "a/b?c#d"},                f"{URL}/items/a%2Fb%3Fc%23d"),
    (f"{URL}?q=${{q}}&n=${{n}}",           {"q": "a&b=c ü", "n": 2},         f"{URL}?q=a%26b%3Dc%20%C3%BC&n=2"),
    (f"{URL}/${{s}}",                      {"s": Secret("k/1")},             f"{URL}/k%2F1"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "values", "expected"), URLS)
def test_values_are_encoded_for_their_place_in_a_url(
    url: str, values: dict[str, Json], expected: str
) -> None:
    assert sent(HttpAction(text_of(url)), values).url == expected


BODIES: list[tuple[Json, dict[str, Json], bytes | None, str | None]] = [
    # body                        values                     sent                          content type
    (None,                        {},                        None,                         None),
    ("n=${n}",                    {"n": 'a"b'},              b'n=a"b',                     "text/plain; charset=utf-8"),
    ({"n": "${n}"},               {"n": 'a"b'},              b'{"n":"a\\"b"}',             "application/json"),
    ({"n": "${n}"},               {"n": [1, None]},          b'{"n":[1,null]}',            "application/json"),
    ("${n}",                      {"n": {"a": 1}},           b'{"a":1}',                   "application/json"),
    ({"key": "${s}"},             {"s": Secret("hunter2")},  b'{"key":"hunter2"}',         "application/json"),
    ("key ${s}",                  {"s": Secret("hunter2")},  b"key hunter2",               "text/plain; charset=utf-8"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "values", "expected", "kind"), BODIES)
def test_a_body_is_text_or_json_and_a_value_cannot_change_its_shape(
    body: Json, values: dict[str, Json], expected: bytes | None, kind: str | None
) -> None:
    call = sent(HttpAction(text_of(URL), body=None if body is None else text_of(body)), values)
    assert (call.body, dict(call.headers).get("content-type")) == (expected, kind)
    assert call.method == ("GET" if body is None else "POST")


@pytest.mark.parametrize("body", ["${n}", {"n": "${n}"}])
def test_half_a_character_is_refused_before_anything_is_sent(body: Json) -> None:
    fakes = answering()
    http = HttpAction(text_of(URL), body=text_of(body))
    failure = failure_of(performed(step("a", http), new_run(fakes), {"n": "\ud800"}))
    assert "half of a character pair" in failure.message
    assert fakes.asked == []


def test_headers_are_filled_and_a_content_type_of_the_author_stays() -> None:
    http = HttpAction(
        text_of(URL),
        "put",
        {"Authorization": text_of("Bearer ${s}"), "Content-Type": text_of("text/csv")},
        text_of("a,b"),
    )
    call = sent(http, {"s": Secret("hunter2")}, policy=Policy(timeout=7))
    assert call.headers == (("Authorization", "Bearer hunter2"), ("Content-Type", "text/csv"))
    assert (call.method, 5 < call.limits.timeout <= 7) == ("PUT", True)


LEFT_OUT = [
    # body as it is written                        values          what is sent
    ({"a": "${u}", "b": 1},                        {},             b'{"b":1}'),
    ({"a": "${u}", "b": 1},                        {"u": None},    b'{"a":null,"b":1}'),
    ({"a": "x ${u}"},                              {},             b'{"a":"x ${u}"}'),
    ({"a": "${u:-d}"},                             {},             b'{"a":"d"}'),
    ({"a": ["${u}", "v", {"c": "${u}"}]},          {},             b'{"a":["v",{}]}'),
    ("${u}",                                       {},             None),
    ("${u}",                                       {"u": ""},      b""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "values", "expected"), LEFT_OUT)
def test_what_is_one_placeholder_that_nothing_answers_is_left_out_of_a_request(
    body: Json, values: dict[str, Json], expected: bytes | None
) -> None:
    http = HttpAction(
        text_of(URL), headers={"X-Opt": text_of("${h}"), "X": text_of("1")}, body=text_of(body)
    )
    call = sent(http, values)
    assert (call.body, dict(call.headers).get("X-Opt"), dict(call.headers)["X"]) == (
        expected,
        None,
        "1",
    )
    assert dict(sent(http, {**values, "h": "y"}).headers)["X-Opt"] == "y"


def test_a_line_break_in_a_header_is_refused_before_anything_is_sent() -> None:
    fakes = answering()
    http = HttpAction(text_of(URL), headers={"X": text_of("${v}")})
    failure = failure_of(performed(step("a", http), new_run(fakes), {"v": "a\r\nEvil: 1"}))
    assert failure.kind == "refused"
    assert "Evil" not in failure.message
    assert fakes.asked == []


def test_an_unfilled_placeholder_is_never_a_part_of_an_address() -> None:
    fakes = answering()
    assert (
        failure_of(
            performed(step("a", HttpAction(text_of(f"{URL}/${{gone}}"))), new_run(fakes))
        ).kind
        == "refused"
    )
    assert fakes.asked == []


def sent_from(
    url: str, placed: Callable[[Scope], Scope], **fields: Any
) -> tuple[Outcome, RequestCall | None]:
    fakes = answering()
    run = new_run(fakes)
    turn = turn_of(run)
    outcome = turn.perform(step("a", HttpAction(text_of(url), **fields)), scope=placed(turn.scope))
    run.events.close()
    return outcome, next((call for call in fakes.asked if isinstance(call, RequestCall)), None)


AUTHORS: list[tuple[str, Callable[[Scope], Scope]]] = [
    # url                          where base stands
    ("http://10.0.0.1/${base}",    lambda scope: scope.frame("x", captures={"base": "x"})),
    ("${base}/x",                  lambda scope: scope.frame("x", env={"base": "http://h"})),
    ("${base}/x",                  lambda scope: scope.frame("x", workflow={"base": "http://h"})),
    ("${base | trim}/x",           lambda scope: scope.frame("x", env={"base": "http://h"})),
    ("${other:-http://h}/x",       lambda scope: scope),
]  # fmt: skip


@pytest.mark.parametrize(("url", "placed"), AUTHORS)
def test_a_host_of_the_author_may_be_a_private_one(
    url: str, placed: Callable[[Scope], Scope]
) -> None:
    _, call = sent_from(url, placed)
    assert call is not None
    assert not call.url_from_data


def from_item(scope: Scope) -> Scope:
    return scope.frame("item", phase={"base": "https://api.example"})


def captured(scope: Scope) -> Scope:
    return scope.frame("x", captures={"base": "https://api.example"})


@pytest.mark.parametrize(
    "url",
    [
        "${base}/x",
        "${base}",
        "${gone:-${base}}",
        "${base | trim}/x",
        "${other || base}/x",
        "https://${base}/x",
    ],
)
@pytest.mark.parametrize("placed", [from_item, captured])
def test_a_host_that_comes_from_data_is_refused_unless_it_is_allowed(
    url: str, placed: Callable[[Scope], Scope]
) -> None:
    outcome, call = sent_from(url, placed)
    assert (failure_of(outcome).kind, call) == ("refused", None)


def test_a_variable_that_a_step_makes_of_data_is_data() -> None:
    fakes = answering()
    made = step("a", HttpAction(text_of("${TARGET}/x")), env={"TARGET": text_of("${item}")})
    assert failure_of(performed(made, new_run(fakes), {"item": "https://h"})).kind == "refused"
    assert fakes.asked == []
    own = step("a", HttpAction(text_of("${TARGET}/x")), env={"TARGET": text_of("https://h")})
    assert isinstance(performed(own, new_run(fakes)), Succeeded)


ALLOWED = [
    # a value                           what is allowed                      the entry that allows it
    ("https://api.example/x",           ["api.example"],                     "api.example"),
    ("https://API.example/x",           ["api.Example"],                     "api.Example"),
    ("https://api.example./x",          ["api.example"],                     "api.example"),
    ("https://api.example:443/x",       ["api.example"],                     "api.example"),
    ("https://api.example:8443/x",      ["api.example"],                     None),
    ("https://api.example:8443/x",      ["api.example:8443"],                "api.example:8443"),
    ("http://api.example/x",            ["api.example"],                     None),
    ("http://api.example/x",            ["http://api.example"],              "http://api.example"),
    ("http://localhost:8000",           ["http://localhost:8000"],           "http://localhost:8000"),
    ("https://a.b.example",             ["*.example"],                       "*.example"),
    ("https://example",                 ["*.example"],                       None),
    ("https://evilexample",             ["*.example"],                       None),
    ("https://api.example.evil",        ["api.example"],                     None),
    ("https://api.example@evil",        ["api.example"],                     None),
    ("https://evil/api.example",        ["api.example"],                     None),
    ("https://evil?api.example",        ["api.example"],                     None),
    ("https://evil#api.example",        ["api.example"],                     None),
    ("https://api%2eexample",           ["api.example"],                     None),
    ("https://[::1",                    ["*"],                               None),
    ("https://h:99999/",                ["h", "*"],                          None),
    ("https://a.example",               ["*", "*.example", "a.example"],     "a.example"),
    ("https://b.example",               ["*", "*.example", "a.example"],     "*.example"),
    ("http://c",                        ["*", "*.example", "a.example"],     "*"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "hosts", "entry"), ALLOWED)
def test_a_host_is_allowed_by_its_scheme_name_and_port(
    url: str, hosts: list[str], entry: str | None
) -> None:
    assert matching_host_rule(url, hosts) == entry


FROM_DATA = [
    # allowed                  must the address be a public one?
    (("api.example",),         False),
    (("*.example",),           True),
    (("*",),                   True),
]  # fmt: skip


@pytest.mark.parametrize(("hosts", "public"), FROM_DATA)
def test_only_a_host_that_is_named_may_be_a_private_one(
    hosts: tuple[str, ...], public: bool
) -> None:
    _, call = sent_from("${base}/x", from_item, allow_hosts=hosts)
    assert call is not None
    assert (call.url, call.url_from_data) == ("https://api.example/x", public)


SECRETS = [
    # allowed             what is sent beside the address                       is it sent?
    (("*",),              {"headers": {"X": text_of("Bearer ${key}")}},         False),
    (("*",),              {"body": text_of({"a": ["${key}"]})},                 False),
    (("*",),              {"headers": {"X": text_of("${plain}")}},              True),
    (("api.example",),    {"headers": {"X": text_of("Bearer ${key}")}},         True),
    (("other.example",),  {},                                                   False),
]  # fmt: skip


@pytest.mark.parametrize(("hosts", "fields", "is_sent"), SECRETS)
@pytest.mark.parametrize("url", ["${base}/x"])
def test_no_secret_goes_to_a_host_that_was_not_named(
    url: str, hosts: tuple[str, ...], fields: dict[str, Any], is_sent: bool
) -> None:
    def placed(scope: Scope) -> Scope:
        return from_item(scope).frame("flow", env={"key": Secret("hunter2"), "plain": "x"})

    outcome, call = sent_from(url, placed, allow_hosts=hosts, **fields)
    assert (call is not None) is is_sent
    assert is_sent or failure_of(outcome).kind == "refused"


def test_the_answer_is_the_output() -> None:
    outcome = performed(step("a", HttpAction(text_of(URL))), new_run(answering(201, {"id": 7})))
    assert outcome == Succeeded(
        {"output": {"id": 7}, "stderr": "", "exit_code": 0, "duration": 0.5, "status": 201}
    )


STATUSES = [
    # status   expect        kind of failure, or none
    (200,      (),           None),
    (204,      (),           None),
    (404,      (404,),       None),
    (404,      (),           "failed"),
    (200,      (201,),       "failed"),
    (301,      (),           "failed"),
    (408,      (),           "timeout"),
    (429,      (),           "rate_limit"),
    (500,      (),           "server_error"),
    (503,      (),           "server_error"),
    (504,      (),           "timeout"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "expect", "kind"), STATUSES)
def test_a_status_is_welcome_or_fails_the_step_with_its_kind(
    status: int, expect: tuple[int, ...], kind: str | None
) -> None:
    outcome = performed(
        step("a", HttpAction(text_of(URL), expect=expect)), new_run(answering(status, "body"))
    )
    if kind is None:
        assert isinstance(outcome, Succeeded)
        return
    failure = failure_of(outcome)
    assert (failure.kind, failure.exit_code, failure.as_result()["output"]) == (
        kind,
        status,
        "body",
    )


ERRORS = [
    ("name-not-found", "network"), ("unreachable", "network"), ("tls", "network"), ("connection-lost", "network"),
    ("deadline", "timeout"), ("too-large", "failed"), ("encoding", "failed"), ("address-refused", "refused"),
    ("redirect", "refused"), ("bad-url", "refused"), ("bad-header", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind"), ERRORS)
def test_no_answer_fails_the_step_with_its_kind(code: str, kind: str) -> None:
    def answer(_: RequestCall) -> PrimitiveResult:
        raise RequestError("gone", "GET api.example", code=code)

    failure = failure_of(
        performed(step("a", HttpAction(text_of(URL))), new_run(FakeServices(on_request=answer)))
    )
    assert (failure.message, failure.kind) == ("GET api.example: gone", kind)


def test_only_failures_that_retry_on_names_are_tried_again() -> None:
    answers = iter([503, 429, 404])

    def answer(_: RequestCall) -> PrimitiveResult:
        status = next(answers)
        return PrimitiveResult(False, "", f"{status}", metadata={"status": status})

    fakes = FakeServices(on_request=answer)
    again = Policy(Retry(9, "fixed", 0.0, retry_on=("server_error", "rate_limit")))
    assert (
        failure_of(
            performed(step("a", HttpAction(text_of(URL)), policy=again), new_run(fakes))
        ).exit_code
        == 404
    )
    assert len(fakes.asked) == 3


def test_a_dry_run_shows_the_request_without_its_secrets() -> None:
    run = new_run(answering(), dry_run=True, mask=lambda text: text.replace("hunter2", "***"))
    performed(step("a", HttpAction(text_of(f"{URL}?k=${{s}}"))), run, {"s": Secret("hunter2")})
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == [
        f"GET {URL}?k=***"
    ]
