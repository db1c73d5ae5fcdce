"""A finding of `plait check`, and the codes of all findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait import schema as format
from plait.core.errors import InputError, Problem
from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass
from plait.template.shell.lexer import REFUSALS

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    problem: Problem
    severity: Severity = "error"

    @property
    def code(self) -> str:
        return self.problem.code or "problem"


RULES: Final[dict[str, str]] = {
    "unknown-name": "A template uses a name that does not exist where it stands.",
    "unknown-input": "A template uses an input that the document does not declare.",
    "unknown-parameter": "A configuration uses a parameter that looks like a misspelt one.",
    "literal-placeholder": "A hole stands where no value is put in, and is kept as text.",
    "malformed-placeholder": "Something looks like a hole and is none; a lenient run keeps it as text.",
    "unknown-format": "A format after ':' does not exist.",
    "unknown-filter": "A filter after '|' does not exist.",
    "filter-arguments": "A filter has the wrong number of arguments.",
    "raw-value": "With ':raw' a value becomes code; every use of it should be looked at.",
    "deprecated-alias": "A name of an earlier version, which will go away.",
    "bare-name": "In arithmetic a bare name is a variable of the shell, not the value of that name.",
    "unknown-field": "A field that this kind of map does not have.",
    "wrong-type": "A field holds something else than it can.",
    "missing-field": "A map lacks a field that it needs.",
    "several-commands": "A step does two things; it has exactly one command.",
    "duplicate-field": "Two spellings of one field stand in one map.",
    "refused-field": "A field of other systems that cannot be meant here.",
    "no-effect": "A field that changes nothing here.",
    "deprecated-field": "A field of an earlier version, which will go away.",
    "wrong-phases": "A flow has steps, or phases, but not both.",
    "misplaced-field": "A field stands in a step to which it means nothing.",
    "duplicate-id": "Two steps of one list have the same id.",
    "parameter": "A parameter contradicts itself, or what is given for it does not fit.",
    "hook-verb": "A hook decides something that cannot be decided at its event.",
    "hook-layer": "A hook wants to stand before the hooks of its own layer.",
    "shadowed-name": "A flow gives a name of its own to something that hides a built-in one.",
    "unreachable": "A step that never runs.",
    "condition": "A condition cannot be read, or compares what cannot be compared.",
    "condition-limit": "A condition is too long or too deep.",
    "url-origin": "Where a request goes is not written, or a value says it that nobody has allowed to.",
    "bad-input": "The input of a map cannot be read.",
    "bad-json-path": "A json_path is not JSONPath.",
    "bad-selection": "A field that chooses items cannot be read.",
    "bad-sort": "An order cannot be read.",
    "extends": "A file cannot be extended.",
    "imports": "The blocks of a file cannot be imported.",
    "cycle": "Files or blocks lead back to themselves.",
    "no-tasks": "An ensemble or a loop has no task.",
    "unknown-task": "A task names one that does not exist.",
    "unknown-agent": "A task names an agent that does not exist.",
    "unknown-role": "A manager names a worker that does not exist.",
    "duplicate-role": "Two workers of a manager have the same role.",
    "wrong-order": "A task needs one that comes after it.",
    "unknown-tool": "A step, a node or a hook names a tool that does not exist.",
    "schema-violation": "A call gives a tool parameters that its schema refuses.",
    "bad-header": "A tool says something about itself that cannot be meant.",
    "no-executor": "A tool does not say what runs it.",
    "missing-executor": "A tool names a runtime that does not exist.",
    "bad-schema": "The schema of a tool is not JSON Schema.",
    "bad-config": "The config of a tool says something that cannot be meant.",
    "shell-in-command": "The command of a tool has an operator of the shell, and no shell reads it.",
    "word-as-command": "A word that is meant as a decision would be run as a command.",
    "yaml-text": "YAML text with values in it, which could change what it means.",
    "json-text": "Text that is to be JSON and is not, whatever its values are.",
    "no-provider": "Something asks a model, and no provider is configured.",
    "unknown-provider": "Something asks a provider that does not exist.",
    "unknown-block": "A step uses a block that does not exist.",
    "missing-with": "A step does not give a block what it needs.",
    "unknown-with": "A step gives a block something that it does not know.",
    "too-deep": "Something is nested too deeply.",
    "too-many-steps": "A flow has too many steps when its blocks are written out.",
    "too-many-files": "A flow is made of too many files.",
    "file-outside": "A file is outside the project.",
    "no-prompt": "A directive has a head and nothing to say.",
    "bad-head": "The head of a directive cannot be read.",
    "bad-xml": "The head of a directive is not the XML that is known.",
    "no-flow": "The file is not of the kind that it was said to be.",
    "no-profile": "The file has none of the shapes that Plait knows, so no template was checked.",
    "syntax": "The file is not YAML.",
    "duplicate-key": "A key stands twice in one map.",
    "contradiction": "Two fields cannot both be meant.",
    "unknown-node": "An edge of a graph leads to no node.",
    "no-file": "The file does not exist or cannot be read.",
    **{code: f"Shell text: {what}." for code, (what, _) in REFUSALS.items()},
}


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """By place; a block that is used twice has each problem once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.problem.place)


def from_format(problem: Problem) -> Finding:
    """A problem that the schema found: an error, or a warning that a run can ignore."""
    return Finding(problem, "warning" if problem.code in format.WARNED else "error")


def require_no_errors(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings; InputError with all errors among them."""
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    return findings


def warnings_in(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")
