"""Split the file of a directive into its head and its prompt."""

from __future__ import annotations

import re

from plait.core import documents
from plait.core.documents import nodes
from plait.core.documents.positions import VERBATIM
from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.lang.directive.xml_head import is_head, parse_xml_head


@dataclass(frozen=True, slots=True)
class DirectiveParts:
    """The parts of a directive file."""

    head: nodes.Mapping
    content: nodes.Scalar
    body: nodes.Scalar
    raw: nodes.Scalar

    def as_document(self) -> nodes.Mapping:
        """The head with the prompt as `body`, to find the templates in both."""
        body = (nodes.Scalar("body", self.body.span), self.body)
        return nodes.Mapping((*self.head.entries, body), self.head.span)


_SIGNED: Final = lazy_pattern(r"<!-- (?:plait|rye):signed:[^\n]*\n")
_DASHES: Final = lazy_pattern(r"---[ \t]*\r?\n")
_END: Final = lazy_pattern(r"^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
_FENCE: Final = lazy_pattern(r"^(`{3,})([^\s`]*)[ \t]*\r?$", re.MULTILINE)


def split_directive(text: str, path: str) -> DirectiveParts:
    source = Source(path, text.removeprefix("\ufeff"))
    start = found.end() if (found := _SIGNED.match(source.text)) else 0
    if _DASHES.match(source.text, start):
        return _with_front_matter(source, start)
    fence = _xml_fence(source, start)
    return _without_head(source, start) if fence is None else _with_xml(source, start, *fence)


def _with_front_matter(source: Source, start: int) -> DirectiveParts:
    opened = _DASHES.match(source.text, start)
    assert opened is not None
    closed = _END.search(source.text, opened.end())
    if closed is None:
        what = "the head begins with '---' and has no end"
        raise InputError(
            what, Span(source, start, start + 3), "write '---' below it", code="bad-head"
        )
    # The text above the head becomes blank, so lines and columns stay those of the file.
    above = "".join(char if char in "\r\n" else " " for char in source.text[: opened.end()])
    head = documents.parse(above + source.text[opened.end() : closed.start()], source.name)
    if isinstance(head, nodes.Scalar) and head.value is None:
        head = nodes.Mapping((), Span(source, start, opened.end()))
    if not isinstance(head, nodes.Mapping):
        raise InputError(
            "the head of a directive is a map", head.span, "write name: …", code="bad-head"
        )
    return _parts(source, start, head, (opened.end(), closed.start()), closed.end())


def _with_xml(source: Source, start: int, first: int, last: int, behind: int) -> DirectiveParts:
    return _parts(source, start, parse_xml_head(source, first, last), (first, last), behind)


def _without_head(source: Source, start: int) -> DirectiveParts:
    return _parts(
        source, start, nodes.Mapping((), Span(source, start, start)), (start, start), start
    )


def _parts(
    source: Source, start: int, head: nodes.Mapping, content: tuple[int, int], behind: int
) -> DirectiveParts:
    return DirectiveParts(
        head,
        _passage(source, *content),
        _passage(source, behind, len(source.text)),
        _passage(source, start, len(source.text)),
    )


def _passage(source: Source, start: int, end: int) -> nodes.Scalar:
    """A piece of the file, stripped."""
    text = source.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return nodes.Scalar(text, Span(source, start, start + len(text)), VERBATIM)


def _xml_fence(source: Source, start: int) -> tuple[int, int, int] | None:
    """Where the text of the XML head begins and ends, and where its block ends; None without
    such a block.
    """
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(source.text, start):
        if opened is None:
            opened = fence
            continue
        if fence[2] or len(fence[1]) < len(opened[1]):
            continue
        first, last = opened.end() + 1, fence.start()
        if opened[2] == "xml" and is_head(source.text[first:last]):
            return first, last, fence.end()
        opened = None
    if opened is not None and opened[2] == "xml" and is_head(source.text[opened.end() :]):
        where = Span(source, opened.start(), opened.end())
        raise InputError(
            "this block of XML has no end", where, "write ``` below it", code="bad-head"
        )
    return None
