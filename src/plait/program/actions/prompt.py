"""The `prompt:` action: ask a language model once; the text of the response is the output.

With hooks, the turn is its own step (`…/turn:1`), like the turns of an agent. If the run stops
after the response, the response is recorded, and resume continues with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from plait.agents.budget import TurnBudget
from plait.agents.messages import (
    NO_PROVIDER,
    TURN_LIMITS,
    Message,
    ModelRequest,
    Provider,
    options_fingerprint,
)
from plait.agents.ports import Models
from plait.agents.session import AgentStep
from plait.agents.turns import TextStream
from plait.core.digests import json_digest
from plait.core.hints import Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.budgets import limit_error
from plait.engine.context import RunContext
from plait.engine.journal import StepRecord
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import (
    Failed,
    Failure,
    LimitExceeded,
    Skip,
    Skipped,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import AGENT, join_path, last_name, parent_path, turn_name
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Composite, Plan, Policy, Step
from plait.engine.unknown import UNKNOWN_RESULT
from plait.template.sinks import render_text
from plait.template.template import Template

ATTEMPT: Final = "attempt"
"""In the record of a turn: the number of the attempt, if it was not the first."""
MODEL: Final = "model"
"""In the record of a turn with hooks: the model that answered."""


@dataclass(frozen=True, slots=True)
class PromptAction:
    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False

    def plan(self, ctx: StepContext) -> Plan:
        mask = ctx.run.secrets.mask
        text = mask(render_text(self.text, ctx.scope, strict=self.strict))
        system = (
            "" if self.system is None else render_text(self.system, ctx.scope, strict=self.strict)
        )
        request = ModelRequest(
            (Message("user", text),), mask(system), self.model, options=self.options
        )
        return Plan("prompt", text, request)

    def execute(self, plan: Plan, ctx: StepContext) -> dict[str, Json]:
        run, request = ctx.run, plan.data
        provider = run.services.get(Models).provider(self.provider)
        if provider is None:
            raise StepError(Failure(NO_PROVIDER, "refused"))
        if run.hooks.is_empty and not _has_recorded_turn(ctx):
            return _ask_model(request, provider, ctx)
        return self._perform_turn(
            PromptTurn(request, provider, ctx.attempt), _without_unparsable_turn(ctx)
        )

    def _perform_turn(self, turn: PromptTurn, ctx: StepContext) -> dict[str, Json]:
        outcome = ctx.perform(turn)
        if isinstance(outcome, Skipped):
            raise Skip(outcome.why)
        value = dict(require_success(outcome))
        value.pop(MODEL, None)
        return value


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """The model turn as its own step, so hooks see it."""

    request: ModelRequest
    provider: Provider
    attempt: int = 1
    """The attempt of the prompt step."""
    name: str = turn_name(1)
    title: str = "turn 1"
    kind: str = "turn"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    @property
    def fingerprint(self) -> str:
        request, provider = self.request, self.provider
        texts = [message.text for message in request.messages]
        return json_digest(
            [
                provider.name,
                provider.fingerprint,
                request.model,
                request.system,
                texts,
                options_fingerprint(request.options),
            ]
        )

    def plan(self, ctx: StepContext) -> Plan:  # noqa: ARG002 - the protocol's shape
        return Plan(self.kind, self.title)

    def execute(self, plan: Plan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        hooks, context = ctx.run.hooks, self._context(ctx)
        hooks.require("turn_started", ctx, context)
        value = _ask_model(self.request, self.provider, ctx)
        if self.attempt > 1:
            value = {**value, ATTEMPT: self.attempt}
        value = {**value, MODEL: value["facts"]["model"]}
        facts = {MODEL: self.request.model or value[MODEL], "result": value}
        hooks.notify_after(ctx, "turn_finished", {**context, **facts})
        return value

    def _context(self, ctx: StepContext) -> dict[str, Json]:
        """The variables of hooks. `step` is the prompt step that the author wrote."""
        name = last_name(parent_path(ctx.path))
        step: Json = {"name": name, "kind": "prompt", "title": name, "attempt": self.attempt}
        return {"step": step, "model": self.request.model, "turn": 1}


def _has_recorded_turn(ctx: StepContext) -> bool:
    """Whether an earlier run attempt recorded a response to a turn with hooks."""
    if ctx.run.replay.is_first_run or not ctx.can_replay:
        return False
    known = ctx.run.journal.step(join_path(ctx.path, turn_name(1)))
    return known is not None and isinstance(known.outcome, Succeeded)


def _without_unparsable_turn(ctx: StepContext) -> StepContext:
    """Do not replay a response that could not be captured: resume asks again."""
    journal = ctx.run.journal
    if (
        ctx.run.replay.is_first_run
        or (recorded := journal.step(join_path(ctx.path, turn_name(1)))) is None
    ):
        return ctx
    match journal.last_result(ctx.path):
        case StepRecord(outcome=Failed(Failure(kind="capture")), number=number) if (
            number > recorded.number
        ):
            return replace(ctx, can_replay=False)
    return ctx


def _ask_model(request: ModelRequest, provider: Provider, ctx: StepContext) -> dict[str, Json]:
    run = ctx.run
    budget = run.budgets.at(ctx.path)
    if (reached := budget.take(*TURN_LIMITS, turns=1)) is not None:
        raise limit_error(reached, ctx)
    turn_budget = TurnBudget(budget, partial(run.budgets.charge, ctx.path))
    began = time.monotonic()
    stream = TextStream(run, ctx.path)
    try:
        timeout = run.budgets.time_left(ctx)
        response = turn_budget.ask(
            provider, request, timeout=timeout, stop=run.stop, on_text=stream.write
        )
    except StepError as error:
        output = error.failure.output if isinstance(error.failure.output, Mapping) else {}
        failure = _failure(error.failure, output, time.monotonic() - began, run)
        raise _turn_error(failure, turn_budget, ctx) from None
    finally:
        turn_budget.release()
    stream.finish()
    if (why := ENDED_EARLY.get(response.ending)) is not None:
        output = {"text": response.text, "model": response.model, "usage": response.usage.record()}
        failure = _failure(Failure(why, response.ending), output, time.monotonic() - began, run)
        raise _turn_error(failure, turn_budget, ctx)
    return _value(
        run, response.text, time.monotonic() - began, response.model, response.usage.record()
    )


def _turn_error(
    failure: Failure, turn_budget: TurnBudget, ctx: StepContext
) -> StepError | LimitExceeded:
    """The error of a turn without a response. If a limit caused it, the usage is kept."""
    reached = turn_budget.limit_reached(failure, ctx)
    if reached is None:
        return StepError(failure)
    end = limit_error(reached, ctx, partial=failure.output)
    end.outcome = Failed(end.failure)
    return end


def _failure(
    failure: Failure, output: Mapping[str, Json], seconds: float, run: RunContext
) -> Failure:
    """The failure with the partial response as its output."""
    text = output.get("text", output.get("said", ""))
    record = _value(run, text, seconds, output.get("model", ""), output.get("usage"))
    why = run.secrets.mask(failure.message)
    return replace(failure, message=why, output={**record, "stderr": why, "exit_code": 1})


def _value(run: RunContext, text: str, seconds: float, model: str, usage: Json) -> dict[str, Json]:
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    return {
        "output": run.secrets.mask(text),
        "stderr": "",
        "exit_code": 0,
        "duration": round(seconds, 6),
        "facts": mask_value({"model": model, "usage": usage, "cost": cost}, run.secrets.mask),
    }


ENDED_EARLY: Final = {
    "length": "the model had no room left for its answer: raise max_tokens in options",
    "refused": "the model declined to answer",
    "tools": "the model called a tool instead of answering, but a prompt has no tools: use an agent",
}


@dataclass(frozen=True, slots=True)
class AgentPromptAction(Composite):
    """The action of a `prompt:` step with tools or a schema: an agent session."""

    title: str
    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    schema: Mapping[str, Json] | None = None
    limits: Limits = NO_LIMITS
    max_output_retries: int = 2
    strict: bool = False
    retry_scope = "inner"

    def run(self, ctx: StepContext) -> dict[str, Json]:
        began = time.monotonic()
        value = require_success(ctx.perform(self._session_step(ctx)))
        if not isinstance(value, dict) or not value:
            return dict(UNKNOWN_RESULT)  # in a dry run
        return {
            "output": value["output"],
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
            "facts": {name: value[name] for name in ("model", "usage", "turns")},
        }

    def _session_step(self, ctx: StepContext) -> AgentStep:
        system = (
            "" if self.system is None else render_text(self.system, ctx.scope, strict=self.strict)
        )
        return AgentStep(
            AGENT,
            self.title,
            render_text(self.text, ctx.scope, strict=self.strict),
            system,
            self.provider,
            self.model,
            self.tools,
            self.schema,
            self.limits,
            self.options,
            once=self.once,
            max_output_retries=self.max_output_retries,
        )
