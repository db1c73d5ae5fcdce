"""What an ensemble is made of: agents, tasks, loops, maps, a manager.

All of it is frozen, and none of it knows a run.  A task is itself and no other: two tasks that say
the same are two tasks, and `context` means the very objects that it holds.  The texts of tasks and
agents are templates of the profile `prompt` until an ensemble runs: then each is filled once,
into a copy, and what was filled in is never looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.agents.messages import TokenUsage
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from plait.core.records import dataclass, field, field_names
from plait.core.values import Json
from plait.engine.limits import NAMES, Limits, parse_limits
from plait.program.on_empty import OnEmpty
from plait.schema.ensemble_tables import MANAGER_ROLE, MAX_ITERATIONS, MAX_LEVELS, MOST_TURNS

if TYPE_CHECKING:
    from plait.agents.messages import Provider


Strategy: TypeAlias = Literal["sequential", "parallel", "hierarchical"]
OnError: TypeAlias = Literal["fail_fast", "continue_on_error"]
OnMax: TypeAlias = Literal["return_last", "fail", "return_with_flag"]


@dataclass(frozen=True, slots=True, eq=False)
class Agent:
    """A model in a role; what it may call and use up."""

    role: str
    goal: str = ""
    background: str = field(default="", kw_only=True)
    provider: str | Provider | Callable[..., Any] | Sequence[Any] | None = field(
        default=None, kw_only=True
    )
    """The name of a provider; in Python also a function of the question, or a list of answers."""
    model: str | None = field(default=None, kw_only=True)
    tools: Sequence[str] = field(default=(), kw_only=True)
    """Patterns over the ids of tools that it may call; none: no tools."""
    once: Sequence[str] = field(default=(), kw_only=True)
    options: Mapping[str, Json] = field(default_factory=dict, kw_only=True)
    limits: Limits | Mapping[str, float] = field(default=Limits(turns=MOST_TURNS), kw_only=True)
    """In Python also a map: `{"turns": 5, "spend": 0.10}`."""

    def __post_init__(self) -> None:
        _fix(self, "tools", _words(self.tools, "tools"))
        _fix(self, "once", _words(self.once, "once"))
        _fix(self, "limits", to_limits(self.limits, turns=MOST_TURNS))
        for name in ("role", "goal", "background"):
            _require_text(getattr(self, name), f"the {name} of an agent")
        require_type(self.options, Mapping, "the options of an agent")


@dataclass(frozen=True, slots=True, eq=False)
class TaskOutput:
    """What came of a task; as text it is its `raw`."""

    id: str
    name: str
    description: str | None
    expected_output: str | None
    raw: str
    data: Json = None
    """What it gave, if that was no text: of a schema, a handler or a tool."""
    agent: str = ""
    """The role of whoever did it; empty if that was no model."""
    usage: TokenUsage = TokenUsage(calls=0)
    duration: float = 0.0
    status: Literal["done", "failed", "skipped"] = "done"
    why: str = ""
    """Of one that is not done: what happened."""
    iteration: int = 1
    """Of a task in a loop: the round that this comes from."""
    reached_max: bool = False
    """Its loop had no more rounds, and was not at its end."""

    def __str__(self) -> str:
        return self.raw

    @property
    def tokens(self) -> int:
        return self.usage.tokens

    @property
    def cost(self) -> float | None:
        return self.usage.cost


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be done: by an agent, by a function of Python, or by a tool."""

    description: str | None
    expected_output: str | None = ""
    agent: Agent | None = field(default=None, kw_only=True)
    context: Sequence[Task] = field(default=(), kw_only=True)
    """The tasks whose outputs it is given, in this order."""
    handler: Handler | None = field(default=None, kw_only=True)
    """`handler(task, context)`: the task with its text filled, and the outputs of those in its
    context.
    """
    tool: str | None = field(default=None, kw_only=True)
    params: Json = field(default=None, kw_only=True)
    """Of a tool: a map of templates (`${inputs.x}`, `${context.research.raw}`) of the profile
    `graph`.
    """
    name: str | None = field(default=None, kw_only=True)
    output_schema: Mapping[str, Json] | None = field(default=None, kw_only=True)
    max_output_retries: int = field(default=2, kw_only=True)
    attempts: int = field(default=1, kw_only=True)
    """How often it is tried in all."""
    timeout: float | None = field(default=None, kw_only=True)
    # What a handler finds in its copy, and nobody writes.
    inputs: Mapping[str, Json] = field(default_factory=dict, kw_only=True, repr=False)
    """What its text was filled with: the inputs, and in a map the item."""
    feedback: str | None = field(default=None, kw_only=True)
    """In a loop, from the second round on: what the round before came to."""
    iteration: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _fix(self, "context", _tasks(self.context, "context"))
        for name in ("description", "expected_output"):
            text = getattr(self, name)
            if text is not None:
                _require_text(text, f"the {name} of a task")
        for name, kind in _TYPES.items():
            require_type(
                getattr(self, name), kind, f"the {name} of a task", optional=kind is not int
            )

    def __eq__(self, other: object) -> bool:
        return self._essence() == other._essence() if isinstance(other, Task) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.description, self.expected_output, self.name))

    def _essence(self) -> tuple[Any, ...]:
        # Those in the context by identity: to compare them in turn takes ever longer, layer by
        # layer.
        return (
            self.description, self.expected_output, self.name, self.agent, self.handler, self.tool,
            self.params, self.output_schema, [id(one) for one in self.context],
            self.max_output_retries, self.attempts, self.timeout,
        )  # fmt: skip

    def with_texts(
        self,
        description: str | None,
        expected: str | None,
        agent: Agent | None,
        inputs: Mapping[str, Json],
    ) -> Task:
        """A copy with its texts filled: what was checked of this one is not checked again."""
        made = object.__new__(Task)
        for read, write in _SLOTS:
            write(made, read(self))
        _fix(made, "description", description)
        _fix(made, "expected_output", expected)
        _fix(made, "agent", agent)
        _fix(made, "inputs", inputs)
        return made

    @property
    def is_done_by_model(self) -> bool:
        return self.handler is None and self.tool is None


