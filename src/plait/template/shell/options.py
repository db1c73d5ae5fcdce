"""Find values that a program would read as options.

A script has the words of each command; the values are known when it is bound. The words are put
together as the shell does it (a list as several words, an empty list as none), and read as the
program reads them (`template/options.py`). A value may also come from a variable, of the step's
environment or set by the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.template.options import Argument, option_words
from plait.template.shell.places import Command, CommandWord, Variable

OPTION_LIKE: Final = "a value that starts with '-' could be taken for an option here"

Given: TypeAlias = Sequence[tuple[str, tuple[CommandWord, ...]]]
"""Variables that a script sets, each with the words that its text may be."""
Variables: TypeAlias = Callable[[str], str | None]
"""Returns the text of an environment variable that holds a value from outside; otherwise None."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a slot of a script."""

    texts: Sequence[str]
    spreads: bool
    """Each text is a word of its own."""
    trusted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OptionLike:
    """A value that would be read as an option, and what to write instead."""

    start: int
    end: int
    fix: str


@dataclass(frozen=True, slots=True)
class _Bit:
    """A part of a word: its text, and where the value stands if it comes from outside."""

    text: str | None
    """None if it is unknown."""
    value: tuple[int, int] | None = None
    split_off: bool = False
    """A shell makes it a separate word, because its variable is not in quotes."""


def values_as_options(
    commands: Sequence[Command],
    given: Given,
    values: Mapping[int, Value],
    variables: Variables | None = None,
) -> list[OptionLike]:
    """Return those of the values, by slot number, that a program would read as options."""
    reading = _Reading(values, dict(given), variables)
    is_risky = any(not value.trusted and has_sign(value.texts, given) for value in values.values())
    if not is_risky and (
        variables is None or not any(map(variables, variable_names(commands, given)))
    ):
        return []
    return [found for command in commands for found in reading.options(command)]


def variable_names(commands: Sequence[Command], given: Given = ()) -> frozenset[str]:
    """Return the variables in the words of these commands, and in the words that the script
    assigns.
    """
    words = [word for command in (*commands, *(words for _, words in given)) for word in command]
    every = (part for word in words for part in word.parts)
    return frozenset(
        part.name for part in every if isinstance(part, Variable) and part.name is not None
    )


def has_sign(texts: Sequence[str], given: Given) -> bool:
    """Does a text begin with `-` or `+`? Usually none does, and no more checks are needed.

    If the script assigns texts to variables, each word of a text counts.
    """
    return any(map(_SIGN_OF_WORD.search if given else _SIGN.match, texts))


_SIGN: Final = lazy_pattern(r"[-+]")
_SIGN_OF_WORD: Final = lazy_pattern(r"(?:\A|[ \t\n])[-+]")
_BLANKS: Final = lazy_pattern(r"[ \t\n]+")
_MOST_BITS: Final = 64
"""A variable with more parts counts as unknown: variables can double each other."""


class _Reading:
    def __init__(
        self,
        values: Mapping[int, Value],
        given: Mapping[str, tuple[CommandWord, ...]],
        variables: Variables | None,
    ) -> None:
        self.values = values
        self.given = given
        self.variables = variables or _no_variable
        self._held: dict[str, list[_Bit]] = {}

    def options(self, command: Command) -> Iterator[OptionLike]:
        words = [_argument(bits, word) for word in command for bits in self.words(word)]
        found = option_words([argument for argument, _ in words])
        for at, program in found.items():
            match words[at][1]:
                case _Bit(value=(start, end), split_off=True):
                    yield OptionLike(
                        start, end, "put the variable in quotes, so that it stays one word"
                    )
                case _Bit(value=(start, end)):
                    yield OptionLike(
                        start, end, f"{program.fix}, or say that it may be one: ${{x:opt}}"
                    )

    def words(self, word: CommandWord) -> Iterator[list[_Bit]]:
        """Yield the words that a word becomes: several, one or none."""
        match word.parts:
            case (int() as number,) if number in self.values and self.values[number].spreads:
                value = self.values[number]
                for text in value.texts:
                    yield [_Bit(text, None if value.trusted else (value.start, value.end))]
                return
        made: list[_Bit] = []
        can_vanish = False
        for part in word.parts:
            for bit in self.bits(part):
                made.append(bit)
                if bit.text is None or not (isinstance(part, Variable) and part.splits):
                    continue
                can_vanish = True
                first, *others = _BLANKS.split(bit.text)
                made[-1] = _Bit(first, bit.value)
                for other in others:
                    if any(map(_may_hold_text, made)):
                        yield made
                    made = [_Bit(other, None if other == "-" else bit.value, split_off=True)]
        if not can_vanish or any(map(_may_hold_text, made)):
            yield made

    def bits(self, part: str | int | Variable) -> Sequence[_Bit]:
        match part:
            case str():
                return [_Bit(part)]
            case int():
                return [self.slot_bit(part)]
        place = (part.start, part.end)
        return [_Bit(bit.text, bit.value and place) for bit in self.variable_bits(part.name or "")]

    def variable_bits(self, name: str) -> list[_Bit]:
        """Return the parts of a variable's text, if a value from outside may begin a word
        in them.
        """
        if name not in self._held:
            self._held[name] = [_Bit(None)]  # in case the variable contains itself
            self._held[name] = self._find(name)
        return self._held[name]

    def _find(self, name: str) -> list[_Bit]:
        words = self.given.get(name, ())
        for word in words:
            for bits in self.words(word):
                if len(bits) <= _MOST_BITS and any(map(_is_value_with_sign, bits)):
                    return bits
        # A script that sets a variable from itself has checked it; another text may never be
        # assigned.
        if not name or any(_mentions(word, name) for word in words):
            return [_Bit(None)]
        text = self.variables(name)
        return [_Bit(text, _SOMEWHERE if text is not None else None)]

    def slot_bit(self, number: int) -> _Bit:
        value = self.values.get(number)
        if value is None:  # only a run knows the value
            return _Bit(None)
        place = None if value.trusted else (value.start, value.end)
        return _Bit("".join(value.texts[:1]), place)


_SOMEWHERE: Final = (0, 0)
"""The place of a value from the environment: its variable's place is used instead."""


def _argument(bits: Sequence[_Bit], word: CommandWord) -> tuple[Argument, _Bit | None]:
    """Return the known beginning of a word, and the part that begins it."""
    text, known = "", True
    begins: _Bit | None = None
    for bit in bits:
        if bit.text is None:
            known = False  # it may be empty, and the next part may begin the word
            if text:
                break
            continue
        if bit.text and not text:
            begins = bit
        text += bit.text
    return Argument(text, known, word.may_vanish and not known), begins


def _mentions(word: CommandWord, name: str) -> bool:
    return any(isinstance(part, Variable) and part.name == name for part in word.parts)


def _may_hold_text(bit: _Bit) -> bool:
    return bit.text is None or bit.text != ""


def _is_value_with_sign(bit: _Bit) -> bool:
    return (
        bit.value is not None
        and bit.text is not None
        and _SIGN_OF_WORD.search(bit.text) is not None
    )


def _no_variable(_: str) -> None:
    return None
