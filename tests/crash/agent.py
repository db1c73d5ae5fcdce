"""Kills at random moments of an agent with tools: no recorded turn or tool call is repeated.

A replayed model requests two calls in each of twelve turns; the tool writes to a ledger
that the engine never opens.  Engines are killed, and the run is resumed until it ends.  Then these rules must hold:

    A    no call that was recorded when an engine died was started again
    B    every call was made, and the answer is that of an undisturbed run
    C    no recorded turn was repeated
    D    per death, at most as many calls were repeated as may run at a time
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crash.scene import ENGINE, LIMIT, SOURCE
from plait.adapters.store import Runs
from plait.engine.events import StepFinished, StepStarted
from plait.engine.outcome import Succeeded

TURNS: Final = 12
AT_ONCE: Final = 2
DIRECTIVE: Final = """\
---
permissions: [crash/note]
limits: {turns: 40}
---
Begin.
"""
TOOL: Final = '''\
"""The tool: it writes to the ledger when a call starts and ends."""
import os, time
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
CONFIG_SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"}}}

def execute(params, project_path):
    def write(word):
        ledger = os.open(project_path + "/ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(ledger, (word + " " + params["n"] + "\\n").encode())
        os.close(ledger)
    write("BEGIN")
    time.sleep(0.005)
    write("END")
    return "noted " + params["n"]
'''


@dataclass(frozen=True, slots=True)
class Death:
    lines: int
    """The number of ledger lines."""
    recorded: frozenset[str]
    """The calls whose end was recorded."""


@dataclass(slots=True)
class Agent:
    """A project with a directive, and the deaths of its engines."""

    folder: Path
    flaw: str = ""
    deaths: list[Death] = field(default_factory=list)

    def __post_init__(self) -> None:
        tools = self.folder / "home" / ".ai" / "tools" / "crash"
        tools.mkdir(parents=True, mode=0o700)
        (self.project / ".ai").mkdir(parents=True)
        (tools / "note.py").write_text(TOOL)
        (self.project / "agent.md").write_text(DIRECTIVE)
        (self.project / "replay.yaml").write_text(json.dumps(_script()))

    @property
    def project(self) -> Path:
        return self.folder / "project"

    # ── engines ──────────────────────────────────────────────────────────

    def is_killed(self, lines: int, delay: float) -> bool:
        """Start an engine and kill it after some ledger lines; False if it finished before."""
        engine = self._engine()
        before, limit = len(self.ledger()), time.monotonic() + LIMIT
        while (
            engine.poll() is None
            and len(self.ledger()) < before + lines
            and time.monotonic() < limit
        ):
            time.sleep(0.002)
        try:
            engine.wait(delay)
        except subprocess.TimeoutExpired:
            engine.send_signal(signal.SIGKILL)
        killed = engine.wait(LIMIT) == -signal.SIGKILL
        if killed:
            self.deaths.append(Death(len(self.ledger()), self._recorded_calls()))
        return killed

    def to_the_end(self) -> str:
        """Resume the run for the last time; return the output and exit code if it failed."""
        engine = self._engine()
        output = engine.communicate(timeout=LIMIT)[0]
        return f"exit {engine.returncode}: {output[-300:]}" if engine.returncode else ""

    def _engine(self) -> subprocess.Popen[str]:
        flaw = ["--flaw", self.flaw] if self.flaw else []
        begun = self._runs()
        command = ["resume", begun[0], "--quiet"] if begun else ["run", "agent.md", "--quiet"]
        home = str(self.folder / "home")
        return subprocess.Popen(
            [sys.executable, "-P", str(ENGINE), *flaw, "--", *command],
            cwd=self.project,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(SOURCE),
                "HOME": home,
                "USER_SPACE": home,
                "PLAIT_PROVIDER": "replay",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    # ── what they left behind ────────────────────────────────────────────

    def ledger(self) -> list[str]:
        file = self.project / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    def _runs(self) -> list[str]:
        """The runs that really started: a folder without an event is no run yet."""
        return [one.id for one in Runs(str(self.project)).list() if one.file]

    def _recorded_calls(self) -> frozenset[str]:
        runs = self._runs()
        if not runs:
            return frozenset()
        with Runs(str(self.project)).open(runs[0], write=False) as opened:
            ends = [
                one.event for one in opened.journal.events() if isinstance(one.event, StepFinished)
            ]
        return frozenset(_number(end.path) for end in ends if ".call:" in end.path)

    def violations(self) -> list[str]:
        begun = [line.removeprefix("BEGIN ") for line in self.ledger()]
        found = []
        for death in self.deaths:
            later = {
                line.removeprefix("BEGIN ")
                for line in self.ledger()[death.lines :]
                if line[0] == "B"
            }
            found += [
                f"A: call {one} was recorded, and begun again"
                for one in sorted(death.recorded & later)
            ]
        wanted = {f"{turn}.{call}" for turn in range(1, TURNS + 1) for call in (1, 2)}
        if missing := wanted - set(begun):
            found.append(f"B: these calls were never made: {sorted(missing)}")
        found += self._asked_again()
        if self.extra > AT_ONCE * len(self.deaths):
            found.append(f"D: {self.extra} calls were repeated after {len(self.deaths)} deaths")
        return found

    @property
    def extra(self) -> int:
        counts = Counter(line for line in self.ledger() if line.startswith("BEGIN"))
        return sum(count - 1 for count in counts.values())

    def _asked_again(self) -> list[str]:
        with Runs(str(self.project)).open(self._runs()[0], write=False) as opened:
            events = [one.event for one in opened.journal.events()]
            last = opened.journal.step("agent")
        ended: set[str] = set()
        found = []
        for event in events:
            if isinstance(event, StepStarted | StepFinished) and event.path in ended:
                found.append(f"C: {event.path} was recorded, and done again")
            if (
                isinstance(event, StepFinished)
                and "/" in event.path
                and isinstance(event.outcome, Succeeded)
            ):
                ended.add(event.path)
        output = getattr(getattr(last, "outcome", None), "value", {}).get("output")
        return found if output == "all noted" else [*found, f"B: the answer is {output!r}"]


def _number(path: str) -> str:
    turn, _, call = path.rpartition("/")[2].removeprefix("turn:").partition(".call:")
    return f"{turn}.{call}"


def _script() -> list[object]:
    """Each request is matched by its last message, so a restarted engine finds its response."""
    asks = ["Begin.", *(f"noted {turn}.2" for turn in range(1, TURNS + 1))]
    wants = [
        {"text": f"turn {turn}", "uses": [{"name": "crash__note", "arguments": {"n": f"{turn}.{call}"}} for call in (1, 2)]}
        for turn in range(1, TURNS + 1)
    ]  # fmt: skip
    answers: list[object] = [*wants, "all noted"]
    return [{"ask": ask, "answer": answer} for ask, answer in zip(asks, answers, strict=True)]


def moment(chance: random.Random) -> tuple[int, float]:
    """A random kill point, as ledger lines plus seconds: during the start or during the work."""
    if chance.random() < 0.2:
        return 0, chance.uniform(0, 0.5)
    return chance.randrange(1, 12), chance.uniform(0, 0.02)
