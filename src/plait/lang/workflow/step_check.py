"""What is wrong with the steps of a workflow that their templates do not tell: ids, conditions, paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from plait.core import documents
from plait.core.errors import PlaitError, Problem
from plait.core.hints import Final
from plait.core.source import Span
from plait.lang.analysis.names import HANDLER_NAMES, NAMES
from plait.lang.findings import Finding
from plait.scope import Scope


def in_list(steps: Sequence[documents.Node]) -> Iterator[Finding]:
    maps = [step for step in steps if isinstance(step, documents.Mapping)]
    yield from _same_ids(maps)
    for at, step in enumerate(maps):
        yield from _shadows(step)
        yield from _condition(step)
        yield from _expected_schema(step)
        yield from _never_retried(step)
        yield from _never_written(step)
        if _always_fails(step) and at + 1 < len(maps):
            what, fix = "the step before this one always fails, so this one never runs", "remove one of them"
            span = maps[at + 1].entries[0][0].span if maps[at + 1].entries else maps[at + 1].span
            yield Finding(Problem(what, span, fix, code="unreachable"), "warning")


def _same_ids(steps: Sequence[documents.Mapping]) -> Iterator[Finding]:
    seen: set[str] = set()
    for step in steps:
        if (name := _word(step, "id")) is None:
            continue
        if name in seen:
            what, fix = f"two steps of this list have the id '{name}'", "give one of them another id"
            where = step.get("id")
            yield Finding(Problem(what, where.span if where else None, fix, code="duplicate-id"))
        seen.add(name)


WORKFLOW_ROOTS: Final = frozenset(
    name.name for name in (*NAMES, *HANDLER_NAMES.values()) if not name.phases or "flow" in name.phases
) | {"item", "item_index", "item_total", "item_id", "map", "merge"}


def _shadows(step: documents.Mapping) -> Iterator[Finding]:
    for key in ("capture_output", "capture"):
        name, node = _word(step, key), step.get(key)
        if node is not None and name in WORKFLOW_ROOTS:
            what = f"this capture hides the built-in name '{name}' from all later steps"
            yield Finding(Problem(what, node.span, "choose another name", code="shadowed-name"), "warning")


def _condition(step: documents.Mapping) -> Iterator[Finding]:
    """A `when` that is a map, or that never holds; one that is text is checked with its names."""
    node = step.get("when")
    if isinstance(node, documents.Mapping):
        from plait.template.conditions import check

        for problem in check(node.data(), locate=lambda place: _span_at(node, place)):
            yield Finding(problem)
    elif isinstance(node, documents.Scalar) and _never_holds(node):
        what, fix = "this step never runs", "remove it, or its when"
        yield Finding(Problem(what, node.span, fix, code="unreachable"), "warning")


def _never_holds(when: documents.Scalar) -> bool:
    """Is it a condition that no value can change, and that does not hold?"""
    if (said := _literal(when)) is None:
        return when.value is False
    from plait.scope.expressions import read_when

    try:
        return not read_when(said, source=when.source()).holds(Scope())
    except PlaitError:
        return False  # it is reported as the condition that it is


def _expected_schema(step: documents.Mapping) -> Iterator[Finding]:
    """A schema by which no result could be read."""
    check = step.get("validate")
    node = check.get("expected_schema") if isinstance(check, documents.Mapping) else None
    if not isinstance(node, documents.Mapping):
        return
    from plait.core.result_schema import is_schema

    if not is_schema(node.data()):
        what, fix = "this is not JSON Schema", "every keyword has its form: type: object, required: [a]"
        where = check.key_span("expected_schema") if isinstance(check, documents.Mapping) else node.span
        yield Finding(Problem(what, where, fix, code="wrong-type"))


def _never_retried(step: documents.Mapping) -> Iterator[Finding]:
    """What a check finds comes after the action, and `retry` is of the action."""
    retry = step.get("retry")
    node = retry.get("retry_on") if isinstance(retry, documents.Mapping) else None
    if node is None or step.get("validate") is None or any(step.get(key) for key in COMPOSED):
        return
    for word in node.items if isinstance(node, documents.Sequence) else (node,):
        if isinstance(word, documents.Scalar) and word.value == "incomplete":
            what = "retry does the action again, and that is never incomplete: validate comes after it"
            fix = "let on_incomplete of validate complete it: max_attempts says how often"
            yield Finding(Problem(what, word.span, fix, code="no-effect"), "warning")


def _never_written(step: documents.Mapping) -> Iterator[Finding]:
    """A content that no value can make a document of its format."""
    written = step.get("write_file")
    content = written.get("content") if isinstance(written, documents.Mapping) else None
    format = _word(written, "format") if isinstance(written, documents.Mapping) else None
    if not isinstance(content, documents.Scalar) or format not in ("json", "yaml"):
        return
    from plait.program.actions.write_file import content_problem
    from plait.schema import template_of

    try:
        problem = content_problem(template_of(content, "workflow"), "json" if format == "json" else "yaml")
    except PlaitError:
        return  # it is reported as the template that it is
    if problem is not None:
        yield Finding(problem)


COMPOSED: Final = ("foreach", "use", "tool")
"""Steps whose action has steps inside, which may have a check of their own."""


def outside(step: documents.Node, project: str | None) -> Iterator[Finding]:
    """Paths that are written out and leave the project; those with holes are judged when they are filled."""
    if not isinstance(step, documents.Mapping):
        return
    written = step.get("write_file")
    path = written.get("path") if isinstance(written, documents.Mapping) else None
    place = step.get("working_dir") or step.get("cwd")
    for node in (place, path, step.get("output_file")):
        if node is None or (said := _literal(node)) is None:
            continue
        if _leaves(said, None if node is place else place, project):
            what, fix = "this path leads out of the project", "name a place below the project"
            yield Finding(Problem(what, node.span, fix, code="file-outside"))


def _literal(node: documents.Node) -> str | None:
    said = node.value if isinstance(node, documents.Scalar) else None
    return said if isinstance(said, str) and "$" not in said else None


def _leaves(path: str, place: documents.Node | None, project: str | None) -> bool:
    """A relative path is seen from the project, or from the step's own folder in it, if that is known."""
    if os.path.isabs(path):
        return project is not None and not _is_below(path, project)
    if place is None:
        return os.path.normpath(path).startswith(os.pardir + os.sep) or os.path.normpath(path) == os.pardir
    start = _literal(place)
    return start is not None and _leaves(os.path.join(start, path), None, project)


def _is_below(path: str, project: str) -> bool:
    tops = {os.path.normpath(os.path.abspath(project)), os.path.realpath(project)}
    return any(os.path.commonpath([os.path.normpath(path), top]) == top for top in tops)


def _span_at(node: documents.Node, place: tuple[str | int, ...]) -> Span:
    found = node.at(place)
    return (found or node).span


def _always_fails(step: documents.Mapping) -> bool:
    """Is it a command that can only fail, and nothing that makes up for it?"""
    forgiving = ("on_failure", "on_exit_code", "continue_on_error", "allow_failure", "when", "metadata")
    if any(step.get(key) is not None for key in forgiving):
        return False
    words = (_word(step, "shell") or "").split()
    return words == ["false"] or (len(words) == 2 and words[0] == "exit" and words[1].strip("0").isdecimal())


def _word(step: documents.Mapping, key: str) -> str | None:
    node = step.get(key)
    return node.value if isinstance(node, documents.Scalar) and isinstance(node.value, str) else None
