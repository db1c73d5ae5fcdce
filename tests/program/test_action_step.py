"""One step and all that may stand around it: conditions, handlers, retries, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.events import Note
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded
from plait.engine.perform import StepContext
from plait.engine.step import Policy, Retry
from plait.program.action_step import ActionStep, FailureHandler
from plait.program.actions.shell import ShellAction
from plait.scope import Scope
from plait.template.shell.binding import BoundScript
from program.fakes import (
    Acting,
    FakeServices,
    Finished,
    capture,
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


def output_of(outcome: Outcome) -> Json:
    assert isinstance(outcome, Succeeded), outcome
    return outcome.value["output"]


@dataclass(frozen=True, slots=True)
class When:
    """A condition on one name."""

    name: str

    def holds(self, scope: Scope) -> bool:
        return bool(scope.lookup(self.name) is True)


# ── when ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("ready", "ran"), [(True, 1), (False, 0)])
def test_a_step_runs_only_when_its_condition_holds(ready: bool, ran: int) -> None:
    action = Acting()
    outcome = performed(step("a", action, when=When("ready")), values={"ready": ready})
    assert len(action.ran) == ran
    if not ran:
        assert outcome == Skipped("its condition does not hold")


class Scripts(FakeServices):
    """Remembers the very scripts that it is given."""

    async def shell(self, bound: BoundScript, **how: Any) -> Any:  # noqa: ARG002
        self.asked.append(bound)
        return Finished()


@pytest.mark.parametrize(
    ("script", "shown", "times"), [("date", ["date"] * 2, 1), ("x ${n}", ["x 1", "x 2"], 2)]
)
def test_a_script_is_bound_for_each_item_unless_nothing_is_bound(
    script: str, shown: list[str], times: int
) -> None:
    fakes, tried = Scripts(), step("a", ShellAction(text_of(script)))
    for n in (1, 2):
        performed(tried, new_run(fakes), {"n": n})
    assert [bound.shown for bound in fakes.asked] == shown
    assert len({id(bound) for bound in fakes.asked}) == times


def test_a_condition_sees_what_was_captured_before_and_a_skipped_step_leaves_names_alone() -> None:
    flow = steps(
        step("a", saying("true"), capture=capture("ready", "boolean")),
        step("b", saying("b"), when=When("ready"), capture="seen"),
        step("c", saying("c"), when=When("missing"), capture="seen"),
        step("d", saying("${seen} ${last.output}")),
    )
    assert output_of(performed(flow)) == "b b"


# ── handlers ─────────────────────────────────────────────────────────────


def handler(*works: ActionStep, **fields: Any) -> FailureHandler:
    return FailureHandler(steps(*works, name="on_failure"), **fields)


def test_a_handler_that_works_is_enough_and_knows_why_it_was_called() -> None:
    mend = saying(
        "${error.message}|${error.exit_code}|${error.step}|${error.kind}|${last.exit_code}"
    )
    flow = steps(
        step(
            "a",
            failing("broken", exit_code=3),
            on_failure=handler(step("mend", mend, capture="mended")),
        ),
        step("b", saying("${mended}")),
    )
    assert output_of(performed(flow)) == "broken|3|a|exit|3"


def test_a_handler_sees_the_output_and_stderr_of_the_command_that_failed() -> None:
    fakes = FakeServices(
        lambda command: (
            printed("found 3\n", exit_code=2, stderr="bad\n") if "test" in command else Finished()
        )
    )
    mend = saying("${shell.output}|${shell.stderr}|${error.output}|${error.stderr}")
    flow = steps(
        step(
            "a",
            ShellAction(text_of("make test")),
            on_failure=handler(step("m", mend, capture="seen")),
        ),
        step("b", saying("${seen}")),
    )
    assert output_of(performed(flow, new_run(fakes))) == "found 3|bad|found 3|bad"


HANDLERS = [
    # handler's attempts   fails_anyway   action fails   handler fails   runs of action, handler   outcome
    (0,                    None,          999,           False,          1, 1,                     "done"),
    (0,                    True,          999,           False,          1, 1,                     "failed"),
    (0,                    False,         999,           False,          1, 1,                     "done"),
    (0,                    None,          999,           True,           1, 1,                     "failed"),
    (3,                    None,          1,             False,          2, 1,                     "done"),
    (3,                    None,          3,             False,          4, 3,                     "done"),
    (3,                    None,          999,           False,          4, 3,                     "failed"),
    (3,                    True,          999,           False,          4, 3,                     "failed"),
    (3,                    False,         999,           False,          4, 3,                     "done"),
    (2,                    None,          0,             False,          1, 0,                     "done"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "anyway", "fails", "handler_fails", "ran", "handled", "status"), HANDLERS
)
def test_a_handler_mends_and_the_step_is_tried_again(
    attempts: int,
    anyway: bool | None,
    fails: int,
    handler_fails: bool,
    ran: int,
    handled: int,
    status: str,
) -> None:
    action, mend = failing(times=fails), failing(times=999) if handler_fails else Acting()
    made = handler(step("mend", mend), attempts=attempts, fails_anyway=anyway)
    outcome = performed(step("a", action, on_failure=made))
    assert (len(action.ran), len(mend.ran)) == (ran, handled)
    assert isinstance(outcome, Succeeded if status == "done" else Failed)


@pytest.mark.parametrize("anyway", [None, True])
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_with_a_handler_too_attempts_is_how_often_the_action_runs(
    attempts: int, anyway: bool | None
) -> None:
    action, mend = failing(), Acting()
    made = handler(step("m", mend), fails_anyway=anyway)
    tried = step("a", action, policy=Policy(Retry(attempts, "fixed", 0.0)), on_failure=made)
    assert isinstance(performed(tried), Failed if anyway else Succeeded)
    assert (len(action.ran), len(mend.ran)) == (attempts, 1)


def test_on_success_runs_after_success_only_and_its_captures_reach_later_steps() -> None:
    for action, expected in ((saying("x"), "x!"), (failing(), None)):
        after = saying("${last.output}!")
        made = step(
            "a", action, on_success=steps(step("s", after, capture="seen"), name="on_success")
        )
        outcome = performed(steps(made, step("b", saying("${seen}"))))
        assert len(after.ran) == (1 if expected else 0)
        if expected:
            assert output_of(outcome) == expected


EXIT_CODES = [
    # exit code   what ran                 outcome
    (0,           ["zero"],                Succeeded),
    (2,           ["two"],                 Succeeded),
    (3,           ["on_failure"],          Succeeded),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ran", "outcome"), EXIT_CODES)
def test_an_exit_code_with_steps_of_its_own_takes_them_and_not_on_failure(
    code: int, ran: list[str], outcome: type
) -> None:
    noted: list[str] = []

    def noting(name: str) -> Acting:
        return Acting(lambda _: noted.append(name))

    fakes = FakeServices(lambda _: printed("", exit_code=code))
    made = step(
        "a",
        ShellAction(text_of("x")),
        on_exit_code={
            0: steps(step("z", noting("zero")), name="zero"),
            2: steps(step("t", noting("two")), name="two"),
        },
        on_failure=handler(step("f", noting("on_failure")), attempts=0),
    )
    assert isinstance(performed(made, new_run(fakes)), outcome)
    assert noted == ran


def test_a_recovered_step_captures_how_its_action_ended() -> None:
    fakes = FakeServices(lambda _: printed("half\n", exit_code=4))
    flow = steps(
        step("a", ShellAction(text_of("x")), capture="n", on_failure=handler(step("m", Acting()))),
        step("b", saying("${n} ${n.exit_code} ${n.success}")),
    )
    assert output_of(performed(flow, new_run(fakes))) == "half 4 false"


# ── failing, going on ────────────────────────────────────────────────────


def test_a_failed_step_fails_the_flow_and_nothing_behind_it_runs() -> None:
    behind = Acting()
    outcome = performed(steps(step("a", failing("broken")), step("b", behind)))
    assert outcome == Failed(Failure("broken", "exit", 1, path="flow/a"))
    assert behind.ran == []


def test_continue_on_error_goes_on_with_the_facts_of_the_failure() -> None:
    flow = steps(
        step("a", failing("broken", exit_code=9), continue_on_error=True, capture="n"),
        step("b", saying("${last.exit_code} ${n.success} ${last.stderr}")),
    )
    assert output_of(performed(flow)) == "9 false broken"


def test_a_resumed_run_goes_on_from_a_failure_as_the_first_run_attempt_did() -> None:
    action, behind = failing(times=1), Acting()
    flow = steps(step("a", action, continue_on_error=True), step("b", behind))
    journal = MemoryJournal()
    performed(flow, new_run(journal=journal))
    del journal._finished["flow"]
    performed(flow, new_run(journal=journal.reopen()))
    assert (len(action.ran), len(behind.ran)) == (1, 1)


# ── where and with what ──────────────────────────────────────────────────


def test_env_and_working_dir_reach_the_process_and_later_steps_do_not_see_them() -> None:
    fakes = FakeServices()
    flow = steps(
        step(
            "a", ShellAction(text_of("first")), env={"X": text_of("${v}!"), "Y": text_of("${X:-}")}
        ),
        step("b", ShellAction(text_of("second")), working_dir=text_of("sub/${v}")),
    )
    performed(flow, new_run(fakes), {"v": "1"}, env={"BASE": "b"})
    first, second = (asked["env"] for asked in fakes.asked)
    assert (first["X"], first["BASE"], "X" in second) == ("1!", "b", False)
    assert first["PLAIT_IDEMPOTENCY_KEY"] == "r1/flow/a"


def test_a_step_knows_its_names_and_its_attempt() -> None:
    texts: list[Json] = []

    def fail_once(ctx: StepContext) -> Json:
        texts.append(
            text_of("${step.name} ${step.index} ${step.path} ${step.attempt}").render(ctx.scope)
        )
        return failing().run(ctx) if ctx.attempt == 1 else "ok"

    made = step(
        "a",
        Acting(fail_once),
        facts={"name": "A", "index": 0},
        policy=Policy(Retry(2, "fixed", 0.0)),
    )
    performed(steps(made))
    assert texts == ["A 0 flow/a 1", "A 0 flow/a 2"]


def test_output_file_gets_all_of_an_output_that_is_too_long_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "all").write_bytes(b"all of it")
    ended = Finished(
        b"all", is_truncated=True, stdout_truncated=True, stdout_file=str(tmp_path / "all")
    )
    fakes = FakeServices(lambda _: ended)
    performed(step("a", ShellAction(text_of("x")), output_file=text_of("out.txt")), new_run(fakes))
    assert fakes.files == {"out.txt": b"all of it"}


@pytest.mark.parametrize("has_file", [True, False])
def test_output_file_does_not_get_a_part_of_an_output_that_was_lost(
    tmp_path: Path, has_file: bool
) -> None:
    (tmp_path / "part").write_bytes(b"a part")
    file = str(tmp_path / "part") if has_file else None
    lost: dict[str, Any] = {"stdout_file": file, "stdout_lost": "the disk is full"}
    ended = Finished(b"a", is_truncated=True, stdout_truncated=True, **lost)
    fakes, journal = FakeServices(lambda _: ended), MemoryJournal()
    made = step("a", ShellAction(text_of("x")), output_file=text_of("out.txt"))
    failure = failure_of(performed(made, new_run(fakes, journal=journal)))
    assert failure.message == (
        "printed too much for output_file: the disk is full; let the command itself write the file"
    )
    notes = [
        reported.event.message for reported in journal.events() if isinstance(reported.event, Note)
    ]
    assert notes == ["its output is not stored completely: the disk is full"]
    assert fakes.files == {}


CUT = [
    # what of the step asks for the output      which stream was cut             why it fails
    ({"capture": "seen"},                       {"stdout_truncated": True},      "captured"),
    ({"capture": capture("s", stream="both")},  {"stdout_truncated": True},      "captured"),
    ({"capture": capture("s", stream="both")},  {},                              "captured"),
    ({"capture": capture("s", stream="stderr")}, {},                             "captured"),
    ({"output_file": "out.txt"},                {"stdout_truncated": True},
     "written to output_file, because secrets must be masked"),
]  # fmt: skip


@pytest.mark.parametrize(("asks", "cut", "why"), CUT)
def test_a_part_of_an_output_is_not_passed_on_as_the_whole(
    asks: dict[str, Any], cut: dict[str, Any], why: str
) -> None:
    if "output_file" in asks:
        asks = {"output_file": text_of(asks["output_file"])}
    fakes = FakeServices(
        lambda _: Finished(b"12345", b"12345" if not cut else b"", is_truncated=True, **cut)
    )
    failure = failure_of(performed(step("a", ShellAction(text_of("x")), **asks), new_run(fakes)))
    assert (
        failure.message == f"printed more than 5 bytes, which cannot be {why}; write it to a file"
    )
    assert fakes.files == {}


@pytest.mark.parametrize(
    ("stream", "is_cut"), [("stdout", {}), ("stderr", {"stdout_truncated": True})]
)
def test_a_stream_that_was_not_cut_is_captured(stream: Any, is_cut: dict[str, Any]) -> None:
    fakes = FakeServices(
        lambda _: Finished(b"12345", b"123" if is_cut else b"12345", is_truncated=True, **is_cut)
    )
    made = step("a", ShellAction(text_of("x")), capture=capture("seen", stream=stream))
    outcome = performed(steps(made, step("b", saying("${seen}"))), new_run(fakes))
    assert output_of(outcome) == ("123" if is_cut else "12345")


OUTSIDE = ["/etc", "..", "sub/../..", "../project2", "/project/../etc", "a\0b"]


@pytest.mark.parametrize("named", OUTSIDE)
def test_a_step_works_nowhere_outside_the_project(named: str) -> None:
    fakes = FakeServices()
    made = step("a", ShellAction(text_of("x")), working_dir=text_of("${v}"))
    failure = failure_of(performed(made, new_run(fakes), {"v": named}))
    assert failure.message == (
        "flow.yaml:1:1: working_dir is outside the project\n"
        "1 | ${v}\n"
        "  | ^^^^\n"
        "fix: name a folder of the project"
    )
    assert fakes.asked == []


def test_output_file_gets_the_output_whole() -> None:
    fakes = FakeServices()
    performed(
        step("a", saying("text\n"), output_file=text_of("out/${n}.txt")), new_run(fakes), {"n": 3}
    )
    assert fakes.files == {"out/3.txt": b"text\n"}


def test_a_step_has_the_time_that_is_left() -> None:
    fakes = FakeServices()
    performed(step("a", ShellAction(text_of("x")), policy=Policy(timeout=30)), new_run(fakes))
    assert 25 < fakes.asked[0]["timeout"] <= 30


def test_secrets_in_what_a_command_prints_are_masked_before_they_are_recorded() -> None:
    fakes = FakeServices(lambda _: printed("hunter2\n", stderr="x hunter2", exit_code=1))
    run = new_run(fakes, mask=lambda text: text.replace("hunter2", "***"))
    failure = failure_of(performed(step("a", ShellAction(text_of("x"))), run))
    assert "hunter2" not in repr(failure)
    assert failure.message == "exit code 1: x ***"


SHELL_FAILURES = [
    # how it ended                                      message                            kind      code
    (Finished(exit_code=1),                             "exit code 1",                     "exit",   1),
    (Finished(b"", b"a\nb\n", 2),                       "exit code 2: a\nb",               "exit",   2),
    (Finished(b"out\n", b"", 2),                        "exit code 2: out",                "exit",   2),
    (Finished(b"", b"1\n2\n3\n4\n5\n6\n7", 1),          "exit code 1: 3\n4\n5\n6\n7",      "exit",   1),
    (Finished(exit_code=137, signal=9),                 "ended by signal 9",               "signal", 137),
]  # fmt: skip


@pytest.mark.parametrize(("ended", "message", "kind", "code"), SHELL_FAILURES)
def test_a_command_that_fails_says_how_and_its_last_lines(
    ended: Finished, message: str, kind: str, code: int
) -> None:
    failure = failure_of(
        performed(step("a", ShellAction(text_of("x"))), new_run(FakeServices(lambda _: ended)))
    )
    assert (failure.message, failure.kind, failure.exit_code) == (message, kind, code)


def test_a_dry_run_shows_what_each_step_would_do_and_does_nothing() -> None:
    fakes = FakeServices()
    run = new_run(fakes, dry_run=True)
    flow = steps(
        step("a", ShellAction(text_of("echo ${v}")), capture="seen", output_file=text_of("f")),
        step(
            "b",
            ShellAction(text_of("echo ${v}")),
            on_failure=handler(step("m", ShellAction(text_of("mend")))),
        ),
    )
    performed(flow, run, {"v": "a b"})
    assert run.plan_log is not None
    assert [(one.path, one.shown) for one in run.plan_log.steps] == [
        ("flow/a", "echo 'a b'"),
        ("flow/b/run", "echo 'a b'"),
    ]
    assert (fakes.asked, fakes.files) == ([], {})
