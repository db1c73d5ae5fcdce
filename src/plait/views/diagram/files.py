"""The diagram of a flow file, and of a run of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import AGENT, NODES, TASKS, is_below
from plait.lang.flow_text import FlowText
from plait.lang.languages import require_own_file
from plait.program.graph.graph_step import node_name
from plait.views.diagram.model import (
    PHASES,
    Diagram,
    directive_diagram,
    graph_visits,
    is_visit,
    make_diagram,
    mark_tasks,
    mark_visits,
    task_at,
    task_visits,
)
from plait.views.parts import RunningStep

if TYPE_CHECKING:
    from plait.engine.journal import Journal

DIRECTIVE_FILES: Final = (".md", ".markdown")


def file_diagram(path: str) -> Diagram:
    name = os.path.splitext(os.path.basename(path))[0]
    if path.endswith(DIRECTIVE_FILES):
        from plait.lang.directive.split import split_directive

        return directive_diagram(split_directive(FlowText.read(path).text, path), name)
    source = FlowText.read(path)
    require_own_file(source)
    diagram = make_diagram(source.document, name)
    if not diagram.nodes:
        raise InputError(
            "this file has no steps, nodes or tasks", path, "draw a flow", code="no-steps"
        )
    return diagram


def run_diagram(path: str, journal: Journal, running: Iterable[RunningStep] = ()) -> Diagram:
    """The diagram of a flow file with the visits that a journal records, and those that run now."""
    diagram = file_diagram(path)
    now = list(running)
    if path.endswith(DIRECTIVE_FILES):
        agent = journal.step(AGENT)
        ended = agent is not None and [(diagram.nodes[0].name, isinstance(agent.outcome, Failed))]
        is_now = any(step.path == AGENT for step in now)
        return mark_visits(diagram, ended or (), [diagram.nodes[0].name] if is_now else ())
    for part in (NODES, "steps"):
        visits = graph_visits(journal, part)
        names = [node_name(step.path) for step in now if is_visit(step.path, part)]
        if visits or names:
            return mark_visits(diagram, visits, names)
    phases = list(_phase_visits(journal))
    names = [step.path for step in now if step.path in PHASES]
    if phases or names:
        return mark_visits(diagram, phases, names)
    tasks = [task_at(step.path, step.title) for step in now if is_below(step.path, TASKS)]
    return mark_tasks(diagram, task_visits(journal), [name for name in tasks if name is not None])


def _phase_visits(journal: Journal) -> Iterator[tuple[str, bool]]:
    """The phases of a workflow that have ended, and whether they or all their items failed."""
    for name in PHASES:
        if (record := journal.step(name)) is not None:
            yield name, _has_failed(record.outcome)


def _has_failed(outcome: Outcome) -> bool:
    match outcome:
        case Succeeded({"failed": int(failed), "total": total}):
            return failed > 0 and failed == total
    return isinstance(outcome, Failed)
