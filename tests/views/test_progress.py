"""What is shown of a run is the fold of its events: counts, rates, what runs, what failed."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.backend import WorkItem
from plait.engine.events import (
    Event,
    EventRecord,
    ItemsCounted,
    ModelText,
    Note,
    RunEnded,
    RunStarted,
    StepFinished,
    StepInvalidated,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import MemoryJournal
from plait.engine.outcome import (
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
    with_handler_failure,
)
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Policy, Step
from plait.engine.stop import StopSignal
from plait.program.map import Map
from plait.program.phases import Phases
from plait.program.step_list import step_list
from plait.scope import Scope
from plait.views.format import describe_failure
from plait.views.frame import step_words
from plait.views.parts import MOST_KEPT, FailedStep, NoteRow, Row
from plait.views.progress import Progress, Update, replay_events
from program.fakes import new_run, step
from share import examples

PHASES = (("setup", 2), ("map", 1), ("reduce", 3))
OK = Succeeded({"output": "", "exit_code": 0})
BROKEN = Failure("exit code 2: warning: old\nE999 at line 14", "exit", 2)


def begun(
    path: str, at: float = 0.0, *, title: str = "", order: int = 0, attempt: int = 1
) -> EventRecord:
    return EventRecord(0, at, StepStarted(path, "any", title or path, attempt, order))


def ended(
    path: str,
    at: float = 0.0,
    outcome: Outcome = OK,
    *,
    title: str = "",
    order: int = 0,
    replayed: bool = False,
    duration: float = 1.0,
    kind: str = "any",
) -> EventRecord:
    event = StepFinished(path, kind, title or path, "f", outcome, duration, order, replayed)
    return EventRecord(0, at, event)


def make_record(event: Event, at: float = 0.0) -> EventRecord:
    return EventRecord(0, at, event)


def opened(at: float = 0.0, *, resumed: bool = False) -> EventRecord:
    return make_record(RunStarted("7f3a", "fix", "/p/fix.yaml", "/p", resumed, PHASES), at)


def counted(total: int, at: float = 0.0, path: str = "map") -> Iterator[EventRecord]:
    """A map that has found its items."""
    yield begun(path, at)
    yield begun(f"{path}/items", at)
    yield ended(f"{path}/items", at)
    yield make_record(ItemsCounted(path, total), at)


def counts(progress: Progress, part: str = "map") -> tuple[int | None, int, int, int]:
    group = progress.parts[part].group
    return group.total, group.success_count, group.failure_count, group.skip_count


# ── the run and its parts ────────────────────────────────────────────────


def test_a_run_that_has_begun_shows_its_parts_in_order_with_the_number_of_their_steps() -> None:
    progress = replay_events([opened(5.0)])
    assert (progress.run, progress.flow, progress.file, progress.project) == (
        "7f3a",
        "fix",
        "/p/fix.yaml",
        "/p",
    )
    assert [(part.name, part.state, part.group.total) for part in progress.parts.values()] == [
        ("setup", "waiting", 2),
        ("map", "waiting", 1),
        ("reduce", "waiting", 3),
    ]
    assert progress.time(8.0) == 3.0


def test_a_part_runs_counts_its_steps_and_ends_with_its_duration() -> None:
    progress = replay_events(
        [opened(), begun("setup", 1.0), begun("setup/0", 1.0), ended("setup/0", 2.0)]
    )
    part = progress.parts["setup"]
    assert (part.state, part.group.success_count, part.time(4.0)) == ("running", 1, 3.0)
    progress.add(ended("setup", 5.0, duration=4.0))
    assert (part.state, part.time(99.0)) == ("done", 4.0)


def test_a_part_that_was_not_announced_is_added_at_the_end() -> None:
    progress = replay_events(
        [opened(), begun("merge"), ended("merge", outcome=Skipped("nothing to do"))]
    )
    assert list(progress.parts) == ["setup", "map", "reduce", "merge"]
    assert progress.parts["merge"].state == "skipped"


def test_a_run_that_has_ended_says_how_and_shows_nothing_running() -> None:
    failure = Failure("no", path="setup/0")
    progress = replay_events(
        [
            opened(),
            begun("setup"),
            make_record(RunEnded("interrupted", failure, facts={"a": 1}), 9.0),
        ]
    )
    assert (progress.status, progress.ended, progress.failure) == ("interrupted", 9.0, failure)
    assert (progress.facts, progress.running_count, progress.time(50.0)) == ({"a": 1}, 0, 9.0)


# ── items ────────────────────────────────────────────────────────────────


def test_items_are_counted_by_what_became_of_them_and_the_step_that_found_them_is_none() -> None:
    progress = replay_events(
        [
            opened(),
            *counted(4),
            begun("map/item:a", order=0),
            ended("map/item:a", order=0),
            ended("map/item:b", outcome=Failed(BROKEN), order=1),
            ended("map/item:c", outcome=Skipped("no"), order=2),
            begun("map/item:d", order=3),
        ]
    )
    assert counts(progress) == (4, 1, 1, 1)
    assert progress.items == (3, 4)
    assert [step.path for step in progress.running(progress.parts["map"])] == ["map/item:d"]


def test_an_item_that_ends_twice_counts_once_as_it_ended_last() -> None:
    progress = replay_events(
        [opened(), *counted(2), ended("map/item:a", outcome=Failed(BROKEN)), ended("map/item:a")]
    )
    assert counts(progress) == (2, 1, 0, 0)


def test_a_failed_item_that_is_retried_is_no_longer_a_failure() -> None:
    letter = ended("map/item:a", outcome=Failed(BROKEN), order=1)
    progress = replay_events([opened(), *counted(3), ended("map/item:b"), letter])
    assert (progress.failures.count, [one.path for one in progress.failures.last]) == (
        1,
        ["map/item:a"],
    )
    progress.add(make_record(StepInvalidated("map", "items are retried", below=False)))
    progress.add(make_record(StepInvalidated("map/item:a", "retried", below=False)))
    assert (counts(progress), progress.failures.count) == ((3, 1, 0, 0), 0)
    assert progress.parts["map"].state == "waiting"


def test_a_part_that_is_forgotten_with_all_below_begins_from_nothing() -> None:
    progress = replay_events(
        [opened(), *counted(2), ended("map/item:a", outcome=Failed(BROKEN)), ended("map")]
    )
    progress.add(make_record(StepInvalidated("map", "changed")))
    assert (counts(progress), progress.failures.count, progress.parts["map"].state) == (
        (2, 0, 0, 0),
        0,
        "waiting",
    )


def test_a_step_that_is_forgotten_is_to_be_done_again() -> None:
    progress = replay_events(
        [opened(), begun("setup"), ended("setup/0", order=0), ended("setup/1", order=1)]
    )
    progress.add(make_record(StepInvalidated("setup/1", "changed")))
    assert progress.parts["setup"].group.success_count == 1


def test_a_map_that_was_replayed_without_its_items_shows_its_own_counts() -> None:
    value = Succeeded(
        {"total": 48, "successful": 45, "failed": 2, "skipped": 1, "success_rate": 93.75}
    )
    progress = replay_events(
        [opened(resumed=True), ended("map", outcome=value, replayed=True, kind="map")]
    )
    assert counts(progress) == (48, 45, 2, 1)
    assert progress.parts["map"].replayed


@pytest.mark.parametrize("kind", ["phase", "graph"])
def test_numbers_that_look_like_those_of_items_make_no_items(kind: str) -> None:
    output: Json = {"total": 3, "successful": 2, "failed": 1}
    failed = Failed(Failure("1 of 3 items failed", path="setup/0/map", output=output))
    for outcome in (failed, Succeeded(output)):
        progress = replay_events(
            [opened(), begun("setup"), ended("setup", outcome=outcome, kind=kind)]
        )
        assert progress.items is None


def test_a_replayed_list_of_steps_counts_as_done_in_full() -> None:
    progress = replay_events([opened(resumed=True), ended("setup", replayed=True)])
    assert progress.steps == (2, 5 + 1)  # the map is not known as a map yet: its step counts


# ── several run attempts ─────────────────────────────────────────────────


def test_the_journal_of_a_resumed_run_counts_what_both_run_attempts_did() -> None:
    first = [
        opened(0.0),
        ended("setup"),
        *counted(3, 1.0),
        begun("map/item:a", 1.0),
        ended("map/item:a", 2.0),
        begun("map/item:b", 2.0, order=1),
    ]
    second = [
        opened(10.0, resumed=True),
        begun("map", 10.0),
        make_record(ItemsCounted("map", 3), 10.0),
    ]
    progress = replay_events([*first, *second])
    assert progress.running_count == 0
    assert (progress.run_attempts, progress.started, progress.since) == (2, 0.0, 10.0)
    assert progress.parts["setup"].state == "done"
    assert counts(progress) == (3, 1, 0, 0)
    progress.add(ended("map/item:b", 11.0, order=1))
    progress.add(ended("map/item:c", 12.0, order=2))
    assert counts(progress) == (3, 3, 0, 0)


def test_what_failed_and_was_done_in_a_later_run_attempt_is_no_longer_a_failure() -> None:
    first = [opened(), begun("setup"), begun("setup/0"), ended("setup/0", outcome=Failed(BROKEN))]
    assert [failed.path for failed in replay_events(first).failures.last] == ["setup/0"]
    again = replay_events(
        [*first, opened(resumed=True), begun("setup"), begun("setup/0"), ended("setup/0")]
    )
    assert (list(again.failures.last), again.failures.count) == ([], 0)


def test_looking_for_the_items_again_counts_as_no_item() -> None:
    again = [opened(resumed=True), *counted(2)]
    progress = replay_events([opened(), *counted(2), ended("map/item:a"), *again])
    assert counts(progress) == (2, 1, 0, 0)


def test_replayed_items_count_as_done_and_not_for_the_rate() -> None:
    replayed = [ended(f"map/item:{n}", 0.5, order=n, replayed=True) for n in range(30)]
    progress = replay_events([opened(resumed=True), *counted(40), *replayed])
    group = progress.parts["map"].group
    assert (group.success_count, group.replayed, group.rate(1.0), group.time_left(1.0)) == (
        30,
        30,
        None,
        None,
    )
    for n in range(30, 34):
        progress.add(ended(f"map/item:{n}", 2.0, order=n))
    assert (group.rate(2.0), group.time_left(2.0)) == (2.0, 3.0)


# ── how fast ─────────────────────────────────────────────────────────────


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    progress = replay_events([opened(), *counted(100_000)])
    group = progress.parts["map"].group
    order = iter(range(100_000))
    for second in range(200):
        for _ in range(100 if second < 100 else 2):
            progress.add(ended("map/item:x", float(second), order=next(order)))
    assert group.rate(200.0) == pytest.approx(2.0, rel=0.1)


def test_a_rate_below_one_in_half_a_minute_takes_earlier_finishes_in() -> None:
    finishes = [ended(f"map/item:{n}", 60.0 * (n + 1), order=n) for n in range(5)]
    progress = replay_events([opened(), *counted(10), *finishes])
    group = progress.parts["map"].group
    assert group.rate(300.0) == pytest.approx(1 / 60)
    assert group.time_left(300.0) == pytest.approx(300.0)


def test_the_rate_falls_while_nothing_ends() -> None:
    progress = replay_events([opened(), *counted(10), ended("map/item:a", 1.0)])
    group = progress.parts["map"].group
    assert [group.rate(now) for now in (1.0, 2.0, 4.0)] == [1.0, 0.5, 0.25]


# ── what runs ────────────────────────────────────────────────────────────


def test_a_running_item_says_what_it_is_at_since_when_and_in_which_attempt() -> None:
    progress = replay_events(
        [
            opened(),
            *counted(2),
            begun("map/item:a", 3.0, title="src/io.py"),
            begun("map/item:a/0", 3.0, title="lint"),
            ended("map/item:a/0", 4.0, title="lint"),
            begun("map/item:a/1", 4.0, title="fix it"),
            begun("map/item:a/1/run", 4.0, title="fix it"),
        ]
    )
    (item,) = progress.running(progress.parts["map"])
    assert (item.title, item.since) == ("src/io.py", 3.0)
    assert item.current is not None
    assert (
        item.current.path == "map/item:a/1"
    )  # not the attempt inside it, which has the same title
    progress.add(make_record(StepRetrying("map/item:a/1/run", 1, BROKEN, 2.5), 5.0))
    attempt = item.inner["map/item:a/1"].inner["map/item:a/1/run"]
    assert (attempt.retry_at, progress.retries) == (7.5, 1)
    progress.add(begun("map/item:a/1/run", 7.5, title="fix it", attempt=2))
    assert (attempt.retry_at, attempt.attempt) == (None, 2)


def test_what_was_inside_a_step_that_has_ended_no_longer_runs() -> None:
    progress = replay_events(
        [opened(), *counted(1), begun("map/item:a"), begun("map/item:a/0"), ended("map/item:a")]
    )
    assert progress.running(progress.parts["map"]) == []
    progress.add(begun("map/item:b"))
    assert progress.running_count == 1


def test_items_inside_a_step_are_counted_while_it_runs_and_their_failures_are_reported() -> None:
    progress = replay_events(
        [
            opened(),
            begun("setup"),
            begun("setup/0"),
            *counted(5, path="setup/0/each"),
            ended("setup/0/each/item:a"),
            ended("setup/0/each/item:b", outcome=Failed(BROKEN), order=1),
        ]
    )
    (step,) = progress.running(progress.parts["setup"])
    map_step = progress.map_inside(step)
    assert map_step is not None
    assert (map_step.total, map_step.success_count, map_step.failure_count) == (5, 1, 1)
    assert [one.path for one in progress.failures.last] == ["setup/0/each/item:b"]
    progress.add(ended("setup/0/each"))
    assert progress.map_inside(step) is None


# ── what there is to say ─────────────────────────────────────────────────


def test_an_item_that_is_begun_again_is_neither_done_nor_failed() -> None:
    def item(name: str, order: int, outcome: Outcome) -> EventRecord:
        return EventRecord(
            0, 0.0, StepFinished(f"map/item:{name}", "item", name, "f", outcome, 0.1, order)
        )

    events = [
        opened(0.0),
        begun("map"),
        EventRecord(0, 0.0, ItemsCounted("map", 2)),
        item("a", 0, OK),
        item("b", 1, Failed(BROKEN)),
        opened(1.0, resumed=True),
        begun("map"),
        EventRecord(0, 1.0, ItemsCounted("map", 2)),
    ]
    progress = replay_events(events)
    assert (
        progress.parts["map"].group.success_count,
        progress.parts["map"].group.failure_count,
    ) == (1, 1)
    progress = replay_events([*events, begun("map/item:a", order=0), begun("map/item:b", order=1)])
    assert (
        progress.parts["map"].group.success_count,
        progress.parts["map"].group.failure_count,
    ) == (0, 0)
    assert list(progress.failures.last) == []


def test_items_that_are_chosen_anew_begin_with_nothing() -> None:
    choice = EventRecord(0, 1.0, StepFinished("map/items", "items", "the items", "f", OK, 0.1))
    progress = replay_events(
        [
            opened(0.0),
            begun("map"),
            EventRecord(0, 0.0, ItemsCounted("map", 2)),
            EventRecord(
                0, 0.0, StepFinished("map/item:a", "item", "a", "f", Failed(BROKEN), 0.1, 0)
            ),
            opened(1.0, resumed=True),
            begun("map"),
            choice,
        ]
    )
    group = progress.parts["map"].group
    assert (
        group.total,
        group.success_count,
        group.failure_count,
        list(progress.failures.last),
    ) == (
        None,
        0,
        0,
        [],
    )


def test_each_event_gives_the_updates_it_brings() -> None:
    progress = Progress()
    start = opened()
    assert progress.add(start) == (Update("run", start.event),)
    part, map_step = progress.parts["setup"], progress.parts["map"]
    retried = Row("any", "measure", "failed", 0.0, cause="exit 2")
    story = [
        (begun("setup"), [("part", part, None)]),
        (begun("setup/0", title="measure"), [("step", part, None)]),
        (make_record(StepRetrying("setup/0", 1, BROKEN, 2.0, 3)), [("step", None, retried)]),
        (begun("setup/0", attempt=2), []),
        (ended("setup/0", title="measure"), [("step", part, None)]),
        (ended("setup"), [("part", part, None)]),
        (make_record(Note("setup", "look")), [("note", None, NoteRow("setup", "look"))]),
        (begun("map"), [("part", map_step, None)]),
        (make_record(ItemsCounted("map", 2)), [("part", map_step, None)]),
        (ended("map/item:a"), [("item", map_step, None)]),
        (ended("map"), [("part", map_step, None)]),
        (make_record(RunEnded("done")), [("run", None, None)]),
    ]
    for record, updates in story:
        found = progress.add(record)
        assert [(one.level, one.part, one.row) for one in found] == updates
        assert all(one.event is record.event for one in found)


def test_a_failure_is_reported_once_where_a_person_knows_it() -> None:
    inner = Failure("exit code 1", "exit", 1, path="map/item:a/0")
    progress = replay_events(
        [opened(), *counted(1), begun("map/item:a", title="src/a.py"), begun("map/item:a/0")]
    )
    assert progress.add(ended("map/item:a/0", outcome=Failed(inner))) == ()
    failed, _ = progress.add(ended("map/item:a", 7.0, Failed(inner), title="src/a.py"))
    assert failed.row == FailedStep("map/item:a", "any", "src/a.py", "exit 1", (), 7.0)
    assert [one.level for one in progress.add(ended("map", outcome=Failed(inner)))] == ["part"]


def test_a_part_that_gives_up_itself_is_reported() -> None:
    enough = Failure("3 items failed, and max_failures is 3", "stopped", path="map")
    progress = replay_events([opened(), *counted(9)])
    update, _ = progress.add(ended("map", outcome=Failed(enough)))
    failed = update.row
    assert isinstance(failed, FailedStep)
    assert (failed.title, failed.cause, failed.lines) == (
        "map",
        "stopped",
        ("3 items failed, and max_failures is 3",),
    )


REPORTED = [
    (Failure("exit code 2: a\nb", "exit", 2),              ("exit 2", ("a", "b"))),
    (Failure("exit code 2", "exit", 2),                    ("exit 2", ())),
    (Failure("ended by signal 9: a", "signal", 137),       ("signal", ("ended by signal 9: a",))),
    (Failure("took longer than 3 s", "timeout"),           ("timeout", ("took longer than 3 s",))),
    (Failure("took longer than 3 s", "timeout", 124, {"output": "a\nb\n", "stderr": " "}), ("timeout", ("took longer than 3 s", "a", "b"))),
    (Failure("took longer than 3 s", "timeout", 124, {"output": "a", "stderr": "c"}), ("timeout", ("took longer than 3 s", "c"))),
    (Failure("1\n2\n\n3\n4\n5\n6 \n", "failed"),           ("failed", ("2", "3", "4", "5", "6"))),
    (Failure("1\n2\n3\n4\n5\n6", "refused"),                ("refused", ("1", "2", "3", "4", "5"))),
    (Failure("x" * 5000, "failed"),                        ("failed", ("x" * 400,))),
    (with_handler_failure(Failure("exit code 2: a\nb", "exit", 2), "on_failure", Failure("1\n2\n3\n4\n5\n6")),
     ("exit 2", ("a", "b", "2", "3", "4", "5", "6"))),
    (with_handler_failure(Failure("exit code 2", "exit", 2), "on_failure", Failure("exit code 7: c", "exit", 7)),
     ("exit 2", ("on_failure failed as well: exit code 7: c",))),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "words"), REPORTED)
def test_a_failure_in_few_words(failure: Failure, words: tuple[str, tuple[str, ...]]) -> None:
    assert describe_failure(failure) == words


ONE_LINE = [
    (Failure("exit code 2: a\nb", "exit", 2),                              "b"),
    (Failure("exit code 2", "exit", 2),                                    ""),
    (Failure("f.yaml:2:9: no 'b'\n  2 | ${b}\n    | ^^^^\nfix: a", "refused"), "f.yaml:2:9: no 'b'"),
    (Failure("'x' was ended\nfix: give it more time", "timeout"),          "'x' was ended"),
    (Failure("Traceback\nValueError: no", "failed"),                       "ValueError: no"),
    (Failure("the command ended with 3\nfix: run it by hand", "exit"),     "the command ended with 3"),
    (Failure("fix: it", "failed"),                                         ""),
    (with_handler_failure(Failure("exit code 2: a", "exit", 2), "on_failure", Failure("c")), "a"),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "line"), ONE_LINE)
def test_in_one_line_an_error_of_ours_says_what_is_wrong_and_a_program_its_last_word(
    failure: Failure, line: str
) -> None:
    progress = replay_events([opened()])
    update, _ = progress.add(ended("map", outcome=Failed(failure)))
    failed = update.row
    assert isinstance(failed, FailedStep)
    assert failed.line == line


# ── bounds and properties ────────────────────────────────────────────────


def test_a_great_many_items_take_little_memory_and_keep_the_last_failures() -> None:
    many = 10_000
    progress = replay_events([opened(), *counted(many)])
    tracemalloc.start()
    for n in range(many):
        path = f"map/item:{n}"
        progress.add(begun(path, n / 100, order=n))
        progress.add(begun(f"{path}/0", n / 100))
        progress.add(ended(f"{path}/0", n / 100))
        progress.add(ended(path, n / 100, Failed(BROKEN) if n % 2 else OK, order=n))
        progress.add(make_record(Note(path, "so")))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000
    assert counts(progress) == (many, many // 2, many // 2, 0)
    kept = len(progress.failures.last)
    assert (progress.failures.count, kept) == (many // 2, MOST_KEPT)
    assert progress.failures.last[-1].path == f"map/item:{many - 1}"
    assert (progress.note_count, len(progress.notes)) == (many, MOST_KEPT)


NAMES = st.sampled_from(["setup", "map", "map/a", "map/b", "map/a/0", "map/a/0/c", "x", "x/y/z"])
OUTCOMES = st.sampled_from(
    [OK, Failed(BROKEN), Skipped("no"), Succeeded({"total": 3, "successful": 1, "failed": 1})]
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(RunStarted("r", "f", "p", "q", True, PHASES)),
    st.builds(StepStarted, NAMES, st.just("k"), st.text(), st.integers(1, 3), st.integers(0, 5)),
    st.builds(
        StepFinished,
        NAMES, st.just("k"), st.text(), st.just("f"), OUTCOMES, st.floats(0, 9), st.integers(0, 5), st.booleans(),
    ),
    st.builds(StepRetrying, NAMES, st.integers(1, 3), st.just(BROKEN), st.floats(0, 9)),
    st.builds(ItemsCounted, NAMES, st.integers(0, 6)),
    st.builds(StepInvalidated, NAMES, st.just("w"), st.booleans()),
    st.builds(Note, NAMES, st.text()),
    st.just(RunEnded("failed", BROKEN)),
)  # fmt: skip


@given(events=st.lists(EVENTS, max_size=40))
def test_whatever_the_events_are_the_numbers_make_sense(events: list[Event]) -> None:
    progress = replay_events(EventRecord(n, float(n), event) for n, event in enumerate(events))
    for part in progress.parts.values():
        group = part.group
        assert (
            min(
                group.success_count,
                group.failure_count,
                group.skip_count,
                group.pending_count,
                group.replayed,
            )
            >= 0
        )
        assert group.rate(100.0) is None or group.rate(100.0) >= 0  # type: ignore[operator]
        assert all(step.path.startswith(f"{part.name}/") for step in progress.running(part))
    assert 0 <= len(progress.failures.last) <= progress.failures.count


@given(seed=st.integers(), outcomes=st.lists(st.sampled_from("dfs"), min_size=1, max_size=40))
def test_the_order_in_which_items_end_does_not_matter(seed: int, outcomes: list[str]) -> None:
    kinds: dict[str, Outcome] = {"d": OK, "f": Failed(BROKEN), "s": Skipped("no")}
    finishes = [
        ended(f"map/item:{order}", 1.0, kinds[letter], order=order)
        for order, letter in enumerate(outcomes)
    ]
    random.Random(seed).shuffle(finishes)
    progress = replay_events([opened(), *counted(len(outcomes)), *finishes])
    assert counts(progress) == (len(outcomes), *(outcomes.count(letter) for letter in "dfs"))


# ── real runs ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Numbers:
    """The items 0, 1, 2, …"""

    many: int
    name: str = "items"
    kind: str = "items"
    title: str = "items"
    fingerprint: str = "f"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> Json:  # noqa: ARG002
        return {"count": self.many}

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:  # noqa: ARG002
        return (WorkItem(number, str(number), number) for number in range(self.many))


class Odd:
    """Fails for odd numbers, and wants the run to stop at one of them."""

    def __init__(self, stop: StopSignal, stop_at: int | None) -> None:
        self.stop, self.stop_at = stop, stop_at

    def run(self, ctx: StepContext) -> dict[str, Json]:
        number = ctx.scope.lookup("item")
        assert isinstance(number, int)
        if number == self.stop_at:
            self.stop.ask()
            raise Interrupted
        if number % 2:
            raise StepError(Failure("odd", "exit", 1))
        return {"output": "", "exit_code": 0}


def _discard(updates: object) -> None:
    """It is not printed here."""


def run_and_watch(journal: MemoryJournal, many: int, stop_at: int | None) -> Progress:
    """One run attempt, as a viewer saw it live."""
    live, stop = Progress(), StopSignal()
    run = new_run(journal=journal, stop=stop, watchers=[lambda one: _discard(live.add(one))])
    each = step_list("each", [step("0", Odd(stop, stop_at))])
    map_step = Map("map", Numbers(many), each, "f", parallel=1)
    run.events.emit(
        RunStarted(
            "r1",
            "fix",
            "f",
            "p",
            not journal.is_fresh(),
            Phases(map=map_step).phases,
        )
    )
    try:
        Phases(map=map_step, map_lists=frozenset()).run(StepContext(run, "", Scope({})))
        run.events.emit(RunEnded("done"))
    except Interrupted:
        run.events.emit(RunEnded("interrupted"))
    finally:
        run.events.close()
    return live


@settings(max_examples=examples(25), deadline=None)
@given(many=st.integers(1, 12), stop_at=st.integers(0, 12))
def test_a_live_view_and_a_later_one_show_the_same(many: int, stop_at: int) -> None:
    journal = MemoryJournal()
    done, failed = (many + 1) // 2, many // 2
    first = run_and_watch(journal, many, stop_at)
    assert counts(first) == counts(replay_events(journal.events()))
    if first.status == "interrupted":
        assert first.items == (stop_at, many)
        second = run_and_watch(journal.reopen(), many, None)
        assert second.parts["map"].group.replayed == stop_at
        assert counts(second) == (many, done, failed, 0)
    later = replay_events(journal.events())
    assert (counts(later), later.status) == ((many, done, failed, 0), "done")
    assert [one.title for one in later.failures.last] == [
        str(number) for number in range(1, many, 2)
    ]


def test_a_response_that_another_attempt_replays_is_counted_once() -> None:
    def answered(path: str, *, replayed: bool = False) -> EventRecord:
        used = {"turns": 1.0, "tokens": 10.0}
        return make_record(
            StepFinished(path, "turn", path, "f", OK, 1.0, replayed=replayed, used=used)
        )

    progress = replay_events([opened(), begun("nodes"), begun("nodes/a"), begun("nodes/a/agent")])
    for event in (
        answered("nodes/a/agent/turn:1"),
        ended("nodes/a/agent", outcome=Failed(Failure("broken"))),
        begun("nodes/a", attempt=2),
        begun("nodes/a/agent"),
        answered("nodes/a/agent/turn:1", replayed=True),
        answered("nodes/a/agent/turn:2"),
    ):
        progress.add(event)
    known = {step.path: step.usage.turns for step in progress._running}
    assert known == {"nodes": 2, "nodes/a": 2, "nodes/a/agent": 2}
    assert progress.usage.turns == 2


RUNNING = [
    # kind of the inner step   its title      what the live view says
    ("attempt",                "make it",     "shell"),
    ("attempt",                "make it now", "shell  make it now"),
    ("check",                  "is it made?", "check  is it made?"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "title", "words"), RUNNING)
def test_the_action_of_a_step_has_the_kind_of_the_step(kind: str, title: str, words: str) -> None:
    progress = Progress()
    progress.add(
        make_record(RunStarted("7f3a", "fix", "/p/fix.yaml", "/p", False, (("steps", 1),)), 0.0)
    )
    for path, of_kind, called in (
        ("steps", "phase", "steps"),
        ("steps/0", "shell", "make it"),
        ("steps/0/run", kind, title),
    ):
        progress.add(EventRecord(0, 1.0, StepStarted(path, of_kind, called, 1, 0)))
    [step] = progress.running(progress.parts["steps"])
    assert step_words(progress, step, 2.0) == words


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (None, "agent  turn 1   Rain falls on the roof"),
        (60, "agent  turn 1   Rain falls on the roof"),
        (30, "agent  turn 1   …s on the roof"),
        (16, "agent  turn 1   …"),
        (3, "agent  turn 1   …"),
    ],
)
def test_the_end_of_the_text_of_a_model_is_shown(room: int | None, words: str) -> None:
    progress = Progress()
    progress.add(
        make_record(RunStarted("7f3a", "fix", "/p/fix.yaml", "/p", False, (("steps", 1),)), 0.0)
    )
    for path, kind in (
        ("steps", "phase"),
        ("steps/0", "prompt"),
        ("steps/0/agent", "agent"),
        ("steps/0/agent/turn:1", "turn"),
    ):
        progress.add(EventRecord(0, 1.0, StepStarted(path, kind, path, 1, 0)))
    progress.add(EventRecord(0, 1.0, ModelText("steps/0/agent/turn:1", "Rain falls on the roof")))
    [step] = progress.running(progress.parts["steps"])
    assert step_words(progress, step, 2.0, room) == words
