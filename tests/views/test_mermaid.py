"""Diagrams as Mermaid: the real parser reads what was meant, whatever authors call their steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from npm import npm_folder, run_node
from plait.views.diagram.files import file_diagram
from plait.views.diagram.mermaid import render_mermaid
from plait.views.diagram.model import Diagram, DiagramEdge, DiagramNode
from plait.views.format import one_line

CORPUS = Path(__file__).resolve().parents[1] / "golden" / "corpus"
FLOWS = [
    # the four kinds of flow
    "workflow/files/flow.yaml",
    "graph/files/flow.yaml",
    "directive/files/review.md",
    "ensemble/files/flow.yaml",
    "ensemble/files/team.yaml",
]
HOSTILE = [
    'a"]; click n0 "javascript:alert(1)"', "end", "graph", "%%{init: {}}%%", "`x`", "```", "<script>", "1. x",
    "2) y", "- y", "* z", "#quot;", "#35;", "", "\n---\n", "x\u202ey", "${a} && $$b$$", "&amp; &lt;", "];n0-->n1",
    '|"|', "日本 é", "_a_ **c**", '"', "\\", "subgraph x", "\x1b[31m", "a;b", "@{shape: x}", "x" * 500, "a\tb", "{}",
    "echo $$; kill $$", "$$\\frac$$", "a$$$b", "fa:fa-car", "style x:y;", "classDef >x:<y>;",
]  # fmt: skip

PARSER = """\
import { JSDOM } from "jsdom";
const page = new JSDOM("");
globalThis.window = page.window;
for (const name of ["document", "Element", "HTMLElement", "Node", "NodeFilter", "DocumentFragment",
    "HTMLTemplateElement", "NamedNodeMap", "DOMParser"]) globalThis[name] = page.window[name];
const { default: mermaid } = await import("mermaid");
mermaid.initialize({ startOnLoad: false, securityLevel: "strict" });
let text = "";
for await (const piece of process.stdin) text += piece;
const found = [];
for (const one of JSON.parse(text)) {
  try {
    const diagram = await mermaid.mermaidAPI.getDiagramFromText(one);
    found.push({
      nodes: [...diagram.db.getVertices()].map(([id, node]) => [id, node.text]),
      edges: diagram.db.getEdges().map((edge) => [edge.start, edge.end, edge.text, edge.stroke]),
    });
  } catch (error) { found.push({ error: String(error.message ?? error) }); }
}
process.stdout.write(JSON.stringify(found));
process.exit(0);
"""


def parse(texts: list[str]) -> list[dict[str, Any]]:
    """What Mermaid reads; its own marks for character codes are the characters again."""
    folder = npm_folder("mermaid@11.17.2", "jsdom@25.0.1")
    found = json.loads(run_node(folder, PARSER, json.dumps(texts)))
    plain = re.compile("ﬂ°°(\\d+)¶ß")
    return json.loads(  # type: ignore[no-any-return]
        plain.sub(
            lambda code: json.dumps(chr(int(code[1])))[1:-1], json.dumps(found, ensure_ascii=False)
        )
    )


def label(text: str) -> str:
    line = one_line(" ".join(text.split()), None)
    line = line if len(line) <= 80 else f"{line[:79]}…"
    for read in ("$$", "$$", ":fa-"):  # mathematics and icons, which no character code prevents
        line = line.replace(read, f"{read[0]}\u200b{read[1:]}")
    return line or "\xa0"


def test_the_parser_reads_hostile_names_as_text() -> None:
    diagrams = [
        Diagram(
            name,
            (DiagramNode(name, "gate", name), DiagramNode(f"{name}2", "tool", name, 3)),
            (DiagramEdge(name, f"{name}2", name), DiagramEdge(name, f"{name}2", name, "error")),
        )
        for name in HOSTILE
    ]
    for name, found in zip(HOSTILE, parse([render_mermaid(one) for one in diagrams]), strict=True):
        about = f"<br>{label(name)}" if name else ""
        assert found["nodes"] == [
            ["n0", label(name) + about],
            ["n1", f"{label(name + '2')}{about}<br>3 visits"],
        ]
        words = label(name) if name else ""
        assert found["edges"] == [["n0", "n1", words, "normal"], ["n0", "n1", words, "dotted"]]


def test_the_parser_reads_all_kinds_of_flows() -> None:
    diagrams = [file_diagram(str(CORPUS / name)) for name in FLOWS]
    for diagram, found in zip(diagrams, parse(list(map(render_mermaid, diagrams))), strict=True):
        assert len(found["nodes"]) == len(diagram.nodes) > 0
        assert len(found["edges"]) == len(diagram.edges)


def test_the_parser_refuses_what_is_wrong() -> None:
    assert all("error" in found for found in parse(["nonsense", 'flowchart TD\n n0["a"b"]']))


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_ends_the_block_around_a_diagram(name: str) -> None:
    diagram = Diagram(name, (DiagramNode(name, "gate", name),), (DiagramEdge(name, name, name),))
    text = render_mermaid(diagram)
    assert "`" not in text
    assert all(re.match("flowchart TD|    (?:accTitle:|n0)", line) for line in text.splitlines())


def test_a_run_is_marked() -> None:
    nodes = (DiagramNode("a", "tool", visits=1), DiagramNode("b", "tool", visits=2, failed=True))
    text = render_mermaid(Diagram("x", nodes, (DiagramEdge("a", "b", "again", taken=2),), True))
    assert text.splitlines()[2:] == [
        '    n0["a"]',
        '    n1["b<br>2 visits"]',
        '    n0 ==>|"again ×2"| n1',
        "    classDef visited stroke:#155eef,stroke-width:3px",
        "    class n0 visited",
        "    classDef failed stroke:#d0544b,stroke-width:3px",
        "    class n1 failed",
    ]
