"""Document 001 in real runs of ensembles, in Python and in files: every row of its tables, and more.

The rows are those of `prompts-001.yaml` (the resolver alone is held against them elsewhere) and of
`ensemble-001.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import plait
from lang.graph.graphs import graph_place
from plait import Ensemble, Task

NOTHING: Final = object()


@dataclass(frozen=True, kw_only=True)
class Row:
    about: str
    template: str | None
    inputs: dict[str, Any] | None
    expect: Any = NOTHING
    missing: list[str] | None = None
    message: str | None = None
    logs: list[str] | None = None


def read(name: str) -> list[Row]:
    return [Row(**raw) for raw in yaml.safe_load((Path(__file__).parent / name).read_text("utf-8"))]


ROWS: Final = [*read("prompts-001.yaml"), *read("ensemble-001.yaml")]
EACH: Final = [pytest.param(row, id=row.about.replace(" ", "-")) for row in ROWS]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("row", EACH)
def test_a_task_in_python_says_what_the_row_says(row: Row) -> None:
    seen: list[Task] = []
    task = Task(row.template, row.template, handler=lambda task, _: seen.append(task))
    ensemble = Ensemble([task])
    if row.missing is not None:
        with pytest.raises(plait.PromptTemplateError) as caught:
            ensemble.run(row.inputs)
        assert (caught.value.missing_variables, caught.value.template) == (
            row.missing,
            row.template,
        )
        assert seen == []
        return
    ensemble.run(row.inputs)
    assert [(one.description, one.expected_output) for one in seen] == [(row.expect, row.expect)]
    assert (task.description, task.expected_output) == (row.template, row.template)


def in_files(row: Row) -> bool:
    """A file has texts, and the caller gives names."""
    return bool(row.template) and isinstance(row.inputs, dict | None)


IN_FILES: Final = [
    pytest.param(row, id=row.about.replace(" ", "-")) for row in ROWS if in_files(row)
]


@pytest.mark.parametrize("row", IN_FILES)
def test_a_task_in_a_file_says_what_the_row_says(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = graph_place(tmp_path, monkeypatch)
    says = {
        "id": "says", "description": row.template, "expected_output": row.template, "tool": "demo/give",
        "params": {"value": ["${task.description}", "<${task.expected_output}>"]},
    }  # fmt: skip
    hears = {
        "id": "hears", "description": "hear", "context": "says", "tool": "demo/give",
        "params": {"value": "${context.says.data[0]}"},
    }  # fmt: skip
    place.write("flow.yaml", {"tasks": [says, hears]})
    if row.missing is not None:
        with pytest.raises(plait.PromptTemplateError) as caught:
            place.run(inputs=row.inputs or {})
        assert caught.value.missing_variables == row.missing
        assert not list((place.root / ".ai" / "state").glob("runs/*"))
        return
    ran = place.done(inputs=row.inputs or {})
    assert ran.value["tasks"]["says"]["data"] == [row.expect, f"<{row.expect}>"]
    assert ran.value["tasks"]["hears"]["raw"] == row.expect
    assert place.resume(ran.result.run).value == ran.value


def test_the_rows_of_files_are_most_of_the_rows() -> None:
    assert len(IN_FILES) > 40


def test_a_chain_of_values_that_name_each_other_does_not_grow() -> None:
    inputs = {f"v{number}": f"{{v{number + 1}}}{{v{number + 1}}}" for number in range(26)}
    output = Ensemble([Task("{v0}" * 3, "", handler=lambda task, _: task.description)]).run(inputs)
    assert output.raw == "{v1}{v1}" * 3
