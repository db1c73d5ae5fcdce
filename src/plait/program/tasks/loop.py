"""`loop` of an ensemble: repeat tasks until a condition holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.outcome import (
    Failed,
    Failure,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
    call_author_function,
)
from plait.engine.paths import loop_name, round_name, task_name
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Composite, Policy, Step
from plait.program.step_list import join_fingerprints
from plait.program.tasks.function_fingerprints import function_fingerprint
from plait.program.tasks.model import Loop, Task, TaskOutput
from plait.program.tasks.task import (
    TaskStep,
    make_task_output,
)
from plait.program.tasks.units import (
    Outputs,
    last_value,
    make_task_step,
    task_record_or_skip,
    why_skipped,
    with_task_outputs,
)

if TYPE_CHECKING:
    from plait.program.tasks.units import FilledEnsemble
    from plait.scope.expressions import Expression


@dataclass(frozen=True, slots=True)
class LoopStep(Composite):
    """Rounds, until the condition holds or the maximum is reached."""

    ensemble: FilledEnsemble
    loop: Loop
    outputs: Mapping[str, TaskOutput]
    kind: str = "loop"
    policy: Policy = DEFAULT_POLICY

    @property
    def title(self) -> str:
        return self.loop.name or self.ensemble.spec.task_id(self.loop.tasks[-1])

    @property
    def name(self) -> str:
        return loop_name(self.title)

    @property
    def fingerprint(self) -> str:
        return join_fingerprints([*(step.fingerprint for step in self.children), *self._rules()])

    def _rules(self) -> list[str]:
        loop = self.loop
        if callable(loop.until):
            until = function_fingerprint(loop.until)
        else:
            until = "" if loop.until is None else compile_until(loop.until).source.text
        return [until, str(loop.max_iterations), loop.on_max, str(loop.feedback)]

    @property
    def children(self) -> Sequence[Step]:
        return [
            LoopRound(self, number, {}, None) for number in range(1, self.loop.max_iterations + 1)
        ]

    retry_scope = "inner"

    def run(self, ctx: StepContext) -> Json:
        last: Mapping[str, Json] = {}
        feedback: str | None = None
        is_dry_run = ctx.run.is_dry_run
        for number in range(1, (1 if is_dry_run else self.loop.max_iterations) + 1):
            step = LoopRound(self, number, self.outputs, feedback)
            outcome, ctx = ctx.perform_next(step, number - 1)
            if isinstance(outcome, Failed):
                raise StepError(with_task_outputs(outcome.failure, last))
            last = outcome.value if isinstance(outcome, Succeeded) else {}
            if last.get("met") or is_dry_run:
                return {**last, "iterations": number}
            output = last_value(last).get("raw")
            feedback = str(output) if self.loop.feedback and output is not None else None
        return self._after_last_round(last)

    def _after_last_round(self, last: Mapping[str, Json]) -> Json:
        most = self.loop.max_iterations
        # Without a condition, all rounds are wanted.
        if self.loop.until is None or self.loop.on_max == "return_last":
            return {**last, "iterations": most}
        if self.loop.on_max == "fail":
            message = f"loop '{self.title}' has not ended after {most} rounds"
            raise StepError(
                Failure(message, "limit", output={"tasks": last.get("tasks"), "iterations": most})
            )
        return {**last, "iterations": most, "reached_max": True}


@dataclass(frozen=True, slots=True)
class LoopRound(Composite):
    """One round: the tasks of a loop, once."""

    of: LoopStep
    number: int
    outputs: Mapping[str, TaskOutput]
    feedback: str | None
    kind: str = "round"
    policy: Policy = DEFAULT_POLICY

    @property
    def name(self) -> str:
        return round_name(self.number)

    @property
    def title(self) -> str:
        return f"round {self.number}"

    @property
    def fingerprint(self) -> str:
        return join_fingerprints(step.fingerprint for step in self.children)

    @property
    def children(self) -> Sequence[Step]:
        return [self._step(order, {}) for order in range(len(self.of.loop.tasks))]

    retry_scope = "inner"

    def run(self, ctx: StepContext) -> Json:
        made: Outputs = {}
        values: dict[str, Json] = {}
        spec = self.of.ensemble.spec
        for order, task in enumerate(self.of.loop.tasks):
            needed = [made[one] for need in task.context if (one := spec.task_id(need)) in made]
            skipped = next((one.id for one in needed if one.status == "skipped"), None)
            outcome: Outcome
            if skipped is None:
                outcome, ctx = ctx.perform_next(self._step(order, {**self.outputs, **made}), order)
            else:
                outcome = Skipped(why_skipped(skipped, "skipped"))
            if isinstance(outcome, Failed):
                raise StepError(with_task_outputs(outcome.failure, {"tasks": values}))
            key = spec.task_id(task)
            made[key] = make_task_output(key, self._fill_task(task), outcome)
            values[key] = {**task_record_or_skip(outcome), "iteration": self.number}
        return {"tasks": values, "met": self._is_met(list(made.values())[-1], ctx)}

    def _is_met(self, last: TaskOutput, ctx: StepContext) -> bool:
        until = self.of.loop.until
        if until is None or ctx.run.is_dry_run or last.status == "skipped":
            return False
        if callable(until):
            ended = call_author_function(
                lambda: until(replace(last, iteration=self.number)), "until", ctx.run.secrets.mask
            )
            return bool(ended)
        facts = {"output": last.raw, "data": last.data, "iteration": self.number}
        return compile_until(until).holds(facts)

    def _fill_task(self, task: Task) -> Task:
        return replace(self.of.ensemble.filled.task(task), iteration=self.number)

    def _step(self, order: int, outputs: Mapping[str, TaskOutput]) -> TaskStep:
        task = self.of.loop.tasks[order]
        filled = self._fill_task(task)
        if order == 0:
            filled = replace(filled, feedback=self.feedback)
        ensemble = self.of.ensemble
        return make_task_step(
            ensemble, task, outputs, task_name(ensemble.spec.task_id(task)), filled=filled
        )


def compile_until(until: Json) -> Expression:
    """Compile a condition given as data or text; raises InputError for anything else."""
    from plait.scope.expressions import Expression, parse_when

    return until if isinstance(until, Expression) else parse_when(until)
