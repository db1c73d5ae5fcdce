"""The nodes of a document: JSON data in which every value knows its place.

A string knows the place of each of its characters, so an error inside a template points into the
file.
"""

from __future__ import annotations

import json
import re
from collections import abc

from plait.core.documents.limits import printable_name
from plait.core.documents.positions import origin
from plait.core.errors import InternalError, Problem, closest_name, format_names, with_article
from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.core.source import Excerpt, Source, Span
from plait.core.values import Json

Step: TypeAlias = str | int
Plain: TypeAlias = str | int | float | bool | None


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
        """The string as a source whose spans show their place in the file."""
        if not isinstance(self.value, str):
            raise InternalError("only a string can be read as a source", self.span)
        outer = self.span.source
        return Excerpt(
            outer.name, self.value, outer=outer, origin=origin(self.value, self.span, self.style)
        )


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
    """Entries in the order of the file; every key is a string and occurs once."""

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
        """The place of a key; that of the map if it has no such key."""
        entry = self._table.get(key)
        return entry[0].span if entry else self.span

    def at(self, path: str | abc.Iterable[Step]) -> Node | None:
        return _at(self, path)


Node: TypeAlias = Scalar | Sequence | Mapping


def _at(node: Node, path: str | abc.Iterable[Step]) -> Node | None:
    """The node under a path: `steps.0.env`, `steps[0]["a.b"]`, or a list of steps."""
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


def span_at(node: Node, path: str | abc.Iterable[Step]) -> Span:
    """The place of the node under a path; that of `node` if there is none."""
    return (_at(node, path) or node).span


def text_value(node: Node | None) -> str | None:
    """The text of a node; None if the node is not a text."""
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def text_field(node: Node | None, key: str) -> str | None:
    """The text under a key of a map."""
    return text_value(node.get(key)) if isinstance(node, Mapping) else None


def map_entries(node: Node | None) -> list[tuple[str, Node]]:
    """The names and values of a map; nothing if the node is not a map."""
    entries = node.entries if isinstance(node, Mapping) else ()
    return [(str(key.value), value) for key, value in entries]


def map_keys(node: Node | None) -> list[str]:
    return [name for name, _ in map_entries(node)]


_STEP = lazy_pattern(r'(?:^|\.)([^.\[\]]++)|\[([0-9]++)\]|\[("(?:[^"\\]++|\\.)*")\]')
_SIMPLE_STEP = lazy_pattern(r"[^.\[\]]+")


def _steps(path: str) -> abc.Iterator[str]:
    at = 0
    while at < len(path):
        if (found := _STEP.match(path, at)) is None:
            raise InternalError(f"'{path}' is not a path", fix='write a.b, a.0 or a["b.c"]')
        name, index, quoted = found.groups()
        yield json.loads(quoted) if quoted else name or index
        at = found.end()


def join_path(path: str, step: Step) -> str:
    """Extend a path by one step, in the form that `at` reads."""
    if not _SIMPLE_STEP.fullmatch(str(step)):
        return f"{path}[{json.dumps(step)}]"
    return f"{path}.{step}" if path else str(step)


PLACED: Final = frozenset({"provider", "model"})
"""Names that are never treated as misspelt."""


def check_keys(
    mapping: Mapping,
    known: abc.Iterable[str],
    *,
    kind: str,
    elsewhere: abc.Callable[[str], str | None] = lambda _: None,
    meant: abc.Mapping[str, str] | None = None,
) -> list[Problem]:
    """Return a problem for every key that a `kind` does not have.

    `elsewhere`: advice for a key that is known in another place. `meant`: words of other
    systems, and the key that each means.
    """
    known = list(known)
    thing = with_article(kind)
    problems = []
    for key, _ in mapping.entries:
        name = str(key.value)
        if name not in known:
            # `retry` for `retry_config`: a beginning of a longer name means that name.
            begins = (one for one in known if name.startswith(f"{one}_"))
            close = (
                (meant or {}).get(name)
                or max(begins, key=len, default=None)
                or closest_name(name, known)
            )
            fix = f"did you mean '{close}'?" if close else f"{thing} has: {format_names(known)}"
            # A name that exists in another place is a better suggestion than a similar one.
            if close is None or mapping.get(close) is not None or name in PLACED:
                fix = elsewhere(name) or fix
            what = f"'{printable_name(name)}' is not a field of {thing}"
            problems.append(Problem(what, key.span, fix, code="unknown-field"))
    return problems


def merge(layers: abc.Sequence[Node]) -> Node:
    """Merge documents into one; later layers win, maps are merged, lists and scalars are
    replaced.

    Only maps are copied: each leaf keeps the span of its layer.
    """
    if not layers:
        raise InternalError("there is no layer to merge")
    merged = layers[0]
    for layer in layers[1:]:
        merged = _merge_nodes(merged, layer)
    return merged


def _merge_nodes(below: Node, above: Node) -> Node:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    table = {key.value: (key, value) for key, value in below.entries}
    for key, value in above.entries:
        known = table.get(key.value)
        table[key.value] = (key, _merge_nodes(known[1], value) if known else value)
    return Mapping(tuple(table.values()), above.span)


def origins(node: Node) -> dict[str, Span]:
    """The place of each leaf by its path; `node.at(path)` takes the same paths."""
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
        yield from _leaves(child, join_path(path, step))
