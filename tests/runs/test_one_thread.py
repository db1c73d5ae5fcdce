"""Items that share one thread, and items that have one each, do the same and record the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.adapters.process import guardian_process
from plait.adapters.process.dispatcher import Dispatcher
from plait.adapters.store.journal import SqliteJournal
from plait.app.runs import RunObservers, resume_flow, run_flow
from plait.core.errors import JournalError
from plait.engine.events import Event, EventRecord, Note, StepFinished, StepOutput
from plait.program import map_progress
from plait.program.actions.shell import ShellAction

WAYS = {"one thread": None, "threads": lambda *_: False}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


# ── the same events, outcomes and results ─────────────────────────────────

COMMANDS = (
    "echo ${item}", "printf '%s\\n' ${item} b", "exit 3", "test ${item} = 1", "echo a >&2; echo b; exit 1",
    "echo '{\"n\": 1}'", "cat", "echo ${said}", "echo ${step.index} $PLAIT_ATTEMPT", "kill -9 $$",
    "echo x; sleep 0.01; echo ${item}", "no-such-program ${item}", "printf '\\377\\n'",
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    step: dict[str, Any] = {"shell": draw(st.sampled_from(COMMANDS))}
    if draw(st.integers(0, 7)) == 0:
        step = {"tool": "core/git/status"}
    if draw(st.booleans()):
        step["capture_output"] = draw(st.sampled_from(["said", "other"]))
        if draw(st.booleans()):
            step["capture_format"] = draw(st.sampled_from(["json", "number", "lines"]))
    if draw(st.integers(0, 3)) == 0:
        step["when"] = draw(st.sampled_from(["${item} == '1'", "${item} != '2'", "${said} == '1'"]))
    if draw(st.integers(0, 3)) == 0:
        step["continue_on_error"] = True
    if draw(st.integers(0, 4)) == 0:
        step["env"] = {"OWN": "${item}"}
    if draw(st.integers(0, 4)) == 0:
        step["working_dir"] = draw(st.sampled_from(["below", "missing-${item}"]))
    return step


@st.composite
def flows(draw: st.DrawFn) -> dict[str, Any]:
    flow: dict[str, Any] = {
        "input": [str(number) for number in range(draw(st.integers(0, 6)))],
        "max_parallel": draw(st.sampled_from([1, 1, 3, 8])),
        "steps": draw(st.lists(steps(), min_size=1, max_size=3)),
    }
    policy = draw(st.sampled_from([{}, {}, {"on_item_failure": "skip"}]))
    if flow["max_parallel"] == 1:  # else it depends on time which items start
        policy = draw(st.sampled_from([policy, {"max_failures": 2}, {"on_item_failure": "stop"}]))
    document: dict[str, Any] = {"map": flow, "vars": {"said": "none"}}
    return {**document, "error_policy": policy} if policy else document


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(flow=flows())
def test_both_ways_record_the_same(flow: dict[str, Any], tmp_path_factory: Any) -> None:
    seen = [_run(flow, tmp_path_factory.mktemp("project"), way) for way in WAYS]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_journal_that_fails_says_which_item_failed_before(
    way: str, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SqliteJournal.append

    def fail(journal: SqliteJournal, *events: Event) -> None:
        if any(isinstance(one, StepFinished) and one.title == "x" for one in events):
            error = JournalError("the journal cannot be used: lost", "journal.db", "look at it")
            error.holds_last = held
            raise error
        append(journal, *events)

    monkeypatch.setattr(SqliteJournal, "append", fail)
    flow = {"map": {"input": ["x"], "max_parallel": 1, "steps": [{"shell": "exit 3"}]}}
    with pytest.raises(JournalError) as raised:
        _run(flow, tmp_path, way)
    begins = "before that" if held else "so it does not hold that"
    assert raised.value.what == (
        f"the journal cannot be used: lost; {begins} 'x' failed: exit code 3"
    )
    assert str(raised.value.fix).endswith("--failed retries what failed") is held


def _run(flow: dict[str, Any], root: Path, way: str) -> dict[str, Any]:
    (root / ".ai").mkdir(parents=True)
    (root / "below").mkdir()
    (root / "flow.yaml").write_text(json.dumps(flow))
    events: list[EventRecord] = []
    with pytest.MonkeyPatch.context() as patch:
        if WAYS[way] is not None:
            patch.setattr(map_progress, "_shares_thread", WAYS[way])
        observers = RunObservers(watchers=[events.append])
        result = run_flow(str(root / "flow.yaml"), project=str(root), observers=observers)
    # Output that is shown while a step runs depends on how long the step takes.
    events = [record for record in events if not isinstance(record.event, StepOutput)]
    by_path: dict[str, list[str]] = defaultdict(list)
    for record in events:
        by_path[getattr(record.event, "path", "")].append(_text(record.event, root, result.run))
    # With several items at a time, their events mix as time has it.
    in_order = (
        [_text(record.event, root, result.run) for record in events]
        if flow["map"].get("max_parallel") == 1
        else None
    )
    failure = None if result.failure is None else _clean(result.failure.message, root, result.run)
    return {
        "status": result.status,
        "counts": result.counts,
        "failure": failure,
        "value": _clean(repr(result.value), root, result.run),
        "events": dict(by_path),
        "order": in_order,
        "records": _records(root, result.run),
    }


def _records(root: Path, run: str) -> dict[str, list[str]]:
    """The recorded ends and notes by path.  A start is recorded only if a step takes long."""
    found: dict[str, list[str]] = defaultdict(list)
    journal = SqliteJournal(str(root / ".ai" / "state" / "runs" / run), write=False)
    try:
        for record in journal.events():
            if isinstance(record.event, StepFinished | Note):
                found[record.event.path].append(_text(record.event, root, run))
    finally:
        journal.close()
    return dict(found)


def _text(event: Event, root: Path, run: str) -> str:
    return _clean(repr(event), root, run)


def _clean(text: str, root: Path, run: str) -> str:
    text = text.replace(str(root), "ROOT").replace(run, "RUN")
    return re.sub(r"(['\"]?duration['\"]?[=:] ?)[0-9.e-]+", r"\1TIME", text)


# ── after a kill ──────────────────────────────────────────────────────────

KILLED_FLOW: dict[str, Any] = {
    "map": {
        "input": [str(item) for item in range(60)],
        "max_parallel": 4,
        "steps": [
            {"shell": "echo ${item} >> ledger; echo one", "capture_output": "one"},
            {"shell": "echo two ${item} ${one} >> ledger"},
        ],
    }
}
START = """
import sys
import threading
from plait.program import map_progress
if sys.argv[1] == "threads":
    map_progress._shares_thread = lambda *_: False
