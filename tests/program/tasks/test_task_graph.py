"""Ensembles in Python: what runs when, what each task is given, what comes of it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait import Agent, Ensemble, EnsembleError, Loop, Manager, MapReduce, Secret, Task, TaskOutput
from plait.agents.messages import ModelRequest, ModelResponse, TokenUsage, ToolRequest
from plait.core.errors import InputError
from plait.core.records import replace
from plait.core.values import Json
from plait.program.tasks.function_fingerprints import function_fingerprint, is_process_local
from plait.program.tasks.model import Handler
from plait.template.template import compile_template

USED = TokenUsage(10, 5, cost=0.25)
PLACEHOLDERS = ["${HOME}", "{input:q}", "{topic}", "{{topic}}", "$NAME", "$${x}", "{item}", "{5}"]


@pytest.fixture(autouse=True)
def _nowhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No project: what happens is kept in memory."""
    monkeypatch.chdir(tmp_path)
    home = str(tmp_path_factory.mktemp("home"))  # in no project: one that is could not speak for it
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("USER_SPACE", home)
    monkeypatch.delenv("PLAIT_PROVIDER", raising=False)


def text_of(task: Task, context: Sequence[TaskOutput]) -> Json:
    """What a task and its context say, on one line."""
    return " < ".join([str(task.description), *(one.raw for one in context)])


def doing(description: str | None, expected: str | None = "", **fields: Any) -> Task:
    return Task(description, expected, handler=fields.pop("handler", text_of), **fields)


def failing(description: str = "fail", **fields: Any) -> Task:
    def handler(task: Task, context: Sequence[TaskOutput]) -> Json:
        raise ValueError(f"no {task.description} {len(context)}")

    return Task(description, "", handler=handler, **fields)


class Model:
    """Gives the next answer, or the result of a function of the request; keeps every request."""

    def __init__(
        self, *answers: str | ModelResponse | Callable[[ModelRequest], str | ModelResponse]
    ) -> None:
        self.asks: list[ModelRequest] = []
        self._answers = answers

    def __call__(self, ask: ModelRequest) -> ModelResponse:
        given = self._answers[min(len(self.asks), len(self._answers) - 1)]
        self.asks.append(ask)
        answer = given(ask) if callable(given) else given
        return (
            answer
            if isinstance(answer, ModelResponse)
            else ModelResponse(answer, usage=USED, model="m-1")
        )

    @property
    def prompts(self) -> list[str]:
        return [ask.messages[-1].text for ask in self.asks]


def raws(output: plait.EnsembleOutput) -> list[str]:
    return [one.raw for one in output.task_outputs]


