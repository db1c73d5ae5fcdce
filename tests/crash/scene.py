"""A project whose steps write a ledger, the engines that work on it, and ways to end them."""

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

from crash.checks import Death, Journaled, Line, Story, ledger_lines, violations

ENGINE: Final = Path(__file__).parent / "engine.py"
SOURCE: Final = Path(__file__).parents[2] / "src"
GRACE: Final = 2.0
"""Seconds that the guardian gives the processes of a dead Plait."""
LIMIT: Final = 60.0
"""Seconds after which a wait is a failure."""
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
# Each line is one append and is on disk before the step continues.
# A file `hold-look` blocks every step `look` until it is removed.
LEDGER: Final = """\
line() { printf '%s %s\\n' "$1" "$2" >> "$LEDGER"; sync -d "$LEDGER"; }
line START "$1"
while [ -e "hold-${1##*/}" ]; do sleep 0.01; done
printf '%s after %s%0*d' "$1" "${3:-nothing}" "${2:-0}" 0
line END "$1"
"""


class Failed(Exception):
    """A scene did not finish."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running Plait and the file with its output."""

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

    def read_output(self) -> str:
        return self.output.read_text("utf-8", "replace")

    def ended(self, seconds: float = LIMIT) -> Ended:
        """Wait until the engine ends by itself."""
        try:
            return Ended(self.process.wait(seconds), self.read_output())
        except subprocess.TimeoutExpired:
            raise Failed(f"an engine did not end in {seconds:g} s") from None


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and the output of an engine."""

    code: int
    output: str


@dataclass(slots=True)
class Scene:
    """One run from its start to its end, with any number of deaths."""

    folder: Path
    items: int = 60
    parallel: int = 4
    padding: int = 0
    """The number of extra characters that each step prints."""
    view: str = "--quiet"
    engine_options: Sequence[str] = ()
    """Options of engine.py, for every engine."""
    flags: Sequence[str] = ()
    """Options of `plait resume`."""
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

    def command(self, *engine_options: str) -> list[str]:
        """The command that resumes the run, or starts it if there is none yet."""
        run = self.run
        work = ["run", "flow.yaml"] if run is None else ["resume", run, *self.flags]
        return [
            sys.executable,
            "-P",
            str(ENGINE),
            *self.engine_options,
            *engine_options,
            "--",
            *work,
            self.view,
        ]

    @contextlib.contextmanager
    def engine(self, *engine_options: str, before: Sequence[str] = ()) -> Iterator[Engine]:
        """Start an engine; kill it on exit if it still runs."""
        command = [*before, *self.command(*engine_options)]
        output = self.folder / f"said-{next(self._numbers)}"
        with output.open("wb") as stream:
            running = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
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

    def to_the_end(self, *engine_options: str, before: Sequence[str] = ()) -> Ended:
        """Start an engine and wait until it ends by itself."""
        with self.engine(*engine_options, before=before) as engine:
            return engine.ended()

    def is_killed(self, lines: int, seconds: float, *engine_options: str) -> bool:
        """Kill an engine after some ledger lines and seconds, unless it has finished."""
        with self.engine(*engine_options) as engine:
            self.has_lines(engine, lines)
            try:
                ended = engine.ended(seconds)
            except Failed:
                engine.kill()
                self.note_death()
                return True
        self.expect_code(ended, 0)
        return False

    def kill_after(self, lines: int, *engine_options: str) -> None:
        """Kill an engine when it has added some lines to the ledger."""
        with self.engine(*engine_options) as engine:
            self.expect_lines(engine, lines)
            engine.kill()
        self.note_death()

    def expect_lines(self, engine: Engine, more: int) -> None:
        if not self.has_lines(engine, more):
            raise Failed(f"the engine was through too early: {engine.read_output()[-300:]}")

    def has_lines(self, engine: Engine, more: int) -> bool:
        """Wait until the ledger has some more lines; False if the engine ended before."""
        wanted = len(self.ledger()) + more
        wait_for(lambda: not engine.is_running or len(self.ledger()) >= wanted, LIMIT)
        return engine.is_running

    def expect_code(self, ended: Ended, *codes: int) -> None:
        if ended.code not in codes:
            last = ended.output.strip().splitlines()[-3:]
            self.faults.append(
                f"exit code {ended.code}, not {' or '.join(map(str, codes))}: {last}"
            )

    # ── after a death ────────────────────────────────────────────────────

    def note_death(self) -> None:
        """Check that no process is left and the journal is sound, and return what is recorded."""
        self.require_no_process()
        journal = self.journal()
        self.deaths.append(Death(len(self.ledger()), frozenset(step.path for step in journal)))

    def require_no_process(self) -> None:
        wait_for(lambda: not self.processes(), GRACE + 1)
        left = self.processes()
        if left:
            self.faults.append(f"G13: {len(left)} processes are left")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """The processes with our mark in their environment: the engine, its guardian, its steps."""
        mark = f"{MARK}={self.token}".encode()
        return [pid for pid, environ in environments() if mark in environ]

    def ledger(self) -> list[Line]:
        return ledger_lines(self.ledger_file.read_text())

    @property
    def run(self) -> str | None:
        """The run, if it was made completely."""
        found = [run for run in self.run_folders() if about(run, "created")]
        if len(found) > 1:
            raise Failed("there are several runs")
        return found[0].name if found else None

    def run_folders(self) -> list[Path]:
        return (
            [run for run in self.runs.iterdir() if run.name[0] != "."] if self.runs.exists() else []
        )

    def journal(self) -> list[Journaled]:
        """The recorded steps, after an integrity check of each file of the journal."""
        steps: list[Journaled] = []
        for run in self.run_folders():
            with read_aside(run) as journal:
                if journal.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                    self.faults.append("E: a journal is not sound")
                steps += finished_steps(journal)
        return steps

    # ── the end ──────────────────────────────────────────────────────────

    def violations(self, expected: bytes) -> list[str]:
        """All violations of the rules by the finished run."""
        self.require_no_process()
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
    """The output of reduce in an undisturbed run."""
    scene = Scene(folder, items, parallel, padding)
    ended = scene.to_the_end()
    if ended.code != 0:
        raise Failed(f"exit code {ended.code} without any fault: {ended.output[-500:]}")
    result = (scene.project / "result.json").read_bytes()
    if found := scene.violations(result):
        raise Failed(f"without any fault: {found}")
    return result


# ── journals, without the help of Plait ──────────────────────────────────


@contextlib.contextmanager
def read_aside(run: Path) -> Iterator[sqlite3.Connection]:
    """Read a copy of the journal, so that the next engine finds it unchanged."""
    with tempfile.TemporaryDirectory(prefix="plait-crash-") as aside:
        for name in ("journal.db", "journal.db-wal"):
            if (run / name).exists():
                shutil.copyfile(run / name, Path(aside, name))
        with contextlib.closing(sqlite3.connect(Path(aside, "journal.db"))) as journal:
            yield journal


def finished_steps(journal: sqlite3.Connection) -> list[Journaled]:
    if not journal.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchall():
        return []  # it was just created
    query = "SELECT path, kind, status FROM events WHERE event = 'step_finished' ORDER BY number"
    return [Journaled(*row) for row in journal.execute(query)]


def about(run: Path, name: str) -> object:
    with read_aside(run) as journal:
        if not journal.execute("SELECT 1 FROM sqlite_schema WHERE name = 'properties'").fetchall():
            return None
        found = journal.execute("SELECT value FROM properties WHERE name = ?", (name,)).fetchone()
    return found[0] if found else None


def is_locked(run: Path) -> bool:
    """Whether a process holds the lock of a run."""
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
            with contextlib.suppress(OSError):  # it is gone, or of another user
                yield int(name), Path("/proc", name, "environ").read_bytes().split(b"\0")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
