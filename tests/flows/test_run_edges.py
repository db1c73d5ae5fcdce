"""Where a run meets its file: input that cannot be read, conditions that a dry run cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.running import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


# ── input that cannot be read ────────────────────────────────────────────

INPUTS = [
    # input of the map                   exit code
    ("nowhere.json",                     2),
    ("half.json",                        2),
    ("/etc/hosts",                       2),
    ("'{file: rows.csv}'",               2),
    ("{command: 'exit 3'}",              1),   # a command failed; no file is wrong
    ("[1]",                              0),
]  # fmt: skip


@pytest.mark.parametrize(("said", "code"), INPUTS)
def test_an_input_that_is_missing_or_cannot_be_read_ends_like_any_other_bad_file(
    place: Place, said: str, code: int
) -> None:
    place.write("half.json", "[1, 2")
    ran = place.run(f"map: {{input: {said}, steps: [{{shell: 'true'}}]}}\n")
    assert ran.result.exit_code == code


# ── a condition that is data, in a dry run ───────────────────────────────


def test_a_dry_run_shows_a_step_whose_condition_only_the_run_can_answer(place: Place) -> None:
    place.write(
        "flow.yaml",
        """\
steps:
  - {shell: date, capture_output: n}
  - {shell: echo maybe, when: {path: n, op: eq, value: "3"}}
  - {shell: echo nested, when: {all: [{not: {path: n.x, op: exists}}, {path: workflow.name, value: flow}]}}
  - {shell: echo never, when: {path: workflow.name, value: other}}
  - {shell: echo always, when: {path: workflow.name, value: flow}}
""",
    )
    done = place.plait("run", "flow.yaml", "--dry-run")
    assert done.stdout.splitlines() == [
        "steps/0   shell   date",
        'steps/1   shell   if {"path":"n","op":"eq","value":"3"}: echo maybe',
        'steps/2   shell   if {"all":[{"not":{"path":"n.x","op":"exists"}},'
        '{"path":"workflow.name","value":"flow"}]}: echo nested',
        "steps/4   shell   echo always",
    ], done.stderr
