"""`plait graph`: draw a flow: a graph, the phases of a workflow, tasks, an agent and its tools.

It prints lines, with `--mermaid` the text that GitHub draws, or writes SVG with
`--svg`.  `--run` marks the visits of a run.
"""

from __future__ import annotations

import sys

from plait.cli.project import add_project
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.views.diagram.model import Diagram

EXAMPLES: Final = (
    "plait graph triage.yaml",
    "plait graph triage.yaml --svg triage.svg --run last",
    "plait graph triage.yaml --mermaid",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="the flow; with --run that of the run"
    )
    parser.add_argument("--svg", metavar="OUT", help="write it as SVG; - is standard output")
    parser.add_argument(
        "--mermaid", action="store_true", help="print it as Mermaid, for Markdown pages"
    )
    parser.add_argument("--run", metavar="RUN", help="mark the visits of a run: its id, or last")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.views.diagram.text import diagram_lines
    from plait.views.format import one_line, write_lines

    if options.mermaid and options.svg is not None:
        raise InputError(
            "--mermaid and --svg exclude each other", fix="give one of them", code="arguments"
        )
    diagram = _diagram(options)
    if options.mermaid:
        from plait.views.diagram.mermaid import render_mermaid

        sys.stdout.write(render_mermaid(diagram))
        return 0
    if options.svg is None:
        write_lines(diagram_lines(diagram), sys.stdout)
        return 0
    from plait.views.diagram.svg import render_svg

    if options.svg == "-":
        sys.stdout.write(render_svg(diagram))
        return 0
    text = render_svg(diagram)
    try:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"the diagram cannot be written: {error.strerror}",
            options.svg,
            "name another place",
            code="cannot-write",
        ) from None
    print(f"wrote {one_line(options.svg, None)}")
    return 0


def _diagram(options: argparse.Namespace) -> Diagram:
    from plait.views.diagram.files import file_diagram

    if options.run is not None:
        from plait.app import runs as flows
        from plait.views.diagram.files import run_diagram

        runs, name = flows.find_run(None if options.run == "last" else options.run, options.project)
        with runs.open(name, write=False) as opened:
            if not options.file:
                opened.require_own()  # do not open a file that another user's journal names
            file = options.file or str(opened.facts.get("file", ""))
            return run_diagram(file, opened.journal)
    if options.file is None:
        raise InputError(
            "which flow is to be drawn?", fix="plait graph FILE, or --run RUN", code="arguments"
        )
    return file_diagram(options.file)
