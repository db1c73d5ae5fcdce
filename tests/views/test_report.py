"""A long run is shown by its outline: it says what all of its events would."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plait.adapters.store import Runs
from plait.adapters.store.reader import Reader
from plait.app.runs import Options, RunObservers, find_run, resume_flow, retry_flow, run_flow
from plait.core.values import Json
from plait.engine.events import (
    Event,
    EventRecord,
    ItemsCounted,
    RunStarted,
    StepFinished,
    StepInvalidated,
    StepStarted,
)
from plait.engine.outcome import Succeeded
from plait.engine.stop import StopSignal
from plait.views.log import find_paths, log_entries
from plait.views.report import read_report, report_json, report_lines

FLOW = """\
name: long
setup: [{shell: echo begin}]
map:
  input: {items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
  id: ${item}
  steps: [{shell: 'test ${item} -ne 3 && test ${item} -ne 5'}, {shell: 'echo ${item}', when: '${item} != 8'}]
reduce: [{shell: 'echo ${map.successful}'}]
"""


def shown(project: Path, *, whole: bool, short: bool = False) -> tuple[Json, list[str]]:
    runs, name = find_run(None, str(project))
    with runs.open(name, write=False) as opened:
        report = read_report(
            name, opened.journal, is_running=lambda: False, whole=whole, short=short
        )
        report.status = "done"
        lines = [text for text, _ in report_lines(report, now=0.0)]
        return report_json(report, now=0.0), lines


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "flow.yaml").write_text(FLOW)
    return project


def test_an_outline_shows_what_the_whole_shows(project: Path) -> None:
    run_flow(str(project / "flow.yaml"), Options())
    assert shown(project, whole=False) == shown(project, whole=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_running_run_names_what_runs_now_and_since_when(tmp_path: Path, *, whole: bool) -> None:
    at = [0.0]
    runs = Runs(str(tmp_path), now=lambda: at[0])
    phases = (("map", 1),)
    begin = RunStarted("x", "f", "flow.yaml", str(tmp_path), resumed=False, phases=phases)
    again = RunStarted("x", "f", "flow.yaml", str(tmp_path), resumed=True, phases=phases)
    history: list[tuple[float, Event]] = [
        (1.0, begin),
        (1.0, StepStarted("map", "map", "map")),
        (1.0, ItemsCounted("map", 3)),
        (2.0, StepStarted("map/item:a", "item", "a.txt")),
        (2.0, StepStarted("map/item:b", "item", "b.txt", order=1)),
        (3.0, StepFinished("map/item:a", "item", "a.txt", "", Succeeded({}), 1.0)),
        (5.0, again),  # the first attempt was killed while b.txt ran
        (5.0, StepStarted("map", "map", "map")),
        (5.0, ItemsCounted("map", 3)),
        (6.0, StepStarted("map/item:c", "item", "c.txt", order=2)),
    ]
    with runs.create({"file": "flow.yaml", "flow": "f", "project": str(tmp_path)}) as opened:
        for at[0], event in history:
            opened.journal.append(event)
        report = read_report(
            "x", opened.journal, is_running=lambda: True, whole=whole, short=not whole
        )
    record = report_json(report, now=9.0)
    assert record["status"] == "running"
    assert record["duration"] == 6.0  # two seconds of the first attempt, four of this one
    assert [part["running"] for part in record["phases"]] == [
        [{"path": "map/item:c", "title": "c.txt", "since": 6.0, "attempt": 1, "inside": None}]
    ]
    lines = [text for text, _ in report_lines(report, now=9.0)]
    assert lines[1].endswith(", 6.0 s, continued 1 time")  # by `plait resume` or `plait retry`
    assert lines[3] == (
        f"      ● c.txt   since {time.strftime('%H:%M:%S', time.localtime(6.0))}, 3.0 s"
    )


def test_a_short_outline_says_what_the_whole_says(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = FLOW.replace("id: ${item}", "id: ${item}\n  retry: {attempts: 2, initial_delay: 1ms}")
    (project / "flow.yaml").write_text(flow)
    run = run_flow(str(project / "flow.yaml"), Options()).run
    assert shown(project, whole=False, short=True) == shown(project, whole=True)
    monkeypatch.setattr("plait.views.report.MOST_FAILURES", 1)
    assert shown(project, whole=False, short=True)[1] == shown(project, whole=True)[1]
    (project / "flow.yaml").write_text(flow.replace("-ne 3", "-ne 33"))
    retry_flow(run, project=str(project))
    assert shown(project, whole=False, short=True)[1] == shown(project, whole=True)[1]
    (project / "flow.yaml").write_text(flow.replace("-ne 3", "-ne 33").replace("-ne 5", "-ne 55"))
    retry_flow(run, project=str(project))
    found, lines = shown(project, whole=False, short=True)
    assert (found, lines) == shown(project, whole=True)
    assert not any("✗" in line for line in lines)


def test_what_is_asked_of_a_long_journal_does_not_grow_with_its_failures(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = FLOW.replace(
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", str([3, 5] + [100 + n for n in range(60)])
    )
    (project / "flow.yaml").write_text(
        many.replace("test ${item} -ne 3 && test ${item} -ne 5", "exit 1")
    )
    run_flow(str(project / "flow.yaml"), Options())
    runs, name = find_run(None, str(project))
    asked: list[str] = []
    real = Reader._all

    def counting(self: Reader, query: str, *values: object) -> list[object]:
        asked.append(query)
        return real(self, query, *values)

    monkeypatch.setattr(Reader, "_all", counting)
    with runs.open(name, write=False) as opened:
        reader = opened.journal.reader
        reader._many = 1  # it is long
        events = list(reader.short_outline(5))
        assert sum("item:" in getattr(one.event, "path", "") for one in events) == 10
        assert len(list(reader.failure_titles("map"))) == reader.count_failures("map") == 62
        assert [one.path for one in reader.steps_in("reduce")] == ["reduce/0"]
        assert reader.step("map") is not None
    assert len(asked) < 62, "one for each failure would be more"
    assert not any("INSERT INTO temp.known" in query for query in asked), "no index is made"


def test_many_that_are_forgotten_at_once_are_forgotten_in_their_order(tmp_path: Path) -> None:
    with Runs(str(tmp_path)).create({}) as opened:
        ended = [
            StepFinished(f"map/item:{n}{rest}", "item", "", "f", Succeeded(n), 0.0, n)
            for n in range(4)
            for rest in ("/0", "")
        ]
        opened.journal.append(
            *ended,
            StepInvalidated("map/item:0", ""),
            StepInvalidated("map/item:1", "", below=False),
        )
        opened.journal.append(ended[1], StepInvalidated("map/item:3", ""))
        found = {
            path: opened.journal.step(path) is not None for path in (one.path for one in ended)
        }
        assert [path for path, is_known in found.items() if not is_known] == [
            "map/item:0/0", "map/item:1", "map/item:3/0", "map/item:3",
        ]  # fmt: skip


def test_an_outline_knows_of_items_that_were_retried(project: Path) -> None:
    result = run_flow(str(project / "flow.yaml"), Options())
    (project / "flow.yaml").write_text(FLOW.replace("-ne 3", "-ne 33"))
    assert retry_flow(result.run, project=str(project)).counts["failed"] == 1
    found, lines = shown(project, whole=False)
    assert (found, lines) == shown(project, whole=True)
    assert [one["path"] for part in found["phases"] for one in part.get("failures", ())] == [
        "map/item:5"
    ]


def test_the_items_of_a_run_that_was_cut_off_are_counted(project: Path) -> None:
    run_flow(str(project / "flow.yaml"), Options())
    runs, name = find_run(None, str(project))
    with runs.open(name, write=False) as opened:
        reader = opened.journal.reader
        assert reader.count_outcomes("map") == {"done": 8, "failed": 2}
        inside = [
            one.event for one in reader.outline() if "item:" in getattr(one.event, "path", "")
        ]
        assert {type(event).__name__ for event in inside} <= {"StepFinished", "Noted"}
        assert {event.path.split("/")[1] for event in inside} == {"item:3", "item:5"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("on_item_failure: dlq", {"done": 7, "failed": 2, "skipped": 0}),
        ("on_item_failure: skip", {"done": 7, "failed": 0, "skipped": 2}),
    ],
)
def test_an_item_that_ended_in_two_run_attempts_is_counted_once(
    project: Path, policy: str, counts: dict[str, int]
) -> None:
    setup = FLOW.replace("setup: [", "setup: [{foreach: [1, 2], do: [{shell: 'true'}]}, ")
    flow = setup.replace("id: ${item}", f"id: ${{item}}\n  max_parallel: 1\n  {policy}").replace(
        "  steps: [", "  steps: [{shell: 'test ${item} -ne 9 || sleep 60'}, "
    )
    (project / "flow.yaml").write_text(flow)
    run = interrupted(project)
    (project / "flow.yaml").write_text(flow.replace("echo ${item}", "echo ${item}."))
    assert interrupted(project, run) == run
    found, lines = shown(project, whole=False)
    (part,) = (part for part in found["phases"] if part["name"] == "map")
    assert {name: part[name] for name in ("total", "done", "failed", "skipped")} == {
        "total": 10,
        **counts,
    }
    assert any("9/10" in line for line in lines)


def interrupted(project: Path, run: str | None = None) -> str:
    """A run attempt that ends during the last item; the next one repeats changed items."""
    stop = StopSignal()

    def watch(reported: EventRecord) -> None:
        if isinstance(reported.event, StepStarted) and reported.event.path == "map/item:9/0":
            stop.ask()

    observers = RunObservers([watch], stop)
    if run is None:
        result = run_flow(str(project / "flow.yaml"), Options(), observers=observers)
    else:
        result = resume_flow(run, project=str(project), accept_changes=True, observers=observers)
    assert result.status == "interrupted"
    return result.run


@pytest.mark.parametrize(
    "name", ["3", "5", "map/item:3", "item:8", "setup", "reduce/0", "echo begin", "map/item", "map"]
)
def test_a_step_that_is_searched_for_has_the_logs_that_it_has_anyway(
    project: Path, name: str
) -> None:
    result = run_flow(str(project / "flow.yaml"), Options())
    retry_flow(result.run, project=str(project))
    runs, run = find_run(None, str(project))
    with runs.open(run, write=False) as opened:
        journal, reader = opened.journal, opened.journal.reader
        wanted = find_paths(journal, name, run)
        assert sorted(find_paths(journal, name, run, search=reader)) == sorted(wanted)
        found = list(log_entries(reader.events_at(wanted), wanted))
        assert found == list(log_entries(journal.events(), wanted))
        assert found


def test_many_steps_that_are_deep_inside_others_are_found_at_once(project: Path) -> None:
    """SQLite refuses a query of a thousand conditions; the journal is not damaged."""
    run_flow(str(project / "flow.yaml"), Options())
    runs, run = find_run(None, str(project))
    with runs.open(run, write=False) as opened:
        reader = opened.journal.reader
        deep = [f"map/item:3/{number}" + "/0" * 20 for number in range(50)]
        inside = {one.number for one in reader.events_at(["map/item:3/0"])}
        whole = {one.number for one in reader.events_at(["map/item:3"])}
        assert {one.number for one in reader.events_at(deep)} <= inside <= whole
        assert [type(one.event) for one in reader.events_at([])] == [RunStarted]
        assert [type(one.event) for one in reader.events_at(["0/" * 2000])] == [RunStarted]


def test_a_map_that_has_found_no_items_yet_has_no_total(project: Path) -> None:
    (project / "flow.yaml").write_text(
        FLOW.replace("{items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}", "{command: exit 3}")
    )
    assert run_flow(str(project / "flow.yaml"), Options()).status == "failed"
    found, _ = shown(project, whole=True)
    assert isinstance(found, dict)
    assert isinstance(found["phases"], list)
    totals = [(part["name"], part["total"]) for part in found["phases"] if isinstance(part, dict)]
    assert totals == [("setup", 1), ("map", None), ("reduce", 1)]


def test_failures_of_an_earlier_choice_of_items_are_not_shown(project: Path) -> None:
    result = run_flow(str(project / "flow.yaml"), Options())
    (project / "flow.yaml").write_text(FLOW.replace("2, 3, 4, 5", "2, 4"))
    assert resume_flow(result.run, project=str(project), accept_changes=True).counts["failed"] == 0
    for whole in (True, False):
        found, _ = shown(project, whole=whole)
        assert isinstance(found, dict)
        assert isinstance(found["phases"], list)
        assert [
            part["failures"]
            for part in found["phases"]
            if isinstance(part, dict) and "failures" in part
        ] == [[]]
