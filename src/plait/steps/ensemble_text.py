"""The texts of an ensemble: filled all at once before anything runs, and put together for models.

What is missing is gathered over every task, loop, map and agent, so that one error names all of it.
A prompt is the system text of an agent, and below it what came before, the task, what is expected
and the form of the answer.  Outputs are put there as they are: nothing in them is a template.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.errors import InputError, Problem, PromptTemplateError, nearest
from plait.hints import TYPE_CHECKING, Final, TypeAlias
from plait.records import dataclass, replace
from plait.source import Source, Span
from plait.steps.ensemble_parts import Agent, Cast, MapReduce, Task, TaskOutput
from plait.template.nodes import holes
from plait.template.template import Template, compile_template
from plait.values import Json, json_text

if TYPE_CHECKING:
    from plait.steps.model import Provider

LONGEST_SHOWN: Final = 100
"""Characters of a template that a message shows."""
TASK_TEXTS: Final = ("description", "expected_output")
AGENT_TEXTS: Final = ("role", "goal", "background")

Place: TypeAlias = tuple[int, str]
"""The identity of a task or an agent, and one of its fields."""


# ── filling ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Filled:
    """The tasks of an ensemble with their texts filled; those that their authors wrote stay as they are."""

    tasks: Mapping[int, Task]
    """By the identity of the task."""
    items: Mapping[int, tuple[Task, ...]]
    """By the identity of a map's task: one for each item."""
    agents: Mapping[int, Agent]
    inputs: Mapping[str, Json]

    def task(self, task: Task) -> Task:
        return self.tasks[id(task)]


