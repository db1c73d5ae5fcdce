"""Hooks: who is asked when, whose word counts, and that a resumed run decides as it had decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.app.api import compile
from plait.core.errors import TrustError
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.context import RunContext, new_run_context
from plait.engine.events import Note, StepFinished, StepRetrying
from plait.engine.hook_events import ALWAYS, HOOK_EVENTS, NAMES, VERBS, Hook, HookCall, HookDecision
from plait.engine.hook_step import find_decision
from plait.engine.hooks import HookRunner
from plait.engine.journal import MemoryJournal
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Aborted, Failed, Failure, Outcome, Skipped, StepError, Succeeded
from plait.engine.perform import StepContext, perform
from plait.engine.step import DEFAULT_POLICY, Action, FunctionAction, Policy, Retry, Step
from plait.scope import Scope
from plait.scope.expressions import parse_when
from plait.template.sinks import render_json_value
from plait.template.template import Template


@dataclass(slots=True)
class Fake:
    """A step that does what its answers say, one after the other; the last one again and again."""

    answers: Sequence[Any]
    name: str = "a"
    kind: str = "shell"
    policy: Policy = DEFAULT_POLICY
    fingerprint: str = "f"
    title: str = "a fake"
    children: Sequence[Step] = ()
    turns: list[StepContext] = field(default_factory=list)

    def run(self, ctx: StepContext) -> Json:
        self.turns.append(ctx)
        answer = self.answers[min(len(self.turns), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer(ctx) if callable(answer) else answer


BROKEN = StepError(
    Failure("it broke", "exit", exit_code=3, output={"output": "half", "exit_code": 3})
)


class Tools:
    """Tools that answer by name, and remember what they were given."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, str, Mapping[str, Json]]] = []

    def __call__(
        self, ctx: StepContext, tool: str, params: Template | None, values: Scope
    ) -> Action:
        filled = {} if params is None else render_json_value(params, values)
        self.calls.append((ctx.path, tool, filled))

        def run(ctx: StepContext) -> Json:
            answer = self.answers.get(tool)
            if isinstance(answer, BaseException):
                raise answer
            return {"output": answer(ctx) if callable(answer) else answer}

        return FunctionAction(run)

    @property
    def names(self) -> list[str]:
        return [tool for _, tool, _ in self.calls]


def calling(
    id: str, event: str, tool: str | None = None, params: Json = None, **fields: Any
) -> Hook:
    given = None if params is None else compile(params, profile="graph")
    if "condition" in fields:
        fields["condition"] = parse_when(fields["condition"])
    return Hook(id, event, (HookCall(tool or id, given),), fingerprint=f"{id} {event}", **fields)


def saying(verb: Any, event: str, id: str = "says", **fields: Any) -> Hook:
    return Hook(id, event, verb=verb, gate=True, fingerprint=f"{id} {verb}", **fields)


def new_run(
    hooks: Sequence[Hook], tools: Tools | None = None, journal: Any = None, **more: Any
) -> RunContext:
    runner = HookRunner(hooks, call=tools or Tools(), names={"run": {"id": "r"}}, **more)
    return new_run_context("r", journal or MemoryJournal(), hooks=runner)


def done(step: Any, run: RunContext, **names: Json) -> Outcome:
    top = StepContext(run, "", Scope(names))
    return perform(step, top.child(step))


def events(run: RunContext, kind: type) -> list[Any]:
    return [stamped.event for stamped in run.journal.events() if isinstance(stamped.event, kind)]


def notes(run: RunContext) -> list[str]:
    return [event.message for event in events(run, Note)]


# ── what each verb means ─────────────────────────────────────────────────

BEFORE = [
    # verb       outcome
    ("skip",     Skipped("the hook 'says' says skip: w")),
    ("fail",     Failed(Failure("the hook 'says' says fail: w", "refused", path="a/hook:says"))),
    ("continue", Succeeded(1)),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "outcome"), BEFORE)
