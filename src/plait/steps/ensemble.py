"""An ensemble as a program: tasks that are performed when those in their context are done.

    tasks/task:research                  a task
    tasks/loop:refine/round:2/task:edit  a task in a loop
    tasks/map:summary/item:3             a task of a map, and `reduce:1.2` what puts them together
    tasks/manager                        a manager; below its calls the work of others

A unit is a task, a loop or a map.  One strategy does all: a unit begins when those that it needs are
done; `sequential` does them one at a time in the order of the list, `parallel` several at a time.
What a task gave is its recorded value, so a resumed run knows every output that was there, and
does again only what depends on something new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plait.engine.backend import ItemWork
from plait.engine.events import StepCounted
from plait.engine.hooks import Hook
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import (
    Aborted,
    Done,
    Failed,
    Failure,
    Outcome,
    OutOfLimit,
    Skipped,
    StepError,
    expect_done,
)
from plait.engine.perform import PLAIN, Policy, Step, Turn, behind_all
from plait.engine.run import changed_steps
from plait.errors import InputError, Problem
from plait.hints import TYPE_CHECKING, Final, Protocol, TypeAlias
from plait.records import dataclass, field, replace
from plait.steps.authored import by_author
from plait.steps.ensemble_handlers import fingerprint_of
from plait.steps.ensemble_manager import DELEGATION, ManagerStep, manager_step
from plait.steps.ensemble_parts import Cast, Loop, MapReduce, Task, TaskOutput
from plait.steps.ensemble_task import (
    TaskStep,
    output_of,
    record_of,
    task_step,
    usage_of,
)
from plait.steps.ensemble_text import Filled, Texts, made_items
from plait.steps.hands import working
from plait.steps.model import Usage, total
from plait.steps.prompt import NOBODY
from plait.steps.sequence import joined
from plait.values import Json, Secret

if TYPE_CHECKING:
    from plait.engine.expressions import Expression
    from plait.steps.model import Provider

TASKS: Final = "tasks"
"""The part of a run in which the tasks are."""
CHARACTERS_A_TOKEN: Final = 4

Outputs: TypeAlias = dict[str, TaskOutput]
"""By id, in the order in which they were there."""
Until: TypeAlias = Callable[[TaskOutput], bool]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The program of an ensemble, with what it was given."""

    cast: Cast
    texts: Texts = field(repr=False)
    filled: Filled = field(repr=False)
    limits: Limits = NO_LIMITS
    hooks: tuple[Hook, ...] = ()

    @property
    def name(self) -> str:
        return self.cast.name

    @property
    def inner(self) -> Sequence[Step]:
        return (Playing(self),)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return ((TASKS, len(units(self))),)

    @property
    def fan(self) -> None:
        return None

    def run(self, turn: Turn) -> Json:
        """`{output, tasks, usage}`: what the last task gave, and what each did.

        A StepError has the same in its output, as far as it came.
        """
        run = working(turn.run)
        # Whoever calls it as a tool does not know which of its inputs nobody may see.
        run.hide(value.reveal() for value in self.filled.inputs.values() if isinstance(value, Secret))
        with run.spending(turn.path, self.limits, f"ensemble '{self.name}'") as spent:
            spent.expect("depth")
            return expect_done(turn.perform(Playing(self)))


def assemble(
    cast: Cast,
    texts: Texts,
    inputs: Mapping[str, Json],
    *,
    limits: Limits = NO_LIMITS,
    hooks: tuple[Hook, ...] = (),
    providers: Mapping[int, Provider] | None = None,
) -> Assembled:
    """Fill all texts; PromptTemplateError with everything that is missing."""
    return Assembled(cast, texts, texts.filled(inputs, providers), limits, hooks)


