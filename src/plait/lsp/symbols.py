"""The outline of a file: its phases, steps, nodes, tasks and blocks."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.documents import Mapping, Node, Sequence
from plait.core.documents.nodes import text_field
from plait.core.hints import Final
from plait.core.values import Json
from plait.lsp.documents import OpenText
from plait.schema.shared import ACTION_FIELDS

NAMED: Final = ("nodes", "blocks", "agents", "parameters", "vars", "inputs", "tasks")
"""Maps whose keys are names that the author chose."""
GROUPS: Final = (*NAMED, "setup", "map", "reduce", "merge", "steps", "commands", "agent_template", "do",
                 "config", "loops")  # fmt: skip
MOST: Final = 5000
"""An editor shows no outline of more than that."""
_MODULE, _FUNCTION = 2, 12


def symbols(text: OpenText) -> list[Json]:
    if text.kind is None or text.document is None:
        return []
    return list(_Outline(text).inside(text.document))


class _Outline:
    def __init__(self, text: OpenText) -> None:
        self.text = text
        self.left = MOST

    def inside(self, node: Node) -> Iterator[Json]:
        match node:
            case Mapping(entries):
                for key, value in entries:
                    if key.value in GROUPS and isinstance(value, Mapping | Sequence):
                        start = key.span.place.start
                        yield from self._symbol(str(key.value), start, value, _MODULE)
            case Sequence(items):
                for item in items:
                    if isinstance(item, Mapping):
                        start = item.span.place.start
                        yield from self._symbol(_title(item), start, item, _FUNCTION)

    def _symbol(self, name: str, start: int, value: Node, kind: int) -> Iterator[Json]:
        if self.left <= 0:
            return
        self.left -= 1
        children: list[Json] = []
        if kind == _MODULE and name in NAMED and isinstance(value, Mapping):
            for key, inner in value.entries:
                children += self._symbol(
                    str(key.value) or "-", key.span.place.start, inner, _FUNCTION
                )
        else:
            children += self.inside(value)
        place = self.text.lines.range(start, max(start, value.span.place.end))
        begin: Json = {"start": place["start"], "end": place["start"]}
        yield {
            "name": name,
            "kind": kind,
            "range": place,
            "selectionRange": begin,
            "children": children,
        }


def _title(item: Mapping) -> str:
    for key in ("id", "name", "role"):
        if title := text_field(item, key):
            return title
    for action in (*ACTION_FIELDS, "command", "call"):
        if item.get(action) is not None:
            shown = (text_field(item, action) or "").strip()
            return f"{action} {shown.splitlines()[0][:60]}" if shown else action
    return "-"
