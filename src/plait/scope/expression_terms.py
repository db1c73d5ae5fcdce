"""The terms of an expression: how each gets its value, and what is known of it before a run.

A mistake that the text shows is a problem on the list; the reader continues after it.
"""

from __future__ import annotations

from collections.abc import Callable

from plait.core.errors import ConditionError, Problem
from plait.core.hints import Any, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.core.values import UNDEFINED, Json
from plait.scope.expression_tokens import Token, WrittenText
from plait.scope.expression_values import (
    A_NUMBER,
    A_STRING,
    BINARY,
    ORDERED,
    TRUE_OR_FALSE,
    UNARY,
    Binary,
    constant_test,
    length,
    make_alike,
    plain,
    truth,
)
from plait.template.compiled import Answer
from plait.template.nodes import FilledPlaceholder, Path, Placeholder
from plait.template.operators import OPERATORS, RefusedError, type_name

State: TypeAlias = Any
"""The source of operands: an item, or a rendering of a template."""
Get: TypeAlias = Callable[[State], Answer]


class Rules(Protocol):
    """The differences between a `when` and a `filter`."""

    single_equals: bool
    """`=` is the same as `==`."""
    example: str

    def kind(self, placeholder: Placeholder | FilledPlaceholder) -> str | None: ...

    def placeholder(self, placeholder: Placeholder | FilledPlaceholder) -> Get: ...

    def path(self, text: str) -> tuple[Path, Get]:
        """Parse a path; raise InputError if paths are not allowed here."""

    def refuse(self, refused: Callable[[], ConditionError]) -> bool:
        """The result of a comparison that makes no sense, or its error."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an expression: how it gets its value, and its known properties before a run."""

    get: Get
    start: int
    end: int
    kind: str | None = None
    """A kind in the words of `kind_of`; None if only the value shows it."""
    constant: Answer = UNDEFINED
    is_operand: bool = False


def constant(value: Json, token: Token) -> Term:
    """A value that is written in the text."""
    return Term(lambda _: value, token.start, token.end, type_name(value), value)


def join_terms(terms: list[Term], *, deciding: bool) -> Term:
    """Terms joined by `||` or `&&`: the first whose truth equals `deciding` decides."""
    gets = [term.get for term in terms]

    def decide(state: State) -> bool:
        for get in gets:
            if truth(get(state)) is deciding:
                return deciding
        return not deciding

    return Term(decide, terms[0].start, terms[-1].end, TRUE_OR_FALSE)