@dataclass(frozen=True, slots=True)
class Playing:
    """All units of an ensemble, as one step."""

    program: Assembled
    name: str = TASKS
    kind: str = "ensemble"
    policy: Policy = PLAIN

    @property
    def title(self) -> str:
        return self.program.name

    @property
    def fingerprint(self) -> str:
        return joined(step.fingerprint for step in self.inner)

    @property
    def inner(self) -> Sequence[Step]:
        return [unit.step({}) for unit in units(self.program)]

    def run(self, turn: Turn) -> Json:
        if working(turn.run).rehearsal is None:
            _expect_providers(self.program.cast, turn)
        if not (turn.run.fresh or turn.run.accept_changes):
            _expect_known_units({step.name for step in self.inner}, turn)
        return _Play(self.program, turn).to_the_end()


def _expect_known_units(names: set[str], turn: Turn) -> None:
    """What was done is still there: a task with another name is another task, and would be done again."""
    done = [known for known in turn.run.journal.recorded_in(turn.path) if isinstance(known.outcome, Done)]
    lost = [
        known for known in done if (name := known.path.rpartition("/")[2]) not in names and _is_unit(name)
    ]
    if lost:
        raise changed_steps((known.path, known.title) for known in lost)


def _is_unit(name: str) -> bool:
    return name.partition(":")[0] in ("task", "loop", "map", "manager")


# ── units ────────────────────────────────────────────────────────────────


class Unit(Protocol):
    """What begins and ends as one."""

    @property
    def tasks(self) -> Sequence[Task]:
        """Those that it does, its last one last."""

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:
        """The step that does it, with the outputs that it needs."""

    def outputs(self, outcome: Outcome) -> Outputs:
        """What came of its tasks."""


