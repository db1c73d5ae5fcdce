"""`perform`: attempts, time, replay; and that a run which is cut anywhere ends as if it had not been."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import (
    GuardianError,
    InputError,
    InternalError,
    JournalError,
    PlaitError,
    ProcessError,
    TrustError,
)
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Secret
from plait.engine.context import new_run_context
from plait.engine.events import Event, StepFinished, StepRetrying, StepStarted
from plait.engine.journal import MemoryJournal
from plait.engine.limits import LimitReached
from plait.engine.outcome import (
    NO_TIME_LEFT,
    DeadlineExceeded,
    Failed,
    Failure,
    Interrupted,
    LimitExceeded,
    Outcome,
    Skip,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.perform import StepContext, StepTimer, perform
from plait.engine.run_text import RunText
from plait.engine.step import DEFAULT_POLICY, Policy, Retry, Step, iter_steps
from plait.program.action_step import ActionStep, FailureHandler
from plait.program.foreach import ValueSource, foreach
from plait.program.step_list import StepList as Steps
from plait.scope import Scope
from program.fakes import Acting, failing, new_run, performed, saying, step, steps, text_of, turn_of
from share import examples


def tries(attempts: int, **fields: Any) -> Retry:
    """So many attempts without a pause."""
    return Retry(attempts, "fixed", 0.0, **fields)


@dataclass(slots=True)
class Fake:
    """A step that does what its answers say, one after the other; the last one again and again."""

    answers: Sequence[Json | BaseException]
    policy: Policy = DEFAULT_POLICY
    name: str = "a"
    fingerprint: str = "f"
    children: Sequence[Step] = ()
    kind: str = "fake"
    title: str = "a fake"
    turns: list[StepContext] = field(default_factory=list)

    def run(self, ctx: StepContext) -> Json:
        self.turns.append(ctx)
        answer = self.answers[min(len(self.turns), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def events_of(journal: MemoryJournal) -> list[Event]:
    return [stamped.event for stamped in journal.events()]


NO = StepError(Failure("no"))

OUTCOMES: list[tuple[Json | BaseException, Outcome]] = [
    # what a step does                              what comes of it
    ({"n": 1},                                      Succeeded({"n": 1})),
    (None,                                          Succeeded(None)),
    (Skip("nothing to do"),                         Skipped("nothing to do")),
    (StepError(Failure("no", "exit", 3)),           Failed(Failure("no", "exit", 3, path="a"))),
    (StepError(Failure("no", path="x/y")),          Failed(Failure("no", path="x/y"))),
    (InputError("wrong", "f:1", "mend it"),         Failed(Failure("f:1: wrong\nfix: mend it", "refused", path="a"))),
    (ProcessError("slow", code="timeout"),          Failed(Failure("slow", "timeout", path="a"))),
    (ProcessError("ended", code="cancelled"),       Failed(Failure("ended", "refused", path="a"))),
]  # fmt: skip


@pytest.mark.parametrize(("does", "outcome"), OUTCOMES)
def test_whatever_a_step_raises_becomes_an_outcome(
    does: Json | BaseException, outcome: Outcome
) -> None:
    assert performed(Fake([does])) == outcome


def test_a_message_of_an_error_is_masked() -> None:
    run = new_run(mask=lambda text: text.replace("hunter2", "***"))
    outcome = performed(Fake([InputError("hunter2 is wrong")]), run)
    assert outcome == Failed(Failure("*** is wrong", "refused", path="a"))


UNRECORDABLE: list[tuple[Json, str]] = [
    # what a step gives   why it cannot be recorded
    ({"n": float("inf")}, "NaN and Infinity do not exist in JSON"),
    ([float("nan")],      "NaN and Infinity do not exist in JSON"),
    ({(1, 2): 3},         "a map has a key that is not a string"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "why"), UNRECORDABLE)
def test_what_cannot_be_recorded_fails_the_step_that_gave_it(value: Json, why: str) -> None:
    journal = MemoryJournal()
    failed = Failed(
        Failure(
            f"gave what cannot be recorded: a value has no JSON form: {why}", "capture", path="a"
        )
    )
    assert performed(Fake([value]), new_run(journal=journal)) == failed
    recorded = journal.step("a")
    assert recorded is not None
    assert recorded.outcome == failed


def test_a_failure_is_recorded_without_what_cannot_be() -> None:
    outcome = performed(Fake([StepError(Failure("no", "exit", 3, output=[1e999]))]))
    assert outcome == Failed(Failure("no", "exit", 3, path="a"))


def test_what_can_be_recorded_is_whatever_has_a_json_form() -> None:
    value = {"secret": Secret("s"), "tuple": (1, 2), "bytes": "\udcff", "long": 10**100}
    assert performed(Fake([value])) == Succeeded(value)


@pytest.mark.parametrize("error", [TrustError("not trusted"), InternalError("our bug")])
def test_what_ends_a_run_is_no_outcome_and_leaves_nothing_recorded(error: PlaitError) -> None:
    journal = MemoryJournal()
    one = Fake([error], Policy(tries(5)))
    with pytest.raises(type(error)):
        performed(one, new_run(journal=journal))
    assert len(one.turns) == 1
    assert journal.step("a") is None


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_is_how_often_a_step_runs_at_most(attempts: int) -> None:
    one = Fake([NO], Policy(tries(attempts)))
    assert isinstance(performed(one), Failed)
    assert [turn.attempt for turn in one.turns] == list(range(1, attempts + 1))


def test_a_step_that_succeeds_is_not_tried_again() -> None:
    journal = MemoryJournal()
    one = Fake([NO, NO, "done"], Policy(tries(9)))
    assert performed(one, new_run(journal=journal)) == Succeeded("done")
    kinds = [type(event).__name__ for event in events_of(journal)]
    assert kinds == ["StepStarted", "StepRetrying"] * 2 + ["StepStarted", "StepFinished"]


def test_a_pause_comes_between_attempts_and_not_before_the_first() -> None:
    journal = MemoryJournal()
    performed(
        Fake([NO], Policy(Retry(4, "linear", 0.001, increment=0.002))), new_run(journal=journal)
    )
    kinds = [type(event) for event in events_of(journal)]
    assert kinds == [StepStarted, StepRetrying] * 3 + [StepStarted, StepFinished]
    delays = [event.delay for event in events_of(journal) if isinstance(event, StepRetrying)]
    assert delays == [0.001, 0.003, 0.005]


def test_a_failure_that_retry_on_does_not_name_is_final() -> None:
    one = Fake([StepError(Failure("no", "exit"))], Policy(tries(5, retry_on=("network",))))
    performed(one)
    assert len(one.turns) == 1


def test_no_attempt_begins_when_its_pause_would_end_behind_the_budget_or_the_deadline() -> None:
    for policy, deadline in (
        (Policy(Retry(5, "fixed", 3600, 3600, budget=60)), None),
        (Policy(Retry(5, "fixed", 3600, 3600)), time.monotonic() + 60),
    ):
        one = Fake([NO], policy)
        performed(one, deadline=deadline)
        assert len(one.turns) == 1


LIMITS = [
    # own    outer    the time that is left, at most
    (None,   None,    None),
    (10.0,   None,    10.0),
    (None,   20.0,    20.0),
    (10.0,   20.0,    10.0),
    (20.0,   10.0,    10.0),
]  # fmt: skip


@pytest.mark.parametrize(("own", "outer", "most"), LIMITS)
def test_a_step_has_its_own_time_or_what_is_left_of_the_time_around_it(
    own: float | None, outer: float | None, most: float | None
) -> None:
    one = Fake([None], Policy(timeout=own))
    performed(one, deadline=None if outer is None else time.monotonic() + outer)
    left = one.turns[0].time_left()
    if most is None:
        assert left is None
    else:
        assert left is not None
        assert most - 5 < left <= most


def test_a_timeout_is_for_each_attempt() -> None:
    one = Fake([NO], Policy(tries(2), timeout=50))
    performed(one)
    first, second = (turn.ends_at() for turn in one.turns)
    assert first is not None
    assert second is not None
    assert second > first


def test_the_time_of_a_step_stands_still_for_those_who_are_asked_and_counts_once() -> None:
    outer = StepTimer(50)
    inner = StepTimer(40, outer)
    before, began = inner.end(), time.monotonic()
    with inner.paused():
        with inner.paused():
            time.sleep(0.02)
        assert inner.end() >= before + 0.02
    assert before + 0.02 <= inner.end() <= before + (time.monotonic() - began)
    assert StepTimer(90, outer).end() == outer.end() >= before + 10.02


# ── replay ───────────────────────────────────────────────────────────────

KNOWN: list[tuple[str, Sequence[Json | BaseException], Policy, bool]] = [
    # what                first attempt      policy                           runs again?
    ("a value",           [{"n": 1}],        DEFAULT_POLICY,                           False),
    ("nothing to do",     [Skip("no")],      DEFAULT_POLICY,                           False),
    ("a failure",         [NO],              DEFAULT_POLICY,                           True),
    ("a dead letter",     [NO],              Policy(keep_failure=True),   False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "answers", "policy", "again"), KNOWN)
def test_what_is_recorded_is_replayed(
    what: str, answers: Sequence[Json | BaseException], policy: Policy, again: bool
) -> None:
    journal = MemoryJournal()
    before = performed(Fake(answers, policy), new_run(journal=journal))
    later = Fake(answers, policy)
    after = performed(later, new_run(journal=journal.reopen()))
    assert after == before, what
    assert bool(later.turns) is again


def test_a_step_whose_text_has_changed_is_refused_or_done_again_if_that_is_accepted() -> None:
    journal = MemoryJournal()
    performed(Fake(["old"]), new_run(journal=journal))
    changed = Fake(["new"], fingerprint="g")
    with pytest.raises(InputError) as caught:
        performed(changed, new_run(journal=journal.reopen()))
    assert str(caught.value) == (
        "the file has changed since these steps were done: a (a fake)\n"
        "fix: plait resume r1 --accept-changes does them again, and all that follows them; "
        "or put the file back as it was"
    )
    assert changed.turns == []
    assert performed(
        changed, new_run(journal=journal.reopen(), text=RunText(is_accepted=True))
    ) == Succeeded("new")


def test_after_a_step_that_was_done_again_nothing_is_replayed() -> None:
    first, second = Acting(), Acting()
    journal = MemoryJournal()
    performed(steps(step("a", first), step("b", second)), new_run(journal=journal))
    journal.reopen()
    del journal._finished["flow"]
    changed = steps(step("a", first, fingerprint="other"), step("b", second))
    performed(changed, new_run(journal=journal, text=RunText(is_accepted=True)))
    assert (len(first.ran), len(second.ran)) == (2, 2)


def test_a_stop_records_nothing_and_a_resumed_run_does_the_step_again() -> None:
    journal = MemoryJournal()
    run = new_run(journal=journal)

    class Stopped(Fake):
        def run(self, ctx: StepContext) -> Json:
            ctx.run.stop.ask()
            raise ProcessError("ended", code="cancelled")

    with pytest.raises(Interrupted):
        performed(Stopped([]), run)
    assert journal.step("a") is None
    assert not any(isinstance(event, StepFinished) for event in events_of(journal))
    assert performed(Fake(["done"]), new_run(journal=journal.reopen())) == Succeeded("done")


def test_nothing_begins_in_a_run_that_is_to_stop() -> None:
    run = new_run()
    run.stop.ask()
    one = Fake(["done"])
    with pytest.raises(Interrupted):
        performed(one, run)
    assert one.turns == []


def test_a_stop_ends_the_pause_before_the_next_attempt() -> None:
    run = new_run()

    class StoppedLater(Fake):
        def run(self, ctx: StepContext) -> Json:
            ctx.run.stop.ask()
            raise NO

    journal = run.journal
    with pytest.raises(Interrupted):
        performed(StoppedLater([], Policy(Retry(2, "fixed", 3600, 3600))), run)
    assert journal.step("a") is None


def test_a_step_that_may_run_only_once_asks_instead_of_running_again() -> None:
    journal = MemoryJournal()
    once = Policy(at_most_once=True)
    with pytest.raises(KeyboardInterrupt):
        performed(Fake([KeyboardInterrupt()], once), new_run(journal=journal))
    assert journal.is_unfinished("a")
    again = Fake(["done"], once)
    with pytest.raises(InputError) as caught:
        performed(again, new_run(journal=journal.reopen()))
    assert str(caught.value) == (
        "step 'a fake' (a) may run at most once; it started, and its outcome is unknown\n"
        "fix: find out whether it did its work; then plait resume r1 --repeat a, or plait resume r1 --done a"
    )
    assert again.turns == []
    assert performed(again, new_run(journal=journal.reopen(), repeat=["a"])) == Succeeded("done")


def test_the_question_of_a_step_inside_is_no_outcome_of_those_around_it() -> None:
    journal = MemoryJournal()
    once = Policy(at_most_once=True)

    def around(inner: Step) -> Step:
        class Around(Fake):
            def run(self, ctx: StepContext) -> Json:
                outcome = ctx.perform(inner)
                return outcome.value if isinstance(outcome, Succeeded) else None

        return Around([], Policy(tries(3), keep_failure=True), "b", children=[inner])

    with pytest.raises(KeyboardInterrupt):
        performed(around(Fake([KeyboardInterrupt()], once)), new_run(journal=journal))
    again = Fake(["done"], once)
    for _ in range(2):
        with pytest.raises(InputError, match=r"\(b/a\) may run at most once"):
            performed(around(again), new_run(journal=journal.reopen()))
    assert journal.step("b") is None
    assert performed(around(again), new_run(journal=journal.reopen(), repeat=["b/a"])) == Succeeded(
        "done"
    )


# ── the time of a whole ──────────────────────────────────────────────────


def test_a_step_for_which_there_is_no_time_is_neither_begun_nor_recorded() -> None:
    run, one = new_run(), Fake(["done"])
    with pytest.raises(DeadlineExceeded):
        performed(one, run, deadline=time.monotonic() - 1)
    assert (one.turns, events_of(run.journal)) == ([], [])  # type: ignore[arg-type]


class Slow(Fake):
    """Takes all the time that it has."""

    def run(self, ctx: StepContext) -> Json:
        while ctx.time_left():
            pass
        return super().run(ctx)


LATE: list[tuple[Json | BaseException, Policy, Outcome | None]] = [
    # how a step ends for which its list has no time    policy                        what is recorded of it
    ("done",                                    DEFAULT_POLICY,                          Succeeded("done")),
    (ProcessError("slow", code="timeout"),      DEFAULT_POLICY,                          Failed(Failure(NO_TIME_LEFT, "timeout", path="c/a"))),
    (ProcessError("slow", code="timeout"),      Policy(keep_failure=True),  None),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "policy", "recorded"), LATE)
def test_a_whole_whose_time_is_over_fails_once_and_leaves_the_rest_for_later(
    answer: Json | BaseException, policy: Policy, recorded: Outcome | None
) -> None:
    first, second = Slow([answer], policy), Fake(["done"], name="b")

    class Whole(Fake):
        def run(self, ctx: StepContext) -> Json:
            ctx.perform(first)
            ctx.perform(second)
            return None

    run = new_run()
    whole = Whole([], Policy(timeout=0.01), "c", children=[first, second])
    assert performed(whole, run) == Failed(Failure("took longer than 0.01 s", "timeout", path="c"))
    known = run.journal.step("c/a")
    assert (None if known is None else known.outcome) == recorded
    assert second.turns == []
    assert run.journal.step("c/b") is None


def test_a_step_that_is_done_once_and_was_cut_short_by_others_is_asked_about() -> None:
    first = Slow([StepError(Failure("slow", "timeout"))], Policy(at_most_once=True))

    class Whole(Fake):
        def run(self, ctx: StepContext) -> Json:
            return require_success(ctx.perform(first))

    journal = MemoryJournal()
    performed(Whole([], Policy(timeout=0.01), "c", children=[first]), new_run(journal=journal))
    with pytest.raises(
        InputError, match="may run at most once; it started, and its outcome is unknown"
    ):
        performed(
            Whole([], DEFAULT_POLICY, "c", children=[first]), new_run(journal=journal.reopen())
        )


def out_of_turns(outcome: Outcome | None = None) -> LimitExceeded:
    end = LimitExceeded(LimitReached("turns", 2, 2, "the run"), "a")
    end.outcome = outcome
    return end


PAID = Failed(Failure("cut", "limit", output={"usage": {"input": 3}}, path="a"))


@pytest.mark.parametrize(
    ("policy", "paid", "recorded"),
    [
        (DEFAULT_POLICY, None, None),
        (Policy(tries(5)), None, None),
        (DEFAULT_POLICY, PAID, PAID),
        (Policy(keep_failure=True), PAID, None),
        (Policy(skip_on_failure=True), None, None),
    ],
)
def test_a_limit_of_somebody_around_it_is_no_outcome_of_a_step(
    policy: Policy, paid: Outcome | None, recorded: Outcome | None
) -> None:
    one, run = Fake([out_of_turns(paid)], policy), new_run()
    with pytest.raises(LimitExceeded, match="the run has reached its limit of 2 turns"):
        performed(one, run)
    known = run.journal.step("a")
    assert (None if known is None else known.outcome, len(one.turns)) == (recorded, 1)


def test_a_start_that_must_not_be_lost_is_recorded_before_the_step_runs() -> None:
    journal = MemoryJournal()
    seen: list[list[Event]] = []

    class Looking(Fake):
        def run(self, ctx: StepContext) -> Json:
            seen.append(events_of(journal))
            return super().run(ctx)

    performed(Looking([None], Policy(at_most_once=True)), new_run(journal=journal))
    assert [type(event) for event in seen[0]] == [StepStarted]


def test_inside_names_every_step_of_a_flow_with_its_path() -> None:
    loop = foreach(
        ValueSource(text_of(["x"])),
        steps(step("do", Acting())),
        fingerprint="l",
        items_fingerprint="i",
    )
    flow = steps(
        step(
            "a",
            Acting(),
            on_failure=FailureHandler(steps(step("mend", Acting()), name="on_failure")),
        ),
        step("b", loop),
    )
    assert [path for path, _ in iter_steps(flow)] == [
        "flow",
        "flow/a",
        "flow/a/run",
        "flow/a/on_failure",
        "flow/a/on_failure/mend",
        "flow/b",
        "flow/b/each",
        "flow/b/each/items",
        "flow/b/each/item:*",
        "flow/b/each/item:*/do",
    ]


# ── any flow, cut anywhere ───────────────────────────────────────────────


class Killed(BaseException):
    """The process died."""


class Cut(MemoryJournal):
    """A journal whose process dies when so many events are recorded."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def append(self, *events: Event) -> None:
        for event in events:
            if self._left <= 0:
                raise Killed
            self._left -= 1
            super().append(event)

    def whole(self) -> Cut:
        self._left = 1 << 30
        self.reopen()
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """A small flow, as data."""

    name: str
    fails: int = 0
    """On how many attempts."""
    attempts: int = 1
    captures: bool = False
    skipped: bool = False
    handler: tuple[Plan, ...] = ()
    success: tuple[Plan, ...] = ()
    loop: tuple[Plan, ...] = ()
    items: int = 0
    parallel: bool = False
    goes_on: bool = False


