"""Every page of `plait web` in a real Chromium: readable by all, live, safe, and quick with 100,000 items."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.drive import Browser, Web, open_browser, plait_web, require_browser

pytest.importorskip("uvicorn", reason="no HTTP server is here: pip install 'plait-flow[web]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<svg onload='window.hacked = 2'><script>window.hacked = 3</script></svg>",
    "\"><img src=x onerror='window.hacked = 4'>",
    "' onmouseover='window.hacked = 5' x='",
    "javascript:window.hacked = 6",
    "\u202egnp.exe\u202c\u2066",
    "\x1b[31mred\x1b[0m\x1b]8;;javascript:window.hacked=7\x07link\x1b]8;;\x07",
    "</pre></div></main></template>",
    "${env.HOME} {{7*7}} <!-- ",
    "http://evil.example/?a=b&c=<d>",
    "a" * 3000,
]
FLOWS = {
    "hostile.yaml": r"""
name: "<script>window.hacked = 8</script> & \"friends\""
description: "</title><script>window.hacked = 9</script>"
parameters:
  "word": {type: string, default: "\"><script>window.hacked = 10</script>", description: "<b onclick=alert(1)>x</b>"}
map:
  input: items.json
  max_parallel: 2
  steps:
    - shell: |
        printf '%s\n' ${item} ${word}
        printf '\033[1;31mred\033[0m <script>window.hacked = 11</script>\033]0;title\007\n'
        printf '\033[30;42mon green\033[0m \033[37;44mon blue\033[0m \033[7;31mreverse\033[0m \033[2;30mdim\033[0m\n'
        case ${item_index} in 3) printf '\033[32mgreen\033[30;47mgrey\033[0m %s\n' ${item} >&2; exit 3;; esac
reduce:
  - shell: printf '%s\n' '<svg onload="window.hacked = 12">'
""",
    "waiting.yaml": """
name: waiting
map:
  input: [a, b, c]
  max_parallel: 1
  steps:
    - shell: |
        echo begin ${item}
        while [ ${item} = b ] && [ ! -e go ]; do sleep 0.05; done
""",
    "ticking.yaml": """
name: ticking
steps:
  - shell: n=0; while [ ! -e enough ]; do n=$((n+1)); echo tick $n; sleep 0.05; done
""",
    "graph.yaml": """
name: pick
start: first
nodes:
  first:
    shell: echo one
    next: last
  last:
    shell: echo two
""",
    "form.yaml": """
name: form
parameters:
  who: {type: string, description: whom to greet}
  times: {type: integer, default: 2}
steps:
  - shell: echo hello ${who} ${times}
