"""The items of a map: windows, filters and search."""

from __future__ import annotations

import pytest

from plait.views.item_table import ItemEvent, ItemTable
from plait.views.run_tree import RunClock, Span, item_spans


def started(order: int, title: str, at: float = 1.0) -> ItemEvent:
    return (order + 1, at, "started", f"item:{title}", title, order, "", 0.0)


def ended(order: int, title: str, status: str, at: float = 2.0) -> ItemEvent:
    return (order + 100, at, "ended", f"item:{title}", title, order, status, 0.5)


def table() -> ItemTable:
    found = ItemTable("map", 8)
    found.add(
        [
            started(0, "Alpha"),
            ended(0, "Alpha", "done"),
            ended(1, "beta", "failed"),
            started(2, "gamma"),
            ended(4, "Alphabet", "skipped"),
            (90, 3.0, "retried", "item:gamma", "", 0, "", 0.0),
        ]
    )
    return found


WINDOWS = [
    # offset  limit  state      search  the titles                                matching
    (0,       3,     "",        "",     ["Alpha", "beta", "gamma"],               8),
    (3,       3,     "",        "",     ["item 4", "Alphabet", "item 6"],         8),
    (7,       9,     "",        "",     ["item 8"],                               8),
    (9,       9,     "",        "",     [],                                       8),
    (0,       9,     "failed",  "",     ["beta"],                                 1),
    (0,       9,     "running", "",     ["gamma"],                                1),
    (0,       2,     "waiting", "",     ["item 4", "item 6"],                     4),
    (0,       9,     "",        "ALPHA", ["Alpha", "Alphabet"],                   2),
    (1,       9,     "",        "alpha", ["Alphabet"],                            2),
    (0,       9,     "done",    "alpha", ["Alpha"],                               1),
    (0,       9,     "nothing", "",     [],                                       0),
]  # fmt: skip


@pytest.mark.parametrize(("offset", "limit", "state", "search", "titles", "matching"), WINDOWS)
def test_a_window_has_the_items_that_a_filter_selects(
    offset: int, limit: int, state: str, search: str, titles: list[str], matching: int
) -> None:
    window = table().window(offset, limit, state=state, search=search)
    assert [row.title for row in window.rows] == titles
    assert (window.matching, window.total) == (matching, 8)


def test_an_item_that_is_retried_counts_its_retries() -> None:
    (row,) = table().window(1, 1).rows
    assert (row.path, row.state, row.attempts, row.duration) == ("map/item:beta", "failed", 1, 0.5)


def test_what_ran_when_the_run_started_again_was_interrupted() -> None:
    items = table()
    items.add([(200, 4.0, "run started", "", "", 0, "", 0.0), ended(2, "gamma", "done")])
    (row,) = items.window(2, 1).rows
    assert (row.state, row.attempts) == ("done", 2)


def test_an_invalidated_item_waits_again() -> None:
    items = table()
    items.add([(200, 4.0, "invalidated", "item:beta", "", 0, "", 0.0)])
    assert items.count("failed") == 0
    assert items.count("waiting") == 5


def test_items_that_ran_when_the_run_ended_were_interrupted() -> None:
    items = table()
    items.interrupt()
    assert (items.count("running"), items.count("interrupted")) == (0, 1)
    assert not list(items.running())


def test_a_new_selection_empties_the_table() -> None:
    items = table()
    items.clear()
    assert (len(items), items.count("waiting")) == (8, 8)


def test_the_overview_shows_the_state_that_matters_most() -> None:
    assert table().overview(4) == ["failed", "running", "waiting", "waiting"]
    assert table().overview(99)[:3] == ["done", "failed", "running"]
    assert ItemTable("map").overview(9) == []


def test_the_load_counts_items_that_ran_at_the_same_time() -> None:
    items = ItemTable("map", 3)
    items.add([ended(0, "a", "done", at=1.0), ended(1, "b", "done", at=1.0), started(2, "c", 1.5)])
    assert items.load(RunClock([[0.0, 2.0]], 2.0, alive=False), 4) == [0, 2, 2, 1]


def test_items_that_ran_one_after_another_are_not_counted_together() -> None:
    items = ItemTable("map", 56)
    for n in range(56):
        items.add([(n, (n + 1) / 64, "ended", f"item:{n}", "", n, "done", 1 / 64)])
    assert items.load(RunClock([[0.0, 1.25]], 1.25, alive=False), 4) == [1, 1, 1, 0]


def test_the_load_covers_all_run_attempts() -> None:
    items = ItemTable("map", 2)
    items.add([ended(0, "a", "failed", at=1.0), ended(1, "b", "done", at=2.0)])
    items.add([invalidated("a", at=90.0), ended(0, "a", "done", at=101.0)])
    assert items.load(RunClock([[0.0, 2.0], [100.0, 102.0]], 102.0, alive=False), 8) == [
        0, 1, 1, 1, 1, 1, 1, 0,
    ]  # fmt: skip


