"""Paths into the items of a map, as filters, sort keys and `${item.x}` take them."""

from __future__ import annotations

from plait.core.values import UNDEFINED, Json
from plait.template.compiled import Answer, follow_path
from plait.template.grammar import parse_path
from plait.template.nodes import Path


def item_facts(item: Json) -> dict[str, Json]:
    """What is known about an item beside its own fields: a text is its own `value` and `path`.

    They answer `${item.path}` where the item itself does not; a map has fields of its own, and no
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
    """A path into an item, with the prefix `item` or without; InputError if it is none."""
    path = parse_path(f"item.{text}")
    return Path("item", path.keys[1:] if path.keys[0] == "item" else path.keys)


def find(item: Json, keys: tuple[str | int, ...]) -> Answer:
    """What a path leads to, in the item or in the facts about it."""
    found = follow_path(item, keys)
    if found is UNDEFINED and item.__class__ is not dict:
        return follow_path(item_facts(item), keys)
    return found
