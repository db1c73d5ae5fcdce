"""Graphs in real runs: edges, state, loops, errors, limits, tools that are graphs, kills and resumes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lang.graph.graphs import graph_place, graph_tool, tool, trusted
from plait.app import api as app
from plait.core.errors import InputError, TrustError
from plait.engine.events import StepFinished, StepRetrying
from plait.engine.outcome import Succeeded
from runs.stories import Place
from share import examples


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return graph_place(tmp_path, monkeypatch)


def path_of(ran: Any) -> list[str]:
    """The nodes in the order of their visits."""
    return [
        event.path.removeprefix("nodes/")
        for event in ran.events
        if isinstance(event, StepFinished) and event.path.count("/") == 1
    ]


# ── the way through ──────────────────────────────────────────────────────

COUNTING = """\
start: add
state: {n: 0}
nodes:
  add:
    tool: demo/add
    params: {n: "${state.n}"}
    assign: {n: "${result.n}"}
    next:
      - {to: add, when: {path: state.n, op: lt, value: 3}}
      - {to: odd, when: "${state.n} == 4"}
      - to: done
  odd: {next: done}
  done: {type: return, output: {n: "${state.n}", text: "n=${state.n}"}}
"""


def test_the_first_edge_that_is_open_is_followed_and_one_without_a_condition_always_is(
    place: Place,
) -> None:
    ran = place.done(COUNTING)
    assert path_of(ran) == ["add", "add@2", "add@3", "done"]
    assert ran.value == {"output": {"n": 3, "text": "n=3"}, "state": {"n": 3}, "steps": 4}


ENDS = [
    # nodes                                                                    output
    ("{a: {assign: {x: 1}}}",                                                  {"x": 1}),
    ("{a: {assign: {x: 1}, next: b}, b: {output: '${state.x}'}}",              1),
    ("{a: {type: return}}",                                                    None),
    ("{a: {return: [1, '${state.x}']}}",                                       [1, ""]),
    ("{a: {assign: {x: 2}, next: [{to: a, when: {path: state.x, value: 3}}]}}", {"x": 2}),
    ("{a: {assign: {x: 2}, next: {to: b}}, b: {assign: {y: '${state.x}'}}}",    {"x": 2, "y": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "output"), ENDS)
def test_a_node_that_leads_nowhere_is_the_end_and_that_is_success(
    nodes: str, output: Any, place: Place
) -> None:
    assert place.done(f"start: a\nnodes: {nodes}\n").value["output"] == output


def test_all_assignments_of_a_node_see_the_state_before_it_and_its_edges_the_state_after(
    place: Place,
) -> None:
    swap = """\
start: a
state: {x: 1, y: 2}
nodes:
  a:
    assign: {x: "${state.y}", y: "${state.x}"}
    next: [{to: b, when: {all: [{path: state.x, value: 2}, {path: state.y, value: 1}]}}]
  b: {return: yes}
"""
    assert place.done(swap).value == {"output": "yes", "state": {"x": 2, "y": 1}, "steps": 2}


def test_a_visit_records_what_it_added_and_never_the_whole_state(place: Place) -> None:
    nodes = {
        f"n{at}": {"assign": {f"k{at}": "x" * 100}, "next": f"n{at + 1}"} for at in range(200)
    } | {"n200": {}}
    ran = place.done(json.dumps({"start": "n0", "nodes": nodes}))
    values = [
        e.outcome.value
        for e in ran.events
        if isinstance(e, StepFinished) and "/" in e.path and isinstance(e.outcome, Succeeded)
    ]
    assert values[150] == {"assign": {"k150": "x" * 100}, "next": "n151"}
    assert max(len(json.dumps(value)) for value in values) < 200
    assert len(ran.value["state"]) == 200


def test_the_time_is_recorded_with_what_was_made_of_it(place: Place) -> None:
    clock = """\
start: a
nodes:
  a: {assign: {at: "${_now}", ms: "${_timestamp}"}, next: b}
  b: {tool: demo/flaky, params: {good: 2}, next: c}
  c: {return: ["${state.at}", "${state.ms}"]}
