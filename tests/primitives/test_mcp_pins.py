"""What an approval of an MCP tool covers, where it is kept, and what a caller without one hears."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import plait
from plait import app
from plait.cli import main
from plait.errors import TrustError
from plait.primitives.mcp_pins import Offered, PinFile

# ── what a digest covers ─────────────────────────────────────────────────


CHANGES = [
    Offered("s", "t", "other", {"type": "object"}, ("run", "it")),
    Offered("s", "t", "d", {"type": "object", "properties": {"x": {}}}, ("run", "it")),
    Offered("s", "t2", "d", {"type": "object"}, ("run", "it")),
    Offered("s", "t", "d", {"type": "object"}, ("run", "it", "--all")),
    Offered("s", "t", "d", {"type": "object"}, ("run it",)),
    Offered("s", "t", "d", {"type": "object"}, ("https://s.example/",)),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_digest_covers_server_name_description_and_schema(changed: Offered) -> None:
    standing = Offered("s", "t", "d", {"type": "object"}, ("run", "it"))
    assert changed.digest != standing.digest
    assert Offered("s", "t", "d", {"type": "object"}, ("run", "it")).digest == standing.digest


APART = [
    (Offered("a/b", "c", "", {}), Offered("a", "b/c", "", {})),
    (Offered("a@x", "c", "", {}), Offered("a", "x@c", "", {})),
    (Offered("a", "c", "", {}, ("run",)), Offered("a", "c", "", {}, ("walk",))),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_no_two_tools_have_one_key(one: Offered, other: Offered) -> None:
    assert one.key != other.key


def test_the_key_of_a_tool_stays_when_its_description_changes() -> None:
    assert Offered("s", "t", "d", {}, ("run",)).key == Offered("s", "t", "other", {"x": 1}, ("run",)).key


# ── the file ─────────────────────────────────────────────────────────────


def test_approvals_in_a_file_are_private_and_survive(tmp_path: Path) -> None:
    path = tmp_path / ".ai" / "trust" / "mcp.json"
    pins = PinFile(str(path))
    assert pins.get("a/b") is None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: PinFile(str(path)).put(f"s/{n}", "d"), range(30)))
    assert json.loads(path.read_text()) == {f"s/{n}": "d" for n in range(30)}
    assert path.stat().st_mode & 0o077 == 0
    assert (pins.remove("s/1"), pins.remove("s/1"), pins.get("s/1")) == (True, False, None)


DAMAGED = ["", "[]", "{", '{"a": 1}', "nonsense"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_of_approvals_approves_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(TrustError, match="is damaged"):
        PinFile(str(path)).get("a/b")


def test_a_file_of_approvals_that_others_can_write_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    path.chmod(0o666)
    with pytest.raises(TrustError, match="can be written by others"):
        PinFile(str(path)).get("a/b")
    path.chmod(0o600)
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(TrustError, match="cannot be read"):
        PinFile(str(tmp_path / "link.json")).get("a/b")


# ── who calls without one ────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path: Path, small: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trusted project with a tool `add` that calls `add` of the server `small`."""
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    root = tmp_path / "project"
    (root / ".ai" / "tools").mkdir(parents=True)
    write_tool(root, "add", args=[small])
    app.toolbox(root).trust.trust_project(origin="a test")
    monkeypatch.chdir(root)
    return root


def write_tool(root: Path, name: str, *, args: list[str]) -> None:
    server = {"name": "small", "command": sys.executable, "args": args}
    record = {"executor_id": "core/runtimes/mcp/stdio", "config": {"server": server, "tool_name": "add"}}
    (root / ".ai" / "tools" / f"{name}.yaml").write_text(json.dumps(record))


def test_a_python_caller_hears_which_command_to_type_and_is_served_after_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrustError) as caught:
        plait.call("add", {"a": 1, "b": 2}, project=project)
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "the tool 'add' of the MCP server 'small' has not been approved\n"
        "fix: look at it and approve it: plait trust mcp small add"
    )
    assert main(["trust", "mcp", "small", "add"]) == 0
    assert plait.call("add", {"a": 1, "b": 2}, project=project)["data"] == {"result": 3}

    # Another user of the same process has approved nothing.
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "another"))
    app.toolbox(project).trust.trust_project(origin="a test")
    with pytest.raises(TrustError) as caught:
        plait.call("add", {"a": 1, "b": 2}, project=project)
    assert caught.value.code == "mcp-unapproved"


def test_a_command_line_that_changes_needs_another_approval(project: Path, small: str) -> None:
    assert main(["trust", "mcp", "small", "add"]) == 0
    assert plait.call("add", {"a": 1, "b": 2}, project=project)["status"] == "success"
    write_tool(project, "add", args=[small, "another"])
    with pytest.raises(TrustError) as caught:
        plait.call("add", {"a": 1, "b": 2}, project=project)
    assert caught.value.code == "mcp-unapproved"


def test_two_servers_of_one_name_are_approved_by_one_command(
    project: Path, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tool(project, "more", args=[small, "another"])
    write_tool(project, "same", args=[small])
    assert main(["trust", "mcp", "small", "add"]) == 0
    assert capsys.readouterr().out == "".join(
        f"small / add, as '{caller}' calls it\n  server: {' '.join([sys.executable, small, *further])}\n"
        "  Add two numbers.\napproved, until its server, its description or its parameters change\n"
        for caller, further in (("add", []), ("more", ["another"]))
    )
    for tool in ("add", "more", "same"):
        assert plait.call(tool, {"a": 1, "b": 2}, project=project)["data"] == {"result": 3}


def test_a_server_that_does_not_start_is_told_to_whoever_wants_to_approve(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tool(project, "add", args=["-c", "raise SystemExit"])
    assert main(["trust", "mcp", "small", "add"]) == 1
    assert capsys.readouterr().err == (
        "config.server: the MCP server 'small' could not be connected: it closed the connection\n"
        "fix: start the server by hand and look at what it says\n"
    )
