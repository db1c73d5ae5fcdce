"""What a run has used up is the same whether or not it was killed: recorded calls count once, lost ones too."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted import Says, Scripted, ToolServices, says, wants
from lang.loading import load_file
from plait.agents.messages import ModelRequest, ModelResponse, TokenUsage
from plait.agents.session import AgentScope, AgentScopes
from plait.core.values import Json
from plait.engine.context import RunContext
from plait.engine.events import Event, ModelText, StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, StepError
from plait.lang.loaded import LoadedFlow
from plait.program.ports import Subflow
from program.fakes import new_run, turn_of
from share import examples

AMPLE = "{turns: 100, tokens: 100000, spend: 1000, steps: 100, seconds: 600}"
PROMPTS = f"limits: {AMPLE}\nsteps: [{{prompt: one}}, {{prompt: two}}, {{tool: add}}, {{prompt: three}}]\n"
SESSION = f"""\
limits: {AMPLE}
steps:
  - prompt: {{prompt: talk, tools: ['*'], limits: {AMPLE}}}
  - prompt: two
"""
GRAPH = f"""\
limits: {AMPLE}
start: a
nodes:
  a: {{tool: add, next: b}}
  b: {{tool: "directive:talk", next: c}}
  c: {{over: [1, 2], tool: add, next: d}}
  d: {{tool: "directive:talk"}}
