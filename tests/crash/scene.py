"""A project whose steps keep a ledger of their own, the engines that work on it, and how they are ended."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crash.verdict import Death, Journaled, Line, Story, ledger_lines, violations

ENGINE: Final = Path(__file__).parent / "engine.py"
SOURCE: Final = Path(__file__).parents[2] / "src"
GRACE: Final = 2.0
"""Seconds that the guardian gives processes whose Plait has died."""
LIMIT: Final = 60.0
"""Seconds after which a wait is a failure of its own."""
MARK: Final = "PLAIT_CRASH_SCENE"

FLOW: Final = """\
name: crash
setup:
  - id: begin
    shell: sh ledger.sh setup/begin
    capture_output: began
map:
  input: items.json
  id: ${item.id}
  max_parallel: PARALLEL
  steps:
    - id: work
      shell: sh ledger.sh map/item:${item.id}/work PADDING
      capture_output: worked
    - id: look
      shell: sh ledger.sh map/item:${item.id}/look 0 ${worked}
reduce:
  - id: gather
    shell: sh ledger.sh reduce/gather
  - id: report
    write_file:
      path: result.json
      format: json
      content: {began: "${began}", successful: "${map.successful}", results: "${map.results}"}
"""
# Each line is one write at the end of the file, and on the disk before the step goes on.
# A file `hold-look` holds every step `look` until it is gone.
LEDGER: Final = """\
line() { printf '%s %s\\n' "$1" "$2" >> "$LEDGER"; sync -d "$LEDGER"; }
line START "$1"
while [ -e "hold-${1##*/}" ]; do sleep 0.01; done
printf '%s after %s%0*d' "$1" "${3:-nothing}" "${2:-0}" 0
line END "$1"
"""


class Failed(Exception):
    """A scene did not come to its end."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A Plait at work, and the file in which is what it said."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.output.read_text("utf-8", "replace")

    def ended(self, seconds: float = LIMIT) -> Ended:
        """Wait until it ends by itself."""
        try:
            return Ended(self.process.wait(seconds), self.said())
        except subprocess.TimeoutExpired:
            raise Failed(f"an engine did not end in {seconds:g} s") from None


@dataclass(frozen=True, slots=True)
class Ended:
    """How an engine ended, and what it said."""

    code: int
    said: str


