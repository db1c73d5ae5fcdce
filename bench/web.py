"""What `plait web` takes: the first page of a long run, an event on its way to a page, and a page
that is open while a run works.

The server is a process of its own that was started before, so its computing time does not count.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, sleep
from urllib.parse import urlsplit

from fanout import TASKS, _env, _flow_file
from measure import Times, all_cores, tree_times
from tables import Bar, Figures, Plan, Row, Table, computing_cells, figures_of, shown, times_as

FIRST_PAINT, UPDATE = 1.0, 0.3
"""Seconds."""
ALONE, WATCHED = "nobody looks", "a page is open"
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
  input: [{items}]
  max_parallel: 1
  steps:
    - shell: while [ ! -e go${{item}} ]; do sleep 0.01; done
"""


def web_tables(*, items: int, updates: int, watched: int, rounds: int) -> Iterator[Plan]:
    with all_cores():
        yield Plan(
            f"The first page of a run with {items:,} items", partial(_first_page, items, rounds)
        )
        yield Plan("From an event to the page", partial(_event_to_page, updates))
        title = f"{watched:,} items, {PARALLEL} at a time, while a page is open"
        yield Plan(title, partial(_cost_of_a_page, watched, rounds))


# ── the server, and somebody who looks ───────────────────────────────────


@dataclass(frozen=True)
class Site:
    """`plait web` for one project, and the cookie of a browser."""

    host: str
    port: int
    cookie: str

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
    """The address of the newest run, as soon as the list has one that fits."""
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
        names = [f"item {n}" for n in range(items)]
        (project / "items.json").write_text(json.dumps(names))
        flow = "map:\n  input: items.json\n  steps:\n    - shell: 'true'\n      when: ${item_index} == 7\n"
        (project / "flow.yaml").write_text(flow)
        file = str(project / "flow.yaml")
        subprocess.run(_run_command(project, file), env=_run_env(), check=True)
        for _ in range(rounds):
            for name, view in VIEWS.items():
                with _site(project) as site:  # new each time: it has read nothing of the run
                    page = _page_of_newest(site, lambda _: True)
                    start = perf_counter()
                    text = site.get(page + view)
                    seen[name].append(perf_counter() - start)
                    assert f"{items:,}" in text or f'data-total="{items}"' in text
    rows = []
    for name, times in seen.items():
        bar = f"≤ {shown(FIRST_PAINT)}" if name in ("overview", "items") else ""
        least, median = min(times), statistics.median(times)
        passed = median <= FIRST_PAINT if bar else None
        rows.append(Row(name, (shown(least), shown(median)), bar, passed, Figures(least)))
    meaning = (
        "The time from a request to the whole page, by a server that has read nothing of the run "
        "yet. A page of so many items comes first and its rows after it, by a request of their own. "
        "The bar is about the median."
    )
    return Table(title, meaning, ("", "least time", "median"), tuple(rows))


# ── an event on its way ──────────────────────────────────────────────────


def _event_to_page(updates: int, title: str) -> Table:
    """An item ends when a file appears; a page that is open is told."""
    times = []
    with _project() as project, _site(project) as site:
        flow = project / "flow.yaml"
        flow.write_text(STEPPED.format(items=", ".join(map(str, range(updates)))))
        command = _run_command(project, str(flow))
        with subprocess.Popen(command, env=_run_env(), cwd=project) as run:
            page = _page_of_newest(site, lambda _: True)
            connection, lines = site.follow(f"{page}/live?view=overview")
            try:
                _wait_for(lines, f"0/{updates}")
                for number in range(updates):
                    sleep(0.5)  # the page is quiet again, and the shell looks for the file
                    (project / f"go{number}").touch()
                    start = perf_counter()
                    _wait_for(lines, f"{number + 1}/{updates}")
                    times.append(perf_counter() - start)
            finally:
                connection.close()
                for number in range(updates):
                    (project / f"go{number}").touch()
            assert run.wait(PATIENCE) == 0
    median, most = statistics.median(times), max(times)
    rows = (
        Row("median", (shown(median),), f"≤ {shown(UPDATE)}", median <= UPDATE, Figures(median)),
        Row("longest", (shown(most),), f"≤ {shown(UPDATE)}", most <= UPDATE, Figures(most)),
    )
    meaning = (
        "From the end of an item to the update that shows it, as a page that is open receives it: "
        f"{updates} items, one after the other. It includes up to 10 ms until the item's shell sees "
        "that it may end."
    )
    return Table(title, meaning, ("", "time"), rows)


