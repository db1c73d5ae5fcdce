"""The operators of conditions: a builder checks the operand once and returns the test of a value.

`conditions` says what an operator means; this module says what it refuses, and how the message
reads. A message names kinds of values, never a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial

from plait.core.errors import Problem
from plait.core.hints import Final, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import UNDEFINED, Json, Secret

MAX_PATTERN: Final = 1_000
"""Characters of a regular expression."""

MAX_SEARCHED: Final = 1 << 20
"""Bytes of text that one `regex` test looks through."""

MAX_SEARCH_WORK: Final = 100_000_000
"""Instructions of the pattern times bytes of text: about a second at the very worst."""

Test: TypeAlias = Callable[[Json], bool]
"""Tests the value at a path."""


class RefusedError(Exception):
    """Raised if a test cannot be built; `what` completes a sentence of the caller."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def problem(self, where: Span | str, *, begin: str) -> Problem:
        return Problem(f"{begin} {self.what}", where, self.fix, code="condition")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator; `default` is the operand if no `value` is written. UNDEFINED: `value` is
    required.
    """

    name: str
    build: Callable[[Json], Test]
    null_is_false: bool = True
    default: Json = UNDEFINED


def _build_eq(operand: Json) -> Test:
    return lambda actual: _same(actual, operand)


def _build_ne(operand: Json) -> Test:
    return lambda actual: not _same(actual, operand)


def _build_exists(operand: Json) -> Test:
    if not isinstance(operand, bool):
        raise RefusedError(
            f"{type_name(operand)}, not true or false", "leave it out, or write value: false"
        )
    return lambda actual: (actual is not None) is operand


def _build_in(operand: Json) -> Test:
    if not isinstance(operand, list | tuple):
        raise RefusedError(
            f"{type_name(operand)}, not a list", "write value: [ … ], or use op: contains or eq"
        )
    return lambda actual: any(_same(actual, element) for element in operand)


def _build_order(compare: Callable[[Json, Json], bool], operand: Json) -> Test:
    expected = type_name(operand)
    if expected not in ("a number", "a string"):
        raise RefusedError(f"{expected}, which has no order", "compare with a number or a string")

    def test(actual: Json) -> bool:
        if type_name(actual) != expected:
            raise RefusedError(
                f"{type_name(actual)} and is compared with {expected}",
                "compare numbers with numbers and strings with strings",
            )
        return compare(_reveal(actual), _reveal(operand))

    return test


def _build_contains(operand: Json) -> Test:
    def test(actual: Json) -> bool:
        match _reveal(actual):
            case list() | tuple() as elements:
                return any(_same(element, operand) for element in elements)
            case str() | Mapping() as holder if type_name(operand) == "a string":
                return _reveal(operand) in holder
            case str() | Mapping():
                what = f"{type_name(actual)} and is searched for {type_name(operand)}"
                raise RefusedError(what, "search strings and maps for a string")
        raise RefusedError(
            f"{type_name(actual)}, which contains nothing", "look into a string, a list or a map"
        )

    return test


def _build_regex(operand: Json) -> Test:
    if type_name(operand) != "a string":
        raise RefusedError(f"{type_name(operand)}, not a pattern", "write the pattern as a string")
    program = _compile_pattern(_reveal(operand))

    def test(actual: Json) -> bool:
        if type_name(actual) != "a string":
            raise RefusedError(
                f"{type_name(actual)}, and a pattern is searched in strings", "test a string"
            )
        text = _utf8(_reveal(actual))
        if len(text) > MAX_SEARCHED or len(text) * program.programsize > MAX_SEARCH_WORK:
            raise RefusedError(
                "too long for this pattern",
                f"search at most {MAX_SEARCHED:,} bytes, less with a pattern of many repetitions",
            )
        return program.search(text) is not None

    return test


OPERATORS: Final[dict[str, Operator]] = {
    found.name: found
    for found in (
        Operator("eq", _build_eq, null_is_false=False),
        Operator("ne", _build_ne, null_is_false=False),
        Operator("gt", partial(_build_order, operator.gt)),
        Operator("gte", partial(_build_order, operator.ge)),
        Operator("lt", partial(_build_order, operator.lt)),
        Operator("lte", partial(_build_order, operator.le)),
        Operator("in", _build_in),
        Operator("contains", _build_contains),
        Operator("regex", _build_regex),
        Operator("exists", _build_exists, null_is_false=False, default=True),
    )
}


def _same(actual: Json, operand: Json) -> bool:
    # At most as deep as the operand, whose depth the reader limits.
    if type_name(actual) != type_name(operand):
        return False
    match operand:
        case Mapping():
            return actual.keys() == operand.keys() and all(
                _same(actual[k], operand[k]) for k in operand
            )
        case list() | tuple():
            return len(actual) == len(operand) and all(map(_same, actual, operand))
        case _:
            return bool(_reveal(actual) == _reveal(operand))


def type_name(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str() | Secret():
            return "a string"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a map"
        case _:
            return "not JSON data"


def _reveal(value: Json) -> Json:
    return value.reveal() if isinstance(value, Secret) else value


# Regular expressions: RE2, which has no pattern that takes exponential time.


class _Program(Protocol):
    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes) -> object | None: ...


def _compile_pattern(pattern: str) -> _Program:
    import re2  # only conditions with a pattern need it

    if len(pattern) > MAX_PATTERN:
        raise RefusedError(
            "a pattern that is too long", f"write at most {MAX_PATTERN:,} characters"
        )
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        program: _Program = re2.compile(_utf8(pattern), options)
    except re2.error as error:
        reason = error.args[0]
        raise _pattern_error(
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        ) from None
    return program


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            "text with half a surrogate pair", "use text that has a UTF-8 form"
        ) from None


UNSUPPORTED: Final = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
    "(?(": "a conditional group",
    "++": "a possessive repetition",
    "*+": "a possessive repetition",
    "?+": "a possessive repetition",
    **{f"\\{digit}": "a back-reference" for digit in range(1, 10)},
}


def _pattern_error(reason: str) -> RefusedError:
    """RE2's reason in words, without its quotation of the pattern, which could be a value."""
    rule, _, fragment = reason.partition(": ")
    if fragment in UNSUPPORTED:
        return RefusedError(
            f"a pattern with {UNSUPPORTED[fragment]}, which a search in linear time cannot do",
            "use RE2 syntax, and all, any and not to join simpler patterns",
        )
    hint = (
        "write \\z for the end of the text"
        if fragment == "\\Z"
        else "correct it; the syntax is RE2's"
    )
    return RefusedError(f"not a valid pattern ({rule})", hint)
