"""The findings of `plait check` as diagnostics: the same checks on the text that the editor shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from plait.core.documents import Node
from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.source import Span
from plait.core.values import Json
from plait.lang.check import check_file
from plait.lang.findings import Finding
from plait.lsp.documents import OpenText, file_uri
from plait.lsp.positions import Lines

SEVERITY: Final = {"error": 1, "warning": 2, "note": 3}
NOT_SHOWN: Final = ("no-profile", "no-flow")
"""An editor opens YAML files of all kinds."""


def diagnostics(text: OpenText) -> list[Json]:
    if not text.is_ours:
        return []
    found = check_file(text.path, around=_around)
    return [_diagnostic(text, finding) for finding in found if finding.code not in NOT_SHOWN]


def _around(path: str, kind: str | None, document: Node | None) -> Iterable[Finding]:
    from plait.app.file_check import findings_around

    if kind == "tool" and not _is_saved(path):
        return ()  # a tool is read from its file, so it is checked again when it is saved
    return findings_around(path, kind, document)


def _is_saved(path: str) -> bool:
    from plait.core.documents.files import unsaved_text

    shown = unsaved_text(path)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return shown is None or file.read() == shown
    except (OSError, ValueError):
        return False


def _diagnostic(text: OpenText, finding: Finding) -> Json:
    problem = finding.problem
    place = problem.where.place if isinstance(problem.where, Span) else None
    is_here = place is not None and _is_same(place.source.name, text.path)
    message = problem.what if is_here or not problem.where else _place_message(problem, text)
    made: dict[str, Json] = {
        "range": _range(text, place) if place is not None and is_here else text.lines.range(0, 0),
        "severity": SEVERITY[finding.severity],
        "code": finding.code,
        "source": "plait",
        "message": f"{message}\nfix: {problem.fix}" if problem.fix else message,
    }
    related: list[Json] = []
    for one in (*([place] if place is not None and not is_here else ()), *problem.also):
        spot = one.place
        lines = Lines(spot.source.text)
        location: Json = {
            "uri": file_uri(spot.source.name),
            "range": lines.range(spot.start, spot.end),
        }
        related.append({"location": location, "message": "here"})
    return made | ({"relatedInformation": related} if related else {})


def _place_message(problem: Problem, text: OpenText) -> str:
    if isinstance(problem.where, str) and _is_same(problem.where, text.path):
        return problem.what
    return f"{problem.where}: {problem.what}"


def _is_same(name: str, path: str) -> bool:
    return os.path.realpath(name) == os.path.realpath(path)


def _range(text: OpenText, place: Span) -> Mapping[str, Json]:
    # A byte order mark is no part of the text that was read.
    ahead = len(text.text) - len(place.source.text) if text.text.startswith("\ufeff") else 0
    end = place.end if place.end > place.start else place.start + 1
    return text.lines.range(place.start + ahead, end + ahead)
