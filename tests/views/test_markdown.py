"""Text of a run is text in Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.test_events import next_event, plait
from plait.cli import main
from plait.views.markdown import escape

TEXTS = [
    # text                   Markdown in which GitHub finds no link and no mention
    ("plain, 1.5 s",         "plain, 1.5 s"),
    ("<b> [x](y)",           "&#60;b&#62; &#91;x&#93;(y)"),
    ("see www.evil.example", "see www&#46;evil.example"),
    ("WWW.evil.example",     "WWW&#46;evil.example"),
    ("http://evil.example",  "http&#58;//evil.example"),
    ("me@evil.example",      "me&#64;<!-- -->evil.example"),
    ("@everybody",           "&#64;<!-- -->everybody"),
    ("red\x1b[31m \x1b[0m",   "red"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "markdown"), TEXTS)
def test_text_is_escaped(text: str, markdown: str) -> None:
    assert escape(text) == markdown


def test_the_reason_stands_below_the_failures_that_do_not_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    flow = "name: nightly\nmap: {input: [a, b], steps: [{shell: 'false'}]}\n"
    (tmp_path / "flow.yaml").write_text(flow)
    assert main(["run", "flow.yaml", "--quiet"]) == 1
    capsys.readouterr()
    assert main(["show", "--markdown"]) == 0
    assert "\n\n```text\nall 2 items failed\n```\n" in capsys.readouterr().out


def test_a_run_whose_process_has_died_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    flow = (
        "name: nightly\nsetup: [{shell: 'true'}]\n"
        "map: {input: [a, b, c], steps: [{shell: 'case ${item} in a) false;; c) sleep 60;; esac'}]}\n"
    )
    (tmp_path / "flow.yaml").write_text(flow)
    with plait("run", "flow.yaml", "--json") as run:
        next_event(run, event="step_finished", kind="item", title="b")
        run.kill()
        run.wait()
    assert main(["show", "--markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| ✓ | setup | done, 1 step, 0.0 s |",
        "| ■ | map | interrupted, 2 of 3 items, 1 failed |",
    ]
    assert main(["show", "--format", "github"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "::error title=nightly,file=flow.yaml::the process of this run died"
