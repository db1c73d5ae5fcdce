"""What `check` finds in documents, and what it leaves alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.documents import parse
from plait.core.errors import InputError
from plait.lang.check import check_document, check_file, flow_files
from plait.lang.findings import RULES, Finding
from plait.template.shell.lexer import MAX_SHELL_TEXT
from share import examples


def findings(
    text: str, *, profile: str | None = None, names: tuple[str, ...] = ()
) -> list[Finding]:
    return check_document(parse(text, "flow.yaml"), "flow.yaml", profile=profile, names=names)


def found(text: str, *, profile: str | None = None, names: tuple[str, ...] = ()) -> list[str]:
    """`line severity code`, and the first quoted name."""
    rows = []
    for finding in findings(text, profile=profile, names=names):
        line = finding.problem.place[1]
        name = finding.problem.what.partition("'")[2].partition("'")[0]
        rows.append(f"{line} {finding.severity} {finding.code} {name}".rstrip())
    return rows


FLOW = """\
env: {MAX: "3"}
parameters: {required: [{name: target}], optional: [mode]}
setup:
  - shell: git rev-parse HEAD
    capture_output: base
map:
  input: items.json
  agent_template:
    - shell: wc -l ${item.path} ${base} ${MAX} ${target} ${mode} ${item_index}
      capture_output: lines
    - claude: /fix ${item} ${lines} ${last.output} ${workflow.name}
reduce:
  - shell: echo ${map.results} ${base}
merge:
  - shell: git merge ${merge.source_branch}
"""


def test_a_correct_flow_has_no_findings() -> None:
    assert found(FLOW) == []


CONDITIONS = [
    # when, with n, l, b, t and twice captured as number, lines, boolean, text, and in two forms     findings
    ("${n} > 'abc'",                    ["'${n}' is a number and is compared with a string"]),
    ("'abc' <= ${n}",                   ["''abc'' is a string and is compared with a number"]),
    ("${l} > 3",                        ["'${l}' is a list, which has no order"]),
    ("${b} < 1",                        ["'${b}' is true or false, which has no order"]),
    ("contains(5, 'a')",                ["'5' is a number, for which 'contains' has no answer"]),
    ("contains(${n}, 'a')",             ["'${n}' is a number, for which 'contains' has no answer"]),
    ("starts_with(${l}, 'a')",          ["'${l}' is a list, for which 'starts_with' has no answer"]),
    ("matches(true, 'a')",              ["'true' is true or false, for which 'matches' has no answer"]),
    ("${n} > 3 && ${n} > '3'",          []),
    ("contains(${l}, 'a')",             []),
    ("length(${l}) > 3",                []),
    ("${l[0]} > 3 and ${l | length} > 3", []),
    ("${n:-abc} > 'abc'",               []),
    ("${t} > 3",                        []),
    ("${twice} > 3",                    []),
    ("${b} and ${n} == 'abc'",          []),
]  # fmt: skip


@pytest.mark.parametrize(("when", "expected"), CONDITIONS)
def test_a_condition_fits_what_its_names_hold(when: str, expected: list[str]) -> None:
    flow = """\
