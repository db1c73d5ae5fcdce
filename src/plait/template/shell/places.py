"""The place of a value in shell text.

A script consists of pieces: shell text, and slots for values. For every slot the lexer returns the
state of the shell at that point (`SlotContext`), or the reason why no value may be there
(`Refusal`, one of `REFUSALS`). `LexerFindings` collects both while a script is read, and maps a
position in the joined text to the author's text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass

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
class ValueSlot:
    """The place of a value in shell text."""

    index: int
    """The index of the value."""
    start: int
    end: int
    """`start` and `end` of the placeholder in the author's text."""
    raw: bool = False
    """The author wants the value to become code."""
    option: bool = False
    """The author allows the value to start with `-`."""


Piece: TypeAlias = str | ValueSlot


@dataclass(frozen=True, slots=True)
class SlotContext:
    """The state of the shell when it reads a slot."""

    state: State
    spread: bool = False
    """A list becomes one word per element here."""
    alone: bool = False
    """It is a whole word of a command in which the number of words must not change."""
    integer: bool = False
    """The shell evaluates it as a number."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An expansion in a word; `name` is set if a variable decides how its text begins."""

    name: str | None
    start: int
    end: int
    splits: bool = False
    """It is not in quotes, so its text may become several words."""


@dataclass(frozen=True, slots=True)
class CommandWord:
    """A word of a command: text of the author, slot numbers and variables."""

    parts: tuple[str | int | Variable, ...]
    may_vanish: bool = False
    """It may become no word or several words."""


Command: TypeAlias = tuple[CommandWord, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no value may stand at `start..end` of the author's text."""

    code: str
    start: int
    end: int
    what: str
    fix: str


Effect: TypeAlias = Literal["writes", "commits"]


@dataclass(frozen=True, slots=True)
class ScriptAnalysis:
    """One place per slot, in order, or refusals."""

    places: tuple[SlotContext, ...]
    refusals: tuple[Refusal, ...]
    assigned: frozenset[str]
    """Variables that the script sets itself, or gives to one command."""
    own: frozenset[str] = frozenset()
    """Variables that the script sets for its later commands; such a name always belongs to the
    script.
    """
    handed: tuple[tuple[str, int], ...] = ()
    """Variables, and where in the joined text a word begins that gives the variable its value."""
    effects: tuple[tuple[Effect, str, int], ...] = ()
    """What the script does to its folder: files that it overwrites, commits; each with its
    place.

    Empty if the script changes to a folder that a value or variable names, or uses `flock`.
    """
    commands: tuple[Command, ...] = ()
    """The commands with values or variables in their words, whose program may read options."""
    given: tuple[tuple[str, tuple[CommandWord, ...]], ...] = ()
    """Variables that the script sets once, each with the words that its text may be."""


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
        "call the program directly, or hand the value over as an argument: sh -c 'echo \"$1\"' sh "
        "${x}, or python3 -c 'import sys; print(sys.argv[1])' ${x}",
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
        "a value may not be the options of this command",
        "write the options out before it: set -- ${x}, tar -xf ${x}",
    ),
    "arithmetic": (
        "the shell evaluates this text as arithmetic, and a value would be part of it",
        "use the value directly in $(( … )), or compare with [ ${a} -gt ${b} ]",
    ),
    "arithmetic-nested": (
        "the shell evaluates what stands in $(( … )), so a value may only be a number of its own "
        "there",
        "move the quotes or the command out of the arithmetic: n=$(…), and check that n is a "
        "number",
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
    "backslash-before-placeholder": (
        "a backslash right before a value would escape the reference to it",
        "take the backslash away, or double it to mean a backslash",
    ),
    "dollar-before-placeholder": (
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
        "shells disagree on quotes inside of ${…} that stands itself in double quotes or a "
        "here-document",
        "give the inner text to a variable first",
    ),
    "bash-only": (
        "this means something only in bash, and a value stands in it",
        "say that the shell is bash, or write it in the language of sh",
    ),
    "alias": ("an alias changes what later words mean", "write a function instead"),
    "coproc": (
        "a co-process hides which word is the program",
        "use a pipe or a background command",
    ),
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
        "put the here-document's command on a line of its own, and its delimiter on a line of its "
        "own",
    ),
    "heredoc-in-substitution": (
        "some versions of bash join the commands that follow a here-document inside of $( … ) into "
        "one",
        "let the here-document be the last thing in $( … ), or move it out",
    ),
    "unbalanced": (
        "this is opened and never closed",
        "close it, or quote it if it is meant as text",
    ),
    "unexpected": (
        "a shell could not go on from here",
        "correct the shell syntax, or quote the character",
    ),
    "too-deep": (f"nested more than {MAX_DEPTH} deep", "move the inner commands into functions"),
    "nul-in-script": ("the script contains a NUL character", "take it out; no shell reads it"),
}

