"""Names that a file gives to others: tools, blocks, nodes, tasks, agents, providers, files.

One table says which field names what; completion, hover and definition read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from plait.core.documents import Mapping, Sequence
from plait.core.documents.nodes import map_entries, text_field, text_value
from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.projects import project_of_file
from plait.core.source import Span
from plait.lsp.documents import OpenText, Spot, maps_in

REFERENCES: Final = {
    # field: what its value names
    "tool": "tool", "call": "tool", "executor_id": "tool", "tools": "tool",
    "use": "block",
    "start": "node", "next": "node", "to": "node",
    "agent": "agent", "context": "task", "task": "task",
    "provider": "provider",
    "workflow": "file", "extends": "file", "imports": "file",
}  # fmt: skip
CAPTURES: Final = ("capture_output", "capture", "capture_outputs", "id", "as")
DECLARATIONS: Final = ("vars", "parameters", "env", "secrets", "inputs", "state", "with")


def referenced(spot: Spot) -> str | None:
    """What the value at a spot names."""
    return REFERENCES.get(spot.keys[-1]) if spot.keys and spot.form else None


def names(text: OpenText, what: str) -> Iterable[str]:
    """All names of a sort."""
    match what:
        case "tool":
            return sorted(text.toolbox.spaces.ids())
        case "block":
            return text.blocks.names()
        case "provider":
            return sorted(text.toolbox.spaces.ids(folder="config/providers"))
        case "node" | "agent" | "task":
            return list(named_places(text, what))
    return ()


def named_places(text: OpenText, what: str) -> dict[str, Span]:
    """The nodes, agents or tasks of a file and where they stand."""
    found: dict[str, Span] = {}
    for keys, node in maps_in(text.document):
        table = node.get(f"{what}s")
        for name, _ in map_entries(table):
            assert isinstance(table, Mapping)
            found.setdefault(name, table.key_span(name))
        for item in table.items if isinstance(table, Sequence) else ():
            for key in ("id", "name", "role"):
                name = text_field(item, key) or ""
                if name and isinstance(item, Mapping):
                    found.setdefault(name, item.key_span(key))
        if len(keys) > 4:
            break
    return found


def tool_path(text: OpenText, tool_id: str) -> str | None:
    try:
        found = text.toolbox.spaces.find(tool_id)
    except PlaitError:
        return None
    return found.path if found is not None else None


def file_path(text: OpenText, name: str) -> str | None:
    """The file that a flow names: beside it, or below the project."""
    for folder in (os.path.dirname(text.path), project_of_file(text.path)):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path):
            return path
    return None


def value_source(text: OpenText, name: str, before: int) -> Span | None:
    """Where the file gives a variable its value: the last place before an offset, or the first."""
    places: list[Span] = []
    for keys, node in maps_in(text.document):
        if keys and keys[-1] in DECLARATIONS and node.get(name) is not None:
            places.append(node.key_span(name))
        for key in CAPTURES:
            value = node.get(key)
            if text_value(value) == name and value is not None:
                places.append(value.span)
            elif isinstance(value, Mapping) and value.get(name) is not None:
                places.append(value.key_span(name))
        declared = node.get("parameters") or node.get("inputs")
        for item in declared.items if isinstance(declared, Sequence) else ():
            if text_value(item) == name or text_field(item, "name") == name:
                places.append(item.span)
    places.sort(key=lambda span: span.place.start)
    earlier = [span for span in places if span.place.start < before]
    return next(iter((earlier or places[:1])[-1:]), None)
