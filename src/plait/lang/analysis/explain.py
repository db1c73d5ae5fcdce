"""Find where each value of a template comes from, and its result, for `plait explain`.

Nothing runs, and no file is opened for a `${file:…}`: computed values are named, not computed.
Values of the environment are never shown, only whether they are set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.errors import PlaitError, Problem, PromptTemplateError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import MASK, UNDEFINED, Json, Secret, json_text
from plait.lang.analysis.names import BuiltinName
from plait.lang.analysis.shell import shell_pieces
from plait.scope import Scope
from plait.scope.frames import ALIASES
from plait.template.compiled import PlacedValue
from plait.template.nodes import (
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    FilledPlaceholder,
    InputPlaceholder,
    Literal,
    ParamPlaceholder,
    Parts,
    Path,
    Placeholder,
    PromptPlaceholder,
    Text,
    default_parts,
    nested_parts,
)
from plait.template.profiles import profile_named
from plait.template.shell.binding import bind, plan
from plait.template.shell.lexer import SlotContext, ValueSlot, analyse
from plait.template.template import Leaf, compile_template

BOUND: Final = {
    "bare": "bound as one word",
    "single": "bound inside '…'",
    "double": 'bound inside "…"',
    "dollar-single": "bound inside $'…'",
    "heredoc": "bound in the here-document",
    "parameter": "bound in an expansion",
    "quoted-parameter": "bound in an expansion",
    "quoted-pattern": "bound in an expansion",
    "arithmetic": "bound as an integer",
    "comment": "left out: a comment",
}
LEFT: Final = "left to the shell"
VALUELESS: Final = ("computed", "missing", "shell", "known", "environment")
ONCE, ALWAYS_NEW = "read once per run", "new for every use"


@dataclass(frozen=True, slots=True)
class PlaceholderRow:
    """A placeholder: the origin of its value, and how it is used."""

    text: str
    kind: str
    stage: int
    status: str
    answer: str
    value: str | None = None
    bound: str | None = None
    inner: tuple[PlaceholderRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A template with its placeholders."""

    label: str
    place: str
    text: str
    profile: str
    rows: tuple[PlaceholderRow, ...]
    runs_as: str | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class TextField:
    """A template, and the names that are known at its place."""

    text: str
    profile: str
    known: Mapping[str, BuiltinName]
    shell: bool
    phase: str = "flow"
    label: str = "text"
    place: str = ""


def explain(field: TextField, source: Source, scope: Scope) -> Explanation:
    leaf = compile_template(field.text, field.profile, source=source).leaf
    flaws = [
        Problem(f.what, Span(source, f.start, f.end), f.fix, code=f.code)
        for f in leaf.compiled.flaws
    ]
    places, runs_as, refused = _bind_field(field, leaf, scope) if field.shell else ({}, None, [])
    rows = tuple(_rows(leaf.compiled.parts, field, source, scope, places))
    return Explanation(
        field.label, field.place, field.text, field.profile, rows, runs_as, (*flaws, *refused)
    )


def _rows(
    parts: Parts, field: TextField, source: Source, scope: Scope, places: Mapping[int, str]
) -> Iterator[PlaceholderRow]:
    for part in parts:
        if isinstance(part, Text | FilledPlaceholder):
            continue
        status, answer = _answer(part, field, scope)
        bound = places.get(part.start)
        if status == "missing":
            status, answer = ("shell", LEFT) if bound == LEFT else (status, answer)
            bound = None
        shown = None if status in VALUELESS else _value(part, field, source, scope)
        inner = tuple(
            row for nested in nested_parts(part) for row in _rows(nested, field, source, scope, {})
        )
        text = source.text[part.start : part.end]
        yield PlaceholderRow(text, part.kind, part.stage, status, answer, shown, bound, inner)


def _answer(placeholder: Placeholder, field: TextField, scope: Scope) -> tuple[str, str]:
    """The status of a placeholder, and the origin of its value in words."""
    match placeholder:
        case ContextPlaceholder():
            found = next(
                (
                    a
                    for a in (_origin(a.origin, field, scope) for a in placeholder.alternatives)
                    if a
                ),
                None,
            )
            if found is None and any(step.name == "default" for step in placeholder.filters):
                found = ("default", "its filter 'default'")
        case InputPlaceholder():
            inputs = scope.names.get("inputs")
            given = isinstance(inputs, Mapping) and placeholder.key in inputs
            found = (
                ("found", "an input")
                if given
                else ("default", "optional: empty")
                if placeholder.optional
                else None
            )
        case EnvPlaceholder():
            found = (
                ("environment", "the environment: set") if placeholder.name in os.environ else None
            )
        case ParamPlaceholder() | PromptPlaceholder():
            found = _name(Path(placeholder.name), field, scope)
    if found is not None:
        return found
    if default_parts(placeholder) is not None:
        return "default", "its default"
    return "missing", _describe_missing(placeholder, field)