class Never:
    def holds(self, scope: object) -> bool:  # noqa: ARG002
        return False


def built(plan: Plan, ledger: list[str]) -> ActionStep:
    says = text_of(f"{plan.name} ${{seen:-}} ${{item:-}} ${{last.output:-}}")

    def answer(ctx: StepContext) -> Json:
        if ctx.attempt <= plan.fails:
            raise StepError(Failure(f"{plan.name} fails", "exit", 7))
        return says.render(ctx.scope)

    class Noting(Acting):
        def run(self, ctx: StepContext) -> dict[str, Json]:
            ledger.append(ctx.path)
            return super().run(ctx)

    inner = [built(one, ledger) for one in plan.loop]
    action: object = Noting(answer)
    if inner:
        action = foreach(
            ValueSource(text_of([f"i{number}" for number in range(plan.items)])),
            steps(*inner, name="do"),
            fingerprint=f"loop-{plan.name}",
            items_fingerprint="items",
            parallel=plan.parallel,
            continue_on_error=True,
        )
    return step(
        plan.name,
        action,
        policy=Policy(Retry(plan.attempts, "fixed", 0.0)),
        capture="seen" if plan.captures else None,
        when=Never() if plan.skipped else None,
        on_failure=FailureHandler(named("on_failure", plan.handler, ledger))
        if plan.handler
        else None,
        on_success=named("on_success", plan.success, ledger) if plan.success else None,
        continue_on_error=plan.goes_on,
    )


