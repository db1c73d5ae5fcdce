"""`foreach`: what its items are, what they know, and what becomes of one that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from plait.core.records import replace
from plait.core.values import Json
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failure, Outcome, StepError, Succeeded
from plait.engine.step import Policy, Retry
from plait.program.action_step import ActionStep
from plait.program.actions.shell import ShellAction
from plait.program.capture import Capture
from plait.program.foreach import CommandSource, Source, ValueSource, foreach
from program.fakes import (
    Acting,
    FakeServices,
    Finished,
    failing,
    failure_of,
    new_run,
    performed,
    printed,
    saying,
    step,
    steps,
    text_of,
)


def loop(source: Source | Json, *works: ActionStep, **fields: Any) -> ActionStep:
    if not isinstance(source, ValueSource | CommandSource):
        source = ValueSource(text_of(source))
    action = foreach(
        source, steps(*works, name="do"), fingerprint="loop", items_fingerprint="items", **fields
    )
    return step("loop", action, kind="foreach")


def output_of(outcome: Outcome) -> Json:
    assert isinstance(outcome, Succeeded), outcome
    return outcome.value["output"]


LISTS: list[tuple[Json, dict[str, Json], Json]] = [
    # foreach                  values                        items
    (["a", "b"],               {},                           ["a", "b"]),
    (["${x}", "b-${x}"],       {"x": 1},                     [1, "b-1"]),
    ([{"k": "${x}"}],          {"x": [1]},                   [{"k": [1]}]),
    ([],                       {},                           []),
    ("${xs}",                  {"xs": ["a", {"b": 1}]},      ["a", {"b": 1}]),
    ("${xs}",                  {"xs": []},                   []),
    ("${text}",                {"text": "a\n\n b \r\nc"},    ["a", " b ", "c"]),
    ("${xs}",                  {"xs": ["$(rm -rf /)", "${xs}"]}, ["$(rm -rf /)", "${xs}"]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "values", "items"), LISTS)
def test_a_list_or_a_value_that_is_one_holds_the_items(
    written: Json, values: dict[str, Json], items: list[Json]
) -> None:
    fakes = FakeServices()
    outcome = performed(loop(written, step("s", saying("${item}"))), new_run(fakes), values)
    assert output_of(outcome) == items
    assert fakes.asked == []  # a value is never a command


def test_each_line_that_a_command_prints_is_an_item() -> None:
    fakes = FakeServices(lambda _: printed("a b\n\nc\n"))
    made = loop(CommandSource(text_of("ls ${folder}")), step("s", saying("<${item}>")))
    assert output_of(performed(made, new_run(fakes), {"folder": "x y"})) == ["<a b>", "<c>"]
    assert fakes.asked[0]["shell"] == "ls 'x y'"


def test_a_command_that_fails_fails_the_step() -> None:
    fakes = FakeServices(lambda _: printed("a\n", exit_code=2, stderr="no such folder"))
    failure = failure_of(
        performed(loop(CommandSource(text_of("ls x")), step("s", Acting())), new_run(fakes))
    )
    assert failure.message == "exit code 2: no such folder"


@pytest.mark.parametrize("value", [3, True, None, {"a": 1}])
def test_a_value_without_items_is_refused(value: Json) -> None:
    failure = failure_of(performed(loop("${v}", step("s", Acting())), values={"v": value}))
    assert failure.message == "foreach needs a list or text, but the value is neither"


def test_an_item_knows_itself_its_place_and_the_names_around_it() -> None:
    text = "${item}${index}/${total} ${item_index}/${item_total} ${outer}"
    outcome = performed(loop(["a", "b"], step("s", saying(text))), values={"outer": "o"})
    assert output_of(outcome) == ["a0/2 0/2 o", "b1/2 1/2 o"]


def test_what_an_item_captures_ends_with_it() -> None:
    flow = steps(
        loop(
            ["a", "b"],
            step("s", saying("${seen:-none} ${item}"), capture="seen"),
            step("t", saying("(${seen})")),
        ),
        step("b", saying("${seen:-gone} ${last.output:json}")),
    )
    assert output_of(performed(flow)) == 'gone ["(none a)","(none b)"]'


@pytest.mark.parametrize(("most", "count"), [(None, 5), (2, 2), (9, 5), (0, 0)])
def test_max_items_takes_the_first(most: int | None, count: int) -> None:
    made = loop(list("abcde"), step("s", saying("${item}")), max_items=most)
    assert output_of(performed(made)) == list("abcde")[:count]


def test_the_first_failure_stops_the_loop_and_fails_the_step() -> None:
    def answer(turn: Any) -> Json:
        if turn.scope.lookup("item") == "b":
            raise StepError(Failure("b is bad", "exit", 4))
        return "fine"

    action = Acting(answer)
    failure = failure_of(performed(loop(list("abc"), step("s", action))))
    assert failure.message == "item b failed, and the flow stops at the first failure: b is bad"
    assert failure.as_result()["output"] == ["fine", ""]
    assert (failure.exit_code, len(action.ran)) == (1, 2)


def test_continue_on_error_runs_every_item_and_keeps_its_place() -> None:
    fakes = FakeServices(
        lambda command: printed(f"{command}\n", exit_code=1 if "b" in command else 0)
    )
    made = loop(list("abc"), step("s", ShellAction(text_of("${item:raw}"))), continue_on_error=True)
    failure = failure_of(performed(made, new_run(fakes)))
    assert failure.message == "1 of 3 items failed: exit code 1: b"
    assert (failure.exit_code, failure.as_result()["output"]) == (1, ["a", "b", "c"])


def test_a_loop_with_a_failed_item_has_failed_and_its_list_may_go_on() -> None:
    made = replace(
        loop(list("ab"), step("s", failing(times=1)), continue_on_error=True),
        capture=Capture("seen"),
        continue_on_error=True,
    )
    after = step("after", saying("${seen:json} ${seen.success} ${seen.exit_code}"))
    assert output_of(performed(steps(made, after))) == '["","at last"] false 1'


def test_the_beginning_of_a_list_is_no_list() -> None:
    fakes = FakeServices(lambda _: Finished(b"a\nb\n", is_truncated=True, stdout_truncated=True))
    failure = failure_of(
        performed(loop(CommandSource(text_of("names")), step("s", Acting())), new_run(fakes))
    )
    assert (
        failure.message
        == "printed more than 4 bytes, which cannot be a list of items; write it to a file"
    )


def test_parallel_items_run_at_the_same_time_and_give_their_outputs_in_order() -> None:
    met = threading.Barrier(3, timeout=30)

    def meet(turn: Any) -> Json:
        met.wait()  # breaks unless three are here at once
        return turn.scope.lookup("item")

    assert output_of(performed(loop(list("abc"), step("s", Acting(meet)), parallel=3))) == list(
        "abc"
    )


@pytest.mark.parametrize(("parallel", "meant"), [(True, 10), (False, 1), (4, 4)])
def test_parallel_is_a_number_or_yes_or_no(parallel: bool | int, meant: int) -> None:
    assert loop(["a"], step("s", Acting()), parallel=parallel).action.map.parallel == meant  # type: ignore[union-attr]


def test_a_resumed_loop_goes_on_with_the_items_it_had() -> None:
    listed = iter(["a\nb\nc\n", "other\n"])
    fakes = FakeServices(lambda _: printed(next(listed)))
    broken = [True]

    def answer(turn: Any) -> Json:
        if turn.scope.lookup("item") == "b" and broken[0]:
            raise StepError(Failure("not yet"))
        return turn.scope.lookup("item")

    action = Acting(answer)
    made = loop(CommandSource(text_of("ls")), step("s", action))
    journal = MemoryJournal()
    failure_of(performed(made, new_run(fakes, journal)))
    broken[0] = False
    assert output_of(performed(made, new_run(fakes, journal.reopen()))) == ["a", "b", "c"]
    assert action.ran == [f"loop/each/item:{number}/s" for number in (0, 1, 1, 2)]


def test_a_dry_run_shows_each_item_and_asks_no_command_for_them() -> None:
    fakes = FakeServices()
    run = new_run(fakes, dry_run=True)
    flow = steps(loop(["a", "b"], step("s", ShellAction(text_of("echo ${item}")))))
    performed(flow, run)
    command = new_run(fakes, dry_run=True)
    performed(
        loop(CommandSource(text_of("ls")), step("s", ShellAction(text_of("echo ${item}")))), command
    )
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == [
        "echo a",
        "echo b",
    ]
    assert [one.shown for one in (command.plan_log.steps if command.plan_log else ())] == [
        "ls",
        "echo ${item}",
    ]
    unknown = new_run(fakes, dry_run=True)
    performed(
        loop(ValueSource(text_of("${found}")), step("s", ShellAction(text_of("echo ${item}")))),
        unknown,
    )
    assert [
        (one.path, one.shown) for one in (unknown.plan_log.steps if unknown.plan_log else ())
    ] == [("loop/each/item:*/s", "echo ${item}")]
    assert fakes.asked == []


def test_a_dry_run_does_not_take_the_item_around_a_loop_for_one_of_its_own() -> None:
    run = new_run(FakeServices(), dry_run=True)
    inner = loop(
        CommandSource(text_of("ls")),
        step("s", ShellAction(text_of("rm ${item} ${index}/${total} ${item_id}"))),
    )
    performed(steps(loop(["a"], inner)), run)
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == [
        "ls",
        "rm ${item} ${index}/${total} ${item_id}",
    ]


def test_secrets_among_the_items_are_masked() -> None:
    run = new_run(mask=lambda text: text.replace("hunter2", "***"))
    assert output_of(performed(loop(["hunter2"], step("s", saying("${item}"))), run)) == ["***"]


def test_an_item_that_fails_once_and_is_retried_does_not_fail_the_loop() -> None:
    made = loop(["a"], step("s", failing(times=1), policy=Policy(Retry(2, "fixed", 0.0))))
    assert output_of(performed(made)) == ["at last"]