class Texts:
    """The templates of an ensemble, read once and filled as often as it runs."""

    def __init__(self, cast: Cast, written: Mapping[Place, Template] | None = None) -> None:
        """`written`: those that were read from a file, whose problems point into it."""
        self._cast = cast
        self._maps = {id(one.task): one for one in cast.maps}
        self._agents = list({id(one): one for one in _agents(cast)}.values())
        read = dict(written or {})
        self._templates: dict[Place, Template] = {
            place: read[place] if place in read else compile_template(text, "prompt", source=Source("", text))
            for place, text in self._texts()
        }
        self._of_tasks = [
            (task, [self._templates.get((id(task), name)) for name in TASK_TEXTS]) for task in cast.tasks
        ]

        self._params = {
            id(task): read.get((id(task), "params")) or compile_template(task.params, "graph")
            for task in cast.tasks
            if task.params is not None
        }

    def params(self, task: Task) -> Template | None:
        """The parameters of a tool: templates of the profile `graph`."""
        return self._params.get(id(task))

    def filled(self, inputs: Mapping[str, Json], providers: Mapping[int, Provider] | None = None) -> Filled:
        """PromptTemplateError with every variable that is missing anywhere, in order of appearance.

        `providers`: by the identity of an agent, who answers if its author gave a function or a list.
        """
        asked = providers or {}
        try:
            agents = {id(agent): self._agent(agent, inputs, asked) for agent in self._agents}
            tasks: dict[int, Task] = {}
            items: dict[int, tuple[Task, ...]] = {}
            for task, templates in self._of_tasks:
                agent = None if task.agent is None else agents[id(task.agent)]
                one = self._maps.get(id(task))
                if one is None:
                    tasks[id(task)] = _filled(task, templates, agent, inputs)
                else:
                    tasks[id(task)] = replace(task, agent=agent)
                    items[id(task)] = tuple(
                        _filled(task, templates, agent, {**inputs, **names})
                        for names in item_names(one, inputs)
                    )
        except PromptTemplateError:
            raise self._missing(inputs) from None
        if self._lacks_items(inputs):
            raise self._missing(inputs)
        _log_texts(self._templates.values(), len(inputs))
        return Filled(tasks, items, agents, inputs)

    def variables(self) -> tuple[str, ...]:
        """Every variable that has to be given, in order of appearance."""
        found: dict[str, None] = {}
        for owner, field, own in self._spots():
            if field == "items":
                assert isinstance(owner, MapReduce)
                found.setdefault(str(owner.items))
                continue
            template = self._templates[(id(owner), field)]
            found |= dict.fromkeys(name for name in template.placeholders if not is_item_name(name, own))
        return tuple(str(name) for name in found)

    def _texts(self) -> Iterator[tuple[Place, str]]:
        for owner, names in [(task, TASK_TEXTS) for task in self._cast.tasks] + [
            (agent, AGENT_TEXTS) for agent in self._agents
        ]:
            for name in names:
                text = getattr(owner, name)
                if text:
                    yield (id(owner), name), text

    def _agent(self, agent: Agent, inputs: Mapping[str, Json], providers: Mapping[int, Provider]) -> Agent:
        texts = {
            name: template.render(inputs)
            for name in AGENT_TEXTS
            if (template := self._templates.get((id(agent), name))) is not None
        }
        return replace(agent, provider=providers.get(id(agent), agent.provider), **texts)

    # ── what is missing ──────────────────────────────────────────────────

    def _spots(self) -> Iterator[tuple[Task | Agent | MapReduce, str, str | None]]:
        """Every text in order of appearance; of a map's task with the name of the item."""
        seen: set[int] = set()
        for task in self._cast.tasks:
            one = self._maps.get(id(task))
            if one is not None and isinstance(one.items, str):
                yield one, "items", None
            for owner, names in ((task, TASK_TEXTS), (task.agent, AGENT_TEXTS)):
                if owner is None or id(owner) in seen:
                    continue
                seen.add(id(owner))
                own = one.item if one is not None and owner is task else None
                yield from ((owner, name, own) for name in names if (id(owner), name) in self._templates)
        manager = self._cast.manager
        if manager is not None and id(manager) not in seen:
            yield from (
                (manager, name, None) for name in AGENT_TEXTS if (id(manager), name) in self._templates
            )

    def _lacks_items(self, inputs: Mapping[str, Json]) -> bool:
        return any(isinstance(one.items, str) and one.items not in inputs for one in self._cast.maps)

    def _missing(self, inputs: Mapping[str, Json]) -> PromptTemplateError:
        problems: list[Problem] = []
        missing: dict[str, None] = {}
        template = ""
        for owner, field, own in self._spots():
            if isinstance(owner, MapReduce):
                names, text, where = self._missing_items(owner, inputs)
            else:
                known = self._known(owner, own, inputs)
                names, text, where = _missing_in(self._templates[(id(owner), field)], known)
            if names:
                template = template or text
                missing |= dict.fromkeys(names)
                problems.append(_problem(names, self._called(owner, field), text, where, inputs))
        error = PromptTemplateError(problems[0].what, list(missing), template)
        error.problems = tuple(problems)
        return error

    def _missing_items(
        self, one: MapReduce, inputs: Mapping[str, Json]
    ) -> tuple[list[str], str, Span | None]:
        name = str(one.items)
        return ([name] if name not in inputs else []), name, None

    def _known(self, owner: Task | Agent, item: str | None, inputs: Mapping[str, Json]) -> set[str]:
        """What every item of a map knows, besides the inputs."""
        if item is None:
            return set(inputs)
        one = self._maps[id(owner)]
        has_items = not isinstance(one.items, str) or isinstance(inputs.get(one.items), list | tuple)
        each = [set(names) for names in item_names(one, inputs)] if has_items else []
        return set(inputs) | (set.intersection(*each) if each else {item, *_counts(item)})

    def _called(self, owner: Task | Agent | MapReduce, field: str) -> str:
        match owner:
            case Task():
                return f"the {field.replace('_', ' ')} of task '{self._cast.id_of(owner)}'"
            case MapReduce():
                return f"the items of task '{self._cast.id_of(owner.task)}'"
        return f"the {field} of agent '{owner.role}'"


def _agents(cast: Cast) -> Iterator[Agent]:
    yield from (task.agent for task in cast.tasks if task.agent is not None)
    if cast.manager is not None:
        yield cast.manager


def _filled(
    task: Task, templates: Sequence[Template | None], agent: Agent | None, values: Mapping[str, Json]
) -> Task:
    description, expected = templates
    return task.with_texts(
        task.description if description is None else description.render(values),
        task.expected_output if expected is None else expected.render(values),
        agent,
        values,
    )


