"""Turn YAML events into nodes, within a budget.

The builder continues after a mistake, so an author sees all problems at once. The budget counts the
document as if its aliases were written out, and nothing larger is ever built; an alias is the node
that it names, not a copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from math import isfinite

from plait.core.documents.files import read_text
from plait.core.documents.limits import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    MAX_PROBLEMS,
    MAX_TEXT,
    printable_name,
    require_size,
    too_deep,
)
from plait.core.documents.nodes import Mapping, Node, Plain, Scalar, Sequence
from plait.core.documents.yaml_events import read_events
from plait.core.errors import DocumentError, LimitError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.core.source import Source, Span

if TYPE_CHECKING:
    import yaml


CORE: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
_INT = lazy_pattern(r"[-+]?[0-9]++|0o[0-7]++|0x[0-9a-fA-F]++")
_FLOAT = lazy_pattern(r"[-+]?(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?)(?:[eE][-+]?[0-9]++)?")
_NOT_FINITE = lazy_pattern(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAGGED_TYPES: Final[dict[str, set[type]]] = {
    "null": {type(None)},
    "bool": {bool},
    "int": {int},
    "float": {int, float},
}
_SURROGATE = lazy_pattern("[\\ud800-\\udfff]")


class Refused(Exception):
    """Raised for a scalar whose text does not fit its type."""

    def __init__(self, what: str, fix: str, code: str = "value") -> None:
        self.what, self.fix, self.code = what, fix, code


def scalar_value(tag: str | None, text: str, style: str) -> Plain:
    """Return the value of a scalar; refuse it if its text does not fit its tag or form."""
    if style == '"' and ("\0" in text or (not text.isascii() and _SURROGATE.search(text))):
        raise Refused(
            "NUL and halves of character pairs are not text", "remove the escape", "character"
        )
    if tag is None:
        return text if style else _plain(text)
    kind = tag.removeprefix(CORE)
    if tag in ("!", CORE + "str"):
        return text
    if tag == kind or kind not in _TAGGED_TYPES:
        raise Refused(*tag_words(tag), "tag")
    value = _plain(text)
    if type(value) not in _TAGGED_TYPES[kind]:
        raise Refused(
            f"this text is not what the tag '!!{kind}' says", "remove the tag or correct the text"
        )
    return _finite(str(value)) if kind == "float" else value


def tag_words(tag: str) -> tuple[str, str]:
    """Explain why a tag is refused, and what to do."""
    written = "!!" + tag.removeprefix(CORE) if tag.startswith(CORE) else tag
    return (
        f"the tag '{printable_name(written)}' means nothing here",
        "remove it: a document is plain data",
    )


def _plain(text: str) -> Plain:
    """Return the value of a plain scalar by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise Refused("this number has too many digits", "put it in quotes to keep it as text")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    if _NOT_FINITE.fullmatch(text):
        raise Refused(
            "infinity and NaN are not JSON data", "write a finite number, or put it in quotes"
        )
    return text


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise Refused("this number is too large", "put it in quotes to keep it as text")
    return number


MERGE_KEY: Final = "<<"


@dataclass(frozen=True, slots=True)
class PartialDocument:
    """The part of a text that could be read, and all problems.

    A map keeps all entries of a duplicate key, and a lookup returns the last one.
    """

    node: Node | None
    problems: tuple[Problem, ...] = ()
    whole: bool = True
    """Was the text read to its end?"""


def load(path: str | os.PathLike[str]) -> Node:
    """The YAML file at `path`."""
    return parse(read_text(path, MAX_TEXT), os.fspath(path))


def load_partial(path: str | os.PathLike[str]) -> PartialDocument:
    """Read as much of the YAML file at `path` as possible."""
    return parse_partial(read_text(path, MAX_TEXT), os.fspath(path))


def parse(text: str, name: str, *, pure: bool = False) -> Node:
    """Parse the single document in `text`; an empty text is null.

    `pure` uses the parser written in Python, which is also used without libyaml: slower, the
    same nodes.
    """
    read = parse_partial(text, name, pure=pure)
    if read.problems:
        raise DocumentError.together(read.problems)
    return read.node or Scalar(None, Span(Source(name, text), 0, 0))


