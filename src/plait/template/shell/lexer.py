"""Find where values are used in shell text, and whether they may be used there.

`analyse` reads a script once, from left to right, as a shell does. It answers for dash and for bash
(and bash called `sh`) at once: text that they read differently is refused as soon as it could
matter for a slot.

    places   the form of the answer, and all refusals
    words    one word: quotes, escapes, expansions
    rules    what single commands do with their words (`eval`, `read`, `[`, `sudo` …)
    lexer    commands, redirections and here-documents; the cache of answers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, wraps

from plait.core.errors import LimitError
from plait.core.hints import Final, Literal, TypeVar
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.template.shell.places import (
    MAX_DEPTH,
    REFUSALS,
    SLOT,
    Command,
    CommandWord,
    Dialect,
    LexerFindings,
    Piece,
    Refusal,
    ScriptAnalysis,
    SlotContext,
    State,
    UnreadableError,
    ValueSlot,
)
from plait.template.shell.rules import Rules
from plait.template.shell.words import (
    ASSIGNMENT,
    NAME,
    OPERATORS,
    PLAIN_IN_HEREDOC,
    SEPARATORS,
    Word,
    WordReader,
    check_one_argument,
    may_spread,
)

__all__ = [
    "MAX_CACHED",
    "MAX_DEPTH",
    "MAX_SHELL_TEXT",
    "REFUSALS",
    "Command",
    "Dialect",
    "Piece",
    "Refusal",
    "ScriptAnalysis",
    "SlotContext",
    "State",
    "ValueSlot",
    "analyse",
    "cached_by_script",
]

MAX_SHELL_TEXT: Final = 256 * 1024
"""The limit for one script in characters; a slot counts as one."""
MAX_CACHED: Final = 16 * 1024
"""The limit in characters for a script that is cached; each piece counts as `_PIECE` more."""
_PIECE: Final = 64

Answer = TypeVar("Answer")


def cached_by_script(
    answer: Callable[[Sequence[Piece], Dialect], Answer],
) -> Callable[[Sequence[Piece], Dialect], Answer]:
    """Cache a function of a script, for small scripts."""
    # The entries, and the size of each, are limited: all together use some megabytes.
    known = lru_cache(maxsize=512)(answer)

    @wraps(answer)
    def recalled(pieces: Sequence[Piece], dialect: Dialect) -> Answer:
        small = _size(pieces) + _PIECE * len(pieces) <= MAX_CACHED
        return known(tuple(pieces), dialect) if small else answer(pieces, dialect)

    return recalled


def _size(pieces: Sequence[Piece]) -> int:
    return sum([1 if isinstance(piece, ValueSlot) else len(piece) for piece in pieces])


@cached_by_script
def analyse(pieces: Sequence[Piece], dialect: Dialect) -> ScriptAnalysis:
    """Read a script; raise an error only for its length, never for its content."""
    if (size := _size(pieces)) > MAX_SHELL_TEXT:
        raise LimitError(
            f"shell text of {size:,} characters; the limit is {MAX_SHELL_TEXT:,}",
            fix="put the text into a file and run that: sh script.sh ${x}",
            code="shell-text-too-long",
        )
    found = LexerFindings(pieces)
    with suppress(UnreadableError):  # the refusal is recorded, and the rest is not read
        _Reader(found, dialect).read()
    return found.answer()


_KEYWORDS: Final = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!"}
    | {"case", "for", "select", "function", "[[", "time", "coproc"}
)
_ENDS_COMMAND: Final = frozenset("\n;|)")
_REDIRECTS: Final = frozenset("<>&")
_REDIRECTION: Final = lazy_pattern(r"&>>?|<<<|<<-?|<[&>]?|>[>&|]?")
_DESCRIPTOR: Final = lazy_pattern(r"[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}")
_BLANKS: Final = lazy_pattern(r"(?:[ \t]++|\\\n)+")


@dataclass(frozen=True, slots=True)
class _HereDocument:
    start: int
    delimiter: str
    strip_tabs: bool
    quoted: bool


@dataclass(slots=True)
class _HereDocuments:
    """The here-documents of one script; a script inside a word has its own."""

    waiting: list[_HereDocument] = field(default_factory=list)
    """Announced in this line; their text starts in the next line."""
    code: int = 0
    """How many of the waiting documents, from the first, an interpreter may read as a program."""
    read: bool = False
    followed: bool = False
    """Another command follows a here-document that was read."""


class _Reader(WordReader):
    """Reads commands, and passes the words of each to the rules."""

    def __init__(self, found: LexerFindings, dialect: Dialect) -> None:
        super().__init__(found, dialect)
        self.documents = _HereDocuments()
        self.outer_here_documents = 0
        self.rules = Rules(found, dialect)

    def read(self) -> None:
        self.require_no_nul()
        self.commands("end")
        self.require_closed_documents()
        self.rules.finish()

    def script(self, start: int, until: Literal["end", ")"]) -> None:
        outer, self.documents = self.documents, _HereDocuments()
        self.outer_here_documents += len(outer.waiting)
        self.commands(until)
        self.require_closed_documents()
        if self.documents.followed:
            self.refuse_slots("heredoc-in-substitution", self.numbers_between(start, self.at))
        self.outer_here_documents -= len(outer.waiting)
        self.documents = outer

    def assigns(self, name: str, numbers: Iterable[int]) -> None:
        self.rules.assigns(name, numbers)

    def require_no_nul(self) -> None:
        if self.text.count(SLOT) == len(self.found.slots):
            return
        known = set(self.found.offsets)
        for nul in re.finditer(SLOT, self.text):
            if nul.start() not in known:
                raise self.unreadable("nul-in-script", nul.start())

    def require_closed_documents(self) -> None:
        if self.documents.waiting:
            raise self.unreadable("unbalanced", self.documents.waiting[0].start)

    # ── between words ───────────────────────────────────────────────────────

    def skip_blanks(self) -> str:
        """Skip blanks, line continuations, and a comment up to the end of its line.

        Returns the next character, or nothing at the end.
        """
        if blanks := _BLANKS.match(self.text, self.at, self.end):
            self.at = blanks.end()
        if self.at >= self.end:
            return ""
        char = self.text[self.at]
        if char == "#":
            self.comment()
            return self.peek()
        return char

    def skip_lines(self) -> str:
        while (char := self.skip_blanks()) == "\n":
            self.newline()
        return char

    def comment(self) -> None:
        stop = self.text.find("\n", self.at, self.end)
        stop = self.end if stop < 0 else stop
        for number in self.numbers_between(self.at, stop):
            self.found.places[number] = SlotContext("comment")
        self.at = stop

    def newline(self) -> None:
        if self.outer_here_documents:
            raise self.unreadable("heredoc-unclear", self.at)
        self.at += 1
        documents = self.documents
        if not documents.waiting:
            return
        waiting, code = documents.waiting, documents.code
        documents.waiting, documents.code = [], 0
        for number, document in enumerate(waiting):
            self.here_document(document, code=number < code)
            documents.read = True

    # ── commands ────────────────────────────────────────────────────────────

    def commands(self, until: Literal["end", ")", "esac"]) -> None:
        """Read commands up to the token that ends them, which is not consumed."""
        start = self.at
        while True:
            char = self.skip_lines()
            if char == "" and until == "end":
                return
            if char == "":
                raise self.unreadable("unbalanced", max(0, start - 1))
            if char == until:
                return
            if until == "esac" and (self.at_item_end() or self.at_keyword("esac")):
                return
            self.one_command(char)

    def at_item_end(self) -> bool:
        return self.follows(";;") or self.follows(";&")

    def at_keyword(self, keyword: str) -> bool:
        following = self.peek(len(keyword))
        return self.follows(keyword) and (following == "" or following in SEPARATORS)

    def one_command(self, char: str) -> None:
        if self.documents.read and char != ";" and not self.at_closing_keyword():
            self.documents.followed = True
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
        self.go_deeper(start)
        self.operator(1)
        self.commands(")")
        self.at += 1
        self.depth -= 1

    def double_parens(self, start: int) -> None:
        """Read `(( … ))`, after its opening."""
        self.arithmetic_text(start)
        if self.dialect == "sh":  # some shells read it as two subshells
            self.refuse_slots("arithmetic", self.numbers_between(start, self.at))

    def simple_command(self) -> None:
        start = self.at
        words: list[Word] = []
        inputs: list[int] = []
        only_assignments = True
        while char := self.next_in_command():
            if char in _REDIRECTS and self.at_redirection():
                inputs.extend(self.redirection())
                continue
            if char == "(":
                self.function_parens(words)
                return
            word = self.word(subscript=only_assignments)
            only_assignments = only_assignments and ASSIGNMENT.match(word.naked) is not None
            if (
                self.peek() in _REDIRECTS
                and self.at_redirection()
                and _DESCRIPTOR.fullmatch(word.naked)
            ):
                for name in NAME.findall(word.naked):  # {name}>file
                    self.found.own.add(name)
                    self.found.give(name)
            elif not words and self.keyword(word):
                return
            else:
                words.append(word)
        if self.rules.judge(words, valued=bool(self.numbers_between(start, self.at))):
            self.refuse_slots("value-in-code-input", inputs)
            self.documents.code = len(self.documents.waiting)

    def next_in_command(self) -> str:
        """Return the next character of the command, or nothing at its end."""
        char = self.skip_blanks()
        if char in _ENDS_COMMAND or (char == "&" and not self.at_both_redirection()):
            return ""
        return char

    def at_both_redirection(self) -> bool:
        return self.dialect == "bash" and self.follows("&>")

    def at_redirection(self) -> bool:
        match self.peek():
            case "<" | ">":
                return self.peek(1) != "("
            case "&":
                return self.at_both_redirection()
        return False

    def keyword(self, word: Word) -> bool:
        """Read what follows a reserved word; false if the word is not reserved."""
        if word.naked not in _KEYWORDS:
            return False
        match word.naked:
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
                self.found.refuse_at("coproc", word.start)
        return True

    def time_options(self) -> None:
        """Skip the options of `time`.

        In bash it is a keyword, and a command with keywords may follow; elsewhere it is a
        program.
        """
        while self.skip_blanks() == "-":
            if self.word().literal in ("-f", "-o"):
                self.skip_blanks()
                self.word()

    def case(self, opening: Word) -> None:
        self.skip_blanks()
        self.word()
        self.skip_lines()
        if not self.at_keyword("in"):
            raise self.unreadable("unexpected", self.at)
        self.at += len("in")
        self.go_deeper(opening.start)
        while True:
            self.skip_lines()
            if self.at_keyword("esac"):
                break
            self.case_patterns(opening)
            self.commands("esac")
            self.case_item_end()
        self.at += len("esac")
        self.depth -= 1

    def case_patterns(self, opening: Word) -> None:
        if self.peek() == "(":
            self.operator(1)
        while True:
            if self.skip_blanks() == "":
                raise self.unreadable("unbalanced", opening.start)
            check_one_argument(self.word(), self.found)
            separator = self.skip_blanks()
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
        self.refuse_slots("value-as-name", name.all_numbers)
        numbers: list[int] = []
        each: list[CommandWord] = []
        self.skip_lines()
        if not self.at_keyword("in"):
            self.assigns(name.text, ())
            return
        self.at += len("in")
        while char := self.next_in_command():
            if char in "<>(" and self.peek(1) != "(":
                raise self.unreadable("unexpected", self.at)
            word = self.word()
            check_one_argument(word, self.found)
            may_spread(word, self.found)
            self.found.handed.append((name.text, word.start))
            numbers += word.numbers
            each.append(word.for_command(self.found))
        self.rules.assigns(name.text, numbers, each)

    def function(self) -> None:
        self.skip_blanks()
        name = self.word()
        self.refuse_slots("value-as-name", name.all_numbers)
        if self.skip_blanks() == "(":
            self.function_parens([name])

    def function_parens(self, words: list[Word]) -> None:
        """Read the `( )` of `name ( )`; a command starts after it."""
        self.operator(1)
        if self.skip_blanks() != ")" or len(words) != 1:
            raise self.unreadable("unexpected", self.at)
        self.at += 1
        self.refuse_slots("value-as-name", words[0].all_numbers)

    def condition(self, opening: Word) -> None:
        """Read `[[ … ]]`: its operators are not commands, and its words are not split."""
        words: list[Word] = []
        while True:
            char = self.skip_lines()
            if char == "":
                raise self.unreadable("unbalanced", opening.start)
            if char in OPERATORS and self.text[self.at : self.at + 2] not in ("<(", ">("):
                words.append(Word(self.at))
                self.at += 1
                continue
            word = self.word()
            if word.naked == "]]":
                break
            words.append(word)
        self.rules.judge_condition(words)

    # ── redirections and here-documents ─────────────────────────────────────

    def redirection(self) -> list[int]:
        """Read a redirection; return the slots that become text of the command's input."""
        start = self.at
        found = _REDIRECTION.match(self.text, start, self.end)
        operator = found.group() if found else ""
        self.operator(len(operator))
        self.skip_blanks()
        target = self.word()
        numbers = target.numbers
        if operator in ("<<", "<<-"):
            self.announce(start, target, strip_tabs=operator == "<<-")
        elif operator in ("<&", ">&"):
            self.refuse_slots("descriptor", target.all_numbers)
        elif operator == "<<<" and self.dialect == "sh":
            self.refuse_slots("bash-only", numbers)
        if operator in (">", ">|", "&>") and target.literal is not None:
            self.found.effect("writes", target.literal, target.start)
        check_one_argument(target, self.found)
        return target.all_numbers if operator == "<<<" else []

    def announce(self, start: int, delimiter: Word, *, strip_tabs: bool) -> None:
        if delimiter.slots or delimiter.nested:
            self.refuse_slots("heredoc-delimiter", delimiter.all_numbers)
            raise UnreadableError
        if delimiter.literal is None:
            raise self.unreadable("heredoc-unclear", start)
        self.documents.waiting.append(
            _HereDocument(start, delimiter.text, strip_tabs, delimiter.quoted)
        )

    def here_document(self, document: _HereDocument, *, code: bool) -> None:
        body = self.at
        stop = self.here_document_end(document)
        after = self.at
        if code:
            self.refuse_slots("value-in-code-input", self.numbers_between(body, stop))
        if document.quoted:
            self.refuse_slots("quoted-heredoc", self.numbers_between(body, stop))
        else:
            self.at = body
            outer_end, self.end = self.end, stop
            self.here_document_body(document)
            self.end = outer_end
        self.at = after

    def here_document_end(self, document: _HereDocument) -> int:
        """Return where the delimiter's line starts; `at` moves past that line."""
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
        word = Word(document.start)
        while char := self.behind_plain(word, PLAIN_IN_HEREDOC):
            match char:
                case "$":
                    self.dollar(word, "heredoc")
                case "\\":
                    self.escape(word, "$`\\\n")
                case "\0":
                    self.take_slot(word, "heredoc")
                case _:
                    self.backticks(word)
