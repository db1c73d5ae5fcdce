"""Kills, full disks, torn files, other versions: nothing that was recorded is lost, nothing is invented."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordinary import by_ordinary_user
from plait.adapters.store import OpenRun, Runs, SqliteJournal
from plait.adapters.store.rows import LARGE
from plait.adapters.store.writer import FEW, SNAPSHOT_WRITES
from plait.core.errors import JournalError
from plait.core.records import replace
from plait.engine.events import PendingHooks, RunEnded, RunStarted, StepFinished, StepStarted
from plait.engine.outcome import Succeeded

WRITER = """
import sys, threading
from plait.engine.events import StepFinished, StepStarted
from plait.engine.outcome import Succeeded
from plait.adapters.store import Runs

opened = Runs(sys.argv[1]).open(sys.argv[2], write=True)
journal, telling = opened.journal, threading.Lock()

def work(thread):
    for n in range(10_000):
        path = f"life{sys.argv[3]}/{thread}-{n}"
        value = "x" * (40_000 if n % 50 == 49 else 30)
        journal.append(StepStarted(path, "item", "t"), StepFinished(path, "item", "t", "f", Succeeded(value), 0.1, n))
        with telling:
            sys.stdout.write(path + "\\n")
            sys.stdout.flush()
        if n % 20 == 0:
            journal.sync()

for thread in range(3):
    threading.Thread(target=work, args=(thread,)).start()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path))


def finished(n: int, value: object = None) -> StepFinished:
    return StepFinished(f"map/{n}", "item", "title", "print", Succeeded(value), 0.1, n)


def database(opened: OpenRun) -> str:
    return os.path.join(opened.folder, "journal.db")


# ── kills ────────────────────────────────────────────────────────────────


def test_after_a_kill_everything_that_was_acknowledged_is_there(tmp_path: Path, runs: Runs) -> None:
    opened = runs.create({})
    opened.close()
    chance = random.Random(7)
    acknowledged: list[str] = []
    for run_attempt in range(8):
        acknowledged += killed_after(chance.randrange(1, 400), tmp_path, opened.id, run_attempt)
        assert runs.list()[0].status == "interrupted"
        with runs.open(opened.id, write=run_attempt % 2 == 0) as again:
            recorded = again.journal.step
            assert [path for path in acknowledged if recorded(path) is None] == []
            found = [stamped.event for stamped in again.journal.events()]
            pairs = list(
                zip(found[::2], found[1::2], strict=True)
            )  # a start without its end would not pair
            assert all(isinstance(end, StepFinished) for _, end in pairs)
    check = sqlite3.connect(database(opened))
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    check.close()


