"""Values: JSON data, `Secret` and, in dry runs, `Unknown`; and their text form.

The text form is fixed: strings unchanged, `true`/`false`, exact integers, floats as JSON, null
empty, lists and maps as compact JSON in their own key order. It is never parsed back: Plait does
not guess types from text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from plait.core.errors import ValueRefusedError, shorten
from plait.core.hints import Any, Final, NoReturn, TypeAlias

Json: TypeAlias = Any
"""str | int | float | bool | None | Secret | Unknown | list[Json] | dict[str, Json]"""

MASK: Final = "***"
_SHORT_INTEGER: Final = 1 << 64
"""What Python prints at any setting of its limit on digits."""


class Undefined(Enum):
    """The answer of a lookup that found nothing: not null, not empty."""

    UNDEFINED = "undefined"


UNDEFINED: Final = Undefined.UNDEFINED


class Secret:
    """A string that prints as `***`; only the sink that needs it reveals it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise ValueRefusedError("a secret is text", fix="pass a string", code="wrong-type")
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        # A pickle or a copy of a secret would carry it past every mask.
        raise TypeError("a Secret cannot be pickled or copied")


class Unknown:
    """What only a run will know: before it, this stands in the place of a value, and is handed on
    like one.

    Text that it is part of, and all that is made of it, is as unknown.
    """

    __slots__ = ("least", "shown")

    def __init__(self, shown: str = "…", least: str = "") -> None:
        self.shown = shown
        """What people see instead: the placeholder as its author wrote it."""
        self.least = least
        """Of a text that is known in part: what is known.  The text has that in it, and perhaps
        more.
        """

    def __repr__(self) -> str:
        return f"Unknown({self.shown!r})"


NOT_KNOWN: Final = Unknown()


def contains_unknown(value: Json) -> bool:
    """Is it, or anything in it, known only to a run?"""
    kind = value.__class__
    if kind is str or kind is int:  # nearly always, and every rendering asks
        return False
    if kind is Unknown:
        return True
    if isinstance(value, Mapping):
        return any(map(contains_unknown, value.values()))
    return isinstance(value, list | tuple) and any(map(contains_unknown, value))


def least_text(value: Json) -> str:
    """The shortest text that a value may turn out to have, which holds what only a run knows."""
    return value.least if isinstance(value, Unknown) else json_text(_least(value))


