"""The public names of Plait as text: what they take, what they hold, and what they are.

Annotations are left out, since they name types that are not public; so is a default that has no plain form.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import plait

PLAIN = (type(None), bool, int, float, str)


def public_names() -> str:
    return "".join(
        f"{line}\n"
        for name in sorted(plait.__all__)
        for line in lines_of(name, getattr(plait, name))
    )


def lines_of(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, type):
        yield f"def {name}{signature(value)}"
        return
    yield f"class {name}({', '.join(bases(value))}){signature(value)}"
    yield from (f"    {line}" for line in sorted(members(value)))


def bases(one: type) -> list[str]:
    """What it can be caught or taken as: its public bases, and those of Python."""
    public = {getattr(plait, name): name for name in plait.__all__}
    return [
        public.get(base, base.__name__)
        for base in one.__mro__[1:]
        if base in public or is_of_python(base)
    ]


def is_of_python(base: type) -> bool:
    return base is not object and base.__module__ == "builtins"


def members(one: type) -> Iterator[str]:
    """Public members of a class and of its bases that are ours."""
    ours = [base for base in one.__mro__ if not is_of_python(base) and base is not object]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in names:
        value = inspect.getattr_static(one, name)
        match value:
            case staticmethod() | classmethod():
                yield f"{type(value).__name__} {name}{signature(getattr(one, name))}"
            case property():
                yield f"property {name}"
            case _ if inspect.isfunction(value):
                yield f"method {name}{signature(value)}"
            case _ if inspect.ismemberdescriptor(value):
                yield f"field {name}"
            case _ if isinstance(value, PLAIN):
                yield f"constant {name} = {value!r}"
            case _:
                yield f"member {name}"
    yield from (
        f"field {name}"
        for name in getattr(one, "__annotations__", {})
        if name not in names and name[0] != "_"
    )


def signature(value: object) -> str:
    assert callable(value)
    found = signature_of_record(value) if is_dataclass(value) else inspect.signature(value)
    plain = [
        one.replace(annotation=one.empty, default=default(one)) for one in found.parameters.values()
    ]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def signature_of_record(record: Any) -> inspect.Signature:
    """By its fields: a record makes the method that takes them when it is first needed."""
    taken = [one for one in fields(record) if one.init]
    by_place = [
        parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in taken if not one.kw_only
    ]
    return inspect.Signature(
        [
            *by_place,
            *(parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in taken if one.kw_only),
        ]
    )


def parameter(one: Field[Any], kind: Any) -> inspect.Parameter:
    is_needed = one.default is MISSING and one.default_factory is MISSING
    made = Shown() if one.default is MISSING else one.default
    return inspect.Parameter(one.name, kind, default=inspect.Parameter.empty if is_needed else made)


class Shown:
    """A default in a signature that has no plain form."""

    def __repr__(self) -> str:
        return "…"


def default(one: inspect.Parameter) -> object:
    value = one.default
    plain = value is one.empty or isinstance(value, PLAIN) or value == ()
    return value if plain else Shown()
