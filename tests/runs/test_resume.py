"""A resumed run knows the usage of earlier run attempts, and gives hooks the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import USED, Says, Scripted, says, wants
from plait.agents.messages import ModelRequest, ModelResponse
from plait.core.values import Json
from plait.engine.events import StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, StepError
from plait.tools.call import ToolResult
from plait.views.progress import Progress, replay_events
from runs.attempts import Services, outcome_text, run_attempt

JUDGE = "---\n---\njudge\n"
ENSEMBLE = "tasks: [{id: x, description: x, tool: log}, {id: y, description: y, tool: log}]\n"
NO = ToolResult("log", False, None, "not yet", (), {})


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "judge.md").write_text(JUDGE)
    (tmp_path / "ens.yaml").write_text(ENSEMBLE)
    return tmp_path


def chatty(ask: ModelRequest) -> ModelResponse:
    """A judge judges, everybody else calls a tool three times if there is one."""
    if ask.messages[0].text.startswith("judge"):
        return says("fine")
    results = sum(message.role == "tool" for message in ask.messages)
    return wants(("log", {"x": results})) if ask.tools and results < 3 else says("an answer")


def refusing(*values: Json) -> Callable[[Json], Json]:
    """A tool that fails the first time it is called with one of these."""
    left = list(values)

    def log(x: Json) -> Json:
        if x in left:
            left.remove(x)
            return NO
        return "logged"

    return log


def ended(top: Path, file: str, text: str, fakes: Services, journal: MemoryJournal) -> str:
    return outcome_text(run_attempt(top, file, text, fakes, journal))


# ── what was used up ─────────────────────────────────────────────────────

TALK = """\
---
permissions: [log]
limits: {turns: %d}
hooks: [{id: j, event: turn_finished, action: {tool: "directive:judge"}}]
---
talk
"""
ASKS = """\
limits: {turns: %d}
hooks: [{id: j, event: turn_finished, action: {tool: "directive:judge"}}]
steps: [{prompt: one}, {prompt: two}, {prompt: three}]
"""


@pytest.mark.parametrize(("file", "text", "whole"), [("t.md", TALK, 8), ("f.yaml", ASKS, 6)])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_limit_holds_in_every_run_attempt_also_where_hooks_ask_models(
    top: Path, file: str, text: str, whole: int, limit: int
) -> None:
    journal, fakes = MemoryJournal(), Services(top, chatty)
    for _ in range(3):
        turns = f"{limit} turn" if limit == 1 else f"{limit} turns"
        assert ended(top, file, text % limit, fakes, journal).endswith(f"of {turns} ({limit} used)")
        assert fakes.questions == limit
    assert ended(top, file, text % 99, fakes, journal) == "done"
    assert fakes.questions == whole, "nothing is asked twice"


def test_an_agent_that_failed_before_its_first_question_is_no_step(top: Path) -> None:
    flow = "limits: {steps: 2}\nsteps: [{prompt: {prompt: hi, tools: [log]}}, {tool: log, params: {x: b}}]\n"
    plain: Says = lambda _: says("hi")  # noqa: E731
    journal, fakes = MemoryJournal(), Services(top, plain)
    fakes.scripted = None
    assert ended(top, "f.yaml", flow, fakes, journal).startswith("no provider is configured")
    fakes.scripted = Scripted(plain)
    assert ended(top, "f.yaml", flow, fakes, journal) == "done"


def test_steps_inside_a_hook_count_in_no_run_attempt(top: Path) -> None:
    flow = """\
limits: {steps: 3}
hooks: [{id: j, event: step_finished, action: {tool: ens}}]
steps: [{tool: log, params: {x: a}}, {tool: log, params: {x: b}}, {tool: log, params: {x: c}}]
"""
    journal, fakes = MemoryJournal(), Services(top, chatty, refusing("b"))
    assert ended(top, "f.yaml", flow, fakes, journal) == "log: not yet"
    assert ended(top, "f.yaml", flow, fakes, journal) == "done"


def test_a_field_of_a_tool_that_is_called_usage_is_nothing_that_was_used(top: Path) -> None:
    flow = """\
limits: {turns: 2, tokens: 90000}
start: a
nodes:
  a: {over: [1, 2, 3], tool: log, params: {x: use}, next: b}
  b: {tool: "directive:judge", next: c}
  c: {tool: log, params: {x: c}}
