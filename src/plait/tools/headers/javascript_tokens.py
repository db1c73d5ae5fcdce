"""Split JavaScript into tokens; comments are dropped, and a string, template or pattern is one
token.

Every bracket is matched, so that each token has its depth: text that looks like a declaration
inside a function, a string or a comment is not read as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from plait.core.errors import DocumentError, LimitError
from plait.core.patterns import lazy_pattern
from plait.core.source import Source, Span

MAX_PATTERN: Final = 10_000
"""The limit for a regular expression, in characters."""
MAX_OPEN: Final = 1_000
"""The largest number of brackets that may be open at once."""


class Token(NamedTuple):
    """A token; `depth` counts the brackets around it, and `fresh` means that it is first on its
    line.

    Kinds: word, number, string, template, piece (of a template), pattern, mark, end.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int
    fresh: bool

    @property
    def goes_on(self) -> bool:
        """Does the token continue the expression of the line before?"""
        if self.kind == "word":
            return self.text in ("in", "instanceof")
        return self.kind in ("template", "piece") or (
            self.kind == "mark" and self.text not in _BEGINNINGS
        )


_BEGINNINGS: Final = frozenset("{}@#!~;") | {"++", "--"}
_BRACKETS: Final = {")": "(", "]": "[", "}": "{"}
_BEFORE_VALUE: Final = frozenset(
    [
        "return",
        "typeof",
        "instanceof",
        "in",
        "of",
        "new",
        "delete",
        "void",
        "throw",
        "case",
        "yield",
        "await",
    ]
)
_BEFORE_MAP: Final = frozenset("(,=:[!&|?+-*%<>~^")
_BEFORE_PATTERN: Final = _BEFORE_VALUE | {"do", "else"}
_BEFORE_CONDITION: Final = frozenset(["if", "while", "for", "with"])

_SKIPPED = lazy_pattern(r"(?:[\s\ufeff]++|//[^\n\r\u2028\u2029]*+|/\*(?:[^*]++|\*(?!/))*\*/)*")
_LINE_END = lazy_pattern(r"[\n\r\u2028\u2029]")
_HASHBANG = lazy_pattern(r"#![^\n\r]*+")
_QUOTED: Final = {
    '"': lazy_pattern(r'"(?:[^"\\\n\r]++|\\(?:\r\n|[\s\S]))*"'),
    "'": lazy_pattern(r"'(?:[^'\\\n\r]++|\\(?:\r\n|[\s\S]))*'"),
}
_TEMPLATE_TEXT = lazy_pattern(r"(?:[^`\\$]++|\\[\s\S]|\$(?!\{))*")
_PATTERN = lazy_pattern(r"/(?:[^/\\\[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*\])+/[\w$]*+")
_PLAIN = lazy_pattern(
    r"(?P<number>\.?[0-9](?:[eE][+-](?=[0-9])|[\w.])*)|(?P<word>[\w$]++)"
    r"|(?P<mark>=>|={2,3}|\+\+|--|\.\.\.|[\s\S])"
)


class _Open(NamedTuple):
    """A bracket that is not closed; `is_value` means that a `/` after its end divides."""

    mark: str
    start: int
    is_value: bool


class Tokens:
    """The tokens of a source. The token before a `/` decides whether it divides or starts a
    pattern.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.open: list[_Open] = []
        self.after = ""
        self.after_value = False

    def __iter__(self) -> Iterator[Token]:
        found = _HASHBANG.match(self.text)
        at, fresh = (found.end() if found else 0), True
        while True:
            start = self.skip_blanks(at)
            fresh = fresh or (start > at and bool(_LINE_END.search(self.text, at, start)))
            if start == len(self.text):
                break
            kind, end = self.scan(start)
            text = self.text[start:end]
            depth = self.account(kind, text, start)
            yield Token(kind, text, start, end, depth, fresh)
            at, fresh = end, False
        if self.open:
            raise self.wrong(self.open[-1].start, f"this '{self.open[-1].mark}' is never closed")
        yield Token("end", "", start, start, 0, fresh=True)

    def skip_blanks(self, at: int) -> int:
        found = _SKIPPED.match(self.text, at)
        end = found.end() if found else at
        if self.text.startswith("/*", end):
            raise self.wrong(end, "this comment is never closed")
        return end

    def scan(self, at: int) -> tuple[str, int]:
        character = self.text[at]
        if character in _QUOTED:
            found = _QUOTED[character].match(self.text, at)
            if found is None:
                raise self.wrong(at, "this string is never closed")
            return "string", found.end()
        if character == "`" or (character == "}" and self.open and self.open[-1].mark == "`"):
            return self.template(at)
        if character == "/" and not self.after_value:
            # The search is limited; otherwise each of many unclosed patterns would be searched to
            # the end.
            found = _PATTERN.match(self.text, at, at + MAX_PATTERN)
            if found is not None:
                return "pattern", found.end()
        found = _PLAIN.match(self.text, at)
        assert found is not None  # every character is at least a mark
        return found.lastgroup or "mark", found.end()

    def template(self, at: int) -> tuple[str, int]:
        """Read up to the closing backtick or the next placeholder; the code in a
        placeholder is read as code.
        """
        found = _TEMPLATE_TEXT.match(self.text, at + 1)
        end = found.end() if found else at + 1
        if end == len(self.text) or self.text[end] == "\\":
            raise self.wrong(at, "this template is never closed")
        is_whole = self.text[at] == "`" and self.text[end] == "`"
        return (
            ("template", end + 1)
            if is_whole
            else ("piece", end + (1 if self.text[end] == "`" else 2))
        )

    def account(self, kind: str, text: str, start: int) -> int:
        """Record the open brackets and the last token; return the number of brackets around
        the token.
        """
        before = len(self.open)
        match kind:
            case "mark":
                is_value = self.mark(text, start)
            case "piece":
                is_value = self.piece(text, start)
            case "word":
                is_value = self.after == "." or text not in _BEFORE_PATTERN
            case _:
                is_value = True
        self.after, self.after_value = text, is_value
        return min(before, len(self.open))

    def mark(self, text: str, start: int) -> bool:
        if text in _BRACKETS:
            return self.pop(text, start)
        if text in "([{":
            self.push(text, start)
        return text in ("++", "--")

    def piece(self, text: str, start: int) -> bool:
        if text[0] == "}":
            self.open.pop()
        if text[-1] != "`":
            self.push("`", start)
        return text[-1] == "`"

    def push(self, mark: str, start: int) -> None:
        if len(self.open) == MAX_OPEN:
            what = f"this is nested deeper than {MAX_OPEN:,} brackets"
            raise LimitError(
                what, Span(self.source, start, start + 1), "flatten it", code="too-deep"
            )
        match mark:
            case "(":
                is_value = self.after not in _BEFORE_CONDITION
            case "{":
                # A `{` is a map, not a block, where a value is expected.
                is_value = self.after in _BEFORE_VALUE or self.after in _BEFORE_MAP
            case _:
                is_value = True
        self.open.append(_Open(mark, start, is_value))

    def pop(self, mark: str, start: int) -> bool:
        if not self.open or self.open[-1].mark != _BRACKETS[mark]:
            raise self.wrong(start, f"this '{mark}' closes nothing")
        return self.open.pop().is_value

    def wrong(self, at: int, what: str) -> DocumentError:
        fix = "correct it: a file that is not JavaScript has no header"
        return DocumentError(what, Span(self.source, at, at + 1), fix, code="syntax")
