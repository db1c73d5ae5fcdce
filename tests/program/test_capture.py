"""What an output becomes under a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.values import Json
from plait.engine.outcome import StepError, Succeeded
from plait.engine.step import Policy, Retry
from plait.program.action_step import FailureHandler
from plait.program.actions.shell import ShellAction
from plait.program.capture import Capture, Format, Stream, capture_values, strip_newlines
from program.fakes import (
    Acting,
    FakeServices,
    failure_of,
    new_run,
    performed,
    printed,
    saying,
    step,
    steps,
    text_of,
)

FORMATS: list[tuple[Format, Json, Json]] = [
    # format     output             value
    ("string",   "a\n\n",           "a"),
    ("string",   " a \n",           " a "),
    ("string",   "\n\na",           "\n\na"),
    ("string",   "",                ""),
    ("json",     '{"a": [1, 2]}\n', {"a": [1, 2]}),
    ("json",     "null",            None),
    ("json",     "1.50",            1.5),
    ("json",     r'"\ud83d\ude00"', "😀"),
    ("json",     r'"\\ud800"',     r"\ud800"),
    ("json",     '"\udcff \\ud83d\\ude00"', "\udcff 😀"),
    ("lines",    "a\nb\n\n",        ["a", "b"]),
    ("lines",    "a\n\nb",          ["a", "", "b"]),
    ("lines",    "",                []),
    ("number",   " 42\n",           42),
    ("number",   "-1",              -1),
    ("number",   "0.5",             0.5),
    ("number",   "1e3",             1000.0),
    ("number",   "+7",              7),
    ("number",   ".5",              0.5),
    ("number",   "9007199254740993", 9007199254740993),
    ("boolean",  "true\n",          True),
    ("boolean",  " false ",         False),
    ("boolean",  "TRUE",            True),
    ("boolean",  "False\n",         False),
    ("boolean",  "1",               True),
    ("boolean",  "0\n",             False),
    ("boolean",  "yes",             True),
    ("boolean",  "No",              False),
    ("boolean",  " \n",             True),
    ("string",   {"of": "a tool"},  {"of": "a tool"}),
    ("number",   [1],               [1]),
]  # fmt: skip


@pytest.mark.parametrize(("format", "output", "value"), FORMATS)
def test_an_output_is_kept_in_the_format_that_is_asked_for(
    format: Format, output: Json, value: Json
) -> None:
    kept = capture_values(Capture("n", format), {"output": output, "exit_code": 0})["n"]
    assert kept == value
    assert type(kept) is type(value)


def test_a_boolean_that_is_not_printed_is_whether_the_command_succeeded() -> None:
    assert capture_values(Capture("n", "boolean"), {"output": "", "exit_code": 3})["n"] is False


REFUSED: list[tuple[Format, str, str]] = [
    ("json",    "{a",        "the output captured as 'n' is not JSON"),
    ("json",    "NaN",       "the output captured as 'n' is not JSON"),
    ("json",    '{"n": 1e400}', "the output captured as 'n' is not JSON"),
    ("json",    '[-1e999]',  "the output captured as 'n' is not JSON"),
    ("json",    r'"\ud800"', "the output captured as 'n' is not JSON"),
    ("json",    r'{"\uDC00": 1}', "the output captured as 'n' is not JSON"),
    ("json",    "",          "the output captured as 'n' is not JSON"),
    ("json",    "[" * 99999, "the output captured as 'n' is not JSON of at most 100 levels"),
    ("number",  "",          "the output captured as 'n' is not a number"),
    ("number",  "12 apples", "the output captured as 'n' is not a number"),
    ("number",  "nan",       "the output captured as 'n' is not a number"),
    ("number",  "inf",       "the output captured as 'n' is not a number"),
    ("number",  "1_000",     "the output captured as 'n' is not a number"),
    ("number",  "1,000",     "the output captured as 'n' is not a number"),
    ("number",  "٣",         "the output captured as 'n' is not a number"),
    ("number",  "0x10",      "the output captured as 'n' is not a number"),
    ("number",  "1" * 5000,  "the output captured as 'n' is not a number"),
    ("boolean", "anything",  "the output captured as 'n' is not true or false, yes or no, 1 or 0"),
    ("boolean", "2",         "the output captured as 'n' is not true or false, yes or no, 1 or 0"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "output", "message"), REFUSED)
def test_an_output_of_another_format_fails_the_step_and_is_not_quoted(
    format: Format, output: str, message: str
) -> None:
    with pytest.raises(StepError) as caught:
        capture_values(Capture("n", format), {"output": output, "exit_code": 0})
    assert (caught.value.failure.message, caught.value.failure.kind) == (message, "capture")


@pytest.mark.parametrize(("format", "output", "message"), REFUSED)
def test_an_output_of_another_format_from_a_failed_step_is_null(
    format: Format, output: str, message: str
) -> None:
    value, facts = capture_values(
        Capture("n", format), {"output": output, "stderr": "why", "exit_code": 2}
    ).values()
    assert value is None, message
    assert (facts["exit_code"], facts["stderr"]) == (2, "why")


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_handler_runs_although_the_output_of_the_failed_step_has_another_format(
    attempts: int,
) -> None:
    fakes = FakeServices(lambda _: printed("Traceback\n", stderr="bad\n", exit_code=3))
    mend = saying("<${n}> ${n.exit_code} ${n.success} ${n.stderr} ${n.output}")
    handler = FailureHandler(steps(step("m", mend, capture="mended"), name="on_failure"), attempts)
    tried = step("a", ShellAction(text_of("x")), capture=Capture("n", "json"), on_failure=handler)
    flow = steps(tried, step("b", saying("${mended} | ${n.exit_code}")))
    outcome = performed(flow, new_run(fakes))
    if attempts:  # its handler did not help: the failure is that of the command
        assert failure_of(outcome).message == "exit code 3: bad"
    else:
        assert isinstance(outcome, Succeeded)
        assert outcome.value["output"] == "<> 3 false bad Traceback | 3"
    assert len(mend.ran) == 1


@pytest.mark.parametrize("handled", [True, False])
def test_what_a_command_printed_is_known_although_it_has_another_format(handled: bool) -> None:
    fakes = FakeServices(lambda _: printed("{bad\n", stderr="why\n"))
    seen = "<${n}> ${n.exit_code} ${n.success} ${n.stderr} ${n.output}"
    handler = FailureHandler(
        steps(step("m", saying(f"${{error.output}} {seen}"), capture="m"), name="on_failure")
    )
    tried = step(
        "a",
        ShellAction(text_of("x")),
        capture=Capture("n", "json"),
        on_failure=handler if handled else None,
        continue_on_error=not handled,
    )
    outcome = performed(steps(tried, step("b", saying(f"${{m:-}} | {seen}"))), new_run(fakes))
    assert isinstance(outcome, Succeeded)
    ended = "<> 0 false why {bad"
    assert outcome.value["output"] == (f"{{bad {ended} | {ended}" if handled else f" | {ended}")


def test_the_failure_of_a_capture_carries_how_the_command_ended() -> None:
    fakes = FakeServices(lambda _: printed("{bad\n", stderr="why\n"))
    tried = step("a", ShellAction(text_of("x")), capture=Capture("n", "json"))
    ended = failure_of(performed(tried, new_run(fakes))).as_result()
    assert (ended["output"], ended["stderr"], ended["exit_code"]) == ("{bad\n", "why\n", 0)


STREAMS: list[tuple[Stream, str]] = [("stdout", "out"), ("stderr", "err"), ("both", "outerr")]


@pytest.mark.parametrize(("stream", "value"), STREAMS)
def test_a_capture_takes_the_stream_that_is_named(stream: Stream, value: str) -> None:
    ended = {"output": "out", "stderr": "err\n", "exit_code": 0}
    assert capture_values(Capture("n", stream=stream), ended)["n"] == value


@given(st.text())
def test_newlines_at_the_end_are_stripped_and_nothing_else(text: str) -> None:
    kept = strip_newlines(text)
    assert text.startswith(kept)
    assert set(text[len(kept) :]) <= {"\n"}
    assert not kept.endswith("\n")


FACTS = [
    # placeholder             what a later step sees
    ("${n}",                  "out"),
    ("${n.stderr}",           "err"),
    ("${n.exit_code}",        0),
    ("${n.success}",          True),
    ("${n.duration}",         0.25),
    ("${n.output}",           "out"),
    ("${last.output}",        "out"),
    ("${last.exit_code}",     0),
    ("${shell.output}",       "out"),
    ("${shell.stderr}",       "err"),
]  # fmt: skip


@pytest.mark.parametrize(("placeholder", "seen"), FACTS)
def test_facts_stand_beside_a_captured_value(placeholder: str, seen: Json) -> None:
    fakes = FakeServices(lambda _: printed("out\n", stderr="err\n"))
    flow = steps(
        step("a", ShellAction(text_of("true")), capture="n"), step("b", saying(placeholder))
    )
    outcome = performed(flow, new_run(fakes))
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == seen


def test_facts_never_hide_a_field_of_json() -> None:
    output = '{"success": "no", "exit_code": 99, "own": 1}'
    flow = steps(
        step("a", saying(output), capture=Capture("r", "json")),
        step("b", saying("${r.success} ${r.exit_code} ${r.own} ${r.stderr:-none}")),
    )
    outcome = performed(flow)
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "no 99 1 "


def test_facts_that_are_not_kept_are_not_there() -> None:
    kept = Capture("n", facts=frozenset({"exit_code"}))
    flow = steps(
        step("a", saying("x"), capture=kept), step("b", saying("${n.exit_code} ${n.stderr:-gone}"))
    )
    outcome = performed(flow)
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "0 gone"


def test_a_step_whose_output_cannot_be_captured_fails_and_may_be_retried() -> None:
    outputs = iter(["oops", "41"])
    number = Capture("n", "number")
    tried = step(
        "a", Acting(lambda _: next(outputs)), capture=number, policy=Policy(Retry(2, "fixed", 0.0))
    )
    outcome = performed(steps(tried))
    assert isinstance(outcome, Succeeded)
    assert outcome.value["captures"]["n"] == 41
    assert failure_of(performed(steps(step("a", saying("x"), capture=number)))).kind == "capture"
