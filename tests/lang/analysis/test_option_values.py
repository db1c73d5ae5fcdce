"""What begins with `-` and comes from outside is an option of no program, by whatever road it comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.file_check import findings_around
from plait.lang.check import check_file
from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


ROADS = [
    # of a flow with the parameter `given`              passes with `--help`
    ("shell: 'echo ${given}'",                           True),
    ("shell: 'grep -e ${given} /dev/null || true'",      True),
    ("shell: 'grep ${given} /dev/null'",                 False),
    ("shell: 'grep ${made} /dev/null'",                  False),
    ("shell: 'grep ${made:opt} /dev/null'",              True),
    ("shell: 'grep ${E} /dev/null'",                     False),
    ("shell: 'grep \"$E\" /dev/null'",                   False),
    ("shell: 'grep ${E%x} /dev/null'",                   False),
    ("shell: 'grep -- $E /dev/null || true'",            True),
    ("{shell: 'grep $P /dev/null', env: {P: '${given}'}}", False),
    ("{shell: 'grep \"$P\" /dev/null', env: {P: 'a${given}'}}", True),
    ("{shell: 'grep $P /dev/null', env: {P: '--help'}}", True),
    ("shell: 'grep ${own} /dev/null'",                   True),
    ("{tool: core/shell, params: {command: 'grep ${own} /dev/null'}}", True),
    ("{tool: core/shell, params: {command: 'grep ${given} /dev/null'}}", False),
    ("{tool: core/shell, params: {command: 'grep ${made} /dev/null'}}", False),
    ("{tool: core/shell, params: {command: 'grep ${E} /dev/null'}}", False),
    ("{tool: core/shell, params: {command: 'grep ${given:opt} /dev/null'}}", True),
    ("{foreach: 'echo --help', do: [{shell: 'grep ${item} /dev/null'}]}", False),
    ("{foreach: 'echo --help', do: [{shell: 'grep $P /dev/null', env: {P: '${item}'}}]}", False),
    ("{foreach: 'echo --help', do: [{shell: 'grep -e $P /dev/null || true', env: {P: '${item}'}}]}", True),
]  # fmt: skip
HEAD = """\
parameters: {given: {type: string}}
vars: {made: "${given}", own: "--help"}
env: {E: "${given}"}
steps:
  - """


@pytest.mark.parametrize(("step", "passes"), ROADS)
def test_a_value_from_outside_is_no_option(place: Place, step: str, passes: bool) -> None:
    ran = place.run(f"{HEAD}{step}\n", inputs={"given": "--help"})
    found = "could be taken for an option here" in ran.message
    assert found is not passes, ran.message


FOUND = [
    # flow                                                                         what `plait check` says
    ("steps: [{foreach: ['-x', a], do: [{shell: 'cat ${item}'}]}]",                ["'item' can be '-x'"]),
    ("steps: [{foreach: ['-x', a], do: [{shell: 'cat -- ${item}'}]}]",             []),
    ("steps: [{foreach: ['-x', a], do: [{shell: 'cat ${item:path}'}]}]",           []),
    ("steps: [{foreach: ['-x'], do: [{shell: 'cat $P', env: {P: '${item}'}}]}]",   ["'P' can be '-x'"]),
    ("steps: [{foreach: ['-5', '- a'], do: [{shell: 'echo ${item}'}]}]",           []),
    ("map: {input: ['-x', a], steps: [{shell: 'cat ${item}'}]}",                   ["'item' can be '-x'"]),
    ("map: {input: ['-x', a], steps: [{shell: 'f=${item}; cat $f'}]}",             ["'item' can be '-x'"]),
    ("parameters: {p: {default: '-x'}}\nsteps: [{shell: 'cat ${p}'}]",             ["'p' can be '-x'"]),
    ("parameters: {p: {choices: ['-x', '-y']}}\nsteps: [{shell: 'cat ${p}'}]",
     ["'p' can be '-x'", "'p' can be '-y'"]),
    ("parameters: {p: {default: '-x'}}\nvars: {v: '${p}'}\nsteps: [{shell: 'cat ${v}'}]", ["'v' can be '-x'"]),
    ("parameters: {p: {default: '-x'}}\nsteps: [{shell: 'git commit -m ${p}'}]",   []),
    ("vars: {flags: '-la'}\nsteps: [{shell: 'ls ${flags}'}]",                      []),
    ("steps: [{foreach: [a, b], do: [{shell: 'cat ${item}'}]}]",                   []),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "messages"), FOUND)
def test_check_reports_what_the_file_alone_shows(
    tmp_path: Path, flow: str, messages: list[str]
) -> None:
    (tmp_path / "flow.yaml").write_text(flow)
    found = check_file(str(tmp_path / "flow.yaml"))
    assert [one.problem.what.rpartition(": ")[2] for one in found] == messages
    assert all((one.code, one.severity) == ("option-like", "warning") for one in found)


@pytest.mark.parametrize(
    ("command", "count"), [("cat ${p}", 1), ("cat -- ${p}", 0), ("echo ${p}", 0)]
)
def test_check_says_it_of_shell_text_that_a_tool_is_given_and_a_run_begins(
    place: Place, command: str, count: int
) -> None:
    flow = f"parameters: {{p: {{default: '-x'}}}}\nsteps: [{{tool: core/shell, params: {{command: '{command}'}}}}]"
    place.write("flow.yaml", flow)
    path = str(place.file)
    found = [one for one in check_file(path, around=findings_around) if one.code == "option-like"]
    assert [one.severity for one in found] == ["warning"] * count
    assert "'p' can be" not in place.run(inputs={"p": "/dev/null"}).message
