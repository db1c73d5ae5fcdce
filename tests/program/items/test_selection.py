"""Items that were selected again: failures of an older selection count nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.core.errors import InputError
from runs.stories import Place, new_place

ITEMS = "".join(
    json.dumps({"n": name, "g": group}) + "\n"
    for name, group in zip("abcde", (0, 0, 1, 1, 1), strict=True)
)
C = '{"n":"c","g":1}'
"""What an item is shown as."""
FLOW = """\
map:
  input: items.jsonl
  filter: g == 0
  id: ${item.n}
  max_parallel: 1
  steps: [{shell: 'echo ${item.n} >> seen; [ ${item.n} != b ] && [ ${item.n} != c ] || [ -e mended ]'}]
reduce: [{shell: 'echo ${map.successful} ${map.failed} ${map.total} >> reduced'}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = new_place(tmp_path, monkeypatch)
    place.write("items.jsonl", ITEMS)
    return place


@pytest.fixture
def run(place: Place) -> str:
    """One of which two items were chosen first, then the three others."""
    name = place.run(FLOW).result.run
    place.write("flow.yaml", FLOW.replace("g == 0", "g == 1"))
    assert place.resume(name, accept_changes=True).result.counts["failed"] == 1
    return name


def test_only_failed_items_of_the_present_choice_are_shown(place: Place, run: str) -> None:
    shown = place.plait("show", run).stdout
    assert "3 items, 1 failed" in shown
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("      ✗")] == [C]
    recorded = json.loads(place.plait("show", run, "--json").stdout)["phases"][0]
    assert [one["title"] for one in recorded["failures"]] == [C]


def test_an_item_of_an_older_choice_cannot_be_retried(place: Place, run: str) -> None:
    reduced = place.text("reduced")
    with pytest.raises(InputError) as caught:
        place.retry(run, items=["b"])
    assert caught.value.what == "no failed item is called 'b'"
    assert place.text("reduced") == reduced


def test_all_failed_items_are_those_of_the_present_choice(place: Place, run: str) -> None:
    place.write("mended", "")
    before = place.text("seen")
    counts = place.retry(run).result.counts
    assert (counts["total"], counts["successful"], counts["failed"]) == (3, 3, 0)
    assert place.text("seen")[len(before) :] == "c\n"


def test_a_map_that_had_enough_counts_the_items_of_its_choice(place: Place) -> None:
    flow = FLOW.replace("max_parallel", "max_failures: 2\n  max_parallel").replace("!= b", "!= d")
    name = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("g == 0", "g == 1"))
    counts = place.resume(name, accept_changes=True).result.counts
    assert (counts["total"], counts["successful"], counts["failed"]) == (3, 0, 2)
