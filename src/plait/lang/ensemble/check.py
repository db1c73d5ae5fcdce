"""Check an ensemble from a file or from Python.

`where` returns the place of a field of a task, loop, map or agent in a file. A Python object has no
such place, so the message names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING, TypeAlias
from plait.core.records import replace
from plait.core.source import Span
from plait.lang.analysis.names import BuiltinName, strings
from plait.lang.analysis.scopes import KnownNames, TemplateField, find_templates
from plait.lang.analysis.templates import check_template, unknown_input
from plait.lang.ensemble.read import (
    NOTHING,
    EnsembleReader,
    ensemble_parameters,
    task_entries,
    unknown_problem,
)
from plait.lang.findings import Finding, from_format, sort_findings
from plait.lang.flow_text import FlowText
from plait.lang.hooks import hook_findings
from plait.program.tasks.loop import compile_until
from plait.program.tasks.model import (
    PLAIN_AGENT,
    Agent,
    EnsembleSpec,
    Loop,
    Manager,
    MapReduce,
    Task,
)
from plait.program.tasks.task import TASK_FACTS
from plait.program.tasks.text import (
    TASK_TEXTS,
    is_item_name,
    placeholder_input,
    required_placeholders,
)
from plait.schema import Fields
from plait.schema.ensemble_tables import ON_ERROR, ON_MAX, STRATEGIES
from plait.schema.shared import ON_EMPTY
from plait.template.conditions import condition_paths
from plait.template.grammar import parse_path
from plait.template.nodes import ContextPlaceholder, Path
from plait.template.template import compile_template

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.lang.ensemble.read import ParsedEnsemble
    from plait.program.tasks.model import MapReduce, Task
    from plait.template.template import Template

Where: TypeAlias = Callable[[object, str], Span | None]
"""The place of a field of an object; None if it is not in a file."""


def no_location(owner: object, field: str) -> Span | None:  # noqa: ARG001 - a Where
    return None


def check_ensemble_spec(spec: EnsembleSpec, where: Where = no_location) -> list[Problem]:
    """All problems: of the ensemble, then by task, loop and map."""
    found = [*_of_whole(spec, where)]
    known = {id(task) for task in spec.tasks}
    for task in spec.tasks:
        found += _of_task(spec, task, where, known)
    for agent in {
        id(task.agent): task.agent for task in spec.tasks if task.agent is not None
    }.values():
        found += _of_agent(agent, where)
    found += _of_groups(spec, where)
    for loop in spec.loops:
        found += _of_loop(spec, loop, where)
    for one in spec.maps:
        found += _of_map(spec, one, where)
    found += _of_manager(spec, where)
    if not found:  # a cycle may only follow from another problem
        found += _order_problems(spec, where)
    return found


# ── the ensemble ────────────────────────────────────────────────────────────


def _of_whole(spec: EnsembleSpec, where: Where) -> Iterator[Problem]:
    if not spec.tasks:
        yield Problem(
            "an ensemble has at least one task", where(spec, "tasks"), "write one", code="no-tasks"
        )
    for name, value, words in (
        ("workflow", spec.workflow, STRATEGIES),
        ("on_error", spec.on_error, ON_ERROR),
    ):
        if value is not None and value not in words:
            yield _no_word(name, str(value), words, where(spec, name))
    if spec.max_parallel < 1:
        what = "max_parallel is at least 1"
        yield Problem(
            what, where(spec, "max_parallel"), "remove it, or raise it", code="wrong-type"
        )
    for task, times in _times(spec.tasks):
        if times > 1:
            what = f"task '{spec.task_id(task)}' stands {times} times in the list"
            fix = "make a second Task: two tasks may have the same text"
            yield Problem(what, None, fix, code="duplicate-task")


def _times(tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
    counts = Counter(map(id, tasks))
    for task in {id(task): task for task in tasks}.values():
        yield task, counts[id(task)]


def _no_word(field: str, value: str, words: Sequence[str], where: Span | None) -> Problem:
    guess = closest_name(value, words)
    fix = f"did you mean '{guess}'?" if guess else f"use one of {', '.join(words)}"
    return Problem(f"'{field}' cannot be '{value}'", where, fix, code="wrong-type")


# ── tasks and agents ─────────────────────────────────────────────────────


def _of_task(spec: EnsembleSpec, task: Task, where: Where, known: set[int]) -> Iterator[Problem]:
    called = f"task '{spec.task_id(task)}'"
    by_handler, by_tool = task.handler is not None, task.tool is not None
    for one, other, is_odd in (
        ("handler", "agent", by_handler and task.agent is not None),
        ("handler", "tool", by_handler and by_tool),
        ("tool", "agent", by_tool and task.agent is not None),
        ("handler", "output_schema", by_handler and task.output_schema is not None),
        ("tool", "output_schema", by_tool and task.output_schema is not None),
    ):
        if is_odd:
            what = f"{called} has {one} and {other}, but only one of them can do it"
            if other == "output_schema":
                what = f"{called} has a {one}, but output_schema is only for models"
            yield Problem(
                what, where(task, other), f"leave away {one} or {other}", code="contradiction"
            )
    if task.params is not None and not by_tool:
        what = f"{called} has params but no tool"
        yield Problem(
            what, where(task, "params"), "name a tool, or remove them", code="contradiction"
        )
    if by_handler and not callable(task.handler):
        yield Problem(
            f"the handler of {called} is not a function", None, "pass one", code="wrong-type"
        )
    if task.params is not None and not isinstance(task.params, Mapping):
        yield Problem(
            f"the params of {called} are not a map",
            where(task, "params"),
            "write a map",
            code="wrong-type",
        )
    for place, least in (("attempts", 1), ("max_output_retries", 0)):
        if getattr(task, place) < least:
            yield Problem(
                f"'{place}' of {called} is at least {least}",
                where(task, place),
                "raise it",
                code="wrong-type",
            )
    for needed in task.context:
        if needed is task:
            yield Problem(
                f"{called} has itself in its context",
                where(task, "context"),
                "take it out",
                code="cycle",
            )
        elif id(needed) not in known:
            what = f"{called} has a task in its context that the ensemble does not have"
            yield Problem(what, where(task, "context"), "add it to the tasks", code="unknown-task")


def _of_agent(agent: Agent, where: Where) -> Iterator[Problem]:
    if not agent.role.strip():
        yield Problem(
            "an agent has a role", where(agent, "role"), "describe it", code="missing-field"
        )


# ── loops and maps ───────────────────────────────────────────────────────


def _of_groups(spec: EnsembleSpec, where: Where) -> Iterator[Problem]:
    """Problems of tasks that are in more than one loop or map."""
    taken: dict[int, str] = {}
    for owner, tasks in _groups(spec):
        for task in tasks:
            if id(task) in taken:
                what = f"task '{spec.task_id(task)}' is in two loops or maps"
                yield Problem(what, where(owner, "tasks"), "keep it in one", code="contradiction")
            taken[id(task)] = spec.task_id(task)


def _groups(spec: EnsembleSpec) -> Iterator[tuple[Loop | MapReduce, Sequence[Task]]]:
    yield from ((loop, loop.tasks) for loop in spec.loops)
    for one in spec.maps:
        yield one, [one.task] if one.reduce is None else [one.task, one.reduce]


def _of_loop(spec: EnsembleSpec, loop: Loop, where: Where) -> Iterator[Problem]:
    called = f"loop '{loop.name}'" if loop.name else "a loop"
    if not loop.tasks:
        yield Problem(f"{called} has no tasks", where(loop, "tasks"), "name some", code="no-tasks")
    if loop.max_iterations < 1:
        what = f"'max_iterations' of {called} is at least 1"
        yield Problem(what, where(loop, "max_iterations"), "raise it", code="wrong-type")
    if loop.on_max not in ON_MAX:
        yield _no_word("on_max", loop.on_max, ON_MAX, where(loop, "on_max"))
    if loop.until is not None and not callable(loop.until):
        try:
            compile_until(loop.until)
        except InputError as error:
            place = where(loop, "until")
            yield from (
                one if isinstance(one.where, Span) else replace(one, where=place)
                for one in error.problems
            )
    seen: set[int] = set()
    for task in loop.tasks:
        for one in task.context:
            if (
                any(one is other for other in loop.tasks)
                and id(one) not in seen
                and one is not task
            ):
                what = (
                    f"task '{spec.task_id(task)}' needs '{spec.task_id(one)}', which comes later "
                    f"in {called}"
                )
                fix = "put it before, or rely on the feedback of the round before"
                yield Problem(what, where(task, "context"), fix, code="wrong-order")
        seen.add(id(task))


def _of_map(spec: EnsembleSpec, one: MapReduce, where: Where) -> Iterator[Problem]:
    called = f"the map of task '{spec.task_id(one.task)}'"
    if one.on_empty not in ON_EMPTY:
        yield _no_word("on_empty", one.on_empty, ON_EMPTY, where(one, "on_empty"))
    if one.chunk_size is not None and one.chunk_size < 2:
        what = f"'chunk_size' of {called} is at least 2"
        yield Problem(what, where(one, "chunk_size"), "remove it, or raise it", code="wrong-type")
    for field, least in (("target_tokens", 1), ("max_levels", 1)):
        value = getattr(one, field)
        if value is not None and value < least:
            what = f"'{field}' of {called} is at least {least}"
            yield Problem(what, where(one, field), "remove it, or raise it", code="wrong-type")
    for field in ("chunk_size", "target_tokens"):
        if getattr(one, field) is not None and one.reduce is None:
            what = f"{called} has {field}, but no task to reduce its outputs"
            yield Problem(what, where(one, field), "name a task for reduce", code="contradiction")
    yield from _of_items(spec, one, called, where)
    if one.reduce is not None and any(task is one.reduce for task in one.task.context):
        task, reduce = spec.task_id(one.task), spec.task_id(one.reduce)
        what = f"task '{task}' needs '{reduce}', which puts its outputs together"
        yield Problem(what, where(one.task, "context"), "take it out of the context", code="cycle")


def _of_items(spec: EnsembleSpec, one: MapReduce, called: str, where: Where) -> Iterator[Problem]:
    if one.path is not None and one.source is None:
        what = f"{called} has a path, but no task makes its items"
        yield Problem(what, where(one, "path"), "name the task, or remove it", code="contradiction")
    if one.path is not None:
        try:
            parse_path(one.path)
        except InputError as error:
            yield replace(error.problems[0], where=where(one, "items"))
    if one.source is not None:
        if not any(one.source is task for task in spec.tasks):
            what = f"the items of {called} come from a task that the ensemble does not have"
            yield Problem(what, where(one, "items"), "add it to the tasks", code="unknown-task")
        elif any(one.source is other for other in (one.task, one.reduce)):
            what = f"the items of {called} come from '{spec.task_id(one.source)}', which is in it"
            yield Problem(what, where(one, "items"), "name another task", code="cycle")
    elif not isinstance(one.items, str) and not isinstance(one.items, Sequence):
        what = f"the items of {called} are a list, the name of an input, or a task"
        yield Problem(what, where(one, "items"), "write a list", code="wrong-type")


# ── a manager ────────────────────────────────────────────────────────────


def _of_manager(spec: EnsembleSpec, where: Where) -> Iterator[Problem]:
    manager = spec.manager
    if spec.workflow != "hierarchical":
        if manager is not None:
            fix = "write workflow: hierarchical, or remove the manager"
            what = "an ensemble has a manager only if it is hierarchical"
            yield Problem(what, where(spec, "manager"), fix, code="contradiction")
        return
    for task in spec.tasks:
        if not task.is_done_by_model:
            what = f"task '{spec.task_id(task)}' has no agent, but a manager delegates to agents"
            yield Problem(what, where(task, "tool"), "give it an agent", code="contradiction")
        if task.context:
            what = (
                f"task '{spec.task_id(task)}' has a context, but the manager decides what its "
                "workers know"
            )
            yield Problem(what, where(task, "context"), "remove it", code="contradiction")
    if spec.loops or spec.maps:
        what = (
            "an ensemble with a manager has no loops or maps: the manager decides what is repeated"
        )
        yield Problem(what, where(spec, "workflow"), "remove them", code="contradiction")
    yield from _same_roles(spec, where)
    if manager is not None:
        yield from _of_caps(spec, manager, where)


def _same_roles(spec: EnsembleSpec, where: Where) -> Iterator[Problem]:
    agents = {id(agent): agent for task in spec.tasks if (agent := task.agent) is not None}
    seen: set[str] = set()
    for agent in agents.values():
        if agent.role.casefold() in seen:
            what = (
                f"two agents have the role '{agent.role}', so the manager cannot distinguish them"
            )
            yield Problem(
                what, where(agent, "role"), "give one of them another role", code="duplicate-role"
            )
        seen.add(agent.role.casefold())


def _of_caps(spec: EnsembleSpec, manager: Manager, where: Where) -> Iterator[Problem]:
    roles = list(dict.fromkeys((task.agent or PLAIN_AGENT).role for task in spec.tasks))
    for field, known in (("workers", roles), ("required", list(manager.workers) or roles)):
        for role in getattr(manager, field):
            if role not in known:
                guess = closest_name(role, known)
                fix = f"did you mean '{guess}'?" if guess else f"known: {format_names(known)}"
                yield Problem(
                    f"'{field}' names an unknown worker: '{role}'",
                    where(manager, field),
                    fix,
                    code="unknown-role",
                )
    for field in ("max_delegations", "max_per_worker"):
        cap = getattr(manager, field)
        if cap is not None and cap < 1:
            yield Problem(
                f"'{field}' is at least 1", where(manager, field), "raise it", code="wrong-type"
            )


# ── order ────────────────────────────────────────────────────────────────


def _order_problems(spec: EnsembleSpec, where: Where) -> Iterator[Problem]:
    circle = _circle(spec)
    if circle:
        names = " → ".join(f"'{spec.task_id(task)}'" for task in [*circle, circle[0]])
        what = f"tasks need each other in a circle: {names}"
        yield Problem(
            what, where(circle[0], "context"), "take one of them out of a context", code="cycle"
        )
        return
    if spec.strategy != "sequential":
        return
    seen: set[int] = set()
    for task in spec.tasks:
        for one in spec.needs(task):
            if id(one) not in seen:
                what = (
                    f"task '{spec.task_id(task)}' needs '{spec.task_id(one)}', which comes later "
                    "in the list"
                )
                fix = "put it before, or write workflow: parallel"
                yield Problem(what, where(task, "context"), fix, code="wrong-order")
        seen.add(id(task))


def _circle(spec: EnsembleSpec) -> list[Task]:
    """Tasks that need each other in a cycle; the tasks of a loop or a map count as one."""
    groups = {id(task): id(owner) for owner, tasks in _groups(spec) for task in tasks}
    state: dict[int, str] = {}
    for first in spec.tasks:
        trail: list[tuple[Task, Iterator[Task]]] = []
        group = groups.get(id(first), id(first))
        if group in state:
            continue
        state[group] = "open"
        trail.append((first, iter(_needs(spec, first, groups))))
        while trail:
            task, needs = trail[-1]
            nearer = next(needs, None)
            if nearer is None:
                state[groups.get(id(task), id(task))] = "closed"
                trail.pop()
                continue
            group = groups.get(id(nearer), id(nearer))
            if state.get(group) == "open":
                names = [one for one, _ in trail]
                start = next(
                    at for at, one in enumerate(names) if groups.get(id(one), id(one)) == group
                )
                return names[start:]
            if group not in state:
                state[group] = "open"
                trail.append((nearer, iter(_needs(spec, nearer, groups))))
    return []


def _needs(spec: EnsembleSpec, task: Task, groups: Mapping[int, int]) -> Iterable[Task]:
    """The tasks that must end before a task, or before the loop or map that contains it."""
    own = groups.get(id(task), id(task))
    together = [one for one in spec.tasks if groups.get(id(one), id(one)) == own]
    return [
        need
        for one in together
        for need in spec.needs(one)
        if groups.get(id(need), id(need)) != own
    ]


def check_flow(source: FlowText, names: Iterable[str], project: str | None) -> list[Finding]:  # noqa: ARG001 - of Language
    return check_ensemble(source.document, names=names)


def check_ensemble(document: nodes.Node, *, names: Iterable[str] = ()) -> list[Finding]:
    """All findings of a document, sorted by place; `names` are further inputs."""
    found = [from_format(one) for one in schema.validate(document, schema.ENSEMBLE)]
    items = dict(_item_names(document))
    for one in find_templates(document, "prompt", names=names).fields:
        if not one.when:
            found += check_template(_with_item_names(one, items.get(id(one.scalar))), "prompt")
    if not any(
        finding.severity == "error" and finding.code not in ABOUT_TEXTS for finding in found
    ):
        assert isinstance(document, nodes.Mapping)
        found += _of_parts(Fields("ensemble", document, NOTHING))
    return sort_findings(found)


def _item_names(document: nodes.Node) -> Iterator[tuple[int, str]]:
    """The texts of the task of a map, by identity, and the name of the item in them."""
    map_node = document.get("map") if isinstance(document, nodes.Mapping) else None
    maps = [
        one
        for one in (map_node.items if isinstance(map_node, nodes.Sequence) else (map_node,))
        if one is not None
    ]
    names = {nodes.text_field(one, "task"): nodes.text_field(one, "as") or "item" for one in maps}
    for key, task in task_entries(
        document.get("tasks") if isinstance(document, nodes.Mapping) else None
    ):
        name = names.get(nodes.text_field(task, "id") or key or None)
        for text in TASK_TEXTS if name else ():
            node = task.get(text) if isinstance(task, nodes.Mapping) else None
            if node is not None and name is not None:
                yield id(node), name


def _with_item_names(one: TemplateField, item: str | None) -> TemplateField:
    """The field, with the names of the item; any field of the item may exist."""
    text = one.scalar.value
    if item is None or one.declared is None or not isinstance(text, str):
        return one
    used = compile_template(text, "prompt").placeholders
    return replace(one, declared=one.declared | {name for name in used if is_item_name(name, item)})


ABOUT_TEXTS: Final = frozenset({"unknown-input", "malformed-placeholder"})


def _of_parts(fields: Fields) -> Iterator[Finding]:
    try:
        ensemble_parameters(fields.node)
    except InputError as error:
        yield from map(Finding, error.problems)
    yield from hook_findings(fields.get("hooks"))
    read = EnsembleReader(fields, "").read()
    yield from map(Finding, read.problems)
    if not read.problems:
        yield from map(Finding, check_ensemble_spec(read.spec, read.where))
        inputs = _input_names(fields)
        for task in read.spec.tasks:
            yield from _params(read, task, inputs)
        for one in read.spec.maps if inputs else ():
            if isinstance(one.items, str) and one.items not in inputs:
                node = read.places[id(one)].get("items")
                yield Finding(unknown_input(one.items, inputs, None if node is None else node.span))
    for loop in read.spec.loops:
        yield from _until_names(read.places[id(loop)].get("until"))


KNOWN_UNTIL: Final = (
    BuiltinName("output", (), "the output of the last task of the round, as text"),
    BuiltinName("data", (), "the same as data"),
    BuiltinName("iteration", (), "the number of the round"),
)


def _until_names(node: nodes.Node | None) -> Iterator[Finding]:
    known = _make_known_names(KNOWN_UNTIL, "a loop")
    match node:
        case nodes.Scalar(str()):
            yield from check_template(
                TemplateField("until", node, "a loop", known, when=True), "workflow"
            )
        case nodes.Mapping():
            for root in dict.fromkeys(
                str(keys[0]) for keys in condition_paths(node.data()) if keys
            ):
                if root not in known:
                    what = f"unknown variable '{root}'"
                    yield Finding(unknown_problem(what, node, root, known, "unknown-name"))


def _input_names(fields: Fields) -> tuple[str, ...]:
    """The names of the inputs; none if the file declares none."""
    try:
        return tuple(ensemble_parameters(fields.node))
    except InputError:  # reported before
        return ()


def _params(read: ParsedEnsemble, task: Task, inputs: tuple[str, ...]) -> Iterator[Finding]:
    """Unknown names in the parameters of a tool."""
    node = read.places[id(task)].get("params")
    if node is None:
        return
    item = next((one.item for one in read.spec.maps if one.task is task), None)
    context = tuple(read.spec.task_id(one) for one in task.context)
    if inputs and item is not None:  # the fields of an item are not known
        used = (
            placeholder_input(placeholder)
            for _, placeholder in required_placeholders(read.written[(id(task), "params")])
        )
        inputs = (*inputs, item, *(name for name in used if is_item_name(name, item)))
    known = [
        BuiltinName("inputs", (), "the inputs of the ensemble", inputs),
        BuiltinName("task", (), "the task itself, its texts filled", TASK_FACTS),
    ]
    reduced = next((one.task for one in read.spec.maps if one.reduce is task), None)
    if reduced is not None:
        items = _items_named(read.written[(id(task), "params")], read.spec.task_id(reduced))
        known.append(
            BuiltinName("context", (), "the outputs that it puts together", (*context, *items))
        )
    elif context:
        known.append(BuiltinName("context", (), "the outputs of the tasks in its context", context))
    if item is not None:
        known += [
            BuiltinName(name, (), "the item") for name in (item, f"{item}_index", f"{item}_total")
        ]
    there = _make_known_names(known, "a task")
    for scalar in strings(node):
        declared_so = frozenset(inputs) if inputs else None
        for finding in check_template(
            TemplateField("params", scalar, "a task", there, declared=declared_so), "graph"
        ):
            yield finding if reduced is None else _in_reduce(finding, read.spec.task_id(reduced))


def _in_reduce(finding: Finding, task: str) -> Finding:
    """A finding in the reduce of a map, with the names of the outputs that it gets."""
    if finding.code != "unknown-name" or "'context." not in finding.problem.what:
        return finding
    fix = (
        f"a reduce has the outputs of '{task}' one by one: {task}-0, {task}-1, …; "
        "'context' alone is all of them"
    )
    return replace(finding, problem=replace(finding.problem, fix=fix))


def _items_named(template: Template, task: str) -> list[str]:
    """The names under which a reduce uses outputs of the task; their number is known only in a
    run.
    """
    found = [
        part
        for leaf in template.leaves()
        for part in leaf.compiled.parts
        if isinstance(part, ContextPlaceholder)
    ]
    paths = [
        one.origin
        for placeholder in found
        for one in placeholder.alternatives
        if isinstance(one.origin, Path)
    ]
    used = {str(path.keys[0]) for path in paths if path.root == "context" and path.keys}
    numbered = [name for name in used if name.removeprefix(f"{task}-").isdecimal()]
    return sorted(numbered) or [f"{task}-0"]


def _make_known_names(names: Collection[BuiltinName], where: str) -> KnownNames:
    return KnownNames(where, {name.name: (at, name) for at, name in enumerate(names)}, len(names))
