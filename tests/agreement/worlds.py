"""Run a flow in many simulated runs without its check, and record which names have a value where.

A world decides at random how commands end, whether conditions hold and what checks find.  Everything
else is real: the compiled flow, and the names that its steps, handlers and items know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path as File
from random import Random
from typing import Any

import pytest

from agreement.writing import CAPTURED
from lang.loading import load_file
from plait.agents.messages import ModelResponse
from plait.core.errors import PlaitError
from plait.core.source import Span
from plait.core.values import UNDEFINED
from plait.engine.outcome import Aborted, Failure, StepError
from plait.engine.perform import StepContext
from plait.lang.loaded import LoadedFlow
from plait.program import git_changes
from plait.program.validate import Validation
from plait.scope import Scope
from plait.scope.expressions import Expression
from plait.template.nodes import ContextPlaceholder, Path, placeholders
from plait.template.template import Template
from plait.tools.call import ToolResult
from plait.tools.invocation import PrimitiveResult
from program.fakes import FakeModel, FakeServices, Finished, new_run

Place = tuple[int, int]
"""The line and column of a placeholder."""


class Seen:
    """Whether the name of each reached placeholder had a value when a run first came there.

    What only a later round of the same thing knows is asked for too early in the first one.
    """

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.names: dict[Place, str] = {}
        """All names that were looked up."""
        self.known: set[Place] = set()
        """Placeholders whose name a run knew."""
        self.begun: set[Place] = set()
        """Placeholders whose first name a run knew; only its value shows which fields it has."""
        self.times: Counter[Place] = Counter()
        """The number of worlds that reached each placeholder."""
        self._reached: set[Place] = set()
        self.is_first_round = True

    def begin(self) -> None:
        """Start another run."""
        self._reached.clear()

    def ask(self, template: Template, scope: Scope) -> None:
        for leaf in template.leaves() if self.is_first_round else ():
            for placeholder in placeholders(leaf.compiled.parts):
                path = (
                    placeholder.alternatives[0].origin
                    if isinstance(placeholder, ContextPlaceholder)
                    else None
                )
                if isinstance(path, Path):
                    self._note(
                        Span(leaf.source, placeholder.start, placeholder.end).position, path, scope
                    )

    def _note(self, place: Place, path: Path, scope: Scope) -> None:
        if place in self._reached:
            return
        self._reached.add(place)
        self.times[place] += 1
        self.names[place] = str(path)
        if scope.lookup(path) is not UNDEFINED:
            self.known.add(place)
        is_authors = path.root == "item" or path.root in self.own - {*CAPTURED}
        if scope.lookup(Path(path.root) if is_authors else path) is not UNDEFINED:
            self.begun.add(place)


class World:
    """Some commands fail in each world, depending on their number of calls, and all others succeed."""

    def __init__(self, number: int) -> None:
        self.chance = Random(number)
        self.failing = (0.0, 0.1, 0.2, 0.35, 0.6)[number % 5]
        self.holding = (1.0, 0.7)[number % 2]
        self.lacking = (0.0, 0.5, 0.9)[number % 3]
        self._frail: dict[str, bool] = {}

    def fakes(self) -> FakeServices:
        fakes = _Services(self.shell, self.call, self.request, model=_Model(self.fails))
        fakes.checked, fakes.fails = self.checked, self.fails
        return fakes

    def shell(self, script: str) -> Finished:
        prints, command = script.split()[1:3]
        if self.fails(command):
            return Finished(b"broken", b"why", self.chance.choice((1, 2, 3)))
        return Finished(self.checked() if prints == "check" else PRINTED[prints])

    def checked(self) -> bytes:
        if self.chance.random() < self.lacking:
            return b'{"completion_percentage": 50, "missing": ["m"], "gaps": {"g": 1}}'
        return b'{"completion_percentage": 100}'

    def call(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        fails = self.fails(str(params)[:20])
        return ToolResult(
            tool, not fails, "called", "no" if fails else None, (), {}, printed="called"
        )

    def request(self, asked: Any) -> PrimitiveResult:
        fails = self.fails(asked.url)
        return PrimitiveResult(not fails, "answer", metadata={"status": 500 if fails else 200})

    def fails(self, what: str) -> bool:
        if what not in self._frail:
            self._frail[what] = self.chance.random() < self.failing
        return self._frail[what] and self.chance.random() < 0.7

    def holds(self) -> bool:
        return self.chance.random() < self.holding


PRINTED = {
    "string": b"text\n",
    "json": b'{"k": {"d": 1}}',
    "lines": b"one\ntwo\n",
    "number": b"7\n",
    "boolean": b"true\n",
    "items": b'{"k": 1}\n{"k": 2}\n',
}


class _Services(FakeServices):
    """Every file contains the result that a check would write."""

    checked: Callable[[], bytes]

    fails: Callable[[str], bool]

    def read(self, path: str, *, directory: str) -> bytes:  # noqa: ARG002
        return self.checked()

    def write(self, path: str, data: bytes, **_: Any) -> str:  # noqa: ARG002
        if self.fails("write " + path.split()[0]):
            raise StepError(Failure("the disk is full"))
        return path


class _Model(FakeModel):
    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__()
        self.fails = fails

    def ask(self, request: Any, **_: Any) -> ModelResponse:
        if self.fails(str(request)):
            raise StepError(Failure("no answer"))
        return ModelResponse(self.text, usage=self.usage, model="m-1")


class _Repository(git_changes.ChangeTracker):
    """A repository without changes."""

    def snapshot(self, directory: str) -> git_changes.Snapshot:  # noqa: ARG002
        return git_changes.Snapshot("head", "tree")

    def since(self, before: Any, directory: str) -> dict[str, Any]:  # noqa: ARG002
        return git_changes.changes_record([], (0, 0), [])

    def repository(self, directory: str) -> dict[str, Any]:
        return {"branch": "main", "commit": "c", "root": directory}


def performed(
    text: str, own: set[str], folder: File, worlds: range, seen: Seen | None = None
) -> Seen:
    """Run the flow in some worlds."""
    seen = seen or Seen(own)
    file = folder / "flow.yaml"
    file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plait.lang.workflow.read.check_workflow", lambda *_, **__: [])
        loaded = load_file(str(file), project="/project", environ={})
        patch.setattr("plait.program.git_changes.ChangeTracker", _Repository)
        rendering = Template.rendering

        def asking(template: Template, values: Any, *, strict: bool, env: Any) -> Any:  # noqa: ARG001
            if isinstance(values, Scope):
                seen.ask(template, values)
            return rendering(template, values, strict=False, env=env)

        checked = Validation._run_check

        def checking(check: Validation, ctx: StepContext, scope: Scope, number: int) -> Any:
            before, seen.is_first_round = seen.is_first_round, seen.is_first_round and number == 1
            try:
                return checked(check, ctx, scope, number)
            finally:
                seen.is_first_round = before

        patch.setattr(Template, "rendering", asking)
        patch.setattr(Validation, "_run_check", checking)
        for number in worlds:
            seen.begin()
            _run_in(loaded, World(number), folder, patch)
    return seen


def _run_in(loaded: LoadedFlow, world: World, folder: File, patch: pytest.MonkeyPatch) -> None:
    def holds(when: Expression, subject: Any) -> bool:
        when._state(subject)
        return world.holds()

    patch.setattr(Expression, "holds", holds)
    run = new_run(world.fakes(), folder=str(folder))
    scope = loaded.scope("r1", started="now")
    try:
        loaded.program.run(StepContext(run, "", scope, directory="/project"))
    except (StepError, Aborted, PlaitError):
        pass  # a failure is one of its possible outcomes
    finally:
        run.events.close()