def named(name: str, plans: tuple[Plan, ...], ledger: list[str]) -> Steps:
    return steps(*(built(plan, ledger) for plan in plans), name=name)


def flow_of(plans: Sequence[Plan], ledger: list[str]) -> Steps:
    return steps(*(built(plan, ledger) for plan in plans))


@st.composite
def flows(draw: st.DrawFn, depth: int = 2) -> tuple[Plan, ...]:
    count = draw(st.integers(1, 3))
    return tuple(draw(plans(f"s{number}", depth)) for number in range(count))


@st.composite
def plans(draw: st.DrawFn, name: str, depth: int) -> Plan:
    kind = draw(
        st.sampled_from(["plain", "plain", "handled", "followed", "loop"] if depth else ["plain"])
    )
    inner = draw(flows(depth - 1)) if kind != "plain" else ()
    return Plan(
        name,
        fails=draw(st.sampled_from([0, 0, 1, 9])),
        # A loop that is tried again does all its items again, those that were done included.
        attempts=draw(st.integers(1, 2)) if kind != "loop" else 1,
        captures=draw(st.booleans()) and kind != "loop",
        skipped=draw(st.sampled_from([False, False, False, True])),
        handler=inner if kind == "handled" else (),
        success=inner if kind == "followed" else (),
        loop=inner if kind == "loop" else (),
        items=draw(st.integers(0, 3)),
        goes_on=draw(st.booleans()),
    )


