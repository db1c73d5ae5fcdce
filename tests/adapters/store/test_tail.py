"""The end of a journal: what was there and is gone, or another, is noticed, and no kill is taken for that."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from plait.adapters.store import OpenRun, Runs
from plait.adapters.store.run_info import SEGMENT, RunInfo, read_run_info
from plait.adapters.store.schema import checkpoint
from plait.core.errors import JournalError
from plait.engine.events import RunEnded, RunStarted, StepFinished
from plait.engine.outcome import Succeeded


def finished(n: int) -> StepFinished:
    return StepFinished(
        f"map/item:{n}", "item", f"title {n}", "print", Succeeded({"output": "x" * 50}), 0.1, n
    )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path))


def killed(opened: OpenRun, to: Path) -> Runs:
    """The project as it would be, had the process been killed now; others have the run of this one still."""
    project = Path(opened.project)
    shutil.copytree(project / ".ai", to / ".ai", symlinks=True)
    return Runs(str(to))


@pytest.fixture
def cut_off(runs: Runs, tmp_path: Path) -> tuple[Runs, Path]:
    """A run that was killed when 300 items were recorded and reported, all of them in the write-ahead log."""
    with runs.create({"file": "f.yaml", "project": "/p"}) as opened:
        opened.journal.append(RunStarted(opened.id, "f", "f.yaml", "/p"))
        for n in range(300):
            opened.journal.append(finished(n))
        opened.journal.sync()
        left = killed(opened, tmp_path / "killed")
    return left, Path(left.folder, opened.id)


def remove(wal: Path) -> None:
    wal.unlink()


def cut(wal: Path) -> None:
    os.truncate(wal, wal.stat().st_size // 2)


def cut_the_end(wal: Path) -> None:
    os.truncate(wal, wal.stat().st_size - 10)


def empty(wal: Path) -> None:
    os.truncate(wal, 0)


def flip(wal: Path) -> None:
    data = bytearray(wal.read_bytes())
    data[len(data) // 3] ^= 1
    wal.write_bytes(data)


@pytest.mark.parametrize("spoil", [remove, cut, cut_the_end, empty, flip])
@pytest.mark.parametrize("shm", [True, False])
def test_a_tail_that_is_gone_or_changed_is_refused_with_the_truth(
    spoil: Callable[[Path], None], shm: bool, cut_off: tuple[Runs, Path]
) -> None:
    runs, folder = cut_off
    assert [one.status for one in runs.list()] == ["interrupted"]
    spoil(folder / "journal.db-wal")
    if not shm:
        (folder / "journal.db-shm").unlink()
    for write in (False, True):
        with pytest.raises(JournalError) as refused:
            runs.open(folder.name, write=write)
        assert refused.value.code == "lost-records"
        missing = int(refused.value.what.split()[4])
        assert 0 < missing <= 301
        assert str(refused.value) == (
            f"{folder}/journal.db: the journal has lost {missing} of 301 records: "
            "what was recorded there would be done again\n"
            "fix: restore the folder of the run from a backup, with journal.db-wal, which belongs to it; "
            "or remove the folder and run the flow again"
        )
    assert [(one.status, one.problem) for one in runs.list()] == [
        ("unreadable", refused.value.what)
    ]


def test_what_is_restored_is_whole_again(cut_off: tuple[Runs, Path], tmp_path: Path) -> None:
    runs, folder = cut_off
    os.rename(folder / "journal.db-wal", tmp_path / "wal")
    with pytest.raises(JournalError):
        runs.open(folder.name, write=True)  # which changed nothing
    os.rename(tmp_path / "wal", folder / "journal.db-wal")
    with runs.open(folder.name, write=True) as again:
        assert again.journal.last() == 301


CHANGES = [
    "UPDATE records SET body = '{}' WHERE number = 7",
    "UPDATE records SET name = 'item:99' WHERE number = 7",
    "UPDATE records SET status = 1 WHERE number = 300",
    "DELETE FROM records WHERE number = 150",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_a_record_that_is_another_is_noticed(statement: str, cut_off: tuple[Runs, Path]) -> None:
    runs, folder = cut_off
    with closing(sqlite3.connect(folder / "journal.db")) as changed:
        changed.execute(statement)
        changed.commit()
    assert [one.status for one in runs.list()] == ["unreadable"]
    with pytest.raises(JournalError) as refused:
        runs.open(folder.name, write=True)
    assert refused.value.code == "altered-records"


def test_at_every_moment_a_kill_leaves_a_run_that_can_be_gone_on_with(
    runs: Runs, tmp_path: Path
) -> None:
    """Also where the last claim is older than the last record, by whatever was not synced."""
    with runs.create({"file": "f.yaml", "project": "/p"}) as opened:
        for n in range(24):
            opened.journal.append(finished(2 * n), finished(2 * n + 1))
            if n % 5 == 0:
                opened.journal.sync()
            if n % 7 == 0:
                checkpoint(os.path.join(opened.folder, "journal.db"))
            left = killed(opened, tmp_path / f"killed{n}")
            assert [one.status for one in left.list()] == ["interrupted"]
            with left.open(opened.id, write=True) as again:
                assert again.journal.last() == 2 * n + 2
                again.journal.append(RunEnded("done"))
            assert [one.status for one in left.list()] == ["done"]


def claimed(opened: OpenRun) -> RunInfo:
    about = read_run_info(opened.folder)
    assert about is not None
    return about


def test_what_is_claimed_is_what_is_safe(runs: Runs) -> None:
    opened = runs.create({})
    opened.journal.append(finished(1), finished(2))
    assert claimed(opened).records == 0
    opened.journal.sync()
    assert claimed(opened).records == 2
    opened.journal.append(finished(3))
    assert claimed(opened).records == 2
    opened.close()
    assert claimed(opened).records == 3
    with runs.open(opened.id, write=True) as again:
        again.journal.append(finished(4))
    assert claimed(opened).records == 4
    assert claimed(opened).since == 0
    runs.open(opened.id, write=False).close()


def test_a_record_that_was_not_counted_is_found_in_the_database(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be interrupted between a record and the list of those that are to be counted."""
    with runs.create({}) as opened:
        opened.journal.append(finished(1))
        with monkeypatch.context() as patch:
            patch.setattr("plait.adapters.store.run_info.Tail.add", lambda *_: None)
            opened.journal.append(finished(2))
        opened.journal.append(finished(3))
        opened.journal.sync()
        assert claimed(opened).records == 3
    runs.open(opened.id, write=True).close()


def test_a_long_journal_is_checked_by_its_last_records(runs: Runs) -> None:
    with runs.create({}) as opened:
        opened.journal.append(*(finished(n) for n in range(SEGMENT + 1)))
        opened.journal.sync()
        opened.journal.append(finished(SEGMENT + 1))
    assert (claimed(opened).since, claimed(opened).records) == (SEGMENT + 1, SEGMENT + 2)
    with runs.open(opened.id, write=True) as again:
        again.journal.append(finished(SEGMENT + 2))
    runs.open(opened.id, write=False).close()


def test_a_run_of_an_older_plait_claims_nothing(runs: Runs) -> None:
    with runs.create({}) as opened:
        opened.journal.append(finished(1))
    os.unlink(os.path.join(opened.folder, "run.json"))
    with runs.open(opened.id, write=True) as again:
        again.journal.append(finished(2))
    assert [one.status for one in runs.list()] == ["interrupted"]
