"""Find where a tool, a block, a file, a node, a task or a variable is defined."""

from __future__ import annotations

from plait.core.documents import Node, Scalar, Sequence
from plait.core.documents.nodes import text_value
from plait.core.source import Span
from plait.core.values import Json
from plait.lsp.documents import OpenText, file_uri
from plait.lsp.hover import placeholder_at, root_name
from plait.lsp.positions import Lines
from plait.lsp.references import file_path, named_places, referenced, tool_path, value_source


def definition(text: OpenText, offset: int) -> Json:
    found = placeholder_at(text, offset)
    if found is not None:
        _, placeholder, span = found
        name = root_name(placeholder)
        source = value_source(text, name, span.place.start) if name else None
        return _location(text, source) if source is not None else None
    spot = text.spot(offset)
    value = text_value(_value_at(text, offset))
    if spot is None or spot.on_key or value is None:
        return None
    what = referenced(spot)
    match what:
        case "tool":
            path = tool_path(text, value)
        case "file":
            path = file_path(text, value)
        case "block":
            block = text.blocks.get(value)
            return _location(text, block.span) if block is not None else None
        case "node" | "agent" | "task":
            place = named_places(text, what).get(value)
            return _location(text, place) if place is not None else None
        case _:
            return None
    begin = {"line": 0, "character": 0}
    return {"uri": file_uri(path), "range": {"start": begin, "end": begin}} if path else None


def _value_at(text: OpenText, offset: int) -> Node | None:
    spot = text.spot(offset)
    value = spot.value if spot is not None else None
    if isinstance(value, Sequence):
        return next(
            (
                one
                for one in value.items
                if isinstance(one, Scalar) and text.holds(one.span, offset)
            ),
            None,
        )
    return value


def _location(text: OpenText, span: Span) -> Json:
    place = span.place
    is_here = place.source.name == text.path
    lines = text.lines if is_here else Lines(place.source.text)
    uri = text.uri if is_here else file_uri(place.source.name)
    return {"uri": uri, "range": lines.range(place.start, place.end)}
