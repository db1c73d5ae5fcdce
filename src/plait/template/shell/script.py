"""A template that is shell text: read once, then bound to any values.

A script may have its own variables. A name that it sets, or uses in a loop, belongs to the script,
even if our scope knows the name: `$f`, `${f}` and `${f:-x}` alike. Two forms still take our value,
since they can mean nothing else: `f=${f}` and `for f in ${f}`. Forms that only a template has
(`${f.exit_code}`, `${f | upper}`) use our scope. `${n:-0}` with a name like an environment variable
(`${HOME:-/tmp}`) is left to the shell, unless our scope knows the name or a shell would not expand
it there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import lru_cache

from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Source
from plait.core.values import Unknown, reveal_text
from plait.template.compiled import CompiledTemplate, Lookup, PlacedValue
from plait.template.nodes import (
    Alternative,
    ContextPlaceholder,
    FilledPlaceholder,
    Part,
    Parts,
    Path,
    Placeholder,
    Text,
)
from plait.template.shell.binding import BindingPlan, BoundScript, Trusted, bind, plan
from plait.template.shell.lexer import Dialect, Piece, ValueSlot, analyse
from plait.template.shell.script_names import (
    as_expansion,
    part_source,
    read_names,
    restore_source,
)
from plait.template.sinks import Env, Values, is_author_placeholder, original_placeholder
from plait.template.template import Leaf, Template

MOST_PLANS: Final = 16
"""Plans kept for one script: each set of placeholders without an answer has its own plan."""


def bind_shell(
    template: Template,
    values: Values,
    *,
    strict: bool = False,
    env: Env = None,
    dialect: Dialect = "sh",
) -> BoundScript:
    """Bind the values of a shell template to variables; `binding.py` explains how."""
    lookup = template.lookup(values, env)
    script = parse_script(template, dialect, lookup.names)
    pieces = script.template.pieces(lookup, strict=strict, env=env, shell_names=script.assigned)
    placed = [piece for piece in pieces if piece.__class__ is PlacedValue]
    planned = script.plan(tuple([piece.__class__ is not str for piece in pieces]))
    variables = _variables(lookup) if planned.variables else None
    trusted = _trusted(placed, lookup)
    return bind(planned, [piece.value for piece in placed], trusted=trusted, variables=variables)


def bind_pieces(
    pieces: Sequence[str | PlacedValue],
    source: Source,
    *,
    dialect: Dialect,
    lookup: Lookup | None = None,
) -> BoundScript:
    placed = [piece for piece in pieces if isinstance(piece, PlacedValue)]
    numbers = iter(range(len(placed)))
    slots = [
        piece if isinstance(piece, str) else make_slot(piece.placeholder, next(numbers))
        for piece in pieces
    ]
    trusted = _trusted(placed, lookup)
    variables = None if lookup is None else _variables(lookup)
    values = [piece.value for piece in placed]
    return bind(plan(slots, dialect, source), values, trusted=trusted, variables=variables)


def _trusted(placed: Sequence[PlacedValue], lookup: Lookup | None) -> Trusted:
    """Return a check whether a value comes from the author; it is asked only for an option-like
    value.
    """
    return lambda index: is_author_placeholder(placed[index].placeholder, lookup, of_author=True)


def _variables(lookup: Lookup) -> Callable[[str], str | None] | None:
    """Return a lookup of environment variables of the step that hold a value from outside."""
    find_origin = getattr(lookup, "origin", None)
    if find_origin is None:
        return None

    def variable_text(name: str) -> str | None:
        origin = find_origin(name)
        if origin is None or origin.level != "env" or origin.of_author:
            return None
        value = lookup.names.get(name)
        return None if isinstance(value, Unknown) else reveal_text(value)

    return variable_text


def parse_script(template: Template, dialect: Dialect, names: Container[str]) -> Script:
    """Return a template as a script, in a scope that knows these names."""
    read = _read(template.leaf, dialect)
    if not read.defaulted:
        return read.script
    return read.with_expansions(
        frozenset(start for start, name in read.defaulted if name not in names)
    )


class Script:
    """A template without the placeholders that the shell expands."""

    def __init__(self, leaf: Leaf, assigned: frozenset[str], dialect: Dialect) -> None:
        self.template = Template(leaf, leaf.compiled.profile)
        self.assigned = assigned
        """Variables that the script sets itself, so `${x}` with such a name is never missing."""
        self._leaf = leaf
        self._dialect: Dialect = dialect
        self._plans: dict[tuple[bool, ...], BindingPlan] = {}

    def plan(self, answered: tuple[bool, ...]) -> BindingPlan:
        """Return the plan in which these parts are values, and the others are text as
        written.

        Raises an error with all refusals.
        """
        known = self._plans.get(answered)
        if known is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            known = self._plans[answered] = plan(
                self._pieces(answered), self._dialect, self._leaf.source
            )
        return known

    def _pieces(self, answered: tuple[bool, ...]) -> list[Piece]:
        pieces: list[Piece] = []
        count = 0
        for part, is_value in zip(self._leaf.compiled.parts, answered, strict=True):
            if not is_value or isinstance(part, Text):
                pieces.append(part_source(part, self._leaf.source))
                continue
            pieces.append(make_slot(part, count))
            count += 1
        return pieces


def make_slot(placeholder: Placeholder | FilledPlaceholder, index: int) -> ValueSlot:
    asked = original_placeholder(placeholder)
    formats = (
        {form.name for alternative in asked.alternatives for form in alternative.formats}
        if isinstance(asked, ContextPlaceholder)
        else ()
    )
    return ValueSlot(index, placeholder.start, placeholder.end, "raw" in formats, "opt" in formats)


class _Read:
    """The part of a script's analysis that does not depend on known names."""

    def __init__(self, leaf: Leaf, dialect: Dialect) -> None:
        read = read_names(leaf.compiled.parts, leaf.source, dialect)
        assigned = read.assigned
        if read.own_placeholders:
            leaf = _with_parts(
                leaf, tuple(restore_source(leaf.compiled.parts, leaf.source, read.own_placeholders))
            )
        self._leaf, self._dialect = leaf, dialect
        self.script = Script(leaf, assigned, dialect)
        self.defaulted = tuple(
            (part.start, name)
            for part in leaf.compiled.parts
            if isinstance(part, ContextPlaceholder)
            and (name := _name_with_default(part)) is not None
            if name in assigned or _ENV_NAME.fullmatch(name)
        )
        """Start and name of each placeholder that belongs to the shell if our scope does not know it."""
        self._expanded: dict[frozenset[int], Script] = {frozenset(): self.script}

    def with_expansions(self, starts: frozenset[int]) -> Script:
        """Return the script in which the shell itself expands the placeholders at these starts."""
        known = self._expanded.get(starts)
        if known is None:
            if len(self._expanded) >= MOST_PLANS:
                self._expanded = {frozenset(): self.script}
            leaf = _with_parts(self._leaf, self._with_expansions(starts))
            known = Script(leaf, self.script.assigned, self._dialect)
            self._expanded[starts] = known
        return known

    def _with_expansions(self, starts: frozenset[int]) -> Parts:
        parts = self._leaf.compiled.parts
        slots = [
            part.text if isinstance(part, Text) else ValueSlot(index, part.start, part.end)
            for index, part in enumerate(parts)
        ]
        places = iter(analyse(slots, self._dialect).places)
        kept: list[Part] = []
        for part in parts:
            state = "" if isinstance(part, Text) else next(places).state
            if (
                isinstance(part, ContextPlaceholder)
                and part.start in starts
                and state in _EXPANDING
            ):
                kept += as_expansion(part, self._leaf.source)
            else:
                kept.append(part)
        return tuple(kept)


# At most some megabytes for scripts of ordinary length. A map with more scripts is a bit slower.
_read: Final = lru_cache(maxsize=128)(_Read)
_EXPANDING: Final = ("bare", "double", "heredoc", "parameter", "quoted-parameter")
_ENV_NAME: Final = lazy_pattern(r"[A-Z_][A-Z0-9_]*+")


def _with_parts(leaf: Leaf, parts: Parts) -> Leaf:
    return Leaf(CompiledTemplate(parts, leaf.compiled.profile, leaf.compiled.flaws), leaf.source)


def _name_with_default(placeholder: ContextPlaceholder) -> str | None:
    """Return the name in `${name:-default}` if the placeholder has exactly this form."""
    match placeholder:
        case ContextPlaceholder(
            alternatives=(Alternative(Path(root, ()), ()),), filters=(), default=default
        ):
            return None if default is None else root
    return None
