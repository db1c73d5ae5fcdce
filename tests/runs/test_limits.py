"""A limit ends its owner and nothing inside it; with a higher limit the run does the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agents.scripted import Says, Scripted, says, wants
from lang.loading import load_file
from plait.agents.messages import ModelRequest, ModelResponse, TokenUsage
from plait.core.values import Json
from plait.engine.events import EventRecord, Note
from plait.engine.hooks import HookRunner
from plait.engine.journal import MemoryJournal
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.program.actions.tool import make_tool_call
from plait.tools.call import ToolResult
from plait.views.progress import replay_events
from program.fakes import new_run
from runs.attempts import (
    CHILD,
    SUB,
    Services,
    failures,
    outcome_text,
    performed,
    run_attempt,
    steady,
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "sub.yaml").write_text(SUB)
    (tmp_path / "child.md").write_text(CHILD)
    return tmp_path


# ── no outcome of those inside ───────────────────────────────────────────


PARENT = "---\npermissions: ['*', 'directive:*']\nlimits: {%s}\n---\nparent\n"


@pytest.mark.parametrize(
    "limit", ["turns: 3", "turns: 6", "tokens: 60", "spend: 1", "steps: 2", "steps: 4"]
)
def test_a_limit_of_a_caller_that_a_child_reaches_is_no_end_of_the_child(
    top: Path, limit: str
) -> None:
    whole = Services(top, steady)
    assert (
        outcome_text(run_attempt(top, "p.md", PARENT % "turns: 99", whole, MemoryJournal()))
        == "done"
    )
    journal, fakes = MemoryJournal(), Services(top, steady)
    ended = run_attempt(top, "p.md", PARENT % limit, fakes, journal)
    assert isinstance(ended, Failed)
    assert ended.failure.kind == "limit"
    assert ended.failure.message.startswith("'p' has reached its limit of ")
    assert [path for path in failures(journal) if "turn:" not in path.rpartition("/")[2]] == [
        "agent"
    ]
    resumed = run_attempt(top, "p.md", PARENT % "turns: 99", fakes, journal)
    assert outcome_text(resumed) == "done"
    assert (fakes.questions, fakes.logged) == (whole.questions, whole.logged)


HIERARCHY = """\
workflow: hierarchical
limits: {turns: %d}
agents: {alpha: {role: alpha, tools: [log]}}
tasks: [{id: a, description: things, agent: alpha}]
"""


def managed(ask: ModelRequest) -> ModelResponse:
    results = sum(message.role == "tool" for message in ask.messages)
    if any(tool.name == "delegate" for tool in ask.tools):
        return (
            wants(("delegate", {"worker": "alpha", "task": "work"})) if results < 2 else says("end")
        )
    return wants(("log", {"x": results})) if results < 2 else says("worked")


def test_a_limit_that_a_worker_reaches_is_no_end_of_its_delegation(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, managed)
    assert outcome_text(run_attempt(top, "h.yaml", HIERARCHY % 3, fakes, journal)) == (
        "the run has reached its limit of 3 turns (3 used)"
    )
    assert failures(journal) == []
    further = run_attempt(top, "h.yaml", HIERARCHY % 6, fakes, journal)
    assert isinstance(further, Failed)
    assert further.failure.output["tasks"]["delegation-1"]["raw"] == "worked"
    assert outcome_text(run_attempt(top, "h.yaml", HIERARCHY % 60, fakes, journal)) == "done"
    assert (fakes.questions, fakes.logged) == (9, [0, 1, 0, 1])


FLOW = """\
limits: {steps: %d}
steps:
  - {tool: sub, continue_on_error: true, on_failure: [{tool: log, params: {x: handler}}]}
  - {tool: log, params: {x: after}}
