"""The tables of a directive, and those that agents in other files share with it."""

from __future__ import annotations

from plait.core.hints import Final
from plait.schema.field_types import (
    Data,
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
    TemplateTree,
)
from plait.schema.hook_tables import HOOKS_FIELD
from plait.schema.shared import PARAMETERS

MOST_TURNS: Final = 50
"""Turns of an agent whose file sets no limit."""
MOST_RETRIES: Final = 20

_PART: Final = "[A-Za-z0-9*][A-Za-z0-9_.*-]*"
PATTERN: Final = PlainText(
    "a pattern of tool ids: team/report, core/file/* or *",
    rf"(?:tool:|directive:)?{_PART}(?:/{_PART})*",
)
PATTERNS: Final = OneOf((ListOf(PATTERN), PATTERN), "a pattern of tool ids, or a list of them")
AGENT_FIELDS: Final = (
    Field(
        "limits",
        Record("limits"),
        f"its limits; `turns` defaults to {MOST_TURNS}",
    ),
    Field(
        "max_output_retries",
        Integer(0, MOST_RETRIES),
        "how often the model may correct a response that does not match the schema",
        2,
    ),
)

FORMS: Final = (
    RecordType(
        "directive",
        "directive",
        "The head of a directive, between two lines `---`.  The prompt follows it, with "
        "`{input:name}` for an input.",
        (
            Field(
                "name",
                PlainText(),
                "its name for people; the file name by default",
                is_documentation=True,
            ),
            Field(
                "description",
                PlainText(),
                "what it does; agents that may call it read this",
                is_documentation=True,
            ),
            Field(
                "inputs",
                PARAMETERS,
                "its inputs, with types and defaults",
                aliases=("parameters",),
            ),
            Field("outputs", PARAMETERS, "its outputs, which the model must return"),
            Field("system", TemplateText(), "the system prompt"),
            Field(
                "model",
                OneOf(
                    (PlainText(), Record("directive_model")), "the name of a model, or a map: model"
                ),
                "which model; the provider's default model by default",
            ),
            Field("provider", PlainText(), "whose model"),
            Field(
                "options", MapOf(Data()), "further options of the provider: temperature, max_tokens"
            ),
            Field(
                "permissions",
                OneOf(
                    (Record("permissions"), PATTERNS), "patterns of tool ids, or a map: permissions"
                ),
                "the tools that the model may call; none by default",
                aliases=("tools",),
            ),
            *AGENT_FIELDS,
            HOOKS_FIELD,
            Field(
                "actions",
                ListOf(MapOf(TemplateTree())),
                "calls that are filled and listed for the reader, but not made",
            ),
            Field(
                "version",
                OneOf((PlainText(), Number()), "a version: 1.4.2"),
                "its version",
                is_documentation=True,
            ),
            Field("category", Data(), "its folder", is_documentation=True),
            Field("author", Data(), "who wrote it", is_documentation=True),
            Field("tags", Data(), "words to find it by", is_documentation=True),
            Field("extends", Refused("write it whole: a directive is one file"), ""),
            Field(
                "context", Refused("write what the model should know into system or the prompt"), ""
            ),
            Field("acknowledge", NoEffect("a risk is taken by a permission"), ""),
        ),
    ),
    RecordType(
        "directive_model",
        "model",
        "Which model answers.",
        (
            Field("id", PlainText(), "its name, as the provider calls it", aliases=("name",)),
            Field(
                "tier",
                PlainText(),
                "a tier of the provider, such as fast or strong; `id` has priority",
            ),
            Field("provider", PlainText(), "whose model"),
            Field(
                "fallback", NoEffect("a model that fails is not replaced by another silently"), ""
            ),
        ),
    ),
    RecordType(
        "permissions",
        "permissions",
        "The tools that a model may call.  A tool that matches no pattern is refused.",
        (
            Field(
                "tools",
                PATTERNS,
                "those that it may call; directive:… names other directives",
                aliases=("execute", "allow"),
            ),
            Field(
                "once",
                PATTERNS,
                "those for which Plait asks before it calls them a second time after a crash",
            ),
        ),
    ),
)
