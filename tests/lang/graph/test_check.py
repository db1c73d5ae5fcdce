"""What is wrong with a graph is found before anything runs: all of it, at its place, with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from lang.loading import load_file
from plait.core.documents import parse
from plait.core.errors import InputError
from plait.lang.graph.check import check_graph
from plait.schema import GRAPH, record_types_in
from plait.schema.json_schema import json_schema
from plait.schema.reference import render_reference

BROKEN = """\
start: strat
max_step: 5
nodes:
  start:
    tool: demo/add
    params: {n: "${state.cuont} ${inputs.q} ${result.x}"}
    assign: {count: "${result.n}"}
    next:
      - {to: check, when: {path: state.count, operator: gte, value: 3}}
      - {to: check, when: {path: state.count, op: neq, value: 3}}
      - {to: nowhere}
      - {to: end}
    on_error: mned
  check: {type: foreach, tool: demo/add, next: end}
  mend: {type: return, output: 1, next: end}
  end: {tmeout: 3}
"""


def found(text: str) -> list[str]:
    findings = check_graph(parse(text, "graph.yaml"))
    return [
        f"{one.problem.place[1]}:{one.problem.place[2]} {one.severity} {one.code}: {one.problem.what}"
        for one in findings
    ]


def test_everything_that_is_wrong_is_found_at_once() -> None:
    assert found(BROKEN) == [
        "1:8 error unknown-node: 'start' leads to 'strat', but this graph has no such node",
        "2:1 error unknown-field: 'max_step' is not a field of a graph",
        "6:18 warning unknown-name: nothing assigns 'state.cuont', so it stays empty",
        "6:45 error unknown-name: 'result' is the result of a node's action: it exists in its assign and next",
        "9:57 error condition: 'operator' is not a field of a condition",
        "10:51 error condition: there is no operator 'neq'",
        "11:14 error unknown-node: 'to' leads to 'nowhere', but this graph has no such node",
        "12:10 warning unreachable: the edge before this one is always taken, so this one never is",
        "13:15 error unknown-node: 'on_error' leads to 'mned', but this graph has no such node",
        "14:11 error missing-field: a foreach needs 'over': the items",
        "15:35 error misplaced-field: 'next' has no meaning in a return: it belongs to a node that leads on",
        "16:9 error unknown-field: 'tmeout' is not a field of a node",
    ]


def test_an_error_says_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text("start: draft\nnodes:\n  draft: {next: reviw}\n  review: {}\n")
    with pytest.raises(InputError) as caught:
        load_file(str(file), environ={})
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "graph.yaml:3:17: 'next' leads to 'reviw', but this graph has no such node\n"
        "3 |   draft: {next: reviw}\n"
        "  |                 ^^^^^\n"
        "fix: did you mean 'review'? nodes: draft, review"
    )


def test_the_error_of_an_unknown_variable_of_a_graph_shows_how_an_input_is_written() -> None:
    document = parse("start: a\nnodes: {a: {return: '${foo}'}}", "graph.yaml")
    assert [finding.problem.fix for finding in check_graph(document)] == [
        "known in graph: state, inputs, result, _now, _timestamp, env, uuid; an input is 'inputs.foo'"
    ]


ROWS = [
    # nodes and head                                                            findings
    ("start: a\nnodes: {a: {}}",                                                []),
    ("nodes: {a: {}}",                       ["missing-field: a graph needs 'start': its first node"]),
    ("start: a\nnodes: {a: {}, b: {}}",                                ["unreachable: no edge leads to node 'b'"]),
    ("start: a\nnodes: {a: {}}\nconfig: {start: a, nodes: {a: {}}}",
     ["contradiction: a graph is at the top of a file or below config, not both"]),
    ("start: a\nnodes: {a: {type: action}}",                  ["missing-field: node 'a' needs 'tool' or 'shell': what it does"]),
    ("start: a\nnodes: {a: {type: gate, tool: x}}",
     ["misplaced-field: 'tool' has no meaning in a gate: it belongs to an action"]),
    ("start: a\nnodes: {a: {type: gait}}",       ["wrong-type: 'type' must be one of action, gate, return, foreach"]),
    ("start: a\nnodes: {a: {over: [1], tool: x, as: state}}",
     ["shadowed-name: 'state' is a name of every graph, so no item can have it"]),
    ("start: a\nnodes: {a: {tool: x, remote: y}}",                       ["refused-field: 'remote' does not exist here"]),
    ("permissions: [x]\nstart: a\nnodes: {a: {}}",
     ["no-effect: 'permissions' has no effect here: trust decides which tools run"]),
    ("start: a\nnodes: {a: {tool: x, action: {tool: y}}}", ["contradiction: 'tool' and 'action' are both actions"]),
    ("start: a\nnodes: {a: {tool: x, params: {v: '${sate.n}'}}}", ["unknown-name: unknown variable 'sate.n'"]),
    ("inputs: [q]\nstart: a\nnodes: {a: {return: '${q} ${inputs.q}'}}", ["unknown-name: unknown variable 'q'"]),
    ("inputs: [q]\nstart: a\nnodes: {a: {return: '${q | upper} ${q:-x}'}}", ["unknown-name: unknown variable 'q'"]),
    ("inputs: [q]\nstart: a\nnodes: {a: {return: '${inputs.qq}'}}",          ["unknown-input: unknown input 'qq'"]),
    ("config_schema: {properties: {q: {}}}\nstart: a\nnodes: {a: {return: '${inputs.qq}'}}",
     ["unknown-input: unknown input 'qq'"]),
    ("start: a\nnodes: {a: {next: [{to: a, when: {path: stat.n, value: 1}}]}}",  ["unknown-name: unknown variable 'stat.n'"]),
    ("start: a\nnodes: {a: {next: [{to: a, when: '${state.n} >'}]}}",  2),
    ("start: a\nstate: {n: 1}\nnodes: {a: {next: [{to: a, when: '${state.n} == 1'}]}}",  []),
    ("start: a\nnodes: {a: {over: [1], tool: x, params: {v: '${item}'}, collect: c, next: b}, b: {return: '${state.c}'}}", []),
    ("start: a\nnodes: {a: {return: '${state.x:-none} ${state._last_error}'}}",  []),
    ("start: a\nnodes: {a.b: {}, a: {tool: x, assign: {y: '${result.z}'}, next: a.b}}", []),
    ("hooks: [{id: h, event: after_stp, verb: fail}]\nstart: a\nnodes: {a: {}}", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ROWS)
def test_a_graph_is_checked(text: str, expected: list[str] | int) -> None:
    messages = [line.split(" ", 2)[2] for line in found(text)]
    assert (len(messages) if isinstance(expected, int) else messages) == expected


def test_the_page_of_graphs_has_the_tables_of_the_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text("utf-8")
    _, _, tables = page.partition("## All maps and their fields\n\n")
    named = ["graph", "graph_body", "node", "action", "edge"]
    for name in named:
        assert name in {form.name for form in record_types_in(GRAPH)}
    wanted = {part.split("\n", 1)[0]: part for part in render_reference(GRAPH).split("\n\n### ")}
    shown = {
        part.split("\n", 1)[0].removeprefix("### "): part
        for part in tables.rstrip().split("\n\n### ")
    }
    assert list(shown) == named
    assert {name: shown[name].removeprefix("### ") for name in named} == {
        name: wanted[name].removeprefix("### ") for name in named
    }


def test_the_schema_of_graphs_accepts_the_example_and_refuses_a_slip() -> None:
    import jsonschema_rs

    asked = jsonschema_rs.validator_for(json_schema("graph"))
    example = Path(__file__).parents[3] / "examples" / "triage-graph" / "flow.yaml"
    graph = parse(example.read_text("utf-8"), "flow.yaml").data()
    assert isinstance(graph, dict)
    assert asked.is_valid(graph)
    assert not asked.is_valid({**graph, "max_step": 3})
