"""An end is recorded before any hook fires; a hook that did not fire then fires later, once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.scripted import says, wants
from plait.agents.messages import ModelRequest, ModelResponse
from plait.core.errors import TrustError
from plait.core.values import Json
from plait.engine.events import StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import DeadlineExceeded, Interrupted
from plait.views.progress import replay_events
from runs.attempts import Services, outcome_text, run_attempt
from share import every

NOTIFY = '{tool: tell, params: {x: "%s ${path} ${step.name} ${step.attempt} ${used.turns} ${cost.steps} ${result}"}}'
HOOKS = """\
limits: {turns: 9, steps: 90}
hooks:
  - {id: a, event: %s, action: NOTIFY}
  - {id: b, event: %s, condition: "${used.turns} < 3", actions: [NOTIFY, NOTIFY2]}
  - {id: c, event: %s, condition: "${used.turns} > 90", action: NOTIFY}
""".replace("NOTIFY2", NOTIFY % "b2").replace("NOTIFY", NOTIFY % "${event}")
HOSTS = {
    "prompts": (
        "f.yaml",
        "steps: [{id: p, prompt: {prompt: hi, model: m}}, {id: q, prompt: again}]\n",
    ),
    "tools": (
        "f.yaml",
        "steps: [{tool: log, params: {x: 1}}, {id: two, tool: log, params: {x: 2}}]\n",
    ),
    "map": (
        "f.yaml",
        "map: {input: [5, 6], max_parallel: 1, steps: [{prompt: 'i ${item}'}, {tool: log, params: {x: '${item}'}}]}\n",
    ),
    "agent": (
        "f.yaml",
        "steps: [{id: g, prompt: {prompt: talk, tools: [log]}}, {tool: log, params: {x: z}}]\n",
    ),
    "directive": ("d.md", "talk\n"),
    "ensemble": (
        "e.yaml",
        "tasks: [{id: m, description: m}, {id: n, description: n, tool: log, params: {x: n}, context: m}]\n",
    ),
    "graph": (
        "g.yaml",
        "state: {k: 1}\nstart: a\nnodes:\n"
        "  a: {tool: log, params: {x: a}, assign: {k: 2}, next: b}\n"
        "  b: {over: [7, 8], tool: log, params: {x: '${item}'}, next: c}\n"
        "  c: {return: '${state.k}'}\n",
    ),
}
FIRED = [
    # host        event            how often it happens
    ("prompts",   "turn_finished", 2),
    ("prompts",   "step_finished", 2),
    ("tools",     "step_finished", 2),
    ("map",       "turn_finished", 2),
    ("map",       "step_finished", 4),
    ("map",       "item_finished", 2),
    ("agent",     "turn_finished", 3),
    ("agent",     "tool_result",   2),
    ("agent",     "step_finished", 3),
    ("directive", "turn_finished", 3),
    ("directive", "tool_result",   2),
    ("ensemble",  "step_finished", 2),
    ("graph",     "step_finished", 3),
    ("graph",     "item_finished", 2),
]  # fmt: skip
ENDS: list[Callable[[], BaseException]] = [
    KeyboardInterrupt,
    Interrupted,
    DeadlineExceeded,
    lambda: TrustError("not trusted"),
]
"""Ways in which a run attempt may end inside a hook, besides a limit and an abort."""


def chatty(ask: ModelRequest) -> ModelResponse:
    results = sum(message.role == "tool" for message in ask.messages)
    return wants(("log", {"x": results})) if ask.tools and results < 2 else says("an answer")


def text_of(host: str, event: str) -> tuple[str, str]:
    file, text = HOSTS[host]
    head = HOOKS % (event, event, event)
    return file, f"---\npermissions: [log]\n{head}---\n{text}" if file.endswith(
        ".md"
    ) else head + text


class Dying(Services):
    """The run attempt ends at the n-th call of a hook."""

    def __init__(
        self, top: Path, at: int = 0, end: Callable[[], BaseException] = KeyboardInterrupt
    ) -> None:
        super().__init__(top, chatty)
        self.reported: list[str] = []
        self._left, self._end = at, end
        self.tools["tell"] = lambda params: self._notify(params["x"])

    def _notify(self, x: Json) -> Json:
        self._left -= 1
        if self._left == 0:
            raise self._end()
        self.reported.append(re.sub(r'"duration":[0-9.e-]+', "", str(x)))
        return "heard"

    @property
    def made(self) -> list[Json]:
        """What was called beside hooks."""
        return [params.get("x") for tool, params in self.calls if tool == "log"]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.share
@pytest.mark.parametrize(
    ("host", "event", "times", "end"),
    [(*reported, end) for reported in FIRED for end in ENDS][:: every(3)],
)
def test_a_run_attempt_that_ends_inside_a_hook_loses_nothing_and_fires_it_later(
    top: Path, host: str, event: str, times: int, end: Callable[[], BaseException]
) -> None:
    file, text = text_of(host, event)
    whole = Dying(top)
    assert outcome_text(run_attempt(top, file, text, whole, MemoryJournal())) == "done"
    assert sum(one.startswith(event) for one in whole.reported) >= times
    for at in range(1, len(whole.reported) + 1):
        journal, fakes = MemoryJournal(), Dying(top, at, end)
        with pytest.raises(type(end())):
            run_attempt(top, file, text, fakes, journal)
        assert outcome_text(run_attempt(top, file, text, fakes, journal)) == "done"
        assert (fakes.questions, fakes.made) == (whole.questions, whole.made)
        assert fakes.reported == whole.reported, "each once, and the same"
        assert replay_events(journal.events()).usage.turns == whole.questions
        assert outcome_text(run_attempt(top, file, text, fakes, journal)) == "done"
        assert fakes.reported == whole.reported


@pytest.mark.parametrize(("host", "event", "times"), FIRED)
def test_an_end_is_recorded_before_its_hooks(top: Path, host: str, event: str, times: int) -> None:
    file, text = text_of(host, event)
    journal = MemoryJournal()
    run_attempt(top, file, text, Dying(top), journal)
    paths = [one.event.path for one in journal.events() if isinstance(one.event, StepFinished)]
    about = [path.rpartition("/hook:")[0] for path in paths if path.endswith("hook:a")]
    assert len(about) == times
    for path in about:
        assert paths.index(path) < paths.index(f"{path}/hook:a")


def test_a_hook_that_did_not_apply_then_does_not_fire_later(top: Path) -> None:
    """Neither a condition that holds only now, nor a hook that is new."""
    flow = "steps: [{tool: log, params: {x: 1}}, {tool: log, params: {x: 2}}]\nhooks:\n"
    flow += f"  - {{id: a, event: step_finished, condition: '${{used.steps}} == 2', action: {NOTIFY % 'a'}}}\n"
    new = f"  - {{id: n, event: step_finished, action: {NOTIFY % 'n'}}}\n"
    journal, fakes = MemoryJournal(), Dying(top)
    flow = f"limits: {{steps: 9}}\n{flow}"
    assert outcome_text(run_attempt(top, "f.yaml", flow, fakes, journal)) == "done"
    assert outcome_text(run_attempt(top, "f.yaml", flow + new, fakes, journal)) == "done"
    assert [one.partition(" {")[0] for one in fakes.reported] == ["a steps/1 1 1 0 2"]


SLOW = """\
hooks: [{id: s, event: %s, action: {tool: tell, params: {x: "${path}"}}}]
steps: [{id: p, prompt: %s, timeout: 0.2, retry: {attempts: 2, initial_delay: 0.001}}]
"""


@pytest.mark.parametrize(
    ("event", "prompt"),
    [
        ("turn_finished", "hi"),
        ("turn_started", "hi"),
        ("turn_finished", "{prompt: talk, tools: [log]}"),
        ("tool_result", "{prompt: talk, tools: [log]}"),
    ],
)
def test_the_time_of_hooks_is_no_time_of_the_step(top: Path, event: str, prompt: str) -> None:
    fakes = Dying(top)
    fakes.tools["tell"] = lambda _: time.sleep(0.11)
    flow = (
        (SLOW % (event, prompt))
        .replace("action: {", "actions: [{")
        .replace('}"}}}]', '}"}}, {tool: tell}, {tool: tell}]}]')
    )
    assert outcome_text(run_attempt(top, "f.yaml", flow, fakes, MemoryJournal())) == "done"
    assert fakes.questions == (1 if prompt == "hi" else 3)
