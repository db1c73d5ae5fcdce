"""The tables of the graph file: the graph, its nodes, their actions and edges."""

from __future__ import annotations

from plait.core.hints import Final
from plait.core.records import replace
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
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    ShellText,
    SingleValue,
    TemplateText,
    TemplateTree,
)
from plait.schema.hook_tables import HOOKS_FIELD, LIMITS_FIELD
from plait.schema.shared import NAME, ON_EMPTY_FIELD, PARALLEL, PARAMETERS, TIMEOUT_MEANING, TRIES

NODE_NAME: Final = PlainText("a name: letters, digits, _ - and .", r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
NODE_TYPES: Final = ("action", "gate", "return", "foreach")
POLICIES: Final = ("fail", "continue")
MAX_STEPS: Final = 1000
"""Visits of a graph whose file sets no limit."""
MAX_CONCURRENCY: Final = 10

_NAMES: Final = OneOf((ListOf(NAME), NAME), "a list of names")

BODY: Final = (
    Field("start", NODE_NAME, "its first node", required=True),
    Field("nodes", MapOf(Record("node"), NODE_NAME), "the nodes by name", required=True),
    Field(
        "state",
        OneOf((MapOf(Data(), NAME), Null()), "a map from names to any data"),
        "the state at first",
    ),
    Field("max_steps", Integer(1, 10_000_000), "so many nodes are visited at most", MAX_STEPS),
    Field(
        "max_concurrency",
        PARALLEL,
        "so many items of a parallel foreach run at once",
        MAX_CONCURRENCY,
    ),
    Field(
        "on_error",
        Choice(POLICIES),
        "what follows when a node without its own on_error fails; "
        "continue: it assigns nothing, and its edges are followed",
        "fail",
    ),
    HOOKS_FIELD,
    Field("timeout", Duration(), TIMEOUT_MEANING),
)
"""The fields of a graph, at the top of its file or below `config` of a tool."""

_TOOL: Final = (
    Field("name", PlainText(), "what people call it", is_documentation=True, aliases=("title",)),
    Field("description", PlainText(), "what it is for", is_documentation=True),
    Field(
        "version",
        OneOf((PlainText(), Number()), "a version: 1.4.2"),
        "its version",
        is_documentation=True,
    ),
    Field("tool_type", Choice(("graph",)), "graph: the file can be called as a tool"),
    Field(
        "executor_id",
        PlainText(),
        "what runs it; the engine by default",
        is_documentation=True,
    ),
    Field("category", PlainText(), "the folder in which it is", is_documentation=True),
    Field("author", Data(), "its author", is_documentation=True),
    Field("tags", Data(), "words by which it is found", is_documentation=True),
    Field("inputs", PARAMETERS, "what it is given at the start, with types and defaults"),
    Field("config_schema", MapOf(Data()), "the same as JSON Schema: properties, required"),
    Field("outputs", Data(), "what it gives, for people and for chains", is_documentation=True),
    Field("secrets", _NAMES, "names of inputs whose values are never shown"),
    Field("env_requires", _NAMES, "variables of the environment without which it does not begin"),
    LIMITS_FIELD,
    Field(
        "permissions", NoEffect("trust decides which tools run, for a graph as for everybody"), ""
    ),
)

FORMS: Final = (
    RecordType(
        "graph",
        "graph",
        "A file that is a graph.  Below `config` its body may stand as well, as in other tools.",
        (
            *(Field(f.name, f.kind, f.what, f.default) for f in BODY),
            Field("config", Record("graph_body"), "instead: start, nodes and the rest of them"),
            *_TOOL,
        ),
        some_of=("nodes", "config"),
    ),
    RecordType("graph_body", "graph", "The same below `config` of a tool.", BODY),
    RecordType(
        "node",
        "node",
        "What is done at one place of a graph: act, assign, and follow the first edge that is "
        "open.",
        (
            Field(
                "type",
                Choice(NODE_TYPES),
                "action: calls a tool, or runs shell text; gate: only assigns and leads on; "
                "foreach: an action for each item; "
                "return: ends the graph.  If it is missing, the other fields decide",
            ),
            Field("action", Record("action"), "the call, as a map"),
            Field(
                "shell", ShellText(), "shell text instead of a tool; values are bound, never pasted"
            ),
            Field("interpreter", Choice(("sh", "bash", "dash")), "for shell: what runs it", "sh"),
            Field("tool", TemplateText(), "the tool that is called: its id", aliases=("item_id",)),
            Field(
                "params",
                OneOf((MapOf(TemplateTree()), SingleValue(), Null()), "a map"),
                "its parameters",
            ),
            Field(
                "assign",
                MapOf(TemplateTree(), NAME),
                "what becomes part of the state; all of it is filled with the state before the "
                "node",
            ),
            Field(
                "next",
                OneOf(
                    (NODE_NAME, ListOf(Record("edge")), Record("edge"), Null()),
                    "a node, or a list of edges",
                ),
                "where it goes on; nothing: the graph ends, and has succeeded",
            ),
            Field("on_error", NODE_NAME, "the node at which it goes on if this one fails"),
            Field(
                "output", TemplateTree(), "of a return: what the graph gives", aliases=("return",)
            ),
            Field(
                "over",
                OneOf(
                    (ListOf(TemplateTree()), TemplateText()), "a list, or a template that is one"
                ),
                "of a foreach: the items",
            ),
            Field("as", NAME, "of a foreach: the name of the item", "item"),
            Field(
                "collect",
                NAME,
                "of a foreach: the name in the state for what the items gave, in order",
            ),
            Field("parallel", Boolean(), "of a foreach: several items at once", False),
            Field("max_concurrency", PARALLEL, "of a foreach: so many at once"),
            replace(ON_EMPTY_FIELD, what=f"of a foreach: {ON_EMPTY_FIELD.what}"),
            Field(
                "cache_result",
                Boolean(),
                "the same call of the same tool is made once in a project",
                False,
            ),
            Field("retry", TRIES, "how often it is tried, items of a foreach each for themselves"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("env_requires", _NAMES, "variables without which the graph does not begin"),
            Field(
                "description",
                PlainText(),
                "what it is for",
                is_documentation=True,
                aliases=("comment",),
            ),
            Field("remote", Refused("everything runs on this machine"), ""),
            Field(
                "command",
                Refused("write shell: and the command, or tool: and its id"),
                "",
                aliases=("run", "cmd", "script", "bash"),
            ),
        ),
    ),
    RecordType(
        "action",
        "action",
        "The call of a tool.",
        (
            Field("tool", TemplateText(), "its id", aliases=("item_id",), required=True),
            Field(
                "params",
                OneOf((MapOf(TemplateTree()), SingleValue(), Null()), "a map"),
                "its parameters",
            ),
            Field(
                "primary",
                Choice(("execute",)),
                "what other systems say of it",
                is_documentation=True,
            ),
            Field(
                "item_type",
                Choice(("tool", "directive")),
                "directive: the id is that of a directive",
                "tool",
            ),
        ),
    ),
    RecordType(
        "edge",
        "edge",
        "Where a node leads; of several the first that is open is followed.",
        (
            Field("to", NODE_NAME, "the node", required=True),
            Field(
                "when",
                Condition(),
                "open if this holds: tests of `state`, `inputs` and `result`, or an expression; "
                "nothing: always open",
            ),
        ),
    ),
)