def perform_attempt(flow: Step, journal: MemoryJournal) -> Outcome:
    run = new_run(journal=journal)
    try:
        return perform(flow, turn_of(run).child(flow))
    finally:
        with suppress(Killed):
            run.events.close()


def leaves_done(journal: MemoryJournal) -> set[str]:
    """What is not done again; a step that failed in spite of its handler is, and its handler behind it."""
    ended = [event for event in events_of(journal) if isinstance(event, StepFinished)]
    failed = [f"{event.path}/on_failure/" for event in ended if isinstance(event.outcome, Failed)]
    return {
        event.path
        for event in ended
        if not isinstance(event.outcome, Failed) and not event.path.startswith(tuple(failed))
    }


@settings(max_examples=examples(60), deadline=None)
@given(plans=flows(), data=st.data())
def test_a_run_that_is_cut_anywhere_and_resumed_ends_as_if_it_had_not_been(
    plans: tuple[Plan, ...], data: st.DataObject
) -> None:
    whole = MemoryJournal()
    live: list[str] = []
    expected = _without_times(perform_attempt(flow_of(plans, live), whole))
    cut = Cut(data.draw(st.integers(0, len(events_of(whole)))))
    first: list[str] = []
    with suppress(Killed):
        perform_attempt(flow_of(plans, first), cut)
    done = leaves_done(cut)
    second: list[str] = []
    assert _without_times(perform_attempt(flow_of(plans, second), cut.whole())) == expected
    assert [
        path for path in second if any(path == d or path.startswith(f"{d}/") for d in done)
    ] == []
    # Nothing is lost, either: what ran in the uninterrupted run ran in one of these.
    assert set(live) == set(first) | set(second)


