"""Another attempt of an agent, or of what calls one, goes on where the last one ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agents.scripted import says, wants
from plait.agents.messages import ModelRequest, ModelResponse
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, StepError
from runs.attempts import Services, outcome_text, run_attempt

AGENT = "---\npermissions: ['*']\nONCE---\nwork\n"
TOOLS = "prompt: {text: work, tools: [log]}"
RETRY = "retry: {attempts: 3, initial_delay: 0}"
HOOK = "hooks: [{id: h, event: step_failed, verb: retry, max_retries: 2, condition: \"${error.kind} == 'network'\"}]\n"

AGAIN = [
    # what runs      its text
    ("f.yaml",       f"steps: [{{{TOOLS}, {RETRY}}}]\n"),
    ("f.yaml",       f"steps: [{{{TOOLS}, {RETRY}, on_exit_code: {{7: {{shell: x}}}}}}]\n"),
    ("f.yaml",       f"{HOOK}steps: [{{{TOOLS}}}]\n"),
    ("f.yaml",       f"steps: [{{tool: 'directive:agent', {RETRY}}}]\n"),
    ("f.yaml",       f"map: {{input: [1], on_item_failure: stop, steps: [{{tool: 'directive:agent', {RETRY}}}]}}\n"),
    ("f.yaml",       f"start: a\nnodes: {{a: {{tool: 'directive:agent', {RETRY}}}}}\n"),
    ("f.yaml",       f"start: a\nnodes: {{a: {{tool: 'directive:agent', {RETRY}, assign: {{x: '${{result}}'}}}}}}\n"),
    ("f.yaml",       f"start: a\nnodes: {{a: {{type: foreach, over: [1], tool: 'directive:agent', {RETRY}}}}}\n"),
    ("f.yaml",       f"{HOOK}start: a\nnodes: {{a: {{tool: 'directive:agent'}}}}\n"),
    ("f.yaml",       f"{HOOK.replace('step_failed', 'error')}start: a\nnodes: {{a: {{tool: 'directive:agent'}}}}\n"),
    ("f.yaml",       f"{HOOK.replace('step_failed', 'error')}start: a\nnodes: {{a: {{tool: 'directive:agent', assign: {{x: 1}}}}}}\n"),
    ("f.yaml",       "tasks: [{description: work, expected_output: x, agent: {role: R, goal: g, tools: [log]}, attempts: 3}]\n"),
]  # fmt: skip


class Breaking:
    """A model that has two things done, and whose stream then breaks so often."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, ask: ModelRequest) -> ModelResponse:
        results = sum(message.role == "tool" for message in ask.messages)
        if results < 2:
            return wants(("log", {"x": results}))
        self.times -= 1
        if self.times >= 0:
            raise StepError(Failure("the stream broke", "network"))
        return says("done")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "agent.md").write_text(AGENT.replace("ONCE", ""))
    return tmp_path


@pytest.mark.parametrize(("file", "text"), AGAIN)
def test_no_answer_is_asked_for_and_no_tool_is_called_a_second_time(
    top: Path, file: str, text: str
) -> None:
    journal, fakes = MemoryJournal(), Services(top, Breaking(2))
    assert outcome_text(run_attempt(top, file, text, fakes, journal)) == "done"
    assert (fakes.logged, fakes.questions) == ([0, 1], 5)


@pytest.mark.parametrize(("file", "text"), AGAIN)
def test_nor_in_a_later_run_attempt(top: Path, file: str, text: str) -> None:
    journal, fakes = MemoryJournal(), Services(top, Breaking(4))
    assert outcome_text(run_attempt(top, file, text, fakes, journal)) != "done"
    assert (fakes.logged, fakes.questions) == ([0, 1], 5)
    assert outcome_text(run_attempt(top, file, text, fakes, journal)) == "done"
    assert (fakes.logged, fakes.questions) == ([0, 1], 7)


def greedy(ask: ModelRequest) -> ModelResponse:
    """A model that wants nine calls, one after the other."""
    results = sum(message.role == "tool" for message in ask.messages)
    return wants(("log", {"x": results})) if results < 9 else says("done")


