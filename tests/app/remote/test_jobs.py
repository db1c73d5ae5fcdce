"""What a worker keeps, and when it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from plait.app.remote.jobs import (
    KEPT,
    MOST_JOBS,
    WorkerJob,
    WorkerJobs,
    claim_folder,
    remove_stale,
)
from plait.app.remote.payload import SecretBytes
from plait.app.remote.worker import stop_job
from plait.engine.stop import StopSignal


class Kept:
    """Stands for a job: was it closed?"""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(clock: Clock) -> WorkerJobs:
    return WorkerJobs(clock=clock)


def keep(jobs: WorkerJobs, digest: str) -> Kept:
    kept = Kept()
    jobs.keep(digest, cast(WorkerJob, kept))
    return kept


def test_an_unused_job_is_removed_after_a_time(jobs: WorkerJobs, clock: Clock) -> None:
    kept = keep(jobs, "d")
    clock.now = KEPT
    jobs.drop_unused()
    assert not kept.closed
    clock.now = KEPT + 1
    jobs.drop_unused()
    assert kept.closed
    assert jobs.find("d") is None


def test_a_job_with_an_item_under_way_stays_and_its_time_begins_with_the_end(
    jobs: WorkerJobs, clock: Clock
) -> None:
    kept = keep(jobs, "d")
    with jobs.use("d"):
        clock.now = KEPT * 3
        jobs.drop_unused()
        assert not kept.closed
    clock.now = KEPT * 4
    jobs.drop_unused()
    assert not kept.closed
    clock.now += 1
    jobs.drop_unused()
    assert kept.closed


def test_the_longest_unused_of_many_jobs_goes_first(jobs: WorkerJobs) -> None:
    kept = {digest: keep(jobs, digest) for digest in map(str, range(MOST_JOBS))}
    with jobs.use("0"):
        pass
    keep(jobs, "one more")
    assert [digest for digest, one in kept.items() if one.closed] == ["1"]


def test_what_its_run_forgets_is_gone_at_once(jobs: WorkerJobs) -> None:
    kept = keep(jobs, "d")
    jobs.drop("d")
    jobs.drop("d")
    assert kept.closed


STOPS = [
    # at once       then the item is to stop, at once
    ([False],        (True, False)),
    ([False, False], (True, False)),
    ([True],         (True, True)),
    ([False, True],  (True, True)),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "stopping"), STOPS)
def test_a_stop_ends_items_with_grace_or_at_once_however_often_it_is_sent(
    calls: list[bool], stopping: tuple[bool, bool]
) -> None:
    job, stop = WorkerJob.__new__(WorkerJob), StopSignal()
    job.running = {"map/item:1": stop}
    assert [job.stop(at_once=at_once) for at_once in calls] == [1] * len(calls)
    assert (stop.is_set(), stop.at_once) == stopping
    assert job.is_stopped


def test_nothing_runs_for_a_missing_job() -> None:
    assert stop_job("unheard of", True) == 0


# ── folders ──────────────────────────────────────────────────────────────

CLAIM = "import sys; from plait.app.remote.jobs import claim_folder; print(claim_folder(sys.argv[1])[0], flush=True); "


def test_the_folder_of_a_killed_worker_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    mine, handle = claim_folder(str(tmp_path))
    command = [sys.executable, "-c", CLAIM + "sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        its = other.stdout.readline().strip()
        Path(its, "files").mkdir()
        remove_stale(str(tmp_path))
        assert os.path.isdir(its)
        other.kill()
    remove_stale(str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(mine)]
    os.close(handle)


def test_a_folder_of_another_host_or_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    mine, handle = claim_folder(str(tmp_path))
    os.close(handle)  # as if we had died
    name = os.path.basename(mine)
    victim = tmp_path / "victim"
    Path(mine).rename(victim)
    (tmp_path / name).symlink_to(victim)
    elsewhere = tmp_path / "plait-items-another.host-x"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    remove_stale(str(tmp_path))
    assert victim.is_dir()
    assert elsewhere.is_dir()


def test_a_job_is_not_shown_where_a_call_is_written_down() -> None:
    message = SecretBytes(b"secret")
    assert repr((message,)) == "(***,)"
    assert bytes(message) == b"secret"
