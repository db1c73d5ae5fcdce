"""A project in which the real engine runs flows of the model, with a real journal, and dies.

The commands of steps are simulated in this process and write a ledger that the engine does not know.
A death is simulated in the journal: from some record on nothing is written, as after a kill.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sqlite3
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from model.expected import output_line
from model.flow import ITEMS, Flow, code_of, text
from plait.adapters.process.process_spec import ProcessResult
from plait.adapters.store.writer import Writer
from plait.app.runs import FlowResult, plan_resume, resume_flow, retry_flow, run_flow
from plait.cli import runs, show
from plait.core.errors import InputError
from plait.engine.coroutines import Order
from plait.engine.plan_log import PlannedStep

ONCE = "may run at most once; it started, and its outcome is unknown"


class Died(BaseException):
    """Ends a run attempt: only its records are left."""


@dataclass(frozen=True)
class Line:
    """A command that ran: its path, output and exit code."""

    path: str
    printed: str
    code: int


@dataclass(frozen=True)
class Record:
    number: int
    status: str


@dataclass
class RunAttempt:
    """What one `plait` command did."""

    lines: list[Line]
    result: FlowResult | None = None
    """None if it died."""
    refused: str = ""
    refused_code: str = ""

    @property
    def how(self) -> str:
        return self.refused or ("died" if self.result is None else self.result.status)


@dataclass
class Project:
    root: Path
    broken: set[str] = field(default_factory=set)
    """Paths whose commands fail until they are repaired."""
    ledger: list[Line] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    """Paths of all steps that the journal has ever recorded."""
    open: set[str] = field(default_factory=set)
    """Paths of the steps that were started and have no recorded end since."""
    ends: dict[str, Record] = field(default_factory=dict)
    """The number of the last end of each step, also if it was started again since, by path."""
    marked_done: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    """Steps marked done that no run attempt has reached yet."""
    """Paths of the commands that were marked done."""
    run_id: str = ""

    def __post_init__(self) -> None:
        (self.root / ".ai" / "tools").mkdir(parents=True)

    @property
    def file(self) -> Path:
        return self.root / "flow.yaml"

    def write(self, flow: Flow) -> None:
        self.file.write_text(text(flow))
        (self.root / ITEMS).write_text("".join(f"{item}\n" for item in flow.items))

    # ── what a user does ─────────────────────────────────────────────────

    def run(self, death: Death) -> RunAttempt:
        return self._perform_attempt(
            lambda: run_flow(str(self.file), project=str(self.root)), death
        )

    def resume(
        self, death: Death, *, accept: bool, repeat: Sequence[str] = (), done: Sequence[str] = ()
    ) -> RunAttempt:
        def work() -> FlowResult:
            return resume_flow(
                self.run_id, project=str(self.root), accept_changes=accept, repeat=repeat, done=done
            )

        return self._perform_attempt(work, death)

    def retry(
        self, death: Death, *, items: Sequence[str] = (), from_start: bool = False
    ) -> RunAttempt:
        def work() -> FlowResult:
            return retry_flow(
                self.run_id, project=str(self.root), items=items, from_start=from_start
            )

        return self._perform_attempt(work, death)

    def dry_run(self) -> list[PlannedStep] | str:
        try:
            return plan_resume(self.run_id, project=str(self.root))
        except InputError as error:
            return str(error)

    def shown(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `plait show --json` and `plait runs --json` print about the run."""
        options = Namespace(
            run=self.run_id,
            project=str(self.root),
            json=True,
            limit="20",
            markdown=False,
            html=None,
            format=None,
        )
        documents = []
        for command in (show, runs):
            printed = io.TextIOWrapper(io.BytesIO())
            with contextlib.redirect_stdout(printed):
                command.run(options)
            printed.seek(0)
            documents.append(json.loads(printed.read()))
        return documents[0], documents[1][0]

    def _perform_attempt(self, work: Any, death: Death) -> RunAttempt:
        began = len(self.ledger)
        with self._played(death):
            try:
                result: FlowResult | None = work()
                run_attempt = RunAttempt(self.ledger[began:], result)
                failure = None if result is None else result.failure
                if failure is not None and failure.kind == "refused" and ONCE in failure.message:
                    run_attempt = RunAttempt(self.ledger[began:], None, failure.message, "once")
            except Died:
                run_attempt = RunAttempt(self.ledger[began:])
            except InputError as error:
                code = (error.problems[0].code if error.problems else error.code) or ""
                run_attempt = RunAttempt(self.ledger[began:], refused=str(error), refused_code=code)
        if not self.run_id:
            found = sorted(self.root.glob(".ai/state/runs/*/journal.db"))
            self.run_id = found[0].parent.name if found else ""
        return run_attempt

    # ── how it is played ─────────────────────────────────────────────────

    @contextlib.contextmanager
    def _played(self, death: Death) -> Iterator[None]:
        class Say(Order):
            def __init__(self, run: Callable[[], ProcessResult]) -> None:
                self.run = run

            def wait(self) -> ProcessResult:
                return self.run()

        def say(
            bound: Any, *, env: Mapping[str, str], more_env: Mapping[str, str], **_: object
        ) -> Order:
            def run() -> ProcessResult:
                finished = self._say(bound, {**env, **more_env})
                death.after_command()
                return finished

            return Say(run)

        with (
            mock.patch("plait.app.services.order_shell", say),
            mock.patch.object(Writer, "append", death.append),
        ):
            yield

    def _say(self, bound: Any, env: Mapping[str, str]) -> ProcessResult:
        command, revision, *words = shlex.split(bound.shown)
        assert command == "say", bound.shown
        path = env["PLAIT_IDEMPOTENCY_KEY"].partition("/")[2]
        code = 3 if path in self.broken else code_of(revision, path)
        printed = output_line(path, revision, words, env)
        self.ledger.append(Line(path, printed, code))
        self.marked_done.discard(path)
        return ProcessResult(code, None, printed.encode(), b"", 0.0, False)

    # ── what is recorded ─────────────────────────────────────────────────

    def records(self) -> dict[str, Record]:
        """The last outcome of each step, unless it was invalidated, by path."""
        files = list(self.root.glob(".ai/state/runs/*/journal.db"))
        if not files:
            return {}
        found: dict[str, Record] = {}
        self.open, self.ends = set(), {}
        with contextlib.closing(sqlite3.connect(files[0])) as journal:
            query = "SELECT number, event, path, status FROM events ORDER BY number"
            for number, event, path, status in journal.execute(query):
                match event:
                    case "step_started":
                        self.begun.add(path)
                        self.open.add(path)
                        found.pop(path, None)
                    case "step_finished":
                        self.begun.add(path)
                        self.open.discard(path)
                        found[path] = Record(number, status)
                        self.ends[path] = found[path]
                    case "step_invalidated":
                        # The view has no word for what was forgotten alone, without what is below it.
                        is_alone = status is not None
                        gone = [
                            one for one in self.ends if one == path or is_below(one, path, is_alone)
                        ]
                        for one in gone:
                            found.pop(one, None)
                            del self.ends[one]
        return found

    def last_code(self, path: str) -> int:
        return next((line.code for line in reversed(self.ledger) if line.path == path), 0)


def is_below(path: str, top: str, is_alone: bool) -> bool:
    return not is_alone and path.startswith(f"{top}/")


class Death:
    """When a run attempt dies: after some records, with later ones lost; or in a command, after its effect."""

    def __init__(self, *, records: int | None = None, commands: int | None = None) -> None:
        self.reported = (
            f"dies at record {records}"
            if records
            else f"dies in command {commands}"
            if commands
            else "does not die"
        )
        self._records, self._commands = records, commands
        self._really = Writer.append
        self._lock = threading.Lock()

    def after_command(self) -> None:
        with self._lock:
            if self._commands is not None:
                self._commands -= 1
                if self._commands <= 0:
                    self._records = 0
                    raise Died

    @property
    def append(self) -> Any:
        def append(writer: Writer, *events: Any) -> None:
            # What long steps have begun is recorded by a clock, and so not counted.
            if threading.current_thread().name == "plait-reporter":
                if self._records is None or self._records > 0:
                    self._really(writer, *events)
                return
            with self._lock:
                if self._records is not None:
                    self._records -= 1
                    if self._records < 0:
                        raise Died
            self._really(writer, *events)

        return append
