"""The cost of tracing: the same map without telemetry, and with all signals sent to a collector.

The collector is a process that was started before, so its computing time does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fanout import SOURCES, TASKS, _env, _flow_file
from measure import all_cores, race_trees
from tables import Bar, Plan, Table, compared_by_computing

OFF, ON, SAMPLED_OUT = "not traced", "traced", "sampled out"
MOST = 1.05
PARALLEL = 8

COLLECTOR = """\
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def otel_tables(*, items: int, rounds: int) -> Iterator[Plan]:
    with all_cores():
        title = f"{items:,} items, {PARALLEL} at a time, traced"
        yield Plan(title, partial(_table, items, rounds))


def _table(items: int, rounds: int, title: str) -> Table:
    with tempfile.TemporaryDirectory() as folder, _collector() as url:
        file = _flow_file(Path(folder), TASKS[1], items, PARALLEL)
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        contenders: dict[str, Callable[[int], object]] = {
            OFF: lambda _: _run(file, {}),
            ON: lambda _: _run(file, traced),
            SAMPLED_OUT: lambda _: _run(file, {**traced, "OTEL_TRACES_SAMPLER": "always_off"}),
        }
        _run(file, traced)  # write bytecode and warm the caches
        times = race_trees(contenders, rounds=rounds)
    meaning = (
        "`plait run` of a map with one captured shell step: two spans for each item, metrics and "
        "logs, sent to a collector on this machine, whose own time does not count. The bar is about "
        "computing time, of Plait and of all it starts."
    )
    bars = {ON: Bar(MOST)}
    return compared_by_computing(title, meaning, times, to=OFF, bars=bars)


def _run(file: str, env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "plait", "run", file, "--quiet"]
    plain = {name: one for name, one in _env().items() if not name.startswith("OTEL_")}
    subprocess.run(command, env={**plain, **env, "PLAIT_KEEP_RUNS": "3"}, check=True)


@contextmanager
def _collector() -> Iterator[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", COLLECTOR]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()