def units(program: Assembled) -> list[Unit]:
    cast = program.cast
    if cast.strategy == "hierarchical":
        return [_Managed(program)]
    grouped: dict[int, Unit] = {}
    for loop in cast.loops:
        grouped |= dict.fromkeys(map(id, loop.tasks), _Looped(program, loop))
    for one in cast.maps:
        both = [one.task] if one.reduce is None else [one.task, one.reduce]
        grouped |= dict.fromkeys(map(id, both), _Mapped(program, one))
    found: dict[int, Unit] = {}
    for task in cast.tasks:
        unit = grouped.get(id(task)) or _Single(program, task)
        found.setdefault(id(unit), unit)
    return list(found.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Single:
    program: Assembled
    task: Task

    @property
    def tasks(self) -> Sequence[Task]:
        return (self.task,)

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:
        return _step(self.program, self.task, outputs, f"task:{self.program.cast.id_of(self.task)}")

    def outputs(self, outcome: Outcome) -> Outputs:
        task = self.program.filled.task(self.task)
        made = output_of(self.program.cast.id_of(self.task), task, outcome)
        return {made.id: made}


def _step(
    program: Assembled,
    task: Task,
    outputs: Mapping[str, TaskOutput],
    name: str,
    *,
    filled: Task | None = None,
    kind: str | None = None,
    context: Sequence[TaskOutput] | None = None,
) -> TaskStep:
    cast = program.cast
    ids = [cast.id_of(one) for one in task.context]
    return task_step(
        name,
        cast.id_of(task),
        filled or program.filled.task(task),
        tuple(outputs[one] for one in ids if one in outputs) if context is None else tuple(context),
        context_ids=tuple(ids),
        params=program.texts.params(task),
        provider=cast.provider,
        model=cast.model,
        kind=kind,
    )


# ── loops ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class _Looped:
    program: Assembled
    loop: Loop

    @property
    def tasks(self) -> Sequence[Task]:
        return self.loop.tasks

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:
        return LoopStep(self.program, self.loop, dict(outputs))

    def outputs(self, outcome: Outcome) -> Outputs:
        return _recorded_outputs(self.program, self.tasks, outcome)


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Rounds, until the condition holds or there are no more."""

    program: Assembled
    loop: Loop
    outputs: Mapping[str, TaskOutput]
    kind: str = "rounds"
    policy: Policy = PLAIN

    @property
    def title(self) -> str:
        return self.loop.name or self.program.cast.id_of(self.loop.tasks[-1])

    @property
    def name(self) -> str:
        return f"loop:{self.title}"

    @property
    def fingerprint(self) -> str:
        return joined([*(step.fingerprint for step in self.inner), *self._rules()])

    def _rules(self) -> list[str]:
        loop = self.loop
        if callable(loop.until):
            until = fingerprint_of(loop.until)
        else:
            until = "" if loop.until is None else compiled_until(loop.until).source.text
        return [until, str(loop.max_iterations), loop.on_max, str(loop.feedback)]

    @property
    def inner(self) -> Sequence[Step]:
        return [Round(self, number, {}, None) for number in range(1, self.loop.max_iterations + 1)]

    def run(self, turn: Turn) -> Json:
        last: Mapping[str, Json] = {}
        feedback: str | None = None
        rehearses = working(turn.run).rehearsal is not None
        for number in range(1, (1 if rehearses else self.loop.max_iterations) + 1):
            step = Round(self, number, self.outputs, feedback)
            outcome, turn = turn.perform_next(step, number - 1)
            if isinstance(outcome, Failed):
                raise StepError(_with_tasks(outcome.failure, last))
            last = outcome.value if isinstance(outcome, Done) else {}
            if last.get("met") or rehearses:
                return {**last, "iterations": number}
            said = _last_value(last).get("raw")
            feedback = str(said) if self.loop.feedback and said is not None else None
        return self._at_most(last)

    def _at_most(self, last: Mapping[str, Json]) -> Json:
        most = self.loop.max_iterations
        # Without a condition so many rounds are what was wanted.
        if self.loop.until is None or self.loop.on_max == "return_last":
            return {**last, "iterations": most}
        if self.loop.on_max == "fail":
            message = f"loop '{self.title}' is not at its end after {most} rounds"
            raise StepError(
                Failure(message, "limit", output={"tasks": last.get("tasks"), "iterations": most})
            )
        return {**last, "iterations": most, "reached_max": True}


@dataclass(frozen=True, slots=True)
class Round:
    """The tasks of a loop, once."""

    of: LoopStep
    number: int
    outputs: Mapping[str, TaskOutput]
    feedback: str | None
    kind: str = "rounds"
    policy: Policy = PLAIN

    @property
    def name(self) -> str:
        return f"round:{self.number}"

    @property
    def title(self) -> str:
        return f"round {self.number}"

    @property
    def fingerprint(self) -> str:
        return joined(step.fingerprint for step in self.inner)

    @property
    def inner(self) -> Sequence[Step]:
        return [self._step(order, {}) for order in range(len(self.of.loop.tasks))]

    def run(self, turn: Turn) -> Json:
        made: Outputs = {}
        values: dict[str, Json] = {}
        cast = self.of.program.cast
        for order, task in enumerate(self.of.loop.tasks):
            outcome = _skipped_with(made[one] for need in task.context if (one := cast.id_of(need)) in made)
            if outcome is None:
                outcome, turn = turn.perform_next(self._step(order, {**self.outputs, **made}), order)
            if isinstance(outcome, Failed):
                raise StepError(_with_tasks(outcome.failure, {"tasks": values}))
            key = cast.id_of(task)
            made[key] = output_of(key, self._filled(task), outcome)
            values[key] = {**_told(outcome), "iteration": self.number}
        return {"tasks": values, "met": self._is_met(list(made.values())[-1], turn)}

    def _is_met(self, last: TaskOutput, turn: Turn) -> bool:
        until = self.of.loop.until
        if until is None or working(turn.run).rehearsal is not None or last.status == "skipped":
            return False
        if callable(until):
            ended = by_author(lambda: until(replace(last, iteration=self.number)), "until", turn.run.mask)
            return bool(ended)
        facts = {"output": last.raw, "data": last.data, "iteration": self.number}
        return compiled_until(until).holds(facts)

    def _filled(self, task: Task) -> Task:
        return replace(self.of.program.filled.task(task), iteration=self.number)

    def _step(self, order: int, outputs: Mapping[str, TaskOutput]) -> TaskStep:
        task = self.of.loop.tasks[order]
        filled = self._filled(task)
        if order == 0:
            filled = replace(filled, feedback=self.feedback)
        program = self.of.program
        return _step(program, task, outputs, f"task:{program.cast.id_of(task)}", filled=filled)


def compiled_until(until: Json) -> Expression:
    """A condition as data, or a line of text; one that is neither is an InputError."""
    from plait.engine.expressions import Expression, read_when

    return until if isinstance(until, Expression) else read_when(until)


# ── maps ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    program: Assembled
    map: MapReduce

    @property
    def tasks(self) -> Sequence[Task]:
        return (self.map.task,) if self.map.reduce is None else (self.map.task, self.map.reduce)

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:
        return MapStep(self.program, self.map, dict(outputs))

    def outputs(self, outcome: Outcome) -> Outputs:
        return _recorded_outputs(self.program, self.tasks, outcome)


@dataclass(frozen=True, slots=True)
class MapStep:
    """A task for each item, several at a time; then what they gave is put together, level by level."""

    program: Assembled
    map: MapReduce
    outputs: Mapping[str, TaskOutput]
    kind: str = "fan"
    policy: Policy = PLAIN

    @property
    def _id(self) -> str:
        return self.program.cast.id_of(self.map.task)

    @property
    def title(self) -> str:
        return self.map.task.name or self._id

    @property
    def name(self) -> str:
        return f"map:{self._id}"

    @property
    def fingerprint(self) -> str:
        return joined([*(step.fingerprint for step in self.inner), *self._rules()])

    def _rules(self) -> list[str]:
        one, cast = self.map, self.program.cast
        rules = [str(one.chunk_size)]
        if one.target_tokens is not None:
            rules.append(f"{one.target_tokens}:{one.max_levels}")
        if one.source is not None:
            rules.append(f"{cast.id_of(one.source)}:{one.path}")
        return rules

    @property
    def inner(self) -> Sequence[Step]:
        return [*self._known(), *([] if self.map.reduce is None else [self._reduction("reduce:1.1", ())])]

    def _known(self) -> list[TaskStep]:
        """The items; where a task makes them, the one that stands for all of them."""
        if self.map.source is None:
            return self._items(self.program.filled.items[id(self.map.task)])
        return [self._any_item()]

    def _any_item(self) -> TaskStep:
        filled = self.program.texts.any_item(self.map, self.program.filled)
        return _step(self.program, self.map.task, self.outputs, "item:*", filled=filled, kind="item")

    def _items(self, filled: Sequence[Task]) -> list[TaskStep]:
        return [
            _step(self.program, self.map.task, self.outputs, f"item:{number}", filled=task, kind="item")
            for number, task in enumerate(filled)
        ]

    def _all_items(self, turn: Turn) -> list[TaskStep]:
        source = self.map.source
        if source is None:
            return self._known()
        if working(turn.run).rehearsal is not None:
            return self._known()
        program = self.program
        items = made_items(self.map, self.outputs[program.cast.id_of(source)])
        steps = self._items(program.texts.filled_items(self.map, program.filled, items))
        # With other items whoever makes them was done anew, and so is this; else only what is written counts.
        written = self._any_item().fingerprint
        return [replace(step, fingerprint=written) for step in steps]

    def run(self, turn: Turn) -> Json:
        steps = self._all_items(turn)
        if working(turn.run).rehearsal is None:
            turn.run.emit(StepCounted(turn.path, len(steps)))
        outcomes, turn = performed_all(turn, steps, self.program.cast)
        made = [record_of(one) for one in outcomes if isinstance(one, Done)]
        skipped = next((one for one in outcomes if isinstance(one, Skipped)), None)
        values: dict[str, Json] = {self._id: _together(made) if made or skipped is None else _told(skipped)}
        self._expect_all(turn, outcomes, len(steps), values)
        outputs = [
            replace(output_of(f"{self._id}-{number}", step.task, one), name=f"{self.title} {number + 1}")
            for number, (step, one) in enumerate(zip(steps, outcomes, strict=False))
            if isinstance(one, Done)
        ]
        if self.map.reduce is not None:
            hopeless = None if outputs or skipped is None else _needs_skipped(self._id)
            told = self._reduced(turn, outputs, values) if hopeless is None else _told(hopeless)
            values[self.program.cast.id_of(self.map.reduce)] = told
        return {"tasks": values}

    def _expect_all(
        self, turn: Turn, outcomes: Sequence[Outcome], total: int, values: dict[str, Json]
    ) -> None:
        failures = [one.failure for one in outcomes if isinstance(one, Failed)]
        if not failures:
            return
        said = f"{len(failures)} of {total} items of task '{self._id}' failed: {failures[0].message}"
        if self.program.cast.on_error == "fail_fast" or len(failures) == total:
            raise StepError(replace(failures[0], message=said, output={"tasks": values}))
        turn.run.note(turn.path, said)

    def _reduced(self, turn: Turn, outputs: Sequence[TaskOutput], values: dict[str, Json]) -> Json:
        """The one output that is left when no two are."""
        if not outputs:
            return {"raw": "", "data": None, "usage": Usage(calls=0).record(), "duration": 0.0}
        level = 0
        used: list[Usage] = []
        while True:
            level += 1
            chunks = list(self._chunks(turn, outputs, level))
            # One that is left over is put together with others at the next level.
            wanted = {n for n, chunk in enumerate(chunks) if len(chunk) > 1 or len(chunks) == 1}
            steps = [self._reduction(f"reduce:{level}.{n + 1}", chunks[n]) for n in sorted(wanted)]
            outcomes, turn = performed_all(turn, steps, self.program.cast)
            failed = next((one.failure for one in outcomes if isinstance(one, Failed)), None)
            if failed is not None:
                raise StepError(_with_tasks(failed, {"tasks": values}))
            skipped = next((one for one in outcomes if isinstance(one, Skipped)), None)
            if skipped is not None:  # without its part the whole would look like one
                return _told(skipped)
            used += [usage_of(record_of(one)) for one in outcomes]
            if len(chunks) == 1:
                return {**record_of(outcomes[0]), "usage": total(used).record()}
            made = [output_of(one.name, one.task, end) for one, end in zip(steps, outcomes, strict=True)]
            outputs = [*made, *(chunk[0] for n, chunk in enumerate(chunks) if n not in wanted)]

    def _chunks(
        self, turn: Turn, outputs: Sequence[TaskOutput], level: int
    ) -> Iterator[Sequence[TaskOutput]]:
        """Those that are put together at this level."""
        one = self.map
        most, budget = one.chunk_size or len(outputs), one.target_tokens
        if budget is not None and level >= one.max_levels:
            if sum(map(tokens_of, outputs)) > budget:
                said = f"is still longer than {budget} tokens after {level - 1} levels"
                turn.run.note(turn.path, f"what '{self._id}' gave {said}: it is put together at once")
            most, budget = len(outputs), None
        yield from _split(outputs, most, budget)

    def _reduction(self, name: str, chunk: Sequence[TaskOutput]) -> TaskStep:
        reduce = self.map.reduce
        assert reduce is not None
        cast = self.program.cast
        given = [self.outputs[one] for task in reduce.context if (one := cast.id_of(task)) in self.outputs]
        return _step(self.program, reduce, {}, name, context=[*given, *chunk])


def _split(outputs: Sequence[TaskOutput], most: int, budget: int | None) -> Iterator[list[TaskOutput]]:
    """In order, at most so many and so many tokens at a time; two go together however long they are."""
    chunk: list[TaskOutput] = []
    used = 0
    for output in outputs:
        used += tokens_of(output)
        if len(chunk) == most or (budget is not None and len(chunk) > 1 and used > budget):
            yield chunk
            chunk, used = [], tokens_of(output)
        chunk.append(output)
    yield chunk


def tokens_of(output: TaskOutput) -> int:
    """As its model counted them; of several answers, or where nobody counts, a quarter of the characters."""
    counted = output.usage.output if output.usage.calls == 1 else 0
    return counted or -(-len(output.raw) // CHARACTERS_A_TOKEN)


def _together(values: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """What the items gave, as one output."""
    return {
        "raw": "\n\n".join(str(value.get("raw", "")) for value in values),
        "data": [one.get("raw") if one.get("data") is None else one["data"] for one in values],
        "usage": total([usage_of(value) for value in values]).record(),
        "duration": round(sum(float(value.get("duration", 0.0)) for value in values), 6),
        "agent": next((value["agent"] for value in values if value.get("agent")), ""),
    }


def performed_all(turn: Turn, steps: Sequence[TaskStep], cast: Cast) -> tuple[list[Outcome], Turn]:
    """Perform steps that need nothing of each other; those behind them are done anew if one of them was.

    Under `fail_fast` none begins behind one that failed: there are as many outcomes as were begun.
    """
    ended: dict[int, Outcome] = {}
    turns: list[Turn] = []

    def perform(work: ItemWork) -> Outcome:
        outcome, behind = turn.perform_next(steps[work.order], work.order)
        turns.append(behind)
        return outcome

    def finished(work: ItemWork, outcome: Outcome) -> None:
        ended[work.order] = outcome

    def wanted() -> Iterator[ItemWork]:
        for order, step in enumerate(steps):
            failed = any(isinstance(one, Failed) for one in list(ended.values()))
            if turn.run.is_stopping() or (failed and cast.on_error == "fail_fast"):
                return
            yield ItemWork(order, step.name, None)

    if steps:
        parallel = max(1, min(cast.max_parallel, len(steps)))
        working(turn.run).backend.run_items(wanted(), perform, finished, parallel=parallel)
        turn.run.expect_going()
    return [ended[order] for order in sorted(ended)], behind_all(turn, turns)


# ── a manager ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class _Managed:
    program: Assembled

    @property
    def tasks(self) -> Sequence[Task]:
        return ()

    def step(self, outputs: Mapping[str, TaskOutput]) -> Step:  # noqa: ARG002 - a manager needs nothing
        return self._step()

    def _step(self) -> ManagerStep:
        program = self.program
        tasks = [program.filled.task(task) for task in program.cast.tasks]
        manager = program.cast.manager
        agent = None if manager is None else program.filled.agents[id(manager)]
        return manager_step(program.cast, tasks, agent)

    def outputs(self, outcome: Outcome) -> Outputs:
        return {one.id: one for one in self._step().outputs(outcome)}


# ── the play ─────────────────────────────────────────────────────────────


class _Play:
    """One performance: what is done, what has failed, what can begin."""

    def __init__(self, program: Assembled, turn: Turn) -> None:
        self.cast = program.cast
        self.turn = turn
        self.units = units(program)
        self.outputs: Outputs = {}
        self.failures: list[tuple[Unit, Failure]] = []
        self.skipped: dict[str, str] = {}
        self._of_task = {id(task): order for order, unit in enumerate(self.units) for task in unit.tasks}
        self._needed = [self._needed_tasks(order) for order in range(len(self.units))]
        self._needs = [frozenset(self._of_task[id(one)] for one in needed) for needed in self._needed]
        self._state: dict[int, str] = {}
        """By the order of a unit: begun, done, failed, skipped."""
        self._behind: dict[int, Turn] = {}
        """By the order of a unit that has ended: the turn of what needs it."""
        self._changed = threading.Condition()
        self._is_broken = False

    def to_the_end(self) -> Json:
        parallel = self.cast.max_parallel if self.cast.strategy == "parallel" else 1
        parallel = max(1, min(parallel, len(self.units)))
        try:
            working(self.turn.run).backend.run_items(
                self._ready(), self._perform, self._finished, parallel=parallel
            )
        except Aborted as aborted:
            aborted.failure = replace(aborted.failure, output=self._value())
            raise
        self.turn.run.expect_going()
        value = self._value()
        if self.failures:
            raise StepError(self._failure(value))
        return value

    def _needed_tasks(self, order: int) -> list[Task]:
        """Of other units."""
        needs = [one for task in self.units[order].tasks for one in self.cast.needs(task)]
        return [one for one in needs if self._of_task[id(one)] != order]

    # ── which can begin ──────────────────────────────────────────────────

    def _ready(self) -> Iterator[ItemWork]:
        while True:
            with self._changed:
                self._skip_hopeless()
                order = self._next()
                while order is None and self._is_waiting():
                    self._changed.wait()
                    self._skip_hopeless()
                    order = self._next()
                if order is None:
                    return
                self._state[order] = "begun"
            yield ItemWork(order, str(order), None)

    def _next(self) -> int | None:
        """The first unit all of whose needs are done."""
        if self.turn.run.is_stopping() or self._is_broken:
            return None
        if self.failures and self.cast.on_error == "fail_fast":
            return None
        for order in range(len(self.units)):
            if order not in self._state and all(self._state.get(one) == "done" for one in self._needs[order]):
                return order
        return None

    def _is_waiting(self) -> bool:
        return not self._is_broken and "begun" in self._state.values()

    def _skip_hopeless(self) -> None:
        """Units that need what was skipped, or failed without being the end: they will never begin."""
        while (found := next(self._hopeless(), None)) is not None:
            order, why = found
            self._state[order] = "skipped"
            for task in self.units[order].tasks:
                self.skipped[self.cast.id_of(task)] = why
            self.turn.run.note(self.turn.path, f"'{self._called(order)}' is skipped: {why}")

    def _hopeless(self) -> Iterator[tuple[int, str]]:
        for order in range(len(self.units)):
            for task in self._needed[order] if order not in self._state else ():
                ended = self._lost(task)
                if ended is not None:
                    yield order, _why(self.cast.id_of(task), ended)

    def _lost(self, task: Task) -> str | None:
        """How a task ended that others need in vain."""
        state = self._state.get(self._of_task[id(task)])
        output = self.outputs.get(self.cast.id_of(task))
        if state == "skipped" or (state == "done" and output is not None and output.status == "skipped"):
            return "skipped"
        return "failed" if state == "failed" and self.cast.on_error == "continue_on_error" else None

    def _called(self, order: int) -> str:
        return self.cast.id_of(self.units[order].tasks[-1])

    # ── doing ────────────────────────────────────────────────────────────

    def _perform(self, work: ItemWork) -> Outcome:
        order = work.order
        turn = behind_all(self.turn, [self._behind[one] for one in self._needs[order] if one in self._behind])
        try:
            outcome, behind = turn.perform_next(self.units[order].step(dict(self.outputs)), order)
        except BaseException as error:
            if isinstance(error, OutOfLimit):  # for whoever reads what there was until then
                self.outputs |= self.units[order].outputs(Failed(error.failure))
            with self._changed:  # whoever waits for this one waits in vain
                self._is_broken = True
                self._changed.notify_all()
            raise
        self._behind[order] = behind
        return outcome

    def _finished(self, work: ItemWork, outcome: Outcome) -> None:
        unit = self.units[work.order]
        with self._changed:
            self.outputs |= unit.outputs(outcome)
            if isinstance(outcome, Failed):
                self.failures.append((unit, outcome.failure))
            self._state[work.order] = _STATES[type(outcome)]
            self._changed.notify_all()

    # ── how it ended ─────────────────────────────────────────────────────

    def _value(self) -> dict[str, Json]:
        """What there is, in the order of the tasks; of a manager in that of its delegations."""
        ids = [self.cast.id_of(task) for task in self.cast.tasks]
        places = {one: place for place, one in enumerate(ids)}
        ordered = sorted(self.outputs.values(), key=lambda one: places.get(one.id, len(places)))
        done = [one for one in ordered if one.status == "done"]
        return {
            "output": _given_by(done[-1]) if done else None,
            "tasks": {one.id: _public(one) for one in ordered}
            | {one: {"status": "skipped", "why": why} for one, why in self.skipped.items()},
            "usage": total([one.usage for one in ordered]).record(),
        }

    def _failure(self, value: dict[str, Json]) -> Failure:
        (unit, first), *others = self.failures
        named = f"task '{self.cast.id_of(unit.tasks[-1])}'" if len(unit.tasks) == 1 else ""
        message = f"{named}: {first.message}" if named else first.message
        if others:
            also = ", ".join(repr(self.cast.id_of(one.tasks[-1])) for one, _ in others)
            message = f"{message}\nand {also} failed as well"
        return replace(first, message=message, output=value)


def _given_by(output: TaskOutput) -> Json:
    return output.raw if output.data is None else output.data


_STATES: Final[dict[type, str]] = {Done: "done", Failed: "failed", Skipped: "skipped"}
_ENDED: Final = {"failed": "failed", "skipped": "was skipped"}


def _told(outcome: Outcome) -> dict[str, Json]:
    """What is recorded of a task in a loop or a map; one that was skipped gave nothing, and says so."""
    if isinstance(outcome, Skipped):
        return {"status": "skipped", "why": outcome.why, "usage": Usage(calls=0).record()}
    return record_of(outcome)


def _outcome(value: Mapping[str, Json]) -> Outcome:
    """The other way round."""
    return Skipped(str(value.get("why", ""))) if value.get("status") == "skipped" else Done(value)


def _skipped_with(needed: Iterable[TaskOutput]) -> Outcome | None:
    """How a task ends that needs one which was skipped."""
    return next((_needs_skipped(one.id) for one in needed if one.status == "skipped"), None)


def _needs_skipped(id: str) -> Skipped:
    return Skipped(_why(id, "skipped"))


def _why(id: str, ended: str) -> str:
    return f"'{id}', which it needs, {_ENDED[ended]}"


def _public(output: TaskOutput) -> dict[str, Json]:
    """What a run says of a task, to those who read its value."""
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


def _recorded_outputs(program: Assembled, tasks: Sequence[Task], outcome: Outcome) -> Outputs:
    """The outputs of several tasks, as a loop or a map has recorded them."""
    match outcome:
        case Done(dict() as value) | Failed(Failure(output=dict() as value)):
            values = value.get("tasks") or {}
            reached = bool(value.get("reached_max"))
        case _:
            values, reached = {}, False
    made: Outputs = {}
    for task in tasks:
        key = program.cast.id_of(task)
        if key in values:
            one = output_of(key, program.filled.task(task), _outcome(values[key]))
            made[key] = replace(one, reached_max=reached, iteration=int(values[key].get("iteration", 1)))
        elif isinstance(outcome, Skipped):
            made[key] = output_of(key, program.filled.task(task), outcome)
    if isinstance(outcome, Failed):
        missing = next((task for task in tasks if program.cast.id_of(task) not in made), None)
        if missing is not None:
            key = program.cast.id_of(missing)
            made[key] = output_of(key, program.filled.task(missing), outcome)
    return made


def _with_tasks(failure: Failure, last: Mapping[str, Json]) -> Failure:
    """A failure inside a loop or a map, with what its tasks had given."""
    own = failure.output.get("tasks") if isinstance(failure.output, Mapping) else None
    tasks = {**(last.get("tasks") or {}), **(own or {})}
    usage = failure.output.get("usage") if isinstance(failure.output, Mapping) else None
    return replace(failure, output={"tasks": tasks, **({} if usage is None else {"usage": usage})})


def _last_value(value: Mapping[str, Json]) -> Mapping[str, Json]:
    tasks = value.get("tasks") or {}
    return list(tasks.values())[-1] if tasks else {}


# ── who is asked ─────────────────────────────────────────────────────────


def _expect_providers(cast: Cast, turn: Turn) -> None:
    """Whoever is to be asked is there: all that are not, before the first task."""
    hands = working(turn.run).hands
    problems: dict[str, Problem] = {}
    for called, provider in _asked(cast):
        named = cast.provider if provider is None else provider
        if not isinstance(named, str | None) or (named or "") in problems:
            continue
        try:
            if hands.provider(named) is None:
                problems[named or ""] = Problem(f"{called} needs a model, and {NOBODY}", code="no-provider")
        except InputError as error:
            problems[named or ""] = replace(error.problems[0], what=f"{called}: {error.what}")
    if problems:
        raise InputError.together(problems.values())


def _asked(cast: Cast) -> Iterator[tuple[str, Json]]:
    for task in cast.tasks:
        if task.is_done_by_model:
            yield f"task '{cast.id_of(task)}'", None if task.agent is None else task.agent.provider
    if cast.strategy == "hierarchical":
        yield "the manager", None if cast.manager is None else cast.manager.provider
