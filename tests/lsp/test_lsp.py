"""`plait lsp`, as an editor meets it: a real process, and the protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsp.client import Client
from plait.app.file_check import findings_around
from plait.core.source import Span
from plait.lang.check import check_file
from plait.lsp.positions import Lines, apply_change

TOOL = '''"""Report."""
__version__ = "1.0.0"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "Build the report"
CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"week": {"type": "integer", "description": "which week"}},
}
'''

FLOW = """\
parameters: {who: string}
blocks:
  greet:
    with: [name]
    steps: [{shell: 'echo ${name}'}]
steps:
  - shell: echo 𝒳 ${who} ${nope}
    capture_output: said
  - shell: echo ${said}
  - tool: team/report
    params: {week: 3}
  - use: greet
    with: {name: a}
  - tmeout: 3
    shell: ls
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    tool = tmp_path / ".ai" / "tools" / "team" / "report.py"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL)
    with Client(tmp_path) as client:
        yield client


# ── diagnostics ──────────────────────────────────────────────────────────


def test_diagnostics_have_the_place_in_utf_16(client: Client) -> None:
    client.open("f.yaml", FLOW)
    found = [
        (one["range"], one["severity"], one["code"], one["message"])
        for one in client.diagnostics("f.yaml")
    ]
    assert found == [
        (
            {"start": {"line": 6, "character": 26}, "end": {"line": 6, "character": 33}}, 1, "unknown-name",
            "unknown variable 'nope'\n"
            "fix: known in flow: who, step, workflow, git, env, uuid; declare an input under parameters",
        ),
        (
            {"start": {"line": 13, "character": 4}, "end": {"line": 13, "character": 10}}, 1, "unknown-field",
            "'tmeout' is not a field of a step\nfix: did you mean 'timeout'?",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        FLOW,
        FLOW.replace("\n", "\r\n"),
        "steps: [",
        "a: b: c\n",
        "start: a\nnodes: {a: {shell: 'echo ${state.x}', next: zz}}\n",
        "steps:\n- tool: team/reprot\n",
        "steps:\n- tool: team/report\n  params: {week: x}\n",
        "steps: [{shell: 'eval ${last.output}'}]\n",
    ],
)
def test_diagnostics_are_the_findings_of_check(client: Client, text: str) -> None:
    path = client.folder / "f.yaml"
    path.write_text(text, newline="")
    client.open("f.yaml", text)
    shown = client.diagnostics("f.yaml")
    lines = Lines(text)
    expected = []
    for finding in check_file(str(path), around=findings_around):
        where = finding.problem.where
        start = lines.position(where.place.start) if isinstance(where, Span) else lines.position(0)
        expected.append((finding.code, start))
    assert expected
    assert [(one["code"], one["range"]["start"]) for one in shown] == expected


def test_the_text_of_the_editor_counts_not_the_file(client: Client) -> None:
    (client.folder / "f.yaml").write_text("steps: [{shel: ls}]\n")
    client.open("f.yaml", "steps: [{shell: ls}]\n")
    assert client.diagnostics("f.yaml") == []
    place = {"start": {"line": 0, "character": 9}, "end": {"line": 0, "character": 14}}
    client.change("f.yaml", {"range": place, "text": "shlel"})
    assert [one["code"] for one in client.diagnostics("f.yaml")] == ["unknown-field"]
    client.change("f.yaml", {"text": "steps: [{shell: ls}]\n"})
    assert client.diagnostics("f.yaml") == []


def test_a_file_that_extends_an_unsaved_one_sees_its_text(client: Client) -> None:
    (client.folder / "base.yaml").write_text("vars: {a: 1}\nsteps: [{shell: ls}]\n")
    text = "extends: base.yaml\nsteps: [{shell: 'echo ${b}'}]\n"
    client.open("f.yaml", text)
    assert [one["code"] for one in client.diagnostics("f.yaml")] == ["unknown-name"]
    client.open("base.yaml", "vars: {b: 1}\nsteps: [{shell: ls}]\n")
    assert client.diagnostics("f.yaml") == []


