"""Several documents become one; every leaf still knows the layer it came from."""

from __future__ import annotations

from collections import abc

from plait.core.documents.nodes import Mapping, Node, Sequence, Step, joined
from plait.core.errors import InternalError
from plait.core.source import Span


def merge(layers: abc.Sequence[Node]) -> Node:
    """One document out of several; later layers win, maps are merged, lists and scalars replaced.

    Nothing is copied but maps: each leaf keeps the span of the layer it came from.
    """
    if not layers:
        raise InternalError("there is no layer to merge")
    merged = layers[0]
    for layer in layers[1:]:
        merged = _laid_over(merged, layer)
    return merged


def _laid_over(below: Node, above: Node) -> Node:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    table = {key.value: (key, value) for key, value in below.entries}
    for key, value in above.entries:
        known = table.get(key.value)
        table[key.value] = (key, _laid_over(known[1], value) if known else value)
    return Mapping(tuple(table.values()), above.span)


def origins(node: Node) -> dict[str, Span]:
    """Where each leaf stands, by its path; `node.at(path)` takes the same paths."""
    return dict(_leaves(node, ""))


def _leaves(node: Node, path: str) -> abc.Iterator[tuple[str, Span]]:
    children: abc.Iterable[tuple[Step, Node]] = ()
    match node:
        case Mapping(entries):
            children = [(str(key.value), value) for key, value in entries]
        case Sequence(items):
            children = list(enumerate(items))
    if not children:
        yield path, node.span
    for step, child in children:
        yield from _leaves(child, joined(path, step))
