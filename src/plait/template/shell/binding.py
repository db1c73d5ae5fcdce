"""Bind values in shell text to variables instead of quoting them.

The script refers to each value by a generated variable. The value itself is passed in the
environment or, if it is large, in a file that the child inherits. The first line of the script
takes it from there and hides it from the script's own children. A shell never parses the result of
an expansion, so a value stays data even if the lexer is wrong about the quotes.

    plan    pieces of a template → BindingPlan: what the lexer allows, or all refusals
    bind    BindingPlan and values → BoundScript: script, environment, files, and a view for people
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from plait.core.errors import InternalError, Problem, ShellRefusedError, ValueRefusedError
from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.core.source import Source, Span
from plait.core.values import Json, Secret, Unknown, reveal_text, text
from plait.template.filters import holds_secret
from plait.template.shell.lexer import (
    REFUSALS,
    Command,
    Dialect,
    Piece,
    Refusal,
    ScriptAnalysis,
    SlotContext,
    State,
    ValueSlot,
    analyse,
    cached_by_script,
)
from plait.template.shell.options import (
    OPTION_LIKE,
    Given,
    Value,
    Variables,
    has_sign,
    values_as_options,
    variable_names,
)

MAX_VARIABLE: Final = 120 * 1024
"""Bytes of one value in the environment; the limit of Linux is 128 KiB."""
MAX_VARIABLES: Final = 512 * 1024
"""Bytes of all values in the environment together."""
_LONGEST_CHARACTER: Final = 4
"""The largest number of bytes of one character."""

Lexer = Callable[[Sequence[Piece], Dialect], ScriptAnalysis]
Trusted = Callable[[int], bool]
"""May the value with this index be an option, because it comes from the author alone?"""


@dataclass(frozen=True, slots=True)
class BoundSlot:
    """A slot, and what the shell reads there: everything that does not depend on its value."""

    number: int
    at: int
    """Its index among the parts of the script."""
    slot: ValueSlot
    place: SlotContext
    variable: str
    """The name of the variable for its value, without the common beginning."""
    is_passed: bool
    """Does the shell get the value? In a comment it does not."""
    spreads: bool
    """Does each element of a list become a word of its own?"""
    quote: Callable[[str], str]
    """Quotes a value at this place, to show it to people."""


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """A checked script that can be bound to any values."""

    texts: tuple[str, ...]
    """The parts of the script; empty text for each slot."""
    slots: tuple[BoundSlot, ...]
    source: Source
    variable: str
    """The beginning of the generated variables; no such name occurs in the script."""
    carrier: str
    """The beginning of the environment variables that carry the values."""
    commands: tuple[Command, ...] = ()
    """The commands whose words a program may read as options."""
    given: Given = ()
    """Variables that the script sets once, each with the words that its text may be."""
    variables: frozenset[str] = frozenset()
    """The variables in these commands, and in the words that the script assigns."""
    script: str | None = None
    """The script for the usual case: all values fit into the environment, and each becomes one
    word.
    """


@dataclass(frozen=True, slots=True)
class BoundScript:
    """Everything that a shell needs; `repr` shows no value."""

    script: str = field(repr=False)
    env: dict[str, str] = field(repr=False)
    files: tuple[tuple[str, bytes], ...] = field(repr=False)
    """Environment variables that must hold the path of a file, and the content of that file,
    which the script reads and empties.
    """
    shown: str
    """The command with its values quoted inline, for people; secrets are masked."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets among its values, and texts that contain a secret."""


def plan(
    pieces: Sequence[Piece], dialect: Dialect, source: Source, *, lexer: Lexer | None = None
) -> BindingPlan:
    """Check a script before any value is known; report all refusals together."""
    checked = (
        _check_script(pieces, dialect) if lexer is None else _check(pieces, lexer(pieces, dialect))
    )
    if checked.refusals:
        raise ShellRefusedError.together(
            Problem(
                refusal.what,
                Span(source, refusal.start, refusal.end),
                refusal.fix,
                code=refusal.code,
            )
            for refusal in checked.refusals
        )
    lexed = checked.lexed
    return BindingPlan(
        checked.texts,
        checked.slots,
        source,
        checked.variable,
        checked.carrier,
        lexed.commands,
        lexed.given,
        variable_names(lexed.commands, lexed.given),
        checked.script,
    )


@dataclass(frozen=True, slots=True)
class _Checked:
    """Everything in a plan except its source."""

    lexed: ScriptAnalysis
    refusals: tuple[Refusal, ...]
    texts: tuple[str, ...]
    slots: tuple[BoundSlot, ...]
    variable: str
    carrier: str
    script: str | None


@cached_by_script
def _check_script(pieces: Sequence[Piece], dialect: Dialect) -> _Checked:
    return _check(pieces, analyse(pieces, dialect))


