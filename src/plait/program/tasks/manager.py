"""A manager: an agent that delegates the tasks of an ensemble to other agents with a tool.

    delegate(worker, task)

Each delegation is a tool call of the manager's session, and the work is recorded below it. Whether
it is allowed depends only on the recorded calls before it. So a resumed run and parallel calls come
to the same decision. The manager gets a refusal as text.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Condition

from plait.agents.messages import ModelResponse, ToolOffer, ToolRequest
from plait.agents.permissions import Permissions
from plait.agents.session import AgentScope, AgentScopes, AgentSession, AgentStep
from plait.agents.tool_access import schema_errors
from plait.agents.turns import SessionTool
from plait.core.digests import json_digest
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.journal import StepRecord
from plait.engine.limits import POLL_SECONDS
from plait.engine.outcome import (
    DeadlineExceeded,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import (
    MANAGER,
    WORK,
    call_name,
    join_path,
    parent_path,
    split_path,
    turn_name,
)
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Plan, Policy, Step
from plait.program.tasks.model import (
    PLAIN_AGENT,
    PLAIN_MANAGER,
    Agent,
    EnsembleSpec,
    Manager,
    Task,
    TaskOutput,
    to_limits,
)
from plait.program.tasks.task import (
    TaskStep,
    agent_key,
    make_task_output,
    task_provider,
    task_record,
    task_step,
)
from plait.program.tasks.text import system_text

if TYPE_CHECKING:
    from plait.engine.journal import Journal
    from plait.engine.plan_log import PlanLog

DELEGATE: Final = "delegate"
PATIENCE: Final = 60.0
"""Seconds to wait for the hook decision about an earlier delegation."""
DELEGATION: Final = "delegation-"
"""The prefix of the output id of a delegation; its number follows."""
SCHEMA: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {
        "worker": {"type": "string", "description": "the role of the worker"},
        "task": {"type": "string", "description": "everything that the worker needs to know"},
    },
    "required": ["worker", "task"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ManagerPlan(Plan):
    """Shows the prompt; the delegations are unknown."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        log.add(ctx, self.kind, self.shown)
        return {}


