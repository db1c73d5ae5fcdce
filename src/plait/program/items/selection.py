"""Select and order items: json_path → filter → sort → distinct → offset → max_items.

`distinct` keeps the first of equal items, compared as a whole or by a field (missing is null). Each
of the six is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from plait.core.digests import sha256
from plait.core.documents import Mapping, Scalar
from plait.core.errors import InputError, PlaitError, Problem
from plait.core.hints import TypeVar
from plait.core.records import dataclass
from plait.core.source import Source
from plait.core.values import UNDEFINED, Json
from plait.program.items.json_path import JsonPath, compile_json_path
from plait.program.items.keys import canonical
from plait.program.items.sorting import SortOrder, compile_order
from plait.scope.expressions import Expression, compile_filter
from plait.scope.item_paths import find, item_path

Compiled = TypeVar("Compiled")


@dataclass(frozen=True, slots=True)
class Selection:
    json_path: JsonPath | None = None
    filter: Expression | None = None
    sort_by: SortOrder | None = None
    distinct: tuple[str | int, ...] | None = None
    """The path to the field that must differ; (): the whole item."""
    offset: int = 0
    max_items: int | None = None


def select(items: Iterable[Json], selection: Selection) -> Iterator[Json]:
    """Yield the selected items in order.

    With a `json_path`, the items are a document that is a list. If `read_items` has already applied
    the path, pass a selection without it.
    """
    chosen = iter(items)
    if (path := selection.json_path) is not None:
        chosen = (
            path.of_elements(chosen)
            if path.streams_items
            else path.of_document(list(chosen), "items")
        )
    if selection.filter is not None:
        chosen = filter(selection.filter.holds, chosen)
    if selection.sort_by is not None:
        chosen = selection.sort_by.sort_items(chosen, first=_sort_limit(selection))
    if selection.distinct is not None:
        chosen = _distinct(chosen, selection.distinct)
    end = None if selection.max_items is None else selection.offset + selection.max_items
    return islice(chosen, selection.offset, end)


def _sort_limit(selection: Selection) -> int | None:
    """How many of the first items are enough; unknown if duplicates are removed later."""
    if selection.max_items is None or selection.distinct is not None:
        return None
    return selection.offset + selection.max_items


def _distinct(items: Iterator[Json], keys: tuple[str | int, ...]) -> Iterator[Json]:
    # 120 bits of a digest each: values may be long, and there may be a million of them.
    seen: set[int] = set()
    for item in items:
        value = find(item, keys)
        digest = sha256(canonical(None if value is UNDEFINED else value)).digest()
        mark = int.from_bytes(digest[:15], "big")
        if mark not in seen:
            seen.add(mark)
            yield item


# ── reading a selection ──────────────────────────────────────────────────


def read_selection(node: Mapping) -> Selection:
    """Read a selection; raises InputError with all problems."""
    reader = _Reader(node)
    selection = Selection(
        json_path=reader.compile_field("json_path", compile_json_path),
        filter=reader.compile_field("filter", compile_filter),
        sort_by=reader.compile_field("sort_by", compile_order),
        distinct=reader.distinct(),
        offset=reader.count("offset") or 0,
        max_items=reader.count("max_items"),
    )
    if reader.problems:
        raise InputError.together(reader.problems)
    return selection


class _Reader:
    def __init__(self, node: Mapping) -> None:
        self.node = node
        self.problems: list[Problem] = []

    def compile_field(
        self, key: str, compile_: Callable[[str, Source], Compiled]
    ) -> Compiled | None:
        node = self.node.get(key)
        if node is None:
            return None
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.wrong(key, f"'{key}' is text", "put it in quotes")
            return None
        try:
            return compile_(node.value, node.source())
        except PlaitError as error:
            self.problems += error.problems
            return None

    def distinct(self) -> tuple[str | int, ...] | None:
        match self.node.get("distinct"):
            case None | Scalar(False):
                return None
            case Scalar(True):
                return ()
            case Scalar(str() as path):
                try:
                    return item_path(path).keys
                except InputError:
                    self.wrong(
                        "distinct",
                        "this is not a path",
                        "write a field, a.b, or true for the whole item",
                    )
            case _:
                self.wrong(
                    "distinct", "'distinct' is a field, or true", "write the name of a field"
                )
        return None

    def count(self, key: str) -> int | None:
        match self.node.get(key):
            case None:
                return None
            case Scalar(int() as number) if not isinstance(number, bool) and 0 <= number < 1 << 63:
                return number
        self.wrong(key, f"'{key}' is a whole number, 0 or more", "write for example 10")
        return None

    def wrong(self, key: str, what: str, fix: str) -> None:
        node = self.node.get(key)
        where = node.span if node is not None else self.node.span
        self.problems.append(Problem(what, where, fix, code="bad-selection"))
