"""How long an ensemble takes to fill all its texts, beside `str.format` on the same texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dialects
from cases import PROMPT, PROMPT_VALUES
from dialects import written
from measure import Contender, race, race_once_each
from tables import Bar, Plan, Table, compared

import plait

TASKS = 4
UNTIL_HOT = 250
"""Runs before the measurement, to fill all caches."""
FORMAT = "str.format"
FIRST = "plait.Ensemble.resolve, the first time"
AHEAD = Bar(1.0)


def ensemble_tables(*, rounds: int) -> Iterator[Plan]:
    yield Plan(f"An ensemble: {TASKS} tasks with a 4 KB prompt each", partial(_table, rounds))


def _table(rounds: int, title: str) -> Table:
    text = written(PROMPT, dialects.format_field)
    expected = "A page in {format} for {audience}."
    tasks = [plait.Task(text, expected, handler=_nothing) for _ in range(TASKS)]
    names: dict[str, Any] = {
        "resolve": plait.Ensemble(tasks).resolve,
        "texts": [text, expected] * TASKS,
        "values": PROMPT_VALUES,
    }
    filled = [text.format(**PROMPT_VALUES), expected.format(**PROMPT_VALUES)]
    resolved = plait.Ensemble(tasks).resolve(PROMPT_VALUES)
    assert [[task.description, task.expected_output] for task in resolved] == [filled] * TASKS
    for _ in range(UNTIL_HOT):
        names["resolve"](PROMPT_VALUES)
    times = race(
        [
            Contender(FORMAT, "[text.format(**values) for text in texts]", names),
            Contender("plait.Ensemble.resolve", "resolve(values)", names),
        ],
        rounds=rounds,
    )
    new = [plait.Ensemble(tasks) for _ in range(rounds)]
    first = race_once_each(
        {FIRST: lambda number: new[number].resolve(PROMPT_VALUES)}, rounds=rounds
    )
    return compared(
        title,
        "All descriptions and expected outputs are filled, and every task is copied with its "
        "texts, as at "
        "the start of a run. The bar: ahead of `str.format`, which checks nothing and copies "
        "nothing, from "
        "the first time on.",
        {**times, **first},
        to=FORMAT,
        bars={"plait.Ensemble.resolve": AHEAD, FIRST: AHEAD},
    )


def _nothing(task: plait.Task, context: object) -> str:
    return f"{task} {context}"