""",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = str(tmp_path_factory.mktemp("home"))
    return {**os.environ, "HOME": home, "USER_SPACE": home, "XDG_STATE_HOME": f"{home}/state"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    (project / ".ai").mkdir()
    for name, text in FLOWS.items():
        (project / name).write_text(text)
    (project / "items.json").write_text(json.dumps(HOSTILE))
    return project


def plait(project: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "plait", *words],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(project: Path, environment: dict[str, str]) -> dict[str, str]:
    """Ids of recorded runs, by flow."""
    require_browser()
    for flow in ("hostile.yaml", "graph.yaml"):
        plait(project, environment, "run", flow, "--quiet")
    listed = json.loads(plait(project, environment, "runs", "--json"))
    return {Path(one["file"]).name: one["id"] for one in listed}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def web(
    project: Path, environment: dict[str, str], runs: dict[str, str], browser: Browser
) -> Iterator[Web]:
    assert runs
    with plait_web(project, environment) as web:
        browser.do("look", width=1280, height=900, scheme="light")
        assert browser.open(web.link) == 200
        yield web


def links(browser: Browser) -> list[str]:
    found: list[str] = browser.evaluate(
        "() => [...document.querySelectorAll('a[href]')].map((one) => one.href.split('#')[0])"
    )
    return list(dict.fromkeys(found))


def all_pages(browser: Browser, web: Web) -> list[str]:
    """Every page that links lead to, of each kind a few."""
    seen: dict[str, str] = {}
    waiting = [f"{web.origin}/"]
    taken: dict[str, int] = {}
    while waiting:
        url = waiting.pop(0)
        kind = url.split("?")[0] + "?" + ",".join(
            one.split("=")[0] + ("" if one.startswith("step") else "=" + one.split("=")[-1])
            for one in url.partition("?")[2].split("&")
        )  # fmt: skip
        if url in seen or not url.startswith(web.origin) or taken.get(kind, 0) >= 2:
            continue
        taken[kind] = taken.get(kind, 0) + 1
        seen[url] = kind
        assert browser.open(url) == 200, url
        waiting += links(browser)
    return list(seen)


LOOKS = [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]


def test_the_token_disappears_from_the_address_and_works_once(browser: Browser, web: Web) -> None:
    assert browser.open(f"{web.origin}/") == 200
    assert "token" not in browser.do("address")
    cookie = browser.do("cookies")[0]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert browser.evaluate("() => document.cookie") == ""
    browser.do("forget")
    assert browser.open(web.link) == 401
    browser.do("look", width=375, height=700, scheme="dark")
    assert browser.do("axe") == []
    browser.do("take")


def test_axe_finds_what_is_wrong(browser: Browser) -> None:
    browser.do("content", html="<html><img src=x><p style='color: #ddd; background: #eee'>pale")
    assert {one.partition(":")[0] for one in browser.do("axe")} >= {"image-alt", "color-contrast"}
    browser.do("take")


def test_every_page_is_for_everybody(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    assert runs
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        browser.do("take")
        pages = all_pages(browser, web)
        assert len(pages) >= 10
        found = {}
        for url in pages:
            assert browser.open(url) == 200
            for width, scheme in LOOKS:
                browser.do("look", width=width, height=800, scheme=scheme)
                violations = browser.do("axe")
                wide = browser.evaluate(
                    "() => document.documentElement.scrollWidth - window.innerWidth"
                )
                if violations or wide > 0:
                    found[url, width, scheme] = (violations, wide)
            assert browser.evaluate("() => window.hacked ?? null") is None, url
        assert found == {}
        browser.require_clean(web.origin)


def test_no_text_is_wider_than_its_page(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    """The pages of all hostile items and of the steps inside them."""
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        run = next(url for url in links(browser) if runs["hostile.yaml"] in url)
        browser.open(f"{run}?view=items")
        steps = [url for url in links(browser) if "step=map%2Fitem%3A" in url]
        assert len(steps) == len(HOSTILE)
        found = {}
        for url in steps:
            assert browser.open(url) == 200
            for inside in [url, *(one for one in links(browser) if one.startswith(f"{url}%2F"))]:
                browser.open(inside)
                for width in (1280, 375):
                    browser.do("look", width=width, height=800, scheme="light")
                    script = "() => document.documentElement.scrollWidth - window.innerWidth"
                    if (wide := browser.evaluate(script)) > 0:
                        found[inside, width] = wide
        assert found == {}
        browser.do("take")


def test_an_error_page_is_for_everybody(
    browser: Browser, project: Path, environment: dict[str, str]
) -> None:
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        for path in ("/nothing", "/run/x/y", "/static/nothing", "/run/..%2f..%2fetc/passwd"):
            assert browser.open(web.origin + path) in (400, 404)
            assert browser.do("axe") == []
        browser.do("take")  # Chromium reports each 404


def test_a_run_is_followed_stopped_and_resumed(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    """Start by the form, watch, stop, resume, to the end; each by a click."""
    assert runs
    (project / "go").unlink(missing_ok=True)
    with plait_web(project, environment) as web:
        browser.do("look", width=1280, height=900, scheme="light")
        assert browser.open(web.link) == 200
        browser.do("take")
        browser.open(f"{web.origin}/start")
        start = next(url for url in links(browser) if "waiting.yaml" in url)
        browser.open(start)
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("running", "#run-head")
        shown = browser.evaluate("() => document.querySelector('.actions .command').textContent")
        assert shown.startswith("plait stop ")
        browser.do("click", selector="button.act")
        browser.wait_for_text("Resume", ".actions")
        browser.wait_for_text("interrupted", "#run-head")
        browser.do("click", selector="button.act")
        browser.wait_for_text("running", "#run-head")
        browser.evaluate("() => { window.same = true }")
        (project / "go").touch()
        browser.wait_for_text("finished", "#run-head")
        assert browser.evaluate("() => window.same") is True  # no reload: the page is live
        browser.require_clean(web.origin)


# Each node waits for a file with its name and the number of its visit.
LIVE_NODE = """echo >> visits-{0}; until [ -e {0}-$(wc -l < visits-{0} | tr -d ' ') ]; do sleep 0.05; done"""
LIVE = {
    "graph.yaml": f"""
