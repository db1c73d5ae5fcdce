"""A model with tools: what is asked, what is called, what is recorded, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import OverError, Scripted, ToolServices, failed, says, wants
from plait.agents.messages import (
    NO_PROVIDER,
    Message,
    ModelRequest,
    ModelResponse,
    TokenUsage,
    ToolOffer,
    ToolRequest,
)
from plait.agents.permissions import Permissions
from plait.agents.session import AgentScopes, AgentStep
from plait.agents.tool_access import MAX_RESULT, make_offer, tool_id_for, wire_name
from plait.agents.turn_budget import estimate_request_tokens
from plait.agents.turns import recorded_tool_call
from plait.core.errors import InputError, TrustError
from plait.core.values import Json
from plait.engine.events import EventRecord, ModelText, StepFinished
from plait.engine.hook_events import Hook
from plait.engine.hooks import HookRunner
from plait.engine.journal import MemoryJournal
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Aborted, Failure, LimitExceeded, StepError, Succeeded
from plait.engine.step import FunctionAction
from plait.views.progress import Progress, replay_events
from program.fakes import failure_of, new_run, performed, turn_of

PLACEHOLDERS = [
    "${HOME}",
    "{input:q}",
    "{param}",
    "{{x}}",
    "$NAME",
    "$${x}",
    "${state.a:-b}",
    "{model}",
]


def agent(prompt: str = "do it", **fields: Any) -> AgentStep:
    return AgentStep("agent", "review", prompt, **fields)


def talked(
    step: AgentStep, fakes: ToolServices, journal: MemoryJournal | None = None, **run: Any
) -> Any:
    return performed(step, new_run(fakes, journal, **run))


def value_of(outcome: Any) -> dict[str, Json]:
    assert isinstance(outcome, Succeeded), outcome
    assert isinstance(outcome.value, dict)
    return outcome.value


# ── the loop ─────────────────────────────────────────────────────────────


def test_an_answer_without_calls_is_the_end() -> None:
    value = value_of(talked(agent(), ToolServices(Scripted(says("fine")))))
    assert value == {
        "output": "fine",
        "text": "fine",
        "data": None,
        "usage": {"input": 10, "output": 5, "cached": 0, "cost": 0.25, "calls": 1},
        "turns": 1,
        "model": "m-1",
        "ended": "end",
    }


def test_what_tools_gave_goes_back_to_the_model_in_its_own_order() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def tool(params: Mapping[str, Json]) -> Json:
        barrier.wait()  # all of them at once, or never
        return {"n": params["n"]}

    model = Scripted(wants(*(("t/x", {"n": n}) for n in range(3)), text="let me see"), says("done"))
    fakes = ToolServices(model, {"t/x": tool})
    value = value_of(talked(agent(tools=("t/*",)), fakes))
    assert (value["output"], value["turns"]) == ("done", 2)
    _, second = model.asks
    assert [(m.role, m.text, m.answers, m.failed) for m in second.messages[1:]] == [
        ("assistant", "let me see", "", False),
        ("tool", '{"n":0}', "use-1", False),
        ("tool", '{"n":1}', "use-2", False),
        ("tool", '{"n":2}', "use-3", False),
    ]


def test_every_question_and_call_is_a_recorded_step() -> None:
    journal = MemoryJournal()
    model = Scripted(wants(("t/x", {}), ("t/y", {})), says("done"))
    talked(
        agent(tools=("*",)),
        ToolServices(model, {"t/x": lambda _: "X", "t/y": lambda _: "Y"}),
        journal,
    )
    ends = {
        event.event.path: event.event
        for event in journal.events()
        if isinstance(event.event, StepFinished)
    }
    assert sorted(ends) == [
        "agent",
        "agent/turn:1",
        "agent/turn:1.call:1",
        "agent/turn:1.call:2",
        "agent/turn:2",
    ]
    assert ends["agent/turn:1.call:2"].outcome == Succeeded(
        {"output": "Y", "failed": False, "tool": "t/y"}
    )
    assert ModelResponse.of(ends["agent/turn:2"].outcome.value) == says("done")  # type: ignore[union-attr]


@given(value=st.one_of(st.sampled_from(PLACEHOLDERS), st.text()))
def test_messages_arrive_as_they_are(value: str) -> None:
    model = Scripted(wants(("t/x", {"v": value})), says(value))
    fakes = ToolServices(model, {"t/x": lambda params: params["v"]})
    outcome = value_of(talked(agent(value, system=value, tools=("*",)), fakes))
    assert outcome["output"] == value
    assert fakes.calls == [("t/x", {"v": value})]
    assert (model.asks[0].messages[0].text, model.asks[0].system) == (value, value)
    assert model.asks[1].messages[-1].text == value


def test_a_long_result_is_cut_and_says_so() -> None:
    model = Scripted(wants(("t/x", {})), says("ok"))
    talked(agent(tools=("*",)), ToolServices(model, {"t/x": lambda _: "é" * (MAX_RESULT + 1)}))
    assert (
        model.asks[1].messages[-1].text
        == "é" * 50_000 + "\n[cut: 50,000 of 50,001 characters are shown]"
    )


def test_secrets_are_masked_in_what_is_sent_and_in_what_is_recorded() -> None:
    journal = MemoryJournal()
    model = Scripted(wants(("t/x", {})), says("it is hunter2"))
    fakes = ToolServices(model, {"t/x": lambda _: "key hunter2"})
    reported: list[str] = []
    run = new_run(
        fakes,
        journal,
        mask=lambda text: text.replace("hunter2", "***"),
        watchers=[
            lambda one: (
                reported.append(one.event.text) if isinstance(one.event, ModelText) else None
            )
        ],
    )
    performed(agent("use hunter2", system="never say hunter2", tools=("*",)), run)
    sent = [(ask.system, [message.text for message in ask.messages]) for ask in model.asks]
    assert sent[-1] == ("never say ***", ["use ***", "", "key ***"])
    assert "hunter2" not in repr(list(journal.events()))
    assert "".join(reported) == "it is *** "


def test_the_text_of_a_model_is_shown_while_it_comes_and_not_recorded() -> None:
    journal, heard = MemoryJournal(), []
    run = new_run(
        ToolServices(Scripted(says("one two"))),
        journal,
        watchers=[lambda one: heard.append(one.event)],
    )
    performed(agent(), run)
    assert [one.text for one in heard if isinstance(one, ModelText)] == ["one ", "two "]
    assert not any(isinstance(one.event, ModelText) for one in journal.events())


def test_a_dry_run_sends_no_request() -> None:
    model = Scripted(says("no"))
    run = new_run(ToolServices(model), dry_run=True)
    performed(agent("look at it"), run)
    assert [
        (one.path, one.kind, one.shown) for one in (run.plan_log.steps if run.plan_log else ())
    ] == [("agent", "agent", "look at it")]
    assert model.asks == []


# ── what is not called ───────────────────────────────────────────────────

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}
REFUSED = [
    # tool asked for, arguments, what the model gets
    ("t/other", {}, "refused: there is no tool of this name that you may call; there are: t__read"),
    ("t/raed", {}, "refused: there is no tool of this name that you may call; did you mean t__read? there are: t__read"),
    ("t/read", {}, "refused: the arguments do not fit: 'path' is required"),
    ("t/read", {"path": 1}, "refused: the arguments do not fit: path: must be a string"),
    ("t/read", {"path": "x", "n": 0}, "refused: the arguments do not fit: n: must be at least 1"),
    ("t/read", {"path": "x", "q": 0}, "refused: the arguments do not fit: 'q' is not a parameter"),
    ("t/read", "path=x", "refused: the arguments are not a JSON object"),
    ("t/read", ["x"], "refused: the arguments are not a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "reported"), REFUSED)
def test_what_may_not_be_called_is_refused_recorded_and_never_run(
    tool: str, arguments: Json, reported: str
) -> None:
    journal = MemoryJournal()
    model = Scripted(wants((tool, arguments)), says("then not"))
    fakes = ToolServices(
        model, dict.fromkeys(("t/read", "t/other", "t/raed"), lambda _: "ran"), t__read=SCHEMA
    )
    value = value_of(talked(agent(tools=("t/read",)), fakes, journal))
    assert (fakes.calls, value["output"]) == ([], "then not")
    answer = model.asks[1].messages[-1]
    assert (answer.text, answer.failed, answer.answers) == (reported, True, "use-1")
    recorded = journal.step("agent/turn:1.call:1")
    assert recorded is not None
    assert isinstance(recorded.outcome, Succeeded)
    assert recorded.outcome.value["failed"] is True


def test_without_permissions_no_tool_is_offered() -> None:
    model = Scripted(says("ok"))
    talked(agent(), ToolServices(model, {"t/x": lambda _: 1}))
    assert model.asks[0].tools == ()


ALLOWED = [
    # patterns, id, allowed
    ((), "a/b", False),
    (("*",), "a/b", True),
    (("a/*",), "a/b", True),
    (("a/*",), "a/b/c", True),
    (("a/*",), "a", False),
    (("a/*",), "ab/c", False),
    (("a/b",), "a/b", True),
    (("a/b",), "a/bc", False),
    (("a/*/c",), "a/x/y/c", True),
    (("a*c*c",), "abc", False),
    (("tool:a/b",), "a/b", True),
    (("a/b",), "tool:a/b", True),
    (("a/*",), "a/../b", False),
    (("*",), "../b", False),
    (("*",), "directive:a", False),
    (("directive:*",), "directive:a", True),
    (("directive:*",), "a", False),
    (("a.b",), "axb", False),
    (("[a]/b",), "a/b", False),
    (("a/?",), "a/b", False),
]


@pytest.mark.parametrize(("patterns", "tool", "allowed"), ALLOWED)
def test_a_pattern_names_what_it_says(patterns: tuple[str, ...], tool: str, allowed: bool) -> None:
    assert Permissions(patterns).allow(tool) is allowed


def test_an_inner_agent_has_no_more_than_the_outer_one() -> None:
    inner = Permissions(("*",), Permissions(("a/*", "b"), Permissions(("a/*",))))
    assert [tool for tool in ("a/x", "b", "c") if inner.allow(tool)] == ["a/x"]


IDS = st.builds(
    "/".join,
    st.lists(st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,12}", fullmatch=True), min_size=1, max_size=8),
).filter(lambda text: "." not in text.split("/")[0])


@given(st.sets(st.one_of(IDS, IDS.map("directive:".__add__)), max_size=30))
def test_names_on_the_wire_are_allowed_there_and_lead_back_to_one_tool(ids: set[str]) -> None:
    offers = [make_offer(one, "", None) for one in sorted(ids)]
    assert [tool_id_for(offer.name, offers) for offer in offers] == sorted(ids)
    assert len({offer.name for offer in offers}) == len(ids)
    for offer in offers:
        assert 0 < len(offer.name) <= 64
        assert offer.name.replace("_", "").replace("-", "").isalnum()


def test_a_plain_id_can_be_read_in_its_name() -> None:
    assert [wire_name(one) for one in ("core/file/read", "team/my_report", "directive:team/x")] == [
        "core__file__read",
        "team__my_report",
        "directive-_team__x",
    ]


# ── tools that fail ──────────────────────────────────────────────────────


def test_a_tool_that_fails_is_a_result_and_not_the_end() -> None:
    model = Scripted(wants(("t/x", {})), says("sorry"))
    value = value_of(
        talked(
            agent(tools=("*",)), ToolServices(model, {"t/x": lambda _: failed("t/x", "no disk")})
        )
    )
    assert value["output"] == "sorry"
    answer = model.asks[1].messages[-1]
    assert (answer.failed, answer.text) == (True, "exit: t/x: no disk")


def test_a_tool_that_is_refused_is_a_result_too() -> None:
    def refuse(_: Mapping[str, Json]) -> Json:
        raise InputError("that is outside the project", fix="stay inside", code="outside")

    model = Scripted(wants(("t/x", {})), says("sorry"))
    value_of(talked(agent(tools=("*",)), ToolServices(model, {"t/x": refuse})))
    assert (
        model.asks[1].messages[-1].text == "refused: that is outside the project\nfix: stay inside"
    )


@pytest.mark.parametrize("calls", [1, 3])
def test_an_untrusted_tool_ends_the_run(calls: int) -> None:
    def refuse(_: Mapping[str, Json]) -> Json:
        raise TrustError("not trusted", fix="trust it", code="untrusted")

    model = Scripted(wants(*[("t/x", {})] * calls), says("never"))
    with pytest.raises(TrustError):
        talked(agent(tools=("*",)), ToolServices(model, {"t/x": refuse}))
    assert len(model.asks) == 1


# ── ends that are none ───────────────────────────────────────────────────


def test_an_answer_that_was_cut_off_is_a_failure_and_its_calls_are_not_made() -> None:
    cut = ModelResponse("", (ToolRequest("1", "t__x", {}),), TokenUsage(), "m", "length")
    fakes = ToolServices(Scripted(cut), {"t/x": lambda _: 1})
    failure = failure_of(talked(agent(tools=("*",), options={"max_tokens": 7}), fakes))
    assert (failure.kind, failure.message) == (
        "length",
        "the model had no room left for its answer (7 tokens): raise options.max_tokens or limits.tokens",
    )
    assert fakes.calls == []


def test_a_model_that_declines_is_a_failure() -> None:
    failure = failure_of(talked(agent(), ToolServices(Scripted(says("no", ending="refused")))))
    assert (failure.kind, failure.message, failure.output["text"]) == (
        "refused",
        "the model declined to answer",
        "no",
    )


def test_without_a_provider_it_says_what_to_do() -> None:
    failure = failure_of(talked(agent(), ToolServices(None)))
    assert failure == Failure(NO_PROVIDER, "refused", path="agent")


def test_a_provider_that_fails_ends_it_with_what_there_is() -> None:
    def fails(_: ModelRequest) -> ModelResponse:
        raise StepError(
            Failure("503", "server_error", output={"usage": TokenUsage(3, 0, cost=0.5).record()})
        )

    model = Scripted(wants(("t/x", {})), fails)
    failure = failure_of(talked(agent(tools=("*",)), ToolServices(model, {"t/x": lambda _: 1})))
    assert (failure.kind, failure.message, failure.path) == ("server_error", "503", "agent/turn:2")
    assert (failure.output["turns"], failure.output["ended"]) == (1, "server_error")


# ── answers of a schema ──────────────────────────────────────────────────

SCHEMA_CHECK = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("text", ['{"ok": true}', '```json\n{"ok": true}\n```', ' {"ok":true}\n'])
def test_an_answer_of_the_schema_is_data(text: str) -> None:
    value = value_of(talked(agent(schema=SCHEMA_CHECK), ToolServices(Scripted(says(text)))))
    assert (value["output"], value["data"], value["text"]) == ({"ok": True}, {"ok": True}, text)


def test_a_bad_answer_goes_back_with_what_is_wrong_and_the_schema() -> None:
    model = Scripted(says("yes!"), says('{"ok": "yes"}'), says('{"ok": true}'))
    value = value_of(talked(agent(schema=SCHEMA_CHECK), ToolServices(model)))
    assert (value["data"], value["turns"], value["usage"]["calls"]) == ({"ok": True}, 3, 3)
    first, second = (ask.messages[-1].text.split("\n")[0] for ask in model.asks[1:])
    assert first == "Your answer cannot be used: it is not JSON"
    assert second == "Your answer cannot be used: ok: must be a boolean"


def test_too_many_bad_answers_fail_loudly_with_the_raw_text() -> None:
    model = Scripted(*[says("yes!")] * 3)
    failure = failure_of(
        talked(agent(schema=SCHEMA_CHECK, max_output_retries=1), ToolServices(model))
    )
    assert (failure.kind, failure.message, failure.output["text"], len(model.asks)) == (
        "bad_answer",
        "2 responses did not match the schema: it is not JSON",
        "yes!",
        2,
    )


# ── limits ───────────────────────────────────────────────────────────────


def for_ever(_: ModelRequest) -> ModelResponse:
    return wants(("t/x", {}), text="more")


LIMITED = [
    # limits, questions that were asked, calls that were made, message
    (Limits(turns=2), 2, 2, "'review' has reached its limit of 2 turns (2 used)"),
    (
        Limits(tokens=61),
        2,
        2,
        "'review' has reached its limit of 61 tokens (30 used, the next call needs about 45)",
    ),
    (Limits(spend=0.5), 2, 2, "'review' has reached its limit of 0.5 spend (0.5 used)"),
    (Limits(steps=3), 4, 3, "'review' has reached its limit of 3 steps (3 used)"),
    (Limits(turns=0), 0, 0, "'review' has reached its limit of 0 turns (0 used)"),
]


@pytest.mark.parametrize(("limits", "asked", "made", "message"), LIMITED)
def test_a_limit_is_looked_at_before_each_call(
    limits: Limits, asked: int, made: int, message: str
) -> None:
    model = Scripted(for_ever)
    fakes = ToolServices(model, {"t/x": lambda _: 1})
    failure = failure_of(talked(agent(tools=("*",), limits=limits), fakes))
    assert (failure.kind, failure.message) == ("limit", message)
    assert (len(model.asks), len(fakes.calls)) == (asked, made)
    assert failure.output["turns"] == asked
    assert failure.output["ended"] in message


def test_no_more_calls_are_made_than_the_limit_of_steps_allows() -> None:
    fakes = ToolServices(Scripted(wants(*[("t/x", {})] * 3)), {"t/x": lambda _: 1})
    failure = failure_of(talked(agent(tools=("*",), limits=Limits(steps=2)), fakes))
    assert (failure.kind, len(fakes.calls)) == ("limit", 2)


def test_the_room_for_an_answer_is_what_is_left_of_the_tokens() -> None:
    model = Scripted(wants(("t/x", {})), says("ok"))
    fakes = ToolServices(model, {"t/x": lambda _: 1})
    talked(
        agent(
            tools=("*",), limits=Limits(tokens=100), options={"max_tokens": 90, "temperature": 0}
        ),
        fakes,
    )
    assert [dict(ask.options) for ask in model.asks] == [
        {"max_tokens": 100 - estimate_request_tokens(model.asks[0]), "temperature": 0},
        {"max_tokens": 100 - 15 - estimate_request_tokens(model.asks[1]), "temperature": 0},
    ]


def test_what_is_spent_inside_is_spent_outside() -> None:
    fakes = ToolServices(Scripted(for_ever), {"t/x": lambda _: 1})
    run = new_run(fakes, budget=Budget(Limits(turns=3)))
    with pytest.raises(LimitExceeded) as caught:
        performed(agent(tools=("*",), limits=Limits(turns=9)), run)
    assert caught.value.failure.message == "the run has reached its limit of 3 turns (3 used)"
    assert run.journal.step("agent") is None, "it is no failure of the agent"


# ── resume ───────────────────────────────────────────────────────────────


def test_what_is_recorded_is_neither_asked_nor_called_again() -> None:
    journal = MemoryJournal()
    first = ToolServices(
        Scripted(wants(("t/x", {"n": 1})), wants(("t/x", {"n": 2}))), {"t/x": lambda _: "r"}
    )
    step = agent(tools=("*",))
    with pytest.raises(
        OverError
    ):  # the script is over: the process dies while it asks a third time
        talked(step, first, journal)
    second = ToolServices(Scripted(says("done")), {"t/x": lambda _: "r"})
    value = value_of(talked(step, second, journal.reopen()))
    assert (value["output"], value["turns"], value["usage"]["input"]) == ("done", 3, 30)
    assert second.calls == []
    (ask,) = second.scripted.asks  # type: ignore[union-attr]
    assert [message.role for message in ask.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


def test_only_unrecorded_parallel_calls_are_repeated() -> None:
    journal = MemoryJournal()
    step = agent(tools=("*",))

    def dies(_: Mapping[str, Json]) -> Json:
        raise KeyboardInterrupt

    uses = wants(("t/a", {}), ("t/b", {}))
    gone = threading.Event()

    def a(_: Mapping[str, Json]) -> Json:
        gone.set()
        return "A"

    def b(_: Mapping[str, Json]) -> Json:
        assert gone.wait(20)
        while journal.step("agent/turn:1.call:1") is None:
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talked(step, ToolServices(Scripted(uses), {"t/a": a, "t/b": b}), journal)
    again = ToolServices(Scripted(says("done")), {"t/a": dies, "t/b": lambda _: "B"})
    assert value_of(talked(step, again, journal.reopen()))["output"] == "done"
    assert again.calls == [("t/b", {})]


def test_replayed_turns_count_towards_the_limits() -> None:
    journal = MemoryJournal()
    tools = {"t/x": lambda _: 1}
    script = Scripted(wants(("t/x", {})), wants(("t/x", {})))
    with pytest.raises(OverError):
        talked(agent(tools=("*",), limits=Limits(turns=9)), ToolServices(script, tools), journal)
    again = Scripted(for_ever)
    outcome = talked(
        agent(tools=("*",), limits=Limits(turns=3)), ToolServices(again, tools), journal.reopen()
    )
    assert (failure_of(outcome).kind, len(again.asks)) == ("limit", 1)


def test_a_run_that_reached_its_limit_goes_on_with_a_higher_one() -> None:
    journal, tools = MemoryJournal(), {"t/x": lambda _: 1}
    first = agent(tools=("*",), limits=Limits(turns=1))
    assert (
        failure_of(talked(first, ToolServices(Scripted(for_ever), tools), journal)).kind == "limit"
    )
    higher = Scripted(says("done"))
    value = value_of(
        talked(
            agent(tools=("*",), limits=Limits(turns=5)),
            ToolServices(higher, tools),
            journal.reopen(),
        )
    )
    assert (value["turns"], len(higher.asks)) == (2, 1)


def test_another_prompt_is_a_change_that_a_person_has_to_accept() -> None:
    journal, tools = MemoryJournal(), {"t/x": lambda _: 1}
    with pytest.raises(OverError):
        talked(agent(tools=("*",)), ToolServices(Scripted(wants(("t/x", {}))), tools), journal)
    with pytest.raises(InputError) as caught:
        talked(
            agent("other", tools=("*",)), ToolServices(Scripted(says("x")), tools), journal.reopen()
        )
    assert caught.value.code == "changed"


def test_what_may_be_called_only_once_is_asked_about() -> None:
    journal = MemoryJournal()
    step = agent(tools=("*",), once=("pay/*",))

    def dies(_: Mapping[str, Json]) -> Json:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talked(
            step,
            ToolServices(Scripted(wants(("pay/out", {"sum": 3}))), {"pay/out": dies}),
            journal,
        )
    again = ToolServices(Scripted(says("done")), {"pay/out": lambda _: 1})
    with pytest.raises(InputError) as caught:
        talked(step, again, journal.reopen())
    assert (caught.value.code, again.calls) == ("once", [])
    assert "--repeat agent/turn:1.call:1" in str(caught.value.fix)
    value = recorded_tool_call(journal, "agent/turn:1.call:1")
    assert value == {"output": "", "failed": False, "tool": "pay__out"}
    answered = {"agent/turn:1.call:1": value}
    assert value_of(talked(step, again, journal.reopen(), marked_done=answered))["output"] == "done"
    assert again.calls == []


# ── agents inside agents ─────────────────────────────────────────────────


class Nested(ToolServices):
    """A tool that is an agent of its own, performed below the call."""

    child: AgentStep

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Any:  # noqa: ARG002
        if tool_id != "sub":
            return None
        return self

    name = "sub"
    children = ()
    phases = ()
    map = None

    def run(self, turn: Any) -> Json:
        from plait.engine.outcome import require_success

        return require_success(turn.perform(self.child))


def test_a_child_has_at_most_what_its_parent_has() -> None:
    journal = MemoryJournal()
    model = Scripted(
        wants(("sub", {})), wants(("t/x", {}), ("t/y", {})), says("inner"), says("outer")
    )
    fakes = Nested(model, {"sub": lambda _: "never", "t/x": lambda _: "X", "t/y": lambda _: "Y"})
    fakes.child = AgentStep("agent", "child", "help", tools=("*",))
    value = value_of(talked(agent(tools=("sub", "t/x")), fakes, journal))
    assert [offer.tool_id for offer in model.asks[1].tools] == ["sub", "t/x"]
    assert [call[0] for call in fakes.calls] == ["t/x"]
    assert model.asks[2].messages[-1].text.startswith("refused: there is no tool of this name")
    assert value["output"] == "outer"
    assert journal.step("agent/turn:1.call:1/agent/turn:1") is not None


def test_agents_inside_one_another_are_limited_by_the_outermost() -> None:
    model = Scripted(lambda _: wants(("sub", {}), text="deeper"))
    fakes = Nested(model, {"sub": lambda _: "never"})
    fakes.child = AgentStep("agent", "child", "help", tools=("*",))
    failure = failure_of(talked(agent(tools=("*",), limits=Limits(depth=2, turns=9)), fakes))
    assert failure.message == "'review' has reached its limit of 9 turns (9 used)"
    reported = [message.text for ask in model.asks for message in ask.messages if message.failed]
    assert "limit: 'review' has reached its limit of 2 depth (3 used)" in [
        one.split("\n")[0] for one in reported
    ]


def test_a_person_may_permit_what_no_permission_covers() -> None:
    asked: list[str] = []

    def consent(tool_id: str, params: Mapping[str, Json]) -> bool:
        asked.append(f"{tool_id} {dict(params)}")
        return tool_id == "t/x"

    model = Scripted(wants(("t/x", {"n": 1}), ("t/y", {}), ("t/z", {})), says("ok"))
    fakes = ToolServices(model, {"t/x": lambda _: "X", "t/y": lambda _: "Y", "t/z": lambda _: "Z"})
    talked(agent(tools=("t/z",), consent=consent), fakes)
    assert sorted(asked) == ["t/x {'n': 1}", "t/y {}"]
    assert sorted(call[0] for call in fakes.calls) == ["t/x", "t/z"]
    assert [message.text for message in model.asks[1].messages[2:]] == [
        "X",
        "refused: 't/y' may not be called here",
        "Z",
    ]


def test_earlier_messages_come_before_the_prompt() -> None:
    model = Scripted(says("ok"))
    talked(agent(before=(Message("user", "a"), Message("assistant", "b"))), ToolServices(model))
    assert [message.text for message in model.asks[0].messages] == ["a", "b", "do it"]


def test_offers_are_those_of_the_fakes() -> None:
    model = Scripted(says("ok"))
    talked(
        agent(tools=("t/*",)),
        ToolServices(model, {"t/x": lambda _: 1, "u/y": lambda _: 2}, t__x=SCHEMA),
    )
    assert model.asks[0].tools == (ToolOffer("t__x", "does t/x", SCHEMA, "t/x"),)


def test_a_turn_of_its_own_is_no_agent_above() -> None:
    run = new_run(ToolServices(Scripted(says("ok"))))
    performed(agent(), run)
    assert run.shared(AgentScopes) == {}
    assert turn_of(run).path == ""


def test_a_hook_may_end_the_run_before_a_call() -> None:
    guard = Hook("guard", "tool_call", verb="abort", why="too risky")
    model = Scripted(wants(("t/x", {})), says("never"))
    fakes = ToolServices(model, {"t/x": lambda _: 1})
    run = new_run(fakes, hooks=HookRunner([guard], call=lambda *_: FunctionAction(lambda _: {})))
    with pytest.raises(Aborted) as caught:
        performed(agent(tools=("*",)), run)
    assert (str(caught.value), fakes.calls) == ("the hook 'guard' says abort: too risky", [])


def test_a_hook_may_forbid_one_call_and_the_model_receives_the_reason() -> None:
    guard = Hook("guard", "tool_call", verb="skip", why="not now")
    model = Scripted(wants(("t/x", {})), says("then not"))
    fakes = ToolServices(model, {"t/x": lambda _: 1})
    run = new_run(fakes, hooks=HookRunner([guard], call=lambda *_: FunctionAction(lambda _: {})))
    assert value_of(performed(agent(tools=("*",)), run))["output"] == "then not"
    assert fakes.calls == []
    assert (
        model.asks[1].messages[-1].text
        == "refused: it was not called: the hook 'guard' says skip: not now"
    )


def test_an_answer_after_which_a_hook_ends_the_run_is_recorded() -> None:
    journal = MemoryJournal()
    hooks = HookRunner(
        [Hook("stop", "turn_finished", verb="abort", why="enough")],
        call=lambda *_: FunctionAction(lambda _: {}),
    )
    run = new_run(ToolServices(Scripted(says("paid for"))), journal, hooks=hooks)
    with pytest.raises(Aborted):
        performed(agent(), run)
    assert journal.step("agent/turn:1") is not None


def test_progress_knows_turns_tokens_and_cost() -> None:
    journal = MemoryJournal()
    model = Scripted(wants(("sub", {})), says("inner"), says("outer"))
    fakes = Nested(model, {"sub": lambda _: "never"})
    fakes.child = AgentStep("agent", "child", "help")
    seen: list[tuple[int, int, float]] = []
    progress = Progress()

    def watch(stamped: EventRecord) -> None:
        progress.add(stamped)
        if isinstance(stamped.event, StepFinished) and stamped.event.kind == "turn":
            (step,) = [one for one in progress._running if one.path == "agent"]
            seen.append((step.usage.turns, step.usage.tokens, step.usage.cost))

    run = new_run(fakes, journal, watchers=[watch])
    performed(agent(tools=("sub",)), run)
    assert seen == [(1, 15, 0.25), (2, 30, 0.5), (3, 45, 0.75)]
    assert (progress.usage.turns, progress.usage.tokens, progress.usage.cost) == (3, 45, 0.75)
    assert replay_events(journal.events()).usage.turns == 3


def test_the_usage_of_agents_inside_a_replayed_call_counts_towards_the_limits() -> None:
    journal = MemoryJournal()
    fakes = Nested(Scripted(wants(("sub", {})), says("inner")), {"sub": lambda _: "never"})
    fakes.child = AgentStep("agent", "child", "help")
    with pytest.raises(OverError):
        talked(agent(tools=("sub",), limits=Limits(turns=9)), fakes, journal)
    again = Nested(Scripted(says("never asked")), {"sub": lambda _: "never"})
    again.child = fakes.child
    failure = failure_of(
        talked(agent(tools=("sub",), limits=Limits(turns=2)), again, journal.reopen())
    )
    assert failure.message == "'review' has reached its limit of 2 turns (2 used)"
    assert again.scripted is not None
    assert again.scripted.asks == []