def _check(pieces: Sequence[Piece], lexed: ScriptAnalysis) -> _Checked:
    slots = [(at, piece) for at, piece in enumerate(pieces) if isinstance(piece, ValueSlot)]
    if len(lexed.places) != len(slots):
        raise InternalError("the shell lexer lost a slot", code="lexer")
    bound_slots = tuple(
        _bound_slot(number, at, slot, lexed.places[number])
        for number, (at, slot) in enumerate(slots)
    )
    texts = tuple("" if isinstance(piece, ValueSlot) else piece for piece in pieces)
    written = "".join(texts).replace("\\\n", "")
    variable, carrier = _free_name("__p", written), _free_name("PLAIT_", written)
    return _Checked(
        lexed,
        lexed.refusals or tuple(_contradictions(pieces, lexed.places)),
        texts,
        bound_slots,
        variable,
        carrier,
        _usual_script(texts, bound_slots, variable, carrier),
    )


def _bound_slot(number: int, at: int, slot: ValueSlot, place: SlotContext) -> BoundSlot:
    return BoundSlot(
        number,
        at,
        slot,
        place,
        str(slot.index + 1),
        is_passed=slot.raw or place.state != "comment",
        spreads=place.spread and place.state == "bare" and not slot.raw,
        quote=_QUOTING[place.state],
    )


def _usual_script(
    texts: Sequence[str], slots: Sequence[BoundSlot], variable: str, carrier: str
) -> str | None:
    if any(bound.slot.raw for bound in slots):
        return None
    passed = [bound.variable for bound in slots if bound.is_passed]
    emitted = list(texts)
    for bound in slots:
        emitted[bound.at] = _reference(bound, [bound.variable], variable)
    return _prelude(variable, carrier, passed, {}) + "".join(emitted)


def bind(
    plan: BindingPlan,
    values: Sequence[Json],
    *,
    trusted: Trusted | None = None,
    variables: Variables | None = None,
    source: Source | None = None,
) -> BoundScript:
    """Put values into the slots of a plan.

    `trusted` values may be options. `variables` returns the values that the script finds in its
    environment. `source` is where to show refused values, if the plan was made from another
    copy of the text.
    """
    # A map binds a script for each item: everything that does not depend on values is in the plan.
    filled = [_fill_slot(bound, values) for bound in plan.slots]
    _require_safe_values(plan, filled, trusted, variables, source or plan.source)
    carried: dict[str, str] = {}
    secrets: list[str] = []
    shown = list(plan.texts)
    script = plan.script
    for each in filled:
        bound = each.bound
        shown[bound.at] = _display_slot(each)
        if each.spreads:
            script = None
        for name, item, passed in each.words:
            if not bound.slot.raw:
                carried[name] = passed
            if item.__class__ is not str and holds_secret(item):
                secrets.append(passed)
    in_file = _too_large(carried)
    if script is None or in_file:
        emitted = list(plan.texts)
        for each in filled:
            emitted[each.bound.at] = _slot_code(each, plan.variable)
        script = _prelude(plan.variable, plan.carrier, list(carried), in_file) + "".join(emitted)
    return BoundScript(
        script,
        {plan.carrier + name: value for name, value in carried.items() if name not in in_file},
        ((plan.carrier + "FILE", b"".join(in_file.values())),) if in_file else (),
        "".join(shown),
        tuple(secrets),
    )


