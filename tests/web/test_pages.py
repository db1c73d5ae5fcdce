"""The pages of runs: what they show, with hostile names and outputs, and bad addresses."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from plait.app.stop_run import stop_run
from plait.core.errors import PlaitError
from plait.core.values import Json
from plait.program.actions import shell
from plait.views.step_detail import ModelTurnFacts, ToolUse
from plait.web.export import export_run
from plait.web.step_page import _tool_use, _turn
from web.browse import Browser, Outline, run_text
from web.test_html import HOSTILE

pytest.importorskip("starlette", reason="pip install 'plait-flow[web]'")

FLOW = """
name: <script>alert(1)</script>
parameters: {word: {type: string, default: x}}
setup:
  - name: "<img src=x onerror=alert(2)>"
    shell: printf '\\033[31m<b>red</b>\\033[0m \\342\\200\\256 %s' ${word}
map:
  input: {command: "printf '%s\\n' '<svg onload=alert(3)>' good"}
  steps:
    - shell: test ${item} = good
reduce:
  - shell: "echo ${map.successful} of ${map.total}"
"""
NAMED = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
VIEWS = [{"view": one} for one in ("", "overview", "timeline", "graph", "items")]
STEPS = [{"step": one} for one in ("setup", "setup/0", "map", "reduce/0")]


@pytest.fixture
def ran(tmp_path: Path) -> tuple[Browser, str]:
    result = run_text(tmp_path / "p", FLOW, word='"><script>alert(4)</script>')
    return Browser(tmp_path / "p"), result.run


@pytest.mark.parametrize("query", VIEWS + STEPS, ids=str)
def test_a_page_has_no_element_or_address_of_a_run(
    ran: tuple[Browser, str], query: dict[str, str]
) -> None:
    browser, run = ran
    page = browser.run(run, **query)
    assert page.status == 200
    _require_harmless(page.text, scripts=1)


def _require_harmless(text: str, *, scripts: int) -> None:
    page = Outline(text)
    assert page.elements.count("script") == scripts
    assert not {"iframe", "object", "embed", "base"} & {*page.elements}
    assert "img" not in page.elements
    assert not any(name.startswith("on") or name == "style" for name, _ in page.attributes)
    addresses = [value for name, value in page.attributes if name in ("href", "src", "action")]
    assert all(one.startswith(("/", "#", "data:image/svg+xml;base64,")) for one in addresses)
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_a_step_shows_its_command_output_and_values(ran: tuple[Browser, str]) -> None:
    browser, run = ran
    text = browser.run(run, step="setup/0").text
    assert '<span class="a-f1">&lt;b&gt;red&lt;/b&gt;</span>' in text
    assert "Values and where they come from" in text
    assert "${word}" in text
    assert "exit code" in text


BOUND = """
secrets: {TOKEN: WEB_TOKEN}
parameters:
  given: {type: string}
  left: {type: string, default: a default}
setup:
  - shell: printf 'of setup'
    capture: first
map:
  input: [one, two]
  max_parallel: 1
  steps:
    - shell: printf 'of %s' ${item}
      capture: second
    - name: last
      shell: |
        echo ${given} ${left} ${first} ${second} ${item} ${item_index} ${item_total} $TOKEN
