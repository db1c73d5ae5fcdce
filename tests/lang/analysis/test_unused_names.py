"""Values of hooks after an end: its usage, its attempt, and what did it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.scripted import failed
from lang.loading import load_file
from plait.core.values import Json
from plait.engine.hooks import HookRunner
from plait.engine.journal import MemoryJournal
from program.fakes import new_run
from runs.attempts import Services, outcome_text, run_attempt
from runs.test_replayed_names import chatty

GUARD = "hooks: [{id: g, event: turn_finished, condition: '${used.tokens} >= 15', verb: abort, why: enough}]\n"
GUARDED = [
    ("d.md", f"---\npermissions: [log]\n{GUARD}---\ntalk\n"),
    ("f.yaml", GUARD + "steps: [{prompt: {prompt: talk, tools: [log]}}]\n"),
    ("f.yaml", GUARD + "steps: [{prompt: hi}, {tool: log}]\n"),
    ("e.yaml", GUARD + "tasks: [{id: m, description: m}, {id: n, description: n}]\n"),
]


@pytest.mark.parametrize(("file", "text"), GUARDED)
def test_a_guard_by_tokens_acts_on_the_answer_that_used_them(
    tmp_path: Path, file: str, text: str
) -> None:
    fakes = Services(tmp_path, chatty)
    assert "the hook 'g' says abort: enough" in outcome_text(
        run_attempt(tmp_path, file, text, fakes, MemoryJournal())
    )
    assert (fakes.questions, fakes.logged) == (1, [])


def test_what_an_answer_took_is_in_both_names(tmp_path: Path) -> None:
    reported = "${turn} ${used.turns} ${used.tokens} ${used.spend} ${cost.tokens} ${model}"
    hooks = f"hooks: [{{id: h, event: turn_finished, action: {{tool: tell, params: {{x: '{reported}'}}}}}}]"
    fakes = Services(tmp_path, chatty)
    fakes.tools["tell"] = lambda _: None
    text = f"---\npermissions: [log]\n{hooks}\n---\ntalk\n"
    assert outcome_text(run_attempt(tmp_path, "d.md", text, fakes, MemoryJournal())) == "done"
    heard = [params["x"] for tool, params in fakes.calls if tool == "tell"]
    assert heard == ["1 1 15 0.25 15 m-1", "2 2 30 0.5 30 m-1", "3 3 45 0.75 45 m-1"]


def hook(event: str, x: str) -> str:
    return f"hooks: [{{id: h, event: {event}, action: {{tool: tell, params: {{x: '{x}'}}}}}}]\n"


RETRY = "retry: {attempts: 4, initial_delay: 0.001}"
AGAIN = "  - {id: e, event: error, verb: retry}\n"
FLAKY = [
    # event            what is tried
    ("step_finished", f"steps: [{{tool: flaky, {RETRY}}}]\n"),
    ("step_finished", f"steps: [{{tool: flaky, {RETRY}, on_success: [{{tool: log}}]}}]\n"),
    ("step_finished", "steps: [{tool: flaky, on_failure: {steps: [{tool: log}], max_attempts: 3}}]\n"),
    ("step_finished", f"start: a\nnodes: {{a: {{tool: flaky, {RETRY}}}}}\n"),
    ("step_finished", f"start: a\nnodes: {{a: {{tool: flaky, {RETRY}}}}}\n{AGAIN}"),
    ("step_finished", f"start: a\nnodes: {{a: {{tool: flaky}}}}\n{AGAIN}"),
    ("item_finished", f"start: a\nnodes: {{a: {{over: [1], tool: flaky, {RETRY}}}}}\n"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "text"), FLAKY)
def test_the_attempt_that_is_reported_is_the_one_that_ended_it(
    tmp_path: Path, event: str, text: str
) -> None:
    fakes, reported = Services(tmp_path, chatty), list[Json]()
    fakes.tools["tell"] = lambda params: reported.append(params["x"])
    fakes.tools["flaky"] = lambda _: failed("flaky", "no") if tries() < 3 else "yes"

    def tries() -> int:
        return sum(tool == "flaky" for tool, _ in fakes.calls)

    hooks = hook(event, "${step.name} ${step.attempt}")
    if text.endswith(AGAIN):
        text, hooks = (
            text.removesuffix(AGAIN),
            hooks.replace("hooks: [", "hooks:\n  - ").replace("]\n", "\n") + AGAIN,
        )
    assert (
        outcome_text(run_attempt(tmp_path, "f.yaml", hooks + text, fakes, MemoryJournal()))
        == "done"
    )
    assert str(reported[-1]).endswith(" 3")


@pytest.mark.parametrize("model", ["", ", model: m"])
def test_the_model_of_a_response_is_known_though_no_step_names_one(
    tmp_path: Path, model: str
) -> None:
    fakes, reported = Services(tmp_path, chatty), list[Json]()
    fakes.tools["tell"] = lambda params: reported.append(params["x"])
    steps = f"steps: [{{prompt: {{prompt: hi{model}}}}}, {{prompt: {{prompt: talk, tools: [log]{model}}}}}]\n"
    text = hook("turn_finished", "${model} ${result.model}") + steps
    assert outcome_text(run_attempt(tmp_path, "f.yaml", text, fakes, MemoryJournal())) == "done"
    assert reported == [f"{'m' if model else 'm-1'} m-1"] * 4


@pytest.mark.parametrize("prompt", ["hi", "{prompt: hi}", "{prompt: talk, tools: [log]}"])
def test_the_end_of_a_prompt_knows_who_answered(tmp_path: Path, prompt: str) -> None:
    fakes, reported = Services(tmp_path, chatty), list[Json]()
    fakes.tools["tell"] = lambda params: reported.append(params["x"])
    text = hook("step_finished", "${model}") + f"steps: [{{prompt: {prompt}}}, {{tool: log}}]\n"
    assert outcome_text(run_attempt(tmp_path, "f.yaml", text, fakes, MemoryJournal())) == "done"
    assert reported[-1] is None, "a step that asks nobody"
    assert set(reported[:-1]) == {"m-1"}


def test_what_is_reported_of_the_run_of_a_directive_knows_the_model_that_its_file_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "d.md").write_text(
        "---\nmodel: m\nhooks: [{id: h, event: run_failed, verb: abort}]\n---\ntalk\n"
    )
    loaded = load_file(str(tmp_path / "d.md"), environ={})
    run = new_run(Services(tmp_path, chatty), loaded=loaded)
    assert isinstance(run.hooks, HookRunner)
    assert run.hooks.chain[-1].names["model"] == "m"
    run.events.close()


def test_a_node_that_is_reported_of_as_done_is_counted(tmp_path: Path) -> None:
    fakes, reported = Services(tmp_path, chatty), list[Json]()
    fakes.tools["tell"] = lambda params: reported.append(params["x"])
    graph = "start: a\nnodes: {a: {tool: log, next: b}, b: {tool: log}}\n"
    assert (
        outcome_text(
            run_attempt(
                tmp_path,
                "g.yaml",
                hook("after_step", "${node} ${steps}") + graph,
                fakes,
                MemoryJournal(),
            )
        )
        == "done"
    )
    assert reported == ["a 1", "b 2"]
