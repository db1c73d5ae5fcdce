"""A long run is shown by its outline: it says what all of its events would."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.flows import Options, find_run, retry_flow, run_flow
from plait.cli.logs import chosen, entries
from plait.cli.show import Tries, _Outline, lines, record
from plait.engine.progress import Progress
from plait.values import Json

FLOW = """\
name: long
setup: [{shell: echo begin}]
map:
  input: {items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
  id: ${item}
  steps: [{shell: 'test ${item} -ne 3 && test ${item} -ne 5'}, {shell: 'echo ${item}', when: '${item} != 8'}]
reduce: [{shell: 'echo ${map.successful}'}]
"""


def shown(project: Path, *, whole: bool) -> tuple[Json, list[str]]:
    runs, name = find_run(None, str(project))
    with runs.open(name, write=False) as opened:
        progress, tries = Progress(), Tries()
        journal = _Outline(opened.journal, whole=whole)
        for stamped in journal.events():
            progress.add(stamped)
            tries.add(stamped.event)
        journal.settle(progress)
        said = [text for text, _ in lines(name, "done", progress, journal, tries, now=0.0)]
        return record(name, "done", progress, journal, tries), said


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "flow.yaml").write_text(FLOW)
    return tmp_path


def test_an_outline_shows_what_the_whole_shows(project: Path) -> None:
    run_flow(str(project / "flow.yaml"), Options())
    assert shown(project, whole=False) == shown(project, whole=True)


def test_an_outline_knows_of_items_that_were_retried(project: Path) -> None:
    result = run_flow(str(project / "flow.yaml"), Options())
    (project / "flow.yaml").write_text(FLOW.replace("-ne 3", "-ne 33"))
    assert retry_flow(result.run, project=str(project)).counts["failed"] == 1
    found, said = shown(project, whole=False)
    assert (found, said) == shown(project, whole=True)
    assert [one["path"] for part in found["phases"] for one in part.get("failures", ())] == ["map/item:5"]


def test_the_items_of_a_run_that_was_cut_off_are_counted(project: Path) -> None:
    run_flow(str(project / "flow.yaml"), Options())
    runs, name = find_run(None, str(project))
    with runs.open(name, write=False) as opened:
        reader = opened.journal.reader
        assert reader.ended_in("map") == {"done": 8, "failed": 2}
        inside = [one.event for one in reader.outline() if "item:" in getattr(one.event, "path", "")]
        assert {type(event).__name__ for event in inside} <= {"StepFinished", "Noted"}
        assert {event.path.split("/")[1] for event in inside} == {"item:3", "item:5"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["3", "5", "map/item:3", "item:8", "setup", "reduce/0", "echo begin", "map/item", "map"]
)
def test_a_step_that_is_searched_for_has_the_logs_that_it_has_anyway(project: Path, name: str) -> None:
    result = run_flow(str(project / "flow.yaml"), Options())
    retry_flow(result.run, project=str(project))
    runs, run = find_run(None, str(project))
    with runs.open(run, write=False) as opened:
        journal, reader = opened.journal, opened.journal.reader
        wanted = chosen(journal, name, run)
        assert sorted(chosen(journal, name, run, search=reader)) == sorted(wanted)
        found = list(entries(reader.events_at(wanted), wanted))
        assert found == list(entries(journal.events(), wanted))
        assert found