"""


def test_a_command_has_the_values_of_the_run_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_TOKEN", "hunter2-hunter2")
    result = run_text(tmp_path / "p", BOUND, given="an input")
    browser = Browser(tmp_path / "p")
    watch = browser.projects.shown(browser.key, result.run).watch
    [_, two] = watch.items("map").window(0, 9).rows
    shown = Outline(browser.run(result.run, step=f"{two.path}/1").text).words
    wanted = "echo 'an input' 'a default' 'of setup' 'of two' two 1 2 '***'"
    assert f"never pasted){wanted}item" in shown
    facts = browser.projects.shown(browser.key, result.run).facts
    assert "hunter2" not in shown + export_run(watch, facts, 0.0)


def test_a_step_that_took_a_while_shows_what_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "LONG_SECONDS", 0.0)
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    page = Browser(tmp_path / "p").run(run, step="steps/0").text
    assert "<dt>computing</dt><dd>0.0 s</dd>" in page
    assert re.search(r"<dt>memory</dt><dd>\d+ MiB</dd>", page)
    assert "Result" not in Outline(page).words


def test_a_step_that_was_quick_does_not_record_what_it_used(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    assert "<dt>computing</dt>" not in Browser(tmp_path / "p").run(run, step="steps/0").text


CHANGING = """
steps:
  - shell: |
      echo more >> kept.txt; rm gone.txt
      touch '<b>new.txt'
  - write_file: {path: out/report.txt, content: x, create_dirs: true}
  - shell: git -c user.name=ada -c user.email=ada@example.org commit -qam two; git rev-parse HEAD
  - shell: echo ${step.commits}
"""


def test_a_step_shows_the_files_that_it_has_changed(tmp_path: Path) -> None:
    place = tmp_path / "p"
    place.mkdir()
    for name in ("kept.txt", "gone.txt"):
        (place / name).write_text("x\n")
    for words in (["init", "-q"], ["add", "-A"], [*NAMED, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=place, check=True)
    run = run_text(place, CHANGING).run
    browser = Browser(place)
    shown = [browser.run(run, step=f"steps/{number}").text for number in range(4)]
    assert (
        "<li><code>&lt;b&gt;new.txt</code> added</li><li><code>kept.txt</code> modified</li>"
        "<li><code>gone.txt</code> deleted</li>"
    ) in shown[0]
    assert "<li><code>out/report.txt</code> written</li>" in shown[1]
    (commit,) = re.findall(r"<dt>commits</dt><dd>([0-9a-f]{12})</dd>", shown[2])
    assert commit in Outline(shown[2]).words.partition("Output")[2]
    assert "<dt>files</dt>" not in shown[3]
    assert "Result" not in Outline(shown[0]).words


def test_items_are_filtered_and_searched(ran: tuple[Browser, str]) -> None:
    browser, run = ran
    base = f"/run/{browser.key}/{run}/items?map=map"
    failed = browser.get(f"{base}&state=failed").text
    assert 'data-total="1"' in failed
    assert "&lt;svg onload=alert(3)&gt;" in failed
    assert 'data-total="1"' in browser.get(f"{base}&q=GOOD").text
    assert 'data-total="2"' in browser.get(base).text
    assert browser.get(f"/run/{browser.key}/{run}/items?map=x").status == 404


def test_the_list_of_runs_is_searched(ran: tuple[Browser, str]) -> None:
    browser, run = ran
    assert f"/run/{browser.key}/{run}" in browser.get("/").text
    assert f"/run/{browser.key}/{run}" in browser.get(f"/?q={run[:5]}&state=partial").text
    for query in ("q=nothing", "state=failed", "project=0"):
        assert run not in browser.get(f"/?{query}").text


def test_buttons_show_the_commands_that_they_stand_for(ran: tuple[Browser, str]) -> None:
    browser, run = ran
    project = browser.projects.folder(browser.key)
    text = browser.run(run).text
    assert f"plait retry {run} --failed --project {project}" in text
    assert 'value="resume"' not in text
    refused = browser.post(f"/run/{browser.key}/{run}/act", action="stop")
    assert (refused.status, "stop is not possible now" in refused.text) == (409, True)


def test_a_run_whose_items_all_failed_is_retried_and_not_resumed(tmp_path: Path) -> None:
    run = run_text(tmp_path, "map: {input: [a], steps: [{shell: exit 1}]}\n").run
    text = Browser(tmp_path).run(run).text
    assert f"plait retry {run} --failed" in text
    assert 'value="resume"' not in text


def test_an_exported_run_needs_nothing_else(ran: tuple[Browser, str]) -> None:
    browser, run = ran
    shown = browser.projects.shown(browser.key, run)
    text = export_run(shown.watch, shown.facts, 0.0)
    _require_harmless(text, scripts=0)
    page = Outline(text)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    places = [value[1:] for name, value in page.attributes if name == "href"]
    assert {*places} <= {*ids}
    assert any(value.startswith("default-src 'none'; style-src") for _, value in page.attributes)
    assert "&lt;svg onload=alert(3)&gt;" in text


def test_a_flow_is_started_with_a_form(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(
        "parameters:\n"
        "  count: {type: integer, default: 3, description: how many}\n"
        "  mode: {choices: [fast, slow]}\n"
        "  tags: {type: array, default: [a]}\n"
        "steps:\n  - shell: echo ${count}\n"
    )
    browser = Browser(tmp_path)
    assert "flow.yaml" in browser.get(f"/start?project={browser.key}").text
    form = browser.get(f"/start?project={browser.key}&flow=flow.yaml")
    assert form.status == 200
    assert 'name="input-count"' in form.text
    assert '<option value="slow">slow</option>' in form.text
    assert "how many" in form.text
    assert "plait run" in form.text
    wrong = browser.post("/start", project=browser.key, flow="flow.yaml", **{"input-count": "x"})
    assert wrong.status == 422
    assert "It did not start" in wrong.text
    right = browser.post(
        "/start",
        project=browser.key,
        flow="flow.yaml",
        **{"input-count": "7", "input-mode": "slow"},
    )
    assert right.status == 303
    assert browser.get(right.headers["location"]).status == 200


SECRET = "op3n-sesame-secret"
SEALED = {
    "graph.yaml": """
