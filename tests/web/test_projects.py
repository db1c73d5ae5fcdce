"""Several projects in one list: which ones, and that none shows the runs of another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.web.addresses import project_key
from plait.web.projects import known_projects
from web.browse import Browser, run_text

pytest.importorskip("starlette", reason="pip install 'plait-flow[web]'")

TOOL = """#!/bin/sh
# version: 1.0.0
# tool_type: script
# executor_id: core/runtimes/bash
# description: greets
echo hi
"""
FLOW = "steps:\n  - shell: echo {}\n"


@pytest.fixture
def two(tmp_path: Path) -> tuple[Browser, dict[str, tuple[str, str]]]:
    """By name: the key of a project, and a run in it."""
    found = {}
    for name in ("one", "two"):
        run = run_text(tmp_path / name, FLOW.format(name)).run
        (tmp_path / name / f"{name}.yaml").write_text(FLOW.format(name))
        found[name] = (project_key(str((tmp_path / name).resolve())), run)
    return Browser(tmp_path / "one", tmp_path / "two"), found


def test_the_list_has_the_runs_of_all_projects_or_of_one(
    two: tuple[Browser, dict[str, tuple[str, str]]],
) -> None:
    browser, runs = two
    (one, first), (other, second) = runs["one"], runs["two"]
    lists = [
        browser.get(f"/{query}").text for query in ("", f"?project={one}", f"?project={other}")
    ]
    shown = [(f"/run/{one}/{first}" in text, f"/run/{other}/{second}" in text) for text in lists]
    assert shown == [(True, True), (True, False), (False, True)]
    assert f'<option value="{other}" selected>two</option>' in lists[2]
    assert all('<th scope="col">Project</th>' in text for text in lists)


def test_a_project_has_its_own_runs_and_flows_only(
    two: tuple[Browser, dict[str, tuple[str, str]]],
) -> None:
    browser, runs = two
    (one, first), (other, second) = runs["one"], runs["two"]
    for key, run, status in (
        (one, first, 200), (other, second, 200), (one, second, 404), (other, first, 404),
    ):  # fmt: skip
        assert browser.get(f"/run/{key}/{run}").status == status
        if status == 404:
            assert browser.post(f"/run/{key}/{run}/act", action="resume").status == 404
    for key, status in ((one, 404), (other, 200)):
        assert browser.get(f"/start?project={key}&flow=two.yaml").status == status
        assert (
            browser.post("/start", project=key, flow="two.yaml").status
            == {404: 404, 200: 303}[status]
        )
    flows = browser.get(f"/start?project={other}").text
    assert ("two.yaml" in flows, "one.yaml" in flows) == (True, False)
    assert f'href="/start?project={one}"' in flows


def test_a_run_that_began_elsewhere_is_not_acted_on(
    two: tuple[Browser, dict[str, tuple[str, str]]], tmp_path: Path
) -> None:
    """Somebody put its folder below another project."""
    browser, runs = two
    (_, first), (other, _) = runs["one"], runs["two"]
    inside = Path(".ai", "state", "runs", first)
    subprocess.run(["cp", "-a", tmp_path / "one" / inside, tmp_path / "two" / inside], check=True)
    page = browser.get(f"/run/{other}/{first}")
    assert page.status == 200
    assert "this run did not begin here" in page.text
    assert browser.post(f"/run/{other}/{first}/act", action="resume").status == 409


def test_known_projects_are_those_that_are_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    (tmp_path / "link").symlink_to(two)
    named = [str(two), str(one), f"{two}/", str(tmp_path / "link")]
    assert known_projects(named, str(one)) == [str(two.resolve()), str(one.resolve())]


def test_known_projects_are_this_one_and_trusted_ones_with_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(home))
    for name in ("here", "trusted", "without-runs", "removed", "unknown"):
        (tmp_path / name / ".ai" / "tools").mkdir(parents=True)
        (tmp_path / name / ".ai" / "tools" / "greet.sh").write_text(TOOL)
        if name != "without-runs":
            run_text(tmp_path / name, FLOW.format(name))
        if name in ("trusted", "without-runs", "removed"):
            words = [sys.executable, "-m", "plait", "trust", str(tmp_path / name)]
            subprocess.run(words, check=True, capture_output=True)
    os.rename(tmp_path / "removed", tmp_path / "elsewhere")
    here, trusted = (str((tmp_path / name).resolve()) for name in ("here", "trusted"))
    assert known_projects(None, here) == [here, trusted]
    assert known_projects(None, trusted) == [trusted]
