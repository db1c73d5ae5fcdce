"""What an approval of an MCP tool covers, where it is kept, and what a caller without one hears."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import Tool

import plait
from plait.adapters.mcp.approvals import ApprovalFile, McpToolInfo
from plait.adapters.mcp.client import tool_declaration
from plait.app.toolbox import toolbox
from plait.cli import main
from plait.core.errors import TrustError
from plait.core.values import Json
from plait.views.terminal import fold_line

# ── what a digest covers ─────────────────────────────────────────────────


def offer(server: str = "s", tool: str = "t", *reached_by: str, **declared: Json) -> McpToolInfo:
    return McpToolInfo(server, tool, {"name": tool, **declared}, reached_by)


SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "description": "a file"}}}
STANDING = offer("s", "t", "run", "it", description="d", inputSchema=SCHEMA)
CHANGES = [
    offer("s", "t", "run", "it", description="other", inputSchema=SCHEMA),
    offer("s", "t", "run", "it", description="d", inputSchema={"type": "object"}),
    offer("s", "t", "run", "it", description="d", inputSchema={**SCHEMA, "required": ["x"]}),
    offer("s", "t", "run", "it", description="d", inputSchema=SCHEMA, title="T"),
    offer(
        "s", "t", "run", "it", description="d", inputSchema=SCHEMA, outputSchema={"type": "object"}
    ),
    offer(
        "s",
        "t",
        "run",
        "it",
        description="d",
        inputSchema=SCHEMA,
        annotations={"readOnlyHint": True},
    ),
    offer("s", "t2", "run", "it", description="d", inputSchema=SCHEMA),
    offer("s", "t", "run", "it", "--all", description="d", inputSchema=SCHEMA),
    offer("s", "t", "run it", description="d", inputSchema=SCHEMA),
    offer("s", "t", "https://s.example/", description="d", inputSchema=SCHEMA),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_digest_covers_how_a_server_is_reached_and_all_that_it_declares(
    changed: McpToolInfo,
) -> None:
    assert changed.digest != STANDING.digest
    assert (
        offer("s", "t", "run", "it", description="d", inputSchema=SCHEMA).digest == STANDING.digest
    )


APART = [
    (offer("a/b", "c"), offer("a", "b/c")),
    (offer("a@x", "c"), offer("a", "x@c")),
    (offer("a", "c", "run"), offer("a", "c", "walk")),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_no_two_tools_have_one_key(one: McpToolInfo, other: McpToolInfo) -> None:
    assert one.key != other.key


def test_the_key_of_a_tool_stays_when_its_description_changes() -> None:
    one = offer("s", "t", "run", description="d")
    assert one.key == offer("s", "t", "run", description="other", inputSchema={"x": 1}).key


# ── what is shown is what is covered ─────────────────────────────────────

# Letters that end or move a line, hide, or turn it around; escapes of them; what looks like a heading of ours.
NASTY = st.one_of(
    st.text(max_size=30),
    st.text(
        'ab \\"\n\r\t:{}|\x1b\x7f\x9b\u202e\u2066\u200b\ufeff\u00ad\u3164\ufe0f\U000e0041\u2028',
        max_size=30,
    ),
    st.sampled_from(
        ["x\n  inputSchema:\n    {}", "\\u202e", "\\n", " " * 200 + "approved", "日本語 ✓ é"]
    ),
)
DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), NASTY),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NASTY, inner, max_size=3)),
    max_leaves=8,
)
HINTS = st.fixed_dictionaries({}, optional={"title": NASTY, "readOnlyHint": st.booleans()})
DECLARED = st.fixed_dictionaries(
    {"inputSchema": st.dictionaries(NASTY, DATA, max_size=4)},
    optional={
        "title": NASTY,
        "description": NASTY,
        "outputSchema": st.dictionaries(NASTY, DATA, max_size=3),
        "annotations": HINTS,
        "icons": st.just([{"src": "https://x.example/i.png"}]),
        "_meta": st.dictionaries(NASTY, DATA, max_size=2),
    },
)
FIELDS = ["inputSchema", "title", "description", "outputSchema", "annotations", "icons", "_meta"]
UNUSED = {"icons", "_meta"}


def offered_as(declared: dict[str, Any]) -> McpToolInfo:
    """Through the SDK, as it comes from a server."""
    tool = Tool.model_validate_json(json.dumps({"name": "t", **declared}), by_name=False)
    return McpToolInfo("s", "t", tool_declaration(tool), ("run", "it"))


def read_back(lines: list[str]) -> dict[str, Any]:
    """The declaration, from nothing but what was shown."""
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in lines[2:]:
        if line.startswith("    "):
            sections[heading].append(line[4:])
        else:
            heading = line.strip().removesuffix(":")
            sections[heading] = []
    texts = {"name", "title", "description"}
    return {
        name: "\n".join(json.loads('"' + re.sub(r'"', r"\"", line) + '"') for line in shown)
        if name in texts
        else json.loads("\n".join(shown))
        for name, shown in sections.items()
    }


@given(DECLARED)
def test_what_was_declared_can_be_read_back_from_what_is_shown(declared: dict[str, Any]) -> None:
    offered = offered_as(declared)
    lines = list(offered.lines("run it"))
    assert lines[:2] == ["s / t", "  server: run it"]
    used = {"name": "t", **{name: value for name, value in declared.items() if name not in UNUSED}}
    shown = read_back(lines)
    assert json.dumps(shown, sort_keys=True) == json.dumps(used, sort_keys=True)
    assert McpToolInfo("s", "t", shown, ("run", "it")).digest == offered.digest
    for line in lines:
        assert line.isprintable()
        assert not set(line) & set("\u3164\ufe0f\u115f\u2800\u034f")


@given(DECLARED, DECLARED, st.sets(st.sampled_from(FIELDS)))
def test_two_declarations_have_one_digest_only_if_they_are_shown_alike(
    one: dict[str, Any], other: dict[str, Any], changed: set[str]
) -> None:
    other = {**one, **{name: value for name, value in other.items() if name in changed}}
    first, second = offered_as(one), offered_as(other)
    same = all(
        json.dumps(one.get(name)) == json.dumps(other.get(name)) for name in set(FIELDS) - UNUSED
    )
    assert (first.digest == second.digest) == same
    assert (list(first.lines("a")) == list(second.lines("a"))) == same


@given(st.text("ab 日\u0301", max_size=300), st.integers(20, 90))
def test_a_long_line_is_folded_so_that_nothing_begins_at_the_left_edge(
    text: str, room: int
) -> None:
    pieces = list(fold_line("    " + text, room))
    assert all(piece.startswith("    ") for piece in pieces)
    assert "".join([pieces[0], *(piece[6:] for piece in pieces[1:])]) == "    " + text
    columns = {"日": 2, "\u0301": 0}  # an accent stands above the letter before it
    assert all(sum(columns.get(letter, 1) for letter in piece) <= room for piece in pieces)


# ── the file ─────────────────────────────────────────────────────────────


def test_approvals_in_a_file_are_private_and_survive(tmp_path: Path) -> None:
    path = tmp_path / ".ai" / "trust" / "mcp.json"
    pins = ApprovalFile(str(path))
    assert pins.get("a/b") is None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ApprovalFile(str(path)).put(f"s/{n}", "d"), range(30)))
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
        ApprovalFile(str(path)).get("a/b")


def test_a_file_of_approvals_that_others_can_write_or_that_is_a_link_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    path.chmod(0o666)
    with pytest.raises(TrustError, match="can be written by others"):
        ApprovalFile(str(path)).get("a/b")
    path.chmod(0o600)
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(TrustError, match="cannot be read"):
        ApprovalFile(str(tmp_path / "link.json")).get("a/b")


# ── who calls without one ────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path: Path, small: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trusted project with a tool `add` that calls `add` of the server `small`."""
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    root = tmp_path / "project"
    (root / ".ai" / "tools").mkdir(parents=True)
    write_tool(root, "add", args=[small])
    toolbox(root).trust.trust_project(origin="a test")
    monkeypatch.chdir(root)
    return root