@pytest.mark.parametrize(("kind", "event"), [("shell", "step_started"), ("item", "item_started")])
def test_a_hook_decision_before_a_step_decides_whether_it_is_done(
    verb: str, outcome: Outcome, kind: str, event: str
) -> None:
    step = Fake([1], kind=kind)
    assert done(step, new_run([saying(verb, event, why="w")])) == outcome
    assert len(step.turns) == (1 if verb == "continue" else 0)


AFTER_FAILURE = [
    # verb       outcome
    ("continue", Succeeded({"output": "half", "exit_code": 3})),
    ("skip",     Skipped("the hook 'says' says skip")),
    ("fail",     Failed(Failure("it broke\nthe hook 'says' says fail", "exit", 3, {"output": "half", "exit_code": 3}, "a"))),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "outcome"), AFTER_FAILURE)
def test_a_hook_decision_on_a_failure_decides_its_outcome(verb: str, outcome: Outcome) -> None:
    assert done(Fake([BROKEN]), new_run([saying(verb, "step_failed")])) == outcome


@pytest.mark.parametrize(("most", "attempts"), [(None, 4), (0, 1), (1, 2), (7, 8)])
def test_a_retry_decision_counts_as_often_as_the_hook_allows(
    most: int | None, attempts: int
) -> None:
    bound: dict[str, Any] = {} if most is None else {"max_retries": most}
    step, run = Fake([BROKEN]), new_run([saying("retry", "step_failed", **bound)])
    assert isinstance(done(step, run), Failed)
    assert [turn.attempt for turn in step.turns] == list(range(1, attempts + 1))
    assert [event.attempt for event in events(run, StepRetrying)] == list(range(1, attempts))


def test_what_a_tool_says_about_retries_comes_before_what_the_hook_says() -> None:
    tools = Tools(again={"action": "retry", "max_retries": 1, "delay": 0})
    step = Fake([BROKEN])
    done(step, new_run([calling("again", "step_failed", max_retries=9)], tools))
    assert len(step.turns) == 2


def test_the_retries_of_the_step_itself_come_first_and_do_not_count() -> None:
    step = Fake([BROKEN], policy=Policy(retry=Retry(3, "fixed", 0.0)))
    run = new_run([saying("retry", "step_failed", max_retries=2)])
    done(step, run)
    assert len(step.turns) == 5
    assert [event.path for event in events(run, StepFinished)] == [
        "a/hook:says@3", "a/hook:says@4", "a/hook:says@5", "a"
    ]  # fmt: skip


def test_a_step_that_is_mended_by_a_retry_is_done() -> None:
    assert done(Fake([BROKEN, "fine"]), new_run([saying("retry", "step_failed")])) == Succeeded(
        "fine"
    )


def test_a_failure_after_all_retries_does_not_retry_the_step_around_it() -> None:
    broken = Fake([BROKEN], name="inner")

    def nested(ctx: StepContext) -> Json:
        outcome = ctx.perform(broken)
        assert isinstance(outcome, Failed)
        raise StepError(outcome.failure)

    outer = Fake([nested], name="outer")
    done(outer, new_run([saying("retry", "step_failed", max_retries=2)]))
    assert (len(outer.turns), len(broken.turns)) == (1, 3)


def test_an_abort_before_a_step_ends_the_run_and_nothing_is_recorded_of_the_step() -> None:
    run, step = new_run([saying("abort", "step_started", why="not today")]), Fake([1])
    with pytest.raises(Aborted) as caught:
        done(step, run)
    assert caught.value.failure.message == "the hook 'says' says abort: not today"
    assert (step.turns, run.journal.step("a")) == ([], None)


