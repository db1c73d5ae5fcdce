"""A step that asks a model; and what it says as long as nobody answers."""

from __future__ import annotations

import pytest

from plait.engine.outcome import Done
from plait.steps.prompt import Prompt
from plait.values import Secret
from steps.fakes import FakeHands, FakeModel, failure_of, new_run, performed, step, text_of

NOBODY = [
    (None, "no provider configured: put one below 'providers' in .ai/config/plait.yaml, "
           "or use an 'agent:' step, which starts a command-line agent"),
    ("mine", "no provider configured under the name 'mine': put one below 'providers' in .ai/config/plait.yaml, "
             "or use an 'agent:' step, which starts a command-line agent"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), NOBODY)
def test_without_a_provider_the_step_is_refused_and_says_what_to_do(name: str | None, message: str) -> None:
    failure = failure_of(performed(step("a", Prompt(text_of("hi"), provider=name))))
    assert (failure.message, failure.kind) == (message, "refused")


def test_the_answer_is_the_output_and_secrets_stay_here() -> None:
    model = FakeModel("hunter2 is fine")
    run = new_run(FakeHands(model=model), mask=lambda text: text.replace("hunter2", "***"))
    asked = Prompt(text_of("look at ${v} ${s}"), text_of("be ${v}"), model="m")
    outcome = performed(step("a", asked), run, {"v": "hunter2", "s": Secret("other")})
    assert isinstance(outcome, Done)
    assert (outcome.value["output"], outcome.value["facts"]) == ("*** is fine", {"tokens": 3})
    (call,) = model.calls
    assert (call.prompt, call.system, call.model) == ("look at *** ***", "be ***", "m")


def test_a_dry_run_asks_nobody() -> None:
    model = FakeModel()
    run = new_run(FakeHands(model=model), rehearsing=True)
    performed(step("a", Prompt(text_of("hi ${n}"))), run, {"n": 1})
    assert [one.shown for one in run.rehearsal or ()] == ["hi 1"]
    assert model.calls == []
