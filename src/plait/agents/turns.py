"""The common steps of prompts and agent sessions: a model turn, and a tool call that the model
requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from plait.agents.messages import NO_PROVIDER, TURN_LIMITS, ModelResponse, TokenUsage
from plait.agents.ports import Models
from plait.agents.tool_access import format_tool_result, not_offered_message, schema_errors
from plait.agents.turn_budget import CUT_OFF, TurnBudget
from plait.core.digests import json_digest
from plait.core.errors import NO_OUTCOMES, PlaitError, shorten
from plait.core.hints import TYPE_CHECKING
from plait.core.masking import mask_value
from plait.core.records import dataclass, replace
from plait.core.values import Json, json_text
from plait.engine.context import RunContext
from plait.engine.events import ModelText
from plait.engine.outcome import Failed, Failure, Skip, StepError, Succeeded
from plait.engine.paths import join_path, split_call, turn_name
from plait.engine.replay import QUESTION_CODES
from plait.engine.step import FunctionAction, LeafStep

if TYPE_CHECKING:
    from plait.agents.messages import ModelRequest, Provider, ToolOffer, ToolRequest
    from plait.agents.permissions import Permissions
    from plait.core.hints import Final
    from plait.engine.journal import Journal
    from plait.engine.limits import LimitReached
    from plait.engine.outcome import LimitExceeded, Outcome
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


class TextStream:
    """Reports the text of one model response to watchers as it arrives."""

    def __init__(self, run: RunContext, path: str) -> None:
        self._run, self._path = run, path
        self._masked = run.secrets.stream()

    def write(self, text: str) -> None:
        self._send(self._masked.write(text))

    def finish(self) -> None:
        self._send(self._masked.finish())

    def _send(self, text: str) -> None:
        if text:
            self._run.events.notify(ModelText(self._path, text))


TITLE_LENGTH: Final = 100

Consent = Callable[[str, Mapping[str, Json]], bool]
"""Asks the user whether a tool may be called that is not permitted."""


@dataclass(frozen=True, slots=True)
class SessionTool:
    """A tool that only one session has; `call` returns the result, or raises StepError."""

    offer: ToolOffer
    call: Callable[[StepContext, Mapping[str, Json]], Json]
    on_permission: Callable[[str, bool], None] = lambda _path, _is_allowed: None
    """Called before each call with its path, and whether it is allowed."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One request to a model, and how its response is checked and recorded."""

    request: ModelRequest
    provider: Provider
    context: Callable[[], Mapping[str, Json]]
    """Returns the hook variables, with the present usage."""
    record: Callable[[ModelResponse, float], dict[str, Json]]
    """Returns the record of a response that took this many seconds."""
    check: Callable[[ModelResponse], Failure | None] = lambda _: None
    """Returns why a complete response fails the turn; its usage still counts."""
    can_skip: bool = False
    """A hook may skip the turn, and with it the step around it."""

    def ask(self, budget: TurnBudget, ctx: StepContext) -> Json:
        """Return the record of the response; raise StepError if there is none that counts."""
        run = ctx.run
        self._require_allowed(ctx)
        stream = TextStream(run, ctx.path)
        timeout, began = run.budgets.time_left(ctx), time.monotonic()
        try:
            response = budget.ask(
                self.provider, self.request, timeout=timeout, stop=run.stop, on_text=stream.write
            )
        except StepError as error:
            response = _bad_answer(error, run.secrets.mask)
        stream.finish()
        record = self.record(response, time.monotonic() - began)
        record = mask_value({**record, "provider": self.provider.name}, run.secrets.mask)
        failure = self.failure(response)
        facts = {"result": record, "model": self.request.model or response.model}
        run.hooks.notify_after(ctx, "turn_finished", {**self.context(), **facts})
        if failure is not None:
            raise StepError(replace(failure, output=record))
        return record

    def failure(self, response: ModelResponse) -> Failure | None:
        """Return why a response fails the turn; a resumed run asks the model again.

        A response that was cut off does not count, and its tool requests are not made.
        """
        if response.ending == "length":
            room = response.usage.output or self.request.options.get("max_tokens")
            size = f" ({room} tokens)" if room is not None else ""
            fix = "raise options.max_tokens or limits.tokens"
            return Failure(f"{CUT_OFF}{size}: {fix}", "length")
        if response.ending == "refused":
            return Failure("the model declined to answer", "refused")
        return self.check(response)

    def _require_allowed(self, ctx: StepContext) -> None:
        """Raise StepError if a hook prevents the request; a resumed run asks the hook again."""
        try:
            ctx.run.hooks.require("turn_started", ctx, self.context())
        except Skip as skip:
            if self.can_skip:
                raise
            raise StepError(Failure(f"the model was not asked: {skip.why}", "refused")) from None


