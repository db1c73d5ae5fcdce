"""What a run may rely on: the journal in a file gives the same answers as the one in memory."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.adapters.store import Runs, SqliteJournal
from plait.adapters.store.blobs import Blobs
from plait.adapters.store.reader import Reader
from plait.adapters.store.rows import LARGE, escape_text, split, unescape_text
from plait.core.errors import InternalError, ValueRefusedError
from plait.core.values import Json, Secret
from plait.engine.events import (
    Event,
    ItemsCounted,
    Note,
    PendingHooks,
    RunEnded,
    RunStarted,
    StepFinished,
    StepInvalidated,
    StepRetrying,
    StepStarted,
)
from plait.engine.journal import Journal, MemoryJournal, StepRecord
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded
from share import examples

# ── what may come ────────────────────────────────────────────────────────

texts = st.text(
    st.characters(codec=None, exclude_categories=()), max_size=6
)  # halves of characters, too
values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["a", "b", "a0", "map", "a-", "item:\udc80", "item:1", "it\\em", "ü", "n\0l"]
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
durations = st.floats(0, 1e6)
orders = st.integers(0, 5)
failures = st.builds(Failure, texts, texts, st.none() | st.integers(0, 255), values, paths)
outcomes: st.SearchStrategy[Outcome] = (
    st.builds(Succeeded, values) | st.builds(Failed, failures) | st.builds(Skipped, texts)
)
phases = st.lists(st.tuples(texts, st.integers(0, 9)), max_size=2).map(tuple)
owed = st.builds(
    PendingHooks, st.lists(texts, max_size=2).map(tuple), st.dictionaries(texts, values, max_size=2)
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(StepStarted, paths, texts, texts, st.integers(1, 3), orders),
    st.builds(
        StepFinished,
        paths,
        texts,
        texts,
        st.just("f") | texts,
        outcomes,
        durations,
        orders,
        st.booleans(),
        pending=st.none() | owed,
    ),
    st.builds(StepInvalidated, paths, texts, st.booleans()),
    st.builds(StepRetrying, paths, st.integers(1, 3), failures, durations, st.integers(0, 9)),
    st.builds(ItemsCounted, paths, st.integers(0, 1 << 40)),
    st.builds(Note, paths, texts),
    st.builds(RunStarted, texts, texts, texts, texts, st.booleans(), phases),
    st.builds(
        RunEnded,
        st.sampled_from(["done", "failed", "interrupted"]),
        st.none() | failures,
        values,
        st.dictionaries(texts, values, max_size=2),
    ),
)
batches = st.lists(st.lists(events, max_size=4), max_size=6)

numbers = itertools.count()


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path))


@pytest.fixture
def journal(runs: Runs) -> Iterator[SqliteJournal]:
    with runs.create({}) as opened:
        yield opened.journal


def answers(journal: Journal, asked: list[str]) -> list[object]:
    """All that can be asked of a journal; steps of one order come in any order."""
    return [
        [stamped.event for stamped in journal.events()],
        [stamped.number for stamped in journal.events(2)],
        [journal.step(path) for path in asked],
        [journal.is_unfinished(path) for path in asked],
        list(journal.find_unfinished()),
        [sorted(journal.steps_in(path), key=by_order_and_path) for path in asked],
        [[step.order for step in journal.steps_in(path)] for path in asked],
        [sorted(journal.failures_in(path), key=by_order_and_path) for path in asked],
        [
            journal.completed_items(path, which)
            for path in asked
            for which in (None, ["f"], ["f", "g"])
        ],
    ]


def by_order_and_path(step: StepRecord) -> tuple[int, str]:
    return step.order, step.path


# ── the same answers ─────────────────────────────────────────────────────


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(run_attempt=batches, next_run_attempt=batches, asked=st.lists(paths, max_size=3))
def test_a_file_answers_as_memory_does_in_this_run_attempt_and_the_next(
    tmp_path: Path,
    run_attempt: list[list[Event]],
    next_run_attempt: list[list[Event]],
    asked: list[str],
) -> None:
    runs = Runs(str(tmp_path / str(next(numbers))))
    memory = MemoryJournal()
    asked = [
        *asked,
        "a",
        "a/b",
        "",
        *(event.path for batch in run_attempt for event in batch if hasattr(event, "path")),
    ]
    with runs.create({}) as opened:
        assert opened.journal.is_fresh()
        for batch in run_attempt:
            opened.journal.append(*batch)
            memory.append(*batch)
            assert opened.journal.step("a/b") == memory.step("a/b")  # the index grows by pieces
        assert answers(opened.journal, asked) == answers(memory, asked)
    with runs.open(opened.id, write=True) as again:
        assert again.journal.is_fresh() == (not any(run_attempt))
        for batch in next_run_attempt:
            again.journal.append(*batch)
            memory.append(*batch)
        assert answers(again.journal, asked) == answers(memory, asked)
        with runs.open(opened.id, write=False) as looked_at:
            assert answers(looked_at.journal, asked) == answers(memory, asked)
        long = Reader(again.journal.reader.path, Blobs(""), many=-1)
        recorded = [event for batch in (*run_attempt, *next_run_attempt) for event in batch]
        for path in asked:
            if not runs_inside_its_part(path, recorded):
                continue  # no engine records this
            assert long.is_unfinished(path) == memory.is_unfinished(path)
            assert (long.step(path) is None) == (memory.step(path) is None)
        long.close()


def runs_inside_its_part(path: str, recorded: list[Event]) -> bool:
    """Whether a step of a part, like `setup/a`, starts and ends between the part's start and end."""
    part, _, name = path.partition("/")
    if not name or "/" in name or part == "map":
        return True
    is_open = False
    for event in recorded:
        match event:
            case RunStarted() | RunEnded():
                is_open = False
            case StepStarted(path=about) | StepFinished(path=about) if about == part:
                is_open = isinstance(event, StepStarted)
            case StepStarted(path=about) | StepFinished(path=about) if about == path:
                if not is_open:
                    return False
    return True


