"""What a flow mentions in its templates, so that a run keeps and watches only what is asked for."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from plait.core.documents import nodes
from plait.core.errors import PlaitError
from plait.lang.analysis.declarations import names_given
from plait.lang.analysis.names import OF_ITEM, SHORT_OF_ITEM, strings
from plait.lang.analysis.scopes import TemplateField
from plait.lang.workflow.compose import ComposedWorkflow
from plait.program.changes import CHANGES
from plait.program.workflow import MAP_LISTS
from plait.template.nodes import ContextPlaceholder, Extract, Path, placeholders
from plait.template.template import compile_template


def used_map_lists(fields: Sequence[TemplateField], document: nodes.Node) -> Iterator[str]:
    """The lists of `map` that anything behind the map reads."""
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
    """Tests of a `when` that is data and looks at the map as a whole, or at one of its lists."""
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
    """Those of `step`, `workflow` and `git` whose changes or state the flow asks for."""
    for one in fields:
        for path in _field_paths(one):
            if path.root == "git" or (
                path.root in ("step", "workflow") and _asks_for_changes(path)
            ):
                yield path.root
            if path.root == "merge":  # tells what the run has changed, and where
                yield from ("workflow", "git")


def ids_asked_for(fields: Sequence[TemplateField], flow: ComposedWorkflow) -> frozenset[str]:
    """First names that something asks for, and that neither the head nor a capture gives."""
    asked = {path.root for one in fields for path in _field_paths(one)}
    asked.update(_condition_names(flow.document))
    return frozenset(asked - names_given(flow.document, flow.blocks))


def _asks_for_changes(path: Path) -> bool:
    return not path.keys or path.keys[0] in CHANGES


def names_in(node: nodes.Node) -> Iterator[str]:
    """The first names of all that a node asks for, in its templates and in conditions that are
    data.
    """
    for scalar in strings(node):
        yield from (path.root for path in _paths_in(str(scalar.value)))
    yield from _condition_names(node)


def mentions_item(node: nodes.Node, declared: Container[str]) -> bool:
    """Does it ask for what only the steps of a map have?  Then it is not meant for what finds the
    items.
    """
    asked = set(names_in(node))
    return not asked.isdisjoint(OF_ITEM) or any(
        name in asked and name not in declared for name in SHORT_OF_ITEM
    )


def _condition_names(node: nodes.Node, *, within: bool = False) -> Iterator[str]:
    match node:
        case nodes.Mapping(entries):
            for key, value in entries:
                if within and key.value == "path" and isinstance(value, nodes.Scalar):
                    yield re.split(r"[.\[]", str(value.value), maxsplit=1)[0]
                yield from _condition_names(value, within=within or key.value == "when")
        case nodes.Sequence(items):
            for item in items:
                yield from _condition_names(item, within=within)


def _field_paths(field: TemplateField) -> Iterator[Path]:
    return _paths_in(str(field.scalar.value))


def _paths_in(template: str) -> Iterator[Path]:
    try:
        parts = compile_template(template).leaf.program.parts
    except PlaitError:
        return
    for hole in placeholders(parts):
        for alternative in hole.alternatives if isinstance(hole, ContextPlaceholder) else ():
            match alternative.origin:
                case Path() as path:
                    yield path
                case Extract(origin=path):
                    yield path
