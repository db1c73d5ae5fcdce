"""How a run looks: lines, JSON, a picture on a terminal; what is listed of it; how it is stopped."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from plait.app.runs import FlowResult, RunObservers
from plait.cli import main
from plait.cli.run import parse_inputs, run_with_view, view_for
from plait.cli.signals import stop_on_signal
from plait.core.errors import InputError
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.events import (
    Event,
    EventRecord,
    ItemsCounted,
    Note,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepRenamed,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded
from plait.engine.plan_log import PlannedStep
from plait.engine.stop import StopSignal
from plait.views.format import clean_block, clock, json_line, one_line, speed
from plait.views.frame import frame
from plait.views.json_view import JsonView
from plait.views.lines import stopping_line
from plait.views.live import LiveView
from plait.views.log import find_paths, log_entries, log_lines
from plait.views.plan import show_plan
from plait.views.progress import replay_events
from plait.views.report import AttemptCounts, Report, report_json, report_lines
from plait.views.run_list import run_json, show_runs
from plait.views.summary import summary_lines
from plait.views.text import PlainView, QuietView
from plait.views.verbose import VerboseView
from plait.views.view import View

Capsys = pytest.CaptureFixture[str]
HOSTILE = "a\x1b[2J\x1b]0;title\x07b\r\nc\u202e\x9b31m\x00"
BROKEN = Failure("exit code 2: warning: old\nE999 at line 14", "exit", 2, path="map/item:b/0")


@dataclass(frozen=True, slots=True)
class Ended:
    run: str = "7f3a"
    status: Status = "done"
    failure: Failure | None = None
    value: Json = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    has_seal: bool = True
    exit_code: int = 0


def begun(path: str, kind: str, title: str, order: int = 0, attempt: int = 1) -> Event:
    return StepStarted(path, kind, title, attempt, order)


def over(
    path: str, kind: str, title: str, outcome: Outcome, order: int = 0, took: float = 1.0
) -> Event:
    return StepFinished(path, kind, title, "f", outcome, took, order)


def out(text: str) -> Succeeded:
    return Succeeded({"output": text, "stderr": "", "exit_code": 0, "duration": 0.1})


STORY: Sequence[tuple[float, Event]] = [
    (0.0, RunStarted("7f3a", "fix-worst", "/p/fix-worst.yaml", "/p", False, (("setup", 2), ("map", 1), ("reduce", 1)))),
    (0.0, begun("setup", "phase", "setup")),
    (0.0, begun("setup/0", "shell", "measure")),
    (2.0, over("setup/0", "shell", "measure", out("42\n"), 0, 2.0)),
    (2.0, begun("setup/1", "shell", "only on Mondays", 1)),
    (2.0, over("setup/1", "shell", "only on Mondays", Skipped("its condition does not hold"), 1, 0.0)),
    (3.0, over("setup", "phase", "setup", Succeeded({"output": "42", "captures": {}}), 0, 3.0)),
    (3.0, begun("map", "map", "map", 1)),
    (3.0, ItemsCounted("map", 3)),
    (3.0, begun("map/item:a", "item", "src/a.py", 0)),
    (3.0, begun("map/item:a/0", "shell", "make lint FILE=src/a.py")),
    (3.0, begun("map/item:b", "item", "src/old.py", 1)),
    (3.0, begun("map/item:b/0", "shell", "make lint FILE=src/old.py")),
    (4.0, StepRetrying("map/item:b/0", 1, BROKEN, 2.0, 3)),
    (6.0, begun("map/item:b/0", "shell", "make lint FILE=src/old.py", 0, 2)),
    (7.0, over("map/item:b/0", "shell", "make lint FILE=src/old.py", Failed(BROKEN), 0, 4.0)),
    (7.0, over("map/item:b", "item", "src/old.py", Failed(BROKEN), 1, 4.0)),
    (14.0, over("map/item:a/0", "shell", "make lint FILE=src/a.py", out("fine\n"), 0, 11.0)),
    (14.0, over("map/item:a", "item", "src/a.py", Succeeded({"output": "fine", "captures": {}}), 0, 11.0)),
    (14.0, begun("map/item:c", "item", "src/c.py", 2)),
    (14.0, begun("map/item:c/0", "shell", "make lint FILE=src/c.py")),
]  # fmt: skip
END: Sequence[tuple[float, Event]] = [
    (15.0, over("map/item:c/0", "shell", "make lint FILE=src/c.py", out(""), 0, 1.0)),
    (15.0, over("map/item:c", "item", "src/c.py", Succeeded({"output": "", "captures": {}}), 2, 1.0)),
    (15.0, over("map", "map", "map", Succeeded({"total": 3, "successful": 2, "failed": 1, "skipped": 0}), 1, 12.0)),
    (15.0, begun("reduce", "phase", "reduce", 2)),
    (15.0, Note("reduce", "'tidy' failed, and the flow goes on: x\nand more")),
    (75.0, over("reduce", "phase", "reduce", Succeeded({"output": "", "captures": {}}), 2, 60.0)),
    (75.0, RunEnded("done", facts={"files": ["report.md"], "cost": 0.125})),
]  # fmt: skip


def stamped(story: Sequence[tuple[float, Event]]) -> list[EventRecord]:
    return [EventRecord(number, at, event) for number, (at, event) in enumerate(story, 1)]


def seen(view: View, story: Sequence[tuple[float, Event]], result: Ended | None = None) -> None:
    with view:
        for one in stamped(story):
            view.watch(one)
    if result is not None:
        view.finish(result)


# ── plain lines ──────────────────────────────────────────────────────────

PLAIN = """\
fix-worst: run 7f3a, /p/fix-worst.yaml
setup: started
setup: measure: started
setup: measure: done, 2.0 s
setup: only on Mondays: started
setup: only on Mondays: skipped (its condition does not hold), 0.0 s
setup: done, 2 steps, 3.0 s
map: started
map: 3 items
make lint FILE=src/old.py: attempt 1 of 3 failed (exit 2), retry in 2 s
✗ src/old.py   exit 2  E999 at line 14
map: 2/3  10.9/min  ~6 s  0 running  1 failed
map: finished, 3 items, 1 failed, 12.0 s
reduce: started
note: 'tidy' failed, and the flow goes on: x
reduce: done, 1 step, 1:00
! finished in 1:15, 1 of 3 items failed   map: 3 items, 2 done, 1 failed   2 of 3 steps   1 retry   1 note   $0.12
  all is well
  wrote  report.md
  ✗ src/old.py   exit 2
      warning: old
      E999 at line 14
  look at it   plait logs 7f3a src/old.py
  retry        plait retry 7f3a --failed
