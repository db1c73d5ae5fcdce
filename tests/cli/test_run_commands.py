"""`plait run`, `resume`, `retry`, `show` and `logs` of small flows, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.adapters.store.reader import Reader
from plait.cli import main

Capsys = pytest.CaptureFixture[str]
GRAPH = """\
start: draft
nodes:
  draft: {shell: echo hi, next: done}
  done: {return: 1}
"""
MAP = """\
map: {input: [1, 2], max_parallel: 1, steps: [{shell: 'test -e ok'}]}
"""


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", [["show", "nope"], ["logs", "nope"], ["logs", "last", "nope"]])
def test_with_json_an_error_is_json(command: list[str], capsys: Capsys) -> None:
    Path("flow.yaml").write_text("steps: [{shell: 'true'}]\n")
    assert main(["run", "flow.yaml", "--quiet"]) == 0
    assert main([*command, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert "nope" in json.loads(out)["error"]["what"]


@pytest.mark.usefixtures("project")
def test_a_graph_that_is_replayed_has_the_visits_that_it_had(capsys: Capsys) -> None:
    Path("flow.yaml").write_text(GRAPH)
    assert main(["run", "flow.yaml", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["resume", "last"]) == 0
    assert "nodes: done, 2 visits, replayed\n" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("items", [1, 1000])
def test_show_counts_items_that_were_retried(
    items: int, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "is_long", lambda _: items > 1)
    Path("flow.yaml").write_text(MAP)
    assert main(["run", "flow.yaml", "--quiet"]) == 1
    Path("ok").touch()
    assert main(["retry", "--failed", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["retries"] == 2


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("option", ["--dry-run", "--prompt-only"])
def test_a_project_is_trusted_before_a_dry_run_too(option: str, capsys: Capsys) -> None:
    if option == "--dry-run":
        Path("flow.yaml").write_text("steps: [{tool: team/report, params: {week: 1}}]\n")
        command = ["run", "flow.yaml", option]
    else:
        Path("ask.md").write_text("---\nmodel: none\ntools: [team/report]\n---\nHello\n")
        command = ["run", "ask.md", option]
    main(command)
    capsys.readouterr()
    assert main([*command, "--trust"]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["projects"][0]["origin"] == "--trust"
