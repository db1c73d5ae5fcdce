"""Graphs without a world: whatever the moment of a crash, a resumed walk ends as one that never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lang.loading import load_file
from plait.adapters.store.result_cache import ResultCache
from plait.core.values import Json
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, StepError
from plait.tools.call import ToolResult
from program.fakes import FakeServices, new_run, turn_of
from share import examples

FLOW = """\
start: add
on_error: continue
state: {n: 0, seen: []}
nodes:
  add:
    tool: add
    params: {n: "${state.n}"}
    assign: {n: "${result.n}", before: "${state.n}", at: "${_timestamp}"}
    next: [{to: each, when: {path: state.n, op: gte, value: 3}}, {to: odd, when: "${state.n} == 2"}, {to: add}]
  odd: {tool: fail, next: add}
  each: {over: [1, 2, 3], tool: add, params: {n: "${item}"}, collect: seen, parallel: true, next: end}
  end: {return: {n: "${state.n}", before: "${state.before}", seen: "${state.seen}", at: "${state.at}"}}
"""
CALLS = 7
"""Calls of tools in a walk that never stops: add, add, fail, add, and three items."""


class Crash(BaseException):
    """The process dies: nothing after this moment happens."""


class Tools:
    """Counts calls, and dies in one of them."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.dies_at = dies_at

    def __call__(self, tool_id: str, params: Mapping[str, Json]) -> ToolResult:
        if len(self.calls) == self.dies_at:
            raise Crash
        self.calls.append(f"{tool_id} {params.get('n', '')}".strip())
        if tool_id == "fail":
            return ToolResult(tool_id, False, None, "no luck", (), {})
        return ToolResult(tool_id, True, {"n": params["n"] + 1}, None, (), {})


def walked(file: Path, journal: MemoryJournal, tools: Tools) -> Any:
    loaded = load_file(str(file), environ={})
    run = new_run(FakeServices(on_call=tools), journal)
    try:
        return loaded.program.run(turn_of(run))
    finally:
        run.events.close()


@settings(max_examples=examples(30), deadline=None)
@given(moments=st.lists(st.integers(0, CALLS - 1), max_size=3))
def test_replay_equals_live_and_no_recorded_call_is_repeated(
    moments: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("graph") / "flow.yaml"
    file.write_text(FLOW)
    journal, made = MemoryJournal(), list[str]()
    for moment in moments:
        tools = Tools(moment)
        with suppress(Crash):
            walked(file, journal, tools)
        made += tools.calls
        journal.reopen()
    last = Tools()
    value = walked(file, journal, last)
    made += last.calls
    output = value["output"]
    assert {**output, "at": 0} == {
        "n": 3,
        "before": 2,
        "seen": [{"n": 2}, {"n": 3}, {"n": 4}],
        "at": 0,
    }
    recorded = journal.step("nodes/add@3")
    assert recorded is not None
    assert output["at"] == recorded.outcome.value["assign"]["at"]  # type: ignore[union-attr]
    # Items that ran beside the one that died may have ended without anybody hearing of it.
    in_flight = 3 * len(moments)
    assert CALLS <= len(made) <= CALLS + in_flight
    assert made.count("fail") == 1
    assert made.count("add 0") == 1


def test_a_parameter_list_that_is_no_map_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("start: a\nstate: {p: 3}\nnodes: {a: {tool: x, params: '${state.p}'}}\n")
    with pytest.raises(StepError) as caught:
        walked(file, MemoryJournal(), Tools())
    assert "the parameters of 'x' must be a map" in caught.value.failure.message


def test_what_a_walk_has_made_until_it_failed_is_in_its_failure(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("start: a\nnodes: {a: {assign: {x: 1}, next: b}, b: {tool: fail}}\n")
    journal = MemoryJournal()
    with pytest.raises(StepError):
        walked(file, journal, Tools())
    known = journal.step("nodes")
    assert known is not None
    assert isinstance(known.outcome, Failed)
    assert known.outcome.failure.output == {"output": None, "state": {"x": 1}, "steps": 2}


def test_the_result_that_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    kept = ResultCache(str(tmp_path), most=2)
    for name in ("a", "b", "c"):
        kept.put(name, {"of": name})
        (tmp_path / ".ai/state/results" / f"{name}.json").touch()
    assert [kept.get(name) for name in ("a", "b", "c")] == [None, {"of": "b"}, {"of": "c"}]
    kept.put("large", "x" * (1 << 21))
    assert kept.get("large") is None
