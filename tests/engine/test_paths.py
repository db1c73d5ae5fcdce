"""Step paths: each name as it is recorded, what is read back from it, and the range below a path."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.paths import (
    ANY_ITEM,
    CALL,
    CHECK,
    HOOK,
    ITEM,
    MAIN_ITEMS,
    MANAGER,
    ON_FAILURE,
    ON_INCOMPLETE,
    RUN,
    again_name,
    call_name,
    exit_code_name,
    first_name,
    generic_path,
    hook_name,
    is_at_or_below,
    is_attempt_name,
    is_below,
    is_call_name,
    is_handler_name,
    is_hook_name,
    is_item,
    is_model_step,
    is_turn_name,
    item_name,
    join_path,
    last_name,
    loop_name,
    name_key,
    numbered_name,
    parent_path,
    path_names,
    range_below,
    reduce_name,
    repeated_name,
    round_name,
    say_name,
    split_call,
    split_name,
    split_path,
    task_id,
    task_map_name,
    task_name,
    turn_name,
    unnumbered_name,
)

# Journals hold these: a name that changes here makes old runs unreadable.
NAMES = [
    # name as it is written             as it is recorded    word           key     what it is
    (item_name("3f"),                   "item:3f",           "item",        "3f",   {"item"}),
    (item_name(0),                      "item:0",            "item",        "0",    {"item"}),
    (item_name("a:b@2"),                "item:a:b@2",        "item",        "a:b@2", {"item"}),
    (ANY_ITEM,                          "item:*",            "item",        "*",    {"item"}),
    (RUN,                               "run",               "run",         "",     {"attempt"}),
    (again_name(1),                     "again@1",           "again@1",     "",     {"attempt"}),
    (numbered_name(ON_FAILURE, 1),      "on_failure@1",      "on_failure@1", "",    {"handler"}),
    (numbered_name(ON_INCOMPLETE, 2),   "on_incomplete@2",   "on_incomplete@2", "", {"handler"}),
    (numbered_name(CHECK, 3),           "check@3",           "check@3",     "",     {"handler"}),
    (ON_FAILURE,                        "on_failure",        "on_failure",  "",     {"handler"}),
    (exit_code_name(0),                 "on_exit_code:0",    "on_exit_code", "0",   set()),
    (hook_name("judge"),                "hook:judge",        "hook",        "judge", {"hook"}),
    (hook_name(repeated_name("j", 2)),  "hook:j@2",          "hook",        "j@2",  {"hook"}),
    (repeated_name("draft", 1),         "draft",             "draft",       "",     set()),
    (repeated_name("draft", 2),         "draft@2",           "draft@2",     "",     set()),
    (CALL,                              "call",              "call",        "",     {"model"}),
    (repeated_name(CALL, 2),            "call@2",            "call@2",      "",     {"model"}),
    (turn_name(12),                     "turn:12",           "turn",        "12",   {"model", "turn"}),
    (call_name(3, 1),                   "turn:3.call:1",     "turn",        "3.call:1", {"model", "call"}),
    (say_name(2),                       "say:2",             "say",         "2",    set()),
    (task_name("page"),                 "task:page",         "task",        "page", set()),
    (loop_name("better"),               "loop:better",       "loop",        "better", set()),
    (task_map_name("count"),            "map:count",         "map",         "count", set()),
    (MANAGER,                           "manager",           "manager",     "",     set()),
    (round_name(2),                     "round:2",           "round",       "2",    set()),
    (reduce_name(1, 2),                 "reduce:1.2",        "reduce",      "1.2",  set()),
]  # fmt: skip

KINDS = {
    "item": is_item,
    "attempt": is_attempt_name,
    "handler": is_handler_name,
    "hook": is_hook_name,
    "turn": is_turn_name,
    "call": is_call_name,
    "model": is_model_step,
}


@pytest.mark.parametrize(
    ("name", "recorded", "word", "key", "kinds"), NAMES, ids=[row[1] for row in NAMES]
)
def test_a_name_is_recorded_and_read_as_it_ever_was(
    name: str, recorded: str, word: str, key: str, kinds: set[str]
) -> None:
    assert name == recorded
    assert split_name(name) == (word, key)
    assert name_key(name) == key
    assert {kind for kind, holds in KINDS.items() if holds(name)} == kinds


PATHS = [
    # path                            of the flow
    ("map/item:3f/0/run",             "map/item:*/0/run"),
    ("setup/2/each/item:a/1/each/item:b", "setup/2/each/item:*/1/each/item:*"),
    ("setup/0/check@2/0",             "setup/0/check/0"),
    ("setup/0/on_failure@1/shell",    "setup/0/on_failure/shell"),
    ("setup/0/on_incomplete@10",      "setup/0/on_incomplete"),
    ("setup/0/again@1",               "setup/0/again@1"),
    ("nodes/check@2",                 "nodes/check"),
    ("nodes/draft@2",                 "nodes/draft@2"),
    ("setup/0/check@two",             "setup/0/check@two"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "generic"), PATHS)
def test_a_path_of_a_run_becomes_one_of_the_flow(path: str, generic: str) -> None:
    assert generic_path(path) == generic


TASK_IDS = [
    ("tasks/task:page",                   "page"),
    ("tasks/loop:better/round:2/task:a",  "a"),
    ("tasks/task:page/turn:1",            None),
    ("tasks/map:count/item:0",            None),
    ("tasks",                             None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "task"), TASK_IDS)
def test_only_the_step_of_a_task_has_the_id_of_a_task(path: str, task: str | None) -> None:
    assert task_id(path) == task


def test_the_items_of_a_workflow_are_chosen_in_its_map() -> None:
    assert MAIN_ITEMS == "map/items"


# ── round trips ──────────────────────────────────────────────────────────

names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1)
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


@given(paths, names)
def test_a_joined_path_comes_apart_again(path: str, name: str) -> None:
    joined = join_path(path, name)
    assert split_path(joined) == (parent_path(joined), last_name(joined)) == (path, name)
    assert path_names(joined) == [*path_names(path), name]
    assert join_path(*path_names(joined)) == joined
    assert first_name(joined) == path_names(path)[0]
    assert is_below(joined, path)
    assert is_at_or_below(joined, path)
    assert not is_below(path, joined)


@given(names)
def test_a_name_below_the_run_is_its_path(name: str) -> None:
    assert join_path("", name) == name
    assert split_path(name) == ("", name)


@given(names)
def test_a_key_comes_out_of_its_name(key: str) -> None:
    for write in (item_name, task_name, loop_name, task_map_name, hook_name):
        assert name_key(write(key)) == key
    assert task_id(join_path("tasks", task_name(key))) == key


@given(names.filter(lambda name: "@" not in name), st.integers(1, 10**6))
def test_a_number_comes_off_a_name(name: str, number: int) -> None:
    assert unnumbered_name(repeated_name(name, number)) == name
    assert unnumbered_name(numbered_name(name, number)) == name


@given(paths, st.lists(paths), st.sampled_from(["", ITEM, HOOK]))
def test_a_range_holds_exactly_what_is_below_a_path(
    path: str, others: list[str], begins: str
) -> None:
    inner = [join_path(path, begins + other) for other in others]
    found = sorted({path, *others, *inner})
    first, end = (bisect_left(found, one) for one in range_below(path, begins))
    assert found[first:end] == [one for one in found if one.startswith(f"{path}/{begins}")]


@given(paths, st.integers(1, 99), st.integers(1, 99))
def test_a_tool_call_names_its_turn(path: str, turn: int, number: int) -> None:
    above = join_path(path, turn_name(turn))
    assert split_call(join_path(path, call_name(turn, number))) == (above, number)
    assert split_call(above)[1] == 0
