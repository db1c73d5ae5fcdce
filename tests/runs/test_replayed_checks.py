"""A gate that could not answer is asked again: the run stays blocked there until it can, and no step is repeated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.scripted import failed
from plait.core.values import Json
from plait.engine.events import StepFinished
from plait.engine.hook_events import HOOK_EVENTS
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, StepError, too_long
from plait.views.progress import replay_events
from runs.attempts import Services, outcome_text, run_attempt
from runs.test_replayed_names import FIRED, HOSTS, chatty
from share import every

X = "${event} ${path} RESULT"
GATE = 'hooks:\n  - {id: o, event: EVENT, action: {tool: log, params: {x: "seen KIND ${path}"}}}\n'
GATES = {
    "one call": f'  - {{id: g, event: EVENT, gate: true, action: {{tool: ask, params: {{x: "{X}"}}}}}}\n',
    "two calls": (
        '  - {id: g, event: EVENT, gate: true, actions: [{tool: log, params: {x: "first ${path}"}}, '
        f'{{tool: ask, params: {{x: "{X}"}}}}]}}\n'
    ),
    "in a later layer": (
        f'  - {{id: g, event: EVENT, layer: 4, gate: true, action: {{tool: ask, params: {{x: "{X}"}}}}}}\n'
    ),
}
BEHIND = [
    *((host, event) for host, event, _ in FIRED),
    ("graph", "after_step"),
    ("graph", "graph_completed"),
    ("graph", "graph_started"),
    ("tools", "step_started"),
    ("prompts", "step_started"),
    ("graph", "step_started"),
    ("prompts", "turn_started"),
    ("directive", "turn_started"),
]  # fmt: skip
"""Where a gate blocks all that follows; items and calls that one keeps from beginning are failed or refused."""


def _times_out(_: Json) -> Json:
    raise StepError(too_long(0.5))


def _raises(_: Json) -> Json:
    raise StepError(Failure("down"))


DOWN: dict[str, Callable[[Json], Json]] = {
    "fails": lambda _: failed("ask", "down"),
    "raises": _raises,
    "times out": _times_out,
    "says what does not exist": lambda _: {"verb": "nope"},
    "says what means nothing there": lambda _: {"verb": "retry"},
    "says half of it": lambda _: {"verb": "continue", "delay": "soon"},
}


class Asked(Services):
    """Of the places that the gate is asked about one is such that it cannot answer, until it is up."""

    def __init__(self, top: Path, at: int = 0, down: Callable[[Json], Json] = _raises) -> None:
        super().__init__(top, chatty)
        self.heard: list[str] = []
        self.up = False
        self._places: list[str] = []
        self._at, self._down = at, down
        self.tools["ask"] = lambda params: self._asked(str(params["x"]))

    def _asked(self, x: str) -> Json:
        x = re.sub(r'"duration":[0-9.e-]+', "", x)
        if x not in self._places:
            self._places.append(x)
        if not self.up and self._places.index(x) + 1 == self._at:
            return self._down(x)
        self.heard.append(x)
        return {"ok": True}

    @property
    def made(self) -> list[Json]:
        """What was called beside the gate, and how often a model was asked."""
        return [self.questions, *(params.get("x") for tool, params in self.calls if tool == "log")]


def text_of(host: str, event: str, hooks: str) -> tuple[str, str]:
    file, text = HOSTS[host]
    result = "${result}" if "result" in HOOK_EVENTS[event].names else ""
    hooks = (
        hooks.replace("EVENT", event)
        .replace("RESULT", result)
        .replace("KIND", event.rpartition("_")[2])
    )
    return file, f"---\npermissions: [log]\n{hooks}---\n{text}" if file.endswith(
        ".md"
    ) else hooks + text


# Seven has no divisor in common with the numbers of gates and of ways to be down: each meets each, somewhere.
@pytest.mark.share
@pytest.mark.parametrize(
    ("host", "event", "gate", "down"),
    [(*behind, gate, down) for behind in BEHIND for gate in GATES for down in DOWN][:: every(7)],
)
def test_a_gate_that_could_not_answer_is_asked_again_until_it_can(
    tmp_path: Path, host: str, event: str, gate: str, down: str
) -> None:
    file, text = text_of(host, event, GATE + GATES[gate])
    whole = Asked(tmp_path)
    assert outcome_text(run_attempt(tmp_path, file, text, whole, MemoryJournal())) == "done"
    assert whole.heard
    for at in range(1, len(whole.heard) + 1):
        journal, fakes = MemoryJournal(), Asked(tmp_path, at, DOWN[down])
        assert "the gate 'g' could not answer" in outcome_text(
            run_attempt(tmp_path, file, text, fakes, journal)
        )
        made = fakes.made
        for _ in range(2):
            assert "the gate 'g' could not answer" in outcome_text(
                run_attempt(tmp_path, file, text, fakes, journal)
            )
            assert without_repeats(fakes.made) == made, "it stays there"
        fakes.up = True
        assert outcome_text(run_attempt(tmp_path, file, text, fakes, journal)) == "done"
        assert fakes.heard == whole.heard
        assert without_repeats(fakes.made) == whole.made, (
            "nothing is missing, and nothing was done twice"
        )
        assert replay_events(journal.events()).usage.turns == whole.questions
        assert outcome_text(run_attempt(tmp_path, file, text, fakes, journal)) == "done"
        assert fakes.heard == whole.heard


def without_repeats(made: list[Json]) -> list[Json]:
    """If an answer meant nothing, all calls of the gate are made again; what failed to begin begins once more."""
    kept: list[Json] = []
    for one in made:
        is_of_hook = str(one).startswith(("first", "seen started"))
        if not (is_of_hook and one in kept):
            kept.append(one)
    return kept


JUDGED = "hooks:\n  - {id: g, event: EVENT, gate: true, condition: COND, verb: abort, why: no}\n"
WRONG, NEVER, ALWAYS = (
    "{path: path, op: gt, value: 3}",
    "{path: path, op: eq, value: 3}",
    "{path: path, op: ne, value: 3}",
)


@pytest.mark.parametrize(("host", "event"), BEHIND)
def test_a_gate_whose_condition_cannot_be_evaluated_is_asked_later_too(
    tmp_path: Path, host: str, event: str
) -> None:
    def ended_with(condition: str) -> str:
        return outcome_text(
            run_attempt(
                tmp_path, *text_of(host, event, JUDGED.replace("COND", condition)), fakes, journal
            )
        )

    whole, journal, fakes = Asked(tmp_path), MemoryJournal(), Asked(tmp_path)
    run_attempt(tmp_path, *text_of(host, event, ""), whole, MemoryJournal())
    assert "the gate 'g' could not answer" in ended_with(WRONG)
    made = fakes.made
    assert "the gate 'g' could not answer" in ended_with(WRONG)
    assert fakes.made == made, "it stays there"
    assert "the hook 'g' says abort: no" in ended_with(ALWAYS)
    assert fakes.made == made, "it is asked about the same"
    assert ended_with(NEVER) == "done"
    assert fakes.made == whole.made


TWO = """\
hooks:
  - {id: s, event: EVENT, action: {tool: say}}
  - {id: g, event: EVENT, gate: true, action: {tool: ask, params: {x: "${path}"}}}
