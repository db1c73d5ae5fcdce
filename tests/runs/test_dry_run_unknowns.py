"""Unknown values in a dry run: they hide known ones, stay placeholders, and decide no condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


BLOCK = "blocks: {b: {with: [who, k], steps: [%s]}}\n"

SHOWN = [
    # flow, and what a dry run shows of each step, in order

    # A capture hides a variable, a parameter, an environment variable and an older capture of its name.
    ("vars: {c: old}\nenv: {D: old}\nparameters: {e: {default: old}}\n"
     "steps:\n"
     "  - {shell: echo 1, capture_output: c}\n"
     "  - {shell: echo 2, capture_output: D}\n"
     "  - {shell: echo 3, capture_output: e}\n"
     "  - shell: echo ${c} ${D} ${e} ${c.exit_code}\n"
     "  - {when: \"${c} == 'old'\", shell: echo stale}\n",
     ["echo 1", "echo 2", "echo 3", "echo ${c} ${D} ${e} ${c.exit_code}", "if ${c} == 'old': echo stale"]),
    ("setup: [{shell: echo s, capture_output: c}]\n"
     "map: {input: [1], steps: [{shell: 'echo ${item}', capture_output: c}, {shell: 'echo ${c} ${last.output}'}]}\n"
     "reduce: [{shell: 'echo ${c} ${map.total} ${map.failed} ${map.outputs:json}'}]\n",
     ["echo s", "echo 1", "echo ${c} ${last.output}", "echo ${c} 1 ${map.failed} ${map.outputs:json}"]),
    # Captures of handlers are unknown as well: the handlers may not run.
    ("vars: {c: old}\nsteps: [{shell: ls, on_failure: {steps: [{shell: pwd, capture_output: c}]}}, {shell: 'echo ${c}'}]\n",
     ["ls", "echo ${c}"]),
    ("vars: {c: old}\nsteps: [{shell: ls, on_exit_code: {3: {shell: pwd, capture_output: c}}}, {shell: 'echo ${c}'}]\n",
     ["ls", "echo ${c}"]),
    # Neither is a step that may be left out.
    ("vars: {c: old}\nsteps: [{shell: ls}, {shell: pwd, when: '${last.success}', capture_output: c}, {shell: 'echo ${c}'}]\n",
     ["ls", "if ${last.success}: pwd", "echo ${c}"]),
    # Defaults, alternatives, formats and filters of what is not known are not known.
    ("steps: [{shell: ls, capture_output: n}, {shell: 'echo ${n:-none} ${n | upper} ${n:json} ${n | default(0)}'}]\n",
     ["ls", "echo ${n:-none} ${n | upper} ${n:json} ${n | default(0)}"]),
    ("steps: [{shell: ls, capture_output: n}, {shell: 'echo $(( ${n} + 1 )) \"${n}\"; cat ${n}'}]\n",
     ["ls", "echo $(( ${n} + 1 )) \"${n}\"; cat ${n}"]),
    # A block ends as little known as its steps do.
    ("blocks: {m: [{shell: echo 17}]}\n"
     "steps:\n"
     "  - use: m\n"
     "  - {when: '${last.output} > 10', shell: 'echo many ${last.output}'}\n"
     "  - {when: '${last.exit_code} == 0', shell: 'rm -rf build/${last.output}'}\n"
     "  - {write_file: {path: f, content: hello}}\n"
     "  - shell: echo ${last.output}\n",
     ["echo 17", "if ${last.output} > 10: echo many ${last.output}",
      "if ${last.exit_code} == 0: rm -rf build/${last.output}", "f (5 bytes)", "echo ${last.output}"]),
    ("blocks: {m: [{shell: echo 17, capture_output: n}]}\nvars: {n: old}\n"
     "map: {input: [1], steps: [{use: m}, {shell: 'echo ${n} ${last.output}'}]}\n"
     "reduce: [{use: m}, {shell: 'echo ${n} ${last.output}'}]\n",
     ["echo 17", "echo ${n} ${last.output}", "echo 17", "echo ${n} ${last.output}"]),
    # It is handed on: by lists, to blocks, in the environment.
    ("steps: [{shell: ls, capture_output: n}, {foreach: ['${n}', b, '${n}x'], do: "
     "[{shell: 'echo ${item}'}, {shell: echo eq, when: \"${item} == 'b'\"}]}, {shell: 'echo ${last.output}'}]\n",
     ["ls", "echo ${item}", "if ${item} == 'b': echo eq", "echo b", "echo eq", "echo ${item}",
      "if ${item} == 'b': echo eq", "echo ${last.output}"]),
    ("steps: [{shell: ls, capture_output: n}, {foreach: '${n}', do: [{shell: 'echo ${item} ${index}'}]},"
     " {foreach: 'a ${n}', do: [{shell: 'echo ${item} ${item_total:-0}'}]}]\n",
     ["ls", "echo ${item} ${index}", "a ${n}", "echo ${item} ${item_total:-0}"]),
    (BLOCK % "{shell: 'echo ${who} ${k}'}, {shell: echo three, when: '${who} == 3'}, {shell: echo four, when: '${k} == 4'}"
     + "steps: [{shell: ls, capture_output: n}, {use: b, with: {who: '${n}', k: 4}}, {use: b, with: {who: 'a ${n}', k: 5}}]\n",
     ["ls", "echo ${who} 4", "if ${who} == 3: echo three", "echo four", "echo ${who} 5", "if ${who} == 3: echo three"]),
    (BLOCK % "{shell: 'echo ${who.a} ${who.b} ${who:json}'}"
     + "steps: [{shell: ls, capture_output: n}, {use: b, with: {who: {a: '${n}', b: 4}, k: 4}}]\n",
     ["ls", "echo ${who.a} 4 ${who:json}"]),
    ("steps: [{shell: ls, capture_output: n}, {shell: 'echo ${EV} $EV ${OK}', env: {EV: '${n}-e', OK: fine}},"
     " {shell: pwd, env: {EV: '${n}'}, when: '${n} == 3'}]\n",
     ["ls", "echo ${EV} $EV fine", "if ${n} == 3: pwd"]),
    # Commands in templates are not run, and files that steps may still write decide nothing.
    ("steps: [{shell: 'echo ${cmd:echo 1}'}, {shell: pwd, when: '${cmd:echo 1} == 1'}]\n",
     ["echo ${cmd:echo 1}", "if ${cmd:echo 1} == 1: pwd"]),
    ("steps: [{shell: ls, capture_output: n}, {shell: 'echo ${file:${n}.txt}'}, {shell: pwd, when: \"${file:here.txt} == 'x'\"},"
     " {shell: 'echo ${file:gone.txt:-none}'}]\n",
     ["ls", "echo ${file:${n}.txt}", "if ${file:here.txt} == 'x': pwd", "echo ${file:gone.txt:-none}"]),
    ("steps: [{shell: pwd, when: \"${file:here.txt} == 'x'\"}, {shell: 'echo ${file:here.txt}'}]\n", ["echo here"]),
    # Changes that git will see.
    ("steps: [{shell: ls}, {shell: 'echo ${step.files_added:-none} ${git.branch:-main} ${workflow.name}'},"
     " {shell: pwd, when: '${workflow.commit_count:-0} == 0'}]\n",
     ["ls", "echo ${step.files_added:-none} ${git.branch:-main} flow", "if ${workflow.commit_count:-0} == 0: pwd"]),
    # What a check will find.
    ("steps: [{shell: ls, validate: {shell: wc, threshold: 50}}, {shell: 'echo ${validation.completion} ${last.exit_code}'},"
     " {shell: pwd, when: '${validation.completion} > 90'}]\n",
     ["ls", "wc", "echo ${validation.completion} ${last.exit_code}", "if ${validation.completion} > 90: pwd"]),
    # Every kind of step says what it would do with it, and would not fail by it.
    ("steps: [{shell: ls, capture_output: n}, {http: 'http://localhost:9/${n}?q=${n}'},"
     " {http: {url: 'http://localhost:9/', headers: {X-A: '${n}'}, body: {a: '${n}'}}},"
     " {http: {url: '${n}/a', allow_hosts: [example.com]}}]\n",
     ["ls", "GET http://localhost:9/${n}?q=${n}", "POST http://localhost:9/", "GET ${n}/a"]),
    ("steps: [{shell: ls, capture_output: n}, {write_file: {path: '${n}/a.json', format: json, content: '{\"a\": ${n}}'}},"
     " {write_file: {path: b, format: yaml, content: {a: '${n}'}}}]\n",
     ["ls", "${n}/a.json (its size is not known yet)", "b (its size is not known yet)"]),
    ("steps: [{shell: ls, capture_output: n}, {tool: core/file/list, params: {path: '${n}', pattern: '*'}},"
     " {shell: pwd, working_dir: '/${n}'}]\n",
     ["ls", 'core/file/list {"path":"${n}","pattern":"*"}', "pwd"]),
    ("setup: [{shell: nproc, capture_output: t, capture_format: number}]\n"
     "map: {input: [1, 2], max_parallel: '${t}', steps: [{shell: 'echo ${item}'}]}\n",
     ["nproc", "echo 1", "echo 2"]),
    ("setup: [{shell: ls, capture_output: l, capture_format: lines}]\n"
     "map: {input: '${l}', steps: [{shell: 'echo ${item} ${item.path}'}]}\n"
     "reduce: [{shell: 'echo ${map.total}'}, {foreach: ['${map.failed}'], do: [{shell: 'echo $(( ${item} + 1 ))'}]}]\n",
     ["ls", "not known yet: ${l}", "echo ${item} ${item.path}", "echo ${map.total}", "echo $(( ${item} + 1 ))"]),
    ("setup: [{shell: ls, capture_output: l}]\n"
     "map: {input: [{a: '${l}'}, {a: b}], filter: \"a == 'b'\", steps: [{shell: 'echo ${item.a}'}]}\n",
     ["ls", "not known yet: they depend on values that only a run knows", "echo ${item.a}"]),
    # What would fail only if an unknown condition held is no failure.
    ("parameters: {x: {default: '-x'}}\nmap: {input: ['-x'], steps: [{shell: ls}, {shell: 'cat ${item}', when: '${last.success}'}]}\n",
     ["ls", "if ${last.success}: cat ${item}"]),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "shown"), SHOWN)
def test_a_dry_run_leaves_a_placeholder_where_only_a_run_can_know(
    place: Place, flow: str, shown: list[str]
) -> None:
    place.write("here.txt", "here")
    place.write("flow.yaml", flow)
    checked = place.plait("check", "flow.yaml")
    assert checked.returncode == 0, checked.stdout
    done = place.plait("run", "flow.yaml", "--dry-run")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.split("   ")[2] for line in lines if "(skipped: " not in line] == shown, (
        done.stdout + done.stderr
    )
    assert done.returncode == 0


def test_a_secret_beside_what_is_not_known_stays_one(place: Place) -> None:
    place.write(
        "flow.yaml",
        "secrets: {KEY: {env: KEY}}\n"
        "steps:\n"
        "  - {shell: ls, capture_output: n}\n"
        "  - {shell: 'echo ${BOTH}', env: {BOTH: '${KEY}-${n}'}}\n"
        "  - {foreach: ['${KEY}-${n}'], do: [{tool: core/file/read, params: {path: '${item} ${KEY}'}}]}\n",
    )
    done = place.plait("run", "flow.yaml", "--dry-run", env={"KEY": "hunter2hunter2"})
    assert (done.returncode, "hunter2" in done.stdout + done.stderr) == (0, False), done.stdout
    assert done.stdout.splitlines()[1:] == [
        "steps/1   shell   echo ${BOTH}",
        'steps/2/each/item:0/0   tool   core/file/read {"path":"${item} ***"}',
    ]


# ── on a run that exists ─────────────────────────────────────────────────

RESUMED = """\
steps:
  - {shell: echo old-build, capture_output: c}
  - shell: test -e ok
  - {shell: echo new-release, capture_output: c}
  - shell: rm -rf "out/${last.output}" && echo ${shell.output} ${c}
  - {when: "${last.output} == 'old-build'", shell: echo deleting}
  - {when: "${last.exit_code} == 0", shell: echo ok}
