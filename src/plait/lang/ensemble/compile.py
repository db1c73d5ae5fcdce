"""An ensemble in a file: the same parts as in Python, with places for what is wrong with them.

    check_ensemble   everything that is wrong with a document
    load_ensemble    with its inputs: a program that can run
    ensemble_tool    the same for a tool, of the bytes that were judged

Tasks name each other and their agents by id.  What is missing in any text is told at once, before
there is a run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from plait import schema as format
from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, PlaitError, Problem, listed, nearest
from plait.core.hints import Final
from plait.core.records import dataclass, field, replace
from plait.core.source import Span
from plait.core.values import Json, Secret
from plait.engine.hooks import Hook
from plait.engine.limits import Limits
from plait.lang.analysis.names import Name, strings
from plait.lang.analysis.scopes import Field, Known, read_fields
from plait.lang.analysis.tool_calls import ToolCall, tool_calls
from plait.lang.check import check_field
from plait.lang.common import on_empty_of, read_limits
from plait.lang.ensemble.check import problems_of
from plait.lang.findings import Finding
from plait.lang.hooks import hook_findings, read_hooks, tools_of
from plait.lang.loaded import Loaded
from plait.lang.parameters import Parameter, Surroundings, declared, resolve
from plait.program.tasks.model import MAX_LEVELS, MOST_TURNS, Agent, Cast, Loop, Manager, MapReduce, Task
from plait.program.tasks.task import TASK_FACTS
from plait.program.tasks.task_graph import assemble
from plait.program.tasks.text import (
    AGENT_TEXTS,
    TASK_TEXTS,
    Place,
    Texts,
    asking,
    input_of,
    is_item_name,
)
from plait.schema import Said, template_of
from plait.scope import Scope
from plait.scope.expressions import read_when
from plait.template.conditions import asked_keys
from plait.template.nodes import ContextHole, Path
from plait.template.template import Template, compile_template

NOTHING: Final = Scope()
MOST_ENSEMBLES: Final = 64
"""So many that are called as tools are kept as they were read."""


def load_ensemble(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,  # noqa: ARG001 - the signature of load_flow; an ensemble has no profiles
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
    document: nodes.Node | None = None,
) -> Loaded:
    """The ensemble in a file; InputError with everything that is wrong with it or with what it is given.

    `document`: what is in the file, if it was read already.
    """
    plan = read_ensemble(document or documents.load(path), path)
    return _loaded(plan, path, given or {}, project, strict, max_parallel, environ or {})


def ensemble_tool(
    data: bytes,
    path: str,
    given: Mapping[str, Json],
    *,
    project: str,
    environ: Mapping[str, str],
    max_parallel: int | None = None,
    strict: bool | None = None,
) -> Loaded:
    """The ensemble in a file of which these bytes were judged."""
    return _loaded(_read_bytes(data, path), path, given, project, strict, max_parallel, environ)


@lru_cache(maxsize=MOST_ENSEMBLES)
def _read_bytes(data: bytes, path: str) -> Plan:
    return read_ensemble(documents.parse(documents.decoded(data, path), path), path)


# ── what a file says, whoever runs it ────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Plan:
    """An ensemble without inputs, and what it wants to be given."""

    cast: Cast
    texts: Texts
    parameters: Mapping[str, Parameter]
    uses: Mapping[str, Span]
    calls: tuple[ToolCall, ...]
    warnings: tuple[Finding, ...]
    secrets: frozenset[str]
    limits: Limits
    hooks: tuple[Hook, ...]
    timeout: float | None


def read_ensemble(document: nodes.Node, path: str) -> Plan:
    """InputError with every problem of the file."""
    findings = check_ensemble(document)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    assert isinstance(document, nodes.Mapping)
    said = Said("ensemble", document, NOTHING)
    read = _Reader(said, path).read()
    hooks = read_hooks(said.get("hooks"))
    return Plan(
        read.cast,
        Texts(read.cast, read.written),
        _parameters(document),
        {**tools_of(hooks), **read.uses},
        tool_calls(document, "prompt") if read.uses else (),
        tuple(finding for finding in findings if finding.severity == "warning"),
        frozenset(said.words("secrets")),
        read_limits(said.inner("limits")),
        hooks,
        said.seconds("timeout"),
    )


def _loaded(
    plan: Plan,
    path: str,
    given: Mapping[str, Json],
    project: str | None,
    strict: bool | None,
    max_parallel: int | None,
    environ: Mapping[str, str],
) -> Loaded:
    inputs = _inputs(plan, given)
    cast = plan.cast if max_parallel is None else replace(plan.cast, max_parallel=max_parallel)
    program = assemble(cast, plan.texts, inputs, limits=plan.limits, hooks=plan.hooks)
    return Loaded(
        program,
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        inputs,
        Surroundings({}, {}, {}),
        plan.parameters,
        uses=plan.uses,
        calls=plan.calls,
        warnings=plan.warnings,
        strict=bool(strict),
        timeout=plan.timeout,
        kind="ensemble",
        limits=plan.limits,
        hooks=plan.hooks,
        environ=environ,
    )


# ── what it is given ─────────────────────────────────────────────────────


def _inputs(plan: Plan, given: Mapping[str, Json]) -> dict[str, Json]:
    """What is given, of the types that are declared, with the defaults; secrets as such.

    An error has all of it: what is not given and which texts ask for that, and what does not fit.
    """
    values, problems = _declared_values(plan.parameters, given)
    values = {
        name: Secret(value) if name in plan.secrets and isinstance(value, str) else value
        for name, value in values.items()
    }
    missing = plan.texts.missing(values)
    told = {} if missing is None else dict.fromkeys(missing.missing_variables)
    # One that a text asks for is told there, where it stands.
    others = [problem for name, problem in problems if name not in told]
    if missing is not None:
        missing.problems = (*missing.problems, *others)
        raise missing
    if others:
        raise InputError.together(others)
    return values


def _declared_values(
    parameters: Mapping[str, Parameter], given: Mapping[str, Json]
) -> tuple[dict[str, Json], list[tuple[str, Problem]]]:
    """The value of each input, and by name what is wrong with it."""
    if not parameters:
        return dict(given), []
    values: dict[str, Json] = {}
    problems: list[tuple[str, Problem]] = []
    optional = {name: replace(one, required=False) for name, one in parameters.items()}
    for name in dict.fromkeys((*parameters, *given)):
        declared_so = {name: parameters[name]} if name in parameters else optional
        offered = {name: given[name]} if name in given else {}
        try:
            values |= resolve(declared_so, offered)
        except InputError as error:
            problems += [(name, problem) for problem in error.problems]
            values |= offered
    return values, problems


def _parameters(document: nodes.Mapping) -> dict[str, Parameter]:
    node = document.get("inputs") or document.get("parameters")
    if node is None:
        return {}
    return declared(nodes.Mapping(((nodes.Scalar("parameters", node.span), node),), document.span))


# ── what a file says ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Read:
    cast: Cast
    written: Mapping[Place, Template]
    uses: Mapping[str, Span]
    places: Mapping[int, Said] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def where(self, owner: object, name: str) -> Span | None:
        said = self.places.get(id(owner))
        if said is None:
            return None
        try:
            return said.span(name)
        except PlaitError:  # a field that files do not have
            return said.node.span


class _Reader:
    """Makes the parts of an ensemble of a map that has the form of one."""

    def __init__(self, said: Said, path: str) -> None:
        self.said = said
        self.path = path
        self.places: dict[int, Said] = {}
        self.written: dict[Place, Template] = {}
        self.uses: dict[str, Span] = {}
        self.problems: list[Problem] = []
        self.agents: dict[str, Agent] = {}
        self.tasks: dict[str, Task] = {}

    def read(self) -> Read:
        said = self.said
        for name, node in said.entries("agents"):
            self.agents[name] = self._agent(Said("member", _map(node), NOTHING))
        self._tasks()
        manager = said.inner("manager")
        cast = Cast(
            said.text("name") or os.path.splitext(os.path.basename(self.path))[0],
            tuple(self.tasks.values()),
            tuple(self._loops()),
            tuple(self._maps()),
            said.text("workflow"),  # type: ignore[arg-type]  # one of the words of its table
            None if manager is None else self._manager(manager),
            said.text("on_error") or "fail_fast",  # type: ignore[arg-type]  # as above
            said.whole("max_parallel") or 1,
            said.text("provider"),
            said.text("model"),
            {id(task): name for name, task in self.tasks.items()},
        )
        self.places[id(cast)] = said
        return Read(cast, self.written, self.uses, self.places, tuple(self.problems))

    # ── agents ───────────────────────────────────────────────────────────

    def _agent(self, said: Said) -> Agent:
        agent = Agent(said.text("role") or "", **self._member(said))
        self._note(agent, said, AGENT_TEXTS)
        return agent

    def _manager(self, said: Said) -> Manager:
        manager = Manager(
            said.text("role") or "",
            **self._member(said),
            max_delegations=said.whole("max_delegations"),
            max_per_worker=said.whole("max_per_worker"),
            workers=self._roles(said.words("workers")),
            required=self._roles(said.words("required")),
        )
        self._note(manager, said, AGENT_TEXTS)
        return manager

    def _roles(self, names: Iterable[str]) -> tuple[str, ...]:
        """A worker is named by its role, as it is written, or by the name that it has among the agents."""
        written = {agent.role for agent in self.agents.values()}
        return tuple(
            self.agents[name].role if name in self.agents and name not in written else name for name in names
        )

    def _member(self, said: Said) -> dict[str, Json]:
        limits = read_limits(said.inner("limits"))
        tools = said.words("tools")
        for tool in tools:
            if "*" not in tool and ":" not in tool:
                self.uses.setdefault(tool, said.span("tools"))
        return {
            "goal": said.text("goal") or "",
            "background": said.text("background") or "",
            "provider": said.text("provider"),
            "model": said.text("model"),
            "tools": tools,
            "once": said.words("once"),
            "options": {name: node.data() for name, node in said.entries("options")},
            "limits": replace(limits, turns=MOST_TURNS) if limits.turns is None else limits,
        }

    def _note(self, made: Agent | Task, said: Said, texts: Iterable[str]) -> None:
        """Where it stands, and its templates with their places."""
        self.places[id(made)] = said
        for name in texts:
            node = said.get(name)
            if isinstance(node, nodes.Scalar) and isinstance(node.value, str) and node.value:
                self.written[(id(made), name)] = template_of(node, "prompt")

    # ── tasks ────────────────────────────────────────────────────────────

    def _tasks(self) -> None:
        said_of: dict[str, Said] = {}
        for number, (key, node) in enumerate(_entries(self.said.get("tasks")), 1):
            said = Said("task", _map(node), NOTHING)
            name = said.text("id") or key or f"task-{number}"
            if name in said_of:
                span = said.span("id") if said.has("id") else said.node.span
                what, fix = f"two tasks have the id '{name}'", "give one of them another id"
                self.problems.append(Problem(what, span, fix, code="duplicate-id"))
                continue
            said_of[name] = said
            self.tasks[name] = self._task(said)
        for name, said in said_of.items():
            found = tuple(self._named(said, "context"))
            # All tasks are there before any can be named; nobody has seen this one yet.
            object.__setattr__(self.tasks[name], "context", found)

    def _task(self, said: Said) -> Task:
        params, schema, tool = said.get("params"), said.get("output_schema"), said.text("tool")
        if tool is not None:
            self.uses.setdefault(tool, said.span("tool"))
        task = Task(
            said.text("description") or "",
            said.text("expected_output") or "",
            agent=self._agent_of(said),
            tool=tool,
            params=None if params is None else params.data(),
            name=said.text("name"),
            output_schema=schema.data() if isinstance(schema, nodes.Mapping) else None,
            max_output_retries=said.whole("max_output_retries") or 0,
            attempts=said.whole("attempts") or 1,
            timeout=said.seconds("timeout"),
        )
        self._note(task, said, TASK_TEXTS)
        if params is not None:
            self.written[(id(task), "params")] = template_of(params, "graph")
        return task

    def _agent_of(self, said: Said) -> Agent | None:
        inner, named = said.inner("agent"), said.text("agent")
        if inner is not None:
            return self._agent(inner)
        if named is not None and named not in self.agents:
            what = f"there is no agent '{named}'"
            self.problems.append(_unknown(what, said.get("agent"), named, self.agents, "unknown-agent"))
        return None if named is None else self.agents.get(named)

    def _named(self, said: Said, name: str) -> Iterator[Task]:
        """The tasks that a field names, one or several."""
        node = said.get(name)
        for one in node.items if isinstance(node, nodes.Sequence) else (node,):
            wanted = one.data() if isinstance(one, nodes.Scalar) else None
            if wanted is None:
                continue
            if wanted in self.tasks:
                yield self.tasks[wanted]
            else:
                what = f"there is no task '{wanted}'"
                self.problems.append(_unknown(what, one, str(wanted), self.tasks, "unknown-task"))

    # ── loops and maps ───────────────────────────────────────────────────

    def _loops(self) -> Iterator[Loop]:
        for node in self.said.items("loops"):
            said = Said("ensemble_loop", _map(node), NOTHING)
            loop = Loop(
                tuple(self._named(said, "tasks")),
                self._until(said),
                max_iterations=said.whole("max_iterations") or 0,
                on_max=said.text("on_max") or "return_last",  # type: ignore[arg-type]  # a word of its table
                feedback=said.flag("feedback"),
                name=said.text("id"),
            )
            self.places[id(loop)] = said
            yield loop

    def _until(self, said: Said) -> Json:
        node = said.get("until")
        if node is None:
            return None
        source = node.source() if isinstance(node, nodes.Scalar) and isinstance(node.value, str) else None
        try:
            return read_when(node.data(), source=source, locate=lambda place: (node.at(place) or node).span)
        except InputError as error:
            self.problems += error.problems
            return None

    def _maps(self) -> Iterator[MapReduce]:
        node = self.said.get("map")
        for one in node.items if isinstance(node, nodes.Sequence) else (node,):
            if isinstance(one, nodes.Mapping):
                yield from self._map(Said("ensemble_map", one, NOTHING))

    def _map(self, said: Said) -> Iterator[MapReduce]:
        items, path = self._items(said)
        reduce = next(self._named(said, "reduce"), None)
        for task in self._named(said, "task"):
            made = MapReduce(
                items,
                task,
                reduce,
                item=said.text("as") or "item",
                chunk_size=said.whole("chunk_size"),
                target_tokens=said.whole("target_tokens"),
                max_levels=said.whole("max_levels") or MAX_LEVELS,
                path=path,
                on_empty=on_empty_of(said),
            )
            self.places[id(made)] = said
            yield made

    def _items(self, said: Said) -> tuple[Json, str | None]:
        """A list, the name of an input, or the task that makes the list and where in its data that is."""
        made = said.inner("items")
        if made is not None:
            return next(self._named(made, "task"), ()), made.text("path")
        items = said.get("items")
        assert isinstance(items, nodes.Sequence | nodes.Scalar)
        return items.data(), None


def _map(node: nodes.Node) -> nodes.Mapping:
    assert isinstance(node, nodes.Mapping), "what is no map was told before"
    return node


def _entries(node: nodes.Node | None) -> Iterator[tuple[str, nodes.Node]]:
    match node:
        case nodes.Sequence(items):
            yield from (("", item) for item in items)
        case nodes.Mapping(entries):
            yield from ((str(key.value), value) for key, value in entries)


def _unknown(what: str, node: nodes.Node | None, wanted: str, known: Iterable[str], code: str) -> Problem:
    names = list(known)
    guess = nearest(wanted, names)
    there = f"there are: {listed(names)}" if names else "there are none"
    fix = f"did you mean '{guess}'?" if guess else there
    return Problem(what, None if node is None else node.span, fix, code=code)


# ── what is wrong with it ────────────────────────────────────────────────


def check_ensemble(document: nodes.Node, *, names: Iterable[str] = ()) -> list[Finding]:
    """All findings of a document, sorted by place; `names` are inputs that will be given, too."""
    found = [_of_format(one) for one in format.problems(document, format.ENSEMBLE)]
    items = dict(_item_names(document))
    for one in read_fields(document, "prompt", names=names).fields:
        if not one.when:
            found += check_field(_knowing(one, items.get(id(one.scalar))), "prompt")
    if not any(finding.severity == "error" and finding.code not in ABOUT_TEXTS for finding in found):
        assert isinstance(document, nodes.Mapping)
        found += _of_parts(Said("ensemble", document, NOTHING))
    return sorted(dict.fromkeys(found), key=lambda finding: finding.problem.place)


def _item_names(document: nodes.Node) -> Iterator[tuple[int, str]]:
    """The texts of a map's task, which know the item, and what that is called there."""
    said = document.get("map") if isinstance(document, nodes.Mapping) else None
    maps = [one for one in (said.items if isinstance(said, nodes.Sequence) else (said,)) if one is not None]
    names = {_word(one, "task"): _word(one, "as") or "item" for one in maps}
    for key, task in _entries(document.get("tasks") if isinstance(document, nodes.Mapping) else None):
        name = names.get(_word(task, "id") or key or None)
        for text in TASK_TEXTS if name else ():
            node = task.get(text) if isinstance(task, nodes.Mapping) else None
            if node is not None and name is not None:
                yield id(node), name


