"""Write the tables as the reference page, for people."""

from __future__ import annotations

from plait.core.values import Json, json_text
from plait.schema.field_types import Field, Kind, NoEffect, RecordType, Refused
from plait.schema.forms import FLOW, describe, record_types_in


def render_reference(kind: Kind = FLOW) -> str:
    """The tables of the reference page of a format."""
    return "\n\n".join(_reference(form) for form in record_types_in(kind) if form.fields)


def _reference(form: RecordType) -> str:
    rows = [_row(field) for field in form.fields if not isinstance(field.kind, Refused | NoEffect)]
    unlike = [field for field in form.fields if isinstance(field.kind, Refused | NoEffect)]
    lines = [
        f"### {form.name}",
        "",
        form.what,
        "",
        "| field | holds | meaning |",
        "|---|---|---|",
        *rows,
    ]
    for field in unlike:
        assert isinstance(field.kind, Refused | NoEffect)
        word = "refused" if isinstance(field.kind, Refused) else "no effect"
        lines.append(f"| `{field.name}` | {word} | {field.kind.why} |")
    return "\n".join(lines)


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