def test_a_closed_file_has_no_diagnostics(client: Client) -> None:
    client.open("f.yaml", "steps: [{shel: ls}]\n")
    assert client.diagnostics("f.yaml") != []
    client.notify("textDocument/didClose", {"textDocument": {"uri": client.uri("f.yaml")}})
    assert client.diagnostics("f.yaml") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", "services: {web: {image: a}}\n"),
        ("ci.yml", "on: push\njobs: {a: {runs-on: b}}\n"),
        ("README.md", "# Read me\n\n${nothing}\n"),
        ("main.py", "x = 1\n"),
        ("a.txt", "steps: 3\n"),
        ("empty.yaml", ""),
    ],
)
def test_files_of_others_are_left_alone(client: Client, name: str, text: str) -> None:
    client.open(name, text)
    assert client.diagnostics(name) == []
    assert client.at("hover", name, 0, 0) is None


def test_opening_a_file_starts_nothing_and_writes_nothing(client: Client) -> None:
    before = sorted(client.folder.rglob("*"))
    client.open(
        "f.yaml",
        "env: {A: '${cmd:touch made}'}\nsteps: [{shell: touch made}, {shell: 'echo ${cmd:touch made}'}]\n",
    )
    client.diagnostics("f.yaml")
    client.at("hover", "f.yaml", 1, 50)
    client.at("completion", "f.yaml", 1, 50)
    assert sorted(client.folder.rglob("*")) == before


# ── answers ──────────────────────────────────────────────────────────────

COMPLETED = [
    # text with the cursor at ¦                                        among the labels        not among them
    ("steps:\n  - sh¦", {"shell", "tool", "write_file"}, {"run"}),
    ("steps:\n  - shell: ls\n    ¦", {"timeout", "when"}, {"shell", "tool", "params", "with", "do"}),
    ("steps:\n  - tool: team/report\n    ¦\n", {"params", "timeout"}, {"shell", "interpreter"}),
    ("steps:\n  - shell: ls\n    tim¦\n  - shell: b\n", {"timeout"}, {"shell"}),
    ("steps:\n  - {shell: ls, ¦}\n", {"timeout"}, {"shell"}),
    ("steps:\n  - shell: ls\nva¦\n", {"vars", "env"}, {"steps", "shell"}),
    ("¦", {"steps", "map", "nodes", "tasks"}, set()),
    ("ma¦\n", {"map"}, set()),
    ("map:\n  ¦\n", {"input", "max_parallel"}, {"shell"}),
    ("parameters: {who: string}\nsteps:\n  - shell: echo ${w¦\n", {"who"}, {"item"}),
    ("steps:\n  - shell: ls\n    capture_output: a\n  - shell: echo ${¦} x\n", {"a", "last"}, {"item"}),
    ("map:\n  input: a\n  steps:\n  - shell: echo ${¦\n", {"item", "item_index"}, set()),
    ("map:\n  input: a\n  steps: [{shell: ls}]\nreduce:\n  - shell: echo ${map.¦}\n", {"successful", "total"}, {"item"}),
    ("steps:\n  - tool: te¦\n", {"team/report", "core/file/read"}, {"true"}),
    ("steps:\n  - tool: ¦\n", {"team/report"}, set()),
    ("steps:\n  - tool: team/report\n    params:\n      ¦\n", {"week"}, {"shell"}),
    ("steps:\n  - tool: team/report\n    params: {¦}\n", {"week"}, {"shell"}),
    ("steps:\n  - shell: ls\n    interpreter: ¦\n", {"sh", "bash"}, set()),
    ("blocks: {a: {with: [x], steps: [{shell: ls}]}}\nsteps:\n  - use: ¦\n", {"a"}, set()),
    ("blocks: {a: {with: [x], steps: [{shell: ls}]}}\nsteps:\n  - use: a\n    with: {¦}\n", {"x"}, set()),
    ("start: a\nnodes:\n  a: {shell: ls, next: ¦}\n  bb: {shell: ls}\n", {"a", "bb"}, set()),
    ("services:\n  web: ${¦\n", set(), {"env"}),
]  # fmt: skip


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_completion(client: Client, ends: str) -> None:
    for text, wanted, unwanted in COMPLETED:
        before, _, after = text.partition("¦")
        client.open("f.yaml", (before + after).replace("\n", ends))
        line = before.count("\n")
        labels = {
            one["label"]
            for one in client.at("completion", "f.yaml", line, len(before.rpartition("\n")[2]))
        }
        assert wanted <= labels, text
        assert not unwanted & labels, text


