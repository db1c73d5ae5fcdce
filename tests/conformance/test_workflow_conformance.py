"""Document 002 in real runs: every example, table and rule of it that a flow file can show.

A row of `workflow-002*.yaml` is a whole flow, run in a project of its own: what its
steps print, which of them are skipped or fail, what `plait check` says of it.  A step
is named by its path, an item in it by its number; `<project>` and `<head>` stand for
the project's folder and its first commit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from plait.app.runs import Options, plan_run
from plait.template.grammar import parse_cache_counts
from runs.stories import Place, Ran, new_place

HERE: Final = Path(__file__).parent
DOCUMENTS: Final = {"002"}


@dataclass(frozen=True, kw_only=True)
class Row:
    seed: str
    about: str
    flow: str
    files: dict[str, Any] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None
    strict: bool | None = None
    git: bool = False
    prints: dict[str, Any] | None = None
    skips: list[str] = field(default_factory=list)
    fails: list[str] | None = None
    message: list[str] = field(default_factory=list)
    """Parts of why the run failed."""
    refused: list[str] | None = None
    """Parts of why it was not even begun."""
    writes: dict[str, Any] = field(default_factory=dict)
    warns: list[str] = field(default_factory=list)
    """Parts of what `plait check` warns of; nothing if there are none."""

    @property
    def id(self) -> str:
        return f"{self.seed}-{re.sub(r'[^a-z0-9]+', '-', self.about.lower()).strip('-')}"


ROWS: Final = [
    Row(**raw)
    for path in sorted(HERE.glob("workflow-*.yaml"))
    for raw in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS])
def test_a_run_gives_what_the_row_says(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _prepared(row, tmp_path, monkeypatch)
    warnings = [str(found.problem.what) for found in place.check() if found.severity == "warning"]
    _assert_holds(warnings, row.warns)
    if row.refused is not None:
        message = place.refusal(**_options(row))
        assert [part for part in row.refused if part not in message] == [], message
        return
    ran = place.run(**_options(row))
    assert [part for part in row.message if part not in ran.message] == [], ran.message
    assert ran.failed == (row.fails or []), ran.message
    assert ran.result.status == ("failed" if row.message else "done"), ran.message
    assert ran.skipped == row.skips
    if row.prints is not None:
        assert _chosen(ran, row.prints) == _placed(row.prints, place)
    assert {name: _read(place.root / name) for name in row.writes} == _placed(row.writes, place)


def _prepared(row: Row, top: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(top, monkeypatch, **row.env)
    for name, content in {**row.files, "flow.yaml": row.flow}.items():
        place.write(name, content)
    for name, script in row.programs.items():
        place.program(name, script)
    return place.repository() if row.git else place


def _options(row: Row) -> dict[str, Any]:
    return {"inputs": row.inputs, "strict": row.strict, "profile": row.profile}


def _assert_holds(lines: list[str], parts: list[str]) -> None:
    """One sentence for each of the parts, and no more."""
    assert len(lines) == len(parts), lines
    assert [part for part in parts if not any(part in one for one in lines)] == [], lines


def _chosen(ran: Ran, wanted: dict[str, Any]) -> dict[str, Any]:
    outputs = ran.outputs
    return {path: outputs.get(path, "(it did not run)") for path in wanted}


def _placed(expected: Any, place: Place) -> Any:
    """With the folder and the commit that only this project has."""
    match expected:
        case str():
            text = expected.replace("<project>", str(place.root))
            return (
                text.replace("<head>", place.git("rev-parse", "HEAD")) if "<head>" in text else text
            )
        case list():
            return [_placed(one, place) for one in expected]
        case dict():
            return {name: _placed(one, place) for name, one in expected.items()}
    return expected


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_text().rstrip("\n")


# ── What one row cannot say ──────────────────────────────────────────────────────────


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def test_a_template_is_parsed_once_for_a_thousand_items(place: Place) -> None:
    flow = """\
map:
  input: items.json
  json_path: "$.items[*]"
  steps:
    - when: "${item.never}"
      shell: "process ${item.path} --priority ${item.metadata.priority:-5}"
    - foreach: ["${item.path} --priority ${item.metadata.priority:-5}"]
      do: [{shell: "echo ${item}", when: "${nothing:-}"}]
reduce:
  - write_file: {path: "parsed.txt", content: "${map.total}"}
"""

    def parsed(items: int) -> int:
        place.write("items.json", {"items": [{"path": str(n)} for n in range(items)]})
        before = parse_cache_counts()["misses"]
        place.done(flow)
        assert place.text("parsed.txt") == str(items)
        return parse_cache_counts()["misses"] - before

    assert parsed(1) > 0
    assert parsed(1_000) == 0  # the file is the same, and so is every template in it


def test_the_parse_cache_example_gives_each_of_its_items_its_own_values(place: Place) -> None:
    items = [{"path": f"p{n}", "metadata": {"priority": n} if n % 2 else {}} for n in range(40)]
    place.write("items.json", {"items": items})
    place.program("process", '#!/bin/sh\nprintf "%s|" "$@"\n')
    flow = """\
map:
  input: "items.json"
  json_path: "$.items[*]"
  agent_template:
    - shell: "process ${item.path} --priority ${item.metadata.priority:-5}"
