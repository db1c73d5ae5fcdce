"""`perform_dependent`: which steps start, when, and that no thread waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from plait.adapters.local import LocalBackend
from plait.core.records import replace
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.engine.parallel import perform_dependent
from plait.engine.perform import StepContext
from program.fakes import new_run, turn_of

DONE = Succeeded(None)


@pytest.fixture
def ctx() -> Iterator[StepContext]:
    run = new_run()
    yield turn_of(replace(run, backend=LocalBackend()))
    run.events.close()


@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_a_step_starts_after_those_that_it_needs(ctx: StepContext, parallel: int) -> None:
    needs = {0: (3,), 1: (), 2: (0, 1), 3: ()}
    ended: list[int] = []

    def perform(number: int, ctx: StepContext) -> tuple[Outcome, StepContext]:
        assert set(needs[number]) <= set(ended)
        return DONE, ctx

    perform_dependent(
        ctx,
        4,
        perform,
        lambda number, _: ended.append(number),
        parallel=parallel,
        needs=needs.__getitem__,
    )
    assert sorted(ended) == [0, 1, 2, 3]
    if parallel == 1:
        assert ended == [1, 3, 0, 2]  # of those that can start, the lowest number


def test_the_context_of_a_step_follows_only_those_that_it_needs(ctx: StepContext) -> None:
    contexts: dict[int, StepContext] = {}

    def perform(number: int, ctx: StepContext) -> tuple[Outcome, StepContext]:
        contexts[number] = ctx
        return DONE, replace(ctx, can_replay=number != 0, replay_after=10 * number)

    after = perform_dependent(
        ctx,
        4,
        perform,
        lambda _, __: None,
        parallel=1,
        needs={0: (), 1: (), 2: (0, 1), 3: (1,)}.__getitem__,
    )
    assert [contexts[number].can_replay for number in range(4)] == [True, True, False, True]
    assert [contexts[number].replay_after for number in range(4)] == [0, 0, 10, 10]
    assert (after.can_replay, after.replay_after) == (False, 30)


def test_a_step_without_needs_never_starts_nor_does_what_needs_it(ctx: StepContext) -> None:
    ended: list[int] = []
    perform_dependent(
        ctx,
        3,
        lambda _, ctx: (DONE, ctx),
        lambda number, _: ended.append(number),
        parallel=2,
        needs={0: None, 1: (0,), 2: ()}.__getitem__,
    )
    assert ended == [2]


def test_nothing_starts_after_an_outcome_that_stops(ctx: StepContext) -> None:
    ended: list[int] = []
    perform_dependent(
        ctx,
        5,
        lambda number, ctx: (Failed(Failure("no")) if number == 1 else DONE, ctx),
        lambda number, _: ended.append(number),
        parallel=1,
        stops=lambda outcome: isinstance(outcome, Failed),
    )
    assert ended == [0, 1]


@pytest.mark.parametrize("breaks_in", ["perform", "finish"])
def test_an_error_ends_the_thread_that_waits(ctx: StepContext, breaks_in: str) -> None:
    failing = RuntimeError("broken")

    def perform(_: int, ctx: StepContext) -> tuple[Outcome, StepContext]:
        time.sleep(0.05)  # the other threads wait for step 0 by now
        if breaks_in == "perform":
            raise failing
        return DONE, ctx

    def finish(_: int, __: Outcome) -> None:
        raise failing

    with pytest.raises(RuntimeError, match="broken"):
        perform_dependent(
            ctx,
            3,
            perform,
            finish,
            parallel=3,
            needs=lambda number: range(number),
        )
