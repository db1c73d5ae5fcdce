"""The tables of hooks and limits, which every kind of flow has, and of the file that holds hooks alone."""

from __future__ import annotations

from plait.core.hints import Final
from plait.engine.hooks import MAX_RETRIES, MOMENTS, VERBS
from plait.schema.kinds import (
    Choice,
    Condition,
    Duration,
    Each,
    Field,
    Flag,
    Form,
    Many,
    Map,
    Null,
    Number,
    OneOf,
    Refused,
    Tree,
    Whole,
    Word,
)
from plait.schema.shared import IDENTIFIER, MOST_ATTEMPTS

OF_RYE: Final = (
    ("thread_started", "run_started"),
    ("thread_continued", "run_started"),
    ("directive_return", "run_finished"),
    ("after_complete", "run_finished"),
)

HOOKS: Final = OneOf((Many(Map("hook")), Null()), "a list of hooks")
HOOKS_FILE: Final = OneOf((Map("hooks"), Many(Map("hook"))), "a map with hooks, or a list of hooks")
"""A whole file of hooks."""
_TOOL_ID: Final = Word("the id of a tool, which is no template", r"(?:[a-z]+:)?[A-Za-z0-9][A-Za-z0-9_./-]*")

HOOKS_FIELD: Final = Field("hooks", HOOKS, "what is asked or told when something happens")
LIMITS_FIELD: Final = Field("limits", Map("limits"), "what it may use up; what is reached ends it")

FORMS: Final = (
    Form(
        "hooks",
        "file of hooks",
        "The file `config/hooks.yaml` of the user space or of a project.",
        (Field("hooks", HOOKS, "the hooks", required=True),),
    ),
    Form(
        "hook",
        "hook",
        "What is asked or told when something happens in a run.",
        (
            Field("id", IDENTIFIER, "what it is called in paths and messages", required=True),
            Field("event", Choice(tuple(MOMENTS), OF_RYE), "when it is asked", required=True),
            Field(
                "condition",
                Condition(),
                "only if this holds; it knows the names of the event",
                also=("when",),
            ),
            Field("action", Map("hook_action"), "a tool that is called; its result may be a verdict"),
            Field("actions", Many(Map("hook_action")), "several tools, one after the other"),
            Field("verb", Choice(VERBS), "the verdict, whatever a tool says"),
            Field("why", Word(), "what people are told about that verdict"),
            Field("gate", Flag(), "true: if it fails, that counts as a no; so it is with verb"),
            Field(
                "max_retries", Whole(0, MOST_ATTEMPTS), "how often retry is heard for one step", MAX_RETRIES
            ),
            Field("delay", Duration(zero=True), "the pause before a retry", 0),
            Field("timeout", Duration(), "how long it may take; what still runs then is ended"),
            Field(
                "layer",
                Whole(0, 9),
                "its place among all hooks: user 0, flow 1, project 3; never before its own file",
            ),
            Field("description", Word(), "what it is for", told=True),
            Field("position", Refused("choose the event: …_started is before, …_finished after"), ""),
            Field("wrap", Refused("what a tool returns is data and is put nowhere"), ""),
        ),
        some_of=("action", "actions", "verb"),
    ),
    Form(
        "hook_action",
        "action",
        "A call of a tool by a hook.",
        (
            Field("tool", _TOOL_ID, "its id", required=True, also=("item_id",)),
            Field("params", Each(Tree()), "what it is given; `${…}` knows the names of the event"),
            Field("primary", Choice(("execute",)), "says what is done anyway", told=True),
            Field("item_type", Choice(("tool",)), "says what it is anyway", told=True),
        ),
    ),
    Form(
        "limits",
        "limit",
        "What may be used up; each is looked at before the next call, so that none is exceeded.",
        (
            Field("turns", Whole(0), "questions to a model"),
            Field("tokens", Whole(0), "into models and out of them"),
            Field("spend", Number(0), "what models may cost, in the currency of their prices"),
            Field(
                "seconds",
                Duration(zero=True),
                "how long it may take, in all its lives",
                also=("duration_seconds",),
            ),
            Field("steps", Whole(0), "steps, nodes of graphs, calls of agents"),
            Field("depth", Whole(0, 64), "flows and agents inside one another; 0: it may call none"),
            Field("max_turns", Refused("write turns"), ""),
            Field("max_tokens", Refused("write tokens"), ""),
            Field("spawns", Refused("write depth, and steps"), ""),
        ),
    ),
)
