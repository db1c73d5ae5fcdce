"""The text of an expression, with its placeholders, and its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from plait.core.documents.limits import printable_name as shortened
from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.template.nodes import FilledPlaceholder, Placeholder, Text
from plait.template.template import Leaf

MAX_INVALID: Final = 10
"""The most invalid characters that are reported at once."""
_PLACEHOLDER: Final = "\0"


@dataclass(frozen=True, slots=True)
class WrittenText:
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
        """The author's text of the token."""
        span = self.span(start, end)
        return shortened(span.source.text[span.start : span.end])


def flatten_template(leaf: Leaf) -> WrittenText:
    """The text of a template, and where each character is in its source."""
    text, starts, ends = "", list[int](), list[int]()
    placeholders: dict[int, Placeholder | FilledPlaceholder] = {}
    at = 0
    for part in leaf.compiled.parts:
        if isinstance(part, Text):
            for char in part.text:
                # An escape is longer in the source than its result: it only drops characters.
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
    return WrittenText(leaf.source, text, starts, ends, placeholders)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """placeholder, path, number, text, mark, end"""
    text: str
    start: int
    end: int


_TOKEN: Final = lazy_pattern(
    r"""(?P<blank>\s++)
      | (?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)(?![\w.])
      | (?P<text>'(?:[^'\\]++|\\.)*'|"(?:[^"\\]++|\\.)*")
      | (?P<mark>==|!=|>=|<=|&&|\|\||[=><!()\[\],])
      | (?P<path>[^\W\d][\w-]*+(?:\.[\w-]++|\[-?[0-9]++\]|\["[^"]*+"\]|\['[^']*+'\])*)
      | (?P<placeholder>\0)""",
    re.VERBOSE | re.DOTALL,
)
_HINTS: Final = {
    "&": "write && or and",
    "|": "write || or or",
    "$": "a variable is written ${name}; what only a shell understands cannot stand here",
    "{": "a variable is written ${name}",
    "~": "write text matches 'pattern'",
}
_HINT: Final = "put text in quotes; compare with == != > < >= <=, join with && and ||"


def read_tokens(written: WrittenText, problems: list[Problem]) -> list[Token]:
    """Return the tokens, the last one an `end`; invalid text becomes a problem."""
    tokens: list[Token] = []
    text, at = written.text, 0

    def wrong(start: int, end: int, what: str, fix: str) -> None:
        problems.append(Problem(what, written.span(start, end), fix, code="condition"))

    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (found.lastgroup == "placeholder" and at not in written.placeholders):
            if text[at] in "'\"":
                wrong(at, at + 1, f"the quote {text[at]} is never closed", "close it")
                break
            what = f"'{shortened(text[at])}' has no meaning in an expression"
            wrong(at, at + 1, what, _HINTS.get(text[at], _HINT))
            at += 1
            if len(problems) >= MAX_INVALID:
                break
            continue
        kind, end = str(found.lastgroup), found.end(str(found.lastgroup))
        if kind == "text" and any(one in written.placeholders for one in range(at, end)):
            what = "a placeholder stands inside quotes, where only plain text can stand"
            fix = "write it without quotes: a value is a value here, whatever it holds"
            wrong(at, end, what, fix)
        if kind != "blank":
            tokens.append(Token(kind, text[at:end], at, end))
        at = end
    return [*tokens, Token("end", "", len(text), len(text))]