"""


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("host", "event"), [*((host, event) for host, event, _ in FIRED), ("graph", "after_step")]
)
def test_a_hook_that_aborted_is_done_and_a_gate_beside_it_that_could_not_answer_is_asked_again(
    tmp_path: Path, host: str, event: str, order: int
) -> None:
    head, *both = TWO.splitlines(keepends=True)
    file, text = text_of(host, event, head + "".join(both[::order]))
    journal, fakes = MemoryJournal(), Asked(tmp_path, 1)
    spoken: list[str] = []

    def say(_: Json) -> Json:
        spoken.append("")
        return {"verb": "abort" if len(spoken) == 1 else "continue"}

    fakes.tools["say"] = say
    assert re.search(
        "says abort|could not answer",
        outcome_text(run_attempt(tmp_path, file, text, fakes, journal)),
    )
    for _ in range(2):
        assert "the gate 'g' could not answer" in outcome_text(
            run_attempt(tmp_path, file, text, fakes, journal)
        )
        assert len(spoken) == 1
    fakes.up = True
    assert outcome_text(run_attempt(tmp_path, file, text, fakes, journal)) == "done"
    assert len(spoken) == len(set(fakes.heard)) == len(fakes.heard)


@pytest.mark.parametrize("verb", ["retry", "continue", "skip"])
def test_a_call_of_a_node_is_not_made_again_because_a_gate_behind_the_node_could_not_answer(
    tmp_path: Path, verb: str
) -> None:
    text = (
        f"hooks:\n  - {{id: e, event: error, verb: {verb}}}\n"
        '  - {id: g, event: after_step, gate: true, action: {tool: ask, params: {x: "${path}"}}}\n'
        "start: a\nnodes:\n  a: {tool: flaky, next: b}\n  b: {tool: log, params: {x: b}}\n"
    )
    journal, fakes = MemoryJournal(), Asked(tmp_path, 1)

    def calls() -> int:
        return sum(tool == "flaky" for tool, _ in fakes.calls)

    fakes.tools["flaky"] = lambda _: failed("flaky", "no") if calls() == 1 else {"ok": calls()}
    assert "the gate 'g' could not answer" in outcome_text(
        run_attempt(tmp_path, "g.yaml", text, fakes, journal)
    )
    made = calls()
    assert "the gate 'g' could not answer" in outcome_text(
        run_attempt(tmp_path, "g.yaml", text, fakes, journal)
    )
    fakes.up = True
    assert outcome_text(run_attempt(tmp_path, "g.yaml", text, fakes, journal)) == "done"
    assert calls() == made == (2 if verb == "retry" else 1)


@pytest.mark.parametrize("event", ["step_started", "step_finished"])
def test_a_decision_among_several_calls_is_asked_for_again(tmp_path: Path, event: str) -> None:
    """A gate before a step is asked every time; a hook that aborted after an end is done."""
    text = (
        f"hooks: [{{id: g, event: {event}, gate: true, actions: [{{tool: say}}, {{tool: log, params: {{x: h}}}}]}}]\n"
        "steps: [{tool: log, params: {x: 1}}]\n"
    )
    journal, fakes = MemoryJournal(), Asked(tmp_path)
    fakes.tools["say"] = lambda _: {"verb": "continue" if fakes.up else "abort"}
    assert "says abort" in outcome_text(run_attempt(tmp_path, "f.yaml", text, fakes, journal))
    fakes.up = True
    assert outcome_text(run_attempt(tmp_path, "f.yaml", text, fakes, journal)) == "done"
    assert fakes.made == ([0, "h", "h", 1] if event == "step_started" else [0, 1, "h"])


TAKEN = [
    # event            what takes the failure                                           done in the end   asked
    ("step_started",
     "steps: [{tool: log, params: {x: a}, continue_on_error: true}, {tool: log, params: {x: b}}]\n", ["b"], 2),
    ("step_started",
     "start: a\nnodes: {a: {tool: log, params: {x: a}, next: b, on_error: c}, b: {tool: log, params: {x: b}}, "
     "c: {tool: log, params: {x: c}}}\n", ["c"], 2),
    ("turn_started",
     "steps: [{prompt: hi, retry: {attempts: 3, initial_delay: 0.001}, on_failure: {tool: log, params: {x: c}}}, "
     "{tool: log, params: {x: b}}]\n", ["c", "b"], 3),
    ("step_failed",
     "steps: [{tool: bad, continue_on_error: true}, {tool: log, params: {x: b}}]\n", ["b"], 1),
    ("item_started",
     "map: {input: [1, 2], max_parallel: 1, steps: [{tool: log, params: {x: '${item}'}}]}\n", [2], 2),
    ("item_failed",
     "map: {input: [1, 2], max_parallel: 1, steps: [{tool: bad}]}\n", [], 2),
]  # fmt: skip


@pytest.mark.parametrize(("event", "flow", "made", "asked"), TAKEN)
def test_the_handler_of_a_failed_gate_before_a_step_decides(
    tmp_path: Path, event: str, flow: str, made: list[Json], asked: int
) -> None:
    """The step fails by the gate as by anything else: what is guarded is not done, and that stays so."""
    gate = f'hooks: [{{id: g, event: {event}, gate: true, action: {{tool: ask, params: {{x: "${{path}}"}}}}}}]\n'
    journal, fakes = MemoryJournal(), Asked(tmp_path, 1)
    fakes.tools["bad"] = lambda _: failed("bad", "no")
    for _ in range(2):
        assert outcome_text(run_attempt(tmp_path, "f.yaml", gate + flow, fakes, journal)) == "done"
        assert fakes.made == [0, *made]
        assert sum(tool == "ask" for tool, _ in fakes.calls) == asked
        fakes.up = True
    assert any("the gate 'g' could not answer" in one for one in messages(journal))


def messages(journal: MemoryJournal) -> list[str]:
    """Why steps failed, each as it is recorded."""
    ends = [
        stamped.event for stamped in journal.events() if isinstance(stamped.event, StepFinished)
    ]
    return [end.outcome.failure.message for end in ends if isinstance(end.outcome, Failed)]
