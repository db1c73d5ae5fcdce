"""JSONPath (RFC 9535), compiled when the file is loaded, and how it selects items.

    $.a.b          one value, which must be a list: the items are its elements
    $.a.b[*]…      elements of that list (values of a map; null has none), filtered further;
    $.a.b[?…]…       the list must exist, or a misspelt name would look like an empty list
    anything else  the nodes as defined by RFC 9535; there may be none

The first two need only one element at a time, so they are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plait.core.errors import InputError
from plait.core.records import dataclass, field
from plait.core.source import Source
from plait.core.values import UNDEFINED, Json
from plait.template.compiled import follow_path
from plait.template.json_paths import Query, chooses_one_by_one, compile_query, is_wildcard
from plait.template.operators import type_name


@dataclass(frozen=True, slots=True)
class JsonPath:
    text: str
    names: tuple[str, ...] | None
    """The path to the list whose elements are selected one by one; None: the whole document is
    needed.
    """
    wants_list: bool
    """The path names a single value, which must be the list of items."""
    _query: Query = field(repr=False, compare=False)
    _each: Query | None = field(repr=False, compare=False)
    """The query for a list with one element; None: the element itself."""

    @property
    def streams_items(self) -> bool:
        """Whether it selects item by item if the document is the list itself."""
        return self.names == ()

    def of_document(self, document: Json, where: str) -> Iterator[Json]:
        if self.names is None:
            found = [node.value for node in self._query.nodes(document, where)]
            yield from (
                require_list(found[0] if found else UNDEFINED, self, where)
                if self.wants_list
                else found
            )
            return
        yield from self.of_elements(path_elements(follow_path(document, self.names), self, where))

    def of_elements(self, elements: Iterable[Json]) -> Iterator[Json]:
        """Yield what is selected from the elements of the list at `names`."""
        if self._each is None:
            yield from elements
            return
        for element in elements:
            for node in self._each.nodes([element]):
                yield node.value


def path_elements(found: Json, path: JsonPath, where: str) -> list[Json]:
    """The elements to select from, if `names` leads to `found`."""
    if path.wants_list:
        return require_list(found, path, where)
    match found:
        case list():
            return found
        case dict():
            return list(found.values())
        case None:
            return []
    raise no_list(found, path, where)


def require_list(found: Json, path: JsonPath | None, where: str) -> list[Json]:
    if isinstance(found, list):
        return found
    raise no_list(found, path, where)


def no_list(found: Json, path: JsonPath | None, where: str) -> InputError:
    at = f"at '{path.text}'" if path is not None and path.text != "$" else "in it"
    if found is UNDEFINED:
        fix = "correct json_path; for JSON Lines it applies to the list of all lines: $[*]…"
        return InputError(f"there is nothing {at}", where, fix, code="not-a-list")
    return not_a_list(type_name(found), list(found) if isinstance(found, dict) else [], at, where)


def not_a_list(kind: str, keys: list[str], at: str, where: str) -> InputError:
    key = next((key for key in keys if key.isidentifier()), "items")
    return InputError(
        f"a list of items was expected {at}, but there is {kind}",
        where,
        f"say where the list is, for example json_path: $.{key}[*]",
        code="not-a-list",
    )


def compile_json_path(text: str, source: Source | None = None) -> JsonPath:
    """Compile a path; raises InputError that points to the syntax error."""
    query = compile_query(text, source)
    names, rest = query.leading_names()
    if not rest:
        return JsonPath(text, names, True, query, None)
    if not chooses_one_by_one(rest):
        return JsonPath(text, None, query.is_singular, query, None)
    return JsonPath(
        text, names, False, query, None if is_wildcard(rest) else compile_query(f"${rest}")
    )
