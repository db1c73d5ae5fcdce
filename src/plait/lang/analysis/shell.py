"""Check shell text and the values in it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.core.values import reveal_text
from plait.lang.analysis.scopes import TemplateField
from plait.lang.findings import Finding
from plait.scope.frames import ALIASES
from plait.template.grammar import expansions
from plait.template.nodes import Alternative, ContextPlaceholder, Path, Text
from plait.template.shell.lexer import ScriptAnalysis, ValueSlot, analyse
from plait.template.shell.options import OPTION_LIKE, Value, values_as_options
from plait.template.shell.places import Dialect
from plait.template.shell.script_names import read_names
from plait.template.template import Leaf


def is_shell_variable(path: Path, own: frozenset[str], *, strict: bool = False) -> bool:
    """Is `${path}` a variable of the shell?  In strict mode, only if the script sets it."""
    # An index belongs to an array of the script: `items=(a b); echo ${items[1]}`.
    looks_like_it = path.root.isupper() and not path.keys and not strict
    return path.root in own or looks_like_it


def shell_pieces(
    leaf: Leaf, known: Container[str], *, dialect: Dialect = "sh"
) -> list[str | ValueSlot]:
    """Shell text with a slot for every placeholder that a run fills; others belong to the shell."""
    read = read_names(leaf.compiled.parts, leaf.source, dialect)
    own = read.assigned
    pieces: list[str | ValueSlot] = []
    slots = 0
    for part in leaf.compiled.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, ContextPlaceholder) and (
            part.start in read.own_placeholders or not _is_filled(part, known, own)
        ):
            pieces.append(leaf.source.text[part.start : part.end])
        else:
            formats = _formats(part)
            pieces.append(
                ValueSlot(slots, part.start, part.end, "raw" in formats, "opt" in formats)
            )
            slots += 1
    return pieces


def _is_filled(placeholder: ContextPlaceholder, known: Container[str], own: frozenset[str]) -> bool:
    if placeholder.default is not None or len(placeholder.alternatives) != 1:
        return True
    path = placeholder.alternatives[0].origin
    if not isinstance(path, Path) or path.root in known:
        return True
    if path.root in ALIASES and "item" in known:
        return path.root not in own
    return not (placeholder.bare or is_shell_variable(path, own))


def _formats(part: object) -> set[str]:
    alternatives = part.alternatives if isinstance(part, ContextPlaceholder) else ()
    return {form.name for alternative in alternatives for form in alternative.formats}


def clashes(field: TemplateField, leaf: Leaf) -> Iterator[Finding]:
    """Yield names that the script sets and the flow knows: the script's value is used, which
    may surprise.
    """
    read = read_names(leaf.compiled.parts, leaf.source, field.dialect)
    reported: set[str] = set()
    for part in leaf.compiled.parts:
        if not isinstance(part, ContextPlaceholder) or part.start not in read.own_placeholders:
            continue
        name = part.name
        known = field.known.get(name)
        if known is None or known.in_environment or name in reported:
            continue
        reported.add(name)
        what = f"'{name}' is a variable of this script here, not the value of the flow"
        fix = (
            f"give the variable of the script another name, or write {name}=${{{name}}} where it "
            "begins"
        )
        span = Span(leaf.source, part.start, part.end)
        yield Finding(Problem(what, span, fix, code="name-clash"), "warning")


def check_shell(field: TemplateField, leaf: Leaf) -> Iterator[Finding]:
    pieces = shell_pieces(leaf, field.known, dialect=field.dialect)
    lexed = analyse(pieces, field.dialect)
    for refusal in lexed.refusals:
        span = Span(leaf.source, refusal.start, refusal.end)
        yield Finding(Problem(refusal.what, span, refusal.fix, code=refusal.code))
    if not lexed.refusals:
        yield from check_options(field, leaf, pieces, lexed)
    yield from check_names(field, leaf)


def check_names(field: TemplateField, leaf: Leaf) -> Iterator[Finding]:
    """Yield names of script variables that may be meant as values of the flow."""
    yield from clashes(field, leaf)
    yield from _bare_in_arithmetic(field, leaf)
    yield from _bare_in_expansions(field, leaf)


def check_options(
    field: TemplateField, leaf: Leaf, pieces: Sequence[str | ValueSlot], lexed: ScriptAnalysis
) -> Iterator[Finding]:
    """Yield values from the file that a command would read as options."""
    slots = [piece for piece in pieces if isinstance(piece, ValueSlot)]
    for name, numbers in _roots(slots, leaf).items():
        known = field.known.get(name)
        for value in known.values if known is not None else ():
            held = reveal_text(value)
            values = {
                number: Value(
                    (held,), False, slots[number].option, slots[number].start, slots[number].end
                )
                for number in numbers
            }
            for option in values_as_options(lexed.commands, lexed.given, values):
                what = f"{OPTION_LIKE}: '{name}' can be '{held}'"
                span = Span(leaf.source, option.start, option.end)
                # The value may never be used: because of a condition, another choice, or an item
                # that fails.
                yield Finding(Problem(what, span, option.fix, code="option-like"), "warning")


def _roots(slots: Sequence[ValueSlot], leaf: Leaf) -> dict[str, list[int]]:
    """The slots that hold the whole value of a name, by name."""
    places = {slot.start: number for number, slot in enumerate(slots)}
    found: dict[str, list[int]] = {}
    for part in leaf.compiled.parts:
        match part:
            case ContextPlaceholder(alternatives=(Alternative(Path(root, ())),), filters=()):
                if part.start in places and not _formats(part) - {"opt"}:
                    found.setdefault(root, []).append(places[part.start])
    return found


_ARITHMETIC: Final = lazy_pattern(r"\(\(((?:[^()]|\([^()]*\))*)\)\)")
_BARE: Final = lazy_pattern(r"(?<![\w$.}{])[A-Za-z_]\w*(?![\w.])")


def _bare_in_arithmetic(field: TemplateField, leaf: Leaf) -> Iterator[Finding]:
    """Yield names that the shell reads as its own variables, so the flow's value is not used."""
    own = read_names(leaf.compiled.parts, leaf.source, field.dialect).assigned
    for place in _ARITHMETIC.finditer(leaf.source.text):
        for found in _BARE.finditer(leaf.source.text, *place.span(1)):
            name = found.group()
            known = field.known.get(name)
            if known is None or known.in_environment or name in own:
                continue
            what = f"in $(( … )) '{name}' is a variable of the shell, not the value of the flow"
            fix = f"write ${{{name}}} there"
            yield Finding(
                Problem(what, Span(leaf.source, *found.span()), fix, code="bare-name"), "warning"
            )


def _bare_in_expansions(field: TemplateField, leaf: Leaf) -> Iterator[Finding]:
    """Yield names in shell expansions such as `${name%.c}` and `${#name}`, which do not know
    values of the flow.
    """
    read = read_names(leaf.compiled.parts, leaf.source, field.dialect)
    own = {*read.own_placeholders}
    placeholders = {
        part.start
        for part in leaf.compiled.parts
        if isinstance(part, ContextPlaceholder)
        and part.start not in own
        and _is_filled(part, field.known, read.assigned)
    }
    for name, start, place in expansions(leaf.source.text):
        known = field.known.get(name)
        if start in placeholders or known is None or known.in_environment or name in read.assigned:
            continue
        what = (
            f"'{name}' is a variable of the shell here, which has none, not the value of the flow"
        )
        fix = f"give the shell the value before: {name}=${{{name}}}; …"
        span = Span(leaf.source, place, place + len(name))
        yield Finding(Problem(what, span, fix, code="bare-name"), "warning")
