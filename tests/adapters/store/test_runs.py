"""The runs of a project: their folders, ids, states, locks and removal."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from plait.adapters.store import OpenRun, Runs, RunSummary
from plait.adapters.store.faults import fault
from plait.adapters.store.lock import is_held
from plait.adapters.store.run_info import read_run_info
from plait.core.errors import InputError, JournalError, MachineError
from plait.engine.events import RunEnded, RunStarted, StepFinished, StepInvalidated, StepStarted
from plait.engine.outcome import Failed, Failure, Skipped, Succeeded

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_794_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs(tmp_path: Path, clock: Clock) -> Runs:
    return Runs(str(tmp_path), now=clock)


def ids_of(*ids: str) -> Callable[[int], bytes]:
    """A source of randomness from which these ids come, one after the other."""
    letters = "abcdefghjkmnpqrstvwxyz"
    signs = f"0123456789{letters}"
    drawn = [bytes([letters.index(id[0]), *map(signs.index, id[1:])]) for id in ids]
    return lambda _: drawn.pop(0)


def started(opened: OpenRun) -> RunStarted:
    return RunStarted(opened.id, "fix", "fix.yaml", "/p")


# ── folders ──────────────────────────────────────────────────────────────


def test_a_run_has_a_folder_of_its_own_that_other_users_cannot_read(
    tmp_path: Path, runs: Runs
) -> None:
    with runs.create({"flow": "fix"}) as opened:
        opened.journal.append(started(opened))
        state = tmp_path / ".ai/state"
        names = sorted(path.name for path in Path(opened.folder).iterdir())
    assert (state / ".gitignore").read_text() == "*\n"
    assert {
        path.stat().st_mode & 0o777 for path in (state, state / "runs", Path(opened.folder))
    } == {0o700}
    assert names == [
        "journal.db",
        "journal.db-shm",
        "journal.db-wal",
        "lock",
        "reserve",
        "run.json",
    ]
    assert sorted(path.name for path in Path(opened.folder).iterdir()) == [
        "journal.db",
        "lock",
        "run.json",
    ]


def test_a_state_folder_that_leads_elsewhere_or_is_open_to_others_is_refused(
    tmp_path: Path, runs: Runs
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".ai").mkdir()
    (tmp_path / ".ai/state").symlink_to(elsewhere)
    with pytest.raises(JournalError) as refused:
        runs.create({})
    assert str(refused.value) == (
        f"{tmp_path}/.ai/state: this is a link, and the state of a project is not kept behind one\n"
        f"fix: look at it, then remove it: rm {tmp_path}/.ai/state"
    )
    (tmp_path / ".ai/state").unlink()
    (tmp_path / ".ai/state").mkdir()
    (tmp_path / ".ai/state").chmod(0o777)
    with pytest.raises(JournalError):
        runs.create({})
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_the_place_of_the_state_folder_is_refused_and_holds_no_runs(
    tmp_path: Path, runs: Runs
) -> None:
    (tmp_path / ".ai").mkdir()
    (tmp_path / ".ai/state").write_text("")
    assert runs.list() == []
    assert runs.remove_old(keep=0, days=0) == ()
    with pytest.raises(JournalError, match="this is not a folder of yours"):
        runs.create({})


def test_an_id_is_never_used_twice(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), random=ids_of("k3f9a2c1", "k3f9a2c1", "k3f9a2c1", "m0000000"))
    with runs.create({}) as first, runs.create({}) as second:
        assert (first.id, second.id) == ("k3f9a2c1", "m0000000")


def test_facts_are_kept_with_the_run(runs: Runs) -> None:
    facts = {"flow": "fix", "file": "fix.yaml", "inputs": {"path": "\udcff"}}
    with runs.create(facts) as opened:
        assert opened.facts == facts
    with runs.open(opened.id, write=False) as again:
        assert again.facts == facts


# ── finding ──────────────────────────────────────────────────────────────


def test_a_run_is_found_by_the_beginning_of_its_id(tmp_path: Path, clock: Clock) -> None:
    runs = Runs(str(tmp_path), random=ids_of("k3f9a2c1", "k3zzzzzz", "m0000000"), now=clock)
    with pytest.raises(InputError) as none_yet:
        runs.find("last")
    assert str(none_yet.value) == "there is no run yet\nfix: plait run FILE makes one"
    for _ in range(3):
        runs.create({}).close()
        clock.now += 1
    assert [runs.find(prefix) for prefix in ("k3f9a2c1", "k3f", "m", "last", None)] == [
        "k3f9a2c1", "k3f9a2c1", "m0000000", "m0000000", "m0000000",
    ]  # fmt: skip
    with pytest.raises(InputError) as several:
        runs.find("k3")
    assert str(several.value) == (
        "several runs begin with 'k3': k3f9a2c1, k3zzzzzz\nfix: write one more character"
    )
    with pytest.raises(InputError) as unknown:
        runs.find("k3f9a2d1")
    assert str(unknown.value) == (
        "there is no run 'k3f9a2d1'\nfix: did you mean 'k3f9a2c1'? plait runs lists those that there are"
    )


@pytest.mark.parametrize("name", ["../../etc", "k3f9", "", ".", "/tmp"])
def test_only_a_whole_id_opens_a_run(tmp_path: Path, name: str) -> None:
    runs = Runs(str(tmp_path), random=ids_of("k3f9a2c1"))
    runs.create({}).close()
    with pytest.raises(InputError, match="there is no run"):
        runs.open(name, write=True)


# ── how a run is doing ───────────────────────────────────────────────────


def test_a_run_is_running_while_its_engine_is_alive_and_interrupted_when_it_died_without_an_end(
    runs: Runs, clock: Clock
) -> None:
    opened = runs.create({"flow": "fix", "file": "fix.yaml"})
    opened.journal.append(started(opened))
    assert [summary.status for summary in runs.list()] == ["running"]
    opened.close()
    assert [(summary.status, summary.end_time) for summary in runs.list()] == [
        ("interrupted", None)
    ]
    with runs.open(opened.id, write=True) as again:
        again.journal.append(started(again))
        clock.now += 60
        again.journal.append(RunEnded("done"))
    (summary,) = runs.list()
    assert (summary.id, summary.flow, summary.file) == (opened.id, "fix", "fix.yaml")
    assert (summary.status, summary.start_time, summary.end_time) == (
        "done",
        clock.now - 60,
        clock.now,
    )
    with runs.open(opened.id, write=True) as third:
        third.journal.append(started(third))
        assert runs.list()[0].status == "running"


def test_a_summary_counts_items_as_they_ended_last(runs: Runs) -> None:
    failed = Failed(Failure("no"))

    def item(n: int, outcome: Succeeded | Failed | Skipped, kind: str = "item") -> StepFinished:
        return StepFinished(f"map/{n}", kind, "t", "f", outcome, 0.1, n)

    opened = runs.create({})
    opened.journal.append(
        started(opened),
        item(0, Succeeded()),
        item(1, failed),
        item(2, failed),
        item(3, Skipped("x")),
    )
    opened.journal.append(
        item(1, Succeeded()),
        item(4, Succeeded(), kind="shell"),
        item(5, Succeeded()),
        StepInvalidated("map/5", "w"),
    )
    opened.journal.append(StepStarted("map/0", "item", "begun again"))
    expected = {"done": 1, "failed": 1, "skipped": 1}  # not the one that is under way again
    assert runs.list()[0].counts == expected
    opened.close()
    assert runs.list()[0].counts == expected
    with runs.open(opened.id, write=True) as again:
        again.journal.append(item(2, Succeeded()))
        assert runs.list()[0].counts == {"done": 2, "skipped": 1}


def test_a_summary_counts_the_items_that_a_map_has_chosen_last(runs: Runs) -> None:
    opened = runs.create({})
    opened.journal.append(
        started(opened),
        StepFinished("map/items", "items", "t", "f", Succeeded(), 0.1),
        StepFinished("map/item:a", "item", "t", "f", Failed(Failure("no")), 0.1),
        StepFinished("map/items", "items", "t", "other", Succeeded(), 0.1),
        StepFinished("map/item:b", "item", "t", "f", Succeeded(), 0.1),
        StepFinished("reduce/each/item:0", "item", "t", "f", Succeeded(), 0.1),
    )
    assert runs.list()[0].counts == {"done": 1}
    opened.close()


def test_what_is_no_run_is_left_out_of_the_list(tmp_path: Path, runs: Runs) -> None:
    runs.create({}).close()
    folder = tmp_path / ".ai/state/runs"
    (folder / "never-made").mkdir()
    (folder / "empty").mkdir()
    (folder / "empty/journal.db").touch()
    (folder / "begun").mkdir()
    with closing(sqlite3.connect(folder / "begun/journal.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    assert len(runs.list()) == 1


def damage(journal: Path) -> None:
    journal.write_bytes(b"not a database" * 100)


def set_version(number: int) -> Callable[[Path], None]:
    def spoil(journal: Path) -> None:
        with closing(sqlite3.connect(journal)) as connection:
            connection.execute(f"PRAGMA user_version={number}")

    return spoil


UNREADABLE = [
    (damage, "the journal cannot be used: it is damaged"),
    (set_version(4), "the journal has version 4, and this Plait reads version 1"),
    (set_version(99), "the journal has version 99, and this Plait reads version 1"),
]


@pytest.mark.parametrize(("spoil", "problem"), UNREADABLE)
def test_a_run_that_cannot_be_read_is_listed_with_its_problem_found_and_never_removed(
    spoil: Callable[[Path], None], problem: str, runs: Runs, clock: Clock
) -> None:
    with runs.create({"flow": "fix"}) as opened:
        opened.journal.append(started(opened))
    spoil(Path(opened.folder, "journal.db"))
    os.utime(opened.folder, (0, 0))
    (summary,) = runs.list()
    assert (summary.id, summary.status, summary.problem) == (opened.id, "unreadable", problem)
    assert runs.find() == runs.find("last") == runs.find(opened.id[:4]) == opened.id
    with pytest.raises(JournalError) as refused:
        runs.open(runs.find(), write=False)
    assert refused.value.what == problem
    clock.now += 400 * DAY
    for _ in range(2):
        runs.create({}).close()
    assert runs.remove_old(keep=1, days=30) == ()
    assert Path(opened.folder).exists()


# ── one engine ───────────────────────────────────────────────────────────

HOLDER = """
import sys
from plait.adapters.store import Runs
opened = Runs(sys.argv[1]).open(sys.argv[2], write=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_engine_is_refused_and_a_dead_one_holds_nothing(
    tmp_path: Path, runs: Runs
) -> None:
    opened = runs.create({})
    opened.close()
    command = [sys.executable, "-c", HOLDER, str(tmp_path), opened.id]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = Path(opened.folder, "lock")
        since = json.loads(lock.read_text())["since"]
        with pytest.raises(InputError) as refused:
            runs.open(opened.id, write=True)
        assert refused.value.exit_code == 2
        assert str(refused.value) == (
            f"process {holder.pid} has been working on run {opened.id} since {since}\n"
            f"fix: wait until it has ended, or end it: kill {holder.pid}"
        )
        with runs.open(opened.id, write=False) as looked_at:
            assert list(looked_at.journal.events()) == []
        holder.kill()
    assert lock.exists()
    runs.open(opened.id, write=True).close()


def test_the_number_of_a_living_process_in_a_free_lock_means_nothing(
    runs: Runs,
) -> None:
    opened = runs.create({})
    opened.close()
    lock = Path(opened.folder, "lock")
    lock.write_text(json.dumps({"pid": os.getpid(), "since": "now"}))
    assert not is_held(str(lock))
    with runs.open(opened.id, write=True):
        assert is_held(str(lock))
        lock.write_text("what is this")
        with pytest.raises(InputError, match="another process began to work on run"):
            runs.open(opened.id, write=True)


def test_a_child_process_does_not_keep_the_lock(runs: Runs) -> None:
    opened = runs.create({})
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        opened.close()
        with runs.open(opened.id, write=True) as again:
            assert again.id == opened.id


# ── removing ─────────────────────────────────────────────────────────────


def made_each_day(runs: Runs, clock: Clock, *endings: str) -> list[str]:
    """Runs that began a day after each other; `open`: it has no end."""
    made = []
    for ending in endings:
        clock.now += DAY
        with runs.create({}) as opened:
            opened.journal.append(started(opened))
            if ending != "open":
                opened.journal.append(RunEnded(ending))  # type: ignore[arg-type]
            made.append(opened.id)
    return made


def test_the_oldest_runs_are_removed_if_the_newest_all_began_so_long_after_them(
    runs: Runs, clock: Clock
) -> None:
    made = made_each_day(runs, clock, *["done", "failed"] * 4)
    assert runs.remove_old(keep=8, days=0) == ()
    assert runs.remove_old(keep=3, days=30) == ()
    assert runs.remove_old(keep=3, days=2.5) == tuple(
        made[:3]
    )  # the oldest of the newest began on day 6
    assert [summary.id for summary in runs.list()] == made[:2:-1]
    assert os.listdir(os.path.join(os.path.dirname(runs.folder), "removed")) == []


def test_what_has_not_ended_is_never_removed_nor_what_runs(runs: Runs, clock: Clock) -> None:
    clock.now -= 5 * DAY
    running = runs.create({})
    running.journal.append(started(running))
    clock.now += 5 * DAY
    made = made_each_day(runs, clock, "open", "done", "interrupted", "done", "done")
    clock.now += 400 * DAY
    made += made_each_day(runs, clock, "done")
    assert runs.remove_old(keep=1, days=30) == (made[1], made[3], made[4])
    assert [summary.status for summary in runs.list()] == [
        "done",
        "interrupted",
        "interrupted",
        "running",
    ]
    running.close()
    with runs.open(made[0], write=True) as again:
        again.journal.append(RunEnded("done"))
    assert runs.remove_old(keep=1, days=30) == (made[0],)


def test_one_wrong_clock_removes_nothing(runs: Runs, clock: Clock) -> None:
    made = made_each_day(runs, clock, *["done"] * 10)
    clock.now += 400 * DAY
    made += made_each_day(runs, clock, "done")
    assert runs.remove_old(keep=3, days=30) == ()
    clock.now -= 800 * DAY  # and one that is behind takes its own run for the oldest
    made += made_each_day(runs, clock, "done")
    clock.now += 800 * DAY
    assert runs.remove_old(keep=3, days=30) == ()
    assert [summary.id for summary in runs.list()] == made[::-1]
    made_each_day(runs, clock, "done", "done", "done")
    assert runs.remove_old(keep=3, days=30) == tuple(made[:10])  # but now three say so


def test_what_is_removed_is_asked_of_the_journal_and_not_of_the_index(
    runs: Runs, clock: Clock
) -> None:
    made = made_each_day(runs, clock, "open", "done")
    clock.now += 100 * DAY
    made_each_day(runs, clock, "done")
    index = runs.index_file
    with closing(sqlite3.connect(index)) as changed:
        changed.execute("UPDATE runs SET ended = 1")
        changed.commit()
    assert runs.remove_old(keep=1, days=30) == (made[1],)
    assert runs.list()[-1].id == made[0]


def test_a_removal_that_was_cut_short_is_finished_by_the_next(
    tmp_path: Path, runs: Runs, clock: Clock
) -> None:
    runs.create({}).close()
    removed = tmp_path / ".ai/state/removed"
    (removed / "abc/blobs").mkdir(parents=True)
    assert runs.remove_old(keep=1, days=1) == ()
    assert list(removed.iterdir()) == []
    assert runs.list()[0].start_time == clock.now


# ── the index ────────────────────────────────────────────────────────────


def index_of(runs: Runs) -> Path:
    return Path(runs.index_file)


def be_noise(index: Path) -> None:
    index.write_bytes(b"no database" * 1000)


def have_other_tables(index: Path) -> None:
    with closing(sqlite3.connect(index)) as changed:
        changed.execute("CREATE TRIGGER more AFTER UPDATE ON runs BEGIN DELETE FROM runs; END")


def have_wrong_rows(index: Path) -> None:
    with closing(sqlite3.connect(index)) as changed:
        changed.execute("UPDATE runs SET id = '../../' || id, created = 'x'")
        changed.commit()


def have_wrong_times(index: Path) -> None:
    with closing(sqlite3.connect(index)) as changed:
        changed.execute("UPDATE runs SET created = 'x', number = 'y'")
        changed.commit()


def have_no_room(index: Path) -> None:
    with closing(sqlite3.connect(index)) as changed:
        changed.execute("UPDATE runs SET created = 1e999, number = (1 << 62) + number")
        changed.commit()


def be_a_link(index: Path) -> None:
    index.unlink()
    index.symlink_to(index.with_name("elsewhere.db"))


def be_a_folder(index: Path) -> None:
    index.unlink()
    index.mkdir()


SPOILED_INDEXES = [
    Path.unlink,
    Path.touch,
    be_noise,
    have_other_tables,
    have_wrong_rows,
    have_wrong_times,
    have_no_room,
    be_a_link,
    be_a_folder,
]


@pytest.mark.parametrize("spoil", SPOILED_INDEXES)
def test_an_index_that_is_missing_or_damaged_is_made_again(
    spoil: Callable[[Path], object], runs: Runs, clock: Clock
) -> None:
    made = made_each_day(runs, clock, "done", "open", "failed")
    clock.now -= 100 * DAY  # the clock was set: the order is that in which they were made
    made += made_each_day(runs, clock, "done")
    spoil(index_of(runs))
    assert [one.id for one in runs.list()] == made[::-1]
    assert [one.status for one in runs.list()] == ["done", "failed", "interrupted", "done"]
    assert runs.find() == made[-1]
    assert runs.find(made[0][:7]) == made[0]
    spoil(index_of(runs)) if index_of(runs).exists() and spoil is not be_a_folder else None
    made += made_each_day(runs, clock, "done")
    assert [one.id for one in runs.list()] == made[::-1]
    assert not index_of(runs).with_name("elsewhere.db").exists()


def test_old_runs_are_removed_also_if_the_index_was_made_again(runs: Runs, clock: Clock) -> None:
    made = made_each_day(runs, clock, "done", "open", "failed")
    clock.now += 100 * DAY
    made_each_day(runs, clock, "done")
    index_of(runs).unlink()
    assert runs.remove_old(keep=1, days=30) == (made[0], made[2])


def test_runs_that_stay_keep_no_others_from_being_removed(
    runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.adapters.store.removal.MOST_REMOVED", 2)
    made = made_each_day(runs, clock, "done", "done", "done")
    for run in made[:2]:
        Path(runs.folder, run, "journal.db").write_bytes(b"noise")
    clock.now += 100 * DAY
    made_each_day(runs, clock, "done")
    assert [runs.remove_old(keep=1, days=30) for _ in range(2)] == [(), (made[2],)]


def test_a_number_that_leaves_no_room_takes_none_from_other_runs(runs: Runs, clock: Clock) -> None:
    (brought,) = made_each_day(runs, clock, "done")
    about = Path(runs.folder, brought, "run.json")
    about.write_text(about.read_text().replace('"number": 1,', f'"number": {(1 << 60) - 1},'))
    index_of(runs).unlink()
    made = [brought, *made_each_day(runs, clock, "done", "done")]
    for _ in range(2):
        assert [one.id for one in runs.list()] == made[::-1]
        numbers = [read_run_info(str(Path(runs.folder, run))) for run in made]
        assert all(one is not None and one.records for one in numbers)
        index_of(runs).unlink()


def test_a_run_that_could_not_be_made_leaves_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MachineError("too many files are open", code="open-files")

    monkeypatch.setattr(OpenRun, "update_facts", refuse)
    with pytest.raises(MachineError):
        runs.create({})
    assert os.listdir(runs.folder) == []


def test_a_limit_of_the_machine_makes_no_run_unreadable(
    runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_each_day(runs, clock, "done")
    index_of(runs).unlink()

    def refuse(*_: object, **__: object) -> None:
        raise fault("open-files", "journal.db")

    monkeypatch.setattr(Runs, "_open_for_reading", refuse)
    with pytest.raises(JournalError, match="too many files are open"):
        runs.list()


def test_any_file_in_the_place_of_a_lock_does_not_block(runs: Runs, clock: Clock) -> None:
    (run,) = made_each_day(runs, clock, "done")
    lock = Path(runs.folder, run, "lock")
    lock.unlink()
    os.mkfifo(lock)
    assert runs.list()[0].status == "done"
    assert not runs.is_running(run)


def test_a_pipe_in_the_place_of_an_output_does_not_block(runs: Runs) -> None:
    with runs.create({}) as opened:
        name = opened.journal.put_blob(b"long")
        path = Path(opened.folder, "blobs", name)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(JournalError, match="is not what was written there"):
            opened.journal.get_blob(name)


def test_the_error_of_a_missing_journal_says_what_is_lost(runs: Runs, clock: Clock) -> None:
    (run,) = made_each_day(runs, clock, "done")
    for file in Path(runs.folder, run).glob("journal.db*"):
        file.unlink()
    assert "has lost 2 of 2 records" in runs.list()[0].problem
    with pytest.raises(JournalError, match="has lost 2 of 2 records"):
        runs.open(run, write=False)
    os.mkdir(os.path.join(runs.folder, "empty"))
    with pytest.raises(JournalError, match="Plait was killed while it made the run"):
        runs.open("empty", write=False)


def test_runs_that_came_or_went_by_hand_are_noticed(
    tmp_path: Path, runs: Runs, clock: Clock
) -> None:
    made = made_each_day(runs, clock, "done", "failed", "done")
    aside = tmp_path / "aside"
    os.rename(Path(runs.folder, made[1]), aside)
    assert [one.id for one in runs.list()] == [made[2], made[0]]
    with pytest.raises(InputError, match="there is no run"):
        runs.find(made[1])
    os.rename(aside, Path(runs.folder, made[1]))
    assert [one.id for one in runs.list()] == made[::-1]
    Path(runs.folder, made[1], "run.json").unlink()
    index_of(runs).unlink()
    assert [one.id for one in runs.list()] == made[::-1]  # its journal says its number as well


def watch_reading(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose journals are read from now on."""
    read: list[str] = []
    summary = Runs.summary

    def watched(self: Runs, run: str) -> RunSummary | None:
        read.append(run)
        return summary(self, run)

    monkeypatch.setattr(Runs, "summary", watched)
    return read


def test_what_the_index_says_of_a_run_counts_only_for_the_files_it_was_read_from(
    runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = made_each_day(runs, clock, "done")
    old = os.stat(runs.folder).st_mtime_ns - 10**12
    for name in ("journal.db", "run.json"):
        os.utime(Path(runs.folder, run, name), ns=(old, old))
    monkeypatch.setattr(
        "plait.adapters.store.index._SETTLED_NS", -(10**12)
    )  # the time of a change cannot be set
    assert [one.status for one in runs.list()] == ["done"]
    opened = watch_reading(monkeypatch)
    assert [one.status for one in runs.list()] == ["done"]
    assert opened == []
    damage(Path(runs.folder, run, "journal.db"))
    assert [one.status for one in runs.list()] == ["unreadable"]
    assert opened == [run]


def test_a_start_and_the_newest_run_open_no_journal_of_another(
    runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_each_day(runs, clock, *["done"] * 5)
    read = watch_reading(monkeypatch)
    monkeypatch.setattr(
        "plait.adapters.store.index.run_names", None
    )  # nor is the folder gone through
    assert runs.remove_old(keep=3, days=30) == ()
    with runs.create({}) as opened:
        pass
    assert read == []
    assert runs.find() == opened.id
    assert runs.find(opened.id[:7]) == opened.id
    assert set(read) <= {opened.id}