@given(texts, texts)
def test_any_text_can_be_stored_and_keeps_its_parts(before: str, name: str) -> None:
    assert unescape_text(escape_text(before + name)) == before + name
    escape_text(before).encode("utf-8")
    name = name.replace("/", "")
    assert tuple(map(unescape_text, split(f"{before}/{name}"))) == (f"{before}/", name)


def test_steps_below_a_path_come_by_their_order_also_if_there_are_many(
    journal: SqliteJournal,
) -> None:
    expected = list(range(1000))
    for order in sorted(expected, key=lambda n: n * 7919 % 1000):
        journal.append(finished(f"map/item:{order}", order=order), finished(f"map/item:{order}/0"))
    assert [step.order for step in journal.steps_in("map")] == expected
    assert [step.path for step in journal.steps_in("map/item:7")] == ["map/item:7/0"]


def test_what_is_recorded_while_steps_are_read_does_not_disturb(journal: SqliteJournal) -> None:
    journal.append(*(finished(f"map/{n}", order=n) for n in range(500)))
    seen = []
    for step in journal.steps_in("map"):
        seen.append(step.order)
        journal.append(finished(f"map/{500 + step.order}", order=500 + step.order))
        assert journal.step(f"map/{500 + step.order}") is not None
    assert seen == list(range(500))


# ── values ───────────────────────────────────────────────────────────────


LONG = "\x01\udcff😀é" * LARGE
LONG_IN = [
    # value                                                     files
    (LONG,                                                      1),
    ({"output": LONG, "captures": {"x": LONG, "y": [1, LONG]}}, 1),
    ([LONG, LONG + "!", None],                                  2),
    ({"output": LONG, "more": ["x"] * LARGE},                   1),   # large without its texts: one file for all
    ([["x", "y"]] * LARGE,                                      1),
]  # fmt: skip


@pytest.mark.parametrize(("value", "files"), LONG_IN)
def test_a_long_text_comes_back_and_is_in_one_file_wherever_it_is(
    runs: Runs, value: Json, files: int
) -> None:
    ends = [
        StepFinished(path, "shell", "t", "f", Succeeded(value), 0.0)
        for path in ("steps/0", "steps")
    ]
    with runs.create({}) as opened:
        opened.journal.append(*ends)
        assert [stamped.event for stamped in opened.journal.events()] == ends
        stored = list(Path(opened.folder, "blobs").glob("*"))
    assert len(stored) == files
    if files == 1 and "more" not in value and LONG in value:
        assert stored[0].stat().st_size == len(LONG.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("size", [0, LARGE - 100, LARGE, 3 * LARGE])
def test_an_outcome_of_any_size_comes_back_and_a_large_one_is_in_a_file(
    runs: Runs, size: int
) -> None:
    outcome = Succeeded({"output": "x" * size, "bytes": "\udcff"})
    with runs.create({}) as opened:
        opened.journal.append(finished("a", outcome))
        stored = list(Path(opened.folder, "blobs").glob("*"))
    assert len(stored) == (size >= LARGE)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in stored)
    with runs.open(opened.id, write=False) as again:
        assert again.journal.step("a") == StepRecord("a", "print", outcome, 0, 0.5, "title")


