"""The benchmarks' own logic: when they refuse to run, which tables they take, what they remember,
and which bars they know.

Nothing is measured here.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


def bench_module(name: str) -> ModuleType:
    """The modules of bench/ import each other by name; others must not find them by accident."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


load, tables, results, bars, measure = (
    bench_module(name) for name in ("load", "tables", "results", "bars", "measure")
)


# ── load ─────────────────────────────────────────────────────────────────


def stat(user: int, idle: int, iowait: int = 0, steal: int = 0) -> str:
    return (
        f"cpu  {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0\n"
        f"cpu0 {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0\nctxt 12345\n"
    )


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (stat(1000, 5000), stat(1000, 5200), 0.0),
        (stat(1000, 5000), stat(1200, 5000), 1.0),
        (stat(1000, 5000), stat(1050, 5150), 0.25),
        (stat(1000, 5000), stat(1000, 5150, iowait=50), 0.0),
        (stat(1000, 5000), stat(1000, 5100, steal=100), 0.5),
    ],
    ids=["idle", "busy", "a quarter", "a disk is waited for", "another guest has the core"],
)
def test_the_share_of_busy_cores_is_that_of_the_second_it_looked(
    first: str, second: str, share: float
) -> None:
    texts = iter([first, second])
    pauses: list[float] = []
    assert load.busy_share(read=lambda: next(texts), pause=pauses.append) == pytest.approx(share)
    assert pauses == [1.0]


def test_without_proc_stat_the_load_average_counts() -> None:
    def missing() -> str:
        raise FileNotFoundError

    assert 0 <= load.busy_share(read=missing, pause=pytest.fail) <= 1


def test_a_busy_machine_is_refused_with_its_load_and_a_way_out() -> None:
    assert load.refusal(0.10) is None
    assert load.refusal(0.83) == (
        "bench: the machine is busy: 83% of its cores compute for others, at most 10% may.\n"
        "fix: end the other work (`top` shows it) and run this again, or measure nevertheless with "
        "--beside-load"
    )


# ── finer parts ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("only", "part", "piece"),
    [
        ("fanout", "fanout", ""),
        ("fanout.1000", "fanout", "1000"),
        ("cluster.sh -c true", "cluster", "sh -c true"),
        ("startup.0.5", "startup", "0.5"),
    ],
)
def test_only_names_a_part_and_perhaps_a_piece_of_a_title(only: str, part: str, piece: str) -> None:
    assert tables.part_and_piece(only) == (part, piece)


@pytest.mark.parametrize(
    ("piece", "title", "held"),
    [
        ("", "Importing", True),
        ("start", "The start: a run of one step", True),
        ("call", "Calling a tool from a long-running process", True),
        ("call", "What a call costs besides its process", True),
        ("all", "Calling a tool from a long-running process", False),
        ("1000", "1,000 items, 2 at a time: sh -c true", True),
        ("1,000", "1,000 items, 2 at a time: sh -c true", True),
        ("1000", "10,000 items, 2 at a time: sh -c true", False),
        ("1000 items, 8", "1,000 items, 8 at a time: output captured", True),
        ("a.b", "a+b", False),
    ],
)
def test_a_piece_begins_with_a_word_and_a_number_is_whole(
    piece: str, title: str, held: bool
) -> None:
    assert tables.holds(title, piece) is held


# ── the history ──────────────────────────────────────────────────────────


def note(ratio: float, share: float | None = None, **others: Any) -> Any:
    rows = {
        "xargs": tables.Figures(1.0, 0.5, 1.0, 1.0),
        "plait": tables.Figures(ratio, share, ratio, share),
    }
    about = {"date": "2026-11-18", "commit": "abc", "machine": "m", "load": 0.02, "part": "fanout"}
    return results.Note(**{**about, "table": "many", "rows": rows, **others})


def test_a_line_of_the_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert results.notes(file) == []
    written = [note(1.2, 1.5), note(1.3)]
    for one in written:
        results.add_note(one, file)
    assert results.notes(file) == written
    assert len([json.loads(line) for line in file.read_text("utf-8").splitlines()]) == 2


def test_a_table_is_compared_with_its_last_line_on_the_same_machine() -> None:
    old, last = note(1.0), note(1.1)
    others = [note(2.0, machine="n"), note(2.0, table="few"), note(2.0, part="tools")]
    assert results.last_note([old, last, *others], note(1.2)) is last
    assert results.last_note(others, note(1.2)) is None


@pytest.mark.parametrize(
    ("before", "now", "reported"),
    [
        (note(1.00, 1.00), note(1.04, 0.96), []),
        (note(1.00, 2.00), note(1.06, 2.00), ["wall × 1.00 → × 1.06 (+6% since 2026-11-18, abc)"]),
        (
            note(1.00, 2.00),
            note(1.00, 1.50),
            ["computing × 2.00 → × 1.50 (-25% since 2026-11-18, abc)"],
        ),
        (note(1.00), note(1.00, 1.50), []),
        (note(1.00, rows={}), note(1.50), []),
    ],
    ids=["little", "wall time", "computing time", "not measured before", "a new row"],
)
def test_a_ratio_that_changed_by_more_than_a_twentieth_is_reported(
    before: Any, now: Any, reported: list[str]
) -> None:
    assert results.changes(now, before) == [f"fanout, many: plait: {one}" for one in reported]


