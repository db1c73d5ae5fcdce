"""`$name` and `${name}` are one: of the script, of the flow, by the id of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.core.errors import MissingNamesError
from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def flow(*steps: str) -> str:
    return "steps:\n  - shell: echo hi\n    capture_output: f\n" + "".join(
        f"  - {step}\n" for step in steps
    )


SCRIPTS = [
    ("for f in a b; do echo $f ${f}; done", "a a\nb b"),
    ("f=1; echo $f ${f} ${f:-x} ${f-y}", "1 1 1 1"),
    ("f=1; echo '$f' '${f}'", "$f ${f}"),
    ("echo one two | while read -r f g; do echo $f ${f} ${g}; done", "one one two"),
    ("export f=3; echo $f ${f}", "3 3"),
    ("g() { local f; f=2; echo $f ${f}; }; g", "2 2"),
    ("set -- -f; while getopts f f; do echo $f ${f}; done", "f f"),
    (": ${f:=q}; echo $f ${f}", "q q"),
    ("echo $((f = 3)) $f ${f}", "3 3 3"),
    ("unset f; echo [$f] [${f}]", "[] []"),
    ("x=$(f=2; echo ${f}); echo $x", "2"),
    ("printf '%s\\n' 7 | { read f; echo ${f}; }", "7"),
    # handed over
    ("f=${f}; echo $f ${f}", "hi hi"),
    ('f="$f"; f=$f!; echo ${f}', "hi!"),
    ("for f in ${f} b; do echo ${f}; done", "hi\nb"),
    ("f=${f:-x}; echo ${f}", "hi"),
    # not the script's
    ("f=1 true; echo $f ${f}", "hi hi"),
    ("f=1 env | grep ^f=; echo ${f}", "f=1\nhi"),
    ("f=1; echo $f ${f.exit_code} ${f | upper}", "1 0 HI"),
    ("echo $f ${f} f=${f}", "hi hi f=hi"),
]


@pytest.mark.parametrize(("script", "printed"), SCRIPTS)
def test_a_name_that_the_script_sets_is_the_scripts_in_both_forms(
    place: Place, script: str, printed: str
) -> None:
    place.write(
        "flow.yaml", {"steps": [{"shell": "echo hi", "capture_output": "f"}, {"shell": script}]}
    )
    assert place.done().outputs["steps/1"] == printed


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("f=(a b); echo ${f[1]} $f", "b a"),
        ("((f = 2)); echo $f ${f}", "2 2"),
        ("for ((f = 0; f < 2; f++)); do echo $f ${f}; done", "0 0\n1 1"),
        ("printf -v f %s x; echo ${f}", "x"),
        ("mapfile -t f < <(echo z); echo ${f[0]}", "z"),
        ("let f=4; echo $f ${f}", "4 4"),
        ("declare f=5; echo ${f}", "5"),
        ("select f in a; do echo ${f}; break; done <<< 1", "a"),
    ],
)
def test_so_it_is_in_bash(place: Place, script: str, printed: str) -> None:
    step = {"shell": script, "interpreter": "bash"}
    place.write("flow.yaml", {"steps": [{"shell": "echo hi", "capture_output": "f"}, step]})
    assert place.done().outputs["steps/1"] == printed


def test_a_command_in_a_template_has_names_of_its_own_as_well(place: Place) -> None:
    text = "${cmd:for f in a b; do echo $f ${f}; done}"
    step = {"write_file": {"path": "out", "content": text}}
    place.write("flow.yaml", {"steps": [{"shell": "echo hi", "capture_output": "f"}, step]})
    place.done()
    assert place.text("out") == "a a\nb b"


NAMES = st.sampled_from(["f", "item_name", "X", "last"])
SETTING = st.sampled_from(
    [
        "{n}=1",
        "for {n} in a b; do :; done",
        "read {n} < /dev/null || :",
        "export {n}=2",
        ": ${{{n}:=3}}",
    ]
)


@settings(deadline=None, max_examples=40)
@given(name=NAMES, setting=SETTING, known=st.booleans())
def test_both_forms_print_the_same_whatever_defines_the_name(
    name: str, setting: str, known: bool
) -> None:
    script = f'{setting.format(n=name)}; echo "[${name}]"; echo "[${{{name}}}]"'
    one, other = plait.sh(
        script, {name: "of the flow"} if known else {}, env={}
    ).stdout.splitlines()
    assert one == other
    assert one != "[of the flow]"


# ── what check says ──────────────────────────────────────────────────────


def reported(place: Place, text: str) -> list[tuple[str, str, int, int]]:
    found = place.check(text)
    return [(one.severity, one.code, *one.problem.place[1:3]) for one in found]


def test_check_names_every_clash_with_its_place_and_a_repair(place: Place) -> None:
    text = flow("shell: for f in a b; do echo $f ${f}; done")
    assert reported(place, text) == [("warning", "name-clash", 4, 34)]
    (finding,) = place.check(text)
    assert finding.problem.what == (
        "'f' is a variable of this script here, not the value of the flow"
    )
    assert finding.problem.fix == (
        "give the variable of the script another name, or write f=${f} where it begins"
    )


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        ("for f in a b; do echo $f ${f}; done", ["name-clash"]),
        ("echo ${#f} ${f%x}", ["bare-name", "bare-name"]),
        ("echo $((f + 1))", ["bare-name"]),
        ("g=${f}; echo $f ${f} ${#g}", []),
    ],
)
def test_it_says_the_same_of_a_script_that_a_tool_is_given(
    place: Place, script: str, codes: list[str]
) -> None:
    found = reported(place, flow(f"tool: core/shell\n    params: {{command: '{script}'}}"))
    assert [(severity, code) for severity, code, *_ in found] == [
        ("warning", code) for code in codes
    ]
    assert [code for _, code, *_ in reported(place, flow(f"shell: {script}"))] == codes


@pytest.mark.parametrize(
    "text",
    [
        flow("shell: f=${f}"),
        flow("shell: f=1 make -n ${f}"),
        flow("shell: g=1; echo $g ${g}"),
        "env: {F: x}\nsteps: [{shell: 'F=${F:-2}; echo $F ${F}'}]\n",
        "steps: [{shell: 'total=0; echo ${total}'}]\n",
    ],
)
def test_there_is_no_clash_where_both_mean_the_same_or_neither_is_used(
    place: Place, text: str
) -> None:
    assert reported(place, text) == []


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ("${c.exit_code}", 1),  # of the variable, which goes before the step
        ("${m.nope} ${m.k.x} ${m.l[2]}", 3),
        ("${c} ${m.k} ${m.l[-1]} ${m.nope:-x} ${m.nope | default('x')} $c.txt ${d.x}", 0),
    ],
)
def test_check_says_that_a_path_leads_out_of_a_value_of_the_file(
    place: Place, content: str, count: int
) -> None:
    text = (
        "vars: {c: x, m: {k: 1, l: [1, 2]}}\nsteps:\n  - {shell: exit 0, id: c, capture_output: d}\n"
        f'  - {{write_file: {{path: out, content: "{content}"}}}}\n'
    )
    found = reported(place, text)
    assert [(severity, code) for severity, code, *_ in found] == [
        ("warning", "unknown-name")
    ] * count
    place.write("flow.yaml", text)
    place.done()
    assert (place.text("out") == content) == (count > 0)


@pytest.mark.parametrize("name", ["ARG", "ARGUMENT", "FILE", "FILE_PATH"])
@pytest.mark.parametrize(
    "step",
    [
        {"claude": "/implement $NAME"},
        {"prompt": "say $NAME"},
        {"write_file": {"path": "out", "content": "$NAME"}},
    ],
)
def test_an_alias_of_the_item_is_refused_where_there_is_none(
    place: Place, name: str, step: dict[str, object]
) -> None:
    text = str([step]).replace("NAME", name)
    message = place.refusal(text)
    assert f"unknown variable '{name}'" in message
    assert "there is none here" in message
    looped = place.check(f"steps: [{{foreach: [a], do: {text}}}]\n")
    assert {(one.severity, one.code) for one in looped} == {("warning", "deprecated-alias")}


def test_an_alias_in_shell_text_is_a_variable_of_the_shell_where_there_is_no_item(
    place: Place,
) -> None:
    assert place.outputs("steps: [{shell: 'ARG=1; echo $ARG ${ARG}'}]\n") == ["1 1"]
    assert reported(place, "steps: [{shell: 'echo $FILE'}]\n") == []


@pytest.mark.parametrize(
    ("item", "printed"),
    [
        ({"path": "p"}, "p of-env"),
        ({"value": "v"}, "of-env v"),
        ("plain", "plain plain"),
        (3, "3 3"),
    ],
)
def test_an_alias_of_the_item_goes_before_the_env_block(
    place: Place, item: object, printed: str
) -> None:
    step = {"shell": "echo ${FILE} $ARG"}
    head = {"env": {"FILE": "of-env", "ARG": "of-env"}}
    place.write("flow.yaml", {**head, "map": {"input": [item], "steps": [step]}, "reduce": [step]})
    ran = place.done()
    assert ran.outputs == {"map/0/0": printed, "reduce/0": "of-env of-env"}
    assert {one.code for one in place.check()} == {"deprecated-alias"}


def test_a_capture_and_the_env_of_a_step_go_before_an_alias(place: Place) -> None:
    captured = "setup: [{shell: echo mine, capture: FILE}]\n"
    assert place.done(captured + "map: {input: [x], steps: [{shell: 'echo ${FILE}'}]}\n").outputs[
        "map/0/0"
    ] == ("mine")
    own = "map: {input: [x], steps: [{shell: 'echo ${FILE}', env: {FILE: y}}]}\n"
    assert place.done(own).outputs["map/0/0"] == "y"


def test_a_file_that_a_step_writes_is_seen_behind_it(place: Place) -> None:
    text = "steps: [{shell: 'echo ${file:x:-none}'}, {shell: printf new > x}, {shell: 'echo ${file:x:-none}'}]\n"
    assert [one for one in place.outputs(text) if one] == ["none", "new"]


# ── hyphens, and ids ─────────────────────────────────────────────────────


def test_a_step_is_known_by_its_id(place: Place) -> None:
    text = """\
