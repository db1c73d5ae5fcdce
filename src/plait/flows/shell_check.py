"""What is wrong with shell text and the values in it, found before anything runs."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from plait.errors import Problem
from plait.flows.fields import Dialect, Field
from plait.flows.finding import Finding
from plait.hints import Final
from plait.scope.frames import ALIASES
from plait.source import Span
from plait.template.nodes import ContextHole, Path, Text
from plait.template.shell_lexer import Gap, analyse
from plait.template.template import Leaf


def shell_names(leaf: Leaf, dialect: Dialect = "sh") -> frozenset[str]:
    """Variables that the script sets itself."""
    written = "".join(
        part.text if isinstance(part, Text) else leaf.source.text[part.start : part.end]
        for part in leaf.program.parts
    )
    return frozenset(analyse([written], dialect).assigned)


def left_to_shell(path: Path, own: frozenset[str], *, strict: bool = False) -> bool:
    """Is `${path}` the shell's own when the scope does not know it?  Strictly, only what it sets is."""
    # An index belongs to an array of the script itself: `items=(a b); echo ${items[1]}`.
    looks_like_it = path.root.isupper() and not path.keys and not strict
    return path.root in own or looks_like_it


def shell_pieces(
    leaf: Leaf, known: Container[str], *, phase: str, dialect: Dialect = "sh"
) -> list[str | Gap]:
    """Shell text with a gap for every hole that a run would fill; other holes are the shell's own."""
    own = shell_names(leaf, dialect)
    pieces: list[str | Gap] = []
    gaps = 0
    for part in leaf.program.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, ContextHole) and not _is_filled(part, known, phase, own):
            pieces.append(leaf.source.text[part.start : part.end])
        else:
            formats = _formats(part)
            pieces.append(Gap(gaps, part.start, part.end, "raw" in formats, "opt" in formats))
            gaps += 1
    return pieces


def _is_filled(hole: ContextHole, known: Container[str], phase: str, own: frozenset[str]) -> bool:
    if hole.default is not None or len(hole.alternatives) != 1:
        return True
    path = hole.alternatives[0].origin
    if not isinstance(path, Path) or path.root in known:
        return True
    if path.root in ALIASES and phase == "map":
        return path.root not in own
    return not (hole.bare or left_to_shell(path, own))


def _formats(part: object) -> set[str]:
    alternatives = part.alternatives if isinstance(part, ContextHole) else ()
    return {form.name for alternative in alternatives for form in alternative.formats}


def check_shell(field: Field, leaf: Leaf) -> Iterator[Finding]:
    pieces = shell_pieces(leaf, field.known, phase=field.phase, dialect=field.dialect)
    lexed = analyse(pieces, field.dialect)
    for refusal in lexed.refusals:
        span = Span(leaf.source, refusal.start, refusal.end)
        yield Finding(Problem(refusal.what, span, refusal.fix, code=refusal.code))
    yield from _bare_in_arithmetic(field, leaf)


_ARITHMETIC: Final = re.compile(r"\(\(((?:[^()]|\([^()]*\))*)\)\)")
_BARE: Final = re.compile(r"(?<![\w$.}{])[A-Za-z_]\w*(?![\w.])")


def _bare_in_arithmetic(field: Field, leaf: Leaf) -> Iterator[Finding]:
    """Names that the shell takes for its own variables there: the value that is called so never comes."""
    own = shell_names(leaf, field.dialect)
    for place in _ARITHMETIC.finditer(leaf.source.text):
        for found in _BARE.finditer(leaf.source.text, *place.span(1)):
            name = found.group()
            known = field.known.get(name)
            if known is None or known.in_environment or name in own:
                continue
            what = f"in $(( … )) '{name}' is a variable of the shell, not the value that is called so here"
            fix = f"write ${{{name}}} there"
            yield Finding(Problem(what, Span(leaf.source, *found.span()), fix, code="bare-name"), "warning")
