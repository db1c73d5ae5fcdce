"""Items on a Dask cluster: Plait's backend against the same commands submitted to Dask by hand.

Both use one cluster of this host, whose parts are processes of their own, and both end with every
output here.  By hand nothing is recorded, limited or resumable; Plait's journal is on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from fanout import TASKS, Task
from measure import all_cores, race_trees
from tables import Bar, Plan, Row, Table, compared, shown

from plait.app.runs import Options, run_flow

BY_HAND, BY_PLAIT = "Dask by hand", "plait --backend dask://"
MOST = 1.3
"""At most this multiple of Dask by hand."""
WORKERS = 2
THREADS = 2
START_LIMIT = 30.0


def cluster_tables(*, items: int, rounds: int) -> Iterator[Plan]:
    if find_spec("distributed") is None:
        missing = (Row(BY_PLAIT, ("distributed is not installed",)),)
        yield Plan("Items on a Dask cluster", lambda title: Table(title, "", ("", ""), missing))
        return
    with all_cores(), ExitStack() as stack:
        cluster = cache(lambda: stack.enter_context(_cluster()))  # only if a table needs it
        for task in TASKS:
            title = f"{items:,} items on a Dask cluster: {task.name}"
            yield Plan(title, partial(_table, task, cluster, items, rounds))


def _table(task: Task, cluster: Callable[[], str], items: int, rounds: int, title: str) -> Table:
    address = cluster()
    with tempfile.TemporaryDirectory() as folder:
        file = _flow_file(Path(folder), task, items)
        contenders: dict[str, Callable[[int], object]] = {
            BY_HAND: lambda _: _by_hand(task, address, items),
            BY_PLAIT: lambda _: _by_plait(file, address, items),
        }
        times = race_trees(contenders, rounds=rounds)
    table = compared(
        title,
        f"{WORKERS} workers of {THREADS} threads on this host. By hand: `client.map` of a function "
        "that "
        f"calls `subprocess.run`, then `client.gather`. The bar: at most {MOST:g} times that.",
        times,
        to=BY_HAND,
        bars={BY_PLAIT: Bar(MOST)},
    )
    each = tuple(
        Row(f"{name}, an item", (shown(seen.least / items),)) for name, seen in times.items()
    )
    return Table(table.title, table.meaning, table.columns, (*table.rows, *each))


def _flow_file(folder: Path, task: Task, items: int) -> str:
    (folder / "items.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(items)))
    file = folder / "flow.yaml"
    file.write_text(
        f"name: fan\nmap: {{input: items.jsonl, max_parallel: 64, agent_template: [{task.step}]}}\n"
    )
    return str(file)


def _by_plait(file: str, address: str, items: int) -> None:
    result = run_flow(file, Options(backend=f"dask://{address}"))
    assert result.counts.get("successful") == items, result.failure


def _by_hand(task: Task, address: str, items: int) -> None:
    from distributed import Client

    client = Client(address, set_as_default=False)
    try:
        futures = client.map(_command, [(task.script, n) for n in range(items)], pure=False)
        outputs = client.gather(futures)
    finally:
        client.close()
    assert sum(map(bool, outputs)) == (items if task.prints else 0), (
        "the contender did something else"
    )


def _command(job: tuple[str, int]) -> bytes:
    script, number = job
    command = ["sh", "-c", script, "sh", str(number)]
    return subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout


@contextmanager
def _cluster() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    here = Path(__file__).resolve().parent
    env = {**os.environ, "PYTHONPATH": f"{here}:{here.parent / 'src'}"}
    port = address.partition(":")[2]
    with tempfile.TemporaryDirectory() as folder:
        parts = [_started("scheduler", folder, env, "--host", "127.0.0.1", "--port", port)]
        try:
            for _ in range(WORKERS):
                options = ["--nthreads", str(THREADS), "--no-nanny"]
                parts.append(_started("worker", folder, env, f"tcp://{address}", *options))
            _wait_for_workers(address)
            yield address
        finally:
            for part in reversed(parts):
                part.kill()
                part.wait()


def _started(
    part: str, folder: str, env: dict[str, str], *arguments: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *arguments, "--no-dashboard"]
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _wait_for_workers(address: str) -> None:
    from distributed import Client

    until = time.monotonic() + START_LIMIT
    while True:
        try:
            with Client(address, set_as_default=False, timeout=START_LIMIT) as client:
                client.wait_for_workers(WORKERS, timeout=START_LIMIT)
                return
        except OSError:
            if time.monotonic() > until:
                raise
