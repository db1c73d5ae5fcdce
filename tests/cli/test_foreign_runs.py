"""A repository brings recorded runs along: no command runs what they say, or removes anything for them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import plait
from plait.adapters.store import Runs
from plait.adapters.store.result_cache import ResultCache
from plait.app import runs as flows
from plait.app.toolbox import seals_for
from plait.cli import COMMANDS, main
from plait.core.errors import JournalError, TrustError
from runs.stories import GIT

Capsys = pytest.CaptureFixture[str]
World = Callable[[str], None]

EVIL = "steps:\n  - shell: touch {canary}; exit 1\n"
LETTERS = """\
map:
  input: [a]
  steps: [{{shell: 'touch {canary}; exit 1'}}]
"""


def become(monkeypatch: pytest.MonkeyPatch, user: Path) -> None:
    user.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("USER_SPACE", str(user))


def git(folder: Path, *arguments: str) -> None:
    env = {**os.environ, **GIT}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=env)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def clone(tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> Path:
    """What a stranger has committed, with all their state, as `git clone` makes it; we are in it."""
    theirs, outside = tmp_path / "theirs", tmp_path / "outside.yaml"
    theirs.mkdir()
    become(monkeypatch, tmp_path / "stranger")
    monkeypatch.chdir(theirs)
    for name, flow in (("flow.yaml", EVIL), ("letters.yaml", LETTERS), (str(outside), EVIL)):
        (theirs / name).write_text(flow.format(canary=canary))
        assert main(["run", name, "--project", "."]) == 1
    assert canary.exists()
    for run in (theirs / ".ai/state/runs").iterdir():
        (run / "worktrees").symlink_to(tmp_path / "precious")
    git(theirs, "init", "-q", "-b", "main")
    git(theirs, "add", "--force", "--all")
    git(theirs, "commit", "-q", "-m", "everything")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(theirs), str(clone))
    canary.unlink()
    (tmp_path / "precious/.left.gone").mkdir(parents=True)
    (tmp_path / "precious/empty").mkdir()
    become(monkeypatch, tmp_path / "me")
    monkeypatch.chdir(clone)
    (clone / "mine.yaml").write_text("steps: [{shell: echo mine}]\n")
    capsys.readouterr()
    return clone


def run_at(clone: Path, file: str) -> str:
    return next(one.id for one in flows.flow_runs(str(clone)) if one.file.endswith(file))


EVERY_COMMAND: dict[str, list[tuple[str, int]]] = {
    # command     arguments, and the exit code; RUN, LETTERS, OUTSIDE are ids of their runs
    "run":       [("mine.yaml", 0), ("mine.yaml --dry-run", 0)],
    "chat":      [("nothing.md", 2)],
    "runs":      [("", 0), ("--json", 0)],
    "show":      [("", 0), ("RUN", 0), ("OUTSIDE --json", 0)],
    "logs":      [("", 0), ("LETTERS", 0)],
    "events":    [("", 0), ("LETTERS --after 2", 0), ("RUN -f", 0)],
    "resume":    [("", 3), ("last", 3), ("RUN", 3), ("LETTERS", 3), ("OUTSIDE", 3), ("RUN --accept-changes", 3),
                  ("RUN --dry-run", 3), ("RUN --backend local", 3), ("RUN --repeat steps/0", 3), ("RUN --json", 3),
                  ("RUN --project .", 3)],
    "retry":     [("--failed", 3), ("LETTERS --failed", 3), ("RUN --failed", 3), ("LETTERS --from-start --failed", 3),
                  ("LETTERS --failed --file mine.yaml", 3)],
    "stop":      [("", 2), ("RUN", 2), ("LETTERS --project .", 2)],
    "web":       [("--nothing", 2)],
    "export":    [("nothing", 2)],
    "worktrees": [("", 0), ("--clean", 0), ("--clean --json", 0)],
    "render":    [("x", 0)],
    "sh":        [("true", 0)],
    "explain":   [("x", 0)],
    "graph":     [("--run RUN", 3), ("--run OUTSIDE", 3), ("mine.yaml --run RUN", 0)],
    "check":     [("mine.yaml", 0)],
    "init":      [("new", 0)],
    "new":       [("", 0), ("workflow", 0)],
    "call":      [("nothing", 2)],
    "tools":     [("", 0)],
    "sign":      [("", 2)],
    "verify":    [("", 0)],
    "keys":      [("", 0)],
    "trust":     [("", 0), ("run OUTSIDE", 3)],
    "mcp":       [("list", 0), ("list --json", 0), ("config", 0)],
    "lsp":       [("--nothing", 2)],
    "schema":    [("workflow", 0)],
    "doctor":    [("", 0), ("--json", 0)],
    "completion": [("bash", 0)],
}  # fmt: skip


def test_no_command_runs_or_removes_anything_because_of_recorded_state_of_others(
    clone: Path, canary: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert EVERY_COMMAND.keys() == COMMANDS.keys()
    ids = {
        "RUN": run_at(clone, "theirs/flow.yaml"),
        "LETTERS": run_at(clone, "letters.yaml"),
        "OUTSIDE": run_at(clone, "outside.yaml"),
    }
    before = tree(clone / ".ai/state/runs")
    for command, rows in EVERY_COMMAND.items():
        for arguments, code in rows:
            if command == "run" and "--dry-run" not in arguments:
                continue  # below: it makes a run of our own, and from then on `last` is that
            words = [ids.get(word, word) for word in arguments.split()]
            assert (command, arguments, main([command, *words])) == (command, arguments, code)
            assert not canary.exists(), f"{command} {arguments}"
            capsys.readouterr()
    assert tree(clone / ".ai/state/runs") == before, "something wrote into what came from elsewhere"
    assert sorted(one.name for one in (tmp_path / "precious").iterdir()) == [".left.gone", "empty"]
    assert main(["run", "mine.yaml"]) == 0
    assert main(["resume"]) == 0  # the newest of ours, whatever the clone says of its own
    assert not canary.exists()


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    # SQLite has a file of its own beside a journal that is read.
    return {
        str(path): path.read_bytes() for path in files if path.suffix not in (".db-shm", ".db-wal")
    }


def test_python_neither_resumes_nor_reads_the_inputs_of_what_others_began(
    clone: Path, canary: Path
) -> None:
    run = run_at(clone, "theirs/flow.yaml")
    with pytest.raises(TrustError):
        plait.run(resume=run, project=clone)
    with pytest.raises(TrustError):
        flows.program_inputs(run, str(clone))
    with pytest.raises(TrustError):
        flows.resume_blocker(run, project=str(clone))
    assert not canary.exists()


def test_a_refusal_says_what_to_type_and_that_is_all_it_takes(
    clone: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    run = run_at(clone, "theirs/flow.yaml")
    assert main(["resume", run]) == 3
    assert capsys.readouterr().err == (
        f"run {run} did not begin here: it came with a clone, an archive or a copy\n"
        f"fix: look at it: plait show {run}; then take it over: plait trust run {run}; "
        "or begin a new run: plait run FILE\n"
    )
    monkeypatch.chdir(clone.parent)
    assert main(["resume", run, "--project", "clone"]) == 3
    assert f"plait trust run {run} --project {clone};" in capsys.readouterr().err
    assert main(["trust", "run", run, "--project", "clone"]) == 0
    assert capsys.readouterr().out == (
        f"run {run}   flow\n  flow      {clone}/flow.yaml\n  began in  {clone.parent}/theirs\n"
        f"your own from now on, in this folder:  plait resume {run} --project {clone}\n"
    )
    assert main(["trust", "run", run, "--project", "clone"]) == 2
    assert (
        capsys.readouterr().err
        == f"run {run} is your own already\nfix: plait resume {run} continues it\n"
    )
    assert main(["resume", run, "--project", "clone"]) == 1
    assert canary.exists()


@pytest.mark.usefixtures("clone")
def test_runs_of_others_are_marked(capsys: Capsys) -> None:
    assert main(["runs", "--json"]) == 0
    assert [one["foreign"] for one in json.loads(capsys.readouterr().out)] == [True] * 3
    assert main(["runs"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()[1:]
    assert all("failed, foreign" in row or "done, foreign" in row for row in rows)
    assert last == "foreign: these runs did not begin here; plait trust run RUN takes one over"
    assert main(["show"]) == 0
    printed = capsys.readouterr().out
    assert "plait resume" not in printed
    assert "plait retry" not in printed
    assert "foreign      plait trust run " in printed
    assert "--project" not in printed, "the folder where it began is that of others"


def test_commands_about_a_run_name_the_folder_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    become(monkeypatch, tmp_path / "me")
    monkeypatch.chdir(tmp_path)
    for name in ("old", "copy"):
        (tmp_path / name).mkdir()
    (tmp_path / "old/flow.yaml").write_text("steps: [{shell: 'false'}]\n")
    assert main(["run", "old/flow.yaml"]) == 1
    shutil.copytree("old", "copy", dirs_exist_ok=True)
    (tmp_path / "old").rename("new")
    for folder, command in (("new", "plait resume"), ("copy", "plait trust run")):
        capsys.readouterr()
        assert main(["show", "--project", folder]) == 0
        commands = [line for line in capsys.readouterr().out.splitlines() if "plait " in line]
        assert [line.split(" --project ")[1].split()[0] for line in commands] == [folder] * 2
        assert command in commands[1]


def test_a_result_that_others_kept_is_a_call_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, tmp_path / "stranger")
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    ResultCache(str(theirs), seals=seals_for(str(theirs))).put("k", "evil")
    shutil.copytree(theirs, mine)
    become(monkeypatch, tmp_path / "me")
    kept = ResultCache(str(mine), seals=seals_for(str(mine)))
    assert kept.get("k") is None
    kept.put("k", {"good": [1.5, "\udcff"]})
    assert kept.get("k") == {"good": [1.5, "\udcff"]}
    (mine / ".ai/state/results/other.json").write_bytes(
        (mine / ".ai/state/results/k.json").read_bytes()
    )
    assert kept.get("other") is None
    (mine / ".ai/state/results/k.json").write_text('{"value": "evil", "seal": 3}')
    assert kept.get("k") is None


# ── links ────────────────────────────────────────────────────────────────

LINKS = [
    ".ai",
    ".ai/state",
    ".ai/state/runs",
    ".ai/state/runs/RUN",
    ".ai/state/runs/RUN/journal.db",
]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_to_a_run_of_ours_is_no_run_of_ours(
    link: str, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """Behind it stands a folder that we made: the flow beside the link would run in its name."""
    become(monkeypatch, tmp_path / "me")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    monkeypatch.chdir(mine)
    (mine / "flow.yaml").write_text("steps: [{shell: 'false'}]\n")
    assert main(["run", "flow.yaml"]) == 1
    run = flows.flow_runs(str(mine))[0].id
    link = link.replace("RUN", run)
    (theirs / link).parent.mkdir(parents=True)
    (theirs / link).symlink_to(mine / link)
    (theirs / "flow.yaml").write_text(EVIL.format(canary=canary))
    monkeypatch.chdir(theirs)
    capsys.readouterr()
    for command in (
        ["resume"],
        ["resume", run],
        ["retry", run],
        ["worktrees", "--clean"],
        ["runs"],
        ["show", run],
    ):
        assert main([*command, "--project", "."]) in (
            (0,) if command[0] in ("runs", "worktrees") else ()
        ) + (
            1,
            2,
            3,
        )
        assert not canary.exists()
        assert "a bug of Plait" not in capsys.readouterr().err
    assert main(["resume", run, "--project", str(mine)]) == 1


def test_items_do_not_work_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, tmp_path / "me")
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(project)
    flow = project / "flow.yaml"
    flow.write_text(
        "map: {input: [a], isolation: {kind: directory, inputs: []}, steps: [{shell: 'touch made; test -e ../../../../../../go'}]}\n"
    )
    assert main(["run", "flow.yaml"]) == 1
    run = flows.flow_runs(str(project))[0].id
    (item,) = (project / ".ai/state/runs" / run / "worktrees").iterdir()
    shutil.rmtree(item)
    item.symlink_to(elsewhere)
    (project / "go").touch()
    assert main(["retry", run, "--failed"]) == 1
    assert list(elsewhere.iterdir()) == []


# ── the key ──────────────────────────────────────────────────────────────


def test_without_a_key_a_run_is_made_and_says_that_it_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    become(monkeypatch, tmp_path / "me")
    (tmp_path / "me/.ai").write_text("in the way")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("flow.yaml").write_text("steps: [{shell: 'false'}]\n")
    assert main(["run", "flow.yaml"]) == 1
    printed = capsys.readouterr().out
    assert "note: this run has no seal, so it cannot be resumed: " in printed
    assert main(["resume"]) == 3
    (tmp_path / "me/.ai").unlink()
    (last,) = (line for line in printed.splitlines() if line.startswith("  resume "))
    *before, after = (command.split()[1:] for command in last.removeprefix("  resume ").split(";"))
    assert [main(command) for command in before] == [0]
    assert main(after) == 1
    assert main(["resume"]) == 1


def test_a_user_space_that_came_along_makes_no_run_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    become(monkeypatch, project / "space")
    monkeypatch.chdir(project)
    Path("flow.yaml").write_text("steps: [{shell: 'false'}]\n")
    assert main(["run", "flow.yaml"]) == 1
    assert "the user space lies inside this project" in capsys.readouterr().out
    assert main(["resume"]) == 3


@pytest.mark.parametrize("key", ["", "00", "zz" * 32, "0" * 65])
def test_a_damaged_key_is_an_error_that_says_so(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    become(monkeypatch, tmp_path / "me")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("flow.yaml").write_text("steps: [{shell: 'false'}]\n")
    assert main(["run", "flow.yaml"]) == 1
    kept = tmp_path / "me/.ai/trust/seal.key"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text(key)
    capsys.readouterr()
    assert main(["resume"]) == 3
    assert f"{kept} is damaged" in capsys.readouterr().err
    assert main(["runs"]) == 0


def test_a_view_in_the_place_of_a_table_is_a_damaged_journal(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    with runs.create({"file": "x"}) as opened:
        run = opened.id
    database = sqlite3.connect(tmp_path / ".ai/state/runs" / run / "journal.db")
    database.executescript(
        "DROP VIEW events; DROP VIEW steps; DROP TABLE records; CREATE VIEW records AS WITH RECURSIVE n(number) AS "
        "(SELECT 1 UNION ALL SELECT number + 1 FROM n) SELECT number FROM n"
    )
    database.close()
    with pytest.raises(JournalError, match="damaged"):
        runs.open(run, write=False)
    assert [one.status for one in runs.list()] == ["unreadable"]
