"""JSONPath, RFC 9535: one environment for all queries.

Two major versions of the library exist, depending on the version of Python. Only names that both
export are used; this file hides the differences. `match` and `search` use RE2, since neither the
path nor the data is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from plait.core.errors import InputError, LimitError
from plait.core.hints import Any, Final, Protocol
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.template.operators import OPERATORS, RefusedError, Test

MAX_TEXT: Final = 1_000
"""Characters of a path."""

_SPACE: Final = r"[ \t\n\r]*"
_NAME_SEGMENT: Final = (
    rf"""{_SPACE}(?:\.([A-Za-z_\x80-\U0010FFFF][0-9A-Za-z_\x80-\U0010FFFF]*)"""
    rf"""|\[{_SPACE}('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"){_SPACE}\])"""
)
_NAME: Final = lazy_pattern(_NAME_SEGMENT)
_SINGULAR: Final = lazy_pattern(rf"\$(?:{_NAME_SEGMENT}|{_SPACE}\[{_SPACE}-?[0-9]+{_SPACE}\])*")
_WILDCARD: Final = lazy_pattern(rf"{_SPACE}(?:\.\*|\[{_SPACE}\*{_SPACE}\])")
_FILTER: Final = lazy_pattern(rf"{_SPACE}\[{_SPACE}\?")
_QUOTED: Final = lazy_pattern(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


class Node(Protocol):
    """A value that a query found."""

    @property
    def value(self) -> Any: ...

    def path(self) -> str: ...


class _Compiled(Protocol):
    def finditer(self, data: Any, /) -> Iterable[Any]: ...


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    _compiled: _Compiled

    def nodes(self, document: Json, where: str | None = None) -> Iterator[Node]:
        """Find the matches in a document; `where` describes it. Raise LimitError if `..` goes too
        deep.
        """
        from jsonpath_rfc9535 import JSONPathRecursionError

        try:
            yield from self._compiled.finditer(document)
        except (JSONPathRecursionError, RecursionError):
            what = f"the JSON is nested too deeply for '{self.text}'"
            fix = "say where to look by names instead of '..'"
            raise LimitError(what, where, fix, code="too-deep") from None

    @property
    def is_singular(self) -> bool:
        """Does the path consist of names and numbers only, so that it matches at most one value?"""
        return _SINGULAR.fullmatch(self.text.rstrip()) is not None

    def leading_names(self) -> tuple[tuple[str, ...], str]:
        """The names at its beginning, and the text after them."""
        names: list[str] = []
        end = 1
        while found := _NAME.match(self.text, end):
            names.append(found[1] or _unquote(found[2]))
            end = found.end()
        return tuple(names), self.text[end:]


def compile_query(text: str, source: Source | None = None) -> Query:
    """Parse a path of RFC 9535; an error points at what cannot be read."""
    from jsonpath_rfc9535 import JSONPathError, JSONPathRecursionError

    source = source or Source("json_path", text)
    if len(text) > MAX_TEXT:
        what = f"this json_path has more than {MAX_TEXT:,} characters"
        raise LimitError(what, Span(source, 0, 1), "choose by 'filter' instead", code="too-long")
    try:
        return Query(text, _environment().compile(text))
    except (JSONPathRecursionError, RecursionError):
        what = "this json_path is nested too deeply"
        raise LimitError(
            what, Span(source, 0, 1), "choose by 'filter' instead", code="too-deep"
        ) from None
    except JSONPathError as error:
        raise _unreadable(error, source) from None


def chooses_one_by_one(rest: str) -> bool:
    """Can this end of a path be applied to each element of a list alone?

    Not if it uses an index or several selectors, or refers to the root.
    """
    if "$" in rest:
        return False
    if _WILDCARD.match(rest):
        return True
    return _FILTER.match(rest) is not None and _first_brackets_hold_one(rest)


def is_wildcard(rest: str) -> bool:
    """Does this end of a path choose every element, and nothing inside?"""
    return _WILDCARD.fullmatch(rest.rstrip()) is not None


def _first_brackets_hold_one(rest: str) -> bool:
    """`rest` begins with brackets: is there no comma between two selectors in them?"""
    depth = 0
    for sign in _QUOTED.sub("", rest):
        if sign in "[(":
            depth += 1
        elif sign in "])":
            depth -= 1
            if depth == 0:
                break
        elif sign == "," and depth == 1:
            return False
    return True


def _unquote(name: str) -> str:
    from json import loads

    if name[0] == "'":
        inner = re.sub(r"""\\(.)|(")""", _for_json, name[1:-1])
        name = f'"{inner}"'
    return str(loads(name))


def _for_json(found: re.Match[str]) -> str:
    if found[2]:
        return '\\"'
    return "'" if found[1] == "'" else found[0]


def _unreadable(error: Any, source: Source) -> InputError:
    start, end = _token(error)
    start = min(start, max(0, len(source.text) - 1))
    return InputError(
        f"this is not a JSONPath: {error.args[0]}",
        Span(source, start, max(start + 1, min(len(source.text), end))),
        "for example $.items[*] or $.items[?@.price < 10]",
        code="bad-json-path",
    )


def _token(error: Any) -> tuple[int, int]:
    """The range that an error of the library points at."""
    match getattr(error, "token", None):
        case (_, int(start), int(end)):  # 2.x
            return start, end
        case None:
            return 0, MAX_TEXT
        case token:  # 1.x
            return token.index, token.index + len(token.value)


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jsonpath_rfc9535 import JSONPathEnvironment

    environment: Any = JSONPathEnvironment()
    # 1.x has `function_extensions`, 2.x `functions`.
    functions = getattr(environment, "functions", None) or environment.function_extensions
    for name, whole in (("match", True), ("search", False)):
        # A class below the library's own: the types of arguments and result are inherited.
        functions[name] = type(
            name, (type(functions[name]),), {"__call__": _matching(whole=whole)}
        )()
    return environment


def _matching(*, whole: bool) -> Any:
    """`match` or `search` in linear time, whatever the pattern and the data."""

    def matches(_: object, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        test = _pattern(rf"\A(?:{pattern})\z" if whole else pattern)
        try:
            return test is not None and test(text)
        except RefusedError as refused:
            raise LimitError(
                f"a text is {refused.what}", "json_path", refused.fix, code="too-long"
            ) from None

    return matches


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> Test | None:
    try:
        return OPERATORS["regex"].build(pattern)
    except RefusedError:
        return None  # RFC 9535: an invalid pattern matches nothing