SLOT: Final = "\0"
"""The character of a slot in the joined text."""


class UnreadableError(Exception):
    """Raised if the reader cannot continue; the refusal is already recorded."""


class LexerFindings:
    """What the reader has found so far in the joined text of the pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.text = "".join([SLOT if isinstance(piece, ValueSlot) else piece for piece in pieces])
        self.slots = [piece for piece in pieces if isinstance(piece, ValueSlot)]
        self.offsets = list(_slot_offsets(pieces))
        self.places = [SlotContext("bare")] * len(self.slots)
        self.assigned: set[str] = set()
        self.own: set[str] = set()
        self.handed: list[tuple[str, int]] = []
        self._effects: list[tuple[Effect, str, int]] = []
        self.alone = False
        """The script changes to a folder that a value or variable names, or uses `flock`."""
        self.commands: list[Command] = []
        self._given: dict[str, tuple[CommandWord, ...] | None] = {}
        self._refusals: dict[tuple[str, int, int], Refusal] = {}

    def answer(self) -> ScriptAnalysis:
        # Without a bound slot there is nothing to protect: the script comes from the author alone.
        refusals = self._refusals.values() if any(not slot.raw for slot in self.slots) else ()
        given = tuple((name, words) for name, words in self._given.items() if words)
        return ScriptAnalysis(
            tuple(self.places),
            tuple(refusals),
            frozenset(self.assigned | self.own),
            frozenset(self.own),
            tuple(self.handed),
            () if self.alone else tuple(self._effects),
            tuple(self.commands),
            given,
        )

    def effect(self, what: Effect, name: str, offset: int) -> None:
        self._effects.append((what, name, self.source_offset(offset)))

    def give(self, name: str, words: Iterable[CommandWord] | None = None) -> None:
        """Record that a variable gets the text of one of these words; None: unknown."""
        # A script that sets a variable twice may have checked it: `case $f in -*) f=./$f ;; esac`.
        self._given[name] = None if words is None or name in self._given else tuple(words)

    def refuse_slots(self, code: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            slot = self.slots[number]
            if not slot.raw:
                self._refuse(code, slot.start, slot.end)

    def refuse_at(self, code: str, offset: int) -> None:
        start = self.source_offset(offset)
        self._refuse(code, start, start + 1)

    def unreadable(self, code: str, offset: int) -> UnreadableError:
        self.refuse_at(code, offset)
        return UnreadableError()

    def number_at(self, offset: int) -> int:
        """Return the number of the slot at this offset, or of the next one."""
        return bisect_left(self.offsets, offset)

    def numbers_between(self, start: int, end: int) -> range:
        return range(bisect_left(self.offsets, start), bisect_left(self.offsets, end))

    def _refuse(self, code: str, start: int, end: int) -> None:
        what, fix = REFUSALS[code]
        self._refusals[code, start, end] = Refusal(code, start, end, what, fix)

    def source_offset(self, offset: int) -> int:
        """Convert an offset of the joined text to the author's text (exact except for escapes)."""
        number = self.number_at(offset)
        if number < len(self.offsets) and self.offsets[number] == offset:
            return self.slots[number].start
        if number == 0:
            return offset
        return self.slots[number - 1].end + offset - self.offsets[number - 1] - 1


def _slot_offsets(pieces: Sequence[Piece]) -> Iterator[int]:
    at = 0
    for piece in pieces:
        if isinstance(piece, ValueSlot):
            yield at
            at += 1
        else:
            at += len(piece)