name: live
start: draft
nodes:
  draft: {{shell: "{LIVE_NODE.format("draft")}", next: check}}
  check:
    shell: {LIVE_NODE.format("check")}; [ -e draft-2 ]
    on_error: draft
    next: [{{to: small, when: {{path: result.stdout, op: eq, value: x}}}}, {{to: large}}]
  small: {{shell: "true", next: done}}
  large: {{shell: "{LIVE_NODE.format("large")}", next: done}}
  done: {{type: return, output: ok}}
""",
    "ensemble.yaml": f"""
name: live
workflow: parallel
tasks:
  base: {{description: base, tool: core/shell, params: {{command: "{LIVE_NODE.format("base")}"}}}}
  left: {{description: left, context: base, tool: core/shell, params: {{command: "{LIVE_NODE.format("left")}"}}}}
  right: {{description: right, context: base, tool: core/shell, params: {{command: "{LIVE_NODE.format("right")}; exit 3"}}}}
  last: {{description: last, context: left, tool: core/shell, params: {{command: "{LIVE_NODE.format("last")}"}}}}
""",
}
# What is let through, then how the nodes and edges that were reached are marked.
LIVE_STORIES = [
    ("graph.yaml", [
        ("",        ["draft was now"]),
        ("draft-1", ["draft was", "check was now", "draft → check"]),
        ("check-1", ["draft was now 2", "check bad", "draft → check", "check → draft"]),
        ("draft-2", ["draft was 2", "check bad now 2", "draft → check", "check → draft"]),
        ("check-2", ["draft was 2", "check bad 2", "large was now", "draft → check", "check → large", "check → draft"]),
        ("large-1", ["draft was 2", "check bad 2", "large was", "done was", "draft → check", "check → large",
                     "check → draft", "large → done"]),
    ]),
    ("ensemble.yaml", [
        ("",        ["base was now"]),
        ("base-1",  ["base was", "left was now", "right was now", "base → left", "base → right"]),
        ("right-1", ["base was", "left was now", "right bad", "base → left", "base → right"]),
        ("left-1",  ["base was", "left was", "right bad", "base → left", "base → right"]),
    ]),
]  # fmt: skip
MARKS = """() => {
  const name = (one) => one.querySelector("title").textContent.split(":")[0];
  const nodes = [...document.querySelectorAll(".diagram g g")].map((one) => [
    name(one),
    ...["was", "bad", "now"].filter((mark) => one.querySelector("rect").classList.contains(mark)),
    one.querySelector(".count")?.textContent,
  ].filter(Boolean));
  const edges = [...document.querySelectorAll(".diagram .edge.was")].map(name);
  return [...nodes.filter((one) => one.length > 1).map((one) => one.join(" ")), ...edges];
}"""


@pytest.mark.parametrize(("flow", "story"), LIVE_STORIES)
def test_the_picture_of_a_graph_shows_the_way_while_it_is_taken(
    browser: Browser,
    tmp_path: Path,
    environment: dict[str, str],
    flow: str,
    story: list[tuple[str, list[str]]],
) -> None:
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / flow).write_text(LIVE[flow])
    with plait_web(tmp_path, environment) as web:
        browser.do("look", width=1280, height=900, scheme="light")
        assert browser.open(web.link) == 200
        browser.do("take")
        browser.open(f"{web.origin}/start")
        browser.open(next(url for url in links(browser) if flow in url))
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("running", "#run-head")
        browser.open(browser.do("address") + "?view=graph")
        browser.evaluate("() => { window.same = true }")
        for opened, marks in story:
            if opened:
                (tmp_path / opened).touch()
            browser.wait(
                f"(wanted) => JSON.stringify(({MARKS})().sort()) === JSON.stringify(wanted)",
                sorted(marks),
            )
            running = [one.split()[0] for one in marks if " now" in one]
            browser.wait_for_text(f"Runs now: {', '.join(running)}." if running else "", "#graph")
            for scheme in ("dark", "light"):
                browser.do("look", width=1280, height=900, scheme=scheme)
                assert browser.do("axe") == []
        browser.wait("() => !document.querySelector('#run-head .s-running')")
        assert browser.evaluate("() => window.same") is True  # no reload: the page is live
        browser.require_clean(web.origin)


def test_a_form_starts_a_flow_with_its_parameters(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    assert runs
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        browser.do("take")
        browser.open(f"{web.origin}/start")
        browser.open(next(url for url in links(browser) if "form.yaml" in url))
        hostile = "<script>window.hacked = 13</script>"
        browser.do("fill", selector="[data-input=who]", text=hostile)
        command = browser.evaluate(
            "() => document.querySelector('#start-form .command').textContent"
        )
        assert f"-i 'who={hostile}'" in command
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("finished", "#run-head")
        assert browser.evaluate("() => window.hacked ?? null") is None
        browser.require_clean(web.origin)
    listed = json.loads(plait(project, environment, "runs", "--json"))
    run = next(one["id"] for one in listed if one["file"].endswith("form.yaml"))
    assert f"hello {hostile} 2" in plait(project, environment, "logs", run)


SECRET = "op3n-sesame-secret"
SEALED = """
secrets: [code, left]
inputs: {code: string, n: integer, left: {type: string, default: a-default-1}}
start: first
nodes:
  first: {shell: "echo ${inputs.code} ${inputs.n}", next: last}
  last: {shell: test -e go}