@pytest.mark.parametrize(
    ("event", "answer", "outcome"),
    [("step_finished", 1, Succeeded), ("step_failed", BROKEN, Failed)],
)
def test_an_abort_behind_a_step_ends_the_run_and_the_step_is_recorded(
    event: str, answer: Any, outcome: type
) -> None:
    run = new_run([saying("abort", event)])
    with pytest.raises(Aborted):
        done(Fake([answer]), run)
    recorded = run.journal.step("a")
    assert recorded is not None
    assert isinstance(recorded.outcome, outcome)


# ── whose word counts ────────────────────────────────────────────────────

USER: dict[str, Any] = {"layer": 0, "space": "user"}
FLOW: dict[str, Any] = {"layer": 1}
PROJECT: dict[str, Any] = {"layer": 3, "space": "project"}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_first_decision_in_the_order_of_the_layers_counts_whatever_order_they_came_in(
    order: tuple[int, ...],
) -> None:
    hooks = [
        saying("continue", "step_started", "u", **USER),
        saying("skip", "step_started", "f", **FLOW),
        saying("fail", "step_started", "p", **PROJECT),
    ]
    assert done(Fake([1]), new_run([hooks[at] for at in order])) == Succeeded(1)
    assert done(Fake([1]), new_run([hooks[at] for at in order if at != 0])) == Skipped(
        "the hook 'f' says skip"
    )


def test_an_abort_anywhere_wins() -> None:
    hooks = [
        saying("continue", "step_started", "u", **USER),
        saying("abort", "step_started", "p", **PROJECT),
    ]
    with pytest.raises(Aborted, match="the hook 'p' says abort"):
        done(Fake([1]), new_run(hooks))


def test_d43_a_project_hook_that_is_alone_with_a_later_one_fires() -> None:
    hooks = [
        saying("skip", "step_started", "project", **PROJECT),
        saying("continue", "step_started", "later", layer=4, space="project"),
    ]
    assert done(Fake([1]), new_run(hooks)) == Skipped("the hook 'project' says skip")


def test_every_hook_of_an_event_is_asked_whatever_the_first_has_decided() -> None:
    tools = Tools(one={"verb": "skip"}, two=None, three={"action": "fail"})
    hooks = [calling(name, "step_started") for name in ("one", "two", "three")]
    assert done(Fake([1]), new_run(hooks, tools)) == Skipped("the hook 'one' says skip")
    assert tools.names == ["one", "two", "three"]


def test_hooks_of_two_layers_with_one_id_have_paths_of_their_own() -> None:
    tools = Tools()
    hooks = [calling("x", "step_finished", **USER), calling("x", "step_finished", **PROJECT)]
    done(Fake([1]), new_run(hooks, tools))
    assert [path for path, _, _ in tools.calls] == ["a/hook:x", "a/hook:project.x"]


DECISIONS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.booleans()), max_size=6
)  # verb, and whether it is of a broken gate


@given(decisions=DECISIONS)
def test_among_many_decisions_an_abort_comes_first_then_a_failed_gate_then_the_first_one(
    decisions: list[tuple[Any, bool]],
) -> None:
    event = "step_failed"
    tools = Tools(broken=StepError(Failure("no")), **{verb: {"verb": verb} for verb in VERBS})
    hooks = [
        calling(f"h{at}", event, "broken" if blocks else verb, gate=True)
        for at, (verb, blocks) in enumerate(decisions)
    ]
    run = new_run(hooks, tools)
    assert run.hooks is not None
    decision = run.hooks.fire(event, StepContext(run, "a", Scope()), {})
    run.events.close()
    aborts = [at for at, (verb, blocks) in enumerate(decisions) if verb == "abort" and not blocks]
    blocked = [at for at, (_, blocks) in enumerate(decisions) if blocks]
    expected = next(iter([*aborts, *blocked, *range(len(decisions))]), None)
    assert (None if decision is None else decision.by) == (
        None if expected is None else f"h{expected}"
    )


# ── hooks that fail ──────────────────────────────────────────────────────


