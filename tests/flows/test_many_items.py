"""Maps with very many items: what is done is remembered all at once, and nothing is kept for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.running import Place, new_place
from plait.engine.events import ItemsRemembered, StepFinished
from plait.engine.journal import Stamped
from plait.engine.progress import Progress
from plait.steps import fan

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
    monkeypatch.setattr(fan, "MANY", MANY)
    bad = {5, MANY - 1, ITEMS - 2}
    lines = (f'{{"n": {n}, "bad": {str(n in bad).lower()}, "where": "gone-{n}"}}\n' for n in range(ITEMS))
    made.write("items.jsonl", "".join(lines))
    return made


def test_a_resumed_run_tells_of_those_that_are_done_at_once_and_does_only_the_others(place: Place) -> None:
    stopped = place.run(FLOW)
    assert "3 items failed" in stopped.message
    before = {path for path in stopped.finished if path.count("/") == 1}
    (place.root / "gone-5").mkdir()
    place.write("flow.yaml", FLOW.replace("max_failures: 3", "max_failures: 30"))
    ran = place.resume(stopped.result.run)
    told = [event for event in ran.events if isinstance(event, ItemsRemembered)]
    assert [event.done.count(1) for event in told] == [len(before) - 1 - 3]  # not map/items, nor what failed
    again = [event for event in ran.events if isinstance(event, StepFinished) and not event.replayed]
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


def test_what_is_remembered_at_once_counts_in_a_view_as_one_by_one(place: Place) -> None:
    stopped = place.run(FLOW)
    place.write("flow.yaml", FLOW.replace("max_failures: 3", "max_failures: 30"))
    ran = place.resume(stopped.result.run)
    progress = Progress()
    for number, event in enumerate(ran.events):
        progress.add(Stamped(number, 0.0, event))
    group = progress.parts["map"].group
    (told,) = (event for event in ran.events if isinstance(event, ItemsRemembered))
    assert (group.total, group.failed, group.done) == (ITEMS, 3, ITEMS - 3)
    assert group.replayed == told.done.count(1) + 3
