"""Records are dataclasses in all but the time they take to define."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core import records

MANY = 3 * 100  # more objects than a class makes before it gets a method of its own


def twins(dataclass: Any, field: Any) -> dict[str, Any]:
    """The same classes, once by `dataclasses` and once by `records`."""

    @dataclass(frozen=True, slots=True)
    class Plain:
        a: Any
        b: Any = "b"

    @dataclass(frozen=True, slots=True)
    class Special:
        shown: Any
        hidden: Any = field(repr=False)
        ignored: Any = field(default=(), compare=False)
        made: Any = field(default_factory=dict)
        named: Any = field(kw_only=True, default=None)

    @dataclass(frozen=True, slots=True)
    class Derived(Plain):
        c: Any = 3

    @dataclass(slots=True)
    class Open:
        n: Any = 0

    @dataclass(frozen=True, slots=True, eq=False)
    class Itself:
        n: Any = 0

    @dataclass(frozen=True, slots=True)
    class Finished:
        given: Any
        doubled: Any = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", [self.given, self.given])

    return {each.__name__: each for each in (Plain, Special, Derived, Open, Itself, Finished)}


OURS, THEIRS = (
    twins(records.dataclass, records.field),
    twins(dataclasses.dataclass, dataclasses.field),
)

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain",    (1,),           {}),
    ("Plain",    (1, 2),         {}),
    ("Plain",    (),             {"b": 1, "a": 2}),
    ("Plain",    (),             {}),            # a is missing
    ("Plain",    (1, 2, 3),      {}),            # one too many
    ("Plain",    (1,),           {"a": 1}),      # a twice
    ("Plain",    (1,),           {"z": 1}),      # there is no z
    ("Special",  (1, 2),         {}),
    ("Special",  (1, 2, 3, {}),  {"named": 4}),
    ("Special",  (1, 2, 3, 4, 5), {}),           # named is given by name only
    ("Derived",  (1, 2),         {}),
    ("Derived",  (1,),           {"c": 4}),
    ("Open",     (),             {"n": 5}),
    ("Itself",   (7,),           {}),
    ("Finished", (8,),           {}),
    ("Finished", (8, 9),         {}),            # doubled is not given
]  # fmt: skip


def made(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call shows of its object, or the error of the call."""
    try:
        record = cls(*args, **kwargs)
    except TypeError as error:
        return str(error).partition("__init__")[2]
    return repr(record), {name: getattr(record, name) for name in cls.__dataclass_fields__}


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_an_object_is_made_as_by_dataclasses(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], times: int
) -> None:
    assert {str(made(OURS[name], args, kwargs)) for _ in range(times)} == {
        str(made(THEIRS[name], args, kwargs))
    }


def test_each_object_gets_a_default_of_its_own() -> None:
    one, other = OURS["Special"](1, 2), OURS["Special"](1, 2)
    assert one.made == other.made
    assert one.made is not other.made


@given(
    one=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    other=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_records_are_equal_and_hashed_by_what_is_compared(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    ours = [OURS["Special"](values[0], 0, values[1], made=()) for values in (one, other)]
    theirs = [THEIRS["Special"](values[0], 0, values[1], made=()) for values in (one, other)]
    assert (ours[0] == ours[1]) is (theirs[0] == theirs[1])
    assert ours[0] != ours[1] or hash(ours[0]) == hash(ours[1])
    assert ours[0] != theirs[0]


def test_equality_and_hash_follow_the_switches() -> None:
    assert OURS["Itself"](1) != OURS["Itself"](1)
    assert OURS["Open"](1) == OURS["Open"](1)
    with pytest.raises(TypeError):
        hash(OURS["Open"](1))


CHANGES: list[Callable[[Any], None]] = [
    lambda record: setattr(record, "a", 2),
    lambda record: setattr(record, "new", 2),
    lambda record: delattr(record, "a"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_record_does_not_change(change: Callable[[Any], None]) -> None:
    record = OURS["Plain"](1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        change(record)
    assert record == OURS["Plain"](1)


def test_an_open_record_changes_and_has_no_other_names() -> None:
    record = OURS["Open"]()
    record.n = 4
    assert record.n == 4
    with pytest.raises(AttributeError):
        record.other = 1


@pytest.mark.parametrize("name", OURS)
def test_a_record_is_taken_apart_in_the_same_order(name: str) -> None:
    assert OURS[name].__match_args__ == THEIRS[name].__match_args__


@pytest.mark.parametrize("replace", [records.replace, dataclasses.replace])
def test_a_changed_copy_keeps_the_rest(replace: Callable[..., Any]) -> None:
    record = OURS["Special"](1, 2, named=3)
    assert repr(replace(record, shown=9)) == repr(THEIRS["Special"](9, 2, named=3))
    with pytest.raises(TypeError):
        replace(record, unknown=1)


@records.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapped(Kept):
    extra: int = 0


def test_a_dataclass_can_be_based_on_a_record() -> None:
    assert repr(Wrapped(1, extra=5)) == "Wrapped(a=1, b=(), extra=5)"
    assert [field.name for field in dataclasses.fields(OURS["Derived"])] == ["a", "b", "c"]


def test_a_record_survives_a_copy_and_a_pickle() -> None:
    record = Kept(1, (2, 3))
    assert (
        copy.copy(record) == copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record
    )


def test_a_field_is_special_in_known_ways_only() -> None:
    with pytest.raises(AttributeError):
        OURS_FIELD(metadata={})


OURS_FIELD: Any = records.field


def test_defining_records_loads_neither_dataclasses_nor_typing() -> None:
    code = "import sys, plait.tools.invocation; print([n for n in ('dataclasses', 'inspect', 'typing') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
