"""Conditions: JSON data that is true or false for a document, or an error that says why not.

A condition is empty, or one test, or one of three ways to join conditions:

    {path: a.b, op: gte, value: 3}      a test; `op` is `eq` when left out
    {all: [...]}  {any: [...]}  {not: {...}}

A mistake is never a silent `false`.  The shape is read as a whole before
anything is evaluated, so all mistakes in it are reported together, each with
its place (`all[1].not.op`).  A mistake that only the document shows (a string
where a number is compared) is reported in the same way.

Paths are those of templates: `a.b`, `a.0`, `a[0]`, `a["any key"]`; a negative
index counts from the end; the empty path is the whole document.  They read map
keys and list indexes and nothing else, and what is not there reads as null.

    empty (null or {})    true, at any place
    any: []   all: []     false, true
    any, all              read from the left up to the part that decides, so an
                          earlier part can guard a later one; a part that fails
                          decides nothing, and the condition is then an error
    eq  ne                deep; 1 equals 1.0, true does not equal 1; `ne` is the
                          opposite of `eq`; null equals null alone
    gt  gte  lt  lte      two numbers, or two strings by code point
    in                    the value found is an element of the list `value`
    contains              a part of a string, an element of a list, a key of a map
    regex                 found anywhere in a string, by RE2: the time is linear
                          in the text whatever the pattern, and both are bounded
    exists                there and not null; with `value: false` the opposite

Null and missing are an answer for `eq`, `ne` and `exists` only; every other
operator is false on them.  A secret is compared as the string it hides, and
only the answer leaves; no message holds a value, secret or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite

from plait.core.errors import (
    ConditionError,
    InputError,
    LimitError,
    Problem,
    closest_name,
    format_names,
    shorten,
)
from plait.core.hints import Final, NoReturn, TypeAlias
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import UNDEFINED, Json, Secret
from plait.template.compiled import follow_path
from plait.template.grammar import parse_path
from plait.template.operators import OPERATORS, Operator, RefusedError, Test, type_name

MAX_DEPTH: Final = 64
"""Levels of combinators, and levels of lists and maps in a `value`."""

MAX_NODES: Final = 50_000
"""Conditions and values in one condition, shared ones counted at each use."""

MAX_SHOWN: Final = 60
"""Characters of a name in a message."""

COMBINATORS: Final = ("any", "all", "not")
FIELDS: Final = ("path", "op", "value")

Place: TypeAlias = tuple[str | int, ...]
"""The path from a condition to a part of it: `("all", 1, "not", "op")`."""

Locate: TypeAlias = Callable[[Place], Span | str]
"""Returns the place of a part; a loader that has spans returns the span."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One test: an operator applied to the value at a path."""

    keys: tuple[str | int, ...]
    path: str
    test: Test
    null_is_false: bool
    where: Callable[[], Span | str]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


Node: TypeAlias = Leaf | AnyOf | AllOf | Not

EMPTY: Final = AllOf(())


def format_path(place: Place) -> str:
    """The place in words: `all[1].not.op`."""
    text = "".join(f".{key}" if _is_plain(key) else f"[{_quote(key)}]" for key in place)
    return text.removeprefix(".") or "condition"


def _is_plain(key: str | int) -> bool:
    return isinstance(key, str) and key.isidentifier() and len(key) <= MAX_SHOWN


def matches(document: Json, condition: Json) -> bool:
    """Does the condition hold for the document? Raise ConditionError if it is not valid."""
    return compile_condition(condition)(document)


def condition_paths(condition: Json) -> Iterator[tuple[str | int, ...]]:
    """The paths that a valid condition reads."""
    if not isinstance(condition, Mapping):
        return
    if "path" in condition:
        yield _keys(condition["path"])
    for part in (*condition.get("any", ()), *condition.get("all", ()), condition.get("not")):
        yield from condition_paths(part)


def compile_condition(condition: Json, *, locate: Locate = format_path) -> Callable[[Json], bool]:
    """Compile a condition to a function of the document: read and checked once."""
    node, problems = _read(condition, locate)
    if problems:
        raise ConditionError.together(problems)
    return partial(_decide, node)


def check(condition: Json, *, locate: Locate = format_path) -> list[Problem]:
    """All problems of a condition that are visible without a document."""
    try:
        return _read(condition, locate)[1]
    except LimitError as error:
        return list(error.problems)


