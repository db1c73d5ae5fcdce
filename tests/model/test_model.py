"""Random stories of edits, deaths and resumed runs; `make fuzz` runs many more: fuzz/resume_fuzz.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.story import run_story
from plait.engine.perform import StepContext

SEEDS = range(1000, 1008)
KNOWN = [2, 3, 24, 66, 438, 1257, 1364]
"""Seeds that found a bug once, or find one when a rule is removed."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.mark.parametrize("seed", [*KNOWN, *SEEDS])
def test_a_run_ends_as_if_it_had_neither_been_killed_nor_edited(tmp_path: Path, seed: int) -> None:
    story = run_story(tmp_path / "project", seed)
    assert story.found == [], story.lines


def forgets_what_was_before(ctx: StepContext, path: str) -> StepContext:  # noqa: ARG001
    return ctx


def test_the_model_sees_a_step_replayed_after_one_that_was_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepContext, "_after_replay", forgets_what_was_before)
    found = run_story(tmp_path / "project", 8).found
    assert "merge/s0 was replayed, and reduce/0 before it was done again" in found


def test_the_model_sees_what_may_run_once_begun_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.engine.replay.Replay.require_answer", lambda *_: None)
    found = run_story(tmp_path / "project", 2).found
    assert "begun again, its end was not known, and nobody was asked: map/item:s/s0" in found


def test_the_model_sees_a_recorded_step_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.engine.replay.Replay.find", lambda *_: None)
    found = [rule for seed in range(3) for rule in run_story(tmp_path / str(seed), seed).found]
    assert any("again without need: " in rule for rule in found)


def test_the_model_sees_that_no_question_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.app.edited_flow.find_changed_steps", lambda *_: {})
    found = [rule for seed in range(16, 20) for rule in run_story(tmp_path / str(seed), seed).found]
    assert any(
        rule.startswith(("nobody was asked about ", "refused in the middle")) for rule in found
    )
