"""A step that sends a request to a model; and its failure while no model answers."""

from __future__ import annotations

from typing import Any

import pytest

from plait.agents.messages import Message, ModelRequest, ModelResponse, TokenUsage
from plait.agents.providers.scripted import scripted
from plait.core.values import Json, Secret
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Failure, LimitExceeded, StepError, Succeeded
from plait.program.actions.prompt import PromptAction
from program.fakes import FakeModel, FakeServices, failure_of, new_run, performed, step, text_of


def test_without_a_provider_the_step_is_refused_and_says_what_to_do() -> None:
    failure = failure_of(performed(step("a", PromptAction(text_of("hi")))))
    assert (failure.message, failure.kind) == (
        "no provider is configured: name one with 'provider:' (in a step: prompt: {prompt: …, provider: openai}), "
        "set PLAIT_PROVIDER to its name, or write .ai/config/providers/default.yaml; an 'agent:' step starts a command-line agent instead",
        "refused",
    )


def test_the_answer_is_the_output_and_secrets_stay_here() -> None:
    model = FakeModel("hunter2 is fine")
    run = new_run(FakeServices(model=model), mask=lambda text: text.replace("hunter2", "***"))
    asked = PromptAction(text_of("look at ${v} ${s}"), text_of("be ${v}"), model="m")
    outcome = performed(step("a", asked), run, {"v": "hunter2", "s": Secret("other")})
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "*** is fine"
    assert outcome.value["facts"] == {
        "model": "m-1",
        "usage": {"input": 2, "output": 1, "cached": 0, "cost": 0.5, "calls": 1},
        "cost": 0.5,
    }
    (call,) = model.calls
    assert (call.messages, call.system, call.model) == (
        (Message("user", "look at *** ***"),),
        "be ***",
        "m",
    )


HALF = [
    # kind      what came                                                        output   cost
    ("network", {"text": "Once upon", "usage": TokenUsage(9, 2, cost=0.1).record()},  "Once upon", 0.1),
    ("refused", None,                                                            "",      None),
    ("refused", {"said": "no hunter2 here", "status": 400},                      "no *** here", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "output", "shown", "cost"), HALF)
def test_a_failure_keeps_what_came_and_what_it_cost(
    kind: str, output: Json, shown: str, cost: float | None
) -> None:
    def fail(_: ModelRequest) -> ModelResponse:
        raise StepError(Failure("no hunter2", kind, output=output))

    run = new_run(
        FakeServices(model=scripted(fail)), mask=lambda text: text.replace("hunter2", "***")
    )
    failure = failure_of(performed(step("a", PromptAction(text_of("hi"))), run))
    assert failure.kind == kind
    assert failure.output["output"] == shown
    assert failure.output["facts"]["cost"] == cost
    assert failure.output["stderr"] == "no ***"
    assert run.budgets.at("").usage()["spend"] == (cost or 0)


EARLY = [
    (
        "length",
        "the model had no room left for its answer (1 tokens): raise options.max_tokens or limits.tokens",
    ),
    ("refused", "the model declined to answer"),
    (
        "tools",
        "the model called a tool instead of answering, but a prompt has no tools: use an agent",
    ),
]


@pytest.mark.parametrize(("ending", "message"), EARLY)
def test_an_answer_that_ended_early_is_none(ending: Any, message: str) -> None:
    model = scripted([ModelResponse("Once", usage=TokenUsage(1, 1, cost=0.2), ending=ending)])
    failure = failure_of(
        performed(step("a", PromptAction(text_of("hi"))), new_run(FakeServices(model=model)))
    )
    assert (failure.message, failure.kind, failure.output["output"]) == (message, ending, "Once")


def test_a_used_up_budget_sends_no_request() -> None:
    model = FakeModel()
    run = new_run(FakeServices(model=model), budget=Budget(Limits(spend=0.4)))
    performed(step("a", PromptAction(text_of("hi"))), run)
    with pytest.raises(LimitExceeded) as caught:
        performed(step("b", PromptAction(text_of("hi"))), run)
    assert (caught.value.failure.kind, len(model.calls)) == ("limit", 1)


def test_a_dry_run_sends_no_request() -> None:
    model = FakeModel()
    run = new_run(FakeServices(model=model), dry_run=True)
    performed(step("a", PromptAction(text_of("hi ${n}"))), run, {"n": 1})
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == ["hi 1"]
    assert model.calls == []
