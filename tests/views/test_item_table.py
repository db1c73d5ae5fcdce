"""The items of a map: windows, filters and search."""

from __future__ import annotations

import pytest

from plait.views.item_table import ItemEvent, ItemTable


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
            (90, 3.0, "retried", "item:beta", "", 0, "", 0.0),
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
    assert (row.path, row.state, row.retries, row.duration) == ("map/item:beta", "failed", 1, 0.5)


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
    assert items.load(0.0, 2.0, 4, now=2.0) == [0, 2, 2, 1]
