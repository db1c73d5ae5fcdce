"""The key of an item in the paths of a run: its `id:`, or a digest of its content.

A key is one safe path segment. Letters, digits and `._-` of an id are kept, every other byte is
escaped like `%2F`. A long id is cut and gets `~` and a digest. The second item with the same key is
`key#2`. The same items in the same order get the same keys.
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
from plait.scope.item_paths import item_facts
from plait.template.compiled import FACTS
from plait.template.template import Template

MAX_KEY: Final = 64
"""The maximum length of a key, without its number."""
DIGITS: Final = 12
"""The length of a digest in a key."""
LISTS: Final = 0xFFF
"""The bits that select one of the sorted lists."""

NO_NAMES: Final = Scope.of({})

_encode: Final = JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(item: Json) -> bytes:
    """The same text for equal data, regardless of the order of keys."""
    try:
        return _encode(item).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        # Masks secrets, or reports the problem.
        return json_text(item).encode("utf-8", "surrogatepass")


def item_key(
    item: Json,
    id_template: Template | None = None,
    scope: Scope = NO_NAMES,
    *,
    mask: Callable[[str], str] = str,
) -> str:
    """The key of an item; `with_keys` numbers equal keys."""
    if id_template is None:
        return sha256_hex(canonical(item))[:DIGITS]
    scope = scope.frame("item", phase={"item": item, "item" + FACTS: item_facts(item)})
    id_text = mask(text(id_template.render(scope, strict=True)))
    if not id_text:
        source = id_template.leaf.source
        raise InputError(
            "the id of an item is empty",
            Span(source, 0, len(source.text)),
            "choose a field that every item has, or leave 'id' out",
            code="empty-id",
        )
    return _path_segment(id_text)


def with_keys(
    items: Iterable[Json],
    id_template: Template | None = None,
    scope: Scope = NO_NAMES,
    *,
    mask: Callable[[str], str] = str,
) -> Iterator[tuple[str, Json]]:
    """Yield each item with a unique key; an id may use the variables of `scope`."""
    # Numbers instead of texts: a million texts would take ten times the memory. A collision only
    # adds a needless `#2`.
    seen = CompactIntSet()
    duplicates: dict[str, int] = {}
    for item in items:
        key = item_key(item, id_template, scope, mask=mask)
        number = int(sha256_hex(key.encode())[:15], 16) if id_template else int(key, 16)
        if not seen.add(number):
            duplicates[key] = duplicates.get(key, 1) + 1
            key = f"{key}#{duplicates[key]}"
        yield key, item


class CompactIntSet:
    """A set of numbers below 2⁶⁴ that takes about ten bytes per number instead of a hundred.

    The numbers are digests, so their last bits spread them evenly over many short sorted lists.
    """

    def __init__(self) -> None:
        self._lists: dict[int, array[int]] = {}

    def add(self, number: int) -> bool:
        """Add a number; False if it was in the set."""
        numbers = self._lists.get(number & LISTS)
        if numbers is None:
            numbers = self._lists[number & LISTS] = array("Q")
        place = bisect_left(numbers, number)
        if place < len(numbers) and numbers[place] == number:
            return False
        numbers.insert(place, number)
        return True


def _path_segment(id_text: str) -> str:
    key = "".join(map(_escape_char, id_text))
    if key.strip(".") == "":
        return key.replace(".", "%2E")
    if len(key) <= MAX_KEY:
        return key
    digest = sha256_hex(id_text.encode("utf-8", "surrogatepass"))[:DIGITS]
    return f"{key[: MAX_KEY - DIGITS - 1]}~{digest}"


def _escape_char(char: str) -> str:
    if char.isalnum() or char in "._-":
        return char
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
