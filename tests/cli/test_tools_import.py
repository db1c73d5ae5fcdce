"""`plait tools import .mcp.json`: tool files for what MCP servers declare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.app.mcp_import import ServerEntry, read_servers
from plait.cli import main
from plait.core.errors import PlaitError

pytest.importorskip("mcp", reason="the official client is not here: pip install 'plait-flow[mcp]'")

SERVER = Path(__file__).parents[1] / "data" / "mcp" / "notes.py"
TOKEN = "ghp_0123456789abcdefghij"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    project = tmp_path / "project"
    (project / ".ai").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "home"))
    monkeypatch.delenv("NOTES_TOKEN", raising=False)
    monkeypatch.chdir(project)
    return project


def notes(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVER)], **more}


def write(**servers: Any) -> None:
    Path(".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def test_a_server_becomes_approved_tools_and_its_secret_stays_where_it_is(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(notes=notes(env={"NOTES_TOKEN": TOKEN, "LEVEL": "1"}))
    assert main(["tools", "import", ".mcp.json", "--dry-run"]) == 0
    shown = capfd.readouterr().out
    assert "Say it {loud}." in shown
    assert ".ai/tools/mcp/notes/shout.yaml would be written" in shown
    assert not (project / ".ai/tools").exists()

    assert main(["tools", "import", ".mcp.json"]) == 0
    out = capfd.readouterr().out
    assert (
        "set NOTES_TOKEN in your environment or in .env: a secret of 'notes' is not copied" in out
    )
    made = sorted((project / ".ai/tools/mcp/notes").iterdir())
    assert [one.name for one in made] == ["length.yaml", "shout.yaml"]
    assert all(TOKEN not in one.read_text() for one in made)
    assert TOKEN not in out

    monkeypatch.setenv("NOTES_TOKEN", TOKEN)
    assert main(["call", "mcp/notes/shout", "-i", "text=hey"]) == 0
    assert "HEYghp" in capfd.readouterr().out
    assert main(["call", "mcp/notes/length"]) == 2  # the schema is in the file
    assert "'text' is required" in capfd.readouterr().err

    assert main(["tools", "import", ".mcp.json", "--json"]) == 0
    states = [(one["id"], one["state"]) for one in json.loads(capfd.readouterr().out)]
    assert states == [("mcp/notes/shout", "same"), ("mcp/notes/length", "same")]


def test_a_server_that_does_not_start_does_not_stop_the_others(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(gone={"command": "/nothing/here"}, odd={"command": 3}, notes=notes())
    assert main(["tools", "import", ".mcp.json"]) == 1
    shown = capfd.readouterr()
    assert "the MCP server 'gone' could not be connected" in shown.err
    assert ".mcp.json: odd: this server has a command that is not text" in shown.err
    assert "wrote: .ai/tools/mcp/notes/shout.yaml" in shown.out
    assert (project / ".ai/tools/mcp/notes/shout.yaml").exists()


def test_a_file_that_differs_is_not_overwritten(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(notes=notes())
    mine = project / ".ai/tools/mcp/notes/shout.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine\n")
    for more in (["--dry-run"], []):
        assert main(["tools", "import", ".mcp.json", *more]) == 1
        shown = capfd.readouterr()
        assert "this file exists" in shown.err
        assert "notes/shout.yaml" not in shown.out
    assert mine.read_text() == "mine\n"
    assert (mine.parent / "length.yaml").exists()


def test_two_tools_that_would_have_one_file_are_not_mixed_up(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(**{"no tes": notes(), "no-tes": notes()})
    for more in (["--dry-run"], []):
        assert main(["tools", "import", ".mcp.json", *more]) == 1
        shown = capfd.readouterr()
        assert (
            ".ai/tools/mcp/no-tes/shout.yaml: this file is that of another tool; "
            "no-tes / shout is not imported\n"
            "fix: give its server another name in the file that you import\n"
        ) in shown.err
        assert shown.out.count("no-tes/shout.yaml") == 1
    assert len(list((project / ".ai/tools/mcp/no-tes").iterdir())) == 2


BAD = [
    # contents, message
    ("",                            "this is not JSON: Expecting value"),
    ("[" * 100_000,                 "this is nested too deeply"),
    ("[]",                          "this file names no MCP servers"),
    ('{"mcpServers": 3}',           "this file names no MCP servers"),
]  # fmt: skip


@pytest.mark.parametrize(("contents", "message"), BAD)
def test_a_bad_file_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], contents: str, message: str
) -> None:
    (project / ".mcp.json").write_text(contents)
    assert main(["tools", "import", ".mcp.json"]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_server_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tools", "import", "none.json"]) == 2
    assert "this file cannot be read: No such file or directory" in capsys.readouterr().err
    (project / "b.json").write_bytes(b"\xff\xfe")
    assert main(["tools", "import", "b.json"]) == 2
    assert "this file is not UTF-8" in capsys.readouterr().err
    write(notes=notes())
    assert main(["tools", "import", ".mcp.json", "--server", "note"]) == 2
    assert "there is no server 'note'\nfix: did you mean 'notes'?" in capsys.readouterr().err


HOST = {"PATH": "/bin", "HOME": "/home/a", "PORT": "80", "API_TOKEN": "t0ken", "SECRET_IN_ENV": "x"}

READ: list[tuple[dict[str, Any], Any]] = [
    # entry, and its config.server in tool files, or what is wrong
    ({"command": "a", "args": ["${PORT}", "{x}"]}, {"name": "s", "command": "a", "args": ["${PORT}", "{{x}}"]}),
    ({"command": "a", "args": ["${NONE:-5}"]}, {"name": "s", "command": "a", "args": ["${NONE:-5}"]}),
    ({"command": "a", "env": {"T": "${API_TOKEN}"}}, {"name": "s", "command": "a", "args": [], "env": {"T": "${API_TOKEN}"}}),
    ({"command": "a", "env": {"DB_PWD": "hidden"}}, {"name": "s", "command": "a", "args": [], "env": {"DB_PWD": "${DB_PWD}"}}),
    ({"command": "a", "env": {"U": "pg://me:hidden@h"}}, {"name": "s", "command": "a", "args": [], "env": {"U": "${U}"}}),
    ({"type": "http", "url": "https://h/mcp", "headers": {"Authorization": "Bearer hidden", "X": "1"}},
     {"name": "s", "url": "https://h/mcp", "headers": {"Authorization": "${S_AUTHORIZATION}", "X": "1"}}),
    ({"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${API_TOKEN}"}},
     {"name": "s", "url": "https://h/mcp", "headers": {"Authorization": "Bearer ${API_TOKEN}"}}),
    ({"command": "a", "args": ["--api-key", "hidden"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "a", "args": ["--token=hidden"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "a", "args": ["${API_TOKEN}"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "docker", "args": ["run", "-e", "API_TOKEN=hidden"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "sh", "args": ["-c", "DB_PWD=hidden serve"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "a", "args": ["--header", "Authorization: Bearer hidden"]}, "this server has a secret in its args, where others can read it"),
    ({"command": "a", "args": ["--header=X-Api-Key:hidden"]}, "this server has a secret in its args, where others can read it"),
    ({"url": "https://h/mcp?v=1&api_key=hidden"}, "this server has a secret in its url, where others can read it"),
    ({"command": "a", "env": {"API_TOKEN": "${NONE:-hidden}"}}, {"name": "s", "command": "a", "args": [], "env": {"API_TOKEN": "${API_TOKEN}"}}),
    ({"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${NONE:-hidden}"}},
     {"name": "s", "url": "https://h/mcp", "headers": {"Authorization": "${S_AUTHORIZATION}"}}),
    ({"command": "docker", "args": ["run", "-e", "MAX_TOKENS=4096", "-v", "/a:/b", "-p", "80:80"]},
     {"name": "s", "command": "docker", "args": ["run", "-e", "MAX_TOKENS=4096", "-v", "/a:/b", "-p", "80:80"]}),
    ({"url": "https://me:hidden@h/"}, "this server has a secret in its url, where others can read it"),
    ({"command": "a", "args": ["${NONE}"]}, "this server needs the variable NONE"),
    ({"command": "a", "args": ["${x.y}"]}, "this server has a placeholder that is not a variable"),
    ({"type": "sse", "url": "https://h/"}, 'this server has the type "sse"'),
    ({"url": "file:///etc/passwd"}, "this server has a url that is not http or https"),
    ({}, "this server needs either a command or a url"),
    ({"command": "a", "url": "https://h"}, "this server needs either a command or a url"),
    ({"command": "a", "args": "x"}, "this server has args that are not a list of texts"),
    ({"command": "a", "env": {"A": 1}}, "this server has env that are not a map of texts"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), READ)
def test_an_entry_is_read_without_its_secrets(entry: dict[str, Any], expected: Any) -> None:
    found = read_servers(json.dumps({"servers": {"s": entry}}), "f", HOST)["s"]
    if isinstance(found, PlaitError):
        assert found.what == expected
        assert "hidden" not in str(found)
    else:
        assert isinstance(found, ServerEntry)
        assert found.written == expected
        assert "hidden" not in json.dumps(found.written)