- {shell: a, capture_output: n, capture_format: number}
- {shell: a, capture_output: l, capture_format: lines}
- {shell: a, capture_output: b, capture_format: boolean}
- {shell: a, capture_output: t}
- {shell: a, capture_output: twice, capture_format: lines}
- {shell: a, capture_output: twice, capture_format: json}
"""
    assert [
        one.problem.what for one in findings(f"{flow}- {{shell: b, when: {json.dumps(when)}}}\n")
    ] == expected


HEADS = [
    # head                                                          names that are needed too early
    ("env: {A: '${B}', B: '${A}'}",                                 ["B"]),
    ("env: {A: '${A}'}",                                            ["A"]),
    ("env: {A: 1, B: '${A}', C: '${A}${B}'}",                       []),
    ("env: {A: '${B:-x}', B: 1}",                                   []),
    ("vars: {A: '${B}'}\nenv: {B: 1}",                              ["B"]),
    ("vars: {A: 1}\nenv: {B: '${A}'}",                              []),
    ("parameters: {A: {}}\nenv: {A: '${A}'}",                       []),
    ("secrets: {A: {env: X}}\nvars: {B: '${A}'}",                   []),
    ("env: {A: '${env.A}'}",                                        []),
]  # fmt: skip


@pytest.mark.parametrize(("head", "early"), HEADS)
def test_a_value_of_the_head_knows_only_what_stands_above_it(head: str, early: list[str]) -> None:
    rows = found(f"{head}\nsteps: [{{shell: ls}}]\n")
    assert [row.partition(" ")[2] for row in rows] == [
        f"error unknown-name {name}" for name in early
    ]


TOO_EARLY = [
    # what is filled before anything runs                           findings
    ("vars: {V: '${file:ver.txt}'}",                                ["1 error unknown-name ${file:ver.txt}"]),
    ("env: {V: 'v${cmd:cat ver.txt}'}",                             ["1 error unknown-name ${cmd:cat ver.txt}"]),
    ("profiles: {p: {V: '${file:ver.txt}'}}",                       ["1 error unknown-name ${file:ver.txt}"]),
    ("timeout: '${cmd:echo 3}'",                                    ["1 error unknown-name ${cmd:echo 3}"]),
    ("vars: {V: '${file:ver.txt:-none}'}",                          ["1 error unknown-name ${file:ver.txt:-none}"]),
    ("vars: {file: x, V: '${file:json} ${date:%Y} ${uuid}'}",       []),   # a variable of that name
]  # fmt: skip


@pytest.mark.parametrize(("head", "expected"), TOO_EARLY)
def test_the_head_reads_no_file_and_runs_no_command(head: str, expected: list[str]) -> None:
    assert found(f"{head}\nsteps: [{{shell: ls}}]\n") == expected


BEHIND_NOTHING = [
    # flow                                                                              names that nothing can answer
    ("steps: [{shell: 'echo ${last.output}'}]\n",                                       ["last.output"]),
    ("steps: [{shell: ls, when: '${last.success}'}]\n",                                 ["last.success"]),
    ("- {shell: ls}\n- {shell: 'echo ${last.output} ${shell.output}'}\n",               []),
    ("- {claude: ls}\n- {shell: 'echo ${last.output} ${shell.output}'}\n",              ["shell.output"]),
    ("- /do it\n- {shell: 'echo ${last.output}'}\n",                                    []),
    ("steps: [/do it, {shell: 'echo ${last.output} ${shell.output}'}]\n",               ["shell.output"]),
    ("map: {input: [1], steps: [/do it, {foreach: [a], do: [{claude: '${last.output}'}]}]}\n", []),
    ("steps: [{claude: a, on_failure: [ls, {claude: '${shell.output}'}], on_success: [/do it, {claude: '${shell.output}'}]}]\n", ["shell.output"]),
    ("setup: [{shell: ls}]\nmap: {input: [1], steps: [{shell: 'echo ${last.output}'}]}\n"
     "reduce: [{shell: 'echo ${last.output}'}, {shell: 'echo ${shell.output}'}]\n"
     "merge: [{shell: 'echo ${shell.output}'}]\n",
     ["last.output", "last.output", "shell.output"]),
    ("steps: [{shell: ls, on_failure: '/fix ${last.output} ${shell.stderr}'}]\n",        []),
    # a name of the author's that is called like it
    *((f"{declared}map: {{input: [1], steps: [{{shell: 'echo ${{shell}}'}}]}}\nreduce: [{{shell: 'echo ${{shell}}'}}]\n", [])
      for declared in ("env: {shell: zsh}\n", "vars: {shell: zsh}\n", "parameters: {shell: {default: zsh}}\n",
                   "setup: [{shell: echo zsh, capture_output: shell}]\n",
                   "env: {shell: zsh}\nsetup: [{shell: ls}]\n")),
    ("steps: [{test: {command: ls, on_failure: '/fix ${last.output} ${shell.stderr}'}}]\n", []),
    ("steps: [{test: {command: ls, on_failure: '/fix ${said}'}, capture_output: said}]\n", []),
    ("steps: [{test: {command: 'ls ${last.output}', on_failure: '/fix it'}}]\n",         ["last.output"]),
    ("steps: [{claude: ls, on_success: {shell: 'echo ${last.output} ${shell.output}'}}]\n", ["shell.output"]),
    ("steps: [{shell: ls, validate: {shell: 'test ${last.output}', on_incomplete: {shell: 'echo ${last.output}'}}}]\n", []),
    ("steps: [{foreach: [a], do: [{shell: 'echo ${last.output}'}, {shell: 'echo ${last.output}'}]}]\n", ["last.output"]),
    ("steps: [{shell: ls}, {foreach: [a], do: [{shell: 'echo ${last.output}'}]}]\n",    []),
    ("blocks: {b: [{shell: 'echo ${last.output}'}, {shell: 'echo ${shell.output}'}]}\n"
     "steps: [{use: b}, {shell: 'echo ${last.output}'}, {claude: 'say ${shell.output}'}]\n", ["last.output"]),
    ("blocks: {b: [{shell: ls}]}\nsteps: [{use: b}, {shell: 'echo ${shell.output}'}]\n", ["shell.output"]),
    ("steps: [{shell: 'echo ${last.output:-none}', when: '!${last.exists}'}]\n",        []),
    ("steps: [{test: {command: ls}}, {shell: 'echo ${shell.output}'}]\n",               []),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "expected"), BEHIND_NOTHING)
def test_the_output_of_the_step_before_is_known_only_behind_a_step(
    flow: str, expected: list[str]
) -> None:
    unknown = [one.problem.what for one in findings(flow) if one.problem.code == "unknown-name"]
    assert unknown == [f"unknown variable '{name}'" for name in expected]


WAYS = [
    # flow                                                                              names that no way leads to
    # a step that is one string, in the variables of its phase
    ("map: {env: {m: x}, input: [1], steps: ['/do ${m} ${n}']}\nreduce: {env: {n: x}, steps: ['/do ${n} ${m}']}\n", ["n", "m"]),
    # a check: what its steps capture or leave behind ends with it, and before it nothing was found
    ("steps: [{claude: a, validate: {steps: [{shell: ls, capture: c}], result_file: '${c}', on_incomplete: '/do ${c} ${shell.output}'}, "
     "on_success: '/say ${c}'}, {claude: '${c}'}]\n",                                     ["c", "c", "shell.output", "c", "c"]),
    ("steps: [{claude: a, validate: {steps: [{shell: ls, capture: c}, {claude: '${c} ${shell.output}'}]}}]\n", []),
    ("steps: [{claude: a, validate: {shell: 'test ${validation.gaps}'}, on_failure: '/do ${validation.gaps}', "
     "on_exit_code: {0: '/do ${validation.gaps}'}}]\n",                                  ["validation.gaps"] * 3),
    ("steps: [{claude: a, validate: {shell: ls}, on_success: '/do ${validation.gaps}'}, {claude: '${validation.gaps}'}]\n", []),
    ("steps: [{claude: a, validate: {shell: ls, on_incomplete: [{shell: ls, capture: c}]}, on_success: '/do ${c}'}, {claude: '${c}'}]\n", []),
    # ways that exclude each other
    ("steps: [{claude: a, on_exit_code: {1: [{shell: ls, capture: c}], 3: '/do ${c}', 0: '/do ${c}'}, on_success: '/do ${c}', "
     "validate: 'test ${c}', on_failure: '/do ${c}'}, {claude: '${c}'}]\n",              ["c"] * 5),
    ("steps: [{claude: a, on_failure: [{shell: ls, capture: c}], on_success: '/do ${c}', on_exit_code: {3: '/do ${c}'}}]\n", ["c", "c"]),
    ("steps: [{claude: a, on_exit_code: {0: [{shell: ls, capture: c}]}, validate: 'test ${c}', on_success: '/do ${c}'}]\n", []),
    ("steps: [{claude: a, on_exit_code: {0: 'ls'}, on_success: '/do ${shell.output}'}, {claude: '${shell.output}'}]\n", ["shell.output", "shell.output"]),
    # a step that is tried again behind its handler may be done then
    *((f"steps: [{{claude: a, on_success: '/do ${{c}}', on_exit_code: {{0: '/do ${{c}}', 3: '/do ${{c}}'}}, validate: 'test ${{c}}', on_failure: {declared}}}]\n", [])
      for declared in ("{shell: ls, capture: c, max_attempts: 2}",
                   "{steps: [{shell: ls, capture: c}], retry_original: true}", "{claude: /fix, capture: c}")),
    ("steps: [{claude: a, on_success: '/do ${c}', on_failure: {shell: ls, capture: c, max_attempts: 0}}]\n", ["c"]),
    ("steps: [{test: {command: ls, on_failure: {shell: ls, capture: c, max_attempts: 1}}, on_success: '/do ${c}'}]\n", []),
    # a block that fails keeps what it captured for itself
    ("blocks: {b: [{shell: ls, capture: c}]}\nsteps: [{use: b, on_failure: '/do ${c}', on_success: '/do ${c}'}, {claude: '${c}'}]\n", ["c"]),
    # but captures of the handler of its failing step are given with the failure
    ("blocks: {b: [{shell: ls, on_failure: {shell: ls, capture: c, max_attempts: 1}}]}\nsteps: [{use: b, on_failure: '/do ${c}'}]\n", []),
    ("blocks: {b: [{use: i}], i: [{test: {command: ls, on_failure: {shell: ls, capture: c, max_attempts: 1}}}]}\n"
     "steps: [{use: b, on_failure: '/do ${c}'}]\n",                                      []),
    # what is captured under a name that was given inside goes on outside
    ("blocks: {b: [{shell: ls, capture: c}]}\nsteps: [{use: b, with: {c: 1}}, {claude: '${c}'}]\n", []),
    ("blocks: {b: [{shell: ls}]}\nsteps: [{use: b, with: {c: 1}}, {claude: '${c}'}]\n",    ["c"]),
    ("steps: [{shell: ls, on_failure: [{shell: ls, capture: error}]}, {claude: '${error}'}]\n", []),
    ("steps: [{foreach: [a], do: [{shell: ls, capture: item}]}, {claude: '${item}'}]\n",   ["item"]),
    # a handler with several commands does one after the other
    ("steps: [{claude: a, on_failure: {shell: ls, capture: c, claude: '/do ${c} ${shell.output}'}}]\n", []),
    ("steps: [{claude: a, on_failure: {claude: '/do ${c} ${shell.output}', shell: ls, capture: c}}]\n", ["c", "shell.output"]),
    # what setup names in one place is known behind the step that prints it
    ("setup: {steps: [{claude: '${c}', on_failure: '/do ${c}', on_success: '/do ${c}'}, {claude: '${c} ${d}'}, {shell: 'echo ${d}'}], "
     "capture_outputs: {c: 0, d: {command_index: 1}}}\nreduce: [{claude: '${c} ${d}'}]\n", ["c", "d"]),
    # what a map does outside of its steps is done by none
    ("map: {input: {command: 'ls ${step.name}'}, id: '${item} ${step.id}', max_parallel: '${step.index}', steps: [{shell: ls}]}\n",
     ["step.name", "step.id", "step.index"]),
    ("map: {input: {command: 'ls ${git.branch} ${workflow.files}'}, id: '${item} ${git.commit}', steps: [{shell: ls}]}\n", []),
    # the env of a phase is filled before its first step, wherever it stands
    *((f"{phase}: {{{more}steps: [{{shell: ls, capture: c}}], env: {{y: '${{c}} ${{last.output}}'}}}}\n", ["c", "last.output"])
      for phase, more in (("setup", ""), ("map", "input: [1], "), ("reduce", ""))),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "expected"), WAYS)
def test_a_name_is_known_where_some_way_through_the_steps_leads_from_it(
    flow: str, expected: list[str]
) -> None:
    assert [one.problem.what for one in findings(flow) if one.severity == "error"] == [
        f"unknown variable '{name}'" for name in expected
    ]


HIDDEN = [
    # head                                        line:column of names that steps hide
    ("env: {shell: zsh}\n",                       ["1:7"]),
    ("vars: {last: 1, first: 2}\n",               ["1:8"]),
    ("parameters:\n  shell: {default: zsh}\n",    ["2:3"]),
    ("vars: {map: 1}\n",                          []),
]  # fmt: skip


@pytest.mark.parametrize(("head", "expected"), HIDDEN)
def test_a_name_that_steps_hide_is_warned_of(head: str, expected: list[str]) -> None:
    found = [
        one
        for one in findings(f"{head}steps: [{{shell: ls}}]\n")
        if one.problem.code == "shadowed-name"
    ]
    places = [one.problem.where.source.position(one.problem.where.start) for one in found]  # type: ignore[union-attr]
    assert [f"{line}:{column}" for line, column in places] == expected
    assert {one.severity for one in found} <= {"warning"}


ELSEWHERE = [
    # name in the first step     hint where it exists
    ("last.output",              "'last' exists behind a step of the same list; "),
    ("shell.output",             "'shell' exists behind a step of shell text of the same list; "),
    ("error.message",            "'error' exists in on_failure, on_exit_code; "),
    ("validation.gaps",          "'validation' exists in on_incomplete; "),
    ("map.total",                "'map' exists in reduce, merge; "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hint"), ELSEWHERE)
def test_a_built_in_name_that_is_not_known_says_where_it_is(name: str, hint: str) -> None:
    [finding] = findings(f"- claude: ${{{name}}}\n")
    assert finding.problem.fix == f"{hint}known in flow: step, workflow, git, env, uuid"


ADDRESSES = [
    # an http step in map, where `base` is captured and `site` a parameter             findings
    ("http: 'https://h/${item}?q=${base}'",                                            []),
    ("http: '${item}'",                                                                ["7 url-origin"]),
    ("http: {url: '${item}/x', headers: {Authorization: 'Bearer ${KEY}'}}",            ["7 url-origin"]),
    ("http: '${base}/x'",                                                              ["7 url-origin"]),
    ("http: '${item || site}'",                                                        ["7 url-origin"]),
    ("http: '${site:-${item}}'",                                                       ["7 url-origin"]),
    ("http: 'https://${item}/x'",                                                      ["7 url-origin"]),
    ("http: 'https://h.${item}'",                                                      ["7 url-origin"]),
    ("http: 'https://u@${item}'",                                                      ["7 url-origin"]),
    ("http: ftp://x/y",                                                                ["7 url-origin"]),
    ("http: /rel",                                                                     ["7 url-origin"]),
    ("http: 'https:///x'",                                                             ["7 url-origin"]),
    ("http: {url: x.org}",                                                             ["7 url-origin"]),
    ("http: '${site}/x'",                                                              []),
    ("http: '${KEY}/x'",                                                               []),
    ("http: '${env.SITE}/x'",                                                          []),
    ("http: '${site:-https://h}/x'",                                                   []),
    ("http: {url: '${item}', allow_hosts: [h.org, '*.h.org', 'http://localhost:80']}", []),
    ("http: {url: '${item}', allow_hosts: ['*']}",                                     []),
    ("http: {url: '${item}', allow_hosts: ['*'], headers: {Cookie: a}}",               ["7 url-origin Cookie"]),
    ("http: {url: '${item}', allow_hosts: [h.org], headers: {Cookie: a}}",             []),
    ("http: {url: '${item}', allow_hosts: []}",                             ["7 missing-field allow_hosts", "7 url-origin"]),
    ("http: {url: '${item}', allow_hosts: h.org}",                                     []),
    ("http: {url: '${item}', allow_hosts: ['h/x']}",                                   ["7 wrong-type allow_hosts"]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), ADDRESSES)
def test_where_a_request_goes_is_the_authors_word(step: str, expected: list[str]) -> None:
    head = "parameters: {site: {}}\nenv: {KEY: k}\nsetup: [{shell: ls, capture_output: base}]\n"
    flow = f"{head}map:\n  input: a.json\n  steps:\n    - {step}\n"
    assert sorted(row.replace("error ", "") for row in found(flow)) == expected


STEPS = [
    # one step in map                                           findings
    ("shell: cat ${itme.path}",                                 ["5 error unknown-name itme.path"]),
    ("shell: cat ${itme}",                                      ["5 error unknown-name itme"]),
    ("shell: cat ${ITME}",                                      []),                     # the shell's environment
    ("shell: f=1; cat ${f} $f $g",                              []),                     # the script's own
    ("shell: for f in a b; do cat ${f}; done",                  []),
    ("shell: while read -r l; do echo ${l}; done",              []),
    ("shell: cat ${HOME} ${x%.c} ${#x} $1 $(ls)",               []),
    ("claude: do ${ITME}",                                      ["5 error unknown-name ITME"]),
    ("claude: do $ITME",                                        []),
    ("shell: cat ${ARG} ${FILE}",                               ["5 warning deprecated-alias ARG", "5 warning deprecated-alias FILE"]),
    ("shell: FILE=x; cat ${FILE}",                              []),
    ("shell: echo $((item_index * 2)) $(( 1 + (item_total) ))", ["5 warning bare-name item_index", "5 warning bare-name item_total"]),
    ("shell: echo $((${item_index} * 2 + $item_total))",        []),
    ("shell: item_index=1; echo $((item_index + OTHER)) item_id", []),
    ("{shell: echo $((N + 1)), env: {N: 5}}",                   []),                     # the shell has it, too
    ("shell: echo ${item%.c} ${#item_id}",                      ["5 warning bare-name item", "5 warning bare-name item_id"]),
    ("shell: echo ${item_id-x} ${item_id:0:3} ${item_id:+y}",   ["5 warning bare-name item_id"] * 3),
    ("shell: i=${item_id}; echo ${i%.c} ${item_id:-x} ''${item%.c}''", []),
    ("shell: item=${item}; echo ${item%.c} ${other%.c}",        []),
    ("{shell: 'echo ${N%.c}', env: {N: 5}}",                    []),                     # the shell has it, too
    ("shell: cat ${item.x:raw}",                                ["5 warning raw-value :raw"]),
    ("shell: cat ${item.x:jsn}",                                ["5 error unknown-format :jsn"]),
    ("shell: cat ${item.x | uper}",                             ["5 error unknown-filter uper"]),
    ("claude: do ${} and ${item.x",                             ["5 warning malformed-placeholder", "5 warning malformed-placeholder ${"]),
    ("claude: do $${itme.path} {itme}",                         []),
    ("claude: do ${workflow.nmae}",                             ["5 error unknown-name workflow.nmae"]),
    ("claude: do ${item.anything.at[0].all}",                   []),
    ("claude: do ${map.results}",                               ["5 error unknown-name map.results"]),
    ("claude: do ${map.results:-none} ${timeout:-5}",           []),
    ("claude: do ${itme.path:-none}",                           ["5 warning unknown-name itme.path"]),
    ("claude: do ${itme.path || item.x}",                       ["5 warning unknown-name itme.path"]),
    ("claude: do ${a.b | default(1)}",                          ["5 warning unknown-name a.b"]),
    ("claude: do ${x:-${itme.path}}",                           ["5 error unknown-name itme.path"]),
    ("claude: do ${file:${nme}} ${cmd:ls ${item.x}}",           ["5 error unknown-name nme"]),
    ("claude: do ${json:a.b:from:nothing}",                     ["5 error unknown-name nothing"]),
    ("claude: do ${env.HOME} ${uuid} ${date:%Y} ${git.branch}", []),
    ("shell: eval ${item.x}",                                   ["5 error value-as-code"]),
    ("shell: ${item.x} a",                                      ["5 error value-as-program"]),
    ("shell: echo $((1 + ${item.n}))",                          []),
    ("{shell: ls, tmeout: 3}",                                  ["5 error unknown-field tmeout"]),
    ("{shell: ls, zzz: 3}",                                     ["5 error unknown-field zzz"]),
    ("{shell: ls, name: '${itme.x}'}",                          []),                     # a name is no template
    ("{shell: ls, on_failure: {claude: '${error.message}'}}",   []),
    ("{claude: '${error.message}'}",                            ["5 error unknown-name error.message"]),
    ("{shell: ls, on_failure: 'eval ${item.x}'}",               ["5 error value-as-code"]),
    ("{shell: ls, on_failure: '/fix ${shell.output}'}",         []),
    ("{claude: a, validate: {shell: ls, on_incomplete: {claude: '${validation.gaps}'}}}", []),
    ("{foreach: [a, b], do: [{shell: 'echo ${item} ${index} ${total}'}]}", []),
    ("{write_file: {path: '${itme.x}', content: {a: ['${itme.y}']}}}", ["5 error unknown-name itme.x", "5 error unknown-name itme.y"]),
    ("{shell: ls, env: {KEY: '${no.value}'}}",                  ["5 error unknown-name no.value"]),
    ("{shell: ls, env: {'${no.key}': a}}",                      ["5 error wrong-type ${no.key}"]),     # keys are no templates
    ("{shell: ls, on_exit_code: {'2': {shell: 'echo ${no.way}'}}}", ["5 error unknown-name no.way"]),
    ("{shell: ls, on_exit_code: {2: {shell: 'echo ${error.message}'}, 0: {shell: 'echo ${last.output}'}}}", []),
    ("{shell: ls, on_exit_code: {0: {shell: 'echo ${error.message}'}}}", ["5 error unknown-name error.message"]),
    ("{shell: '[[ ${item.x} == a ]]'}",                         ["5 error bash-only"]),
    ("{shell: '[[ ${item.x} == a ]]', interpreter: bash}",      []),
    ("{shell: 'read x <<< ${item.x}; echo ${x}', interpreter: bash}", []),
    ("{shell: ls, interpreter: bash, on_failure: {shell: '[[ ${item.x} == a ]]'}}", ["5 error bash-only"]),
    ("{claude: 'do ${Q} ${r}', env: {Q: a}, metadata: {env: {r: b}}}", []),
    ("{shell: 'echo ${y}', env: {y: b}, on_failure: {claude: '${y}'}, on_success: [{shell: 'echo ${y}'}]}", []),
    ("{foreach: [a], do: [{shell: 'echo ${y}'}], env: {y: b}}", []),
    ("{shell: ls, env: {y: b, z: '${y}'}, when: '${y}'}",       ["5 error unknown-name y", "5 error unknown-name y"]),
    ("{shell: 'echo ${UNK}', strict: true}",                    ["5 error unknown-name UNK"]),
    ("{shell: 'echo ${UNK} $UNK', strict: true, env: {UNK: a}}", []),
    ("{shell: 'UNK=1; echo ${UNK} $HOME ${HOME:-x}', strict: true}", []),
    ("{shell: 'echo ${UNK}', strict: false}",                   []),
    ("{claude: 'do ${item.x', strict: true}",                   ["5 error malformed-placeholder ${"]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), STEPS)
def test_a_step_of_a_map(step: str, expected: list[str]) -> None:
    text = step if step.startswith("{") else step.replace(": ", ": '", 1) + "'"
    assert found(f"map:\n  input: x\n  agent_template:\n    -\n      {text}\n") == expected


PHASES_WITH_ENV = [
    "setup: {env: {y: a}, steps: [STEP]}",
    "map: {input: [1], env: {y: a}, steps: [STEP]}",
    "reduce: {env: {y: a}, steps: [STEP]}",
    "merge: {env: {y: a}, steps: [STEP]}",
]


@pytest.mark.parametrize("phase", PHASES_WITH_ENV)
def test_the_env_of_a_phase_is_known_to_its_steps_and_to_no_others(phase: str) -> None:
    step = "{shell: 'echo ${y}', capture_output: z, on_failure: {claude: '${y}'}}"
    assert found(phase.replace("STEP", f"{step}, {{claude: '${{y}} ${{z}}'}}")) == []
    other = "merge" if "reduce" in phase else "reduce"
    flow = phase.replace("STEP", "{shell: ls}") + f"\n{other}: [{{claude: '${{y}}'}}]\n"
    if "merge" not in flow or "reduce" in flow:
        assert found(flow) == ["2 error unknown-name y"]


def test_strict_reaches_every_step_that_does_not_say_otherwise() -> None:
    flow = "strict: true\nsteps:\n"
    for strict in ("", ", strict: false", ", strict: true"):
        flow += f"- {{shell: 'echo ${{UNK}}'{strict}, on_failure: 'echo ${{UNK2}}'}}\n"
    assert found(flow) == [
        "3 error unknown-name UNK",
        "3 error unknown-name UNK2",
        "4 error unknown-name UNK2",
        "5 error unknown-name UNK",
        "5 error unknown-name UNK2",
    ]


def test_captures_are_known_after_their_step_and_in_the_phases_that_inherit_them() -> None:
    flow = """\