steps:
  - {id: test-step, shell: "echo out; echo err >&2; exit 3", continue_on_error: true}
  - shell: echo ${test-step.exit_code} ${test-step.success} ${test-step} ${test-step.stderr:-x}
  - when: "${test-step.exit_code} == 3"
    shell: echo "${test-step.output | upper}"
  - write_file: {path: out, content: "${test-step.exit_code}"}
"""
    assert place.check(text) == []
    ran = place.done(text)
    assert list(ran.outputs.values())[1:3] == ["3 false out err", "OUT"]
    assert place.text("out") == "3"
    assert place.resume(ran.result.run).result.status == "done"


def test_what_setup_did_is_known_by_its_id_in_later_phases(place: Place) -> None:
    text = """\
setup: [{id: a-b, shell: echo one}]
map: {input: [x], steps: [{id: c-d, shell: "echo ${a-b} ${item}"}, {shell: "echo ${c-d}!"}]}
reduce: [{shell: "echo ${a-b.output} ${map.outputs}"}]
"""
    assert place.check(text) == []
    assert place.done(text).outputs["reduce/0"] == "one one x!"


def test_a_name_that_is_taken_is_not_that_of_a_step(place: Place) -> None:
    text = "vars: {build: given}\nsteps: [{id: build, shell: echo x}, {shell: 'echo ${build}'}]\n"
    assert place.outputs(text) == ["x", "given"]
    text = "steps: [{id: build, shell: echo x, capture: other}, {id: z, shell: echo y, capture: build},"
    assert place.outputs(text + " {shell: 'echo ${build} ${other}'}]\n") == ["x", "y", "y x"]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("echo ${x-default}", "default"),
        ("echo ${x-a.b}", "a.b"),
        ("x=1; echo ${x-a}", "1"),
        ("echo ${x-$f} ${x-${f}}", "hi hi"),
        ("echo ${f-no}", "no"),
        ("echo ${x-a:-b} ${x:-a-b}", "a:-b a-b"),
    ],
)
def test_what_is_no_name_stays_the_shells(place: Place, text: str, printed: str) -> None:
    place.write(
        "flow.yaml", {"steps": [{"shell": "echo hi", "capture_output": "f"}, {"shell": text}]}
    )
    assert place.done().outputs["steps/1"] == printed


def test_an_unknown_name_with_hyphens_is_reported(place: Place) -> None:
    text = "steps: [{id: test-step, shell: ls}, {shell: 'echo ${tset-step.exit_code}'}]\n"
    (finding,) = place.check(text)
    assert (finding.severity, finding.code) == ("warning", "unknown-name")
    assert finding.problem.what == (
        "unknown variable 'tset-step', so the shell takes 'tset' with the default 'step…'"
    )
    assert "did you mean 'test-step.exit_code'?" in (finding.problem.fix or "")
    (finding,) = place.check("steps: [{claude: 'fix ${test-step.output}'}]\n")
    assert (finding.severity, finding.code) == ("error", "unknown-name")
    assert place.check("steps: [{shell: 'echo ${LANG-C.UTF-8} ${x-y}'}]\n") == []


def test_a_name_with_hyphens_is_a_placeholder_in_a_plain_rendering_if_it_is_known() -> None:
    values = {"a-b": {"c": 1}}
    assert plait.render("${a-b.c}", values) == 1
    assert plait.render("${a-b.c:-0} ${a-b.d:-0} ${a-d:-0}", values) == "1 0 ${a-d:-0}"
    with pytest.raises(MissingNamesError):
        plait.render("${a-b.d}", values, strict=True)
