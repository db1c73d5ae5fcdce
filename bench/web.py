"""The time of `plait web`: the first page of a long run, an event on its way to a page, and a page
that is open while a run works.

The server is a process of its own that was started before, so its computing time does not count.
What a browser shows is measured in Chromium, by the driver of `tests/browser`.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter, sleep, time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fanout import ROOT, TASKS, _env, _flow_file
from measure import all_cores, paired_ratios, race_spans, tree_times
from tables import Figures, Plan, Row, Table, shown, times_as

from plait.app.runs import find_run

if TYPE_CHECKING:
    from browser.drive import Browser

FIRST_PAINT, UPDATE = 1.0, 0.3
"""Seconds."""
ALONE, AGAIN, WATCHED = "nobody looks", "nobody looks, measured again", "a page is open"
MOST = 1.02
PARALLEL = 8
PATIENCE = 60.0
VIEWS = {
    "overview": "",
    "items": "?view=items",
    "first rows of the items": "/items?map=map&counts=1",
}
STEPPED = """\
name: stepped
map:
  input: items.json
  max_parallel: 1
  steps:
    - shell: while [ ! -e go${{item}} ]; do sleep 0.01; done
      when: ${{item}} >= {quiet}
"""
"""The first items do nothing; each of the others ends when its file appears."""


def web_tables(
    *, items: int, updates: int, watched: int, rounds: int, pairs: int
) -> Iterator[Plan]:
    with all_cores():
        yield Plan(
            f"The first page of a run with {items:,} items", partial(_first_page, items, rounds)
        )
        yield Plan(
            f"First paint in Chromium: a run of {items:,} items",
            partial(_first_paint, items, rounds),
        )
        yield Plan("From an event to the page", partial(_event_to_page, items, updates))
        title = f"{watched:,} items, {PARALLEL} at a time, while a page is open"
        yield Plan(title, partial(_cost_of_a_page, watched, pairs))


# ── the server, and somebody who looks ───────────────────────────────────


@dataclass(frozen=True)
class Site:
    """`plait web` for one project, and the cookie of a browser."""

    host: str
    port: int
    cookie: str

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    def get(self, address: str) -> str:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request("GET", address, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, f"{address}: {answer.status}"
            return text
        finally:
            connection.close()

    def follow(self, address: str) -> tuple[http.client.HTTPConnection, Iterator[str]]:
        """The lines of the live updates of a page; close the connection to end."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        connection.request("GET", address, headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        assert answer.status == 200, f"{address}: {answer.status}"
        return connection, (line.decode() for line in answer)


@contextmanager
def _site(project: Path) -> Iterator[Site]:
    command = [sys.executable, "-m", "plait", "web", "--no-browser", "--project", str(project)]
    with subprocess.Popen(
        command, env=_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            link = urlsplit(process.stdout.readline().split()[-1])
            assert link.hostname is not None
            assert link.port is not None
            connection = http.client.HTTPConnection(link.hostname, link.port, timeout=PATIENCE)
            connection.request("GET", f"/?{link.query}")
            answer = connection.getresponse()
            answer.read()
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
            connection.close()
            yield Site(link.hostname, link.port, cookie)
        finally:
            process.terminate()


def _run_command(project: Path, file: str) -> list[str]:
    return [sys.executable, "-m", "plait", "run", file, "--quiet", "--project", str(project)]


def _run_env() -> dict[str, str]:
    return {**_env(), "PLAIT_KEEP_RUNS": "3"}


def _page_of_newest(site: Site, until: Callable[[str], bool]) -> str:
    """Wait for a matching run in the list, and return its address."""
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        for piece in site.get("/").split('href="/run/')[1:]:
            address = "/run/" + piece.partition('"')[0]
            if until(address):
                return address
            break
        sleep(0.02)
    raise AssertionError("no run has begun")


@contextmanager
def _project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder).resolve()
        (project / ".ai").mkdir()
        yield project


# ── the first page ───────────────────────────────────────────────────────


def _first_page(items: int, rounds: int, title: str) -> Table:
    seen: dict[str, list[float]] = {name: [] for name in VIEWS}
    with _project() as project:
        _perform_long_run(project, items)
        for _ in range(rounds):
            for name, view in VIEWS.items():
                with _site(project) as site:  # a new server each time, with empty caches
                    page = _page_of_newest(site, lambda _: True)
                    start = perf_counter()
                    text = site.get(page + view)
                    seen[name].append(perf_counter() - start)
                    assert f"{items:,}" in text or f'data-total="{items}"' in text
    rows = tuple(
        _first_row(name, seen[name], judged=name in ("overview", "items")) for name in VIEWS
    )
    meaning = (
        "The time from a request to the whole page, by a server that has read nothing of the run "
        "yet. A page of so many items comes first and its rows after it, by a request of their own. "
        "The bar is about the median."
    )
    return Table(title, meaning, ("", "least time", "median"), rows)