setup:
  - claude: ${base}
  - {shell: ls, capture_output: base}
  - claude: ${base}
map:
  input: x
  steps:
    - {shell: 'ls ${base}', capture: mine}
    - {claude: '${mine}', id: cover, outputs: {spec: {file_pattern: '*.md'}}}
    - claude: ${cover.spec} ${cover.spce}
reduce:
  - {shell: 'ls ${base} ${mine}', capture: total}
  - claude: ${total}
merge:
  - claude: ${base} ${total}
"""
    assert found(flow) == [
        "2 error unknown-name base",
        "10 error unknown-name cover.spce",
        "12 error unknown-name mine",
    ]


def test_deep_steps_are_checked_as_quickly_as_others() -> None:
    flow = "{shell: 'echo ${nothing}'}"
    for _ in range(12):
        flow = f"{{foreach: [a], env: {{x: a}}, do: [{flow}], on_success: [{{shell: 'echo ${{nothing}}'}}]}}"
    began = time.process_time()
    assert len(findings(f"steps: [{flow}]\n")) == 13
    assert time.process_time() - began < 2  # each level more would take three times as long


def test_setup_may_name_its_captures_in_one_place() -> None:
    flow = "setup: {commands: [{shell: ls}], capture_outputs: {found: 0}}\nreduce: [{claude: '${found} ${fuond}'}]\n"
    assert found(flow) == ["2 error unknown-name fuond"]


def test_an_unknown_name_is_explained_with_its_place_and_what_is_known() -> None:
    flow = 'setup:\n  - {shell: ls, capture: base}\nmap:\n  input: x\n  steps:\n    - shell: "ruff ${itme.path}"\n'
    [finding] = findings(flow)
    assert str(finding.problem) == (
        "flow.yaml:6:20: unknown variable 'itme.path'\n"
        '6 |     - shell: "ruff ${itme.path}"\n'
        "  |                    ^^^^^^^^^^^^\n"
        "fix: did you mean 'item.path'? known in map: item, item_index, item_total, base, step, workflow, "
        "git, env, uuid"
    )


PATHS = [
    # a step                                                        where it leads out, by line
    ("write_file: {path: ../x, content: a}",                        [3]),
    ("write_file: {path: a/../../x, content: a}",                   [3]),
    ("write_file: {path: a/../x, content: a}",                      []),
    ("write_file: {path: ..x, content: a}",                         []),
    ("write_file: {path: '${p}/../../x', content: a}",              []),     # seen when it is filled
    ("write_file: {path: /etc/x, content: a}",                      [3]),
    ("write_file: {path: PROJECT/x, content: a}",                   []),
    ("{shell: pwd, output_file: ../x}",                             [3]),
    ("{shell: pwd, output_file: ../x, working_dir: sub}",           []),
    ("{shell: pwd, output_file: ../../x, cwd: sub}",                [3]),
    ("{shell: pwd, output_file: ../x, working_dir: '${p}'}",        []),
    ("{shell: pwd, working_dir: ..}",                               [3]),
    ("{shell: pwd, working_dir: /etc}",                             [3]),
    ("{shell: pwd, working_dir: PROJECT}",                          []),
    ("{shell: pwd, working_dir: PROJECT-2}",                        [3]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "lines"), PATHS)
def test_a_path_that_leads_out_of_the_project_is_found(
    tmp_path: Path, step: str, lines: list[int]
) -> None:
    (tmp_path / ".ai/tools").mkdir(parents=True)
    (tmp_path / "flows").mkdir()
    file = tmp_path / "flows/flow.yaml"
    step = step.replace("PROJECT", str(tmp_path))
    file.write_text(f"parameters: {{required: [p]}}\nsteps:\n  - {step}\n")
    outside = check_file(str(file))
    assert [(one.code, one.problem.place[1]) for one in outside] == [
        ("file-outside", line) for line in lines
    ]


EMPTY = ["steps: []", "agent_template: []", "commands: []", "agent_template: {commands: []}"]


@pytest.mark.parametrize("field", EMPTY)
def test_a_map_without_steps_is_found(field: str) -> None:
    [row] = found(f"map:\n  input: [1]\n  {field}\n")
    assert row.startswith("3 error missing-field ")


def test_a_backend_that_does_not_exist_is_found() -> None:
    assert found("backend: locl\nsteps:\n  - shell: pwd\n") == ["1 error wrong-type backend"]
    assert found("map:\n  backend: moon\n  input: [1]\n  steps: [{shell: pwd}]\n") == [
        "2 error wrong-type backend"
    ]


def test_a_name_of_another_phase_says_where_it_exists() -> None:
    [finding] = findings("reduce: [{claude: '${item.path}'}]\n")
    assert finding.problem.fix == (
        "'item' exists in map; known in reduce: map, step, workflow, git, env, uuid"
    )


def test_names_that_will_be_given_are_known() -> None:
    assert found("- shell: echo ${x}") == ["1 error unknown-name x"]
    assert found("- shell: echo ${x}", names=("x",)) == []


GRAPH = """\
config:
  start: a
  nodes:
    a: {tool: t, params: {q: "${inputs.q} ${stat.n} ${HOME}"}, assign: {n: "${result.n}"}, next: b}
    b: {over: "${state.n}", as: file, action: {tool: t, params: {f: "${file.name}"}}, next: c}
    c: {output: "${file.name}"}