_TYPES: Final[Mapping[str, type]] = {
    "agent": Agent,
    "tool": str,
    "name": str,
    "output_schema": Mapping,
    "attempts": int,
    "max_output_retries": int,
}
_SLOTS: Final[list[tuple[Callable[[Task], object], Callable[[Task, object], None]]]] = [
    (slot.__get__, slot.__set__) for slot in (getattr(Task, name) for name in field_names(Task))
]
Handler: TypeAlias = Callable[[Task, Sequence[TaskOutput]], Json]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Tasks that are done again until something holds of the last one's output."""

    tasks: Sequence[Task]
    until: Json | Callable[[TaskOutput], bool] = None
    """A condition over `output`, `data` and `iteration`, as data or as a line of text; or a
    function.
    """
    max_iterations: int = field(default=MAX_ITERATIONS, kw_only=True)
    on_max: OnMax = field(default="return_last", kw_only=True)
    feedback: bool = field(default=True, kw_only=True)
    """From the second round on its first task hears what the round before came to."""
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _fix(self, "tasks", _tasks(self.tasks, "the tasks of a loop"))


@dataclass(frozen=True, slots=True, eq=False)
class MapReduce:
    """A task for each of some items, and one that puts together what they gave."""

    items: str | Sequence[Json] | Task
    """The items, the name of the input that has them, or the task that makes the list."""
    task: Task
    reduce: Task | None = None
    item: str = field(default="item", kw_only=True)
    """The name of the item in the text of the task."""
    chunk_size: int | None = field(default=None, kw_only=True)
    """So many outputs are put together at a time, level by level; None: all at once."""
    target_tokens: int | None = field(default=None, kw_only=True)
    """As many outputs at a time as have so many tokens together, and never less than two."""
    max_levels: int = field(default=MAX_LEVELS, kw_only=True)
    path: str | None = field(default=None, kw_only=True)
    """Of items that a task makes: where in its data the list is; None: the data is the list."""
    on_empty: OnEmpty = field(default="warn", kw_only=True)

    def __post_init__(self) -> None:
        require_type(self.task, Task, "the task of a map")
        require_type(self.reduce, Task, "the reduce of a map", optional=True)

    @property
    def source(self) -> Task | None:
        """The task that makes the list."""
        return self.items if isinstance(self.items, Task) else None


