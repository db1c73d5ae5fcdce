"""A step that calls a tool: its results, its failures, and that an untrusted tool ends the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from plait.core.errors import PlaitError, RequestError, TrustError
from plait.core.values import Json, Secret
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Interrupted, Succeeded
from plait.engine.perform import act
from plait.engine.step import Policy, Retry
from plait.program.action_step import FailureHandler
from plait.program.actions.tool import ToolAction
from plait.tools.call import ToolResult
from program.fakes import (
    Acting,
    FakeServices,
    failure_of,
    new_run,
    performed,
    saying,
    step,
    steps,
    text_of,
)


def result(data: Json = None, *, error: str | None = None, **facts: Json) -> ToolResult:
    return ToolResult("t/x", error is None, data, error, (), {"duration_ms": 1500.0, **facts})


def giving(answer: ToolResult | PlaitError) -> FakeServices:
    def call(_: str, __: Mapping[str, Json]) -> ToolResult:
        if isinstance(answer, PlaitError):
            raise answer
        return answer

    return FakeServices(on_call=call)


def test_the_data_of_a_tool_is_the_output_of_its_step() -> None:
    outcome = performed(
        step("a", ToolAction("t/x")), new_run(giving(result({"n": [1]}, exit_code=0, stderr="hm")))
    )
    assert outcome == Succeeded(
        {"output": {"n": [1]}, "stderr": "hm", "exit_code": 0, "duration": 1.5}
    )


def test_a_captured_result_keeps_its_types() -> None:
    flow = steps(
        step("a", ToolAction("t/x"), capture="r", kind="tool"),
        step("b", saying("${r.n[0]} ${r.success}")),
    )
    outcome = performed(flow, new_run(giving(result({"n": [1]}))))
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "1 true"


def test_parameters_keep_their_types_and_secrets_stay_sealed() -> None:
    fakes = giving(result())
    params = text_of(
        {"n": "${n}", "list": ["${n}", "a${n}"], "key": "Bearer ${secret}", "plain": True}
    )
    made = step("a", ToolAction(text_of("t/${kind}"), params), policy=Policy(timeout=9))
    performed(made, new_run(fakes), {"n": 3, "kind": "x", "secret": Secret("hunter2")})
    asked = fakes.asked[0]
    assert asked["tool"] == "t/x"
    assert asked["params"] == {
        "n": 3,
        "list": [3, "a3"],
        "key": Secret("Bearer hunter2"),
        "plain": True,
    }
    assert 5 < asked["timeout"] <= 9


FAILURES: list[tuple[dict[str, Any], str, int]] = [
    # what the call says of itself             kind             exit code
    ({"exit_code": 3},                         "exit",          3),
    ({"exit_code": 0},                         "failed",        1),
    ({},                                       "failed",        1),
    ({"exit_code": 137, "signal": "SIGKILL"},  "signal",        137),
    ({"exit_code": 143, "timed_out": True},    "timeout",       124),
    ({"status": 429},                          "rate_limit",    1),
    ({"status": 503},                          "server_error",  1),
    ({"status": 404},                          "failed",        1),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "kind", "code"), FAILURES)
def test_a_tool_that_fails_fails_its_step(facts: dict[str, Any], kind: str, code: int) -> None:
    failure = failure_of(
        performed(
            step("a", ToolAction("t/x")), new_run(giving(result("half", error="broken", **facts)))
        )
    )
    assert (failure.message, failure.kind, failure.exit_code) == ("t/x: broken", kind, code)
    assert failure.as_result()["output"] == "half"


@pytest.mark.parametrize(
    ("code", "kind"), [("unreachable", "network"), ("deadline", "timeout"), ("bad-url", "refused")]
)
def test_a_request_without_an_answer_fails_with_its_kind(code: str, kind: str) -> None:
    made = step("a", ToolAction("t/x"))
    assert (
        failure_of(performed(made, new_run(giving(RequestError("gone", code=code))))).kind == kind
    )


def test_an_untrusted_tool_ends_the_run_and_no_handler_sees_it() -> None:
    fakes, mend, behind = giving(TrustError("not trusted", code="untrusted")), Acting(), Acting()
    journal = MemoryJournal()
    flow = steps(
        step(
            "a",
            ToolAction("t/x"),
            policy=Policy(Retry(3, "fixed", 0.0)),
            on_failure=FailureHandler(steps(step("m", mend), name="on_failure")),
            continue_on_error=True,
        ),
        step("b", behind),
    )
    with pytest.raises(TrustError) as caught:
        performed(flow, new_run(fakes, journal))
    assert caught.value.exit_code == 3
    assert (len(fakes.asked), mend.ran, behind.ran) == (1, [], [])
    assert list(journal.steps_in("flow")) == []
    # Once it is trusted, the same run goes on.
    trusted = giving(result("ok"))
    assert isinstance(performed(flow, new_run(trusted, journal.reopen())), Succeeded)


def test_a_tool_that_was_cancelled_by_a_stop_is_no_failure() -> None:
    run = new_run(giving(result(error="ended", cancelled=True)))

    class Stopping:
        def run(self, turn: Any) -> dict[str, Json]:
            turn.run.stop.ask()
            ended: dict[str, Json] = act(ToolAction("t/x"), turn)
            return ended

    with pytest.raises(Interrupted):
        performed(step("a", Stopping()), run)
    assert run.journal.step("a") is None


def test_secrets_in_what_a_tool_says_are_masked() -> None:
    fakes = giving(result({"k": "hunter2"}, error="hunter2?", exit_code=1, stderr="hunter2!"))
    run = new_run(fakes, mask=lambda text: text.replace("hunter2", "***"))
    assert "hunter2" not in repr(performed(step("a", ToolAction("t/x")), run))


def test_parameters_that_are_no_map_are_refused() -> None:
    failure = failure_of(performed(step("a", ToolAction("t/x", text_of("${p}"))), values={"p": 3}))
    assert (
        failure.message == "the parameters of 't/x' must be a map\nfix: write params: {name: value}"
    )


def test_a_dry_run_shows_the_call() -> None:
    run = new_run(dry_run=True)
    values = {"n": 3, "s": Secret("hunter2")}
    performed(step("a", ToolAction("t/x", text_of({"n": "${n}", "s": "${s}"}))), run, values)
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == [
        't/x {"n":3,"s":"***"}'
    ]
