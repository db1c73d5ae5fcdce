"""`plait graph`: draw a flow: a graph, the phases of a workflow, the tasks of an ensemble.

In the terminal as lines, with `--svg` as a picture.  `--run` marks the way that a run has taken,
and how often it was at each place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from plait.cli.trust_prompt import add_project
from plait.core.hints import TYPE_CHECKING, Final
from plait.engine.journal import Journal
from plait.engine.outcome import Failed
from plait.views.format import Line, one_line, write_lines

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.views.diagram.model import Diagram

EXAMPLES: Final = (
    "plait graph triage.yaml",
    "plait graph triage.yaml --svg triage.svg --run last",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="the flow; with --run that of the run"
    )
    parser.add_argument("--svg", metavar="OUT", help="write a picture there; - is standard output")
    parser.add_argument(
        "--run", metavar="RUN", help="mark the way that a run took: its id, or last"
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    picture = _of_run(options) if options.run is not None else _of_file(options.file)
    if options.svg is None:
        write_lines(text_lines(picture), sys.stdout)
        return 0
    from plait.views.diagram.svg import render_svg

    if options.svg == "-":
        sys.stdout.write(render_svg(picture))
        return 0
    _write(options.svg, render_svg(picture))
    print(f"wrote {one_line(options.svg, None)}")
    return 0


def text_lines(picture: Diagram) -> Iterator[Line]:
    from plait.views.diagram.text import render_text

    for text, colour in render_text(picture):
        yield one_line(text, None), colour


def picture_of_run(file: str, journal: Journal) -> Diagram:
    """The picture of a flow with what a journal says of it."""
    from plait.program.graph.walk import NODES
    from plait.views.diagram.model import graph_visits, mark_tasks, mark_visits, task_visits

    picture = _of_file(file)
    stays = graph_visits(journal, NODES) or graph_visits(journal, "steps") or list(_phases(journal))
    return mark_visits(picture, stays) if stays else mark_tasks(picture, task_visits(journal))


def _of_file(path: str | None) -> Diagram:
    from plait.core import documents
    from plait.core.errors import InputError
    from plait.views.diagram.model import make_diagram

    if path is None:
        raise InputError(
            "which flow is to be drawn?", fix="plait graph FILE, or --run RUN", code="arguments"
        )
    if path.endswith((".md", ".markdown")):
        raise InputError(
            "a directive is one text: there is nothing to draw", path, code="wrong-type"
        )
    name = os.path.splitext(os.path.basename(path))[0]
    picture = make_diagram(documents.load(path), name)
    if not picture.boxes:
        raise InputError(
            "this file has no steps, nodes or tasks", path, "draw a flow", code="no-steps"
        )
    return picture


def _of_run(options: argparse.Namespace) -> Diagram:
    from plait.app import runs as flows

    runs, name = flows.find_run(None if options.run == "last" else options.run, options.project)
    with runs.open(name, write=False) as opened:
        if not options.file:
            opened.require_own()  # the journal of a stranger names no file for us
        file = options.file or str(opened.facts.get("file", ""))
        return picture_of_run(file, opened.journal)


def _phases(journal: Journal) -> Iterator[tuple[str, bool]]:
    """The whole phases of a workflow that were done."""
    for name in ("setup", "map", "reduce", "merge"):
        if (done := journal.step(name)) is not None:
            yield name, isinstance(done.outcome, Failed)


def _write(path: str, text: str) -> None:
    from plait.core.errors import InputError

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"the picture cannot be written: {error.strerror}",
            path,
            "name another place",
            code="cannot-write",
        ) from None
