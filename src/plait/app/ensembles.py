"""Ensembles in Python: compiled to the same program as a file, and run in the same way.

    ensemble = plait.Ensemble([research, report])
    output = ensemble.run({"topic": "tides"})
    output.raw, output.task_outputs[0].raw, output.tokens, output.cost, output.trace

In a project (a folder whose `.ai` holds more than state, or one that is named) a run is recorded in
its state folder, shown by `plait show`, and resumed by `run(resume=ID)`.  Elsewhere nothing is
written: the journal is in memory.

"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.agents.messages import NO_USAGE, Provider, TokenUsage, sum_usage
from plait.core.errors import EnsembleError, InputError, PlaitError, Problem, ValueRefusedError
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal
from plait.core.records import dataclass, field, replace
from plait.core.source import Source, Span
from plait.core.values import Json, Secret, json_text
from plait.engine.events import EventRecord, RunStarted, StepFinished
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import Failed, Outcome, Succeeded, to_record
from plait.engine.paths import TASKS, task_id
from plait.lang.ensemble.check import check_ensemble_spec
from plait.program.tasks.function_fingerprints import is_process_local, qualified_name
from plait.program.tasks.model import (
    EnsembleSpec,
    Loop,
    Manager,
    MapReduce,
    OnError,
    Strategy,
    Task,
    TaskOutput,
    require_type,
    to_limits,
)
from plait.program.tasks.task import make_task_output
from plait.program.tasks.task_graph import compile_ensemble
from plait.program.tasks.text import TaskTemplates
from plait.program.tasks.units import FilledEnsemble

if TYPE_CHECKING:
    from plait.app.runs import FlowResult
    from plait.engine.hook_events import Hook
    from plait.lang.analysis.tool_calls import ToolCall
    from plait.lang.loaded import LoadedFlow
    from plait.program.program import Program

_PLAIN: Final = frozenset({str, int, bool, type(None), Secret})
"""Types that need no further check to be data."""
Watch = Callable[[EventRecord], None]


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleOutput:
    """The result of an ensemble, or of the part that was done."""

    raw: str
    """The output of the last task."""
    task_outputs: tuple[TaskOutput, ...]
    """In the order of the tasks; for a manager in the order of its delegations."""
    usage: TokenUsage
    duration: float
    run: str | None
    """The id of its run; None: it was not recorded."""
    status: Literal["running", "done", "failed", "interrupted"]
    trace: Mapping[str, Json] = field(repr=False)
    """All events, as data."""
    _ids: Mapping[int, str] = field(default_factory=dict, repr=False)
    """By the identity of a task."""

    def __str__(self) -> str:
        return self.raw

    @property
    def tokens(self) -> int:
        """Input and output of models, including failed requests."""
        return self.usage.tokens

    @property
    def cost(self) -> float | None:
        """None: the price is unknown, or nothing was paid."""
        return self.usage.cost

    @property
    def data(self) -> Json:
        return self.task_outputs[-1].data if self.task_outputs else None

    def __getitem__(self, task: str | Task) -> TaskOutput:
        """Return the output of a task, by its id or by the task."""
        wanted = self._ids.get(id(task)) if isinstance(task, Task) else task
        for one in self.task_outputs:
            if one.id == wanted:
                return one
        raise KeyError(task)


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """Tasks, their agents and their order."""

    tasks: Sequence[Task]
    name: str = field(default="ensemble", kw_only=True)
    workflow: Strategy | None = field(default=None, kw_only=True)
    """sequential, parallel, hierarchical; None: parallel if a task has a context, else sequential."""
    loops: Sequence[Loop] = field(default=(), kw_only=True)
    map: MapReduce | Sequence[MapReduce] = field(default=(), kw_only=True)
    manager: Manager | None = field(default=None, kw_only=True)
    on_error: OnError = field(default="fail_fast", kw_only=True)
    max_parallel: int = field(default=4, kw_only=True)
    provider: Any = field(default=None, kw_only=True)
    """The default provider of agents: a name, a function, or a list of answers."""
    model: str | None = field(default=None, kw_only=True)
    limits: Limits | Mapping[str, float] = field(default=NO_LIMITS, kw_only=True)
    hooks: Sequence[Mapping[str, Json]] = field(default=(), kw_only=True)
    """Maps, like those of a file."""
    inputs: Mapping[str, Json] = field(default_factory=dict, kw_only=True)
    """Default values of inputs."""
    project: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    _spec: EnsembleSpec = field(init=False, repr=False)
    _texts: TaskTemplates = field(init=False, repr=False)
    _hooks: tuple[Hook, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise InputError with everything that is wrong with it."""
        _set(self, "tasks", _to_tuple(self.tasks, Task, "the tasks of an ensemble"))
        _set(self, "loops", _to_tuple(self.loops, Loop, "the loops of an ensemble"))
        _set(self, "map", _to_tuple(self.map, MapReduce, "the map of an ensemble"))
        _set(self, "limits", to_limits(self.limits))
        require_type(self.manager, Manager, "the manager of an ensemble", optional=True)
        spec = _make_spec(self)
        problems = check_ensemble_spec(spec)
        if problems:
            raise InputError.together(problems)
        _set(self, "_spec", spec)
        _set(self, "_texts", TaskTemplates(spec))
        _set(self, "_hooks", _read_hooks(self.hooks))

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that its texts name, in order of appearance."""
        return self._texts.variables()

    def resolve(self, inputs: Mapping[str, Json] | None = None) -> tuple[Task, ...]:
        """Return its tasks with their texts filled; PromptTemplateError as in a run."""
        filled = self._texts.fill_all(self._merge_inputs(inputs)).tasks
        return tuple(filled[id(task)] for task in self._spec.tasks)

    def run(
        self,
        inputs: Mapping[str, Json] | None = None,
        *,
        resume: str | None = None,
        accept_changes: bool = False,
        project: str | os.PathLike[str] | None = None,
        watch: Watch | None = None,
    ) -> EnsembleOutput:
        """Do all tasks; EnsembleError, with the outputs so far, if one fails.

        `resume` continues an earlier run: recorded outcomes are replayed.
        """
        from plait.app.runs import RunObservers, program_inputs, run_program

        where = self._place(project)
        given = self._merge_inputs(inputs)
        if resume is not None:
            if where is None:
                fix = "name its project: run(resume=…, project='…')"
                raise InputError(
                    "only a run of a project can be resumed", fix=fix, code="no-project"
                )
            given = {**program_inputs(resume, where), **given}
        ensemble = self._fill(given)
        program = compile_ensemble(ensemble, limits=to_limits(self.limits), hooks=self._hooks)
        try:
            result, events = run_program(
                _make_flow(program, ensemble, where or os.getcwd()),
                given,
                project=where,
                resume=resume,
                accept_changes=accept_changes,
                observers=RunObservers(watchers=() if watch is None else (watch,)),
            )
        except InputError as error:
            raise _in_python(error, ensemble.spec) from None
        output = _output(ensemble, result, events, kept=where is not None)
        if result.status == "done":
            return output
        raise _error(result, output)

    def _merge_inputs(self, inputs: Mapping[str, Json] | None) -> dict[str, Json]:
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(
                "inputs are a map of names", fix='pass {"name": "value"}', code="wrong-type"
            )
        given = {**self.inputs, **(inputs or {})}
        odd = [(name, value) for name, value in given.items() if value.__class__ not in _PLAIN]
        problems = [problem for one in odd if (problem := _not_json(*one)) is not None]
        if problems:
            raise InputError.together(problems)
        return given

    def _place(self, project: str | os.PathLike[str] | None) -> str | None:
        """Return the project that a run belongs to; None: there is none."""
        from plait.app.toolbox import project_root
        from plait.core.projects import nearest_project

        named = self.project if project is None else project
        return nearest_project(os.getcwd()) if named is None else project_root(named)

    def _fill(self, given: Mapping[str, Json]) -> FilledEnsemble:
        """Fill all texts, with new providers: a list of answers starts again in each run."""
        made: dict[int, Provider] = {}
        spec = self._spec
        agents = [task.agent for task in spec.tasks if task.agent is not None]
        asked = {
            id(agent): provider
            for agent in (*agents, *([spec.manager] if spec.manager else []))
            if (provider := _provider(agent.provider, made)) is not None
        }
        own = _provider(self.provider, made)
        if own is not None:
            spec = replace(spec, provider=own)
        return FilledEnsemble(spec, self._texts, self._texts.fill_all(given, asked))


def _in_python(error: InputError, spec: EnsembleSpec) -> PlaitError:
    """Reword what a resume asks, for the Python API."""
    if error.code != "changed":
        return error
    fix = "run(resume=…, accept_changes=True) does them again, and all that follows them"
    handlers = {spec.task_id(task): task.handler for task in spec.tasks if task.handler is not None}
    doubtful = [name for name, handler in handlers.items() if is_process_local(handler)]
    if doubtful:
        named = ", ".join(f"'{name}'" for name in doubtful)
        fix += (
            f"; the handler of {named} holds an object that may change, and another process cannot "
            "compare it: use a function or a frozen dataclass"
        )
    return InputError.together(replace(problem, fix=fix) for problem in error.problems)


def _not_json(name: str, value: Json) -> Problem | None:
    try:
        json_text(value)
    except ValueRefusedError as error:
        return Problem(
            f"the input '{name}' cannot be used: {error.what}", None, error.fix, code="not-json"
        )
    return None


# ── what an author wrote ──────────────────────────────────────────────────


def _set(record: object, name: str, value: object) -> None:
    object.__setattr__(record, name, value)


def _to_tuple(value: object, kind: type, what: str) -> tuple[Any, ...]:
    if isinstance(value, kind):
        return (value,)
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(one, kind) for one in value)
    ):
        return tuple(value)
    raise InputError(
        f"{what}: a list of {kind.__name__}", fix=f"pass [{kind.__name__}(…)]", code="wrong-type"
    )


def _make_spec(ensemble: Ensemble) -> EnsembleSpec:
    # The tasks of the list, and those that only loops and maps name.
    maps = ensemble.map if isinstance(ensemble.map, Sequence) else (ensemble.map,)
    named = [task for loop in ensemble.loops for task in loop.tasks]
    named += [
        task for one in maps for task in (one.source, one.task, one.reduce) if task is not None
    ]
    known = {id(task) for task in ensemble.tasks}
    tasks = (*ensemble.tasks, *{id(task): task for task in named if id(task) not in known}.values())
    return EnsembleSpec(
        ensemble.name,
        tasks,
        tuple(ensemble.loops),
        tuple(ensemble.map) if isinstance(ensemble.map, Sequence) else (ensemble.map,),
        ensemble.workflow,
        ensemble.manager,
        ensemble.on_error,
        ensemble.max_parallel,
        ensemble.provider if isinstance(ensemble.provider, str) else None,
        ensemble.model,
        task_ids(tasks),
    )


def task_ids(tasks: Sequence[Task]) -> dict[int, str]:
    """Return the id of each task, by identity: its name or its number, never two the same."""
    ids: dict[int, str] = {}
    taken: set[str] = set()
    for number, task in enumerate(tasks, 1):
        if id(task) in ids:
            continue
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", task.name or "").strip("-.") or f"task-{number}"
        name, again = plain, 1
        while name in taken:
            again += 1
            name = f"{plain}-{again}"
        taken.add(name)
        ids[id(task)] = name
    return ids


def _read_hooks(hooks: Sequence[Mapping[str, Json]]) -> tuple[Hook, ...]:
    if not hooks:
        return ()
    from plait.core import documents
    from plait.lang.hooks import load_hook_list

    return load_hook_list(documents.parse(json_text([dict(hook) for hook in hooks]), "hooks"))


def _provider(given: object, made: dict[int, Provider]) -> Provider | None:
    """Return a provider made of a function or a list; None: it is a name, or nothing."""
    if given is None or isinstance(given, str):
        return None
    if id(given) not in made:
        from plait.agents.providers.scripted import AuthorProvider, scripted

        if hasattr(given, "ask"):
            made[id(given)] = AuthorProvider(given)
        elif not callable(given) and not isinstance(given, Sequence):
            fix = "pass a name, a function of the question, or a list of answers"
            raise InputError("this is not a provider", fix=fix, code="wrong-type")
        else:
            made[id(given)] = scripted(
                given, name=qualified_name(given) if callable(given) else "list"
            )
    return made[id(given)]


def _make_flow(program: Program, ensemble: FilledEnsemble, project: str) -> LoadedFlow:
    """Return the flow with the hooks of user and project; TrustError if they may not run."""
    from plait.app.hooks import add_space_hooks
    from plait.lang.hooks import hook_tools
    from plait.lang.loaded import LoadedFlow

    # The Python program stands in for a file, for people who look at runs.
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    loaded = LoadedFlow(
        program,
        os.path.abspath(path) if path else "<python>",
        project,
        ensemble.filled.inputs,
        {},
        tool_uses={**hook_tools(program.hooks), **dict(_uses(ensemble.spec))},
        calls=tuple(_calls(ensemble.spec)),
        environ=os.environ,
    )
    return add_space_hooks(loaded, project, None, running=True)


def _calls(spec: EnsembleSpec) -> Iterator[ToolCall]:
    from plait.lang.analysis.tool_calls import ToolCall
    from plait.template.template import compile_template

    for task in spec.tasks:
        if task.tool is not None and task.params is not None:
            yield ToolCall(task.tool, compile_template(task.params, "graph"))


def _uses(spec: EnsembleSpec) -> Iterator[tuple[str, Span]]:
    """Yield the tools that tasks and agents name without a pattern, with their place."""
    agents = [task.agent for task in spec.tasks if task.agent is not None]
    patterns = [
        pattern
        for agent in (*agents, *([spec.manager] if spec.manager else []))
        for pattern in agent.tools
    ]
    named = [task.tool for task in spec.tasks if task.tool is not None]
    for tool in (*named, *patterns):
        if "*" not in tool and ":" not in tool:
            yield tool, Span(Source(spec.name, tool), 0, len(tool))


# ── what came of it ──────────────────────────────────────────────────────


def _output(
    ensemble: FilledEnsemble, result: FlowResult, events: Sequence[EventRecord], *, kept: bool
) -> EnsembleOutput:
    outputs = tuple(_outputs(ensemble, result, events))
    done = [one for one in outputs if one.status == "done"]
    whole = [
        one.event
        for one in events
        if isinstance(one.event, StepFinished) and one.event.path == TASKS
    ]
    return EnsembleOutput(
        done[-1].raw if done else "",
        outputs,
        _total_usage(events),
        sum(event.duration for event in whole if not event.replayed),
        result.run if kept else None,
        result.status,
        make_trace(ensemble, result, events),
        ensemble.spec.ids,
    )


def _outputs(
    ensemble: FilledEnsemble, result: FlowResult, events: Sequence[EventRecord]
) -> Iterator[TaskOutput]:
    value = result.value if result.failure is None else result.failure.output
    tasks_value = value.get("tasks") if isinstance(value, Mapping) else None
    values: Mapping[str, Json] = (
        tasks_value if isinstance(tasks_value, Mapping) else _outputs_from_events(events)
    )
    tasks = {
        ensemble.spec.task_id(task): ensemble.filled.task(task) for task in ensemble.spec.tasks
    }
    order = [*tasks] if ensemble.spec.strategy != "hierarchical" else [*values]
    for name in order:
        if name in values:
            labels = values[name].get("name"), values[name].get("description")
            yield _one_output(
                name, tasks.get(name) or Task(labels[1], None, name=labels[0]), values[name]
            )


def _one_output(name: str, task: Task, value: Mapping[str, Json]) -> TaskOutput:
    one = make_task_output(name, task, Succeeded(value))
    return replace(
        one,
        status=value.get("status", "done"),
        why=str(value.get("why", "")),
        iteration=int(value.get("iteration", 1)),
        reached_max=bool(value.get("reached_max")),
    )


def _outputs_from_events(events: Sequence[EventRecord]) -> dict[str, Json]:
    """Return the outputs of tasks by id, for a run that was stopped before it returned them."""
    found: dict[str, Json] = {}
    for path, outcome in _ends(events):
        match task_id(path), outcome:
            case str(task), Succeeded(Mapping() as value):
                found[task] = value
    return found


def _ends(events: Sequence[EventRecord]) -> Iterator[tuple[str, Outcome]]:
    for stamped in events:
        if isinstance(stamped.event, StepFinished):
            yield stamped.event.path, stamped.event.outcome


def _total_usage(events: Sequence[EventRecord]) -> TokenUsage:
    """Return what models used in all attempts of the run, including failed requests."""
    usages = []
    for stamped in events:
        match stamped.event:
            case StepFinished(kind="turn", outcome=Succeeded(dict() as value)):
                usages.append(value.get("usage"))
            case StepFinished(kind="turn", outcome=Failed(failure)) if isinstance(
                failure.output, Mapping
            ):
                usages.append(failure.output.get("usage"))
    return (
        sum_usage([TokenUsage(**one) for one in usages if isinstance(one, Mapping)])
        if usages
        else NO_USAGE
    )


def _error(result: FlowResult, output: EnsembleOutput) -> PlaitError:
    failure = result.failure
    what = failure.message if failure is not None else result.status
    again = f"fix it and continue: run(resume='{output.run}'); " if output.run else ""
    error = EnsembleError(
        f"the ensemble ended before it was done: {what}",
        fix=f"{again}error.output has what was done until then",
        code=None if failure is None else failure.kind,
    )
    error.output = output
    return error


# ── trace ────────────────────────────────────────────────────────────────


def make_trace(
    ensemble: FilledEnsemble, result: FlowResult, events: Sequence[EventRecord]
) -> dict[str, Json]:
    """Return all events of the journal as data, masked as they are there."""
    starts = [one for one in events if isinstance(one.event, RunStarted)]
    failure = result.failure
    return {
        "run": result.run,
        "ensemble": ensemble.spec.name,
        "workflow": ensemble.spec.strategy,
        "status": result.status,
        "started": starts[0].at if starts else None,
        "ended": events[-1].at if events else None,
        "run_attempts": len(starts),
        "inputs": {name: _display_value(value) for name, value in ensemble.filled.inputs.items()},
        "failure": None if failure is None else {"kind": failure.kind, "message": failure.message},
        "steps": [_step_trace(one) for one in events if isinstance(one.event, StepFinished)],
        "notes": [one.event.message for one in events if hasattr(one.event, "message")],
        "usage": _total_usage(events).record(),
    }


def _display_value(value: Json) -> Json:
    return str(value) if isinstance(value, Secret) else value


def _step_trace(stamped: EventRecord) -> dict[str, Json]:
    event = stamped.event
    assert isinstance(event, StepFinished)
    return {
        "path": event.path,
        "kind": event.kind,
        "title": event.title,
        "at": stamped.at,
        "duration": event.duration,
        **to_record(event.outcome),
    }
