"""Dataclasses that are cheap to define: methods are compiled only for classes with many objects.

`dataclasses` compiles six methods per class and loads `inspect`. A short command defines a hundred
such classes and makes a few objects of each. Here one loop fills the first objects of all classes;
a class with many objects then gets its own `__init__`.

It covers the part of `dataclasses` that Plait uses, with the same names and meaning; type checkers
read those. The functions of `dataclasses` (`replace`, `fields`, …) accept these objects.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any
else:
    from operator import attrgetter

    OBJECTS_UNTIL_HOT = 100

    class _Missing:
        """Stands for a default that does not exist."""

    class _Field:
        """A field of a record; the object holds only what differs from the defaults."""

        default = default_factory = _Missing
        init = repr = compare = True
        kw_only = False

        @property
        def optional(self):
            return self.default is not _Missing or self.default_factory is not _Missing

    _PLAIN = _Field()

    def field(**special):
        """Return the special properties of one field: default, default_factory, init, repr,
        compare, kw_only.
        """
        one = _Field()
        for name, value in special.items():
            getattr(_Field, name)  # raises an error if the property does not exist
            setattr(one, name, value)
        return one

    def dataclass(*, slots, frozen=False, eq=True):
        """Return the class with `__init__`, `__repr__`, `__eq__` and similar methods; only
        slots are supported.
        """
        if not slots:
            raise TypeError("a record has slots")

        def made(cls):
            return _record(cls, frozen=frozen, eq=eq)

        return made

    def replace(record, /, **changes):
        """Return a copy of a record with some fields changed."""
        for name, one in record.__record_fields__.items():
            if one.init and name not in changes:
                changes[name] = getattr(record, name)
        return type(record)(**changes)

    # ── defining a class ─────────────────────────────────────────────────

    def _record(cls, *, frozen, eq):
        own = _own_fields(cls)
        bases = cls.__mro__[1:-1]
        fields = {**_inherited_fields(bases), **own} if bases else own
        inherited = {name for base in bases for name in getattr(base, "__slots__", ())}
        namespace = {
            "__repr__": _repr,
            "__match_args__": _MATCH_ARGS,
            **cls.__dict__,
            **(_FROZEN if frozen else _OPEN),
            "__qualname__": cls.__qualname__,
            "__record_fields__": fields,
        }
        for name in (*own, "__dict__", "__weakref__"):
            namespace.pop(name, None)
        namespace["__slots__"] = tuple([name for name in own if name not in inherited])
        if eq:
            namespace |= _comparing(fields, frozen=frozen, given=namespace)
        record = type(cls)(cls.__name__, cls.__bases__, namespace)
        if "__init__" not in namespace:
            record.__init__ = _init_on_demand(record, frozen=frozen)
        return record

    def _own_fields(cls):
        own = {}
        given = cls.__dict__
        for name, annotation in cls.__annotations__.items():
            if not str(annotation).startswith("ClassVar"):
                one = given.get(name, _PLAIN)
                if not isinstance(one, _Field):
                    one = _Field()
                    one.default = given[name]
                own[name] = one
        return own

    def _inherited_fields(bases):
        fields = {}
        for base in reversed(bases):
            fields |= base.__dict__.get("__record_fields__", {})
        return fields

    class _MatchArgs:
        """The fields that a pattern matches by position; made for classes that patterns name."""

        def __get__(self, record, cls):
            fields = cls.__record_fields__.items()
            cls.__match_args__ = tuple(
                [name for name, one in fields if one.init and not one.kw_only]
            )
            return cls.__match_args__

    _MATCH_ARGS = _MatchArgs()

    class _AsStandard:
        """The attributes that `dataclasses` sets on its classes, for its functions and for
        our subclasses.
        """

        def __init__(self, name, *, frozen):
            self.name, self.frozen = name, frozen

        def __get__(self, record, cls):
            import dataclasses

            shown = [
                (name, cls.__annotations__.get(name, "object"), dataclasses.field(**vars(one)))
                for name, one in cls.__record_fields__.items()
            ]
            shown_class = dataclasses.make_dataclass(cls.__name__, shown, frozen=self.frozen)
            return getattr(shown_class, self.name)

    # ── making an object ─────────────────────────────────────────────────

    def _init_on_demand(cls, *, frozen):
        def __init__(self, *args, **kwargs):
            cls.__init__ = _init_for_first_objects(cls, frozen=frozen)
            cls.__init__(self, *args, **kwargs)

        return __init__

    def _init_for_first_objects(cls, *, frozen):
        fields = cls.__record_fields__
        setters = {name: getattr(cls, name).__set__ for name in fields}
        order = [name for name, one in fields.items() if one.init and not one.kw_only]
        taken = {name for name, one in fields.items() if one.init}
        optional = [
            (name, one.default, one.default_factory) for name, one in fields.items() if one.optional
        ]
        needed = taken.difference([name for name, *_ in optional])
        finish = getattr(cls, "__post_init__", None)
        left = OBJECTS_UNTIL_HOT

        def __init__(self, *args, **kwargs):
            nonlocal left
            left -= 1
            given = dict(zip(order, args)) | kwargs if args else kwargs  # noqa: B905 - see `fit`
            fit = len(given) == len(args) + len(kwargs) and needed <= given.keys() <= taken
            if left < 0 or not fit:
                cls.__init__ = _init(cls, frozen=frozen)
                cls.__init__(self, *args, **kwargs)  # it raises the error for the wrong argument
                return
            for name, value in given.items():
                setters[name](self, value)
            for name, default, make in optional:
                if name not in given:
                    setters[name](self, default if make is _Missing else make())
            if finish is not None:
                finish(self)

        return __init__

    def _init(cls, *, frozen):
        """Make an `__init__` that takes a value for each field."""
        fields = cls.__record_fields__
        names = {"_missing": _Missing}
        for name, one in fields.items():
            names[f"_default_{name}"] = one.default
            names[f"_make_{name}"] = one.default_factory
            names[f"_set_{name}"] = getattr(cls, name).__set__
        head = ", ".join(["self", *_parameters(fields)])
        body = [
            line for name, one in fields.items() for line in _assignment(name, one, frozen=frozen)
        ]
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        source = "\n  ".join([f"def __init__({head}):", *(body or ["pass"])])
        exec(source, names)
        written = names["__init__"]
        written.__qualname__ = f"{cls.__qualname__}.__init__"
        return written

    def _parameters(fields):
        taken = {name: one for name, one in fields.items() if one.init}
        yield from (_parameter(name, one) for name, one in taken.items() if not one.kw_only)
        by_name = [_parameter(name, one) for name, one in taken.items() if one.kw_only]
        yield from ["*", *by_name] if by_name else ()

    def _parameter(name, one):
        if one.default_factory is not _Missing:
            return f"{name}=_missing"
        return f"{name}=_default_{name}" if one.default is not _Missing else name

    def _assignment(name, one, *, frozen):
        if not one.init and not one.optional:
            return
        value = name if one.init else f"_default_{name}"
        if one.default_factory is not _Missing:
            value = (
                f"_make_{name}() if {name} is _missing else {name}"
                if one.init
                else f"_make_{name}()"
            )
        yield f"_set_{name}(self, {value})" if frozen else f"self.{name} = {value}"

    # ── the methods of an object ─────────────────────────────────────────

    def _comparing(fields, *, frozen, given):
        compared = [name for name, one in fields.items() if one.compare]
        key = attrgetter(*compared) if compared else type

        def __eq__(self, other):
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def __hash__(self):
            return hash(key(self))

        methods = {"__eq__": given.get("__eq__", __eq__)}
        if (
            given.get("__hash__") is None
        ):  # also where Python removed it because the class has an `__eq__`
            methods["__hash__"] = __hash__ if frozen else None
        return methods

    def _repr(self):
        fields = self.__record_fields__.items()
        shown = [f"{name}={getattr(self, name)!r}" for name, one in fields if one.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _refuse(_, name, *__):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change field '{name}'")

    def _getstate(self):
        return [getattr(self, name) for name in self.__record_fields__]

    def _setstate(self, state):
        for name, value in zip(self.__record_fields__, state, strict=True):
            object.__setattr__(self, name, value)

    _OPEN = {
        "__dataclass_fields__": _AsStandard("__dataclass_fields__", frozen=False),
        "__dataclass_params__": _AsStandard("__dataclass_params__", frozen=False),
        "__getstate__": _getstate,
        "__setstate__": _setstate,
    }
    _FROZEN = {
        **_OPEN,
        "__dataclass_fields__": _AsStandard("__dataclass_fields__", frozen=True),
        "__dataclass_params__": _AsStandard("__dataclass_params__", frozen=True),
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }


def is_record(value: object) -> bool:
    return hasattr(type(value), "__record_fields__")


def field_names(record: type[Any]) -> tuple[str, ...]:
    """The names of a record's fields, in order."""
    return tuple(record.__record_fields__)
