"""`map` of an ensemble: one task per item, then reduce the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.agents.messages import TokenUsage, sum_usage
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.outcome import (
    Failed,
    Outcome,
    Skipped,
    StepError,
    Succeeded,
)
from plait.engine.parallel import perform_many
from plait.engine.paths import item_name, reduce_name, task_map_name
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Composite, Policy, Step
from plait.program.item_list import perform_items
from plait.program.step_list import join_fingerprints
from plait.program.tasks.model import MapReduce, Task, TaskOutput
from plait.program.tasks.task import (
    TaskStep,
    make_task_output,
    task_record,
    task_usage,
)
from plait.program.tasks.text import items_from_output
from plait.program.tasks.units import (
    make_task_step,
    task_record_or_skip,
    why_skipped,
    with_task_outputs,
)

if TYPE_CHECKING:
    from plait.program.tasks.units import FilledEnsemble

CHARACTERS_A_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class TaskMap(Composite):
    """A task for each item, several at a time; then their outputs are reduced level by level."""

    ensemble: FilledEnsemble
    map: MapReduce
    outputs: Mapping[str, TaskOutput]
    kind: str = "map"
    policy: Policy = DEFAULT_POLICY

    @property
    def _id(self) -> str:
        return self.ensemble.spec.task_id(self.map.task)

    @property
    def title(self) -> str:
        return self.map.task.name or self._id

    @property
    def name(self) -> str:
        return task_map_name(self._id)

    @property
    def fingerprint(self) -> str:
        one, spec = self.map, self.ensemble.spec
        rules = [str(one.chunk_size)]
        if one.target_tokens is not None:
            rules.append(f"{one.target_tokens}:{one.max_levels}")
        if one.source is not None:
            rules.append(f"{spec.task_id(one.source)}:{one.path}")
        return join_fingerprints([*(step.fingerprint for step in self.children), *rules])

    @property
    def children(self) -> Sequence[Step]:
        reduce = [] if self.map.reduce is None else [self._reduction(reduce_name(1, 1), ())]
        return [*self._items(is_source_done=False), *reduce]

    def _items(self, *, is_source_done: bool) -> list[TaskStep]:
        """The items; until the task that makes them is done, one step that stands for all."""
        ensemble, one = self.ensemble, self.map
        if one.source is None:
            filled = ensemble.filled.items[id(one.task)]
            return [self._item(number, task) for number, task in enumerate(filled)]
        each = self._item("*", ensemble.texts.any_item(one, ensemble.filled))
        if not is_source_done:
            return [each]
        items = items_from_output(one, self.outputs[ensemble.spec.task_id(one.source)])
        # If the items change, their source was repeated, and so is this. So only the written text
        # counts.
        return [
            replace(self._item(number, task), fingerprint=each.fingerprint)
            for number, task in enumerate(ensemble.texts.fill_items(one, ensemble.filled, items))
        ]

    def _item(self, key: int | str, filled: Task) -> TaskStep:
        return make_task_step(
            self.ensemble, self.map.task, self.outputs, item_name(key), filled=filled, kind="item"
        )

    retry_scope = "inner"

    def run(self, ctx: StepContext) -> Json:
        spec = self.ensemble.spec
        steps = self._items(is_source_done=not ctx.run.is_dry_run)
        outcomes, ctx = perform_items(
            ctx,
            steps,
            parallel=spec.max_parallel,
            keeps_going=spec.on_error != "fail_fast",
            on_empty=self.map.on_empty,
            what="the map",
            why="the list is empty",
        )
        made = [task_record(one) for one in outcomes if isinstance(one, Succeeded)]
        skipped = next((one for one in outcomes if isinstance(one, Skipped)), None)
        values: dict[str, Json] = {
            self._id: _together(made) if made or skipped is None else task_record_or_skip(skipped)
        }
        self._require_successes(ctx, outcomes, len(steps), values)
        outputs = [
            replace(
                make_task_output(f"{self._id}-{number}", step.task, one),
                name=f"{self.title} {number + 1}",
            )
            for number, (step, one) in enumerate(zip(steps, outcomes, strict=False))
            if isinstance(one, Succeeded)
        ]
        if self.map.reduce is not None:
            if outputs or skipped is None:
                reduced = self._reduce_outputs(ctx, outputs, values)
            else:
                reduced = task_record_or_skip(Skipped(why_skipped(self._id, "skipped")))
            values[spec.task_id(self.map.reduce)] = reduced
        return {"tasks": values}

    def _require_successes(
        self, ctx: StepContext, outcomes: Sequence[Outcome], total: int, values: dict[str, Json]
    ) -> None:
        failures = [one.failure for one in outcomes if isinstance(one, Failed)]
        if not failures:
            return
        message = (
            f"{len(failures)} of {total} items of task '{self._id}' failed: {failures[0].message}"
        )
        if self.ensemble.spec.on_error == "fail_fast" or len(failures) == total:
            raise StepError(replace(failures[0], message=message, output={"tasks": values}))
        ctx.run.events.note(ctx.path, message)

    def _reduce_outputs(
        self, ctx: StepContext, outputs: Sequence[TaskOutput], values: dict[str, Json]
    ) -> Json:
        """Reduce the outputs until one is left."""
        if not outputs:
            return {"raw": "", "data": None, "usage": TokenUsage(calls=0).record(), "duration": 0.0}
        spec = self.ensemble.spec
        level = 0
        records: list[Mapping[str, Json]] = []
        while True:
            level += 1
            chunks = list(self._chunks(ctx, outputs, level))
            # A single remaining output joins others at the next level.
            wanted = {n for n, chunk in enumerate(chunks) if len(chunk) > 1 or len(chunks) == 1}
            steps = [self._reduction(reduce_name(level, n + 1), chunks[n]) for n in sorted(wanted)]
            outcomes, ctx = perform_many(
                ctx,
                steps,
                parallel=spec.max_parallel,
                stops=lambda outcome: spec.on_error == "fail_fast" and isinstance(outcome, Failed),
            )
            failed = next((one.failure for one in outcomes if isinstance(one, Failed)), None)
            if failed is not None:
                raise StepError(with_task_outputs(failed, {"tasks": values}))
            skipped = next((one for one in outcomes if isinstance(one, Skipped)), None)
            if skipped is not None:  # a result without this part would look complete
                return task_record_or_skip(skipped)
            records += [task_record(one) for one in outcomes]
            if len(chunks) == 1:
                return {**records[-1], **_usage_fields(records)}
            made = [
                make_task_output(one.name, one.task, end)
                for one, end in zip(steps, outcomes, strict=True)
            ]
            outputs = [*made, *(chunk[0] for n, chunk in enumerate(chunks) if n not in wanted)]

    def _chunks(
        self, ctx: StepContext, outputs: Sequence[TaskOutput], level: int
    ) -> Iterator[Sequence[TaskOutput]]:
        """The outputs that are reduced together at this level."""
        one = self.map
        most, budget = one.chunk_size or len(outputs), one.target_tokens
        if budget is not None and level >= one.max_levels:
            if sum(map(output_tokens, outputs)) > budget:
                long = f"still longer than {budget} tokens after {level - 1} levels"
                ctx.run.events.note(
                    ctx.path, f"the output of '{self._id}' is {long}: it is reduced at once"
                )
            most, budget = len(outputs), None
        yield from _split(outputs, most, budget)

    def _reduction(self, name: str, chunk: Sequence[TaskOutput]) -> TaskStep:
        reduce = self.map.reduce
        assert reduce is not None
        spec = self.ensemble.spec
        given = [
            self.outputs[one]
            for task in reduce.context
            if (one := spec.task_id(task)) in self.outputs
        ]
        return make_task_step(self.ensemble, reduce, {}, name, context=[*given, *chunk])


def _split(
    outputs: Sequence[TaskOutput], most: int, budget: int | None
) -> Iterator[list[TaskOutput]]:
    """Split in order, by number and by tokens; a chunk has at least two outputs, however long."""
    chunk: list[TaskOutput] = []
    used = 0
    for output in outputs:
        used += output_tokens(output)
        if len(chunk) == most or (budget is not None and len(chunk) > 1 and used > budget):
            yield chunk
            chunk, used = [], output_tokens(output)
        chunk.append(output)
    yield chunk


def output_tokens(output: TaskOutput) -> int:
    """The tokens as counted by the model; a quarter of the characters if there is no single count."""
    counted = output.usage.output if output.usage.calls == 1 else 0
    return counted or -(-len(output.raw) // CHARACTERS_A_TOKEN)


def _usage_fields(values: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The sum of the usage of several tasks."""
    turns = [value["turns"] for value in values if isinstance(value.get("turns"), int)]
    usage: dict[str, Json] = {"usage": sum_usage([task_usage(value) for value in values]).record()}
    return {**usage, "turns": sum(turns)} if turns else usage


def _together(values: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The outputs of all items as one record."""
    return {
        "raw": "\n\n".join(str(value.get("raw", "")) for value in values),
        "data": [one.get("raw") if one.get("data") is None else one["data"] for one in values],
        **_usage_fields(values),
        "duration": round(sum(float(value.get("duration", 0.0)) for value in values), 6),
        "agent": next((value["agent"] for value in values if value.get("agent")), ""),
    }
