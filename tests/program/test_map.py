"""The same steps for many items: order, counts, policies, and what a resumed run does not repeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import TrustError
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.backend import WorkItem
from plait.engine.events import EventRecord, ItemsCounted, Note
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import (
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Composite, Policy, Retry, Step
from plait.engine.stop import StopSignal
from plait.program.item_list import item_title
from plait.program.map import CircuitBreaker, ErrorPolicy, Map, OnItemFailure, item_results
from plait.program.map_progress import FEW
from plait.program.phases import Phases
from plait.program.ports import ItemCounts
from program.fakes import (
    Acting,
    failure_of,
    new_run,
    performed,
    saying,
    step,
    steps,
    text_of,
    turn_of,
)
from share import examples


@dataclass(frozen=True, slots=True)
class Given(Composite):
    """Items that are simply there."""

    items: tuple[Json, ...]
    name: str = "items"
    kind: str = "items"
    title: str = "items"
    fingerprint: str = "i"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> Json:  # noqa: ARG002
        return {"count": len(self.items)}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002
        return (WorkItem(order, f"k{order}", item) for order, item in enumerate(self.items))


def map_of(items: Sequence[Json], action: Any, **fields: Any) -> Map:
    made = {"parallel": 1, **fields}
    return Map("map", Given(tuple(items)), steps(step("s", action)), "f", **made)


def picky(*bad: Json) -> Acting:
    """Fails for these items."""

    def answer(ctx: StepContext) -> Json:
        item = ctx.scope.lookup("item")
        if item in bad:
            raise StepError(Failure(f"{item} is bad", "exit", 5))
        return f"<{item}>"

    return Acting(answer)


def counts(outcome: Outcome) -> tuple[Json, ...]:
    value = outcome.value if isinstance(outcome, Succeeded) else failure_of(outcome).output
    return tuple(value[name] for name in ("total", "successful", "failed", "skipped"))


POLICIES: list[tuple[OnItemFailure, tuple[Json, ...], bool, tuple[int, ...]]] = [
    # on_item_failure  bad items   done?    total, successful, failed, skipped
    ("dlq",            (),         True,    (4, 4, 0, 0)),
    ("dlq",            (1, 2),     True,    (4, 2, 2, 0)),
    ("skip",           (1, 2),     True,    (4, 2, 0, 2)),
    ("stop",           (1,),       False,   (4, 1, 1, 0)),
    ("retry",          (1,),       True,    (4, 3, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "bad", "done", "counted"), POLICIES)
def test_what_becomes_of_a_failed_item_is_a_matter_of_policy(
    policy: OnItemFailure, bad: tuple[Json, ...], done: bool, counted: tuple[int, ...]
) -> None:
    outcome = performed(map_of(range(4), picky(*bad), errors=ErrorPolicy(policy)))
    assert isinstance(outcome, Succeeded if done else Failed)
    assert counts(outcome) == counted


def test_retry_tries_an_item_as_often_as_it_is_reported() -> None:
    action = picky(1)
    performed(map_of([1], action, errors=ErrorPolicy("retry", Retry(3, "fixed", 0.0))))
    assert len(action.ran) == 3


@pytest.mark.parametrize("policy", ["dlq", "skip", "stop", "retry"])
def test_attempts_and_what_follows_them_are_two_things(policy: OnItemFailure) -> None:
    action = picky(1)
    performed(map_of([1], action, errors=ErrorPolicy(policy, Retry(3, "fixed", 0.0))))
    assert len(action.ran) == 3


def test_no_items_are_no_failure() -> None:
    outcome = performed(map_of([], Acting()))
    assert counts(outcome) == (0, 0, 0, 0)
    assert isinstance(outcome, Succeeded)
    assert outcome.value["success_rate"] == 0


def test_nothing_is_kept_of_a_map_inside_an_item() -> None:
    """There may be a million of them."""
    run, inner = new_run(), map_of([1, 2], Acting())
    performed(map_of(range(3), Acting(lambda ctx: require_success(ctx.perform(inner)))), run)
    assert set(run.shared(ItemCounts)) == {"map"}


def test_max_failures_stops_at_that_failure() -> None:
    outcome = performed(map_of(range(9), picky(1, 3, 5), errors=ErrorPolicy(max_failures=2)))
    assert counts(outcome) == (9, 2, 2, 0)
    assert failure_of(outcome).message == "2 items failed, and max_failures is 2"
    outcome = performed(map_of(range(9), picky(1, 3, 5), errors=ErrorPolicy(max_failures=1)))
    assert failure_of(outcome).message == "1 item failed, and max_failures is 1"


THRESHOLDS = [
    # items    bad      share allowed    ended before it stops
    (20,       20,      0.5,             FEW),
    (20,       10,      0.5,             FEW),
    (9,        9,       0.0,             9),
    (40,       1,       0.5,             40),
]  # fmt: skip


@pytest.mark.parametrize(("items", "bad", "allowed", "ended"), THRESHOLDS)
def test_a_share_of_failures_means_something_only_after_ten_items(
    items: int, bad: int, allowed: float, ended: int
) -> None:
    outcome = performed(
        map_of(range(items), picky(*range(bad)), errors=ErrorPolicy(failure_threshold=allowed))
    )
    assert sum(counts(outcome)[1:]) == ended


def test_the_share_of_failures_is_judged_whenever_an_item_ends() -> None:
    bad = picky(*range(2, 40, 3))  # every third item fails: of the first ten, items 2, 5 and 8
    outcome = performed(map_of(range(40), bad, errors=ErrorPolicy(failure_threshold=0.2)))
    assert counts(outcome) == (40, 7, 3, 0)
    assert failure_of(outcome).message == "3 of 10 items failed, more than failure_threshold allows"


def test_one_failure_after_the_other_makes_a_pause() -> None:
    stop = StopSignal()
    noted: list[str] = []

    def stop_at_a_note(stamped: EventRecord) -> None:
        if isinstance(stamped.event, Note):
            noted.append(stamped.event.message)
            stop.ask()  # the pause would take an hour

    run = new_run(watchers=[stop_at_a_note], stop=stop)
    action = picky(*range(9))
    with pytest.raises(Interrupted):
        performed(
            map_of(range(9), action, errors=ErrorPolicy(circuit=CircuitBreaker(3, 3600.0))), run
        )
    assert noted == ["3 failures in a row: no new items for 3600 s"]
    assert len(action.ran) == 3


def test_a_pause_that_follows_a_pause_says_what_it_is_for() -> None:
    noted: list[str] = []

    def note(stamped: EventRecord) -> None:
        if isinstance(stamped.event, Note):
            noted.append(stamped.event.message)

    bad, circuit = picky(*range(3), 4), CircuitBreaker(3, 0.001, successes=2)
    performed(map_of(range(6), bad, errors=ErrorPolicy(circuit=circuit)), new_run(watchers=[note]))
    performed(
        map_of([0], bad, errors=ErrorPolicy(circuit=CircuitBreaker(1, 0.001))),
        new_run(watchers=[note]),
    )
    assert noted == [
        "3 failures in a row: no new items for 0.001 s",
        "another failure after a pause: no new items for 0.001 s",
        "1 failure: no new items for 0.001 s",
    ]


def test_a_pause_ends_with_the_time_of_the_map() -> None:
    began, action = time.monotonic(), picky(*range(9))
    policy = ErrorPolicy(circuit=CircuitBreaker(1, 3600.0))
    outcome = performed(map_of(range(9), action, errors=policy, policy=Policy(timeout=0.05)))
    assert failure_of(outcome).message == "took longer than 0.05 s"
    assert time.monotonic() - began < 60
    assert len(action.ran) == 1


def test_the_number_of_items_is_reported_before_the_first_one_runs() -> None:
    journal = MemoryJournal()
    performed(map_of([1, 2], Acting()), new_run(journal=journal))
    events = [stamped.event for stamped in journal.events()]
    assert [event for event in events if isinstance(event, ItemsCounted)] == [
        ItemsCounted("map", 2)
    ]


@settings(max_examples=examples(25), deadline=None)
@given(
    items=st.lists(st.integers(0, 9), max_size=12),
    bad=st.sets(st.integers(0, 9)),
    parallel=st.integers(1, 6),
)
def test_results_are_in_the_order_of_the_items_failed_ones_included(
    items: list[int], bad: set[int], parallel: int
) -> None:
    made = map_of(items, picky(*bad), parallel=parallel)
    run = new_run()
    turn = turn_of(run)
    turn.perform(made)
    found = list(item_results(turn.child(made), made.items.read(None, turn)))
    run.events.close()
    assert [one["item"] for one in found] == items
    assert [one["status"] for one in found] == [
        "failed" if item in bad else "success" for item in items
    ]
    assert [one["error"] for one in found] == [
        f"{item} is bad" if item in bad else None for item in items
    ]


def test_reduce_sees_what_became_of_the_items() -> None:
    text = "${map.successful}/${map.total} ${map.failed} ${map.success_rate} ${map.outputs:json} ${map.results[1].error}"
    flow = Phases(
        map=map_of([1, 2, 3, 4], picky(2)),
        reduce=steps(step("r", saying(text)), name="reduce"),
    )
    run = new_run()
    value = flow.run(turn_of(run))
    run.events.close()
    assert value["output"] == '3/4 1 75.0 ["<1>","","<3>","<4>"] 2 is bad'


NAMES: list[tuple[Json, str, Json]] = [
    # item                    placeholder           value
    ("a.txt",                 "${item}",            "a.txt"),
    ("a.txt",                 "${item.path}",       "a.txt"),
    ("a.txt",                 "${item.value}",      "a.txt"),
    (7,                       "${item.value}",      7),
    ({"path": "p", "n": [1]}, "${item.path}",       "p"),
    ({"a": {"b": [3]}},       "${item.a.b[0]}",     3),
    ({"a": 1},                "${item.value:-no}",  "no"),
    ("x",                     "${item_id}",         "k0"),
    ("x",                     "${item_index}",      0),
    ("x",                     "${item_total}",      1),
]  # fmt: skip


@pytest.mark.parametrize(("item", "placeholder", "value"), NAMES)
def test_an_item_is_known_by_its_names(item: Json, placeholder: str, value: Json) -> None:
    seen: list[Json] = []
    template = text_of(placeholder)
    performed(map_of([item], Acting(lambda ctx: seen.append(template.render(ctx.scope)))))
    assert seen == [value]


TITLES: list[tuple[Json, str]] = [
    ("a\n b", "a b"),
    ({"name": "n", "id": "i"}, "i"),
    ({"other": 1}, '{"other":1}'),
    ("x" * 99, "x" * 59 + "…"),
    (None, ""),
]


@pytest.mark.parametrize(("item", "title"), TITLES)
def test_a_person_recognises_an_item(item: Json, title: str) -> None:
    assert item_title(item) == title


def test_no_more_items_run_at_once_than_allowed() -> None:
    now, most, lock = [0], [0], threading.Lock()
    turnstile = threading.Semaphore(0)

    def answer(_: StepContext) -> Json:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 3:
                turnstile.release(20)  # three are in at once: let everybody through
        turnstile.acquire(timeout=30)
        with lock:
            now[0] -= 1
        return None

    performed(map_of(range(12), Acting(answer), parallel=text_of("${n}")), values={"n": "3"})
    assert most == [3]


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "99999"])
def test_a_parallelism_that_is_none_is_refused(value: str) -> None:
    failure = failure_of(
        performed(map_of([1], Acting(), parallel=text_of("${n}")), values={"n": value})
    )
    assert "max_parallel is a number from 1 to 4096" in failure.message


def test_a_finished_item_is_not_repeated_and_a_dead_letter_waits() -> None:
    action = picky(1)
    made = map_of(range(3), action)
    journal = MemoryJournal()
    performed(made, new_run(journal=journal))
    del journal._finished["map"]  # the run died before the map itself was recorded
    outcome = performed(made, new_run(journal=journal.reopen()))
    assert counts(outcome) == (3, 2, 1, 0)
    assert len(action.ran) == 3


def test_where_the_first_failure_stops_everything_resuming_tries_it_again() -> None:
    action = picky(1)
    made = map_of(range(3), action, errors=ErrorPolicy("stop"))
    journal = MemoryJournal()
    failure_of(performed(made, new_run(journal=journal)))
    action.answers = lambda _: "mended"
    assert counts(performed(made, new_run(journal=journal.reopen()))) == (3, 3, 0, 0)
    assert [path.split("/")[1] for path in action.ran] == [
        "item:k0",
        "item:k1",
        "item:k1",
        "item:k2",
    ]


def test_a_stop_starts_no_new_items_and_records_those_that_ended() -> None:
    def answer(ctx: StepContext) -> Json:
        if ctx.scope.lookup("item") == 1:
            ctx.run.stop.ask()
        return "done"

    action = Acting(answer)
    journal = MemoryJournal()
    with pytest.raises(Interrupted):
        performed(map_of(range(5), action), new_run(journal=journal))
    assert len(action.ran) == 2
    assert [known.path for known in journal.steps_in("map")] == [
        "map/items",
        "map/item:k0",
        "map/item:k1",
    ]
    action.answers = lambda _: "done"
    assert counts(performed(map_of(range(5), action), new_run(journal=journal.reopen()))) == (
        5,
        5,
        0,
        0,
    )
    assert len(action.ran) == 5


def test_an_untrusted_tool_ends_the_run_from_within_an_item() -> None:
    def answer(_: StepContext) -> Json:
        raise TrustError("not trusted")

    action = Acting(answer)
    with pytest.raises(TrustError):
        performed(map_of(range(5), action, errors=ErrorPolicy("skip")))
    assert len(action.ran) == 1


def test_an_item_has_its_own_time() -> None:
    left: list[float | None] = []
    performed(map_of([1], Acting(lambda ctx: left.append(ctx.time_left())), item_timeout=20))
    assert left[0] is not None
    assert 10 < left[0] <= 20


def test_a_skipped_item_says_why() -> None:
    made = map_of([1], picky(1), errors=ErrorPolicy("skip"))
    run = new_run()
    turn = turn_of(run)
    turn.perform(made)
    known = run.journal.step("map/item:k0")
    run.events.close()
    assert known is not None
    assert known.outcome == Skipped("1 is bad")
