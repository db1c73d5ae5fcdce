"""Starts parts of a Dask cluster quickly: everything is imported once, and each part is a fork of this process.

A part is a process that runs the `main` of `dask scheduler` or `dask worker`.  Importing them takes a second
of computing each time, which is too slow for a harness that kills hundreds of them.

    stdin:  {"program": "dask_worker", "arguments": […], "env": {…}, "folder": "…"}    a line each
    stdout: the process id of the part, a line each
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("dask_scheduler", "dask_worker")
ENDED: Final = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """A process that is not our child, with the names of `Popen`."""

    pid: int

    def send_signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        until = time.monotonic() + ENDED
        while os.path.exists(f"/proc/{self.pid}") and time.monotonic() < until:
            time.sleep(0.005)


@dataclass(slots=True)
class Nursery:
    """The process that forks.  It ends with its stdin; the caller ends the parts."""

    source: Path
    _process: subprocess.Popen[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(
        self, program: str, arguments: list[str], env: Mapping[str, str], folder: Path
    ) -> Part:
        order = {
            "program": program,
            "arguments": arguments,
            "env": dict(env),
            "folder": str(folder),
        }
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return Part(int(process.stdout.readline()))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            env = {**os.environ, "PYTHONPATH": str(self.source)}
            command = [sys.executable, str(Path(__file__))]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        return self._process


def main() -> None:
    programs = {name: import_module(f"distributed.cli.{name}").main for name in PROGRAMS}
    import_module("plait.app.remote.worker")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # parts are not waited for
    assert threading.active_count() == 1, "a fork would lose threads"
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(order, programs[order["program"]])
        print(pid, flush=True)


def become(order: dict[str, object], program: object) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    os.chdir(str(order["folder"]))
    log = os.open("cluster.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.argv = [str(order["program"]), *order["arguments"]]  # type: ignore[misc]
    try:
        program(sys.argv[1:])  # type: ignore[operator]
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