"""


def test_no_handler_and_no_flow_goes_on_behind_a_limit_of_the_run(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, steady)
    assert outcome_text(run_attempt(top, "f.yaml", FLOW % 3, fakes, journal)) == (
        "the run has reached its limit of 3 steps (3 used)"
    )
    assert (fakes.logged, failures(journal)) == (["a", "b"], [])
    assert outcome_text(run_attempt(top, "f.yaml", FLOW % 99, fakes, journal)) == "done"
    assert fakes.logged == ["a", "b", "c", "after"]


def test_an_item_that_meets_a_limit_of_the_run_is_no_dead_letter(top: Path) -> None:
    flow = "limits: {steps: %d}\nmap: {input: [1, 2, 3], max_parallel: 1, steps: [{tool: sub}]}\n"
    journal, fakes = MemoryJournal(), Services(top, steady)
    assert outcome_text(run_attempt(top, "f.yaml", flow % 6, fakes, journal)).endswith(
        "its limit of 6 steps (6 used)"
    )
    done = run_attempt(top, "f.yaml", flow % 99, fakes, journal)
    assert isinstance(done, Succeeded)
    assert fakes.logged == ["a", "b", "c"] * 3
    assert failures(journal) == []


class Clock:
    """Tools take as long as they say; no time passes otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


LATE = ToolResult("log", False, None, "took too long", (), {"timed_out": True})
SLOW = """\
start: f
nodes:
  f: {tool: log, params: {x: f}, on_error: h, next: ok}
  h: {tool: log, params: {x: h}}
  ok: {tool: log, params: {x: ok}}
"""


def test_a_call_cut_off_by_the_time_of_the_run_follows_no_edge_of_errors(top: Path) -> None:
    clock = Clock()

    def slow(_: Json) -> Json:
        clock.now += 2
        return LATE

    journal = MemoryJournal()
    short = Budget(Limits(seconds=1), clock=clock)
    ended = run_attempt(top, "g.yaml", SLOW, Services(top, steady, slow), journal, short)
    assert (outcome_text(ended), failures(journal)) == (
        "the run has reached its limit of 1 second (2 used)",
        [],
    )
    fakes = Services(top, steady)
    assert outcome_text(run_attempt(top, "g.yaml", SLOW, fakes, journal, Budget())) == "done"
    assert fakes.logged == ["f", "ok"]


def test_a_call_cut_off_by_the_time_of_an_agent_is_made_again(top: Path) -> None:
    def slow(x: Json) -> Json:
        if x == 1:
            threading.Event().wait(0.3)  # longer than the agent may take
            return LATE
        return "logged"

    text = "---\npermissions: ['*']\nlimits: {seconds: %g}\n---\nchild\n"
    journal = MemoryJournal()
    ended = run_attempt(top, "a.md", text % 0.2, Services(top, steady, slow), journal)
    assert outcome_text(ended).startswith("'a' has reached its limit of 0.2 seconds")
    assert journal.step("agent/turn:2.call:1") is None
    fakes = Services(top, steady)
    assert outcome_text(run_attempt(top, "a.md", text % 60, fakes, journal)) == "done"
    assert fakes.logged == [1, 2]


def test_a_call_cut_off_by_a_deadline_around_its_agent_is_made_again(top: Path) -> None:
    """A timeout of a step is no limit, and the rule is the same."""

    def slow(x: Json) -> Json:
        if x == 1:
            threading.Event().wait(0.3)
            return LATE
        return "logged"

    flow = "steps: [{prompt: {prompt: child, tools: ['*']}, timeout: %g}]\n"
    journal = MemoryJournal()
    assert (
        outcome_text(run_attempt(top, "f.yaml", flow % 0.2, Services(top, steady, slow), journal))
        == "took longer than 0.2 s"
    )
    known = journal.step("steps/0/agent/turn:2.call:1")
    assert known is None or isinstance(known.outcome, Failed)
    fakes = Services(top, steady)
    assert outcome_text(run_attempt(top, "f.yaml", flow % 60, fakes, journal)) == "done"
    assert fakes.logged == [1, 2]


