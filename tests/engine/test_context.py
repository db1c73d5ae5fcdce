"""What a run records when: as little as a crash allows, in as few transactions as it allows."""

from __future__ import annotations

from threading import Event as Signal

from plait.core.values import Json
from plait.engine.events import Event, StepFinished, StepStarted
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Succeeded
from plait.engine.perform import StepContext
from plait.engine.step import Policy, Retry
from program.fakes import Acting, failing, new_run, performed, step, steps

PATIENCE = 30.0


class Watched(MemoryJournal):
    """Remembers its transactions, and says when a step was recorded as begun."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[list[str]] = []
        self.begun = Signal()

    def append(self, *events: Event) -> None:
        super().append(*events)
        self.transactions.append(
            [f"{type(event).__name__} {getattr(event, 'path', '')}" for event in events]
        )
        if any(isinstance(event, StepStarted) and event.path == "flow/a" for event in events):
            self.begun.set()


def test_the_last_step_of_a_list_and_the_list_end_in_one_transaction() -> None:
    journal = Watched()
    performed(steps(step("a", Acting()), step("b", Acting())), new_run(journal=journal))
    assert journal.transactions == [
        ["StepStarted flow", "StepFinished flow/a"],
        ["StepFinished flow/b", "StepFinished flow"],
    ]


def test_a_list_of_one_step_is_two_records_and_its_start_is_none_of_them() -> None:
    journal = Watched()
    performed(steps(step("a", Acting())), new_run(journal=journal))
    assert journal.transactions == [["StepFinished flow/a", "StepFinished flow"]]


def test_a_start_is_left_out_where_the_end_says_it_all_and_kept_where_a_step_was_tried_again() -> (
    None
):
    journal = Watched()
    again = Policy(Retry(2, "fixed", 0.0))
    performed(steps(step("a", failing(times=1), policy=again)), new_run(journal=journal))
    assert [event for transaction in journal.transactions for event in transaction] == [
        "StepStarted flow",
        "StepStarted flow/a",
        "StepRetrying flow/a",
        "StepStarted flow/a",
        "StepFinished flow/a",
        "StepFinished flow",
    ]


def test_the_start_of_a_step_that_still_runs_is_recorded_while_it_runs() -> None:
    journal = Watched()
    performed(
        steps(step("a", Acting(lambda _: journal.begun.wait(PATIENCE)))), new_run(journal=journal)
    )
    recorded = journal.step("flow/a")
    assert recorded is not None
    assert isinstance(recorded.outcome, Succeeded)
    assert recorded.outcome.value["output"] is True


def test_watchers_hear_of_every_start_and_end_in_order_whatever_is_recorded() -> None:
    heard: list[str] = []
    run = new_run(
        watchers=[
            lambda record: heard.append(
                f"{type(record.event).__name__} {getattr(record.event, 'path', '')}"
            )
        ]
    )
    performed(steps(step("a", Acting()), step("b", Acting())), run)
    assert heard == [
        "StepStarted flow",
        "StepStarted flow/a",
        "StepFinished flow/a",
        "StepStarted flow/b",
        "StepFinished flow/b",
        "StepFinished flow",
    ]


def test_an_end_that_waits_for_its_list_is_recorded_when_the_run_is_closed_before() -> None:
    journal = Watched()
    run = new_run(journal=journal)
    run.events.emit_with_parent(StepFinished("flow/a", "shell", "a", "f", Succeeded({}), 0.0))
    run.events.close()
    assert journal.transactions == [["StepFinished flow/a"]]


def test_a_resumed_run_repeats_neither_the_last_step_nor_its_list() -> None:
    journal = Watched()
    action = Acting()
    performed(steps(step("a", action)), new_run(journal=journal))

    def later(ctx: StepContext) -> Json:
        raise AssertionError(ctx.path)

    outcome = performed(steps(step("a", Acting(later))), new_run(journal=journal.reopen()))
    assert isinstance(outcome, Succeeded)
    assert action.ran == ["flow/a"]