def invalidated(title: str, at: float) -> ItemEvent:
    return (300, at, "invalidated", f"item:{title}", "", 0, "", 0.0)


def retried(title: str, at: float) -> ItemEvent:
    return (300, at, "retried", f"item:{title}", "", 0, "", 0.0)


def ended_after(seconds: float, status: str, at: float) -> ItemEvent:
    return (300, at, "ended", "item:a", "a", 0, status, seconds)


# The run attempts lasted from 0 to 10 and from 100 to 110.
ATTEMPTS: list[tuple[str, list[ItemEvent], list[Span]]] = [
    (
        "one attempt",
        [started(0, "a", 1.0), ended_after(2.0, "done", 3.0)],
        [Span(1, 3, "done")],
    ),
    (
        "no recorded start",
        [ended_after(2.0, "done", 3.0)],
        [Span(1, 3, "done")],
    ),
    (
        "retried by a person",
        [
            started(0, "a", 1.0),
            ended_after(2.0, "failed", 3.0),
            invalidated("a", 90.0),
            started(0, "a", 101.0),
            ended_after(1.0, "done", 102.0),
        ],
        [Span(1, 3, "failed", "attempt 1"), Span(11, 12, "done", "attempt 2")],
    ),
    (
        "retried by a person, without recorded starts",
        [
            ended_after(2.0, "failed", 3.0),
            invalidated("a", 90.0),
            ended_after(1.0, "done", 102.0),
        ],
        [Span(1, 3, "failed", "attempt 1"), Span(11, 12, "done", "attempt 2")],
    ),
    (
        "to be retried by a person",
        [ended_after(2.0, "failed", 3.0), invalidated("a", 90.0)],
        [Span(1, 3, "failed")],
    ),
    (
        "retried by policy",
        [
            started(0, "a", 1.0),
            retried("a", 2.0),
            started(0, "a", 4.0),
            retried("a", 5.0),
            started(0, "a", 6.0),
            ended_after(6.0, "done", 7.0),
        ],
        [
            Span(1, 2, "failed", "attempt 1"),
            Span(2, 4, "retrying", "waits"),
            Span(4, 5, "failed", "attempt 2"),
            Span(5, 6, "retrying", "waits"),
            Span(6, 7, "done", "attempt 3"),
        ],
    ),
    (
        "waits for its next attempt",
        [started(0, "a", 101.0), retried("a", 102.0)],
        [Span(11, 12, "failed", "attempt 1"), Span(12, 20, "retrying", "waits")],
    ),
    (
        "the run was killed, and resumed",
        [started(0, "a", 8.0), started(0, "a", 101.0), ended_after(1.0, "done", 102.0)],
        [Span(8, 10, "interrupted", "attempt 1"), Span(11, 12, "done", "attempt 2")],
    ),
    (
        "the run was killed while it waited for its next attempt",
        [
            started(0, "a", 8.0),
            retried("a", 9.0),
            started(0, "a", 101.0),
            ended_after(1.0, "done", 102.0),
        ],
        [
            Span(8, 9, "failed", "attempt 1"),
            Span(9, 10, "retrying", "waits"),
            Span(11, 12, "done", "attempt 2"),
        ],
    ),
    (
        "retried by policy, without recorded starts, and by a person",
        [
            retried("a", 2.0),
            ended_after(2.0, "failed", 3.0),
            invalidated("a", 90.0),
            retried("a", 101.0),
            ended_after(1.0, "done", 102.0),
        ],
        [Span(1, 3, "failed", "attempt 1"), Span(11, 12, "done", "attempt 2")],
    ),
    ("runs", [started(0, "a", 101.0)], [Span(11, 20, "running")]),
]


@pytest.mark.parametrize(
    ("events", "spans"), [row[1:] for row in ATTEMPTS], ids=[row[0] for row in ATTEMPTS]
)
def test_an_item_has_a_span_for_each_attempt(events: list[ItemEvent], spans: list[Span]) -> None:
    items = ItemTable("map", 1)
    items.add(events)
    clock = RunClock([[0.0, 10.0], [100.0, 110.0]], 110.0, alive=True)
    ((row, attempts),) = items.spans()
    assert row.title == "a"
    timeless = 2 if events[0][2] == "retried" else 0  # two attempts that have no span
    assert row.attempts == sum(one.state != "retrying" for one in spans) + timeless
    assert list(item_spans(attempts, clock)) == spans


def test_an_item_that_was_interrupted_has_a_span_until_the_end_of_its_run_attempt() -> None:
    items = ItemTable("map", 2)
    items.add([started(0, "a", 4.0), retried("a", 6.0), started(1, "b", 5.0)])
    items.interrupt()
    clock = RunClock([[0.0, 10.0]], 99.0, alive=False)
    assert [list(item_spans(attempts, clock)) for _, attempts in items.spans()] == [
        [Span(4, 6, "failed", "attempt 1"), Span(6, 10, "retrying", "waits")],
        [Span(5, 10, "interrupted")],
    ]