def _log_texts(templates: Iterable[Template], count: int) -> None:
    """Tell the log how long each text is and how much is filled in, if somebody listens to it."""
    logging = sys.modules.get("logging")  # nobody listens who has not loaded it
    if logging is None or not (log := logging.getLogger("plait.template")).isEnabledFor(logging.DEBUG):
        return
    for template in templates:
        log.debug("Resolving template (%d chars) with %d variables", len(template.leaf.source.text), count)
        log.debug("Resolved %d variables in template", len(template.placeholders))


def _missing_in(template: Template, known: set[str]) -> tuple[list[str], str, Span | None]:
    leaf = template.leaf
    absent = [hole for hole in holes(leaf.program.parts) if hole.name not in known]
    if not absent:
        return [], "", None
    where = Span(leaf.source, absent[0].start, absent[0].end) if leaf.source.name else None
    return list(dict.fromkeys(hole.name for hole in absent)), leaf.source.text, where


def _problem(
    names: Sequence[str], called: str, template: str, where: Span | None, inputs: Mapping[str, Json]
) -> Problem:
    shown = template if len(template) <= LONGEST_SHOWN else template[:LONGEST_SHOWN] + "..."
    what = (
        f"Missing template variables: [{', '.join(names)}], in {called}. "
        f"Provide them in ensemble.run(inputs). Template: '{shown}'"
    )
    guesses = [guess for name in names if (guess := nearest(name, inputs)) is not None]
    given = ", ".join(f"-i {name}=…" for name in names) if where is not None else None
    fix = f"given is {', '.join(map(repr, dict.fromkeys(guesses)))}: is that meant?" if guesses else given
    return Problem(what, where, fix, code="missing-variables")


# ── the items of a map ───────────────────────────────────────────────────


def items_of(one: MapReduce, inputs: Mapping[str, Json]) -> list[Json]:
    found = inputs.get(one.items, []) if isinstance(one.items, str) else one.items
    if isinstance(found, Sequence) and not isinstance(found, str):
        return list(found)
    raise InputError(
        f"the items of a map are a list, and the input '{one.items}' is none",
        fix=f"give {one.items} as a list",
        code="wrong-type",
    )


def item_names(one: MapReduce, inputs: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """What the text of the task knows for each item: `{item}`, `{item_field}`, `{item_index}`, …"""
    items = items_of(one, inputs)
    name = one.item
    for index, item in enumerate(items):
        fields = {f"{name}_{key}": value for key, value in item.items()} if isinstance(item, Mapping) else {}
        yield {**fields, name: item, f"{name}_index": index, f"{name}_total": len(items)}


def _counts(name: str) -> tuple[str, str]:
    return f"{name}_index", f"{name}_total"


def is_item_name(name: str, item: str | None) -> bool:
    return item is not None and (name == item or name.startswith(f"{item}_"))


# ── prompts ──────────────────────────────────────────────────────────────


def system_of(agent: Agent) -> str:
    parts = [f"You are {agent.role}.", agent.background, f"Your goal: {agent.goal}" if agent.goal else ""]
    rule = "Do the task that you are given, and answer with its result and nothing else."
    return "\n\n".join(part for part in (*parts, rule) if part)


def prompt_of(task: Task, context: Sequence[TaskOutput], schema: Mapping[str, Json] | None = None) -> str:
    """What came before, then the task: whoever reads it ends with what is to be done."""
    parts = [f"## Output of {_said(one)}\n\n{one.raw}" for one in context]
    if task.feedback is not None:
        parts.append(f"## Outcome of the round before\n\n{task.feedback}")
    parts.append(f"## Task\n\n{task.description or ''}")
    if task.expected_output:
        parts.append(f"## Expected output\n\n{task.expected_output}")
    if schema is not None:
        parts.append(
            f"## Form of the answer\n\nJSON of this schema, and nothing else:\n{json_text(dict(schema))}"
        )
    return "\n\n".join(parts)


def _said(output: TaskOutput) -> str:
    return f"{output.name} ({output.agent})" if output.agent else output.name