def _perform_long_run(project: Path, items: int) -> None:
    (project / "items.json").write_text(json.dumps([f"item {n}" for n in range(items)]))
    file = project / "flow.yaml"
    file.write_text(
        "map:\n  input: items.json\n  steps:\n    - shell: 'true'\n      when: ${item_index} == 7\n"
    )
    subprocess.run(_run_command(project, str(file)), env=_run_env(), check=True)


def _first_row(name: str, times: list[float], *, judged: bool) -> Row:
    least, median = min(times), statistics.median(times)
    bar = f"≤ {shown(FIRST_PAINT)}" if judged else ""
    passed = median <= FIRST_PAINT if judged else None
    return Row(name, (shown(least), shown(median)), bar, passed, Figures(least))


# ── a real browser ───────────────────────────────────────────────────────


@contextmanager
def _browser() -> Iterator[Browser]:
    """A new Chromium, if `_has_browser`."""
    from browser.drive import open_browser

    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        browser.do("look", width=1280, height=900, scheme="light")
        yield browser


def _has_browser() -> bool:
    """Whether everything that the test driver needs is installed; it is then on the path."""
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from browser.install import missing

    return not missing() and find_spec("pytest") is not None


def _let_in(browser: Browser, site: Site) -> None:
    """Set the cookie of the site, so that the first page is the measured one."""
    name, _, value = site.cookie.partition("=")
    browser.do("remember", cookies=[{"name": name, "value": value, "url": site.origin}])


PAINTS = {
    # row: view, what is noted
    "overview: first paint": ("", "paint"),
    "items: first paint": ("?view=items", "paint"),
    "items: first rows in the page": ("?view=items", "rows"),
}
NOTE_PAINT = """() => {
  window.seen = {};
  new PerformanceObserver((list) => {
    for (const one of list.getEntriesByName("first-contentful-paint")) seen.paint = one.startTime;
  }).observe({ type: "paint", buffered: true });
  new MutationObserver(() => {
    if (document.querySelector("#item-rows .item")) seen.rows ??= performance.now();
  }).observe(document, { childList: true, subtree: true });
}"""
"""Both times count from the beginning of the navigation."""


def _first_paint(items: int, rounds: int, title: str) -> Table:
    seen: dict[str, list[float]] = {name: [] for name in PAINTS}
    if _has_browser():
        with _project() as project:
            _perform_long_run(project, items)
            for _ in range(rounds):
                for view in dict.fromkeys(view for view, _ in PAINTS.values()):
                    noted = _paint_once(project, view)
                    for name, (where, what) in PAINTS.items():
                        if where == view:
                            seen[name].append(noted[what] / 1000)
    meaning = (
        "From the beginning of the navigation, as Chromium itself says it: until it paints the first "
        "text (`first-contentful-paint`), and until rows of items are in the page. Each time is that "
        "of a new browser, with nothing in its cache, and of a server that has read nothing of the "
        f"run yet: {rounds} of each. The bar is about the median."
    )
    rows = [
        _first_row(name, times, judged=PAINTS[name][1] == "paint")
        if times
        else Row(name, ("not installed",))
        for name, times in seen.items()
    ]
    return Table(title, meaning, ("", "least time", "median"), tuple(rows))


def _paint_once(project: Path, view: str) -> dict[str, float]:
    """Milliseconds until the first paint, and until the first rows if the page has a list."""
    with _browser() as browser, _site(project) as site:
        page = _page_of_newest(site, lambda _: True)
        _let_in(browser, site)
        browser.prepare(NOTE_PAINT)
        assert browser.open(site.origin + page + view) == 200
        browser.wait("(rows) => seen.paint && (seen.rows || !rows)", bool(view))
        noted: dict[str, float] = browser.evaluate("() => seen")
        return noted


# ── an event on its way ──────────────────────────────────────────────────


@dataclass(frozen=True)
class Shown:
    """The seconds from the ends of items to their updates."""

    times: list[float]

    def row(self, name: str, *, each: bool = False) -> Row:
        """Its bar is about the median; `each`: about every update."""
        median, most = statistics.median(self.times), max(self.times)
        judged = most if each else median
        bar = f"{'longest' if each else 'median'} ≤ {shown(UPDATE)}"
        return Row(name, (shown(median), shown(most)), bar, judged <= UPDATE, Figures(median))


OVER_HTTP = "HTTP"


@dataclass(frozen=True)
class Look:
    """Where and how a page shows that an item has ended."""

    view: str
    selector: str
    text: Callable[[int, int], str]
    """Of an item and the number of all items; the element's text ends with it."""


