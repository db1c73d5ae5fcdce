"""`sort_by`: `a.b DESC NULLS FIRST, c`, stable, in bounded memory.

Null, missing and empty text (CSV has no null) come last in both directions by default. A text that
spells a number is compared as a number, as in conditions. Values of different kinds are ordered by
kind: true or false, number, text, list, map; lists and maps by length.

Many items are sorted in batches, which are written to temporary files and merged. A small
`max_items` uses a heap.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice

from plait.core.errors import InputError, Problem, closest_name
from plait.core.hints import IO, Any, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json, Secret, json_text
from plait.scope.expression_values import to_number
from plait.scope.item_paths import find, item_path
from plait.template.operators import type_name

RUN: Final = 20_000
"""The number of items that are sorted in memory."""
MOST_KEPT: Final = 20_000
"""The number of first items up to which a heap is used."""
MAX_KEYS: Final = 16
MOST_RUNS: Final = 200
"""The maximum number of open files."""


@dataclass(frozen=True, slots=True)
class OrderKey:
    keys: tuple[str | int, ...]
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class SortOrder:
    by: tuple[OrderKey, ...]

    def key(self, item: Json) -> tuple[Any, ...]:
        """The sort key of an item."""
        return tuple(_rank(find(item, one.keys), one) for one in self.by)

    def sort_items(self, items: Iterable[Json], *, first: int | None = None) -> Iterator[Json]:
        """Yield all items in order, or the first of them."""
        if first is not None and first <= MOST_KEPT:
            return iter(heapq.nsmallest(first, items, key=self.key))
        return islice(_merge_sort(items, self.key, RUN), first)


class _Descending:
    __slots__ = ("value",)

    def __init__(self, value: tuple[int, Any]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.value == other.value

    def __lt__(self, other: _Descending) -> bool:
        return other.value < self.value

    __hash__ = None  # type: ignore[assignment]


_KINDS: Final = {"true or false": 1, "a number": 2, "a string": 3, "a list": 4, "a map": 5}


def _rank(value: Json, key: OrderKey) -> tuple[Any, ...]:
    if value is None or value is UNDEFINED or value == "":
        return (0 if key.nulls_first else 2,)
    value = to_number(value)
    rank = _KINDS[type_name(value)]
    if rank > 3:
        value = len(value)
    elif isinstance(value, Secret):
        value = value.reveal()
    pair = (rank, value)
    return (1, _Descending(pair) if key.descending else pair)


# ── sorting ──────────────────────────────────────────────────────────────


def _merge_sort(items: Iterable[Json], key: Callable[[Json], Any], size: int) -> Iterator[Json]:
    left = iter(items)
    run = sorted(islice(left, size), key=key)
    following = next(left, UNDEFINED)
    if following is UNDEFINED:
        yield from run
        return
    left = chain([following], left)
    with ExitStack() as files:
        runs = [_write_batch(run, files)]
        del run
        while batch := sorted(islice(left, size), key=key):
            runs.append(_write_batch(batch, files))
            if len(runs) > MOST_RUNS:
                merged = _write_batch(heapq.merge(*map(_read, runs), key=key), files)
                for done in runs:
                    done.close()
                runs = [merged]
        yield from heapq.merge(*map(_read, runs), key=key)


def _write_batch(items: Iterable[Json], files: ExitStack) -> IO[str]:
    from tempfile import TemporaryFile  # slow import, needed for many items only

    file = TemporaryFile("w+", encoding="utf-8", errors="surrogatepass")  # noqa: SIM115 - closed by `files`
    files.callback(file.close)
    file.writelines(f"{json_text(item)}\n" for item in items)
    file.seek(0)
    return file


def _read(file: IO[str]) -> Iterator[Json]:
    return map(json.loads, file)


# ── reading ──────────────────────────────────────────────────────────────

_PART: Final = lazy_pattern(r"[^,\s]+|,")
_WORDS: Final = ("ASC", "DESC", "NULLS", "FIRST", "LAST")


def compile_order(text: str, source: Source | None = None) -> SortOrder:
    """Compile a `sort_by` text; raises InputError with all problems."""
    source = source or Source("sort_by", text)
    problems: list[Problem] = []
    fields: list[list[re.Match[str]]] = [[]]
    for part in _PART.finditer(text):
        if part[0] == ",":
            fields.append([])
        else:
            fields[-1].append(part)
    by = [_order_key(parts, source, problems) for parts in fields]
    if len(by) > MAX_KEYS:
        what = f"more than {MAX_KEYS} fields to sort by"
        problems.append(Problem(what, Span(source, 0, len(text)), "sort by fewer", code="bad-sort"))
    if problems:
        raise InputError.together(problems)
    return SortOrder(tuple(by))


def _order_key(parts: list[re.Match[str]], source: Source, problems: list[Problem]) -> OrderKey:
    if not parts:
        _wrong(
            "a field is missing",
            Span(source, 0, len(source.text)),
            "write a field between commas",
            problems,
        )
        return OrderKey(())
    path, *words = parts
    try:
        keys = item_path(path[0]).keys
    except InputError:
        _wrong("this is not a path", Span(source, *path.span()), "write a.b or a[0]", problems)
        keys = ()
    match [word[0].upper() for word in words]:
        case [] | ["ASC" | "DESC"] as direction:
            return OrderKey(keys, "DESC" in direction)
        case ["NULLS", "FIRST" | "LAST" as nulls]:
            return OrderKey(keys, False, nulls == "FIRST")
        case ["ASC" | "DESC" as direction, "NULLS", "FIRST" | "LAST" as nulls]:
            return OrderKey(keys, direction == "DESC", nulls == "FIRST")
    strange = next((word for word in words if word[0].upper() not in _WORDS), words[0])
    meant = closest_name(strange[0].upper(), _WORDS)
    fix = f"did you mean {meant}? " if meant and strange[0].upper() != meant else ""
    fix += "write field [ASC|DESC] [NULLS FIRST|LAST], with a comma before the next"
    _wrong(
        "this order cannot be read", Span(source, strange.start(), words[-1].end()), fix, problems
    )
    return OrderKey(keys)


def _wrong(what: str, where: Span, fix: str, problems: list[Problem]) -> None:
    problems.append(Problem(what, where, fix, code="bad-sort"))