"""
    first = place.run(clock)
    assert first.result.status == "failed"
    outcome = first.finished["nodes/a"].outcome
    assert isinstance(outcome, Succeeded)
    recorded = outcome.value["assign"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", recorded["at"])
    again = place.resume(first.result.run)
    assert again.value["output"] == [recorded["at"], recorded["ms"]]


def test_two_runs_of_one_graph_in_one_second_do_not_collide(place: Place) -> None:
    runs = {place.done(COUNTING).result.run for _ in range(3)}
    assert len(runs) == 3


# ── values ───────────────────────────────────────────────────────────────

WHOLE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
    | st.sampled_from(["${state.x}", "{input:q}", "${HOME}", "{param}", "$(id)", "$${a}", "{{a}}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=examples(25), deadline=None)
@given(value=WHOLE.filter(lambda value: value is not None))
def test_a_value_arrives_at_the_tool_and_in_the_state_as_it_is(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = graph_place(tmp_path_factory.mktemp("graph"), patch)
        flow = {
            "start": "keep",
            "nodes": {
                "keep": {"assign": {"v": {"kept": "${inputs.v}"}}, "next": "a"},
                "a": {
                    "tool": "demo/echo",
                    "params": {"list": ["${state.v.kept}"], "given": ["${inputs.v}"]},
                    "assign": {"back": "${result.got.list}", "given": "${result.got.given}"},
                },
            },
        }
        ran = place.done(json.dumps(flow), inputs={"v": value})
        assert ran.value["state"] == {"v": {"kept": value}, "back": [value], "given": [value]}


UNWRAPPED: list[tuple[Any, str, Any]] = [
    # what the tool gives                                   what the node assigns     expected
    ({"n": 1, "path": "p", "source": "s", "chain": [1], "metadata": {}}, "${result}", None),
    (None,                                                  "${result}",              {}),
    ([1, 2],                                                "${result.result}",       [1, 2]),
    (7,                                                     "${result.result}",       7),
    (7,                                                     "${result.stdout}",       7),
    (True,                                                  "${result.stdout}",       True),
    ("text",                                                "${result.stdout}",       "text"),
    ("text",                                                "${result.result}",       "text"),
    ("line\n\n",                                            "${result.stdout}",       "line"),
    ("line\n\n",                                            "${result.result}",       "line"),
    ({"stdout": "a\n", "stderr": "b\n", "n": "c\n"},         "${result}",  {"stdout": "a", "stderr": "b", "n": "c\n"}),
    ({"result": 5},                                         "${result.result}",       5),
]  # fmt: skip


@pytest.mark.parametrize(("given_back", "template", "expected"), UNWRAPPED)
def test_a_result_is_unwrapped_without_losing_fields_of_the_tools_own(
    given_back: Any, template: str, expected: Any, place: Place
) -> None:
    flow = {
        "start": "a",
        "nodes": {
            "a": {
                "tool": "demo/give",
                "params": {"value": "${inputs.v}"},
                "assign": {"r": template},
            }
        },
    }
    tool(place, "demo/give", "def execute(params, project_path):\n    return params.get('value')\n")
    ran = place.done(json.dumps(flow), inputs={"v": given_back})
    assert ran.value["state"]["r"] == (given_back if expected is None else expected)


def test_null_parameters_are_left_out_at_any_depth_and_a_missing_name_is_empty_with_one_note(
    place: Place,
) -> None:
    flow = """\
start: a
state: {none: null, name: x, deep: {b: 1}}
nodes:
  a:
    tool: demo/echo
    params: {gone: "${state.none}", in: {gone: "${state.none}", stays: 1}, list: ["${state.none}"],
             miss: "${state.deep.c}", mixed: "<${state.deep.c}>"}
    assign: {got: "${result.got}"}
    next: [{to: a, when: "${state.got.again}"}]
"""
    ran = place.done(flow)
    assert ran.value["state"]["got"] == {
        "in": {"stays": 1},
        "list": [None],
        "miss": "",
        "mixed": "<>",
    }
    assert [note.partition("flow.yaml:")[2] for note in ran.notes] == [
        "7:21: there is no variable 'state.deep.c', so it stays empty; did you mean 'state.deep.b'?",
        "7:48: there is no variable 'state.deep.c', so it stays empty; did you mean 'state.deep.b'?",
    ]


def test_strictly_a_missing_name_is_a_failure_of_its_node(place: Place) -> None:
    ran = place.run(
        "start: a\nstate: {x: {}}\nnodes: {a: {assign: {y: '${state.x.z}'}}}\n", strict=True
    )
    assert "unknown variable 'state.x.z'" in ran.message


# ── what it is given ─────────────────────────────────────────────────────

TYPED = """\
inputs: {n: integer, mode: {choices: [fast, slow], default: fast}, tags: {type: array, default: []}}
start: a
nodes: {a: {return: ["${inputs.n}", "${inputs.mode}", "${inputs.tags}"]}}
"""
SCHEMA = """\
config_schema:
  properties: {n: {type: integer, minimum: 1}, mode: {enum: [fast, slow], default: fast}, tags: {default: []}}
  required: [n]
start: a
nodes: {a: {return: ["${inputs.n}", "${inputs.mode}", "${inputs.tags}"]}}
"""


@pytest.mark.parametrize("flow", [TYPED, SCHEMA])
def test_inputs_have_types_and_defaults_and_are_checked_before_anything_runs(
    flow: str, place: Place
) -> None:
    assert place.done(flow, inputs={"n": "3"}).value["output"] == [3, "fast", []]
    for folder in (place.root / ".ai" / "state" / "runs").iterdir():
        for file in sorted(folder.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        folder.rmdir()
    assert "parameter 'n' is missing" in place.refusal(flow)
    assert "'n' must be a whole number" in place.refusal(flow, inputs={"n": "x"})
    assert "mode" in place.refusal(flow, inputs={"n": 1, "mode": "odd"})


def test_a_variable_that_the_environment_lacks_keeps_the_graph_from_beginning(place: Place) -> None:
    flow = "start: a\nenv_requires: [NO_SUCH]\nnodes: {a: {env_requires: [NOR_THIS, HOME]}}\n"
    assert "the environment has no NO_SUCH, NOR_THIS, but the graph needs it" in place.refusal(flow)


# ── loops ────────────────────────────────────────────────────────────────

EACH = """\
start: each
state: {{k: 10, items: [1, 2, 3, 4]}}
nodes:
  each:
    over: "${{state.items}}"
    as: one
    tool: demo/add
    params: {{n: "${{one}}", by: "${{state.k}}"}}
    collect: sums
    assign: {{count: "${{result.total}}", bad: "${{result.failed}}"}}
    parallel: {parallel}
    max_concurrency: 3