"""


def test_a_run_in_plain_lines() -> None:
    stream = io.StringIO()
    seen(PlainView(stream), [*STORY, *END], Ended(value={"output": "all is well\n"}, exit_code=1))
    assert stream.getvalue() == PLAIN


def test_a_note_about_an_item_names_it() -> None:
    stream = io.StringIO()
    seen(
        PlainView(stream),
        [*STORY, (14.0, Note("map/item:c", "'tidy' failed, and the flow goes on: x"))],
    )
    assert (
        stream.getvalue().splitlines()[-1]
        == "note: src/c.py: 'tidy' failed, and the flow goes on: x"
    )


def test_progress_is_printed_every_ten_seconds_at_most() -> None:
    stream = io.StringIO()
    items = [(n / 10, over(f"map/item:{n}", "item", str(n), Succeeded(), n)) for n in range(1, 500)]
    seen(
        PlainView(stream),
        [*STORY[:1], (0.0, begun("map", "map", "map")), (0.0, ItemsCounted("map", 500)), *items],
    )
    lines = [line for line in stream.getvalue().splitlines() if re.match(r"map: \d+/500", line)]
    assert lines == [
        "map: 100/500  10.0/s  ~40 s  0 running",
        "map: 200/500  10.0/s  ~30 s  0 running",
        "map: 300/500  10.0/s  ~20 s  0 running",
        "map: 400/500  10.0/s  ~10 s  0 running",
    ]


def test_failures_beyond_fifty_are_counted_and_not_printed() -> None:
    stream = io.StringIO()
    failures = [
        (1.0, over(f"map/item:{n}", "item", f"n{n}", Failed(Failure("no")), n)) for n in range(60)
    ]
    counted = [(0.0, begun("map", "map", "map")), (0.0, ItemsCounted("map", 99))]
    view = PlainView(stream)
    seen(view, [*STORY[:1], *counted, *failures], Ended(exit_code=1))
    printed = stream.getvalue().splitlines()
    assert len([line for line in printed if line.startswith("✗ n")]) == 50
    assert "more failures are counted and not printed: plait show 7f3a" in printed
    assert "  … and 50 more that failed: plait show 7f3a" in printed


def hostile(name: str) -> list[tuple[float, Event]]:
    failure = Failure(f"exit code 1: {name}", "exit", 1, path="map/item:x")
    return [
        (0.0, RunStarted(name, name, name, name, False, ((name.replace("/", ""), 1),))),
        (0.0, begun("map", "map", name)),
        (0.0, ItemsCounted("map", 3)),
        (0.0, begun("map/item:x", name, name)),
        (0.0, begun("map/item:x/0", name, name)),
        (0.0, StepRetrying("map/item:x/0", 1, failure, 1.0)),
        (0.0, over("map/item:x", name, name, Failed(failure))),
        (0.0, begun("map/item:y", name, name, 1)),
        (0.0, begun("map/item:y/0", name, name)),
        (0.0, begun("setup", name, name)),
        (0.0, begun("setup/0", name, name)),
        (0.0, over("setup/0", name, name, Skipped(name))),
        (0.0, Note("setup", name)),
    ]


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.just(HOSTILE))
def test_nothing_that_a_run_says_can_drive_a_terminal(name: str) -> None:
    result = Ended(name, "failed", Failure(name), {"output": name}, exit_code=1)
    story = hostile(name)
    plain, quiet, as_json = io.StringIO(), io.StringIO(), io.StringIO()
    seen(PlainView(plain), story, result)
    seen(QuietView(quiet), story, result)
    seen(JsonView(as_json), story, result)
    drawn = "\n".join(
        line.plain for line in frame(replay_events(stamped(story)), now=1.0, width=80, height=24)
    )
    for shown in (plain.getvalue(), quiet.getvalue(), as_json.getvalue(), drawn):
        assert shown.replace("\n", "").isprintable()


def test_a_quiet_view_says_nothing_unless_it_fails() -> None:
    stream = io.StringIO()
    seen(QuietView(stream), STORY, Ended())
    assert stream.getvalue() == ""
    seen(QuietView(stream), STORY, Ended(status="failed", exit_code=1))
    assert stream.getvalue().startswith("✗ failed after")


# ── JSON ─────────────────────────────────────────────────────────────────


def test_each_event_is_one_object_and_the_last_is_the_result() -> None:
    stream = io.StringIO()
    seen(JsonView(stream), [*STORY, *END], Ended(counts={"failed": 1}, exit_code=1))
    printed = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(printed) == len(STORY) + len(END) + 1
    assert printed[0] == {
        "number": 1,
        "at": 0.0,
        "event": "run_started",
        "version": 1,
        "run": "7f3a",
        "flow": "fix-worst",
        "file": "/p/fix-worst.yaml",
        "project": "/p",
        "resumed": False,
        "phases": [
            {"name": "setup", "steps": 2},
            {"name": "map", "steps": 1},
            {"name": "reduce", "steps": 1},
        ],
    }
    assert [one["event"] for one in printed[1:5]] == [
        "step_started",
        "step_started",
        "step_finished",
        "step_started",
    ]
    assert printed[3]["status"] == "done"
    assert printed[3]["value"]["output"] == "42\n"
    assert printed[-1] == {
        "event": "result",
        "run": "7f3a",
        "status": "done",
        "exit_code": 1,
        "counts": {"failed": 1},
        "failure": None,
        "value": None,
    }


@given(st.text())
def test_a_json_line_reads_back_as_it_was(text: str) -> None:
    line = json_line({"x": text})
    assert line.isprintable()
    assert json.loads(line) == {"x": text}


# ── the picture ──────────────────────────────────────────────────────────


def picture(
    width: int, height: int = 30, *, now: float = 15.0, story: Sequence[tuple[float, Event]] = STORY
) -> list[str]:
    return [
        line.plain.rstrip()
        for line in frame(replay_events(stamped(story)), now=now, width=width, height=height)
    ]


def test_the_picture_of_a_run() -> None:
    assert picture(100) == [
        "● fix-worst  run 7f3a                                                                        15.0 s",
        "  ✓ setup   2 steps                                                                           3.0 s",
        "  ● map     ████████████████████░░░░░░░░░░  2/3   10.0/min   ~6 s   1 running   1 failed",
        "      src/c.py   shell  make lint FILE=src/c.py                                               1.0 s",
        "  ○ reduce  1 step",
    ]


def test_a_narrow_terminal_gets_less_and_never_more_than_fits() -> None:
    assert picture(44) == [
        "● fix-worst  run 7f3a                15.0 s",
        "  ✓ setup   2 steps                   3.0 s",
        "  ● map     2/3   ~6 s   1 failed",
        "      src/c.py   shell  make lint F…  1.0 s",
        "  ○ reduce  1 step",
    ]


@given(width=st.integers(1, 200), height=st.integers(1, 40), running=st.integers(0, 60))
def test_the_picture_fits_into_any_terminal(width: int, height: int, running: int) -> None:
    items = [
        (14.0, begun(f"map/item:{n}", "item", "日本語" * (n % 9) + "x", n)) for n in range(running)
    ]
    drawn = frame(replay_events(stamped([*STORY, *items])), now=20.0, width=width, height=height)
    assert len(drawn) <= height
    assert all(cell_len(line.plain) <= max(width - 1, 10) for line in drawn)


def test_items_that_do_not_fit_are_counted() -> None:
    items = [(14.0, begun(f"map/item:{n}", "item", f"f{n}", n)) for n in range(20)]
    drawn = picture(60, 10, story=[*STORY, *items])
    assert len(drawn) == 10
    assert drawn[-2].strip() == "… and 16 more"


def test_an_item_that_waits_for_its_next_attempt_says_so() -> None:
    drawn = picture(80, now=5.0, story=STORY[:14])
    assert "attempt 1 of 3 failed, retry in 1.0 s" in drawn[4]


def test_an_item_that_is_tried_again_says_for_which_time() -> None:
    drawn = picture(80, now=6.0, story=STORY[:15])
    assert "attempt 2 of 3  shell  make lint FILE=src/old.py" in drawn[4]


def test_what_runs_in_a_second_attempt_of_an_item_says_so() -> None:
    again = [
        (14.0, StepRetrying("map/item:c", 1, BROKEN, 0.0, 2)),
        (14.0, begun("map/item:c", "item", "src/c.py", 2, 2)),
    ]
    assert (
        "src/c.py   attempt 2 of 2  shell  make lint FILE=src/c.py "
        in picture(100, story=[*STORY, *again])[3]
    )


LOOKING: Sequence[tuple[float, Event]] = [
    (0.0, RunStarted("7f3a", "fix", "/p/fix.yaml", "/p", False, (("map", 2), ("reduce", 1)))),
    (0.0, begun("map", "map", "map")),
    (0.0, begun("map/items", "items", "the items")),
]  # fmt: skip


def test_a_map_that_has_no_items_yet_looks_for_them() -> None:
    assert picture(60, now=2.0, story=LOOKING) == [
        "● fix  run 7f3a                                       2.0 s",
        "  ● map     finding its items                         2.0 s",
        "  ○ reduce  1 step",
    ]


def test_what_finds_the_items_is_no_step_that_anybody_is_reported_of() -> None:
    stream = io.StringIO()
    found = [
        (1.0, over("map/items", "items", "the items", Succeeded({"count": 1}))),
        (1.0, ItemsCounted("map", 1)),
    ]
    seen(PlainView(stream), [*LOOKING, *found])
    assert stream.getvalue() == "fix: run 7f3a, /p/fix.yaml\nmap: started\nmap: 1 item\n"


def test_a_map_that_cannot_find_its_items_fails_itself_and_once() -> None:
    stream = io.StringIO()
    failure = Failure(
        "flow.yaml:3:5: there is no file 'a'\nfix: name one", "refused", path="map/items"
    )
    story = [
        *LOOKING,
        (1.0, over("map/items", "items", "the items", Failed(failure))),
        (1.0, over("map", "map", "map", Failed(failure))),
        (1.0, RunEnded("failed", failure)),
    ]
    seen(PlainView(stream), story, Ended(status="failed", failure=failure, exit_code=1))
    assert stream.getvalue().splitlines()[2:] == [
        "✗ map   refused  flow.yaml:3:5: there is no file 'a'",
        "map: failed, 1.0 s",
        "✗ failed after 1.0 s   0 of 1 step",
        "  ✗ map   refused",
        "      flow.yaml:3:5: there is no file 'a'",
        "      fix: name one",
        "  look at it   plait logs 7f3a map",
        "  resume       plait resume 7f3a",
    ]


def test_what_runs_is_shown_with_its_values_as_soon_as_they_are_known() -> None:
    action = begun("map/item:d/0/run", "attempt", "lint ${item}")
    titled = [
        (14.0, begun("map/item:d", "item", "src/d.py", 3)),
        (14.0, begun("map/item:d/0", "shell", "lint ${item}")),
        (14.0, action),
        (14.0, StepRenamed("map/item:d/0/run", "lint src/d.py")),
    ]
    assert "src/d.py   shell  lint src/d.py " in picture(100, story=[*STORY, *titled])[4]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    drawn = frame(replay_events(stamped(STORY)), now=15.0, width=80, height=30, ascii_only=True)
    assert "#" in drawn[2].plain
    assert "█" not in drawn[2].plain


def terminal(*, no_color: bool = False) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", width=80, height=24,
        no_color=no_color, markup=False, highlight=False, emoji=False,
        legacy_windows=False, _environ={"TERM": "xterm"},
    )  # fmt: skip


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_failure_stays_above_the_picture_and_the_summary_follows_it(capsys: Capsys) -> None:
    console = terminal()
    seen(LiveView(console, now=lambda: 15.0), [*STORY, *END], Ended(exit_code=1))
    text = written(console)
    assert text.index("✗ src/old.py   exit 2  E999 at line 14") < text.rindex("fix-worst")
    assert capsys.readouterr().out.splitlines()[-1] == "  retry        plait retry 7f3a --failed"


def test_the_cursor_is_shown_again_however_it_ends() -> None:
    console = terminal()

    def breaking() -> None:
        with LiveView(console, now=lambda: 15.0) as view:
            for one in stamped(STORY):
                view.watch(one)
            assert "\x1b[?25h" not in written(console)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaking()
    text = written(console)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_no_colour_means_no_colour() -> None:
    for no_color in (False, True):
        console = terminal(no_color=no_color)
        seen(LiveView(console, now=lambda: 15.0), STORY)
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", written(console))) is not no_color


def test_a_question_has_the_terminal_for_itself() -> None:
    console = terminal()
    with LiveView(console, now=lambda: 15.0) as view:
        for one in stamped(STORY[:15]):
            view.watch(one)
        with view.pause():
            before = written(console)
            for one in stamped(STORY)[15:]:
                view.watch(one)
            assert written(console) == before
            assert before.rindex("\x1b[?25h") > before.rindex("\x1b[?25l")
        assert "✗ src/old.py" in written(console)[len(before) :]


def test_a_picture_whose_lines_were_broken_by_a_narrower_terminal_is_erased_whole() -> None:
    console = terminal()
    with LiveView(console, now=lambda: 15.0) as view:
        for one in stamped(STORY):
            view.watch(one)
        height = len(frame(view.progress, now=15.0, width=80, height=24))
        view.stopping(at_once=False)  # prints, and so draws anew
        mark = len(written(console))
        console.width = 40
        view.stopping(at_once=True)
        erased = re.findall(r"(?:\x1b\[1A\x1b\[2K)+", written(console)[mark:])
    # The head, setup and the running item reach the right edge: each of them took two rows.
    assert max(len(one) // len("\x1b[1A\x1b[2K") for one in erased) >= height - 1 + 3


def test_what_a_terminal_shows_of_two_ctrl_c_does_not_break_the_picture() -> None:
    console = terminal()
    view = LiveView(console, now=lambda: 15.0)
    for one in stamped(STORY):
        view.progress.add(one)
    widest = max(len(str(line).rstrip()) for line in view._render_frame().renderables)
    # The cursor stands behind the last line, and there `^C` appears: a row more would not be erased.
    assert widest + len("^C^C") <= console.width


# ── the last lines ───────────────────────────────────────────────────────


def last_lines(result: Ended, story: Sequence[tuple[float, Event]] = STORY) -> list[str]:
    return [text for text, _ in summary_lines(replay_events(stamped(story)), result)]


def test_a_run_that_was_stopped_says_what_is_recorded_and_how_to_go_on() -> None:
    assert last_lines(Ended(status="interrupted", exit_code=130)) == [
        "stopped. 2 of 3 items are recorded. Continue with:  plait resume 7f3a"
    ]
    assert last_lines(Ended(status="interrupted", exit_code=130), STORY[:5]) == [
        "stopped. 1 of 4 steps are recorded. Continue with:  plait resume 7f3a"
    ]


def test_a_question_about_a_step_is_not_followed_by_a_command_that_asks_it_again() -> None:
    question = "its outcome is unknown\nfix: plait resume 7f3a --repeat steps/0, or plait resume 7f3a --done steps/0"
    failure = Failure(question, "refused")
    story = [*STORY[:2], (2.0, RunEnded("failed", failure))]
    assert last_lines(Ended(status="failed", failure=failure, exit_code=1), story) == [
        "✗ failed after 2.0 s   0 of 4 steps",
        "  its outcome is unknown",
        "  fix: plait resume 7f3a --repeat steps/0, or plait resume 7f3a --done steps/0",
    ]


def test_a_step_that_failed_is_looked_at_and_gone_on_with() -> None:
    failure = Failure("exit code 1: no such file", "exit", 1, path="setup/0")
    story = [
        *STORY[:3],
        (2.0, over("setup/0", "shell", "it's", Failed(failure))),
        (2.0, RunEnded("failed", failure)),
    ]
    assert last_lines(Ended(status="failed", failure=failure, exit_code=1), story) == [
        "✗ failed after 2.0 s   1 of 4 steps",
        "  ✗ it's   exit 1",
        "      no such file",
        """  look at it   plait logs 7f3a 'it'"'"'s'""",
        "  resume       plait resume 7f3a",
    ]


def test_a_run_that_went_on_after_a_failure_says_both_and_asks_for_nothing() -> None:
    failure = Failure("exit code 1: no such file", "exit", 1, path="setup/0")
    story = [
        (0.0, RunStarted("7f3a", "fix", "/p/fix.yaml", "/p", False, (("setup", 2),))),
        (0.0, begun("setup", "phase", "setup")),
        (1.0, over("setup/0", "shell", "tidy", Failed(failure))),
        (2.0, over("setup/1", "shell", "measure", out("42\n"), 1)),
        (2.0, over("setup", "phase", "setup", Succeeded({"output": "42", "captures": {}}))),
        (2.0, RunEnded("done")),
    ]
    assert last_lines(Ended(), story) == [
        "! finished in 2.0 s   2 steps, 1 failed and the run went on",
        "  ✗ tidy   exit 1",
        "      no such file",
        "  look at it   plait logs 7f3a tidy",
    ]


def test_failed_items_and_a_step_that_failed_behind_them_are_tried_again_in_two_ways() -> None:
    failure = Failure("exit code 1: no such file", "exit", 1, path="reduce/0")
    story = [
        *STORY,
        *END[:4],
        (16.0, over("reduce/0", "shell", "report", Failed(failure))),
        (16.0, over("reduce", "phase", "reduce", Failed(failure))),
        (16.0, RunEnded("failed", failure)),
    ]
    assert last_lines(Ended(status="failed", failure=failure, exit_code=1), story)[-3:] == [
        "  look at it   plait logs 7f3a report",
        "  retry        plait retry 7f3a --failed",
        "  resume       plait resume 7f3a",
    ]


def test_items_that_a_run_had_no_time_for_are_counted() -> None:
    failure = Failure("took longer than 15 s", "timeout")
    more = [(15.0, ItemsCounted("map", 9)), *STORY[9:], (15.0, RunEnded("failed", failure))]
    assert last_lines(Ended(status="failed", failure=failure, exit_code=1), [*STORY[:9], *more])[
        :2
    ] == [
        "✗ failed after 15.0 s   map: 9 items, 1 done, 1 failed, 1 cut short, 6 not started   2 of 3 steps   1 retry",
        "  took longer than 15 s",
    ]


def test_a_failure_that_belongs_to_no_step_is_shown_itself() -> None:
    failure = Failure("this project is not trusted\nfix: plait trust .", "trust")
    assert last_lines(Ended(status="failed", failure=failure, exit_code=3), STORY[:1]) == [
        "✗ failed after 0.0 s   0 of 4 steps",
        "  this project is not trusted",
        "  fix: plait trust .",
        "  resume       plait resume 7f3a",
    ]


def test_a_long_output_is_cut_with_a_count() -> None:
    lines = last_lines(Ended(value={"output": "\n".join(map(str, range(30)))}), STORY[:1])
    assert lines[1:4] == ["  0", "  1", "  2"]
    assert lines[-1] == "  … 20 more lines: plait logs 7f3a"


def test_a_long_line_of_output_is_cut_and_marked() -> None:
    lines = last_lines(Ended(value={"output": "a" * 3_000_000 + "\nb"}), STORY[:1])
    assert lines[1:] == [f"  {'a' * 499}…", "  b", "  … whole lines: plait logs 7f3a"]


STOPPING = [
    (STORY,     False, "stopping: 1 running item gets 2 s … (again: at once)"),
    (STORY[:3], False, "stopping: 1 running step gets 2 s … (again: at once)"),
    (STORY[:14], False, "stopping: 2 running items get 2 s … (again: at once)"),
    (STORY[:1], False, "stopping …"),
    (STORY,     True,  "stopping at once …"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "at_once", "line"), STOPPING)
def test_messages_when_a_run_is_to_stop(
    story: list[tuple[float, Event]], at_once: bool, line: str
) -> None:
    assert stopping_line(replay_events(stamped(story)), at_once=at_once) == line


CLOCKS = [
    (0, "0.0 s"),
    (0.04, "0.0 s"),
    (1.3 - 1e-9, "1.3 s"),
    (7.96, "7.9 s"),
    (59.97, "59.9 s"),
    (60, "1:00"),
    (61, "1:01"),
    (3723, "1:02:03"),
    (2 * 86400 + 3 * 3600, "2d 3:00:00"),
    (-1, "0.0 s"),
]
SPEEDS = [(3.94, "3.9/s"), (250.4, "250/s"), (0.5, "30.0/min"), (0.01, "36.0/h")]


@pytest.mark.parametrize(("seconds", "text"), CLOCKS)
def test_a_time_as_people_read_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("rate", "text"), SPEEDS)
def test_a_rate_as_people_read_it(rate: float, text: str) -> None:
    assert speed(rate) == text


def test_what_a_program_wrote_for_a_terminal_is_text_without_it() -> None:
    assert one_line("\x1b[1;31mred\x1b[0m\x1b]0;t\x07\tx") == "red x"
    assert clean_block("10%\r20%\rdone\r\nnext\x08") == "10%\n20%\ndone\nnext�"


# ── stopping ─────────────────────────────────────────────────────────────


class Noting(QuietView):
    """Records when it is asked to stop the run."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.reported: list[bool] = []
        self.heard = Flag()

    def stopping(self, *, at_once: bool) -> None:
        self.reported.append(at_once)
        self.heard.set()


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture
def _heeded() -> Iterator[None]:
    """The parent of the tests may ignore signals, as nohup does, and a run keeps them ignored."""
    before = {one: signal.getsignal(one) for one, _ in SIGNALS}
    for one, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(one, signal.SIG_DFL)
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_lets_the_run_stop_and_is_its_exit_code(number: signal.Signals, code: int) -> None:
    view = Noting()

    def start(*, observers: RunObservers) -> FlowResult:
        stop = observers.stop
        os.kill(os.getpid(), number)
        assert view.heard.wait(10)
        assert stop.wait(10)
        assert (stop.at_once, stop.why) == (False, number.name)
        return FlowResult("r", "interrupted", Failure(stop.why, "stopped"))

    before = signal.getsignal(number)
    assert run_with_view(start, view) == code
    assert view.reported == [False]
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_json_says_the_exit_code_of_the_process(number: signal.Signals, code: int) -> None:
    printed = io.StringIO()

    def start(*, observers: RunObservers) -> FlowResult:
        os.kill(os.getpid(), number)
        assert observers.stop.wait(10)
        return FlowResult("r", "interrupted", Failure(observers.stop.why, "stopped"))

    assert run_with_view(start, JsonView(printed)) == code
    assert json.loads(printed.getvalue().splitlines()[-1])["exit_code"] == code