"""


def test_steps_that_are_done_again_hide_replayed_ones(place: Place) -> None:
    place.run(RESUMED)
    assert place.plait("resume", "--dry-run").stdout.splitlines() == [
        "steps/0   shell   echo old-build   (replayed)",
        "steps/1   shell   test -e ok   (again: it had failed)",
        "steps/2   shell   echo new-release",
        'steps/3   shell   rm -rf "out/${last.output}" && echo ${shell.output} ${c}',
        "steps/4   shell   if ${last.output} == 'old-build': echo deleting",
        "steps/5   shell   if ${last.exit_code} == 0: echo ok",
    ]


BEHIND_A_BLOCK = """\
vars: {v: old}
blocks:
  b: [{shell: echo one, capture_output: c}, {shell: test -e ok}, {shell: echo two, capture_output: v}]
steps:
  - use: b
  - shell: echo ${c} ${v} ${last.output}
"""


def test_replayed_steps_of_a_block_are_known_and_the_others_are_not(place: Place) -> None:
    place.run(BEHIND_A_BLOCK)
    assert place.plait("resume", "--dry-run").stdout.splitlines()[-1] == (
        "steps/1   shell   echo one ${v} ${last.output}"
    )


def test_behind_a_step_that_would_fail_nothing_of_it_is_known(place: Place) -> None:
    place.write(
        "flow.yaml",
        "vars: {c: old}\n"
        "steps:\n"
        "  - {foreach: ['-x'], do: [{shell: 'cat ${item}'}], capture_output: c}\n"
        "  - shell: echo ${c} ${last.output}\n",
    )
    done = place.plait("run", "flow.yaml", "--dry-run")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        1,
        "steps/1   shell   echo ${c} ${last.output}",
    )


# ── what would be refused or fail ────────────────────────────────────────


def test_a_dry_run_refuses_a_tool_that_is_not_there_as_a_run_does(place: Place) -> None:
    place.write("flow.yaml", "steps: [{shell: ls}, {tool: core/files/read, params: {path: x}}]\n")
    ran, dry = place.plait("run", "flow.yaml"), place.plait("run", "flow.yaml", "--dry-run")
    assert (dry.returncode, dry.stdout, dry.stderr) == (2, "", ran.stderr)


PARAMETERS = [
    # parameters of core/file/read, exit code, the message
    ("{pathh: x}",                      2, "'pathh' is not a parameter"),
    ("{path: 3}",                       2, "path: must be a string, got 3"),
    ("{path: flow.yaml}",               0, ""),
    ("{path: '${n}'}",                  0, ""),
    ("'${n}'",                          0, ""),
    ("{path: '${n}', pathh: x}",        2, "'pathh' is not a parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "code", "message"), PARAMETERS)
def test_a_dry_run_judges_the_parameters_that_are_known(
    place: Place, params: str, code: int, message: str
) -> None:
    place.write(
        "flow.yaml",
        f"steps: [{{shell: ls, capture_output: n}}, {{tool: core/file/read, params: {params}}}]\n",
    )
    done = place.plait("run", "flow.yaml", "--dry-run")
    printed = done.stdout + done.stderr
    assert (done.returncode, message in printed) == (code, True), printed
    assert bool(done.stdout) == (code == 0)  # problems are reported before anything is planned


INPUTS = [
    # what stands before the map, its input, exit code, what is shown of the items
    ("",                                      "nope.json",  1, "would fail: "),
    ("",                                      "half.json",  1, "would fail: "),
    ("setup: [{shell: touch nope.json}]\n",   "nope.json",  0, "not known yet: there is no file 'nope.json'"),
    ("setup: [{shell: touch x}]\n",           "half.json",  0, "not known yet: "),
    ("setup: [{shell: ls, when: 'false'}]\n", "nope.json",  1, "would fail: "),
]  # fmt: skip


@pytest.mark.parametrize(("before", "source", "code", "shown"), INPUTS)
def test_items_are_not_known_yet_only_if_something_may_still_make_them(
    place: Place, before: str, source: str, code: int, shown: str
) -> None:
    place.write("half.json", "[1, 2")
    place.write(
        "flow.yaml", f"{before}map: {{input: {source}, steps: [{{shell: 'echo ${{item}}'}}]}}\n"
    )
    done = place.plait("run", "flow.yaml", "--dry-run")
    assert (done.returncode, shown in done.stdout) == (code, True), done.stdout + done.stderr
