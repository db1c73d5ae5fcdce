"""A file becomes nodes that know where they stand; layers of nodes become one.

The nodes hold JSON data only, and every scalar can say from which character of
the file each of its own characters came, so an error inside a template points
into the file the author wrote.  Whatever the bytes are, the answer is a node,
a `DocumentError` with everything that is wrong, or a `LimitError`: limits hold
for the document as if its aliases were written out, and nothing beyond them is
ever built.

YAML is read as events, and by the core schema of YAML 1.2: `no`, `on`, `12:30`
and `1_000` are strings, `014` is fourteen, and keys are the text as written.
"""

from __future__ import annotations

import json
import os
import re
import stat
from bisect import bisect_right
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from plait.errors import (
    DocumentError,
    InputError,
    InternalError,
    LimitError,
    PlaitError,
    Problem,
    listed,
    nearest,
)
from plait.source import Excerpt, Source, Span
from plait.values import Json

if TYPE_CHECKING:
    import yaml

MAX_TEXT: Final = 4 * 1024 * 1024
MAX_JSON_TEXT: Final = 64 * 1024 * 1024
MAX_NODES: Final = 200_000
MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 3_500
"""So many hexadecimal digits are still an integer that Python is ready to print."""
MAX_PROBLEMS: Final = 25
"""Reading stops here: nobody corrects more at once, and each one costs a drawing."""

Step: TypeAlias = str | int
Plain: TypeAlias = str | int | float | bool | None


