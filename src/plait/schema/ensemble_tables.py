"""The tables of the ensemble file: the ensemble, its agents and tasks, loops, maps and a
manager.
"""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Final
from plait.schema.directive_tables import MOST_RETRIES, MOST_TURNS, PATTERNS
from plait.schema.field_types import (
    Boolean,
    Choice,
    Condition,
    Data,
    Duration,
    Field,
    Integer,
    ListOf,
    MapOf,
    NoEffect,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    TemplateText,
)
from plait.schema.hook_tables import HOOKS_FIELD, LIMITS_FIELD
from plait.schema.shared import (
    MOST_ATTEMPTS,
    NAME,
    ON_EMPTY_FIELD,
    PARALLEL,
    PARAMETERS,
    TIMEOUT_MEANING,
)

if TYPE_CHECKING:
    from plait.core.hints import Final


MAX_ITERATIONS: Final = 5

MAX_LEVELS: Final = 10
"""Levels of a map after which all remaining outputs are reduced at once."""

MANAGER_ROLE: Final = "the manager of a team"

STRATEGIES: Final = ("sequential", "parallel", "hierarchical")

ON_ERROR: Final = ("fail_fast", "continue_on_error")

ON_MAX: Final = ("return_last", "fail", "return_with_flag")


TASK_ID: Final = PlainText("an id: letters, digits, _ - and .", r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TASK_IDS: Final = OneOf((ListOf(TASK_ID), TASK_ID), "an id, or a list of ids")
_NAMES: Final = OneOf((ListOf(NAME), NAME), "a list of names")
_ROLES: Final = OneOf((ListOf(PlainText()), PlainText()), "a role, or a list of roles")
_MAP: Final = OneOf(
    (Record("ensemble_map"), ListOf(Record("ensemble_map"))), "a map: map, or a list of them"
)

_MEMBER: Final = (
    Field("goal", TemplateText(), "its goal; a template", ""),
    Field(
        "background",
        TemplateText(),
        "what it knows and how it works; a template",
        "",
        aliases=("backstory",),
    ),
    Field(
        "provider",
        PlainText(),
        "whose model; the ensemble's provider by default",
        aliases=("llm",),
    ),
    Field("model", PlainText(), "which model; the provider's default model by default"),
    Field("tools", PATTERNS, "patterns of the tools that it may call; none by default"),
    Field(
        "once",
        PATTERNS,
        "those for which Plait asks before it calls them a second time after a crash",
    ),
    Field("options", MapOf(Data()), "further options of the provider: temperature, max_tokens"),
    Field(
        "limits",
        Record("limits"),
        f"its limits; `turns` defaults to {MOST_TURNS}",
    ),
    Field("allow_delegation", Refused("write workflow: hierarchical, and a manager"), ""),
    Field("max_iter", Refused("write limits: {turns: …}"), "", aliases=("max_iterations",)),
    Field("verbose", NoEffect("plait show lists every turn"), ""),
)

FORMS: Final = (
    RecordType(
        "ensemble",
        "ensemble",
        "An ensemble file: tasks, and the agents or tools that do them.  The inputs (`{topic}`) "
        "are filled into the texts of tasks and agents before anything runs.",
        (
            Field(
                "name",
                PlainText(),
                "its name for people; the file name by default",
                is_documentation=True,
            ),
            Field("description", PlainText(), "what it is for", is_documentation=True),
            Field(
                "version",
                OneOf((PlainText(), Number()), "a version: 1.4.2"),
                "its version",
                is_documentation=True,
            ),
            Field("tool_type", Choice(("ensemble",)), "ensemble: the file can be called as a tool"),
            Field(
                "executor_id",
                PlainText(),
                "what runs it; the engine by default",
                is_documentation=True,
            ),
            Field("category", PlainText(), "its folder", is_documentation=True),
            Field("author", Data(), "who wrote it", is_documentation=True),
            Field("tags", Data(), "words to find it by", is_documentation=True),
            Field(
                "inputs",
                PARAMETERS,
                "its inputs, with types and defaults",
                aliases=("parameters",),
            ),
            Field(
                "outputs", Data(), "its outputs, for people and for chains", is_documentation=True
            ),
            Field("secrets", _NAMES, "names of inputs whose values are masked, also for models"),
            Field("agents", MapOf(Record("member"), TASK_ID), "the agents by name"),
            Field(
                "tasks",
                OneOf(
                    (MapOf(Record("task"), TASK_ID), ListOf(Record("task"))),
                    "a list of tasks, or a map by id",
                ),
                "the tasks",
                required=True,
            ),
            Field(
                "workflow",
                Choice(STRATEGIES),
                "sequential: in the order of the list; parallel: each when its context is done; "
                "hierarchical: a manager delegates.  Default: parallel if a task has a context, else "
                "sequential",
                aliases=("process", "strategy"),
            ),
            Field(
                "manager",
                Record("manager"),
                "for hierarchical: the agent that delegates, and its limits",
            ),
            Field(
                "loops",
                ListOf(Record("ensemble_loop")),
                "tasks that are repeated until a condition holds",
            ),
            Field("map", _MAP, "a task that is done for each item"),
            Field(
                "on_error",
                Choice(ON_ERROR),
                "fail_fast: start nothing more after a task has failed; "
                "continue_on_error: skip only the tasks that need it",
                "fail_fast",
            ),
            Field("max_parallel", PARALLEL, "how many tasks run at a time", 4),
            Field(
                "provider",
                PlainText(),
                "whose model, for agents without their own setting",
                aliases=("llm",),
            ),
            Field("model", PlainText(), "which model, for agents without their own setting"),
            LIMITS_FIELD,
            HOOKS_FIELD,
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("phases", Refused("write tasks with a context, or several files"), ""),
            Field("verbose", NoEffect("plait show lists every turn"), ""),
        ),
    ),
    RecordType(
        "member",
        "agent",
        "A model in a role.",
        (Field("role", TemplateText(), "its role; a template", required=True), *_MEMBER),
    ),
    RecordType(
        "task",
        "task",
        "A task for an agent or a tool.  If it names neither, an agent without a role does it.",
        (
            Field("id", TASK_ID, "its name in contexts and paths; its place by default"),
            Field("name", PlainText(), "its name for people", is_documentation=True),
            Field("description", TemplateText(), "what to do; a template", required=True),
            Field("expected_output", TemplateText(), "the result that is expected; a template", ""),
            Field(
                "agent",
                OneOf((Record("member"), TASK_ID), "the name of an agent, or a map: agent"),
                "the agent that does it",
            ),
            Field("context", TASK_IDS, "the tasks whose outputs it gets, in this order"),
            Field("tool", PlainText(), "the tool that does it: its id"),
            Field(
                "params",
                MapOf(Data()),
                "for tool: its parameters; `${inputs.x}`, `${task.description}` and "
                "`${context.ID.raw}` or `.data` are filled",
            ),
            Field("output_schema", MapOf(Data()), "the JSON Schema of the model's response"),
            Field(
                "max_output_retries",
                Integer(0, MOST_RETRIES),
                "how often the model may correct a response that does not match the schema",
                2,
            ),
            Field(
                "attempts",
                Integer(1, MOST_ATTEMPTS),
                "how many attempts it has",
                1,
                aliases=("retry",),
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("handler", Refused("a handler is a Python function; in a file, name a tool"), ""),
            Field("output_file", Refused("write a workflow around it, with write_file"), ""),
            Field("async_execution", Refused("write workflow: parallel"), ""),
        ),
        apart=(("tool", "agent"), ("tool", "output_schema")),
    ),
    RecordType(
        "ensemble_loop",
        "loop",
        "Tasks that are repeated in rounds.",
        (
            Field("id", TASK_ID, "its name in paths and messages", aliases=("name",)),
            Field("tasks", TASK_IDS, "the tasks of a round, in this order", required=True),
            Field(
                "until",
                Condition(),
                "when to stop: tests of `output` and `data` (of a round's last task) and `iteration`",
            ),
            Field("max_iterations", Integer(1, 1000), "the maximum of rounds", MAX_ITERATIONS),
            Field(
                "on_max",
                Choice(ON_MAX),
                "if `until` never holds: return_last, fail, or return_with_flag (`reached_max`)",
                "return_last",
            ),
            Field(
                "feedback",
                Boolean(),
                "the first task of a round gets the result of the round before",
                True,
            ),
        ),
    ),
    RecordType(
        "ensemble_map",
        "map",
        "A task for each item, and a task that reduces their outputs.",
        (
            Field(
                "items",
                OneOf(
                    (ListOf(Data()), Record("ensemble_items"), NAME),
                    "a list, the name of an input, or a map: source of items",
                ),
                "the items",
                required=True,
            ),
            Field("as", NAME, "the name of the item in the texts of the task", "item"),
            ON_EMPTY_FIELD,
            Field("task", TASK_ID, "the task that is done for each", required=True),
            Field("reduce", TASK_ID, "the task that reduces the outputs"),
            Field(
                "chunk_size",
                Integer(2),
                "how many outputs it reduces at a time, level by level; all at once by default",
            ),
            Field(
                "target_tokens",
                Integer(1),
                "reduces at a time as many outputs as fit into so many tokens, but at least two",
            ),
            Field(
                "max_levels",
                Integer(1, 1000),
                "for target_tokens: at this level all remaining outputs are reduced at once",
                MAX_LEVELS,
            ),
        ),
    ),
    RecordType(
        "ensemble_items",
        "source of items",
        "Items that another task makes.",
        (
            Field("task", TASK_ID, "the task whose data is the list", required=True),
            Field("path", PlainText(), "where in its data the list is: `points`, `plan.points`"),
        ),
    ),
    RecordType(
        "manager",
        "manager",
        "An agent that delegates work to the agents of the tasks.",
        (
            Field("role", TemplateText(), "its role; a template", MANAGER_ROLE),
            *_MEMBER,
            Field("max_delegations", Integer(1), "how often it may delegate in all"),
            Field("max_per_worker", Integer(1), "how often to one worker"),
            Field(
                "workers",
                _ROLES,
                "the agents to which it may delegate, by role or by name in `agents`; "
                "all by default",
            ),
            Field(
                "required",
                _ROLES,
                "those that must have worked before it may finish, named likewise",
            ),
        ),
    ),
)