def _knowing(one: Field, item: str | None) -> Field:
    """The text of a map's task may ask for the item and its fields, whatever those are."""
    text = one.scalar.value
    if item is None or one.declared is None or not isinstance(text, str):
        return one
    asked = compile_template(text, "prompt").placeholders
    return replace(one, declared=one.declared | {name for name in asked if is_item_name(name, item)})


def _word(node: nodes.Node | None, key: str) -> str | None:
    value = node.get(key) if isinstance(node, nodes.Mapping) else None
    return value.value if isinstance(value, nodes.Scalar) and isinstance(value.value, str) else None


ABOUT_TEXTS: Final = frozenset({"unknown-input", "malformed-hole"})


def _of_format(problem: Problem) -> Finding:
    return Finding(problem, "warning" if problem.code in format.WARNED else "error")


def _of_parts(said: Said) -> Iterator[Finding]:
    try:
        _parameters(said.node)
    except InputError as error:
        yield from map(Finding, error.problems)
    yield from hook_findings(said.get("hooks"))
    read = _Reader(said, "").read()
    yield from map(Finding, read.problems)
    if not read.problems:
        yield from map(Finding, problems_of(read.cast, read.where))
        inputs = _declared_inputs(said)
        for task in read.cast.tasks:
            yield from _params(read, task, inputs)
        for one in read.cast.maps if inputs else ():
            yield from _items_given(read, one, inputs)
    for loop in read.cast.loops:
        yield from _until_names(read.places[id(loop)].get("until"))


