"""Document 002 in real runs: every example, table and rule of it that a flow file can show.

A row of `workflow-002*.yaml` is a whole flow, run in a project of its own: what its
steps print, which of them are skipped or fail, what `plait check` says of it.  A step
is named by its path, an item in it by its number; `<project>` and `<head>` stand for
the project's folder and its first commit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from flows.running import Place, Ran, new_place
from plait.template.grammar import parse_cache_counts

HERE: Final = Path(__file__).parent
DOCUMENTS: Final = {"002"}


@dataclass(frozen=True, kw_only=True)
class Row:
    seed: str
    about: str
    flow: str
    files: dict[str, Any] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None
    strict: bool | None = None
    git: bool = False
    prints: dict[str, Any] | None = None
    skips: list[str] = field(default_factory=list)
    fails: list[str] | None = None
    message: list[str] = field(default_factory=list)
    """Parts of why the run failed."""
    refused: list[str] | None = None
    """Parts of why it was not even begun."""
    writes: dict[str, Any] = field(default_factory=dict)
    warns: list[str] = field(default_factory=list)
    """Parts of what `plait check` warns of; nothing if there are none."""

    @property
    def id(self) -> str:
        return f"{self.seed}-{re.sub(r'[^a-z0-9]+', '-', self.about.lower()).strip('-')}"


ROWS: Final = [
    Row(**raw)
    for path in sorted(HERE.glob("workflow-*.yaml"))
    for raw in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS])
def test_a_run_gives_what_the_row_says(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _prepared(row, tmp_path, monkeypatch)
    warnings = [str(found.problem.what) for found in place.check() if found.severity == "warning"]
    _assert_holds(warnings, row.warns)
    if row.refused is not None:
        said = place.refusal(**_options(row))
        assert [part for part in row.refused if part not in said] == [], said
        return
    ran = place.run(**_options(row))
    assert [part for part in row.message if part not in ran.message] == [], ran.message
    assert ran.failed == (row.fails or []), ran.message
    assert ran.result.status == ("failed" if row.message else "done"), ran.message
    assert ran.skipped == row.skips
    if row.prints is not None:
        assert _chosen(ran, row.prints) == _placed(row.prints, place)
    assert {name: _read(place.root / name) for name in row.writes} == _placed(row.writes, place)


def _prepared(row: Row, top: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(top, monkeypatch, **row.env)
    for name, content in {**row.files, "flow.yaml": row.flow}.items():
        place.write(name, content)
    for name, script in row.programs.items():
        place.program(name, script)
    return place.repository() if row.git else place


def _options(row: Row) -> dict[str, Any]:
    return {"inputs": row.inputs, "strict": row.strict, "profile": row.profile}


def _assert_holds(said: list[str], parts: list[str]) -> None:
    """One sentence for each of the parts, and no more."""
    assert len(said) == len(parts), said
    assert [part for part in parts if not any(part in one for one in said)] == [], said


def _chosen(ran: Ran, wanted: dict[str, Any]) -> dict[str, Any]:
    outputs = ran.outputs
    return {path: outputs.get(path, "(it did not run)") for path in wanted}


def _placed(expected: Any, place: Place) -> Any:
    """With the folder and the commit that only this project has."""
    match expected:
        case str():
            said = expected.replace("<project>", str(place.root))
            return said.replace("<head>", place.git("rev-parse", "HEAD")) if "<head>" in said else said
        case list():
            return [_placed(one, place) for one in expected]
        case dict():
            return {name: _placed(one, place) for name, one in expected.items()}
    return expected


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_text().rstrip("\n")


# ── The rows themselves ──────────────────────────────────────────────────────────────


def test_every_row_has_its_own_name_and_document() -> None:
    names = [row.id for row in ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert {row.seed for row in ROWS} <= DOCUMENTS


def test_every_row_says_what_must_come_out() -> None:
    silent = [
        row.id
        for row in ROWS
        if row.prints is None and not (row.message or row.writes or row.skips) and row.refused is None
    ]
    assert silent == []
