"""The tools that a file names: in its steps, its nodes and its hooks.

Only ids that are written out; one that a value gives is known when the step runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.documents import Mapping, Node, Scalar, Sequence
from plait.flows.fields import read_fields
from plait.flows.format import Said
from plait.flows.graph_check import NOTHING, body_of, tool_of
from plait.flows.names import profile_of
from plait.steps.graph_calls import whole_id
from plait.steps.permissions import DIRECTIVE


def named_tools(document: Node) -> Iterator[tuple[str, Scalar]]:
    """Each id, and where it stands."""
    for node, is_directive in _places(document):
        if isinstance(node, Scalar) and isinstance(node.value, str):
            named = whole_id(node.value, is_directive)
            if node.value and not _is_for_later(named):
                yield named, node


def _places(document: Node) -> Iterator[tuple[Node | None, bool]]:
    """Where an id may stand, and whether only that of a directive may."""
    if not isinstance(document, Mapping | Sequence):
        return
    match profile_of(document):
        case "workflow":
            for steps in read_fields(document, "workflow").lists:
                for step in steps:
                    yield from ((node, False) for node in _of_step(step))
        case "graph" if isinstance(document, Mapping):
            yield from _of_graph(document)
    hooks = document.get("hooks") if isinstance(document, Mapping) else document
    for hook in hooks.items if isinstance(hooks, Sequence) else ():
        if isinstance(hook, Mapping) and hook.get("event") is not None:
            yield from ((node, False) for node in _of_hook(hook))


def _of_graph(document: Mapping) -> Iterator[tuple[Node | None, bool]]:
    for _, node in body_of(document).entries("nodes"):
        if isinstance(node, Mapping):
            named = tool_of(Said("node", node, NOTHING))
            yield (None, False) if named is None else (named.node, named.is_directive)


def _of_step(step: Node) -> Iterator[Node | None]:
    if not isinstance(step, Mapping):
        return
    yield from (step.get(key) for key in ("tool", "call"))
    for key in ("agent", "claude"):
        inner = step.get(key)
        yield inner.get("tool") if isinstance(inner, Mapping) else None


def _of_hook(hook: Mapping) -> Iterator[Node | None]:
    several = hook.get("actions")
    for action in (hook.get("action"), *(several.items if isinstance(several, Sequence) else ())):
        yield action.get("tool") if isinstance(action, Mapping) else None


def _is_for_later(named: str) -> bool:
    """Has it holes, or is it reached in another way than by a file?"""
    return any(char in named for char in "${}") or (":" in named and not named.startswith(DIRECTIVE))
