"""A finding of `plait check`, and the codes of all findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait import schema
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
    "unknown-name": "A template uses a variable that does not exist at its place.",
    "unknown-input": "A template uses an input that the document does not declare.",
    "unknown-parameter": "A configuration uses a parameter that looks like a misspelt one.",
    "literal-placeholder": "A placeholder where none is filled; it stays as text.",
    "malformed-placeholder": "Something looks like a placeholder but is not one; it may stay as text.",
    "unknown-format": "A format after ':' does not exist.",
    "unknown-filter": "A filter after '|' does not exist.",
    "filter-arguments": "A filter has the wrong number of arguments.",
    "raw-value": "With ':raw' a value becomes code; review every use of it.",
    "deprecated-alias": "A deprecated name.",
    "bare-name": "In arithmetic a bare name is a variable of the shell, not the value of that name.",
    "unknown-field": "A field that this kind of map does not have.",
    "wrong-type": "A field has a value of the wrong type.",
    "missing-field": "A map lacks a field that it needs.",
    "several-commands": "A step has more than one command.",
    "duplicate-field": "A map has one field in two spellings.",
    "refused-field": "A field of other systems that does not exist here.",
    "no-effect": "A field that has no effect here.",
    "deprecated-field": "A deprecated field.",
    "wrong-phases": "A flow has steps, or phases, but not both.",
    "misplaced-field": "A field is at a place where it has no meaning.",
    "duplicate-id": "Two steps of one list have the same id.",
    "parameter": "A parameter contradicts itself, or its input does not fit.",
    "hook-verb": "A hook makes a decision that its event does not allow.",
    "hook-layer": "A hook has a lower layer than its space allows.",
    "shadowed-name": "A name of a flow hides a built-in name.",
    "unreachable": "A step that never runs.",
    "condition": "A condition cannot be parsed, or compares values of different types.",
    "condition-limit": "A condition is too long or too deep.",
    "url-origin": "The host of a request comes from a value, without allow_hosts.",
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
    "bad-header": "The header of a tool is wrong.",
    "no-executor": "A tool names no executor.",
    "missing-executor": "A tool names a runtime that does not exist.",
    "bad-schema": "The schema of a tool is not JSON Schema.",
    "bad-config": "The config of a tool is wrong.",
    "shell-in-command": "The command of a tool has a shell operator, but no shell runs it.",
    "word-as-command": "A word that looks like a decision would run as a command.",
    "yaml-text": "YAML text with values in it, which could change its structure.",
    "json-text": "Text that should be JSON is not, whatever its values are.",
    "no-provider": "A model is needed, but no provider is configured.",
    "unknown-provider": "A provider is named that does not exist.",
    "unknown-block": "A step uses a block that does not exist.",
    "missing-with": "A step does not give a block what it needs.",
    "unknown-with": "A step gives a block a name that it does not have.",
    "too-deep": "Something is nested too deeply.",
    "too-many-steps": "A flow has too many steps when its blocks are expanded.",
    "too-many-files": "A flow has too many files.",
    "file-outside": "A file is outside the project.",
    "no-prompt": "A directive has a head but no prompt.",
    "bad-head": "The head of a directive cannot be read.",
    "bad-xml": "The XML head of a directive is wrong.",
    "no-flow": "The file is not a flow, or not of the given kind.",
    "no-profile": "The file has none of the shapes that Plait knows, so no template was checked.",
    "syntax": "The file is not YAML.",
    "duplicate-key": "A key is twice in one map.",
    "contradiction": "Two fields contradict each other.",
    "unknown-node": "An edge leads to a node that does not exist.",
    "no-file": "The file does not exist or cannot be read.",
    **{code: f"Shell text: {what}." for code, (what, _) in REFUSALS.items()},
}


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by place; a block that is used twice has each problem once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.problem.place)


def from_format(problem: Problem) -> Finding:
    """Make a finding of a schema problem: an error, or a warning that a run can ignore."""
    return Finding(problem, "warning" if problem.code in schema.WARNED else "error")


def require_no_errors(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return the findings; raise InputError with all errors among them."""
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    return findings


def warnings_in(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")
