"""What `plait check` knows to be wrong about the parameters of tools, a run refuses before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.file_check import findings_around
from plait.app.runs import plan_run
from plait.app.toolbox import toolbox
from plait.core.errors import InputError
from plait.lang.check import check_file
from runs.stories import Place, new_place

PRICE = '''\
"""The price of some pieces."""
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["count"],
    "properties": {"count": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
}


def execute(params, project_path):
    return {"price": 3 * params["count"]}
'''
FIRST = "steps: [{shell: touch ran}, "
HOOK = "hooks: [{id: h, event: run_failed, action: {tool: shop/price, params: %s}}]\n"
WRONG = [
    # the flow                                                                     what is reported
    (FIRST + "{tool: shop/price, params: {cuont: 3}}]",                            2),
    (FIRST + "{tool: shop/price}]",                                                1),
    (FIRST + "{tool: shop/price, params: {count: 0}}]",                            1),
    (FIRST + "{tool: shop/price, params: {count: '${workflow.name}', note: 3}}]",  1),
    (FIRST + "{foreach: [1], do: [{tool: shop/price, params: {count: x}}]}]",      1),
    (FIRST + "{shell: ls, on_failure: [{tool: shop/price, params: {count: x}}]}]", 1),
    (FIRST + "{tool: shop/price, params: {count: x}}, {tool: shop/prize}]",        2),
    (HOOK % "{cuont: 1}" + FIRST + "{shell: ls}]",                                 2),
    ("start: a\nnodes: {a: {shell: touch ran, next: b}, b: {tool: shop/price, params: {count: 0}}}", 1),
]  # fmt: skip
RIGHT = [
    FIRST + "{tool: shop/price, params: {count: 3}}]",
    "vars: {n: 2}\n" + FIRST + "{tool: shop/price, params: {count: '${n}'}}]",
    HOOK % '{count: 1, note: "${error.message}"}' + FIRST + "{shell: ls}]",
    "start: a\nnodes: {a: {shell: touch ran, next: b}, b: {tool: shop/price, params: {count: 1, note: null}}}",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(tmp_path, monkeypatch)
    place.write(".ai/tools/shop/price.py", PRICE)
    toolbox(str(place.root)).trust.trust_project(origin="test")
    return place


@pytest.mark.parametrize(("flow", "count"), WRONG)
def test_a_run_and_a_dry_run_refuse_what_check_calls_an_error_before_the_first_step(
    flow: str, count: int, place: Place
) -> None:
    path = str(place.write("flow.yaml", flow))
    known = [
        finding.problem.what
        for finding in check_file(path, must_be_flow=True, around=findings_around)
        if finding.severity == "error"
    ]
    assert len(known) == count
    for start in (place.run, lambda: plan_run(path, project=str(place.root))):
        with pytest.raises(InputError) as refused:
            start()
        assert sorted(one.what for one in refused.value.problems) == sorted(known)
        assert all(one.where is not None for one in refused.value.problems)
    assert not (place.root / "ran").exists()


@pytest.mark.parametrize("flow", RIGHT)
def test_what_only_a_run_knows_and_what_it_leaves_out_is_not_refused(
    flow: str, place: Place
) -> None:
    path = str(place.write("flow.yaml", flow))
    found = check_file(path, must_be_flow=True, around=findings_around)
    assert [one for one in found if one.severity == "error"] == []
    place.run(flow)
    assert (place.root / "ran").exists()