def write_tool(root: Path, name: str, *, args: list[str]) -> None:
    server = {"name": "small", "command": sys.executable, "args": args}
    record = {
        "executor_id": "core/runtimes/mcp/stdio",
        "config": {"server": server, "tool_name": "add"},
    }
    (root / ".ai" / "tools" / f"{name}.yaml").write_text(json.dumps(record))


def test_a_python_caller_learns_which_command_to_type_and_is_served_after_it(
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
    toolbox(project).trust.trust_project(origin="a test")
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


ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


HIDDEN = [
    # what a server says                       as it is shown
    ("Add.\x1b[2K\x1b[1Gharmless",             "Add.\\u001b[2K\\u001b[1Gharmless"),
    ("Add.\u202eflesmih",                      "Add.\\u202eflesmih"),
    ("Add.\u200bhidden",                       "Add.\\u200bhidden"),
    ("Add.\rharmless",                         "Add.\\rharmless"),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "shown"), HIDDEN)
@pytest.mark.parametrize("place", ["description", "parameter"])
def test_a_character_that_hides_others_is_seen_before_a_tool_is_approved(
    project: Path,
    small: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    hidden: str,
    shown: str,
) -> None:
    server = tmp_path / "hiding.py"
    text = Path(small).read_text()
    old, new = {
        "description": ('"Add two numbers."', ascii(hidden)),
        "parameter": ("ADD = ", f"NOTE = {hidden!a}\nADD = "),
    }[place]
    assert old in text
    text = text.replace(old, new, 1)
    if place == "parameter":
        text = text.replace(
            "tools = {", "ADD['properties']['a']['description'] = NOTE\ntools = {", 1
        )
    server.write_text(text)
    write_tool(project, "add", args=[str(server)])
    assert main(["trust", "mcp", "small", "add"]) == 0
    printed = capsys.readouterr().out
    assert shown in printed
    assert hidden not in printed


def approval(server: str, tool: str, command: list[str], description: str, schema: Json) -> str:
    """What `plait trust mcp` prints."""
    written = json.dumps(schema, indent=2).replace("\n", "\n    ")
    return (
        f"{server} / {tool}\n  server: {' '.join(command)}\n  name:\n    {tool}\n"
        f"  description:\n    {description}\n  inputSchema:\n    {written}\n"
        "approved: if anything shown here changes, the tool is refused until you approve it again\n"
    )


def test_two_servers_of_one_name_are_approved_by_one_command(
    project: Path, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tool(project, "more", args=[small, "another"])
    write_tool(project, "same", args=[small])
    assert main(["trust", "mcp", "small", "add"]) == 0
    assert capsys.readouterr().out == "".join(
        f"as '{caller}' calls it:\n"
        + approval("small", "add", [sys.executable, small, *further], "Add two numbers.", ADD)
        for caller, further in (("add", []), ("more", ["another"]))
    )
    for tool in ("add", "more", "same"):
        assert plait.call(tool, {"a": 1, "b": 2}, project=project)["data"] == {"result": 3}


def test_a_server_that_does_not_start_is_reported_by_approve(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tool(project, "add", args=["-c", "raise SystemExit"])
    assert main(["trust", "mcp", "small", "add"]) == 1
    assert capsys.readouterr().err == (
        "config.server: the MCP server 'small' could not be connected: it closed the connection\n"
        "fix: start the server by hand and look at what it says\n"
    )
