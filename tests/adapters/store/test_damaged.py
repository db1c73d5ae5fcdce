"""Every byte that is stored is input: a damaged run is unreadable, and harms no other run and no command."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapters.store.spoil import DEEP, spoil
from plait.app.takeover import look_at, take_over
from plait.cli import main
from share import examples

FLOW = """\
name: many
setup: [{shell: echo begin}]
map:
  input: {items: [a, b, c, d, e, f]}
  id: ${item}
  steps: [{id: test, shell: 'test ${item} != c'}, {id: say, shell: 'echo ${item}'}]
reduce: [{id: end, shell: 'echo ${map.successful}; test -e ready'}]
"""
GRAPH = """\
name: way
start: first
nodes:
  first: {assign: {x: 1}, next: [{to: second, when: "${state.x} == 1"}, {to: last}]}
  second: {assign: {y: 2}, next: last}
  last: {type: return, output: {x: "${state.x}"}}
"""
COMMANDS = (
    ["runs"],
    ["runs", "--json"],
    ["show", "RUN"],
    ["show", "RUN", "--json"],
    ["logs", "RUN"],
    ["logs", "RUN", "c", "--json"],
    ["events", "RUN"],
    ["events", "RUN", "-f", "--after", "3"],
    ["graph", "--run", "RUN"],
    ["export", "otel", "RUN"],
    ["graph", "--run", "RUN", "--mermaid"],
    ["show", "RUN", "--markdown"],
    ["show", "RUN", "--format", "github"],
    ["worktrees"],
    ["resume", "RUN", "--dry-run"],
    ["retry", "RUN", "--failed"],
    ["resume", "RUN", "--accept-changes"],
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a run that failed, one item of it too."""
    project, home = (tmp_path_factory.mktemp(name) for name in ("stored", "home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USER_SPACE", str(home))
        patch.chdir(project)
        (project / "flow.yaml").write_text(FLOW)
        (project / "graph.yaml").write_text(GRAPH)
        assert main(["run", "flow.yaml"]) == 1
        assert main(["run", "graph.yaml"]) == 0
        yield project


def copy(stored: Path, project: Path) -> None:
    """The project once more, with its runs as our own."""
    shutil.copytree(stored, project)
    for run in os.listdir(project / ".ai/state/runs"):
        take_over(look_at(run, str(project)))


@pytest.mark.share
@pytest.mark.parametrize("seed", range(examples(200)))
def test_no_damage_to_a_run_is_taken_for_a_bug(
    seed: int,
    stored: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "project"
    copy(stored, project)
    monkeypatch.chdir(project)
    chance = random.Random(seed)
    run, other = chance.sample(sorted(os.listdir(project / ".ai/state/runs")), 2)
    done = [
        spoil(project / ".ai/state/runs" / run, chance) for _ in range(chance.choice((1, 1, 2)))
    ]
    for command in COMMANDS:
        capsys.readouterr()
        code = main([run if word == "RUN" else word for word in command])
        printed = capsys.readouterr()
        assert code in (0, 1, 2, 3), (command, done, printed.err)  # 3: facts that we did not write
        assert command[0] != "runs" or (code == 0 and other in printed.out), (done, printed)
    assert main(["show", other]) == 0


def ask(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as journal:
        for statement in statements:
            journal.execute(statement)


def say(folder: Path, facts: str) -> None:
    ask(folder, f"UPDATE properties SET value = '{facts}' WHERE name = 'facts'")


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


IS_DAMAGED = "the journal cannot be used: it is damaged"
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("facts that are no JSON", lambda run: say(run, "{"), IS_DAMAGED),
    ("facts that are too deep", lambda run: say(run, DEEP), IS_DAMAGED),
    ("facts of a wrong type", lambda run: say(run, '{"file": 3}'), IS_DAMAGED),
    ("facts that are a list", lambda run: say(run, "[]"), IS_DAMAGED),
    ("no facts", lambda run: ask(run, "DELETE FROM properties WHERE name = 'facts'"), IS_DAMAGED),
    ("a time that is none", lambda run: ask(run, "UPDATE properties SET value = 1e300 WHERE name = 'created'"), IS_DAMAGED),
    ("no table", lambda run: ask(run, "DROP TABLE properties"), IS_DAMAGED),
    ("an empty file", lambda run: cut(run / "journal.db", 0), "the journal has lost "),
    ("a file cut short", lambda run: cut(run / "journal.db", 3000), IS_DAMAGED),
    ("a folder", lambda run: make_folder(run / "journal.db"), "the journal cannot be used: it cannot be opened"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoiling", "problem"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES]
)
def test_a_damaged_run_is_unreadable_and_says_why(
    spoiling: Callable[[Path], object],
    problem: str,
    stored: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "project"
    copy(stored, project)
    monkeypatch.chdir(project)
    runs = project / ".ai/state/runs"
    run, other = sorted(os.listdir(runs), key=lambda one: not (runs / one / "items.jsonl").exists())
    spoiling(runs / run)
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    found = {one["id"]: one for one in json.loads(capsys.readouterr().out)}
    assert found[run]["status"] == "unreadable"
    assert found[run]["problem"].startswith(problem)
    assert found[other]["status"] == "done"
    assert main(["runs"]) == 0
    assert problem in capsys.readouterr().out
    for command in (["show", run], ["resume", run], ["retry", run, "--failed"], ["logs", run]):
        assert main(command) == 1, command
        assert problem in capsys.readouterr().err


def test_a_run_that_does_not_say_its_file_is_refused_and_shown(
    stored: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "project"
    copy(stored, project)
    monkeypatch.chdir(project)
    (folder,) = (one.parent for one in (project / ".ai/state/runs").glob("*/items.jsonl"))
    say(folder, '{"file": "flow.yaml"}')
    capsys.readouterr()
    assert main(["resume", folder.name]) == 3  # their author is unknown
    assert main(["trust", "run", folder.name]) == 0
    capsys.readouterr()
    assert main(["resume", folder.name]) == 1
    assert capsys.readouterr().err == (
        f"{folder}: run {folder.name} does not say which file and project it is of, so its journal is damaged\n"
        "fix: restore its folder from a backup, or remove it and run the flow again\n"
    )
    assert main(["show", folder.name]) == 0
