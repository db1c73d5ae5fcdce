"""Limits: none is exceeded, inner usage counts for outer limits, and earlier run attempts count."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.events import EventRecord, StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.limits import (
    COUNTED,
    NAMES,
    NO_LIMITS,
    Budget,
    LimitReached,
    Limits,
    PriorUsage,
    parse_limits,
)
from plait.engine.outcome import Failure, StepError, Succeeded


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def chain(*limits: Limits) -> list[Budget]:
    """Each inside the one before it."""
    made: list[Budget] = []
    for number, one in enumerate(limits):
        made.append(Budget(one, within=made[-1] if made else None, what=f"s{number}"))
    return made


AMOUNTS = st.dictionaries(st.sampled_from(COUNTED), st.integers(0, 50))
SOME = st.none() | st.integers(0, 60)
LIMITS = st.builds(Limits, turns=SOME, tokens=SOME, spend=SOME, steps=SOME)


@given(
    limits=st.lists(LIMITS, min_size=1, max_size=4),
    spends=st.lists(st.tuples(st.integers(0, 3), AMOUNTS)),
)
def test_usage_of_an_inner_budget_counts_for_the_outer_one(
    limits: list[Limits], spends: list[tuple[int, dict[str, int]]]
) -> None:
    budgets = chain(*limits)
    expected = [dict.fromkeys(COUNTED, 0) for _ in budgets]
    for at, used in spends:
        at = min(at, len(budgets) - 1)
        budgets[at].add(**used)
        for outer in range(at + 1):
            for name, amount in used.items():
                expected[outer][name] += amount
    for budget, wanted in zip(budgets, expected, strict=True):
        assert {name: budget.usage()[name] for name in COUNTED} == wanted


@given(limits=st.lists(LIMITS, min_size=1, max_size=4), used=AMOUNTS, at=st.integers(0, 3))
def test_what_is_left_is_the_least_of_all_around_and_reached_when_nothing_is(
    limits: list[Limits], used: dict[str, int], at: int
) -> None:
    budgets = chain(*limits)
    budgets[min(at, len(budgets) - 1)].add(**used)
    innermost = budgets[-1]
    for name in COUNTED:
        rests = [
            max(0, getattr(one.limits, name) - one.usage()[name])
            for one in budgets
            if getattr(one.limits, name) is not None
        ]
        assert innermost.available(name) == min(rests, default=None)
        found = innermost.reach(name)
        assert (found is not None and found.code == name) == (0 in rests)


@given(amounts=st.lists(st.lists(st.integers(0, 9), max_size=20), min_size=2, max_size=6))
def test_threads_lose_nothing(amounts: list[list[int]]) -> None:
    outer, inner = chain(NO_LIMITS, NO_LIMITS)

    def spend(mine: list[int], budget: Budget) -> None:
        for amount in mine:
            budget.add(tokens=amount, turns=1)

    threads = [
        threading.Thread(target=spend, args=(mine, (outer, inner)[at % 2]))
        for at, mine in enumerate(amounts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outer.usage()["tokens"] == sum(map(sum, amounts))
    assert inner.usage()["turns"] == sum(len(mine) for mine in amounts[1::2])


def test_no_two_threads_take_the_last_of_a_limit() -> None:
    outer, inner = chain(Limits(steps=50), NO_LIMITS)
    refused: list[str] = []

    def take(budget: Budget) -> None:
        for _ in range(20):
            if (found := budget.take(steps=1)) is not None:
                refused.append(found.code)

    threads = [threading.Thread(target=take, args=((outer, inner)[at % 2],)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (outer.usage()["steps"], refused) == (50, ["steps"] * 110)


def test_the_message_of_a_limit_names_its_owner_and_what_counts_against_it() -> None:
    outer, inner = chain(Limits(tokens=100), Limits(tokens=60))
    outer.add(tokens=50)
    inner.add(tokens=50)
    with pytest.raises(StepError) as caught:
        inner.require("turns", "tokens", partial={"text": "so far"})
    assert caught.value.failure == Failure(
        "s0 has reached its limit of 100 tokens (100 used)", "limit", output={"text": "so far"}
    )
    assert inner.failure("tokens").message == caught.value.failure.message
    inner.add(tokens=10)
    assert inner.failure("tokens").message == "s1 has reached its limit of 60 tokens (60 used)"


DEPTHS = [
    # limits of each, from outside    depth is reached in the innermost
    ([0],                             False),
    ([0, None],                       True),
    ([1, None],                       False),
    ([1, None, None],                 True),
    ([None, 0, None],                 True),
    ([5, 1, None],                    False),
    ([1, 5, None],                    True),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "reached"), DEPTHS)
def test_a_depth_is_counted_from_the_owner_of_its_limit(
    limits: list[int | None], reached: bool
) -> None:
    innermost = chain(*(Limits(depth=depth) for depth in limits))[-1]
    found = innermost.reach("depth")
    assert (found is not None and found.code == "depth") is reached


def test_seconds_count_from_the_beginning_and_with_those_of_earlier_run_attempts() -> None:
    clock = Clock()
    budget = Budget(Limits(seconds=10), clock=clock)
    budget.add(seconds=4)
    clock.now += 5
    assert (budget.usage()["seconds"], budget.available("seconds"), budget.reach()) == (
        9,
        1,
        None,
    )
    clock.now += 1
    found = budget.reach()
    assert found is not None
    assert found.record() == {"code": "seconds", "value": 10, "max": 10}


def test_the_seconds_of_one_inside_are_not_added_to_those_of_the_other() -> None:
    clock = Clock()
    outer = Budget(Limits(seconds=10), clock=clock)
    Budget(within=outer, clock=clock).add(seconds=100)
    assert outer.available("seconds") == 10


def test_limits_are_read_from_a_map_and_written_to_one() -> None:
    fields = {"turns": 3, "spend": 0.5, "tokens": None}
    assert parse_limits(fields) == Limits(turns=3, spend=0.5)
    assert parse_limits(fields).record() == {"turns": 3, "spend": 0.5}
    assert set(NAMES) == {*COUNTED, "seconds", "depth"}


# ── earlier run attempts ─────────────────────────────────────────────────


class Reported:
    """A journal of ends, each with the time when it was written down."""

    def __init__(self, *ends: tuple[float, StepFinished]) -> None:
        self.ends = ends

    def events(self, after: int = 0) -> Any:
        return (
            EventRecord(at, when, end)
            for at, (when, end) in enumerate(self.ends[after:], after + 1)
        )

    def usage_before(self, before: int) -> Any:
        return ((end.path, end.used) for _, end in self.ends[: before - 1] if end.used)


def end(path: str, *, at: float = 0, took: float = 0, **used: float) -> tuple[float, StepFinished]:
    return at, StepFinished(path, "shell", "", "", Succeeded(None), took, used=used or None)


def earlier(*ends: tuple[float, StepFinished], **given: int) -> PriorUsage:
    journal: Any = Reported(*ends)
    return PriorUsage(journal, **given)


def test_the_usage_of_earlier_run_attempts_is_found_in_total_and_for_each_path() -> None:
    known = earlier(
        end("steps/0", steps=1),
        end("steps/1/run"),
        end("steps/1", steps=1),
        end("steps/10", steps=1),
        end("steps/1-b", steps=1),
        end("steps/2/turn:1", turns=1, tokens=11, spend=0.5),
        end("steps/2/turn:1/hook:x/turn:1", turns=1, tokens=1),
        end("steps/2/turn:1.call:1", steps=1),
        end("steps/2/turn:2", turns=1, tokens=21),
        end("steps/2"),
        end("steps/2/hook:x/turn:1", turns=1, tokens=7),
        end("steps"),
    )
    whole = {"steps": 5, "turns": 4, "tokens": 40, "spend": 0.5}
    assert known.inside("") == known.inside("steps") == whole
    assert known.inside("steps/1") == {}
    inside = {"steps": 1, "turns": 3, "tokens": 33, "spend": 0.5}
    assert known.inside("steps/2") == inside, "without the hook that is about it"
    assert known.inside("steps/2/turn:1") == {}
    assert known.by_part() == {"steps": whole}
    assert [path for path, _ in known.below("steps/1")] == ["steps/1"]
    paths = (
        "steps/1",
        "steps/2/turn:1.call:1",
        "steps/2/turn:1",
        "steps/1/run",
        "steps",
        "steps/3",
        "",
    )
    assert [path for path in paths if known.has_step(path)] == ["steps/1", "steps/2/turn:1.call:1"]


def test_the_usage_at_one_path_in_earlier_run_attempts_is_added_up_without_that_of_this_one() -> (
    None
):
    ends = [end("a", turns=1, spend=0.1), end("a", turns=1, spend=0.2), end("a", turns=1)]
    assert earlier(*ends).inside("") == {"turns": 3, "spend": 0.3}
    assert earlier(*ends, before=3).inside("") == {"turns": 2, "spend": 0.3}


@given(
    ends=st.lists(
        st.tuples(st.lists(st.sampled_from(["a", "b", "hook:h"]), min_size=1, max_size=4), AMOUNTS)
    )
)
def test_the_usage_of_inner_paths_adds_up_to_that_of_the_outer_path(
    ends: list[tuple[list[str], dict[str, int]]],
) -> None:
    known = earlier(*(end("/".join(["top", *path]), **used) for path, used in ends))
    for name in COUNTED:
        own = sum(used.get(name, 0) for path, used in ends if path[0] != "hook:h")
        assert known.inside("top").get(name, 0) == own


def test_the_usage_of_earlier_run_attempts_counts_where_it_is_counted_and_nowhere_else() -> None:
    outer = Budget()
    inner = Budget(within=outer)
    inner.add_earlier(steps=2, tokens=3)
    assert (inner.usage()["steps"], inner.usage()["tokens"], outer.usage()["steps"]) == (2, 3, 0)


SECONDS = [
    # ends: when, how long                 seconds
    ([(10, 2), (15, 3)],                   5),    # one after the other
    ([(10, 4), (12, 6), (12, 1)],          6),    # side by side
    ([(10, 4), (12, 4), (30, 1), (31, 25)], 25),  # all inside the last
    ([(100, 5), (7, 2), (9, 2)],           9),    # a clock that was set back
]  # fmt: skip


@pytest.mark.parametrize(("ends", "seconds"), SECONDS)
def test_what_ran_side_by_side_counts_once(ends: list[tuple[float, float]], seconds: float) -> None:
    assert earlier(*(end("a", at=at, took=took) for at, took in ends)).seconds == seconds


@given(ends=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30))))
def test_a_clock_that_jumps_makes_nothing_longer_than_it_was(ends: list[tuple[int, int]]) -> None:
    found = earlier(*(end("a", at=at, took=took) for at, took in ends)).seconds
    assert max((took for _, took in ends), default=0) <= found <= sum(took for _, took in ends)


def test_a_journal_in_memory_knows_it_as_well() -> None:
    journal = MemoryJournal()
    journal.append(end("a", steps=1)[1], end("b")[1])
    assert PriorUsage(journal).inside("") == {"steps": 1}


@pytest.mark.parametrize(
    ("code", "most", "text"),
    [
        ("steps", 1, "1 step"),
        ("steps", 2, "2 steps"),
        ("steps", 0, "0 steps"),
        ("depth", 1, "1 depth"),
        ("spend", 1, "1 spend"),
        ("seconds", 1.5, "1.5 seconds"),
    ],
)
def test_one_of_something_is_written_as_one(code: str, most: float, text: str) -> None:
    assert (
        LimitReached(code, most, most, "the run")
        .failure()
        .message.startswith(f"the run has reached its limit of {text} (")
    )
