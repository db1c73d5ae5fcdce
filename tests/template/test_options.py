"""A value is never read as an option: by position, by program, in real shells and by real programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fuzz.option_fuzz import fuzz
from plait.core.errors import ValueRefusedError
from plait.core.values import Json
from plait.template.options import PROGRAMS, Argument, Command, option_words
from plait.template.shell.binding import bind
from share import WHOLE, every
from template.shell.shell_cases import bound, planned

POSITIONS = [
    # template                                which of its values, each alone, may not be `-rf`
    ("rm ${x} '${y}' \"${z}\"",               "xyz"),
    ("rm a${x} ./${y} --a=${z}",              ""),
    ("rm ''${x} $N${y}",                      "xy"),
    ("rm ${N:-${x}} ${N:-a${y}} ${N%${z}}",   "x"),
    ("rm -- ${x}",                            ""),
    ("rm ${x} -- ${y}",                       "x"),
    ("sudo -- rm ${x}",                       "x"),
    ("sudo -u ${x} rm -- ${y}",               ""),
    ("timeout ${x} rm ${y}",                  "xy"),
    ("x=${x}; a > ${y} < '${z}'",             ""),
    ("case ${x} in a) ;; esac",               ""),
    ("for i in ${x}; do :; done",             ""),
    ("[ -n ${x} ]; test ${y} = a",            ""),
    ("export A=${x}",                         ""),
    # options that take a value
    ("git commit -m ${x}",                    ""),
    ("git commit -am '${x}'",                 ""),
    ("git commit --message ${x} ${y}",        "y"),
    ("git commit -S ${x}",                    "x"),
    ("git -C ${x} log ${y}",                  "y"),
    ("git grep -n ${x}",                      "x"),
    ("git grep -ne ${x} -- ${y}",             ""),
    ("git worktree add -- ${x}",              "x"),
    ("grep -e ${x} ${y}",                     "y"),
    ("sed -ie ${x}",                          "x"),
    ("sed -e ${x} ${y}",                      "y"),
    ("sort -k ${x} -t ${y} ${z}",             "z"),
    ("jq --arg n ${x} . ${y}",                "y"),
    ("tar -cf ${x} -- ${y}",                  ""),
    ("curl -d ${x} ${y}",                     "y"),
    ("find ${x} -name ${y} -newer ${z}",      "x"),
    ("find . -exec grep ${x} {} \\;",         "x"),
    ("find -- ${x}",                          "x"),
    ("xargs -n ${x} rm ${y}",                 "y"),
    # what is no option there
    ("printf '%s' ${x}",                      ""),
    ("printf ${x} ${y}",                      "x"),
    ("echo ${x}",                             ""),
    ("tr ${x} ${y}",                          "x"),
    ("awk 1 ${x}",                            ""),
    ("awk -v a=b ${x}",                       "x"),
    ("gawk -e 1 ${x}",                        "x"),
    ("gawk -i inplace 1 ${x}",                ""),
    ("sh -c 'echo \"$1\"' sh ${x}",           ""),
    ("sh script ${x}",                        "x"),
    ("python3 -c pass ${x}",                  ""),
    ("python3 -m json.tool ${x}",             "x"),
    ("true ${x}",                             ""),
    # for an unknown program every word before -- can be one
    ("mytool --name ${x} ${y} -- ${z}",       "xy"),
    # by a variable of the script
    ('f=${x}; rm "$f"',                       "x"),
    ("f=a${x}; rm $f",                        ""),
    ("for f in a ${x}; do rm $f; done",       "x"),
    ('for f in ${x}; do rm -- "$f"; done',    ""),
    ("f=${x}; case $f in -*) f=./$f ;; esac; rm $f", ""),
    ("f=${x}; rm ${f%.txt} ${f#-}",           "x"),
    ('f=${x}; g=$f; rm "$g"',                 "x"),
    ('f="a ${x}"; rm $f',                     "x"),
    ('f="a ${x}"; rm "$f"',                   ""),
    ('for f in "a ${x}"; do rm b$f; done',    "x"),
    ('f=${x}; f2="$f$f"; rm "$f2"',           "x"),
    # what is glued to an option is its value, also if it is unknown
    ('cut -d"$D" ${x}',                       "x"),
    ('grep -e"$P" -- ${x}',                   "x"),
    ('timeout -k"$N" 5 rm ${x}',              "x"),
    # a word that may become none, and another the first
    ("awk $O ${x}",                           "x"),
    ("awk $O 1 ${x}",                         ""),
]  # fmt: skip


@pytest.mark.parametrize(("template", "refused"), POSITIONS)
def test_where_a_value_would_be_an_option(template: str, refused: str) -> None:
    names = re.findall(r"\$\{([xyz])(?:\}|:)", template)
    found = "".join(
        name
        for at, name in enumerate(names)
        if is_refused(template, *["-rf" if at == other else "a" for other in range(len(names))])
    )
    assert found == refused


def is_refused(template: str, *values: Json) -> bool:
    try:
        bound(template, *values)
    except ValueRefusedError as error:
        return {problem.code for problem in error.problems} == {"option-like"}
    return False


VALUES = [
    # template                     value                      refused
    ("echo ${x}",                  -5,                        False),
    ("echo ${x}",                  "- one\n- two",            False),
    ("echo ${x}",                  "--help",                  False),
    ("/bin/echo ${x}",             "--help",                  True),
    ("env echo ${x}",              "--version",               True),
    ("env echo ${x}",              "- one",                   False),
    ("echo ${x}",                  "-n",                      True),
    ("echo ${x}",                  "-nEe",                    True),
    ("echo '${x} is it'",          "-n",                      False),
    ("echo a ${x}",                "-n",                      False),
    ("mytool ${x}",                -5,                        False),
    ("mytool ${x}",                "-5.5e3",                  False),
    ("mytool ${x}",                "-5x",                     True),
    ("rm ${x}",                    -1,                        False),
    ("seq ${x} 1",                 -5,                        False),
    ("head ${x}",                  -5,                        True),
    ("grep ${x} a",                "-5",                      True),
    ("kill ${x}",                  "-9",                      True),
    ("ssh ${x}",                   "-4",                      True),
    ("perl -e 1 ${x}",             "-0",                      True),
    ("git clone ${x}",             "-4",                      True),
    ("git format-patch ${x}",      "-3",                      True),
    ("expand ${x}",                "-4",                      True),
    ("f=${x}; rm $f",              "a -rf",                   True),
    ("f=${x}; rm $f",              "a - b-c",                 False),
    ('f=${x}; rm "$f"',            "a -rf",                   False),
    ("f=${x}; echo $f",            "a -n",                    False),
    ("for f in ${x}; do rm $f; done", ["a", "b -rf"],         True),
    ("mytool ${x}",                "- one",                   True),
    ("cat ${x}",                   "-",                       True),
    ("vim ${x}",                   "+!id",                    True),
    ("less ${x}",                  "+!id",                    True),
    ("mytool ${x}",                "+x",                      False),
    ("git commit -m ${x}",         ["a", "--amend"],          True),
    ("git commit -m ${x}",         ["--amend"],               False),
    ("grep -e ${x} -- -f",         [],                        False),
    ("rm ${x}",                    ["a", "b", "-rf"],         True),
]  # fmt: skip


@pytest.mark.parametrize(("template", "value", "refused"), VALUES)
def test_which_value_would_be_an_option(template: str, value: Json, refused: bool) -> None:
    assert is_refused(template, value) is refused


def test_an_empty_list_lets_the_option_before_it_take_the_dashes() -> None:
    assert is_refused("grep -e ${x} -- ${y}", [], "-f")
    assert not is_refused("grep -e ${x} -- ${y}", ["a"], "-f")


def test_variables_that_double_each_other_are_read_in_time() -> None:
    doubled = "; ".join(f"v{n}=$v{n - 1}$v{n - 1}" for n in range(1, 40))
    assert not is_refused(f"v0=${{x}}; {doubled}; rm $v39", "-rf")


@pytest.mark.parametrize(
    ("template", "held", "refused"),
    [
        ('g=$P; rm "$g"', "-rf", True),
        ('[ -n "$P" ] || P=none; rm "$P"', "-rf", True),
        ('case $P in -*) P=./$P ;; esac; rm "$P"', "-rf", False),
        ("rm $P", "a -rf", True),
        ("rm a$P", "b -rf", True),
        ("rm $P", "a\u00a0-rf", False),
    ],
)
def test_a_variable_of_the_environment_goes_through_those_of_the_script(
    template: str, held: str, refused: bool
) -> None:
    try:
        bind(planned(template), [], variables={"P": held}.get)
    except ValueRefusedError:
        assert refused
    else:
        assert not refused


def test_a_variable_of_the_environment_is_the_value_that_it_holds() -> None:
    plan = planned('grep "$P" a; grep -- "$P" a; sort -k "$P"; grep ${P%.txt} a')
    held = {"P": "--open=x"}
    with pytest.raises(ValueRefusedError) as refused:
        bind(plan, [], variables=held.get)
    assert len(refused.value.problems) == 2
    bind(plan, [], variables={"P": "a"}.get)
    with pytest.raises(ValueRefusedError):  # a shell makes two words of it
        bind(planned("grep $P a"), [], variables={"P": "a -f"}.get)
    bind(planned('grep "$P" a'), [], variables={"P": "a -f"}.get)


def test_each_refusal_says_what_to_write() -> None:
    for template, fix in (
        ("rm ${x}", "write -- before it, or ./ or --name= in front of it"),
        ("find ${x}", "write ./ in front of it (this program does not end its options at --)"),
        ("git grep ${x}", "write -e before it"),
    ):
        with pytest.raises(ValueRefusedError) as refused:
            bound(template, "-rf")
        assert refused.value.problems[0].fix == f"{fix}, or say that it may be one: ${{x:opt}}"


# ── random commands in real shells ──────────────────────────────────────────


@pytest.mark.parametrize("shell", [one for one in ("dash", "bash") if shutil.which(one)])
def test_random_commands_pass_no_value_as_an_option(shell: str) -> None:
    results = fuzz(shell, runs=2000 if WHOLE else 40, seed=7)
    assert results.wrong == []
    assert results.refused > results.commands // 10


def test_the_fuzzer_finds_a_wrong_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "sort", Command("koStTn"))
    monkeypatch.setitem(PROGRAMS, "tr", Command())
    assert fuzz("dash", runs=4000, seed=1).wrong


# ── real programs ───────────────────────────────────────────────────────────

PATH = "/usr/bin:/bin"
NO_OPTION = "--plait-is-no-option"
_COMPLAINT = re.compile(
    r"(unrecogni[sz]ed|unknown|invalid|illegal|bad) (option|switch|predicate|argument:)(?! -o)[^\n]*plait-is-no-option"
    r"|plait-is-no-option[^\n]*is unknown",
    re.IGNORECASE,
)
SKIPPED = frozenset({
    # the shell's own, what would stay or call home, what is proven in other ways, what has other programs inside
    ":", "true", "false", "echo", "printf", "kill", "vi", "vim", "view", "ex", "nvim", "less", "more", "ssh",
    "slogin", "rsh", "autossh", "mosh", "find", "expr", "sync",
})  # fmt: skip


def _rows() -> list[tuple[tuple[str, ...], Command]]:
    rows: list[tuple[tuple[str, ...], Command]] = []
    for name, program in PROGRAMS.items():
        if name in SKIPPED or shutil.which(name, path=PATH) is None:
            continue
        rows.append(((name,), program))
        rows += [((name, sub), inner) for sub, inner in (program.subcommands or {}).items()]
    return rows


VALUED = [
    (words, option)
    for words, program in _rows()
    for option in (
        *(f"-{letter}" for letter in program.valued),
        *(f"--{name}" for name in sorted(program.long_valued)),
        *program.several,
    )
]


def complaint(words: tuple[str, ...], folder: Path) -> str | None:
    """What a program says if it takes the word for an option of its own."""
    repository = folder / "r"
    if not repository.exists():
        subprocess.run(["git", "init", "-q", repository], check=True)
    env = {"PATH": PATH, "HOME": str(folder), "LC_ALL": "C", "GIT_EDITOR": "true", "PAGER": "cat"}
    ended = subprocess.run(
        words, cwd=repository, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    output = (ended.stdout + ended.stderr).decode("utf-8", "replace")
    found = _COMPLAINT.search(output)
    return None if found is None else found.group()


@pytest.mark.share
@pytest.mark.parametrize(("words", "option"), VALUED[:: every(12)])
def test_a_real_program_takes_the_word_behind_the_option_as_its_value(
    words: tuple[str, ...], option: str, tmp_path: Path
) -> None:
    assert complaint((*words, option, NO_OPTION), tmp_path) is None


@pytest.mark.share
@pytest.mark.parametrize("row", _rows()[:: every(6)], ids=lambda row: " ".join(row[0]))
def test_a_real_program_reads_the_word_as_an_option_elsewhere(
    row: tuple[tuple[str, ...], Command], tmp_path: Path
) -> None:
    words, program = row
    if program.dashes and words[0] not in ("node", "make") and len(words) == 1:
        assert complaint((*words, "--", NO_OPTION), tmp_path) is None
    if not program.permutes and not program.subcommands:
        assert complaint((*words, "a", NO_OPTION), tmp_path) is None
    found = option_words([*map(Argument, words), Argument(NO_OPTION)])
    assert len(words) in found


def test_the_programs_of_this_machine_are_tried() -> None:
    assert {("git", "grep"), ("grep",), ("sed",), ("sort",), ("tar",)} <= {
        words for words, _ in _rows()
    }