# ── taken before it is used ──────────────────────────────────────────────


def test_graphs_side_by_side_take_a_step_before_they_use_it(top: Path) -> None:
    gathered = threading.Barrier(6, timeout=0.5)

    def log(_: Json) -> Json:
        with suppress(threading.BrokenBarrierError):
            gathered.wait()  # all of them at once, as far as they may
        return "logged"

    graph = """\
limits: {steps: %d}
start: f
nodes: {f: {over: [1, 2, 3, 4, 5, 6], tool: sub, parallel: true, max_concurrency: 6}}
"""
    journal, fakes = MemoryJournal(), Services(top, steady, log)
    assert outcome_text(run_attempt(top, "g.yaml", graph % 5, fakes, journal)) == (
        "the run has reached its limit of 5 steps (5 used)"
    )
    assert len(fakes.logged) == 4, "the node, and four inside"
    assert outcome_text(run_attempt(top, "g.yaml", graph % 99, fakes, journal)) == "done"
    assert sorted(map(str, fakes.logged)) == sorted([*"abc"] * 6)


def test_a_graph_inside_a_graph_uses_no_more_steps_than_there_are(top: Path) -> None:
    graph = "limits: {steps: %d}\nstart: f\nnodes: {f: {tool: sub, next: g}, g: {tool: log, params: {x: g}}}\n"
    journal, fakes = MemoryJournal(), Services(top, steady)
    assert outcome_text(run_attempt(top, "g.yaml", graph % 3, fakes, journal)) == (
        "the run has reached its limit of 3 steps (3 used)"
    )
    assert fakes.logged == ["a", "b"]
    assert outcome_text(run_attempt(top, "g.yaml", graph % 5, fakes, journal)) == "done"
    assert fakes.logged == ["a", "b", "c", "g"]


CROWD = """\
workflow: parallel
max_parallel: 4
limits: {steps: 6}
agents: {w: {role: w, tools: [log]}}
tasks:
  - {id: a, description: a, agent: w}
  - {id: b, description: b, agent: w}
  - {id: c, description: c, agent: w}
  - {id: d, description: d, agent: w}
"""


def test_agents_side_by_side_take_a_step_before_they_call(top: Path) -> None:
    gathered = threading.Barrier(16, timeout=0.5)

    def log(_: Json) -> Json:
        with suppress(threading.BrokenBarrierError):
            gathered.wait()
        return "logged"

    def crowd(ask: ModelRequest) -> ModelResponse:
        return (
            says("done") if len(ask.messages) > 1 else wants(*(("log", {"x": n}) for n in range(4)))
        )

    fakes = Services(top, crowd, log)
    ended = run_attempt(top, "e.yaml", CROWD, fakes, MemoryJournal())
    assert outcome_text(ended) == "the run has reached its limit of 6 steps (6 used)"
    assert len(fakes.logged) <= 6


# ── answers that were cut off ────────────────────────────────────────────


def cut_at(turn: int, room: list[int]) -> Says:
    """A model whose answer to one question takes more tokens than `room` has."""

    def answer(ask: ModelRequest) -> ModelResponse:
        results = sum(message.role == "tool" for message in ask.messages)
        wanted = ask.options.get("max_tokens")
        room.append(wanted or 0)
        if results == turn and isinstance(wanted, int) and wanted < 1000:
            return says("half an ans", ending="length", usage=TokenUsage(10, wanted, cost=0.25))
        return steady(ask)

    return answer


