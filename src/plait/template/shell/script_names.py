"""The variables that a script sets itself, and the placeholders that name them.

`$f`, `${f}` and `${f:-x}` of a name that the script sets belong to the shell; see `script.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Source
from plait.template.nodes import Alternative, ContextPlaceholder, Part, Parts, Path, Text
from plait.template.shell.lexer import Dialect, analyse


@dataclass(frozen=True, slots=True)
class Names:
    """The variables of a script, and which of its placeholders are theirs."""

    assigned: frozenset[str]
    """The variables that the script sets, or gives to one command."""
    own: frozenset[str]
    """The variables that the script sets."""
    own_placeholders: frozenset[int]
    """The starts of the placeholders that name one of these."""


def read_names(parts: Parts, source: Source, dialect: Dialect) -> Names:
    """Return the variables that a script sets, whatever our scope knows."""
    texts = [part_source(part, source) for part in parts]
    joined = "".join(texts)
    lexed = analyse([joined], dialect)
    handed = frozenset(lexed.handed)
    placeholders: set[int] = set()
    at = 0
    for part, written in zip(parts, texts, strict=True):
        root = _shell_name(part, written)
        if root in lexed.own and not _is_handed_over(root, joined, at, at + len(written), handed):
            placeholders.add(part.start)  # type: ignore[union-attr]
        at += len(written)
    return Names(lexed.assigned, lexed.own, frozenset(placeholders))


def _shell_name(part: Part, written: str) -> str:
    """Return the variable of a placeholder, if a shell would read it so; otherwise nothing."""
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
    """Does a word assign only this placeholder to the variable of the same name?

    `f=${f}` does, and so does `for f in "${f}"`.
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


def without_own_placeholders(parts: Parts, source: Source) -> Parts:
    """Return the parts of shell text; placeholders for its own variables become text as written."""
    own = read_names(parts, source, "sh").own_placeholders
    return tuple(restore_source(parts, source, own)) if own else parts


def restore_source(parts: Parts, source: Source, starts: frozenset[int]) -> Iterator[Part]:
    """Yield the parts; placeholders at these starts become text, except those in their defaults."""
    for part in parts:
        if isinstance(part, ContextPlaceholder) and part.start in starts:
            yield from (
                [Text(part_source(part, source))]
                if part.default is None
                else as_expansion(part, source)
            )
        else:
            yield part


def part_source(part: Part, source: Source) -> str:
    return part.text if isinstance(part, Text) else source.text[part.start : part.end]


def as_expansion(placeholder: ContextPlaceholder, source: Source) -> list[Part]:
    """Return the placeholder as shell text; placeholders in its default stay placeholders."""
    assert placeholder.default is not None
    text = source.text
    parts: list[Part] = []
    at = placeholder.start
    for part in placeholder.default:
        if not isinstance(part, Text):
            parts += [Text(text[at : part.start]), part]
            at = part.end
    return [*parts, Text(text[at : placeholder.end])]