def test_a_hook_that_only_observes_and_fails_is_skipped_with_one_note() -> None:
    tools = Tools(tell=StepError(Failure("no line")))
    run = new_run([calling("tell", "step_finished")], tools)
    assert [done(Fake([at], name=f"s{at}"), run) for at in range(3)] == [
        Succeeded(0),
        Succeeded(1),
        Succeeded(2),
    ]
    assert tools.names == ["tell"]
    assert notes(run) == ["the hook 'tell' failed and is left out from now on: no line"]


@pytest.mark.parametrize("event", ["step_started", "step_failed"])
def test_a_gate_that_fails_blocks_and_says_which(event: str) -> None:
    run = new_run([calling("guard", event, gate=True)], Tools(guard=StepError(Failure("no line"))))
    outcome = done(Fake([BROKEN]), run)
    assert isinstance(outcome, Failed)
    assert outcome.failure.message.splitlines()[-1] == "the gate 'guard' could not answer: no line"


def test_a_gate_that_fails_behind_a_step_ends_the_run() -> None:
    run = new_run(
        [calling("guard", "step_finished", gate=True)], Tools(guard=StepError(Failure("no line")))
    )
    with pytest.raises(Aborted, match="the gate 'guard' could not answer: no line"):
        done(Fake([1]), run)


def test_a_gate_is_not_let_through_by_a_continue_before_it() -> None:
    hooks = [
        saying("continue", "step_started", "u", **USER),
        calling("guard", "step_started", gate=True, **PROJECT),
    ]
    outcome = done(Fake([1]), new_run(hooks, Tools(guard=StepError(Failure("no line")))))
    assert isinstance(outcome, Failed)


def test_a_tool_that_may_not_run_ends_the_run_also_for_a_hook_that_observes() -> None:
    run = new_run([calling("tell", "step_finished")], Tools(tell=TrustError("not trusted")))
    with pytest.raises(TrustError):
        done(Fake([1]), run)


MISUSED = [
    # event          what the tool says          why the hook is left away
    ("step_started", {"verb": "retry"},          "'retry' means nothing at step_started"),
    ("step_finished", {"action": "skip"},        "'skip' means nothing at step_finished"),
    ("limit",        {"action": "continue"},     "'continue' means nothing at limit"),
    ("step_failed",  {"verb": "retyr"},          "its tool returned an unknown decision; there are retry, fail, abort, continue, skip (did you mean 'retry'?)"),
    ("step_failed",  {"action": "escalate"},     "its tool returned an unknown decision; there are retry, fail, abort, continue, skip"),
    ("step_failed",  {"action": "suspend"},      "its tool returned an unknown decision; there are retry, fail, abort, continue, skip"),
    ("step_failed",  {"verb": ["retry"]},        "its tool returned an unknown decision; there are retry, fail, abort, continue, skip"),
    ("step_failed",  {"verb": "retry", "max_retries": "3"}, "'max_retries' of its tool's decision is not a whole number from 0"),
    ("step_failed",  {"verb": "retry", "delay": -1}, "'delay' of its tool's decision is not a number of seconds from 0"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "value", "why"), MISUSED)
def test_a_decision_that_means_nothing_is_reported_and_not_ignored(
    event: str, value: Json, why: str
) -> None:
    run = new_run([calling("odd", event)], Tools(odd=value))
    assert run.hooks is not None
    assert run.hooks.fire(event, StepContext(run, "a", Scope()), {}) is None
    assert notes(run) == [f"the hook 'odd' failed and is left out from now on: {why}"]


NO_DECISION: list[Json] = [
    None,
    {},
    [],
    "retry",
    3,
    True,
    {"success": True},
    {"action": "created"},
    {"action": 1},
]


@pytest.mark.parametrize("output", NO_DECISION)
def test_a_result_that_decides_nothing_is_no_decision(output: Json) -> None:
    assert find_decision(output) == {}


# ── conditions and names ─────────────────────────────────────────────────