secrets: [code, mode, left]
inputs:
  code: string
  n: integer
  mode: {choices: [Fast1234, Slow1234], default: Slow1234}
  left: {type: string, default: a-default-1}
start: first
nodes:
  first: {shell: "echo ${inputs.code} ${inputs.left}", next: last}
  last: {shell: test -e go}
""",
    "schema.yaml": """
secrets: [code]
config_schema:
  type: object
  properties: {code: {type: string, maxLength: 5}, n: {type: integer}}
start: first
nodes: {first: {shell: "echo ${inputs.code}"}}
""",
    "ensemble.yaml": """
secrets: [code]
inputs: {code: string, n: integer}
tasks:
  only: {description: "use ${code} ${n}", tool: core/shell, params: {command: "true"}}
""",
    "workflow.yaml": """
secrets: {code: PLAIT_TEST_CODE}
parameters: {code: string, n: integer}
steps: [{shell: "echo ${n}"}]
""",
}


@pytest.mark.parametrize("flow", SEALED)
def test_a_form_does_not_show_a_secret_again(tmp_path: Path, flow: str) -> None:
    """Not when the flow did not start, in no field, message or command."""
    (tmp_path / flow).write_text(SEALED[flow])
    browser = Browser(tmp_path)
    form = browser.get(f"/start?project={browser.key}&flow={flow}").text
    field = '<input type="password" id="input-code" name="input-code"'
    assert field in form
    assert "<code>-i @-</code> reads secrets from standard input" in form
    given = {"input-code": SECRET, "input-n": "x"}
    wrong = browser.post("/start", project=browser.key, flow=flow, **given)
    assert wrong.status == 422
    assert "It did not start" in wrong.text
    assert field in wrong.text
    assert 'value="x"' in wrong.text
    for page in (form, wrong.text):
        assert SECRET not in page
        assert "a-default-1" not in page
        assert "1234" not in page


def test_a_wrong_secret_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(SEALED["graph.yaml"])
    browser = Browser(tmp_path)
    given = {"input-code": SECRET, "input-n": "1", "input-mode": "Fast1235"}
    wrong = browser.post("/start", project=browser.key, flow="graph.yaml", **given)
    assert (wrong.status, "parameter 'mode' must be one of" in wrong.text) == (422, True)
    assert "Fast1235" not in wrong.text


def test_a_run_with_secrets_is_resumed_with_them(tmp_path: Path) -> None:
    """They are not recorded: the form asks for them, and no page has them."""
    (tmp_path / "graph.yaml").write_text(SEALED["graph.yaml"])
    browser = Browser(tmp_path)
    given = {"input-code": SECRET, "input-n": "1"}
    page = browser.post("/start", project=browser.key, flow="graph.yaml", **given)
    address = page.headers["location"]
    _wait_for(browser, address, "Resume")
    shown = browser.get(address).text
    assert '<input type="password" id="input-code" name="input-code" required' in shown
    run = address.rpartition("/")[2]
    project = browser.projects.folder(browser.key)
    assert f">plait resume {run} --project {project} -i @-<" in shown
    without = browser.post(f"{address}/act", action="resume")
    assert (
        without.status,
        "was given secrets, which are not kept with it: code" in without.text,
    ) == (409, True)
    (tmp_path / "go").touch()
    assert browser.post(f"{address}/act", action="resume", **{"input-code": SECRET}).status == 303
    _wait_for(browser, address, "finished")
    seen = browser.projects.shown(browser.key, run)
    steps = [browser.run(run, step=f"{one}").text for one in ("nodes/first", "nodes/last", "nodes")]
    views = [browser.run(run, **query).text for query in VIEWS]
    exported = export_run(seen.watch, seen.facts, 0.0)
    assert not [one for one in (shown, without.text, *steps, *views, exported) if SECRET in one]


GREET = """
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "greets"
print("hi")
"""
TRUSTING = """
steps:
  - shell: test -e go
  - tool: greet