"""


@pytest.mark.parametrize("parallel", ["false", "true"])
def test_items_see_the_state_also_in_parallel_and_are_collected_in_order(
    parallel: str, place: Place
) -> None:
    ran = place.done(EACH.format(parallel=parallel))
    assert ran.value["state"]["sums"] == [{"n": 11}, {"n": 12}, {"n": 13}, {"n": 14}]
    assert (ran.value["state"]["count"], ran.value["state"]["bad"]) == (4, 0)


def test_an_item_that_fails_is_a_failure_of_the_node(place: Place) -> None:
    flow = EACH.format(parallel="true").replace("[1, 2, 3, 4]", "[1, bad, 3]")
    ran = place.run(flow)
    assert ran.result.status == "failed"
    assert ran.message.startswith("node 'each': 1 of 3 items failed; item 1: demo/add: ")


def test_where_the_graph_goes_on_a_failing_item_stays_in_its_place_and_is_reported(
    place: Place,
) -> None:
    flow = "on_error: continue\n" + EACH.format(parallel="false").replace(
        "[1, 2, 3, 4]", "[1, bad, 3]"
    )
    ran = place.done(flow)
    first, failed, last = ran.value["state"]["sums"]
    assert (first, last) == ({"n": 11}, {"n": 13})
    assert (failed["status"], failed["index"]) == ("error", 1)
    assert ran.value["state"]["bad"] == 1
    assert "node 'each': 1 of 3 items failed" in ran.notes


@pytest.mark.parametrize("over", ["${state.gone}", "${state.k}", "text"])
def test_a_foreach_over_what_is_no_list_fails(over: str, place: Place) -> None:
    ran = place.run(EACH.format(parallel="false").replace("${state.items}", over))
    assert ran.message == "node 'each': foreach needs a list, but 'over' is not a list"


# ── errors ───────────────────────────────────────────────────────────────


def test_an_error_leads_to_the_node_that_was_named_for_it(place: Place) -> None:
    flow = """\
start: a
nodes:
  a: {tool: demo/fail, on_error: mend, next: b, assign: {x: 1}}
  b: {return: never}
  mend: {return: "${state._last_error}"}
"""
    ran = place.done(flow)
    assert {name: ran.value["output"][name] for name in ("node", "kind")} == {
        "node": "a",
        "kind": "failed",
    }
    assert "no luck" in ran.value["output"]["error"]
    assert ran.value["errors"] == [ran.value["output"]]


def test_a_graph_that_goes_on_assigns_nothing_and_follows_the_edges(place: Place) -> None:
    flow = """\
start: a
on_error: continue
nodes:
  a: {tool: demo/fail, assign: {x: 1}, next: [{to: b, when: {path: result.status, value: error}}, {to: c}]}
  b: {return: "${state}"}
  c: {return: never}
"""
    ran = place.done(flow)
    assert list(ran.value["output"]) == ["_last_error"]
    assert ran.failed == ["nodes/a/call", "nodes/a"]


WRONG_BEHIND = """\
start: a
state: {n: x}
nodes:
  a: {tool: demo/flaky, params: {good: 1}, retry: {attempts: 3, initial_delay: 0s}, next: [{to: b, when: {path: state.n, op: gt, value: 3}}]}
  b: {return: ok}
