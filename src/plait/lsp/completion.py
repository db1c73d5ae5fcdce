"""Complete fields, choices, tool ids, names of blocks, nodes and tasks, and variables.

The text at the cursor is unfinished, so a copy of the text is read in which it is finished: a
begun field gets a value, a begun placeholder is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from plait.core.documents.nodes import map_keys, text_field
from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.values import Json
from plait.lsp.documents import OpenText, Spot
from plait.lsp.references import names, referenced
from plait.schema.field_types import (
    Boolean,
    Choice,
    Kind,
    ListOf,
    NoEffect,
    OneOf,
    Refused,
)
from plait.schema.forms import describe, record_type
from plait.template.grammar import BEGUN

HERE: Final = "plait-cursor"
_KEY: Final = lazy_pattern(r"(?P<ahead>(?:.*[{,]|[ ]*(?:-[ ]+)*)[ ]*)(?P<word>[A-Za-z_-]*)")
_WORD_END: Final = lazy_pattern(r"[\w./:-]*")
_FIELD, _VARIABLE, _VALUE, _MODULE = 5, 6, 12, 9


def complete(text: OpenText, offset: int) -> list[Json]:
    if not text.is_ours:
        return []
    start = text.text.rfind("\n", 0, offset) + 1
    line = text.text[start:offset]
    if begun := BEGUN.search(line):
        return list(_variables(text, offset, begun[1]))
    if found := _KEY.fullmatch(line):
        fields = _fields(text, start + found.start("word"), offset)
        if fields is not None:
            return fields
    return list(_values(text, offset))


def _item(label: str, kind: int, detail: str = "", about: str = "", insert: str = "") -> Json:
    item: dict[str, Json] = {"label": label, "kind": kind}
    for key, value in (("detail", detail), ("documentation", about), ("insertText", insert)):
        if value:
            item[key] = value
    return item


# ── fields ───────────────────────────────────────────────────────────────


def _fields(text: OpenText, start: int, offset: int) -> list[Json] | None:
    """The fields that may begin here; None: no map is around."""
    rest = text.text[offset:]
    after = len(word[0]) if (word := _WORD_END.match(rest)) else 0
    if rest[after:].startswith(":"):
        after += 1
        fill = f"{HERE}:"
    else:
        fill = f"{HERE}: "
    patched = OpenText(text.uri, text.text[:start] + fill + text.text[offset + after :])
    spot = patched.spot(start)
    if spot is None or spot.key is None or str(spot.key.value) != HERE:
        return _first_fields(text) if not text.text[:start].strip(" \r\n-") else None
    around = spot.around[-1]
    used = set(map_keys(around))
    if spot.form is not None:
        return list(_of_form(spot.form, used))
    return list(_of_params(patched, spot, used))


def _first_fields(text: OpenText) -> list[Json]:
    """The fields of every kind of flow, in a file that is still empty."""
    forms = [text.kind] if text.kind in ("provider", "directive") else ["flow", "graph", "ensemble"]
    return list(
        {str(item["label"]): item for form in forms for item in _of_form(form, ())}.values()
    )


def _of_form(form: str, used: Iterable[str]) -> Iterator[Json]:
    table = record_type(form)
    taken = set(used)
    here = {field.name for field in table.fields if taken.intersection(field.spellings)}
    has_action = bool(here.intersection(table.one_of))
    for field in table.fields:
        if isinstance(field.kind, Refused | NoEffect) or taken.intersection(field.spellings):
            continue
        beside = {*field.only_for, *(field.needs or ())[:1]}
        if has_action and (field.name in table.one_of or (beside and not beside & here)):
            continue  # a step does one thing, and has no field of another
        yield _item(field.name, _FIELD, describe(field.kind), field.what, f"{field.name}: ")


def _of_params(text: OpenText, spot: Spot, used: Iterable[str]) -> Iterator[Json]:
    """The parameters of the tool that is called, or what the block needs."""
    if len(spot.around) < 2:
        return
    holder, under = spot.around[-2], spot.keys[-2]
    if under == "with":
        block = text.blocks.get(text_field(holder, "use") or "")
        for name in block.needs if block else ():
            if name not in used:
                yield _item(name, _FIELD, "needed by the block", insert=f"{name}: ")
        return
    tool = text_field(holder, "tool") or text_field(holder, "call")
    for name, about in (
        _parameters(text, tool).items() if tool and under in ("params", "args") else ()
    ):
        if name not in used:
            schema_fields = about if isinstance(about, Mapping) else {}
            yield _item(
                name,
                _FIELD,
                str(schema_fields.get("type", "")),
                str(schema_fields.get("description", "")),
                f"{name}: ",
            )


def _parameters(text: OpenText, tool_id: str) -> Mapping[str, Json]:
    from plait.app.subflows import tool_schema

    try:
        schema = tool_schema(text.toolbox, tool_id)
    except PlaitError:
        return {}
    properties = schema.get("properties") if schema is not None else None
    return properties if isinstance(properties, Mapping) else {}


# ── values ───────────────────────────────────────────────────────────────


def _values(text: OpenText, offset: int) -> Iterator[Json]:
    start = offset
    while (
        start
        and re.match(r"[\w./:-]", text.text[start - 1])
        and text.text[start - 2 : start] != ": "
    ):
        start -= 1
    # Without a value a key has nothing at the cursor.
    patched = OpenText(text.uri, text.text[:start] + HERE + text.text[offset:])
    spot = patched.spot(start)
    if spot is None or spot.on_key or spot.field is None:
        return
    what = referenced(spot)
    for name in names(text, what) if what else ():
        yield _item(name, _MODULE, what or "")
    for word in _words(spot.field.kind):
        yield _item(word, _VALUE)


def _words(kind: Kind) -> Iterator[str]:
    match kind:
        case Choice(words):
            yield from words
        case Boolean():
            yield from ("true", "false")
        case OneOf(kinds):
            for one in kinds:
                yield from _words(one)
        case ListOf(inner):
            yield from _words(inner)


# ── variables ────────────────────────────────────────────────────────────


def _variables(text: OpenText, offset: int, begun: str) -> Iterator[Json]:
    start = offset - len(begun) - 2
    rest = text.text[offset:]
    after = len(word[0]) if (word := _WORD_END.match(rest)) else 0
    after += rest[after:].startswith("}")
    patched = OpenText(text.uri, text.text[:start] + "x" + text.text[offset + after :])
    field = next(
        (one for one in patched.templates.fields if patched.holds(one.scalar.span, start)), None
    )
    if field is None:
        return
    root, dot, _ = begun.rpartition(".")
    if dot:
        known = field.known.get(root)
        for name in known.fields if known is not None else ():
            yield _item(name, _FIELD, f"of {root}")
        return
    for name in field.known:
        one = field.known[name]
        if one.offered:
            yield _item(name, _VARIABLE, one.kind or "", one.what)