"""
    outputs = place.done(flow).outputs
    wanted = {f"map/{n}/0": f"p{n}|--priority|{n if n % 2 else 5}|" for n in range(40)}
    assert outputs == wanted


def _writing(number: int, names: list[str]) -> str:
    content = " ".join(f"${{file:{name}}}" for name in names)
    return f'  - write_file: {{path: out{number}.txt, content: "{content}"}}\n'


def test_a_hundred_computed_values_are_kept_and_the_least_recently_used_goes_first(
    place: Place,
) -> None:
    files = [f"f{number}" for number in range(101)]
    for name in files:
        place.write(name, "old")
    change = "  - shell: for f in f*; do echo new > $f; done\n"
    flow = (
        "steps:\n"
        + _writing(0, files[:100])  # fills the cache
        + _writing(1, ["f0"])  # f0 is used again: f1 is now the oldest
        + change
        + _writing(2, ["f100"])  # one more than fits: f1 goes
        + _writing(3, ["f0", "f2", "f99"])
        + _writing(4, ["f1"])
    )
    place.done(flow)
    texts = [place.text(f"out{number}.txt").split() for number in range(5)]
    assert texts == [["old"] * 100, ["old"], ["new"], ["old"] * 3, ["new"]]


def test_computed_values_are_kept_for_one_run_only(place: Place) -> None:
    place.write("note", "first")
    flow = "- shell: echo ${file:note}\n"
    assert place.outputs(flow) == ["first"]
    place.write("note", "second")
    assert place.outputs(flow) == ["second"]


def test_a_computed_command_runs_once_in_a_run(place: Place) -> None:
    flow = """\
steps:
  - shell: echo ${cmd:echo x >> ledger; wc -l < ledger}
  - shell: echo ${cmd:echo x >> ledger; wc -l < ledger}
  - shell: wc -l < ledger
"""
    assert place.outputs(flow) == ["1", "1", "1"]


def test_a_uuid_is_new_for_every_use_and_a_date_is_one(place: Place) -> None:
    flow = """\
- shell: echo ${uuid} ${uuid}
- shell: echo ${uuid}
- shell: echo ${date:%Y-%m-%d}
"""
    *uuids, date = place.outputs(flow)
    words = " ".join(uuids).split()
    assert len(set(words)) == len(words) == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


# ── On the command line ──────────────────────────────────────────────────────────────


def test_the_central_example_runs_by_the_command_line(place: Place) -> None:
    row = next(row for row in ROWS if row.about == "the example of parent context resolution")
    for name, content in {**row.files, "flow.yaml": row.flow}.items():
        place.write(name, content)
    place.repository()
    done = place.plait("run", "flow.yaml", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["status"], last["counts"]["successful"]) == ("done", 2)
    assert last["value"]["output"] == f"Base: {place.git('rev-parse', 'HEAD')}\n"
    shown = place.plait("logs").stdout
    assert "Status: processing a\n" in shown
    assert "Status: processing it's; touch canary\n" in shown
    assert not (place.root / "canary").exists()


def test_strict_is_a_switch_of_the_command_line(place: Place) -> None:
    place.write("flow.yaml", "map:\n  input: [{}]\n  steps: [{shell: \"echo '${item.x}'\"}]\n")
    assert place.plait("run", "flow.yaml", "--quiet").returncode == 0
    strict = place.plait("run", "flow.yaml", "--strict")
    assert strict.returncode == 1
    assert "unknown variable 'item.x'" in strict.stdout
    assert "known here: workflow.name, workflow.id, " in strict.stdout


UNKNOWN_NAME: Final = """\
flow.yaml:1:27: unknown variable 'required_var'
1 | - shell: "echo 'Required: ${required_var}'"
  |                           ^^^^^^^^^^^^^^^
fix: known in flow: step, workflow, git, env, uuid; declare an input under parameters
"""


def test_an_unknown_name_ends_the_command_with_2_and_its_place(place: Place) -> None:
    place.write("flow.yaml", "- shell: \"echo 'Required: ${required_var}'\"\n")
    done = place.plait("run", "flow.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == UNKNOWN_NAME.replace("flow.yaml", str(place.file))


# ── Without doing anything ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id) for row in ROWS if not (row.refused or row.message)]
)
def test_a_dry_run_shows_the_commands_and_changes_nothing(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _prepared(row, tmp_path, monkeypatch)
    before = sorted(
        (path, path.stat().st_mtime_ns) for path in place.root.rglob("*") if path.is_file()
    )
    options = Options(inputs=row.inputs, strict=row.strict, profile=row.profile)
    shown = plan_run(str(place.file), options)
    assert shown
    assert [one.path for one in shown if not one.path] == []
    after = sorted(
        (path, path.stat().st_mtime_ns) for path in place.root.rglob("*") if path.is_file()
    )
    assert after == before


# ── The rows themselves ──────────────────────────────────────────────────────────────


def test_every_row_has_its_own_name_and_document() -> None:
    names = [row.id for row in ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert {row.seed for row in ROWS} <= DOCUMENTS


def test_every_row_says_what_must_come_out() -> None:
    silent = [
        row.id
        for row in ROWS
        if row.prints is None
        and not (row.message or row.writes or row.skips)
        and row.refused is None
    ]
    assert silent == []