"""


def test_a_call_is_not_made_again_because_of_what_follows_it(place: Place) -> None:
    run = place.run(WRONG_BEHIND).result.run
    assert place.text("tries") == "x"
    place.resume(run)
    assert place.text("tries") == "x"
    place.write("flow.yaml", WRONG_BEHIND.replace("op: gt, value: 3", "value: x"))
    assert place.resume(run).value["output"] == "ok"
    assert place.text("tries") == "x"


EDITED_BEHIND = [
    # node                                                                                      what is edited
    ("a: {tool: demo/flaky, params: {good: 1}, assign: {t: 'n${result.tries}'}, next: b}",       ("'n${", "'m${"),    "m1"),
    ("a: {type: foreach, over: [1], tool: demo/flaky, params: {good: 1}, collect: t, next: b}",  ("collect: t", "assign: {t: 'm${result.results[0].tries}'}"), "m1"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "edit", "output"), EDITED_BEHIND)
def test_a_call_that_was_made_is_kept_when_what_follows_it_in_its_node_is_edited(
    place: Place, node: str, edit: tuple[str, str], output: str
) -> None:
    flow = f"start: a\nnodes:\n  {node}\n  b: {{return: '${{state.t}}'}}\n"
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace(*edit))
    with pytest.raises(InputError, match="has changed"):
        place.resume(run)
    assert place.resume(run, accept_changes=True).value["output"] == output
    assert place.text("tries") == "x"
    place.write("flow.yaml", flow.replace(*edit).replace("good: 1", "good: 2"))
    assert place.resume(run, accept_changes=True).value["output"].startswith("m")
    assert place.text("tries") == "xx"


def test_a_node_that_was_visited_and_has_another_name_now_is_noticed_before_anything_runs(
    place: Place,
) -> None:
    flow = (
        "start: a\nnodes:\n  a: {tool: demo/flaky, params: {good: 1}, next: b}\n  b: {return: ok}\n"
    )
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("start: a", "start: c").replace("  a:", "  c:"))
    with pytest.raises(InputError, match=r"/a \(.*, removed\)"):
        place.resume(run)
    assert place.text("tries") == "x"
    assert place.resume(run, accept_changes=True).value["output"] == "ok"
    assert place.text("tries") == "xx"
    assert place.resume(run).value["output"] == "ok"


def test_a_failure_from_which_the_graph_went_on_is_not_repeated_by_a_resume(place: Place) -> None:
    flow = """\
start: a
nodes:
  a: {tool: demo/flaky, params: {good: 99}, on_error: b}
  b: {tool: demo/flaky, params: {good: 3}, next: c}
  c: {return: ok}
"""
    first = place.run(flow)
    assert (first.failed, place.text("tries")) == (["nodes/a", "nodes/b", "nodes"], "xx")
    assert place.resume(first.result.run).value["output"] == "ok"
    assert place.text("tries") == "xxx"


def test_a_node_is_tried_as_often_as_its_retry_says(place: Place) -> None:
    flow = "start: a\nnodes: {a: {tool: demo/flaky, params: {good: 3}, assign: {t: '${result.tries}'}, RETRY}}\n"
    retry = "retry: {attempts: 3, initial_delay: 0}"
    assert place.done(flow.replace("RETRY", retry)).value["state"] == {"t": 3}


def test_a_condition_that_cannot_compare_is_a_failure_of_its_node_with_a_place(
    place: Place,
) -> None:
    flow = """\
start: a
state: {x: text}
nodes:
  a: {next: [{to: b, when: {path: state.x, op: gt, value: 3}}], on_error: c}
  b: {}
  c: {return: "${state._last_error.kind}"}
