"""Check what single commands do with their words, and which words may hold a value.

A shell passes a value on unchanged; its effect depends on the command. The tables describe the
commands that Plait knows: `sudo` runs another one, `eval` and `sh -c` read code, `read` takes
names, `[` reads words as operators, `ssh` passes its words to a remote shell. `Rules` finds the
program of a command, and the words that are ordinary arguments: those may be a list, or could be
read as an option.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from plait.core.hints import Final, Literal
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.template.options import PREFIXES, SSH_VALUED, Prefix, find_program, takes_next, word_set
from plait.template.shell.places import (
    MAX_DEPTH,
    SLOT,
    Command,
    CommandWord,
    Dialect,
    LexerFindings,
    SlotContext,
)
from plait.template.shell.words import (
    ASSIGNMENT,
    NAME,
    Word,
    check_one_argument,
    may_spread,
    set_in_arithmetic,
)

_CODE_COMMANDS: Final = word_set(
    "eval . source trap alias bind complete compgen compopt enable fc jobs watch parallel"
)
_NAME_COMMANDS: Final = word_set("read unset mapfile readarray getopts shopt")
_DECLARATIONS: Final = word_set("export readonly local declare typeset")
_REMOTE_SHELLS: Final = word_set("ssh rsh mosh autossh slogin")
_WITH_RULES: Final = (
    _CODE_COMMANDS
    | _NAME_COMMANDS
    | _DECLARATIONS
    | _REMOTE_SHELLS
    | word_set("let test [ set printf wait hash")
)
_SPECIAL_VARIABLES: Final = word_set(
    "PS0 PS1 PS2 PS3 PS4 PROMPT_COMMAND ENV BASH_ENV SHELLOPTS BASHOPTS"
    " RANDOM SRANDOM OPTIND SECONDS LINENO HISTCMD BASHPID FUNCNEST BASH_COMPAT"
    " BASH_ALIASES BASH_CMDS BASH_ARGV0 BASH_XTRACEFD EPOCHSECONDS EPOCHREALTIME"
)
_UNARY: Final = word_set("-b -c -d -e -f -g -G -h -k -L -n -N -O -p -r -s -S -t -u -w -x -z")
_BINARY: Final = word_set("= == != < > -eq -ne -lt -le -gt -ge -ef -nt -ot")
_COMPARING_NUMBERS: Final = word_set("-eq -ne -lt -le -gt -ge")
_WITH_NAME: Final = word_set("-v -R")
_SHELLS: Final = word_set("sh bash dash ash zsh ksh mksh fish rbash")
_ARRAYS_OF_BASH: Final = word_set(
    "BASH_ARGC BASH_ARGV BASH_LINENO BASH_REMATCH BASH_SOURCE BASH_VERSINFO COMP_WORDS COMPREPLY"
    " COPROC DIRSTACK FUNCNAME GROUPS MAPFILE PIPESTATUS"
)
_USED_AS_ARRAY: Final = lazy_pattern(r"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*+)(?:\[|\+?=\()")
_QUOTING: Final = lazy_pattern(r"""\\\n|[\\'"]""")
_INPUT_FILE: Final = lazy_pattern(r"-|(?:.*/)?(?:dev/+stdin|fd/.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Interpreter:
    """A program that reads a word as code."""

    letters: str
    """The option letters whose word is code."""
    long: frozenset[str] = frozenset()
    options_between: bool = False
    """Other options may stand between that option and the code, as for a shell's `-c`."""
    several: bool = False
    """The program accepts more code after the first."""
    operands: int = 0
    """The number of words that are not options and may stand before the option."""
    valued: str = ""
    """Other option letters that take the next word."""
    long_valued: frozenset[str] = frozenset()


_ANYWHERE: Final = sys.maxsize
_INTERPRETERS: Final = {
    **dict.fromkeys(
        _SHELLS,
        _Interpreter(
            "c", word_set("command"), options_between=True, long_valued=word_set("rcfile init-file")
        ),
    ),
    **dict.fromkeys(
        word_set("su runuser script"),
        _Interpreter("c", word_set("command session-command"), several=True, operands=_ANYWHERE),
    ),
    "flock": _Interpreter(
        "c",
        word_set("command"),
        operands=1,
        valued="wE",
        long_valued=word_set("wait timeout conflict-exit-code"),
    ),
    **dict.fromkeys(word_set("python pypy"), _Interpreter("c", word_set("command"), valued="WX")),
    **dict.fromkeys(word_set("lua Rscript osascript"), _Interpreter("e", several=True, valued="l")),
    "ruby": _Interpreter("e", several=True, valued="CEIr"),
    **dict.fromkeys(
        word_set("node bun"),
        _Interpreter(
            "ep",
            word_set("eval print"),
            several=True,
            valued="rC",
            long_valued=word_set("require import loader conditions"),
        ),
    ),
    "perl": _Interpreter("eE", several=True, valued="I"),
    "php": _Interpreter("rRBE", word_set("run"), several=True, valued="cd"),
}


@dataclass(frozen=True, slots=True)
class _Filter:
    """A program whose first operand is code, unless an option says where the code is."""

    code: str
    """The option letters whose word is code."""
    files: str
    """The option letters that name a file with code."""
    valued: str
    """Other option letters that take the next word."""


_FILTERS: Final = {
    **dict.fromkeys(word_set("awk gawk mawk nawk original-awk"), _Filter("e", "fE", "Fvil")),
    **dict.fromkeys(word_set("sed gsed"), _Filter("e", "f", "l")),
}
"""Used for command lines only. In shell text, authors quote the code of such programs, and the
documentation names commands that read their arguments again as an exception.
"""
_NEAR: Final = 4
"""`eval` counts as the subcommand of `deno` if it is one of the next four words."""
_PLAIN_ATTRIBUTES: Final = frozenset("rxglu-")
_ARRAY_ATTRIBUTES: Final = frozenset("aA")
_UNKNOWN_PROGRAM: Final = _Interpreter("c", options_between=True)  # "$SHELL" -c
_VERSION: Final = lazy_pattern(r"[0-9][0-9.]*$")
_ENDS_VERSION: Final = tuple("0123456789.")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # `string` loads slowly


class Rules:
    """Check the words of each command, and mark the words that may be several or start an
    option.
    """

    def __init__(self, found: LexerFindings, dialect: Dialect) -> None:
        self.found = found
        self.dialect = dialect
        self.refuse = found.refuse_slots
        self.arrays = set(_ARRAYS_OF_BASH)
        self.unknown_array = False
        """A variable becomes an array, and its name is unknown."""
        self.declared: list[tuple[str, list[int]]] = []

    def finish(self) -> None:
        if not self.declared:
            return
        # Every name that looks like an array anywhere, also in quotes or in arithmetic, counts as
        # one.
        self.arrays.update(_USED_AS_ARRAY.findall(_QUOTING.sub("", self.found.text)))
        for name, numbers in self.declared:
            if self.unknown_array or name in self.arrays:
                self.refuse("array-declaration", numbers)

    def judge(self, words: list[Word], *, valued: bool) -> bool:
        """Check a simple command: assignments, program, arguments. Return whether its input
        is code.

        `valued`: a word holds a value. Without one, most checks are skipped.
        """
        if valued:
            for word in words:
                check_one_argument(word, self.found)
        words = self.after_assignments(words)
        self.effects(words)
        start = self.program(words)
        if start is None:
            return False
        arguments = words[start + 1 :]
        name = words[start].base or ""
        if valued:
            self.interpreters(words)
            self.check_find_exec(name, arguments)
            if find_program(name).first and arguments:  # `tar xf`
                self.refuse("value-as-option", arguments[0].leading())
        if name not in _WITH_RULES or self.by_name(name, words[start].start, arguments):
            if valued:
                self.arguments(arguments)
            self.found.commands += _command(words, self.found)
        return _takes_code_as_input(name, arguments) or _xargs_makes_code(words, start)

    def effects(self, words: list[Word]) -> None:
        """Record the effects on a folder in which other steps may work at the same time."""
        name = words[0].base if words else None
        if name in ("cd", "pushd"):
            self.found.alone |= any(word.literal is None for word in words[1:])
        elif name == "flock":
            self.found.alone = True
        elif (
            name == "git"
            and (at := _git_command(words)) is not None
            and words[at].literal in _COMMITTING
        ):
            self.found.effect("commits", words[0].text, words[0].start)

    # ── the way to the program ──────────────────────────────────────────────

    def after_assignments(self, words: list[Word]) -> list[Word]:
        for position, word in enumerate(words):
            if not self.assignment(word):
                return words[position:]
        self.found.own.update(
            map(_variable_name, words)
        )  # no command follows that alone would get these variables
        return []

    def assignment(self, word: Word) -> bool:
        found = ASSIGNMENT.match(word.naked)
        if found is None:
            return False
        self.refuse("subscript", [number for at, number in word.slots if at < found.end()])
        if self.dialect == "sh" and found.group() != f"{found.group(1)}=":
            self.refuse("bash-only", word.all_numbers)  # elsewhere it is the name of a program
        plain = found.group() == f"{found.group(1)}="
        self.found.assigned.add(found.group(1))
        text = [word.for_variable(self.found, found.end())] if plain and not word.array else None
        self.found.give(found.group(1), text)
        self.found.handed.append((found.group(1), word.start))
        self.check_ordinary_name(found.group(1), word.all_numbers)
        return True

    def assigns(
        self, name: str, numbers: Iterable[int], words: Iterable[CommandWord] | None = None
    ) -> None:
        self.found.own.add(name)
        self.found.give(name, words)
        self.check_ordinary_name(name, numbers)

    def check_ordinary_name(self, name: str, numbers: Iterable[int]) -> None:
        if name in _SPECIAL_VARIABLES:
            self.refuse("special-variable", numbers)

    def program(self, words: list[Word]) -> int | None:
        """Return the position of the program, after all commands that only run another one."""
        at = vanished = 0
        refusal = "value-as-program"
        while at < len(words):
            word = words[at]
            if word.slots or word.nested:
                self.refuse(refusal, word.all_numbers)
                return None
            prefix = PREFIXES.get(word.base or "")
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

    def only_looks_up(self, words: list[Word], prefix: Prefix) -> bool:
        return (
            bool(words) and len(words[0].text) == 2 and words[0].text[1] in tuple(prefix.looks_up)
        )

    def behind_options(self, words: list[Word], at: int, prefix: Prefix) -> int:
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

    def option(self, words: list[Word], at: int, prefix: Prefix) -> int:
        """Return the number of words that an option takes, itself included."""
        word, following = words[at], words[at + 1 : at + 2]
        long_code = word.text.startswith("--") and _is_long_option(word.text, prefix.long_code)
        if long_code or any(letter in word.text[1:] for letter in prefix.code):
            for each in (word, *following):
                self.refuse("value-as-code", each.all_numbers)
        has_value = takes_next(word.text, prefix.valued + prefix.code, prefix.long_valued)
        if not has_value and not (long_code and "=" not in word.text):
            return 1
        for value in following:
            self.alone(value)
        return 2

    # ── programs with a meaning of their own ────────────────────────────────

    def by_name(self, name: str, start: int, arguments: list[Word]) -> bool:
        """Check the words of a program that has its own rules; false if they are not
        ordinary arguments.
        """
        everything = [number for word in arguments for number in word.all_numbers]
        if name in _CODE_COMMANDS:
            self.refuse("value-as-code", everything)
            if name == "alias":
                self.found.refuse_at("alias", start)
        elif name in _NAME_COMMANDS:
            self.names(_name_words(name, arguments))
            self.refuse("value-as-name", everything)
            if name in ("mapfile", "readarray") or _has_option(arguments, "a"):
                self.become_arrays(arguments)
        elif name in _DECLARATIONS:
            self.declaration(arguments)
        elif name == "let":
            for word in arguments:
                self.found.own.update(set_in_arithmetic(word.text))
            self.refuse("arithmetic", everything)
        elif name in ("test", "["):
            self.test(name, arguments)
        elif name in _REMOTE_SHELLS:
            self.remote(start, arguments)
        else:
            if name == "set":
                self.set_options(arguments)
            elif name == "wait" and _has_option(arguments, "p"):
                self.names(arguments)
                self.refuse("value-as-name", everything)
            elif name == "hash" and _has_option(arguments, "p"):
                self.refuse("value-as-program", everything)
            elif name == "printf":
                self.printf(arguments)
            return True
        return False

    def names(self, words: list[Word]) -> None:
        for word in words:
            if word.literal is not None and NAME.fullmatch(word.literal):
                self.found.own.add(word.literal)
                self.found.give(word.literal)
                if word.literal in _SPECIAL_VARIABLES:
                    self.found.refuse_at("special-variable", word.start)

    def declaration(self, words: list[Word]) -> None:
        letters: set[str] = set()
        for word in words:
            if word.text.startswith(("-", "+")):
                letters |= self.attributes(word)
                self.refuse("value-as-name", word.all_numbers)
            elif self.assignment(word):
                self.found.own.add(_variable_name(word))
                self.check_declaration(word, letters)
            else:
                self.names([word])
                self.refuse("value-as-name", word.all_numbers)

        if letters & _ARRAY_ATTRIBUTES:
            self.become_arrays(words)

    def check_declaration(self, word: Word, letters: set[str]) -> None:
        """Check the value in `name=…`. The elements of `name=( … )` are parsed only once."""
        numbers = word.all_numbers
        if not word.array:
            self.declared.append((_variable_name(word), numbers))
        if letters - (_PLAIN_ATTRIBUTES | _ARRAY_ATTRIBUTES if word.array else _PLAIN_ATTRIBUTES):
            self.refuse("array-declaration", numbers)

    def attributes(self, option: Word) -> set[str]:
        letters = set(option.text[1:])
        if letters & {"i", "n"} and option.text.startswith("-"):
            self.found.refuse_at("integer-variable", option.start)
        return letters

    def become_arrays(self, words: list[Word]) -> None:
        for word in words:
            name = _variable_name(word)
            self.arrays.add(name)
            self.unknown_array |= not name and word.literal is None

    def test(self, name: str, words: list[Word]) -> None:
        numbers = [number for word in words for number in word.numbers]
        if numbers and not _is_plain_test(name, words):
            self.refuse("value-as-operator", numbers)
        for word in words:
            self.alone(word)

    def remote(self, start: int, words: list[Word]) -> None:
        host = _behind_ssh_options(words)
        for at, word in enumerate(words[:host]):
            if word.text.startswith("-o") or (at and words[at - 1].text == "-o"):
                self.refuse("value-as-remote-code", word.all_numbers)
        for word in words[: host + 1]:
            self.alone(word)
        self.found.commands += _command([Word(start, "ssh"), *words], self.found)
        for word in words[host + 1 :]:
            self.refuse("value-as-remote-code", word.all_numbers)

    def set_options(self, words: list[Word]) -> None:
        for word in words:
            if word.literal in ("--", "-"):
                return
            self.refuse("value-as-option", word.numbers)

    def printf(self, words: list[Word]) -> None:
        if words and words[0].text.startswith("-v"):
            for word in words[:2]:
                self.names([word])
                self.refuse("value-as-name", word.all_numbers)

    def check_find_exec(self, program: str, words: list[Word]) -> None:
        if program != "find":
            return
        for at, word in enumerate(words, start=1):
            if word.literal in ("-exec", "-execdir", "-ok", "-okdir"):
                self.program(words[at : at + MAX_DEPTH])

    def interpreters(self, words: list[Word]) -> None:
        """Check the code of `sh -c`, `python -c`, `perl -e` …, wherever they stand among
        the words.
        """
        for position in _code_positions(words):
            self.refuse("value-as-code", words[position].all_numbers)

    def judge_condition(self, words: list[Word]) -> None:
        """Check the words of `[[ … ]]`; operators are empty words."""
        numbers = [number for word in words for number in word.numbers]
        if self.dialect == "sh":
            self.refuse("bash-only", numbers)
        for before, word, after in zip([None, *words], words, [*words[1:], None], strict=False):
            for operand in (before, after):
                if operand is None:
                    continue
                if word.literal in _WITH_NAME:
                    self.refuse("arithmetic", operand.all_numbers)
                elif word.literal in _COMPARING_NUMBERS:
                    self.number(operand)

    def number(self, word: Word) -> None:
        """Check a word that bash evaluates: a value must be the whole word, and an integer."""
        places = self.found.places
        if word.text == SLOT and places[word.numbers[0]].state in ("bare", "single", "double"):
            places[word.numbers[0]] = SlotContext(places[word.numbers[0]].state, integer=True)
        else:
            self.refuse("arithmetic", word.all_numbers)

    # ── ordinary arguments ──────────────────────────────────────────────────

    def arguments(self, words: list[Word]) -> None:
        for word in words:
            may_spread(word, self.found)

    def alone(self, word: Word) -> None:
        """Mark an argument in which a list must not become several words."""
        places = self.found.places
        if word.naked == SLOT and places[word.numbers[0]].state == "bare":
            places[word.numbers[0]] = SlotContext("bare", alone=True)


def _command(words: list[Word], found: LexerFindings) -> list[Command]:
    """Return the command's words if they can depend on a value, otherwise nothing."""
    if any(word.slots or word.variables for word in words):
        return [tuple(word.for_command(found) for word in words)]
    return []


def _interpreter(program: str) -> _Interpreter | None:
    """Return the interpreter of this name, with or without a version."""
    return _INTERPRETERS.get(
        _VERSION.sub("", program) if program[-1:] in _ENDS_VERSION else program
    )


def _takes_code_as_input(program: str, arguments: list[Word]) -> bool:
    """Is the program an interpreter that reads its code from its input?"""
    if program in _REMOTE_SHELLS:
        return _behind_ssh_options(arguments) + 1 >= len(arguments)
    if program in (".", "source"):
        return any(map(_is_input, arguments[:2]))
    known = _interpreter(program)
    if known is None or program in ("script", "flock"):
        return False
    if known.options_between and any(word.literal == "-s" for word in arguments):
        return True
    code, read = _code_words(arguments, 0, known)
    if code:
        return False
    return read >= len(arguments) or _is_input(arguments[read]) or arguments[read].may_vanish


def _is_input(file: Word) -> bool:
    """Does the word name a file that the command's own redirections opened?"""
    return file.process or _INPUT_FILE.fullmatch(file.text) is not None


def _xargs_makes_code(words: list[Word], start: int) -> bool:
    """Does an `xargs` before the program put lines of its input into code, or in place of the
    program?
    """
    xargs = next((at for at, word in enumerate(words[:start]) if word.base == "xargs"), None)
    if xargs is None:
        return False
    marks = _xargs_marks(words[xargs + 1 : start])
    read_as_code = [start, *(start + position for position in _code_positions(words[start:]))]
    return any(mark in words[position].text for mark in marks for position in read_as_code)


def _xargs_marks(options: list[Word]) -> Iterator[str]:
    for option, following in zip_longest(options, options[1:]):
        text = option.text
        if text == "-I":
            yield following.text if following else "{}"
        elif text.startswith(("-I", "-i")):
            yield text[2:] or "{}"
        elif text.startswith("--r"):
            yield text.partition("=")[2] or "{}"


def _variable_name(word: Word) -> str:
    """Return the variable that a word of a declaration names; empty if its text does not show
    it.
    """
    name = NAME.match(word.text)
    return name.group() if name and word.text[name.end() :][:1] in ("", "=", "+", "[") else ""


_COMMITTING: Final = word_set("commit merge cherry-pick revert rebase am pull")


def _git_command(words: list[Word]) -> int | None:
    """Return the position of git's subcommand; None if it is unknown, or if a value names the
    folder in which git works.
    """
    at = 1
    while at < len(words):
        option = words[at].literal
        if option is None:
            return None
        if not option.startswith("-"):
            return at
        takes_next = option in ("-C", "-c", "--git-dir", "--work-tree", "--namespace")
        if takes_next and (at + 1 >= len(words) or words[at + 1].literal is None):
            return None
        at += 2 if takes_next else 1
    return None


def _name_words(command: str, arguments: list[Word]) -> list[Word]:
    """Return the words that can name the variables that this command sets."""
    if command == "shopt":
        return []  # its words are options of the shell
    return arguments[1:] if command == "getopts" else arguments


def _has_option(words: list[Word], letter: str) -> bool:
    return any(word.text.startswith("-") and letter in word.text for word in words)


def _code_positions(words: list[Word]) -> Iterator[int]:
    """Yield the positions of words that an interpreter reads as code, wherever it stands."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        known = _interpreter(word.base or "")
        if word.literal is None:
            known = _UNKNOWN_PROGRAM
        if word.base == "deno" and any(each.literal == "eval" for each in words[at : at + _NEAR]):
            yield from range(at, len(words))
            return
        if known is None:
            continue
        code, read = _code_words(words, at, known)
        yield from code
        if not code and read < len(words) and words[read].process and word.literal is not None:
            yield read
        at = read if known.several or not code else code[-1]


def _behind_ssh_options(words: list[Word]) -> int:
    """Return the position of the host."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if takes_next(words[at].text, SSH_VALUED, frozenset()) else 1
    return at


def _is_long_option(option: str, names: frozenset[str]) -> bool:
    """Is the option one of these names, also as `--name=…` or shortened?"""
    name = option[2:].partition("=")[0]
    return bool(name) and any(known.startswith(name) for known in names)


def _is_plain_test(name: str, words: list[Word]) -> bool:
    """Do the author's own words decide what the test means, whatever the values are?"""
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


def _code_words(words: list[Word], at: int, interpreter: _Interpreter) -> tuple[list[int], int]:
    """Find the words that an interpreter before `at` reads as code.

    Returns their positions, and that of the first word that the interpreter does not read.
    """
    code: list[int] = []
    pending = False
    operands = interpreter.operands
    while at < len(words):
        text = words[at].text
        is_option = text.startswith(("-", "+")) and len(text) > 1
        if pending and not (is_option and interpreter.options_between):
            code.append(at)
            pending = words[at].may_vanish
            if not pending and not interpreter.several:
                break
        elif not is_option and operands <= 0:
            break
        elif not is_option:
            operands -= 1
        else:
            glued, opened = _code_option(text, interpreter)
            if glued:
                code.append(at)
            pending = pending or opened
            if interpreter.options_between and not text.startswith("--"):
                at += text.count("o") + text.count("O")  # `-euo pipefail`
            at += takes_next(text, interpreter.valued, interpreter.long_valued)
        at += 1
    return code, at


def _code_option(option: str, interpreter: _Interpreter) -> tuple[bool, bool]:
    """Return whether the option itself holds code, and whether the next word is code."""
    if option.startswith("--"):
        known = _is_long_option(option, interpreter.long)
        return known and "=" in option, known and "=" not in option
    cluster = len(option) - len(option[1:].lstrip(_LETTERS))
    at = min(
        (at for letter in interpreter.letters if (at := option.find(letter, 1, cluster)) > 0),
        default=0,
    )
    if interpreter.options_between:
        return False, at > 0
    return 0 < at < len(option) - 1, at == len(option) - 1


# ── a command line without a shell ──────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Code:
    """A word of a command line that a program reads as code."""

    place: int
    program: int
    """The position of the word that names the program."""
    name: str
    dialect: Dialect | None
    """The dialect of the shell for which the whole word is a script; None if another program
    reads it.
    """


_DIALECTS: Final[dict[str, Dialect]] = {
    **dict.fromkeys(_SHELLS - {"fish"}, "sh"),
    **dict.fromkeys(("bash", "rbash", "zsh"), "bash"),
}


def runs_another(name: str) -> bool:
    """Does a program of this name run the command that follows it?"""
    return name in PREFIXES


def is_interpreter(name: str) -> bool:
    """Can a program of this name read a word as code?"""
    return bool(name) and (
        _interpreter(name) is not None
        or name in _FILTERS
        or name in _REMOTE_SHELLS
        or name in _RUN_BY_A_SHELL
        or name == "deno"
    )


_RUN_BY_A_SHELL: Final = word_set("watch parallel")
"""Programs that pass all their words to a shell."""


def code_in(argv: Sequence[str]) -> list[Code]:
    """Return the words of a command line that a program before them reads as code."""
    words = [_literal_word(text) for text in argv]
    found: list[Code] = []
    for at, word in enumerate(words):
        name = _VERSION.sub("", word.base or "") or (word.base or "")
        behind = words[at + 1 :]
        known = _interpreter(word.base or "")
        if known is not None:
            places = _code_words(behind, 0, known)[0]
        elif name in _FILTERS:
            places = _code_of_filter(argv[at + 1 :], _FILTERS[name])
        elif name == "deno":
            places = [place - 1 for place in _code_positions(words[at:])]
        elif name in _REMOTE_SHELLS:
            places = list(range(_behind_ssh_options(behind) + 1, len(behind)))
        elif name in _RUN_BY_A_SHELL:
            places = list(range(len(behind)))
        else:
            places = _split_by_env(argv[at + 1 :]) if name == "env" else []
        dialect = _DIALECTS.get(name)
        found += [Code(at + 1 + place, at, name, dialect) for place in places]
    return found


def reader_of_input(argv: Sequence[str]) -> str | None:
    """Return the program of a command line that reads its standard input as code, or None."""
    words = [_literal_word(text) for text in argv]
    for at, word in enumerate(words):
        name = _VERSION.sub("", word.base or "") or (word.base or "")
        if _takes_code_as_input(name, words[at + 1 :]):
            return name
        if at == 0 and not runs_another(name):
            break
    return None


def _literal_word(text: str) -> Word:
    word = Word(0)
    word.quoted = True
    word.add_quoted(text)
    return word.settle()


def _code_of_filter(words: Sequence[str], rules: _Filter) -> list[int]:
    code: list[int] = []
    has_code_option = False
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        role, takes_next = _option_of_filter(words[at], rules)
        has_code_option = has_code_option or role != "other"
        if role == "code":
            code += [at, at + 1] if takes_next else [at]
        at += 1 + takes_next
    if not has_code_option:
        code.append(at + (words[at : at + 1] == ["--"]))
    return [place for place in code if place < len(words)]


def _option_of_filter(option: str, rules: _Filter) -> tuple[Literal["code", "file", "other"], bool]:
    """Return what an option says about the code, and whether it takes the next word."""
    if option.startswith("--"):
        role = next(
            (role for role, names in _LONG_OF_FILTERS if _is_long_option(option, names)), None
        )
        return role or "other", role is not None and "=" not in option
    has_value = takes_next(option, rules.code + rules.files + rules.valued, frozenset())
    if any(letter in option for letter in rules.code):
        return "code", has_value
    return "file" if any(letter in option for letter in rules.files) else "other", has_value


_LONG_OF_FILTERS: Final[tuple[tuple[Literal["code", "file", "other"], frozenset[str]], ...]] = (
    ("code", word_set("expression source")),
    ("file", word_set("file exec")),
    ("other", word_set("assign field-separator line-length")),
)


def _split_by_env(words: Sequence[str]) -> list[int]:
    """Return the positions of `env -S` and of the next word, which `env` splits into several."""
    for at, text in enumerate(words):
        if not text.startswith("-"):
            return []
        if text.startswith("-S") or (
            text.startswith("--") and _is_long_option(text, word_set("split-string"))
        ):
            return [place for place in (at, at + 1) if place < len(words)]
    return []