# ── Nodes ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, number, true/false or null; `style` is how it was written: `' " | >` or plain."""

    value: Plain
    span: Span
    style: str = ""

    def data(self) -> Json:
        return self.value

    def at(self, path: str | abc.Iterable[Step]) -> Node | None:
        return _at(self, path)

    def source(self) -> Source:
        """The string as a source whose spans place themselves in the file."""
        if not isinstance(self.value, str):
            raise InternalError("only a string can be read as a source", self.span)
        outer = self.span.source
        return Excerpt(outer.name, self.value, outer=outer, origin=_origin(self))


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    span: Span

    def data(self) -> list[Json]:
        return [item.data() for item in self.items]

    def at(self, path: str | abc.Iterable[Step]) -> Node | None:
        return _at(self, path)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Entries in the order of the file; every key is a string and stands once."""

    entries: tuple[tuple[Scalar, Node], ...]
    span: Span
    _table: dict[str, tuple[Scalar, Node]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", {str(entry[0].value): entry for entry in self.entries})

    def data(self) -> dict[str, Json]:
        return {name: value.data() for name, (_, value) in self._table.items()}

    def get(self, key: str) -> Node | None:
        entry = self._table.get(key)
        return entry[1] if entry else None

    def key_span(self, key: str) -> Span:
        """Where the key stands; where the map stands, if it has no such key."""
        entry = self._table.get(key)
        return entry[0].span if entry else self.span

    def at(self, path: str | abc.Iterable[Step]) -> Node | None:
        return _at(self, path)


Node: TypeAlias = Scalar | Sequence | Mapping


def _at(node: Node, path: str | abc.Iterable[Step]) -> Node | None:
    """The node under a path: `steps.0.env`, `steps[0]["a.b"]`, or the steps themselves."""
    steps = _steps(path) if isinstance(path, str) else path
    found: Node | None = node
    for step in steps:
        match found:
            case Mapping():
                found = found.get(str(step))
            case Sequence(items):
                index = int(step) if re.fullmatch("[0-9]{1,9}", str(step)) else len(items)
                found = items[index] if index < len(items) else None
            case _:
                return None
    return found


_STEP = re.compile(r'(?:^|\.)([^.\[\]]++)|\[([0-9]++)\]|\[("(?:[^"\\]++|\\.)*+")\]')
_SIMPLE_STEP = re.compile(r"[^.\[\]]+")


def _steps(path: str) -> abc.Iterator[str]:
    at = 0
    while at < len(path):
        if (found := _STEP.match(path, at)) is None:
            raise InternalError(f"'{path}' is not a path", fix='write a.b, a.0 or a["b.c"]')
        name, index, quoted = found.groups()
        yield json.loads(quoted) if quoted else name or index
        at = found.end()


def _joined(path: str, step: Step) -> str:
    if not _SIMPLE_STEP.fullmatch(str(step)):
        return f"{path}[{json.dumps(step)}]"
    return f"{path}.{step}" if path else str(step)


# ── Layers ───────────────────────────────────────────────────────────────────────────────────────


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
        yield from _leaves(child, _joined(path, step))


def expect_keys(mapping: Mapping, known: abc.Iterable[str], *, kind: str) -> list[Problem]:
    """A problem for every key that a `kind` does not have."""
    known = list(known)
    thing = f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"
    problems = []
    for key, _ in mapping.entries:
        name = str(key.value)
        if name not in known:
            close = nearest(name, known)
            fix = f"did you mean '{close}'?" if close else f"{thing} has: {listed(known)}"
            what = f"'{_shown(name)}' is not a field of {thing}"
            problems.append(Problem(what, key.span, fix, code="unknown-field"))
    return problems


def _shown(name: str) -> str:
    """A name for a message: cut, and without what could drive a terminal."""
    cut = name if len(name) <= 60 else name[:59] + "…"
    return "".join(c if c.isprintable() else "�" for c in cut)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def load(path: str | os.PathLike[str]) -> Node:
    """The YAML file at `path`."""
    return parse(_read(path, MAX_TEXT), os.fspath(path))


def load_json(path: str | os.PathLike[str]) -> Json:
    """The JSON file at `path`."""
    return parse_json(_read(path, MAX_JSON_TEXT), os.fspath(path))


def _read(path: str | os.PathLike[str], limit: int) -> str:
    name = os.fspath(path)
    try:
        with _opened(name) as descriptor:
            status = os.fstat(descriptor)
            _expect_regular(name, status.st_mode)
            _expect_size(status.st_size, limit, name, unit="bytes")
            with open(descriptor, "rb", closefd=False) as file:
                # One byte more than allowed, for a file that grows or lies about its size.
                data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    _expect_size(len(data), limit, name, unit="bytes")
    return _decoded(data, name)


@contextmanager
def _opened(name: str) -> abc.Iterator[int]:
    # Not blocking: a pipe that nobody writes to must be refused, not waited for.
    descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _expect_regular(name: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InputError("this is a directory, not a file", name, "name a file inside it", code="not-a-file")
    if not stat.S_ISREG(mode):
        fix = "write its content to a file first"
        raise InputError("this is a pipe or device, not a file", name, fix, code="not-a-file")


def _expect_size(size: int, limit: int, where: str, *, unit: str) -> None:
    if size > limit:
        what = f"this file is larger than {limit:,} {unit}"
        raise LimitError(what, where, "split it, or keep large data in files of their own", code="too-large")


def _unreadable(name: str, error: OSError | ValueError) -> InputError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return InputError("there is no such file", name, _file_fix(name), code="no-file")
        case PermissionError():
            fix = "allow reading it, or run as a user who may"
            return InputError("this file may not be read", name, fix, code="no-permission")
        case OSError(strerror=reason):
            return InputError(f"this file cannot be read: {reason}", name, "check the path", code="no-file")
        case _:
            return InputError("this is not a path", _shown(name), "remove the NUL character", code="no-file")


def _file_fix(name: str) -> str:
    try:
        beside = os.listdir(os.path.dirname(name) or ".")
    except OSError:
        return "check the path: its directory does not exist"
    close = nearest(os.path.basename(name), beside)
    return f"did you mean '{os.path.join(os.path.dirname(name), close)}'?" if close else "check the path"


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = len(data[: error.start].decode("utf-8"))
        shown = Source(name, data.decode("utf-8", "replace"))
        what = f"byte {error.start:,} of this file is not UTF-8"
        where = str(Span(shown, before, before + 1))
        raise DocumentError(what, where, "save the file as UTF-8", code="not-utf-8") from None


# ── YAML: text to nodes ──────────────────────────────────────────────────────────────────────────


def parse(text: str, name: str, *, pure: bool = False) -> Node:
    """The one document in `text`; an empty text is null.

    `pure` takes the parser written in Python, which is also used where libyaml
    is missing: slower, the same nodes.
    """
    _expect_size(len(text), MAX_TEXT, name, unit="characters")
    source = Source(name, text.removeprefix("\ufeff"))
    _expect_readable_characters(source)
    _expect_no_directives(source)
    return _Builder(source).build(_events(source, pure=pure))


# What YAML allows, less the line breaks that only some readers see: text after one of them would
# look like part of a comment or string to a person, and be a key to the parser.
_ODD_CHARACTER = re.compile(
    "[^\\t\\r\\n\\x20-\\x7e\\xa0-\\u2027\\u202a-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"
    "|\\r(?!\\n)"
)


def _expect_readable_characters(source: Source) -> None:
    problems = []
    for found in _ODD_CHARACTER.finditer(source.text):
        problems.append(_odd_character(found[0], Span(source, *found.span())))
        if len(problems) == MAX_PROBLEMS:
            break
    if problems:
        raise DocumentError.together(problems)


def _odd_character(character: str, where: Span) -> Problem:
    code = ord(character)
    if character == "\r":
        what, fix = "a carriage return stands here without a line feed", "end lines with LF or CRLF"
    elif code == 0 or 0xD800 <= code <= 0xDFFF:
        what, fix = f"the character U+{code:04X} cannot stand in a document", "remove it"
    else:
        what = f"the character U+{code:04X} cannot be written as it is"
        fix = f'remove it, or write "\\u{code:04x}" in double quotes'
    return Problem(what, where, fix, code="character")


_PROLOGUE = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n|%YAML[^\n]*+\n)*+(%[A-Za-z]*+)")


def _expect_no_directives(source: Source) -> None:
    # Also a bound: libyaml compares each %TAG with all before it.
    found = _PROLOGUE.match(source.text)
    if found and found[1] != "%YAML":
        what = "directives other than %YAML are not read"
        raise DocumentError(what, Span(source, *found.span(1)), "remove this line", code="syntax")


def _events(source: Source, *, pure: bool) -> abc.Iterator[yaml.Event]:
    import yaml

    fast = yaml.__with_libyaml__ and not pure
    parser = yaml.CBaseLoader(source.text) if fast else yaml.BaseLoader(source.text)
    try:
        while (event := parser.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        raise DocumentError.together([_syntax_problem(source, error)]) from None
    except (ValueError, OverflowError):
        # The parser in Python trusts the digits of an escape and of %YAML.
        at = parser.get_mark().index if isinstance(parser, yaml.BaseLoader) else 0
        what, fix = "a number here is out of range", "correct the escape or the %YAML line"
        raise DocumentError(what, Span(source, at, at), fix, code="syntax") from None
    finally:
        parser.dispose()


def _start(event: yaml.Event) -> int:
    return event.start_mark.index  # type: ignore[union-attr]  # both parsers mark every event


def _end(event: yaml.Event) -> int:
    return event.end_mark.index  # type: ignore[union-attr]  # both parsers mark every event


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an alias stands for, and what it costs to write it out."""

    node: Node
    nodes: int
    characters: int
    height: int


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read; a map waits for a key when it has as many as items."""

    start: int
    anchor: str | None
    flow: bool
    nodes_before: int
    characters_before: int
    keys: list[Scalar] | None
    end: int
    items: list[Node] = field(default_factory=list)
    height: int = 1

    @property
    def waits_for_key(self) -> bool:
        return self.keys is not None and len(self.keys) == len(self.items)


class _Refused(Exception):
    """A scalar that cannot be what it is written as."""

    def __init__(self, what: str, fix: str, code: str = "value") -> None:
        self.what, self.fix, self.code = what, fix, code


class _Enough(Exception):
    """So many problems that reading on helps nobody."""


class _Builder:
    """Nodes from events; spends a budget, collects problems, and goes on after each of them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.open: list[_Open] = []
        self.anchors: dict[str, _Anchored | None] = {}
        self.root: Node | None = None
        self.nodes = 0
        self.characters = 0

    def build(self, events: abc.Iterator[yaml.Event]) -> Node:
        import yaml

        actions: dict[type, abc.Callable[[Any], None]] = {
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
                    self.expect_nothing_after(_end(event))
                    break
        except DocumentError as error:
            self.problems += error.problems
        except _Enough:
            pass
        if self.problems:
            raise DocumentError.together(self.problems)
        return self.root or Scalar(None, Span(self.source, 0, 0))

    def scalar(self, event: yaml.ScalarEvent) -> None:
        span = Span(self.source, self.content_start(event), _end(event))
        self.spend(1, len(event.value), span)
        style = event.style or ""
        if self.open and self.open[-1].waits_for_key:
            node = self.key(event, span, style)
        else:
            node = Scalar(self.typed(event, span, style), span, style)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(node, 1, len(event.value), 0)
        self.place(node, 0, span.end)

    def content_start(self, event: yaml.ScalarEvent) -> int:
        """Where the scalar itself begins, behind its anchor and tag."""
        start = _start(event)
        if event.anchor is None and event.tag is None:
            return start
        found = _PROPERTIES.match(self.source.text, start, _end(event))
        return found.end() if found else start

    def key(self, event: yaml.ScalarEvent, span: Span, style: str) -> Scalar:
        if not event.value and not style:
            self.problem("a key is missing before ':'", span, "write the key, or quote the ':'", "key")
            return Scalar(None, span)
        try:
            _tagged(event.tag, event.value, style)
        except _Refused as refused:
            if refused.code != "value":  # a key is its text, so `1e999:` is one
                self.refuse(refused, event, span)
        return Scalar(event.value, span, style)

    def typed(self, event: yaml.ScalarEvent, span: Span, style: str) -> Plain:
        try:
            return _tagged(event.tag, event.value, style)
        except _Refused as refused:
            self.refuse(refused, event, span)
            return None

    def refuse(self, refused: _Refused, event: yaml.ScalarEvent, span: Span) -> None:
        where = self.tag_span(event) if refused.code == "tag" else span
        self.problem(refused.what, where, refused.fix, refused.code)

    def tag_span(self, event: yaml.NodeEvent) -> Span:
        found = _TAG.search(self.source.text, _start(event))
        return Span(self.source, *found.span()) if found else Span(self.source, _start(event), _start(event))

    def alias(self, event: yaml.AliasEvent) -> None:
        span = Span(self.source, _start(event), _end(event))
        target = self.target(event.anchor or "", span)
        self.spend(target.nodes, target.characters, span)
        self.expect_depth(len(self.open) + target.height, span)
        if self.open and self.open[-1].waits_for_key:
            self.problem("an alias cannot be a key", span, "write the key out", "key")
            self.place(Scalar(None, span), 0, span.end)
        else:
            self.place(target.node, target.height, span.end)

    def target(self, anchor: str, span: Span) -> _Anchored:
        if anchor not in self.anchors:
            close = nearest(anchor, self.anchors)
            fix = f"did you mean '*{close}'?" if close else "quote a text that starts with '*'"
            self.problem(f"nothing above is anchored as '&{_shown(anchor)}'", span, fix, "alias")
        elif (target := self.anchors[anchor]) is not None:
            return target
        else:
            what = f"'*{_shown(anchor)}' stands inside the value it means"
            self.problem(what, span, "write the value out", "alias")
        return _Anchored(Mapping((), span), 1, 0, 0)  # a map, so that '<<' does not complain too

    def start_mapping(self, event: yaml.MappingStartEvent) -> None:
        self.start(event, "map", [])

    def start_sequence(self, event: yaml.SequenceStartEvent) -> None:
        self.start(event, "seq", None)

    def start(self, event: yaml.CollectionStartEvent, kind: str, keys: list[Scalar] | None) -> None:
        at = _start(event)
        span = Span(self.source, at, at + 1)
        nodes, characters = self.nodes, self.characters
        self.spend(1, 0, span)
        if event.tag not in (None, "!", _CORE + kind):
            what, fix = _tag_words(event.tag or "")
            self.problem(what, self.tag_span(event), fix, "tag")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.open.append(_Open(at, event.anchor, bool(event.flow_style), nodes, characters, keys, at))
        self.expect_depth(len(self.open), span)

    def end_sequence(self, event: yaml.SequenceEndEvent) -> None:
        opened = self.open.pop()
        self.close(opened, Sequence(tuple(opened.items), self.span_of(opened, event)))

    def end_mapping(self, event: yaml.MappingEndEvent) -> None:
        opened = self.open.pop()
        entries = list(zip(opened.keys or (), opened.items, strict=True))
        table = {key.value: (key, value) for key, value in entries}
        if len(table) < len(entries):
            self.report_duplicates([key for key, _ in entries])
        merged = table.get(MERGE_KEY)
        if merged and not merged[0].style:
            del table[MERGE_KEY]
            table = {**self.inherited(merged[1], merged[0].span), **table}
        self.close(opened, Mapping(tuple(table.values()), self.span_of(opened, event)))

    def span_of(self, opened: _Open, event: yaml.Event) -> Span:
        # A block collection ends, for the parser, only where the next thing begins.
        return Span(self.source, opened.start, _end(event) if opened.flow else opened.end)

    def close(self, opened: _Open, node: Node) -> None:
        if opened.anchor is not None:
            nodes, characters = self.nodes - opened.nodes_before, self.characters - opened.characters_before
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
        if holder.keys is not None and len(holder.keys) == len(holder.items):
            holder.keys.append(node if isinstance(node, Scalar) else self.no_key(node))
        else:
            holder.items.append(node)

    def no_key(self, node: Node) -> Scalar:
        self.problem("a list or map cannot be a key", node.span, "use a string as the key", "key")
        return Scalar(None, node.span)

    def report_duplicates(self, keys: list[Scalar]) -> None:
        places: dict[str, list[Span]] = {}
        for key in keys:
            if isinstance(key.value, str):  # null stands for a key that is reported already
                places.setdefault(key.value, []).append(key.span)
        for name, (first, *again) in places.items():
            if again:
                lines = listed(str(span.position[0]) for span in again[:MAX_PROBLEMS])
                times = "twice" if len(again) == 1 else f"{len(again) + 1} times"
                what = f"the key '{_shown(name)}' stands {times} in one map, again at line {lines}"
                fix = "merge with one '<<: [*a, *b]'" if name == MERGE_KEY else "remove or rename all but one"
                self.problem(what, first, fix, "duplicate-key", tuple(again[:MAX_PROBLEMS]))

    def inherited(self, value: Node, where: Span) -> dict[Plain, tuple[Scalar, Node]]:
        """The entries that `<<` brings in: of several maps, the first that has a key wins."""
        maps = value.items if isinstance(value, Sequence) else (value,)
        table: dict[Plain, tuple[Scalar, Node]] = {}
        for each in reversed(maps):
            if not isinstance(each, Mapping):
                self.problem("'<<' takes a map or a list of maps", where, "write '<<: *anchor'", "merge")
                break
            table.update((key.value, (key, node)) for key, node in each.entries)
        return table

    def expect_nothing_after(self, end: int) -> None:
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
            what = f"this document has more than {MAX_NODES:,} nodes when its aliases are written out"
            raise LimitError(what, where, "split it, or keep large data in JSON files", code="too-many-nodes")
        if self.characters > MAX_TEXT:
            what = f"this document has more than {MAX_TEXT:,} characters when its aliases are written out"
            raise LimitError(what, where, "split it, or use fewer aliases", code="too-large")

    def expect_depth(self, depth: int, where: Span) -> None:
        if depth > MAX_DEPTH:
            raise LimitError(*_too_deep(where), code="too-deep")

    def problem(self, what: str, where: Span, fix: str, code: str, also: tuple[Span, ...] = ()) -> None:
        self.problems.append(Problem(what, where, fix, also, code))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Enough


MERGE_KEY: Final = "<<"
_TAG = re.compile(r"!<[^>]*+>|![^\s,\[\]{}]*+")
_PROPERTIES = re.compile(rf"(?:&[\w-]++|{_TAG.pattern}|[ \t\r\n]++|#[^\n]*+)*+")
_NOTHING = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+|^\.\.\.(?=[ \t\r\n]|\Z))*+", re.MULTILINE)