"""
    assert place.done(flow).value["output"] == "refused"


# ── limits ───────────────────────────────────────────────────────────────


def test_max_steps_ends_it_with_what_it_has_made_and_more_of_them_let_it_go_on(
    place: Place,
) -> None:
    ran = place.run("max_steps: 2\n" + COUNTING)
    assert ran.result.failure is not None
    assert (ran.result.failure.kind, ran.message) == (
        "limit",
        "graph 'flow' has reached its limit of 2 steps (2 used)",
    )
    assert ran.result.failure.output == {
        "output": None,
        "state": {"n": 2},
        "steps": 2,
        "ended": "limit",
    }
    place.write("flow.yaml", "max_steps: 9\n" + COUNTING)
    again = place.resume(ran.result.run)
    assert again.value["output"]["n"] == 3
    assert [e.path for e in again.events if isinstance(e, StepFinished) and e.replayed] == [
        "nodes/add",
        "nodes/add@2",
    ]


def test_a_limit_of_steps_counts_those_of_graphs_inside(place: Place) -> None:
    graph_tool(place, "my/inner", "start: a\nnodes: {a: {next: b}, b: {next: c}, c: {}}\n")
    trusted(place)
    outer = "limits: {steps: 3}\nstart: a\nnodes: {a: {tool: my/inner, next: b}, b: {}}\n"
    ran = place.run(outer)
    assert ran.result.failure is not None
    assert (ran.result.failure.kind, "limit of 3 steps" in ran.message) == ("limit", True)


def test_a_graph_that_calls_itself_ends_at_the_limit_of_depth(place: Place) -> None:
    graph_tool(place, "my/self", "start: a\nnodes: {a: {tool: my/self}}\n")
    trusted(place)
    ran = place.run("limits: {depth: 2}\nstart: a\nnodes: {a: {tool: my/self}}\n")
    assert ran.message.endswith("has reached its limit of 2 depth (3 used)")
    without = place.run("start: a\nnodes: {a: {tool: my/self}}\n")
    assert without.message.endswith("more than 16 flows are nested")


# ── calls that are made once ─────────────────────────────────────────────

CACHED = """\
start: a
nodes: {a: {tool: demo/ledger, params: {line: "${inputs.line}"}, cache_result: true, assign: {r: "${result}"}}}
"""


def test_an_equal_call_is_made_once_in_a_project_until_the_tool_changes(place: Place) -> None:
    for _ in range(2):
        assert place.done(CACHED, inputs={"line": "x"}).value["state"] == {"r": {"line": "x"}}
    assert place.text("ledger") == "x\n"
    place.done(CACHED, inputs={"line": "y"})
    assert place.text("ledger") == "x\ny\n"
    path = place.root / ".ai/tools/demo/ledger.py"
    path.write_text(path.read_text() + "# edited\n")
    place.done(CACHED, inputs={"line": "x"})
    assert place.text("ledger") == "x\ny\nx\n"


# ── shell text ───────────────────────────────────────────────────────────

HOSTILE = "a'; touch OWNED; $(touch OWNED) `touch OWNED` \\"  # -n"
SHELL_NODES = [
    # nodes; state.v holds what a shell would run                                        state.got
    ("{a: {shell: 'printf %s ${state.v}', assign: {got: '${result.stdout}'}}}",            HOSTILE),
    ("{a: {shell: 'printf %s \"${state.v}\"', assign: {got: '${result.result}'}}}",        HOSTILE),
    ("{a: {shell: \"printf %s '${state.v}'\", interpreter: bash, assign: {got: '${result.stdout}'}}}", HOSTILE),
    ("{a: {type: action, shell: 'echo ${inputs.n}', assign: {got: '${result.stdout}'}}}",  "3"),
    ("{a: {shell: 'for n in a b; do echo $n ${n}; done', assign: {got: '${result.stdout}'}}}", "a a\nb b"),
    ("{a: {tool: core/shell, params: {command: 'n=1; echo $n ${n}'}, assign: {got: '${result.stdout}'}}}", "1 1"),
    ("{a: {shell: 'echo; echo warn >&2; echo', assign: {got: '${result.result}${result.stdout}${result.stderr}'}}}", "warn"),
    ("{a: {shell: echo yes, next: [{to: b, when: \"${result.stdout} == 'yes'\"}]}, b: {assign: {got: good}}}", "good"),
    ("{a: {shell: echo 1, assign: {n: '${result.stdout}'}, next: b}, b: {shell: 'echo $((${state.n} + 1))', assign: {got: '${result.stdout}'}}}", "2"),
    ("{a: {over: [1, 2], shell: 'printf %s ${item}', assign: {got: '${result.total}'}}}",  2),
    ("{a: {shell: exit 3, on_error: b}, b: {assign: {got: handled}}}",                     "handled"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "got"), SHELL_NODES)
def test_a_node_runs_shell_text_as_a_step_does_with_values_bound(
    nodes: str, got: Any, place: Place
) -> None:
    flow = {"start": "a", "inputs": {"n": {"default": 3}}, "state": {"v": HOSTILE}}
    place.write("flow.yaml", f"{json.dumps(flow)[:-1]}, nodes: {nodes}}}")
    assert place.check() == []
    assert place.done().value["state"]["got"] == got
    assert not (place.root / "OWNED").exists()


# ── a graph is a tool ────────────────────────────────────────────────────

DOUBLE = """\
config_schema: {properties: {n: {type: integer}, by: {type: integer, default: 2}}, required: [n]}
config:
  start: add
  nodes:
    add: {action: {item_id: "tool:demo/add", params: {n: "${inputs.n}", by: "${inputs.by}"}},
          assign: {n: "${result.n}"}, next: out}
    out: {type: return, output: {n: "${state.n}"}}
"""


def test_a_graph_is_called_by_id_from_a_workflow_another_graph_python_and_the_command_line(
    place: Place,
) -> None:
    graph_tool(place, "my/double", DOUBLE)
    trusted(place)
    ran = place.done("- tool: my/double\n  params: {n: 1}\n- shell: echo ${last.output.n}\n")
    assert ran.outputs["steps/1"] == "3"
    assert "steps/0/nodes/add" in ran.finished
    outer = "start: a\nnodes: {a: {tool: my/double, params: {n: 4}, assign: {n: '${result.n}'}}}\n"
    ran = place.done(outer)
    assert ran.value["output"] == {"n": 6}
    assert "nodes/a/call/nodes/add" in ran.finished
    assert app.call("my/double", {"n": 5}, project=place.root)["data"] == {"n": 7}
    shown = place.plait("call", "my/double", "-p", "n=5")
    assert (shown.returncode, json.loads(shown.stdout), shown.stderr) == (0, {"n": 7}, "")
    wrong = place.plait("call", "my/double", "-p", "n=x")
    assert wrong.returncode == 2
    envelope = json.loads(place.plait("call", "my/double", "--params", '{"n": 1}', "--json").stdout)
    assert (envelope["status"], envelope["data"]) == ("success", {"n": 3})
    dry = place.plait("call", "my/double", "--params", '{"n": 1}', "--dry-run")
    assert "nodes/add" in dry.stdout
    assert dry.returncode == 0


def test_other_systems_form_of_an_action_is_read(place: Place) -> None:
    flow = """\
version: "1.0.0"
tool_type: graph
executor_id: rye/core/runtimes/state-graph/runtime
permissions: ["rye.execute.tool.*"]
config:
  start: a
  nodes:
    a: {action: {primary: execute, item_type: tool, item_id: demo/add, params: {n: 1}}, assign: {n: "${result.n}"}}
