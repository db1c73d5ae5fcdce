"""Values in shell text: bound to variables, shown to people, and hidden from children."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from fuzz.shell_fuzz import Results, forced_wrong, fuzz, soup
from plait.adapters.process.process import run_shell
from plait.core.errors import InternalError, ShellRefusedError, ValueRefusedError
from plait.core.source import Source
from plait.core.values import Json, Secret
from plait.template.shell.binding import MAX_VARIABLE, BoundScript, bind, plan
from plait.template.shell.lexer import Dialect, Piece, ScriptAnalysis, SlotContext, State, analyse
from share import every, examples
from template.shell.shell_cases import bound, pieces, planned

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
DIALECTS: dict[str, Dialect] = {"sh": "sh", "dash": "sh", "bash": "bash"}


def prints(script: BoundScript, shell: str = "sh", *, cwd: Path | None = None) -> str:
    finished = run_shell(script, shell=shell, cwd=cwd, env={"PATH": "/usr/bin:/bin"}, timeout=30)
    assert (finished.stderr, finished.exit_code) == (b"", 0)
    return finished.stdout.decode("utf-8", "surrogateescape")


EMITTED = [
    # template                 dialect  emitted
    ("echo ${x}",              "sh",    'echo "${__p1}"'),
    ("echo --opt=${x}",        "sh",    'echo --opt="${__p1}"'),
    ("echo 'a ${x} b'",        "sh",    "echo 'a '\"${__p1}\"' b'"),
    ('echo "a ${x} b"',        "sh",    'echo "a ${__p1} b"'),
    ("echo $'a ${x} b'",       "bash",  "echo $'a '\"${__p1}\"$' b'"),
    ("cat <<E\n${x}\nE\n",     "sh",    "cat <<E\n${__p1}\nE\n"),
    ('echo "${N:-${x}}"',      "sh",    'echo "${N:-${__p1}}"'),
    ("echo ${N:-${x}}",        "sh",    'echo ${N:-"${__p1}"}'),
    ('echo "${N%${x}}"',       "sh",    'echo "${N%"${__p1}"}"'),
    ("echo $(( ${x} + 1 ))",   "sh",    "echo $(( (${__p1}) + 1 ))"),
    ("(( n > ${x} ))",         "bash",  "(( n > (${__p1}) ))"),
    ("[[ ${x} -gt 3 ]]",       "bash",  '[[ "${__p1}" -gt 3 ]]'),
]  # fmt: skip


@pytest.mark.parametrize(("template", "dialect", "emitted"), EMITTED)
def test_a_placeholder_becomes_a_reference_that_fits_its_state(
    template: str, dialect: Dialect, emitted: str
) -> None:
    script = bound(template, "7", dialect=dialect)
    assert script.script == "unset __p1; __p1=${PLAIT_1?}; unset PLAIT_1; " + emitted
    assert script.env == {"PLAIT_1": "7"}
    assert script.files == ()


def test_a_value_in_a_comment_is_not_passed_at_all() -> None:
    script = bound("echo a # ${x}\n", "secret")
    assert (script.script, script.env) == ("echo a # \n", {})


def test_the_script_is_the_same_for_all_values() -> None:
    template = planned("echo ${x} '${y}' \"${z}\"")
    first = bind(template, ["a", "b", "c"])
    second = bind(template, ["$(id)", None, {"k": 1}])
    assert first.script == second.script
    assert list(second.env.values()) == ["$(id)", "", '{"k":1}']


def test_a_list_becomes_one_word_per_element() -> None:
    script = bound("cp ${x} dir", ["a b", "c"])
    assert script.script.rpartition("; ")[2] == 'cp "${__p1_1}" "${__p1_2}" dir'
    assert script.env == {"PLAIT_1_1": "a b", "PLAIT_1_2": "c"}
    assert bound("cp ${x} dir", []).script == "cp  dir"
    assert bound('cp "${x}" a${y}', ["a", 1], ["b"]).env == {
        "PLAIT_1": '["a",1]',
        "PLAIT_2": '["b"]',
    }


def test_generated_names_keep_clear_of_the_scripts_own() -> None:
    script = bound("__p1=a PLAIT_1=b; echo ${x} $__\\\np_1", "v")
    assert script.env == {"PLAIT__1": "v"}
    assert script.script.startswith("unset __p__1; __p__1=${PLAIT__1?}; unset PLAIT__1; ")


def test_raw_text_becomes_code_because_the_author_says_so() -> None:
    script = bound("${x:raw} ${y}", "echo a;echo", "b")
    assert script.script.endswith('; echo a;echo "${__p2}"')
    assert script.shown == "echo a;echo b"
    assert prints(script) == "a\nb\n"


SHOWN = [
    # template                      value          shown
    ("echo ${x}",                   "a b",         "echo 'a b'"),
    ("echo ${x}",                   "plain",       "echo plain"),
    ("echo ${x}",                   None,          "echo ''"),
    ("echo ${x}",                   ["a b", "c"],  "echo 'a b' c"),
    ("echo ${x}",                   Secret("key"), "echo '***'"),
    ("echo ${x}",                   [Secret("k")], "echo '***'"),
    ("echo 'a ${x}'",               "it's",        "echo 'a it'\\''s'"),
    ('echo "a ${x}"',               '"$`\\',       'echo "a \\"\\$\\`\\\\"'),
    ('echo "a ${x}"',               Secret("key"), 'echo "a ***"'),
    ("echo $'a ${x}'",              "it's \\",     "echo $'a it\\'s \\\\'"),
    ("cat <<E\n${x}\nE\n",          '"$a"',        'cat <<E\n"\\$a"\nE\n'),
    ('echo "${N:-${x}}"',           "a}b",         'echo "${N:-a\\}b}"'),
    ("echo ${N:-${x}}",             "a b",         "echo ${N:-'a b'}"),
    ('N=$"a"; echo "${N%${x}}"',    "*",           'N=$"a"; echo "${N%"*"}"'),
    ("echo $(( ${x} ))",            -5,            "echo $(( -5 ))"),
    ("echo a # ${x}",               "v",           "echo a # "),
]  # fmt: skip


@pytest.mark.parametrize(("template", "value", "shown"), SHOWN)
def test_people_see_the_command_with_its_values_quoted(
    template: str, value: Json, shown: str
) -> None:
    assert bound(template, value, dialect="bash").shown == shown


def test_no_representation_shows_a_value() -> None:
    assert "hidden" not in repr(bound("echo ${x}", Secret("hidden")))


# ── refusals ────────────────────────────────────────────────────────────────


def test_all_refusals_are_reported_at_once() -> None:
    with pytest.raises(ShellRefusedError) as refused:
        planned("echo ok ${a}\neval ${x}; [ ${y} ${z} ]")
    assert str(refused.value) == (
        "flow.yaml:2:6: this command reads its words as code, and a value would be part of it\n"
        "2 | eval ${x}; [ ${y} ${z} ]\n"
        "  |      ^^^^\n"
        "fix: call the program directly, or hand the value over as an argument: sh -c 'echo \"$1\"' sh ${x}, or python3 -c 'import sys; print(sys.argv[1])' ${x}\n"
        "flow.yaml:2:14: among these words a value could be taken for an operator of the test\n"
        "2 | eval ${x}; [ ${y} ${z} ]\n"
        "  |              ^^^^\n"
        "fix: test one thing at a time, [ ${a} = ${b} ] or [ -f ${a} ], and join tests with && and ||\n"
        "flow.yaml:2:19: among these words a value could be taken for an operator of the test\n"
        "2 | eval ${x}; [ ${y} ${z} ]\n"
        "  |                   ^^^^\n"
        "fix: test one thing at a time, [ ${a} = ${b} ] or [ -f ${a} ], and join tests with && and ||"
    )
    assert [problem.code for problem in refused.value.problems] == [
        "value-as-code", "value-as-operator", "value-as-operator",
    ]  # fmt: skip


VALUES_REFUSED = [
    # template                value                  code
    ("echo a${x}",            "a\0b",                "nul"),
    ("echo ${x}",             ["a\0b"],              "nul"),
    ("echo ${x:raw}",         "a\0b",                "nul"),
    ("echo a${x}",            "a\ud800",             "no-bytes"),
    ("echo $((${x}))",        "a[$(id)]",            "not-an-integer"),
    ("echo $((${x}))",        "",                    "not-an-integer"),
    ("echo $((${x}))",        "010",                 "not-an-integer"),
    ("echo $((${x}))",        "0x1f",                "not-an-integer"),
    ("echo $((${x}))",        "1\n",                 "not-an-integer"),
    ("echo $((${x}))",        "١",                   "not-an-integer"),
    ("echo $((${x}))",        1.0,                   "not-an-integer"),
    ("echo $((${x}))",        True,                  "not-an-integer"),
    ("echo $((${x}))",        None,                  "not-an-integer"),
    ("echo $((${x}))",        [1],                   "not-an-integer"),
    ("echo $((${x}))",        2**63,                 "not-an-integer"),
    ("echo $((${x}))",        str(-(2**63)),         "not-an-integer"),
    ("[ -n ${x} ]",           ["a", "=", "b"],       "list-not-possible"),
    ("timeout ${x} ls",       ["5", "reboot"],       "list-not-possible"),
    ("ssh ${x}",              ["host", "reboot"],    "list-not-possible"),
    ("sudo -u ${x} ls",       [],                    "list-not-possible"),
    ("rm ${x}",               "-rf",                 "option-like"),
    ("rm '${x}'",             "-rf",                 "option-like"),
    ('rm "${x}"',             "-rf",                 "option-like"),
    ("rm ''${x}",             "-rf",                 "option-like"),
    ("rm $N${x}",             "-rf",                 "option-like"),
    ("rm ${x}",               ["a", "-rf"],          "option-like"),
    ("rm ${x} -- a",          "-rf",                 "option-like"),
    ("sudo -- rm ${x}",       "-rf",                 "option-like"),
    ("rm ${x}",               Secret("-rf"),         "option-like"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "value", "code"), VALUES_REFUSED)
def test_a_value_that_cannot_be_passed(template: str, value: Json, code: str) -> None:
    with pytest.raises(ValueRefusedError) as refused:
        bound(template, value)
    assert [problem.code for problem in refused.value.problems] == [code]


@pytest.mark.parametrize("value", ["a[$(id)]", "n", "", "010", True, [1]])
@pytest.mark.parametrize(
    "template", ["(( ${x} ))", "for ((;${x};)); do :; done", "[[ 1 -eq '${x}' ]]"]
)
def test_bash_evaluates_integers_only(template: str, value: Json) -> None:
    with pytest.raises(ValueRefusedError) as refused:
        bound(template, value, dialect="bash")
    assert refused.value.code == "not-an-integer"


def test_a_refused_value_is_not_printed() -> None:
    with pytest.raises(ValueRefusedError) as refused:
        bound("rm ${x}\necho $((${y}))", "-secret", "hidden")
    assert str(refused.value) == (
        "flow.yaml:1:4: a value that starts with '-' could be taken for an option here\n"
        "1 | rm ${x}\n"
        "  |    ^^^^\n"
        "fix: write -- before it, or ./ or --name= in front of it, or say that it may be one: ${x:opt}\n"
        "flow.yaml:2:9: only an integer can stand in arithmetic, in decimal, without leading zeros, within 64 bits\n"
        "2 | echo $((${y}))\n"
        "  |         ^^^^\n"
        "fix: give it an integer; compare text with [ ${a} = ${b} ]"
    )


OPTIONS_ALLOWED: list[tuple[str, Sequence[Json]]] = [
    ("rm -- ${x}",                   ["-rf"]),
    ("rm ${x:opt}",                  ["-rf"]),
    ("rm ./${x}",                    ["-rf"]),
    ("rm --a=${x}",                  ["-rf"]),
    ("rm ${x}${y}",                  ["a", "-rf"]),
    ("a=${x}; b > ${y} < ${z}",      ["-a", "-b", "-c"]),
    ("[ ${x} = ${y} ]",              ["-a", "-o"]),
    ("for i in ${x}; do :; done",    [["-a", "-b"]]),
    ("case ${x} in ${y}) ;; esac",   ["-a", "-b"]),
    ("echo $((${x}))",               [-5]),
    ("echo $((${x}))",               ["-5"]),
]  # fmt: skip


@pytest.mark.parametrize(("template", "values"), OPTIONS_ALLOWED)
def test_where_a_dash_is_no_danger(template: str, values: Sequence[Json]) -> None:
    assert bound(template, *values).script


def test_a_second_placeholder_is_looked_at_when_the_first_is_empty() -> None:
    with pytest.raises(ValueRefusedError):
        bound("rm ${x}${y}", "", "-rf")


def test_trusted_values_may_start_with_a_dash() -> None:
    bound("rm ${x}", "-rf", trusted=True)
    with pytest.raises(ValueRefusedError) as refused:
        bind(planned("rm ${x} ${y}"), ["-a", "-b"], trusted=[True, False].__getitem__)
    assert len(refused.value.problems) == 1


def test_a_gap_without_a_value_is_our_mistake() -> None:
    with pytest.raises(InternalError):
        bound("echo ${x}")


# ── a lexer that is wrong fails closed ──────────────────────────────────────


def everything_bare(pieces: Sequence[Piece], dialect: Dialect) -> ScriptAnalysis:
    return ScriptAnalysis(
        tuple(SlotContext("bare") for _ in analyse(pieces, dialect).places), (), frozenset()
    )


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("echo $((${x}))", "double-parens"),
        ("((n=${x}))", "double-parens"),
        ("(\\\n(n=(1)+${x}))", "double-parens"),
    ],
)
def test_arithmetic_is_noticed_even_if_the_lexer_missed_it(template: str, code: str) -> None:
    with pytest.raises(ShellRefusedError) as refused:
        plan(pieces(template), "bash", Source("t", template), lexer=everything_bare)
    assert refused.value.code == code


@pytest.mark.parametrize("state", ["comment", "dollar-single", "arithmetic"])
def test_a_state_that_cannot_be_is_noticed(state: State) -> None:
    template = "rm -r ./${x}"
    wrong = ScriptAnalysis((SlotContext(state),), (), frozenset())
    with pytest.raises(ShellRefusedError):
        plan(pieces(template), "bash", Source("t", template), lexer=lambda *_: wrong)


def test_a_lexer_that_loses_a_placeholder_is_noticed() -> None:
    with pytest.raises(InternalError):
        plan(
            pieces("a ${x}"),
            "sh",
            Source("t", "a ${x}"),
            lexer=lambda *_: ScriptAnalysis((), (), frozenset()),
        )


# ── in real shells ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", SHELLS)
def test_children_see_neither_the_values_nor_the_generated_variables(shell: str) -> None:
    script = bound(
        'set -a; env; set -a; f() { env; }; f; ( env )\ncat /proc/self/environ; env -i env; : ${x} "${y}"',
        "kept-from-children",
        "kept too " * 20_000,
    )
    finished = run_shell(
        script, shell=shell, env={"PATH": "/usr/bin:/bin", "__p1": "x", "__p2": "x"}, timeout=30
    )
    assert finished.exit_code == 0
    assert b"kept" not in finished.stdout
    assert b"__p" not in finished.stdout
    assert b"PLAIT_" not in finished.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_lines_keep_their_numbers_and_strict_shells_their_rules(shell: str) -> None:
    script = bound('set -eu\necho ${x}\necho "${y}" $unset\n', "a", "b")
    finished = run_shell(script, shell=shell, timeout=30)
    assert finished.stdout == b"a\n"
    assert b" 3: unset" in finished.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("size", [MAX_VARIABLE, MAX_VARIABLE + 1, 1_000_000])
def test_a_value_of_any_size_arrives_with_its_newlines(shell: str, size: int) -> None:
    value = "é\n" + "x\udcff\n" * (size // 3) + "\n\n"
    script = bound("printf '%s' '${x}'; printf '[%s]' \"${y}\"", value, value[::-1])
    assert prints(script, shell) == f"{value}[{value[::-1]}]"


@pytest.mark.parametrize("shell", SHELLS)
def test_many_values_that_are_large_together_arrive(shell: str) -> None:
    values = [f"{number}\n" + "y" * 90_000 + "\n" for number in range(12)]
    script = bound(
        "cat <<E\n${x}\nE\nfor i in ${y}; do printf '%s\\n' \"$i\"; done", values[0], values[1:]
    )
    assert sum(map(len, script.env.values())) <= 512 * 1024
    assert prints(script, shell) == "".join(value + "\n" for value in values)


@pytest.mark.parametrize("shell", SHELLS)
def test_children_find_the_descriptor_of_large_values_empty(shell: str) -> None:
    script = bound(
        'for f in /dev/fd/*; do case $f in */[012]) ;; *) cat "$f" 2>/dev/null;; esac; done; : ${x}',
        "v" * 200_000,
    )
    assert run_shell(script, shell=shell, timeout=30).stdout == b""


def test_a_large_value_that_cannot_be_read_ends_the_script() -> None:
    script = bound("echo ran ${x}", "v" * 200_000)
    without_file = BoundScript(
        script.script, {**script.env, "PLAIT_FILE": "/nonexistent"}, (), script.shown
    )
    finished = run_shell(without_file, timeout=30)
    assert (finished.exit_code, finished.stdout) == (125, b"")
    assert finished.stderr.endswith(b"plait: cannot read a large value\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_test_means_what_its_author_wrote_whatever_the_values_are(shell: str) -> None:
    hostile = [
        "",
        "!",
        "(",
        ")",
        "-a",
        "-o",
        "=",
        "-n",
        "-f",
        "]",
        "-z",
        "x",
        "1",
        "-eq",
        "!=",
        "a b",
        "-t",
    ]
    lines, expected = [], []
    for first in hostile:
        for second in hostile:
            lines.append(
                "[ ${x} = ${y} ] && printf 1 || printf 0; [ ! ${x} = ${y} ] && printf 1 || printf 0"
            )
            expected.append("10" if first == second else "01")
        lines.append("[ ${x} ] && printf 1 || printf 0; [ ! -z ${x} ] && printf 1 || printf 0")
        expected.append("11" if first else "00")
    values = []
    for first in hostile:
        values += [value for second in hostile for value in (first, second, first, second)] + [
            first,
            first,
        ]
    assert prints(bound("\n".join(lines), *values), shell) == "".join(expected)


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=examples(40), deadline=None)
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_shell_passes_a_value_on_unchanged(shell: str, value: str) -> None:
    template = "printf '%s\\0' -- ${x} 'a${x}' \"${x}b\" ${N:-${x}} \"${N:-${x}}\" \"$(printf '%s.' ${x})\""
    printed = prints(bound(template, *[value] * 6, dialect=DIALECTS[shell], trusted=True), shell)
    assert printed.split("\0") == [
        "--",
        value,
        "a" + value,
        value + "b",
        value,
        value,
        value + ".",
        "",
    ]


@pytest.mark.skipif("bash" not in SHELLS, reason="needs bash")
@pytest.mark.parametrize("value", [-5, "4", 2**63 - 1])
def test_bash_calculates_with_integers(value: int | str) -> None:
    template = "(( n = 0 - ${x} )); [[ ${y} -eq '${z}' ]] && for ((i=${v}; i==${w}; i--)); do echo $n $i; done"
    assert (
        prints(bound(template, *[value] * 5, dialect="bash"), "bash") == f"{-int(value)} {value}\n"
    )


@pytest.mark.skipif("bash" not in SHELLS, reason="needs bash")
@pytest.mark.parametrize(
    "value",
    [
        "$(touch ran)",
        "[$(touch ran)]=1",
        "a[$(touch ran)]",
        "($(touch ran))",
        "`touch ran`",
        "') $(touch ran) ('",
    ],
)
def test_elements_of_a_declared_array_are_data(value: str, tmp_path: Path) -> None:
    template = (
        'declare -A m=([k]="${x}"); declare -a n=(${y} b); f() { local -a o=("${z}"); printf %s "$o"; };'
        ' f; printf %s "${m[k]}" "$n"'
    )
    assert prints(bound(template, *[value] * 3, dialect="bash"), "bash", cwd=tmp_path) == value * 3
    assert list(tmp_path.iterdir()) == []


SHELLS_TO_FUZZ = [shell for shell in ("dash", "bash") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS_TO_FUZZ)
def test_random_scripts_see_their_values_unchanged_and_run_none(shell: str) -> None:
    results = fuzz(shell, runs=600, seed=20, wrong_lexer=False)
    assert (results.wrong, results.canaries, results.refused, results.stopped) == (0, 0, 0, 0), (
        results.first_failure
    )
    assert results.values >= 600


@pytest.mark.share
@pytest.mark.parametrize("shell", SHELLS_TO_FUZZ)
def test_no_value_runs_when_every_state_is_forced_wrong(shell: str) -> None:
    runs = 300 // every(4)
    results = fuzz(shell, runs=runs, seed=21, wrong_lexer=True)
    assert results.canaries == 0, results.first_failure
    assert results.values >= runs


def test_no_value_runs_in_syntax_thrown_together() -> None:
    results = soup(runs=800, seed=22)
    assert results.canaries == 0, results.first_failure
    assert results.refused < 760  # enough was accepted, and run


def test_the_wrong_lexer_is_wrong_everywhere() -> None:
    template = pieces("echo ${x} '${y}' \"${z}\"")
    wrong = forced_wrong(Random(1))(template, "sh").places
    assert all(
        a.state != b.state for a, b in zip(wrong, analyse(template, "sh").places, strict=True)
    )


@pytest.mark.parametrize("shell", SHELLS_TO_FUZZ)
def test_the_canary_sings_when_values_are_pasted(shell: str, tmp_path: Path) -> None:
    """The fuzz harness can fail: the same payload runs as soon as a value is code."""
    script = bound("echo ${x:raw}", f"$(touch {tmp_path}/canary)")
    run_shell(script, shell=shell, timeout=30)
    assert (tmp_path / "canary").exists()


def test_results_with_wrong_arguments_or_canaries_fail() -> None:
    assert [
        Results("sh", wrong=1).failed,
        Results("sh", canaries=1).failed,
        Results("sh", refused=1).failed,
    ] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "template",
    ["(( ${x} > 3 ))", "[[ ${x} -gt 3 ]]", "for ((i=0; i<${x}; i++)); do :; done; true"],
)
def test_bash_counts_with_integers_and_with_nothing_else(template: str, tmp_path: Path) -> None:
    assert plait.sh(template, {"x": 5}, shell="bash").exit_code == 0
    with pytest.raises(ValueRefusedError) as refused:
        plait.sh(template, {"x": "a[$(touch canary)]"}, shell="bash", cwd=tmp_path)
    assert refused.value.code == "not-an-integer"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "template",
    [
        'declare -A m=([k]="${x}"); echo "${m[k]}"',
        'declare -A m; f() { local z="${x}"; echo "$z"; }; f',
    ],
)
def test_an_array_of_bash_may_be_given_values(template: str, tmp_path: Path) -> None:
    for value in ("$(touch canary)", "a b", "]=x", "* '\""):
        assert plait.sh(template, {"x": value}, shell="bash", cwd=tmp_path).stdout == value + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_does_not_run_without_its_values(shell: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    script = bound("rm -rf data/${x}", "a")
    # As behind `sudo`, `env -i` or in a container.
    done = subprocess.run(
        [shell, "-c", script.script],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode != 0
    assert (tmp_path / "data").exists()
    assert b"PLAIT_1" in done.stderr


def test_a_value_that_is_empty_arrives() -> None:
    script = bound("printf '[%s]' ${x}", "")
    done = subprocess.run(
        ["sh", "-c", script.script],
        env={**os.environ, **script.env},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"[]"
