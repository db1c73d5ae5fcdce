"""The texts of an ensemble: fill all templates before the run, and build prompts.

One error names everything that is missing in any task, loop, map or agent. A prompt consists of the
system text of an agent, the outputs of the context, the task, the expected output and the format of
the answer. Outputs are inserted as they are: they are not templates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plait.core.errors import InputError, Problem, PromptTemplateError, closest_name
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json, json_text, text
from plait.program.tasks.model import Agent, EnsembleSpec, MapReduce, Task, TaskOutput
from plait.template.compiled import FALLBACK_ROOTS, follow_path
from plait.template.grammar import parse_path
from plait.template.nodes import (
    ContextPlaceholder,
    InputPlaceholder,
    Path,
    Placeholder,
    PromptPlaceholder,
    Text,
    placeholders,
)
from plait.template.template import Leaf, Template, compile_template

if TYPE_CHECKING:
    from plait.agents.messages import Provider

LONGEST_SHOWN: Final = 100
"""The maximum length of a template in messages."""
TASK_TEXTS: Final = ("description", "expected_output")
AGENT_TEXTS: Final = ("role", "goal", "background")

Place: TypeAlias = tuple[int, str]
"""The identity of a task or agent, and one of its fields."""
Filler: TypeAlias = Callable[[Mapping[str, Json]], str]
_Missing: TypeAlias = tuple[list[str], str, Span | None]
"""The variables, the text that uses them, and its position in a file."""


# ── filling ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FilledTasks:
    """Copies of the tasks of an ensemble with filled texts."""

    tasks: Mapping[int, Task]
    """By identity of the task."""
    items: Mapping[int, tuple[Task, ...]]
    """By identity of the task of a map: one task per item, unless another task makes the items."""
    agents: Mapping[int, Agent]
    inputs: Mapping[str, Json]

    def task(self, task: Task) -> Task:
        return self.tasks[id(task)]


class TaskTemplates:
    """The templates of an ensemble, compiled once and filled at every run."""

    def __init__(self, spec: EnsembleSpec, written: Mapping[Place, Template] | None = None) -> None:
        """`written`: templates read from a file, so that problems point into it."""
        self._spec = spec
        self._maps = {id(one.task): one for one in spec.maps}
        agents = [*(task.agent for task in spec.tasks), spec.manager]
        self._agents = list({id(one): one for one in agents if one is not None}.values())
        read = dict(written or {})
        self._templates: dict[Place, Template] = {
            place: read[place]
            if place in read
            else compile_template(text, "prompt", source=Source("", text))
            for place, text in self._texts()
        }
        self._fillers = {place: _filler(template) for place, template in self._templates.items()}
        self._task_fillers = {
            id(task): [self._fillers.get((id(task), name)) for name in TASK_TEXTS]
            for task in spec.tasks
        }
        self._params = {
            id(task): read.get((id(task), "params")) or compile_template(task.params, "graph")
            for task in spec.tasks
            if task.params is not None
        }
        self._required = {
            key: found for key, one in self._params.items() if (found := required_placeholders(one))
        }
        """Placeholders in tool parameters that need an input or an item."""
        self._is_plain = not (self._required or spec.maps)

    def params(self, task: Task) -> Template | None:
        """The parameters of a tool: a template of the profile `graph`."""
        return self._params.get(id(task))

    def fill_all(
        self, inputs: Mapping[str, Json], providers: Mapping[int, Provider] | None = None
    ) -> FilledTasks:
        """Fill all texts; raises PromptTemplateError with every missing variable, in order of
        appearance.

        `providers`: by identity of an agent whose author gave a function or a list.
        """
        asked = providers or {}
        try:
            agents = {id(agent): self._agent(agent, inputs, asked) for agent in self._agents}
            tasks: dict[int, Task] = {}
            items: dict[int, tuple[Task, ...]] = {}
            for task in self._spec.tasks:
                templates = self._task_fillers[id(task)]
                agent = None if task.agent is None else agents[id(task.agent)]
                one = self._maps.get(id(task))
                if one is None:
                    tasks[id(task)] = _fill_task(task, templates, agent, inputs)
                else:
                    tasks[id(task)] = replace(task, agent=agent)
                    if one.source is None:
                        items[id(task)] = tuple(
                            _fill_task(task, templates, agent, {**inputs, **names})
                            for names in item_names(one.item, map_items(one, inputs))
                        )
        except PromptTemplateError as error:
            raise (self.missing_error(inputs) or error) from None
        if not self._is_plain and (missing := self.missing_error(inputs)) is not None:
            raise missing
        _log_texts(self._templates.values(), len(inputs))
        return FilledTasks(tasks, items, agents, inputs)

    def fill_items(
        self, one: MapReduce, filled: FilledTasks, items: Sequence[Json]
    ) -> tuple[Task, ...]:
        """The task of a map for each of the items that another task made."""
        task, source = one.task, one.source
        assert source is not None
        texts = self._task_fillers[id(task)]
        agent = None if task.agent is None else filled.agents[id(task.agent)]
        made: list[Task] = []
        problems: list[Problem] = []
        for number, names in enumerate(item_names(one.item, items)):
            try:
                made.append(_fill_task(task, texts, agent, {**filled.inputs, **names}))
            except PromptTemplateError as error:
                names_missing = ", ".join(f"'{name}'" for name in error.missing_variables)
                what = f"item {number} of task '{self._spec.task_id(task)}' has no {names_missing}"
                fix = f"'{self._spec.task_id(source)}' has to give it, or remove it in the text"
                problems.append(Problem(what, None, fix, code="missing-variables"))
        if problems:
            raise InputError.together(problems)
        return tuple(made)

    def any_item(self, one: MapReduce, filled: FilledTasks) -> Task:
        """The task of a map with unknown items: placeholders of the item stay unfilled."""
        task = one.task
        texts = [
            template for name in TASK_TEXTS if (template := self._templates.get((id(task), name)))
        ]
        asked = {str(name) for template in texts for name in template.placeholders}
        names = {name for name in asked if is_item_name(name, one.item)} | {
            one.item, f"{one.item}_index", f"{one.item}_total"
        }  # fmt: skip
        values = {**filled.inputs, **{name: f"{{{name}}}" for name in names}}
        agent = None if task.agent is None else filled.agents[id(task.agent)]
        return _fill_task(task, self._task_fillers[id(task)], agent, values)

    def variables(self) -> tuple[str, ...]:
        """Every variable that must be given, in order of appearance."""
        found: dict[str, None] = {}
        for owner, field, own in self._fields():
            if field == "items":
                assert isinstance(owner, MapReduce)
                found.setdefault(str(owner.items))
                continue
            if field == "params":
                asked = (
                    placeholder_input(placeholder) for _, placeholder in self._required[id(owner)]
                )
                found |= dict.fromkeys(
                    name for name in asked if name and not is_item_name(name, own)
                )
                continue
            template = self._templates[(id(owner), field)]
            found |= dict.fromkeys(
                name for name in template.placeholders if not is_item_name(name, own)
            )
        return tuple(str(name) for name in found)

    def _texts(self) -> Iterator[tuple[Place, str]]:
        for owner, names in [(task, TASK_TEXTS) for task in self._spec.tasks] + [
            (agent, AGENT_TEXTS) for agent in self._agents
        ]:
            for name in names:
                text = getattr(owner, name)
                if text:
                    yield (id(owner), name), text

    def _agent(
        self, agent: Agent, inputs: Mapping[str, Json], providers: Mapping[int, Provider]
    ) -> Agent:
        texts: dict[str, Json] = {
            name: fill(inputs)
            for name in AGENT_TEXTS
            if (fill := self._fillers.get((id(agent), name))) is not None
        }
        return replace(agent, provider=providers.get(id(agent), agent.provider), **texts)

    # ── missing variables ────────────────────────────────────────────────

    def _fields(self) -> Iterator[tuple[Task | Agent | MapReduce, str, str | None]]:
        """Yield every text in order of appearance; for the task of a map with the name of the item."""
        seen: set[int] = set()
        for task in self._spec.tasks:
            one = self._maps.get(id(task))
            if one is not None and isinstance(one.items, str):
                yield one, "items", None
            for owner, names in ((task, TASK_TEXTS), (task.agent, AGENT_TEXTS)):
                if owner is None or id(owner) in seen:
                    continue
                seen.add(id(owner))
                own = one.item if one is not None and owner is task else None
                yield from (
                    (owner, name, own) for name in names if (id(owner), name) in self._templates
                )
                if id(owner) in self._required:
                    yield owner, "params", own
        manager = self._spec.manager
        if manager is not None and id(manager) not in seen:
            yield from (
                (manager, name, None)
                for name in AGENT_TEXTS
                if (id(manager), name) in self._templates
            )

    def missing_error(self, inputs: Mapping[str, Json]) -> PromptTemplateError | None:
        """The error with everything that is missing; None if nothing is."""
        problems: list[Problem] = []
        missing: dict[str, None] = {}
        template = ""
        for owner, field, own in self._fields():
            each = [] if isinstance(owner, MapReduce) else self._items_known(owner, own, inputs)
            for names, written, where in self._missing_at(owner, field, own, inputs):
                template = template or written
                missing |= dict.fromkeys(names)
                fix = _fix(names, inputs, each, own, is_in_file=where is not None)
                problems.append(
                    _problem(names, self._describe_field(owner, field), written, where, fix)
                )
        if not problems:
            return None
        error = PromptTemplateError(problems[0].what, list(missing), template)
        error.problems = tuple(problems)
        return error

    def _missing_at(
        self,
        owner: Task | Agent | MapReduce,
        field: str,
        item: str | None,
        inputs: Mapping[str, Json],
    ) -> Iterator[_Missing]:
        """Yield what is missing in one text, or in each parameter of a tool."""
        if isinstance(owner, MapReduce):
            name = str(owner.items)
            if name not in inputs:
                yield [name], name, None
            return
        each = self._items_known(owner, item, inputs)
        if field == "params":
            yield from _missing_params(self._required[id(owner)], inputs, each, item)
            return
        template = self._templates[(id(owner), field)]
        known = set(inputs)
        if each:
            known |= set.intersection(*map(set, each))
        elif item is not None:
            known |= {name for name in template.placeholders if is_item_name(name, item)}
        leaf = template.leaf
        absent = [one for one in placeholders(leaf.compiled.parts) if one.name not in known]
        if absent:
            names = list(dict.fromkeys(one.name for one in absent))
            yield names, leaf.source.text, _place(leaf, absent[0])

    def _items_known(
        self, owner: Task | Agent, item: str | None, inputs: Mapping[str, Json]
    ) -> list[dict[str, Json]]:
        """The variables of each item of a map, if they are known before the run."""
        one = self._maps.get(id(owner))
        if item is None or one is None or one.source is not None:
            return []
        if isinstance(one.items, str) and not isinstance(inputs.get(one.items), list | tuple):
            return []
        return list(item_names(item, map_items(one, inputs)))

    def _describe_field(self, owner: Task | Agent | MapReduce, field: str) -> str:
        match owner:
            case Task():
                return f"the {field.replace('_', ' ')} of task '{self._spec.task_id(owner)}'"
            case MapReduce():
                return f"the items of task '{self._spec.task_id(owner.task)}'"
        return f"the {field} of agent '{owner.role}'"


def _fill_task(
    task: Task, fillers: Sequence[Filler | None], agent: Agent | None, values: Mapping[str, Json]
) -> Task:
    description, expected = fillers
    return task.with_texts(
        task.description if description is None else description(values),
        task.expected_output if expected is None else expected(values),
        agent,
        values,
    )


def _filler(template: Template) -> Filler:
    """A function that fills a text by joining its pieces: fast without compiling."""
    parts = template.leaf.compiled.parts
    if template.counted or not all(isinstance(part, Text | PromptPlaceholder) for part in parts):
        return template.render
    written = [part.text if isinstance(part, Text) else "" for part in parts]
    names = [
        (at, part.name) for at, part in enumerate(parts) if isinstance(part, PromptPlaceholder)
    ]

    def fill(values: Mapping[str, Json]) -> str:
        pieces = written.copy()
        try:
            for at, name in names:
                value = values[name]
                pieces[at] = value if value.__class__ is str else text(value)
        except KeyError:
            return str(template.render(values))  # raises an error with everything that is missing
        return "".join(pieces)

    return fill


def _log_texts(templates: Iterable[Template], count: int) -> None:
    """Log the length of each text at debug level."""
    logging = sys.modules.get("logging")  # without this module there is no listener
    if logging is None or not (log := logging.getLogger("plait.template")).isEnabledFor(
        logging.DEBUG
    ):
        return
    for template in templates:
        log.debug(
            "Resolving template (%d chars) with %d variables", len(template.leaf.source.text), count
        )
        log.debug("Resolved %d variables in template", len(template.placeholders))


def _place(leaf: Leaf, placeholder: Placeholder) -> Span | None:
    name = leaf.source.name
    return (
        Span(leaf.source, placeholder.start, placeholder.end)
        if name and not name.startswith("<template>")
        else None
    )


# ── parameters of tools ──────────────────────────────────────────────────────


def required_placeholders(template: Template) -> list[tuple[Leaf, Placeholder]]:
    """The placeholders that need a value before a task of the context has run."""
    return [
        (leaf, part)
        for leaf in template.leaves()
        for part in leaf.compiled.parts
        if isinstance(part, ContextPlaceholder | InputPlaceholder) and not _is_optional(part)
    ]


def _is_optional(placeholder: ContextPlaceholder | InputPlaceholder) -> bool:
    if placeholder.default is not None:
        return True
    if isinstance(placeholder, InputPlaceholder):
        return placeholder.optional
    origins = [one.origin for one in placeholder.alternatives]
    late = any(not isinstance(one, Path) or one.root in _KNOWN_LATER for one in origins)
    return late or any(one.name == "default" for one in placeholder.filters)


_KNOWN_LATER: Final = FALLBACK_ROOTS | {"context", "task"}


def _missing_params(
    required: Sequence[tuple[Leaf, Placeholder]],
    inputs: Mapping[str, Json],
    each: Sequence[Mapping[str, Json]],
    item: str | None,
) -> Iterator[_Missing]:
    given: dict[str, Json] = {**inputs, "inputs": inputs}
    knowing = [{**given, **names, "inputs": {**inputs, **names}} for names in each] or [given]
    for leaf, placeholder in required:
        if not each and is_item_name(placeholder_input(placeholder), item):
            continue  # the items are unknown
        if any(_lacks(placeholder, names) for names in knowing):
            yield [_input_path(placeholder)], leaf.source.text, _place(leaf, placeholder)


def _lacks(placeholder: Placeholder, names: Mapping[str, Json]) -> bool:
    if isinstance(placeholder, InputPlaceholder):
        return placeholder.key not in names["inputs"]
    return all(
        follow_path(names, (path.root, *path.keys)) is UNDEFINED for path in _paths(placeholder)
    )


def _paths(placeholder: Placeholder) -> list[Path]:
    assert isinstance(placeholder, ContextPlaceholder)
    return [one.origin for one in placeholder.alternatives if isinstance(one.origin, Path)]


def _input_path(placeholder: Placeholder) -> str:
    """The path in the inputs that a placeholder uses: `topic`, `plan.points`."""
    if isinstance(placeholder, InputPlaceholder):
        return placeholder.key
    path = _paths(placeholder)[0]
    if path.root == "inputs" and path.keys:
        return str(Path(str(path.keys[0]), path.keys[1:]))
    return str(path)


def placeholder_input(placeholder: Placeholder) -> str:
    """The input that a placeholder uses."""
    if isinstance(placeholder, InputPlaceholder):
        return placeholder.key
    path = _paths(placeholder)[0]
    return str(path.keys[0]) if path.root == "inputs" and path.keys else path.root


def _problem(
    names: Sequence[str], called: str, template: str, where: Span | None, fix: str | None
) -> Problem:
    shown = template if len(template) <= LONGEST_SHOWN else template[:LONGEST_SHOWN] + "..."
    what = (
        f"Missing template variables: [{', '.join(names)}], in {called}. "
        f"Provide them in ensemble.run(inputs). Template: '{shown}'"
    )
    return Problem(what, where, fix, code="missing-variables")


def _fix(
    names: Sequence[str],
    inputs: Mapping[str, Json],
    each: Sequence[Mapping[str, Json]],
    item: str | None,
    *,
    is_in_file: bool,
) -> str | None:
    """The fix: which inputs to give, and which items lack a field."""
    of_items = [name for name in names if each and is_item_name(name.partition(".")[0], item)]
    of_inputs = [name for name in names if name not in of_items]
    guesses = [guess for name in of_inputs if (guess := closest_name(name, inputs)) is not None]
    fixes = [_item_without(name, each, item) for name in of_items]
    if guesses:
        fixes.insert(0, f"did you mean {', '.join(map(repr, dict.fromkeys(guesses)))}?")
    elif of_inputs and is_in_file:
        fixes.insert(0, ", ".join(f"-i {name}=…" for name in of_inputs))
    return "; ".join(fixes) or None


def _item_without(name: str, each: Sequence[Mapping[str, Json]], item: str | None) -> str:
    """The first item without the field, by its index."""
    at = next(
        at
        for at, names in enumerate(each)
        if follow_path(names, tuple(name.split("."))) is UNDEFINED
    )
    return f"item {at} of {len(each)}, counted from 0, has no field '{name[len(item or '') + 1 :]}'"


# ── the items of a map ───────────────────────────────────────────────────


def map_items(one: MapReduce, inputs: Mapping[str, Json]) -> list[Json]:
    assert not isinstance(one.items, Task), "a task makes the items"
    found = inputs.get(one.items, []) if isinstance(one.items, str) else one.items
    if isinstance(found, Sequence) and not isinstance(found, str):
        return list(found)
    raise InputError(
        f"the items of a map must be a list, but the input '{one.items}' is not",
        fix=f"give {one.items} as a list",
        code="wrong-type",
    )


def items_from_output(one: MapReduce, output: TaskOutput) -> list[Json]:
    """The list that a task made; raises InputError if there is none."""
    found = output.data
    if one.path is not None:
        path = parse_path(one.path)
        found = follow_path(found, (path.root, *path.keys))
    if isinstance(found, list):
        return found
    where = "its data" if one.path is None else f"'{one.path}' in its data"
    raise InputError(
        f"the items of a map must be a list, but {where} is not: task '{output.id}'",
        fix="let it return a list; for a model set output_schema",
        code="wrong-type",
    )


def item_names(name: str, items: Sequence[Json]) -> Iterator[dict[str, Json]]:
    """Yield the variables of each item: `{item}`, `{item_field}`, `{item_index}`, …"""
    for index, item in enumerate(items):
        fields = (
            {f"{name}_{key}": value for key, value in item.items()}
            if isinstance(item, Mapping)
            else {}
        )
        yield {**fields, name: item, f"{name}_index": index, f"{name}_total": len(items)}


def is_item_name(name: str, item: str | None) -> bool:
    return item is not None and (name == item or name.startswith(f"{item}_"))


# ── prompts ──────────────────────────────────────────────────────────────


def system_text(agent: Agent) -> str:
    parts = [
        f"You are {agent.role}.",
        agent.background,
        f"Your goal: {agent.goal}" if agent.goal else "",
    ]
    rule = "Do the task that you are given, and answer with its result and nothing else."
    return "\n\n".join(part for part in (*parts, rule) if part)


def task_prompt(
    task: Task, context: Sequence[TaskOutput], schema: Mapping[str, Json] | None = None
) -> str:
    """Build the prompt: the context first, so that it ends with the task."""
    parts = [
        f"## Output of {one.name}{f' ({one.agent})' if one.agent else ''}\n\n{one.raw}"
        for one in context
    ]
    if task.feedback is not None:
        parts.append(f"## Outcome of the round before\n\n{task.feedback}")
    parts.append(f"## Task\n\n{task.description or ''}")
    if task.expected_output:
        parts.append(f"## Expected output\n\n{task.expected_output}")
    if schema is not None:
        parts.append(
            "## Form of the answer\n\nJSON of this schema, and nothing "
            f"else:\n{json_text(dict(schema))}"
        )
    return "\n\n".join(parts)