def _wait_for(lines: Iterator[str], wanted: str) -> None:
    # The tree says `3/20` beside the map; a slash is not escaped in a page or in JSON.
    for line in lines:
        if line.startswith("data:") and f">{wanted}<" in line:
            return
    raise AssertionError(f"the page never said {wanted}")


# ── what a page costs a run ──────────────────────────────────────────────

SPENT = """\
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from measure import adopt_orphans, spent
adopt_orphans()
print(*spent(lambda: subprocess.run(sys.argv[2:], check=True)))
"""
"""A process that is above the run alone: not above the server, whose time does not count."""


def _cost_of_a_page(items: int, rounds: int, title: str) -> Table:
    seen: dict[str, list[tuple[float, float]]] = {ALONE: [], WATCHED: []}
    with _project() as project, _site(project) as site:
        command = _run_command(project, _flow_file(project, TASKS[1], items, PARALLEL))
        _spend(command)  # bytecode is written, caches are warm
        known = {_page_of_newest(site, lambda _: True)}
        for _ in range(rounds):
            seen[ALONE].append(_spend(command))
            known.add(_page_of_newest(site, lambda _: True))
            with _watcher(site, known) as updates:
                seen[WATCHED].append(_spend(command))
            assert updates, "nobody has looked"
    return _cost_table(title, {name: tree_times(spans) for name, spans in seen.items()})


def _spend(command: list[str]) -> tuple[float, float]:
    """Wall time of a run, and computing time of it and all it starts."""
    here = str(Path(__file__).parent)
    words = [sys.executable, "-c", SPENT, here, *command]
    done = subprocess.run(words, env=_run_env(), check=True, stdout=subprocess.PIPE, text=True)
    wall, computing = map(float, done.stdout.split()[-2:])
    return wall, computing


@contextmanager
def _watcher(site: Site, known: set[str]) -> Iterator[list[int]]:
    """Opens the items of the next run that begins; the sizes of all updates that it got."""
    updates: list[int] = []
    opened: list[http.client.HTTPConnection] = []

    def look() -> None:
        page = _page_of_newest(site, lambda address: address not in known)
        known.add(page)
        site.get(f"{page}?view=items")
        connection, lines = site.follow(f"{page}/live?view=items")
        opened.append(connection)
        # The connection is closed under it when the run is over.
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


def _cost_table(title: str, times: Mapping[str, Times]) -> Table:
    rows = []
    for name, seen in times.items():
        figures = figures_of(seen, times[ALONE])
        ratio = figures.computing_ratio
        bar = Bar(MOST) if name == WATCHED else None
        passed = None if bar is None or ratio is None else ratio <= bar.most
        cells = (shown(seen.least), times_as(seen.least / times[ALONE].least))
        text = "" if bar is None else f"computing {bar}"
        rows.append(Row(name, (*cells, *computing_cells(figures)), text, passed, figures))
    meaning = (
        "`plait run` of a map with one captured shell step, while nobody looks and while the items "
        "of the run are open in a page, which gets every update. The bar is about the computing "
        "time of the run and of all it starts. The server needs a core too: where there are few, "
        "wall time shows that."
    )
    columns = ("", "least time", f"× {ALONE}", "computing", f"× {ALONE}")
    return Table(title, meaning, columns, tuple(rows))
