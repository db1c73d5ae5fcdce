"""Formats (`${x:json}`) and filters (`${x | upper}`): two closed tables of pure functions.

A filter accepts every JSON value. A format may refuse a value that it cannot write, such as `:int`
of `abc`. Nothing here reads attributes, calls methods of values or uses format specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from plait.core.errors import LimitError, ValueRefusedError
from plait.core.hints import Final
from plait.core.values import UNDEFINED, Json, Secret, Undefined, json_text, reveal_text, text

MAX_INTEGER_DIGITS: Final = 4000
MAX_OUTPUT: Final = 16 << 20
"""The limit in characters for a text in which a value occurs twice, for a tree, and for all
variables of one place.
"""


def _each(value: Json, change: Callable[[Json], Json]) -> Json:
    return [change(item) for item in value] if isinstance(value, list | tuple) else change(value)


def _apply_to_text(value: Json, plain: Callable[[str], Json]) -> Json:
    """Apply a text function; the result for a secret is a secret."""
    if isinstance(value, Secret):
        return Secret(text(plain(value.reveal())))
    return plain(text(value))


def holds_secret(value: Json) -> bool:
    if isinstance(value, Secret):
        return True
    if isinstance(value, Mapping):
        return any(holds_secret(item) for item in value.values())
    return isinstance(value, list | tuple) and any(holds_secret(item) for item in value)


def _render_value(value: Json, write: Callable[[Json, Callable[[Json], str]], str]) -> Json:
    """Convert a value to text; a value that contains a secret becomes a secret."""
    if holds_secret(value):
        return Secret(write(value, reveal_text))
    return write(value, text)


def to_json(value: Json) -> Json:
    _require_short_text(value)
    if holds_secret(value):
        return Secret(json_text(value, reveal=True))
    return json_text(value)


def to_lines(value: Json) -> Json:
    return _render_value(value, lambda it, show: _join_items(it, "\n", show))


def to_csv(value: Json) -> Json:
    """One record: fields with a comma, quote or line break are quoted, quotes doubled."""
    _require_short_text(value)

    def record(items: Json, show: Callable[[Json], str]) -> str:
        fields = (
            [show(item) for item in items] if isinstance(items, list | tuple) else [show(items)]
        )
        return ",".join(_csv_field(field) for field in fields)

    return _render_value(value, record)


def to_int(value: Json) -> Json:
    """Convert an integer, a whole float or decimal digits to an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        digits = value.strip()
        body = digits[1:] if digits[:1] in ("-", "+") else digits
        if body.isascii() and body.isdigit() and len(body) <= MAX_INTEGER_DIGITS:
            return int(digits)
    raise ValueRefusedError(
        "this value is not an integer, and ':int' does not guess",
        fix="give it a whole number, or leave ':int' away",
        code="not-an-integer",
    )


def to_path(value: Json) -> Json:
    """A path that no command reads as an option: `-x` is written `./-x`."""
    return _each(value, lambda item: _apply_to_text(item, _as_operand))


def to_raw(value: Json) -> Json:
    return _render_value(value, lambda it, show: show(it))


def identity(value: Json) -> Json:
    return value


FORMATS: Final[dict[str, Callable[[Json], Json]]] = {
    "json": to_json,
    "lines": to_lines,
    "csv": to_csv,
    "raw": to_raw,
    "int": to_int,
    "path": to_path,
    "opt": identity,
}


def filter_paths(value: Json, pattern: str) -> Json:
    """The paths in a list that match a glob, in which `*` matches any characters, also `/`."""
    paths = value if isinstance(value, list | tuple) else text(value).split("\n") if value else []
    return [path for path in paths if fnmatchcase(reveal_text(path), pattern)]


def _length(value: Json) -> Json:
    if value is None:
        return 0
    sized = isinstance(value, str | list | tuple | Mapping)
    return len(value) if sized else len(reveal_text(value))


def _keys(value: Json) -> Json:
    return list(value) if isinstance(value, Mapping) else []


def _first(value: Json, at: int) -> Json:
    if isinstance(value, str):
        return value[at] if value else ""
    if isinstance(value, list | tuple):
        return value[at] if value else None
    return value


def _join_items(value: Json, separator: str, show: Callable[[Json], str] = text) -> str:
    return (
        separator.join(show(item) for item in value)
        if isinstance(value, list | tuple)
        else show(value)
    )


def _join(value: Json, separator: Json) -> Json:
    between = text(separator)
    if isinstance(value, list | tuple) and len(value) * len(between) > MAX_OUTPUT:
        raise _too_long()
    return _render_value(value, lambda it, show: _join_items(it, between, show))


def _require_short_text(value: Json) -> None:
    """Refuse a long text: written as JSON or CSV repeatedly, it would double each time."""
    plain = value.reveal() if isinstance(value, Secret) else value
    if isinstance(plain, str) and len(plain) > MAX_OUTPUT:
        raise _too_long()


def _too_long() -> LimitError:
    return LimitError(
        f"the text made of this value is longer than {MAX_OUTPUT:,} characters",
        fix="make it of less, or name a file instead",
        code="output-too-long",
    )


def _default(value: Json | Undefined, fallback: Json) -> Json:
    return fallback if value is UNDEFINED or value is None else value


FILTERS: Final[dict[str, tuple[int, Callable[..., Json]]]] = {
    # name      arguments, function
    "json": (0, to_json),
    "length": (0, _length),
    "keys": (0, _keys),
    "upper": (0, lambda value: _apply_to_text(value, str.upper)),
    "lower": (0, lambda value: _apply_to_text(value, str.lower)),
    "trim": (0, lambda value: _apply_to_text(value, str.strip)),
    "first": (0, lambda value: _first(value, 0)),
    "last": (0, lambda value: _first(value, -1)),
    "default": (1, _default),
    "join": (1, _join),
}


def _as_operand(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def _csv_field(field: str) -> str:
    needs_quotes: Sequence[str] = (",", '"', "\n", "\r")
    return '"' + field.replace('"', '""') + '"' if any(c in field for c in needs_quotes) else field
