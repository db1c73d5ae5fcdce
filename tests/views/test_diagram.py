"""Pictures of flows: layers, arrows, the way of a run, SVG that is whole, and a drawing for the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lang.graph.graphs import graph_place
from plait.core.documents import parse
from plait.core.values import Json
from plait.engine.events import StepFinished
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.views.diagram.files import run_diagram
from plait.views.diagram.model import (
    Diagram,
    DiagramEdge,
    DiagramNode,
    make_diagram,
    mark_tasks,
    mark_visits,
    task_visits,
)
from plait.views.diagram.model import (
    layout as laid_out,
)
from plait.views.diagram.svg import render_svg
from plait.views.diagram.text import render_text
from plait.views.parts import RunningStep
from share import examples

LOOP = """\
start: draft
nodes:
  draft: {tool: demo/add, next: check, on_error: stop}
  check: {next: [{to: done, when: {all: [{path: state.n, op: gte, value: 3}, {not: {path: state.bad}}]}}, {to: draft}]}
  done: {return: 1}
  stop: {over: "${state.l}", tool: "a/<b>&c"}
"""


def picture(text: str) -> Diagram:
    return make_diagram(parse(text, "flow.yaml"), "flow")


def drawn(one: Diagram) -> list[str]:
    return [line for line, _ in render_text(one)]


def test_a_graph_is_drawn_for_a_terminal() -> None:
    assert drawn(picture(LOOP)) == [
        "flow",
        "▷ draft  tool demo/add",
        "  ├──▶ check",
        "  └─ on error ─▶ stop",
        "○ check  gate",
        "  ├─ state.n ≥ 3 and not (state.bad =) ─▶ done",
        "  └─ otherwise ─▶ draft ↑",
        "○ stop   foreach each of ${state.l}: a/<b>&c",
        "○ done   return",
    ]


def test_a_node_that_runs_shell_text_shows_it() -> None:
    shell = """\
start: list
nodes:
  list: {shell: "ls | wc -l", next: each}
  each: {over: "${state.l}", shell: "echo ${item}", next: done}
  done: {type: action, action: {shell: "echo ready\\ntrue"}}
