"""A step that sends a request: encoded values, kinds of failure, and hosts that come from data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plait.engine.outcome import Done
from plait.engine.perform import Policy
from plait.engine.retry import Retry
from plait.errors import RequestError
from plait.scope import Scope
from plait.steps.http import Http
from plait.tools.invocation import RequestCall, Returned
from plait.values import Json, Secret
from steps.fakes import FakeHands, failure_of, new_run, performed, step, text_of, turn_of

URL = "https://api.example/v1"


def answering(status: int = 200, data: Json = "fine", **fields: Any) -> FakeHands:
    def answer(_: RequestCall) -> Returned:
        ok = 200 <= status < 300
        error = None if ok else f"the server answered {status}"
        return Returned(
            **{
                "success": ok,
                "data": data,
                "error": error,
                "duration": 0.5,
                "metadata": {"status": status},
                **fields,
            }
        )

    return FakeHands(on_request=answer)


def sent(http: Http, values: dict[str, Json] | None = None, **fields: Any) -> RequestCall:
    hands = answering()
    performed(step("a", http, **fields), new_run(hands), values)
    call = hands.asked[0]
    assert isinstance(call, RequestCall)
    return call


URLS = [
    # url                                  values                            sent
    (f"{URL}/items/${{id}}",               {"id": "a/b?c#d"},                f"{URL}/items/a%2Fb%3Fc%23d"),
    (f"{URL}?q=${{q}}&n=${{n}}",           {"q": "a&b=c ü", "n": 2},         f"{URL}?q=a%26b%3Dc%20%C3%BC&n=2"),
    ("${base}/items",                      {"base": "https://other.example"}, "https://other.example/items"),
    (f"{URL}/${{s}}",                      {"s": Secret("k/1")},             f"{URL}/k%2F1"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "values", "expected"), URLS)
def test_values_are_encoded_for_their_place_in_a_url(
    url: str, values: dict[str, Json], expected: str
) -> None:
    assert sent(Http(text_of(url)), values).url == expected


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
    call = sent(Http(text_of(URL), body=None if body is None else text_of(body)), values)
    assert (call.body, dict(call.headers).get("content-type")) == (expected, kind)
    assert call.method == ("GET" if body is None else "POST")


def test_headers_are_filled_and_a_content_type_of_the_author_stays() -> None:
    http = Http(
        text_of(URL),
        "put",
        {"Authorization": text_of("Bearer ${s}"), "Content-Type": text_of("text/csv")},
        text_of("a,b"),
    )
    call = sent(http, {"s": Secret("hunter2")}, policy=Policy(timeout=7))
    assert call.headers == (("Authorization", "Bearer hunter2"), ("Content-Type", "text/csv"))
    assert (call.method, 5 < call.limits.timeout <= 7) == ("PUT", True)


def test_a_line_break_in_a_header_is_refused_before_anything_is_sent() -> None:
    hands = answering()
    http = Http(text_of(URL), headers={"X": text_of("${v}")})
    failure = failure_of(performed(step("a", http), new_run(hands), {"v": "a\r\nEvil: 1"}))
    assert failure.kind == "refused"
    assert "Evil" not in failure.message
    assert hands.asked == []


def test_a_hole_that_nobody_fills_is_never_a_part_of_an_address() -> None:
    hands = answering()
    assert (
        failure_of(performed(step("a", Http(text_of(f"{URL}/${{gone}}"))), new_run(hands))).kind == "refused"
    )
    assert hands.asked == []


HOSTS: list[tuple[str, Callable[[Scope], Scope], bool]] = [
    # url                          where base stands                                            from data?
    ("http://10.0.0.1/${base}",    lambda scope: scope.frame("x", captures={"base": "x"}),      False),
    ("${base}/x",                  lambda scope: scope.frame("x", env={"base": "http://h"}),    False),
    ("${base}/x",                  lambda scope: scope.frame("x", workflow={"base": "http://h"}), False),
    ("${base}/x",                  lambda scope: scope.frame("x", captures={"base": "http://h"}), True),
    ("${base}/x",                  lambda scope: scope.frame("x", phase={"base": "http://h"}),  True),
    ("${base | trim}/x",           lambda scope: scope.frame("x", env={"base": "http://h"}),    True),
    ("${other:-http://h}/x",       lambda scope: scope,                                         True),
]  # fmt: skip


@pytest.mark.parametrize(("url", "placed", "from_data"), HOSTS)
def test_a_host_that_comes_from_outside_may_not_be_a_private_one(
    url: str, placed: Callable[[Scope], Scope], from_data: bool
) -> None:
    hands = answering()
    run = new_run(hands)
    turn = turn_of(run)
    turn.perform(step("a", Http(text_of(url))), scope=placed(turn.scope))
    run.close()
    assert hands.asked[0].url_from_data is from_data


def test_the_answer_is_the_output() -> None:
    outcome = performed(step("a", Http(text_of(URL))), new_run(answering(201, {"id": 7})))
    assert outcome == Done(
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
    outcome = performed(step("a", Http(text_of(URL), expect=expect)), new_run(answering(status, "body")))
    if kind is None:
        assert isinstance(outcome, Done)
        return
    failure = failure_of(outcome)
    assert (failure.kind, failure.exit_code, failure.as_ended()["output"]) == (kind, status, "body")


ERRORS = [
    ("name-not-found", "network"), ("unreachable", "network"), ("tls", "network"), ("connection-lost", "network"),
    ("deadline", "timeout"), ("too-large", "failed"), ("encoding", "failed"), ("address-refused", "refused"),
    ("redirect", "refused"), ("bad-url", "refused"), ("bad-header", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind"), ERRORS)
def test_no_answer_fails_the_step_with_its_kind(code: str, kind: str) -> None:
    def answer(_: RequestCall) -> Returned:
        raise RequestError("gone", "GET api.example", code=code)

    failure = failure_of(performed(step("a", Http(text_of(URL))), new_run(FakeHands(on_request=answer))))
    assert (failure.message, failure.kind) == ("GET api.example: gone", kind)


def test_only_failures_that_retry_on_names_are_tried_again() -> None:
    answers = iter([503, 429, 404])

    def answer(_: RequestCall) -> Returned:
        status = next(answers)
        return Returned(False, "", f"{status}", metadata={"status": status})

    hands = FakeHands(on_request=answer)
    again = Policy(Retry(9, "fixed", 0.0, retry_on=("server_error", "rate_limit")))
    assert failure_of(performed(step("a", Http(text_of(URL)), policy=again), new_run(hands))).exit_code == 404
    assert len(hands.asked) == 3


def test_a_dry_run_shows_the_request_without_its_secrets() -> None:
    run = new_run(answering(), rehearsing=True, mask=lambda text: text.replace("hunter2", "***"))
    performed(step("a", Http(text_of(f"{URL}?k=${{s}}"))), run, {"s": Secret("hunter2")})
    assert [one.shown for one in run.rehearsal or ()] == [f"GET {URL}?k=***"]