"""
    assert place.done(flow).value["state"] == {"n": 2}


def test_nothing_of_a_graph_tool_is_looked_at_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runs.stories import new_place

    place = new_place(tmp_path, monkeypatch)
    graph_tool(place, "my/broken", "start: nowhere\nnodes: {a: {tool: no/such}}\n")
    with pytest.raises(TrustError):
        app.call("my/broken", {}, project=place.root)
    trusted(place)
    with pytest.raises(InputError, match="leads to 'nowhere'"):
        app.call("my/broken", {}, project=place.root)


def test_an_unknown_tool_is_reported_at_its_place_before_anything_runs(place: Place) -> None:
    message = place.refusal("start: a\nnodes:\n  a: {tool: demo/ad}\n")
    assert "flow.yaml:3:13" in message
    assert "demo/add" in message


# ── kills and resumes ────────────────────────────────────────────────────

KILLED = """\
start: one
nodes:
  one: {tool: demo/ledger, params: {line: one}, next: two}
  two: {tool: my/inner, next: three}
  three: {tool: demo/ledger, params: {line: three}, next: end}
  end: {return: ok}
"""
INNER = """\
start: in1
nodes:
  in1: {tool: demo/ledger, params: {line: in1}, next: in2}
  in2: {tool: my/deadly, params: {line: in2}, next: in3}
  in3: {tool: demo/ledger, params: {line: in3}, next: each}
  each: {over: [a, b], tool: demo/ledger, params: {line: "${item}"}}
"""
DEADLY = """\
import os
def execute(params, project_path):
    mark = os.path.join(project_path, 'was-here')
    if not os.path.exists(mark):
        open(mark, 'w').close()
        os.kill(os.getpid(), 9)
    with open(os.path.join(project_path, 'ledger'), 'a') as file:
        file.write(params['line'] + '\\n')
    return {}
"""


@pytest.mark.parametrize("as_tool", [False, True])
def test_after_a_kill_a_graph_inside_a_graph_goes_on_at_its_node_and_repeats_no_recorded_one(
    as_tool: bool, place: Place
) -> None:
    tool(place, "my/deadly", DEADLY)
    graph_tool(place, "my/inner", INNER)
    graph_tool(place, "my/outer", KILLED)
    trusted(place)
    place.write("flow.yaml", KILLED)
    command = ["call", "my/outer"] if as_tool else ["run", "flow.yaml"]
    assert place.plait(*command).returncode == -9
    assert place.text("ledger").split() == ["one", "in1"]
    resumed = place.plait("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert place.text("ledger").split() == ["one", "in1", "in2", "in3", "a", "b", "three"]


RENAMED = [
    # what is edited                              is refused, because of
    (("start: one", "start: first"), ("  one:", "  first:"), "nodes/one"),
    (("next: two", "next: deux"), ("  two:", "  deux:"), "nodes/one"),
]


@pytest.mark.parametrize(("first", "second", "because"), RENAMED)
def test_a_node_that_was_done_and_renamed_is_refused_as_a_change(
    first: tuple[str, str], second: tuple[str, str], because: str, place: Place
) -> None:
    flow = "start: one\nnodes:\n  one: {tool: demo/ledger, params: {line: x}, next: two}\n  two: {tool: demo/fail}\n"
    ran = place.run(flow)
    place.write("flow.yaml", flow.replace(*first).replace(*second))
    assert "changed since these steps were done" in _resume_refusal(place, ran.result.run, because)
    assert place.text("ledger") == "x\n"


def _resume_refusal(place: Place, run: str, because: str) -> str:
    try:
        ran = place.resume(run)
    except InputError as error:
        message = str(error)
    else:
        message = ran.message
    assert because in message, message
    return message


def test_a_node_that_was_not_reached_may_be_edited(place: Place) -> None:
    flow = "start: a\nnodes:\n  a: {tool: demo/ledger, params: {line: x}, next: b}\n  b: {tool: demo/fail, next: c}\n  c: {}\n"
    ran = place.run(flow)
    edited = flow.replace("demo/fail", "demo/echo").replace("c: {}", "c: {return: new}")
    place.write("flow.yaml", edited)
    assert place.resume(ran.result.run).value["output"] == "new"
    assert place.text("ledger") == "x\n"


# ── hooks ────────────────────────────────────────────────────────────────


def test_a_hook_has_a_failed_node_tried_again_and_one_that_says_continue_goes_on(
    place: Place,
) -> None:
    flow = """\
start: a
hooks: [{id: again, event: error, verb: VERB, max_retries: 5}]
nodes: {a: {tool: demo/flaky, params: {good: 3}, assign: {t: "${result.tries}"}, next: b}, b: {}}
"""
    assert place.done(flow.replace("VERB", "retry")).value["state"] == {"t": 3}
    (place.root / "tries").unlink()
    ran = place.done(flow.replace("VERB", "continue"))
    assert list(ran.value["state"]) == ["_last_error"]
    (place.root / "tries").unlink()
    assert "says fail" in place.run(flow.replace("VERB", "fail")).message


def test_retries_by_a_hook_are_counted_and_reported(place: Place) -> None:
    flow = """\
