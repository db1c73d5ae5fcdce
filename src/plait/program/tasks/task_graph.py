"""The program of an ensemble: perform tasks when those in their context are done.

    tasks/task:research                  a task
    tasks/loop:refine/round:2/task:edit  a task in a loop
    tasks/map:summary/item:3             a task of a map; `reduce:1.2` reduces the outputs
    tasks/manager                        a manager; the work of others is below its calls

A unit is a task, a loop or a map. It starts when the units that it needs are done: with
`sequential` one at a time in list order, with `parallel` several at a time. The output of a task is
its recorded value, so a resumed run knows all outputs and repeats only what depends on something
new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from plait.agents.messages import NO_PROVIDER, sum_usage
from plait.agents.ports import Models
from plait.core.errors import InputError, Problem
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.hook_events import Hook
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import (
    Aborted,
    Failed,
    Failure,
    LimitExceeded,
    Outcome,
    Skipped,
    StepError,
)
from plait.engine.parallel import perform_dependent
from plait.engine.paths import TASKS, task_name
from plait.engine.perform import StepContext, act
from plait.engine.step import DEFAULT_POLICY, Composite, FunctionAction, Policy, Step
from plait.program.program import OneStep, Program
from plait.program.step_list import join_fingerprints
from plait.program.tasks.loop import LoopStep
from plait.program.tasks.manager import DELEGATION, manager_step
from plait.program.tasks.map import TaskMap
from plait.program.tasks.model import EnsembleSpec, Task, TaskOutput
from plait.program.tasks.task import (
    make_task_output,
)
from plait.program.tasks.units import (
    FilledEnsemble,
    Outputs,
    Unit,
    make_task_step,
    outputs_from_record,
    why_skipped,
)


def compile_ensemble(
    ensemble: FilledEnsemble, *, limits: Limits = NO_LIMITS, hooks: tuple[Hook, ...] = ()
) -> Program:
    """Compile an ensemble to a program.

    Its value is `{output, tasks, usage}`: the output of the last task, and the record of each. A
    StepError has the same data in its output, as far as the run came.
    """
    tasks = OneStep(TaskGraph(ensemble), len(make_units(ensemble)))
    return Program("ensemble", ensemble.spec.name, tasks, limits, hooks)


@dataclass(frozen=True, slots=True)
class TaskGraph(Composite):
    """All units of an ensemble as one step."""

    ensemble: FilledEnsemble
    name: str = TASKS
    kind: str = "ensemble"
    policy: Policy = DEFAULT_POLICY

    @property
    def title(self) -> str:
        return self.ensemble.spec.name

    @property
    def fingerprint(self) -> str:
        return join_fingerprints(step.fingerprint for step in self.children)

    @property
    def children(self) -> Sequence[Step]:
        return [unit.step({}) for unit in make_units(self.ensemble)]

    def run(self, ctx: StepContext) -> Json:
        act(FunctionAction(partial(_require_providers, self.ensemble.spec)), ctx)
        return _TaskRun(self.ensemble, ctx).run()


# ── units ────────────────────────────────────────────────────────────────


def make_units(ensemble: FilledEnsemble) -> list[Unit]:
    spec = ensemble.spec
    if spec.strategy == "hierarchical":
        return [_manager_unit(ensemble)]
    grouped: dict[int, Unit] = {}

    def group(tasks: Sequence[Task], step: Callable[[Outputs], Step]) -> None:
        unit = Unit(tasks, step, partial(outputs_from_record, ensemble, tasks))
        grouped.update(dict.fromkeys(map(id, tasks), unit))

    for loop in spec.loops:
        group(loop.tasks, partial(LoopStep, ensemble, loop))
    for one in spec.maps:
        both = [one.task] if one.reduce is None else [one.task, one.reduce]
        group(both, partial(TaskMap, ensemble, one))
    found: dict[int, Unit] = {}
    for task in spec.tasks:
        unit = grouped.get(id(task)) or _task_unit(ensemble, task)
        found.setdefault(id(unit), unit)
    return list(found.values())


def _task_unit(ensemble: FilledEnsemble, task: Task) -> Unit:
    id = ensemble.spec.task_id(task)
    return Unit(
        (task,),
        lambda outputs: make_task_step(ensemble, task, outputs, task_name(id)),
        lambda outcome: {id: make_task_output(id, ensemble.filled.task(task), outcome)},
    )


def _manager_unit(ensemble: FilledEnsemble) -> Unit:
    tasks = [ensemble.filled.task(task) for task in ensemble.spec.tasks]
    manager = ensemble.spec.manager
    agent = None if manager is None else ensemble.filled.agents[id(manager)]
    step = manager_step(ensemble.spec, tasks, agent)
    return Unit((), lambda _: step, lambda outcome: {one.id: one for one in step.outputs(outcome)})


# ── running the units ────────────────────────────────────────────────────


class _TaskRun:
    """One run of the units: their outputs, their failures, and those that can never start."""

    def __init__(self, ensemble: FilledEnsemble, ctx: StepContext) -> None:
        self.spec = ensemble.spec
        self.ctx = ctx
        self.units = make_units(ensemble)
        self.outputs: Outputs = {}
        self.failures: list[tuple[Unit, Failure]] = []
        self.skipped: dict[str, str] = {}
        """By id of a task that never starts: the reason."""
        self._blocked: set[int] = set()
        """The orders of the units that never start."""
        orders = {id(task): order for order, unit in enumerate(self.units) for task in unit.tasks}
        needed = [
            [one for task in unit.tasks for one in self.spec.needs(task)] for unit in self.units
        ]
        self._needed_tasks = [
            [self.spec.task_id(one) for one in tasks if orders[id(one)] != order]
            for order, tasks in enumerate(needed)
        ]
        """By order of a unit: the ids of the tasks of other units that it needs."""
        self._needed_units = [
            {orders[id(one)] for one in tasks} - {order} for order, tasks in enumerate(needed)
        ]

    def run(self) -> Json:
        is_strict = self.spec.on_error == "fail_fast"
        try:
            perform_dependent(
                self.ctx,
                len(self.units),
                self._perform,
                self._finish,
                parallel=self.spec.max_parallel if self.spec.strategy == "parallel" else 1,
                needs=lambda at: None if at in self._blocked else self._needed_units[at],
                stops=lambda outcome: is_strict and isinstance(outcome, Failed),
            )
        except Aborted as aborted:
            aborted.failure = replace(aborted.failure, output=self._value())
            raise
        value = self._value()
        if self.failures:
            raise StepError(self._failure(value))
        return value

    def _perform(self, order: int, ctx: StepContext) -> tuple[Outcome, StepContext]:
        unit = self.units[order]
        try:
            return ctx.perform_next(unit.step(dict(self.outputs)), order)
        except LimitExceeded as error:  # keep the partial outputs
            self.outputs |= unit.outputs(Failed(error.failure))
            raise

    def _finish(self, order: int, outcome: Outcome) -> None:
        unit = self.units[order]
        made = unit.outputs(outcome)
        self.outputs |= made
        ids = [self.spec.task_id(task) for task in unit.tasks]
        if isinstance(outcome, Failed):
            self.failures.append((unit, outcome.failure))
            if self.spec.on_error == "continue_on_error":
                self._skip_dependents(dict.fromkeys(ids, "failed"))
        else:
            is_skipped = isinstance(outcome, Skipped)
            self._skip_dependents(
                {
                    id: "skipped"
                    for id in ids
                    if is_skipped or (id in made and made[id].status == "skipped")
                }
            )

    def _skip_dependents(self, lost: dict[str, str]) -> None:
        """Skip the units that need a skipped or failed task, and those that need their tasks."""
        while lost:
            blocked = (
                (order, id)
                for order, needed in enumerate(self._needed_tasks)
                if order not in self._blocked
                for id in needed
                if id in lost
            )
            found = next(blocked, None)
            if found is None:
                return
            order, id = found
            why = why_skipped(id, lost[id])
            ids = [self.spec.task_id(task) for task in self.units[order].tasks]
            self._blocked.add(order)
            self.skipped |= dict.fromkeys(ids, why)
            lost |= dict.fromkeys(ids, "skipped")
            self.ctx.run.events.note(self.ctx.path, f"'{ids[-1]}' is skipped: {why}")

    # ── result ───────────────────────────────────────────────────────────

    def _value(self) -> dict[str, Json]:
        """The value so far, in task order; with a manager in the order of its delegations."""
        ids = [self.spec.task_id(task) for task in self.spec.tasks]
        places = {one: place for place, one in enumerate(ids)}
        ordered = sorted(self.outputs.values(), key=lambda one: places.get(one.id, len(places)))
        done = [one for one in ordered if one.status == "done"]
        return {
            "output": _output_value(done[-1]) if done else None,
            "tasks": {one.id: _public(one) for one in ordered}
            | {one: {"status": "skipped", "why": why} for one, why in self.skipped.items()},
            "usage": sum_usage([one.usage for one in ordered]).record(),
        }

    def _failure(self, value: dict[str, Json]) -> Failure:
        (unit, first), *others = self.failures
        named = f"task '{self.spec.task_id(unit.tasks[-1])}'" if len(unit.tasks) == 1 else ""
        message = f"{named}: {first.message}" if named else first.message
        if others:
            also = ", ".join(repr(self.spec.task_id(one.tasks[-1])) for one, _ in others)
            message = f"{message}\nand {also} failed as well"
        return replace(first, message=message, output=value)


def _output_value(output: TaskOutput) -> Json:
    return output.raw if output.data is None else output.data


def _public(output: TaskOutput) -> dict[str, Json]:
    """The record of a task in the value of the run."""
    return {
        "name": output.name,
        **({"description": output.description} if output.id.startswith(DELEGATION) else {}),
        "raw": output.raw,
        "data": output.data,
        "agent": output.agent,
        "usage": output.usage.record(),
        "duration": output.duration,
        "status": output.status,
        **({"why": output.why} if output.why else {}),
        **({"iteration": output.iteration} if output.iteration > 1 else {}),
        **({"reached_max": True} if output.reached_max else {}),
    }


# ── model providers ──────────────────────────────────────────────────────


def _require_providers(spec: EnsembleSpec, ctx: StepContext) -> None:
    """Raise InputError before the first task if a model provider is missing. Names all missing
    ones.
    """
    models = ctx.run.services.get(Models)
    problems: dict[str, Problem] = {}
    for called, provider in model_users(spec):
        named = spec.provider if provider is None else provider
        if not isinstance(named, str | None) or (named or "") in problems:
            continue
        try:
            if models.provider(named) is None:
                problems[named or ""] = Problem(
                    f"{called} needs a model, and {NO_PROVIDER}", code="no-provider"
                )
        except InputError as error:
            problems[named or ""] = replace(error.problems[0], what=f"{called}: {error.what}")
    if problems:
        raise InputError.together(problems.values())


def model_users(spec: EnsembleSpec) -> Iterator[tuple[str, Json]]:
    """Yield each task, loop or map that needs a model, with the provider that it names."""
    for task in spec.tasks:
        if task.is_done_by_model:
            yield (
                f"task '{spec.task_id(task)}'",
                None if task.agent is None else task.agent.provider,
            )
    if spec.strategy == "hierarchical":
        yield "the manager", None if spec.manager is None else spec.manager.provider