def test_the_history_is_shown_table_by_table() -> None:
    assert results.history_text([note(1.2, 1.5), note(1.25)]) == (
        "fanout: many\n"
        "  m\n"
        "               date  commit  load    wall     ×  computing     ×\n"
        "  xargs  2026-11-18     abc    2%     1 s  1.00     500 ms  1.00\n"
        "  plait  2026-11-18     abc    2%   1.2 s  1.20      1.5 s  1.50\n"
        "  xargs  2026-11-18     abc    2%     1 s  1.00     500 ms  1.00\n"
        "  plait  2026-11-18     abc    2%  1.25 s  1.25"
    )


def test_computing_time_stands_beside_wall_time_where_it_was_measured() -> None:
    times = bench_module("measure").Times
    both = {"xargs": times(1.0, 1.0, 0.5), "plait": times(1.2, 1.2, 1.0)}
    table = tables.compared("many", "", both, to="xargs", bars={"plait": tables.Bar(1.3)})
    assert table.columns == ("", "least time", "× xargs", "by medians", "computing", "× xargs")
    assert [row.cells for row in table.rows] == [
        ("1 s", "1.00", "1.00", "500 ms", "1.00"),
        ("1.2 s", "1.20", "1.20", "1 s", "2.00"),
    ]
    wall = {name: times(seen.least, seen.median) for name, seen in both.items()}
    table = tables.compared("many", "", wall, to="xargs", bars={})
    assert table.columns == ("", "least time", "× xargs", "by medians")
    assert table.rows[1].cells == ("1.2 s", "1.20", "1.20")


# ── rounds ───────────────────────────────────────────────────────────────


def test_each_round_begins_with_another_contender() -> None:
    asked: list[tuple[str, int]] = []

    def contender(name: str) -> Any:
        def spend(number: int) -> tuple[float, float]:
            asked.append((name, number))
            return len(asked), 0.0

        return spend

    seen = measure.race_spans({name: contender(name) for name in "abc"}, rounds=3)
    assert asked == [(name, at) for at, names in enumerate(("abc", "bca", "cab")) for name in names]
    assert seen["a"] == [(1, 0.0), (6, 0.0), (8, 0.0)]


def test_a_slow_moment_hits_both_times_of_a_round() -> None:
    assert measure.paired_ratios([2.2, 22.0, 1.8], [2.0, 20.0, 2.0]) == pytest.approx(
        [1.1, 1.1, 0.9]
    )


# ── bars ─────────────────────────────────────────────────────────────────


def kept_tables() -> list[Any]:
    files = sorted((BENCH / "results").glob("*.json"))
    return [table for file in files for table in results.kept(file.stem).tables]


def test_every_row_with_a_bar_says_what_would_reach_it_or_was_never_missed() -> None:
    rows = [(table, row) for table in kept_tables() for row in table.rows if row.bar]
    assert len(rows) > 50
    unknown = [f"{table.title}: {row.name}" for table, row in rows]
    assert [name for name in unknown if not bars.is_known(name)] == []


def test_every_missed_row_has_a_text() -> None:
    assert bars.without_text([name for table in kept_tables() for name in table.missed]) == []


def test_a_row_that_is_in_no_text_is_found() -> None:
    missed = ["a map: plait run FILE", "a map: plait run FILE, nothing compiled", "a map: new"]
    assert bars.without_text(missed) == ["a map: new"]
    assert not bars.is_known("a map: new")
    assert list(bars.texts_about(missed[:1])) == ["plait run FILE"]
    assert list(bars.texts_about(missed[1:])) == ["nothing compiled"]


def test_what_was_never_missed_has_no_text_yet() -> None:
    missed = ["Completion: plait --version"]
    assert bars.is_known(missed[0])
    assert bars.without_text(missed) == missed


PARTS = [
    # titles that were measured again, machine    titles and rows of the part; None: it stays as it was
    (["b"],        "m",                           {"a": "old", "b": "new"}),
    (["a", "b"],   "m",                           {"a": "new", "b": "new"}),
    (["c"],        "m",                           None),
    (["b"],        "another",                     None),
]  # fmt: skip


@pytest.mark.parametrize(("titles", "machine", "expected"), PARTS)
def test_tables_that_are_measured_again_replace_those_of_the_part(
    titles: list[str], machine: str, expected: dict[str, str] | None
) -> None:
    def table(title: str, meaning: str) -> Any:
        return tables.Table(title, meaning, (), ())

    part = results.Measured("monday", "m", [table("a", "old"), table("b", "old")])
    found = part.with_newer([table(title, "new") for title in titles], "friday", machine)
    shown = None if found is None else {one.title: one.meaning for one in found.tables}
    assert shown == expected