def parse_partial(text: str, name: str, *, pure: bool = False) -> PartialDocument:
    """Read as much of a document as possible, for callers that report all problems."""
    require_size(len(text), MAX_TEXT, name, unit="characters")
    source = Source(name, text.removeprefix("\ufeff"))
    try:
        events = read_events(source, pure=pure)
    except DocumentError as error:
        return PartialDocument(None, error.problems, whole=False)
    return _Builder(source).read(events)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """The node of an alias, and the size that it has when written out."""

    node: Node
    nodes: int
    characters: int
    height: int


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read. A map waits for a key if it has as many keys as
    items.
    """

    start: int
    end: int
    anchor: str | None
    is_map: bool
    is_flow: bool
    nodes_before: int
    characters_before: int
    keys: list[Scalar] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    height: int = 1

    @property
    def waits_for_key(self) -> bool:
        return self.is_map and len(self.keys) == len(self.items)


class _Enough(Exception):
    """Raised if there are too many problems to continue."""


class _Builder:
    """Builds nodes from events within a budget; collects problems, and continues after each of
    them.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.open: list[_Open] = []
        self.anchors: dict[str, _Anchored | None] = {}
        self.root: Node | None = None
        self.nodes = 0
        self.characters = 0

    def read(self, events: Iterator[yaml.Event]) -> PartialDocument:
        whole = self.follow(events)
        if not whole:
            self.close_all()
        return PartialDocument(self.root, tuple(self.problems), whole)

    def follow(self, events: Iterator[yaml.Event]) -> bool:
        """Build nodes until the events end; return whether the document is complete."""
        import yaml

        actions: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self.scalar,
            yaml.AliasEvent: self.alias,
            yaml.MappingStartEvent: self.start_mapping,
            yaml.SequenceStartEvent: self.start_sequence,
            yaml.MappingEndEvent: self.end_mapping,
            yaml.SequenceEndEvent: self.end_sequence,
        }
        try:
            for event in events:
                if action := actions.get(type(event)):
                    action(event)
                elif isinstance(event, yaml.DocumentEndEvent):
                    self.check_document_end(_end(event))
                    break
        except DocumentError as error:
            self.problems += error.problems
            return False
        except _Enough:
            return False
        return True

    def close_all(self) -> None:
        """Close the collections that are open where reading ended; drop a key whose value
        is incomplete.
        """
        while self.open:
            opened = self.open.pop()
            span = Span(self.source, opened.start, opened.end)
            items = tuple(opened.items)
            node = (
                Mapping(tuple(zip(opened.keys, items, strict=False)), span)
                if opened.is_map
                else None
            )
            if not (self.open and self.open[-1].waits_for_key):
                self.place(node or Sequence(items, span), opened.height, span.end)

    def scalar(self, event: yaml.ScalarEvent) -> None:
        span = Span(self.source, self.content_start(event), _end(event))
        self.spend(1, len(event.value), span)
        style = event.style or ""
        if self.open and self.open[-1].waits_for_key:
            node = self.key(event, span, style)
        else:
            node = Scalar(self.value(event, span, style), span, style)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(node, 1, len(event.value), 0)
        self.place(node, 0, span.end)

    def content_start(self, event: yaml.ScalarEvent) -> int:
        """The start of the scalar itself, after its anchor and tag."""
        start = _start(event)
        if event.anchor is None and event.tag is None:
            return start
        found = _PROPERTIES.match(self.source.text, start, _end(event))
        return found.end() if found else start

    def key(self, event: yaml.ScalarEvent, span: Span, style: str) -> Scalar:
        if not event.value and not style:
            self.problem(
                "a key is missing before ':'", span, "write the key, or quote the ':'", "key"
            )
            return Scalar(None, span)
        try:
            scalar_value(event.tag, event.value, style)
        except Refused as refused:
            if refused.code != "value":  # a key is only its text, so `1e999:` is a valid key
                self.refuse(refused, event, span)
        return Scalar(event.value, span, style)

    def value(self, event: yaml.ScalarEvent, span: Span, style: str) -> Plain:
        try:
            return scalar_value(event.tag, event.value, style)
        except Refused as refused:
            self.refuse(refused, event, span)
            return None

    def refuse(self, refused: Refused, event: yaml.ScalarEvent, span: Span) -> None:
        where = self.tag_span(event) if refused.code == "tag" else span
        self.problem(refused.what, where, refused.fix, refused.code)

    def tag_span(self, event: yaml.NodeEvent) -> Span:
        found = _TAG.search(self.source.text, _start(event))
        return (
            Span(self.source, *found.span())
            if found
            else Span(self.source, _start(event), _start(event))
        )

    def alias(self, event: yaml.AliasEvent) -> None:
        span = Span(self.source, _start(event), _end(event))
        target = self.target(event.anchor or "", span)
        self.spend(target.nodes, target.characters, span)
        self.require_depth(len(self.open) + target.height, span)
        if self.open and self.open[-1].waits_for_key:
            self.problem("an alias cannot be a key", span, "write the key out", "key")
            self.place(Scalar(None, span), 0, span.end)
        else:
            self.place(target.node, target.height, span.end)

    def target(self, anchor: str, span: Span) -> _Anchored:
        if anchor not in self.anchors:
            close = closest_name(anchor, self.anchors)
            fix = f"did you mean '*{close}'?" if close else "quote a text that starts with '*'"
            self.problem(
                f"nothing above is anchored as '&{printable_name(anchor)}'", span, fix, "alias"
            )
        elif (target := self.anchors[anchor]) is not None:
            return target
        else:
            what = f"'*{printable_name(anchor)}' stands inside the value it means"
            self.problem(what, span, "write the value out", "alias")
        # return a map, so that '<<' does not report it again
        return _Anchored(Mapping((), span), 1, 0, 0)

    def start_mapping(self, event: yaml.MappingStartEvent) -> None:
        self.start(event, "map")

    def start_sequence(self, event: yaml.SequenceStartEvent) -> None:
        self.start(event, "seq")

    def start(self, event: yaml.CollectionStartEvent, kind: Literal["map", "seq"]) -> None:
        at = _start(event)
        span = Span(self.source, at, at + 1)
        nodes, characters = self.nodes, self.characters
        self.spend(1, 0, span)
        if event.tag not in (None, "!", CORE + kind):
            what, fix = tag_words(event.tag or "")
            self.problem(what, self.tag_span(event), fix, "tag")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        opened = _Open(
            start=at,
            end=at,
            anchor=event.anchor,
            is_map=kind == "map",
            is_flow=bool(event.flow_style),
            nodes_before=nodes,
            characters_before=characters,
        )
        self.open.append(opened)
        self.require_depth(len(self.open), span)

    def end_sequence(self, event: yaml.SequenceEndEvent) -> None:
        opened = self.open.pop()
        self.close(opened, Sequence(tuple(opened.items), self.collection_span(opened, event)))

    def end_mapping(self, event: yaml.MappingEndEvent) -> None:
        opened = self.open.pop()
        entries = list(zip(opened.keys, opened.items, strict=True))
        table = {entry[0].value: entry for entry in entries}
        again: list[tuple[Scalar, Node]] = []
        if len(table) < len(entries):
            self.report_duplicates([key for key, _ in entries])
            again = [entry for entry in entries if table[entry[0].value] is not entry]
        merged = table.get(MERGE_KEY)
        if merged and not merged[0].style:
            del table[MERGE_KEY]
            table = {**self.merge_key_entries(merged[1], merged[0].span), **table}
        self.close(opened, Mapping((*again, *table.values()), self.collection_span(opened, event)))

    def collection_span(self, opened: _Open, event: yaml.Event) -> Span:
        # For the parser, a block collection ends only where the next node begins.
        return Span(self.source, opened.start, _end(event) if opened.is_flow else opened.end)

    def close(self, opened: _Open, node: Node) -> None:
        if opened.anchor is not None:
            nodes, characters = (
                self.nodes - opened.nodes_before,
                self.characters - opened.characters_before,
            )
            self.anchors[opened.anchor] = _Anchored(node, nodes, characters, opened.height)
        self.place(node, opened.height, node.span.end)

    def place(self, node: Node, height: int, end: int) -> None:
        if not self.open:
            self.root = node
            return
        holder = self.open[-1]
        holder.end = end
        if height >= holder.height:
            holder.height = height + 1
        if holder.waits_for_key:
            holder.keys.append(node if isinstance(node, Scalar) else self.no_key(node))
        else:
            holder.items.append(node)

    def no_key(self, node: Node) -> Scalar:
        self.problem("a list or map cannot be a key", node.span, "use a string as the key", "key")
        return Scalar(None, node.span)

    def report_duplicates(self, keys: list[Scalar]) -> None:
        places: dict[str, list[Span]] = {}
        for key in keys:
            if isinstance(key.value, str):  # null replaces a key that was already reported
                places.setdefault(key.value, []).append(key.span)
        for name, (first, *again) in places.items():
            if again:
                lines = format_names(str(span.position[0]) for span in again[:MAX_PROBLEMS])
                times = "twice" if len(again) == 1 else f"{len(again) + 1} times"
                what = (
                    f"the key '{printable_name(name)}' stands {times} in one map, again at line "
                    f"{lines}"
                )
                fix = (
                    "merge with one '<<: [*a, *b]'"
                    if name == MERGE_KEY
                    else "remove or rename all but one"
                )
                self.problem(what, first, fix, "duplicate-key", tuple(again[:MAX_PROBLEMS]))

    def merge_key_entries(self, value: Node, where: Span) -> dict[Plain, tuple[Scalar, Node]]:
        """The entries that `<<` adds: if several maps have a key, the first wins."""
        maps = value.items if isinstance(value, Sequence) else (value,)
        table: dict[Plain, tuple[Scalar, Node]] = {}
        for each in reversed(maps):
            if not isinstance(each, Mapping):
                self.problem(
                    "'<<' takes a map or a list of maps", where, "write '<<: *anchor'", "merge"
                )
                break
            table.update((key.value, (key, node)) for key, node in each.entries)
        return table

    def check_document_end(self, end: int) -> None:
        found = _NOTHING.match(self.source.text, end)
        at = found.end() if found else end
        if at == len(self.source.text):
            return
        where = Span(self.source, at, at + 3)
        if self.source.text.startswith("---", at):
            fix = "put each document in a file of its own"
            self.problem("a second document starts here", where, fix, "syntax")
        else:
            what = "this stands after the end of the document"
            self.problem(what, where, "indent it, or remove it", "syntax")

    def spend(self, nodes: int, characters: int, where: Span) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MAX_NODES:
            what = (
                f"this document has more than {MAX_NODES:,} nodes when its aliases are written out"
            )
            raise LimitError(
                what, where, "split it, or keep large data in JSON files", code="too-many-nodes"
            )
        if self.characters > MAX_TEXT:
            what = (
                f"this document has more than {MAX_TEXT:,} characters when its aliases are written "
                "out"
            )
            raise LimitError(what, where, "split it, or use fewer aliases", code="too-large")

    def require_depth(self, depth: int, where: Span) -> None:
        if depth > MAX_DEPTH:
            raise too_deep(where)

    def problem(
        self, what: str, where: Span, fix: str, code: str, also: tuple[Span, ...] = ()
    ) -> None:
        self.problems.append(Problem(what, where, fix, also, code))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Enough


_TAG = lazy_pattern(r"!<[^>]*+>|![^\s,\[\]{}]*+")
_PROPERTIES = lazy_pattern(rf"(?:&[\w-]++|{_TAG.pattern}|[ \t\r\n]++|#[^\n]*+)*")
_NOTHING = lazy_pattern(r"(?:[ \t\r\n]++|#[^\n]*+|^\.\.\.(?=[ \t\r\n]|\Z))*", re.MULTILINE)


def _start(event: yaml.Event) -> int:
    return event.start_mark.index  # type: ignore[union-attr]  # both parsers mark every event


def _end(event: yaml.Event) -> int:
    return event.end_mark.index  # type: ignore[union-attr]  # both parsers mark every event
