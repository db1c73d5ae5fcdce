"""A project in which flows of the model are run by the real engine, with a real journal, and die.

The commands of steps are played in this process, and write a ledger that the engine does not know.
A death is one of the journal: from some record on nothing is written any more, as after a kill.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from model.expected import said
from model.flow import FAILS, Flow, text
from plait.app.flows import FlowResult, rehearse_resume, resume_flow, retry_flow, run_flow
from plait.errors import InputError
from plait.primitives.process import Finished
from plait.steps.hands import Rehearsed
from plait.store.writer import Writer


class Died(BaseException):
    """Nothing of this life is left but what it has recorded."""


@dataclass(frozen=True)
class Line:
    """A command was done: where, what it printed, and with which exit code."""

    path: str
    printed: str
    code: int


@dataclass(frozen=True)
class Record:
    number: int
    status: str


@dataclass
class Life:
    """What was seen of one command of the user's."""

    lines: list[Line]
    result: FlowResult | None = None
    """None: it died."""
    refused: str = ""
    refused_code: str = ""

    @property
    def how(self) -> str:
        return self.refused or ("died" if self.result is None else self.result.status)


@dataclass
class World:
    root: Path
    broken: set[str] = field(default_factory=set)
    """Paths whose commands fail, until somebody mends them."""
    ledger: list[Line] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    """Paths of all steps of which the journal has ever heard."""
    run_id: str = ""

    def __post_init__(self) -> None:
        (self.root / ".ai").mkdir(parents=True)

    @property
    def file(self) -> Path:
        return self.root / "flow.yaml"

    def write(self, flow: Flow) -> None:
        self.file.write_text(text(flow))

    # ── what a user does ─────────────────────────────────────────────────

    def run(self, *, dies_at: int | None) -> Life:
        return self._lived(lambda: run_flow(str(self.file), project=str(self.root)), dies_at)

    def resume(self, *, accept: bool, dies_at: int | None) -> Life:
        return self._lived(
            lambda: resume_flow(self.run_id, project=str(self.root), accept_changes=accept), dies_at
        )

    def retry(self, *, dies_at: int | None) -> Life:
        return self._lived(lambda: retry_flow(self.run_id, project=str(self.root)), dies_at)

    def rehearse(self) -> list[Rehearsed] | str:
        try:
            return rehearse_resume(self.run_id, project=str(self.root))
        except InputError as error:
            return str(error)

    def _lived(self, work: Any, dies_at: int | None) -> Life:
        began = len(self.ledger)
        with self._played(dies_at):
            try:
                result: FlowResult | None = work()
                life = Life(self.ledger[began:], result)
            except Died:
                life = Life(self.ledger[began:])
            except InputError as error:
                code = (error.problems[0].code if error.problems else error.code) or ""
                life = Life(self.ledger[began:], refused=str(error), refused_code=code)
        if not self.run_id:
            found = sorted(self.root.glob(".ai/state/runs/*/journal.db"))
            self.run_id = found[0].parent.name if found else ""
        return life

    # ── how it is played ─────────────────────────────────────────────────

    @contextlib.contextmanager
    def _played(self, dies_at: int | None) -> Iterator[None]:
        death = Death(dies_at)
        with (
            mock.patch("plait.app.hands.run_shell", self._say),
            mock.patch.object(Writer, "append", death.append),
        ):
            yield

    def _say(self, bound: Any, *, env: Mapping[str, str], **_: object) -> Finished:
        command, path, revision, *words = shlex.split(bound.shown)
        assert command == "say", bound.shown
        code = 3 if revision.startswith(FAILS) or path in self.broken else 0
        printed = said([path, revision, *words], env)
        self.ledger.append(Line(path, printed, code))
        return Finished(code, None, printed.encode(), b"", 0.0, False)

    # ── what is recorded ─────────────────────────────────────────────────

    def records(self) -> dict[str, Record]:
        """By path: how each step ended the last time, unless that was forgotten."""
        files = list(self.root.glob(".ai/state/runs/*/journal.db"))
        if not files:
            return {}
        found: dict[str, Record] = {}
        with contextlib.closing(sqlite3.connect(files[0])) as journal:
            query = "SELECT number, event, path, status FROM events ORDER BY number"
            for number, event, path, status in journal.execute(query):
                if event in ("started", "finished"):
                    self.begun.add(path)
                if event == "finished":
                    found[path] = Record(number, status)
                elif event in ("started", "forgotten"):
                    found.pop(path, None)  # what is below it is kept: `--from-start` is not played
        return found

    def last_code(self, path: str) -> int:
        return next((line.code for line in reversed(self.ledger) if line.path == path), 0)


class Death:
    """Counts what a life records; the one with this number and all behind it are lost."""

    def __init__(self, dies_at: int | None) -> None:
        self.left = dies_at
        self._really = Writer.append
        self._lock = threading.Lock()

    @property
    def append(self) -> Any:
        def append(writer: Writer, *events: Any) -> None:
            # What long steps have begun is recorded by a clock, and so not counted.
            if threading.current_thread().name == "plait-teller":
                if self.left is None or self.left > 0:
                    self._really(writer, *events)
                return
            with self._lock:
                if self.left is not None:
                    self.left -= 1
                    if self.left < 0:
                        raise Died
            self._really(writer, *events)

        return append