def test_a_tool_that_is_a_graph_is_read_as_one(client: Client) -> None:
    name = ".ai/tools/team/walk.yaml"
    client.open(
        name,
        "tool_type: graph\nconfig:\n  start: a\n  nodes:\n    a: {shell: ls, next: }\n    bb: {shell: ls}\n",
    )
    labels = {one["label"] for one in client.at("completion", name, 4, 25)}
    assert {"a", "bb"} <= labels


HOVERED = [
    # line, column: text
    ((6, 5), "**shell**: shell text\n\nshell text; values are bound, never pasted"),
    ((6, 20), "`${who}`: known in flow: declared\n\n**who**: declared\n\nbound as one word"),
    ((11, 10), "**greet**: a block of 1 step\n\nneeds: name\n\n{folder}/f.yaml:3:3"),
    ((9, 12), "**team/report**: Build the report\n\n- `week`: integer, which week\n\nproject: `{folder}/.ai/tools/team/report.py`"),
]  # fmt: skip


def test_hover(client: Client) -> None:
    client.open("f.yaml", FLOW)
    for (line, character), expected in HOVERED:
        answer = client.at("hover", "f.yaml", line, character)
        assert answer["contents"]["value"] == expected.replace("{folder}", str(client.folder))
    assert client.at("hover", "f.yaml", 9, 12)["range"] == {
        "start": {"line": 9, "character": 10}, "end": {"line": 9, "character": 21},
    }  # fmt: skip


DEFINED = [
    # line, column   file, line and column
    ((6, 20), ("f.yaml", 0, 13)),
    ((8, 16), ("f.yaml", 7, 20)),
    ((9, 12), (".ai/tools/team/report.py", 0, 0)),
    ((11, 10), ("f.yaml", 2, 2)),
]


def test_definition(client: Client) -> None:
    client.open("f.yaml", FLOW)
    for (line, character), (name, to_line, to_character) in DEFINED:
        answer = client.at("definition", "f.yaml", line, character)
        assert (answer["uri"], answer["range"]["start"]) == (
            client.uri(name), {"line": to_line, "character": to_character},
        )  # fmt: skip
    (client.folder / "base.yaml").write_text("blocks: {b: [{shell: ls}]}\n")
    client.open("g.yaml", "imports: [base.yaml]\nsteps: [{use: b}]\n")
    assert client.at("definition", "g.yaml", 0, 12)["uri"] == client.uri("base.yaml")
    client.open("n.yaml", "start: a\nnodes:\n  a: {shell: ls, next: b}\n  b: {shell: ls}\n")
    assert client.at("definition", "n.yaml", 2, 23)["range"]["start"] == {"line": 3, "character": 2}


def test_symbols(client: Client) -> None:
    client.open("f.yaml", FLOW)
    found = client.request(
        "textDocument/documentSymbol", {"textDocument": {"uri": client.uri("f.yaml")}}
    )["result"]

    def names(symbols: list[dict[str, Any]]) -> list[Any]:
        return [
            (one["name"], names(one["children"])) if one["children"] else one["name"]
            for one in symbols
        ]

    assert names(found) == [
        ("parameters", ["who"]),
        ("blocks", [("greet", [("steps", ["shell echo ${name}"])])]),
        ("steps", ["shell echo 𝒳 ${who} ${nope}", "shell echo ${said}", "tool team/report", "use greet", "shell ls"]),
    ]  # fmt: skip


# ── a session ────────────────────────────────────────────────────────────


def test_a_session_ends_with_the_exit_code_of_the_protocol(tmp_path: Path) -> None:
    for shut_down, code in ((True, 0), (False, 1)):
        with Client(tmp_path) as client:
            if shut_down:
                assert client.request("shutdown")["result"] is None
                assert client.request("textDocument/hover")["error"]["code"] == -32600
            client.notify("exit", {})
            assert client.process.wait(30) == code