"""


def test_a_secret_stays_in_its_field(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    """In no page, address or command, not even when the flow does not start; the command works."""
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / "sealed.yaml").write_text(SEALED)
    with plait_web(tmp_path, environment) as web:
        browser.do("look", width=375, height=800, scheme="dark")
        assert browser.open(web.link) == 200
        browser.open(f"{web.origin}/start")
        browser.open(next(url for url in links(browser) if "sealed.yaml" in url))
        browser.do("take")
        # So that a wrong number can be sent.
        browser.evaluate("() => { document.querySelector('#input-n').type = 'text' }")
        browser.do("fill", selector="#input-code", text=SECRET)
        browser.do("fill", selector="#input-n", text="x")
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("It did not start")
        assert browser.do("axe") == []
        assert SECRET not in whole_page(browser)
        assert browser.evaluate("() => document.querySelector('#input-left').value") == ""
        assert browser.evaluate("() => document.querySelector('#input-code').value") == ""
        browser.do("fill", selector="#input-code", text=SECRET)
        browser.do("fill", selector="#input-n", text="3")
        script = "() => document.querySelector('#start-form .command').textContent"
        command = browser.evaluate(script)
        path = str(tmp_path)
        assert command == f"plait run {path}/sealed.yaml -i n=3 -i @- --project {path}"
        assert "1 failed" in command_output(command, environment, code=SECRET)
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("Resume", ".actions")
        assert browser.do("axe") == []
        browser.do("click", selector="button.a-resume")  # without the secret nothing is sent
        assert browser.evaluate("() => document.querySelector('#input-code:invalid') !== null")
        (tmp_path / "go").touch()
        browser.do("fill", selector="#input-code", text=SECRET)
        command = browser.evaluate("() => document.querySelector('.actions .command').textContent")
        assert (command.endswith(f"--project {path} -i @-"), command.count("@-")) == (True, 1)
        browser.do("click", selector="button.a-resume")
        browser.wait_for_text("finished", "#run-head")
        for url in [browser.do("address"), *links(browser)]:
            browser.open(url)
            assert SECRET not in url + whole_page(browser)
        assert not any(SECRET in url for url in browser.do("take")["requests"])


def whole_page(browser: Browser) -> str:
    """The page as it is now, with what is in its fields."""
    text: str = browser.evaluate(
        "() => document.documentElement.outerHTML + [...document.querySelectorAll("
        "'input:not([type=password]), textarea, select')].map((one) => one.value).join(' ')"
    )
    return text


def command_output(command: str, environment: dict[str, str], **inputs: str) -> str:
    """What a command prints that reads inputs from standard input."""
    _, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "plait", *words],
        env=environment,
        input=json.dumps(inputs),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


def test_what_is_searched_stays_while_output_arrives(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    assert runs
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        browser.do("take")
        browser.open(f"{web.origin}/start")
        browser.open(next(url for url in links(browser) if "ticking.yaml" in url))
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("running", "#run-head")
        browser.open(browser.do("address") + "?step=steps/0")
        browser.do("fill", selector="#output-find", text="tick 9")
        browser.wait_for_text("of 11", ".find output")  # 9, and 90 to 99
        place = "() => [document.activeElement.id, document.activeElement.value]"
        assert browser.evaluate(place) == ["output-find", "tick 9"]
        browser.evaluate(
            "() => getSelection().selectAllChildren(document.querySelector('.terminal'))"
        )
        (project / "enough").touch()
        browser.wait_for_text("finished", "#run-head")
        assert "tick 99" in browser.evaluate("() => String(getSelection())")
        browser.evaluate("() => getSelection().removeAllRanges()")
        browser.wait_for_text("finished", "#panel")
        assert browser.evaluate(place) == ["output-find", "tick 9"]
        browser.require_clean(web.origin)


def test_a_page_that_was_refused_connects_again(
    browser: Browser, project: Path, environment: dict[str, str]
) -> None:
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        browser.wait_for_text("live", "#connection")
        cookies = browser.do("cookies")
        browser.do("forget")
        browser.evaluate("() => connect()")
        browser.wait_for_text("not connected; trying again", "#connection")
        browser.do("remember", cookies=cookies)
        browser.wait_for_text("live", "#connection")
        browser.do("take")  # Chromium reports each 401


def test_a_hidden_page_keeps_no_connection(
    browser: Browser, project: Path, environment: dict[str, str]
) -> None:
    """A browser has six to a server: with as many tabs in the background the next page would hang."""
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with plait_web(project, environment) as web:
        assert browser.open(web.link) == 200
        browser.wait("() => source.readyState === EventSource.OPEN")
        browser.evaluate(hide, True)
        browser.wait("() => source.readyState === EventSource.CLOSED")
        browser.evaluate(hide, False)
        browser.wait("() => source.readyState === EventSource.OPEN")
        browser.do("take")


ONCE = """
name: pay
steps:
  - id: send
    once: true
    shell: |
      echo sent >> sent.txt
      [ -e go ] || kill -9 $PPID; [ -e go ] || sleep 60
  - shell: echo after