"""


def test_a_graph_knows_state_inputs_result_and_the_name_of_its_loop() -> None:
    assert found(GRAPH) == [
        "4 error unknown-name stat.n",
        "6 error unknown-name file.name",
    ]


def test_a_tool_is_checked_against_its_own_parameters() -> None:
    tool = """\
executor_id: x
config_schema: {properties: {query: {type: string}}}
config: {command: "${PYTHON:-python}", args: ["{tool_path}", "{qurey}", "{elsewhere}"], timeout: 3}
description: "{qurey}"
"""
    assert found(tool) == ["3 warning unknown-parameter qurey"]


def test_a_prompt_is_checked_against_its_declared_inputs_if_it_has_any() -> None:
    tasks = 'tasks: [{description: "{topic} {topik} {{x}}", expected_output: "{}", name: "{no}"}]\n'
    assert found(tasks) == []
    assert found(f"inputs: [topic]\n{tasks}") == ["2 error unknown-input topik"]
    assert found(tasks, names=("topic",)) == ["1 error unknown-input topik"]


def test_a_file_is_checked_as_a_directive_when_it_is_named_as_one() -> None:
    text = "inputs: {name: text}\nbody: '{input:nmae} {input:b?} {input:c:d} {input:name}'\ntitle: '{input:x}'\n"
    assert found(text, profile="directive") == ["2 error unknown-input nmae"]


def test_a_file_of_no_known_shape_is_not_checked_and_says_so() -> None:
    [finding] = findings("a: ${x:jsn}")
    assert (finding.severity, finding.code) == ("note", "no-profile")


def test_a_file_of_no_known_shape_is_read_whole_when_its_profile_is_named() -> None:
    text = "a: ${x.y}\nb: [{shell: 'eval ${z}'}, 3]\n"
    assert found(text, profile="workflow") == [
        "1 error unknown-name x.y",
        "2 error unknown-name z",
        "2 error value-as-code",
    ]


def test_a_template_beyond_the_limits_is_a_finding() -> None:
    deep = "${a:-" * 70 + "}" * 70
    [finding] = findings(f"- claude: '{deep}'")
    assert finding.code == "nested-too-deep"
    assert finding.problem.place == ("flow.yaml", 1, 11)


def test_shell_text_beyond_the_limit_is_a_finding() -> None:
    [finding] = findings(f"- shell: 'echo {'x' * MAX_SHELL_TEXT}'")
    assert finding.code == "shell-text-too-long"
    assert finding.problem.place == ("flow.yaml", 1, 10)


def test_yaml_errors_are_findings(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("a: 1\nb: 2\na: 3\n")
    assert [finding.code for finding in check_file(str(file))] == ["duplicate-key"]
    assert [finding.code for finding in check_file(str(tmp_path / "no.yaml"))] == ["no-file"]


def test_findings_come_sorted_by_place() -> None:
    text = "reduce: [{claude: '${a.b}'}]\nsetup: [{claude: '${c.d} ${x:jsn} ${e.f}', tmeout: 1}]\n"
    places = [finding.problem.place for finding in findings(text)]
    assert len(places) == 5
    assert places == sorted(places)


HEAD = [
    # fields that are filled before anything runs                                          findings
    ("env: {A: '${workflow.dir}'}\nsteps: [{shell: 'true'}]\n",                             ["1 error unknown-name workflow.dir"]),
    ("vars: {a: '${last.output}'}\nsteps: [{shell: 'true'}]\n",                             ["1 error unknown-name last.output"]),
    ("profiles: {p: {A: '${git.branch}'}}\nsteps: [{shell: 'true'}]\n",                     ["1 error unknown-name git.branch"]),
    ("vars: {a: 1}\nenv: {A: '${a} ${env.HOME}', B: '${A}'}\nsteps: [{shell: 'true'}]\n",   []),
    ("steps: [{shell: 'true', capture: n}, {shell: 'true', timeout: '${n}'}]\n",             ["1 error unknown-name n"]),
    ("steps: [{shell: 'true', retry: {attempts: '${workflow.iteration}'}}]\n",               ["1 error unknown-name workflow.iteration"]),
    ("steps: [{shell: 'true', capture: n}, {shell: 'true', retry: '${n}'}]\n",               ["1 error unknown-name n"]),
    ("parameters: {n: integer}\nsteps: [{shell: 'true', retry: '${n}', timeout: '${n}s'}]\n", []),
    ("setup: [{shell: 'true', capture: n}]\nmap: {input: [1], max_items: '${n}', steps: [{shell: 'true'}]}\n", ["2 error unknown-name n"]),
    ("setup: [{shell: 'true', capture: n}]\nmap: {input: [1], max_parallel: '${n}', steps: [{shell: 'true'}]}\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), HEAD)
def test_what_is_filled_before_anything_runs_knows_what_the_head_says(
    text: str, wanted: list[str]
) -> None:
    assert found(text) == wanted


def test_every_code_of_the_tables_above_has_a_rule() -> None:
    codes = {row.split()[2] for _, rows in STEPS for row in rows}
    assert codes <= RULES.keys()


def test_directories_give_all_flow_files_below_them_sorted(tmp_path: Path) -> None:
    for name in ("b.yml", "a/c.yaml", "a/d.txt", ".git/e.yaml", "z.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    below = [os.path.relpath(file, tmp_path) for file in flow_files([str(tmp_path)])]
    assert below == ["a/c.yaml", "b.yml", "z.yaml"]
    assert flow_files(["x", "y", "x"]) == ["x", "y"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no YAML file and no directive"):
        flow_files([str(tmp_path / "empty")])


@settings(max_examples=examples(150), deadline=None)
@given(
    text=st.text(st.sampled_from("${}:|-?.'\"\\`()[] \nabeval;<>#=$item")),
    profile=st.sampled_from(["workflow", "graph", "config", "prompt", "directive"]),
)
def test_any_text_gives_findings_and_never_an_exception(text: str, profile: str) -> None:
    import json

    document = parse(json.dumps({"shell": text, "a": [text]}), "any.yaml")
    for finding in check_document(document, "any.yaml", profile=profile):
        assert str(finding.problem).startswith("any.yaml:")


def test_a_long_flow_is_checked_in_a_table_that_all_its_steps_share() -> None:
    rows = [
        f"- {{shell: 'echo ${{c{n}}}', capture: c{n + 1}, on_failure: 'echo ${{c{n + 1}}} ${{c{n + 2}}}'}}"
        for n in range(400)
    ]
    assert found("\n".join(rows)) == ["1 error unknown-name c0"] + [
        f"{n + 1} error unknown-name c{n + 2}" for n in range(400)
    ]


# ── one round ────────────────────────────────────────────────────────────


def in_file(folder: Path, text: str, **others: str) -> list[str]:
    for name, content in others.items():
        (folder / f"{name}.yaml").write_text(content)
    (folder / "flow.yaml").write_text(text)
    beside = os.path.relpath(folder) + os.sep
    rows = []
    for finding in check_file(str(folder / "flow.yaml")):
        name = finding.problem.what.partition("'")[2].partition("'")[0]
        rows.append(
            f"{finding.problem.place[1]} {finding.code} {name.removeprefix(beside)}".rstrip()
        )
    return rows


def test_every_kind_of_problem_is_found_in_one_round(tmp_path: Path) -> None:
    flow = """\
