"""The budget of one model turn, within the limits around it.

Before the request, the most that it may use is reserved: an estimate of its tokens and the room for
the response, in tokens and in spend.  So parallel requests never exceed a limit together; near a
limit they run one after the other, and the last one gets the room that is left.  The usage counts
as soon as the response is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from plait.agents.messages import ModelRequest, ModelResponse, OnText, Provider, TokenUsage
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import Json, json_text
from plait.engine.limits import Budget, LimitReached, Reservation
from plait.engine.outcome import Failure, Interrupted, StepError
from plait.engine.stop import StopSignal

if TYPE_CHECKING:
    from plait.engine.perform import StepContext


BYTES_OF_A_TOKEN: Final = 3
"""A cautious value: most texts have about four."""
TOKENS_OF_A_MESSAGE: Final = 4
"""The overhead of each message."""


def estimate_request_tokens(request: ModelRequest) -> int:
    """Estimate the tokens of a model request."""
    texts = [request.system, *(message.text for message in request.messages)]
    texts += [json_text(use.arguments) for message in request.messages for use in message.uses]
    texts += [json_text([tool.name, tool.description, tool.schema]) for tool in request.tools]
    if request.schema is not None:
        texts.append(json_text(request.schema))
    return _tokens(texts) + TOKENS_OF_A_MESSAGE * len(request.messages)


def estimate_response_tokens(response: ModelResponse) -> int:
    """Estimate the tokens of a model response, or of the part that arrived."""
    if response.blocks is not None:  # the whole response, with the model's reasoning
        return _tokens([json_text(response.blocks)])
    return _tokens(
        [response.text, *(json_text([use.name, use.arguments]) for use in response.uses)]
    )


def estimate_usage(
    response: ModelResponse, request: ModelRequest, *, broke_off: bool = False
) -> TokenUsage:
    """Return the usage of a response; what the server did not count is estimated.

    If the response broke off, the server has counted only its beginning, if anything.
    """
    usage, estimate = response.usage, estimate_response_tokens(response)
    question = usage.input or estimate_request_tokens(request)
    output = max(usage.output, estimate) if broke_off else usage.output or estimate
    estimated = question + output - usage.tokens
    return (
        replace(usage, input=question, output=output, estimated=estimated) if estimated else usage
    )


def _tokens(texts: Sequence[str]) -> int:
    return -(-sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_OF_A_TOKEN)


ROOM: Final = 32_000
"""The most tokens of a response, if tokens or spend are limited and max_tokens is not set."""
CUT_OFF: Final = "the model had no room left for its answer"
NEARLY_ALL: Final = 0.9
"""The share of the room that counts as all of it: servers count differently."""
MEASURED: Final = ("tokens", "spend")


Charge: TypeAlias = Callable[..., None]
"""Called with the usage, so that the step records it."""


class TurnBudget:
    """The budget of one model turn; its caller reads afterwards what happened to the turn."""

    def __init__(self, budget: Budget, charge: Charge, *, is_taken: bool = True) -> None:
        self.budget = budget
        self._charge = charge
        self.is_taken = is_taken
        """A turn is taken from the budget; if not, `ask` takes one."""
        self.is_counted = False
        """The model was asked, and the turn counts."""
        self.reached: LimitReached | None = None
        """The limit that prevented the request, or cut off the response."""

    def ask(
        self,
        provider: Provider,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None,
    ) -> ModelResponse:
        """Return the response; raise StepError like a provider, or of kind `limit`."""
        self._take_another_turn()
        clock = _Clock(timeout, stop)
        request, reservation = self._limit_request(provider, request, clock)
        used: TokenUsage | None = None
        try:
            response = provider.ask(request, timeout=clock.time_left(), stop=stop, on_text=on_text)
            used = response.usage
        except StepError as error:
            used = failed_usage(error.failure.output)
            raise
        finally:
            self.is_counted = True
            self._settle(reservation, used)
        if reservation.short is not None and _filled_its_room(response, request):
            self.reached = replace(reservation.short.now(), why=CUT_OFF)
        return response

    def release(self) -> None:
        """Give the turn back to the budget if the model was not asked."""
        if self.is_taken and not self.is_counted:
            self.is_taken = False
            self.budget.add(turns=-1)

    def _settle(self, reservation: Reservation, usage: TokenUsage | None) -> None:
        """End the reservation and record the usage; a request without response uses nothing."""
        used = {} if usage is None else usage_amounts(usage)
        reservation.settle(**{**used, "turns": used.get("turns", 0) - 1})
        if usage is not None:
            self._charge(**used, estimated=usage.estimated)

    def limit_reached(self, failure: Failure, ctx: StepContext) -> LimitReached | None:
        """Return the limit that prevented the response; None: there is another reason."""
        is_late = failure.kind == "timeout" and not ctx.is_expired()
        return self.budget.reach("seconds") if is_late else self.reached

    def _take_another_turn(self) -> None:
        """Take a turn for a retried request; raise StepError if none is left."""
        if self.is_taken and not self.is_counted:
            return
        if (reached := self.budget.take("turns", turns=1)) is not None:
            raise self._limit_error(reached)
        self.is_taken = True

    def _limit_request(
        self, provider: Provider, request: ModelRequest, clock: _Clock
    ) -> tuple[ModelRequest, Reservation]:
        """Reserve the room for the response, and return the request with its `max_tokens`."""
        if not self.budget.is_limited(*MEASURED):
            return request, self._reserve({}, {}, clock)
        costs = _costs(provider, request, is_priced=self.budget.is_limited("spend"))
        found = self._reserve(costs.of(costs.room), costs.of(1), clock)
        room = costs.room_for(found.amounts)
        if room == costs.room:
            found.short = None
        return replace(request, options={**request.options, "max_tokens": room}), found

    def _reserve(
        self, most: Mapping[str, float], least: Mapping[str, float], clock: _Clock
    ) -> Reservation:
        found = self.budget.reserve(most, least, clock.require_time)
        if isinstance(found, LimitReached):
            raise self._limit_error(found)
        return found

    def _limit_error(self, reached: LimitReached) -> StepError:
        self.reached = reached
        return StepError(reached.failure())


def _filled_its_room(response: ModelResponse, request: ModelRequest) -> bool:
    """Was the response cut off by its `max_tokens`, and not by a limit of the server?"""
    room, used = request.options.get("max_tokens"), response.usage.output
    is_counted = used and not response.usage.estimated
    return response.ending == "length" and (not is_counted or used >= NEARLY_ALL * float(room or 0))


def failed_usage(output: Json) -> TokenUsage | None:
    """Return the usage of a failed request, if the server charged it."""
    usage = output.get("usage") if isinstance(output, Mapping) else None
    return TokenUsage(**usage) if isinstance(usage, Mapping) else None


# ── helpers, in order of use ─────────────────────────────────────────────


class _Clock:
    """The time for a request, including the wait for other requests."""

    def __init__(self, seconds: float | None, stop: StopSignal) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._stop = stop

    def time_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def require_time(self) -> None:
        if self._stop.is_set():
            raise Interrupted
        if self.time_left() == 0.0:
            why = "other requests hold what is left of a limit, and did not end in time"
            raise StepError(Failure(f"the model was not asked: {why}", "timeout"))


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a request uses with a response of a given length."""

    question: int
    room: int
    """The most tokens of the response."""
    question_price: float
    token_price: float
    """The price of one token of the response."""

    def of(self, response: int) -> dict[str, float]:
        return {
            "tokens": self.question + response,
            "spend": self.question_price + response * self.token_price,
        }

    def room_for(self, amounts: Mapping[str, float]) -> int:
        """Return the most tokens of a response for which these amounts are enough."""
        room = amounts["tokens"] - self.question
        if self.token_price and amounts["spend"] < self.of(self.room)["spend"]:
            room = min(room, (amounts["spend"] - self.question_price) / self.token_price)
        return max(1, int(min(room, self.room)))


def _costs(provider: Provider, request: ModelRequest, *, is_priced: bool) -> _Costs:
    question, wanted = estimate_request_tokens(request), request.options.get("max_tokens")
    room = (
        wanted if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0 else ROOM
    )
    if not is_priced:
        return _Costs(question, room, 0.0, 0.0)
    price = provider.price(request.model, TokenUsage(question))
    whole = provider.price(request.model, TokenUsage(question, room))
    if price is None or whole is None:
        raise StepError(Failure(_no_price(provider.name, request.model), "refused"))
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
    """Return what a turn has used, by the names of limits."""
    return {"turns": usage.calls, "tokens": usage.tokens, "spend": usage.cost or 0.0}
