"""The output of a run as it comes: each line once, with the item or step that printed it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plait.core.values import Json
from plait.engine.events import (
    Event,
    EventRecord,
    ItemsCounted,
    ModelText,
    RunStarted,
    StepFinished,
    StepOutput,
    StepRetrying,
    StepStarted,
)
from plait.engine.outcome import Failed, Failure, Outcome, Succeeded
from plait.views.frame import frame
from plait.views.log import UnfinishedEntry, failed_entries, log_entries, unfinished_entries
from plait.views.output_stream import OutputStream, follow
from plait.views.progress import replay_events

STEP, ITEM, IN_ITEM = "setup/0", "map/item:a", "map/item:a/0"


def start(path: str, title: str, attempt: int = 1) -> StepStarted:
    return StepStarted(path, "shell", title, attempt=attempt)


def end(path: str, title: str, output: str, stderr: str = "") -> StepFinished:
    value = {"exit_code": 0, "output": output, "stderr": stderr}
    return StepFinished(path, "shell", title, "", Succeeded(value), 0.1)


def turn_end(path: str, value: dict[str, Json]) -> StepFinished:
    return StepFinished(path, "turn", "turn 1", "", Succeeded(value), 0.1)


def failed(path: str, title: str, output: str) -> StepFinished:
    outcome = Failed(
        Failure("exit code 2", "exit", exit_code=2, output={"exit_code": 2, "output": output})
    )
    return StepFinished(path, "shell", title, "", outcome, 0.1)


ROWS: list[tuple[list[Event], list[str]]] = [
    # A short step: all of it comes with the end.
    ([start(STEP, "make"), end(STEP, "make", "one\ntwo\n")], ["make | one", "make | two"]),
    # A piece ends in the middle of a line, and the end brings the rest.
    (
        [start(STEP, "make"), StepOutput(STEP, "stdout", "one\ntw"), end(STEP, "make", "one\ntwo\n3")],
        ["make | one", "make | two", "make | 3"],
    ),
    # Error output that was not shown live.
    (
        [start(STEP, "make"), StepOutput(STEP, "stdout", "one\n"), end(STEP, "make", "one\n", "bad\n")],
        ["make | one", "make | bad"],
    ),
    # An item gives its name to its steps.
    (
        [start(ITEM, "a.txt"), start(IN_ITEM, "wc a.txt"), StepOutput(IN_ITEM, "stdout", "3\n")],
        ["a.txt | 3"],
    ),
    # Nothing drives the terminal, in output or in a name.
    (
        [start(STEP, "\x1b]0;x\x07make"), StepOutput(STEP, "stdout", "\x1b[2Jred\x1b[0m\x07\n")],
        ["make | red\ufffd"],
    ),
    # The words of a model, which a prompt records as its output: none comes twice.
    (
        [
            StepStarted(f"{STEP}/turn:1", "turn", "turn 1"),
            ModelText(f"{STEP}/turn:1", "Rain falls\non the "),
            turn_end(f"{STEP}/turn:1", {"output": "Rain falls\non the roof"}),
        ],
        ["turn 1 | Rain falls", "turn 1 | on the roof"],
    ),
    # Those of an agent, which records them as the text of its turn.
    (
        [
            StepStarted("agent/turn:1", "turn", "turn 1"),
            ModelText("agent/turn:1", "Rain falls\n"),
            turn_end("agent/turn:1", {"text": "Rain falls\non the roof", "uses": []}),
        ],
        ["turn 1 | Rain falls", "turn 1 | on the roof"],
    ),
    # A failure says how.
    ([start(STEP, "make"), failed(STEP, "make", "no rule\n")], ["make | no rule", "make | exit 2"]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "expected"), ROWS)
def test_each_line_is_printed_once_with_its_prefix(
    events: list[Event], expected: list[str]
) -> None:
    stream = OutputStream()
    assert [line for event in events for line, _ in stream.lines(event)] == expected


def test_the_next_attempt_prints_from_its_beginning() -> None:
    stream = OutputStream()
    again = StepRetrying(STEP, 1, Failure("exit code 1", "exit", exit_code=1), 0.0, 2)
    events: list[Event] = [
        start(STEP, "make"), StepOutput(STEP, "stdout", "one\n"), again,
        start(STEP, "make", 2), StepOutput(STEP, "stdout", "one\n", 2), end(STEP, "make", "one\n"),
    ]  # fmt: skip
    lines = [line for event in events for line, _ in stream.lines(event)]
    assert lines == ["make | one", "make | exit 1", "make | one"]


class Run:
    """A run of another process: what each look at it finds."""

    def __init__(self, looks: list[tuple[list[Event], list[tuple[StepOutput, int]]]]) -> None:
        self.looks = looks
        self.records: list[EventRecord] = []
        self.pieces: list[tuple[StepOutput, int]] = []

    def is_running(self) -> bool:
        events, self.pieces = self.looks.pop(0)
        for event in events:
            self.records.append(EventRecord(len(self.records) + 1, 0.0, event))
        return bool(self.looks)

    def events(self, after: int = 0) -> Iterator[EventRecord]:
        return iter(self.records[after:])

    def new_pieces(self) -> Iterator[tuple[StepOutput, int]]:
        return iter(self.pieces)

    def events_at(self, paths: object) -> Iterator[EventRecord]:  # noqa: ARG002
        return iter(self.records)


def piece(text: str, at: int) -> tuple[StepOutput, int]:
    return StepOutput(STEP, "stdout", text), at


def followed(run: Run, wanted: list[str] | None = None) -> list[str]:
    lines = follow(run, run, is_running=run.is_running, wanted=lambda: wanted, pause=lambda _: None)
    return [line for line, _ in lines]


def test_a_follower_prints_each_line_once_whatever_it_reads_twice() -> None:
    run = Run(
        [
            ([], [piece("one\n", 0)]),  # the start is recorded after this look at the journal
            ([start(STEP, "make")], []),
            ([], [piece("one\n", 0), piece("two\n", 4)]),  # the file was written again
            ([end(STEP, "make", "one\ntwo\nthree\n")], [piece("three\n", 8)]),
        ]
    )
    assert followed(run) == ["make | one", "make | two", "make | three"]


def test_a_follower_knows_the_item_of_a_short_step_by_the_end_of_the_item() -> None:
    item = StepFinished(ITEM, "steps", "a.txt", "", Succeeded({}), 0.1)
    assert followed(Run([([end(IN_ITEM, "wc", "3\n"), item], [])])) == ["a.txt | 3"]


def test_a_follower_prints_only_what_is_wanted() -> None:
    run = Run([([end(STEP, "make", "1\n"), end("setup/1", "test", "2\n")], [])])
    assert followed(run, ["setup/1"]) == ["test | 2"]


def test_a_step_without_an_end_is_in_the_log_with_its_last_attempt() -> None:
    turn = StepStarted("setup/2/turn:1", "turn", "turn 1")
    started: list[Event] = [start(STEP, "make"), start("setup/1", "x"), turn]
    run = Run([([*started, end("setup/1", "x", "")], [])])
    run.is_running()
    pieces = [
        (StepOutput("setup/2/turn:1", "model", "Rain falls"), 0),
        piece("first\n", 0),
        (StepOutput(STEP, "stdout", "sec", 2), 0),
        (StepOutput(STEP, "stdout", "ond\n", 2), 3),
        (StepOutput("setup/1", "stdout", "ended\n"), 0),
    ]

    class Search(Run):
        def is_long(self) -> bool:
            return False

        def find_steps(self, name: str) -> list[str]:
            return [name]

    search = Search([])
    search.records = run.records
    found = list(unfinished_entries(search, pieces, None, is_running=False))
    assert found == [
        UnfinishedEntry(
            "setup/2/turn:1", "turn", "turn 1", "", 0.0, 1, "Rain falls", "", is_running=False
        ),
        UnfinishedEntry(STEP, "shell", "make", "", 0.0, 2, "second\n", "", is_running=False),
    ]


def test_failures_that_were_repaired_do_not_count() -> None:
    records = [
        EventRecord(number, 0.0, event)
        for number, event in enumerate([failed("s/a", "a", "x"), failed("s/b", "b", "y"), end("s/b", "b", "z")])
    ]  # fmt: skip
    last: dict[str, Outcome] = {"s/a": records[0].event.outcome, "s/b": Succeeded(None)}  # type: ignore[union-attr]
    found = failed_entries(log_entries(records, None), last.get)
    assert [entry.path for entry in found] == ["s/a"]


@pytest.mark.parametrize(("width", "shown"), [(60, False), (80, False), (200, True)])
def test_in_a_narrow_terminal_the_output_of_an_item_takes_the_place_of_its_command(
    width: int, shown: bool
) -> None:
    events: list[Event] = [
        RunStarted("x", "f", "flow.yaml", "/", resumed=False, phases=(("map", 1),)),
        StepStarted("map", "map", "map"),
        ItemsCounted("map", 1),
        StepStarted(ITEM, "item", "a.txt"),
        start(IN_ITEM, "make all of it"),
        StepOutput(IN_ITEM, "stdout", "compiled 12 of 40\n"),
    ]
    progress = replay_events(EventRecord(number, 1.0, event) for number, event in enumerate(events))
    line = next(
        one.plain
        for one in frame(progress, now=2.0, width=width, height=20)
        if "a.txt" in one.plain
    )
    assert "│ compiled 12 of 40" in line
    assert ("shell  make all of it" in line, "shell" in line) == (shown, shown)
