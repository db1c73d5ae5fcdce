"""Questions side by side never use together what a limit leaves; and a limit that cannot be kept is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted import Scripted, ToolServices
from lang.loading import load_file
from plait.agents.messages import Message, ModelRequest, ModelResponse, OnText, TokenUsage
from plait.agents.turn_budget import ROOM, TurnBudget, estimate_request_tokens
from plait.core.values import Json
from plait.engine.limits import Budget, Limits
from plait.engine.outcome import Aborted, Failure, Interrupted, StepError
from plait.engine.stop import StopSignal
from program.fakes import new_run, turn_of
from share import examples

HI = ModelRequest((Message("user", "hi"),))
TAKES = estimate_request_tokens(HI)
PRICE = 0.001
"""Of a token."""


def no_record(**_: float) -> None:
    """Records no usage."""


class Priced(Scripted):
    """A model that uses all the room it is given, and knows how many are asking at the same time."""

    def __init__(
        self, uses: Callable[[int], int] = lambda room: room, *, free: bool = False
    ) -> None:
        super().__init__(self._answer)
        self._uses = uses
        self._free = free
        self._lock = threading.Lock()
        self._now = 0
        self.together = 0
        self.both = threading.Event()

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        with self._lock:
            self._now += 1
            self.together = max(self.together, self._now)
        try:
            return super().ask(request, timeout=timeout, stop=stop, on_text=on_text)
        finally:
            with self._lock:
                self._now -= 1

    def _answer(self, ask: ModelRequest) -> ModelResponse:
        usage = TokenUsage(
            estimate_request_tokens(ask), self._uses(ask.options.get("max_tokens", 100))
        )
        return ModelResponse(
            "ok", (), TokenUsage(usage.input, usage.output, cost=self.price(None, usage))
        )

    def price(self, model: str | None, usage: TokenUsage) -> float | None:  # noqa: ARG002
        return None if self._free else usage.tokens * PRICE


def asked(
    budget: Budget, model: Any, question: ModelRequest = HI, **more: Any
) -> ModelResponse | Failure:
    given = {"timeout": 20.0, "stop": StopSignal(), "on_text": None, **more}
    try:
        return TurnBudget(budget, no_record).ask(model, question, **given)
    except StepError as error:
        return error.failure


def asked_by_threads(
    budget: Budget, model: Any, questions: list[ModelRequest]
) -> list[ModelResponse | Failure]:
    came: list[ModelResponse | Failure] = []
    threads = [
        threading.Thread(target=lambda q=q: came.append(asked(budget, model, q))) for q in questions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return came


ROOMS = st.lists(st.none() | st.integers(1, 60), min_size=1, max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(rooms=ROOMS, tokens=st.none() | st.integers(1, 200), spend=st.none() | st.integers(1, 200))
def test_questions_side_by_side_never_use_more_than_the_limit(
    rooms: list[int | None], tokens: int | None, spend: int | None
) -> None:
    outer = Budget(Limits(tokens=tokens, spend=None if spend is None else spend * PRICE))
    budget = Budget(within=outer)
    questions = [
        ModelRequest(HI.messages, options={} if room is None else {"max_tokens": room})
        for room in rooms
    ]
    came = asked_by_threads(budget, Priced(), questions)
    assert len(came) == len(rooms)
    assert {one.kind for one in came if isinstance(one, Failure)} <= {"limit"}
    used = outer.usage()
    assert used["tokens"] <= (tokens or 10**9)
    assert used["spend"] <= (spend or 10**9) * PRICE + 1e-9
    if tokens is None and spend is None:
        assert not [one for one in came if isinstance(one, Failure)]


def test_questions_for_which_there_is_enough_are_asked_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def uses(room: int) -> int:
        barrier.wait()
        return room

    budget = Budget(Limits(tokens=3 * (TAKES + 10)))
    came = asked_by_threads(
        budget, Priced(uses), [ModelRequest(HI.messages, options={"max_tokens": 10})] * 3
    )
    assert all(isinstance(one, ModelResponse) for one in came)
    assert budget.usage()["tokens"] == 3 * (TAKES + 10)


def test_near_the_limit_they_are_asked_one_after_the_other_and_what_is_not_used_is_there_for_the_next() -> (
    None
):
    model = Priced(lambda _: 5)
    budget = Budget(Limits(tokens=8 * (TAKES + 5) + TAKES))
    came = asked_by_threads(budget, model, [HI] * 8)
    assert all(isinstance(one, ModelResponse) for one in came)
    assert model.together == 1, (
        "nobody says how long an answer may be, and far less than that is left"
    )


def test_the_last_question_gets_the_room_that_is_left() -> None:
    model = Priced(lambda _: 1)
    asked(
        Budget(Limits(tokens=TAKES + 30)),
        model,
        ModelRequest(HI.messages, options={"max_tokens": 90, "top_p": 1}),
    )
    asked(Budget(Limits(spend=(TAKES + 30.5) * PRICE)), model)
    asked(Budget(Limits(spend=1000)), model)
    asked(Budget(), model)
    assert [dict(one.options) for one in model.asks] == [
        {"max_tokens": 30, "top_p": 1}, {"max_tokens": 30}, {"max_tokens": ROOM}, {}
    ]  # fmt: skip


def test_a_question_that_does_not_fit_any_more_is_not_asked() -> None:
    model, budget = Priced(), Budget(Limits(tokens=TAKES))
    assert asked(budget, model) == Failure(
        f"the run has reached its limit of {TAKES} tokens (0 used, the next call needs about {TAKES + 1})",
        "limit",
    )
    assert model.asks == []


@pytest.mark.parametrize(
    ("model", "named"), [(None, "its default model"), ("fast", "the model 'fast'")]
)  # fmt: skip
def test_a_limit_of_spend_is_refused_where_the_price_is_unknown(
    model: str | None, named: str
) -> None:
    provider = Priced(free=True)
    failed = asked(Budget(Limits(spend=5)), provider, ModelRequest(HI.messages, model=model))
    assert failed == Failure(
        f"a limit of spend cannot be kept: the provider 'scripted' has no price for {named}; write one under "
        "'prices' in config/providers/scripted.yaml, by the name that the server knows, or limit tokens",
        "refused",
    )
    assert provider.asks == []
    assert isinstance(asked(Budget(Limits(tokens=10**6)), provider), ModelResponse)


WAITS: list[tuple[str, dict[str, Any], type[BaseException] | str]] = [
    ("a run that is to stop", {}, Interrupted),
    ("a question whose time is over", {"timeout": 0.0}, "timeout"),
]


@pytest.mark.parametrize(("who", "more", "end"), WAITS, ids=[row[0] for row in WAITS])
def test_no_turn_waits_for_others_longer_than_its_timeout(
    who: str,  # noqa: ARG001
    more: dict[str, Any],
    end: Any,
) -> None:
    budget = Budget(Limits(tokens=100))
    budget.reserve({"tokens": 90}, {"tokens": 1}, lambda: None)
    stop = StopSignal()
    if end is Interrupted:
        stop.ask()
        with pytest.raises(Interrupted):
            TurnBudget(budget, no_record).ask(Priced(), HI, timeout=None, stop=stop, on_text=None)
    else:
        failed = asked(budget, Priced(), stop=stop, **more)
        assert isinstance(failed, Failure)
        assert failed.kind == end


def test_what_a_failed_question_had_set_aside_is_there_for_the_next() -> None:
    def fail(_: ModelRequest) -> ModelResponse:
        raise StepError(
            Failure("gone", "network", output={"usage": TokenUsage(3, 2, cost=0.5).record()})
        )

    budget = Budget(Limits(tokens=TAKES + 10))
    assert isinstance(asked(budget, Scripted(fail)), Failure)
    assert (
        budget.usage()["tokens"],
        isinstance(asked(budget, Priced(lambda _: 1)), ModelResponse),
    ) == (5, True)


def test_a_question_that_is_asked_again_takes_a_turn_of_its_own() -> None:
    budget, model = Budget(Limits(turns=2)), Priced()
    bill = TurnBudget(budget, no_record)
    assert budget.take("turns", turns=1) is None
    for _ in range(2):
        bill.ask(model, HI, timeout=None, stop=StopSignal(), on_text=None)
    with pytest.raises(StepError, match="limit of 2 turns"):
        bill.ask(model, HI, timeout=None, stop=StopSignal(), on_text=None)
    assert (len(model.asks), budget.usage()["turns"]) == (2, 2)


# ── whole flows ──────────────────────────────────────────────────────────

MAP = "limits: {%s}\nmap: {input: [1, 2, 3, 4, 5, 6], max_parallel: 6, agent_template: [{prompt: hi}]}\n"
ENSEMBLE = (
    "limits: {%s}\nworkflow: parallel\nmax_parallel: 6\n"
    "agents: {one: {role: Asker, goal: hi}}\n"
    "tasks:\n" + "".join(f"  - {{name: t{n}, description: hi, agent: one}}\n" for n in range(5))
)


@pytest.mark.parametrize("text", [MAP, ENSEMBLE], ids=["map", "ensemble"])
@pytest.mark.parametrize(
    ("limit", "name", "most"), [("turns: 2", "turns", 2), ("tokens: 400", "tokens", 400)]
)
def test_no_flow_asks_more_than_its_limit_and_it_is_not_done(
    text: str, limit: str, name: str, most: int, tmp_path: Path
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(text % limit)
    loaded = load_file(str(file), environ={})
    model = Priced(lambda room: min(room, 150))
    run = new_run(ToolServices(model), folder=str(file.parent), loaded=loaded)
    value: Json = None
    try:
        value = loaded.program.run(turn_of(run))
    except (StepError, Aborted) as error:
        value = error.failure.kind
    finally:
        run.events.close()
    assert 0 < run.budgets.total.usage()[name] <= most
    assert len(model.asks) < 5
    assert value == "limit"