def _too_deep(where: Span) -> tuple[str, Span, str]:
    return f"this is nested deeper than {MAX_DEPTH} levels", where, "flatten it, or split the file"


# ── YAML: scalars ────────────────────────────────────────────────────────────────────────────────

_CORE: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
_INT = re.compile(r"[-+]?[0-9]++|0o[0-7]++|0x[0-9a-fA-F]++")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?)(?:[eE][-+]?[0-9]++)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAGGED_TYPES: Final[dict[str, set[type]]] = {
    "null": {type(None)},
    "bool": {bool},
    "int": {int},
    "float": {int, float},
}
_NUL_OR_SURROGATE = re.compile("[\\x00\\ud800-\\udfff]")


def _tagged(tag: str | None, text: str, style: str) -> Plain:
    """The value of a scalar; refused if it cannot be what its tag or its form says."""
    if style == '"' and _NUL_OR_SURROGATE.search(text):
        raise _Refused("NUL and halves of character pairs are not text", "remove the escape", "character")
    if tag is None:
        return text if style else _plain(text)
    kind = tag.removeprefix(_CORE)
    if tag in ("!", _CORE + "str"):
        return text
    if tag == kind or kind not in _TAGGED_TYPES:
        raise _Refused(*_tag_words(tag), "tag")
    value = _plain(text)
    if type(value) not in _TAGGED_TYPES[kind]:
        raise _Refused(f"this text is not what the tag '!!{kind}' says", "remove the tag or correct the text")
    return float(value) if kind == "float" and value is not None else value


