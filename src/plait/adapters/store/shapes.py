"""Checks of stored values.

SQLite accepts any type in any column, and JSON any value anywhere. So everything that is read is
checked, and a JournalError says that a run is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from plait.adapters.store.faults import fault
from plait.core.errors import JournalError
from plait.core.hints import Any, Final, TypeAlias
from plait.core.values import is_deeper

MISREAD: Final = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError, MemoryError,
)  # fmt: skip
"""The errors that Python raises for a value of an unexpected type or form."""
DEEPEST: Final = 400
"""The limit for levels of a value: a deeper one could be read, but not shown or written."""

Shape: TypeAlias = Callable[[Any], bool]


def damage_error(where: str) -> JournalError:
    return fault("damaged", where)


def decode_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for a value that is too deep."""
    value = json.loads(text)
    if _count_openings(text) > DEEPEST and is_deeper(value, DEEPEST):
        raise ValueError("too deep")
    return value


def _count_openings(text: str | bytes) -> int:
    return (
        text.count("[") + text.count("{")
        if isinstance(text, str)
        else text.count(b"[") + text.count(b"{")
    )


def require_types(types: Sequence[tuple[type | None, ...]], row: Sequence[object]) -> None:
    """Raise TypeError unless each value of a row has one of its types; None stands for None."""
    for allowed, value in zip(types, row, strict=True):
        if (None if value is None else value.__class__) not in allowed and not (
            value is True and int in allowed
        ):
            raise TypeError("a value of another type")


def require_shape(value: Any, shape: Shape) -> Any:
    if not shape(value):
        raise TypeError("a value of another form")
    return value


# ── shapes ───────────────────────────────────────────────────────────────


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_map(value: object) -> bool:
    return isinstance(value, dict)


def _is_whole(value: object) -> bool:
    return type(value) is int


def optional(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def list_shape(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def map_shape(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def fields(needed: Mapping[str, Shape] | None = None, /, **known: Shape) -> Shape:
    """The shape of a map with all of `needed`; fields that it has must have these shapes."""
    every = {**(needed or {}), **known}

    def fits(value: object) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value for name in needed or ())
            and all(shape(value[name]) for name, shape in every.items() if name in value)
        )

    return fits


def _is_hex(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return bool(bytes.fromhex(value))
    except ValueError:
        return False


_is_env_files: Final = fields({"names": list_shape(is_text), "salt": _is_hex, "digest": is_text})
is_usage: Final = map_shape(lambda value: type(value) in (int, float))
is_counts: Final = map_shape(lambda value: type(value) is int)
is_phases: Final = list_shape(
    lambda value: isinstance(value, list) and list(map(type, value)) == [str, int]
)
is_failure: Final = fields(
    {"message": is_text}, kind=is_text, path=is_text, exit_code=optional(_is_whole)
)
is_facts: Final = fields(
    tool=optional(is_text),
    kind=is_text,
    flow=is_text,
    file=is_text,
    project=is_text,
    started=is_text,
    options=fields(
        inputs=is_map,
        strict=optional(lambda value: isinstance(value, bool)),
        max_parallel=optional(lambda value: _is_whole(value) and value > 0),
        profile=optional(is_text),
        backend=optional(is_text),
    ),
    secret_inputs=list_shape(is_text),
    env_files=lambda value: value == {} or _is_env_files(value),
    text=fields(
        {
            "steps": map_shape(list_shape(is_text)),
            "accepted": lambda value: isinstance(value, bool),
        }
    ),
    marked_done=list_shape(is_text),
)
"""The facts of a run, as `OpenRun.facts` returns them."""
