"""Expressions: one line of text that says yes or no, in a step's `when` and in a map's `filter`.

    or    := and (('||' | 'or' | 'OR') and)*
    and   := not (('&&' | 'and' | 'AND') not)*
    not   := ('!' | 'not' | 'NOT')* test                    !a == b is !(a == b)
    test  := value [('==' | '!=' | '>' | '<' | '>=' | '<=') value
                  | ['not'] 'in' '[' value, … ']'
                  | two-argument FUNCTION value]            path matches '[.]rs$'
    value := OPERAND | NUMBER | 'text' | "text" | true | false | null
           | FUNCTION '(' value, … ')' | '(' or ')'

The two differ in what an operand is, and in how they take values that do not fit:

                              when                        filter
    operand                   a placeholder of a template        a path into the item: a.b, a[0]
    `=`                       refused                     the same as `==`
    `>` of unlike kinds,      an error at that place      false
    a function of a value
    that it is not made for

Beside a number a text that spells one is that number: captures and the fields of CSV are
text, and `"9" > 5` and `"3" == 3` hold.  Two texts are texts: `"10" < "9"` holds.

What is undefined reads as null.  `==` is deep, 1 equals 1.0, and text never equals true
or false; `!=` is its opposite.  `>` and its like compare two numbers, or two texts by
code point, and are false on null; where kinds that have no order can be seen in the text,
it is refused.  By themselves null, false, 0, "", "false", "0", an empty list and an empty
map count as false.  In quotes a backslash stands for itself, unless a quote or another
backslash follows.  Patterns are RE2's, as in `operators`.

In a filter the first name `item` is always the item itself: `item.path` is `path`, and a
field called `item` is `item.item`.  Text has the facts of `item_facts` beside it, so
`path` and `value` work there, too.  In a when `${x.exists}` says whether x is defined,
unless x has a field of that name.

An expression is read once, in time linear in its text; depth and size are bounded.  All
that is wrong is reported together, as far as it can be read; no message holds a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite

from plait.core.documents.limits import printable_name as shortened
from plait.core.errors import (
    ConditionError,
    InputError,
    InternalError,
    LimitError,
    PlaitError,
    Problem,
    closest_name,
    format_names,
)
from plait.core.hints import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json, Secret, contains_unknown, json_text, reveal_text
from plait.template.conditions import Locate, compile_condition, condition_paths, format_path
from plait.template.filters import FILTERS
from plait.template.grammar import parse, parse_path
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextPlaceholder,
    FilledPlaceholder,
    Path,
    Placeholder,
    Text,
)
from plait.template.operators import OPERATORS, RefusedError, Test, type_name
from plait.template.program import Answer, Rendering, follow_path, getter, resolve_placeholder
from plait.template.program import Lookup as Names
from plait.template.template import Constant, Leaf, Template, compile_template

if TYPE_CHECKING:
    from plait.scope import Scope

MAX_TEXT: Final = 10_000
"""Characters of an expression."""
MAX_DEPTH: Final = 64
"""Levels of parentheses and functions."""
MAX_DIGITS: Final = 3_500
"""Of a number; a text with more of them is no number."""
COMPUTED: Final = frozenset({"env", "uuid"})
"""Names that a scope looks up when it is asked."""
MAX_STRANGE: Final = 10
"""The most invalid characters that are reported at once."""

Operand: TypeAlias = Path | Placeholder | FilledPlaceholder
State: TypeAlias = Any
"""What operands are read from: an item, or a rendering of a template."""
Get: TypeAlias = Callable[[State], Answer]
Kinds: TypeAlias = Callable[[str], str | None]
"""What a name holds, in the words of `kind_of`; None if only a value can tell."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A `when` or a `filter`, ready to be asked often."""

    source: Source
    operands: tuple[Operand, ...]
    """The paths or placeholders in it, in order."""
    _root: Get = field(repr=False)
    _state: Callable[[Json], State] = field(repr=False)
    _asks: tuple[Get, ...] = field(default=(), repr=False)
    """How its placeholders are answered."""

    def holds(self, subject: Json) -> bool:
        """Is it true?  Of an item for a filter; of a scope, or a map of names, for a when."""
        return truth(self._root(self._state(subject)))

    def is_unknown(self, scope: Scope) -> bool:
        """Does a when ask for something that is not known there, as much is not in a dry run?"""
        state = self._state(scope) if self._asks else None
        if any(_is_unknown(ask, state) for ask in self._asks):
            return True
        if scope.sources.may_change and any(map(_reads_file, self.operands)):
            return True
        placeholders = (
            one
            for one in self.operands
            if isinstance(one, ContextPlaceholder) and one.default is None
        )
        paths = [
            _strip_exists(alternative.origin)
            for placeholder in placeholders
            for alternative in placeholder.alternatives
        ]
        paths += [one for one in self.operands if isinstance(one, Path)]
        found = [scope.lookup(path) for path in paths if path is not None]
        return any(answer is UNDEFINED or contains_unknown(answer) for answer in found)