"""
    refuse = refusing("c")
    fakes = Services(
        top, chatty, lambda x: {"usage": {"input": 400, "output": 3}} if x == "use" else refuse(x)
    )
    journal = MemoryJournal()
    assert "not yet" in ended(top, "g.yaml", flow, fakes, journal)
    assert ended(top, "g.yaml", flow, fakes, journal) == "done"
    assert replay_events(journal.events()).usage.record() == {
        "turns": 1,
        "tokens": 15,
        "cost": 0.25,
    }


AGENT = """\
hooks: [{id: j, event: step_finished, condition: "${step.kind} == 'agent'", action: {tool: "directive:judge"}}]
steps: [{prompt: {prompt: talk, tools: [log], limits: {turns: 5}}}, {tool: log, params: {x: b}}]
"""


def test_what_a_hook_of_an_agent_asks_is_nothing_that_the_agent_used(top: Path) -> None:
    """The hook is asked behind the agent, and from outside."""
    journal, fakes = MemoryJournal(), Services(top, chatty, refusing("b"))
    assert ended(top, "f.yaml", AGENT, fakes, journal) == "log: not yet"
    assert ended(top, "f.yaml", AGENT, fakes, journal) == "done"
    inside = [end.path for end in ends(journal) if end.used and "turns" in end.used]
    assert inside[-1].startswith("steps/0/agent/hook:j/")
    from plait.engine.limits import PriorUsage

    assert PriorUsage(journal).inside("steps/0/agent") == {
        "turns": 4,
        "tokens": 60,
        "spend": 1.0,
        "steps": 3,
    }


def ends(journal: MemoryJournal) -> list[StepFinished]:
    return [one.event for one in journal.events() if isinstance(one.event, StepFinished)]


BROKEN = Failure("it broke off", "network", output={"text": "an ans", "usage": USED.record()})


def breaking(times: int) -> Says:
    """A model whose first answers break off, and are paid for."""
    left = [None] * times

    def answer(ask: ModelRequest) -> ModelResponse:
        if left and not ask.messages[0].text.startswith("judge"):
            left.pop()
            raise StepError(BROKEN)
        return chatty(ask)

    return answer


def test_answers_that_broke_off_are_counted_at_each_attempt_in_every_run_attempt(top: Path) -> None:
    flow = (
        "limits: {turns: %d}\nsteps: [{prompt: one, retry: {attempts: 3, initial_delay: 0.001}}]\n"
    )
    journal, fakes = MemoryJournal(), Services(top, breaking(3))
    assert ended(top, "f.yaml", flow % 9, fakes, journal) == "it broke off"
    assert ended(top, "f.yaml", flow % 3, fakes, journal).endswith("of 3 turns (3 used)")
    assert ended(top, "f.yaml", flow % 4, fakes, journal) == "done"
    assert replay_events(journal.events()).usage.turns == fakes.questions == 4


# ── values of hooks ──────────────────────────────────────────────────────

AUDIT = """\
---
permissions: [log]
limits: {turns: %d}
hooks:
  - id: j
    event: tool_result
    actions:
      - {tool: "directive:judge"}
      - {tool: log, params: {x: "${tool} ${params.x} ${turn} ${result.output} ${step.name}"}}
---
talk
"""


def test_a_hook_that_catches_up_is_reported_what_it_would_have_been_reported(top: Path) -> None:
    journal, fakes, live = MemoryJournal(), Services(top, chatty), Services(top, chatty)
    assert ended(top, "a.md", AUDIT % 99, live, MemoryJournal()) == "done"
    for limit in range(1, 7):
        assert "its limit of" in ended(top, "a.md", AUDIT % limit, fakes, journal)
    assert ended(top, "a.md", AUDIT % 99, fakes, journal) == "done"
    assert fakes.logged == live.logged
    assert live.logged[1] == "log 0 1 logged agent"


NOTIFIED = """\
limits: {turns: %d}
hooks:
  - id: j
    event: turn_finished
    actions:
      - {tool: "directive:judge"}
      - {tool: log, params: {x: "${turn} ${model} ${result.output} ${step.kind} ${step.name} ${step.attempt}"}}
  - {id: k, event: turn_finished, condition: "${model} == 'fast'", action: {tool: log, params: {x: "k ${turn}"}}}
  - {id: l, event: turn_finished, condition: "${model} == 'slow'", action: {tool: log, params: {x: never}}}
