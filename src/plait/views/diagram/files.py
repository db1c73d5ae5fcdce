"""The diagram of a flow file, and of a run of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.engine.outcome import Failed, Outcome, Succeeded
from plait.engine.paths import AGENT, NODES
from plait.lang.flow_text import FlowText
from plait.lang.languages import require_own_file
from plait.views.diagram.model import (
    PHASES,
    Diagram,
    directive_diagram,
    graph_visits,
    make_diagram,
    mark_tasks,
    mark_visits,
    task_visits,
)

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


def run_diagram(path: str, journal: Journal) -> Diagram:
    """The diagram of a flow file with the visits that a journal records."""
    diagram = file_diagram(path)
    if path.endswith(DIRECTIVE_FILES):
        agent = journal.step(AGENT)
        ended = agent is not None and [(diagram.nodes[0].name, isinstance(agent.outcome, Failed))]
        return mark_visits(diagram, ended or ())
    visits = (
        graph_visits(journal, NODES)
        or graph_visits(journal, "steps")
        or list(_phase_visits(journal))
    )
    return mark_visits(diagram, visits) if visits else mark_tasks(diagram, task_visits(journal))


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