def _is_unknown(ask: Get, state: State) -> bool:
    try:
        return contains_unknown(ask(state))
    except PlaitError:
        return False  # who asks again, to decide, hears why


def _reads_file(operand: Operand) -> bool:
    """Something that runs before may write it."""
    alternatives = operand.alternatives if isinstance(operand, ContextPlaceholder) else ()
    origins = [alternative.origin for alternative in alternatives]
    return any(isinstance(origin, Computed) and origin.kind == "file" for origin in origins)


def _strip_exists(origin: object) -> Path | None:
    """`${x.exists}` asks for x."""
    if not isinstance(origin, Path):
        return None
    return replace(origin, keys=origin.keys[:-1]) if origin.keys[-1:] == ("exists",) else origin


def compile_filter(text: str, source: Source | None = None) -> Expression:
    """A filter of items; ConditionError with everything that is wrong."""
    source = source or Source("filter", text)
    _require_max_length(text, source)
    if placeholders := _find_placeholders(text):
        raise ConditionError.together(
            _placeholder_in_filter(source, placeholder) for placeholder in placeholders
        )
    written = _Written(source, text, range(len(text)), range(1, len(text) + 1), {})
    return _compile(written, _Filter(), _itself, [])


def compile_when(template: Template, kinds: Kinds | None = None) -> Expression:
    """The condition of a step, from the template of its text; `kinds` is what is known of its
    names.
    """
    match template.root:
        case Constant(bool() as value):
            return Expression(Source("when", ""), (), lambda _: value, _itself)
        case Leaf(_, source) as leaf:
            _require_max_length(source.text, source)
        case _:
            raise _no_when()
    flaws = [
        Problem(flaw.what, Span(source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
        for flaw in leaf.program.flaws
    ]
    return _compile(
        _flatten_template(leaf),
        _When(template, kinds),
        lambda names: _rendering(template, names),
        flaws,
    )


def parse_when(
    value: Json,
    *,
    source: Source | None = None,
    locate: Locate = format_path,
    kinds: Kinds | None = None,
) -> Expression:
    """A `when` as a file says it: text, true or false, or a condition as `plait.matches` takes it.

    A condition is asked of the names of the scope; its strings are no templates.
    """
    if isinstance(value, Mapping):
        decide = compile_condition(value, locate=locate)
        paths = tuple(Path(str(keys[0]), keys[1:]) for keys in condition_paths(value) if keys)
        computed = tuple(path for path in paths if path.root in COMPUTED)
        names = partial(_names_with, computed) if computed else _plain_names
        return Expression(source or Source("when", json_text(value)), paths, decide, names)
    if isinstance(value, str | bool):
        return compile_when(compile_template(value, "workflow", source=source), kinds)
    raise _no_when(locate(()))


def item_facts(item: Json) -> dict[str, Json]:
    """What is known about an item beside its own fields: a text is its own `value` and `path`.

    They answer `${item.path}` where the item itself does not; a map has fields of its own, and no
    facts.
    """
    match item:
        case str():
            return {"value": item, "path": item, "name": item.rstrip("/").rpartition("/")[2]}
        case None | dict() | list():
            return {}
        case _:
            return {"value": item}


def item_path(text: str) -> Path:
    """A path into an item, with the prefix `item` or without; InputError if it is none."""
    path = parse_path(f"item.{text}")
    return Path("item", path.keys[1:] if path.keys[0] == "item" else path.keys)


def find(item: Json, keys: tuple[str | int, ...]) -> Answer:
    """What a path leads to, in the item or in the facts about it."""
    found = follow_path(item, keys)
    if found is UNDEFINED and item.__class__ is not dict:
        return follow_path(item_facts(item), keys)
    return found


def truth(value: Answer) -> bool:
    """Whether a value by itself counts as true."""
    if value is True or value is False:
        return value
    if value is UNDEFINED:
        return False
    if isinstance(value, str | Secret):
        return reveal_text(value) not in ("", "false", "0")
    return bool(value)


def _itself(subject: Json) -> State:
    return subject


def _plain_names(values: Mapping[str, Json] | Names) -> Mapping[str, Json]:
    return values if isinstance(values, Mapping) else values.names


def _names_with(computed: Sequence[Path], values: Mapping[str, Json] | Names) -> Mapping[str, Json]:
    """The names, and beside them what a condition asks for that has to be looked up: `env.HOME`."""
    if isinstance(values, Mapping):
        return values
    found: dict[str, Json] = dict(values.names)
    for path in computed:
        answer = UNDEFINED if path.root in values.names else values.fallback(path)
        if answer is UNDEFINED:
            continue
        if path.keys:
            found[path.root] = {**found.get(path.root, {}), path.keys[0]: answer}
        else:
            found[path.root] = answer
    return found


def _rendering(template: Template, values: Mapping[str, Json] | Names) -> Rendering:
    return template.rendering(values, strict=False, env=None)


def _find_placeholders(text: str) -> list[Placeholder]:
    """Not `$` alone, which is part of many a pattern."""
    placeholders = [
        part
        for part in parse(text, "workflow").parts
        if not isinstance(part, Text | FilledPlaceholder)
    ]
    return [
        placeholder
        for placeholder in placeholders
        if not (isinstance(placeholder, ContextPlaceholder) and placeholder.bare)
    ]


def _placeholder_in_filter(source: Source, placeholder: Placeholder) -> Problem:
    what = "a filter knows the item alone, and no placeholder is filled in it"
    fix = "write the value itself; or let a command choose the items, which knows all names"
    return Problem(what, Span(source, placeholder.start, placeholder.end), fix, code="condition")


def _no_when(where: Span | str | None = None) -> ConditionError:
    return ConditionError(
        "a 'when' is text, true or false, or a map that is a condition",
        where,
        "for example when: ${tests.exit_code} == 0",
        code="condition",
    )


def _require_max_length(text: str, source: Source) -> None:
    if len(text) > MAX_TEXT:
        what = f"an expression of {len(text):,} characters; the limit is {MAX_TEXT:,}"
        raise LimitError(
            what, Span(source, 0, 1), "move data into the items or a file", code="condition-limit"
        )


# ── the text, with operands in it ────────────────────────────────────────

_PLACEHOLDER: Final = "\0"


@dataclass(frozen=True, slots=True)
class _Written:
    """Text with a NUL for each placeholder.

    `starts` and `ends` are the places of its characters in the source.
    """

    source: Source
    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    placeholders: Mapping[int, Placeholder | FilledPlaceholder]

    def span(self, start: int, end: int) -> Span:
        if start >= len(self.text):  # the end of the text, where something is missing
            last = len(self.source.text)
            return Span(self.source, max(0, last - 1), last)
        return Span(self.source, self.starts[start], self.ends[end - 1])

    def source_text(self, start: int, end: int) -> str:
        """What the author wrote there."""
        span = self.span(start, end)
        return shortened(span.source.text[span.start : span.end])


def _flatten_template(leaf: Leaf) -> _Written:
    text, starts, ends = "", list[int](), list[int]()
    placeholders: dict[int, Placeholder | FilledPlaceholder] = {}
    at = 0
    for part in leaf.program.parts:
        if isinstance(part, Text):
            for char in part.text:
                # An escape is longer in the source than what it stands for: it only drops
                # characters.
                at = max(at, leaf.source.text.find(char, at))
                starts.append(at)
                at += 1
                ends.append(at)
            text += part.text
        else:
            placeholders[len(text)] = part
            text += _PLACEHOLDER
            starts.append(part.start)
            ends.append(part.end)
            at = part.end
    return _Written(leaf.source, text, starts, ends, placeholders)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """placeholder, path, number, text, mark, end"""
    text: str
    start: int
    end: int


_TOKEN: Final = re.compile(
    r"""(?P<blank>\s++)
      | (?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)(?![\w.])
      | (?P<text>'(?:[^'\\]++|\\.)*'|"(?:[^"\\]++|\\.)*")
      | (?P<mark>==|!=|>=|<=|&&|\|\||[=><!()\[\],])
      | (?P<path>[^\W\d][\w-]*+(?:\.[\w-]++|\[-?[0-9]++\]|\["[^"]*+"\]|\['[^']*+'\])*)
      | (?P<placeholder>\0)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_INTEGER: Final = re.compile(r"-?[0-9]++")
_ESCAPE: Final = re.compile(r"\\(['\"\\])")


def _tokens(written: _Written, problems: list[Problem]) -> list[_Token]:
    tokens: list[_Token] = []
    text, at = written.text, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (found.lastgroup == "placeholder" and at not in written.placeholders):
            if text[at] in "'\"":
                problems.append(_open_quote(written, at))
                break
            problems.append(_strange(written, at))
            at += 1
            if len(problems) >= MAX_STRANGE:
                break
            continue
        kind, end = str(found.lastgroup), found.end(str(found.lastgroup))
        if kind == "text" and any(
            placeholder in written.placeholders for placeholder in _nuls(text, at, end)
        ):
            problems.append(_placeholder_in_quotes(written, at, end))
        if kind != "blank":
            tokens.append(_Token(kind, text[at:end], at, end))
        at = end
    return [*tokens, _Token("end", "", len(text), len(text))]


def _nuls(text: str, start: int, end: int) -> list[int]:
    return [at for at in range(start, end) if text[at] == _PLACEHOLDER]


def _open_quote(written: _Written, at: int) -> Problem:
    what = f"the quote {written.text[at]} is never closed"
    return Problem(what, written.span(at, at + 1), "close it", code="condition")


def _placeholder_in_quotes(written: _Written, start: int, end: int) -> Problem:
    what = "a placeholder stands inside quotes, where only plain text can stand"
    fix = "write it without quotes: a value is a value here, whatever it holds"
    return Problem(what, written.span(start, end), fix, code="condition")


_HINTS: Final = {
    "&": "write && or and",
    "|": "write || or or",
    "$": "a variable is written ${name}; what only a shell understands cannot stand here",
    "{": "a variable is written ${name}",
    "~": "write text matches 'pattern'",
}


def _strange(written: _Written, at: int) -> Problem:
    char = written.text[at]
    fix = _HINTS.get(char, "put text in quotes; compare with == != > < >= <=, join with && and ||")
    what = f"'{shortened(char)}' has no meaning in an expression"
    return Problem(what, written.span(at, at + 1), fix, code="condition")


# ── terms ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of an expression: how its value is got, and what is known of it before."""

    get: Get
    start: int
    end: int
    kind: str | None = None
    """In the words of `kind_of`; None if only a value can tell."""
    constant: Answer = UNDEFINED
    is_operand: bool = False


_TRUE_OR_FALSE, _A_NUMBER, _A_STRING, _NULL = "true or false", "a number", "a string", "null"
_ORDERED: Final = frozenset({_A_NUMBER, _A_STRING})


class _Filter:
    """Operands are paths into the item; a comparison that makes no sense is false."""

    name = "filter"
    single_equals = True

    def kind(self, placeholder: Placeholder | FilledPlaceholder) -> str | None:  # noqa: ARG002
        return None

    def placeholder(self, placeholder: Placeholder | FilledPlaceholder) -> Get:  # noqa: ARG002
        raise InternalError("a filter is no template and has no placeholders")

    def path(self, text: str) -> tuple[Path, Get]:
        path = item_path(text)
        keys = path.keys
        return path, lambda item: find(item, keys)

    def refuse(self, refused: Callable[[], ConditionError]) -> bool:  # noqa: ARG002 - `_When` raises it
        return False


class _When:
    """Operands are placeholders; a comparison that makes no sense is an error."""

    name = "when"
    single_equals = False

    def __init__(self, template: Template, kinds: Kinds | None = None) -> None:
        self.profile = template.profile
        self.kinds = kinds

    def kind(self, placeholder: Placeholder | FilledPlaceholder) -> str | None:
        """Of a placeholder that is a name and nothing else."""
        match placeholder:
            case ContextPlaceholder(
                alternatives=(Alternative(Path(root, ()), ()),), filters=(), default=None
            ):
                return None if self.kinds is None else self.kinds(root)
        return None

    def placeholder(self, placeholder: Placeholder | FilledPlaceholder) -> Get:
        get = self._make_getter(placeholder)
        parent = _parent_of_exists(placeholder)
        if parent is None:
            return get
        get_parent = self._make_getter(parent)

        def exists(rendering: Rendering) -> Answer:
            own = get(rendering)
            return own if own is not UNDEFINED else get_parent(rendering) is not UNDEFINED

        return exists

    def _make_getter(self, placeholder: Placeholder | FilledPlaceholder) -> Get:
        get = getter(placeholder, self.profile)
        required = isinstance(placeholder, ContextPlaceholder) and placeholder.required is not None

        def asked(rendering: Rendering) -> Answer:
            answer = resolve_placeholder(placeholder, get, rendering)
            if answer is UNDEFINED and required and not isinstance(placeholder, FilledPlaceholder):
                rendering.missing.append((rendering.source, placeholder))
                rendering.finish()
            return answer

        return asked

    def path(self, text: str) -> tuple[Path, Get]:
        raise InputError(text)

    def refuse(self, refused: Callable[[], ConditionError]) -> bool:
        raise refused()


def _parent_of_exists(placeholder: Placeholder | FilledPlaceholder) -> ContextPlaceholder | None:
    """`${x}` for `${x.exists}`, if the placeholder is nothing but that."""
    if (
        not isinstance(placeholder, ContextPlaceholder)
        or len(placeholder.alternatives) != 1
        or placeholder.filters
        or placeholder.default
    ):
        return None
    alternative = placeholder.alternatives[0]
    path = alternative.origin
    if not isinstance(path, Path) or path.keys[-1:] != ("exists",) or alternative.formats:
        return None
    return replace(
        placeholder, alternatives=(replace(alternative, origin=Path(path.root, path.keys[:-1])),)
    )


def _alike(left: Json, right: Json) -> tuple[Json, Json]:
    """Two values as they are compared: a text beside a number is the number that it spells."""
    if type_name(right) == _A_NUMBER:
        left = to_number(left)
    elif type_name(left) == _A_NUMBER:
        right = to_number(right)
    return left, right


def to_number(value: Json) -> Json:
    """The number that a text spells; anything else as it is."""
    if type_name(value) != _A_STRING:
        return value
    number = _number(reveal_text(value).strip())
    return value if number is None else number


def _any_holds(tests: Sequence[Test], value: Json) -> bool:
    return any(test(value) for test in tests)


def _constant_test(constant: Json, build: Callable[[Json], Test]) -> Test:
    """The test of `alike` values, one of which is known: made once, and not for each of a million
    items.
    """
    test = build(constant)
    if type_name(constant) == _A_NUMBER:
        return lambda value: test(to_number(value))
    number = to_number(constant)
    if type_name(number) != _A_NUMBER:
        return test
    beside_number = build(number)
    return lambda value: beside_number(value) if type_name(value) == _A_NUMBER else test(value)


def _number(text: str) -> int | float | None:
    if len(text) > MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    return number if isfinite(number) else None


def _plain(answer: Answer) -> Json:
    return None if answer is UNDEFINED else answer


# ── functions ────────────────────────────────────────────────────────────

Binary: TypeAlias = Callable[[Json, Json], bool | None]
"""The answer about two values; None: it has none for such values."""


def _starts_with(text: Json, start: Json) -> bool | None:
    return reveal_text(text).startswith(reveal_text(start)) if _are_texts(text, start) else None


def _ends_with(text: Json, end: Json) -> bool | None:
    return reveal_text(text).endswith(reveal_text(end)) if _are_texts(text, end) else None


def _contains(holder: Json, part: Json) -> bool | None:
    kind = type_name(holder)
    if kind == "a list" or (kind in (_A_STRING, "a map") and type_name(part) == _A_STRING):
        return OPERATORS["contains"].build(part)(holder)
    return None


def _matches(text: Json, pattern: Json) -> bool | None:
    return OPERATORS["regex"].build(pattern)(text) if _are_texts(text, pattern) else None


def _are_texts(*values: Json) -> bool:
    return all(type_name(value) == _A_STRING for value in values)


BINARY: Final[dict[str, Binary]] = {
    "contains": _contains,
    "starts_with": _starts_with,
    "ends_with": _ends_with,
    "matches": _matches,
}
"""They may also stand between their arguments."""

UNARY: Final[dict[str, Callable[[Answer], bool]]] = {
    # null must be there; what is missing is neither null nor anything else
    "is_null": lambda value: value is None,
    "is_not_null": lambda value: value is not None and value is not UNDEFINED,
    "is_number": lambda value: type_name(value) == _A_NUMBER,
    "is_string": lambda value: type_name(value) == _A_STRING,
    "is_bool": lambda value: type_name(value) == _TRUE_OR_FALSE,
    "is_array": lambda value: type_name(value) == "a list",
    "is_object": lambda value: type_name(value) == "a map",
    "exists": lambda value: value is not UNDEFINED,
}

FUNCTIONS: Final = (*BINARY, *UNARY, "length")
_length: Final = FILTERS["length"][1]


# ── reading ──────────────────────────────────────────────────────────────

_AND, _OR, _NOT = ("&&", "and", "AND"), ("||", "or", "OR"), ("!", "not", "NOT")
_COMPARISONS: Final = {
    "==": "eq",
    "=": "eq",
    "!=": "ne",
    ">": "gt",
    "<": "lt",
    ">=": "gte",
    "<=": "lte",
}
_LITERALS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}
_WORDS: Final = (*_AND[1:], *_OR[1:], *_NOT[1:], "in", "IN", *_LITERALS)


class _StopError(Exception):
    """Nothing after this place can be understood; the problem is on the list."""


def _compile(
    written: _Written,
    rules: _Filter | _When,
    state: Callable[[Json], State],
    problems: list[Problem],
) -> Expression:
    # What is malformed on one level would only bring strange complaints on the next.
    tokens = [] if problems else _tokens(written, problems)
    reader = _Reader(written, tokens, rules, problems)
    root = None if problems else reader.whole()
    if problems or root is None:
        raise ConditionError.together(problems)
    return Expression(written.source, tuple(reader.operands), root.get, state, tuple(reader.asks))


class _Reader:
    """Recursive descent; goes on after what is merely wrong, stops at what cannot be read."""

    def __init__(
        self,
        written: _Written,
        tokens: list[_Token],
        rules: _Filter | _When,
        problems: list[Problem],
    ) -> None:
        self.written = written
        self.tokens = tokens
        self.rules = rules
        self.problems = problems
        self.operands: list[Operand] = []
        self.asks: list[Get] = []
        self.at = 0
        self.depth = 0

    def whole(self) -> _Term | None:
        try:
            term = self.parse_or()
            if self.token.kind != "end":
                self.refuse_rest()
        except _StopError:
            return None
        return term

    # ── joining ──────────────────────────────────────────────────────────

    def parse_or(self) -> _Term:
        terms = [self.parse_and()]
        while self.accept(*_OR):
            terms.append(self.parse_and())
        return terms[0] if len(terms) == 1 else _join_terms(terms, deciding=True)

    def parse_and(self) -> _Term:
        terms = [self.parse_not()]
        while self.accept(*_AND):
            terms.append(self.parse_not())
        return terms[0] if len(terms) == 1 else _join_terms(terms, deciding=False)

    def parse_not(self) -> _Term:
        start, negations = self.token.start, 0
        while self.accept(*_NOT):
            negations += 1
        term = self.test()
        if not negations:
            return term
        get, wanted = term.get, negations % 2 == 0
        return _Term(lambda state: truth(get(state)) is wanted, start, term.end, _TRUE_OR_FALSE)

    def test(self) -> _Term:
        left = self.value()
        token = self.token
        if token.text in _COMPARISONS and token.kind == "mark":
            self.at += 1
            if token.text == "=" and not self.rules.single_equals:
                self.wrong(token, "a single '=' compares nothing", "write ==")
            term = self.make_comparison(left, _COMPARISONS[token.text], self.value())
            self.require_no_chain()
            return term
        if self.accept("in", "IN"):
            return self.among(left)
        if token.text in _NOT[1:] and self.tokens[self.at + 1].text in ("in", "IN"):
            self.at += 2
            found = self.among(left).get
            return _Term(lambda state: not found(state), left.start, self.last.end, _TRUE_OR_FALSE)
        if token.kind == "path" and token.text in BINARY:
            self.at += 1
            return self.binary(token, [left, self.value()])
        return left

    def require_no_chain(self) -> None:
        if self.token.kind == "mark" and self.token.text in _COMPARISONS:
            self.stop(self.token, "comparisons cannot be chained", "write a < b && b < c")

    # ── values ───────────────────────────────────────────────────────────

    def value(self) -> _Term:
        token = self.token
        self.at += 1
        match token.kind:
            case "placeholder":
                placeholder = self.written.placeholders[token.start]
                self.operands.append(placeholder)
                get, kind = self.rules.placeholder(placeholder), self.rules.kind(placeholder)
                self.asks.append(get)
                return _Term(get, token.start, token.end, kind, is_operand=True)
            case "number":
                return self.number(token)
            case "text":
                return _constant(_ESCAPE.sub(r"\1", token.text[1:-1]), token)
            case "path" if token.text in _LITERALS:
                return _constant(_LITERALS[token.text], token)
            case "path" if self.token.text == "(" and token.text not in _WORDS:
                return self.function(token)
            case "path" if token.text not in _WORDS:
                return self.path(token)
            case "mark" if token.text == "(":
                return self.group(token)
        return self.refuse_value(token)

    def number(self, token: _Token) -> _Term:
        number = _number(token.text)
        if number is None:
            self.wrong(token, "this number is too large", "write it in quotes, as text")
        return _constant(number or 0, token)

    def path(self, token: _Token) -> _Term:
        try:
            path, get = self.rules.path(token.text)
        except InputError:
            return self.refuse_word(token)
        self.operands.append(path)
        return _Term(get, token.start, token.end, is_operand=True)

    def group(self, opened: _Token) -> _Term:
        self.enter(opened)
        term = self.parse_or()
        if not self.accept(")"):
            self.refuse_rest("')'", opened)
        self.depth -= 1
        return replace(term, start=opened.start, end=self.last.end, is_operand=False)

    # ── comparing ────────────────────────────────────────────────────────

    def make_comparison(self, left: _Term, name: str, right: _Term) -> _Term:
        get = (
            self.equality(left, right, name)
            if name in ("eq", "ne")
            else self.order(left, right, name)
        )
        return _Term(get, left.start, right.end, _TRUE_OR_FALSE)

    def equality(self, left: _Term, right: _Term, name: str) -> Get:
        get_left, get_right, build = left.get, right.get, OPERATORS[name].build
        if right.constant is not UNDEFINED:
            test = _constant_test(right.constant, build)
            return lambda state: test(_plain(get_left(state)))

        def equal(state: State) -> bool:
            one, other = _alike(_plain(get_left(state)), _plain(get_right(state)))
            return build(other)(one)

        return equal

    def order(self, left: _Term, right: _Term, name: str) -> Get:
        self.check_orderable(left, right)
        get_left, get_right, rules = left.get, right.get, self.rules
        compare = OPERATORS[name].build

        def ordered(state: State) -> bool:
            one, other = _alike(_plain(get_left(state)), _plain(get_right(state)))
            if one is None or other is None:
                return False
            kind, kind_of_other = type_name(one), type_name(other)
            if kind == kind_of_other and kind in _ORDERED:
                return compare(other)(one)
            return rules.refuse(lambda: self.disorder(left, kind, right, kind_of_other))

        return ordered

    def check_orderable(self, left: _Term, right: _Term) -> None:
        for term in (left, right):
            if term.kind is not None and term.kind not in _ORDERED:
                what = f"'{self.term_text(term)}' is {term.kind}, which has no order"
                self.wrong(term, what, "compare it with == or !=")
                return
        if left.kind is None or right.kind is None or left.kind == right.kind:
            return
        # Of known kind without a known value is only a number: of `length`, or that was captured.
        values = [0 if term.constant is UNDEFINED else term.constant for term in (left, right)]
        one, other = _alike(*values)
        if type_name(one) != type_name(other):
            error = self.disorder(left, left.kind, right, right.kind)
            self.problems += error.problems

    def disorder(self, left: _Term, kind: str, right: _Term, other: str) -> ConditionError:
        what = f"'{self.term_text(left)}' is {kind} and is compared with {other}"
        fix = "compare numbers with numbers and text with text"
        return ConditionError(what, self.written.span(left.start, right.end), fix, code="condition")

    def among(self, left: _Term) -> _Term:
        if not self.accept("["):
            fix = "write in ['a', 'b']; for a list that is a value, write contains(list, value)"
            self.stop(self.token, "'in' needs a list in brackets", fix)
        self.enter(self.last)
        elements = self.parse_terms("]")
        self.depth -= 1
        equals = [self.equality(left, element, "eq") for element in elements]
        get: Get = lambda state: any(equal(state) for equal in equals)  # noqa: E731
        if all(one.constant is not UNDEFINED for one in elements):
            tests = [_constant_test(one.constant, OPERATORS["eq"].build) for one in elements]
            get = lambda state: _any_holds(tests, _plain(left.get(state)))  # noqa: E731
        return _Term(get, left.start, self.last.end, _TRUE_OR_FALSE)

    # ── functions ────────────────────────────────────────────────────────

    def function(self, name: _Token) -> _Term:
        opened = self.token
        self.enter(opened)
        self.at += 1
        arguments = self.parse_terms(")")
        self.depth -= 1
        if name.text not in FUNCTIONS:
            meant = closest_name(name.text, FUNCTIONS)
            fix = (
                f"did you mean '{meant}'? " if meant else ""
            ) + f"functions: {format_names(FUNCTIONS, most=20)}"
            self.wrong(name, f"there is no function '{shortened(name.text)}'", fix)
            return _Term(lambda _: None, name.start, self.last.end)
        wanted = (2,) if name.text in BINARY else (1, 2) if name.text == "length" else (1,)
        if len(arguments) not in wanted:
            plural = "s" if wanted[-1] > 1 else ""
            what = (
                f"'{name.text}' takes {' or '.join(map(str, wanted))} argument{plural}, not "
                f"{len(arguments)}"
            )
            self.wrong(
                name, what, f"write {name.text}({'value, text' if wanted == (2,) else 'value'})"
            )
            return _Term(lambda _: None, name.start, self.last.end)
        if name.text in BINARY:
            return self.binary(name, arguments)
        return (
            self.length(name, arguments)
            if name.text == "length"
            else self.unary(name, arguments[0])
        )

    def unary(self, name: _Token, argument: _Term) -> _Term:
        if name.text == "exists" and not argument.is_operand:
            what, fix = "'exists' asks about something that has a name", "write exists(name)"
            self.wrong(argument, what, fix)
        get, ask_kind = argument.get, UNARY[name.text]
        return _Term(lambda state: ask_kind(get(state)), name.start, self.last.end, _TRUE_OR_FALSE)

    def length(self, name: _Token, arguments: list[_Term]) -> _Term:
        get = arguments[0].get
        term = _Term(
            lambda state: _length(_plain(get(state))), name.start, self.last.end, _A_NUMBER
        )
        return self.make_comparison(term, "eq", arguments[1]) if len(arguments) == 2 else term

    def binary(self, name: _Token, arguments: list[_Term]) -> _Term:
        holder, part = arguments
        self.check_text_argument(name, part)
        self.check_holder(name, holder)
        test = self.binary_function(name, part)
        get_holder, get_part, rules = holder.get, part.get, self.rules

        def tested(state: State) -> bool:
            one, other = _plain(get_holder(state)), _plain(get_part(state))
            if one is None or other is None:
                return False
            try:
                answer = test(one, other)
            except RefusedError as refused:
                problem = refused.problem(
                    self.written.span(holder.start, part.end), begin="here stands text that is"
                )
                raise ConditionError.together([problem]) from None
            if answer is None:
                return rules.refuse(lambda: self.no_answer(name, holder, type_name(one)))
            return answer

        return _Term(tested, holder.start, self.last.end, _TRUE_OR_FALSE)

    def binary_function(self, name: _Token, part: _Term) -> Binary:
        """The function; `matches` with a pattern that is known reads it here, and once."""
        if name.text != "matches" or not isinstance(part.constant, str):
            return BINARY[name.text]
        try:
            search = OPERATORS["regex"].build(part.constant)
        except RefusedError as refused:
            where = self.written.span(part.start, part.end)
            self.problems.append(refused.problem(where, begin="this is"))
            return BINARY[name.text]
        return lambda text, _: search(text) if type_name(text) == _A_STRING else None

    def check_text_argument(self, name: _Token, part: _Term) -> None:
        if name.text != "contains" and part.kind not in (None, _A_STRING):
            self.wrong(part, f"'{name.text}' needs text, not {part.kind}", "put it in quotes")

    def check_holder(self, name: _Token, holder: _Term) -> None:
        is_refused = holder.kind in (_A_NUMBER, _TRUE_OR_FALSE)
        if holder.kind is not None and (
            is_refused or (holder.kind == "a list" and name.text != "contains")
        ):
            self.problems += self.no_answer(name, holder, holder.kind).problems

    def no_answer(self, name: _Token, holder: _Term, kind: str) -> ConditionError:
        what = f"'{self.term_text(holder)}' is {kind}, for which '{name.text}' has no answer"
        fix = "look into text; 'contains' looks into a list, and for text into a map, too"
        return ConditionError(
            what, self.written.span(holder.start, holder.end), fix, code="condition"
        )

    # ── tokens ───────────────────────────────────────────────────────────

    @property
    def token(self) -> _Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    @property
    def last(self) -> _Token:
        return self.tokens[self.at - 1]

    def accept(self, *texts: str) -> bool:
        if self.token.kind not in ("mark", "path") or self.token.text not in texts:
            return False
        self.at += 1
        return True

    def parse_terms(self, close: str) -> list[_Term]:
        if self.accept(close):
            return []
        terms = [self.parse_or()]
        while self.accept(","):
            terms.append(self.parse_or())
        if not self.accept(close):
            self.refuse_rest(f"',' or '{close}'")
        return terms

    def enter(self, token: _Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            where = self.written.span(token.start, token.end)
            what = f"an expression is nested deeper than {MAX_DEPTH} levels"
            raise LimitError(what, where, "take parentheses away", code="condition-limit")

    def term_text(self, term: _Term) -> str:
        return self.written.source_text(term.start, term.end)

    # ── what is wrong ────────────────────────────────────────────────────

    def refuse_value(self, token: _Token) -> NoReturn:
        if not self.tokens[0].text:
            self.stop(token, "an expression is missing", self.example)
        what = "a value is missing " + (f"before '{token.text}'" if token.text else "at the end")
        self.stop(token, what, self.example)

    def refuse_word(self, token: _Token) -> NoReturn:
        word = shortened(token.text)
        meant = closest_name(token.text, (*_WORDS, *FUNCTIONS))
        fix = f"a variable is written ${{{word}}}, text '{word}'" + (
            f"; did you mean {meant}?" if meant else ""
        )
        self.stop(token, f"'{word}' stands for nothing here", fix)

    def refuse_rest(self, wanted: str = "", opened: _Token | None = None) -> NoReturn:
        token = self.token
        if opened is not None and token.kind == "end":
            self.stop(opened, "this '(' is never closed", "add ')'")
        what = (
            f"'{self.written.source_text(token.start, token.end)}' cannot follow"
            if token.text
            else "something is missing at the end"
        )
        expected = (
            f"{wanted} is expected here" if wanted else "a comparison, && or || is expected here"
        )
        meant = closest_name(token.text, (*BINARY, *_WORDS)) if token.kind == "path" else None
        self.stop(token, what, expected + (f"; did you mean {meant}?" if meant else ""))

    @property
    def example(self) -> str:
        return "for example " + (
            "${count} > 3" if self.rules.name == "when" else "score > 3 && kind == 'bug'"
        )

    def wrong(self, place: _Token | _Term, what: str, fix: str) -> None:
        where = self.written.span(place.start, place.end)
        self.problems.append(Problem(what, where, fix, code="condition"))

    def stop(self, place: _Token | _Term, what: str, fix: str) -> NoReturn:
        self.wrong(place, what, fix)
        raise _StopError


def _constant(value: Json, token: _Token) -> _Term:
    return _Term(lambda _: value, token.start, token.end, type_name(value), value)


def _join_terms(terms: list[_Term], *, deciding: bool) -> _Term:
    gets = [term.get for term in terms]

    def joined(state: State) -> bool:
        for get in gets:
            if truth(get(state)) is deciding:
                return deciding
        return not deciding

    return _Term(joined, terms[0].start, terms[-1].end, _TRUE_OR_FALSE)
