"""The names that a flow uses, so that a run keeps and watches only those."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from plait.core.documents import nodes
from plait.lang.analysis.declarations import names_given
from plait.lang.analysis.references import condition_names, paths_in
from plait.lang.analysis.scopes import TemplateField
from plait.lang.workflow.compose import ComposedWorkflow
from plait.program.phases import MAP_LISTS
from plait.template.nodes import Path


def used_map_lists(fields: Sequence[TemplateField], document: nodes.Node) -> Iterator[str]:
    """The lists of `map` that reduce, merge or a block uses."""
    for one in fields:
        if one.phase in ("reduce", "merge", "block"):
            for path in _field_paths(one):
                if path.root == "map":
                    yield from _lists_at(path.keys)
    if any(_conditions_on_map(document)):
        yield from MAP_LISTS


def _lists_at(keys: tuple[str | int, ...]) -> Iterator[str]:
    if not keys:
        yield from MAP_LISTS
    elif keys[0] in MAP_LISTS:
        yield str(keys[0])


def _conditions_on_map(node: nodes.Node) -> Iterator[bool]:
    """Yield whether each test of a `when` that is data uses the map or one of its lists."""
    match node:
        case nodes.Mapping(entries):
            path = node.get("path")
            if isinstance(path, nodes.Scalar):
                yield (
                    re.match(r"map(\.(results|results_json|outputs)\b|$)", str(path.value))
                    is not None
                )
            for _, value in entries:
                yield from _conditions_on_map(value)
        case nodes.Sequence(items):
            for item in items:
                yield from _conditions_on_map(item)


def tracked_names(fields: Sequence[TemplateField]) -> Iterator[str]:
    """Yield those of `step`, `workflow` and `git` whose changes or state the flow uses."""
    for one in fields:
        for path in _field_paths(one):
            if path.root == "git" or (path.root in ("step", "workflow") and _may_be_change(path)):
                yield path.root
            if path.root == "merge":  # it contains the changes of the run
                yield from ("workflow", "git")


def _may_be_change(path: Path) -> bool:
    from plait.program.git_changes import CHANGES

    return not path.keys or path.keys[0] in CHANGES


def ids_asked_for(fields: Sequence[TemplateField], flow: ComposedWorkflow) -> frozenset[str]:
    """First names of paths that neither the head nor a capture declares."""
    used = {path.root for one in fields for path in _field_paths(one)}
    used.update(condition_names(flow.document))
    return frozenset(used - names_given(flow.document, flow.blocks))


def _field_paths(field: TemplateField) -> Iterator[Path]:
    return paths_in(str(field.scalar.value))