nam: x
timeout: [1]
vars: {a: 1, a: 2}
parameters:
  p: {type: integer, default: abc}
  q: {type: intger}
setup:
  steps: [{shell: ls, id: s, id: t}]
  capture_outputs: {n: 9, m: {command_index: 0, pattern: "("}}
map:
  input: items.json
  max_parallel: 0
  sort_by: x SIDEWAYS
  backend: locl
  on_item_failure: stop
  continue_on_failure: true
  steps:
    - {shell: 'echo ${itm}', timeout: abc}
    - {shell: 'eval ${item.x}', when: '${p} =='}
    - {shell: a, tool: b}
    - [1]
reduce:
  - {shell: 'echo ${map.resluts}'}
"""
    assert in_file(tmp_path, flow) == [
        "1 unknown-field nam",
        "2 wrong-type timeout",
        "3 duplicate-key a",
        "5 parameter p",
        "6 wrong-type type",
        "8 duplicate-key id",
        "9 wrong-type n",
        "9 condition m",
        "12 wrong-type max_parallel",
        "13 bad-sort",
        "14 wrong-type backend",
        "15 contradiction",
        "18 unknown-name itm",
        "18 wrong-type timeout",
        "19 value-as-code",
        "19 condition",
        "20 several-commands",
        "21 wrong-type steps",
        "23 unknown-name map.resluts",
    ]


NEVER = [
    # a when, and what is reported
    ("1 == 2",          ["warning unreachable"]),
    ("!true",           ["warning unreachable"]),
    ("false",           ["warning unreachable"]),
    ("'a' in ['b']",    ["warning unreachable"]),
    ("1 == 1",          []),
    ("true",            []),
    ("${last.success} && 1 == 2", []),
    ("1 ==",            ["error condition"]),
    ("${x",             ["error malformed-placeholder"]),
    ("${x} && ${last.output", ["error unknown-name", "error malformed-placeholder"]),
]  # fmt: skip


@pytest.mark.parametrize(("when", "expected"), NEVER)
def test_a_condition_that_never_holds_or_cannot_be_read_is_found_once(
    when: str, expected: list[str]
) -> None:
    rows = findings(f"- {{shell: ls}}\n- {{shell: ls, when: {json.dumps(when)}}}\n")
    assert [f"{one.severity} {one.code}" for one in rows] == expected


CASCADES = [
    # a flow in which one thing cannot be read, and others that rest on it                       all messages
    ("steps: [{shel: ls, capture_output: x}, {claude: '${x}'}]",                                 ["1 unknown-field shel"]),
    ("steps: [{shell: ls, captur_output: x}, {claude: '${x}'}]",                                 ["1 unknown-field captur_output"]),
    ("steps: [{shell: a, tool: b, capture_output: x}, {claude: '${x} ${y}'}]",                   ["1 several-commands", "1 unknown-name y"]),
    ("steps: [{use: nothing}, {claude: '${x}'}]",                                                ["1 unknown-block nothing"]),
    ("setp: [{shell: ls, capture_output: x}]\nreduce: [{claude: '${x} ${y}'}]",                  ["1 unknown-field setp", "2 unknown-name y"]),
    ("setup: {step: [{shell: ls, capture_output: x}]}\nreduce: [{claude: '${x}'}]",              ["1 unknown-field step", "1 missing-field steps"]),
    ("paramters: {x: string}\nsteps: [{claude: '${x} ${y}'}]",                                   ["1 unknown-field paramters", "2 unknown-name y"]),
    ("vars: [x]\nsteps: [{claude: '${x}'}]",                                                     ["1 wrong-type vars"]),
    ("extends: nowhere.yaml\nsteps: [{claude: '${x}'}, {use: b}]",                               ["1 no-file nowhere.yaml"]),
    ("imports: [nowhere.yaml]\nsteps: [{use: b}]",                                               ["1 no-file nowhere.yaml"]),
    ("imports: [twice.yaml]\nsteps: [{use: b}, {claude: '${y}'}]",                               ["1 duplicate-key b", "2 unknown-name y"]),
    ("steps:\n- shell: ls\n  timeout: 1e999\n  env: {A: '${y}'}",                                ["3 value", "4 unknown-name y"]),
    ("steps:\n- {shell: 'eval ${last.output}'}\n- {shel: ls}\n- {claude: '${y}', a: 'b",          ["2 value-as-code", "3 unknown-field shel", "4 syntax"]),
    ("setup: [{shell: ls, capture_output: x}]\nsetup: [{shell: pwd}]\nmap: {input: i, steps: [{claude: '${x} ${y}'}]}", ["1 duplicate-key setup", "3 unknown-name y"]),
    ("steps: [{shell: 'echo ${y}', shell: 'echo ${z}', tmeout: 3}]",                             ["1 duplicate-key shell", "1 unknown-name y", "1 unknown-name z", "1 unknown-field tmeout"]),
    ("a: !!python/object:x {}\nsteps: [{claude: '${y}'}]",                                       ["1 unknown-field a", "1 tag !!python/object:x", "2 unknown-name y"]),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "expected"), CASCADES)
def test_what_cannot_be_read_hides_nothing_else_and_is_not_reported_twice(
    tmp_path: Path, flow: str, expected: list[str]
) -> None:
    assert (
        in_file(tmp_path, flow + "\n", twice="blocks: {b: [{shell: ls}], b: [{shell: pwd}]}\n")
        == expected
    )


@pytest.mark.parametrize("lines", range(1, FLOW.count("\n")))
def test_a_file_that_ends_early_has_no_findings_that_its_rest_could_refute(
    tmp_path: Path, lines: int
) -> None:
    whole = "".join(FLOW.splitlines(keepends=True)[:lines])
    assert in_file(tmp_path, whole + '"never closed\n') == [f"{lines + 1} syntax"]


def test_variables_of_an_env_file_are_known_and_those_of_a_missing_one_may_be(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.env").write_text("REGION=eu\n")
    steps = "steps: [{claude: '${REGION} ${REGOIN}'}]"
    assert in_file(tmp_path, f"env_files: a.env\n{steps}\n") == ["2 unknown-name REGOIN"]
    assert in_file(tmp_path, f"env_files: [a.env, b.env?]\n{steps}\n") == []
    assert in_file(tmp_path, f"env_files: [a.env, b.env, b.env?]\n{steps}\n") == ["1 no-file"]


def test_a_line_of_an_env_file_that_is_no_variable_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text('A=1\nTOKEN: hunter2\nB="open\n')
    flow = tmp_path / "flow.yaml"
    flow.write_text("env_files: a.env\nsteps: [{shell: 'true'}]\n")
    messages = [str(one.problem) for one in check_file(str(flow), project=str(tmp_path))]
    assert [one.partition(": this line does not set a variable")[0] for one in messages] == [
        f"{tmp_path}/a.env:{line}" for line in (2, 3)
    ]
    assert "hunter2" not in "".join(messages)
