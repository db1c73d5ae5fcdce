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

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from plait.agents.messages import NO_PROVIDER, sum_usage
from plait.agents.ports import Models
from plait.core.errors import InputError, Problem
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Secret
from plait.engine.backend import WorkItem
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
    Succeeded,
    require_success,
)
from plait.engine.perform import StepContext, act, join_contexts
from plait.engine.replay import changed_steps_error
from plait.engine.step import DEFAULT_POLICY, Composite, FunctionAction, Policy, Step
from plait.program.step_list import join_fingerprints
from plait.program.tasks.loop import LoopUnit
from plait.program.tasks.manager import DELEGATION, ManagerStep, manager_step
from plait.program.tasks.map import MapUnit
from plait.program.tasks.model import EnsembleSpec, Task, TaskOutput
from plait.program.tasks.task import (
    make_task_output,
)
from plait.program.tasks.text import FilledTasks, TaskTemplates
from plait.program.tasks.units import TASKS, Outputs, Unit, make_task_step, why_skipped

if TYPE_CHECKING:
    from plait.agents.messages import Provider


Until: TypeAlias = Callable[[TaskOutput], bool]


@dataclass(frozen=True, slots=True)
class EnsembleProgram(Composite):
    """An ensemble with its inputs."""

    spec: EnsembleSpec
    texts: TaskTemplates = field(repr=False)
    filled: FilledTasks = field(repr=False)
    limits: Limits = NO_LIMITS
    hooks: tuple[Hook, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def children(self) -> Sequence[Step]:
        return (TaskGraph(self),)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return ((TASKS, len(make_units(self))),)

    @property
    def map(self) -> None:
        return None

    def run(self, ctx: StepContext) -> Json:
        """Return `{output, tasks, usage}`: the output of the last task, and the record of each.

        A StepError has the same in its output, as far as the run came.
        """
        run = ctx.run
        # The caller of a subflow does not know which of its inputs are secret.
        run.secrets.add(
            value.reveal() for value in self.filled.inputs.values() if isinstance(value, Secret)
        )
        with run.budgets.scope(
            ctx.path, self.limits, f"ensemble '{self.name}'", goes_on=ctx.can_replay
        ) as budget:
            budget.require("depth")
            return require_success(ctx.perform(TaskGraph(self)))


def compile_ensemble(
    spec: EnsembleSpec,
    texts: TaskTemplates,
    inputs: Mapping[str, Json],
    *,
    limits: Limits = NO_LIMITS,
    hooks: tuple[Hook, ...] = (),
    providers: Mapping[int, Provider] | None = None,
) -> EnsembleProgram:
    """Fill all texts; raises PromptTemplateError with everything that is missing."""
    return EnsembleProgram(spec, texts, texts.fill_all(inputs, providers), limits, hooks)


@dataclass(frozen=True, slots=True)
class TaskGraph(Composite):
    """All units of an ensemble as one step."""

    program: EnsembleProgram
    name: str = TASKS
    kind: str = "ensemble"
    policy: Policy = DEFAULT_POLICY

    @property
    def title(self) -> str:
        return self.program.name

    @property
    def fingerprint(self) -> str:
        return join_fingerprints(step.fingerprint for step in self.children)

    @property
    def children(self) -> Sequence[Step]:
        return [unit.step({}) for unit in make_units(self.program)]

    def run(self, ctx: StepContext) -> Json:
        act(FunctionAction(partial(_require_providers, self.program.spec)), ctx)
        if not (ctx.run.replay.is_first_run or ctx.run.replay.accept_changes):
            _require_known_units({step.name for step in self.children}, ctx)
        return _TaskRun(self.program, ctx).run()


def _require_known_units(names: set[str], ctx: StepContext) -> None:
    """Raise an error if a completed unit no longer exists: under another name it would run again."""
    done = [
        known
        for known in ctx.run.journal.steps_in(ctx.path)
        if isinstance(known.outcome, Succeeded)
    ]
    lost = [
        known
        for known in done
        if (name := known.path.rpartition("/")[2]) not in names and _is_unit(name)
    ]
    if lost:
        raise changed_steps_error((known.path, known.title) for known in lost)


def _is_unit(name: str) -> bool:
    return name.partition(":")[0] in ("task", "loop", "map", "manager")


# ── units ────────────────────────────────────────────────────────────────


def make_units(program: EnsembleProgram) -> list[Unit]:
    spec = program.spec
    if spec.strategy == "hierarchical":
        return [_ManagerUnit(program)]
    grouped: dict[int, Unit] = {}
    for loop in spec.loops:
        grouped |= dict.fromkeys(map(id, loop.tasks), LoopUnit(program, loop))
    for one in spec.maps:
        both = [one.task] if one.reduce is None else [one.task, one.reduce]
        grouped |= dict.fromkeys(map(id, both), MapUnit(program, one))
    found: dict[int, Unit] = {}
    for task in spec.tasks:
        unit = grouped.get(id(task)) or _TaskUnit(program, task)
        found.setdefault(id(unit), unit)
    return list(found.values())


@dataclass(frozen=True, slots=True, eq=False)
class _TaskUnit:
    program: EnsembleProgram
    task: Task

    @property
    def tasks(self) -> Sequence[Task]:
        return (self.task,)

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:
        return make_task_step(
            self.program, self.task, outputs, f"task:{self.program.spec.task_id(self.task)}"
        )

    def outputs(self, outcome: Outcome) -> Outputs:
        task = self.program.filled.task(self.task)
        made = make_task_output(self.program.spec.task_id(self.task), task, outcome)
        return {made.id: made}


# ── a manager ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class _ManagerUnit:
    program: EnsembleProgram

    @property
    def tasks(self) -> Sequence[Task]:
        return ()

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:  # noqa: ARG002 - a manager needs nothing
        return self._step()

    def _step(self) -> ManagerStep:
        program = self.program
        tasks = [program.filled.task(task) for task in program.spec.tasks]
        manager = program.spec.manager
        agent = None if manager is None else program.filled.agents[id(manager)]
        return manager_step(program.spec, tasks, agent)

    def outputs(self, outcome: Outcome) -> Outputs:
        return {one.id: one for one in self._step().outputs(outcome)}


# ── running the units ────────────────────────────────────────────────────


class _TaskRun:
    """One run of the units: which are done, which have failed, which can start."""

    def __init__(self, program: EnsembleProgram, ctx: StepContext) -> None:
        self.spec = program.spec
        self.ctx = ctx
        self.units = make_units(program)
        self.outputs: Outputs = {}
        self.failures: list[tuple[Unit, Failure]] = []
        self.skipped: dict[str, str] = {}
        self._unit_orders = {
            id(task): order for order, unit in enumerate(self.units) for task in unit.tasks
        }
        self._needed_tasks = [self._unit_dependencies(order) for order in range(len(self.units))]
        self._needed_units = [
            frozenset(self._unit_orders[id(one)] for one in needed) for needed in self._needed_tasks
        ]
        self._state: dict[int, str] = {}
        """By order of a unit: begun, done, failed, skipped."""
        self._contexts_after: dict[int, StepContext] = {}
        """By order of an ended unit: the context of the units that need it."""
        self._changed = threading.Condition()
        self._is_broken = False

    def run(self) -> Json:
        parallel = self.spec.max_parallel if self.spec.strategy == "parallel" else 1
        parallel = max(1, min(parallel, len(self.units)))
        try:
            self.ctx.run.backend.run(
                self._ready(), self._perform, self._finish_unit, parallel=parallel
            )
        except Aborted as aborted:
            aborted.failure = replace(aborted.failure, output=self._value())
            raise
        self.ctx.run.stop.require_unset()
        value = self._value()
        if self.failures:
            raise StepError(self._failure(value))
        return value

    def _unit_dependencies(self, order: int) -> list[Task]:
        """The tasks of other units that a unit needs."""
        needs = [one for task in self.units[order].tasks for one in self.spec.needs(task)]
        return [one for one in needs if self._unit_orders[id(one)] != order]

    # ── which unit can start ─────────────────────────────────────────────

    def _ready(self) -> Iterator[WorkItem]:
        while True:
            with self._changed:
                self._skip_blocked()
                order = self._next()
                while order is None and self._is_waiting():
                    self._changed.wait()
                    self._skip_blocked()
                    order = self._next()
                if order is None:
                    return
                self._state[order] = "begun"
            yield WorkItem(order, str(order), None)

    def _next(self) -> int | None:
        """The first unit whose needs are all done."""
        if self.ctx.run.stop.is_set() or self._is_broken:
            return None
        if self.failures and self.spec.on_error == "fail_fast":
            return None
        for order in range(len(self.units)):
            if order not in self._state and all(
                self._state.get(one) == "done" for one in self._needed_units[order]
            ):
                return order
        return None

    def _is_waiting(self) -> bool:
        return not self._is_broken and "begun" in self._state.values()

    def _skip_blocked(self) -> None:
        """Skip units that need a skipped or failed one: they can never start."""
        while (found := next(self._blocked_units(), None)) is not None:
            order, why = found
            self._state[order] = "skipped"
            for task in self.units[order].tasks:
                self.skipped[self.spec.task_id(task)] = why
            self.ctx.run.events.note(self.ctx.path, f"'{self._unit_id(order)}' is skipped: {why}")

    def _blocked_units(self) -> Iterator[tuple[int, str]]:
        for order in range(len(self.units)):
            for task in self._needed_tasks[order] if order not in self._state else ():
                ended = self._block_reason(task)
                if ended is not None:
                    yield order, why_skipped(self.spec.task_id(task), ended)

    def _block_reason(self, task: Task) -> str | None:
        """How a task ended that blocks others; None: it does not block."""
        state = self._state.get(self._unit_orders[id(task)])
        output = self.outputs.get(self.spec.task_id(task))
        if state == "skipped" or (
            state == "done" and output is not None and output.status == "skipped"
        ):
            return "skipped"
        return "failed" if state == "failed" and self.spec.on_error == "continue_on_error" else None

    def _unit_id(self, order: int) -> str:
        return self.spec.task_id(self.units[order].tasks[-1])

    # ── performing ───────────────────────────────────────────────────────

    def _perform(self, work: WorkItem) -> Outcome:
        order = work.order
        ctx = join_contexts(
            self.ctx,
            [
                self._contexts_after[one]
                for one in self._needed_units[order]
                if one in self._contexts_after
            ],
        )
        try:
            outcome, after = ctx.perform_next(self.units[order].step(dict(self.outputs)), order)
        except BaseException as error:
            if isinstance(error, LimitExceeded):  # keep the partial outputs
                self.outputs |= self.units[order].outputs(Failed(error.failure))
            with self._changed:  # wake the thread that waits for this unit
                self._is_broken = True
                self._changed.notify_all()
            raise
        self._contexts_after[order] = after
        return outcome

    def _finish_unit(self, work: WorkItem, outcome: Outcome) -> None:
        unit = self.units[work.order]
        with self._changed:
            self.outputs |= unit.outputs(outcome)
            if isinstance(outcome, Failed):
                self.failures.append((unit, outcome.failure))
            self._state[work.order] = _STATES[type(outcome)]
            self._changed.notify_all()

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


_STATES: Final[dict[type, str]] = {Succeeded: "done", Failed: "failed", Skipped: "skipped"}


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
    """Yield what needs a model, and the provider that it names."""
    for task in spec.tasks:
        if task.is_done_by_model:
            yield (
                f"task '{spec.task_id(task)}'",
                None if task.agent is None else task.agent.provider,
            )
    if spec.strategy == "hierarchical":
        yield "the manager", None if spec.manager is None else spec.manager.provider
