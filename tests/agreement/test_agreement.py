"""`plait check` refuses a name at a placeholder if, and only if, no run can know it there.

Random flows with names everywhere are checked, and then run in many simulated ways without the check;
`make fuzz` compares many more: fuzz/names_fuzz.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agreement.comparison import Comparison, compare_names
from plait.lang.analysis import scopes as fields

SEEDS = range(18)
FOUND_AMONG = range(36)
ENOUGH = 40


def comparisons(folder: Path, seeds: range) -> Iterator[Comparison]:
    return (compare_names(seed, folder, enough=ENOUGH) for seed in seeds)


@pytest.mark.parametrize("part", range(3))
def test_what_check_refuses_no_run_knows_and_what_it_accepts_some_run_does(
    tmp_path: Path, part: int
) -> None:
    refused = every = 0
    for comparison in comparisons(tmp_path, SEEDS[part::3]):
        assert comparison.found == [], comparison.text
        refused, every = refused + comparison.refused, every + comparison.places
    assert every // 4 < refused < every * 3 // 4, "there is much of both"


WRONG = [
    # a rule that is switched off                     what a run shows then
    ("names_after_step", lambda *_: [],                  "is refused, and a run knows it"),
    ("captured_names", lambda *_: [],                     "is refused, and a run knows it"),
    ("env_names", lambda *_: [],                    "is refused, and a run knows it"),
    ("_is_left_behind", lambda *_: False,            "is accepted, and no run knows it"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "broken", "shown"), WRONG)
def test_simulated_runs_show_that_a_rule_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    broken: Callable[..., Any],
    shown: str,
) -> None:
    monkeypatch.setattr(fields, rule, broken)
    found = (line for comparison in comparisons(tmp_path, FOUND_AMONG) for line in comparison.found)
    assert any(line.endswith(shown) for line in found)