@dataclass(frozen=True, slots=True)
class ManagerStep:
    """An agent session with a manager that gets the tasks done."""

    spec: EnsembleSpec
    tasks: tuple[Task, ...]
    """With filled texts."""
    manager: Manager
    workers: Mapping[str, Agent]
    """By filled role, which is how the manager names them."""
    roles: Mapping[str, str]
    """From the role as written, as in `workers` and `required` of a manager, to the filled role."""
    fingerprint: str
    name: str = MANAGER
    kind: str = "agent"
    policy: Policy = DEFAULT_POLICY

    @property
    def title(self) -> str:
        return self.manager.role

    @property
    def children(self) -> Sequence[Step]:
        return ()

    retry_scope = "inner"

    def plan(self, ctx: StepContext) -> ManagerPlan:  # noqa: ARG002 - the protocol's shape
        return ManagerPlan("agent", self._prompt())

    def execute(self, plan: ManagerPlan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        began = time.monotonic()
        try:
            value = AgentSession(self._session_step(_HookDecisions()), ctx).run_to_end()
        except (StepError, LimitExceeded) as error:
            error.failure = self._with_delegations(error.failure, ctx)
            raise
        record = {
            "raw": value["text"],
            "data": value["data"],
            "agent": self.manager.role,
            "usage": value["usage"],
            "model": value["model"],
            "turns": value["turns"],
            "delegations": self._delegations(ctx.run.journal, ctx.path),
            "duration": round(time.monotonic() - began, 6),
        }
        return mask_value(record, ctx.run.secrets.mask)

    def outputs(self, outcome: Outcome) -> list[TaskOutput]:
        """The outputs of the delegations in order, then that of the manager."""
        match outcome:
            case Succeeded(dict() as value) | Failed(Failure(output=dict() as value)):
                made = value.get("delegations") or []
            case _:
                made = []
        works = [
            make_task_output(
                f"{DELEGATION}{number}",
                Task(str(one["task"]), name=str(one["worker"])),
                Succeeded(one),
            )
            for number, one in enumerate(made, 1)
        ]
        plain = Task(None, None, name=self.manager.role)
        return [*works, make_task_output(MANAGER, plain, outcome)]

    # ── the session ──────────────────────────────────────────────────────

    def _session_step(self, decisions: _HookDecisions) -> AgentStep:
        manager = self.manager
        rule = "Delegate work with the tool 'delegate'; then answer with the result of all of it."
        return AgentStep(
            MANAGER,
            manager.role,
            self._prompt(),
            f"{system_text(manager)}\n\n{rule}",
            task_provider(manager, self.spec.provider),
            manager.model or self.spec.model,
            tools=tuple(manager.tools),
            once=tuple(manager.once),
            limits=to_limits(manager.limits),
            options=manager.options,
            own=(SessionTool(self._offer(), partial(self._delegate, decisions), decisions.set),),
            completion_check=self._missing_work,
        )

    def _missing_work(self, ctx: StepContext) -> str | None:
        worked = {one["worker"] for one in self._delegations(ctx.run.journal, ctx.path)}
        missing = [role for role in self.manager.required if self.roles[role] not in worked]
        return (
            f"the manager ended without the work of {', '.join(map(repr, missing))}"
            if missing
            else None
        )

    def _prompt(self) -> str:
        parts = [
            "## Workers\n\n"
            + "\n".join(_describe_worker(one) for one in self._available_workers().values())
        ]
        for number, task in enumerate(self.tasks, 1):
            expected = (
                f"\n\nExpected output: {task.expected_output}" if task.expected_output else ""
            )
            parts.append(f"## Task {number}\n\n{task.description or ''}{expected}")
        return "\n\n".join(parts)

    def _offer(self) -> ToolOffer:
        named = ", ".join(self._available_workers())
        return ToolOffer(
            DELEGATE, f"Have a worker do something. Workers: {named}", SCHEMA, DELEGATE
        )

    def _available_workers(self) -> Mapping[str, Agent]:
        names = {self.roles[role] for role in self.manager.workers} or self.workers.keys()
        return {role: one for role, one in self.workers.items() if role in names}

    # ── a delegation ─────────────────────────────────────────────────────

    def _delegate(
        self, decisions: _HookDecisions, ctx: StepContext, params: Mapping[str, Json]
    ) -> Json:
        top = parent_path(ctx.path)
        refused = self._find_refusal(ctx, decisions)
        if refused is not None:
            raise StepError(Failure(refused, "refused"))
        run = ctx.run
        worker = self.workers[str(params["worker"])]
        scopes = run.shared(AgentScopes)
        above = scopes[top].permissions.within
        # The worker has its own permissions, not those of the manager.
        scopes[ctx.path] = AgentScope(Permissions(tuple(worker.tools), above))
        try:
            value = require_success(ctx.perform(self._work(worker, str(params["task"]))))
        finally:
            del scopes[ctx.path]
        return value.get("raw") if isinstance(value, Mapping) else None

    def _work(self, worker: Agent, description: str) -> TaskStep:
        task = Task(description, name=worker.role, agent=worker)
        return task_step(
            WORK,
            worker.role,
            task,
            (),
            provider=self.spec.provider,
            model=self.spec.model,
            kind="agent",
        )

    def _find_refusal(self, ctx: StepContext, decisions: _HookDecisions) -> str | None:
        """Why the delegation is refused, given those that were requested before it."""
        path, own = split_path(ctx.path)
        accepted: Counter[str] = Counter()
        for call, use in _uses(ctx.run.journal, path):
            worker = use.arguments.get("worker") if isinstance(use.arguments, Mapping) else None
            refused = self._worker_refusal(str(worker), accepted)
            if call == own:
                return refused
            if refused is None and _may_be_made(ctx, join_path(path, call), use, decisions):
                accepted[str(worker)] += 1
        return None

    def _worker_refusal(self, worker: str, accepted: Counter[str]) -> str | None:
        allowed, manager = self._available_workers(), self.manager
        if worker not in allowed:
            guess = closest_name(worker, allowed)
            meant = f"did you mean '{guess}'? " if guess else ""
            return f"you cannot delegate to '{worker}'; {meant}workers: {', '.join(allowed)}"
        if manager.max_delegations is not None and accepted.total() >= manager.max_delegations:
            return f"the limit of {manager.max_delegations} delegations is reached"
        if manager.max_per_worker is not None and accepted[worker] >= manager.max_per_worker:
            return f"the limit of {manager.max_per_worker} delegations to '{worker}' is reached"
        return None

    def _delegations(self, journal: Journal, path: str) -> list[Json]:
        """The records of completed delegations."""
        made: list[Json] = []
        for call, use in _uses(journal, path):
            known = journal.step(join_path(path, call, WORK))
            if known is not None and isinstance(known.outcome, Succeeded):
                assert isinstance(use.arguments, Mapping)
                made.append(
                    {**task_record(known.outcome), **use.arguments, "duration": known.duration}
                )
        return made

    def _with_delegations(self, failure: Failure, ctx: StepContext) -> Failure:
        output = failure.output if isinstance(failure.output, Mapping) else {}
        made = self._delegations(ctx.run.journal, ctx.path)
        return replace(failure, output={**output, "delegations": made})


def _uses(journal: Journal, path: str) -> Iterator[tuple[str, ToolRequest]]:
    """Yield the requested delegations in order, each with the name of its call."""
    number = 1
    while (known := journal.step(join_path(path, turn_name(number)))) is not None:
        uses = (
            ModelResponse.of(known.outcome.value).uses
            if isinstance(known.outcome, Succeeded)
            else ()
        )
        for place, use in enumerate(uses, 1):
            if use.name == DELEGATE:
                yield call_name(number, place), use
        number += 1


def _may_be_made(ctx: StepContext, path: str, use: ToolRequest, decisions: _HookDecisions) -> bool:
    """Whether a delegation counts. One that was refused by its schema or a hook does not."""
    if schema_errors(use.arguments, SCHEMA):
        return False
    journal = ctx.run.journal
    match journal.step(path):
        case StepRecord(outcome=Succeeded({"failed": True, "kind": "refused"})):
            return journal.step(join_path(path, WORK)) is not None
        case None:
            return decisions.of(path, ctx)
    return True


class _HookDecisions:
    """Whether hooks allow delegations; those of one turn are decided at the same time."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._allowed: dict[str, bool] = {}

    def set(self, path: str, is_allowed: bool) -> None:
        with self._changed:
            self._allowed[path] = is_allowed
            self._changed.notify_all()

    def of(self, path: str, ctx: StepContext) -> bool:
        """Wait for the decision; after a timeout the delegation counts as allowed."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while path not in self._allowed and time.monotonic() < end:
                ctx.run.stop.require_unset()
                if ctx.is_expired():
                    raise DeadlineExceeded
                self._changed.wait(POLL_SECONDS)
            return self._allowed.get(path, True)


def _describe_worker(agent: Agent) -> str:
    about = " ".join(part for part in (agent.goal, agent.background) if part)
    return f"- {agent.role}: {about}" if about else f"- {agent.role}"


def manager_step(spec: EnsembleSpec, tasks: Sequence[Task], manager: Agent | None) -> ManagerStep:
    """Make the manager of an ensemble. Its workers are the agents of the tasks."""
    leads = manager if isinstance(manager, Manager) else PLAIN_MANAGER
    written = [(task.agent or PLAIN_AGENT).role for task in spec.tasks]
    agents = [task.agent or PLAIN_AGENT for task in tasks]
    roles = {role: agent.role for role, agent in zip(written, agents, strict=True)}
    _require_unique_roles(roles)
    workers = {agent.role: agent for agent in agents}
    parts: Json = [
        [[task.description, task.expected_output] for task in tasks],
        agent_key(leads, spec.provider, spec.model),
        [agent_key(one, spec.provider, spec.model) for one in workers.values()],
        [leads.max_delegations, leads.max_per_worker, list(leads.workers), list(leads.required)],
    ]
    return ManagerStep(spec, tuple(tasks), leads, workers, roles, json_digest(parts))


def _require_unique_roles(roles: Mapping[str, str]) -> None:
    """Raise InputError if two different roles are equal after filling."""
    seen: dict[str, str] = {}
    for written, filled in roles.items():
        other = seen.setdefault(filled.casefold(), written)
        if other != written:
            what = f"the roles '{other}' and '{written}' are equal after their values are filled in"
            fix = "give one of them another role: the manager could not tell them apart"
            raise InputError(what, fix=fix, code="duplicate-role")
