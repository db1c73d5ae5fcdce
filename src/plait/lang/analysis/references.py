"""Find the names that a node of a document uses."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from plait.core.documents import nodes
from plait.core.errors import PlaitError
from plait.lang.analysis.names import OF_ITEM, SHORT_OF_ITEM, strings
from plait.template.nodes import ContextPlaceholder, Extract, Path, placeholders
from plait.template.template import compile_template


def names_in(node: nodes.Node) -> Iterator[str]:
    """The first name of every path in a node, in its templates and in conditions that are data."""
    for scalar in strings(node):
        yield from (path.root for path in paths_in(str(scalar.value)))
    yield from condition_names(node)


def mentions_item(node: nodes.Node, declared: Container[str]) -> bool:
    """Does it use a name that only the steps of a map have? The input of a map does not have
    these.
    """
    used = set(names_in(node))
    return not used.isdisjoint(OF_ITEM) or any(
        name in used and name not in declared for name in SHORT_OF_ITEM
    )


def condition_names(node: nodes.Node, *, within: bool = False) -> Iterator[str]:
    """The first name of every path in conditions that are data."""
    match node:
        case nodes.Mapping(entries):
            for key, value in entries:
                if within and key.value == "path" and isinstance(value, nodes.Scalar):
                    yield re.split(r"[.\[]", str(value.value), maxsplit=1)[0]
                yield from condition_names(value, within=within or key.value == "when")
        case nodes.Sequence(items):
            for item in items:
                yield from condition_names(item, within=within)


def paths_in(template: str) -> Iterator[Path]:
    """Every path that a template reads; none if it cannot be parsed."""
    try:
        parts = compile_template(template).leaf.compiled.parts
    except PlaitError:
        return
    for placeholder in placeholders(parts):
        for alternative in (
            placeholder.alternatives if isinstance(placeholder, ContextPlaceholder) else ()
        ):
            match alternative.origin:
                case Path() as path:
                    yield path
                case Extract(origin=path):
                    yield path