def _bad_answer(error: StepError, mask: Callable[[str], str]) -> ModelResponse:
    """Return a response that does not match the schema: its usage counts, and it gets a reply."""
    failure = error.failure
    match failure:
        case Failure(kind="bad_answer", output={"text": str(text), "usage": dict(usage), **facts}):
            ending: Json = facts.get("ending", "end")
            return ModelResponse(text, (), TokenUsage(**usage), str(facts.get("model", "")), ending)
    output = mask_value(failure.output, mask)
    raise StepError(replace(failure, message=mask(failure.message), output=output)) from error


def perform_turn(
    turn: ModelTurn,
    number: int,
    fingerprint: str,
    ctx: StepContext,
    *,
    perform: Callable[[Step], Outcome],
    limit: Callable[[LimitReached, Json], LimitExceeded],
) -> tuple[Outcome, bool]:
    """Perform a turn as a step; return its outcome, and whether the model was asked now.

    Raise what `limit` returns if a limit prevents the request or cuts off the response; the usage
    is recorded with the step.
    """
    run, name = ctx.run, turn_name(number)
    path = join_path(ctx.path, name)
    budget = TurnBudget(
        run.budgets.at(ctx.path),
        partial(run.budgets.charge, path),
        is_taken=not is_recorded(ctx, path),
    )
    # Taken before the request: two parallel agents never both get the last turn.
    if budget.is_taken and (reached := budget.budget.take(*TURN_LIMITS, turns=1)) is not None:
        raise limit(reached, None)
    action = FunctionAction(partial(turn.ask, budget))
    try:
        outcome = perform(LeafStep(name, "turn", f"turn {number}", fingerprint, action))
    finally:
        budget.release()
    if isinstance(outcome, Failed):
        over = budget.limit_reached(outcome.failure, ctx)
        if over is not None:
            raise limit(over, outcome.failure.output)
    return outcome, budget.is_counted


def is_recorded(ctx: StepContext, path: str) -> bool:
    """Is there a recorded outcome? If it does not count, the turn or call is made later."""
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return False
    known = ctx.run.journal.step(path)
    return known is not None and not isinstance(known.outcome, Failed)