class Terms:
    """Combines terms, and reports combinations that cannot be right."""

    def __init__(self, written: WrittenText, rules: Rules, problems: list[Problem]) -> None:
        self.written = written
        self.rules = rules
        self.problems = problems

    def wrong(self, place: Token | Term, what: str, fix: str) -> None:
        where = self.written.span(place.start, place.end)
        self.problems.append(Problem(what, where, fix, code="condition"))

    def source_text(self, term: Term) -> str:
        return self.written.source_text(term.start, term.end)

    # ── comparing ────────────────────────────────────────────────────────

    def make_comparison(self, left: Term, name: str, right: Term) -> Term:
        get = (
            self.equality(left, right, name)
            if name in ("eq", "ne")
            else self.order(left, right, name)
        )
        return Term(get, left.start, right.end, TRUE_OR_FALSE)

    def equality(self, left: Term, right: Term, name: str) -> Get:
        get_left, get_right, build = left.get, right.get, OPERATORS[name].build
        if right.constant is not UNDEFINED:
            test = constant_test(right.constant, build)
            return lambda state: test(plain(get_left(state)))

        def equal(state: State) -> bool:
            one, other = make_alike(plain(get_left(state)), plain(get_right(state)))
            return build(other)(one)

        return equal

    def order(self, left: Term, right: Term, name: str) -> Get:
        self.check_orderable(left, right)
        get_left, get_right, rules = left.get, right.get, self.rules
        compare = OPERATORS[name].build

        def compare_values(state: State) -> bool:
            one, other = make_alike(plain(get_left(state)), plain(get_right(state)))
            if one is None or other is None:
                return False
            kind, kind_of_other = type_name(one), type_name(other)
            if kind == kind_of_other and kind in ORDERED:
                return compare(other)(one)
            return rules.refuse(lambda: self.disorder(left, kind, right, kind_of_other))

        return compare_values

    def check_orderable(self, left: Term, right: Term) -> None:
        for term in (left, right):
            if term.kind is not None and term.kind not in ORDERED:
                what = f"'{self.source_text(term)}' is {term.kind}, which has no order"
                self.wrong(term, what, "compare it with == or !=")
                return
        if left.kind is None or right.kind is None or left.kind == right.kind:
            return
        # Only a number can have a known kind without a known value: one of `length`, or a captured
        # one.
        values = [0 if term.constant is UNDEFINED else term.constant for term in (left, right)]
        one, other = make_alike(*values)
        if type_name(one) != type_name(other):
            error = self.disorder(left, left.kind, right, right.kind)
            self.problems += error.problems

    def disorder(self, left: Term, kind: str, right: Term, other: str) -> ConditionError:
        what = f"'{self.source_text(left)}' is {kind} and is compared with {other}"
        fix = "compare numbers with numbers and text with text"
        return ConditionError(what, self.written.span(left.start, right.end), fix, code="condition")

    def among(self, left: Term, elements: list[Term], end: int) -> Term:
        equals = [self.equality(left, element, "eq") for element in elements]
        get: Get = lambda state: any(equal(state) for equal in equals)  # noqa: E731
        if all(one.constant is not UNDEFINED for one in elements):
            tests = [constant_test(one.constant, OPERATORS["eq"].build) for one in elements]

            def get(state: State) -> bool:
                value = plain(left.get(state))
                return any(test(value) for test in tests)

        return Term(get, left.start, end, TRUE_OR_FALSE)

    # ── functions ────────────────────────────────────────────────────────

    def unary(self, name: Token, argument: Term, end: int) -> Term:
        if name.text == "exists" and not argument.is_operand:
            what, fix = "'exists' asks about something that has a name", "write exists(name)"
            self.wrong(argument, what, fix)
        get, ask_kind = argument.get, UNARY[name.text]
        return Term(lambda state: ask_kind(get(state)), name.start, end, TRUE_OR_FALSE)

    def length(self, name: Token, arguments: list[Term], end: int) -> Term:
        get = arguments[0].get
        term = Term(lambda state: length(plain(get(state))), name.start, end, A_NUMBER)
        return self.make_comparison(term, "eq", arguments[1]) if len(arguments) == 2 else term

    def binary(self, name: Token, arguments: list[Term], end: int) -> Term:
        holder, part = arguments
        if name.text != "contains" and part.kind not in (None, A_STRING):
            self.wrong(part, f"'{name.text}' needs text, not {part.kind}", "put it in quotes")
        if holder.kind in (A_NUMBER, TRUE_OR_FALSE) or (
            holder.kind == "a list" and name.text != "contains"
        ):
            self.problems += self.no_answer(name, holder, holder.kind).problems
        test = self.binary_function(name, part)
        get_holder, get_part, rules = holder.get, part.get, self.rules

        def test_values(state: State) -> bool:
            one, other = plain(get_holder(state)), plain(get_part(state))
            if one is None or other is None:
                return False
            try:
                answer = test(one, other)
            except RefusedError as refused:
                problem = refused.problem(
                    self.written.span(holder.start, part.end), begin="here stands text that is"
                )
                raise ConditionError.together([problem]) from None
            if answer is None:
                return rules.refuse(lambda: self.no_answer(name, holder, type_name(one)))
            return answer

        return Term(test_values, holder.start, end, TRUE_OR_FALSE)

    def binary_function(self, name: Token, part: Term) -> Binary:
        """Return the function; if the pattern of `matches` is known, it is compiled here, once."""
        if name.text != "matches" or not isinstance(part.constant, str):
            return BINARY[name.text]
        try:
            search = OPERATORS["regex"].build(part.constant)
        except RefusedError as refused:
            where = self.written.span(part.start, part.end)
            self.problems.append(refused.problem(where, begin="this is"))
            return BINARY[name.text]
        return lambda text, _: search(text) if type_name(text) == A_STRING else None

    def no_answer(self, name: Token, holder: Term, kind: str) -> ConditionError:
        what = f"'{self.source_text(holder)}' is {kind}, for which '{name.text}' has no answer"
        fix = "look into text; 'contains' looks into a list, and for text into a map, too"
        return ConditionError(
            what, self.written.span(holder.start, holder.end), fix, code="condition"
        )