def refused(*tasks: Task, **fields: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        Ensemble(tasks, **fields)
    return [problem.what for problem in caught.value.problems]


# ── texts ────────────────────────────────────────────────────────────────


def test_texts_are_filled_and_the_tasks_stay_as_they_were_written() -> None:
    task = doing("About {topic}", "On {topic}, {n} lines")
    ensemble = Ensemble([task])
    [resolved] = ensemble.resolve({"topic": "tides", "n": 3})
    assert (resolved.description, resolved.expected_output) == ("About tides", "On tides, 3 lines")
    assert (task.description, task.expected_output) == ("About {topic}", "On {topic}, {n} lines")
    assert ensemble.run({"topic": "moons", "n": None}).raw == "About moons"


def test_every_missing_variable_of_the_whole_ensemble_is_reported_before_anything_runs() -> None:
    ran: list[str] = []

    def handler(task: Task, _: Sequence[TaskOutput]) -> Json:
        ran.append(str(task.description))
        return ""

    first = doing("{a} {b}", "{c}", handler=handler, name="first")
    looped = doing("{d} {a}", handler=handler, name="looped")
    mapped = doing("{item} {item_index} {e}", handler=handler, name="mapped")
    agent = Agent("a {f}", "{a}", provider=Model("no"))
    asked = Task("ask", "{g}", agent=agent, name="asked")
    ensemble = Ensemble(
        [first, looped, mapped, asked], loops=[Loop([looped])], map=MapReduce("files", mapped)
    )
    with pytest.raises(plait.PromptTemplateError) as caught:
        ensemble.run({"b": 1})
    error = caught.value
    assert error.missing_variables == ["a", "c", "d", "files", "e", "g", "f"]
    assert error.template == "{a} {b}"
    assert [problem.what.split(". Provide")[0] for problem in error.problems] == [
        "Missing template variables: [a], in the description of task 'first'",
        "Missing template variables: [c], in the expected output of task 'first'",
        "Missing template variables: [d, a], in the description of task 'looped'",
        "Missing template variables: [files], in the items of task 'mapped'",
        "Missing template variables: [e], in the description of task 'mapped'",
        "Missing template variables: [g], in the expected output of task 'asked'",
        "Missing template variables: [f], in the role of agent 'a {f}'",
        "Missing template variables: [a], in the goal of agent 'a {f}'",
    ]
    assert str(error).startswith(
        "Missing template variables: [a], in the description of task 'first'. "
        "Provide them in ensemble.run(inputs). Template: '{a} {b}'\n"
    )
    assert ran == []
    assert ensemble.variables == ("a", "b", "c", "d", "files", "e", "g", "f")


def test_a_long_template_is_cut_in_the_message_and_whole_in_the_error() -> None:
    template = "x" * 101 + "{a}"
    with pytest.raises(plait.PromptTemplateError) as caught:
        Ensemble([doing(template)]).run()
    assert str(caught.value).endswith(f"Template: '{'x' * 100}...'")
    assert caught.value.template == template


def test_what_was_given_to_one_run_is_not_there_in_the_next() -> None:
    ensemble = Ensemble([doing("{a}")])
    assert ensemble.run({"a": 1}).raw == "1"
    with pytest.raises(plait.PromptTemplateError):
        ensemble.run()


def test_inputs_of_the_ensemble_are_there_unless_others_are_given() -> None:
    ensemble = Ensemble([doing("{a} {b}")], inputs={"a": 1, "b": 2})
    assert ensemble.run({"b": 3}).raw == "1 3"


@given(value=st.one_of(st.text(), st.sampled_from(PLACEHOLDERS)), other=st.text())
def test_a_value_arrives_as_it_is_in_texts_and_in_contexts(value: str, other: str) -> None:
    first = doing("{a} {b}")
    second = doing("{b}", context=[first])
    output = Ensemble([first, second]).run({"a": value, "b": other})
    assert raws(output) == [f"{value} {other}", f"{other} < {value} {other}"]


NOT_STRINGS = [
    (None, ""),
    (True, "true"),
    (3, "3"),
    (0.5, "0.5"),
    (["a", 1], '["a",1]'),
    (("a",), '["a"]'),
    ({"b": None}, '{"b":null}'),
]


@pytest.mark.parametrize(("value", "text"), NOT_STRINGS)
def test_values_that_are_no_text_have_one_text_form(value: Json, text: str) -> None:
    assert Ensemble([doing("<{a}>")]).run({"a": value}).raw == f"<{text}>"


def test_an_input_that_is_no_data_is_refused_by_its_name() -> None:
    with pytest.raises(InputError) as caught:
        Ensemble([doing("no hole")]).run({"when": object()})
    assert caught.value.what.startswith("the input 'when' cannot be used")


def test_a_handler_is_given_the_inputs_as_data() -> None:
    def handler(task: Task, _: Sequence[TaskOutput]) -> Json:
        return {"sum": sum(task.inputs["numbers"])}

    output = Ensemble([doing("add {numbers}", handler=handler)]).run({"numbers": [1, 2]})
    assert (output.raw, output.data) == ('{"sum":3}', {"sum": 3})


# ── order, context, identity ─────────────────────────────────────────────


def test_two_equal_tasks_keep_two_outputs() -> None:
    numbers = iter("12")

    def handler(*_: object) -> Json:
        return next(numbers)

    one, other = doing("same", handler=handler), doing("same", handler=handler)
    assert one == other
    last = doing("both", context=[other, one])
    output = Ensemble([one, other, last], workflow="sequential").run()
    assert raws(output) == ["1", "2", "both < 2 < 1"]
    assert [one.id for one in output.task_outputs] == ["task-1", "task-2", "task-3"]


def test_tasks_in_many_layers_are_compared_and_hashed_at_once() -> None:
    def layered() -> Task:
        layer = [doing("a"), doing("b")]
        for _ in range(60):
            layer = [doing("a", context=layer), doing("b", context=layer)]
        return layer[0]

    one, other = layered(), layered()
    assert (hash(one) == hash(other), one == other) == (True, False)


def test_the_strategy_follows_from_contexts() -> None:
    first = doing("a")
    assert Ensemble([first]).run().trace["workflow"] == "sequential"
    assert Ensemble([first, doing("b", context=[first])]).run().trace["workflow"] == "parallel"


def test_parallel_tasks_run_at_the_same_time_and_contexts_come_in_declared_order() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def handler(task: Task, _: Sequence[TaskOutput]) -> Json:
        barrier.wait()  # both at once, or never
        return task.description

    one, other = doing("one", handler=handler), doing("other", handler=handler)
    last = doing("last", context=[other, one])
    output = Ensemble([last, one, other]).run()
    assert raws(output) == ["last < other < one", "one", "other"]


@given(edges=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_whatever_the_contexts_a_task_comes_after_all_that_it_needs(
    edges: list[tuple[int, int]],
) -> None:
    tasks: list[Task] = []
    for number in range(8):
        needs = [tasks[first] for first, second in edges if second == number and first < number]
        tasks.append(doing(f"t{number}", context=needs, handler=lambda _, context: [len(context)]))
    output = Ensemble(tasks, workflow="parallel", max_parallel=3).run()
    assert [one.data for one in output.task_outputs] == [[len(task.context)] for task in tasks]


# ── failures ─────────────────────────────────────────────────────────────


def test_a_failed_run_ends_with_a_failed_event_and_the_outputs_so_far() -> None:
    seen: list[Any] = []
    tasks = [doing("a", name="a"), failing("b", name="b"), doing("c", name="c")]
    with pytest.raises(EnsembleError) as caught:
        Ensemble(tasks).run(watch=lambda stamped: seen.append(stamped.event))
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert [(one.id, one.status, one.raw) for one in output.task_outputs] == [
        ("a", "done", "a"),
        ("b", "failed", ""),
    ]
    assert caught.value.what == (
        "the ensemble ended before it was done: task 'b': the handler raised ValueError: no b 0"
    )
    assert caught.value.fix == "error.output has what was done until then"
    assert (output.status, output.raw, output.trace["status"]) == ("failed", "a", "failed")
    assert (type(seen[-1]).__name__, seen[-1].status) == ("RunEnded", "failed")


def test_continue_on_error_skips_only_what_needs_the_failed() -> None:
    bad = failing(name="bad")
    needs = doing("needs", context=[bad], name="needs")
    further = doing("further", context=[needs], name="further")
    free = doing("free", name="free")
    with pytest.raises(EnsembleError) as caught:
        Ensemble([bad, needs, further, free], on_error="continue_on_error").run()
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert {one.id: (one.status, one.why.split(":")[0]) for one in output.task_outputs} == {
        "bad": ("failed", "the handler raised ValueError"),
        "needs": ("skipped", "'bad', which it needs, failed"),
        "further": ("skipped", "'needs', which it needs, was skipped"),
        "free": ("done", ""),
    }


def test_fail_fast_begins_nothing_more() -> None:
    ran: list[str] = []

    def handler(task: Task, _: Sequence[TaskOutput]) -> Json:
        ran.append(str(task.description))
        return ""

    with pytest.raises(EnsembleError):
        Ensemble(
            [failing(), doing("later", handler=handler)], workflow="parallel", max_parallel=1
        ).run()
    assert ran == []


def test_a_task_is_tried_as_often_as_it_says() -> None:
    tries: list[int] = []

    def handler(*_: object) -> Json:
        tries.append(1)
        if len(tries) < 2:
            raise OSError("not yet")
        return "at last"

    assert Ensemble([doing("a", handler=handler, attempts=2)]).run().raw == "at last"


def test_what_a_handler_returns_has_to_be_data() -> None:
    with pytest.raises(EnsembleError) as caught:
        Ensemble([doing("a", handler=lambda *_: object())]).run()
    assert "is not JSON data" in caught.value.what


# ── agents ───────────────────────────────────────────────────────────────


def test_a_prompt_has_the_context_first_and_then_the_task() -> None:
    model = Model("found", "written")
    agent = Agent("a researcher", "find {topic}", background="You know libraries.", provider=model)
    first = Task("Find {topic}", "facts", agent=agent, name="find")
    second = Task("Write", "a page", agent=agent, context=[first])
    output = Ensemble([first, second]).run({"topic": "tides"})
    assert raws(output) == ["found", "written"]
    assert model.asks[0].system == (
        "You are a researcher.\n\nYou know libraries.\n\nYour goal: find tides\n\n"
        "Do the task that you are given, and answer with its result and nothing else."
    )
    assert model.prompts == [
        "## Task\n\nFind tides\n\n## Expected output\n\nfacts",
        "## Output of find (a researcher)\n\nfound\n\n## Task\n\nWrite\n\n## Expected output\n\na page",
    ]


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_what_a_model_says_is_never_a_template(text: str) -> None:
    model = Model(text, "end")
    first = Task("a {topic}", "", agent=Agent("r", provider=model))
    second = Task("b {topic}", "", agent=first.agent, context=[first])
    Ensemble([first, second]).run({"topic": text})
    assert model.prompts[1] == f"## Output of task-1 (r)\n\n{text}\n\n## Task\n\nb {text}"


def test_usage_is_kept_by_task_and_summed_up_also_beside_tasks_without_a_model() -> None:
    agent = Agent("one role", provider=Model("x"))
    output = Ensemble([Task("a", "", agent=agent), doing("b"), Task("c", "", agent=agent)]).run()
    assert [one.tokens for one in output.task_outputs] == [15, 0, 15]
    assert (output.tokens, output.cost) == (30, 0.5)
    assert [one.agent for one in output.task_outputs] == ["one role", "", "one role"]
    assert Ensemble([doing("b")]).run().cost is None


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "object"}},
    "required": ["a"],
    "title": "{5} {x}",
}