def _describe_missing(placeholder: Placeholder, field: TextField) -> str:
    if (
        isinstance(placeholder, ContextPlaceholder | EnvPlaceholder)
        and placeholder.required is not None
    ):
        return "missing: an error, it is required"
    if isinstance(placeholder, EnvPlaceholder):
        return "not set: empty"
    if profile_named(field.profile).always_strict:
        return "missing: an error"
    empty = (
        isinstance(placeholder, ContextPlaceholder)
        and profile_named(field.profile).missing_context == "empty"
    )
    return "missing: empty" if empty else "missing: stays as written"


def _origin(
    origin: Path | Literal | Computed | Extract, field: TextField, scope: Scope
) -> tuple[str, str] | None:
    match origin:
        case Literal():
            return "found", "written here"
        case Path():
            return _name(origin, field, scope)
        case Extract(origin=holder):
            return _name(holder, field, scope)
        case Computed(kind, variable=variable):
            if variable is not None and kind in scope.names:
                return _name(Path(kind), field, scope)
            return "computed", f"computed, {ALWAYS_NEW if kind == 'date' else ONCE}"


def _name(path: Path, field: TextField, scope: Scope) -> tuple[str, str] | None:
    origin = scope.origin(path.root)
    if origin is not None:
        if scope.lookup(path) is UNDEFINED:
            return None
        return "found", f"frame {origin.frame}, level {origin.level}"
    if path.root in ALIASES and scope.lookup(path) is not UNDEFINED:
        return "alias", f"deprecated name of item.{ALIASES[path.root]}"
    if path.root == "env" and len(path.keys) == 1:
        state = "set" if str(path.keys[0]) in os.environ else "not set"
        return ("computed", f"environment, {ONCE}: {state}") if state == "set" else None
    if path.root == "uuid" and not path.keys:
        return "computed", f"computed, {ALWAYS_NEW}"
    if path.root in field.known:
        return "known", f"known in {field.phase}: {field.known[path.root].what}"
    if path.root in ALIASES and field.phase == "map":
        return "alias", f"deprecated name of item.{ALIASES[path.root]}"
    return None


def _value(placeholder: Placeholder, field: TextField, source: Source, scope: Scope) -> str | None:
    """The value for people; None if it is unknown before a run."""
    value = _placeholder_value(placeholder, field, source, scope)
    if value is UNDEFINED:
        return None
    if isinstance(value, PlaitError):
        return f"refused: {value.what}"
    if isinstance(value, Secret):
        return MASK
    return value if isinstance(value, str) and value else json_text(value)


def _placeholder_value(
    placeholder: Placeholder, field: TextField, source: Source, scope: Scope
) -> Json:
    # Render it alone: the scope has no files, commands or environment.
    alone = compile_template(source.text[placeholder.start : placeholder.end], field.profile)
    try:
        [piece] = alone.pieces(scope)
    except PromptTemplateError:
        return UNDEFINED
    except PlaitError as error:
        return error
    return piece.value if isinstance(piece, PlacedValue) else UNDEFINED


# ── shell text ───────────────────────────────────────────────────────────


def _bind_field(
    field: TextField, leaf: Leaf, scope: Scope
) -> tuple[dict[int, str], str | None, list[Problem]]:
    """How each placeholder is bound, the command that would run, and the refused values."""
    pieces = shell_pieces(leaf, field.known)
    slots = [piece for piece in pieces if isinstance(piece, ValueSlot)]
    lexed = analyse(pieces, "sh")
    places = {part.start: LEFT for part in leaf.compiled.parts if not isinstance(part, Text)}
    placeholders = {
        part.start: part
        for part in leaf.compiled.parts
        if not isinstance(part, Text | FilledPlaceholder)
    }
    values = [_stand_in(placeholders[slot.start], field, leaf.source, scope) for slot in slots]
    for slot, place, (value, _) in zip(slots, lexed.places, values, strict=True):
        places[slot.start] = _binding(slot, place, value)
    try:
        planned = plan(pieces, "sh", leaf.source)
        shown = bind(
            planned, [value for value, _ in values], trusted=lambda index: not values[index][1]
        ).shown
    except PlaitError as error:
        return places, None, list(error.problems)
    return places, shown, []


def _binding(slot: ValueSlot, place: SlotContext, value: Json) -> str:
    if slot.raw:
        return "pasted as code (:raw)"
    return (
        "bound, one word per element"
        if place.spread and isinstance(value, list)
        else BOUND[place.state]
    )


def _stand_in(
    placeholder: Placeholder, field: TextField, source: Source, scope: Scope
) -> tuple[Json, bool]:
    """Return the value and True; if it is unknown, the text of the placeholder and False."""
    status, _ = _answer(placeholder, field, scope)
    value = (
        UNDEFINED if status in VALUELESS else _placeholder_value(placeholder, field, source, scope)
    )
    if value is UNDEFINED or isinstance(value, PlaitError):
        return source.text[placeholder.start : placeholder.end], False
    return value, True