def _tag_words(tag: str) -> tuple[str, str]:
    shown = _shown("!!" + tag.removeprefix(_CORE) if tag.startswith(_CORE) else tag)
    return f"the tag '{shown}' means nothing here", "remove it: a document is plain data"


def _plain(text: str) -> Plain:
    """The core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _Refused("this number has too many digits", "put it in quotes to keep it as text")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        if not isfinite(number := float(text)):
            raise _Refused("this number is too large", "put it in quotes to keep it as text")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise _Refused("infinity and NaN are not JSON data", "write a finite number, or put it in quotes")
    return text


# ── YAML: from a character of a value to its place in the file ───────────────────────────────────


def _origin(scalar: Scalar) -> abc.Callable[[int], int]:
    """The `origin` of an excerpt; nothing is computed before something is wrong."""

    @cache
    def runs() -> tuple[list[int], list[int]]:
        found = list(_block_runs(scalar) if scalar.style in ("|", ">") else _flow_runs(scalar))
        return [start for start, _ in found], [place for _, place in found]

    def origin(offset: int) -> int:
        starts, places = runs()
        run = bisect_right(starts, offset) - 1
        return places[run] + offset - starts[run]

    return origin


_Run: TypeAlias = tuple[int, int]
"""From this offset of the value on, characters stand in the file one by one from that offset on."""

_FOLD = r"(?P<fold>[ \t]*+(?:\r?\n[ \t]*+)++)"
_FLOW_PARTS: Final = {
    "": re.compile(_FOLD + r"|(?P<run>[ \t]++|[^ \t\r\n]++)"),
    "'": re.compile(_FOLD + r"|(?P<escape>'')|(?P<run>[ \t]++|[^ \t\r\n']++)"),
    '"': re.compile(
        r"(?P<continued>\\\r?\n[ \t]*+(?:\r?\n[ \t]*+)*+)|(?P<escape>\\(?:x..|u.{4}|U.{8}|.))|"
        + _FOLD
        + r"|(?P<run>[ \t]++|[^ \t\r\n\\]++)"
    ),
}


def _flow_runs(scalar: Scalar) -> abc.Iterator[_Run]:
    """Plain and quoted text: one line break is a blank, of more the first is dropped."""
    quote = len(scalar.style)
    first, end = scalar.span.start + quote, scalar.span.end - quote
    offset = 0
    for part in _FLOW_PARTS[scalar.style].finditer(scalar.span.source.text, first, end):
        match part.lastgroup:
            case "run":
                yield offset, part.start()
                offset += part.end() - part.start()
            case "escape":
                yield offset, part.start()
                offset += 1
            case kind:
                breaks = [part.start() + found.start() for found in re.finditer(r"\r?\n", part[0])]
                for place in breaks[1:] if kind == "continued" or len(breaks) > 1 else breaks:
                    yield offset, place
                    offset += 1
    yield offset, end


_LINE = re.compile(r"([^\r\n]*+)(?:\r?\n|\Z)")


def _block_runs(scalar: Scalar) -> abc.Iterator[_Run]:
    """Block text: indentation is dropped; in `>` a single break between unindented lines is a blank."""
    text, end = scalar.span.source.text, scalar.span.end
    body = text.find("\n", scalar.span.start) + 1 or end
    lines = [found.span(1) for found in _LINE.finditer(text, body, end)]
    indent = _indentation(lines, text, str(scalar.value))
    offset, breaks, folds = 0, list[int](), False
    for start, stop in lines:
        content = start + indent
        if content >= stop:
            breaks.append(stop)
            continue
        may_fold = scalar.style == ">" and text[content] not in " \t"
        for place in breaks[1:] if folds and may_fold and len(breaks) > 1 else breaks:
            yield offset, place
            offset += 1
        yield offset, content
        offset, breaks, folds = offset + stop - content, [stop], may_fold
    for place in [*breaks, end]:
        yield offset, place
        offset += 1


def _indentation(lines: list[_Run], text: str, value: str) -> int:
    """How much each line was indented: seen from the first line that is not blank.

    Up to that line the value has the same lines as the file, in both styles.
    """
    rows = value.split("\n")
    telling = next((i for i, row in enumerate(rows) if row.strip(" ")), None)
    if telling is None:
        telling = next((i for i, row in enumerate(rows) if row), None)
    if telling is None:
        return len(text)
    start, stop = lines[telling]
    if not rows[telling].strip(" "):
        return stop - start - len(rows[telling])
    return _blanks(text[start:stop]) - _blanks(rows[telling])


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


# ── YAML: what the parser cannot read, in words ──────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Words:
    """What to say when the parser's context and problem contain these fragments.

    `opening` places the caret where the parser began (an unclosed quote), not where it gave up.
    """

    context: str
    problem: str
    what: str
    fix: str
    opening: bool = False


_CLOSE_QUOTE = "close it, or write long text as a block after '|'"
_SYNTAX_WORDS: Final = (
    _Words("quoted scalar", "end of stream", "this quote is never closed", _CLOSE_QUOTE, True),
    _Words("quoted scalar", "document", "this quote is never closed", _CLOSE_QUOTE, True),
    _Words(
        "quoted scalar",
        "unknown escape",
        "there is no such escape in double quotes",
        "write '\\\\' for a backslash, or use single quotes, where nothing is escaped",
    ),
    _Words("quoted scalar", "", "this escape is not a character", "write \\xNN, \\uNNNN or \\UNNNNNNNN"),
    _Words(
        "",
        "mapping values",
        "a ':' stands where no key can be",
        "quote a text that holds ': ', and indent a map under its key",
    ),
    _Words("", "sequence entries", "a list cannot begin here", "start a new line for '- ', under its key"),
    _Words(
        "simple key",
        "",
        "this line has no ':' and belongs to nothing above",
        "write 'key: value', or indent it",
        True,
    ),
    _Words(
        "block scalar",
        "",
        "a block text begins with '|' or '>', then '+', '-' or a digit, and nothing else",
        "start its text on the next line",
    ),
    _Words("alias", "", "'*' begins the name of an alias", "put a text that starts with '*' in quotes"),
    _Words("anchor", "", "'&' begins the name of an anchor", "put a text that starts with '&' in quotes"),
    _Words("tag", "", "'!' begins a tag", "put a text that starts with '!' in quotes"),
    _Words("flow sequence", "", "this '[' is not closed, or a ',' is missing", "close it with ']'", True),
    _Words("flow mapping", "", "this '{' is not closed, or a ',' is missing", "close it with '}'", True),
    _Words(
        "block mapping",
        "",
        "this does not go on with the map that begins at line {line}",
        "indent it like the keys of that map, and quote a value that holds quotes or ': '",
    ),
    _Words(
        "block collection",
        "",
        "this does not go on with the list that begins at line {line}",
        "begin each of its lines with '- ', at the same column",
    ),
    _Words("", "node content", "a value cannot begin like this", "put it in quotes"),
    _Words("", "cannot start", "a value cannot begin with this character", "put it in quotes"),
    _Words("directive", "", "this %YAML line cannot be read", "remove it"),
    _Words("", "incompatible", "this is not YAML 1", "remove the %YAML line"),
)
_OTHER_WORDS: Final = _Words("", "", "this cannot be read as YAML", "check indentation and quotes")


def _syntax_problem(source: Source, error: yaml.MarkedYAMLError) -> Problem:
    context, problem = error.context or "", error.problem or ""
    at = error.problem_mark.index if error.problem_mark else 0
    began = error.context_mark.index if error.context_mark else at
    if (tab := _indenting_tab(source, at)) is not None:
        return Problem("a tab indents this line", tab, "indent with spaces", code="syntax")
    found = (words for words in _SYNTAX_WORDS if words.context in context and words.problem in problem)
    words = next(found, _OTHER_WORDS)
    what = words.what.format(line=source.position(began)[0]) if "{line}" in words.what else words.what
    place = began if words.opening else at
    return Problem(what, Span(source, place, place + 1), words.fix, code="syntax")


_INDENTATION = re.compile(r"( *+)\t[ \t]*+")


def _indenting_tab(source: Source, at: int) -> Span | None:
    found = _INDENTATION.match(source.text, source.text.rfind("\n", 0, at) + 1)
    # With the first letter of the line: a caret under a tab alone cannot be seen.
    return Span(source, found.end(1), found.end() + 1) if found else None


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def parse_json(text: str, name: str) -> Json:
    """The JSON data in `text`, refused where two readers could understand it differently."""
    _expect_size(len(text), MAX_JSON_TEXT, name, unit="characters")
    source = Source(name, text.removeprefix("\ufeff"))
    hooks = _JsonHooks()
    try:
        data = json.loads(
            source.text,
            object_pairs_hook=hooks.table,
            parse_constant=hooks.constant,
            parse_float=hooks.float,
            parse_int=hooks.int,
        )
    except json.JSONDecodeError as error:
        problems = [_json_syntax_problem(source, error), *_json_problems(source, error.pos)]
        raise _json_error(problems) from None
    except RecursionError:
        raise _json_too_deep(source) from None
    if hooks.doubt or _MAYBE_SURROGATE.search(source.text):
        problems = _json_problems(source, len(source.text))
        if problems:
            raise _json_error(problems)
    if _deeper(data, MAX_DEPTH):
        raise _json_too_deep(source)
    return data


def _json_error(problems: list[Problem]) -> PlaitError:
    """Places without their lines: this is data, not an author's text, and may be secret."""
    error = DocumentError.together(problems)
    error.problems = tuple(replace(problem, where=str(problem.where), also=()) for problem in error.problems)
    return error