def test_a_secret_is_masked_and_what_is_no_json_is_refused_before_anything_is_written(
    journal: SqliteJournal,
) -> None:
    journal.append(finished("a", Succeeded({"token": Secret("hunter2")})))
    assert journal.step("a") == StepRecord(
        "a", "print", Succeeded({"token": "***"}), 0, 0.5, "title"
    )
    for value in (float("nan"), object(), {"x": {1, 2}}):
        with pytest.raises(ValueRefusedError):
            journal.append(Note("", "not alone"), finished("b", Succeeded(value)))
    assert journal.step("b") is None
    assert [type(stamped.event) for stamped in journal.events()] == [StepFinished]


def test_data_that_was_put_aside_comes_back(journal: SqliteJournal) -> None:
    name = journal.put_blob(b"\0large")
    assert journal.put_blob(b"\0large") == name
    assert journal.get_blob(name) == b"\0large"


def test_a_journal_that_was_opened_to_look_at_it_cannot_be_written(runs: Runs) -> None:
    with runs.create({}) as opened:
        pass
    with runs.open(opened.id, write=False) as looked_at:
        with pytest.raises(InternalError):
            looked_at.journal.append(Note("", "x"))
        with pytest.raises(InternalError):
            looked_at.journal.sync()
        with pytest.raises(InternalError):
            looked_at.journal.put_blob(b"x")


def test_an_event_carries_the_clock_of_its_record_and_order_does_not_depend_on_it(
    tmp_path: Path,
) -> None:
    clock = iter(
        [500.0, 500.0, 400.0, 100.0, 300.0]
    )  # made, locked, and three events; it goes back
    with Runs(str(tmp_path), now=lambda: next(clock, 0.0)).create({}) as opened:
        for n in range(3):
            opened.journal.append(Note("", str(n)))
        stamped = list(opened.journal.events())
    assert [event.number for event in stamped] == [1, 2, 3]
    assert len({event.at for event in stamped}) == 3
    assert stamped[0].at > stamped[1].at


# ── threads ──────────────────────────────────────────────────────────────


def test_many_threads_lose_nothing_and_what_belongs_together_stays_together(
    journal: SqliteJournal,
) -> None:
    threads, each = 8, 150

    def work(thread: int) -> None:
        for n in range(each):
            path = f"map/{thread}-{n}"
            journal.append(StepStarted(path, "item", path), finished(path, order=n))
            if n % 50 == 0:
                journal.sync()
                assert journal.step(path) is not None

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    found = [stamped.event for stamped in journal.events()]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(pairs) == threads * each
    assert all(
        isinstance(start, StepStarted) and isinstance(end, StepFinished) and start.path == end.path
        for start, end in pairs
    )
    for thread in range(threads):  # in the order in which a thread appended them
        mine = [
            end.order
            for _, end in pairs
            if isinstance(end, StepFinished) and end.path.startswith(f"map/{thread}-")
        ]
        assert mine == list(range(each))


class Interruption(BaseException):
    """What Ctrl-C does, at any moment."""


def test_an_interrupted_thread_neither_loses_nor_doubles_records_of_others(
    journal: SqliteJournal,
) -> None:
    acknowledged: list[str] = []
    enough = threading.Event()

    def work(thread: int) -> None:
        for n in itertools.count():
            if enough.is_set():
                return
            journal.append(finished(f"{thread}/{n}"))
            acknowledged.append(f"{thread}/{n}")

    def interrupt(*_: object) -> None:
        raise Interruption

    workers = [threading.Thread(target=work, args=(thread,)) for thread in (1, 2)]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for worker in workers:
            worker.start()
        for n in range(150):
            with contextlib.suppress(Interruption):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + n * 0.00001)
                # Not for ever: an exception inside a callback of the garbage collector is lost.
                for again in range(20_000):
                    journal.append(finished(f"0/{n}-{again}"))
                    acknowledged.append(f"0/{n}-{again}")
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        enough.set()
        for worker in workers:
            worker.join(60)
    recorded = [
        stamped.event.path
        for stamped in journal.events()
        if isinstance(stamped.event, StepFinished)
    ]
    assert len(recorded) == len(set(recorded))
    assert set(acknowledged) <= set(recorded)
    assert len(recorded) - len(acknowledged) <= 150  # what was interrupted may be there or not