@dataclass(slots=True)
class Scene:
    """One run from its beginning to its end, through any number of deaths."""

    folder: Path
    items: int = 60
    parallel: int = 4
    padding: int = 0
    """So many characters longer is what a step prints."""
    view: str = "--quiet"
    world: Sequence[str] = ()
    """Options of engine.py for every engine."""
    deaths: list[Death] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.project.mkdir(parents=True)
        (self.folder / "home").mkdir()
        flow = FLOW.replace("PARALLEL", str(self.parallel)).replace("PADDING", str(self.padding))
        (self.project / "flow.yaml").write_text(flow)
        (self.project / "ledger.sh").write_text(LEDGER)
        (self.project / "items.json").write_text(json.dumps([{"id": item} for item in self.names]))
        self.ledger_file.touch()

    @property
    def names(self) -> list[str]:
        return [f"i{number:03}" for number in range(self.items)]

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def ledger_file(self) -> Path:
        return self.folder / "ledger"

    @property
    def runs(self) -> Path:
        return self.project / ".ai/state/runs"

    # ── engines ──────────────────────────────────────────────────────────

    def command(self, *world: str) -> list[str]:
        """What continues the run, or begins it if there is none yet."""
        run = self.run
        work = ["run", "flow.yaml"] if run is None else ["resume", run]
        return [sys.executable, "-P", str(ENGINE), *self.world, *world, "--", *work, self.view]

    @contextlib.contextmanager
    def engine(self, *world: str, before: Sequence[str] = ()) -> Iterator[Engine]:
        """An engine at work; one that is still there when we leave it is killed."""
        command = [*before, *self.command(*world)]
        output = self.folder / f"said-{next(self._numbers)}"
        with output.open("wb") as said:
            running = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        engine = Engine(running, output)
        try:
            yield engine
        finally:
            engine.kill()

    @property
    def env(self) -> Mapping[str, str]:
        home = str(self.folder / "home")
        own = {"LEDGER": str(self.ledger_file), MARK: self.token, "HOME": home, "USER_SPACE": home}
        return {**os.environ, "PYTHONPATH": str(SOURCE), **own}

    def to_the_end(self, *world: str, before: Sequence[str] = ()) -> Ended:
        """Let an engine work until it ends by itself."""
        with self.engine(*world, before=before) as engine:
            return engine.ended()

    def is_killed(self, lines: int, seconds: float, *world: str) -> bool:
        """Kill an engine so many seconds after it has made the ledger so much longer, unless it is through."""
        with self.engine(*world) as engine:
            self.has_lines(engine, lines)
            try:
                ended = engine.ended(seconds)
            except Failed:
                engine.kill()
                self.note_death()
                return True
        self.expect_code(ended, 0)
        return False

    def kill_after(self, lines: int, *world: str) -> None:
        """Kill an engine when it has made the ledger so much longer."""
        with self.engine(*world) as engine:
            self.expect_lines(engine, lines)
            engine.kill()
        self.note_death()

    def expect_lines(self, engine: Engine, more: int) -> None:
        if not self.has_lines(engine, more):
            raise Failed(f"the engine was through too early: {engine.said()[-300:]}")

    def has_lines(self, engine: Engine, more: int) -> bool:
        """Wait until the ledger has so many lines more; false if the engine ended instead."""
        wanted = len(self.ledger()) + more
        wait_for(lambda: not engine.is_running or len(self.ledger()) >= wanted, LIMIT)
        return engine.is_running

    def expect_code(self, ended: Ended, *codes: int) -> None:
        if ended.code not in codes:
            last = ended.said.strip().splitlines()[-3:]
            self.faults.append(
                f"exit code {ended.code}, not {' or '.join(map(str, codes))}: {last}"
            )

    # ── after a death ────────────────────────────────────────────────────

    def note_death(self) -> None:
        """Nobody is left, the journal is sound: this is what it and the ledger say."""
        self.expect_nobody()
        journal = self.journal()
        self.deaths.append(Death(len(self.ledger()), frozenset(step.path for step in journal)))

    def expect_nobody(self) -> None:
        wait_for(lambda: not self.processes(), GRACE + 1)
        left = self.processes()
        if left:
            self.faults.append(f"G13: {len(left)} processes are left")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Who has our mark in the environment: the engine, its guardian, its steps."""
        mark = f"{MARK}={self.token}".encode()
        return [pid for pid, environ in environments() if mark in environ]

    def ledger(self) -> list[Line]:
        return ledger_lines(self.ledger_file.read_text())

    @property
    def run(self) -> str | None:
        """The run, once it was wholly made."""
        found = [run for run in self.run_folders() if about(run, "created")]
        if len(found) > 1:
            raise Failed("there are several runs")
        return found[0].name if found else None

    def run_folders(self) -> list[Path]:
        return (
            [run for run in self.runs.iterdir() if run.name[0] != "."] if self.runs.exists() else []
        )

    def journal(self) -> list[Journaled]:
        """What is recorded; each file of a journal is looked through on the way."""
        steps: list[Journaled] = []
        for run in self.run_folders():
            with read_aside(run) as journal:
                if journal.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                    self.faults.append("E: a journal is not sound")
                steps += finished_steps(journal)
        return steps

    # ── the end ──────────────────────────────────────────────────────────

    def violations(self, expected: bytes) -> list[str]:
        """All that is wrong with the run, now that it has ended."""
        self.expect_nobody()
        result = self.project / "result.json"
        journal = self.journal()
        return violations(
            Story(
                self.names,
                self.parallel,
                self.ledger(),
                self.deaths,
                journal,
                result.read_bytes() if result.exists() else None,
                expected,
                self.faults,
            )
        )


def uninterrupted(folder: Path, *, items: int = 60, parallel: int = 4, padding: int = 0) -> bytes:
    """What reduce writes when nothing goes wrong."""
    scene = Scene(folder, items, parallel, padding)
    ended = scene.to_the_end()
    if ended.code != 0:
        raise Failed(f"exit code {ended.code} without any fault: {ended.said[-500:]}")
    result = (scene.project / "result.json").read_bytes()
    if found := scene.violations(result):
        raise Failed(f"without any fault: {found}")
    return result


# ── journals, without the help of Plait ──────────────────────────────────


@contextlib.contextmanager
def read_aside(run: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the journal, so that looking at it changes nothing for the next engine."""
    with tempfile.TemporaryDirectory(prefix="plait-crash-") as aside:
        for name in ("journal.db", "journal.db-wal"):
            if (run / name).exists():
                shutil.copyfile(run / name, Path(aside, name))
        with contextlib.closing(sqlite3.connect(Path(aside, "journal.db"))) as journal:
            yield journal


def finished_steps(journal: sqlite3.Connection) -> list[Journaled]:
    if not journal.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchall():
        return []  # it was only just made
    query = "SELECT path, kind, status FROM events WHERE event = 'step_finished' ORDER BY number"
    return [Journaled(*row) for row in journal.execute(query)]


def about(run: Path, name: str) -> object:
    with read_aside(run) as journal:
        if not journal.execute("SELECT 1 FROM sqlite_schema WHERE name = 'properties'").fetchall():
            return None
        found = journal.execute("SELECT value FROM properties WHERE name = ?", (name,)).fetchone()
    return found[0] if found else None


def is_locked(run: Path) -> bool:
    """Does somebody hold the lock of a run?"""
    with (run / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# ── processes ────────────────────────────────────────────────────────────


def environments() -> Iterator[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # gone, or somebody else's
                yield int(name), Path("/proc", name, "environ").read_bytes().split(b"\0")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