"""


def test_a_run_that_is_refused_when_it_is_resumed_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, place = tmp_path / "home", tmp_path / "p"
    home.mkdir()
    (place / ".ai" / "tools").mkdir(parents=True)
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(home))
    (place / ".ai" / "tools" / "greet.py").write_text(GREET)
    (place / "flow.yaml").write_text(TRUSTING)
    browser = Browser(place)
    words = {"project": browser.key, "flow": "flow.yaml"}
    refused = browser.post("/start", **words)
    assert (refused.status, 'name="trust"' in refused.text) == (422, True)
    address = browser.post("/start", **words, trust="yes").headers["location"]
    _wait_for(browser, address, "Resume")
    (place / "go").touch()
    plait("trust", "remove", str(place))
    assert browser.post(f"{address}/act", action="resume").status == 303
    _wait_for(browser, address, f"then type: plait trust {place}")
    _wait_for(browser, address, "Resume")
    plait("trust", str(place))
    assert browser.post(f"{address}/act", action="resume").status == 303
    _wait_for(browser, address, "finished")


def plait(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "plait", *words], check=True, capture_output=True)


def _wait_for(browser: Browser, address: str, words: str) -> None:
    until = time.monotonic() + 60
    while words not in browser.get(address).text:
        assert time.monotonic() < until, browser.get(address).text
        time.sleep(0.05)


BAD = [
    # address                      status  words
    ("/nothing",                   404,    "there is no such page"),
    ("/static/../server.py",       404,    "there is no such page"),
    ("/static/web.txt",            404,    "there is no such page"),
    ("/run/{key}/zzzzzzzz",        404,    "there is no run"),
    ("/run/{key}/..%2f..%2fetc",   404,    "there is no"),
    ("/run/0000000000/zzzzzzzz",   404,    "there is no such project here"),
    ("/start?project=x",           404,    "there is no such project here"),
    ("/start?flow=../../x",        404,    "there is no flow"),
]  # fmt: skip


@pytest.mark.parametrize(("address", "status", "words"), BAD)
def test_bad_addresses_get_a_clear_answer(
    ran: tuple[Browser, str], address: str, status: int, words: str
) -> None:
    browser, _ = ran
    page = browser.get(address.format(key=browser.key))
    assert page.status == status
    assert words in page.text


def _newer(folder: Path) -> None:
    with sqlite3.connect(folder / "journal.db") as journal:
        journal.execute("PRAGMA user_version=9")


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("harm", "status", "words"),
    [
        (_newer, 500, "the journal has version 9, and this Plait reads version 1"),
        (_gone, 404, "there is no run '{run}'"),
    ],
)
def test_a_run_that_cannot_be_read_is_named(
    tmp_path: Path, harm: Callable[[Path], None], status: int, words: str
) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    browser = Browser(tmp_path / "p")
    assert browser.run(run).status == 200
    browser.projects.close()
    folder = tmp_path / "p" / ".ai" / "state" / "runs" / run
    harm(folder)
    page = browser.run(run)
    assert page.status == status
    what = words.format(run=run)
    assert f"That did not work{what}" in Outline(page.text).words
    if harm is _newer:
        assert f"<code>{folder / 'journal.db'}</code>" in page.text
        assert "use the Plait that made it, or remove the folder of the run" in page.text
        assert browser.get("/").status == 200
        act = browser.post(f"/run/{browser.key}/{run}/act", action="resume")
        assert (act.status, what in act.text) == (500, True)
    with pytest.raises(PlaitError):
        browser.projects.shown(browser.key, run)


def test_a_run_that_is_removed_while_it_is_shown_is_noticed(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    browser = Browser(tmp_path / "p")
    browser.run(run)
    _gone(tmp_path / "p" / ".ai" / "state" / "runs" / run)
    assert browser.run(run).status == 404


def test_every_hostile_text_may_be_an_item(tmp_path: Path) -> None:
    names = [one for one in HOSTILE if ("\0" not in one and one.isprintable()) or "\u202e" in one]
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "items.json").write_text(json.dumps(names))
    run = run_text(
        tmp_path / "p", "map:\n  input: items.json\n  steps:\n    - shell: echo ${item}\n"
    ).run
    _require_harmless(Browser(tmp_path / "p").run(run, view="items").text, scripts=1)


def test_a_list_without_a_match_does_not_say_that_there_are_no_runs(tmp_path: Path) -> None:
    run_text(tmp_path / "p", "steps:\n  - shell: echo x\n")
    browser = Browser(tmp_path / "p")
    for query in ("?q=nothing", "?state=running"):
        page = browser.get(f"/{query}").text
        assert "no run matches" in page
        assert "no runs here yet" not in page


def test_a_path_that_is_too_long_is_of_no_step(tmp_path: Path) -> None:
    """SQLite refuses a query of a thousand conditions; the journal is not damaged."""
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    page = Browser(tmp_path / "p").run(run, step="a/" * 2000)
    assert page.status == 200
    assert "this run has no such step, or it has not started" in page.text


def body_text(page: str) -> str:
    """The words of a page, with one space between them."""
    return " ".join(Outline(page).words.split())


def test_a_result_has_the_colours_that_were_printed(tmp_path: Path) -> None:
    run = run_text(tmp_path / "p", "steps:\n  - shell: printf '\\033[31m<b>\\033[0m\\n'\n").run
    page = Browser(tmp_path / "p").run(run).text
    assert '<span class="a-f1">&lt;b&gt;</span>' in page.partition('id="result"')[2]
    assert "\ufffd" not in page


CUT_SHORT = """
map:
  input: [one, "<b>two"]
  steps:
    - shell: echo before
    - name: send & pay
      once: true
      shell: touch begun-${item_index}; sleep 60