steps: [{id: ask, prompt: {prompt: one, model: fast}%s}]
"""


@pytest.mark.parametrize("times", [0, 1])
def test_a_hook_of_a_prompt_step_that_catches_up_is_reported_the_same(
    top: Path, times: int
) -> None:
    retry = ", retry: {attempts: 2, initial_delay: 0.001}" if times else ""
    journal, fakes = MemoryJournal(), Services(top, breaking(times))
    assert "its limit of" in ended(top, "f.yaml", NOTIFIED % (times + 1, retry), fakes, journal)
    assert fakes.logged == []
    assert ended(top, "f.yaml", NOTIFIED % (99, retry), fakes, journal) == "done"
    assert fakes.logged == [f"1 fast an answer prompt ask {times + 1}", "k 1"], (
        "also who came behind it"
    )
    assert fakes.questions == times + 2
    assert ended(top, "f.yaml", NOTIFIED % (99, retry), fakes, journal) == "done"
    assert len(fakes.logged) == 2


def test_a_limit_is_reported_of_in_each_run_attempt_that_reaches_it(top: Path) -> None:
    flow = """\
limits: {steps: %d}
hooks: [{id: l, event: limit, action: {tool: log, params: {x: "${limit.value}/${limit.max}"}}}]
steps: [{tool: log, params: {x: a}}, {tool: log, params: {x: b}}, {tool: log, params: {x: c}}]
"""
    journal, fakes = MemoryJournal(), Services(top, chatty)
    for limit in (1, 1, 2, 2):
        assert f"of {limit} step" in ended(top, "f.yaml", flow % limit, fakes, journal)
    assert ended(top, "f.yaml", flow % 3, fakes, journal) == "done"
    assert fakes.logged == ["a", "1/1", "1/1", "b", "2/2", "2/2", "c"]


# ── a question that is answered, and a step that is not done ─────────────

STOPPED = """\
limits: {turns: %d}
hooks: [{id: s, event: turn_finished, %s}]
steps: [{id: ask, prompt: hello, output_file: out.txt, capture_output: c%s}, {tool: log, params: {x: "${c}"}}]
"""
JUDGED = 'action: {tool: "directive:judge"}'


@pytest.mark.parametrize("hook", ["verb: abort", JUDGED])
def test_a_prompt_step_behind_whose_answer_the_run_ended_goes_on_with_that_answer(
    top: Path, hook: str
) -> None:
    journal, fakes = MemoryJournal(), Services(top, chatty)
    assert ended(top, "f.yaml", STOPPED % (1, hook, ""), fakes, journal) != "done"
    later = "gate: false" if hook == "verb: abort" else hook
    text = (STOPPED % (99, later, "")).replace(
        "event: turn_finished, gate: false", "event: item_started, verb: skip"
    )
    assert ended(top, "f.yaml", text, fakes, journal) == "done"
    assert fakes.files["out.txt"] == b"an answer"
    assert fakes.logged == ["an answer"]
    assert fakes.questions == (1 if hook == "verb: abort" else 2)


def test_it_also_goes_on_where_no_hook_is_left(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, chatty)
    hooked = "hooks: [{id: s, event: turn_finished, verb: abort}]\nsteps: [{prompt: hello, output_file: out.txt}]\n"
    assert ended(top, "f.yaml", hooked, fakes, journal) == "the hook 's' says abort"
    assert ended(top, "f.yaml", hooked.partition("\n")[2], fakes, journal) == "done"
    assert (fakes.files["out.txt"], fakes.questions) == (b"an answer", 1)


HEARD = "hooks: [{id: s, event: turn_finished, action: {tool: log, params: {x: heard}}}]\n"


@pytest.mark.parametrize("has_hooks", [True, False])
def test_an_answer_that_cannot_be_captured_is_asked_for_again(top: Path, has_hooks: bool) -> None:
    answers = iter(["no JSON", "neither", '{"a": 1}'])
    model: Says = lambda _: says(next(answers))  # noqa: E731
    flow = "steps: [{id: ask, prompt: hello, capture_output: c, capture_format: json}]\n"
    flow = HEARD + flow if has_hooks else flow
    journal, fakes = MemoryJournal(), Services(top, model)
    for _ in range(2):
        assert "JSON" in ended(top, "f.yaml", flow, fakes, journal)
    assert ended(top, "f.yaml", flow, fakes, journal) == "done"
    assert (fakes.questions, fakes.logged) == (3, ["heard"] * 3 * has_hooks)


def test_a_prompt_records_its_turn_and_the_usage_once(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, chatty)
    assert ended(top, "f.yaml", "steps: [{prompt: hello}]\n", fakes, journal) == "done"
    assert [(end.path, end.used) for end in ends(journal)] == [
        ("steps/0/turn:1", {"turns": 1, "tokens": 15, "spend": 0.25}),
        ("steps/0", None),
        ("steps", None),
    ]


# ── ensembles ────────────────────────────────────────────────────────────

WORKFLOWS = ["sequential", "parallel"]
AROUND = {
    "limits": "limits: {seconds: 600, turns: 50}\n",
    "hooks": 'hooks: [{id: h, event: step_finished, action: {tool: log, params: {x: "${step.name}"}}}]\n',
}
TASKS = """\
workflow: %s
agents: {w: {role: w, tools: [log]}}
tasks:
  - {id: a, description: a, tool: log, params: {x: A}}
  - {id: m, description: m, agent: w, context: a}
  - {id: b, description: b, tool: log, params: {x: B}, context: m}
  - {id: c, description: c, tool: log, params: {x: C}, context: b}
