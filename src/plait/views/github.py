"""Annotations of GitHub Actions: `::error file=…,line=…::message`, each on one line.

GitHub reads such lines as commands, wherever they come from.  Nothing in a message or a property
can end its line, or the property, so no text of a file or of a run becomes a command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.hints import TYPE_CHECKING, Final
from plait.views.format import clean_block

if TYPE_CHECKING:
    from plait.views.report import Report

LEVELS: Final = {"error": "error", "warning": "warning", "note": "notice"}
MOST_ANNOTATIONS: Final = 10
"""GitHub shows no more of one step."""


def annotation(level: str, message: str, properties: Mapping[str, str]) -> str:
    """`level`: error, warning or note."""
    listed = ",".join(
        f"{key}={_escape(value, is_property=True)}" for key, value in properties.items()
    )
    return f"::{LEVELS[level]} {listed}::{_escape(message)}"


def _escape(text: str, *, is_property: bool = False) -> str:
    for char in "%\r\n" + (":," if is_property else ""):
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def run_annotations(report: Report) -> Iterator[str]:
    """An error for each step and item of a run that failed, and for the run; its warnings."""
    progress = report.progress
    place = {"file": _relative_path(progress.file)}
    for note in progress.notes:
        if note.warning:
            yield annotation("warning", _clean(note.message), {"title": "plait", **place})
    failed = list(progress.failures.last)[-MOST_ANNOTATIONS:]
    for one in failed:
        message = "\n".join([f"{one.title}: {one.cause}", *one.lines, f"at {one.path}"])
        yield annotation(
            "error", _clean(message), {"title": _clean(f"{progress.flow}: {one.title}"), **place}
        )
    end = {"title": _clean(progress.flow), **place}
    if more := progress.failures.count - len(failed):
        words = f"{more} more failed: plait show {report.run} --json lists them"
        yield annotation("note", words, end)
    failure = progress.failure
    if failure is None and report.status == "interrupted":
        yield annotation("error", "the process of this run died", end)
    elif failure is not None and not failed:
        yield annotation("error", _clean(failure.message), end)


def _clean(text: str) -> str:
    return clean_block(text)


def _relative_path(path: str) -> str:
    """Relative to this folder: GitHub knows a file by its path in the repository."""
    below = os.path.relpath(path)
    return path if below.startswith("..") else below