"""
ANSWERS = [
    # answer   how often it was sent
    ("done",   1),
    ("repeat", 2),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "sent"), ANSWERS)
def test_a_step_that_may_run_once_is_asked_about(
    browser: Browser, tmp_path: Path, environment: dict[str, str], answer: str, sent: int
) -> None:
    """It was cut short: the form wants an answer, shows the command, and does what it says."""
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / "once.yaml").write_text(ONCE)
    plait(tmp_path, environment, "run", "once.yaml", "--quiet")
    (tmp_path / "go").touch()
    with plait_web(tmp_path, environment) as web:
        browser.do("look", width=375, height=800, scheme="dark")
        assert browser.open(web.link) == 200
        browser.open(next(url for url in links(browser) if "/run/" in url))
        browser.do("take")
        assert browser.do("axe") == []
        browser.do("click", selector="button.a-resume")  # without an answer nothing is sent
        assert browser.evaluate("() => document.querySelector('.question :invalid') !== null")
        browser.do("click", selector=f".question input[value^={answer}]")
        command = browser.evaluate("() => document.querySelector('.actions .command').textContent")
        assert command.endswith(f"--{answer} steps/send")
        browser.do("click", selector="button.a-resume")
        browser.wait_for_text("finished", "#run-head")
        browser.require_clean(web.origin)
    assert (tmp_path / "sent.txt").read_text() == "sent\n" * sent


GREET = """
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "greets"
print("hi from the tool")
"""


def require_accessible(browser: Browser) -> None:
    found = {}
    for width, scheme in LOOKS:
        browser.do("look", width=width, height=800, scheme=scheme)
        wide = browser.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        if (violations := browser.do("axe")) or wide > 0:
            found[width, scheme] = (violations, wide)
    assert found == {}


def test_a_flow_that_needs_trust_is_started_when_it_is_given(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The refusal, the box, the command that it stands for; then the run."""
    require_browser()
    (tmp_path / ".ai" / "tools").mkdir(parents=True)
    (tmp_path / ".ai" / "tools" / "greet.py").write_text(GREET)
    (tmp_path / "trusting.yaml").write_text("steps:\n  - tool: greet\n")
    box = "#start-form input[name=trust]"
    with plait_web(tmp_path, environment) as web:
        assert browser.open(web.link) == 200
        browser.open(f"{web.origin}/start")
        browser.open(next(url for url in links(browser) if "trusting.yaml" in url))
        browser.do("take")
        assert browser.evaluate("(box) => document.querySelector(box)", box) is None
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("It did not start")
        refused = browser.evaluate("() => document.querySelector('[role=alert]').innerText")
        assert f"then type: plait trust {tmp_path}" in refused
        require_accessible(browser)
        browser.do("click", selector="#start-form button[type=submit]")  # without the box
        browser.wait_for_text("It did not start")
        assert json.loads(plait(tmp_path, environment, "runs", "--json")) == []
        browser.do("click", selector=box)
        script = "() => document.querySelector('#start-form .command').textContent"
        path = str(tmp_path)
        wanted = f"plait run {path}/trusting.yaml --project {path} --trust"
        assert browser.evaluate(script) == wanted
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("finished", "#run-head")
        taken = browser.do("take")
        assert [one for one in taken["problems"] if "422" not in one] == []
    assert "hi from the tool" in plait(tmp_path, environment, "logs")


