"""Read the XML head of a directive into the form of YAML front matter.

    ```xml
    <directive name="review" version="1.0.0">
      <metadata> description, model, limits, permissions </metadata>
      <inputs> <input name="file" type="string" required="true">what to look at</input> </inputs>
      <outputs> … </outputs>
      <execute item_id="core/file/read"> <param name="path" value="{input:file}"/> </execute>
    </directive>
    ```

Reading is strict and bounded: no document type, no entities but the five of XML, no unknown
elements in the head.  The content of `<template>`, `<example>` and `<raw>` is text.  Every problem
has its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from xml.parsers import expat

from plait.core.documents import nodes
from plait.core.documents.positions import VERBATIM
from plait.core.errors import InputError, Problem, closest_name, format_names
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.tools.spaces import current_id

MAX_XML: Final = 256 * 1024
"""Characters."""
MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 5_000
OPAQUE: Final = ("template", "example", "raw")
DOCTYPE: Final = "<!DOCTYPE"
ACTIONS: Final = ("execute", "fetch", "search", "load", "sign")


@dataclass(slots=True, eq=False)
class Element:
    tag: str
    attributes: dict[str, str]
    span: Span
    """Its start tag."""
    text: str = ""
    """Its text, without that of its children."""
    inner: list[Element] = field(default_factory=list)

    def first(self, tag: str) -> Element | None:
        return next((one for one in self.inner if one.tag == tag), None)

    @property
    def words(self) -> str:
        return self.text.strip()


_ASIDE: Final = {"<?": "?>", "<!--": "-->"}
"""Constructs before the first element, and how each ends."""


def is_head(text: str) -> bool:
    """Is the first element of this XML a directive?"""
    rest = text.lstrip()
    while (begin := next((one for one in _ASIDE if rest.startswith(one)), None)) is not None:
        _, closed, behind = rest.partition(_ASIDE[begin])
        if not closed:
            break
        rest = behind.lstrip()
    # An unclosed construct or a document type may hide it; the parser reports the problem.
    hides = rest.startswith(("<?", "<!"))
    return "<directive" in rest if hides else rest.startswith("<directive")


def parse_xml_head(source: Source, start: int, end: int) -> nodes.Mapping:
    """Convert the XML between two offsets to a map; raise InputError with all its problems."""
    reader = _Reader(source)
    node = reader.directive(parse_xml(source, start, end))
    if reader.problems:
        raise InputError.together(reader.problems)
    return node


# ── XML to elements ──────────────────────────────────────────────────────


def parse_xml(source: Source, start: int, end: int) -> Element:
    """The one element between two offsets; no external entity is read."""
    if end - start > MAX_XML:
        what = f"the XML of a directive has at most {MAX_XML:,} characters"
        raise InputError(what, Span(source, start, start + 1), "shorten it", code="too-large")
    return _Builder(source, start, end).root()


class _Builder:
    def __init__(self, source: Source, start: int, end: int) -> None:
        self._source, self._start = source, start
        self._text = source.text[start:end]
        self._open: list[Element] = []
        self._root: Element | None = None
        self._count = 0
        self._hidden = dict(_opaque(self._text))
        # The encoding in a declaration does not matter: this is text, and we encode it.
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.EntityDeclHandler = self._refuse_doctype
        self._data = _blank_out(self._text, self._hidden).encode("utf-8", "replace")
        self._is_ascii = len(self._data) == len(self._text)

    def root(self) -> Element:
        try:
            self._parser.Parse(self._data, True)
        except expat.ExpatError as error:
            what = f"this is not XML: {expat.ErrorString(error.code)}"
            fix = "close every element; write &lt; and &amp; for < and &"
            where = self._span(self._parser.ErrorByteIndex, 1)
            raise InputError(what, where, fix, code="bad-xml") from None
        assert self._root is not None, "a document without an element is an error of the parser"
        return self._root

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        span = self._span(self._parser.CurrentByteIndex, len(tag) + 1)
        if self._count > MAX_ELEMENTS or len(self._open) >= MAX_DEPTH:
            what = f"XML has at most {MAX_ELEMENTS:,} elements here, {MAX_DEPTH} inside one another"
            raise InputError(what, span, "shorten it", code="too-large")
        element = Element(tag, dict(attributes), span)
        if self._open:
            self._open[-1].inner.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, tag: str) -> None:
        element = self._open.pop()
        if tag in OPAQUE:
            behind = self._text.find(">", element.span.start - self._start) + 1
            element.text = self._hidden.get(behind, element.text)

    def _characters(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def _refuse_doctype(self, *_: object) -> None:
        # The parser is already past its name.
        behind = self._span(self._parser.CurrentByteIndex, 1)
        begin = max(self._start, self._source.text.rfind(DOCTYPE, self._start, behind.end))
        where = Span(self._source, begin, begin + len(DOCTYPE))
        raise InputError(
            "a document type is not allowed here", where, "remove <!DOCTYPE …>", code="bad-xml"
        )

    def _span(self, index: int, length: int) -> Span:
        at = index if self._is_ascii else len(self._data[:index].decode("utf-8", "replace"))
        at = self._start + max(0, min(at, len(self._text)))
        return Span(self._source, at, min(at + length, len(self._source.text)))


_OPENING: Final = lazy_pattern(r"<!--|<!\[CDATA\[|<(template|example|raw)(?:\s[^<>]*)?>")


def _opaque(text: str) -> Iterator[tuple[int, str]]:
    """The content of raw elements, by its offset."""
    at, closed = 0, dict[str, bool]()
    while (found := _OPENING.search(text, at)) is not None:
        at = found.end()
        if found[0].endswith("/>"):
            continue
        ending = {"<!--": "-->", "<![CDATA[": "]]>"}.get(found[0], f"</{found[1]}>")
        # If the end of one element is missing, it is also missing for later ones: do not search
        # again.
        end = -1 if closed.get(ending) is False else text.find(ending, at)
        closed[ending] = end >= 0
        if end < 0:
            continue
        if found[1]:
            yield at, text[at:end]
        at = end + len(ending)


def _blank_out(text: str, hidden: dict[int, str]) -> str:
    """The text with blanks for raw content, so that offsets stay the same."""
    pieces, at = [], 0
    for start, inside in hidden.items():
        pieces += [text[at:start], re.sub(r"[^\r\n]", " ", inside)]
        at = start + len(inside)
    return "".join([*pieces, text[at:]])


# ── elements to nodes ────────────────────────────────────────────────────


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def directive(self, root: Element) -> nodes.Mapping:
        if root.tag != "directive":
            what = f"the XML of a directive begins with <directive>, not <{root.tag}>"
            self._wrong(root, what, "write <directive name=…>")
        entries = self._attributes(root, ("name", "version", "extends"))
        for element in root.inner:
            match element.tag:
                case "metadata":
                    entries += self._metadata(element)
                case "description":
                    entries.append(self._text(element, "description"))
                case "inputs":
                    entries.append(self._parse_declarations(element, "inputs", "input"))
                case "outputs":
                    entries.append(self._parse_declarations(element, "outputs", "output"))
        actions = [self._action(one) for one in _actions_in(root)]
        if actions:
            entries.append((self._key("actions", root), nodes.Sequence(tuple(actions), root.span)))
        return nodes.Mapping(tuple(self._once(entries)), root.span)

    def _once(
        self, entries: Iterable[tuple[nodes.Scalar, nodes.Node]]
    ) -> Iterator[tuple[nodes.Scalar, nodes.Node]]:
        seen: set[str] = set()
        for key, value in entries:
            name = str(key.value)
            if name in seen:
                what = f"'{name}' is set twice"
                self.problems.append(Problem(what, key.span, "keep one of them", code="bad-xml"))
            else:
                yield key, value
            seen.add(name)

    def _metadata(self, metadata: Element) -> list[tuple[nodes.Scalar, nodes.Node]]:
        readers: dict[str, Callable[[Element], tuple[nodes.Scalar, nodes.Node] | None]] = {
            **dict.fromkeys(("description", "category", "author", "version"), self._plain),
            "model": self._model,
            "model_class": self._model,
            "limits": self._limits,
            "permissions": self._permissions,
            "hooks": self._hooks,
            "context": self._as_it_is,
            "acknowledge": self._as_it_is,
        }
        found = []
        for element in metadata.inner:
            read = readers.get(element.tag)
            if read is None:
                self._unknown(element, readers)
            elif (entry := read(element)) is not None:
                found.append(entry)
        return found

    def _plain(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        return self._text(element, element.tag)

    def _as_it_is(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        return self._key(element.tag, element), nodes.Mapping((), element.span)

    def _model(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        known = self._attributes(element, ("id", "name", "tier", "provider", "fallback"))
        return self._key("model", element), nodes.Mapping(tuple(known), element.span)

    def _limits(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        limits = [
            (self._key(name, element), nodes.Scalar(_number(value), element.span))
            for name, value in element.attributes.items()
        ]
        return self._key("limits", element), nodes.Mapping(tuple(limits), element.span)

    def _permissions(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        """The capabilities of other systems that allow calls; others have no meaning here."""
        patterns = (
            [self._scalar("*", element)] if element.words == "*" and not element.inner else []
        )
        for capability in element.inner:
            if capability.tag == "acknowledge":
                continue
            if capability.tag not in ACTIONS:
                self._unknown(capability, (*ACTIONS, "acknowledge"))
            elif capability.tag == "execute":
                patterns += self._tool_patterns(capability)
        return self._key("permissions", element), nodes.Sequence(tuple(patterns), element.span)

    def _tool_patterns(self, capability: Element) -> Iterator[nodes.Scalar]:
        if capability.words and not capability.inner:
            yield self._scalar(_pattern(capability.words), capability)
        for item in capability.inner:
            if item.tag in ("tool", "directive"):
                prefix = "directive:" if item.tag == "directive" else ""
                yield self._scalar(prefix + _pattern(item.words), item)
            else:
                self._unknown(item, ("tool", "directive"))

    def _parse_declarations(
        self, element: Element, name: str, tag: str
    ) -> tuple[nodes.Scalar, nodes.Node]:
        found = []
        for one in element.inner:
            if one.tag != tag:
                self._unknown(one, (tag,))
                continue
            entries = self._attributes(one, ("name", "type", "default"))
            needed = one.attributes.get("required", "false").strip().lower()
            if needed not in ("true", "false"):
                self._wrong(one, "'required' must be true or false", 'write required="true"')
            entries.append((self._key("required", one), nodes.Scalar(needed == "true", one.span)))
            if one.words:
                entries.append(self._text(one, "description"))
            self._check_attributes(one, ("name", "type", "default", "required"))
            found.append(nodes.Mapping(tuple(entries), one.span))
        return self._key(name, element), nodes.Sequence(tuple(found), element.span)

    def _hooks(self, element: Element) -> tuple[nodes.Scalar, nodes.Node]:
        hooks = tuple(self._hook(one) for one in element.inner)
        return self._key("hooks", element), nodes.Sequence(hooks, element.span)

    def _hook(self, hook: Element) -> nodes.Node:
        entries = self._attributes(hook, tuple(hook.attributes))
        for part in hook.inner:
            if part.tag == "condition":
                condition = {
                    k: _number(v) if k == "value" else v for k, v in part.attributes.items()
                }
                entries.append((self._key("condition", part), self._data(condition, part)))
            elif part.tag == "action":
                calls = [self._action(one) for one in part.inner if one.tag in ACTIONS]
                if calls:
                    entries.append(
                        (self._key("actions", part), nodes.Sequence(tuple(calls), part.span))
                    )
                else:
                    entries.append((self._key("action", part), self._action(part)))
            else:
                entries.append(self._text(part, part.tag))
        return nodes.Mapping(tuple(entries), hook.span)

    def _action(self, element: Element) -> nodes.Mapping:
        entries = self._attributes(element, tuple(element.attributes))
        if element.tag != "action":
            entries.insert(0, (self._key("primary", element), self._scalar(element.tag, element)))
        params = []
        for one in element.inner:
            if one.tag != "param":
                self._unknown(one, ("param",))
                continue
            name = one.attributes.get("name", "")
            value = one.attributes.get("value") or one.words
            params.append((self._key(name, one), self._scalar(value, one)))
        if params:
            entries.append(
                (self._key("params", element), nodes.Mapping(tuple(params), element.span))
            )
        return nodes.Mapping(tuple(entries), element.span)

    # ── helpers ─────────────────────────────────────────────────────

    def _attributes(
        self, element: Element, names: tuple[str, ...]
    ) -> list[tuple[nodes.Scalar, nodes.Node]]:
        return [
            (self._key(name, element), self._scalar(element.attributes[name], element))
            for name in names
            if name in element.attributes
        ]

    def _check_attributes(self, element: Element, known: tuple[str, ...]) -> None:
        for name in element.attributes:
            if name not in known:
                self._wrong(
                    element,
                    f"<{element.tag}> has no attribute '{name}'",
                    _suggest_name(name, known),
                )

    def _text(self, element: Element, name: str) -> tuple[nodes.Scalar, nodes.Node]:
        return self._key(name, element), self._scalar(element.words, element)

    def _key(self, name: str, element: Element) -> nodes.Scalar:
        return nodes.Scalar(name, element.span)

    def _scalar(self, value: str, element: Element) -> nodes.Scalar:
        return nodes.Scalar(value, element.span, VERBATIM)

    def _data(self, data: dict[str, Json], element: Element) -> nodes.Mapping:
        entries = [
            (self._key(name, element), nodes.Scalar(one, element.span))
            for name, one in data.items()
        ]
        return nodes.Mapping(tuple(entries), element.span)

    def _unknown(self, element: Element, known: Iterable[str]) -> None:
        self._wrong(
            element, f"<{element.tag}> is not known here", _suggest_name(element.tag, known)
        )

    def _wrong(self, element: Element, what: str, fix: str) -> None:
        self.problems.append(Problem(what, element.span, fix, code="bad-xml"))


def _actions_in(element: Element) -> Iterator[Element]:
    """Yield calls outside the metadata, where the same elements are permissions."""
    for one in element.inner:
        if one.tag in ACTIONS:
            yield one
        elif one.tag != "metadata":
            yield from _actions_in(one)


def _suggest_name(name: str, known: Iterable[str]) -> str:
    names = list(known)
    guess = closest_name(name, names)
    return f"did you mean '{guess}'?" if guess else f"known: {format_names(names)}"


def _pattern(written: str) -> str:
    """Convert a capability, which is a pattern with dots, to a pattern of tool ids."""
    plain = written if "/" in written else written.replace(".", "/")
    for prefix in ("rye/execute/tool/", "rye/execute/directive/"):
        plain = plain.removeprefix(prefix)
    head, star, _ = plain.partition("*")
    if not star:
        try:
            return current_id(plain)
        except InputError:
            return plain
    if plain in ("rye/*", "rye/execute/*"):
        return "*"
    if head == "rye/file-system/":
        return "core/file/*"
    return plain.replace("rye/core/", "core/", 1) if plain.startswith("rye/core/") else plain


def _number(text: str) -> Json:
    """The value of an attribute: a number, a boolean, or text."""
    plain = text.strip()
    if plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if re.fullmatch(r"-?[0-9]{1,15}", plain):
        return int(plain)
    return float(plain) if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", plain) else text