@pytest.mark.parametrize(
    ("tight", "ample", "message"),
    [
        (
            "limits: {tokens: 500}",
            "limits: {tokens: 90000}",
            "'a' has reached its limit of 500 tokens (445 used): the model had no room left for its answer",
        ),
        (
            "options: {max_tokens: 70}",
            "options: {max_tokens: 7000}",
            "the model had no room left for its answer (70 tokens): raise options.max_tokens or limits.tokens",
        ),
    ],
)
def test_an_answer_that_was_cut_off_is_asked_for_again(
    top: Path, tight: str, ample: str, message: str
) -> None:
    text = "---\npermissions: ['*']\n%s\n---\nchild\n"
    rooms: list[int] = []
    journal, fakes = MemoryJournal(), Services(top, cut_at(2, rooms))
    ended = run_attempt(top, "a.md", text % tight, fakes, journal)
    assert isinstance(ended, Failed)
    assert outcome_text(ended) == message
    assert (fakes.questions, fakes.logged) == (3, [0, 1])
    resumed = run_attempt(top, "a.md", text % ample, fakes, journal)
    assert outcome_text(resumed) == "done"
    assert (fakes.questions, fakes.logged) == (5, [0, 1, 2]), (
        "nothing is asked or called twice but the cut one"
    )


def test_what_was_paid_for_an_answer_that_was_cut_off_counts(top: Path) -> None:
    text = "---\npermissions: ['*']\noptions: {max_tokens: %d}\nlimits: {turns: %d}\n---\nchild\n"
    journal, fakes = MemoryJournal(), Services(top, cut_at(2, []))
    assert isinstance(run_attempt(top, "a.md", text % (70, 9), fakes, journal), Failed)
    ended = run_attempt(top, "a.md", text % (7000, 4), fakes, journal)
    assert outcome_text(ended) == "'a' has reached its limit of 4 turns (4 used)"
    assert outcome_text(run_attempt(top, "a.md", text % (7000, 5), fakes, journal)) == "done"


def test_a_child_whose_answer_is_cut_off_by_a_limit_of_its_caller_has_not_failed(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, steady)

    def tight(ask: ModelRequest) -> ModelResponse:
        if ask.messages[0].text == "child" and ask.options["max_tokens"] < 1000:
            return says("half", ending="length", usage=TokenUsage(1, ask.options["max_tokens"]))
        return steady(ask)

    fakes.scripted = Scripted(tight)
    ended = run_attempt(top, "p.md", PARENT % "tokens: 700", fakes, journal)
    assert outcome_text(ended).startswith("'p' has reached its limit of 700 tokens")
    assert journal.step("agent/turn:1.call:1") is None
    assert (
        outcome_text(run_attempt(top, "p.md", PARENT % "tokens: 900000", fakes, journal)) == "done"
    )


@pytest.mark.parametrize("goes_on", ["false", "true"])
def test_a_plain_prompt_that_a_limit_of_the_run_cuts_off_is_asked_again(
    top: Path, goes_on: str
) -> None:
    def tight(ask: ModelRequest) -> ModelResponse:
        room = ask.options["max_tokens"]
        if room < 1000:
            return says("half", ending="length", usage=TokenUsage(1, room, cost=0.25))
        return says("whole")

    flow = (
        "limits: {tokens: %d}\n"
        f"steps: [{{prompt: hello, continue_on_error: {goes_on}}}, {{tool: log, params: {{x: after}}}}]\n"
    )
    journal, fakes = MemoryJournal(), Services(top, tight)
    assert outcome_text(run_attempt(top, "f.yaml", flow % 100, fakes, journal)).endswith(
        ": the model had no room left for its answer"
    )
    assert fakes.logged == []
    assert outcome_text(run_attempt(top, "f.yaml", flow % 90000, fakes, journal)) == "done"
    assert (fakes.questions, fakes.logged) == (2, ["after"])


