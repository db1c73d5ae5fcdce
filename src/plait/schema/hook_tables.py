"""The tables of hooks and limits, which every flow may have, and of hook files."""

from __future__ import annotations

from plait.core.hints import Final
from plait.engine.hook_events import HOOK_EVENTS, MAX_RETRIES, VERBS
from plait.schema.field_types import (
    Boolean,
    Choice,
    Condition,
    Duration,
    Field,
    Integer,
    ListOf,
    MapOf,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    TemplateTree,
)
from plait.schema.shared import IDENTIFIER, MOST_ATTEMPTS

OF_RYE: Final = (
    ("thread_started", "run_started"),
    ("thread_continued", "run_started"),
    ("directive_return", "run_finished"),
    ("after_complete", "run_finished"),
)

HOOKS: Final = OneOf((ListOf(Record("hook")), Null()), "a list of hooks")
HOOKS_FILE: Final = OneOf(
    (Record("hooks"), ListOf(Record("hook"))), "a map with hooks, or a list of hooks"
)
"""A whole hook file."""
_TOOL_ID: Final = PlainText(
    "the id of a tool, without placeholders", r"(?:[a-z]+:)?[A-Za-z0-9][A-Za-z0-9_./-]*"
)

HOOKS_FIELD: Final = Field("hooks", HOOKS, "tools that are called on events of the run")
LIMITS_FIELD: Final = Field("limits", Record("limits"), "its limits; it ends when one is reached")

FORMS: Final = (
    RecordType(
        "hooks",
        "file of hooks",
        "The file `config/hooks.yaml` of the user space or of a project.",
        (Field("hooks", HOOKS, "the hooks", required=True),),
    ),
    RecordType(
        "hook",
        "hook",
        "A reaction to an event of a run: it may call tools and decide how the run continues.",
        (
            Field("id", IDENTIFIER, "its name in paths and messages", required=True),
            Field(
                "event",
                Choice(tuple(HOOK_EVENTS), OF_RYE),
                "the event that calls it",
                required=True,
            ),
            Field(
                "condition",
                Condition(),
                "the hook is called only if this holds; it knows the variables of the event",
                aliases=("when",),
            ),
            Field(
                "action",
                Record("hook_action"),
                "a tool that is called; its result may be a hook decision",
            ),
            Field("actions", ListOf(Record("hook_action")), "several tools, one after the other"),
            Field("verb", Choice(VERBS), "the hook decision, whatever the tool returns"),
            Field("why", PlainText(), "the reason that people see for the decision"),
            Field(
                "gate",
                Boolean(),
                "true: a failure of the hook counts as a refusal; always true with verb",
            ),
            Field(
                "max_retries",
                Integer(0, MOST_ATTEMPTS),
                "how often retry counts for one step",
                MAX_RETRIES,
            ),
            Field("delay", Duration(zero=True), "the pause before a retry", 0),
            Field("timeout", Duration(), "how long it may take; then it is stopped"),
            Field(
                "layer",
                Integer(0, 9),
                "its place among all hooks: user 0, flow 1, project 3; never before its own file",
            ),
            Field("description", PlainText(), "what it is for", is_documentation=True),
            Field(
                "position", Refused("choose the event: …_started is before, …_finished after"), ""
            ),
            Field(
                "wrap", Refused("the result of a tool is data, and is not inserted anywhere"), ""
            ),
        ),
        some_of=("action", "actions", "verb"),
    ),
    RecordType(
        "hook_action",
        "action",
        "A call of a tool by a hook.",
        (
            Field("tool", _TOOL_ID, "its id", required=True, aliases=("item_id",)),
            Field(
                "params",
                MapOf(TemplateTree()),
                "its parameters; `${…}` knows the variables of the event",
            ),
            Field("primary", Choice(("execute",)), "for other systems", is_documentation=True),
            Field("item_type", Choice(("tool",)), "for other systems", is_documentation=True),
        ),
    ),
    RecordType(
        "limits",
        "limit",
        "What may be used.  Each limit is checked before the next call, so that none is exceeded.",
        (
            Field("turns", Integer(0), "model turns"),
            Field("tokens", Integer(0), "tokens of requests and responses"),
            Field("spend", Number(0), "what models may cost, in the currency of their prices"),
            Field(
                "seconds",
                Duration(zero=True),
                "how long it may take, over all its run attempts",
                aliases=("duration_seconds",),
            ),
            Field("steps", Integer(0), "steps, visits of graph nodes, tool calls of agents"),
            Field(
                "depth",
                Integer(0, 64),
                "how deep flows and agents may be nested; 0: it may call none",
            ),
            Field("max_turns", Refused("write turns"), ""),
            Field("max_tokens", Refused("write tokens"), ""),
            Field("spawns", Refused("write depth, and steps"), ""),
        ),
    ),
)
