"""Kills at random moments of a map whose items work in git worktrees.

Each item makes two commits, one in each of its steps.  Engines are killed, and the run is resumed until
it ends.  Then these rules must hold:

    A    every commit is in the checked-out branch exactly once
    B    the items were merged in their order, each by one merge
    C    the working tree of the user is clean and has all files; git finds the repository sound
    D    no worktree and no branch of the run is left
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crash.scene import ENGINE, LIMIT, SOURCE
from plait.adapters.store import Runs
from plait.engine.outcome import Failed

PARALLEL: Final = 3
FLOW: Final = """\
map:
  input: {glob: "items/*"}
  max_parallel: PARALLEL
  isolation: worktree
  steps:
    - id: one
      shell: sh work.sh ${item_index}-one
    - id: two
      shell: sh work.sh ${item_index}-two
"""
# A killed step runs again, so it must be repeatable.
WORK: Final = """\
set -e
echo "$1" > "done-$1"
git add -A
git diff --cached --quiet || git commit -q -m "$1"
echo "$1" >> "$LEDGER"
"""


@dataclass(slots=True)
class Trees:
    """A repository with a flow, and the deaths of its engines."""

    folder: Path
    items: int = 8
    deaths: int = 0
    output: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.project / "items").mkdir(parents=True)
        (self.folder / "home").mkdir()
        for number in range(self.items):
            (self.project / "items" / f"i{number:03}").write_text("x\n")
        (self.project / "flow.yaml").write_text(FLOW.replace("PARALLEL", str(PARALLEL)))
        (self.project / "work.sh").write_text(WORK)
        (self.project / ".gitignore").write_text(".ai/state\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def env(self) -> dict[str, str]:
        home = str(self.folder / "home")
        who = {
            f"GIT_{role}_{what}": "crash@example.org"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "HOME": home,
            "USER_SPACE": home,
            "LEDGER": str(self.folder / "ledger"),
            **who,
        }

    def git(self, *args: str) -> str:
        done = subprocess.run(
            ["git", *args],
            cwd=self.project,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        return done.stdout if done.returncode == 0 else f"git {args[0]}: {done.stderr}"

    # ── engines ──────────────────────────────────────────────────────────

    def is_killed(self, lines: int, delay: float) -> bool:
        """Start an engine and kill it after some ledger lines; False if it finished before."""
        engine = self._engine()
        before, limit = self._lines(), time.monotonic() + LIMIT
        while engine.poll() is None and self._lines() < before + lines and time.monotonic() < limit:
            time.sleep(0.002)
        try:
            engine.wait(delay)
        except subprocess.TimeoutExpired:
            engine.send_signal(signal.SIGKILL)
        killed = engine.wait(LIMIT) == -signal.SIGKILL
        self.deaths += killed
        return killed

    def to_the_end(self) -> None:
        engine = self._engine()
        output = engine.communicate(timeout=LIMIT)[0]
        if engine.returncode:
            self.output.append(f"exit {engine.returncode}: {output[-300:]} {self._failures()}")

    def _failures(self) -> list[str]:
        """The failures of items."""
        with Runs(str(self.project)).open(self._runs()[0], write=False) as opened:
            ends = [one.outcome for one in opened.journal.steps_in("map")]
        return [end.failure.message for end in ends if isinstance(end, Failed)]

    def _runs(self) -> list[str]:
        return [one.id for one in Runs(str(self.project)).list() if one.file]

    def _engine(self) -> subprocess.Popen[str]:
        begun = self._runs()
        command = ["resume", begun[0], "--quiet"] if begun else ["run", "flow.yaml", "--quiet"]
        return subprocess.Popen(
            [sys.executable, "-P", str(ENGINE), "--", *command],
            cwd=self.project,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _lines(self) -> int:
        ledger = self.folder / "ledger"
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    # ── what must hold ───────────────────────────────────────────────────

    def violations(self) -> list[str]:
        found = list(self.output)
        wanted = [f"{number}-{step}" for number in range(self.items) for step in ("one", "two")]
        commits = self.git("log", "--no-merges", "--format=%s", "main").split()
        if sorted(commits) != sorted([*wanted, "first"]):
            found.append(f"A: the branch has {sorted(commits)}")
        merges = [
            line.split()[1].split("-")[0]
            for line in self.git(
                "log", "--first-parent", "--merges", "--reverse", "--format=%s", "main"
            ).splitlines()
        ]
        if merges != [str(number) for number in range(self.items)]:
            found.append(f"B: the items were merged in this order: {merges}")
        missing = [name for name in wanted if not (self.project / f"done-{name}").exists()]
        if status := self.git("status", "--porcelain"):
            found.append(f"C: the working tree is not clean: {status[:300]}")
        if missing:
            found.append(f"C: the working tree lacks {missing}")
        if "error" in (sound := self.git("fsck", "--no-dangling", "--connectivity-only")):
            found.append(f"C: {sound[:300]}")
        if (branches := self.git("branch", "--format=%(refname:short)").split()) != ["main"]:
            ahead = [self.git("log", "--oneline", f"main..{name}") for name in branches]
            found.append(f"D: these branches are left: {branches}, with what main has not: {ahead}")
        if self.git("worktree", "list").count("\n") != 1:
            found.append(f"D: worktrees are left: {self.git('worktree', 'list')}")
        return found


def moment(chance: random.Random) -> tuple[int, float]:
    """A random kill point, as ledger lines plus seconds."""
    return chance.randrange(0, 9), chance.uniform(0, 0.4)