RETRIED = """
map:
  input: [a, b, c]
  max_parallel: 1
  steps:
    - shell: "echo ${item} >> ledger; [ ${item} != b ] || [ -e go ]"
"""


def test_failed_items_are_retried_by_a_click(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / "flow.yaml").write_text(RETRIED)
    plait(tmp_path, environment, "run", "flow.yaml", "--quiet")
    (tmp_path / "go").touch()
    with plait_web(tmp_path, environment) as web:
        assert browser.open(web.link) == 200
        browser.open(next(url for url in links(browser) if "/run/" in url))
        browser.do("take")
        button = browser.evaluate("() => document.querySelector('button.a-retry').innerText")
        assert button == "Retry 1 failed item"
        browser.do("click", selector="button.a-retry")
        browser.wait("() => !document.querySelector('button.a-retry')")
        browser.wait_for_text("finished", "#run-head")
        browser.require_clean(web.origin)
    assert (tmp_path / "ledger").read_text() == "a\nb\nc\nb\n"


def test_an_edit_is_accepted_by_a_box(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Without it the page has the words of the command, and is a page for everybody."""
    require_browser()
    (tmp_path / ".ai").mkdir()
    flow = "steps:\n  - shell: echo {} >> ledger\n  - shell: '[ -e go ]'\n"
    (tmp_path / "flow.yaml").write_text(flow.format("first"))
    plait(tmp_path, environment, "run", "flow.yaml", "--quiet")
    (tmp_path / "flow.yaml").write_text(flow.format("new"))
    (tmp_path / "go").touch()
    with plait_web(tmp_path, environment) as web:
        assert browser.open(web.link) == 200
        run = next(url for url in links(browser) if "/run/" in url)
        browser.open(run)
        browser.do("click", selector="button.a-resume")
        browser.wait_for_text("The command did not succeed", "h1")
        browser.wait_for_text("--accept-changes", "[role=alert]")
        require_accessible(browser)
        browser.open(run)
        browser.do("click", selector=".actions input[name=accept]")
        command = browser.evaluate("() => document.querySelector('.actions .command').textContent")
        assert command.endswith(f"--project {tmp_path} --accept-changes")
        browser.do("click", selector="button.a-resume")
        browser.wait_for_text("finished", "#run-head")
        browser.do("take")  # Chromium reports each 409
    assert (tmp_path / "ledger").read_text() == "first\nnew\n"


def test_several_projects_are_in_one_list(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    require_browser()
    for name in ("one", "two"):
        (tmp_path / name / ".ai").mkdir(parents=True)
        (tmp_path / name / f"{name}.yaml").write_text(f"name: {name}\nsteps: [{{shell: 'true'}}]\n")
        plait(tmp_path / name, environment, "run", f"{name}.yaml", "--quiet")
    with plait_web(tmp_path / "one", environment, "--project", str(tmp_path / "two")) as web:
        assert browser.open(web.link) == 200
        browser.do("take")
        flows = "() => [...document.querySelectorAll('#runs tbody tr')].map((one) => one.innerText)"
        assert len(browser.evaluate(flows)) == 2
        require_accessible(browser)
        choose = """() => {
          const box = document.querySelector("#run-project");
          box.value = [...box.options].find((one) => one.text === "two").value;
          box.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
        browser.evaluate(choose)
        browser.wait(f"() => ({flows})().length === 1")
        assert "two" in browser.evaluate(flows)[0]
        browser.open(f"{web.origin}/start")
        assert "one.yaml" in browser.evaluate("() => document.body.innerText")
        require_accessible(browser)
        browser.do("click", selector="nav.chips a:last-child")
        browser.wait_for_text("two.yaml")
        assert "one.yaml" not in browser.evaluate("() => document.body.innerText")
        browser.do("click", selector=".flows a")
        browser.do("click", selector="#start-form button[type=submit]")
        browser.wait_for_text("finished", "#run-head")
        browser.require_clean(web.origin)
    for name, count in (("one", 1), ("two", 2)):
        assert len(json.loads(plait(tmp_path / name, environment, "runs", "--json"))) == count


def test_keys_do_what_the_guide_says(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    require_browser()
    (tmp_path / ".ai").mkdir()
    lines = "".join(
        f"  - shell: 'for n in 1 2 3; do echo word $n; done; echo {one}'\n" for one in "abc"
    )
    (tmp_path / "flow.yaml").write_text(f"steps:\n{lines}")
    plait(tmp_path, environment, "run", "flow.yaml", "--quiet")
    focus = "() => document.activeElement.id || document.activeElement.getAttribute('href')"
    with plait_web(tmp_path, environment) as web:
        browser.do("look", width=1280, height=900, scheme="light")
        assert browser.open(web.link) == 200
        run = next(url for url in links(browser) if "/run/" in url)
        browser.do("take")
        browser.do("press", key="/")
        assert browser.evaluate(focus) == "run-search"
        browser.do("press", key="/")  # in a field it is a character
        assert browser.evaluate("() => document.activeElement.value") == "/"
        browser.open(f"{run}?step=steps/1")
        steps = browser.evaluate(
            "() => [...document.querySelectorAll('.tree a')].map((one) => one.getAttribute('href'))"
        )
        assert len(steps) >= 3
        browser.evaluate("() => document.querySelector('.tree a').focus()")
        for key, place in (
            ("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("ArrowUp", 0), ("ArrowUp", 0),
        ):  # fmt: skip
            browser.do("press", key=key)
            assert (key, browser.evaluate(focus)) == (key, steps[place])
        browser.do("press", key="/")
        assert browser.evaluate(focus) == "output-find"
        browser.do("fill", selector="#output-find", text="word")
        shown = "() => document.querySelector('.find output').textContent"
        assert browser.evaluate(shown) == "1 of 3"
        for key, words in (
            ("Enter", "2 of 3"), ("Enter", "3 of 3"), ("Enter", "1 of 3"),
            ("Shift+Enter", "3 of 3"), ("Shift+Enter", "2 of 3"),
        ):  # fmt: skip
            browser.do("press", key=key)
            assert (key, browser.evaluate(shown)) == (key, words)
        assert browser.evaluate(focus) == "output-find"
        browser.do("press", key="ArrowDown")  # in a field it moves nothing in the tree
        assert browser.evaluate(focus) == "output-find"
        browser.evaluate(
            "(href) => document.querySelector(`.tree a[href='${href}']`).focus()", steps[-1]
        )
        browser.do("press", key="Enter")
        browser.wait_for_text("word 3", "#panel")
        assert browser.do("address") == web.origin + steps[-1]
        browser.require_clean(web.origin)


def test_an_open_page_says_that_its_run_was_removed(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / "flow.yaml").write_text("steps:\n  - shell: exit 1\n")
    plait(tmp_path, environment, "run", "flow.yaml", "--quiet")
    buttons = "() => [...document.querySelectorAll('.actions button')].map((one) => one.disabled)"
    with plait_web(tmp_path, environment) as web:
        assert browser.open(web.link) == 200
        url = next(url for url in links(browser) if "/run/" in url)
        browser.open(url)
        browser.wait_for_text("live", "#connection")
        assert browser.evaluate(buttons) == [False]
        browser.do("take")
        run = url.rpartition("/")[2]
        shutil.rmtree(tmp_path / ".ai" / "state" / "runs" / run)
        browser.wait_for_text(f"there is no run '{run}'", "#connection")
        assert browser.evaluate("() => source.readyState === EventSource.CLOSED")
        announced = browser.evaluate("() => document.querySelector('#announce').textContent")
        assert announced == f"there is no run '{run}'"
        assert browser.evaluate(buttons) == [True]
        require_accessible(browser)
        browser.require_clean(web.origin)
        assert browser.open(url) == 404
        require_accessible(browser)
        assert browser.open(f"{web.origin}/") == 200
        browser.wait_for_text("no runs here yet", "#runs")
        browser.do("take")  # Chromium reports the 404


def test_the_page_that_wants_a_password_is_for_everybody(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    require_browser()
    (tmp_path / ".ai").mkdir()
    (tmp_path / "password.txt").write_text("a password of mine\n")
    (tmp_path / "password.txt").chmod(0o600)
    with plait_web(tmp_path, environment, "--password-file", str(tmp_path / "password.txt")) as web:
        browser.do("forget")
        assert browser.open(web.origin) == 401
        require_accessible(browser)
        wrong = "the password is wrong"
        for password, words in (("a guess of yours", wrong), ("a password of mine", "Runs")):
            browser.do("fill", selector="input[type=password]", text=password)
            browser.do("press", key="Enter")
            browser.wait_for_text(words)
            assert password not in browser.evaluate("() => document.documentElement.outerHTML")
            assert password not in browser.do("address")
            require_accessible(browser)
        browser.wait_for_text("Runs", "h1")
        browser.do("take")  # Chromium reports each 401


def test_an_exported_run_is_for_everybody(
    browser: Browser, project: Path, environment: dict[str, str], runs: dict[str, str]
) -> None:
    """`show --html`: one file without a script that asks for nothing."""
    plait(project, environment, "show", runs["hostile.yaml"], "--html", "run.html")
    browser.do("take")
    browser.open((project / "run.html").as_uri())
    found = {}
    for width, scheme in LOOKS:
        browser.do("look", width=width, height=800, scheme=scheme)
        wide = browser.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        if (violations := browser.do("axe")) or wide > 0:
            found[width, scheme] = (violations, wide)
    assert found == {}
    assert browser.evaluate("() => window.hacked ?? null") is None
    assert "item" in browser.evaluate("() => document.body.innerText")
    assert [url for url in browser.do("take")["requests"] if not url.startswith("file:")] == []


def test_an_agent_session_is_accessible(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The turns of an agent, its tool calls and their results, and the tasks of an ensemble."""
    require_browser()
    review, report = tmp_path / "review", tmp_path / "report"
    shutil.copytree(EXAMPLES / "review-directive", review)
    shutil.copytree(EXAMPLES / "report-ensemble", report)
    played = {**environment, "PLAIT_PROVIDER": "replay"}
    plait(review, played, "run", "review.md", "-i", "file=prices.py", "--quiet")
    plait(report, played, "run", "flow.yaml", "--trust", "--quiet")
    for folder, tab, words, used in (
        (review, "Conversation", "I read the file", "6 turns, 20,000 tokens, $0.25"),
        (report, "Tasks", "Team tides measured all week", "1 turn, 120 tokens, $0.0004"),
    ):
        with plait_web(folder, environment) as web:
            assert browser.open(web.link) == 200
            browser.do("take")
            browser.open(next(url for url in links(browser) if "/run/" in url))
            script = "(tab) => [...document.links].find((one) => one.innerText === tab).href"
            browser.open(browser.evaluate(script, tab))
            browser.wait_for_text(words, "#panel")
            browser.wait_for_text(used, "#panel")
            script = "() => document.querySelectorAll('details').forEach((one) => one.open = true)"
            browser.evaluate(script)
            for width, scheme in LOOKS:
                browser.do("look", width=width, height=800, scheme=scheme)
                assert (browser.do("axe"), width, scheme) == ([], width, scheme)
            browser.require_clean(web.origin)


def test_a_run_of_100000_items(
    browser: Browser, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The list holds what is seen, finds any item, and a page is there at once."""
    (tmp_path / ".ai").mkdir()
    (tmp_path / "items.json").write_text(json.dumps([f"item {n}" for n in range(100_000)]))
    flow = "map:\n  input: items.json\n  max_parallel: 8\n  steps:\n"
    flow += "    - shell: exit 7\n      when: ${item_index} == 99997\n"
    (tmp_path / "big.yaml").write_text(flow)
    plait(tmp_path, environment, "run", "big.yaml", "--quiet")
    with plait_web(tmp_path, environment) as web:
        browser.do("look", width=1280, height=900, scheme="light")
        assert browser.open(web.link) == 200
        run = next(url for url in links(browser) if "/run/" in url)
        browser.do("take")
        assert browser.open(f"{run}?view=items") == 200
        browser.wait("() => document.querySelector('.item-space')?.dataset.rows === '100000'")
        browser.wait_for_text("99,999 done", "#item-counts")  # no live update is needed
        rows = "() => document.querySelectorAll('#item-rows > *').length"
        assert browser.evaluate(rows) <= 200
        browser.evaluate("() => { document.querySelector('#item-list').scrollTop = 50000 * 30 }")
        browser.wait_for_text("item 50000", "#item-rows")
        assert browser.evaluate(rows) <= 200
        browser.do("fill", selector="#item-search", text="item 98765")
        browser.wait_for_text("item 98765", "#item-rows")
        browser.wait("() => document.querySelector('.item-space').dataset.rows === '1'")
        browser.do("fill", selector="#item-search", text="")
        browser.do("click", selector="input[name=state][value=failed]")
        browser.wait_for_text("item 99997", "#item-rows")
        assert browser.do("axe") == []
        browser.require_clean(web.origin)
