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
    Field("goal", TemplateText(), "what it wants to reach; a template", ""),
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
        "whose model; that of the ensemble by default",
        aliases=("llm",),
    ),
    Field("model", PlainText(), "which model; the one of the provider by default"),
    Field("tools", PATTERNS, "patterns of the tools that it may call; none by default"),
    Field("once", PATTERNS, "those that are rather asked about than called twice, after a kill"),
    Field("options", MapOf(Data()), "what else the provider takes: temperature, max_tokens"),
    Field(
        "limits",
        Record("limits"),
        f"what it may use up; without a word about turns there are at most {MOST_TURNS}",
    ),
    Field("allow_delegation", Refused("write workflow: hierarchical, and a manager"), ""),
    Field("max_iter", Refused("write limits: {turns: …}"), "", aliases=("max_iterations",)),
    Field("verbose", NoEffect("plait show prints everything"), ""),
)

FORMS: Final = (
    RecordType(
        "ensemble",
        "ensemble",
        "A file that is an ensemble: tasks, and the agents or tools that do them.  Texts of tasks "
        "and agents "
        "are filled with the inputs (`{topic}`) before anything runs.",
        (
            Field(
                "name",
                PlainText(),
                "what people call it; its file name by default",
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
            Field("category", PlainText(), "the folder in which it is", is_documentation=True),
            Field("author", Data(), "its author", is_documentation=True),
            Field("tags", Data(), "words by which it is found", is_documentation=True),
            Field(
                "inputs",
                PARAMETERS,
                "what it is given, with types and defaults",
                aliases=("parameters",),
            ),
            Field(
                "outputs", Data(), "what it gives, for people and for chains", is_documentation=True
            ),
            Field(
                "secrets",
                _NAMES,
                "names of inputs whose values are never shown, not even to models",
            ),
            Field("agents", MapOf(Record("member"), TASK_ID), "the agents by name"),
            Field(
                "tasks",
                OneOf(
                    (MapOf(Record("task"), TASK_ID), ListOf(Record("task"))),
                    "a list of tasks, or a map by id",
                ),
                "what is to be done",
                required=True,
            ),
            Field(
                "workflow",
                Choice(STRATEGIES),
                "sequential: in the order of the list; parallel: each when its context is done; "
                "hierarchical: a manager delegates.  Default: parallel if a task has a "
                "context, "
                "else sequential",
                aliases=("process", "strategy"),
            ),
            Field(
                "manager",
                Record("manager"),
                "of hierarchical: the agent that delegates, and how much",
            ),
            Field(
                "loops",
                ListOf(Record("ensemble_loop")),
                "tasks that are done again until something holds",
            ),
            Field("map", _MAP, "a task that is done for each of some items"),
            Field(
                "on_error",
                Choice(ON_ERROR),
                "fail_fast: begin nothing more when a task has failed; "
                "continue_on_error: skip only what needs it",
                "fail_fast",
            ),
            Field("max_parallel", PARALLEL, "so many tasks at a time", 4),
            Field(
                "provider",
                PlainText(),
                "whose model answers, if an agent does not say",
                aliases=("llm",),
            ),
            Field("model", PlainText(), "which model, if an agent does not say"),
            LIMITS_FIELD,
            HOOKS_FIELD,
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("phases", Refused("write tasks with a context, or several files"), ""),
            Field("verbose", NoEffect("plait show prints everything"), ""),
        ),
    ),
    RecordType(
        "member",
        "agent",
        "A model in a role.",
        (Field("role", TemplateText(), "what the agent is; a template", required=True), *_MEMBER),
    ),
    RecordType(
        "task",
        "task",
        "Something to be done: by an agent, or by a tool.  Without either a plain agent does it.",
        (
            Field("id", TASK_ID, "what contexts and paths call it; its place by default"),
            Field("name", PlainText(), "what people call it", is_documentation=True),
            Field("description", TemplateText(), "what is to be done; a template", required=True),
            Field("expected_output", TemplateText(), "what is to come of it; a template", ""),
            Field(
                "agent",
                OneOf((Record("member"), TASK_ID), "the name of an agent, or a map: agent"),
                "the agent that does it",
            ),
            Field("context", TASK_IDS, "the tasks whose outputs it is given, in this order"),
            Field("tool", PlainText(), "the tool that does it: its id"),
            Field(
                "params",
                MapOf(Data()),
                "of a tool: its parameters; `${inputs.x}`, `${task.description}` and "
                "`${context.ID.raw}` or "
                "`.data` are filled",
            ),
            Field("output_schema", MapOf(Data()), "JSON Schema of what the model has to answer"),
            Field(
                "max_output_retries",
                Integer(0, MOST_RETRIES),
                "how often the model may correct an answer that does not fit",
                2,
            ),
            Field(
                "attempts",
                Integer(1, MOST_ATTEMPTS),
                "how often it is tried in all",
                1,
                aliases=("retry",),
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field(
                "handler", Refused("a handler is a function of Python; in a file name a tool"), ""
            ),
            Field("output_file", Refused("write a workflow around it, with write_file"), ""),
            Field("async_execution", Refused("write workflow: parallel"), ""),
        ),
        apart=(("tool", "agent"), ("tool", "output_schema")),
    ),
    RecordType(
        "ensemble_loop",
        "loop",
        "Tasks that are done again, round by round.",
        (
            Field("id", TASK_ID, "what it is called in paths and messages", aliases=("name",)),
            Field("tasks", TASK_IDS, "the tasks of a round, in this order", required=True),
            Field(
                "until",
                Condition(),
                "the end: tests of `output`, `data` (of the last task of a round) and `iteration`",
            ),
            Field("max_iterations", Integer(1, 1000), "so many rounds at most", MAX_ITERATIONS),
            Field(
                "on_max",
                Choice(ON_MAX),
                "if `until` does not hold even then: return_last, fail, or return_with_flag "
                "(`reached_max`)",
                "return_last",
            ),
            Field(
                "feedback", Boolean(), "its first task gets the result of the round before", True
            ),
        ),
    ),
    RecordType(
        "ensemble_map",
        "map",
        "A task for each item, and one that puts together what they gave.",
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
            Field("reduce", TASK_ID, "the task that puts the outputs together"),
            Field(
                "chunk_size",
                Integer(2),
                "so many at a time, level by level; all at once by default",
            ),
            Field(
                "target_tokens",
                Integer(1),
                "as many at a time as have so many tokens together, but never less than two",
            ),
            Field(
                "max_levels",
                Integer(1, 1000),
                "of target_tokens: at this level all that is left is put together at once",
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
        "An agent that has those of the tasks do the work.",
        (
            Field("role", TemplateText(), "what the agent is; a template", MANAGER_ROLE),
            *_MEMBER,
            Field("max_delegations", Integer(1), "how often it may delegate in all"),
            Field("max_per_worker", Integer(1), "how often to one worker"),
            Field(
                "workers",
                _ROLES,
                "the agents it may delegate to, by role as it is written, or by name in `agents`; "
                "all by default",
            ),
            Field("required", _ROLES, "those without whose work it is not done, named likewise"),
        ),
    ),
)
