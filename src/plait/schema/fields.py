"""Read maps without problems by their tables: defaults, durations, templates."""

from __future__ import annotations

import re
from collections.abc import Container

from plait.core import documents
from plait.core.documents.nodes import Mapping, Node, Scalar, Sequence
from plait.core.errors import InputError, InternalError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import Json, text
from plait.schema.field_types import Data, Duration, Field, Integer, Kind, ListOf, MapOf, Record
from plait.schema.forms import describe, fields_by_spelling
from plait.schema.validate import (
    has_placeholders,
    is_number,
    is_whole,
    seconds,
    select_kind,
    validate,
)
from plait.template.template import Branch, Constant, Template, compile_template
from plait.template.template import Node as TemplateNode

if TYPE_CHECKING:
    from plait.scope import Scope


def to_template(node: Node, profile: str = "workflow") -> Template:
    """Make a template of a node: of a string, or of every string of a tree; errors point into
    the file.
    """
    return Template(_template_node(node, profile), compile_template("", profile).profile)


def _template_node(node: Node, profile: str) -> TemplateNode:
    match node:
        case Scalar(str(text)):
            return compile_template(text, profile, source=node.source()).leaf
        case Scalar(value):
            return Constant(value)
        case Sequence(items):
            return Branch(tuple(_template_node(item, profile) for item in items))
        case Mapping(entries):
            keys = tuple(str(key.value) for key, _ in entries)
            return Branch(tuple(_template_node(value, profile) for _, value in entries), keys)


def text_template(node: Node) -> Template:
    """The template of a value that must be text; a number or a boolean keeps its written form."""
    node = keep_number_text(node)
    if isinstance(node, Scalar) and not isinstance(node.value, str):
        node = Scalar(text(node.value), node.span)
    return to_template(node)


def keep_number_text(node: Node) -> Node:
    """Return a number that YAML would change, such as 3.10 or 007, as the written text."""
    if (
        not isinstance(node, Scalar)
        or isinstance(node.value, bool)
        or not isinstance(node.value, int | float)
    ):
        return node
    span = node.span
    written = span.source.text[span.start : span.end]
    is_plain = re.fullmatch(r"[-+]?[0-9]+(\.[0-9]*)?", written)
    return Scalar(written, span) if is_plain and written != text(node.value) else node


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads a map without problems by its table.

    `scope` fills placeholders of numbers and durations.
    """

    form: str
    node: Mapping
    scope: Scope

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Node | None:
        field = self._field(name)
        return next(
            (
                found
                for spelling in field.spellings
                if (found := self.node.get(spelling)) is not None
            ),
            None,
        )

    def span(self, name: str) -> Span:
        spelling = next(
            (s for s in self._field(name).spellings if self.node.get(s) is not None), name
        )
        return self.node.key_span(spelling)

    def text(self, name: str) -> str | None:
        value = self._value(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool:
        return self._value(name) is True

    def optional_flag(self, name: str) -> bool | None:
        """A flag; None if it is not set."""
        value = self._value(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self._value(name)
        return value if is_number(value) else None

    def integer(self, name: str) -> int | None:
        node = self.get(name)
        if node is not None and has_placeholders(node):
            kind = self._field(name).kind
            filled = text(to_template(node).render(self.scope)).strip()
            number = int(filled) if re.fullmatch("[0-9]{1,12}", filled) else None
            if number is None or (
                isinstance(kind, Integer)
                and not kind.least <= number <= (number if kind.most is None else kind.most)
            ):
                raise _not_filled(node, name, kind)
            return number
        value = self._value(name)
        return value if is_whole(value) else None

    def seconds(self, name: str) -> float | None:
        node = self.get(name)
        kind = self._field(name).kind
        zero = isinstance(kind, Duration) and kind.zero
        if node is not None and has_placeholders(node):
            found = seconds(to_template(node).render(self.scope), zero=zero)
            if found is None:
                raise _not_filled(node, name, kind)
            return found
        return seconds(self._value(name), zero=zero)

    def strings(self, name: str) -> tuple[str, ...]:
        """The texts of a list, or a single text."""
        node = self.get(name)
        nodes = node.items if isinstance(node, Sequence) else (node,)
        return tuple(
            one.value for one in nodes if isinstance(one, Scalar) and isinstance(one.value, str)
        )

    def template(self, name: str) -> Template | None:
        node = self.get(name)
        return None if node is None else to_template(node)

    def child(self, name: str) -> Fields | None:
        """The map under a name; None if there is none, or if the value is not a map."""
        node = self.get(name)
        picked = None if node is None else select_kind(self._field(name).kind, node)
        if not isinstance(picked, Record):
            return None
        assert isinstance(node, Mapping)
        return Fields(picked.form, node, self.scope)

    def entries(self, name: str) -> list[tuple[str, Node]]:
        """The entries of a map whose keys the author chose."""
        node = self.get(name)
        return (
            [(str(key.value), value) for key, value in node.entries]
            if isinstance(node, Mapping)
            else []
        )

    def variables(self, name: str) -> list[tuple[str, Node]]:
        """The entries of environment variables; their values are text."""
        return [(key, keep_number_text(value)) for key, value in self.entries(name)]

    def items(self, name: str) -> tuple[Node, ...]:
        node = self.get(name)
        return node.items if isinstance(node, Sequence) else ()

    def _value(self, name: str) -> Json:
        node = self.get(name)
        return self._field(name).default if node is None else node.data()

    def _field(self, name: str) -> Field:
        field = fields_by_spelling(self.form).get(name)
        if field is None:
            raise InternalError(f"a {self.form} has no field '{name}'")
        return field


def _not_filled(node: Node, name: str, kind: Kind) -> InputError:
    return InputError(
        f"what is put into '{name}' makes it no longer {describe(kind)}",
        node.span,
        "here env, vars and parameters are known; look at what they hold",
        code="wrong-type",
    )


# ── fingerprints ─────────────────────────────────────────────────────────


def fingerprint_data(node: Node, kind: Kind) -> Json:
    """The data of a node for fingerprints: fields by their first spelling, without
    documentation.
    """
    picked = select_kind(kind, node)
    match picked, node:
        case Record(form), Mapping(entries):
            table = fields_by_spelling(form)
            found = [(table.get(str(key.value)), str(key.value), value) for key, value in entries]
            return {
                field.name if field else name: fingerprint_data(
                    value, field.kind if field else Data()
                )
                for field, name, value in found
                if field is None or not field.is_documentation
            }
        case MapOf(inner), Mapping(entries):
            return {str(key.value): fingerprint_data(value, inner) for key, value in entries}
        case ListOf(inner), Sequence(items):
            return [fingerprint_data(item, inner) for item in items]
    return node.data()


def valid_fields(
    node: documents.Mapping, form: str, names: Container[str] | None = None
) -> documents.Mapping:
    """A map with only the fields, or only the named ones, that have no problems."""
    table = fields_by_spelling(form)
    kept = [
        (key, value)
        for key, value in node.entries
        if str(key.value) in table
        and (names is None or key.value in names)
        and not validate(value, table[str(key.value)].kind)
    ]
    return documents.Mapping(tuple(kept), node.span)
