"""A chat knows its earlier messages, even if single answers failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from agents.scripted import Says, Scripted, ToolServices, says, wants
from plait.agents.messages import ModelRequest, ModelResponse
from plait.agents.session import AgentStep
from plait.core.values import Json
from plait.engine.context import RunContext
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Failure, Interrupted, LimitExceeded, StepError
from plait.program.chat import Chat, ReadUserInput
from plait.views.log import log_entries, log_lines
from plait.views.progress import replay_events
from program.fakes import new_run, turn_of

FIRST = AgentStep("agent", "review", "look at it", "be kind", tools=("*",))


def lines(*texts: str) -> ReadUserInput:
    rest = iter(texts)
    return lambda _: next(rest, None)


def heard(ask: ModelRequest) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in ask.messages]


def chatted(run: RunContext, listen: ReadUserInput, first: AgentStep = FIRST) -> Json:
    try:
        return Chat(first, listen).run(turn_of(run))
    finally:
        run.events.close()


def stopping(run_of: list[RunContext], then: Iterable[ModelResponse]) -> Says:
    """The person stops the first answer while the model speaks."""
    rest = iter(then)

    def answer(_: ModelRequest) -> ModelResponse:
        run = run_of[0]
        if run.stop.is_set() or not run.journal.is_unfinished("say:2"):
            run.stop.ask("SIGINT")
            raise Interrupted
        return next(rest)

    return answer


def test_the_prompt_of_the_directive_is_known_behind_an_answer_that_was_stopped() -> None:
    runs: list[RunContext] = []
    model = Scripted(stopping(runs, [says("here")]))
    runs.append(new_run(ToolServices(model)))
    chatted(runs[0], lines("and now?"))
    assert heard(model.asks[-1]) == [("user", "look at it"), ("user", "and now?")]
    assert model.asks[-1].system == "be kind"


def test_a_prompt_that_was_stopped_before_it_was_sent_is_known_as_well() -> None:
    model = Scripted(says("here"))
    run = new_run(ToolServices(model))
    run.stop.ask("SIGINT")
    chatted(run, lines("and now?"))
    assert heard(model.asks[-1]) == [("user", "look at it"), ("user", "and now?")]


def test_an_answer_that_was_stopped_is_recorded_so_with_the_message_of_the_person() -> None:
    runs: list[RunContext] = []

    def stopped(_: ModelRequest) -> ModelResponse:
        runs[0].stop.ask("SIGINT")
        raise Interrupted

    model = Scripted(says("hello"), stopped, says("here"))
    runs.append(new_run(ToolServices(model)))
    chatted(runs[0], lines("slowly please", "and now?"))
    progress = replay_events(runs[0].journal.events())
    assert [part.state for part in progress.parts.values()] == ["done", "failed", "done"]
    reported = [line for line, _ in log_lines(log_entries(runs[0].journal.events(), None))]
    at = next(at for at, line in enumerate(reported) if line.startswith("── say:2 "))
    assert "stopped" in reported[at]
    assert reported[at + 1 : at + 3] == ["user:", "  slowly please"]
    assert reported[at + 3].startswith("── say:3/turn:1 ")


def test_what_an_answer_called_before_it_failed_is_known_to_the_next() -> None:
    def broken(_: ModelRequest) -> ModelResponse:
        raise StepError(Failure("gone", "network"))

    model = Scripted(wants(("t/x", {"n": 1}), ("t/y", {}), text="wait"), broken, says("here"))
    fakes = ToolServices(model, {"t/x": lambda _: "seen", "t/y": lambda _: "too"})
    chatted(new_run(fakes), lines("go on"))
    assert heard(model.asks[-1]) == [
        ("user", "look at it"),
        ("assistant", "wait"),
        ("tool", "seen"),
        ("tool", "too"),
        ("user", "go on"),
    ]


def test_a_call_that_was_stopped_has_a_result_for_the_model() -> None:
    """Servers refuse a question in which a call has none."""
    runs: list[RunContext] = []

    def stopped(_: Mapping[str, Json]) -> Json:
        runs[0].stop.ask("SIGINT")
        raise Interrupted

    model = Scripted(wants(("t/x", {}), ("t/y", {}), text="wait"), says("here"))
    runs.append(new_run(ToolServices(model, {"t/x": stopped, "t/y": lambda _: "never"})))
    chatted(runs[0], lines("go on"), FIRST)
    last = model.asks[-1].messages
    assert [message.role for message in last] == ["user", "assistant", "tool", "tool", "user"]
    reported = {message.answers: message.text for message in last if message.role == "tool"}
    assert reported["use-1"] == "it was ended before it had a result"
    assert set(reported) == {"use-1", "use-2"}


def test_a_limit_of_a_chat_is_that_of_all_its_answers() -> None:
    model = Scripted(lambda _: says("here"))
    run = new_run(ToolServices(model), budget=Budget(Limits(turns=2)))
    with pytest.raises(LimitExceeded, match="the run has reached its limit of 2 turns"):
        chatted(run, lines("two", "three", "four"))
    assert len(model.asks) == 2


def test_a_wish_to_stop_that_came_behind_an_answer_does_not_stop_the_next_one() -> None:
    runs: list[RunContext] = []

    def late(_: ModelRequest) -> ModelResponse:
        runs[0].stop.ask("SIGINT")
        return says("all of it")

    model = Scripted(late, says("here"))
    runs.append(new_run(ToolServices(model)))
    chatted(runs[0], lines("and now?"))
    assert heard(model.asks[-1])[-1] == ("user", "and now?")
    assert len(model.asks) == 2
