"""A run that is watched: the same facts as its report, with attempts and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.stop_run import stop_run
from plait.core.errors import InputError
from plait.views.report import read_report
from plait.views.step_detail import read_step
from web.browse import Browser, run_text

FLOW = """
setup:
  - id: flaky
    shell: "test -e done || { touch done; echo first; exit 3; }"
    retry: {attempts: 2, initial_delay: 0s}
map:
  input: [one, two, three]
  steps:
    - shell: test ${item} != two
"""


def test_a_watched_run_has_the_counts_of_its_report(tmp_path: Path) -> None:
    result = run_text(tmp_path / "p", FLOW)
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, result.run).watch
    report = read_report(result.run, watch.journal, is_running=lambda: False, short=False)
    assert watch.progress.items == report.progress.items == (3, 3)
    assert watch.status == report.status == "done"
    table = watch.items("map")
    assert [table.count(state) for state in ("done", "failed", "waiting")] == [2, 1, 0]
    assert [row.title for row in table.window(0, 9, state="failed").rows] == ["two"]


def test_a_retried_step_has_its_attempts_and_their_output(tmp_path: Path) -> None:
    result = run_text(tmp_path / "p", FLOW)
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, result.run).watch
    node = watch.tree.get("setup/flaky")
    assert node is not None
    assert [(one.number, one.state, one.cause) for one in node.attempts] == [
        (1, "failed", "exit 3"),
        (2, "done", ""),
    ]
    detail = read_step(watch.journal.reader.events_at(["setup/flaky"]), "setup/flaky")
    assert detail is not None
    assert detail.exit_code == 0
    page = browser.run(result.run, step="setup/flaky").text
    assert "first" in page
    assert "Attempts" in page


def test_what_no_process_works_on_cannot_be_stopped(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    with pytest.raises(InputError) as caught:
        stop_run(run, str(tmp_path / "p"))
    assert caught.value.what == f"no process works on run {run}"
    assert caught.value.fix == f"plait show {run}"