class _JsonHooks:
    """What json asks on its way; it does not say where it is, so a doubt only calls for a second look."""

    def __init__(self) -> None:
        self.doubt = False

    def table(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        table = dict(pairs)
        self.doubt |= len(table) < len(pairs)
        return table

    def constant(self, _: str) -> None:
        self.doubt = True

    def float(self, text: str) -> Plain:
        number = float(text)
        self.doubt |= not isfinite(number)
        return number

    def int(self, text: str) -> Plain:
        if len(text) <= MAX_DIGITS:
            return int(text)
        self.doubt = True
        return None


def _deeper(data: Json, levels: int) -> bool:
    level = [data]
    for _ in range(levels):
        level = [
            child
            for holder in level
            if isinstance(holder, (dict, list))
            for child in (holder.values() if isinstance(holder, dict) else holder)
        ]
        level = [child for child in level if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


_JSON_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_SURROGATE = re.compile("[\\ud800-\\udfff]")


def _json_problems(source: Source, end: int) -> list[Problem]:
    """All that is wrong up to `end`, found by a second look that knows places."""
    problems: list[Problem] = []
    objects: list[dict[str, Span] | None] = []
    wants_key = False
    for token in _JSON_TOKEN.finditer(source.text, 0, end):
        span = Span(source, *token.span())
        match token[0][0]:
            case "{":
                objects.append({})
            case "[":
                objects.append(None)
            case "}" | "]":
                del objects[-1:]
            case '"':
                names = objects[-1] if objects and wants_key else None
                problems += _json_string_problems(token[0], span, names)
            case "," | ":":
                pass
            case _:
                problems += _json_word_problems(token[0], span)
        wants_key = token[0] in ("{", ",")
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def _json_string_problems(token: str, span: Span, names: dict[str, Span] | None) -> abc.Iterator[Problem]:
    try:
        string = json.loads(token)
    except json.JSONDecodeError:
        return  # the syntax error that is reported beside these
    if _SURROGATE.search(string):
        what, fix = "this string holds half of a character pair", "write both halves, or neither"
        yield Problem(what, span, fix, code="character")
    if names is None:
        return
    if string in names:
        what = f"the key '{_shown(string)}' stands twice in one object, again at line {span.position[0]}"
        yield Problem(what, names[string], "remove or rename all but one", (span,), "duplicate-key")
    names.setdefault(string, span)


def _json_word_problems(token: str, span: Span) -> abc.Iterator[Problem]:
    if token in ("NaN", "Infinity", "-Infinity"):
        what, fix = "infinity and NaN are not JSON data", "write a finite number, null or a string"
        yield Problem(what, span, fix, code="value")
    elif _INT.fullmatch(token) and len(token) > MAX_DIGITS:
        yield Problem("this number has too many digits", span, "write it as a string", code="value")
    elif _FLOAT.fullmatch(token) and not isfinite(float(token)):
        yield Problem("this number is too large", span, "write it as a string", code="value")


def _json_too_deep(source: Source) -> LimitError:
    depth = 0
    for token in _JSON_TOKEN.finditer(source.text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > MAX_DEPTH:
            what, where, fix = _too_deep(Span(source, *token.span()))
            return LimitError(what, str(where), fix, code="too-deep")
    raise InternalError("a JSON text was found too deep and is not", source.name)


_JSON_WORDS: Final = (
    # json's own words, by how they begin: ours, and what to do
    ("Expecting property name", "a key in double quotes is missing", "quote the key, or remove a last ','"),
    ("Illegal trailing comma", "nothing follows this ','", "remove it"),
    ("Expecting ':'", "a ':' is missing after the key", "write ':' and the value"),
    ("Expecting ','", "a ',' or a closing bracket is missing here", "separate the values by ','"),
    ("Expecting value", "a value is missing here", "write a string in double quotes, a number or null"),
    ("Extra data", "this stands after the end of the data", "remove it, or put all values in one list"),
    ("Unterminated string", "this string is never closed", "close it with '\"'"),
    ("Invalid control", "a string cannot hold a control character", "write it as \\n, \\t or \\uNNNN"),
    ("Invalid", "there is no such escape", "write '\\\\' for a backslash"),
)


def _json_syntax_problem(source: Source, error: json.JSONDecodeError) -> Problem:
    other = ("", "this cannot be read as JSON", "check quotes and commas")
    _, what, fix = next((row for row in _JSON_WORDS if error.msg.startswith(row[0])), other)
    return Problem(what, Span(source, error.pos, error.pos + 1), fix, code="syntax")
