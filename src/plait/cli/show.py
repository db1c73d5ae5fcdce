"""`plait show`: what happened in a run."""

from __future__ import annotations

import sys
import time
from functools import partial

from plait.cli.arguments import require_choice
from plait.cli.project import add_project, require_folder
from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from plait.app.runs import Runs
    from plait.cli.arguments import Parser
    from plait.core.values import Json
    from plait.engine.journal import Journal
    from plait.views.diagram.model import Diagram
    from plait.views.format import Line

EXAMPLES: Final = (
    "plait show 7f3a",
    "plait show last --json",
    "plait show 7f3a --html run.html",
    'plait show --markdown >> "$GITHUB_STEP_SUMMARY"',
)
FORMATS: Final = ("text", "json", "markdown", "github")


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "--json", action="store_true", help="the same for programs, with every failure"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write the run as one web page; - is standard output"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="as Markdown, with a picture of the flow"
    )
    parser.add_argument(
        "--format",
        metavar="F",
        help="text, json, markdown, or github: annotations for what failed",
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.flow_source import CHAT
    from plait.views.format import json_line, one_line, write_lines
    from plait.views.report import read_report, report_json, report_lines
    from plait.views.summary import project_option

    require_folder(options.project)
    form = _format(options)
    runs, name = flows.find_run(options.run, options.project)
    if options.html is not None:
        return _write_page(runs, name, options.html)
    with runs.open(name, write=False) as opened:
        is_running = partial(runs.is_running, name)
        report = read_report(name, opened.journal, is_running=is_running, short=form != "json")
        if form == "json":
            record = report_json(report, now=time.time())
            print(json_line(record if opened.is_own else {**record, "foreign": True}))
            return 0
        if form == "github":
            from plait.views.github import run_annotations

            for line in run_annotations(report):
                print(line)
            return 0
        # The present folder of the run, not the one where it started, which may belong to another
        # user.
        report.progress.project = opened.project
        kind = opened.facts.get("kind")
        can_resume = kind != CHAT and opened.is_own
        if form == "markdown":
            from plait.views.markdown import markdown_report

            # A file that another user's journal names is not opened.
            diagram = _find_diagram(opened.facts, opened.journal) if opened.is_own else None
            sys.stdout.write(
                markdown_report(report, now=time.time(), diagram=diagram, can_resume=can_resume)
            )
            return 0
        write_lines(report_lines(report, now=time.time(), can_resume=can_resume), sys.stdout)
        if not opened.is_own:
            command = f"plait trust run {one_line(name)}{project_option(report.progress)}"
            write_lines(iter([(f"  foreign      {command} takes it over", "yellow")]), sys.stdout)
        elif kind == "graph":
            write_lines(_graph_lines(opened.facts, opened.journal), sys.stdout)
    return 0


def _write_page(runs: Runs, name: str, file: str) -> int:
    """Write the run as one file that needs no other file."""
    from plait.core.errors import InputError
    from plait.views.format import one_line
    from plait.web.export import export_run
    from plait.web.projects import ShownRun

    shown = ShownRun(runs, name)
    try:
        page = export_run(shown.watch, shown.facts, time.time())
    finally:
        shown.close()
    if file == "-":
        sys.stdout.write(page)
        return 0
    try:
        with open(file, "w", encoding="utf-8", errors="replace") as out:
            out.write(page)
    except OSError as error:
        raise InputError(
            f"the page cannot be written: {error.strerror}",
            file,
            "name another place",
            code="cannot-write",
        ) from None
    print(f"wrote {one_line(file, None)}")
    return 0


def _format(options: argparse.Namespace) -> str:
    short = [name for name in ("json", "markdown") if getattr(options, name)]
    given = [*short, *([] if options.format is None else [options.format])]
    if len(given) > 1:
        raise InputError(
            "--json, --markdown and --format exclude each other",
            fix="give one of them",
            code="arguments",
        )
    return require_choice("format", given[0], FORMATS) if given else "text"


def _graph_lines(facts: Mapping[str, Json], journal: Journal) -> Iterator[Line]:
    """The visits of a run to the nodes of its graph, if the file can still be read."""
    from plait.views.diagram.text import diagram_lines

    diagram = _find_diagram(facts, journal)
    if diagram is not None:
        yield from (("  " + text, colour) for text, colour in diagram_lines(diagram))


def _find_diagram(facts: Mapping[str, Json], journal: Journal) -> Diagram | None:
    from plait.views.diagram.files import run_diagram

    try:
        return run_diagram(str(facts.get("file", "")), journal)
    except PlaitError:
        return None