def killed_after(lines: int, project: Path, run: str, run_attempt: int) -> list[str]:
    """The records that a process reported until it was killed."""
    command = [sys.executable, "-c", WRITER, str(project), run, str(run_attempt)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        output = [writer.stdout.readline() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        output += writer.stdout.readlines()
    assert len(output) >= lines
    return [line.rstrip("\n") for line in output if line.endswith("\n")]


@pytest.fixture
def left_by_a_kill(tmp_path: Path, runs: Runs) -> Path:
    """The folder of a run as a killed process leaves it, its records still in the write-ahead log."""
    opened = runs.create({})
    opened.journal.append(*(finished(n, "x" * 50) for n in range(200)))
    for n in range(200, 300):
        opened.journal.append(finished(n, "x" * 50))
    copy = tmp_path / "killed/.ai/state/runs/killed"
    shutil.copytree(opened.folder, copy)
    for folder in (copy, copy.parent, copy.parent.parent):
        folder.chmod(0o700)
    opened.close()
    assert (copy / "journal.db-wal").stat().st_size > 0
    return copy


@pytest.mark.parametrize("how", ["cut", "zeroed", "flipped"])
@pytest.mark.parametrize("bytes_", [1, 24, 1000, 1048, 5000, 30_000])
def test_a_torn_end_loses_at_most_the_end(left_by_a_kill: Path, how: str, bytes_: int) -> None:
    wal = left_by_a_kill / "journal.db-wal"
    data = wal.read_bytes()
    flipped = bytes(byte ^ 0x5A for byte in data[-bytes_:])
    end = {"cut": b"", "zeroed": bytes(bytes_), "flipped": flipped}[how]
    wal.write_bytes(data[:-bytes_] + end)
    runs = Runs(str(left_by_a_kill.parents[3]))
    with runs.open("killed", write=True) as opened:
        orders = [
            stamped.event.order
            for stamped in opened.journal.events()
            if isinstance(stamped.event, StepFinished)
        ]
        assert orders == list(range(len(orders)))
        assert len(orders) < 300
        assert [step.order for step in opened.journal.steps_in("map")] == orders
        opened.journal.append(finished(len(orders)))
    with runs.open("killed", write=False) as again:
        assert len(list(again.journal.events())) == len(orders) + 1


def test_a_damaged_database_is_refused_and_not_believed(left_by_a_kill: Path) -> None:
    database = left_by_a_kill / "journal.db"
    runs = Runs(str(left_by_a_kill.parents[3]))
    runs.open("killed", write=True).close()  # now everything is in the database
    (left_by_a_kill / "journal.db-wal").write_bytes(b"")
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(JournalError) as refused, runs.open("killed", write=True) as opened:
        list(opened.journal.events())
    assert str(refused.value) == (
        f"{database}: the journal cannot be used: it is damaged\n"
        "fix: restore its folder from a backup, or remove it and run the flow again"
    )


@pytest.mark.parametrize("damage", ["removed", "cut", "changed"])
def test_large_data_that_was_harmed_is_refused(runs: Runs, damage: str) -> None:
    with runs.create({}) as opened:
        opened.journal.append(finished(1, "x" * 100_000))
    (blob,) = Path(opened.folder, "blobs").iterdir()
    match damage:
        case "removed":
            blob.unlink()
        case "cut":
            os.truncate(blob, 1000)
        case "changed":
            blob.write_bytes(b"y" + blob.read_bytes()[1:])
    with runs.open(opened.id, write=True) as again, pytest.raises(JournalError) as refused:
        again.journal.step("map/1")
    assert (refused.value.code, refused.value.where) == ("damaged", str(blob))


# ── the fence ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", [1, 2, 2 + SNAPSHOT_WRITES])
@pytest.mark.parametrize("rows", [1, FEW, FEW + 1])
def test_an_engine_that_was_replaced_writes_nothing_any_more(
    runs: Runs, rows: int, before: int
) -> None:
    opened = runs.create({})
    for n in range(before):
        opened.journal.append(finished(n))
    with contextlib.closing(sqlite3.connect(database(opened))) as other, other:
        other.execute("UPDATE properties SET value = value + 1 WHERE name = 'epoch'")
    attempts: list[Callable[[], object]] = [
        lambda: opened.journal.append(*map(finished, range(before, before + rows))),
        opened.journal.sync,
    ]
    for attempt in attempts:
        with pytest.raises(JournalError) as refused:
            attempt()
        assert str(refused.value) == (
            f"{database(opened)}: another engine has taken this run over\n"
            "fix: let that engine continue; plait runs shows how far it is"
        )
    opened.close()
    with runs.open(opened.id, write=False) as again:
        assert len(list(again.journal.events())) == before


@pytest.mark.parametrize("changes", [True, False])
def test_an_engine_waits_while_another_process_writes(runs: Runs, changes: bool) -> None:
    with runs.create({}) as opened, contextlib.closing(sqlite3.connect(database(opened))) as other:
        opened.journal.append(finished(1))
        opened.journal.append(finished(2))
        other.execute("BEGIN IMMEDIATE")
        if changes:
            other.execute("INSERT INTO properties VALUES('other', 1)")
        asks = threading.Event()  # for the right to write, which the other has
        begin = "BEGIN IMMEDIATE"
        opened.journal.active_writer._connection.set_trace_callback(
            lambda statement: asks.set() if statement == begin else None
        )
        waiting = threading.Thread(target=lambda: opened.journal.append(finished(3)))
        waiting.start()
        assert asks.wait(60)
        assert waiting.is_alive()
        other.execute("COMMIT")
        waiting.join()
        assert len(list(opened.journal.events())) == 3


# ── a disk that fails ────────────────────────────────────────────────────


class Disk:
    """Counts its syncs, and fails on request."""

    def __init__(self) -> None:
        self.synced = 0
        self.fails = False

    def __call__(self, handle: int) -> None:
        self.synced += 1
        if self.fails:
            raise OSError(errno.EIO, "lost")
        os.fdatasync(handle)


def test_a_journal_is_synced_once_for_all_that_was_appended_since(tmp_path: Path) -> None:
    disk = Disk()
    journal = SqliteJournal(str(tmp_path), write=True, create=True, sync_data=disk)
    at_first = disk.synced
    journal.sync()
    journal.append(finished(1))
    journal.append(finished(2))
    assert disk.synced == at_first
    journal.sync()
    journal.sync()
    assert disk.synced == at_first + 1
    journal.close()


def test_after_a_failed_sync_nothing_is_believed_until_the_journal_is_opened_again(
    tmp_path: Path,
) -> None:
    disk = Disk()
    journal = SqliteJournal(str(tmp_path), write=True, create=True, sync_data=disk)
    journal.append(finished(1))
    disk.fails = True
    with pytest.raises(JournalError) as first:
        journal.sync()
    disk.fails = False
    attempts: list[Callable[[], object]] = [
        journal.sync,
        lambda: journal.append(finished(2)),
        lambda: journal.put_blob(b"x"),
        lambda: journal.step("map/1"),
    ]
    for attempt in attempts:
        with pytest.raises(JournalError) as later:
            attempt()
        assert str(later.value) == str(first.value)
    journal.close()
    again = SqliteJournal(str(tmp_path), write=True)
    assert [step.order for step in again.steps_in("map")] == [1]
    again.close()


# ── no room, no right ────────────────────────────────────────────────────


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_may_not_grow_harms_nothing_and_a_later_run_attempt_continues(
    runs: Runs,
) -> None:
    opened = runs.create({})
    acknowledged = 0

    def fill() -> None:
        nonlocal acknowledged
        for n in range(10_000):
            opened.journal.append(finished(n, "x" * 500))
            acknowledged += 1

    with small_files(200_000), pytest.raises(JournalError) as full:
        fill()
    assert str(full.value) == (
        f"{database(opened)}: the journal cannot be used: a file may not grow further\n"
        "fix: raise the limit on file sizes (ulimit -f); "
        "what was recorded is safe, and plait resume continues from there"
    )
    attempts: list[Callable[[], object]] = [
        fill,
        opened.journal.sync,
        lambda: opened.journal.step("a"),
    ]
    for attempt in attempts:
        with pytest.raises(JournalError) as again:  # also now that there would be room
            attempt()
        assert str(again.value) == str(full.value)
    opened.close()
    assert acknowledged > 20
    with runs.open(opened.id, write=True) as later:
        assert [step.order for step in later.journal.steps_in("map")] == list(range(acknowledged))
        later.journal.append(finished(acknowledged))
        later.journal.sync()


@pytest.mark.parametrize("size", [0, 1000, 40_000, 400_000])
def test_a_run_that_finds_no_room_to_begin_leaves_nothing_and_promises_nothing(
    tmp_path: Path, runs: Runs, size: int
) -> None:
    runs.create({}).close()
    before = sorted(tmp_path.rglob("*"))
    with small_files(size), pytest.raises(JournalError) as full:
        runs.create({})
    assert full.value.fix is not None
    assert full.value.fix.endswith("; no run was begun")
    assert sorted(tmp_path.rglob("*")) == before


def test_large_data_that_finds_no_room_ends_the_journal_too(runs: Runs) -> None:
    opened = runs.create({})
    opened.journal.append(finished(1))
    with small_files(200_000), pytest.raises(JournalError) as full:
        opened.journal.append(finished(2, "x" * 300_000))
    with pytest.raises(JournalError) as later:
        opened.journal.append(finished(3))
    opened.close()
    assert (str(later.value), full.value.code) == (str(full.value), "too-large")
    assert list(Path(opened.folder, "blobs").iterdir()) == []
    with runs.open(opened.id, write=False) as again:
        assert [step.order for step in again.journal.steps_in("map")] == [1]


def test_all_threads_hear_of_a_fault_and_none_is_reported_that_its_record_is_safe(
    runs: Runs,
) -> None:
    opened = runs.create({})
    acknowledged: list[int] = []
    failed: list[str] = []

    def work(thread: int) -> None:
        try:
            for n in range(thread, 100_000, 4):
                opened.journal.append(finished(n, "x" * 500))
                acknowledged.append(n)
        except JournalError as error:
            failed.append(str(error))

    with small_files(300_000):
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    opened.close()
    assert len(failed) == 4
    assert len(set(failed)) == 1
    with runs.open(opened.id, write=False) as later:
        assert set(acknowledged) <= {step.order for step in later.journal.steps_in("map")}


FULL = """
import sys
from plait.core.errors import JournalError
from plait.engine.events import RunStarted, StepFinished
from plait.engine.outcome import Succeeded
from plait.adapters.store import Runs

opened = Runs(sys.argv[1]).create({})
opened.journal.append(RunStarted(opened.id, "f", "f", "p"))
acknowledged = 0
try:
    while True:
        opened.journal.append(StepFinished(f"map/{acknowledged}", "item", "t", "f", Succeeded("x" * 500), 0.1))
        acknowledged += 1
except JournalError as error:
    opened.close()
    with Runs(sys.argv[1]).open(opened.id, write=False) as later:
        *steps, end = [stamped.event for stamped in later.journal.events()]
    enough = len(steps) - 1 == acknowledged + error.holds_last > 100
    print(error.code, enough, end.status, end.failure.message)
"""


def test_a_full_disk_is_recorded_in_the_room_that_was_kept_for_it(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=6m,mode=700 tmpfs "{disk}" && exec "{sys.executable}" "{script}" "{disk}"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted], capture_output=True, text=True, timeout=60
    )
    if done.returncode in (1, 32) and "plait" not in done.stderr:
        pytest.skip("no small disk can be made here")
    assert (
        done.stdout == "disk-full True interrupted the journal cannot be used: the disk is full\n"
    ), done.stderr


READ_ONLY = """
import os, shutil, sys, tempfile  # whoever this becomes may not be able to load them
from plait.core.errors import PlaitError
from plait.adapters.store import Runs
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    for folder, _, files in os.walk(sys.argv[1]):
        for name in [".", *files]:
            os.chown(os.path.join(folder, name), 65534, 65534)
    os.setgroups([])
    os.setuid(65534)
runs = Runs(sys.argv[1])
run = runs.find(sys.argv[2])
folder = os.path.join(sys.argv[1], ".ai/state/runs", run)
if sys.argv[3] == "without shm":
    os.unlink(os.path.join(folder, "journal.db-shm"))
for name in os.listdir(folder):
    os.chmod(os.path.join(folder, name), 0o400)
os.chmod(folder, 0o500)
with runs.open(run, write=False) as opened:
    print(len(list(opened.journal.steps_in("map"))), flush=True)
try:
    runs.open(run, write=True)
except PlaitError as error:
    print(type(error).__name__, error.code)
"""


@pytest.mark.parametrize(
    ("state", "expected"), [("closed", 10), ("killed", 300), ("without shm", 300)]
)
def test_a_journal_that_may_not_be_written_can_be_read(
    tmp_path: Path, left_by_a_kill: Path, state: str, expected: int
) -> None:
    project = tmp_path / "killed"
    run = "killed"
    if state == "closed":
        shutil.rmtree(left_by_a_kill)
        with Runs(str(project)).create({}) as opened:
            opened.journal.append(*(finished(n) for n in range(10)))
        run = opened.id
    for folder in (project, *project.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)  # root becomes somebody else, who must get there
    command = [sys.executable, "-c", READ_ONLY, str(project), run, state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    os.chmod(project / ".ai/state/runs" / run, 0o700)
    assert done.stdout == f"{expected}\nJournalError read-only\n", done.stderr


# ── versions and settings ────────────────────────────────────────────────


@pytest.mark.parametrize("version", [2, 4, 7])
def test_a_journal_of_another_version_is_refused_and_listed_as_unreadable(
    version: int, runs: Runs
) -> None:
    with runs.create({}) as opened:
        pass
    with contextlib.closing(sqlite3.connect(database(opened))) as other:
        other.execute(f"PRAGMA user_version={version}")
    for write in (True, False):
        with pytest.raises(JournalError) as refused:
            runs.open(opened.id, write=write)
        assert str(refused.value) == (
            f"{database(opened)}: the journal has version {version}, and this Plait reads version 1\n"
            "fix: use the Plait that made it, or remove the folder of the run and run the flow again"
        )
    assert [(one.status, one.problem) for one in runs.list()] == [
        ("unreadable", f"the journal has version {version}, and this Plait reads version 1")
    ]


def test_a_journal_of_version_0_is_that_of_a_run_that_was_never_made(runs: Runs) -> None:
    with runs.create({}) as opened:
        pass
    os.unlink(database(opened))
    os.unlink(os.path.join(opened.folder, "run.json"))
    with contextlib.closing(sqlite3.connect(database(opened))) as old:
        old.execute("CREATE TABLE remark(text)")
    for write in (False, True):
        with pytest.raises(JournalError) as refused:
            runs.open(opened.id, write=write)
        assert str(refused.value) == (
            f"{database(opened)}: the journal has no records and no tables: Plait was killed while it made the run\n"
            "fix: plait run FILE begins a new run"
        )
    assert runs.list() == []


def test_usage_and_pending_hooks_come_back_as_they_were(runs: Runs) -> None:
    owed = PendingHooks(("h", "gate"), {"turn": 1, "long": "x" * LARGE}, unjudged=("gate",))
    first = replace(finished(1), used={"steps": 1}, pending=owed)
    with runs.create({}) as opened:
        opened.journal.append(first, finished(2))
        assert list(opened.journal.usage_before(99)) == [("map/1", {"steps": 1})]
        assert list(opened.journal.usage_before(1)) == []
    with runs.open(opened.id, write=True) as again:
        assert [one.event for one in again.journal.events()] == [first, finished(2)]
        again.journal.append(replace(finished(3), used={"turns": 2, "spend": 0.5}))
        assert list(again.journal.usage_before(99)) == [
            ("map/1", {"steps": 1}),
            ("map/3", {"turns": 2, "spend": 0.5}),
        ]
        record = again.journal.step("map/1")
        assert record is not None
        assert (record.used, record.pending) == (first.used, owed)


def test_people_can_look_into_the_file(runs: Runs) -> None:
    with runs.create({}) as opened:
        opened.journal.append(
            RunStarted("r", "f", "f.yaml", "/p"), StepStarted("map/1", "item", "one")
        )
        opened.journal.append(finished(1, {"a": 1}), finished(1, {"a": 2}), RunEnded("done"))
    with contextlib.closing(sqlite3.connect(database(opened))) as shell:
        events = shell.execute(
            "SELECT event, path, kind, status, json FROM events WHERE path NOT NULL"
        ).fetchall()
        steps = shell.execute("SELECT path, status, json FROM steps").fetchall()
    assert events == [
        ("step_started", "map/1", "item", None, None),
        ("step_finished", "map/1", "item", "done", '{"a":1}'),
        ("step_finished", "map/1", "item", "done", '{"a":2}'),
    ]
    assert steps == [("map/1", "done", '{"a":2}')]


# ── others who read, and size ────────────────────────────────────────────


def test_a_reader_sees_each_record_as_soon_as_it_is_acknowledged(runs: Runs) -> None:
    with runs.create({}) as opened, runs.open(opened.id, write=False) as watching:
        seen = 0
        for n in range(300):
            opened.journal.append(finished(n))
            if n % 10 == 0:
                seen += len(list(watching.journal.events(seen)))
                assert seen == n + 1
                assert watching.journal.step(f"map/{n}") is not None


def test_the_write_ahead_log_does_not_grow_without_end(runs: Runs) -> None:
    with runs.create({}) as opened, runs.open(opened.id, write=False) as watching:
        iterator = watching.journal.events()
        for n in range(2_000):
            opened.journal.append(finished(n, "x" * 20_000))
            next(iterator)  # a reader that has begun and is in no hurry
        assert os.path.getsize(f"{database(opened)}-wal") < 20 << 20


MANY = """
import resource, sys
from plait.engine.events import StepFinished
from plait.engine.outcome import Succeeded
from plait.adapters.store import Runs

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def finished(n):
    return StepFinished(f"map/{n}", "item", "title", "print", Succeeded("x" * 50), 0.1, n)

with Runs(sys.argv[1]).create({}) as opened:
    journal = opened.journal
    journal.append(*map(finished, range(5_000)))
    read = sum(1 for _ in journal.steps_in("map")), sum(1 for _ in journal.events())
    before = megabytes()
    for first in range(5_000, 100_000, 500):
        journal.append(*map(finished, range(first, first + 500)))
    read = sum(1 for _ in journal.steps_in("map")), sum(1 for _ in journal.events())
    print(*read, megabytes() - before)
"""


def test_a_hundred_thousand_events_are_written_and_read_in_bounded_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    steps, events, grown = map(int, done.stdout.split())
    assert (steps, events) == (100_000, 100_000)
    assert grown < 20  # megabytes; the events alone would be more than twice that


@by_ordinary_user
def test_a_run_that_may_not_be_written_is_not_begun_and_not_to_be_resumed(tmp_path: Path) -> None:
    for closed in ("", ".ai/state", ".ai/state/runs"):
        project = tmp_path / (closed.replace("/", "-") or "whole")
        folder = project / closed
        folder.mkdir(parents=True)
        folder.chmod(0o500)
        with pytest.raises(JournalError) as refused:
            Runs(str(project)).create({})
        assert refused.value.code == "read-only"
        assert refused.value.fix == "look at the permissions of its folder; no run was begun"
        folder.chmod(0o700)
