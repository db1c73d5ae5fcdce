"""Hostile process trees against the guardian: no process is left after a timeout, a cancel, a signal or a kill.

A Plait runs a tree of twelve processes that do all they can to stay (see `FORMS`),
and is then interrupted in one of five ways.  A process of the tree that is still
alive after the grace and one second is a survivor, and the attack has won.  Survivors are found by a token on their command lines, which is nothing
that the guardian knows about.

    python tests/attack/process_attack.py [--runs 100] [--parallel 4]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
WAYS: Final = ("timeout", "cancel", "SIGINT", "SIGTERM", "SIGKILL")
FORMS: Final = 11  # and the one that starts them
GRACE: Final = 2.0
TIMEOUT: Final = 1.5

TREE: Final = """
import os, signal, sys, time

token = sys.argv[1]
ready_read, ready_write = os.pipe()
forms = []

def form(function):
    forms.append(function)
    return function

def stay():
    os.write(ready_write, b".")
    while True:
        time.sleep(60)

def close_streams():
    for fd in (0, 1, 2):
        os.close(fd)

def ignore():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)

@form
def plain_child():
    stay()

@form
def grandchild():
    if os.fork() == 0:
        stay()
    os._exit(0)

@form
def own_session():
    os.setsid()
    stay()

@form
def daemon():
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        close_streams()
        stay()
    os._exit(0)

@form
def deaf_daemon():
    os.setsid()
    if os.fork() == 0:
        ignore()
        os.setsid()
        close_streams()
        stay()
    os._exit(0)

@form
def ignores_everything():
    ignore()
    stay()

@form
def forks_when_asked_to_end():
    def again(*_):
        if os.fork() == 0:
            os.setsid()
    signal.signal(signal.SIGTERM, again)
    stay()

@form
def stopped():
    os.write(ready_write, b".")
    os.kill(os.getpid(), signal.SIGSTOP)
    stay()

@form
def without_streams():
    close_streams()
    stay()

@form
def holds_the_output():
    os.setsid()
    if os.fork() == 0:
        ignore()
        stay()
    os._exit(0)

@form
def another_program_without_environment():
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(ready_write, b".")
        os.execve("/bin/sleep", [token + "-sleep", "600"], {})
    os._exit(0)

for function in forms:
    if os.fork() == 0:
        function()
seen = 0
while seen < len(forms):
    seen += len(os.read(ready_read, len(forms)))
os.write(1, b"ready\\n")
stay()
"""

# A Plait of its own: it runs the tree, says when the tree stands, and what came of it.
ENGINE: Final = """
import os, sys, threading
from plait.core.errors import ProcessError
from plait.adapters.process import process

way, timeout, python, tree, token = sys.argv[1:]
cancel = threading.Event()

def on_output(_, data):
    if data.startswith(b"ready"):
        os.write(1, b"ready\\n")
        if way == "cancel":
            cancel.set()

try:
    process.run(
        [python, "-I", "-S", "-c", tree, token],
        env={}, timeout=float(timeout) if way == "timeout" else None, cancel=cancel, on_output=on_output,
    )
except ProcessError as error:
    os.write(1, (error.code + "\\n").encode())
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and its survivors."""

    way: str
    stood: bool
    """Whether the whole tree was running before it was ended."""
    seconds: float
    """Seconds from the end until no process was left."""
    survivors: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=100, help="how often each way is tried (default: 100)"
    )
    parser.add_argument("--parallel", type=int, default=4, help="trees at a time (default: 4)")
    options = parser.parse_args()
    # A shell starts what is in the background with SIGINT ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lost = False
    for way in WAYS:
        with ThreadPoolExecutor(options.parallel) as pool:
            attacks = list(pool.map(attack, [way] * options.runs))
        survivors = sum(one.survivors for one in attacks)
        stood = sum(one.stood for one in attacks)
        slowest = max((one.seconds for one in attacks), default=0.0)
        lost = lost or survivors > 0 or stood == 0
        print(
            f"{way:8} {len(attacks):5} runs  {stood:5} whole trees  {survivors:3} survivors"
            f"  slowest {slowest:.2f} s of {GRACE + 1:.2f}",
            flush=True,
        )
    print("SURVIVORS: the guarantee does not hold" if lost else "no process is left")
    return 1 if lost else 0


def attack(way: str, *, limit: float = GRACE + 1) -> Attack:
    """Start a tree, end it in this way, and count the processes left after the limit."""
    token = f"hostile-{uuid.uuid4().hex}"
    with engine(way, token) as running:
        stood = b"ready" in line_of(running)
        began = time.monotonic()
        if way.startswith("SIG"):
            running.send_signal(getattr(signal, way))
        elif way == "timeout":
            began += (
                TIMEOUT  # at the latest: its clock has been running since before the tree stood
            )
        seconds = until(lambda: not tree_of(token, running.pid), began + limit)
        left = tree_of(token, running.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return Attack(way, stood, seconds - began, len(left))


def engine_argv(way: str, token: str) -> list[str]:
    """A Plait that runs the tree, and ends it if the way is one of its own."""
    return [sys.executable, "-c", ENGINE, way, str(TIMEOUT), sys.executable, TREE, token]


def engine(way: str, token: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        engine_argv(way, token),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        start_new_session=True,
    )


def line_of(running: subprocess.Popen[bytes]) -> bytes:
    assert running.stdout is not None
    return running.stdout.readline()


def tree_of(token: str, engine: int) -> list[int]:
    """Processes with the token, except the Plait that runs them."""
    return [
        pid
        for pid, words in command_lines()
        if any(token in word for word in words) and pid != engine
    ]


def command_lines() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if line:  # a dead process has none
                yield int(name), line.decode("utf-8", "replace").split("\0")


def until(condition: Callable[[], bool], deadline: float) -> float:
    """Wait for a condition; return the time at which it held or the wait ended."""
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