def test_an_answer_of_a_schema_is_asked_for_again_and_every_question_counts() -> None:
    model = Model("no JSON", '{"a": {"b": 1}}')
    task = Task("Give", "data", agent=Agent("r", provider=model), output_schema=SCHEMA)
    output = Ensemble([task]).run()
    assert (output.raw, output.data) == ('{"a": {"b": 1}}', {"a": {"b": 1}})
    assert (output.tokens, output.task_outputs[0].tokens) == (30, 30)
    assert '"title":"{5} {x}"' in model.prompts[0]


def test_an_answer_that_never_fits_fails_the_task_with_the_text_of_the_model() -> None:
    first = doing("a", name="a")
    task = Task(
        "Give",
        "",
        agent=Agent("r", provider=Model("prose")),
        output_schema=SCHEMA,
        max_output_retries=1,
        name="b",
    )
    with pytest.raises(EnsembleError) as caught:
        Ensemble([first, task]).run()
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert [(one.id, one.status, one.raw, one.tokens) for one in output.task_outputs] == [
        ("a", "done", "a", 0),
        ("b", "failed", "prose", 30),
    ]
    assert output.tokens == 30


def test_a_limit_ends_the_ensemble_before_the_question_that_would_exceed_it() -> None:
    model = Model("x")
    tasks = [
        Task("a", "", agent=Agent("r", provider=model)),
        Task("b", "", agent=Agent("s", provider=model)),
    ]
    with pytest.raises(EnsembleError) as caught:
        Ensemble(tasks, limits={"turns": 1}).run()
    assert caught.value.code == "limit"
    assert len(model.asks) == 1
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert output.task_outputs[0].raw == "x"


def test_a_model_is_needed_only_for_a_task_without_a_tool_or_flow() -> None:
    assert Ensemble([doing("a")]).run().raw == "a"
    with pytest.raises(EnsembleError) as caught:
        Ensemble([doing("a"), Task("b", "", name="b")]).run()
    assert "task 'b' needs a model" in caught.value.what


def test_a_list_of_answers_is_played_anew_in_each_run() -> None:
    ensemble = Ensemble([Task("a", ""), Task("b", "")], provider=["one", "two"])
    assert (raws(ensemble.run()), raws(ensemble.run())) == (["one", "two"], ["one", "two"])


