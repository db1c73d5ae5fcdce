"""How often a step is tried and how long it waits in between."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.backoff import Backoff
from plait.engine.outcome import Failure
from plait.engine.step import RETRIABLE_KINDS, Retry

DELAYS: list[tuple[Retry, list[float]]] = [
    # retry                                                                     pauses
    (Retry(attempts=1),                                                         []),
    (Retry(attempts=4, backoff="fixed", initial_delay=2),                       [2, 2, 2]),
    (Retry(attempts=4, backoff="linear", initial_delay=1),                      [1, 2, 3]),
    (Retry(attempts=4, backoff="linear", initial_delay=1, increment=2),         [1, 3, 5]),
    (Retry(attempts=5, backoff="exponential", initial_delay=1),                 [1, 2, 4, 8]),
    (Retry(attempts=4, backoff="exponential", initial_delay=1, base=10),        [1, 10, 30]),
    (Retry(attempts=6, backoff="fibonacci", initial_delay=1),                   [1, 1, 2, 3, 5]),
    (Retry(attempts=4, backoff="fixed", initial_delay=90),                      [30, 30, 30]),
    (Retry(attempts=5, backoff="linear", initial_delay=1, max_delay=2.5),       [1, 2, 2.5, 2.5]),
    (Retry(attempts=3, backoff="exponential", initial_delay=0),                 [0, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("retry", "pauses"), DELAYS)
def test_pauses_grow_as_they_are_reported_to(retry: Retry, pauses: list[float]) -> None:
    assert list(retry.delays(Random(0))) == pauses


BACKOFFS: list[Backoff] = ["fixed", "linear", "exponential", "fibonacci"]


@given(
    attempts=st.integers(1, 12),
    backoff=st.sampled_from(BACKOFFS),
    initial=st.floats(0, 100),
    most=st.floats(0, 100),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_no_pause_is_negative_or_longer_than_the_longest(
    attempts: int, backoff: Backoff, initial: float, most: float, jitter: float, seed: int
) -> None:
    retry = Retry(attempts, backoff, initial, most, jitter=jitter)
    delays = list(retry.delays(Random(seed)))
    assert len(delays) == attempts - 1
    assert all(0 <= delay <= most for delay in delays)


@given(backoff=st.sampled_from(BACKOFFS), initial=st.floats(0, 10))
def test_without_jitter_no_pause_is_shorter_than_the_one_before(
    backoff: Backoff, initial: float
) -> None:
    delays = list(Retry(8, backoff, initial).delays(Random(0)))
    assert all(first <= second for first, second in pairwise(delays))


@given(seed=st.integers())
def test_jitter_spreads_a_pause_by_its_share_at_most(seed: int) -> None:
    (delay,) = Retry(2, "fixed", 10, jitter=0.3).delays(Random(seed))
    assert 7 <= delay <= 13


APPLIES = [
    # retry_on                        failure                                    again?
    ((),                              Failure("any", "whatever"),                True),
    (("network",),                    Failure("gone", "network"),                True),
    (("network",),                    Failure("network is mentioned", "exit"),   False),
    (("timeout", "rate_limit"),       Failure("slow down", "rate_limit"),        True),
    (("connection reset",),           Failure("Connection RESET by peer"),       True),
    (("connection reset",),           Failure("connection refused"),             False),
    (("exit", "busy"),                Failure("the disk is busy", "refused"),    True),
]  # fmt: skip


@pytest.mark.parametrize(("retry_on", "failure", "again"), APPLIES)
def test_retry_on_names_kinds_of_failure_or_texts_in_the_message(
    retry_on: tuple[str, ...], failure: Failure, again: bool
) -> None:
    assert Retry(3, retry_on=retry_on).applies_to(failure) is again


def test_every_kind_that_may_be_named_is_compared_whole() -> None:
    for kind in RETRIABLE_KINDS:
        assert Retry(2, retry_on=(kind,)).applies_to(Failure("", kind))
        assert not Retry(2, retry_on=(kind,)).applies_to(Failure(f"{kind} in the message", "other"))


@pytest.mark.parametrize(
    ("budget", "spent", "over"), [(None, 1e9, False), (5, 5, False), (5, 5.1, True)]
)
def test_a_budget_is_for_all_attempts_together(
    budget: float | None, spent: float, over: bool
) -> None:
    assert Retry(3, budget=budget).exceeds_budget(spent) is over
