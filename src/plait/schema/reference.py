"""Write the tables as a reference page for people."""

from __future__ import annotations

from plait.core.values import Json, json_text
from plait.schema.field_types import Field, Kind, NoEffect, RecordType, Refused
from plait.schema.forms import FLOW, describe, record_types_in


def render_reference(kind: Kind = FLOW) -> str:
    """The tables of the reference page of a format."""
    return "\n\n".join(_reference(form) for form in record_types_in(kind) if form.fields)


def _reference(form: RecordType) -> str:
    rows = [_row(field) for field in form.fields if not isinstance(field.kind, Refused | NoEffect)]
    lines = [
        f"### {form.name}",
        "",
        form.what,
        "",
        "| field | holds | meaning |",
        "|---|---|---|",
        *rows,
    ]
    lines += _foreign(form, Refused, "Plait refuses these fields of other systems:")
    lines += _foreign(form, NoEffect, "These fields have no effect:")
    return "\n".join(lines)


def _foreign(form: RecordType, kind: type[Refused | NoEffect], title: str) -> list[str]:
    """The rows for fields that only other systems have, by the advice about them."""
    by_advice: dict[str, list[str]] = {}
    for field in form.fields:
        if isinstance(field.kind, kind):
            by_advice.setdefault(field.kind.why, []).append(f"`{field.name}`")
    rows = [f"- {', '.join(names)}: {why}" for why, names in by_advice.items()]
    return ["", title, "", *rows] if rows else []


def _row(field: Field) -> str:
    names = [
        f"`{field.name}`",
        *(f"`{name}`" for name in field.aliases),
        *(f"`{name}` (older)" for name in field.deprecated),
    ]
    meaning = field.what
    if field.required:
        meaning += " (required)"
    elif field.default is not None:
        meaning += f" (`{_default_text(field.default)}`)"
    return f"| {' '.join(names)} | {_cell(describe(field.kind))} | {_cell(meaning)} |"


def _default_text(default: Json) -> str:
    return default if isinstance(default, str) else json_text(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
