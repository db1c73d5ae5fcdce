"""One question to a model within the limits around it.

Before it is asked, the most that it may use is set aside: what the question itself takes, about,
and the room for its answer, in tokens and in money.  So questions side by side never use
together what only one of them may have; near a limit they are asked one after the other, and
the last one gets as much room as is left.  What a question used counts as soon as it is answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from plait.agents.messages import ModelRequest, ModelResponse, OnText, Provider, TokenUsage
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json, json_text
from plait.engine.event_bus import StopSignal
from plait.engine.limits import Budget, LimitReached, Reservation
from plait.engine.outcome import Failure, Interrupted, StepError

if TYPE_CHECKING:
    from plait.engine.perform import StepContext


BYTES_OF_A_TOKEN: Final = 3
"""Rather too few than too many: most texts have about four."""
TOKENS_OF_A_MESSAGE: Final = 4
"""For the marks around it."""


def estimate_request_tokens(ask: ModelRequest) -> int:
    """About as many tokens as a question takes."""
    said = [ask.system, *(message.text for message in ask.messages)]
    said += [json_text(use.arguments) for message in ask.messages for use in message.uses]
    said += [json_text([tool.name, tool.description, tool.schema]) for tool in ask.tools]
    if ask.schema is not None:
        said.append(json_text(ask.schema))
    return _tokens(said) + TOKENS_OF_A_MESSAGE * len(ask.messages)


def estimate_response_tokens(answer: ModelResponse) -> int:
    """About as many tokens as an answer, or half of one, took; none, if nothing was said."""
    if answer.blocks is not None:  # all of it, with what the model thought
        return _tokens([json_text(answer.blocks)])
    return _tokens([answer.text, *(json_text([use.name, use.arguments]) for use in answer.uses)])


def estimate_usage(
    answer: ModelResponse, ask: ModelRequest, *, broke_off: bool = False
) -> TokenUsage:
    """What an answer took, with an estimate of what its server did not count.

    Of one that broke off a server has counted what there was at the beginning, if anything.
    """
    usage, said = answer.usage, estimate_response_tokens(answer)
    question = usage.input or estimate_request_tokens(ask)
    output = max(usage.output, said) if broke_off else usage.output or said
    estimated = question + output - usage.tokens
    return (
        replace(usage, input=question, output=output, estimated=estimated) if estimated else usage
    )


def _tokens(said: Sequence[str]) -> int:
    return -(-sum(len(text.encode("utf-8", "surrogatepass")) for text in said) // BYTES_OF_A_TOKEN)


ROOM: Final = 32_000
"""Tokens for an answer, where tokens or money are limited and nobody says max_tokens."""
CUT_OFF: Final = "the model had no room left for its answer"
NEARLY_ALL: Final = 0.9
"""Of the room for an answer: servers count in their own ways."""
MEASURED: Final = ("tokens", "spend")


Charge: TypeAlias = Callable[..., None]
"""Told what was used up, for the record."""


class TurnBudget:
    """What becomes of a question for which a turn was taken; whoever took it looks at this
    afterwards.
    """

    def __init__(self, budget: Budget, charge: Charge, *, is_taken: bool = True) -> None:
        self.budget = budget
        self._charge = charge
        self.is_taken = is_taken
        """Is there a turn for it?  If not, one is taken when it is asked."""
        self.is_paid = False
        """Was it asked, and counted?"""
        self.reached: LimitReached | None = None
        """The limit because of which it was not asked, or its answer was cut off."""

    def ask(
        self,
        provider: Provider,
        ask: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None,
    ) -> ModelResponse:
        """The answer; StepError as of a provider, and of kind `limit` if too little is left."""
        self._take_another_turn()
        clock = _Clock(timeout, stop)
        ask, aside = self._limit_request(provider, ask, clock)
        used: TokenUsage | None = None
        try:
            answer = provider.ask(ask, timeout=clock.time_left(), stop=stop, on_text=on_text)
            used = answer.usage
        except StepError as error:
            used = usage_without_answer(error.failure.output)
            raise
        finally:
            self.is_paid = True
            self._settle(aside, used)
        if aside.short is not None and _used_all(answer, ask):
            self.reached = replace(aside.short.now(), why=CUT_OFF)
        return answer

    def give_back(self) -> None:
        """The turn that was taken, if nobody was asked."""
        if self.is_taken and not self.is_paid:
            self.is_taken = False
            self.budget.add(turns=-1)

    def _settle(self, aside: Reservation, usage: TokenUsage | None) -> None:
        """What was taken from the budgets is what is recorded; of a question without an answer
        nothing.
        """
        used = {} if usage is None else usage_amounts(usage)
        aside.settle(**{**used, "turns": used.get("turns", 0) - 1})
        if usage is not None:
            self._charge(**used, estimated=usage.estimated)

    def limit_reached(self, failure: Failure, ctx: StepContext) -> LimitReached | None:
        """The limit because of which there is no answer; None if that has another reason."""
        is_late = failure.kind == "timeout" and not ctx.is_expired()
        return self.budget.reach("seconds") if is_late else self.reached

    def _take_another_turn(self) -> None:
        """A question that is tried again needs a turn of its own."""
        if self.is_taken and not self.is_paid:
            return
        if (reached := self.budget.take("turns", turns=1)) is not None:
            raise self._limit_error(reached)
        self.is_taken = True

    def _limit_request(
        self, provider: Provider, ask: ModelRequest, clock: _Clock
    ) -> tuple[ModelRequest, Reservation]:
        """The question with the room that its answer has."""
        if not self.budget.is_limited(*MEASURED):
            return ask, self._aside({}, {}, clock)
        costs = _costs(provider, ask, is_priced=self.budget.is_limited("spend"))
        found = self._aside(costs.of(costs.room), costs.of(1), clock)
        room = costs.room_for(found.amounts)
        if room == costs.room:
            found.short = None
        return replace(ask, options={**ask.options, "max_tokens": room}), found

    def _aside(
        self, most: Mapping[str, float], least: Mapping[str, float], clock: _Clock
    ) -> Reservation:
        found = self.budget.reserve(most, least, clock.require_time)
        if isinstance(found, LimitReached):
            raise self._limit_error(found)
        return found

    def _limit_error(self, reached: LimitReached) -> StepError:
        self.reached = reached
        return StepError(reached.failure())


def _used_all(answer: ModelResponse, ask: ModelRequest) -> bool:
    """Was it cut off by the room that it was given, and not by some bound of the server's?"""
    room, used = ask.options.get("max_tokens"), answer.usage.output
    is_counted = used and not answer.usage.estimated
    return answer.ending == "length" and (not is_counted or used >= NEARLY_ALL * float(room or 0))


