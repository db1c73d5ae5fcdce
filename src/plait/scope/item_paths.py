"""Paths into the items of a map, as filters, sort keys and `${item.x}` use them."""

from __future__ import annotations

from plait.core.values import UNDEFINED, Json
from plait.template.compiled import Answer, follow_path
from plait.template.grammar import parse_path
from plait.template.nodes import Path


def item_facts(item: Json) -> dict[str, Json]:
    """Facts about an item beside its own fields: for a text, its `value` and `path`.

    They are used for `${item.path}` if the item has no such field; an item that is a map has no
    facts.
    """
    match item:
        case str():
            return {"value": item, "path": item, "name": item.rstrip("/").rpartition("/")[2]}
        case None | dict() | list():
            return {}
        case _:
            return {"value": item}


def item_path(text: str) -> Path:
    """Parse a path into an item, with the prefix `item` or without; raise InputError if it is not
    one.
    """
    path = parse_path(f"item.{text}")
    return Path("item", path.keys[1:] if path.keys[0] == "item" else path.keys)


def find(item: Json, keys: tuple[str | int, ...]) -> Answer:
    """The value at a path, in the item or in the facts about it."""
    found = follow_path(item, keys)
    if found is UNDEFINED and item.__class__ is not dict:
        return follow_path(item_facts(item), keys)
    return found