@pytest.mark.usefixtures("_heeded")
def test_the_second_signal_is_at_once() -> None:
    view = Noting()
    stop = StopSignal()
    with stop_on_signal(stop, view) as heard:
        for _ in range(2):
            view.heard.clear()
            os.kill(os.getpid(), signal.SIGINT)
            assert view.heard.wait(10)
    assert (heard, view.reported, stop.at_once) == ([signal.SIGINT] * 2, [False, True], True)


@pytest.mark.usefixtures("_heeded")
def test_a_run_that_ends_well_in_spite_of_a_signal_has_ended_well() -> None:
    view = Noting()

    def start(*, observers: RunObservers) -> Ended:  # noqa: ARG001 - the protocol's shape
        os.kill(os.getpid(), signal.SIGTERM)
        assert view.heard.wait(10)
        return Ended()

    assert run_with_view(start, view) == 0


@pytest.mark.usefixtures("_heeded")
def test_a_signal_after_the_end_of_a_run_does_not_take_its_end_away() -> None:
    class Late(Noting):
        def finish(self, result: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.heard.wait(10)
            super().finish(result)

    assert run_with_view(lambda **_: Ended(exit_code=143), Late()) == 143


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal(StopSignal(), Noting()) as heard:
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    codes: list[int] = []
    thread = Thread(
        target=lambda: codes.append(run_with_view(lambda **_: Ended(exit_code=1), Noting()))
    )
    thread.start()
    thread.join(10)
    assert codes == [1]


def test_what_raises_leaves_signals_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)

    def start(*, observers: RunObservers) -> Ended:  # noqa: ARG001 - the protocol's shape
        raise InputError("no such file")

    with pytest.raises(InputError):
        run_with_view(start, Noting())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_dry_run_shows_what_would_run_and_what_is_replayed(capsys: Capsys) -> None:
    found = [
        PlannedStep("setup/0", "shell", "measure", replayed=True),
        PlannedStep("setup/1", "shell", "git commit -m 'it'\nls\n", why="it had failed"),
        PlannedStep("setup/2", "shell", "publish", skipped="its condition does not hold"),
        PlannedStep("map/item:a/0", "tool", "team/report\x1b[2J"),
    ]
    assert show_plan(found, as_json=False) == 0
    assert capsys.readouterr().out == (
        "setup/0   shell   measure   (replayed)\n"
        "setup/1   shell   git commit -m 'it'   (again: it had failed)\n"
        "    ls\n"
        "setup/2   shell   publish   (skipped: its condition does not hold)\n"
        "map/item:a/0   tool   team/report\n"
    )
    assert show_plan(found, as_json=True) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()][1] == {
        "path": "setup/1",
        "kind": "shell",
        "shown": "git commit -m 'it'\nls\n",
        "replayed": False,
        "why": "it had failed",
        "fails": "",
        "skipped": "",
    }