@dataclass(frozen=True, slots=True, eq=False)
class Manager(Agent):
    """An agent that has others do the tasks."""

    role: str = MANAGER_ROLE
    max_delegations: int | None = field(default=None, kw_only=True)
    """How often it may delegate in all."""
    max_per_worker: int | None = field(default=None, kw_only=True)
    workers: Sequence[str] = field(default=(), kw_only=True)
    """Roles that it may delegate to, as they are written; none: all."""
    required: Sequence[str] = field(default=(), kw_only=True)
    """Roles without whose work it is not done."""

    def __post_init__(self) -> None:
        Agent.__post_init__(self)
        _fix(self, "workers", _words(self.workers, "workers"))
        _fix(self, "required", _words(self.required, "required"))


@dataclass(frozen=True, slots=True)
class EnsembleSpec:
    """All that an author says of an ensemble."""

    name: str
    tasks: tuple[Task, ...]
    loops: tuple[Loop, ...] = ()
    maps: tuple[MapReduce, ...] = ()
    workflow: Strategy | None = None
    """None: parallel if a task has a context, else sequential."""
    manager: Manager | None = None
    on_error: OnError = "fail_fast"
    max_parallel: int = 4
    provider: str | Provider | None = None
    model: str | None = None
    ids: Mapping[int, str] = field(default_factory=dict)
    """By the identity of a task: what it is called in paths and messages."""

    @property
    def strategy(self) -> Strategy:
        if self.workflow is not None:
            return self.workflow
        return "parallel" if any(self.needs(task) for task in self.tasks) else "sequential"

    def needs(self, task: Task) -> Sequence[Task]:
        """What has to be done before it: its context, and whoever makes the items of its map."""
        sources = [one.source for one in self.maps if one.task is task and one.source is not None]
        return (*task.context, *sources) if sources else task.context

    def task_id(self, task: Task) -> str:
        return self.ids[id(task)]


# ── what does not fit at all ─────────────────────────────────────────────


def _fix(record: object, name: str, value: object) -> None:
    object.__setattr__(record, name, value)


def _words(value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise InputError(f"'{what}' is a list of text", fix=f"pass {what}=['…']", code="wrong-type")


def _tasks(value: object, what: str) -> tuple[Task, ...]:
    if isinstance(value, Task):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(one, Task) for one in value):
        return tuple(value)
    raise InputError(f"{what} is a list of tasks", fix="pass Task objects", code="wrong-type")


def to_limits(value: object, **unless_said: int) -> Limits:
    """Limits, also of a map; InputError if it names one that there is not."""
    if isinstance(value, Limits):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if name not in NAMES:
                guess = closest_name(str(name), NAMES)
                fix = f"did you mean '{guess}'?" if guess else f"there are: {', '.join(NAMES)}"
                raise InputError(f"there is no limit '{name}'", fix=fix, code="unknown-field")
        return parse_limits({**unless_said, **value})
    raise InputError("limits are a map", fix="pass limits={'turns': 5}", code="wrong-type")


def _require_text(value: object, what: str) -> None:
    require_type(value, str, what)


def require_type(value: object, kind: type, what: str, *, optional: bool = False) -> None:
    """InputError if it is of another type; `optional`: None is fine."""
    if isinstance(value, kind) or (optional and value is None):
        return
    noun, fix = _TOLD[kind.__name__]
    raise InputError(f"{what} is {noun}, not {type(value).__name__}", fix=fix, code="wrong-type")


_TOLD: Final = {
    "str": ("text", "pass a string"),
    "int": ("a whole number", "pass an int"),
    "Mapping": ("a map", "pass a dict"),
    "Agent": ("an Agent", "pass Agent(role)"),
    "Manager": ("a Manager", "pass Manager(role)"),
    "Task": ("a Task", "pass the Task itself"),
}
"""What is expected, in words, and what to do."""


# ── whoever is not named ─────────────────────────────────────────────────

PLAIN_AGENT: Final = Agent("a careful assistant", "do the task well")
"""Whoever does a task for which nobody is named."""
PLAIN_MANAGER: Final = Manager(MANAGER_ROLE, "have the tasks done well by those who can do them")
