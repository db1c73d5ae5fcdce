"""Real runs of flow files, in a project and a home of their own, and what came out of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plait.app.runs import FlowResult, Options, RunObservers, resume_flow, retry_flow, run_flow
from plait.core.errors import InputError
from plait.engine.events import Event, ItemsCounted, Note, StepFinished
from plait.engine.outcome import Failed, Skipped, Succeeded
from plait.lang.check import check_file
from plait.lang.findings import Finding

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}
KEPT = {"PATH", "LANG", "TMPDIR", "PYTEST_CURRENT_TEST", "PYTHONPATH"}


@dataclass(frozen=True)
class Ran:
    """A run that is over; a step is named by its path, an item in it by its number."""

    result: FlowResult
    events: list[Event]

    @property
    def finished(self) -> dict[str, StepFinished]:
        ends = [event for event in self.events if isinstance(event, StepFinished)]
        orders = {end.path: end.order for end in ends if end.kind == "item"}
        return {_numbered(end.path, orders): end for end in ends}

    @property
    def outputs(self) -> dict[str, Any]:
        """What each step gave, without the newlines at the end; of steps that were done or failed."""
        return {
            path: _output(end)
            for path, end in self.finished.items()
            if end.kind not in ("phase", "map", "item", "items", "attempt", "turn")
            and not isinstance(end.outcome, Skipped)
        }

    def outcome(self, path: str) -> Succeeded | Failed | Skipped:
        return self.finished[path].outcome

    @property
    def skipped(self) -> list[str]:
        return [path for path, end in self.finished.items() if isinstance(end.outcome, Skipped)]

    @property
    def failed(self) -> list[str]:
        return [path for path, end in self.finished.items() if isinstance(end.outcome, Failed)]

    @property
    def message(self) -> str:
        return self.result.failure.message if self.result.failure is not None else ""

    @property
    def value(self) -> Any:
        return self.result.value

    @property
    def notes(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Note)]

    @property
    def counted(self) -> int:
        return next(event.total for event in self.events if isinstance(event, ItemsCounted))


@dataclass(frozen=True)
class Place:
    """A project with one flow, and what a user does with it."""

    root: Path

    def write(self, name: str, content: str | bytes | list[Any] | dict[str, Any]) -> Path:
        """A file below the project; data is written as JSON."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list | dict):
            content = json.dumps(content, ensure_ascii=False)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def program(self, name: str, script: str) -> Path:
        """A command of the user's, first on the PATH."""
        path = self.root.parent / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    def text(self, name: str) -> str:
        return (self.root / name).read_text()

    def git(self, *args: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def repository(self) -> Place:
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "first")
        return self

    @property
    def file(self) -> Path:
        return self.root / "flow.yaml"

    def run(self, flow: str | None = None, **options: Any) -> Ran:
        """`plait run flow.yaml`."""
        if flow is not None:
            self.write("flow.yaml", flow)
        events: list[Event] = []
        result = run_flow(
            str(self.file),
            Options(**options),
            observers=RunObservers([lambda reported: events.append(reported.event)]),
        )
        return Ran(result, events)

    def done(self, flow: str | None = None, **options: Any) -> Ran:
        """The same for a run that has to succeed."""
        ran = self.run(flow, **options)
        assert (ran.result.status, ran.result.exit_code) == ("done", 0), ran.message or ran.failed
        return ran

    def outputs(self, flow: str, **options: Any) -> list[Any]:
        """What each step of a flow without phases gave."""
        return list(self.done(flow, **options).outputs.values())

    def refusal(self, flow: str | None = None, **options: Any) -> str:
        """Why a flow is not even begun."""
        with pytest.raises(InputError) as caught:
            self.run(flow, **options)
        assert not list((self.root / ".ai" / "state").glob("runs/*")), "something was begun"
        return str(caught.value).replace(f"{self.root}/", "")

    def resume(self, run: str, **options: Any) -> Ran:
        events: list[Event] = []
        return Ran(
            resume_flow(
                run,
                project=str(self.root),
                observers=RunObservers([lambda reported: events.append(reported.event)]),
                **options,
            ),
            events,
        )

    def retry(self, run: str, **options: Any) -> Ran:
        events: list[Event] = []
        return Ran(
            retry_flow(
                run,
                project=str(self.root),
                observers=RunObservers([lambda reported: events.append(reported.event)]),
                **options,
            ),
            events,
        )

    def check(self, flow: str | None = None) -> list[Finding]:
        if flow is not None:
            self.write("flow.yaml", flow)
        return check_file(str(self.file), project=str(self.root))

    def plait(
        self, *args: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """The command line, in a process of its own, started by a command that may stand before it."""
        return subprocess.run(
            [*before, sys.executable, "-m", "plait", *args],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def state(self) -> bytes:
        """Every byte that runs have left behind."""
        return b"".join(
            p.read_bytes() for p in sorted((self.root / ".ai").rglob("*")) if p.is_file()
        )


def new_place(top: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Place:
    """An untrusted project, with a small and known environment."""
    (top / "project" / ".ai" / "tools").mkdir(parents=True)
    (top / "home").mkdir()
    for name in set(os.environ) - KEPT:
        monkeypatch.delenv(name)
    home = {"HOME": str(top / "home"), "USER_SPACE": str(top / "home"), **GIT}
    path = f"{top / 'bin'}:{os.environ['PATH']}"
    for name, value in {**home, "PATH": path, **env}.items():
        monkeypatch.setenv(name, value)
    return Place(top / "project")


def _numbered(path: str, orders: Mapping[str, int]) -> str:
    """`map/item:3f9a/1` with the number of the item: `map/0/1`."""
    above, _, name = path.rpartition("/")
    if not above:
        return name
    return f"{_numbered(above, orders)}/{orders.get(path, name)}"


def _output(end: StepFinished) -> Any:
    match end.outcome:
        case Succeeded(dict() as value):
            output = value.get("output")
        case Failed(failure):
            output = failure.as_result().get("output")
        case _:
            return None
    return output.rstrip("\n") if isinstance(output, str) else output
