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
from plait.schema.shared import NAME, ON_EMPTY_FIELD, PARALLEL, PARAMETERS, RETRY, TIMEOUT_MEANING

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
        "the initial state",
    ),
    Field("max_steps", Integer(1, 10_000_000), "the maximum of visits", MAX_STEPS),
    Field(
        "max_concurrency",
        PARALLEL,
        "how many items of a parallel foreach run at a time",
        MAX_CONCURRENCY,
    ),
    Field(
        "on_error",
        Choice(POLICIES),
        "what follows if a node without on_error fails; "
        "continue: it assigns nothing, and its edges are followed",
        "fail",
    ),
    HOOKS_FIELD,
    Field("timeout", Duration(), TIMEOUT_MEANING),
)
"""The fields of a graph, at the top of its file or below `config` of a tool."""

_TOOL: Final = (
    Field("name", PlainText(), "its name for people", is_documentation=True, aliases=("title",)),
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
    Field("category", PlainText(), "its folder", is_documentation=True),
    Field("author", Data(), "who wrote it", is_documentation=True),
    Field("tags", Data(), "words to find it by", is_documentation=True),
    Field("inputs", PARAMETERS, "its inputs, with types and defaults"),
    Field("config_schema", MapOf(Data()), "the same as JSON Schema: properties, required"),
    Field("outputs", Data(), "its outputs, for people and for chains", is_documentation=True),
    Field("secrets", _NAMES, "names of inputs whose values are masked"),
    Field("env_requires", _NAMES, "environment variables that must be set"),
    LIMITS_FIELD,
    Field("permissions", NoEffect("trust decides which tools run"), ""),
)

FORMS: Final = (
    RecordType(
        "graph",
        "graph",
        "A graph file.  Its body may also be below `config`, as in other tools.",
        (
            *(Field(f.name, f.kind, f.what, f.default) for f in BODY),
            Field(
                "config",
                Record("graph_body"),
                "instead: start, nodes and the other fields of the body",
            ),
            *_TOOL,
        ),
        some_of=("nodes", "config"),
    ),
    RecordType("graph_body", "graph", "The same below `config` of a tool.", BODY),
    RecordType(
        "node",
        "node",
        "A node performs its action, assigns to the state, and follows the first open edge.",
        (
            Field(
                "type",
                Choice(NODE_TYPES),
                "action: calls a tool, or runs shell text; gate: only assigns and follows an edge; "
                "foreach: an action for each item; "
                "return: ends the graph.  By default the other fields decide",
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
                "what is added to the state; its placeholders use the state before the node",
            ),
            Field(
                "next",
                OneOf(
                    (NODE_NAME, ListOf(Record("edge")), Record("edge"), Null()),
                    "a node, or a list of edges",
                ),
                "the next node; without it the graph ends and has succeeded",
            ),
            Field("on_error", NODE_NAME, "the next node if this one fails"),
            Field(
                "output", TemplateTree(), "for return: the output of the graph", aliases=("return",)
            ),
            Field(
                "over",
                OneOf(
                    (ListOf(TemplateTree()), TemplateText()), "a list, or a template that is one"
                ),
                "for foreach: the items",
            ),
            Field("as", NAME, "for foreach: the name of the item", "item"),
            Field(
                "collect",
                NAME,
                "for foreach: the name in the state for the outputs of the items, in order",
            ),
            Field("parallel", Boolean(), "for foreach: run several items at a time", False),
            Field("max_concurrency", PARALLEL, "for foreach: how many at a time"),
            replace(ON_EMPTY_FIELD, what=f"for foreach: {ON_EMPTY_FIELD.what}"),
            Field(
                "cache_result",
                Boolean(),
                "the same tool call is made once in a project",
                False,
            ),
            Field("retry", RETRY, "its attempts; each item of a foreach has its own"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field(
                "env_requires",
                _NAMES,
                "environment variables that must be set when the graph starts",
            ),
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
                "for other systems",
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
        "The way to another node.  The first open edge is followed.",
        (
            Field("to", NODE_NAME, "the node", required=True),
            Field(
                "when",
                Condition(),
                "the edge is open if this holds: tests of `state`, `inputs` and `result`, or an expression; "
                "without it the edge is always open",
            ),
        ),
    ),
)
