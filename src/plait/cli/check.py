"""`plait check`: every problem of every file, for people, programs and code hosts."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from plait.cli.arguments import require_choice
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.source import Span
from plait.core.values import Json
from plait.views.terminal import (
    Paint,
    format_problem,
    paint_for,
    pluralize,
    problem_data,
    write_json,
)

if TYPE_CHECKING:
    from plait.cli.arguments import Parser
    from plait.lang.findings import Finding, Severity

EXAMPLES: Final = (
    "plait check flow.yaml",
    "plait check flows/ --format sarif > plait.sarif",
)
FORMATS: Final = ("text", "json", "sarif", "github")
COLOURS: Final = {"error": "red", "warning": "yellow", "note": "blue"}


def configure(parser: Parser) -> None:
    from plait.lang.check import FILE_KINDS

    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="flows, tools, hooks, providers, or directories of them",
    )
    parser.add_argument("--kind", metavar="K", help=f"what the files are: {', '.join(FILE_KINDS)}")
    parser.add_argument(
        "--profile",
        metavar="P",
        help="check templates alone: workflow, graph, config, prompt or directive",
    )
    parser.add_argument(
        "--values-names", metavar="a,b", default="", help="names that will be given, too"
    )
    parser.add_argument(
        "--format", default="text", metavar="F", help="text (default), json, sarif or github"
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")


def run(options: argparse.Namespace) -> int:
    from plait.app.file_check import findings_around
    from plait.lang.check import FILE_KINDS, check_file, flow_files
    from plait.template.profiles import profile_named

    form = require_choice("format", "json" if options.json else options.format, FORMATS)
    profile = None if options.profile is None else profile_named(options.profile).name
    names = [name.strip() for name in options.values_names.split(",") if name.strip()]
    kind = None if options.kind is None else require_choice("kind", options.kind, FILE_KINDS)
    files = flow_files(options.paths)
    findings = [
        finding
        for file in files
        for finding in check_file(
            file,
            kind=kind,
            profile=profile,
            names=names,
            must_be_flow=file in options.paths,
            around=findings_around,
        )
    ]
    match form:
        case "text":
            _show(findings, files)
        case "json":
            write_json(_report(findings, files))
        case "sarif":
            from plait.views.sarif import sarif_log

            write_json(sarif_log(findings))
        case "github":
            for finding in findings:
                print(_annotation(finding))
    return 2 if any(finding.severity == "error" for finding in findings) else 0


# ── text ─────────────────────────────────────────────────────────────────


def _show(findings: Sequence[Finding], files: Sequence[str]) -> None:
    paint = paint_for(sys.stdout)
    for finding in findings:
        mark = "" if finding.severity == "error" else f"{finding.severity}: "
        print(format_problem(finding.problem, paint, mark=mark, colour=COLOURS[finding.severity]))
    print(_summary(findings, files, paint))


def _summary(findings: Sequence[Finding], files: Sequence[str], paint: Paint) -> str:
    counts = Counter(finding.severity for finding in findings)
    where = f" in {pluralize(len(files), 'file')}"
    words: tuple[tuple[Severity, str], ...] = (("error", "problem"), ("warning", "warning"))
    parts = [pluralize(counts[severity], word) for severity, word in words if counts[severity]]
    if not parts:
        return paint("no problems", "green") + where
    return paint(" and ".join(parts), "red" if counts["error"] else "yellow") + where


# ── programs ─────────────────────────────────────────────────────────────


def _report(findings: Sequence[Finding], files: Sequence[str]) -> Json:
    counts = Counter(finding.severity for finding in findings)
    return {
        "problems": [
            {"severity": finding.severity, **problem_data(finding.problem)} for finding in findings
        ],
        "files": len(files),
        "errors": counts["error"],
        "warnings": counts["warning"],
    }


def _annotation(finding: Finding) -> str:
    from plait.views.github import annotation

    problem = finding.problem
    properties = {"title": f"plait {finding.code}"}
    match problem.where:
        case Span() as span:
            line, column = span.position
            properties |= {"file": span.place.source.name, "line": str(line), "col": str(column)}
        case str(name):
            properties |= {"file": name}
    message = problem.what + (f"\nfix: {problem.fix}" if problem.fix else "")
    return annotation(finding.severity, message, properties)
