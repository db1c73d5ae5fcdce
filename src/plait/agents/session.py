"""Agent sessions: a model with tools, in a loop of recorded turns.

    turn:1          the model response: text, or requests for tool calls
    turn:1.call:1   the result of a tool call, or why the tool was not called
    turn:2          …

Every turn and every tool call is a step, so a resumed run repeats none that is recorded.  Limits
are checked before each of them.  A tool is called if it was offered, is permitted, and its arguments
match its schema; otherwise the model gets the reason as the result.  Text of models and tools is a
value, never a template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from plait.agents.messages import (
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
from plait.agents.ports import ToolCatalog
from plait.agents.structured_output import StructuredResult, check_structured, parse_structured
from plait.agents.tool_access import tool_id_for
from plait.agents.turns import (
    ModelToolCall,
    ModelTurn,
    find_provider,
    is_recorded,
    perform_turn,
    tool_call_title,
    tool_request_fingerprint,
)
from plait.core.digests import json_digest
from plait.core.errors import TrustError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, json_text
from plait.engine.budgets import limit_error
from plait.engine.hook_events import step_names
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
from plait.engine.parallel import perform_many
from plait.engine.paths import call_name, join_path, parent_path
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, FunctionAction, LeafStep, Plan, Policy, Step

if TYPE_CHECKING:
    from plait.agents.turns import Consent, SessionTool
    from plait.engine.context import RunContext
    from plait.engine.plan_log import PlanLog


MOST_AT_ONCE: Final = 4
"""Tool calls of one turn that run at the same time."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A step that is one session with a model."""

    counts_itself = True
    """The tool calls of an agent count against a limit of steps; the agent itself does not."""
    name: str
    title: str
    prompt: str
    """The filled text; it is not a template any more."""
    system: str = ""
    provider: str | Provider | None = None
    """The name of a provider; from Python, also a provider."""
    model: str | None = None
    tools: tuple[str, ...] = ()
    """Patterns for the ids of tools that it may call; empty: no tools."""
    schema: Mapping[str, Json] | None = None
    """The schema of a structured output."""
    limits: Limits = NO_LIMITS
    options: Mapping[str, Json] = field(default_factory=dict)
    fingerprint: str = ""
    policy: Policy = DEFAULT_POLICY
    max_output_retries: int = 2
    """How often the model may correct a response that does not match the schema."""
    kind: str = "agent"
    once: tuple[str, ...] = ()
    """Patterns for tools that are called at most once: a resumed run asks before a second call."""
    before: tuple[Message, ...] = ()
    """The messages before the prompt."""
    consent: Consent | None = None
    own: tuple[SessionTool, ...] = ()
    """Tools that only this session has."""
    completion_check: Callable[[StepContext], str | None] | None = None
    """Returns what is missing when the model ends the session; None: it is complete."""
    keep_messages: Callable[[list[Message]], None] | None = None
    """Gets the messages of the session when it ends, also if it fails or is stopped."""

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", json_digest(self.fingerprint_data()))

    @property
    def children(self) -> Sequence[Step]:
        return ()

    def fingerprint_data(self) -> Json:
        """Return what a response depends on; without limits: a resumed run may have higher ones."""
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
        session = AgentSession(self, ctx)
        try:
            return session.run_to_end()
        finally:
            if self.keep_messages is not None:
                self.keep_messages(session.transcript.history())

    def offered_tool_ids(self, run: RunContext) -> list[str]:
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
    """Shows the prompts and the tools that the model would get."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        agent: AgentStep = self.data
        if agent.system:
            log.add(ctx, "system", agent.system)
        log.add(ctx, self.kind, self.shown)
        if agent.tools or agent.own:
            log.add(ctx, "tools", ", ".join(agent.offered_tool_ids(ctx.run)))
        return {}


@dataclass(frozen=True, slots=True)
class AgentScope:
    """What a running agent may do; it bounds the agents inside it."""

    permissions: Permissions


class AgentScopes(dict[str, AgentScope]):
    """By path: the scopes of running agents; all steps of a run share them."""


class Transcript:
    """The messages and model responses of one session."""

    def __init__(self, agent: AgentStep, ctx: StepContext) -> None:
        self._agent = agent
        self._path = ctx.path
        self._journal = ctx.run.journal
        prompt = Message("user", ctx.run.secrets.mask(agent.prompt))
        self.messages: list[Message] = [*agent.before, prompt]
        self.responses: list[ModelResponse] = []

    def history(self) -> list[Message]:
        """Return the messages, with a result for every tool request: models require one.

        A call that was stopped gets its recorded result, or a message that it has none.
        """
        responses = [at for at, one in enumerate(self.messages) if one.role == "assistant"]
        last = responses[-1] if responses else len(self.messages)
        answered = {one.answers for one in self.messages[last + 1 :]}
        uses = [use for one in self.messages[last : last + 1] for use in one.uses]
        missing = [
            self._recorded_result(number, use)
            for number, use in enumerate(uses, 1)
            if use.id not in answered
        ]
        return [*self.messages, *missing]

    def _recorded_result(self, number: int, use: ToolRequest) -> Message:
        known = self._journal.step(join_path(self._path, call_name(len(self.responses), number)))
        if known is not None:
            return _result_message(use, known.outcome)
        return Message("tool", "it was ended before it had a result", answers=use.id, failed=True)

    def record(self, ended: str = "end") -> dict[str, Json]:
        """Return the result of the session so far, as the step records it."""
        last = self.responses[-1] if self.responses else ModelResponse()
        usage = sum_usage([response.usage for response in self.responses])
        return {
            "output": last.text if self._agent.schema is None else last.data,
            "text": last.text,
            "data": last.data,
            "usage": usage.record(),
            "turns": len(self.responses),
            "model": last.model,
            "ended": ended,
        }


class AgentSession:
    """One session of an agent with a model, while it runs."""

    def __init__(self, agent: AgentStep, ctx: StepContext) -> None:
        run = ctx.run
        above = _scope_around(run, ctx.path)
        self.agent = agent
        self.ctx = ctx
        self.run = run
        self.permissions = Permissions(agent.tools, None if above is None else above.permissions)
        self.budget = Budget()
        self.transcript = Transcript(agent, ctx)
        self._performed = 0
        self._bad_answers = 0

    def run_to_end(self) -> dict[str, Json]:
        path, limits = self.ctx.path, self.agent.limits
        goes_on = self.ctx.can_replay
        with self.run.budgets.scope(
            path, limits, f"'{self.agent.title}'", goes_on=goes_on
        ) as self.budget:
            scopes = self.run.shared(AgentScopes)
            scopes[path] = AgentScope(self.permissions)
            try:
                self._require_depth()
                return self._run_turns()
            except LimitExceeded as end:
                partial_result = self.transcript.record(end.reached.code)
                end.failure = replace(end.failure, output=partial_result)
                raise
            finally:
                del scopes[path]

    # ── turns ────────────────────────────────────────────────────────────

    def _run_turns(self) -> dict[str, Json]:
        provider = find_provider(self.agent.provider, self.run)
        offers = self._offers()
        while True:
            response = self._perform_turn(provider, offers)
            self.transcript.messages.append(response.message())
            if response.uses:
                self._call_tools(response.uses, offers)
            elif (found := self._parse_response(response)).fits:
                self.transcript.responses[-1] = replace(response, data=found.data)
                return self.transcript.record()
            else:
                self._ask_again(found.wrong)

    def _offers(self) -> tuple[ToolOffer, ...]:
        own = {tool.offer.name: tool.offer for tool in self.agent.own}
        others = self._tool_offers()
        for name in own.keys() & {offer.name for offer in others}:
            tool_id, whose = tool_id_for(name, others), self.agent.title
            self.run.events.note(
                self.ctx.path,
                f"the tool '{tool_id}' is not offered: '{whose}' has one of that name",
            )
        return (*own.values(), *(offer for offer in others if offer.name not in own))

    def _tool_offers(self) -> tuple[ToolOffer, ...]:
        if not self.agent.tools and self.agent.consent is None:
            return ()
        found = self.run.services.get(ToolCatalog).offers(self.agent.tools)
        if self.agent.consent is None:
            return tuple(offer for offer in found if self.permissions.allow(offer.tool_id))
        return (*found, *_other_offers(self.run, found))

    def _perform_turn(self, provider: Provider, offers: tuple[ToolOffer, ...]) -> ModelResponse:
        number = len(self.transcript.responses) + 1
        turn = ModelTurn(
            ModelRequest(
                tuple(self.transcript.messages),
                self.run.secrets.mask(self.agent.system),
                self.agent.model,
                offers,
                self.agent.schema,
                self.agent.options,
                schema_retries=0,  # the session itself asks again, in another turn
            ),
            provider,
            partial(self._context, number),
            self._turn_record,
            self._check_response,
        )
        fingerprint = json_digest(
            [
                provider.name,
                provider.fingerprint,
                self._offer_data(offers),
                self.agent.fingerprint_data(),
            ]
        )
        outcome, is_new = perform_turn(
            turn, number, fingerprint, self.ctx, perform=self._perform, limit=self._limit
        )
        if not isinstance(outcome, Succeeded):
            raise self._turn_error(outcome)
        response = ModelResponse.of(outcome.value)
        self.transcript.responses.append(response)
        # The checks may have changed since a replayed response was recorded.
        failure = None if is_new else turn.failure(response)
        if failure is not None:
            raise StepError(replace(failure, output=self.transcript.record(failure.kind)))
        return response

    def _turn_record(self, response: ModelResponse, seconds: float) -> dict[str, Json]:  # noqa: ARG002 - a step has its duration
        """Return the record of a response; that of the first has the prompts and limits, too."""
        if self.transcript.responses:
            return response.record()
        system = "" if self.agent.before else self.agent.system
        asked = {"system": system, "user": self.agent.prompt}
        record = response.record() | {"asked": {name: text for name, text in asked.items() if text}}
        limits = self.agent.limits.record()
        return {**record, "limits": limits} if limits else record

    def _offer_data(self, offers: Sequence[ToolOffer]) -> Json:
        return [[offer.tool_id, offer.description, dict(offer.schema)] for offer in offers]

    def _turn_error(self, outcome: Failed | Skipped) -> StepError:
        if isinstance(outcome, Skipped):
            why = f"the model was not asked: {outcome.why}"
            return StepError(Failure(why, "refused", output=self.transcript.record("skipped")))
        failure = outcome.failure
        output = failure.output if isinstance(failure.output, Mapping) else {}
        if "ending" in output:
            self.transcript.responses.append(ModelResponse.of(output))
        raw = output.get("text")
        partial = {
            **self.transcript.record(failure.kind),
            **({"text": raw} if isinstance(raw, str) else {}),
        }
        return StepError(replace(failure, output=partial))

    # ── responses that do not count ──────────────────────────────────────────────

    def _check_response(self, response: ModelResponse) -> Failure | None:
        """Return why the session fails with a complete response."""
        if response.uses:
            return None
        if not (found := self._parse_response(response)).fits:
            return self._after_retries(found.wrong)
        missing = (
            None if self.agent.completion_check is None else self.agent.completion_check(self.ctx)
        )
        return None if missing is None else Failure(missing, "incomplete")

    def _after_retries(self, wrong: Sequence[str]) -> Failure | None:
        """Return the failure after the last retry; None: the model tries again."""
        bad = self._bad_answers + 1
        if bad <= self.agent.max_output_retries:
            return None
        responses = f"{bad} response{'' if bad == 1 else 's'}"
        return Failure(f"{responses} did not match the schema: {'; '.join(wrong)}", "bad_answer")

    def _parse_response(self, response: ModelResponse) -> StructuredResult:
        """Return the structured output of a response, and its schema errors."""
        schema = self.agent.schema
        if schema is None:
            return StructuredResult(response.data)
        return (
            parse_structured(response.text, schema)
            if response.data is None
            else check_structured(response.data, schema)
        )

    def _ask_again(self, wrong: Sequence[str]) -> None:
        self._bad_answers += 1
        schema = json_text(dict(self.agent.schema or {}))
        request = (
            f"Your answer cannot be used: {'; '.join(wrong)}\n"
            f"Answer again, with nothing but JSON of this schema:\n{schema}"
        )
        self.transcript.messages.append(Message("user", request))

    # ── calls ────────────────────────────────────────────────────────────

    def _call_tools(self, uses: Sequence[ToolRequest], offers: tuple[ToolOffer, ...]) -> None:
        """Call the tools, several at a time; the results keep the order of the requests."""
        room, reached = self._take_steps(len(uses))
        calls = [self._tool_call(number, use, offers) for number, use in enumerate(uses[:room], 1)]
        outcomes = self._perform_all(calls)
        self.transcript.messages += [
            _result_message(use, outcome) for use, outcome in zip(uses, outcomes, strict=False)
        ]
        failed = next(
            (outcome.failure for outcome in outcomes if isinstance(outcome, Failed)), None
        )
        if failed is not None:
            raise StepError(replace(failed, output=self.transcript.record(failed.kind)))
        if reached is not None:
            raise self._limit(reached)

    def _take_steps(self, wanted: int) -> tuple[int, LimitReached | None]:
        """Take a step of the budget for each call; return how many, and the limit if fewer."""
        for taken in range(wanted):
            path = join_path(self.ctx.path, self._call_name(taken + 1))
            if is_recorded(self.ctx, path):
                continue
            if (reached := self.run.budgets.take_step(path, self.budget)) is not None:
                return taken, reached
        return wanted, None

    def _call_name(self, number: int) -> str:
        """Return the name of a call of the last turn."""
        return call_name(len(self.transcript.responses), number)

    def _tool_call(self, number: int, use: ToolRequest, offers: tuple[ToolOffer, ...]) -> LeafStep:
        tool_id = tool_id_for(use.name, offers) or ""
        once = bool(tool_id) and matches_any(self.agent.once, tool_id)
        call = ModelToolCall(
            use,
            tool_id,
            offers,
            self.permissions,
            partial(self._context, len(self.transcript.responses)),
            self.agent.consent,
            next((tool for tool in self.agent.own if tool.offer.tool_id == tool_id), None),
        )
        return LeafStep(
            self._call_name(number),
            "call",
            self.run.secrets.mask_title(tool_call_title(tool_id or use.name, use.arguments)),
            tool_request_fingerprint(use),
            FunctionAction(call.result),
            Policy(at_most_once=True) if once else DEFAULT_POLICY,
        )

    def _perform_all(self, calls: Sequence[Step]) -> list[Outcome]:
        if len(calls) < 2:
            return [self._perform(call) for call in calls]
        outcomes, self.ctx = perform_many(
            self.ctx, calls, parallel=MOST_AT_ONCE, first=self._performed
        )
        self._performed += len(calls)
        return outcomes

    def _perform(self, step: Step) -> Outcome:
        outcome, self.ctx = self.ctx.perform_next(step, self._performed)
        self._performed += 1
        return outcome

    # ── limits ───────────────────────────────────────────────────────────

    def _require_depth(self) -> None:
        """Raise StepError if the session is nested too deeply; the caller's session continues."""
        reached = self.budget.reach("depth")
        if reached is None:
            return
        self.run.hooks.limit_reached(self.ctx, reached, self._context(1))
        raise StepError(reached.failure(self.transcript.record("depth")))

    def _limit(self, reached: LimitReached, output: Json = None) -> LimitExceeded:  # noqa: ARG002 - the whole session is the partial result
        return limit_error(reached, self.ctx, self._context(max(1, len(self.transcript.responses))))

    def _context(self, turn: int) -> dict[str, Json]:
        """Return the hook variables of a turn."""
        if self.run.hooks.is_empty:
            return {}
        used = self.budget.usage()
        return {
            **step_names(self.agent, self.ctx.attempt),
            "directive": self.agent.title,
            "model": self.agent.model
            or (self.transcript.responses[-1].model if self.transcript.responses else None),
            "limits": self.agent.limits.record(),
            "cost": used,
            "used": used,
            "turn": turn,
        }


