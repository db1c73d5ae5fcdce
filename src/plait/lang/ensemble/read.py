"""Read an ensemble file into its agents, tasks, loops and maps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from plait.core.documents import nodes
from plait.core.errors import InputError, PlaitError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field
from plait.lang.common import parse_condition, parse_on_empty, read_limits, with_default_turns
from plait.lang.parameters import parse_parameters, secret_names
from plait.program.tasks.model import Agent, EnsembleSpec, Loop, Manager, MapReduce, Task
from plait.program.tasks.text import AGENT_TEXTS, TASK_TEXTS
from plait.schema import Fields, to_template
from plait.schema.ensemble_tables import MAX_LEVELS
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.source import Span
    from plait.core.values import Json
    from plait.lang.parameters import Parameter
    from plait.program.tasks.text import Place
    from plait.template.template import Template


NOTHING: Final = Scope()


def ensemble_parameters(document: nodes.Mapping) -> dict[str, Parameter]:
    node = document.get("inputs") or document.get("parameters")
    return parse_parameters(node, secret_names(document))


@dataclass(frozen=True, slots=True)
class ParsedEnsemble:
    spec: EnsembleSpec
    written: Mapping[Place, Template]
    uses: Mapping[str, Span]
    places: Mapping[int, Fields] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def where(self, owner: object, name: str) -> Span | None:
        fields = self.places.get(id(owner))
        if fields is None:
            return None
        try:
            return fields.span(name)
        except PlaitError:  # a field that exists only in Python
            return fields.node.span


class EnsembleReader:
    """Reads the agents, tasks, loops and maps of a document without schema problems."""

    def __init__(self, fields: Fields, path: str) -> None:
        self.fields = fields
        self.path = path
        self.places: dict[int, Fields] = {}
        self.written: dict[Place, Template] = {}
        self.uses: dict[str, Span] = {}
        self.problems: list[Problem] = []
        self.agents: dict[str, Agent] = {}
        self.tasks: dict[str, Task] = {}

    def read(self) -> ParsedEnsemble:
        fields = self.fields
        for name, node in fields.entries("agents"):
            self.agents[name] = self._agent(Fields("member", _map(node), NOTHING))
        self._tasks()
        manager = fields.child("manager")
        spec = EnsembleSpec(
            fields.text("name") or os.path.splitext(os.path.basename(self.path))[0],
            tuple(self.tasks.values()),
            tuple(self._loops()),
            tuple(self._maps()),
            fields.text("workflow"),  # type: ignore[arg-type]  # one of the words of its table
            None if manager is None else self._manager(manager),
            fields.text("on_error") or "fail_fast",  # type: ignore[arg-type]  # as above
            fields.integer("max_parallel") or 1,
            fields.text("provider"),
            fields.text("model"),
            {id(task): name for name, task in self.tasks.items()},
        )
        self.places[id(spec)] = fields
        return ParsedEnsemble(spec, self.written, self.uses, self.places, tuple(self.problems))

    # ── agents ───────────────────────────────────────────────────────────

    def _agent(self, fields: Fields) -> Agent:
        agent = Agent(fields.text("role") or "", **self._member(fields))
        self._note(agent, fields, AGENT_TEXTS)
        return agent

    def _manager(self, fields: Fields) -> Manager:
        manager = Manager(
            fields.text("role") or "",
            **self._member(fields),
            max_delegations=fields.integer("max_delegations"),
            max_per_worker=fields.integer("max_per_worker"),
            workers=self._roles(fields.strings("workers")),
            required=self._roles(fields.strings("required")),
        )
        self._note(manager, fields, AGENT_TEXTS)
        return manager

    def _roles(self, names: Iterable[str]) -> tuple[str, ...]:
        """The roles of workers, which are given by role or by name under `agents`."""
        written = {agent.role for agent in self.agents.values()}
        return tuple(
            self.agents[name].role if name in self.agents and name not in written else name
            for name in names
        )

    def _member(self, fields: Fields) -> dict[str, Json]:
        limits = read_limits(fields.child("limits"))
        tools = fields.strings("tools")
        for tool in tools:
            if "*" not in tool and ":" not in tool:
                self.uses.setdefault(tool, fields.span("tools"))
        return {
            "goal": fields.text("goal") or "",
            "background": fields.text("background") or "",
            "provider": fields.text("provider"),
            "model": fields.text("model"),
            "tools": tools,
            "once": fields.strings("once"),
            "options": {name: node.data() for name, node in fields.entries("options")},
            "limits": with_default_turns(limits),
        }

    def _note(self, made: Agent | Task, fields: Fields, texts: Iterable[str]) -> None:
        """Record the place of an object, and its templates."""
        self.places[id(made)] = fields
        for name in texts:
            node = fields.get(name)
            if isinstance(node, nodes.Scalar) and isinstance(node.value, str) and node.value:
                self.written[(id(made), name)] = to_template(node, "prompt")

    # ── tasks ────────────────────────────────────────────────────────────

    def _tasks(self) -> None:
        by_name: dict[str, Fields] = {}
        for number, (key, node) in enumerate(task_entries(self.fields.get("tasks")), 1):
            fields = Fields("task", _map(node), NOTHING)
            name = fields.text("id") or key or f"task-{number}"
            if name in by_name:
                span = fields.span("id") if fields.has("id") else fields.node.span
                what, fix = f"two tasks have the id '{name}'", "give one of them another id"
                self.problems.append(Problem(what, span, fix, code="duplicate-id"))
                continue
            by_name[name] = fields
            self.tasks[name] = self._task(fields)
        for name, fields in by_name.items():
            found = tuple(self._find_tasks(fields, "context"))
            # Tasks are frozen, but refer to each other: the context is set when all exist and
            # before any is used.
            object.__setattr__(self.tasks[name], "context", found)

    def _task(self, fields: Fields) -> Task:
        params, schema, tool = (
            fields.get("params"),
            fields.get("output_schema"),
            fields.text("tool"),
        )
        if tool is not None:
            self.uses.setdefault(tool, fields.span("tool"))
        inner, named = fields.child("agent"), fields.text("agent")
        agent = self.agents.get(named or "") if inner is None else self._agent(inner)
        if inner is None and named is not None and agent is None:
            what = f"there is no agent '{named}'"
            self.problems.append(
                unknown_problem(what, fields.get("agent"), named, self.agents, "unknown-agent")
            )
        task = Task(
            fields.text("description") or "",
            fields.text("expected_output") or "",
            agent=agent,
            tool=tool,
            params=None if params is None else params.data(),
            name=fields.text("name"),
            output_schema=schema.data() if isinstance(schema, nodes.Mapping) else None,
            max_output_retries=fields.integer("max_output_retries") or 0,
            attempts=fields.integer("attempts") or 1,
            timeout=fields.seconds("timeout"),
        )
        self._note(task, fields, TASK_TEXTS)
        if params is not None:
            self.written[(id(task), "params")] = to_template(params, "graph")
        return task

    def _find_tasks(self, fields: Fields, name: str) -> Iterator[Task]:
        """The tasks that a field names, one or several."""
        node = fields.get(name)
        for one in node.items if isinstance(node, nodes.Sequence) else (node,):
            wanted = one.data() if isinstance(one, nodes.Scalar) else None
            if wanted is None:
                continue
            if wanted in self.tasks:
                yield self.tasks[wanted]
            else:
                what = f"there is no task '{wanted}'"
                self.problems.append(
                    unknown_problem(what, one, str(wanted), self.tasks, "unknown-task")
                )

    # ── loops and maps ───────────────────────────────────────────────────

    def _loops(self) -> Iterator[Loop]:
        for node in self.fields.items("loops"):
            fields = Fields("ensemble_loop", _map(node), NOTHING)
            until = fields.get("until")
            try:
                condition = None if until is None else parse_condition(until)
            except InputError as error:
                self.problems += error.problems
                condition = None
            loop = Loop(
                tuple(self._find_tasks(fields, "tasks")),
                condition,
                max_iterations=fields.integer("max_iterations") or 0,
                on_max=fields.text("on_max") or "return_last",  # type: ignore[arg-type]  # a word of its table
                feedback=fields.flag("feedback"),
                name=fields.text("id"),
            )
            self.places[id(loop)] = fields
            yield loop

    def _maps(self) -> Iterator[MapReduce]:
        node = self.fields.get("map")
        for one in node.items if isinstance(node, nodes.Sequence) else (node,):
            if not isinstance(one, nodes.Mapping):
                continue
            fields = Fields("ensemble_map", one, NOTHING)
            # A list, the name of an input, or the task that makes the list together with a path in
            # its data.
            source, written, path = fields.child("items"), fields.get("items"), None
            items: Json
            if source is not None:
                items, path = next(self._find_tasks(source, "task"), ()), source.text("path")
            else:
                assert isinstance(written, nodes.Sequence | nodes.Scalar)
                items = written.data()
            reduce = next(self._find_tasks(fields, "reduce"), None)
            for task in self._find_tasks(fields, "task"):
                made = MapReduce(
                    items,
                    task,
                    reduce,
                    item=fields.text("as") or "item",
                    chunk_size=fields.integer("chunk_size"),
                    target_tokens=fields.integer("target_tokens"),
                    max_levels=fields.integer("max_levels") or MAX_LEVELS,
                    path=path,
                    on_empty=parse_on_empty(fields),
                )
                self.places[id(made)] = fields
                yield made


def _map(node: nodes.Node) -> nodes.Mapping:
    assert isinstance(node, nodes.Mapping), "the schema allows only a map"
    return node


def task_entries(node: nodes.Node | None) -> Iterator[tuple[str, nodes.Node]]:
    """The tasks of a map with their names, or those of a list without names."""
    match node:
        case nodes.Sequence(items):
            yield from (("", item) for item in items)
        case nodes.Mapping(entries):
            yield from ((str(key.value), value) for key, value in entries)


def unknown_problem(
    what: str, node: nodes.Node | None, wanted: str, known: Iterable[str], code: str
) -> Problem:
    names = list(known)
    guess = closest_name(wanted, names)
    there = f"known: {format_names(names)}" if names else "there are none"
    fix = f"did you mean '{guess}'?" if guess else there
    return Problem(what, None if node is None else node.span, fix, code=code)