def usage_without_answer(output: Json) -> TokenUsage | None:
    """What was paid, although there is no answer."""
    usage = output.get("usage") if isinstance(output, Mapping) else None
    return TokenUsage(**usage) if isinstance(usage, Mapping) else None


# ── helpers, in order of use ─────────────────────────────────────────────


class _Clock:
    """The time for a question, in which it may also wait for others."""

    def __init__(self, seconds: float | None, stop: StopSignal) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._stop = stop

    def time_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def require_time(self) -> None:
        if self._stop.is_set():
            raise Interrupted
        if self.time_left() == 0.0:
            why = "other questions use what is left of a limit, and did not end in time"
            raise StepError(Failure(f"the model was not asked: {why}", "timeout"))


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a question takes with an answer of a given length."""

    question: int
    room: int
    """The longest answer."""
    question_price: float
    token_price: float
    """Of one token of the answer."""

    def of(self, answer: int) -> dict[str, float]:
        return {
            "tokens": self.question + answer,
            "spend": self.question_price + answer * self.token_price,
        }

    def room_for(self, amounts: Mapping[str, float]) -> int:
        """The longest answer for which this is enough."""
        room = amounts["tokens"] - self.question
        if self.token_price and amounts["spend"] < self.of(self.room)["spend"]:
            room = min(room, (amounts["spend"] - self.question_price) / self.token_price)
        return max(1, int(min(room, self.room)))


def _costs(provider: Provider, ask: ModelRequest, *, is_priced: bool) -> _Costs:
    question, wanted = estimate_request_tokens(ask), ask.options.get("max_tokens")
    room = (
        wanted if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0 else ROOM
    )
    if not is_priced:
        return _Costs(question, room, 0.0, 0.0)
    price = provider.price(ask.model, TokenUsage(question))
    whole = provider.price(ask.model, TokenUsage(question, room))
    if price is None or whole is None:
        raise StepError(Failure(_no_price(provider.name, ask.model), "refused"))
    return _Costs(question, room, price, (whole - price) / room)


def _no_price(provider: str, model: str | None) -> str:
    named = "its default model" if model is None else f"the model '{model}'"
    return (
        f"a limit of spend cannot be kept: the provider '{provider}' has no price for {named}; "
        f"write one under 'prices' in config/providers/{provider}.yaml, by the name that the "
        "server knows, "
        "or limit tokens"
    )


def usage_amounts(usage: TokenUsage) -> dict[str, float]:
    """What a question has used up."""
    return {"turns": usage.calls, "tokens": usage.tokens, "spend": usage.cost or 0.0}