# ── which view ───────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


VIEWS = [
    (io.StringIO, "xterm", {},                 PlainView),
    (Terminal,    "xterm", {},                 LiveView),
    (Terminal,    "dumb",  {},                 PlainView),
    (Terminal,    "xterm", {"json": True},     JsonView),
    (Terminal,    "xterm", {"quiet": True},    QuietView),
    (Terminal,    "xterm", {"verbose": True},  VerboseView),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "term", "chosen", "kind"), VIEWS)
def test_the_view_is_what_the_output_can_take(
    stream: Callable[[], io.StringIO],
    term: str,
    chosen: dict[str, bool],
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", term)
    options = argparse.Namespace(**{"json": False, "quiet": False, "verbose": False, **chosen})
    assert type(view_for(options, stream())) is kind


# ── inputs and arguments ─────────────────────────────────────────────────


def test_inputs_are_text_unless_declared_as_json_and_win_over_the_file(
    tmp_path: Path,
) -> None:
    for name, text in (("in.json", '{"a": 1, "b": 2}'), ("in.yaml", "a: 1\nb: 2\n")):
        (tmp_path / name).write_text(text)
        given_ = parse_inputs(str(tmp_path / name), ["b=1.10", "c:=[1]", "d=x=y"])
        assert given_ == {"a": 1, "b": "1.10", "c": [1], "d": "x=y"}


ARGUMENTS = [
    (["run", "-n"],                                 "plait run: FILE is missing\nfix: plait run alone lists the flows of this project\n"),
    (["run", "f.yaml", "-i", "hush"],               "-i needs KEY=VALUE, KEY:=JSON or @FILE\nfix: for example -i folder=src\n"),
    (["run", "f.yaml", "-i", "a=hush", "-i", "a=2"], "-i gives 'a' twice\nfix: give a list as JSON: -i a:='[1, 2]'\n"),
    (["run", "f.yaml", "--max-parallel", "0"],      "--max-parallel needs a whole number above 0, got '0'\nfix: for example --max-parallel 8\n"),
    (["run", "f.yaml", "--max-parallel", "hush"],   "--max-parallel needs a whole number above 0, got 'hush'\nfix: for example --max-parallel 8\n"),
    (["run", "f.yaml", "--project", "no-such"],     "no-such: there is no such folder\nfix: check --project\n"),
    (["retry", "7f3a"],                             "plait retry: which items are to be retried\nfix: name items, or give --failed for all of them; plait show lists those that failed\n"),
    (["retry", "7f3a", "x", "--failed"],            "plait retry: --failed is for all failed items\nfix: name items, or give --failed for all of them; plait show lists those that failed\n"),
    (["schema", "workflw"],                         "there is no format 'workflw'\nfix: did you mean 'workflow'? formats: workflow, graph, directive, ensemble, provider, hooks, tool, events\n"),
    (["runs", "--limit", "x"],                      "--limit needs a whole number above 0, got 'x'\nfix: for example --limit 8\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "printed"), ARGUMENTS)
@pytest.mark.usefixtures("home")
def test_a_wrong_argument_is_refused_before_anything_runs(
    arguments: list[str], printed: str, capsys: Capsys
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", printed)


def test_with_json_what_is_wrong_is_an_object_too(capsys: Capsys) -> None:
    assert main(["run", "f.yaml", "--json", "--max-parallel", "x"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert (printed["event"], printed["error"]["code"]) == ("error", "arguments")


# ── runs, show, logs ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    flow: str
    file: str
    status: Status | Literal["unreadable"]
    start_time: float
    end_time: float | None
    counts: Mapping[str, int]
    problem: str = ""
    foreign: bool = False
    duration: float = 0.0
    last_at: float | None = None


def test_runs_are_a_table() -> None:
    stream = io.StringIO()
    began = time.mktime((2026, 11, 16, 2, 30, 0, 0, 0, -1))
    rows = [
        Row("k3f9", "fix", "a.yaml", "running", began, None, {}, duration=1.5, last_at=began + 2),
        Row(
            "b2c1",
            "evil\x1b[2J\x07",
            "b.yaml",
            "failed",
            began,
            began + 75,
            {"done": 4, "failed": 2},
            duration=65.0,
            last_at=began + 75,
        ),
        Row("a1b2", "all", "d.yaml", "done", began, began + 1, {"done": 4}, "", True, 0.4, began),
        Row("e3f4", "fan", "e.yaml", "done", began, began + 1, {"done": 4, "failed": 2}),
        Row("c0de", "old", "c.yaml", "interrupted", began, None, {"done": 1}, last_at=began),
        Row("d1ce", "", "", "unreadable", began, None, {}, "the journal\x1b is damaged"),
    ]
    show_runs(rows, stream, now=began + 5)
    assert stream.getvalue() == (
        "RUN    STATUS               STARTED            TIME    ITEMS   FAILED   FLOW    FILE\n"
        "k3f9   running              2026-11-16 02:30   4.5 s   —       —        fix     a.yaml\n"
        "b2c1   failed               2026-11-16 02:30   1:05    6       2        evil�   b.yaml\n"
        "a1b2   finished, foreign    2026-11-16 02:30   0.4 s   4       —        all     d.yaml\n"
        "e3f4   finished, 2 failed   2026-11-16 02:30   —       6       2        fan     e.yaml\n"
        "c0de   interrupted          2026-11-16 02:30   0.0 s   1       —        old     c.yaml\n"
        "d1ce   unreadable           2026-11-16 02:30   —       —       —        —       the journal� is damaged\n"
        "foreign: these runs did not begin here; plait trust run RUN takes one over\n"
    )
    assert run_json(rows[5])["problem"] == "the journal\x1b is damaged"
    assert "problem" not in run_json(rows[0])


def test_a_project_without_runs_says_how_to_begin() -> None:
    stream = io.StringIO()
    show_runs([], stream, now=0.0)
    assert stream.getvalue() == "no runs yet: plait run FILE\n"


def journal_of(story: Sequence[tuple[float, Event]]) -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(*(event for _, event in story))
    return journal


def tries_of(story: Sequence[tuple[float, Event]]) -> AttemptCounts:
    tries = AttemptCounts()
    for _, event in story:
        tries.add(event)
    return tries


def test_show_says_what_happened() -> None:
    story = [*STORY, *END]
    progress = replay_events(stamped(story))
    lines = [
        text
        for text, _ in report_lines(
            Report("7f3a", "done", progress, journal_of(story), tries_of(story)), now=99.0
        )
    ]
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0.0))
    assert [line for line in lines if began not in line] == [
        "! fix-worst  run 7f3a  finished, 1 of 3 items failed",
        "  ✓ setup   done, 2 steps, 3.0 s",
        "      ✓ measure   2.0 s",
        "      – only on Mondays   its condition does not hold",
        "  ! map   finished, 3 items, 1 failed, 12.0 s",
        "      ✗ src/old.py   exit 2   4.0 s",
        "          warning: old",
        "          E999 at line 14",
        "  ✓ reduce   done, 1 step, 1:00",
        "  note: 'tidy' failed, and the flow goes on: x",
        "  look at it   plait logs 7f3a src/old.py",
        "  retry        plait retry 7f3a --failed",
    ]


def test_show_of_a_run_that_died_says_how_to_go_on() -> None:
    lines = [
        text
        for text, _ in report_lines(
            Report(
                "7f3a",
                "interrupted",
                replay_events(stamped(STORY)),
                journal_of(STORY),
                tries_of(STORY),
            ),
            now=99.0,
        )
    ]
    assert lines[0] == "■ fix-worst  run 7f3a  interrupted"
    assert lines[-1] == "  resume       plait resume 7f3a"
    assert "  ■ map   2/3  1 failed" in lines  # no rate, and nothing runs
    assert "  ○ reduce   not started" in lines


def test_show_for_programs_has_every_failure() -> None:
    story = [*STORY, *END]
    record = report_json(
        Report("7f3a", "done", replay_events(stamped(story)), journal_of(story), tries_of(story)),
        now=0.0,
    )
    setup, map_step, _ = record["phases"]
    assert [(step["path"], step["status"]) for step in setup["steps"]] == [
        ("setup/0", "done"),
        ("setup/1", "skipped"),
    ]
    assert (map_step["total"], map_step["done"], map_step["failed"]) == (3, 2, 1)
    assert [(one["title"], one["failure"]["exit_code"]) for one in map_step["failures"]] == [
        ("src/old.py", 2)
    ]
    assert json.loads(json_line(record)) == record


def logged(story: Sequence[tuple[float, Event]], item: str | None = None) -> list[str]:
    journal = journal_of(story)
    wanted = None if item is None else find_paths(journal, item, "7f3a")
    return [text for text, _ in log_lines(log_entries(journal.events(), wanted))]


def test_logs_are_what_steps_printed_each_once_with_its_item() -> None:
    assert logged([*STORY, *END]) == [
        "── setup/0   setup › measure   done   2.0 s",
        "42",
        "── setup/1   setup › only on Mondays   skipped: its condition does not hold   0.0 s",
        "── map/item:b/0   src/old.py › make lint FILE=src/old.py   exit 2   attempt 1 of 3",
        "exit code 2: warning: old",
        "E999 at line 14",
        "── map/item:b/0   src/old.py › make lint FILE=src/old.py   exit 2   attempt 2 of 3   4.0 s",
        "exit code 2: warning: old",
        "E999 at line 14",
        "── map/item:a/0   src/a.py › make lint FILE=src/a.py   done   11.0 s",
        "fine",
        "── map/item:c/0   src/c.py › make lint FILE=src/c.py   done   1.0 s",
    ]


def test_attempts_that_a_hook_asked_for_have_numbers_too() -> None:
    story = [
        *STORY[:1],
        (0.0, StepStarted("setup/0", "shell", "measure", 1, 0)),
        (0.0, StepRetrying("setup/0", 1, Failure("exit code 2", "exit", 2), 0.0, 0)),
        (0.0, StepStarted("setup/0", "shell", "measure", 2, 0)),
        (1.0, over("setup/0", "shell", "measure", out(""))),
    ]
    assert [line for line in logged(story) if line.startswith("──")] == [
        "── setup/0   measure   exit 2   attempt 1",
        "── setup/0   measure   done   attempt 2   1.0 s",
    ]


def test_an_item_whose_start_is_not_recorded_is_known_by_its_end() -> None:
    story = [
        *STORY[:9],
        (4.0, over("map/item:a/0", "shell", "make lint", out("fine\n"))),
        (
            4.0,
            over("map/item:a", "item", "src/a.py", Succeeded({"output": "fine", "captures": {}})),
        ),
    ]
    assert logged(story)[-2:] == ["── map/item:a/0   src/a.py › make lint   done   1.0 s", "fine"]


@pytest.mark.parametrize("name", ["src/a.py", "a", "item:a", "map/item:a", "map/item:a/0"])
def test_an_item_is_found_by_title_key_and_path(name: str) -> None:
    assert logged([*STORY, *END], name) == [
        "── map/item:a/0   src/a.py › make lint FILE=src/a.py   done   11.0 s",
        "fine",
    ]


def test_the_beginning_of_a_path_is_enough_and_a_whole_part_is_all_of_it() -> None:
    assert logged(STORY, "set") == logged(STORY, "setup")
    assert len(logged(STORY, "setup")) == 3


def test_an_unknown_item_suggests_the_nearest() -> None:
    with pytest.raises(InputError) as raised:
        logged(STORY, "src/olt.py")
    assert str(raised.value) == (
        "run 7f3a has nothing called 'src/olt.py'\nfix: did you mean 'src/old.py'? plait show 7f3a lists its steps"
    )


def test_a_step_and_the_attempt_inside_it_print_once() -> None:
    value = Succeeded({"output": "hello\n", "stderr": "careful\n", "exit_code": 0})
    story = [
        *STORY[:2],
        (0.0, begun("setup/0", "shell", "greet")),
        (0.0, begun("setup/0/run", "attempt", "greet")),
        (0.0, over("setup/0/run", "attempt", "greet", value)),
        (0.0, over("setup/0", "shell", "greet", value)),
    ]
    assert logged(story) == [
        "── setup/0/run   greet › greet   done   1.0 s",
        "hello",
        "stderr:",
        "careful",
    ]


def test_the_steps_of_an_item_that_is_tried_again_say_in_which_attempt() -> None:
    failure = Failure("no", path="map/item:c/0")
    failed = over("map/item:c/0", "shell", "lint", Failed(failure))
    story = [
        *STORY,
        (15.0, failed),
        (15.0, StepRetrying("map/item:c", 1, failure, 0.0, 2)),
        (15.0, failed),
        (15.0, over("map/item:c", "item", "src/c.py", Failed(failure), 2)),
    ]
    assert [line for line in logged(story, "c") if line.startswith("──")] == [
        "── map/item:c/0   src/c.py › lint   failed   attempt 1 of 2   1.0 s",
        "── map/item:c/0   src/c.py › lint   failed   attempt 2 of 2   1.0 s",
    ]


ROUNDS: Sequence[tuple[float, Event]] = [
    *STORY[:2],
    (0.0, begun("setup/0", "foreach", "each file")),
    (0.0, begun("setup/0/each", "map", "foreach")),
    (0.0, begun("setup/0/each/item:0", "item", "a")),
    (0.0, begun("setup/0/each/item:0/0", "shell", "lint a")),
    (0.0, over("setup/0/each/item:0/0", "shell", "lint a", out("fine\n"))),
    (0.0, over("setup/0/each/item:0", "item", "a", Succeeded({"output": "fine", "captures": {}}))),
    (0.0, over("setup/0/each", "map", "foreach", Succeeded({"total": 1, "successful": 1, "failed": 0}))),
]  # fmt: skip
RESUMED = (1.0, RunStarted("7f3a", "fix-worst", "/p/fix-worst.yaml", "/p", True))


@pytest.mark.parametrize("between", [[], [RESUMED]], ids=["in one life", "in two"])
def test_what_the_rounds_of_a_step_printed_is_not_printed_again_by_the_step(
    between: list[tuple[float, Event]],
) -> None:
    whole = over(
        "setup/0",
        "foreach",
        "each file",
        Succeeded({"output": ["fine"], "stderr": "", "exit_code": 0}),
    )
    assert logged([*ROUNDS, *between, (1.0, whole)]) == [
        "── setup/0/each/item:0/0   a › lint a   done   1.0 s",
        "fine",
    ]


def test_a_step_whose_rounds_failed_says_why_and_not_what_they_printed() -> None:
    ended = {"output": ["fine"], "stderr": "1 of 2 items failed: no", "exit_code": 1}
    failure = Failure("1 of 2 items failed: no", exit_code=1, output=ended, path="setup/0")
    assert logged([*ROUNDS, (1.0, over("setup/0", "foreach", "each file", Failed(failure)))])[
        2:
    ] == [
        "── setup/0   setup › each file   failed   1.0 s",
        "1 of 2 items failed: no",
    ]


def test_output_that_is_not_kept_is_shown_as_missing() -> None:
    value = Succeeded({"output": "a", "exit_code": 0, "truncated": True})
    story = [*STORY[:3], (0.0, over("setup/0", "shell", "x", value))]
    assert logged(story)[-1] == "… more was printed, and is not kept"


def test_a_file_that_has_not_all_of_an_output_is_not_called_the_whole() -> None:
    files = {"output_file": "/o", "output_lost": "the disk is full", "stderr_file": "/e"}
    value = Succeeded({"output": "a", "exit_code": 0, "truncated": True, **files})
    story = [*STORY[:3], (0.0, over("setup/0", "shell", "x", value))]
    assert logged(story)[-2:] == [
        "… a longer part, not the whole (the disk is full), is in /o",
        "… the whole is in /e",
    ]


def test_show_says_how_many_attempts_a_step_took() -> None:
    tried = [
        *STORY[:2],
        (0.0, StepRetrying("setup/0", 1, BROKEN, 0.0, 3)),
        (1.0, over("setup/0", "shell", "measure", out(""))),
        (1.0, StepRetrying("setup/1/run", 1, BROKEN, 0.0, 3)),
        (1.0, over("setup/1/run", "attempt", "lint", Failed(BROKEN), 0)),
        (1.0, over("setup/1/again@1", "attempt", "lint", out(""), 0)),
        (1.0, over("setup/1", "shell", "lint", out(""), 1)),
        (1.0, over("setup/2", "shell", "tidy", out(""), 2)),
    ]
    tries = tries_of(tried)
    assert [tries.get(f"setup/{n}") for n in range(3)] == [2, 3, 1]
    lines = [
        text
        for text, _ in report_lines(
            Report("7", "done", replay_events(stamped(tried)), journal_of(tried), tries), now=9.0
        )
    ]
    assert "      ✓ measure   2 attempts   1.0 s" in lines
    assert "      ✓ tidy   1.0 s" in lines
    again = [*tried, RESUMED, (9.0, over("setup/0", "shell", "measure", out("")))]
    assert tries_of(again).get("setup/0") == 1  # it ended in one, when it was done again


def test_a_step_that_ended_well_and_failed_says_why_after_what_it_printed() -> None:
    ended = {"output": "{bad\n", "stderr": "why\n", "exit_code": 0}
    failed = Failed(Failure("the output captured as 'n' is not JSON", "capture", output=ended))
    assert logged([*STORY[:3], (0.0, over("setup/0", "shell", "x", failed))])[-5:] == [
        "── setup/0   setup › x   capture   1.0 s",
        "{bad",
        "stderr:",
        "why",
        "the output captured as 'n' is not JSON",
    ]


def test_what_a_step_printed_cannot_drive_a_terminal() -> None:
    story = [*STORY[:3], (0.0, over("setup/0", "shell", "x", out(HOSTILE)))]
    assert all(line.isprintable() for line in logged(story))


def test_the_whole_of_a_long_output_is_named() -> None:
    value = Succeeded({"output": "a", "exit_code": 0, "output_file": "/p/logs/x"})
    assert (
        logged([*STORY[:3], (0.0, over("setup/0", "shell", "x", value))])[-1]
        == "… the whole is in /p/logs/x"
    )


def test_a_run_of_one_step_loads_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("steps: [{shell: 'true'}]\n")
    code = (
        "import sys; from plait.cli import main; main(['run', 'flow.yaml', '--json']);"
        "print([n for n in ('typing', 'inspect', 'dataclasses', 'difflib', 'subprocess', 'asyncio', 'rich', 'plait.app.edited_flow')"
        " if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


OF_MANY_RUNS = [
    # command                        of 30 runs, how many journals are opened at most
    (["run", "flow.yaml", "--quiet"], 1),
    (["show"],                        1),
    (["show", "last"],                1),
    (["logs", "last"],                1),
    (["resume", "last"],              1),
    (["resume"],                      31),  # which of them has not finished; an index keeps the answers
    (["runs", "--limit", "5"],        10),
]  # fmt: skip


def test_a_command_opens_no_journals_of_old_runs_that_it_says_nothing_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("flow.yaml").write_text("steps: [{shell: 'true'}]\n")
    for _ in range(30):
        assert main(["run", "flow.yaml", "--quiet"]) == 0
    connect, opened = sqlite3.connect, set[str]()

    def connected(path: str, *args: object, **how: object) -> sqlite3.Connection:
        opened.update(re.findall(r"/runs/(\w+)/journal\.db", str(path)))
        return connect(path, *args, **how)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connected)
    for command, most in OF_MANY_RUNS:
        opened.clear()
        assert main(command) == 0
        assert len(opened) <= most, command