def _result_message(use: ToolRequest, outcome: Outcome) -> Message:
    match outcome:
        case Succeeded(dict() as value):
            return Message(
                "tool", str(value.get("output")), answers=use.id, failed=bool(value.get("failed"))
            )
        case Skipped(why):
            return Message("tool", f"it was not called: {why}", answers=use.id, failed=True)
    return Message("tool", "there is no result", answers=use.id, failed=True)


def _record(message: Message) -> Json:
    uses = [use.record() for use in message.uses]
    return [message.role, message.text, uses, message.answers, message.failed]


def _scope_around(run: RunContext, path: str) -> AgentScope | None:
    """Return the scope of the nearest agent around a path."""
    scopes = run.shared(AgentScopes)
    while path:
        path = parent_path(path)
        if (found := scopes.get(path)) is not None:
            return found
    return None


def _other_offers(run: RunContext, found: Sequence[ToolOffer]) -> Sequence[ToolOffer]:
    """Return the other tools that may run: the user may permit them when they are called."""
    known = {offer.tool_id for offer in found}
    try:
        everything = run.services.get(ToolCatalog).offers(("*",), ask_servers=False)
    except TrustError:
        return ()  # a project that is not trusted offers only the permitted tools
    return [offer for offer in everything if offer.tool_id not in known]
