"""Where in shell text does a value stand, and may it stand there?

The text of a script comes in pieces: shell text, and gaps where a value will
be.  `analyse` reads it once, from left to right, the way a shell does, and says
for every gap in which state the shell will be when it gets there, or why no
value may stand there.  It answers for dash and for bash (and bash called `sh`)
at once: text that the two read differently is refused as soon as it could
matter for a gap.

Three parts, in reading order: what the answer looks like; `_Reader`, which
follows quotes, expansions, here-documents and commands; and `_Rules`, which
know what single commands do with their words (`eval`, `read`, `[`, `sudo` …).
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

Dialect: TypeAlias = Literal["sh", "bash"]

State: TypeAlias = Literal[
    "bare",
    "single",
    "double",
    "dollar-single",
    "heredoc",
    "parameter",
    "quoted-parameter",
    "quoted-pattern",
    "arithmetic",
    "comment",
]

MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """A value's place in shell text."""

    index: int
    """Which value."""
    start: int
    end: int
    """Where the hole stands in the author's text."""
    raw: bool = False
    """The author wants the value to become code."""
    option: bool = False
    """The author allows the value to start with `-`."""


Piece: TypeAlias = str | Gap


@dataclass(frozen=True, slots=True)
class Place:
    """What the shell is reading when it comes to a gap."""

    state: State
    spread: bool = False
    """A list becomes one word per element here."""
    alone: bool = False
    """A whole word of a command in which the number of words must not change."""
    starts: bool = False
    """An argument of a command may start here, and be taken for an option."""
    after: int | None = None
    """It starts here only if this earlier gap (its number) starts it too and is empty."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no value may stand at `start..end` of the author's text."""

    code: str
    start: int
    end: int
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Lexed:
    """One place per gap, in their order; or refusals."""

    places: tuple[Place, ...]
    refusals: tuple[Refusal, ...]
    assigned: frozenset[str]
    """Variables that the script sets itself."""


def analyse(pieces: Sequence[Piece], dialect: Dialect) -> Lexed:
    """Read a script; never raises for what the script contains."""
    reader = _Reader(pieces, dialect)
    reader.read()
    return Lexed(reader.found_places(), reader.found_refusals(), frozenset(reader.assigned))


# What is refused: code → (what is wrong, what to write instead).
REFUSALS: Final[dict[str, tuple[str, str]]] = {
    "value-as-program": (
        "a value may not choose the program that runs",
        "write the program's name out; choose between known ones with case … esac",
    ),
    "program-may-vanish": (
        "if the variable before it is empty, the value becomes the program",
        'put the variable into double quotes: "$program" ${x}',
    ),
    "value-as-code": (
        "this command reads its words as code, and a value would be part of it",
        "call the program directly, or hand the value over as an argument: sh -c 'echo \"$1\"' sh ${x}",
    ),
    "value-in-code-input": (
        "this program reads its input as code, and a value would be part of it",
        "hand the value over as an argument: sh -s -- ${x} <<'END' …, and use \"$1\" in the text",
    ),
    "value-as-remote-code": (
        "the remote shell reads these words as code, and a value would be part of it",
        "send the value through standard input, or keep the command free of values",
    ),
    "value-as-name": (
        "a value may not be the name of a variable, loop or function",
        "write the name out and give it the value: name=${x}",
    ),
    "value-as-operator": (
        "among these words a value could be taken for an operator of the test",
        "test one thing at a time, [ ${a} = ${b} ] or [ -f ${a} ], and join tests with && and ||",
    ),
    "value-as-option": (
        "a value may not switch options of the shell",
        "write -- before it: set -- ${x}",
    ),
    "arithmetic": (
        "the shell evaluates this text as arithmetic, and a value would be part of it",
        "use the value directly in $(( … )), or compare with [ ${a} -gt ${b} ]",
    ),
    "arithmetic-nested": (
        "the shell evaluates what stands in $(( … )), so a value may only be a number of its own there",
        "move the quotes or the command out of the arithmetic: n=$(…), and check that n is a number",
    ),
    "subscript": (
        "the shell evaluates an array subscript, and a value would be part of it",
        "use fixed subscripts, or a for loop over the elements",
    ),
    "parameter-operand": (
        "the shell evaluates this part of a parameter expansion, and a value would be part of it",
        "give the value to a variable first and let a command do the work: printf, cut, sed",
    ),
    "assigning-default": (
        "what := assigns is split into words when it stands outside of double quotes",
        'put double quotes around it: "${name:=${x}}"',
    ),
    "quoted-heredoc": (
        "a here-document with a quoted delimiter expands nothing, so no value can be bound in it",
        "take the quotes off the delimiter, and write \\$ \\` \\\\ where the text means them",
    ),
    "heredoc-delimiter": (
        "a value may not be the delimiter of a here-document",
        "write a fixed word: <<END",
    ),
    "descriptor": (
        "a value may not choose the file descriptor",
        "write the number out, or redirect to a file: >${file}",
    ),
    "backslash-before-hole": (
        "a backslash right before a value would escape the reference to it",
        "take the backslash away, or double it to mean a backslash",
    ),
    "dollar-before-hole": (
        "a dollar sign right before a value would change what the reference means",
        "put the dollar sign into single quotes: '$'${x}",
    ),
    "special-variable": (
        "the shell evaluates what this variable is given",
        "use a variable of your own",
    ),
    "array-declaration": (
        "the shell may evaluate what a declaration gives to an array",
        "declare first, then assign on its own: local name; name=${x}",
    ),
    "integer-variable": (
        "assigning to an integer variable or a name reference evaluates the value",
        "leave the attribute out; calculate with $(( … )) where you need a number",
    ),
    "brace-expansion": (
        "brace expansion would repeat or reorder the value",
        "put the braces into quotes, or write the words out",
    ),
    "extended-glob": (
        "a value may not be part of an extended pattern",
        "match with case … in, one pattern per line",
    ),
    "backtick-escapes": (
        "inside backticks the shell strips backslashes first, so no value can be bound safely",
        "write $( … ) instead of the backticks",
    ),
    "nested-quotes": (
        "shells disagree on quotes inside of ${…} that stands itself in double quotes or a here-document",
        "give the inner text to a variable first",
    ),
    "bash-only": (
        "this means something only in bash, and a value stands in it",
        "say that the shell is bash, or write it in the language of sh",
    ),
    "alias": ("an alias changes what later words mean", "write a function instead"),
    "coproc": ("a co-process hides which word is the program", "use a pipe or a background command"),
    "dollar-bracket": ("$[ … ] is evaluated as arithmetic by some shells only", "write $(( … ))"),
    "double-parens": (
        "shells read (( as arithmetic or as two subshells",
        "write ( ( with a blank for subshells, and $(( … )) for arithmetic",
    ),
    "split-operator": (
        "a line continuation in the middle of an operator is read differently by different shells",
        "move the backslash behind the operator",
    ),
    "heredoc-unclear": (
        "shells disagree on where this here-document starts or ends",
        "put the here-document's command on a line of its own, and its delimiter on a line of its own",
    ),
    "heredoc-in-substitution": (
        "some versions of bash join the commands that follow a here-document inside of $( … ) into one",
        "let the here-document be the last thing in $( … ), or move it out",
    ),
    "unbalanced": ("this is opened and never closed", "close it, or quote it if it is meant as text"),
    "unexpected": ("a shell could not go on from here", "correct the shell syntax, or quote the character"),
    "too-deep": (f"nested more than {MAX_DEPTH} deep", "move the inner commands into functions"),
    "nul-in-script": ("the script contains a NUL character", "take it out; no shell reads it"),
}

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^=]*\])?\+?=", re.DOTALL)
_PLAIN_IN_WORD: Final = re.compile(r"""[^\s\0;&|<>()'"`\\$\[\]?*+@!]+""")
_PLAIN_IN_DOUBLE: Final = re.compile(r"""[^\0"`\\$]+""")
_PLAIN_IN_SINGLE: Final = re.compile(r"[^\0']+")
_PLAIN_IN_DOLLAR_SINGLE: Final = re.compile(r"[^\0'\\]+")
_PLAIN_IN_PARAMETER: Final = re.compile(r"""[^\0'"`\\$}]+""")
_PLAIN_IN_HEREDOC: Final = re.compile(r"[^\0`\\$]+")
_PLAIN_IN_ARITHMETIC: Final = re.compile(r"""[^\0'"`\\$()]+""")
_NAME_PART: Final = re.compile(r"[A-Za-z0-9_]*")
_DESCRIPTOR: Final = re.compile(r"[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}")
_BLANKS: Final = " \t"
_OPERATORS: Final = ";&|<>()"
_GAP: Final = "\0"
_EXPANSION: Final = "$"
_QUOTED: Final = '"'