"""


@pytest.fixture
def cut_short(tmp_path: Path) -> tuple[Browser, str]:
    """A run that its user stopped while both items were in a step that may run once."""
    project = tmp_path / "p"
    project.mkdir()
    (project / "flow.yaml").write_text(CUT_SHORT)
    words = [sys.executable, "-m", "plait", "run", "flow.yaml", "--quiet", "--project", "."]
    with subprocess.Popen(words, cwd=project, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while len(list(project.glob("begun-*"))) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        stop_run(None, str(project))
        process.wait(60)
    browser = Browser(project)
    return browser, browser.projects.lines()[0].run


def test_a_question_about_a_step_names_it_and_its_item(cut_short: tuple[Browser, str]) -> None:
    browser, run = cut_short
    page = browser.run(run).text
    text = body_text(page)
    for item in ("one", "<b>two"):
        assert f"Was “send & pay” in “{item}” done?" in text
    (path, *_) = re.findall(r'value="done:(map/item:[^"]*)"', page)
    assert f'href="/run/{browser.key}/{run}?step={quote(path, safe="")}"' in page


def test_a_run_that_was_stopped_says_so_in_words(cut_short: tuple[Browser, str]) -> None:
    browser, run = cut_short
    text = body_text(browser.run(run).text)
    assert "This run was stopped (SIG" in text
    assert "Why the run failed" not in browser.run(run).text


def test_a_kind_of_failure_is_shown_as_words(tmp_path: Path) -> None:
    run = run_text(tmp_path, "map: {input: [a], steps: [{shell: exit 1}]}\n").run
    page = Browser(tmp_path).run(run).text
    assert "<strong>all failed</strong>" in page
    assert "all_failed" not in page


def test_the_list_separates_its_figures(ran: tuple[Browser, str]) -> None:
    browser, _ = ran
    assert "2, 1 failed" in body_text(browser.get("/").text)


@pytest.mark.parametrize(("shell", "is_shown"), [("exit 1", True), ("exit 0", False)])
def test_a_graph_says_what_its_colours_mean(tmp_path: Path, shell: str, is_shown: bool) -> None:
    flow = f"start: a\nnodes:\n  a: {{shell: {shell}, on_error: b}}\n  b: {{output: x}}\n"
    run = run_text(tmp_path / "p", flow).run
    text = body_text(Browser(tmp_path / "p").run(run, view="graph").text)
    assert "Blue is the way that the run took." in text
    assert ("Red: failed." in text) is is_shown


DEEP = "[" * 2000
RESULTS = [
    # what a tool returned                    what a person reads
    ('{"lines": ["<b>", 2]}',                 '"lines": [\n    "&lt;b&gt;",\n    2\n  ]'),
    ("[1]",                                   "[\n  1\n]"),
    ("{not JSON}",                            "{not JSON}"),
    (DEEP,                                    DEEP),
    ("plain",                                 "plain"),
    ({"a": 1},                                '"a": 1'),
    (None,                                    "arguments of"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "shown"), RESULTS, ids=range(len(RESULTS)))
def test_what_a_tool_returned_is_shown_as_data(result: Json, shown: str) -> None:
    use = ToolUse("agent/turn:1.call:1", "core/file/read", {}, "done", result)
    text = _tool_use(use, "").text
    assert shown in text


@pytest.mark.parametrize(
    ("ending", "words"),
    [("end", None), ("tools", None), ("length", "cut off"), ("refused", "refused")],
)
def test_a_turn_says_in_words_how_it_ended_if_that_matters(ending: str, words: str | None) -> None:
    text = _turn(ModelTurnFacts("agent/turn:1", 1, "done", model="m", ending=ending), "").text
    assert "ended" not in text
    assert (words in text) if words else ("refused" not in text and "cut off" not in text)


def test_a_run_without_items_yet_has_no_list_of_them(tmp_path: Path) -> None:
    """Its list would ask for the items of no map, be refused, and stay empty."""
    run = run_text(tmp_path / "p", "steps:\n  - shell: echo x\n").run
    page = Browser(tmp_path / "p").run(run, view="items").text
    assert 'id="item-list"' not in page
    assert f"{run}/live?view=overview" in page
