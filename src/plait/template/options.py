"""Decide which words of a command its program reads as options.

A value is one argument, and a program may read an argument that begins with `-` as an option. It
does not where an earlier option takes the word as its value, after `--`, or where the program has
ended its options. The tables know this for common programs. For every other program, each word
before `--` can be an option, unless it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from plait.core.hints import Final, Literal
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field

_NUMBER: Final = lazy_pattern(r"-(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_ASSIGNMENT: Final = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*=")
_VERSION: Final = lazy_pattern(r"[0-9][0-9.]*$")


@dataclass(frozen=True, slots=True)
class Argument:
    """The known part of a word of a command."""

    text: str
    known: bool = True
    """The word has no unknown rest."""
    may_vanish: bool = False
    """It may become no word or several words."""


def option_words(words: Sequence[Argument], *, in_shell: bool = True) -> dict[int, Command]:
    """The words that are read as options, by position, each with its program; the program comes
    first.

    `in_shell`: a shell reads the words, so its builtins count.
    """
    reader = _Reader(words, in_shell=in_shell)
    reader.command(0, len(words))
    return reader.found


def takes_next_word(words: Sequence[str]) -> bool:
    """Is the next word the value of an option, as far as the program is known?"""
    probes = [Argument(_NO_OPTION)] * _MOST_VALUES
    found = option_words([*map(Argument, words), *probes], in_shell=False)
    places = range(len(words), len(words) + _MOST_VALUES)
    # After `--`, and where a program reads no more options, none of the probes is an option.
    return places[0] not in found and any(place in found for place in places)


_NO_OPTION: Final = "-x"
_MOST_VALUES: Final = 3
"""One more word than an option takes at most: `jq --arg name value`."""


def is_number(text: str) -> bool:
    """Is a text that begins with `-` a number, which is not an option of an unknown program?"""
    return _NUMBER.fullmatch(text) is not None


# ── commands that run another command ───────────────────────────────────────


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


@dataclass(frozen=True, slots=True)
class Prefix:
    """A command that runs the command after it."""

    valued: str = ""
    """Option letters that take the next word."""
    long_valued: frozenset[str] = frozenset()
    operands: int = 0
    """The number of operands of its own before the command."""
    assignments: bool = False
    looks_up: str = ""
    """Option letters with which it only searches for the command."""
    code: str = ""
    """Option letters whose word is split into a command."""
    long_code: frozenset[str] = frozenset()


PREFIXES: Final[dict[str, Prefix]] = {
    "sudo": Prefix(
        "CDghpRrTtUu",
        word_set("user group host prompt chdir chroot role type"),
        assignments=True,
    ),
    "doas": Prefix("Cu"),
    "env": Prefix(
        "uC",
        word_set("unset chdir"),
        assignments=True,
        code="S",
        long_code=word_set("split-string"),
    ),
    "nohup": Prefix(),
    "time": Prefix("fo", word_set("format output")),
    "exec": Prefix("a"),
    "command": Prefix(looks_up="vV"),
    "builtin": Prefix(),
    "xargs": Prefix(
        "adEILnPsR",
        word_set("arg-file delimiter max-lines max-args max-procs max-chars"),
    ),
    "nice": Prefix("n", word_set("adjustment")),
    "ionice": Prefix("cnpPu", word_set("class classdata")),
    "timeout": Prefix("ks", word_set("kill-after signal"), operands=1),
    "stdbuf": Prefix("ioe", word_set("input output error")),
    "setsid": Prefix(),
    "chroot": Prefix(operands=1),
    "taskset": Prefix(operands=1),
    "busybox": Prefix(),
    "strace": Prefix("abeEIoOpPsSuX"),
    "flock": Prefix("Ew", operands=1),
    "chrt": Prefix("DPT", operands=1),
    "unshare": Prefix("RSGw"),
    "fakeroot": Prefix("bils"),
}


def takes_next(option: str, valued: str, long_valued: frozenset[str], optional: str = "") -> bool:
    """Is the next word the value of the option?"""
    if option.startswith("--"):
        return option[2:] in long_valued
    for position, letter in enumerate(option[1:], start=2):
        if letter in optional:
            return False  # the rest of the word is the value, so the next word is not
        if letter in valued:
            return position == len(option)
    return False


# ── programs ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Command:
    """How a program reads its words."""

    valued: str = ""
    """Option letters that take the next word, unless something is glued to them."""
    long_valued: frozenset[str] = frozenset()
    optional: str = ""
    """Option letters whose value can only be glued to them."""
    several: Mapping[str, int] = field(default_factory=dict)
    """Whole options that take several words, each with the number of words."""
    permutes: bool = True
    """The program also reads options after operands."""
    behind: Literal["data", "program"] = "data"
    """What the rest after the first operand is, if options are not read there: data, or the
    words of another program.
    """
    dashes: bool = True
    """`--` ends the options."""
    digits: bool = False
    """A number is an option: `head -5`."""
    plus: bool = False
    """A word that begins with `+` is an option: `vim +cmd`."""
    only: re.Pattern[str] | None = None
    """If set, only words that match are options."""
    first: bool = False
    """The first word holds options, also without a `-`: `tar xf`."""
    coded: str = ""
    """Option letters with which the first operand is code, and all words after it are data."""
    ends: str = ""
    """Option letters whose value ends the options; all words after it are data."""
    runs: str = ""
    """Option letters whose value is a program; all words after it belong to that program."""
    executes: frozenset[str] = frozenset()
    """Options that a command follows, up to `;` or `+`."""
    subcommands: Mapping[str, Command] | None = None
    """The programs of the subcommands, by first operand; each defines how the rest is read."""
    instead: str = ""
    """The advice, if it is not to write `--`."""

    @property
    def fix(self) -> str:
        """How to write a value so that it is not read as an option."""
        if self.instead:
            return self.instead
        if self.dashes:
            return "write -- before it, or ./ or --name= in front of it"
        return "write ./ in front of it (this program does not end its options at --)"


_UNKNOWN: Final = Command()
SSH_VALUED: Final = "BbcDEeFIiJLlmOopQRSWw"
_NOTHING: Final = Command(only=lazy_pattern(r"(?!)"), permutes=False)

_SHELL: Final = Command(
    "oO", word_set("rcfile init-file"), permutes=False, behind="program", plus=True, coded="c"
)
_GREP: Final = Command(
    "ABCDdefm",
    word_set(
        "after-context before-context context directories devices regexp file max-count include "
        "exclude"
        " exclude-from exclude-dir label binary-files group-separator"
    ),
    digits=True,
    instead="write -e before it",
)
_ECHO: Final = Command(
    only=lazy_pattern(r"-[neE]+"),
    permutes=False,
    dashes=False,
    instead="print it with printf '%s\\n'",
)
_ECHO_FILE: Final = Command(
    only=lazy_pattern(r"-[neE]+|--help|--version"),
    permutes=False,
    dashes=False,
    instead=_ECHO.instead,
)
_EDITOR: Final = Command(plus=True, digits=True)
_COMPRESSOR: Final = Command("S", word_set("suffix"), digits=True)
_LOG: Final = Command(
    "nSGL",
    word_set("author committer grep since until after before max-count skip diff-filter"),
    digits=True,
)
_MESSAGE: Final = word_set("message file cleanup")
_ANY_GIT: Final = Command(digits=True)

_GIT: Final = Command(
    "Cc",
    word_set("git-dir work-tree namespace super-prefix config-env"),
    permutes=False,
    subcommands={
        "add": Command(long_valued=word_set("chmod pathspec-from-file")),
        "blame": Command("LS", word_set("contents")),
        "branch": Command("u", word_set("set-upstream-to sort points-at format")),
        "checkout": Command("bB", word_set("orphan conflict pathspec-from-file"), optional="t"),
        "clone": Command(
            "bcoju",
            word_set("branch config origin depth reference template upload-pack shallow-since jobs"),
            digits=True,
        ),
        "commit": Command(
            "mFCct",
            _MESSAGE
            | word_set("author date template reuse-message reedit-message fixup squash trailer")
            | word_set("pathspec-from-file"),
            optional="Su",
        ),
        "config": Command("f", word_set("file blob type default")),
        "diff": Command("SGO", word_set("diff-filter"), optional="UMC", digits=True),
        "grep": Command(
            "efABCm",
            word_set("max-depth threads context after-context before-context max-count"),
            optional="O",
            digits=True,
            instead="write -e before it",
        ),
        "init": Command("b", word_set("template initial-branch"), optional=""),
        "log": _LOG,
        "ls-files": Command("xX", word_set("exclude exclude-from")),
        "merge": Command("mFsX", _MESSAGE | word_set("strategy strategy-option"), optional="S"),
        "notes": Command("mFCc", word_set("message file reuse-message reedit-message ref")),
        "pull": Command(
            "sX", word_set("strategy strategy-option"), optional="Srj", dashes=False, digits=True
        ),
        "push": Command("o", word_set("push-option receive-pack exec repo"), digits=True),
        "remote": Command("tm", word_set("mirror")),
        "show": _LOG,
        "stash": Command("m", word_set("message pathspec-from-file"), digits=True),
        "switch": Command("cC", word_set("create force-create orphan conflict"), optional="t"),
        "tag": Command("mFu", _MESSAGE | word_set("local-user sort format points-at"), optional="n"),
        "worktree": Command("bB", word_set("reason expire"), dashes=False),
    },
)  # fmt: skip

_FIND: Final = Command(
    valued="D",
    several={
        **dict.fromkeys(
            word_set(
                "-amin -anewer -atime -cmin -cnewer -context -ctime -fls -fprint -fprint0 -fstype "
                "-gid -group"
                " -ilname -iname -inum -ipath -iregex -iwholename -links -lname -maxdepth "
                "-mindepth -mmin"
                " -mtime -name -newer -path -perm -printf -regex -regextype -samefile -size -type "
                "-uid -used"
                " -user -wholename -xtype"
            ),
            1,
        ),
        "-fprintf": 2,
    },
    dashes=False,
    executes=word_set("-exec -execdir -ok -okdir"),
)


def _rows(*rows: tuple[str, Command]) -> dict[str, Command]:
    return {name: program for names, program in rows for name in names.split()}


PROGRAMS: Final[dict[str, Command]] = _rows(
    # the shell's own
    (": true false", _NOTHING),
    ("echo", _ECHO),
    ("printf", Command("v", permutes=False)),
    ("kill", Command("sn", digits=True)),
    # files
    (
        "cat tac rm rmdir wc tee dirname md5sum sha1sum sha256sum sha512sum cksum sync nohup",
        Command(),
    ),
    ("basename", Command("s", word_set("suffix"), permutes=False)),
    ("chmod", Command(long_valued=word_set("reference"))),
    ("chown chgrp", Command(long_valued=word_set("reference from"))),
    ("cp mv ln", Command("St", word_set("suffix target-directory"))),
    ("df", Command("Btx", word_set("block-size type exclude-type"))),
    (
        "du",
        Command(
            "BdtX", word_set("block-size max-depth threshold exclude exclude-from files0-from")
        ),
    ),
    ("find", _FIND),
    ("install", Command("gmoSt", word_set("group mode owner suffix target-directory"))),
    (
        "ls dir vdir",
        Command(
            "IwT",
            word_set("ignore hide width tabsize block-size quoting-style time-style"),
            digits=True,
        ),
    ),
    ("mkdir", Command("m", word_set("mode"))),
    ("mktemp", Command("p", word_set("suffix"))),
    ("readlink", Command()),
    ("realpath", Command(long_valued=word_set("relative-to relative-base"))),
    ("stat", Command("c", word_set("format printf"))),
    ("touch", Command("drt", word_set("date reference time"))),
    # text
    (
        "awk mawk gawk nawk",
        Command(
            "FvfeEilW",
            word_set("assign field-separator file source exec include load"),
            permutes=False,
        ),
    ),
    ("cmp", Command("in", word_set("ignore-initial bytes"))),
    ("comm", Command(long_valued=word_set("output-delimiter"), digits=True)),
    (
        "cut",
        Command("bcdf", word_set("bytes characters delimiter fields output-delimiter")),
    ),
    (
        "diff",
        Command(
            "CUFILxXSWD",
            word_set("label exclude exclude-from starting-file width ifdef"),
            digits=True,
        ),
    ),
    ("expand unexpand", Command("t", word_set("tabs"), digits=True)),
    ("expr", Command(permutes=False)),
    ("fmt", Command("pwg", word_set("prefix width goal"), digits=True)),
    ("fold", Command("w", word_set("width"), digits=True)),
    ("grep egrep fgrep", _GREP),
    ("head", Command("cn", word_set("bytes lines"), digits=True)),
    ("join", Command("aejotv12", digits=True)),
    (
        "jq",
        Command(
            "L",
            word_set("indent"),
            several={"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2, "--argfile": 2},
        ),
    ),
    (
        "nl",
        Command(
            "bdfhilnsvw", word_set("body-numbering section-delimiter number-separator number-width")
        ),
    ),
    ("paste", Command("d", word_set("delimiters"))),
    ("sed", Command("efl", word_set("expression file line-length"), optional="i")),
    ("seq", Command("fs", word_set("format separator"), permutes=False)),
    ("shuf", Command("ino", word_set("input-range head-count output random-source"))),
    (
        "sort",
        Command(
            "koStT",
            word_set(
                "key output buffer-size field-separator temporary-directory batch-size parallel"
                " compress-program files0-from sort random-source"
            ),
        ),
    ),
    (
        "split",
        Command(
            "abCln", word_set("suffix-length bytes line-bytes lines number filter"), digits=True
        ),
    ),
    (
        "tail",
        Command("cns", word_set("bytes lines pid sleep-interval max-unchanged-stats"), digits=True),
    ),
    ("tr", Command(permutes=False)),
    ("uniq", Command("fsw", word_set("skip-fields skip-chars check-chars"), digits=True)),
    ("base64", Command("w", word_set("wrap"))),
    # archives, network, others
    ("gzip gunzip zcat xz unxz", _COMPRESSOR),
    ("bzip2 bunzip2", Command(digits=True)),
    (
        "tar",
        Command(
            "fCTXbFgHKLNVI",
            word_set(
                "file directory files-from exclude exclude-from to-command use-compress-program "
                "transform"
                " xform strip-components owner group mode mtime"
            ),
            first=True,
            digits=True,
        ),
    ),
    (
        "curl",
        Command(
            "AbcCdDeEFHKmoPQrTtuUwxXyYz",
            word_set(
                "data data-raw data-binary data-urlencode json header user user-agent request "
                "output form"
                " form-string url cookie cookie-jar referer max-time connect-timeout proxy "
                "upload-file config"
                " cacert cert key write-out range retry dump-header oauth2-bearer"
            ),
            digits=True,
        ),
    ),
    (
        "wget",
        Command(
            "OoaPUTtwei",
            word_set(
                "output-document output-file append-output directory-prefix user-agent timeout "
                "tries wait"
                " header post-data post-file user password execute input-file"
            ),
            digits=True,
        ),
    ),
    ("date", Command("dfrs", word_set("date file reference set"), optional="I")),
    ("sleep", Command()),
    ("ssh slogin rsh autossh mosh", Command(SSH_VALUED, digits=True)),
    (
        "make",
        Command(
            "CfIoW", word_set("directory file makefile include-dir old-file what-if"), optional="j"
        ),
    ),
    ("vi vim view ex nvim less more", _EDITOR),
    ("git", _GIT),
    # interpreters
    ("sh bash dash ash zsh ksh mksh rbash", _SHELL),
    (
        "python pypy",
        Command("WXcm", permutes=False, behind="program", ends="c", runs="m"),
    ),
    ("perl", Command("eEI", permutes=False, behind="program", digits=True)),
    ("node", Command("erC", word_set("eval require import"), permutes=False, behind="program")),
)


def find_program(name: str) -> Command:
    """How a program of this name, with or without a version, reads its words."""
    return PROGRAMS.get(name) or PROGRAMS.get(_VERSION.sub("", name)) or _UNKNOWN


def _find_file(name: str) -> Command:
    """Like `find_program`, for a program that is not built into a shell."""
    return _ECHO_FILE if name == "echo" else find_program(name)


class _Reader:
    """Reads the words of a command as its programs read them."""

    def __init__(self, words: Sequence[Argument], *, in_shell: bool) -> None:
        self.words = words
        self.in_shell = in_shell
        self.found: dict[int, Command] = {}

    def command(self, at: int, end: int) -> None:
        while at < end:
            name = self.words[at].text.rpartition("/")[2] if self.words[at].known else ""
            prefix = PREFIXES.get(name)
            if prefix is None:
                is_own = self.in_shell and at == 0 and name == self.words[at].text
                self.program(find_program(name) if is_own else _find_file(name), at + 1, end)
                return
            at = self.prefix(prefix, at + 1, end)

    def prefix(self, prefix: Prefix, at: int, end: int) -> int:
        """Return the position of the command after the prefix."""
        operands, ended = prefix.operands, False
        while at < end:
            text = self.words[at].text
            if text == "--" and not ended:
                ended = True
            elif text.startswith("-") and not ended:
                self.found[at] = _UNKNOWN
                if self.words[at].known:  # otherwise a value is attached to it
                    at += takes_next(
                        text, prefix.valued + prefix.code, prefix.long_valued | prefix.long_code
                    )
            elif prefix.assignments and _ASSIGNMENT.match(text):
                pass
            elif operands:
                operands, ended = operands - 1, True
            else:
                return at
            at += 1
        return end

    def program(self, program: Command, at: int, end: int) -> None:
        if program.first and at < end and not self.words[at].text.startswith("-"):
            self.found[at] = program
            at += 1 + sum(letter in program.valued for letter in self.words[at].text)
        dashes, coded = program.dashes, False
        while at < end:
            word = self.words[at]
            if word.text == "--" and word.known and dashes:
                return
            is_option = _is_option(word, program)
            if is_option:
                self.found[at] = program
            if not is_option or word.text == "-":  # `-` is standard input, an operand
                vanishes = (
                    word.may_vanish and program.subcommands is None
                )  # the next word may be the first operand
                if not program.permutes and not vanishes:
                    self.behind(program, at, end, coded=coded)
                    return
                at += 1
                continue
            if word.text in program.executes:
                at = self.read_exec_command(at + 1, end)
                continue
            last = _last_letter(word.text)
            coded = coded or (
                not word.text.startswith("--") and any(c in word.text for c in program.coded)
            )
            taken = self.value_count(word.text, program)
            if taken and not word.known:  # the unknown rest is its value, unless it is empty
                taken, dashes = 0, False
            at += 1
            for _ in range(taken):
                if at < end and self.words[at].may_vanish:
                    dashes = False  # the next word may be its value
                    break
                at += 1
            if taken and last and last in program.ends:
                return
            if taken and last and last in program.runs:
                self.program(_UNKNOWN, at, end)
                return

    def behind(self, program: Command, at: int, end: int, *, coded: bool) -> None:
        """Read the first operand, and the words after it."""
        if program.subcommands is not None:
            word = self.words[at]
            self.program(
                program.subcommands.get(word.text if word.known else "", _ANY_GIT), at + 1, end
            )
        elif program.behind == "program" and not coded:
            self.program(_UNKNOWN, at + 1, end)

    def value_count(self, option: str, program: Command) -> int:
        """The number of words that are the option's value."""
        if option in program.several:
            return program.several[option]
        return takes_next(option, program.valued, program.long_valued, program.optional)

    def read_exec_command(self, at: int, end: int) -> int:
        stop = next((n for n in range(at, end) if self.words[n].text in (";", "+")), end)
        self.command(at, stop)
        return stop + 1


def _is_option(word: Argument, program: Command) -> bool:
    text = word.text
    if program.only is not None:
        return program.only.fullmatch(text) is not None
    if text.startswith("+"):
        return program.plus
    if not text.startswith("-"):
        return False
    if word.known and is_number(text):
        return program.digits
    return True


def _last_letter(option: str) -> str:
    return "" if option.startswith("--") else option[-1:]
