"""Findings as SARIF 2.1.0, which code hosts read."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from plait import __version__
from plait.core.hints import Final
from plait.core.source import Span
from plait.core.values import Json
from plait.lang.findings import RULES, Finding

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_log(findings: Sequence[Finding]) -> Json:
    codes = list(dict.fromkeys(finding.code for finding in findings))
    driver = {"name": "plait", "version": __version__, "rules": [_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, codes.index(finding.code)) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> Json:
    what = RULES.get(code, "Plait refuses this.")
    return {
        "id": code,
        "shortDescription": {"text": what},
        "help": {"text": f"{what} The message of each result says what to do."},
    }


def _result(finding: Finding, index: int) -> Json:
    problem = finding.problem
    result: dict[str, Json] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": problem.what + (f"\nfix: {problem.fix}" if problem.fix else "")},
    }
    if problem.where is not None:
        result["locations"] = [{"physicalLocation": _location(problem.where)}]
    if problem.also:
        result["relatedLocations"] = [
            {"physicalLocation": _location(span)} for span in problem.also
        ]
    return result


def _location(where: Span | str) -> Json:
    if isinstance(where, str):
        return {"artifactLocation": {"uri": _uri(where)}}
    place = where.place
    line, column = place.position
    end_line, end_column = place.source.position(place.end)
    region = {
        "startLine": line,
        "startColumn": column,
        "endLine": end_line,
        "endColumn": end_column,
    }
    return {"artifactLocation": {"uri": _uri(place.source.name)}, "region": region}


def _uri(name: str) -> str:
    path = quote(name.removeprefix("./"), errors="surrogateescape")
    return f"file://{path}" if name.startswith("/") else path