@pytest.mark.parametrize("limit", ["tokens: 600", "spend: 0.6"])
@pytest.mark.parametrize("goes_on", ["false", "true"])
def test_what_was_paid_for_a_plain_prompt_that_was_cut_off_is_never_forgotten(
    top: Path, goes_on: str, limit: str
) -> None:
    def tight(ask: ModelRequest) -> ModelResponse:
        room = ask.options["max_tokens"]
        return says("half", ending="length", usage=TokenUsage(1, room, cost=0.6))

    flow = f"limits: {{{limit}}}\nsteps: [{{prompt: hello, continue_on_error: {goes_on}}}]\n"
    journal, fakes = MemoryJournal(), Priced(top, tight)
    for _ in range(3):
        ended = run_attempt(top, "f.yaml", flow, fakes, journal)
        assert isinstance(ended, Failed)
        assert ended.failure.kind == "limit"
    assert fakes.questions == 1


class Priced(Services):
    """Each token of an answer costs a hundredth."""

    def __init__(self, top: Path, model: Says) -> None:
        super().__init__(top, model)
        self.scripted.price = lambda _model, usage: usage.output / 100  # type: ignore[union-attr, method-assign]


# ── other ends from which a run goes on ──────────────────────────────────


def test_an_answer_that_fits_no_schema_is_asked_for_again(top: Path) -> None:
    flow = "steps: [{prompt: {prompt: say, schema: {type: object}, max_output_retries: 1}}]\n"
    answers = iter([says("one"), says("two"), says('{"n": 3}')])
    journal, fakes = MemoryJournal(), Services(top, lambda _: next(answers))
    assert outcome_text(run_attempt(top, "f.yaml", flow, fakes, journal)) == (
        "2 responses did not match the schema: it is not JSON"
    )
    assert isinstance(run_attempt(top, "f.yaml", flow, fakes, journal), Succeeded)
    assert fakes.questions == 3


def test_a_model_that_declined_is_asked_again(top: Path) -> None:
    answers = iter([says("no", ending="refused"), says("well then")])
    journal, fakes = MemoryJournal(), Services(top, lambda _: next(answers))
    assert (
        outcome_text(run_attempt(top, "a.md", CHILD, fakes, journal))
        == "the model declined to answer"
    )
    assert outcome_text(run_attempt(top, "a.md", CHILD, fakes, journal)) == "done"


def test_a_question_that_a_hook_skipped_is_asked_when_the_hook_is_gone(top: Path) -> None:
    hook = "hooks: [{id: no, event: turn_started, verb: skip, why: not now}]\n"
    text = "---\npermissions: ['*']\n%s---\nchild\n"
    journal, fakes = MemoryJournal(), Services(top, steady)
    ended = run_attempt(top, "a.md", text % hook, fakes, journal)
    assert outcome_text(ended) == "the model was not asked: the hook 'no' says skip: not now"
    assert outcome_text(run_attempt(top, "a.md", text % "", fakes, journal)) == "done"
    assert fakes.questions == 4


def test_a_delegation_that_a_hook_kept_from_being_made_uses_up_nothing(top: Path) -> None:
    text = (
        "hooks: [{id: no, event: tool_call, condition: {path: params.task, value: one}, verb: skip}]\n"
        + HIERARCHY.replace("agents:", "manager: {role: boss, max_delegations: 1}\nagents:") % 99
    )

    def boss(ask: ModelRequest) -> ModelResponse:
        results = [message.text for message in ask.messages if message.role == "tool"]
        if not any(tool.name == "delegate" for tool in ask.tools):
            return says("worked")
        tasks = ("one", "two", "three")
        if len(results) == len(tasks):
            return says(" | ".join(results))
        return wants(("delegate", {"worker": "alpha", "task": tasks[len(results)]}))

    done = run_attempt(top, "h.yaml", text, Services(top, boss), MemoryJournal())
    assert isinstance(done, Succeeded)
    assert done.value["output"].split(" | ") == [
        "refused: it was not called: the hook 'no' says skip",
        "worked",
        "refused: the limit of 1 delegations is reached",
    ]


