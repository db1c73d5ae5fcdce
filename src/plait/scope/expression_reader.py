"""Read the tokens of an expression by recursive descent; see `expressions` for the grammar.

The reader continues after an error of meaning, and stops at text that cannot be read.
"""

from __future__ import annotations

from plait.core.documents.limits import printable_name as shortened
from plait.core.errors import InputError, LimitError, Problem, closest_name, format_names
from plait.core.hints import Final, NoReturn, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import replace
from plait.core.values import Json
from plait.scope.expression_terms import Get, Rules, Term, Terms, constant, join_terms
from plait.scope.expression_tokens import Token, WrittenText, read_tokens
from plait.scope.expression_values import BINARY, FUNCTIONS, TRUE_OR_FALSE, parse_number, truth
from plait.template.nodes import FilledPlaceholder, Path, Placeholder

MAX_DEPTH: Final = 64
"""Levels of parentheses and functions."""

Operand: TypeAlias = Path | Placeholder | FilledPlaceholder
_AND, _OR, _NOT = ("&&", "and", "AND"), ("||", "or", "OR"), ("!", "not", "NOT")
_COMPARISONS: Final = {
    "==": "eq",
    "=": "eq",
    "!=": "ne",
    ">": "gt",
    "<": "lt",
    ">=": "gte",
    "<=": "lte",
}
_LITERALS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}
_WORDS: Final = (*_AND[1:], *_OR[1:], *_NOT[1:], "in", "IN", *_LITERALS)
_ESCAPE: Final = lazy_pattern(r"\\(['\"\\])")


class _StopError(Exception):
    """Raised if nothing after this place can be read; the problem is on the list."""


def read_expression(
    written: WrittenText, rules: Rules, problems: list[Problem]
) -> tuple[Term | None, _Reader]:
    """Read a whole expression; return it and its reader, or None with a problem if it cannot be
    read.
    """
    # A malformed token would only cause strange errors in the next stage.
    tokens = [] if problems else read_tokens(written, problems)
    reader = _Reader(written, tokens, rules, problems)
    if problems:
        return None, reader
    try:
        term = reader.parse_or()
        if reader.token.kind != "end":
            reader.refuse_rest()
    except _StopError:
        return None, reader
    return term, reader


