"""Random scripts with hostile values, in real shells: does every value arrive unchanged, and does none run?

A script is generated together with the arguments that its commands must see.
Every command is an external printf that prints its arguments with NUL between
them, so the comparison is exact.  Hostile values try to create a canary file.

    python tests/fuzz/shell_fuzz.py --runs 20000              right arguments, no canary
    python tests/fuzz/shell_fuzz.py --runs 5000 --wrong-lexer every state forced wrong: still no canary

One run is one value in one place of one script.  The first form then throws
pieces of shell syntax together at random (`soup`): whatever of that is accepted
must not run a value either.  Exit code 1 on any failure.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from plait.adapters.process.process import run_shell
from plait.core.errors import InputError, ProcessError
from plait.core.source import Source
from plait.core.values import Json
from plait.template.shell.binding import BoundScript, bind, plan
from plait.template.shell.lexer import Dialect, Piece, ScriptAnalysis, State, ValueSlot, analyse

DIALECTS: dict[str, Dialect] = {"dash": "sh", "bash": "bash"}
PRINTF = shutil.which("printf") or "/usr/bin/printf"
CALL = f"{PRINTF} '%s\\0' "
VALUES_PER_SCRIPT = 24


@dataclass
class Case:
    """A script, its values, and the expected output of its commands, split at NUL."""

    pieces: list[Piece] = field(default_factory=list)
    values: list[Json] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    template: str = ""


class Author:
    """Writes a random script for one shell."""

    def __init__(
        self, random: Random, dialect: Dialect, canary: str, *, hostile_numbers: bool = False
    ) -> None:
        self.random = random
        self.dialect = dialect
        self.canary = canary
        self.hostile_numbers = hostile_numbers
        self.case = Case()
        self.functions = 0
        self.substitutions = 0

    def script(self, values: int = VALUES_PER_SCRIPT) -> Case:
        self.text("exec 4>&1\n")
        while len(self.case.values) < values:
            self.block(depth=0)
        return self.case

    # ── structure ───────────────────────────────────────────────────────────

    def block(self, depth: int) -> None:
        for _ in range(self.random.randint(1, 2)):
            if depth < 3 and self.random.random() < 0.4:
                self.compound(depth + 1)
            else:
                self.statement()

    def compound(self, depth: int) -> None:
        self.functions += 1
        before, after = self.random.choice(
            [
                ("if true; then\n", "fi\n"),
                ("if false; then :; else\n", "fi\n"),
                ("for i in 1; do\n", "done\n"),
                ("while :; do\n", "break; done\n"),
                ("until false; do\n", "break; done\n"),
                ("{\n", "}\n"),
                ("(\n", ")\n"),
                ("! {\n", "}\n"),
                ("true && {\n", "} || :\n"),
                ("case x in a|b) exit 9;; (x)\n", ";; *) exit 9; esac\n"),
                ("case 'x y' in 'x y')\n", "esac\n"),
                (f"f{self.functions}() {{\n", f"}}\nf{self.functions}\n"),
                (': "$( {\n', '} >&4 )"\n'),
                (": $(\n{\n", "} >&4\n)\n"),
                (': "$( { case a in a)\n', ';; esac; } >&4 )"\n'),
                # 4 goes into the pipe as well: output that bypasses `cat` could arrive first.
                ('{ # it\'s a "comment" `\nexec 4>&1\n', "} | cat\n"),
            ]
        )
        self.substitutions += "$(" in before
        self.text(before)
        self.block(depth)
        self.text(after)
        self.substitutions -= "$(" in before

    def statement(self) -> None:
        kinds = [
            self.arguments, self.arguments, self.arguments, self.assignment, self.loop, self.choice, self.test,
            self.heredoc_in_substitution, self.comment, self.cut, self.spread, self.redirection, self.positional,
            self.quoted_default, self.prefixed,
        ]  # fmt: skip
        if not self.substitutions:  # commands may not follow a here-document there
            kinds += [self.heredoc, self.two_heredocs, self.large]
        if self.dialect == "bash":
            kinds += [
                self.here_string,
                self.process_substitution,
                self.array,
                self.condition,
                self.local,
            ]
        self.random.choice(kinds)()

    def arguments(self) -> None:
        self.text(CALL + "A")
        self.expect("A")
        for _ in range(self.random.randint(1, 3)):
            self.text(self.random.choice([" ", "  ", "\t", " \\\n "]))
            self.expect(self.word())
        self.end()

    def assignment(self) -> None:
        self.text("v=")
        value = self.word()
        self.text(self.random.choice(["\n", "; ", " && "]) + CALL + 'V "$v"')
        self.expect("V", value)
        self.end()

    def local(self) -> None:
        self.text("g() { local v=")
        value = self.word()
        self.text("; " + CALL + 'L "$v"; }; g')
        self.expect("L", value)
        self.end()

    def loop(self) -> None:
        self.text("for i in")
        count = self.random.randint(1, 3)
        for _ in range(count):
            self.text(" ")
            self.expect("F", self.word())
        self.text("; do " + CALL + 'F "$i"; done\n')

    def choice(self) -> None:
        value = self.hostile()
        self.text("case ")
        self.word_of(value)
        self.text(" in x")
        self.placeholder(value)
        self.text(" | y*) " + CALL + "B;; (")
        self.word_of(value)
        self.text(") " + CALL + "C;; *) " + CALL + "D;; esac\n")
        self.expect("B" if value.startswith("y") else "C")

    def test(self) -> None:
        first = self.hostile()
        second = self.random.choice([first, self.hostile()])
        operator = self.random.choice(["=", "!="])
        negated = self.random.random() < 0.3
        self.text("if [ " + ("! " if negated else ""))
        self.word_of(first)
        self.text(f" {operator} ")
        self.word_of(second)
        self.text(" ]; then " + CALL + "T; else " + CALL + "U; fi\n")
        truth = (first == second) == (operator == "=")
        self.expect("T" if truth != negated else "U")

    def condition(self) -> None:
        first = self.hostile()
        second = self.random.choice([first, self.hostile()])
        self.text("if [[ ")
        self.word_of(first)
        self.text(" == ")
        self.word_of(second)
        self.text(" && -n x ]]; then " + CALL + "T; else " + CALL + "U; fi\n")
        self.expect("T" if first == second else "U")

    def heredoc_body(self, *, tabs: bool = False) -> str:
        body = ""
        for _ in range(self.random.randint(1, 3)):
            if tabs:
                self.text("\t")
            body += (
                self.expands(
                    ["a ", "'", '"', "\\$", "\\\\", "\\`", "# ", ") ", "it's "], around="heredoc"
                )
                + "\n"
            )
            self.text("\n")
        return body

    def heredoc(self) -> None:
        tabs = self.random.random() < 0.3
        self.text("cat <<-END\n" if tabs else "cat <<END\n")
        body = self.heredoc_body(tabs=tabs)
        self.text(("\t" if tabs else "") + "END\n" + "printf '\\0'\n")
        self.expect(body)

    def two_heredocs(self) -> None:
        self.text("{ cat; cat <&3; printf '\\0'; } <<A 3<<'B'\n")
        body = self.heredoc_body()
        self.text("A\nfixed $(x) ` ' \"\nB\n")
        self.expect(body + "fixed $(x) ` ' \"\n")

    def heredoc_in_substitution(self) -> None:
        self.text(CALL + 'S "$(cat <<END\n')
        body = self.heredoc_body()
        self.text('END\n)"')
        self.expect("S", body.rstrip("\n"))
        self.end()

    def comment(self) -> None:
        self.text(CALL + "K # it's \" ` $( ")
        self.expect("K")
        self.placeholder(self.hostile())
        self.text("\n")

    def cut(self) -> None:
        """`%` and `#` cut off the value, not a pattern."""
        value = self.hostile()
        self.text("v=head")
        self.placeholder(value)
        self.text("\n" + CALL + "P ")
        before, after = self.random.choice([('"${v%', '}"'), ("${v%", "}"), ('"${v%%', '}"')])
        self.text(before)
        self.placeholder(value)
        self.text(after)
        self.expect("P", "head")
        self.end()

    def spread(self) -> None:
        items = [self.hostile() for _ in range(self.random.randint(0, 3))]
        self.text(CALL + "M ")
        self.placeholder(items)
        self.expect("M", *items)
        self.end()

    def array(self) -> None:
        items = [self.hostile() for _ in range(self.random.randint(0, 3))]
        self.text("a=( ")
        self.placeholder(items)
        self.text("\n # it's\n x")
        value = self.hostile()
        self.placeholder(value)
        self.text(" )\n" + CALL + 'Y "${a[@]}"')
        self.expect("Y", *items, "x" + value)
        self.end()

    def positional(self) -> None:
        self.text("set -- ")
        first = self.word()
        self.text("; " + CALL + 'N "$#" "$1"')
        self.expect("N", "1", first)
        self.end()

    def redirection(self) -> None:
        name = (
            "out "
            + str(self.random.randint(0, 9))
            + self.random.choice(["$(x)", ";", "'", '"', "`", "*"])
        )
        self.text("printf %s x > ")
        self.word_of(name)
        self.text("; cat < ")
        self.placeholder(name)
        self.text("; printf '\\0'\n")
        self.expect("x")

    def here_string(self) -> None:
        self.text(CALL + 'H "$(cat <<<')
        value = self.word()
        self.text(')"')
        self.expect("H", (value + "\n").rstrip("\n"))
        self.end()

    def process_substitution(self) -> None:
        self.text(CALL + 'Q "$(cat <(printf %s ')
        value = self.word()
        self.text('))"')
        self.expect("Q", value.rstrip("\n"))
        self.end()

    def quoted_default(self) -> None:
        value = self.hostile()
        self.text(': "${fresh:=')
        self.placeholder(value)
        self.text('}"; ' + CALL + 'E "$fresh"; unset fresh')
        self.expect("E", value)
        self.end()

    def prefixed(self) -> None:
        value = self.hostile()
        self.text(self.random.choice(["env A=", "A="]))
        self.placeholder(value)
        self.text(" env B='x y' nice -n 0 " + PRINTF + " '%s\\0' W ")
        self.expect("W", self.word())
        self.end()

    def large(self) -> None:
        if self.random.random() > 0.15:
            return self.arguments()
        value = self.hostile() + "x\n" * self.random.choice([50_000, 80_000]) + self.hostile()
        self.text("cat <<END\n")
        self.placeholder(value)
        self.text("\nEND\nprintf '\\0'\n")
        self.expect(value + "\n")
        return None

    # ── words ───────────────────────────────────────────────────────────────

    def word(self) -> str:
        """Write one word; return its expected value."""
        parts = [self.word_start()]
        for _ in range(self.random.randint(0, 2)):
            parts.append(self.word_part())
        return "".join(parts)

    def word_of(self, value: str) -> None:
        """Write one word that must become this value."""
        before, after = self.random.choice(
            [("", ""), ("'", "'"), ('"', '"'), ('"${unset:-', '}"'), ("''", "")]
        )
        self.text(before)
        self.placeholder(value)
        self.text(after)

    def word_start(self) -> str:
        if self.random.random() < 0.5:
            return self.literal(
                [
                    ("x", "x"),
                    ("--opt=", "--opt="),
                    ("./", "./"),
                    ("\\;", ";"),
                    ("''", ""),
                    ("a=", "a="),
                ]
            )
        return self.word_part()

    def word_part(self) -> str:
        kinds: list[Callable[[], str]] = [
            self.bare, self.bare, self.single, self.single, self.double, self.double, self.default, self.backticks,
            self.inner_command, self.number, self.glued_text,
        ]  # fmt: skip
        if self.dialect == "bash":
            kinds += [self.dollar_single, self.dollar_double]
        return self.random.choice(kinds)()

    def glued_text(self) -> str:
        return self.literal(
            [("b#c", "b#c"), ("\\ ", " "), ("\\$", "$"), ("%", "%"), ("k\\\n", "k"), ("é", "é")]
        )

    def bare(self) -> str:
        return self.placeholder(self.hostile())

    def single(self) -> str:
        self.text("'")
        made = ""
        for _ in range(self.random.randint(1, 3)):
            made += self.literal(
                _same(
                    "a b", ";", "$(x)", "`", "\\", '"', "#", "&& ", ">f", "\n", "${y}", "${", "))"
                )
            )
            made += self.placeholder(self.hostile())
        self.text("'")
        return made

    def double(self) -> str:
        self.text('"')
        made = self.expands(
            ["a b", ";", "'", "\\$", "\\\\", '\\"', "\\`", "# ", ") ", "\n", "\\\n", "it's", "$ "],
            around="double",
        )
        self.text('"')
        return made

    def dollar_double(self) -> str:
        self.text('$"')
        made = self.placeholder(self.hostile())
        self.text('b"')
        return made + "b"

    def dollar_single(self) -> str:
        self.text("$'")
        made = ""
        for _ in range(self.random.randint(1, 2)):
            made += self.literal(
                [
                    ("a\\n", "a\n"),
                    ("\\'", "'"),
                    ("\\\\", "\\"),
                    ('"', '"'),
                    ("\\x41", "A"),
                    ("$(x)", "$(x)"),
                ]
            )
            made += self.placeholder(self.hostile())
        self.text("'")
        return made

    def default(self) -> str:
        before, after = self.random.choice(
            [("${unset:-", "}"), ("${unset-", "}"), ("${unset:-'", "'}"), ('${unset:-"', '"}')]
        )
        self.text(before)
        made = self.placeholder(self.hostile())
        self.text(after)
        return made

    def expands(self, literals: list[str], *, around: str) -> str:
        """Text and placeholders where expansions are live: in double quotes, in a here-document."""
        escapes = {"\\$": "$", "\\\\": "\\", '\\"': '"', "\\`": "`", "\\\n": ""}
        made = ""
        for _ in range(self.random.randint(1, 3)):
            made += self.literal([(text, escapes.get(text, text)) for text in literals])
            made += self.random.choice(
                [
                    self.plain_placeholder,
                    self.plain_placeholder,
                    self.braces,
                    self.command,
                    self.number,
                ]
            )()
        if around == "heredoc":
            # A line equal to the delimiter would end the here-document.
            made += self.literal(_same(" .", ". "))
        return made

    def plain_placeholder(self) -> str:
        return self.placeholder(self.hostile())

    def braces(self) -> str:
        self.text("${unset:-")
        made = self.literal(_same("a ", "", "( ")) + self.placeholder(self.hostile())
        self.text("}")
        return made

    def command(self) -> str:
        """`$( … )` in quotes: trailing newlines go."""
        self.text("$(printf %s ")
        made = self.word()
        self.text(")")
        return made.rstrip("\n")

    def inner_command(self) -> str:
        self.text('"')
        made = self.command()
        self.text('"')
        return made

    def backticks(self) -> str:
        self.text('"`printf %s ')
        made = (
            self.placeholder(self.hostile())
            if self.random.random() < 0.5
            else self.quoted_placeholder()
        )
        self.text('`"')
        return made.rstrip("\n")

    def quoted_placeholder(self) -> str:
        self.text("'a ")
        made = "a " + self.placeholder(self.hostile())
        self.text(" b'")
        return made + " b"

    def number(self) -> str:
        number = self.random.choice([0, 7, -3, 2**40, self.random.randint(-999, 999)])
        self.text("$(( 2 * ")
        self.placeholder(
            self.hostile() if self.hostile_numbers else self.random.choice([number, str(number)])
        )
        self.text(" + (1) ))")
        return str(2 * number + 1)

    # ── pieces ──────────────────────────────────────────────────────────────

    def literal(self, choices: list[tuple[str, str]]) -> str:
        text, means = self.random.choice(choices)
        self.text(text)
        return means

    def text(self, text: str) -> None:
        self.case.pieces.append(text)
        self.case.template += text

    def placeholder(self, value: Json) -> str:
        index = len(self.case.values)
        start = len(self.case.template)
        self.case.template += f"${{v{index}}}"
        self.case.pieces.append(ValueSlot(index, start, len(self.case.template)))
        self.case.values.append(value)
        return value if isinstance(value, str) else ""

    def end(self) -> None:
        self.text(self.random.choice(["\n", "\n", ";\n", " # it's $( \" `\n", " || exit 9\n"]))

    def expect(self, *arguments: str) -> None:
        self.case.expected.extend(arguments)

    # ── values ──────────────────────────────────────────────────────────────

    def hostile(self) -> str:
        run = f"touch {self.canary}"
        payloads = [
            f"$({run})", f"`{run}`", f";{run};", f"\n{run}\n", f"'; {run}; '", f'"; {run}; "', f"'\"$({run})\"'",
            f"}}\"; {run}; \"", f"}}; {run};", f") ; {run} #", f"\nEND\n{run}\n", f"\n\tEND\n{run}", f"|{run}", f"&{run}&",
            f"a[$({run})]", f"))\n{run}\n((", f"$'\\n{run}'", f"\\'; {run};", f"*/\n{run}", f">{self.canary}",
            f"<({run})", f"${{x:-$({run})}}", f"${{__p1}}$({run})", f"-e {run}", "--", f"{{a,$({run})}}", f"! {run}",
        ]  # fmt: skip
        tame = [
            "", " ", "a b", "  two  ", "\n", "\n\n", "a\nb\n", "*", "?", "[a-z]*", "~", "~root", "$HOME", "${HOME}", "$1",
            "-n", "-rf", "!", "(", ")", "=", "-a", "]", "\\", "\\\\", "a\\", "'", '"', "`", "#", "# x", "\t", "é€😀", "\udcff\udc80",
            "\x01\x7f\x02", "\udc81\udc88", "{a,b}", "{1..3}", "%s", "END", "%n$s", "0", "${v1}", "$((1+1))", "\r", "a=b", "&&",
        ]  # fmt: skip
        if self.random.random() < 0.1:
            return "".join(
                chr(self.random.randint(1, 255)) for _ in range(self.random.randint(1, 12))
            )
        chosen = self.random.choices([payloads, tame], k=self.random.randint(1, 3))
        return "".join(self.random.choice(atoms) for atoms in chosen)


def _same(*texts: str) -> list[tuple[str, str]]:
    return [(text, text) for text in texts]


# ── running ─────────────────────────────────────────────────────────────────


@dataclass
class Results:
    """The counts of one shell."""

    shell: str
    scripts: int = 0
    values: int = 0
    wrong: int = 0
    canaries: int = 0
    refused: int = 0
    stopped: int = 0
    first_failure: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.canaries)


def forced_wrong(random: Random) -> Callable[[Iterable[Piece], Dialect], ScriptAnalysis]:
    """A lexer that returns a wrong state for every slot."""

    # States that binding refuses at once are rare, so that enough scripts run.
    usual: list[State] = ["bare", "single", "double", "heredoc", "parameter", "quoted-parameter"]
    others: list[State] = ["dollar-single", "quoted-pattern", "arithmetic", "comment"]

    def lexer(pieces: Iterable[Piece], dialect: Dialect) -> ScriptAnalysis:
        lexed = analyse(list(pieces), dialect)
        places = []
        for place in lexed.places:
            states = usual if random.random() < 0.9 else [*usual, *others]
            places.append(
                replace(place, state=random.choice([s for s in states if s != place.state]))
            )
        return replace(lexed, places=tuple(places))

    return lexer


def try_one(
    random: Random, shell: str, results: Results, folder: Path, *, wrong_lexer: bool
) -> None:
    """Write one script, run it and count the result."""
    dialect = DIALECTS[shell]
    canary = folder / "canary"
    author = Author(random, dialect, str(canary), hostile_numbers=wrong_lexer)
    # A wrong state is refused now and then; small scripts let more of them run.
    case = author.script(2 if wrong_lexer else VALUES_PER_SCRIPT)
    source = Source("fuzz", case.template)
    results.scripts += 1
    try:
        planned = plan(
            case.pieces, dialect, source, lexer=forced_wrong(random) if wrong_lexer else analyse
        )
        bound = bind(planned, case.values, trusted=lambda _: True)
    except InputError as error:
        results.refused += 1
        if not wrong_lexer:
            results.wrong += 1
            results.first_failure = results.first_failure or f"refused: {error}"
        return
    results.values += len(case.values)
    with tempfile.TemporaryDirectory(dir=folder) as cwd:
        Path(cwd, "a").touch()  # a file for a glob to find
        try:
            finished = run_shell(
                bound, shell=shell, cwd=cwd, env={"PATH": "/usr/bin:/bin", "HOME": "/"}, timeout=20
            )
        except ProcessError:
            results.stopped += 1
            return
    printed = finished.stdout.decode("utf-8", "surrogateescape").split("\0")
    if canary.exists():
        canary.unlink()
        results.canaries += 1
        results.first_failure = results.first_failure or f"a value ran:\n{bound.script}"
    elif printed != [*case.expected, ""] and not wrong_lexer:
        results.wrong += 1
        results.first_failure = results.first_failure or _difference(
            printed, [*case.expected, ""], bound.script, finished.stderr
        )


def _difference(printed: list[str], expected: list[str], script: str, stderr: bytes) -> str:
    at = next(
        (i for i, pair in enumerate(zip(printed, expected, strict=False)) if pair[0] != pair[1]), -1
    )
    got, wanted = printed[at : at + 2], expected[at : at + 2]
    return f"argument {at}: got {got!r}, wanted {wanted!r}\n{script}\n{stderr.decode(errors='replace')[:500]}"


# ── soup ────────────────────────────────────────────────────────────────────

INGREDIENTS = [
    *["'", '"', "`", "$(", ")", "$((", "))", "((", "(", "${", "${N:-", "${x%", "${x/", "${x:", "${x:=", "${!", "${#", "}", "{"],
    *["\\", "\n", "\n", " ", " ", " ", " ", "\t", "\\\n", "<<E\n", "\nE\n", "<<-E\n", "<<'E'\n", "<<<", "#", " #", "; ", "| "],
    *["&& ", "|| ", "& ", "case x in ", "esac ", " x) ", ";; ", ";& ", "if true; then ", "fi; ", "for i in ", "; do ", "done; "],
    *["until false; do ", "break; ", "[[ ", " ]] ", "[ ", " ] ", "-eq ", "-v ", "= ", "== ", "=~ ", "a[", "]=", "]", "a=( ", "x=", "x"],
    *["i", "echo ", "echo ", "printf %s ", "printf -v ", "eval ", "let ", "read ", "test ", "declare ", "declare -i ", "local "],
    *["export ", "unset ", "-a ", "-n ", "set -- ", "trap ", ". ", "$x", "$", "$'", '$"', "$[", "!", "@(", "<(", ">", "<", ">&", "2>"],
    *["&>", "|& ", "f() ", "function g ", "time ", "env ", "command ", "exec ", "sh -c ", "-c ", "~", "*", "-", "--", "+=", "in "],
    *["[@]}", "1", "+", ",", "{a,", "..", "coproc ", "alias k=", "A=1 ", "select i in ", "RANDOM=", "PS4=", "%", '"$(', ')"', "}; "],
]  # fmt: skip


def soup(*, runs: int, seed: int, progress: bool = False) -> Results:
    """Combine `runs` random texts, and run the accepted ones in every shell that they are for."""
    results = Results("soup")
    random = Random(f"{seed} soup")
    with tempfile.TemporaryDirectory(prefix="plait-fuzz-") as folder:
        for number in range(runs):
            dialect: Dialect = random.choice(["sh", "bash"])
            case = _soup_case(random, f"{folder}/canary")
            results.scripts += 1
            try:
                bound = bind(
                    plan(case.pieces, dialect, Source("soup", case.template)),
                    case.values,
                    trusted=lambda _: True,
                )
            except InputError:
                results.refused += 1
                continue
            for shell in DIALECTS if dialect == "sh" else ["bash"]:
                _taste(bound, shell, case, results, Path(folder))
            if progress and number % 2000 == 0:
                print(f"  soup: {number} of {runs} texts", flush=True)
    return results


def _soup_case(random: Random, canary: str) -> Case:
    author = Author(random, "bash", canary)
    run = f"touch {canary}"
    payloads: list[Json] = [
        f"a[$({run})]", f"$({run})", run, f";{run};", f"`{run}`", f"'; {run}; '", f'"; {run}; "', f"x\n{run}\n", f"($({run}))",
        f")); {run}; ((", f"}}; {run}; ", f"\nE\n{run}\n", "b", 5, f"x=$({run})", ["a", f"$({run})"],
    ]  # fmt: skip
    for _ in range(random.randint(2, 14)):
        author.text(random.choice(INGREDIENTS))
        if random.random() < 0.3:
            author.placeholder(random.choice(payloads))
    if not author.case.values:
        author.placeholder(random.choice(payloads))
    opened = [char for char in author.case.template if char in "'\"`({["]
    closing = "".join(
        {"(": ")", "{": "}", "[": "]"}.get(char, char)
        for char in reversed(opened)
        if random.random() < 0.6
    )
    author.text(closing if random.random() < 0.6 else "")
    return author.case


def _taste(bound: BoundScript, shell: str, case: Case, results: Results, folder: Path) -> None:
    results.values += len(case.values)
    with tempfile.TemporaryDirectory(dir=folder) as cwd:
        try:
            run_shell(bound, shell=shell, cwd=cwd, env={"PATH": "/usr/bin:/bin"}, timeout=5)
        except ProcessError:
            results.stopped += 1
    canary = folder / "canary"
    if canary.exists():
        canary.unlink()
        results.canaries += 1
        results.first_failure = (
            results.first_failure or f"a value ran in {shell}:\n{case.template}\n{bound.script}"
        )


# ── everything ──────────────────────────────────────────────────────────────


def fuzz(shell: str, *, runs: int, seed: int, wrong_lexer: bool, progress: bool = False) -> Results:
    """Run at least `runs` values in one shell."""
    results = Results(shell)
    random = Random(f"{seed} {shell} {wrong_lexer}")
    with tempfile.TemporaryDirectory(prefix="plait-fuzz-") as folder:
        while results.values < runs and results.scripts < 10 * runs:
            try_one(random, shell, results, Path(folder), wrong_lexer=wrong_lexer)
            if progress and results.scripts % 100 == 0:
                print(
                    f"  {shell}: {results.values} of {runs} values, {results.scripts} scripts",
                    flush=True,
                )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description="random shell scripts with hostile values, in dash and bash"
    )
    parser.add_argument("--runs", type=int, default=20_000, help="values to try, over all shells")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrong-lexer", action="store_true", help="force every quote state wrong")
    chosen = parser.parse_args()
    shells = [shell for shell in DIALECTS if shutil.which(shell)]
    by_shell = [
        fuzz(
            shell,
            runs=chosen.runs // len(shells),
            seed=chosen.seed,
            wrong_lexer=chosen.wrong_lexer,
            progress=True,
        )
        for shell in shells
    ]
    if not chosen.wrong_lexer:
        by_shell.append(soup(runs=chosen.runs, seed=chosen.seed, progress=True))
    print(
        f"{'shell':8}{'values':>8}{'scripts':>9}{'wrong':>7}{'canaries':>10}{'refused':>9}{'stopped':>9}"
    )
    for results in by_shell:
        print(
            f"{results.shell:8}{results.values:8}{results.scripts:9}{results.wrong:7}{results.canaries:10}"
            f"{results.refused:9}{results.stopped:9}"
        )
        if results.failed:
            print(results.first_failure)
    return 1 if any(results.failed for results in by_shell) else 0


if __name__ == "__main__":
    sys.exit(main())