def _decide(node: Node, document: Json) -> bool:
    problems: list[Problem] = []
    answer = _holds(node, document, problems)
    if problems:
        raise ConditionError.together(problems)
    return answer is True


def _holds(node: Node, document: Json, problems: list[Problem]) -> bool | None:
    """The result of a part; None if the part has reported a problem."""
    match node:
        case AllOf(parts):
            return _first(False, parts, document, problems)
        case AnyOf(parts):
            return _first(True, parts, document, problems)
        case Not(part):
            answer = _holds(part, document, problems)
            return None if answer is None else not answer
        case Leaf():
            return _test_leaf(node, document, problems)


def _first(
    deciding: bool, parts: tuple[Node, ...], document: Json, problems: list[Problem]
) -> bool | None:
    unknown = False
    for part in parts:
        answer = _holds(part, document, problems)
        if answer is deciding:
            return deciding
        unknown = unknown or answer is None
    return None if unknown else not deciding


def _test_leaf(node: Leaf, document: Json, problems: list[Problem]) -> bool | None:
    actual = follow_path(document, node.keys)
    actual = None if actual is UNDEFINED else actual
    if actual is None and node.null_is_false:
        return False
    try:
        return node.test(actual)
    except RefusedError as refused:
        # The path is the author's text; the value it leads to is not shown.
        subject = f"{_quote(node.path)} is" if node.path else "the document is"
        problems.append(refused.problem(node.where(), begin=subject))
        return None


# Reading: from JSON to a tree, with everything that is wrong in it.


def _read(condition: Json, locate: Locate) -> tuple[Node, list[Problem]]:
    reader = _Reader(locate)
    return reader.condition(condition, (), 0), reader.problems


