"""The common parts of tasks, loops and maps of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.agents.messages import TokenUsage
from plait.core.hints import TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.outcome import (
    Failed,
    Failure,
    Outcome,
    Skipped,
    Succeeded,
)
from plait.engine.step import Step
from plait.program.tasks.model import EnsembleSpec, Task, TaskOutput
from plait.program.tasks.task import (
    TaskStep,
    make_task_output,
    task_record,
    task_step,
)
from plait.program.tasks.text import FilledTasks, TaskTemplates

Outputs: TypeAlias = dict[str, TaskOutput]
"""By id, in the order in which they were made."""


@dataclass(frozen=True, slots=True)
class FilledEnsemble:
    """An ensemble with its inputs."""

    spec: EnsembleSpec
    texts: TaskTemplates = field(repr=False)
    filled: FilledTasks = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A task, a loop, a map or a manager: it starts and ends as one step."""

    tasks: Sequence[Task]
    """The tasks; the last one produces the output."""
    step: Callable[[Outputs], Step]
    """Makes its step from the outputs that it needs."""
    outputs: Callable[[Outcome], Outputs]
    """The outputs of its tasks."""


def make_task_step(
    ensemble: FilledEnsemble,
    task: Task,
    outputs: Mapping[str, TaskOutput],
    name: str,
    *,
    filled: Task | None = None,
    kind: str | None = None,
    context: Sequence[TaskOutput] | None = None,
) -> TaskStep:
    spec = ensemble.spec
    ids = [spec.task_id(one) for one in task.context]
    return task_step(
        name,
        spec.task_id(task),
        filled or ensemble.filled.task(task),
        tuple(outputs[one] for one in ids if one in outputs) if context is None else tuple(context),
        context_ids=tuple(ids),
        params=ensemble.texts.params(task),
        provider=spec.provider,
        model=spec.model,
        kind=kind,
    )


def task_record_or_skip(outcome: Outcome) -> dict[str, Json]:
    """The record of a task in a loop or map; a skipped task has a status instead of an output."""
    if isinstance(outcome, Skipped):
        return {"status": "skipped", "why": outcome.why, "usage": TokenUsage(calls=0).record()}
    return task_record(outcome)


def why_skipped(id: str, ended: str) -> str:
    """Why a task is skipped if the one that it needs was `skipped` or has `failed`."""
    return f"'{id}', which it needs, {'was skipped' if ended == 'skipped' else ended}"


def outputs_from_record(
    ensemble: FilledEnsemble, tasks: Sequence[Task], outcome: Outcome
) -> Outputs:
    """The outputs of several tasks from the record of a loop or map."""
    match outcome:
        case Succeeded(dict() as value) | Failed(Failure(output=dict() as value)):
            values = value.get("tasks") or {}
            reached = bool(value.get("reached_max"))
        case _:
            values, reached = {}, False
    made: Outputs = {}
    for task in tasks:
        key = ensemble.spec.task_id(task)
        if key in values:
            one = make_task_output(key, ensemble.filled.task(task), _outcome(values[key]))
            made[key] = replace(
                one, reached_max=reached, iteration=int(values[key].get("iteration", 1))
            )
        elif isinstance(outcome, Skipped):
            made[key] = make_task_output(key, ensemble.filled.task(task), outcome)
    if isinstance(outcome, Failed):
        missing = next((task for task in tasks if ensemble.spec.task_id(task) not in made), None)
        if missing is not None:
            key = ensemble.spec.task_id(missing)
            made[key] = make_task_output(key, ensemble.filled.task(missing), outcome)
    return made


def with_task_outputs(failure: Failure, last: Mapping[str, Json]) -> Failure:
    """Add the outputs of the tasks to a failure inside a loop or map."""
    own = failure.output.get("tasks") if isinstance(failure.output, Mapping) else None
    tasks = {**(last.get("tasks") or {}), **(own or {})}
    usage = failure.output.get("usage") if isinstance(failure.output, Mapping) else None
    return replace(failure, output={"tasks": tasks, **({} if usage is None else {"usage": usage})})


def last_value(value: Mapping[str, Json]) -> Mapping[str, Json]:
    tasks = value.get("tasks") or {}
    return list(tasks.values())[-1] if tasks else {}


def _outcome(value: Mapping[str, Json]) -> Outcome:
    """The outcome of a record from `task_record_or_skip`."""
    return (
        Skipped(str(value.get("why", ""))) if value.get("status") == "skipped" else Succeeded(value)
    )
