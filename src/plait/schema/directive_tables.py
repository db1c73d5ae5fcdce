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
        f"what it may use up; without a word about turns there are at most {MOST_TURNS}",
    ),
    Field(
        "max_output_retries",
        Integer(0, MOST_RETRIES),
        "how often the model may correct an answer that does not fit",
        2,
    ),
)

FORMS: Final = (
    RecordType(
        "directive",
        "directive",
        "What stands between the lines `---` at the top of a directive.  Below it is the prompt, "
        "in which "
        "`{input:name}` stands for an input.",
        (
            Field(
                "name",
                PlainText(),
                "what people call it; its file name by default",
                is_documentation=True,
            ),
            Field(
                "description",
                PlainText(),
                "what it is for: agents that may call it read this",
                is_documentation=True,
            ),
            Field(
                "inputs",
                PARAMETERS,
                "what it is given, with types and defaults",
                aliases=("parameters",),
            ),
            Field("outputs", PARAMETERS, "what it gives: the model has to answer with these"),
            Field("system", TemplateText(), "what comes before the prompt"),
            Field(
                "model",
                OneOf(
                    (PlainText(), Record("directive_model")), "the name of a model, or a map: model"
                ),
                "which model; the one of the provider by default",
            ),
            Field("provider", PlainText(), "whose model"),
            Field(
                "options", MapOf(Data()), "what else the provider takes: temperature, max_tokens"
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
                "calls for the reader of the directive: they are filled and listed, and not made",
            ),
            Field(
                "version",
                OneOf((PlainText(), Number()), "a version: 1.4.2"),
                "its version",
                is_documentation=True,
            ),
            Field("category", Data(), "the folder in which it is", is_documentation=True),
            Field("author", Data(), "its author", is_documentation=True),
            Field("tags", Data(), "words by which it is found", is_documentation=True),
            Field("extends", Refused("write it whole: a directive is one file"), ""),
            Field(
                "context", Refused("write into system or the prompt what the model is to know"), ""
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
                "one of the tiers of the provider: fast, strong; an id wins over it",
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
        "The tools that a model may call.  What no pattern names is refused.",
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
                "those that are rather asked about than called twice, after a kill",
            ),
        ),
    ),
)
