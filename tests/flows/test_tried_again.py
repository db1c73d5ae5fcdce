"""Another attempt of an agent, or of what calls one, goes on where the last one ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.lives import Hands, life, said
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, StepError
from plait.steps.model import Answer, Ask
from steps.scripted import says, wants

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
    ("f.yaml",       "tasks: [{description: work, expected_output: x, agent: {role: R, goal: g, tools: [log]}, attempts: 3}]\n"),
]  # fmt: skip


class Breaking:
    """A model that has two things done, and whose stream then breaks so often."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, ask: Ask) -> Answer:
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
def test_no_answer_is_asked_for_and_no_tool_is_called_a_second_time(top: Path, file: str, text: str) -> None:
    journal, hands = MemoryJournal(), Hands(top, Breaking(2))
    assert said(life(top, file, text, hands, journal)) == "done"
    assert (hands.logged, hands.questions) == ([0, 1], 5)


@pytest.mark.parametrize(("file", "text"), AGAIN)
def test_nor_in_a_later_life(top: Path, file: str, text: str) -> None:
    journal, hands = MemoryJournal(), Hands(top, Breaking(4))
    assert said(life(top, file, text, hands, journal)) != "done"
    assert (hands.logged, hands.questions) == ([0, 1], 5)
    assert said(life(top, file, text, hands, journal)) == "done"
    assert (hands.logged, hands.questions) == ([0, 1], 7)