_Word: TypeAlias = tuple[str, Json, str]
"""What one variable passes: its name without the common beginning, the item, and its plain text."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """A slot with its value, and the words that the shell gets for it."""

    bound: BoundSlot
    value: Json
    spreads: bool
    """The value is a list, and each element is a word."""
    words: Sequence[_Word]
    """Empty in a comment, where nothing is passed."""


def _fill_slot(bound: BoundSlot, values: Sequence[Json]) -> _Filled:
    index, name = bound.slot.index, bound.variable
    if index >= len(values):
        raise InternalError("a slot of the script has no value", code="lexer")
    value = values[index]
    if bound.spreads and isinstance(value, list):
        words = [
            (f"{name}_{position}", item, reveal_text(item))
            for position, item in enumerate(value, start=1)
        ]
        return _Filled(bound, value, True, words)
    return _Filled(
        bound, value, False, ((name, value, reveal_text(value)),) if bound.is_passed else ()
    )


# ── a second check that does not trust the lexer ─────────────────────────────


def _contradictions(pieces: Sequence[Piece], places: Sequence[SlotContext]) -> Iterator[Refusal]:
    """Yield slots whose state contradicts a simple search of the text before them.

    Elsewhere a wrong state only makes a wrong argument. In arithmetic it would let the shell
    evaluate a value, so arithmetic is checked twice.
    """
    depth = 0
    dollar_quote_seen = hash_in_line = False
    remaining = iter(places)
    for piece in pieces:
        if isinstance(piece, str):
            joined = piece.replace("\\\n", "")
            depth = _depth_of_double_parens(joined, depth)
            dollar_quote_seen = dollar_quote_seen or "$'" in joined
            line = joined.rpartition("\n")
            hash_in_line = "#" in line[2] or (hash_in_line and not line[1])
            continue
        match next(remaining).state:
            case "arithmetic":
                possible = depth > 0
            case "comment":
                possible = hash_in_line
            case "dollar-single":
                possible = dollar_quote_seen and depth == 0
            case _:
                possible = depth == 0
        if not possible and not piece.raw:
            code = "double-parens" if depth else "unexpected"
            yield Refusal(code, piece.start, piece.end, *REFUSALS[code])


def _depth_of_double_parens(text: str, depth: int) -> int:
    """Count the parentheses that are open since `((`; quotes and all other text are ignored."""
    for found in _PARENS.finditer(text):
        if depth or found.group() == "((":
            depth += -1 if found.group() == ")" else len(found.group())
    return depth


_PARENS: Final = lazy_pattern(r"\(\(|\(|\)")


def _free_name(stem: str, written: str) -> str:
    while stem in written:
        stem += "_"
    return stem


# ── values that cannot be passed ────────────────────────────────────────────

_INTEGER: Final = lazy_pattern(r"[+-]?(0|[1-9][0-9]{0,18})")
_LARGEST_INTEGER: Final = 2**63 - 1


def _require_safe_values(
    plan: BindingPlan,
    filled: Sequence[_Filled],
    trusted: Trusted | None,
    variables: Variables | None,
    source: Source,
) -> None:
    problems: list[Problem] = []
    checked: list[_Filled] = []
    texts: list[str] = []
    for each in filled:
        # Skip a value that is not passed, and an unknown one, which may turn out well.
        if each.bound.is_passed and each.value.__class__ is not Unknown:
            checked.append(each)
            texts += [passed for _, _, passed in each.words]
            for what, fix, code in _unacceptable(each):
                slot = each.bound.slot
                problems.append(Problem(what, Span(source, slot.start, slot.end), fix, code=code))
    if has_sign(texts, plan.given) or (variables and any(map(variables, plan.variables))):
        values = {each.bound.number: _option_value(each, trusted) for each in checked}
        for option in values_as_options(plan.commands, plan.given, values, variables):
            place = Span(source, option.start, option.end)
            problems.append(Problem(OPTION_LIKE, place, option.fix, code="option-like"))
    if problems:
        raise ValueRefusedError.together(problems)


def _option_value(filled: _Filled, trusted: Trusted | None) -> Value:
    slot = filled.bound.slot
    trust = slot.option or (trusted is not None and trusted(slot.index))
    texts = [passed for _, _, passed in filled.words]
    return Value(texts, filled.spreads, trust, slot.start, slot.end)


def _unacceptable(filled: _Filled) -> list[tuple[str, str, str]]:
    """Return the problems of a value at this place, each as what, fix and code."""
    slot, place, value = filled.bound.slot, filled.bound.place, filled.value
    has_nul, has_bytes = False, True
    for _, _, passed in filled.words:
        has_nul = has_nul or "\0" in passed
        has_bytes = has_bytes and (passed.isascii() or _has_bytes(passed))
    found = []
    if has_nul:
        found.append(_NUL)
    if not has_bytes:
        found.append(_NO_BYTES)
    if slot.raw:
        return found
    if (place.integer or place.state == "arithmetic") and not _is_integer(value):
        found.append(_NOT_AN_INTEGER)
    if place.alone and isinstance(value, list):
        found.append(_LIST_NOT_POSSIBLE)
    return found


_NUL: Final = (
    "a value for the shell cannot hold NUL",
    "pass it through a file or standard input",
    "nul",
)
_NO_BYTES: Final = (
    "a value for the shell holds half of a surrogate pair, which no bytes stand for",
    "correct where it comes from: it was cut in the middle of a character",
    "no-bytes",
)
_NOT_AN_INTEGER: Final = (
    "only an integer can stand in arithmetic, in decimal, without leading zeros, within 64 bits",
    "give it an integer; compare text with [ ${a} = ${b} ]",
    "not-an-integer",
)
_LIST_NOT_POSSIBLE: Final = (
    "a list cannot stand here: its elements would become words that mean something else",
    "put it into double quotes to pass its text, or use one element",
    "list-not-possible",
)


def _is_integer(value: Json) -> bool:
    if isinstance(value, Secret):
        value = value.reveal()
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    if isinstance(value, str):
        return bool(_INTEGER.fullmatch(value)) and abs(int(value)) <= _LARGEST_INTEGER
    return abs(value) <= _LARGEST_INTEGER


def _has_bytes(item: str) -> bool:
    try:
        _bytes(item)
    except UnicodeEncodeError:
        return False
    return True


def _bytes(item: str) -> bytes:
    # Bytes that are not UTF-8 came in as surrogates, and go out as the same bytes.
    return item.encode("utf-8", "surrogateescape")


# ── the script ──────────────────────────────────────────────────────────────


_EMITTED: Final[dict[State, str]] = {
    "bare": '"@"',
    "single": "'\"@\"'",
    "double": "@",
    "dollar-single": "'\"@\"$'",
    "heredoc": "@",
    "parameter": '"@"',
    "quoted-parameter": "@",
    "quoted-pattern": '"@"',
    "arithmetic": "(@)",
    "comment": "",
}


def _slot_code(filled: _Filled, stem: str) -> str:
    if filled.bound.slot.raw:
        [(_, _, passed)] = filled.words
        return passed
    # A value in a comment has no words, so its place gets no text.
    names = [name for name, _, _ in filled.words]
    return _reference(filled.bound, names, stem)


def _reference(bound: BoundSlot, names: Sequence[str], stem: str) -> str:
    form = _EMITTED[bound.place.state]
    references = [f"${{{stem}{name}}}" for name in names]
    return " ".join([form.replace("@", reference) for reference in references])


def _too_large(carried: dict[str, str]) -> dict[str, bytes]:
    """Choose the values for the file: each that is too large, then the largest until the rest
    fits.
    """
    if sum(map(len, carried.values())) <= MAX_VARIABLE // _LONGEST_CHARACTER:
        return {}
    sizes = {name: len(_bytes(value)) for name, value in carried.items()}
    total = sum(sizes.values())
    chosen = set()
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sizes[name] <= MAX_VARIABLE and total <= MAX_VARIABLES:
            break
        chosen.add(name)
        total -= sizes[name]
    return {name: _bytes(value) for name, value in carried.items() if name in chosen}


def _prelude(variable: str, carrier: str, names: Sequence[str], in_file: dict[str, bytes]) -> str:
    """Return the code that takes the values and hides where they came from.

    All of it is on the script's first line, so that the other lines keep their numbers. `unset`
    comes first, because a variable that was exported before would stay exported. If a value is
    missing, because something between Plait and the shell clears the environment, the script
    ends.
    """
    if not names:
        return ""
    steps = ["unset " + " ".join([variable + name for name in names])]
    if direct := [name for name in names if name not in in_file]:
        steps.append(" ".join([f"{variable}{name}=${{{carrier}{name}?}}" for name in direct]))
        steps.append("unset " + " ".join([carrier + name for name in direct]))
    steps.extend(_reading_the_file(variable, carrier, in_file))
    return "; ".join(steps) + "; "


def _reading_the_file(stem: str, carrier: str, in_file: dict[str, bytes]) -> Iterator[str]:
    """Yield the code that reads values from the file, which holds one after the other.

    The `x` keeps newlines at the end of a value, which `$( )` would remove.
    """
    if not in_file:
        return
    path = f'"${{{carrier}FILE}}"'
    start = 1
    for name, content in in_file.items():
        size = len(content)
        variable = stem + name
        cut = f"command -p tail -c +{start} {path} | command -p head -c {size} && echo x"
        failed = "{ echo 'plait: cannot read a large value' >&2; exit 125; }"
        yield f'{variable}=$({cut}); [ "${{{variable}}}" != x ] || {failed}; {variable}=${{{variable}%x}}'
        start += size
    # Children inherit the descriptor, so the file must be empty.
    yield f": >{path}; unset {carrier}FILE"


# ── for people ──────────────────────────────────────────────────────────────


def _display_slot(filled: _Filled) -> str:
    if filled.bound.slot.raw or filled.value.__class__ is Unknown:
        return text(filled.value)
    quote = filled.bound.quote
    return " ".join([quote(text(item)) for _, item, _ in filled.words])


def _escaping(characters: str) -> Callable[[str], str]:
    special = re.compile("[" + re.escape(characters) + "]")
    return lambda value: special.sub(lambda found: "\\" + found.group(), value)


_QUOTING: Final[dict[State, Callable[[str], str]]] = {
    "bare": shlex.quote,
    "single": lambda value: value.replace("'", "'\\''"),
    "double": _escaping('\\$`"'),
    "dollar-single": _escaping("\\'"),
    "heredoc": _escaping("\\$`"),
    "parameter": shlex.quote,
    "quoted-parameter": _escaping('\\$`"}'),
    "quoted-pattern": lambda value: '"' + _escaping('\\$`"')(value) + '"',
    "arithmetic": str,
    "comment": lambda _: "",
}
