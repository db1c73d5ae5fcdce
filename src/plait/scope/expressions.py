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

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from plait.core.errors import (
    ConditionError,
    InputError,
    InternalError,
    LimitError,
    PlaitError,
    Problem,
)
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json, contains_unknown, json_text
from plait.scope.expression_reader import Operand, read_expression
from plait.scope.expression_terms import Get, Rules, State
from plait.scope.expression_tokens import WrittenText, flatten_template
from plait.scope.expression_values import truth
from plait.scope.item_paths import find, item_path
from plait.template.compiled import Answer, Rendering, getter, resolve_placeholder
from plait.template.compiled import Lookup as Names
from plait.template.conditions import Locate, compile_condition, condition_paths, format_path
from plait.template.grammar import parse
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextPlaceholder,
    FilledPlaceholder,
    Path,
    Placeholder,
    Text,
)
from plait.template.template import Constant, Leaf, Template, compile_template

if TYPE_CHECKING:
    from plait.scope import Scope

MAX_TEXT: Final = 10_000
"""Characters of an expression."""
COMPUTED: Final = frozenset({"env", "uuid"})
"""Names that a scope computes on demand."""

Kinds: TypeAlias = Callable[[str], str | None]
"""Returns the kind of a name's value, in the words of `kind_of`; None if only the value shows it.
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled `when` or `filter`."""

    source: Source
    operands: tuple[Operand, ...]
    """The paths or placeholders in it, in order."""
    _root: Get = field(repr=False)
    _state: Callable[[Json], State] = field(repr=False)
    _asks: tuple[Get, ...] = field(default=(), repr=False)
    """The lookups of its placeholders."""

    def holds(self, subject: Json) -> bool:
        """Evaluate the expression. The subject of a filter is an item; that of a `when` is
        a scope or a map of names.
        """
        return truth(self._root(self._state(subject)))

    def is_unknown(self, scope: Scope) -> bool:
        """Does a `when` need a value that is unknown there? In a dry run many are."""
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
        return False  # the evaluation itself reports the reason


def _reads_file(operand: Operand) -> bool:
    """Does the operand read a file? An earlier step may write it."""
    alternatives = operand.alternatives if isinstance(operand, ContextPlaceholder) else ()
    origins = [alternative.origin for alternative in alternatives]
    return any(isinstance(origin, Computed) and origin.kind == "file" for origin in origins)


def _strip_exists(origin: object) -> Path | None:
    """The path of x if this is `${x.exists}`."""
    if not isinstance(origin, Path):
        return None
    return replace(origin, keys=origin.keys[:-1]) if origin.keys[-1:] == ("exists",) else origin


def compile_filter(text: str, source: Source | None = None) -> Expression:
    """Compile a filter of items; raise ConditionError with all problems."""
    source = source or Source("filter", text)
    _require_max_length(text, source)
    if placeholders := _find_placeholders(text):
        what = "a filter knows the item alone, and no placeholder is filled in it"
        fix = "write the value itself; or let a command choose the items, which knows all names"
        raise ConditionError.together(
            Problem(what, Span(source, one.start, one.end), fix, code="condition")
            for one in placeholders
        )
    written = WrittenText(source, text, range(len(text)), range(1, len(text) + 1), {})
    return _compile(written, _Filter(), _itself, [])


def compile_when(template: Template, kinds: Kinds | None = None) -> Expression:
    """Compile the condition of a step; `kinds`: the known kinds of its names."""
    match template.root:
        case Constant(bool() as value):
            return Expression(Source("when", ""), (), lambda _: value, _itself)
        case Leaf(_, source) as leaf:
            _require_max_length(source.text, source)
        case _:
            raise _no_when()
    flaws = [
        Problem(flaw.what, Span(source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
        for flaw in leaf.compiled.flaws
    ]
    return _compile(
        flatten_template(leaf),
        _When(template, kinds),
        lambda names: template.rendering(names, strict=False, env=None),
        flaws,
    )


def parse_when(
    value: Json,
    *,
    source: Source | None = None,
    locate: Locate = format_path,
    kinds: Kinds | None = None,
) -> Expression:
    """Parse a `when` of a file: a text, true, false, or a condition as for `plait.matches`.

    Such a condition tests the names of the scope; its strings are not templates.
    """
    if isinstance(value, Mapping):
        decide = compile_condition(value, locate=locate)
        paths = tuple(Path(str(keys[0]), keys[1:]) for keys in condition_paths(value) if keys)
        computed = tuple(path for path in paths if path.root in COMPUTED)
        names = partial(_names_with, computed)
        return Expression(source or Source("when", json_text(value)), paths, decide, names)
    if isinstance(value, str | bool):
        return compile_when(compile_template(value, "workflow", source=source), kinds)
    raise _no_when(locate(()))


def _compile(
    written: WrittenText, rules: Rules, state: Callable[[Json], State], problems: list[Problem]
) -> Expression:
    root, reader = read_expression(written, rules, problems)
    if problems or root is None:
        raise ConditionError.together(problems)
    return Expression(written.source, tuple(reader.operands), root.get, state, tuple(reader.asks))


def _itself(subject: Json) -> State:
    return subject


def _names_with(computed: Sequence[Path], values: Mapping[str, Json] | Names) -> Mapping[str, Json]:
    """The names, and the computed ones that a condition uses, such as `env.HOME`."""
    if isinstance(values, Mapping):
        return values
    if not computed:
        return values.names
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


def _find_placeholders(text: str) -> list[Placeholder]:
    """The placeholders in a text. `$` alone does not count: many patterns contain it."""
    return [
        part
        for part in parse(text, "workflow").parts
        if not isinstance(part, Text | FilledPlaceholder)
        and not (isinstance(part, ContextPlaceholder) and part.bare)
    ]


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


# ── operands ──────────────────────────────────────────────────


class _Filter:
    """The rules of a filter: operands are paths into the item; a comparison that makes no sense
    is false.
    """

    single_equals = True
    example = "for example score > 3 && kind == 'bug'"

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
    """The rules of a `when`: operands are placeholders; a comparison that makes no sense is an
    error.
    """

    single_equals = False
    example = "for example ${count} > 3"

    def __init__(self, template: Template, kinds: Kinds | None = None) -> None:
        self.profile = template.profile
        self.kinds = kinds

    def kind(self, placeholder: Placeholder | FilledPlaceholder) -> str | None:
        """The known kind of a placeholder that is only a name; None for any other."""
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

        def resolve(rendering: Rendering) -> Answer:
            answer = resolve_placeholder(placeholder, get, rendering)
            if answer is UNDEFINED and required and not isinstance(placeholder, FilledPlaceholder):
                rendering.missing.append((rendering.source, placeholder))
                rendering.finish()
            return answer

        return resolve

    def path(self, text: str) -> tuple[Path, Get]:
        raise InputError(text)

    def refuse(self, refused: Callable[[], ConditionError]) -> bool:
        raise refused()


def _parent_of_exists(placeholder: Placeholder | FilledPlaceholder) -> ContextPlaceholder | None:
    """`${x}` for `${x.exists}`, if the placeholder consists of nothing else."""
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
