"""Read a header from JavaScript or TypeScript: `const NAME = literal` at the top level, or a fenced
comment.

Only as much of the language is parsed as is needed to tell a literal from an expression. A value
that might be computed is refused, never guessed.
"""

from __future__ import annotations

import re

from plait.core import documents
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.core.values import Json
from plait.tools.headers.comments import read_fenced, top_comments
from plait.tools.headers.entries import (
    HeaderEntries,
    RefusedLiteral,
    computed_value_error,
    require_depth,
    require_finite,
    require_size,
    require_valid_text,
    set_key,
)
from plait.tools.headers.javascript_tokens import Token, Tokens

MAX_JAVASCRIPT: Final = 1 << 20
"""The limit in characters."""

_BEHIND_TYPE: Final = frozenset("=,;+-*/%^~!")


def read_javascript(keys: HeaderEntries, comment: str) -> None:
    require_size(keys.source, MAX_JAVASCRIPT)
    read_fenced(keys, top_comments(keys.source.text, comment))
    _Declarations(keys).read()


class _Declarations:
    """`const NAME = literal` at the top level, in JavaScript or TypeScript."""

    def __init__(self, keys: HeaderEntries) -> None:
        self.keys, self.source, self.names = keys, keys.source, keys.names
        self.tokens = iter(Tokens(keys.source))
        self.last = Token("end", "", 0, 0, 0, fresh=True)
        self.token = next(self.tokens)

    def read(self) -> None:
        while self.token.kind != "end":
            first, before = self.token, self.last
            self.advance()
            if first.depth or first.kind != "word" or before.text == ".":
                continue
            if first.text in ("const", "let", "var"):
                self.read_declarations()
            elif first.text in self.names and self.token.text == "=" and before.text != "type":
                self.refuse_assignment(first)

    def refuse_assignment(self, name: Token) -> None:
        with self.keys.about(self.names[name.text], name.text):
            fix = f"write const {name.text} = … as a statement of its own"
            raise RefusedLiteral("is not declared here, only assigned", self.span(name), fix)

    def read_declarations(self) -> None:
        """Read `NAME: type = literal, NAME = literal`, up to the first name that is not a
        header key.
        """
        while self.token.kind == "word":
            name = self.token
            self.advance()
            if name.text not in self.names:
                self.keys.check_name(name.text, self.span(name))
                return
            self.skip_annotation()
            if self.token.text == "=":
                self.advance()
                with self.keys.about(self.names[name.text], name.text):
                    self.read_initializer(name)
            if self.token.text != ",":
                return
            self.advance()

    def skip_annotation(self) -> None:
        if self.token.text == "!":
            self.advance()
        if self.token.text == ":":
            self.skip_type()

    def read_initializer(self, name: Token) -> None:
        first = self.token
        value = self.value(0)
        self.require_end(first)
        self.keys.add(self.names[name.text], value, self.span(name))

    def skip_type(self) -> None:
        """Skip a type, up to a token that cannot belong to it, or the end of its line."""
        angles = 0
        while self.token.kind != "end":
            at_top = self.token.depth == 0 and angles <= 0
            if at_top and (self.token.text in _BEHIND_TYPE or self.begins_statement()):
                return
            angles += (self.token.text == "<") - (self.token.text == ">")
            self.advance()

    def begins_statement(self) -> bool:
        ended = self.last.kind not in ("mark", "piece") or self.last.text in (">", "]", "}", ")")
        return self.token.fresh and self.token.kind == "word" and ended

    def require_end(self, first: Token) -> None:
        """Refuse a value that continues: `"a" + b` is computed, `{…} as const` is not."""
        while self.token.text in ("as", "satisfies") and not self.token.fresh:
            self.skip_type()
        if self.token.kind == "end" or self.token.text in (",", ";"):
            return
        if not self.token.fresh or self.token.goes_on:
            raise computed_value_error(Span(self.source, first.start, self.token.end))

    # ── literals ─────────────────────────────────────────────────────────

    def value(self, depth: int) -> Json:
        """The data of a literal."""
        token = self.token
        require_depth(depth, self.span(token))
        self.advance()
        match token.kind, token.text:
            case (("string" | "template"), _):
                return _unescape_string(token.text, self.span(token))
            case "number", _:
                return _number(token.text, self.span(token))
            case "word", ("true" | "false" | "null"):
                return {"true": True, "false": False, "null": None}[token.text]
            case "mark", ("-" | "+") if self.token.kind == "number":
                self.advance()
                number = _number(self.last.text, self.span(self.last))
                return -number if token.text == "-" else number
            case "mark", "[":
                return self.array(depth)
            case "mark", "{":
                return self.object(depth)
        raise computed_value_error(self.span(token))

    def array(self, depth: int) -> list[Json]:
        items: list[Json] = []
        while self.token.text != "]":
            items.append(self.value(depth + 1))
            self.require_comma("]")
        self.advance()
        return items

    def object(self, depth: int) -> dict[str, Json]:
        table: dict[str, Json] = {}
        while self.token.text != "}":
            where = self.span(self.token)
            key = self.key()
            if self.token.text != ":":  # {name}, {method() {}}
                raise computed_value_error(where)
            self.advance()
            set_key(table, key, where, self.value(depth + 1))
            self.require_comma("}")
        self.advance()
        return table

    def key(self) -> str:
        token = self.token
        self.advance()
        match token.kind:
            case "word":
                return token.text
            case "string":
                return _unescape_string(token.text, self.span(token))
            case "number" if token.text.isascii() and token.text.isdecimal():
                return token.text
        raise computed_value_error(self.span(token))

    def require_comma(self, closing: str) -> None:
        if self.token.text == ",":
            self.advance()
        elif self.token.text != closing:
            raise computed_value_error(self.span(self.token))

    def advance(self) -> None:
        self.last, self.token = self.token, next(self.tokens, self.token)

    def span(self, token: Token) -> Span:
        return Span(self.source, token.start, token.end)


