"""A guardian that is killed or stopped in the middle of a run: what it ran was cut short, and is done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.app.flows import Company, resume_flow, run_flow
from plait.engine.events import Event, Noted, StepFinished
from plait.engine.outcome import Failed
from plait.errors import GuardianError
from plait.primitives.jobs import WAS_STOPPED
from plait.primitives.process import run

LOST = (
    "the guardian, through which Plait starts processes, has ended, and with it whatever it ran\n"
    "fix: look who killed it (lack of memory?), then go on: what it ran was cut short and is done again"
)
# The parent of every process that a step starts is the guardian.
KILLS = "[ -e killed ] || { touch killed; kill -9 $PPID; sleep 60; }; echo ok"

FLOWS = {
    "a step": f"steps:\n  - shell: '{KILLS}'\n",
    "an item": f"map:\n  input: {{items: [1, 2, 3]}}\n  max_parallel: 2\n  steps:\n    - shell: '{KILLS}'\n",
    "a step with a handler": (
        f"steps:\n  - shell: '{KILLS}'\n    retry: {{attempts: 3}}\n    on_failure: {{shell: touch handled}}\n"
    ),
    "a function": (
        f"map:\n  input: {{items: [1, 2]}}\n  steps:\n    - {{tool: core/shell, params: {{command: '{KILLS}'}}}}\n"
    ),
    "a graph": (
        "name: g\nstart: a\nnodes:\n"
        f"  a: {{tool: core/shell, params: {{command: '{KILLS}'}}, on_error: b}}\n"
        "  b: {tool: core/shell, params: {command: touch handled}}\n"
    ),
}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
def test_what_a_killed_guardian_cut_short_has_not_failed_and_is_done_again(tmp_path: Path, flow: str) -> None:
    (tmp_path / ".ai").mkdir()
    (tmp_path / "f.yaml").write_text(flow)
    events: list[Event] = []
    company = Company([lambda one: events.append(one.event)])
    first = run_flow(str(tmp_path / "f.yaml"), project=str(tmp_path), company=company)
    assert (first.status, first.exit_code) == ("failed", 1)
    assert first.failure is not None
    assert first.failure.message == LOST
    assert [one for one in events if isinstance(one, StepFinished) and isinstance(one.outcome, Failed)] == []
    again = resume_flow(first.run, project=str(tmp_path))
    assert (again.status, again.exit_code, again.counts.get("failed", 0)) == ("done", 0, 0)
    assert not (tmp_path / "handled").exists(), "no handler goes on after it"


def test_a_program_alone_says_so() -> None:
    with pytest.raises(GuardianError) as caught:
        run(["sh", "-c", "kill -9 $PPID; sleep 60"])
    assert str(caught.value) == LOST


def test_a_stopped_guardian_is_noticed_continued_and_said(tmp_path: Path) -> None:
    with pytest.raises(GuardianError):
        run(["sh", "-c", "kill -9 $PPID; sleep 60"])  # the next one is new, and has said nothing yet
    (tmp_path / ".ai").mkdir()
    (tmp_path / "f.yaml").write_text("steps:\n  - shell: kill -STOP $PPID; echo ok\n")
    events: list[Event] = []
    company = Company([lambda one: events.append(one.event)])
    result = run_flow(str(tmp_path / "f.yaml"), project=str(tmp_path), company=company)
    assert result.status == "done"
    assert [one for one in events if isinstance(one, Noted)] == [Noted("", WAS_STOPPED, warning=True)]