KNOWN_UNTIL: Final = (
    Name("output", (), "what the last task of the round gave, as text"),
    Name("data", (), "the same as data"),
    Name("iteration", (), "the number of the round"),
)


def _until_names(node: nodes.Node | None) -> Iterator[Finding]:
    known = _known(KNOWN_UNTIL, "a loop")
    match node:
        case nodes.Scalar(str()):
            yield from check_field(Field("until", node, "a loop", known, when=True), "workflow")
        case nodes.Mapping():
            for root in dict.fromkeys(str(keys[0]) for keys in asked_keys(node.data()) if keys):
                if root not in known:
                    what = f"nothing here is named '{root}'"
                    yield Finding(_unknown(what, node, root, known, "unknown-name"))


def _declared_inputs(said: Said) -> tuple[str, ...]:
    """The names of the inputs; none, if the file does not say which there are."""
    try:
        return tuple(_parameters(said.node))
    except InputError:  # which was told
        return ()


def _items_given(read: Read, one: MapReduce, inputs: Collection[str]) -> Iterator[Finding]:
    """The items of a map are in an input that is there."""
    if isinstance(one.items, str) and one.items not in inputs:
        guess = nearest(one.items, inputs)
        meant = f"did you mean '{guess}'? " if guess else ""
        fix = f"{meant}declare it under inputs, next to: {listed(sorted(inputs))}"
        what = f"no input is named '{one.items}'"
        node = read.places[id(one)].get("items")
        yield Finding(Problem(what, None if node is None else node.span, fix, code="unknown-input"))


