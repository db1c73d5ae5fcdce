"""Attempts of one run with a scripted model, and tools that keep their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agents.scripted import Says, Scripted, ToolServices, says, wants
from lang.loading import load_file
from plait.agents.messages import ModelRequest, ModelResponse
from plait.core.values import Json
from plait.engine.context import RunContext
from plait.engine.event_bus import Watch
from plait.engine.events import EarlierUsage, RunStarted, StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.limits import Budget
from plait.engine.outcome import Aborted, Failed, Outcome, StepError, Succeeded
from plait.lang.loaded import LoadedFlow
from plait.program.ports import Subflow
from program.fakes import new_run, turn_of

SUB = """\
start: a
nodes:
  a: {tool: log, params: {x: a}, next: b}
  b: {tool: log, params: {x: b}, next: c}
  c: {tool: log, params: {x: c}}
"""
CHILD = "---\npermissions: ['*']\n---\nchild\n"

FLOWS = ("sub", "ens")
"""Files of a folder that are tools, if they are there."""


class Services(ToolServices):
    """`log` keeps what it is called with; files of a folder are tools."""

    def __init__(
        self, top: Path, model: Says, log: Callable[[Json], Json] = lambda _: "logged"
    ) -> None:
        known = [*(one.stem for one in top.glob("*.yaml") if one.stem in FLOWS)]
        flows = dict.fromkeys([*known, *(f"directive:{one.stem}" for one in top.glob("*.md"))], log)
        super().__init__(Scripted(model), {"log": lambda params: log(params.get("x")), **flows})
        self._top = top

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:  # noqa: ARG002
        if tool_id in FLOWS:
            return load_file(str(self._top / f"{tool_id}.yaml"), environ={}).program
        if tool_id.startswith("directive:"):
            return load_file(str(self._top / f"{tool_id[10:]}.md"), environ={}).program
        return None

    @property
    def logged(self) -> list[Json]:
        return [params.get("x") for _, params in self.calls]

    @property
    def questions(self) -> int:
        return len(self.scripted.asks)  # type: ignore[union-attr]


def run_attempt(
    top: Path,
    file: str,
    text: str,
    fakes: Services,
    journal: MemoryJournal,
    budget: Budget | None = None,
    watchers: Iterable[Watch] = (),
) -> Outcome:
    """Perform one run attempt to its end."""
    (top / file).write_text(text)
    loaded = load_file(str(top / file), environ={})
    is_first = journal.last() == 0
    run = new_run(
        fakes,
        journal if is_first else journal.reopen(),
        folder=str(top),
        watchers=watchers,
        loaded=loaded if budget is None else None,
        budget=budget,
    )
    run.events.notify(
        RunStarted("r1", loaded.program.name, file, "", not is_first, loaded.program.phases)
    )
    if not is_first:
        run.events.notify(EarlierUsage(run.budgets.earlier.by_part()))
    return performed(loaded, run)


def performed(loaded: LoadedFlow, run: RunContext) -> Outcome:
    """How a program ends that a run performs, which ends with it."""
    try:
        return Succeeded(loaded.program.run(turn_of(run)))
    except (StepError, Aborted) as error:
        return Failed(error.failure)
    finally:
        run.events.close()


def outcome_text(outcome: Outcome) -> str:
    return outcome.failure.message if isinstance(outcome, Failed) else "done"


def failures(journal: MemoryJournal) -> list[str]:
    """The paths of what is recorded as failed."""
    ends = [
        stamped.event for stamped in journal.events() if isinstance(stamped.event, StepFinished)
    ]
    return [end.path for end in ends if isinstance(end.outcome, Failed)]


def steady(ask: ModelRequest) -> ModelResponse:
    """A parent calls a child twice, a child calls a tool three times."""
    results = sum(message.role == "tool" for message in ask.messages)
    if ask.messages[0].text.startswith("parent"):
        return wants(("directive:child", {})) if results < 2 else says("parent done")
    return wants(("log", {"x": results})) if results < 3 else says("child done")