LOOKS = {
    "Chromium, number beside the map": Look(
        "", "#tree a .dim", lambda item, items: f"{item + 1:,}/{items:,}"
    ),
    "Chromium, number above the list": Look(
        "?view=items", "#item-counts .count", lambda item, _: f"{item + 1:,} done"
    ),
    "Chromium, row of the list": Look(
        "?view=items", "#item-rows .i-done a", lambda item, _: str(item)
    ),
}
NOTE_TEXTS = """(where) => {
  window.seen = {};
  const look = () => {
    const texts = [...document.querySelectorAll(where)].map((one) => one.textContent.trim());
    const fresh = texts.filter((text) => !(text in seen));
    for (const text of fresh) seen[text] = 0;
    // After the frame that shows it.
    if (fresh.length) requestAnimationFrame(() => setTimeout(() => {
      for (const text of fresh) seen[text] = Date.now();
    }));
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
  look();
}"""
WHEN_SEEN = """(wanted) =>
  Object.entries(seen).find(([text, at]) => at && text.endsWith(wanted))?.[1] ?? 0"""


def _event_to_page(items: int, updates: int, title: str) -> Table:
    """An item ends when its file appears, and an open page gets an update."""
    rows = [_follow_run(updates, updates, {})[OVER_HTTP].row(f"{updates} items, HTTP", each=True)]
    found = _follow_run(items, updates, LOOKS if _has_browser() else {})
    for name in (OVER_HTTP, *LOOKS):
        label = f"{items:,} items, {name}"
        rows.append(found[name].row(label) if name in found else Row(label, ("not installed",)))
    meaning = (
        "From the end of an item, by its time in the journal, to the update that shows it, while the "
        "run goes on. HTTP: when the text of the update has arrived. Chromium: after the frame in "
        f"which the page shows it. {updates} items for each row, one after the other. In the long "
        "run, all items before these have ended; the rows of its list come by a request that the "
        "page makes after the update."
    )
    return Table(title, meaning, ("", "median", "longest"), tuple(rows))


def _follow_run(items: int, updates: int, looks: Mapping[str, Look]) -> dict[str, Shown]:
    """End the last items of a run one by one, some for each view."""
    quiet = items - updates * (1 + len(looks))
    shown_at: dict[str, dict[int, float]] = {OVER_HTTP: {}, **{name: {} for name in looks}}
    with _project() as project, _site(project) as site:
        (project / "items.json").write_text(json.dumps(list(range(items))))
        flow = project / "flow.yaml"
        flow.write_text(STEPPED.format(quiet=quiet))
        with subprocess.Popen(_run_command(project, str(flow)), env=_run_env(), cwd=project) as run:
            try:
                page = _page_of_newest(site, lambda _: True)
                ends = iter(range(quiet, items))
                connection, lines = site.follow(f"{page}/live?view=overview")
                with closing(connection):
                    _wait_for(lines, f"{quiet:,}/{items:,}")
                    for item in islice(ends, updates):
                        _end_item(project, item)
                        _wait_for(lines, f"{item + 1:,}/{items:,}")
                        shown_at[OVER_HTTP][item] = time()
                for name, look in looks.items():
                    mine = list(islice(ends, updates))
                    shown_at[name] = _look(look, project, site, page, mine, items)
            finally:
                for item in range(quiet, items):
                    (project / f"go{item}").touch()
            assert run.wait(PATIENCE) == 0
        ended_at = _ends_of_items(project)
    return {
        name: Shown([at - ended_at[item] for item, at in seen.items()])
        for name, seen in shown_at.items()
    }


def _look(
    look: Look, project: Path, site: Site, page: str, ending: list[int], items: int
) -> dict[int, float]:
    """The wall-clock times at which the page showed the end of these items."""
    found: dict[int, float] = {}
    with _browser() as browser:
        _let_in(browser, site)
        assert browser.open(site.origin + page + look.view) == 200
        if look.view:  # the list is scrolled to its end
            browser.wait(f"() => document.querySelector('.item-space')?.dataset.rows === '{items}'")
            browser.evaluate("() => { document.querySelector('#item-list').scrollTop = 1e9 }")
            browser.wait_for_text(str(ending[-1]), "#item-rows")
        browser.evaluate(NOTE_TEXTS, look.selector)
        for item in ending:
            _end_item(project, item)
            text = look.text(item, items)
            browser.wait(f"(text) => ({WHEN_SEEN})(text) > 0", text)
            found[item] = browser.evaluate(WHEN_SEEN, text) / 1000
    return found


