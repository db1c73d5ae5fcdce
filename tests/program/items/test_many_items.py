"""Maps with very many items: finished items are replayed all at once, and nothing is kept per item."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plait.adapters.store.reader import Reader
from plait.core.values import Json
from plait.engine.events import EventRecord, ItemsReplayed, StepFinished
from plait.engine.perform import StepContext
from plait.program import map_progress
from plait.program.map import Map
from plait.views.progress import Progress
from runs.stories import Place, new_place

MANY = 500
ITEMS = MANY + 50
FLOW = """\
map:
  input: items.jsonl
  id: "${item.n}"
  max_parallel: 2
  error_policy: {max_failures: 3}
  steps:
  - {when: "${item.bad}", write_file: {path: "${item.where}/file", content: x, create_dirs: false}}
reduce:
- {write_file: {path: counts, content: "${map.successful} ${map.failed} ${map.total}"}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = new_place(tmp_path, monkeypatch)
    monkeypatch.setattr(map_progress, "MANY", MANY)
    bad = {5, MANY - 1, ITEMS - 2}
    lines = (
        f'{{"n": {n}, "bad": {str(n in bad).lower()}, "where": "gone-{n}"}}\n' for n in range(ITEMS)
    )
    made.write("items.jsonl", "".join(lines))
    return made


def test_a_resumed_run_reports_done_items_at_once_and_does_only_the_others(
    place: Place,
) -> None:
    stopped = place.run(FLOW)
    assert "3 items failed" in stopped.message
    before = {path for path in stopped.finished if path.count("/") == 1}
    (place.root / "gone-5").mkdir()
    place.write("flow.yaml", FLOW.replace("max_failures: 3", "max_failures: 30"))
    ran = place.resume(stopped.result.run)
    reported = [event for event in ran.events if isinstance(event, ItemsReplayed)]
    assert [event.done.count(1) for event in reported] == [
        len(before) - 1 - 3
    ]  # not map/items, nor what failed
    again = [
        event for event in ran.events if isinstance(event, StepFinished) and not event.replayed
    ]
    items = [event.path for event in again if event.kind == "item"]
    assert not before.intersection(items)
    assert place.text("counts") == f"{ITEMS - 3} 3 {ITEMS}"
    retried = place.retry(stopped.result.run)
    assert retried.result.counts == {
        "total": ITEMS,
        "successful": ITEMS - 2,
        "failed": 2,
        "skipped": 0,
        "success_rate": 99.64,
    }
    assert (place.root / "gone-5" / "file").exists()


def test_items_replayed_at_once_count_in_a_view_as_one_by_one(place: Place) -> None:
    stopped = place.run(FLOW)
    place.write("flow.yaml", FLOW.replace("max_failures: 3", "max_failures: 30"))
    ran = place.resume(stopped.result.run)
    progress = Progress()
    for number, event in enumerate(ran.events):
        progress.add(EventRecord(number, 0.0, event))
    group = progress.parts["map"].group
    (reported,) = (event for event in ran.events if isinstance(event, ItemsReplayed))
    assert (group.total, group.failure_count, group.success_count) == (ITEMS, 3, ITEMS - 3)
    assert group.replayed == reported.done.count(1) + 3


def test_a_retry_says_that_it_works_before_it_has_gone_through_the_items(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.run(FLOW.replace("max_failures: 3", "max_failures: 30")).result.run
    reported: list[str] = []
    indexed, run_map = Reader._extend, Map.run

    def extended(self: Reader, last: int) -> None:
        reported.append("index")
        indexed(self, last)

    def begun(self: Map, ctx: StepContext) -> Json:
        reported.append("map")
        return run_map(self, ctx)

    monkeypatch.setattr(Reader, "_extend", extended)
    monkeypatch.setattr(Map, "run", begun)
    monkeypatch.setattr(
        Reader.__init__, "__kwdefaults__", {"many": 1}
    )  # every journal is a long one
    # Retried by another text, by that again, and by a third one.
    for number in (1, 1, 2):
        (place.root / f"gone-{number}").mkdir(exist_ok=True)
        place.write("flow.yaml", FLOW.replace("max_failures: 3", f"max_failures: {30 + number}"))
        place.write(
            "flow.yaml", place.text("flow.yaml").replace("content: x", f"content: x{number}")
        )
        reported.clear()
        place.retry(run)
        assert reported[0] == "map"


MEASURED = """\
import re, sys
from plait.app.runs import run_flow
result = run_flow(sys.argv[1])
status = open("/proc/self/status").read()
print(result.counts["total"], re.search("VmHWM:[ \\t]*([0-9]+) kB", status)[1])
"""
"""Not by getrusage: that counts what the process was before it executed Python."""


def test_d26_neither_the_input_nor_the_items_nor_their_results_are_held_in_memory(
    place: Place,
) -> None:
    flow = "map: {input: NAME, id: '${item.n}', max_parallel: 2, steps: [{shell: ls, when: '${item.n} < 0'}]}\n"
    peaks = {}
    for count in (100, 6000):
        lines = (f'{{"n": {n}, "text": "{n:05}{"x" * 5000}"}}\n' for n in range(count))
        place.write(f"{count}.jsonl", "".join(lines))
        place.write("flow.yaml", flow.replace("NAME", f"{count}.jsonl"))
        command = [sys.executable, "-c", MEASURED, "flow.yaml"]
        done = subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=True)
        total, peaks[count] = map(int, done.stdout.split())
        assert total == count
    megabytes = (peaks[6000] - peaks[100]) / 1024
    assert megabytes < 10, "of 30 MB of items"