"""
DIRECTIVE = f"---\npermissions: ['*']\nlimits: {AMPLE}\n---\ntalk\n"
DEEP = f"---\npermissions: ['*', 'directive:*']\nlimits: {AMPLE}\n---\ndeep\n"
NESTED = f"limits: {AMPLE}\nsteps: [{{tool: graph}}, {{prompt: two}}, {{tool: 'directive:deep'}}]\n"
HOSTS = {
    "prompt": ("flow.yaml", PROMPTS),
    "conversation": ("flow.yaml", SESSION),
    "directive": ("talk.md", DIRECTIVE),
    "graph": ("graph.yaml", GRAPH),
    "nested": ("flow.yaml", NESTED),
}
LIMITED = [host for host in HOSTS if host != "directive"]
"""Those with limits of the run; the limits of a directive are those of its agent."""


class Crash(BaseException):
    """The process dies: nothing after this moment happens."""


class Effects:
    """Counts what reaches the world, and dies in one of them, or fails there and is paid for."""

    def __init__(self, dies_at: int | None = None, *, breaks: bool = False) -> None:
        self.made = 0
        self._dies_at = dies_at
        self._breaks = breaks

    def __call__(self, *, is_model: bool) -> None:
        at, self.made = self.made, self.made + 1
        if at != self._dies_at:
            return
        if self._breaks and is_model:
            output = {"usage": TokenUsage(10, 5, cost=0.25).record(), "text": "ha"}
            raise StepError(Failure("the answer broke off", "network", output=output))
        raise Crash


class Services(ToolServices):
    """One tool, and flows that are tools."""

    def __init__(self, effects: Effects, top: Path) -> None:
        flows = dict.fromkeys(("graph", "directive:talk"), self._add)
        super().__init__(Scripted(self._answer), {"add": self._add, **flows})
        self._effects = effects
        self._top = top

    def _add(self, _: Mapping[str, Json]) -> Json:
        self._effects(is_model=False)
        return {"n": 1}

    def _answer(self, ask: ModelRequest) -> ModelResponse:
        self._effects(is_model=True)
        prompt, results = ask.messages[0].text, sum(one.role == "tool" for one in ask.messages)
        if prompt == "talk" and results == 0:
            return wants(("add", {}), ("add", {"n": 2}))
        if prompt == "deep" and results < 2:
            return wants((("graph", "directive:talk")[results], {}))
        return says("done")

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:  # noqa: ARG002
        match tool_id:
            case "graph":
                return load_file(str(self._top / "graph.yaml"), environ={}).program
            case "directive:talk":
                return load_file(str(self._top / "talk.md"), environ={}).program
            case "directive:deep":
                return load_file(str(self._top / "deep.md"), environ={}).program
        return None


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("budgets")
    for name, text in {"graph.yaml": GRAPH, "talk.md": DIRECTIVE, "deep.md": DEEP}.items():
        (made / name).write_text(text)
    return made


def perform_attempt(
    top: Path, host: str, journal: MemoryJournal, effects: Effects
) -> tuple[RunContext, LoadedFlow]:
    """Perform one run attempt, to its end or its death."""
    file, text = HOSTS[host]
    (top / file).write_text(text)
    loaded = load_file(str(top / file), environ={})
    run = new_run(Services(effects, top), journal, loaded=loaded)
    try:
        loaded.program.run(turn_of(run))
    finally:
        run.events.close()
    return run, loaded


def used(run: RunContext) -> dict[str, Any]:
    return {name: value for name, value in run.budgets.total.usage().items() if name != "seconds"}


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("host", LIMITED)
def test_a_run_that_was_killed_has_used_up_what_an_uninterrupted_one_has(
    host: str, data: st.DataObject, top: Path
) -> None:
    whole = Effects()
    expected = used(perform_attempt(top, host, MemoryJournal(), whole)[0])
    assert expected["turns"] > 0
    journal = MemoryJournal()
    for moment in data.draw(st.lists(st.integers(0, whole.made - 1), max_size=3)):
        with suppress(Crash):
            perform_attempt(top, host, journal, Effects(moment))
        journal.reopen()
    assert used(perform_attempt(top, host, journal, Effects())[0]) == expected


@pytest.mark.parametrize("host", LIMITED)
def test_what_was_paid_for_an_answer_that_broke_off_is_never_forgotten(
    host: str, top: Path
) -> None:
    whole = Effects()
    expected = used(perform_attempt(top, host, MemoryJournal(), whole)[0])
    for moment in range(whole.made):
        journal = MemoryJournal()
        effects = Effects(moment, breaks=True)
        broken: list[StepError] = []
        try:
            perform_attempt(top, host, journal, effects)
        except Crash:
            continue  # it was a tool
        except StepError as error:
            broken.append(error)
        journal.reopen()
        for _ in range(2):  # and another run attempt, which only replays
            again = used(perform_attempt(top, host, journal, Effects())[0])
            if broken:
                assert again == {
                    **expected,
                    "turns": expected["turns"] + 1,
                    "tokens": expected["tokens"] + 15,
                    "spend": expected["spend"] + 0.25,
                }


def test_a_resumed_agent_has_what_its_earlier_run_attempt_left_over(top: Path) -> None:
    """A limit of its own, not of the run: two of three turns are recorded, so one is left."""
    journal = MemoryJournal()
    with suppress(Crash):
        perform_attempt(top, "directive", journal, Effects(3))
    run, _ = watched(top, "directive", journal.reopen())
    assert run["agent"].usage()["turns"] == 2


def watched(top: Path, host: str, journal: MemoryJournal) -> tuple[dict[str, Any], RunContext]:
    """Perform a run attempt, and return the final usage of each agent."""
    file, text = HOSTS[host]
    (top / file).write_text(text)
    loaded = load_file(str(top / file), environ={})
    run = new_run(Services(Effects(), top), journal, loaded=loaded)
    seen: dict[str, Any] = {}

    class Noting(AgentScopes):
        def __setitem__(self, path: str, agency: AgentScope) -> None:
            seen[path] = run.budgets.at(path)
            super().__setitem__(path, agency)

    run._shared[AgentScopes] = Noting()
    loaded.program.run(turn_of(run))
    run.events.close()
    return seen, run


def test_the_agents_inside_count_what_was_recorded_inside_them(top: Path) -> None:
    whole, _ = watched(top, "nested", MemoryJournal())
    journal = MemoryJournal()
    with suppress(Crash):
        perform_attempt(top, "nested", journal, Effects(14))
    resumed, _ = watched(top, "nested", journal.reopen())
    for path, budget in resumed.items():
        names = ("turns", "tokens", "spend", "steps")
        assert [budget.usage()[name] for name in names] == [
            whole[path].usage()[name] for name in names
        ], path
    assert resumed, "somebody was inside"


# ── side by side ─────────────────────────────────────────────────────────


def test_agents_side_by_side_never_ask_more_than_is_left(top: Path) -> None:
    """Four are called at once and two questions are left: two ask; the others do when there are more."""
    # If a question counted only with its answer, a third would come here.
    gathered = threading.Barrier(3, timeout=0.5)

    def answer(ask: ModelRequest) -> ModelResponse:
        if ask.messages[0].text == "many":
            return wants(*[("directive:talk", {})] * 4) if len(ask.messages) == 1 else says("all")
        with suppress(threading.BrokenBarrierError):
            gathered.wait()
        return says("done")

    journal = MemoryJournal()
    first = many(top, 3, answer, journal)
    assert first == ("'many' has reached its limit of 3 turns (3 used)", 3)
    calls = [journal.step(f"agent/turn:1.call:{number}") for number in range(1, 5)]
    assert [one.outcome.value["output"] for one in calls if one] == ["done"] * 2  # type: ignore[union-attr]
    assert many(top, 9, answer, journal.reopen()) == ("all", 3)


def many(top: Path, turns: int, answer: Says, journal: MemoryJournal) -> tuple[str, int]:
    """Return the output of the agent, and the number of requests of this run attempt."""
    (top / "many.md").write_text(
        f"---\npermissions: ['directive:*']\nlimits: {{turns: {turns}}}\n---\nmany\n"
    )
    fakes = Services(Effects(), top)
    fakes.scripted = Scripted(answer)
    run = new_run(fakes, journal)
    try:
        value = load_file(str(top / "many.md"), environ={}).program.run(turn_of(run))
        text = value["output"]
    except StepError as error:
        text = error.failure.message
    finally:
        run.events.close()
    return text, len(fakes.scripted.asks)


def test_a_limit_of_calls_that_is_reached_among_several_lets_the_first_of_them_be_made(
    top: Path,
) -> None:
    (top / "two.md").write_text("---\npermissions: ['add']\nlimits: {steps: 1}\n---\ntalk\n")
    fakes, journal = Services(Effects(), top), MemoryJournal()
    run = new_run(fakes, journal)
    with pytest.raises(StepError, match="'two' has reached its limit of 1 step"):
        load_file(str(top / "two.md"), environ={}).program.run(turn_of(run))
    run.events.close()
    assert fakes.calls == [("add", {})]
    (top / "two.md").write_text("---\npermissions: ['add']\nlimits: {steps: 2}\n---\ntalk\n")
    again = Services(Effects(), top)
    resumed = new_run(again, journal.reopen())
    load_file(str(top / "two.md"), environ={}).program.run(turn_of(resumed))
    resumed.events.close()
    assert again.calls == [("add", {"n": 2})]


# ── live text of the model ───────────────────────────────────────────────


def test_the_text_of_a_prompt_step_is_shown_while_it_arrives(top: Path) -> None:
    (top / "flow.yaml").write_text("steps: [{prompt: hello}]\n")
    loaded = load_file(str(top / "flow.yaml"), environ={})
    heard: list[Event] = []
    fakes = Services(Effects(), top)
    fakes.scripted = Scripted(says("word by word"))
    run = new_run(fakes, watchers=[lambda record: heard.append(record.event)])
    loaded.program.run(turn_of(run))
    run.events.close()
    spoken = [event for event in heard if isinstance(event, ModelText)]
    assert [(one.path, one.text) for one in spoken] == [
        ("steps/0/turn:1", "word "), ("steps/0/turn:1", "by "), ("steps/0/turn:1", "word ")
    ]  # fmt: skip
    assert heard.index(spoken[-1]) < next(
        at
        for at, one in enumerate(heard)
        if isinstance(one, StepFinished) and one.path == "steps/0"
    )