LIMITED = "---\npermissions: ['*']\nlimits: {LIMITS}\n---\nwork\n"
LIMITS = [
    # what runs, with limits of the agent, that may be tried again
    f"steps: [{{prompt: {{text: work, tools: [log], limits: {{LIMITS}}}}, {RETRY}}}]\n",
    "steps: [{prompt: {text: work, tools: [log], limits: {LIMITS}}, on_failure: {tool: log, params: {x: handled}, max_attempts: 2}}]\n",
    f"steps: [{{tool: 'directive:limited', {RETRY}}}]\n",
    f"start: a\nnodes: {{a: {{tool: 'directive:limited', {RETRY}}}}}\n",
    "hooks: [{id: h, event: error, verb: retry, max_retries: 2}]\nstart: a\nnodes: {a: {tool: 'directive:limited'}}\n",
]  # fmt: skip


@pytest.mark.parametrize("text", LIMITS)
@pytest.mark.parametrize("limits", ["steps: 2", "turns: 2"])
def test_a_limit_that_is_reached_is_not_tried_again(top: Path, text: str, limits: str) -> None:
    (top / "limited.md").write_text(LIMITED.replace("LIMITS", limits))
    flow = text.replace("LIMITS", limits)
    journal, fakes = MemoryJournal(), Services(top, greedy)
    for _ in range(2):
        assert "limit of 2" in outcome_text(run_attempt(top, "f.yaml", flow, fakes, journal))
        assert fakes.logged == [0, 1]


def test_limits_of_an_agent_count_all_its_attempts(top: Path) -> None:
    flow = f"steps: [{{prompt: {{text: work, tools: [log], limits: {{turns: 3}}}}, {RETRY}}}]\n"
    breaks = [True]

    def model(ask: ModelRequest) -> ModelResponse:
        results = sum(message.role == "tool" for message in ask.messages)
        if results == 2 and breaks:
            breaks.clear()
            raise StepError(Failure("the stream broke", "network"))
        return wants(("log", {"x": results})) if results < 3 else says("done")

    journal, fakes = MemoryJournal(), Services(top, model)
    assert "limit of 3 turns (3 used)" in outcome_text(
        run_attempt(top, "f.yaml", flow, fakes, journal)
    )
    assert (fakes.logged, fakes.questions) == ([0, 1, 2], 4)
    more = flow.replace("turns: 3", "turns: 4")
    assert outcome_text(run_attempt(top, "f.yaml", more, fakes, journal)) == "done"
    assert (fakes.logged, fakes.questions) == ([0, 1, 2], 5)


SLOW = [
    f"steps: [{{prompt: {{text: work, tools: [log]}}, timeout: 0.3, {RETRY}}}]\n",
    f"start: a\nnodes: {{a: {{tool: 'directive:agent', timeout: 0.3, {RETRY}}}}}\n",
    f"start: a\nnodes: {{a: {{tool: 'directive:agent', timeout: 0.3, {RETRY}, assign: {{x: 1}}}}}}\n",
    "tasks: [{description: work, expected_output: x, agent: {role: R, goal: g, tools: [log]}, attempts: 3, timeout: 0.3}]\n",
]


@pytest.mark.parametrize("text", SLOW)
def test_an_agent_whose_time_was_up_goes_on_as_well(top: Path, text: str) -> None:
    """Its time is up while the model answers for the first time behind two calls."""
    late = [True]

    def slow(ask: ModelRequest) -> ModelResponse:
        results = sum(message.role == "tool" for message in ask.messages)
        if results < 2:
            return wants(("log", {"x": results}))
        if late.pop() if late else False:
            until = time.monotonic() + 0.35
            while time.monotonic() < until:
                pass
            raise StepError(Failure("took too long", "timeout"))
        return says("done")

    journal, fakes = MemoryJournal(), Services(top, slow)
    assert outcome_text(run_attempt(top, "f.yaml", text, fakes, journal)) == "done"
    assert (fakes.logged, fakes.questions) == ([0, 1], 4)


def test_limits_count_attempts_whose_time_was_up(top: Path) -> None:
    flow = f"steps: [{{prompt: {{text: work, tools: [log], limits: {{turns: 3}}}}, timeout: 0.3, {RETRY}}}]\n"
    late = [True]

    def slow(ask: ModelRequest) -> ModelResponse:
        results = sum(message.role == "tool" for message in ask.messages)
        if results == 2 and late:
            late.clear()
            until = time.monotonic() + 0.35
            while time.monotonic() < until:
                pass
            raise StepError(Failure("took too long", "timeout"))
        return wants(("log", {"x": results}))

    journal, fakes = MemoryJournal(), Services(top, slow)
    assert "limit of 3 turns (3 used)" in outcome_text(
        run_attempt(top, "f.yaml", flow, fakes, journal)
    )
    assert (fakes.logged, fakes.questions) == ([0, 1, 2], 4)