start: a
hooks: [{id: again, event: error, verb: retry, max_retries: 5}]
nodes: {a: {tool: demo/flaky, params: {good: 3}, next: b}, b: {tool: demo/flaky, params: {good: 4}}}
"""
    ran = place.done(flow)
    reported = [(one.path, one.attempt) for one in ran.events if isinstance(one, StepRetrying)]
    assert reported == [("nodes/a", 1), ("nodes/a", 2)]
    shown = json.loads(place.plait("show", ran.result.run, "--json").stdout)
    assert shown["retries"] == 2
    assert [step["attempts"] for part in shown["phases"] for step in part["steps"]] == [3, 1]


def test_hooks_are_called_behind_each_node_and_by_a_resume_only_for_those_that_it_does(
    place: Place,
) -> None:
    flow = """\
start: a
hooks:
  - {id: tell, event: after_step, action: {tool: demo/ledger, params: {line: "${node}>${next}"}}}
  - {id: begun, event: graph_started, action: {tool: demo/ledger, params: {line: "begin ${start}"}}}
nodes:
  a: {next: b}
  b: {tool: demo/flaky, params: {good: 2}, next: c}
  c: {return: 1}
"""
    ran = place.run(flow)
    assert place.text("ledger").split("\n")[:2] == ["begin a", "a>b"]
    assert place.resume(ran.result.run).message == ""
    lines = [line for line in place.text("ledger").split("\n") if ">" in line]
    assert lines == ["a>b", "b>c", "c>"]


def test_the_hooks_of_a_graph_that_is_called_hold_for_it_alone(place: Place) -> None:
    graph_tool(
        place,
        "my/hooked",
        "hooks: [{id: t, event: after_step, action: {tool: demo/ledger, params: {line: '${node}'}}}]\n"
        "start: inner\nnodes: {inner: {}}\n",
    )
    trusted(place)
    place.done("start: outer\nnodes: {outer: {tool: my/hooked}}\n")
    assert place.text("ledger") == "inner\n"


# ── secrets ──────────────────────────────────────────────────────────────


def test_a_secret_input_reaches_the_tool_and_neither_journal_nor_state(place: Place) -> None:
    flow = """\
inputs: {token: string}
secrets: [token]
start: a
nodes:
  a: {tool: demo/echo, params: {t: "${inputs.token}"}, assign: {kept: "${inputs.token}", back: "${result.got.t}"}}
"""
    ran = place.done(flow, inputs={"token": "hunter2-hunter2"})
    assert ran.value["state"] == {"kept": "***", "back": "***"}
    assert b"hunter2" not in place.state
    assert ran.notes == [
        "node 'a': its result contains a secret, which is *** from here on; "
        "use ${inputs.…} where it is needed"
    ]


def test_a_secret_input_that_violates_the_schema_is_not_shown(place: Place) -> None:
    flow = """\
config_schema: {type: object, properties: {code: {type: string, maxLength: 4}}}
secrets: [code]
start: a
nodes: {a: {}}
"""
    with pytest.raises(InputError) as caught:
        place.done(flow, inputs={"code": "hunter2-hunter2"})
    (problem,) = caught.value.problems
    assert problem.what.endswith(": code: must have at most 4 characters")


NO_TEXT = [
    # how pin is declared          as           what is wrong
    ("{pin: {type: integer}}",     "1234",      "flow.yaml:2:10: parameter 'pin' must be text, since it is a secret"),
    ("{pin: {type: any}}",         1234,        "flow.yaml:2:10: parameter 'pin' must be text, since it is a secret"),
    ("{}",                         [1234],      "input 'pin' must be text, since it is a secret"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "given", "what"), NO_TEXT)
def test_a_secret_is_text(place: Place, declared: str, given: Any, what: str) -> None:
    flow = f"secrets: [pin]\ninputs: {declared}\nstart: end\nnodes: {{end: {{type: return}}}}\n"
    refusal = place.refusal(flow, inputs={"pin": given})
    assert refusal.splitlines()[0] == what
    assert "1234" not in refusal
    place.done(flow.replace("integer", "string"), inputs={"pin": "1234"})


@pytest.mark.parametrize("declared", ["integer", "{type: array}", "{default: 5}"])
def test_a_check_finds_a_secret_that_is_declared_as_something_else(
    place: Place, declared: str
) -> None:
    flow = f"secrets: [pin]\ninputs: {{pin: {declared}}}\nstart: a\nnodes: {{a: {{}}}}\n"
    place.write("flow.yaml", flow)
    (finding,) = place.check()
    assert finding.problem.what == "parameter 'pin' must be text, since it is a secret"
    assert finding.problem.fix == "declare it with type: string"


def test_a_secret_item_reaches_the_tool_and_not_the_journal(place: Place) -> None:
    flow = """\
inputs: {token: string}
secrets: [token]
start: a
nodes:
  a: {over: ["${inputs.token}", {deep: ["${inputs.token}"]}, "pre-${inputs.token}", plain], tool: demo/ledger, params: {line: "${item}"}}