_DIGITS: Final = "[0-9](?:_?[0-9])*"
_DECIMAL: Final = "(?:0|[1-9](?:_?[0-9])*)"
_WHOLE = lazy_pattern(
    rf"{_DECIMAL}|0[xX][0-9a-fA-F](?:_?[0-9a-fA-F])*|0[oO][0-7](?:_?[0-7])*|0[bB][01](?:_?[01])*"
)
_FLOAT = lazy_pattern(rf"(?:{_DECIMAL}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")


def _number(text: str, where: Span) -> float:
    if _WHOLE.fullmatch(text) and len(text) <= documents.MAX_DIGITS:
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return require_finite(float(text.replace("_", "")), where)
    raise RefusedLiteral(
        "holds a number that JSON does not have", where, "write it in decimal digits, or as text"
    )


_ESCAPE = lazy_pattern(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|u\{(?P<point>[0-9a-fA-F]{1,6})\}"
    r"|(?P<nul>0(?![0-9]))|(?P<bad>[xu0-9])|(?P<cut>\r\n|[\n\r\u2028\u2029])|(?P<one>[\s\S]))"
)
_SHORT: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}


def _unescape_string(literal: str, where: Span) -> str:
    """The text between the quotes of a string, or of a template without placeholders."""
    inner = literal[1:-1]
    if literal[0] == "`":
        inner = re.sub(r"\r\n?", "\n", inner)
    text = _ESCAPE.sub(lambda found: _unescape(found, where), inner) if "\\" in inner else inner
    # JavaScript writes a character beyond U+FFFF as two escapes.
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return require_valid_text(paired, where)


def _unescape(found: re.Match[str], where: Span) -> str:
    match found.lastgroup, found[found.lastgroup or 0]:
        case (("x" | "u" | "point"), digits) if int(digits, 16) <= 0x10FFFF:
            return chr(int(digits, 16))
        case "nul", _:
            return "\0"
        case "cut", _:
            return ""
        case "one", letter:
            return _SHORT.get(letter, letter)
    raise RefusedLiteral(
        "holds an escape that is no character", where, "write '\\\\' for a backslash"
    )
