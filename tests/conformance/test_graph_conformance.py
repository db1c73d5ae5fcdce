"""Document 000 in real runs of graphs: namespaces, types, what is missing, and the dispatch boundary.

A row of `graph-000.yaml` is one node that calls a tool which gives back what it was given: what
arrives there, what the node assigns, which way it takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from lang.graph.graphs import graph_place


@dataclass(frozen=True, kw_only=True)
class Row:
    about: str
    state: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    assign: dict[str, Any] = field(default_factory=dict)
    next: Any = None
    arrives: dict[str, Any] | None = None
    assigned: dict[str, Any] | None = None
    reaches: str | None = None
    notes: int = 0

    def flow(self) -> str:
        call = {
            "action": {"primary": "execute", "item_id": "tool:demo/echo", "params": self.params}
        }
        assign = {**self.assign, "arrived": "${result.got}"}
        nodes = {
            "call": {**call, "assign": assign, "next": self.next or "end"},
            "high": {"return": "high"},
            "low": {"return": "low"},
            "end": {},
        }
        return json.dumps({"start": "call", "state": self.state, "nodes": nodes})


ROWS: Final = [
    Row(**raw)
    for raw in yaml.safe_load((Path(__file__).parent / "graph-000.yaml").read_text("utf-8"))
]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.about.replace(" ", "-")) for row in ROWS])
def test_a_graph_does_what_the_row_says(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = graph_place(tmp_path, monkeypatch, HOME_SECRET="no").done(row.flow(), inputs=row.inputs)
    state = ran.value["state"]
    assert (row.arrives or row.assigned or row.reaches) is not None, "a row that could not fail"
    if row.arrives is not None:
        assert state["arrived"] == row.arrives
    if row.assigned is not None:
        assert {name: state[name] for name in row.assigned} == row.assigned
    if row.reaches is not None:
        assert ran.value["output"] == row.reaches
    assert len(ran.notes) == row.notes, ran.notes
