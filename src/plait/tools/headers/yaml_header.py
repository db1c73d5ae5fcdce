"""A header in YAML: every key of the topmost map."""

from __future__ import annotations

from plait.core import documents
from plait.core.errors import DocumentError
from plait.core.source import Span
from plait.tools.headers.entries import Said


def read_yaml(said: Said, _: str) -> None:
    node = documents.parse(said.source.text, said.source.name)
    say_all(node, said, node.span)


def say_all(node: documents.Node, said: Said, where: Span) -> None:
    if not isinstance(node, documents.Mapping):
        raise DocumentError("a header is a map", where, "write 'key: value' lines", code="not-a-map")
    for key, value in node.entries:
        said.add(str(key.value), value.data(), Span(said.source, key.span.start, key.span.end))