from plait.app.runs import run_flow
run_flow("flow.yaml", project=".")
"""


@pytest.mark.parametrize("lines", [1, 17, 50, 90])
@pytest.mark.parametrize("way", WAYS)
def test_a_kill_repeats_at_most_the_items_that_ran(way: str, lines: int, tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".ai").mkdir(parents=True)
    (root / "flow.yaml").write_text(json.dumps(KILLED_FLOW))
    ledger = root / "ledger"
    process = subprocess.Popen([sys.executable, "-c", START, way], cwd=root)
    try:
        while not (ledger.exists() and len(ledger.read_text().splitlines()) >= lines):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    [run] = os.listdir(root / ".ai" / "state" / "runs")
    assert resume_flow(run, project=str(root)).status == "done"
    done = Counter(ledger.read_text().splitlines())
    wanted = {str(item) for item in range(60)} | {f"two {item} one" for item in range(60)}
    assert set(done) == wanted
    assert sum(done.values()) - len(wanted) <= KILLED_FLOW["map"]["max_parallel"]


# ── what can go wrong on one thread ───────────────────────────────────────


def test_only_items_that_wait_for_processes_alone_share_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[str] = []
    really = Dispatcher.run

    def run(self: Dispatcher) -> None:
        shared.append("yes")
        really(self)

    monkeypatch.setattr(Dispatcher, "run", run)
    for number, (step, more, expected) in enumerate(SHARING):
        root = tmp_path / str(number)
        shared.clear()
        flow = {"map": {"input": ["a", "b"], "steps": [step], **more}}
        _run(flow, root, "one thread")
        assert bool(shared) == expected, (step, more)


SHARING: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    # step                                                  map                         one thread
    ({"shell": "true"},                                     {},                          True),
    ({"shell": "true", "when": "${item} == 'a'"},              {},                          True),
    ({"shell": "true", "env": {"A": "1"}},                  {},                          True),
    ({"shell": "true", "continue_on_error": True},          {},                          True),
    ({"shell": "true", "timeout": 5},                       {},                          False),
    ({"shell": "true", "retry": {"attempts": 2}},           {},                          False),
    ({"shell": "true", "once": True},                       {},                          False),
    ({"shell": "true", "on_failure": {"shell": "true"}},    {},                          False),
    ({"shell": "true", "validate": {"shell": "true"}},      {},                          False),
    ({"shell": "true"},                                     {"agent_timeout_secs": 5},   False),
    ({"tool": "core/git/status"},                           {},                          True),
    ({"tool": "core/file/list"},                            {},                          False),
    ({"write_file": {"path": "${item}", "content": "a"}},   {},                          False),
]  # fmt: skip


def test_values_in_files_wait_for_room_in_the_channel(tmp_path: Path) -> None:
    """Each order has a descriptor, and together they are more than a socket holds."""
    flow = {
        "vars": {"large": "x" * 150_000},
        "map": {
            "input": [str(item) for item in range(200)],
            "max_parallel": 200,
            "steps": [{"shell": "printf %s ${large} | wc -c", "capture_output": "size"}],
        },
    }
    result = _run(flow, tmp_path / "project", "one thread")
    assert result["status"] == "done", result["failure"]
    assert result["counts"]["successful"] == 200


@pytest.mark.parametrize(
    ("owner", "place"), [(map_progress.MapProgress, "commit"), (ShellAction, "plan")]
)
def test_an_interrupt_ends_running_processes_at_once(
    owner: type, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without signal handlers, KeyboardInterrupt comes anywhere, also between two processes."""
    really = getattr(owner, place)
    root = tmp_path / "project"

    def interrupted(self: Any, *given: Any) -> Any:
        if (root / "long").exists():
            raise KeyboardInterrupt
        return really(self, *given)

    monkeypatch.setattr(owner, place, interrupted)
    script = "test ${item} = 0 && touch long && exec sleep 1000; while ! test -e long; do :; done"
    flow = {"map": {"input": ["0", "1", "2"], "max_parallel": 2, "steps": [{"shell": script}]}}
    with pytest.raises(KeyboardInterrupt):
        _run(flow, root, "one thread")


def test_a_guardian_that_is_stopped_while_orders_wait_is_continued(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".ai").mkdir(parents=True)
    flow = {
        "vars": {"big": "x" * 60_000},
        "map": {
            "input": [str(item) for item in range(200)],
            "max_parallel": 100,
            "steps": [{"shell": "echo ${item} >> ledger; : ${big}; sleep 0.2"}],
        },
    }
    (root / "flow.yaml").write_text(json.dumps(flow))

    def stop() -> None:
        while not (root / "ledger").exists():
            time.sleep(0.001)
        os.kill(guardian_process._GUARDIANS[False].pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    stopper.start()
    result = run_flow(str(root / "flow.yaml"), project=str(root))
    stopper.join()
    assert (result.status, result.counts["successful"]) == ("done", 200)
