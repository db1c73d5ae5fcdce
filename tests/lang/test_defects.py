"""Defects that an earlier system had, each shown not to be here by a real run.

A test is named after the number of the defect (D1 to D39, as far as they concern
flows).  D9, D10 and D12 are shown by the conformance tests of document 002; of D21,
which is about worktrees, only what holds without them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.app.runs import RunObservers, flow_runs, run_flow
from plait.core.errors import InputError
from plait.engine.events import StepRetrying
from plait.engine.outcome import Failed
from plait.engine.stop import StopSignal
from runs.stories import Place, new_place

DEADLINE = 20.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def ledger(place: Place) -> list[str]:
    """The lines that steps have added to the file of that name, in order."""
    path = place.root / "ledger"
    return path.read_text().split("\n")[:-1] if path.exists() else []


# ── D1: values are never code ────────────────────────────────────────────

HOSTILE = [
    "'; touch canary; '",
    '"; touch canary; "',
    "$(touch canary)",
    "`touch canary`",
    "; touch canary #",
    "x\ntouch canary\n",
    "&& touch canary",
    "| touch canary",
    "> canary",
    "${cmd:touch canary}",
    "${env.HOME} $HOME $(id) {item} {{item}}",
    "-rf --help -- *",
    "a  b\t*?[a] ~ \\ \\n %s %n",
    "' || true || '",
]


def assert_no_canary(place: Place) -> None:
    assert not [path for path in place.root.rglob("*") if path.name == "canary"]


def test_d1_item_values_are_data_in_every_quoting(place: Place) -> None:
    place.write("items.json", HOSTILE)
    place.program(
        "args", f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    )
    ran = place.done(
        """\
map:
  input: items.json
  steps:
    - shell: args -- ${item} '${item}' "${item}" pre${item}post "<${item}>"
      capture_output: seen
      capture_format: json
    - shell: |
        cat <<END
        ${item}
        END
"""
    )
    for number, value in enumerate(HOSTILE):
        printed = ran.outputs[f"map/{number}/0"]
        assert json.loads(printed) == ["--", value, value, value, f"pre{value}post", f"<{value}>"]
        assert ran.outputs[f"map/{number}/1"] == value.rstrip("\n")
    assert_no_canary(place)


def test_d1_file_names_are_data(place: Place) -> None:
    names = [name.replace("/", "_") for name in HOSTILE]
    for number, name in enumerate(names):
        place.write(f"data/{name}", f"text {number}\n")
    ran = place.done(
        """\
