"""Workflow engines that do the same fan-out, each as its manual shows it.

Each is a program of its own: `PROGRAM SCRIPT ITEMS PARALLEL` runs `sh -c SCRIPT sh N`
for every N and prints how many seconds that took.  What it needs to load and to
start is not counted, so that only the items are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PYTHON = os.path.abspath(os.environ.get("BENCH_PEERS_PYTHON", sys.executable))
"""The interpreter that has the engines; they want older versions of what Plait uses, so not always
ours.
"""
PATIENCE = 600
"""Seconds for all items."""

_HEAD = """\
import subprocess, sys, time
script, items, parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def command(n):
    done = subprocess.run(["sh", "-c", script, "sh", str(n)], capture_output=True, check=True)
    return done.stdout.decode()
"""

_DASK = """\
from dask.distributed import Client
if __name__ == "__main__":
    with Client(processes=False, n_workers=1, threads_per_worker=parallel, dashboard_address=None) as client:
        client.submit(command, -1).result()
        start = time.perf_counter()
        assert len(client.gather(client.map(command, range(items), pure=False))) == items
        print(time.perf_counter() - start)
"""

_DBOS = """\
from dbos import DBOS
DBOS(config={"name": "bench", "system_database_url": "sqlite:///dbos.sqlite", "log_level": "ERROR"})
@DBOS.step()
def one(n):
    return command(n)
@DBOS.workflow()
def share(first):
    return [one(n) for n in range(first, items, parallel)]
DBOS.launch()
start = time.perf_counter()
handles = [DBOS.start_workflow(share, first) for first in range(parallel)]
assert sum(len(handle.get_result()) for handle in handles) == items
print(time.perf_counter() - start)
DBOS.destroy()
"""

_PREFECT = """\
import logging
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
one = task(command)
@flow(task_runner=ThreadPoolTaskRunner(max_workers=parallel))
def fan(count):
    return one.map(range(count)).result()
logging.disable(logging.CRITICAL)
fan(1)
start = time.perf_counter()
assert len(fan(items)) == items
print(time.perf_counter() - start)
"""

_SNAKEMAKE = """\
import os
rules = '''
rule all:
    input: [f"out/{n}" for n in range(%d)]
rule one:
    output: "out/{n}"
    shell: "sh -c '%s' sh {wildcards.n} > {output}"
''' % (items, script.replace('"', '\\\\"'))
open("Snakefile", "w").write(rules)
def made():
    start = time.perf_counter()
    base = [sys.executable, "-m", "snakemake", "--cores", str(parallel), "--quiet", "all"]
    subprocess.run(base, check=True, capture_output=True)
    return time.perf_counter() - start
whole = made()
assert len(os.listdir("out")) == items
print(whole - made())
"""


@dataclass(frozen=True)
class Peer:
    name: str
    module: str
    program: str


PEERS = (
    Peer("Dask", "distributed", _DASK),
    Peer("DBOS, steps", "dbos", _DBOS),
    Peer("Snakemake", "snakemake", _SNAKEMAKE),
    Peer("Prefect", "prefect", _PREFECT),
)


def seconds_of(peer: Peer, script: str, items: int, parallel: int) -> float | str:
    """The time of the items, or the reason why it is unknown."""
    with tempfile.TemporaryDirectory() as folder:
        if not _has(peer, folder):
            return "not installed"
        Path(folder, "fan.py").write_text(_HEAD + peer.program)
        command = [PYTHON, "fan.py", script, str(items), str(parallel)]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=_own_home(folder),
                capture_output=True,
                check=False,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return f"> {PATIENCE} s"
        if done.returncode != 0:
            print(done.stderr.decode("utf-8", "replace")[-2000:], file=sys.stderr)
            return "failed"
        return float(done.stdout.split()[-1])


def _has(peer: Peer, folder: str) -> bool:
    if not os.access(PYTHON, os.X_OK):
        return False
    command = [PYTHON, "-c", f"import {peer.module}"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def _own_home(folder: str) -> dict[str, str]:
    """Some engines keep a database in the home folder; it starts empty, like those of the others."""
    own = {
        "HOME": folder,
        "PREFECT_HOME": f"{folder}/prefect",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Its server starts slowly on a busy machine.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
    }
    return {**os.environ, **own}