CONDITIONS: list[tuple[Json, bool]] = [
    ({"path": "error.exit_code", "op": "eq", "value": 3}, True),
    ({"path": "error.exit_code", "op": "gt", "value": 3}, False),
    ({"all": [{"path": "error.kind", "value": "exit"}, {"not": {"path": "error.retryable", "value": True}}]}, True),
    ({"path": "step.kind", "op": "in", "value": ["shell", "tool"]}, True),
    ({"path": "item.id", "op": "gte", "value": 8}, False),
    ("${error.exit_code} == 3 && ${step.attempt} == 1", True),
    ("${item.id} == 8", False),
    ({}, True),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS)
def test_a_hook_is_asked_only_if_its_condition_holds(condition: Json, holds: bool) -> None:
    tools = Tools()
    done(
        Fake([BROKEN]),
        new_run([calling("t", "step_failed", condition=condition)], tools),
        item={"id": 7},
    )
    assert tools.names == (["t"] if holds else [])


@pytest.mark.parametrize(
    "condition",
    [
        {"path": "error.message", "op": "gt", "value": 3},
        {"path": "error.exit_code", "op": "contains", "value": "x"},
        {"path": "error.exit_code", "op": "regex", "value": "x"},
    ],
)
def test_d34_a_condition_on_the_wrong_type_does_not_end_the_run(condition: Json) -> None:
    run, tools = new_run([]), Tools()
    for gate in (False, True):
        run = new_run([calling("t", "step_failed", condition=condition, gate=gate)], tools)
        assert isinstance(done(Fake([BROKEN]), run), Failed)
    assert tools.names == []


def test_params_are_filled_with_what_the_event_knows() -> None:
    tools = Tools()
    params = {
        "all": "${event} ${path} ${step.name} ${step.kind} ${run.id}",
        "error": "${error}",
        "item": "${item}",
        "used": "${used.steps} ${cost.tokens}",
        "limit": "${limits.steps}",
        "nothing": "${model}",
    }
    budget = Budget(Limits(steps=9))
    names: Json = {"run": {"id": "r"}, "limits": budget.limits.record()}
    hooks = HookRunner(
        [calling("t", "step_failed", params=params)], call=tools, names=names, budget=budget
    )
    run = new_run_context("r", MemoryJournal(), hooks=hooks)
    done(Fake([BROKEN]), run, item=[1, 2])
    assert tools.calls[0][2] == {
        "all": "step_failed a a shell r",
        "error": {
            "message": "it broke",
            "kind": "exit",
            "exit_code": 3,
            "retryable": False,
            "path": "a",
        },
        "item": [1, 2],
        "used": "1 0",
        "limit": 9,
        "nothing": None,
    }


HOSTILE = st.text() | st.sampled_from(
    ["${path}", "{input:x}", "${run.id}", "$${a}", "{{x}}", "${error.message}"]
)


@given(
    value=st.recursive(
        HOSTILE | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    )
)
def test_what_an_event_brings_along_arrives_unchanged(value: Json) -> None:
    tools = Tools()
    run = new_run([calling("t", "step_finished", params={"r": "${result}"})], tools)
    done(Fake([value]), run)
    run.events.close()
    assert tools.calls[0][2] == {"r": value}


def test_every_name_of_every_event_is_described() -> None:
    for moment in HOOK_EVENTS.values():
        assert {*moment.names, *ALWAYS} <= NAMES.keys()
        assert set(moment.verbs) <= set(VERBS)


# ── steps of hooks, and what they cause ──────────────────────────────────


def test_what_happens_inside_a_hook_causes_nothing() -> None:
    def inside(ctx: StepContext) -> Json:
        return str(ctx.perform(Fake(["x"], name="deep")))

    tools = Tools(nested=inside)
    run = new_run([calling("nested", "step_finished"), calling("nested", "step_started")], tools)
    done(Fake([1]), run)
    assert tools.names == ["nested", "nested"]
    assert isinstance(run.hooks, HookRunner)
    assert run.hooks.active == set()


