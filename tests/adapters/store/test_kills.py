"""A process that is killed at each single write to its journal, one after the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.adapters.store import Runs

CREATE = """
import sys
from plait.adapters.store import Runs
Runs(sys.argv[1]).create({"file": "flow.yaml"}).close()
"""


def killed_at(number: int, script: str, *arguments: str) -> bool:
    """Run a script, and kill it at its n-th write; false if it ended before."""
    kill = ["-e", "trace=pwrite64", "-e", f"inject=pwrite64:signal=KILL:when={number}"]
    command = ["strace", "-qq", "-o", os.devnull, *kill, sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode != 0


@pytest.fixture(scope="module", autouse=True)
def _strace() -> None:
    if (
        shutil.which("strace") is None
        or subprocess.run(["strace", "-qq", "-o", os.devnull, "true"]).returncode
    ):
        pytest.skip("no process can be traced here")


def each_kill(folder: Path, script: str) -> Iterator[Path]:
    """A folder for each write at which the script was killed, as it was left."""
    number = 1
    while killed_at(number, script, str(folder / str(number))):
        yield folder / str(number)
        number += 1


def test_a_run_that_was_killed_while_it_was_made_is_there_wholly_or_not_at_all(
    tmp_path: Path,
) -> None:
    seen = []
    for project in each_kill(tmp_path, CREATE):
        seen.append([summary.file for summary in Runs(str(project)).list()])
    assert all(files in ([], ["flow.yaml"]) for files in seen)
    assert seen[0] == []
    assert seen[-1] == ["flow.yaml"]