class _Word:
    """A word as it is read: its text without quotes, and which of it was quoted.

    `text` and `naked` run in parallel.  A gap is NUL in both; an expansion is
    `$` in both; a quoted character is `"` in `naked`, where no other can be.
    """

    __slots__ = (
        "_naked",
        "_text",
        "gaps",
        "last",
        "name_only",
        "nested",
        "quoted",
        "raw",
        "size",
        "splat",
        "start",
    )

    def __init__(self, start: int) -> None:
        self.start = start
        self._text: list[str] = []
        self._naked: list[str] = []
        self.size = 0
        self.gaps: list[tuple[int, int]] = []
        """Position in `text`, number of the gap."""
        self.nested: list[int] = []
        """Gaps in commands inside of this word."""
        self.quoted = False
        self.raw = False
        """It holds a value that the author wants to become code."""
        self.splat = False
        """It holds `$@` or its kin, which may be no word even in quotes."""
        self.last = ""
        """The character read last, unless it was quoted."""
        self.name_only = True
        """Nothing was read that cannot be part of a name."""

    def add(self, text: str, *, quoted: bool = False) -> None:
        self._text.append(text)
        self._naked.append(_QUOTED * len(text) if quoted else text)
        self.size += len(text)
        self.last = "" if quoted else text[-1:]
        self.name_only = self.name_only and not quoted and _NAME_PART.fullmatch(text) is not None

    def add_gap(self, number: int) -> None:
        self.gaps.append((self.size, number))
        self.add(_GAP)

    @property
    def text(self) -> str:
        self._text = ["".join(self._text)]
        return self._text[0]

    @property
    def naked(self) -> str:
        self._naked = ["".join(self._naked)]
        return self._naked[0]

    @property
    def literal(self) -> str | None:
        """The text, if the author's text alone decides it."""
        return None if _GAP in self.naked or _EXPANSION in self.naked else self.text

    @property
    def base(self) -> str | None:
        """The literal text without its directory: the name of a program."""
        return None if self.literal is None else self.literal.rpartition("/")[2]

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.gaps]

    @property
    def all_numbers(self) -> list[int]:
        return [*self.numbers, *self.nested]

    @property
    def may_vanish(self) -> bool:
        """Whether this may become no word at all, and the next word take its place."""
        if self.raw or not self.naked or self.naked.strip(_EXPANSION):
            return False
        return self.splat or not self.quoted

    def leading(self) -> list[int]:
        """Gaps with nothing of the author's text before them in this word."""
        naked = self.naked
        run = len(naked) - len(naked.lstrip(_GAP + _EXPANSION))
        return [number for at, number in self.gaps if at < run]

    def has_braces(self) -> bool:
        """Whether a shell would take this for a brace expansion."""
        naked = self.naked
        opened = naked.find("{")
        closed = naked.rfind("}")
        return 0 <= opened < closed and any(mark in naked[opened:closed] for mark in (",", ".."))


class _UnreadableError(Exception):
    """The reader cannot go on; what it could not read is a refusal already."""


@dataclass(frozen=True, slots=True)
class _HereDocument:
    start: int
    delimiter: str
    strip_tabs: bool
    quoted: bool
    code: bool = False
    """An interpreter reads it as a program."""