def test_implicit_parts_of_a_step_fire_no_hooks() -> None:
    tools = Tools()
    hooks = [calling("t", "step_started")]
    for kind in ("phase", "map", "items", "attempt", "handler", "block", "check", "graph"):
        done(Fake([1], kind=kind), new_run(hooks, tools))
    done(Fake([1], name="turn:1", kind="model"), new_run(hooks, tools))
    assert tools.calls == []


def test_a_hook_with_several_actions_performs_each_as_a_step_and_the_first_decision_counts() -> (
    None
):
    tools = Tools(one=None, two={"verb": "skip"}, three={"verb": "fail"})
    hook = Hook("all", "step_started", tuple(HookCall(name) for name in ("one", "two", "three")))
    run = new_run([hook], tools)
    assert done(Fake([1]), run) == Skipped("the hook 'all' says skip")
    assert [path for path, _, _ in tools.calls] == ["a/hook:all/1", "a/hook:all/2", "a/hook:all/3"]


# ── later run attempts ───────────────────────────────────────────────────


def test_a_replayed_step_fires_no_hooks() -> None:
    tools, journal = Tools(), MemoryJournal()
    hooks = [calling("before", "step_started"), calling("behind", "step_finished")]
    done(Fake([1]), new_run(hooks, tools, journal))
    done(Fake([2]), new_run(hooks, tools, journal.reopen()))
    assert tools.names == ["before", "behind"]


@pytest.mark.parametrize("value", [{"verb": "skip"}, {"verb": "continue"}, None])
def test_a_run_that_died_between_a_decision_and_its_step_decides_as_before(value: Json) -> None:
    journal, tools = MemoryJournal(), Tools(t=value)
    hooks = [calling("t", "step_started", condition="${item} == 1")]
    dying = Fake([KeyboardInterrupt()])
    try:
        first = done(dying, new_run(hooks, tools, journal), item=1)
    except KeyboardInterrupt:
        first = Succeeded("again")
    if isinstance(first, Skipped):  # as if the end had not been written down
        del journal._finished["a"], journal._ends["a"]
    tools.answers["t"] = {"verb": "fail"}
    # Neither the tool is asked again nor the condition, which does not hold any more.
    assert done(Fake(["again"]), new_run(hooks, tools, journal.reopen()), item=2) == first
    assert tools.names == ["t"]


@pytest.mark.parametrize("verb", ["fail", "abort"])
def test_a_refusal_is_asked_for_again_by_a_resumed_run(verb: str) -> None:
    journal, tools = MemoryJournal(), Tools(t={"verb": verb})
    hooks = [calling("t", "step_started")]
    try:
        assert isinstance(done(Fake([1]), new_run(hooks, tools, journal)), Failed)
    except Aborted:
        assert verb == "abort"
    tools.answers["t"] = None
    assert done(Fake([1]), new_run(hooks, tools, journal.reopen())) == Succeeded(1)
    assert tools.names == ["t", "t"]


def test_a_step_that_fails_in_another_run_attempt_is_reported_again() -> None:
    journal, tools = MemoryJournal(), Tools()
    hooks = [calling("t", "step_failed")]
    for run_attempt in (journal, journal.reopen()):
        done(Fake([BROKEN]), new_run(hooks, tools, run_attempt))
    assert tools.names == ["t", "t"]


def test_an_edited_hook_is_asked_again_and_does_not_block_a_resume() -> None:
    journal, tools = MemoryJournal(), Tools()
    with pytest.raises(KeyboardInterrupt):
        done(Fake([KeyboardInterrupt()]), new_run([calling("t", "step_started")], tools, journal))
    edited = Hook("t", "step_started", (HookCall("other"),), fingerprint="another")
    assert done(Fake([1]), new_run([edited], tools, journal.reopen())) == Succeeded(1)
    assert tools.names == ["t", "other"]