class _Reader:
    """Reads a condition, and continues after a mistake; only without problems the tree is valid."""

    def __init__(self, locate: Locate) -> None:
        self.problems: list[Problem] = []
        self.locate = locate
        self.nodes = 0

    def condition(self, raw: Json, place: Place, depth: int) -> Node:
        self.require_within_limits(depth)
        if raw is None:
            return EMPTY
        if not isinstance(raw, Mapping):
            self.wrong(
                place,
                f"a condition is a map, not {type_name(raw)}",
                "write {path: …, op: …, value: …}",
            )
            return EMPTY
        self.check_known_keys(raw, place)
        combinators = [key for key in COMBINATORS if key in raw]
        fields = [key for key in FIELDS if key in raw]
        self.check_not_mixed(combinators, fields, place)
        nodes = [
            self.parse_combinator(key, raw[key], (*place, key), depth + 1) for key in combinators
        ]
        if fields and not combinators:
            nodes.append(self.test(raw, place, depth))
        return nodes[0] if nodes else EMPTY

    def parse_combinator(self, key: str, raw: Json, place: Place, depth: int) -> Node:
        if key == "not":
            return Not(self.condition(raw, place, depth))
        if not isinstance(raw, list | tuple):
            what = f"'{key}' joins a list of conditions, not {type_name(raw)}"
            self.wrong(place, what, f"write {key}: [ … ]")
            return EMPTY
        parts = tuple(
            self.condition(part, (*place, index), depth) for index, part in enumerate(raw)
        )
        return AnyOf(parts) if key == "any" else AllOf(parts)

    def test(self, raw: Mapping[str, Json], place: Place, depth: int) -> Node:
        keys = self.path(raw, place)
        found = self.operator(raw.get("op", "eq"), (*place, "op"))
        operand = self.operand(raw, found, place, depth)
        if found is None or operand is UNDEFINED:
            return EMPTY
        try:
            test = found.build(operand)
        except RefusedError as refused:
            problem = refused.problem(
                self.locate((*place, "value")), begin=f"the value of '{found.name}' is"
            )
            self.problems.append(problem)
            return EMPTY
        where = partial(self.locate, (*place, "path"))
        return Leaf(keys, raw.get("path", ""), test, found.null_is_false, where)

    def path(self, raw: Mapping[str, Json], place: Place) -> tuple[str | int, ...]:
        path = raw.get("path")
        if "path" not in raw:
            fix = "name what is tested; path: '' is the whole document"
            self.wrong(place, "a test needs a 'path'", fix)
        elif not isinstance(path, str):
            self.wrong(
                (*place, "path"), f"a path is a string, not {type_name(path)}", "put it in quotes"
            )
        else:
            try:
                return _keys(path)
            except InputError:
                fix = 'write a.b, a[0] or a["any key"]'
                self.wrong((*place, "path"), f"the path {_quote(path)} cannot be read", fix)
        return ()

    def operator(self, name: Json, place: Place) -> Operator | None:
        if not isinstance(name, str):
            self.wrong(
                place,
                f"an operator is a string, not {type_name(name)}",
                f"one of {format_names(OPERATORS)}",
            )
        elif name not in OPERATORS:
            fix = _suggestion(name, OPERATORS, "operators")
            self.wrong(place, f"there is no operator {_quote(name)}", fix)
        else:
            return OPERATORS[name]
        return None

    def operand(
        self, raw: Mapping[str, Json], found: Operator | None, place: Place, depth: int
    ) -> Json:
        """The operand; UNDEFINED if it is missing or wrong."""
        if "value" in raw:
            sound = self.json(raw["value"], (*place, "value"), depth)
            return raw["value"] if sound else UNDEFINED
        if found is None:
            return UNDEFINED
        if found.default is UNDEFINED:
            self.wrong(place, f"'{found.name}' needs a 'value'", "add value: …, or use op: exists")
        return found.default

    def json(self, value: Json, place: Place, depth: int) -> bool:
        self.require_within_limits(depth)
        match value:
            case list() | tuple():
                return all(self.json(part, place, depth + 1) for part in value)
            case Mapping():
                sound = self.is_json(all(isinstance(key, str) for key in value), place)
                return sound and all(self.json(part, place, depth + 1) for part in value.values())
            case float():
                return self.is_json(isfinite(value), place)
            case None | str() | int() | Secret():
                return True
            case _:
                return self.is_json(False, place)

    def is_json(self, sound: bool, place: Place) -> bool:
        if not sound:
            fix = "write strings, finite numbers, true/false, null, lists and maps with string keys"
            self.wrong(place, "the value is not JSON data", fix)
        return sound

    def require_within_limits(self, depth: int) -> None:
        self.nodes += 1
        if depth > MAX_DEPTH:
            self.exceed(
                f"a condition is nested deeper than {MAX_DEPTH}", "join tests in flatter lists"
            )
        if self.nodes > MAX_NODES:
            self.exceed(
                f"a condition has more than {MAX_NODES:,} parts", "move data to the document"
            )

    def check_known_keys(self, raw: Mapping[str, Json], place: Place) -> None:
        known = (*FIELDS, *COMBINATORS)
        for key in raw:
            if key not in known:
                name = key if isinstance(key, str) else type_name(key)
                fix = _suggestion(name, known, "fields")
                self.wrong((*place, name), f"{_quote(name)} is not a field of a condition", fix)

    def check_not_mixed(self, combinators: list[str], fields: list[str], place: Place) -> None:
        if len(combinators) + bool(fields) > 1:
            names = " and ".join(f"'{key}'" for key in (*combinators, *fields[:1]))
            fix = "give each its own map, and join these by all: [ … ] or any: [ … ]"
            self.wrong(place, f"{names} stand in one condition, which can only be one of them", fix)

    def exceed(self, what: str, fix: str) -> NoReturn:
        raise LimitError(what, self.locate(()), fix, code="condition-limit")

    def wrong(self, place: Place, what: str, fix: str) -> None:
        self.problems.append(Problem(what, self.locate(place), fix, code="condition"))


def _suggestion(name: str, known: tuple[str, ...] | Mapping[str, object], kind: str) -> str:
    meant = closest_name(name, known)
    return (f"did you mean '{meant}'? " if meant else "") + f"{kind}: {format_names(known)}"


def _quote(name: str | int) -> str:
    """A name from the author, safe to print and shortened."""
    return repr(shorten(name, MAX_SHOWN) if isinstance(name, str) else name)


def _keys(path: str) -> tuple[str | int, ...]:
    """A path in the grammar of templates; the document takes the place of the first name."""
    if not path:
        return ()
    return parse_path(f"document{path}" if path.startswith("[") else f"document.{path}").keys