"""
    assert drawn(picture(shell)) == [
        "flow",
        "▷ list  shell ls | wc -l",
        "  └──▶ each",
        "○ each  foreach each of ${state.l}: echo ${item}",
        "  └──▶ done",
        "○ done  shell echo ready",
    ]


def test_the_way_of_a_run_is_marked_and_counted() -> None:
    way = [("draft", False), ("check", False), ("draft", False), ("check", False), ("done", True)]
    assert drawn(mark_visits(picture(LOOP), way)) == [
        "flow",
        "● draft  tool demo/add   2 visits",
        "  ├──▶ check ×2",
        "  └─ on error ─▶ stop",
        "● check  gate   2 visits",
        "  ├─ state.n ≥ 3 and not (state.bad =) ─▶ done",
        "  └─ otherwise ─▶ draft ↑",
        "○ stop   foreach each of ${state.l}: a/<b>&c",
        "✗ done   return   1 visit",
    ]


def test_the_way_for_everything_else_says_so_in_every_form() -> None:
    assert [edge.label for edge in picture(LOOP).edges if edge.to == "draft"] == ["otherwise"]
    assert ">otherwise</text>" in render_svg(picture(LOOP))


NAMED = [LOOP, "steps: [{shell: a}]\n", "tasks: [{id: a, description: d}]\n"]


@pytest.mark.parametrize("text", NAMED)
def test_a_picture_is_called_what_its_author_called_the_flow(text: str) -> None:
    assert [picture(one).title for one in (text, f"name: live flow\n{text}")] == [
        "flow",
        "live flow",
    ]


ITEMS = [
    # items                what is shown of the task
    ("[x, y]",             "each of a list: say {w}"),
    ("words",              "each of words: say {w}"),
    ("{task: plan}",       "each of plan: say {w}"),
]  # fmt: skip


@pytest.mark.parametrize(("items", "about"), ITEMS)
def test_a_task_that_is_done_for_each_item_is_drawn_as_such(items: str, about: str) -> None:
    tasks = "tasks: [{id: plan, description: p}, {id: m, description: 'say {w}'}]\n"
    made = picture(f"{tasks}map: {{items: {items}, as: w, task: m}}\n")
    assert [(node.shape, node.about) for node in made.nodes] == [("task", "p"), ("foreach", about)]


OTHERS = [
    # file                                                                       nodes              edges
    ("setup: [{shell: a}]\nmap: {input: x, steps: [{shell: b}, {shell: c}]}",     ["setup", "map"],  [("setup", "map")]),
    ("- shell: echo\n- {id: two, tool: x/y}",                                     ["0", "two"],      [("0", "two")]),
    ("tasks: [{name: a, description: d}, {name: b, description: e}]",             ["a", "b"],        [("a", "b")]),
    ("tasks: [{name: a, description: d}, {name: b, description: e}, {name: c, description: f, context: [a, b]}]",
     ["a", "b", "c"], [("a", "c"), ("b", "c")]),
    ("workflow: parallel\ntasks: [{id: a, name: A, description: d}, {id: b, description: e}]", ["a", "b"], []),
    ("tasks: [{id: plan, description: d}, {id: m, description: e}, {id: r, description: f}]\n"
     "map: {items: {task: plan}, task: m, reduce: r}", ["plan", "m", "r"], [("plan", "m"), ("m", "r")]),
    ("workflow: hierarchical\nagents: {w: {role: writer}}\n"
     "tasks: [{id: a, description: d, agent: w}, {id: b, description: e, agent: {role: artist}}]",
     ["manager", "writer", "artist"], [("manager", "writer"), ("manager", "artist")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "nodes", "edges"), OTHERS)
def test_workflows_and_ensembles_are_drawn_too(
    text: str, nodes: list[str], edges: list[tuple[str, str]]
) -> None:
    made = picture(text)
    assert [node.name for node in made.nodes] == nodes
    assert [(edge.start, edge.to) for edge in made.edges] == edges


PHASES = [
    # the steps of a phase                               what is reported
    ("[{shell: make test}]",                              "make test"),
    ("[{shell: make}, {name: look, tool: a/b}, {test: {}}]", "3 steps: make, look, test"),
    ("[{shell: make}, {shell: 'cat report.md | mail ada'}]", "2 steps: make, cat report.md | ma…"),
    ("[]",                                                ""),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "about"), PHASES)
def test_a_phase_says_what_its_steps_do(steps: str, about: str) -> None:
    (phase,) = picture(f"map: {{input: [a], steps: {steps}}}\n").nodes
    assert phase.about == about


REVISED = """\
tasks: [{id: plan, description: p}, {id: draft, description: d}, {id: review, description: r}]
loops: [{tasks: [draft, review], until: {path: data.good, value: true}}]
"""


def test_a_loop_of_tasks_is_drawn_and_counted() -> None:
    visits = [("plan", False), *[("draft", False), ("review", False)] * 3]
    assert drawn(mark_tasks(picture(REVISED), visits)) == [
        "flow",
        "● plan    task p   1 visit",
        "  └──▶ draft",
        "● draft   task d   3 visits",
        "  └──▶ review ×3",
        "● review  task r   3 visits",
        "  └─ again until data.good = true ─▶ draft ↑ ×2",
    ]


def finished(path: str, title: str, outcome: Outcome | None = None) -> StepFinished:
    return StepFinished(path, "agent", title, "", outcome or Succeeded({}), 0.1)


def test_the_tasks_that_were_done_and_the_work_of_a_manager_are_marked() -> None:
    journal = MemoryJournal()
    call = "tasks/manager/turn:1.call:1"
    journal.append(
        finished(f"{call}/work", "writer", Failed(Failure("no"))),
        finished(f"{call}/work", "writer"),
        finished(call, "delegate"),
        finished("tasks/manager/turn:2.call:1/work", "writer"),
        finished("tasks/manager", "boss"),
    )
    managed = picture(
        "workflow: hierarchical\nagents: {w: {role: writer}}\ntasks: [{id: a, description: d, agent: w}]"
    )
    assert drawn(mark_tasks(managed, task_visits(journal))) == [
        "flow",
        "● manager  task delegates: a   1 visit",
        "  └──▶ writer ×2",
        "● writer   task worker   2 visits",
    ]
    other = MemoryJournal()
    other.append(
        finished("tasks/task:a", "A"),
        finished("tasks/map:m/item:0", "m"),
        finished("tasks/map:m/item:1", "m"),
        finished("tasks/loop:x/round:1/task:b", "b"),
    )
    assert task_visits(other) == [("a", False), ("m", False), ("m", False), ("b", False)]


@st.composite
def pictures(draw: st.DrawFn) -> Diagram:
    count = draw(st.integers(1, 14))
    names = [f"n{at}" for at in range(count)]
    pairs = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=25))
    labels = draw(
        st.lists(st.sampled_from(["", "<&>'\"", "state.x = 1"]), min_size=25, max_size=25)
    )
    edges = [
        DiagramEdge(one, other, label) for (one, other), label in zip(pairs, labels, strict=False)
    ]
    return Diagram(
        'a <picture> & "more"', tuple(DiagramNode(name, "tool") for name in names), tuple(edges)
    )


@settings(max_examples=examples(60), deadline=None)
@given(made=pictures())
def test_every_arrow_leads_down_or_is_known_to_lead_back_and_every_box_has_one_place(
    made: Diagram,
) -> None:
    layout = laid_out(made)
    level = {name: at for at, layer in enumerate(layout.layers) for name in layer}
    assert sum(len(layer) for layer in layout.layers) == len(level)
    assert {node.name for node in made.nodes} <= level.keys()
    for at, edge in enumerate(made.edges):
        if at in layout.back:
            assert level[edge.to] <= level[edge.start]
        else:
            levels = [level[name] for name in layout.routes[at]]
            assert levels == list(range(level[edge.start], level[edge.to] + 1))


@settings(max_examples=examples(40), deadline=None)
@given(made=pictures())
def test_a_picture_is_whole_xml_without_scripts_and_its_boxes_do_not_overlap(made: Diagram) -> None:
    written = render_svg(made)
    root = ElementTree.fromstring(written)
    assert "script" not in written
    space = "{http://www.w3.org/2000/svg}"
    nodes = [
        tuple(float(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{space}rect")
        if "box" in (rect.get("class") or "")
    ]
    assert len(nodes) == len(made.nodes)
    for at, (x, y, width, height) in enumerate(nodes):
        for x2, y2, width2, height2 in nodes[at + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y


def test_the_command_draws_files_and_runs_and_show_marks_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = graph_place(tmp_path, monkeypatch)
    flow = """\