def test_a_delegation_that_a_hook_keeps_back_leaves_its_place_to_one_of_the_same_turn(
    top: Path,
) -> None:
    text = (
        "hooks: [{id: no, event: tool_call, condition: {path: params.task, value: one},"
        " action: {tool: log, params: {x: gate}}}]\n"
        + HIERARCHY.replace("agents:", "manager: {role: boss, max_delegations: 1}\nagents:")
        % 99
    )
    others = threading.Event()

    def boss(ask: ModelRequest) -> ModelResponse:
        results = [message.text for message in ask.messages if message.role == "tool"]
        if not any(tool.name == "delegate" for tool in ask.tools):
            return says("worked")
        if results:
            return says(" | ".join(results))
        return wants(
            *(("delegate", {"worker": "alpha", "task": task}) for task in ("one", "two", "three"))
        )

    def gate(_: Json) -> Json:
        others.wait(0.2)  # the others come to their rulings meanwhile
        return {"verb": "skip"}

    done = run_attempt(top, "h.yaml", text, Services(top, boss, gate), MemoryJournal())
    assert isinstance(done, Succeeded)
    assert done.value["output"].split(" | ") == [
        "refused: it was not called: the hook 'no' says skip",
        "worked",
        "refused: the limit of 1 delegations is reached",
    ]


def test_a_tool_with_the_name_of_the_managers_own_is_not_offered(top: Path) -> None:
    text = HIERARCHY.replace("agents:", "manager: {role: boss, tools: [delegate]}\nagents:") % 99
    fakes = Services(top, lambda _: says("end"))
    fakes.tools["delegate"] = lambda _: "the other one"
    journal = MemoryJournal()
    assert outcome_text(run_attempt(top, "h.yaml", text, fakes, journal)) == "done"
    (ask,) = fakes.scripted.asks  # type: ignore[union-attr]
    assert [tool.name for tool in ask.tools] == ["delegate"]
    assert [one.event.message for one in journal.events() if isinstance(one.event, Note)] == [
        "the tool 'delegate' is not offered: 'boss' has one of that name"
    ]


def test_a_manager_without_the_work_that_is_required_is_asked_again(top: Path) -> None:
    text = HIERARCHY.replace("agents:", "manager: {role: boss, required: [alpha]}\nagents:") % 99
    lazy = [True]

    def boss(ask: ModelRequest) -> ModelResponse:
        return says("I am done") if lazy.pop() else managed(ask)

    journal, fakes = MemoryJournal(), Services(top, lambda ask: boss(ask) if lazy else managed(ask))
    assert (
        outcome_text(run_attempt(top, "h.yaml", text, fakes, journal))
        == "the manager ended without the work of 'alpha'"
    )
    assert outcome_text(run_attempt(top, "h.yaml", text, fakes, journal)) == "done"
    assert fakes.logged == [0, 1, 0, 1]


def test_responses_inside_a_replayed_call_count_in_views(top: Path) -> None:
    journal, fakes = MemoryJournal(), Services(top, steady)
    run_attempt(top, "p.md", PARENT % "turns: 5", fakes, journal)
    reported: list[EventRecord] = []
    run_attempt(top, "p.md", PARENT % "turns: 99", fakes, journal, watchers=[reported.append])
    assert replay_events(reported).usage.turns == fakes.questions == 11


# ── earlier run attempts ─────────────────────────────────────────────────

WIDE = """\
limits: {steps: %d}
map:
  input: [1, 2, 3, 4, 5, 6, 7, 8]
  max_parallel: 8
  steps: [{tool: log, params: {x: a}}, {tool: log, params: {x: b}}]
"""
MAP_OF_GRAPHS = """\
limits: {steps: %d}
start: e
nodes:
  e: {over: [1, 2, 3, 4, 5, 6, 7, 8], tool: sub, parallel: true, max_concurrency: 8}
"""


