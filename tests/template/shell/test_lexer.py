"""In which state is a shell at a slot, and where may no value stand."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import LimitError
from plait.template.shell.lexer import (
    MAX_CACHED,
    MAX_DEPTH,
    MAX_SHELL_TEXT,
    REFUSALS,
    Dialect,
    Piece,
    ScriptAnalysis,
    ValueSlot,
    analyse,
)
from share import examples
from template.shell.shell_cases import pieces


def lexed(template: str, dialect: Dialect) -> ScriptAnalysis:
    return analyse(pieces(template), dialect)


def states(template: str, dialect: Dialect) -> list[str]:
    return [place.state for place in lexed(template, dialect).places]


def codes(template: str, dialect: Dialect) -> list[str]:
    return sorted({refusal.code for refusal in lexed(template, dialect).refusals})


BOTH: list[Dialect] = ["sh", "bash"]

STATES = [
    # template                                     state of each placeholder, the same in sh and bash
    ("echo ${x}",                                  ["bare"]),
    ("echo a${x}b --opt=${y}",                     ["bare", "bare"]),
    ("echo 'a ${x} b' ${y}",                       ["single", "bare"]),
    ("echo \"a ${x} b\" ${y}",                     ["double", "bare"]),
    ("echo 'a\"' ${x} \"'\" ${y}",                 ["bare", "bare"]),
    ("echo \"a\\\"${x}\" \\\" ${y}",               ["double", "bare"]),
    ("echo \\' ${x} \\\\ ${y}",                    ["bare", "bare"]),
    ("echo 'it'\\''s ${x}'",                       ["single"]),
    ("echo a\\\n'${x}'",                           ["single"]),
    # comments start where a word starts
    ("echo a # ${x}\necho ${y}",                   ["comment", "bare"]),
    ("echo a#${x}",                                ["bare"]),
    ("echo $# ${x} ${#N} ${y}",                    ["bare", "bare"]),
    ("# it's ${x}\necho '${y}'",                   ["comment", "single"]),
    ("echo \\\n# ${x}",                            ["comment"]),
    ("echo a;# ${x}",                              ["comment"]),
    # here-documents
    ("cat <<E\n${x} '${y}' \"${z}\"\nE\necho ${w}", ["heredoc", "heredoc", "heredoc", "bare"]),
    ("cat <<-E\n\t${x}\n\tE\necho '${y}'",         ["heredoc", "single"]),
    ("cat <<A; cat <<B\n${x}\nA\n'${y}\nB\necho '${z}'", ["heredoc", "heredoc", "single"]),
    ("cat <<E && echo ${x}\n${y}\nE",              ["bare", "heredoc"]),
    ("cat <<'E'\n' $( `\nE\necho \"${x}\"",        ["double"]),
    ("cat <<\\E\n' $( `\nE\necho \"${x}\"",        ["double"]),
    ("(cat <<E)\n${x}\nE\necho '${y}'",            ["heredoc", "single"]),
    ("cat <<E\n$(echo '${x}' ${y}) \\$( ${z}\nE",  ["single", "bare", "heredoc"]),
    ("cat <<E\n \\\\${x}\nE",                      ["heredoc"]),
    # commands inside
    ("echo $(echo ${x} '${y}') \"${z}\"",          ["bare", "single", "double"]),
    ("echo \"$(echo ${x} \"${y}\")${z}\"",         ["bare", "double", "double"]),
    ("echo \"$(echo \")\" ${x})\" ${y}",           ["bare", "bare"]),
    ("echo $(case a in a) echo '${x}';; esac) ${y}", ["single", "bare"]),
    ("echo $(echo a # ) ' \n echo ${x})",          ["bare"]),
    ("echo $(cat <<E\n) ${x}\nE\n) '${y}'",        ["heredoc", "single"]),
    ("echo $(if a; then cat <<E\n${x}\nE\nfi\n) ${y}", ["heredoc", "bare"]),
    ("echo `echo ${x} '${y}'` \"`echo \"${z}\"`\"", ["bare", "single", "double"]),
    ("(echo ${x}); { echo '${y}'; }",              ["bare", "single"]),
    # parameters
    ("echo ${N:-${x}} \"${N:-${y}}\"",             ["parameter", "quoted-parameter"]),
    ("echo ${N:-'${x}'} ${N:-\"${y}\"}",           ["single", "double"]),
    ("echo ${N%${x}} \"${N##${y}}\"",              ["parameter", "quoted-pattern"]),
    ("echo \"${N:+$(echo ${x})}\" \"${N?no ${y}}\"", ["bare", "quoted-parameter"]),
    ("cat <<E\n${N:-${x}} ${N%${y}}\nE",           ["quoted-parameter", "quoted-pattern"]),
    (": \"${N:=${x}}\"",                           ["quoted-parameter"]),
    ("echo ${#N} ${N} ${N%'}'} '${x}'",            ["single"]),
    ("echo ${N:-\\}} '${x}'",                      ["single"]),
    # numbers
    ("echo $((${x}+(1))) ${y}",                    ["arithmetic", "bare"]),
    ("echo \"$(( 1 + ${x} ))${y}\"",               ["arithmetic", "double"]),
    ("cat <<E\n$((${x} << 2))\nE",                 ["arithmetic"]),
    # commands and their words
    ("x=${x} y='${y}' echo ${z}",                  ["bare", "single", "bare"]),
    ("if [ ${x} = ${y} ]; then echo ${z}; fi",     ["bare", "bare", "bare"]),
    ("case ${x} in ${y}|'${z}') echo ${w};; esac", ["bare", "bare", "single", "bare"]),
    ("case a in (a) case b in b) echo ${x};; esac ;; esac; echo '${y}'", ["bare", "single"]),
    ("for i in ${x} '${y}'; do echo ${z}; done",   ["bare", "single", "bare"]),
    ("f() { echo ${x}; }; f '${y}'",               ["bare", "single"]),
    ("cat > ${x} 2>'${y}' <${z}",                  ["bare", "single", "bare"]),
    ("echo a >&2; echo ${x} 2>&1",                 ["bare"]),
    ("echo ~${x} *${y} [${z}]",                    ["bare", "bare", "bare"]),
    ("echo }${x} {${y}} a}b",                      ["bare", "bare"]),
    ("echo a\\\n ${x}; a && \\\n b | \\\n c '${y}'", ["bare", "single"]),
    ("grep -E '((a|b)c)' ${x}",                    ["bare"]),
]  # fmt: skip

BASH_STATES = [
    ("echo $'a\\'${x}' ${y}",                      ["dollar-single", "bare"]),
    ("echo \"$'${x}'\" $\"${y}\"",                 ["double", "double"]),
    ("cat <<< ${x} <<<'${y}'",                     ["bare", "single"]),
    ("cat <(echo ${x}) '${y}'",                    ["bare", "single"]),
    ("a=(${x} 'b ${y}' # it's\n [1]=${z})",        ["bare", "single", "bare"]),
    ("[[ ${x} == *${y}* && -f '${z}' ]]",          ["bare", "bare", "single"]),
    ("[[ $N =~ ^(a|b)${x}$ ]] && echo '${y}'",     ["bare", "single"]),
    ("echo @(a|b) '${x}'",                         ["single"]),
    ("for ((i=0; i<3; i++)); do echo ${x}; done",  ["bare"]),
    ("(( i++ )); echo ${x}",                       ["bare"]),
    ("(( n = ${x} )); echo ${y}",                  ["arithmetic", "bare"]),
    ("for ((i=0; i<${x}; i++)); do :; done",       ["arithmetic"]),
    ("[[ ${x} -gt 3 && 1 -le \"${y}\" ]]",         ["bare", "double"]),
    ("declare -A m=([k]=\"${x}\")",                ["double"]),
    ("declare -a m=(\"${x}\" b); local -A n=([k]=${y})", ["double", "bare"]),
    ("declare -A m; f() { local z=\"${x}\"; }",    ["double"]),
    ("bash script <(echo ${x})",                   ["bare"]),
    ("function f { echo ${x}; }",                  ["bare"]),
    ("echo a &> ${x}",                             ["bare"]),
    ("m['k']=${x} n[1]='${y}'",                    ["bare", "single"]),
    ("echo \"${a[0]}${x}${!N}${N^^}${N//a/b}\"",   ["double"]),
]  # fmt: skip


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(("template", "expected"), STATES)
def test_the_state_at_each_placeholder(
    template: str, expected: list[str], dialect: Dialect
) -> None:
    assert (states(template, dialect), codes(template, dialect)) == (expected, [])


@pytest.mark.parametrize(("template", "expected"), BASH_STATES)
def test_the_state_at_each_placeholder_in_bash(template: str, expected: list[str]) -> None:
    assert (states(template, "bash"), codes(template, "bash")) == (expected, [])


REFUSED = [
    # template                              code, the same in sh and bash
    ("${x}",                                "value-as-program"),
    ("./bin/${x} a",                        "value-as-program"),
    ("a; ${x}",                             "value-as-program"),
    ("if ${x}; then :; fi",                 "value-as-program"),
    ("! ${x}",                              "value-as-program"),
    ("A=1 ${x}",                            "value-as-program"),
    ("${x}=1",                              "value-as-program"),
    ("sudo -u root ${x}",                   "value-as-program"),
    ("sudo -nu root -- ${x}",               "value-as-program"),
    ("env A=1 -u B ${x}",                   "value-as-program"),
    ("nohup nice -n 5 ${x}",                "value-as-program"),
    ("time -p ${x}",                        "value-as-program"),
    ("time { ${x}; }",                      "value-as-program"),
    ("time ! ${x}",                         "value-as-program"),
    ("time -f %e -o f ${x}",                "value-as-program"),
    ("/usr/bin/time -f %e ${x}",            "value-as-program"),
    ("env -- A=1 ${x}",                     "value-as-program"),
    ("env - ${x}",                          "value-as-program"),
    ("strace -o log ${x}",                  "value-as-program"),
    ("flock lock ${x}",                     "value-as-program"),
    ("find . -exec sudo -u me ${x} {} +",   "value-as-program"),
    ("exec ${x}",                           "value-as-program"),
    ("command ${x}",                        "value-as-program"),
    ("builtin ${x}",                        "value-as-program"),
    ("ls | xargs -n 1 ${x}",                "value-as-program"),
    ("timeout -k 1 5 ${x}",                 "value-as-program"),
    ("find . -exec ${x} {} +",              "value-as-program"),
    ("${N:-${x}} a",                        "value-as-program"),
    ("$(which ${x}) a",                     "value-as-program"),
    ("{ ${x}; }",                           "value-as-program"),
    ("echo $(${x})",                        "value-as-program"),
    ("cat <<E\n$(${x})\nE",                 "value-as-program"),
    ("$CMD ${x}",                           "program-may-vanish"),
    ("$SUDO $CMD ${x}",                     "program-may-vanish"),
    ("sudo $OPTIONS ${x}",                  "program-may-vanish"),
    ("$(which ls) ${x}",                    "program-may-vanish"),
    ("f() { \"$@\" ${x}; }",                "program-may-vanish"),
    ("\"${CMD[@]}\" ${x}",                  "program-may-vanish"),
    ("env -u $NAME ls ${x}",                "program-may-vanish"),
    ("ls | xargs -I $R ls ${x}",            "program-may-vanish"),
    ("$SUDO eval ${x}",                     "value-as-code"),
    ("sh -c $CODE ${x}",                    "value-as-code"),
    ("sh $OPTIONS -c ${x}",                 "value-as-code"),
    ("eval echo ${x}",                      "value-as-code"),
    ("e'v'al \"echo ${x}\"",                "value-as-code"),
    ("\\eval ${x}",                         "value-as-code"),
    ("eval \"$(echo ${x})\"",               "value-as-code"),
    (". ${x}",                              "value-as-code"),
    ("trap 'rm ${x}' EXIT",                 "value-as-code"),
    ("sh -c 'echo ${x}'",                   "value-as-code"),
    ("sh -ec \"echo ${x}\"",                "value-as-code"),
    ("bash -o pipefail -c \"${x}\" a",      "value-as-code"),
    ("/bin/sh -c -e \"${x}\"",              "value-as-code"),
    ("\"$SHELL\" -c \"${x}\"",              "value-as-code"),
    ("sudo -u me bash -c \"${x}\"",         "value-as-code"),
    ("find . -exec sh -c \"echo ${x}\" \\;", "value-as-code"),
    ("docker run img sh -c \"echo ${x}\"",  "value-as-code"),
    ("python3.11 -c 'print(\"${x}\")'",     "value-as-code"),
    ("python -Ic \"${x}\"",                 "value-as-code"),
    ("perl -ne 'print ${x}' f",             "value-as-code"),
    ("perl -e 1 -e \"${x}\"",               "value-as-code"),
    ("perl -e\"${x}\"",                     "value-as-code"),
    ("ruby -e ${x}",                        "value-as-code"),
    ("node --eval=${x}",                    "value-as-code"),
    ("node --print ${x}",                   "value-as-code"),
    ("php -r '${x}'",                       "value-as-code"),
    ("env -S \"echo ${x}\"",                "value-as-code"),
    ("watch ls ${x}",                       "value-as-code"),
    ("env --split-string=${x}",             "value-as-code"),
    ("env --split-string ${x} ls",          "value-as-code"),
    ("env --spl=${x}",                      "value-as-code"),
    ("su root -c ${x}",                     "value-as-code"),
    ("su - bob -c \"ls ${x}\"",             "value-as-code"),
    ("su bob -c\"${x}\"",                   "value-as-code"),
    ("sudo su bob --command=${x}",          "value-as-code"),
    ("runuser bob --session-command ${x}",  "value-as-code"),
    ("script log -c ${x}",                  "value-as-code"),
    ("flock lock -c ${x}",                  "value-as-code"),
    ("flock -w 5 lock -c ${x}",             "value-as-code"),
    ("flock --timeout 5 lock -c ${x}",      "value-as-code"),
    ("deno eval \"${x}\"",                  "value-as-code"),
    ("deno -q eval --ext=ts ${x}",          "value-as-code"),
    ("hash -p ${x} ls",                     "value-as-program"),
    (". /dev/stdin <<E\n${x}\nE",           "value-in-code-input"),
    (". -- /dev/stdin <<E\n${x}\nE",        "value-in-code-input"),
    (". /dev/fd/3 3<<E\n${x}\nE",           "value-in-code-input"),
    (". /proc/self/fd/0 <<E\n${x}\nE",      "value-in-code-input"),
    ("bash /dev/fd/3 3<<E\n${x}\nE",        "value-in-code-input"),
    ("python3 /dev/fd/$n <<E\n${x}\nE",     "value-in-code-input"),
    ("su bob <<E\n${x}\nE",                 "value-in-code-input"),
    ("xargs -I{} sh -c {} <<E\n${x}\nE",    "value-in-code-input"),
    ("xargs -I @ sudo sh -c 'ls @' <<E\n${x}\nE", "value-in-code-input"),
    ("xargs --replace sh -c {} <<E\n${x}\nE", "value-in-code-input"),
    ("xargs -I{} {} <<E\n${x}\nE",          "value-in-code-input"),
    ("wait -n -p ${x}",                     "value-as-name"),
    ("wait -np ${x} 1",                     "value-as-name"),
    ("wait -np${x}",                        "value-as-name"),
    ("sh <<E\necho ${x}\nE",                "value-in-code-input"),
    ("sudo bash -ex -s a <<E\n${x}\nE",     "value-in-code-input"),
    ("python3 - <<E\nprint('${x}')\nE",     "value-in-code-input"),
    ("ssh -p 22 host <<E\nls ${x}\nE",      "value-in-code-input"),
    ("ssh -o ${x} host",                    "value-as-remote-code"),
    ("ssh -oProxyCommand=${x} host",        "value-as-remote-code"),
    ("ssh host ls ${x}",                    "value-as-remote-code"),
    ("ssh -p 22 -o ProxyCommand=${x} host", "value-as-remote-code"),
    ("ssh -l me host \"cd '${x}'\"",        "value-as-remote-code"),
    ("for ${x} in a; do :; done",           "value-as-name"),
    ("${x}() { :; }",                       "value-as-name"),
    ("read -r ${x}",                        "value-as-name"),
    ("export ${x}",                         "value-as-name"),
    ("export ${x}=1",                       "value-as-name"),
    ("readonly a${x}=1",                    "value-as-name"),
    ("unset ${x}",                          "value-as-name"),
    ("printf -v ${x} a",                    "value-as-name"),
    ("getopts ab ${x}",                     "value-as-name"),
    ("[ ${x} ${y} ]",                       "value-as-operator"),
    ("[ ${x} ${y} ${z} ]",                  "value-as-operator"),
    ("[ a = b -o ${x} = c ]",               "value-as-operator"),
    ("[ -v ${x} ]",                         "value-as-operator"),
    ("[ $N ${x} ]",                         "value-as-operator"),
    ("[ ${x} = a",                          "value-as-operator"),
    ("test ${x} -a ${y}",                   "value-as-operator"),
    ("command [ ${x} ${y} ]",               "value-as-operator"),
    ("set ${x}",                            "value-as-option"),
    ("set -o ${x}",                         "value-as-option"),
    ("let n=${x}",                          "arithmetic"),
    ("echo $(( \"${x}\" ))",                "arithmetic-nested"),
    ("echo $(( $(wc -l < ${x}) + 1 ))",     "arithmetic-nested"),
    ("echo $(( ${N:-${x}} ))",              "arithmetic-nested"),
    ("a[${x}]=1",                           "subscript"),
    ("a[1 + ${x}]=1",                       "subscript"),
    ("a[b | c ${x}]=1",                     "subscript"),
    ("echo ${N[${x}]}",                     "subscript"),
    ("echo ${N:${x}}",                      "parameter-operand"),
    ("echo ${N:1:${x}}",                    "parameter-operand"),
    ("echo ${N/${x}/}",                     "parameter-operand"),
    ("echo ${N//a/${x}}",                   "parameter-operand"),
    ("echo ${N^^${x}}",                     "parameter-operand"),
    ("echo ${${x}}",                        "value-as-name"),
    (": ${N:=${x}}",                        "assigning-default"),
    ("cat <<'E'\n${x}\nE",                  "quoted-heredoc"),
    ("cat <<\"E\"\n${x}\nE",                "quoted-heredoc"),
    ("cat <<\\E\n${x}\nE",                  "quoted-heredoc"),
    ("cat <<${x}\na\n",                     "heredoc-delimiter"),
    ("echo a >&${x}",                       "descriptor"),
    ("cat <&${x}",                          "descriptor"),
    ("echo \\${x}",                         "backslash-before-placeholder"),
    ("echo \"\\${x}\"",                     "backslash-before-placeholder"),
    ("cat <<E\n\\${x}\nE",                  "backslash-before-placeholder"),
    ("echo $${x}",                          "dollar-before-placeholder"),
    ("echo \"$${x}\"",                      "dollar-before-placeholder"),
    ("PS4=${x}",                            "special-variable"),
    ("BASH_ENV=${x} true",                  "special-variable"),
    ("env ENV=${x} sh",                     "special-variable"),
    ("for OPTIND in ${x}; do :; done",      "special-variable"),
    ("export PS4=${x}",                     "special-variable"),
    ("read RANDOM < ${x}",                  "special-variable"),
    (": \"${PS4:=${x}}\"",                  "special-variable"),
    ("declare -a a=${x}",                   "array-declaration"),
    ("local -a a; local a=${x}",            "array-declaration"),
    ("declare -i n; n=${x}",                "integer-variable"),
    ("local -n r=a; echo ${x}",             "integer-variable"),
    ("echo {a,${x}}",                       "brace-expansion"),
    ("echo ${x}{1..3}",                     "brace-expansion"),
    ("curl -d {\"a\":${x},\"b\":1}",        "brace-expansion"),
    ("echo @(a|${x})",                      "extended-glob"),
    ("!(echo ${x})",                        "extended-glob"),
    ("echo `echo \\$HOME ${x}`",            "backtick-escapes"),
    ("echo `cat <<E\n${x}\nE\n`",           "backtick-escapes"),
    ("echo \"${N:-\"${x}\"}\"",             "nested-quotes"),
    ("echo \"${N:-'a'}\" ${x}",             "nested-quotes"),
    ("cat <<E\n${N:-\"a\"}\nE\necho ${x}",  "nested-quotes"),
    ("alias a=b; echo ${x}",                "alias"),
    ("coproc a; echo ${x}",                 "coproc"),
    ("echo $[1+1] ${x}",                    "dollar-bracket"),
    ("echo $((echo a); echo ${x})",         "double-parens"),
    ("((echo a); echo ${x})",               "double-parens"),
    ("echo a <\\\n<E ${x}\nE",              "split-operator"),
    ("echo $\\\n(a) ${x}",                  "split-operator"),
    ("cat <<E $(echo\n) ${x}\nE",           "heredoc-unclear"),
    ("cat <<E\na\\\nE\n${x}\nE",            "heredoc-unclear"),
    ("cat <<$E\n${x}\n$E",                  "heredoc-unclear"),
    ("a=$(cat <<E\na\nE\nb; c ${x})",        "heredoc-in-substitution"),
    ("a=$(cat <<E | b ${x}\na\nE\nc)",       "heredoc-in-substitution"),
    ("a=$(if b; then cat <<E\n${x}\nE\nfi; c)", "heredoc-in-substitution"),
    ("echo 'a ${x}",                        "unbalanced"),
    ("echo \"a ${x}",                       "unbalanced"),
    ("echo $(a ${x}",                       "unbalanced"),
    ("echo `a ${x}",                        "unbalanced"),
    ("echo ${N:-${x}",                      "unbalanced"),
    ("cat <<E\n${x}\n",                     "unbalanced"),
    ("echo $(cat <<E)\n${x}\nE",            "unbalanced"),
    ("(echo ${x}",                          "unbalanced"),
    ("case a in a) echo ${x}",              "unbalanced"),
    ("[[ -n ${x}",                          "unbalanced"),
    ("echo ${x} )",                         "unexpected"),
    ("echo a(${x})",                        "unexpected"),
    ("echo >; echo ${x}",                   "unexpected"),
    ("case a b ${x}",                       "unexpected"),
    ("$(" * (MAX_DEPTH + 1) + "${x}",       "too-deep"),
    ("echo \0 ${x}",                        "nul-in-script"),
]  # fmt: skip

SH_REFUSED = [
    ("(( ${x} ))",                          "arithmetic"),
    ("for ((i=${x};;)); do :; done",        "arithmetic"),
    ("[[ ${x} -eq 1 ]]",                    "bash-only"),
    ("echo $'${x}'",                        "bash-only"),
    ("echo $'\\'' ${x}",                    "bash-only"),
    ("cat <<< ${x}",                        "bash-only"),
    ("[[ -n ${x} ]]",                       "bash-only"),
    ("a=(${x})",                            "bash-only"),
    ("a+=${x}",                             "bash-only"),
    ("a[0]=${x}",                           "bash-only"),
    ("wait -n -p ${x}",                     "value-as-name"),
    ("wait -np ${x}",                       "value-as-name"),
    ("a=(1); declare a=${x}",               "array-declaration"),
    (". /dev/stdin <<E\n${x}\nE",           "value-in-code-input"),
    (". /dev/fd/3 3<<E\n${x}\nE",           "value-in-code-input"),
    ("bash /dev/fd/3 3<<E\n${x}\nE",        "value-in-code-input"),
    ("xargs -I{} sh -c {} <<E\n${x}\nE",    "value-in-code-input"),
    ("su root -c ${x}",                     "value-as-code"),
    ("su - bob -c \"ls ${x}\"",             "value-as-code"),
    ("flock lock -c ${x}",                  "value-as-code"),
    ("env --split-string=${x}",             "value-as-code"),
    ("env --split-string ${x}",             "value-as-code"),
    ("bash <(echo ${x})",                   "value-as-code"),
    ("deno eval \"${x}\"",                  "value-as-code"),
    ("hash -p ${x} ls",                     "value-as-program"),
]  # fmt: skip

BASH_REFUSED = [
    ("bash <<< ${x}",                       "value-in-code-input"),
    ("declare a[${x}]=1",                   "subscript"),
    ("source /dev/stdin <<< ${x}",          "value-in-code-input"),
    (". <(cat) <<< ${x}",                   "value-in-code-input"),
    (". <(echo ${x})",                      "value-as-code"),
    ("bash <(echo ${x})",                   "value-as-code"),
    ("sudo python3 -I <(echo ${x}) a",      "value-as-code"),
    ("x=(1); declare x=${x}",               "array-declaration"),
    ("f() { local x=${x}; }; x[1]=1",       "array-declaration"),
    ("(( x[0] = 1 )); export x=${x}",       "array-declaration"),
    ("let 'x[0]=1'; readonly x=${x}",       "array-declaration"),
    ("read -ra x; typeset x=${x}",          "array-declaration"),
    ("mapfile -t \"x\"; declare x=${x}",    "array-declaration"),
    ("mapfile -t \"$n\"; declare x=${x}",   "array-declaration"),
    ("declare -A \"$n\"; declare x=${x}",   "array-declaration"),
    ("declare PIPESTATUS=${x}",             "array-declaration"),
    ("declare -A m=([${x}]=1)",             "subscript"),
    ("[[ a[${x}] -eq 1 ]]",                 "arithmetic"),
    ("[[ 1 -lt $(echo ${x}) ]]",            "arithmetic"),
    ("[[ 1 -lt ${N:-${x}} ]]",              "arithmetic"),
    ("(( n = \"${x}\" ))",                  "arithmetic-nested"),
    ("[[ -v ${x} ]]",                       "arithmetic"),
    ("a=([${x}]=1)",                        "subscript"),
    ("a=([1 + ${x}]=1)",                    "subscript"),
    ("echo $'\\${x}'",                      "backslash-before-placeholder"),
    ("echo $'\\c${x}'",                     "backslash-before-placeholder"),
    ("mapfile -t ${x}",                     "value-as-name"),
    ("declare ${x}",                        "value-as-name"),
    ("function ${x} { :; }",                "value-as-name"),
    ("select ${x} in a; do :; done",        "value-as-name"),
    ("compgen -W ${x}",                     "value-as-code"),
    ("source ${x}",                         "value-as-code"),
]  # fmt: skip


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(("template", "code"), REFUSED)
def test_a_place_where_no_value_may_stand(template: str, code: str, dialect: Dialect) -> None:
    assert code in codes(template, dialect)


@pytest.mark.parametrize(("template", "code"), SH_REFUSED)
def test_a_place_of_bash_where_no_value_may_stand_in_sh(template: str, code: str) -> None:
    assert codes(template, "sh") == [code]


@pytest.mark.parametrize(("template", "code"), BASH_REFUSED)
def test_a_place_where_no_value_may_stand_in_bash(template: str, code: str) -> None:
    assert code in codes(template, "bash")


def test_every_refusal_has_a_row() -> None:
    assert {code for _, code in [*REFUSED, *SH_REFUSED, *BASH_REFUSED]} == set(REFUSALS)


ACCEPTED = [
    "sh -c 'echo \"$1\"' sh ${x}",
    "python -m json.tool ${x}",
    "python script.py <<E\n${x}\nE",
    "sh -c 'cat' <<E\n${x}\nE",
    "sh -s -- ${x} <<'E'\necho \"$1\"\nE",
    ". ./lib.sh <<E\n${x}\nE",
    "xargs -I{} sh -c 'echo \"$1\"' sh {} <<E\n${x}\nE",
    "xargs -n 1 python script.py <<E\n${x}\nE",
    "xargs wc -l <<E\n${x}\nE",
    "ls | xargs wc -l ${x}",
    "ls | xargs; echo ${x}",
    "flock lock grep -c ${x} file",
    "su bob -c 'uptime'; echo ${x}",
    "wait ${x}",
    "hash ${x}",
    "deno run script.ts ${x}",
    "ssh host cat <<E\n${x}\nE",
    "python script.py -c ${x}",
    "ssh ${x} uptime",
    "ssh -oBatchMode=yes -i ${x} ${y}",
    "sudo -u ${x} ls",
    "sudo -u root -- ls ${x}",
    "timeout ${x} ls",
    "env A=${x} ls",
    "command -v ${x}",
    "[ ${x} ]",
    "[ ! ${x} ]",
    "[ -n ${x} ] && [ ! -f ${y} ]",
    "[ ! ${x} = ${y} ]",
    "test ${x} -gt 3",
    "[ $(wc -l < ${x}) -gt 5 -a -n \"$N\" ]",
    "export A=${x} B='${y}'",
    "readonly A=${x}",
    "f() { local a=${x}; }",
    "set -- ${x}",
    "printf '%s' ${x}",
    "read -r line < ${x}",
    "trap 'rm -f \"$f\"' EXIT; f=${x}",
    "exec > ${x}",
    "git commit -m '${x}'",
    "$SUDO ls ${x}",
    "\"$CMD\" ${x}",
    "env -u \"$NAME\" ls ${x}",
    "echo ${x} {} {a} }",
    "find . -name ${x} -exec wc -l {} +",
    "eval \"$setup\"; echo ${x}",
    "while read -r l; do echo \"$l\" ${x}; done < ${y}",
]  # fmt: skip


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("template", ACCEPTED)
def test_what_authors_write_every_day_is_accepted(template: str, dialect: Dialect) -> None:
    assert codes(template, dialect) == []


def test_a_refusal_says_what_where_and_what_to_write_instead() -> None:
    refusals = lexed("echo a; ${x} b; eval ${y}", "sh").refusals
    assert [(r.code, r.start, r.end, r.what, r.fix) for r in refusals] == [
        ("value-as-program", 8, 12, *REFUSALS["value-as-program"]),
        ("value-as-code", 21, 25, *REFUSALS["value-as-code"]),
    ]


def test_a_place_in_the_text_is_found_behind_placeholders() -> None:
    template = "echo ${x} 'open"
    assert [(r.code, template[r.start]) for r in lexed(template, "sh").refusals] == [
        ("unbalanced", "'")
    ]


def test_raw_values_may_stand_anywhere() -> None:
    for template in (
        "${x:raw} a",
        "eval ${x:raw}",
        "echo \\${x:raw}",
        "[ ${x:raw} a ]",
        "sh -c '${x:raw}'",
    ):
        assert codes(template, "sh") == []


@pytest.mark.parametrize(
    "template",
    ["echo 'open", "eval $x", "cat <<E", "a(b", "alias a=b", "$(" * 500, "alias a=${x:raw}"],
)
def test_a_script_without_placeholders_is_its_authors_own(template: str) -> None:
    assert codes(template, "sh") == []


SPREADS = [
    # template                        which placeholders may become several words
    ("cp ${x} 'a' ${y} b${z}",        [True, True, False]),
    ("cp \"${x}\" '${y}' ${N:-${z}}", [False, False, False]),
    ("for i in ${x}; do :; done",     [True]),
    ("x=${x} y ${y}",                 [False, True]),
    ("a > ${x} <${y}",                [False, False]),
    ("case ${x} in ${y}) ;; esac",    [False, False]),
    ("[ -n ${x} ]",                   [False]),
    ("timeout ${x} ls ${y}",          [False, True]),
    ("ssh ${x}",                      [False]),
]  # fmt: skip


@pytest.mark.parametrize(("template", "expected"), SPREADS)
def test_a_list_spreads_only_as_a_whole_argument(template: str, expected: list[bool]) -> None:
    assert [place.spread for place in lexed(template, "sh").places] == expected


ASSIGNED = [
    ("a=1 b+=2; c=3 cmd",                     {"a", "b", "c"}),
    ("for i in 1; do j=$i; done",             {"i", "j"}),
    ("echo $((n = 1)) $((m++)) $((k <= 2)) $((--o)); ((p += 1)); let q=2", {"n", "m", "o", "p", "q"}),
    ("read -r line; export A=1 B; local c=2", {"line", "A", "B", "c"}),
    ("getopts ab: opt; declare -r d=1",       {"opt", "d"}),
    (": ${N:=1}; printf -v out %s x",         {"N", "out"}),
    ("if true; then a=$(b=1; echo $b); fi",   {"a", "b"}),
    ("echo 'a=1' b=2 # c=3",                  set()),
    ("f() { x=1; }; case a in a) y=2;; esac", {"x", "y"}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), ASSIGNED)
def test_the_names_that_a_script_sets(script: str, expected: set[str]) -> None:
    assert lexed(script, "bash").assigned == expected


TOKENS = [
    *[
        "'",
        '"',
        "`",
        "$(",
        ")",
        "$((",
        "))",
        "((",
        "${",
        "${N:-",
        "}",
        "{",
        "\\",
        "\n",
        " ",
        "<<E\n",
        "\nE\n",
        "#",
    ],
    *[
        "case x in ",
        "esac",
        " a) ",
        ";;",
        "[[ ",
        " ]] ",
        "[ ",
        " ] ",
        "a[",
        "]=",
        "a=( ",
        "eval ",
        "$'",
        "<(",
        "x ",
    ],
]

soup = st.lists(
    st.sampled_from([*TOKENS, ValueSlot(0, 0, 4)]) | st.text(string.printable, max_size=3),
    max_size=30,
)


@settings(max_examples=examples(400), deadline=None)
@given(soup, st.sampled_from(BOTH))
def test_no_text_makes_the_lexer_fail_or_lose_a_placeholder(
    made: list[Piece], dialect: Dialect
) -> None:
    answer = analyse(made, dialect)
    assert len(answer.places) == sum(isinstance(piece, ValueSlot) for piece in made)
    assert all(refusal.code in REFUSALS for refusal in answer.refusals)


# ── long and repeated text ───────────────────────────────────────────────


def test_shell_text_has_a_limit() -> None:
    most = "x" * (MAX_SHELL_TEXT - 7)
    assert states("echo ${x} " + most, "sh") == ["bare"]
    with pytest.raises(LimitError) as caught:
        lexed("echo ${x} x" + most, "sh")
    assert str(caught.value) == (
        "shell text of 262,145 characters; the limit is 262,144\n"
        "fix: put the text into a file and run that: sh script.sh ${x}"
    )
    assert caught.value.code == "shell-text-too-long"


HEAVY = [
    # A reader that looks again at what it has read would need minutes or hours for each of these.
    "sh <<A;" * 15_000,
    "a[" + "x" * 100_000 + "]" + "=()" * 40_000,
    "a" * 100_000 + "[]b" * 40_000,
    "`" + "\\a" * 100_000 + "`",
    "cat " + "<<A " * 30_000 + "\n" + "A\n" * 30_000,
    "cat <<A\n" + "$(cat <<B\n" * 60 + "x\n" * 100_000,
    "sudo " * 50_000,
    "$x -c " * 40_000,
]


@pytest.mark.parametrize("text", HEAVY, ids=lambda text: text[:12])
def test_long_text_is_read_once(text: str) -> None:
    answer = analyse(["echo ", ValueSlot(0, 5, 9), "\n" + text], "bash")
    assert [place.state for place in answer.places] == ["bare"]


def test_the_same_script_is_analysed_once() -> None:
    assert lexed("once ${x}", "sh") is lexed("once ${x}", "sh")
    assert lexed("once ${x}", "sh") is not lexed("once ${x}", "bash")
    assert lexed("once ${x:opt}", "sh") is not lexed("once ${x}", "sh")


@pytest.mark.parametrize(
    "long", ["echo ${x} " + "y" * MAX_CACHED, "echo" + " ${x}" * (MAX_CACHED // 64)]
)
def test_the_answer_to_a_long_script_is_not_kept(long: str) -> None:
    assert lexed(long, "sh") is not lexed(long, "sh")
    assert lexed(long, "sh") == lexed(long, "sh")
