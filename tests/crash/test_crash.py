"""A share of `make crash`, and tests that need a real run: crash.py has the rules.

The harness itself is tested with stories that break a rule, and with engines that have a flaw.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from crash.checks import Death, Journaled, Story, ledger_lines, violations
from crash.crash import CONTROLS, Stage, tried
from crash.power import Disk, calls, unsafe_reports
from crash.scene import Scene, uninterrupted
from plait.adapters.store import Runs
from plait.cli import main

ITEMS, FEW = 20, 8


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("crash"), kills=8, rounds=1, seed=7, items=ITEMS)


# ── the share ────────────────────────────────────────────────────────────


WAYS = [
    # way              items
    ("random_kills", ITEMS),
    ("second_engine", ITEMS),
    ("file_size_limit", ITEMS),
    ("full_disk", ITEMS),
    ("read_only", ITEMS),
    ("power_cuts", FEW),
    ("damaged_tails", ITEMS),
    ("clocks", ITEMS),
    ("agent_kills", FEW),
    ("mcp_kills", FEW),
    ("worktree_kills", FEW),
    ("edited_kills", FEW),
    ("cluster_kills", FEW),
]


@pytest.mark.parametrize(("way", "items"), WAYS)
def test_nothing_is_lost_and_nothing_recorded_is_repeated(
    stage: Stage, way: str, items: int
) -> None:
    results = tried(way, dataclasses.replace(stage, items=items))
    if results.skipped:
        pytest.skip(results.skipped)
    assert results.violations == []
    assert results.deaths > 0


FOUND = [
    # control              what the harness reports
    ("control_amnesiac",    "A: "),
    ("control_unsynced",    "G16: "),
    ("control_agent",       ""),
    ("control_mcp_steps",   "A: "),
    ("control_mcp_handles", "H: the handle "),
]  # fmt: skip


@pytest.mark.parametrize(("control", "found"), FOUND)
def test_the_harness_finds_an_engine_with_a_flaw(stage: Stage, control: str, found: str) -> None:
    assert control in CONTROLS
    results = tried(control, dataclasses.replace(stage, kills=3, items=FEW))
    if results.skipped:
        pytest.skip(results.skipped)
    assert [one for one in results.violations if one.startswith(found)] != []


# ── what the harness would find ──────────────────────────────────────────


def story(
    ledger: str,
    deaths: Sequence[tuple[int, set[str]]],
    *,
    journal: Sequence[str] = ("a", "b"),
    result: bytes = b"ok",
) -> Story:
    """A run of the items a and b, one at a time, whose steps are called s."""
    return Story(
        items=["a", "b"],
        parallel=1,
        ledger=ledger_lines(
            ledger.replace(" ", "\n").replace("+", "START map/item:").replace("-", "END map/item:")
        ),
        deaths=[
            Death(lines, frozenset(f"map/item:{path}" for path in paths)) for lines, paths in deaths
        ],
        journal=[Journaled(f"map/item:{item}", "item", "done") for item in journal],
        result=result,
        expected=b"ok",
    )


STORIES = [
    # what happened                                                            found
    (story("+a/s -a/s +b/s -b/s", []), []),
    (story("+a/s +a/s -a/s +b/s -b/s", [(1, set())]), []),  # it was under way when the engine died
    (story("+a/s -a/s +a/s -a/s +b/s -b/s", [(2, set())]), []),  # it had ended, but was not recorded
    (story("+a/s -a/s +a/s -a/s +b/s -b/s", [(2, {"a/s"})]), ["A: map/item:a/s was recorded at death 1 and begun again"]),
    (story("+a/s -a/s +a/s -a/s +b/s -b/s", [(2, {"a"})]), ["A: map/item:a/s was recorded at death 1 and begun again"]),
    (story("+a/s -a/s", [], journal=["a"]), ["B: map/item:b is recorded 0 times"]),
    (story("+a/s -a/s +b/s -b/s", [], journal=["a", "b", "b"]), ["B: map/item:b is recorded 2 times"]),
    (story("+a/s -a/s +b/s -b/s", [], journal=["a", "b", "c"]), ["B: map/item:c is recorded 1 times"]),
    (story("+a/s -a/s +b/s", []), ["B: map/item:b/s was begun and never ended"]),
    (story("+a/s -a/s +b/s -b/s", [], result=b"no"), ["C: reduce wrote something else"]),
    (story("+a/s +a/s +a/s -a/s +b/s -b/s", [(1, set())]), ["D: 2 extra starts after 1 deaths, 1 are allowed"]),
]  # fmt: skip


@pytest.mark.parametrize(("happened", "found"), STORIES)
def test_what_must_not_happen_is_found(happened: Story, found: list[str]) -> None:
    assert violations(happened) == found


def test_faults_seen_directly_count() -> None:
    assert violations(dataclasses.replace(STORIES[0][0], faults=["E: a journal is not sound"])) == [
        "E: a journal is not sound"
    ]


WRITTEN = [
    r'1 pwrite64(3</d/f>, "\x61\x62", 2, 0) = 2',
    r"2 fdatasync(3</d/f> <unfinished ...>",
    r'1 pwrite64(3</d/f>, "\x63", 1, 2) = 1',
]


@pytest.mark.parametrize(
    ("then", "safe"),
    [
        ([], {}),
        (["2 <... fdatasync resumed>) = 0"], {"/d/f": b"ab"}),
        (["2 <... fdatasync resumed>) = -1 EIO (Input/output error)"], {}),
        (["2 <... fdatasync resumed>) = 0", "1 fsync(3</d/f>) = 0"], {"/d/f": b"abc"}),
    ],
)
def test_what_was_written_before_a_sync_began_is_safe_when_it_has_ended(
    then: list[str], safe: dict[str, bytes]
) -> None:
    disk = Disk()
    for call in calls([*WRITTEN, *then]):
        disk.see(call)
    assert disk.safe == safe


def test_a_report_without_a_record_is_found() -> None:
    line = b'{"event":"step_finished","path":"map"}'.hex(" ").replace(" ", r"\x")
    trace = [rf'1 write(1</said>, "\x{line}", 38) = 38']
    assert unsafe_reports(Disk(), trace, Path("/project"), Path("/said")) == (
        1,
        ["G16: map was reported, and a power cut could have undone it"],
    )


# ── stories ──────────────────────────────────────────────────────────────


def test_a_run_that_was_never_wholly_made_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    scene = Scene(tmp_path / "scene", items=1)
    with (
        Runs(str(scene.project)).create({}) as made,
        sqlite3.connect(f"{made.folder}/journal.db") as journal,
    ):
        journal.execute("DELETE FROM properties WHERE name IN ('facts', 'number', 'created')")
    (scene.runs / made.id / "run.json").unlink()  # it is written last
    assert main(["resume", made.id, "--project", str(scene.project)]) == 2
    assert capsys.readouterr().err == (
        f"run {made.id} was never begun: Plait was killed while it made it\n"
        "fix: plait run FILE begins a new one\n"
    )
    scene.expect_code(scene.to_the_end(), 0)


def test_a_journal_that_cannot_be_read_makes_no_item_a_failed_one(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "plain", items=2, padding=50_000)
    scene = Scene(tmp_path / "scene", items=2, parallel=1, padding=50_000)
    hold = scene.project / "hold-look"
    hold.touch()
    scene.kill_after(
        5
    )  # the first item is at its second step, and what its first one printed is recorded
    hold.unlink()
    (blob,) = (scene.runs / str(scene.run) / "blobs").iterdir()
    blob.rename(tmp_path / "aside")
    ended = scene.to_the_end()
    assert (ended.code, f"{blob}: data that belongs to the journal is missing" in ended.output) == (
        1,
        True,
    )
    scene.note_death()
    (tmp_path / "aside").rename(blob)
    scene.expect_code(scene.to_the_end(), 0)
    assert scene.violations(expected) == []