@pytest.mark.parametrize(("text", "first", "most"), [(WIDE, "a", 9), (MAP_OF_GRAPHS, "a", 10)])
def test_a_resumed_run_takes_no_more_steps_than_its_earlier_run_attempts_left(
    top: Path, text: str, first: str, most: int
) -> None:
    together = threading.Barrier(8)

    def log(x: Json) -> Json:
        if x == first:
            together.wait(30)  # all first steps are taken before a second one is
        return "logged"

    journal, fakes = MemoryJournal(), Services(top, steady, log)
    ended = run_attempt(top, "f.yaml", text % most, fakes, journal)
    assert outcome_text(ended).endswith(f"its limit of {most} steps ({most} used)")
    made = len(fakes.logged)
    for _ in range(3):
        again = Services(top, steady)
        assert outcome_text(
            run_attempt(top, "f.yaml", text % most, again, journal)
        ) == outcome_text(ended)
        assert again.logged == []
    more = Services(top, steady)
    assert outcome_text(run_attempt(top, "f.yaml", text % (most + 3), more, journal)).endswith(
        f"({most + 3} used)"
    )
    assert len(more.logged) == 3
    last = Services(top, steady)
    assert outcome_text(run_attempt(top, "f.yaml", text % 99, last, journal)) == "done"
    assert made + 3 + len(last.logged) == (16 if text is WIDE else 24)


def test_a_step_that_failed_and_is_done_again_in_a_later_run_attempt_is_one_step(top: Path) -> None:
    flow = "limits: {steps: 2}\nsteps: [{tool: log, params: {x: a}}, {tool: log, params: {x: b}}]\n"
    journal = MemoryJournal()
    failing = Services(top, steady, lambda x: ToolResult("log", x == "a", None, "no", (), {}))
    assert isinstance(run_attempt(top, "f.yaml", flow, failing, journal), Failed)
    fakes = Services(top, steady)
    assert (outcome_text(run_attempt(top, "f.yaml", flow, fakes, journal)), fakes.logged) == (
        "done",
        ["b"],
    )


RETRIED = """\
%ssteps:
  - {tool: log, params: {x: try}, retry: {attempts: 4, initial_delay: 0.001, backoff: fixed}, continue_on_error: true}
  - {tool: log, params: {x: after}}
"""


def test_no_attempt_begins_when_the_time_of_the_run_is_over_and_the_step_has_not_failed_by_that(
    top: Path,
) -> None:
    clock = Clock()

    def failing(_: Json) -> Json:
        clock.now += 2
        return ToolResult("log", False, None, "no", (), {})

    journal, fakes = MemoryJournal(), Services(top, steady, failing)
    short = Budget(Limits(seconds=1), clock=clock)
    ended = run_attempt(top, "f.yaml", RETRIED % "", fakes, journal, short)
    assert (outcome_text(ended), fakes.logged) == (
        "the run has reached its limit of 1 second (2 used)",
        ["try"],
    )
    assert failures(journal) == []
    fakes = Services(top, steady)
    assert (
        outcome_text(run_attempt(top, "f.yaml", RETRIED % "", fakes, journal, Budget())) == "done"
    )
    assert fakes.logged == ["try", "after"]


def test_a_pause_before_an_attempt_takes_no_longer_than_a_limit_lets(top: Path) -> None:
    fakes = Services(top, steady, lambda _: ToolResult("log", False, None, "no", (), {}))
    flow = RETRIED.replace("0.001", "3600") % "limits: {seconds: 0.1}\n"
    ended = run_attempt(top, "f.yaml", flow, fakes, MemoryJournal())
    assert outcome_text(ended).startswith("the run has reached its limit of 0.1 seconds (0.1")
    assert fakes.logged == ["try"]


# ── hooks that meet a limit ──────────────────────────────────────────────


