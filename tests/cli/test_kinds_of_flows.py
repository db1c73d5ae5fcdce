"""What a person sees of agents, graphs and ensembles: lines, pictures, what is shown and logged of their runs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from plait.cli import main
from plait.cli.scaffold import FLOWS
from plait.cli.schema import FORMATS
from plait.core.documents import parse
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import (
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ModelText,
    RunEnded,
    RunStarted,
    StepFinished,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.lang.languages import LANGUAGES, language_by_shape
from plait.schema import FILES
from plait.views.diagram.model import make_diagram
from plait.views.format import money
from plait.views.frame import frame
from plait.views.json_view import JsonView
from plait.views.log import log_entries, log_lines
from plait.views.progress import Progress, replay_events
from plait.views.report import AttemptCounts, Report, report_json, report_lines
from plait.views.summary import summary_lines
from plait.views.text import PlainView

Capsys = pytest.CaptureFixture[str]
Story = Sequence[tuple[float, Event]]


@dataclass(frozen=True, slots=True)
class Ended:
    run: str = "7f3a"
    status: str = "done"
    failure: Failure | None = None
    value: Json = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    has_seal: bool = True
    exit_code: int = 0


def opened(*phases: tuple[str, int]) -> Event:
    return RunStarted("7f3a", "review", "/p/review.md", "/p", False, phases)


def begun(path: str, kind: str, title: str, order: int = 0) -> Event:
    return StepStarted(path, kind, title, 1, order)


def over(path: str, kind: str, title: str, value: Json, order: int = 0, took: float = 1.0) -> Event:
    outcome: Outcome = value if isinstance(value, Failed) else Succeeded(value)
    usage = value.get("usage") if kind == "turn" and isinstance(value, dict) else None
    return StepFinished(path, kind, title, "f", outcome, took, order, used=usage and used(usage))


def used(usage: Mapping[str, Json]) -> dict[str, float]:
    """What an answer took, as it is recorded beside it."""
    return {"turns": 1, "tokens": usage["input"] + usage["output"], "spend": usage["cost"] or 0.0}


def answer(text: str, tokens: int, cost: float | None = None, **more: Json) -> Json:
    usage = {"input": tokens - 10, "output": 10, "cached": 0, "cost": cost, "calls": 1}
    return {"text": text, "uses": [], "usage": usage, "model": "m", **more}


READ = 'core/file/read {"path":"a.py"}'
AGENT: Story = [
    (0.0, opened(("agent", 0))),
    (0.0, begun("agent", "agent", "review")),
    (0.0, begun("agent/turn:1", "turn", "turn 1")),
    (4.0, over("agent/turn:1", "turn", "turn 1", answer("I look.", 4100, 0.02, asked={"user": "Look!"}), 0, 4.0)),
    (4.0, begun("agent/turn:1.call:1", "call", READ, 1)),
    (4.0, begun("agent/turn:1.call:2", "call", "core/file/write", 2)),
    (5.0, over("agent/turn:1.call:1", "call", READ, {"output": "x = 1", "failed": False, "tool": "r"}, 1)),
    (5.0, over("agent/turn:1.call:2", "call", "core/file/write",
               {"output": "refused: no", "failed": True, "tool": "w", "kind": "refused"}, 2, 0.0)),
    (5.0, begun("agent/turn:2", "turn", "turn 2", 3)),
    (6.0, ModelText("agent/turn:2", "First line\nIt is ")),
    (6.0, ModelText("agent/turn:2", "fine")),
]  # fmt: skip
AGENT_END: Story = [
    (8.0, over("agent/turn:2", "turn", "turn 2", answer("It is fine.", 900, 0.004), 3, 3.0)),
    (
        8.0,
        over("agent", "agent", "review", {"output": "It is fine.", "text": "It is fine."}, 0, 8.0),
    ),
    (8.0, RunEnded("done")),
]
GRAPH: Story = [
    (0.0, opened(("nodes", 0))),
    (0.0, begun("nodes", "graph", "triage")),
    (0.0, begun("nodes/look", "tool", "look")),
    (1.0, over("nodes/look", "tool", "look", {"assign": {"n": 3}, "next": "sort"})),
    (1.0, begun("nodes/sort", "gate", "sort", 1)),
    (1.0, over("nodes/sort", "gate", "sort", {"next": "draft"}, 1, 0.0)),
    (1.0, begun("nodes/hook:told", "hook", "told", 0)),
    (1.0, over("nodes/hook:told", "hook", "told", {}, 0, 0.0)),
    (1.0, begun("nodes/draft", "tool", "draft", 2)),
    (2.0, over("nodes/draft", "tool", "draft", Failed(Failure("exit code 2: no", "exit", 2)), 2)),
    (2.0, begun("nodes/sort@2", "gate", "sort@2", 3)),
    (2.0, over("nodes/sort@2", "gate", "sort@2", {"next": "done"}, 3, 0.0)),
    (2.0, over("nodes/done", "return", "done", {"output": {"n": 3}}, 4, 0.0)),
    (2.0, over("nodes", "graph", "triage", {"output": {"n": 3}, "state": {}, "steps": 5}, 0, 2.0)),
    (2.0, RunEnded("done")),
]
WRITTEN = {"raw": "Rain falls.", "data": None, "agent": "Writer", "usage": {"input": 100, "output": 20,
           "cached": 0, "cost": 0.5, "calls": 2}, "turns": 2, "duration": 2.0}  # fmt: skip
GIVEN = {"raw": "facts", "data": None, "agent": "", "usage": {"input": 0, "output": 0, "calls": 0},
         "duration": 1.0}  # fmt: skip
ENSEMBLE: Story = [
    (0.0, opened(("tasks", 3))),
    (0.0, begun("tasks", "ensemble", "report")),
    (0.0, begun("tasks/task:facts", "task", "facts")),
    (1.0, over("tasks/task:facts", "task", "facts", GIVEN)),
    (1.0, begun("tasks/task:text", "agent", "text", 1)),
    (1.0, begun("tasks/task:text/turn:1", "turn", "turn 1")),
    (2.0, over("tasks/task:text/turn:1", "turn", "turn 1", answer("a", 50))),
    (2.0, begun("tasks/task:text/turn:1.call:1", "call", READ, 1)),
]
ENSEMBLE_END: Story = [
    (3.0, over("tasks/task:text/turn:1.call:1", "call", READ, {"output": "", "failed": True, "kind": "exit"}, 1)),
    (4.0, over("tasks/task:text", "agent", "text", WRITTEN, 1, 3.0)),
    (4.0, over("tasks/loop:edit", "loop", "edit", {"tasks": {"polish": WRITTEN}, "iterations": 2}, 2, 3.0)),
    (4.0, over("tasks", "ensemble", "report", {"output": "Rain falls."}, 0, 4.0)),
    (4.0, RunEnded("done")),
]  # fmt: skip


def stamped(story: Story) -> list[EventRecord]:
    return [EventRecord(number, at, event) for number, (at, event) in enumerate(story, 1)]


def journal_of(story: Story) -> MemoryJournal:
    journal = MemoryJournal()
    for _, event in story:
        if not isinstance(event, ModelText):
            journal.append(event)
    return journal


def plain(story: Story, result: Ended | None = None) -> list[str]:
    stream = io.StringIO()
    with PlainView(stream) as view:
        for one in stamped(story):
            view.watch(one)
    if result is not None:
        view.finish(result)  # type: ignore[arg-type]
    return stream.getvalue().splitlines()


def drawn(story: Story, now: float, width: int = 80) -> list[str]:
    return [
        line.plain.rstrip()
        for line in frame(replay_events(stamped(story)), now=now, width=width, height=30)
    ]


def shown(story: Story) -> list[str]:
    journal = journal_of(story)
    progress, tries = Progress(), AttemptCounts()
    for one in stamped(story):
        progress.add(one)
        tries.add(one.event)
    report = Report("7f3a", progress.status, progress, journal, tries)
    return [text for text, _ in report_lines(report, now=9.0)]


def logged(story: Story) -> list[str]:
    return [text for text, _ in log_lines(log_entries(stamped(story), None))]


# ── plain lines ──────────────────────────────────────────────────────────


def test_an_agent_in_plain_lines_is_one_line_for_each_turn_and_call() -> None:
    assert plain([*AGENT, *AGENT_END], Ended(value={"output": "It is fine."})) == [
        "review: run 7f3a, /p/review.md",
        "agent: started",
        "agent: turn 1: done, 4.0 s, 4.1k tokens, $0.02",
        f"agent: {READ}: done, 1.0 s",
        "agent: core/file/write: refused, 0.0 s",
        "agent: turn 2: done, 3.0 s, 900 tokens, $0.004",
        "agent: done, 2 turns, 5.0k tokens, $0.02, 8.0 s",
        "✓ finished in 8.0 s   2 turns, 5.0k tokens, $0.02",
        "  It is fine.",
        "  look at it   plait show 7f3a   plait logs 7f3a",
    ]


def test_a_graph_in_plain_lines_is_node_after_node_with_the_edge_that_was_taken() -> None:
    lines = plain(GRAPH, Ended(value={"output": {"n": 3}}))
    assert lines[1:] == [
        "nodes: started",
        "nodes: look: started",
        "nodes: look: done, 1.0 s → sort",
        "nodes: sort: done, 0.0 s → draft",
        "nodes: draft: started",
        "✗ draft   exit 2  no",
        "nodes: draft: failed (exit 2), 1.0 s",
        "nodes: sort@2: done, 0.0 s → done",
        "nodes: done: done, 0.0 s",
        "nodes: finished, 5 visits, 1 failed, 2.0 s",
        "! finished in 2.0 s   5 visits, 1 failed and the run went on",
        '  {"n":3}',
        "  ✗ draft   exit 2",
        "      no",
        "  look at it   plait logs 7f3a draft",
    ]


def test_an_ensemble_in_plain_lines_is_its_tasks_and_what_their_agents_do() -> None:
    assert plain([*ENSEMBLE, *ENSEMBLE_END])[1:] == [
        "tasks: started",
        "tasks: facts: started",
        "tasks: facts: done, 1.0 s",
        "tasks: text: started",
        "tasks: text: turn 1: done, 1.0 s, 50 tokens",
        f"tasks: text: {READ}: failed (exit), 1.0 s",
        "tasks: text: done, 3.0 s, 1 turn, 50 tokens",
        "tasks: edit: done, 3.0 s",
        "tasks: done, 3 tasks, 4.0 s",
    ]


def test_the_turns_of_many_items_are_counted_and_not_reported() -> None:
    story: Story = [
        (0.0, opened(("map", 1))),
        (0.0, begun("map", "map", "map")),
        (0.0, ItemsCounted("map", 1)),
        (0.0, begun("map/item:a", "item", "a")),
        (0.0, begun("map/item:a/0", "prompt", "ask")),
        (0.0, begun("map/item:a/0/agent", "agent", "ask")),
        (1.0, over("map/item:a/0/agent/turn:1", "turn", "turn 1", answer("x", 90))),
    ]
    progress = replay_events(stamped(story))
    assert progress.usage.record() == {"turns": 1, "tokens": 90, "cost": 0.0}
    assert not any("turn" in line for line in plain(story))


def test_what_is_recorded_as_used_counts_and_not_what_a_value_says() -> None:
    usage = {"input": 5, "output": 2, "cost": 0.25}
    failure = Failure("it broke off", "network")
    end = over("steps/0", "prompt", "ask", {"output": "x", "facts": {"usage": usage}})
    assert isinstance(end, StepFinished)
    story: Story = [
        (0.0, opened(("steps", 2))),
        (0.0, begun("steps", "phase", "steps")),
        (0.5, StepRetrying("steps/0", 1, failure, 0.1, used={"turns": 1, "tokens": 3})),
        (1.0, replace(end, used=used(usage))),
        (
            2.0,
            over(
                "steps/1",
                "prompt",
                "ask",
                {"output": "x", "facts": {"usage": usage, "turns": 3}},
                1,
            ),
        ),
    ]
    progress = replay_events(stamped(story))
    assert progress.usage.record() == {"turns": 2, "tokens": 10, "cost": 0.25}
    assert progress.parts["steps"].usage.turns == 2


def test_the_usage_of_earlier_run_attempts_is_printed_once_and_replayed_steps_add_nothing() -> None:
    end = over("agent/turn:1", "turn", "turn 1", answer("x", 90))
    assert isinstance(end, StepFinished)
    story: Story = [
        (0.0, RunStarted("7f3a", "review", "/p/review.md", "/p", True, (("agent", 0),))),
        (0.0, EarlierUsage({"agent": {"turns": 3, "tokens": 30, "spend": 0.5, "steps": 9}})),
        (0.0, begun("agent", "agent", "review")),
        (1.0, replace(end, replayed=True)),
        (2.0, replace(end, path="agent/turn:2")),
    ]
    progress = replay_events(stamped(story))
    assert progress.usage.record() == {"turns": 4, "tokens": 120, "cost": 0.5}
    assert progress.parts["agent"].usage.turns == 4


# ── events as JSON ───────────────────────────────────────────────────────


def test_the_last_object_says_what_models_took() -> None:
    stream = io.StringIO()
    with JsonView(stream) as view:
        for one in stamped([*AGENT, *AGENT_END]):
            view.watch(one)
    view.finish(Ended())  # type: ignore[arg-type]
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert records[-1]["usage"] == {"turns": 2, "tokens": 5000, "cost": 0.024}
    refused = next(
        one for one in records if one.get("path") == "agent/turn:1.call:2" and "value" in one
    )
    assert (refused["value"]["failed"], refused["value"]["kind"]) == (True, "refused")


# ── pictures ─────────────────────────────────────────────────────────────


def test_the_picture_of_an_agent() -> None:
    assert drawn(AGENT, 7.0, 60) == [
        "● review  run 7f3a                                    7.0 s",
        "  ● agent  turn 2, 4.1k tokens, $0.02                 7.0 s",
        "    ✓ turn 1   4.1k tokens, $0.02                     4.0 s",
        f"    ✓ {READ}                  1.0 s",
        "    ✗ core/file/write   refused                       0.0 s",
        "      turn 2   It is fine                             2.0 s",
    ]


MONEY = [(0.0, "$0.00"), (1.239, "$1.24"), (0.01, "$0.01"), (0.0068, "$0.0068"), (6e-05, "$0.00006"),
         (0.00061349, "$0.00061"), (0.000001, "$0.000001"), (3e-09, "<$0.000001")]  # fmt: skip


@pytest.mark.parametrize(("cost", "text"), MONEY)
def test_money_is_printed_without_powers_of_ten(cost: float, text: str) -> None:
    assert money(cost) == text


def test_an_agent_with_a_schema_gives_its_data_and_not_what_was_around_it() -> None:
    value: Json = {"output": {"a": 1}, "text": '```json\n{"a": 1}\n```', "data": {"a": 1}}
    assert plain([*AGENT, *AGENT_END], Ended(value=value))[-2] == '  {"a":1}'


def test_estimated_tokens_are_marked_as_estimates() -> None:
    used = {"turns": 1, "tokens": 4100, "estimated": 100}
    response = answer("I look.", 4100)
    response["usage"]["estimated"] = 100
    turn = StepFinished("agent/turn:1", "turn", "turn 1", "f", Succeeded(response), 4.0, used=used)
    story = [*AGENT[:3], (4.0, turn), *AGENT_END[1:]]
    assert [line for line in plain(story, Ended()) if "tokens" in line] == [
        "agent: turn 1: done, 4.0 s, about 4.1k tokens",
        "agent: done, 1 turn, about 4.1k tokens, 8.0 s",
        "✓ finished in 8.0 s   1 turn, about 4.1k tokens",
    ]
    assert logged(story)[0] == "── agent/turn:1   review › turn 1   about 4.1k tokens   4.0 s"
    assert [line.split() for line in shown(story) if "turn 1" in line] == [
        ["turn", "1", "~4.1k", "~10", "—", "4.0", "s"]
    ]
    assert replay_events(stamped(story)).usage.record() == {
        "turns": 1,
        "tokens": 4100,
        "cost": 0.0,
        "estimated": 100,
    }


def test_the_picture_of_an_ensemble_shows_its_tasks_with_their_state() -> None:
    assert drawn(ENSEMBLE, 3.0, 80) == [
        "● review  run 7f3a                                                        3.0 s",
        "  ● tasks  1 of 3 tasks   1 turn, 50 tokens                               3.0 s",
        "    ✓ facts                                                               1.0 s",
        f"      text   agent  turn 1, 50 tokens   {READ}    2.0 s",
    ]


def test_the_picture_of_a_graph_shows_the_way() -> None:
    assert [line.split() for line in drawn(GRAPH, 2.0)][2:] == [
        ["✓", "look", "→", "sort", "1.0", "s"],
        ["✓", "sort", "→", "draft", "0.0", "s"],
        ["✗", "draft", "failed", "(exit", "2)", "1.0", "s"],
        ["✓", "sort@2", "→", "done", "0.0", "s"],
        ["✓", "done", "0.0", "s"],
    ]


@pytest.mark.parametrize("height", range(1, 9))
def test_a_low_terminal_shows_the_newest(height: int) -> None:
    lines = frame(replay_events(stamped(AGENT)), now=7.0, width=60, height=height)
    assert len(lines) <= height
    assert height < 3 or lines[-1].plain.split()[:2] == ["turn", "2"]


# ── show ─────────────────────────────────────────────────────────────────


def test_show_has_a_table_of_turns_calls_and_cost() -> None:
    assert shown([*AGENT, *AGENT_END])[2:] == [
        "  ✓ agent   done, 2 turns, 5.0k tokens, $0.02, 8.0 s",
        "      TURN                                 IN     OUT   COST     TIME",
        "      turn 1                               4.1k   10    $0.02    4.0 s",
        f"        ✓ {READ}                         1.0 s",
        "        ✗ core/file/write   refused                              0.0 s",
        "      turn 2                               890    10    $0.004   3.0 s",
        "      2 turns, 5.0k tokens, $0.02, 2 calls",
    ]


REFUSED = "the provider 'p' answered 400 Bad Request, and says \"too long\""
NOT_ANSWERED: Story = [
    *AGENT[:-2],
    (8.0, over("agent/turn:2", "turn", "turn 2",
               Failed(Failure(REFUSED, "refused", output={"said": "too long", "status": 400}, path="agent/turn:2")), 3, 3.0)),
    (8.0, over("agent", "agent", "review", Failed(Failure(REFUSED, "refused", path="agent/turn:2")), 0, 8.0)),
    (8.0, RunEnded("failed", Failure(REFUSED, "refused", path="agent/turn:2"))),
]  # fmt: skip


def test_show_says_why_a_model_did_not_answer() -> None:
    assert shown(NOT_ANSWERED)[6:] == [
        "        ✗ core/file/write   refused                             0.0 s",
        "      turn 2   refused                     —      —     —       3.0 s",
        f"          {REFUSED}",
        "      1 turn, 4.1k tokens, $0.02, 2 calls",
        "  look at it   plait logs 7f3a 'turn 2'",
        "  resume       plait resume 7f3a",
    ]


def test_show_has_the_way_through_a_graph() -> None:
    assert shown(GRAPH)[2:] == [
        "  ! nodes   finished, 5 visits, 1 failed, 2.0 s",
        "      ✓ look → sort   1.0 s",
        "      ✓ sort → draft   0.0 s",
        "      ✗ draft   failed (exit 2)   1.0 s",
        "          no",
        "      ✓ sort@2 → done   0.0 s",
        "      ✓ done   0.0 s",
        "  look at it   plait logs 7f3a draft",
    ]


def test_show_has_a_table_of_tasks() -> None:
    assert shown([*ENSEMBLE, *ENSEMBLE_END])[3:] == [
        "      TASK         STATE            BY       TURNS   TOKENS   COST    TIME",
        "      ✓ facts      done             —        —       —        —       1.0 s",
        "      ✓ text       done             Writer   2       120      $0.50   3.0 s",
        "      ✓ edit       done, 2 rounds   —        —       —        —       3.0 s",
        "          polish                    Writer   2       120      $0.50   2.0 s",
        "  usage   1 turn, 50 tokens",
    ]


def test_a_map_over_an_agent_shows_how_often_it_was_asked() -> None:
    mapped = {"output": ["a", "b"], "usage": {"input": 100, "output": 20, "cost": 0.5, "calls": 12}}
    end = (4.0, over("tasks/map:say", "map", "say", mapped, 2, 3.0))
    [row] = [
        line
        for line in shown([*ENSEMBLE, *ENSEMBLE_END[:-2], end, *ENSEMBLE_END[-2:]])
        if "say" in line
    ]
    assert row.split()[:5] == ["✓", "say", "done", "—", "12"]


def test_show_for_programs_says_the_same() -> None:
    tries = AttemptCounts()
    progress = replay_events(stamped(GRAPH))
    record = report_json(Report("7f3a", "done", progress, journal_of(GRAPH), tries), now=0.0)
    steps = record["phases"][0]["steps"]
    assert [step.get("next") for step in steps if "hook" not in step["path"]] == [
        "sort", "draft", None, "done", None,
    ]  # fmt: skip
    progress = replay_events(stamped(AGENT))
    record = report_json(Report("7f3a", "done", progress, journal_of(AGENT), tries), now=0.0)
    assert record["usage"] == {"turns": 1, "tokens": 4100, "cost": 0.02}
    called = record["phases"][0]["steps"][2]
    assert (called["failed"], called["kind"]) == (True, "refused")


# ── logs ─────────────────────────────────────────────────────────────────


def test_logs_of_an_agent_show_its_session() -> None:
    assert logged([*AGENT, *AGENT_END]) == [
        "── agent/turn:1   review › turn 1   4.1k tokens, $0.02   4.0 s",
        "user:",
        "  Look!",
        "model:",
        "  I look.",
        f"── agent/turn:1.call:1   review › {READ}   done   1.0 s",
        "x = 1",
        "── agent/turn:1.call:2   review › core/file/write   refused   0.0 s",
        "refused: no",
        "── agent/turn:2   review › turn 2   900 tokens, $0.004   3.0 s",
        "It is fine.",
    ]


IN_VAIN = [
    # what is kept of a question without an answer          what is logged of it
    ({"said": "too long", "status": 400},                   ["too long", "no use"]),
    ({"text": "half an ans", "usage": {}, "model": "m"},    ["half an ans", "no use"]),
    ({"text": "no JSON", "uses": [], "ending": "end"},      ["no JSON", "no use"]),
    ({"asked": {"user": "Look!"}, "text": "no JSON"},       ["user:", "  Look!", "model:", "  no JSON", "no use"]),
    ({"output": "said", "exit_code": 1, "stderr": "no use"},  ["said", "no use"]),
    (None,                                                  ["no use"]),
]  # fmt: skip


@pytest.mark.parametrize(("kept", "words"), IN_VAIN)
def test_logs_say_why_a_model_did_not_answer_and_what_came_of_it(
    kept: Json, words: list[str]
) -> None:
    failed = Failed(Failure("no use", "bad_answer", output=kept, path="agent/turn:1"))
    [head, *rest] = logged([*AGENT[:3], (4.0, over("agent/turn:1", "turn", "turn 1", failed))])
    assert (head, rest) == ("── agent/turn:1   review › turn 1   bad_answer   1.0 s", words)


def test_logs_of_a_graph_are_what_its_nodes_assigned_and_gave() -> None:
    assert logged(GRAPH) == [
        "── nodes/look   triage › look   done → sort   1.0 s",
        "n = 3",
        "── nodes/draft   triage › draft   exit 2   1.0 s",
        "exit code 2: no",
        "── nodes/done   triage › done   done   0.0 s",
        '{"n":3}',
    ]


def test_logs_of_an_ensemble_have_what_its_tools_gave() -> None:
    assert logged(ENSEMBLE[:4]) == ["── tasks/task:facts   report › facts   done   1.0 s", "facts"]


# ── as a user ────────────────────────────────────────────────────────────


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = home.parent / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("PLAIT_PROVIDER", "PLAIT_REPLAY"):
        monkeypatch.delenv(name, raising=False)
    return here


MADE = [
    # kind         the flow       what its run gives at the end
    ("workflow",   "hello.yaml",  "  Hello on"),
    ("graph",      "hello.yaml",  "  Hello, Ada!"),
    ("directive",  "hello.md",    "  The tool answered: Hello, Ada!"),
    ("ensemble",   "hello.yaml",  "  Hello, Ada! Come in and take a seat by the window."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "flow", "given"), MADE)
@pytest.mark.usefixtures("here")
def test_what_init_makes_of_each_kind_runs_and_has_no_problems(
    kind: str, flow: str, given: str, capsys: Capsys
) -> None:
    assert main(["init", "--kind", kind]) == 0
    capsys.readouterr()
    assert main(["run", flow]) == 0
    assert f"\n{given}" in capsys.readouterr().out
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out.startswith("no problems in ")
    assert main(["run", flow, "--dry-run"]) == 0
    assert main(["show"]) == 0
    assert main(["logs"]) == 0


@pytest.mark.parametrize("kind", [kind for kind, flow, _ in MADE if flow.endswith(".yaml")])
def test_an_editor_finds_the_schema_that_the_first_line_names(
    kind: str, here: Path, capsys: Capsys
) -> None:
    assert main(["init", "--kind", kind]) == 0
    first, schema = (here / "hello.yaml").read_text().split("\n")[0].split("$schema=")
    assert first == "# yaml-language-server: "
    capsys.readouterr()
    assert main(["schema", kind, "--compact"]) == 0
    assert json.loads((here / schema).read_text()) == json.loads(capsys.readouterr().out)


def test_init_names_the_kinds_that_it_knows(here: Path, capsys: Capsys) -> None:
    assert main(["init", "--kind", "grpah", "x"]) == 2
    assert capsys.readouterr().err == (
        "there is no kind 'grpah'\nfix: did you mean 'graph'? kinds: workflow, graph, directive, ensemble\n"
    )
    assert not (here / "x").exists()


LOOKS = (
    "fix: a workflow has steps:, or setup:, map: and reduce:; a graph has start: and nodes:; "
    "an ensemble has tasks:; a directive is a Markdown file\n"
)
NO_FLOWS = [
    # what the file holds                  what plait run says of it
    ("a: 1\n",                             f"{{file}}: this file is not a flow\n{LOOKS}"),
    ("just text\n",                        f"{{file}}: this file is not a flow\n{LOOKS}"),
    ("",                                   "{file}: this file is empty, not a flow\n"
                                           "fix: plait new workflow NAME writes a flow that runs\n"),
    ("executor_id: core/x\nconfig: {}\n",  "{file}: this file is a tool, not a flow\n"
                                           "fix: plait call ID calls a tool; plait tools lists them\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), NO_FLOWS)
def test_a_file_that_is_no_flow_says_what_flows_look_like(
    text: str, message: str, here: Path, capsys: Capsys
) -> None:
    (here / "x.yaml").write_text(text)
    assert main(["run", "x.yaml"]) == 2
    assert capsys.readouterr() == ("", message.format(file=here / "x.yaml"))


NEARLY = [
    # what the file holds          is taken for    the guess
    ("stpes: [{shell: ls}]\n",     "a flow",       "steps"),
    ("start: a\nnode: {a: {}}\n",  "a graph",      "nodes"),
    ("agents: {}\ntaks: []\n",     "an ensemble",  "tasks"),
]  # fmt: skip


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(("text", "what", "guess"), NEARLY)
def test_a_slip_of_the_pen_is_seen_as_the_kind_that_was_meant(
    command: str, text: str, what: str, guess: str, here: Path, capsys: Capsys
) -> None:
    (here / "x.yaml").write_text(text)
    assert main([command, "x.yaml"]) == 2
    printed = "".join(capsys.readouterr())
    assert f"is not a field of {what}\n" in printed
    assert f"fix: did you mean '{guess}'?" in printed


def test_check_knows_files_by_their_place_and_says_all_at_once(here: Path, capsys: Capsys) -> None:
    files = {
        ".ai/config/hooks.yaml": "hooks: [{id: a, event: run_finshed, action: {tool: hello}}]\n",
        ".ai/config/providers/mine.yaml": "extends: openai\nmodls: {}\nbase_url: 'https://{model}.org'\n",
        ".ai/directives/x.md": "---\nlimts: {}\n---\nHi\n",
        ".ai/plait.yaml": "trsut: signed\n",
        "README.md": "# Nothing of ours\n",
        "post.md": "---\ntitle: not ours\n---\nHi {input:x\n",
        "ask.md": "---\npermissions: [x]\nmodle: m\n---\nHi\n",
        "talk.yaml": "- answer: {text: '${not.a.template}'}\n",
    }
    for name, text in files.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert main(["check", ".", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    found = [(one["where"]["file"], one["what"][:24]) for one in report["problems"]]
    assert found == [
        ("./.ai/config/hooks.yaml", "'event' must be one of r"),
        ("./.ai/config/hooks.yaml", "there is no tool 'hello'"),
        ("./.ai/config/providers/mine.yaml", "'modls' is not a field o"),
        ("./.ai/config/providers/mine.yaml", "'{name}' cannot stand he"),
        ("./.ai/directives/x.md", "'limts' is not a field o"),
        ("./.ai/plait.yaml", "'trsut' is no setting of"),
        ("./ask.md", "'modle' is not a field o"),
    ]
    assert report["files"] == 6


MISSPELT = [
    # file                              what it holds                                          what is found
    (".ai/config/providers/mine.yaml",  "extends: opneai\n",                                   "there is no provider 'opneai'"),
    (".ai/config/providers/mine.yaml",  "extends: mine\n",                                     "the provider 'mine' extends itself"),
    (".ai/config/providers/mine.yaml",  "extends: other\n",                                    "there is no provider 'other'"),
    (".ai/tools/a.py",                  '__exectuor_id__ = "core/runtimes/python/script"\n',   "'__exectuor_id__' is not a key of a header"),
    (".ai/tools/a.py",                  '__EXECUTOR_ID__ = "core/runtimes/python/script"\n',   "'__EXECUTOR_ID__' is not a key of a header"),
    (".ai/tools/a.py",                  '_executor_id_ = "core/runtimes/python/script"\n',     "'_executor_id_' is not a key of a header"),
    (".ai/tools/a.py",                  'executor_id = "core/runtimes/python/script"\n',       "'executor_id' is not a key of a header"),
    (".ai/tools/a.mjs",                 'const executor_id = "core/runtimes/node/node";\n',    "'executor_id' is not a key of a header"),
    (".ai/tools/a.sh",                  "#!/bin/bash\n# exeuctor_id: core/runtimes/bash/bash\n", "'exeuctor_id' is not a key of a header"),
]  # fmt: skip


@pytest.mark.parametrize("named", ["file", "folder"])
@pytest.mark.parametrize(("file", "text", "what"), MISSPELT)
def test_check_finds_a_misspelt_name_of_what_runs_a_tool_or_is_extended(
    file: str, text: str, what: str, named: str, here: Path, capsys: Capsys
) -> None:
    (here / file).parent.mkdir(parents=True, exist_ok=True)
    (here / file).write_text(text)
    assert main(["check", file if named == "file" else ".", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert [problem["what"] for problem in report["problems"]] == [what]


def test_check_finds_a_misspelt_runtime_of_a_tool_in_any_folder(here: Path, capsys: Capsys) -> None:
    (here / "a.py").write_text('__executor_id__ = "core/runtimes/python/functon"\n')
    assert main(["check", "a.py", "--kind", "tool"]) == 2
    assert capsys.readouterr().out == (
        f"{here}/a.py: 'a' is executed by 'core/runtimes/python/functon', which does not exist in "
        "the project space or below\n"
        "fix: did you mean 'core/runtimes/python/function'?\n1 problem in 1 file\n"
    )


BESIDE_TOOLS = [
    (".ai/tools/b.py",                  "executor = 1\nversion = '2'\n__all__ = ()\n"),
    (".ai/tools/b.sh",                  "# executed by: a.sh\n# executors: two\n"),
    (".ai/config/providers/mine.yaml",  "extends: openai\n"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "text"), BESIDE_TOOLS)
def test_check_leaves_other_names_alone(file: str, text: str, here: Path, capsys: Capsys) -> None:
    (here / file).parent.mkdir(parents=True, exist_ok=True)
    (here / file).write_text(text)
    (here / "flow.yaml").write_text("steps: [{shell: ls}]\n")
    assert main(["check", "."]) == 0, capsys.readouterr().out


KINDS = [
    # kind         a file that is none                the message
    ("workflow",   "name: x\n",                       "this file does not look like a workflow"),
    ("graph",      "start: a\n",                      "a graph needs one of nodes, config"),
    ("ensemble",   "name: x\n",                       "an ensemble needs 'tasks'"),
    ("hooks",      "hooks: [{event: nothing}]\n",     "'event' must be one of"),
    ("provider",   "family: smalltalk\n",             "'family' must be one of"),
    ("directive",  "---\nlimts: 1\n---\nHi\n",        "'limts' is not a field of a directive"),
]  # fmt: skip


def test_every_language_has_a_row_in_each_table() -> None:
    languages = set(LANGUAGES)
    assert set(FLOWS) == languages
    assert {kind for kind, *_ in MADE} == languages
    assert {kind for kind, *_ in KINDS} >= languages
    assert tuple(FILES) == FORMATS
    assert len({language.profile for language in LANGUAGES.values()}) == len(languages)


@pytest.mark.parametrize("kind", [kind for kind, flow, _ in MADE if flow.endswith(".yaml")])
def test_a_flow_is_known_by_its_shape_and_its_diagram_has_nodes(kind: str) -> None:
    document = parse(next(iter(FLOWS[kind].values())), "hello.yaml")
    assert language_by_shape(document) == LANGUAGES[kind]
    assert make_diagram(document, "hello").nodes


@pytest.mark.parametrize(("kind", "text", "message"), KINDS)
def test_check_holds_a_file_against_the_kind_that_is_named(
    kind: str, text: str, message: str, here: Path, capsys: Capsys
) -> None:
    (here / "x.yaml").write_text(text)
    assert main(["check", "x.yaml", "--kind", kind]) == 2
    assert message in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_dry_run_shows_what_can_be_known_of_each_kind(here: Path, capsys: Capsys) -> None:
    assert main(["init", "--kind", "ensemble"]) == 0
    (here / "graph.yaml").write_text(
        "start: a\ninputs: {who: string}\nnodes:\n"
        "  a: {tool: hello, params: {name: '${inputs.who}'}, next: [{to: b, when: '${result.ok}'}, {to: c}]}\n"
        "  b: {type: return}\n  c: {over: [1], tool: hello, params: {name: '${item}'}}\n"
    )
    (here / "ask.md").write_text(
        "---\ninputs: {who: string}\npermissions: [hello]\n---\nGreet {input:who}.\n"
    )
    capsys.readouterr()
    assert main(["run", "graph.yaml", "-i", "who=${Bob}", "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        'nodes/a   tool   hello {"name":"${Bob}"} → b if ${result.ok}, c\n'
        "nodes/b   return   return\n"
        "nodes/c   foreach   for each item: hello ${item}\n"
    )
    assert main(["run", "ask.md", "-i", "who={input:x}", "--dry-run"]) == 0
    assert capsys.readouterr().out == "agent   agent   Greet {input:x}.\nagent   tools   hello\n"
    assert main(["run", "hello.yaml", "-i", "name=Bob", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert 'tasks/task:greeting   tool   hello {"name":"Bob"}\n    Greet Bob\n' in printed
    assert "Welcome Bob warmly" in printed
    assert "(what 'greeting' gives)" in printed


def test_secrets_are_masked_in_everything_that_is_shown(here: Path, capsys: Capsys) -> None:
    assert main(["init", "--kind", "graph"]) == 0
    (here / "graph.yaml").write_text(
        "start: a\ninputs: {key: string}\nsecrets: [key]\nnodes:\n"
        "  a: {tool: hello, params: {name: '${inputs.key}'}, assign: {said: '${result.greeting}'}, next: b}\n"
        "  b: {type: return, output: '${state.said}'}\n"
    )
    arguments = ["graph.yaml", "-i", "key=hunter2hunter2"]
    for command in (
        ["run", *arguments],
        ["show"],
        ["logs"],
        ["run", *arguments, "--json"],
        ["show", "--json"],
    ):
        assert main(command) == 0
    assert main(["run", *arguments, "--dry-run"]) == 0
    printed = "".join(capsys.readouterr())
    assert "Hello, ***!" in printed
    assert "hunter2" not in printed


def test_a_summary_spreads_long_data_over_lines_and_cuts_it() -> None:
    value = {"output": [{"name": f"item {number}"} for number in range(20)]}
    lines = [text for text, _ in summary_lines(replay_events(stamped(GRAPH)), Ended(value=value))]  # type: ignore[arg-type]
    assert lines[1:3] == ["  [", "    {"]
    assert lines[11].startswith("  … 52 more lines: plait logs 7f3a")