"""
    tool(
        place,
        "demo/ledger",
        "import json\ndef execute(params, project_path):\n    open(project_path + '/ledger', 'a')"
        ".write(json.dumps(params['line']) + '\\n')\n    return {}\n",
    )
    trusted(place)
    place.done(flow, inputs={"token": "hunter2-hunter2"})
    assert place.text("ledger").splitlines() == [
        '"hunter2-hunter2"', '{"deep": ["hunter2-hunter2"]}', '"pre-hunter2-hunter2"', '"plain"'
    ]  # fmt: skip
    (place.root / "ledger").unlink()
    assert b"hunter2" not in place.state


def test_a_failure_of_recursive_graphs_names_each_node_once(place: Place) -> None:
    graph_tool(place, "my/one", "start: a\nnodes: {a: {tool: my/two}}\n")
    graph_tool(place, "my/two", "start: b\nnodes: {b: {tool: my/one}}\n")
    graph_tool(place, "my/self", "start: a\nnodes: {a: {tool: my/self}}\n")
    trusted(place)
    reported = "more than 16 flows are nested"
    assert place.run("start: a\nnodes: {a: {tool: my/self}}\n").message == f"node 'a': {reported}"
    both = place.run("start: c\nnodes: {c: {tool: my/one}}\n").message
    assert both == f"node 'c': node 'a': node 'b': {reported}"


# ── a failure that a hook swallows ───────────────────────────────────────

SWALLOWS = "hooks: [{id: h, event: EVENT, verb: continue}]\nstart: a\n"
SWALLOWED = [
    # event         the nodes                                                                                       what it gives
    ("step_failed", "a: {tool: demo/fail, next: b}, b: {return: the end}",                                          "the end"),
    ("step_failed", "a: {tool: demo/fail, assign: {x: 1}, next: b}, b: {return: 'x${state.x}'}",                    "x"),
    ("step_failed", "a: {tool: demo/fail, on_error: c, next: b}, b: {return: no}, c: {return: mended}",             "mended"),
    ("step_failed", "a: {tool: demo/fail, next: [{to: b, when: \"${result.status} == 'error'\"}]}, b: {return: '${state._last_error.node}'}", "a"),
    ("step_failed", "a: {assign: {x: '${file:nowhere}'}, next: b}, b: {return: the end}",                         "the end"),
    ("step_failed", "a: {type: foreach, over: [1], tool: demo/fail, next: b}, b: {return: the end}",                "the end"),
    ("item_failed", "a: {type: foreach, over: [1], tool: demo/fail, collect: c, next: b}, b: {return: '${state.c[0].status} ${state.c[0].index}'}", "error 0"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "nodes", "output"), SWALLOWED)
def test_a_graph_goes_on_from_a_failure_that_a_hook_swallows(
    place: Place, event: str, nodes: str, output: str
) -> None:
    flow = f"{SWALLOWS.replace('EVENT', event)}state: {{n: text}}\nnodes: {{{nodes}}}\n"
    ran = place.done(flow)
    assert ran.value["output"] == output
    assert place.resume(ran.result.run).value["output"] == output


def test_a_condition_that_cannot_be_decided_is_no_failure_to_go_on_from(place: Place) -> None:
    wrong = "a: {next: [{to: b, when: {path: state.n, op: gt, value: 3}}]}, b: {return: the end}"
    ran = place.run(
        f"{SWALLOWS.replace('EVENT', 'step_failed')}state: {{n: text}}\nnodes: {{{wrong}}}\n"
    )
    assert (ran.result.status, ran.failed) == ("failed", ["nodes/a", "nodes"])


def test_a_hook_that_tries_a_node_again_does_not_call_it_because_of_what_follows(
    place: Place,
) -> None:
    flow = (
        "hooks: [{id: h, event: step_failed, verb: retry, max_retries: 2}]\n"
        + WRONG_BEHIND.replace("retry: {attempts: 3, initial_delay: 0s}, ", "")
    )
    run = place.run(flow).result.run
    place.resume(run)
    assert place.text("tries") == "x"


def test_a_dry_run_of_a_resumed_graph_says_what_is_kept_and_why_something_is_not(
    place: Place,
) -> None:
    flow = """\
start: a
nodes:
  a: {tool: demo/flaky, params: {good: 1}, next: b}
  b: {tool: demo/flaky, params: {good: 1}, assign: {x: one}, next: c}
  c: {tool: demo/flaky, params: {good: 1}, next: d}
  d: {return: '${state.x}'}
"""
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("x: one", "x: two"))
    shown = place.plait("resume", run, "--accept-changes", "--dry-run").stdout.splitlines()
    reported = [
        line.split()[0].rpartition("/")[2] + " " + line.rpartition("(")[2] for line in shown
    ]
    assert reported == [
        "a replayed)",
        "b again: its text has changed)",
        "c again: a step before it is done again)",
        "d again: a step before it is done again)",
    ]
    assert "its recorded call is kept" in shown[1]
    assert place.resume(run, accept_changes=True).value["output"] == "two"
    assert place.text("tries") == "xxxx"
