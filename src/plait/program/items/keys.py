"""What an item is called in the paths of a run: by its `id:`, or by what it holds.

A key is one safe segment of a path.  Letters, digits and `._-` of an id stay, every other
byte is written `%2F`; a long id is cut, with `~` and a digest after it.  The second item
of the same key is `key#2`.  The same items in the same order get the same keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from json import JSONEncoder

from plait.core.digests import sha256_hex
from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.source import Span
from plait.core.values import Json, json_text, text
from plait.scope import Scope
from plait.scope.expressions import item_facts
from plait.template.program import FACTS
from plait.template.template import Template

MAX_KEY: Final = 64
"""Characters of a key, its number not counted."""
DIGITS: Final = 12
"""Of a digest in a key."""
LISTS: Final = 0xFFF
"""The bits that choose one of the lists in which the numbers of keys are."""

NO_NAMES: Final = Scope.of({})

_encode: Final = JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(item: Json) -> bytes:
    """One text for equal data, whatever the order of its keys."""
    try:
        return _encode(item).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return json_text(item).encode(
            "utf-8", "surrogatepass"
        )  # which masks secrets, or says what is wrong


def item_key(
    item: Json,
    id_template: Template | None = None,
    scope: Scope = NO_NAMES,
    *,
    mask: Callable[[str], str] = str,
) -> str:
    """The key of an item among items that differ; `keyed` tells equal ones apart."""
    if id_template is None:
        return sha256_hex(canonical(item))[:DIGITS]
    scope = scope.frame("item", phase={"item": item, "item" + FACTS: item_facts(item)})
    said = mask(text(id_template.render(scope, strict=True)))
    if not said:
        source = id_template.leaf.source
        raise InputError(
            "the id of an item is empty",
            Span(source, 0, len(source.text)),
            "choose a field that every item has, or leave 'id' out",
            code="empty-id",
        )
    return _segment(said)


def with_keys(
    items: Iterable[Json],
    id_template: Template | None = None,
    scope: Scope = NO_NAMES,
    *,
    mask: Callable[[str], str] = str,
) -> Iterator[tuple[str, Json]]:
    """Each item with a key of its own; `scope`: what an id knows beside the item."""
    # A number for each key, as a million of texts would take ten times the memory.
    # Two keys with one number only get a `#2` that is not needed.
    seen = CompactIntSet()
    again: dict[str, int] = {}
    for item in items:
        key = item_key(item, id_template, scope, mask=mask)
        mark = int(sha256_hex(key.encode())[:15], 16) if id_template else int(key, 16)
        if not seen.add(mark):
            again[key] = again.get(key, 1) + 1
            key = f"{key}#{again[key]}"
        yield key, item


class CompactIntSet:
    """A set of numbers below 2⁶⁴ that takes some ten bytes for each, where `set` takes a hundred.

    They are digests, so their last bits spread them evenly over many short sorted lists.
    """

    def __init__(self) -> None:
        self._lists: dict[int, array[int]] = {}

    def add(self, number: int) -> bool:
        """Is it new?"""
        numbers = self._lists.get(number & LISTS)
        if numbers is None:
            numbers = self._lists[number & LISTS] = array("Q")
        place = bisect_left(numbers, number)
        if place < len(numbers) and numbers[place] == number:
            return False
        numbers.insert(place, number)
        return True


def _segment(said: str) -> str:
    key = "".join(map(_escape_char, said))
    if key.strip(".") == "":
        return key.replace(".", "%2E")
    if len(key) <= MAX_KEY:
        return key
    digest = sha256_hex(said.encode("utf-8", "surrogatepass"))[:DIGITS]
    return f"{key[: MAX_KEY - DIGITS - 1]}~{digest}"


def _escape_char(char: str) -> str:
    if char.isalnum() or char in "._-":
        return char
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
