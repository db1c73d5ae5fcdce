"""How expressions compare and test values: texts that spell numbers, truth, and the functions."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.values import UNDEFINED, Json, Secret, reveal_text
from plait.template.compiled import Answer
from plait.template.filters import FILTERS
from plait.template.operators import OPERATORS, Test, type_name

MAX_DIGITS: Final = 3_500
"""Characters of a number; a longer text is not a number."""
TRUE_OR_FALSE, A_NUMBER, A_STRING = "true or false", "a number", "a string"
"""Kinds of values, in the words of `type_name`."""
ORDERED: Final = frozenset({A_NUMBER, A_STRING})
_NUMBER: Final = lazy_pattern(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_INTEGER: Final = lazy_pattern(r"-?[0-9]++")


def truth(value: Answer) -> bool:
    """Does a value on its own count as true?"""
    if value is True or value is False:
        return value
    if value is UNDEFINED:
        return False
    if isinstance(value, str | Secret):
        return reveal_text(value) not in ("", "false", "0")
    return bool(value)


def plain(answer: Answer) -> Json:
    """Replace an undefined value by null."""
    return None if answer is UNDEFINED else answer


def to_number(value: Json) -> Json:
    """Convert a text that spells a number; return anything else unchanged."""
    if type_name(value) != A_STRING:
        return value
    number = parse_number(reveal_text(value).strip())
    return value if number is None else number


def parse_number(text: str) -> int | float | None:
    """The number that a text spells; None if it does not spell one, or one that is too large."""
    if len(text) > MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    return number if isfinite(number) else None


def make_alike(left: Json, right: Json) -> tuple[Json, Json]:
    """Two values in the form for comparing: next to a number, a text that spells a number is a
    number.
    """
    if type_name(right) == A_NUMBER:
        left = to_number(left)
    elif type_name(left) == A_NUMBER:
        right = to_number(right)
    return left, right


def constant_test(constant: Json, build: Callable[[Json], Test]) -> Test:
    """Make the test `alike` with one value fixed, once for all items."""
    test = build(constant)
    if type_name(constant) == A_NUMBER:
        return lambda value: test(to_number(value))
    number = to_number(constant)
    if type_name(number) != A_NUMBER:
        return test
    beside_number = build(number)
    return lambda value: beside_number(value) if type_name(value) == A_NUMBER else test(value)


# ── functions ────────────────────────────────────────────────────────────

Binary: TypeAlias = Callable[[Json, Json], bool | None]
"""The result for two values; None if it is not defined for them."""


def _contains(holder: Json, part: Json) -> bool | None:
    kind = type_name(holder)
    if kind == "a list" or (kind in (A_STRING, "a map") and type_name(part) == A_STRING):
        return OPERATORS["contains"].build(part)(holder)
    return None


def _are_texts(*values: Json) -> bool:
    return all(type_name(value) == A_STRING for value in values)


BINARY: Final[dict[str, Binary]] = {
    "contains": _contains,
    "starts_with": lambda text, start: (
        reveal_text(text).startswith(reveal_text(start)) if _are_texts(text, start) else None
    ),
    "ends_with": lambda text, end: (
        reveal_text(text).endswith(reveal_text(end)) if _are_texts(text, end) else None
    ),
    "matches": lambda text, pattern: (
        OPERATORS["regex"].build(pattern)(text) if _are_texts(text, pattern) else None
    ),
}
"""Functions that may stand between their arguments."""

UNARY: Final[dict[str, Callable[[Answer], bool]]] = {
    # null has to exist; a missing value is not null
    "is_null": lambda value: value is None,
    "is_not_null": lambda value: value is not None and value is not UNDEFINED,
    "is_number": lambda value: type_name(value) == A_NUMBER,
    "is_string": lambda value: type_name(value) == A_STRING,
    "is_bool": lambda value: type_name(value) == TRUE_OR_FALSE,
    "is_array": lambda value: type_name(value) == "a list",
    "is_object": lambda value: type_name(value) == "a map",
    "exists": lambda value: value is not UNDEFINED,
}

length: Final = FILTERS["length"][1]
FUNCTIONS: Final = (*BINARY, *UNARY, "length")