def _without_times(outcome: Json) -> Json:
    """How long something took is not the same twice."""
    match outcome:
        case Succeeded(value):
            return Succeeded(_without_times(value))
        case Failed(failure):
            return Failed(
                Failure(
                    failure.message,
                    failure.kind,
                    failure.exit_code,
                    _without_times(failure.output),
                    failure.path,
                )
            )
        case Mapping():
            return {
                key: _without_times(value) for key, value in outcome.items() if key != "duration"
            }
        case list():
            return [_without_times(value) for value in outcome]
    return outcome


def test_a_finished_run_that_is_resumed_does_nothing() -> None:
    ledger: list[str] = []
    plans = (Plan("s0", captures=True), Plan("s1", loop=(Plan("s0"),), items=3, parallel=True))
    journal = MemoryJournal()
    before = perform_attempt(flow_of(plans, ledger), journal)
    assert Counter(ledger) == Counter(["flow/s0", *(f"flow/s1/each/item:{n}/s0" for n in range(3))])
    ledger.clear()
    assert perform_attempt(flow_of(plans, ledger), journal.reopen()) == before
    assert ledger == []


def test_a_retried_step_says_so_in_its_events() -> None:
    journal = MemoryJournal()
    flow = steps(
        step("a", failing("no", times=1), policy=Policy(tries(2))),
        step("b", saying("${last.output}")),
    )
    assert performed(flow, new_run(journal=journal)) == Succeeded(
        {"output": "at last", "captures": {}}
    )
    retrying = [event for event in events_of(journal) if isinstance(event, StepRetrying)]
    assert retrying == [StepRetrying("flow/a", 1, Failure("no", "exit", 1, path="flow/a"), 0.0, 2)]