def test_a_secret_is_in_no_prompt_and_in_no_trace_and_a_handler_can_use_it() -> None:
    def handler(task: Task, _: Sequence[TaskOutput]) -> Json:
        return f"used {task.inputs['key'].reveal()}"

    model = Model("fine")
    first = doing("with {key}", handler=handler)
    second = Task("ask with {key}", "", agent=Agent("r", "{key}", provider=model), context=[first])
    output = Ensemble([first, second]).run({"key": Secret("s3cr3t-value")})
    assert output.task_outputs[0].raw == "used ***"
    assert "s3cr3t-value" not in repr(output.trace) + repr(model.asks) + repr(output)
    assert "ask with ***" in model.prompts[0]


# ── loops ────────────────────────────────────────────────────────────────


def counting(task: Task, _: Sequence[TaskOutput]) -> Json:
    return f"{task.feedback or ''}{task.iteration}"


UNTIL: list[Any] = [
    "${output} == '123'",
    {"path": "output", "value": "123"},
    {"path": "iteration", "op": "gte", "value": 3},
    lambda output: output.raw == "123",
    lambda output: output.iteration == 3,
]


@pytest.mark.parametrize("until", UNTIL)
def test_a_loop_ends_when_its_condition_holds(until: Any) -> None:
    body = doing("edit", handler=counting, name="edit")
    after = doing("after", context=[body])
    output = Ensemble([body, after], loops=[Loop([body], until)]).run()
    assert raws(output) == ["123", "after < 123"]
    assert (output.task_outputs[0].iteration, output.task_outputs[0].reached_max) == (3, False)
    paths = [step["path"] for step in output.trace["steps"]]
    assert "tasks/loop:edit/round:3/task:edit" in paths


def test_a_loop_has_so_many_rounds_and_says_if_that_was_not_enough() -> None:
    def ran(**fields: Any) -> plait.EnsembleOutput:
        body = doing("edit", handler=counting, name="edit")
        return Ensemble([body], loops=[Loop([body], "false", **fields)]).run()

    assert ran().raw == "12345"
    assert ran(max_iterations=2, feedback=False).raw == "2"
    flagged = ran(max_iterations=2, on_max="return_with_flag")
    assert (flagged.raw, flagged.task_outputs[0].reached_max) == ("12", True)
    with pytest.raises(EnsembleError) as caught:
        ran(max_iterations=2, on_max="fail")
    assert "loop 'edit' has not ended after 2 rounds" in caught.value.what
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert raws(output) == ["12"]


def test_the_first_task_of_a_round_receives_the_result_of_the_round_before() -> None:
    model = Model("draft 1", "draft 2")
    write = Task("write", "", agent=Agent("w", provider=model), name="write")
    judge = doing("judge", context=[write], name="judge")
    Ensemble([write, judge], loops=[Loop([write, judge], max_iterations=2)]).run()
    assert model.prompts == [
        "## Task\n\nwrite",
        "## Outcome of the round before\n\njudge < draft 1\n\n## Task\n\nwrite",
    ]


# ── maps ─────────────────────────────────────────────────────────────────


def joined(_: Task, context: Sequence[TaskOutput]) -> Json:
    return f"({'+'.join(one.raw for one in context)})"


CHUNKS = [
    # items, chunk_size, result
    (["a"], 2, "(a)"),
    (["a", "b", "c"], None, "(a+b+c)"),
    (["a", "b", "c"], 2, "((a+b)+c)"),
    (["a", "b", "c", "d", "e"], 2, "(((a+b)+(c+d))+e)"),
    (["a", "b", "c", "d"], 3, "((a+b+c)+d)"),
    ([], 2, ""),
]


@pytest.mark.parametrize(("items", "size", "result"), CHUNKS)
def test_a_map_is_put_together_level_by_level(
    items: list[str], size: int | None, result: str
) -> None:
    each = doing("{item}", name="each")
    reduce = doing("together", handler=joined, name="reduce")
    output = Ensemble([each, reduce], map=MapReduce("all", each, reduce, chunk_size=size)).run(
        {"all": items}
    )
    assert output["reduce"].raw == result
    assert output["each"].data == items


def test_the_text_of_a_map_knows_the_item_its_fields_and_its_place() -> None:
    each = doing("{file} {file_path} {file_index}/{file_total} {topic}", name="each")
    items = [{"path": "{topic}"}, {"path": "b"}]
    output = Ensemble([each], map=MapReduce(items, each, item="file")).run({"topic": "t"})
    assert output.task_outputs[0].data == [
        '{"path":"{topic}"} {topic} 0/2 t',
        '{"path":"b"} b 1/2 t',
    ]


def test_an_item_that_lacks_a_field_is_reported_before_anything_runs() -> None:
    each = doing("{item_path}", name="each")
    with pytest.raises(plait.PromptTemplateError) as caught:
        Ensemble([each], map=MapReduce([{"path": 1}, {"pth": 2}], each)).run()
    assert caught.value.missing_variables == ["item_path"]


def test_items_that_are_no_list_are_refused() -> None:
    each = doing("{item}", name="each")
    with pytest.raises(InputError) as caught:
        Ensemble([each], map=MapReduce("all", each)).run({"all": "abc"})
    assert caught.value.what == "the items of a map must be a list, but the input 'all' is not"


# ── a manager ────────────────────────────────────────────────────────────


def delegating(*uses: tuple[str, str]) -> ModelResponse:
    asked = tuple(
        ToolRequest(f"u{number}", "delegate", {"worker": worker, "task": task})
        for number, (worker, task) in enumerate(uses)
    )
    return ModelResponse("", asked, USED, "m-1", "tools")


def team(*roles: str, model: Model | None = None) -> list[Task]:
    worker = model or Model(lambda ask: f"did {ask.messages[-1].text.rpartition(chr(10))[2]}")
    return [Task(f"part of {role}", "", agent=Agent(role, provider=worker)) for role in roles]


