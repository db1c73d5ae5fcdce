"""Read one word of shell text: its quotes, escapes and expansions.

A word may contain a script, `$( … )`. The reader of scripts derives from `WordReader` and
implements how to read it. The result is a `Word`: its text without quotes, which characters were
quoted, and its slots.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.template.shell.places import (
    MAX_DEPTH,
    SLOT,
    CommandWord,
    Dialect,
    LexerFindings,
    SlotContext,
    State,
    Variable,
)

Around: TypeAlias = Literal["bare", "double", "heredoc"]
Operator: TypeAlias = Literal["", "default", "assign", "pattern", "evaluated"]

NAME: Final = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT: Final = lazy_pattern(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^=]*\])?\+?=", re.DOTALL)
EXPANSION: Final = "$"
OPERATORS: Final = ";&|<>()"
_OPERATOR_CHARACTERS: Final = tuple(OPERATORS)
SEPARATORS: Final = " \t\n" + OPERATORS
PLAIN_IN_HEREDOC: Final = lazy_pattern(r"[^\0`\\$]+")

# Before `(`, each of ?*+@! opens an extended pattern, which is read separately.
_PLAIN_IN_WORD: Final = lazy_pattern(r"""(?:[^\s\0;&|<>()'"`\\$\[\]?*+@!]++|[?*+@!](?!\())+""")
_PLAIN_WORD: Final = lazy_pattern(_PLAIN_IN_WORD.pattern + r"(?=[ \t\n;|&)]|\Z)")
_PLAIN_IN_DOUBLE: Final = lazy_pattern(r"""[^\0"`\\$]+""")
_PLAIN_IN_SINGLE: Final = lazy_pattern(r"[^\0']+")
_PLAIN_IN_DOLLAR_SINGLE: Final = lazy_pattern(r"[^\0'\\]+")
_PLAIN_IN_PARAMETER: Final = lazy_pattern(r"""[^\0'"`\\$}]+""")
_PLAIN_IN_ARITHMETIC: Final = lazy_pattern(r"""[^\0'"`\\$()]+""")
_PLAIN_IN_BACKTICKS: Final = lazy_pattern(r"(?:[^`\\]++|\\.)*", re.DOTALL)
_NAME_PART: Final = lazy_pattern(r"[A-Za-z0-9_]*")
_QUOTED: Final = '"'


class Word:
    """A word while it is read: its text without quotes, and which characters were quoted.

    `text` and `naked` run in parallel. A slot is NUL in both; an expansion is `$` in both; a
    quoted character is `"` in `naked`, which holds no other `"`. Both are complete after
    `settle`.
    """

    __slots__ = (
        "_more_naked",
        "_more_text",
        "_only_names",
        "array",
        "naked",
        "nested",
        "process",
        "quoted",
        "raw",
        "size",
        "slots",
        "splat",
        "start",
        "text",
        "variables",
    )

    def __init__(self, start: int, plain: str = "") -> None:
        self.start = start
        self.text = self.naked = plain
        self.size = len(plain)
        self._more_text: list[str] = []
        self._more_naked: list[str] = []
        self._only_names = True
        self.slots: list[tuple[int, int]] = []
        """The position in `text` and the number of each slot."""
        self.nested: list[int] = []
        """Slots in commands inside this word."""
        self.quoted = False
        self.raw = False
        """The word holds a value that the author wants to become code."""
        self.splat = False
        """The word holds `$@` or a similar expansion, which may become no word even in quotes."""
        self.array = False
        """The word holds `name=( … )`."""
        self.process = False
        """The word holds `<( … )`, a file that a command writes."""
        self.variables: dict[int, tuple[str, int, int, bool]] = {}
        """By position in `text`: the variable that begins an expansion, its start and end
        in the script, and whether it is unquoted.
        """

    def add(self, text: str) -> None:
        self._more_text.append(text)
        self._more_naked.append(text)
        self.size += len(text)

    def add_quoted(self, text: str) -> None:
        self._more_text.append(text)
        self._more_naked.append(_QUOTED * len(text))
        self.size += len(text)

    def add_slot(self, number: int) -> None:
        self.slots.append((self.size, number))
        self.add(SLOT)

    def add_variable(self, name: str, start: int, end: int, *, bare: bool) -> None:
        self.variables[self.size] = (name, start, end, bare)
        self.add(EXPANSION)

    def settle(self) -> Word:
        """Join the parts that were read."""
        if self._more_text:
            self.text += "".join(self._more_text)
            self.naked += "".join(self._more_naked)
            self._more_text, self._more_naked = [], []
        return self

    @property
    def last(self) -> str:
        """The character read last; `"` if it was quoted."""
        return self._more_naked[-1][-1:] if self._more_naked else self.naked[-1:]

    @property
    def name_only(self) -> bool:
        """Was nothing read that cannot be part of a name?"""
        # Once false, it stays false, so a word full of brackets is not searched again at each one.
        self._only_names = self._only_names and all(
            map(_NAME_PART.fullmatch, (self.naked, *self._more_naked))
        )
        return self._only_names

    @property
    def literal(self) -> str | None:
        """The text, if it is the author's text alone; otherwise None."""
        naked = self.naked
        return None if SLOT in naked or EXPANSION in naked else self.text

    @property
    def base(self) -> str | None:
        """The literal text without its directory: the name of a program."""
        literal = self.literal
        return None if literal is None else literal.rpartition("/")[2]

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.slots]

    @property
    def all_numbers(self) -> list[int]:
        return [*self.numbers, *self.nested]

    @property
    def may_vanish(self) -> bool:
        """Can the word become no word at all, so that the next word takes its place?"""
        if self.raw or not self.naked or self.naked.strip(EXPANSION):
            return False
        return self.splat or not self.quoted

    def leading(self, start: int = 0) -> list[int]:
        """Return the slots with no text of the author before them, from `start` on."""
        naked = self.naked[start:]
        run = start + len(naked) - len(naked.lstrip(SLOT + EXPANSION))
        return [number for at, number in self.slots if start <= at < run]

    def for_command(self, found: LexerFindings) -> CommandWord:
        return CommandWord(tuple(self._parts(found)), self.may_vanish)

    def for_variable(self, found: LexerFindings, begin: int) -> CommandWord:
        """Return the part of the word, from `begin` on, that a variable gets; no shell
        splits it.
        """
        return CommandWord(tuple(self._parts(found, begin, splits=False)))

    def _parts(
        self, found: LexerFindings, begin: int = 0, *, splits: bool = True
    ) -> list[str | int | Variable]:
        slots = dict(self.slots)
        parts: list[str | int | Variable] = []
        for at in range(begin, len(self.text)):
            char, mark = self.text[at], self.naked[at]
            if mark == SLOT:
                parts.append(slots[at])
            elif mark == EXPANSION:
                name, start, end, bare = self.variables.get(
                    at, (None, self.start, self.start, False)
                )
                parts.append(
                    Variable(
                        name, found.source_offset(start), found.source_offset(end), bare and splits
                    )
                )
            elif parts and isinstance(parts[-1], str):
                parts[-1] += char
            else:
                parts.append(char)
        return parts

    def has_braces(self) -> bool:
        """Would a shell read the word as a brace expansion?"""
        naked = self.naked
        opened = naked.find("{")
        closed = naked.rfind("}")
        return 0 <= opened < closed and any(mark in naked[opened:closed] for mark in (",", ".."))


def check_one_argument(word: Word, found: LexerFindings) -> None:
    if word.slots and word.has_braces():
        found.refuse_slots("brace-expansion", word.numbers)


def may_spread(word: Word, found: LexerFindings) -> None:
    if word.slots and word.naked == SLOT and found.places[word.numbers[0]].state == "bare":
        found.places[word.numbers[0]] = SlotContext("bare", spread=True)


class WordReader(ABC):
    """Reads the text; `at` is the next character, `end` the first one that is not read."""

    def __init__(self, found: LexerFindings, dialect: Dialect) -> None:
        self.found = found
        self.dialect = dialect
        self.text = found.text
        self.at = 0
        self.end = len(found.text)
        self.depth = 0
        self.arithmetic = 0
        self.refuse_slots = found.refuse_slots
        self.unreadable = found.unreadable
        self.numbers_between = found.numbers_between

    @abstractmethod
    def script(self, start: int, until: Literal["end", ")"]) -> None:
        """Read a script inside a word that started at `start`, up to its end, which is not
        consumed.
        """

    @abstractmethod
    def assigns(self, name: str, numbers: Iterable[int]) -> None:
        """Record that a variable gets a value with these slots."""

    @abstractmethod
    def skip_lines(self) -> str:
        """Skip blanks, comments and line ends, and read the here-documents that start
        there.

        Returns the next character, or nothing at the end.
        """

    # ── characters ──────────────────────────────────────────────────────────

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.text[at] if at < self.end else ""

    def follows(self, text: str) -> bool:
        return self.text.startswith(text, self.at, self.end)

    def behind_plain(self, word: Word, run: re.Pattern[str]) -> str:
        """Read quoted characters without a meaning.

        Returns the first character that has one, or nothing at the end.
        """
        if found := run.match(self.text, self.at, self.end):
            word.add_quoted(found.group())
            self.at = found.end()
        return self.text[self.at] if self.at < self.end else ""

    def take_slot(self, word: Word, state: State) -> None:
        """Read the slot at the current position."""
        number = self.found.number_at(self.at)
        self.at += 1
        self.found.places[number] = SlotContext(state)
        if self.found.slots[number].raw:
            word.raw = True
            word.add(EXPANSION)
            return
        word.add_slot(number)
        if self.arithmetic and state != "arithmetic":
            self.refuse_slots("arithmetic-nested", [number])

    def escape(self, word: Word, special: str | None = None) -> None:
        """Read a backslash and the next character.

        `special`: before any other character, the backslash means itself.
        """
        following = self.peek(1)
        if following == SLOT:
            self.refuse_slots(
                "backslash-before-placeholder", self.numbers_between(self.at + 1, self.at + 2)
            )
        word.quoted = True
        if following == "\n":
            self.at += 2
        elif following in ("", SLOT) or (special is not None and following not in special):
            word.add_quoted("\\")
            self.at += 1
        else:
            word.add_quoted(following)
            self.at += 2

    def operator(self, length: int) -> None:
        """Step over an operator; refuse one that continues after a line continuation."""
        self.at += length
        if self.follows("\\\n") and self.text[self.at + 2 : self.at + 3] in _OPERATOR_CHARACTERS:
            raise self.unreadable("split-operator", self.at)

    def go_deeper(self, start: int) -> None:
        """Count one more level of nesting; the caller lowers `depth` afterwards."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.unreadable("too-deep", start)

    # ── words ───────────────────────────────────────────────────────────────

    def word(self, *, subscript: bool = False) -> Word:
        """Read one word; `subscript`: here a shell would read `name[` as an element of an array."""
        start = self.at
        if plain := _PLAIN_WORD.match(self.text, start, self.end):  # most words consist of this
            self.at = plain.end()
            return Word(start, plain.group())
        word = Word(start)
        while self.at < self.end and self.word_part(word, subscript=subscript):
            pass
        if self.at == start:
            raise self.unreadable("unexpected", start)
        return word.settle()

    def word_part(self, word: Word, *, subscript: bool) -> bool:
        """Read a part of a word; false where the word ends."""
        match self.text[self.at]:
            case " " | "\n" | ";" | "\t" | "|" | "&" | ")":
                return False
            case '"':
                self.double_quotes(word)
            case "$":
                self.dollar(word, "bare")
            case "'":
                self.single_quotes(word)
            case "\0":
                self.take_slot(word, "bare")
            case "\\":
                self.escape(word)
            case "`":
                self.backticks(word)
            case "[" if subscript and word.size and word.name_only:
                self.subscript(word)
            case "(" if word.last and word.last in "?*+@!":
                self.read_extended_glob(word)
            case "(" if (
                word.last == "=" and not word.array and ASSIGNMENT.fullmatch(word.settle().naked)
            ):
                self.array(word)
            case "<" | ">" if self.peek(1) == "(":
                self.process_substitution(word)
            case "<" | ">" | "(":
                return False
            case _:
                plain = _PLAIN_IN_WORD.match(self.text, self.at, self.end)
                stop = plain.end() if plain else self.at + 1
                word.add(self.text[self.at : stop])
                self.at = stop
        return True

    def single_quotes(self, word: Word) -> None:
        word.quoted = True
        start = self.at
        self.at += 1
        while (char := self.behind_plain(word, _PLAIN_IN_SINGLE)) != "'":
            if char == "":
                raise self.unreadable("unbalanced", start)
            self.take_slot(word, "single")
        self.at += 1

    def double_quotes(self, word: Word) -> None:
        word.quoted = True
        start = self.at
        self.at += 1
        while (char := self.behind_plain(word, _PLAIN_IN_DOUBLE)) != '"':
            match char:
                case "":
                    raise self.unreadable("unbalanced", start)
                case "$":
                    self.dollar(word, "double")
                case "\\":
                    self.escape(word, '$`"\\\n')
                case "\0":
                    self.take_slot(word, "double")
                case _:
                    self.backticks(word)
        self.at += 1

    def dollar_single_quotes(self, word: Word, start: int) -> None:
        """Read `$'…'`.

        A shell that does not know it reads `$` and `'…'`, so in `sh` it may contain neither
        a slot nor a backslash.
        """
        word.quoted = True
        self.at += 1
        while (char := self.behind_plain(word, _PLAIN_IN_DOLLAR_SINGLE)) != "'":
            if char == "":
                raise self.unreadable("unbalanced", start)
            if char == SLOT:
                if self.dialect == "sh":
                    self.refuse_slots("bash-only", self.numbers_between(self.at, self.at + 1))
                self.take_slot(word, "dollar-single")
                continue
            if self.dialect == "sh":
                raise self.unreadable("bash-only", start)
            self.dollar_single_escape(word)
        self.at += 1

    def dollar_single_escape(self, word: Word) -> None:
        # `\c` includes the next character, which may be the closing quote.
        length = 3 if self.peek(1) == "c" else 2
        taken = self.numbers_between(self.at, self.at + length)
        self.refuse_slots("backslash-before-placeholder", taken)
        word.add_quoted("\\")
        self.at = self.found.offsets[taken[0]] if taken else min(self.at + length, self.end)

    def subscript(self, word: Word) -> None:
        start = self.at
        depth = 0
        while True:
            char = self.peek()
            if char == "" or char in SEPARATORS:
                # Some shells end the word here, others read on to the bracket.
                raise self.unreadable("subscript", start)
            depth += (char == "[") - (char == "]")
            if char in "[]":
                word.add(char)
                self.at += 1
            else:
                self.word_part(word, subscript=False)
            if depth == 0:
                break
        self.refuse_slots("subscript", self.numbers_between(start, self.at))

    def read_extended_glob(self, word: Word) -> None:
        start = self.at
        self.at += 1
        self.go_deeper(start)
        while (char := self.peek()) != ")":
            if char == "":
                raise self.unreadable("unbalanced", start)
            if char in " \t\n;&|<>(":
                self.at += 1
            else:
                self.word_part(word, subscript=False)
        self.depth -= 1
        self.at += 1
        self.refuse_slots("extended-glob", self.numbers_between(start, self.at))

    def array(self, word: Word) -> None:
        """Read `name=( … )`."""
        start = self.at
        self.at += 1
        self.go_deeper(start)
        while (char := self.skip_lines()) != ")":
            if char == "":
                raise self.unreadable("unbalanced", start)
            self.array_element()
        self.depth -= 1
        self.at += 1
        numbers = self.numbers_between(start, self.at)
        word.add(EXPANSION)
        word.array = True
        word.nested.extend(numbers)
        if self.dialect == "sh":
            self.refuse_slots("bash-only", numbers)

    def array_element(self) -> None:
        element = self.word()
        check_one_argument(element, self.found)
        may_spread(element, self.found)
        if element.naked.startswith("["):
            # Refuse slots from `[` to `]=`, or in all of it: a blank inside ends our word, but not
            # bash's subscript.
            closed = element.naked.find("]=")
            self.refuse_slots(
                "subscript", [n for at, n in element.slots if closed < 0 or at < closed]
            )
            self.refuse_slots("subscript", element.nested)
            if closed < 0:
                raise self.unreadable("subscript", element.start)

    def process_substitution(self, word: Word) -> None:
        start = self.at
        self.at += 1
        self.substitution(word, start)
        word.process = True

    # ── expansions ──────────────────────────────────────────────────────────

    def dollar(self, word: Word, around: Around) -> None:
        start = self.at
        self.at += 1
        if name := NAME.match(self.text, self.at, self.end):
            self.at = name.end()
            word.add_variable(name.group(), start, self.at, bare=around == "bare")
            return
        match self.peek():
            case "{":
                self.parameter(word, start, around)
            case "(" if self.peek(1) == "(":
                self.at += 2
                self.arithmetic_text(start)
                word.add(EXPANSION)
            case "(":
                self.substitution(word, start)
            case "[":
                raise self.unreadable("dollar-bracket", start)
            case "\\" if self.peek(1) == "\n":
                raise self.unreadable("split-operator", start)
            case "'" if around == "bare":
                self.dollar_single_quotes(word, start)
            case '"' if around == "bare":
                self.double_quotes(word)
            case following if following and following in "0123456789@*#?-$!":
                word.splat = word.splat or following == "@"
                self.at += 1
                word.add(EXPANSION)
            case following:  # a dollar sign that means itself
                if following == SLOT:
                    self.refuse_slots(
                        "dollar-before-placeholder", self.numbers_between(self.at, self.at + 1)
                    )
                word.add_quoted("$")

    def substitution(self, word: Word, start: int) -> None:
        """Read the `( … )` of `$( … )` and similar expansions, which is a script of its own."""
        self.operator(1)
        self.go_deeper(start)
        self.script(start, ")")
        self.at += 1
        self.depth -= 1
        self.add_expansion(word, start)

    def add_expansion(self, word: Word, start: int) -> None:
        numbers = self.numbers_between(start, self.at)
        word.add(EXPANSION)
        word.nested.extend(number for number in numbers if not self.found.slots[number].raw)
        if self.arithmetic:
            self.refuse_slots("arithmetic-nested", numbers)

    def backticks(self, word: Word) -> None:
        start = self.at
        plain = _PLAIN_IN_BACKTICKS.match(self.text, start + 1, self.end)
        stop = plain.end() if plain else self.end
        if self.text[stop : stop + 1] != "`" or stop >= self.end:
            raise self.unreadable("unbalanced", start)
        inside = self.text[start + 1 : stop]
        if "\\" in inside or "<<" in inside:
            # The shell would remove backslashes first, and then read another text than this one.
            self.refuse_slots("backtick-escapes", self.numbers_between(start, stop))
        else:
            self.at = start + 1
            outer_end, self.end = self.end, stop
            self.go_deeper(start)
            self.script(start, "end")
            self.depth -= 1
            self.end = outer_end
        self.at = stop + 1
        self.add_expansion(word, start)

    def arithmetic_text(self, start: int) -> None:
        """Read arithmetic up to and including `))`; only numbers may be values in it."""
        depth = 0
        inner = Word(start)
        self.go_deeper(start)
        while True:
            match self.behind_plain(inner, _PLAIN_IN_ARITHMETIC):
                case "":
                    raise self.unreadable("unbalanced", start)
                case "\0":
                    self.take_slot(inner, "arithmetic")
                case "(":
                    depth += 1
                    self.at += 1
                case ")" if depth:
                    depth -= 1
                    self.at += 1
                case ")" if self.peek(1) == ")":
                    self.at += 2
                    break
                case ")" | "'":
                    raise self.unreadable("double-parens", start)
                case "\\":
                    self.escape(inner)
                case _:
                    self.arithmetic_part(inner)
        self.depth -= 1
        self.found.own.update(set_in_arithmetic(self.text[start : self.at]))

    def arithmetic_part(self, word: Word) -> None:
        self.arithmetic += 1
        match self.peek():
            case "$":
                self.dollar(word, "double")
            case "`":
                self.backticks(word)
            case _:
                self.double_quotes(word)
        self.arithmetic -= 1

    def parameter(self, word: Word, start: int, around: Around) -> None:
        """Read `${ … }`."""
        self.at += 1
        position = word.size
        word.add(EXPANSION)
        self.go_deeper(start)
        name = self.parameter_name()
        if self.text[self.at - len(name) - 1] == "{":  # neither `${#name}` nor `${!name}`
            self.beginning(word, position, name, start, bare=around == "bare")
        if self.peek() == "[":
            self.parameter_subscript(start)
        word.splat = word.splat or "@" in self.text[start : self.at]
        operator = self.parameter_operator()
        if operator == "evaluated":
            first = self.at
            self.operand(Word(start), start, around, operator)
            self.refuse_slots("parameter-operand", self.numbers_between(first, self.at))
        elif operator:
            self.operand(word, start, around, operator)
            self.judge_default(name, start, around, operator)
        self.depth -= 1
        self.at += 1

    def beginning(self, word: Word, position: int, name: str, start: int, *, bare: bool) -> None:
        """Record the variable that begins the expansion, unless its operator changes the
        beginning.
        """
        following = self.peek(1) if self.peek() == ":" else self.peek()
        if name and following in ("}", "-", "?", "=", "%"):
            word.variables[position] = (name, start, self.at, bare)

    def parameter_name(self) -> str:
        """Read and return the name, after `#` or `!`; refuse a slot as the name."""
        if self.peek() in ("#", "!") and self.peek(1) not in (
            "}",
            ":",
            "%",
            "#",
            "-",
            "+",
            "=",
            "?",
        ):
            self.at += 1
        if name := NAME.match(self.text, self.at, self.end):
            self.at = name.end()
            return name.group()
        char = self.peek()
        if char == SLOT:
            self.refuse_slots("value-as-name", self.numbers_between(self.at, self.at + 1))
        if char.isdigit():
            while self.peek().isdigit():
                self.at += 1
        elif char and char in "@*#?-$!\0":
            self.at += 1
        return ""

    def parameter_subscript(self, start: int) -> None:
        first = self.at
        word = Word(start)
        depth = 0
        while True:
            char = self.peek()
            if char == "":
                raise self.unreadable("unbalanced", start)
            depth += (char == "[") - (char == "]")
            if char in "[] \t\n;&|<>()":
                self.at += 1
            else:
                self.word_part(word, subscript=False)
            if depth == 0:
                break
        self.refuse_slots("subscript", self.numbers_between(first, self.at))

    def parameter_operator(self) -> Operator:
        """Step over the operator and return its kind; empty at the closing brace."""
        if self.peek() == "}":
            return ""
        colon = 1 if self.peek() == ":" and self.peek(1) in ("-", "=", "?", "+") else 0
        operator = self.peek(colon)
        if operator in ("-", "?", "+"):
            self.at += colon + 1
            return "default"
        if operator == "=":
            self.at += colon + 1
            return "assign"
        if operator in ("#", "%"):
            self.at += 2 if self.peek(1) == operator else 1
            return "pattern"
        return "evaluated"

    def operand(self, word: Word, start: int, around: Around, operator: Operator) -> None:
        """Read the operand up to the closing brace."""
        if operator in ("pattern", "assign"):
            word.add_quoted(" ")  # a pattern or an assigned text does not start the word
        while (char := self.behind_plain(word, _PLAIN_IN_PARAMETER)) != "}":
            match char:
                case "":
                    raise self.unreadable("unbalanced", start)
                case "\0":
                    self.take_slot(word, _operand_state(around, operator))
                case "\\":
                    self.escape(word, None if around == "bare" else '$`"\\}\n')
                case "$":
                    self.dollar(word, around)
                case "`":
                    self.backticks(word)
                case "'" if around == "bare":
                    self.single_quotes(word)
                case '"' if around == "bare":
                    self.double_quotes(word)
                case "'":
                    raise self.unreadable("nested-quotes", start)
                case _:
                    self.quotes_in_quotes(word, start, around)

    def quotes_in_quotes(self, word: Word, start: int, around: Around) -> None:
        first = self.at
        if around == "heredoc":
            raise self.unreadable("nested-quotes", start)
        self.double_quotes(word)
        if "}" in self.text[first : self.at]:
            raise self.unreadable("nested-quotes", start)
        self.refuse_slots("nested-quotes", self.numbers_between(first, self.at))

    def judge_default(self, name: str, start: int, around: Around, operator: Operator) -> None:
        if operator != "assign":
            return
        numbers = self.numbers_between(start, self.at)
        self.assigns(name, numbers)
        if around == "bare":
            self.refuse_slots("assigning-default", numbers)


def _operand_state(around: Around, operator: Operator) -> State:
    if around == "bare":
        return "parameter"
    return "quoted-pattern" if operator == "pattern" else "quoted-parameter"


_SET_IN_ARITHMETIC: Final = lazy_pattern(
    r"(?:\+\+|--)[ \t]*+([A-Za-z_]\w*+)|"
    r"(?<![\w$])([A-Za-z_]\w*+)[ \t]*+(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))"
)


def set_in_arithmetic(text: str) -> set[str]:
    """Return the variables that an arithmetic expression sets: `n = 1`, `n += 1`, `n++`."""
    return {one for found in _SET_IN_ARITHMETIC.findall(text) for one in found if one}
