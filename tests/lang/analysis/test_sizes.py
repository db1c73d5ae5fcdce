"""A small file cannot make large values: what templates make of each other has one budget, counted in advance."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core import documents
from plait.core.errors import InputError, LimitError
from plait.core.source import Span
from plait.lang.check import check_document, check_file
from plait.lang.environment import load_environment
from plait.lang.workflow import read as workflow
from plait.schema import Fields
from plait.scope import Scope
from plait.template import compiled, filters
from plait.template.compiled import MAX_OUTPUT
from plait.template.sinks import render_json
from plait.template.template import RENDERINGS_UNTIL_HOT, compile_template
from runs.stories import Place, new_place

MEBIBYTE = 1 << 20


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def chain(levels: int, *, of_lists: bool = False) -> str:
    """Variables of which each holds ten times the one before."""
    rows = ["  v0: 'xxxxxxxxxx'"]
    for level in range(1, levels):
        name = f"${{v{level - 1}}}"
        ten = ", ".join([f"'{name}'"] * 10)
        rows.append(f"  v{level}: [{ten}]" if of_lists else f"  v{level}: '{name * 10}'")
    return "\n".join(rows)


WIDE = "\n".join(f"  w{number}: '${{v5}} '" for number in range(40))
ENV = ", ".join(f"E{number}: '${{v5}}'" for number in range(40))
TOO_LONG = "the rendered text is longer than 16,777,216 characters"
TOGETHER = "with this one, the values here have more than 16,777,216 characters together"

BOMBS = [
    # flow                                                                                     said
    (f"vars:\n{chain(12)}\nsteps: [{{shell: 'true'}}]",                                         TOO_LONG),
    (f"env:\n{chain(12)}\nsteps: [{{shell: 'true'}}]",                                          TOO_LONG),
    (f"vars:\n{chain(12, of_lists=True)}\nsteps: [{{shell: 'echo ${{v11}}'}}]",                 TOO_LONG),
    (f"vars:\n{chain(6)}\n{WIDE}\nsteps: [{{shell: 'true'}}]",                                  TOGETHER),
    (f"vars:\n{chain(6)}\nenv:\n{WIDE}\nsteps: [{{shell: 'true'}}]",                            TOGETHER),
    (f"vars:\n{chain(6)}\nsteps: [{{shell: 'true', env: {{{ENV}}}}}]",                          TOGETHER),
    (f"vars:\n{chain(6)}\nsteps: [{{write_file: {{path: a, content: '{'${v5}' * 20}'}}}}]",     TOO_LONG),
    (f"vars:\n{chain(6)}\nsteps: [{{prompt: '{'${v5}' * 20}', provider: local}}]",              TOO_LONG),
    (f"vars:\n{chain(6)}\nmap: {{input: [1], steps: [{{claude: '/a {'${v5}' * 20}'}}]}}",       TOO_LONG),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "message"), BOMBS)
def test_check_and_run_refuse_it_before_memory_is_gone(
    place: Place, flow: str, message: str
) -> None:
    path = place.write("flow.yaml", flow) or str(place.file)
    found = [one for one in check_file(str(path)) if one.code == "output-too-long"]
    assert found
    assert {one.problem.what for one in found} == {message}
    assert all(one.problem.where is not None for one in found)
    tracemalloc.start()
    try:
        run_message = place.run().message
    except (InputError, LimitError) as error:
        run_message = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in run_message
    assert peak < 100 * MEBIBYTE


def grown(form: str, *, times: int = 1, first: str = '",', levels: int = 32) -> str:
    """Variables of which each is the one before, changed by a format or a filter and written so many times."""
    rows = [f"  v0: '{first}'"]
    rows += [f"  v{level}: '{f'${{v{level - 1}{form}}}' * times}'" for level in range(1, levels)]
    return "\n".join(rows)


TRUE = "steps: [{shell: 'true'}]"
LARGE_VARS = f"vars:\n{chain(6)}"
JSON_OF_LARGE = "'${v5:json}'"
MANY = {
    "format": "${v5:json}" * 20,
    "filter": "${v5 | trim}" * 20,
    "default": "${v5:-x}" * 20,
    "alternative": "${v5 || v0}" * 20,
    "chain": '${v0 | join(",")' + " | json" * 40 + "}",
}
PLACES = {
    "shell": "steps: [{shell: 'echo X'}]",
    "env of a step": "steps: [{shell: 'true', env: {A: 'X'}}]",
    "working_dir": "steps: [{shell: 'true', working_dir: 'X'}]",
    "write_file": "steps: [{write_file: {path: a, content: 'X'}}]",
    "tool": "steps: [{tool: core/shell, params: {command: 'echo X'}}]",
    "foreach": "steps: [{foreach: ['X'], do: [{shell: 'true'}]}]",
    "http": "steps: [{http: {url: 'http://127.0.0.1:1/', body: 'X'}}]",
    "claude": "steps: [{claude: '/a X'}]",
    "block": "blocks: {b: {steps: [{shell: 'true'}]}}\nsteps: [{use: b, with: {q: 'X'}}]",
    "env of a map": "map: {input: [1], env: {A: 'X'}, steps: [{shell: 'true'}]}",
}
KEPT = (
    ":lines", ":raw", ":path", ":opt", " | upper", " | lower", " | trim", ' | join(",")', ' | default("x")',
    " || v0", ":-x",
)  # fmt: skip
GROWN = [
    *(
        f"{where}:\n{grown(form)}\n{TRUE}"
        for where in ("vars", "env")
        for form in (":json", " | json", ":csv")
    ),
    *(f"{where}:\n{grown(form, times=2)}\n{TRUE}" for where in ("vars", "env") for form in KEPT),
    # a part of the text is known only to a run, and what stands in the file is too long without it
    f"parameters: {{p: string}}\nvars:\n{grown('', times=10, first='x${p}')}\n{TRUE}",
    f"parameters: {{p: string}}\nvars:\n{grown(':json', first=chr(34) + '${p}')}\n{TRUE}",
    f"vars:\n{grown('', times=10, first='x${env.NOBODY:-}')}\n{TRUE}",
    # a profile; a list; variables of a step that become large by those of the head
    f"{LARGE_VARS}\nprofiles: {{p: {{{ENV.replace('v5', 'v5:json')}}}}}\n{TRUE}",
    f"{LARGE_VARS}\n  w: [{', '.join([JSON_OF_LARGE] * 20)}]\n{TRUE}",
    f"{LARGE_VARS}\nsteps: [{{shell: 'echo {'${B}' * 10}', env: {{B: '${{v5}}${{v5}}'}}}}]",
    f"{LARGE_VARS}\nblocks: {{b: {{steps: [{{shell: 'echo {'${q}' * 20}'}}]}}}}\n"
    "steps: [{use: b, with: {q: '${v5:json}'}}]",
    *(
        f"{LARGE_VARS}\n{flow.replace('X', many)}"
        for flow in PLACES.values()
        for many in MANY.values()
    ),
    # graphs
    "start: one\nstate: {x: '\"'}\nnodes:\n  one: {assign: {y: '${state.x"
    + " | json" * 40
    + "}'}, next: two}\n"
    "  two: {return: '${state.y}'}",
    f"start: one\nstate: {{x: {'x' * 200_000}}}\nnodes:\n  one: {{return: '{'${state.x:json}' * 100}'}}",
]


@pytest.mark.parametrize("flow", GROWN)
def test_check_says_what_grows_by_formats_and_filters(place: Place, flow: str) -> None:
    place.write("flow.yaml", flow)
    tracemalloc.start()
    found = [one.problem for one in check_file(str(place.file)) if one.code == "output-too-long"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found
    assert all(isinstance(one.where, Span) and one.fix for one in found)
    assert peak < 200 * MEBIBYTE


WITH_MORE = ("nodes:", "parameters:", "profiles:", "map:")
"""Graphs, what has to be given something, and maps, of which each item says it for itself."""
PLAIN = [flow for flow in GROWN if not any(word in flow for word in WITH_MORE)]


@pytest.mark.parametrize("flow", PLAIN)
def test_a_run_refuses_it_without_the_check(
    place: Place, flow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "check_workflow", lambda *_, **__: [])
    place.write("flow.yaml", flow)
    try:
        message = place.run().message
    except (InputError, LimitError) as error:
        message = str(error)
    assert "16,777,216 characters" in message


def doubled(form: str) -> str:
    """Variables of which each is the one before with all its quotes doubled."""
    rows = ["  v0: '\",'", *(f"  v{level}: '${{v{level - 1}{form}}}'" for level in range(1, 32))]
    return "\n".join(rows)


@pytest.mark.parametrize("where", ["vars", "env"])
@pytest.mark.parametrize("form", [":json", " | json", ":csv"])
def test_variables_that_double_by_their_form_end_at_the_budget(
    place: Place, where: str, form: str
) -> None:
    place.write("flow.yaml", f"{where}:\n{doubled(form)}\nsteps: [{{shell: 'true'}}]")
    tracemalloc.start()
    with pytest.raises((InputError, LimitError)) as caught:
        place.run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert TOGETHER in str(caught.value)
    assert len(caught.value.problems) == 1
    assert peak < 200 * MEBIBYTE


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("${a" + " | json" * 60 + "}", {"a": '"'}),
        ("<${a" + " | json" * 60 + "}>", {"a": '"'}),
        ("${a | join('" + "x" * 1_000_000 + "')}", {"a": [1] * 1000}),
    ],
)
def test_filters_do_not_multiply_without_end(written: str, values: dict[str, Any]) -> None:
    tracemalloc.start()
    with pytest.raises(LimitError) as caught:
        compile_template(written).render(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "output-too-long"
    assert peak < 200 * MEBIBYTE


def test_a_large_tree_is_written_once_whatever_its_size() -> None:
    rows = ["x" * MEBIBYTE] * 20
    assert len(compile_template("${a:json}").render({"a": rows})) > MAX_OUTPUT
    assert len(compile_template("${a | join(' ')}").render({"a": rows})) > MAX_OUTPUT


FITS = [
    f"vars:\n{chain(7)}\nsteps: [{{shell: 'true'}}]",
    "vars: {a: x, b: '${a}${a}'}\nsteps: [{shell: 'echo ${b}${b}'}]",
    # what is known only to a run may be short
    f"parameters: {{p: string}}\nvars:\n{grown('', times=10, first='${p}', levels=12)}\n{TRUE}",
    f"parameters: {{p: {{type: string, default: xxxxxxxxxx}}}}\nvars:\n"
    f"{grown('', times=10, first='${p}', levels=12)}\n{TRUE}",
    f"vars:\n{grown('', times=10, first='${env.NOBODY:-}', levels=12)}\n{TRUE}",
    f"{LARGE_VARS}\nsteps: [{{shell: 'echo a', capture: v5}}, {{shell: 'echo {'${v5}' * 20}'}}]",
    # the same name means something else there
    f"{LARGE_VARS}\nsteps: [{{shell: 'echo {'${v5}' * 20}', env: {{v5: a}}}}]",
    f"{LARGE_VARS}\nsteps: [{{shell: 'for v5 in a; do echo {'$v5' * 20}; done'}}]",
    f"{LARGE_VARS}\nblocks: {{b: {{steps: [{{shell: 'echo {'${v5}' * 20}'}}]}}}}\n"
    "steps: [{use: b, with: {v5: a}}]",
    f"{LARGE_VARS}\nsteps: [{{foreach: [a], do: [{{shell: 'true'}}], when: '{' && '.join(['${v5} != 1'] * 20)}'}}]",
    f"{LARGE_VARS}\nsteps: [{{write_file: {{path: a, content: '{'${v5 | length}' * 20}'}}}}]",
    # a node writes it
    f"start: one\nstate: {{x: {'x' * 200_000}}}\nnodes:\n  one: {{assign: {{x: a}}, next: two}}\n"
    f"  two: {{return: '{'${state.x}' * 100}'}}",
]


@pytest.mark.parametrize("flow", FITS)
def test_what_fits_is_not_spoken_of(tmp_path: Path, flow: str) -> None:
    (tmp_path / "flow.yaml").write_text(flow)
    assert [one for one in check_file(str(tmp_path / "flow.yaml")) if one.severity == "error"] == []


# ── check and run count the same ─────────────────────────────────────────

SMALL = 300
"""The budget of the property, so that short variables come near it."""
CHANGES = (
    "", ":json", ":csv", ":lines", ":raw", ":path", ":opt", " | json", " | upper", " | lower", " | trim",
    " | first", " | last", " | length", " | keys", ' | default("x")', ' | join(", ")', " || 'y'", ":-z",
    " | json | json", ":json:csv", " | trim | json", " | lower | default(1)",
)  # fmt: skip
LETTERS = st.text('ab"\\,ß -\n', max_size=12)


@st.composite
def heads(draw: st.DrawFn, *, known: tuple[str, ...] = ()) -> dict[str, Any]:
    names: list[str] = list(known)
    document: dict[str, Any] = {"steps": [{"shell": "true"}]}

    def written() -> str:
        pieces = draw(st.lists(st.one_of(LETTERS, st.none(), st.none()), min_size=1, max_size=5))
        return "".join(
            f"${{{draw(st.sampled_from(names))}{draw(st.sampled_from(CHANGES))}}}"
            if piece is None and names
            else piece or ""
            for piece in pieces
        )

    for part in ("vars", "env"):
        entries: dict[str, Any] = {}
        for _ in range(draw(st.integers(0, 5))):
            name = f"n{len(names)}"
            is_list = part == "vars" and draw(st.booleans())
            entries[name] = [written() for _ in range(3)] if is_list else written()
            names.append(name)
        if entries:
            document[part] = entries
    return document


def refuses(document: dict[str, Any], parameters: dict[str, Any]) -> bool:
    """Does a run refuse the head for its size?  It is asked without the check that comes before it."""
    node = documents.parse(json.dumps(document), "flow.yaml")
    assert isinstance(node, documents.Mapping)
    try:
        load_environment(Fields("flow", node, Scope()), parameters, profile=None, environ={})
    except (InputError, LimitError) as error:
        return any(problem.code == "output-too-long" for problem in error.problems)
    return False


def says(document: dict[str, Any]) -> bool:
    node = documents.parse(json.dumps(document), "flow.yaml")
    return any(one.code == "output-too-long" for one in check_document(node, "flow.yaml"))


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compiled, filters):
        monkeypatch.setattr(module, "MAX_OUTPUT", SMALL)


SAME_BUDGET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.mark.usefixtures("small_budget")
@SAME_BUDGET
@given(document=heads())
def test_check_says_too_long_exactly_when_a_run_refuses(document: dict[str, Any]) -> None:
    assert says(document) == refuses(document, {})


@pytest.mark.usefixtures("small_budget")
@SAME_BUDGET
@given(
    document=heads(known=("p",)),
    values=st.lists(
        st.one_of(LETTERS, st.integers(), st.none(), st.lists(LETTERS, max_size=3)), max_size=5
    ),
)
def test_what_check_says_holds_for_every_parameter(
    document: dict[str, Any], values: list[Any]
) -> None:
    if says({"parameters": {"p": "any"}, **document}):
        for value in ("", 0, None, [], *values):
            assert refuses(document, {"p": value})


LARGE = "x" * (MAX_OUTPUT // 2)
TEMPLATES: list[tuple[Any, dict[str, Any], bool]] = [
    # template                          values                          refused
    ("${a}${a} ",                       {"a": LARGE},                   True),
    ("${a}${a.b}${a}",                  {"a": {"b": LARGE}},            True),
    ("<${a}>",                          {"a": LARGE + LARGE},           False),
    ("${a}",                            {"a": LARGE + LARGE + "x"},     False),
    (["${a} ", "${a}", " ${a}"],        {"a": LARGE},                   True),
    (["${a}", "${a}", "${a}"],          {"a": LARGE},                   True),
    (["${a}", "${a}", "${b}"],          {"a": [LARGE], "b": "x"},       True),
    (["${a}", "${b}"],                  {"a": [LARGE], "b": [LARGE]},   False),
    (["${a}", "${b}"],                  {"a": ["x"], "b": 2},           False),
    ("${a}${a}",                        {"a": "x"},                     False),
]  # fmt: skip


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("written", "values", "refused"), TEMPLATES)
def test_a_template_refuses_the_same_by_closures_and_when_it_is_hot(
    written: Any, values: dict[str, Any], refused: bool, hot: bool
) -> None:
    template = compile_template(written)
    small: dict[str, Any] = {
        name: ["x"] if isinstance(value, list) else "x" for name, value in values.items()
    }
    if isinstance(values.get("a"), dict):
        small = {"a": {"b": "x"}}
    for _ in range(RENDERINGS_UNTIL_HOT + 10 if hot else 1):
        template.render(small)
    if not refused:
        template.render(values)
        return
    with pytest.raises(LimitError) as caught:
        template.render(values)
    assert caught.value.code == "output-too-long"


def test_a_tree_that_shares_its_parts_is_measured_before_it_is_written() -> None:
    value: Any = ["x"]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(LimitError):
        render_json(compile_template({"a": "${a}", "b": "${a}"}), {"a": value})
    with pytest.raises(LimitError):
        compile_template(["${a}", "${a[0]}"]).render({"a": value})


def test_nodes_of_a_graph_do_not_double_each_other(place: Place) -> None:
    place.write(
        "graph.yaml",
        """\