def test_a_manager_delegates_and_receives_refusals_as_text() -> None:
    manager = Model(
        delegating(
            ("writer", "w1 {x}"),
            ("wirter", "w2"),
            ("writer", "w3"),
            ("artist", "a1"),
            ("writer", "w4"),
        ),
        delegating(("writer", "w5")),
        lambda ask: " | ".join(message.text for message in ask.messages if message.role == "tool"),
    )
    output = Ensemble(
        team("writer", "artist"),
        workflow="hierarchical",
        manager=Manager("boss", provider=manager, max_delegations=3, max_per_worker=2),
    ).run()
    assert output.raw.split(" | ") == [
        "did w1 {x}",
        "refused: you cannot delegate to 'wirter'; did you mean 'writer'? workers: writer, artist",
        "did w3",
        "did a1",
        "refused: the limit of 3 delegations is reached",
        "refused: the limit of 3 delegations is reached",
    ]
    assert [(one.name, one.raw) for one in output.task_outputs[:-1]] == [
        ("writer", "did w1 {x}"),
        ("writer", "did w3"),
        ("artist", "did a1"),
    ]
    assert output.task_outputs[-1].id == "manager"
    assert output.tokens == 6 * 15
    assert [offer.name for offer in manager.asks[0].tools] == ["delegate"]


def test_a_manager_may_delegate_to_those_it_is_allowed_to_and_so_often() -> None:
    manager = Model(
        delegating(("artist", "a"), ("writer", "w"), ("writer", "again")),
        lambda ask: " | ".join(message.text for message in ask.messages if message.role == "tool"),
    )
    output = Ensemble(
        team("writer", "artist"),
        workflow="hierarchical",
        manager=Manager("boss", provider=manager, workers=("writer",), max_per_worker=1),
    ).run()
    assert output.raw.split(" | ") == [
        "refused: you cannot delegate to 'artist'; workers: writer",
        "did w",
        "refused: the limit of 1 delegations to 'writer' is reached",
    ]


def test_a_delegation_that_was_never_made_uses_up_nothing() -> None:
    without_task = ModelResponse(
        "", (ToolRequest("u", "delegate", {"worker": "writer"}),), USED, "m-1", "tools"
    )
    manager = Model(
        without_task,
        delegating(("writer", "really")),
        delegating(("writer", "more")),
        lambda ask: " | ".join(message.text for message in ask.messages if message.role == "tool"),
    )
    output = Ensemble(
        team("writer"),
        workflow="hierarchical",
        manager=Manager("boss", provider=manager, max_delegations=1),
    ).run()
    assert output.raw.split(" | ") == [
        "refused: the arguments do not fit: 'task' is required",
        "did really",
        "refused: the limit of 1 delegations is reached",
    ]


def test_what_a_handler_changes_stays_with_it() -> None:
    def adding(task: Task, context: Sequence[TaskOutput]) -> Json:
        task.inputs["x"].append(9)
        for one in context:
            one.data.append(9)
        return task.inputs["x"]

    given = [1]
    first = Task("a", "", handler=adding)
    later = [Task(name, "", handler=adding, context=[first]) for name in "bc"]
    last = Task("d", "", handler=lambda _, context: context[0].data, context=[first])
    output = Ensemble([first, *later, last]).run({"x": given})
    assert ([one.data for one in output.task_outputs], given) == ([[1, 9]] * 4, [1])


def test_a_manager_is_not_done_without_those_who_are_required() -> None:
    with pytest.raises(EnsembleError) as caught:
        Ensemble(
            team("writer", "artist"),
            workflow="hierarchical",
            manager=Manager(
                "boss", provider=Model(delegating(("writer", "w")), "done"), required=("artist",)
            ),
        ).run()
    assert "the manager ended without the work of 'artist'" in caught.value.what
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert output.task_outputs[0].raw == "did w"


def test_workers_are_named_by_their_roles_as_they_are_written() -> None:
    manager = Model(delegating(("tides writer", "w"), ("artist", "a")), "done")
    tasks = team("{topic} writer", "artist")
    leads = Manager(provider=manager, workers=("{topic} writer",), required=("{topic} writer",))
    output = Ensemble(tasks, workflow="hierarchical", manager=leads).run({"topic": "tides"})
    assert [(one.name, one.raw) for one in output.task_outputs] == [
        ("tides writer", "did w"),
        ("the manager of a team", "done"),
    ]
    idle = replace(leads, provider=Model("done"))
    with pytest.raises(EnsembleError, match=r"without the work of '\{topic\} writer'"):
        Ensemble(tasks, workflow="hierarchical", manager=idle).run({"topic": "tides"})


def test_roles_that_become_the_same_are_reported_as_they_are_written() -> None:
    tasks = team("{a} writer", "{b} writer")
    ensemble = Ensemble(tasks, workflow="hierarchical", manager=Manager(provider=Model("done")))
    with pytest.raises((EnsembleError, InputError)) as caught:
        ensemble.run({"a": "tides", "b": "Tides"})
    assert (
        "the roles '{a} writer' and '{b} writer' are equal after their values are filled in"
        in str(caught.value)
    )


# ── what is refused ──────────────────────────────────────────────────────


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    handled = doing("a", agent=Agent("r"), tool="t", name="a")
    other = doing("not there")
    looped = doing("c", context=[other], name="c")
    loop = Loop([looped], max_iterations=0, on_max="stop")  # type: ignore[arg-type]
    assert refused(handled, looped, loops=[loop], workflow="sequental") == [
        "'workflow' cannot be 'sequental'",
        "task 'a' has handler and agent, but only one of them can do it",
        "task 'a' has handler and tool, but only one of them can do it",
        "task 'a' has tool and agent, but only one of them can do it",
        "task 'c' has a task in its context that the ensemble does not have",
        "'max_iterations' of a loop is at least 1",
        "'on_max' cannot be 'stop'",
    ]