def test_a_step_that_may_run_once_is_asked_about_when_its_guardian_was_lost() -> None:
    class Lost:
        name, kind, title, fingerprint, children = "pay", "shell", "pay", "f", ()
        policy = Policy(at_most_once=True)

        def run(self, ctx: StepContext) -> Json:  # noqa: ARG002 - the protocol's shape
            raise GuardianError("the guardian has ended", code="guardian")

    journal = MemoryJournal()
    first = new_run_context("r", journal)
    with pytest.raises(GuardianError):
        perform(Lost(), StepContext(first, "pay", Scope()))
    first.events.close()
    again = new_run_context("r", journal.reopen())
    with pytest.raises(InputError, match="may run at most once"):
        perform(Lost(), StepContext(again, "pay", Scope()))
    again.events.close()


class Full(MemoryJournal):
    """A journal on a disk that is full when the first end is to be recorded; has it room for that one?"""

    def __init__(self, *, has_last: bool = False) -> None:
        super().__init__()
        self.has_last = has_last

    def append(self, *events: Event) -> None:
        if any(isinstance(event, StepFinished) for event in events):
            error = JournalError(
                "the journal cannot be used: the disk is full", "journal.db", "make room"
            )
            error.holds_last = self.has_last
            raise error
        super().append(*events)