def test_a_thread_interrupted_after_any_call_of_a_record_blocks_no_other(
    journal: SqliteJournal,
) -> None:
    """Python hears of a signal when a call has returned, so also between a lock that is taken and the next line."""
    for last in itertools.count(1):
        calls = itertools.count(1)

        def interrupt(
            _frame: object,
            what: str,
            _which: object,
            calls: Iterator[int] = calls,
            last: int = last,
        ) -> None:
            if what == "c_return" and next(calls) == last:
                raise Interruption

        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            journal.append(finished(f"0/{last}"))
            break
        except Interruption:
            pass
        finally:
            sys.setprofile(before)
        other = threading.Thread(target=journal.append, args=(finished(f"1/{last}"),), daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive(), f"call {last} of a record"
    assert last > 5


def test_a_string_that_two_threads_add_has_one_id(journal: SqliteJournal) -> None:
    """The second has looked for it before the first added it, and asks when it is already written."""
    string_id = journal.active_writer._packing.string_id
    first = string_id("kind of a step")
    journal.append(StepStarted("a", "kind of a step", "title"))
    assert string_id("kind of a step") == first
    [reported] = journal.events()
    assert reported.event == StepStarted("a", "kind of a step", "title")


def finished(path: str, outcome: Outcome | None = None, *, order: int = 0) -> StepFinished:
    return StepFinished(
        path, "item", "title", "print", outcome or Succeeded({"n": order}), 0.5, order
    )


def test_the_items_that_a_retry_starts_again_are_found_by_their_events(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    with runs.create({}) as opened:
        opened.journal.append(finished("map/item:a"), finished("map/item:b"))
        again = [StepInvalidated(f"map/item:{key}", "retried", below=False) for key in "ab"]
        other = StepInvalidated("map/item:c", "for another reason", below=False)
        opened.update_facts(again[0], other, text={"steps": {"map": ["f"]}, "accepted": False})
        first = opened.journal.last()
        opened.update_facts(again[1])
        assert opened.journal.step("map/item:a") is None
        assert opened.journal.reader.retried_items("map", 0) == ["map/item:a", "map/item:b"]
        assert opened.journal.reader.retried_items("map", first) == ["map/item:b"]
        assert opened.facts["text"] == {"steps": {"map": ["f"]}, "accepted": False}


def test_without_the_index_a_step_that_was_begun_again_has_no_end_either(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    with runs.create({}) as opened:
        end = StepFinished("setup/a", "shell", "a", "f", Succeeded(1), 0.1)
        opened.journal.append(StepStarted("setup", "phase", "setup"), end)
        opened.journal.append(StepStarted("setup/a", "shell", "a", 1))
        opened.journal.sync()
        for many in (0, 1000):
            reader = Reader(opened.journal.reader.path, Blobs(str(tmp_path / "blobs")), many=many)
            assert list(reader.steps_in("setup")) == []
            assert reader.step("setup/a") is None
            assert reader.is_unfinished("setup/a")
            last = reader.last_result("setup/a")
            assert last is not None
            assert last.outcome == Succeeded(1)
            reader.close()


COUNTED = (StepStarted("map", "map", "map"), ItemsCounted("map", 5))
SETUP = StepStarted("setup", "phase", "setup")
BESIDE_ITEMS: dict[str, tuple[str, tuple[Event, ...]]] = {
    "a part that starts again": ("setup/a", (SETUP, *COUNTED, SETUP, finished("setup/a"))),
    "a part that goes on": ("setup/a", (SETUP, *COUNTED, finished("setup/a"))),
    "a part that has ended": ("setup/a", (SETUP, finished("setup/a"), finished("setup"), *COUNTED)),
    "a step that is not done": ("setup/a", (*COUNTED, SETUP, StepStarted("setup/a", "", ""))),
    "the merge of the map": (
        "map/merge",
        (*COUNTED, finished("map/item:1"), finished("map/merge")),
    ),
    "a hook that is not done": ("map/hook:a", (*COUNTED, StepStarted("map/hook:a", "hook", ""))),
    "where worktrees start": ("map/ground", (*COUNTED, finished("map/ground"))),
    "the choice of the items": ("map/items", (COUNTED[0], finished("map/items"), COUNTED[1])),
}


@pytest.mark.parametrize(("path", "recorded"), BESIDE_ITEMS.values(), ids=list(BESIDE_ITEMS))
def test_without_the_index_steps_beside_the_items_are_known(
    tmp_path: Path, path: str, recorded: tuple[Event, ...]
) -> None:
    with Runs(str(tmp_path)).create({}) as opened:
        opened.journal.append(*recorded)
        opened.journal.sync()
        answers = []
        for many in (1000, -1):
            reader = Reader(opened.journal.reader.path, Blobs(""), many=many)
            answers.append((reader.step(path), reader.is_unfinished(path)))
            reader.close()
        assert answers[0] == answers[1] != (None, False)
