"""JSONPath, RFC 9535, read when the file is loaded; and what it means to choose items by it.

    $.a.b          names one thing, which must be a list: the items are its elements
    $.a.b[*]…      the elements of that list (of a map its values; null has none), chosen further;
    $.a.b[?…]…       something must be there, or a misspelt name would look like an empty list
    anything else  the nodes that RFC 9535 says; there may be none

The first two need only one element at a time, and can be streamed.  Regular expressions in
a path are RE2's, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from plait.engine.operators import OPERATORS, RefusedError, Test, kind_of
from plait.errors import InputError, LimitError
from plait.hints import TYPE_CHECKING, Any, Final
from plait.records import dataclass, field
from plait.source import Source, Span
from plait.template.program import walk
from plait.values import UNDEFINED, Json

if TYPE_CHECKING:
    from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathQuery

MAX_TEXT: Final = 1_000
"""Characters of a path."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    text: str
    names: tuple[str, ...] | None
    """Where the list is of which elements are chosen one by one; None: the whole document is needed."""
    wants_list: bool
    """The path names one thing, and that is the list of items."""
    _query: JSONPathQuery = field(repr=False, compare=False)
    _each: JSONPathQuery | None = field(repr=False, compare=False)
    """What is chosen from a list of one element; None: the element itself."""

    @property
    def streams_items(self) -> bool:
        """Does it choose from a list item by item, when the document is that list?"""
        return self.names == ()

    def of_document(self, document: Json, where: str) -> Iterator[Json]:
        if self.names is None:
            found = [node.value for node in self._query.finditer(document)]
            yield from (
                expect_list(found[0] if found else UNDEFINED, self, where) if self.wants_list else found
            )
            return
        yield from self.of_elements(elements_of(walk(document, self.names), self, where))

    def of_elements(self, elements: Iterable[Json]) -> Iterator[Json]:
        """What is chosen from the elements of the list that `names` leads to."""
        if self._each is None:
            yield from elements
            return
        for element in elements:
            for node in self._each.finditer([element]):
                yield node.value


def elements_of(found: Json, path: JsonPath, where: str) -> list[Json]:
    """The elements that a path can choose from, where its names have led to `found`."""
    if path.wants_list:
        return expect_list(found, path, where)
    match found:
        case list():
            return found
        case dict():
            return list(found.values())
        case None:
            return []
    raise no_list(found, path, where)


def expect_list(found: Json, path: JsonPath | None, where: str) -> list[Json]:
    if isinstance(found, list):
        return found
    raise no_list(found, path, where)


def no_list(found: Json, path: JsonPath | None, where: str) -> InputError:
    at = f"at '{path.text}'" if path is not None and path.text != "$" else "in it"
    if found is UNDEFINED:
        fix = "correct json_path; of JSON Lines it is asked of the list of all lines: $[*]…"
        return InputError(f"there is nothing {at}", where, fix, code="not-a-list")
    return not_a_list(kind_of(found), list(found) if isinstance(found, dict) else [], at, where)


def not_a_list(kind: str, keys: list[str], at: str, where: str) -> InputError:
    key = next((key for key in keys if key.isidentifier()), "items")
    return InputError(
        f"a list of items was expected {at}, and there is {kind}",
        where,
        f"say where the list is, for example json_path: $.{key}[*]",
        code="not-a-list",
    )


def compile_json_path(text: str, source: Source | None = None) -> JsonPath:
    """A path of RFC 9535; InputError that points at what cannot be read."""
    from jsonpath_rfc9535 import JSONPathError, JSONPathQuery

    source = source or Source("json_path", text)
    if len(text) > MAX_TEXT:
        what = f"a json_path of more than {MAX_TEXT:,} characters"
        raise LimitError(what, Span(source, 0, 1), "choose by 'filter' instead", code="too-long")
    environment = _environment()
    try:
        query = environment.compile(text)
    except JSONPathError as error:
        raise _unreadable(error, source) from None
    except RecursionError:
        what = "this json_path is nested too deeply"
        raise LimitError(what, Span(source, 0, 1), "choose by 'filter' instead", code="too-deep") from None
    names = _leading_names(query)
    rest = query.segments[len(names) :]
    if not rest:
        return JsonPath(text, names, True, query, None)
    if not _chooses_elements(rest):
        return JsonPath(text, None, query.singular_query(), query, None)
    each = None if str(rest[0]) == "[*]" and len(rest) == 1 else JSONPathQuery(env=environment, segments=rest)
    return JsonPath(text, names, False, query, each)


def _unreadable(error: Any, source: Source) -> InputError:
    token = error.token
    start = min(token.index, max(0, len(source.text) - 1)) if token else 0
    end = max(start + 1, min(len(source.text), start + len(token.value))) if token else len(source.text)
    return InputError(
        f"this is not a JSONPath: {error.args[0]}",
        Span(source, start, end),
        "for example $.items[*] or $.items[?@.price < 10]",
        code="bad-json-path",
    )


def _leading_names(query: JSONPathQuery) -> tuple[str, ...]:
    from jsonpath_rfc9535.segments import JSONPathChildSegment
    from jsonpath_rfc9535.selectors import NameSelector

    names: list[str] = []
    for segment in query.segments:
        match segment.selectors if isinstance(segment, JSONPathChildSegment) else ():
            case (NameSelector() as selector,):
                names.append(selector.name)
            case _:
                break
    return tuple(names)


def _chooses_elements(rest: tuple[Any, ...]) -> bool:
    """Can `rest` be asked of each element alone?  Not by index, and not if it looks back at the root."""
    from jsonpath_rfc9535.segments import JSONPathChildSegment
    from jsonpath_rfc9535.selectors import FilterSelector, WildcardSelector

    first = rest[0]
    alone = isinstance(first, JSONPathChildSegment) and len(first.selectors) == 1
    return (
        alone
        and isinstance(first.selectors[0], WildcardSelector | FilterSelector)
        and "$" not in "".join(map(str, rest))
    )


@lru_cache(maxsize=1)
def _environment() -> JSONPathEnvironment:
    from jsonpath_rfc9535 import JSONPathEnvironment
    from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction

    class Matching(FilterFunction):
        """`match` and `search` in linear time, whatever the pattern and the data."""

        arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012  # the library's own attribute
        return_type = ExpressionType.LOGICAL

        def __init__(self, *, whole: bool) -> None:
            self._whole = whole

        def __call__(self, text: object, pattern: object) -> bool:
            if not isinstance(text, str) or not isinstance(pattern, str):
                return False
            test = _pattern(rf"\A(?:{pattern})\z" if self._whole else pattern)
            try:
                return test is not None and test(text)
            except RefusedError as refused:
                raise LimitError(
                    f"a text is {refused.what}", "json_path", refused.fix, code="too-long"
                ) from None

    environment = JSONPathEnvironment()
    environment.function_extensions["match"] = Matching(whole=True)
    environment.function_extensions["search"] = Matching(whole=False)
    return environment


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> Test | None:
    try:
        return OPERATORS["regex"].build(pattern)
    except RefusedError:
        return None  # RFC 9535: a pattern that is none matches nothing
