"""The parts of an ensemble: agents, tasks, loops, maps, a manager.

They are frozen and independent of a run. Tasks have identity: two equal tasks are two tasks, and
`context` refers to the objects themselves. Texts of tasks and agents are templates of the profile
`prompt`. A run fills each once, into a copy; filled values are never parsed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.agents.messages import TokenUsage
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from plait.core.records import dataclass, field, field_names
from plait.core.values import Json
from plait.engine.limits import NAMES, Limits, parse_limits
from plait.program.item_list import OnEmpty
from plait.schema.directive_tables import MOST_TURNS
from plait.schema.ensemble_tables import MANAGER_ROLE, MAX_ITERATIONS, MAX_LEVELS

if TYPE_CHECKING:
    from plait.agents.messages import Provider


Strategy: TypeAlias = Literal["sequential", "parallel", "hierarchical"]
OnError: TypeAlias = Literal["fail_fast", "continue_on_error"]
OnMax: TypeAlias = Literal["return_last", "fail", "return_with_flag"]


@dataclass(frozen=True, slots=True, eq=False)
class Agent:
    """A model in a role, with its tools and limits."""

    role: str
    goal: str = ""
    background: str = field(default="", kw_only=True)
    provider: str | Provider | Callable[..., Any] | Sequence[Any] | None = field(
        default=None, kw_only=True
    )
    """The name of a provider; in Python also a function of the request, or a list of answers."""
    model: str | None = field(default=None, kw_only=True)
    tools: Sequence[str] = field(default=(), kw_only=True)
    """Patterns of tool ids that it may call; empty: no tools."""
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
    """The outcome of a task; `str()` gives its `raw`."""

    id: str
    name: str
    description: str | None
    expected_output: str | None
    raw: str
    data: Json = None
    """The output if it is not text: from a schema, a handler or a tool."""
    agent: str = ""
    """The role of the agent; empty if no model was used."""
    usage: TokenUsage = TokenUsage(calls=0)
    duration: float = 0.0
    status: Literal["done", "failed", "skipped"] = "done"
    why: str = ""
    """Why it failed or was skipped."""
    iteration: int = 1
    """In a loop: the round that made it."""
    reached_max: bool = False
    """The loop ended because of its maximum."""

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
    """Work for an agent, a Python function or a tool."""

    description: str | None
    expected_output: str | None = ""
    agent: Agent | None = field(default=None, kw_only=True)
    context: Sequence[Task] = field(default=(), kw_only=True)
    """The tasks whose outputs it gets, in this order."""
    handler: Handler | None = field(default=None, kw_only=True)
    """`handler(task, context)` gets the task with filled texts, and the outputs of its context."""
    tool: str | None = field(default=None, kw_only=True)
    params: Json = field(default=None, kw_only=True)
    """Parameters of the tool: a map of templates (`${inputs.x}`, `${context.research.raw}`) of the
    profile `graph`.
    """
    name: str | None = field(default=None, kw_only=True)
    output_schema: Mapping[str, Json] | None = field(default=None, kw_only=True)
    max_output_retries: int = field(default=2, kw_only=True)
    attempts: int = field(default=1, kw_only=True)
    """The maximum number of attempts."""
    timeout: float | None = field(default=None, kw_only=True)
    # Set in the copy that a handler gets, not by the author.
    inputs: Mapping[str, Json] = field(default_factory=dict, kw_only=True, repr=False)
    """The values of its placeholders: the inputs, and in a map the item."""
    feedback: str | None = field(default=None, kw_only=True)
    """In a loop, from the second round on: the output of the round before."""
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
        return self._key() == other._key() if isinstance(other, Task) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.description, self.expected_output, self.name))

    def _key(self) -> tuple[Any, ...]:
        # The context is compared by identity: a deep comparison would grow with every layer.
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
        """A copy with filled texts, without checking it again."""
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
    """Tasks that repeat until a condition holds for the last output."""

    tasks: Sequence[Task]
    until: Json | Callable[[TaskOutput], bool] = None
    """A condition over `output`, `data` and `iteration`, as data or text; or a function."""
    max_iterations: int = field(default=MAX_ITERATIONS, kw_only=True)
    on_max: OnMax = field(default="return_last", kw_only=True)
    feedback: bool = field(default=True, kw_only=True)
    """From the second round on, the first task gets the output of the round before."""
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _fix(self, "tasks", _tasks(self.tasks, "the tasks of a loop"))


@dataclass(frozen=True, slots=True, eq=False)
class MapReduce:
    """A task for each item, and one that reduces their outputs."""

    items: str | Sequence[Json] | Task
    """The items, the name of the input with the items, or the task that makes the list."""
    task: Task
    reduce: Task | None = None
    item: str = field(default="item", kw_only=True)
    """The name of the item in the text of the task."""
    chunk_size: int | None = field(default=None, kw_only=True)
    """The number of outputs that are reduced together, level by level; None: all at once."""
    target_tokens: int | None = field(default=None, kw_only=True)
    """Reduce as many outputs together as have this number of tokens, but at least two."""
    max_levels: int = field(default=MAX_LEVELS, kw_only=True)
    path: str | None = field(default=None, kw_only=True)
    """If a task makes the items: the path of the list in its data; None: the data is the list."""
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
    """An agent that delegates the tasks to other agents."""

    role: str = MANAGER_ROLE
    max_delegations: int | None = field(default=None, kw_only=True)
    """The maximum number of delegations."""
    max_per_worker: int | None = field(default=None, kw_only=True)
    workers: Sequence[str] = field(default=(), kw_only=True)
    """The roles that it may delegate to, as written; empty: all."""
    required: Sequence[str] = field(default=(), kw_only=True)
    """The roles that must have done work."""

    def __post_init__(self) -> None:
        Agent.__post_init__(self)
        _fix(self, "workers", _words(self.workers, "workers"))
        _fix(self, "required", _words(self.required, "required"))


@dataclass(frozen=True, slots=True)
class EnsembleSpec:
    """An ensemble as its author defined it."""

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
    """By identity of a task: its id in paths and messages."""

    @property
    def strategy(self) -> Strategy:
        if self.workflow is not None:
            return self.workflow
        return "parallel" if any(self.needs(task) for task in self.tasks) else "sequential"

    def needs(self, task: Task) -> Sequence[Task]:
        """The tasks that must be done before it: its context, and the source of its map items."""
        sources = [one.source for one in self.maps if one.task is task and one.source is not None]
        return (*task.context, *sources) if sources else task.context

    def task_id(self, task: Task) -> str:
        return self.ids[id(task)]


# ── type checks ──────────────────────────────────────────────────────────


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


def to_limits(value: object, **defaults: int) -> Limits:
    """Make limits of a map; raises InputError for an unknown name."""
    if isinstance(value, Limits):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if name not in NAMES:
                guess = closest_name(str(name), NAMES)
                fix = f"did you mean '{guess}'?" if guess else f"there are: {', '.join(NAMES)}"
                raise InputError(f"there is no limit '{name}'", fix=fix, code="unknown-field")
        return parse_limits({**defaults, **value})
    raise InputError("limits are a map", fix="pass limits={'turns': 5}", code="wrong-type")


def _require_text(value: object, what: str) -> None:
    require_type(value, str, what)


def require_type(value: object, kind: type, what: str, *, optional: bool = False) -> None:
    """Raise InputError if the value has another type; `optional`: None is allowed."""
    if isinstance(value, kind) or (optional and value is None):
        return
    noun, fix = _EXPECTED[kind.__name__]
    raise InputError(f"{what} is {noun}, not {type(value).__name__}", fix=fix, code="wrong-type")


_EXPECTED: Final = {
    "str": ("text", "pass a string"),
    "int": ("a whole number", "pass an int"),
    "Mapping": ("a map", "pass a dict"),
    "Agent": ("an Agent", "pass Agent(role)"),
    "Manager": ("a Manager", "pass Manager(role)"),
    "Task": ("a Task", "pass the Task itself"),
}
"""The expected type in words, and the fix."""


# ── defaults ─────────────────────────────────────────────────────────────

PLAIN_AGENT: Final = Agent("a careful assistant", "do the task well")
"""The agent of a task that names none."""
PLAIN_MANAGER: Final = Manager(MANAGER_ROLE, "have the tasks done well by those who can do them")