def timed_run_attempt(
    top: Path, file: str, text: str, fakes: Services, journal: MemoryJournal, budget: Budget
) -> Outcome:
    """Perform one run attempt with the hooks of its file and a fake clock."""
    (top / file).write_text(text)
    loaded = load_file(str(top / file), environ={})
    names: Json = {"run": {"id": "r"}}
    hooks = HookRunner(loaded.program.hooks, call=make_tool_call, names=names, budget=budget)
    run = new_run(fakes, journal.reopen(), folder=str(top), hooks=hooks)
    return performed(loaded, run)


def late_hook(clock: Clock) -> Callable[[Json], Json]:
    """A tool that takes longer than there is time, if it is a hook that calls it."""

    def log(x: Json) -> Json:
        if x == "hook":
            clock.now += 2
            return LATE
        return "logged"

    return log


HOOKED = "hooks: [{id: h, event: %s, gate: true, action: {tool: log, params: {x: hook}}}]\n"
DEAD = "map: {input: [1, 2], max_parallel: 1, on_item_failure: dlq, steps: [{tool: log, params: {x: '${item}'}}]}\n"
TALK = "---\npermissions: [log]\nhooks: [{id: h, event: %s, gate: true, action: {tool: log, params: {x: hook}}}]\n---\nc\n"
GATED = [
    # file, text, how often each thing happens in a run that meets no limit
    ("g.yaml", HOOKED % "step_started" + SLOW, ["hook", "f", "hook", "ok"]),
    ("f.yaml", HOOKED % "item_started" + DEAD, ["hook", 1, "hook", 2]),
    ("c.md", TALK % "tool_call", ["hook", 0, "hook", 1, "hook", 2]),
    ("c.md", TALK % "turn_started", ["hook", 0, "hook", 1, "hook", 2, "hook"]),
]


@pytest.mark.parametrize(("file", "text", "made"), GATED)
def test_a_gate_that_meets_a_limit_of_the_run_decides_nothing(
    top: Path, file: str, text: str, made: list[Json]
) -> None:
    journal, clock = MemoryJournal(), Clock()
    short = Budget(Limits(seconds=1), clock=clock)
    ended = timed_run_attempt(
        top, file, text, Services(top, steady, late_hook(clock)), journal, short
    )
    assert (outcome_text(ended), failures(journal)) == (
        "the run has reached its limit of 1 second (2 used)",
        [],
    )
    fakes = Services(top, steady)
    assert outcome_text(timed_run_attempt(top, file, text, fakes, journal, Budget())) == "done"
    assert fakes.logged == made


HEARD = [
    ("g.yaml", HOOKED % "step_finished" + SLOW, ["hook", "ok", "hook"]),
    ("g.yaml", HOOKED % "after_step" + SLOW, ["hook", "ok", "hook"]),
    ("f.yaml", HOOKED % "item_finished" + DEAD, ["hook", 2, "hook"]),
    ("c.md", TALK % "tool_result", ["hook", 1, "hook", 2, "hook"]),
    ("c.md", TALK % "turn_finished", ["hook", 0, "hook", 1, "hook", 2, "hook"]),
]


@pytest.mark.parametrize(("file", "text", "made"), HEARD)
def test_a_hook_delayed_by_a_limit_fires_later_and_the_step_is_not_repeated(
    top: Path, file: str, text: str, made: list[Json]
) -> None:
    journal, clock = MemoryJournal(), Clock()
    short = Budget(Limits(seconds=1), clock=clock)
    first = Services(top, steady, late_hook(clock))
    ended = timed_run_attempt(top, file, text, first, journal, short)
    assert outcome_text(ended) == "the run has reached its limit of 1 second (2 used)"
    fakes = Services(top, steady)
    assert outcome_text(timed_run_attempt(top, file, text, fakes, journal, Budget())) == "done"
    assert fakes.logged == made
    asked = first.questions + fakes.questions
    assert asked == (4 if file == "c.md" else 0)
    third = Services(top, steady)
    assert outcome_text(timed_run_attempt(top, file, text, third, journal, Budget())) == "done"
    assert third.logged == []