map:
  input: data/*
  sort_by: item
  steps:
    - shell: cat -- ${item}
    - shell: cd data && for f in *; do test "data/$f" = "${item}" && cat "./$f"; done; true
    - shell: git hash-object -- ${item} > /dev/null; mv -- ${item} ${item}.done
    - write_file: {path: "${item}.copy", content: "${item}"}
"""
    )
    texts = {f"text {number}" for number in range(len(names))}
    assert {out for path, out in ran.outputs.items() if path.endswith("/0")} == texts
    assert {out for path, out in ran.outputs.items() if path.endswith("/1")} == texts
    assert {path.name for path in (place.root / "data").iterdir()} == {
        f"{name}{end}" for name in names for end in (".done", ".copy")
    }
    assert_no_canary(place)


@pytest.mark.parametrize("value", HOSTILE[:3] + HOSTILE[5:6] + HOSTILE[9:12])
def test_d1_a_value_is_data_in_every_kind_of_step(place: Place, value: str) -> None:
    place.program("claude", "#!/bin/sh\ncat\n")
    with answering() as address:
        ran = place.done(
            f"""\
parameters: {{value: {{type: string}}}}
env: {{FROM_ENV: "${{value}}"}}
steps:
  - {{shell: "printf -- '%s' ${{value}}", capture_output: captured}}
  - {{foreach: ["${{value}}", "<${{captured}}>"], do: [{{shell: "printf -- '%s' ${{item}}"}}]}}
  - {{foreach: {{command: "printf -- '%s\\n' a ${{value}} | tail -n 1"}}, do: [{{shell: "true"}}]}}
  - {{write_file: {{path: out.txt, content: "${{captured}}"}}}}
  - {{write_file: {{path: out.json, content: {{a: ["${{captured}}"]}}, format: json}}}}
  - {{tool: core/file/write, params: {{path: tool.txt, content: "<${{captured}}>"}}}}
  - {{claude: "${{captured}}"}}
  - {{http: {{url: "{address}/?q=${{captured}}", method: POST, body: {{text: "${{captured}}"}}}}}}
  - {{shell: "printf '%s' \\"$GIVEN$FROM_ENV\\"", env: {{GIVEN: "${{captured}}"}}}}
  - {{shell: "printf -- '%s' ${{captured}}; exit 3", on_failure: "printf -- '%s' ${{shell.output}} > failed.txt"}}
  - {{shell: "true", when: "${{captured}} == 'x'"}}
  - shell: "true"
    validate:
      shell: |
        echo '{{"completion_percentage": 0, "missing": ["none"]}}'
      on_incomplete: {{shell: "printf -- '%s' ${{captured}} > gap.txt", max_attempts: 1, fail_workflow: false}}
""",
            inputs={"value": value},
        )
    # What a shell prints and `$(…)` catches loses its newlines at the end.
    caught = value.rstrip("\n")
    assert ran.outputs["steps/0"] == caught
    assert ran.outputs["steps/1"] == [caught, f"<{caught}>"]
    assert place.text("out.txt") == caught
    assert json.loads(place.text("out.json")) == {"a": [caught]}
    assert place.text("tool.txt") == f"<{caught}>"
    assert ran.outputs["steps/6"] == caught
    assert json.loads(ran.outputs["steps/7"]) == {"text": caught}
    assert ran.outputs["steps/8"] == caught + value.rstrip("\n")
    assert place.text("failed.txt") == caught
    assert place.text("gap.txt") == caught
    assert ran.skipped == ["steps/10"]
    assert_no_canary(place)


def test_d1_what_an_agent_says_is_data(place: Place) -> None:
    place.program("claude", "#!/bin/sh\nprintf '%s' \"'; touch canary; '\"\n")
    ran = place.done(
        """\
- {claude: /review, capture_output: review}
- {shell: "echo '${review}'"}
- {shell: "echo \\"${last.output}\\""}
"""
    )
    assert list(ran.outputs.values()) == ["'; touch canary; '"] * 3
    assert_no_canary(place)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(
        st.text(min_size=1).filter(lambda t: "\0" not in t and t == t.rstrip("\n")), max_size=8
    )
)
def test_d1_any_items_arrive_as_they_are(place: Place, values: list[str]) -> None:
    values = [value for value in values if not any("\ud800" <= char <= "\udfff" for char in value)]
    place.write("items.json", values)
    ran = place.done(
        "map:\n  input: items.json\n  steps: [{shell: \"printf -- '%s' '${item}'\"}]\n"
    )
    assert [ran.outputs[f"map/{n}/0"] for n in range(len(values))] == values


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


class answering:
    """A server on this machine that gives back what it is sent."""

    def __enter__(self) -> str:
        self.server = HTTPServer(("127.0.0.1", 0), Echo)
        Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


# ── D2 to D6: the shell keeps what is the shell's ────────────────────────

VERBATIM = [
    # number  shell text                                                          prints
    ("d2", "echo 'a b c' | awk '{print $2}'",                                     "b"),
    ("d2", "echo 'a b c' | awk -v n=3 '{print $n, $(n-1)}'",                      "c b"),
    ("d2", "echo '[1,2]' | jq -c --arg area x '{area: $area, n: .[0]}'",          '{"area":"x","n":1}'),
    ("d2", "jq -n '$ENV.WHO, env.WHO'",                                           '"Ada"\n"Ada"'),
    ("d2", "set -- p q; echo $1 $5 $# $@ $?",                                     "p 2 p q 0"),
    ("d2", "area=here; echo $area ${area} ${area%e} ${#area}",                    "here here her 4"),
    ("d2", "items=5; echo ${items:-none} '${items[5]}'",                          "5 ${items[5]}"),
    ("d2", "echo $((1 + 2)) $(echo sub) `echo tick`",                             "3 sub tick"),
    ("d2", "echo price: \\$5 '$6'",                                               "price: $5 $6"),
    ("d3", "before_total=7; echo ${before_total:-0}",                             "7"),
    ("d3", "echo ${before_total:-0}; before_total=7; echo ${before_total:-0}",    "0\n7"),
    ("d3", "for n in 1 2; do total=$((total + n)); done; echo ${total:-0}",       "3"),
    ("d3", "read line <<END\nx y\nEND\necho ${line:-none} ${line#x }",            "x y y"),
    ("d3", "echo '$${WHO}' '$${WHO:-x}' ${WHO}",                                  "${WHO} ${WHO:-x} Ada"),
    ("d4", "echo ${WHO:-${WHO}} ${nobody:-${WHO}} ${nobody:-{a}}",                "Ada Ada {a}"),
    ("d6", "username=u; echo $WHO $username ${WHO}name $WHOM.",                   "Ada u Adaname ."),
    ("d6", "echo '${TEMPLATE}'",                                                  "${WHO} $WHO"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "script", "printed"), VERBATIM)
def test_d2_d3_d4_d6_foreign_dollars_stay(
    place: Place, number: str, script: str, printed: str
) -> None:
    assert number in ("d2", "d3", "d4", "d6")
    place.write("template.txt", "${WHO} $WHO")
    steps = [{"shell": "cat template.txt", "capture_output": "TEMPLATE"}, {"shell": script}]
    assert place.outputs(json.dumps({"env": {"WHO": "Ada"}, "steps": steps}))[1] == printed


def test_d2_the_arrays_of_bash_are_its_own(place: Place) -> None:
    script = 'items=(a "b c"); i=1; echo "${items[1]}" "${items[i]}" "${#items[@]}" "${items[@]:0:1}" ${!i:-x}'
    assert place.outputs(json.dumps([{"shell": script, "interpreter": "bash"}])) == [
        "b c b c 2 a x"
    ]


def test_d11_a_computed_file_stays_in_the_project_whatever_a_value_says(place: Place) -> None:
    (place.root.parent / "outside").write_text("secret text")
    place.write(
        "items.json", ["../outside", str(place.root.parent / "outside"), "link/outside", "in.txt"]
    )
    (place.root / "link").symlink_to(place.root.parent)
    place.write("in.txt", "inside")
    ran = place.run("map:\n  input: items.json\n  steps: [{shell: \"echo '${file:${item}}'\"}]\n")
    assert [ran.outputs.get(f"map/{n}/0") for n in range(4)] == ["", "", "", "inside"]
    assert ran.result.counts["failed"] == 3
    assert "secret text" not in repr(ran.events)


def test_d5_one_bad_token_does_not_keep_the_others_from_their_values(place: Place) -> None:
    flow = """\
env: {WHO: Ada}
steps:
  - write_file: {path: out.txt, content: "${WHO} ${.} ${} ${WHO} ${"}
"""
    place.done(flow)
    assert place.text("out.txt") == "Ada ${.} ${} Ada ${"
    codes = [found.code for found in place.check(flow)]
    assert len(codes) == 3, codes


# ── D7, D8, D13, D19, D38: every field works in every phase ──────────────


def test_d7_a_step_with_a_name_and_a_shell_text_runs_the_shell_text(place: Place) -> None:
    place.program("claude", "#!/bin/sh\necho claude >> ledger\n")
    ran = place.done("- name: check\n  shell: echo ran\n")
    assert ran.outputs == {"steps/0": "ran"}
    assert ledger(place) == []


FIELDS: dict[str, tuple[list[Any], list[str]]] = {
    # what a list of steps says, and what it adds to the ledger
    "when": (
        [
            {"shell": "echo no >> ledger", "when": "1 > 2"},
            {"shell": "echo yes >> ledger", "when": "${GLOBAL} == 'g' && !false"},
        ],
        ["yes"],
    ),
    "env": (
        [{"shell": 'echo "$OWN ${OWN}" >> ledger', "env": {"OWN": "o ${GLOBAL}"}}],
        ["o g o g"],
    ),
    "working_dir": ([{"shell": "basename $(pwd) >> ../ledger", "working_dir": "sub"}], ["sub"]),
    "timeout": (
        [{"shell": "sleep 60", "timeout": "300ms", "on_failure": "echo ${error.kind} >> ledger"}],
        ["timeout"],
    ),
    "retry": (
        [
            {
                "shell": "echo try >> ledger; test $(grep -cx try ledger) = 3",
                "retry": {"attempts": 5, "backoff": "fixed", "initial_delay": 0},
            }
        ],
        ["try"] * 3,
    ),
    "captures": (
        [
            {
                "shell": 'echo \'{"a": {"b": [1, 2]}}\'',
                "capture_output": "j",
                "capture_format": "json",
            },
            {"shell": "echo 42", "capture_output": "n", "capture_format": "number"},
            {"shell": "printf 'x\\ny\\n'", "capture_output": "l", "capture_format": "lines"},
            {"shell": "echo true", "capture_output": "b", "capture_format": "boolean"},
            {"shell": "echo err >&2", "capture_output": "e", "capture_streams": "stderr"},
            {
                "shell": "echo ${j.a.b[1]} ${n} ${l[1]} ${b} ${e} ${n.exit_code} ${n.success} >> ledger"
            },
        ],
        ["2 42 y true err 0 true"],
    ),
    "on_failure": (
        [
            {
                "shell": "echo out; echo err >&2; exit 3",
                "on_failure": {
                    "shell": "echo ${shell.output} ${shell.stderr} ${error.exit_code} >> ledger"
                },
            }
        ],
        ["out err 3"],
    ),
    "on_success": (
        [{"shell": "echo one", "on_success": {"shell": "echo ${last.output} >> ledger"}}],
        ["one"],
    ),
    "on_exit_code": (
        [{"shell": "exit 3", "on_exit_code": {"3": {"shell": "echo three >> ledger"}}}],
        ["three"],
    ),
    "continue_on_error": (
        [
            {"shell": "exit 3", "continue_on_error": True},
            {"shell": "echo ${last.exit_code} >> ledger"},
        ],
        ["3"],
    ),
    "output_file": (
        [{"shell": "echo kept", "output_file": "o"}, {"shell": "cat o >> ledger"}],
        ["kept"],
    ),
    "output_file of a failure": (
        [
            {
                "shell": "echo why; exit 3",
                "output_file": "o",
                "on_failure": {"shell": "cat o >> ledger"},
            }
        ],
        ["why"],
    ),
    "output_file and a timeout": (
        [
            {
                "shell": "echo partly; sleep 9",
                "timeout": 0.3,
                "output_file": "o",
                "continue_on_error": True,
            },
            {"shell": "cat o >> ledger"},
        ],
        ["partly"],
    ),
    "output_file and a check": (
        [
            {
                "shell": "echo seen",
                "output_file": "o",
                "validate": {"shell": "cat o >> ledger; echo 100"},
            }
        ],
        ["seen"],
    ),
    "write_file": (
        [{"write_file": {"path": "w", "content": "${GLOBAL}\n"}}, {"shell": "cat w >> ledger"}],
        ["g"],
    ),
    "foreach": (
        [{"foreach": ["x", "y"], "do": [{"shell": "echo ${item} ${GLOBAL} >> ledger"}]}],
        ["x g", "y g"],
    ),
    "validate": (
        [
            {
                "shell": "echo begun >> ledger",
                "validate": {
                    "shell": "n=$(grep -c -e begun -e gap ledger)\n"
                    'echo "{\\"completion_percentage\\": $((n < 3 ? n * 40 : 100)), \\"missing\\": [\\"m$n\\"]}"',
                    "threshold": 100,
                    "on_incomplete": {
                        "shell": "echo gap ${validation.missing[0]} ${validation.attempt_number} >> ledger",
                        "max_attempts": 5,
                    },
                },
            }
        ],
        ["begun", "gap m1 1", "gap m2 2"],
    ),
    "claude": (
        [
            {"claude": "/do ${GLOBAL}", "capture_output": "said"},
            {"shell": "echo ${said} >> ledger"},
        ],
        ["/do g"],
    ),
    "tool": (
        [
            {"tool": "core/file/write", "params": {"path": "t", "content": "${GLOBAL}\n"}},
            {"shell": "cat t >> ledger"},
        ],
        ["g"],
    ),
}


def in_phase(phase: str, steps: list[Any]) -> dict[str, Any]:
    nothing = [{"shell": "true"}]
    one = {"input": [1], "steps": nothing}
    around: dict[str, dict[str, Any]] = {
        "steps": {"steps": steps},
        "setup": {"setup": steps},
        "map": {"map": {"input": [1], "steps": steps}},
        "reduce": {"map": one, "reduce": steps},
        "merge": {"setup": nothing, "merge": {"steps": steps, "timeout": "30s"}},
        "foreach": {"steps": [{"foreach": ["once"], "do": steps}]},
        "handler": {"steps": [{"shell": "exit 1", "on_failure": steps}]},
        "block": {"blocks": {"b": steps}, "steps": [{"use": "b"}]},
    }
    return {"env": {"GLOBAL": "g"}, **around[phase]}


PHASES = ["steps", "setup", "map", "reduce", "merge", "foreach", "handler", "block"]


@pytest.mark.parametrize("phase", PHASES)
def test_d8_d13_d19_d38_every_field_works_in_every_phase(place: Place, phase: str) -> None:
    place.program("claude", "#!/bin/sh\ncat\n")
    (place.root / "sub").mkdir()
    steps, wanted = [], []
    for name, (steps_of_field, lines) in FIELDS.items():
        steps += [{"shell": f"echo '# {name}' >> ledger"}, *steps_of_field]
        wanted += [f"# {name}", *lines]
    ran = place.run(json.dumps(in_phase(phase, steps)))
    assert ledger(place) == wanted, ran.message
    assert ran.result.status == "done", ran.message


@pytest.mark.parametrize("phase", PHASES)
def test_d8_d19_a_tool_and_an_agent_are_where_their_step_says(place: Place, phase: str) -> None:
    place.program("claude", '#!/bin/sh\ncat > /dev/null; echo "$ANTHROPIC_BASE_URL $(pwd)"\n')
    (place.root / "sub").mkdir()
    around = {"working_dir": "sub", "env": {"ANTHROPIC_BASE_URL": "http://step"}}
    tool = {"tool": "core/shell", "params": {"command": "pwd > place"}, **around}
    agent = {"claude": "/go", "output_file": "told", **around}
    flow = in_phase(phase, [tool, agent])
    flow["env"] = {"ANTHROPIC_BASE_URL": "http://flow"}
    place.done(json.dumps(flow))
    assert place.text("sub/place") == f"{place.root}/sub\n"
    assert place.text("sub/told") == f"http://step {place.root}/sub\n"


ENV_OF_PHASE = """\
blocks: {b: [{shell: 'echo $R >> seen'}]}
setup:
  env: {R: setup}
  steps:
  - {shell: 'echo $R >> seen'}
  - {foreach: [1], env: {R: foreach}, do: [{shell: 'echo $R >> seen'}]}
  - {shell: 'false', env: {R: step}, on_failure: {shell: 'echo $R >> seen'}}
  - {shell: 'true', env: {R: good}, on_success: {shell: 'echo $R >> seen'}, on_exit_code: {0: {shell: 'echo $R >> seen'}}}
  - {shell: 'true', env: {R: checked}, validate: {shell: 'echo $R >> seen; test -e ok', on_incomplete: {shell: 'echo $R >> seen; touch ok'}}}
  - {use: b, env: {R: use}}
  - {foreach: [1], do: [{shell: 'echo $R >> seen'}]}
"""


def test_the_environment_of_a_step_holds_for_what_is_inside_it_over_that_of_its_phase(
    place: Place,
) -> None:
    place.done(ENV_OF_PHASE)
    assert place.text("seen").split() == [
        *("setup", "foreach", "step", "good", "good"),
        *("checked", "checked", "checked", "use", "setup"),
    ]


def test_a_name_of_the_author_is_not_taken_for_the_number_of_items(place: Place) -> None:
    ran = place.done("""\
parameters: {index: {default: mine}}
setup: [{shell: echo 42, capture: total}]
map:
  input: {command: 'seq 1 ${LIMIT:-9} | head -2'}
  env: {LIMIT: '${total}'}
  steps:
  - {shell: 'echo ${total} ${index} ${item_total} ${item_index}'}
  - {foreach: [x], do: [{shell: 'echo ${total} ${item_total} >> seen'}]}
""")
    assert [ran.outputs[f"map/{at}/0"] for at in (0, 1)] == ["42 mine 2 0", "42 mine 2 1"]
    assert place.text("seen") == "42 1\n42 1\n"
    place.done("""\
blocks: {b: {with: [total], steps: [{foreach: [x, y], do: [{shell: 'echo pay ${total} >> paid'}]}]}}
steps: [{use: b, with: {total: 990}}]
""")
    assert place.text("paid") == "pay 990\npay 990\n"
    short = place.done(
        "map: {input: [a], steps: [{foreach: [x, y], do: [{shell: 'echo ${index} ${total} >> short'}]}]}\n"
    )
    assert short.result.status == "done"
    assert place.text("short") == "0 2\n1 2\n"


def test_a_variable_of_a_map_is_known_in_the_command_of_its_input(place: Place) -> None:
    flow = "strict: true\nmap: {input: {command: 'echo ${KIND}'}, env: {KIND: odd}, steps: [{shell: 'echo ${item}'}]}\n"
    assert place.check(flow) == []
    assert place.done(flow).outputs["map/0/0"] == "odd"
    of_item = flow.replace("KIND: odd", "KIND: '${item}'")
    assert "unknown variable 'KIND'" in [one.problem.what for one in place.check(of_item)]
    [unknown] = place.check(of_item.replace("strict: true\n", ""))
    assert unknown.problem.what == "'KIND' uses the item, but this command finds the items"


def test_a_number_of_attempts_may_be_a_parameter(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.engine.step.Retry.delays", lambda *_: iter([0.0]))
    flow = "parameters: {n: integer}\nsteps: [{shell: 'echo x >> seen; test $(wc -l < seen) = 2', retry: '${n}'}]\n"
    assert place.run(flow, inputs={"n": 1}).result.status == "failed"
    (place.root / "seen").unlink()
    assert place.run(flow, inputs={"n": 2}).result.status == "done"


def test_variables_of_a_profile_that_need_each_other_are_named(place: Place) -> None:
    flow = "env: {A: a}\nprofiles: {p: {A: '${B}', B: '${A:-x}'}, q: {A: 'x${A}', B: '${A}'}}\nsteps: [{shell: 'echo $A $B'}]\n"
    [circle] = place.check(flow)
    assert circle.problem.what == "variables need each other: A → B → A"
    with pytest.raises(InputError, match="A → B → A"):
        place.run(flow, profile="p")
    assert (
        place.done(flow.replace("B: '${A:-x}'", "B: b"), profile="q").outputs["steps/0"] == "xa xa"
    )


def test_a_variable_of_a_map_is_made_of_the_item_of_the_map(place: Place) -> None:
    ran = place.done("""\
map: {input: [a], env: {WHO: '${item}'}, steps: [{foreach: [1, 2], do: [{shell: 'echo $WHO ${item} >> seen'}]}]}
""")
    assert ran.result.status == "done"
    assert place.text("seen") == "a 1\na 2\n"


@pytest.mark.parametrize("folder", [".git/hooks", ".ai/tools", "sub/.github", ".GIT", "link"])
def test_no_working_dir_takes_the_guard_off_a_folder(place: Place, folder: str) -> None:
    (place.root / ".git/hooks").mkdir(parents=True)
    (place.root / "link").symlink_to(".git/hooks")
    (place.root / "open").mkdir()
    (place.root / folder).mkdir(parents=True, exist_ok=True)
    flow = (
        "steps: [{tool: core/file/write, params: {path: new, content: evil}, working_dir: WHERE}]\n"
    )
    assert "is not written by this tool" in place.run(flow.replace("WHERE", folder)).message
    place.done("steps: [{tool: core/file/list, working_dir: WHERE}]\n".replace("WHERE", folder))
    assert not (place.root / folder / "new").exists()
    place.done(flow.replace("WHERE", "open"))
    assert place.text("open/new") == "evil"


MADE_OF_EACH_OTHER = [
    # env                                   profile                                HOST, URL
    ("HOST: dev, URL: 'https://${HOST}/'",  "HOST: prod",                          "prod https://prod/"),
    ("HOST: dev",                           "HOST: prod, URL: 'https://${HOST}/'", "prod https://prod/"),
    ("HOST: dev, URL: u",                   "URL: '${HOST}-x'",                    "dev dev-x"),
    ("HOST: dev, URL: u",                   "HOST: '${HOST}-x'",                   "dev-x u"),
    ("HOST: dev, URL: 'h-${HOST}'",         "URL: '${URL}-v2', HOST: prod",        "prod h-prod-v2"),
    ("URL: 'h-${HOST}'",                    "HOST: prod",                          "prod h-prod"),
    ("HOST: dev, BASE: 'b-${HOST}', URL: u", "HOST: prod, URL: '${BASE}/api'",     "prod b-prod/api"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "chosen", "reported"), MADE_OF_EACH_OTHER)
def test_a_profile_and_env_may_be_made_of_each_other(
    place: Place, env: str, chosen: str, reported: str
) -> None:
    flow = (
        f"env: {{{env}}}\nprofiles: {{prod: {{{chosen}}}}}\nsteps: [{{shell: 'echo $HOST $URL'}}]\n"
    )
    assert place.done(flow, profile="prod").outputs["steps/0"] == reported


def test_a_profile_reaches_what_is_made_of_what_it_replaces(place: Place) -> None:
    ran = place.done(
        """\
env: {HOST: dev, ZONE: local, URL: 'https://${HOST}.${ZONE}/'}
profiles: {prod: {HOST: prod, ZONE: org}}
steps: [{shell: 'echo $HOST $URL'}]
""",
        profile="prod",
    )
    assert ran.outputs["steps/0"] == "prod https://prod.org/"


def test_d8_a_handler_reads_the_output_of_the_shell(place: Place) -> None:
    place.program("claude", "#!/bin/sh\ncat > asked.txt\ntouch fixed\n")
    ran = place.done(
        """\
- shell: test -e fixed || { echo the tests say no; exit 1; }
  on_failure: {claude: "/debug ${shell.output}", max_attempts: 2}
"""
    )
    assert place.text("asked.txt") == "/debug the tests say no"
    assert ran.result.exit_code == 0


def test_d38_setup_does_not_move_the_others_to_another_directory(place: Place) -> None:
    ran = place.done(
        """\
setup: [{shell: cd / && pwd}]
map:
  input: [1]
  steps: [{shell: pwd}]
"""
    )
    assert list(ran.outputs.values()) == ["/", str(place.root)]
    assert os.getcwd() != "/"


MERGE_FAILS = """\
setup: [{shell: "true"}]
merge:
  timeout: 300ms
  steps:
    - shell: echo begun >> ledger; sleep 60
      on_failure: {shell: echo handled >> ledger}
"""


def test_d38_the_timeout_of_merge_ends_it(place: Place) -> None:
    began = time.monotonic()
    ran = place.run(MERGE_FAILS)
    assert ran.result.status == "failed"
    assert ledger(place)[0] == "begun"
    assert time.monotonic() - began < DEADLINE


# ── D14: items of every shape ────────────────────────────────────────────

SHAPES = [
    # item                              template                                    prints
    ({"a": {"b": "x"}},                 "${item.a.b}",                              "x"),
    ({"tags": ["p", {"q": 1}]},         "${item.tags[0]} ${item.tags[1].q}",        "p 1"),
    ({"tags": ["p", "q"]},              "${item.tags}",                             "p q"),
    ({"tags": ["p", "q"]},              "'${item.tags}'",                           '["p","q"]'),
    ({"a": None},                       "'[${item.a}]'",                            "[]"),
    ({"a": 42, "b": 1.5, "c": True},    "${item.a} ${item.b} ${item.c}",            "42 1.5 true"),
    ({"a": {"k": [1, None]}},           "'${item.a}'",                              '{"k":[1,null]}'),
    ("text",                            "${item} ${item.value} ${item.path}",       "text text text"),
    (7,                                 "${item} ${item.value}",                    "7 7"),
    (0,                                 "${item}",                                  "0"),
    (False,                             "${item}",                                  "false"),
    (None,                              "'[${item}]'",                              "[]"),
    ([1, 2],                            "'${item}' ${item[1]}",                     "[1,2] 2"),
    ({"it's": {"a b": 1}},              "${item[\"it's\"][\"a b\"]}",               "1"),
    ({"value": "v", "path": "p"},       "${item.value} ${item.path}",               "v p"),
    (9007199254740993,                  "${item}",                                  "9007199254740993"),
]  # fmt: skip


def test_d14_nested_fields_lists_and_scalars_of_items(place: Place) -> None:
    wrong = []
    for item, template, wanted in SHAPES:
        flow = {"map": {"input": [item], "steps": [{"shell": f"echo {template}"}]}}
        outputs = place.run(json.dumps(flow)).outputs
        if outputs != {"map/0/0": wanted}:
            wrong.append((item, template, outputs))
    assert wrong == []


# ── D15, D16: attempts and failures ──────────────────────────────────────


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_d15_so_many_attempts_run_so_often(place: Place, attempts: int) -> None:
    retry = {"attempts": attempts, "backoff": "fixed", "initial_delay": 0}
    ran = place.run(json.dumps([{"shell": "echo try >> ledger; exit 1", "retry": retry}]))
    assert ran.result.exit_code == 1
    assert ledger(place) == ["try"] * attempts
    delays = [event.delay for event in ran.events if isinstance(event, StepRetrying)]
    assert delays == [0] * (attempts - 1)


def test_d15_a_success_ends_the_attempts_and_the_handler_does_not_multiply_them(
    place: Place,
) -> None:
    flow = """\
- shell: echo try >> ledger; test $(grep -c try ledger) = 2
  retry: {attempts: 5, initial_delay: 0}
- shell: echo again >> ledger; exit 1
  retry: {attempts: 3, initial_delay: 0}
  on_failure: echo handled >> ledger
"""
    place.done(flow)
    assert ledger(place) == ["try"] * 2 + ["again"] * 3 + ["handled"]


def test_d15_items_are_tried_as_often_as_their_policy_says(place: Place) -> None:
    flow = """\
map:
  input: [1]
  on_item_failure: retry
  error_policy: {retry_config: {attempts: 3, initial_delay: 0}}
  steps: [{shell: echo try >> ledger; exit 1}]
"""
    assert place.run(flow).result.counts["failed"] == 1
    assert ledger(place) == ["try"] * 3


HANDLED = [
    # on_failure                                             status    exit code
    ("true",                                                 "done",   0),
    ("echo fine",                                            "done",   0),
    ("exit 4",                                               "failed", 1),
    ("{shell: exit 4, continue_on_error: true}",             "done",   0),
    ("{shell: echo fine, fail_workflow: true}",              "failed", 1),
    ("{shell: echo fine, max_attempts: 2}",                  "failed", 1),
    ("{shell: touch mended, max_attempts: 2}",               "done",   0),
    ("{shell: echo fine, max_attempts: 2, fail_workflow: false}", "done", 0),
]  # fmt: skip


@pytest.mark.parametrize(("handler", "status", "code"), HANDLED)
def test_d16_a_handler_that_fails_is_a_failure(
    place: Place, handler: str, status: str, code: int
) -> None:
    ran = place.run(f"- shell: test -e mended\n  on_failure: {handler}\n")
    assert (ran.result.status, ran.result.exit_code) == (status, code)


def test_d16_the_duration_of_a_capture_is_that_of_the_command(place: Place) -> None:
    _, long = place.outputs(
        "- {shell: sleep 0.05, capture_output: nap}\n- shell: echo ${nap.duration}\n"
    )
    assert 0.05 <= float(long) < DEADLINE


UNREADABLE = [
    "",
    "not JSON",
    "[]",
    "{}",
    '{"completion_percentage": "all"}',
    '{"completion_percentage": NaN}',
    "{",
]


@pytest.mark.parametrize("written", UNREADABLE)
def test_d16_a_result_file_that_cannot_be_read_is_a_failed_check(
    place: Place, written: str
) -> None:
    place.write("result.json", written)
    check = {"shell": "true", "result_file": "result.json"}
    ran = place.run(json.dumps([{"shell": "true", "validate": check}, {"shell": "echo on"}]))
    assert ran.result.exit_code == 1
    assert "steps/1" not in ran.finished


def test_d16_a_result_file_that_is_missing_is_a_failed_check(place: Place) -> None:
    check = {"shell": "true", "result_file": "none.json"}
    assert place.run(json.dumps([{"shell": "true", "validate": check}])).result.exit_code == 1


def test_d16_an_agent_that_gives_no_result_has_not_found_everything_complete(place: Place) -> None:
    place.program("claude", "#!/bin/sh\necho I could not read the specification.\n")
    ran = place.run(json.dumps([{"shell": "true", "validate": {"claude": "/check"}}]))
    assert ran.result.exit_code == 1


@pytest.mark.parametrize(
    "check", ["exit 1", "echo '{broken'", "echo '{\"completion_percentage\": 101}'"]
)
def test_d16_a_check_that_fails_or_prints_half_a_result_has_failed(
    place: Place, check: str
) -> None:
    ran = place.run(
        json.dumps([{"shell": "true", "validate": {"shell": check}}, {"shell": "echo on"}])
    )
    assert ran.result.exit_code == 1
    assert "steps/1" not in ran.finished


# ── D17: files that are written ──────────────────────────────────────────

PATHS = [
    ("a..b", True), ("..a", True), ("sub/../x", True), ("./x", True), ("a b'c", True), ("ü", True),
    ("../x", False), ("/etc/x", False), ("sub/../../x", False), ("link/x", False), ("", False),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fine"), PATHS)
def test_d17_a_file_is_written_below_the_project_or_not_at_all(
    place: Place, path: str, fine: bool
) -> None:
    (place.root / "link").symlink_to(place.root.parent)
    steps: list[Any] = [{"write_file": {"path": "${path}", "content": "x"}}]
    flow = json.dumps({"parameters": ["path"], "steps": steps})
    ran = place.run(flow, inputs={"path": path})
    assert (ran.result.status == "done") is fine, ran.message
    if fine:
        assert place.text(os.path.normpath(path)) == "x"
    assert not (place.root.parent / "x").exists()


# ── D18: a failed step is a failed item ──────────────────────────────────


def test_d18_a_failed_step_fails_its_item_and_the_exit_code(place: Place) -> None:
    ran = place.run(
        """\
map:
  input: [good, bad]
  steps:
    - shell: test ${item} = good
    - shell: echo ${item} >> ledger
reduce:
  - shell: echo ${map.successful} ${map.failed} ${map.results[1].status} ${map.results[1].exit_code}
"""
    )
    assert ran.outputs["reduce/0"] == "1 1 failed 1"
    assert ledger(place) == ["good"]
    assert (ran.result.status, ran.result.exit_code) == ("done", 1)


def test_d18_a_failed_step_ends_reduce(place: Place) -> None:
    flow = "map: {input: [1], steps: [{shell: 'true'}]}\nreduce: [{shell: exit 2}, {shell: echo on >> ledger}]\n"
    ran = place.run(flow)
    assert (ran.result.status, ran.failed, ledger(place)) == ("failed", ["reduce/0", "reduce"], [])


# ── D20: large results, small environments ───────────────────────────────


def test_d20_results_larger_than_an_environment_reach_reduce(place: Place) -> None:
    ran = place.done(
        """\
map:
  input: [1, 2, 3, 4, 5, 6]
  steps: [{shell: "head -c 700000 /dev/zero | tr '\\\\0' x"}]
reduce:
  - shell: "printf '%s' '${map.results}' | wc -c"
    capture_output: size
    capture_format: number
  - write_file: {path: all.json, content: "${map.results}", format: json}
  - shell: env | wc -c
"""
    )
    assert int(ran.outputs["reduce/0"]) > 4_200_000
    assert [len(one["output"]) for one in json.loads(place.text("all.json"))] == [700_000] * 6
    assert int(ran.outputs["reduce/2"]) < 20_000


def test_d20_no_variable_of_the_flow_slips_into_the_environment_of_a_step(place: Place) -> None:
    ran = place.done(
        """\
vars: {from_vars: v}
env: {FROM_ENV: e}
steps:
  - {shell: echo c, capture_output: captured}
  - {shell: "env | grep -cE '^(captured|from_vars|last|workflow)' ; env | grep FROM_ENV"}
"""
    )
    assert ran.outputs["steps/1"] == "0\nFROM_ENV=e"


# ── D21: commits ─────────────────────────────────────────────────────────


def test_d21_the_commits_of_items_stay_with_or_without_a_requirement(place: Place) -> None:
    place.repository()
    place.done(
        """\
map:
  input: [a, b, c]
  max_parallel: 1
  steps:
    - shell: echo ${item} > ${item}.txt && git add ${item}.txt && git commit -qm "add ${item}"
"""
    )
    assert place.git("log", "--format=%s").split("\n") == ["add c", "add b", "add a", "first"]


def test_d21_a_commit_that_is_required_is_looked_for(place: Place) -> None:
    place.repository()
    ran = place.run("- {shell: 'true', commit_required: true}\n")
    assert ran.result.exit_code == 1
    assert "no commit" in ran.message
    place.done("- {shell: git commit -q --allow-empty -m x, commit_required: true}\n")


# ── D22 to D27: items ────────────────────────────────────────────────────


def chosen(place: Place, **options: Any) -> list[Any]:
    """The items that a map with these settings works on, in their order."""
    nothing = [{"shell": "true", "when": "${item_index} < 0"}]
    place.write("flow.yaml", json.dumps({"map": {**options, "steps": nothing}, "reduce": REPORT}))
    place.done()
    return [one["item"] for one in json.loads(place.text("report.json"))]


REPORT = [{"write_file": {"path": "report.json", "content": "${map.results}", "format": "json"}}]


def test_d22_offset_distinct_and_limits_choose_the_items(place: Place) -> None:
    place.write("items.json", [{"n": n, "k": n % 3} for n in range(9)])
    found = chosen(
        place,
        input="items.json",
        filter="n > 0",
        sort_by="n DESC",
        distinct="k",
        offset=1,
        max_items=1,
    )
    assert found == [{"n": 7, "k": 1}]


STOPPING = [
    # settings                                                    items that began    status
    ({"max_failures": 2},                                         2,                  "failed"),
    ({"error_policy": {"max_failures": 2}},                       2,                  "failed"),
    ({"on_item_failure": "stop"},                                 1,                  "failed"),
    ({"continue_on_failure": False},                              1,                  "failed"),
    ({"error_policy": {"continue_on_failure": False}},            1,                  "failed"),
    ({"failure_threshold": 0.5},                                  10,                 "failed"),
    ({"on_item_failure": "skip"},                                 12,                 "done"),
    ({"on_item_failure": "dlq"},                                  12,                 "failed"),
]  # fmt: skip


@pytest.mark.parametrize("top", [False, True])
@pytest.mark.parametrize(("policy", "began", "status"), STOPPING)
def test_d22_the_error_policy_decides_how_long_a_map_goes_on(
    place: Place, policy: dict[str, Any], began: int, status: str, top: bool
) -> None:
    map_step = {
        "input": list(range(12)),
        "max_parallel": 1,
        "steps": [{"shell": "echo x >> ledger; exit 1"}],
    }
    flow = {"map": map_step, **policy} if top else {"map": {**map_step, **policy}}
    ran = place.run(json.dumps(flow))
    assert (len(ledger(place)), ran.result.status) == (began, status)


def test_d22_a_circuit_breaker_waits_and_says_so(place: Place) -> None:
    breaker = {"failure_threshold": 2, "timeout": "50ms"}
    map_step = {
        "input": [1, 2, 3],
        "max_parallel": 1,
        "circuit_breaker": breaker,
        "steps": [{"shell": "exit 1"}],
    }
    notes = place.run(json.dumps({"map": map_step})).notes
    assert notes[0] == "2 failures in a row: no new items for 0.05 s"


TREE = "sleep 60 & echo $! >> pids; (sleep 60 & echo $! >> pids; wait) & echo $! >> pids; echo $$ >> pids; wait"
LIMITS = {
    "step": {"steps": [{"shell": TREE, "timeout": "400ms"}]},
    "phase": {"setup": {"timeout": "400ms", "steps": [{"shell": TREE}]}},
    "item": {
        "map": {
            "input": [1],
            "timeout": "400ms",
            "on_item_failure": "stop",
            "steps": [{"shell": TREE}],
        }
    },
    "older item": {
        "map": {
            "input": [1],
            "agent_timeout_secs": 0.4,
            "on_item_failure": "stop",
            "steps": [{"shell": TREE}],
        }
    },
    "flow": {"timeout": "400ms", "steps": [{"shell": TREE}]},
    "validate": {"steps": [{"shell": "true", "validate": {"shell": TREE, "timeout": "400ms"}}]},
    "loop": {"steps": [{"foreach": [1], "timeout": "400ms", "do": [{"shell": TREE}]}]},
}


@pytest.mark.parametrize("limit", LIMITS)
def test_d23_a_timeout_ends_every_process_of_the_step(place: Place, limit: str) -> None:
    began = time.monotonic()
    ran = place.run(json.dumps(LIMITS[limit]))
    assert ran.result.status == "failed"
    assert time.monotonic() - began < DEADLINE
    pids = [int(line) for line in place.text("pids").split()]
    assert len(pids) == 4
    assert [pid for pid in pids if is_alive(pid)] == []


def is_alive(pid: int) -> bool:
    """Still there some time later, and not only waiting to be buried."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        if state in "ZX":
            return False
    return True


ZEROS = [
    "map: {input: [1], max_parallel: 0, steps: [{shell: 'true'}]}",
    "max_parallel: 0\nmap: {input: [1], steps: [{shell: 'true'}]}",
    "- {foreach: [1], parallel: 0, do: [{shell: 'true'}]}",
    "map: {input: [1], max_parallel: -1, steps: [{shell: 'true'}]}",
]


@pytest.mark.parametrize("flow", ZEROS)
def test_d24_nothing_at_a_time_is_refused(place: Place, flow: str) -> None:
    assert "whole number" in place.refusal(flow)


def test_d24_a_variable_that_says_nothing_at_a_time_fails_at_once(place: Place) -> None:
    ran = place.run(
        "env: {N: 0}\nmap: {input: [1], max_parallel: '${N}', steps: [{shell: 'true'}]}\n"
    )
    assert (ran.result.status, "max_parallel" in ran.message) == ("failed", True)


@pytest.mark.parametrize("name", ["itmes.json", "touch canary", "sub/none.json", "data/*.none"])
def test_d25_an_input_that_is_not_there_is_an_error_and_no_command(place: Place, name: str) -> None:
    (place.root / "items.json").write_text("[]")
    ran = place.run(
        json.dumps({"map": {"input": name, "steps": [{"shell": "true"}]}, "reduce": REPORT})
    )
    assert (ran.result.status, ran.result.exit_code) == ("failed", 2)
    assert "report.json" not in os.listdir(place.root)
    assert_no_canary(place)


def test_d25_an_object_that_a_command_prints_has_a_path_to_its_items(place: Place) -> None:
    place.write("list.json", {"items": [{"n": 1}, {"n": 2}]})
    found = chosen(place, input={"command": "cat list.json"}, json_path="$.items[*]")
    assert found == [{"n": 1}, {"n": 2}]


def test_d25_without_items_reduce_runs_with_zeros(place: Place) -> None:
    ran = place.done(
        """\
map: {input: [], steps: [{shell: "true"}]}
reduce:
  - shell: echo ${map.total} ${map.successful} ${map.failed} ${map.success_rate} '${map.results}'
"""
    )
    assert ran.outputs == {"reduce/0": "0 0 0 0 []"}


@pytest.mark.parametrize(
    "input", ["{glob: '*.nothing'}", "'*.nothing'", "'items?.json'", "'no[1].json'"]
)
def test_d25_a_pattern_that_matches_no_file_is_noted(place: Place, input: str) -> None:
    ran = place.done(f"map: {{input: {input}, steps: [{{shell: ls}}]}}\n")
    assert [note.partition("; ")[0] for note in ran.notes] == [
        "the map has no items: the pattern of the input matches no file that is selected"
    ]


def test_d25_items_as_text_are_no_pattern(place: Place) -> None:
    flow = """map: {input: '[{"n": 1}]', steps: [{shell: ls}]}\n"""
    assert "these are items, written as text" in place.refusal(flow)
    assert [finding.code for finding in place.check(flow)] == ["bad-input"]
    json = "setup: [{shell: 'echo [1]', capture: found}]\nmap: {input: '${found}', steps: [{shell: ls}]}\n"
    assert "capture_format: json or lines" in place.run(json).message


def test_d25_a_text_that_a_placeholder_gives_is_not_called_a_file_of_that_name(
    place: Place,
) -> None:
    ran = place.run(
        "setup: [{shell: echo a, capture: found}]\nmap: {input: '${found}', steps: [{shell: ls}]}\n"
    )
    assert "'${found}' is text here" in ran.message
    assert "capture_format: json or lines" in ran.message


def test_the_environment_of_a_map_is_that_of_the_command_of_its_input_too(place: Place) -> None:
    flow = "map: {input: {command: 'echo $KIND ${KIND}'}, env: {KIND: odd}, steps: [{shell: 'echo ${item}'}]}\n"
    run = place.done(flow)
    assert run.outputs["map/0/0"] == "odd odd"
    place.write("flow.yaml", flow.replace("odd", "even"))
    with pytest.raises(InputError, match="map/items"):
        place.resume(run.result.run)
    before = "env: {KIND: none}\nstrict: true\n"
    of_item = flow.replace("{KIND: odd}", "{KIND: odd, IT: '${item}'}")
    assert place.done(before + of_item).outputs["map/0/0"] == "odd odd"


def test_d25_a_name_does_not_eat_the_beginning_of_another(place: Place) -> None:
    ran = place.done(
        """\
env: {A: one, AB: "2"}
map:
  input: [1, 2, 3]
  max_parallel: $AB
  max_items: ${AB}
  steps: [{shell: echo $A $AB $ABC.}]
"""
    )
    assert ran.outputs == {"map/0/0": "one 2 .", "map/1/0": "one 2 ."}


PEOPLE = [
    {"n": 1, "name": "ann", "tags": ["x", "y", "z"], "path": "src/a.rs", "at": "2024-01-02"},
    {"n": 2, "name": "bob && co", "tags": [], "path": "docs/b.md", "score": 1.5, "ok": True},
    {"n": 3, "name": "a == b", "tags": ["x"], "path": "src/c.rs", "score": None, "ok": False},
]
FILTERS = [
    ("n == 2", [2]),
    ("n = 2", [2]),
    ("n in [1, 3]", [1, 3]),
    ("name in ['ann', 'zoe']", [1]),
    ("contains(name, 'nn')", [1]),
    ("starts_with(path, 'src/')", [1, 3]),
    ("ends_with(path, '.md')", [2]),
    ("length(tags) == 3", [1]),
    ("length(tags, 1)", [3]),
    ("path matches '[.]rs$'", [1, 3]),
    ("matches(path, '^docs')", [2]),
    ("name == 'bob && co'", [2]),
    ("name == 'a == b'", [3]),
    ("!ok && n < 3", [1]),
    ("!(ok && n < 3)", [1, 3]),
    ("item.n >= 2", [2, 3]),
    ("n == 1 || n == 2 && ok == false", [1]),
    ("n == 1 OR n == 2 AND ok", [1, 2]),
    ("score > 1", [2]),
    ("is_null(score)", [3]),
    ("score == null", [1, 3]),
    ("is_number(score)", [2]),
    ("at > '2023-12-31'", [1]),
    ("tags[0] == 'x'", [1, 3]),
]


def test_d27_filters_mean_what_they_say(place: Place) -> None:
    place.write("people.json", PEOPLE)
    wrong = {}
    for text, wanted in FILTERS:
        found = [one["n"] for one in chosen(place, input="people.json", filter=text)]
        if found != wanted:
            wrong[text] = found
    assert wrong == {}


JSON_PATHS = [
    ("$..n", [1, 2, 3, 9]),
    ("$['people'][*]['n']", [1, 2, 3]),
    ("$.people[1:].n", [2, 3]),
    ("$.people[?@.n > 1 && @.name != 'a == b'].n", [2]),
    ("$.people[-1:].n", [3]),
]


@pytest.mark.parametrize(("path", "wanted"), JSON_PATHS)
def test_d27_paths_are_those_of_the_standard(place: Place, path: str, wanted: list[Any]) -> None:
    place.write("people.json", {"people": PEOPLE, "other": {"n": 9}})
    assert chosen(place, input="people.json", json_path=path) == wanted


def test_d27_nulls_come_last_in_both_directions(place: Place) -> None:
    place.write("n.json", [{"s": None, "n": 1}, {"s": 2, "n": 2}, {"n": 3}, {"s": 10, "n": 4}])
    for order, wanted in (
        ("s", [2, 4, 1, 3]),
        ("s DESC", [4, 2, 1, 3]),
        ("s DESC NULLS FIRST", [1, 3, 4, 2]),
    ):
        assert [one["n"] for one in chosen(place, input="n.json", sort_by=order)] == wanted


# ── D28, D29: parameters and loops ───────────────────────────────────────


def test_d28_a_required_parameter_is_satisfied_by_the_command_line(place: Place) -> None:
    place.write("flow.yaml", "parameters: {target: {}, n: {type: integer, default: 3}}\n"
                "steps: [{shell: 'echo ${target} ${n}'}]\n")  # fmt: skip
    missing = place.plait("run", "flow.yaml")
    assert (missing.returncode, "'target'" in missing.stderr) == (2, True)
    given = place.plait("run", "flow.yaml", "-i", "target=all", "-i", "n=5", "--json")
    assert json.loads(given.stdout.splitlines()[-1])["value"]["output"] == "all 5\n"
    wrong = place.plait("run", "flow.yaml", "-i", "target=all", "-i", "n=many")
    assert (wrong.returncode, "'n' must be a whole number, got \"many\"" in wrong.stderr) == (
        2,
        True,
    )


def test_d28_files_share_by_extends_imports_and_use(place: Place) -> None:
    place.write("base.yaml", "name: base\nenv: {A: base, B: base}\nsteps: [{shell: echo never}]\n")
    place.write(
        "lib/checks.yaml",
        "blocks:\n  lint: {with: [what], steps: [{use: inner, with: {x: '${what}'}}]}\n"
        "  inner: {with: [x], steps: [{shell: 'echo lint ${x} ${A}'}]}\n",
    )
    ran = place.done(
        """\
extends: base.yaml
imports: [{path: lib/checks.yaml, alias: checks}]
env: {A: own}
steps:
  - {shell: "echo ${A} ${B} ${workflow.name}"}
  - {use: checks.lint, with: {what: "w ${B}"}}
  - {use: checks.lint, with: {what: again}}
"""
    )
    printed = [out for path, out in ran.outputs.items() if ran.finished[path].kind == "shell"]
    assert printed == ["own base base", "lint w base own", "lint again own"]


def test_d29_a_loop_knows_the_flow_works_in_the_project_and_stops_at_the_first_failure(
    place: Place,
) -> None:
    ran = place.run(
        """\
env: {G: g}
steps:
  - {shell: echo c, capture_output: captured}
  - foreach: "printf 'one\\ntwo\\n\\nthree\\n'"
    do:
      - {shell: "pwd; test ${item} != two", capture_output: here}
      - {shell: "echo ${item} ${G} ${captured} ${here} ${index}/${total} >> ledger", when: "${item} != 'none'"}
"""
    )
    assert ran.result.exit_code == 1
    assert ledger(place) == [f"one g c {place.root} 0/3"]


def test_d29_a_loop_may_go_on_and_may_run_in_parallel(place: Place) -> None:
    ran = place.run(
        """\
- foreach: [one, two, three, four]
  parallel: true
  continue_on_error: true
  max_items: 3
  do: [{shell: "echo ${item}; test ${item} != two"}]
  capture_output: found
- shell: echo '${found}' ${found[2]}
"""
    )
    assert ran.outputs["steps/1"] == '["one","two","three"] three'


# ── D30 to D34: resume, dead letters, signals ────────────────────────────


def test_d30_a_stopped_map_goes_on_where_it_was(place: Place) -> None:
    place.write(
        "flow.yaml",
        """\
setup: [{shell: "echo setup >> ledger; echo base", capture_output: base}]
map:
  input: [a, b, c, d]
  max_parallel: 1
  steps:
    - shell: test ${item} != c || test -e ready || { touch waiting; sleep 60; }
    - shell: "echo ${item} >> ledger; echo ${base} ${item}"
reduce:
  - shell: echo ${map.outputs[0]}, ${map.outputs[3]}, ${map.successful}
""",
    )
    stop = StopSignal()

    def ask_when_it_waits() -> None:
        until((place.root / "waiting").exists)
        stop.ask()

    asking = Thread(target=ask_when_it_waits)
    asking.start()
    stopped = run_flow(str(place.file), observers=RunObservers(stop=stop))
    asking.join()
    assert (stopped.status, stopped.exit_code) == ("interrupted", 130)
    assert ledger(place) == ["setup", "a", "b"]
    place.write("ready", "")
    ran = place.resume(stopped.run)
    assert ran.result.status == "done"
    assert ran.outputs["reduce/0"] == "base a, base d, 4"
    assert ledger(place) == ["setup", "a", "b", "c", "d"]


def until(holds: Callable[[], bool]) -> None:
    """Wait for something, and not for ever."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "it did not happen"


def test_d31_a_resumed_list_of_steps_has_its_names_environment_and_handlers(place: Place) -> None:
    ran = place.run(
        """\
parameters: [who]
env: {G: "g ${who}"}
steps:
  - {shell: "echo once >> ledger; echo c", capture_output: captured}
  - {shell: "test -e ready"}
  - {shell: "echo ${captured} ${G} $G ${last.exit_code} ${workflow.name} >> ledger"}
  - {shell: "echo bad; exit 3", on_failure: "echo ${shell.output} ${error.exit_code} >> ledger"}
""",
        inputs={"who": "Ada"},
    )
    assert ran.failed == ["steps/1", "steps"]
    place.write("ready", "")
    again = place.resume(ran.result.run)
    assert again.result.status == "done", again.message
    assert ledger(place) == ["once", "c g Ada g Ada 0 flow", "bad 3"]


def test_d32_failed_items_are_kept_listed_and_retried_alone_also_with_another_text(
    place: Place,
) -> None:
    flow = """\
map:
  input: [{id: a}, {id: b}, {id: c}]
  steps: [{shell: "echo ${item.id} >> ledger; test ${item.id} != b TEST"}]
reduce: [{shell: "echo ${map.successful} ${map.failed}"}]
"""
    ran = place.run(flow.replace(" TEST", ""))
    assert ran.outputs["reduce/0"] == "2 1"
    shown = json.loads(place.plait("show", ran.result.run, "--json").stdout)
    assert "b" in json.dumps(shown)
    again = place.retry(ran.result.run)
    assert again.result.counts["failed"] == 1
    place.write("flow.yaml", flow.replace(" TEST", " || true"))
    mended = place.retry(ran.result.run)
    assert (mended.result.status, mended.result.counts["failed"]) == ("done", 0)
    assert mended.outputs["reduce/0"] == "3 0"
    assert sorted(ledger(place)) == ["a", "b", "b", "b", "c"]


def test_d32_runs_show_and_logs_say_what_happened(place: Place) -> None:
    ran = place.run("- {shell: echo printed here}\n- {shell: echo oops >&2; exit 3}\n")
    listed = json.loads(place.plait("runs", "--json").stdout)
    assert [(one["id"], one["status"]) for one in listed] == [(ran.result.run, "failed")]
    logs = place.plait("logs", ran.result.run).stdout
    assert "printed here" in logs
    assert "oops" in logs
    assert "exit 3" in place.plait("show", ran.result.run).stdout


def test_d33_ctrl_c_ends_what_runs_records_and_says_how_to_go_on(place: Place) -> None:
    place.write(
        "flow.yaml",
        """\
map:
  input: [a, b, c]
  max_parallel: 1
  steps:
    - shell: "test ${item} = a || { echo $$ >> pids; sleep 60 & echo $! >> pids; wait; }; echo ${item} >> ledger"
""",
    )
    command = [sys.executable, "-m", "plait", "run", "flow.yaml"]
    plait = subprocess.Popen(
        command, cwd=place.root, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pids = place.root / "pids"
        until(
            lambda: (
                plait.poll() is not None or (pids.exists() and len(pids.read_text().split()) == 2)
            )
        )
        plait.send_signal(signal.SIGINT)
        out, _ = plait.communicate(timeout=DEADLINE)
    finally:
        plait.kill()
    assert plait.returncode == 130
    run = flow_runs(str(place.root))[0].id
    assert f"plait resume {run}" in out
    assert [pid for pid in pids.read_text().split() if is_alive(int(pid))] == []
    assert ledger(place) == ["a"]


def test_d34_items_without_an_id_and_equal_items_are_all_done_and_none_is_dropped_by_resume(
    place: Place,
) -> None:
    place.write("items.json", [{"x": 1}, {"x": 1}, "same", "same", None, None])
    ran = place.run(
        """\
map:
  input: items.json
  steps: [{shell: "echo ${item_index} >> ledger"}]
reduce: [{shell: test -e ready}, {shell: "echo ${map.total} ${map.successful}"}]
"""
    )
    assert sorted(ledger(place)) == [str(number) for number in range(6)]
    place.write("ready", "")
    again = place.resume(ran.result.run)
    assert again.outputs["reduce/1"] == "6 6"
    assert len(ledger(place)) == 6


def test_d34_runs_that_begin_together_have_ids_of_their_own(place: Place) -> None:
    place.write("flow.yaml", "- shell: 'true'\n")
    ids: list[str] = []
    threads = [Thread(target=lambda: ids.append(run_flow(str(place.file)).run)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(set(ids)) == 6


def test_d34_a_step_that_was_edited_is_noticed(place: Place) -> None:
    flow = "- {shell: echo old >> ledger}\n- {shell: test -e ready}\n"
    ran = place.run(flow)
    place.write("flow.yaml", flow.replace("old", "new"))
    place.write("ready", "")
    with pytest.raises(InputError, match="accept-changes"):
        place.resume(ran.result.run)
    place.resume(ran.result.run, accept_changes=True)
    assert ledger(place) == ["old", "new"]


def test_d34_a_step_that_only_got_another_name_is_not_done_again_unasked(place: Place) -> None:
    flow = "- {name: one, shell: echo done >> ledger}\n- {shell: test -e ready}\n"
    ran = place.run(flow)
    place.write("flow.yaml", flow.replace("one", "uno"))
    place.write("ready", "")
    with contextlib.suppress(InputError):  # it may be asked first, too
        place.resume(ran.result.run)
    assert ledger(place) == ["done"]


# ── D35, D36: secrets, profiles, env files ───────────────────────────────

SECRET = "hunter2-s3cr3t-value"


def test_d35_a_secret_is_in_no_output_event_journal_or_log(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    place.program("claude", "#!/bin/sh\ncat\n")
    flow = """\
secrets: {TOKEN: MY_TOKEN}
steps:
  - {shell: "printf '%s' ${TOKEN} | wc -c", capture_output: size}
  - {shell: "echo ${TOKEN} $TOKEN; echo ${TOKEN} >&2", capture_output: leaked}
  - {shell: "echo ${leaked}; printf '%s' ${TOKEN} | base64 -w0; exit 3", continue_on_error: true}
  - {foreach: ["${TOKEN}"], do: [{shell: "echo ${item}"}]}
  - {claude: "say ${TOKEN}"}
  - {write_file: {path: out.txt, content: "${leaked}"}}
"""
    ran = place.done(flow)
    assert ran.outputs["steps/0"] == str(len(SECRET))
    forms = [SECRET, base64.b64encode(SECRET.encode()).decode()]
    seen = repr(ran.events) + repr(ran.result) + place.text("out.txt")
    run = ran.result.run
    shown = [
        place.plait(*args).stdout
        for args in (("logs", run), ("show", run), ("run", "flow.yaml", "--json"))
    ]
    assert [form for form in forms if form in seen + "".join(shown)] == []
    assert [form for form in forms if form.encode() in place.state] == []


def test_d35_a_secret_among_the_items_of_a_map_stays_out_of_the_journal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    place.run(
        """\
secrets: {TOKEN: MY_TOKEN}
map:
  input: {command: "printf '%s\\n' ${TOKEN} other"}
  steps: [{shell: "echo ${item}; exit 1"}]
reduce: [{write_file: {path: out.json, content: "${map.results}", format: json}}]
"""
    )
    assert SECRET.encode() not in place.state
    assert SECRET not in place.text("out.json")


def test_d36_secrets_come_from_their_declared_source(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    place.write("secret.txt", SECRET + "\n")
    forms: list[Any] = [
        "MY_TOKEN",
        {"env": "MY_TOKEN"},
        {"provider": "env", "key": "MY_TOKEN"},
        {"file": "secret.txt"},
        {"provider": "file", "key": "secret.txt"},
    ]
    for form in forms:
        steps = [{"shell": "printf '%s' ${T} | wc -c"}]
        assert place.outputs(json.dumps({"secrets": {"T": form}, "steps": steps})) == [
            str(len(SECRET))
        ]


@pytest.mark.parametrize(
    "form", ["${env:MY_TOKEN}", "${env.MY_TOKEN}", "", {"provider": "vault", "key": "x"}]
)
def test_d36_a_secret_declared_in_another_way_is_refused_and_not_taken_literally(
    place: Place, form: Any
) -> None:
    message = place.refusal(json.dumps({"secrets": {"T": form}, "steps": [{"shell": "true"}]}))
    assert "flow.yaml:1:" in message


def test_d36_a_missing_secret_is_an_error_before_anything_runs(place: Place) -> None:
    message = place.refusal("secrets: {T: NOT_THERE}\nsteps: [{shell: 'echo x >> ledger'}]\n")
    assert "NOT_THERE" in message
    assert ledger(place) == []


PROFILES = """\
env: {REGION: eu, LABEL: "l-${env.BASE}"}
profiles:
  prod: {REGION: us}
env_files: [vars.env, none.env?]
map: {input: [1], steps: [{shell: "echo ${REGION} $REGION ${FROM_FILE} $FROM_FILE"}]}
reduce: [{shell: "echo ${REGION} ${LABEL} ${FROM_FILE}"}]
"""


def test_d36_a_profile_can_be_chosen_and_reaches_every_phase(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASE", "b")
    place.write("vars.env", "FROM_FILE='f 1'\nREGION=file\n")
    assert list(place.done(PROFILES).outputs.values()) == ["eu eu f 1 f 1", "eu l-b f 1"]
    prod = place.done(PROFILES, profile="prod").outputs
    assert list(prod.values()) == ["us us f 1 f 1", "us l-b f 1"]
    with pytest.raises(InputError, match="'prd'"):
        place.run(PROFILES, profile="prd")


def test_d36_an_env_file_that_is_missing_is_an_error_unless_it_may_be(place: Place) -> None:
    assert "gone.env" in place.refusal("env_files: [gone.env]\nsteps: [{shell: 'true'}]\n")
    place.done("env_files: [gone.env?]\nsteps: [{shell: 'true'}]\n")


# ── D37: odd text ────────────────────────────────────────────────────────

ODD = [
    "é" * 70,
    "e\u0301" * 50,
    "👩‍👩‍👧‍👦" * 30,
    "\u202eabc",
    "漢字" * 60,
    "\u2028",
    "ß\tß",
    "\x1b[31mred",
    "\ufeffbom",
]


def test_d37_odd_text_goes_through_names_items_titles_and_logs(place: Place) -> None:
    place.write("items.json", [{"name": text} for text in ODD])
    ran = place.done(
        """\
map:
  input: items.json
  steps: [{name: "Über ${item.name} 漢字", shell: "printf '%s' '${item.name}'"}]
reduce:
  - write_file: {path: all.json, content: "${map.outputs}", format: json}
"""
    )
    assert json.loads(place.text("all.json")) == ODD
    assert place.plait("show", ran.result.run).returncode == 0
    assert place.plait("logs", ran.result.run).returncode == 0


def test_d37_bytes_that_are_no_text_and_cut_characters_end_nothing(place: Place) -> None:
    ran = place.done(
        """\
- {shell: "printf '\\\\377\\\\376ok\\\\303'", capture_output: bytes}
- {shell: "printf '%s' ${bytes} | od -An -tx1 | tr -d ' \\n'"}
- {shell: "printf 'a1b'", capture_output: x}
"""
    )
    assert ran.outputs["steps/1"] == "fffe6f6bc3"
    assert place.plait("logs", ran.result.run).returncode == 0


def test_d37_a_group_that_takes_no_part_is_no_crash(place: Place) -> None:
    flow = {
        "setup": {
            "steps": [{"shell": "echo version"}],
            "capture_outputs": {"v": {"command_index": 0, "pattern": "version( [0-9]+)?"}},
        },
        "reduce": [{"shell": "echo ${v}"}],
        "map": {"input": [], "steps": [{"shell": "true"}]},
    }
    assert place.done(json.dumps(flow)).outputs["reduce/0"] == "version"


# ── D39: what was documented is there ────────────────────────────────────


def test_d39_the_documented_names_have_values(place: Place) -> None:
    ran = place.done(
        """\
setup:
  - {shell: "echo err >&2; exit 3", allow_failure: true}
  - {shell: "echo ${shell.stderr} ${last.exit_code}"}
map:
  input: [{a: 1}, {a: 2}]
  steps: [{shell: "echo ${item.a}"}]
reduce:
  - {shell: "echo ${map.success_rate} '${map.results_json}' ${map.outputs:csv} | cut -c1-19"}
  - {shell: "echo ${map.outputs | length} ${missing:-x} ${missing | default('y')}"}
"""
    )
    assert ran.outputs["setup/1"] == "err 3"
    assert ran.outputs["reduce/0"] == '100.0 [{"item_id":"'
    assert ran.outputs["reduce/1"] == "2 x y"


ATTEMPTS = [
    # a shell step, with what follows it                                              attempts that were seen
    ("shell: exit 3\n  on_failure: {shell: 'SEEN'}",                                   "1"),
    ("shell: 'true'\n  on_success: {shell: 'SEEN'}",                                   "1"),
    ("shell: exit 3\n  retry: {attempts: 3, initial_delay: 0}\n  on_failure: {shell: 'SEEN'}", "3"),
    ("shell: exit 3\n  on_failure: {shell: 'SEEN', max_attempts: 3, fail_workflow: false}", "1 2 3"),
    ("shell: exit 3\n  retry: {attempts: 2, initial_delay: 0}\n"
     "  on_failure: {shell: 'SEEN', max_attempts: 2, fail_workflow: false}",           "2 4"),
    ("shell: sleep 60\n  timeout: 1ms\n  retry: {attempts: 2, initial_delay: 0}\n  on_failure: {shell: 'SEEN'}", "2"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "seen"), ATTEMPTS)
def test_d39_the_attempts_of_a_shell_step_are_counted(place: Place, step: str, seen: str) -> None:
    place.done(f"- {step.replace('SEEN', 'echo ${shell.attempt} >> ledger')}\n")
    assert " ".join(ledger(place)) == seen


OLDER = [
    # written so elsewhere                                            what is reported
    ("- shell: echo ${x|default:y}",                                  "default"),
    ("- {foreach: [1], items: [2], do: [{shell: 'true'}]}",           "items"),
    ("- {shell: 'true', alow_failure: true}",                         "allow_failure"),
    ("- {shell: 'true', shel: 'true'}",                               "shell"),
    ("- {goal_seek: x}",                                              "goal_seek"),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "message"), OLDER)
def test_d39_what_is_not_known_is_refused_and_not_ignored(
    place: Place, flow: str, message: str
) -> None:
    assert message in place.refusal(flow + "\n")


def test_d39_a_checkpoint_block_is_known_and_reported(place: Place) -> None:
    flow = "checkpoint: {interval: 5}\nsteps: [{shell: 'true'}]\n"
    place.done(flow)
    assert "every finished step is recorded" in str(place.check(flow)[0].problem)


def test_d32_a_failed_item_keeps_what_its_earlier_steps_captured(place: Place) -> None:
    ran = place.run(
        """\
map:
  input: [1]
  steps: [{shell: echo a, capture_output: x}, {shell: echo no >&2; exit 3}]
reduce: [{shell: "echo ${map.results:json}"}]
"""
    )
    [result] = json.loads(ran.outputs["reduce/0"])
    assert (result["captures"], result["exit_code"], result["output"]) == ({"x": "a"}, 3, "")


def test_d32_a_failed_item_keeps_why(place: Place) -> None:
    ran = place.run("map: {input: [{id: x}], steps: [{shell: 'echo o; echo e >&2; exit 4'}]}\n")
    outcome = ran.outcome("map/0")
    assert isinstance(outcome, Failed)
    assert (outcome.failure.exit_code, outcome.failure.kind) == (4, "exit")
    assert "e" in outcome.failure.message


# ── questions, limits and places ─────────────────────────────────────────


def killed_while_it_ran(place: Place, flow: str, *, lines: int = 1) -> str:
    """The id of a run that was killed when the ledger had so many lines."""
    place.write("flow.yaml", flow)
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "run", "flow.yaml"],
        cwd=place.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: len(ledger(place)) >= lines)
    process.kill()
    process.wait(DEADLINE)
    return flow_runs(str(place.root))[0].id


ONCE = """\
map:
  input: [a]
  steps:
    - {shell: "echo s >> ledger; test -e go || sleep 20", once: true ON_SUCCESS}
    - {shell: "echo t >> ledger"}
"""


@pytest.mark.parametrize("more", ["", ", on_success: 'true'"])
@pytest.mark.parametrize(("answer", "lines"), [("repeat", ["s", "s", "t"]), ("done", ["s", "t"])])
def test_an_item_with_a_step_that_may_run_once_asks_until_it_is_answered(
    place: Place, more: str, answer: str, lines: list[str]
) -> None:
    run = killed_while_it_ran(place, ONCE.replace(" ON_SUCCESS", more))
    place.write("go", "")
    for _ in range(2):
        asked = place.resume(run)
        assert "may run at most once" in asked.message
        assert (asked.result.status, asked.failed) == ("failed", [])
    path = asked.message.partition("--repeat ")[2].partition(",")[0]
    assert path.startswith("map/item:")
    answered = place.resume(run, **{answer: [path]})
    assert (answered.result.status, answered.result.counts["successful"]) == ("done", 1)
    assert ledger(place) == lines


SEVERAL_ONCE = """\
map:
  input: [a, b, c]
  id: ${item}
  steps:
    - {id: send, shell: "test ${item} = c || { echo s >> ledger; test -e go || sleep 20; }", once: true}
    - {id: pay, shell: "echo s >> ledger; test -e go || sleep 20", once: true, on_success: 'true'}
"""


def test_all_steps_that_may_run_once_and_were_under_way_are_asked_about_at_once(
    place: Place,
) -> None:
    run = killed_while_it_ran(place, SEVERAL_ONCE, lines=3)
    place.write("go", "")
    asked = place.resume(run).message
    paths = ["map/item:a/send", "map/item:b/send", "map/item:c/pay/run"]
    assert sorted(re.findall(r"--repeat (\S+),", asked)) == paths
    assert asked.count(f"plait resume {run} --done ") == 3
    assert place.resume(run, done=paths[:1]).message.count("may run at most once") == 2
    answered = place.resume(run, repeat=paths[1:])
    assert (answered.result.status, answered.result.counts["successful"]) == ("done", 3)


@pytest.mark.parametrize("answer", ["repeat", "done"])
@pytest.mark.parametrize("path", ["map/bogus", "map/item:bogus/0", "steps/0/run"])
def test_an_answer_for_a_step_that_is_not_there_is_refused(
    place: Place, answer: str, path: str
) -> None:
    run = place.run("map: {input: [a], steps: [{shell: 'true'}, {shell: 'false'}]}\n").result.run
    with pytest.raises(InputError, match=f"there is no step '{path}'"):
        place.resume(run, **{answer: [path]})


LONG = "seq 1 2500000"  # more than the 16 MiB that are kept in memory


def test_a_long_output_is_put_into_its_file_whole(place: Place) -> None:
    ran = place.done(
        f"- {{shell: {LONG}, output_file: all.txt}}\n- shell: tail -n 1 all.txt; wc -l < all.txt\n"
    )
    assert ran.outputs["steps/1"].split() == ["2500000", "2500000"]


def test_a_long_output_is_not_captured_in_part(place: Place) -> None:
    ran = place.run(f"- {{shell: {LONG}, capture_output: x}}\n- shell: echo next >> ledger\n")
    assert (
        ran.message
        == "printed more than 16,777,216 bytes, which cannot be captured; write it to a file"
    )
    assert ledger(place) == []


def test_a_long_output_that_may_hold_a_secret_is_not_put_into_a_file_in_part(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "correct horse")
    ran = place.run(
        f"secrets: {{TOKEN: TOKEN}}\nsteps:\n  - {{shell: {LONG}, output_file: all.txt}}\n"
    )
    assert ran.message == (
        "printed more than 16,777,216 bytes, which cannot be written to output_file, because secrets must be masked; write it to a file"
    )
    assert not (place.root / "all.txt").exists()


@pytest.mark.parametrize("policy", ["skip", "dlq"])
def test_items_for_which_a_flow_has_no_time_are_left_for_later(place: Place, policy: str) -> None:
    # The second item waits until it is ended, so the third is never begun.
    flow = f"""\
timeout: 1s
map:
  input: [1, 2, 3]
  max_parallel: 1
  on_item_failure: {policy}
  steps: [{{shell: "echo ${{item}} >> ledger; test ${{item}} = 1 || test -e go || sleep 20"}}]
"""
    ran = place.run(flow)
    assert (ran.result.status, ran.message) == ("failed", "took longer than 1 s")
    assert ledger(place) == ["1", "2"]
    assert [path for path in ran.finished if path.count("/") == 1] == ["map/items", "map/0"]
    place.write("go", "")
    again = place.resume(ran.result.run)
    assert again.result.counts == {
        "total": 3,
        "successful": 3,
        "failed": 0,
        "skipped": 0,
        "success_rate": 100.0,
    }
    assert ledger(place) == ["1", "2", "2", "3"]


def test_a_phase_without_time_fails_as_a_whole_and_its_next_step_is_not_begun(place: Place) -> None:
    flow = """\
map: {input: [1], steps: [{shell: "true"}]}
reduce:
  timeout: 300ms
  steps:
    - {shell: sleep 20, continue_on_error: true}
    - {shell: echo next >> ledger}
"""
    ran = place.run(flow)
    assert (ran.message, ledger(place)) == ("took longer than 0.3 s", [])
    assert "reduce/1" not in ran.finished


def test_no_value_and_no_link_leads_a_step_out_of_the_project(place: Place) -> None:
    (place.root / "link").symlink_to("/etc")
    (place.root / "sub").mkdir()
    ran = place.run(
        """\
map:
  input: [/etc, .., link, sub/../.., sub, sub/../sub]
  steps: [{shell: "pwd >> $TOP/ledger", working_dir: "${item}", env: {TOP: "${workflow.dir}"}}]
"""
    )
    assert ran.result.counts["failed"] == 4
    assert ledger(place) == [str(place.root / "sub")] * 2


@pytest.mark.parametrize("named", ["/etc", "..", "sub/../.."])
def test_a_place_outside_the_project_that_is_written_out_is_refused_before_anything_runs(
    place: Place, named: str
) -> None:
    assert "outside the project" in place.refusal(f"- {{shell: pwd, working_dir: {named}}}\n")


def test_a_loop_with_a_failed_round_has_failed_and_the_flow_goes_on(place: Place) -> None:
    ran = place.done(
        """\
- foreach: [1, 2]
  do: [{shell: "echo r ${item}; test ${item} = 2"}]
  continue_on_error: true
  capture_output: rounds
- shell: echo ${rounds:json} ${rounds.success} ${rounds.exit_code}
"""
    )
    assert ran.outputs["steps/1"] == '["r 1","r 2"] false 1'