def _params(read: Read, task: Task, inputs: tuple[str, ...]) -> Iterator[Finding]:
    """Names in the parameters of a tool that are not there."""
    node = read.places[id(task)].get("params")
    if node is None:
        return
    item = next((one.item for one in read.cast.maps if one.task is task), None)
    context = tuple(read.cast.id_of(one) for one in task.context)
    if inputs and item is not None:  # an item has whatever fields it has
        asked = (input_of(hole) for _, hole in asking(read.written[(id(task), "params")]))
        inputs = (*inputs, item, *(name for name in asked if is_item_name(name, item)))
    known = [
        Name("inputs", (), "what the ensemble was given", inputs),
        Name("task", (), "the task itself, its texts filled", TASK_FACTS),
    ]
    reduced = next((one.task for one in read.cast.maps if one.reduce is task), None)
    if reduced is not None:
        items = _items_named(read.written[(id(task), "params")], read.cast.id_of(reduced))
        known.append(Name("context", (), "the outputs that it puts together", (*context, *items)))
    elif context:
        known.append(Name("context", (), "the outputs of the tasks in its context", context))
    if item is not None:
        known += [Name(name, (), "the item") for name in (item, f"{item}_index", f"{item}_total")]
    there = _known(known, "a task")
    for scalar in strings(node):
        declared_so = frozenset(inputs) if inputs else None
        for finding in check_field(Field("params", scalar, "a task", there, declared=declared_so), "graph"):
            yield finding if reduced is None else _in_reduce(finding, read.cast.id_of(reduced))


def _in_reduce(finding: Finding, task: str) -> Finding:
    """It is given the outputs of a map, which have not the name of their task."""
    if finding.code != "unknown-name" or "'context." not in finding.problem.what:
        return finding
    fix = (
        f"a reduce has the outputs of '{task}' one by one: {task}-0, {task}-1, …; "
        "'context' alone is all of them"
    )
    return replace(finding, problem=replace(finding.problem, fix=fix))


def _items_named(template: Template, task: str) -> list[str]:
    """What a reduce calls the outputs of a map's task: how many there are is known when they are there."""
    holes = [
        part for leaf in template.leaves() for part in leaf.program.parts if isinstance(part, ContextHole)
    ]
    paths = [one.origin for hole in holes for one in hole.alternatives if isinstance(one.origin, Path)]
    asked = {str(path.keys[0]) for path in paths if path.root == "context" and path.keys}
    numbered = [name for name in asked if name.removeprefix(f"{task}-").isdecimal()]
    return sorted(numbered) or [f"{task}-0"]


def _known(names: Collection[Name], where: str) -> Known:
    return Known(where, {name.name: (at, name) for at, name in enumerate(names)}, len(names))
