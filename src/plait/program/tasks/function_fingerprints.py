"""Fingerprints of Python functions: what tells one handler from another, also in another process.

    a function, a lambda     its qualified name, code, defaults and closure
    functools.partial        the function and the bound arguments
    a bound method           the method and the object
    a callable object        its class, the code of `__call__`, and the object

Data counts by value, functions by these rules, classes and modules by name. An object counts by its
fields if it is frozen. Any other object may change, so it is known only in this process, and a run
that is resumed in another one asks. Globals that a function uses are not compared.
"""

from __future__ import annotations

import enum
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from plait.core.digests import sha256_hex
from plait.core.hints import Any, Final
from plait.core.values import Secret

DEEPEST: Final = 20
"""The maximum nesting of values; deeper ones are known only in this process."""
MOST_PARTS: Final = 100_000
"""The maximum number of compared parts of a function."""


def function_fingerprint(function: Callable[..., object]) -> str:
    """The same text for the same function; in another process too, if all its parts can be
    compared.
    """
    try:
        return _known(function)
    except TypeError:  # an object that is not hashable
        return _fingerprint(function)


def is_process_local(function: Callable[..., object]) -> bool:
    """Whether another process cannot recognise the function."""
    return any(part.startswith(_HERE) for part in _all_parts(function))


def qualified_name(function: Callable[..., object]) -> str:
    if isinstance(function, functools.partial):
        return f"partial of {qualified_name(function.func)}"
    named = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{named}"


def _fingerprint(function: Callable[..., object]) -> str:
    parts = "\0".join(_all_parts(function))
    return f"{qualified_name(function)}:{sha256_hex(parts.encode('utf-8', 'surrogatepass'))[:16]}"


def _all_parts(function: Callable[..., object]) -> list[str]:
    parts = list(islice(_fingerprint_parts(function), MOST_PARTS))
    return parts if len(parts) < MOST_PARTS else [_token(function)]


_known: Final = lru_cache(maxsize=1024)(_fingerprint)


# ── parts of a value ─────────────────────────────────────────────────────


def _fingerprint_parts(value: object, parents: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield texts that are equal if, as far as we can see, the values are equal.

    `parents`: the ids of the values that contain it.
    """
    if id(value) in parents:
        yield "again"
        return
    if len(parents) > DEEPEST:
        yield _token(value)
        return
    kind, parents = type(value), (*parents, id(value))
    if kind in _PLAIN:
        yield f"{kind.__name__} {value!r}"
    elif kind in (list, tuple, dict, set, frozenset):
        yield from _of_collection(value, parents)
    elif isinstance(value, Secret):
        yield "secret"  # no digest of a secret, so that it cannot be guessed
    else:
        yield from _of_thing(value, parents)


_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes, types.EllipsisType})


def _of_thing(value: object, parents: tuple[int, ...]) -> Iterator[str]:
    match value:
        case types.CodeType():
            yield from _of_code(value, parents)
        case functools.partial():
            yield "partial"
            yield from _of_all((value.func, value.args, value.keywords), parents)
        case types.MethodType():
            yield "method"
            yield from _of_all((value.__func__, value.__self__), parents)
        case types.FunctionType():
            yield from _of_function(value, parents)
        case types.BuiltinFunctionType():
            yield f"builtin {qualified_name(value)}"
            if not isinstance(value.__self__, types.ModuleType):
                yield from _fingerprint_parts(value.__self__, parents)
        case types.ModuleType():
            yield f"module {value.__name__}"
        case type():
            yield f"class {value.__module__}.{value.__qualname__}"
        case _:
            yield from _of_object(value, parents)


def _of_all(values: Iterable[object], parents: tuple[int, ...]) -> Iterator[str]:
    for value in values:
        yield from _fingerprint_parts(value, parents)


def _of_collection(value: Any, parents: tuple[int, ...]) -> Iterator[str]:
    yield f"{type(value).__name__} {len(value)}"
    if isinstance(value, dict):
        yield from _of_all((one for pair in value.items() for one in pair), parents)
    elif isinstance(value, set | frozenset):  # unordered
        yield from sorted("\1".join(_fingerprint_parts(inner, parents)) for inner in value)
    else:
        yield from _of_all(value, parents)


def _of_function(function: types.FunctionType, parents: tuple[int, ...]) -> Iterator[str]:
    yield f"function {qualified_name(function)}"
    yield from _of_code(function.__code__, parents)
    yield from _of_all((function.__defaults__, function.__kwdefaults__), parents)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty: not assigned yet
            yield from _fingerprint_parts(cell.cell_contents, parents)


def _of_code(code: types.CodeType, parents: tuple[int, ...]) -> Iterator[str]:
    """The code without its file and lines."""
    yield f"code {code.co_code.hex()} {code.co_flags}"
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
    yield from _of_all(
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars), parents
    )
    yield from _of_all(code.co_consts, parents)


def _of_object(value: object, parents: tuple[int, ...]) -> Iterator[str]:
    kind = type(value)
    yield f"object {kind.__module__}.{kind.__qualname__}"
    called = vars(kind).get("__call__")
    if isinstance(called, types.FunctionType):
        yield from _of_function(called, parents)
    fields = _constant_fields(value)
    yield from [_token(value)] if fields is None else _of_collection(fields, parents)


def _constant_fields(value: object) -> dict[str, object] | None:
    """The fields of an immutable record; None for anything else."""
    if isinstance(value, tuple):
        return {str(place): inner for place, inner in enumerate(value)}
    if isinstance(value, enum.Enum):
        return {"name": value.name}
    rules = getattr(type(value), "__dataclass_params__", None)
    if rules is None or not rules.frozen:
        return None
    names: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
    return {name: getattr(value, name, None) for name in names}


# ── values known in this process only ────────────────────────────────────

_HERE: Final = "only here "
_TOKENS: Final[dict[int, tuple[object, str]]] = {}
"""By id: a reference, so that the id is not reused unnoticed, and the token."""
_LOCK: Final = threading.Lock()


def _token(value: object) -> str:
    key = id(value)
    with _LOCK:
        if key not in _TOKENS:
            _TOKENS[key] = (_reference(value, key), _new_token())
        return _TOKENS[key][1]


def _reference(value: object, key: int) -> object:
    try:
        return weakref.ref(value, lambda _: _TOKENS.pop(key, None))
    except TypeError:  # no weak reference is possible, so the object stays alive
        return value


def _new_token() -> str:
    import uuid

    return _HERE + uuid.uuid4().hex