DEAD_LETTER = Policy(keep_failure=True)
UNHELD = "; so it does not hold that 'a' failed: no room for big1"
HELD = "; before that 'a' failed: no room for big1"
TRY_AGAIN = "make room; plait retry r1 --failed retries what failed"
LAST_FAILURES = [
    # held     policy        the message      what to do
    (False,    DEFAULT_POLICY,        UNHELD,          "make room"),
    (False,    DEAD_LETTER,  UNHELD,          "make room"),
    (True,     DEFAULT_POLICY,        HELD,            "make room"),
    (True,     DEAD_LETTER,  HELD,            TRY_AGAIN),      # resuming would not
]  # fmt: skip


@pytest.mark.parametrize(("held", "policy", "text", "fix"), LAST_FAILURES)
def test_a_failure_at_which_the_journal_could_not_go_on_is_reported(
    held: bool, policy: Policy, text: str, fix: str
) -> None:
    failed = step("a", failing("no room for big1\nfix: make room there"))
    with pytest.raises(JournalError) as raised:
        performed(replace(failed, policy=policy), new_run(journal=Full(has_last=held)))
    reported = f"journal.db: the journal cannot be used: the disk is full{text}\nfix: {fix}"
    assert str(raised.value) == reported
    with pytest.raises(JournalError, match=r"is full\nfix"):
        performed(step("a", saying("x")), new_run(journal=Full()))
