"""The buttons of a run do what the commands beside them do."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from web.browse import Browser, run_text

pytest.importorskip("starlette", reason="pip install 'plait-flow[web]'")

ITEMS = """
map:
  input: [a, b, c]
  max_parallel: 1
  steps:
    - shell: echo begin ${item} >> ledger
    - shell: "[ ${item} != b ] || [ -e go ]"
    - shell: echo end ${item} >> ledger
"""
EDITED = """
steps:
  - shell: echo first >> ledger
  - shell: echo second >> ledger; [ -e go ]
  - shell: echo third >> ledger
"""


def final_state(browser: Browser, run: str) -> str:
    """The state of a run when nothing works on it any more."""
    until = time.monotonic() + 60
    while True:
        shown = browser.projects.shown(browser.key, run)
        with shown.lock:
            shown.watch.update()
            if shown.watch.status != "running":
                return shown.watch.status
        assert time.monotonic() < until
        time.sleep(0.05)


def command_beside(page: str, action: str) -> list[str]:
    """The command beside a button."""
    commands = [html.unescape(one) for one in re.findall(r'data-command="([^"]*)"', page)]
    (found,) = [one for one in commands if one.startswith(f"plait {action} ")]
    return shlex.split(found)[1:]


def test_retry_repeats_what_its_command_repeats(tmp_path: Path) -> None:
    """A click in one project, the command that is shown in the other."""
    ledgers = []
    for place in (tmp_path / "clicked", tmp_path / "typed"):
        run = run_text(place, ITEMS).run
        browser = Browser(place)
        (place / "go").touch()
        words = command_beside(browser.run(run).text, "retry")
        before = (place / "ledger").read_text()
        if place.name == "clicked":
            page = browser.post(f"/run/{browser.key}/{run}/act", action="retry")
            assert (page.status, page.headers["location"]) == (303, f"/run/{browser.key}/{run}")
        else:
            subprocess.run([sys.executable, "-m", "plait", *words, "-q"], check=True)
        assert final_state(browser, run) == "done"
        assert "Retry" not in browser.run(run).text
        ledgers.append((before, (place / "ledger").read_text()))
    before = "begin a\nend a\nbegin b\nbegin c\nend c\n"
    assert ledgers == [(before, before + "end b\n")] * 2


def test_an_edited_flow_is_resumed_only_if_the_edit_is_accepted(tmp_path: Path) -> None:
    ledgers = []
    for place in (tmp_path / "clicked", tmp_path / "typed"):
        run = run_text(place, EDITED).run
        (place / "go").touch()
        (place / "flow.yaml").write_text(EDITED.replace("echo first", "echo new"))
        browser = Browser(place)
        act = f"/run/{browser.key}/{run}/act"
        refused = browser.post(act, action="resume")
        assert refused.status == 409
        assert "The command did not succeed" in refused.text
        assert "--accept-changes" in refused.text
        assert (place / "ledger").read_text() == "first\nsecond\n"
        if place.name == "clicked":
            assert browser.post(act, action="resume", accept="yes").status == 303
        else:
            words = [*command_beside(browser.run(run).text, "resume"), "--accept-changes", "-q"]
            subprocess.run([sys.executable, "-m", "plait", *words], check=True)
        assert final_state(browser, run) == "done"
        ledgers.append((place / "ledger").read_text())
    assert ledgers == ["first\nsecond\nnew\nsecond\nthird\n"] * 2


def test_a_retry_that_needs_a_secret_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plait retry` takes no inputs."""
    monkeypatch.setenv("WEB_TOKEN", "hunter2-hunter2")
    head = "secrets: {TOKEN: WEB_TOKEN}\nparameters: {word: string}\n"
    run = run_text(tmp_path / "p", head + ITEMS, word="hunter2-hunter2").run
    browser = Browser(tmp_path / "p")
    text = browser.run(run).text
    assert "needs secrets of the run: set PLAIT_INPUT_word, then start plait web again" in text
    refused = browser.post(f"/run/{browser.key}/{run}/act", action="retry")
    assert (refused.status, "not kept with it: word" in refused.text) == (409, True)
    monkeypatch.setenv("PLAIT_INPUT_word", "hunter2-hunter2")
    browser.projects.close()
    assert "needs secrets" not in browser.run(run).text
    (tmp_path / "p" / "go").touch()
    assert browser.post(f"/run/{browser.key}/{run}/act", action="retry").status == 303
    assert final_state(browser, run) == "done"
    assert "hunter2" not in text + refused.text + browser.run(run).text
