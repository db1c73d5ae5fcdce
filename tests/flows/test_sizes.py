"""A small file cannot make large values: what templates make of each other has one budget, counted in advance."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from flows.running import Place, new_place
from plait.errors import InputError, LimitError
from plait.flows.check import check_file
from plait.template.program import MAX_OUTPUT
from plait.template.sinks import as_json
from plait.template.template import RENDERINGS_UNTIL_HOT, compile_template

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


@pytest.mark.parametrize(("flow", "said"), BOMBS)
def test_check_and_run_refuse_it_before_memory_is_gone(place: Place, flow: str, said: str) -> None:
    path = place.write("flow.yaml", flow) or str(place.file)
    found = [one for one in check_file(str(path)) if one.code == "output-too-long"]
    assert found
    assert {one.problem.what for one in found} == {said}
    assert all(one.problem.where is not None for one in found)
    tracemalloc.start()
    try:
        said_by_run = place.run().message
    except (InputError, LimitError) as error:
        said_by_run = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in said_by_run
    assert peak < 100 * MEBIBYTE


def doubled(form: str) -> str:
    """Variables of which each is the one before with all its quotes doubled."""
    rows = ["  v0: '\",'", *(f"  v{level}: '${{v{level - 1}{form}}}'" for level in range(1, 32))]
    return "\n".join(rows)


@pytest.mark.parametrize("where", ["vars", "env"])
@pytest.mark.parametrize("form", [":json", " | json", ":csv"])
def test_variables_that_double_by_their_form_end_at_the_budget(place: Place, where: str, form: str) -> None:
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
]


@pytest.mark.parametrize("flow", FITS)
def test_what_fits_is_not_spoken_of(tmp_path: Path, flow: str) -> None:
    (tmp_path / "flow.yaml").write_text(flow)
    assert check_file(str(tmp_path / "flow.yaml")) == []


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
        as_json(compile_template({"a": "${a}", "b": "${a}"}), {"a": value})
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