def _end_item(project: Path, item: int) -> None:
    # The page is quiet again, and the shell looks for the file.  The server looks for events ten times
    # a second since its last update: items must end at all moments between.
    sleep(0.5 + 0.1 * (item * 0.618 % 1))
    (project / f"go{item}").touch()


def _wait_for(lines: Iterator[str], wanted: str) -> None:
    # The tree says `3/20` beside the map; a slash is not escaped in a page or in JSON.
    for line in lines:
        if line.startswith("data:") and f">{wanted}<" in line:
            return
    raise AssertionError(f"the page never said {wanted}")


def _ends_of_items(project: Path) -> dict[int, float]:
    """The end time of each item of the newest run in the journal, by position."""
    runs, name = find_run(None, str(project))
    with closing(runs.open(name, write=False)) as run:
        reader = run.journal.reader
        rows = reader.item_rows("map", 0, reader.last())
        return {position: at for _, at, what, _, _, position, _, _ in rows if what == "ended"}


# ── what a page costs a run ──────────────────────────────────────────────

SPENT = """\
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from measure import adopt_orphans, spent
adopt_orphans()
print(*spent(lambda: subprocess.run(sys.argv[2:], check=True)))
"""
"""A parent process for the run, but not for the server, whose time does not count."""


def _cost_of_a_page(items: int, rounds: int, title: str) -> Table:
    with _project() as project, _site(project) as site:
        command = _run_command(project, _flow_file(project, TASKS[1], items, PARALLEL))
        _spend(command)  # write bytecode and warm the caches
        known = {_page_of_newest(site, lambda _: True)}

        def alone(_: int) -> tuple[float, float]:
            seen = _spend(command)
            known.add(_page_of_newest(site, lambda _: True))
            return seen

        def watched(_: int) -> tuple[float, float]:
            with _watcher(site, known) as updates:
                seen = _spend(command)
            assert updates, "nobody has looked"
            return seen

        times = race_spans({ALONE: alone, AGAIN: alone, WATCHED: watched}, rounds=rounds)
    return _cost_table(title, times)


def _spend(command: list[str]) -> tuple[float, float]:
    """The wall time of a run, and the computing time of all its processes."""
    here = str(Path(__file__).parent)
    words = [sys.executable, "-c", SPENT, here, *command]
    done = subprocess.run(words, env=_run_env(), check=True, stdout=subprocess.PIPE, text=True)
    wall, computing = map(float, done.stdout.split()[-2:])
    return wall, computing


@contextmanager
def _watcher(site: Site, known: set[str]) -> Iterator[list[int]]:
    """Let the items of the next run finish, and return the sizes of all received updates."""
    updates: list[int] = []
    opened: list[http.client.HTTPConnection] = []

    def look() -> None:
        page = _page_of_newest(site, lambda address: address not in known)
        known.add(page)
        site.get(f"{page}?view=items")
        connection, lines = site.follow(f"{page}/live?view=items")
        opened.append(connection)
        # The connection is closed when the run is over.
        with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            updates.extend(len(line) for line in lines if line.startswith("data:"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield updates
    finally:
        for connection in opened:
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def _cost_table(title: str, times: Mapping[str, Sequence[tuple[float, float]]]) -> Table:
    """Compare each row with the first one, round by round."""
    rows = []
    for name, spans in times.items():
        seen = tree_times(spans)
        wall = paired_ratios([one for one, _ in spans], [one for one, _ in times[ALONE]])
        work = paired_ratios([one for _, one in spans], [one for _, one in times[ALONE]])
        middle = statistics.median(work)
        low, _, high = statistics.quantiles(work, n=4)
        half = "" if name == ALONE else f"{times_as(low)} to {times_as(high)}"
        computing = shown(seen.computing or 0)
        cells = (
            shown(seen.least),
            times_as(statistics.median(wall)),
            computing,
            times_as(middle),
            half,
        )
        bar = f"computing ≤ {MOST:g}" if name == WATCHED else ""
        passed = middle <= MOST if name == WATCHED else None
        figures = Figures(seen.least, seen.computing, statistics.median(wall), middle)
        rows.append(Row(name, cells, bar, passed, figures))
    meaning = (
        "`plait run` of a map with one captured shell step, while nobody looks and while the items "
        "of the run are open in a page, which gets every update. The bar is about the computing "
        "time of the run and of all it starts. The server needs a core too: where there are few, "
        f"wall time shows that. Each ratio is the median of {len(times[ALONE])} rounds, in each of "
        f"which all take turns. The row “{AGAIN}” is the noise of the machine: nothing differs from "
        "the row above it. The last column holds the middle half of the ratios of single rounds."
    )
    columns = ("", "least time", f"× {ALONE}", "computing", f"× {ALONE}", "half of the rounds")
    return Table(title, meaning, columns, tuple(rows))