def _least(value: Json) -> Json:
    match value:
        case Unknown():
            return value.least or 0  # no JSON is shorter
        case Mapping():
            return {name: _least(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_least(inner) for inner in value]
    return value


def text(value: Json) -> str:
    """The text form of a value, secrets masked."""
    return value if value.__class__ is str else _text(value, _mask)


def reveal_text(value: Json) -> str:
    """The text form with secrets in clear: for sinks that hand it to a process or server."""
    return value if value.__class__ is str else _text(value, Secret.reveal)


def json_text(value: Json, *, reveal: bool = False) -> str:
    """Compact JSON; keys in their own order."""
    return _dump(value, Secret.reveal if reveal else _mask)


SHOWN_GIVEN: Final = 40


def format_given(value: Json) -> str:
    """The end of a message about a wrong value: `, got "46a"`; of a secret nothing."""
    match value:
        case Mapping():
            return ", got a map"
        case list():
            return ", got a list"
        case str():
            return f", got {json_text(shorten(value, SHOWN_GIVEN))}"
        case None | bool() | int() | float():
            return f", got {shorten(json_text(value), SHOWN_GIVEN)}"
    return ""


MOST_LEVELS: Final = 100
"""Lists and maps inside one another, in data that comes in."""


def is_deeper(value: Json, levels: int) -> bool:
    """Are lists and maps nested deeper than `levels`?  Iterative, because nesting may be deep."""
    holders = _holders([value])
    for _ in range(levels):
        if not holders:
            return False
        holders = [
            inner
            for holder in holders
            for inner in _holders(holder.values() if isinstance(holder, dict) else holder)
        ]
    return bool(holders)


def _holders(values: Iterable[Json]) -> list[Json]:
    return [value for value in values if isinstance(value, (dict, list))]


def json_value(written: str) -> Json:
    """The value that a JSON text says; ValueError or RecursionError if it says none.

    Python's own reader takes more: NaN, numbers so large that they become infinite, one half of
    a character pair, and lists that are nested too deeply.  None of them can be written down again,
    so they are refused where they come in.
    """
    value: Json = _READER.decode(written)
    if written.count("[") + written.count("{") > MOST_LEVELS and is_deeper(value, MOST_LEVELS):
        raise RecursionError
    if "\\ud" in written or "\\uD" in written:
        # Bytes of a process that are no text look like halves, too, and may stay: only escapes are
        # looked at.
        escapes = written.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        json.dumps(_READER.decode(escapes), ensure_ascii=False).encode("utf-8")
    return value


def json_error(error: json.JSONDecodeError) -> json.JSONDecodeError:
    """The same error on every Python: a ',' that nothing follows is what is wrong, as Python 3.13
    says.

    Earlier ones point at the bracket behind it and miss a value there.
    """
    before = error.doc[: error.pos].rstrip(" \t\n\r")
    closing = error.doc[error.pos : error.pos + 1]
    if (
        not before.endswith(",")
        or closing not in ("]", "}")
        or not error.msg.startswith("Expecting")
    ):
        return error
    kind = "array" if closing == "]" else "object"
    return json.JSONDecodeError(
        f"Illegal trailing comma before end of {kind}", error.doc, len(before) - 1
    )


def finite_number(number: str) -> float:
    """ValueError if it is too large, and would be infinite."""
    value = float(number)
    if value - value != 0:
        raise ValueError("this number is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} does not exist in JSON")


_READER: Final = json.JSONDecoder(parse_float=finite_number, parse_constant=_no_constant)


def utf8(text: str) -> bytes:
    """The bytes of a text; those that came in as no text go out as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueRefusedError(
            "a text holds half of a character pair, which has no bytes",
            fix="write both halves, or neither",
            code="character",
        ) from None


def require_json(value: Json) -> None:
    """Refuse what has no JSON form, without making it."""
    if not _is_plain(value, _DEPTH_OF_COPIES):
        json_text(value)


def json_size(value: Json) -> int:
    """At least so many characters its JSON has; what stands in several places is looked into
    once.
    """
    return _json_size(value, {})


def _json_size(value: Json, known: dict[int, int]) -> int:
    kind = value.__class__
    if kind is str:
        return len(value) + 2
    if kind is not dict and kind is not list:
        # The questions that cost more are asked about what is rare.
        if kind in _SHORT:
            return 1
        if isinstance(value, str):
            return len(value) + 2
        if isinstance(value, Secret):
            return len(value.reveal()) + 2
        if isinstance(value, Unknown) and value.least:
            return len(value.least) + 2
        if not isinstance(value, Mapping | list | tuple):
            return 1
    size = known.get(id(value))
    if size is None:
        known[id(value)] = 0  # of what holds itself: serialising says so
        items = value.values() if kind is dict or isinstance(value, Mapping) else value
        size = 2 + len(value) + sum([_json_size(item, known) for item in items])
        known[id(value)] = size
    return size


_SHORT: Final = frozenset({bool, int, float, type(None)})


def deep_copy(value: Json, *, reveal: bool = False) -> Json:
    """The value as JSON would give it back: plain types, nothing shared with it, all else
    refused.
    """
    try:
        return _copy_plain(value, _DEPTH_OF_COPIES)
    except _NotPlainError:
        return json.loads(json_text(value, reveal=reveal))


def copy_shared(value: Json) -> Json:
    """A copy for somebody who may change it; a secret in it stays one, and what cannot change is
    the same.
    """
    match value:
        case dict():
            return {name: copy_shared(inner) for name, inner in value.items()}
        case list():
            return [copy_shared(inner) for inner in value]
        case tuple() if type(value) is tuple:
            return tuple(copy_shared(inner) for inner in value)
    return value


_DEPTH_OF_COPIES: Final = 50
"""What is nested deeper, or contains itself, is left to `json`."""


class _NotPlainError(Exception):
    """A value that has to go through its JSON text to become plain, or to be refused."""


_ONE_OF_A_KIND: Final = frozenset({str, bool, type(None), Unknown})


def _copy_plain(value: Json, depth: int) -> Json:
    kind = value.__class__
    if kind in _ONE_OF_A_KIND:
        return value
    if kind is int and -_SHORT_INTEGER < value < _SHORT_INTEGER:
        return value
    if kind is float and value - value == 0:  # neither infinite nor NaN
        return value
    if kind is dict and depth:
        for key in value:
            if key.__class__ is not str:
                raise _NotPlainError
        return {key: _copy_plain(item, depth - 1) for key, item in value.items()}
    if kind is list and depth:
        return [_copy_plain(item, depth - 1) for item in value]
    raise _NotPlainError


def _is_plain(value: Json, depth: int) -> bool:
    """Has it surely a JSON form?"""
    kind = value.__class__
    if kind in _ONE_OF_A_KIND:
        return True
    if kind is int:
        return bool(-_SHORT_INTEGER < value < _SHORT_INTEGER)
    if kind is float:
        return bool(value - value == 0)  # neither infinite nor NaN
    if not depth:
        return False
    if kind is dict:
        # No generators: this is asked of the value of every step.
        for key, item in value.items():
            if key.__class__ is not str:
                return False
            if item.__class__ not in _ONE_OF_A_KIND and not _is_plain(item, depth - 1):
                return False
        return True
    if kind is not list:
        return False
    for item in value:
        if item.__class__ not in _ONE_OF_A_KIND and not _is_plain(item, depth - 1):
            return False
    return True


def _text(value: Json, show: Callable[[Secret], str]) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value.__class__ is int and -_SHORT_INTEGER < value < _SHORT_INTEGER:
        return str(value)
    if isinstance(value, Secret):
        return show(value)
    if isinstance(value, Unknown):
        return value.shown
    return _dump(value, show)


def _dump(value: Json, show: Callable[[Secret], str]) -> str:
    def plain(other: object) -> Json:
        if isinstance(other, Secret):
            return show(other)
        if isinstance(other, Unknown):
            return other.shown
        if isinstance(other, Mapping):
            return dict(other)
        raise ValueRefusedError(
            f"a value of type {type(other).__name__} is not JSON data",
            fix="pass strings, numbers, true/false, null, lists and maps",
            code="not-json",
        )

    try:
        return json.dumps(
            value, default=plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueRefusedError(
            f"a value has no JSON form: {_json_reason(error)}",
            fix="pass finite numbers below 4,300 digits and data without cycles",
            code="not-json",
        ) from None


def _json_reason(error: Exception) -> str:
    # Not the exception's own text: json quotes the value, which may be secret.
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "it contains itself or is nested too deeply"
    if "digits" in str(error):
        return "an integer is too long to print"
    if isinstance(error, TypeError):
        return "a map has a key that is not a string"
    return "NaN and Infinity do not exist in JSON"


def _mask(_: Secret) -> str:
    return MASK
