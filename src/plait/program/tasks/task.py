"""One task of an ensemble as a step: a model, a Python function or a tool.

The value is `{raw, data, usage, duration, …}`, masked. Later tasks and resumed runs get this value.
An exception in a function of the author fails the task, not the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from plait.agents.messages import (
    Provider,
    TokenUsage,
    options_fingerprint,
    provider_fingerprint,
)
from plait.agents.session import AgentSession, AgentStep
from plait.core.digests import json_digest
from plait.core.errors import MissingNamesError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, copy_shared, deep_copy, json_text, text
from plait.engine.outcome import Failed, Outcome, Skipped, Succeeded, call_author_function
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Plan, Policy, Retry, Step
from plait.program.actions.tool import call_tool_step, fill_params, require_mapping
from plait.program.tasks.function_fingerprints import function_fingerprint, qualified_name
from plait.program.tasks.model import PLAIN_AGENT, Agent, Task, TaskOutput, to_limits
from plait.program.tasks.text import system_text, task_prompt
from plait.scope import Scope
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.engine.plan_log import PlanLog

UNUSED: Final = TokenUsage(calls=0)
TASK_FACTS: Final = ("description", "expected_output", "feedback", "iteration")
"""The fields of `task` in tool parameters: `${task.description}`."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    name: str
    id: str
    task: Task
    """With filled texts."""
    context: tuple[TaskOutput, ...]
    fingerprint: str
    session: AgentStep | None = None
    params: Template | None = field(default=None, repr=False)
    policy: Policy = DEFAULT_POLICY
    kind: str = "task"

    @property
    def title(self) -> str:
        return self.task.name or self.id

    @property
    def children(self) -> Sequence[Step]:
        return ()

    retry_scope = "inner"

    def plan(self, ctx: StepContext) -> TaskPlan:  # noqa: ARG002 - the protocol's shape
        return TaskPlan("task", self.id, self)

    def execute(self, plan: TaskPlan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        began = time.monotonic()
        value = self._value(ctx)
        record = {
            "agent": "",
            "usage": UNUSED.record(),
            **value,
            "duration": round(_since(began), 6),
        }
        return mask_value(deep_copy(record), ctx.run.secrets.mask)

    def _value(self, ctx: StepContext) -> dict[str, Json]:
        task = self.task
        if self.session is not None:
            return self._run_agent(self.session, ctx)
        if task.handler is not None:
            handler = task.handler
            own, context = _own(task, self.context)
            return _output_record(
                call_author_function(lambda: handler(own, context), "handler", ctx.run.secrets.mask)
            )
        assert task.tool is not None
        return _output_record(
            call_tool_step(ctx, task.tool, self._params(task.tool, ctx)).get("output")
        )

    def _run_agent(self, session: AgentStep, ctx: StepContext) -> dict[str, Json]:
        value = AgentSession(session, ctx).run_to_end()
        return {
            "raw": value["text"],
            "data": value["data"],
            "agent": self._role(),
            "usage": value["usage"],
            "model": value["model"],
            "turns": value["turns"],
        }

    def _role(self) -> str:
        return (self.task.agent or PLAIN_AGENT).role

    def _params(self, tool: str, ctx: StepContext) -> Mapping[str, Json]:
        if self.params is None:
            return {}
        outputs: dict[str, Json] = {
            one.id: {"raw": one.raw, "data": one.data} for one in self.context
        }
        inputs = self.task.inputs
        names: dict[str, Json] = {
            **inputs,
            "inputs": dict(inputs),
            "context": outputs,
            "task": self._facts(),
        }
        # Strict: a tool must not be called with values that its author did not intend.
        return require_mapping(tool, fill_params(ctx, tool, self.params, Scope(names), strict=True))

    def _facts(self) -> dict[str, Json]:
        return {name: getattr(self.task, name) for name in TASK_FACTS}

    def params_in_reach(self, ctx: StepContext) -> str:
        """The parameters of a tool; unfilled if they need values that only a run knows."""
        if self.params is None:
            return ""
        if not any("context" in leaf.source.text for leaf in self.params.leaves()):
            with suppress(MissingNamesError):  # a field of an item that does not exist yet
                return f" {json_text(dict(self._params(str(self.task.tool), ctx)))}"
        return " " + " ".join(leaf.source.text for leaf in self.params.leaves())


@dataclass(frozen=True, slots=True)
class TaskPlan(Plan):
    """Shows what a task would do, and returns a text that stands for its output."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        step: TaskStep = self.data
        task = step.task
        if step.session is not None:
            step.session.plan(ctx).show(ctx, log)
        elif task.handler is not None:
            log.add(ctx, "handler", f"{qualified_name(task.handler)}\n{task.description}".rstrip())
        else:
            called = f"{task.tool}{step.params_in_reach(ctx)}"
            log.add(ctx, "tool", f"{called}\n{task.description}".rstrip())
        gives = f"(what '{step.id}' gives)"
        return {"raw": gives, "data": None, "usage": UNUSED.record(), "duration": 0.0}


def task_step(
    name: str,
    id: str,
    task: Task,
    context: tuple[TaskOutput, ...],
    *,
    context_ids: Sequence[str] = (),
    params: Template | None = None,
    provider: str | Provider | None = None,
    model: str | None = None,
    kind: str | None = None,
) -> TaskStep:
    """Make the step of a task with filled texts."""
    parts: Json = [
        task.description,
        task.expected_output,
        list(context_ids),
        task.tool,
        task.params,
        None if task.output_schema is None else dict(task.output_schema),
        None if task.handler is None else function_fingerprint(task.handler),
    ]
    session = None
    if task.is_done_by_model:
        session = make_agent_step(task, context, provider=provider, model=model, name=name, id=id)
        parts = [parts, agent_key(task.agent or PLAIN_AGENT, provider, model)]
    retry = Retry(attempts=task.attempts) if task.attempts > 1 else DEFAULT_POLICY.retry
    return TaskStep(
        name,
        id,
        task,
        context,
        json_digest(parts),
        session,
        params,
        Policy(retry=retry, timeout=task.timeout)
        if (task.attempts, task.timeout) != (1, None)
        else DEFAULT_POLICY,
        kind or ("task" if session is None else "agent"),
    )


def make_agent_step(
    task: Task,
    context: Sequence[TaskOutput],
    *,
    provider: str | Provider | None,
    model: str | None,
    name: str,
    id: str,
) -> AgentStep:
    agent = task.agent or PLAIN_AGENT
    return AgentStep(
        name,
        task.name or id,
        task_prompt(task, context, task.output_schema),
        system_text(agent),
        task_provider(agent, provider),
        agent.model or model,
        tools=tuple(agent.tools),
        once=tuple(agent.once),
        schema=task.output_schema,
        limits=to_limits(agent.limits),
        options=agent.options,
        max_output_retries=task.max_output_retries,
    )


def task_provider(agent: Agent, default: str | Provider | None) -> str | Provider | None:
    given = agent.provider
    if given is None:
        return default
    assert not callable(given), "a function becomes a provider before an ensemble is put together"
    assert isinstance(given, str) or hasattr(given, "ask")
    return given  # type: ignore[return-value]  # a Provider, as was just seen


def agent_key(agent: Agent, provider: str | Provider | None, model: str | None) -> Json:
    """The data of an agent for a fingerprint."""
    return [
        system_text(agent),
        provider_fingerprint(task_provider(agent, provider)),
        agent.model or model,
        list(agent.tools),
        options_fingerprint(agent.options),
    ]


def _own(task: Task, context: Sequence[TaskOutput]) -> tuple[Task, tuple[TaskOutput, ...]]:
    """Copies for a function of the author, so that it cannot change the values of other tasks."""
    outputs = tuple(replace(one, data=copy_shared(one.data)) for one in context)
    return replace(task, inputs=copy_shared(dict(task.inputs))), outputs


# ── outputs ──────────────────────────────────────────────────────────────


def _output_record(value: Json) -> dict[str, Json]:
    value = deep_copy(value)
    return {"raw": text(value), "data": None if isinstance(value, str) else value}


def make_task_output(id: str, task: Task, outcome: Outcome) -> TaskOutput:
    """The output of a task, for dependent tasks and for people."""
    plain = TaskOutput(id, task.name or id, task.description, task.expected_output, "")
    match outcome:
        case Succeeded():
            value = task_record(outcome)
            return replace(
                plain,
                raw=str(value.get("raw", "")),
                data=value.get("data"),
                agent=str(value.get("agent", "")),
                usage=task_usage(value),
                duration=float(value.get("duration", 0.0)),
                iteration=task.iteration,
            )
        case Failed(failure):
            output = failure.output if isinstance(failure.output, Mapping) else {}
            raw = str(output.get("text") or "")
            return replace(
                plain, raw=raw, usage=task_usage(output), status="failed", why=failure.message
            )
        case Skipped(why):
            return replace(plain, status="skipped", why=why)


def task_record(outcome: Outcome) -> dict[str, Json]:
    """The value of a task; if a hook ignored its failure, the partial value."""
    value = outcome.value if isinstance(outcome, Succeeded) else None
    if not isinstance(value, Mapping):
        return {"raw": "", "data": None, "usage": UNUSED.record(), "duration": 0.0}
    return dict(value) if "raw" in value else {**value, "raw": text(value.get("output"))}


def task_usage(value: Mapping[str, Json]) -> TokenUsage:
    usage = value.get("usage")
    return TokenUsage(**usage) if isinstance(usage, Mapping) else UNUSED


def _since(began: float) -> float:
    return time.monotonic() - began
