"""An open text of an editor: its document, its kind, its templates, and what stands at an offset."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from urllib.parse import quote, unquote, urlsplit

from plait.core import documents
from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.documents.nodes import map_keys
from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.projects import project_of_file
from plait.core.records import dataclass
from plait.core.source import Span
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import TemplateFields, find_templates
from plait.lang.check import MOST_OF_A_HEAD, YAML, kind_by_place, looks_like_directive
from plait.lang.directive.split import split_directive
from plait.lang.flow_text import MARKDOWN
from plait.lang.languages import LANGUAGES, likely_language
from plait.lang.workflow.compose import Blocks, compose
from plait.lsp.positions import Lines
from plait.schema.field_types import Field, Kind, ListOf, MapOf, OneOf, Record
from plait.schema.forms import FILES, fields_by_spelling
from plait.schema.validate import select_kind

if TYPE_CHECKING:
    from plait.tools.prepare import Toolbox

NO_TEMPLATES: Final = TemplateFields(())


@dataclass(frozen=True, slots=True)
class Spot:
    """A key or a value in a document, and what the tables say of it."""

    around: tuple[Mapping, ...]
    """The maps around it, the innermost last."""
    forms: tuple[str | None, ...]
    """The table of each of these maps; None: its author chooses the keys."""
    keys: tuple[str, ...]
    """The keys that lead to it."""
    key: Scalar | None
    value: Node | None
    field: Field | None
    on_key: bool

    @property
    def form(self) -> str | None:
        return self.forms[-1] if self.forms else None


class OpenText:
    """A text that an editor shows."""

    def __init__(self, uri: str, text: str) -> None:
        self.uri = uri
        self.path = uri_path(uri)
        self.text = text

    @cached_property
    def lines(self) -> Lines:
        return Lines(self.text)

    @property
    def is_ours(self) -> bool:
        """May it be a file of Plait, by its name and place?"""
        if self.path.endswith(MARKDOWN):
            return looks_like_directive(self.path, self.text[:MOST_OF_A_HEAD])
        return self.path.endswith(YAML) or kind_by_place(self.path) == "tool"

    @cached_property
    def document(self) -> Node | None:
        """What can be read of it."""
        if not self.is_ours or len(self.text) > documents.MAX_TEXT:
            return None
        try:
            if self.path.endswith(MARKDOWN):
                return split_directive(self.text, self.path).as_document()
            if self.path.endswith(YAML):
                return documents.parse_partial(self.text, self.path).node
        except PlaitError:
            pass
        return None

    @cached_property
    def kind(self) -> str | None:
        """The kind of the file; None: it is none of those that a table describes."""
        if self.path.endswith(MARKDOWN):
            return "directive" if self.is_ours else None
        placed = kind_by_place(self.path)
        if placed in FILES and placed != "tool":  # a tool may be a flow, too
            return placed
        if self.document is None:
            return None
        profile = detect_profile(self.document)
        for language in LANGUAGES.values():
            if language.profile == profile:
                return language.kind
        if placed is not None or profile is not None:
            return "tool" if placed == "tool" and "tool" in FILES else None
        likely = likely_language(self.document)
        # One field at least must be right: an editor shows YAML files of all kinds.
        table = fields_by_spelling(likely.table) if likely is not None else {}
        is_likely = any(key in table for key in map_keys(self.document))
        return likely.kind if likely is not None and is_likely else None

    @cached_property
    def profile(self) -> str | None:
        return LANGUAGES[self.kind].profile if self.kind in LANGUAGES else None

    @cached_property
    def blocks(self) -> Blocks:
        if self.kind != "workflow" or self.document is None:
            return Blocks()
        try:
            return compose(self.document, self.path, project=project_of_file(self.path)).blocks
        except (PlaitError, OSError):
            return Blocks()

    @cached_property
    def templates(self) -> TemplateFields:
        if self.document is None or self.profile is None:
            return NO_TEMPLATES
        try:
            if self.profile != "workflow":
                return find_templates(self.document, self.profile)
            flow = compose(self.document, self.path, project=project_of_file(self.path))
            blocks = Blocks() if flow.problems else flow.blocks  # a block may use itself
            return find_templates(flow.document, "workflow", blocks=blocks, whole=flow.whole)
        except PlaitError:
            return NO_TEMPLATES

    @cached_property
    def toolbox(self) -> Toolbox:
        from plait.app.toolbox import toolbox

        return toolbox(project_of_file(self.path))

    def holds(self, span: Span, offset: int) -> bool:
        """Is an offset of this text in the span, or at its end?"""
        place = span.place
        return place.source.name == self.path and place.start <= offset <= place.end

    def spot(self, offset: int) -> Spot | None:
        """The innermost key or value at an offset."""
        if self.document is None or self.kind is None:
            return None
        return self._find(
            self.document, FILES[self.kind], offset, Spot((), (), (), None, None, None, False)
        )

    def _find(self, node: Node, kind: Kind | None, offset: int, spot: Spot) -> Spot | None:
        picked = _pick(kind, node)
        match node:
            case Mapping(entries):
                form = picked.form if isinstance(picked, Record) else None
                table = fields_by_spelling(form) if form else {}
                for key, value in entries:
                    name = str(key.value)
                    field = table.get(name)
                    inner = (
                        field.kind if field else picked.kind if isinstance(picked, MapOf) else None
                    )
                    here = Spot(
                        (*spot.around, node), (*spot.forms, form), (*spot.keys, name), key, value,
                        field, self.holds(key.span, offset),
                    )  # fmt: skip
                    if here.on_key:
                        return here
                    if self._is_around(value, offset):
                        return self._find(value, inner, offset, here)
            case Sequence(items):
                inner = picked.kind if isinstance(picked, ListOf) else None
                for item in items:
                    if self._is_around(item, offset):
                        return self._find(item, inner, offset, spot)
        return spot if spot.key is not None and self._is_around(node, offset) else None

    def _is_around(self, node: Node, offset: int) -> bool:
        match node:
            case Scalar():
                return self.holds(node.span, offset)
            case Sequence(items):
                return self.holds(node.span, offset) or any(
                    self._is_around(one, offset) for one in items
                )
            case Mapping(entries):
                return self.holds(node.span, offset) or any(
                    self.holds(key.span, offset) or self._is_around(value, offset)
                    for key, value in entries
                )


def _pick(kind: Kind | None, node: Node) -> Kind | None:
    """The part of a kind that a node is meant to be, although it may be unfinished."""
    if kind is None:
        return None
    found = select_kind(kind, node)
    if found is not None or not isinstance(kind, OneOf):
        return found
    wanted = Record if isinstance(node, Mapping) else ListOf
    return next((one for one in kind.kinds if isinstance(one, wanted)), None)


def uri_path(uri: str) -> str:
    """The path of a URI.  A text that was never saved gets one in the current folder."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return os.path.abspath(unquote(parts.path).replace("\0", "") or "/")
    return os.path.abspath(os.path.basename(unquote(parts.path).replace("\0", "")) or "untitled")


def file_uri(path: str) -> str:
    return "file://" + quote(os.path.abspath(path))


def maps_in(
    node: Node | None, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping]]:
    """Every map of a document with the keys that lead to it."""
    match node:
        case Mapping(entries):
            yield keys, node
            for key, value in entries:
                yield from maps_in(value, (*keys, str(key.value)))
        case Sequence(items):
            for item in items:
                yield from maps_in(item, keys)