"""


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_an_ensemble_with_limits_or_hooks_goes_on_where_it_failed(
    top: Path, workflow: str, around: str
) -> None:
    text = AROUND[around] + TASKS % workflow
    whole = Services(top, chatty)
    assert ended(top, "e.yaml", text, whole, MemoryJournal()) == "done"
    journal, fakes = MemoryJournal(), Services(top, chatty, refusing("B"))
    assert "not yet" in ended(top, "e.yaml", text, fakes, journal)
    assert ended(top, "e.yaml", text, fakes, journal) == "done"
    assert fakes.logged == [
        *whole.logged[: whole.logged.index("B") + 1],
        *whole.logged[whole.logged.index("B") :],
    ]
    assert fakes.questions == whole.questions == 4


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_an_ensemble_does_what_was_missing_when_its_limit_is_raised_step_by_step(
    top: Path, workflow: str
) -> None:
    judged = 'limits: {turns: %d}\nhooks: [{id: j, event: step_finished, action: {tool: "directive:judge"}}]\n'
    journal, fakes = MemoryJournal(), Services(top, chatty)
    for limit in (1, 1, 2, 3, 5, 5, 6):
        text = judged % limit + TASKS % workflow
        assert ended(top, "e.yaml", text, fakes, journal).endswith(f"({limit} used)")
        assert fakes.questions == limit
    assert ended(top, "e.yaml", judged % 99 + TASKS % workflow, fakes, journal) == "done"
    assert (fakes.questions, fakes.logged) == (8, ["A", 0, 1, 2, "B", "C"])


LOOP = """\
workflow: %s
tasks:
  - {id: a, description: a, tool: log, params: {x: A}}
  - {id: w, description: w}
  - {id: e, description: e, tool: log, params: {x: E}, context: w}
  - {id: z, description: z, tool: log, params: {x: Z}, context: e}
loops: [{id: l, tasks: [w, e], max_iterations: 3}]
"""


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_loop_inside_an_ensemble_goes_on_in_the_round_where_a_limit_was_reached(
    top: Path, workflow: str
) -> None:
    journal, fakes = MemoryJournal(), Services(top, chatty)
    head = "limits: {turns: %d}\n"
    for limit in (1, 1, 2):
        assert f"of {limit} turn" in ended(
            top, "e.yaml", head % limit + LOOP % workflow, fakes, journal
        )
        assert fakes.questions == limit
    assert ended(top, "e.yaml", head % 9 + LOOP % workflow, fakes, journal) == "done"
    assert (fakes.questions, fakes.logged) == (3, ["A", "E", "E", "E", "Z"])


# ── what is shown ────────────────────────────────────────────────────────

SHOWN = {
    "map": (
        "f.yaml",
        "map: {input: [1, 2, 3], steps: [{prompt: 'i ${item}'}]}\nreduce: [{tool: log, params: {x: b}}]\n",
    ),
    "steps": ("f.yaml", ASKS % 99 + "  - {tool: log, params: {x: b}}\n"),
    "agent": ("t.md", TALK % 4),
    "ensemble": (
        "e.yaml",
        "tasks: [{id: a, description: a}, {id: b, description: b, tool: log, params: {x: b}}]\n",
    ),
}


@pytest.mark.parametrize("host", SHOWN)
def test_every_view_of_every_run_attempt_says_what_was_asked_in_all(top: Path, host: str) -> None:
    file, text = SHOWN[host]
    text = (
        text.replace("three}]\n  - ", "three}, ").replace("{x: b}}\n", "{x: b}}]\n")
        if host == "steps"
        else text
    )
    journal, fakes = (
        MemoryJournal(),
        Services(top, breaking(1) if host == "steps" else chatty, refusing("b")),
    )
    for limit in (4, 6, 99):
        progress: Any = Progress()
        run_attempt(
            top,
            file,
            text.replace("{turns: 4}", f"{{turns: {limit}}}"),
            fakes,
            journal,
            watchers=[progress.add],
        )
        assert progress.usage.record() == replay_events(journal.events()).usage.record()
        assert progress.usage.turns == fakes.questions > 0
        assert sum(part.usage.turns for part in progress.parts.values()) == fakes.questions