def test_more_that_is_refused() -> None:
    a, b = doing("a", name="a"), doing("b", name="b")
    late = doing("late", context=[a], name="late")
    asked = Task("x", "", agent=Agent("r"))
    rows: list[tuple[list[Task], dict[str, Any], list[str]]] = [
        ([], {}, ["an ensemble has at least one task"]),
        ([a, a], {}, ["task 'a' stands 2 times in the list"]),
        (
            [late, a],
            {"workflow": "sequential"},
            ["task 'late' needs 'a', which comes later in the list"],
        ),
        (
            [a, b],
            {"map": MapReduce([1], a, b, chunk_size=1)},
            ["'chunk_size' of the map of task 'a' is at least 2"],
        ),
        (
            [a, late, b],
            {"loops": [Loop([late]), Loop([late, b])]},
            ["task 'late' is in two loops or maps"],
        ),
        (
            [late, a],
            {"loops": [Loop([late, a])]},
            ["task 'late' needs 'a', which comes later in a loop"],
        ),
        (
            [asked, a],
            {"workflow": "hierarchical"},
            ["task 'a' has no agent, but a manager delegates to agents"],
        ),
        (
            [asked],
            {"manager": Manager("m")},
            ["an ensemble has a manager only if it is hierarchical"],
        ),
        (
            [asked],
            {
                "workflow": "hierarchical",
                "manager": Manager("m", required=("q",), max_per_worker=0),
            },
            ["'required' names an unknown worker: 'q'", "'max_per_worker' is at least 1"],
        ),
        (
            [asked, Task("y", "", agent=Agent("R"))],
            {"workflow": "hierarchical"},
            ["two agents have the role 'R', so the manager cannot distinguish them"],
        ),
        ([doing("p", params={"a": 1}, name="p")], {}, ["task 'p' has params but no tool"]),
        (
            [a],
            {"loops": [Loop([a], {"path": "output", "op": "equals"})]},
            ["there is no operator 'equals'"],
        ),
    ]
    for tasks, fields, message in rows:
        assert refused(*tasks, **fields) == message


def test_tasks_that_need_each_other_through_loops_are_named() -> None:
    a = doing("a", name="a")
    b = doing("b", context=[a], name="b")
    c = doing("c", context=[b], name="c")
    assert refused(a, b, c, loops=[Loop([a, c])]) == [
        "tasks need each other in a circle: 'a' → 'b' → 'a'"
    ]


def test_a_limit_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        Agent("r", limits={"turnz": 1})
    assert (caught.value.what, caught.value.fix) == (
        "there is no limit 'turnz'",
        "did you mean 'turns'?",
    )


def test_a_tool_that_is_not_there_is_reported_before_anything_runs() -> None:
    ran: list[int] = []
    tasks = [doing("a", handler=lambda *_: ran.append(1)), Task("b", "", tool="team/nope")]
    with pytest.raises(InputError) as caught:
        Ensemble(tasks).run()
    assert ("team/nope" in caught.value.what, ran) == (True, [])


def test_hooks_are_those_of_files() -> None:
    hooks: list[dict[str, Json]] = [
        {
            "id": "stop",
            "event": "step_started",
            "condition": "${step.name} == 'task:b'",
            "verb": "fail",
            "why": "no b",
        }
    ]
    with pytest.raises(EnsembleError) as caught:
        Ensemble([doing("a", name="a"), doing("b", name="b")], hooks=hooks).run()
    assert "no b" in caught.value.what


# ── which handler it is ──────────────────────────────────────────────────


def adds(by: int) -> Handler:
    return lambda *_: by


def plain(*_: object, by: object = 1) -> Json:
    return str(by)


@dataclass(frozen=True)
class Fixed:
    by: int

    def __call__(self, *_: object) -> Json:
        return self.by

    def other(self, *_: object) -> Json:
        return -self.by


class Changing:
    def __init__(self, by: int) -> None:
        self.by = by

    def do(self, *_: object) -> Json:
        return self.by


def distinct() -> list[Handler]:
    one, two = (lambda *_: 1), (lambda *_: 2)
    return [
        one, two, adds(1), adds(2), plain, partial(plain, by=1), partial(plain, by=2), partial(plain, by=[1, {"a": 2}]),
        partial(plain, by=[1, {"a": 3}]), partial(partial(plain, by=adds(1))), partial(plain, by=adds(2)),
        Fixed(1), Fixed(2), Fixed(1).other, Fixed(2).other, partial(plain, by=Fixed(1)),
    ]  # fmt: skip


def test_handlers_that_differ_in_code_or_in_what_they_hold_have_different_fingerprints() -> None:
    prints = [function_fingerprint(one) for one in distinct()]
    assert len(set(prints)) == len(prints)
    assert prints == [function_fingerprint(one) for one in distinct()], (
        "made again they are the same"
    )
    assert not any(map(is_process_local, distinct()))


def test_a_handler_with_an_object_that_may_change_is_itself_and_no_other() -> None:
    one, other = Changing(1), Changing(1)
    assert function_fingerprint(one.do) == function_fingerprint(one.do)
    assert function_fingerprint(one.do) != function_fingerprint(other.do)
    assert function_fingerprint(partial(plain, by=one)) != function_fingerprint(
        partial(plain, by=other)
    )
    assert is_process_local(one.do)
    one.by = 2
    assert function_fingerprint(one.do) == function_fingerprint(one.do)