start: a
state: {n: 0}
nodes:
  a: {tool: demo/add, params: {n: "${state.n}"}, assign: {n: "${result.n}"}, next: [{to: a, when: "${state.n} < 2"}, {to: b}]}
  b: {return: "${inputs.secret}"}
"""
    run = place.done(flow, inputs={"secret": "hunter2-hunter2"}).result.run
    assert place.plait("graph", "flow.yaml").stdout.startswith("flow\n▷ a  tool demo/add\n")
    marked = place.plait("graph", "--run", run).stdout
    assert "● a  tool demo/add   2 visits\n" in marked
    assert marked.rstrip("\n").replace("\n", "\n  ") in place.plait("show", run).stdout
    assert place.plait("graph", "--run", run, "--svg", "out.svg").stdout == "wrote out.svg\n"
    svg = place.text("out.svg")
    assert re.search(r'class="count"[^>]*>2<', svg)
    assert "hunter2" not in svg
    refused = place.plait("graph", "flow.yaml", "--svg", "no/such/folder.svg")
    assert refused.returncode == 2
    assert "the diagram cannot be written" in refused.stderr


def test_the_head_of_an_arrow_has_the_colour_of_its_line() -> None:
    lines = render_svg(
        mark_visits(picture(LOOP), [("draft", False), ("check", False), ("done", False)])
    ).splitlines()
    heads = {
        re.sub("<.*?>", "", line): match[1]
        for line in lines
        if (match := re.search(r"url\(#([a-z-]*)\)", line))
    }
    assert heads == {
        "draft → check": "tip-was",
        "draft → stop: on error": "tip-error",
        "check → done: state.n ≥ 3 and not (state.bad =)": "tip-was",
        "check → draft: otherwise": "tip",
    }


def test_what_is_written_at_an_arrow_covers_every_line() -> None:
    svg = render_svg(picture(LOOP))
    at, last = svg.index(">on error<"), svg.rindex('class="edge')
    assert at > last
    assert re.search(r'<rect class="page" [^>]*/>\n<text class="label"[^>]*>on error<', svg)


ENDED_MAPS = [
    # failed, total    the sign of its node
    (0, 2,             "●"),
    (1, 2,             "●"),
    (2, 2,             "✗"),
    (0, 0,             "●"),
]  # fmt: skip


@pytest.mark.parametrize(("failed", "total", "sign"), ENDED_MAPS)
def test_a_map_has_failed_in_a_diagram_if_all_its_items_did(
    failed: int, total: int, sign: str, tmp_path: Path
) -> None:
    flow = tmp_path / "flow.yaml"
    flow.write_text("map: {input: [1, 2], steps: [{shell: echo}]}\n")
    journal = MemoryJournal()
    counts: dict[str, Json] = {"failed": failed, "total": total}
    journal.append(StepFinished("map", "map", "map", "", Succeeded(counts), 0.1))
    assert drawn(run_diagram(str(flow), journal))[1][0] == sign


RUNNING = [
    # flow
    #   steps that have ended, steps that run
    #   the nodes that run, with their visits; the edges that were taken
    ("start: a\nnodes: {a: {shell: x, next: b}, b: {shell: y, on_error: a}}\n",
     ["nodes/a", "nodes/b"], ["nodes", "nodes/a@2", "nodes/a@2/call"],
     {"a": 2}, ["a → b", "b → a"]),
    ("start: a\nnodes: {a: {shell: x}}\n", [], ["nodes", "nodes/a"], {"a": 1}, []),
    ("tasks: [{id: a, description: d}, {id: b, description: d}]\n",
     ["tasks/task:a"], ["tasks", "tasks/task:b", "tasks/task:b/turn:1"], {"b": 1}, ["a → b"]),
    ("steps: [{shell: x}, {id: b, shell: y}]\n", ["steps/0"], ["steps", "steps/b"], {"b": 1}, ["0 → b"]),
    ("setup: [{shell: x}]\nmap: {input: [1, 2], steps: [{shell: y}]}\n",
     ["setup"], ["map", "map/item:0", "map/item:1"], {"map": 1}, ["setup → map"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "ended", "running", "now", "taken"), RUNNING)
def test_what_runs_now_is_marked_and_the_way_to_it(
    text: str,
    ended: list[str],
    running: list[str],
    now: dict[str, int],
    taken: list[str],
    tmp_path: Path,
) -> None:
    flow = tmp_path / "flow.yaml"
    flow.write_text(text)
    journal = MemoryJournal()
    for path in ended:
        failure = Failed(Failure("no")) if path == "nodes/b" else Succeeded({})
        journal.append(StepFinished(path, "step", "", "", failure, 0.1))
    steps = [RunningStep(path, "step", "", 0.0) for path in running]
    diagram = run_diagram(str(flow), journal, steps)
    assert {node.name: node.visits for node in diagram.nodes if node.running} == now
    assert [f"{edge.start} → {edge.to}" for edge in diagram.edges if edge.taken] == taken
    svg = render_svg(diagram)
    assert (svg.count(' now"'), svg.count("; runs now<")) == (len(now), len(now))