class _Reader:
    """The position in the tokens, and the problems found so far."""

    def __init__(
        self,
        written: WrittenText,
        tokens: list[Token],
        rules: Rules,
        problems: list[Problem],
    ) -> None:
        self.written = written
        self.tokens = tokens
        self.rules = rules
        self.terms = Terms(written, rules, problems)
        self.operands: list[Operand] = []
        self.asks: list[Get] = []
        """The lookups of its placeholders."""
        self.at = 0
        self.depth = 0

    def parse_or(self) -> Term:
        terms = [self.parse_and()]
        while self.accept(*_OR):
            terms.append(self.parse_and())
        return terms[0] if len(terms) == 1 else join_terms(terms, deciding=True)

    def parse_and(self) -> Term:
        terms = [self.parse_not()]
        while self.accept(*_AND):
            terms.append(self.parse_not())
        return terms[0] if len(terms) == 1 else join_terms(terms, deciding=False)

    def parse_not(self) -> Term:
        start, negations = self.token.start, 0
        while self.accept(*_NOT):
            negations += 1
        term = self.test()
        if not negations:
            return term
        get, wanted = term.get, negations % 2 == 0
        return Term(lambda state: truth(get(state)) is wanted, start, term.end, TRUE_OR_FALSE)

    def test(self) -> Term:
        left = self.value()
        token = self.token
        if token.text in _COMPARISONS and token.kind == "mark":
            self.at += 1
            if token.text == "=" and not self.rules.single_equals:
                self.terms.wrong(token, "a single '=' compares nothing", "write ==")
            term = self.terms.make_comparison(left, _COMPARISONS[token.text], self.value())
            if self.token.kind == "mark" and self.token.text in _COMPARISONS:
                self.stop(self.token, "comparisons cannot be chained", "write a < b && b < c")
            return term
        if self.accept("in", "IN"):
            return self.among(left)
        if token.text in _NOT[1:] and self.tokens[self.at + 1].text in ("in", "IN"):
            self.at += 2
            found = self.among(left).get
            return Term(lambda state: not found(state), left.start, self.last.end, TRUE_OR_FALSE)
        if token.kind == "path" and token.text in BINARY:
            self.at += 1
            arguments = [left, self.value()]
            return self.terms.binary(token, arguments, self.last.end)
        return left

    def value(self) -> Term:
        token = self.token
        self.at += 1
        match token.kind:
            case "placeholder":
                placeholder = self.written.placeholders[token.start]
                self.operands.append(placeholder)
                get, kind = self.rules.placeholder(placeholder), self.rules.kind(placeholder)
                self.asks.append(get)
                return Term(get, token.start, token.end, kind, is_operand=True)
            case "number":
                number = parse_number(token.text)
                if number is None:
                    fix = "write it in quotes, as text"
                    self.terms.wrong(token, "this number is too large", fix)
                return constant(number or 0, token)
            case "text":
                return constant(_ESCAPE.sub(r"\1", token.text[1:-1]), token)
            case "path" if token.text in _LITERALS:
                return constant(_LITERALS[token.text], token)
            case "path" if self.token.text == "(" and token.text not in _WORDS:
                return self.function(token)
            case "path" if token.text not in _WORDS:
                return self.path(token)
            case "mark" if token.text == "(":
                return self.group(token)
        what = "a value is missing " + (f"before '{token.text}'" if token.text else "at the end")
        if not self.tokens[0].text:
            what = "an expression is missing"
        return self.stop(token, what, self.rules.example)

    def path(self, token: Token) -> Term:
        try:
            path, get = self.rules.path(token.text)
        except InputError:
            word = shortened(token.text)
            meant = closest_name(token.text, (*_WORDS, *FUNCTIONS))
            fix = f"a variable is written ${{{word}}}, text '{word}'" + (
                f"; did you mean {meant}?" if meant else ""
            )
            self.stop(token, f"'{word}' stands for nothing here", fix)
        self.operands.append(path)
        return Term(get, token.start, token.end, is_operand=True)

    def group(self, opened: Token) -> Term:
        self.enter(opened)
        term = self.parse_or()
        if not self.accept(")"):
            self.refuse_rest("')'", opened)
        self.depth -= 1
        return replace(term, start=opened.start, end=self.last.end, is_operand=False)

    def among(self, left: Term) -> Term:
        if not self.accept("["):
            fix = "write in ['a', 'b']; for a list that is a value, write contains(list, value)"
            self.stop(self.token, "'in' needs a list in brackets", fix)
        elements = self.parse_terms(self.last, "]")
        return self.terms.among(left, elements, self.last.end)

    def function(self, name: Token) -> Term:
        self.at += 1
        arguments = self.parse_terms(self.last, ")")
        if name.text not in FUNCTIONS:
            meant = closest_name(name.text, FUNCTIONS)
            fix = (
                f"did you mean '{meant}'? " if meant else ""
            ) + f"functions: {format_names(FUNCTIONS, most=20)}"
            self.terms.wrong(name, f"there is no function '{shortened(name.text)}'", fix)
            return Term(lambda _: None, name.start, self.last.end)
        wanted = (2,) if name.text in BINARY else (1, 2) if name.text == "length" else (1,)
        if len(arguments) not in wanted:
            plural = "s" if wanted[-1] > 1 else ""
            what = (
                f"'{name.text}' takes {' or '.join(map(str, wanted))} argument{plural}, not "
                f"{len(arguments)}"
            )
            self.terms.wrong(
                name, what, f"write {name.text}({'value, text' if wanted == (2,) else 'value'})"
            )
            return Term(lambda _: None, name.start, self.last.end)
        end = self.last.end
        if name.text in BINARY:
            return self.terms.binary(name, arguments, end)
        if name.text == "length":
            return self.terms.length(name, arguments, end)
        return self.terms.unary(name, arguments[0], end)

    def parse_terms(self, opened: Token, close: str) -> list[Term]:
        """Read terms separated by commas."""
        self.enter(opened)
        terms = [] if self.token.text == close else [self.parse_or()]
        while terms and self.accept(","):
            terms.append(self.parse_or())
        if not self.accept(close):
            self.refuse_rest(f"',' or '{close}'")
        self.depth -= 1
        return terms

    # ── tokens ───────────────────────────────────────────────────────────

    @property
    def token(self) -> Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    @property
    def last(self) -> Token:
        return self.tokens[self.at - 1]

    def accept(self, *texts: str) -> bool:
        if self.token.kind not in ("mark", "path") or self.token.text not in texts:
            return False
        self.at += 1
        return True

    def enter(self, token: Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            where = self.written.span(token.start, token.end)
            what = f"an expression is nested deeper than {MAX_DEPTH} levels"
            raise LimitError(what, where, "take parentheses away", code="condition-limit")

    def refuse_rest(self, wanted: str = "", opened: Token | None = None) -> NoReturn:
        token = self.token
        if opened is not None and token.kind == "end":
            self.stop(opened, "this '(' is never closed", "add ')'")
        what = (
            f"'{self.written.source_text(token.start, token.end)}' cannot follow"
            if token.text
            else "something is missing at the end"
        )
        expected = (
            f"{wanted} is expected here" if wanted else "a comparison, && or || is expected here"
        )
        meant = closest_name(token.text, (*BINARY, *_WORDS)) if token.kind == "path" else None
        self.stop(token, what, expected + (f"; did you mean {meant}?" if meant else ""))

    def stop(self, place: Token, what: str, fix: str) -> NoReturn:
        self.terms.wrong(place, what, fix)
        raise _StopError