def test_requests_out_of_order_get_errors(tmp_path: Path) -> None:
    with Client(tmp_path, initialize=False) as client:
        assert client.request("textDocument/hover")["error"] == {
            "code": -32002,
            "message": "send 'initialize' first",
        }
        client.open("f.yaml", "steps: 3\n")
        assert (
            client.request("initialize")["result"]["capabilities"]["positionEncoding"] == "utf-16"
        )
        assert client.request("no/such")["error"] == {
            "code": -32601,
            "message": "there is no method 'no/such'",
        }
        assert client.at("hover", "f.yaml", 0, 0) is None
        client.change("f.yaml", {"text": "x"})
        assert client.at("completion", "f.yaml", 10**9, 10**9) == []


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: 4\r\n\r\n{{{{",
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 3\r\n\r\n\xff\xfe\xff",
        b"Content-Length: 2\r\n\r\n{}",
        b'Content-Length: 15\r\n\r\n{"method": [1]}',
        b"Content-Length: 4000\r\n\r\n" + b"[" * 4000,
        b"Content-Length: 99999999\r\n\r\n" + b" " * 99_999_999,
    ],
    ids=range(9),
)
def test_a_damaged_frame_costs_that_frame_only(client: Client, data: bytes) -> None:
    client.send_bytes(data)
    client.send({"id": 99, "method": "textDocument/hover", "params": 3})
    while (answer := client.receive()).get("id") != 99:
        assert answer["error"]["code"] in (-32700, -32600)
    assert answer["result"] is None


@pytest.mark.parametrize(
    "text",
    ["{" * 5000, "a: &a [*a, *a]\n", "\0\0", "- " * 3000, "steps:\n" + "- shell: echo ${item}\n" * 2000,
     "x" * 9_000_000, "steps: [{shell: '" + "${a" * 3000 + "'}]", "\ufeffsteps: [{shel: ls}]\n", "steps:\r- shell: ls\r"],
    ids=range(9),
)  # fmt: skip
def test_a_broken_or_huge_text_does_not_end_the_session(client: Client, text: str) -> None:
    client.open("f.yaml", text)
    assert all("a bug" not in one["message"] for one in client.diagnostics("f.yaml"))
    for method in ("hover", "completion", "definition"):
        for character in (0, 12, 10**6):
            client.at(method, "f.yaml", 0, character)
            client.at(method, "f.yaml", 1, character)


def test_every_prefix_of_a_flow_can_be_asked_about(client: Client) -> None:
    for end in range(0, len(FLOW), 7):
        text = FLOW[:end]
        client.open("f.yaml", text)
        line, character = text.count("\n"), len(text.rpartition("\n")[2].encode("utf-16-le")) // 2
        for method in ("completion", "hover", "definition"):
            client.at(method, "f.yaml", line, character)
    assert client.request("shutdown")["result"] is None


def test_a_terminal_gets_an_explanation(tmp_path: Path) -> None:
    import pty

    main, side = pty.openpty()
    command = [sys.executable, "-m", "plait", "lsp"]
    done = subprocess.run(
        command, stdin=side, capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    os.close(main)
    os.close(side)
    assert (done.returncode, done.stderr) == (
        2, "plait lsp talks with an editor, not with a person\nfix: see docs/guides/editors.md\n",
    )  # fmt: skip


# ── positions ────────────────────────────────────────────────────────────

TEXT = st.text(st.sampled_from("a𝒳é\n\r ${}:"), max_size=40)


@given(text=TEXT, data=st.data())
def test_a_position_leads_back_to_its_offset(text: str, data: st.DataObject) -> None:
    lines = Lines(text)
    offset = data.draw(st.integers(0, len(text)))
    if text[offset - 1 : offset + 1] != "\r\n":  # no editor has a position between them
        assert lines.offset(lines.position(offset)) == offset


@given(text=TEXT, new=TEXT, data=st.data())
def test_a_change_replaces_its_range(text: str, new: str, data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    lines = Lines(text)
    change = json.loads(json.dumps({"range": lines.range(start, end), "text": new}))
    start, end = (lines.offset(lines.position(one)) for one in (start, end))
    assert apply_change(text, change) == text[:start] + new + text[end:]