def test_no_secret_and_no_circle_is_in_a_fingerprint() -> None:
    held = [partial(plain, by=Secret(text)) for text in ("one", "two")]
    assert function_fingerprint(held[0]) == function_fingerprint(held[1])
    circle: list[Any] = [1]
    circle += [circle, circle]
    assert function_fingerprint(partial(plain, by=circle)).startswith("partial of ")


PROGRAM = """\
import sys, functools, plait
class Changing:
    def do(self, task, context): return 'x'
def fails(task, context): raise ValueError('no')
def held(task, context, by): return by
first = {'object': Changing().do, 'partial': functools.partial(held, by=sys.argv[2])}[sys.argv[1]]
a = plait.Task('a', handler=first, name='a')
b = plait.Task('b', handler=fails, context=[a], name='b')
try:
    plait.Ensemble([a, b], project='.').run(resume=sys.argv[3] if len(sys.argv) > 3 else None)
except plait.EnsembleError as error:
    print(error.output.run)
except plait.core.errors.InputError as error:
    print(error.code, error.fix)
"""


def test_in_another_process_a_run_goes_on_with_the_same_handler_and_asks_about_one_that_may_be_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def ran(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "program.py", *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    run = ran("partial", "1")
    assert ran("partial", "1", run) == run
    assert ran("partial", "2", run) == (
        "changed run(resume=…, accept_changes=True) does them again, and all that follows them"
    )
    assert ran("object", "1", ran("object", "1")) == (
        "changed run(resume=…, accept_changes=True) does them again, and all that follows them; the handler of 'a' "
        "holds an object that may change, and another process cannot compare it: "
        "use a function or a frozen dataclass"
    )


# ── maps: made items, budgets ────────────────────────────────────────────


def test_in_python_a_task_makes_the_items() -> None:
    plan = doing("plan", handler=lambda *_: ["a {x}", "b"], name="plan")
    each = doing("do {item} {item_index} of {topic}", name="each")
    output = Ensemble([each, plan], map=MapReduce(plan, each)).run({"topic": "t"})
    assert output["each"].data == ["do a {x} 0 of t", "do b 1 of t"]
    assert Ensemble([plan, each], map=MapReduce(plan, each)).variables == ("topic",)
    with pytest.raises(plait.PromptTemplateError) as caught:
        Ensemble([plan, each], map=MapReduce(plan, each)).run()
    assert caught.value.missing_variables == ["topic"]


def test_a_map_needs_the_task_that_makes_its_items() -> None:
    first = doing("first", name="first")
    plan = doing("plan", context=[first], name="plan")
    each = doing("each", name="each")
    after = doing("after", context=[each], name="after")
    looped = doing("plan", context=[after], name="plan")
    assert refused(looped, each, after, map=MapReduce(looped, each)) == [
        "tasks need each other in a circle: 'plan' → 'after' → 'each' → 'plan'"
    ]
    assert refused(each, first, plan, map=MapReduce(plan, each), workflow="sequential") == [
        "task 'each' needs 'plan', which comes later in the list"
    ]
    assert refused(each, map=MapReduce([1], each, target_tokens=0, path="x")) == [
        "'target_tokens' of the map of task 'each' is at least 1",
        "the map of task 'each' has target_tokens, but no task to reduce its outputs",
        "the map of task 'each' has a path, but no task makes its items",
    ]


BUDGETS = [
    # items, target_tokens, chunk_size, max_levels, result
    (["aaaa", "bbbb", "cccc"], 100, None, 10, "(aaaa+bbbb+cccc)"),
    (["aaaa", "bbbb", "cccc", "dddd"], 2, None, 10, "((aaaa+bbbb)+(cccc+dddd))"),
    (["aaaa", "bbbb", "cccc"], 1, None, 10, "((aaaa+bbbb)+cccc)"),
    (["a" * 400, "b", "c", "d"], 10, None, 10, f"(({'a' * 400}+b)+(c+d))"),
    (["a", "b", "c", "d"], 1, None, 1, "(a+b+c+d)"),
    (["a", "b", "c", "d", "e", "f", "g", "h"], 1, None, 2, "((a+b)+(c+d)+(e+f)+(g+h))"),
    (["a", "b", "c", "d"], 100, 2, 10, "((a+b)+(c+d))"),
    ([], 1, None, 10, ""),
]


@pytest.mark.parametrize(("items", "tokens", "size", "levels", "result"), BUDGETS)
def test_a_map_is_put_together_by_a_budget_of_tokens(
    items: list[str], tokens: int, size: int | None, levels: int, result: str
) -> None:
    each = doing("{item}", name="each")
    reduce = doing("together", handler=joined, name="reduce")
    one = MapReduce("all", each, reduce, target_tokens=tokens, chunk_size=size, max_levels=levels)
    output = Ensemble([each, reduce], map=one).run({"all": items})
    assert output["reduce"].raw == result


def test_tokens_are_those_that_a_model_counted_or_a_quarter_of_the_characters() -> None:
    model = Model(
        *(
            ModelResponse(text, usage=TokenUsage(1, count))
            for text, count in (("aaaa", 9), ("b", 9), ("c", 1), ("d", 1))
        )
    )
    each = Task("{item}", agent=Agent("r", provider=model), name="each")
    reduce = doing("together", handler=joined, name="reduce")
    one = MapReduce([1, 2, 3, 4], each, reduce, target_tokens=10)
    output = Ensemble([each, reduce], map=one, max_parallel=1).run()
    assert output["reduce"].raw == "((aaaa+b)+(c+d))"


@given(st.lists(st.text("ab", max_size=40), max_size=30), st.integers(1, 30))
def test_whatever_the_budget_every_output_is_put_together_once_and_in_order(
    items: list[str], tokens: int
) -> None:
    each = doing("{item}", name="each")
    reduce = doing(
        "together", handler=lambda _, context: "".join(one.raw for one in context), name="reduce"
    )
    output = Ensemble([each, reduce], map=MapReduce("all", each, reduce, target_tokens=tokens)).run(
        {"all": items}
    )
    assert output["reduce"].raw == "".join(items)


def test_if_all_items_fail_the_map_has_failed_also_where_errors_are_no_end() -> None:
    each = failing("{item}", name="each")
    with pytest.raises(EnsembleError) as caught:
        Ensemble([each], map=MapReduce([1, 2], each), on_error="continue_on_error").run()
    assert "2 of 2 items of task 'each' failed" in caught.value.what


PIECES = st.text("{}ab_ \\$", max_size=12)


@given(
    PIECES, st.dictionaries(st.sampled_from(["a", "b", "ab"]), PIECES | st.none() | st.integers())
)
def test_a_text_is_filled_as_the_template_engine_fills_it(
    written: str, inputs: dict[str, Any]
) -> None:
    template = compile_template(written, "prompt")
    if set(template.placeholders) <= set(inputs):
        [task] = Ensemble([doing(written, written)]).resolve(inputs)
        assert task.description == task.expected_output == template.render(inputs)


# ── providers of an author ───────────────────────────────────────────────


class Lazy:
    """An object that is asked like a provider, and does not answer."""

    def ask(self, _: ModelRequest, **__: Any) -> Any:
        return None


PROVIDERS = [
    # provider             what is reported
    (lambda _: 1 // 0, f"the provider '{__name__}.<lambda>' raised ZeroDivisionError: integer division or modulo by zero"),
    (lambda _: 5,      f"the provider '{__name__}.<lambda>' gave no answer, but int: return text, or an Answer"),
    ([7],              "the provider 'list' gave no answer, but int: return text, or an Answer"),
    (Lazy(),           "the provider 'Lazy' gave no answer, but NoneType: return text, or an Answer"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "message"), PROVIDERS)
def test_a_provider_that_does_not_answer_fails_its_task_and_the_outputs_so_far_are_there(
    provider: Any, message: str
) -> None:
    seen: list[Any] = []
    tasks = [doing("a", name="a"), Task("b", "", name="b", agent=Agent("r", provider=provider))]
    with pytest.raises(EnsembleError) as caught:
        Ensemble(tasks).run(watch=lambda stamped: seen.append(stamped.event))
    assert caught.value.what == f"the ensemble ended before it was done: task 'b': {message}"
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    assert [(one.id, one.status) for one in output.task_outputs] == [("a", "done"), ("b", "failed")]
    assert (type(seen[-1]).__name__, seen[-1].status) == ("RunEnded", "failed")


def test_what_a_provider_raises_is_reported_without_secrets() -> None:
    def raises(_: ModelRequest) -> str:
        raise ValueError("s3cr3t-value-of-mine")

    with pytest.raises(EnsembleError) as caught:
        Ensemble([Task("a {key}", "", agent=Agent("r", provider=raises))]).run(
            {"key": Secret("s3cr3t-value-of-mine")}
        )
    assert caught.value.what.endswith("raised ValueError: ***")


def test_an_output_is_found_by_its_task_or_by_its_id() -> None:
    first, second = doing("same"), doing("same")
    output = Ensemble([first, second]).run()
    assert (
        [output[first], output[second]]
        == [output["task-1"], output["task-2"]]
        == list(output.task_outputs)
    )
    with pytest.raises(KeyError):
        output[doing("same")]


# ── what is of another type ──────────────────────────────────────────────

EACH = doing("each", name="each")
MISTAKES: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    # what is made, of what                                             what is shown
    (Task,       {"description": "q", "agent": "bob"},                "the agent of a task is an Agent, not str\nfix: pass Agent(role)"),
    (Task,       {"description": "q", "agent": {"role": "x"}},        "the agent of a task is an Agent, not dict\nfix: pass Agent(role)"),
    (Task,       {"description": "q", "agent": Agent},                "the agent of a task is an Agent, not type\nfix: pass Agent(role)"),
    (Task,       {"description": "q", "tool": 3},                     "the tool of a task is text, not int\nfix: pass a string"),
    (Task,       {"description": "q", "name": 3},                     "the name of a task is text, not int\nfix: pass a string"),
    (Task,       {"description": "q", "output_schema": "x"},          "the output_schema of a task is a map, not str\nfix: pass a dict"),
    (Task,       {"description": "q", "attempts": "2"},               "the attempts of a task is a whole number, not str\nfix: pass an int"),
    (Task,       {"description": "q", "max_output_retries": None},    "the max_output_retries of a task is a whole number, not NoneType\nfix: pass an int"),
    (Agent,      {"role": "a", "options": [1]},                       "the options of an agent is a map, not list\nfix: pass a dict"),
    (MapReduce,  {"items": [1], "task": "each"},                      "the task of a map is a Task, not str\nfix: pass the Task itself"),
    (MapReduce,  {"items": [1], "task": EACH, "reduce": "each"},      "the reduce of a map is a Task, not str\nfix: pass the Task itself"),
    (Ensemble,   {"tasks": [EACH], "manager": Agent("a")},            "the manager of an ensemble is a Manager, not Agent\nfix: pass Manager(role)"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "given", "reported"), MISTAKES)
def test_something_of_another_type_is_reported_where_it_is_written(
    made: Callable[..., object], given: dict[str, Any], reported: str
) -> None:
    with pytest.raises(InputError) as caught:
        made(**given)
    assert str(caught.value) == reported