class _Reader:
    """Follows the text; `at` is the next character, `end` the first not to read."""

    def __init__(self, pieces: Sequence[Piece], dialect: Dialect) -> None:
        self.dialect = dialect
        self.gaps = [piece for piece in pieces if isinstance(piece, Gap)]
        self.text = "".join(_GAP if isinstance(piece, Gap) else piece for piece in pieces)
        self.offsets = list(_gap_offsets(pieces))
        self.at = 0
        self.end = len(self.text)
        self.depth = 0
        self.arithmetic = 0
        self.here_documents: list[_HereDocument] = []
        self.outer_here_documents = 0
        self.here_document_read = False
        self.more_behind_here_document = False
        self.assigned: set[str] = set()
        self.places = [Place("bare")] * len(self.gaps)
        self.refusals: dict[tuple[str, int, int], Refusal] = {}
        self.rules = _Rules(self)

    # ── the answer ──────────────────────────────────────────────────────────

    def read(self) -> None:
        try:
            self.expect_no_nul()
            self.commands("end")
            self.expect_no_open_here_document()
            self.rules.finish()
        except _UnreadableError:
            pass  # the refusal is recorded; what follows was not read

    def found_places(self) -> tuple[Place, ...]:
        return tuple(self.places)

    def found_refusals(self) -> tuple[Refusal, ...]:
        # Without a bound gap there is nothing to protect: the script is the author's alone.
        return tuple(self.refusals.values()) if any(not gap.raw for gap in self.gaps) else ()

    def refuse_gaps(self, code: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            gap = self.gaps[number]
            if not gap.raw:
                self._refuse(code, gap.start, gap.end)

    def refuse_at(self, code: str, offset: int) -> None:
        start = self.place_of(offset)
        self._refuse(code, start, start + 1)

    def unreadable(self, code: str, offset: int) -> _UnreadableError:
        self.refuse_at(code, offset)
        return _UnreadableError()

    def _refuse(self, code: str, start: int, end: int) -> None:
        what, fix = REFUSALS[code]
        self.refusals[code, start, end] = Refusal(code, start, end, what, fix)

    def place_of(self, offset: int) -> int:
        """Where an offset of the joined text stands in the author's text (exact but for escapes)."""
        number = bisect_left(self.offsets, offset)
        if number < len(self.offsets) and self.offsets[number] == offset:
            return self.gaps[number].start
        if number == 0:
            return offset
        return self.gaps[number - 1].end + offset - self.offsets[number - 1] - 1

    def expect_no_nul(self) -> None:
        known = set(self.offsets)
        for found in re.finditer(_GAP, self.text):
            if found.start() not in known:
                raise self.unreadable("nul-in-script", found.start())

    def expect_no_open_here_document(self) -> None:
        if self.here_documents:
            raise self.unreadable("unbalanced", self.here_documents[0].start)

    # ── characters ──────────────────────────────────────────────────────────

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.text[at] if at < self.end else ""

    def follows(self, text: str) -> bool:
        return self.text.startswith(text, self.at, self.end)

    def numbers_between(self, start: int, end: int) -> range:
        return range(bisect_left(self.offsets, start), bisect_left(self.offsets, end))

    def gap(self, word: _Word, state: State) -> None:
        """Take the gap at hand."""
        number = bisect_left(self.offsets, self.at)
        self.at += 1
        self.places[number] = Place(state)
        if self.gaps[number].raw:
            word.raw = True
            word.add(_EXPANSION)
            return
        word.add_gap(number)
        if self.arithmetic and state != "arithmetic":
            self.refuse_gaps("arithmetic-nested", [number])

    def plain(self, word: _Word, run: re.Pattern[str], *, quoted: bool = True) -> None:
        """Characters without a meaning; at least one."""
        found = run.match(self.text, self.at, self.end)
        stop = found.end() if found else self.at + 1
        word.add(self.text[self.at : stop], quoted=quoted)
        self.at = stop

    def escape(self, word: _Word, *, special: str | None = None) -> None:
        """A backslash and what follows; with `special`, it means itself before other characters."""
        following = self.peek(1)
        if following == _GAP:
            self.refuse_gaps("backslash-before-hole", self.numbers_between(self.at + 1, self.at + 2))
        word.quoted = True
        if following == "\n":
            self.at += 2
        elif following in ("", _GAP) or (special is not None and following not in special):
            word.add("\\", quoted=True)
            self.at += 1
        else:
            word.add(following, quoted=True)
            self.at += 2

    def skip_blanks(self) -> None:
        """Blanks, line continuations, and a comment, up to the end of the line."""
        while self.at < self.end:
            if self.peek() in _BLANKS:
                self.at += 1
            elif self.follows("\\\n"):
                self.at += 2
            elif self.peek() == "#":
                self.comment()
            else:
                return

    def skip_lines(self) -> None:
        self.skip_blanks()
        while self.peek() == "\n":
            self.newline()
            self.skip_blanks()

    def comment(self) -> None:
        stop = self.text.find("\n", self.at, self.end)
        stop = self.end if stop < 0 else stop
        for number in self.numbers_between(self.at, stop):
            self.places[number] = Place("comment")
        self.at = stop

    def newline(self) -> None:
        if self.outer_here_documents:
            raise self.unreadable("heredoc-unclear", self.at)
        self.at += 1
        waiting, self.here_documents = self.here_documents, []
        for document in waiting:
            self.here_document(document)
            self.here_document_read = True

    def operator(self, length: int) -> None:
        """Step over an operator that must not go on behind a line continuation."""
        self.at += length
        if self.follows("\\\n") and self.text[self.at + 2 : self.at + 3] in tuple(_OPERATORS):
            raise self.unreadable("split-operator", self.at)

    @contextmanager
    def deeper(self, start: int) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.unreadable("too-deep", start)
        yield
        self.depth -= 1

    @contextmanager
    def up_to(self, end: int) -> Iterator[None]:
        """Read a part of the text as if it were all of it."""
        outer, self.end = self.end, end
        yield
        self.end = outer

    # ── commands ────────────────────────────────────────────────────────────

    def commands(self, until: Literal["end", ")", "esac"]) -> None:
        """Commands up to, and not over, what ends them."""
        start = self.at
        while True:
            self.skip_lines()
            char = self.peek()
            if char == "" and until == "end":
                return
            if char == "":
                raise self.unreadable("unbalanced", max(0, start - 1))
            if char == ")" and until == ")":
                return
            if until == "esac" and (self.at_item_end() or self.at_keyword("esac")):
                return
            self.one_command()

    def at_item_end(self) -> bool:
        return self.follows(";;") or self.follows(";&")

    def at_keyword(self, keyword: str) -> bool:
        following = self.peek(len(keyword))
        return self.follows(keyword) and (following == "" or following in _BLANKS + "\n" + _OPERATORS)

    def one_command(self) -> None:
        char = self.peek()
        if char != ";" and not self.at_closing_keyword():
            self.more_behind_here_document |= self.here_document_read
        if char == "(":
            self.parenthesis()
        elif char in ";&|" and not self.at_both_redirection():
            self.separator()
        elif char == ")":
            raise self.unreadable("unexpected", self.at)
        else:
            self.simple_command()

    def at_closing_keyword(self) -> bool:
        return any(map(self.at_keyword, ("fi", "done", "}")))

    def separator(self) -> None:
        self.operator(2 if self.text[self.at : self.at + 2] in ("&&", "||", "|&", ";;") else 1)

    def parenthesis(self) -> None:
        start = self.at
        if self.follows("(("):
            self.at += 2
            self.double_parens(start)
            return
        with self.deeper(start):
            self.operator(1)
            self.commands(")")
            self.at += 1

    def double_parens(self, start: int) -> None:
        """`(( … ))`, behind its opening."""
        self.arithmetic_text(start)
        self.refuse_gaps("arithmetic", self.numbers_between(start, self.at))

    def simple_command(self) -> None:
        words: list[_Word] = []
        inputs: list[int] = []
        only_assignments = True
        while self.more_words():
            if self.at_redirection():
                inputs.extend(self.redirection())
            elif self.peek() == "(":
                self.function_parens(words)
                return
            else:
                word = self.word(subscript=only_assignments)
                only_assignments = only_assignments and _ASSIGNMENT.match(word.naked) is not None
                if self.at_redirection() and _DESCRIPTOR.fullmatch(word.naked):
                    self.assigned.update(_NAME.findall(word.naked))  # {name}>file
                elif not words and self.keyword(word):
                    return
                else:
                    words.append(word)
        if self.rules.judge(words):
            self.refuse_gaps("value-in-code-input", inputs)
            self.here_documents = [replace(document, code=True) for document in self.here_documents]

    def more_words(self) -> bool:
        self.skip_blanks()
        if self.peek() == "&":
            return self.at_both_redirection()
        return self.peek() not in ("", "\n", ";", "|", ")")

    def at_both_redirection(self) -> bool:
        return self.dialect == "bash" and self.follows("&>")

    def at_redirection(self) -> bool:
        if self.at_both_redirection():
            return True
        return self.peek() in ("<", ">") and self.peek(1) != "("

    def keyword(self, word: _Word) -> bool:
        """Read on behind a reserved word; false if it is none."""
        match word.naked:
            case "if" | "then" | "elif" | "else" | "fi" | "while" | "until" | "do" | "done" | "{" | "}" | "!":
                pass
            case "case":
                self.case(word)
            case "for" | "select":
                self.loop()
            case "function":
                self.function()
            case "[[":
                self.condition(word)
            case "time":
                self.time_options()
            case "coproc":
                self.refuse_at("coproc", word.start)
            case _:
                return False
        return True

    def time_options(self) -> None:
        """bash reads a command behind `time`, keywords and all; elsewhere it is a program with options."""
        self.skip_blanks()
        while self.peek() == "-":
            if self.word().literal in ("-f", "-o"):
                self.skip_blanks()
                self.word()
            self.skip_blanks()

    def case(self, opening: _Word) -> None:
        self.skip_blanks()
        self.word()
        self.skip_lines()
        if not self.at_keyword("in"):
            raise self.unreadable("unexpected", self.at)
        self.at += len("in")
        with self.deeper(opening.start):
            while True:
                self.skip_lines()
                if self.at_keyword("esac"):
                    self.at += len("esac")
                    return
                self.case_patterns(opening)
                self.commands("esac")
                self.case_item_end()

    def case_patterns(self, opening: _Word) -> None:
        if self.peek() == "(":
            self.operator(1)
        while True:
            self.skip_blanks()
            if self.peek() == "":
                raise self.unreadable("unbalanced", opening.start)
            self.expect_one_argument(self.word())
            self.skip_blanks()
            separator = self.peek()
            if separator not in ("|", ")"):
                raise self.unreadable("unexpected", self.at)
            self.at += 1
            if separator == ")":
                return

    def case_item_end(self) -> None:
        if self.at_item_end():
            self.at += 3 if self.follows(";;&") else 2

    def loop(self) -> None:
        self.skip_blanks()
        if self.follows("(("):
            start = self.at
            self.at += 2
            self.double_parens(start)
            return
        name = self.word()
        self.refuse_gaps("value-as-name", name.all_numbers)
        self.assigned.add(name.text)
        self.skip_lines()
        if not self.at_keyword("in"):
            return
        self.at += len("in")
        while self.more_words():
            if self.peek() in ("<", ">", "(") and self.peek(1) != "(":
                raise self.unreadable("unexpected", self.at)
            word = self.word()
            self.expect_one_argument(word)
            self.may_spread(word)
            self.rules.judge_assignment(name.text, word.numbers)

    def function(self) -> None:
        self.skip_blanks()
        name = self.word()
        self.refuse_gaps("value-as-name", name.all_numbers)
        self.skip_blanks()
        if self.peek() == "(":
            self.function_parens([name])

    def function_parens(self, words: list[_Word]) -> None:
        """`name ( )`: behind it a command starts."""
        self.operator(1)
        self.skip_blanks()
        if self.peek() != ")" or len(words) != 1:
            raise self.unreadable("unexpected", self.at)
        self.at += 1
        self.refuse_gaps("value-as-name", words[0].all_numbers)

    def condition(self, opening: _Word) -> None:
        """`[[ … ]]`: its operators are not commands, and its words are not split."""
        words: list[_Word] = []
        while True:
            self.skip_lines()
            if self.peek() == "":
                raise self.unreadable("unbalanced", opening.start)
            if self.peek() in _OPERATORS and self.text[self.at : self.at + 2] not in ("<(", ">("):
                words.append(_Word(self.at))
                self.at += 1
                continue
            word = self.word()
            if word.naked == "]]":
                break
            words.append(word)
        self.rules.judge_condition(words)

    # ── redirections and here-documents ─────────────────────────────────────

    def redirection(self) -> list[int]:
        """Read one; returns the gaps that become text of the command's input."""
        operators = ("&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">")
        operator = next(each for each in operators if self.follows(each))
        start = self.at
        self.operator(len(operator))
        self.skip_blanks()
        target = self.word()
        numbers = target.numbers
        if operator in ("<<", "<<-"):
            self.announce(start, target, strip_tabs=operator == "<<-")
        elif operator in ("<&", ">&"):
            self.refuse_gaps("descriptor", target.all_numbers)
        elif operator == "<<<" and self.dialect == "sh":
            self.refuse_gaps("bash-only", numbers)
        self.expect_one_argument(target)
        return target.all_numbers if operator == "<<<" else []

    def announce(self, start: int, delimiter: _Word, *, strip_tabs: bool) -> None:
        if delimiter.gaps or delimiter.nested:
            self.refuse_gaps("heredoc-delimiter", delimiter.all_numbers)
            raise _UnreadableError
        if delimiter.literal is None:
            raise self.unreadable("heredoc-unclear", start)
        self.here_documents.append(_HereDocument(start, delimiter.text, strip_tabs, delimiter.quoted))

    def here_document(self, document: _HereDocument) -> None:
        body = self.at
        stop = self.here_document_end(document)
        after = self.at
        if document.code:
            self.refuse_gaps("value-in-code-input", self.numbers_between(body, stop))
        if document.quoted:
            self.refuse_gaps("quoted-heredoc", self.numbers_between(body, stop))
        else:
            self.at = body
            with self.up_to(stop):
                self.here_document_body(document)
        self.at = after

    def here_document_end(self, document: _HereDocument) -> int:
        """Where the delimiter's line starts; `at` goes behind that line."""
        continued = False
        while self.at < self.end:
            start = self.at
            stop = self.text.find("\n", start, self.end)
            stop = self.end if stop < 0 else stop
            line = self.text[start:stop]
            self.at = min(stop + 1, self.end)
            if (line.lstrip("\t") if document.strip_tabs else line) == document.delimiter:
                if continued:
                    raise self.unreadable("heredoc-unclear", start)
                return start
            continued = not document.quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        raise self.unreadable("unbalanced", document.start)

    def here_document_body(self, document: _HereDocument) -> None:
        word = _Word(document.start)
        while self.at < self.end:
            match self.peek():
                case "\0":
                    self.gap(word, "heredoc")
                case "\\":
                    self.escape(word, special="$`\\\n")
                case "$":
                    self.dollar(word, "heredoc")
                case "`":
                    self.backticks(word)
                case _:
                    self.plain(word, _PLAIN_IN_HEREDOC)

    # ── words ───────────────────────────────────────────────────────────────

    def word(self, *, subscript: bool = False) -> _Word:
        """One word; `subscript`: here a shell would take `name[` for an array's element."""
        word = _Word(self.at)
        while self.at < self.end and self.word_part(word, subscript=subscript):
            pass
        if self.at == word.start:
            raise self.unreadable("unexpected", self.at)
        return word

    def word_part(self, word: _Word, *, subscript: bool) -> bool:
        """Read a bit of a word; false where the word ends."""
        match self.peek():
            case "\0":
                self.gap(word, "bare")
            case "\\":
                self.escape(word)
            case "'":
                self.single_quotes(word)
            case '"':
                self.double_quotes(word)
            case "`":
                self.backticks(word)
            case "$":
                self.dollar(word, "bare")
            case "[" if subscript and word.size and word.name_only:
                self.subscript(word)
            case "(" if word.last and word.last in "?*+@!":
                self.extended_glob(word)
            case "(" if word.last == "=" and _ASSIGNMENT.fullmatch(word.naked):
                self.array(word)
            case "<" | ">" if self.peek(1) == "(":
                self.process_substitution(word)
            case " " | "\t" | "\n" | ";" | "&" | "|" | "<" | ">" | "(" | ")":
                return False
            case _:
                self.plain(word, _PLAIN_IN_WORD, quoted=False)
        return True

    def single_quotes(self, word: _Word) -> None:
        word.quoted = True
        start = self.at
        self.at += 1
        while (char := self.peek()) != "'":
            if char == "":
                raise self.unreadable("unbalanced", start)
            if char == _GAP:
                self.gap(word, "single")
                continue
            self.plain(word, _PLAIN_IN_SINGLE)
        self.at += 1

    def double_quotes(self, word: _Word) -> None:
        word.quoted = True
        start = self.at
        self.at += 1
        while (char := self.peek()) != '"':
            match char:
                case "":
                    raise self.unreadable("unbalanced", start)
                case "\0":
                    self.gap(word, "double")
                case "\\":
                    self.escape(word, special='$`"\\\n')
                case "$":
                    self.dollar(word, "double")
                case "`":
                    self.backticks(word)
                case _:
                    self.plain(word, _PLAIN_IN_DOUBLE)
        self.at += 1

    def dollar_single_quotes(self, word: _Word, start: int) -> None:
        """`$'…'`; a shell without it reads `$` and `'…'`, so sh may have neither gap nor backslash in it."""
        word.quoted = True
        self.at += 1
        while (char := self.peek()) != "'":
            if char == "":
                raise self.unreadable("unbalanced", start)
            if char == _GAP:
                if self.dialect == "sh":
                    self.refuse_gaps("bash-only", self.numbers_between(self.at, self.at + 1))
                self.gap(word, "dollar-single")
                continue
            if char == "\\":
                if self.dialect == "sh":
                    raise self.unreadable("bash-only", start)
                self.dollar_single_escape(word)
                continue
            self.plain(word, _PLAIN_IN_DOLLAR_SINGLE)
        self.at += 1

    def dollar_single_escape(self, word: _Word) -> None:
        # `\c` takes one more character along, which may be the closing quote.
        length = 3 if self.peek(1) == "c" else 2
        taken = self.numbers_between(self.at, self.at + length)
        self.refuse_gaps("backslash-before-hole", taken)
        word.add("\\", quoted=True)
        self.at = self.offsets[taken[0]] if taken else min(self.at + length, self.end)

    def subscript(self, word: _Word) -> None:
        start = self.at
        depth = 0
        while True:
            char = self.peek()
            if char == "" or char in _BLANKS + "\n" + _OPERATORS:
                # One shell ends the word here, another reads on to the bracket.
                raise self.unreadable("subscript", start)
            depth += (char == "[") - (char == "]")
            if char in "[]":
                word.add(char)
                self.at += 1
            else:
                self.word_part(word, subscript=False)
            if depth == 0:
                break
        self.refuse_gaps("subscript", self.numbers_between(start, self.at))

    def extended_glob(self, word: _Word) -> None:
        start = self.at
        self.at += 1
        with self.deeper(start):
            while (char := self.peek()) != ")":
                if char == "":
                    raise self.unreadable("unbalanced", start)
                if char in " \t\n;&|<>(":
                    self.at += 1
                else:
                    self.word_part(word, subscript=False)
        self.at += 1
        self.refuse_gaps("extended-glob", self.numbers_between(start, self.at))

    def array(self, word: _Word) -> None:
        """`name=( … )`."""
        start = self.at
        self.at += 1
        with self.deeper(start):
            while True:
                self.skip_lines()
                if self.peek() == ")":
                    break
                if self.peek() == "":
                    raise self.unreadable("unbalanced", start)
                self.array_element()
        self.at += 1
        numbers = self.numbers_between(start, self.at)
        word.add(_EXPANSION)
        word.nested.extend(numbers)
        if self.dialect == "sh":
            self.refuse_gaps("bash-only", numbers)

    def array_element(self) -> None:
        element = self.word()
        self.expect_one_argument(element)
        self.may_spread(element)
        if element.naked.startswith("["):
            # From `[` to `]=`, or all of it: a blank inside would end our word, not bash's subscript.
            closed = element.naked.find("]=")
            self.refuse_gaps("subscript", [n for at, n in element.gaps if closed < 0 or at < closed])
            self.refuse_gaps("subscript", element.nested)
            if closed < 0:
                raise self.unreadable("subscript", element.start)

    def process_substitution(self, word: _Word) -> None:
        start = self.at
        self.at += 1
        self.substitution(word, start)

    def expect_one_argument(self, word: _Word) -> None:
        if word.gaps and word.has_braces():
            self.refuse_gaps("brace-expansion", word.numbers)

    def may_spread(self, word: _Word) -> None:
        if word.naked == _GAP and self.places[word.numbers[0]].state == "bare":
            self.places[word.numbers[0]] = Place("bare", spread=True)

    # ── expansions ──────────────────────────────────────────────────────────

    def dollar(self, word: _Word, around: Literal["bare", "double", "heredoc"]) -> None:
        start = self.at
        following = self.peek(1)
        if following == _GAP:
            self.refuse_gaps("dollar-before-hole", self.numbers_between(start + 1, start + 2))
        self.at += 1
        if self.follows("(("):
            self.at += 2
            self.arithmetic_text(start)
            word.add(_EXPANSION)
        elif following == "(":
            self.substitution(word, start)
        elif following == "{":
            self.parameter(word, start, around)
        elif following == "[":
            raise self.unreadable("dollar-bracket", start)
        elif self.follows("\\\n"):
            raise self.unreadable("split-operator", start)
        elif following == "'" and around == "bare":
            self.dollar_single_quotes(word, start)
        elif following == '"' and around == "bare":
            self.double_quotes(word)
        else:
            self.variable(word)

    def variable(self, word: _Word) -> None:
        """`$name`, `$1`, `$?` …, or a dollar sign that means itself."""
        if name := _NAME.match(self.text, self.at, self.end):
            self.at = name.end()
        elif self.peek() and self.peek() in "0123456789@*#?-$!":
            word.splat = word.splat or self.peek() == "@"
            self.at += 1
        else:
            word.add("$", quoted=True)
            return
        word.add(_EXPANSION)

    def substitution(self, word: _Word, start: int) -> None:
        """`( … )` of `$( … )` and its kin: a script of its own."""
        self.operator(1)
        with self.deeper(start), self.own_here_documents():
            self.commands(")")
            self.expect_no_open_here_document()
            self.at += 1
            if self.more_behind_here_document:
                self.refuse_gaps("heredoc-in-substitution", self.numbers_between(start, self.at))
        self.nested(word, start)

    @contextmanager
    def own_here_documents(self) -> Iterator[None]:
        outer = self.here_documents, self.here_document_read, self.more_behind_here_document
        self.here_documents, self.here_document_read, self.more_behind_here_document = [], False, False
        self.outer_here_documents += len(outer[0])
        yield
        self.here_documents, self.here_document_read, self.more_behind_here_document = outer
        self.outer_here_documents -= len(outer[0])

    def nested(self, word: _Word, start: int) -> None:
        numbers = self.numbers_between(start, self.at)
        word.add(_EXPANSION)
        word.nested.extend(number for number in numbers if not self.gaps[number].raw)
        if self.arithmetic:
            self.refuse_gaps("arithmetic-nested", numbers)

    def backticks(self, word: _Word) -> None:
        start = self.at
        stop = start + 1
        while stop < self.end and self.text[stop] != "`":
            stop += 2 if self.text[stop] == "\\" else 1
        if stop >= self.end:
            raise self.unreadable("unbalanced", start)
        inside = self.text[start + 1 : stop]
        if "\\" in inside or "<<" in inside:
            # The shell would strip backslashes first; what it reads then is not what stands here.
            self.refuse_gaps("backtick-escapes", self.numbers_between(start, stop))
        else:
            self.at = start + 1
            with self.deeper(start), self.up_to(stop), self.own_here_documents():
                self.commands("end")
        self.at = stop + 1
        self.nested(word, start)

    def arithmetic_text(self, start: int) -> None:
        """Up to and over `))`, with only numbers as values."""
        depth = 0
        inner = _Word(start)
        with self.deeper(start):
            while True:
                match self.peek():
                    case "":
                        raise self.unreadable("unbalanced", start)
                    case "\0":
                        self.gap(inner, "arithmetic")
                    case "(":
                        depth += 1
                        self.at += 1
                    case ")" if depth:
                        depth -= 1
                        self.at += 1
                    case ")" if self.peek(1) == ")":
                        self.at += 2
                        return
                    case ")" | "'":
                        raise self.unreadable("double-parens", start)
                    case "\\":
                        self.escape(inner)
                    case "$" | "`" | '"':
                        self.evaluated_part(inner)
                    case _:
                        self.plain(inner, _PLAIN_IN_ARITHMETIC)

    def evaluated_part(self, word: _Word) -> None:
        self.arithmetic += 1
        match self.peek():
            case "$":
                self.dollar(word, "double")
            case "`":
                self.backticks(word)
            case _:
                self.double_quotes(word)
        self.arithmetic -= 1

    def parameter(self, word: _Word, start: int, around: Literal["bare", "double", "heredoc"]) -> None:
        """`${ … }`."""
        self.at += 1
        word.add(_EXPANSION)
        with self.deeper(start):
            name = self.parameter_name()
            if self.peek() == "[":
                self.parameter_subscript(start)
            word.splat = word.splat or "@" in self.text[start : self.at]
            operator = self.parameter_operator()
            if operator == "evaluated":
                first = self.at
                self.operand(_Word(start), start, around, operator)
                self.refuse_gaps("parameter-operand", self.numbers_between(first, self.at))
            elif operator:
                self.operand(word, start, around, operator)
                self.judge_default(name, start, around, operator)
        self.at += 1

    def parameter_name(self) -> str:
        """The name, behind `#` or `!` if they are there; a gap may not be the name."""
        if self.peek() in ("#", "!") and self.peek(1) not in ("}", ":", "%", "#", "-", "+", "=", "?"):
            self.at += 1
        if name := _NAME.match(self.text, self.at, self.end):
            self.at = name.end()
            return name.group()
        if self.peek() == _GAP:
            self.refuse_gaps("value-as-name", self.numbers_between(self.at, self.at + 1))
        if self.peek().isdigit():
            while self.peek().isdigit():
                self.at += 1
        elif self.peek() and self.peek() in "@*#?-$!\0":
            self.at += 1
        return ""

    def parameter_subscript(self, start: int) -> None:
        first = self.at
        word = _Word(start)
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
        self.refuse_gaps("subscript", self.numbers_between(first, self.at))

    def parameter_operator(self) -> Literal["", "default", "assign", "pattern", "evaluated"]:
        """Step over the operator; empty at the closing brace."""
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

    def operand(
        self,
        word: _Word,
        start: int,
        around: Literal["bare", "double", "heredoc"],
        operator: Literal["default", "assign", "pattern", "evaluated"],
    ) -> None:
        """Up to the closing brace."""
        if operator in ("pattern", "assign"):
            word.add(" ", quoted=True)  # what is cut off or assigned does not start the word
        while (char := self.peek()) != "}":
            match char:
                case "":
                    raise self.unreadable("unbalanced", start)
                case "\0":
                    self.gap(word, _operand_state(around, operator))
                case "\\":
                    self.escape(word, special=None if around == "bare" else '$`"\\}\n')
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
                case '"':
                    self.quotes_in_quotes(word, start, around)
                case _:
                    self.plain(word, _PLAIN_IN_PARAMETER)

    def quotes_in_quotes(self, word: _Word, start: int, around: Literal["bare", "double", "heredoc"]) -> None:
        first = self.at
        if around == "heredoc":
            raise self.unreadable("nested-quotes", start)
        self.double_quotes(word)
        if "}" in self.text[first : self.at]:
            raise self.unreadable("nested-quotes", start)
        self.refuse_gaps("nested-quotes", self.numbers_between(first, self.at))

    def judge_default(self, name: str, start: int, around: str, operator: str) -> None:
        if operator != "assign":
            return
        numbers = self.numbers_between(start, self.at)
        self.assigned.add(name)
        self.rules.judge_assignment(name, numbers)
        if around == "bare":
            self.refuse_gaps("assigning-default", numbers)


def _gap_offsets(pieces: Sequence[Piece]) -> Iterator[int]:
    at = 0
    for piece in pieces:
        if isinstance(piece, Gap):
            yield at
            at += 1
        else:
            at += len(piece)


def _operand_state(around: str, operator: str) -> State:
    if around == "bare":
        return "parameter"
    return "quoted-pattern" if operator == "pattern" else "quoted-parameter"


# ── what commands do with their words ───────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A command that runs the command behind it."""

    valued: str = ""
    """Option letters that take the next word."""
    long_valued: frozenset[str] = frozenset()
    operands: int = 0
    """Words of its own before the command."""
    assignments: bool = False
    looks_up: str = ""
    """Option letters with which it only looks for the command."""
    code: str = ""
    """Option letters whose word is split into a command."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PREFIXES: Final[dict[str, _Prefix]] = {
    "sudo": _Prefix(
        "CDghpRrTtUu",
        _set("user group host prompt chdir chroot role type"),
        assignments=True,
    ),
    "doas": _Prefix("Cu"),
    "env": _Prefix("uC", _set("unset chdir"), assignments=True, code="S"),
    "nohup": _Prefix(),
    "time": _Prefix("fo", _set("format output")),
    "exec": _Prefix("a"),
    "command": _Prefix(looks_up="vV"),
    "builtin": _Prefix(),
    "xargs": _Prefix(
        "adEILnPsR",
        _set("arg-file delimiter max-lines max-args max-procs max-chars"),
    ),
    "nice": _Prefix("n", _set("adjustment")),
    "ionice": _Prefix("cnpPu", _set("class classdata")),
    "timeout": _Prefix("ks", _set("kill-after signal"), operands=1),
    "stdbuf": _Prefix("ioe", _set("input output error")),
    "setsid": _Prefix(),
    "chroot": _Prefix(operands=1),
    "taskset": _Prefix(operands=1),
    "busybox": _Prefix(),
    "strace": _Prefix("abeEIoOpPsSuX"),
    "flock": _Prefix("Ew", operands=1),
    "chrt": _Prefix("DPT", operands=1),
    "unshare": _Prefix("RSGw"),
    "fakeroot": _Prefix("bils"),
}

_CODE_COMMANDS: Final = _set(
    "eval . source trap alias bind complete compgen compopt enable fc jobs watch parallel"
)
_NAME_COMMANDS: Final = _set("read unset mapfile readarray getopts shopt")
_DECLARATIONS: Final = _set("export readonly local declare typeset")
_REMOTE_SHELLS: Final = _set("ssh rsh mosh autossh slogin")
_SSH_VALUED: Final = "BbcDEeFIiJLlmOopQRSWw"
_SPECIAL_VARIABLES: Final = _set(
    "PS0 PS1 PS2 PS3 PS4 PROMPT_COMMAND ENV BASH_ENV SHELLOPTS BASHOPTS"
    " RANDOM SRANDOM OPTIND SECONDS LINENO HISTCMD BASHPID FUNCNEST BASH_COMPAT"
    " BASH_ALIASES BASH_CMDS BASH_ARGV0 BASH_XTRACEFD EPOCHSECONDS EPOCHREALTIME"
)
_UNARY: Final = _set("-b -c -d -e -f -g -G -h -k -L -n -N -O -p -r -s -S -t -u -w -x -z")
_BINARY: Final = _set("= == != < > -eq -ne -lt -le -gt -ge -ef -nt -ot")
_EVALUATING: Final = _set("-eq -ne -lt -le -gt -ge -v -R")
_SHELLS: Final = _set("sh bash dash ash zsh ksh mksh fish rbash su runuser")


@dataclass(frozen=True, slots=True)
class _Interpreter:
    """A program that reads a word as code."""

    letters: str
    """Options whose word is code."""
    long: frozenset[str] = frozenset()
    options_between: bool = False
    """More options may stand between that option and the code, as for a shell's `-c`."""
    several: bool = False
    """It goes on looking for code behind the first."""


_INTERPRETERS: Final = {
    **dict.fromkeys(_SHELLS, _Interpreter("c", _set("command"), options_between=True)),
    **dict.fromkeys(_set("python pypy script flock"), _Interpreter("c", _set("command"))),
    **dict.fromkeys(_set("ruby lua Rscript osascript"), _Interpreter("e", several=True)),
    **dict.fromkeys(_set("node bun"), _Interpreter("ep", _set("eval print"), several=True)),
    "perl": _Interpreter("eE", several=True),
    "php": _Interpreter("rRBE", _set("run"), several=True),
}
_UNKNOWN_PROGRAM: Final = _Interpreter("c", options_between=True)  # "$SHELL" -c
_VERSION: Final = re.compile(r"[0-9][0-9.]*$")


class _Rules:
    """Judges the words of each command, and says which of them may be more than one or start an option."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self.refuse = reader.refuse_gaps
        self.declares_arrays = False
        self.declared: list[int] = []

    def finish(self) -> None:
        if self.declares_arrays:
            self.refuse("array-declaration", self.declared)

    def judge(self, words: list[_Word]) -> bool:
        """A simple command: assignments, a program, its arguments.  True if its input is code."""
        for word in words:
            self.reader.expect_one_argument(word)
        words = self.after_assignments(words)
        start = self.program(words)
        if start is None:
            return False
        arguments = words[start + 1 :]
        if any(word.gaps or word.nested for word in arguments):
            self.interpreters(words)
            self.executed_by_find(words[start], arguments)
        if self.by_name(words[start], arguments):
            self.arguments(arguments)
        return _takes_code_as_input(words[start].base or "", arguments)

    # ── the way to the program ──────────────────────────────────────────────

    def after_assignments(self, words: list[_Word]) -> list[_Word]:
        for position, word in enumerate(words):
            if not self.assignment(word):
                return words[position:]
        return []

    def assignment(self, word: _Word) -> bool:
        found = _ASSIGNMENT.match(word.naked)
        if found is None:
            return False
        self.refuse("subscript", [number for at, number in word.gaps if at < found.end()])
        if self.reader.dialect == "sh" and found.group() != f"{found.group(1)}=":
            self.refuse("bash-only", word.all_numbers)  # elsewhere it is the name of a program
        self.reader.assigned.add(found.group(1))
        self.judge_assignment(found.group(1), word.all_numbers)
        return True

    def judge_assignment(self, name: str, numbers: Iterable[int]) -> None:
        if name in _SPECIAL_VARIABLES:
            self.refuse("special-variable", numbers)

    def program(self, words: list[_Word]) -> int | None:
        """Which word names the program, behind all commands that only run another."""
        at = vanished = 0
        refusal = "value-as-program"
        while at < len(words):
            word = words[at]
            if word.gaps or word.nested:
                self.refuse(refusal, word.all_numbers)
                return None
            prefix = _PREFIXES.get(word.base or "")
            if word.may_vanish:
                refusal = "program-may-vanish"
                at += 1
            elif prefix is None or self.only_looks_up(words[at + 1 : at + 2], prefix):
                for shifted in words[at + 1 : at + 1 + vanished]:
                    self.refuse("program-may-vanish", shifted.all_numbers)
                return at
            else:
                start, at = at + 1, self.behind_options(words, at + 1, prefix)
                vanished += sum(skipped.may_vanish for skipped in words[start:at])
        return None

    def only_looks_up(self, words: list[_Word], prefix: _Prefix) -> bool:
        return bool(words) and len(words[0].text) == 2 and words[0].text[1] in tuple(prefix.looks_up)

    def behind_options(self, words: list[_Word], at: int, prefix: _Prefix) -> int:
        options_ended = False
        while at < len(words):
            word = words[at]
            if word.text.startswith("-") and not options_ended:
                options_ended = word.literal == "--"
                at += self.option(words, at, prefix)
            elif prefix.assignments and self.assignment(word):
                at += 1
            else:
                break
        for word in words[at : at + prefix.operands]:
            self.alone(word)
        return at + prefix.operands

    def option(self, words: list[_Word], at: int, prefix: _Prefix) -> int:
        """How many words an option takes."""
        word, following = words[at], words[at + 1 : at + 2]
        if any(letter in word.text[1:] for letter in prefix.code):
            for each in (word, *following):
                self.refuse("value-as-code", each.all_numbers)
        if not _takes_next(word.text, prefix.valued + prefix.code, prefix.long_valued):
            return 1
        for value in following:
            self.alone(value)
        return 2

    # ── programs with a meaning of their own ────────────────────────────────

    def by_name(self, program: _Word, arguments: list[_Word]) -> bool:
        """Judge what this program does with its words; false if they are no ordinary arguments."""
        everything = [number for word in arguments for number in word.all_numbers]
        name = program.base
        if name in _CODE_COMMANDS:
            self.refuse("value-as-code", everything)
            if name == "alias":
                self.reader.refuse_at("alias", program.start)
        elif name in _NAME_COMMANDS:
            self.names(arguments)
            self.refuse("value-as-name", everything)
        elif name in _DECLARATIONS:
            self.declaration(arguments)
        elif name == "let":
            self.refuse("arithmetic", everything)
        elif name in ("test", "["):
            self.test(name, arguments)
        elif name in _REMOTE_SHELLS:
            self.remote(arguments)
        else:
            if name == "set":
                self.set_options(arguments)
            elif name == "printf":
                self.printf(arguments)
            return True
        return False

    def names(self, words: list[_Word]) -> None:
        for word in words:
            if word.literal is not None and _NAME.fullmatch(word.literal):
                self.reader.assigned.add(word.literal)
                if word.literal in _SPECIAL_VARIABLES:
                    self.reader.refuse_at("special-variable", word.start)

    def declaration(self, words: list[_Word]) -> None:
        plain = True
        for word in words:
            if word.text.startswith(("-", "+")):
                plain = self.attributes(word) and plain
                self.refuse("value-as-name", word.all_numbers)
            elif self.assignment(word):
                numbers = word.all_numbers
                self.declared.extend(numbers)
                if not plain:
                    self.refuse("array-declaration", numbers)
            else:
                self.names([word])
                self.refuse("value-as-name", word.all_numbers)

    def attributes(self, option: _Word) -> bool:
        """Whether this option leaves values alone."""
        letters = set(option.text[1:])
        if letters & {"i", "n"} and option.text.startswith("-"):
            self.reader.refuse_at("integer-variable", option.start)
        self.declares_arrays |= bool(letters & {"a", "A"})
        return letters <= set("rxglu-")

    def test(self, name: str, words: list[_Word]) -> None:
        numbers = [number for word in words for number in word.numbers]
        if numbers and not _is_plain_test(name, words):
            self.refuse("value-as-operator", numbers)
        for word in words:
            self.whole(word)

    def remote(self, words: list[_Word]) -> None:
        host = _behind_ssh_options(words)
        for at, word in enumerate(words[:host]):
            if word.text.startswith("-o") or (at and words[at - 1].text == "-o"):
                self.refuse("value-as-remote-code", word.all_numbers)
        for word in words[: host + 1]:
            self.alone(word)
        for word in words[host + 1 :]:
            self.refuse("value-as-remote-code", word.all_numbers)

    def set_options(self, words: list[_Word]) -> None:
        for word in words:
            if word.literal in ("--", "-"):
                return
            self.refuse("value-as-option", word.numbers)

    def printf(self, words: list[_Word]) -> None:
        if words and words[0].text.startswith("-v"):
            for word in words[:2]:
                self.names([word])
                self.refuse("value-as-name", word.all_numbers)

    def executed_by_find(self, program: _Word, words: list[_Word]) -> None:
        if program.base != "find":
            return
        for at, word in enumerate(words, start=1):
            if word.literal in ("-exec", "-execdir", "-ok", "-okdir"):
                self.program(words[at : at + MAX_DEPTH])

    def interpreters(self, words: list[_Word]) -> None:
        """`sh -c`, `python -c`, `perl -e` …, wherever they stand among the words."""
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            known = _INTERPRETERS.get(_VERSION.sub("", word.base or ""))
            if word.literal is None:
                known = _UNKNOWN_PROGRAM
            if known is None:
                continue
            code, read = _code_words(words, at, known)
            for position in code:
                self.refuse("value-as-code", words[position].all_numbers)
            at = read if known.several or not code else code[-1]

    def judge_condition(self, words: list[_Word]) -> None:
        """The words of `[[ … ]]`, operators as empty words."""
        numbers = [number for word in words for number in word.numbers]
        if self.reader.dialect == "sh":
            self.refuse("bash-only", numbers)
        for before, word, after in zip([None, *words], words, [*words[1:], None], strict=False):
            if word.literal in _EVALUATING:
                for operand in (before, after):
                    if operand is not None:
                        self.refuse("arithmetic", operand.all_numbers)

    # ── ordinary arguments ──────────────────────────────────────────────────

    def arguments(self, words: list[_Word]) -> None:
        options_ended = False
        for word in words:
            self.reader.may_spread(word)
            if not options_ended:
                self.starts(word)
            options_ended = options_ended or word.literal == "--"

    def alone(self, word: _Word) -> None:
        """An argument in which a list may not become several words."""
        self.whole(word)
        self.starts(word)

    def whole(self, word: _Word) -> None:
        places = self.reader.places
        if word.naked == _GAP and places[word.numbers[0]].state == "bare":
            places[word.numbers[0]] = Place("bare", alone=True)

    def starts(self, word: _Word) -> None:
        places = self.reader.places
        before: int | None = None
        for number in word.leading():
            places[number] = replace(places[number], starts=True, after=before)
            before = number


def _takes_code_as_input(program: str, arguments: list[_Word]) -> bool:
    """Whether the program is an interpreter that was told of no other place for its code."""
    if program in _REMOTE_SHELLS:
        return _behind_ssh_options(arguments) + 1 >= len(arguments)
    known = _INTERPRETERS.get(_VERSION.sub("", program))
    if known is None or program in ("script", "flock"):
        return False
    if known.options_between and any(word.literal == "-s" for word in arguments):
        return True
    code, read = _code_words(arguments, 0, known)
    if code:
        return False
    return (
        read >= len(arguments) or arguments[read].literal in ("-", "/dev/stdin") or arguments[read].may_vanish
    )


def _behind_ssh_options(words: list[_Word]) -> int:
    """Where the host stands."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if _takes_next(words[at].text, _SSH_VALUED, frozenset()) else 1
    return at


def _takes_next(option: str, valued: str, long_valued: frozenset[str]) -> bool:
    """Whether the option's value is the next word."""
    if option.startswith("--"):
        return option[2:] in long_valued
    for position, letter in enumerate(option[1:], start=2):
        if letter in valued:
            return position == len(option)
    return False


def _is_plain_test(name: str, words: list[_Word]) -> bool:
    """Whether the author's own words fix what the test means, whatever the values are."""
    if name == "[":
        if not words or words[-1].literal != "]":
            return False
        words = words[:-1]
    if len(words) > 1 and words[0].literal == "!":
        words = words[1:]
    match words:
        case [_]:
            return True
        case [operator, _]:
            return operator.literal in _UNARY
        case [_, operator, _]:
            return operator.literal in _BINARY
    return False


def _code_words(words: list[_Word], at: int, interpreter: _Interpreter) -> tuple[list[int], int]:
    """Which words an interpreter, standing before `at`, reads as code; and the first it does not read."""
    code: list[int] = []
    pending = False
    while at < len(words):
        text = words[at].text
        is_option = text.startswith(("-", "+")) and len(text) > 1
        if pending and not (is_option and interpreter.options_between):
            code.append(at)
            pending = words[at].may_vanish
            if not pending and not interpreter.several:
                break
        elif not is_option:
            break
        else:
            glued, opened = _code_option(text, interpreter)
            if glued:
                code.append(at)
            pending = pending or opened
            at += interpreter.options_between and text[1:] in ("o", "O")  # `-o pipefail`
        at += 1
    return code, at


def _code_option(option: str, interpreter: _Interpreter) -> tuple[bool, bool]:
    """Whether the option holds code itself, and whether it says that the next word is code."""
    if option.startswith("--"):
        name, glued, _ = option[2:].partition("=")
        known = name in interpreter.long
        return known and bool(glued), known and not glued
    cluster = len(option) - len(option[1:].lstrip(string.ascii_letters))
    at = min((at for letter in interpreter.letters if (at := option.find(letter, 1, cluster)) > 0), default=0)
    if interpreter.options_between:
        return False, at > 0
    return 0 < at < len(option) - 1, at == len(option) - 1