start: one
limits: {steps: 200}
nodes:
  one: {assign: {x: "${state.x}${state.y}"}, next: two}
  two: {assign: {y: "${state.x}${state.y}"}, next: one}
state: {x: xxxxxxxx, y: yyyyyyyy}
""",
    )
    done = place.plait("run", "graph.yaml")
    assert done.returncode != 0
    assert "16,777,216 characters" in done.stderr + done.stdout


CONFIGS = [
    # a0                said
    ("xxxxxxxxxx",      True),
    ("'{p}x'",          True),
    ("'{p}{p}'",        False),
    ("'${NOBODY:-}'",   False),
]  # fmt: skip


@pytest.mark.parametrize(("first", "is_found"), CONFIGS)
def test_check_says_where_the_config_of_a_tool_grows(
    place: Place, first: str, is_found: bool
) -> None:
    rows = [f"  a{level}: '{f'{{a{level - 1}}}' * 10}'" for level in range(1, 9)]
    head = "executor_id: core/primitives/subprocess\nversion: 1.0.0\ndescription: d\nconfig:\n  command: echo\n"
    text = head + "\n".join(["  args: ['{a8}']", f"  a0: {first}", *rows])
    place.write(".ai/tools/bomb.yaml", text)
    done = place.plait("check", ".ai/tools/bomb.yaml")
    assert (
        "bomb.yaml:14:7: the rendered text is longer than 16,777,216 characters" in done.stdout
    ) is is_found
    assert done.returncode == (2 if is_found else 0)