@given(failing=st.integers(0, 5), most=st.integers(0, 5), cut=st.integers(0, 16))
def test_a_run_that_is_cut_anywhere_ends_as_if_it_had_not_been(
    failing: int, most: int, cut: int
) -> None:
    hooks = [
        calling("before", "step_started"),
        calling("again", "step_failed"),
        calling("behind", "step_finished"),
    ]
    answers = [*[BROKEN] * failing, "fine"]
    uncut, journal = _Cut(1000), MemoryJournal()
    whole = _run_attempt(answers, hooks, most, uncut, MemoryJournal())
    try:
        again = _run_attempt(answers, hooks, most, _Cut(cut), journal)
    except KeyboardInterrupt:
        again = _run_attempt(answers, hooks, most, uncut, journal.reopen())
    assert again == whole


class _Cut:
    """Kills the run at a certain action."""

    def __init__(self, left: int) -> None:
        self.left = left

    def before(self, answer: Any) -> Any:
        def acted(_: StepContext) -> Json:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return acted


def _run_attempt(
    answers: list[Any], hooks: list[Hook], most: int, cut: _Cut, journal: MemoryJournal
) -> Outcome:
    values = {"before": None, "again": {"verb": "retry", "max_retries": most}, "behind": None}
    run = new_run(hooks, Tools(**{name: cut.before(one) for name, one in values.items()}), journal)
    try:
        return done(Fake([cut.before(answer) for answer in answers]), run)
    finally:
        run.events.close()


# ── limits ───────────────────────────────────────────────────────────────


def limited(hooks: Sequence[Hook], limits: Limits, tools: Tools | None = None) -> RunContext:
    budget = Budget(limits)
    return new_run(hooks, tools, budget=budget)


def test_what_is_reached_ends_the_run_before_the_next_step_with_what_was_made() -> None:
    tools = Tools()
    run = limited(
        [calling("t", "limit", params={"l": "${limit}", "at": "${step.name}"})],
        Limits(steps=2),
        tools,
    )
    for at in range(2):
        assert done(Fake([at], name=f"s{at}"), run) == Succeeded(at)
    third = Fake([2], name="s2")
    with pytest.raises(Aborted) as caught:
        done(third, run, last={"output": "so far"}, captured="x")
    failure = caught.value.failure
    assert (failure.kind, failure.message) == (
        "limit",
        "the run has reached its limit of 2 steps (2 used)",
    )
    assert failure.output == {
        "output": "so far",
        "captures": {"captured": "x", "last": {"output": "so far"}},
    }
    assert third.turns == []
    assert tools.calls == [
        ("s2/hook:t", "t", {"l": {"code": "steps", "value": 2, "max": 2}, "at": "s2"})
    ]
    assert run.journal.step("s2") is None


def test_no_hook_lifts_a_limit() -> None:
    assert "continue" not in HOOK_EVENTS["limit"].verbs
    run = limited([calling("t", "limit")], Limits(steps=0), Tools(t={"verb": "continue"}))
    with pytest.raises(Aborted, match="limit of 0 steps"):
        done(Fake([1]), run)


def test_a_failure_by_a_limit_is_not_retried_by_a_hook() -> None:
    step = Fake([StepError(Failure("enough", "limit"))])
    done(step, new_run([saying("retry", "step_failed")]))
    assert len(step.turns) == 1


def test_the_steps_of_hooks_count_against_no_limit() -> None:
    run = limited([calling("t", "step_finished")], Limits(steps=3))
    assert [done(Fake([at], name=f"s{at}"), run) for at in range(3)] == [
        Succeeded(0),
        Succeeded(1),
        Succeeded(2),
    ]


def test_a_decision_names_its_hook_and_reason() -> None:
    assert HookDecision("skip", "", "x").message == "the hook 'x' says skip"
    assert HookDecision("skip", "late", "x").message == "the hook 'x' says skip: late"
