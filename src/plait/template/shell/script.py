"""A template that is shell text, read once for all values that come.

A script with variables of its own must run as it is written.  A name that it sets, or goes
through in a loop, is the script's, whatever our scope knows: `$f`, `${f}` and `${f:-x}` alike.
Two words take our value still, since they can mean nothing else: `f=${f}` and `for f in ${f}`.
What only a template can say (`${f.exit_code}`, `${f | upper}`) asks our scope.  `${n:-0}` of a name
that looks like one of the environment (`${HOME:-/tmp}`) is the shell's own expansion, unless our
scope knows the name or the text stands where a shell expands nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import lru_cache

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Source
from plait.template.nodes import (
    Alternative,
    ContextPlaceholder,
    FilledPlaceholder,
    Hole,
    Part,
    Parts,
    Path,
    Text,
)
from plait.template.profiles import Profile
from plait.template.program import Program
from plait.template.shell.binding import Plan, plan
from plait.template.shell.lexer import Dialect, Piece, ValueSlot, analyse
from plait.template.sinks import original_placeholder
from plait.template.template import Leaf, Template

MOST_PLANS: Final = 16
"""Plans of one script that are kept; there is one for each choice of holes that are not answered.
"""


def parse_script(template: Template, dialect: Dialect, names: Container[str]) -> Script:
    """A template as a script, where these names are known."""
    read = _read(template.leaf, template.profile, dialect)
    if not read.defaulted:
        return read.script
    return read.with_expansions(
        frozenset(start for start, name in read.defaulted if name not in names)
    )


class Script:
    """A template without the holes that are the shell's business."""

    def __init__(
        self, leaf: Leaf, profile: Profile, assigned: frozenset[str], dialect: Dialect
    ) -> None:
        self.template = Template(leaf, profile)
        self.assigned = assigned
        """Variables that the script sets itself: `${x}` of them is never missing."""
        self._leaf = leaf
        self._dialect: Dialect = dialect
        self._plans: dict[tuple[bool, ...], Plan] = {}

    def plan(self, answered: tuple[bool, ...]) -> Plan:
        """That for these parts being values, and the others text as it is written; refusals are
        raised.
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
        for part, is_value in zip(self._leaf.program.parts, answered, strict=True):
            if not is_value or isinstance(part, Text):
                pieces.append(_part_source(part, self._leaf))
                continue
            pieces.append(make_slot(part, count))
            count += 1
        return pieces


def make_slot(placeholder: Hole | FilledPlaceholder, index: int) -> ValueSlot:
    asked = original_placeholder(placeholder)
    formats = (
        {form.name for alternative in asked.alternatives for form in alternative.formats}
        if isinstance(asked, ContextPlaceholder)
        else ()
    )
    return ValueSlot(index, placeholder.start, placeholder.end, "raw" in formats, "opt" in formats)


class _Read:
    """What can be said of a script before any name is known."""

    def __init__(self, leaf: Leaf, profile: Profile, dialect: Dialect) -> None:
        read = read_names(leaf, dialect)
        assigned = read.assigned
        if read.own_holes:
            leaf = _with_parts(leaf, tuple(_restore_source(leaf, read.own_holes)))
        self._leaf, self._profile, self._dialect = leaf, profile, dialect
        self.script = Script(leaf, profile, assigned, dialect)
        self.defaulted = tuple(
            (part.start, name)
            for part in leaf.program.parts
            if isinstance(part, ContextPlaceholder)
            and (name := _name_with_default(part)) is not None
            if name in assigned or _ENV_NAME.fullmatch(name)
        )
        """Where they start, and their names: holes that are the shell's if our scope does not know
        them.
        """
        self._expanded: dict[frozenset[int], Script] = {frozenset(): self.script}

    def with_expansions(self, starts: frozenset[int]) -> Script:
        """The script in which the holes that start there are the shell's, where it would expand
        them.
        """
        known = self._expanded.get(starts)
        if known is None:
            if len(self._expanded) >= MOST_PLANS:
                self._expanded = {frozenset(): self.script}
            leaf = _with_parts(self._leaf, self._with_expansions(starts))
            known = Script(leaf, self._profile, self.script.assigned, self._dialect)
            self._expanded[starts] = known
        return known

    def _with_expansions(self, starts: frozenset[int]) -> Parts:
        parts = self._leaf.program.parts
        gaps = [
            part.text if isinstance(part, Text) else ValueSlot(index, part.start, part.end)
            for index, part in enumerate(parts)
        ]
        places = iter(analyse(gaps, self._dialect).places)
        kept: list[Part] = []
        for part in parts:
            state = "" if isinstance(part, Text) else next(places).state
            if (
                isinstance(part, ContextPlaceholder)
                and part.start in starts
                and state in _EXPANDING
            ):
                kept += _as_expansion(part, self._leaf)
            else:
                kept.append(part)
        return tuple(kept)


# Some megabytes at most, for scripts of ordinary length; whoever has more of them in one map waits
# a little.
_read: Final = lru_cache(maxsize=128)(_Read)
_EXPANDING: Final = ("bare", "double", "heredoc", "parameter", "quoted-parameter")
_ENV_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*+")


def _with_parts(leaf: Leaf, parts: Parts) -> Leaf:
    return Leaf(Program(parts, leaf.program.profile, leaf.program.flaws), leaf.source)


def _part_source(part: Part, leaf: Leaf) -> str:
    return part.text if isinstance(part, Text) else leaf.source.text[part.start : part.end]


def without_own_holes(program: Program, source: Source) -> Parts:
    """The parts of shell text, with the holes that ask for its own variables as they are
    written.
    """
    leaf = Leaf(program, source)
    own = read_names(leaf, "sh").own_holes
    return tuple(_restore_source(leaf, own)) if own else program.parts


@dataclass(frozen=True, slots=True)
class Names:
    """The variables of a script, and which of its holes are theirs."""

    assigned: frozenset[str]
    """Those that it sets, or gives to one command."""
    own: frozenset[str]
    """Those that it sets."""
    own_holes: frozenset[int]
    """Where holes start that ask for one of them."""


def read_names(leaf: Leaf, dialect: Dialect) -> Names:
    """What a script sets, whatever our scope knows."""
    texts = [_part_source(part, leaf) for part in leaf.program.parts]
    joined = "".join(texts)
    lexed = analyse([joined], dialect)
    handed = frozenset(lexed.handed)
    holes: set[int] = set()
    at = 0
    for part, written in zip(leaf.program.parts, texts, strict=True):
        root = _shell_name(part, written)
        if root in lexed.own and not _is_handed_over(root, joined, at, at + len(written), handed):
            holes.add(part.start)  # type: ignore[union-attr]  # what has a name is a hole
        at += len(written)
    return Names(lexed.assigned, lexed.own, frozenset(holes))


def _shell_name(part: Part, written: str) -> str:
    """The variable for which a hole asks, if a shell would read it so; else nothing."""
    match part:
        case ContextPlaceholder(
            alternatives=(Alternative(Path(root, keys), ()),), filters=(), spread=False
        ):
            is_element = len(keys) == 1 and isinstance(keys[0], int) and "." not in written
            return root if not keys or is_element else ""
    return ""


_ENDS_WORD: Final = frozenset({"", " ", "\t", "\n", ";", "&", "|", ")", "}", "`"})


def _is_handed_over(
    name: str, text: str, at: int, end: int, words: Container[tuple[str, int]]
) -> bool:
    """Is the hole all that a word gives to the variable of the same name: `f=${f}`, `for f in
    "${f}"`?
    """
    quote = text[at - 1 : at] if text[at - 1 : at] in ("'", '"') else ""
    if (
        text[end : end + len(quote)] != quote
        or text[end + len(quote) : end + len(quote) + 1] not in _ENDS_WORD
    ):
        return False
    start = at - len(quote)
    if (name, start) in words:
        return True
    start -= len(name) + 1
    return (name, start) in words and text.startswith(f"{name}=", start)


def _restore_source(leaf: Leaf, starts: frozenset[int]) -> Iterator[Part]:
    """Its parts, with the holes that start there as the author wrote them; holes in their defaults
    stay.
    """
    for part in leaf.program.parts:
        if isinstance(part, ContextPlaceholder) and part.start in starts:
            yield from (
                [Text(_part_source(part, leaf))]
                if part.default is None
                else _as_expansion(part, leaf)
            )
        else:
            yield part


def _name_with_default(placeholder: ContextPlaceholder) -> str | None:
    """The name of `${name:-default}`, if the hole is just that."""
    match placeholder:
        case ContextPlaceholder(
            alternatives=(Alternative(Path(root, ()), ()),), filters=(), default=default
        ):
            return None if default is None else root
    return None


def _as_expansion(placeholder: ContextPlaceholder, leaf: Leaf) -> list[Part]:
    """The hole as shell text; holes in its default stay holes."""
    assert placeholder.default is not None
    text = leaf.source.text
    parts: list[Part] = []
    at = placeholder.start
    for part in placeholder.default:
        if not isinstance(part, Text):
            parts += [Text(text[at : part.start]), part]
            at = part.end
    return [*parts, Text(text[at : placeholder.end])]
