"""Recognise a file of another system, so that the user learns what the file is.

This is used only for a file that is not a flow: a flow may be called `Makefile`.
"""

from __future__ import annotations

import os
import re

from plait.core.documents import nodes
from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.records import dataclass

YAML: Final = (".yaml", ".yml")
NEW_FLOW: Final = "plait new workflow NAME writes a flow that runs"


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A kind of file, recognised by its name, the beginning of a line, or its outermost keys."""

    what: str
    instead: str
    """What to do: the beginning of a sentence."""
    name: str = "(?!)"
    line: str = "(?!)"
    keys: tuple[str, ...] = ()

    def fits(self, path: str, text: str, keys: set[str]) -> bool:
        return bool(
            re.fullmatch(self.name, os.path.basename(path))
            # In a YAML file, such a line belongs to a flow that is indented with tabs.
            or (not path.endswith(YAML) and re.search(self.line, text, re.MULTILINE))
            or (self.keys and keys.issuperset(self.keys))
        )


FOREIGN_FILES: Final = (
    ForeignFile(
        "a GitHub Actions workflow",
        "a flow has steps: with shell: instead of jobs: with run:; "
        "the guide 'Use Plait in CI' shows a job that runs a flow",
        keys=("on", "jobs"),
    ),
    ForeignFile(
        "a GitLab CI file",
        "a flow has steps: with shell: instead of jobs with script:",
        name=r"\.gitlab-ci\.ya?ml",
    ),
    ForeignFile(
        "a Makefile",
        "the guide 'make or just' shows a Makefile and its flow",
        name=r"(GNU)?[Mm]akefile|.*\.mk",
        line=r"^[^\s:#=-][^\s:#=]*:[^=\n]*\n\t",
    ),
    ForeignFile(
        "a justfile",
        "the guide 'make or just' shows a justfile and its flow",
        name=r"\.?[Jj]ustfile|.*\.just",
    ),
    ForeignFile(
        "a Snakefile",
        "the guide 'Snakemake' shows a rule and its flow",
        name=r"Snakefile|.*\.smk",
        line=r"^rule [A-Za-z_]\w*:\s*$",
    ),
    ForeignFile("a Taskfile", "a flow has steps: with shell:", name=r"Taskfile\.ya?ml"),
    ForeignFile("a Dockerfile", "a flow has steps: with shell:", name=r"(Docker|Container)file"),
    ForeignFile("a Compose file", "a flow has steps: with shell:", keys=("services",)),
    ForeignFile("a Kubernetes file", "a flow has steps: with shell:", keys=("apiVersion", "kind")),
)


def foreign_problem(path: str, text: str, document: nodes.Node | None) -> Problem | None:
    """The problem that says what a file is if it is not a flow; None if that is unknown.
    `document`: None if it has none.
    """
    if not text.strip():
        return Problem("this file is empty, not a flow", path, NEW_FLOW, code="no-flow")
    if path.endswith(YAML) and not any(map(_has_data, text.splitlines())):
        what = "this file is empty but for comments, not a flow"
        return Problem(what, path, NEW_FLOW, code="no-flow")
    keys: set[str] = set()
    if isinstance(document, nodes.Mapping):
        keys = {str(key.value) for key, _ in document.entries}
    found = next((one for one in FOREIGN_FILES if one.fits(path, text, keys)), None)
    if found is None:
        return None
    what = f"this is {found.what}, not a flow of Plait"
    return Problem(what, path, f"{found.instead}; {NEW_FLOW}", code="no-flow")


def _has_data(line: str) -> bool:
    return not line.lstrip().startswith("#") and line.strip() not in ("", "---", "...")
