"""A model with tools, in a loop of recorded turns.

    turn:1          what the model answered: text, or tools that it wants to be called
    turn:1.call:1   what a tool gave, or why there was no call
    turn:2          …

Every question and every call is a performed step, so a run that goes on neither asks nor calls
again what is recorded.  A limit is looked at before each of them.  A tool is called if it was
offered, is permitted, and is given what its schema says; otherwise the model is told why not, and
that is recorded like a result.  What a model or a tool says is a value: it is never a template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from plait.agents.budget import CUT_OFF, TurnBudget
from plait.agents.messages import (
    ASKING,
    NOBODY,
    Message,
    ModelRequest,
    ModelResponse,
    Provider,
    ToolOffer,
    ToolRequest,
    options_fingerprint,
    provider_fingerprint,
    sum_usage,
)
from plait.agents.permissions import Permissions, matches_any
from plait.agents.ports import Models, ToolCatalog
from plait.agents.structured_output import StructuredResult, check_structured, parse_structured
from plait.agents.tool_access import tool_id_for
from plait.agents.turns import ModelTurn, ToolCallTurn, tool_call_title, tool_request_fingerprint
from plait.core.digests import json_digest
from plait.core.errors import TrustError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, json_text
from plait.engine.budgets import limit_error
from plait.engine.hooks import step_names
from plait.engine.limits import NO_LIMITS, Budget, LimitReached, Limits
from plait.engine.outcome import (
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
)
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Plan, Policy, Step

if TYPE_CHECKING:
    from plait.agents.turns import Consent, SessionTool
    from plait.engine.context import RunContext
    from plait.engine.dry_run import PlanLog


MOST_AT_ONCE: Final = 4
"""Calls of one turn that run at the same time."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A step that talks with a model until it has an answer."""

    counts_itself = True
    """Against a limit of steps count the calls of an agent, and not the agent."""
    name: str
    title: str
    prompt: str
    """Filled already: nothing in it is a template any more."""
    system: str = ""
    provider: str | Provider | None = None
    """Its name; or, from Python, somebody who answers."""
    model: str | None = None
    tools: tuple[str, ...] = ()
    """Patterns over the ids of tools that it may call; none: no tools."""
    schema: Mapping[str, Json] | None = None
    """Of the answer."""
    limits: Limits = NO_LIMITS
    options: Mapping[str, Json] = field(default_factory=dict)
    fingerprint: str = ""
    policy: Policy = DEFAULT_POLICY
    max_output_retries: int = 2
    """How often the model is told what is wrong with its answer, before that is a failure."""
    kind: str = "agent"
    once: tuple[str, ...] = ()
    """Patterns of tools that are rather asked about than called twice, after a kill in the middle.
    """
    before: tuple[Message, ...] = ()
    """What was said before the prompt."""
    consent: Consent | None = None
    own: tuple[SessionTool, ...] = ()
    """Tools that nobody else has."""
    completion_check: Callable[[StepContext], str | None] | None = None
    """What is not done yet, when the model thinks that it is at the end."""

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", json_digest(self.fingerprint_data()))

    @property
    def children(self) -> Sequence[Step]:
        return ()

    def fingerprint_data(self) -> Json:
        """What an answer depends on; limits do not belong to it: a run may go on with higher
        ones.
        """
        return [
            provider_fingerprint(self.provider),
            self.model,
            self.system,
            self.prompt,
            list(self.tools),
            None if self.schema is None else dict(self.schema),
            options_fingerprint(self.options),
            [_record(message) for message in self.before],
            *([dict(tool.offer.schema), tool.offer.description] for tool in self.own),
        ]

    retry_scope = "inner"

    def plan(self, ctx: StepContext) -> AgentPlan:  # noqa: ARG002 - the protocol's shape
        return AgentPlan("agent", self.prompt, self)

    def execute(self, plan: AgentPlan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        return AgentSession(self, ctx).to_the_end()

    def tools_in_reach(self, run: RunContext) -> list[str]:
        own = [tool.offer.name for tool in self.own]
        try:
            return [
                *own,
                *(
                    offer.tool_id
                    for offer in run.services.get(ToolCatalog).offers(self.tools, ask_servers=False)
                ),
            ] or ["none"]
        except TrustError:
            return [*own, *self.tools, "which are not trusted here yet"]


@dataclass(frozen=True, slots=True)
class AgentPlan(Plan):
    """Shows what the model would be told, and which tools it would be offered."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        agent: AgentStep = self.data
        if agent.system:
            log.add(ctx, "system", agent.system)
        log.add(ctx, self.kind, self.shown)
        if agent.tools or agent.own:
            log.add(ctx, "tools", ", ".join(agent.tools_in_reach(ctx.run)))
        return {}


@dataclass(frozen=True, slots=True)
class AgentScope:
    """What an agent may do, for the agents inside it."""

    permissions: Permissions


class AgentScopes(dict[str, AgentScope]):
    """By path: the agents that run; shared by all steps of a run."""


class AgentSession:
    """One conversation while it goes on."""

    def __init__(self, said: AgentStep, ctx: StepContext) -> None:
        run = ctx.run
        above = _agency_above(run, ctx.path)
        self.said = said
        self.ctx = ctx
        self.run = run
        self.permissions = Permissions(said.tools, None if above is None else above.permissions)
        self.budget = Budget()
        self.messages: list[Message] = [
            *said.before,
            Message("user", run.secrets.mask(said.prompt)),
        ]
        self.answers: list[ModelResponse] = []
        self._performed = 0
        self._bad_answers = 0

    def to_the_end(self) -> dict[str, Json]:
        path, limits = self.ctx.path, self.said.limits
        goes_on = self.ctx.can_replay
        with self.run.budgets.scope(
            path, limits, f"'{self.said.title}'", goes_on=goes_on
        ) as self.budget:
            scopes = self.run.shared(AgentScopes)
            scopes[path] = AgentScope(self.permissions)
            try:
                self._require_depth()
                return self._run_turns()
            except LimitExceeded as end:
                end.failure = replace(end.failure, output=self.record(end.reached.code))
                raise
            finally:
                del scopes[path]

    def so_far(self) -> list[Message]:
        """What was said, with a result for every call, also of those that were cut off: models want
        one.
        """
        answers = [at for at, one in enumerate(self.messages) if one.role == "assistant"]
        last = answers[-1] if answers else len(self.messages)
        heard = {one.answers for one in self.messages[last + 1 :]}
        uses = [use for one in self.messages[last : last + 1] for use in one.uses]
        missing = [self._result(at, use) for at, use in enumerate(uses, 1) if use.id not in heard]
        return [*self.messages, *missing]

    def _result(self, number: int, use: ToolRequest) -> Message:
        """Of a call of the last answer, if there is one."""
        known = self.run.journal.step(f"{self.ctx.path}/turn:{len(self.answers)}.call:{number}")
        if known is not None:
            return _answer_to(use, known.outcome)
        return Message("tool", "it was ended before it had a result", answers=use.id, failed=True)

    def record(self, ended: str = "end") -> dict[str, Json]:
        """What has come of it until now."""
        last = self.answers[-1] if self.answers else ModelResponse()
        usage = sum_usage([answer.usage for answer in self.answers])
        return {
            "output": last.text if self.said.schema is None else last.data,
            "text": last.text,
            "data": last.data,
            "usage": usage.record(),
            "turns": len(self.answers),
            "model": last.model,
            "ended": ended,
        }

    # ── turns ────────────────────────────────────────────────────────────

    def _run_turns(self) -> dict[str, Json]:
        provider = self._provider()
        offers = self._offers()
        while True:
            answer = self._perform_turn(provider, offers)
            self.messages.append(answer.message())
            if answer.uses:
                self._call(answer.uses, offers)
            elif (found := self._parse_response(answer)).fits:
                self.answers[-1] = replace(answer, data=found.data)
                return self.record()
            else:
                self._send_back(found.wrong)

    def _provider(self) -> Provider:
        named = self.said.provider
        provider = (
            self.run.services.get(Models).provider(named)
            if isinstance(named, str | None)
            else named
        )
        if provider is None:
            raise StepError(Failure(NOBODY, "refused"))
        return provider

    def _offers(self) -> tuple[ToolOffer, ...]:
        own = {tool.offer.name: tool.offer for tool in self.said.own}
        others = self._tool_offers()
        for name in own.keys() & {offer.name for offer in others}:
            tool_id, whose = tool_id_for(name, others), self.said.title
            self.run.events.note(
                self.ctx.path,
                f"the tool '{tool_id}' is not offered: '{whose}' has one of that name",
            )
        return (*own.values(), *(offer for offer in others if offer.name not in own))

    def _tool_offers(self) -> tuple[ToolOffer, ...]:
        if not self.said.tools and self.said.consent is None:
            return ()
        found = self.run.services.get(ToolCatalog).offers(self.said.tools)
        if self.said.consent is None:
            return tuple(offer for offer in found if self.permissions.allow(offer.tool_id))
        return (*found, *_others(self.run, found))

    def _perform_turn(self, provider: Provider, offers: tuple[ToolOffer, ...]) -> ModelResponse:
        number = len(self.answers) + 1
        path = f"{self.ctx.path}/turn:{number}"
        bill = TurnBudget(
            self.budget,
            partial(self.run.budgets.charge, path),
            is_taken=not self._seems_known(path),
        )
        # Taken before it is asked: of agents side by side no two have the last question.
        if bill.is_taken and (reached := self.budget.take(*ASKING, turns=1)) is not None:
            raise self._limit(reached)
        question = ModelTurn(
            name=f"turn:{number}",
            title=f"turn {number}",
            fingerprint=json_digest(
                [
                    provider.name,
                    provider.fingerprint,
                    self._offer_data(offers),
                    self.said.fingerprint_data(),
                ]
            ),
            ask=ModelRequest(
                tuple(self.messages),
                self.run.secrets.mask(self.said.system),
                self.said.model,
                offers,
                self.said.schema,
                self.said.options,
                schema_retries=0,  # what is wrong is told here, in a turn of its own
            ),
            provider=provider,
            bill=bill,
            timeout=self.budget.available("seconds"),
            context=partial(self._context, number),
            judge=self._useless,
        )
        try:
            outcome = self._perform(question)
        finally:
            bill.give_back()
        if not isinstance(outcome, Succeeded):
            raise self._turn_error(outcome, bill)
        answer = ModelResponse.of(outcome.value)
        self.answers.append(answer)
        if not bill.is_paid:
            self._accept_remembered(answer)
        return answer

    def _accept_remembered(self, answer: ModelResponse) -> None:
        """An earlier life asked, and that is counted; what is of use may have changed since."""
        if (useless := self._useless(answer)) is not None:
            raise StepError(replace(useless, output=self.record(useless.kind)))

    def _seems_known(self, path: str) -> bool:
        """Is there an answer of an earlier life?  Should it not count, a turn is taken later."""
        if self.run.replay.is_first_run or not self.ctx.can_replay:
            return False
        known = self.run.journal.step(path)
        return known is not None and not isinstance(known.outcome, Failed)

    def _offer_data(self, offers: Sequence[ToolOffer]) -> Json:
        return [[offer.tool_id, offer.description, dict(offer.schema)] for offer in offers]

    def _turn_error(self, outcome: Failed | Skipped, bill: TurnBudget) -> StepError | LimitExceeded:
        if isinstance(outcome, Skipped):  # in a life that recorded it so
            said = f"the model was not asked: {outcome.why}"
            return StepError(Failure(said, "refused", output=self.record("skipped")))
        failure = outcome.failure
        output = failure.output if isinstance(failure.output, Mapping) else {}
        if (over := bill.limit_reached(failure, self.ctx)) is not None:
            return self._limit(over)
        if "ending" in output:
            self.answers.append(ModelResponse.of(output))
        raw = output.get("text")
        partial = {**self.record(failure.kind), **({"text": raw} if isinstance(raw, str) else {})}
        return StepError(replace(failure, output=partial))

    # ── answers that are none ────────────────────────────────────────────

    def _useless(self, answer: ModelResponse) -> Failure | None:
        """Why the conversation ends with an answer in vain; a run that goes on asks for another
        one.

        An answer that was cut off is none, and calls that were cut off are not made.
        """
        if answer.ending == "length":
            room = answer.usage.output or self.said.options.get("max_tokens")
            said = f" ({room} tokens)" if room is not None else ""
            fix = "raise options.max_tokens or limits.tokens"
            return Failure(f"{CUT_OFF}{said}: {fix}", "length")
        if answer.ending == "refused":
            return Failure("the model declined to answer", "refused")
        if answer.uses:
            return None
        if not (found := self._parse_response(answer)).fits:
            return self._after_retries(found.wrong)
        lacking = (
            None if self.said.completion_check is None else self.said.completion_check(self.ctx)
        )
        return None if lacking is None else Failure(lacking, "incomplete")

    def _after_retries(self, wrong: Sequence[str]) -> Failure | None:
        """None: the model is told, and tries again."""
        bad = self._bad_answers + 1
        if bad <= self.said.max_output_retries:
            return None
        tries = f"{bad} time{'' if bad == 1 else 's'}"
        return Failure(
            f"the model gave no answer of the schema, {tries}: {'; '.join(wrong)}", "bad_answer"
        )

    def _parse_response(self, answer: ModelResponse) -> StructuredResult:
        """What an answer says, and what of it does not meet the schema."""
        schema = self.said.schema
        if schema is None:
            return StructuredResult(answer.data)
        return (
            parse_structured(answer.text, schema)
            if answer.data is None
            else check_structured(answer.data, schema)
        )

    def _send_back(self, wrong: Sequence[str]) -> None:
        self._bad_answers += 1
        schema = json_text(dict(self.said.schema or {}))
        told = (
            f"Your answer cannot be used: {'; '.join(wrong)}\n"
            f"Answer again, with nothing but JSON of this schema:\n{schema}"
        )
        self.messages.append(Message("user", told))

    # ── calls ────────────────────────────────────────────────────────────

    def _call(self, uses: Sequence[ToolRequest], offers: tuple[ToolOffer, ...]) -> None:
        """Call the tools, several at a time; the model hears of their results in its own order."""
        room, reached = self._take_steps(len(uses))
        calls = [self._use(number, use, offers) for number, use in enumerate(uses[:room], 1)]
        outcomes = self._perform_all(calls)
        self.messages += [
            _answer_to(use, outcome) for use, outcome in zip(uses, outcomes, strict=False)
        ]
        failed = next(
            (outcome.failure for outcome in outcomes if isinstance(outcome, Failed)), None
        )
        if failed is not None:
            raise StepError(replace(failed, output=self.record(failed.kind)))
        if reached is not None:
            raise self._limit(reached)

    def _take_steps(self, wanted: int) -> tuple[int, LimitReached | None]:
        """How many calls may be made, taken before they are made; and the limit, if that is
        fewer.
        """
        for taken in range(wanted):
            path = f"{self.ctx.path}/turn:{len(self.answers)}.call:{taken + 1}"
            if self._seems_known(path):
                continue
            if (reached := self.run.budgets.take_step(path, self.budget)) is not None:
                return taken, reached
        return wanted, None

    def _use(self, number: int, use: ToolRequest, offers: tuple[ToolOffer, ...]) -> ToolCallTurn:
        tool_id = tool_id_for(use.name, offers) or ""
        once = bool(tool_id) and matches_any(self.said.once, tool_id)
        return ToolCallTurn(
            name=f"turn:{len(self.answers)}.call:{number}",
            title=self.run.secrets.mask(tool_call_title(tool_id or use.name, use.arguments)),
            fingerprint=tool_request_fingerprint(use),
            use=use,
            tool_id=tool_id,
            offers=offers,
            permissions=self.permissions,
            consent=self.said.consent,
            policy=replace(DEFAULT_POLICY, at_most_once=True) if once else DEFAULT_POLICY,
            context=partial(self._context, len(self.answers)),
            own=next((tool for tool in self.said.own if tool.offer.tool_id == tool_id), None),
        )

    def _perform_all(self, calls: Sequence[ToolCallTurn]) -> list[Outcome]:
        if len(calls) < 2:
            return [self._perform(call) for call in calls]
        outcomes, self.ctx = self.ctx.perform_many(
            calls, parallel=MOST_AT_ONCE, first=self._performed
        )
        self._performed += len(calls)
        return outcomes

    def _perform(self, step: Step) -> Outcome:
        outcome, self.ctx = self.ctx.perform_next(step, self._performed)
        self._performed += 1
        return outcome

    # ── limits ───────────────────────────────────────────────────────────

    def _require_depth(self) -> None:
        """Depth is no amount that is used up: whoever is called too deep fails, and its caller goes
        on.
        """
        reached = self.budget.reach("depth")
        if reached is None:
            return
        self.run.hooks.limit_reached(self.ctx, reached, self._context(1))
        raise StepError(reached.failure(self.record("depth")))

    def _limit(self, reached: LimitReached) -> LimitExceeded:
        return limit_error(reached, self.ctx, self._context(max(1, len(self.answers))))

    def _context(self, turn: int) -> dict[str, Json]:
        """What hooks know of it."""
        if self.run.hooks.is_empty:
            return {}
        used = self.budget.used()
        return {
            **step_names(self.said, self.ctx.attempt),
            "directive": self.said.title,
            "model": self.said.model or (self.answers[-1].model if self.answers else None),
            "limits": self.said.limits.record(),
            "cost": used,
            "used": used,
            "turn": turn,
        }


# ── a question ───────────────────────────────────────────────────────────


# ── a call ───────────────────────────────────────────────────────────────


def _answer_to(use: ToolRequest, outcome: Outcome) -> Message:
    match outcome:
        case Succeeded(dict() as value):
            return Message(
                "tool", str(value.get("output")), answers=use.id, failed=bool(value.get("failed"))
            )
        case Skipped(why):
            return Message("tool", f"it was not called: {why}", answers=use.id, failed=True)
    return Message("tool", "there is no result", answers=use.id, failed=True)


# ── shared ───────────────────────────────────────────────────────────────


def _record(message: Message) -> Json:
    uses = [use.record() for use in message.uses]
    return [message.role, message.text, uses, message.answers, message.failed]


def _agency_above(run: RunContext, path: str) -> AgentScope | None:
    """That of the nearest agent around a path."""
    scopes = run.shared(AgentScopes)
    while path:
        path = path.rpartition("/")[0]
        if (found := scopes.get(path)) is not None:
            return found
    return None


def _others(run: RunContext, found: Sequence[ToolOffer]) -> Sequence[ToolOffer]:
    """What a person may still permit, as far as it may run at all."""
    known = {offer.tool_id for offer in found}
    try:
        everything = run.services.get(ToolCatalog).offers(("*",), ask_servers=False)
    except TrustError:
        return ()  # of a project that is not trusted only what is permitted is spoken of
    return [offer for offer in everything if offer.tool_id not in known]
