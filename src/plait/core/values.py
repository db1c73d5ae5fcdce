"""Values: JSON data, `Secret` and, in dry runs, `Unknown`; and their text form.

The text form is fixed: strings unchanged, `true`/`false`, exact integers, floats as JSON, null
empty, lists and maps as compact JSON in their own key order. It is never parsed back: Plait does
not guess types from text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from plait.core.errors import ValueRefusedError, shorten
from plait.core.hints import Any, Final, NoReturn, TypeAlias

Json: TypeAlias = Any
"""str | int | float | bool | None | Secret | Unknown | list[Json] | dict[str, Json]"""

MASK: Final = "***"
_SHORT_INTEGER: Final = 1 << 64
"""Python prints integers up to this one whatever its limit for digits."""


class Undefined(Enum):
    """The result of a lookup that found nothing; it is not null and not empty."""

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
    """A value that only a run can know; it stands for that value in a dry run.

    Text that contains it, and everything made from it, is unknown, too.
    """

    __slots__ = ("least", "shown")

    def __init__(self, shown: str = "…", least: str = "") -> None:
        self.shown = shown
        """The text for people: the placeholder as its author wrote it."""
        self.least = least
        """The known part of a text; the text contains it, and perhaps more."""

    def __repr__(self) -> str:
        return f"Unknown({self.shown!r})"


NOT_KNOWN: Final = Unknown()


def contains_unknown(value: Json) -> bool:
    """Is the value, or a part of it, unknown before the run?"""
    kind = value.__class__
    if kind is str or kind is int:  # true for nearly all values, and every rendering calls this
        return False
    if kind is Unknown:
        return True
    if isinstance(value, Mapping):
        return any(map(contains_unknown, value.values()))
    return isinstance(value, list | tuple) and any(map(contains_unknown, value))


def least_text(value: Json) -> str:
    """The shortest text that a value with unknown parts can have."""
    return value.least if isinstance(value, Unknown) else json_text(_least(value))


def _least(value: Json) -> Json:
    match value:
        case Unknown():
            return value.least or 0  # no JSON text is shorter
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
    """Compact JSON; keys keep their order."""
    return _dump(value, Secret.reveal if reveal else _mask)


SHOWN_GIVEN: Final = 40


def format_given(value: Json) -> str:
    """The end of a message about a wrong value: `, got "46a"`; empty for a secret."""
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
"""Levels of lists and maps that data from outside may have."""


MOST_RECORDED_LEVELS: Final = 300
"""The same for the result of a step. A journal may have more levels, for the data around the value.
"""


def is_deeper(value: Json, levels: int) -> bool:
    """Are lists and maps nested deeper than `levels`?  Also for data that contains itself."""
    # Iterative, because nesting may be deep. Depth first, because a level may have any width.
    around: list[Iterator[Json]] = [iter((value,))]
    while around:
        for inner in around[-1]:
            if isinstance(inner, _HOLDERS):
                if len(around) > levels:
                    return True
                around.append(iter(inner.values() if isinstance(inner, dict) else inner))
                break
        else:
            around.pop()
    return False


_HOLDERS: Final = (dict, list, tuple)  # a union of types would be made for each test


def too_deep_error() -> ValueRefusedError:
    return ValueRefusedError(
        "a value is nested too deeply, or contains itself",
        fix=f"pass data of at most {MOST_LEVELS} lists and maps inside one another",
        code="not-json",
    )


def json_value(written: str) -> Json:
    """Parse a JSON text; raise ValueError or RecursionError if it is not valid.

    Python's own reader accepts more: NaN, numbers so large that they become infinite, one half of a
    character pair, and lists that are nested too deeply. Plait could not write such values again,
    so it refuses them here.
    """
    value: Json = _READER.decode(written)
    if written.count("[") + written.count("{") > MOST_LEVELS and is_deeper(value, MOST_LEVELS):
        raise RecursionError
    if "\\ud" in written or "\\uD" in written:
        # Bytes of a process that are not text look like halves of a pair too, and are accepted:
        # only escapes are checked.
        escapes = written.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        json.dumps(_READER.decode(escapes), ensure_ascii=False).encode("utf-8")
    return value


def json_error(error: json.JSONDecodeError) -> json.JSONDecodeError:
    """Return the same error on every Python: as in Python 3.13, a trailing ',' is the mistake.

    Older versions point at the bracket after it and report a missing value.
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
    """Parse a float; raise ValueError if it is so large that it would be infinite."""
    value = float(number)
    if value - value != 0:
        raise ValueError("this number is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} does not exist in JSON")


_READER: Final = json.JSONDecoder(parse_float=finite_number, parse_constant=_no_constant)


def utf8(text: str) -> bytes:
    """Encode a text; bytes that were not UTF-8 when they came in are written unchanged."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueRefusedError(
            "a text holds half of a character pair, which has no bytes",
            fix="write both halves, or neither",
            code="character",
        ) from None


def require_json(value: Json) -> None:
    """Refuse a value that has no JSON form, without making the JSON text."""
    if not _is_plain(value, _DEPTH_OF_COPIES):
        json_text(value)
        if is_deeper(value, MOST_RECORDED_LEVELS):
            raise too_deep_error()


def json_size(value: Json) -> int:
    """Return a lower bound for the length of the JSON text; a shared part is measured once."""
    return _json_size(value, {})


def _json_size(value: Json, known: dict[int, int]) -> int:
    kind = value.__class__
    if kind is str:
        return len(value) + 2
    if kind is not dict and kind is not list:
        # Rare cases come last: their tests take longer.
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
        known[id(value)] = 0  # the value contains itself: `json` reports that
        items = value.values() if kind is dict or isinstance(value, Mapping) else value
        size = 2 + len(value) + sum([_json_size(item, known) for item in items])
        known[id(value)] = size
    return size


_SHORT: Final = frozenset({bool, int, float, type(None)})


def deep_copy(value: Json, *, reveal: bool = False) -> Json:
    """Return the value as JSON gives it back: plain types, no shared parts; refuse all else."""
    try:
        return _copy_plain(value, _DEPTH_OF_COPIES)
    except _NotPlainError:
        return json.loads(json_text(value, reveal=reveal))


def copy_shared(value: Json) -> Json:
    """Return a copy that may be changed; secrets stay secrets, immutable values are shared."""
    match value:
        case dict():
            return {name: copy_shared(inner) for name, inner in value.items()}
        case list():
            return [copy_shared(inner) for inner in value]
        case tuple() if type(value) is tuple:
            return tuple(copy_shared(inner) for inner in value)
    return value


_DEPTH_OF_COPIES: Final = 50
"""Values that are nested deeper, or contain themselves, are left to `json`."""


class _NotPlainError(Exception):
    """Raised if a value must be converted through its JSON text, or refused."""


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
    """Does the value certainly have a JSON form?"""
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
        # No generators: this runs for the value of every step.
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
    # The exception's own text is not used: json quotes the value, which may be secret.
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "it contains itself or is nested too deeply"
    if "digits" in str(error):
        return "an integer is too long to print"
    if isinstance(error, TypeError):
        return "a map has a key that is not a string"
    return "NaN and Infinity do not exist in JSON"


def _mask(_: Secret) -> str:
    return MASK