def find_provider(named: str | Provider | None, run: RunContext) -> Provider:
    provider = run.services.get(Models).provider(named) if isinstance(named, str | None) else named
    if provider is None:
        raise StepError(Failure(NO_PROVIDER, "refused"))
    return provider


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """The call of a tool for a model."""

    use: ToolRequest
    tool_id: str
    """The id of the tool; empty if no such tool was offered."""
    offers: tuple[ToolOffer, ...]
    permissions: Permissions
    context: Callable[[], Mapping[str, Json]]
    """Returns the hook variables, as in `ModelTurn`."""
    consent: Consent | None = None
    own: SessionTool | None = None

    def result(self, ctx: StepContext) -> Json:
        """Return the result for the model: the output of the tool, or why there is none."""
        refused = self._report_refusal(ctx)
        if refused is not None:
            return self._failure_record("refused", refused)
        try:
            value = self._call_tool(ctx)
        except StepError as error:
            if error.failure.kind == "timeout" and ctx.is_expired():
                raise  # an outer step timed out: the tool did not fail
            result = self._failure_with_output(error.failure)
        except NO_OUTCOMES:
            raise
        except PlaitError as error:
            if error.code in QUESTION_CODES or error.code == "cancelled":
                raise
            result = self._failure_record("refused", ctx.run.secrets.mask(str(error)))
        else:
            result = {
                "output": format_tool_result(value.get("output")),
                "failed": False,
                "tool": self.tool_id,
            }
        ctx.run.hooks.notify_after(ctx, "tool_result", {**self._facts(), "result": result})
        return result

    def _call_tool(self, ctx: StepContext) -> Mapping[str, Json]:
        if self.own is not None:
            return {"output": self.own.call(ctx, self._arguments())}
        return ctx.run.call_tool(ctx, self.tool_id, self._arguments())

    def _report_refusal(self, ctx: StepContext) -> str | None:
        is_allowed = False
        try:
            refused = self._find_refusal(ctx)
            is_allowed = refused is None
        finally:
            if self.own is not None:
                self.own.on_permission(ctx.path, is_allowed)
        return refused

    def _find_refusal(self, ctx: StepContext) -> str | None:
        """Return why the tool is not called; None: it may be called."""
        if not self.tool_id:
            return not_offered_message(self.use.name, self.offers)
        if not isinstance(self.use.arguments, Mapping):
            return "the arguments are not a JSON object"
        schema = next(offer.schema for offer in self.offers if offer.tool_id == self.tool_id)
        try:
            wrong = schema_errors(self.use.arguments, schema)
        except ValueError:
            wrong = ["the tool has an invalid schema"]
        if wrong:
            return f"the arguments do not fit: {'; '.join(wrong)}"
        if (
            self.own is None
            and not self.permissions.allow(self.tool_id)
            and not self._has_consent()
        ):
            return f"'{self.tool_id}' may not be called here"
        return self._forbidden(ctx)

    def _forbidden(self, ctx: StepContext) -> str | None:
        """Return why hooks forbid the call; None: they do not."""
        decision = ctx.run.hooks.fire("tool_call", ctx, self._facts())
        if decision is None or decision.verb not in ("skip", "fail", "abort"):
            return None
        if decision.verb == "abort":
            raise decision.abort_error()
        return f"it was not called: {decision.message}"

    def _has_consent(self) -> bool:
        return self.consent is not None and self.consent(self.tool_id, self._arguments())

    def _arguments(self) -> Mapping[str, Json]:
        return self.use.arguments if isinstance(self.use.arguments, Mapping) else {}

    def _facts(self) -> dict[str, Json]:
        return {**self.context(), "tool": self.tool_id, "params": self.use.arguments}

    def _failure_record(self, kind: str, message: str) -> dict[str, Json]:
        text = format_tool_result(f"{kind}: {message}")
        return {"output": text, "failed": True, "tool": self.tool_id or self.use.name, "kind": kind}

    def _failure_with_output(self, failure: Failure) -> dict[str, Json]:
        output = failure.output.get("output") if isinstance(failure.output, Mapping) else None
        printed = f"\n{format_tool_result(output)}" if output not in (None, "", [], {}) else ""
        return self._failure_record(failure.kind, failure.message + printed)


def tool_request_fingerprint(use: ToolRequest) -> str:
    return json_digest([use.name, use.arguments])


def recorded_tool_call(journal: Journal, path: str) -> dict[str, Json] | None:
    """Return an empty result for a tool call that the user marks as done; None: not a tool call."""
    turn, number = split_call(path)
    known = journal.step(turn) if number else None
    if known is None or not isinstance(known.outcome, Succeeded):
        return None
    uses = ModelResponse.of(known.outcome.value).uses
    if number > len(uses):
        return None
    use = uses[number - 1]
    return {"output": "", "failed": False, "tool": use.name}


def tool_call_title(tool: str, arguments: Json) -> str:
    """A call on one line."""
    shown = json_text(arguments) if arguments not in ({}, None) else ""
    return shorten(f"{tool} {shown}".strip(), TITLE_LENGTH)
