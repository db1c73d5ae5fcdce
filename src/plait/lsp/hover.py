"""Say what a field, a placeholder or a name is, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.documents.nodes import text_value
from plait.core.errors import PlaitError
from plait.core.source import Span
from plait.core.values import Json
from plait.lang.analysis.explain import PlaceholderRow, TextField, explain
from plait.lang.analysis.scopes import TemplateField
from plait.lsp.documents import OpenText, Spot
from plait.lsp.references import referenced, tool_path
from plait.schema.field_types import Field, NoEffect, Refused
from plait.schema.forms import describe
from plait.scope import Scope
from plait.template.nodes import (
    ContextPlaceholder,
    Extract,
    FilledPlaceholder,
    InputPlaceholder,
    Path,
    Placeholder,
    Text,
)
from plait.template.template import compile_template


def hover(text: OpenText, offset: int) -> Json:
    found = placeholder_at(text, offset)
    if found is not None:
        field, placeholder, span = found
        return _answer(text, span, _about_placeholder(text, field, placeholder))
    spot = text.spot(offset)
    if spot is None or spot.key is None:
        return None
    if spot.on_key:
        return _answer(text, spot.key.span, _about_field(spot.field)) if spot.field else None
    value = text_value(spot.value)
    if value is None or spot.value is None:
        return None
    about = _about_name(text, spot, value)
    return _answer(text, spot.value.span, about) if about else None


def _answer(text: OpenText, span: Span, markdown: str) -> Json:
    place = span.place
    return {
        "contents": {"kind": "markdown", "value": markdown},
        "range": text.lines.range(place.start, place.end),
    }


def _about_field(field: Field) -> str:
    if isinstance(field.kind, Refused | NoEffect):
        state = "does not exist here" if isinstance(field.kind, Refused) else "has no effect"
        return f"**{field.name}** {state}: {field.kind.why}"
    lines = [f"**{field.name}**: {describe(field.kind)}", field.what]
    if field.required:
        lines.append("It must be given.")
    if field.default is not None:
        lines.append(f"Default: `{field.default}`")
    return "\n\n".join(lines)


def _about_name(text: OpenText, spot: Spot, value: str) -> str | None:
    match referenced(spot):
        case "tool":
            return _about_tool(text, value)
        case "block" if (block := text.blocks.get(value)) is not None:
            needs = ", ".join(block.needs) or "nothing"
            steps = "1 step" if len(block.steps) == 1 else f"{len(block.steps)} steps"
            return f"**{value}**: a block of {steps}\n\nneeds: {needs}\n\n{block.span}"
    return None


def _about_tool(text: OpenText, tool_id: str) -> str | None:
    from plait.app.subflows import tool_schema
    from plait.tools.headers import read_item

    try:
        found = text.toolbox.spaces.find(tool_id)
        if found is None:
            return None
        header, schema = read_item(found).header, tool_schema(text.toolbox, tool_id)
    except PlaitError as error:
        return f"**{tool_id}**\n\n{error.what}"
    properties = schema.get("properties") if schema is not None else None
    rows = (
        [f"- `{name}`{_about_parameter(one)}" for name, one in properties.items()]
        if isinstance(properties, dict)
        else []
    )
    parts = [
        f"**{tool_id}**: {header.description}",
        "\n".join(rows),
        f"{found.space.name}: `{tool_path(text, tool_id)}`",
    ]
    return "\n\n".join(filter(None, parts))


def _about_parameter(schema: Json) -> str:
    fields = schema if isinstance(schema, dict) else {}
    words = [str(fields[key]) for key in ("type", "description") if fields.get(key)]
    return f": {', '.join(words)}" if words else ""


# ── placeholders ─────────────────────────────────────────────────────────


def placeholder_at(text: OpenText, offset: int) -> tuple[TemplateField, Placeholder, Span] | None:
    for field in text.templates.fields:
        if text.holds(field.scalar.span, offset):
            for placeholder, span in _placeholders(text, field):
                if span.place.start <= offset < span.place.end:
                    return field, placeholder, span
    return None


def _placeholders(text: OpenText, field: TemplateField) -> Iterator[tuple[Placeholder, Span]]:
    source = field.scalar.source()
    try:
        parts = compile_template(
            str(field.scalar.value), text.profile or "", source=source
        ).leaf.compiled.parts
    except PlaitError:
        return
    for part in parts:
        if not isinstance(part, Text | FilledPlaceholder):
            yield part, Span(source, part.start, part.end)


def _about_placeholder(text: OpenText, field: TemplateField, placeholder: Placeholder) -> str:
    row = _row(text, field, placeholder)
    root = root_name(placeholder)
    known = field.known.get(root) if root else None
    written = str(field.scalar.value)[placeholder.start : placeholder.end]
    lines = [f"`{written}`: {row.answer if row is not None else placeholder.kind}"]
    if known is not None:
        type_name = f" ({known.kind})" if known.kind else ""
        lines.append(f"**{root}**{type_name}: {known.what}")
        if known.fields:
            lines.append("fields: " + ", ".join(f"`{name}`" for name in known.fields))
    if row is not None and row.bound:
        lines.append(row.bound)
    return "\n\n".join(lines)


def _row(text: OpenText, field: TemplateField, placeholder: Placeholder) -> PlaceholderRow | None:
    shown = TextField(
        str(field.scalar.value), text.profile or "", field.known, field.shell, field.phase
    )
    try:
        rows = explain(shown, field.scalar.source(), Scope()).rows
    except PlaitError:
        return None
    placed = [one.start for one, _ in _placeholders(text, field)]
    return dict(zip(placed, rows, strict=False)).get(placeholder.start)


def root_name(placeholder: Placeholder) -> str | None:
    """The variable that a placeholder names."""
    match placeholder:
        case ContextPlaceholder():
            for alternative in placeholder.alternatives:
                match alternative.origin:
                    case Path(root) | Extract(Path(root)):
                        return root
            return None
        case InputPlaceholder():
            return placeholder.key
        case _:
            return placeholder.name
